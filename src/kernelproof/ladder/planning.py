"""Which calls the upper rungs make of a case: those of the properties, of other layouts, of repeats."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kernelproof.edits import ASIDE, EDITS, OF_NUMBERS, ONCE_EACH, turn_of
from kernelproof.judging import Job
from kernelproof.ladder.calling import AWAKE
from kernelproof.ladder.selection import CPU_REPEATED_ELEMENTS, elements
from kernelproof.records import Case

if TYPE_CHECKING:
    from kernelproof.ladder.calling import Calls
    from kernelproof.ladder.selection import RungCases

PARTS = {  # of the inputs, by the job's: a property's name and claim
    "low": ("new low bits", "other low bits of every number change the result"),
    "element": ("one new value", "another value of a single element of an input changes the result"),
    "exchange": ("two exchanged", "two values of a row, or two rows, of an input that change places change the result"),
    "end": ("new last value", "another value of the last element of an input changes the result"),
    "tail": ("new last values", "other values in the last quarter of each input change the result"),
    "later": ("new later halves", "other values in the later half of every row change the result"),
    "earlier": ("new earlier halves", "other values in the earlier half of every row change the result"),
    "middle": ("new middles", "other values in every row but in its first and last quarter change the result"),
    "digits": ("new lower digits", "other lower digits of one input alone change the result"),
    "upper": ("new upper digits", "other upper digits of the whole numbers of one input change the result"),
    "traded": ("digits traded", "neighbours that trade their lower digits, which keeps every sum, change the result"),
    "sorted": ("a row sorted", "rows of each input in rising order, and nearly so, give a result of their own"),
    "reversed": ("reversed rows", "the values of every row in the opposite order give a result of their own"),
    "repeated": ("repeated values", "values that come twice in a row give the result of their own"),
    "alike": ("rows alike", "rows, and what they make up, that differ from others in one value have their own result"),
    "exponents": ("other exponents", "numbers twice or half as large, of the same digits, change the result"),
    "signs": ("other signs", "numbers of the other sign, as large as before, change the result"),
    "close": ("close values", "values of a row of which one is the next number after another give their own result"),
    "mixed": ("families mixed", "rows or columns of another family of values between others give their own result"),
    "begun": ("rows begun alike", "rows that begin like the one before them have a result of their own"),
}
OF_ANY_FAMILY = ("element", "exchange", "end", "tail", "later", "earlier", "middle")  # once each
WHOLE = ("other whole inputs", "beside the same other inputs they give their own result")
NO_PARTS = (
    "no part of any input may take other values: all are whole numbers of more than a byte, or named in OPERATOR.whole"
)
NO_TIES = "an output is of whole numbers, and of two places with one value an index may name either"
NO_NUMBERS = "no input that may take other values has floating-point numbers, or none of either sign"
FEWER = 5  # times fewer repeats
SIDES = {"end": "behind", "start": "in front of"}  # of a tensor, where it is fenced


class CallPlan:
    """The calls of one variant's upper rungs, in the order in which they are made."""

    def __init__(self, selection: RungCases, calls: Calls) -> None:
        self.selection = selection
        self.calls = calls
        self.session, self.settings = selection.session, selection.settings
        self.scalars_refused: dict[str, str] = {}  # by case: why no relation with other scalars was tried
        self._laid_out: dict[str, list[Job]] = {}  # by case, once they were asked for
        self._edits: dict[str, dict[str, int]] = {}  # likewise
        self._neighbours: list[Job] = []
        self.begin_anew: set[str] = set()  # keys of those of them that are the first of a process

    def property_jobs(self, case: Case) -> list[tuple[Job, str, str]]:
        """The calls of a property case in order, all in the same memory; each with the property's name and claim.

        A kernel that keeps results by address, or recognises inputs by a part of their values, gives an earlier result.
        """
        seed = case.seed
        jobs = [(Job(case, "whole", str(seed + 5)), *WHOLE)] if "whole" in self.edits(case) else []
        jobs.append((Job(case), "fresh values", "values drawn after the build give the right result"))
        low = Job(case, "low", str(seed + 4))  # behind the call that it is like, for who remembers no other
        jobs.append((low, *PARTS["low"]))
        for relation in self.relations(case) if case.family == self.selection.family else ():
            if relation["other_scalars"] and case.id in self.scalars_refused:
                continue
            if relation["own_base"]:
                jobs.append((Job(case, "base", relation["name"]), relation["name"], "the call that it starts from"))
            jobs.append((Job(case, "relation", relation["name"]), relation["name"], relation["claim"]))
        other = dataclasses.replace(case, seed=seed + 1)
        jobs.append((Job(other), "new values", "other values in the same memory give their own result"))
        # Each differs from the call before it in less than a kernel that recognises inputs by a few values, or by what
        # they sum up to, may notice; from the call before it, for who remembers no other.
        jobs += [(job, *PARTS[job.part]) for job in self._edited(other, seed + 2)]
        left_out = self.left_out(case)
        return [each for each in jobs if each[0].part not in left_out]

    def _edited(self, case: Case, seed: int) -> Iterator[Job]:
        """The calls with a part of their values changed; of other families than the usual one a few."""
        usual, often = case.family == self.selection.family, self.edits(case)
        others = [family for family in self.selection.families if family != case.family]
        random.Random(f"{seed} {case.id}").shuffle(others)
        for number, edit in enumerate(EDITS):
            if turn_of(number) >= (often.get(edit, 0) if usual else edit in OF_ANY_FAMILY):
                continue
            if edit != "mixed":
                yield Job(case, edit, f"{seed}.{number}")
            elif others:
                family = others[turn_of(number) // 2 % len(others)]  # rows of it, then columns
                yield Job(case, edit, f"{seed}.{number}.{family}")

    def left_out(self, case: Case) -> dict[str, str]:
        """Those of PARTS that no call of a case is made for, and why; of FOR_INDICES, for few operators, ""."""
        possible = self.edits(case)
        why = dict.fromkeys(EDITS, NO_TIES) | dict.fromkeys(OF_NUMBERS, NO_NUMBERS)
        if not possible:
            why = dict.fromkeys(PARTS, NO_PARTS)
        why |= dict.fromkeys((*ASIDE, *ONCE_EACH, "traded"), "")
        if case.family != self.selection.family:
            why = {part: "" for part in why if part not in possible}
        return {part: said for part, said in why.items() if part not in possible}

    def edits(self, case: Case) -> dict[str, int]:
        """What may be changed in the inputs of a case, and how often (Judge.edits)."""
        if case.id not in self._edits:
            self._edits[case.id] = self.session.judge.edits(self.settings.module, case)
        return self._edits[case.id]

    def look_around(self) -> None:
        """Find the neighbours that the operator's reference is for; to be asked before any call is made."""
        if not self.selection.asked_for("properties", self.selection.viewed_cases[:1]):
            return
        known = dict.fromkeys(self.settings.shapes, "")  # why not
        for way, sequences in self.selection.neighbours.items():
            for cases in sequences:
                for case in cases:
                    if case.shape not in known:
                        known[case.shape] = self.session.judge.unfit(self.settings.module, case, self.calls.terms)
                jobs = [Job(case, "neighbour", way) for case in cases if not known[case.shape]]
                self._neighbours += jobs
                self.begin_anew |= {job.key for job in jobs[:1]}

    def relations(self, case: Case) -> list[dict[str, Any]]:
        """The operator's relations of a case (Judge.relations)."""
        return self.session.judge.relations(self.settings.module, case)

    def views(self, case: Case) -> list[Job]:
        """Calls in memory that is laid out in other ways; with the first case those of no such case's own too."""
        viewed = self.selection.viewed_cases
        if case not in viewed:
            return []
        if case.id not in self._laid_out:
            views = self._laid_out[case.id] = self.session.judge.views(self.settings.module, case)
            if case not in self.selection.spaced_cases:
                views[:] = [view for view in views if view.part != "spaced"]
            if case == viewed[0]:
                views += [Job(other, "fenced", side) for other in self.selection.fenced_cases for side in SIDES]
                views += [Job(other, "shifted") for other in self.selection.shifted_cases]
                views += self._neighbours
                views += self._zero_copy_jobs()
        return self._laid_out[case.id]

    def _zero_copy_jobs(self) -> list[Job]:
        """Calls on inputs in the host's memory, as far as they run from the cubins alone.

        So kernels, and no host code, meet inputs that lie in the host's memory.
        """
        known = self.calls.sealed([Job(case) for case in self.selection.zero_copy_cases])
        return [dataclasses.replace(job, part="zero-copy") for job in known]

    def repeats(self, case: Case) -> list[tuple[str, Job]]:
        """The calls that are repeated, each with the name of its step."""
        asleep, awake = ("determinism", Job(case, "repeat")), (f"determinism {AWAKE}", Job(case, "repeat", AWAKE))
        if not self.selection.has_team:
            return [asleep]
        return [awake] if elements(case) > CPU_REPEATED_ELEMENTS else [asleep, awake]

    def calls_each(self, case: Case) -> int:
        """How many of the trials a process makes; of values that are not the usual ones fewer."""
        trials = self.selection.trials if case.family == self.selection.family else self.selection.trials // FEWER
        return max(2, trials // 2 if self.selection.has_team else trials)


def view_name(view: Job) -> str:
    """The name of a view's property: `strided`, `strided k`, `spaced k`, `shifted`, `shifted k`."""
    return " ".join(filter(None, [view.part, view.name]))
