"""From samples to statements: ratios, their intervals, and verdicts.

The replicate is the *process*: two processes that run the same kernel differ by more than two blocks of one process
(memory layout, clocks, code placement), so blocks only sharpen a process's own figure and never count as evidence on
their own. Everything works on logarithms of times, where a ratio is a difference and drift is additive.

Distributions, the bootstrap and the false discovery rate are scipy's; `scipy.stats` takes a second to import and is
imported where it is called, so that a stage that computes nothing pays nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

AT_ONCE = 160  # replicates that are resampled together: the resamples of more no longer fit a processor's cache

FASTER, SAME, SLOWER, UNDECIDED = "faster", "same", "slower", "undecided"

Floats = NDArray[np.float64]
Blocks = Mapping[int, Mapping[int, Sequence[float]]]  # process -> block -> times of its visits, in microseconds


@dataclass(frozen=True)
class Estimate:
    """A positive quantity (a time in µs, a ratio) with its interval, from so many replicates (processes).

    error: the standard error of its logarithm, which has `degrees` degrees of freedom; None from one replicate.
    """

    value: float
    low: float
    high: float
    replicates: int
    error: float | None
    degrees: float


@dataclass(frozen=True)
class Settings:
    """confidence of the interval, resamples of the bootstrap, the seed that makes both repeatable, and the power.

    power: with what probability a difference has to be found that the run is said to be able to see.
    """

    confidence: float = 0.95
    resamples: int = 10_000
    seed: int = 20_260_101
    power: float = 0.8


def time_estimate(blocks: Blocks, settings: Settings) -> Estimate | None:
    """The median time of one call, with its interval over processes; None without a sample.

    A process's figure is the median over its blocks; a block's is the geometric mean of its visits. With one process
    only, its blocks stand in as replicates: the interval then says nothing of how processes differ.
    """
    return time_estimates([blocks], settings)[0]


def time_estimates(timed: Sequence[Blocks], settings: Settings) -> list[Estimate | None]:
    """`time_estimate` of each, in less than half of the time."""
    logs = [[list(by_block.values()) for by_block in _by_process(blocks).values()] for blocks in timed]
    return _estimates(logs, settings, centre=np.median)


def ratio_estimate(ours: Blocks, theirs: Blocks, settings: Settings) -> Estimate | None:
    """Ours / theirs, paired: only blocks in which both were timed count; None when there is none.

    A block visits all contenders forwards and then backwards (A B B A), so drift that is linear over a block cancels in
    the difference of the two means (Cox, *Planning of Experiments*, 1958, ch. 3: systematic designs).
    """
    return ratio_estimates([(ours, theirs)], settings)[0]


def ratio_estimates(pairs: Sequence[tuple[Blocks, Blocks]], settings: Settings) -> list[Estimate | None]:
    """`ratio_estimate` of each (ours, theirs), in less than half of the time: who is in many of them is read once."""
    named = {id(blocks): blocks for pair in pairs for blocks in pair}
    logs = {name: _by_process(blocks) for name, blocks in named.items()}
    differences = []
    for pair in pairs:
        mine, other = (logs[id(blocks)] for blocks in pair)
        common = {process: sorted(set(mine[process]) & set(other[process])) for process in sorted(mine.keys() & other)}
        differences.append([[mine[p][block] - other[p][block] for block in blocks] for p, blocks in common.items()])
    return _estimates(differences, settings, centre=np.mean)


def _by_process(blocks: Blocks) -> dict[int, dict[int, float]]:
    """The mean logarithm of each block's times, by process."""
    return {process: _block_logs(by_block) for process, by_block in blocks.items()}


def _block_logs(by_block: Mapping[int, Sequence[float]]) -> dict[int, float]:
    return {block: float(np.mean(np.log(times))) for block, times in by_block.items() if len(times)}


def _estimates(found: Sequence[Sequence[Sequence[float]]], settings: Settings, centre: object) -> list[Estimate | None]:
    """Of each, logarithms by process and block, an estimate; None where there are none."""
    by_process = [[values for values in processes if len(values)] for processes in found]
    # The median over blocks: one visit hit by another program's burst of work must not decide a process's figure.
    logs = [
        np.asarray([np.median(values) for values in processes] if len(processes) > 1 else processes[0], np.float64)
        for processes in by_process
        if processes
    ]
    intervals = iter(zip(logs, bootstrap_intervals(logs, settings), strict=True))
    estimates: list[Estimate | None] = []
    for processes in by_process:
        if not processes:
            estimates.append(None)
            continue
        values, (low, high) = next(intervals)
        middle = float(np.median(values)) if centre is np.median else float(np.mean(values))
        # The interval is of the mean; keep a median that lies outside of it (skew) inside what is stated.
        low, high = min(low, middle), max(high, middle)
        error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(processes) > 1 else None
        estimates.append(Estimate(math.exp(middle), _exp(low), _exp(high), len(processes), error, len(values) - 1))
    return estimates


def bootstrap_intervals(sets: Sequence[Floats], settings: Settings) -> list[tuple[float, float]]:
    """Intervals for the means of a few independent replicates: percentile bootstraps, stretched for small numbers.

    On neither side is it narrower than Student's t. Efron & Tibshirani, *An Introduction to the Bootstrap* (1993),
    ch. 13, with the stretch sqrt(n/(n-1))·t/z of Hesterberg, "What Teachers Should Know About the Bootstrap" (The
    American Statistician 69, 2015), sec. 4.1.2, applied to the deviations and not to the percentile levels (5
    replicates have only 126 resamples to take them from).

    Why not plainer. Coverage of a nominal 95 % interval in simulation, 5 processes of 12 blocks, when the variance is
    mostly between processes / half / mostly within; 6000 trials each, and 800 of the second and the last:

    | interval | between | half | within |
    | --- | --- | --- | --- |
    | percentile over processes | 84.3 % | 82.4 % | 83.5 % |
    | hierarchical (processes, then blocks) | 84 % | 94 % | 99 % |
    | percentile, stretched | 94.7 % | 94.4 % | 94.3 % |
    | Student's t | 95.1 % | 94.8 % | 94.8 % |
    | the wider of the two on each side, 1.03 times as wide as t: this one | 95.3 % | 95.1 % | 95.1 % |
    | bootstrap-t, 1.6 times as wide | 95 % | 93 % | 95 % |

    Normal replicates, that is; of skewed ones (exponential) t holds 89 % and this one 90 %.

    The hierarchical bootstrap counts the variance within a process twice (a process's figure already carries it), and
    misses what five replicates do not show; it is wrong in both directions, by an unknown amount.
    """
    intervals = {at: (float(values[0]), float(values[0])) for at, values in enumerate(sets) if len(values) < 2}
    of_count = defaultdict(list)
    for at, values in enumerate(sets):
        if len(values) > 1:
            of_count[len(values)].append(at)
    for count, places in of_count.items():
        step = max(1, AT_ONCE // count)
        for some in (places[at : at + step] for at in range(0, len(places), step)):
            intervals.update(zip(some, _stretched(np.stack([sets[at] for at in some]), settings), strict=True))
    return [intervals[at] for at in range(len(sets))]


def _stretched(sets: Floats, settings: Settings) -> Iterator[tuple[float, float]]:
    """`bootstrap_intervals` of sets [sets, values]: the seed makes the same resamples for one or for many."""
    from scipy import stats

    count = sets.shape[1]
    plain = stats.bootstrap(
        (sets,),
        np.mean,
        axis=-1,
        n_resamples=settings.resamples,
        confidence_level=settings.confidence,
        method="percentile",
        rng=np.random.default_rng(settings.seed),
    ).confidence_interval
    inside = (1 + settings.confidence) / 2
    quantile = student_t_quantile(inside, count - 1)
    stretch = math.sqrt(count / (count - 1)) * quantile / float(stats.norm.ppf(inside))
    for values, *ends in zip(sets, plain.low, plain.high, strict=True):
        middle, reach = float(values.mean()), quantile * float(values.std(ddof=1)) / math.sqrt(count)
        low, high = ((float(end) - middle) * stretch for end in ends)
        yield middle + min(low, -reach), middle + max(high, reach)


@cache
def student_t_quantile(probability: float, degrees: float) -> float:
    """The t below which Student's distribution has `probability`; from scipy.special, which loads in half the time."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def verdict(low: float, high: float, band: float) -> str:
    """What an interval of ours/theirs says: wholly outside 1 ± band, wholly inside, or undecided."""
    if high < 1 - band:
        return FASTER
    if low > 1 + band:
        return SLOWER
    if low >= 1 - band and high <= 1 + band:
        return SAME
    return UNDECIDED


def verdicts(estimates: Sequence[Estimate], band: float, settings: Settings) -> list[str]:
    """A verdict for each ratio of one benchmark, with the false discovery rate over all of them held at 1 - confidence.

    `faster` and `slower` need the interval and, over the whole family, Benjamini-Hochberg. One process decides nothing.
    """
    adjusted = benjamini_hochberg([p_value_outside_band(estimate, band) for estimate in estimates])
    found = []
    for estimate, q_value in zip(estimates, adjusted, strict=True):
        said = verdict(estimate.low, estimate.high, band)
        discovery = said in (FASTER, SLOWER)
        doubtful = estimate.replicates < 2 or (discovery and q_value > 1 - settings.confidence)
        found.append(UNDECIDED if doubtful else said)
    return found


def p_value_outside_band(estimate: Estimate, band: float) -> float:
    """Two-sided p-value against 'the ratio is within 1 ± band': Student's t over processes from the nearest edge.

    A composite hypothesis is tested at its edge, where it is hardest to reject (Lehmann & Romano, *Testing Statistical
    Hypotheses*, 2005, ch. 3). One replicate, or a mean inside the band, gives 1.
    """
    if estimate.error is None:
        return 1.0
    middle = math.log(estimate.value)
    distance = middle - math.log1p(band) if middle > 0 else math.log1p(-band) - middle
    if distance <= 0:
        return 1.0
    if estimate.error == 0:
        return 0.0
    from scipy import stats

    return 2 * float(stats.t.sf(distance / estimate.error, estimate.degrees))


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: those at most q form a set with an expected share of false ones of at most q.

    Benjamini & Hochberg, "Controlling the False Discovery Rate", J. R. Stat. Soc. B 57 (1995).
    """
    if not p_values:
        return []
    from scipy import stats

    return [float(value) for value in stats.false_discovery_control(p_values, method="bh")]


def minimal_detectable_difference(estimate: Estimate, band: float, settings: Settings) -> float | None:
    """The smallest true difference that a run of this spread calls faster or slower with probability `settings.power`.

    As a share: 0.018 is 1.8 %. None from one process, which decides nothing.

    exp(log(1 + band) + (t(confidence) + t(power)) · error) - 1: the interval has to leave the band, and the estimate to
    lie on the right side of that. NIST/SEMATECH, *e-Handbook of Statistical Methods*, 7.2.2.2, solved for the
    difference, with the spread that this run showed. With many comparisons at once Benjamini-Hochberg asks for more.
    """
    if estimate.error is None:
        return None
    inside = (1 + settings.confidence) / 2
    reach = student_t_quantile(inside, estimate.degrees) + student_t_quantile(settings.power, estimate.degrees)
    return _exp(math.log1p(band) + reach * estimate.error) - 1


# --- between two runs -------------------------------------------------------------------------------------------------

# A kernel that did not change takes another time in the next run. What that adds to a log ratio between runs, as a
# standard deviation beyond the spread of processes, by device, and how many observations the figure weighs.
# `benchmarks/between_runs.py` measures it; docs/explanation/measurement.md has the figures that these are from.
BETWEEN_RUNS = {"cuda": 0.01, "cpu": 0.1}
BETWEEN_RUNS_WEIGHT = 10
MOST_LOG = 700.0  # of a ratio that is told


def process_figures(ours: Blocks, others: Sequence[Blocks] = ()) -> list[float]:
    """One figure a process: the median over its blocks of the log time, less the mean log time of `others`.

    With `others`, only blocks in which all were timed count, and processes that have such a block.
    """
    logs = _by_process(ours)
    against = [_by_process(other) for other in others]
    figures = []
    for process, mine in logs.items():
        theirs = [other.get(process, {}) for other in against]
        common = set(mine).intersection(*theirs)
        if common:
            levels = [mine[block] - sum(other[block] for other in theirs) / max(1, len(theirs)) for block in common]
            figures.append(float(np.median(levels)))
    return figures


def between_runs_spread(unchanged: Sequence[Estimate], contenders: int, device: str) -> float:
    """The standard deviation of what a run adds to a log ratio between runs, beyond the spread of its processes.

    unchanged: the changes of contenders that are known to be the same code; contenders: how many these are (the cases
    of one are not independent). Their own figure (`heterogeneity`) is averaged with BETWEEN_RUNS of the device, as
    variances weighted by degrees of freedom (Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004): a few contenders alone
    would often say zero.
    """
    own = heterogeneity([(math.log(found.value), found.error) for found in unchanged if found.error is not None])
    weight = BETWEEN_RUNS_WEIGHT + contenders
    return math.sqrt((BETWEEN_RUNS_WEIGHT * BETWEEN_RUNS[device] ** 2 + contenders * own**2) / weight)


def heterogeneity(changes: Sequence[tuple[float, float]]) -> float:
    """The standard deviation s for which changes (value, standard error) that should be 0 are as large as they are.

    sum(value² / (error² + s²)) = their number: Paule & Mandel, "Consensus Values and Weighting Factors" (J. Res. Natl.
    Bur. Stand. 87, 1982), with a known mean. 0 where the errors alone account for them.
    """

    def too_large(variance: float) -> float:
        return sum(value**2 / (error**2 + variance) for value, error in changes if value) - len(changes)

    most = sum(value**2 for value, _ in changes)  # with this the sum is at most 1
    if not changes or most == 0 or (all(error for _, error in changes) and too_large(0.0) <= 0):
        return 0.0
    from scipy import optimize

    return math.sqrt(float(optimize.brentq(too_large, most * 1e-12, most)))


def change_estimate(
    before: Sequence[float], after: Sequence[float], settings: Settings, spread: float = 0.0, spread_degrees: float = 1
) -> Estimate | None:
    """after / before from the log figures of unpaired processes; None where one run has none.

    The variances of two runs differ, so degrees of freedom are Welch's (Biometrika 34, 1947) and, with the variance
    `spread`² between runs as a third component, Satterthwaite's (Biometrics Bulletin 2, 1946). From one process in
    either run the interval is the value alone, and decides nothing.
    """
    if not before or not after:
        return None
    middle = float(np.mean(after) - np.mean(before))
    replicates = min(len(before), len(after))
    if replicates < 2:
        return Estimate(math.exp(middle), math.exp(middle), math.exp(middle), replicates, None, 0)
    parts = [(float(np.var(logs, ddof=1)) / len(logs), len(logs) - 1.0) for logs in (before, after)]
    parts.append((spread**2, spread_degrees))
    variance = sum(part for part, _ in parts)
    least = min(degrees for _, degrees in parts[:2])
    degrees = variance**2 / sum(part**2 / degrees for part, degrees in parts) if variance > 0 else least
    error = math.sqrt(variance)
    reach = student_t_quantile((1 + settings.confidence) / 2, degrees) * error
    return Estimate(math.exp(middle), _exp(middle - reach), _exp(middle + reach), replicates, error, degrees)


def _exp(value: float) -> float:
    """exp, with a figure for what no float holds: from two processes that disagree an interval is that wide."""
    return math.exp(max(-MOST_LOG, min(MOST_LOG, value)))
