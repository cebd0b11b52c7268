"""Profiles: shares of the peak, stalls, advice, the hottest lines, and a baseline beside the variant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernelproof import formats
from kernelproof.records import CeilingsRecord, HotLine, ProfiledKernel, ProfileRecord, RuleAdvice, Stall
from kernelproof.views.common import Badge, Limits, Records, arithmetic_ceiling, badge, words


@dataclass(frozen=True)
class MetricBar:
    """A metric in percent of its peak, drawn as a bar."""

    name: str
    metric: str
    percent: float


@dataclass(frozen=True)
class MetricRow:
    """Any other metric."""

    name: str
    metric: str
    value: str


@dataclass(frozen=True)
class StallBar:
    """What warps did, in the tools' word and in a reader's, and the share of their time in percent."""

    name: str
    meaning: str
    percent: float
    stalled: bool


@dataclass(frozen=True)
class HotLineView:
    """A hot line, and what its warps mostly waited for, in words."""

    line: HotLine
    stall: str
    meaning: str


@dataclass(frozen=True)
class ComparisonRow:
    """One figure of the variant beside the baseline's; `ratio` is ours / theirs, empty where that says nothing."""

    name: str
    ours: str
    theirs: str
    ratio: str


@dataclass(frozen=True)
class Comparison:
    """A variant beside the fastest profiled baseline of the same case."""

    baseline: str
    rows: tuple[ComparisonRow, ...]


@dataclass(frozen=True)
class ProfiledKernelView:
    """One profiled launch."""

    kernel: ProfiledKernel
    launch: str
    bars: tuple[MetricBar, ...]
    metrics: tuple[MetricRow, ...]
    stalls: tuple[StallBar, ...]
    rules: tuple[RuleAdvice, ...]
    hot_lines: tuple[HotLineView, ...]


@dataclass(frozen=True)
class ProfileView:
    """One variant's profile."""

    record: ProfileRecord
    badge: Badge
    statements: tuple[str, ...]
    comparison: Comparison | None
    kernels: tuple[ProfiledKernelView, ...]


METRIC_NAMES = {
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "Compute (SM) throughput",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "Memory throughput",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM throughput",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "L2 throughput",
    "lts__t_sectors.avg.pct_of_peak_sustained_elapsed": "L2 sectors",
    "l1tex__throughput.avg.pct_of_peak_sustained_active": "L1 throughput",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": "Tensor cores",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": "Tensor cores (active)",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "Achieved occupancy",
    "dram__sectors_read.sum": "DRAM sectors read",
    "dram__sectors_write.sum": "DRAM sectors written",
    "dram__bytes_read.sum": "DRAM bytes read",
    "dram__bytes_write.sum": "DRAM bytes written",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": "Shared-memory load bank conflicts",
    "smsp__inst_executed.sum": "Instructions",
    "smsp__inst_executed_pipe_tensor.sum": "Tensor instructions",
    "smsp__inst_executed_pipe_fma.sum": "FMA instructions",
    "smsp__thread_inst_executed_per_inst_executed.ratio": "Threads per instruction",
    "launch__occupancy_limit_registers": "Blocks allowed by registers",
    "launch__occupancy_limit_shared_mem": "Blocks allowed by shared memory",
    "launch__registers_per_thread": "Registers a thread",
    "sm__maximum_warps_per_active_cycle_pct": "Theoretical occupancy",
}


# What a warp does in each of the states that NVIDIA's tools name.
STALLS = {
    "selected": "issues an instruction",
    "not_selected": "is ready, and another warp’s turn it is",
    "long_scoreboard": "waits for global, local or texture memory",
    "short_scoreboard": "waits for shared memory or a special function",
    "wait": "waits out the fixed latency of an earlier instruction",
    "barrier": "waits for the other warps of its block",
    "warpgroup_arrive": "waits for wgmma",
    "membar": "waits for a memory fence",
    "branch_resolving": "waits for the target of a branch",
    "dispatch_stall": "is held back by the dispatcher",
    "drain": "waits for its last stores before it ends",
    "imc_miss": "waits for a constant that no cache held",
    "lg_throttle": "waits for room in the queue to global and local memory",
    "mio_throttle": "waits for room in the queue to shared memory and special functions",
    "tex_throttle": "waits for room in the queue to the texture unit",
    "math_pipe_throttle": "waits for an arithmetic unit that is busy",
    "no_instructions": "waits for instructions to be fetched",
    "sleeping": "sleeps",
    "misc": "waits for something else",
}
ISSUING = "selected"
MOST_STALLS, LEAST_STALL = 6, 0.02  # shown of a kernel
MOST_OF_BASELINE = 2  # kernels


def profiles(records: Records, limits: Limits) -> list[ProfileView]:
    """Profiles that hold kernels, an operator's baselines after its variants; what did not run is told elsewhere."""
    found = [p for p in records.profiles if p.kernels]
    operators = list(dict.fromkeys(p.operator for p in found))
    found.sort(key=lambda p: (operators.index(p.operator), p.role != "variant"))
    return [
        ProfileView(
            p,
            badge(p.status, ok="profiled"),
            tuple(_statements(p, records.ceilings.get("cuda"))),
            _comparison(p, found),
            tuple(_profiled(k, limits) for k in _shown_kernels(p, limits)),
        )
        for p in found
    ]


def _shown_kernels(profile: ProfileRecord, limits: Limits) -> list[ProfiledKernel]:
    """Of a baseline the longest few, on a page of all details: the comparisons hold its figures."""
    if profile.role == "variant":
        return profile.kernels[: limits.kernels]
    return sorted(profile.kernels, key=lambda k: -k.duration_us)[: MOST_OF_BASELINE if limits.counters else 0]


def _profiled(kernel: ProfiledKernel, limits: Limits) -> ProfiledKernelView:
    bars, rows = [], []
    for metric, found in kernel.metrics.items():
        name = METRIC_NAMES.get(metric, metric)
        if found.unit == "%" and isinstance(found.value, (int, float)):
            bars.append(MetricBar(name, metric, float(found.value)))
        elif limits.counters:
            unit = f"{formats.THIN}{found.unit}" if found.unit else ""
            rows.append(MetricRow(name, metric, f"{formats.significant(found.value, 4)}{unit}"))
    order = list(METRIC_NAMES)
    bars.sort(key=lambda b: order.index(b.metric) if b.metric in METRIC_NAMES else len(order))
    stalls = sorted((s for s in kernel.stalls if s.share >= LEAST_STALL), key=lambda s: -s.share)[:MOST_STALLS]
    rules = sorted(kernel.rules, key=lambda rule: rule.rank)[: limits.advice]
    lines = [_hot_line(line) for line in sorted(kernel.hot_lines, key=lambda line: -line.share)[: limits.hot_lines]]
    launch = f"grid {_by(kernel.grid)}, block {_by(kernel.block)}, {formats.time_us(kernel.duration_us)}"
    return ProfiledKernelView(
        kernel, launch, tuple(bars), tuple(rows), tuple(map(_stall_bar, stalls)), tuple(rules), tuple(lines)
    )


def _stall_bar(stall: Stall) -> StallBar:
    meaning = STALLS.get(stall.reason, "waits for something else")
    return StallBar(words(stall.reason), meaning, 100 * stall.share, stall.reason != ISSUING)


def _hot_line(line: HotLine) -> HotLineView:
    if line.stall is None:
        return HotLineView(line, "", "")
    bar = _stall_bar(line.stall)
    return HotLineView(line, f"{bar.name} {formats.percent(line.stall.share, 0)}", bar.meaning)


def _by(numbers: Sequence[int]) -> str:
    return "×".join(str(n) for n in numbers)


# --- against what the machine can do ----------------------------------------------------------------------------------


def _statements(profile: ProfileRecord, ceilings: CeilingsRecord | None) -> list[str]:
    """The whole call against what any kernel has to move, and against the rates that were measured on this machine."""
    spent_s = _duration_us(profile) / 1e6
    read, written = (_total(profile, f"dram__bytes_{way}.sum") for way in ("read", "write"))
    said = []
    if read is not None and profile.cost.get("bytes_read"):
        needed = profile.cost["bytes_read"]
        caches = "ncu emptied the caches before each of its passes, so this is a cold launch"
        warm = "the caches were as the call before left them"
        said.append(
            f"{formats.size(read)} read from DRAM, {formats.ratio(read / needed)} the {formats.size(needed)} that any "
            f"kernel has to read; {caches if profile.cache_control == 'all' else warm}."
        )
    copy = ceilings.get("copy") if ceilings else None
    if copy and read is not None and written is not None and spent_s:
        rate = (read + written) / spent_s
        said.append(_share_said("DRAM traffic", rate, "B/s", copy.median, "the copy bandwidth"))
    name = arithmetic_ceiling(profile.case.rpartition("-")[2], "cuda")
    roof = ceilings.get(name) if ceilings else None
    if roof and profile.cost.get("flops") and spent_s:
        rate = profile.cost["flops"] / spent_s
        said.append(
            _share_said("By the cost model", rate, "FLOP/s", roof.median, f"the rate of {words(name)} products")
        )
    return said


def _share_said(what: str, rate: float, unit: str, ceiling: float, of: str) -> str:
    share, most = formats.percent(rate / ceiling), formats.rate(ceiling, unit)
    return f"{what}: {formats.rate(rate, unit)}, {share} of {of} that was measured on this machine ({most})."


# --- beside a baseline ------------------------------------------------------------------------------------------------

BYTES = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def _value(kernel: ProfiledKernel, name: str) -> float | None:
    """A metric's number, bytes in bytes."""
    metric = kernel.metrics.get(name)
    if metric is None or not isinstance(metric.value, int | float):
        return None
    return float(metric.value) * BYTES.get(metric.unit, 1.0)


def _total(profile: ProfileRecord, name: str) -> float | None:
    """An amount over all launches of the call; None where one does not say."""
    values = [_value(kernel, name) for kernel in profile.kernels]
    return None if None in values else sum(value for value in values if value is not None)


def _duration_us(profile: ProfileRecord) -> float:
    return sum(kernel.duration_us for kernel in profile.kernels)


def _longest(profile: ProfileRecord) -> ProfiledKernel:
    return max(profile.kernels, key=lambda kernel: kernel.duration_us)


@dataclass(frozen=True)
class Figure:
    """A figure of a comparison: an amount of the whole call (with its ratio) or a property of the longest launch."""

    name: str
    metric: str
    shown: Callable[[float], str]
    amount: bool

    def of(self, profile: ProfileRecord) -> float | None:
        """Its value, if the profile has it."""
        return _total(profile, self.metric) if self.amount else _value(_longest(profile), self.metric)


def _percent(value: float) -> str:
    return formats.percent(value / 100)


FIGURES = (
    Figure("DRAM bytes read", "dram__bytes_read.sum", formats.size, True),
    Figure("DRAM bytes written", "dram__bytes_write.sum", formats.size, True),
    Figure("Instructions", "smsp__inst_executed.sum", formats.count, True),
    Figure("DRAM throughput", "dram__throughput.avg.pct_of_peak_sustained_elapsed", _percent, False),
    Figure("L2 throughput", "lts__throughput.avg.pct_of_peak_sustained_elapsed", _percent, False),
    Figure("Tensor cores", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", _percent, False),
    Figure("Achieved occupancy", "sm__warps_active.avg.pct_of_peak_sustained_active", _percent, False),
    Figure("Registers a thread", "launch__registers_per_thread", formats.count, False),
)


def _comparison(profile: ProfileRecord, everybody: Sequence[ProfileRecord]) -> Comparison | None:
    """Against the fastest baseline that was profiled on the same case."""
    others = [p for p in everybody if p.role != "variant" and (p.operator, p.case) == (profile.operator, profile.case)]
    if profile.role != "variant" or not others:
        return None
    best = min(others, key=_duration_us)
    ours_us, theirs_us = _duration_us(profile), _duration_us(best)
    times = formats.time_us(ours_us), formats.time_us(theirs_us)
    rows = [ComparisonRow("Time", *times, formats.ratio(ours_us / theirs_us))]
    if len(profile.kernels) != len(best.kernels):
        rows.append(ComparisonRow("Launches", str(len(profile.kernels)), str(len(best.kernels)), ""))
    for figure in FIGURES:
        mine, other = figure.of(profile), figure.of(best)
        if mine is not None and other is not None:
            ratio = formats.ratio(mine / other) if figure.amount and other else ""
            rows.append(ComparisonRow(figure.name, figure.shown(mine), figure.shown(other), ratio))
    mine_mostly, other_mostly = _top_stall(_longest(profile)), _top_stall(_longest(best))
    if mine_mostly and other_mostly:
        rows.append(ComparisonRow("Longest stall", mine_mostly, other_mostly, ""))
    return Comparison(best.variant, tuple(rows))


def _top_stall(kernel: ProfiledKernel) -> str:
    stall = next((stall for stall in kernel.stalls if stall.reason != ISSUING), None)
    return f"{words(stall.reason)} {formats.percent(stall.share, 0)}" if stall else ""
