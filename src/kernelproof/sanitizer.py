"""NVIDIA's compute-sanitizer: where it is, how its tools are run beside one another, and what their findings mean.

Each tool watches a process of its own (kernelproof.sanitizing) that calls one candidate on a few cases. Findings are
taken from the tool's XML, whose elements NVIDIA documents by example only: what is known is looked for, what is not
known is passed over, and a count that does not agree with the tool's own summary is no clean run.

A finding condemns when the tool calls it an error and it lies in a kernel of the variant's own build. Everything else
is kept: findings in a library's kernels, warnings (racecheck's are for code that may be meant so). A tool that cannot
run, ends badly or takes too long says nothing about the candidate.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
import shutil
import signal
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelproof import builds, privacy, processes, supervisor, toolchain
from kernelproof.errors import ToolError, describe_exit
from kernelproof.records import (
    BuildRecord,
    Failure,
    SanitizerFinding,
    SanitizerRun,
    SourcePlace,
)

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PROGRAM_VARIABLE = "KERNELPROOF_COMPUTE_SANITIZER"
REMEDY = (
    "it comes with the CUDA toolkit, or pip install nvidia-cuda-sanitizer-api; "
    f"{PROGRAM_VARIABLE} names one that lies elsewhere"
)
COMPILED_IN = "/proc/self/cwd/"  # the repository as the build's compiler saw it
PRINT_LIMIT = 500  # findings that a tool writes down
POLL_S = 0.02
LOGGED_CHARACTERS = 6000  # of each of a tool's texts
# Option: its value, where the program knows the option: releases differ in them. The time limit is ours alone.
OPTIONS = {
    "target-processes": "all",  # an interpreter may be a script that starts the true one
    "launch-timeout": "0",
    "max-connections": "64",  # ports: other tools run beside this one
    "print-limit": str(PRINT_LIMIT),
    "show-backtrace": "device",
    "demangle": "no",  # the build's record knows kernels by their mangled names
    "strip-paths": "no",
    "destroy-on-device-error": "kernel",  # the calls after it are still made
}
TOOL_OPTIONS = {
    # Allocations may follow one another without a gap; padding between them is what a write past the end hits.
    "memcheck": {"padding": "256", "leak-check": "no", "report-api-errors": "no"},
    "racecheck": {"racecheck-report": "analysis"},
    "initcheck": {"check-api-memory-access": "no"},  # a copy's padding is no kernel's fault
    "synccheck": {},
}
# Records that are not about a kernel's work.
PASSED_OVER = ("api", "cudaapilog", "launchinfo", "synclog", "leak", "unusedmemory", "optix leak")


@dataclass(frozen=True)
class Program:
    """compute-sanitizer: its path, its version, and the names of the options that it knows."""

    path: Path
    version: str
    options: frozenset[str]

    def command(self, tool: str, report: Path, log: Path) -> list[str]:
        """The command line up to the program that is to be watched."""
        wanted = {**OPTIONS, **TOOL_OPTIONS[tool]}
        chosen = [part for name, value in wanted.items() if name in self.options for part in (f"--{name}", value)]
        return [str(self.path), "--tool", tool, "--xml", "--save", str(report), "--log-file", str(log), *chosen, "--"]


def find() -> Program:
    """The program: $KERNELPROOF_COMPUTE_SANITIZER, the toolkit in use, the wheel, $CUDA_HOME, /usr/local/cuda, PATH.

    Raises ToolError with the remedy when there is none, or when it does not run.
    """
    path = locate()
    if path is None:
        looked = ", ".join(dict.fromkeys(map(str, _places())))
        raise ToolError(f"it is missing: looked for {looked}", subject="compute-sanitizer", hint=REMEDY)
    return _identified(path)


def locate() -> Path | None:
    """Where the program is, without starting it."""
    return next((place for place in _places() if os.access(place, os.X_OK) and place.is_file()), None)


def _places() -> Iterator[Path]:
    if chosen := os.environ.get(PROGRAM_VARIABLE):
        yield Path(chosen)
        return
    homes = [_home(toolchain.CUDA_HOME_VARIABLE), *toolchain.wheel_homes(), _home("CUDA_HOME")]
    for home in (*homes, Path("/usr/local/cuda")):
        if home is not None:
            yield home / "bin" / "compute-sanitizer"
            yield home / "compute-sanitizer" / "compute-sanitizer"
    if found := shutil.which("compute-sanitizer"):
        yield Path(found)


def _home(variable: str) -> Path | None:
    return Path(os.environ[variable]) if os.environ.get(variable) else None


@functools.cache
def _identified(path: Path) -> Program:
    version = re.search(r"^Version (\S+)", processes.run([path, "--version"], timeout_s=60).stdout, re.MULTILINE)
    if version is None:
        raise ToolError("it does not say its version", subject=str(path), hint=REMEDY)
    options = re.findall(r"--([a-z0-9][a-z0-9-]+)", processes.run([path, "--help"], timeout_s=60).stdout)
    return Program(path, version[1], frozenset(options))


# --- running ----------------------------------------------------------------------------------------------------------


@dataclass
class Ended:
    """How a tool's process ended: its exit status (None: it was killed at its limit) and what it left behind.

    `steps` are the lines of kernelproof.sanitizing; `said` is the tool's own text, `printed` that of the candidate.
    """

    returncode: int | None
    duration_s: float
    steps: list[dict[str, Any]]
    report: bytes
    said: str
    printed: str

    @property
    def state(self) -> str:
        """The last step that the candidate's process reported; empty when it did not come to one."""
        return str(self.steps[-1].get("state", "")) if self.steps else ""

    @property
    def excerpt(self) -> str:
        """What a log keeps of it: the beginning of each text, and of the report where it holds anything."""
        report = self.report.decode(errors="replace") if b"<record" in self.report or not self.said else ""
        return "\n".join(text[:LOGGED_CHARACTERS] for text in (self.said, self.printed, report) if text) + "\n"

    def count(self, state: str) -> int:
        """How many steps are of a kind."""
        return sum(step.get("state") == state for step in self.steps)


class Examination:
    """One candidate under several tools, each in a process of its own, as many at a time as there are cores.

    `plan` is kernelproof.sanitizing's, without `supervisor` and `progress`; `folder` is an existing one, for everything
    that comes of it. The first processes start at once and beside the caller, who must call `close`.
    """

    def __init__(
        self,
        program: Program,
        tools: Sequence[str],
        plan: Mapping[str, Any],
        folder: Path,
        *,
        limit_s: float,
    ) -> None:
        self.program = program
        self.tools = list(tools)
        self._plan = plan
        self._folder = folder
        # Without a cache of torch's every tensor is an allocation that the tools know the bounds of.
        self._environment = {**supervisor.environment(folder, threads=1), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        self._limit_s = limit_s
        self._waiting = list(tools)
        self._running: dict[str, tuple[Any, float]] = {}
        self._ended: dict[str, Ended] = {}
        self._look()

    def result(self, tool: str) -> Ended:
        """How a tool ended, waiting for it."""
        while tool not in self._ended:
            self._look()
            if tool not in self._ended:
                time.sleep(POLL_S)
        return self._ended[tool]

    def close(self) -> None:
        """Kill what still runs."""
        self._waiting.clear()
        for tool in list(self._running):
            self._end(tool, None)

    def _look(self) -> None:
        """Take note of what ended, kill what ran past its limit, start what there is room for."""
        for tool, (process, started) in list(self._running.items()):
            if process.poll() is not None:
                self._end(tool, process.returncode)
            elif time.monotonic() - started > self._limit_s:
                self._end(tool, None)
        while self._waiting and len(self._running) < max(1, len(os.sched_getaffinity(0))):
            self._start(self._waiting.pop(0))

    def _start(self, tool: str) -> None:
        plan = self._file(tool, "plan")
        orders = {**self._plan, "supervisor": os.getpid(), "progress": str(self._file(tool, "progress"))}
        plan.write_text(json.dumps(orders), encoding="utf-8")
        target = [sys.executable, "-P", "-m", "kernelproof.sanitizing", str(plan)]
        command = self.program.command(tool, self._file(tool, "xml"), self._file(tool, "log"))
        with self._file(tool, "out").open("ab") as out:
            process = processes.spawn(
                [*command, *target], cwd=self._folder, env=self._environment, stdout=out, stderr=out
            )
        self._running[tool] = process, time.monotonic()

    def _end(self, tool: str, returncode: int | None) -> None:
        process, started = self._running.pop(tool)
        processes.kill_group(process)
        _kill_named(str(self._file(tool, "plan")))  # the tool may have put the process that it watches elsewhere
        # It may have ended while the caller was busy with something else: the tool's last words are its end.
        files = [self._file(tool, kind) for kind in ("log", "progress")]
        last = max((path.stat().st_mtime for path in files if path.exists()), default=time.time())
        spent_s = time.monotonic() - started
        self._ended[tool] = Ended(
            returncode=returncode,
            duration_s=min(spent_s, max(0.0, spent_s - (time.time() - last))),
            steps=_steps(self._file(tool, "progress")),
            report=_bytes(self._file(tool, "xml")),
            said=_bytes(self._file(tool, "log")).decode(errors="replace"),
            printed=_bytes(self._file(tool, "out")).decode(errors="replace"),
        )

    def _file(self, tool: str, kind: str) -> Path:
        return self._folder / f"{tool}.{kind}"


def _steps(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in _bytes(path).decode(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            step = json.loads(line)
            found += [step] if isinstance(step, dict) else []
    return found


def _bytes(path: Path, limit: int = 32 << 20) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(limit)
    except OSError:
        return b""


def _kill_named(argument: str) -> None:
    """Kill every process that has this word on its command line."""
    word = argument.encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                os.kill(int(path.parent.name), signal.SIGKILL)


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Owner:
    """What belongs to a variant: its kernels by mangled name, and the files that it was built from.

    Without a build (a Python callable), the files of the repository are its own.
    """

    kernels: Mapping[str, str]  # mangled → as people read it
    files: frozenset[str]
    root: Path
    partial: frozenset[str] = frozenset()  # those with barriers that some warps may pass alone
    vector_reads: frozenset[tuple[str, int, int]] = frozenset()  # kernel, offset, bytes: see KernelResources

    @classmethod
    def of(cls, built: BuildRecord | None, root: Path) -> Owner:
        """The owner as the build stage recorded it."""
        cubins = built.cubins if built else []
        # What the machine code of another architecture holds at the same place says nothing.
        run = builds.cubins_for(cubins, toolchain.native_archs()) or cubins
        compiled = [kernel for cubin in run for kernel in cubin.kernels]
        kernels = {kernel.name: kernel.demangled for kernel in compiled}
        files = {file.path for file in built.files} if built else set()
        partial = {kernel.name for kernel in compiled if kernel.partial_barriers}
        reads = {(kernel.name, offset, size) for kernel in compiled for offset, size in kernel.shared_vector_reads}
        return cls(kernels, frozenset(files), root.resolve(), frozenset(partial), frozenset(reads))

    def owns(self, places: Sequence[SourcePlace]) -> bool:
        """Whether one of the places is in a kernel or a file of the variant's."""
        return any(place.function in self.kernels or self._own_file(place.file) for place in places)

    def partly_synchronised(self, places: Sequence[SourcePlace]) -> bool:
        """Whether some warps may pass a barrier alone in the kernel of these places; where none is named, in any."""
        names = {place.function for place in places}
        there = {
            name for name, shown in self.kernels.items() if name in names or names & set(re.findall(r"\w+", shown))
        }
        return bool(self.partial & (there or self.partial))

    def reads_past(self, function: str, offset: int | None, size: int) -> bool:
        """Whether `size` bytes outside shared memory are a part of a load there, whose other part lies inside."""
        loads = (read for read in (8, 16) if (function, offset, read) in self.vector_reads)
        return size not in (1, 2, 4, 8, 16) or any(read > size for read in loads)

    def _own_file(self, file: str | None) -> bool:
        if file is None:
            return False
        if self.files or self.kernels:
            return file in self.files
        return not file.startswith("/") and "site-packages" not in file and (self.root / file).is_file()

    def place(self, function: str, file: str | None, line: int | None, access: str | None = None) -> SourcePlace:
        """A place, its file relative to the repository, with the text of its line."""
        shown = self._relative(file) if file else None
        return SourcePlace(function, shown, line or None, self._text(shown or "", line or 0), access)

    def _relative(self, file: str) -> str:
        path = Path(os.path.normpath(self.root / file.removeprefix(COMPILED_IN)))
        if path.is_relative_to(self.root):
            inside = str(path.relative_to(self.root))
            if inside in self.files or path.is_file():
                return inside
        # Older releases give the name alone.
        named = [known for known in sorted(self.files) if Path(known).name == Path(file).name]
        return named[0] if len(named) == 1 and "/" not in file else privacy.scrubbed(file)

    def _text(self, file: str, line: int) -> str | None:
        try:
            lines = (self.root / file).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return None
        return lines[line - 1].strip() if 0 < line <= len(lines) else None


class Unreadable(ToolError):
    """A tool's report is not what this module knows."""


def parse(report: bytes, tool: str, owner: Owner) -> list[SanitizerFinding]:
    """The findings of a report, the same ones of other threads folded into one.

    Raises Unreadable when it is no XML of compute-sanitizer.
    """
    try:
        whole = ElementTree.fromstring(report)
    except ElementTree.ParseError as error:
        raise Unreadable(f"its report is no XML: {error}", subject=tool) from None
    if whole.tag != "ComputeSanitizerOutput":
        raise Unreadable(f"its report begins with <{whole.tag}>, not <ComputeSanitizerOutput>", subject=tool)
    folded: dict[tuple[Any, ...], SanitizerFinding] = {}
    for element in whole.iter("record"):
        if _text(element, "kind").lower() in PASSED_OVER:
            continue
        found = _finding(element, tool, owner)
        same = (found.kind, found.level, found.message, tuple((p.function, p.file, p.line) for p in found.places))
        if same in folded:
            folded[same].count += found.count
        else:
            folded[same] = found
    order = {"error": 0, "warning": 1}
    return sorted(folded.values(), key=lambda f: (not f.own, order.get(f.level, 2)))


def _finding(element: ElementTree.Element, tool: str, owner: Owner) -> SanitizerFinding:
    kind, text = _text(element, "kind"), _text(element, "what/text") or _text(element, "text")
    if particular := _text(element, "what/type"):  # synccheck's text is "Barrier error" alone
        text = f"{text}: {particular}"
    named = _places_of(element, text, owner)
    places = [place for place, _ in named]
    if tool == "racecheck":  # the accesses count; from where their functions were called does not
        places = [place for place, called in named if not called] or places
    what = element.find("what")
    own = owner.owns([place for place, _ in named])
    hazards = re.search(r"\[(\d+) hazards?\]", text)
    kernel = next((p.function for p in reversed(places) if p.function in owner.kernels), None)
    name = kernel or (places[-1].function if places else None)
    address = next((_text(element, path) for path in ADDRESSES if _text(element, path)), None)
    finding = SanitizerFinding(
        kind=kind or "unknown",
        level=_level(_text(element, "level")),
        own=own,
        message="",
        text=_one_line(text),
        kernel=_demangled(name, owner) if name else None,
        places=[dataclasses.replace(place, function=_demangled(place.function, owner)) for place in places],
        thread=_index(element, "threadIdx"),
        block=_index(element, "blockIdx"),
        address=address,
        bytes=_number(_text(what, "size")) if what is not None else None,
        count=int(hazards[1]) if hazards else 1,
    )
    if finding.bytes is None and (size := re.search(r"of size (\d+) bytes?", text)):
        finding.bytes = int(size[1])
    finding.message = diagnosis(tool, finding)
    if tool == "racecheck" and finding.level == "error" and own and owner.partly_synchronised([p for p, _ in named]):
        finding.level, finding.message = "warning", f"{finding.message}; {DOUBTFUL}"
    if tool == "synccheck" and NOT_ALL in text and own and owner.partly_synchronised(places) and _counts(places[0]):
        finding.level, finding.message = "warning", f"{finding.message}; {IN_TWO_PLACES}"
    if own and "__shared__ read" in text and finding.bytes is not None and name is not None:
        offset = next((_number(node.text or "") for node in element.iter("pc")), None)
        if owner.reads_past(name, offset, finding.bytes):
            finding.level, finding.message = "warning", f"{finding.message}; {WIDENED}"
    return finding


# The rest of a loop by fours, of which at most three are used, was read by one load of four (nvcc 13.0 for sm_90a), and
# a right kernel accused (release 2025.3.1): what lies outside is what memcheck counts of such a load.
WIDENED = (
    "the load of which this is a part begins inside: ptxas reads neighbours in shared memory with one load, also where "
    "not all of them are used, and memcheck ends a kernel there: not held against it"
)
# A right kernel in which half of the warps met twice, before all wrote, met and read, was accused (release 2025.3.1).
DOUBTFUL = (
    "racecheck loses count of barriers that some warps of a block pass alone, as they may here (bar.sync 1 to "
    "15): not held against it"
)


# A right kernel whose warps met by twos, some in one branch and some in the other, was accused (release 2025.3.1).
NOT_ALL, COUNTED_BARRIER = "Divergent thread(s) in block", re.compile(r"\bbar(?:rier)?(?:\.cta)?\.sync\b[^;]*,")
IN_TWO_PLACES = (
    "the warps of a barrier with a number of threads may come to it in different places of the code, which synccheck "
    "takes for different barriers, and does not tell from warps that do not come: not held against it"
)


def _counts(place: SourcePlace) -> bool:
    """Whether there a barrier with a number of threads stands in the source, as inline assembly; comments aside."""
    return bool(COUNTED_BARRIER.search(re.sub(r"//.*|/\*.*?(?:\*/|$)", "", place.source or "")))


# What such findings leave unknown: what to do about it.
UNSURE = {
    IN_TWO_PLACES: "its findings are noted: with that barrier in one place of the code it shows whether all come",
    DOUBTFUL: "its findings are noted: look whether a barrier of the whole block orders those accesses",
    WIDENED: "ask for 16 bytes more of dynamic shared memory than are used: then it can look on",
}
# Where the address of an access has been seen, or its protocol message names it.
ADDRESSES = ("what/address", "what/accessAddress", "address", "accessAddress", "what/errorAddress", "what/smemAddress")
PLACE_IN_TEXT = re.compile(
    r"(?:\b(?P<access>Read|Write|Atomic)\s+(?:access|Thread \([\d,]+\))\s+)?\bat (?P<function>\S[^+\n]*?)\+0x[0-9a-f]+"
    r"(?: in (?P<file>\S+?):(?P<line>\d+))?"
)


def _places_of(element: ElementTree.Element, text: str, owner: Owner) -> list[tuple[SourcePlace, bool]]:
    """Every place on the device that a record names, the innermost first, and whether it is one further up the stack.

    Where the record's sentence names more, it is those.
    """
    found: dict[tuple[Any, ...], tuple[SourcePlace, bool]] = {}
    for path, node, parent in _walk(element):
        function, file = _text(node, "func"), _text(node, "path") or _text(node, "file")
        if "hostStack" in path or not (function or file):
            continue
        access = next((_text(each, name) for each in (node, parent) for name in ACCESSES if _text(each, name)), "")
        place = owner.place(function, file or None, _number(_text(node, "line")), _access(access))
        found.setdefault((*_spot(place), place.access), (place, "deviceStack" in path))
    written = [
        owner.place(m["function"].strip(), m["file"], int(m["line"]) if m["line"] else None, _access(m["access"] or ""))
        for m in PLACE_IN_TEXT.finditer(text)
    ]
    if len({_spot(place) for place in written}) > len({_spot(place) for place, _ in found.values()}):
        return [(place, False) for place in written]
    return list(found.values())


ACCESSES = ("direction", "access")


def _spot(place: SourcePlace) -> tuple[str, str | None, int | None]:
    return place.function, place.file, place.line


def _walk(
    element: ElementTree.Element, above: tuple[str, ...] = (), parent: ElementTree.Element | None = None
) -> Iterator[tuple[tuple[str, ...], ElementTree.Element, ElementTree.Element | None]]:
    """Every element with the tags above it and its parent, in the document's order."""
    here = (*above, element.tag)
    yield here, element, parent
    for child in element:
        yield from _walk(child, here, element)


def _access(word: str) -> str | None:
    return next((name for name in ("read", "write", "atomic") if name in word.lower()), None)


def _level(word: str) -> str:
    """error, warning or info; what a record does not rank is an error, as memcheck's are."""
    word = word.lower()
    return "warning" if word.startswith("warn") else "info" if word.startswith("info") else "error"


def _text(element: ElementTree.Element | None, path: str) -> str:
    found = element.find(path) if element is not None else None
    return (found.text or "").strip() if found is not None else ""


def _number(text: str) -> int | None:
    text = text.replace(",", "")
    with contextlib.suppress(ValueError):
        return int(text, 0)
    return None


def _index(element: ElementTree.Element, name: str) -> list[int] | None:
    """`threadIdx` or `blockIdx`: children x, y, z, or a text like (1,0,0)."""
    node = next(iter(element.iter(name)), None)
    if node is None:
        return None
    values = [_number(_text(node, axis)) for axis in "xyz"]
    numbers = [value for value in values if value is not None] or [int(n) for n in re.findall(r"\d+", node.text or "")]
    return numbers or None


def _demangled(name: str, owner: Owner) -> str:
    return owner.kernels.get(name, name)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:2000]


# --- what it means ----------------------------------------------------------------------------------------------------


def diagnosis(tool: str, finding: SanitizerFinding) -> str:
    """One sentence: what happens, where, and the likely cause."""
    what, cause = {"memcheck": _access_fault, "racecheck": _race, "initcheck": _unwritten, "synccheck": _barrier}[tool](
        finding
    )
    return f"{what}{_who(finding)}" + (f": {cause}" if cause else "")


def _at(place: SourcePlace | None) -> str:
    """`at file:line, where it says …`."""
    if place is None:
        return ""
    if place.file is None:
        return f" in {place.function}" if place.function else ""
    text = f" ({place.source})" if place.source else ""
    return f" at {place.file}:{place.line}{text}" if place.line else f" in {place.file}"


def _who(finding: SanitizerFinding) -> str:
    where = [f"in {finding.kernel}"] if finding.kernel else []
    return f" {where[0]}" if where else ""


def _first(finding: SanitizerFinding) -> SourcePlace | None:
    return finding.places[0] if finding.places else None


def _access_fault(finding: SanitizerFinding) -> tuple[str, str]:
    text, place = finding.text.lower(), _at(_first(finding))
    size = f" of {finding.bytes} bytes" if finding.bytes else ""
    access = next((word for word in ("write", "read", "atomic") if word in text), "access")
    if "misaligned" in text:
        return f"a misaligned {access}{size}{place}", (
            "a vector access whose address is no multiple of its size; the base or a row of the tensor is not aligned"
        )
    if "__shared__" in text:
        return f"a {access}{size} outside the block's shared memory{place}", (
            "the launch asks for less dynamic shared memory than the tile needs, or an index runs past the tile"
        )
    if "__local__" in text:
        return f"a {access}{size} outside an array on the stack{place}", "an index that runs past its end"
    if "out of bounds" in text or "__global__" in text:
        return f"a {access}{size} outside every buffer{place}", (
            "a tail that no bound check guards, or an index that was computed for a padded shape"
        )
    return f"{finding.text or finding.kind}{place}", ""


def _race(finding: SanitizerFinding) -> tuple[str, str]:
    spots = list({_spot(place): place for place in finding.places}.values())
    if "exited" in finding.text or "not have entered" in finding.text:
        return f"shared memory of another block in the cluster is used{_at(_first(finding))}", (
            "no cluster-wide barrier makes sure that the other block has begun, or not ended yet"
        )
    if len(spots) < 2:
        return f"several threads use the same shared memory{_at(_first(finding))}, and at least one writes", (
            "no barrier orders them; let one thread write, or put __syncthreads() (within a warp __syncwarp()) between"
        )
    writes = [place for place in spots if place.access == "write"] or spots[:1]
    others = [place for place in spots if place is not writes[0]]
    verbs = {"read": "a read", "write": "a write", "atomic": "an atomic", None: "an access"}
    rest = " and ".join(f"{verbs[place.access]}{_at(place)}" for place in others)
    cause = "no barrier orders them; put __syncthreads() (within a warp __syncwarp()) between"
    if "memcpy_async" in finding.text or "async" in finding.text.lower():
        cause = "the asynchronous copy is not waited for before its target is used"
    return f"{verbs[writes[0].access]}{_at(writes[0])} and {rest} touch the same shared memory", cause


def _unwritten(finding: SanitizerFinding) -> tuple[str, str]:
    size = f" of {finding.bytes} bytes" if finding.bytes else ""
    space = "shared" if "__shared__" in finding.text else "global"
    return f"a read{size} of {space} memory that nobody has written{_at(_first(finding))}", (
        "an output that is added to, a workspace or counter that nobody cleared, or a part that another block should "
        "have written"
    )


def _barrier(finding: SanitizerFinding) -> tuple[str, str]:
    text, place = finding.text.lower(), _at(_first(finding))
    if "divergent" in text:
        whom = "warp" if "in warp" in text else "block"
        return f"a barrier that not every thread of the {whom} reaches{place}", (
            "it stands beneath a condition that threads decide differently, or after a return that some take"
        )
    if "invalid argument" in text:
        return f"a barrier with invalid arguments{place}", (
            "a thread that is not in the mask executes it, or the count of threads is not a multiple of a warp"
        )
    if "warpgroup" in text:
        return f"a warpgroup whose warps do not execute the same wgmma sequence{place}", (
            "a condition or an early return that its warps decide differently"
        )
    return (
        f"{finding.text or finding.kind}{place}",
        "an mbarrier that is not initialised, waited for, or used as it was set up",
    )


# --- the verdict on a run ---------------------------------------------------------------------------------------------


SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
OWN_FAULT = re.compile(
    r"^=+\s*((?:Internal Sanitizer )?Error: .*|.*[Nn]ot supported.*|.*[Pp]ermission.*)$", re.MULTILINE
)
SAID = re.compile(r"^=+[ \t]+((?!COMPUTE-SANITIZER)\S.*)$", re.MULTILINE)
# What compute-sanitizer says in such a line of a program that it watches, and not of itself.
NO_OWN_FAULT = ("process didn't terminate", "Target application", "Race reported", "hazard", "Barrier error")


def judge(tool: str, ended: Ended, owner: Owner, limit_s: float) -> SanitizerRun:
    """What a tool's run amounts to: findings condemn, and whatever kept the tool from finding any is a reason."""
    run = SanitizerRun(tool, "passed", ended.duration_s, calls=ended.count("returned"), refused=ended.count("refused"))
    try:
        run.findings = parse(ended.report, tool, owner) if ended.report.strip() else []
    except Unreadable as error:
        run.reason = error.message
        run.remedy = "report this with the test's log: this release of compute-sanitizer writes something else"
    run.findings += _unexpected_end(ended, limit_s)
    if run.reason is None:
        run.reason, run.remedy = _incomplete(tool, ended, run.findings, limit_s)
    if run.reason is not None:
        run.status = "skipped"
    settle(run)
    if run.status == "passed" and ended.report.count(b"<record>") >= PRINT_LIMIT:
        run.status = "skipped"
        run.reason = f"it writes down {PRINT_LIMIT} findings, and none of these is held against the variant"
        whose = "the variant" if any(found.own for found in run.findings) else "other kernels"
        run.remedy = f"mend what it finds in {whose}: what comes after these is not known"
    return run


def settle(run: SanitizerRun) -> None:
    """What is an error in the variant's own kernels condemns it, also where the tool did not come to its end."""
    wrong = [found for found in run.findings if found.own and found.level == "error"]
    run.failures = [
        Failure(run.tool, found.message + (f" [{found.count} times]" if found.count > 1 else "")) for found in wrong
    ]
    if wrong:
        run.status = "failed"
    elif run.status == "passed":
        for words, remedy in UNSURE.items():
            if any(words in found.message for found in run.findings):
                run.status, run.reason, run.remedy = "skipped", words, remedy


CRASH, HANG = "crash", "hang"


def settle_crashes(runs: Sequence[SanitizerRun]) -> None:
    """A process that ends by itself under two tools does so whatever watches it; under one the tool may be to blame."""
    crashed = [(run, found) for run in runs for found in run.findings if found.kind == CRASH]
    if len(crashed) > 1:
        for run, found in crashed:
            found.level = "error"
            settle(run)


def _unexpected_end(ended: Ended, limit_s: float) -> list[SanitizerFinding]:
    """A candidate whose process ended, or did not answer, in the middle of a call under the tool."""
    if ended.state != "calling":
        return []
    number = int(ended.steps[-1].get("call", 0)) + 1
    if ended.returncode is None:
        said = f"call {number} did not come back within {limit_s:g} s under the tool"
        why = "a wait that hangs on how fast other blocks are, or a kernel that the tool slows down too much"
        return [SanitizerFinding(HANG, "warning", True, f"{said}: {why}", said)]
    said = f"the process ended in the middle of call {number} under the tool"
    why = "memory of the host that is used outside its bounds, or a fault of the tool; two tools must agree on it"
    return [SanitizerFinding(CRASH, "warning", True, f"{said}: {why}", said)]


def _incomplete(
    tool: str, ended: Ended, findings: Sequence[SanitizerFinding], limit_s: float
) -> tuple[str | None, str | None]:
    """Why nothing can be concluded from a run that found nothing, and what to do about it; None when it is whole."""
    faults = [fault for fault in OWN_FAULT.findall(ended.said) if not any(known in fault for known in NO_OWN_FAULT)]
    words = _one_line(privacy.scrubbed(faults[0])) if faults else ""
    if ended.returncode is None:
        if ended.state == "calling":
            return f"it did not end within {limit_s:g} s", "raise test.sanitizer.time_limit_s, or lower .cases"
        return (
            f"it was killed after {limit_s:g} s, before a call was made" + (f": {words}" if words else ""),
            "see the test's log; raise test.sanitizer.time_limit_s",
        )
    if ended.state in ("unloadable", "failed"):
        what = "it cannot be loaded" if ended.state == "unloadable" else "a call failed"
        return f"{what} under the tool: {ended.steps[-1].get('message', '')}", "see the test's log"
    if ended.state != "finished":
        how = f"it {describe_exit(ended.returncode)}" if ended.returncode else "it ended early"
        said = words or _one_line(privacy.scrubbed(" ".join(SAID.findall(ended.said))))[:300]
        return (
            f"{how}: {said}" if said else how,
            "see the test's log; kernelproof doctor says whether compute-sanitizer can run here",
        )
    if words:
        return words, "see the test's log; kernelproof doctor says whether compute-sanitizer can run here"
    counted = [int(number) for number in SUMMARY.findall(ended.said)]
    if not counted:
        return "it did not say how many errors it found", "see the test's log"
    if any(counted) and not findings:
        return (
            f"it counts {max(counted)} errors, and its report names none that is understood",
            "report this with the test's log: this release of compute-sanitizer writes something else",
        )
    if ended.count("returned") == 0:
        return "the candidate declines every case that was tried", None
    return None, None
