"""The build stage, with real compilers, on variants of one fault each."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import fcntl
import importlib
import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kernelproof import build, sass, toolchain
from kernelproof.config import (
    BenchConfig,
    Budget,
    BundleConfig,
    CaseSelection,
    Config,
    GateConfig,
    OperatorConfig,
    Precision,
    ProfileConfig,
    ProfileSelection,
    TestConfig,
    TimeLimits,
    Tolerance,
    VariantConfig,
)
from kernelproof.errors import BuildError, ToolError
from kernelproof.processes import kill_group, run, spawn
from kernelproof.records import BuildRecord, read

FIXTURES = Path(__file__).parent / "fixtures" / "build"
SOURCE = Path(__file__).resolve().parents[1] / "src"
BUDGET = Budget(registers=120, shared_bytes=65536, spill_bytes=0)


def missing_cuda() -> str:
    try:
        toolchain.find_cuda()
    except ToolError as error:
        return str(error)
    return ""


needs_cuda = pytest.mark.skipif(bool(missing_cuda()), reason=f"no CUDA toolchain: {missing_cuda()}")


def variant(name: str, **settings: Any) -> VariantConfig:
    """A variant with the dull settings filled in; by default `answer.cc` for the CPU."""
    plain: dict[str, Any] = {
        "operator": "toy",
        "name": name,
        "role": "variant",
        "device": "cpu",
        "dtypes": ["float32"],
        "precision": Precision("float32"),
        "passing": "destination",
        "budget": BUDGET,
        "sources": ["csrc/answer.cc"],
    }
    return VariantConfig(**{**plain, **settings})


def cuda(name: str, **settings: Any) -> VariantConfig:
    """A CUDA variant; by default `scale.cu` for one architecture."""
    return variant(name, **{"device": "cuda", "sources": ["csrc/scale.cu"], "archs": ["sm_90a"], **settings})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository of small kernels."""
    return copied(tmp_path / "project")


def copied(root: Path) -> Path:
    shutil.copytree(FIXTURES, root)
    return root


def config(root: Path, *variants: VariantConfig) -> Config:
    selection = CaseSelection(["tiny"])
    operator = OperatorConfig(
        name="toy",
        module="toy.py",
        shapes={"tiny": {"n": 1}},
        test=selection,
        bench=selection,
        profile=ProfileSelection("tiny"),
        variants={v.name: v for v in variants},
        baselines={},
        binding="csrc/binding.cc",
        include=["csrc"],
    )
    return Config(
        project="toy",
        archs=["sm_90a", "native"],
        operators={"toy": operator},
        test=TestConfig([0], "default", 1, "auto", TimeLimits(1, 1, 1, 1, 1), Tolerance(1, 1.5, 1 / 16, 1 / 64)),
        bench=BenchConfig(1, 1, 1, 1, ["hot"], 100, 0.95, 0),
        profile=ProfileConfig([], [], 60),
        gate=GateConfig(0.95, 0.005),
        bundle=BundleConfig(10_000_000),
        root=root,
    )


def built(root: Path, chosen: VariantConfig, **settings: Any) -> BuildRecord:
    """Build, and check that what was written is what was returned."""
    output = root / "results" / "build" / "toy" / f"{chosen.name}.json"
    record = build.run(config(root, chosen), "toy", chosen.name, output, **settings)
    assert read(output, BuildRecord) == record
    return record


def log(root: Path, record: BuildRecord) -> str:
    assert record.log is not None
    return (root / record.log).read_text()


def library(root: Path, record: BuildRecord) -> Path:
    assert record.status == "ok", (record.reason, record.compiler_message)
    assert record.library is not None
    return root / record.library.path


def answer(root: Path, record: BuildRecord) -> int:
    return int(ctypes.CDLL(str(library(root, record))).answer())


# --- one build --------------------------------------------------------------------------------------------------------


def test_variant_is_built_and_linked_with_its_binding(project: Path) -> None:
    record = built(project, variant("plain"))
    assert answer(project, record) == 41
    assert ctypes.CDLL(str(library(project, record))).bound() == 7
    assert [file.path for file in record.sources] == ["csrc/answer.cc"]
    assert record.headers[0].path == "csrc/answer.h"
    assert record.host_compiler is not None
    assert len(record.host_compiler.sha256) == 64
    assert record.library is not None
    assert record.library.path == f"results/store/build/{record.signature}/lib.so"
    assert record.compiler is None
    assert record.cubins == record.budget == record.archs == []


def test_statics_of_inline_functions_are_each_librarys_own(project: Path) -> None:
    """The loader makes one of those of a name, in whatever library, and contenders are loaded beside each other."""
    (project / "csrc" / "answer.cc").write_text(
        "inline int &count() {\n    static int calls = 0;\n    return calls;\n}\n"
        'extern "C" __attribute__((visibility("default"))) int answer() { return STEP * ++count(); }\n'
    )
    one, other = (
        ctypes.CDLL(str(library(project, built(project, variant(f"v{step}", macros={"STEP": step})))))
        for step in (1, 10)
    )
    assert [one.answer(), one.answer(), other.answer()] == [1, 2, 10]


def test_macros_reach_the_compiler_and_the_signature(project: Path) -> None:
    macros: list[dict[str, Any]] = [{}, {"STEP": 2}, {"STEP": "(1 + 2)"}, {"STEP": True}, {"STEP": False}]
    found = [built(project, variant(f"v{index}", macros=each)) for index, each in enumerate(macros)]
    assert [answer(project, record) for record in found] == [41, 42, 43, 41, 40]
    assert len({record.signature for record in found}) == len(macros)
    assert not any(record.unread_macros for record in found)
    assert built(project, variant("typo", macros={"STEP": 2, "STEPS": 2})).unread_macros == ["STEPS"]


def test_macro_flags() -> None:
    flags = build.macro_flags({"ON": True, "OFF": False, "BARE": None, "TEXT": "a b", "NUMBER": 3})
    assert flags == ["-DBARE", "-DNUMBER=3", "-DOFF=0", "-DON=1", "-DTEXT=a b"]


def test_log_and_commands_name_nothing_of_this_machine(project: Path) -> None:
    record = built(project, variant("plain", flags=["-fopenmp"]))
    said = "\n".join(record.commands) + log(project, record)
    assert "csrc/answer.cc" in said
    assert "<build>/lib.so" in said
    assert "<tvm_ffi>/include" in said
    assert str(project) not in said
    assert str(toolchain.tvm_ffi_folder()) not in said


def test_compile_error_is_a_record_with_the_compilers_words(project: Path) -> None:
    record = built(project, variant("broken", sources=["csrc/broken.cc"]))
    assert record.compiler_message is not None
    assert record.compiler_message.startswith("csrc/broken.cc:1:")
    assert (record.status, record.reason) == ("failed", record.compiler_message.splitlines()[0])
    assert "nothing_of_this_name" in record.compiler_message
    assert "nothing_of_this_name" in log(project, record)
    assert record.library is None
    assert answer(project, built(project, variant("plain"))) == 41


def test_a_macro_that_breaks_the_compilation(project: Path) -> None:
    record = built(project, variant("broken", macros={"STEP": "%"}))
    assert (record.status, record.library) == ("failed", None)
    assert "csrc/answer.cc:" in str(record.compiler_message)
    assert " -DSTEP=% " in log(project, record)
    assert answer(project, built(project, variant("plain"))) == 41


def test_undefined_symbol_is_found_when_linking(project: Path) -> None:
    record = built(project, variant("unlinked", sources=["csrc/unlinked.cc"]))
    assert record.status == "failed"
    assert "undefined reference to `defined_nowhere()'" in str(record.compiler_message)
    assert str(record.remedy).startswith("hold its definition against its declaration")


def test_a_header_that_is_not_found_is_told_with_the_key_for_its_folder(project: Path) -> None:
    (project / "csrc" / "answer.cc").write_text('#include "mine/fast.h"\n')
    record = built(project, variant("plain"))
    assert "mine/fast.h: No such file" in str(record.reason)
    assert "the folder from which mine/fast.h is included to operators.toy.include" in str(record.remedy)


def test_a_c_file_is_compiled_as_c(project: Path) -> None:
    """Words of C that C++ does not take, beside C++ that needs its own standard, and a header that C includes."""
    (project / "csrc" / "deep.c").write_text(
        '#include <math.h>\n#include "deep.h"\n'
        "int deep(const int *restrict class) { return *class + DEEP * (M_PI > 3); }\n"
    )
    (project / "csrc" / "deep.h").write_text("#define DEEP 1\n")
    (project / "csrc" / "answer.cc").write_text(
        'extern "C" int deep(const int *);\ntemplate <auto N> int of = N;\n'
        'extern "C" __attribute__((visibility("default"))) int answer() { return deep(&of<40>); }\n'
    )
    mixed = variant("mixed", sources=["csrc/answer.cc", "csrc/deep.c"], flags=["-std=c++17", "-Werror"])
    record = built(project, mixed)
    assert answer(project, record) == 41
    assert [" -x c " in line and "++17" not in line for line in record.commands] == [False, True, False]
    assert "csrc/deep.h" in [header.path for header in record.headers]
    (project / "csrc" / "deep.h").write_text("#define DEEP 2\n")
    assert answer(project, built(project, mixed)) == 42
    (project / "csrc" / "answer.cc").write_text("int deep(const int *);\nint answer() { return deep(nullptr); }\n")
    unlinked = built(project, mixed)
    assert "undefined reference to `deep(int const*)'" in str(unlinked.compiler_message)
    assert 'csrc/deep.c is compiled as C: declare what C++ calls of it extern "C"' in str(unlinked.remedy)


@pytest.mark.parametrize("name", ["ans$wer.cc", "ans#wer.cc", "an $$s:wer.cc"])
def test_a_source_may_be_called_anything(project: Path, name: str) -> None:
    (project / "csrc" / "answer.cc").rename(project / "csrc" / name)
    assert answer(project, built(project, variant("odd", sources=[f"csrc/{name}"]))) == 41


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sources": ["csrc/other.h"]}, "csrc/other.h is no source: the compiler makes no machine code of it"),
        ({"sources": ["csrc/other.py"]}, "csrc/other.py is no source: the compiler makes nothing of it"),
        ({"flags": ["-O2", "-E"]}, "made no machine code; the likely reason is in its flags: -E"),
        ({"flags": ["-O2", "--help"]}, "made nothing; the likely reason is in its flags: --help"),
        ({"flags": ["-c"]}, "the linker ended well and made nothing; the likely reason is in its flags: -c"),
    ],
)
def test_what_makes_no_library_failed_to_build(project: Path, settings: dict[str, Any], words: str) -> None:
    for name in ("other.h", "other.py"):
        (project / "csrc" / name).write_text("// nothing\n")
    record = built(project, variant("odd", **settings))
    assert record.status == "failed"
    assert words in str(record.reason)
    assert "sources" in str(record.remedy) or "flags" in str(record.remedy)


def test_missing_source_is_named(project: Path) -> None:
    record = built(project, variant("gone", sources=["csrc/gone.cc"]))
    assert record.status == "failed"
    assert record.reason == "source file csrc/gone.cc does not exist"
    assert record.remedy


def test_no_compiler_is_not_run_with_the_remedy(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    record = built(project, variant("plain"))
    assert record.status == "not_run"
    assert "no-such-compiler" in str(record.reason)
    assert "g++" in str(record.remedy)


def test_no_cuda_is_not_run_and_cpu_variants_go_on(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(toolchain.CUDA_HOME_VARIABLE, str(project))
    record = built(project, cuda("scale"))
    assert record.status == "not_run"
    assert "bin/nvcc" in str(record.reason)
    assert record.remedy
    assert answer(project, built(project, variant("plain"))) == 41


def test_results_that_cannot_be_written_are_an_error(project: Path) -> None:
    (project / "results").write_text("in the way")
    with pytest.raises(BuildError, match="cannot be kept"):
        built(project, variant("plain"))


def test_a_full_disk_condemns_no_variant(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler fails as it would for a wrong source; with space again the same command must build."""
    compiler = tmp_path / "full-disk-g++"
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *" -c "*) echo "as: a.o: No space left on device" >&2; exit 1;; esac\nexec g++ "$@"\n'
    )
    compiler.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("CXX", str(compiler))
        with pytest.raises(BuildError, match=r"(?s)the build cannot be kept: No space left.*free some space"):
            built(project, variant("plain"))
    assert not list((project / "results").glob("build/*/plain.json"))
    assert answer(project, built(project, variant("plain"))) == 41


def test_a_full_disk_takes_the_compilers_words_too(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(BuildError, match=r"(?s)toy/broken: the build cannot be kept.*free some space"):
        built(project, variant("broken", sources=["csrc/broken.cc"]))


def test_so_does_one_that_holds_the_compilers_own_files(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TMPDIR need not lie where the results do."""

    def full(descriptor: int, *_: object) -> None:
        if "/results/" not in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(BuildError, match=r"(?s)the build cannot be kept: No space left.*free some space"):
        built(project, variant("broken", sources=["csrc/broken.cc"]))


WITHOUT_MEMORY = [
    "g++: fatal error: Killed signal terminated program cc1plus",
    "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
    "collect2: fatal error: ld terminated with signal 9 [Killed]",
    "cc1plus: out of memory allocating 65536 bytes after a total of 1048576 bytes",
    "virtual memory exhausted: Cannot allocate memory",
]


@pytest.mark.parametrize("words", WITHOUT_MEMORY)
def test_words_of_a_compiler_without_memory_are_known(words: str) -> None:
    found = build.OUT_OF_MEMORY.search(f"FAILED: a.o\n{words}\nninja: build stopped")
    assert found is not None
    assert found[0] == words


def test_a_compiler_without_memory_condemns_no_variant(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = WITHOUT_MEMORY[0]
    compiler = tmp_path / "killed-g++"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *" -c "*) echo "{words}" >&2; exit 1;; esac\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("CXX", str(compiler))
        record = built(project, variant("plain"))
    assert (record.status, record.compiler_message) == ("not_run", words)
    assert "this machine had not the memory for its compiler" in str(record.reason)
    assert answer(project, built(project, variant("plain"))) == 41


def test_a_source_that_says_such_words_failed_to_build(project: Path) -> None:
    words = "Killed signal terminated program"
    (project / "csrc" / "broken.cc").write_text(f'#error "ld terminated with signal 9"\n#include "{words}"\n')
    assert built(project, variant("broken", sources=["csrc/broken.cc"])).status == "failed"


def test_stage_does_not_import_torch(project: Path) -> None:
    code = (
        "import sys; from pathlib import Path; import test_build as t; root = Path(sys.argv[1]);"
        "t.answer(root, t.built(root, t.variant('plain')));"
        "assert not {'torch', 'tvm_ffi', 'pandas', 'numpy'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{Path(__file__).parent}"}
    run([sys.executable, "-c", code, project], env=environment)


# --- reuse ------------------------------------------------------------------------------------------------------------


def test_second_build_reuses_the_first(project: Path) -> None:
    first = built(project, variant("plain"))
    inode = library(project, first).stat().st_ino
    second = built(project, variant("plain"))
    assert library(project, second).stat().st_ino == inode
    assert f"reused {first.signature}" in log(project, second)
    assert "csrc/answer.cc" in log(project, second), "the first build's log is part of the second's"
    first.provenance, first.duration_s = second.provenance, second.duration_s
    assert first == second


def test_budget_and_name_are_not_part_of_the_signature(project: Path) -> None:
    first = built(project, variant("one"))
    second = built(project, variant("other", budget=Budget(1, 1, 1), role="baseline"))
    assert second.signature == first.signature
    assert (second.variant, second.role) == ("other", "baseline")


def test_changed_header_is_built_again_and_a_reverted_one_is_not(project: Path) -> None:
    header = project / "csrc" / "answer.h"
    original = header.read_text()
    first = built(project, variant("plain"))
    header.write_text("#pragma once\n#define BASE 50\n")
    second = built(project, variant("plain"))
    assert answer(project, second) == 51
    assert second.signature != first.signature
    header.write_text(original)
    third = built(project, variant("plain"))
    assert answer(project, third) == 41
    assert f"reused {first.signature}" in log(project, third)


ANSWER = 'extern "C" __attribute__((visibility("default"))) int answer() '


@pytest.mark.parametrize("told_by", ["incbin", "has_include"])
def test_what_no_compiler_tells_of_is_built_again(project: Path, told_by: str) -> None:
    data = project / "csrc" / "data.h"
    source = project / "csrc" / "answer.cc"
    if told_by == "incbin":
        data.write_bytes(b"\x05")
        hidden = 'extern "C" __attribute__((visibility("hidden"))) const unsigned char data;'
        asm = f'asm(".global data\\ndata: .incbin \\"{data}\\"");\n{hidden}\n'
        source.write_text(asm + ANSWER + "{ return data; }\n")
    else:
        source.write_text(
            '#if __has_include("data.h")\n#define DATA 7\n#else\n#define DATA 5\n#endif\n'
            + ANSWER
            + "{ return DATA; }\n"
        )
    first = built(project, variant("plain", flags=["-fno-pie"]))
    assert answer(project, first) == 5
    data.write_bytes(b"\x07")
    second = built(project, variant("plain", flags=["-fno-pie"]))
    assert answer(project, second) == 7
    assert second.signature != first.signature
    assert "csrc/answer.cc has " in log(project, second)


def test_changed_binding_is_built_again(project: Path) -> None:
    first = built(project, variant("plain"))
    (project / "csrc" / "binding.cc").write_text(
        'extern "C" __attribute__((visibility("default"))) int bound() { return 8; }'
    )
    second = built(project, variant("plain"))
    assert ctypes.CDLL(str(library(project, second))).bound() == 8
    assert second.signature != first.signature
    assert first.binding[0].path == second.binding[0].path == "csrc/binding.cc"
    assert first.binding != second.binding
    assert first.host_code_sha256 == second.host_code_sha256
    assert None not in (first.binding_code_sha256, second.binding_code_sha256)
    assert first.binding_code_sha256 != second.binding_code_sha256
    kept = built(project, variant("plain"))
    assert (kept.binding, kept.binding_code_sha256) == (second.binding, second.binding_code_sha256)


def test_what_a_compiler_warns_of_is_recorded(project: Path) -> None:
    source = 'extern "C" __attribute__((visibility("default"))) int answer() {\n}\n'
    (project / "csrc" / "answer.cc").write_text(source)
    record = built(project, variant("plain"))
    assert record.status == "ok"
    (said,) = record.warnings
    assert said.startswith("csrc/answer.cc:2: ")
    assert "return" in said


def test_warnings_of_every_compiler_are_read() -> None:
    assert build.warnings_in(
        "csrc/a.cc:3:1: warning: no return statement in function returning non-void [-Wreturn-type]\n"
        'csrc/b.cu(23): warning #177-D: variable "x" was declared but never referenced\n'
        "In file included from csrc/a.cc:1:\ncsrc/a.cc:3:1: note: here\nptxas info : warning\n"
        'csrc/b.cu(23): warning #177-D: variable "x" was declared but never referenced\n'
    ) == [
        "csrc/a.cc:3: no return statement in function returning non-void [-Wreturn-type]",
        'csrc/b.cu:23: variable "x" was declared but never referenced',
    ]


def test_binding_is_compiled_once_for_all_variants(project: Path) -> None:
    first, second = built(project, variant("one")), built(project, variant("two", macros={"STEP": 2}))
    assert sum("binding.cc" in line for line in log(project, first).splitlines()) == 1
    assert not any("binding.cc" in line for line in log(project, second).splitlines())


def dispatched(project: Path, step: int) -> BuildRecord:
    """Build a dispatcher over one rung, which has a macro of its own."""
    (project / "csrc/rung.cc").write_text('extern "C" int rung() { return STEP; }\n')
    (project / "csrc/chooser.cc").write_text(
        'extern "C" int rung();\n'
        'extern "C" __attribute__((visibility("default"))) int answer() { return 100 + rung(); }\n'
    )
    rung = variant("rung", sources=["csrc/rung.cc"], macros={"STEP": step})
    chooser = variant("chooser", sources=["csrc/chooser.cc"], rungs=["rung"])
    both = config(project, rung, chooser)
    for name in ("rung", "chooser"):
        record = build.run(both, "toy", name, project / f"results/build/toy/{name}.json")
    return record


def test_a_dispatcher_holds_its_rungs_as_they_are_by_themselves(project: Path) -> None:
    record = dispatched(project, 5)
    assert answer(project, record) == 105
    assert [source.path for source in record.sources] == ["csrc/chooser.cc", "csrc/rung.cc"]
    assert re.search(r"took \w+: the object of csrc/rung.cc", log(project, record))
    assert any("-DSTEP=5" in command for command in record.commands)
    again = dispatched(project, 6)
    assert answer(project, again) == 106
    assert re.search(r"took \w+: the object of csrc/chooser.cc", log(project, again))
    assert f"reused {record.signature}" in log(project, dispatched(project, 5))


@pytest.mark.parametrize("file", ["lib.so", "build.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_damaged_build_is_never_used(project: Path, file: str, damage: str) -> None:
    first = built(project, variant("plain"))
    path = library(project, first).with_name(file)
    content = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    second = built(project, variant("plain"))
    assert answer(project, second) == 41
    assert "is damaged" in log(project, second)
    assert "reused" not in log(project, second)


def test_folder_without_its_record_is_replaced(project: Path) -> None:
    first = built(project, variant("plain"))
    folder = library(project, first).parent
    shutil.rmtree(folder.parent / "index")
    (folder / "build.json").unlink()
    (folder / "lib.so").write_bytes(b"half")
    second = built(project, variant("plain"))
    assert second.signature == first.signature
    assert answer(project, second) == 41


def test_left_folders_are_swept_and_live_ones_are_not(project: Path) -> None:
    store = project / "results" / "store"
    left, live = store / "tmp-left", store / "tmp-live"
    for folder in (left, live):
        folder.mkdir(parents=True)
        (folder / ".lock").touch()
    with (live / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = built(project, variant("plain"))
    assert not left.exists()
    assert live.exists()
    assert "tmp-left" in log(project, record)
    live.joinpath(".lock").unlink()


def start(root: Path, chosen: str) -> Any:
    code = (
        "import sys; from pathlib import Path; import test_build as t;"
        f"root = Path(sys.argv[1]); t.library(root, t.built(root, {chosen}))"
    )
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{Path(__file__).parent}"}
    return spawn([sys.executable, "-c", code, root], env=environment)


def test_two_builds_at_once(project: Path) -> None:
    processes = [start(project, f"t.variant('v{index}', macros=dict(STEP=2))") for index in range(3)]
    assert [process.wait(240) for process in processes] == [0, 0, 0]
    found = [read(project / f"results/build/toy/v{index}.json", BuildRecord) for index in range(3)]
    assert [answer(project, record) for record in found] == [42, 42, 42]
    assert len({record.signature for record in found}) == 1
    assert len([path for path in (project / "results/store/binding").iterdir() if path.name.isalnum()]) == 2, (
        "index, one"
    )


def inside(root: Path) -> list[str]:
    """The command lines of processes that work in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd") == str(root):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def wait_until(condition: Any, limit_s: float = 120) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_build_leaves_no_process_and_nothing_that_is_used(project: Path, how: signal.Signals) -> None:
    header = project / "csrc" / "answer.h"
    content = header.read_text()
    header.unlink()
    os.mkfifo(header)  # the compiler waits for it as long as nobody writes to it
    process = start(project, "t.variant('plain')")
    wait_until(lambda: any("cc1plus" in line and "answer.cc" in line for line in inside(project)))
    process.send_signal(how)
    process.wait(120)
    wait_until(lambda: not inside(project))
    kill_group(process)
    header.unlink()
    header.write_text(content)
    record = built(project, variant("plain"))
    assert answer(project, record) == 41

    def swept() -> bool:  # once a process of it that is about to end lets go of the lock
        built(project, variant("plain"))
        return not list((project / "results" / "store").glob("tmp-*"))

    wait_until(swept, 10)


# --- CUDA -------------------------------------------------------------------------------------------------------------


@needs_cuda
def test_cuda_variant_is_built_and_analysed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "--no-such-flag")  # nobody's: no record would know of it
    record = built(project, cuda("scale", archs=["sm_89", "sm_90a"]))
    path = library(project, record)
    assert [cubin.arch for cubin in record.cubins] == record.archs == ["sm_89", "sm_90a"]
    assert record.compiler is not None
    assert record.compiler.version.count(".") == 2
    for cubin in record.cubins:
        (kernel,) = cubin.kernels
        assert kernel.demangled == "(anonymous namespace)::scale(float*, int)"
        assert 4 <= kernel.registers <= 32
        assert kernel.shared_bytes == 128 * 4
        assert kernel.stack_bytes == kernel.spill_store_bytes == kernel.spill_load_bytes == 0
        assert sum(cubin.instruction_mix.values()) == sum(cubin.opcodes.values()) == kernel.instructions
        assert cubin.instruction_mix["barrier"] == cubin.opcodes["BAR"] == 1
        assert {"fp32", "global memory", "shared memory", "control"} <= set(cubin.instruction_mix)
        assert "other" not in cubin.instruction_mix
        assert (project / cubin.path).with_suffix(".sass").read_text().count("BAR.SYNC") == 1
    assert all(row.ok for row in record.budget)
    assert len(record.budget) == 2 * 3
    # What is recorded is what runs: the library holds the very same machine code.
    cuobjdump = toolchain.find_cuda().tools["cuobjdump"].path
    embedded = project / "embedded"
    embedded.mkdir()
    run([cuobjdump, "-xelf", "all", path], cwd=embedded)
    assert {file.read_bytes() for file in embedded.glob("*.cubin")} == {
        (project / cubin.path).read_bytes() for cubin in record.cubins
    }
    # Headers of this project one by one, others as one line a place; nothing of where they lie.
    assert [header.path.partition("/")[0] for header in record.headers][:1] == ["csrc"]
    assert any(header.path.startswith("<toolkit>/ (") for header in record.headers)
    assert str(project).encode() not in path.read_bytes()
    assert str(toolchain.find_cuda().home).encode() not in path.read_bytes()


@needs_cuda
def test_same_machine_code_in_another_folder_and_under_idle_macros(project: Path, tmp_path: Path) -> None:
    first = built(project, cuda("plain"))
    idle = built(project, cuda("idle", macros={"UNUSED": 1}))
    other = built(project, cuda("other", macros={"FACTOR": "3.0f"}))
    assert len({first.signature, idle.signature, other.signature}) == 3
    assert sass.identical_machine_code([first, idle, other]) == [["toy/idle", "toy/plain"]]

    moved = copied(tmp_path / "a longer way" / "to it")
    elsewhere = built(moved, cuda("plain"))
    assert elsewhere.signature == first.signature
    assert elsewhere.cubins[0].sass_sha256 == first.cubins[0].sass_sha256
    assert elsewhere.host_code_sha256 == first.host_code_sha256
    assert elsewhere.commands == first.commands

    # In one folder even the bytes are the same.
    shutil.rmtree(project / "results" / "store")
    again = built(project, cuda("plain"))
    assert again.library == first.library
    assert again.cubins == first.cubins


@needs_cuda
def test_spills_break_the_budget_and_not_the_build(project: Path) -> None:
    record = built(project, cuda("spill", sources=["csrc/spill.cu"], flags=["-maxrregcount=40"]))
    (kernel,) = record.cubins[0].kernels
    assert record.status == "ok"
    assert kernel.spill_store_bytes > 0
    assert record.cubins[0].instruction_mix["local memory"] > 0
    verdicts = {row.what: row.ok for row in record.budget}
    assert verdicts == {"registers": True, "shared_bytes": True, "spill_bytes": False}
    (row,) = [row for row in record.budget if not row.ok]
    assert (row.limit, row.value) == (0, kernel.spill_store_bytes + kernel.spill_load_bytes)


@needs_cuda
def test_what_ptxas_says_of_lost_speed_is_advice_and_no_failure(project: Path) -> None:
    chosen = cuda("serialised", sources=["csrc/serialised.cu"])
    record = built(project, chosen)
    assert record.status == "ok"
    about = {advice.text.partition(": ")[2].partition(" ")[0]: advice for advice in record.advice}
    wgmma, registers = about["wgmma.mma_async"], about["'setmaxnreg'"]
    assert (wgmma.arch, wgmma.kernel) == ("sm_90a", "serialised(float*, unsigned long, unsigned long)")
    assert re.fullmatch(r"C75\d\d", str(wgmma.code))
    assert wgmma.text.startswith("Potential Performance Loss: wgmma.mma_async instructions are serialized due to ")
    assert "function" not in wgmma.text, "it has a field of its own"
    assert (registers.arch, registers.kernel) == ("sm_90a", None), "ptxas does not say of which kernel"
    # The wait that it tells of is there.
    listing = (project / record.cubins[0].path).with_suffix(".sass").read_text()
    assert listing.count("WARPGROUP.DEPBAR.LE gsb0, 0x0") == listing.count("HGMMA") == 2
    again = built(project, chosen)
    assert "reused" in log(project, again)
    assert again.advice == record.advice


@needs_cuda
@pytest.mark.slow  # a run of the project builds it too, and its report lists advice
def test_ptxas_has_no_advice_on_the_ladders_wgmma(project: Path) -> None:
    shutil.copytree(SOURCE.parent / "csrc", project / "csrc", dirs_exist_ok=True)
    record = built(project, cuda("fp16_wgmma", sources=["csrc/attention/fp16_wgmma.cu"]))
    assert any("HGMMA" in cubin.opcodes for cubin in record.cubins), record.compiler_message
    assert record.advice == []


@needs_cuda
def test_a_dispatchers_rungs_are_built_for_their_own_architectures_and_held_to_their_own_budgets(project: Path) -> None:
    (project / "csrc/chooser.cu").write_text("int chosen() { return 1; }\n")
    rung = cuda("scale", archs=["sm_90a"], budget=Budget(1, 0, 0))
    chooser = cuda("chooser", sources=["csrc/chooser.cu"], rungs=["scale"], archs=["sm_89", "sm_90a"])
    output = project / "results/build/toy/chooser.json"
    record = build.run(config(project, rung, chooser), "toy", "chooser", output)
    library(project, record)
    assert [Path(cubin.path).name for cubin in record.cubins] == ["0-sm_89.cubin", "0-sm_90a.cubin", "1-sm_90a.cubin"]
    assert [len(cubin.kernels) for cubin in record.cubins] == [0, 0, 1]
    assert record.budget == []


@needs_cuda
def test_cuda_compile_error(project: Path) -> None:
    record = built(project, cuda("broken", sources=["csrc/broken.cu"]))
    assert record.status == "failed"
    assert str(record.compiler_message).startswith("csrc/broken.cu(1): error: identifier")
    assert record.compiler is not None, "what it failed with is part of the record"


@needs_cuda
def test_native_alone_without_a_gpu_is_not_run(project: Path) -> None:
    if toolchain.native_archs():
        pytest.skip("there is a GPU")
    record = built(project, cuda("scale", archs=["native"]))
    assert (record.status, record.archs) == ("not_run", [])
    assert "native" in str(record.reason)


# --- other ABIs -------------------------------------------------------------------------------------------------------


def test_python_variant_is_recorded_by_its_source(project: Path) -> None:
    chosen = variant("plus", abi="python", sources=[], entry="csrc/plus.py:run", passing="return")
    record = built(project, chosen)
    assert record.status == "ok"
    assert record.library is None
    assert [file.path for file in record.sources] == ["csrc/plus.py"]
    (project / "csrc" / "plus.py").write_text("def run(x):\n    return x + 2\n")
    assert built(project, chosen).signature != record.signature
    missing = dataclasses.replace(chosen, entry="csrc/gone.py:run")
    assert built(project, missing).reason == "source file csrc/gone.py does not exist"


def test_torch_extension_is_built_without_importing_torch(project: Path) -> None:
    if toolchain.package_folder("torch") is None:
        pytest.skip("torch is not installed")
    chosen = variant("extension", abi="torch", sources=["csrc/extension.cc"], macros={"STEP": 2})
    record = built(project, chosen)
    path, name = library(project, record), build.extension_name(chosen)
    assert f"PyInit_{name}".encode() in path.read_bytes()
    assert any(header.path.startswith("<python>/") for header in record.headers)
    code = (
        "import torch, sys, importlib.util as u;"
        "spec = u.spec_from_file_location(sys.argv[2], sys.argv[1]); module = u.module_from_spec(spec);"
        "spec.loader.exec_module(module); print(module.run(40))"
    )
    assert run([sys.executable, "-W", "ignore", "-c", code, path, name]).stdout == "42\n"


@pytest.mark.slow
def test_torch_extensions_of_the_usual_kind_are_loaded_beside_each_other(project: Path) -> None:
    """torch's registry knows a library by its name, and refuses a second one."""
    if toolchain.package_folder("torch") is None:
        pytest.skip("torch is not installed")
    torch, loading = map(importlib.import_module, ("torch", "kernelproof.loading"))  # not where others build
    found = []
    for step in (2, 3):
        chosen = variant(f"by-{step}", abi="torch", sources=["csrc/torch_extension.cc"], macros={"STEP": step})
        path = Path(library(project, built(project, chosen)))
        found.append(loading.load(loading.Candidate("torch", "cpu", "return", "run", None, "."), path, project))
    assert [call(torch.full((1,), 40)).item() for call in found] == [42, 43]


# --- small parts ------------------------------------------------------------------------------------------------------


def test_depfile() -> None:
    text = "a.o: csrc/a.cu \\\n  csrc/with\\ space.h \\\n /usr/include/b.h\n"
    assert build.parse_depfile(text) == ["csrc/a.cu", "csrc/with space.h", "/usr/include/b.h"]
    assert build.parse_depfile("a$$$$b\\#.o: a$$$$b\\#.cc c$$.h\n") == ["a$$b#.cc", "c$.h"]


def test_places_are_the_same_on_every_machine(tmp_path: Path) -> None:
    toolkit = tmp_path / "cuda"
    places = build.Places(tmp_path / "repo")
    places.add("<toolkit>", toolkit, tmp_path / "repo/results/store/toolkit-1")
    names = {
        "csrc/a.h": "csrc/a.h",
        "/proc/self/cwd/csrc/../csrc/a.h": "csrc/a.h",
        f"{tmp_path}/repo/csrc/a.h": "csrc/a.h",
        "/proc/self/cwd/results/store/toolkit-1/bin/..//include/b.h": "<toolkit>/include/b.h",
        f"{toolkit}/include/b.h": "<toolkit>/include/b.h",
        "/usr/include/c.h": "<system>/usr/include/c.h",
    }
    assert {path: places.named(path) for path in names} == names
    assert places.path("<toolkit>/include/b.h") == toolkit / "include/b.h"
    assert places.path("<system>/usr/include/c.h") == Path("/usr/include/c.h")
    assert places.path("csrc/a.h") == tmp_path / "repo/csrc/a.h"


def test_first_errors_leave_out_what_is_no_error() -> None:
    text = "\n".join(
        [
            "ptxas info    : 0 bytes gmem",
            'csrc/a.cu(3): warning #177-D: variable "error" was declared but never referenced',
            'csrc/a.cu(5): error: identifier "x" is undefined',
            "    float y = x;",
            "              ^",
            "",
            '1 error detected in the compilation of "csrc/a.cu".',
        ]
    )
    assert build.first_errors(text).splitlines() == [
        'csrc/a.cu(5): error: identifier "x" is undefined',
        "    float y = x;",
        "              ^",
        '1 error detected in the compilation of "csrc/a.cu".',
    ]
    assert len(build.first_errors("error: again\n" * 100).splitlines()) == build.MESSAGE_LINES
    assert build.first_errors("Killed\n") == "Killed"


def test_kept_facts_survive_json(project: Path) -> None:
    record = built(project, variant("plain"))
    stored = json.loads(library(project, record).with_name("build.json").read_text())
    assert set(stored) == {"digest", "facts", "files", "headers"}
    assert stored["files"].keys() == {"lib.so"}
    assert "csrc/answer.h" in stored["headers"]
