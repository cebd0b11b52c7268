"""Benchmarks: a picture a case, methods side by side, the oracle, the roofline."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelproof import charts, formats, traces
from kernelproof.charts import Axis
from kernelproof.methods import COLD_SHARE
from kernelproof.records import (
    OK,
    BenchCase,
    BenchRecord,
    CeilingsRecord,
    EnergyRow,
    OracleRow,
    ProfileRecord,
    TimeRow,
    UntimedRow,
)
from kernelproof.samples import PRIMARY
from kernelproof.views.common import (
    Badge,
    Fact,
    Limits,
    Records,
    Settings,
    arithmetic_ceiling,
    badge,
    case_label,
    case_rank,
    dims_text,
    doubt,
    flatten,
    shown,
    words,
)

METHODS = {
    "graph_slope": "graph slope",
    "cpu_clock": "clock",
    "wall_slope": "wall slope",
    "event_pair": "event pair",
    "cupti": "CUPTI",
    "device_trace": "profiler",
    "ncu": "Nsight Compute",
    "eager": "eager",
    "floor": "floor",
    "floor_event_pair": "floor, event pair",
    "floor_ncu": "floor, Nsight Compute",
}


ROOFLINE_CASES = 6
LEAST_AT_WORK = 0.6  # of the time that energy was taken over; a capped board's calls take longer than their slope
FLOOR_IN_SIGHT = 20.0  # a floor this many times below everything else is given in figures and not drawn


@dataclass(frozen=True)
class BenchRow:
    """One contender in one case."""

    name: str
    ours: bool
    badge: Badge | None
    best: bool
    whiskers: tuple[charts.Whisker, ...]
    floors: tuple[float, ...]
    hot: TimeRow | None
    cold: TimeRow | None
    untimed: Mapping[str, UntimedRow]  # by mode
    floor_us: float | None
    ratio: str
    ratio_interval: str
    could_see: str  # how small a difference this run could have shown, or why it did not show this one
    speed: Badge | None
    flags: tuple[str, ...]


@dataclass(frozen=True)
class MethodRow:
    """One contender's time by every method, in one mode."""

    name: str
    mode: str
    cells: tuple[TimeRow | None, ...]
    flags: tuple[str, ...]
    reasons: tuple[str, ...]
    energy: str
    from_memory: str


@dataclass(frozen=True)
class CaseView:
    """All contenders of one case."""

    case: BenchCase
    label: str
    dims: str
    cost: str
    unit: formats.TimeUnit
    axis: Axis
    rows: tuple[BenchRow, ...]
    best_at: float | None
    methods: tuple[str, ...]
    method_rows: tuple[MethodRow, ...]
    counted: bool  # whether any call's bytes were
    no_energy: tuple[str, ...]
    untimed: tuple[UntimedRow, ...]
    precision: str  # what this run could see here, and why its blocks ended


@dataclass(frozen=True)
class RoofView:
    """A roofline, how its ceilings came about, and the case whose points are named."""

    picture: charts.Roofline
    note: str
    labelled: str
    measured: tuple[Fact, ...]


@dataclass(frozen=True)
class OracleLine:
    """One case and mode, with a cell for each variant, and a word for those that have no time."""

    case: str
    mode: str
    baseline: str
    cells: tuple[tuple[OracleRow | None, str], ...]


@dataclass(frozen=True)
class OracleView:
    """The oracle's rows as a table, and why variants did not pass."""

    variants: tuple[str, ...]
    lines: tuple[OracleLine, ...]
    reasons: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class BenchView:
    """One operator on one device."""

    record: BenchRecord
    first: CaseView | None
    others: tuple[CaseView, ...]
    left_out: int
    cold: str  # whether it is proved that cold times are
    oracle: OracleView
    absent: tuple[tuple[str, Badge, str], ...]
    states: tuple[Fact, ...]
    kernels: tuple[tuple[str, str], ...]
    discarded: tuple[str, ...]
    roof: RoofView | None


def benches(records: Records, settings: Settings, limits: Limits) -> list[BenchView]:
    """Benchmarks in the order of the records."""
    profiled = {(p.operator, p.variant): p for p in records.profiles if p.status == OK}
    return [
        _bench(record, profiled, records.ceilings.get(record.device), settings, limits) for record in records.benches
    ]


def primary(times: Iterable[TimeRow]) -> list[TimeRow]:
    """The rows by the method that decides: graph slope on a GPU, the clock on a CPU."""
    rows = list(times)
    for method in PRIMARY.values():
        if found := [row for row in rows if row.method == method]:
            return found
    return [row for row in rows if row.method not in ("floor", "eager")]


def _bench(
    record: BenchRecord,
    profiled: Mapping[tuple[str, str], ProfileRecord],
    measured: CeilingsRecord | None,
    settings: Settings,
    limits: Limits,
) -> BenchView:
    ordered = sorted(record.cases, key=lambda c: case_rank(record, c, "hot", settings))
    timed = {row.case for row in record.times}
    ordered = [case for case in ordered if case.id in timed]
    views = [_case(record, case, settings) for case in ordered[: limits.bench_cases]]
    labels = {case.id: case_label(case) for case in record.cases}
    absent = [
        (c.name, badge(c.verdict), c.outcome)
        for c in record.contenders
        if not any(t.contender == c.name for t in record.times)
    ]
    return BenchView(
        record,
        views[0] if views else None,
        tuple(views[1:]),
        max(0, len(ordered) - limits.bench_cases),
        _cold(record),
        _oracle(record, labels),
        tuple(absent),
        tuple(_states(record.states)),
        tuple((name, _launches(found)) for name, found in record.kernels_in_interval.items()),
        tuple(
            ", ".join(f"{words(k)} {shown(v)}" for k, v in entry.items())
            for entry in record.discarded[: limits.failing_cases]
        ),
        _roof(record, profiled, measured, ordered),
    )


def _cold(record: BenchRecord) -> str:
    """Whether its cold times were cold, by what Nsight Compute counted."""
    times = [row for row in primary(record.times) if row.mode == "cold"]
    if not times or record.device != "cuda":
        return ""
    said = record.states.get("counters", {"reason": "it is of an earlier kernelproof"})
    if said.get("status") != OK:
        return f"That cold times are cold is not proved: {said.get('reason')}."
    counted = {(row.contender, row.case) for row in record.times if row.mode == "cold" and row.dram_bytes is not None}
    decided = [row for row in times if (row.contender, row.case) in counted]
    proved = sum("not_cold" not in row.flags for row in decided)
    left = f"; {len(times) - len(decided)} were not counted" if len(times) > len(decided) else ""
    share = formats.percent(COLD_SHARE, 0)
    return (
        f"Cold is proved for {proved} of {len(decided)} times: at least {share} of their input came from memory{left}."
    )


def _oracle(record: BenchRecord, labels: Mapping[str, str]) -> OracleView:
    variants = tuple(dict.fromkeys(row.variant for row in record.oracle))
    cells = {(row.case, row.mode, row.variant): row for row in record.oracle}
    untimed = {(row.case, row.mode, row.contender): row.outcome for row in record.untimed}
    lines = []
    for case, mode in dict.fromkeys((row.case, row.mode) for row in record.oracle):
        places = [(case, mode, name) for name in variants]
        found = tuple((cells.get(place), untimed.get(place, "")) for place in places)
        baseline = next((row.best_baseline for row, _ in found if row and row.best_baseline), "")
        lines.append(OracleLine(labels.get(case, case), mode, baseline, found))
    reasons = [
        (name, tuple(dict.fromkeys(r.reason for r in record.oracle if r.variant == name and r.reason and not r.passed)))
        for name in variants
    ]
    return OracleView(variants, tuple(lines), tuple((name, why) for name, why in reasons if why))


def _launches(found: Iterable[Mapping[str, Any]]) -> str:
    """Kernels by their short names, each with how often a call runs it and in how many cases; the record has it all."""
    cases = Counter((shown(k.get("count", 1)), traces.short(k.get("name", ""))) for k in found)
    return ", ".join(f"{count} × {name} ({formats.plural(n, 'case')})" for (count, name), n in cases.items())


def _states(states: Mapping[str, Any]) -> Iterable[Fact]:
    """A line a fact; of rotations a line a case, and notes of one kind on one contender together."""
    rest = {name: value for name, value in states.items() if name not in ("rotation", "notes")}
    yield from flatten(rest)
    for case, modes in states.get("rotation", {}).items():
        for mode, found in modes.items():
            if mode != "hot":
                sets = f"{formats.plural(found['sets'], 'set')} of {formats.size(found['set_bytes'])}"
                yield Fact(
                    f"rotation · {case}, {mode}", f"{sets}; the cache holds {formats.size(found['cache_bytes'])}"
                )
    noted: dict[tuple[str, str], list[str]] = defaultdict(list)
    for note in states.get("notes", []):
        noted[words(str(note.get("outcome"))), str(note.get("contender"))].append(str(note.get("message")))
    for (outcome, name), messages in noted.items():
        often = f" (and {len(messages) - 1} more such)" if len(messages) > 1 else ""
        yield Fact(f"{outcome} · {name}", f"{formats.one_line(messages[0])}{often}")


def _case(record: BenchRecord, case: BenchCase, settings: Settings) -> CaseView:
    times = [row for row in record.times if row.case == case.id]
    deciding = primary(times)
    floors = [row for row in times if row.method == "floor"]
    unit = formats.time_unit(row.median_us for row in deciding)
    figures = [x for row in deciding for x in (row.median_us, row.low_us, row.high_us) if x > 0]
    floors = [row for row in floors if row.median_us * FLOOR_IN_SIGHT >= min(figures, default=0.0)]
    on = charts.axis([*figures, *(row.median_us for row in floors)], scale=unit.scale)
    best = _best_baseline(record, case.id, deciding)
    best_row = next((r for r in deciding if r.contender == best and r.mode == _first_mode(record)), None)
    contenders = [c for c in record.contenders if any(t.contender == c.name for t in deciding)]
    rows = [_bench_row(record, case, c.name, deciding, floors, on, best, settings) for c in contenders]
    rows.sort(key=lambda r: (r.hot or r.cold).median_us if (r.hot or r.cold) else math.inf)  # type: ignore[union-attr]
    methods = [m for m in METHODS if any(t.method == m for t in times)]
    methods += sorted({t.method for t in times} - set(methods))
    method_rows = _method_rows(record, case, times, methods)
    return CaseView(
        case,
        case_label(case),
        dims_text(case.dims),
        _cost(case),
        unit,
        on,
        tuple(rows),
        on.at(best_row.median_us) if best_row else None,
        tuple(methods),
        tuple(method_rows),
        any(row.from_memory for row in method_rows),
        tuple(
            dict.fromkeys(why for row in record.energy if row.case == case.id and (why := _why_no_energy(record, row)))
        ),
        tuple(row for row in record.untimed if row.case == case.id),
        _precision(record, case, deciding),
    )


def _precision(record: BenchRecord, case: BenchCase, deciding: Sequence[TimeRow]) -> str:
    """How small a difference half of a case's comparisons could have shown, and how often blocks were enough."""
    said = []
    if seen := [r.detectable for r in record.ratios if r.case == case.id and r.detectable is not None]:
        said.append(formats.could_see(statistics.median(seen), "half of the comparisons here"))
    asked = [row for row in deciding if row.precise is not None]
    if total := sum(row.processes for row in asked):
        enough = sum(row.precise or 0 for row in asked)
        said.append(
            f"blocks were as precise as asked in {formats.count(enough)} of {formats.count(total)} measurements "
            "(of a contender in one mode by one process)"
        )
    return "; ".join(said).capitalize()


def _cost(case: BenchCase) -> str:
    read, written = formats.size(case.bytes_read), formats.size(case.bytes_written)
    return f"{formats.rate(case.flops, 'FLOP')}, {read} read, {written} written"


def _first_mode(record: BenchRecord) -> str:
    return "hot" if "hot" in record.modes or not record.modes else record.modes[0]


def _best_baseline(record: BenchRecord, case: str, deciding: Sequence[TimeRow]) -> str | None:
    """The oracle's choice, or the fastest correct baseline where no variant was judged."""
    mode = _first_mode(record)
    for row in record.oracle:
        if row.case == case and row.mode == mode and row.best_baseline:
            return row.best_baseline
    correct = {c.name for c in record.contenders if c.role != "variant" and c.correct}
    found = [row for row in deciding if row.contender in correct and row.mode == mode]
    return min(found, key=lambda r: r.median_us).contender if found else None


def _bench_row(
    record: BenchRecord,
    case: BenchCase,
    name: str,
    deciding: Sequence[TimeRow],
    floors: Sequence[TimeRow],
    on: Axis,
    best: str | None,
    settings: Settings,
) -> BenchRow:
    contender = next(c for c in record.contenders if c.name == name)
    mine = {row.mode: row for row in deciding if row.contender == name}
    my_floors = [row for row in floors if row.contender == name]
    hot, cold = mine.get("hot"), mine.get("cold")
    first = mine.get(_first_mode(record))
    ratio, interval, could_see, speed = "", "", "", None
    for row in record.ratios:
        if (row.variant, row.baseline, row.case, row.mode) == (name, best, case.id, _first_mode(record)):
            ratio, interval, speed = formats.ratio(row.ratio), formats.interval(row.low, row.high), badge(row.verdict)
            could_see = doubt(record, row, settings)
            if not could_see and row.detectable is not None:
                could_see = formats.could_see(row.detectable, "this run")
    best_row = next((r for r in deciding if r.contender == best and r.mode == _first_mode(record)), None)
    if not ratio and first and best_row and best_row.median_us > 0:
        ratio = "1×" if name == best else f"≈{formats.THIN}{formats.ratio(first.median_us / best_row.median_us)}"
    flags = [flag for row in record.times if row.contender == name and row.case == case.id for flag in row.flags]
    return BenchRow(
        name,
        contender.role == "variant",
        None if contender.correct else badge(contender.verdict),
        name == best,
        tuple(_time_whisker(on, row) for row in mine.values()),
        tuple(sorted({on.at(row.median_us) for row in my_floors})),
        hot,
        cold,
        {row.mode: row for row in record.untimed if (row.contender, row.case) == (name, case.id)},
        min((row.median_us for row in my_floors), default=None),
        ratio,
        interval,
        could_see,
        speed if contender.correct else None,
        tuple(dict.fromkeys(flags)),
    )


def _time_whisker(on: Axis, row: TimeRow) -> charts.Whisker:
    span = f"{formats.time_us(row.low_us)} to {formats.time_us(row.high_us)}"
    basis = f"{formats.plural(row.samples, 'sample')} in {formats.plural(row.processes, 'process', 'processes')}"
    title = f"{row.contender}, {row.mode}: {formats.time_us(row.median_us)}, interval {span}, {basis}"
    return charts.whisker(on, row.median_us, row.low_us, row.high_us, row.mode, title)


def _method_rows(
    record: BenchRecord,
    case: BenchCase,
    times: Sequence[TimeRow],
    methods: Sequence[str],
) -> list[MethodRow]:
    rows: list[MethodRow] = []
    for contender in record.contenders:
        for mode in dict.fromkeys(t.mode for t in times if t.contender == contender.name):
            mine = {t.method: t for t in times if t.contender == contender.name and t.mode == mode}
            cells = [mine.get(method) for method in methods]
            read = mine["ncu"].dram_bytes if "ncu" in mine else None
            from_memory = "" if read is None or not case.bytes_read else formats.percent(read / case.bytes_read, 1)
            flags = dict.fromkeys(flag for t in mine.values() for flag in t.flags)
            reasons = dict.fromkeys(reason for t in mine.values() for reason in t.reasons)
            used = _energy(record, contender.name, case.id, mode)
            rows.append(MethodRow(contender.name, mode, tuple(cells), tuple(flags), tuple(reasons), used, from_memory))
    return rows


def _energy(record: BenchRecord, name: str, case: str, mode: str) -> str:
    """Joules of a call, or nothing; why there is none stands once below the table."""
    for row in record.energy:
        if (row.contender, row.case, row.mode) != (name, case, mode) or row.joules_per_call is None:
            continue
        if not _why_no_energy(record, row):
            return f"{formats.significant(1e3 * row.joules_per_call)}{formats.THIN}mJ"
    return ""


def _why_no_energy(record: BenchRecord, row: EnergyRow) -> str:
    """Why the record's figure is none: it says so, or the board was idle for much of what is divided by the calls."""
    if row.joules_per_call is None or not row.calls or not row.seconds:
        return row.reason or ""
    place = (row.contender, row.case, row.mode, PRIMARY[record.device])
    slope_us = next((t.median_us for t in record.times if (t.contender, t.case, t.mode, t.method) == place), None)
    at_work = 1.0 if slope_us is None else row.calls * slope_us / 1e6 / row.seconds
    return (
        "" if at_work >= LEAST_AT_WORK else "the board was idle for too much of the time that its counter was read over"
    )


def _roof(
    record: BenchRecord,
    profiled: Mapping[tuple[str, str], ProfileRecord],
    measured: CeilingsRecord | None,
    cases: Sequence[BenchCase],
) -> RoofView | None:
    """The cost model's intensity against the rate achieved hot: variants, and each case's best baseline."""
    points: list[charts.RoofPoint] = []
    mode = _first_mode(record)
    for number, case in enumerate(cases[:ROOFLINE_CASES]):
        deciding = [r for r in primary(t for t in record.times if t.case == case.id) if r.mode == mode]
        points += _roof_points(record, case, deciding, everybody=number == 0)
    ceilings = _ceilings(record, profiled, measured)
    picture = charts.roofline(points, ceilings)
    if picture is None:
        return None
    labelled = case_label(cases[0]) if len(cases) > 1 else ""
    return RoofView(picture, _roof_note(ceilings), labelled, tuple(_ceiling_facts(measured)))


def _roof_points(
    record: BenchRecord, case: BenchCase, deciding: Sequence[TimeRow], *, everybody: bool
) -> list[charts.RoofPoint]:
    """The fastest correct variant and the best baseline of a case; with `everybody`, all variants, and with names."""
    contenders = {c.name: c for c in record.contenders}
    moved = case.bytes_read + case.bytes_written
    ours = [r for r in deciding if contenders[r.contender].role == "variant" and r.median_us > 0]
    correct = [r for r in ours if contenders[r.contender].correct]
    chosen = ours if everybody else sorted(correct, key=lambda r: r.median_us)[:1]
    best = _best_baseline(record, case.id, deciding)
    points = []
    for row in [*chosen, *(r for r in deciding if r.contender == best and r.median_us > 0)]:
        contender = contenders[row.contender]
        kind = "baseline" if contender.role != "variant" else "variant" if contender.correct else "wrong"
        if moved > 0:
            rate = case.flops / (row.median_us * 1e-6)
            points.append(charts.RoofPoint(row.contender, case.flops / moved, rate, kind, case_label(case), everybody))
    return points


def _ceilings(
    record: BenchRecord, profiled: Mapping[tuple[str, str], ProfileRecord], measured: CeilingsRecord | None
) -> list[charts.Ceiling]:
    """What was measured on this machine for the record's data types; where nothing was, the peaks of the counters."""
    wanted = {arithmetic_ceiling(case.dtype, record.device) for case in record.cases} | {"copy"}
    found = [
        charts.Ceiling(f"{words(c.name)}, {formats.rate(c.median, c.unit)}", c.median, c.unit == "B/s")
        for c in (measured.ceilings if measured else [])
        if c.name in wanted and c.median > 0
    ]
    counters: dict[str, float] = {}
    for (operator, _), profile in profiled.items():
        for kernel in profile.kernels if (operator, record.device) == (record.operator, "cuda") else ():
            for name, value in kernel.roofline.items():
                counters[name] = max(value, counters.get(name, 0.0))
    for name, unit in (("peak_dram_bytes_per_s", "B/s"), ("peak_fp32_flops_per_s", "FLOP/s")):
        peak, bandwidth = counters.get(name, 0.0), unit == "B/s"
        if peak > 0 and not any(c.is_bandwidth == bandwidth for c in found):
            label = words(name).partition("bytes" if bandwidth else "flops")[0]
            found.append(charts.Ceiling(f"{label}by the counters, {formats.rate(peak, unit)}", peak, bandwidth, False))
    return found


def _ceiling_facts(measured: CeilingsRecord | None) -> Iterable[Fact]:
    """Each measured ceiling with its spread, how it came about, and the clock while it did."""
    for ceiling in measured.ceilings if measured else []:
        low, median, high = (formats.rate(v, ceiling.unit, 4) for v in (ceiling.low, ceiling.median, ceiling.high))
        clock = f"; SM clock {ceiling.sm_clock_mhz}{formats.THIN}MHz" if ceiling.sm_clock_mhz else ""
        held = f", held down by {formats.listed(words(why) for why in ceiling.throttle)}" if ceiling.throttle else ""
        samples = formats.plural(ceiling.samples, "sample")
        yield Fact(words(ceiling.name), f"{median} ({low} to {high}, {samples}): {ceiling.how}{clock}{held}")
    for name, why in measured.left_out.items() if measured else ():
        yield Fact(words(name), f"not measured: {why}")


def _roof_note(ceilings: Sequence[charts.Ceiling]) -> str:
    if not ceilings:
        return "No ceiling was measured on this machine, so none is drawn; datasheet figures are not used."
    if all(c.measured for c in ceilings):
        return "The ceilings were measured on this machine: a copy far larger than its caches, a large matrix product."
    return (
        "Ceilings ‘by the counters’ are this GPU’s peak as its counters tell it, at the clocks of the profiled launch."
    )
