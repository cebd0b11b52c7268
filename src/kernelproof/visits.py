"""Can samples have been taken one after the other, as their file says? Standard library only: `verify` asks it.

In a block each contender is visited twice, the second time in the opposite order, and a process times one visit at a
time (docs/explanation/measurement.md). Whoever makes times longer, copies a process or leaves blocks or visits out
breaks that, unless all columns are invented anew.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

VISIT = ("order", "calls", "short_us", "long_us", "offset_s")  # the columns of a visit
PRECISION_S = 2e-4  # twice the last digit of offset_s
LONGER = 1.05  # than it lasted, a process cannot have measured
OTHER_CLOCK = 1.5  # than a benchmark lasted, by a clock that stands still where a machine sleeps
FEWEST_ALIKE = 8  # visits of two processes, of which all cannot be alike by chance

Case = tuple[str, str]  # with its mode


@dataclass
class Process:
    """One process's visits by the primary method, in the order of the file."""

    first_s: float | None = None
    last_s: float = 0.0
    worked_s: float = 0.0
    goes_back: str = ""
    digest: int = 0  # of when each visit ended
    count: int = 0
    blocks: dict[tuple[Case, int], list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))

    def take(self, contender: str, case: Case, block: int, time_us: str, visit: Mapping[str, str]) -> None:
        """Add a row of the file. Raises ValueError for what is no number, or no time of a visit."""
        at_s = float(visit["offset_s"])
        lengths_us = float(visit["short_us"] or 0) + float(visit["long_us"] or 0)
        took_s = (lengths_us or int(visit["calls"]) * float(time_us or 0)) * 1e-6
        if not (0 <= at_s < math.inf and 0 <= took_s < math.inf):  # nan is neither, and nothing would be told of it
            raise ValueError(f"a visit of {contender} that takes {took_s:g} s and ends at {at_s:g} s")
        if self.first_s is None:
            self.first_s = at_s - took_s
        elif at_s < self.last_s - PRECISION_S and not self.goes_back:
            self.goes_back = f"{' '.join(case)}, block {block}, {contender}"
        self.last_s = max(self.last_s, at_s)
        self.worked_s += took_s
        self.count += 1
        self.digest = hash((self.digest, visit["offset_s"]))
        self.blocks[case, block].append((int(visit["order"]), contender))

    def gap(self, *, whole: bool) -> tuple[str, str] | None:
        """Where a block is missing before another of its case, or, of whole ones, a visit before another."""
        numbers: dict[Case, set[int]] = defaultdict(set)
        for (case, block), visits in self.blocks.items():
            numbers[case].add(block)
            orders = {order for order, _ in visits}
            if whole and len(orders) <= max(orders):
                return f"block {block}, {' '.join(case)}", f"visits go up to {max(orders)}, and there are {len(orders)}"
        for case, there in numbers.items():
            if len(there) <= max(there):
                return " ".join(case), f"blocks go up to {max(there)}, and there are {len(there)}"
        return None

    def odd_block(self) -> tuple[str, str] | None:
        """Where a block does not have each contender twice, the second round turned round, and what it has.

        A slow contender is visited once in all.
        """
        times: dict[tuple[Case, str], Counter[int]] = defaultdict(Counter)
        for (case, block), visits in self.blocks.items():
            for _, contender in visits:
                times[case, contender][block] += 1
        for (case, contender), counts in times.items():
            odd = [block for block, count in counts.items() if count != 2]
            if odd and counts.total() > 1:
                where = f"block {odd[0]}, {' '.join(case)}, {contender}"
                return where, f"visits are {counts[odd[0]]}, and not 2 as in other blocks"
        for (case, block), visits in self.blocks.items():
            twice = [contender for _, contender in sorted(visits) if times[case, contender][block] == 2]
            if twice != twice[::-1]:
                return f"block {block}, {' '.join(case)}", "the second round is not the first one turned round"
        return None


@dataclass
class Visits:
    """All visits of a benchmark by the primary method, by process."""

    processes: dict[int, Process] = field(default_factory=lambda: defaultdict(Process))

    def contradictions(self, *, whole: bool, lasted_s: float | None = None) -> Iterator[tuple[str, str]]:
        """What cannot be, and where; `whole`: nobody left while it was timed, so that every block was ended.

        lasted_s: how long the benchmark took by its record.
        """
        first: dict[tuple[int, int], int] = {}
        for number, process in sorted(self.processes.items()):
            where = f"process {number}"
            if process.goes_back:
                yield f"{where}, {process.goes_back}", "it ended before the visit that precedes it did"
            passed_s = process.last_s - (process.first_s or 0.0) + PRECISION_S
            if process.worked_s > LONGER * passed_s:
                took = f"its timed calls take {process.worked_s:.3g} s by their times"
                yield where, f"{took}, and from the first to the last of them {passed_s:.3g} s passed"
            alike = first.setdefault((process.digest, process.count), number)
            if alike != number and process.count >= FEWEST_ALIKE:
                yield where, f"all of its {process.count} visits end when those of process {alike} do"
            if lasted_s is not None and process.last_s > OTHER_CLOCK * lasted_s:
                took = f"its last visit ends after {process.last_s:.3g} s"
                yield where, f"{took}, and by the record the whole benchmark took {lasted_s:.3g} s"
            if gap := process.gap(whole=whole):
                yield f"{where}, {gap[0]}", gap[1]
            if whole and (odd := process.odd_block()):
                yield f"{where}, {odd[0]}", odd[1]
