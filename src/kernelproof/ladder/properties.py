"""The properties rung: what the operator promises between calls holds, however memory is laid out and used again."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kernelproof import formats
from kernelproof.edits import OF_NUMBERS
from kernelproof.errors import TestError, WorkerError, WorkerRefused, WorkerReplyError, WorkerTimeout
from kernelproof.judging import CHANGED, DOUBTFUL, Job
from kernelproof.ladder import outcomes
from kernelproof.ladder.outcomes import DEVICE_FAULT, NO_GRAVITY, Outcome
from kernelproof.ladder.planning import PARTS, SIDES, view_name
from kernelproof.records import BIAS, RMS, Case, Failure, PropertyResult

if TYPE_CHECKING:
    from kernelproof.ladder.calling import Calls
    from kernelproof.ladder.collecting import Collection
    from kernelproof.ladder.standing import Standing


class Properties:
    """The properties of one variant, judged on the calls that were collected."""

    def __init__(self, collection: Collection, standing: Standing, calls: Calls) -> None:
        self.collection = collection
        self.plan = collection.plan
        self.standing = standing
        self.calls = calls
        self.session, self.settings = calls.session, calls.settings

    def judge(self, case: Case) -> Outcome | None:
        """What is wrong of the properties that were tried on a case; None when all hold."""
        self.collection.taken("properties", case)
        wrong: list[tuple[str, Outcome]] = []  # names, and what is wrong
        usual = case.family == self.plan.selection.family
        self.standing.supplied["properties"] += len(self.plan.relations(case)) if usual else 0
        for job, name, claim in self.plan.property_jobs(case):
            ill_posed = self.session.judge.ill_posed
            if job.part in CHANGED and (why := ill_posed(self.settings.module, job, self.calls.terms)):
                self.standing.properties_found.append(PropertyResult(name, claim, case.id, "skipped", why))
                continue
            result = self.calls.judged(job)
            of_family = job.part not in ("relation", "mixed", *OF_NUMBERS) and usual
            failures = result.failures if of_family else _of_any_inputs(result.failures)
            if job.part == "relation":
                related = self.session.judge.related(self.settings.module, job, self.calls.terms)
                failures += [related] if related else []
            message = outcomes.listed(failures)
            status = "failed" if message else "passed"
            self.standing.properties_found.append(PropertyResult(name, claim, case.id, status, message))
            if message:
                gravity = outcomes.gravity(failures, result)
                wrong.append((name, Outcome("failed", f"{name} (expected: {claim}): {message}", gravity, case.id)))
        self.standing.properties_found += [
            PropertyResult(*PARTS[part], case.id, "skipped", why)
            for part, why in self.plan.left_out(case).items()
            if why
        ]
        if refused := self.plan.scalars_refused.get(case.id):
            for relation in self.plan.relations(case):
                if relation["other_scalars"]:
                    skipped = PropertyResult(relation["name"], relation["claim"], case.id, "skipped", refused)
                    self.standing.properties_found.append(skipped)
        for view in self.plan.views(case):
            wrong += self._viewed(view) if self.collection.was_tried(view_name(view), view.case.id) else []
        if not wrong:
            return None
        # Of several of one kind the first, which is the plainest, however far off others are.
        its_name, told = max(wrong, key=lambda each: each[1].gravity[0])
        others = ", ".join(dict.fromkeys(name for name, _ in wrong if name != its_name))
        message = told.message + (f"; also wrong: {others}" if others else "")
        return dataclasses.replace(told, message=message, gravity=(told.gravity[0], 0.0))

    def _viewed(self, view: Job) -> list[tuple[str, Outcome]]:
        """A candidate handles memory that is laid out in another way, or refuses it in words before it computes."""
        name, case, gravity = view_name(view), view.case, NO_GRAVITY
        if view.part == "fenced":
            claim = f"with no memory {SIDES[view.name]} any tensor the result is right: nothing there is touched"
        elif view.part == "zeroed":
            claim = "with outputs that hold zeros before the call the result is right: none is taken for one"
        elif view.part == "zero-copy":
            claim = (
                "with inputs in the host's memory, which arrive slowly, the result is right: every copy is waited for"
            )
        elif view.part == "neighbour":
            claim = (
                f"right in one process with calls of other sizes, one dimension {view.name}: what is kept goes by all "
                "sizes (unless a call of this size is wrong alone; sizes that do not go together `cost` refuses)"
            )
        elif view.part == "shifted":
            where = f"with {view.name} alone" if view.name else "in memory that begins"
            claim = f"{where} one element off its boundary the result is right, or refused"
        elif view.part == "spaced":
            claim = (
                f"with elements of {view.name} alone two apart (its last stride is 2) the result is right, or refused"
            )
        elif view.part == "aliased":
            claim = f"with one tensor for {formats.listed(view.name.split('+'))} the result is right, or refused"
        else:
            where = (
                f"rows of {view.name} alone that begin on no boundary" if view.name else "strides of every tensor's own"
            )
            claim = f"with {where} the result is right, or refused"
        judge = self.session.judge
        if view.part in DOUBTFUL and (why := judge.ill_posed(self.settings.module, view, self.calls.terms)):
            self.standing.properties_found.append(PropertyResult(name, claim, case.id, "skipped", why))
            return []
        try:
            self.collection.taken(name, case)
            result = self.calls.judged(view)
            failures = _of_any_inputs(result.failures) if view.part == "aliased" else result.failures
            status, message = "passed", outcomes.listed(failures)
            gravity = outcomes.gravity(failures, result)
        except WorkerRefused as error:
            status, message = "skipped", f"refused: {error.message}"
        except WorkerReplyError as error:
            refused = DEVICE_FAULT not in error.message
            status, message = ("skipped", f"refused: {error.message}") if refused else ("failed", outcomes.words(error))
            gravity = outcomes.gravity_of(error)
        except (WorkerError, TestError) as error:
            slow = view.part == "zero-copy" and isinstance(error, WorkerTimeout)
            status, message = "skipped" if slow else "failed", outcomes.words(error)
            gravity = outcomes.gravity_of(error)
        status = "failed" if message and status == "passed" else status
        self.standing.properties_found.append(PropertyResult(name, claim, case.id, status, message))
        told = Outcome("failed", f"{name} (expected: {claim}): {message}", gravity, case.id)
        return [(name, told)] if status == "failed" else []


def _of_any_inputs(failures: list[Failure]) -> list[Failure]:
    """Without noise and bias, which were calibrated on the input families: a relation's inputs are none of them, nor is
    one tensor for several, nor numbers with other exponents, nor rows of two families, nor parts of a family's.
    """
    return [failure for failure in failures if failure.criterion not in (RMS, BIAS)]
