"""Reading what compilers say of machine code: from texts as they print them, and cubins put together by hand."""

from __future__ import annotations

import dataclasses
import struct
import subprocess
from pathlib import Path

import pytest

from kernelproof import sass
from kernelproof.records import BuildRecord, CompilerAdvice, Cubin

PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z2k2Pfi' for 'sm_90a'
ptxas info    : Function properties for _Z2k2Pfi
    544 bytes stack frame, 1468 bytes spill stores, 1516 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 2048+16 bytes smem, 561 bytes cmem[0]
ptxas info    : Compile time = 55.320 ms
ptxas info    : Compiling entry function '_Z2k1Pfi' for 'sm_90a'
ptxas info    : Function properties for _Z2k1Pfi
    256 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 0 barriers, 256 bytes cumulative stack size
ptxas info    : Function properties for _Z3devfi
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z2k1Pfi' for 'sm_89'
ptxas info    : Function properties for _Z2k1Pfi
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 22 registers, used 1 barriers, 512 bytes smem, 372 bytes cmem[0]
"""

KERNEL = """\
\t.target\tsm_90a
//--------------------- .text.{name}            --------------------------
\t.section\t.text.{name},"ax",@progbits
        .size           {name},(.L_x_{last} - {name})
{name}:
.text.{name}:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_{loop}:
        /*0010*/                   FFMA R4, R4, {factor}, RZ ;
        /*0020*/                   CALL.REL.NOINC `(${name}$_Z3devf) ;
        /*0030*/              @!P0 BRA `(.L_x_{loop}) ;
        /*0040*/                   EXIT ;
.L_x_{end}:
        /*0050*/                   BRA `(.L_x_{end});
        /*0060*/                   NOP;
        /*0070*/                   NOP;
.L_x_{last}:
"""
CONTROL = [0x7E2, 0x7F1, 0x7EA, 0x7E2, 0x7EA, 0x7E0, 0x7E0, 0x7E0]


def listing(name: str = "_Z1kPf", first_label: int = 0, factor: str = "R4") -> str:
    labels = {"loop": first_label, "end": first_label + 1, "last": first_label + 2}
    return KERNEL.format(name=name, factor=factor, **labels)


def elf(sections: list[tuple[str, int, int, int, bytes]]) -> bytes:
    """A 64-bit ELF file of (name, type, flags, info, data); a NOBITS section's data only gives its size."""
    sections = [("", 0, 0, 0, b""), *sections, (".shstrtab", 3, 0, 0, b"")]
    names = b""
    offsets = []
    for name, *_ in sections:
        offsets.append(len(names))
        names += name.encode() + b"\0"
    body, headers = b"", b""
    for index, (name, kind, flags, info, data) in enumerate(sections):
        content = names if name == ".shstrtab" else data
        header = (offsets[index], kind, flags, 0, 64 + len(body), len(content), 0, info, 1, 0)
        headers += struct.pack("<IIQQQQIIQQ", *header)
        body += b"" if kind == sass.SHT_NOBITS else content
    start = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    start += struct.pack(
        "<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(sections), len(sections) - 1
    )
    return start + body + headers


def cubin(
    name: str = "_Z1kPf",
    control: list[int] = CONTROL,
    registers: int = 24,
    shared_bytes: int = 512,
    constants: bytes = b"\1\2\3\4",
    parameters: bytes = b"\0" * 8,
) -> bytes:
    code = b"".join(struct.pack("<QQ", index, bits << 41) for index, bits in enumerate(control))
    return elf(
        [
            (f".text.{name}", 1, 6, registers << 24, code),
            (f".nv.shared.{name}", sass.SHT_NOBITS, 3, 0, b"\0" * shared_bytes),
            (".nv.constant3", 1, 2, 0, constants),
            (f".nv.constant0.{name}", 1, 2, 0, parameters),
        ]
    )


def test_ptxas_report() -> None:
    assert sass.parse_ptxas(PTXAS) == [
        sass.Resources("sm_90a", "_Z2k2Pfi", 32, 2064, 544, 1468, 1516),
        # With what the function that it calls needs.
        sass.Resources("sm_90a", "_Z2k1Pfi", 30, 0, 264, 4, 4),
        sass.Resources("sm_89", "_Z2k1Pfi", 22, 512, 0, 0, 0),
    ]
    assert sass.parse_ptxas("") == []


def test_ptxas_advice() -> None:
    serialised = "Potential Performance Loss: wgmma.mma_async instructions are serialized due to"
    ill, short = f"{serialised} ill formed pipeline stage", f"{serialised} insufficient register resources"
    ignored = "Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register requirements."
    advisory = "Advisory: '.multicast::cluster' modifier should be used on .target 'sm_90a' instead of .target 'sm_90'"
    injected = "(C7519) warpgroup.arrive is injected in around line 48 by compiler in function '_Z2k1Pfi'"
    text = "\n".join(
        [
            f"ptxas info    : (C7510) {ill} in the function '_Z2k1Pfi'",
            f"ptxas info    : {injected}",
            PTXAS,
            f"ptxas <build>/k.ptx, line 29; warning : {advisory}",
            f"ptxas info    : (C7508) {ignored}",
            "ptxas info    : Compiling entry function '_Z2k1Pfi' for 'sm_100a'",
            f"ptxas info    : (C7512) {short} for the function '_Z2k2Pfi'",
        ]
    )
    assert sass.parse_advice(text) == [
        CompilerAdvice(ill, "C7510", "k1(float*, int)", "sm_90a"),
        CompilerAdvice(advisory, None, None, "sm_100a"),
        CompilerAdvice(ignored, "C7508", None, "sm_100a"),
        CompilerAdvice(short, "C7512", "k2(float*, int)", None),
    ]
    assert sass.parse_advice(PTXAS) == []


def test_disassembly_is_counted_without_padding() -> None:
    found = sass.analyse(cubin(), listing())
    assert found.opcodes == {"BRA": 2, "CALL": 1, "EXIT": 1, "FFMA": 1, "LDC": 1}
    assert found.instruction_mix == {"constant memory": 1, "control": 4, "fp32": 1}
    assert found.kernels["_Z1kPf"][0] == 6


def test_labels_names_and_addresses_do_not_change_the_hash() -> None:
    first = sass.analyse(cubin(), listing())
    renamed = "_ZN36_GLOBAL__N__2c886959_4_k_cu_af0cbf991kEPf"
    second = sass.analyse(cubin(renamed, parameters=b"\1" * 8), listing(renamed, first_label=70))
    assert second.sass_sha256 == first.sass_sha256
    assert second.kernels[renamed] == first.kernels["_Z1kPf"]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({}, listing(factor="R5")),
        ({"control": [*CONTROL[:2], 0x7E1, *CONTROL[3:]]}, listing()),
        ({"registers": 25}, listing()),
        ({"shared_bytes": 1024}, listing()),
        ({"constants": b"\1\2\3\5"}, listing()),
    ],
    ids=["operand", "scheduling", "registers", "shared memory", "constant data"],
)
def test_whatever_changes_what_runs_changes_the_hash(changed: dict[str, object], text: str) -> None:
    first = sass.analyse(cubin(), listing())
    assert sass.analyse(cubin(**changed), text).sass_sha256 != first.sass_sha256  # type: ignore[arg-type]


def test_order_of_kernels_means_nothing() -> None:
    names = ["_Z1aPf", "_Z1bPf"]
    code = b"".join(struct.pack("<QQ", 0, bits << 41) for bits in CONTROL)
    whole = elf([(f".text.{name}", 1, 6, 24 << 24, code) for name in names])
    texts = [listing(names[0]), listing(names[1], 10, factor="R7")]
    assert sass.analyse(whole, "".join(texts)).sass_sha256 == sass.analyse(whole, "".join(reversed(texts))).sass_sha256


def test_symbols_in_operands() -> None:
    function = sass.Function(
        "k", [sass.Instruction(0, "MOV R2, 32@lo((table))"), sass.Instruction(16, "MOV R3, 32@hi((table))")]
    )
    lines = sass.normalised(function, b"\0" * 32)
    assert lines == ["000000 MOV R2, 32@lo((symbol0))", "000000 MOV R3, 32@hi((symbol0))"]


@pytest.mark.parametrize(
    ("opcode", "modifiers", "expected"),
    [
        ("HMMA", ".16816.F32", "tensor"),
        ("HGMMA", ".64x128x16.F32", "tensor"),
        ("QGMMA", "", "tensor"),
        ("IMMA", "", "tensor"),
        ("UTCHMMA", "", "tensor"),
        ("FFMA", "", "fp32"),
        ("FMUL", ".FTZ", "fp32"),
        ("FSETP", ".GT.AND", "fp32"),
        ("HFMA2", ".MMA", "fp16"),
        ("HADD2", "", "fp16"),
        ("HADD2", ".F32", "conversion"),
        ("F2FP", ".F16.F32.PACK_AB", "conversion"),
        ("DFMA", "", "fp64"),
        ("MUFU", ".EX2", "special function"),
        ("IMAD", ".WIDE", "integer"),
        ("IMAD", ".MOV.U32", "move"),
        ("UIADD3", "", "integer"),
        ("LOP3", ".LUT", "integer"),
        ("LDG", ".E.128", "global memory"),
        ("STG", ".E", "global memory"),
        ("REDG", ".E", "global memory"),
        ("LDS", ".128", "shared memory"),
        ("LDSM", ".16.MT88.4", "matrix load/store"),
        ("LDGSTS", ".E.BYPASS.128", "async copy"),
        ("UTMALDG", ".2D", "async copy"),
        ("LDL", "", "local memory"),
        ("ULDC", ".64", "constant memory"),
        ("BAR", ".SYNC.DEFER_BLOCKING", "barrier"),
        ("SYNCS", ".ARRIVE", "barrier"),
        ("SHFL", ".BFLY", "warp exchange"),
        ("BRA", "", "control"),
        ("S2R", "", "move"),
        ("NEWINSTRUCTION", "", "other"),
    ],
)
def test_instruction_classes(opcode: str, modifiers: str, expected: str) -> None:
    assert sass.instruction_class(opcode, modifiers) == expected


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        ("BAR.SYNC.DEFER_BLOCKING 0x0", False),
        ("@P0 BAR.SYNC 0x0 ", False),
        ("BAR.LE gsb0, 0x1", False),
        ("BAR.ALL.CTA", False),
        ("BAR.SYNC  0x0", False),
        ("BAR.RED.OR.DEFER_BLOCKING 0x0, P0", False),
        ("BAR.RED.POPC.DEFER_BLOCKING 0x0, !UP1 ", False),
        ("BAR.RED.OR.DEFER_BLOCKING 0x0, 0x40, P0", True),
        ("BAR.SYNC.DEFER_BLOCKING 0x1", True),
        ("@!P0 BAR.SYNC.DEFER_BLOCKING R0, 0x80", True),
        ("BAR.SYNC 0x0, 0x40", True),
        ("@!UP1 BAR.ARV 0x1, 0x100", True),
        ("BAR.RED.POPC.DEFER_BLOCKING 0x2, P0", True),
    ],
)
def test_barriers_that_some_warps_may_pass_alone(text: str, alone: bool) -> None:
    assert bool(sass._PARTIAL_BARRIER.match(text)) == alone


# 36 bytes of parameters from 0x210 on: an unknown attribute, then index, offset and size.
FACTS = b"\x03\x50\0\0\x04\x37\x04\0\x82\0\0\0\x04\x0a\x08\0\x0d\0\0\0\x10\x02\x24\0"
READS = [
    "LDC R1, c[0x0][0x28] ",
    "ULDC.64 UR4, c[0x0][0x210] ",
    "LDC.U8 R2, c[0x0][0x218] ",
    "IMAD R3, R2, c[0x0][0x4], RZ",
]


def unread(*texts: str, facts: bytes = FACTS) -> list[list[int]]:
    instructions = [sass.Instruction(16 * n, text) for n, text in enumerate([*READS, *texts])]
    return sass.unread_parameters(sass.Function("k", instructions), facts)


def test_padding_is_what_no_instruction_reads() -> None:
    assert unread() == [[9, 36]]
    assert unread("@P0 LDC.64 R4, c[0x0][0x220]") == [[9, 16], [24, 36]]
    assert unread("IMAD.WIDE R4, R2, R3, c[0x0][0x21c]") == [[9, 12], [20, 36]]
    assert unread("HADD2 R5, R0, -c[0x0] [0x220].H0_H0") == [[9, 16], [24, 36]]
    assert unread("LDC R5, c[0x0][0x230]", "ULDC.U16 UR5, c[0x0][0x22e]", "MOV R6, c[0x3][0x10]") == [[9, 30]]


@pytest.mark.parametrize(
    "text",
    [
        "LDC R5, c[0x0][R0+0x210]",  # by an index
        "LDC.64 R4, c[0x0][0x198]",  # through their address
        "LDC R4, cx[UR4][0x10]",
        "LDC R4, c[0x2][0x10]",
        "LDC R4, c[0x0]{0x220}",  # written in a way that is not known
        "TLD.SCR.LZ RZ, R0, R0, 0x0, 0x58, 1D",  # a handle, which the text does not show to be a parameter
        "@P0 SUST.D.BA.1D.32 [R2], R4, 0x0, 0x58",
    ],
)
def test_parameters_that_may_be_read_in_other_ways_are_all_taken_as_read(text: str) -> None:
    assert unread(text) == []


@pytest.mark.parametrize("facts", [b"", FACTS[:-2], FACTS.replace(b"\x10\x02", b"\x80\x03")])
def test_without_the_place_of_its_parameters_nothing_is_known_of_a_kernel(facts: bytes) -> None:
    assert unread(facts=facts) == []


def test_kernels_are_matched_by_name() -> None:
    found = sass.analyse(cubin(), listing())
    (row,) = sass.match_kernels(found, [sass.Resources("sm_90a", "_Z1kPf", registers=24, shared_bytes=512)])
    assert (row.name, row.demangled, row.registers, row.instructions) == ("_Z1kPf", "k(float*)", 24, 6)
    with pytest.raises(ValueError, match="_Z5otherv"):
        sass.match_kernels(found, [sass.Resources("sm_90a", "_Z5otherv")])
    with pytest.raises(ValueError, match="the cubin lacks"):
        sass.analyse(cubin("_Z5otherv"), listing())


@pytest.mark.parametrize(
    "data", [b"", b"!<arch>\n", cubin()[:100], cubin()[:-1]], ids=["empty", "archive", "head", "cut"]
)
def test_broken_elf(data: bytes) -> None:
    with pytest.raises(ValueError, match="ELF"):
        sass.read_elf(data)


def test_host_code_is_told_apart_by_code_and_not_by_names() -> None:
    code = (".text", 1, 6, 0, b"\x90\xc3")
    plain = elf([code, (".rodata.str1.1", 1, 2, 0, b"csrc/a.cu\0"), (".comment", 1, 0, 0, b"gcc")])
    renamed = elf([code, (".rodata.str1.1", 1, 2, 0, b"csrc/b.cu\0"), (".comment", 1, 0, 0, b"clang")])
    other = elf([(".text", 1, 6, 0, b"\x91\xc3")])
    assert sass.host_code_sha256(plain, constants=False) == sass.host_code_sha256(renamed, constants=False)
    assert sass.host_code_sha256(plain, constants=True) != sass.host_code_sha256(renamed, constants=True)
    assert sass.host_code_sha256(plain, constants=False) != sass.host_code_sha256(other, constants=False)


def test_host_code_that_calls_another_function_is_other_code(tmp_path: Path) -> None:
    """By a compiler: the call's bytes are the same, the linker fills in whom it means."""

    def compiled(name: str, called: str, space: str = "a") -> str:
        source, made = tmp_path / f"{name}.cc", tmp_path / f"{name}.o"
        source.write_text(
            f"#include <math.h>\nnamespace {space} {{ static float once(float x) {{ return {called}(x); }} }}\n"
            f"float run(float x) {{ return {space}::once(x) + 1; }}\n"
        )
        subprocess.run(["g++", "-O1", "-fPIC", "-c", source, "-o", made], check=True)
        return sass.host_code_sha256(made.read_bytes(), constants=True)

    assert compiled("first", "expf") != compiled("second", "sinf")
    assert compiled("first", "expf") == compiled("third", "expf", "b")


def test_demangle() -> None:
    assert (
        sass.demangle("_ZN36_GLOBAL__N__2c886959_4_k_cu_af0cbf993fooILi128EEEvPf")
        == "void (anonymous namespace)::foo<128>(float*)"
    )
    assert sass.demangle("not_mangled") == "not_mangled"


def record(name: str, code: str, host: str = "h", **settings: object) -> BuildRecord:
    made = BuildRecord(
        operator="toy",
        variant=name,
        device="cuda",
        host_code_sha256=host,
        cubins=[Cubin("sm_89", "", "", 0, f"{code}89"), Cubin("sm_90a", "", "", 0, f"{code}90")],
    )
    return dataclasses.replace(made, **settings)  # type: ignore[arg-type]


def test_identical_machine_code() -> None:
    records = [
        record("a", "one", macros={"STAGES": 2}),
        record("b", "two"),
        record("c", "one", macros={"STAGES": 3}),
        record("launched_otherwise", "one", host="i"),
        record("failed", "one", status="failed"),
        record("library", "one", role="baseline"),
        record("d", "one", operator="other"),
        record("cpu1", "", cubins=[], device="cpu"),
        record("cpu2", "", cubins=[], device="cpu"),
        record("python1", "", cubins=[], abi="python", host=None),
        record("python2", "", cubins=[], abi="python", host=None),
    ]
    assert sass.identical_machine_code(records) == [["toy/a", "toy/c"], ["toy/cpu1", "toy/cpu2"]]
    assert sass.identical_machine_code([]) == []


def test_identical_machine_code_needs_every_architecture() -> None:
    one, other = record("a", "one"), record("b", "one")
    other.cubins[1].sass_sha256 = "different"
    assert sass.identical_machine_code([one, other]) == []
