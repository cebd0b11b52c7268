"""The judge as a process: `python -m kernelproof.judging`, started by the supervisor and by nobody else.

It makes the inputs of a case from its seed, lays them out as images for the worker, takes the images back and, when the
worker has ended, computes the reference and holds the result against it (kernelproof.judge has the criteria). Expected
results and the poison that outputs held before a call exist in this process alone: it never loads a candidate, and the
supervisor, which talks to candidates, never has them. `Judge` is the supervisor's end; it needs no torch.

Messages are JSON, one line each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import socket
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof import records
from kernelproof.errors import JudgeError, KernelproofError, TestError, describe_exit
from kernelproof.processes import collect_rarely, kill_group, spawn
from kernelproof.records import Case, CaseResult, Failure, Histogram
from kernelproof.sandbox import hide_memory

if TYPE_CHECKING:
    from kernelproof.config import Precision, Tolerance
    from kernelproof.images import Layout, Returned
    from kernelproof.operators import Call, Operator, Reference, Relation, SanityCall

REFERENCES_KEPT_BYTES = 512 << 20
TAIL_SHARE = 4  # one in so many elements, the last ones of each input, differ in a `tail` job
END_LIMIT_S = 5.0


@dataclass(frozen=True)
class Job:
    """One call. `part` says how it comes from its case:

    case: the case itself. sanity: the exact call `name`. base, relation: the two calls of the relation `name`.
    repeat: the case once more, and of its repeats the first that gave other bits.
    tail: the case, but the last quarter of each input's elements drawn with the seed `name`.
    """

    case: Case
    part: str = "case"
    name: str = ""

    @property
    def key(self) -> str:
        """Unique among the jobs of a variant, and a name for messages."""
        return "-".join(filter(None, [self.case.id, self.part if self.part != "case" else "", self.name]))


@dataclass(frozen=True)
class LaidOut:
    """What a worker is told of a call, its output's dimensions by name, and how many bytes all images have."""

    arguments: dict[str, Any]
    outputs: list[str]
    axes: list[str]
    bytes: int

    def place(self, element: int) -> str:
        """Where an element of the output lies: `batch 0, head 1, query row 37, feature 5`."""
        indices: list[int] = []
        for size in reversed(self.arguments[self.outputs[0]]["shape"]):
            element, index = divmod(element, size)
            indices.insert(0, index)
        return ", ".join(f"{axis} {index}" for axis, index in zip(self.axes, indices, strict=True))


# --- the supervisor's end ---------------------------------------------------------------------------------------------


class Judge:
    """A judge's process for the operators of one project. It starts at once, in parallel with the caller.

    Every method raises JudgeError when the operator's module, a case or the process itself is at fault: nobody is
    condemned for that. `scratch`: an existing folder for its log.
    """

    def __init__(self, root: Path, scratch: Path) -> None:
        self._log = scratch.resolve() / "judge.log"
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        settings = {"fd": theirs.fileno(), "root": str(root.resolve())}
        with theirs, self._log.open("ab") as log:
            self._process = spawn(
                [sys.executable, "-P", "-m", "kernelproof.judging", json.dumps(settings)],
                env={**os.environ, "PYTHONPATH": _python_path()},
                pass_fds=[theirs.fileno()],
                stdout=log,
                stderr=log,
            )
        self._lines = self._connection.makefile("rb")

    def families(self, module: str) -> list[str]:
        """The input families of an operator, the default first."""
        return list(self._ask("families", module))

    def exact_cases(self, module: str, case: Case) -> dict[str, Case]:
        """The exact calls in the data type and options of a case, by name."""
        return {name: _case(value) for name, value in self._ask("exact_cases", module, case=_json(case)).items()}

    def relations(self, module: str, case: Case) -> list[dict[str, Any]]:
        """The relations of a case: `name`, `claim`, and whether it starts from a base call of its own (`own_base`)."""
        return list(self._ask("relations", module, case=_json(case)))

    def lay_out(self, module: str, job: Job, folder: Path) -> LaidOut:
        """Write the images of a call into a folder, which is made; outputs hold fresh random bits."""
        return LaidOut(**self._ask("lay_out", module, job=_json(job), folder=str(folder)))

    def take(self, job: Job, folder: Path, *, differing: bool = False) -> None:
        """Read what the worker handed over in its folder; of a repeat that gave other bits, if it says there was one.

        Raises TestError when that is no result at all.
        """
        fault = self._ask("take", job=_json(job), folder=str(folder), differing=differing)
        if fault:
            raise TestError(**fault)

    def judge(
        self, job: Job, precision: Precision, device: str, tolerance: Tolerance, *, explain: bool = True
    ) -> tuple[CaseResult, Histogram]:
        """Hold a call's result against its reference, which is computed now. Exact calls have an empty histogram."""
        answer = self._ask(
            "judge",
            job=_json(job),
            precision=_json(precision),
            device=device,
            tolerance=_json(tolerance),
            explain=explain,
        )
        return records.from_json(CaseResult, answer[0]), records.from_json(Histogram, answer[1])

    def related(
        self, job: Job, precision: Precision, device: str, tolerance: Tolerance, *, same_bits: bool
    ) -> Failure | None:
        """Hold the results of a relation's two calls against one another, bit for bit only if `same_bits`."""
        answer = self._ask(
            "related",
            job=_json(job),
            precision=_json(precision),
            device=device,
            tolerance=_json(tolerance),
            same_bits=same_bits,
        )
        return answer and Failure(**answer)

    def forget(self) -> None:
        """Drop the calls and results of a variant; references are kept for the next."""
        self._ask("forget")

    def close(self) -> None:
        """End the process."""
        self._lines.close()
        self._connection.close()
        with contextlib.suppress(Exception):
            self._process.wait(timeout=END_LIMIT_S)
        kill_group(self._process)

    def _ask(self, command: str, module: str | None = None, **payload: Any) -> Any:
        try:
            self._connection.sendall(json.dumps([command, module, payload]).encode() + b"\n")
            line = self._lines.readline()
        except ConnectionError:
            line = b""
        if not line:
            kill_group(self._process)
            how = describe_exit(self._process.returncode)
            raise JudgeError(f"the judge's process {how}; nobody is condemned for that", log=self._log)
        answer = json.loads(line)
        if "error" in answer:
            raise JudgeError(**answer["error"])
        return answer["result"]


def _python_path() -> str:
    ours = str(Path(__file__).resolve().parents[1])
    return os.pathsep.join(dict.fromkeys([ours, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]))


def _json(value: Any) -> dict[str, Any]:
    return dataclasses.asdict(value)


# --- the process ------------------------------------------------------------------------------------------------------


def main() -> None:
    """Answer requests until the supervisor hangs up."""
    settings = json.loads(sys.argv[1])
    hide_memory()
    collect_rarely()
    import torch  # noqa: F401  while the supervisor starts its hosts

    connection = socket.socket(fileno=settings["fd"])
    chamber = Chamber(Path(settings["root"]))
    with connection.makefile("rb") as lines:
        for line in lines:
            connection.sendall(json.dumps(chamber.answer(*json.loads(line))).encode() + b"\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Chamber:
    """Where the references are: the calls of one variant, what was handed over, and references that variants share."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.module = ""
        # By a job's key:
        self.calls: dict[str, Call] = {}
        self.layouts: dict[str, Layout] = {}
        self.returned: dict[str, Returned] = {}
        # By a case's id, and by name:
        self.exact: dict[str, dict[str, SanityCall]] = {}
        self.related: dict[str, dict[str, Relation]] = {}
        self.references: OrderedDict[str, tuple[Reference, int]] = OrderedDict()

    def answer(self, command: str, module: str | None, payload: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request; whatever goes wrong is told, and ends nothing."""
        self.module = module or self.module
        try:
            return {"result": getattr(self, f"do_{command}")(**payload)}
        except Exception as error:
            import traceback

            traceback.print_exc()
            return {"error": self._fault(error)}

    def _fault(self, error: Exception) -> dict[str, Any]:
        if isinstance(error, KernelproofError):
            return {"message": error.message, "subject": error.subject, "hint": error.hint}
        what = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        hint = "mend the operator's module, or the shapes that it is given"
        return {"message": f"nothing was judged, for {self.module} failed: {what}", "hint": hint}

    @functools.cached_property
    def operators(self) -> Callable[[str], Operator]:
        """Operators by module, each loaded once."""
        from kernelproof import operators

        return functools.cache(lambda module: operators.load(module, self.root))

    @property
    def operator(self) -> Operator:
        return self.operators(self.module)

    # --- requests

    def do_families(self) -> list[str]:
        return list(self.operator.families)

    def do_exact_cases(self, case: dict[str, Any]) -> dict[str, Any]:
        return {name: _json(exact.case) for name, exact in self._sanity(_case(case)).items()}

    def do_relations(self, case: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"name": relation.name, "claim": relation.claim, "own_base": relation.base is not None}
            for relation in self._relations(_case(case)).values()
        ]

    def do_lay_out(self, job: dict[str, Any], folder: str) -> dict[str, Any]:
        from kernelproof import images

        made = _job(job)
        layout = self.layouts[made.key] = images.layout_images(self._call(made), Path(folder))
        size = sum(len(image.raw) for image in layout.images.values())
        call = layout.call
        return {"arguments": layout.spec, "outputs": list(call.outputs), "axes": list(call.axes), "bytes": size}

    def do_take(self, job: dict[str, Any], folder: str, differing: bool) -> dict[str, Any] | None:
        from kernelproof import images

        suffix = images.DIFFERING_SUFFIX if differing else images.OUT_SUFFIX
        try:
            self.returned[_job(job).key] = images.read_back(self.layouts.pop(_job(job).key), Path(folder), suffix)
        except TestError as error:
            return {"message": error.message, "subject": error.subject}
        return None

    def do_judge(
        self, job: dict[str, Any], precision: dict[str, Any], device: str, tolerance: dict[str, Any], explain: bool
    ) -> list[Any]:
        from kernelproof import judge

        made, histogram = _job(job), judge.ErrorHistogram()
        result = judge.judge(
            self._sanity(made.case)[made.name].case if made.part == "sanity" else made.case,
            self._call(made),
            self._reference(made, precision, device),
            self.returned[made.key],
            _tolerance(tolerance),
            operator=self.operator if explain else None,
            histogram=histogram,
        )
        return [_json(result), _json(histogram.record())]

    def do_related(
        self, job: dict[str, Any], precision: dict[str, Any], device: str, tolerance: dict[str, Any], same_bits: bool
    ) -> dict[str, Any] | None:
        from kernelproof import judge

        made = _job(job)
        relation, base = self._relations(made.case)[made.name], self._base(made)
        if relation.exact and not same_bits:
            # The bound of an exact relation's reference is none: what repeats may differ by is the base's, moved.
            relation = dataclasses.replace(relation, exact=False, moves=True)
        failure = judge.related(
            relation,
            self._reference(base, precision, device),
            self.returned[base.key].output,
            self._reference_after(relation, base, precision, device),
            self.returned[made.key].output,
            _tolerance(tolerance),
        )
        return None if failure is None else _json(failure)

    def do_forget(self) -> None:
        for kept in (self.calls, self.layouts, self.returned, self.exact, self.related):
            kept.clear()

    # --- calls and references

    def _call(self, job: Job) -> Call:
        """A job's call, made once."""
        if job.key not in self.calls:
            self.calls[job.key] = self._made(job)
        return self.calls[job.key]

    def _made(self, job: Job) -> Call:
        if job.part == "sanity":
            return self._sanity(job.case)[job.name].call
        if job.part == "relation":
            return self._relations(job.case)[job.name].call
        if job.part == "base":
            base = self._relations(job.case)[job.name].base
            assert base is not None
            return base
        if job.part == "repeat":
            return self._call(Job(job.case))
        call = self._drawn(job.case)
        if job.part == "tail":
            _replace_tails(call, self._drawn(dataclasses.replace(job.case, seed=int(job.name))))
        return call

    def _drawn(self, case: Case) -> Call:
        from kernelproof import judge

        return self.operator.make_call(case, judge.generator(case))

    def _sanity(self, case: Case) -> Mapping[str, SanityCall]:
        from kernelproof import judge

        if case.id not in self.exact:
            found = self.operator.sanity_calls(case, judge.generator(case))
            self.exact[case.id] = {exact.name: exact for exact in found}
        return self.exact[case.id]

    def _relations(self, case: Case) -> Mapping[str, Relation]:
        from kernelproof import judge, operators

        if case.id not in self.related:
            found = operators.relations_of(self.operator, case, self._call(Job(case)), judge.generator(case))
            self.related[case.id] = {relation.name: relation for relation in found}
        return self.related[case.id]

    def _base(self, job: Job) -> Job:
        """The call that a relation's starts from."""
        own = self._relations(job.case)[job.name].base is not None
        return dataclasses.replace(job, part="base") if own else Job(job.case)

    def _reference_after(self, relation: Relation, base: Job, precision: dict[str, Any], device: str) -> Reference:
        from kernelproof import config, judge, operators

        resolved = judge.resolved(config.Precision(**precision), base.case.dtype)
        return operators.reference_after(
            self.operator, relation, self._reference(base, precision, device), resolved, device
        )

    def _reference(self, job: Job, precision: dict[str, Any], device: str) -> Reference:
        """The reference of a job; kept, since the baselines of an operator share them."""
        from kernelproof import config, judge

        if job.part == "repeat":
            job = Job(job.case)
        if job.part == "relation":
            return self._reference_after(self._relations(job.case)[job.name], self._base(job), precision, device)
        call = self._call(job)
        if job.part == "sanity":
            return self._sanity(job.case)[job.name].reference
        resolved = judge.resolved(config.Precision(**precision), job.case.dtype)
        key = repr((self.module, job, resolved, device))
        if key not in self.references:
            made = self.operator.reference(call, resolved, device)
            size = made.output.nbytes + made.bound.nbytes
            while self.references and size + sum(kept for _, kept in self.references.values()) > REFERENCES_KEPT_BYTES:
                self.references.popitem(last=False)
            self.references[key] = (made, size)
        return self.references[key][0]


def _replace_tails(call: Call, other: Call) -> None:
    """Give the last elements of each input the values of another call's."""
    for name, tensor in call.inputs.items():
        values = tensor.contiguous().flatten()
        kept = len(values) - -(-len(values) // TAIL_SHARE)
        values[kept:] = other.tensor(name).contiguous().flatten()[kept:]
        tensor.copy_(values.reshape(tensor.shape))


def _case(value: dict[str, Any]) -> Case:
    return Case(**value)


def _job(value: dict[str, Any]) -> Job:
    return Job(**{**value, "case": _case(value["case"])})


def _tolerance(value: dict[str, Any]) -> Tolerance:
    from kernelproof.config import Tolerance

    return Tolerance(**value)


if __name__ == "__main__":
    main()
