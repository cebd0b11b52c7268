"""`kernelproof selfcheck`: is what the benchmark says of times true on this machine?

Kernels whose time is known (spin.cu, spin.cc) are built by the build command, timed by the bench stage's own processes,
blocks and methods, and compared by its own statistics, so that what its design claims can be held against what it says:

1. kernels that wait by a clock: is the slope of time against waiting 1?
2. chains of dependent operations, several the same and some longer by 1 and 2 %: are differences found where there are
   some, and none where there are none; do intervals hold the known ratio as often as they claim?
3. inputs of 1 to 200 MB, cold: do they come from memory?
4. other timers on the same kernels: how long do they take for an interval as narrow?

`run` is the table of contents. Every experiment gives lines of the record: a figure, its target, held or not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import math
import os
import platform
import shutil
import statistics as plain_statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelproof import builds, counters, gpu, lease, processes, records, repository, statistics
from kernelproof import config as configuration
from kernelproof.config import CaseSelection, Config
from kernelproof.contest.entrants import TIMED, Entrant, arenas_of
from kernelproof.contest.measurement import IMAGES, Measured, Measurement
from kernelproof.contest.outputs import judge_outputs
from kernelproof.errors import BenchError, KernelproofError
from kernelproof.methods import COLD_SHARE
from kernelproof.records import Case, Contender, SelfcheckLine, SelfcheckRecord
from kernelproof.samples import PRIMARY
from kernelproof.selfcheck import analysis
from kernelproof.selfcheck.analysis import Shape

HERE = Path(__file__).resolve().parent
SOURCES = ("spin.h", "spin.cu", "spin.cc", "binding.cc")
LANES = 64  # elements of a spinning kernel's input
NOMINAL_US = {"cuda": (2.0, 3.0, 5.0, 10.0, 20.0), "cpu": (20.0, 50.0, 100.0, 200.0, 500.0)}
FIRST_ITERATIONS = {"cuda": (500, 5000), "cpu": (20_000, 200_000)}  # to find out how long one takes
# What `timer` waits for: on a GPU multiples of 1,024 ns, for %globaltimer steps by 32 ns on some and 1,024 on others.
WAIT_NS = {"cuda": (1024, 2048, 4096, 9216, 18_432), "cpu": (18_000, 48_000, 98_000, 198_000, 498_000)}
READ_BYTES = tuple(megabytes << 20 for megabytes in (1, 8, 64, 200))
RESERVE_S = {"cuda": 40.0, "cpu": 2.0}  # of the time asked for: what comes after the comparisons
PEER_REPEATS, PEER_LIMIT_S = 12, 300.0
VARIANT_OF = {"cuda": "gpu", "cpu": "cpu"}


@dataclass(frozen=True)
class Options:
    """How much is done: at most so many processes, in all about so many seconds; so many kernels of one kind."""

    device: str
    processes: int = 40
    twins: int = 7
    seconds: float = 140.0


def run(config: Config, options: Options, output: Path) -> SelfcheckRecord:
    """Build, measure, analyse; write the record.

    Raises BenchError where there is no such device or the kernels cannot be built, LeaseError where no GPU is free.
    """
    started = time.monotonic()
    if options.processes < 2 * config.bench.processes:
        raise BenchError(
            f"{options.processes} processes are too few: at least two groups of bench.processes "
            f"({config.bench.processes}) are compared",
            subject="selfcheck",
            hint=f"--processes {2 * config.bench.processes} or more",
        )
    record = SelfcheckRecord(device=options.device, provenance=repository.provenance(config.root))
    with _device(config, options.device) as record.gpu:
        _describe(record)
        _tell("building the kernels", started)
        project = _built(_project(config), options.device)
        found = _measured(project, options, record, started)
        record.data["shapes"] = [dataclasses.asdict(shape) for shape in found.shapes]
        _keep_samples(found.columns, output)
        _tell("comparing", started)
        record.lines += list(_compared(project, options, record, found))
        records.write(output, record)  # whatever becomes of the rest, this is measured
        target = f"≥ {COLD_SHARE:.0%} of the input's bytes"
        if options.device == "cuda":
            _tell("counting the bytes of cold calls", started)
            record.lines += _tried("cold", target, lambda: _cold(project, record, target))
            _tell("asking other timers", started)
            record.lines += _tried("speed_peers", "", lambda: _peers(project, record, found))
        else:
            record.lines.append(SelfcheckLine("cold", target, None, "%", None, "no counter of a CPU is read"))
    record.load_after = _load()
    _excuse(record)
    record.duration_s = round(time.monotonic() - started, 3)
    records.write(output, record)
    return record


@contextlib.contextmanager
def _device(config: Config, device: str) -> Iterator[str | None]:
    """The GPU for us alone; on a CPU one core, so that the kernels' one thread stays where it is."""
    if device == "cuda":
        present, why = gpu.available()
        if not present:
            raise BenchError(
                f"no GPU: {why}", subject="selfcheck", hint="--device cpu, or a machine with an NVIDIA GPU"
            )
        with lease.gpu_lease(config.bench.gpu_wait_s, "selfcheck") as name:
            yield name
        return
    with processes.pinned(processes.cores_to_measure_on(1)):
        yield None


def _describe(record: SelfcheckRecord) -> None:
    """The machine, in the words that a reader needs."""
    import torch

    record.torch, record.load_before = torch.__version__, _load()
    if record.device == "cuda":
        index = gpu.index_of_first_visible(os.environ.get("CUDA_VISIBLE_DEVICES"))
        board = gpu.gpus()[index]
        record.machine, record.driver = board.name or "GPU", board.driver
        return
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        record.machine = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    record.machine = record.machine or platform.machine()


def _tell(what: str, started: float) -> None:
    print(f"selfcheck: {time.monotonic() - started:.0f} s: {what}", file=sys.stderr, flush=True)


def _tried(name: str, target: str, work: Callable[[], list[SelfcheckLine]]) -> list[SelfcheckLine]:
    """Lines of an experiment with somebody else's tool; where that fails, one that says how."""
    try:
        return work()
    except Exception as error:  # whatever the tool does, the rest of the record stands
        detail = error.message if isinstance(error, KernelproofError) else f"{type(error).__name__}: {error}"
        return [SelfcheckLine(name, target, None, "", None, f"not run: {detail}"[:800])]


def _keep_samples(columns: Mapping[str, Sequence[Any]], output: Path) -> None:
    """Every sample beside the record, as the bench stage keeps its own."""
    import pandas

    output.parent.mkdir(parents=True, exist_ok=True)
    text = pandas.DataFrame(dict(columns)).to_csv(index=False, float_format="%.6g")
    records.atomic_write(output.with_suffix(".csv.gz"), gzip.compress(text.encode(), 6, mtime=0))


def _excuse(record: SelfcheckRecord) -> None:
    """On a CPU that others kept busy, what is not held says more of them than of the design."""
    cores = os.cpu_count() or 1
    if record.device == "cpu" and record.load_before > cores / 2:
        for line in record.lines:
            if line.held is False:
                line.held = None
                line.detail = f"missed on a busy machine (load {record.load_before:g} on {cores} cores): {line.detail}"


def _environment() -> dict[str, str]:
    """Of a process beside us that calls the kernels."""
    return processes.own_environment() | processes.NO_EXTENSION


def _load() -> float:
    return round(os.getloadavg()[0], 2)


# --- the kernels ------------------------------------------------------------------------------------------------------


def _project(config: Config) -> Config:
    """A project of its own below the results, with the bench settings of the one at hand."""
    root = config.results / "selfcheck"
    root.mkdir(parents=True, exist_ok=True)
    for name in SOURCES:
        if not (root / name).is_file() or (root / name).read_bytes() != (HERE / name).read_bytes():
            shutil.copyfile(HERE / name, root / name)
    settings = dataclasses.asdict(config.bench) | {
        "modes": ["hot"],
        "cpu_threads": 1,
        "energy": False,
        "counters": False,
    }
    variants = {
        "gpu": {"device": "cuda", "sources": ["spin.cu"], "archs": ["native"]},
        "cpu": {"device": "cpu", "sources": ["spin.cc"], "flags": ["-O2"]},
    }
    common = {"dtypes": ["float32"], "precision": {"output": "float32"}, "entry": "base"}
    numbers = {"elements": LANES, "ns": 1, "iterations": 1, "plus_1": 1, "plus_2": 1}
    operator = {
        "module": "kernelproof.selfcheck.operator",
        "binding": "binding.cc",
        "shapes": {"first": numbers},
        "test": {"shapes": ["first"]},
        "bench": {"shapes": ["first"]},
        "variants": {name: {**common, **settings} for name, settings in variants.items()},
    }
    data = {
        "schema": "kernelproof.config/1",
        "project": "selfcheck",
        "operators": {"spin": operator},
        "bench": settings,
        "gate": dataclasses.asdict(config.gate),
    }
    path = root / "config.yaml"
    records.atomic_write(path, json.dumps(data, indent=1))  # YAML holds JSON
    return configuration.load(path, root=root)


def _built(project: Config, device: str) -> Config:
    """The library of one device, by the build command. Raises BenchError with what the compiler said."""
    name = VARIANT_OF[device]
    command = [sys.executable, "-P", "-m", "kernelproof", "build", "--operator", "spin", "--variant", name]
    environment = _environment()
    said = processes.run(command, cwd=project.root, env=environment, timeout_s=300, check=False)
    record = project.record("build", "spin", name)
    if said.returncode != 0 or records.read(record, records.BuildRecord).library is None:
        raise BenchError(f"the kernels cannot be built:\n{said.stdout}{said.stderr}", subject="selfcheck")
    return project


def _entrant(project: Config, device: str, name: str, limits: Mapping[str, list[int]], role: str) -> Entrant:
    """A contender by name; `plus_2.b` calls the entry `plus_2`."""
    built = project.operator("spin").variant(VARIANT_OF[device])
    entry = analysis.kind_of(name)
    variant = dataclasses.replace(built, name=name, entry=entry, limits=dict(limits), role=role)
    record = records.read(project.record("build", "spin", built.name), records.BuildRecord)
    candidate = {
        "name": name,
        "abi": variant.abi,
        "device": device,
        "passing": variant.passing,
        "entry": entry,
        "library": str(builds.library(project, built, record)),
        "root": str(project.root.resolve()),
    }
    return Entrant(variant, Contender(name, role, variant.abi, "correct", True, TIMED), candidate)


def _with_shapes(project: Config, shapes: Mapping[str, dict[str, int]]) -> Config:
    operator = dataclasses.replace(
        project.operator("spin"), shapes=dict(shapes), bench=CaseSelection(shapes=list(shapes))
    )
    return dataclasses.replace(project, operators={"spin": operator})


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass
class Found:
    """What was measured, and on what."""

    shapes: list[Shape]
    columns: Mapping[str, Sequence[Any]]
    cost: analysis.Cost
    candidates: dict[str, dict[str, Any]]


def _measured(project: Config, options: Options, record: SelfcheckRecord, started: float) -> Found:
    """All processes. How many there are follows from how long the first takes."""
    from kernelproof.supervisor import WorkerHost

    with processes.scratch_folder("selfcheck") as folder:
        home, begun = folder / "host", time.monotonic()
        home.mkdir()
        host = WorkerHost(
            device=options.device, needs_torch=True, scratch=home, threads=1, private=[folder], measures=True
        )
        with host:
            host.wait_until_ready()
            start_s = time.monotonic() - begun  # counts as overhead, though a first look at the kernels comes between
            shapes = _shapes(project, options.device, host, folder / "first")
            found = _comparisons(project, options, record, shapes, host, folder / "main", started)
            found.cost.wall_s += start_s
            if options.device == "cuda":
                _tell("hot and cold reading", started)
                with contextlib.suppress(KernelproofError):  # figures beside those of the counter
                    record.data["reading"] = _reading(project, host, folder / "reading")
    return found


def _session(
    project: Config,
    device: str,
    entrants: list[Entrant],
    shapes: Mapping[str, dict[str, int]],
    host: Any,
    folder: Path,
) -> tuple[Measurement, Any]:
    """The bench stage's own measurement of some contenders on some shapes, and the operator that judges them."""
    from kernelproof import operators

    folder.mkdir()
    shaped = _with_shapes(project, shapes)
    operator = operators.load(shaped.operator("spin").module, shaped.root)
    arenas = arenas_of(shaped.operator("spin"), operator, entrants, folder / IMAGES)
    return Measurement(shaped, device, entrants, arenas, host, folder), operator


def _sound(project: Config, measurement: Measurement, operator: Any) -> Measured:
    """What was measured, once every result has been judged. Raises BenchError where a kernel of ours was dropped."""
    measurement.device = "cpu"  # where references are computed: a context of ours would be another process on the GPU
    judge_outputs(project, measurement, operator)
    if measurement.found.dropped:
        first = measurement.found.dropped[0]
        raise BenchError(f"{first['contender']} was dropped: {first['reason']}", subject="selfcheck")
    return measurement.found


def _shapes(project: Config, device: str, host: Any, folder: Path) -> list[Shape]:
    """Numbers of iterations for the nominal times, from two first ones and the line through them."""
    numbers = FIRST_ITERATIONS[device]
    dims = {
        f"first_{number}": {"elements": LANES, "ns": 1, "iterations": number, "plus_1": 1, "plus_2": 1}
        for number in numbers
    }
    measurement, operator = _session(
        project, device, [_entrant(project, device, "base.a", {}, "variant")], dims, host, folder
    )
    measurement.process("time", 0)
    samples = analysis.samples_of(_sound(project, measurement, operator).samples, PRIMARY[device])
    times = [analysis.median_us(samples["base.a", f"first_{number}-float32"]) for number in numbers]
    fit = analysis.fitted([float(number) for number in numbers], times)

    def iterations(time_us: float) -> int:
        return max(1, round((time_us - fit.intercept_us) / fit.slope))

    return [
        Shape(
            f"us_{nominal:g}-float32",
            nominal,
            wait_ns,
            {
                "base": iterations(nominal),
                "plus_1": iterations(1.01 * nominal),
                "plus_2": iterations(1.02 * nominal),
            },
        )
        for nominal, wait_ns in zip(NOMINAL_US[device], WAIT_NS[device], strict=True)
    ]


def _comparisons(
    project: Config,
    options: Options,
    record: SelfcheckRecord,
    shapes: list[Shape],
    host: Any,
    folder: Path,
    started: float,
) -> Found:
    """Twins at every length, longer chains and a clock's kernel beside them."""
    device, targets = options.device, _targets(options.device)
    twins = [f"base.{chr(ord('a') + number)}" for number in range(options.twins)]
    at_twins = {"ns": [shape.ns for shape in shapes if shape.nominal_us == targets.twins_us]}
    names: list[tuple[str, dict[str, list[int]]]] = [(name, {}) for name in (*twins, "timer")]
    names += [(f"{kind}.{letter}", at_twins) for kind in analysis.POWER for letter in "ab"]
    entrants = [
        _entrant(project, device, name, limits, "baseline" if name == twins[0] else "variant") for name, limits in names
    ]
    dims = {
        shape.case.removesuffix("-float32"): {
            "elements": LANES,
            "ns": shape.ns,
            "iterations": shape.iterations["base"],
            "plus_1": shape.iterations["plus_1"],
            "plus_2": shape.iterations["plus_2"],
        }
        for shape in shapes
    }
    begun = time.monotonic()
    measurement, operator = _session(project, device, entrants, dims, host, folder)
    if device == "cuda":
        measurement.process("trace", 0)
    group, before = project.bench.processes, time.monotonic()
    measurement.process("time", 0)
    each_s = time.monotonic() - before
    left_s = options.seconds - RESERVE_S[device] - (time.monotonic() - started)
    fitting = 1 + int(max(0.0, left_s) / each_s)
    count = max(2 * group, min(options.processes, fitting) // group * group)
    _tell(f"{each_s:.1f} s a process, {count} processes", started)
    for index in range(1, count):
        measurement.process("time", index)
    wall_s = time.monotonic() - begun
    found = _sound(project, measurement, operator)
    record.processes, record.group, record.twins = count, group, options.twins
    visits = count * sum(len(arena.names) for arena in measurement.arenas)
    cost = analysis.Cost(wall_s, found.measuring_s, analysis.device_seconds(found.samples), found.state_s, visits)
    record.data["others_on_the_gpu"] = found.neighbours
    record.data["clock_mhz"] = _span(found.samples.get("sm_clock_mhz", []))
    record.data["load"] = _span(found.samples.get("load", []))
    record.data["throttle"] = sorted({entry for entry in found.samples.get("throttle", []) if entry})
    return Found(shapes, found.samples, cost, {entrant.name: entrant.candidate for entrant in entrants})


def _span(values: Sequence[Any]) -> list[float]:
    known = [float(value) for value in values if value is not None]
    return [min(known), max(known)] if known else []


def _reading(project: Config, host: Any, folder: Path) -> list[dict[str, Any]]:
    """Hot and cold times of a kernel that only reads, and what rate each is."""
    both = dataclasses.replace(project, bench=dataclasses.replace(project.bench, modes=["hot", "cold"]))
    dims = {
        f"read_{size}": {"elements": size // 4, "ns": 1, "iterations": 1, "plus_1": 1, "plus_2": 1}
        for size in READ_BYTES
    }
    measurement, operator = _session(both, "cuda", [_entrant(both, "cuda", "read", {}, "variant")], dims, host, folder)
    measurement.process("time", 0)
    columns = _sound(both, measurement, operator).samples
    found = []
    for size in READ_BYTES:
        for mode in both.bench.modes:
            names = ("case", "mode", "method", "time_us")
            times = [
                time_us
                for case, in_mode, method, time_us in zip(*(columns[name] for name in names), strict=True)
                if (case, in_mode, method) == (f"read_{size}-float32", mode, PRIMARY["cuda"])
            ]
            middle_us = _six(plain_statistics.median(times))
            rate = _six(size / middle_us * 1e6)
            found.append({"size_bytes": size, "mode": mode, "time_us": middle_us, "bytes_per_s": rate})
    return found


def _targets(device: str) -> analysis.Targets:
    return analysis.GPU_TARGETS if device == "cuda" else analysis.CPU_TARGETS


# --- what it says -----------------------------------------------------------------------------------------------------


def _compared(project: Config, options: Options, record: SelfcheckRecord, found: Found) -> Iterator[SelfcheckLine]:
    """Accuracy, errors of both kinds, coverage, repeatability, cost."""
    targets = _targets(options.device)
    samples = analysis.samples_of(found.columns, PRIMARY[options.device])
    settings = statistics.Settings(project.bench.confidence, project.bench.bootstrap)
    line, record.data["accuracy"] = analysis.accuracy(samples, found.shapes, targets)
    yield line
    pairs = analysis.pairs(samples, found.shapes, project.bench.processes, project.gate.same_band, settings)
    same = [pair for pair in pairs if pair.same]
    record.data["same"] = [[p.nominal_us, p.group, *_figures(p)] for p in same]
    record.data["different"] = [
        [p.kinds[0], p.group, *_figures(p), _six(p.truth or math.nan)]
        for p in pairs
        if p.kinds[1] == "base" and not p.same
    ]
    plain = analysis.naive(samples, found.shapes, len(same))
    excluded = sum(not pair.covered for pair in same)
    record.data["naive"] = {**plain, "ours_excluding_1": excluded, "ours_trials": len(same)}
    line = analysis.false_positives(pairs, targets)
    line.detail += (
        f"; one process each, one after the other, resampled unpaired: {plain['wrong']} of {plain['trials']} "
        f"intervals exclude 1 (here {excluded} of {len(same)})"
    )
    yield line
    yield from analysis.power(pairs)
    yield analysis.coverage(pairs)
    record.data["spread"] = {}
    for line, spreads in analysis.repeatability(samples, found.shapes, targets):
        record.data["spread"] |= spreads
        yield line
    yield from analysis.cost_lines(found.cost)


def _figures(pair: analysis.Pair) -> list[float]:
    return [_six(pair.ratio), _six(pair.low), _six(pair.high)]


def _six(value: float) -> float:
    return float(f"{value:.6g}")


def _cold(project: Config, record: SelfcheckRecord, target: str) -> list[SelfcheckLine]:
    """Bytes that a kernel read from memory, by Nsight Compute's counter, over those of its input."""
    with tempfile.TemporaryDirectory() as folder:
        cases = [_input_of(size, Path(folder)) for size in READ_BYTES]
        reader = _entrant(project, "cuda", "read", {}, "variant").candidate
        log = project.results / "logs" / "counters.log"
        with counters.Counting(record.device, Path(folder) / "counters", log) as counting:
            found, left_out = counting.count(["cold", "hot"], [reader], cases)
    if left_out:
        raise BenchError(left_out[0].reason, subject=left_out[0].case)
    record.data["cold"] = [dataclasses.asdict(entry) for entry in found]
    sizes = {case["id"]: size for case, size in zip(cases, READ_BYTES, strict=True)}
    least = {(entry.mode, sizes[entry.case]): min(entry.dram_bytes) / sizes[entry.case] for entry in found}
    detail = "; ".join(
        f"{size >> 20} MB: {least['cold', size]:.1%}, hot {least['hot', size]:.1%}" for size in READ_BYTES
    )
    worst = min(least["cold", size] for size in READ_BYTES)
    return [SelfcheckLine("cold", target, 100 * worst, "%", worst >= COLD_SHARE, f"least of the calls; {detail}")]


def _input_of(size: int, folder: Path) -> dict[str, Any]:
    """A case of the kernel that reads so many bytes, for counters.py."""
    from kernelproof import images, judge
    from kernelproof.selfcheck.operator import BLOCKS, OPERATOR, THREADS

    dims = {"elements": size // 4, "ns": 1, "iterations": 1, "plus_1": 1, "plus_2": 1}
    case = Case("spin", f"read_{size}", dims, {}, "float32")
    call = OPERATOR.make_call(case, judge.generator(case))
    launch = {"grid": [BLOCKS, 1, 1], "block": [THREADS, 1, 1], "cluster": [], "shared_bytes": 0, "count": 1}
    return {
        "id": case.bench_id,
        "arguments": images.layout_images(call, folder / case.bench_id).spec,
        "outputs": list(call.outputs),
        "contenders": ["read"],
        "launches": {"read": [launch]},
    }


def _peers(project: Config, record: SelfcheckRecord, found: Found) -> list[SelfcheckLine]:
    """Other timers on the plain chain and the one longer by 2 %."""
    shape = next(shape for shape in found.shapes if shape.nominal_us == analysis.GPU_TARGETS.twins_us)
    samples = analysis.samples_of(found.columns, PRIMARY["cuda"])
    width, _ = analysis.width_within(samples, shape, ("base", "plus_2"), project.bench.confidence)
    # Both contenders' share of the request, with everything that it did beside: other methods, captures, checks.
    seconds = 2 * found.cost.requests_s / found.cost.visits
    candidates = [
        {name: value for name, value in found.candidates[chosen].items() if name != "name"}
        for chosen in ("base.a", "plus_2.a")
    ]
    numbers = [shape.ns, *(shape.iterations[kind] for kind in ("base", "plus_1", "plus_2"))]
    task = json.dumps({"candidates": candidates, "arguments": numbers, "repeats": PEER_REPEATS})
    environment = _environment()
    log = project.results / "logs" / "peers.log"
    done = processes.run(
        [sys.executable, "-P", "-m", "kernelproof.selfcheck.peers", task],
        env=environment,
        timeout_s=PEER_LIMIT_S,
        log=log,
    )
    said = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    record.data["peers"] = said
    return list(analysis.peer_lines(said, width, seconds))


def summary(record: SelfcheckRecord) -> Iterator[str]:
    """A line each, for the terminal."""
    yield f"{record.machine}, {record.processes} processes in groups of {record.group}, {record.duration_s:.0f} s"
    for line in record.lines:
        word = {True: "held", False: "NOT HELD", None: "not decided"}[line.held]
        figure = "" if line.value is None else f" {line.value:.4g} {line.unit}".rstrip()
        yield f"{line.name}: {word}:{figure} (target: {line.target}); {line.detail}"
