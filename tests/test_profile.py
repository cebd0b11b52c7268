"""The profile stage: what stands in the way is recorded with its remedy, and an empty report is an error.

Nsight Compute needs a GPU, so here a script takes its place on the command line; it prints ncu's own words.
"""

import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import packed_run
import pytest
import test_nsight

from kernelproof import config as configuration
from kernelproof import gpu, lease, nsight, profile, records
from kernelproof.config import Config

NCU = r"""#!{python}
import json, os, re, sys, time
options = sys.argv[1:]
if "--version" in options:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 36398880) (public-release)")
    sys.exit(0)
report, how = options[options.index("--export") + 1], os.environ["FAKE_NCU"]
print("==PROF== Connected to process 1")
if how == "permission":
    print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters")
    sys.exit(1)
if how == "busy":
    print("==ERROR== Profiling failed because a driver resource was unavailable. Driver resource was unavailable.")
    sys.exit(1)
if how == "nothing":
    print("==WARNING== No kernels were profiled.")
    sys.exit(0)
if how == "crash":
    print("kernelproof: op/tiled: illegal memory access", file=sys.stderr)
    print("==ERROR== The application returned an error code (2).")
    sys.exit(2)
if how == "hang":
    time.sleep(60)
if how == "unknown" and "smsp__inst_executed_pipe_tensor.sum" in options[options.index("--metrics") + 1]:
    print("==ERROR== Failed to find metric smsp__inst_executed_pipe_tensor.sum")
    sys.exit(1)
if how != "silent":
    cost = {"flops": 2e6, "bytes_read": 3e5, "bytes_written": 1e5}
    print(json.dumps({"variant": "op/tiled", "case": "large-float16", "elapsed_ms": 1250.0, **cost}))
print("==PROF== Disconnected from process 1")
with open(report, "wb") as stream:
    if how != "empty":
        stream.write(b"NVR\x1f" + os.path.expanduser("~").encode() + b"/kernels/tiledJ")
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A finished run on a machine whose GPU and Nsight Compute are stand-ins."""
    ncu = tmp_path / "bin" / "ncu"
    ncu.parent.mkdir()
    ncu.write_text(NCU.replace("{python}", sys.executable))
    ncu.chmod(0o755)
    monkeypatch.setenv("KERNELPROOF_NCU", str(ncu))
    monkeypatch.setenv("FAKE_NCU", "good")
    monkeypatch.setattr(gpu, "available", lambda: (True, None))
    monkeypatch.setattr(gpu, "visible", lambda: [f"GPU-{tmp_path}"])  # a board of our own to hold
    test_nsight.install(monkeypatch, [[test_nsight.action()]])
    found = packed_run.make(tmp_path / "repo")
    # The runner makes its inputs itself; for another ABI a process with torch in it does, which takes 3 s.
    object.__setattr__(found.operators["op"].variants["tiled"], "abi", "python")
    return found


def profiled(config: Config, variant: str = "tiled") -> records.ProfileRecord:
    path = config.record("profile", "op", variant)
    record = profile.run(config, "op", variant, path)
    assert records.read(path, records.ProfileRecord) == record
    return record


def files(config: Config) -> list[str]:
    return sorted(path.name for path in (config.results / "profile/op").iterdir())


@pytest.mark.parametrize("abi", ["tvm_ffi", "python"])
def test_a_profile_with_its_report_and_counters(config: Config, abi: str) -> None:
    object.__setattr__(config.operators["op"].variants["tiled"], "abi", abi)
    record = profiled(config)
    assert (record.status, record.reason, record.tool_version) == ("ok", None, "2025.3.1.0")
    assert record.case == "large-float16"
    assert len(record.kernels) == 1
    assert files(config) == ["tiled.csv", "tiled.json", "tiled.ncu-rep"]
    assert record.report is not None
    report = config.root / record.report.path
    assert (records.sha256_file(report), report.stat().st_size) == (record.report.sha256, record.report.bytes)
    assert (config.root / str(record.csv)).read_text().startswith("launch,kernel,metric,unit,value\n0,kernel(float *),")
    assert "$ " in (config.root / str(record.log)).read_text()


def test_waiting_for_the_gpu_is_no_part_of_how_long_it_took(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    board = lease.lock(gpu.uuid_sha256(gpu.visible()[0]))
    assert board is not None
    gpu_lease = lease.gpu_lease

    def held_by_another(*arguments: Any) -> Any:
        threading.Timer(1.0, os.close, (board,)).start()
        return gpu_lease(*arguments)

    monkeypatch.setattr(lease, "gpu_lease", held_by_another)
    started = time.monotonic()
    record = profiled(config)
    assert record.status == "ok"
    assert time.monotonic() - started - record.duration_s >= 1.0  # however long the rest takes here


def test_no_home_folder_stays_in_the_report(config: Config, home: str) -> None:
    record = profiled(config)
    assert record.report is not None
    data = (config.root / record.report.path).read_bytes()
    assert home.encode() + b"/" not in data
    assert len(data) == len(b"NVR\x1f" + home.encode() + b"/kernels/tiledJ")


def test_the_runner_makes_one_call_of_the_profiled_shape(config: Config) -> None:
    operator = config.operators["op"]
    saved = config.root / "config.json"
    command = profile.runner(saved, operator.variants["tiled"], operator.profile, None)
    assert command[1:5] == ["-P", "-m", "kernelproof", "bench"]
    assert command[5:7] == ["--config", str(saved)]
    assert command[-8:] == ["--operator", "op", "--variant", "tiled", "--shape", "large", "--once", "--json"]
    folder = config.root / "inputs"
    command = profile.runner(saved, operator.variants["tiled"], operator.profile, folder)
    assert command[-3:] == ["--json", "--inputs", str(folder)]


def test_the_runner_is_told_what_was_overridden(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    collect, seen = profile._collect, []

    def collected(loaded: Config, ncu: Path, report: Path, target: list[str], *more: Any, **named: Any) -> Any:
        seen.append(configuration.load(Path(target[target.index("--config") + 1]), root=config.root))
        return collect(loaded, ncu, report, target, *more, **named)

    monkeypatch.setattr(profile, "_collect", collected)
    configuration.save(config, config.results / "config.json")  # of a run with other settings
    profiled(replace(config, archs=["sm_75"]))
    assert [one.archs for one in seen] == [["sm_75"]]


def test_the_runner_says_what_the_case_costs_and_how_long_the_passes_took(config: Config) -> None:
    record = profiled(config)
    assert record.cost == {"flops": 2e6, "bytes_read": 3e5, "bytes_written": 1e5}
    assert (record.replay_s, record.cache_control, record.role) == (1.25, "all", "variant")


def test_a_runner_that_says_nothing_leaves_the_cost_open(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCU", "silent")
    record = profiled(config)
    assert (record.status, record.cost, record.replay_s) == ("ok", {}, None)
    assert "cost_flops" not in record.kernels[0].roofline


def test_the_cost_model_places_it_under_the_roofline(config: Config) -> None:
    roofline = profiled(config).kernels[0].roofline
    assert roofline["cost_intensity"] == 5.0
    assert roofline["cost_flops_per_s"] == pytest.approx(2e6 / 52.576e-6)


@pytest.mark.parametrize(
    ("how", "reason", "remedy"),
    [
        ("permission", "ERR_NVGPUCTRPERM", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("busy", "another tool holds", "dcgmi profile --pause"),
    ],
)
def test_an_obstacle_is_recorded_with_its_remedy(
    config: Config, monkeypatch: pytest.MonkeyPatch, how: str, reason: str, remedy: str
) -> None:
    monkeypatch.setenv("FAKE_NCU", how)
    record = profiled(config)
    assert record.status == "not_run"
    assert reason in str(record.reason)
    assert remedy in str(record.remedy)
    assert files(config) == ["tiled.json"]  # the earlier run's report is not this record's


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("empty", "empty or was not written"),
        ("nothing", "no kernel was launched between the profiler's start and stop"),
        ("crash", "the variant failed under the profiler: kernelproof: op/tiled: illegal memory access"),
    ],
)
def test_a_failed_profile_says_why(config: Config, monkeypatch: pytest.MonkeyPatch, how: str, reason: str) -> None:
    monkeypatch.setenv("FAKE_NCU", how)
    record = profiled(config)
    assert record.status == "failed"
    assert reason in str(record.reason)
    assert files(config) == ["tiled.json"]


def test_a_metric_that_this_gpu_lacks_is_left_out_and_said(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCU", "unknown")
    record = profiled(config)
    assert (record.status, record.reason) == ("ok", "this GPU has no metric smsp__inst_executed_pipe_tensor.sum")
    assert record.kernels[0].metrics["smsp__inst_executed_pipe_tensor.sum"].value is None


def test_a_profile_that_hangs_is_killed(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCU", "hang")
    record = profiled(replace(config, profile=replace(config.profile, time_limit_s=0.5)))
    assert record.status == "failed"
    assert "ran past its limit of 0.5 s" in str(record.reason)


def test_a_gpu_that_another_one_holds_is_an_obstacle(config: Config, tmp_path: Path) -> None:
    """The same lock from another open file is another holder's."""
    held = lease.lock(gpu.uuid_sha256(f"GPU-{tmp_path}"))
    assert held is not None
    try:
        record = profiled(replace(config, bench=replace(config.bench, gpu_wait_s=0.0)))
    finally:
        os.close(held)
    assert record.status == "not_run"
    assert "another kernelproof" in str(record.reason)
    assert "bench.gpu_wait_s" in str(record.remedy)


def test_without_a_gpu(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "available", lambda: (False, "NVML Shared Library Not Found"))
    record = profiled(config)
    assert (record.status, record.reason) == ("not_run", "no NVIDIA GPU: NVML Shared Library Not Found")
    assert record.remedy


def test_without_nsight_compute(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELPROOF_NCU", "/nowhere/ncu")
    record = profiled(config)
    assert record.status == "not_run"
    assert "not installed" in str(record.reason)
    assert "nsight-compute" in str(record.remedy)


def test_without_the_reports_reader(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    monkeypatch.setattr(nsight, "installations", list)
    nsight.reader.cache_clear()
    record = profiled(config)
    assert record.status == "not_run"
    assert "pip install ncu-report" in str(record.remedy)


def test_a_cpu_variant_is_not_profiled(config: Config) -> None:
    record = profiled(config, "plain")
    assert record.status == "not_run"
    assert "runs on the CPU" in str(record.reason)


@pytest.mark.parametrize(
    ("stage", "kind", "changes", "reason"),
    [
        ("build", records.BuildRecord, {"status": "failed"}, "it was not built"),
        ("test", records.TestRecord, {"verdict": "hung"}, "its test hung"),
        ("test", records.TestRecord, {"verdict": "crashed"}, "its test crashed"),
    ],
)
def test_a_variant_that_cannot_run_is_not_profiled(
    config: Config, stage: str, kind: type[records.Record], changes: dict[str, str], reason: str
) -> None:
    path = config.record(stage, "op", "tiled")
    record = records.read(path, kind)
    for name, value in changes.items():
        setattr(record, name, value)
    records.write(path, record)
    assert profiled(config).reason == reason
