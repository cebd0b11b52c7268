"""The kill matrix of the museum: which check caught which defect, and what two naive evaluators would have said.

    python benchmarks/museum.py                   run every piece that can run here: on the CPU, and on a GPU if any
    python benchmarks/museum.py --device cuda     only those of one device
    python benchmarks/museum.py --page            run nothing: write the page from the kept records
    python benchmarks/museum.py --check           run nothing: does the page show the pieces that there are?
    python benchmarks/museum.py --compile         run nothing: compile every piece for a GPU, with or without one

The pieces go through the build stage and the test stage, those that they find right through the bench stage. Beside
that stands what is usual: one call on the mission shape with normal inputs of seed 0, its result in fresh memory held
against the reference by `allclose(rtol=1e-2, atol=1e-2)`; and the time of a call (on a GPU between two events), held
against the honest twin's, which nothing keeps from being the time of a wrong result. What was found is kept as
reports/reference/<device>/museum.json, from which docs/explanation/museum.md is written. Exit code 1 when a piece is
not caught by its own class, or one that the list calls pending is, or a twin is accused.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Whether there is a GPU must not be asked of CUDA here: processes are forked from this one that use it.
os.environ |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from museum import workshop
from museum.workshop import Catalogue, Piece

from kernelproof import config, gpu, records, repository
from kernelproof.config import Config, VariantConfig
from kernelproof.errors import RecordError
from kernelproof.processes import scrubbed
from kernelproof.records import BenchRecord, BuildRecord, Case, Provenance, TestRecord

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "explanation" / "museum.md"
KEPT = ROOT / "reports" / "reference"
SCHEMA = "kernelproof.museum/1"
DEVICES = ("cpu", "cuda")
TOLERANCE = 1e-2
NAIVE_LIMIT_S = 15.0
TIMED_CALLS = {"cpu": 1, "cuda": 30}  # after the one that is judged
AT_ONCE = {"cpu": 1, "cuda": 4}  # naive evaluations: on a GPU most of their time goes into starting up
GPU_WORKERS = 4  # processes that judge on one GPU: contexts take turns, and more of them wait for each other
SAME = (0.8, 1.25)  # a quarter either way: these times are taken once, on whatever machine
EVIDENCE_LINES = 40  # of a log, where a piece was not caught


@dataclass
class Naive:
    """What the naive evaluators said: `passes`, `fails`, `crashes`, `hangs`; seconds a call, None where none ended."""

    allclose: str
    seconds: float | None = None


@dataclass
class Row:
    """What became of a piece or a twin: the checks that failed, with their words, and what is usual beside that.

    own: a check of its own class is among them. speed: its time beside the honest twin's.
    """

    caught: dict[str, str]
    own: bool
    verdict: str
    naive: Naive
    speed: str = "no time"


@dataclass
class Figures:
    """The record of a run: rows by `operator/name`; of which commit, where a run noted it."""

    device: str
    name: str  # what it ran on
    provenance: Provenance = field(default_factory=Provenance)
    pieces: dict[str, Row] = field(default_factory=dict)
    twins: dict[str, Row] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # what each part took
    troubles: list[str] = field(default_factory=list)  # what failed on our side
    schema: str = SCHEMA

    @property
    def accused(self) -> list[str]:
        """Honest twins that were not found correct."""
        return [key for key, row in self.twins.items() if row.verdict != "correct" or row.caught]


def main() -> int:
    """Run or check; gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="compare the page with the list of pieces; run nothing")
    parser.add_argument("--page", action="store_true", help="write the page from the kept records; run nothing")
    parser.add_argument("--compile", action="store_true", help="compile the CUDA pieces for sm_89 and sm_90a, and end")
    parser.add_argument("--device", choices=DEVICES, help="which pieces to run (default: all that can run here)")
    parser.add_argument("--folder", type=Path, help="where to build and test (default: a temporary folder)")
    parser.add_argument("--output", type=Path, help="where the record goes (default: below reports/reference)")
    parser.add_argument("--only", nargs="*", metavar="PIECE", help="these, and the twins; the record is not kept")
    arguments = parser.parse_args()
    catalogue = workshop.catalogue()
    if arguments.check:
        return check(catalogue)
    if arguments.page:
        return write_page(catalogue)
    present, why = gpu.available()
    devices = [arguments.device] if arguments.device else ["cpu", "cuda"] if present else ["cpu"]
    if "cuda" in devices and not present and not arguments.compile:
        print(f"the pieces for a GPU cannot run here: {why}", file=sys.stderr)
        return 2
    code = 0
    with contextlib.ExitStack() as ends:
        folder = arguments.folder or Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="museum-")))
        if arguments.compile:
            return compile_all(catalogue, folder)
        for device in devices:
            pieces = {k: p for k, p in catalogue.pieces.items() if p.device == device}
            if arguments.only:
                pieces = {k: p for k, p in pieces.items() if k in arguments.only or p.name in arguments.only}
            figures = run(pieces, folder / device, device)
            code |= report(pieces, figures, folder / device)
            if not arguments.only:
                path = arguments.output or record_path(figures)
                path.parent.mkdir(parents=True, exist_ok=True)
                text = json.dumps(dataclasses.asdict(figures), indent=1, ensure_ascii=False)
                records.atomic_write(path, scrubbed(text.replace(str(folder), "<folder>")) + "\n")
                print(f"{path} written")
    return code if arguments.only else code | write_page(catalogue)


def record_path(figures: Figures) -> Path:
    """Where a device's record is kept: reports/reference/nvidia-h200/museum.json."""
    slug = "cpu" if figures.device == "cpu" else re.sub(r"[^a-z0-9]+", "-", figures.name.lower()).strip("-")
    return KEPT / slug / "museum.json"


def run(pieces: dict[str, Piece], folder: Path, device: str) -> Figures:
    """Build, test, time and compare. Nothing that goes wrong on the way keeps the rest from being looked at."""
    cores = max(1, len(os.sched_getaffinity(0)))
    name = "cpu" if device == "cpu" else gpu.gpus()[0].name
    figures = Figures(device, name, repository.provenance(ROOT))
    project = workshop.workshop(folder, pieces.values(), device)
    with _clocked(figures, "build"):
        built = workshop.make(project, cores)
    for key, record in built.items():
        if record.status != records.OK and (key not in pieces or pieces[key].abi != "python"):
            figures.troubles.append(f"{key} was not built: {record.compiler_message or record.reason}")
    with _clocked(figures, "test"):
        workers = cores if device == "cpu" else min(GPU_WORKERS, cores)
        tested = workshop.judge(project, workers, pieces.values(), figures.troubles)
    with _clocked(figures, "bench"):
        timed = workshop.time(project, pieces.values(), device, figures.troubles)
    with _clocked(figures, "naive"):
        naive = dict(naively(project, device))
    for variant in project.variants():
        key = variant.key
        if key not in tested:
            figures.troubles.append(f"{key} has no record of its test")
            continue
        rows = figures.pieces if key in pieces else figures.twins
        rows[key] = _row(pieces.get(key), variant, tested[key], timed, naive)
    return figures


@contextlib.contextmanager
def _clocked(figures: Figures, part: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    figures.seconds[part] = round(time.monotonic() - started, 1)
    print(f"{figures.device}: {part} took {figures.seconds[part]} s", flush=True)


def _row(
    piece: Piece | None,
    variant: VariantConfig,
    tested: TestRecord,
    timed: dict[str, BenchRecord],
    naive: dict[str, Naive],
) -> Row:
    caught = workshop.caught_by(tested, timed.get(variant.operator))
    python_twin = f"{variant.operator}/good_python"
    twin_key = f"{variant.operator}/{workshop.TWIN[variant.device]}"
    twin = naive[python_twin if variant.abi == "python" and python_twin in naive else twin_key].seconds
    mine = naive[variant.key].seconds
    speed = "no time" if mine is None or twin is None else _speed(mine / twin)
    own = piece is not None and workshop.by_own_class(piece, caught)
    return Row(caught, own, tested.verdict, naive[variant.key], speed)


def _speed(ratio: float) -> str:
    return "faster" if ratio < SAME[0] else "slower" if ratio > SAME[1] else "same"


# --- what a run says --------------------------------------------------------------------------------------------------


def report(pieces: dict[str, Piece], figures: Figures, folder: Path) -> int:
    """A line for each piece and twin, and below it the evidence where it is not as the list says; the exit code."""
    failed = len(figures.troubles)
    for key, row in figures.twins.items():
        accused = key in figures.accused
        failed += accused
        print(f"{key}: {'AN HONEST TWIN, ACCUSED: ' + row.verdict if accused else 'correct, as it should be'}")
        if accused:
            _evidence(key, row, folder)
    for key, piece in pieces.items():
        row = figures.pieces.get(key)
        if row is None:
            continue
        words = row.caught.values()
        said = re.search(piece.says, "\n".join(words)) is not None
        expected = row.own != bool(piece.pending) and (said or not row.own)
        failed += not expected
        print(f"{key}: {_how(piece, row)}{'' if said or not row.own else f', but not in the words /{piece.says}/'}")
        if not expected:
            _evidence(key, row, folder)
    for trouble in figures.troubles:
        print(f"TROUBLE: {trouble}")
    own = sum(row.own for row in figures.pieces.values())
    twins = len(figures.twins)
    print(
        f"{figures.device} ({figures.name}): {own} of {len(pieces)} caught by their own class, "
        f"{twins - len(figures.accused)} of {twins} twins correct, {figures.seconds}"
    )
    return 1 if failed else 0


def _how(piece: Piece, row: Row) -> str:
    naive = f"allclose {row.naive.allclose}, {row.speed}"
    if row.own:
        checks = [check for check in row.caught if _own(piece, check)]
        others = [check for check in row.caught if check not in checks]
        beside = f" (and {', '.join(others)})" if others else ""
        return (
            f"caught by its own class: {', '.join(checks)}{beside} [{naive}]{' though PENDING' * bool(piece.pending)}"
        )
    if piece.pending and not row.caught:
        return f"not caught, pending: {piece.pending} [{naive}]"
    if row.caught:
        return f"caught by ANOTHER class: {', '.join(row.caught)}; its own is {', '.join(piece.check)} [{naive}]"
    return f"NOT CAUGHT ({row.verdict}); its own is {', '.join(piece.check)} [{naive}]"


def _evidence(key: str, row: Row, folder: Path) -> None:
    """What the stages said, and the end of the test's log."""
    for check, words in row.caught.items():
        print(f"    {check}: {words[:600]}")
    operator, name = key.split("/")
    with contextlib.suppress(Exception):
        path = folder / "results" / "test" / operator / f"{name}.json"
        for rung in records.read(path, TestRecord).rungs:
            print(f"    {rung.name} {rung.status} {rung.duration_s:.1f} s {(rung.message or '')[:300]}")
        log = path.with_suffix(".log").read_text(encoding="utf-8").splitlines()
        print("\n".join(f"    | {line[:200]}" for line in log[-EVIDENCE_LINES:]))


def compile_all(catalogue: Catalogue, folder: Path) -> int:
    """Compile every piece and twin for a GPU, for two architectures; no GPU is needed."""
    project = workshop.workshop(folder, catalogue.pieces.values(), "cuda", archs=["sm_89", "sm_90a"])
    made = workshop.make(project, max(1, len(os.sched_getaffinity(0))))
    wrong = {key: record for key, record in made.items() if record.status != records.OK and record.abi != "python"}
    for key, record in wrong.items():
        print(f"{key}: {record.compiler_message or record.reason}")
    print(f"{len(made) - len(wrong)} of {len(made)} compile")
    return 1 if wrong else 0


# --- the naive evaluators ---------------------------------------------------------------------------------------------


def naively(project: Config, device: str) -> Iterator[tuple[str, Naive]]:
    """What they say of every variant of the project, each in processes of its own, on a GPU some at once."""
    import torch
    import tvm_ffi  # noqa: F401  once, and not in each process

    from kernelproof import judge, operators

    torch.set_num_threads(1)
    shapes = config.load(ROOT / "config.yaml", root=ROOT)
    running: list[_Evaluation] = []
    for operator in project.operators.values():
        module, settings = operators.load(operator.module, ROOT), shapes.operator(operator.name)
        for variant in operator.contenders(device):
            shape = settings.profile.shape
            case = Case(operator.name, shape, settings.shapes[shape], {}, variant.dtypes[0], "normal", 0)
            call = module.make_call(case, judge.generator(case))
            precision = variant.precision.of(case.dtype)
            expected = module.reference(call, precision).output
            if len(running) == AT_ONCE[device]:
                yield running.pop(0).said()
            running.append(_Evaluation(project, variant, call, expected))
    yield from (evaluation.said() for evaluation in running)


class _Evaluation:
    """One variant in a process below a process, since some pieces kill the one above them.

    The time comes back through a file. The result is bound to be asked for, by `said`.
    """

    def __init__(self, project: Config, variant: VariantConfig, call: Any, expected: Any) -> None:
        self.key = variant.key
        self.note = tempfile.NamedTemporaryFile()  # noqa: SIM115  closed by `said`
        self.deadline = time.monotonic() + NAIVE_LIMIT_S
        sys.stdout.flush()
        self.above = os.fork()
        if self.above == 0:
            os.setsid()
            below = os.fork()
            if below == 0:
                _call(project, variant, call, expected, Path(self.note.name))
            os._exit(os.waitstatus_to_exitcode(os.waitpid(below, 0)[1]) & 0xFF)

    def said(self) -> tuple[str, Naive]:
        """Wait for its end."""
        status = _wait(self.above, self.deadline)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.above, signal.SIGKILL)
        with self.note:
            text = self.note.read().decode()
        said = {0: "passes", 1: "fails", None: "hangs"}.get(status, "crashes")
        return self.key, Naive(said, float(text) if text else None)


def _wait(pid: int, deadline: float) -> int | None:
    """The exit code of a process (negative: by a signal), None when it was still running at the deadline."""
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            break
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _call(project: Config, variant: VariantConfig, call: Any, expected: Any, note: Path) -> None:
    """One call and its comparison, then the times of some more; ends the process with 0 where the result passes."""
    import torch

    from kernelproof.loading import load

    status = 3
    try:
        os.chdir(project.root)
        built = records.read(project.record("build", variant.operator, variant.name), BuildRecord)
        library = project.root / built.library.path if built.library else None
        function = load(variant, library, project.root)
        destination, on_gpu = variant.passing == "destination", variant.device == "cuda"
        given = dict(call.arguments if destination else call.inputs | _scalars(call))
        tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        if destination:
            tensors[call.outputs[0]] = torch.empty_like(call.output)
        if on_gpu:
            tensors = {name: tensor.cuda() for name, tensor in tensors.items()}
        given |= {n: t.numpy() for n, t in tensors.items()} if destination and not on_gpu else tensors

        def once() -> Any:
            returned = function(*given.values())
            return tensors[call.outputs[0]] if destination else returned

        result = once()
        if on_gpu:
            torch.cuda.synchronize()
        close = torch.allclose(result.cpu().double(), expected, rtol=TOLERANCE, atol=TOLERANCE)
        status = 0 if close else 1
        clock = _between_events if on_gpu else _by_the_clock
        seconds = [clock(once) for _ in range(TIMED_CALLS[variant.device])]
        note.write_text(repr(min(seconds)), encoding="utf-8")
    except BaseException as error:
        print(f"{variant.key}: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        os._exit(status)


def _by_the_clock(once: Callable[[], Any]) -> float:
    started = time.perf_counter()
    once()
    return time.perf_counter() - started


def _between_events(once: Callable[[], Any]) -> float:
    """Seconds between two events around a call, as it is usually done."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    once()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1000


def _scalars(call: Any) -> dict[str, Any]:
    return {name: value for name, value in call.arguments.items() if name not in call.tensors}


# --- the page ---------------------------------------------------------------------------------------------------------

HEAD = """\
# The museum: planted defects, and what catches them

Each line is a wrong kernel. It lies in [`tests/museum`](../../tests/museum/README.md), is built and judged by the real
stages whenever the tests run (those for a GPU, where there is one), and must be caught by the check that its class is
for. The honest twins, which the pieces are wrong copies of, must be found correct. `python benchmarks/museum.py` wrote
this page from the records of its runs, `reports/reference/<device>/museum.json`.

*Caught by* names every check that failed, as rung/criterion; those that its class is for are bold. A rung that fails
bars those above it, so the first check that a defect meets is often the only one. The columns beside it are what is
usual elsewhere. **allclose**: one call on the operator's mission shape with normal inputs of seed 0, held against the
reference with `rtol = atol = 1e-2` in the kernel's own process, whose exit code is the verdict. **timing**: the time of
a call beside the honest twin's, up to a quarter either way counting as the same; on a GPU the time between two events.
"""
TITLES = {"cpu": "On a CPU", "cuda": "On a GPU"}


def write_page(catalogue: Catalogue) -> int:
    """The page, from the records that are kept."""
    kept = [read_figures(path) for path in sorted(KEPT.glob("*/museum.json"))]
    records.atomic_write(PAGE, page(catalogue, kept))
    print(f"{PAGE.relative_to(ROOT)} written from {len(kept)} records")
    return 0


def read_figures(path: Path) -> Figures:
    """A kept record. Raises RecordError for one of another schema."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if data.get("schema") != SCHEMA:
        raise RecordError(f"its schema is {data.get('schema')!r}, expected {SCHEMA!r}", subject=str(path))
    for rows in (data["pieces"], data["twins"]):
        for key, row in rows.items():
            rows[key] = Row(**row | {"naive": Naive(**row["naive"])})
    return Figures(**data | {"provenance": Provenance(**data.get("provenance", {}))})


def page(catalogue: Catalogue, kept: list[Figures]) -> str:
    """The whole page: for each device what its latest record says, and pieces without one as not run yet."""
    lines = [HEAD.rstrip("\n")]
    for device in DEVICES:
        pieces = {key: piece for key, piece in catalogue.pieces.items() if piece.device == device}
        of_device = [figures for figures in kept if figures.device == device] or [Figures(device, "")]
        for figures in of_device:
            where = "" if device == "cpu" or not figures.name else f": {figures.name}"
            lines += ["", f"## {TITLES[device]}{where}", "", *_numbers(pieces, figures)]
            if state := figures.provenance.words:
                lines += ["", f"Run at {state}, in {sum(figures.seconds.values()):.0f} s."]
            for kind, words in catalogue.classes.items():
                lines += _table(words, {k: p for k, p in pieces.items() if p.kind == kind}, figures)
            lines += _waiting(catalogue, pieces, figures)
    return "\n".join([*lines, "", *_origin(catalogue), ""])


def _numbers(pieces: dict[str, Piece], figures: Figures) -> list[str]:
    counted = [row for key, row in figures.pieces.items() if key in pieces and not pieces[key].pending]
    if not counted:
        return ["These have not been run yet."]
    passed = [row for row in counted if row.naive.allclose == "passes"]
    fast = [row for row in counted if row.speed == "faster"]
    both = [row for row in passed if row.speed == "faster"]
    twins, waiting = len(figures.twins), sum(bool(piece.pending) for piece in pieces.values())
    return [
        "| | |",
        "| --- | --- |",
        f"| caught, by their own class | {sum(row.own for row in counted)} of {len(counted)} |",
        f"| honest twins found correct | {twins - len(figures.accused)} of {twins} |",
        f"| pass `allclose(1e-2)` | {len(passed)} of {len(counted)} |",
        f"| look faster than the honest twin | {len(fast)} of {len(counted)} |",
        f"| both: a win, to whoever asks no more | {len(both)} of {len(counted)} |",
        f"| in the list and not caught by their own class yet, not counted above | {waiting} |",
    ]


def _table(words: str, pieces: dict[str, Piece], figures: Figures) -> list[str]:
    counted = {key: piece for key, piece in pieces.items() if not piece.pending}
    if not counted:
        return []
    lines = ["", f"### {words[0].upper()}{words[1:]}", "", "| piece | what is wrong | caught by | allclose | timing |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for key, piece in counted.items():
        row = figures.pieces.get(key)
        if row is None:
            found = ("not run yet", "", "")
        else:
            checks = ", ".join(f"**{name}**" if _own(piece, name) else name for name in row.caught)
            found = (checks or "nothing", row.naive.allclose, row.speed)
        lines.append("| " + " | ".join((_named(piece), _cell(piece.wrong), *found)) + " |")
    return lines


def _waiting(catalogue: Catalogue, pieces: dict[str, Piece], figures: Figures) -> list[str]:
    waiting = [piece for piece in pieces.values() if piece.pending]
    if not waiting:
        return []
    lines = ["", "### Not caught by their own class yet", "", "| piece | class | what is wrong | what is missing |"]
    lines.append("| --- | --- | --- | --- |")
    for piece in waiting:
        words = catalogue.classes[piece.kind]
        lines.append(f"| {_named(piece)} | {words} | {_cell(piece.wrong)} | {_cell(piece.pending)} |")
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
        print("write it again with: python benchmarks/museum.py --page")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
