"""What Nsight Compute counts in the calls that a benchmark times: bytes that come from memory, and time; hot and cold.

A process under ncu (`python -m kernelproof.counters TASK`) rotates sets of inputs as timing.py does, a whole rotation
first, and then makes a few calls on those that were used longest ago. Nothing empties a cache and no clock is changed:
whether a cold call was cold is the question. One pass counts everything. Before and after each call lies its floor,
empty kernels of the same launch, which also tells calls apart in ncu's list.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof import nsight, processes
from kernelproof.errors import ProfileError
from kernelproof.records import atomic_write

if TYPE_CHECKING:
    from kernelproof.timing import ArgumentSets, Function

DRAM_READ, CYCLES = "dram__bytes_read.sum", "sm__cycles_elapsed.max"
METRICS = (DRAM_READ, nsight.DURATION, CYCLES)
CALLS = {"cold": 2, "hot": 1}  # that are counted
WARM_CALLS = 3  # before them, at least
LAUNCHES_LIMIT = 8  # of a call: each costs ncu some ms, and each of its floor's as many
FLOOR = "kernelproof_empty"  # timing.EmptyKernels
LIMIT_S = 300.0


@dataclass(frozen=True)
class Counted:
    """The calls of one contender on one case in one mode, each as the sum of its kernels.

    dram_bytes: that a call read from memory. floor_us: of each floor around them. sm_clock_mhz: while its kernels ran.
    """

    contender: str
    case: str
    mode: str
    dram_bytes: list[float]
    duration_us: list[float]
    floor_us: list[float]
    sm_clock_mhz: float


@dataclass(frozen=True)
class LeftOut:
    """A contender whose calls on a case are not counted, and why."""

    contender: str
    case: str
    reason: str


def count(
    device: str,
    modes: Sequence[str],
    contenders: Sequence[Mapping[str, Any]],
    cases: Sequence[Mapping[str, Any]],
    folder: Path,
    log: Path,
) -> tuple[list[Counted], list[LeftOut]]:
    """Have the calls made under ncu, and read what it counted.

    contenders: `name` and the fields of loading.Candidate. cases: as timing.measure takes them, each also with
    `launches`: the kernels of a call by contender, as they were traced. folder: for what is written on the way.
    Raises ProfileError, with the remedy as its hint, and ToolError.
    """
    if (ncu := nsight.find_ncu()) is None:
        raise ProfileError(nsight.NOT_INSTALLED.reason, subject="ncu", hint=nsight.NOT_INSTALLED.remedy)
    folder.mkdir(parents=True, exist_ok=True)
    task, said, report = (folder / name for name in ("task.json", "said.json", "counters.ncu-rep"))
    parts = {"device": device, "modes": list(modes), "contenders": list(contenders), "cases": list(cases)}
    atomic_write(task, json.dumps({**parts, "said": str(said)}))
    target = [sys.executable, "-P", "-m", "kernelproof.counters", str(task)]
    command = nsight.command(ncu, report, target, [], METRICS, cache_control="none", most=None, source=False)
    environment = {**os.environ, "PYTHONPATH": processes.python_path(), "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}
    done = processes.run(command, env=environment, timeout_s=LIMIT_S, log=log, check=False)
    printed = done.stdout + done.stderr
    if (obstacle := nsight.obstacle(printed)) and not report.is_file():
        raise ProfileError(obstacle.reason, subject="ncu", hint=obstacle.remedy)
    if done.returncode != 0 or not report.is_file() or not said.is_file():
        raise ProfileError(nsight.what_went_wrong(printed, done.returncode), log=log, hint=f"{log} has the whole story")
    made = json.loads(said.read_text(encoding="utf-8"))
    found = list(counted(made["made"], nsight.exported(ncu, report, METRICS)))
    return found, [LeftOut(**entry) for entry in made["left_out"]]


def counted(made: Sequence[Mapping[str, Any]], launches: Sequence[nsight.Launch]) -> Iterator[Counted]:
    """Who made which of the launches that ncu lists: by their order, and by the floors between the calls.

    made: `contender`, `case`, `mode`, `calls`, and `floor`, the launches of one. Raises ProfileError where the list
    holds something else.
    """
    left = iter(launches)
    for entry in made:
        floors, calls = [_sum(itertools.islice(left, entry["floor"]))], []
        for _ in range(entry["calls"]):
            mine: list[nsight.Launch] = []
            empty: list[nsight.Launch] = []
            for launch in left:
                if launch.kernel == FLOOR:
                    empty.append(launch)
                    break
                mine.append(launch)
            calls.append(_sum(mine))
            floors.append(_sum([*empty, *itertools.islice(left, entry["floor"] - 1)]))
        where = f"{entry['contender']}, {entry['case']}, {entry['mode']}"
        if {names for *_, names in floors} != {(FLOOR,)} or any(FLOOR in names for *_, names in calls):
            raise ProfileError("ncu lists other launches than were made", subject=where)
        dram_bytes, duration_us, clocks, _ = zip(*calls, strict=True)
        if not all(duration_us):
            raise ProfileError("ncu lists no kernel of a call", subject=where)
        yield Counted(
            entry["contender"],
            entry["case"],
            entry["mode"],
            list(dram_bytes),
            list(duration_us),
            [us for _, us, _, _ in floors],
            statistics.median(clocks),
        )


def _sum(launches: Sequence[nsight.Launch] | Iterator[nsight.Launch]) -> tuple[float, float, float, tuple[str, ...]]:
    """Bytes, µs, MHz and the different names of some launches."""
    listed = list(launches)
    total_us = sum(launch.values[nsight.DURATION] for launch in listed) / 1e3
    cycles = sum(launch.values[CYCLES] for launch in listed)
    read = sum(launch.values[DRAM_READ] for launch in listed)
    names = tuple(dict.fromkeys(launch.kernel for launch in listed))
    return read, total_us, cycles / total_us if total_us else 0.0, names


# --- the process under ncu --------------------------------------------------------------------------------------------


def main() -> None:
    """Make the calls of the task that the command line names, and write what was made where it says."""
    processes.collect_rarely()
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    from kernelproof import loading, timing

    made: list[dict[str, Any]] = []
    left_out: list[dict[str, str]] = []
    functions = {}
    for fields in task["contenders"]:
        name = fields.pop("name")
        candidate = loading.Candidate(**fields)
        library = Path(candidate.library) if candidate.library else None
        functions[name] = timing.Function(
            name, loading.load(candidate, library, Path(candidate.root)), candidate.passing
        )
    for case in task["cases"]:
        for mode in task["modes"]:
            sets = timing.ArgumentSets(case, task["device"], mode)
            for name in case["contenders"]:
                try:
                    made.append(_made(functions[name], case, mode, sets, task["device"]))
                except (NotImplementedError, ValueError) as why:
                    left_out.append({"contender": name, "case": case["id"], "reason": str(why)})
            del sets
            timing.release(task["device"])
    atomic_write(Path(task["said"]), json.dumps({"made": made, "left_out": left_out}))


def _made(function: Function, case: Mapping[str, Any], mode: str, sets: ArgumentSets, device: str) -> dict[str, Any]:
    """Make the calls of one contender in one mode. Raises ValueError for one that has too many kernels."""
    from kernelproof import loading, timing

    launches = case["launches"].get(function.name, [])
    kernels = round(sum(launch["count"] for launch in launches if launch["grid"]))
    if not 0 < kernels <= LAUNCHES_LIMIT:
        raise ValueError(f"{kernels} kernels in a call" if kernels else "its kernels were not traced")
    floor = timing.EmptyKernels(launches) if device == "cuda" else None
    for index in range(max(len(sets), WARM_CALLS)):
        _call(function, sets, index % len(sets))
    loading.synchronise(device)
    with nsight.profiled(device):
        for index in range(CALLS[mode]):
            if floor:
                floor.launch()
            _call(function, sets, index % len(sets))
        if floor:
            floor.launch()
        loading.synchronise(device)
    return {"contender": function.name, "case": case["id"], "mode": mode, "calls": CALLS[mode], "floor": kernels}


def _call(function: Function, sets: ArgumentSets, index: int) -> None:
    if function.passing == "return":
        function.call(*sets.inputs(index))
    else:
        function.call(*sets.arguments[index])


if __name__ == "__main__":
    main()
