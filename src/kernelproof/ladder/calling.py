"""A variant's calls: made in worker processes, from its library or its cubins, and then handed to the judge."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import itertools
import os
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof import replies
from kernelproof.errors import (
    KernelproofError,
    ValuesRefused,
    WorkerError,
    WorkerRefused,
    WorkerReplyError,
    WorkerStarved,
    WorkerTimeout,
)
from kernelproof.judging import Job, LaidOut, Terms
from kernelproof.ladder.sealing import Sealer
from kernelproof.launches import outlined, signature
from kernelproof.processes import FILL, NAN_FILL
from kernelproof.records import LATE, Case, CaseResult, Failure, Histogram
from kernelproof.replies import each, one_of, optional, row, whole

if TYPE_CHECKING:
    from kernelproof.ladder.selection import RungCases
    from kernelproof.ladder.standing import Standing
    from kernelproof.sandbox import Isolation
    from kernelproof.supervisor import Worker, WorkerHost

AWAKE = "awake"  # the name of repeats by a process whose idle threads do not sleep at once
AWAKE_S = 1.0  # threads that spin for one which has no core can take many times as long
# Of the repeats' results some, drawn when they are there, are compared outside the candidate's process.
COMPARED_BYTES, LEAST_COMPARED = 8 << 20, 3
OUT_OF_ORDER = {
    "before": "bytes of its output were written before the stream that it was given had come to the call: it works on "
    "another stream (the default one?) that was not ordered behind that stream, or begins before what is queued before "
    "it has ended (programmatic dependent launch) and does not wait for that (griddepcontrol.wait)",
    "ahead": "bytes of its output are others where what is queued before it lets it begin early: it is launched so "
    "that it may (programmatic dependent launch), and reads an input, or writes, before it waits "
    "(griddepcontrol.wait)",
    "after": "bytes of its output changed when the call was over: work of another thread, or on a stream that was not "
    "joined with the one that it was given",
    "later": "bytes that a call had written changed long after it was over: a thread that it left running, or work on "
    "another stream, wrote to its output",
}
# Calls that a candidate may decline in words, of which there are many: they share a process for as long as it is of
# use. No other call is made in it afterwards: what the library keeps of a call that failed is not to be told of others.
REFUSABLE = ("shifted", "strided", "spaced", "neighbour", "aliased")
OUT_OF_MEMORY = "out of memory"  # what CUDA says, and torch
# A GPU is full where no more than this share of its memory is free; until what an ended process had is free again.
FULL, FREED_S = 0.02, 2.0
# What memory holds that nobody has written, by a case's seed: what one of them hides, another case of its shape shows.
FRESH = (FILL, NAN_FILL)
FILLED_LONG_BYTES = 1 << 30  # of memory that a process held: to fill so much in each of some calls takes seconds
# Of calls that are laid out while others are made: this many at most, and none beside larger ones than that.
AHEAD_MOST, AHEAD_BYTES = 16, 64 << 20
SPACE_BYTES = 1 << 20  # with less than this free, besides its results, a worker's failure proves nothing


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


class Calls:
    """One variant's calls, and the process that makes them."""

    def __init__(self, selection: RungCases, standing: Standing) -> None:
        self.selection = selection
        self.standing = standing
        self.session, self.variant, self.settings = selection.session, selection.variant, selection.settings
        self.limits = standing.limits
        name = f"{self.variant.operator}-{self.variant.name}"
        self.log = self.session.resources.scratch / f"{name}.log"
        self.images = self.session.resources.scratch / name
        self.isolation: Isolation | None = None  # of its workers, the least of what they achieved
        self.sealer: Sealer | None = None  # once a call is made that could be sealed
        self.late: dict[str, Failure] = {}  # by a job's key
        self.called: Job | None = None  # the first call of the last request
        self.histogram: Histogram | None = None
        self.scalars: dict[str, set[Any]] = {}  # by argument: the values that calls had
        self._kinds: dict[str, str] = {}  # by a job's key: its shapes, strides, data types and scalars
        self._takes: dict[str, bool] = {}  # by kind, once a call of it was made
        self._begun: dict[str, Path] = {}  # by the key of a call of the next request: where it is laid out already
        self._numbers = itertools.count()  # of folders
        self._worker: Worker | None = None
        self._holds_cubins = False  # the worker, and not the library
        self._is_awake = False  # its idle threads spin for a while
        self._fills = self.variant.device == "cpu"  # what malloc hands out is filled before the candidate has it
        self._has_run = False  # the worker has made calls
        self._has_refused = False  # and the candidate has declined one, which was laid out in another way

    def host(self, *, awake: bool = False) -> WorkerHost:
        """The variant's worker host, started if it is not; `awake`: idle threads spin for a while (WorkerHost)."""
        return self.session.host(self.variant, awake=awake, kinds=self._held_kinds)

    @functools.cached_property
    def _held_kinds(self) -> frozenset[str]:
        """The data types of a call's tensors, where a worker on a CPU would else be without what holds them."""
        module = self.settings.module
        if self.variant.device != "cpu" or self.variant.abi != "tvm_ffi" or module.startswith("kernelproof.operators."):
            return frozenset()
        found: set[str] = set()
        with contextlib.suppress(KernelproofError):  # which is told when a case is made
            cases = self.selection.cases
            outline = self.session.judge.outline(module, Job(cases[0])) if cases else {}
            found = {value["dtype"] for value in outline.values() if isinstance(value, dict)}
        return frozenset(found)

    def ready_worker(self, *, sealed: bool = False, awake: bool = False) -> Worker:
        """A live worker that has loaded the variant: its library or callable, or with `sealed` its cubins alone.

        `awake`: its idle threads spin for a while before they sleep.
        """
        if (self._holds_cubins, self._is_awake) != (sealed, awake):
            self.leave()
        if self._worker is None or not self._worker.alive:
            self._holds_cubins, self._is_awake, self._has_run, self._has_refused = sealed, awake, False, False
            self.images.mkdir(exist_ok=True)
            self._worker = self.host(awake=awake).spawn(self.log, readable=[self.images], awake=awake, fill=self._fills)
            achieved = self._worker.isolation
            if self.isolation is None or len(achieved.refused) < len(self.isolation.refused):
                self.isolation = achieved
            self._worker.request("load", timeout_s=self.limits.load, candidate=self.candidate(sealed=sealed))
        return self._worker

    def candidate(self, *, sealed: bool = False) -> dict[str, Any]:
        """The variant as the process that loads it knows it (loading.Candidate)."""
        library = self.standing.built.library if self.standing.built and not sealed else None
        return {
            "abi": self.variant.abi,
            "device": self.variant.device,
            "passing": self.variant.passing,
            "entry": self.variant.entry,
            "library": str(self.session.root / library.path) if library else None,
            "root": str(self.session.root),
            "cubins": self.sealer.files if self.sealer and sealed else None,
        }

    def run(
        self,
        jobs: Sequence[Job],
        limit_s: float,
        repeats: int = 1,
        *,
        sealable: bool = True,
        following: Sequence[Job] = (),
    ) -> Handed:
        """One request to the worker, for calls in the same memory one after another.

        The judge has taken the results when this returns, and laid out some of the `following`, the calls of the next
        request. Calls that are not `sealable` are made through the library, whatever else is: what its host code keeps
        from call to call shows between calls only.

        Who asks for gigabytes and uses some of them has not hung while we filled all: it is called again without.
        """
        try:
            return self._run(jobs, limit_s, repeats, sealable=sealable, following=following)
        except WorkerTimeout as error:
            if not self._fills or error.most_bytes < FILLED_LONG_BYTES:
                raise
        self._fills = False
        return self._run(jobs, limit_s, repeats, sealable=sealable, following=following)

    def _run(
        self, jobs: Sequence[Job], limit_s: float, repeats: int, *, sealable: bool, following: Sequence[Job]
    ) -> Handed:
        started, self.called = time.monotonic(), jobs[0]
        if self._has_refused and jobs[0].part not in REFUSABLE:
            self.leave()
        launches, on_cpu = self.launches(jobs) if sealable else None, self.variant.device == "cpu"
        awake = jobs[0].part == "repeat" and jobs[0].name == AWAKE
        worker = self.ready_worker(sealed=launches is not None, awake=awake)
        judge = self.session.judge
        self._has_run = True
        folders, self._begun = self._folders(jobs), {}
        try:
            laid = [judge.lay_out(self.settings.module, *each) for each in zip(jobs, folders, strict=True)]
            judge.drop()
            size = sum(other.bytes for other in laid)
            if size <= AHEAD_BYTES:
                self._begin(following, jobs)
            kinds = {job.key: signature(outlined(other.arguments)) for job, other in zip(jobs, laid, strict=True)}
            self._kinds |= kinds
            for name, value in itertools.chain.from_iterable(other.arguments.items() for other in laid):
                if not isinstance(value, dict):
                    self.scalars.setdefault(name, set()).add(value)
            try:
                answer = worker.request(
                    "run",
                    timeout_s=limit_s,
                    room_bytes=2 * size,
                    arguments=laid[0].arguments,
                    outputs=laid[0].outputs,
                    repeats=repeats,
                    following=[other.arguments for other in laid[1:]],
                    launches=launches or [],
                    **({"repeats_limit_s": AWAKE_S} if awake else {}),
                    **({"fresh": [FRESH[job.case.seed % len(FRESH)] for job in jobs]} if on_cpu else {}),
                )
                reply = Ran.of(answer, laid[0].outputs, len(jobs), repeats)
                self._takes |= dict.fromkeys(kinds.values(), True)
                for call, when, size in reply.out_of_order:
                    self.late[jobs[call].key] = Failure(LATE, f"{size} {OUT_OF_ORDER[when]}")
                unlike = self._unlike_first(worker, jobs[0], laid[0], reply, limit_s) if repeats > 1 else []
                if sealable:
                    self._note_launches(jobs, launches)
            except WorkerError as error:
                if sealable and not isinstance(error, WorkerRefused):
                    self._note_launches(jobs, launches)
                _blame_a_full_disk(self.images, size)
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
            kept = set(self._begun.values())
            for laid_out in self.images.iterdir():  # the folder itself stays: the worker may read that one
                if laid_out not in kept:
                    shutil.rmtree(laid_out, ignore_errors=True)
        return Handed(laid[0], reply, time.monotonic() - started, unlike)

    def _folders(self, jobs: Sequence[Job]) -> list[Path]:
        """Where the images of calls are laid out, or soon will be."""
        return [self._begun.get(job.key) or self.images / str(next(self._numbers)) for job in jobs]

    def _begin(self, following: Sequence[Job], now: Sequence[Job]) -> None:
        """Have the judge lay out calls while the worker makes those of `now`, each of which it knows by its key."""
        made = {job.key for job in now}
        jobs = [job for job in following[:AHEAD_MOST] if job.key not in made]
        for job, folder in zip(jobs, self._folders(jobs), strict=True):
            self._begun[job.key] = folder
            self.session.judge.begin_to_lay_out(self.settings.module, job, folder)

    def leave(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _settled(self, worker: Worker, limit_s: float) -> bool:
        """Whether the device can be used on after a call that raised."""
        try:
            worker.request("settle", timeout_s=limit_s)
        except WorkerError:
            return False
        return True

    def refusal(self, job: Job, case: Case, error: WorkerRefused) -> WorkerReplyError:
        """What a refused call amounts to: shapes, data types, options and layouts may be declined, values may not.

        Nor need it take one tensor for two inputs.

        `case` has the call's shape; on usual values it is tried now, unless a call of this kind was made.
        """
        kind = self._kinds.get(job.key)
        if kind is None or job.part == "aliased":  # None: refused by the process that describes calls, without values
            return error
        if kind not in self._takes and case.family != self.selection.family:
            with contextlib.suppress(KernelproofError):
                usual = dataclasses.replace(case, family=self.selection.family)
                self.run([Job(usual)], self.limits.correctness, sealable=False)
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

    def launches(self, jobs: Sequence[Job]) -> list[list[dict[str, Any]]] | None:
        """What calls launch, if they can be made from the cubins alone; else None, and their library makes them.

        The first time, every call that is judged by itself is described, by a process that ends before any is made.
        Raises WorkerRefused for a call that the candidate does not take, and where a call must be sealed and cannot.
        """
        mode = self.session.config.test.sealed
        if not self.variant.sealable or mode == "never" or self.standing.built is None:
            return None
        ahead: list[Job] = []
        if self.sealer is None:
            self.sealer = Sealer(self.session.root, self.variant, self.standing.built)
            ahead = self.selection.judged_jobs()
        missing = {job.key: job for job in [*ahead, *jobs] if not self.sealer.knows(job.key)}
        outlines = {key: self.session.judge.outline(self.settings.module, job) for key, job in missing.items()}
        asked = False

        def describer() -> Worker:
            nonlocal asked
            asked = True
            if self._has_run:
                self.leave()  # who describes has made no call
            return self.ready_worker()

        left = self.sealer.describe(outlines, describer, self.limits.launch)
        if asked:
            self.leave()
        if left and mode == "required":
            key, reason = left[0]
            self.standing.barred = f"test.sealed is required, and {key} cannot be run from the cubin alone: {reason}"
        keys = [job.key for job in jobs]
        if refused := self.standing.barred or self.sealer.refusal(keys):
            raise WorkerRefused(refused)
        return self.sealer.launches(keys)

    def _note_launches(self, jobs: Sequence[Job], launches: list[list[dict[str, Any]]] | None) -> None:
        if self.sealer is not None:
            self.sealer.ran([job.key for job in jobs], sealed=launches is not None)

    def sealed(self, jobs: Sequence[Job]) -> list[Job]:
        """Those that run from the cubins alone, as far as that is known."""
        if self.sealer is None:
            return []
        return [job for job in jobs if self.sealer.knows(job.key) and self.sealer.launches([job.key])]

    def alike_where_asked(self, job: Job) -> bool:
        """Whether a call's repeats differ from it only where the reference demands nothing."""
        return self.session.judge.alike_where_asked(self.settings.module, job, self.terms)

    def judged(self, job: Job, *, count: bool = False, unlike: int | None = None) -> CaseResult:
        """The judge's findings (Judge.judge); `count` adds the errors to the histogram."""
        result, histogram = self.session.judge.judge(self.settings.module, job, self.terms, unlike=unlike, count=count)
        if late := self.late.get(job.key):
            result.status, result.failures = "failed", [late, *result.failures]
        if histogram is not None:
            before = self.histogram.counts if self.histogram else [0] * len(histogram.counts)
            counts = [a + b for a, b in zip(before, histogram.counts, strict=True)]
            self.histogram = Histogram(histogram.edges, counts)
        return result

    @property
    def terms(self) -> Terms:
        """By which its results are judged."""
        variant = self.variant
        return Terms(variant.precision, variant.device, self.session.config.test.tolerance, variant.deterministic)

    def process_ended(self, rung: str, error: KernelproofError, what: str) -> None:
        """Note how a call's process ended, unless memory ran out that the candidate did not take."""
        self.blame_a_lack_of_memory(error, loading=rung == "load")
        self.standing.process_ended(rung, error, what)

    def blame_a_lack_of_memory(self, error: KernelproofError, *, loading: bool = False) -> None:
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
