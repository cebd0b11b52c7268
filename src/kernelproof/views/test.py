"""Tests: the ladder, the matrix of errors, their distribution, the cases that failed."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernelproof import charts, formats
from kernelproof.charts import Axis
from kernelproof.config import AT_LEAST_FLOAT32
from kernelproof.records import (
    FAILED,
    NOT_RUN,
    CaseResult,
    PropertyResult,
    Rung,
    SanitizerFinding,
    SanitizerRun,
    TestRecord,
)
from kernelproof.views.common import Badge, Limits, Records, badge, dims_text, option_words, refuted_when_timed

RUNGS = ("build", "load", "launch", "sanity", "correctness", "properties", "determinism", "sanitizer")
SANITIZER_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


HISTOGRAM_HEIGHT = 34.0  # pixels

# How far a verdict can be trusted: what was in the process that made the results.
TRUST = {
    "sealed": "the cubin alone, started by kernelproof's own launcher, and no host code of the candidate",
    "library": "a shared object, in a worker process of its own",
    "python": "a callable, which shares its worker process's interpreter",
}

PRECISION = {"output": "output", "p": "intermediates", "accumulate": "sums"}
DECLARED = {"input": "the inputs’ type", AT_LEAST_FLOAT32: "float32 at least"}


@dataclass(frozen=True)
class Cell:
    """One cell of the correctness matrix."""

    kind: str  # good, bad, muted, none
    mark: str
    figure: str
    title: str


@dataclass(frozen=True)
class MatrixRow:
    """A line of the matrix: one shape, option or input family."""

    name: str
    note: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class MatrixPart:
    """A block of the matrix."""

    title: str
    rows: tuple[MatrixRow, ...]


@dataclass(frozen=True)
class TestView:
    """One variant's test."""

    record: TestRecord
    badge: Badge
    rungs: Mapping[str, Rung]  # by name
    passed: int
    failed: int
    skipped: int
    worst_bound: float | None
    worst_rms: float | None
    worst_bias: float | None
    picture: charts.ErrorPicture | None
    failing: tuple[CaseResult, ...]
    failing_left_out: int
    message: str
    repeat: str | None
    refuted: str  # what the benchmark found of one that passed: `wrong when timed`


@dataclass(frozen=True)
class Unsealed:
    """Calls of one variant that its library made, and why they were not sealed."""

    variant: str
    calls: str
    reason: str
    first: str


@dataclass(frozen=True)
class PassedWithout:
    """A rung that variants passed although something of it was not done, and what."""

    rung: str
    what: str
    variants: tuple[str, ...]


@dataclass(frozen=True)
class Confinement:
    """How far workers were confined, in words, and whose."""

    words: str
    refused: tuple[str, ...]
    variants: tuple[str, ...]


@dataclass(frozen=True)
class Declared:
    """A precision that variants declared and were held to, in words, and whose."""

    words: str
    variants: tuple[str, ...]


@dataclass(frozen=True)
class FoundView:
    """A finding of compute-sanitizer: whose, by which tool, and where."""

    variant: str
    tool: str
    kind: str  # bad: it condemns; muted: it is only noted
    note: str
    finding: SanitizerFinding


@dataclass(frozen=True)
class SanitizerRow:
    """One variant under the tools: a cell for each of SANITIZER_TOOLS."""

    variant: str
    cells: tuple[Cell, ...]
    cases: int
    calls: int
    seconds: float


@dataclass(frozen=True)
class SanitizerView:
    """compute-sanitizer over the variants of an operator; `not_run`: why and for whom, with what to do about it."""

    versions: tuple[str, ...]
    rows: tuple[SanitizerRow, ...]
    found: tuple[FoundView, ...]
    found_left_out: int
    not_run: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class TestGroup:
    """All tests of one operator; `waiting` are those that were not run, by reason, and `ran` the others."""

    operator: str
    columns: tuple[TestView, ...]
    ran: tuple[TestView, ...]
    rungs: tuple[str, ...]  # that any of them came to
    waiting: tuple[tuple[str, tuple[str, ...]], ...]
    trusts: tuple[tuple[str, str], ...]
    declared: tuple[Declared, ...]
    unsealed: tuple[Unsealed, ...]
    passed_without: tuple[PassedWithout, ...]
    confinements: tuple[Confinement, ...]
    with_cases: tuple[TestView, ...]
    parts: tuple[MatrixPart, ...]
    sanitizer: SanitizerView | None
    fresh_seeds: tuple[int, ...]
    levels: tuple[str, ...]
    trials: tuple[int, ...]  # calls that were to have the same bits
    axis: Axis
    bound_at: float


def tests(records: Records, limits: Limits) -> list[TestGroup]:
    """Tests by operator; variants before baselines."""
    by_operator: dict[str, list[TestRecord]] = defaultdict(list)
    for record in records.tests:
        by_operator[record.operator].append(record)
    refuted = refuted_when_timed(records)
    return [
        _test_group(operator, sorted(found, key=lambda r: r.role != "variant"), limits, refuted)
        for operator, found in by_operator.items()
    ]


def _test_group(operator: str, found: Sequence[TestRecord], limits: Limits, refuted: Mapping[str, str]) -> TestGroup:
    on = charts.error_axis(r.error_histogram for r in found if r.error_histogram)
    columns = tuple(_test(record, on, limits, refuted.get(f"{operator}/{record.variant}", "")) for record in found)
    with_cases = [r for r in found if r.cases]
    parts = [
        _part("By shape", with_cases, lambda c: c.shape, _dims_note),
        _part("By input family", with_cases, lambda c: c.family, lambda c: ""),
        _part("By option and type", with_cases, _option_key, lambda c: ""),
        _property_part(with_cases),
    ]
    seeds = dict.fromkeys(r.fresh_seed for r in found if r.fresh_seed is not None)
    ran = tuple(column for column in columns if column.record.status != NOT_RUN)
    waiting: dict[str, list[str]] = defaultdict(list)
    for record in found:
        if record.status == NOT_RUN:
            waiting[record.reason or "no reason recorded"].append(record.variant)
    return TestGroup(
        operator,
        columns,
        ran,
        tuple(name for name in RUNGS if any(name in column.rungs for column in ran)),
        tuple((reason, tuple(names)) for reason, names in waiting.items()),
        tuple((level, words) for level, words in TRUST.items() if any(c.record.trust == level for c in ran)),
        _declared(column.record for column in ran),
        tuple(unsealed for record in found for unsealed in _unsealed(record)),
        _passed_without(found),
        _confinements(found),
        tuple(c for c in columns if c.record.cases),
        tuple(p for p in parts if p.rows),
        _sanitizer(found, limits),
        tuple(seeds),
        tuple(dict.fromkeys(r.level for r in with_cases)),
        tuple(sorted({r.trials for r in with_cases if r.trials})),
        on,
        on.at(1.0),
    )


def _unsealed(record: TestRecord) -> list[Unsealed]:
    """By reason; of a variant none of whose calls could be sealed, and of one some of whose were not."""
    if record.sealing is None:
        return []
    total = record.sealing.sealed + record.sealing.library
    return [
        Unsealed(
            record.variant,
            f"{'all' if left.calls == total else left.calls} of {formats.plural(total, 'call')}",
            left.reason,
            left.first,
        )
        for left in record.sealing.left
    ]


def _passed_without(found: Iterable[TestRecord]) -> tuple[PassedWithout, ...]:
    """By rung; what the sanitizer's tools left out stands with them."""
    variants: dict[tuple[str, str], list[str]] = defaultdict(list)
    for record in found:
        for rung in record.rungs:
            if rung.status == "passed" and rung.message and rung.name != "sanitizer":
                variants[rung.name, rung.message].append(record.variant)
    return tuple(PassedWithout(rung, what, tuple(names)) for (rung, what), names in variants.items())


def _declared(ran: Iterable[TestRecord]) -> tuple[Declared, ...]:
    """By precision; a record from before it was stated says nothing."""
    variants: dict[str, list[str]] = defaultdict(list)
    for record in ran:
        if record.precision:
            stated = [(words, record.precision[name]) for name, words in PRECISION.items() if name in record.precision]
            words = ", ".join(f"{what} {DECLARED.get(kind, kind)}" for what, kind in stated)
            variants[words].append(record.variant)
    return tuple(Declared(words, tuple(names)) for words, names in variants.items())


def _confinements(found: Sequence[TestRecord]) -> tuple[Confinement, ...]:
    """By what the records state; a record from before they stated it, or of a variant that never ran, says nothing."""
    variants: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for record in found:
        if record.isolation:
            variants[record.isolation, tuple(record.refused)].append(record.variant)
    return tuple(
        Confinement("a process of its own" if level == "process" else level, refused, tuple(names))
        for (level, refused), names in variants.items()
    )


def _sanitizer(found: Sequence[TestRecord], limits: Limits) -> SanitizerView | None:
    """None where no record of the operator has it: on a CPU, at the quick level, and in older records."""
    with_runs = [(r.variant, r.sanitizer) for r in found if r.sanitizer is not None]
    if not with_runs:
        return None
    rows, listed = [], []
    reasons: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)  # whose, in order
    for variant, sanitizer in with_runs:
        runs = {run.tool: run for run in sanitizer.runs}
        cells = tuple(_sanitizer_cell(runs.get(tool)) for tool in SANITIZER_TOOLS)
        calls = max((run.calls for run in sanitizer.runs), default=0)
        rows.append(
            SanitizerRow(
                variant, cells, len(sanitizer.cases), calls, max((r.duration_s for r in runs.values()), default=0)
            )
        )
        for run in sanitizer.runs:
            listed += [_found(variant, run, finding) for finding in run.findings]
            if run.reason:
                tools = [other.tool for other in sanitizer.runs if other.reason == run.reason]
                every = len(tools) == len(sanitizer.runs)
                reasons[run.reason, run.remedy or ""][f"{variant}" if every else f"{variant} ({', '.join(tools)})"] = (
                    None
                )
    listed.sort(key=lambda each: each.kind != "bad")
    return SanitizerView(
        tuple(dict.fromkeys(s.version for _, s in with_runs if s.version)),
        tuple(rows),
        tuple(listed[: limits.failing_cases]),
        max(0, len(listed) - limits.failing_cases),
        tuple(
            (", ".join(whose), f"{why}{f'; {remedy}' if remedy else ''}") for (why, remedy), whose in reasons.items()
        ),
    )


def _sanitizer_cell(run: SanitizerRun | None) -> Cell:
    if run is None:
        return Cell("none", "", "", "not asked for")
    noted = sum(finding.count for finding in run.findings)
    if run.failures:
        return Cell("bad", "✗", str(len(run.failures)), "; ".join(failure.message for failure in run.failures))
    if run.status == "skipped":
        said = f"undecided, {len(run.findings)} noted" if noted else "not run"
        return Cell("muted", formats.ABSENT, said, run.reason or "")
    if noted:
        return Cell("good", "✓", f"{len(run.findings)} noted", "found, but nothing that condemns")
    return Cell("good", "✓", "", f"nothing found in {formats.plural(run.calls, 'case')}")


def _found(variant: str, run: SanitizerRun, finding: SanitizerFinding) -> FoundView:
    if finding.own and finding.level == "error":
        return FoundView(variant, run.tool, "bad", "", finding)
    note = f"left out: a {finding.level}" if finding.own else "left out: not in a kernel of the variant's own"
    return FoundView(variant, run.tool, "muted", note, finding)


def _test(record: TestRecord, on: Axis, limits: Limits, refuted: str) -> TestView:
    status = Counter(case.status for case in record.cases)
    failing = [case for case in record.cases if case.status == FAILED]
    message = (record.told and record.told.message) or record.reason or ""
    return TestView(
        record,
        badge(record.verdict),
        {rung.name: rung for rung in record.rungs},
        status["passed"],
        status[FAILED],
        status["skipped"],
        _worst(c.max_bound_ratio for c in record.cases),
        _worst(c.rms_ratio for c in record.cases),
        _worst(c.bias_ratio for c in record.cases),
        charts.error_picture(record.error_histogram, on, HISTOGRAM_HEIGHT) if record.error_histogram else None,
        tuple(failing[: limits.failing_cases]),
        max(0, len(failing) - limits.failing_cases),
        formats.excerpt(message, min(limits.message_characters, 1200)),
        record.repeat,
        refuted,
    )


def _worst(values: Iterable[float | None]) -> float | None:
    return max((abs(v) for v in values if v is not None), default=None)


def _part(
    title: str,
    found: Sequence[TestRecord],
    key: Callable[[CaseResult], str],
    note: Callable[[CaseResult], str],
) -> MatrixPart:
    notes: dict[str, str] = {}
    cells: dict[tuple[str, int], list[CaseResult]] = defaultdict(list)
    for column, record in enumerate(found):
        for case in record.cases:
            notes.setdefault(key(case), note(case))
            cells[key(case), column].append(case)
    rows = [
        MatrixRow(name, text, tuple(_cell(cells.get((name, column), [])) for column in range(len(found))))
        for name, text in notes.items()
    ]
    return MatrixPart(title, tuple(rows))


def _property_part(found: Sequence[TestRecord]) -> MatrixPart:
    """What must hold between calls: a line for each property."""
    claims = {p.name: p.claim for record in found for p in record.properties}
    rows = []
    for name, claim in claims.items():
        mine = [[p for p in record.properties if p.name == name] for record in found]
        rows.append(MatrixRow(name, claim, tuple(map(_property_cell, mine))))
    return MatrixPart("By property", tuple(rows))


def _property_cell(results: Sequence[PropertyResult]) -> Cell:
    if not results:
        return Cell("none", "", "", "not tried")
    failed = [p for p in results if p.status == FAILED]
    if failed:
        return Cell("bad", "✗", f"{len(failed)} of {len(results)}", f"{failed[0].case}: {failed[0].message}")
    tried = [p for p in results if p.status != "skipped"]
    if not tried:
        return Cell("muted", formats.ABSENT, "skip", results[0].message or "refused")
    return Cell("good", "✓", "", formats.plural(len(tried), "case"))


def _cell(cases: Sequence[CaseResult]) -> Cell:
    ran = [c for c in cases if c.status != "skipped"]
    if not cases:
        return Cell("none", "", "", "no case")
    if not ran:
        return Cell("muted", formats.ABSENT, "skip", cases[0].reason or f"{formats.plural(len(cases), 'case')} skipped")
    failed = [c for c in ran if c.status == FAILED]
    worst = max(failed or ran, key=lambda c: math.inf if c.nonfinite else (c.max_bound_ratio or 0.0))
    figure = "NaN" if worst.nonfinite else formats.significant(worst.max_bound_ratio, 2)
    error = formats.significant(worst.max_abs_error, 2)
    title = f"{formats.plural(len(ran), 'case')}, {len(failed)} failed; worst {worst.id}: largest error {error}"
    if failed:
        criteria = sorted({f.criterion for c in failed for f in c.failures})
        title += f"; criteria not met: {', '.join(criteria)}" if criteria else ""
        return Cell("bad", "✗", figure, title)
    return Cell("good", "✓", figure, title)


def _dims_note(case: CaseResult) -> str:
    return dims_text(case.dims)


def _option_key(case: CaseResult) -> str:
    return " · ".join([*option_words(case.options), case.dtype])
