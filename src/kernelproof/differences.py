"""How the times of two runs differ, contender by contender and case by case.

Nothing is paired between two runs: other processes, another hour, often another board. A kernel that did not change at
all comes out some percent off, which the processes of either run cannot show. Two things are done about it:

- A time is taken relative to the contenders that are known to be the same code in both runs (`runs.same_code`), block
  by block, so that what moved them all cancels: a difference in differences. Where nothing is known to be the same, the
  times are compared as they are, and the row says so.
- What the contenders that did not change moved by all the same, against one another, widens every interval
  (`statistics.between_runs_spread`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kernelproof import formats, runs, samples, statistics
from kernelproof.errors import RecordError
from kernelproof.records import DECIDES_NOTHING, OptionValue
from kernelproof.runs import Run
from kernelproof.statistics import Estimate, Settings

SAME_SAMPLES = "the same samples"  # one measurement, in both runs: what it would say of itself is nothing
UNCHANGED = "unchanged code"  # its time moved; the same code cannot have become faster or slower
MOVED = 1.25  # unchanged code whose time alone moved by more says that the machine differs
RELATIVE, ALONE = "relative to what did not change", "times alone"


@dataclass(frozen=True)
class TimeChange:
    """One contender's time after / before in one case and mode: below 1 it became faster.

    basis: whether `ratio` is relative to the contenders in `against`, or of the times alone, which `plain` always is
    ([ratio, low, high]). detectable: the smallest true difference, as a share, that these two runs could have shown.
    """

    operator: str
    contender: str
    role: str
    device: str
    case: str
    mode: str
    before_us: float
    after_us: float
    ratio: float
    low: float
    high: float
    verdict: str  # faster, same, slower, undecided, that the code is unchanged, or that these are the same samples
    detectable: float | None
    basis: str
    against: list[str]
    plain: list[float]
    processes: list[int]  # before, after
    same_code: bool
    flags_before: list[str] = field(default_factory=list)  # of the primary method's times
    flags_after: list[str] = field(default_factory=list)

    @property
    def flags(self) -> str:
        """What is doubtful of either time, in words; empty where nothing is."""
        sides = (("A", self.flags_before), ("B", self.flags_after))
        return "; ".join(f"{side}: {', '.join(flags)}" for side, flags in sides if flags).replace("_", " ")

    @property
    def key(self) -> str:
        """`operator/contender`."""
        return f"{self.operator}/{self.contender}"


@dataclass(frozen=True)
class NotCompared:
    """A benchmark, contender or case whose times were not compared, and why."""

    what: str
    reason: str


@dataclass
class TimeChanges:
    """All that could be said of the times of two runs, what could not, and what to bear in mind."""

    rows: list[TimeChange] = field(default_factory=list)
    not_compared: list[NotCompared] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)

    def refuse(self, what: str, reason: str) -> None:
        """List something as not compared."""
        self.not_compared.append(NotCompared(what, reason))


SAME_BAND, CONFIDENCE = 0.005, 0.95  # where a run has no configuration


def settings_of(*compared: Run) -> tuple[float, Settings]:
    """The band within which times are the same, and the statistics' settings: of what runs were configured with, the
    stricter, for none of them chooses how it is compared.
    """
    band = min(float(run.setting("gate", "same_band", SAME_BAND)) for run in compared)
    return band, Settings(confidence=max(float(run.setting("bench", "confidence", CONFIDENCE)) for run in compared))


def time_changes(before: Run, after: Run, band: float, settings: Settings) -> TimeChanges:
    """Every contender of every benchmark that both runs have; band: as `gate.same_band`.

    Verdicts hold the false discovery rate over each benchmark, as those within one run do.
    """
    found = TimeChanges()
    cautions: dict[str, list[str]] = {}
    for name in sorted(set(before.benches) | set(after.benches)):
        missing = next((run for run in (before, after) if name not in run.benches), None)
        if missing is not None:
            unread = next((u.reason for u in missing.unread if u.path == f"bench/{name}.json"), "there is none")
            found.refuse(name, f"no benchmark in {missing.name}: {unread}")
            continue
        may = runs.comparability(before, after, name)
        if reason := _not_measured(before, after, name) or may.refusal:
            found.refuse(name, reason)
            continue
        try:
            times = before.times(name), after.times(name)
        except RecordError as error:
            found.refuse(name, f"{error.subject}: {error.message}")
            continue
        cautions.update({text: [*cautions.get(text, []), name] for text in may.cautions})
        _Bench(before, after, name, *times, found).compare(band, settings)
    found.cautions += [f"{formats.listed(names)}: {text}" for text, names in cautions.items()]
    return found


def _not_measured(before: Run, after: Run, name: str) -> str | None:
    for run in (before, after):
        bench = run.benches[name]
        if bench.status != "ok":
            return f"{bench.status.replace('_', ' ')} in {run.name}: {bench.reason or 'no reason given'}"
    return None


_ITSELF = Estimate(1.0, 1.0, 1.0, 0, None, 0)  # a measurement against itself


class _Bench:
    """One benchmark in two runs."""

    def __init__(
        self,
        before: Run,
        after: Run,
        name: str,
        old: Mapping[samples.Place, samples.Blocks],
        new: Mapping[samples.Place, samples.Blocks],
        found: TimeChanges,
    ) -> None:
        self.before, self.after, self.name, self.old, self.new, self.found = before, after, name, old, new, found
        self.records = before.benches[name], after.benches[name]
        self.flags = [
            {(r.contender, r.case, r.mode): r.flags for r in record.times if r.method == samples.PRIMARY[record.device]}
            for record in self.records
        ]
        self.operator = self.records[1].operator
        self.places = [place for place in self._in_order() if self._admitted(place)]
        self.unchanged = {
            contender
            for contender, _, _ in self.places
            if runs.same_code(before, after, f"{self.operator}/{contender}")
        }

    def _in_order(self) -> Iterable[samples.Place]:
        """Every place that either run may have timed: as recorded after, then what is only in the older."""
        return dict.fromkeys(
            (row.contender, row.case, row.mode)
            for record in reversed(self.records)
            for row in record.times
            if row.method == samples.PRIMARY[record.device]
        )

    def _admitted(self, place: samples.Place) -> bool:
        """Timed in both runs, correct in both, on the same case; else it is listed with the reason."""
        contender, case, mode = place
        what = f"{self.operator}/{contender}, {case}, {mode}"
        for run, record, times in zip((self.before, self.after), self.records, (self.old, self.new), strict=True):
            entry = next((entry for entry in record.contenders if entry.name == contender), None)
            if entry is None:
                self.found.refuse(what, f"not among the contenders of the benchmark in {run.name}")
                return False
            if not entry.correct:
                self.found.refuse(what, f"{entry.verdict.replace('_', ' ')} in {run.name}: its time says nothing")
                return False
            if place not in times:
                known = any(listed.id == case for listed in record.cases)
                why = f": {entry.outcome}" if entry.outcome != "timed" else ""
                self.found.refuse(what, f"{'not timed' if known else 'no such case measured'} in {run.name}{why}")
                return False
        kinds = [
            next(((c.dims, c.options, c.dtype) for c in record.cases if c.id == case), None) for record in self.records
        ]
        if kinds[0] != kinds[1]:
            self.found.refuse(what, f"another case by the same name: {_of_kind(kinds[0])} and {_of_kind(kinds[1])}")
            return False
        return True

    def compare(self, band: float, settings: Settings) -> None:
        """Estimate every place, with what the unchanged ones moved by, and judge them as one family.

        A measurement that both runs hold, kept from the one to the other, is not estimated.
        """
        if self.old == self.new:
            self.found.rows += [
                self._row(place, _ITSELF, _ITSELF, SAME_SAMPLES, None, settings) for place in self.places
            ]
            return
        alone = {place: self._change(place, [], settings) for place in self.places}
        relative = {place: self._change(place, self._against(place), settings) for place in self.places}
        controls = [place for place in self.places if place[0] in self.unchanged]
        # What did not change, against all else that did not: with only one such contender, its times alone.
        known = [(relative if self._against(place) else alone)[place] for place in controls]
        own = [estimate for estimate in known if estimate is not None]
        spread = statistics.between_runs_spread(own, len(self.unchanged), self.records[1].device)
        degrees = statistics.BETWEEN_RUNS_WEIGHT + len(self.unchanged)
        moves = {place: found.value for place in controls if (found := alone[place]) is not None}
        self._caution(list(moves.values()))
        rows: list[tuple[samples.Place, Estimate, Estimate]] = []
        for place in self.places:
            against = self._against(place)
            # A single control's own move cannot be told from the machine's.
            lone = math.log(moves.get(against[0], 1.0)) if len(against) == 1 else 0.0
            wide = self._change(place, against, settings, math.hypot(spread, lone), degrees)
            plain = self._change(place, [], settings, spread, degrees)
            if wide is None or plain is None:
                self.found.refuse(f"{self.operator}/{place[0]}, {place[1]}, {place[2]}", "no block with all of them")
            else:
                rows.append((place, wide, plain))
        said = statistics.verdicts([wide for _, wide, _ in rows], band, settings)
        for (place, wide, plain), verdict in zip(rows, said, strict=True):
            seen = statistics.minimal_detectable_difference(wide, band, settings)
            decided = verdict in (statistics.FASTER, statistics.SLOWER)
            said_of = UNCHANGED if decided and place[0] in self.unchanged else verdict
            if decided and any(map(self._decides_nothing, [place, *self._against(place)])):
                said_of = statistics.UNDECIDED
            self.found.rows.append(self._row(place, wide, plain, said_of, seen, settings))

    def _decides_nothing(self, place: samples.Place) -> bool:
        """Whether either run says of this time that it is too doubtful to decide anything."""
        return any(not DECIDES_NOTHING.keys().isdisjoint(flags.get(place, ())) for flags in self.flags)

    def _caution(self, moves: Sequence[float]) -> None:
        """Unchanged code that moved far says that the machine differs."""
        if any(not 1 / MOVED <= move <= MOVED for move in moves):
            span = f"{formats.ratio(min(moves))} to {formats.ratio(max(moves))}"
            self.found.cautions.append(f"{self.name}: unchanged code moved by {span}: the machine or its load differs")

    def _against(self, place: samples.Place) -> list[samples.Place]:
        """What did not change and was timed beside it, but for itself."""
        contender, case, mode = place
        beside = [other for other in self.places if other[1:] == (case, mode) and other[0] != contender]
        return [other for other in beside if other[0] in self.unchanged]

    def _change(
        self,
        place: samples.Place,
        against: Sequence[samples.Place],
        settings: Settings,
        spread: float = 0.0,
        degrees: float = 1.0,
    ) -> Estimate | None:
        old, new = (
            statistics.process_figures(times[place], [times[other] for other in against])
            for times in (self.old, self.new)
        )
        return statistics.change_estimate(old, new, settings, spread, degrees)

    def _row(
        self,
        place: samples.Place,
        wide: Estimate,
        plain: Estimate,
        verdict: str,
        detectable: float | None,
        settings: Settings,
    ) -> TimeChange:
        contender, case, mode = place
        against = sorted(other[0] for other in self._against(place))
        medians = [statistics.time_estimate(times[place], settings) for times in (self.old, self.new)]
        entry = next(entry for entry in self.records[1].contenders if entry.name == contender)
        return TimeChange(
            operator=self.operator,
            contender=contender,
            role=entry.role,
            device=self.records[1].device,
            case=case,
            mode=mode,
            before_us=medians[0].value if medians[0] else 0.0,
            after_us=medians[1].value if medians[1] else 0.0,
            ratio=wide.value,
            low=wide.low,
            high=wide.high,
            verdict=verdict,
            detectable=detectable,
            basis=RELATIVE if against else ALONE,
            against=against,
            plain=[plain.value, plain.low, plain.high],
            processes=[len(times[place]) for times in (self.old, self.new)],
            same_code=contender in self.unchanged,
            flags_before=self.flags[0].get(place, []),
            flags_after=self.flags[1].get(place, []),
        )


def _of_kind(kind: tuple[dict[str, int], dict[str, OptionValue], str] | None) -> str:
    """A case's sizes, options and data type in words: `rows=256, cols=512, float32`."""
    if kind is None:
        return "none"
    dims, options, dtype = kind
    return ", ".join([*(f"{name}={size}" for name, size in {**dims, **options}.items()), dtype])
