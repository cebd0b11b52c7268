"""What a benchmark says of a variant's speed, in the words that the gate, the manifest, the report and the run share.

Only a variant with `gate: true` claims to be faster, and only a claim passes or fails. It passes when in every case and
mode that was measured the upper end of ours / fastest correct baseline is at most `gate.max_ratio`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace

from kernelproof import formats, records
from kernelproof.records import BenchRecord, BudgetRow, OracleRow, UntimedRow

PASSES, FAILS, NO_CLAIM, NOT_RUN = "passes", "fails", "no claim", "not run"
FAULTS = ("crashed", "hung", "failed")  # that a benchmark may find, beside wrong results
CAUGHT = ("times escape", "spoils others", "library call passed off")  # a contender that left for it made up its times
FOUND = frozenset({*(f"{fault} when timed" for fault in ("wrong", *FAULTS)), *CAUGHT})  # what `found_by_bench` says


@dataclass(frozen=True)
class Claim:
    """A variant before the gate: its word, and every case that it was measured in, claim or not."""

    word: str  # passes, fails, no claim, not run
    rows: list[OracleRow] = field(default_factory=list)
    reason: str = ""  # of a word without rows

    @property
    def above(self) -> list[OracleRow]:
        """Cases that are not shown to be below the limit."""
        return [row for row in self.rows if not row.passed]

    @property
    def note(self) -> str:
        """`not shown within the limit in 1 of 8 cases`; empty where nothing was measured."""
        if not self.rows:
            return ""
        if all(row.ratio is None for row in self.rows):
            compared = any(row.best_baseline for row in self.rows)
            return "no ratio is known" if compared else "nothing to compare it with"
        number, total = len(self.above), len(self.rows)
        said = "not shown within the limit" if number else "within the limit"
        if total == 1:
            return f"{said} in its one case"
        return f"{said} in {f'{number} of' if number else 'all'} {total} cases"

    @property
    def decisive(self) -> OracleRow | None:
        """The case that decides: of those above, else of all, the one with the highest upper end."""
        return max(self.above or self.rows, key=lambda row: (row.high is None, row.high or 0.0), default=None)

    @property
    def why(self) -> str:
        """The note with the case that decides, or why there is none."""
        if (row := self.decisive) is None:
            return self.reason
        which = f"; the {'worst' if self.above else 'closest'}" if len(self.rows) > 1 else ""
        flagged = f"; flagged: {formats.listed(row.flags)}" if row.flags else ""
        return f"{self.note}{which}: {row.case} {row.mode}{row.reason and f', {row.reason}'}{flagged}"

    def __str__(self) -> str:
        return f"{self.word}, {self.note}" if self.note else self.word


def held_to(rows: list[OracleRow], limit: float) -> list[OracleRow]:
    """Rows of a record as another limit than its own judges them; what decides nothing passes nothing."""

    def judged(row: OracleRow) -> OracleRow:
        if row.high is None or row.undecided:
            return replace(row, passed=False)
        return replace(row, passed=row.high <= limit, reason=bound_reason(row.high, limit))

    return [judged(row) for row in rows]


def bound_reason(high: float, limit: float) -> str:
    """`upper bound 0.97 > 0.95`."""
    return f"upper bound {high:.4g} {'≤' if high <= limit else '>'} {limit:g}"


def over_budget(row: BudgetRow) -> str:
    """`attend on sm_90a: registers 255, budget 120`."""
    return f"{row.kernel} on {row.arch}: {row.what} {row.value}, budget {row.limit}"


def judge(name: str, *, claimed: bool, correct: bool, bench: BenchRecord | None) -> Claim:
    """What a variant's benchmark says. Without correctness there is no speed."""
    unjudged = NOT_RUN if claimed else NO_CLAIM
    if not correct or found_by_bench(bench, name):
        return Claim(unjudged, reason="correctness is a precondition")
    if bench is None or bench.status == records.NOT_RUN:
        return Claim(unjudged, reason=(bench.reason if bench else None) or "there is no benchmark record")
    rows = [row for row in bench.oracle if row.variant == name] if bench.status == records.OK else []
    if not rows:
        outcome = next((entry.outcome for entry in bench.contenders if entry.name == name), "it was not timed")
        return Claim(
            FAILS if claimed else NO_CLAIM, reason=f"claimed to be faster, but {outcome}" if claimed else outcome
        )
    if not claimed:
        return Claim(NO_CLAIM, rows)
    return Claim(PASSES if all(row.passed for row in rows) else FAILS, rows)


def untimed(bench: BenchRecord | None, name: str) -> str:
    """`not timed cold in 2 of 8 cases: too slow, already when hot: …`; empty where every mode has its time."""
    rows = [row for row in bench.untimed if row.contender == name] if bench else []
    total = len({row.case for row in (*rows, *(bench.times if bench else ())) if row.contender == name})
    groups = defaultdict[tuple[str, str], list[UntimedRow]](list)
    for row in rows:
        groups[row.mode, row.outcome].append(row)
    return "; ".join(
        f"not timed {mode} in {f'{len(found)} of {total} cases' if len(found) > 1 else found[0].case}: {found[0].why}"
        for (mode, _), found in groups.items()
    )


def not_tried(bench: BenchRecord | None, name: str) -> bool:
    """Whether a variant left the benchmark and nobody knows why: it may have hung, or other programs had the cores."""
    contenders = bench.contenders if bench else []
    return any(entry.name == name and entry.outcome.startswith("dropped: not tried") for entry in contenders)


def _why(outcome: str, fault: str) -> str:
    """`hot: 3 elements are wrong` of `dropped: wrong when timed (hot): 3 elements are wrong`."""
    said = outcome.removeprefix("timed, but ").removeprefix("dropped: ")
    found = re.fullmatch(rf"{fault}(?: when timed)?(?: \((.*?)\))?: (.+)", said, re.DOTALL)
    return ": ".join(filter(None, found.groups())) if found else said


def found_by_bench(bench: BenchRecord | None, name: str) -> tuple[str, str] | None:
    """What the benchmark found wrong with a variant that the test had passed (a result, a crash, a hang, times that are
    not those of its work), and why.
    """
    for contender in bench.contenders if bench else []:
        if contender.name != name or contender.outcome.startswith("not benchmarked"):  # then the verdict is the test's
            continue
        if not contender.correct and contender.verdict == "wrong":
            return "wrong when timed", _why(contender.outcome, "wrong")
        for fault in FAULTS:
            if contender.outcome.startswith(f"dropped: {fault}"):
                return f"{fault} when timed", _why(contender.outcome, fault)
    for entry in bench.discarded if bench else []:
        if (entry.get("what"), entry.get("contender")) == ("contender", name):
            reason = str(entry.get("reason"))
            if caught := next((word for word in CAUGHT if reason.startswith(word)), None):
                return caught, f"dropped from {entry.get('case') or 'all cases'}: {reason}"
    return None
