"""Does the judge accuse a correct kernel? Every one there is, over fresh seeds, and how far each stays from the limits.

    python benchmarks/calibrate.py --device cpu --output reports/reference/cpu/calibration.json

What runs: the variants and baselines of config.yaml for the device (SDPA's backends in every data type they can take),
and the honest but unusual kernels of benchmarks/honest.py. Each kernel × data type × layout is run under seeds of its
own, every input family and shapes off every tile, and judged in this process by criteria (a) to (d), one case by the
relations (e) too; then each kernel climbs the whole ladder of the test stage, with the same configuration. Exit code:
0 nobody is accused; 1 somebody is; 2 it could not run. A run is repeated with `--only` its name, `--seeds 1` and its
`--seed`.

This is a script of the repository and no command: it tests kernelproof's own judge with the repository's kernels,
which an installed kernelproof does not have. `kernelproof derive` makes the tables of docs/explanation/correctness.md
from the records that are kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import importlib.util
import itertools
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from kernelproof import build, capture, config, judge, loading, operators, records, repository, suite, test  # noqa: E402
from kernelproof.cases import unsupported  # noqa: E402
from kernelproof.config import Config, OperatorConfig, VariantConfig  # noqa: E402
from kernelproof.errors import ExitCode, KernelproofError  # noqa: E402
from kernelproof.images import Returned  # noqa: E402
from kernelproof.operators import Call, Operator  # noqa: E402
from kernelproof.processes import scratch_folder  # noqa: E402
from kernelproof.records import (  # noqa: E402
    CalibrationClimb,
    CalibrationRecord,
    CalibrationRun,
    Case,
    CaseResult,
    Combination,
    Margins,
)

HONEST = ROOT / "benchmarks" / "honest.py"

# Lengths that no tile divides, few and many rows, grouped heads, more and fewer keys than queries.
SHAPES: dict[str, dict[str, dict[str, int]]] = {
    "attention": {
        "s127": {"batch": 1, "heads": 2, "seq": 127, "head_dim": 64},
        "s1": {"batch": 2, "heads": 3, "seq": 1, "head_dim": 64},
        "s9": {"batch": 1, "heads": 2, "seq": 9, "head_dim": 64},
        "s63": {"batch": 1, "heads": 2, "seq": 63, "head_dim": 64},
        "s65": {"batch": 2, "heads": 1, "seq": 65, "head_dim": 64},
        "s500": {"batch": 1, "heads": 1, "seq": 500, "head_dim": 64},
        "s513": {"batch": 1, "heads": 1, "seq": 513, "head_dim": 64},
        "d128": {"batch": 1, "heads": 2, "seq": 200, "head_dim": 128},
        "d40": {"batch": 1, "heads": 3, "seq": 111, "head_dim": 40},
        "grouped": {"batch": 1, "heads": 12, "kv_heads": 3, "seq": 130, "head_dim": 64},
        "decode": {"batch": 2, "heads": 6, "kv_heads": 3, "seq": 1, "seq_k": 200, "head_dim": 64},
        "more_keys": {"batch": 1, "heads": 2, "seq": 70, "seq_k": 200, "head_dim": 64},
        "fewer_keys": {"batch": 2, "heads": 4, "kv_heads": 2, "seq": 150, "seq_k": 70, "head_dim": 64},
    },
    "qkt": {
        "s127": {"batch": 1, "heads": 2, "seq": 127, "head_dim": 64},
        "small": {"batch": 1, "heads": 4, "seq": 8, "head_dim": 64},
        "s65": {"batch": 2, "heads": 3, "seq": 65, "head_dim": 64},
        "s513": {"batch": 1, "heads": 1, "seq": 513, "head_dim": 64},
        "d128": {"batch": 1, "heads": 2, "seq": 200, "head_dim": 128},
        "d160": {"batch": 1, "heads": 2, "seq": 40, "head_dim": 160},
    },
    "rmsnorm": {
        "odd": {"rows": 17, "cols": 1001},
        "tiny": {"rows": 3, "cols": 8},
        "tall": {"rows": 257, "cols": 127},
        "wide": {"rows": 33, "cols": 5000},
    },
}
SHAPES["quantised_attention"] = SHAPES["attention"]

# On a CPU the ladder leaves out what is slow in Python and says nothing else, and repeats less.
SLOW_ON_A_CPU = ("s500", "s513", "d128")
CPU_TRIALS = 20

# SDPA in more data types than are benchmarked, and how each is to be declared: math computes in float32.
HALF, FLOATS = ("float16", "bfloat16"), ("float16", "bfloat16", "float32")
MORE_TYPES: dict[str, tuple[Sequence[str], str]] = {
    "sdpa_math_cpu": (FLOATS, "float32"),
    "sdpa_flash_cpu": (("bfloat16", "float32"), "input"),
    "sdpa_default_cpu": (("bfloat16", "float32"), "input"),
    "sdpa_math": (FLOATS, "float32"),
    "sdpa_efficient": (FLOATS, "input"),
    "rmsnorm_torch_cpu": (FLOATS, "float32"),
}
# What the judge accuses, and rightly.
LEFT_OUT = {
    "sdpa_flash_cpu, sdpa_default_cpu in float16": "where one key dominates, torch's CPU flash kernel in float16 gives "
    "results that are too large on average by more than criterion (c) allows, under every seed"
}


# --- what is run ------------------------------------------------------------------------------------------------------


def configured(device: str, kernels: ModuleType, folder: Path) -> Config:
    """The repository's configuration with the kernels of one device, the honest ones among them, on SHAPES."""
    data = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
    for name, operator in data["operators"].items():
        shapes = SHAPES[name]
        main = next(iter(shapes))
        operator |= {"shapes": shapes, "bench": {"shapes": [main]}, "profile": {"shape": main}}
        slow = SLOW_ON_A_CPU if device == "cpu" else ()
        operator["test"] |= {
            "shapes": [shape for shape in shapes if shape not in slow],
            "cuda_shapes": [],
            "family_shape": main,
            "families_also_on": [shape for shape in operator["test"].get("families_also_on", ()) if shape in shapes],
        }
        for group in ("variants", "baselines"):
            operator[group] = {key: value for key, value in operator[group].items() if value["device"] == device}
        for key, (dtypes, p) in MORE_TYPES.items():
            if key in operator["baselines"]:
                operator["baselines"][key] |= {"dtypes": list(dtypes), "precision": {"output": "input", "p": p}}
        operator["baselines"] |= {
            made.name: _settings(made, device, kernels)
            for made in kernels.KERNELS
            if made.operator == name and device in made.devices
        }
    if device == "cpu":
        data["test"]["trials"] = CPU_TRIALS
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return config.load(path, root=ROOT)


def _settings(made: Any, device: str, kernels: ModuleType) -> dict[str, Any]:
    """A kernel of the collection as config.yaml would have it."""
    assert kernels.__file__
    return {
        "idea": made.idea,
        "abi": "python",
        "device": device,
        "entry": f"{os.path.relpath(kernels.__file__, ROOT)}:{made.name}",
        "dtypes": list(made.dtypes),
        "precision": dict(made.precision),
        "deterministic": made.deterministic,
    }


def collection(path: Path) -> ModuleType:
    """A file with KERNELS, as benchmarks/honest.py is one. Raises KernelproofError where there is none."""
    spec = importlib.util.spec_from_file_location(f"calibrated_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise KernelproofError("is no Python file", subject=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    if not hasattr(module, "KERNELS"):
        raise KernelproofError("defines no KERNELS; see benchmarks/honest.py", subject=str(path))
    return module


@dataclass(frozen=True)
class Combined:
    """A kernel in one data type and layout (`-` where its operator has none)."""

    operator: OperatorConfig
    variant: VariantConfig
    dtype: str
    layout: str

    @property
    def name(self) -> str:
        """`attention/split_keys-float16-bshd`."""
        return f"{self.variant.key}-{self.dtype}-{self.layout}"


def combinations(chosen: Config, device: str, only: Sequence[str]) -> list[Combined]:
    """Every kernel × data type × layout, or those whose name fits one of the patterns (a part of it will do)."""
    found = []
    for operator in chosen.operators.values():
        layouts = _module(operator).options.get("layout", ("-",))
        for variant in operator.contenders(device):
            found += [
                Combined(operator, variant, dtype, str(layout))
                for dtype, layout in itertools.product(variant.dtypes, layouts)
                if layout == "-" or layout in variant.options.get("layout", [layout])
            ]
    return [one for one in found if not only or any(fnmatch.fnmatch(one.name, f"*{pattern}*") for pattern in only)]


def _module(operator: OperatorConfig) -> Operator:
    return operators.load(operator.module, ROOT)


def cases(combined: Combined, seed: int) -> Iterator[Case]:
    """A run's cases: each family twice with different options, on shapes in turn; each shape on the default family."""
    module, shapes = _module(combined.operator), combined.operator.shapes
    fixed = {} if combined.layout == "-" else {"layout": combined.layout}
    free = {name: values for name, values in module.options.items() if name not in fixed}
    options = [dict(zip(free, values, strict=True)) | fixed for values in itertools.product(*free.values())]
    names = list(shapes)

    def case(shape: str, family: str, turn: int) -> Case:
        chosen = options[turn % len(options)]
        return Case(module.name, shape, dict(shapes[shape]), dict(chosen), combined.dtype, family, seed)

    made = [
        case(names[(seed + place + again) % len(names)], family, seed + place + again)
        for place, family in enumerate(module.families)
        for again in range(2)
    ]
    made += [case(shape, module.families[0], seed + turn) for turn, shape in enumerate(names)]
    distinct = {one.id: one for one in made if unsupported(combined.variant, one) is None}
    yield from distinct.values()


# --- criteria (a) to (e), in this process -----------------------------------------------------------------------------


def loaded(chosen: Config, variant: VariantConfig) -> Callable[..., Any]:
    """A kernel as a callable, built if it is to be built. Raises KernelproofError with the reason why it cannot be."""
    if variant.abi == "python":
        return loading.load(variant, None, ROOT)
    cuda_home = Path(home) if (home := os.environ.get("KERNELPROOF_CUDA_HOME")) else None
    path = chosen.record("build", variant.operator, variant.name)
    record = build.run(chosen, variant.operator, variant.name, path, cuda_home)
    if record.status != records.OK or record.library is None:
        raise KernelproofError(record.reason or "it did not build", subject=variant.key)
    return loading.load(variant, ROOT / record.library.path, ROOT)


def run(combined: Combined, function: Callable[..., Any], seed: int, chosen: Config) -> CalibrationRun:
    """One kernel, data type and layout under one seed."""
    tolerance, variant, module = chosen.test.tolerance, combined.variant, _module(combined.operator)
    made, results = CalibrationRun(seed, 0, 0), []
    for case in cases(combined, seed):
        call = module.make_call(case, judge.generator(case))
        try:
            output = _called(variant, function, call)
        except NotImplementedError:
            made.refused += 1
            continue
        reference = module.reference(call, variant.precision.of(case.dtype), variant.device)
        results.append(judge.judge(case, call, reference, Returned(output), tolerance, operator=module))
    exact = [_exact(combined, function, sanity, chosen) for sanity in _sanity(combined, seed)]
    made.relations, broken = _related(combined, function, seed, chosen)
    made.cases, made.exact = len(results), sum(result is not None for result in exact)
    made.margins = margins(results, chosen)
    made.accusations = [f"{r.id}: {f.criterion}: {f.message}" for r in (*results, *exact) if r for f in r.failures]
    made.accusations += broken
    together = suite.findings(results, tolerance)
    made.accusations += [f"all cases: {found.criterion}: {found.message}" for found in together]
    return made


def _run_or_raised(combined: Combined, function: Callable[..., Any], seed: int, chosen: Config) -> CalibrationRun:
    """A run, or the error that the kernel raised in it: the others go on."""
    try:
        return run(combined, function, seed, chosen)
    except KernelproofError:
        raise
    except Exception as error:
        words = f"all cases: error: it raised {type(error).__name__}: {error}"
        return CalibrationRun(seed, 0, 0, accusations=[words])


def _sanity(combined: Combined, seed: int) -> list[Any]:
    first = next(cases(combined, seed), None)
    return _module(combined.operator).sanity_calls(first, judge.generator(first)) if first else []


def _exact(combined: Combined, function: Callable[..., Any], sanity: Any, chosen: Config) -> CaseResult | None:
    """An exact call, judged; None where it is refused."""
    try:
        output = _called(combined.variant, function, sanity.call)
    except NotImplementedError:
        return None
    reference = dataclasses.replace(
        sanity.reference,
        output=sanity.reference.output.to(output.device),
        bound=sanity.reference.bound.to(output.device),
    )
    return judge.judge(sanity.case, sanity.call, reference, Returned(output), chosen.test.tolerance)


def _related(combined: Combined, function: Callable[..., Any], seed: int, chosen: Config) -> tuple[int, list[str]]:
    """How many relations the first case of a run was held to, and those that it broke."""
    module, variant, case = _module(combined.operator), combined.variant, next(cases(combined, seed), None)
    if case is None:
        return 0, []
    generator, precision = judge.generator(case), variant.precision.of(case.dtype)
    call = module.make_call(case, generator)

    def computed(call: operators.Call) -> operators.Reference:
        return module.reference(call, precision, variant.device)

    own = computed(call)
    held, broken = 0, []
    for stated in operators.relations_of(module, case, call, generator):
        relation = stated
        if stated.exact and not variant.deterministic:  # what repeats may differ by is the base's bound, moved
            relation = dataclasses.replace(stated, exact=False, moves=True)
        try:
            before, after = (_called(variant, function, one) for one in (relation.base or call, relation.call))
        except NotImplementedError:
            continue
        base = computed(relation.base) if relation.base else own
        reference = operators.reference_after(relation, base, computed)
        failure = judge.related(relation, base, before, reference, after, chosen.test.tolerance)
        held += 1
        broken += [f"{case.id}: {relation.name}: {failure.message}"] if failure else []
    return held, broken


def _called(variant: VariantConfig, function: Callable[..., Any], call: Call) -> torch.Tensor:
    """The output of a call; what it does not write is NaN."""
    values = {
        name: value.to(variant.device) if isinstance(value, torch.Tensor) else value
        for name, value in call.arguments.items()
    }
    if variant.passing == "return":
        return function(*(value for name, value in values.items() if name not in call.outputs))
    output = torch.empty_like(call.output, device=variant.device).fill_(math.nan)  # calls of a relation share theirs
    values[call.outputs[0]] = output
    function(*values.values())
    return output


def margins(results: Sequence[CaseResult], chosen: Config) -> Margins:
    """The largest ratio to each limit, to four digits."""

    def largest(figure: str) -> float | None:
        known = [value for result in results if (value := getattr(result, figure)) is not None]
        return float(f"{max(known):.4g}") if known else None

    _, ratio = suite.bias(results, chosen.test.tolerance)
    over_all = None if ratio is None else float(f"{ratio:.4g}")
    return Margins(largest("max_bound_ratio"), largest("rms_ratio"), largest("bias_ratio"), over_all)


def in_process(
    chosen: Config, wanted: Sequence[Combined], first: int, seeds: int, say: Callable[[str], None]
) -> tuple[list[Combination], str | None]:
    """One kernel's combinations, each under `seeds` seeds of its own, counted from `first`; or why it cannot be run."""
    found = []
    for place, combined in enumerate(wanted):
        try:
            function = loaded(chosen, combined.variant)
        except KernelproofError as error:
            say(f"{combined.variant.key}: not run: {error.message}")
            return [], error.message
        started = time.monotonic()
        runs = [_run_or_raised(combined, function, first + place * seeds + turn, chosen) for turn in range(seeds)]
        p = combined.variant.precision.of(combined.dtype).p
        found.append(
            Combination(combined.operator.name, combined.variant.name, combined.dtype, combined.layout, p, runs)
        )
        say(_line(combined.name, found[-1], time.monotonic() - started))
    return found, None


# --- the whole ladder -------------------------------------------------------------------------------------------------


def climb(
    chosen: Config, variant: VariantConfig, seed: int, folder: Path, say: Callable[[str], None]
) -> CalibrationClimb:
    """A kernel through the test stage, on two fresh seeds beside the one that the stage draws itself."""
    fresh = dataclasses.replace(chosen.test, seeds=[seed, seed + 1])
    owners = {
        name: dataclasses.replace(owner, test=dataclasses.replace(owner.test, seeds=fresh.seeds))
        for name, owner in chosen.operators.items()
    }
    chosen = dataclasses.replace(chosen, test=fresh, operators=owners)
    (record,) = test.run(chosen, variant.operator, [variant.name], folder / variant.operator)
    judged = sum(case.status != "skipped" for case in record.cases)
    passed = [rung.name for rung in record.rungs if rung.status == "passed"]
    why = f": {record.reason}" if record.reason else ""
    say(f"{variant.key}: {record.verdict} ({judged} cases, {record.duration_s:.1f} s){why}")
    return CalibrationClimb(
        variant.operator,
        variant.name,
        record.verdict,
        judged,
        record.trials,
        variant.deterministic,
        passed,
        record.reason,
    )


# --- one kernel after another, or beside another ----------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """All that is to be done with one kernel, as a process of its own is told it. first: its first seed."""

    key: str
    first: int
    device: str
    kernels: Path
    only: Sequence[str]
    seeds: int
    ladder: bool
    folder: Path
    threads: int
    aside: bool  # what is said goes to stderr


@dataclass
class Done:
    """What became of a task."""

    combinations: list[Combination]
    left_out: str | None
    climb: CalibrationClimb | None = None


def do(task: Task) -> Done:
    """Carry out a task. Raises KernelproofError where nobody can be judged."""

    def say(line: str) -> None:
        print(line, file=sys.stderr if task.aside else sys.stdout, flush=True)

    torch.set_num_threads(task.threads)
    folder = task.folder / task.key.replace("/", "-")
    folder.mkdir()
    chosen = configured(task.device, collection(task.kernels), folder)
    wanted = [one for one in combinations(chosen, task.device, task.only) if one.variant.key == task.key]
    done = Done(*in_process(chosen, wanted, task.first, task.seeds, say))
    if task.ladder and done.left_out is None:
        done.climb = climb(chosen, wanted[0].variant, task.first, folder / "test", say)
    return done


# --- what is said -----------------------------------------------------------------------------------------------------


def _line(name: str, combination: Combination, duration_s: float) -> str:
    """A combination's largest ratios, and what it is accused of."""
    largest = [
        max((value for run in combination.runs if (value := getattr(run.margins, field)) is not None), default=None)
        for field in ("bound", "rms", "bias", "suite")
    ]
    shown = " ".join("     –" if value is None else f"{value:6.3f}" for value in largest)
    judged = sum(run.cases for run in combination.runs)
    accused = [f"\n  seed {run.seed}: {words}" for run in combination.runs for words in run.accusations]
    return f"{name:58} {judged:5} {shown}  {duration_s:.1f} s" + "".join(accused)


def model(device: str) -> str:
    """The processor's name, and nothing else of the machine."""
    return torch.cuda.get_device_name() if device == "cuda" else str(capture.cpu(None)["model"])


def accused(record: CalibrationRecord) -> list[str]:
    """Everything that is said against anybody."""
    found = [
        f"{one.operator}/{one.kernel}-{one.dtype}-{one.layout}, seed {made.seed}: {words}"
        for one in record.combinations
        for made in one.runs
        for words in made.accusations
    ]
    wrong = [climb for climb in record.climbs if climb.verdict not in ("correct", "not_run")]
    return found + [
        f"{climb.operator}/{climb.kernel} on the ladder: {climb.verdict}: {climb.reason}" for climb in wrong
    ]


def calibrate(options: argparse.Namespace, folder: Path) -> CalibrationRecord:
    """Run everything; the record says what came of it. Raises KernelproofError when nothing can be run."""
    started = time.monotonic()
    out = sys.stderr if options.json else sys.stdout
    wanted = combinations(configured(options.device, collection(options.kernels), folder), options.device, options.only)
    if not wanted:
        raise KernelproofError("no kernel × data type × layout has such a name", subject=", ".join(options.only))
    first = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "little") >> 1
    tasks, seed = [], first
    for key, group in itertools.groupby(wanted, key=lambda one: one.variant.key):
        tasks.append(
            Task(
                key,
                seed,
                options.device,
                options.kernels.resolve(),
                options.only,
                options.seeds,
                options.ladder,
                folder,
                max(1, len(os.sched_getaffinity(0)) // options.jobs),
                options.json,
            )
        )
        seed += len(list(group)) * options.seeds
    state = repository.provenance(ROOT)
    record = CalibrationRecord(provenance=state, device=model(options.device), torch=torch.__version__)
    record.tolerance = dataclasses.asdict(config.load(ROOT / "config.yaml").test.tolerance)
    print(f"torch {record.torch} on {record.device}; {len(wanted)} combinations, seeds from {first}", file=out)
    print(f"{'':58} cases {'bound':>6} {'rms':>6} {'bias':>6} {'suite':>6}", file=out, flush=True)
    known: dict[str, Done] = {}
    for key, done in _in_turn(tasks, options.jobs):
        known[key] = done
        found = [known[task.key] for task in tasks if task.key in known]
        record.combinations = [combination for one in found for combination in one.combinations]
        record.climbs = [one.climb for one in found if one.climb]
        record.left_out = {key: one.left_out for key, one in known.items() if one.left_out is not None}
        if not options.only and options.device == "cpu":
            record.left_out |= LEFT_OUT
        record.duration_s = time.monotonic() - started
        if len(known) < len(tasks) and options.output:
            record.status, record.reason = records.FAILED, f"cut short after {len(known)} of {len(tasks)} kernels"
            records.write(options.output, record)
    return record


def _in_turn(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[str, Done]]:
    """Each task's key and what came of it, as they end."""
    if jobs == 1:
        yield from ((task.key, do(task)) for task in tasks)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        # What is compiled while it runs takes longest: it begins first.
        first = sorted(tasks, key=lambda task: not task.key.endswith("/flex"))
        keys = {pool.submit(do, task): task.key for task in first}
        yield from ((keys[future], future.result()) for future in as_completed(keys))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, keep, and say whether anybody was accused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each combination, each with a seed of its own")
    parser.add_argument("--seed", type=int, help="the first seed (default: from the system)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="kernels at a time, in processes of their own")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="e.g. attention/flex or *-bshd")
    parser.add_argument("--kernels", type=Path, default=HONEST, metavar="FILE", help="another collection")
    parser.add_argument("--no-ladder", dest="ladder", action="store_false", help="in this process alone")
    parser.add_argument("--output", type=Path, metavar="FILE", help="keep the record here")
    parser.add_argument("--json", action="store_true", help="print the record")
    options = parser.parse_args(argv)
    try:
        with scratch_folder("calibrate") as folder:
            record = calibrate(options, folder)
    except KernelproofError as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return ExitCode.COULD_NOT_RUN
    found = accused(record)
    record.status, record.reason = (records.FAILED, f"{len(found)} accusations") if found else (records.OK, None)
    if options.output:
        records.write(options.output, record)
    if options.json:
        print(json.dumps(dataclasses.asdict(record), indent=1))
    else:
        runs = sum(len(one.runs) for one in record.combinations)
        print(f"{runs} runs of {len(record.combinations)} combinations, {len(record.climbs)} climbs:", end=" ")
        print("\n".join([f"{len(found)} accusations", *found]) if found else "nobody is accused")
    return ExitCode.BAD_VERDICT if found else ExitCode.WELL


if __name__ == "__main__":
    sys.exit(main())
