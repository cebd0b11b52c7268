"""Profiles: shares of the peak, advice, the hottest lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelproof import formats
from kernelproof.records import HotLine, ProfiledKernel, ProfileRecord, RuleAdvice
from kernelproof.views.common import Badge, Limits, Records, badge


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
class ProfiledKernelView:
    """One profiled launch."""

    kernel: ProfiledKernel
    launch: str
    bars: tuple[MetricBar, ...]
    metrics: tuple[MetricRow, ...]
    rules: tuple[RuleAdvice, ...]
    hot_lines: tuple[HotLine, ...]


@dataclass(frozen=True)
class ProfileView:
    """One variant's profile."""

    record: ProfileRecord
    badge: Badge
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
    "smsp__inst_executed_pipe_tensor.sum": "Tensor instructions",
    "smsp__inst_executed_pipe_fma.sum": "FMA instructions",
    "smsp__thread_inst_executed_per_inst_executed.ratio": "Threads per instruction",
    "launch__occupancy_limit_registers": "Blocks allowed by registers",
    "launch__occupancy_limit_shared_mem": "Blocks allowed by shared memory",
    "launch__registers_per_thread": "Registers a thread",
    "sm__maximum_warps_per_active_cycle_pct": "Theoretical occupancy",
}


def profiles(records: Records, limits: Limits) -> list[ProfileView]:
    """Profiles that hold kernels; what did not run is told elsewhere."""
    return [
        ProfileView(p, badge(p.status, ok="profiled"), tuple(_profiled(k, limits) for k in p.kernels[: limits.kernels]))
        for p in records.profiles
        if p.kernels
    ]


def _profiled(kernel: ProfiledKernel, limits: Limits) -> ProfiledKernelView:
    bars, rows = [], []
    for metric, found in kernel.metrics.items():
        name = METRIC_NAMES.get(metric, metric)
        if found.unit == "%" and isinstance(found.value, (int, float)):
            bars.append(MetricBar(name, metric, float(found.value)))
        else:
            unit = f"{formats.THIN}{found.unit}" if found.unit else ""
            rows.append(MetricRow(name, metric, f"{formats.significant(found.value, 4)}{unit}"))
    order = list(METRIC_NAMES)
    bars.sort(key=lambda b: order.index(b.metric) if b.metric in METRIC_NAMES else len(order))
    rules = sorted(kernel.rules, key=lambda r: -(r.estimated_speedup_percent or 0.0))
    lines = sorted(kernel.hot_lines, key=lambda line: -line.share)[: limits.hot_lines]
    launch = f"grid {_by(kernel.grid)}, block {_by(kernel.block)}, {formats.time_us(kernel.duration_us)}"
    return ProfiledKernelView(kernel, launch, tuple(bars), tuple(rows), tuple(rules), tuple(lines))


def _by(numbers: Sequence[int]) -> str:
    return "×".join(str(n) for n in numbers)
