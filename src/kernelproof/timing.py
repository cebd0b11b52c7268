"""Times of single calls, taken in the process that runs the contenders.

All contenders of a case are timed in turn, in blocks that visit them in random order and back again (A B B A), so that
drift falls on everybody alike. A *sample* is one visit: a batch of calls, long enough for the clock. `trace` gives the
kernels inside the interval, in a process of its own, since a loaded CUPTI changes timings.

What a timed call wrote is handed over, and once more after the outputs were poisoned, and once more for new values
behind the same pointers: a result that was remembered or never written shows.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from kernelproof import footprint, loading, replies, statistics, traces
from kernelproof.arguments import ArgumentSets, case_fresh, release
from kernelproof.clock_runner import ClockRunner
from kernelproof.contenders import Function, Runner, Visit, loaded
from kernelproof.graph_runner import GraphRunner
from kernelproof.results import Handed, bytes_of, distinct, outputs_of
from kernelproof.torch_settings import torch_kept

if TYPE_CHECKING:
    from torch import Tensor

    from kernelproof.results import Result

# A sample, and the columns of results/bench/*.csv.gz after the process's number.
COLUMNS: tuple[str, ...] = ("block", "order", "contender", "case", "mode", "method", "calls", "time_us")
COLUMNS += (
    "short_calls",
    "short_us",
    "long_us",
    "sm_clock_mhz",
    "temperature_c",
    "power_w",
    "throttle",
    "load",
    "offset_s",
)
# A call begins when no thread of an earlier one is at work: how often that is looked at, and how long it is waited for,
# in all; an OpenMP team may spin for 0.2 s.
QUIET_LOOK_S, QUIET_LIMIT_S = 0.002, 30.0
# Who was at rest after so long, as a team is that spins for some ms, is waited for again at so many of its visits.
SOON_S, WAITED_FOR_AGAIN = 0.02, 0.125
WRITERS = 4  # threads that hash and write results, while nobody is timed
NOTHING_SEEN = "nothing of it was seen in the trace of a call: it has none of that kind, or hides it"
BLOCKS_LIMIT = 64
PAD_LIMIT_BYTES = {"cpu": 1 << 20, "cuda": 64 << 20}


class TimingError(Exception):
    """A contender broke the process for everybody (an error of the GPU that stays)."""


@dataclass(frozen=True)
class Plan:
    """How to measure, as contest/measurement.py sends it. Times in the units of their names.

    max_seconds: a contender's, in a case.
    """

    action: str  # time, trace
    device: str  # cpu, cuda
    modes: list[str]
    blocks: int
    sample_ms: float
    max_seconds: float
    seed: int
    epoch: float  # time.time() at the start of the benchmark
    scratch: str
    journal: str
    launches: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)  # contender, case: from `trace`
    precision: float = 0.0  # blocks go on until ratios to the fastest baseline are known so well; 0: just `blocks`
    confidence: float = 0.95
    baselines: list[str] = field(default_factory=list)
    energy: bool = False


@dataclass
class Found:
    """What one request brings to light; goes back as JSON."""

    samples: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    outcomes: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    kernels: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    eager_kernels: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # names, of a call outside a graph
    rotation: dict[str, dict[str, Any]] = field(default_factory=dict)
    energy: list[dict[str, Any]] = field(default_factory=list)
    stopping: list[dict[str, Any]] = field(default_factory=list)
    neighbours: int | None = None  # other processes on the GPU, at most; None where NVML shows not even this one
    state_s: float = 0.0  # spent on looking at the machine's state

    def sample(self, **values: Any) -> None:
        for name in COLUMNS:
            self.samples[name].append(values.get(name))


def measure(
    contenders: Sequence[Mapping[str, Any]], cases: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]
) -> dict[str, Any]:
    """Time (or trace) contenders on cases.

    contenders: `name` and the fields of loading.Candidate. cases: `id`, `contenders` (names), `arguments` (images and
    scalars in call order), `fresh` (images of other values for some tensors), `outputs` (names). plan: `Plan`.
    Raises TimingError when a contender left the GPU in a state in which nobody can go on; the journal names it.
    """
    with open_session(plan) as session:
        functions = session.load(contenders)
        for case in cases:
            session.case(case, {name: functions[name] for name in case["contenders"] if name in functions})
    return vars(session.found)


@dataclass
class Attempt:
    """Whether a contender that was touched came through."""

    succeeded: bool = False


class Stopping:
    """When blocks are enough: the ratio of each variant to the fastest baseline is known as well as was asked.

    What counts is the standard error over a process's own blocks (each an A B B A mean of logarithms), times Student's
    t: the half-width of the ratio's interval in this process. Without a baseline nothing is compared, and the
    contender's own time takes its place.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.logs: dict[str, dict[int, list[float]]] = {}

    def note(self, name: str, block: int, time_us: float) -> None:
        if time_us > 0:
            self.logs.setdefault(name, {}).setdefault(block, []).append(math.log(time_us))

    def half_width(self, name: str, fastest: str | None) -> float:
        """Relative, of one ratio (or time); infinite with fewer than three blocks."""
        mine = {block: fmean(values) for block, values in self.logs.get(name, {}).items()}
        other = {block: fmean(values) for block, values in self.logs.get(fastest or "", {}).items()}
        found = [mine[block] - other[block] for block in mine if block in other] if fastest else list(mine.values())
        if len(found) < 3:
            return math.inf
        t = statistics.student_t_quantile((1 + self.plan.confidence) / 2, len(found) - 1)
        return t * stdev(found) / math.sqrt(len(found))

    def fastest(self, names: Sequence[str]) -> str | None:
        known = {
            name: fmean(value for values in self.logs[name].values() for value in values)
            for name in names
            if name in self.plan.baselines and name in self.logs
        }
        return min(known, key=lambda name: known[name], default=None)

    def widths(self, names: Sequence[str]) -> dict[str, float]:
        fastest = self.fastest(names)
        return {
            name: self.half_width(name, fastest) for name in names if name not in self.plan.baselines or not fastest
        }

    def precise(self, names: Sequence[str]) -> bool:
        return self.plan.precision > 0 and all(width <= self.plan.precision for width in self.widths(names).values())

    def account(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """How it ended for each: `precise`, or the `budget` (or the limit of blocks) spent. Nothing when not asked."""
        if not self.plan.precision:
            return []
        return [
            {
                "contender": name,
                "blocks": len(self.logs.get(name, {})),
                "half_width": float(f"{width:.3g}") if math.isfinite(width) else None,
                "ended": "precise" if width <= self.plan.precision else "budget",
            }
            for name, width in self.widths(names).items()
        ]


_LOADED: dict[str, Function] = {}  # once a process, whatever the number of requests
_PADS: list[Any] = []


@contextmanager
def open_session(plan: Mapping[str, Any]) -> Iterator[Session]:
    """A session whose journal is open meanwhile."""
    session = Session(Plan(**plan))
    try:
        yield session
    finally:
        os.close(session.journal)


class Session:
    """What one request keeps: what it found, its journal, and what is handed over and lies in no file yet."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.found = Found()
        self.random = random.Random(plan.seed)
        self.quiet_left_s = QUIET_LIMIT_S
        self.rests_after_s: dict[str, float] = {}
        self.handed: dict[tuple[str, str], tuple[Tensor, Handed]] = {}  # contender, values: its bits in this case
        self.outputs: list[tuple[dict[str, Any], Handed]] = []  # what was handed over and is in no file yet
        self.journal = os.open(plan.journal, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        if not _PADS:
            _PADS.append(_pad(plan))

    def load(self, contenders: Sequence[Mapping[str, Any]]) -> dict[str, Function]:
        for entry in contenders:
            if (name := entry["name"]) in _LOADED:
                continue
            with self.attempt(name, "", "", "not_loaded"):
                _LOADED[name] = loaded(entry)
        wanted = {entry["name"] for entry in contenders}
        return {name: function for name, function in _LOADED.items() if name in wanted}

    @contextmanager
    def attempt(self, contender: str, case: str, mode: str, outcome: str = "failed") -> Iterator[Attempt]:
        """Touch a contender: note it in the journal, and turn its exception into an outcome."""
        self.note(contender, case)
        attempt = Attempt()
        try:
            with torch_kept(refused=bool(case)):
                yield attempt
            attempt.succeeded = True
        except Exception as error:
            message = f"{type(error).__name__}: {error}".strip()[:2000]
            named = "refused" if isinstance(error, NotImplementedError) else getattr(error, "outcome", outcome)
            self.tell(contender, case, mode, named, message)
            self.check_device(message)

    def tell(self, contender: str, case: str, mode: str, outcome: str, message: str) -> None:
        """Keep what happened to a contender. The outcome is one that the other end takes (replies.OUTCOMES)."""
        assert outcome in replies.OUTCOMES, outcome
        place = {"contender": contender, "case": case, "mode": mode}
        self.found.outcomes.append({**place, "outcome": outcome, "message": message})

    def note(self, contender: str, case: str) -> None:
        """Say, where it survives this process, who is touched next."""
        os.pwrite(self.journal, json.dumps([contender, case]).ljust(512).encode(), 0)

    def check_device(self, message: str) -> None:
        if self.plan.device != "cuda":
            return
        try:
            loading.synchronise("cuda")
        except Exception as error:
            raise TimingError(f"{message}; the GPU cannot be used any more: {error}") from error

    def case(self, case: Mapping[str, Any], functions: Mapping[str, Function]) -> None:
        """All modes of one case, one after the other; nothing of a case outlives it."""
        gc.collect()
        gc.disable()
        try:
            slow: set[str] = set()
            for mode in self.plan.modes[:1] if self.plan.action == "trace" else self.plan.modes:
                sets = ArgumentSets(case, self.plan.device, mode)
                self.found.rotation.setdefault(str(case["id"]), {})[mode] = sets.rotation
                taking_part = [function for name, function in functions.items() if name not in slow]
                slow |= self.mode(case, mode, sets, taking_part)
                del sets
                release(self.plan.device)
        finally:
            self.handed.clear()
            gc.enable()

    def mode(self, case: Mapping[str, Any], mode: str, sets: ArgumentSets, functions: Sequence[Function]) -> set[str]:
        """One mode of one case: prepare, trace or time, check. Gives back who is too slow to be visited again."""
        identity = str(case["id"])
        runners: list[Runner] = []
        for function in functions:
            with self.attempt(function.name, identity, mode) as attempt:
                runner = self.runner(function, sets)
                runner.prepare()
            if attempt.succeeded:
                runners.append(runner)
                if runner.too_slow and self.plan.action != "trace":  # at once: its row says when its one call ended
                    self.keep(identity, mode, 0, 0, runner.name, runner.method, runner.first_call(), self.state())
                    limit = f"one visit takes {runner.visit_s:.2g} s, more than the budget of {self.budget_s:.2g} s"
                    self.tell(runner.name, identity, mode, "slow", limit)
        if self.plan.action == "trace":
            self.trace(identity, runners)
            return set()
        slow = {runner.name for runner in runners if runner.too_slow}
        self.time(identity, mode, runners)
        self.check(identity, mode, sets, runners)
        return slow

    @property
    def budget_s(self) -> float:
        return self.plan.max_seconds / len(self.plan.modes)

    def runner(self, function: Function, sets: ArgumentSets) -> Runner:
        if self.plan.device == "cuda":
            return GraphRunner(function, sets, self.plan.sample_ms, self.budget_s)
        return ClockRunner(function, sets, self.plan.sample_ms, self.budget_s)

    def time(self, case: str, mode: str, runners: list[Runner]) -> None:
        """The interleaved blocks, then what stands beside them."""
        active = [runner for runner in runners if not runner.too_slow]
        rounds = {runner.name: self.rounds(runner) for runner in active}
        stopping, before = Stopping(self.plan), ""
        for block in range(max(rounds.values(), default=0)):
            present = [runner for runner in active if block < rounds[runner.name]]
            if block >= self.plan.blocks and (not present or stopping.precise([runner.name for runner in present])):
                break
            self.random.shuffle(present)
            state = self.state()
            for order, runner in enumerate(present + present[::-1]):
                if runner not in active:
                    continue
                if before:
                    self.wait_until_quiet(before, case, mode)
                before = runner.name
                with self.attempt(runner.name, case, mode) as attempt:
                    visit = runner.visit()
                    stopping.note(runner.name, block, visit.time_us)
                    self.keep(case, mode, block, order, runner.name, runner.method, visit, state)
                if not attempt.succeeded:
                    active = [other for other in active if other is not runner]
        for entry in stopping.account([runner.name for runner in active]):
            self.found.stopping.append({"case": case, "mode": mode, **entry})
        self.look_around()
        if mode == self.plan.modes[0]:
            for runner in active:
                self.beside(case, mode, runner)
        runners[:] = [runner for runner in runners if runner.too_slow or runner in active]

    def wait_until_quiet(self, before: str, case: str, mode: str) -> None:
        """On a CPU, let the threads come to rest that the contender before left at work: the next needs the cores."""
        rests_soon = self.rests_after_s.get(before, math.inf) <= SOON_S
        if self.plan.device != "cpu" or (rests_soon and random.random() > WAITED_FOR_AGAIN):
            return
        started = time.monotonic()
        while self.quiet_left_s > 0:
            if footprint.threads_at_work(footprint.members(os.getpid(), os.getpgid(0))) <= 1:  # this one
                break
            time.sleep(QUIET_LOOK_S)
            if time.monotonic() - started > self.quiet_left_s:
                self.quiet_left_s = 0.0
                message = f"its threads were at work after its calls: others waited {QUIET_LIMIT_S:g} s for them in all"
                self.tell(before, case, mode, "restless", message)
        taken_s = time.monotonic() - started
        self.rests_after_s[before] = max(taken_s, self.rests_after_s.get(before, 0.0))
        self.quiet_left_s -= taken_s

    def rounds(self, runner: Runner) -> int:
        """Blocks that a contender may take part in: as many as its budget holds, or just those of the plan."""
        most = BLOCKS_LIMIT if self.plan.precision else self.plan.blocks
        return max(1, min(max(most, self.plan.blocks), int(self.budget_s / (2 * runner.visit_s))))

    def state(self) -> dict[str, Any]:
        started = time.perf_counter()
        state = _state(self.plan.device)
        self.found.state_s += time.perf_counter() - started
        return state

    def look_around(self) -> None:
        """Count who else is on the GPU: this process is one of those that NVML shows, where it shows any here."""
        if self.plan.device == "cuda":
            from kernelproof import gpu

            with contextlib.suppress(Exception):  # a machine without NVML
                index = gpu.index_of_first_visible(os.environ.get("CUDA_VISIBLE_DEVICES"))
                if shown := gpu.compute_processes(index):
                    self.found.neighbours = max(self.found.neighbours or 0, len(shown) - 1)

    def keep(
        self,
        case: str,
        mode: str,
        block: int,
        order: int,
        name: str,
        method: str,
        visit: Visit,
        state: Mapping[str, Any],
    ) -> None:
        values = {"block": block, "order": order, "contender": name, "case": case, "mode": mode, "method": method}
        self.found.sample(**values, **vars(visit), **state, offset_s=round(time.time() - self.plan.epoch, 4))

    def beside(self, case: str, mode: str, runner: Runner) -> None:
        """The other methods' samples and the floor's; block and order only number them."""
        state = self.state()
        launches = self.plan.launches.get(runner.name, {}).get(case, [])
        with self.attempt(runner.name, case, mode, "beside_failed"):
            for method, visits in runner.beside(launches):
                for number, visit in enumerate(visits):
                    self.keep(case, mode, number, 0, runner.name, method, visit, state)
        if self.plan.energy:
            with self.attempt(runner.name, case, mode, "beside_failed"):
                self.found.energy.append(runner.energy(case, mode))

    def trace(self, case: str, runners: Sequence[Runner]) -> None:
        for runner in runners:
            with self.attempt(runner.name, case, self.plan.modes[0], "not_traced"):
                source, kernels = runner.trace()
                seen = {"source": source, "sm_clock_mhz": self.state().get("sm_clock_mhz")}
                if kernels:
                    self.found.kernels.setdefault(runner.name, {})[case] = [{**one, **seen} for one in kernels]
                else:
                    self.tell(runner.name, case, self.plan.modes[0], "not_traced", NOTHING_SEEN)
                if isinstance(runner, GraphRunner):
                    _, eager = runner.observed(runner.call, 1)
                    self.found.eager_kernels.setdefault(runner.name, {})[case] = traces.names_of(eager)

    def check(self, case: str, mode: str, sets: ArgumentSets, runners: Sequence[Runner]) -> None:
        """Hand over what the timed calls wrote, then the same after poison, then for new values in the same memory."""
        for runner in runners:
            with self.attempt(runner.name, case, mode):
                self.hand_over(case, mode, "timed", runner.name, runner.results())
                runner.poison()
                runner.again()
                self.hand_over(case, mode, "poisoned", runner.name, runner.results())
        self.keep_outputs(case, mode)
        if runners and sets.refresh(case_fresh(sets.case), runners[0].checked):
            for runner in runners:
                with self.attempt(runner.name, case, mode):
                    runner.poison()
                    runner.again()
                    self.hand_over(case, mode, "fresh", runner.name, runner.results())
            self.keep_outputs(case, mode)

    def keep_outputs(self, case: str, mode: str) -> None:
        """Tell where what was handed over lies now."""
        for output, handed in self.put_into_files():
            with self.attempt(output["contender"], case, mode):
                self.found.outputs.append(handed.described(output))

    def hand_over(self, case: str, mode: str, version: str, name: str, results: Sequence[Result]) -> None:
        """Keep each different result for `put_into_files`. All sets held the same values, so one is what to expect."""
        import torch

        for number, (result, copies) in enumerate(distinct(results)):
            bits, key = bytes_of(result), (name, "fresh" if version == "fresh" else "timed")
            known, handed = self.handed.get(key, (None, None))
            if known is None or handed is None or not torch.equal(known, bits):
                # Most results are the same bits again; the first is kept beside, so that these are not written anew.
                kept = bits.clone()
                handed = Handed(kept.cpu())
                self.handed.setdefault(key, (kept, handed))
            output = {
                "contender": name,
                "case": case,
                "mode": mode,
                "version": version,
                "number": number,
                "copies": copies,
                "tensors": [[str(part.dtype).removeprefix("torch."), list(part.shape)] for part in outputs_of(result)],
            }
            self.outputs.append((output, handed))

    def put_into_files(self) -> list[tuple[dict[str, Any], Handed]]:
        """Write what was handed over, by threads, and while no candidate runs: the limit on its files is lifted."""
        outputs, self.outputs = self.outputs, []
        with loading.unlimited_files(), ThreadPoolExecutor(WRITERS) as threads:
            for output, handed in outputs:
                handed.written = handed.written or threads.submit(handed.write, self.plan.scratch, output["contender"])
        return outputs


def _pad(plan: Plan) -> Any:
    """Memory of random size that shifts what is allocated after it, as it is shifted in other people's processes."""
    import torch

    size = random.Random(plan.seed ^ 0x5EED).randrange(512, PAD_LIMIT_BYTES[plan.device], 512)
    return torch.empty(size, dtype=torch.uint8, device=plan.device)


def _state(device: str) -> dict[str, Any]:
    """Clock, temperature, power and throttle reasons (GPU) and the load average, as a sample's columns."""
    load = round(os.getloadavg()[0], 2)
    if device == "cpu":
        return {"load": load}
    from kernelproof import gpu

    try:
        seen = gpu.sample(gpu.index_of_first_visible(os.environ.get("CUDA_VISIBLE_DEVICES")))
    except Exception:  # a machine without NVML still has times; the columns stay empty
        return {"load": load}
    return {
        "sm_clock_mhz": seen.sm_clock_mhz,
        "temperature_c": seen.temperature_c,
        "power_w": seen.power_w,
        "throttle": "|".join(seen.throttle_reasons),
        "load": load,
    }
