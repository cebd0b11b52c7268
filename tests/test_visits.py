"""Samples that cannot have been taken one after the other are seen by their columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from kernelproof.visits import Visits

HOT = ("s-float32", "hot")


@dataclass(frozen=True)
class Row:
    process: int
    block: int
    order: int
    contender: str
    time_us: float
    offset_s: float
    calls: int = 10
    long_us: str = ""


def honest(processes: int = 3, blocks: int = 4) -> list[Row]:
    """Two contenders, A B B A, a millisecond or so a visit and half of one in between."""
    rows = list[Row]()
    for process in range(processes):
        now_s = 1.0 + process / 7
        for block in range(blocks):
            for order, contender in enumerate(("a", "b", "b", "a")):
                time_us = (100 if contender == "a" else 150) + process + block / 10
                now_s += 10e-6 * time_us + 5e-4
                rows.append(Row(process, block, order, contender, time_us, round(now_s, 4)))
    return rows


def said(rows: list[Row], *, whole: bool = True, lasted_s: float | None = None) -> list[str]:
    visits = Visits()
    for row in rows:
        about = {"order": row.order, "calls": row.calls, "short_us": "", "long_us": row.long_us}
        texts = {name: str(value) for name, value in about.items()} | {"offset_s": str(row.offset_s)}
        visits.processes[row.process].take(row.contender, HOT, row.block, str(row.time_us), texts)
    return [": ".join(entry) for entry in visits.contradictions(whole=whole, lasted_s=lasted_s)]


def changed(rows: list[Row], change: Callable[[Row], Row | None]) -> list[Row]:
    return [row for row in map(change, rows) if row is not None]


def test_honest_visits_agree() -> None:
    assert said(honest()) == []
    assert said(honest(1, 1)) == []


def test_a_slow_contender_is_visited_once_in_all() -> None:
    slow = Row(0, 0, 2, "slow", 5e5, 1.9, calls=1)
    first = [replace(row, order=row.order + (row.order > 1)) for row in honest(1, 1)]
    later = [replace(row, offset_s=row.offset_s + 0.6) if row.order > 1 else row for row in first]
    assert said([*later[:2], replace(slow, offset_s=1.55), *later[2:]]) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: replace(r, time_us=r.time_us * 4) if r.contender == "b" else r, "its timed calls take"),
        (lambda r: replace(r, calls=1000), "its timed calls take"),
        (lambda r: replace(r, long_us="9000"), "its timed calls take"),
        (lambda r: replace(r, offset_s=1.0), "its timed calls take"),
        (lambda r: replace(honest()[r.block * 4 + r.order], process=r.process), "when those of process 0 do"),
        (lambda r: replace(r, offset_s=3.0 - r.offset_s), "it ended before the visit that precedes it did"),
        (lambda r: replace(r, order=0), "the second round is not the first one turned round"),
        (lambda r: None if (r.contender, r.order) == ("b", 1) else r, "visits go up to 3, and there are 3"),
        (lambda r: None if r.contender == "b" and r.block == 1 else r, "visits go up to 3, and there are 2"),
        (lambda r: None if r.contender == "b" and r.order == 2 else r, "visits go up to 3, and there are 3"),
        (lambda r: None if r.block == 1 else r, "blocks go up to 3, and there are 3"),
    ],
)
def test_what_was_changed_in_one_column_is_seen(change: Callable[[Row], Row | None], words: str) -> None:
    found = said(changed(honest(), change))
    assert found
    assert any(words in text for text in found), found
    assert found[0].startswith(("process 0", "process 1"))


def test_blocks_that_somebody_left_are_not_looked_at() -> None:
    half = changed(honest(), lambda row: None if (row.contender, row.order, row.block) == ("b", 2, 3) else row)
    assert "visits go up to 3, and there are 3" in said(half)[0]
    assert said(half, whole=False) == []
    renumbered = changed(half, lambda row: replace(row, order=row.order - (row.block == 3 and row.order > 2)))
    assert "visits are 1, and not 2" in said(renumbered)[0]
    without = changed(honest(), lambda row: None if row.block == 1 else row)
    assert "blocks go up to 3, and there are 3" in said(without, whole=False)[0]


def test_a_visit_ends_before_the_benchmark_does() -> None:
    assert said(honest(), lasted_s=2.0) == []
    assert "by the record the whole benchmark took 0.5 s" in said(honest(), lasted_s=0.5)[0]


def test_a_process_that_is_a_copy_is_seen_whatever_its_times_are() -> None:
    copied = [replace(row, process=2, time_us=row.time_us * 1.001) for row in honest(1)]
    assert said([*honest(2), *copied]) == ["process 2: all of its 16 visits end when those of process 0 do"]


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        said([replace(honest()[0], offset_s="soon")])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "row", [{"offset_s": float("nan")}, {"offset_s": -1.0}, {"long_us": "inf"}, {"long_us": "nan"}]
)
def test_what_is_no_time_of_a_visit_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a visit of a that takes"):
        said([replace(honest(1, 1)[0], **row)])
