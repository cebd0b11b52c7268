"""Which calls are sealed and which are not: descriptions taken from a process, and the ladder that goes by them."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from defects import project

from kernelproof import builds, config, records, sass, supervisor, test, toolchain
from kernelproof.config import Config, VariantConfig
from kernelproof.errors import ToolError, WorkerCrashed, WorkerReplyError
from kernelproof.ladder import sealing
from kernelproof.ladder.calling import Calls
from kernelproof.ladder.sealing import Sealer
from kernelproof.ladder.selection import RungCases
from kernelproof.processes import run
from kernelproof.records import BuildRecord, Cubin, KernelResources, TestRecord

# --- machine code -----------------------------------------------------------------------------------------------------

KERNELS = {
    "pure": ("__global__ void k(float *p) { p[threadIdx.x] = 1; }", []),
    "says": ('#include <cstdio>\n__global__ void k(int n) { printf("%d\\n", n); }', []),
    "sine": ("__global__ void k(float *p) { *p = sinf(*p * 1e6f); }", []),
    "counts": (
        "__device__ int calls;\n__global__ void k(float *p) { *p = atomicAdd(&calls, 1); }",
        ["the device variable calls"],
    ),
    "table": (
        "__constant__ float table[4];\n__global__ void k(float *p, int n) { *p = table[n]; }",
        ["the device variable table"],
    ),
    "heap": (
        "__global__ void k(float **p, int n) { p[n] = static_cast<float *>(malloc(n)); }",
        ["a call of the device's malloc"],
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_what_a_kernel_rests_on_beside_its_parameters(tmp_path: Path, name: str) -> None:
    try:
        nvcc = toolchain.find_cuda().tools["nvcc"].path
    except ToolError as error:
        pytest.skip(f"there is no CUDA compiler: {error}")
    source, state = KERNELS[name]
    (tmp_path / "k.cu").write_text(source)
    run([str(nvcc), "-arch=sm_90a", "-cubin", "-o", str(tmp_path / "k.cubin"), str(tmp_path / "k.cu")])
    assert sass.state_of((tmp_path / "k.cubin").read_bytes()) == state


PADDED = """
struct Padded { void *pointer; bool flag; int number; bool last; };
extern "C" const char *start(const Padded &padded);
"""
LAUNCHER = """
#include "common/cuda_launch.h"
#include "padded.h"
__global__ void kernel(Padded padded) { if (padded.flag) *static_cast<int *>(padded.pointer) = padded.number; }
const char *start(const Padded &padded) { return launch_kernel("k", kernel, {1, 32}, {true, 0}, nullptr, padded); }
"""


def test_launchers_hand_over_no_garbage_between_members(tmp_path: Path) -> None:
    """Two calls that are alike could not be told to be, and would have no description."""
    try:
        cuda = toolchain.find_cuda()
    except ToolError as error:
        pytest.skip(f"there is no CUDA compiler: {error}")
    (tmp_path / "padded.h").write_text("#pragma once\n" + PADDED)
    (tmp_path / "k.cu").write_text(LAUNCHER)
    compiler, here = str(toolchain.find_host_compiler(None).path), Path(__file__).resolve().parent
    flags = ["-O3", "-std=c++17", "-arch=sm_90a", f"-I{here.parent / 'csrc'}", f"-I{tmp_path}"]
    objects = [str(tmp_path / "k.o"), str(tmp_path / "fake.o")]
    run([str(cuda.tools["nvcc"].path), *flags, "-ccbin", compiler, "-c", str(tmp_path / "k.cu"), "-o", objects[0]])
    run([compiler, f"-I{tmp_path}", "-c", str(here / "fixtures" / "fake_runtime.cc"), "-o", objects[1]])
    run([compiler, *objects, "-o", str(tmp_path / "program")])
    assert run([str(tmp_path / "program")]).stdout == "ff" * 8 + "01000000" + "07000000" + "0100000000000000"


def cubin(arch: str, path: str = "", kernels: tuple[str, ...] = ()) -> Cubin:
    resources = [KernelResources(name, name, 0, 0, 0, 0, 0, 0, "") for name in kernels]
    return Cubin(arch, path or f"b/{arch}.cubin", "", 0, "", kernels=resources)


@pytest.mark.parametrize(
    ("archs", "native", "chosen"),
    [
        (["sm_89", "sm_90a"], ["sm_90a"], ["sm_90a"]),
        (["sm_90", "sm_90a"], ["sm_90a"], ["sm_90a"]),
        (["sm_80", "sm_86", "sm_90a"], ["sm_89"], ["sm_86"]),
        (["sm_89"], ["sm_90a"], []),
        (["sm_90a"], ["sm_100a"], []),
        (["sm_100a", "sm_100"], ["sm_103a"], ["sm_100"]),
        (["sm_90a"], [], []),
        (["sm_90a"], ["sm_89", "sm_90a"], []),
    ],
)
def test_the_cubin_is_the_one_that_the_gpu_would_run(archs: list[str], native: list[str], chosen: list[str]) -> None:
    assert [found.arch for found in builds.cubins_for([cubin(arch) for arch in archs], native)] == chosen


def test_each_source_of_a_library_has_its_own_cubin() -> None:
    names = ["0-sm_89", "0-sm_90a", "1-sm_90a", "2-sm_90", "2-sm_90a"]
    found = builds.cubins_for([cubin(name[2:], f"b/{name}.cubin") for name in names], ["sm_90a"])
    assert [one.path for one in found] == ["b/0-sm_90a.cubin", "b/1-sm_90a.cubin", "b/2-sm_90a.cubin"]


# --- descriptions -----------------------------------------------------------------------------------------------------


class Process:
    """Answers as it is told to, in place of a worker that holds a library."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []
        self.closed = 0

    def request(self, command: str, *, timeout_s: float, outline: dict[str, Any], unread: dict[str, Any]) -> Any:
        assert command == "describe"
        assert unread == {}  # these kernels' parameters are all read
        self.asked.append(outline)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed += 1


def outline(rows: int) -> dict[str, Any]:
    return {"x": {"offset": 4096, "bytes": 9000, "dtype": "float32", "shape": [rows, 4], "strides": [4, 1]}, "eps": 0.5}


def steps(name: str = "_Z1kPf") -> dict[str, Any]:
    kernel = {"name": name, "grid": [1, 1, 1], "block": [32, 1, 1]}
    return {
        "steps": [{"parameters": "00" * 8, "addresses": [{"at": 0, "argument": "x", "offset": 4096}], "kernel": kernel}]
    }


@pytest.fixture
def sealer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sealer:
    """Of a variant with one cubin that has one kernel."""
    monkeypatch.setattr(toolchain, "native_archs", lambda: ("sm_90a",))
    monkeypatch.setattr(sass, "state_of", lambda data: [])
    (tmp_path / "k.cubin").write_bytes(b"machine code")
    found = cubin("sm_90a", "k.cubin", ("_Z1kPf",))
    found.sha256 = records.sha256_file(tmp_path / "k.cubin")
    return Sealer(tmp_path, variant(tmp_path), BuildRecord(cubins=[found]))


def variant(folder: Path) -> VariantConfig:
    return project(folder / "project", "good").operator("rmsnorm").variant("good")


def test_calls_that_launch_alike_are_described_once(sealer: Sealer) -> None:
    process = Process(steps(), {"reason": "it queues a copy of memory"})
    left = sealer.describe({"a": outline(1), "b": outline(1), "c": outline(2)}, lambda: process, 1.0)
    assert left == [("c", "it queues a copy of memory")]
    assert len(process.asked) == 2
    launched = sealer.launches(["a", "b"])
    assert launched is not None
    assert [[step["kernel"]["name"] for step in steps] for steps in launched] == [["_Z1kPf"]] * 2
    assert sealer.launches(["a", "c"]) is None


def test_the_record_says_how_many_calls_were_sealed_and_why_others_were_not(sealer: Sealer) -> None:
    process = Process(steps(), {"reason": "why"}, {"refused": "not for me"})
    sealer.describe({"a": outline(1), "b": outline(2), "c": outline(3)}, lambda: process, 1.0)
    assert sealer.refusal(["a", "c"]) == "not for me"
    assert sealer.refusal(["a", "b"]) is None
    sealer.ran(["a"], sealed=True)
    sealer.ran(["a", "b"], sealed=False)  # in one request: the same process for both
    found = sealer.record()
    assert (found.sealed, found.library) == (1, 2)
    assert [(left.reason, left.calls, left.first) for left in found.left] == [("why", 2, "a")]
    assert [file.path for file in found.cubins] == ["k.cubin"]
    kept = json.loads(sealer.evidence() or "")
    assert kept["schema"] == "kernelproof.launches/1"
    assert [kind["calls"] for kind in kept["kinds"]] == [["a"]]
    assert kept["kinds"][0]["steps"][0]["addresses"] == [{"at": 0, "argument": "x", "offset": 4096}]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (steps("_Z5otherPf"), "it launches _Z5otherPf, which is in none of the build's cubins"),
        ({"steps": []}, "it launches 0 kernels and fills"),
        ({}, "a description that is none"),
        (["steps"], "its process gave no description"),
        (WorkerReplyError("CUDA error: an illegal memory access"), "was to describe it failed: CUDA error"),
        (WorkerCrashed(-11), "was killed by SIGSEGV"),
    ],
)
def test_a_process_is_not_believed(sealer: Sealer, answer: Any, reason: str) -> None:
    process = Process(answer)
    left = sealer.describe({"a": outline(1)}, lambda: process, 1.0)
    assert reason in left[0][1]
    assert process.closed == isinstance(answer, WorkerReplyError)
    assert sealer.launches(["a"]) is None


def test_a_process_that_fails_again_and_again_is_left_alone(sealer: Sealer) -> None:
    process = Process(*[WorkerCrashed(-11)] * 3)
    left = sealer.describe({str(rows): outline(rows) for rows in range(9)}, lambda: process, 1.0)
    assert len(process.asked) == 3
    assert left[-1][1] == "the process that described its calls failed 3 times"


def test_what_bars_every_call_is_said_without_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "native_archs", lambda: ("sm_90a",))
    (tmp_path / "k.cubin").write_bytes(b"no machine code")
    good = variant(tmp_path)

    def reason(found: list[Cubin], chosen: VariantConfig = good) -> str:
        sealer = Sealer(tmp_path, chosen, BuildRecord(cubins=found))
        return sealer.describe({"a": outline(1)}, lambda: Process(), 1.0)[0][1]

    one = cubin("sm_90a", "k.cubin", ("_Z1kPf",))
    assert reason([cubin("sm_90a")]) == "its build has no kernel of its own for this GPU (sm_90a)"
    assert reason([cubin("sm_89", kernels=("_Z1kPf",))]) == "its build has no kernel of its own for this GPU (sm_90a)"
    assert reason([one], dataclasses.replace(good, passing="return")) == "it returns its outputs in memory of its own"
    assert reason([one]) == "k.cubin is not the file that the build made (its SHA-256 differs); build it again"
    one.sha256 = records.sha256_file(tmp_path / "k.cubin")
    assert "k.cubin cannot be read: not a 64-bit" in reason([one])
    monkeypatch.setattr(sass, "state_of", lambda data: ["the device variable calls"])
    assert reason([one]) == "beside its parameters it rests on the device variable calls"


# --- on the ladder ----------------------------------------------------------------------------------------------------
# Here a CPU kernel stands for one that can be sealed, and its library makes the sealed calls too.


def climbed(settings: Config) -> TestRecord:
    test.run(settings, "rmsnorm", ["good"], settings.results / "test" / "rmsnorm")
    return records.read(settings.record("test", "rmsnorm", "good"), TestRecord)


@pytest.fixture
def sealable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VariantConfig, "sealable", property(lambda self: True))


def test_a_variant_that_cannot_be_sealed_says_why(
    tmp_path: Path, sealable: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = climbed(project(tmp_path, "good", sealed="auto"))
    assert (record.verdict, record.trust) == ("correct", "library"), record.reason
    assert record.sealing is not None
    assert (record.sealing.sealed, record.sealing.launches) == (0, None)
    assert [left.reason for left in record.sealing.left] == [
        "its build has no kernel of its own for this GPU (an unknown architecture)"
    ]
    assert record.sealing.library >= len(record.cases)


def test_where_sealing_is_required_nothing_else_runs(tmp_path: Path, sealable: None) -> None:
    record = climbed(project(tmp_path, "good", sealed="required"))
    assert (record.status, record.verdict) == ("not_run", "not_run")
    assert "test.sealed is required, and even-float32-normal-s0 cannot be run from the cubin alone" in (
        record.reason or ""
    )
    assert [rung.name for rung in record.rungs if rung.status == "passed"] == ["build", "load"]
    assert record.sealing is not None
    assert (record.sealing.sealed, record.sealing.library) == (0, 0)


def test_where_sealing_is_not_wanted_nothing_is_described(tmp_path: Path, sealable: None) -> None:
    record = climbed(project(tmp_path, "good", sealed="never"))
    assert (record.verdict, record.trust, record.sealing) == ("correct", "library", None), record.reason


def test_a_variant_that_cannot_be_sealed_keeps_its_process(
    tmp_path: Path, sealable: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starting one takes longer than a call."""
    spawned, spawn = list[int](), supervisor.WorkerHost.spawn

    def counted(self: supervisor.WorkerHost, *given: Any, **named: Any) -> supervisor.Worker:
        spawned.append(1)
        return spawn(self, *given, **named)

    monkeypatch.setattr(supervisor.WorkerHost, "spawn", counted)
    monkeypatch.setattr(Sealer, "_barred", lambda *_: "it keeps a device variable")
    counts = {}
    for mode in ("never", "auto"):
        spawned.clear()
        record = climbed(project(tmp_path / mode, "good", sealed=mode))
        assert record.verdict == "correct", record.reason
        counts[mode] = len(spawned)
        assert bool(record.sealing and record.sealing.library) == (mode == "auto")
    assert counts["auto"] == counts["never"]


def test_who_describes_a_call_has_made_none(tmp_path: Path, sealable: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a call is met that nobody described ahead, and the library's process is at work."""
    ran, describers, request = set[int](), list[int](), supervisor.Worker.request

    def noted(self: supervisor.Worker, command: str, **payload: Any) -> Any:
        if command == "run":
            ran.add(self.pid)
        return request(self, command, **payload)

    def described(self: Sealer, asked: dict[str, Any], worker: Any, limit_s: float) -> sealing.Described:
        describers.append(worker().pid)
        assert describers[-1] not in ran
        return sealing.Described(reason="it keeps a device variable")

    monkeypatch.setattr(Sealer, "_barred", lambda *_: "")
    monkeypatch.setattr(Sealer, "_described", described)
    monkeypatch.setattr(supervisor.Worker, "request", noted)
    monkeypatch.setattr(RungCases, "judged_jobs", lambda self: [])
    record = climbed(project(tmp_path, "good", sealed="auto"))
    assert record.verdict == "correct", record.reason
    assert len(set(describers)) > 1


@pytest.mark.parametrize("kept", ["all", "float32-normal"])
def test_the_ladder_seals_what_is_described(
    tmp_path: Path, sealable: None, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    ready, loaded = Calls.ready_worker, []
    monkeypatch.setattr(Sealer, "_barred", lambda *_: "")

    def described(self: Sealer, asked: dict[str, Any], worker: Any, limit_s: float) -> sealing.Described:
        worker()
        if kept != "all" and asked["x"]["shape"][0] == 3:
            return sealing.Described(reason="it is tiny")
        return sealing.Described(steps()["steps"])

    def library_instead(self: Calls, *, sealed: bool = False, awake: bool = False) -> Any:
        if self._holds_cubins != sealed:
            self.leave()
            self._holds_cubins = sealed
        fresh = self._worker is None
        kind, self._holds_cubins = self._holds_cubins, False
        worker = ready(self, awake=awake)
        self._holds_cubins = kind
        if fresh:
            loaded.append("cubins" if sealed else "library")
        return worker

    monkeypatch.setattr(Sealer, "_described", described)
    monkeypatch.setattr(Calls, "ready_worker", library_instead)
    settings = project(tmp_path, "good", sealed="auto")
    climbed_by_a_team = len(os.sched_getaffinity(0)) > 1
    record = climbed(settings)
    assert record.verdict == "correct", record.reason
    assert record.sealing is not None
    assert record.sealing.launches is not None
    assert records.sha256_file(settings.root / record.sealing.launches.path) == record.sealing.launches.sha256
    written = json.loads((settings.root / record.sealing.launches.path).read_text())
    assert sum(len(kind["calls"]) for kind in written["kinds"]) == record.sealing.sealed > 0
    if kept == "all":
        assert (record.trust, record.sealing.library) == ("sealed", 0)
        # Described; launch and sanity; correctness and slow inputs; what shows between calls, and then of other sizes.
        # Then, where threads may race, repeats by threads that are awake.
        assert loaded == ["library", "cubins", "cubins", "library", "library"] + ["library"] * climbed_by_a_team
        slow = {p.case for p in record.properties if (p.name, p.status) == ("zero-copy", "passed")}
        assert "odd" in {case.partition("-")[0] for case in slow}, record.properties
    else:
        assert record.trust == "library"
        assert {left.reason for left in record.sealing.left} == {"it is tiny"}


def test_settings_decide_who_can_be_sealed() -> None:
    settings = config.load(Path(__file__).resolve().parents[1] / "config.yaml")
    attention = settings.operator("attention")
    assert settings.test.sealed == "auto"
    assert attention.variant("fp16_wgmma").sealable
    assert not attention.variant("cpu_flash").sealable
    assert not attention.variant("sdpa_flash").sealable
