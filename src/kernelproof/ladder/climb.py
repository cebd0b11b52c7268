"""The ladder: which of a variant's steps comes after which, and what each of them does.

This process has neither candidates nor references: it draws the seed, keeps the time and writes the verdict.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kernelproof import builds, records, suite
from kernelproof.errors import (
    JudgeError,
    KernelproofError,
    NoSuchEntry,
    RecordError,
    TestError,
    ValuesRefused,
    WorkerConfined,
    WorkerError,
    WorkerRefused,
    WorkerReplyError,
)
from kernelproof.judging import Job
from kernelproof.ladder import outcomes, verdicts
from kernelproof.ladder.calling import Calls
from kernelproof.ladder.collecting import Collection
from kernelproof.ladder.determinism import Determinism
from kernelproof.ladder.examination import Examiner
from kernelproof.ladder.outcomes import COLLECTED, NOTHING_DEMANDED, Outcome
from kernelproof.ladder.planning import CallPlan, view_name
from kernelproof.ladder.properties import Properties
from kernelproof.ladder.selection import RungCases, elements
from kernelproof.ladder.standing import Standing
from kernelproof.records import BuildRecord, Case, CaseResult, FileHash, TestRecord

if TYPE_CHECKING:
    from kernelproof.config import OperatorConfig, VariantConfig
    from kernelproof.ladder.session import Session

SUITE, SEARCH = "all cases together", "the search"
SEARCHED_VIEWS = ("strided", "spaced", "shifted")  # layouts of one case's values


class Ladder:
    """The variants of a session on their way up, one after the other."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.climbs = [Climb(session, variant) for variant in session.variants]
        self._current: Climb | None = None

    def enter(self, climb: Climb) -> None:
        """Tests of `climb` begin: the worker of the variant before it ends."""
        if self._current is not None and self._current is not climb:
            self._current.leave()
        self._current = climb

    def close(self) -> None:
        """End what still runs for a variant."""
        for climb in self.climbs:
            climb.leave()
            climb.examiner.stop()


class Climb:
    """One variant on its way up the ladder, and what was found on each rung."""

    def __init__(self, session: Session, variant: VariantConfig) -> None:
        self.session = session
        self.variant = variant
        self.settings: OperatorConfig = session.config.operator(variant.operator)
        self.limits = session.config.test.time_limit_s
        self.selection = RungCases(session, variant)
        self.standing = Standing(session, variant)
        self.calls = Calls(self.selection, self.standing)
        self.collection = Collection(CallPlan(self.selection, self.calls), self.standing, self.calls)
        self.examiner = Examiner(self.standing, self.calls)
        self._properties = Properties(self.collection, self.standing, self.calls)
        self._determinism = Determinism(self.collection, self.calls)
        self.lacks_entry = False  # what was loaded has no such function

    # --- rungs

    def build(self) -> Outcome:
        """The build stage's record is there and says ok, and the library is the file that it names."""
        return self._step("build", self._build)

    def load(self) -> Outcome:
        """A fresh process loads the variant."""
        return self._step("load", self._load)

    def launch(self) -> Outcome:
        """One call of the smallest case comes back without an error; nothing is judged."""
        if not self.selection.cases:
            self.standing.bar_without_cases(self.selection.left_out)
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
            self.standing.results.append(CaseResult.of(case, "skipped", outcome.message))
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
        return self._step("properties", lambda: self._properties.judge(case), case.id)

    def determinism(self, case: Case | None) -> Outcome:
        """Repeats of one case on the same inputs, under alternating poison, give the same bits."""
        if case is None:
            return self._step("determinism", lambda: "there is no case that it takes")
        return self._step("determinism", lambda: self._determinism.judge(case), case.id)

    def sanitizer(self, tool: str) -> Outcome:
        """One of compute-sanitizer's tools finds nothing in the variant's own kernels."""
        self._make_up_for_lower_rungs("sanitizer")
        if reason := self.examiner.bar_of_tool(tool):
            return self.standing.note("sanitizer", Outcome("skipped", reason), 0.0, tool)
        started = time.monotonic()
        run = next(run for run in self.examiner.found().runs if run.tool == tool)
        message = run.reason or ""
        if run.status == "failed":
            message = "; ".join(failure.message for failure in run.failures)
        outcome = self.standing.note("sanitizer", Outcome(run.status, message), time.monotonic() - started, tool)
        rung = self.standing.rungs["sanitizer"]
        if rung.status == "passed":
            left_out = [run for run in self.examiner.found().runs if run.status == "skipped"]
            rung.message = "; ".join(f"{run.tool} shows nothing: {run.reason}" for run in left_out) or None
        return outcome

    # --- what a rung does: each gives back what is wrong, or None

    def _build(self) -> str | None:
        path = self.session.config.record("build", self.variant.operator, self.variant.name)
        try:
            built = self.standing.built = records.read(path, BuildRecord)
        except RecordError as error:
            if self.variant.abi == "python" and not path.exists():
                return None  # nothing to build
            return f"{error.message} (build it again: {self._build_command()})"
        if built.status != records.OK:
            return (built.compiler_message or built.reason or "no reason given").strip()
        if self.variant.abi == "python":
            return None
        if built.library is not None:
            return self._altered(built.library)
        return "the build's record names no library"

    def _altered(self, file: FileHash) -> str | None:
        why = builds.altered(file, self.session.root)
        return why and f"{why}; build it again: {self._build_command()}"

    def _build_command(self) -> str:
        return self.session.config.command("build", self.variant)

    def _load(self) -> str | None:
        try:
            self.calls.ready_worker()
        except NoSuchEntry:
            self.lacks_entry = True
            raise
        return None

    def _launch(self) -> str | None:
        refused: WorkerRefused | None = None
        self.collection.plan.look_around()
        for case in sorted(self.selection.cases, key=elements):
            self.session.judge.insist_on_declared(self.settings.module, Job(case), self.calls.terms)
            try:
                self.calls.run([Job(case)], self.limits.first_call(self.variant.abi))
                return None
            except WorkerRefused as error:
                refused = error
        if refused:
            raise refused
        return "there is no case that it takes"

    def _sanity(self) -> Outcome | None:
        ran, refused = [], []
        for job, exact in self.selection.sanity_jobs():
            try:
                self.calls.run([job], self.limits.sanity)
                ran.append(job)
            except WorkerRefused as error:
                refused.append((job, exact, error))
        declined = [(job, exact, self.calls.refusal(job, exact, error)) for job, exact, error in refused]
        self.leave()
        wrong = [(job, result) for job in ran if (result := self.calls.judged(job)).status == "failed"]
        for job, exact, refusal in declined:
            if isinstance(refusal, ValuesRefused):
                wrong.append((job, outcomes.not_judged(exact, refusal)))
            else:
                self.standing.results.append(CaseResult.of(exact, "skipped", f"refused: {refusal.message}"))
        self.standing.results += [result for _, result in wrong]
        made = len(ran) + len(refused)
        self.standing.supplied["sanity"] += len(ran)
        if not wrong:
            return None
        job, worst = max(wrong, key=lambda each: outcomes.gravity(each[1].failures, each[1]))
        # An exact call is made for any case of its data type and options.
        told = outcomes.told(worst, job.case.id)
        return dataclasses.replace(
            told, message=f"{len(wrong)} of {made} exact calls are wrong; {worst.id}: {told.message}"
        )

    def _correctness(self, case: Case) -> Outcome | None:
        try:
            handed = self.collection.taken("correctness", case)
        except (WorkerRefused, WorkerConfined):
            raise
        except (WorkerError, TestError) as error:
            self.standing.results.append(outcomes.not_judged(case, error, self._hint(error)))
            raise
        started = time.monotonic()
        result = self.calls.judged(Job(case), count=True)
        result.duration_s = handed.duration_s + time.monotonic() - started
        if result.status == "passed" and result.max_bound_ratio is None:
            return Outcome("skipped", NOTHING_DEMANDED)
        self.standing.results.append(result)
        return outcomes.told(result, case.id) if result.failures else None

    def _suite(self) -> Outcome | str | None:
        results = [*self.selection.left_out, *self.standing.results]
        if all(result.status == "skipped" for result in results):
            return Outcome("skipped", "no case was judged")
        return outcomes.listed(suite.findings(results, self.session.config.test.tolerance))

    def _deep(self) -> Outcome | None:
        from kernelproof.ladder import deep

        families = self.session.families(self.variant)
        found = deep.search(self.settings, self.variant, families, self._try)
        self.standing.searched = found.examples
        if found.failure is None:
            return None
        self.standing.results.append(found.failure)
        told = outcomes.told(found.failure, found.failure.id)
        return dataclasses.replace(told, message=f"{found.failure.id}: {told.message}")

    def _try(self, case: Case, layout: int) -> CaseResult | None:
        """Run and judge a case by itself; None when it is refused, by the operator or by the candidate."""
        drawn = dataclasses.replace(self.settings, shapes={case.shape: case.dims})
        judge, module = self.session.judge, self.settings.module
        if judge.declared(drawn).refused:
            return None
        views = [view for view in judge.views(module, case) if view.part in SEARCHED_VIEWS] if layout else []
        job = views[layout % len(views)] if views else Job(case)
        try:
            self.calls.run([job], self.limits.correctness, sealable=not views)
        except WorkerRefused as error:
            refusal = error if views else self.calls.refusal(job, case, error)
            return outcomes.not_judged(case, refusal) if isinstance(refusal, ValuesRefused) else None
        except WorkerConfined:
            raise
        except (WorkerError, TestError) as error:
            self.calls.blame_a_lack_of_memory(error)
            if views and isinstance(error, WorkerReplyError) and outcomes.DEVICE_FAULT not in error.message:
                return None
            return self._laid_out(outcomes.not_judged(case, error, self._hint(error)), job)
        finally:
            self.leave()
        result = self._laid_out(self.calls.judged(job), job)
        judge.forget(module)
        return result

    def _laid_out(self, result: CaseResult, job: Job) -> CaseResult:
        """A result, whose failures say in which layout they came."""
        if job.part != "case":
            for failure in result.failures:
                failure.message = f"laid out in another way ({view_name(job)}): {failure.message}"
        return result

    def _hint(self, error: KernelproofError) -> str:
        dims = list(dict.fromkeys(name for shape in self.settings.shapes.values() for name in shape))
        undeclared = outcomes.undeclared(error, self.variant.abi, dims, self.settings.test.options)
        return undeclared or outcomes.mismatched(error, self.variant.abi)

    # --- from one step to the next

    def _step(self, rung: str, action: Callable[[], Outcome | str | None], what: str = "") -> Outcome:
        """Do one step of a rung, unless something below bars the way; note how it ended."""
        if rung != "build":
            self._make_up_for_lower_rungs(rung)
        reason = self.standing.bar(rung)
        if reason is None and rung in COLLECTED:
            self._collect()
            # What was handed over before the candidate showed that it cannot go on is judged all the same.
            reason = None if self.collection.was_tried(rung, what) else self.standing.barred
        if reason:
            return self.standing.note(rung, Outcome("skipped", reason), 0.0, what)
        started = time.monotonic()
        try:
            wrong = action()
        except WorkerRefused as error:
            refused = Outcome("skipped", f"refused: {error.message}")
            return self.standing.note(rung, refused, time.monotonic() - started, what)
        except (WorkerError, TestError) as error:
            if rung == "load":
                words = outcomes.words(error, "while it was loaded")
            else:
                words = outcomes.words(error) + self._hint(error)
            wrong = Outcome("failed", words, outcomes.gravity_of(error), what)
            if rung in ("launch", "sanity") and self.calls.called:
                wrong, what = dataclasses.replace(wrong, case=self.calls.called.case.id), self.calls.called.key
            if not self.collection.was_tried(rung, what):
                self.calls.process_ended(rung, error, what)
            if isinstance(error, WorkerConfined):
                wrong = Outcome("skipped", self.standing.barred or error.message)
        if isinstance(wrong, str):
            wrong = Outcome("failed", wrong, case="" if what in (SUITE, SEARCH) else what)
        outcome = wrong or Outcome("passed")
        told = outcome.case if rung == "properties" and outcome.case else what  # it may be another's that lies there
        return self.standing.note(rung, outcome, time.monotonic() - started, told)

    def _collect(self) -> None:
        """Have the calls of the upper rungs made, once, and the tools of the last rung started."""
        if not self.standing.collected:
            self.collection.make()
            self.examiner.start()

    def _make_up_for_lower_rungs(self, rung: str) -> None:
        """Run by hand with -k, a test may come without those that it rests on."""
        if "build" not in self.standing.rungs:
            self.build()
        if rung != "load" and "load" not in self.standing.rungs:
            self.load()

    def leave(self) -> None:
        """End the worker."""
        self.calls.leave()

    def finish(self) -> None:
        """End the worker and the tools, and have the judge forget the variant's calls."""
        self.leave()
        self.examiner.stop()
        if self.calls.called or self.examiner.examined is not None:
            with contextlib.suppress(JudgeError):  # one that has died was told of by then
                self.session.judge.forget(self.settings.module)

    # --- what it amounts to

    def record(self) -> TestRecord:
        """The variant's record, as far as it came."""
        self._look_at_library_again()
        return verdicts.record(self.standing, self.calls, self.collection, self.examiner.examined)

    def _look_at_library_again(self) -> None:
        """What was tested must still be what lies there: a candidate could have replaced its own library."""
        loaded, built = self.standing.rungs.get("load"), self.standing.built
        if loaded is None or loaded.status == "skipped" or built is None or built.library is None:
            return
        if self._altered(built.library):
            message = f"{built.library.path} was changed or removed while the candidate ran"
            self.standing.note("determinism", Outcome("failed", message), 0.0, "its library")
