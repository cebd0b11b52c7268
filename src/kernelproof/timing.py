"""Times of single calls, taken in the process that runs the contenders.

All contenders of a case are timed in turn, in blocks that visit them in random order and back again (A B B A), so that
drift falls on everybody alike. A *sample* is one visit: a batch of calls, long enough for the clock.

- GPU, `graph_slope`: a CUDA graph of few calls and one of many, replayed behind a third that keeps the device busy
  while the host queues them; the slope between the two is the time of a call: what every replay costs once cancels.
- CPU, `cpu_clock`: the monotonic clock around a batch.
- *Hot*: one set of inputs. *Cold*: as many copies, visited in turn, as exceed twice the last-level cache (a GPU's L2).

Beside the slope, and never subtracted from it: `event_pair` around single calls, `wall_slope` (the same graphs by the
host's clock: an independent witness), `eager` latency, and the `floor`: an empty kernel of the same grid, block and
shared memory by the same two methods. `trace` gives the kernels inside the interval, in a process of its own, since a
loaded CUPTI changes timings.

Outputs are treated alike for everybody. In a graph nobody allocates (a returned tensor's memory belongs to the graph);
outside of one everybody does. What a timed call wrote is handed over, and once more after the outputs were poisoned,
and once more for new values behind the same pointers: a result that was remembered or never written shows.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import hashlib
import itertools
import json
import math
import mmap
import os
import random
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from kernelproof import cuda_driver, cupti, energy, footprint, loading, processes, replies, statistics, traces

if TYPE_CHECKING:
    from torch import Tensor

    Result: TypeAlias = Tensor | tuple[Tensor, ...]  # of several outputs the latter

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
CACHES_EXCEEDED = 2  # a cold rotation is this many times the cache
CPU_COLD_LIMIT_BYTES = 256 << 20
GPU_COLD_LIMIT_BYTES = 8 << 30
SETS_LIMIT = 1024  # copies in a cold rotation: more would make graphs of thousands of nodes
CALLS_LIMIT, DRAWN_CALLS_LIMIT = 2000, 100  # in one graph; to draw the values of a call takes several kernels
SHORT_SHARE = 4  # the long graph has this many times the calls of the short one
SINGLE_CALLS = 24  # event pairs, a process and case
WALL_PAIRS = 6
FLOOR_VISITS = 6
# On a CPU: whose first call takes less than so long is called again before it is too slow, for a first call makes
# threads, or plans; how long one is takes the least of so many calls, or of those that fit into so long.
SECOND_CALL_S, RESTING_CALLS, RESTING_US = 5.0, 8, 40_000
# A call begins when no thread of an earlier one is at work: how often that is looked at, and how long it is waited for,
# in all; an OpenMP team may spin for 0.2 s.
QUIET_LOOK_S, QUIET_LIMIT_S = 0.002, 30.0
# Who was at rest after so long, as a team is that spins for some ms, is waited for again at so many of its visits.
SOON_S, WAITED_FOR_AGAIN = 0.02, 0.125
TRACED_CALLS = 8
WRITERS = 4  # threads that hash and write results, while nobody is timed
ABSENT = "a part of its result is not in memory when its call is over, but made when somebody reads it"
NOTHING_SEEN = "nothing of it was seen in the trace of a call: it has none of that kind, or hides it"
TOUCHED_CALLS_US = 1000.0  # a replay of calls whose values are new
MOVED_CALLS = 3  # of them in a row, at least, before one whose result is handed over
# Timed calls in the midst of which values become new, on a GPU: more in a row than a sample has.
ROW_US, ROW_REPLAYS = 60_000.0, 6
TOSSES = 64  # coins tossed for a tensor whose values are drawn anew, at least, where it has as many
# From call to call the bits of what is touched grow by so much, by their bytes: enough for a result to show it.
TOUCH_STRIDES = {2: 1, 4: 1 << 12, 8: 1 << 41}
BYTE_SHIFT, LARGE_BYTE = (
    3,
    0x60,
)  # of a float of a byte: its count's bits that do not show; from there on it may overflow
BLOCKS_LIMIT = 64
PORTABLE_CLUSTER = 8  # blocks that every GPU with clusters takes
OPENMP = re.compile(r"(/\S*/lib(?:gomp|iomp5|omp5?)(?:-\w+)?\.so[.\d]*)$", re.MULTILINE)  # in a list of what is mapped
PAD_LIMIT_BYTES = {"cpu": 1 << 20, "cuda": 64 << 20}


class TimingError(Exception):
    """A contender broke the process for everybody (an error of the GPU that stays)."""


@dataclass(frozen=True)
class Plan:
    """How to measure; what bench.py sends. Times in the units of their names; max_seconds is a contender's, a case."""

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
    with _session(plan) as session:
        functions = session.load(contenders)
        for case in cases:
            session.case(case, {name: functions[name] for name in case["contenders"] if name in functions})
    return vars(session.found)


@dataclass
class Attempt:
    """Whether a contender that was touched came through."""

    succeeded: bool = False


@dataclass
class Function:
    """A loaded contender."""

    name: str
    call: Callable[..., Any]
    passing: str


def loaded(entry: Mapping[str, Any]) -> Function:
    """A contender by its `name` and the fields of loading.Candidate. Raises what loading it raises."""
    fields = dict(entry)
    name = fields.pop("name")
    candidate = loading.Candidate(**fields)
    library = Path(candidate.library) if candidate.library else None
    return Function(name, loading.load(candidate, library, Path(candidate.root)), candidate.passing)


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
def _session(plan: Mapping[str, Any]) -> Iterator[_Session]:
    """A session whose journal is open meanwhile."""
    session = _Session(Plan(**plan))
    try:
        yield session
    finally:
        os.close(session.journal)


class _Session:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.found = Found()
        self.random = random.Random(plan.seed)
        self.quiet_left_s = QUIET_LIMIT_S
        self.rests_after_s: dict[str, float] = {}
        self.handed: dict[tuple[str, str], tuple[Tensor, _Handed]] = {}  # contender, values: its bits in this case
        self.outputs: list[tuple[dict[str, Any], _Handed]] = []  # what was handed over and is in no file yet
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
            with _torch_kept(refused=bool(case)):
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
        runners: list[_Runner] = []
        for function in functions:
            with self.attempt(function.name, identity, mode) as attempt:
                runner = self.runner(function, sets)
                runner.prepare()
            if attempt.succeeded:
                runners.append(runner)
        if self.plan.action == "trace":
            self.trace(identity, runners)
            return set()
        slow = {runner.name for runner in runners if runner.too_slow}
        for runner in runners:
            if runner.too_slow:
                state = self.state()
                self.keep(identity, mode, 0, 0, runner.name, runner.method, runner.first_call(), state)
                limit = f"one visit takes {runner.visit_s:.2g} s, more than the budget of {self.budget_s:.2g} s"
                self.tell(runner.name, identity, mode, "slow", limit)
        self.time(identity, mode, runners)
        self.check(identity, mode, sets, runners)
        return slow

    @property
    def budget_s(self) -> float:
        return self.plan.max_seconds / len(self.plan.modes)

    def runner(self, function: Function, sets: ArgumentSets) -> _Runner:
        if self.plan.device == "cuda":
            return _GraphRunner(function, sets, self.plan.sample_ms, self.budget_s)
        return _ClockRunner(function, sets, self.plan.sample_ms, self.budget_s)

    def time(self, case: str, mode: str, runners: list[_Runner]) -> None:
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

    def rounds(self, runner: _Runner) -> int:
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

    def beside(self, case: str, mode: str, runner: _Runner) -> None:
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

    def trace(self, case: str, runners: Sequence[_Runner]) -> None:
        for runner in runners:
            with self.attempt(runner.name, case, self.plan.modes[0], "not_traced"):
                source, kernels = runner.trace()
                seen = {"source": source, "sm_clock_mhz": self.state().get("sm_clock_mhz")}
                if kernels:
                    self.found.kernels.setdefault(runner.name, {})[case] = [{**one, **seen} for one in kernels]
                else:
                    self.tell(runner.name, case, self.plan.modes[0], "not_traced", NOTHING_SEEN)
                if isinstance(runner, _GraphRunner):
                    _, eager = runner.observed(runner.call, 1)
                    self.found.eager_kernels.setdefault(runner.name, {})[case] = traces.names_of(eager)

    def check(self, case: str, mode: str, sets: ArgumentSets, runners: Sequence[_Runner]) -> None:
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

        for number, (result, copies) in enumerate(_distinct(results)):
            bits, key = _bytes_of(result), (name, "fresh" if version == "fresh" else "timed")
            known, handed = self.handed.get(key, (None, None))
            if known is None or handed is None or not torch.equal(known, bits):
                # Most results are the same bits again; the first is kept beside, so that these are not written anew.
                kept = bits.clone()
                handed = _Handed(kept.cpu())
                self.handed.setdefault(key, (kept, handed))
            output = {
                "contender": name,
                "case": case,
                "mode": mode,
                "version": version,
                "number": number,
                "copies": copies,
                "tensors": [[str(part.dtype).removeprefix("torch."), list(part.shape)] for part in _parts(result)],
            }
            self.outputs.append((output, handed))

    def put_into_files(self) -> list[tuple[dict[str, Any], _Handed]]:
        """Write what was handed over, by threads, and while no candidate runs: the limit on its files is lifted."""
        outputs, self.outputs = self.outputs, []
        with loading.unlimited_files(), ThreadPoolExecutor(WRITERS) as threads:
            for output, handed in outputs:
                handed.written = handed.written or threads.submit(handed.write, self.plan.scratch, output["contender"])
        return outputs


class _Handed:
    """A result that was handed over: its bytes, then the path and SHA-256 of the file that `write` makes of them."""

    def __init__(self, bits: Tensor) -> None:
        self.bits: Tensor | None = bits
        self.written: Future[tuple[str, str]] | None = None

    def write(self, folder: str, name: str) -> tuple[str, str]:
        """Hash and write it; both take as long as many a timing."""
        bits, self.bits = self.bits, None
        assert bits is not None
        data = memoryview(bits.numpy())
        digest = hashlib.sha256(data).hexdigest()
        # A short name: the same bytes of another process are the same file.
        path = Path(folder) / f"{name}-{digest[:24]}.output"
        if not path.exists():
            path.write_bytes(data)
        return str(path), digest

    def described(self, output: Mapping[str, Any]) -> dict[str, Any]:
        """An output and where it lies. Raises OSError where it could not be written."""
        assert self.written is not None
        path, digest = self.written.result()
        return {**output, "path": path, "sha256": digest}


@contextmanager
def _torch_kept(*, refused: bool) -> Iterator[None]:
    """Torch is afterwards as it was, with as many threads, in as many levels: the next contender would have another.

    Raises RuntimeError where it was left otherwise, if that is `refused`: while it is loaded one may mean itself.
    """
    import torch

    kept = {"threads": (torch.get_num_threads, torch.set_num_threads)} | _openmp_settings() | _torch_settings()
    found = {name: get() for name, (get, _) in kept.items()}
    left = found
    try:
        yield
    finally:
        left = {name: get() for name, (get, _) in kept.items()}
        for name, (_, put) in kept.items():
            if left[name] != found[name]:
                put(found[name])
    if refused and (changed := [name for name in kept if left[name] != found[name]]):
        words = ", ".join(f"with {name} {left[name]} where it found {found[name]}" for name in changed)
        raise RuntimeError(f"it left torch {words}, and the others would have had them")


@functools.cache
def _torch_settings() -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    """How to read and to set what decides which kernels torch runs, and on what."""
    import torch

    def flag(module: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
        return (lambda: getattr(module, name)), (lambda value: setattr(module, name, value))

    precision = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    found: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
        "the default type": (torch.get_default_dtype, torch.set_default_dtype),
        "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
        "the precision of float32 products": precision,
        "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        "oneDNN": flag(torch.backends.mkldnn, "enabled"),
    }
    for name in ("enabled", "benchmark", "deterministic"):
        found[f"cuDNN {name}"] = flag(torch.backends.cudnn, name)
    for kind in ("flash", "mem_efficient", "math", "cudnn"):
        get, put = (getattr(torch.backends.cuda, name, None) for name in (f"{kind}_sdp_enabled", f"enable_{kind}_sdp"))
        if get and put:
            found[f"{kind} attention"] = (get, put)
    return found


@functools.cache
def _openmp_settings() -> dict[str, tuple[Callable[[], int], Callable[[int], object]]]:
    """How to read and to set what may keep torch's threads from working, in each OpenMP that is loaded by now."""
    found = {}
    for path in sorted(set(OPENMP.findall(Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")))):
        runtime = ctypes.CDLL(path)
        for words, setting in (("levels of threads", "max_active_levels"), ("leave to adjust them", "dynamic")):
            get, put = (getattr(runtime, f"omp_{verb}_{setting}") for verb in ("get", "set"))
            found[f"{words} ({Path(path).name})"] = (get, put)
    return found


def case_fresh(case: Mapping[str, Any]) -> Mapping[str, Any]:
    """The images of other values that a case brings; may be none."""
    fresh: Mapping[str, Any] = case.get("fresh") or {}
    return fresh


# --- arguments --------------------------------------------------------------------------------------------------------


class ArgumentSets:
    """Copies of a case's arguments: one (hot), or a rotation that does not fit the cache (cold)."""

    def __init__(self, case: Mapping[str, Any], device: str, mode: str) -> None:
        import torch

        self.case = case
        self.device = device
        self.names = list(case["arguments"])
        self.outputs_at = [self.names.index(name) for name in case["outputs"]]
        originals = [
            loading.load_image(value, device, with_torch=True).view if isinstance(value, dict) else value
            for value in case["arguments"].values()
        ]
        size = sum(value.numel() * value.element_size() for value in originals if isinstance(value, torch.Tensor))
        count, self.rotation = _rotation(size, device, mode)
        self.arguments = [[_clone(value) for value in originals] for _ in range(count)]

    def __len__(self) -> int:
        return len(self.arguments)

    def inputs(self, index: int) -> list[Any]:
        """One set without the outputs."""
        return [value for place, value in enumerate(self.arguments[index]) if place not in self.outputs_at]

    def outputs(self, index: int = 0) -> list[Tensor]:
        """The output arguments of one set: their layout; every contender has memory of its own."""
        return [self.arguments[index][place] for place in self.outputs_at]

    def with_outputs(self, index: int, outputs: Sequence[Tensor]) -> list[Any]:
        """The arguments of one set with these for the outputs."""
        arguments = list(self.arguments[index])
        for place, output in zip(self.outputs_at, outputs, strict=True):
            arguments[place] = output
        return arguments

    def refresh(self, images: Mapping[str, Any], only: Sequence[int] | None = None) -> bool:
        """Put other values into the same memory, in every set or `only` some. False when there are none."""
        for name, image in images.items():
            values = loading.load_image(image, self.device, with_torch=True).view
            for index in range(len(self)) if only is None else only:
                self.arguments[index][self.names.index(name)].copy_(values)
        return bool(images)


def _rotation(size_bytes: int, device: str, mode: str) -> tuple[int, dict[str, Any]]:
    """How many sets, and the figures that say whether they make a cold run cold."""
    cache = _cache_bytes(device)
    if mode == "hot":
        return 1, {"sets": 1, "set_bytes": size_bytes, "cache_bytes": cache}
    limit = CPU_COLD_LIMIT_BYTES if device == "cpu" else GPU_COLD_LIMIT_BYTES
    wanted = max(2, math.ceil(CACHES_EXCEEDED * cache / max(1, size_bytes)))
    count = max(2, min(wanted, SETS_LIMIT, limit // max(1, size_bytes)))
    enough = count >= wanted
    return count, {"sets": count, "set_bytes": size_bytes, "cache_bytes": cache, "exceeds_cache": enough}


def _cache_bytes(device: str) -> int:
    """The GPU's L2, or the CPU's last-level cache; 32 MiB where the system does not say."""
    if device == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(0).L2_cache_size)
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    factors = {"K": 1 << 10, "M": 1 << 20}
    known = [int(size[:-1]) * factors[size[-1]] for size in sizes if size[-1:] in factors]
    return max(known, default=32 << 20)


def _clone(value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)


def _pad(plan: Plan) -> Any:
    """Memory of random size that shifts what is allocated after it, as it is shifted in other people's processes."""
    import torch

    size = random.Random(plan.seed ^ 0x5EED).randrange(512, PAD_LIMIT_BYTES[plan.device], 512)
    return torch.empty(size, dtype=torch.uint8, device=plan.device)


# --- runners: one contender with one case's arguments -----------------------------------------------------------------


@dataclass
class Visit:
    """One sample: `calls` in a batch and µs per call; for a slope also the short batch and both batches' µs."""

    calls: int
    time_us: float
    short_calls: int | None = None
    short_us: float | None = None
    long_us: float | None = None


class _Runner(Protocol):
    name: str
    method: str
    checked: range  # the sets that `again` goes through
    visit_s: float  # what one visit costs
    too_slow: bool

    def prepare(self) -> None: ...
    def visit(self) -> Visit: ...
    def first_call(self) -> Visit: ...
    def trace(self) -> tuple[str, list[dict[str, Any]]]: ...
    def beside(self, launches: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Visit]]]: ...
    def repeat(self, times: int) -> float: ...
    def touched(self, touch: Touch | Draw, by: int, *, alone: bool = False) -> tuple[Callable[[int], object], int]: ...
    def moved(self, touch: Touch | Draw) -> list[Result]: ...
    def energy(self, case: str, mode: str) -> dict[str, Any]: ...
    def results(self) -> list[Result]: ...
    def poison(self) -> None: ...
    def again(self) -> None: ...


class _ClockRunner:
    """CPU: batches by the monotonic clock. The output is allocated in each call, as a returning baseline does."""

    method = "cpu_clock"

    def __init__(self, function: Function, sets: ArgumentSets, sample_ms: float, budget_s: float) -> None:
        self.name = function.name
        self.function = function
        self.sets = sets
        self.sample_ms = sample_ms
        self.budget_s = budget_s
        self.calls = [_allocating_call(function.call, function.passing, sets, index) for index in range(len(sets))]
        self.nothing = [_allocating_call(_nothing, function.passing, sets, index) for index in range(len(sets))]
        self.turn = itertools.cycle(range(len(sets)))
        self.checked = range(min(4, len(sets)))
        self.batch = 1
        self.visit_s = 0.0
        self.too_slow = False
        self.last: list[Result] = []

    def prepare(self) -> None:
        """Call until a batch lasts long enough. The first call may set things up and is a sample only if it is all."""
        first_us = self.timed(self.calls, 1)
        if self.budget_s < first_us / 1e6 < SECOND_CALL_S:
            first_us = min(first_us, self.timed(self.calls, 1))
        self.visit_s = first_us / 1e6
        self.too_slow = self.visit_s > self.budget_s
        self._first = Visit(1, first_us)
        if self.too_slow:
            return
        # Threads that another contender left spinning take milliseconds off these calls until they rest.
        calls = min(RESTING_CALLS, math.ceil(RESTING_US / max(1.0, first_us)))  # a clock that was patched may say -1
        each_us = min(self.timed(self.calls, 1) for _ in range(calls))
        while each_us * self.batch < 250 * self.sample_ms and self.batch < 1 << 20:
            self.batch *= 4
            # Of two, for another program may take the core during one: a call would seem to fill a whole sample.
            each_us = min(self.timed(self.calls, self.batch) for _ in range(2))
        self.batch = max(1, math.ceil(1000 * self.sample_ms / each_us))
        self.warm = each_us < 20_000  # another OpenMP pool spins for some ms after its last call: let it come to rest
        self.visit_s = each_us * (self.batch + self.warm) / 1e6

    def visit(self) -> Visit:
        processes.keep_freed_memory()  # the same for everybody, whatever the contender before asked of malloc
        if self.warm:
            self.timed(self.calls, 1)
        time_us = self.timed(self.calls, self.batch)
        for output in itertools.chain.from_iterable(map(_parts, self.last)):
            if not loading.is_there(output):
                error = RuntimeError(ABSENT)
                error.outcome = replies.ESCAPE  # type: ignore[attr-defined]
                raise error
        return Visit(self.batch, time_us)

    def first_call(self) -> Visit:
        return self._first

    def timed(self, calls: Sequence[Callable[[], Any]], count: int) -> float:
        """µs per call of a batch that goes on where the last one ended in the rotation."""
        batch = [calls[next(self.turn)] for _ in range(count)]
        result, plain, other = None, tuple if len(self.sets.outputs_at) > 1 else type(self.sets.outputs()[0]), None
        start = time.perf_counter_ns()
        for call in batch:
            result = call()
            if type(result) is not plain:  # of every call: one that knows which is the last can make that one honest
                other = type(result)
        elapsed_ns = time.perf_counter_ns() - start
        if calls is self.calls and other is not None:
            raise _not_plain(other)
        if result is not None:
            self.last = [result]
        return elapsed_ns / 1000 / count

    def beside(self, launches: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Visit]]]:
        """The floor: the same loop and allocation around a call that does nothing."""
        last, count = self.last, 200
        yield "floor", [Visit(count, self.timed(self.nothing, count)) for _ in range(FLOOR_VISITS)]
        self.last = last

    def trace(self) -> tuple[str, list[dict[str, Any]]]:
        """Who saw it, and torch's operators that one call runs; what a library does by itself has no names there.

        By what torch.profiler.profile does its work with: that imports TorchInductor first, which takes seconds.
        """
        from torch.autograd.profiler import profile

        count = 1 if self.too_slow else TRACED_CALLS
        with profile(use_kineto=True, **_all_threads()) as profiler:
            self.timed(self.calls, count)
        return "torch.profiler", operators_of(profiler.function_events, count)

    def repeat(self, times: int) -> float:
        """The batch that is a sample, so many times; µs by the clock that samples are taken with."""
        return sum(self.timed(self.calls, self.batch) * self.batch for _ in range(times))

    def touched(self, touch: Touch | Draw, by: int, *, alone: bool = False) -> tuple[Callable[[int], object], int]:
        """Calls on values that move by `by` before each: a function that makes its batch n times, and the batch.

        Every page of a result is read, for it could be computed by whoever reads it first (mprotect and a handler).
        `alone`: what moves the values and reads, without the calls.
        """
        count = max(1, math.ceil(TOUCHED_CALLS_US / (1e6 * self.visit_s / (self.batch + self.warm))))
        written = self.calls[0]()

        def run(times: int) -> None:
            touch.begin()
            touch.take(count)
            for _ in range(times * count):
                index = touch.step(by)
                _read_pages(written if alone else self.calls[index]())

        return run, count

    def still(self, touch: Touch) -> tuple[Callable[[int], object], int]:
        """The batch that is a sample, on values that no call has seen before it: a function that makes it n times."""

        def run(times: int) -> None:
            touch.begin()
            for _ in range(times):
                self.timed(self.calls, self.batch)

        return run, self.batch

    def moved(self, touch: Touch | Draw) -> list[Result]:
        """Calls in a row on values that move; what the last one gave, of the values that the case names.

        They follow as many as a sample may have, in memory that still holds a result: who computes nothing in a long
        row of calls, or but for the one that ends a sample, does so here too, where nobody can say which is the last.
        """
        touch.before(MOVED_CALLS)
        self.timed(self.calls, random.randint(1, self.batch))
        for _ in range(MOVED_CALLS):
            self.last = [self.calls[touch.step(1)]()]
        return self.last

    def energy(self, case: str, mode: str) -> dict[str, Any]:
        return {"contender": self.name, "case": case, "mode": mode, "reason": "no counter of a CPU's energy is read"}

    def results(self) -> list[Result]:
        return self.last

    def poison(self) -> None:
        """Fill memory that a returned output is likely to get with NaN, and free it; `again` sees to given outputs."""
        _poison([_like(layout) for _ in range(4) for layout in self.sets.outputs()])

    def again(self) -> None:
        """One call on each of the first sets; on a rotation of hundreds the rest would tell nothing new."""
        call, passing = self.function.call, self.function.passing
        self.last = [_allocating_call(call, passing, self.sets, index, poisoned=True)() for index in self.checked]


def _nothing(*_: Any) -> None:
    return None


def _read_pages(result: Result) -> None:
    """Read an element of every page that a result lies on."""
    for output in _parts(result):
        step = max(1, mmap.PAGESIZE // output.element_size())
        pages = math.ceil(loading.span_bytes(output) / (step * output.element_size()))
        output.as_strided((pages,), (step,)).clone()


def _allocating_call(
    call: Callable[..., Any], passing: str, sets: ArgumentSets, index: int, poisoned: bool = False
) -> Callable[[], Any]:
    """A call that gives back its outputs in new memory, whichever way the contender takes them."""
    layouts = sets.outputs(index)
    if passing == "return":
        inputs = sets.inputs(index)
        if len(layouts) == 1:
            return lambda: call(*inputs)
        return lambda: _several(call(*inputs), len(layouts))
    if len(layouts) > 1:

        def allocate_all_and_call() -> Any:
            outputs = tuple(map(_like, layouts))
            if poisoned:
                _poison(outputs)
            call(*sets.with_outputs(index, outputs))
            return outputs

        return allocate_all_and_call
    (place,), (layout,) = sets.outputs_at, layouts
    before, after = sets.arguments[index][:place], sets.arguments[index][place + 1 :]

    def allocate_and_call() -> Any:
        output = _like(layout)
        call(*before, output, *after)
        return output

    def poison_and_call() -> Any:
        output = _like(layout)
        _poison([output])
        call(*before, output, *after)
        return output

    return poison_and_call if poisoned else allocate_and_call


def _several(returned: Any, count: int) -> Any:
    """What a call returned as several outputs, which are plain tensors in a tuple; None (no call at all) stays."""
    import torch

    if returned is None:
        return None
    outputs = loading.parts_of(returned)
    if outputs is None or len(outputs) != count:
        given = f"a {type(returned).__name__}" if outputs is None else f"{len(outputs)} values"
        raise TypeError(f"it returned {given} where {count} tensors are expected")
    for output in outputs:
        if type(output) is not torch.Tensor:
            raise _not_plain(type(output))
    return outputs


def _like(layout: Tensor) -> Tensor:
    import torch

    return torch.empty_strided(layout.shape, layout.stride(), dtype=layout.dtype, device=layout.device)


class _GraphRunner:
    """GPU: the slope between two CUDA graphs."""

    method = "graph_slope"

    def __init__(self, function: Function, sets: ArgumentSets, sample_ms: float, budget_s: float) -> None:
        import torch

        self.torch = torch
        self.name = function.name
        self.function = function
        self.sets = sets
        self.checked = range(len(sets))
        self.sample_ms = sample_ms
        wanted = len(sets) if function.passing == "destination" else 0
        self.outputs = [tuple(map(_like, sets.outputs(index))) for index in range(wanted)]
        self.kept: list[Any] = [None] * len(sets)
        # The graph of calls on a row that moves, how many they are, what the last gives.
        self.moving: tuple[Any, int, Any]
        self.touched_result: Any = None
        self.budget_s = budget_s
        self.visit_s = 0.0
        self.too_slow = False
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]

    def call(self, index: int = 0) -> Any:
        """One call into this contender's own memory (destination), or one that returns its result."""
        if self.function.passing == "return":
            result, count = self.function.call(*self.sets.inputs(index)), len(self.sets.outputs_at)
            return _several(result if count > 1 else (result,), count)
        self.function.call(*self.sets.with_outputs(index, self.outputs[index]))
        return self.outputs[index]

    def prepare(self) -> None:
        """Warm up, find out how long a call takes, capture both graphs, replay each once."""
        stream = self.torch.cuda.Stream()
        stream.wait_stream(self.torch.cuda.current_stream())
        with _on(self.torch.cuda.stream(stream)):  # workspaces and plans are set up here, not while a graph is captured
            for _ in range(3):
                self.call()
        self.torch.cuda.synchronize()
        sets = len(self.sets)
        probe, calls = self.capture(sets), sets
        self.replay_us(probe)
        each_us = self.replay_us(probe) / calls
        if each_us * calls < 200:  # what a replay costs once is a good part of that
            calls = sets * math.ceil(20 / sets)
            probe = self.capture(calls)
            self.replay_us(probe)
            each_us = self.replay_us(probe) / calls
        self.visit_s = each_us * 4 * sets / 1e6  # the least: twice a short graph of one rotation, and a long one of two
        self.too_slow = self.visit_s > self.budget_s
        if self.too_slow:
            self.long, self._first = probe, Visit(calls, each_us)
            return
        wanted = min(CALLS_LIMIT, math.ceil(1000 * self.sample_ms / each_us))
        self.short_calls = sets * max(1, math.ceil(wanted / SHORT_SHARE / sets))
        self.long_calls = self.short_calls + sets * max(1, math.ceil((wanted - self.short_calls) / sets))
        self.short = probe if self.short_calls == calls else self.capture(self.short_calls)
        self.long = self.capture(self.long_calls)
        self.replay_us(self.short)
        self.each_us = self.replay_us(self.long) / self.long_calls
        self.visit_s = self.each_us * (2 * self.short_calls + self.long_calls) / 1e6

    def capture(self, calls: int) -> Any:
        """A graph of so many calls, in the order of the rotation."""
        self.kept = [None] * len(self.sets)
        turn = itertools.cycle(range(len(self.sets)))

        def call() -> None:
            index = next(turn)
            self.kept[index] = self.call(index)

        return self.capture_calls(call, calls)

    def capture_calls(self, call: Callable[[], None], calls: int) -> Any:
        """A graph of so many calls of this contender. Raises what the capture raises, as the outcome `not_captured`."""
        try:
            return self.capture_other(call, calls)
        except Exception as error:
            error.outcome = "not_captured"  # type: ignore[attr-defined]
            raise

    def replay_us(self, graph: Any) -> float:
        start, end, _ = self.events
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1000

    def visit(self) -> Visit:
        """The short graph to keep the device busy, then short and long between events, queued before one is done."""
        return _slope(self.events, self.short, self.long, self.short_calls, self.long_calls)

    def first_call(self) -> Visit:
        return self._first

    def beside(self, launches: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Visit]]]:
        yield "wall_slope", [self.wall() for _ in range(WALL_PAIRS)]
        eager = self.eager()
        yield "eager", eager
        # The device must stay busy until the host has queued the call, or the pair measures the host.
        busy = max(1, math.ceil(1.5 * min(visit.time_us for visit in eager) / (self.each_us * self.short_calls)))
        yield "event_pair", [self.pair(self.call, busy) for _ in range(SINGLE_CALLS)]
        if launches:
            floor = EmptyKernels(launches)
            short, long = (self.capture_other(floor.launch, count) for count in (50, 250))
            yield "floor", [_slope(self.events, short, long, 50, 250) for _ in range(FLOOR_VISITS + 1)][1:]
            yield "floor_event_pair", [self.pair(floor.launch, busy) for _ in range(SINGLE_CALLS)]

    def capture_other(self, launch: Callable[[], None], calls: int) -> Any:
        graph = self.torch.cuda.CUDAGraph()
        with _on(self.torch.cuda.graph(graph, capture_error_mode="thread_local")):
            for _ in range(calls):
                launch()
        return graph

    def wall(self) -> Visit:
        """Both graphs by the host's clock, from an idle device to an idle device."""
        times_us = []
        for graph in (self.short, self.long):
            self.torch.cuda.synchronize()
            start = time.perf_counter_ns()
            graph.replay()
            self.torch.cuda.synchronize()
            times_us.append((time.perf_counter_ns() - start) / 1000)
        return _visit_of_slope(self.short_calls, self.long_calls, times_us[0], times_us[1])

    def eager(self) -> list[Visit]:
        """What a caller without a graph waits for: calls in a row, output allocated in each, by the host's clock."""
        call = _allocating_call(self.function.call, self.function.passing, self.sets, 0)
        count = max(4, min(100, math.ceil(2000 / self.each_us)))
        visits = []
        for _ in range(4):
            self.torch.cuda.synchronize()
            start = time.perf_counter_ns()
            for _ in range(count):
                call()
            self.torch.cuda.synchronize()
            visits.append(Visit(count, (time.perf_counter_ns() - start) / 1000 / count))
        return visits[1:]

    def pair(self, launch: Callable[[], Any], busy: int) -> Visit:
        """One call between two events, behind work that keeps the device busy meanwhile."""
        start, end, _ = self.events
        for _ in range(busy):
            self.short.replay()
        start.record()
        launch()
        end.record()
        end.synchronize()
        return Visit(1, float(start.elapsed_time(end)) * 1000)

    def energy(self, case: str, mode: str) -> dict[str, Any]:
        """The board's energy over replays of the long graph; where there is no figure, the reason."""
        from kernelproof import gpu

        index = gpu.index_of_first_visible(os.environ.get("CUDA_VISIBLE_DEVICES"))

        def replay() -> None:
            self.long.replay()
            self.torch.cuda.synchronize()

        try:
            spent = energy.per_call(
                replay, self.long_calls, self.each_us * self.long_calls / 1e6, lambda: gpu.energy_mj(index)
            )
        except energy.NoEnergy as why:
            return {"contender": self.name, "case": case, "mode": mode, "reason": str(why)}
        return energy.as_row(spent, self.name, case, mode)

    def trace(self) -> tuple[str, list[dict[str, Any]]]:
        """Who saw it, and the kernels (copies and fills too) that one call runs, from a graph of a few calls."""
        calls = TRACED_CALLS * len(self.sets)
        graph = self.capture(calls)
        graph.replay()
        source, kernels = self.observed(graph.replay, calls)
        if not kernels:
            raise RuntimeError("the profiler saw no kernel")
        return source, kernels

    def observed(self, action: Callable[[], Any], calls: int) -> tuple[str, list[dict[str, Any]]]:
        """Who looked, and what the device did for each of so many calls that an action makes, until it was idle."""

        def work() -> None:
            action()
            self.torch.cuda.synchronize()

        self.torch.cuda.synchronize()
        if installed := cupti.version():
            try:
                if kernels := cupti.per_call(cupti.traced(work), calls):
                    return f"cupti-python {installed}", kernels
                why = "it saw no kernel"
            except Exception as error:  # whatever the binding raises; torch.profiler has a CUPTI of its own
                why = f"{type(error).__name__}: {error}"[:200]
        else:
            why = "cupti-python is not installed"
        return f"torch.profiler ({why})", kernels_of(self.profiled(work), calls)

    def profiled(self, work: Callable[[], None]) -> list[dict[str, Any]]:
        """The events of torch's profiler, which has a CUPTI of its own."""
        activities = [self.torch.profiler.ProfilerActivity.CUDA]
        with self.torch.profiler.profile(activities=activities) as profiler:
            work()
        with tempfile.TemporaryDirectory() as folder, loading.unlimited_files():
            path = Path(folder, "trace.json")
            profiler.export_chrome_trace(str(path))
            events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
        return events

    def repeat(self, times: int) -> float:
        """The very graph that was timed, so many times, until the whole device is idle; µs by events."""
        start, end, _ = self.events
        start.record()
        for _ in range(times):
            self.long.replay()
        end.record()
        self.torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1000

    def touched(self, touch: Touch | Draw, by: int, *, alone: bool = False) -> tuple[Callable[[int], object], int]:
        """A graph of calls on values that move by `by` before each: a function that replays it, and its calls.

        `alone`: what moves the values, without the calls.
        """
        most = DRAWN_CALLS_LIMIT if isinstance(touch, Draw) else CALLS_LIMIT
        count = max(MOVED_CALLS, min(most, math.ceil(TOUCHED_CALLS_US / self.each_us)))

        def step() -> None:
            index = touch.step(by)
            if not alone:
                self.touched_result = self.call(index)

        step()
        self.torch.cuda.synchronize()
        touch.take(count)
        graph = self.capture_calls(step, count)

        def run(times: int) -> None:
            touch.begin()
            for _ in range(times):
                graph.replay()
            self.torch.cuda.synchronize()

        if by and isinstance(touch, Touch):
            self.moving = graph, count, self.touched_result
        return run, count

    def moved(self, touch: Touch | Draw) -> list[Result]:
        """The graph of calls on values that move; what the last one gave, of the values that the case names."""
        if isinstance(touch, Draw):

            def step() -> None:
                self.touched_result = self.call(touch.step(1))

            touch.before(MOVED_CALLS)
            graph, result = self.capture_calls(step, MOVED_CALLS), self.touched_result
        else:
            graph, count, result = self.moving
            touch.before(count)
        graph.replay()
        self.torch.cuda.synchronize()
        return [result] if isinstance(touch, Draw) else [tuple(map(_clone, result)), self.amid(touch)]

    def amid(self, touch: Touch) -> Result:
        """The last result of a long row of timed calls, in the midst of which the values become what the case names.

        Nothing of ours runs between two of them; the last graph alone waits for the values, which are there by then. So
        who computes nothing late in a row cannot tell that it must.
        """
        touch.before(1)
        main, side = self.torch.cuda.current_stream(), self.torch.cuda.Stream()
        half, there = self.torch.cuda.Event(), self.torch.cuda.Event()
        replays = max(ROW_REPLAYS, math.ceil(ROW_US / (self.each_us * self.long_calls)))
        self.torch.cuda.synchronize()
        for number in range(replays):
            if number == replays // 2:
                half.record(main)
                side.wait_event(half)
                with self.torch.cuda.stream(side):
                    touch.finish()
                there.record(side)
            if number == replays - 1:
                main.wait_event(there)
            self.long.replay()
        self.torch.cuda.synchronize()
        result: Result = self.kept[0]
        return result

    def results(self) -> list[Result]:
        self.torch.cuda.synchronize()
        return list(self.kept)

    def poison(self) -> None:
        _poison([output for result in self.kept if result is not None for output in _parts(result)])

    def again(self) -> None:
        """The very graph that was timed, once more."""
        self.long.replay()
        self.torch.cuda.synchronize()


def _slope(events: Sequence[Any], short: Any, long: Any, short_calls: int, long_calls: int) -> Visit:
    begin, middle, end = events
    short.replay()
    begin.record()
    short.replay()
    middle.record()
    long.replay()
    end.record()
    end.synchronize()
    short_us, long_us = (1000 * float(a.elapsed_time(b)) for a, b in ((begin, middle), (middle, end)))
    return _visit_of_slope(short_calls, long_calls, short_us, long_us)


def _visit_of_slope(short_calls: int, long_calls: int, short_us: float, long_us: float) -> Visit:
    each_us = (long_us - short_us) / (long_calls - short_calls)
    return Visit(long_calls, each_us, short_calls, round(short_us, 3), round(long_us, 3))


def kernels_of(events: Sequence[Mapping[str, Any]], calls: int) -> list[dict[str, Any]]:
    """Kernels, copies and fills of a Chrome trace, counted and timed per call, in order of first appearance.

    Events of one name but another grid, block or shared memory are kept apart. Durations are CUPTI's, in µs.
    """
    entries = []
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            details, start_ns = event.get("args", {}), 1000 * float(event["ts"])
            what = {"name": event["name"], "shared_bytes": int(details.get("shared memory", 0))}
            place = {"grid": list(details.get("grid", [])), "block": list(details.get("block", [])), "cluster": []}
            entries.append({**what, **place, "start_ns": start_ns, "end_ns": start_ns + 1000 * float(event["dur"])})
    return cupti.per_call(sorted(entries, key=lambda entry: float(entry["start_ns"])), calls)


def _all_threads() -> dict[str, Any]:
    """What has torch's profiler look into every thread, where this torch can."""
    with contextlib.suppress(ImportError, TypeError):
        from torch._C._profiler import _ExperimentalConfig

        return {"experimental_config": _ExperimentalConfig(profile_all_threads=True)}
    return {}


def operators_of(events: Iterable[Any], calls: int) -> list[dict[str, Any]]:
    """torch's operators among the events of its profiler, with what they call inside: count and µs a call.

    Of an operator that every call has equally often, the median call's: one that another program interrupted is not it.
    inside: operators of which one call takes most of its time, in most of its calls: it is them under another name.
    """
    found: dict[str, list[float]] = defaultdict(list)
    inside: dict[str, Counter[str]] = defaultdict(Counter)
    for event in events:
        if event.name.startswith(traces.OPERATOR) and not _inside_operator(event):
            took_us = event.time_range.elapsed_us()
            found[event.name].append(took_us)
            least_us = traces.IS_OPERATOR * took_us
            inside[event.name].update({name for name, us in _operators_below(event) if us >= least_us > 0})
    place: dict[str, Any] = {"shared_bytes": 0, "grid": [], "block": [], "cluster": []}
    return [
        {
            "name": name,
            **place,
            "count": len(took_us) / calls,
            "duration_us": _of_a_call(took_us, calls),
            "inside": [other for other, often in inside[name].items() if often > len(took_us) / 2],
        }
        for name, took_us in found.items()
    ]


def _operators_below(event: Any) -> Iterator[tuple[str, float]]:
    """Each call of torch's operators that an event makes, at any depth, and the µs that it takes."""
    for child in event.cpu_children:
        if child.name.startswith(traces.OPERATOR):
            yield child.name, child.time_range.elapsed_us()
        yield from _operators_below(child)


def _of_a_call(took_us: Sequence[float], calls: int) -> float:
    each, rest = divmod(len(took_us), calls)
    if rest:
        return sum(took_us) / calls
    return median(sum(took_us[start : start + each]) for start in range(0, len(took_us), each))


def _inside_operator(event: Any) -> bool:
    parent = event.cpu_parent
    return parent is not None and (parent.name.startswith(traces.OPERATOR) or _inside_operator(parent))


EMPTY_PTX = b"""
.version 6.4
.target sm_75
.address_size 64
.visible .entry kernelproof_empty() { ret; }
"""


class EmptyKernels:
    """The floor of a call: an empty kernel for each of its kernels, of the same grid, block, cluster and shared memory.

    The driver compiles the four lines of PTX in a millisecond; nothing needs to be built or found. Dynamic stands in
    for static shared memory. What copies and fills cost is not in it.
    """

    def __init__(self, launches: Sequence[Mapping[str, Any]]) -> None:
        self.function = _empty_kernel()
        self.launches: list[cuda_driver.LaunchConfig] = []
        for launch in launches:
            if launch["grid"] and launch["block"]:
                self.launches += [_like_launch(launch) for _ in range(max(1, round(launch["count"])))]
        most = max((launch.sharedMemBytes for launch in self.launches), default=0)
        if most > 48 << 10:  # above this a kernel without static shared memory must ask
            cuda_driver.driver().cuFuncSetAttribute(self.function, cuda_driver.FUNCTION_DYNAMIC_SHARED_BYTES, most)
        if any(math.prod(launch.get("cluster") or [1]) > PORTABLE_CLUSTER for launch in launches):
            cuda_driver.driver().cuFuncSetAttribute(self.function, cuda_driver.FUNCTION_NONPORTABLE_CLUSTER, 1)

    def launch(self) -> None:
        """One call's worth of empty kernels on the current stream."""
        import torch

        stream = torch.cuda.current_stream().cuda_stream
        for config in self.launches:
            config.hStream = stream
            cuda_driver.driver().cuLaunchKernelEx(ctypes.byref(config), self.function, None, None)


def _like_launch(launch: Mapping[str, Any]) -> cuda_driver.LaunchConfig:
    config = cuda_driver.LaunchConfig(
        grid=tuple(launch["grid"]), block=tuple(launch["block"]), sharedMemBytes=launch["shared_bytes"]
    )
    if attributes := cuda_driver.launch_attributes(cluster=tuple(launch.get("cluster", ()))):
        config.attrs = (cuda_driver.LaunchAttribute * len(attributes))(*attributes)
        config.numAttrs = len(attributes)
    return config


@functools.cache
def _empty_kernel() -> ctypes.c_void_p:
    return cuda_driver.compiled(EMPTY_PTX, "kernelproof_empty")


_on = loading.on_stream


# --- asked for from outside, where another clock runs -----------------------------------------------------------------


class Touch:
    """A row of each input of the first set, as the case's `moved` says, which takes new values from call to call.

    Finite numbers stay finite: no kernel has to take what no case holds. To move by 0 costs the same and changes
    nothing. Values are drawn by a generator that no contender has: who sets torch's own back gets the same again.
    """

    def __init__(self, sets: ArgumentSets) -> None:
        self.sets = sets
        self.rows: list[_TouchedRow] = []
        generator = _own_generator()
        self.keeps_own = False  # values are the case's, to move by 0 from: what a call costs may depend on them
        self.left = 0  # steps until values start elsewhere
        self.chunk = 1
        for name, place in sets.case["moved"].items():
            row = sets.arguments[0][sets.names.index(name)][tuple(place)]
            other = loading.load_image(case_fresh(sets.case)[name], sets.device, with_torch=True).view[tuple(place)]
            self.rows.append(_TouchedRow(row, other, generator))

    def begin(self) -> None:
        """Put values in place that were not there before, numbers of about one half; or the case's own again."""
        for row in self.rows:
            row.begin(own=self.keeps_own)

    def take(self, steps: int) -> None:
        """Steps are made so many at a time from now on."""
        self.chunk, self.left = steps, 0

    def step(self, by: int) -> int:
        """The values of the next call, which is on the set with this index."""
        if self.left == 0:
            for row in self.rows:
                row.start(by)
            self.left = self.chunk
        self.left -= 1
        for row in self.rows:
            row.step(by)
        return 0

    def before(self, calls: int) -> None:
        """Put values in place that so many steps by 1 make the case's own, with these rows of its `fresh`."""
        own = self.sets.case["arguments"]
        self.sets.refresh({name: own[name] for name in case_fresh(self.sets.case)}, [0])
        self.take(calls)
        for row in self.rows:
            row.before(calls)

    def finish(self) -> None:
        """Put the values in place to which the steps after `before` lead."""
        for row in self.rows:
            row.bits.copy_(row.last)


class _TouchedRow:
    """A row as whole numbers: bits that grow, or shrink, by a stride from call to call.

    A float's could grow until they mean infinity. So they start elsewhere from time to time: where the lower bits of a
    count change those of a number about one half, the lowest three of the exponent among them. Floats of one byte have
    too few bits for a stride and start elsewhere in each call. Whole numbers of one byte may be indices or classes, so
    they take the values that the row has or will have, each of them the one before it.
    """

    def __init__(self, row: Tensor, other: Tensor, generator: Any) -> None:
        import torch

        self.row, self.bits, self.last, self.generator = row, _bits(row), _bits(other), generator
        self.own = self.bits.clone()
        self.turns = not row.is_floating_point()  # numbers of a byte: others are not moved
        self.stride = TOUCH_STRIDES.get(row.element_size(), 0)
        self.delta, self.base, self.count, self.work = (torch.zeros_like(self.last) for _ in range(4))
        self.mask = torch.full_like(self.last, 0 if self.turns else _free_bits(row.dtype))
        odd = 2 * torch.randint(0, 64, self.last.shape, generator=generator) + 1
        self.pace = odd.to(self.last.dtype).to(self.last.device)
        self.ring = torch.cat([self.own.flatten(), self.last.flatten()])

    def begin(self, *, own: bool = False) -> None:
        import torch

        if self.turns:
            ring = torch.cat([self.own.flatten(), self.last.flatten()])
            order = torch.randperm(len(ring), generator=self.generator).to(ring.device)
            self.turn(ring if own else ring[order], 0)
            return
        start = torch.empty(self.row.shape).uniform_(0.5, 1.0, generator=self.generator)
        self.base.copy_(self.own if own else _bits(start.to(self.row.dtype)))
        self.delta.fill_(self.stride)
        self.count.zero_()
        self.mask.fill_(_free_bits(self.row.dtype))
        self.bits.copy_(self.base)

    def start(self, by: int) -> None:
        if self.stride and not self.turns:
            self._start_elsewhere(by)

    def turn(self, ring: Tensor, by: int) -> None:
        """Take the values of a ring, turned by so many."""
        self.ring.copy_(ring.roll(by))
        self.bits.copy_(self.ring[: self.bits.numel()].reshape(self.bits.shape))

    def step(self, by: int) -> None:
        if self.turns:
            self.turn(self.ring, by)
        elif self.stride:
            self.bits.add_(self.delta, alpha=by)
        else:
            self._start_elsewhere(by)

    def _start_elsewhere(self, by: int) -> None:
        import torch

        self.count.add_(self.pace, alpha=by)
        torch.bitwise_right_shift(self.count, 0 if self.stride else BYTE_SHIFT, out=self.work)
        self.work.bitwise_and_(self.mask)
        torch.bitwise_xor(self.base, self.work, out=self.bits)

    def before(self, calls: int) -> None:
        """The start from which so many steps lead to the last values: from below, or from above what is too small."""
        import torch

        if self.turns:
            self.turn(torch.cat([self.last.flatten(), self.own.flatten()]), -calls)
            return
        size = self.last & (1 << (8 * self.last.element_size() - 1)) - 1  # without its sign
        if self.stride:
            self.delta.copy_(torch.where(size >= calls * self.stride, self.stride, -self.stride))
            self.base.copy_(self.last - calls * self.delta)
            self.count.copy_(-self.pace)  # the first step starts right there
        else:
            self.base.copy_(self.last)
            self.mask.copy_(torch.where(size >= LARGE_BYTE, 0, _free_bits(self.row.dtype)))
            self.count.copy_(-calls * self.pace.long() % 256)


def _own_generator() -> Any:
    """A generator of random numbers on the CPU with a seed that nobody knows."""
    import torch

    return torch.Generator().manual_seed(int.from_bytes(os.urandom(7)))


def _free_bits(dtype: Any) -> int:
    """The bits of a number about one half that may be anything: it stays finite, and of about its size."""
    import torch

    kind = torch.finfo(dtype)
    mantissa = round(-math.log2(kind.eps))
    free: int = mantissa + min(3, kind.bits - 1 - mantissa - 2)
    return (1 << free) - 1


class Draw:
    """Every row of the inputs that the case's `drawn` names, new for each call, in each set in turn.

    An element becomes its own or the one before it in the case's tensor, as a row of coins says that is tossed for each
    call: the values are as large as before. To step by 0 tosses as well, and changes nothing.
    """

    def __init__(self, sets: ArgumentSets) -> None:
        import torch

        self.sets = sets
        # A graph draws with the generator that its capture registers, which calls that are replayed cannot set back.
        self.generator = _own_generator() if sets.device == "cpu" else None
        self.turn = itertools.cycle(range(len(sets)))
        self.left = 0  # steps to the values of the case's `fresh`,
        self.last: dict[int, Tensor] = {}  # which lie ready, since a capture takes nothing from the host
        self.tensors: list[tuple[int, Tensor, Tensor, Tensor, Tensor]] = []  # place; both; coins; those of no change
        for place in map(sets.names.index, sets.case["drawn"]):
            own, shape = _bits(_clone(sets.arguments[0][place])), list[int]()
            while len(shape) < own.dim() and math.prod(shape) < TOSSES:
                shape.insert(0, own.shape[-1 - len(shape)])
            coins, kept = (torch.zeros(shape, dtype=torch.bool, device=sets.device) for _ in range(2))
            self.tensors.append((place, own, own.roll(1), coins, kept))

    def take(self, steps: int) -> None:
        """Steps are alike, however many are made at a time."""

    def begin(self) -> None:
        """Other values for steps by 0 too."""
        for *_, kept in self.tensors:
            kept.bernoulli_(0.5, generator=self.generator)

    def step(self, by: int) -> int:
        """The values of the next call, which is on the set with this index."""
        import torch

        index = next(self.turn)
        for place, own, other, coins, kept in self.tensors:
            coins.bernoulli_(0.5, generator=self.generator)
            torch.where(coins if by else kept, own, other, out=_bits(self.sets.arguments[index][place]))
        self.left -= 1
        if self.left == 0:
            for place, values in self.last.items():
                self.sets.arguments[index][place].copy_(values)
        return index

    def before(self, calls: int) -> None:
        """So many steps from now the values are those of the case's `fresh`."""
        self.left, sets = calls, self.sets
        self.last = {
            sets.names.index(name): loading.load_image(image, sets.device, with_torch=True).view
            for name, image in case_fresh(sets.case).items()
        }


@dataclass
class _Held:
    """A contender that is ready to be timed from outside: what a replay of each kind does, and how many calls it is."""

    session: _Session
    case: str
    runner: _Runner
    replays: dict[str, tuple[Callable[[int], object], int]]
    touches: dict[str, Touch | Draw]  # by what their last values are: those of the case's `moved` or `fresh`


_HELD: dict[str, _Held] = {}


def hold(
    contenders: Sequence[Mapping[str, Any]], cases: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]
) -> dict[str, Any]:
    """Prepare contenders on one case, for `replay`; what was held before is let go.

    Arguments as in `measure`; a case's `moved` names a row (indices) of some inputs, `drawn` whole ones. Gives back by
    name the calls of a replay of each kind: `timed`, what `measure` times; where rows are named also `same` and `new`,
    calls on the values of the call before, and on values that no call has seen, `touch`, `same` without the calls, and
    `own`, `same` on the case's own values;
    where inputs are named `all_same`, `all_new` and `all_touch`, of which every row is written. Also `outcomes`.
    """
    (case,) = cases
    identity = str(case["id"])
    _HELD.clear()
    with _session(plan) as session:
        functions, mode = session.load(contenders), session.plan.modes[0]
        release(session.plan.device)
        sets = ArgumentSets(case, session.plan.device, mode)
        for name in (name for name in case["contenders"] if name in functions):
            with session.attempt(name, identity, mode) as attempt:
                held = _prepared(session, identity, functions[name], sets)
            if attempt.succeeded and held:
                _HELD[name] = held
    calls = {name: {kind: count for kind, (_, count) in held.replays.items()} for name, held in _HELD.items()}
    return {"calls": calls, "outcomes": session.found.outcomes}


def _prepared(session: _Session, case: str, function: Function, sets: ArgumentSets) -> _Held | None:
    """A contender that is ready for `replay`; None for one that is too slow."""
    runner = session.runner(function, sets)
    runner.prepare()
    if runner.too_slow:
        runner.prepare()  # the first call may have set things up, or waited for other programs
    if runner.too_slow:
        return None
    replays: dict[str, tuple[Callable[[int], object], int]] = {"timed": (runner.repeat, runner.visit().calls)}
    touches: dict[str, Touch | Draw] = {}
    if sets.case.get("moved"):
        touches["moved"] = touch = Touch(sets)
        replays |= {"same": runner.touched(touch, 0), "new": runner.touched(touch, 1)}
        replays["touch"] = runner.touched(touch, 0, alone=True)
        replays["own"] = _on_own_values(touch, *replays["same"])
        if isinstance(runner, _ClockRunner):
            replays["still"] = runner.still(touch)
    if sets.case.get("drawn"):
        touches["fresh"] = draw = Draw(sets)
        replays |= {"all_same": runner.touched(draw, 0), "all_new": runner.touched(draw, 1)}
        replays["all_touch"] = runner.touched(draw, 0, alone=True)
    return _Held(session, case, runner, replays, touches)


def _on_own_values(touch: Touch, same: Callable[[int], object], calls: int) -> tuple[Callable[[int], object], int]:
    """`same` on the values that the case has."""

    def run(times: int) -> None:
        touch.keeps_own = True
        try:
            same(times)
        finally:
            touch.keeps_own = False

    return run, calls


def replay(contender: str, kind: str, times: int) -> dict[str, Any]:
    """Replay so many times, until all of it is done. own_us: of `timed` ones, what the samples' clock says it took."""
    return {"own_us": _HELD[contender].replays[kind][0](times)}


def move(contender: str) -> dict[str, Any]:
    """Hand over, as `outputs`, what the last of some calls in a row gives whose values move up to the case's."""
    held = _HELD[contender]
    session = held.session
    session.outputs.clear()
    for version, touch in held.touches.items():
        session.hand_over(held.case, session.plan.modes[0], version, contender, held.runner.moved(touch))
    return {"outputs": [handed.described(output) for output, handed in session.put_into_files()]}


def let_go(contender: str) -> dict[str, Any]:
    """Free what `hold` prepared."""
    del _HELD[contender]
    return {}


# --- results ----------------------------------------------------------------------------------------------------------


def _parts(result: Result) -> tuple[Tensor, ...]:
    """The outputs that a call gave."""
    return result if type(result) is tuple else (result,)  # one of a candidate's own could compute when it is read


def _distinct(results: Sequence[Result]) -> list[tuple[Result, int]]:
    """The first result, and the first that differs from it in any bit, each with how many sets gave it (or not)."""
    import torch

    first = results[0]
    for output in itertools.chain.from_iterable(map(_parts, results)):
        if type(output) is not torch.Tensor:
            raise _not_plain(type(output))
    bits = _bytes_of(first)
    others = [result for result in results[1:] if not torch.equal(_bytes_of(result), bits)]
    found = [(first, len(results) - len(others))]
    return [*found, (others[0], len(others))] if others else found


def _not_plain(kind: type) -> TypeError:
    """What a call returned is no plain tensor. A subclass may compute when it is read, which no clock sees."""
    return TypeError(f"it returned a {kind.__name__}, not a plain Tensor")


def _bits(value: Tensor) -> Tensor:
    """The same memory as whole numbers of the same size."""
    import torch

    return value.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()])


def _bytes_of(result: Result) -> Tensor:
    """The bytes of all its elements, of one output after the other."""
    import torch

    parts = [output.contiguous().reshape(-1).view(torch.uint8) for output in _parts(result)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _poison(values: Iterable[Tensor]) -> None:
    for value in values:
        value.fill_(float("nan") if value.is_floating_point() else 0x55)


def release(device: str) -> None:
    """Give memory back that nobody holds any more."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()


# --- the machine's state ----------------------------------------------------------------------------------------------


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
