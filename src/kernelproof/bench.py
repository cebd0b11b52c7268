"""The bench stage: all contenders of one operator on one device, measured against one another.

`run` is the table of contents: who takes part, on what; K fresh processes; are the outputs of the timed calls right;
what do the samples say. Only contenders that the test stage found correct are timed. One that fails on the way is
dropped by name and the others go on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import random
import secrets
import statistics as plain_statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kernelproof import (
    builds,
    claims,
    counters,
    footprint,
    formats,
    launches,
    methods,
    records,
    replies,
    repository,
    traces,
)
from kernelproof.cases import enumerate_cases
from kernelproof.config import Config, OperatorConfig, VariantConfig, check_declared
from kernelproof.errors import (
    BenchError,
    LeaseError,
    ProfileError,
    RecordError,
    TestError,
    ToolError,
    WorkerCrashed,
    WorkerError,
    WorkerReplyError,
    WorkerStarved,
    WorkerTimeout,
    blamed,
)
from kernelproof.outside import AGREE_WITHIN, APART_LIMIT, Outside, behind_limit_us, rows_limit_us
from kernelproof.processes import keep_freed_memory, scratch_folder
from kernelproof.records import (
    BenchCase,
    BenchRecord,
    BuildRecord,
    Case,
    CaseResult,
    Contender,
    EnergyRow,
    OracleRow,
    RatioRow,
    TestRecord,
    TimeRow,
    UntimedRow,
)
from kernelproof.samples import DISCARDED_STATES

if TYPE_CHECKING:
    from torch import Tensor

    from kernelproof import statistics
    from kernelproof.launches import Step
    from kernelproof.operators import Call, Operator, Reference
    from kernelproof.supervisor import Worker, WorkerHost

T = TypeVar("T")
R = TypeVar("R")
PRIMARY = {"cpu": "cpu_clock", "cuda": "graph_slope"}
TIMED = "timed"
# In the stage's temporary folder: the inputs, which candidates read; where they write; there, who was touched last.
IMAGES, WORK, COUNTERS, JOURNAL = "images", "work", "counters", "journal"
JOURNAL_BYTES = 1 << 10
READ_AHEAD = 2  # results, while one is judged
CORES_TO_GET_READY = 4  # with fewer, what imports torch takes a core from who is timed
ROOM_FACTOR = 64  # outputs of one size that a contender may hand over in one request: different ones are the exception
SLOW_PROCESSES = 2  # a contender whose single call exceeds its budget is called once in so many processes
REQUEST_BASE_S = 60.0  # a request's time limit: CUDA start-up and graph captures, and below, the measuring itself
REQUEST_FACTOR = 6.0
WIDEST = 100.0  # a ratio whose interval's ends are so many times apart is no figure: of two processes, 0 to 360,000
POWER_CAP = "sw_power_cap"
OLDEST_S = 10.0  # that a process waits to be as old as one in which something showed
LEAVING_S = 3.0  # in which the processes of who had a GPU before are gone
WAITED = "waited_s"  # for others to leave the GPU
NOT_SHOWN = "not known: NVML shows no process here, not even our own"
# Flags of a time: other kernels ran in the timed graph than in a call outside; our clock says another time.
OTHER_PATH, NOT_TRACED = "other_kernels_when_timed", "not_traced"
ONLY_BEHIND_ITSELF, NOT_CAPTURED = "faster_behind_itself", "not_captured"
NOT_SEEN = "not_seen_from_outside"
NOT_TRIED = "not tried: other programs had the cores whenever it was looked at; measure again on a quiet machine"
NEVER_CHANGED, RESTLESS = "values_never_changed", "restless"
UNCHANGED_WORDS = "its inputs are `whole`, or may be indices: whether results are remembered was not tried"
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
WHEN = {
    "timed": "when timed",
    "poisoned": "after its output was poisoned",
    "fresh": "for new values in the same memory",
    "moved": "for values that changed from call to call",
}
# A GPU's samples of the process itself count too: other programs do not change them, and clocks fall by less than this.
OUTSIDE_LIMIT_OF_SAMPLES = 1.5
# A call in the long graph, less what its replay costs, takes at most so many times the slope; 1.003 in kept samples.
SLOPE_AGREES, REPLAY_US = 1.1, 10.0
# A heap sort of one row of 4000 numbers takes 3.3 times as long where they are new: its branches cannot be predicted.
PREDICTED = 5.0
# Hot samples are at most so many times as long as cold ones; of kept medians the largest ratio is 1.04.
HOT_OVER_COLD = 1.25
# Of a CPU's cores, in the worst process: threads that spin for one another take hundreds of times as long beside more.
OTHERS_SHARE = 0.1
LOOKS = 3  # at most, at who is accused by times that other programs may have changed
# A baseline's time among all contenders, in the faster processes, is at most so many times that among baselines alone.
# Tensor cores at work lower a GPU's clock from 1.98 to 1.4 GHz for want of power, and that slows others beside them.
IN_COMPANY_LIMIT = {"cpu": 1.25, "cuda": 1.5}
# On a CPU so many times are enough where a claim passes the gate by its time among all, and would not by that alone.
BUYS_A_CLAIM = 1.03
CLOCK_CHANGED = 0.05  # between the blocks of a contender in one process: their times are of two machines

Key = tuple[str, str, str, str]  # contender, case, mode, method
Output = tuple[str, str, str, str]  # contender, case, values, hash
Columns = Mapping[str, Sequence[Any]]  # samples as processes give them: by column
Samples = dict[Key, dict[int, dict[int, list[float]]]]  # … process, block: µs of each visit


def run(config: Config, operator: str, device: str, output: Path) -> BenchRecord:
    """Measure, judge, summarise; write the record and, beside it, every sample as compressed CSV.

    Raises OSError where nothing can be written beside `output`, and ConfigError where the operator's module does not
    take what the configuration asks of it; then nothing is written, and what an earlier run left stays. On a machine
    without the device nobody asks the module.
    """
    from kernelproof import gpu
    from kernelproof.lease import own_cores

    started = time.monotonic()
    record = BenchRecord(operator=operator, device=device, provenance=repository.provenance(config.root))
    entrants = _entrants(config, config.operator(operator), device)
    record.contenders = [entrant.contender for entrant in entrants]
    samples_path = output.with_suffix(".csv.gz")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=output.parent):
        pass  # what cannot be written there is told before anything is measured
    if reason := _cannot_run(device, entrants):
        record.status, (record.reason, record.remedy) = records.NOT_RUN, reason
    else:
        try:
            with own_cores(device), blamed(config.operator(operator).module, config.root):
                _measure_and_summarise(config, record, entrants, samples_path)
        except LeaseError as busy:
            record.status, record.reason, record.remedy = records.NOT_RUN, busy.message, busy.hint
    if record.status == records.NOT_RUN and (device == "cpu" or gpu.available()[0]):
        with blamed(config.operator(operator).module, config.root):
            _declared_operator(config, operator)
    if record.samples is None:
        samples_path.unlink(missing_ok=True)  # of an earlier run: they are not this record's
    record.duration_s = round(time.monotonic() - started - record.states.get(WAITED, 0.0), 3)
    records.write(output, record)
    return record


def _declared_operator(config: Config, name: str) -> Operator:
    """The operator of that name. Raises ConfigError where it does not take what the configuration asks of it."""
    from kernelproof import operators

    settings = config.operator(name)
    operator = operators.load(settings.module, config.root)
    check_declared(config, settings, operators.declared(operator, settings))
    return operator


@contextlib.contextmanager
def _board(config: Config, record: BenchRecord) -> Iterator[None]:
    """Hold a GPU while it is measured on, and say how long we waited for it and who else is there before we are."""
    if record.device != "cuda":
        yield
        return
    from kernelproof import gpu, lease

    asked = time.monotonic()
    with lease.gpu_lease(config.bench.gpu_wait_s, "bench") as record.gpu:
        record.states[WAITED] = round(time.monotonic() - asked, 3)
        record.states["others_before"] = _others_on(gpu.index_of_first_visible(os.environ["CUDA_VISIBLE_DEVICES"]))
        yield


def _others_on(board: int) -> int | None:
    """How many processes stay on a board that is now ours; None where NVML does not say.

    Those of whoever had it before us may still be ending.
    """
    from kernelproof import gpu

    deadline = time.monotonic() + LEAVING_S
    while (seen := gpu.compute_processes(board)) and time.monotonic() < deadline:
        time.sleep(LEAVING_S / 30)
    return None if seen is None else len(seen)


# --- who takes part ---------------------------------------------------------------------------------------------------


@dataclass
class Entrant:
    """A variant or baseline that could be measured, with what its worker needs to know."""

    variant: VariantConfig
    contender: Contender
    candidate: dict[str, Any]
    own: set[str] | None = None  # the names of its build's kernels (traces.own_kernels)
    sealed: dict[str, list[Step]] = field(default_factory=dict)  # what its calls launched in the test, by signature
    tested: list[CaseResult] = field(default_factory=list)  # the cases in which it was right

    @property
    def name(self) -> str:
        return self.variant.name

    def took(self, case: Case) -> bool:
        """Whether it was right in the test on such a case: if it refuses it now, something came between."""
        return any(
            (other.shape, other.dtype) == (case.shape, case.dtype) and case.options.items() <= other.options.items()
            for other in self.tested
        )


def _entrants(config: Config, operator: OperatorConfig, device: str) -> list[Entrant]:
    return [_entrant(config, variant) for variant in operator.contenders(device)]


def _entrant(config: Config, variant: VariantConfig) -> Entrant:
    """What the test and build records say of a contender; without records it does not take part."""
    contender = Contender(variant.name, variant.role, variant.abi, records.NOT_RUN, False, TIMED)
    library: Path | None = None
    own: set[str] | None = None
    sealed: dict[str, list[Step]] = {}
    tested: list[CaseResult] = []
    again = config.command("test", variant)
    path = config.record("test", variant.operator, variant.name)
    try:
        test = records.read(path, TestRecord)
        contender.verdict, contender.correct = test.verdict, test.verdict == "correct"
        tested = [case for case in test.cases if case.status == "passed"]
        if not contender.correct:
            contender.outcome = f"not benchmarked: {test.verdict.replace('_', ' ')}"
        elif test.module and builds.altered(test.module, config.root):
            contender.correct = False
            contender.outcome = f"not benchmarked: {test.module.path} was changed after the test (test again: {again})"
        elif variant.abi != "python" or test.build_signature:
            built = records.read(config.record("build", variant.operator, variant.name), BuildRecord)
            library = builds.library(config, variant, built)
            own = traces.own_kernels(built) if library else None
            if test.build_signature not in (None, built.signature):
                contender.correct = False
                contender.outcome = f"not benchmarked: what was tested is another build (test this one: {again})"
        if contender.correct and test.sealing and test.sealing.launches:
            sealed = launches.read(config.root / test.sealing.launches.path, test.sealing.launches.sha256)
    except RecordError as error:
        why = error.message if path.exists() else f"it was not tested (do that with: {again})"
        contender.correct, contender.outcome = False, f"not benchmarked: {why}"
    candidate = {
        "name": variant.name,
        "abi": variant.abi,
        "device": variant.device,
        "passing": variant.passing,
        "entry": variant.entry,
        "library": None if library is None else str(library),
        "root": str(config.root.resolve()),
    }
    return Entrant(variant, contender, candidate, own, sealed, tested)


def _cannot_run(device: str, entrants: Sequence[Entrant]) -> tuple[str, str | None] | None:
    if device == "cuda":
        from kernelproof import gpu

        present, why = gpu.available()
        if not present:
            for entrant in entrants:
                entrant.contender.outcome = "not benchmarked: no GPU"
            return f"no GPU: {why}", "run it on a machine with an NVIDIA GPU and driver"
    if not entrants:
        return f"no variant or baseline runs on {device}", None
    if not any(entrant.contender.correct for entrant in entrants):
        why = "; ".join(f"{entrant.name}: {entrant.contender.outcome}" for entrant in entrants)
        return f"no contender is correct ({why})", "see the test records: a wrong kernel is not timed"
    return None


# --- on what ----------------------------------------------------------------------------------------------------------


@dataclass
class Arena:
    """A case with its two sets of values (the second behind the same pointers, after timing) and who is timed on it."""

    case: Case
    fresh: str  # id of the case whose values are the second, as `kernelproof test --case` takes it
    calls: dict[str, Call]  # "timed"; "fresh"; "moved", if anything may: the first with some rows of the second
    cost: BenchCase
    payload: dict[str, Any]
    names: list[str]
    asked: frozenset[str] = frozenset()  # everybody who took part at first
    seconds: float = 0.0

    @property
    def id(self) -> str:
        return self.case.bench_id


def _arenas(settings: OperatorConfig, operator: Operator, entrants: Sequence[Entrant], scratch: Path) -> list[Arena]:
    """Every case that at least one contender accepts, with its inputs in files.

    Values do not change the work, so one seed is enough, and the same values serve every contender. It is drawn:
    results for values that everybody knows could be brought along.
    """
    wanted: dict[str, tuple[Case, list[str]]] = {}
    for entrant in entrants:
        if entrant.contender.correct:
            for case in enumerate_cases(settings, entrant.variant, "bench"):
                _, names = wanted.setdefault(case.bench_id, (case, []))
                if entrant.name not in names:
                    names.append(entrant.name)
    timed_seed, fresh_seed = secrets.randbits(31), secrets.randbits(31)
    families = settings.test.families or list(operator.families)
    usual = {name: values[0] for name, values in settings.test.options.items()}

    def made(wanted: tuple[Case, list[str]]) -> Arena:
        case, names = wanted
        drawn = dataclasses.replace(case, seed=timed_seed)
        return _arena(operator, drawn, names, fresh_seed, families, usual, scratch)

    # Random numbers of a tensor are drawn by one thread, and a large case's take seconds.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        return list(threads.map(made, wanted.values()))


def _arena(
    operator: Operator,
    case: Case,
    names: list[str],
    fresh_seed: int,
    families: Sequence[str],
    usual: Mapping[str, Any],
    scratch: Path,
) -> Arena:
    """The new values are of another of the families that are tested: who is right for usual ones alone is found."""
    from kernelproof import images, judge, operators

    timed = operator.make_call(case, judge.generator(case))
    family = secrets.choice([family for family in families if family != case.family] or [case.family])
    fresh_case = dataclasses.replace(case, seed=fresh_seed, family=family)
    fresh = operator.make_call(fresh_case, judge.generator(fresh_case))
    arguments = images.layout_images(timed, scratch / case.bench_id).spec
    other_values = images.layout_images(fresh, scratch / f"{case.bench_id}-fresh").spec
    inputs = operators.changeable(operator, timed)
    rows = _rows_to_move(inputs)
    calls = {TIMED: timed, "fresh": fresh} | ({"moved": _moved(timed, fresh, rows)} if rows else {})
    cost = operator.cost(case)
    return Arena(
        case=case,
        fresh=dataclasses.replace(fresh_case, options={**usual, **case.options}).id,
        calls=calls,
        cost=BenchCase(
            case.bench_id,
            case.shape,
            case.dims,
            case.options,
            case.dtype,
            cost.flops,
            cost.bytes_read,
            cost.bytes_written,
            case.seed,
        ),
        payload={
            "id": case.bench_id,
            "arguments": arguments,
            "fresh": {name: other_values[name] for name in fresh.inputs},
            "moved": rows,
            "drawn": [name for name, tensor in inputs.items() if tensor.numel() > 1],
            "outputs": list(timed.outputs),
        },
        names=names,
        asked=frozenset(names),
    )


def _rows_to_move(inputs: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """A row of each of these inputs, by its indices."""
    draw = random.SystemRandom()
    return {
        name: [draw.randrange(size) for size in tensor.shape[:-1]]
        for name, tensor in inputs.items()
        if tensor.dim() and tensor.numel()
    }


def _moved(call: Call, other: Call, rows: Mapping[str, list[int]]) -> Call:
    """A call with some rows of another's."""
    arguments = dict(call.arguments)
    for name, row in rows.items():
        arguments[name] = tensor = call.tensor(name).clone()
        tensor[tuple(row)] = other.tensor(name)[tuple(row)]
    return dataclasses.replace(call, arguments=arguments)


# --- measuring --------------------------------------------------------------------------------------------------------


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
            if not _reasons(samples["throttle"][place]) & DISCARDED_STATES:
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
            if time_us > 0 and not _reasons(samples["throttle"][place]) & DISCARDED_STATES:
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

        Shares of a time are looked at again where others had the cores; what is nothing but that operator has no share.
        """
        for look in range(LOOKS):
            self.process("trace", 0)
            again = False
            for name, arena, fault in self.passed_off():
                if fault.is_all or not self.crowded(self.beside_trace[arena.id][-1]):
                    self.entrants[name].contender.correct = False
                    self.drop(name, None, f"wrong: {fault.reason} (in {arena.id})", "library")
                elif look == LOOKS - 1:
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
        if "moved" not in arena.calls:
            self.note(name, arena.id, NEVER_CHANGED, UNCHANGED_WORDS)
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
        for output in moved["outputs"]:
            self.found.outputs.setdefault((outside.name, arena.id, output["version"], output["sha256"]), output)
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
            values = "fresh" if output["version"] == "fresh" else "timed"
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
        cases. Where it shows with nobody, it is looked for once more, alone in a process as old as any was that
        measured, for the contender may go by that; and not there either it has no time, and is not accused.
        """
        others = sorted((arena.asked | set(arena.names)) - {name})  # also who has left since
        if not others or self.shows_alone(name, arena, is_so, action):
            self.drop(name, arena, reason, check)
            return
        beside = [other for other in others if self.shows([other, name], arena, is_so, action)]
        guilty = [other for other in beside if self.entrants[other].variant.role == "variant"]
        is_variant = self.entrants[name].variant.role == "variant"
        if guilty and (len(beside) < len(others) or not is_variant):
            for other in guilty:
                words = f"beside it, and not alone, the calls of {name} in {arena.id} go wrong"
                self.spoilt.add(arena.id)
                self.drop(other, None, f"spoils others: {words} ({reason})", "outputs")
        elif beside:
            self.drop(name, arena, reason, check)
        elif arena.id in self.spoilt:
            return
        elif self.shows([name], arena, is_so, action, self.calls_by_then(arena), min(self.oldest_s, OLDEST_S)):
            self.drop(name, arena, reason, check)
        else:
            self.drop(name, arena, f"not tried: beside others, but neither alone nor beside any one of them: {reason}")

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
        late_for_others = isinstance(error, WorkerTimeout) and self.beside and self.crowded(self.beside.share())
        self.drop(name, None, NOT_TRIED if late_for_others else _how_it_ended(error))

    def drop(self, name: str, arena: Arena | None, reason: str, check: str = "") -> None:
        """Out of one case, or of all; its samples stay in the file and count for nothing. `check`: which one it failed.

        outputs: wrong results; library: kernels that are not its own; wall: times that are not so.
        """
        entry = {"contender": name, "case": arena.id if arena else None, "reason": reason}
        if not any(entry.items() <= known.items() for known in self.found.dropped):  # of another mode already
            _say(f"{name} is dropped{f' from {arena.id}' if arena else ''}: {reason.splitlines()[0]}")
        self.found.dropped.append({**entry, "check": check} if check else entry)
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


def _measure_and_summarise(config: Config, record: BenchRecord, entrants: list[Entrant], samples_path: Path) -> None:
    """All of it, from the host's start on; a GPU is held from when the interpreters are up."""
    from kernelproof.supervisor import WorkerHost

    started = time.monotonic()
    with scratch_folder("bench") as folder, contextlib.ExitStack() as held:
        threads = config.bench.cpu_threads or len(os.sched_getaffinity(0))
        # The host imports torch while we do the same, and what is needed after the measurements.
        home = folder / "host"
        home.mkdir()
        with WorkerHost(
            device=record.device, needs_torch=True, scratch=home, threads=threads, private=[folder], measures=True
        ) as host:
            operator = _declared_operator(config, record.operator)
            import pandas  # noqa: F401
            import scipy.stats  # noqa: F401

            if record.device == "cuda":
                host.wait_until_ready()  # and not while nobody else may have the GPU
            held.enter_context(_board(config, record))
            arenas = _arenas(config.operator(record.operator), operator, entrants, folder / IMAGES)
            if not arenas:
                record.status, record.reason = records.NOT_RUN, "no correct contender accepts any benchmark case"
                return
            if record.device == "cpu":
                host.spawn().close()  # wait for the host here, where it counts as start-up
            measurement = Measurement(config, record.device, entrants, arenas, host, folder)
            found = measurement.run()
            found.cores = sorted(host.cores) if record.device == "cpu" else []
            startup_s = time.monotonic() - started - record.states.get(WAITED, 0.0)
            startup_s -= found.measuring_s + found.counters.get("seconds", 0.0)
            checked = _judge_outputs(config, measurement, operator)
        measurement.drop_escaped()
        record.threads = threads if record.device == "cpu" else None
        record.cases = [arena.cost for arena in arenas]
        record.modes = list(config.bench.modes)
        record.processes = config.bench.processes
        record.startup_s = round(startup_s, 3)
        Summary(config, record, entrants, arenas, found).fill(checked, samples_path)


def _judge_outputs(config: Config, measurement: Measurement, operator: Operator) -> int:
    """Judge what the timed calls wrote; a contender that was wrong is dropped. Gives back how many results were judged.

    Processes and modes that gave the same bytes are judged once.
    """
    from kernelproof import judge
    from kernelproof.operators import references_of

    keep_freed_memory()
    judged = 0
    references: dict[tuple[str, str, str], Mapping[str, Reference]] = {}
    # What is wrong for the timed values is told first; of two cases' references one is kept at a time.
    order = sorted(measurement.found.outputs.items(), key=lambda found: (found[0][1], found[0][2] == "moved"))

    def read(found: tuple[tuple[str, str, str, str], Mapping[str, Any]]) -> Tensor:
        (_, case_id, values, _), output = found
        return _handed_over(output, measurement.arena(case_id).calls[values], measurement.scratch)

    for ((name, case_id, values, _), output), data in _ahead(read, order):
        arena, variant = measurement.arena(case_id), measurement.entrants[name].variant
        if name not in arena.names:
            continue
        call = arena.calls[values]
        precision = judge.resolved(variant.precision, arena.case.dtype)
        key = (case_id, values, repr(precision))
        if key not in references:
            references = {other: made for other, made in references.items() if other[0] == case_id}
            references[key] = references_of(operator, call, precision, measurement.device)
        judged += 1
        if fault := _fault(config, arena.case, call, references[key], data):
            where = f"{output['mode']}, --case {arena.fresh}" if values == "fresh" else output["mode"]
            reason = f"wrong {WHEN[output['version']]} ({where}): {fault}"

            is_wrong = functools.partial(_gave_wrong, config, measurement, operator, name, arena)
            measurement.drop_if_guilty(name, arena, reason, "outputs", is_wrong)
    return judged


def _ahead(make: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[T, Callable[[], R]]]:
    """Each item and what says, or raises, what was made of it, while the next ones are made in threads."""
    with ThreadPoolExecutor(READ_AHEAD) as threads:
        waiting = deque[tuple[T, Future[R]]]()
        for item in items:
            waiting.append((item, threads.submit(make, item)))
            if len(waiting) > READ_AHEAD:
                first, made = waiting.popleft()
                yield first, made.result
        for first, made in waiting:
            yield first, made.result


def _gave_wrong(
    config: Config,
    measurement: Measurement,
    operator: Operator,
    name: str,
    arena: Arena,
    reply: Mapping[str, Any],
) -> bool:
    """Whether any result of a contender's calls in a case, in the answer of a process, is not right."""
    from kernelproof import judge
    from kernelproof.operators import references_of

    precision = judge.resolved(measurement.entrants[name].variant.precision, arena.case.dtype)
    for output in (each for each in reply["outputs"] if each["contender"] == name):
        call = arena.calls.get(output["version"], arena.calls[TIMED])
        right = references_of(operator, call, precision, measurement.device)
        data = functools.partial(_handed_over, output, call, measurement.scratch)
        if _fault(config, arena.case, call, right, data):
            return True
    return False


def _handed_over(output: Mapping[str, Any], call: Call, folder: Path) -> Tensor:
    """The bytes of a result. Raises TestError where they are not those that were announced, or of other tensors."""
    from kernelproof import images
    from kernelproof.operators import dtype_name

    wanted = [[dtype_name(call.tensor(name).dtype), list(call.tensor(name).shape)] for name in call.outputs]
    if output["tensors"] != wanted:
        found, right = (" and ".join(f"{kind} {shape}" for kind, shape in each) for each in (output["tensors"], wanted))
        raise TestError(f"{found} instead of {right}")
    # only in the worker's folder: the name comes from a process that has run candidates
    data = images.read_file(folder / Path(output["path"]).name, call.output_bytes)
    if hashlib.sha256(data.numpy().data).hexdigest() != output["sha256"]:
        raise TestError("the bytes handed over are not those that were announced")
    return data


def _fault(
    config: Config, case: Case, call: Call, references: Mapping[str, Reference], data: Callable[[], Tensor]
) -> str | None:
    """Why a result, whose bytes `data` gives, is not right by any of the test's criteria, or None."""
    from kernelproof import images, judge

    try:
        left = data()
    except TestError as error:
        return error.message
    returned = {}
    for name in call.outputs:
        tensor = call.tensor(name)
        bits, left = left[: tensor.nbytes], left[tensor.nbytes :]
        if bits.storage_offset() % tensor.element_size():
            bits = bits.clone()
        returned[name] = images.Returned(bits.view(tensor.dtype).reshape(tensor.shape))
    result = judge.judge_all(case, call, references, returned, config.test.tolerance)
    return "; ".join(failure.message for failure in result.failures) or None


# --- summarising ------------------------------------------------------------------------------------------------------


class Summary:
    """From samples to the record's rows."""

    def __init__(
        self, config: Config, record: BenchRecord, entrants: list[Entrant], arenas: list[Arena], found: Measured
    ) -> None:
        from kernelproof import statistics

        self.config = config
        self.record = record
        self.entrants = entrants
        self.arenas = arenas
        self.found = found
        self.primary = PRIMARY[record.device]
        self.settings = statistics.Settings(config.bench.confidence, config.bench.bootstrap)
        self.in_case = {(name, arena.id) for arena in arenas for name in arena.names}
        self.capped: set[Key] = set()
        self.throttled: Counter[str] = Counter()
        self.clocks: dict[Key, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))  # … process: MHz
        self.estimates: dict[Key, statistics.Estimate] = {}

    def fill(self, checked: int, samples_path: Path) -> None:
        self.write_samples(samples_path)
        samples = self.usable()
        self.times(samples)
        self.untimed()
        self.ratios(samples)
        self.oracle()
        self.contenders()
        record = self.record
        record.kernels_in_interval = {
            name: [{"case": case, **kernel} for case, kernels in by_case.items() for kernel in kernels]
            for name, by_case in self.found.kernels.items()
        }
        record.discarded += [{"what": "contender", **entry} for entry in self.found.dropped]
        record.energy = [
            EnergyRow(**row) for row in self.found.energy if (row["contender"], row["case"]) in self.in_case
        ]
        record.states |= self.states(checked)
        if not record.times:
            record.status, record.reason = records.FAILED, "every contender was dropped"
            if self.found.dropped and all(entry["reason"] == NOT_TRIED for entry in self.found.dropped):
                record.status, record.reason = records.NOT_RUN, NOT_TRIED  # a failed one speaks against its variants

    def write_samples(self, path: Path) -> None:
        """Every sample, discarded ones too."""
        import pandas

        path.parent.mkdir(parents=True, exist_ok=True)
        frame = pandas.DataFrame(dict(self.found.samples))
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as temporary:
            compression: Any = {"method": "gzip", "compresslevel": 6, "mtime": 0}
            frame.to_csv(temporary, index=False, float_format="%.6g", compression=compression)
        os.chmod(temporary.name, 0o644)
        os.replace(temporary.name, path)
        self.record.samples = os.path.relpath(path.resolve(), self.config.root.resolve())

    def usable(self) -> Samples:
        """Samples that count, by contender, case, mode, method, process, block; the others are listed as discarded."""
        kept: Samples = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
        discarded: Counter[tuple[str, str, str, str, int, int, str]] = Counter()
        columns, place = self.found.samples, ("contender", "case", "mode", "method", "process", "block")
        names = ("contender", "case", "mode", "method", "process", "block", "time_us", "throttle", "sm_clock_mhz")
        for contender, case, mode, method, process, block, time_us, throttle, clock in zip(
            *(columns[n] for n in names), strict=True
        ):
            if (contender, case) not in self.in_case:
                continue
            if clock:
                self.clocks[contender, case, mode, method][process].append(clock)
            reasons = _reasons(throttle)
            if bad := sorted(reasons & DISCARDED_STATES):
                discarded[contender, case, mode, method, process, block, "throttled: " + ", ".join(bad)] += 1
                self.throttled[contender] += 1
            elif not time_us > 0:
                discarded[contender, case, mode, method, process, block, "no positive slope"] += 1
            else:
                if POWER_CAP in reasons:
                    self.capped.add((contender, case, mode, method))
                kept[contender, case, mode, method][process][block].append(time_us)
        for (*where, reason), count in discarded.items():
            entry = dict(zip(place, where, strict=True))
            self.record.discarded.append({"what": "samples", **entry, "samples": count, "reason": reason})
        return kept

    def times(self, samples: Samples) -> None:
        from kernelproof import statistics

        rows: dict[Key, TimeRow] = {}
        for key, processes in samples.items():
            estimate = statistics.time_estimate(processes, self.settings)
            if estimate is None:
                continue
            self.estimates[key] = estimate
            count = sum(len(times) for blocks in processes.values() for times in blocks.values())
            low, median, high = (_rounded(value) for value in (estimate.low, estimate.value, estimate.high))
            rows[key] = TimeRow(*key, median, low, high, count, estimate.replicates)
            if key[-1] == self.primary:
                rows[key].precise = self.precise.get(key[:3])
        for name, by_case in self.found.kernels.items():
            for case, kernels in by_case.items():
                if (name, case) in self.in_case:
                    total = _rounded(sum(kernel["duration_us"] for kernel in kernels))
                    by_binding = kernels[0]["source"].startswith(methods.TRACES["cupti"])
                    key = (name, case, self.record.modes[0], "cupti" if by_binding else "device_trace")
                    rows[key] = TimeRow(*key, total, total, total, 1, 1)
                    self.clocks[key][0] = [kernel["sm_clock_mhz"] for kernel in kernels if kernel.get("sm_clock_mhz")]
        rows |= self.counted()
        for key, row in rows.items():
            found = dict(self.flags(key, row, rows))
            row.flags, row.reasons = sorted(found), [found[flag] for flag in sorted(found) if found[flag]]
        self.record.times = [rows[key] for key in sorted(rows, key=self.order)]

    @functools.cached_property
    def precise(self) -> dict[tuple[str, str, str], int]:
        """In how many processes blocks ended since they were enough, by contender, case and mode; empty, not asked."""
        ended = Counter[tuple[str, str, str]]()
        for entry in self.found.stopping:
            ended[entry["contender"], entry["case"], entry["mode"]] += entry["ended"] == "precise"
        return dict(ended)

    def counted(self) -> dict[Key, TimeRow]:
        """Durations by Nsight Compute, and those of the floors around them; the least that a call read from memory."""
        rows: dict[Key, TimeRow] = {}
        for entry in self.found.counted:
            if (entry.contender, entry.case) not in self.in_case:
                continue
            floor_us = [] if entry.floor_us is None else [entry.floor_us]
            for method, times_us in zip(methods.COUNTED, (entry.duration_us, floor_us), strict=True):
                key = (entry.contender, entry.case, entry.mode, method)
                if times_us:
                    median, low, high = map(_rounded, (plain_statistics.median(times_us), min(times_us), max(times_us)))
                    rows[key] = TimeRow(*key, median, low, high, len(times_us), 1)
            key = (entry.contender, entry.case, entry.mode, "ncu")
            rows[key].dram_bytes = min(entry.dram_bytes)
            self.clocks[key][0] = [entry.sm_clock_mhz]
        return rows

    def order(self, key: Key) -> tuple[Any, ...]:
        """Cases and contenders as configured, the primary method first."""
        contender, case, mode, method = key
        cases = [arena.id for arena in self.arenas]
        names = [entrant.name for entrant in self.entrants]
        return cases.index(case), self.record.modes.index(mode), names.index(contender), method != self.primary, method

    def flags(self, key: Key, row: TimeRow, rows: Mapping[Key, TimeRow]) -> Iterator[tuple[str, str]]:
        """What a reader must know of a time, each with the likely reason; empty where the flag says it all."""
        contender, case, mode, method = key
        if key in self.capped:
            yield "power_capped", ""
        if method in (self.primary, *methods.TRACES) and self.others_than_sealed(contender, case):
            yield "other_kernels_than_sealed", "its host code launches something else when it is timed"
        if method == "eager":
            slope = rows.get((contender, case, mode, self.primary))
            if slope and row.median_us > methods.HOST_BOUND * slope.median_us:
                yield "host_bound", ""
        if method != self.primary:
            return
        if row.processes < self.config.bench.processes:
            yield f"only_{row.processes}_of_{self.config.bench.processes}_processes", ""
        if row.samples == 1:
            yield "one_sample", "a single sample has no interval"
        if any(note["mode"] == mode for note in self.slow(contender, case)):
            yield "one_call_a_process", ""
        for note in self.found.notes:
            if note["outcome"] in NOTED and (note["contender"], note["case"]) == (contender, case):
                yield str(note["outcome"]), ""
        if changed := self.clock_change(key):
            yield "clock_changed", changed
        if shared := self.shared():
            yield "gpu_shared", f"{shared} on the GPU while it was measured"
        if (share := max(self.found.others.get(case, [0.0]))) > OTHERS_SHARE:
            yield records.CORES_SHARED, f"other programs had {share:.0%} of its cores while it was measured"
        yield from methods.doubts(self.seen(key, rows))

    def slow(self, contender: str, case: str) -> list[dict[str, Any]]:
        """What was noted of a contender that was too slow for a case, by process; it was left out of later modes."""
        notes = [note for note in self.found.notes if note["outcome"] == "slow"]
        return [note for note in notes if (note["contender"], note["case"]) == (contender, case)]

    def untimed(self) -> None:
        """Every mode of a case in which somebody who took part to the end has no time."""
        self.record.untimed = [
            UntimedRow(name, arena.id, mode, *self.why_untimed(name, arena.id, mode))
            for arena in self.arenas
            for name in arena.names
            for mode in self.record.modes
            if (name, arena.id, mode, self.primary) not in self.estimates
        ]

    def why_untimed(self, contender: str, case: str, mode: str) -> tuple[str, str]:
        """Outcome and reason of an UntimedRow."""
        if slow := self.slow(contender, case):
            said = formats.one_line(slow[0]["message"])
            return "too slow", f"{said} ({slow[0]['mode']}; bench.max_seconds sets it)"
        key = (contender, case, mode, self.primary)
        where = dict(zip(("contender", "case", "mode", "method"), key, strict=True))
        entries = [entry for entry in self.record.discarded if where.items() <= entry.items()]
        return ("discarded", "; ".join(dict.fromkeys(e["reason"] for e in entries))) if entries else ("no sample", "")

    def others_than_sealed(self, contender: str, case: str) -> bool:
        """Whether a timed call ran other kernels than the same call did from the cubin alone, where it did."""
        traced = self.found.kernels.get(contender, {}).get(case)
        sealed = next(entrant.sealed for entrant in self.entrants if entrant.name == contender)
        arguments = next(arena.payload["arguments"] for arena in self.arenas if arena.id == case)
        steps = sealed.get(launches.signature(launches.outlined(arguments)))
        return steps is not None and traced is not None and not launches.same_kernels(steps, traced)

    def clock_change(self, key: Key) -> str:
        """How far the SM clock moved between the blocks of one process, where that is too far; else nothing."""
        spans = [(max(clocks) / min(clocks) - 1, min(clocks), max(clocks)) for clocks in self.clocks[key].values()]
        share, low, high = max(spans, default=(0.0, 0.0, 0.0))
        return (
            f"the SM clock moved from {low:.0f} to {high:.0f} MHz between its blocks" if share > CLOCK_CHANGED else ""
        )

    def shared(self) -> str:
        """Who else was on the GPU, in words; empty where nobody was seen."""
        count = max(self.found.neighbours or 0, self.record.states.get("others_before") or 0)
        return f"{count} other process{'es' if count > 1 else ''}" if count else ""

    def seen(self, key: Key, rows: Mapping[Key, TimeRow]) -> methods.Seen:
        """All that was recorded beside a primary time."""
        contender, case, mode, _ = key
        mine = {row.method: row.median_us for row in rows.values() if (row.contender, row.case, row.mode) == key[:3]}
        if floor := rows.get((contender, case, self.record.modes[0], "floor")):
            mine.setdefault("floor", floor.median_us)  # an empty kernel reads nothing: it is as long hot as cold
        clocks = {m: [c for found in self.clocks[(*key[:3], m)].values() for c in found] for m in mine}
        hot = rows.get((contender, case, "hot", self.primary))
        launched = self.found.kernels.get(contender, {}).get(case, [])
        return methods.Seen(
            self.primary,
            mode,
            mine,
            {method: plain_statistics.median(found) for method, found in clocks.items() if found},
            sum(kernel["count"] for kernel in launched),
            sum(kernel["count"] for kernel in launched if not kernel["grid"]),
            hot.median_us if hot else None,
            self.found.rotation.get(case, {}).get(mode, {}),
            self.bytes_per_s,
            self.from_memory(rows.get((contender, case, mode, "ncu"))),
        )

    def from_memory(self, row: TimeRow | None) -> float | None:
        """Of the bytes that a call has to read, the share that came from memory at the least; None where unknown."""
        if row is None or row.dram_bytes is None:
            return None
        needed = next(arena.cost.bytes_read for arena in self.arenas if arena.id == row.case)
        return row.dram_bytes / needed if needed else None

    @functools.cached_property
    def bytes_per_s(self) -> float | None:
        """What the GPU's memory can move, by its clock and width (two transfers a clock); None where unknown."""
        if self.record.device != "cuda":
            return None
        from kernelproof import gpu

        index = gpu.index_of_first_visible(os.environ.get("CUDA_VISIBLE_DEVICES"))
        board = next((found for found in gpu.gpus() if found.index == index), None)
        if board is None or not board.memory_clock_max_mhz or not board.memory_bus_bits:
            return None
        return 2e6 * board.memory_clock_max_mhz * board.memory_bus_bits / 8

    def ratios(self, samples: Samples) -> None:
        """Every variant against every baseline of its case and mode, judged as one family."""
        from kernelproof import statistics

        found: list[tuple[str, str, str, str, statistics.Estimate]] = []
        for arena in self.arenas:
            ours = [name for name in arena.names if self.role(name) == "variant"]
            theirs = [name for name in arena.names if self.role(name) == "baseline"]
            for mode in self.record.modes:
                for variant in ours:
                    for baseline in theirs:
                        mine, other = ((name, arena.id, mode, self.primary) for name in (variant, baseline))
                        estimate = statistics.ratio_estimate(
                            samples.get(mine, {}), samples.get(other, {}), self.settings
                        )
                        if estimate is None:
                            continue
                        if estimate.high > WIDEST * estimate.low:
                            which = _ratio_of(variant, baseline, arena.id, mode)
                            self.record.discarded.append({**which, "reason": self.too_wide(estimate)})
                        else:
                            found.append((variant, baseline, arena.id, mode, estimate))
        band = self.config.gate.same_band
        said = statistics.verdicts([entry[-1] for entry in found], band, self.settings)
        flagged = {(r.contender, r.case, r.mode): r.flags for r in self.record.times if r.method == self.primary}
        for (variant, baseline, case, mode, estimate), verdict in zip(found, said, strict=True):
            low, ratio, high = (_rounded(value) for value in (estimate.low, estimate.value, estimate.high))
            seen = statistics.minimal_detectable_difference(estimate, band, self.settings)
            detectable = None if seen is None else _rounded(seen)
            flags = sorted({flag for name in (variant, baseline) for flag in flagged.get((name, case, mode), ())})
            word = verdict if records.DECIDES_NOTHING.keys().isdisjoint(flags) else statistics.UNDECIDED
            self.record.ratios.append(
                RatioRow(variant, baseline, case, mode, ratio, low, high, word, detectable, flags)
            )
        self.replicates = {entry[:4]: entry[-1].replicates for entry in found}

    def too_wide(self, estimate: statistics.Estimate) -> str:
        """Why a ratio is not told, in words."""
        return (
            f"the ratio is not known: {estimate.replicates} of {self.record.processes} processes timed both, and it "
            f"may lie anywhere from {estimate.low:.2g} to {estimate.high:.2g}: measure again on a quiet machine, or "
            "with more bench.processes"
        )

    def entrant(self, name: str) -> Entrant:
        return next(entrant for entrant in self.entrants if entrant.name == name)

    def role(self, name: str) -> str:
        return self.entrant(name).variant.role

    def oracle(self) -> None:
        """Each variant against the fastest correct baseline of its case and mode."""
        by_pair = {(row.variant, row.case, row.mode, row.baseline): row for row in self.record.ratios}
        for entrant in self.entrants:
            if entrant.variant.role != "variant" or not entrant.contender.correct:
                continue
            for arena in self.arenas:
                if entrant.name not in arena.names:
                    continue
                for mode in self.record.modes:
                    row = self.oracle_row(entrant.name, arena, mode, by_pair)
                    self.record.oracle.append(row)

    def why_without_baseline(self, case: str, mode: str) -> str:
        """What became of each baseline there."""
        said = {row.contender: row.why for row in self.record.untimed if (row.case, row.mode) == (case, mode)}
        each = [f"{c.name}: {said.get(c.name, c.outcome)}" for c in self.record.contenders if c.role == "baseline"]
        return "no correct baseline was timed" + (f" ({formats.one_line('; '.join(each))})" if each else "")

    def oracle_row(
        self, variant: str, arena: Arena, mode: str, by_pair: Mapping[tuple[str, str, str, str], RatioRow]
    ) -> OracleRow:
        if (variant, arena.id, mode, self.primary) not in self.estimates:
            place = (variant, arena.id, mode)
            why = next(row.why for row in self.record.untimed if (row.contender, row.case, row.mode) == place)
            return OracleRow(*place, None, None, None, None, False, f"the variant has no time here: {why}")
        baselines = [
            (self.estimates[key].value, name)
            for name in arena.names
            if self.role(name) == "baseline" and (key := (name, arena.id, mode, self.primary)) in self.estimates
        ]
        if not baselines:
            why = self.why_without_baseline(arena.id, mode)
            return OracleRow(variant, arena.id, mode, None, None, None, None, False, why)
        best = min(baselines)[1]
        row = by_pair.get((variant, arena.id, mode, best))
        if row is None:
            which = _ratio_of(variant, best, arena.id, mode)
            discarded = (entry["reason"] for entry in self.record.discarded if which.items() <= entry.items())
            why = next(discarded, "never timed in the same block")
            return OracleRow(variant, arena.id, mode, best, None, None, None, False, why)
        limit = self.config.gate.max_ratio
        undecided = next((why for flag, why in records.DECIDES_NOTHING.items() if flag in row.flags), "")
        if self.replicates[variant, best, arena.id, mode] < 2:
            undecided = "one process decides nothing"
        undecided = undecided or self.lost_peer(arena)
        passed, reason = not undecided and row.high <= limit, undecided or claims.bound_reason(row.high, limit)
        interval = row.ratio, row.low, row.high
        return OracleRow(variant, arena.id, mode, best, *interval, passed, reason, row.flags, bool(undecided))

    def lost_peer(self, arena: Arena) -> str:
        """A correct baseline that left this case, or is slowed, and might have been the fastest: who, and why; or ''.

        One whose results were wrong here is no peer, one that a graph cannot hold or that refuses what it was not
        tested on has no time to give; whatever else befell it may be the doing of another in its process.
        """
        for note in self.found.notes:
            if note["outcome"] == records.IN_COMPANY and note["case"] == arena.id:
                return f"{note['contender']}: {note['message']}: {records.DECIDES_NOTHING[records.IN_COMPANY]}"
        for entry in self.found.dropped:
            entrant, reason = self.entrant(entry["contender"]), entry["reason"]
            took_part = entrant.name in arena.asked and entry["case"] in (arena.id, None)
            if entrant.variant.role != "baseline" or not took_part:
                continue
            if entry.get("check") == "outputs" or reason.startswith("not captured"):
                continue
            if not reason.startswith("refused") or entrant.took(arena.case):
                return f"{entrant.name}, correct in its test, left and might have been faster ({reason})"
        return ""

    def contenders(self) -> None:
        """Say of those that lost some cases, or a mode of them, which."""
        timed = {row.contender for row in self.record.times if row.method == self.primary}
        for entrant in self.entrants:
            untimed = [row for row in self.record.untimed if row.contender == entrant.name]
            if entrant.contender.outcome == TIMED and entrant.name not in timed and untimed:
                throttled = "every sample was taken while the GPU was throttled" if self.throttled[entrant.name] else ""
                entrant.contender.outcome = f"no time: {throttled or untimed[0].why}"
            lost = [entry for entry in self.found.dropped if entry["contender"] == entrant.name and entry["case"]]
            missing = []
            if lost:
                where, why = ", ".join(entry["case"] for entry in lost), formats.one_line(lost[0]["reason"])
                missing.append(f"dropped from {where} ({why})")
            cases = defaultdict[tuple[str, str], list[str]](list)
            for row in untimed:
                cases[row.mode, row.outcome].append(row.case)
            missing += [f"not {mode} in {', '.join(found)}: {outcome}" for (mode, outcome), found in cases.items()]
            if entrant.contender.outcome == TIMED and missing:
                entrant.contender.outcome = f"{TIMED}, but {'; '.join(missing)}"
            wrong = [entry for entry in self.found.dropped if entry["contender"] == entrant.name]
            if any(entry["reason"].startswith("wrong") for entry in wrong):
                entrant.contender.verdict, entrant.contender.correct = "wrong", False

    def states(self, checked: int) -> dict[str, Any]:
        """How the machine was, over all samples, and what else a reader may want to weigh."""
        columns = self.found.samples
        seen: dict[str, Any] = {}
        for name in ("sm_clock_mhz", "temperature_c", "power_w", "load"):
            values = [value for value in columns.get(name, []) if value is not None]
            if values:
                seen[name] = {"min": min(values), "median": plain_statistics.median(values), "max": max(values)}
        entries = Counter(entry or "" for entry in columns.get("throttle", []))
        reasons: Counter[str] = Counter()
        for entry, count in entries.items():
            reasons.update({reason: count for reason in entry.split("|") if reason})
        return {
            **seen,
            "throttle": dict(reasons),
            "rotation": self.found.rotation,
            "outputs_judged": checked,
            "samples": len(columns.get("contender", [])),
            "measuring_s": round(self.found.measuring_s, 3),
            "request_s": {action: round(seconds, 3) for action, seconds in self.found.request_s.items()},
            "notes": self.found.notes,
            "others_on_the_gpu": NOT_SHOWN if self.found.neighbours is None else self.found.neighbours,
            "state_s": round(self.found.state_s, 3),
            "stopping": self.stopping(),
            **({"counters": self.found.counters} if self.found.counters else {}),
            **({"cores": self.found.cores, "others_share": self.others_share()} if self.found.cores else {}),
        }

    def others_share(self) -> float:
        """The largest share of our cores that others had in a process, over all cases."""
        return round(max((share for shares in self.found.others.values() for share in shares), default=0.0), 3)

    def stopping(self) -> dict[str, Any]:
        """How often the asked precision was reached, how often the budget ended first, and where it was worst."""
        if not self.found.stopping:
            return {}
        known = [entry for entry in self.found.stopping if entry["half_width"] is not None]
        worst = max(known, key=lambda entry: float(entry["half_width"]), default={})
        ended = Counter(entry["ended"] for entry in self.found.stopping)
        return {"asked": self.config.bench.precision, **ended, "worst": dict(worst)}


def _ratio_of(variant: str, baseline: str, case: str, mode: str) -> dict[str, str]:
    """What an entry of `discarded` says of a ratio, but for the reason."""
    return {"what": "ratio", "variant": variant, "baseline": baseline, "case": case, "mode": mode}


def _reasons(throttle: str | None) -> set[str]:
    """Why a sample's clock was held down."""
    return set((throttle or "").split("|"))


def _rounded(value: float) -> float:
    """Six digits: more would be noise."""
    return float(f"{value:.6g}") if math.isfinite(value) else value


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
