"""Who takes part in a benchmark, and on what: contenders found correct, and cases whose inputs lie ready."""

from __future__ import annotations

import dataclasses
import os
import random
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof import builds, launches, records, traces
from kernelproof.cases import enumerate_cases
from kernelproof.config import Config, OperatorConfig, VariantConfig
from kernelproof.errors import RecordError
from kernelproof.records import BenchCase, BuildRecord, Case, CaseResult, Contender, TestRecord

if TYPE_CHECKING:
    from torch import Tensor

    from kernelproof.launches import Step
    from kernelproof.operators import Call, Operator

TIMED = "timed"
SAME_VALUES = {"poisoned": TIMED, "ahead": "moved"}  # versions of a result, and whose values they are of


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


def entrants_of(config: Config, operator: OperatorConfig, device: str, only: str | None = None) -> list[Entrant]:
    """The operator's contenders on a device, each with what the build and test stages said of it.

    only: the one variant that takes part, beside the baselines.
    """
    entrants = [_entrant(config, variant) for variant in operator.contenders(device)]
    for entrant in entrants:
        if only not in (None, entrant.name) and entrant.variant.role == "variant":
            entrant.contender.correct, entrant.contender.outcome = False, "not benchmarked: not asked for"
    return entrants


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
        contender.build_signature = test.build_signature
        tested = [case for case in test.cases if case.status == "passed"]
        if not contender.correct:
            unjudged = test.verdict == records.NOT_RUN and test.reason
            contender.outcome = (
                f"not benchmarked: {test.verdict.replace('_', ' ')}{f': {unjudged}' if unjudged else ''}"
            )
        elif changed := _changed_module(test, config.root):
            contender.correct = False
            contender.outcome = f"not benchmarked: {changed} was changed after the test (test again: {again})"
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


def _changed_module(test: TestRecord, root: Path) -> str | None:
    """The first of the operator's own files that is not as it was when its variant was tested."""
    files = [*filter(None, [test.module]), *(test.imports or ())]
    return next((file.path for file in files if builds.altered(file, root)), None)


def cannot_run(device: str, entrants: Sequence[Entrant], only: str | None = None) -> tuple[str, str | None] | None:
    """Why nothing, or not the one that is asked for, can be measured, and what to do; None where it can."""
    if device == "cuda":
        from kernelproof import gpu

        present, why = gpu.available()
        if not present:
            for entrant in entrants:
                entrant.contender.outcome = "not benchmarked: no GPU"
            return f"no GPU: {why}", "run it on a machine with an NVIDIA GPU and driver"
    if not entrants:
        return f"no variant or baseline runs on {device}", None
    asked = [entrant for entrant in entrants if only in (None, entrant.name)]
    if not any(entrant.contender.correct for entrant in asked):
        why = "; ".join(f"{entrant.name}: {entrant.contender.outcome}" for entrant in asked)
        if only:
            return f"it cannot be measured ({why})", "see its test record: only what is correct there is timed"
        return f"no contender is correct ({why})", "see the test records: only what is correct there is timed"
    return None


def values_of(version: str) -> str:
    """The one of an arena's calls whose values a result is of that was handed over as this version."""
    return SAME_VALUES.get(version, version)


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


def arenas_of(settings: OperatorConfig, operator: Operator, entrants: Sequence[Entrant], scratch: Path) -> list[Arena]:
    """Every case that at least one contender accepts, with its inputs in files.

    Values do not change the work, so one seed is enough, and the same values serve every contender. It is drawn:
    results for values that everybody knows could be brought along.
    """
    wanted: dict[str, tuple[Case, list[str]]] = {}
    for entrant in entrants:
        if entrant.contender.correct:
            for case in enumerate_cases(settings, entrant.variant, "bench", families=operator.families):
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
    """The new values are of another of the families that are tested: who is right for usual ones alone is found.

    Of another that has the same tensors, since of a call that does without one there is nothing to change.
    """
    from kernelproof import images, judge, operators

    timed = operator.make_call(case, judge.generator(case))
    others = [family for family in families if family != case.family]
    for family in (*random.SystemRandom().sample(others, len(others)), case.family):
        fresh_case = dataclasses.replace(case, seed=fresh_seed, family=family)
        fresh = operator.make_call(fresh_case, judge.generator(fresh_case))
        if fresh.tensors.keys() == timed.tensors.keys():
            break
    arguments = images.layout_images(timed, scratch / case.bench_id).spec
    other_values = images.layout_images(fresh, scratch / f"{case.bench_id}-fresh").spec
    changeable = operators.changeable(operator, timed)  # of which indices stay as they are: only numbers are moved
    inputs = {name: tensor for name, tensor in changeable.items() if not operators.may_be_index(tensor)}
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
