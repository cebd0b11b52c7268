"""The kill matrix of the museum: which check caught which defect, and what two naive evaluators would have said.

    python benchmarks/museum.py            run every piece, and write docs/explanation/museum.md
    python benchmarks/museum.py --check    run nothing: does the page show the pieces that there are?

The pieces go through the build stage and the test stage, those that they find right through the bench stage. Beside
that stands what is usual: one call on the mission shape with normal inputs of seed 0, its result in fresh memory held
against the reference by `allclose(rtol=1e-2, atol=1e-2)`; and the time of a call, held against the honest twin's, which
nothing keeps from being the time of a wrong result. Exit code 1 when a piece is not caught by its own class, or one
that the list calls pending is, or a twin is accused.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from museum import workshop
from museum.workshop import Catalogue, Piece

from kernelproof import config, records
from kernelproof.config import Config, VariantConfig
from kernelproof.records import BenchRecord, Case, TestRecord

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "explanation" / "museum.md"
TOLERANCE = 1e-2
NAIVE_LIMIT_S = 15.0
TIMED_CALLS = 1  # after the one that is judged
SAME = (0.8, 1.25)  # a quarter either way: these times are taken once, on whatever machine


@dataclass
class Naive:
    """What the naive evaluators said: `passes`, `fails`, `crashes`, `hangs`; seconds a call, None where none ended."""

    allclose: str
    seconds: float | None = None


@dataclass
class Row:
    """One line of the matrix."""

    piece: Piece
    caught: dict[str, str]
    own: bool
    naive: Naive
    speed: str


def main() -> int:
    """Run or check; gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="compare the page with the list of pieces; run nothing")
    parser.add_argument("--folder", type=Path, help="where to build and test (default: a temporary folder)")
    arguments = parser.parse_args()
    catalogue = workshop.catalogue()
    if arguments.check:
        return check(catalogue)
    with contextlib.ExitStack() as ends:
        folder = arguments.folder or Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="museum-")))
        return run(catalogue, folder)


def run(catalogue: Catalogue, folder: Path) -> int:
    """Build, test, time and compare; writes the page."""
    workers = max(1, len(os.sched_getaffinity(0)))
    project = workshop.workshop(folder, catalogue.pieces.values())
    workshop.make(project, workers)
    tested = workshop.judge(project, workers)
    timed = workshop.time(project, catalogue.pieces.values())
    naive = dict(naively(project))
    rows = [_row(piece, tested, timed, naive) for piece in catalogue.pieces.values()]
    accused = [key for key, record in tested.items() if key not in catalogue.pieces and record.verdict != "correct"]
    records.atomic_write(PAGE, page(catalogue, rows, tested, accused))
    missed = [row.piece.key for row in rows if row.own == bool(row.piece.pending)]
    for key in (*accused, *missed):
        print(f"{key}: {'an honest twin, accused' if key in accused else 'not as the list says'}")
    print(f"{PAGE.relative_to(ROOT)} written")
    return 1 if accused or missed else 0


def _row(piece: Piece, tested: dict[str, TestRecord], timed: dict[str, BenchRecord], naive: dict[str, Naive]) -> Row:
    caught = workshop.caught_by(tested[piece.key], timed.get(piece.operator))
    twin = naive[f"{piece.operator}/{'good_python' if piece.abi == 'python' else 'good'}"].seconds
    mine = naive[piece.key].seconds
    speed = "no time" if mine is None or twin is None else _speed(mine / twin)
    return Row(piece, caught, workshop.by_own_class(piece, caught), naive[piece.key], speed)


def _speed(ratio: float) -> str:
    return "faster" if ratio < SAME[0] else "slower" if ratio > SAME[1] else "same"


# --- the naive evaluators ---------------------------------------------------------------------------------------------


def naively(project: Config) -> Iterator[tuple[str, Naive]]:
    """What they say of every variant of the project, each in processes of its own."""
    import torch

    from kernelproof import judge, operators

    torch.set_num_threads(1)
    shapes = config.load(ROOT / "config.yaml", root=ROOT)
    for operator in project.operators.values():
        module, settings = operators.load(operator.module, ROOT), shapes.operator(operator.name)
        for variant in operator.contenders("cpu"):
            shape = settings.profile.shape
            case = Case(operator.name, shape, settings.shapes[shape], {}, variant.dtypes[0], "normal", 0)
            call = module.make_call(case, judge.generator(case))
            precision = judge.resolved(variant.precision, case.dtype)
            expected = module.reference(call, precision).output
            said = _evaluate(project, variant, call, expected)
            print(f"{variant.key}: {said.allclose}", flush=True)
            yield variant.key, said


def _evaluate(project: Config, variant: VariantConfig, call: Any, expected: Any) -> Naive:
    """In a process below a process, since some pieces kill the one above them. The time comes back through a file."""
    with tempfile.NamedTemporaryFile() as note:
        above = os.fork()
        if above == 0:
            os.setsid()
            below = os.fork()
            if below == 0:
                _call(project, variant, call, expected, Path(note.name))
            os._exit(os.waitstatus_to_exitcode(os.waitpid(below, 0)[1]) & 0xFF)
        status = _wait(above)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(above, signal.SIGKILL)
        text = note.read().decode()
    said = {0: "passes", 1: "fails", None: "hangs"}.get(status, "crashes")
    return Naive(said, float(text) if text else None)


def _wait(pid: int) -> int | None:
    """The exit code of a process (negative: by a signal), None when it was still running after the limit."""
    deadline = time.monotonic() + NAIVE_LIMIT_S
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _call(project: Config, variant: VariantConfig, call: Any, expected: Any, note: Path) -> None:
    """One call and its comparison, then the times of some more; ends the process with 0 where the result passes."""
    import torch

    from kernelproof.loading import load
    from kernelproof.records import BuildRecord

    status = 3
    try:
        os.chdir(project.root)
        built = records.read(project.record("build", variant.operator, variant.name), BuildRecord)
        library = project.root / built.library.path if built.library else None
        function = load(variant, library, project.root)
        output = torch.empty_like(call.output)
        destination = variant.passing == "destination"

        def once() -> Any:
            given = call.arguments | {call.outputs[0]: output} if destination else call.inputs | _scalars(call)
            values = [t.numpy() if destination and isinstance(t, torch.Tensor) else t for t in given.values()]
            returned = function(*values)
            return output if destination else returned

        result = once()
        close = torch.allclose(result.double(), expected, rtol=TOLERANCE, atol=TOLERANCE)
        status = 0 if close else 1
        seconds = []
        for _ in range(TIMED_CALLS):
            started = time.perf_counter()
            once()
            seconds.append(time.perf_counter() - started)
        note.write_text(repr(min(seconds)), encoding="utf-8")
    except BaseException as error:
        print(f"{variant.key}: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        os._exit(status)


def _scalars(call: Any) -> dict[str, Any]:
    return {name: value for name, value in call.arguments.items() if name not in call.tensors}


# --- the page ---------------------------------------------------------------------------------------------------------

HEAD = """\
# The museum: planted defects, and what catches them

Each line is a wrong kernel. It lies in [`tests/museum`](../../tests/museum/README.md), is built and judged by the real
stages whenever the tests run, and must be caught by the check that its class is for. The honest twins, which the pieces
are wrong copies of, must be found correct. `python benchmarks/museum.py` wrote this page from a run.

*Caught by* names every check that failed, as rung/criterion; those that its class is for are bold. A rung that fails
bars those above it, so the first check that a defect meets is often the only one. The columns beside it are what is
usual elsewhere. **allclose**: one call on the operator's mission shape with normal inputs of seed 0, held against the
reference with `rtol = atol = 1e-2` in the kernel's own process, whose exit code is the verdict. **timing**: the time of
a call beside the honest twin's, up to a quarter either way counting as the same.
"""


def page(catalogue: Catalogue, rows: list[Row], tested: dict[str, TestRecord], accused: list[str]) -> str:
    """The whole page."""
    counted = [row for row in rows if not row.piece.pending]
    waiting = [row for row in rows if row.piece.pending]
    twins = len(tested) - len(rows)
    passed = [row for row in counted if row.naive.allclose == "passes"]
    fast = [row for row in counted if row.speed == "faster"]
    both = [row for row in passed if row.speed == "faster"]
    lines = [HEAD, "## In numbers", "", "| | |", "| --- | --- |"]
    lines.append(f"| caught, by their own class | {sum(row.own for row in counted)} of {len(counted)} |")
    lines.append(f"| honest twins found correct | {twins - len(accused)} of {twins} |")
    lines.append(f"| pass `allclose(1e-2)` | {len(passed)} of {len(counted)} |")
    lines.append(f"| look faster than the honest twin | {len(fast)} of {len(counted)} |")
    lines.append(f"| both: a win, to whoever asks no more | {len(both)} of {len(counted)} |")
    lines.append(f"| in the list and not caught by their own class yet, not counted above | {len(waiting)} |")
    for kind, words in catalogue.classes.items():
        lines += _table(words, [row for row in counted if row.piece.kind == kind])
    if waiting:
        lines += ["", "## Not caught by their own class yet", "", "| piece | class | what is wrong | what is missing |"]
        lines.append("| --- | --- | --- | --- |")
        for row in waiting:
            words = catalogue.classes[row.piece.kind]
            lines.append(f"| {_named(row.piece)} | {words} | {_cell(row.piece.wrong)} | {_cell(row.piece.pending)} |")
    return "\n".join([*lines, "", *_origin(catalogue), ""])


def _table(words: str, rows: list[Row]) -> list[str]:
    if not rows:
        return []
    lines = ["", f"## {words[0].upper()}{words[1:]}", "", "| piece | what is wrong | caught by | allclose | timing |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for row in rows:
        checks = ", ".join(f"**{name}**" if _own(row.piece, name) else name for name in row.caught)
        what = (_named(row.piece), _cell(row.piece.wrong), checks or "nothing", row.naive.allclose, row.speed)
        lines.append("| " + " | ".join(what) + " |")
    return lines


def _own(piece: Piece, check: str) -> bool:
    return workshop.by_own_class(piece, {check: ""})


def _named(piece: Piece) -> str:
    return f"[{piece.key}](../../{piece.source.relative_to(ROOT)})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _origin(catalogue: Catalogue) -> list[str]:
    lines = ["## The failures that this project began with", "", "| failure | repeated by |", "| --- | --- |"]
    for key, words in catalogue.origin.items():
        pieces = [_named(piece) for piece in catalogue.pieces.values() if piece.origin == key]
        lines.append(f"| {_cell(words)} | {', '.join(pieces) or '`' + catalogue.elsewhere[key] + '`'} |")
    return lines


def check(catalogue: Catalogue) -> int:
    """Whether the page shows the pieces of the list, each with what its source says; 1 and the differences if not."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
    shown = set(re.findall(r"^\| \[(\w+/\w+)\]", text, re.MULTILINE))
    stale = [p.key for p in catalogue.pieces.values() if f"{_named(p)} |" not in text or _cell(p.wrong) not in text]
    for key in sorted(shown - set(catalogue.pieces)):
        print(f"{key}: on the page and not in the list")
    for key in stale:
        print(f"{key}: not on the page, or with other words")
    if stale or shown - set(catalogue.pieces):
        print("write it again with: python benchmarks/museum.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
