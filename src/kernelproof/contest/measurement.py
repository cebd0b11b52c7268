"""The measuring itself: fresh processes in which contenders take turns, and who is dropped on the way, for what."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import random
import secrets
import statistics as plain_statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof import counters, footprint, formats, records, replies, traces
from kernelproof.config import Config
from kernelproof.contest.entrants import TIMED, Arena, Entrant, values_of
from kernelproof.errors import (
    BenchError,
    ProfileError,
    ToolError,
    WorkerCrashed,
    WorkerError,
    WorkerReplyError,
    WorkerStarved,
    WorkerTimeout,
)
from kernelproof.outside import AGREE_WITHIN, APART_LIMIT, Outside, behind_limit_us, rows_limit_us
from kernelproof.samples import DISCARDED_STATES, PRIMARY

if TYPE_CHECKING:
    from kernelproof.supervisor import Worker, WorkerHost

# In the stage's temporary folder: the inputs, which candidates read; where they write; there, who was touched last.
IMAGES, WORK, COUNTERS, JOURNAL = "images", "work", "counters", "journal"
JOURNAL_BYTES = 1 << 10
CORES_TO_GET_READY = 4  # with fewer, what imports torch takes a core from who is timed
ROOM_FACTOR = 64  # outputs of one size that a contender may hand over in one request: different ones are the exception
SLOW_PROCESSES = 2  # a contender whose single call exceeds its budget is called once in so many processes
REQUEST_BASE_S = 60.0  # a request's time limit: CUDA start-up and graph captures, and below, the measuring itself
REQUEST_FACTOR = 6.0
PAIRED_AGAIN = 2  # processes that two share until one of them is held to have spoilt the other, beside a first
OLDEST_S = 10.0  # that a process waits to be as old as one in which something showed
# Flags of a time: other kernels ran in the timed graph than in a call outside; our clock says another time.
OTHER_PATH, NOT_TRACED = "other_kernels_when_timed", "not_traced"
ONLY_BEHIND_ITSELF, NOT_CAPTURED = "faster_behind_itself", "not_captured"
NOT_SEEN = "not_seen_from_outside"
NOT_TRIED = "not tried: other programs had the cores whenever it was looked at; measure again on a quiet machine"
NEVER_CHANGED, RESTLESS = "values_never_changed", "restless"
UNCHANGED_WORDS = (
    "no benchmark changes whole numbers of more than a byte, `independent` or not, nor what is named in `whole`: {}; "
    "whether what follows from them is remembered was not tried"
)
NOTED = (
    OTHER_PATH,
    records.OUTSIDE_DISAGREES,
    records.IN_COMPANY,
    NOT_TRACED,
    ONLY_BEHIND_ITSELF,
    NOT_SEEN,
    NEVER_CHANGED,
    RESTLESS,
)
CALL_FAILED = "failed"  # an outcome: a call raised
# A GPU's samples of the process itself count too: other programs do not change them, and clocks fall by less than this.
OUTSIDE_LIMIT_OF_SAMPLES = 1.5
# A call in the long graph, less what its replay costs, takes at most so many times the slope; 1.003 in kept samples.
SLOPE_AGREES, REPLAY_US = 1.1, 10.0
# A heap sort of one row of 4000 numbers takes 3.3 times as long where they are new: its branches cannot be predicted.
PREDICTED = 5.0
# Hot samples are at most so many times as long as cold ones. Of kept medians the largest ratio is 1.07 (a power limit).
HOT_OVER_COLD = 1.25
# Of a CPU's cores, in the worst process: threads that spin for one another take hundreds of times as long beside more.
OTHERS_SHARE = 0.1
LOOKS = 3  # at most, at who is accused by times that other programs may have changed
SHARES_SEEN = 2  # how often shares of time must say the same: one interruption makes any operator the heaviest
# A baseline's time among all contenders, in the faster processes, is at most so many times that among baselines alone.
# Tensor cores at work lower a GPU's clock from 1.98 to 1.4 GHz for want of power, and that slows others beside them.
IN_COMPANY_LIMIT = {"cpu": 1.25, "cuda": 1.5}
# On a CPU so many times are enough where a claim passes the gate by its time among all, and would not by that alone.
BUYS_A_CLAIM = 1.03

Output = tuple[str, str, str, str]  # contender, case, values, hash
Columns = Mapping[str, Sequence[Any]]  # samples as processes give them: by column


@dataclass
class Measured:
    """Everything the processes sent back."""

    samples: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    outputs: dict[Output, dict[str, Any]] = field(default_factory=dict)
    kernels: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    eager_kernels: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    rotation: dict[str, dict[str, Any]] = field(default_factory=dict)
    dropped: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    seen_us: dict[tuple[str, str], float] = field(default_factory=dict)  # µs a call by our clock; contender, case
    escapes: list[tuple[str, Arena, Escape]] = field(default_factory=list)
    energy: list[dict[str, Any]] = field(default_factory=list)
    stopping: list[dict[str, Any]] = field(default_factory=list)
    counted: list[counters.Counted] = field(default_factory=list)
    counters: dict[str, Any] = field(default_factory=dict)  # what became of that
    cores: list[int] = field(default_factory=list)  # which contenders of a CPU were kept to
    others: dict[str, list[float]] = field(default_factory=dict)  # case: the share that others had of them, by process
    neighbours: int | None = None  # other processes on the GPU, at most; None where they are not shown
    state_s: float = 0.0  # spent on looking at the machine's state
    # By action: trace, outside, time, alone (baselines without variants, a variant whose times are doubted).
    request_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def measuring_s(self) -> float:
        return sum(self.request_s.values())


class Measurement:
    """Supervises the processes: who is asked to do what, and who has to leave."""

    def __init__(
        self,
        config: Config,
        device: str,
        entrants: Sequence[Entrant],
        arenas: list[Arena],
        host: WorkerHost,
        folder: Path,
    ) -> None:
        self.settings = config.bench
        self.max_ratio = config.gate.max_ratio
        self.device = device
        self.main_shape = config.operator(entrants[0].variant.operator).profile.shape
        self.entrants = {entrant.name: entrant for entrant in entrants}
        self.arenas = arenas
        self.host = host
        self.images, self.scratch, self.counters = folder / IMAGES, folder / WORK, folder / COUNTERS
        self.log = config.results / "logs" / "bench" / f"{entrants[0].variant.operator}.counters.log"
        self.scratch.mkdir()
        self.found = Measured()
        self.counting: counters.Counting | None = None
        self.slow: Counter[tuple[str, str]] = Counter()
        self.beside: Beside | None = None  # of the request under way
        self.oldest_s = 0.0  # how long a process that measured has lived so far, at most
        self.spoilt: set[str] = set()  # cases in which one contender made another's calls go wrong
        self.looked_at: set[tuple[str, str]] = set()  # contender, case: by our own clock
        self.beside_trace: dict[str, list[float]] = {}  # case: the share that others had of the cores, by look
        self.random = random.Random(secrets.randbits(64))
        self.epoch = time.time()

    def run(self) -> Measured:
        """First a process that looks what runs in a call, one that our clock looks at; then those that measure.

        Last, on a GPU, one whose calls Nsight Compute counts. On a CPU only calls that may be torch's are looked into.
        """
        if self.device == "cuda":
            self.process("trace", 0)
            self.judge_kernels()
        elif any(self.may_call_torch(name) for arena in self.arenas for name in self.variants_of(arena)):
            self.look_into_torch()
        self.process("outside", 0)
        with contextlib.ExitStack() as ends:
            for index in range(self.settings.processes):
                _say(f"process {index + 1} of {self.settings.processes}")
                if index == self.settings.processes - 1 and len(os.sched_getaffinity(0)) >= CORES_TO_GET_READY:
                    self.get_ready_to_count(ends)
                self.process("time", index)
            self.look_at_baselines_alone()
            self.look_at_doubtful_times()
            if self.device == "cuda":
                started = time.monotonic()
                self.get_ready_to_count(ends)
                self.count()
                self.found.counters["seconds"] = round(time.monotonic() - started, 3)
        return self.found

    def look_at_baselines_alone(self) -> None:
        """Time the baselines without the variants too: one that is slower beside these is slowed by one of them.

        Who seems to be is looked at again, in another process; its slowest time alone counts. One that fails without
        the variants says nothing of these.
        """
        samples = self.found.samples
        times = defaultdict[tuple[str, str], dict[int, list[float]]](lambda: defaultdict(list))
        for place, key, time_us in self.primary_samples(samples):
            if not reasons_of(samples["throttle"][place]) & DISCARDED_STATES:
                times[key][samples["process"][place]].append(time_us)
        in_company = {  # of five processes the second fastest: other programs seldom slow so many
            key: sorted(map(plain_statistics.median, by_process.values()))[len(by_process) // 4]
            for key, by_process in times.items()
        }
        alone: dict[tuple[str, str], float] = {}
        suspects = {
            arena.id: [name for name in self.taking_part(arena, "time") if name not in self.variants_of(arena)]
            for arena in self.arenas
            if self.variants_of(arena)
        }
        for _ in range(LOOKS):
            try:
                self.time_alone(suspects, in_company, alone)
            except WorkerError:
                return
            slowed = {key: in_company[key] / us for key, us in alone.items() if self.is_slowed(key, us, in_company)}
            suspects = {case: [name for name in names if (name, case) in slowed] for case, names in suspects.items()}
            if not any(suspects.values()):
                return
        for (name, case), ratio in slowed.items():
            self.note(name, case, records.IN_COMPANY, f"{ratio:.3g} times its time in a process of baselines alone")

    def is_slowed(
        self, baseline: tuple[str, str], alone_us: float, in_company: Mapping[tuple[str, str], float]
    ) -> bool:
        """Whether it is that much slower beside the variants; on a CPU, or enough for a claim against it to pass."""
        (_, case), company_us = baseline, in_company[baseline]
        ratio = company_us / alone_us if alone_us > 0 else 0.0
        if ratio > IN_COMPANY_LIMIT[self.device]:
            return True
        if self.device != "cpu" or ratio <= BUYS_A_CLAIM:
            return False
        theirs = [in_company.get((name, case), 0.0) for name in self.variants_of(self.arena(case))]
        return any(self.max_ratio * alone_us < us <= self.max_ratio * company_us for us in theirs)

    def time_alone(
        self,
        suspects: Mapping[str, list[str]],
        in_company: Collection[tuple[str, str]],
        alone: dict[tuple[str, str], float],
    ) -> None:
        """One process of baselines, by case; the slowest median of each goes to `alone`. Raises WorkerError."""
        worker = self.spawn()
        try:
            for arena in self.arenas:
                names = [name for name in suspects.get(arena.id, []) if (name, arena.id) in in_company]
                if not names:
                    continue
                started = time.monotonic()
                reply = self.ask(worker, arena, names, "time", 1, self.random.getrandbits(31), alone=True)
                self.found.request_s["alone"] += time.monotonic() - started
                self.keep_outputs(reply)
                seen = defaultdict[tuple[str, str], list[float]](list)
                for _, key, time_us in self.primary_samples(reply["samples"]):
                    seen[key].append(time_us)
                for key, found in seen.items():
                    alone[key] = max(alone.get(key, 0.0), plain_statistics.median(found))
                if any(outcome["outcome"] == NOT_CAPTURED for outcome in reply["outcomes"]):
                    worker.close()  # torch's allocator and stream are not as before the capture
                    worker = self.spawn()
        finally:
            worker.close()

    def look_at_doubtful_times(self) -> None:
        """Accuse variants whose calls seem to compute nothing where they are timed, if further processes say so too.

        What is compared are times of two moments, between which a machine may change its pace: once is not enough. Of
        a case beside which others had the cores no time decides anything (`cores_shared`): nobody has to be asked.
        """
        for doubt in [*self.faster_when_cold(), *self.faster_in_company()]:
            if self.crowded(max(self.found.others.get(doubt.arena.id, [0.0]))):
                continue
            started = time.monotonic()
            try:
                if escape := self.seen_alone(doubt.look):
                    self.found.escapes.append((doubt.name, doubt.arena, escape))
            except WorkerError as error:
                # What the machine lacks, or lies on its disk, says nothing of a contender.
                ended = isinstance(error, (WorkerCrashed, WorkerTimeout, WorkerReplyError))
                if ended and type(error) is not WorkerStarved:
                    self.drop(doubt.name, None, _how_it_ended(error))
            self.found.request_s["alone"] += time.monotonic() - started

    def faster_when_cold(self) -> Iterator[Doubt]:
        """Variants whose calls are cheaper where inputs have to come from memory.

        Whether results are remembered is looked at in the first mode, which copies of the inputs that take turns give
        away.
        """
        for (name, case), (hot_us, cold_us) in self.faster_cold_us(self.found.samples).items():
            arena = self.arena(case)
            if name not in self.variants_of(arena):
                continue
            reason = (
                f"times escape: a call takes {cold_us:.4g} µs where copies of its inputs take turns (cold), and "
                f"{hot_us:.4g} µs where it gets the same ones again (hot): results are remembered there"
            )

            def is_so(worker: Worker, name: str = name, arena: Arena = arena) -> bool:
                reply = self.ask(worker, arena, [name], "time", 1, self.random.getrandbits(31))
                self.keep_outputs(reply)
                for outcome in reply["outcomes"]:
                    self.take(arena, outcome, self.settings.processes, "time")
                return (name, arena.id) in self.faster_cold_us(reply["samples"])

            yield Doubt(name, arena, reason, is_so)

    def faster_in_company(self) -> Iterator[Doubt]:
        """Variants of a CPU whose calls are cheaper when they are timed, beside others, than when our clock looks.

        A GPU's samples, which other programs do not change, are held against our clock themselves (`drop_escaped`).
        """
        for (name, case), times in self.times_in(self.found.samples).items() if self.device == "cpu" else ():
            arena, company_us = self.arena(case), plain_statistics.median(times.us)
            seen_us, limit_us = self.found.seen_us.get((name, case), 0.0), behind_limit_us(company_us, "cpu")
            if seen_us <= limit_us or name not in self.variants_of(arena):
                continue
            reason = (
                f"times escape: seen from outside a call takes {seen_us:.4g} µs; when it was timed it took "
                f"{company_us:.4g} µs"
            )

            def is_so(worker: Worker, name: str = name, arena: Arena = arena, limit_us: float = limit_us) -> bool:
                outside = self.held(worker, arena, name, self.random.getrandbits(31))
                return outside is not None and outside.settled_us() > limit_us

            yield Doubt(name, arena, reason, is_so)

    def faster_cold_us(self, samples: Columns) -> dict[tuple[str, str], tuple[float, float]]:
        """By contender and case, of those that are cheaper cold: a hot call at the clock of cold ones, and a cold one.

        Hot it is the lower quartile, for whatever the machine does besides adds to a time.
        """
        hot, cold = (self.times_in(samples, mode) for mode in ("hot", "cold"))
        found = {}
        for key in (key for key in hot if key in cold):
            hot_mhz, cold_mhz = (plain_statistics.median(times.mhz) for times in (hot[key], cold[key]))
            slower = min(1.0, hot_mhz / cold_mhz) if cold_mhz else 1.0
            found[key] = slower * _quarter(hot[key].us), plain_statistics.median(cold[key].us)
        return {key: (hot_us, cold_us) for key, (hot_us, cold_us) in found.items() if hot_us > HOT_OVER_COLD * cold_us}

    def times_in(self, samples: Columns, mode: str | None = None) -> dict[tuple[str, str], Times]:
        """By contender and case the samples of the primary method that count, in a mode (default: the first)."""
        found = defaultdict[tuple[str, str], Times](Times)
        for place, key, time_us in self.primary_samples(samples, mode):
            if time_us > 0 and not reasons_of(samples["throttle"][place]) & DISCARDED_STATES:
                found[key].us.append(time_us)
                found[key].mhz.append(samples["sm_clock_mhz"][place] or 0.0)
        return found

    def get_ready_to_count(self, ends: contextlib.ExitStack) -> None:
        """Start the process under Nsight Compute, unless that was done; where it cannot be had, say why."""
        if self.device != "cuda" or self.counting or self.found.counters:
            return
        if not self.settings.counters:
            self.found.counters = {"status": records.NOT_RUN, "reason": "bench.counters is false"}
            return
        try:
            self.counting = ends.enter_context(counters.Counting(self.device, self.counters, self.log))
        except (ProfileError, ToolError) as error:
            self.found.counters = {"status": records.NOT_RUN, "reason": error.message, "remedy": error.hint}

    def count(self) -> None:
        """Ask Nsight Compute of everybody who is still in; where it cannot say, why."""
        if self.counting is None:
            return
        _say("counting what comes from memory")
        kernels = {name: self.found.kernels.get(name, {}) for name in self.entrants}
        cases = [
            {
                **arena.payload,
                "contenders": arena.names,
                "launches": {name: kernels[name].get(arena.id, []) for name in arena.names},
            }
            for arena in self.arenas
            if arena.names
        ]
        taking_part = {name for case in cases for name in case["contenders"]}
        candidates = [entrant.candidate for name, entrant in self.entrants.items() if name in taking_part]
        try:
            self.found.counted, left_out = self.counting.count(self.settings.modes, candidates, cases)
        except (ProfileError, ToolError) as error:
            self.found.counters = {"status": records.NOT_RUN, "reason": error.message, "remedy": error.hint}
        else:
            listed = {f"{entry.contender}, {entry.case}": entry.reason for entry in left_out}
            self.found.counters = {"status": records.OK, "left_out": listed}

    def process(self, action: str, index: int) -> None:
        """One fresh process through all cases, in random order; replaced when a contender brings it down."""
        worker, started = self.spawn(), time.monotonic()
        seed = self.random.getrandbits(32)
        try:
            order = self.random.sample(self.arenas, len(self.arenas))
            for arena in order:
                while names := self.taking_part(arena, action):
                    self.beside = Beside(self.host, worker) if self.device == "cpu" else None
                    try:
                        if action == "outside":
                            whole = self.look_from_outside(worker, arena, seed)
                        else:
                            whole = self.request(worker, arena, names, action, index, seed)
                        self.oldest_s = max(self.oldest_s, time.monotonic() - started)
                        if not whole:
                            worker.close()
                            worker, started = self.spawn(), time.monotonic()
                            continue
                        if arena is order[-1]:
                            worker.close()
                            self.host.check()
                        break
                    except WorkerError as error:
                        worker.close()
                        if not self.drop_alone(arena, names, error, action, index, seed):
                            self.blame(arena, names, error)
                        worker, started = self.spawn(), time.monotonic()
        finally:
            worker.close()

    def spawn(self) -> Worker:
        """A process that may read the inputs, and writes where its results are read."""
        return self.host.spawn(scratch=self.scratch, readable=[self.images])

    def drop_alone(
        self, arena: Arena, names: list[str], error: WorkerError, action: str, index: int, seed: int
    ) -> bool:
        """Where the process did not end by itself, drop who brings one down alone; False when that is nobody.

        A contender that kills the host or writes to the connection has the time to let another one look guilty, and
        even to answer before the host is gone.
        """
        if len(names) == 1 or isinstance(error, (WorkerCrashed, WorkerTimeout, WorkerReplyError)):
            return False
        found = False
        for name in names:
            worker = self.spawn()
            try:
                self.ask(worker, arena, [name], action, index, seed)
                worker.close()
                self.host.check()
            except WorkerError as fault:
                self.drop(name, None, _how_it_ended(fault))
                found = True
            finally:
                worker.close()
        return found

    def taking_part(self, arena: Arena, action: str) -> list[str]:
        """Who is still in, by name; those far too slow for this case only in the first processes."""
        still_in = [name for name in arena.names if self.slow[name, arena.id] < SLOW_PROCESSES]
        looks_into_torch = action == "trace" and self.device == "cpu"
        return [name for name in still_in if self.may_call_torch(name)] if looks_into_torch else still_in

    def variants_of(self, arena: Arena) -> list[str]:
        """Those in it that are no baselines, by name."""
        return [name for name in arena.names if self.entrants[name].variant.role == "variant"]

    def may_call_torch(self, name: str) -> bool:
        """Whether torch's operators can be what a contender's calls are made of."""
        return self.entrants[name].variant.abi in ("python", "torch")

    def request(self, worker: Any, arena: Arena, names: list[str], action: str, index: int, seed: int) -> bool:
        """Ask and keep the answer; False where a capture failed: torch's allocator and stream are not as before it."""
        beside = Beside(self.host, worker) if self.device == "cpu" else None
        started = time.monotonic()
        reply = self.ask(worker, arena, names, action, index, seed)
        elapsed_s = time.monotonic() - started
        if beside:
            shares = self.found.others if action == "time" else self.beside_trace
            shares.setdefault(arena.id, []).append(beside.share())
        self.found.request_s[action] += elapsed_s
        arena.seconds += elapsed_s
        spoilt = [outcome for outcome in reply["outcomes"] if outcome["outcome"] == NOT_CAPTURED]
        for outcome in spoilt:
            self.take(arena, outcome, index, action)
        if not spoilt:
            self.keep(arena, reply, index, action)
        return not spoilt

    def judge_kernels(self) -> None:
        """Drop a variant in whose calls kernels ran that are neither its build's nor declared, before it is timed.

        A trace also shows what another one has left running: who is accused is traced again, in a process of its own,
        and whose kernel is not seen there leaves.
        """
        for name in [name for name in self.found.kernels if self.entrants[name].variant.role == "variant"]:
            contender = self.entrants[name].contender
            for case in list(self.found.kernels[name]):
                fault, seen = self.fault_of_kernels(name, case), traces.names_of(self.found.kernels[name][case])
                if fault and contender.correct and self.is_traced_alone(name, case):
                    self.drop_who_left(set(seen).difference(traces.names_of(self.found.kernels[name][case])), name)
                    fault = self.fault_of_kernels(name, case)
                if fault and contender.correct:
                    reason, check = fault
                    contender.correct = check != "library"
                    self.drop(name, None, reason, check)
                elif not fault:
                    self.note_other_kernels(name, case)

    def fault_of_kernels(self, name: str, case: str) -> tuple[str, str] | None:
        """What is wrong with the kernels that a variant's calls ran, and the check that fails; keeps their origin."""
        entrant, kernels = self.entrants[name], self.found.kernels[name][case]
        eager = self.found.eager_kernels.get(name, {}).get(case, [])
        found = traces.sort_kernels(
            dict.fromkeys([*traces.names_of(kernels), *eager]), entrant.own, entrant.variant.calls
        )
        for kernel in kernels:
            kernel["origin"] = found.origin[kernel["name"]]
        if found.fault:
            return f"wrong: {found.fault} (in {case})", "library"
        some, launches = _not_in_every_call(kernels), sum(kernel["count"] for kernel in kernels if kernel["grid"])
        return (
            (f"times escape: not every call in a graph runs {some}", "wall") if some and not _whole(launches) else None
        )

    def drop_who_left(self, strangers: Collection[str], beside: str) -> None:
        """Drop whose kernel ran while another one was traced, which does not run it by itself.

        A kernel that several have names nobody.
        """
        for kernel in strangers:
            owners = [name for name, entrant in self.entrants.items() if traces.is_own(kernel, entrant.own)]
            if len(owners) == 1 and any(owners[0] in arena.names for arena in self.arenas):
                words = f"its kernel {traces.short(kernel)} ran on the GPU while the calls of {beside} did"
                self.drop(owners[0], None, f"times escape: {words}", "wall")

    def is_traced_alone(self, name: str, case: str) -> bool:
        """Trace a contender again, without the others; False where there are none, or it can no longer be traced."""
        arena = next((arena for arena in self.arenas if arena.id == case), None)
        if arena is None or name not in arena.names or len(self.entrants) == 1:
            return False
        worker = self.spawn()
        try:
            self.keep(arena, self.ask(worker, arena, [name], "trace", 0, self.random.getrandbits(31)), 0, "trace")
        except WorkerError as error:
            self.drop(name, None, _how_it_ended(error))
        finally:
            worker.close()
        return name in arena.names

    def note_other_kernels(self, name: str, case: str) -> None:
        """Flag a contender in whose graph other kernels run than in the same call outside one, or in turns."""
        kernels = self.found.kernels[name][case]
        eager = self.found.eager_kernels.get(name, {}).get(case, [])
        if some := _not_in_every_call(kernels):  # another one runs in its place
            self.note(name, case, OTHER_PATH, f"not every call in a graph runs {some}")
        elif eager and (other := traces.other_names(traces.names_of(kernels), eager)):
            self.note(name, case, OTHER_PATH, f"not in both: {'; '.join(map(traces.short, other))}")

    def look_into_torch(self) -> None:
        """Drop a variant whose calls are the operator of torch that a baseline is, before it is timed.

        What is nothing but that operator has no share of a time; shares must be seen more than once, on quiet cores.
        """
        accused: Counter[tuple[str, str]] = Counter()
        agreed: Counter[tuple[str, str]] = Counter()
        for _ in range(LOOKS):
            self.process("trace", 0)
            again = False
            for name, arena, fault in self.passed_off():
                accused[name, arena.id] += 1
                agreed[name, arena.id] += not self.crowded(self.beside_trace[arena.id][-1])
                if fault.is_all or agreed[name, arena.id] >= SHARES_SEEN:
                    self.entrants[name].contender.correct = False
                    self.drop(name, None, f"wrong: {fault.reason} (in {arena.id})", "library")
                elif accused[name, arena.id] == LOOKS:
                    self.drop(name, None, NOT_TRIED)
                else:
                    again = True
            if not again:
                return

    def passed_off(self) -> Iterator[tuple[str, Arena, traces.PassedOff]]:
        """Variants whose calls, as last traced, seem to be the operator of torch that a baseline is, and the case."""
        traced, self.found.kernels = self.found.kernels, {}  # operators of torch are no kernels in the interval
        for arena in self.arenas:
            seen = {name: by_case[arena.id] for name, by_case in traced.items() if arena.id in by_case}
            variants = self.variants_of(arena)
            baselines = {name: operators for name, operators in seen.items() if name not in variants}
            for name in [name for name in variants if name in seen]:
                if fault := traces.passed_off(seen[name], baselines, self.entrants[name].variant.calls):
                    yield name, arena, fault

    def note(self, name: str, case: str, outcome: str, message: str) -> None:
        """Keep what flags a contender's times in a case (Summary.flags)."""
        self.found.notes.append({"contender": name, "case": case, "outcome": outcome, "message": message})

    def look_from_outside(self, worker: Worker, arena: Arena, seed: int) -> bool:
        """Time every variant of a case by our own clock: is what it says so, also for values it has not seen?

        A clock that a contender patched is everybody's in its process: who seems to lie is asked again, alone. False
        where somebody could not be held: the others want another process.
        """
        for name in self.variants_of(arena):
            if (name, arena.id) in self.looked_at:
                continue
            started = time.monotonic()
            if self.seen_from_outside(worker, arena, name, seed):
                escape = self.seen_alone(functools.partial(self.seen_from_outside, arena=arena, name=name, seed=seed))
                if escape and escape.spoils_others:
                    self.drop(name, None, escape.reason, escape.check)
                    worker.close()
                elif escape:
                    self.found.escapes.append((name, arena, escape))
            self.looked_at.add((name, arena.id))
            self.found.request_s["outside"] += time.monotonic() - started
            if not worker.alive:
                return False
        return True

    def seen_alone(self, look: Callable[[Worker], Escape | None]) -> Escape | None:
        """What is seen of a contender in a process of its own; where others have the cores, in another one again.

        So too where more processes than one must see it.
        """
        agreed = 0
        for _ in range(LOOKS):
            alone = self.spawn()
            try:
                beside = Beside(self.host, alone)
                escape = look(alone)
                share = beside.share()
            finally:
                alone.close()
            if escape is None:
                return None
            if not escape.by_times or not self.crowded(share):
                agreed += 1
                if agreed >= escape.processes:
                    return escape
            not_tried = dataclasses.replace(escape, reason=NOT_TRIED, check="")
        return not_tried

    def crowded(self, share: float) -> bool:
        """Whether others had so much of the cores that threads which spin for one another take any time."""
        return self.device == "cpu" and len(self.host.cores) > 1 and share > OTHERS_SHARE

    def seen_from_outside(self, worker: Worker, arena: Arena, name: str, seed: int) -> Escape | None:
        """Hold a contender's own account of its time in a case, and its time on unseen values, against our clock.

        Raises WorkerError like every request; the journal names who is held.
        """
        outside = self.held(worker, arena, name, seed)
        if outside is None:
            return None
        rested = any(known == name for known, _ in self.looked_at)
        if not rested and (works_on := outside.works_on()):
            words = f"while nobody calls it it keeps {works_on:.2g} threads at work, where others need the cores"
            return Escape(f"times escape: {words}", spoils_others=True, by_times=False)
        apart, seen_us, own_us = outside.clocks_apart()
        words = f"seen from outside a call takes {seen_us:.4g} µs, by the clock of its own process {own_us:.4g} µs"
        self.found.seen_us[name, arena.id] = seen_us
        if apart > APART_LIMIT:
            return Escape(f"times escape: {words}", spoils_others=True)
        if apart > AGREE_WITHIN:
            self.note(name, arena.id, records.OUTSIDE_DISAGREES, words)
        inputs, moving = arena.calls[TIMED].inputs, arena.payload["drawn"]
        if still := [each for each, tensor in inputs.items() if tensor.numel() > 1 and each not in moving]:
            self.note(name, arena.id, NEVER_CHANGED, UNCHANGED_WORDS.format(formats.listed(still)))
        if "moved" not in arena.calls:
            return None
        escape = self.remembers(outside, arena, seen_us)
        drawn = self.rows_too_far_apart(outside, arena) if escape is None else None
        self.keep_moved(outside, arena)
        return escape or drawn

    def remembers(self, outside: Outside, arena: Arena, seen_us: float) -> Escape | None:
        """Whether calls are fast on values that were seen before, or behind calls of their own, alone."""
        apart, new_us, same_us = outside.values_apart()
        if apart > APART_LIMIT and not (self.moves_all(arena) and new_us <= self.unseen_limit_us(arena, same_us)):
            return self.remembered("that it has not seen", new_us, same_us)
        behind_us, own_us = outside.behind_touch_us(seen_us)
        if behind_us <= behind_limit_us(own_us, self.device):
            first_us = outside.unchanged_us
            if self.device == "cuda":
                return None
            unseen_us, still_us = outside.unseen_apart()
            if unseen_us > self.unseen_limit_us(arena, still_us):
                escape = self.remembered("that it has not seen", unseen_us, still_us)
                return dataclasses.replace(escape, processes=LOOKS)
            if own_us <= behind_limit_us(first_us, "cpu"):
                return None
            words = f"a call takes {own_us:.4g} µs since values changed for the first time, and {first_us:.4g} before"
            return Escape(f"times escape: {words}: results are remembered", processes=LOOKS)
        words = f"behind other work a call takes {behind_us:.4g} µs, behind one of its own {own_us:.4g} µs"
        if self.device == "cpu":  # nothing overlaps there that could make it cheaper
            return Escape(
                f"times escape: {words}{'' if outside.spins else ' of processor time'}: results are remembered"
            )
        self.note(outside.name, arena.id, ONLY_BEHIND_ITSELF, words)
        return None

    def moves_all(self, arena: Arena) -> bool:
        """Whether most of what a call on a CPU reads moves, as where an input is one row: branches change with it."""
        call = arena.calls[TIMED]
        moved = sum(call.tensor(name)[tuple(place)].numel() for name, place in arena.payload["moved"].items())
        return self.device == "cpu" and 2 * moved >= sum(tensor.numel() for tensor in call.inputs.values())

    def unseen_limit_us(self, arena: Arena, same_us: float) -> float:
        """What a call may take on values that it has not seen, where it takes so much on the last ones again."""
        limit_us = rows_limit_us(same_us, self.device)
        return max(limit_us, PREDICTED * same_us) if self.moves_all(arena) else limit_us

    def rows_too_far_apart(self, outside: Outside, arena: Arena) -> Escape | None:
        """Whether calls take too long when every row is new, for what they take when none is."""
        if not arena.payload["drawn"]:
            return None
        new_us, same_us = outside.rows_apart()
        if new_us <= self.unseen_limit_us(arena, same_us):
            return None
        return self.remembered("of which every row is new", new_us, same_us)

    def remembered(self, which: str, new_us: float, same_us: float) -> Escape:
        """What a call takes on such values, and on those of the call before, in words."""
        of_what = " of processor time" if self.device == "cpu" else ""
        return Escape(
            f"times escape: a call on values {which} takes {new_us:.4g} µs{of_what}, on those of the call before "
            f"{same_us:.4g} µs: results are remembered"
        )

    def held(self, worker: Worker, arena: Arena, name: str, seed: int) -> Outside | None:
        """A contender that the worker holds ready on a case; None for one that is too slow, or failed."""
        limit_s = REQUEST_BASE_S + REQUEST_FACTOR * self.settings.max_seconds
        cases = [{**arena.payload, "contenders": [name]}]
        contenders, plan = [self.entrants[name].candidate], self.plan("time", seed)
        room_bytes = self.kept_bytes() + ROOM_FACTOR * arena.calls[TIMED].output_bytes
        asked = {"step": "hold", "contenders": contenders, "cases": cases, "plan": plan}
        held = worker.request("witness", timeout_s=limit_s, room_bytes=room_bytes, **asked)
        touched = ["same", "new", "touch", "own"] if arena.payload["moved"] else []
        touched += ["still"] if touched and self.device == "cpu" else []
        drawn = ["all_same", "all_new", "all_touch"] if arena.payload["drawn"] else []
        replies.check_held(held, name, ["timed", *touched, *drawn])
        if name not in held["calls"]:
            if held["outcomes"]:
                self.note(name, arena.id, NOT_SEEN, held["outcomes"][-1]["message"])
                worker.close()  # a failed capture leaves torch's allocator and stream not as they were
            return None
        spins = self.device == "cpu" and len(self.host.cores) > 1
        return Outside(worker, name, held["calls"][name], self.device, room_bytes, spins=spins)

    def keep_moved(self, outside: Outside, arena: Arena) -> None:
        """Have the results of calls on values that changed from call to call handed over, and let the contender go."""
        moved = outside.ask("move")
        replies.check_moved(moved, outside.name, arena.id, self.settings.modes)
        self.keep_outputs(moved)
        outside.ask("let_go")

    def arena(self, case: str) -> Arena:
        """The one of a case, by its id."""
        return next(arena for arena in self.arenas if arena.id == case)

    def drop_escaped(self) -> None:
        """Take those out whose times are not what they seem: after their results were judged, for wrong is worse."""
        said_us = self.largest_samples() if self.device == "cuda" else {}
        for (name, case), seen_us in self.found.seen_us.items():
            if seen_us > OUTSIDE_LIMIT_OF_SAMPLES * said_us.get((name, case), math.inf):
                reason = (
                    f"times escape: seen from outside a call takes {seen_us:.4g} µs; when it was timed, its process "
                    f"said at most {said_us[name, case]:.4g} µs"
                )
                self.found.escapes.append((name, self.arena(case), Escape(reason)))
        self.found.escapes += self.bent()
        for name, arena, escape in self.found.escapes:
            if name in arena.names:
                self.drop(name, arena, escape.reason, escape.check)

    def bent(self) -> Iterator[tuple[str, Arena, Escape]]:
        """Variants that take longer in the long graph than the slope says: they were slowed in the short one alone."""
        columns, shares = self.found.samples, defaultdict[tuple[str, str, str], list[float]](list)
        names = ("contender", "case", "mode", "method", "calls", "time_us", "long_us")
        for name, case, mode, method, calls, time_us, long_us in zip(*(columns[n] for n in names), strict=True):
            if method == "graph_slope" and long_us and time_us > 0:
                shares[name, case, mode].append((long_us - REPLAY_US) / calls / time_us)
        for (name, case, mode), found in shares.items():
            share = plain_statistics.median(found)
            if share > SLOPE_AGREES and self.entrants[name].variant.role == "variant":
                reason = f"times escape: in the long graph a call takes {share:.3g} times what the slope says ({mode})"
                yield name, self.arena(case), Escape(reason)

    def largest_samples(self) -> dict[tuple[str, str], float]:
        """The largest sample of the primary method, in µs, by contender and case, in the mode that we looked at."""
        found = dict[tuple[str, str], float]()
        for _, key, time_us in self.primary_samples(self.found.samples):
            found[key] = max(time_us, found.get(key, 0.0))
        return found

    def primary_samples(
        self, samples: Columns, mode: str | None = None
    ) -> Iterator[tuple[int, tuple[str, str], float]]:
        """Those of the primary method in a mode (default: the first): place in the columns, contender and case, µs."""
        columns = (samples[name] for name in ("contender", "case", "mode", "method", "time_us"))
        wanted = (mode or self.settings.modes[0], PRIMARY[self.device])
        for place, (name, case, *taken, time_us) in enumerate(zip(*columns, strict=True)):
            if tuple(taken) == wanted:
                yield place, (name, case), time_us

    def plan(self, action: str, seed: int, *, with_energy: bool = False) -> dict[str, Any]:
        """What a process is told of how to measure (timing.Plan)."""
        return {
            "action": action,
            "device": self.device,
            "modes": self.settings.modes,
            "blocks": self.settings.blocks,
            "sample_ms": self.settings.sample_ms,
            "max_seconds": self.settings.max_seconds,
            "seed": seed,
            "epoch": self.epoch,
            "scratch": str(self.scratch),
            "journal": str(self.scratch / JOURNAL),
            "launches": self.found.kernels,
            "precision": self.settings.precision,
            "confidence": self.settings.confidence,
            "baselines": [name for name, entrant in self.entrants.items() if entrant.variant.role == "baseline"],
            "energy": with_energy and self.settings.energy and self.device == "cuda" and action == "time",
        }

    def ask(
        self, worker: Any, arena: Arena, names: list[str], action: str, index: int, seed: int, *, alone: bool = False
    ) -> Mapping[str, Any]:
        """A process's answer for one case; `alone`: in the first mode, by no more blocks than must be.

        Raises WorkerError for one that has not the form of an answer.
        """
        few = {"modes": self.settings.modes[:1], "precision": 0.0} if alone else {}
        reply: Mapping[str, Any] = worker.request(
            "measure",
            timeout_s=REQUEST_BASE_S + REQUEST_FACTOR * self.settings.max_seconds * len(names),
            room_bytes=self.kept_bytes() + ROOM_FACTOR * len(names) * arena.calls[TIMED].output_bytes,
            contenders=[self.entrants[name].candidate for name in names],
            cases=[{**arena.payload, "contenders": names}],
            plan=self.plan(action, seed, with_energy=index == 0 and arena.case.shape == self.main_shape) | few,
        )
        replies.check_measured(reply, names, arena.id, self.settings.modes)
        return reply

    def kept_bytes(self) -> int:
        """Room on the disk that the results so far take by right."""
        sizes = {arena.id: arena.calls[TIMED].output_bytes for arena in self.arenas}
        return sum(sizes[case] for _, case, _, _ in self.found.outputs)

    def keep(self, arena: Arena, reply: Mapping[str, Any], index: int, action: str) -> None:
        count = len(reply["samples"]["contender"])
        self.found.samples["process"] += [index] * count
        for name, values in reply["samples"].items():
            self.found.samples[name] += values
        for name, by_case in reply["kernels"].items():
            self.found.kernels.setdefault(name, {}).update(by_case)
        for name, cases in reply["eager_kernels"].items():
            self.found.eager_kernels.setdefault(name, {}).update(cases)
        self.found.rotation.update(reply["rotation"])
        self.found.energy += reply["energy"]
        self.found.stopping += reply["stopping"]
        if reply["neighbours"] is not None:
            self.found.neighbours = max(self.found.neighbours or 0, reply["neighbours"])
        self.found.state_s += reply["state_s"]
        self.keep_outputs(reply)
        for outcome in reply["outcomes"]:
            self.take(arena, outcome, index, action)

    def keep_outputs(self, reply: Mapping[str, Any]) -> None:
        """Results to judge, each once."""
        for output in reply["outputs"]:
            values = values_of(output["version"])
            self.found.outputs.setdefault((output["contender"], output["case"], values, output["sha256"]), output)

    def take(self, arena: Arena, outcome: Mapping[str, Any], index: int, action: str) -> None:
        """What happened to a contender in a process that lived on."""
        name, what = outcome["contender"], outcome["outcome"]
        if what == "slow":
            self.slow[name, arena.id] += 1
            self.found.notes.append({**outcome, "process": index})
        elif what in ("beside_failed", NOT_TRACED, RESTLESS):
            self.found.notes.append({**outcome, "process": index})
        elif what == CALL_FAILED and outcome["case"]:
            words = f"{what}: {outcome['message']}"

            def fails_again(reply: Mapping[str, Any]) -> bool:
                return any(
                    each["contender"] == name and each["outcome"] == CALL_FAILED for each in reply.get("outcomes", ())
                )

            self.drop_if_guilty(name, arena, words, "", fails_again, action)
        else:
            check = "wall" if what == replies.ESCAPE else ""
            self.drop(
                name, arena if outcome["case"] else None, f"{what.replace('_', ' ')}: {outcome['message']}", check
            )

    def drop_if_guilty(
        self,
        name: str,
        arena: Arena,
        reason: str,
        check: str,
        is_so: Callable[[Mapping[str, Any]], bool],
        action: str = "time",
    ) -> None:
        """Drop a contender for what was seen beside others: from the case, unless one of them brought it about.

        is_so: whether the answer of a process shows it, of one that timed or of one that was held (its `outputs`). Who
        shows it alone, or beside everybody, is dropped for it; where it shows beside some only, these are, from all
        cases, if it shows beside them each time, and alone not once in as many tries as there were pairs. Where it
        shows with nobody, it is looked for once more, alone in a process as old as any was that measured, for the
        contender may go by that; and not there either it has no time, and is not accused.
        """
        others = sorted((arena.asked | set(arena.names)) - {name})  # also who has left since
        if not others or self.shows_alone(name, arena, is_so, action):
            self.drop(name, arena, reason, check)
            return
        beside = [other for other in others if self.shows([other, name], arena, is_so, action)]
        guilty = [other for other in beside if self.entrants[other].variant.role == "variant"]
        is_variant = self.entrants[name].variant.role == "variant"
        if guilty and (len(beside) < len(others) or not is_variant):
            if any(self.shows([name], arena, is_so, action) for _ in others):
                self.drop(name, arena, reason, check)  # it comes by chance: seldom alone, and in few of the pairs
                return
            beside = [
                other
                for other in guilty
                if all(self.shows([other, name], arena, is_so, action) for _ in range(PAIRED_AGAIN))
            ]
            for other in beside:
                words = f"beside it, and not alone, the calls of {name} in {arena.id} go wrong"
                self.spoilt.add(arena.id)
                self.drop(other, None, f"spoils others: {words} ({reason})", "outputs")
        elif beside:
            self.drop(name, arena, reason, check)
        if beside or arena.id in self.spoilt:
            return
        if self.shows([name], arena, is_so, action, self.calls_by_then(arena), min(self.oldest_s, OLDEST_S)):
            self.drop(name, arena, reason, check)
        else:
            seen = "not tried further: seen among all, and again neither alone nor beside any one of them"
            self.drop(name, arena, f"{seen}: {reason}")

    def shows_alone(self, name: str, arena: Arena, is_so: Callable[[Mapping[str, Any]], bool], action: str) -> bool:
        """Whether something shows in a process that has this contender alone, timed or held.

        Who counts its calls has made as many as by then.
        """
        rounds = self.calls_by_then(arena)
        if self.shows([name], arena, is_so, action, rounds):
            return True
        worker = self.spawn()
        try:
            outside = self.held(worker, arena, name, self.random.getrandbits(31)) if "moved" in arena.calls else None
            if outside is None:
                return False
            for _ in range(rounds):
                _, seen_us, _ = outside.clocks_apart()
                outside.values_apart()
                outside.behind_touch_us(seen_us)
            return is_so(outside.ask("move"))
        except WorkerError:
            return True
        finally:
            worker.close()

    def calls_by_then(self, arena: Arena) -> int:
        """How often a contender was timed in a process when this case's results were there, and once more."""
        return 2 + self.arenas.index(arena)

    def shows(
        self,
        names: list[str],
        arena: Arena,
        is_so: Callable[[Mapping[str, Any]], bool],
        action: str,
        rounds: int = 1,
        age_s: float = 0.0,
    ) -> bool:
        """Whether something shows in a process that has some contenders; one that ends shows it.

        age_s: how old it is to be when it is asked for the last time.
        """
        worker = self.spawn()
        started = time.monotonic()
        try:
            number = self.settings.processes
            for left in reversed(range(rounds)):
                if not left:
                    time.sleep(max(0.0, started + age_s - time.monotonic()))
                if is_so(self.ask(worker, arena, names, action, number, self.random.getrandbits(31))):
                    return True
            return False
        except WorkerError:
            return True
        finally:
            worker.close()
            self.found.request_s["alone"] += time.monotonic() - started

    def blame(self, arena: Arena, names: list[str], error: WorkerError) -> None:
        """The process is gone: the contender that the journal names leaves the benchmark."""
        name, _ = _read_journal(self.scratch / JOURNAL)
        if name not in names:
            raise BenchError(
                f"the measuring process failed, and no contender is to blame: {error.message}", subject=arena.id
            )
        late = isinstance(error, WorkerTimeout) and not error.at_work
        late_for_others = late and self.beside and self.crowded(self.beside.share())
        self.drop(name, None, NOT_TRIED if late_for_others else _how_it_ended(error))

    def drop(self, name: str, arena: Arena | None, reason: str, check: str = "") -> None:
        """Out of one case, or of all; its samples stay in the file and count for nothing. `check`: which one it failed.

        outputs: wrong results; library: kernels that are not its own; wall: times that are not so.
        """
        entry = {"contender": name, "case": arena.id if arena else None, "reason": reason}
        if not any(entry.items() <= known.items() for known in self.found.dropped):  # of another mode already
            _say(f"{name} is dropped{f' from {arena.id}' if arena else ''}: {reason.splitlines()[0]}")
        entry |= {"check": check} if check else {}
        if entry not in self.found.dropped:
            self.found.dropped.append(entry)
        for other in [arena] if arena else self.arenas:
            if name in other.names:
                other.names.remove(name)
        if not any(name in other.names for other in self.arenas):
            self.entrants[name].contender.outcome = f"dropped: {reason}"


@dataclass
class Times:
    """Samples of a contender, case and mode: µs, and the SM clock at each (0 where nobody knows)."""

    us: list[float] = field(default_factory=list)
    mhz: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Doubt:
    """What times of two moments say of a contender; `is_so` asks a process in which it is alone."""

    name: str
    arena: Arena
    reason: str
    is_so: Callable[[Worker], bool]

    def look(self, worker: Worker) -> Escape | None:
        """What this process says of it, which counts if as many as look say the same."""
        return Escape(self.reason, processes=LOOKS) if self.is_so(worker) else None


@dataclass(frozen=True)
class Escape:
    """Why a contender's time is not what it seems.

    spoils_others: others' times in its process cannot be trusted either. by_times: that other programs had the cores
    may be why it seems so. processes: how many have to see it, where times of two moments are compared. check: which
    one it failed; none where it was not tried.
    """

    reason: str
    spoils_others: bool = False
    by_times: bool = True
    processes: int = 1
    check: str = "wall"


class Beside:
    """The share that others have of the cores which contenders of a CPU are kept to, from when it is made."""

    def __init__(self, host: WorkerHost, worker: Worker) -> None:
        self.cores, self.worker = host.cores, worker
        self.started, self.had_s = time.monotonic(), self.others_s()

    def others_s(self) -> float:
        """Seconds so far that neither the worker nor we had them."""
        return footprint.busy_s(self.cores) - self.worker.processor_time_s() - time.process_time()

    def share(self) -> float:
        """Of all that these cores could have worked since."""
        return (self.others_s() - self.had_s) / ((time.monotonic() - self.started) * len(self.cores))


def _how_it_ended(error: WorkerError) -> str:
    what = {WorkerTimeout: "hung", WorkerReplyError: "failed"}.get(type(error), "crashed")
    slow = "; if it only takes long, --set bench.max_seconds=SECONDS gives it more" if what == "hung" else ""
    return f"{what}: {error.message}{slow}"


def _quarter(times_us: Collection[float]) -> float:
    """The lower quartile."""
    return sorted(times_us)[len(times_us) // 4]


def _not_in_every_call(kernels: Sequence[Mapping[str, Any]]) -> str | None:
    """The first kernel that did not run as often in each call; copies and fills, which have no grid, left out."""
    some = next((str(kernel["name"]) for kernel in kernels if kernel["grid"] and not _whole(kernel["count"])), None)
    return traces.short(some) if some else None


def _whole(count: float) -> bool:
    """Is a mean over calls the same in each? It was rounded."""
    return round(count) > 0 and abs(count - round(count)) <= 0.01


def _read_journal(path: Path) -> tuple[str, str]:
    """Contender and case that the process touched last; the candidate shares that process, so this is only a hint."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            name, case = json.loads(stream.read(JOURNAL_BYTES))
        return str(name), str(case)
    except (OSError, ValueError, TypeError, RecursionError):
        return "", ""


def reasons_of(throttle: str | None) -> set[str]:
    """Why a sample's clock was held down."""
    return set((throttle or "").split("|"))


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
