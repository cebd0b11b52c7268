"""Who made which of the launches that Nsight Compute lists, and the calls that it is given to look at."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelproof import counters, gpu, images, nsight, processes
from kernelproof.errors import ProfileError
from kernelproof.operators import Call

MADE = {"contender": "ours", "case": "c", "mode": "cold", "calls": 2, "kernels": 1, "floor": 1}
TWO = {"contender": "theirs", "case": "c", "mode": "hot", "calls": 1, "kernels": 2, "floor": 2}
MANY = {"contender": "many", "case": "c", "mode": "hot", "calls": 2, "kernels": 3, "floor": 1}


def launch(kernel: str, dram_bytes: float = 0.0, us: float = 1.0, mhz: float = 1000.0) -> nsight.Launch:
    return nsight.Launch(kernel, {counters.DRAM_READ: dram_bytes, nsight.DURATION: 1e3 * us, counters.CYCLES: us * mhz})


EMPTY = launch(counters.FLOOR, us=1.5)


def test_launches_are_told_apart_by_the_floors_between_them() -> None:
    listed = [EMPTY, launch("a", 1000, 3.0, 1500), launch("a", 1010, 3.2, 1600)]
    listed += [EMPTY, EMPTY, launch("split", 50, 2.0, 1200), launch("combine", 7, 1.0, 900)]
    listed += [EMPTY, *[launch(name, 1, 1.0) for name in ("x", "y", "z")] * 2]
    ours, theirs, many = counters.counted([MADE, TWO, MANY], listed)
    assert (ours.dram_bytes, ours.duration_us, ours.floor_us) == ([1000, 1010], [3.0, 3.2], 1.5)
    assert ours.sm_clock_mhz == pytest.approx(1550)
    assert (theirs.contender, theirs.dram_bytes, theirs.duration_us, theirs.floor_us) == ("theirs", [57], [3.0], 3.0)
    assert theirs.sm_clock_mhz == pytest.approx(1100)
    assert (many.dram_bytes, many.duration_us, many.floor_us) == ([3, 3], [3.0, 3.0], None)


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ([EMPTY, launch("a")], "ours, c, cold: ncu lists other launches"),  # one call is missing
        ([launch("a"), launch("a"), EMPTY], "ours, c, cold: ncu lists other"),  # it begins with no floor
        ([EMPTY], "ours, c, cold: ncu lists other"),  # calls without a kernel
        ([], "ours, c, cold: ncu lists other"),
        ([EMPTY, launch("a"), launch("a"), EMPTY], "kernelproof_empty: ncu lists more launches"),
    ],
)
def test_a_list_of_something_else_is_refused(listed: list[nsight.Launch], words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        list(counters.counted([MADE], listed))


CANDIDATE = """
import torch
def double(x):
    print("double", x.data_ptr() % 2**31, flush=True)
    return x + x
def choosy(x):
    raise NotImplementedError("not this shape")
def tired(x, calls=[0]):
    calls[0] += 1
    if calls[0] > 2:
        raise RuntimeError("enough")
    return x + x
"""


def task(folder: Path, device: str, entries: Mapping[str, str], kernels: int = 1) -> tuple[list[Any], list[Any]]:
    """Contenders of a module in a folder, and one case of 1 MiB."""
    (folder / "candidate.py").write_text(CANDIDATE)
    call = Call({"x": torch.ones(1 << 18), "y": torch.empty(1 << 18)}, outputs=("y",), axes=("place",))
    spec = images.layout_images(call, folder / "images").spec
    fields = {"abi": "python", "device": device, "passing": "return", "library": None, "root": str(folder)}
    contenders = [{**fields, "name": name, "entry": f"candidate.py:{entry}"} for name, entry in entries.items()]
    traced = {"grid": [256, 1, 1], "block": [256, 1, 1], "cluster": [], "shared_bytes": 0, "count": kernels}
    launches = {name: [traced] for name in entries}
    case = {"id": "c", "arguments": spec, "outputs": ["y"], "contenders": list(entries), "launches": launches}
    return contenders, [case]


def test_the_process_goes_through_a_rotation_and_leaves_out_who_declines(tmp_path: Path) -> None:
    contenders, cases = task(tmp_path, "cpu", {"double": "double", "choosy": "choosy", "tired": "tired"})
    said = tmp_path / "said.json"
    given = {"modes": ["cold", "hot"], "contenders": contenders, "cases": cases, "said": str(said)}
    (tmp_path / "task.json").write_text(json.dumps(given))
    command = [sys.executable, "-m", "kernelproof.counters", "cpu", str(tmp_path / "task.json"), str(os.getpid())]
    environment = {**os.environ, "PYTHONPATH": processes.python_path()}
    printed = processes.run(command, env=environment, timeout_s=120).stdout.splitlines()
    found = json.loads(said.read_text())
    assert [(one["contender"], one["mode"], one["calls"]) for one in found["made"]] == [
        ("double", "cold", 2),
        ("double", "hot", 2),
    ]
    assert {one["contender"]: one["reason"] for one in found["left_out"]} == {
        "choosy": "NotImplementedError: not this shape",
        "tired": "RuntimeError: enough",
    }
    places = [line for line in printed if line.startswith("double")]
    hot = counters.WARM_CALLS + counters.CALLS
    cold = places[:-hot]
    sets = len(set(cold))
    assert sets > 1
    assert cold == [*cold[:sets], *cold[:2]]  # every set once, then from the one that was used longest ago
    assert len(set(places[-hot:])) == 1


def test_without_ncu_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsight, "find_ncu", lambda: None)
    with pytest.raises(ProfileError, match="not installed") as caught:
        counters.Counting("cuda", tmp_path, tmp_path / "log")
    assert "KERNELPROOF_NCU" in str(caught.value.hint)


@pytest.mark.parametrize(
    "said",
    [
        "{",
        "[]",
        '{"made": [], "left_out": [{"contender": "stranger", "case": "c", "reason": ""}]}',
        json.dumps({"made": [{**MADE, "contender": "double", "calls": 9}], "left_out": []}),
        json.dumps({"made": [{**MADE, "contender": "double", "kernels": 0.5, "floor": -1}], "left_out": []}),
    ],
)
def test_a_contender_that_garbles_what_was_made_gives_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """An ncu that runs nothing, and leaves what a contender could have written."""
    contenders, cases = task(tmp_path, "cpu", {"double": "double"})
    folder, program = tmp_path / "c", tmp_path / "ncu"
    folder.mkdir()
    (folder / "written").write_text(said)
    program.write_text(f"#!/bin/sh\ncp {folder}/written {folder}/said.json\n")
    program.chmod(0o755)
    monkeypatch.setattr(nsight, "find_ncu", lambda: program)
    with (
        counters.Counting("cuda", folder, tmp_path / "log") as counting,
        pytest.raises(ProfileError, match="garbled what it says"),
    ):
        counting.count(["cold", "hot"], contenders, cases)


INTO_TABLE = 'while [ "$1" != --log-file ]; do shift; done'


@pytest.mark.parametrize(
    ("script", "words", "remedy"),
    [
        ("echo '==ERROR== ERR_NVGPUCTRPERM'; exit 1", "does not permit", "NVreg_RestrictProfilingToAdminUsers"),
        (f"{INTO_TABLE}; echo '==ERROR== ERR_NVGPUCTRPERM' > $2", "does not permit", "NVreg_Restrict"),
        (f"{INTO_TABLE}; echo '==ERROR== boom' > $2; exit 9", "ncu ended with exit code 9: boom", "counters.log"),
        ("echo '==ERROR== boom'; exit 9", "ncu ended with exit code 9: boom", "counters.log"),
    ],
)
def test_what_stands_in_the_way_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str, remedy: str
) -> None:
    program = tmp_path / "ncu"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(nsight, "find_ncu", lambda: program)
    with (
        counters.Counting("cuda", tmp_path / "c", tmp_path / "counters.log") as counting,
        pytest.raises(ProfileError, match=words) as caught,
    ):
        counting.count(["cold"], [], [])
    assert remedy in str(caught.value.hint)


PRESENT, WHY = gpu.available()


@pytest.mark.gpu
@pytest.mark.skipif(not PRESENT, reason=f"needs a GPU: {WHY}")
def test_cold_calls_read_their_input_from_memory_and_hot_ones_do_not(tmp_path: Path) -> None:
    if nsight.find_ncu() is None:
        pytest.skip("ncu is not installed")
    contenders, cases = task(tmp_path, "cuda", {"double": "double"})
    with counters.Counting("cuda", tmp_path / "c", tmp_path / "log") as counting:
        found, left_out = counting.count(["cold", "hot"], contenders, cases)
    print(found)
    assert left_out == []
    by_mode = {one.mode: one for one in found}
    assert min(by_mode["cold"].dram_bytes) >= 0.98 * (1 << 20)
    assert max(by_mode["hot"].dram_bytes) < 0.1 * (1 << 20)
    assert all(one.floor_us and 0.3 < one.floor_us < min(one.duration_us) for one in found)
