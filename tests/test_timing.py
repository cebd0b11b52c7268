"""Timing in the worker: who is timed when, until when, and what is handed over; without a GPU by the clock."""

import contextlib
import dataclasses
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelproof import footprint, gpu, images, timing
from kernelproof.operators import Call

SPIN = """
import time


def spin(x, y, us):
    end = time.perf_counter_ns() + int(us * 1000)
    y.copy_(x)
    while time.perf_counter_ns() < end:
        pass


def failing_later(x, y, us, calls=[0]):
    calls[0] += 1
    if calls[0] > 14:
        raise RuntimeError("enough")
    spin(x, y, us)


def limited(x, y, us):
    import resource

    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1 << 20:
        raise RuntimeError("its files have no limit")
    spin(x, y, us)


def settling(x, y, us, calls=[0]):
    calls[0] += 1
    spin(x, y, {1: 60_000, 2: 9_000, 3: 8_000}.get(calls[0], us))
"""


@pytest.fixture
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """timing keeps what it loaded for the life of a process; each test is one."""
    monkeypatch.setattr(timing, "_LOADED", {})
    monkeypatch.setattr(timing, "_PADS", [])


def measure(folder: Path, us: float, names: list[str], **plan: Any) -> dict[str, Any]:
    (folder / "spin.py").write_text(SPIN)
    call = Call({"x": torch.arange(64.0), "y": torch.zeros(64), "us": us}, outputs=("y",), axes=("i",))
    other = Call({"x": torch.ones(64), "y": torch.zeros(64), "us": us}, outputs=("y",), axes=("i",))
    common = {"abi": "python", "device": "cpu", "passing": "destination", "library": None, "root": str(folder)}
    settings = {"action": "time", "device": "cpu", "modes": ["hot"], "blocks": 3, "sample_ms": 1.0, "max_seconds": 0.5}
    where = {"seed": 1, "epoch": time.time(), "scratch": str(folder), "journal": str(folder / "journal")}
    case = {
        "id": "c",
        "contenders": names,
        "arguments": images.layout_images(call, folder / "timed").spec,
        "fresh": {"x": images.layout_images(other, folder / "fresh").spec["x"]},
        "outputs": ["y"],
    }
    contenders = [{"name": name, "entry": f"spin.py:{name}", **common} for name in names]
    return timing.measure(contenders, [case], {**settings, **where, **plan})


@pytest.mark.usefixtures("fresh_process")
def test_a_known_time_is_measured(tmp_path: Path) -> None:
    found = measure(tmp_path, 200.0, ["spin"], blocks=10)
    samples = found["samples"]
    columns = zip(samples["method"], samples["time_us"], samples["calls"], strict=True)
    spun = [(us, calls) for method, us, calls in columns if method == "cpu_clock"]
    assert 2 <= len(spun) <= 20  # fewer than ten blocks when others keep the machine busy and the budget is used up
    assert all(us >= 200 and 1 <= calls <= 5 for us, calls in spun)  # a batch is a millisecond
    assert min(spun)[0] < 300  # somebody else's work may lengthen a sample, but not all of them
    assert {len(column) for column in samples.values()} == {len(samples["block"])}
    json.dumps(found, allow_nan=False)


@pytest.mark.usefixtures("fresh_process")
def test_the_first_calls_do_not_decide_how_it_is_timed(tmp_path: Path) -> None:
    """The first sets things up for longer than the budget, and the next ones wait for somebody else's threads."""
    found = measure(tmp_path, 50.0, ["settling"], max_seconds=0.04, blocks=2)
    assert found["outcomes"] == []
    columns = zip(*(found["samples"][name] for name in ("method", "calls", "time_us")), strict=True)
    samples = [(calls, us) for method, calls, us in columns if method == "cpu_clock"]
    assert len(samples) >= 2
    assert all(calls > 3 and us < 5_000 for calls, us in samples), samples


@pytest.mark.usefixtures("fresh_process")
def test_blocks_go_forwards_and_backwards(tmp_path: Path) -> None:
    (tmp_path / "spin.py").write_text(SPIN)
    found = measure(tmp_path, 50.0, ["spin", "failing_later"], blocks=2)
    # failing_later raises while it is warmed up or later: it is out, by name, and spin goes on.
    assert [(o["contender"], o["outcome"], o["message"]) for o in found["outcomes"]] == [
        ("failing_later", "failed", "RuntimeError: enough")
    ]
    rows = list(zip(*(found["samples"][name] for name in ("block", "order", "contender", "method")), strict=True))
    assert [row for row in rows if row[2:] == ("spin", "cpu_clock")] != []
    assert {row[0] for row in rows if row[2:] == ("spin", "cpu_clock")} == {0, 1}


@pytest.mark.usefixtures("fresh_process")
def test_a_call_longer_than_the_budget_is_made_once(tmp_path: Path) -> None:
    started = time.monotonic()
    found = measure(tmp_path, 30_000.0, ["spin"], max_seconds=0.04, modes=["hot", "cold"])
    assert [outcome["outcome"] for outcome in found["outcomes"]] == ["slow"]
    assert found["samples"]["mode"] == ["hot"]
    assert found["samples"]["time_us"][0] >= 30_000
    assert time.monotonic() - started < 5


@pytest.mark.usefixtures("fresh_process")
def test_a_candidates_files_have_a_limit_whenever_it_runs(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        found = measure(tmp_path, 10.0, ["limited"], modes=["hot", "cold"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert found["outcomes"] == []
    assert len(found["outputs"]) == 6


@pytest.mark.usefixtures("fresh_process")
def test_outputs_are_handed_over_for_both_values(tmp_path: Path) -> None:
    found = measure(tmp_path, 10.0, ["spin"], modes=["hot", "cold"])
    values = {}
    for output in found["outputs"]:
        assert (output["tensors"], output["number"]) == ([["float32", [64]]], 0)
        values[output["mode"], output["version"]] = torch.frombuffer(
            bytearray(Path(output["path"]).read_bytes()), dtype=torch.float32
        )
    assert set(values) == {(mode, version) for mode in ("hot", "cold") for version in ("timed", "poisoned", "fresh")}
    for (_, version), value in values.items():
        assert torch.equal(value, torch.ones(64) if version == "fresh" else torch.arange(64.0))


@pytest.mark.usefixtures("fresh_process")
def test_a_contender_that_cannot_be_loaded_is_an_outcome(tmp_path: Path) -> None:
    found = measure(tmp_path, 10.0, ["spin", "missing"])
    assert [(o["contender"], o["outcome"]) for o in found["outcomes"]] == [("missing", "not_loaded")]
    assert "missing" not in found["samples"]["contender"]
    assert "spin" in found["samples"]["contender"]
    assert json.loads((tmp_path / "journal").read_text())[0] == "spin"


@pytest.mark.usefixtures("fresh_process")
@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_keeps_no_file_of_a_request_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    def lost(*_: object) -> None:
        raise timing.TimingError("the GPU cannot be used any more")

    if fails:
        monkeypatch.setattr(timing.Session, "case", lost)
    open_files = []
    for _ in range(4):
        with pytest.raises(timing.TimingError) if fails else contextlib.nullcontext():
            measure(tmp_path, 10.0, ["spin"], blocks=1, max_seconds=0.01)
        open_files.append(len(os.listdir("/proc/self/fd")))
    assert len(set(open_files)) == 1, open_files


def plan(**given: Any) -> timing.Plan:
    fixed = {"action": "time", "device": "cpu", "modes": ["hot"], "blocks": 3, "sample_ms": 1.0, "max_seconds": 1.0}
    return timing.Plan(**{**fixed, "seed": 0, "epoch": 0.0, "scratch": "", "journal": "", **given})


def stopping(spread: float, blocks: int, **given: Any) -> timing.Stopping:
    """Ours is 0.9 of the baseline; drift of tens of percent falls on both, `spread` on ours alone."""
    found = timing.Stopping(plan(**{"precision": 0.01, "baselines": ["base", "slow"], **given}))
    for block in range(blocks):
        drift = 1 + 0.3 * (block % 3)
        for _ in range(2):
            found.note("base", block, 10 * drift)
            found.note("slow", block, 30 * drift)
            found.note("ours", block, 9 * drift * (1 + spread * (-1) ** block))
    return found


def test_blocks_are_enough_when_the_ratio_is_known_although_times_drift() -> None:
    names = ["ours", "base", "slow"]
    assert stopping(0.001, 6).precise(names)
    assert not stopping(0.02, 6).precise(names)
    assert not stopping(0.001, 2).precise(names)  # two blocks have no spread to speak of
    assert not stopping(0.001, 6, precision=0.0).precise(names)
    (entry,) = [one for one in stopping(0.02, 6).account(names) if one["contender"] == "ours"]
    # Alternating by 2 %: the standard deviation is 0.0219, and Student's t for 6 blocks 2.571.
    assert entry["half_width"] == pytest.approx(2.571 * 0.0219 / 6**0.5, rel=0.01)
    assert (entry["ended"], entry["blocks"]) == ("budget", 6)
    assert {one["contender"] for one in stopping(0.001, 6).account(names)} == {"ours", "slow", "base"} - {
        "base",
        "slow",
    }
    assert stopping(0.001, 6, precision=0.0).account(names) == []


def test_without_a_baseline_the_time_itself_counts() -> None:
    found = stopping(0.0, 6, baselines=[])
    assert not found.precise(["ours"])
    assert found.account(["ours"])[0]["half_width"] > 0.1


@pytest.mark.usefixtures("fresh_process")
def test_blocks_go_on_until_the_budget_is_spent(tmp_path: Path) -> None:
    found = measure(tmp_path, 100.0, ["spin"], blocks=2, precision=1e-9, max_seconds=0.2)
    assert [(entry["contender"], entry["ended"]) for entry in found["stopping"]] == [("spin", "budget")]
    assert found["stopping"][0]["blocks"] > 2
    assert found["state_s"] < 0.05


@pytest.mark.usefixtures("fresh_process")
def test_blocks_end_where_the_time_is_known(tmp_path: Path) -> None:
    found = measure(tmp_path, 100.0, ["spin"], blocks=3, precision=0.9, max_seconds=5.0)
    (entry,) = found["stopping"]
    assert entry["ended"] == "precise"
    assert 3 <= entry["blocks"] < 20  # of the 64 that the budget holds, on a machine that others use too


GPU_COPY = """
def copy(x, y, us):
    y.copy_(x)
"""


@pytest.mark.gpu
@pytest.mark.skipif(not gpu.available()[0], reason=f"needs a GPU: {gpu.available()[1]}")
@pytest.mark.usefixtures("fresh_process")
def test_every_method_gives_its_time_on_a_gpu(tmp_path: Path) -> None:
    """All but the trace, which has a process of its own (test_cupti.py)."""
    before = gpu.compute_processes()  # judges of earlier tests
    (tmp_path / "copy.py").write_text(GPU_COPY)
    call = Call({"x": torch.rand(1 << 20), "y": torch.zeros(1 << 20), "us": 0.0}, outputs=("y",), axes=("i",))
    launch = {"name": "copy", "grid": [1024, 1, 1], "block": [256, 1, 1], "shared_bytes": 0, "count": 1.0}
    case = {
        "id": "c",
        "contenders": ["copy"],
        "arguments": images.layout_images(call, tmp_path / "timed").spec,
        "fresh": {},
        "outputs": ["y"],
    }
    common = {"abi": "python", "device": "cuda", "passing": "destination", "library": None, "root": str(tmp_path)}
    settings = dict.fromkeys(("scratch", "journal"), str(tmp_path)) | {"journal": str(tmp_path / "journal")}
    found = timing.measure(
        [{"name": "copy", "entry": "copy.py:copy", **common}],
        [case],
        dataclasses.asdict(
            plan(
                device="cuda",
                modes=["hot", "cold"],
                energy=True,
                launches={"copy": {"c": [launch]}},
                precision=0.01,
                **settings,
            )
        ),
    )
    print(json.dumps({**found, "samples": len(found["samples"]["method"])}, indent=1))
    assert found["outcomes"] == []
    median = {
        (mode, method): sorted(
            us
            for m, by, us in zip(*(found["samples"][n] for n in ("mode", "method", "time_us")), strict=True)
            if (m, by) == (mode, method)
        )
        for mode, method in set(zip(found["samples"]["mode"], found["samples"]["method"], strict=True))
    }
    times = {key: values[len(values) // 2] for key, values in median.items()}
    assert {method for mode, method in times if mode == "hot"} == {
        *("graph_slope", "wall_slope", "eager", "event_pair", "floor", "floor_event_pair")
    }
    assert times["hot", "wall_slope"] == pytest.approx(times["hot", "graph_slope"], rel=0.2, abs=0.5)
    assert times["hot", "floor"] < times["hot", "graph_slope"] < times["cold", "graph_slope"] * 1.05
    (used,) = found["energy"]
    assert used.get("reason") or 1e-6 < used["joules_per_call"] < 0.1
    assert (found["neighbours"] or 0) <= len(before or ())  # None where NVML shows no process
    assert all(clock for clock in found["samples"]["sm_clock_mhz"])


def test_a_contender_is_timed_when_the_one_before_has_come_to_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who spins for a while after its calls slows the others."""
    program = "import time\nprint(flush=True)\nuntil = float(input())\nwhile time.monotonic() < until: pass"
    given = dataclasses.asdict(plan(scratch=str(tmp_path), journal=str(tmp_path / "journal")))
    with timing.open_session(given) as session:
        for limit_s, quiet in ((30.0, True), (0.2, False)):
            session.quiet_left_s = limit_s
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            with subprocess.Popen([sys.executable, "-c", program], **pipes) as child:
                assert child.stdin
                assert child.stdout
                child.stdout.readline()  # a crowded machine can take a second to start it
                until = time.monotonic() + 1.0
                print(until, file=child.stdin, flush=True)
                family = [os.getpid(), child.pid]
                monkeypatch.setattr(footprint, "members", lambda *_, family=family: family)
                session.wait_until_quiet("spins", "case", "hot")
                assert (time.monotonic() >= until) is quiet
            told = [(entry["contender"], entry["outcome"]) for entry in session.found.outcomes]
            assert told == ([] if quiet else [("spins", "restless")])
