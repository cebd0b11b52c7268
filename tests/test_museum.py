"""Every piece of the museum, built and judged by the real stages: caught by its own class, no right kernel accused."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from museum.workshop import (
    MUSEUM,
    REPOSITORY,
    TWINS,
    Piece,
    by_own_class,
    catalogue,
    caught_by,
    judge,
    make,
    time,
    workshop,
)

from kernelproof.records import BenchRecord, BuildRecord, TestRecord

CATALOGUE = catalogue()
PIECES = CATALOGUE.pieces
WORKERS = 2
TWIN_KEYS = ("attention/good", "attention/good_online", "attention/good_python", "rmsnorm/good", "qkt/good")
TWIN_KEYS += ("quantised_attention/good",)


@dataclass
class Found:
    """What the stages said of every piece and twin."""

    builds: dict[str, BuildRecord]
    tests: dict[str, TestRecord]
    timed: dict[str, BenchRecord]

    def caught(self, key: str) -> dict[str, str]:
        """The checks that failed, with their words."""
        return caught_by(self.tests[key], self.timed.get(key.partition("/")[0]))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    project = workshop(tmp_path_factory.mktemp("museum"), PIECES.values())
    builds, tests = make(project, WORKERS), judge(project, WORKERS)
    return Found(builds, tests, time(project, PIECES.values()))


def listed() -> list[object]:
    """The pieces; one that is not caught by its own class yet is expected to fail, and to say so when it is."""
    return [
        pytest.param(
            piece, id=key, marks=[pytest.mark.xfail(strict=True, reason=piece.pending)] if piece.pending else []
        )
        for key, piece in PIECES.items()
    ]


@pytest.mark.parametrize("piece", listed())
def test_it_is_caught_by_its_own_class(found: Found, piece: Piece) -> None:
    assert found.builds[piece.key].status == "ok", found.builds[piece.key].compiler_message
    checks = found.caught(piece.key)
    assert by_own_class(piece, checks), f"{found.tests[piece.key].verdict}: {checks}"
    assert re.search(piece.says, "\n".join(checks.values())), checks


@pytest.mark.parametrize("key", TWIN_KEYS)
def test_the_honest_twin_is_correct(found: Found, key: str) -> None:
    record = found.tests[key]
    assert (record.verdict, record.reason, found.caught(key)) == ("correct", None, {})


def test_every_operator_has_its_twins(found: Found) -> None:
    assert set(found.tests) == set(PIECES) | set(TWIN_KEYS)


def test_every_source_is_in_the_list_and_says_what_is_wrong() -> None:
    sources = {p for p in MUSEUM.glob("*/*") if p.suffix in {".cc", ".py", ".cu"} and p.stem not in TWINS}
    assert sources == {piece.source for piece in PIECES.values()}
    assert not [piece.key for piece in PIECES.values() if len(piece.wrong.split()) < 3]


def test_every_class_has_a_piece() -> None:
    assert {piece.kind for piece in PIECES.values()} == set(CATALOGUE.classes)


def test_every_failure_of_the_origin_is_repeated() -> None:
    by_pieces = {piece.origin for piece in PIECES.values()} - {""}
    assert by_pieces | set(CATALOGUE.elsewhere) == set(CATALOGUE.origin)
    assert not by_pieces & set(CATALOGUE.elsewhere)
    for place in CATALOGUE.elsewhere.values():
        path, _, name = place.partition("::")
        assert f"def {name}(" in (REPOSITORY / path).read_text(encoding="utf-8"), place


def test_the_page_shows_every_piece() -> None:
    command = [sys.executable, REPOSITORY / "benchmarks" / "museum.py", "--check"]
    done = subprocess.run(command, cwd=Path(REPOSITORY), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
