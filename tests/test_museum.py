"""Every piece of the museum, built and judged by the real stages: caught by its own class, no right kernel accused."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import test_ladder
from museum.workshop import (
    MUSEUM,
    REPOSITORY,
    TWIN,
    Piece,
    by_own_class,
    catalogue,
    caught_by,
    judge,
    make,
    time,
    twins,
    workshop,
)

from kernelproof import build, gpu
from kernelproof.ladder.outcomes import RUNGS
from kernelproof.records import BenchRecord, BuildRecord, TestRecord

CATALOGUE = catalogue()
PIECES = CATALOGUE.pieces
WORKERS = {"cpu": 2, "cuda": 8}
TWINS = twins()
OPERATORS_ON_GPU = ("attention", "rmsnorm", "quantised_attention")
# What test_ladder.py holds to verdict, rung and words.
ON_THE_LADDER = {"rmsnorm/segfault_on_17_rows", "rmsnorm/hang_on_odd_rows"}
ON_THE_LADDER |= {f"rmsnorm/{name}" for name, *_ in test_ladder.WRONG}
PRESENT, WHY = gpu.available()
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not PRESENT, reason=f"needs a GPU: {WHY}")]


@dataclass
class Found:
    """What the stages said of the pieces that were chosen, and of every twin."""

    pieces: list[Piece]
    builds: dict[str, BuildRecord]
    tests: dict[str, TestRecord]
    timed: list[dict[str, BenchRecord]]

    def caught(self, key: str) -> dict[str, str]:
        """The checks that failed, with their words."""
        found: dict[str, str] = {}
        for records in self.timed:
            found |= caught_by(self.tests[key], records.get(key.partition("/")[0]))
        return found


def museum(request: pytest.FixtureRequest, device: str, factory: pytest.TempPathFactory) -> Found:
    """The pieces of a device whose tests were chosen, and its twins, built and judged."""
    calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    pieces = [found for call in calls if isinstance(found := call.get("piece"), Piece) and found.device == device]
    project = workshop(factory.mktemp("museum"), pieces, device, seeds=[0] if device == "cpu" else None)
    builds, tests = make(project, WORKERS[device]), judge(project, WORKERS[device], pieces)
    found = Found(pieces, builds, tests, [time(project, pieces, device)])
    # Other tests run meanwhile: what a crowded machine hid from the benchmark is timed once more.
    if missed := [piece for piece in pieces if _is_missed_by_the_benchmark(found, piece)]:
        found.timed.append(time(project, missed, device))
    return found


def _is_missed_by_the_benchmark(found: Found, piece: Piece) -> bool:
    by_time = any(check.startswith("bench/") for check in piece.check)
    return by_time and not piece.pending and not by_own_class(piece, found.caught(piece.key))


@pytest.fixture(scope="module")
def on_cpu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return museum(request, "cpu", tmp_path_factory)


@pytest.fixture(scope="module")
def on_gpu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return museum(request, "cuda", tmp_path_factory)


def listed(device: str) -> Iterator[object]:
    """The pieces; one that is not caught by its own class yet is expected to fail, and to say so when it is.

    One is slow that shows nothing new: no class, none of its class by the bench stage, no check, no operator, no
    failure of the origin. So is one that climbs the same ladder in tests/test_ladder.py.
    """
    shown = set[object]()
    for key, piece in PIECES.items():
        if piece.device == device:
            first = piece.check[0]
            shows = {piece.kind, piece.operator, *piece.check, piece.origin}
            shows |= {(piece.kind, first)} if first.startswith("bench/") else set()
            marks = [pytest.mark.slow] if shows <= shown or key in ON_THE_LADDER else []
            marks += [pytest.mark.xfail(strict=True, reason=piece.pending)] if piece.pending else []
            shown |= shows
            yield pytest.param(piece, id=key, marks=marks)


def twins_of(device: str) -> list[object]:
    return [pytest.param(key, id=key) for key, runs_on in TWINS.items() if runs_on == device]


def is_caught(found: Found, piece: Piece) -> None:
    assert found.builds[piece.key].status == "ok", found.builds[piece.key].compiler_message
    checks = found.caught(piece.key)
    assert by_own_class(piece, checks), f"{found.tests[piece.key].verdict}: {checks}"
    assert re.search(piece.says, "\n".join(checks.values())), checks


def is_correct(found: Found, key: str) -> None:
    record = found.tests[key]
    assert (record.verdict, record.reason, found.caught(key)) == ("correct", None, {})


@pytest.mark.parametrize("piece", list(listed("cpu")))
def test_it_is_caught_by_its_own_class(on_cpu: Found, piece: Piece) -> None:
    is_caught(on_cpu, piece)


@pytest.mark.parametrize("key", twins_of("cpu"))
def test_the_honest_twin_is_correct(on_cpu: Found, key: str) -> None:
    is_correct(on_cpu, key)


@pytest.mark.parametrize(
    ("key", "status", "says"),
    [
        ("rmsnorm/good", "skipped", "refused: ValueError: {} has stride 2 along its last dimension, expected 1"),
        ("attention/good_python", "passed", "None"),
    ],
)
def test_a_twin_goes_by_a_last_stride_or_refuses_it(on_cpu: Found, key: str, status: str, says: str) -> None:
    found = {p.name: p for p in on_cpu.tests[key].properties if p.name.startswith("spaced ")}
    assert {p.status for p in found.values()} == {status}
    assert {name: str(p.message) for name, p in found.items()} == {
        name: says.format(name.removeprefix("spaced ")) for name in found
    }


class TestOnGpu:
    """The same with a GPU, where the pieces are kernels for one."""

    pytestmark = ON_GPU

    @pytest.mark.parametrize("piece", list(listed("cuda")))
    def test_it_is_caught_by_its_own_class(self, on_gpu: Found, piece: Piece) -> None:
        is_caught(on_gpu, piece)

    @pytest.mark.parametrize("key", twins_of("cuda"))
    def test_the_honest_twin_is_correct(self, on_gpu: Found, key: str) -> None:
        is_correct(on_gpu, key)


def test_pieces_for_a_gpu_compile(tmp_path: Path) -> None:
    """A piece of each operator and one twin, for both architectures: all take minutes (`museum.py --compile`)."""
    chosen = [[p for p in PIECES.values() if p.operator == o and p.suffix == ".cu"][:1] for o in OPERATORS_ON_GPU]
    project = workshop(tmp_path, itertools.chain(*chosen), "cuda", archs=["sm_89", "sm_90a"])
    wanted = {piece.key for pieces in chosen for piece in pieces} | {f"rmsnorm/{TWIN['cuda']}"}
    for key in sorted(wanted):
        operator, name = key.split("/")
        record = build.run(project, operator, name, project.record("build", operator, name))
        if record.status == "not_run":
            pytest.skip(f"no CUDA compiler: {record.reason}")
        assert record.status == "ok", f"{key}: {record.compiler_message}"
        assert {cubin.arch for cubin in record.cubins} == {"sm_89", "sm_90a"}


def test_every_operator_has_its_twins(on_cpu: Found) -> None:
    of_device = {piece.key for piece in on_cpu.pieces}
    assert set(on_cpu.tests) == of_device | {key for key, device in TWINS.items() if device == "cpu"}


def test_every_source_is_in_the_list_and_says_what_is_wrong() -> None:
    twin_names = {key.partition("/")[2] for key in TWINS}
    sources = {p for p in MUSEUM.glob("*/*") if p.suffix in {".cc", ".py", ".cu"} and p.stem not in twin_names}
    assert sources == {piece.source for piece in PIECES.values()}
    assert not [piece.key for piece in PIECES.values() if len(piece.wrong.split()) < 3]


def test_every_class_has_a_piece_on_each_device() -> None:
    for device in WORKERS:
        assert {piece.kind for piece in PIECES.values() if piece.device == device} == set(CATALOGUE.classes)


def test_origins_that_a_gpu_can_repeat_are_repeated_there() -> None:
    repeated = {piece.origin for piece in PIECES.values() if piece.device == "cuda"} - {""}
    assert repeated == set(CATALOGUE.origin) - set(CATALOGUE.elsewhere)


def test_checks_are_named_as_stages_name_them() -> None:
    rungs = {*RUNGS, "sanitizer", "bench"}
    for piece in PIECES.values():
        for check in piece.check:
            assert check.partition("/")[0] in rungs or check in {"late", "error"}, piece.key


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
