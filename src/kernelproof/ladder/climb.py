"""What each rung of the ladder does, and what a variant's way up it amounts to.

Everything that a rung needs of the candidate is run first, in worker processes; then the worker ends, and only then are
references computed and results judged, in the judge's process. This process has neither candidates nor references: it
draws the seed, keeps the time and writes the verdict.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import importlib.metadata
import json
import math
import os
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from kernelproof import builds, records, replies, sanitizer, suite
from kernelproof.cases import DEFAULT_FAMILY, case_of, covering_cases, select_cases, shape_of, unsupported
from kernelproof.errors import (
    JudgeError,
    KernelproofError,
    NoSuchEntry,
    RecordError,
    TestError,
    ToolError,
    ValuesRefused,
    WorkerCrashed,
    WorkerError,
    WorkerRefused,
    WorkerReplyError,
    WorkerStarved,
    WorkerTimeout,
    describe_exit,
)
from kernelproof.judging import Job, Judge, LaidOut, Terms
from kernelproof.ladder.sealing import Sealer
from kernelproof.launches import outlined, signature
from kernelproof.records import (
    BIAS,
    BOUND,
    EXACT,
    GUARD_BANDS,
    INPUTS,
    LATE,
    NONFINITE,
    RELATION,
    RMS,
    UNWRITTEN,
    BuildRecord,
    Case,
    CaseResult,
    Failure,
    FileHash,
    Histogram,
    PropertyResult,
    Rung,
    Sanitizer,
    SanitizerRun,
    TestRecord,
)
from kernelproof.replies import each, one_of, optional, row, whole

if TYPE_CHECKING:
    from kernelproof.config import Config, OperatorConfig, VariantConfig
    from kernelproof.sandbox import Isolation
    from kernelproof.supervisor import Worker, WorkerHost

RUNGS = ("build", "load", "launch", "sanity", "correctness", "properties", "determinism", "sanitizer")
# What these need of the candidate is run before any of it is judged.
COLLECTED = ("correctness", "properties", "determinism")
SUITE, SEARCH = "all cases together", "the search"
DEEP_SANITIZER = 4  # times as many cases at the deep level
CRASHES_ALLOWED = 2  # after that many the remaining cases are not run
REPEATED_CASES = 3
IN_ANY_ORDER = "that one is within its bounds: a kernel that may add in any order says so by `deterministic: false`"
AWAKE = "awake"  # the name of repeats by a process whose idle threads do not sleep at once
AWAKE_S = 1.0  # threads that spin for one which has no core can take many times as long
DRAWN_FAMILIES = 3
ELEMENTS = 3  # inputs that get another element, one at a time
PARTS = {  # of the inputs, by the job's: a property's name and claim
    "low": ("new low bits", "other low bits of every number change the result"),
    "element": ("one new value", "another value of a single element of an input changes the result"),
    "tail": ("new last values", "other values in the last quarter of each input change the result"),
}
NO_PARTS = (
    "no part of any input may take other values: all are whole numbers of more than a byte, or named in OPERATOR.whole"
)
SIDES = {"end": "behind", "start": "in front of"}  # of a tensor, where it is fenced
FENCED = 8  # cases
NAMED = 3  # of the reasons why it takes no case
QUICK_TRIALS = 10
# Of the repeats' results some, drawn when they are there, are compared outside the candidate's process.
COMPARED_BYTES, LEAST_COMPARED = 8 << 20, 3
OUT_OF_ORDER = {
    "before": "bytes of its output were written before the stream that it was given had come to the call: it works on "
    "another stream (the default one?) that was not ordered behind that stream",
    "after": "bytes of its output changed when the call was over: work of another thread, or on a stream that was not "
    "joined with the one that it was given",
    "later": "bytes that a call had written changed long after it was over: a thread that it left running, or work on "
    "another stream, wrote to its output",
}
UNDECLARED = (
    ". If it does not take that size: a variant declares the sizes that it takes, as in "
    "`limits: {head_dim: [64, 128]}` (config.yaml), and other cases are skipped"
)
DEVICE_FAULT = "CUDA error"  # torch's words when a kernel failed
# Calls that a candidate may decline in words, of which there are many: they share a process for as long as it is of
# use. No other call is made in it afterwards: what the library keeps of a call that failed is not to be told of others.
REFUSABLE = ("shifted", "strided", "neighbour")
DEVICE_CAUSES = {
    "illegal memory access": "a kernel reads or writes where no tensor lies: a tail that no bound check guards, or an "
    "index with another tensor's stride",
    "misaligned address": "a vector access or an asynchronous copy whose address is no multiple of its size: the base "
    "or a row of a tensor is not aligned, or an index is off",
    "too many resources requested": "registers times threads, or shared memory, are more than a multiprocessor has",
    "invalid configuration argument": "the grid or the block has a size of 0 or too large a one",
    "illegal instruction": "the code was made for another GPU, or took a wrong path",
    "device-side assert": "an assert in a kernel did not hold; the log has its text",
}
TORCH_ADVICE = ("Search for `", "CUDA kernel errors might", "For debugging consider", "Compile with `TORCH_USE_CUDA")
THREADS = 4  # of a CPU candidate: enough for races to show, few enough for tests to run beside each other
CPU_REPEATED_ELEMENTS = 40_000  # product of the dimensions: a hundred calls of a naive CPU kernel take a second or two
OTHERWISE = (
    "its kernels were started from the cubin alone; if it passes with test.sealed=never, its host code does more than "
    "launch them on the caller's stream"
)
WITHOUT = {
    "sanity": "no exact call was made, for the operator has none that it takes: errors within the bounds are not "
    "looked for that way",
    "properties": "no relation between calls was tried, for the operator states none: errors within the bounds, and "
    "those that the reference shares, are not looked for that way",
}
# What is wrong, the least grave first: of several failures a rung tells the gravest.
BY_GRAVITY = (
    (BIAS,),
    (RMS,),
    (BOUND, EXACT, RELATION),
    (NONFINITE,),
    (LATE, UNWRITTEN, GUARD_BANDS, INPUTS),
    ("error", "refusal"),
    ("crash", "hang"),
)
GRAVITY = {kind: rank for rank, kinds in enumerate(BY_GRAVITY, 1) for kind in kinds}
NO_GRAVITY, ENDED = (0, 0.0), (GRAVITY["crash"], 0.0)
LONGER = 5  # times the limit that ended a call, to try it with
OUT_OF_MEMORY = "out of memory"  # what CUDA says, and torch
# A GPU is full where no more than this share of its memory is free; until what an ended process had is free again.
FULL, FREED_S = 0.02, 2.0
SPACE_BYTES = 1 << 20  # with less than this free, besides its results, a worker's failure proves nothing


@dataclass(frozen=True)
class Outcome:
    """How one step ended: `passed`, `failed` or `skipped`, and why.

    gravity: of what is wrong, which decides what a rung tells. case: the id of the one whose call it was.
    """

    status: str
    message: str = ""
    gravity: tuple[int, float] = (0, 0.0)
    case: str = ""


@dataclass(frozen=True)
class Handed:
    """What a worker was told of the first of its calls, what it answered, and how long it took.

    unlike: of the repeats that were chosen afterwards and compared by the judge, those with other bits than the first
    call: repeat, output, flat element.
    """

    laid: LaidOut
    reply: Ran
    duration_s: float
    unlike: Sequence[tuple[int, str, int]] = ()


@dataclass(frozen=True)
class Ran:
    """A worker's answer to `run` (worker.Worker.run), which comes from a process that has run a candidate."""

    calls: int
    differing: int
    first_difference: tuple[int, str, int]
    kept: int
    farthest: int | None
    out_of_order: list[tuple[int, str, int]]

    @classmethod
    def of(cls, reply: Any, outputs: Sequence[str], calls: int = 1, repeats: int = 1) -> Ran:
        """The answer to so many calls with these outputs, the first of them `repeats` times.

        Raises WorkerReplyError for what no worker answers.
        """
        some, late = whole(0, repeats - 1), row(whole(0, calls - 1), one_of(*OUT_OF_ORDER), whole())
        place = optional(row(some, one_of(*outputs), whole()))
        forms = {"repeats": whole(1, repeats), "differing": some, "first_difference": place}
        forms |= {"kept": some, "farthest": optional(some), "out_of_order": each(late)}
        replies.expect(reply, forms)
        repeat, output, element = reply["first_difference"] or (0, outputs[0], 0)
        found = [(call, when, size) for call, when, size in reply["out_of_order"]]
        count, differing, kept, farthest = (reply[name] for name in ("repeats", "differing", "kept", "farthest"))
        return cls(count, differing, (repeat, output, element), kept, farthest, found)


class Resources:
    """What every variant that one process tests can share: worker hosts, the judge, the fresh seed."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        # Drawn after the build, so that no kernel can have been made for it.
        self.fresh_seed = int.from_bytes(os.urandom(4), "little") >> 1
        self._hosts: dict[tuple[bool, int, bool], WorkerHost] = {}
        self._judges: dict[tuple[Path | None, float], Judge] = {}

    def host(
        self, variant: VariantConfig, threads: int, *, awake: bool = False, kinds: Iterable[str] = ()
    ) -> WorkerHost:
        """A warm worker host with what the variant needs; the first call starts it, and does not wait.

        kinds: data types of its tensors beyond those that it declares.
        """
        from kernelproof.loading import needs_torch
        from kernelproof.supervisor import WorkerHost

        kinds = {*variant.dtypes, variant.precision.output, *kinds} - {"input"}
        with_torch = needs_torch(variant.abi, variant.device, kinds)
        key = (with_torch, threads, awake)
        if key not in self._hosts:
            scratch = self.scratch / f"host-{len(self._hosts)}"
            scratch.mkdir(parents=True, exist_ok=True)
            self._hosts[key] = WorkerHost(
                device=variant.device,
                needs_torch=with_torch,
                scratch=scratch,
                threads=threads,
                private=[self.scratch],
                awake=awake,
            )
        return self._hosts[key]

    def judge(self, root: Path, modules: Iterable[str], limit_s: float) -> Judge:
        """The judge of a project's operators; the first call starts it, and does not wait.

        Projects whose operators are all kernelproof's own share one: no file of theirs is loaded there.
        """
        own = all(module.startswith("kernelproof.operators.") for module in modules)
        key = None if own else root, limit_s
        if key in self._judges and not self._judges[key].alive:
            self._judges.pop(key).close()
        if key not in self._judges:
            self._judges[key] = Judge(root, self.scratch, limit_s)
        return self._judges[key].of(root)

    def close(self) -> None:
        """End every host, and with them every worker, and the judges."""
        for host in self._hosts.values():
            host.close()
        for judge in self._judges.values():
            judge.close()
        self._hosts.clear()
        self._judges.clear()


class Session:
    """One run of the ladder: the configuration and the variants that climb."""

    def __init__(
        self, config: Config, variants: list[VariantConfig], resources: Resources, only: str | None = None
    ) -> None:
        self.config = config
        self.resources = resources
        self.only = only  # the id of the one case that is to be tested
        self.root = config.root.resolve()
        self.climbs = [Climb(self, variant) for variant in variants]
        self._families: dict[str, list[str]] = {}
        self._kinds_of: dict[str, frozenset[str]] = {}
        self._current: Climb | None = None

    @functools.cached_property
    def gpu(self) -> tuple[bool, str | None]:
        """Whether a CUDA variant can run here, and if not, why."""
        from kernelproof import gpu

        present, why = gpu.available()
        version = _version("torch")
        if present and "+cpu" in version:
            return False, f"there is a GPU, but torch {version} is built without CUDA"
        return present, why

    @property
    def threads(self) -> int:
        """CPU threads that a candidate may use."""
        cores = len(os.sched_getaffinity(0))
        return min(THREADS, cores, self.config.bench.cpu_threads or cores)

    def host(self, variant: VariantConfig, *, awake: bool = False) -> WorkerHost:
        """The worker host for a variant, started if it is not; `awake`: idle threads spin for a while (WorkerHost)."""
        return self.resources.host(variant, self.threads, awake=awake, kinds=self._kinds(variant))

    def _kinds(self, variant: VariantConfig) -> frozenset[str]:
        """The data types of a call's tensors, where a worker on a CPU would else be without what holds them."""
        module = self.config.operator(variant.operator).module
        if variant.device != "cpu" or variant.abi != "tvm_ffi" or module.startswith("kernelproof.operators."):
            return frozenset()
        if variant.key not in self._kinds_of:
            climb = next(climb for climb in self.climbs if climb.variant is variant)
            found: set[str] = set()
            with contextlib.suppress(KernelproofError):  # which is told when a case is made
                outline = self.judge.outline(module, Job(climb.cases[0])) if climb.cases else {}
                found = {value["dtype"] for value in outline.values() if isinstance(value, dict)}
            self._kinds_of[variant.key] = frozenset(found)
        return self._kinds_of[variant.key]

    @functools.cached_property
    def judge(self) -> Judge:
        """The judge, started if it is not. One that dies is not replaced in a session: what it was told is gone."""
        modules = {climb.settings.module for climb in self.climbs}
        return self.resources.judge(self.root, modules, self.config.test.operator_limit_s)

    def families(self, variant: VariantConfig) -> list[str]:
        """The input families of the variant's operator, where the configuration does not choose some."""
        settings = self.config.operator(variant.operator)
        if not settings.test.families and settings.module not in self._families:
            self._families[settings.module] = self.judge.families(settings.module)
        return settings.test.families or self._families[settings.module]

    def start(self) -> None:
        """Start the judge and the hosts that will be needed, so that their imports run beside one another."""
        for climb in self.climbs:
            if climb.variant.device == "cpu" or self.gpu[0]:
                self.resources.host(climb.variant, self.threads)  # what its calls hold besides is the judge's to say
                assert self.judge

    def enter(self, climb: Climb) -> None:
        """Tests of `climb` begin: the worker of the variant before it ends."""
        if self._current is not None and self._current is not climb:
            self._current.leave()
        self._current = climb

    def close(self) -> None:
        """End what still runs for a variant."""
        for climb in self.climbs:
            climb.leave()
            climb.stop_examination()


class Climb:
    """One variant on its way up the ladder, and what was found on each rung."""

    def __init__(self, session: Session, variant: VariantConfig) -> None:
        self.session = session
        self.variant = variant
        self.settings: OperatorConfig = session.config.operator(variant.operator)
        self.limits = session.config.test.time_limit_s
        self.log = session.resources.scratch / f"{variant.operator}-{variant.name}.log"
        self.rungs: dict[str, Rung] = {}
        self.told: dict[str, Outcome] = {}  # by rung: what its message tells, and of which case
        self.results: list[CaseResult] = []
        self.properties_found: list[PropertyResult] = []
        self.histogram: Histogram | None = None
        self.built: BuildRecord | None = None
        self.supplied = {"sanity": 0, "properties": 0}  # by rung: exact calls, relations
        self.ended: str | None = None  # crashed, hung: decided by how the process ended and not by a result
        self.barred: str | None = None  # why nothing more is run
        self.remedy: str | None = None  # what to do about that
        self.lacks_entry = False  # what was loaded has no such function
        self.crashes = 0
        self.isolation: Isolation | None = None  # of its workers, the least of what they achieved
        self.selected: dict[str, list[str]] | None = None  # ids of the cases that are asked for, by rung; None: all
        self.searched = 0  # cases that the deep level drew
        self.sealer: Sealer | None = None  # once a call is made that could be sealed
        self._collected = False
        self._handed: dict[tuple[str, str], Handed | KernelproofError] = {}  # by rung and case
        self._refused: dict[tuple[str, str], tuple[Job, WorkerRefused]] = {}  # by rung and case
        self._scalars_refused: dict[str, str] = {}  # by case: why no relation with other scalars was tried
        self._kinds: dict[str, str] = {}  # by a job's key: its shapes, strides, data types and scalars
        self._takes: dict[str, bool] = {}  # by kind, once a call of it was made
        self._laid_out: dict[str, list[Job]] = {}  # by case, once they were asked for
        self._late: dict[str, Failure] = {}  # by a job's key
        self._called: Job | None = None  # the first call of the last request
        self._worker: Worker | None = None
        self._holds_cubins = False  # the worker, and not the library
        self._is_awake = False  # its idle threads spin for a while
        self._has_run = False  # the worker has made calls
        self._has_refused = False  # and the candidate has declined one, which was laid out in another way
        self._collecting: dict[str, float] = {}  # by rung: seconds that its calls took, refused ones too
        self._images = session.resources.scratch / f"{variant.operator}-{variant.name}"
        self._sanitizer = session.resources.scratch / f"{variant.operator}-{variant.name}-sanitizer"
        self._examination: sanitizer.Examination | None = None
        self._examined: Sanitizer | None = None

    @property
    def trials(self) -> int:
        """How often a case is repeated; half of that by each of two processes, where threads may race."""
        settings = self.session.config.test
        return min(settings.trials, QUICK_TRIALS) if settings.level == "quick" else settings.trials

    @property
    def has_team(self) -> bool:
        """Whether code of its own may run in several of the CPU's threads at a time, which could race for memory."""
        variant = self.variant
        own = variant.role == "variant" or variant.abi != "python"
        return own and variant.device == "cpu" and self.session.threads > 1

    @property
    def searches(self) -> bool:
        """Whether cases are drawn for it that nobody listed."""
        settings = self.session.config.test
        return settings.level == "deep" and self.variant.role == "variant" and not self.session.only

    @functools.cached_property
    def cases(self) -> list[Case]:
        """What it is tested on; nothing where it cannot run. Cases that it declares not to take become results."""
        if self._bar_of_device():
            return []
        session = self.session
        if session.only:
            return [case_of(self.settings, self.variant, session.only, session.families(self.variant))]
        seeds = [*session.config.test.seeds, session.resources.fresh_seed]
        families = session.families(self.variant)
        quick = session.config.test.level == "quick"
        selection = select_cases(self.settings, self.variant, seeds=seeds, families=families, quick=quick)
        self.results += [CaseResult.of(left_out.case, "skipped", left_out.reason) for left_out in selection.skipped]
        found = _with_fresh_seed(selection.cases, self.settings.profile.shape, session.resources.fresh_seed)
        return found if quick else found + self._drawn_families(found, families)

    def _drawn_families(self, cases: Sequence[Case], families: Sequence[str]) -> list[Case]:
        """Some families, others in each run, on the shape that is profiled: what is right elsewhere only is seen."""
        main = [c for c in cases if (c.shape, c.family) == (self.settings.profile.shape, self._family)]
        others = [family for family in families if family != self._family]
        if not main or self.settings.test.family_shape in ("", self.settings.profile.shape):
            return []
        seed = self.session.resources.fresh_seed
        draw = random.Random(seed)
        chosen = draw.sample(others, min(DRAWN_FAMILIES, len(others)))
        return [dataclasses.replace(draw.choice(main), family=family, seed=seed) for family in chosen]

    @functools.cached_property
    def property_cases(self) -> list[Case]:
        """What the properties are tried on: two cases of each data type that differ in every option, on fresh seeds.

        And the smallest one without a size of 1, if those have any: the stride of that dimension matters to nobody.
        None at the quick level.
        """
        if self.session.config.test.level == "quick":
            return []
        if self.session.only:
            return self.cases
        seed = self.session.resources.fresh_seed
        shapes = [self.settings.test.family_shape, self.settings.profile.shape]
        found = []
        for dtype in dict.fromkeys(case.dtype for case in self.cases):
            mine = sorted(
                (case for case in self.cases if case.dtype == dtype),
                key=lambda case: shapes.index(case.shape) if case.shape in shapes else len(shapes),
            )
            shape = [case for case in mine if case.shape == mine[0].shape]
            chosen = {json.dumps(case.options): case for case in (shape[0], _most_different(shape[0], shape))}
            if not _has_every_stride(shape[0]) and (whole := [case for case in mine if _has_every_stride(case)]):
                chosen["whole"] = min(whole, key=_elements)
            found += [dataclasses.replace(case, family=self._family, seed=seed) for case in chosen.values()]
        return found

    @property
    def sanitizer_tools(self) -> list[str]:
        """compute-sanitizer's tools that it is run under; none at the quick level, for a baseline or on a CPU."""
        settings = self.session.config.test
        wanted = self.variant.device == "cuda" and self.variant.role == "variant" and settings.level != "quick"
        return settings.sanitizer.tools if wanted else []

    @functools.cached_property
    def sanitizer_cases(self) -> list[Case]:
        """The few small cases that they see."""
        if self.session.only:
            return self.cases
        settings = self.session.config.test
        deep = settings.level == "deep"
        limited = {name for variant in self.settings.variants.values() for name in variant.limits}
        usual = [case for case in self.cases if case.family == self._family]
        most = settings.sanitizer.cases * (DEEP_SANITIZER if deep else 1)
        return covering_cases(usual or self.cases, sorted(limited), most, pairs=deep)

    @property
    def viewed_cases(self) -> list[Case]:
        """What is also laid out in other ways (Judge.views): a case of each data type and shape. Not of baselines."""
        if self.variant.role != "variant":
            return []
        first = {(case.dtype, case.shape): case for case in reversed(self.property_cases)}
        return list(reversed(first.values()))

    @property
    def fenced_cases(self) -> list[Case]:
        """Small cases that hold every option between them, to be put where memory ends too."""
        if self.variant.role != "variant" or self.variant.device != "cpu" or not self.cases:
            return []
        usual = [case for case in self.cases if case.family == self._family]
        return covering_cases(usual or self.cases, (), FENCED)

    @functools.cached_property
    def neighbours(self) -> list[Case]:
        """A shape that gives most of its dimensions, each then taken from the nearest smaller and larger shape.

        A kernel that keeps something by a part of a call's sizes (a mask by its rows) is right wherever all of them
        differ. In every data type and combination of options that the shape is tested with, there and back; on no size
        that no shape has. The same where one case alone is run again.
        """
        if self.variant.role != "variant" or not self.cases:
            return []
        every = select_cases(self.settings, self.variant, families=self.session.families(self.variant)).cases
        usual = [case for case in every if case.family == self._family]
        if not usual:
            return []
        lengths = frozenset(suite.LENGTHS)
        first = min(usual, key=lambda case: (-len(lengths & case.dims.keys()), -len(case.dims), _elements(case)))
        listed = {name: sorted({c.dims[name] for c in usual if name in c.dims}) for name in first.dims}
        shapes = {first.shape: first.dims}
        for name, size in first.dims.items():
            every_dims = [{**first.dims, name: other} for other in listed[name]]
            whole = [dims for dims in every_dims if dims.get("heads", 0) % dims.get("kv_heads", 1) == 0]
            smaller, larger = ([dims for dims in whole if way * dims[name] > way * size] for way in (-1, 1))
            shapes |= {shape_of(dims): dims for dims in (*smaller[-1:], *larger[:1])}
        refused = self.session.judge.declared(dataclasses.replace(self.settings, shapes=shapes)).refused
        bases = [case for case in usual if case.shape == first.shape]
        bases = list({(case.dtype, json.dumps(case.options)): case for case in bases}.values())
        others = [shape for shape in shapes if shape != first.shape and shape not in refused]
        cases = [
            dataclasses.replace(base, shape=shape, dims=shapes[shape], seed=self.property_cases[0].seed)
            for way, base in enumerate(bases * 2 if len(bases) == 1 else bases)
            for shape in (first.shape, *(others if way % 2 == 0 else reversed(others)))
            if others
        ]
        return [case for case in cases if not unsupported(self.variant, case)]

    @property
    def zero_copy_jobs(self) -> list[Job]:
        """The main shape in each data type and the largest ones, as far as they run from the cubins alone.

        So kernels, and no host code, meet inputs that lie in the host's memory.
        """
        if self.variant.role != "variant" or self.sealer is None or self.session.config.test.level == "quick":
            return []
        main = [c for c in self.cases if (c.shape, c.family) == (self.settings.profile.shape, self._family)]
        chosen = [*{case.dtype: case for case in reversed(main)}.values(), *self.repeated_cases]
        jobs = [Job(case) for case in {case.id: case for case in chosen}.values()]
        known = [job for job in jobs if self.sealer.knows(job.key) and self.sealer.launches([job.key])]
        return [dataclasses.replace(job, part="zero-copy") for job in known]

    @property
    def _family(self) -> str:
        families = self.session.families(self.variant)
        return DEFAULT_FAMILY if DEFAULT_FAMILY in families else families[0]

    @functools.cached_property
    def repeated_cases(self) -> list[Case]:
        """Those of the cases that are repeated."""
        if self.session.only or not self.cases:
            return self.cases
        found = _repeated(self.cases, self.settings, self.variant.device)
        if self.has_team:  # however busy the cores are, threads that share a long call overlap
            longest = max((c for c in self.cases if c.shape in self.settings.shapes), key=_elements, default=found[0])
            found += [longest] if longest not in found else []
        return found

    # --- rungs

    def build(self) -> Outcome:
        """The build stage's record is there and says ok, and the library is the file that it names."""
        return self._step("build", self._build)

    def load(self) -> Outcome:
        """A fresh process loads the variant."""
        return self._step("load", self._load)

    def launch(self) -> Outcome:
        """One call of the smallest case comes back without an error; nothing is judged."""
        self._bar_without_cases()
        return self._step("launch", self._launch)

    def sanity(self) -> Outcome:
        """The operator's exact calls, in every data type and with every combination of options."""
        return self._step("sanity", self._sanity)

    def correctness(self, case: Case | None) -> Outcome:
        """One case against its float64 reference; None for a variant that cannot run here."""
        if case is None:
            return self._step("correctness", lambda: "there is no case that it takes")
        outcome = self._step("correctness", lambda: self._correctness(case), case.id)
        if outcome.status == "skipped":
            self.results.append(CaseResult.of(case, "skipped", outcome.message))
        return outcome

    def suite(self) -> Outcome:
        """What only shows over all cases together."""
        return self._step("correctness", self._suite, SUITE)

    def deep(self) -> Outcome:
        """The deep level's search for a case that fails."""
        return self._step("correctness", self._deep, SEARCH)

    def properties(self, case: Case | None) -> Outcome:
        """What must hold between calls: the operator's relations, and that memory may be used again."""
        if case is None:
            return self._step("properties", lambda: "there is no case that it takes")
        return self._step("properties", lambda: self._properties(case), case.id)

    def determinism(self, case: Case | None) -> Outcome:
        """Repeats of one case on the same inputs, under alternating poison, give the same bits."""
        if case is None:
            return self._step("determinism", lambda: "there is no case that it takes")
        return self._step("determinism", lambda: self._determinism(case), case.id)

    def sanitizer(self, tool: str) -> Outcome:
        """One of compute-sanitizer's tools finds nothing in the variant's own kernels."""
        self._make_up_for_lower_rungs("sanitizer")
        if reason := self._bar_of_tool(tool):
            return self._note("sanitizer", Outcome("skipped", reason), 0.0, tool)
        started = time.monotonic()
        run = next(run for run in self._sanitized().runs if run.tool == tool)
        message = run.reason or ""
        if run.status == "failed":
            message = "; ".join(failure.message for failure in run.failures)
        outcome = self._note("sanitizer", Outcome(run.status, message), time.monotonic() - started, tool)
        rung = self.rungs["sanitizer"]
        if rung.status == "passed":
            left_out = [run for run in self._sanitized().runs if run.status == "skipped"]
            rung.message = "; ".join(f"{run.tool} shows nothing: {run.reason}" for run in left_out) or None
        return outcome

    # --- what a rung does: each gives back what is wrong, or None

    def _build(self) -> str | None:
        path = self.session.config.record("build", self.variant.operator, self.variant.name)
        try:
            self.built = records.read(path, BuildRecord)
        except RecordError as error:
            if self.variant.abi == "python" and not path.exists():
                return None  # nothing to build
            return f"{error.message} (build it again: {self._command('build')})"
        if why := builds.outdated(self.variant, self.built):
            return self._to_build_again(why)
        if self.built.status != records.OK:
            return (self.built.compiler_message or self.built.reason or "no reason given").strip()
        if self.variant.abi == "python":
            return next(filter(None, (self._altered(file, source=True) for file in self.built.sources)), None)
        if self.built.library is not None:
            return self._altered(self.built.library)
        return "the build's record names no library"

    def _altered(self, file: FileHash, *, source: bool = False) -> str | None:
        why = builds.altered(file, self.session.root, source=source)
        return why and self._to_build_again(why)

    def _to_build_again(self, why: str) -> str:
        return f"{why}; build it again: {self._command('build')}"

    def _load(self) -> str | None:
        try:
            self._ready_worker()
        except NoSuchEntry:
            self.lacks_entry = True
            raise
        return None

    def _launch(self) -> str | None:
        refused: WorkerRefused | None = None
        for case in sorted(self.cases, key=_elements):
            try:
                self._run([Job(case)], self.limits.launch)
                return None
            except WorkerRefused as error:
                refused = error
        if refused:
            raise refused
        return "there is no case that it takes"

    def _sanity(self) -> Outcome | None:
        ran, refused = [], []
        for job, exact in self._sanity_jobs():
            try:
                self._run([job], self.limits.sanity)
                ran.append(job)
            except WorkerRefused as error:
                refused.append((job, exact, error))
        declined = [(job, exact, self._refusal(job, exact, error)) for job, exact, error in refused]
        self.leave()
        wrong = [(job, result) for job in ran if (result := self._judged(job)).status == "failed"]
        for job, exact, refusal in declined:
            if isinstance(refusal, ValuesRefused):
                wrong.append((job, _not_judged(exact, refusal)))
            else:
                self.results.append(CaseResult.of(exact, "skipped", f"refused: {refusal.message}"))
        self.results += [result for _, result in wrong]
        made = len(ran) + len(refused)
        self.supplied["sanity"] += len(ran)
        if not wrong:
            return None
        job, worst = max(wrong, key=lambda each: _gravity(each[1].failures, each[1]))
        # An exact call is made for any case of its data type and options.
        told = _told(worst, job.case.id)
        return dataclasses.replace(
            told, message=f"{len(wrong)} of {made} exact calls are wrong; {worst.id}: {told.message}"
        )

    def _sanity_jobs(self) -> Iterator[tuple[Job, Case]]:
        """The exact calls in every data type and with every combination of options, as far as it takes them."""
        for case in _distinct(self.cases):
            for name, exact in self.session.judge.exact_cases(self.settings.module, case).items():
                if not unsupported(self.variant, exact):
                    yield Job(case, "sanity", name), exact

    def _correctness(self, case: Case) -> Outcome | None:
        try:
            handed = self._taken("correctness", case)
        except WorkerRefused:
            raise
        except (WorkerError, TestError) as error:
            self.results.append(_not_judged(case, error, self._undeclared(error)))
            raise
        started = time.monotonic()
        result = self._judged(Job(case), count=True)
        result.duration_s = handed.duration_s + time.monotonic() - started
        self.results.append(result)
        return _told(result, case.id) if result.failures else None

    def _suite(self) -> str | None:
        return _failures(suite.findings(self.results, self.session.config.test.tolerance))

    def _deep(self) -> Outcome | None:
        from kernelproof.ladder import deep

        families = self.session.families(self.variant)
        found = deep.search(self.settings, self.variant, families, self._try)
        self.searched = found.examples
        if found.failure is None:
            return None
        self.results.append(found.failure)
        told = _told(found.failure, found.failure.id)
        return dataclasses.replace(told, message=f"{found.failure.id}: {told.message}")

    def _try(self, case: Case) -> CaseResult | None:
        """Run and judge a case by itself; None when it is refused, by the operator or by the candidate."""
        drawn = dataclasses.replace(self.settings, shapes={case.shape: case.dims})
        if self.session.judge.declared(drawn).refused:
            return None
        try:
            self._run([Job(case)], self.limits.correctness)
        except WorkerRefused as error:
            refusal = self._refusal(Job(case), case, error)
            return _not_judged(case, refusal) if isinstance(refusal, ValuesRefused) else None
        except (WorkerError, TestError) as error:
            self._blame_a_lack_of_memory(error)
            return _not_judged(case, error, self._undeclared(error))
        finally:
            self.leave()
        result = self._judged(Job(case))
        self.session.judge.forget(self.settings.module)
        return result

    def _properties(self, case: Case) -> Outcome | None:
        self._taken("properties", case)
        wrong: list[tuple[str, Outcome]] = []  # names, and what is wrong
        self.supplied["properties"] += len(self._relations(case))
        for job, name, claim in self._property_jobs(case):
            result = self._judged(job)
            failures = result.failures
            if job.part == "relation":
                # Noise and bias were calibrated on the input families, and a relation's inputs are none of them.
                failures = [f for f in failures if f.criterion not in ("rms", "bias")]
                related = self.session.judge.related(self.settings.module, job, self._terms)
                failures += [related] if related else []
            message = _failures(failures)
            status = "failed" if message else "passed"
            self.properties_found.append(PropertyResult(name, claim, case.id, status, message))
            if message:
                gravity = _gravity(failures, result)
                wrong.append((name, Outcome("failed", f"{name} ({claim}): {message}", gravity, case.id)))
        if not self._changeable(case):
            self.properties_found += [PropertyResult(*part, case.id, "skipped", NO_PARTS) for part in PARTS.values()]
        if refused := self._scalars_refused.get(case.id):
            for relation in self._relations(case):
                if relation["other_scalars"]:
                    skipped = PropertyResult(relation["name"], relation["claim"], case.id, "skipped", refused)
                    self.properties_found.append(skipped)
        for view in self._views(case):
            wrong += self._viewed(view) if (_view_name(view), view.case.id) in self._handed else []
        if not wrong:
            return None
        told = max(wrong, key=lambda each: each[1].gravity)
        others = ", ".join(dict.fromkeys(name for name, each in wrong if each is not told[1]))
        return dataclasses.replace(told[1], message=told[1].message + (f"; also wrong: {others}" if others else ""))

    def _views(self, case: Case) -> list[Job]:
        viewed = self.viewed_cases
        if case not in viewed:
            return []
        if case.id not in self._laid_out:
            views = self._laid_out[case.id] = self.session.judge.views(self.settings.module, case)
            if case == viewed[0]:
                views += [Job(other, "fenced", side) for other in self.fenced_cases for side in SIDES]
                views += [Job(other, "neighbour") for other in self.neighbours]
                views += self.zero_copy_jobs
        return self._laid_out[case.id]

    def _viewed(self, view: Job) -> list[tuple[str, Outcome]]:
        """A candidate handles memory that is laid out in another way, or refuses it in words before it computes."""
        name, case, gravity = _view_name(view), view.case, NO_GRAVITY
        if view.part == "fenced":
            claim = f"nothing is read or written {SIDES[view.name]} a tensor, where no memory is"
        elif view.part == "zero-copy":
            claim = (
                "with inputs in the host's memory, which arrive slowly, the result is right: every copy is waited for"
            )
        elif view.part == "neighbour":
            claim = f"behind calls of one other size {case.id} is right, or refused: what is kept goes by all sizes"
        elif view.part == "shifted":
            where = f"with {view.name} alone" if view.name else "in memory that begins"
            claim = f"{where} one element off its boundary the result is right, or refused"
        else:
            where = (
                f"rows of {view.name} alone that begin on no boundary" if view.name else "strides of every tensor's own"
            )
            claim = f"with {where} the result is right, or refused"
        try:
            self._taken(name, case)
            result = self._judged(view)
            status, message, gravity = "passed", _failures(result.failures), _gravity(result.failures, result)
        except WorkerRefused as error:
            status, message = "skipped", f"refused: {error.message}"
        except WorkerReplyError as error:
            refused = DEVICE_FAULT not in error.message
            status, message = ("skipped", f"refused: {error.message}") if refused else ("failed", _words(error))
            gravity = _gravity_of(error)
        except (WorkerError, TestError) as error:
            slow = view.part == "zero-copy" and isinstance(error, WorkerTimeout)
            status, message, gravity = "skipped" if slow else "failed", _words(error), _gravity_of(error)
        status = "failed" if message and status == "passed" else status
        self.properties_found.append(PropertyResult(name, claim, case.id, status, message))
        told = Outcome("failed", f"{name} ({claim}): {message}", gravity, case.id)
        return [(name, told)] if status == "failed" else []

    def _property_jobs(self, case: Case) -> list[tuple[Job, str, str]]:
        """The calls of a property case in order, all in the same memory; each with the property's name and claim.

        A kernel that keeps results by address, or recognises inputs by a part of their values, gives an earlier result.
        """
        seed = case.seed
        jobs = [(Job(case), "fresh values", "values drawn after the build give the right result")]
        low = Job(case, "low", str(seed + 4))  # behind the call that it is like, for who remembers no other
        jobs.append((low, *PARTS["low"]))
        for relation in self._relations(case):
            if relation["other_scalars"] and case.id in self._scalars_refused:
                continue
            if relation["own_base"]:
                jobs.append((Job(case, "base", relation["name"]), relation["name"], "the call that it starts from"))
            jobs.append((Job(case, "relation", relation["name"]), relation["name"], relation["claim"]))
        other = dataclasses.replace(case, seed=seed + 1)
        jobs.append((Job(other), "new values", "other values in the same memory give their own result"))
        # Each differs from the call before it in less than a kernel that recognises inputs by a few values may notice.
        for number in range(ELEMENTS):
            jobs.append((Job(other, "element", f"{seed + 3}.{number}"), *PARTS["element"]))
        jobs.append((Job(other, "tail", str(seed + 2)), *PARTS["tail"]))
        return jobs if self._changeable(case) else [each for each in jobs if each[0].part not in PARTS]

    def _changeable(self, case: Case) -> list[str]:
        return self.session.judge.changeable(self.settings.module, case)

    def _relations(self, case: Case) -> list[dict[str, Any]]:
        return self.session.judge.relations(self.settings.module, case)

    def _repeats(self, case: Case) -> list[tuple[str, Job]]:
        """The calls that are repeated, each with the name of its step."""
        asleep, awake = ("determinism", Job(case, "repeat")), (f"determinism {AWAKE}", Job(case, "repeat", AWAKE))
        if not self.has_team:
            return [asleep]
        return [awake] if _elements(case) > CPU_REPEATED_ELEMENTS else [asleep, awake]

    @property
    def _calls_each(self) -> int:
        """How many of the trials a process makes."""
        return max(2, self.trials // 2) if self.has_team else self.trials

    def _determinism(self, case: Case) -> str | None:
        for step, job in self._repeats(case):
            if wrong := self._differing(step, job):
                return f"{wrong} (its idle threads spin)" if job.name == AWAKE else wrong
        return None

    def _differing(self, step: str, job: Job) -> str | None:
        handed = self._taken(step, job.case)
        reply = handed.reply
        if late := self._late.get(job.key):
            return _failures([late])
        if handed.unlike and not reply.differing:
            repeat, output, element = handed.unlike[0]
            return (
                f"repeat {repeat} gave other bits than the first call, at {handed.laid.place(output, element)}, while "
                "the candidate's process said that none did: something in it replaced the comparison"
            )
        if not reply.differing:
            return None
        repeat, output, element = reply.first_difference
        found = (
            f"{reply.differing} of {reply.calls - 1} repeats gave other bits than the first call, the first of them "
            f"repeat {repeat} at {handed.laid.place(output, element)}"
        )
        if self.variant.deterministic:
            cause = "a race, a missing barrier, or memory that is read before it is written"
            return f"{found}: {cause}" if self._judged(job).failures else f"{found}: {cause}; {IN_ANY_ORDER}"
        if wrong := _failures(self._judged(job).failures):
            return f"{found}, and that one is wrong: {wrong}"
        for number, (repeat, *_) in enumerate(handed.unlike):
            if wrong := _failures(self._judged(job, unlike=number).failures):
                return f"{found}, and of those that were looked at repeat {repeat} is wrong: {wrong}"
        return None

    # --- running

    def _ready_worker(self, *, sealed: bool = False, awake: bool = False) -> Worker:
        """A live worker that has loaded the variant: its library or callable, or with `sealed` its cubins alone.

        `awake`: its idle threads spin for a while before they sleep.
        """
        if (self._holds_cubins, self._is_awake) != (sealed, awake):
            self.leave()
        if self._worker is None or not self._worker.alive:
            self._holds_cubins, self._is_awake, self._has_run, self._has_refused = sealed, awake, False, False
            self._images.mkdir(exist_ok=True)
            self._worker = self.session.host(self.variant, awake=awake).spawn(self.log, readable=[self._images])
            achieved = self._worker.isolation
            if self.isolation is None or len(achieved.refused) < len(self.isolation.refused):
                self.isolation = achieved
            self._worker.request("load", timeout_s=self.limits.load, candidate=self._candidate(sealed=sealed))
        return self._worker

    def _candidate(self, *, sealed: bool = False) -> dict[str, Any]:
        """The variant as the process that loads it knows it (loading.Candidate)."""
        library = self.built.library if self.built and not sealed else None
        return {
            "abi": self.variant.abi,
            "device": self.variant.device,
            "passing": self.variant.passing,
            "entry": self.variant.entry,
            "library": str(self.session.root / library.path) if library else None,
            "root": str(self.session.root),
            "cubins": self.sealer.files if self.sealer and sealed else None,
        }

    def _run(self, jobs: Sequence[Job], limit_s: float, repeats: int = 1, *, sealable: bool = True) -> Handed:
        """One request to the worker, for calls in the same memory one after another.

        The judge has taken the results when this returns. Calls that are not `sealable` are made through the library,
        whatever else is: what its host code keeps from call to call shows between calls only.
        """
        started, self._called = time.monotonic(), jobs[0]
        if self._has_refused and jobs[0].part not in REFUSABLE:
            self.leave()
        launches = self._launches(jobs) if sealable else None
        awake = jobs[0].part == "repeat" and jobs[0].name == AWAKE
        worker = self._ready_worker(sealed=launches is not None, awake=awake)
        judge = self.session.judge
        self._has_run = True
        try:
            laid = [judge.lay_out(self.settings.module, job, self._images / str(n)) for n, job in enumerate(jobs)]
            kinds = {job.key: signature(outlined(other.arguments)) for job, other in zip(jobs, laid, strict=True)}
            self._kinds |= kinds
            try:
                answer = worker.request(
                    "run",
                    timeout_s=limit_s,
                    room_bytes=2 * sum(other.bytes for other in laid),
                    arguments=laid[0].arguments,
                    outputs=laid[0].outputs,
                    repeats=repeats,
                    following=[other.arguments for other in laid[1:]],
                    launches=launches or [],
                    **({"repeats_limit_s": AWAKE_S} if awake else {}),
                )
                reply = Ran.of(answer, laid[0].outputs, len(jobs), repeats)
                self._takes |= dict.fromkeys(kinds.values(), True)
                for call, when, size in reply.out_of_order:
                    self._late[jobs[call].key] = Failure(LATE, f"{size} {OUT_OF_ORDER[when]}")
                unlike = self._unlike_first(worker, jobs[0], laid[0], reply, limit_s) if repeats > 1 else []
                if sealable:
                    self._note_launches(jobs, launches)
            except WorkerError as error:
                if sealable and not isinstance(error, WorkerRefused):
                    self._note_launches(jobs, launches)
                _blame_a_full_disk(self._images, sum(other.bytes for other in laid))
                if self.variant.device == "cuda" and isinstance(error, WorkerReplyError):
                    self._has_refused = jobs[0].part in REFUSABLE and self._settled(worker, limit_s)
                    if not self._has_refused:
                        self.leave()  # an error can leave the whole CUDA context unusable
                raise
            for job in jobs:
                judge.take(
                    self.settings.module, job, worker.scratch, differing=job.part == "repeat" and reply.differing > 0
                )
        finally:
            worker.clear()
            for laid_out in self._images.iterdir():  # the folder itself stays: the worker may read that one
                shutil.rmtree(laid_out, ignore_errors=True)
        return Handed(laid[0], reply, time.monotonic() - started, unlike)

    def _settled(self, worker: Worker, limit_s: float) -> bool:
        """Whether the device can be used on after a call that raised."""
        try:
            worker.request("settle", timeout_s=limit_s)
        except WorkerError:
            return False
        return True

    def _refusal(self, job: Job, case: Case, error: WorkerRefused) -> WorkerReplyError:
        """What a refused call amounts to: shapes, data types, options and layouts may be declined, values may not.

        `case` has the call's shape; on usual values it is tried now, unless a call of this kind was made.
        """
        kind = self._kinds.get(job.key)
        if kind is None:  # refused by the process that describes calls and has no values
            return error
        if kind not in self._takes and case.family != self._family:
            with contextlib.suppress(KernelproofError):
                usual = dataclasses.replace(case, family=self._family)
                self._run([Job(usual)], self.limits.correctness, sealable=False)
            self._takes.setdefault(kind, False)
        return ValuesRefused(error.message) if self._takes.get(kind) else error

    def _unlike_first(
        self, worker: Worker, job: Job, laid: LaidOut, reply: Ran, limit_s: float
    ) -> list[tuple[int, str, int]]:
        """Have the judge compare repeats that are drawn now, when they are over; those that differ from the first.

        And the one that is said to lie farthest from it: where all differ in the last bits, that is the one to judge.
        """
        images = [laid.arguments[name]["image"] for name in laid.outputs]
        size = sum(Path(image).stat().st_size for image in images)
        count = min(reply.kept, max(LEAST_COMPARED, COMPARED_BYTES // size))
        if count == 0:
            return []
        drawn = set(random.SystemRandom().sample(range(reply.kept), count))
        if reply.farthest is not None:
            drawn.add(reply.farthest)
        indices = sorted(drawn)
        room_bytes = 2 * laid.bytes + len(indices) * size
        worker.request("repeats", timeout_s=limit_s, room_bytes=room_bytes, images=images, indices=indices)
        unlike = self.session.judge.unlike_first(self.settings.module, job, worker.scratch, len(indices))
        return [(1 + indices[position], output, element) for position, output, element in unlike]

    def _launches(self, jobs: Sequence[Job]) -> list[list[dict[str, Any]]] | None:
        """What calls launch, if they can be made from the cubins alone; else None, and their library makes them.

        The first time, every call that is judged by itself is described, by a process that ends before any is made.
        Raises WorkerRefused for a call that the candidate does not take, and where a call must be sealed and cannot.
        """
        mode = self.session.config.test.sealed
        if not self.variant.sealable or mode == "never" or self.built is None:
            return None
        ahead: list[Job] = []
        if self.sealer is None:
            self.sealer = Sealer(self.session.root, self.variant, self.built)
            ahead = self._all_jobs()
        missing = {job.key: job for job in [*ahead, *jobs] if not self.sealer.knows(job.key)}
        outlines = {key: self.session.judge.outline(self.settings.module, job) for key, job in missing.items()}
        asked = False

        def describer() -> Worker:
            nonlocal asked
            asked = True
            if self._has_run:
                self.leave()  # who describes has made no call
            return self._ready_worker()

        left = self.sealer.describe(outlines, describer, self.limits.launch)
        if asked:
            self.leave()
        if left and mode == "required":
            key, reason = left[0]
            self.barred = f"test.sealed is required, and {key} cannot be run from the cubin alone: {reason}"
        keys = [job.key for job in jobs]
        if refused := self.barred or self.sealer.refusal(keys):
            raise WorkerRefused(refused)
        return self.sealer.launches(keys)

    def _all_jobs(self) -> list[Job]:
        """Every call that is judged by itself, but for those that the deep level draws."""
        return [*(Job(case) for case in self.cases), *(job for job, _ in self._sanity_jobs())]

    def _note_launches(self, jobs: Sequence[Job], launches: list[list[dict[str, Any]]] | None) -> None:
        if self.sealer is not None:
            self.sealer.ran([job.key for job in jobs], sealed=launches is not None)

    def _collect(self) -> None:
        """Run everything that the upper rungs judge, then end the worker: no reference is made while it lives."""
        if self._collected:
            return
        self._collected = True
        if self.has_team:
            self.session.host(self.variant, awake=True)  # its imports run beside the calls until it is needed
        for case in self._asked_for("correctness", self.cases):
            self._attempt("correctness", case, [Job(case)], self.limits.correctness)
        for case in self._asked_for("properties", self.viewed_cases[:1]):
            for view in self._views(case):
                if view.part == "zero-copy":  # now, while a process holds the cubins
                    self._attempt(view.part, view.case, [view], self.limits.correctness)
        for case in self._asked_for("properties", self.property_cases):
            self._hold_together(case)
            for view in self._views(case):
                if view.part not in ("zero-copy", "neighbour"):
                    self._attempt(_view_name(view), view.case, [view], self.limits.correctness)
        for case in self._asked_for("properties", self.viewed_cases[:1]):
            for view in (view for view in self._views(case) if view.part == "neighbour"):
                if view.case.shape in self.settings.shapes:
                    self.leave()  # what earlier calls left behind may be large enough for all
                self._attempt(_view_name(view), view.case, [view], self.limits.correctness)
        repeats = [each for case in self._asked_for("determinism", self.repeated_cases) for each in self._repeats(case)]
        for name, job in sorted(repeats, key=lambda repeat: repeat[1].name):  # a process for each kind
            self._attempt(name, job.case, [job], self.limits.determinism, self._calls_each)
        for step, (job, refused) in self._refused.items():
            if self._handed[step] is refused:
                self._handed[step] = self._refusal(job, job.case, refused)
        self.leave()
        try:
            for awake in (False, True)[: 1 + self.has_team]:
                self.session.host(self.variant, awake=awake).check()
        except WorkerError as error:
            self.ended = self.ended or "crashed"
            self._note("correctness", Outcome("failed", error.message, ENDED), 0.0, "after the last call")
        self._examine()

    def _hold_together(self, case: Case) -> None:
        """Make the calls of a property case; without those with other scalars, should the candidate refuse these."""
        for _ in range(2):
            jobs = [job for job, _, _ in self._property_jobs(case)]
            self._attempt("properties", case, jobs, self.limits.correctness * len(jobs))
            handed = self._handed.get(("properties", case.id))
            if not isinstance(handed, WorkerRefused) or not any(r["other_scalars"] for r in self._relations(case)):
                return
            self._scalars_refused[case.id] = f"refused: {handed.message}"

    def _examine(self) -> None:
        """Start compute-sanitizer's tools; they are at work while the judge is."""
        asked = self.sanitizer_tools if self.selected is None else self.selected["sanitizer"]
        tools = [tool for tool in asked if not self._bar_of_tool(tool)]
        if self._examined is not None or not tools:
            return
        barred = [SanitizerRun(tool, "skipped", reason=self._bar_of_tool(tool)) for tool in asked if tool not in tools]
        self._examined = Sanitizer(cases=[case.id for case in self.sanitizer_cases], runs=barred)
        try:
            program = sanitizer.find()
        except ToolError as error:
            why = f"compute-sanitizer: {error.message}"
            self._examined.runs += [SanitizerRun(tool, "skipped", reason=why, remedy=error.hint) for tool in tools]
            return
        self._examined.version = program.version
        self._sanitizer.mkdir(exist_ok=True)
        self._examination = sanitizer.Examination(
            program,
            tools,
            {"candidate": self._candidate(), "calls": [self._calls(n, c) for n, c in enumerate(self.sanitizer_cases)]},
            self._sanitizer,
            limit_s=self._sanitizer_limit_s,
        )

    @property
    def _sanitizer_limit_s(self) -> float:
        """Seconds for a tool; of a variant that hangs it is known that it may take them all."""
        limit_s = self.session.config.test.sanitizer.time_limit_s
        return min(limit_s, self.limits.launch) if self.ended == "hung" else limit_s

    def _bar_of_tool(self, tool: str) -> str | None:
        """Why a tool is not to be run; of a variant that hangs synccheck may say where, since it ends the kernel."""
        if self.ended == "hung" and tool == "synccheck" and self._passed("load"):
            return None
        return self._bar("sanitizer")

    def _passed(self, rung: str) -> bool:
        """Whether a rung was passed."""
        return rung in self.rungs and self.rungs[rung].status == "passed"

    def _calls(self, number: int, case: Case) -> dict[str, Any]:
        """A case and other values of it, laid out for kernelproof.sanitizing."""
        other = dataclasses.replace(case, seed=case.seed + 1)
        laid = [
            self.session.judge.lay_out(self.settings.module, Job(each), self._sanitizer / f"{number}-{place}")
            for place, each in enumerate((case, other))
        ]
        return {"values": [each.arguments for each in laid], "outputs": laid[0].outputs}

    def _sanitized(self) -> Sanitizer:
        """What every tool found, once all have ended."""
        self._examine()
        assert self._examined is not None
        if self._examination is not None:
            owner = sanitizer.Owner.of(self.built, self.session.root)
            limit_s = self._sanitizer_limit_s
            for tool in self._examination.tools:
                ended = self._examination.result(tool)
                self._examined.runs.append(sanitizer.judge(tool, ended, owner, limit_s))
                with self.log.open("a", encoding="utf-8") as log:
                    log.write(f"\n--- compute-sanitizer --tool {tool} ---\n{ended.excerpt}")
            sanitizer.settle_crashes(self._examined.runs)
            self.stop_examination()
        return self._examined

    def stop_examination(self) -> None:
        """End compute-sanitizer's tools."""
        if self._examination is not None:
            self._examination.close()
            self._examination = None
        shutil.rmtree(self._sanitizer, ignore_errors=True)

    def _asked_for(self, rung: str, cases: list[Case]) -> list[Case]:
        return cases if self.selected is None else [c for c in cases if c.id in self.selected.get(rung, [])]

    def _attempt(self, rung: str, case: Case, jobs: Sequence[Job], limit_s: float, repeats: int = 1) -> None:
        """Run the calls of one step, unless the candidate has shown that it cannot go on; keep how it ended."""
        if self.barred:
            return
        started = time.monotonic()
        try:
            sealable = rung in ("correctness", "zero-copy")
            self._handed[rung, case.id] = self._run(jobs, limit_s, repeats, sealable=sealable)
        except (WorkerError, TestError) as error:
            self._handed[rung, case.id] = error
            if isinstance(error, WorkerRefused):
                self._refused[rung, case.id] = jobs[0], error
            if not (rung == "zero-copy" and isinstance(error, WorkerTimeout)):  # its inputs are slow, not it
                self._process_ended(rung, error, case.id)
        finally:
            whose = rung.partition(" ")[0]
            whose = whose if whose in RUNGS else "properties"
            self._collecting[whose] = self._collecting.get(whose, 0.0) + time.monotonic() - started

    def _taken(self, rung: str, case: Case) -> Handed:
        """What was handed over in a step; raises what was raised then."""
        handed = self._handed[rung, case.id]
        if isinstance(handed, KernelproofError):
            raise handed
        return handed

    def _judged(self, job: Job, *, count: bool = False, unlike: int | None = None) -> CaseResult:
        """The judge's findings (Judge.judge); `count` adds the errors to the histogram."""
        result, histogram = self.session.judge.judge(self.settings.module, job, self._terms, unlike=unlike)
        if late := self._late.get(job.key):
            result.status, result.failures = "failed", [late, *result.failures]
        if count:
            before = self.histogram.counts if self.histogram else [0] * len(histogram.counts)
            counts = [a + b for a, b in zip(before, histogram.counts, strict=True)]
            self.histogram = Histogram(histogram.edges, counts)
        return result

    @property
    def _terms(self) -> Terms:
        variant = self.variant
        return Terms(variant.precision, variant.device, self.session.config.test.tolerance, variant.deterministic)

    def leave(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def finish(self) -> None:
        """End the worker and the tools, and have the judge forget the variant's calls."""
        self.leave()
        self.stop_examination()
        if self._handed or self._examined is not None:
            with contextlib.suppress(JudgeError):  # one that has died was told of by then
                self.session.judge.forget(self.settings.module)

    def _step(self, rung: str, action: Callable[[], Outcome | str | None], what: str = "") -> Outcome:
        """Do one step of a rung, unless something below bars the way; note how it ended."""
        if rung != "build":
            self._make_up_for_lower_rungs(rung)
        reason = self._bar(rung)
        if reason is None and rung in COLLECTED:
            self._collect()
            # What was handed over before the candidate showed that it cannot go on is judged all the same.
            reason = None if self._was_tried(rung, what) else self.barred
        if reason:
            return self._note(rung, Outcome("skipped", reason), 0.0, what)
        started = time.monotonic()
        try:
            wrong = action()
        except WorkerRefused as error:
            return self._note(rung, Outcome("skipped", f"refused: {error.message}"), time.monotonic() - started, what)
        except (WorkerError, TestError) as error:
            loading = rung == "load"
            words = _words(error, "while it was loaded") if loading else _words(error) + self._undeclared(error)
            wrong = Outcome("failed", words, _gravity_of(error), what)
            if rung in ("launch", "sanity") and self._called:
                wrong, what = dataclasses.replace(wrong, case=self._called.case.id), self._called.key
            if not self._was_tried(rung, what):
                self._process_ended(rung, error, what)
        if isinstance(wrong, str):
            wrong = Outcome("failed", wrong, case="" if what in (SUITE, SEARCH) else what)
        outcome = wrong or Outcome("passed")
        told = outcome.case if rung == "properties" and outcome.case else what  # it may be another's that lies there
        return self._note(rung, outcome, time.monotonic() - started, told)

    def _was_tried(self, rung: str, what: str) -> bool:
        """Whether a step's calls were made, or one of their kinds."""
        return any((name, what) in self._handed for name in (rung, f"{rung} {AWAKE}"))

    def _undeclared(self, error: KernelproofError) -> str:
        """What to do where a launcher says in words that it does not take a call, which the binding makes an error."""
        said = isinstance(error, WorkerReplyError) and error.message.startswith("RuntimeError: ")
        return UNDECLARED if said and self.variant.abi != "python" and DEVICE_FAULT not in error.message else ""

    def _make_up_for_lower_rungs(self, rung: str) -> None:
        """Run by hand with -k, a test may come without those that it rests on."""
        if "build" not in self.rungs:
            self.build()
        if rung != "load" and "load" not in self.rungs:
            self.load()

    def _bar(self, rung: str) -> str | None:
        """Why a step is not to be run: no device, a process that crashed or hung, or a lower rung that failed."""
        barred = None if self._collected and rung in COLLECTED else self.barred
        if reason := barred or (self._bar_of_build() if rung == "build" else self._bar_of_device()):
            return reason
        for lower in RUNGS[: RUNGS.index(rung)]:
            # Of wrong results it is worth knowing what else is wrong: in another way each time is a race. And of a call
            # that fails, where: a tool that watches it may say that.
            if lower in COLLECTED or (rung == "sanitizer" and lower in ("launch", "sanity")):
                continue
            if lower in self.rungs and self.rungs[lower].status == "failed":
                return f"the {lower} rung failed"
        return None

    def _bar_of_build(self) -> str | None:
        """What nobody built, or could not build for want of a tool, is not a variant that failed to build."""
        path = self.session.config.record("build", self.variant.operator, self.variant.name)
        if self.variant.abi != "python" and not path.exists():
            self.barred = "nothing was built yet"
            self.remedy = self._command("build")
        with contextlib.suppress(RecordError):
            built = records.read(path, BuildRecord)
            if built.status == records.NOT_RUN:
                self.barred, self.remedy = f"it was not built: {built.reason}", built.remedy
        return self.barred

    def _command(self, stage: str) -> str:
        return self.session.config.command(stage, self.variant)

    def _bar_of_device(self) -> str | None:
        if self.variant.device == "cuda":
            present, why = self.session.gpu
            if not present:
                self.remedy = "run on a machine with an NVIDIA GPU, its driver, and a torch built for CUDA"
                return f"no usable GPU here ({why})"
        return self._bar_of_packages()

    def _bar_without_cases(self) -> None:
        """Who declares to take none of the cases is not condemned for it: nothing is run."""
        if self.cases or self.barred or not self.results:
            return
        left_out = list(dict.fromkeys(str(result.reason) for result in self.results))
        more = f"; and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
        self.barred = f"it declares to take none of the {len(self.results)} cases: {'; '.join(left_out[:NAMED])}{more}"
        at = f"operators.{self.variant.operator}"
        self.remedy = (
            f"correct limits, options or dtypes of {at}.{self.variant.role}s.{self.variant.name}, or add a shape that "
            f"it takes to {at}.shapes and {at}.test.shapes"
        )

    def _bar_of_packages(self) -> str | None:
        absent = [name for name in self.variant.requires if not _installed(name)]
        if absent:
            self.remedy = f"install it beside torch: pip install {' '.join(map(repr, absent))}"
            return f"{', '.join(absent)} is not installed"
        return None

    def _process_ended(self, rung: str, error: KernelproofError, what: str) -> None:
        """A hang bars the rest at once, a crash after a few: a fresh process goes on with the other cases."""
        self._blame_a_lack_of_memory(error, loading=rung == "load")
        where = f"{rung} ({what})" if what else rung
        if isinstance(error, WorkerTimeout):
            self.ended = self.ended or "hung"
            self.barred = f"the variant hung in {where}"
            limits = dataclasses.asdict(self.limits)
            limit = next((name for name in limits if rung.startswith(name)), "correctness")
            key = f"test.time_limit_s.{limit}"
            self.remedy = (
                f"if it only takes long, as what compiles at its first call does, raise {key}: "
                f"{self._command('test')} --set {key}={LONGER * limits[limit]:g}"
            )
        elif not isinstance(error, (WorkerReplyError, TestError)):
            self.ended = self.ended or "crashed"
            self.crashes += 1
            if self.crashes > CRASHES_ALLOWED:
                self.barred = f"the variant crashed {self.crashes} times, the last time in {where}"

    def _blame_a_lack_of_memory(self, error: KernelproofError, *, loading: bool = False) -> None:
        """Raises OSError when memory ran out that the candidate did not take.

        The system kills a worker first, whoever took the machine's. A GPU's is others' if it is still full without the
        candidate, or was before that made a call (`loading`).
        """
        if isinstance(error, WorkerStarved):
            words = "the machine's memory ran out, and the system killed the candidate's process; test it again"
            raise OSError(errno.ENOMEM, words)
        if self.variant.device == "cuda" and OUT_OF_MEMORY in error.message:
            self.leave()
            if loading or _gpu_is_full():
                words = "the GPU's memory ran out, and other programs have it; end them, or test it again"
                raise OSError(errno.ENOMEM, words)

    def _note(self, name: str, outcome: Outcome, duration_s: float, what: str) -> Outcome:
        """Fold a step into its rung: failed if one failed, skipped if all were; the gravest failure is told."""
        rung = self.rungs.get(name)
        if rung is None:
            rung = self.rungs[name] = Rung(name, "skipped")
        rung.duration_s += duration_s
        message = f"{what}: {outcome.message}" if what and outcome.status == "failed" else outcome.message
        severity = ("skipped", "passed", "failed").index
        graver = name in self.told and outcome.gravity > self.told[name].gravity
        if severity(outcome.status) > severity(rung.status) or graver:
            rung.status, rung.message = outcome.status, message or None
            if outcome.status == "failed":
                self.told[name] = outcome
        elif rung.status == "skipped":
            rung.message = rung.message or message
        return outcome

    # --- what it amounts to

    def record(self) -> TestRecord:
        """The variant's record, as far as it came."""
        self._look_at_library_again()
        left_out = {"properties"} if self.session.config.test.level == "quick" else set()
        left_out |= set() if self.sanitizer_tools else {"sanitizer"}
        climbed = [name for name in RUNGS if name not in left_out]
        rungs = [self.rungs.get(name) or Rung(name, "skipped", 0.0, "it was not reached") for name in climbed]
        for rung in rungs:
            rung.duration_s += self._collecting.pop(rung.name, 0.0)
            if rung.status == "passed" and self.supplied.get(rung.name) == 0:
                rung.message = WITHOUT[rung.name]
        verdict = self._verdict(rungs)
        sealing = self.sealer.record() if self.sealer else None
        sealed = sealing is not None and sealing.sealed > 0 and sealing.library == 0
        record = TestRecord(
            operator=self.variant.operator,
            variant=self.variant.name,
            role=self.variant.role,
            device=self.variant.device,
            trust="sealed" if sealed else self.variant.trust,
            precision=dataclasses.asdict(self.variant.precision),
            looser=self.session.config.test.tolerance.looser,
            sealing=sealing,
            verdict=verdict,
            rungs=rungs,
            cases=self.results,
            properties=self.properties_found,
            sanitizer=self._examined,
            trials=self.trials,
            level=self.session.config.test.level,
            searched=self.searched,
            repeat=self._repeat(),
            fresh_seed=self.session.resources.fresh_seed,
            build_signature=self.built.signature if self.built else None,
            module=self._own_module(),
        )
        if self.isolation is not None:
            record.isolation, record.refused = self.isolation.level, self.isolation.refused
        if self.histogram is not None:
            record.error_histogram = self.histogram
            tolerance = self.session.config.test.tolerance
            record.bias_suite, record.bias_suite_ratio = suite.bias(self.results, tolerance)
        if verdict == "not_run":
            record.status, record.reason = (
                records.NOT_RUN,
                self.barred or self._bar("determinism") or _not_climbed(rungs),
            )
            record.remedy = self.remedy
        elif verdict != "correct":
            told = self._told_rung
            assert told is not None
            others = ", ".join(rung.name for rung in rungs if rung.status == "failed" and rung != told)
            more = f"; failed too: {others}" if self.ended and others else ""
            record.status, record.reason = records.FAILED, f"{told.name}: {told.message}{more}"
            remedies = [self.remedy] * (verdict == "hung") + [OTHERWISE] * bool(sealing and sealing.sealed)
            record.remedy = "; ".join(filter(None, remedies)) or None
        return record

    def _own_module(self) -> FileHash | None:
        name = self.settings.module
        path = self.session.root / name
        own = name.endswith(".py") and path.is_file()
        return FileHash(name, records.sha256_file(path), path.stat().st_size) if own else None

    @property
    def _told_rung(self) -> Rung | None:
        """The failed rung that the reason tells: where the process ended, if that is the verdict, else the first."""
        failed = [self.rungs[name] for name in RUNGS if name in self.told]
        ended = [rung for rung in failed if self.ended and self.told[rung.name].gravity == ENDED]
        return next(iter(ended + failed), None)

    def _repeat(self) -> str | None:
        """The command that runs the case again of which the reason tells."""
        rung = self._told_rung
        if rung is None or rung.name == "build":
            return None
        case = self.told[rung.name].case
        return self._command("test") + (f" --case {case}" if case else "")

    def _look_at_library_again(self) -> None:
        """What was tested must still be what lies there: a candidate could have replaced its own library."""
        loaded = self.rungs.get("load")
        if loaded is None or loaded.status == "skipped" or self.built is None or self.built.library is None:
            return
        if self._altered(self.built.library):
            message = f"{self.built.library.path} was changed or removed while the candidate ran"
            self._note("determinism", Outcome("failed", message), 0.0, "its library")

    def _verdict(self, rungs: list[Rung]) -> str:
        failed = [rung.name for rung in rungs if rung.status == "failed"]
        if "build" in failed:
            return "failed_to_build"
        if self.ended:
            return self.ended
        if failed:
            return "wrong"
        if self.barred:
            return "not_run"
        tested = {result.id for result in self.results}
        # A tool that cannot run here, or not to its end, is no fault of the variant; the record says what was not run.
        needed = [rung for rung in rungs if rung.name != "sanitizer"]
        whole = all(rung.status == "passed" for rung in needed) and all(case.id in tested for case in self.cases)
        return "correct" if whole else "not_run"


# --- cases ------------------------------------------------------------------------------------------------------------


def _with_fresh_seed(cases: list[Case], main_shape: str, seed: int) -> list[Case]:
    """The cases, and the main shape's first once more with the seed that nobody could know before the build."""
    main = [case for case in cases if case.shape == main_shape] or cases
    repeated = [
        dataclasses.replace(c, seed=seed) for c in main if (c.family, c.dtype) == (main[0].family, main[0].dtype)
    ]
    return list({case.id: case for case in [*cases, *repeated]}.values())


def _repeated(cases: list[Case], settings: OperatorConfig, device: str) -> list[Case]:
    """The cases that are repeated: on a GPU the profiled shape, then the largest; on a CPU the largest small ones."""
    limit = CPU_REPEATED_ELEMENTS if device == "cpu" else float("inf")
    found = sorted((c for c in cases if _elements(c) <= limit), key=_elements, reverse=True)
    found.sort(key=lambda c: device == "cpu" or c.shape != settings.profile.shape)
    shapes: dict[str, Case] = {}
    for case in found or [min(cases, key=_elements)]:
        shapes.setdefault(case.shape, case)
    return list(shapes.values())[:REPEATED_CASES]


def _most_different(case: Case, among: list[Case]) -> Case:
    """The case whose options differ most."""
    return max(among, key=lambda other: sum(other.options[name] != value for name, value in case.options.items()))


def _elements(case: Case) -> int:
    """The product of the dimensions: not the cost, but it grows with it."""
    return math.prod(case.dims.values())


def _has_every_stride(case: Case) -> bool:
    return all(size > 1 for size in case.dims.values())


def _view_name(view: Job) -> str:
    """The name of a view's property: `strided`, `strided k`, `shifted`, `shifted k`."""
    return " ".join(filter(None, [view.part, view.name]))


def _distinct(cases: list[Case]) -> list[Case]:
    """One case for each data type and combination of options."""
    return list({(c.dtype, json.dumps(c.options)): c for c in reversed(cases)}.values())[::-1]


def _not_judged(case: Case, error: KernelproofError, hint: str = "") -> CaseResult:
    """The result of a case in which nothing was handed over."""
    result = CaseResult.of(case, "failed")
    result.failures = [Failure(_kind(error), _words(error) + hint)]
    return result


def _version(package: str) -> str:
    """A package's version without importing it; empty when it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _installed(requirement: str) -> bool:
    wanted = Requirement(requirement)
    found = _version(wanted.name)
    return bool(found) and wanted.specifier.contains(found, prereleases=True)


def _blame_a_full_disk(folder: Path, image_bytes: int) -> None:
    """Raises OSError when a worker may have failed because its results or its log found no space: nobody is judged."""
    space = os.statvfs(folder)
    if space.f_bavail * space.f_frsize < SPACE_BYTES + image_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def _gpu_is_full() -> bool:
    """Whether hardly anything of the GPU's memory is free, though the candidate's process has ended."""
    from kernelproof import gpu

    deadline = time.monotonic() + FREED_S
    while memory := gpu.free_memory(gpu.index_of_first_visible(os.environ.get("CUDA_VISIBLE_DEVICES"))):
        free, total = memory
        if free > FULL * total:
            return False
        if time.monotonic() > deadline:
            return True
        time.sleep(FREED_S / 20)
    return False


# --- words ------------------------------------------------------------------------------------------------------------


def _kind(error: KernelproofError) -> str:
    if isinstance(error, WorkerTimeout):
        return "hang"
    if isinstance(error, ValuesRefused):
        return "refusal"
    return "error" if isinstance(error, (WorkerReplyError, TestError)) else "crash"


def _words(error: KernelproofError, when: str = "in the middle of a call") -> str:
    if isinstance(error, WorkerCrashed):
        if error.exit_code >= 0:
            return f"the candidate ended the process with exit code {error.exit_code} {when}"
        return f"the process {describe_exit(error.exit_code)} {when}"
    if isinstance(error, WorkerTimeout):
        return f"it hung: no answer within {error.limit_s:g} s"
    message = _device_fault(error.message) if DEVICE_FAULT in error.message else error.message
    return f"{error.subject}: {message}" if error.subject else message


def _device_fault(message: str) -> str:
    """What CUDA says of a kernel that failed, without torch's general advice, and the likely cause."""
    said = "\n".join(line for line in message.splitlines() if not line.startswith(TORCH_ADVICE))
    cause = next((cause for words, cause in DEVICE_CAUSES.items() if words in said), None)
    return f"{said}. Likely cause: {cause}" if cause else said


def _gravity_of(error: KernelproofError) -> tuple[int, float]:
    return GRAVITY[_kind(error)], 0.0


def _gravity(failures: Sequence[Failure], result: CaseResult) -> tuple[int, float]:
    """Of the gravest of some failures, and its ratio to the limit where it has one: an infinite one to 0."""
    rank = max((GRAVITY[failure.criterion] for failure in failures), default=0)
    ratios = {
        GRAVITY[BIAS]: result.bias_ratio,
        GRAVITY[RMS]: result.rms_ratio,
        GRAVITY[BOUND]: math.inf if result.max_bound_ratio is None else result.max_bound_ratio,
    }
    return rank, ratios.get(rank) or 0.0


def _told(result: CaseResult, case: str) -> Outcome:
    """What a failed result amounts to; `case`: the id under which it is run again."""
    return Outcome("failed", _failures(result.failures) or "", _gravity(result.failures, result), case)


def _failures(failures: Sequence[Failure]) -> str | None:
    return "; ".join(f"{f.criterion}: {f.message}" for f in failures) or None


def _not_climbed(rungs: Sequence[Rung]) -> str:
    """Why a variant has no verdict although nothing failed: which rungs it did not climb, and what stood in the way."""
    left = [rung for rung in rungs if rung.status != "passed"]
    why = "; ".join(dict.fromkeys(rung.message for rung in left if rung.message))
    return f"it was not tried on the rungs {', '.join(rung.name for rung in left)}{f': {why}' if why else ''}"
