"""The judge as a process: `python -m kernelproof.judging`, started by the supervisor and by nobody else.

It makes the inputs of a case from its seed, lays them out as images for the worker, takes the images back and, when the
worker has ended, computes the reference and holds the result against it (kernelproof.judge has the criteria). Expected
results and the poison that outputs held before a call exist in this process alone: it never loads a candidate, and the
supervisor, which talks to candidates, never has them. `Judge` is the supervisor's end; it needs no torch.

Messages are JSON, one line each.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import faulthandler
import functools
import importlib.util
import itertools
import json
import math
import os
import random
import re
import select
import signal
import socket
import sys
import tempfile
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from kernelproof import edits, formats, records
from kernelproof.cases import usual_family
from kernelproof.config import Declared, OperatorConfig, Precision, Tolerance
from kernelproof.errors import JudgeError, KernelproofError, TestError, blamed, describe_exit, file_of, not_installed
from kernelproof.processes import (
    IDLE_THREADS_SLEEP,
    collect_rarely,
    end,
    keep_freed_memory,
    kill_group,
    own_environment,
    spawn,
)
from kernelproof.records import OF_EARLIER, Case, CaseResult, Failure, Histogram
from kernelproof.sandbox import hide_memory

if TYPE_CHECKING:
    from torch import Tensor

    from kernelproof.images import Layout, Returned
    from kernelproof.operators import Call, Operator, Reference, Relation, SanityCall, Suspect

REFERENCES_KEPT_BYTES = 512 << 20
# Parts whose reference is the case's own.
SAME_VALUES = ("repeat", "shifted", "strided", "spaced", "fenced", "zeroed", "zero-copy", "neighbour")
# Of an operator: a fault whose subject is one of them is told with its place.
METHODS = ("make_call", "reference", "sanity_calls", "relations")
MADE_BY = {  # by the part of a job: who else makes what these make of a case
    "sanity": {"reference": "sanity_calls", "make_call": "sanity_calls"},
    "relation": {"make_call": "relations"},
    "base": {"make_call": "relations"},
}
REDRAWN = 3  # times that the inputs of a case are made until they are those that they were
TESTS_BESIDE = 4  # as many as the workflow runs at a time
# Parts of a Job whose values an operator may not be for.
DOUBTFUL = (*edits.TIES, *edits.OF_NUMBERS, *edits.ONCE_EACH, "traded", "sorted", "begun", "mixed", "whole", "aliased")
# Parts of a Job whose inputs are the case's but for changes of ours.
CHANGED = ("low", *dict.fromkeys(edits.EDITS), "whole")
NOT_OF_SUCH_VALUES = "the reference of such values fails"
WORDS_MOST = 160  # characters of what it says then
MUCH_LARGER = 16  # than of the case's own values: an inverse near its pole, say
LIKE_IN_SIZE = 4  # times: the largest of one tensor's values and of another's
FEW_VALUES = 16  # of which draws may be the same by chance
MOST_LOOKED_BACK = 8  # wrong results of a variant, for which several references are made
LARGEST_LOOKED_AT = 1 << 22  # elements
PIECE_BYTES = 1 << 16  # of an answer, in one go
END_LIMIT_S = 5.0
SAYS_WITHIN_S = 1.0
PATIENCE_S = 20.0  # after which is said what is waited for
OUT_OF_MEMORY = re.compile(  # as Python, the loader, OpenBLAS and C++ say it
    "MemoryError|failed to map segment|[Cc]annot allocate memory|Memory allocation still failed|bad_alloc"
)
WHERE = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)  # as faulthandler prints it


@dataclass(frozen=True)
class Job:
    """One call. `part` says how it comes from its case:

    case: the case itself. sanity: the exact call `name`. base, relation: the two calls of the relation `name`.
    repeat: the case once more, and of its repeats the first that gave other bits; `name` tells processes apart.
    element, exchange, end, tail, later, earlier, middle, digits, upper, traded, sorted, reversed, repeated, alike,
    exponents, signs, close, begun: the case with the first of edits.EDITS, up to and with this one, in what may be
    changed (`operators.changeable`); `name` is seed.n, for the n-th.
    mixed: the case with values of another family in it; `name` is seed.n.family.
    whole: the case, but all inputs that may not be changed in part are those of its seed `name`.
    low: the case, but the low half of every number's mantissa drawn with the seed `name`.
    shifted: the case with the tensor `name`, or with all of them, one element off the boundary of its memory.
    strided: the case with strides of their own for all tensors, or for the tensor `name` (with_own_strides).
    spaced: the case with the elements of the tensor `name` two apart (with_gaps).
    aliased: the case with one tensor for the inputs `name` (`q+k+v`), as attention of x with itself has them.
    fenced: the case where memory ends, or starts (`name`), with each tensor; on a CPU alone.
    zeroed: the case with outputs that hold zeros before the call, as memory does that is cleared or new.
    zero-copy: the case with its inputs in the host's memory, from where they arrive slowly; on a GPU alone.
    """

    case: Case
    part: str = "case"
    name: str = ""

    @functools.cached_property
    def key(self) -> str:
        """Unique among the jobs of a variant, and a name for messages."""
        return "-".join(filter(None, [self.case.id, self.part if self.part != "case" else "", self.name]))


@dataclass(frozen=True)
class LaidOut:
    """What a worker is told of a call, its outputs' dimensions by name, and how many bytes all images have."""

    arguments: dict[str, Any]
    outputs: list[str]
    axes: dict[str, list[str]]
    bytes: int

    def place(self, output: str, element: int) -> str:
        """Where an element of an output lies: `batch 0, head 1, query row 37, feature 5`; of several also of which."""
        indices: list[int] = []
        for size in reversed(self.arguments[output]["shape"]):
            element, index = divmod(element, size)
            indices.insert(0, index)
        place = ", ".join(f"{axis} {index}" for axis, index in zip(self.axes[output], indices, strict=True))
        return f"{place} of {output}" if len(self.outputs) > 1 else place


@dataclass(frozen=True)
class Terms:
    """What a variant's results are held to. same_bits: exact relations hold bit for bit."""

    precision: Precision
    device: str
    tolerance: Tolerance
    same_bits: bool


@dataclass(frozen=True)
class _Request:
    """What a judge is asked for; `about` in words."""

    module: str
    about: str
    line: bytes


# --- the supervisor's end ---------------------------------------------------------------------------------------------


class Judge:
    """A judge's process for the operators of one project (`of`: of another too). It starts at once, beside the caller.

    Every method raises JudgeError when the operator's module, a case or the process itself is at fault, or when an
    answer takes longer than `limit_s`: nobody is condemned for that. `scratch`: an existing folder for its log.
    """

    def __init__(self, root: Path, scratch: Path, limit_s: float) -> None:
        if importlib.util.find_spec("torch") is None:
            raise not_installed("torch")
        self._root = str(root.resolve())
        self._log = scratch.resolve() / "judge.log"
        self._limit_s = limit_s
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.settimeout(limit_s)
        with theirs, self._log.open("ab") as log:
            self._process = spawn(
                [sys.executable, "-P", "-m", "kernelproof.judging", str(theirs.fileno())],
                env=own_environment() | IDLE_THREADS_SLEEP,
                pass_fds=[theirs.fileno()],
                stdout=log,
                stderr=log,
            )
        self._unread = bytearray()  # of answers that came with the one before
        self._asked: deque[_Request] = deque()  # without an answer yet, in order
        self._answers: dict[_Request, bytes] = {}  # that nobody has taken

    def of(self, root: Path) -> Judge:
        """The same process for another project, of whose cases it knows nothing."""
        other = copy.copy(self)
        other._root = str(root.resolve())
        return other

    @property
    def alive(self) -> bool:
        """Has the process not ended?"""
        return self._process.poll() is None

    def families(self, module: str) -> list[str]:
        """The input families of an operator, the default first."""
        return list(self._ask(module, "families"))

    def declared(self, settings: OperatorConfig) -> Declared:
        """What an operator's module says that it takes."""
        return Declared(**self._ask(settings.module, "declared", settings=settings))

    def exact_cases(self, module: str, case: Case) -> dict[str, Case]:
        """The exact calls in the data type and options of a case, by name."""
        found = self._ask(module, "exact_cases", case=case)
        return {name: records.from_json(Case, value) for name, value in found.items()}

    def relations(self, module: str, case: Case) -> list[dict[str, Any]]:
        """The relations of a case: `name`, `claim`, whether it starts from a base call of its own (`own_base`) and
        whether its call has other scalars than the case's (`other_scalars`).
        """
        return list(self._ask(module, "relations", case=case))

    def edits(self, module: str, case: Case) -> dict[str, int]:
        """How often each of EDITS (edits.py) can be made of a case.

        None where no part of any input may take other values (`operators.changeable`), and not TIES where an output is
        of whole numbers. Of two places with one value an index may name either. And `whole`, where there are inputs of
        both kinds.
        """
        return dict(self._ask(module, "edits", case=case))

    def indices(self, module: str, case: Case) -> list[str]:
        """The inputs of a case of which no part is changed, and the operator does not say that none may be."""
        return list(self._ask(module, "indices", case=case))

    def ill_posed(self, module: str, job: Job, terms: Terms) -> str:
        """Why an operator is not for the values of a call of CHANGED; empty where it is.

        Of two places with one value an index may name either. Of DOUBTFUL, two equal numbers have no quotient of
        differences, and rows that are alike no inverse.
        """
        return str(self._ask(module, "ill_posed", job=job, terms=terms))

    def insist_on_declared(self, module: str, job: Job, terms: Terms) -> None:
        """See that a variant declares results of the type that a call has (judge.insist_on_declared)."""
        self._ask(module, "insist_on_declared", job=job, terms=terms)

    def unfit(self, module: str, case: Case, terms: Terms) -> str:
        """Why an operator is not for a case's sizes, by what its reference does with them; empty where it is."""
        return str(self._ask(module, "unfit", case=case, terms=terms))

    def views(self, module: str, case: Case) -> list[Job]:
        """The ways in which a case is also laid out in memory: with other strides, and off its boundary."""
        return [Job(case, part, name) for part, name in self._ask(module, "views", case=case)]

    def outline(self, module: str, job: Job) -> dict[str, Any]:
        """How a call's images would be laid out (images.outline); nothing is written."""
        return dict(self._ask(module, "outline", job=job))

    def lay_out(self, module: str, job: Job, folder: Path) -> LaidOut:
        """Write the images of a call into a folder, which is made; outputs hold fresh random bits."""
        return LaidOut(**self._ask(module, "lay_out", job=job, folder=str(folder)))

    def begin_to_lay_out(self, module: str, job: Job, folder: Path) -> None:
        """Ask for `lay_out` and go on: that, called likewise, takes the answer, and `drop` does without."""
        with contextlib.suppress(OSError):  # who waits for the answer is told
            self._send(self._request(module, "lay_out", job=job, folder=str(folder)))

    def drop(self) -> None:
        """Wait for what was begun and is no longer wanted, and take no answer."""
        while self._asked:
            self._receive()
        self._answers.clear()

    def take(self, module: str, job: Job, folder: Path, *, differing: bool = False) -> None:
        """Read what the worker handed over in its folder; of a repeat that gave other bits, if it says there was one.

        Raises TestError when that is no result at all.
        """
        fault = self._ask(module, "take", job=job, folder=str(folder), differing=differing)
        if fault:
            raise TestError(**fault)

    def unlike_first(self, module: str, job: Job, folder: Path, count: int) -> list[tuple[int, str, int]]:
        """Which of the repeats in the worker's folder differ from the first call: position, output, flat element.

        To be asked before the call is taken; they can be judged then. Raises TestError when they are no results at all.
        """
        found: dict[str, Any] = self._ask(module, "unlike_first", job=job, folder=str(folder), count=count)
        if "fault" in found:
            raise TestError(**found["fault"])
        return [(position, output, element) for position, output, element in found["unlike"]]

    def alike_where_asked(self, module: str, job: Job, terms: Terms) -> bool:
        """Whether the repeats that `unlike_first` found differ from the first call only where nothing is demanded."""
        return bool(self._ask(module, "alike_where_asked", job=job, terms=terms))

    def judge(
        self, module: str, job: Job, terms: Terms, *, unlike: int | None = None, count: bool = False
    ) -> tuple[CaseResult, Histogram | None]:
        """Hold a call's result against its reference, which is computed now.

        With `unlike` that of the repeats which `unlike_first` found, by its place there. With `count` the errors are
        counted too; exact calls have an empty histogram.
        """
        result, histogram = self._ask(module, "judge", job=job, terms=terms, unlike=unlike, count=count)
        return records.from_json(CaseResult, result), histogram and records.from_json(Histogram, histogram)

    def related(self, module: str, job: Job, terms: Terms) -> Failure | None:
        """Hold the results of a relation's two calls against one another."""
        answer = self._ask(module, "related", job=job, terms=terms)
        return answer and Failure(**answer)

    def forget(self, module: str) -> None:
        """Drop the calls and results of a variant; references are kept for the next."""
        self._ask(module, "forget")

    @functools.cached_property
    def _kept_log(self) -> Path | None:
        """A copy of what the process printed, for the scratch folder goes; None where that is nothing."""
        said = self._log.read_bytes()
        if not said:
            return None
        descriptor, kept = tempfile.mkstemp(prefix="kernelproof-judge-", suffix=".log")
        with open(descriptor, "wb") as stream:
            stream.write(said)
        return Path(kept)

    def _why_ended(self, code: int | None) -> str:
        if OUT_OF_MEMORY.search(self._log.read_text(encoding="utf-8", errors="replace")):
            return "memory ran out: close other programs, or let a process have more (`ulimit -v`)"
        if code == -signal.SIGKILL:
            return "was it killed for want of memory?"
        return "look for what ends a process in the operator's module, or in what that calls"

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        end(self._process, END_LIMIT_S)

    def _ask(self, module: str, command: str, **payload: Any) -> Any:
        request = self._request(module, command, **payload)
        if request not in self._answers and request not in self._asked:
            try:
                self._send(request)
            except TimeoutError:
                self._give_up(request)
            except ConnectionError:
                self._say_why_it_ended(request)
        while request not in self._answers:
            self._receive()
        answer = json.loads(self._answers.pop(request))
        if "error" in answer:
            raise JudgeError(**answer["error"])
        return answer["result"]

    def _request(self, module: str, command: str, **payload: Any) -> _Request:
        return _Request(module, _about(command, payload), _line([self._root, module, command, payload]))

    def _send(self, request: _Request) -> None:
        self._connection.sendall(request.line)
        self._asked.append(request)

    def _receive(self) -> None:
        """Wait for the next answer: they come in the order in which was asked."""
        request = self._asked.popleft()
        try:
            line = self._awaited(request.module, request.about)
        except TimeoutError:
            self._give_up(request)
        except ConnectionError:
            line = b""
        if not line:
            self._say_why_it_ended(request)
        self._answers[request] = line

    def _give_up(self, request: _Request) -> NoReturn:
        place = self._at_work(request.module)
        kill_group(self._process)
        raise JudgeError(
            f"it did not answer `{request.about}` within {self._limit_s:g} s, and was ended",
            subject=place or request.module,
            log=self._kept_log,
            hint="mend the operator's module, or set test.operator_limit_s to more seconds",
        ) from None

    def _say_why_it_ended(self, request: _Request) -> NoReturn:
        end(self._process, END_LIMIT_S)
        code = self._process.returncode
        raise JudgeError(
            f"the judge's process {describe_exit(code)} in the middle of `{request.about}`; "
            "nobody is condemned for that",
            subject=request.module,
            log=self._kept_log,
            hint=self._why_ended(code),
        )

    def _awaited(self, module: str, about: str) -> bytes:
        """The answer; who waits long for it is told for what. Raises TimeoutError where there is none in time."""
        soon = min(PATIENCE_S, self._limit_s)
        if b"\n" not in self._unread and not select.select([self._connection], [], [], soon)[0]:
            if soon < self._limit_s:
                what = f"{self._at_work(module) or module} (`{about}`), since {soon:g} of {self._limit_s:g} s"
                # What the process of a test prints is otherwise for its log.
                print(f"kernelproof: waiting for {what}", file=sys.__stderr__ or sys.stderr, flush=True)
            if not select.select([self._connection], [], [], self._limit_s - soon)[0]:
                raise TimeoutError
        while (end := self._unread.find(b"\n")) < 0:
            piece = self._connection.recv(PIECE_BYTES)
            if not piece:
                return b""
            self._unread += piece
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return line

    def _at_work(self, module: str) -> str | None:
        """Which line of an operator's module the process is in, `mine.py:31, in reference`; None where in none."""
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return None
        caught = re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)
        if not caught or not int(caught[1], 16) >> signal.SIGUSR1 - 1 & 1:  # it has only been started
            return None
        said = self._log.stat().st_size
        os.kill(self._process.pid, signal.SIGUSR1)
        root, deadline = Path(self._root), time.monotonic() + SAYS_WITHIN_S
        while time.monotonic() < deadline:
            time.sleep(SAYS_WITHIN_S / 20)
            for path, line, function in WHERE.findall(self._log.read_bytes()[said:].decode(errors="replace")):
                if Path(path).resolve() == file_of(module, root):
                    return f"{module}:{line}, in {function}"
        return None


def _about(command: str, payload: Mapping[str, Any]) -> str:
    """A request in words: what was asked for, and of which case."""
    case = payload["job"].case if "job" in payload else payload.get("case")
    return command.replace("_", " ") + (f" of {case.id}" if case else "")


def _line(message: Any) -> bytes:
    """A message as JSON, dataclasses in it as they are: `asdict` would copy all that they hold first."""
    return json.dumps(message, default=_fields).encode() + b"\n"


def _fields(value: Any) -> dict[str, Any]:
    """What a dataclass holds; raises TypeError for anything else."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


# --- the process ------------------------------------------------------------------------------------------------------


def main() -> None:
    """Answer requests until the supervisor hangs up."""
    faulthandler.register(signal.SIGUSR1)  # it prints where it is
    hide_memory()
    collect_rarely()
    keep_freed_memory()
    import torch  # while the supervisor starts its hosts

    # Of two cores it uses one: tests run beside one another, and on small tensors two threads cost a fifth more time.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // TESTS_BESIDE))
    connection = socket.socket(fileno=int(sys.argv[1]))
    chamber_of = functools.cache(Chamber)
    with connection.makefile("rb") as lines:
        for line in lines:
            root, module, command, payload = json.loads(line)
            answer = chamber_of(Path(root), module).answer(command, payload)
            connection.sendall(_line(answer))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Chamber:
    """Where an operator's references are: a variant's calls, what it handed over, and what variants share."""

    def __init__(self, root: Path, module: str) -> None:
        self.root = root
        self.module = module
        # By a job's key:
        self.calls: dict[str, Call] = {}
        self.is_steady = False  # its reference was computed twice
        self.undone: set[str] = set()  # keys of calls whose last edit would have made values of every row equal
        self.layouts: dict[str, Layout] = {}
        self.returned: dict[str, dict[str, Returned]] = {}
        self.unlike: dict[str, list[dict[str, Returned]]] = {}
        self.often: dict[str, dict[str, int]] = {}  # edits that a case has, by its id
        self.first: dict[str, dict[str, Tensor]] = {}  # results of calls of which a repeat is unlike
        self.right: dict[str, tuple[Call, dict[str, Returned]]] = {}  # calls whose results were found right, with those
        self.looked_back = 0
        self.misread: dict[str, dict[str, Call]] = {}  # by cause, what is seen of a call by who leaves strides out
        # By a case's id, and by name; of a case's inputs a digest, which outlives the variant that they were made for:
        self.exact: dict[str, dict[str, SanityCall]] = {}
        self.related: dict[str, dict[str, Relation]] = {}
        self.inputs: dict[str, str] = {}
        self.varied = False  # the usual values were seen to follow from the seed
        self.families: set[str] = set()  # of which a case was drawn
        self.drawn_once: set[str] = set()  # cases whose digest rests on one draw
        self.odd_draw = ""  # the case whose first draw was forgiven
        self.references: OrderedDict[str, tuple[dict[str, Reference], int]] = OrderedDict()
        self.kept_bytes = 0  # of all of these
        self.insisted: set[str] = set()  # kinds of cases whose exact calls the reference agrees with

    def answer(self, command: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request; whatever goes wrong is told, and ends nothing."""
        kinds = {"case": Case, "job": Job, "settings": OperatorConfig, "terms": Terms}
        given: dict[str, Any] = {}
        try:
            given = {
                name: records.from_json(kinds[name], value) if name in kinds else value
                for name, value in payload.items()
            }
            with blamed(self.module, self.root):
                return {"result": getattr(self, f"do_{command}")(**given)}
        except (Exception, SystemExit) as error:
            import traceback

            traceback.print_exc()
            fault = self._fault(error)
            if fault["subject"] in METHODS:
                made_by = MADE_BY.get(given["job"].part, {}) if "job" in given else {}
                fault["subject"] = self._place(made_by.get(fault["subject"], fault["subject"]))
            about = given["job"].key if "job" in given else given["case"].id if "case" in given else ""
            if about and about not in str(fault["subject"]):
                fault["message"] += f" (case {about})"
            return {"error": fault}

    def _fault(self, error: BaseException) -> dict[str, Any]:
        if isinstance(error, KernelproofError):
            return {"message": error.message, "subject": error.subject or self.module, "hint": error.hint}
        what = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        hint = "mend the operator's module, or the shapes that it is given"
        return {"message": f"nothing was judged, for it failed: {what}", "subject": self.module, "hint": hint}

    def _place(self, method: str) -> str:
        """Where a method of the operator begins, `mine/op.py:31`; the module where its own file has none."""
        code = getattr(getattr(type(self.operator), method, None), "__code__", None)
        root = self.root.resolve()
        if code is None or not (path := Path(code.co_filename)).is_relative_to(root):
            return self.module
        return f"{path.relative_to(root)}:{code.co_firstlineno}"

    @functools.cached_property
    def operator(self) -> Operator:
        from kernelproof import operators

        return operators.load(self.module, self.root)

    # --- requests

    def do_families(self) -> list[str]:
        return list(self.operator.families)

    def do_declared(self, settings: OperatorConfig) -> Declared:
        from kernelproof import operators

        return operators.declared(self.operator, settings)

    def do_exact_cases(self, case: Case) -> dict[str, Case]:
        return {name: exact.case for name, exact in self._sanity(case).items()}

    def do_relations(self, case: Case) -> list[dict[str, Any]]:
        scalars = self._call(Job(case)).scalars
        return [
            {
                "name": relation.name,
                "claim": relation.claim,
                "own_base": relation.base is not None,
                "other_scalars": relation.call.scalars != scalars,
            }
            for relation in self._relations(case).values()
        ]

    def do_edits(self, case: Case) -> dict[str, int]:
        from kernelproof.operators import changeable

        self._insist_on_values_of_each_seed(case)
        call = self._call(Job(case))
        inputs = changeable(self.operator, call)
        if not inputs:
            return {}
        beside = {"whole": 1} if len(inputs) < len(call.inputs) else {}
        impossible: list[str] = []
        if _has_indices(call):
            impossible += edits.TIES
            # Of numbers alone it is certain which is larger: a difference to another input's is rounded.
            numbers = [tensor for tensor in call.inputs.values() if tensor.is_floating_point()]
            if len(numbers or inputs) != 1:
                impossible.append("close")
            if not any(map(edits.begins_alike, inputs.values())):
                impossible.append("begun")
        else:
            impossible += edits.FOR_INDICES
        return {edit: count for edit, count in edits.times(inputs).items() if edit not in impossible} | beside

    def do_indices(self, case: Case) -> list[str]:
        from kernelproof import operators

        return operators.indices(self.operator, self._call(Job(case)))

    def do_ill_posed(self, job: Job, terms: Terms) -> str:
        call = self._call(job)
        if job.key in self.undone:
            return "values would be equal that are all different, and an output says by an index which of them it means"
        usual = [self._reference(Job(job.case), terms)]
        if job.part == "mixed":
            usual.append(self._reference(self._beside(job), terms))
        try:
            tied = self._reference(job, terms)
        except Exception as error:
            if job.part not in DOUBTFUL and isinstance(error, KernelproofError | MemoryError):
                raise  # no word of the values
            return f"{NOT_OF_SUCH_VALUES} ({type(error).__name__}: {formats.one_line(str(error))[:WORDS_MOST]})"
        exact = [call.tensor(name) for name, each in tied.items() if not bool((each.bound * ~each.meant).nansum())]
        rounded = any(tensor.is_floating_point() for tensor in call.inputs.values())
        certain = not rounded or any(each.is_floating_point() for each in exact)
        if job.part == "close" and (len(exact) < len(tied) or not certain):
            return "values would be neighbours, which are equal to who rounds what he compares"
        codes = [each for each in exact if not each.is_floating_point() and each.element_size() == 1]
        if codes and job.part in edits.BEHIND_TIES:
            return (
                "values would be equal, and an output of exact whole numbers may say by an index which of them it means"
            )
        if job.part == "begun" and not self._of_each_row(job, tied, terms):
            return "an index of such values may name a place in either of two rows"
        if job.part not in DOUBTFUL:
            return ""
        for name, reference in tied.items():
            if not reference.output.numel():
                continue
            if not float(reference.bound.min()) >= 0:
                return f"the bound of the reference of such values is {float(reference.bound.min()):.3g}"
            largest, *known = (float(each.output.abs().max()) for each in (reference, *(of[name] for of in usual)))
            before = max(known)
            if not largest <= MUCH_LARGER * before:
                return f"the right result of such values is {largest:.3g} where that of others is at most {before:.3g}"
        return ""

    def _of_each_row(self, job: Job, now: Mapping[str, Reference], terms: Terms) -> bool:
        """Whether whole numbers belong to rows of inputs: with those in the opposite order, they are in it too."""
        import torch

        from kernelproof.operators import changeable, changed, placed

        call = self._call(job)
        rows = {name: each for name, each in changeable(self.operator, call).items() if edits.begins_alike(each)}
        flipped = changed(call, **{name: placed(tensor.flip(-2), tensor) for name, tensor in rows.items()})
        try:
            reversed_rows = self._computed(flipped, job.case, terms)
        except Exception:  # rows that have to be in this order
            return False
        whole = [name for name in call.outputs if not call.tensor(name).is_floating_point()]
        for name, above in itertools.product(whole, {tensor.shape[:-1] for tensor in rows.values()}):
            one, other = now[name].output, reversed_rows[name].output
            if one.shape[: len(above)] != above or not torch.equal(one.flip(len(above) - 1), other):
                return False
        return True

    def do_insist_on_declared(self, job: Job, terms: Terms) -> None:
        from kernelproof import judge

        judge.insist_on_declared(self._call(job), terms.precision.of(job.case.dtype))

    def _insist_on_values_of_each_seed(self, case: Case) -> None:
        """Raises TestError where a case of the usual values has the same ones under other seeds.

        A case of few values, or with a size of 1 (a softmax of one score), may have them by right.
        """
        from kernelproof import judge

        inputs = self._call(Job(case)).inputs.values()
        narrow = any(size == 1 for size in case.dims.values()) or all(t.numel() < FEW_VALUES for t in inputs)
        if self.varied or narrow or case.family != usual_family(self.operator.families):
            return
        for seed in range(case.seed + 1, case.seed + 1 + REDRAWN):
            other = dataclasses.replace(case, seed=seed)
            if _digest(self.operator.make_call(other, judge.generator(other))) != _digest(self._call(Job(case))):
                self.varied = True
                return
        raise TestError(
            f"`make_call` gives the same inputs under {REDRAWN + 1} seeds, so that a kernel could remember its result",
            subject=f"{self.module}: {case.id}",
            hint="draw values from the generator that it is given: torch.randn(…, generator=generator)",
        )

    def do_unfit(self, case: Case, terms: Terms) -> str:
        try:
            made = self._reference(Job(case), terms)
        except Exception as error:
            return f"the reference of such sizes fails ({type(error).__name__})"
        for name, reference in made.items():
            ours, theirs = list(self._call(Job(case)).tensor(name).shape), list(reference.output.shape)
            if ours != theirs:
                return f"the reference of such sizes gives {name} of {theirs} where the call has {ours}"
        return ""

    def do_views(self, case: Case) -> list[list[str]]:
        tensors = self._call(Job(case)).tensors
        rows = [name for name, tensor in tensors.items() if math.prod(tensor.shape[:-1]) > 1]
        wide = [name for name, tensor in tensors.items() if tensor.numel() and tensor.shape[-1] > 1]
        strided = [*(["strided", name] for name in ("", *rows)), *(["spaced", name] for name in wide)]
        kept = strided if getattr(self.operator, "strided", False) else []
        aliased = [["aliased", "+".join(names)] for names in self._interchangeable(case)]
        return [["zeroed", ""], *kept, *(["shifted", name] for name in ("", *tensors)), *aliased]

    def _interchangeable(self, case: Case) -> list[list[str]]:
        """The inputs of a case, by name, of which several could be one tensor; none where that would make ties.

        A tensor whose values are of another kind (all positive, whole, much larger) is not taken for another.
        """
        from kernelproof.operators import changeable

        call = self._call(Job(case))
        if _has_whole_numbers(call):
            return []
        inputs = changeable(self.operator, call)
        groups: list[list[str]] = []
        for name, tensor in inputs.items():
            group = next((each for each in groups if _of_one_kind(inputs[each[0]], tensor)), None)
            if group is None:
                groups.append(group := [])
            group.append(name)
        return [names for names in groups if len(names) > 1]

    def do_outline(self, job: Job) -> dict[str, Any]:
        from kernelproof import images

        return images.outline(self._call(job))

    def do_lay_out(self, job: Job, folder: str) -> dict[str, Any]:
        from kernelproof import images

        call = self._call(job)
        shifted = ([job.name] if job.name else call.tensors) if job.part == "shifted" else ()
        fenced = job.name if job.part == "fenced" else None
        layout = self.layouts[job.key] = images.layout_images(
            call,
            Path(folder),
            shifted=shifted,
            fenced=fenced,
            finite=job.part == "spaced" or (job.part == "strided" and job.name != ""),
            zeroed=job.part == "zeroed",
            spaced=[job.name] if job.part == "spaced" else (),
            together=job.name.split("+") if job.part == "aliased" else (),
        )
        if job.part in ("spaced", "strided") and job.name in call.inputs:
            self.misread[job.key] = _misread(call, job.name, layout)
        size = sum(len(image.raw) for image in layout.images.values())
        spec = layout.spec
        if job.part == "zero-copy":
            for name in call.tensors.keys() - set(call.outputs):
                spec[name]["zero_copy"] = True
        axes = {name: list(call.axes_of(name)) for name in call.outputs}
        return {"arguments": spec, "outputs": list(call.outputs), "axes": axes, "bytes": size}

    def do_take(self, job: Job, folder: str, differing: bool) -> dict[str, Any] | None:
        from kernelproof import images

        suffix = images.DIFFERING_SUFFIX if differing else images.OUT_SUFFIX
        try:
            self.returned[job.key] = images.read_back(self.layouts.pop(job.key), Path(folder), suffix)
        except TestError as error:
            return {"message": error.message, "subject": error.subject}
        return None

    def do_unlike_first(self, job: Job, folder: str, count: int) -> dict[str, Any]:
        from kernelproof import images

        try:
            first, found = images.unlike_first(self.layouts[job.key], Path(folder), count)
        except TestError as error:
            return {"fault": {"message": error.message, "subject": error.subject}}
        self.unlike[job.key] = [result for *_, result in found]
        if found:
            self.first[job.key] = first
        return {"unlike": [place for *place, _ in found]}

    def do_alike_where_asked(self, job: Job, terms: Terms) -> bool:
        from kernelproof.findings import same_bits

        for name, reference in self._reference(job, terms).items():
            asked = (reference.bound.isfinite() | reference.meant).cpu()
            for result in self.unlike[job.key]:
                if bool((asked & ~same_bits(result[name].output, self.first[job.key][name])).any()):
                    return False
        return bool(self.unlike[job.key])

    def do_judge(
        self, job: Job, terms: Terms, unlike: int | None, count: bool = False
    ) -> tuple[CaseResult, Histogram | None]:
        from kernelproof import judge

        histogram = judge.ErrorHistogram() if count else None
        try:
            result = judge.judge_all(
                self._sanity(job.case)[job.name].case if job.part == "sanity" else job.case,
                self._call(job),
                self._reference(job, terms),
                self.returned[job.key] if unlike is None else self.unlike[job.key][unlike],
                terms.tolerance,
                operator=self._knowing(job, terms),
                histogram=histogram,
                earlier=self.right,
            )
        except TestError as error:
            if "not finite" in error.message and job.part in CHANGED:
                error.hint = (
                    "other values were put into parts of the inputs here: name those whose values belong together (a "
                    "triangular or an invertible matrix, sorted offsets) in OPERATOR.whole; " + (error.hint or "")
                )
            raise
        if result.status == "passed" and unlike is None:
            self.right[job.key] = self._call(job), self.returned[job.key]
        if result.status != "passed":
            self._insist_on_one_reference(job, terms)
            if job.part == "relation":
                self._insist_on(self._relations(job.case)[job.name], self._base(job), terms)
            else:
                self._insist_on_exact(job, terms)
        return result, histogram.record() if histogram else None

    def do_related(self, job: Job, terms: Terms) -> Failure | None:
        from kernelproof import judge

        relation, base = self._relations(job.case)[job.name], self._base(job)
        output = relation.about
        usual = self._reference(base, terms)[output]
        first, second = (self.returned[key][output].output for key in (base.key, job.key))

        def found(relation: Relation, reference: Reference) -> Failure | None:
            return judge.related(relation, usual, first, reference, second, terms.tolerance)

        def in_bounds() -> Failure | None:
            """The bound of an exact relation's reference is none: what repeats may differ by is the base's, moved."""
            loose = dataclasses.replace(relation, exact=False, moves=True)
            return found(loose, self._reference_after(loose, base, terms))

        if relation.exact and not terms.same_bits:
            failure = in_bounds()
        else:
            failure = found(relation, self._reference(job, terms)[output])
        if failure is None:
            return None
        if relation.exact and terms.same_bits and in_bounds() is None:
            order = "sums are added up in another order from call to call, which repeats of one call show too"
            causes = ", or ".join(filter(None, [order, relation.cause]))
            failure = found(dataclasses.replace(relation, cause=causes), self._reference(job, terms)[output]) or failure
            failure.message += (
                ". Both results are within what rounding allows: where the kernel has no reason to compute them in two "
                f"ways, `exact=True` of {relation.name!r} says too much ({self._place('relations')})"
            )
        self._insist_on(relation, base, terms)
        return failure

    def do_forget(self) -> None:
        results = (self.returned, self.right, self.unlike, self.first)
        for kept in (self.calls, self.layouts, *results, self.misread, self.exact, self.related):
            kept.clear()
        self.looked_back = 0

    # --- calls and references

    def _call(self, job: Job) -> Call:
        """A job's call, made once."""
        if job.key not in self.calls:
            self.calls[job.key] = self._made(job)
        return self.calls[job.key]

    def _made(self, job: Job) -> Call:
        from kernelproof.operators import changeable, changed, with_gaps, with_own_strides

        if job.part == "sanity":
            return self._sanity(job.case)[job.name].call
        if job.part == "relation":
            return self._relations(job.case)[job.name].call
        if job.part == "base":
            base = self._relations(job.case)[job.name].base
            assert base is not None
            return base
        if job.part == "strided":
            return with_own_strides(self._call(Job(job.case)), job.name)
        if job.part == "spaced":
            return with_gaps(self._call(Job(job.case)), job.name)
        if job.part in SAME_VALUES:
            return self._call(Job(job.case))
        if job.part == "aliased":
            call, (first, *others) = self._call(Job(job.case)), job.name.split("+")
            return changed(call, **dict.fromkeys(others, call.tensor(first)))
        if job.part in edits.EDITS:
            return self._edited(job)
        call = self._drawn(job.case)
        inputs = changeable(self.operator, call)
        if job.part == "low":
            edits.replace_low_bits(inputs, int(job.name))
        elif job.part == "whole":
            beside = self._drawn(dataclasses.replace(job.case, seed=int(job.name)))
            for name in call.inputs.keys() - inputs.keys():
                call.tensor(name).copy_(beside.tensor(name))
        return call

    def _edited(self, job: Job) -> Call:
        """The call before an edit's, with this one change more; new values are those of other calls of the case.

        Where an output is of whole numbers, rows are left as they were in which different values became equal, for of
        two places with one value an index may name either.
        """
        from kernelproof.operators import changeable, changed, placed

        seed, number, _ = _edit_of(job)

        def other(further: int) -> Call:
            return self._call(Job(dataclasses.replace(job.case, seed=seed + further)))

        call = self._call(self._previous(job))
        before = changeable(self.operator, call)
        inputs = {name: placed(tensor, tensor) for name, tensor in before.items()}
        beside = self._call(self._beside(job)) if job.part == "mixed" else None
        edits.edit(inputs, other, number, random.Random(job.name), beside)
        # Whether codes of a byte are indices is told by the reference (do_ill_posed) where ties are meant.
        telling = _has_indices if edits.EDITS[number] in edits.BEHIND_TIES else _has_whole_numbers
        if telling(call) and edits.take_ties_back(before, inputs, of_rows=edits.EDITS[number] == "begun"):
            self.undone.add(job.key)
            return call
        return changed(call, **inputs)

    def _beside(self, job: Job) -> Job:
        """The call of another family whose values `mixed` takes."""
        seed, _, family = _edit_of(job)
        return Job(dataclasses.replace(job.case, family=family, seed=seed))

    def _previous(self, job: Job) -> Job:
        """The call that an edit is made of: none of ASIDE, and none that changes nothing."""
        from kernelproof.operators import changeable

        seed, number, _ = _edit_of(job)
        if job.part == "mixed":
            return Job(job.case)
        if job.case.id not in self.often:
            self.often[job.case.id] = edits.times(changeable(self.operator, self._call(Job(job.case))))
        for before in reversed(range(number)):
            kind = edits.EDITS[before]
            if kind not in edits.ASIDE and edits.turn_of(before) < self.often[job.case.id].get(kind, 0):
                return Job(job.case, kind, f"{seed}.{before}")
        return Job(job.case)

    def _drawn(self, case: Case) -> Call:
        """A case's inputs, which are the same for every variant: to see that, a family's first ones are made twice.

        Inputs that differ are made again before the operator is blamed: in three runs on loaded machines, and never
        alone, heavy tails of attention came out otherwise, for a reason that is not known. A first draw that is like no
        later one is forgiven once.
        """
        from kernelproof import judge, operators

        def made() -> tuple[Call, str]:
            found = self.operator.make_call(case, judge.generator(case))
            call = operators.expect(operators.Call, [found], "make_call")[0]
            self._insist_on_type(call, case, "make_call", "`make_call` made")
            return call, _digest(call)

        if case.id not in self.inputs:
            known = bool(self.inputs)
            call, self.inputs[case.id] = made()
            if known:
                self.drawn_once.add(case.id)
            if case.family in self.families:
                return call
            self.families.add(case.family)
        others = set()
        for _ in range(REDRAWN):
            call, digest = made()
            if digest == self.inputs[case.id]:
                self.drawn_once.discard(case.id)
                return call
            others.add(digest)
        if case.id in self.drawn_once and len(others) == 1 and not self.odd_draw:
            self.odd_draw, self.inputs[case.id] = case.id, digest
            self.drawn_once.discard(case.id)
            print(f"{self.module}: {case.id}: the first draw was like none of the {REDRAWN} after it", file=sys.stderr)
            return call
        raise TestError(
            "`make_call` gave other inputs for the same case and seed than before",
            subject=f"{self.module}: {case.id}",
            hint="every random number has to come from the generator that it is given",
        )

    def _sanity(self, case: Case) -> Mapping[str, SanityCall]:
        from kernelproof import judge, operators

        if case.id not in self.exact:
            found = self.operator.sanity_calls(case, judge.generator(case))
            found = operators.expect(operators.SanityCall, found, "sanity_calls")
            names = [exact.name for exact in found]
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise TestError("two exact calls have this name", subject=f"{self.module}: sanity_calls: {twice}")
            for exact in found:
                self._insist_on_type(exact.call, case, "sanity_calls", f"{exact.name!r} has")
            self.exact[case.id] = {exact.name: exact for exact in found}
        return self.exact[case.id]

    def _insist_on_type(self, call: Call, case: Case, method: str, made: str) -> None:
        """Raises TestError for a call none of whose inputs has the case's data type."""
        from kernelproof import operators

        types = sorted({operators.dtype_name(tensor.dtype) for tensor in (call.inputs or call.tensors).values()})
        if case.dtype not in types:
            raise TestError(
                f"{made} tensors of {formats.listed(types)} for a case of {case.dtype}",
                subject=method,
                hint="give tensors the case's data type: x.to(operators.dtype(case.dtype))",
            )

    def _insist_on_one_reference(self, job: Job, terms: Terms) -> None:
        """Before a kernel is condemned: does `reference` give what it gave before? Asked once. Raises TestError."""
        from kernelproof import judge, operators

        if self.is_steady:
            return
        self.is_steady = True
        call = self._call(job)
        kept = self._computed(call, job.case, terms)
        again = operators.references_of(self.operator, call, terms.precision.of(job.case.dtype), terms.device)
        for output, reference in kept.items():
            judge.insist_on_same(reference, again[output])

    def _insist_on_exact(self, job: Job, terms: Terms) -> None:
        """See that the reference gives what the exact calls state, before a kernel is condemned by either: that of
        the job, else all of one case that has its data type and options.
        """
        from kernelproof import judge, operators

        key = repr((self.module, job.case.dtype, job.case.options, terms.precision))
        if job.part != "sanity" and key in self.insisted:
            return
        exact = self._sanity(job.case)
        for name in [job.name] if job.part == "sanity" else exact:
            call = exact[name].call
            stated = operators.by_output(call, exact[name].reference, "sanity_calls")
            for output, computed in self._computed(call, exact[name].case, terms).items():
                judge.insist_on_exact(name, stated[output], computed)
        if job.part != "sanity":
            self.insisted.add(key)

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

    def _knowing(self, job: Job, terms: Terms) -> _Reading:
        """Who knows what faults give, for messages about a job's result."""

        def computed(call: Call) -> dict[str, Reference]:
            return self._computed(call, job.case, terms)

        return _Reading(self.operator, lambda: self.misread.get(job.key, {}) | self._of_earlier(job), computed)

    def _of_earlier(self, job: Job) -> dict[str, Call]:
        """What a call is to who has one input of an earlier one, the first or last of those most like it, by cause."""
        from kernelproof.operators import changed

        call = self._call(job)
        kinds = {name: (tensor.shape, tensor.dtype) for name, tensor in call.inputs.items()}
        large = max((tensor.numel() for tensor in call.tensors.values()), default=0) > LARGEST_LOOKED_AT
        if len(kinds) < 2 or large or self.looked_back >= MOST_LOOKED_BACK:
            return {}
        alike: list[tuple[str, Call, list[str]]] = []
        for key, (earlier, _) in self.right.items():
            its = {name: (tensor.shape, tensor.dtype) for name, tensor in earlier.inputs.items()}
            if names := [name for name, kind in kinds.items() if its.get(name) == kind]:
                alike.append((key, earlier, names))
        most = max((len(names) for *_, names in alike), default=0)
        alike = [each for each in alike if len(each[2]) == most]
        found: dict[str, Call] = {}
        for key, earlier, names in (*alike[:1], *alike[-1:]):
            for name in names:
                others = (call, *found.values())
                if not any(earlier.tensor(name).equal(other.tensor(name)) for other in others):
                    cause = f"{name} {OF_EARLIER} ({key}): it, or what was made of it, is kept"
                    found[cause] = changed(call, **{name: earlier.tensor(name)})
        self.looked_back += bool(found)
        return found

    def _reference(self, job: Job, terms: Terms) -> dict[str, Reference]:
        """The reference of a job's very values, by output."""
        from kernelproof import operators

        if job.part == "sanity":
            exact = self._sanity(job.case)[job.name]
            return operators.by_output(exact.call, exact.reference, "sanity_calls")
        if job.part == "relation":
            relation = self._relations(job.case)[job.name]
            if relation.call.outputs == (relation.about,):  # what follows for one output says nothing of others
                return {relation.about: self._reference_after(relation, self._base(job), terms)}
        return self._computed(self._call(job), job.case, terms)

    def _computed(self, call: Call, case: Case, terms: Terms) -> dict[str, Reference]:
        """Kept by the values: it is asked for twice, and contenders, layouts and relations share it."""
        from kernelproof import judge, operators

        precision = terms.precision.of(case.dtype)
        judge.insist_on_declared(call, precision)
        digest = _digest(call)
        key = repr((digest, precision, terms.device))
        if key not in self.references:
            made = operators.references_of(self.operator, call, precision, terms.device)
            if _digest(call) != digest:
                raise TestError(
                    "`reference` changes the inputs that it is given, which kernels are given, too",
                    subject="reference",
                    hint="`clone` what it works on: `to` and `double` copy nothing where there is nothing to convert",
                )
            size = sum(each.output.nbytes + each.bound.nbytes for each in made.values())
            while self.references and self.kept_bytes + size > REFERENCES_KEPT_BYTES:
                self.kept_bytes -= self.references.popitem(last=False)[1][1]
            self.references[key] = (made, size)
            self.kept_bytes += size
        self.references.move_to_end(key)
        return self.references[key][0]

    def _reference_after(self, relation: Relation, base: Job, terms: Terms) -> Reference:
        from kernelproof import operators

        def computed(call: Call) -> Reference:
            return self._computed(call, base.case, terms)[relation.about]

        return operators.reference_after(relation, self._reference(base, terms)[relation.about], computed)

    def _insist_on(self, relation: Relation, base: Job, terms: Terms) -> None:
        """Before a kernel is condemned by a relation: does it hold of the references? Raises TestError if not."""
        from kernelproof import judge

        output = relation.about
        judge.insist_on_relation(
            relation, self._reference(base, terms)[output], self._computed(relation.call, base.case, terms)[output]
        )


@dataclass(frozen=True)
class _Reading:
    """What an operator knows of faults, and in front of it what a call gives to who takes an input for something else:
    who leaves out a tensor's strides, or has it from an earlier call.
    """

    operator: Operator
    misread: Callable[[], Mapping[str, Call]]  # by cause, what the call is to them; asked for where a result is wrong
    computed: Callable[[Call], Mapping[str, Reference]]

    @functools.cached_property
    def _given(self) -> list[tuple[str, Mapping[str, Reference]]]:
        """Causes, and what each of them gives, by output."""
        found = []
        for cause, read in self.misread().items():
            # What lies between elements may be no input that the operator's reference takes.
            with contextlib.suppress(Exception):
                found.append((cause, self.computed(read)))
        return found

    def suspects(self, call: Call, rows: Tensor) -> Iterator[Suspect]:
        """See Operator."""
        from kernelproof.operators import Suspect

        for cause, given in self._given:
            yield Suspect(cause, given[call.outputs[0]].output.cpu()[tuple(rows.unbind(1))].clone)
        yield from self.operator.suspects(call, rows) or ()


def _misread(call: Call, name: str, layout: Layout) -> dict[str, Call]:
    """What a call is to who takes the elements of a tensor, or all of its rows too, to lie one behind the other."""
    from kernelproof.operators import changed

    tensor, image = call.tensor(name), layout.images[name]
    memory = image.elements(image.raw)
    packed = [math.prod(tensor.shape[dim + 1 :]) for dim in range(tensor.dim())]
    ways = {f"{name} is read as if it were contiguous, whatever its strides": packed}
    if tensor.stride()[:-1] != tuple(packed[:-1]):
        ways[f"{name} is read as if the stride along its last dimension were 1"] = [*tensor.stride()[:-1], 1]
    start = memory.storage_offset()
    return {
        cause: changed(call, **{name: memory.as_strided(tensor.shape, strides, start).clone()})
        for cause, strides in ways.items()
    }


def _digest(call: Call) -> str:
    """Of a call's arguments, in this process: the values of all but its outputs, whatever their layout.

    Python's own hash takes less than half of the time that SHA-256 takes, for which processors have instructions.
    """
    import torch

    kinds = [(name, tensor.dtype, tensor.shape) for name, tensor in call.tensors.items()]
    values = (tensor.contiguous().reshape(-1).view(torch.uint8).numpy() for tensor in call.inputs.values())
    return repr((call.scalars, kinds, [hash(each.tobytes()) for each in values]))


def _edit_of(job: Job) -> tuple[int, int, str]:
    """The seed, which of EDITS, and the other family of `mixed`."""
    seed, number, *family = job.name.split(".", 2)
    return int(seed), int(number), "".join(family)


def _of_one_kind(one: Tensor, other: Tensor) -> bool:
    """Whether a tensor may stand for another, by its values too: zero points are whole numbers, and scales are not.

    Of fewer than FEW_VALUES chance says how large they are, and of next to none which sign they have.
    """
    if (one.shape, one.stride(), one.dtype) != (other.shape, other.stride(), other.dtype):
        return False
    first, second = (values[values.isfinite()] for values in (one.double(), other.double()))
    if not first.numel() or not second.numel():
        return True
    whole = [bool((values == values.round()).all()) for values in (first, second)]
    negative = [bool((values < 0).any()) for values in (first, second)]
    smaller, larger = sorted(float(values.abs().max()) for values in (first, second))
    count = min(first.numel(), second.numel())
    if whole[0] != whole[1] or (count >= edits.FEWEST_ALIKE and negative[0] != negative[1]):
        return False
    return count < FEW_VALUES or larger <= LIKE_IN_SIZE * smaller


def _has_indices(call: Call) -> bool:
    """Whether an output may say where in the inputs something is."""
    from kernelproof.operators import may_be_index

    return any(may_be_index(call.tensor(name)) for name in call.outputs)


def _has_whole_numbers(call: Call) -> bool:
    return not all(call.tensor(name).is_floating_point() for name in call.outputs)


if __name__ == "__main__":
    main()
