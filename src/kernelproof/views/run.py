"""The run as a whole: what was not done and why, how to do it again, what the bundle carries."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kernelproof import formats, members
from kernelproof.records import FAILED, NOT_RUN, OK, ManifestRecord, Provenance, Record, TestRecord
from kernelproof.views.common import Badge, Records, Settings, badge


@dataclass(frozen=True)
class NotRun:
    """Work that was not done or failed for one reason: what it would have been, why, and what to do about it."""

    stage: str
    badge: Badge
    subjects: tuple[str, ...]
    reason: str
    remedy: str


def not_run(records: Records) -> list[NotRun]:
    """Everything that a stage did not do, grouped by reason."""
    found: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)

    def add(stage: str, record: Record, subject: str) -> None:
        if record.status != OK:
            repeat = record.repeat if isinstance(record, TestRecord) and record.repeat else ""
            key = (
                stage,
                record.status,
                formats.one_line(record.reason or "no reason recorded", 600),
                record.remedy or (f"to see it again: {repeat}" if repeat else ""),
            )
            found[key].append(subject)

    if records.capture is None:
        found["capture", NOT_RUN, "there is no record of the machine", "run `kernelproof capture`"].append(
            "the machine"
        )
    else:
        add("capture", records.capture, "the machine")
        for name, probe in records.capture.probes.items():
            if probe.status == FAILED:
                found["capture", FAILED, formats.one_line(probe.error or "no error recorded"), ""].append(name)
    for build in records.builds:
        add("build", build, f"{build.operator}/{build.variant}")
    for test in records.tests:
        add("test", test, f"{test.operator}/{test.variant}")
    for bench in records.benches:
        add("bench", bench, f"{bench.operator} on {bench.device}")
    for device, ceilings in records.ceilings.items():
        add("bench", ceilings, f"ceilings of {device}")
    for profile in records.profiles:
        add("profile", profile, f"{profile.operator}/{profile.variant}")
    for gap in records.manifest.missing:
        stage = gap.get("stage", "run")
        subject = gap.get("what") or gap.get("subject") or gap.get("path") or gap.get("record") or ""
        key = (stage, NOT_RUN, formats.one_line(gap.get("reason", "no record"), 600), gap.get("remedy") or "")
        if subject not in found[key]:
            found[key].append(subject)
    for gone in records.unreadable:
        found["records", FAILED, formats.one_line(gone.message, 600), "run the stage again"].append(gone.path)
    return [
        NotRun(stage, badge(status), tuple(subject for subject in subjects if subject), reason, remedy)
        for (stage, status, reason, remedy), subjects in found.items()
    ]


def not_run_title(gaps: Sequence[NotRun]) -> str:
    """What stands above them."""
    return "Not run or failed" if any(gap.badge.kind == "bad" for gap in gaps) else "Not run"


@dataclass(frozen=True)
class MeasuredRow:
    """From which state of the repository records come."""

    what: str
    commit: str
    state: str
    utc: str


@dataclass(frozen=True)
class ClassTotal:
    """How many members of a class, and how large."""

    name: str
    meaning: str
    number: int
    bytes: int


@dataclass(frozen=True)
class ReproduceView:
    """Commits and commands."""

    bundle: MeasuredRow
    measured: tuple[MeasuredRow, ...]
    apart: bool
    commit: str
    dirty: bool
    diff: str
    script: str


CLASSES = {
    "identity": "must be equal, byte for byte, when replayed",
    "measurement": "compared statistically",
    "context": "for information",
}


def reproduce(records: Records, settings: Settings) -> ReproduceView:
    """Which commit was measured, which is bundled, and what to type."""
    manifest = records.manifest
    here = manifest.provenance
    states: dict[tuple[str, bool, str], list[tuple[str, Provenance]]] = defaultdict(list)
    for what, state in manifest.measured.items():
        states[state.commit or "", state.dirty, state.diff_sha256 or ""].append((what, state))
    rows = tuple(
        _measured(", ".join(what for what, _ in group), max((p for _, p in group), key=lambda p: p.utc))
        for group in states.values()
    )
    apart = any(key != (here.commit or "", here.dirty, here.diff_sha256 or "") for key in states)
    newest = max((p for group in states.values() for _, p in group), key=lambda p: p.utc, default=here)
    return ReproduceView(
        _measured("this report and bundle", here),
        rows,
        apart,
        newest.commit or "",
        newest.dirty,
        (newest.diff_sha256 or "")[:8],
        _script(records, newest, settings.source),
    )


def _measured(what: str, state: Provenance) -> MeasuredRow:
    if state.commit is None:
        shown_state = f"{state.why_no_commit}; tree {(state.diff_sha256 or '')[:8]}"
    else:
        shown_state = f"dirty, difference {(state.diff_sha256 or '')[:8]}" if state.dirty else "clean"
    return MeasuredRow(what, state.commit or formats.ABSENT, shown_state, state.utc)


def _script(records: Records, state: Provenance, source: str) -> str:
    """Commands, each under a comment that says what it does; names are quoted for the shell."""
    own = not records.manifest.holds_workflow
    clone = "$KERNELPROOF" if own else "$PWD"
    commands = [("the code that was measured", shlex.join(["git", "checkout", state.commit]))] if state.commit else []
    if own:
        commands.append(("a clone of kernelproof in which ./repro.sh has run", "export KERNELPROOF=/path/to/the/clone"))
    commands.append(("where the command kernelproof is", f'export PATH="{clone}/.venv/bin:$PATH"'))
    commands.append(
        (
            f"everything again{'' if own else ', from nothing'}, but what the command line set (see REPLAY.md)",
            members.command_of_run(records.manifest, source, fresh=True),
        )
    )
    given = [] if source == "config.yaml" else ["--config", source]
    tested = next((t for t in records.tests if t.status == OK and t.role == "variant"), None)
    if tested:
        selection = ["--operator", tested.operator, "--variant", tested.variant]
        commands.append(("one variant’s tests", shlex.join(["kernelproof", "test", *given, *selection])))
    for bench in records.benches:
        name = next((c.name for c in bench.contenders if c.role == "variant" and c.correct), None)
        if bench.status == OK and bench.cases and name:
            selection = ["--operator", bench.operator, "--variant", name, "--shape", bench.cases[0].shape]
            commands.append(
                (
                    f"one call on the {bench.device}, as a profiler wants it",
                    shlex.join(["kernelproof", "bench", *given, *selection, "--once"]),
                )
            )
    commands.append(
        ("is the bundle whole and unchanged? (in the folder where it lies)", "kernelproof verify kernelproof-*.tar.gz")
    )
    return "\n".join(f"# {formats.one_line(what)}\n{formats.one_line(command, 1000)}" for what, command in commands)


def class_totals(manifest: ManifestRecord) -> list[ClassTotal]:
    """Members by class."""
    names = [*CLASSES, *sorted({m.member_class for m in manifest.members} - set(CLASSES))]
    totals = []
    for name in names:
        sizes = [m.bytes for m in manifest.members if m.member_class == name]
        if sizes:
            totals.append(ClassTotal(name, CLASSES.get(name, ""), len(sizes), sum(sizes)))
    return totals
