"""Nsight Compute: where it is, how it is started, and what a report says.

Reports are read with NVIDIA's own `ncu_report` module (the PyPI package `ncu-report`, or `extras/python` of an Nsight
Compute installation), never by parsing what `ncu` prints for people. An empty or unreadable report is an error.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib
import io
import math
import os
import re
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelproof import privacy, processes
from kernelproof.errors import ProfileError, ToolError
from kernelproof.records import HotInstruction, HotLine, Metric, ProfiledKernel, RuleAdvice, Stall
from kernelproof.repository import HERE

# Sections whose reports of a whole ladder fit the bundle; the timeline of PM sampling alone would double them.
SECTIONS = (
    "SpeedOfLight",
    "SpeedOfLight_RooflineChart",
    "Occupancy",
    "LaunchStats",
    "MemoryWorkloadAnalysis",
    "MemoryWorkloadAnalysis_Tables",
    "ComputeWorkloadAnalysis",
    "SchedulerStats",
    "WarpStateStats",
    "SourceCounters",
    "InstructionStats",
)
DURATION = "gpu__time_duration.sum"
# Asked for beside the sections' own, and stated as missing where a GPU does not have one.
METRICS = (
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__sectors_read.sum",
    "dram__sectors_write.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "smsp__inst_executed.sum",
    "smsp__inst_executed_pipe_tensor.sum",
    "smsp__inst_executed_pipe_fma.sum",
    "smsp__thread_inst_executed_per_inst_executed.ratio",
)
# What the report shows of the sections' metrics; the CSV and the .ncu-rep hold all.
SECTION_METRICS = (
    DURATION,
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "l1tex__t_sector_hit_rate.pct",
    "lts__t_sector_hit_rate.pct",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes.sum.per_second",
    "sm__maximum_warps_per_active_cycle_pct",
    "sm__cycles_elapsed.avg.per_second",
    "sm__cycles_elapsed.max",
    "sm__inst_executed.sum",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "smsp__warps_eligible.avg.per_cycle_active",
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_static",
    "launch__shared_mem_per_block_dynamic",
    "launch__waves_per_multiprocessor",
    "launch__occupancy_limit_registers",
    "launch__occupancy_limit_shared_mem",
    "launch__occupancy_limit_warps",
    "launch__occupancy_limit_blocks",
    "device__attribute_display_name",
    "device__attribute_multiprocessor_count",
)
SAMPLES = "smsp__pcsamp_sample_count"  # warp samples, one instance an instruction address
# The same samples by what the warp was doing: all of them, or only those in which its scheduler issued nothing.
SAMPLED_STALL = re.compile(r"^smsp__pcsamp_warps_issue_stalled_(\w+?)(_not_issued)?$")
# The same by counters, over every cycle and not a sample: cycles spent between two instructions of a warp.
COUNTED_STALL = re.compile(r"^smsp__average_warps_issue_stalled_(\w+?)(_not_issued)?_per_issue_active\.ratio$")
STALL_NAMES = {"gmma": "warpgroup_arrive", "no_instruction": "no_instructions"}  # counters' words that samples lack
ISSUING = "selected"  # the warp whose turn it is: no stall
CACHE_CONTROL = "all"  # caches are emptied before every pass: what is profiled is a cold launch, the same each time
TOP_LINES = 12
TOP_INSTRUCTIONS, LEAST_OF_LINE = 2, 0.1  # of a line, with at least this share of its samples
_TOOLKIT = re.compile(r"^results/store/toolkit-\w+/")  # the build's link to it
MAX_KERNELS = 64  # one call launches a handful; more means that something else was profiled
BYTES = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
NANOSECONDS = {"ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9}


def find_ncu() -> Path | None:
    """The `ncu` program: $KERNELPROOF_NCU, the PATH, $CUDA_HOME, then NVIDIA's installation folders, newest first."""
    if chosen := os.environ.get("KERNELPROOF_NCU"):
        return Path(chosen) if Path(chosen).is_file() else None
    if on_path := shutil.which("ncu"):
        return Path(on_path)
    homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    candidates = [home / "bin" / "ncu" for home in homes] + [folder / "ncu" for folder in installations()]
    return next((path for path in candidates if os.access(path, os.X_OK) and path.is_file()), None)


def installations() -> list[Path]:
    """Folders that Nsight Compute's own installers use, newest version first."""
    found = [*Path("/opt/nvidia/nsight-compute").glob("[0-9]*"), *Path("/usr/local").glob("cuda*/nsight-compute-*")]
    return sorted(found, key=lambda path: [int(part) for part in re.findall(r"\d+", path.name)], reverse=True)


def version(ncu: Path) -> str:
    """`2025.3.1.0`. Raises ToolError when the program does not run."""
    text = processes.run([ncu, "--version"], timeout_s=60).stdout
    found = re.search(r"^Version (\S+)", text, re.MULTILINE)
    if not found:
        raise ToolError(f"it does not say its version: {text.strip()[:200]!r}", subject=str(ncu))
    return found[1]


def command(
    ncu: Path,
    report: Path,
    target: Sequence[str | Path],
    sections: Iterable[str],
    metrics: Sequence[str],
    *,
    source: bool,
) -> list[str]:
    """The command line that makes a report of what `target` runs between cuProfilerStart and -Stop (`profiled`).

    source: whether the report takes the source files along.
    """
    options = [*_options(CACHE_CONTROL), "--force-overwrite", "--launch-count", str(MAX_KERNELS)]
    options += ["--import-source", "yes"] if source else []
    for section in sections:
        options += ["--section", section]
    if metrics:
        options += ["--metrics", ",".join(metrics)]
    return [str(ncu), *options, "--export", str(report), *map(str, target)]


def counting_command(ncu: Path, table: Path, target: Sequence[str | Path], metrics: Sequence[str]) -> list[str]:
    """The command line that writes metrics of all such launches into `table` (`counted`), and empties no cache.

    For many launches and few metrics. What ncu itself says goes into the table too.
    """
    options = [*_options("none"), "--metrics", ",".join(metrics)]
    options += ["--csv", "--page", "raw", "--print-units", "base", "--log-file", str(table)]
    return [str(ncu), *options, *map(str, target)]


def _options(cache_control: str) -> list[str]:
    """What every call has; clocks are left alone: the tool changes no setting of the GPU."""
    options = ["--clock-control", "none", "--cache-control", cache_control]
    return [*options, "--profile-from-start", "off", "--target-processes", "all"]


@dataclass(frozen=True)
class Obstacle:
    """Words of ncu that mean that it cannot profile here, why, and what to do."""

    pattern: str
    reason: str
    remedy: str


OBSTACLES = (
    Obstacle(
        "ERR_NVGPUCTRPERM",
        "the driver does not permit this user to read GPU performance counters (ERR_NVGPUCTRPERM)",
        "ask the administrator for the driver option NVreg_RestrictProfilingToAdminUsers=0 "
        "(a line `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d, then a reboot); "
        "in a container, start it with --cap-add=SYS_ADMIN",
    ),
    Obstacle(
        "Driver resource was unavailable|LibraryInUse|another .*profil",
        "another tool holds the GPU's performance counters",
        "stop it (DCGM: dcgmi profile --pause) and run the same command again",
    ),
    Obstacle(
        "not supported on this device|not supported on the current|Profiling is not supported|ERR_NVGPUVIRT",
        "this GPU, driver or virtual machine does not let Nsight Compute profile",
        "profile on a machine that passes the GPU through whole; ncu --help lists supported GPUs",
    ),
    Obstacle(
        "Failed to (?:open|create|acquire) .*lock|nsight-compute-lock",
        "Nsight Compute's lock file belongs to another user",
        "set TMPDIR to a folder of your own and run the same command again",
    ),
)
NOT_INSTALLED = Obstacle(
    "",
    "Nsight Compute (ncu) is not installed",
    "install Nsight Compute (it comes with the CUDA toolkit; Debian/Ubuntu: nsight-compute), "
    "or name it with KERNELPROOF_NCU",
)


def obstacle(said: str) -> Obstacle | None:
    """What stands in ncu's way, by its own words."""
    return next((known for known in OBSTACLES if re.search(known.pattern, said)), None)


def what_went_wrong(said: str, returncode: int) -> str:
    """One sentence from ncu's output: nothing profiled, the variant's own failure, or ncu's error lines."""
    if "No kernels were profiled" in said:
        return "no kernel was launched between the profiler's start and stop"
    errors = re.findall(r"^==ERROR== (.+)$", said, re.MULTILINE)
    own = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("==")]
    if errors and "returned an error code" in errors[-1]:
        return f"the variant failed under the profiler: {' / '.join(own[-3:])}"
    return f"ncu ended with exit code {returncode}: {' / '.join(errors or own[-3:]) or 'it said nothing'}"


@contextlib.contextmanager
def profiled(device: str) -> Iterator[None]:
    """What ncu looks at (`command`); nothing on a CPU."""
    if device != "cuda":
        yield
        return
    from kernelproof.cuda_driver import driver

    driver().cuProfilerStart()
    yield
    driver().cuProfilerStop()


# --- reading ----------------------------------------------------------------------------------------------------------


def kernels_of(
    launches: Iterable[Any], metrics: Sequence[str] = METRICS, root: Path | None = None
) -> list[ProfiledKernel]:
    """What a report says of launches (`actions`).

    `metrics` are looked up beside SECTION_METRICS; one of them that the report lacks has the value None. Source files
    are named relative to `root`. Raises ProfileError for a launch without a duration.
    """
    return [_kernel(reader(), action, metrics, root) for action in launches]


def counters_csv(launches: Iterable[Any]) -> str:
    """Every metric of every launch that has a value: `launch` (the first is 0), `kernel`, `metric`, `unit`, `value`.

    Without those that only list others' names (`breakdown:…`, `group:…`).
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("launch", "kernel", "metric", "unit", "value"))
    for number, action in enumerate(launches):
        kernel = action.name(action.NameBase_DEMANGLED)
        for name in sorted(name for name in action.metric_names() if ":" not in name):
            metric = _metric(action, name)
            if metric is not None and metric.value is not None:
                table.writerow((number, kernel, name, metric.unit, metric.value))
    return privacy.scrubbed(text.getvalue())


@dataclass(frozen=True)
class Launch:
    """A launch of a report: its kernel's name, and metrics in bytes, ns and cycles."""

    kernel: str
    values: dict[str, float]


def start_of_table(printed: str) -> int:
    """Where in what ncu wrote (`counting_command`) its own words end; at the end where it lists no launch."""
    start = printed.find('"ID"')
    return start if start >= 0 else len(printed)


def counted(table: str, names: Sequence[str]) -> list[Launch]:
    """Each launch of what ncu wrote (`counting_command`).

    For who must not depend on NVIDIA's module (`actions`), which reports can bring down. Raises ProfileError where a
    metric is missing or is no number.
    """
    rows = list(csv.DictReader(io.StringIO(table[start_of_table(table) :])))
    found: list[Launch] = []
    for row in rows[1:]:  # the first holds the units
        values = {}
        for name in names:
            try:
                values[name] = float((row.get(name) or "").replace(",", "")) * _scale_of(name, rows[0][name])
            except (ValueError, KeyError):
                said = f"ncu printed {row.get(name)!r} for it"
                raise ProfileError(f"launch {len(found)} has no number: {said}", subject=name) from None
        found.append(Launch(row.get("Kernel Name") or "", values))
    return found


def _scale_of(name: str, unit: str) -> float:
    """What makes bytes, ns or cycles of a number in this unit. Raises ProfileError for another unit."""
    if (scale := (BYTES | NANOSECONDS | {"cycle": 1.0}).get(unit)) is None:
        raise ProfileError(f"unknown unit {unit!r}", subject=name)
    return scale


def actions(report: Path) -> list[Any]:
    """The profiled launches as NVIDIA's module gives them.

    Raises ProfileError when the report is missing, empty, unreadable or holds no kernel.
    """
    if not report.is_file() or report.stat().st_size == 0:
        raise ProfileError("the report is empty or was not written", subject=str(report), hint="see the profile's log")
    module = reader()
    try:
        found = [action for section in module.load_report(str(report)) for action in section]
    except Exception as error:  # the binding raises whatever its C++ side throws
        raise ProfileError(f"the report cannot be read: {error}", subject=str(report)) from error
    if not found:
        raise ProfileError(
            "the report holds no kernel, or is damaged", subject=str(report), hint="see the profile's log"
        )
    return found


@functools.cache
def reader() -> Any:
    """NVIDIA's `ncu_report` module. Raises ProfileError when it is nowhere."""
    try:
        return importlib.import_module("ncu_report")
    except ImportError:
        pass
    ncu = find_ncu()
    homes = ([ncu.resolve().parent] if ncu else []) + installations()
    for folder in (home / "extras" / "python" for home in homes):
        if (folder / "ncu_report.py").is_file() or (folder / "ncu_report").is_dir():
            sys.path.insert(0, str(folder))
            try:
                return importlib.import_module("ncu_report")
            finally:
                sys.path.remove(str(folder))
    raise ProfileError(
        "the module that reads Nsight Compute's reports is not installed",
        subject="ncu_report",
        hint="pip install ncu-report, or install Nsight Compute with its extras/python folder",
    )


def _kernel(module: Any, action: Any, metrics: Sequence[str], root: Path | None) -> ProfiledKernel:
    found = {name: _metric(action, name) for name in (*metrics, *SECTION_METRICS)}
    spent_us = _duration_us(action)
    return ProfiledKernel(
        name=action.name(action.NameBase_DEMANGLED),
        grid=_dimensions(action, "launch__grid_dim"),
        block=_dimensions(action, "launch__block_dim"),
        duration_us=spent_us,
        # One that was asked for and is missing stays, without a value; one of a section's may be absent.
        metrics={name: metric or Metric(None) for name, metric in found.items() if metric or name in metrics},
        rules=_rules(module, action),
        hot_lines=_hot_lines(action, root),
        stalls=_stalls(action),
        roofline=_roofline(action, spent_us / 1e6),
    )


def _duration_us(action: Any) -> float:
    """How long a launch took on the device. Raises ProfileError where the report does not say."""
    duration = _metric(action, DURATION)
    if duration is None or not isinstance(duration.value, int | float):
        raise ProfileError("a kernel without a duration: the report is incomplete", subject=action.name())
    return float(duration.value * NANOSECONDS[duration.unit] / 1e3)


def _metric(action: Any, name: str) -> Metric | None:
    metric = action.metric_by_name(name)
    if metric is None:
        return None
    value = metric.value()
    if isinstance(value, float) and not math.isfinite(value):
        value = None  # ncu's "n/a": a ratio whose denominator is zero
    return Metric(value, metric.unit() or "")


def _number(action: Any, name: str) -> float | None:
    metric = _metric(action, name)
    return float(metric.value) if metric and isinstance(metric.value, int | float) else None


def _dimensions(action: Any, prefix: str) -> list[int]:
    values = [_number(action, f"{prefix}_{axis}") for axis in "xyz"]
    return [int(value) for value in values if value is not None]


def _rules(module: Any, action: Any) -> list[RuleAdvice]:
    """The rules that say something, by their rank."""
    advice = []
    for rule in action.rule_results():
        if not rule.has_rule_message():
            continue
        message = rule.rule_message()
        estimate = rule.speedup_estimation() if rule.has_speedup_estimation() else None
        title = f"{message['title']}: " if message["title"] else ""
        local = estimate is not None and estimate["type"] == module.SpeedupType_LOCAL
        advice.append(
            RuleAdvice(
                name=rule.name(),
                severity=_severity(module, message["type"]),
                message=plain_text(title + message["message"]),
                estimated_speedup_percent=float(estimate["speedup"]) if estimate else None,
                scope=None if estimate is None else "local" if local else "global",
            )
        )
    return sorted(advice, key=lambda a: (a.rank, a.name, a.message))


def _severity(module: Any, kind: int) -> str:
    """`none`, `ok`, `optimization`, `warning` or `error`."""
    names = {int(getattr(module, f"MsgType_{name}")): name for name in ("NONE", "OK", "OPTIMIZATION", "WARNING")}
    return names.get(int(kind), "error").lower()


def plain_text(message: str) -> str:
    """A rule's message without its link markup: `@section:WarpStateStats:Warp State@` becomes `Warp State`."""
    message = re.sub(r"@url:([^@]*?):https?://[^@]*@", r"\1", message)
    message = re.sub(r"@(?:section|sass):[^:@]*:([^@]*)@", r"\1", message)
    message = re.sub(r"@source:[^@]*?:\d+:([^@]*)@", r"\1", message)
    return " ".join(message.split())


@dataclass
class _Line:
    """What was sampled at one source line: by instruction address, and by what the warp was doing."""

    samples: Counter[int] = field(default_factory=Counter)
    stalls: Counter[str] = field(default_factory=Counter)


def _hot_lines(action: Any, root: Path | None) -> list[HotLine]:
    """The source lines with most warp samples; instructions stand for lines where the build has no line information."""
    samples = dict(_instances(action.metric_by_name(SAMPLES)))
    if not samples:
        return []
    total, first = sum(samples.values()), min(samples)
    lines: dict[tuple[str, int], _Line] = defaultdict(_Line)
    place = {address: _place(action, address, first) for address in samples}
    for address, hits in samples.items():
        lines[place[address]].samples[address] += hits
    for reason, metric in _sampled_stalls(action).items():
        for address, hits in _instances(metric):
            if address in place:
                lines[place[address]].stalls[reason] += hits
    texts = dict(action.source_files())
    hottest = sorted(lines.items(), key=lambda item: (-item[1].samples.total(), item[0]))[:TOP_LINES]
    found = []
    for (file, line), sampled in hottest:
        if not (hits := sampled.samples.total()):
            break
        least = min(LEAST_OF_LINE * hits, max(sampled.samples.values()))  # the hottest in any case
        instructions = [
            HotInstruction(address - first, _sass(action, address), count / total)
            for address, count in sorted(sampled.samples.items(), key=lambda item: (-item[1], item[0]))
            if count >= least
        ][:TOP_INSTRUCTIONS]
        source = _source_line(texts, file, line, root)
        if source is None:
            source, instructions = instructions[0].sass, instructions[1:]
        found.append(
            HotLine(
                file=_relative(file, root),
                line=line,
                source=source,
                samples=hits,
                share=hits / total,
                stall=next(iter(_shares(sampled.stalls, without=ISSUING)), None),
                instructions=instructions,
            )
        )
    return found


def _sass(action: Any, address: int) -> str:
    """The instruction's text, without the address in this process's memory that ncu adds to a branch's label."""
    return re.sub(r" 0x[0-9a-f]{9,}$", "", " ".join(action.sass_by_pc(address).split()))


def _instances(metric: Any) -> Iterator[tuple[int, int]]:
    """(instruction address, samples); nothing where a metric is absent or not told by address."""
    if metric is not None and metric.has_correlation_ids():
        addresses = metric.correlation_ids()
        for i in range(metric.num_instances()):
            yield addresses.as_uint64(i), metric.as_uint64(i)


def _place(action: Any, address: int, first: int) -> tuple[str, int]:
    found = action.source_info(address)
    return (found.file_name(), found.line()) if found else ("SASS", address - first)


def _sampled_stalls(action: Any) -> dict[str, Any]:
    """Metrics of the samples by what the warp was doing, preferably of all samples."""
    found: dict[bool, dict[str, Any]] = {True: {}, False: {}}
    for name in action.metric_names():
        if match := SAMPLED_STALL.match(name):
            found[bool(match[2])][match[1]] = action.metric_by_name(name)
    return found[False] or found[True]


def _stalls(action: Any) -> list[Stall]:
    """What the kernel's warps did, by falling share of their time: by the counters, else by the samples."""
    counted = {}
    for name in action.metric_names():
        match = COUNTED_STALL.match(name)
        if match and not match[2] and (value := _number(action, name)) is not None:
            counted[STALL_NAMES.get(match[1], match[1])] = value
    sampled = {
        reason: sum(hits for _, hits in _instances(metric)) for reason, metric in _sampled_stalls(action).items()
    }
    return _shares(counted) or _shares(sampled)


def _shares(amounts: Mapping[str, float], without: str | None = None) -> list[Stall]:
    """Shares of the whole, the largest first; nothing where there is no whole. Below 0.1 % is left out."""
    whole = sum(amounts.values())
    shares = [Stall(reason, amount / whole) for reason, amount in amounts.items() if whole and reason != without]
    return sorted((stall for stall in shares if stall.share >= 1e-3), key=lambda stall: (-stall.share, stall.reason))


def _source_line(texts: Mapping[str, str], file: str, line: int, root: Path | None) -> str | None:
    text = texts.get(file)
    path = Path(file) if root is None else root / file.removeprefix(HERE)
    if not text and path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines() if text else []
    return lines[line - 1].strip() if 0 < line <= len(lines) else None


def _relative(file: str, root: Path | None) -> str:
    """A file's path from the repository's root, which its build knows by another name; `<toolkit>/…` for CUDA's own."""
    path = file.removeprefix(HERE)
    if root is not None and Path(path).is_relative_to(root.resolve()):
        path = str(Path(path).relative_to(root.resolve()))
    return privacy.scrubbed(_TOOLKIT.sub("<toolkit>/", path))


def _roofline(action: Any, seconds: float) -> dict[str, float]:
    """Where the launch stands under this GPU's own ceilings as ncu knows them; rates a second, intensity in FLOP/byte.

    `fp32_flops` counts the CUDA cores' single-precision operations (an FMA is two); tensor-core work is not in it.
    """
    per_cycle = {op: _number(action, f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum.per_cycle_elapsed")
                 for op in ("fadd", "fmul", "ffma")}  # fmt: skip
    smsp_clock = _number(action, "smsp__cycles_elapsed.avg.per_second")
    facts: dict[str, float | None] = {
        "dram_bytes": _bytes(action),
        "peak_dram_bytes_per_s": _product(
            _number(action, "dram__bytes.sum.peak_sustained"), _number(action, "dram__cycles_elapsed.avg.per_second")
        ),
        "peak_fp32_flops_per_s": _product(
            2.0,
            _number(action, "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained"),
            _number(action, "sm__cycles_elapsed.avg.per_second"),
        ),
    }
    if smsp_clock is not None and all(value is not None for value in per_cycle.values()):
        rate = (per_cycle["fadd"] or 0) + (per_cycle["fmul"] or 0) + 2 * (per_cycle["ffma"] or 0)
        facts["fp32_flops_per_s"] = rate * smsp_clock
        facts["fp32_flops"] = rate * smsp_clock * seconds
    if facts["dram_bytes"] is not None and seconds:
        facts["dram_bytes_per_s"] = facts["dram_bytes"] / seconds
    if facts.get("fp32_flops") and facts["dram_bytes"]:
        facts["fp32_intensity"] = (facts["fp32_flops"] or 0) / facts["dram_bytes"]
    return {name: value for name, value in facts.items() if value is not None}


def _bytes(action: Any) -> float | None:
    read, written = _bytes_of(action, "dram__bytes_read.sum"), _bytes_of(action, "dram__bytes_write.sum")
    return None if read is None or written is None else read + written


def _bytes_of(action: Any, name: str) -> float | None:
    """A metric that counts bytes; None where it has no number. Raises ProfileError for another unit."""
    metric = _metric(action, name)
    if metric is None or not isinstance(metric.value, int | float):
        return None
    return metric.value * _scale_of(name, metric.unit)


def _product(*factors: float | None) -> float | None:
    return None if any(factor is None for factor in factors) else math.prod(factor or 0.0 for factor in factors)
