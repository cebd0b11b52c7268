"""What the samples of the kernels with a known time say of the design: numbers in, lines of the record out.

A *group* is as many fresh processes as one benchmark has; the statistics are the bench stage's own. Comparisons of one
group share their processes and, pair by pair, their kernels, so they are not independent: `pairs` that share no kernel
are counted beside.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelproof import statistics
from kernelproof.records import SelfcheckLine
from kernelproof.statistics import FASTER, SLOWER

ByBlock = dict[int, list[float]]  # block -> µs of each visit
ByProcess = dict[int, ByBlock]
Samples = Mapping[tuple[str, str], ByProcess]  # contender, case


@dataclass(frozen=True)
class Shape:
    """One case: its nominal time and the numbers that its kernels were given."""

    case: str
    nominal_us: float
    ns: int
    iterations: dict[str, int]  # by kind: base, plus_1, plus_2


@dataclass(frozen=True)
class Pair:
    """Two contenders that were compared, in one group."""

    group: int
    nominal_us: float
    kinds: tuple[str, str]
    names: tuple[str, str]
    ratio: float
    low: float
    high: float
    verdict: str
    truth: float | None

    @property
    def same(self) -> bool:
        """Whether both are the same kernel."""
        return self.kinds[0] == self.kinds[1]

    @property
    def covered(self) -> bool:
        """Whether the interval holds the known ratio."""
        return self.truth is not None and self.low <= self.truth <= self.high


@dataclass(frozen=True)
class Targets:
    """The lines to hold, for one device."""

    accuracy: float
    false_positives: float  # share of the comparisons
    repeatability: float
    repeatability_shortest: float
    twins_us: float
    gpu: bool


GPU_TARGETS = Targets(0.005, 0.0, 0.003, 0.01, 5.0, gpu=True)
CPU_TARGETS = Targets(0.005, 0.01, 0.01, 0.02, 100.0, gpu=False)
POWER = {"plus_2": 0.95, "plus_1": 0.80}
COVERAGE = (0.93, 0.97)
SECONDS = 0.5
MEASURING = 0.8


def samples_of(columns: Mapping[str, Sequence[Any]], method: str) -> Samples:
    """Samples of one method that have a time."""
    found: dict[tuple[str, str], ByProcess] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    names = ("contender", "case", "method", "process", "block", "time_us")
    for contender, case, by, process, block, time_us in zip(*(columns[name] for name in names), strict=True):
        if by == method and time_us > 0:
            found[contender, case][process][block].append(time_us)
    return found


def kind_of(name: str) -> str:
    """`plus_2` of `plus_2.b`."""
    return name.partition(".")[0]


# --- accuracy ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """time_us = intercept_us + slope · number, least squares over the shapes."""

    slope: float
    intercept_us: float
    residual_us: float  # the largest


def fitted(numbers: Sequence[float], times_us: Sequence[float]) -> Fit:
    """A straight line, each point weighted alike. Raises ValueError with fewer than two different numbers."""
    x, y = np.asarray(numbers, dtype=np.float64), np.asarray(times_us, dtype=np.float64)
    if len(set(x)) < 2:
        raise ValueError(f"a line needs two different numbers, not {sorted(set(numbers))}")
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    intercept = float(y.mean() - slope * x.mean())
    return Fit(slope, intercept, float(np.abs(y - intercept - slope * x).max()))


def median_us(by_process: ByProcess) -> float:
    """The median over processes of the median over blocks."""
    blocks = [[float(np.mean(times)) for times in by_block.values()] for by_block in by_process.values()]
    return float(np.median([np.median(found) for found in blocks]))


def accuracy(samples: Samples, shapes: Sequence[Shape], targets: Targets) -> tuple[SelfcheckLine, dict[str, Any]]:
    """Whether a kernel that waits longer by so much takes longer by so much."""
    timed = [(shape, median_us(samples["timer", shape.case])) for shape in shapes if ("timer", shape.case) in samples]
    fit = fitted([shape.ns / 1000 for shape, _ in timed], [time_us for _, time_us in timed])
    error = fit.slope - 1
    points = [
        {"waited_us": shape.ns / 1000, "measured_us": time_us, "over_us": time_us - shape.ns / 1000}
        for shape, time_us in timed
    ]
    intercept = f"intercept {fit.intercept_us:.3f} µs, farthest point {1000 * fit.residual_us:.0f} ns from the line"
    line = SelfcheckLine(
        "accuracy",
        f"slope error ≤ {targets.accuracy:.1%}",
        100 * error,
        "%",
        abs(error) <= targets.accuracy,
        f"kernels that wait {', '.join(f'{shape.ns / 1000:g}' for shape, _ in timed)} µs by a clock; {intercept}",
    )
    return line, {"points": points, "slope": fit.slope, "intercept_us": fit.intercept_us}


def chain_fit(samples: Samples, shapes: Sequence[Shape]) -> Fit:
    """Time against iterations of the plain chains: what makes a known ratio of two numbers of iterations known."""
    numbers, times = [], []
    for shape in shapes:
        for (name, case), by_process in samples.items():
            if case == shape.case and kind_of(name) == "base":
                numbers.append(float(shape.iterations["base"]))
                times.append(median_us(by_process))
    return fitted(numbers, times)


# --- comparisons ------------------------------------------------------------------------------------------------------


def pairs(
    samples: Samples, shapes: Sequence[Shape], group_size: int, band: float, settings: statistics.Settings
) -> list[Pair]:
    """Every two chains of one shape, compared in every group as the bench stage would: one family a group."""
    processes = sorted({process for by_process in samples.values() for process in by_process})
    groups = [processes[at : at + group_size] for at in range(0, len(processes) - group_size + 1, group_size)]
    fit = chain_fit(samples, shapes)
    found: list[Pair] = []
    for number, group in enumerate(groups):
        family = []
        for shape in shapes:
            names = sorted(name for name, case in samples if case == shape.case and kind_of(name) in shape.iterations)
            for one, other in itertools.combinations(names, 2):
                # The slower kind first, so that a true difference is always above 1.
                mine, theirs = sorted((one, other), key=lambda name: -shape.iterations[kind_of(name)])
                over, under = (within(samples[name, shape.case], group) for name in (mine, theirs))
                estimate = statistics.ratio_estimate(over, under, settings)
                if estimate is not None and estimate.replicates == len(group):
                    family.append((shape, mine, theirs, estimate))
        said = statistics.verdicts([estimate for *_, estimate in family], band, settings)
        for (shape, mine, theirs, estimate), verdict in zip(family, said, strict=True):
            kinds = (kind_of(mine), kind_of(theirs))
            truth = known_ratio(fit, shape, kinds)
            found.append(
                Pair(
                    number,
                    shape.nominal_us,
                    kinds,
                    (mine, theirs),
                    estimate.value,
                    estimate.low,
                    estimate.high,
                    verdict,
                    truth,
                )
            )
    return found


def known_ratio(fit: Fit, shape: Shape, kinds: tuple[str, str]) -> float:
    """(c + k·n) / (c + k·m); 1 for the same kernel, whatever the fit."""
    mine, theirs = (fit.intercept_us + fit.slope * shape.iterations[kind] for kind in kinds)
    return mine / theirs


def within(by_process: ByProcess, group: Sequence[int]) -> ByProcess:
    """The samples of a group's processes."""
    return {process: by_process[process] for process in group if process in by_process}


def false_positives(found: Sequence[Pair], targets: Targets) -> SelfcheckLine:
    """How often a kernel was declared faster or slower than itself."""
    same = [pair for pair in found if pair.same]
    wrong = [pair for pair in same if pair.verdict in (FASTER, SLOWER)]
    allowed = int(targets.false_positives * len(same))
    users: dict[tuple[int, float, str], set[str]] = defaultdict(set)
    for pair in same:
        users[pair.group, pair.nominal_us, pair.kinds[0]] |= set(pair.names)
    disjoint = sum(len(names) // 2 for names in users.values())
    detail = f"{len(wrong)} of {len(same)} comparisons of a kernel with itself, of which {disjoint} share no kernel"
    if len(same) < 300:
        return SelfcheckLine(
            "false_positives", f"{allowed} of ≥ 300", len(wrong), "", None, f"{detail}; fewer than 300 prove nothing"
        )
    return SelfcheckLine("false_positives", f"{allowed} of ≥ 300", len(wrong), "", len(wrong) <= allowed, detail)


def naive(samples: Samples, shapes: Sequence[Shape], most: int) -> dict[str, int]:
    """The plain design on the same kernels: one process each, one after the other, samples resampled unpaired.

    A difference is declared where the 95 % bootstrap interval of the ratio of means excludes 1.
    """
    random = np.random.default_rng(20_260_101)
    wrong = trials = 0
    for shape, (one, other) in (
        (shape, two)
        for shape in shapes
        for two in itertools.combinations(
            sorted(name for name, case in samples if case == shape.case and kind_of(name) == "base"), 2
        )
    ):
        processes = sorted(samples[one, shape.case])
        for first, second in itertools.islice(itertools.pairwise(processes), 0, None, 2):
            if trials >= most:
                return {"wrong": wrong, "trials": trials}
            mine, theirs = (
                np.asarray([time for times in samples[name, shape.case].get(process, {}).values() for time in times])
                for name, process in ((one, first), (other, second))
            )
            if not len(mine) or not len(theirs):
                continue
            means = [
                values[random.integers(0, len(values), (2000, len(values)))].mean(axis=1) for values in (mine, theirs)
            ]
            low, high = np.quantile(means[0] / means[1], [0.025, 0.975])
            trials += 1
            wrong += not low <= 1 <= high
    return {"wrong": wrong, "trials": trials}


def power(found: Sequence[Pair]) -> Iterator[SelfcheckLine]:
    """How often a true difference was found."""
    for kind, least in POWER.items():
        trials = [pair for pair in found if pair.kinds == (kind, "base")]
        seen = sum(pair.verdict == SLOWER for pair in trials)
        truth = trials[0].truth if trials else None
        share = seen / len(trials) if trials else None
        yield SelfcheckLine(
            f"power_{kind.removeprefix('plus_')}_percent",
            f"found ≥ {least:.0%}",
            None if share is None else 100 * share,
            "%",
            None if share is None else share >= least,
            f"{seen} of {len(trials)} at {trials[0].nominal_us:g} µs; true ratio {truth:.4f}" if trials else "no trial",
        )


def coverage(found: Sequence[Pair]) -> SelfcheckLine:
    """How often the 95 % interval held the known ratio, over all comparisons.

    The standard error is that of a mean over *cells*, all comparisons of a group at a length: those share kernels and
    processes, and err together. A share out of range by less than two of it decides nothing.
    """
    known = [pair for pair in found if pair.truth is not None]
    cells: dict[tuple[int, float], list[bool]] = defaultdict(list)
    for pair in known:
        cells[pair.group, pair.nominal_us].append(pair.covered)
    held = sum(pair.covered for pair in known)
    share = held / len(known) if known else math.nan
    error = float(np.std([np.mean(cell) for cell in cells.values()], ddof=1)) / math.sqrt(len(cells)) if known else 0.0
    low, high = COVERAGE
    detail = f"{held} of {len(known)} intervals" + "".join(
        f"; {sum(pair.covered for pair in part)} of {len(part)} {words}"
        for words, part in (
            ("of a kernel with itself", [pair for pair in known if pair.same]),
            ("of a known difference", [pair for pair in known if not pair.same]),
        )
        if part
    )
    detail += f"; standard error {100 * error:.2g} % over {len(cells)} groups and lengths" if known else ""
    is_held: bool | None = low <= share <= high
    if len(known) < 300:
        is_held = None
    elif not is_held and low - 2 * error < share < high + 2 * error:
        is_held, detail = None, f"{detail}: too few to tell"
    return SelfcheckLine(
        "coverage", f"{low:.0%} to {high:.0%} of ≥ 300", 100 * share if known else None, "%", is_held, detail
    )


def repeatability(
    samples: Samples, shapes: Sequence[Shape], targets: Targets
) -> Iterator[tuple[SelfcheckLine, dict[str, float]]]:
    """Standard deviation of a ratio from process to process, over all pairs of a shape."""
    spreads: dict[float, float] = {}
    for shape in shapes:
        names = sorted(name for name, case in samples if case == shape.case and kind_of(name) == "base")
        logs = {name: process_logs(samples[name, shape.case]) for name in names}
        variances = []
        for one, other in itertools.combinations(names, 2):
            common = sorted(set(logs[one]) & set(logs[other]))
            ratios = [
                np.median([logs[one][p][b] - logs[other][p][b] for b in logs[one][p] if b in logs[other][p]])
                for p in common
            ]
            if len(ratios) > 1:
                variances.append(float(np.var(ratios, ddof=1)))
        if variances:
            spreads[shape.nominal_us] = math.sqrt(float(np.mean(variances)))
    shortest = min(spreads, default=0.0)
    for name, limit, chosen in (
        ("repeatability", targets.repeatability, {us: sd for us, sd in spreads.items() if us >= targets.twins_us}),
        (
            "repeatability_shortest",
            targets.repeatability_shortest,
            {us: sd for us, sd in spreads.items() if us == shortest},
        ),
    ):
        worst = max(chosen.values(), default=math.nan)
        at = ", ".join(f"{100 * sd:.3f} % at {us:g} µs" for us, sd in chosen.items())
        yield (
            SelfcheckLine(
                name,
                f"SD ≤ {100 * limit:g} %",
                100 * worst if chosen else None,
                "%",
                worst <= limit if chosen else None,
                f"root mean square over all pairs of the same kernel: {at}",
            ),
            {f"{us:g}": sd for us, sd in chosen.items()},
        )


def process_logs(by_process: ByProcess) -> dict[int, dict[int, float]]:
    """Mean logarithm of each block's visits."""
    return {
        process: {block: float(np.mean(np.log(times))) for block, times in by_block.items()}
        for process, by_block in by_process.items()
    }


# --- cost -------------------------------------------------------------------------------------------------------------


@dataclass
class Cost:
    """Where the wall time of the measuring processes went, in seconds."""

    wall_s: float = 0.0
    requests_s: float = 0.0
    device_s: float = 0.0
    state_s: float = 0.0
    visits: int = 0  # contenders × cases × processes
    details: dict[str, float] = field(default_factory=dict)


def device_seconds(columns: Mapping[str, Sequence[Any]]) -> float:
    """What the timed batches themselves took: both graphs of a slope and the one before them, else the batch."""
    total_us = 0.0
    names = ("calls", "time_us", "short_us", "long_us")
    for calls, time_us, short_us, long_us in zip(*(columns[name] for name in names), strict=True):
        total_us += calls * time_us if long_us is None else 2 * short_us + long_us
    return total_us / 1e6


def cost_lines(cost: Cost) -> Iterator[SelfcheckLine]:
    """Seconds a kernel, shape and process; and the share of wall time in which was measured."""
    each = cost.requests_s / cost.visits if cost.visits else math.nan
    yield SelfcheckLine(
        "seconds", f"≤ {SECONDS:g} s", each, "s", each <= SECONDS, "a kernel, shape and process, all methods together"
    )
    share = cost.requests_s / cost.wall_s if cost.wall_s else math.nan
    yield SelfcheckLine(
        "overhead",
        f"measuring ≥ {MEASURING:.0%} of wall time",
        100 * share,
        "%",
        share >= MEASURING,
        f"{cost.requests_s:.1f} of {cost.wall_s:.1f} s in requests to measure, captures and checks among them; "
        f"{cost.device_s:.1f} s in timed batches; {cost.state_s:.2f} s to look at the machine's state",
    )


def width_within(samples: Samples, shape: Shape, kinds: tuple[str, str], confidence: float) -> tuple[float, float]:
    """Half-width of a log-ratio's interval from one process's blocks, and visits it took; medians over processes."""
    names = [
        next(name for name, case in sorted(samples) if case == shape.case and kind_of(name) == kind) for kind in kinds
    ]
    logs = [process_logs(samples[name, shape.case]) for name in names]
    widths, counts = [], []
    for process in sorted(set(logs[0]) & set(logs[1])):
        mine, theirs = (each[process] for each in logs)
        found = [mine[block] - theirs[block] for block in mine if block in theirs]
        if len(found) > 2:
            t = statistics.student_t_quantile((1 + confidence) / 2, len(found) - 1)
            widths.append(t * float(np.std(found, ddof=1)) / math.sqrt(len(found)))
            counts.append(len(found))
    return float(np.median(widths)), float(np.median(counts))


def peer_lines(found: Mapping[str, Any], width: float, seconds: float) -> Iterator[SelfcheckLine]:
    """Wall time of other timers for an interval as narrow as one process's, over what that process spent."""
    least = {"nvbench": 10.0, "nvbench_batch": 10.0}
    for name, entry in found.items():
        target = f"≥ {least.get(name, 5.0):g} times our wall time at equal width"
        if "reason" in entry:
            yield SelfcheckLine(f"speed_{name}", target, None, "×", None, entry["reason"])
            continue
        logs = np.log(np.asarray(entry["times_us"], dtype=np.float64))
        ratios = logs[:, 1] - logs[:, 0]
        spread = float(ratios.std(ddof=1))
        repeats = max(1, math.ceil((1.96 * spread / width) ** 2))
        factor = repeats * entry["seconds"] / seconds
        yield SelfcheckLine(
            f"speed_{name}",
            target,
            factor,
            "×",
            factor >= least.get(name, 5.0),
            f"version {entry['version']}: SD of its ratio {100 * spread:.3f} % a repeat of {entry['seconds']:.3f} s, "
            f"so {repeats} repeats for ± {100 * width:.3f} %, which took {seconds:.3f} s here; its ratio "
            f"{math.exp(float(ratios.mean())):.4f}, its time {math.exp(float(logs[:, 0].mean())):.2f} µs",
        )
