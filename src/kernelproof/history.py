"""`kernelproof history B1 B2 …`: each variant over several runs, ordered by when these were made.

For each variant one case stands, of the sizes that it had last: the profiled one where it was measured, else the one
that most runs share. A point's interval is of its own run and says nothing of how runs differ; what may be said of
that, between each run and the one before it, comes from `differences`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kernelproof import charts, differences, formats, rendering, runs, samples
from kernelproof.differences import TimeChange, TimeChanges
from kernelproof.errors import ExitCode, RecordError
from kernelproof.records import BenchCase, BenchRecord
from kernelproof.runs import BAD, CORRECT, Run, Side

SCHEMA = "kernelproof.history/1"


@dataclass(frozen=True)
class Point:
    """A variant in one run; without a time where it was not measured.

    ratio: to the fastest correct baseline of the same run. change: to the run before, or `why_not`.
    """

    run: int  # 1 is the oldest
    verdict: str
    time_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    best_baseline: str | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    change: TimeChange | None = None
    why_not: str = ""


@dataclass(frozen=True)
class Line:
    """One variant over all runs, in one case and mode."""

    operator: str
    variant: str
    device: str
    case: str
    mode: str
    points: list[Point]

    @property
    def key(self) -> str:
        """`operator/variant`."""
        return f"{self.operator}/{self.variant}"

    @property
    def unit(self) -> formats.TimeUnit:
        """The unit of all its times."""
        return formats.time_unit(point.time_us for point in self.points)


@dataclass
class History:
    """All runs, the oldest first, and each variant over them."""

    runs: list[Side]
    lines: list[Line] = field(default_factory=list)
    without_times: list[Line] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    @property
    def broke(self) -> list[Line]:
        """Variants that are not correct in the last run and were in the last one before that tested them."""
        return [line for line in self._correct_before if line.points[-1].verdict in BAD]

    @property
    def lost(self) -> list[Line]:
        """Variants that were correct in the last run that tested them, which is not the last one."""
        return [line for line in self._correct_before if line.points[-1].verdict not in (*BAD, CORRECT)]

    @property
    def still_wrong(self) -> list[Line]:
        """Variants that are not correct in the last run and were not before."""
        every = (*self.lines, *self.without_times)
        return [line for line in every if line.points[-1].verdict in BAD and _last_tested(line.points[:-1]) != CORRECT]

    @property
    def _correct_before(self) -> list[Line]:
        return [line for line in (*self.lines, *self.without_times) if _last_tested(line.points[:-1]) == CORRECT]

    @property
    def exit_code(self) -> ExitCode:
        """0: no variant broke in the last run. 1: one did. 2: none did, as far as could be seen: one that was correct
        is not tested, or a record cannot be read.
        """
        if self.broke:
            return ExitCode.BAD_VERDICT
        return ExitCode.COULD_NOT_RUN if self.lost or self.unread else ExitCode.WELL

    @property
    def mark(self) -> str:
        """For the head of a page."""
        well = "⚠️" if self.still_wrong else "✅"
        return {ExitCode.BAD_VERDICT: "❌", ExitCode.COULD_NOT_RUN: "⚠️"}.get(self.exit_code, well)

    @property
    def summary(self) -> str:
        """The whole in one sentence."""
        span = f"{formats.plural(len(self.runs), 'run')} from {self.runs[0].utc[:10]} to {self.runs[-1].utc[:10]}"
        parts = [f"{span}, {formats.plural(len(self.lines), 'variant')} with times"]
        for words, lines in (
            ("no longer correct in the last", self.broke),
            ("correct before and not tested in the last", self.lost),
            ("not correct in the last, nor before", self.still_wrong),
        ):
            if lines:
                parts.append(f"{words}: {formats.first_of(line.key for line in lines)}")
        if self.unread:
            parts.append(f"{formats.plural(len(self.unread), 'record')} not read")
        return f"{'; '.join(parts)}."

    def as_json(self) -> dict[str, Any]:
        """Everything, for a program."""
        return {"schema": SCHEMA, "summary": self.summary, "exit_code": int(self.exit_code), **asdict(self)}

    def markdown(self) -> str:
        """For a pull request."""
        return rendering.render("history.md.j2", h=self, bad=BAD)

    def html(self) -> str:
        """One page that asks nothing of any server."""
        return rendering.render("history.html.j2", h=self, bad=BAD, pictures=self._pictures())

    def svg(self) -> str:
        """The pictures alone, one below the other."""
        return rendering.render("history.svg.j2", h=self, pictures=self._pictures())

    def _pictures(self) -> list[tuple[Line, charts.Series]]:
        found = [(line, charts.series(self._readings(line), line.unit.scale)) for line in self.lines]
        return [(line, picture) for line, picture in found if picture is not None]

    def _readings(self, line: Line) -> list[charts.Reading | None]:
        return [self._reading(point) for point in line.points]

    def _reading(self, point: Point) -> charts.Reading | None:
        side = self.runs[point.run - 1]
        if point.time_us is None or point.low_us is None or point.high_us is None:
            title = f"run {point.run}, {formats.listed(side.commits)}: {point.verdict}, and not timed"
            return charts.Reading(None, 0.0, 0.0, side.machine, "bad", title) if point.verdict in BAD else None
        interval = f"{formats.time_us(point.low_us)} to {formats.time_us(point.high_us)}"
        title = f"run {point.run}, {formats.listed(side.commits)}: {formats.time_us(point.time_us)}, {interval}"
        kind = "good" if point.verdict == CORRECT else "bad"
        return charts.Reading(point.time_us, point.low_us, point.high_us, side.machine, kind, title)


def _last_tested(points: Sequence[Point]) -> str | None:
    return next((point.verdict for point in reversed(points) if point.verdict in (*BAD, CORRECT)), None)


def run(paths: Sequence[Path]) -> History:
    """The history of two or more runs.

    Raises BundleError for one that was tampered with, RecordError for fewer than two, or nothing in common.
    """
    if len(paths) < 2:
        raise RecordError("one run has no history; give two or more", hint="kernelproof history RUN RUN …")
    return history([runs.load(path) for path in paths])


def history(found: Sequence[Run]) -> History:
    """The history of runs that were read, in any order."""
    ordered = sorted(found, key=lambda one: one.utc)
    keys = [key for key in runs.keys(*ordered) if any(one.role(key) == "variant" for one in ordered if one.knows(key))]
    if not any(sum(one.knows(key) for one in ordered) > 1 for key in keys):
        raise RecordError(
            "no two of them have a variant in common",
            subject=", ".join(one.name for one in ordered),
            hint="give runs of the same project",
        )
    changes = [
        differences.time_changes(before, after, *differences.settings_of(before, after))
        for before, after in itertools.pairwise(ordered)
    ]
    made = History([one.side for one in ordered])
    made.unread = [f"{entry.path} of {one.name}: {entry.reason}" for one in ordered for entry in one.unread]
    for key in keys:
        line = _line(key, ordered, changes)
        (made.lines if any(point.time_us is not None for point in line.points) else made.without_times).append(line)
    return made


def _line(key: str, ordered: Sequence[Run], changes: Sequence[TimeChanges]) -> Line:
    operator, _, variant = key.partition("/")
    device = next(one.device(key) for one in reversed(ordered) if one.knows(key))
    benches = [one.benches.get(f"{operator}-{device}") for one in ordered]
    case, mode = _stands_for(operator, variant, benches, ordered[-1])
    sizes = next((found for bench in reversed(benches) if (found := _sizes(bench, case))), {})
    points = []
    for index, (one, bench) in enumerate(zip(ordered, benches, strict=True)):
        before = changes[index - 1] if index else None
        if (other := _sizes(bench, case)) and other != sizes:
            names = [name for name in {**other, **sizes} if other.get(name) != sizes.get(name)]
            had = ", ".join(f"{name}={other[name]}" if name in other else f"no {name}" for name in names)
            points.append(Point(index + 1, one.verdict(key), why_not=f"its case had other sizes: {had}"))
            continue
        points.append(_point(index + 1, one, bench, key, case, mode, before, f"{operator}-{device}"))
    return Line(operator, variant, device, case, mode, points)


def _stands_for(operator: str, variant: str, benches: Sequence[BenchRecord | None], newest: Run) -> tuple[str, str]:
    """The case and mode that stand for a variant: the profiled shape and options, as many runs as possible, hot."""
    settings = newest.config.get("operators", {}).get(operator, {}).get("profile", {})
    places: Counter[tuple[str, str]] = Counter()
    cases: dict[str, BenchCase] = {}
    for bench in benches:
        cases |= {case.id: case for case in bench.cases} if bench else {}
        places.update(dict.fromkeys(_places(bench, variant), 1) if bench else {})

    def rank(place: tuple[str, str]) -> tuple[bool, int, int, bool]:
        case = cases.get(place[0])
        options = case.options if case else {}
        wanted = settings.get("options", {})
        different = sum(options.get(name) != value for name, value in wanted.items())
        further = sum(value is True for name, value in options.items() if name not in wanted)
        elsewhere = case is None or case.shape != settings.get("shape")
        return elsewhere, 10 * different + further, -places[place], place[1] != "hot"

    return min(places, key=rank, default=("", ""))


def _sizes(bench: BenchRecord | None, case: str) -> dict[str, int]:
    return next((one.dims for one in bench.cases if one.id == case), {}) if bench else {}


def _places(bench: BenchRecord, variant: str) -> Iterator[tuple[str, str]]:
    method = samples.PRIMARY[bench.device]
    return ((row.case, row.mode) for row in bench.times if (row.contender, row.method) == (variant, method))


def _point(
    number: int,
    one: Run,
    bench: BenchRecord | None,
    key: str,
    case: str,
    mode: str,
    before: TimeChanges | None,
    name: str,
) -> Point:
    operator, _, variant = key.partition("/")
    verdict = one.verdict(key)
    if bench is None:
        return Point(number, verdict, why_not="no benchmark")
    method = samples.PRIMARY[bench.device]
    place = (variant, case, mode)
    time = next(
        (row for row in bench.times if (row.contender, row.case, row.mode) == place and row.method == method), None
    )
    oracle = next((row for row in bench.oracle if (row.variant, row.case, row.mode) == place), None)
    change, why_not = None, ""
    if before is not None:
        change = next((r for r in before.rows if (r.operator, r.contender, r.case, r.mode) == (operator, *place)), None)
        what = (name, f"{key}, {case}, {mode}")
        why_not = "" if change else next((entry.reason for entry in before.not_compared if entry.what in what), "")
    return Point(
        number,
        verdict,
        time.median_us if time else None,
        time.low_us if time else None,
        time.high_us if time else None,
        oracle.best_baseline if oracle else None,
        oracle.ratio if oracle else None,
        oracle.low if oracle else None,
        oracle.high if oracle else None,
        change,
        why_not,
    )
