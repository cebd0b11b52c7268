"""The bench stage: all contenders of one operator on one device, measured against one another.

`run` is the table of contents: who takes part, on what; K fresh processes; are the outputs of the timed calls right;
what do the samples say. Only contenders that the test stage found correct are timed. One that fails on the way is
dropped by name and the others go on.
"""

from __future__ import annotations

import dataclasses
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
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof import records, repository
from kernelproof.cases import enumerate_cases
from kernelproof.config import Config, OperatorConfig, VariantConfig
from kernelproof.errors import (
    BenchError,
    RecordError,
    TestError,
    WorkerCrashed,
    WorkerError,
    WorkerReplyError,
    WorkerTimeout,
)
from kernelproof.processes import scratch_folder
from kernelproof.records import (
    BenchCase,
    BenchRecord,
    BuildRecord,
    Case,
    Contender,
    OracleRow,
    RatioRow,
    TestRecord,
    TimeRow,
)
from kernelproof.samples import DISCARDED_STATES

if TYPE_CHECKING:
    from kernelproof import statistics
    from kernelproof.operators import Call, Operator, Reference
    from kernelproof.supervisor import Worker, WorkerHost

PRIMARY = {"cpu": "cpu_clock", "cuda": "graph_slope"}
TIMED = "timed"
# In the stage's temporary folder: the inputs, which candidates read; where they write; there, who was touched last.
IMAGES, WORK, JOURNAL = "images", "work", "journal"
JOURNAL_BYTES = 1 << 10
ROOM_FACTOR = 64  # outputs of one size that a contender may hand over in one request: different ones are the exception
SLOW_PROCESSES = 2  # a contender whose single call exceeds its budget is called once in so many processes
REQUEST_BASE_S = 60.0  # a request's time limit: CUDA start-up and graph captures, and below, the measuring itself
REQUEST_FACTOR = 6.0
POWER_CAP = "sw_power_cap"
WHEN = {
    "timed": "when timed",
    "poisoned": "after its output was poisoned",
    "fresh": "for new values in the same memory",
}
DISAGREE_SHARE, DISAGREE_US = 0.03, 0.1
HOST_BOUND = 1.5  # eager latency this many times the device's time: the caller waits for the host

Key = tuple[str, str, str, str]  # contender, case, mode, method
Output = tuple[str, str, str, str]  # contender, case, values, hash
Samples = dict[Key, dict[int, dict[int, list[float]]]]  # … process, block: µs of each visit


def run(config: Config, operator: str, device: str, output: Path) -> BenchRecord:
    """Measure, judge, summarise; write the record and, beside it, every sample as compressed CSV."""
    started = time.monotonic()
    record = BenchRecord(operator=operator, device=device, provenance=repository.provenance(config.root))
    entrants = _entrants(config, config.operator(operator), device)
    record.contenders = [entrant.contender for entrant in entrants]
    samples_path = output.with_suffix(".csv.gz")
    samples_path.unlink(missing_ok=True)
    if reason := _cannot_run(device, entrants):
        record.status, (record.reason, record.remedy) = records.NOT_RUN, reason
    else:
        _measure_and_summarise(config, record, entrants, samples_path, started)
    record.duration_s = round(time.monotonic() - started, 3)
    records.write(output, record)
    return record


# --- who takes part ---------------------------------------------------------------------------------------------------


@dataclass
class Entrant:
    """A variant or baseline that could be measured, with what its worker needs to know."""

    variant: VariantConfig
    contender: Contender
    candidate: dict[str, Any]

    @property
    def name(self) -> str:
        return self.variant.name


def _entrants(config: Config, operator: OperatorConfig, device: str) -> list[Entrant]:
    return [_entrant(config, variant) for variant in operator.contenders(device)]


def _entrant(config: Config, variant: VariantConfig) -> Entrant:
    """What the test and build records say of a contender; without records it does not take part."""
    contender = Contender(variant.name, variant.role, variant.abi, records.NOT_RUN, False, TIMED)
    library: Path | None = None
    try:
        test = records.read(config.record("test", variant.operator, variant.name), TestRecord)
        contender.verdict, contender.correct = test.verdict, test.verdict == "correct"
        if not contender.correct:
            contender.outcome = f"not benchmarked: {test.verdict.replace('_', ' ')}"
        elif variant.abi != "python":
            library = _library(config, variant)
    except RecordError as error:
        contender.correct, contender.outcome = False, f"not benchmarked: {error.message}"
    candidate = {
        "name": variant.name,
        "abi": variant.abi,
        "device": variant.device,
        "passing": variant.passing,
        "entry": variant.entry,
        "library": None if library is None else str(library),
        "root": str(config.root.resolve()),
    }
    return Entrant(variant, contender, candidate)


def _library(config: Config, variant: VariantConfig) -> Path:
    """The built library, if its bytes are those that were built. Raises RecordError otherwise."""
    build = records.read(config.record("build", variant.operator, variant.name), BuildRecord)
    if build.library is None:
        raise RecordError("its build record names no library", subject=variant.key)
    path = (config.root / build.library.path).resolve()
    if not path.is_file() or records.sha256_file(path) != build.library.sha256:
        raise RecordError("the library is not the one that was built", subject=variant.key, hint="build it again")
    return path


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
        return "no contender is correct", "see the test records: a wrong kernel is not timed"
    return None


# --- on what ----------------------------------------------------------------------------------------------------------


@dataclass
class Arena:
    """A case with its two sets of values (the second behind the same pointers, after timing) and who is timed on it."""

    case: Case
    calls: dict[str, Call]  # "timed", "fresh"
    cost: BenchCase
    payload: dict[str, Any]
    names: list[str]
    seconds: float = 0.0

    @property
    def id(self) -> str:
        return self.case.bench_id


def _arenas(settings: OperatorConfig, operator: Operator, entrants: Sequence[Entrant], scratch: Path) -> list[Arena]:
    """Every case that at least one contender accepts, with its inputs in files."""
    wanted: dict[str, tuple[Case, list[str]]] = {}
    for entrant in entrants:
        if entrant.contender.correct:
            for case in enumerate_cases(settings, entrant.variant, "bench"):
                # One seed is enough: values do not change the work, and the same values serve every contender.
                _, names = wanted.setdefault(case.bench_id, (case, []))
                if entrant.name not in names:
                    names.append(entrant.name)
    fresh_seed = secrets.randbits(31)
    return [_arena(operator, case, names, fresh_seed, scratch) for case, names in wanted.values()]


def _arena(operator: Operator, case: Case, names: list[str], fresh_seed: int, scratch: Path) -> Arena:
    from kernelproof import images, judge

    timed = operator.make_call(case, judge.generator(case))
    fresh_case = dataclasses.replace(case, seed=fresh_seed)
    fresh = operator.make_call(fresh_case, judge.generator(fresh_case))
    arguments = images.layout_images(timed, scratch / case.bench_id).spec
    other_values = images.layout_images(fresh, scratch / f"{case.bench_id}-fresh").spec
    cost = operator.cost(case)
    return Arena(
        case=case,
        calls={"timed": timed, "fresh": fresh},
        cost=BenchCase(
            case.bench_id,
            case.shape,
            case.dims,
            case.options,
            case.dtype,
            cost.flops,
            cost.bytes_read,
            cost.bytes_written,
        ),
        payload={
            "id": case.bench_id,
            "arguments": arguments,
            "fresh": {name: other_values[name] for name in fresh.inputs},
            "outputs": list(timed.outputs),
        },
        names=names,
    )


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """Everything the processes sent back."""

    samples: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    outputs: dict[Output, dict[str, Any]] = field(default_factory=dict)
    kernels: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    rotation: dict[str, dict[str, Any]] = field(default_factory=dict)
    dropped: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    measuring_s: float = 0.0


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
        self.device = device
        self.entrants = {entrant.name: entrant for entrant in entrants}
        self.arenas = arenas
        self.host = host
        self.images, self.scratch = folder / IMAGES, folder / WORK
        self.scratch.mkdir()
        self.found = Measured()
        self.slow: Counter[tuple[str, str]] = Counter()
        self.random = random.Random(secrets.randbits(64))
        self.epoch = time.time()

    def run(self) -> Measured:
        """On a GPU first a process that only looks which kernels run; then the processes that measure."""
        if self.device == "cuda":
            self.process("trace", 0)
        for index in range(self.settings.processes):
            _say(f"process {index + 1} of {self.settings.processes}")
            self.process("time", index)
        return self.found

    def process(self, action: str, index: int) -> None:
        """One fresh process through all cases, in random order; replaced when a contender brings it down."""
        worker = self.spawn()
        seed = self.random.getrandbits(32)
        try:
            order = self.random.sample(self.arenas, len(self.arenas))
            for arena in order:
                while names := self.taking_part(arena):
                    try:
                        self.request(worker, arena, names, action, index, seed)
                        if arena is order[-1]:
                            worker.close()
                            self.host.check()
                        break
                    except WorkerError as error:
                        worker.close()
                        if not self.drop_alone(arena, names, error, action, index, seed):
                            self.blame(arena, names, error)
                        worker = self.spawn()
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
                self.drop(name, None, f"crashed: {fault.message}")
                found = True
            finally:
                worker.close()
        return found

    def taking_part(self, arena: Arena) -> list[str]:
        """Who is still in, by name; those far too slow for this case only in the first processes."""
        return [name for name in arena.names if self.slow[name, arena.id] < SLOW_PROCESSES]

    def request(self, worker: Any, arena: Arena, names: list[str], action: str, index: int, seed: int) -> None:
        started = time.monotonic()
        reply = self.ask(worker, arena, names, action, index, seed)
        elapsed_s = time.monotonic() - started
        self.found.measuring_s += elapsed_s
        arena.seconds += elapsed_s
        self.keep(arena, reply, index)

    def ask(self, worker: Any, arena: Arena, names: list[str], action: str, index: int, seed: int) -> Mapping[str, Any]:
        """A process's answer for one case."""
        plan = {
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
        }
        reply: Mapping[str, Any] = worker.request(
            "measure",
            timeout_s=REQUEST_BASE_S + REQUEST_FACTOR * self.settings.max_seconds * len(names),
            room_bytes=self.kept_bytes() + ROOM_FACTOR * len(names) * arena.calls[TIMED].output.nbytes,
            contenders=[self.entrants[name].candidate for name in names],
            cases=[{**arena.payload, "contenders": names}],
            plan=plan,
        )
        return reply

    def kept_bytes(self) -> int:
        """Room on the disk that the results so far take by right."""
        sizes = {arena.id: arena.calls[TIMED].output.nbytes for arena in self.arenas}
        return sum(sizes[case] for _, case, _, _ in self.found.outputs)

    def keep(self, arena: Arena, reply: Mapping[str, Any], index: int) -> None:
        count = len(reply["samples"]["contender"])
        self.found.samples["process"] += [index] * count
        for name, values in reply["samples"].items():
            self.found.samples[name] += values
        for name, by_case in reply["kernels"].items():
            self.found.kernels.setdefault(name, {}).update(by_case)
        self.found.rotation.update(reply["rotation"])
        for output in reply["outputs"]:
            values = "fresh" if output["version"] == "fresh" else "timed"
            self.found.outputs.setdefault((output["contender"], output["case"], values, output["sha256"]), output)
        for outcome in reply["outcomes"]:
            self.take(arena, outcome, index)

    def take(self, arena: Arena, outcome: Mapping[str, Any], index: int) -> None:
        """What happened to a contender in a process that lived on."""
        name, what = outcome["contender"], outcome["outcome"]
        if what == "slow":
            self.slow[name, arena.id] += 1
            self.found.notes.append({**outcome, "process": index})
        elif what in ("beside_failed", "not_traced"):
            self.found.notes.append({**outcome, "process": index})
        else:
            self.drop(name, arena if outcome["case"] else None, f"{what.replace('_', ' ')}: {outcome['message']}")

    def blame(self, arena: Arena, names: list[str], error: WorkerError) -> None:
        """The process is gone: the contender that the journal names leaves the benchmark."""
        name, _ = _read_journal(self.scratch / JOURNAL)
        if name not in names:
            raise BenchError(
                f"the measuring process failed, and no contender is to blame: {error.message}", subject=arena.id
            )
        what = {WorkerTimeout: "hung", WorkerReplyError: "failed"}.get(type(error), "crashed")
        self.drop(name, None, f"{what}: {error.message}")

    def drop(self, name: str, arena: Arena | None, reason: str) -> None:
        """Out of one case, or of all; its samples stay in the file and count for nothing."""
        _say(f"{name} is dropped{f' from {arena.id}' if arena else ''}: {reason.splitlines()[0]}")
        self.found.dropped.append({"contender": name, "case": arena.id if arena else None, "reason": reason})
        for other in [arena] if arena else self.arenas:
            if name in other.names:
                other.names.remove(name)
        if not any(name in other.names for other in self.arenas):
            self.entrants[name].contender.outcome = f"dropped: {reason}"


def _read_journal(path: Path) -> tuple[str, str]:
    """Contender and case that the process touched last; the candidate shares that process, so this is only a hint."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            name, case = json.loads(stream.read(JOURNAL_BYTES))
        return str(name), str(case)
    except (OSError, ValueError, TypeError):
        return "", ""


def _measure_and_summarise(
    config: Config, record: BenchRecord, entrants: list[Entrant], samples_path: Path, started: float
) -> None:
    from kernelproof.supervisor import WorkerHost

    with scratch_folder("bench") as folder:
        threads = config.bench.cpu_threads or len(os.sched_getaffinity(0))
        # The host imports torch while we do the same and make the inputs.
        home = folder / "host"
        home.mkdir()
        with WorkerHost(
            device=record.device, needs_torch=True, scratch=home, threads=threads, private=[folder]
        ) as host:
            from kernelproof import operators

            operator = operators.load(config.operator(record.operator).module, config.root)
            arenas = _arenas(config.operator(record.operator), operator, entrants, folder / IMAGES)
            if not arenas:
                record.status, record.reason = records.NOT_RUN, "no correct contender accepts any benchmark case"
                return
            if record.device == "cpu":
                host.spawn().close()  # wait for the host here, where it counts as start-up
            ready_s = time.monotonic() - started
            measurement = Measurement(config, record.device, entrants, arenas, host, folder)
            found = measurement.run()
            measured_s = time.monotonic() - started
        checked = _judge_outputs(config, measurement, operator)
    record.threads = threads if record.device == "cpu" else None
    record.cases = [arena.cost for arena in arenas]
    record.modes = list(config.bench.modes)
    record.processes = config.bench.processes
    record.startup_s = round(ready_s + (measured_s - ready_s - found.measuring_s), 3)
    Summary(config, record, entrants, arenas, found).fill(checked, samples_path)


def _judge_outputs(config: Config, measurement: Measurement, operator: Operator) -> int:
    """Judge what the timed calls wrote; a contender that was wrong is dropped. Gives back how many results were judged.

    Processes and modes that gave the same bytes are judged once.
    """
    from kernelproof import judge

    judged = 0
    references: dict[tuple[str, str, str], Reference] = {}
    by_id = {arena.id: arena for arena in measurement.arenas}
    for (name, case_id, values, _), output in measurement.found.outputs.items():
        arena, variant = by_id[case_id], measurement.entrants[name].variant
        if name not in arena.names:
            continue
        call = arena.calls[values]
        precision = judge.resolved(variant.precision, arena.case.dtype)
        key = (case_id, values, repr(precision))
        if key not in references:
            references[key] = operator.reference(call, precision, measurement.device)
        judged += 1
        if fault := _fault(config, arena.case, call, references[key], output, measurement.scratch):
            measurement.drop(name, arena, f"wrong {WHEN[output['version']]} ({output['mode']}): {fault}")
    return judged


def _fault(
    config: Config, case: Case, call: Call, reference: Reference, output: Mapping[str, Any], folder: Path
) -> str | None:
    """Why a result is not right by any of the test's criteria, or None."""
    from kernelproof import images, judge
    from kernelproof.operators import dtype_name

    expected = call.output
    if output["dtype"] != dtype_name(expected.dtype) or list(output["shape"]) != list(expected.shape):
        return f"{output['dtype']} {output['shape']} instead of {dtype_name(expected.dtype)} {list(expected.shape)}"
    try:  # only in the worker's folder: the name comes from a process that has run candidates
        data = images.read_file(folder / Path(output["path"]).name, expected.nbytes)
    except TestError as error:
        return error.message
    if hashlib.sha256(data.numpy().data).hexdigest() != output["sha256"]:
        return "the bytes handed over are not those that were announced"
    values = data.view(expected.dtype).reshape(expected.shape)
    result = judge.judge(case, call, reference, images.Returned(values), config.test.tolerance)
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
        self.estimates: dict[Key, statistics.Estimate] = {}

    def fill(self, checked: int, samples_path: Path) -> None:
        self.write_samples(samples_path)
        samples = self.usable()
        self.times(samples)
        self.ratios(samples)
        self.oracle()
        self.contenders()
        record = self.record
        record.kernels_in_interval = {
            name: [{"case": case, **kernel} for case, kernels in by_case.items() for kernel in kernels]
            for name, by_case in self.found.kernels.items()
        }
        record.discarded += [{"what": "contender", **entry} for entry in self.found.dropped]
        record.states = self.states(checked)
        if not record.times:
            record.status, record.reason = records.FAILED, "every contender was dropped"

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
        names = ("contender", "case", "mode", "method", "process", "block", "time_us", "throttle")
        for contender, case, mode, method, process, block, time_us, throttle in zip(
            *(columns[n] for n in names), strict=True
        ):
            if (contender, case) not in self.in_case:
                continue
            reasons = set((throttle or "").split("|"))
            if bad := sorted(reasons & DISCARDED_STATES):
                discarded[contender, case, mode, method, process, block, "throttled: " + ", ".join(bad)] += 1
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
        for name, by_case in self.found.kernels.items():
            for case, kernels in by_case.items():
                if (name, case) in self.in_case:
                    total = _rounded(sum(kernel["duration_us"] for kernel in kernels))
                    key = (name, case, self.record.modes[0], "device_trace")
                    rows[key] = TimeRow(*key, total, total, total, 1, 1)
        for key, row in rows.items():
            row.flags = sorted(self.flags(key, row, rows))
        self.record.times = [rows[key] for key in sorted(rows, key=self.order)]

    def order(self, key: Key) -> tuple[Any, ...]:
        """Cases and contenders as configured, the primary method first."""
        contender, case, mode, method = key
        cases = [arena.id for arena in self.arenas]
        names = [entrant.name for entrant in self.entrants]
        return cases.index(case), self.record.modes.index(mode), names.index(contender), method != self.primary, method

    def flags(self, key: Key, row: TimeRow, rows: Mapping[Key, TimeRow]) -> Iterable[str]:
        contender, case, mode, method = key
        if key in self.capped:
            yield "power_capped"
        if method == "eager":
            slope = rows.get((contender, case, mode, self.primary))
            if slope and row.median_us > HOST_BOUND * slope.median_us:
                yield "host_bound"
        if method != self.primary:
            return
        if row.processes < self.config.bench.processes:
            yield f"only_{row.processes}_of_{self.config.bench.processes}_processes"
        if any(n["outcome"] == "slow" and (n["contender"], n["case"]) == (contender, case) for n in self.found.notes):
            yield "one_call_a_process"
        if mode == "cold" and not self.found.rotation.get(case, {}).get(mode, {}).get("exceeds_cache", True):
            yield "rotation_within_cache"
        yield from self.disagreements(key, row, rows)

    def disagreements(self, key: Key, row: TimeRow, rows: Mapping[Key, TimeRow]) -> Iterable[str]:
        """Methods that tell another time than the slope: by more than max(3 %, 0.1 µs), the floor accounted for."""
        contender, case, mode, _ = key
        allowed = max(DISAGREE_SHARE * row.median_us, DISAGREE_US)

        def median(method: str) -> float | None:
            found = rows.get((contender, case, mode, method))
            return found.median_us if found else None

        wall, pair, floor, pair_floor = (median(m) for m in ("wall_slope", "event_pair", "floor", "floor_event_pair"))
        if wall is not None and abs(wall - row.median_us) > allowed:
            yield "disagrees_wall_slope"
        if None not in (pair, floor, pair_floor):
            assert pair is not None
            assert floor is not None
            assert pair_floor is not None
            if abs((pair - pair_floor) - (row.median_us - floor)) > allowed:
                yield "disagrees_event_pair"

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
                        if estimate is not None:
                            found.append((variant, baseline, arena.id, mode, estimate))
        band = self.config.gate.same_band
        said = statistics.verdicts([entry[-1] for entry in found], band, self.settings)
        for (variant, baseline, case, mode, estimate), verdict in zip(found, said, strict=True):
            low, ratio, high = (_rounded(value) for value in (estimate.low, estimate.value, estimate.high))
            seen = statistics.minimal_detectable_difference(estimate, band, self.settings)
            detectable = None if seen is None else _rounded(seen)
            self.record.ratios.append(RatioRow(variant, baseline, case, mode, ratio, low, high, verdict, detectable))
        self.replicates = {entry[:4]: entry[-1].replicates for entry in found}

    def role(self, name: str) -> str:
        return next(entrant.variant.role for entrant in self.entrants if entrant.name == name)

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

    def oracle_row(
        self, variant: str, arena: Arena, mode: str, by_pair: Mapping[tuple[str, str, str, str], RatioRow]
    ) -> OracleRow:
        if (variant, arena.id, mode, self.primary) not in self.estimates:
            return OracleRow(variant, arena.id, mode, None, None, None, None, False, "the variant has no time here")
        baselines = [
            (self.estimates[key].value, name)
            for name in arena.names
            if self.role(name) == "baseline" and (key := (name, arena.id, mode, self.primary)) in self.estimates
        ]
        if not baselines:
            return OracleRow(variant, arena.id, mode, None, None, None, None, False, "no correct baseline was timed")
        best = min(baselines)[1]
        row = by_pair.get((variant, arena.id, mode, best))
        if row is None:
            return OracleRow(variant, arena.id, mode, best, None, None, None, False, "never timed in the same block")
        limit = self.config.gate.max_ratio
        if self.replicates[variant, best, arena.id, mode] < 2:
            passed, reason = False, "one process decides nothing"
        else:
            passed = row.high <= limit
            reason = f"upper bound {row.high:.4g} {'≤' if passed else '>'} {limit:g}"
        return OracleRow(variant, arena.id, mode, best, row.ratio, row.low, row.high, passed, reason)

    def contenders(self) -> None:
        """Say of those that lost some cases which."""
        for entrant in self.entrants:
            lost = [entry for entry in self.found.dropped if entry["contender"] == entrant.name and entry["case"]]
            if entrant.contender.outcome == TIMED and lost:
                entrant.contender.outcome = f"{TIMED}, but dropped from {', '.join(entry['case'] for entry in lost)}"
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
            "notes": self.found.notes,
        }


def _rounded(value: float) -> float:
    """Six digits: more would be noise."""
    return float(f"{value:.6g}") if math.isfinite(value) else value


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


# --- the single runner ------------------------------------------------------------------------------------------------


def once(config: Config, operator: str, variant: str, shape: str, options: Mapping[str, Any]) -> None:
    """One call of one variant in this process, as a profiler wants it; prints one line.

    A first call sets everything up. On a GPU the one that counts runs between cudaProfilerStart and cudaProfilerStop.
    """
    settings = config.operator(operator).variant(variant)
    if settings.device == "cuda":
        from kernelproof import gpu

        present, why = gpu.available()
        if not present:
            raise BenchError(f"no GPU: {why}", subject=settings.key, hint="run it on a machine with an NVIDIA GPU")
    library = None if settings.abi == "python" else _library(config, settings)
    import torch

    from kernelproof import judge, loading, operators

    case = _case_of(config.operator(operator), settings, shape, options)
    call = operators.load(config.operator(operator).module, config.root).make_call(case, judge.generator(case))
    function = loading.load(settings, library, config.root.resolve())
    values = [_placed(value, settings.device) for value in call.arguments.values()]
    if settings.passing == "return":
        values = [value for name, value in zip(call.arguments, values, strict=True) if name not in call.outputs]
    function(*values)
    loading.synchronise(settings.device)
    profiler: Any = torch.cuda.cudart() if settings.device == "cuda" else None
    if profiler:
        profiler.cudaProfilerStart()
    started = time.perf_counter()
    function(*values)
    loading.synchronise(settings.device)
    elapsed_ms = 1000 * (time.perf_counter() - started)
    if profiler:
        profiler.cudaProfilerStop()
    print(f"{settings.key} {case.bench_id}: one call, {elapsed_ms:.3f} ms by the host's clock (no benchmark)")


def _case_of(operator: OperatorConfig, variant: VariantConfig, shape: str, options: Mapping[str, Any]) -> Case:
    """The case of a shape and options in the variant's first data type. Raises BenchError for an unknown shape."""
    if shape not in operator.shapes:
        raise BenchError(f"no such shape; allowed: {', '.join(operator.shapes)}", subject=f"{operator.name}: {shape}")
    return Case(operator.name, shape, operator.shapes[shape], dict(options), variant.dtypes[0])


def _placed(value: Any, device: str) -> Any:
    """A tensor with its strides on the device; anything else as it is."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device).copy_(value)
