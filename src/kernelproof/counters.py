"""What Nsight Compute counts in the calls that a benchmark times: bytes that come from memory, and time; hot and cold.

A process under ncu (`python -m kernelproof.counters DEVICE TASK STARTER`) rotates sets of inputs as timing.py does, a
whole rotation first, and then makes a few calls on those that were used longest ago. Nothing empties a cache and no
clock is changed: whether a cold call was cold is the question. One pass counts everything. Before a contender's calls
lies their floor, empty kernels of the same launch, which also tells contenders apart in ncu's list.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kernelproof import cuda_driver, nsight, privacy, processes, replies
from kernelproof.errors import ProfileError, WorkerReplyError
from kernelproof.records import atomic_write

if TYPE_CHECKING:
    from kernelproof.arguments import ArgumentSets
    from kernelproof.contenders import Function

DRAM_READ, CYCLES = "dram__bytes_read.sum", "sm__cycles_elapsed.max"
METRICS = (DRAM_READ, nsight.DURATION, CYCLES)
CALLS = 2  # that are counted
WARM_CALLS = 3  # before them, at least
KERNELS_LIMIT, FLOOR_LIMIT = 8, 2  # of a call, and of one whose floor is taken: each launch costs ncu up to 30 ms
FLOOR = cuda_driver.EMPTY_KERNEL  # graph_runner.EmptyKernels
ONE_KERNEL = ({"grid": [1, 1, 1], "block": [32, 1, 1], "shared_bytes": 0, "count": 1},)
LIMIT_S, LIMIT_EACH_S = 120.0, 2.0  # for the process, and more for each contender on each case
LOOK_S = 0.01


@dataclass(frozen=True)
class Counted:
    """The calls of one contender on one case in one mode, each as the sum of its kernels.

    dram_bytes: that a call read from memory. floor_us: None where a call has too many kernels for one. sm_clock_mhz:
    while its kernels ran.
    """

    contender: str
    case: str
    mode: str
    dram_bytes: list[float]
    duration_us: list[float]
    floor_us: float | None
    sm_clock_mhz: float


@dataclass(frozen=True)
class LeftOut:
    """A contender whose calls on a case are not counted, and why."""

    contender: str
    case: str
    reason: str


class Counting:
    """A process under ncu, which may get ready while others measure: it touches no GPU before `count` says what to do.

    folder: for what is written on the way. Raises ProfileError where there is no ncu, with the remedy as its hint, and
    ToolError. Ends the process when it is left.
    """

    def __init__(self, device: str, folder: Path, log: Path) -> None:
        if (ncu := nsight.find_ncu()) is None:
            raise ProfileError(nsight.NOT_INSTALLED.reason, subject="ncu", hint=nsight.NOT_INSTALLED.remedy)
        folder.mkdir(parents=True, exist_ok=True)
        self.device, self.log = device, log
        self.task, self.said, self.table = (folder / name for name in ("task.json", "said.json", "counters.csv"))
        for stale in (log, self.table, self.task):
            stale.unlink(missing_ok=True)
        target = [sys.executable, "-P", "-m", "kernelproof.counters", device, str(self.task), str(os.getpid())]
        self.process = processes.start(
            nsight.counting_command(ncu, self.table, target, METRICS),
            env=processes.own_environment() | processes.NO_EXTENSION,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.abandon()

    def count(
        self, modes: Sequence[str], contenders: Sequence[Mapping[str, Any]], cases: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Counted], list[LeftOut]]:
        """Have the calls made under ncu, and read what it counted.

        contenders: `name` and the fields of loading.Candidate. cases: as timing.measure takes them, each also with
        `launches`: the kernels of a call by contender, as they were traced. Raises ProfileError and ToolError.
        """
        parts = {"modes": list(modes), "contenders": list(contenders), "cases": list(cases)}
        atomic_write(self.task, json.dumps({**parts, "said": str(self.said)}))
        limit_s = LIMIT_S + LIMIT_EACH_S * sum(len(case["contenders"]) for case in cases)
        log, listed = self.log, ""
        try:
            done = self.process.finish(timeout_s=limit_s, log=log, check=False)
        finally:
            if self.table.is_file():
                listed = self.table.read_text(encoding="utf-8", errors="replace")
            words = listed[: nsight.start_of_table(listed)]
            with log.open("a", encoding="utf-8") as stream:
                stream.write(privacy.scrubbed(words))
        printed = done.stdout + done.stderr + words
        if words == listed and (obstacle := nsight.obstacle(printed)):
            raise ProfileError(obstacle.reason, subject="ncu", hint=obstacle.remedy)
        if done.returncode != 0 or not self.said.is_file():
            why = nsight.what_went_wrong(printed, done.returncode)
            raise ProfileError(why, log=log, hint=f"{log} has the whole story")
        try:
            made = json.loads(self.said.read_text(encoding="utf-8"))
            replies.check_counted(made, [one["name"] for one in contenders], [one["id"] for one in cases], modes, CALLS)
        except (WorkerReplyError, ValueError, RecursionError) as error:
            raise ProfileError(f"the process that made the calls garbled what it says of them: {error}") from None
        found = list(counted(made["made"], nsight.counted(listed, METRICS)))
        return found, [LeftOut(**entry) for entry in made["left_out"]]


def counted(made: Sequence[Mapping[str, Any]], launches: Sequence[nsight.Launch]) -> Iterator[Counted]:
    """Who made which of the launches that ncu lists: by their order, and by the floors between the contenders.

    made: `contender`, `case`, `mode`, `calls`, `kernels` in a call as it was traced, and `floor`, the launches of one.
    Raises ProfileError where the list holds something else.
    """
    position = 0
    for entry in made:
        first = position + entry["floor"]
        floor = launches[position:first]
        position = next((n for n in range(first, len(launches)) if launches[n].kernel == FLOOR), len(launches))
        each, left = divmod(len(launches[first:position]), entry["calls"])
        calls = [launches[first + n * each : first + (n + 1) * each] for n in range(entry["calls"])]
        if [launch.kernel for launch in floor] != [FLOOR] * entry["floor"] or left or not each:
            where = f"{entry['contender']}, {entry['case']}, {entry['mode']}"
            raise ProfileError("ncu lists other launches than were made", subject=where)
        spent_us = [_sum(call, nsight.DURATION) / 1e3 for call in calls]
        yield Counted(
            entry["contender"],
            entry["case"],
            entry["mode"],
            [_sum(call, DRAM_READ) for call in calls],
            spent_us,
            _sum(floor, nsight.DURATION) / 1e3 if entry["floor"] == entry["kernels"] else None,
            statistics.median(_sum(call, CYCLES) / us if us else 0.0 for call, us in zip(calls, spent_us, strict=True)),
        )
    if position != len(launches):
        raise ProfileError("ncu lists more launches than were made", subject=launches[position].kernel)


def _sum(launches: Sequence[nsight.Launch], metric: str) -> float:
    return sum(launch.values[metric] for launch in launches)


# --- the process under ncu --------------------------------------------------------------------------------------------


def main() -> None:
    """Make the calls of the task that the command line names, once it is there; write what was made where it says."""
    device, path, starter = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    processes.end_with(starter)
    processes.collect_rarely()
    import torch  # noqa: F401  what takes longest

    from kernelproof.arguments import ArgumentSets, release
    from kernelproof.contenders import loaded

    while not path.is_file():
        time.sleep(LOOK_S)
    task = json.loads(path.read_text(encoding="utf-8"))
    made: list[dict[str, Any]] = []
    left_out: list[dict[str, str]] = []
    functions = {entry["name"]: loaded(entry) for entry in task["contenders"]}
    for case in task["cases"]:
        for mode in task["modes"]:
            sets = ArgumentSets(case, device, mode)
            for name in case["contenders"]:
                try:
                    made.append(_made(functions[name], case, mode, sets, device))
                except _NotCounted as why:
                    left_out.append({"contender": name, "case": case["id"], "reason": str(why)})
            del sets
            release(device)
    atomic_write(Path(task["said"]), json.dumps({"made": made, "left_out": left_out}))


class _NotCounted(Exception):
    """Why a contender's calls are not counted."""


def _made(function: Function, case: Mapping[str, Any], mode: str, sets: ArgumentSets, device: str) -> dict[str, Any]:
    """Make the calls of one contender in one mode. Raises _NotCounted before any is counted; for one that fails too."""
    from kernelproof import loading
    from kernelproof.graph_runner import EmptyKernels

    launches = case["launches"].get(function.name, [])
    kernels = round(sum(launch["count"] for launch in launches if launch["grid"]))
    if not 0 < kernels <= KERNELS_LIMIT:
        raise _NotCounted(f"{kernels} kernels in a call" if kernels else "its kernels were not traced")
    floor = EmptyKernels(launches if kernels <= FLOOR_LIMIT else ONE_KERNEL) if device == "cuda" else None
    kept: list[Any] = [None] * len(sets)  # what calls return, as in a graph: or all of them would write to one place
    try:
        for index in range(max(len(sets), WARM_CALLS)):
            kept[index % len(sets)] = _call(function, sets, index % len(sets))
        loading.synchronise(device)
    except Exception as error:
        raise _NotCounted(f"{type(error).__name__}: {error}"[:200]) from None
    with nsight.profiled(device):
        if floor:
            floor.launch()
        for index in range(CALLS):
            kept[index % len(sets)] = _call(function, sets, index % len(sets))
        loading.synchronise(device)
    made = {"contender": function.name, "case": case["id"], "mode": mode, "calls": CALLS, "kernels": kernels}
    return {**made, "floor": kernels if kernels <= FLOOR_LIMIT else 1}


def _call(function: Function, sets: ArgumentSets, index: int) -> Any:
    if function.passing == "return":
        return function.call(*sets.inputs(index))
    return function.call(*sets.arguments[index])


if __name__ == "__main__":
    main()
