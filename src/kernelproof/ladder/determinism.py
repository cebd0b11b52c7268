"""The determinism rung: repeats of a case give the same bits, or right ones where the variant promises no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelproof.judging import Job
from kernelproof.ladder import outcomes
from kernelproof.ladder.calling import AWAKE
from kernelproof.records import Case

if TYPE_CHECKING:
    from kernelproof.ladder.calling import Calls, Handed
    from kernelproof.ladder.collecting import Collection

IN_ANY_ORDER = (
    "those that were looked at are within their bounds: a kernel that may add in any order says so by "
    "`deterministic: false`"
)


class Determinism:
    """The repeats of one variant, judged on the calls that were collected."""

    def __init__(self, collection: Collection, calls: Calls) -> None:
        self.collection = collection
        self.calls = calls

    def judge(self, case: Case) -> str | None:
        """What is wrong with the repeats of a case; None when nothing is."""
        for step, job in self.collection.plan.repeats(case):
            if wrong := self._differing(step, job):
                return f"{wrong} (its idle threads spin)" if job.name == AWAKE else wrong
        return None

    def _differing(self, step: str, job: Job) -> str | None:
        handed = self.collection.taken(step, job.case)
        reply = handed.reply
        if late := self.calls.late.get(job.key):
            return outcomes.listed([late])
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
        wrong = self._first_wrong(job, handed)
        if self.calls.variant.deterministic:
            if not wrong and handed.unlike and self.calls.alike_where_asked(job):
                return None
            cause = "a race, a missing barrier, an output that is not written, or memory that is read before it is"
            if not wrong:
                cause += f", or another way of computing after some calls; {IN_ANY_ORDER}"
            return f"{found}: {cause}"
        return wrong and f"{found}, and {wrong}"

    def _first_wrong(self, job: Job, handed: Handed) -> str | None:
        """Of the repeats with other bits that were handed over the first that is wrong, and how; None if none is."""
        if wrong := outcomes.listed(self.calls.judged(job).failures):
            return f"that one is wrong: {wrong}"
        for number, (repeat, *_) in enumerate(handed.unlike):
            if wrong := outcomes.listed(self.calls.judged(job, unlike=number).failures):
                return f"of those that were looked at repeat {repeat} is wrong: {wrong}"
        return None
