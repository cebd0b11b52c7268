"""Runs with simulated times whose truth is known, for tests of what is said between runs.

Four baselines and two variants on one operator, two cases, hot and cold, as the bench stage would have left them:
records, and samples that the record's medians follow from. A machine's shift falls on everybody in a run; a run's own
shift falls on each contender alone, as it does on real boards.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from kernelproof import records, statistics
from kernelproof.records import (
    BenchCase,
    BenchRecord,
    BuildRecord,
    CaptureRecord,
    CaseResult,
    Compiler,
    Contender,
    Cubin,
    Failure,
    FileHash,
    KernelResources,
    Probe,
    Provenance,
    RatioRow,
    TestRecord,
    TimeRow,
)
from kernelproof.runs import RECORDS, Run

TIMES_US = {"fast": 9.0, "plain": 30.0, "flash": 10.0, "cudnn": 9.5, "efficient": 22.0, "math": 65.0}
VARIANTS = ("fast", "plain")
CASES = ("small", "large")
BENCH = "op-cuda"
METHODS = {"cpu": "cpu_clock", "cuda": "graph_slope"}
QUICK = statistics.Settings(resamples=200)
COLUMNS = ("process", "block", "contender", "case", "mode", "method", "time_us", "throttle")


def provenance(commit: str, day: int) -> Provenance:
    return Provenance(commit * 40, "main", False, None, None, f"2026-03-{day:02d}T09:00:00Z", "0.1.0")


def make(
    seed: int = 0,
    *,
    name: str = "run",
    commit: str = "a",
    day: int = 1,
    factors: Mapping[str, float] | None = None,
    gpu: str = "NVIDIA H200",
    driver: str = "580.10",
    torch: str = "2.11.0",
    processes: int = 5,
    machine: float = 0.02,
    own: float = 0.006,
    machine_code: str = "sass",
    verdicts: Mapping[str, str] | None = None,
    only: tuple[str, ...] = tuple(TIMES_US),
    device: str = "cuda",
) -> Run:
    """One run. factors: on a contender's time; machine and own: standard deviations of log time a run adds.

    machine_code: of the variant `fast`; that of `plain` and the baselines' packages stay as they are.
    """
    random = np.random.default_rng(seed)
    when = provenance(commit, day)
    run = Run(name, RECORDS, config={"gate": {"same_band": 0.005}, "bench": {"confidence": 0.95}})
    board = {"name": gpu, "driver": driver, "uuid_sha256": f"{seed:x}", "sm_clock_max_mhz": 1980, "mig": False}
    packages = {"torch": torch, "numpy": "2.0", "nvidia-cudnn-cu13": "9.19", "requests": "2"}
    run.capture = CaptureRecord(
        provenance=when,
        probes={
            "gpu": Probe("ok", [board]),
            "cpu": Probe("ok", {"model": "a processor", "usable_cores": 16}),
            "packages": Probe("ok", packages),
        },
    )
    for contender in only:
        ours = contender in VARIANTS
        who = {"operator": "op", "variant": contender, "role": "variant" if ours else "baseline", "device": device}
        code = machine_code if contender == "fast" else f"of {contender}"
        run.builds[f"op/{contender}"] = build(when, code, who, library=not ours)
        run.tests[f"op/{contender}"] = test(when, who, (verdicts or {}).get(contender, "correct"), torch)
    shift = machine * random.standard_normal()
    rows = []
    for contender in only:
        factor = (factors or {}).get(contender, 1.0)
        for case in CASES:
            for mode in ("hot", "cold"):
                level = math.log(TIMES_US[contender] * factor) + shift + own * random.standard_normal()
                for process in range(processes):
                    at = level + 0.003 * random.standard_normal()
                    for block in range(6):
                        times = np.exp(at + 0.003 * random.standard_normal(2))
                        rows += [
                            (process, block, contender, case, mode, METHODS[device], f"{t:.6g}", "") for t in times
                        ]
    data = samples(rows)
    run.benches[f"op-{device}"] = bench(when, only, run, processes, device)
    run.benches[f"op-{device}"].times = [
        time_row(
            (who, case, mode),
            [float(str(row[6])) for row in rows if row[2:5] == (who, case, mode)],
            processes,
            METHODS[device],
        )
        for who in only
        for case in CASES
        for mode in ("hot", "cold")
    ]
    run.read_samples = lambda wanted: data if wanted == f"op-{device}.csv.gz" else None
    return run


def time_row(place: tuple[str, str, str], times: list[float], processes: int, method: str) -> TimeRow:
    low, median, high = (float(value) for value in np.quantile(times, [0.05, 0.5, 0.95]))
    return TimeRow(*place, method, median, low, high, len(times), processes)


def samples(rows: list[tuple[object, ...]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    return gzip.compress(text.getvalue().encode(), compresslevel=1, mtime=0)


def build(when: Provenance, code: str, who: dict[str, str], *, library: bool) -> BuildRecord:
    if library:
        return BuildRecord(provenance=when, abi="python", sources=[FileHash("baselines.py", "b" * 64)], **who)
    kernel = KernelResources(
        "_Z4kern", "kern(float*)", 64, 1024, 0, 0, 0, 100, code, instruction_mix={"tensor": 10, "fp32": 90}
    )
    return BuildRecord(
        provenance=when,
        sources=[FileHash("csrc/op/fast.cu", "c" * 64)],
        macros={"STAGES": 2},
        flags=["-O3"],
        archs=["sm_90a"],
        compiler=Compiler("nvcc", "13.0.88", "d" * 64, "wheels"),
        cubins=[Cubin("sm_90a", "x.cubin", "e" * 64, 10, code, {"tensor": 10, "fp32": 90}, {}, [kernel])],
        host_code_sha256="f" * 64,
        **who,
    )


def test(when: Provenance, who: dict[str, str], verdict: str, torch: str) -> TestRecord:
    ratio = 0.4 if verdict == "correct" else 37.5
    case = CaseResult("small-normal-s0", "small", {}, {}, "float16", "normal", 0, "passed", max_bound_ratio=ratio)
    if verdict != "correct":
        case.status = "failed"
        case.failures = [Failure("bound", "37.5 times the bound at [0, 3]")]
    return TestRecord(provenance=when, verdict=verdict, cases=[case], **who)


test.__test__ = False  # type: ignore[attr-defined]


def bench(when: Provenance, only: tuple[str, ...], run: Run, processes: int, device: str) -> BenchRecord:
    contenders = [
        Contender(
            name,
            "variant" if name in VARIANTS else "baseline",
            "tvm_ffi" if name in VARIANTS else "python",
            run.tests[f"op/{name}"].verdict,
            run.tests[f"op/{name}"].verdict == "correct",
            "timed",
        )
        for name in only
    ]
    return BenchRecord(
        provenance=when,
        operator="op",
        device=device,
        contenders=contenders,
        cases=[BenchCase(case, case, {"rows": 8}, {}, "float16", 1e9, 1e6, 1e6) for case in CASES],
        modes=["hot", "cold"],
        ratios=[RatioRow("fast", "cudnn", "small", "hot", 0.95, 0.94, 0.96, "faster", 0.01)],
        processes=processes,
        states={"sm_clock_mhz": {"min": 1980, "median": 1980.0, "max": 1980}},
    )


def write(run: Run, folder: Path) -> Path:
    """The run as a folder of records, as a report's reference keeps them."""
    assert run.capture is not None
    records.write(folder / "records" / "capture" / "capture.json", run.capture)
    for stage, found in (("build", run.builds), ("test", run.tests), ("bench", run.benches)):
        for key, record in found.items():  # type: ignore[attr-defined]
            records.write(folder / "records" / stage / f"{key}.json", record)
    for name in run.benches:
        if data := run.read_samples(f"{name}.csv.gz"):
            (folder / "records" / "bench" / f"{name}.csv.gz").write_bytes(data)
    return folder


def changed(run: Run, key: str, change: Callable[[BuildRecord], None]) -> Run:
    """The run with one build record changed in place."""
    copy = records.from_json(BuildRecord, asdict(run.builds[key]))
    change(copy)
    return replace(run, builds={**run.builds, key: copy})
