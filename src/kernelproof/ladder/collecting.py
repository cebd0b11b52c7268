"""The calls of the upper rungs, all made before any of them is judged.

Everything that a rung needs of the candidate is run first, in worker processes; then the worker ends, and only then are
references computed and results judged, in the judge's process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from kernelproof.errors import (
    KernelproofError,
    TestError,
    WorkerError,
    WorkerRefused,
    WorkerReplyError,
    WorkerTimeout,
)
from kernelproof.judging import CHANGED, Job
from kernelproof.ladder.calling import AWAKE, Handed
from kernelproof.ladder.outcomes import DEVICE_FAULT, ENDED, RUNGS, Outcome
from kernelproof.ladder.planning import view_name
from kernelproof.records import Case

if TYPE_CHECKING:
    from kernelproof.ladder.calling import Calls
    from kernelproof.ladder.planning import CallPlan
    from kernelproof.ladder.standing import Standing


class Step(NamedTuple):
    """One request: what its calls are for (a rung, or one of its kinds), and how often the first of them is made."""

    rung: str
    case: Case
    jobs: Sequence[Job]
    limit_s: float
    repeats: int = 1


class Collection:
    """What one variant handed over in the calls of its upper rungs."""

    def __init__(self, plan: CallPlan, standing: Standing, calls: Calls) -> None:
        self.plan = plan
        self.standing = standing
        self.calls = calls
        self.selection, self.settings = plan.selection, plan.settings
        self.limits = standing.limits
        self.duration_s: dict[str, float] = {}  # by rung: seconds that its calls took, refused ones too
        self._handed: dict[tuple[str, str], Handed | KernelproofError] = {}  # by rung and case
        self._refused: dict[tuple[str, str], tuple[Job, WorkerRefused]] = {}  # by rung and case

    def make(self) -> None:
        """Run everything that the upper rungs judge, then end the worker: no reference is made while it lives."""
        self.standing.collected = True
        cases = self.selection
        if cases.has_team:
            self.calls.host(awake=True)  # its imports run beside the calls until it is needed
        steps = self._steps()
        upcoming = next(steps, None)
        while upcoming is not None:
            step, upcoming = upcoming, next(steps, None)
            self._make(step, upcoming.jobs if upcoming else ())
        for place, (job, refused) in self._refused.items():
            if self._handed[place] is refused:
                self._handed[place] = self.calls.refusal(job, job.case, refused)
        self.calls.leave()
        try:
            for awake in (False, True)[: 1 + cases.has_team]:
                self.calls.host(awake=awake).check()
        except WorkerError as error:
            self.standing.ended = self.standing.ended or "crashed"
            self.standing.note("correctness", Outcome("failed", error.message, ENDED), 0.0, "after the last call")

    def _steps(self) -> Iterator[Step]:
        """Everything that the upper rungs judge, in order."""
        cases = self.selection
        for case in cases.asked_for("correctness", cases.cases):
            yield Step("correctness", case, [Job(case)], self.limits.correctness)
        yield from self._views(cases.viewed_cases[:1], "zero-copy")  # now, while a process holds the cubins
        for case in cases.asked_for("properties", cases.property_cases):
            yield self._together(case)
            for view in self.plan.views(case):
                if view.part not in ("zero-copy", "spaced", "neighbour"):
                    yield self._in_view(view)
        # Late, since many are refused: on a GPU that costs the process in which it was, and the next calls leave it.
        yield from self._views(cases.spaced_cases, "spaced")
        yield from self._views(cases.viewed_cases[:1], "neighbour")
        repeated = cases.asked_for("determinism", cases.repeated_cases)
        repeats = [each for case in repeated for each in self.plan.repeats(case)]
        for name, job in sorted(repeats, key=lambda repeat: repeat[1].name):  # a process for each kind
            yield Step(name, job.case, [job], self.limits.determinism, self.plan.calls_each(job.case))

    def _views(self, cases: list[Case], part: str) -> Iterator[Step]:
        """The calls of one kind among those in memory that is laid out in other ways."""
        for case in self.selection.asked_for("properties", cases):
            for view in self.plan.views(case):
                if view.part == part:
                    yield self._in_view(view)

    def _in_view(self, view: Job) -> Step:
        return Step(view_name(view), view.case, [view], self.limits.correctness)

    def _together(self, case: Case, without: Set[str] = frozenset()) -> Step:
        """The calls of a property case, but for those with these keys."""
        jobs = [job for job, _, _ in self.plan.property_jobs(case) if job.key not in without]
        return Step("properties", case, jobs, self.limits.correctness * len(jobs))

    def _make(self, step: Step, following: Sequence[Job]) -> None:
        if step.jobs[0].key in self.plan.begin_anew:
            self.calls.leave()  # what earlier calls left behind may be large enough for all
        if step.rung == "properties":
            self._hold_together(step, following)
        else:
            self._attempt(step, following)

    def _hold_together(self, step: Step, following: Sequence[Job]) -> None:
        """Make the calls of a property case; without those with other scalars, should the candidate refuse these, and
        without those whose changed inputs are none of the operator's, should it raise.
        """
        case, ill_posed = step.case, set[str]()  # keys
        for _ in range(3):
            self._attempt(step, following)
            handed = self._handed.get(("properties", case.id))
            if isinstance(handed, WorkerRefused):
                if not any(relation["other_scalars"] for relation in self.plan.relations(case)):
                    return
                self.plan.scalars_refused[case.id] = f"refused: {handed.message}"
            elif ill_posed or not isinstance(handed, WorkerReplyError) or DEVICE_FAULT in handed.message:
                return
            else:
                ill_posed = self._ill_posed(step.jobs)
                if not ill_posed:
                    return
            step = self._together(case, ill_posed)

    def _ill_posed(self, jobs: Sequence[Job]) -> set[str]:
        """The keys of those whose changed inputs the operator's own reference fails on."""
        self.calls.leave()  # no reference is made while the candidate lives
        judge, module = self.plan.session.judge, self.settings.module
        return {job.key for job in jobs if job.part in CHANGED and judge.ill_posed(module, job, self.calls.terms)}

    def _attempt(self, step: Step, following: Sequence[Job]) -> None:
        """Run the calls of one step, unless the candidate has shown that it cannot go on; keep how it ended."""
        if self.standing.barred:
            return
        started = time.monotonic()
        rung, case = step.rung, step.case
        try:
            sealable = rung in ("correctness", "zero-copy")
            self._handed[rung, case.id] = self.calls.run(
                step.jobs, step.limit_s, step.repeats, sealable=sealable, following=following
            )
        except (WorkerError, TestError) as error:
            self._handed[rung, case.id] = error
            if isinstance(error, WorkerRefused):
                self._refused[rung, case.id] = step.jobs[0], error
            if not (rung == "zero-copy" and isinstance(error, WorkerTimeout)):  # its inputs are slow, not it
                self.calls.process_ended(rung, error, case.id)
        finally:
            whose = rung.partition(" ")[0]
            whose = whose if whose in RUNGS else "properties"
            self.duration_s[whose] = self.duration_s.get(whose, 0.0) + time.monotonic() - started

    def taken(self, rung: str, case: Case) -> Handed:
        """What was handed over in a step; raises what was raised then."""
        handed = self._handed[rung, case.id]
        if isinstance(handed, KernelproofError):
            raise handed
        return handed

    def was_tried(self, rung: str, what: str) -> bool:
        """Whether a step's calls were made, or one of their kinds."""
        return any((name, what) in self._handed for name in (rung, f"{rung} {AWAKE}"))
