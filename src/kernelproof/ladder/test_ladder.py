"""One test a rung, and one a case where a rung has cases. What each does is in climb.py; here it becomes pytest's."""

from __future__ import annotations

import pytest

from kernelproof.ladder.climb import Climb
from kernelproof.ladder.outcomes import Outcome
from kernelproof.records import Case


def show(outcome: Outcome) -> None:
    """Tell pytest how a step ended."""
    if outcome.status == "skipped":
        pytest.skip(outcome.message)
    if outcome.status == "failed":
        pytest.fail(outcome.message, pytrace=False)


def test_build(climb: Climb) -> None:
    """The build stage made a library, and it is still the one that was made."""
    show(climb.build())


def test_load(climb: Climb) -> None:
    """A fresh process can load it."""
    show(climb.load())


def test_launch(climb: Climb) -> None:
    """One small call comes back without an error."""
    show(climb.launch())


def test_sanity(climb: Climb) -> None:
    """Calls whose result is known exactly give that result."""
    show(climb.sanity())


def test_correctness(climb: Climb, case: Case | None) -> None:
    """The result is within the bounds of its declared precision, and nothing else was touched."""
    show(climb.correctness(case))


def test_suite(climb: Climb) -> None:
    """All cases together: their errors lean to no side, and faults do not begin at some length."""
    show(climb.suite())


def test_properties(climb: Climb, case: Case | None) -> None:
    """What the operator promises between calls holds, and so does memory that is used again."""
    show(climb.properties(case))


def test_determinism(climb: Climb, case: Case | None) -> None:
    """The same inputs give the same bits, every time."""
    show(climb.determinism(case))


def test_sanitizer(climb: Climb, tool: str | None) -> None:
    """compute-sanitizer finds nothing; for variants on a GPU."""
    assert tool is not None
    show(climb.sanitizer(tool))


def test_deep(climb: Climb) -> None:
    """No case that nobody listed fails; at the deep level only."""
    show(climb.deep())
