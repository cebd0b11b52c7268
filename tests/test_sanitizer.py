"""compute-sanitizer's findings: read, attributed, put into words, and what becomes of a tool that cannot run.

The tool itself needs a GPU: the tests marked `gpu` run it on planted defects. Without one, reports are samples, and
where processes are started a stand-in takes the tool's place: it runs what it is given and then writes a sample.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import shutil
import sys
import textwrap
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from defects import REPOSITORY, CallFiles, candidate, project, rmsnorm_call

from kernelproof import build, config, gpu, memory, records, sanitizer, sanitizing, test, toolchain
from kernelproof.config import Config, VariantConfig
from kernelproof.errors import ToolError
from kernelproof.ladder.climb import Ladder
from kernelproof.ladder.selection import RungCases
from kernelproof.ladder.session import Resources, Session
from kernelproof.records import BuildRecord, Cubin, FileHash, KernelResources, SanitizerRun, SourcePlace, TestRecord
from kernelproof.sanitizer import TOOLS, Ended, Examination, Owner, Unreadable, judge, parse

KERNEL, DEMANGLED = "_ZN4rows7rmsnormE11RmsNormArgsPf", "rows::rmsnorm(RmsNormArgs, float*)"
SOURCE = "\n".join(f"line {number};" for number in range(1, 60))


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    """A variant of one kernel and one source file."""
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "rows.cu").write_text(SOURCE)
    kernel = KernelResources(KERNEL, DEMANGLED, 32, 512, 0, 0, 0, 100, "0" * 64, shared_vector_reads=[[0xE0, 16]])
    cubin = Cubin("sm_90a", "lib.cubin", "0" * 64, 1, "0" * 64, kernels=[kernel])
    built = BuildRecord(sources=[FileHash("csrc/rows.cu", "0" * 64)], cubins=[cubin])
    return Owner.of(built, tmp_path)


# --- samples of reports -----------------------------------------------------------------------------------------------
# NVIDIA documents the root, `record`, `kind`, `what` with `text` and `hostStack` (Compute Sanitizer, 'Error
# suppression'), and the sentences in its sections on each tool. The elements beside those are as files of the tool
# have been seen to hold them; the reader must not rely on more than it finds.


def report(*parts: str) -> bytes:
    root = "ComputeSanitizerOutput"
    return f'<?xml version="1.0" encoding="utf-8"?>\n<{root}>{"".join(parts)}</{root}>'.encode()


def place(function: str, line: int, file: str = "/proc/self/cwd/csrc/rows.cu") -> str:
    return f"<func>{function}</func><path>{file}</path><line>{line}</line><pc>0xe0</pc>"


def who(thread: int, block: int = 0) -> str:
    index = "<{0}><x>{1}</x><y>0</y><z>0</z></{0}>"
    return f"<who>{index.format('threadIdx', thread)}{index.format('blockIdx', block)}</who>"


def invalid_write(
    thread: int = 0, function: str = KERNEL, line: int = 41, file: str = "/proc/self/cwd/csrc/rows.cu"
) -> str:
    return f"""
    <record><kind>Precise</kind><level>Error</level>{who(thread, 2)}
      <what><text>Invalid __global__ write of size 4 bytes</text><space>__global__</space><size>4</size>
        <direction>write</direction><error>out of bounds</error><address>0x7f0000000194</address></what>
      <where>{place(function, line, file)}</where>
      <hostStack><saveLocation>kernel launch time</saveLocation>
        <frame><func>main</func><path>/project/main.cc</path><line>12</line><module>/project/app</module></frame></hostStack>
    </record>"""


RACE_TEXT = (
    f"Race reported between Write access at {KERNEL}+0x90 in /proc/self/cwd/csrc/rows.cu:24 and Read access at "
    f"{KERNEL}+0x100 in /proc/self/cwd/csrc/rows.cu:31 [508 hazards]"
)


def race(level: str = "Error", elements: str = "") -> str:
    return (
        f"<record><kind>Analysis</kind><level>{level}</level><what><text>{RACE_TEXT}</text></what>{elements}</record>"
    )


UNINITIALISED = f"""
    <record><kind>Initcheck</kind><level>Error</level>{who(122)}
      <what><text>Uninitialized __global__ memory read of size 4 bytes</text><size>4</size></what>
      <accessAddress>0x7f936fa001e8</accessAddress><where>{place(KERNEL, 21)}</where></record>"""
DIVERGENT = f"""
    <record><kind>Synccheck</kind><level>Error</level>{who(37)}
      <what><text>Barrier error</text><type>Divergent thread(s) in block</type></what>
      <where>{place("outlineSync()", 7, "/usr/include/sync.h")}</where>
      <deviceStack><frame>{place(KERNEL, 26)}</frame></deviceStack></record>"""
API_ERROR = """
    <record><kind>Api</kind><what><text>Program hit cudaErrorMemoryAllocation (error 2) due to out of memory on CUDA API
      call to cudaMalloc.</text><api>cudaMalloc</api><error>cudaErrorMemoryAllocation</error>
      <message>out of memory</message><result>2</result></what><hostStack></hostStack></record>"""


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_write_past_the_end_is_named_with_its_line(owner: Owner) -> None:
    (found,) = parse(report(invalid_write(31), invalid_write(32), API_ERROR), "memcheck", owner)
    assert (found.own, found.level, found.kernel, found.count) == (True, "error", DEMANGLED, 2)
    assert [(p.file, p.line, p.source) for p in found.places] == [("csrc/rows.cu", 41, "line 41;")]
    assert (found.thread, found.block, found.address, found.bytes) == ([31, 0, 0], [2, 0, 0], "0x7f0000000194", 4)
    assert found.message.startswith(
        f"a write of 4 bytes outside every buffer at csrc/rows.cu:41 (line 41;) in {DEMANGLED}: a tail that no bound"
    )


def test_findings_on_other_lines_are_other_findings(owner: Owner) -> None:
    found = parse(report(invalid_write(), invalid_write(line=42)), "memcheck", owner)
    assert [each.places[0].line for each in found] == [41, 42]


ELEMENTS = (
    f"<source><direction>Write</direction><frame>{place(KERNEL, 24)}</frame></source>"
    f"<destination><direction>Read</direction><frame>{place(KERNEL, 31)}</frame></destination>"
)


@pytest.mark.parametrize("elements", ["", ELEMENTS], ids=["sentence alone", "places as elements"])
def test_a_race_is_named_with_both_lines(owner: Owner, elements: str) -> None:
    (found,) = parse(report(race(elements=elements)), "racecheck", owner)
    assert (found.own, found.level, found.count) == (True, "error", 508)
    assert [(p.access, p.line) for p in found.places] == [("write", 24), ("read", 31)]
    assert (
        "a write at csrc/rows.cu:24 (line 24;) and a read at csrc/rows.cu:31 (line 31;) touch the same shared"
        in found.message
    )
    assert "__syncthreads()" in found.message


def test_a_barrier_in_a_function_belongs_to_the_kernel_that_called_it(owner: Owner) -> None:
    (found,) = parse(report(DIVERGENT), "synccheck", owner)
    assert (found.own, found.kernel) == (True, DEMANGLED)
    assert [(p.file, p.line) for p in found.places] == [("/usr/include/sync.h", 7), ("csrc/rows.cu", 26)]
    assert "a barrier that not every thread of the block reaches" in found.message


@pytest.mark.parametrize(
    ("line", "held"),
    [
        ('asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");', False),
        ('asm volatile("barrier.cta.sync.aligned 1, 64;");', False),
        ('asm volatile("bar.sync 0;" ::: "memory");', True),
        ("__syncthreads();", True),
        ("__syncthreads();  // was bar.sync 1, 64", True),
        ("__syncthreads(); /* bar.sync 1, 64;", True),
        ("if (row < rows) meet(3, 64);", True),
    ],
)
def test_warps_may_come_to_a_barrier_of_some_in_different_places(owner: Owner, line: str, held: bool) -> None:
    (owner.root / "csrc" / "rows.cu").write_text(f"first\n{line}\n{SOURCE}")
    where = DIVERGENT.replace(place("outlineSync()", 7, "/usr/include/sync.h"), place("meet(int, int)", 2))
    said = ended(report(where), "========= ERROR SUMMARY: 1 error")
    assert judge("synccheck", said, owner, 60).status == "failed"  # its machine code has no barrier of some warps
    run = judge("synccheck", said, dataclasses.replace(owner, partial=frozenset({KERNEL})), 60)
    assert run.status == ("failed" if held else "skipped")
    assert ("not held against it" in (run.reason or "")) != held
    assert ("in one place of the code" in (run.remedy or "")) != held


def test_memory_that_nobody_wrote(owner: Owner) -> None:
    (found,) = parse(report(UNINITIALISED), "initcheck", owner)
    assert (found.bytes, found.address, found.places[0].line) == (4, "0x7f936fa001e8", 21)
    assert "a read of 4 bytes of global memory that nobody has written at csrc/rows.cu:21" in found.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Invalid __global__ read of size 16 bytes: Address 0x7f is misaligned", "a misaligned read of 16 bytes"),
        ("Invalid __shared__ write of size 4 bytes: out of bounds", "outside the block's shared memory"),
        ("Invalid __local__ write of size 4 bytes: out of bounds", "outside an array on the stack"),
    ],
)
def test_each_kind_of_access_has_its_words(owner: Owner, text: str, words: str) -> None:
    record = f"<record><kind>Precise</kind><what><text>{text}</text></what><where>{place(KERNEL, 3)}</where></record>"
    (found,) = parse(report(record), "memcheck", owner)
    assert words in found.message
    assert found.level == "error"  # what a record does not rank


@pytest.mark.parametrize(
    ("access", "size", "offset", "level"),
    [
        ("read", 12, "0x40", "warning"),  # no load is of 12 bytes
        ("read", 8, "0xe0", "warning"),
        ("read", 16, "0xe0", "error"),  # nothing of it lies inside
        ("read", 8, "0x40", "error"),
        ("write", 8, "0xe0", "error"),
    ],
)
def test_a_part_of_a_read_of_shared_memory_is_held_against_nobody(
    owner: Owner, access: str, size: int, offset: str, level: str
) -> None:
    text = f"Invalid __shared__ {access} of size {size} bytes"
    where = place(KERNEL, 3).replace("0xe0", offset)
    what = f"<what><text>{text}</text><size>{size}</size></what>"
    run = judge("memcheck", ended(report(f"<record>{what}<where>{where}</where></record>")), owner, 60)
    assert [found.level for found in run.findings] == [level]
    assert (run.status == "failed") == (level == "error")
    assert (run.reason == sanitizer.WIDENED) == (level == "warning")  # what lies behind the read was not looked at


def test_a_load_of_another_architectures_code_excuses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cubin(arch: str, reads: list[list[int]]) -> Cubin:
        kernel = KernelResources(KERNEL, DEMANGLED, 32, 512, 0, 0, 0, 100, "0" * 64, shared_vector_reads=reads)
        return Cubin(arch, f"0-{arch}.cubin", "0" * 64, 1, "0" * 64, kernels=[kernel])

    built = BuildRecord(cubins=[cubin("sm_89", [[0xE0, 16]]), cubin("sm_90a", [])])
    found = []
    for native in ((), ("sm_89",), ("sm_90a",)):
        monkeypatch.setattr(toolchain, "native_archs", lambda native=native: native)
        found.append(Owner.of(built, tmp_path).reads_past(KERNEL, 0xE0, 8))
    assert found == [True, True, False]


def test_a_librarys_kernel_is_not_the_variants(owner: Owner) -> None:
    foreign = invalid_write(function="_ZN7cutlass6KernelEv", file="/usr/include/cutlass/kernel.h")
    (found,) = parse(report(foreign), "memcheck", owner)
    assert not found.own
    run = judge("memcheck", ended(report(foreign)), owner, 60)
    assert (run.status, run.failures) == ("passed", [])
    assert [each.own for each in run.findings] == [False]


def test_findings_of_others_that_fill_the_report_are_no_clean_run(owner: Owner) -> None:
    foreign = [invalid_write(thread, "_ZN7cutlass6KernelEv", file="/usr/include/k.h") for thread in range(500)]
    assert judge("memcheck", ended(report(*foreign[1:])), owner, 60).status == "passed"
    run = judge("memcheck", ended(report(*foreign)), owner, 60)
    assert (run.status, run.failures) == ("skipped", [])
    assert "500 findings" in (run.reason or "")


def test_a_name_without_its_folder_is_found_among_the_sources(owner: Owner) -> None:
    (found,) = parse(report(invalid_write(file="rows.cu")), "memcheck", owner)
    assert found.places[0].file == "csrc/rows.cu"


def test_a_callable_owns_the_files_of_its_repository(owner: Owner, tmp_path: Path) -> None:
    nobody = Owner.of(None, tmp_path)
    (mine,) = parse(
        report(invalid_write(function="triton_kernel", file=str(tmp_path / "csrc/rows.cu"))), "memcheck", nobody
    )
    (other,) = parse(report(invalid_write(function="fill", file="/usr/torch/fill.cu")), "memcheck", nobody)
    assert (mine.own, other.own) == (True, False)


@pytest.mark.parametrize("text", [b"no xml", b"<Other/>", b"<ComputeSanitizerOutput><record>"])
def test_what_is_no_report_is_an_error_and_no_clean_run(owner: Owner, text: bytes) -> None:
    with pytest.raises(Unreadable):
        parse(text, "memcheck", owner)
    run = judge("memcheck", ended(text), owner, 60)
    assert (run.status, run.failures) == ("skipped", [])
    assert run.reason
    assert run.remedy


# --- what a run amounts to --------------------------------------------------------------------------------------------

FINISHED: list[dict[str, Any]] = [
    {"state": "loaded"},
    {"state": "calling"},
    {"state": "returned"},
    {"state": "finished"},
]


def ended(
    text: bytes, said: str = "========= ERROR SUMMARY: 0 errors", code: int | None = 0, steps: Any = FINISHED
) -> Ended:
    return Ended(code, 1.5, list(steps), text, said, "")


def test_nothing_found_is_passed(owner: Owner) -> None:
    for text in (report(), b""):  # whether a file is written where there is nothing to write is the tool's affair
        run = judge("memcheck", ended(text), owner, 60)
        assert (run.status, run.reason, run.calls, run.duration_s) == ("passed", None, 1, 1.5)


def test_an_error_condemns_and_a_warning_does_not(owner: Owner) -> None:
    said = (
        "========= Error: Race reported between\n========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"
    )
    run = judge("racecheck", ended(report(race()), said), owner, 60)
    assert (run.status, [failure.criterion for failure in run.failures]) == ("failed", ["racecheck"])
    assert "[508 times]" in run.failures[0].message
    warned = judge("racecheck", ended(report(race("Warning")), said), owner, 60)
    assert (warned.status, warned.failures, [f.level for f in warned.findings]) == ("passed", [], ["warning"])


@pytest.mark.parametrize(("partial", "status"), [({KERNEL}, "skipped"), ({"_Z5otherv"}, "failed"), (set(), "failed")])
def test_a_race_beside_a_barrier_of_some_warps_is_not_believed(owner: Owner, partial: set[str], status: str) -> None:
    kernels = {**owner.kernels, "_Z5otherv": "other()"}
    mine = dataclasses.replace(owner, kernels=kernels, partial=frozenset(partial))
    said = "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"
    run = judge("racecheck", ended(report(race()), said), mine, 60)
    assert run.status == status
    assert ("not held against it" in run.findings[0].message) == (status == "skipped")
    assert ("not held against it" in (run.reason or "")) == (status == "skipped")
    # Where the tool gives a name that is no kernel's, any kernel may be meant.
    elsewhere = [SourcePlace("combine", "csrc/rows.cu", 3, None, "read")]
    assert mine.partly_synchronised(elsewhere) == bool(partial)


@pytest.mark.parametrize(
    ("said", "code", "steps", "words"),
    [
        ("========= Error: Device not supported. Please refer to the documentation", 1, [], "Device not supported"),
        ("========= Internal Sanitizer Error: The Sanitizer met an error while launching k and didn't track it\n"
         "========= ERROR SUMMARY: 0 errors", 0, FINISHED, "didn't track it"),
        ("", -11, [], "it was killed by SIGSEGV"),
        ("========= COMPUTE-SANITIZER\n========= Unable to find injection library libsanitizer-collection.so\n", 13, [],
         "it ended with exit code 13: Unable to find injection library libsanitizer-collection.so"),
        ("", None, [{"state": "loaded"}], "killed after 60 s, before a call was made"),
        ("", None, [{"state": "loaded"}, {"state": "calling", "call": 0}], "did not end within 60 s"),
        ("========= ERROR SUMMARY: 3 errors", 0, FINISHED, "it counts 3 errors, and its report names none"),
        ("", 0, FINISHED, "did not say how many errors"),
        ("", 0, [{"state": "failed", "message": "RuntimeError: no memory"}], "a call failed under the tool: Runtime"),
        ("", 0, [{"state": "unloadable", "message": "OSError: libcuda"}], "cannot be loaded under the tool: OSErr"),
        ("========= ERROR SUMMARY: 0 errors", 0, [{"state": "refused"}, {"state": "finished"}], "declines every case"),
    ],
)  # fmt: skip
def test_a_tool_that_does_not_come_to_its_end_accuses_nobody(
    owner: Owner, said: str, code: int | None, steps: list[dict[str, Any]], words: str
) -> None:
    run = judge("memcheck", ended(b"", said, code, steps), owner, 60)
    assert (run.status, run.failures) == ("skipped", [])
    assert words in (run.reason or "")


def test_findings_of_a_run_that_broke_off_condemn_all_the_same(owner: Owner) -> None:
    steps = [{"state": "calling", "call": 0}, {"state": "failed", "message": "CUDA_ERROR_ILLEGAL_ADDRESS"}]
    run = judge("memcheck", ended(report(invalid_write()), "========= ERROR SUMMARY: 1 error", 0, steps), owner, 60)
    assert (run.status, len(run.failures)) == ("failed", 1)


def test_a_crash_under_one_tool_is_noted_and_under_two_condemns(owner: Owner) -> None:
    def crashed(tool: str) -> SanitizerRun:
        return judge(tool, ended(b"", "", 255, [{"state": "calling", "call": 1}]), owner, 60)

    one = [crashed("memcheck"), judge("racecheck", ended(b""), owner, 60)]
    sanitizer.settle_crashes(one)
    assert [run.status for run in one] == ["skipped", "passed"]
    assert [(found.kind, found.level) for found in one[0].findings] == [("crash", "warning")]
    two = [crashed("memcheck"), crashed("racecheck")]
    sanitizer.settle_crashes(two)
    assert [run.status for run in two] == ["failed", "failed"]
    assert "in the middle of call 2 under the tool" in two[0].failures[0].message


def test_a_hang_is_noted_and_condemns_nobody(owner: Owner) -> None:
    runs = [judge(tool, ended(b"", "", None, [{"state": "calling"}]), owner, 5) for tool in TOOLS]
    sanitizer.settle_crashes(runs)
    assert {(run.status, run.findings[0].kind, run.findings[0].level) for run in runs} == {
        ("skipped", "hang", "warning")
    }


# --- the process that is watched --------------------------------------------------------------------------------------


class Kept(memory.HostMemory):
    """Host memory that remembers what outputs held when they were given back, and how large each buffer was."""

    def __init__(self) -> None:
        self.freed: list[bytes] = []
        self.sizes: list[int] = []

    def allocate(self, size: int) -> Any:
        self.sizes.append(size)
        return super().allocate(size)

    def free(self, buffer: Any) -> None:
        self.freed.append(bytes(buffer))


def called(call: CallFiles, values: list[dict[str, Any]], kept: Any) -> list[tuple[str, dict[str, Any]]]:
    said: list[tuple[str, dict[str, Any]]] = []
    of_candidates = sanitizing.memory_of
    try:
        sanitizing.memory_of = lambda *_: kept
        torch = sys.modules.get("torch")
        plan = {"candidate": candidate("good"), "calls": [{"values": values, "outputs": ["y"]}]}
        sanitizing.call_all(plan, lambda state, **facts: said.append((state, facts)))
    finally:
        sanitizing.memory_of = of_candidates
        if torch is not None:
            sys.modules["torch"] = torch
        else:
            sys.modules.pop("torch", None)
    return said


def test_a_candidate_is_called_on_exact_buffers_and_on_both_values(tmp_path: Path) -> None:
    call = rmsnorm_call(tmp_path)
    (tmp_path / "other").mkdir()
    other = rmsnorm_call(tmp_path / "other")
    doubled = np.frombuffer(Path(other.arguments["x"]["image"]).read_bytes()[4096:-4096], np.float32) * 2
    Path(other.arguments["x"]["image"]).write_bytes(bytes(4096) + doubled.tobytes() + bytes(4096))
    memory = Kept()
    said = called(call, [call.arguments, other.arguments], memory)
    assert [state for state, _ in said] == ["loaded", "calling", "returned", "finished"]
    assert memory.sizes == [6 * 10 * 4, 10 * 4, 6 * 10 * 4, 6 * 10 * 4]  # x, weight, an output for each call
    results = [np.frombuffer(data, np.float32).reshape(6, 10) for data in memory.freed[:2]]
    np.testing.assert_allclose(results[0], call.expected, rtol=1e-5)
    np.testing.assert_allclose(results[1], call.expected, rtol=1e-4)  # a row times two has the same norm, but for eps


@pytest.mark.parametrize(
    ("name", "state", "words"),
    [
        ("raises", "failed", "this kernel takes no such input"),
        ("segfault", "calling", ""),
        ("exit_zero", "calling", ""),
    ],
)
def test_how_far_it_came_is_written_down(tmp_path: Path, name: str, state: str, words: str) -> None:
    call = rmsnorm_call(tmp_path)
    plan = {"candidate": candidate(name), "calls": [{"values": [call.arguments], "outputs": ["y"]}]}
    found = examined(stand_in(tmp_path / "tool"), tmp_path, plan, ["memcheck"])["memcheck"]
    assert found.state == state
    assert words in str(found.steps[-1].get("message", ""))


def test_torch_tensors_are_the_images_too(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    call = rmsnorm_call(tmp_path)
    given: list[Any] = []
    values = {name: value for name, value in call.arguments.items() if name != "eps"}
    sanitizing.call_case(lambda *tensors: given.extend(t.clone() for t in tensors), "destination",
                         memory.TorchMemory("cpu"), [values], ["y"])  # fmt: skip
    data = Path(call.arguments["x"]["image"]).read_bytes()[4096:-4096]
    assert torch.equal(given[0], torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(6, 10))
    assert [tuple(tensor.shape) for tensor in given] == [(6, 10), (10,), (6, 10)]


# --- processes, with a stand-in for the tool --------------------------------------------------------------------------

STAND_IN = '''#!{python}
"""A stand-in for compute-sanitizer in tests of process handling: it runs the program and writes what it is told."""
import json, subprocess, sys, time
from pathlib import Path
here, arguments = Path(__file__).resolve().parent, sys.argv[1:]
if arguments == ["--version"]:
    print("NVIDIA (R) Compute Sanitizer\\nVersion 2025.3.1.0 (build 1)")
    sys.exit()
if arguments == ["--help"]:
    print("\\n".join("  --" + name for name in ("tool", "xml", "save", "log-file", "padding", "launch-timeout")))
    sys.exit()
split = arguments.index("--")
options, target = arguments[:split], arguments[split + 1:]
value = dict(zip(options, options[1:]))
told = json.loads((here / "told.json").read_text()).get(value["--tool"], {{}})
(here / (value["--tool"] + ".arguments")).write_text(json.dumps(options))
while len(list(here.glob("*.arguments"))) < told.get("beside", 0):
    time.sleep(0.01)
code = subprocess.call(target) if told.get("runs", True) else 0
if "report" in told:
    Path(value["--save"]).write_text(told["report"])
Path(value["--log-file"]).write_text(told.get("said", "========= ERROR SUMMARY: 0 errors\\n"))
sys.exit(told.get("code", 255 if code else 0))
'''


def stand_in(folder: Path, **told: dict[str, Any]) -> Path:
    """The stand-in as a program; `told`: by tool, what it writes (`report`, `said`), `code`, `runs`.

    `beside`: it waits until so many tools have begun.
    """
    folder.mkdir()
    program = folder / "compute-sanitizer"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    (folder / "told.json").write_text(json.dumps(told))
    return program


def examined(
    program: Path, folder: Path, plan: dict[str, Any], tools: list[str], limit_s: float = 30
) -> dict[str, Ended]:
    watch = Examination(sanitizer._identified(program), tools, plan, folder, limit_s=limit_s)
    try:
        return {tool: watch.result(tool) for tool in tools}
    finally:
        watch.close()


def test_only_options_that_a_release_knows_are_given(tmp_path: Path) -> None:
    known = sanitizer._identified(stand_in(tmp_path / "tool"))
    assert known.version == "2025.3.1.0"
    command = known.command("memcheck", tmp_path / "x.xml", tmp_path / "x.log")
    assert "--padding" in command
    assert "--strip-paths" not in command
    assert command[-1] == "--"


def test_tools_run_beside_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    program = stand_in(tmp_path / "tool", **{tool: {"beside": len(TOOLS), "runs": False} for tool in TOOLS})
    found = examined(program, tmp_path, {"candidate": candidate("good"), "calls": []}, list(TOOLS), limit_s=120)
    assert {tool: each.returncode for tool, each in found.items()} == dict.fromkeys(TOOLS, 0)  # None: one was killed


def test_on_one_core_they_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    call = rmsnorm_call(tmp_path)
    plan = {"candidate": candidate("good"), "calls": [{"values": [call.arguments], "outputs": ["y"]}]}
    found = examined(stand_in(tmp_path / "tool"), tmp_path, plan, list(TOOLS))
    assert {each.state for each in found.values()} == {"finished"}
    starts = [each.steps[0]["time_s"] for each in found.values()]
    ends = [each.steps[-1]["time_s"] for each in found.values()]
    assert all(end < start for end, start in zip(ends, starts[1:], strict=False))


def test_a_hanging_candidate_is_killed_at_the_limit(tmp_path: Path) -> None:
    call = rmsnorm_call(tmp_path)
    plan = {"candidate": candidate("hang"), "calls": [{"values": [call.arguments], "outputs": ["y"]}]}
    program = stand_in(tmp_path / "tool")
    for limit_s in (2, 30):
        found = examined(program, tmp_path, plan, ["synccheck"], limit_s=limit_s)["synccheck"]
        assert found.returncode is None
        if found.state == "calling":
            break  # else the machine is crowded, and it was killed before it had come so far
    assert found.state == "calling"
    assert not left_with(str(tmp_path / "synccheck.plan"))


def test_what_still_runs_is_killed_when_nobody_waits(tmp_path: Path) -> None:
    call = rmsnorm_call(tmp_path)
    plan = {"candidate": candidate("hang"), "calls": [{"values": [call.arguments], "outputs": ["y"]}]}
    watch = Examination(sanitizer._identified(stand_in(tmp_path / "tool")), ["memcheck"], plan, tmp_path, limit_s=60)
    watch.close()
    assert not left_with(str(tmp_path / "memcheck.plan"))


def running_with(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [path.parent.name] if word.encode() in path.read_bytes() else []
        except OSError:
            continue
    return found


def left_with(word: str) -> list[str]:
    """Those that are still there after some seconds: what was killed takes a moment to be gone."""
    deadline = time.monotonic() + 5
    while (found := running_with(word)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def test_a_missing_tool_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(sanitizer.PROGRAM_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ToolError, match=r"nowhere[\s\S]*nvidia-cuda-sanitizer-api"):
        sanitizer.find()


# --- the rung, with a stand-in for the tool ---------------------------------------------------------------------------


def climbed(config: Config, name: str, monkeypatch: pytest.MonkeyPatch) -> TestRecord:
    """The record of a variant of a CPU, taken up the ladder as if it were one of a GPU that has the rung."""
    monkeypatch.setattr(RungCases, "sanitizer_tools", property(lambda it: it.session.config.test.sanitizer.tools))
    folder = config.results / "test" / "rmsnorm"
    (given,) = test.run(config, "rmsnorm", [name], folder)
    assert records.read(folder / f"{name}.json", TestRecord) == given
    return given


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in, which finds nothing until it is told otherwise (told.json beside it)."""
    program = stand_in(tmp_path / "tool")
    monkeypatch.setenv(sanitizer.PROGRAM_VARIABLE, str(program))
    return program.parent


def test_a_variant_under_tools_that_find_nothing_is_correct(
    tmp_path: Path, tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = climbed(project(tmp_path / "project", "good"), "good", monkeypatch)
    assert record.verdict == "correct", record.reason
    assert (record.rungs[-1].name, record.rungs[-1].status, record.rungs[-1].message) == ("sanitizer", "passed", None)
    assert record.sanitizer is not None
    assert record.sanitizer.version == "2025.3.1.0"
    assert [(run.tool, run.status) for run in record.sanitizer.runs] == [(tool, "passed") for tool in TOOLS]
    assert {run.calls for run in record.sanitizer.runs} == {len(record.sanitizer.cases)}
    assert {"tiny", "odd"} <= {case.split("-")[0] for case in record.sanitizer.cases}
    tree = ElementTree.parse(tmp_path / "project" / (record.junit or ""))
    names = {element.get("name", "") for element in tree.iter("testcase")}
    assert {f"test_sanitizer[rmsnorm/good-{tool}]" for tool in TOOLS} <= names
    log = (tmp_path / "project" / (record.log or "")).read_text()
    assert "compute-sanitizer --tool racecheck" in log
    assert "ERROR SUMMARY: 0 errors" in log


def test_a_finding_condemns_a_variant_whose_results_are_right(
    tmp_path: Path, tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = project(tmp_path / "project", "good")
    built = records.read(config.record("build", "rmsnorm", "good"), BuildRecord)
    kernel = KernelResources(KERNEL, DEMANGLED, 32, 512, 0, 0, 0, 100, "0" * 64, shared_vector_reads=[[0xE0, 16]])
    built.cubins = [Cubin("sm_90a", "lib.cubin", "0" * 64, 1, "0" * 64, kernels=[kernel])]
    records.write(config.record("build", "rmsnorm", "good"), built)
    said = "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"
    (tool / "told.json").write_text(json.dumps({"racecheck": {"report": report(race()).decode(), "said": said}}))
    record = climbed(config, "good", monkeypatch)
    assert (record.verdict, record.status) == ("wrong", "failed")
    assert (record.reason or "").startswith("sanitizer: racecheck: a write at")
    assert record.repeat == "kernelproof test --operator rmsnorm --variant good"
    assert record.sanitizer is not None
    statuses = {run.tool: run.status for run in record.sanitizer.runs}
    assert statuses == {"memcheck": "passed", "racecheck": "failed", "initcheck": "passed", "synccheck": "passed"}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"said": "========= Error: Device not supported", "code": 1, "runs": False}, "Device not supported"),
        ({"report": "<html>", "said": "========= ERROR SUMMARY: 1 error"}, "its report is no XML"),
        ({"code": 139, "runs": False, "said": ""}, "ended with exit code 139"),
    ],
)
def test_a_tool_that_fails_spoils_no_verdict(
    tmp_path: Path, tool: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], words: str
) -> None:
    (tool / "told.json").write_text(json.dumps(dict.fromkeys(TOOLS, told)))
    record = climbed(project(tmp_path / "project", "good"), "good", monkeypatch)
    assert (record.verdict, record.status) == ("correct", "ok")
    assert (record.rungs[-1].name, record.rungs[-1].status) == ("sanitizer", "skipped")
    assert words in (record.rungs[-1].message or "")
    assert record.sanitizer is not None
    assert all(run.reason and words in run.reason for run in record.sanitizer.runs)


def test_one_tool_that_fails_is_named_beside_those_that_passed(
    tmp_path: Path, tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tool / "told.json").write_text(json.dumps({"racecheck": {"code": 1, "runs": False, "said": ""}}))
    record = climbed(project(tmp_path / "project", "good"), "good", monkeypatch)
    assert (record.verdict, record.rungs[-1].status) == ("correct", "passed")
    assert record.rungs[-1].message == "racecheck shows nothing: it ended with exit code 1"


def test_without_the_tool_a_variant_stays_correct_and_the_record_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(sanitizer.PROGRAM_VARIABLE, str(tmp_path / "nowhere"))
    record = climbed(project(tmp_path / "project", "good"), "good", monkeypatch)
    assert (record.verdict, record.rungs[-1].status) == ("correct", "skipped")
    assert "compute-sanitizer: it is missing" in (record.rungs[-1].message or "")
    assert record.sanitizer is not None
    assert all("nvidia-cuda-sanitizer-api" in (run.remedy or "") for run in record.sanitizer.runs)


def test_a_call_that_fails_is_looked_at_too(tmp_path: Path, tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = climbed(project(tmp_path / "project", "raises"), "raises", monkeypatch)
    assert record.verdict == "wrong"
    assert record.sanitizer is not None
    assert all("a call failed under the tool" in (run.reason or "") for run in record.sanitizer.runs)


def test_a_variant_that_hangs_is_looked_at_by_synccheck_alone(
    tmp_path: Path, tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = climbed(project(tmp_path / "project", "hang"), "hang", monkeypatch)
    assert (record.verdict, record.rungs[-1].status) == ("hung", "skipped")
    assert record.sanitizer is not None
    reasons = {run.tool: run.reason for run in record.sanitizer.runs}
    assert reasons.pop("synccheck") == "it did not end within 4 s"
    assert set(reasons.values()) == {"the variant hung in launch (tiny-float32-normal-s0)"}


def test_the_last_rung_can_be_climbed_alone(tmp_path: Path, tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the tests on a GPU do."""
    monkeypatch.setattr(RungCases, "sanitizer_tools", property(lambda _: list(TOOLS)))
    loaded = project(tmp_path / "project", "good", "raises")
    chosen = {"good": TOOLS, "raises": ["memcheck"]}
    found, _ = last_rung(loaded, [loaded.operator("rmsnorm").variant(name) for name in chosen], tmp_path, chosen)
    assert [(run.tool, run.status) for run in found["rmsnorm/good"]] == [(tool, "passed") for tool in TOOLS]
    assert [(run.tool, run.status) for run in found["rmsnorm/raises"]] == [("memcheck", "skipped")]


def test_no_tool_in_the_configuration_is_no_rung(tmp_path: Path, tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = project(tmp_path / "project", "good")
    off = dataclasses.replace(config.test.sanitizer, tools=[])
    config = dataclasses.replace(config, test=dataclasses.replace(config.test, sanitizer=off))
    record = climbed(config, "good", monkeypatch)
    assert (record.verdict, record.sanitizer) == ("correct", None)
    assert "sanitizer" not in {rung.name for rung in record.rungs}


def test_a_cpu_variant_has_no_such_rung(tmp_path: Path) -> None:
    config = project(tmp_path, "good")
    (record,) = test.run(config, "rmsnorm", ["good"], config.results / "test" / "rmsnorm")
    assert (record.sanitizer, record.rungs[-1].name) == (None, "determinism")


# --- on a GPU, with the tool itself -----------------------------------------------------------------------------------

PRESENT, WHY = gpu.available()
DEFECTS = {
    "good": 0,
    "past_the_end": 1,
    "no_barrier": 2,
    "reads_unwritten": 3,
    "divergent_barrier": 4,
    "barrier_of_half": 5,
    "read_by_fours": 6,
}


def tool_is_here() -> bool:
    try:
        return bool(sanitizer.find())
    except ToolError:
        return False


on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not PRESENT, reason=f"needs a GPU: {WHY}"),
    pytest.mark.skipif(not tool_is_here(), reason=f"compute-sanitizer is not installed: {sanitizer.REMEDY}"),
]


def planted(folder: Path, archs: list[str]) -> Config:
    """A project of tests/sanitizer/rows.cu, right and with each of its defects, built."""
    for part in ("csrc/common", "csrc/rmsnorm", "tests/sanitizer"):
        shutil.copytree(REPOSITORY / part, folder / part)
    variants = "".join(
        f"      {name}: {{device: cuda, sources: [tests/sanitizer/rows.cu], macros: {{DEFECT: {number}}}, "
        "dtypes: [float32], precision: {output: float32}}\n"
        for name, number in DEFECTS.items()
    )
    head = textwrap.dedent(f"""\
        schema: kernelproof.config/1
        project: planted
        archs: {archs}
        operators:
          rmsnorm:
            module: kernelproof.operators.rmsnorm
            binding: csrc/rmsnorm/binding.cc
            include: [csrc]
            shapes: {{tiny: {{rows: 3, cols: 8}}, odd: {{rows: 5, cols: 101}}}}
            test: {{shapes: [tiny, odd], families: [normal], seeds: [0]}}
            bench: {{shapes: [odd]}}
            variants:
        """)
    (folder / "config.yaml").write_text(f"{head}{variants}test: {{trials: 5}}\n")
    loaded = config.load(folder / "config.yaml", root=folder)
    for name in DEFECTS:
        build.run(loaded, "rmsnorm", name, loaded.record("build", "rmsnorm", name))
    return loaded


def test_the_planted_defects_build_and_their_kernel_is_known(tmp_path: Path) -> None:
    try:
        toolchain.find_cuda()
    except ToolError as error:
        pytest.skip(f"needs the CUDA compiler: {error.message}")
    loaded = planted(tmp_path, ["sm_90a"])
    for name in DEFECTS:
        built = records.read(loaded.record("build", "rmsnorm", name), BuildRecord)
        assert built.status == "ok", built.compiler_message
        owner = Owner.of(built, tmp_path)
        assert dict(owner.kernels) == {KERNEL: DEMANGLED}
        assert owner.partial == ({KERNEL} if name == "barrier_of_half" else set())
        assert {size for _, _, size in owner.vector_reads} == ({16} if name == "read_by_fours" else set())
        (kernel,) = built.cubins[0].kernels
        # Type and placement with their padding; the number of rows and `scratch` but where the defect needs them.
        rows, rest = (
            [] if name in ("past_the_end", "read_by_fours") else [[40, 48]],
            [64, 80 if name == "reads_unwritten" else 88],
        )
        assert kernel.parameters_unread == [*rows, rest]


@pytest.fixture(scope="module")
def on_device(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """The planted defects, built for the GPU that is here."""
    return planted(tmp_path_factory.mktemp("planted"), list(toolchain.native_archs()))


FINDERS = {"good": TOOLS, **dict(zip(list(DEFECTS)[1:5], ([tool] for tool in TOOLS), strict=True))}
FINDERS["barrier_of_half"] = ["racecheck"]
FINDERS["read_by_fours"] = ["memcheck"]


@pytest.fixture(scope="module")
def found_on_device(on_device: Config, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, SanitizerRun]]:
    """The rung alone: the right kernel under every tool, each defect under the one that must find it, all at once.

    `pytest -s` shows the tools' reports.
    """
    variants = [on_device.operator("rmsnorm").variant(name) for name in FINDERS]
    found, _ = last_rung(on_device, variants, tmp_path_factory.mktemp("runs"), dict(FINDERS))
    return {name: {run.tool: run for run in found[f"rmsnorm/{name}"]} for name in FINDERS}


def last_rung(
    loaded: Config, variants: list[VariantConfig], scratch: Path, tools: dict[str, Any] | None = None
) -> tuple[dict[str, list[SanitizerRun]], float]:
    """The last rung of variants that are built, without those between load and it; and the seconds that it took."""
    resources = Resources(scratch)
    ladder = Ladder(Session(loaded, variants, resources))
    try:
        started = time.monotonic()
        for climb in ladder.climbs:
            if tools is not None:
                climb.selection.asked = {"sanitizer": list(tools[climb.variant.name])}
            assert climb.build().status == "passed", climb.standing.rungs
            climb.examiner.start()
        found = {climb.variant.key: climb.examiner.found().runs for climb in ladder.climbs}
        for climb in ladder.climbs:
            print(f"--- {climb.variant.key}\n{climb.calls.log.read_text()}")
        return found, time.monotonic() - started
    finally:
        ladder.close()
        resources.close()


class TestOnGpu:
    pytestmark = on_gpu

    @pytest.mark.parametrize(
        ("name", "line", "words"),
        [
            ("past_the_end", "one past the end", "a write of 4 bytes outside every buffer"),
            ("no_barrier", "parts[threadIdx.x] = squares", "touch the same shared memory"),
            ("reads_unwritten", "nobody wrote it", "global memory that nobody has written"),
            ("divergent_barrier", "the last thread does not come", "a barrier that not every thread"),
        ],
    )
    def test_a_planted_defect_is_found_by_its_tool(
        self, found_on_device: dict[str, dict[str, SanitizerRun]], name: str, line: str, words: str
    ) -> None:
        (run,) = found_on_device[name].values()
        assert run.status == "failed", (run.reason, run.findings)
        assert any(words in failure.message and line in failure.message for failure in run.failures), run.failures
        files = [{place.file for place in found.places} for found in run.findings if found.own]
        assert all("tests/sanitizer/rows.cu" in named for named in files)

    def test_nothing_is_found_in_a_right_kernel(self, found_on_device: dict[str, dict[str, SanitizerRun]]) -> None:
        runs = found_on_device["good"]
        assert {tool: run.status for tool, run in runs.items()} == dict.fromkeys(TOOLS, "passed"), runs

    def test_racecheck_is_not_believed_where_some_warps_pass_a_barrier_alone(
        self, found_on_device: dict[str, dict[str, SanitizerRun]]
    ) -> None:
        run = found_on_device["barrier_of_half"]["racecheck"]
        assert run.status == "skipped", run
        (found,) = run.findings  # once a release finds nothing here, the rule can go
        assert found.level == "warning"
        assert "not held against it" in found.message

    def test_a_read_that_ptxas_made_wider_is_noted_and_held_against_nobody(
        self, found_on_device: dict[str, dict[str, SanitizerRun]]
    ) -> None:
        run = found_on_device["read_by_fours"]["memcheck"]
        assert (run.status, run.reason) == ("skipped", sanitizer.WIDENED), run
        (found,) = run.findings  # of 101 columns 1 is left over: 12 bytes of the load lie outside
        assert (found.level, found.bytes) == ("warning", 12), found
        assert sanitizer.WIDENED in found.message

    @pytest.mark.parametrize(("name", "verdict"), [("good", "correct"), ("no_barrier", "wrong")])
    def test_the_whole_ladder_with_its_last_rung(self, on_device: Config, name: str, verdict: str) -> None:
        (record,) = test.run(on_device, "rmsnorm", [name], on_device.results / "test" / "rmsnorm")
        assert record.verdict == verdict, record.reason
        assert record.rungs[-1].name == "sanitizer"
        assert record.rungs[-1].status == ("passed" if name == "good" else "failed"), record.rungs[-1].message

    def test_no_variant_of_this_project_has_an_error(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The rung alone, of every CUDA variant of config.yaml that this GPU can run; four at a time."""
        shutil.copytree(REPOSITORY / "csrc", tmp_path / "csrc")
        shutil.copy(REPOSITORY / "config.yaml", tmp_path)
        native = list(toolchain.native_archs())
        loaded = config.load(tmp_path / "config.yaml", {"archs": native}, tmp_path)
        variants = [
            variant
            for variant in loaded.variants()
            if (variant.device, variant.role) == ("cuda", "variant") and set(variant.archs or native) & set(native)
        ]
        with ProcessPoolExecutor(8, multiprocessing.get_context("spawn")) as pool:
            list(pool.map(built, [loaded] * len(variants), variants))
        runs, seconds = {}, 0.0
        for first in range(0, len(variants), 4):
            found, took = last_rung(loaded, variants[first : first + 4], tmp_path)
            runs, seconds = runs | found, seconds + took
        with capsys.disabled():
            print(f"\n{len(variants)} variants in {seconds:.1f} s")
            for key, found in runs.items():
                print(
                    key,
                    *(f"{run.tool} {run.status} {run.duration_s:.1f} s {run.calls} calls" for run in found),
                    sep="; ",
                )
        assert not [
            (key, run)
            for key, found in runs.items()
            for run in found
            if run.status != "passed" and run.reason not in sanitizer.UNSURE
        ]


def built(loaded: Config, variant: VariantConfig) -> None:
    """Build a variant, in a process of its own."""
    build.run(loaded, variant.operator, variant.name, loaded.record("build", variant.operator, variant.name), cores=2)
