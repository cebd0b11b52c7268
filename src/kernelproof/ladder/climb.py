"""What each rung of the ladder does, and what a variant's way up it amounts to.

The candidate runs in worker processes; the reference is computed here, from the seed, and never leaves this process.
torch takes two seconds to import, so it is imported when a result must first be judged, while the worker host starts,
and not at all for a variant that cannot run on this machine.
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
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof import records
from kernelproof.cases import select_cases
from kernelproof.errors import (
    KernelproofError,
    RecordError,
    TestError,
    WorkerCrashed,
    WorkerError,
    WorkerRefused,
    WorkerReplyError,
    WorkerTimeout,
    describe_exit,
)
from kernelproof.records import BuildRecord, Case, CaseResult, Failure, FileHash, Rung, TestRecord

if TYPE_CHECKING:
    from kernelproof.config import Config, OperatorConfig, VariantConfig
    from kernelproof.images import Layout, Returned
    from kernelproof.judge import ErrorHistogram
    from kernelproof.operators import Call, Operator, Reference
    from kernelproof.sandbox import Isolation
    from kernelproof.supervisor import Worker, WorkerHost

RUNGS = ("build", "load", "launch", "sanity", "correctness", "determinism")
CRASHES_ALLOWED = 2  # after that many the remaining cases are not run
REPEATED_CASES = 3
THREADS = 4  # of a CPU candidate: enough for races to show, few enough for tests to run beside each other
CPU_REPEATED_ELEMENTS = 40_000  # product of the dimensions: a hundred calls of a naive CPU kernel take a second or two
SPACE_BYTES = 1 << 20  # with less than this free, besides its results, a worker's failure proves nothing
REFERENCES_KEPT_BYTES = 512 << 20


@dataclass(frozen=True)
class Outcome:
    """How one step ended: `passed`, `failed` or `skipped`, and why."""

    status: str
    message: str = ""


class Resources:
    """What every variant that one process tests can share: worker hosts, operators, references, the fresh seed."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        # Drawn after the build, so that no kernel can have been made for it.
        self.fresh_seed = int.from_bytes(os.urandom(4), "little") >> 1
        self._hosts: dict[tuple[bool, int], WorkerHost] = {}
        self._operators: dict[tuple[str, Path], Operator] = {}
        self._prepared: dict[str, tuple[Call, Reference, int]] = {}

    def host(self, variant: VariantConfig, threads: int) -> WorkerHost:
        """A warm worker host with what the variant needs; the first call starts it, and does not wait."""
        from kernelproof.loading import needs_torch
        from kernelproof.supervisor import WorkerHost

        with_torch = needs_torch(variant.abi, variant.device, variant.dtypes)
        if (with_torch, threads) not in self._hosts:
            scratch = self.scratch / f"host-{len(self._hosts)}"
            scratch.mkdir(parents=True, exist_ok=True)
            self._hosts[with_torch, threads] = WorkerHost(
                device=variant.device, needs_torch=with_torch, scratch=scratch, threads=threads, private=[self.scratch]
            )
        return self._hosts[with_torch, threads]

    def operator(self, module: str, root: Path) -> Operator:
        """An operator's module (imports torch)."""
        if (module, root) not in self._operators:
            from kernelproof import operators

            self._operators[module, root] = operators.load(module, root)
        return self._operators[module, root]

    def prepare(self, operator: Operator, variant: VariantConfig, case: Case) -> tuple[Call, Reference]:
        """Inputs and reference of a case; kept, since the variants and baselines of an operator share them.

        The reference of a CUDA variant is computed on the GPU, in float64 there as well.
        """
        from kernelproof import judge

        precision = judge.resolved(variant.precision, case.dtype)
        key = repr((id(operator), case, dataclasses.astuple(precision), variant.device))
        if key not in self._prepared:
            call = operator.make_call(case, judge.generator(case))
            reference = operator.reference(call, precision, variant.device)
            size = sum(tensor.nbytes for tensor in (*call.tensors.values(), reference.output, reference.bound))
            while self._prepared and size + sum(kept for _, _, kept in self._prepared.values()) > REFERENCES_KEPT_BYTES:
                self._prepared.pop(next(iter(self._prepared)))
            self._prepared[key] = (call, reference, size)
        call, reference, _ = self._prepared[key]
        return call, reference

    def close(self) -> None:
        """End every host, and with them every worker."""
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()


class Session:
    """One run of the ladder: the configuration and the variants that climb."""

    def __init__(self, config: Config, variants: list[VariantConfig], resources: Resources) -> None:
        self.config = config
        self.resources = resources
        self.root = config.root.resolve()
        self.climbs = [Climb(self, variant) for variant in variants]
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

    def host(self, variant: VariantConfig) -> WorkerHost:
        """The worker host for a variant, started if it is not."""
        cores = len(os.sched_getaffinity(0))
        return self.resources.host(variant, min(THREADS, cores, self.config.bench.cpu_threads or cores))

    def operator(self, variant: VariantConfig) -> Operator:
        """The variant's operator (imports torch)."""
        return self.resources.operator(self.config.operator(variant.operator).module, self.root)

    def prepare(self, variant: VariantConfig, case: Case) -> tuple[Call, Reference]:
        """Inputs and reference of a case."""
        return self.resources.prepare(self.operator(variant), variant, case)

    def start(self) -> None:
        """Start the hosts that will be needed, so that their imports run beside ours."""
        for climb in self.climbs:
            if climb.variant.device == "cpu" or self.gpu[0]:
                self.host(climb.variant)

    def enter(self, climb: Climb) -> None:
        """Tests of `climb` begin: the worker of the variant before it ends."""
        if self._current is not None and self._current is not climb:
            self._current.leave()
        self._current = climb

    def close(self) -> None:
        """End the worker that still runs."""
        if self._current is not None:
            self._current.leave()


class Climb:
    """One variant on its way up the ladder, and what was found on each rung."""

    def __init__(self, session: Session, variant: VariantConfig) -> None:
        self.session = session
        self.variant = variant
        self.settings: OperatorConfig = session.config.operator(variant.operator)
        self.limits = session.config.test.time_limit_s
        self.log = session.resources.scratch / f"{variant.operator}-{variant.name}.log"
        self.rungs: dict[str, Rung] = {}
        self.results: list[CaseResult] = []
        self.histogram: ErrorHistogram | None = None
        self.built: BuildRecord | None = None
        self.ended: str | None = None  # crashed, hung: decided by how the process ended and not by a result
        self.barred: str | None = None  # why nothing more is run
        self.not_run = False  # barred through no fault of the variant
        self.crashes = 0
        self.isolation: Isolation | None = None  # of its workers, the least of what they achieved
        self._worker: Worker | None = None
        self._images = session.resources.scratch / f"{variant.operator}-{variant.name}"

    @functools.cached_property
    def cases(self) -> list[Case]:
        """What it is tested on; nothing where it cannot run. Cases that it declares not to take become results."""
        if self._bar_of_device():
            return []
        session = self.session
        seeds = [*session.config.test.seeds, session.resources.fresh_seed]
        selection = select_cases(self.settings, self.variant, seeds=seeds, root=session.root)
        self.results += [_skipped(left_out.case, left_out.reason) for left_out in selection.skipped]
        return _with_fresh_seed(selection.cases, self.settings.profile.shape, session.resources.fresh_seed)

    @functools.cached_property
    def repeated_cases(self) -> list[Case]:
        """Those of the cases that are repeated."""
        return _repeated(self.cases, self.settings, self.variant.device) if self.cases else []

    # --- rungs

    def build(self) -> Outcome:
        """The build stage's record is there and says ok, and the library is the file that it names."""
        return self._step("build", self._build)

    def load(self) -> Outcome:
        """A fresh process loads the variant."""
        return self._step("load", self._load)

    def launch(self) -> Outcome:
        """One call of the smallest case comes back without an error; nothing is judged."""
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
            self.results.append(_skipped(case, outcome.message))
        return outcome

    def suite(self) -> Outcome:
        """What only shows over all cases together."""
        return self._step("correctness", self._suite, "all cases together")

    def determinism(self, case: Case | None) -> Outcome:
        """Repeats of one case on the same inputs, under alternating poison, give the same bits."""
        if case is None:
            return self._step("determinism", lambda: "there is no case that it takes")
        return self._step("determinism", lambda: self._determinism(case), case.id)

    # --- what a rung does: each gives back what is wrong, or None

    def _build(self) -> str | None:
        path = self.session.config.record("build", self.variant.operator, self.variant.name)
        try:
            self.built = records.read(path, BuildRecord)
        except RecordError as error:
            if self.variant.abi == "python" and not path.exists():
                return None  # nothing to build
            hint = f"kernelproof build --operator {self.variant.operator} --variant {self.variant.name}"
            return f"{error.message} (make it with: {hint})"
        if self.built.status != records.OK:
            first = (self.built.compiler_message or self.built.reason or "no reason given").strip()
            return f"it did not build: {first}"
        if self.built.library is not None:
            return self._altered(self.built.library)
        return None if self.variant.abi == "python" else "the build's record names no library"

    def _altered(self, library: FileHash) -> str | None:
        path = self.session.root / library.path
        if not path.is_file():
            return f"{library.path} is gone; build it again"
        if records.sha256_file(path) != library.sha256:
            return f"{library.path} is not the file that the build made (its SHA-256 differs); build it again"
        return None

    def _load(self) -> str | None:
        self.session.host(self.variant)
        self.session.operator(self.variant)  # imports torch, while the host's process does its own imports
        self._ready_worker()
        return None

    def _launch(self) -> str | None:
        refused: WorkerRefused | None = None
        for case in sorted(self.cases, key=_elements):
            call, _ = self.session.prepare(self.variant, case)
            try:
                self._run(call, self.limits.launch)
                return None
            except WorkerRefused as error:
                refused = error
        if refused:
            raise refused
        return "there is no case that it takes"

    def _sanity(self) -> str | None:
        from kernelproof import judge

        operator, wrong, count = self.session.operator(self.variant), [], 0
        for case in _distinct(self.cases):
            for exact in operator.sanity_calls(case, judge.generator(case)):
                try:
                    returned, _ = self._run(exact.call, self.limits.sanity)
                except WorkerRefused:
                    continue
                count += 1
                result = judge.judge(
                    exact.case,
                    exact.call,
                    exact.reference,
                    returned,
                    self.session.config.test.tolerance,
                    operator=operator,
                )
                if result.status == "failed":
                    wrong.append(result)
        self.results += wrong
        return f"{len(wrong)} of {count} exact calls are wrong; {_first_failure(wrong[0])}" if wrong else None

    def _correctness(self, case: Case) -> str | None:
        from kernelproof import judge

        self.histogram = self.histogram or judge.ErrorHistogram()
        started = time.monotonic()
        call, reference = self.session.prepare(self.variant, case)
        try:
            returned, _ = self._run(call, self.limits.correctness)
        except WorkerRefused:
            raise
        except (WorkerError, TestError) as error:
            result = _skipped(case, "")
            result.status, result.reason = "failed", None
            result.failures = [Failure(_kind(error), _words(error))]
            self.results.append(result)
            raise
        result = judge.judge(
            case,
            call,
            reference,
            returned,
            self.session.config.test.tolerance,
            operator=self.session.operator(self.variant),
            histogram=self.histogram,
        )
        result.duration_s = time.monotonic() - started
        self.results.append(result)
        return "; ".join(f"{f.criterion}: {f.message}" for f in result.failures) or None

    def _suite(self) -> str | None:
        from kernelproof import judge

        found = judge.suite_findings(self.results, self.session.config.test.tolerance)
        return "; ".join(f"{f.criterion}: {f.message}" for f in found) or None

    def _determinism(self, case: Case) -> str | None:
        trials = self.session.config.test.trials
        call, _ = self.session.prepare(self.variant, case)
        _, reply = self._run(call, self.limits.determinism, trials)
        if not reply["differing"]:
            return None
        import numpy as np

        repeat, place = reply["first_difference"]
        shape = tuple(call.output.shape)
        index = [int(i) for i in np.unravel_index(place, shape)]
        return (
            f"{reply['differing']} of {trials - 1} repeats gave other bits than the first call, the first of them "
            f"repeat {repeat} at element {index} of {list(shape)}: a race, a missing barrier, or "
            "memory that is read before it is written"
        )

    # --- running

    def _ready_worker(self) -> Worker:
        """A live worker that has loaded the variant."""
        if self._worker is None or not self._worker.alive:
            self._images.mkdir(exist_ok=True)
            self._worker = self.session.host(self.variant).spawn(self.log, readable=[self._images])
            achieved = self._worker.isolation
            if self.isolation is None or len(achieved.refused) < len(self.isolation.refused):
                self.isolation = achieved
            library = self.built.library if self.built else None
            candidate = {
                "abi": self.variant.abi,
                "device": self.variant.device,
                "passing": self.variant.passing,
                "entry": self.variant.entry,
                "library": str(self.session.root / library.path) if library else None,
                "root": str(self.session.root),
            }
            self._worker.request("load", timeout_s=self.limits.load, candidate=candidate)
        return self._worker

    def _run(self, call: Call, limit_s: float, repeats: int = 1) -> tuple[Returned, dict[str, Any]]:
        """One request to the worker; what it handed over, and its answer."""
        from kernelproof import images

        worker = self._ready_worker()
        layout = images.layout_images(call, self._images)
        try:
            reply = worker.request(
                "run",
                timeout_s=limit_s,
                room_bytes=sum(len(image.raw) for image in layout.images.values()),
                arguments=layout.spec,
                outputs=list(call.outputs),
                repeats=repeats,
            )
        except WorkerError as error:
            _blame_a_full_disk(self._images, layout)
            if self.variant.device == "cuda" and isinstance(error, WorkerReplyError):
                self.leave()  # an error can leave the whole CUDA context unusable
            raise
        try:
            return images.read_back(layout, worker.scratch), reply
        finally:
            worker.clear()

    def leave(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _step(self, rung: str, action: Callable[[], str | None], what: str = "") -> Outcome:
        """Do one step of a rung, unless something below bars the way; note how it ended."""
        if rung != "build":
            self._make_up_for_lower_rungs(rung)
        if reason := self._bar(rung):
            return self._note(rung, Outcome("skipped", reason), 0.0, what)
        started = time.monotonic()
        try:
            wrong = action()
        except WorkerRefused as error:
            return self._note(rung, Outcome("skipped", f"refused: {error.message}"), time.monotonic() - started, what)
        except (WorkerError, TestError) as error:
            wrong = _words(error, "while it was loaded" if rung == "load" else "in the middle of a call")
            self._process_ended(rung, error, what)
        outcome = Outcome("failed", wrong) if wrong else Outcome("passed")
        return self._note(rung, outcome, time.monotonic() - started, what)

    def _make_up_for_lower_rungs(self, rung: str) -> None:
        """Run by hand with -k, a test may come without those that it rests on."""
        if "build" not in self.rungs:
            self.build()
        if rung != "load" and "load" not in self.rungs:
            self.load()

    def _bar(self, rung: str) -> str | None:
        """Why a step is not to be run: no device, a process that crashed or hung, or a lower rung that failed."""
        if reason := self.barred or (self._bar_of_build() if rung == "build" else self._bar_of_device()):
            return reason
        for lower in RUNGS[: RUNGS.index(rung)]:
            # After wrong results determinism is worth knowing: wrong in another way each time is a race.
            if (lower, rung) == ("correctness", "determinism"):
                continue
            if lower in self.rungs and self.rungs[lower].status == "failed":
                return f"the {lower} rung failed"
        return None

    def _bar_of_build(self) -> str | None:
        """What could not be built for want of a tool is not a variant that failed to build."""
        with contextlib.suppress(RecordError):
            built = records.read(
                self.session.config.record("build", self.variant.operator, self.variant.name), BuildRecord
            )
            if built.status == records.NOT_RUN:
                self.barred = f"it was not built: {built.reason}"
        return self.barred

    def _bar_of_device(self) -> str | None:
        if self.variant.device == "cuda":
            present, why = self.session.gpu
            if not present:
                self.not_run = True
                return f"no usable GPU here ({why})"
        return None

    def _process_ended(self, rung: str, error: KernelproofError, what: str) -> None:
        """A hang bars the rest at once, a crash after a few: a fresh process goes on with the other cases."""
        where = f"{rung} ({what})" if what else rung
        if isinstance(error, WorkerTimeout):
            self.ended = self.ended or "hung"
            self.barred = f"the variant hung in {where}"
        elif not isinstance(error, (WorkerReplyError, TestError)):
            self.ended = self.ended or "crashed"
            self.crashes += 1
            if self.crashes > CRASHES_ALLOWED:
                self.barred = f"the variant crashed {self.crashes} times, the last time in {where}"

    def _note(self, name: str, outcome: Outcome, duration_s: float, what: str) -> Outcome:
        """Fold a step into its rung: failed if one failed, skipped if all were; the message is the first failure's."""
        rung = self.rungs.get(name)
        if rung is None:
            rung = self.rungs[name] = Rung(name, "skipped")
        rung.duration_s += duration_s
        message = f"{what}: {outcome.message}" if what and outcome.status == "failed" else outcome.message
        severity = ("skipped", "passed", "failed").index
        if severity(outcome.status) > severity(rung.status):
            rung.status, rung.message = outcome.status, message or None
        elif rung.status == "skipped":
            rung.message = rung.message or message
        return outcome

    # --- what it amounts to

    def record(self) -> TestRecord:
        """The variant's record, as far as it came."""
        self._look_at_library_again()
        rungs = [self.rungs.get(name) or Rung(name, "skipped", 0.0, "it was not reached") for name in RUNGS]
        verdict = self._verdict(rungs)
        record = TestRecord(
            operator=self.variant.operator,
            variant=self.variant.name,
            role=self.variant.role,
            device=self.variant.device,
            trust=self.variant.trust,
            verdict=verdict,
            rungs=rungs,
            cases=self.results,
            trials=self.session.config.test.trials,
            fresh_seed=self.session.resources.fresh_seed,
            build_signature=self.built.signature if self.built else None,
        )
        if self.isolation is not None:
            record.isolation, record.refused = self.isolation.level, self.isolation.refused
        if self.histogram is not None:
            from kernelproof import judge

            record.error_histogram = self.histogram.record()
            record.bias_suite, record.bias_suite_ratio = judge.suite_bias(
                self.results, self.session.config.test.tolerance
            )
        if verdict == "not_run":
            record.status, record.reason = (
                records.NOT_RUN,
                self._bar("determinism") or "the ladder was not climbed to its end",
            )
            record.remedy = (
                "run on a machine with an NVIDIA GPU, its driver, and a torch built for CUDA" if self.not_run else None
            )
        elif verdict != "correct":
            failed = next(rung for rung in rungs if rung.status == "failed")
            record.status, record.reason = records.FAILED, f"{failed.name}: {failed.message}"
        return record

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
        tested = {result.id for result in self.results}
        whole = all(rung.status == "passed" for rung in rungs) and all(case.id in tested for case in self.cases)
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


def _elements(case: Case) -> int:
    """The product of the dimensions: not the cost, but it grows with it."""
    return math.prod(case.dims.values())


def _distinct(cases: list[Case]) -> list[Case]:
    """One case for each data type and combination of options."""
    return list({(c.dtype, json.dumps(c.options)): c for c in reversed(cases)}.values())[::-1]


def _skipped(case: Case, reason: str) -> CaseResult:
    return CaseResult(
        case.id,
        case.shape,
        dict(case.dims),
        dict(case.options),
        case.dtype,
        case.family,
        case.seed,
        "skipped",
        reason=reason,
    )


def _version(package: str) -> str:
    """A package's version without importing it; empty when it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _blame_a_full_disk(folder: Path, layout: Layout) -> None:
    """Raises OSError when a worker may have failed because its results or its log found no space: nobody is judged."""
    space = os.statvfs(folder)
    if space.f_bavail * space.f_frsize < SPACE_BYTES + sum(len(image.raw) for image in layout.images.values()):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


# --- words ------------------------------------------------------------------------------------------------------------


def _kind(error: KernelproofError) -> str:
    if isinstance(error, WorkerTimeout):
        return "hang"
    return "error" if isinstance(error, (WorkerReplyError, TestError)) else "crash"


def _words(error: KernelproofError, when: str = "in the middle of a call") -> str:
    if isinstance(error, WorkerCrashed):
        if error.exit_code >= 0:
            return f"the candidate ended the process with exit code {error.exit_code} {when}"
        return f"the process {describe_exit(error.exit_code)} {when}"
    if isinstance(error, WorkerTimeout):
        return f"it hung: no answer within {error.limit_s:g} s"
    return f"{error.subject}: {error.message}" if error.subject else error.message


def _first_failure(result: CaseResult) -> str:
    return f"{result.id}: " + "; ".join(f"{f.criterion}: {f.message}" for f in result.failures)
