"""How a variant stands: what was found on each rung so far, how it ended if it did, and what bars its way."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernelproof import builds, records
from kernelproof.errors import KernelproofError, RecordError, TestError, WorkerConfined, WorkerReplyError, WorkerTimeout
from kernelproof.ladder.outcomes import COLLECTED, RUNGS, Outcome
from kernelproof.records import BuildRecord, CaseResult, PropertyResult, Rung

if TYPE_CHECKING:
    from kernelproof.config import VariantConfig
    from kernelproof.ladder.session import Session

CRASHES_ALLOWED = 2  # after that many the remaining cases are not run
NAMED = 3  # of the reasons why it takes no case
LONGER = 5  # times the limit that ended a call, to try it with


class Standing:
    """One variant's rungs and results, the end of its processes, and why nothing more is run."""

    def __init__(self, session: Session, variant: VariantConfig) -> None:
        self.session = session
        self.variant = variant
        self.limits = session.config.test.time_limit_s
        self.rungs: dict[str, Rung] = {}
        self.told: dict[str, Outcome] = {}  # by rung: what its message tells, and of which case
        self.results: list[CaseResult] = []
        self.properties_found: list[PropertyResult] = []
        self.supplied = {"sanity": 0, "properties": 0}  # by rung: exact calls, relations
        self.ended: str | None = None  # crashed, hung: decided by how the process ended and not by a result
        self.barred: str | None = None  # why nothing more is run
        self.remedy: str | None = None  # what to do about that
        self.crashes = 0
        self.searched = 0  # cases that the deep level drew
        self.built: BuildRecord | None = None  # once it was read
        self.collected = False  # the calls of the upper rungs were made, as far as they could be

    def note(self, name: str, outcome: Outcome, duration_s: float, what: str) -> Outcome:
        """Fold a step into its rung: failed if one failed, skipped if all were; the gravest failure is told."""
        rung = self.rungs.get(name)
        if rung is None:
            rung = self.rungs[name] = Rung(name, "skipped")
        rung.duration_s += duration_s
        message = f"{what}: {outcome.message}" if what and outcome.status == "failed" else outcome.message
        severity = ("skipped", "passed", "failed").index
        graver = name in self.told and outcome.gravity > self.told[name].gravity
        if severity(outcome.status) > severity(rung.status) or graver:
            rung.status, rung.message = outcome.status, message or None
            if outcome.status == "failed":
                self.told[name] = outcome
        elif rung.status == "skipped":
            rung.message = rung.message or message
        return outcome

    def passed(self, rung: str) -> bool:
        """Whether a rung was passed."""
        return rung in self.rungs and self.rungs[rung].status == "passed"

    def bar(self, rung: str) -> str | None:
        """Why a step is not to be run: no device, a process that crashed or hung, or a lower rung that failed."""
        barred = None if self.collected and rung in COLLECTED else self.barred
        if reason := barred or (self._bar_of_build() if rung == "build" else self._bar_of_device()):
            return reason
        for lower in RUNGS[: RUNGS.index(rung)]:
            # Of wrong results it is worth knowing what else is wrong: in another way each time is a race. And of a call
            # that fails, where: a tool that watches it may say that.
            if lower in COLLECTED or (rung == "sanitizer" and lower in ("launch", "sanity")):
                continue
            if lower in self.rungs and self.rungs[lower].status == "failed":
                return f"the {lower} rung failed"
        return None

    def _bar_of_build(self) -> str | None:
        """What nobody built, or could not build for want of a tool, is not a variant that failed to build."""
        path = self.session.config.record("build", self.variant.operator, self.variant.name)
        if self.variant.abi != "python" and not path.exists():
            self.barred = "nothing was built yet"
            self.remedy = self.session.config.command("build", self.variant)
        with contextlib.suppress(RecordError):
            built = records.read(path, BuildRecord)
            if built.status == records.NOT_RUN:
                self.barred, self.remedy = f"it was not built: {built.reason}", built.remedy
            elif why := builds.stale(self.session.config, self.variant, built):
                self.barred = f"it was not built as it is now: {why}"
                self.remedy = self.session.config.command("build", self.variant)
        return self.barred

    def _bar_of_device(self) -> str | None:
        lacking = self.session.lacking(self.variant)
        if lacking is None:
            return None
        reason, self.remedy = lacking
        return reason

    def bar_without_cases(self, skipped: Sequence[CaseResult]) -> None:
        """Who declares to take none of the cases is not condemned for it: nothing is run."""
        if self.barred or not skipped:
            return
        left_out = list(dict.fromkeys(str(result.reason) for result in skipped))
        more = f"; and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
        self.barred = f"it declares to take none of the {len(skipped)} cases: {'; '.join(left_out[:NAMED])}{more}"
        at = f"operators.{self.variant.operator}"
        self.remedy = (
            f"correct limits, options or dtypes of {at}.{self.variant.role}s.{self.variant.name}, or add a shape that "
            f"it takes to {at}.shapes and {at}.test.shapes"
        )

    def process_ended(self, rung: str, error: KernelproofError, what: str) -> None:
        """A hang bars the rest at once, a crash after a few: a fresh process goes on with the other cases."""
        where = f"{rung} ({what})" if what else rung
        if isinstance(error, WorkerTimeout):
            self.ended = self.ended or "hung"
            self.barred = f"the variant hung in {where}"
            limits = {**dataclasses.asdict(self.limits), "launch": self.limits.first_call(self.variant.abi)}
            limit = next((name for name in limits if rung.startswith(name)), "correctness")
            key = f"test.time_limit_s.{limit}"
            longer = f"{LONGER * limits[limit]:g}"
            self.remedy = (
                f"if it only takes long, as what compiles at its first call does, let {self.session.config.source} say "
                f"`test: {{time_limit_s: {{{limit}: {longer}}}}}` for all runs; for one test alone, raise {key}: "
                f"{self.session.config.command('test', self.variant)} --set {key}={longer}"
            )
        elif isinstance(error, WorkerConfined):
            self.barred = f"it needs what a candidate is kept from, in {where}: {error.message}"
            self.remedy = "have it do without in a call; `kernelproof doctor` lists what a candidate is kept from"
        elif not isinstance(error, (WorkerReplyError, TestError)):
            self.ended = self.ended or "crashed"
            self.crashes += 1
            if self.crashes > CRASHES_ALLOWED:
                self.barred = f"the variant crashed {self.crashes} times, the last time in {where}"
