"""The sanitizer rung: compute-sanitizer's tools watch a few small calls, and are at work while the judge is."""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING, Any

from kernelproof import sanitizer
from kernelproof.errors import ToolError
from kernelproof.judging import Job
from kernelproof.records import Case, Sanitizer, SanitizerRun

if TYPE_CHECKING:
    from kernelproof.ladder.calling import Calls
    from kernelproof.ladder.standing import Standing


class Examiner:
    """The tools at work on one variant, and what they found."""

    def __init__(self, standing: Standing, calls: Calls) -> None:
        self.standing = standing
        self.calls = calls
        self.selection, self.session, self.settings = calls.selection, calls.session, calls.settings
        name = f"{calls.variant.operator}-{calls.variant.name}"
        self._folder = self.session.resources.scratch / f"{name}-sanitizer"
        self._examination: sanitizer.Examination | None = None
        self.examined: Sanitizer | None = None

    def start(self) -> None:
        """Start compute-sanitizer's tools; they are at work while the judge is."""
        asked = self.selection.sanitizer_tools if self.selection.asked is None else self.selection.asked["sanitizer"]
        tools = [tool for tool in asked if not self.bar_of_tool(tool)]
        if self.examined is not None or not tools:
            return
        barred = [SanitizerRun(tool, "skipped", reason=self.bar_of_tool(tool)) for tool in asked if tool not in tools]
        self.examined = Sanitizer(cases=[case.id for case in self.selection.sanitizer_cases], runs=barred)
        try:
            program = sanitizer.find()
        except ToolError as error:
            why = f"compute-sanitizer: {error.message}"
            self.examined.runs += [SanitizerRun(tool, "skipped", reason=why, remedy=error.hint) for tool in tools]
            return
        self.examined.version = program.version
        self._folder.mkdir(exist_ok=True)
        self._examination = sanitizer.Examination(
            program,
            tools,
            {
                "candidate": self.calls.candidate(),
                "calls": [self._values(n, c) for n, c in enumerate(self.selection.sanitizer_cases)],
            },
            self._folder,
            limit_s=self._limit_s,
        )

    @property
    def _limit_s(self) -> float:
        """Seconds for a tool; of a variant that hangs it is known that it may take them all."""
        limit_s = self.session.config.test.sanitizer.time_limit_s
        return min(limit_s, self.standing.limits.launch) if self.standing.ended == "hung" else limit_s

    def bar_of_tool(self, tool: str) -> str | None:
        """Why a tool is not to be run; of a variant that hangs synccheck may say where, since it ends the kernel."""
        if self.standing.ended == "hung" and tool == "synccheck" and self.standing.passed("load"):
            return None
        return self.standing.bar("sanitizer")

    def _values(self, number: int, case: Case) -> dict[str, Any]:
        """A case and other values of it, laid out for kernelproof.sanitizing."""
        other = dataclasses.replace(case, seed=case.seed + 1)
        laid = [
            self.session.judge.lay_out(self.settings.module, Job(each), self._folder / f"{number}-{place}")
            for place, each in enumerate((case, other))
        ]
        return {"values": [each.arguments for each in laid], "outputs": laid[0].outputs}

    def found(self) -> Sanitizer:
        """What every tool found, once all have ended."""
        self.start()
        assert self.examined is not None
        if self._examination is not None:
            owner = sanitizer.Owner.of(self.standing.built, self.session.root)
            limit_s = self._limit_s
            for tool in self._examination.tools:
                ended = self._examination.result(tool)
                self.examined.runs.append(sanitizer.judge(tool, ended, owner, limit_s))
                with self.calls.log.open("a", encoding="utf-8") as log:
                    log.write(f"\n--- compute-sanitizer --tool {tool} ---\n{ended.excerpt}")
            sanitizer.settle_crashes(self.examined.runs)
            self.stop()
        return self.examined

    def stop(self) -> None:
        """End compute-sanitizer's tools."""
        if self._examination is not None:
            self._examination.close()
            self._examination = None
        shutil.rmtree(self._folder, ignore_errors=True)
