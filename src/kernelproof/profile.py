"""Stage `profile`: a CUDA variant, or a baseline to hold variants against, under Nsight Compute, at the shape that the
configuration names.

The single runner (`kernelproof bench --once`) brackets exactly one call with cuProfilerStart and cuProfilerStop; where
it can do without torch, another process makes the call's inputs while Nsight Compute starts. This one never imports
torch: beside NVIDIA's reader of reports it ends in a segmentation fault. What stands in the way (no GPU, no ncu,
counters not permitted) is recorded with its remedy; nothing here needs sudo, and no setting of the GPU is touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelproof import fingerprints, gpu, lease, nsight, repository, single_call
from kernelproof.cases import unsupported
from kernelproof.config import Config, ProfileSelection, VariantConfig, plain, save
from kernelproof.errors import LeaseError, ProfileError, ToolError
from kernelproof.privacy import scrubbed_in_place
from kernelproof.processes import run as run_process
from kernelproof.records import FAILED, NOT_RUN, OK, Case, FileHash, ProfileRecord, atomic_write, sha256_file, write

UNKNOWN_METRIC = re.compile(r"(?:Failed to find|Unknown|Invalid|Unsupported) metrics?:? +'?([\w.:]+?)'?[.,]?(?:\s|$)")
MAX_UNKNOWN_METRICS = 8
COST = ("flops", "bytes_read", "bytes_written")


class CannotProfile(Exception):
    """Profiling is impossible here and now; the variant is not to blame."""

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


def run(config: Config, operator: str, variant: str, output: Path) -> ProfileRecord:
    """Profile one variant or baseline and write its record, report (.ncu-rep) and counters (.csv) side by side.

    The record's status is not_run where the machine cannot profile, and failed where the variant or its report is at
    fault.
    """
    started = time.monotonic()
    settings, selection = config.operator(operator).variant(variant), config.operator(operator).profile
    record = ProfileRecord(operator=operator, variant=variant, role=settings.role)
    record.provenance = repository.provenance(config.root)
    record.settings = fingerprints.of(config, "profile", settings.key)
    case = Case(operator, selection.shape, config.operator(operator).shapes[selection.shape], dict(selection.options))
    case = dataclasses.replace(case, dtype=settings.dtypes[0])
    record.case = case.bench_id
    for ending in (".ncu-rep", ".csv"):
        output.with_suffix(ending).unlink(missing_ok=True)  # of an earlier run: it is not this record's
    log = config.results / "logs" / "profile" / operator / f"{variant}.ncu.log"
    try:
        ncu = _preconditions(config, settings, case)
        record.tool_version = nsight.version(ncu)
        log.unlink(missing_ok=True)
        record.log = _from_root(log, config)
        with lease.own_cores("cuda"):
            _profile(config, settings, selection, ncu, output, log, record)
    except CannotProfile as why:
        record.status, record.reason, record.remedy = NOT_RUN, why.reason, why.remedy
    except LeaseError as busy:
        record.status, record.reason, record.remedy = NOT_RUN, busy.message, busy.hint
    except (ProfileError, ToolError) as error:
        record.status, record.reason, record.remedy = FAILED, error.message, error.hint
    record.duration_s += time.monotonic() - started
    write(output, record)
    return record


def _preconditions(config: Config, variant: VariantConfig, case: Case) -> Path:
    """The ncu to use. Raises CannotProfile with the first thing that stands in the way."""
    if variant.device != "cuda":
        raise CannotProfile("Nsight Compute profiles CUDA kernels, and this variant runs on the CPU")
    present, why = gpu.available()
    if not present:
        raise CannotProfile(f"no NVIDIA GPU: {why}", "run on a machine with an NVIDIA GPU and its driver")
    if why := unsupported(variant, case):
        raise CannotProfile(f"it {why}", "name another shape under the operator's key `profile`")
    for stage, bad in (("build", "failed"), ("test", "crashed"), ("test", "hung")):
        if bad in _outcome(config, stage, variant):
            words = "it was not built" if stage == "build" else f"its test {bad}"
            raise CannotProfile(words, f"results/{stage}/{variant.key}.json says why")
    ncu = nsight.find_ncu()
    if ncu is None:
        raise CannotProfile(nsight.NOT_INSTALLED.reason, nsight.NOT_INSTALLED.remedy)
    try:
        nsight.reader()
    except ProfileError as error:
        raise CannotProfile(error.message, error.hint) from None
    return ncu


def _outcome(config: Config, stage: str, variant: VariantConfig) -> set[str]:
    """A record's status and verdict; empty where there is no record, which is no obstacle to profiling."""
    try:
        payload = json.loads(config.record(stage, variant.operator, variant.name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return set()
    return {str(payload.get("status")), str(payload.get("verdict"))}


def _profile(
    config: Config,
    variant: VariantConfig,
    selection: ProfileSelection,
    ncu: Path,
    output: Path,
    log: Path,
    record: ProfileRecord,
) -> None:
    """Fill the record. The GPU is held while ncu runs: the next profile can start, and the last be read, beside it."""
    sections = config.profile.sections or list(nsight.SECTIONS)
    metrics = config.profile.metrics or list(nsight.METRICS)
    output.parent.mkdir(parents=True, exist_ok=True)
    for stale in output.parent.glob(f".{variant.name}.*"):  # of a profile that was killed
        shutil.rmtree(stale, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{variant.name}.", dir=output.parent))
    try:
        report = scratch / "report.ncu-rep"
        inputs = scratch / "inputs" if variant.abi == "tvm_ffi" else None
        saved = scratch / "config.json"  # with what was overridden
        save(config, saved)
        target = runner(saved, variant, selection, inputs)
        # ncu needs most of a second to start and torch's import longer. What may be interrupted stays in this thread.
        with ThreadPoolExecutor(1) as beside:
            if inputs is not None:
                call = (config, saved, variant.operator, variant.name, selection.shape, selection.options)
                beside.submit(single_call.lay_out_beside, *call, inputs)
            source = variant.role == "variant"  # of a baseline it would be a library's
            with _gpu(config, record):
                collected = _collect(config, ncu, report, target, sections, metrics, log, source=source)
        launches = nsight.actions(report)
        record.kernels = nsight.kernels_of(launches, metrics, config.root)
        atomic_write(output.with_suffix(".csv"), nsight.counters_csv(launches))
        record.cache_control = nsight.CACHE_CONTROL
        _take_call(record, collected.call)
        _place_under_roofline(record)
        _make_presentable(report, len(record.kernels))
        final = output.with_suffix(".ncu-rep")
        os.replace(report, final)
        record.report = FileHash(_from_root(final, config), sha256_file(final), final.stat().st_size)
        record.csv = _from_root(output.with_suffix(".csv"), config)
        record.status = OK
        if collected.missing:
            record.reason = f"this GPU has no metric {', '.join(collected.missing)}"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _gpu(config: Config, record: ProfileRecord) -> Iterator[None]:
    """Hold the GPU; until it is free no time passes for the record."""
    asked = time.monotonic()
    try:
        with lease.gpu_lease(config.bench.gpu_wait_s, "profile"):
            record.duration_s -= time.monotonic() - asked
            yield
    except LeaseError:
        record.duration_s -= time.monotonic() - asked
        raise


def _make_presentable(report: Path, kernels: int) -> None:
    """Overwrite home folder, user and host name in the report, and see that it is still one."""
    data = report.read_bytes()
    cleaned = scrubbed_in_place(data)
    if cleaned == data:
        return
    report.write_bytes(cleaned)
    if len(nsight.actions(report)) != kernels:
        raise ProfileError("the report cannot be read any more without the private texts in it", subject=str(report))


def runner(saved: Path, variant: VariantConfig, selection: ProfileSelection, inputs: Path | None) -> list[str]:
    """The command that makes exactly one call of the variant between the profiler's start and stop.

    `saved`: a file with the configuration. `inputs`: the folder where the call's inputs are laid out meanwhile; None
    where the runner makes them itself.
    """
    command = [sys.executable, "-P", "-m", "kernelproof", "bench", "--config", str(saved)]
    command += ["--operator", variant.operator, "--variant", variant.name, "--shape", selection.shape]
    command += ["--once", "--json"]
    if inputs is not None:
        command += ["--inputs", str(inputs)]
    for name, value in selection.options.items():
        command += ["--option", f"{name}={plain(value)}"]
    return command


@dataclass(frozen=True)
class Collected:
    """What a profiled call left besides its report: metrics that this GPU lacks, and what the runner said of it."""

    missing: list[str]
    call: dict[str, Any]


def _collect(
    config: Config,
    ncu: Path,
    report: Path,
    target: list[str],
    sections: list[str],
    metrics: list[str],
    log: Path,
    *,
    source: bool,
) -> Collected:
    """Run ncu until it takes the metrics. Raises CannotProfile, ProfileError."""
    wanted, missing = list(metrics), []
    for _ in range(MAX_UNKNOWN_METRICS):
        done = run_process(
            nsight.command(ncu, report, target, sections, wanted, source=source),
            cwd=config.root,
            timeout_s=config.profile.time_limit_s,
            log=log,
            check=False,
        )
        said = done.stdout + done.stderr
        unknown = [name for name in UNKNOWN_METRIC.findall(said) if name in wanted]
        if not unknown or report.is_file():
            break
        wanted = [name for name in wanted if name not in unknown]
        missing += unknown
    if not report.is_file() and (obstacle := nsight.obstacle(said)):
        raise CannotProfile(obstacle.reason, obstacle.remedy)
    if done.returncode != 0 or not report.is_file():
        raise ProfileError(nsight.what_went_wrong(said, done.returncode), log=log, hint=f"{log} has the whole story")
    return Collected(missing, _last_object(done.stdout))


def _last_object(said: str) -> dict[str, Any]:
    """The last line that is a JSON object, among lines of ncu and whatever else was printed; empty without one."""
    for line in reversed(said.splitlines()):
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
    return {}


def _take_call(record: ProfileRecord, call: dict[str, Any]) -> None:
    """What the runner knows of the call: its cost by the operator's model, and how long ncu's passes over it took."""
    numbers = {name: float(value) for name, value in call.items() if isinstance(value, int | float)}
    if numbers.keys() >= set(COST):
        record.cost = {name: numbers[name] for name in COST}
    record.replay_s = numbers["elapsed_ms"] / 1e3 if "elapsed_ms" in numbers else None


def _place_under_roofline(record: ProfileRecord) -> None:
    """Add the cost model's intensity and rate, which are of the whole call, to the launch that took longest."""
    if not record.cost or not record.kernels:
        return
    cost = record.cost
    spent_s = sum(kernel.duration_us for kernel in record.kernels) / 1e6
    longest = max(record.kernels, key=lambda kernel: kernel.duration_us)
    moved = cost["bytes_read"] + cost["bytes_written"]
    longest.roofline |= {"cost_flops": cost["flops"], "cost_bytes": moved, "cost_flops_per_s": cost["flops"] / spent_s}
    if moved:
        longest.roofline["cost_intensity"] = cost["flops"] / moved


def _from_root(path: Path, config: Config) -> str:
    return os.path.relpath(path, config.root)
