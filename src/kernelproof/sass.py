"""What a compiled kernel is made of: ptxas's resource report, the disassembly, hashes that mean 'same machine code'.

Pure functions over text, bytes and records. The normalised form of a kernel is its list of instructions with their
scheduling control, branch targets as instruction numbers, symbols numbered in order of appearance and trailing padding
removed; so neither addresses, labels, names nor the folder that it was built in change its hash.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from kernelproof.records import BuildRecord, CompilerAdvice, KernelResources

INSTRUCTION_BYTES = 16  # since Volta

# --- ptxas -v ---------------------------------------------------------------------------------------------------------

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_PROPERTIES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+)(?:\+(\d+))? bytes smem")


@dataclass
class Resources:
    """What ptxas says of one kernel; `shared_bytes` is static shared memory, since it cannot know the dynamic part."""

    arch: str
    kernel: str
    registers: int = 0
    shared_bytes: int = 0
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0


def parse_ptxas(text: str) -> list[Resources]:
    """The kernels in the output of `nvcc -Xptxas -v`.

    Functions that are called and not inlined are reported after their kernel; their stack and spills count as its own.
    """
    found: list[Resources] = []
    for line in text.splitlines():
        if entry := _ENTRY.search(line):
            found.append(Resources(arch=entry[2], kernel=entry[1]))
        if not found:
            continue
        kernel = found[-1]
        if properties := _PROPERTIES.search(line):
            stack, stores, loads = (int(n) for n in properties.groups())
            kernel.stack_bytes += stack
            kernel.spill_store_bytes += stores
            kernel.spill_load_bytes += loads
        if used := _USED.search(line):
            kernel.registers = int(used[1])
            if shared := _SHARED.search(line):
                kernel.shared_bytes = int(shared[1]) + int(shared[2] or 0)
    return found


_ADVICE = re.compile(
    r"^ptxas\b.*?: (?:\((C\d+)\) )?((?:Potential Performance Loss|Advisory): .*?)"
    r"(?: (?:in|for) the function '([^']+)')?$"
)


def parse_advice(text: str) -> list[CompilerAdvice]:
    """What ptxas says of lost speed in nvcc's output; for an architecture it comes before the report on its kernels."""
    found: list[CompilerAdvice] = []
    for line in text.splitlines():
        if said := _ADVICE.search(line):
            code, sentence, kernel = said.groups()
            found.append(CompilerAdvice(sentence, code, kernel and demangle(kernel)))
        elif entry := _ENTRY.search(line):
            for advice in found:
                advice.arch = advice.arch or entry[2]
    return found


# --- ELF --------------------------------------------------------------------------------------------------------------

ELF_MAGIC = b"\x7fELF\x02\x01"  # 64-bit, little-endian
SHT_RELA, SHT_NOBITS, SHF_ALLOC, SHF_EXECINSTR = 4, 8, 2, 4
RELOCATION, SYMBOL = struct.Struct("<QIIq"), struct.Struct("<IBBHQQ")  # Elf64_Rela, Elf64_Sym


@dataclass(frozen=True)
class Section:
    """One section of an ELF file; `info` is sh_info, whose top byte holds a kernel's register count in a cubin.

    `link` is the section that belongs to it: a symbol table's names, a relocation table's symbols.
    """

    name: str
    kind: int
    flags: int
    size: int
    info: int
    data: bytes
    link: int = 0


def read_elf(data: bytes) -> list[Section]:
    """The sections of a 64-bit little-endian ELF file (an object, a library or a cubin).

    Raises ValueError when it is none or is cut short.
    """
    if not data.startswith(ELF_MAGIC):
        raise ValueError("not a 64-bit little-endian ELF file")
    try:
        (table,) = struct.unpack_from("<Q", data, 0x28)
        count, names_index = struct.unpack_from("<HH", data, 0x3C)
        headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * index) for index in range(count)]
        names = headers[names_index][4]
        return [_section(data, header, names) for header in headers]
    except (struct.error, IndexError):
        raise ValueError("the ELF file is cut short") from None


def _section(data: bytes, header: tuple[int, ...], names: int) -> Section:
    name, kind, flags, _, offset, size, link, info, _, _ = header
    end = data.index(b"\0", names + name)
    content = b"" if kind == SHT_NOBITS else data[offset : offset + size]
    return Section(data[names + name : end].decode(), kind, flags, size, info, content, link)


# Symbols of a cubin that no host sets: what the compiler and its mathematics library bring, strings of printf.
_COMPILER_SYMBOL = re.compile(r"\$|__cudart_|__nv_|\.nv\.")
_HARMLESS_CALLS = frozenset({"vprintf", "__assertfail"})
STT_OBJECT, STT_FUNC = 1, 2


def state_of(cubin: bytes) -> list[str]:
    """What the kernels of a cubin rest on besides their parameters, in words; empty for most.

    Device variables, which the host could have set, and calls into the device's runtime: its heap, launches of its own.
    Raises ValueError for a broken cubin.
    """
    sections = read_elf(cubin)
    strings = next((section.data for section in sections if section.name == ".strtab"), b"")
    table = next((section.data for section in sections if section.name == ".symtab"), b"")
    found = []
    for place in range(0, len(table) - 23, 24):
        at, info, _, index, _, size = struct.unpack_from("<IBBHQQ", table, place)
        name = strings[at : strings.index(b"\0", at)].decode()
        home = sections[index].name if 0 < index < len(sections) else ""
        variable = home.startswith((".nv.global", ".nv.constant3")) and info & 15 == STT_OBJECT and size
        if variable and not _COMPILER_SYMBOL.match(name):
            found.append(f"the device variable {demangle(name)}")
        if index == 0 and info & 15 == STT_FUNC and name not in _HARMLESS_CALLS:
            found.append(f"a call of the device's {name}")
    return found


def host_code_sha256(data: bytes, *, constants: bool) -> str:
    """A hash over an object's executable sections, and its constants if asked for, with what they refer to.

    Names and paths do not count, but the names of what other objects define do: nothing else says which function is
    called. A CUDA object's constants hold mangled kernel names, in which the source's name is: leave them out there.
    """
    digest, sections = hashlib.sha256(), read_elf(data)
    for index, section in enumerate(sections):
        code = section.flags & SHF_EXECINSTR
        constant = constants and section.flags & SHF_ALLOC and section.name.startswith((".rodata", ".data"))
        if (code or constant) and section.size:
            digest.update(f"{section.name.split('.')[1]} {section.size}\n".encode())
            digest.update(section.data)
            for reference in _references(sections, index):
                digest.update(reference)
    return digest.hexdigest()


def _references(sections: Sequence[Section], index: int) -> Iterator[bytes]:
    """What a section leaves to the linker: where, how, and what is meant (a place in this object, or a name)."""
    for table in sections:
        if table.kind != SHT_RELA or table.info != index:
            continue
        symbols = sections[table.link]
        names = sections[symbols.link].data
        for offset, kind, symbol, addend in RELOCATION.iter_unpack(table.data):
            name, _, _, home, value, _ = SYMBOL.unpack_from(symbols.data, SYMBOL.size * symbol)
            end = names.index(b"\0", name)
            meant = names[name:end] if home == 0 else f"{home} {value}".encode()
            yield f"{offset} {kind} {addend} ".encode() + meant + b"\n"


# --- disassembly ------------------------------------------------------------------------------------------------------

_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_SECTION = re.compile(r"^\s*\.section\s+\.text\.(\S+?),")
_LABEL = re.compile(r"^(\.L_x_\d+|\.L_\d+):")
_SYMBOL = re.compile(r"(`\(|@(?:lo|hi)\(+)([^()]+)")  # `(.L_x_3), `($_Z1kPf$_Z3devf), 32@lo((table))
# A barrier of a given number of threads, or of another number than 0, which is __syncthreads().
_PARTIAL_BARRIER = re.compile(r"(?:@!?U?P\w+ +)?BAR\.(?:SYNC|ARV|RED)[.\w]* +(?! |0x0 *(?:, *!?U?P\w+ *)?$)")
_VECTOR_READ = re.compile(r"(?:@!?U?P\w+ +)?LDS(?:\.U)?\.(64|128)\b")
_OPCODE = re.compile(r"^(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)((?:\.\w+)*)")
_TARGETS = re.compile(r"\(\*.*?\*\)")


@dataclass
class Instruction:
    """One line of machine code: byte offset in its kernel, and the text with its predicate and operands."""

    offset: int
    text: str


@dataclass
class Function:
    """One kernel's disassembly; `labels` maps a label to the index of the instruction that it stands before."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


class Code(NamedTuple):
    """One function's machine code: instructions, SHA-256 of the normalised form, its part of the mix.

    partial_barriers: how many instructions are barriers that some warps may pass alone. unread: see unread_parameters.
    vector_reads: offset and bytes of every load of more than a word from shared memory.
    """

    instructions: int
    sha256: str
    mix: dict[str, int]
    partial_barriers: int
    unread: list[list[int]]
    vector_reads: list[list[int]]


@dataclass
class Disassembly:
    """A cubin's machine code, counted and hashed."""

    sass_sha256: str
    instruction_mix: dict[str, int]
    opcodes: dict[str, int]
    kernels: dict[str, Code]


def parse_nvdisasm(text: str) -> list[Function]:
    """The kernels in the output of `nvdisasm -c`, without the padding behind each."""
    functions: list[Function] = []
    for line in text.splitlines():
        if section := _SECTION.match(line):
            functions.append(Function(section[1].strip('"')))
        elif functions and (instruction := _INSTRUCTION.match(line)):
            functions[-1].instructions.append(Instruction(int(instruction[1], 16), instruction[2]))
        elif functions and (label := _LABEL.match(line)):
            functions[-1].labels[label[1]] = len(functions[-1].instructions)
    for function in functions:
        while function.instructions and function.instructions[-1].text == "NOP":
            function.instructions.pop()
    return functions


def analyse(cubin: bytes, disassembly: str) -> Disassembly:
    """Count and hash the machine code of a cubin; `disassembly` is what `nvdisasm -c` says of it.

    Beside the instructions, a cubin's hash covers each kernel's registers and static shared memory and the constant
    data, so that equal hashes mean equal behaviour, not just equal listings. Raises ValueError for a broken cubin.
    """
    sections = read_elf(cubin)
    code = {section.name.removeprefix(".text."): section for section in sections if section.name.startswith(".text.")}
    shared = {s.name.removeprefix(".nv.shared."): s.size for s in sections if s.name.startswith(".nv.shared.")}
    opcodes: Counter[str] = Counter()
    mix: Counter[str] = Counter()
    kernels: dict[str, Code] = {}
    facts = {section.name.removeprefix(".nv.info."): section.data for section in sections}
    hashes: list[str] = []
    for function in parse_nvdisasm(disassembly):
        section = code.get(function.name)
        if section is None:
            raise ValueError(f"the disassembly names {function.name}, which the cubin lacks")
        lines = normalised(function, section.data)
        digest = _sha256_lines(lines)
        hashes.append(f"{digest} registers={section.info >> 24} shared={shared.get(function.name, 0)}")
        own: Counter[str] = Counter()
        for instruction in function.instructions:
            opcode, modifiers = _opcode(instruction.text)
            opcodes[opcode] += 1
            own[instruction_class(opcode, modifiers)] += 1
        mix += own
        kernels[function.name] = Code(
            len(lines),
            digest,
            dict(sorted(own.items())),
            sum(bool(_PARTIAL_BARRIER.match(instruction.text)) for instruction in function.instructions),
            unread_parameters(function, facts.get(function.name, b"")),
            [
                [instruction.offset, int(load[1]) // 8]
                for instruction in function.instructions
                if (load := _VECTOR_READ.match(instruction.text))
            ],
        )
    # The order of kernels in a file follows their names' order in a table; it means nothing.
    constants = sorted(hashlib.sha256(s.data).hexdigest() for s in sections if _is_constant_data(s))
    total = _sha256_lines([*sorted(hashes), *constants])
    return Disassembly(total, dict(sorted(mix.items())), dict(sorted(opcodes.items())), kernels)


# Where a kernel's parameters begin in constant bank 0 → what else may be read there without taking their address: sizes
# of grid and block, the stack, the descriptor of global memory. The address is read at 0x198 on sm_90.
_BANK_0 = {0x160: {*range(0, 0x18, 4), 0x28, 0x118}, 0x210: {*range(0, 0x18, 4), 0x28, 0x208}}
_BANK_READ = re.compile(r"\bcx?\[(\w+)\]\s*\[([^\]]*)\]")  # 16-bit instructions are written with a space between
_BANK = re.compile(r"\bcx?\s*\[")
# Textures and surfaces of sm_8x: their handles are read from the bank, which the text says as plain numbers.
_HANDLES = re.compile(r"(?:@!?U?P\w+ +)?(?:TEX|TLD|TXQ|TXD|TMML|FOOTPRINT|SULD|SUST|SURED|SUATOM|SUQUERY)")
_READ_BYTES = {".U8": 1, ".S8": 1, ".U16": 2, ".S16": 2, "": 4, ".64": 8, ".128": 16}
EIFMT_SIZED, EIATTR_PARAM_CBANK = 4, 0x0A


def unread_parameters(function: Function, facts: bytes) -> list[list[int]]:
    """The parts of a kernel's parameters that no instruction of its reads: first byte and end of each.

    facts: its section `.nv.info.…`. Nothing where its code may read them otherwise than is looked for: by an index in a
    register, through their address, or on an architecture that is not known here.
    """
    begin, size = _place_of_parameters(facts)
    if begin not in _BANK_0:
        return []
    read = bytearray(size)
    for instruction in function.instructions:
        opcode, modifiers = _opcode(instruction.text)
        load = opcode in ("LDC", "ULDC", "LDCU")
        count = _READ_BYTES.get(modifiers, 16) if load else 8  # of a pair of registers at most
        operands = _BANK_READ.findall(instruction.text)
        if len(operands) != len(_BANK.findall(instruction.text)) or _HANDLES.match(instruction.text):
            return []
        for bank, offset in operands:
            if bank not in ("0x0", "0x3", "0x4") or (bank == "0x0" and not re.fullmatch(r"0x[0-9a-f]+", offset)):
                return []
            if bank != "0x0":
                continue
            at = int(offset, 16) - begin
            if at < 0 and at + begin not in _BANK_0[begin]:
                return []
            if at >= 0:
                read[at : at + count] = b"\1" * len(read[at : at + count])
    return [[found.start(), found.end()] for found in re.finditer(b"\0+", read)]


def _place_of_parameters(facts: bytes) -> tuple[int, int]:
    """Offset and size of a kernel's parameters in constant bank 0; zeros where its facts do not say."""
    at = 0
    while at + 4 <= len(facts):
        form, attribute, value = struct.unpack_from("<BBH", facts, at)
        at += 4
        if form == EIFMT_SIZED:
            if attribute == EIATTR_PARAM_CBANK and value >= 8 and at + 8 <= len(facts):
                _, begin, size = struct.unpack_from("<IHH", facts, at)
                return begin, size
            at += value
    return 0, 0


def normalised(function: Function, code: bytes) -> list[str]:
    """A kernel's instructions without addresses, labels and names, each with its scheduling control (hexadecimal).

    code: the kernel's section of the cubin; bits 105 to 125 of an instruction hold stall count, yield flag, barriers
    and register reuse.
    """
    numbers: dict[str, str] = {}

    def target(match: re.Match[str]) -> str:
        opening, symbol = match.groups()
        if symbol in function.labels:
            return f"{opening}{function.labels[symbol]}"
        return opening + numbers.setdefault(symbol, f"symbol{len(numbers)}")

    lines = []
    for instruction in function.instructions:
        text = _SYMBOL.sub(target, _TARGETS.sub("", instruction.text))
        (upper,) = struct.unpack_from("<Q", code, instruction.offset + 8)
        lines.append(f"{upper >> 41 & 0x1FFFFF:06x} {' '.join(text.split())}")
    return lines


def _is_constant_data(section: Section) -> bool:
    # Bank 0 holds parameters and launch dimensions: nothing of it is known at compile time.
    constant = section.name.startswith(".nv.constant") and not section.name.startswith(".nv.constant0")
    return bool(section.size) and (constant or section.name.startswith((".nv.global.init", ".rodata")))


def _sha256_lines(lines: Iterable[str]) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def _opcode(text: str) -> tuple[str, str]:
    found = _OPCODE.match(text)
    return (found[1], found[2]) if found else (text.split()[0], "")


# The classes of the report's instruction mix, by opcode without modifiers; the first pattern that fits wins. A leading
# U is the uniform datapath, a leading V the packed or combined integer unit.
_CLASSES = [
    (name, re.compile(rf"(?:{pattern})\Z"))
    for name, pattern in (
        ("tensor", r"[HIBDQO]G?MMA|UTC\w*MMA\w*"),
        ("async copy", r"LDGSTS|LDGDEPBAR|DEPBAR|UBLK\w+|UTMA\w+|UTCCP"),
        ("matrix load/store", r"LDSMT?|STSMT?|MOVM|LDTM?|STTM?"),
        ("global memory", r"LDG|STG|LD|ST|ATOMG?|REDG?|CCTL[LT]?|LDGMC|MULTIMEM"),
        ("shared memory", r"LDS|STS|ATOMS|STAS|REDAS"),
        ("local memory", r"LDL|STL"),
        ("constant memory", r"U?LDCU?"),
        ("barrier", r"BAR|SYNCS|MEMBAR|WARPSYNC|ERRBAR|FENCE|ARRIVES|WARPGROUP|WARPGROUPSET|U?CGABAR\w*|ACQBULK"),
        ("special function", r"MUFU|RRO"),
        ("fp64", r"D(?:ADD|MUL|FMA|SETP|SET|MNMX)"),
        ("fp32", r"U?F(?:ADD|MUL|FMA)[2]?(?:32I)?|U?F(?:SETP?|SEL|MNMX3?|CHK|SWZADD|CMP)"),
        ("fp16", r"[UV]?H(?:ADD2|MUL2|FMA2|SETP?2|SET2|MNMX2?)(?:_32I)?"),
        ("conversion", r"U?(?:F2F|F2FP|F2I|F2IP|I2F|I2FP|I2I|I2IP|FRND)"),
        ("warp exchange", r"SHFL|U?VOTEU?|C?REDUX|MATCH|ELECT"),
        (
            "control",
            r"BRAU?|BRXU?|EXIT|CALL|RET|U?JMP|JMXU?|BSSY|BSYNC|BREAK|BMOV|BPT|BRK|KILL|NANOSLEEP|YIELD|RPCMOV|LEPC|RTT|"
            r"PREEXIT|USETMAXREG|NOP",
        ),
        ("move", r"[UV]?I?MOV(?:32I)?|U?SEL|C?S2U?R|S2UR|U?R2UR|R2B|B2R|UP2UR|U?P2R|R2U?P|UR2UP"),
        (
            "integer",
            r"[UV]?I(?:ADD|MAD|MUL|MNMX|SET|ABS|DP|SCADD)\w*|"
            r"U?(?:LEA|LOP3?|PLOP3|PSETP|SH[FLR]|PRMT|BMSK|POPC|FLO|BREV|SGXT|BFE|BFI)|VABSDIFF4?|XMAD",
        ),
    )
]


@cache
def instruction_class(opcode: str, modifiers: str = "") -> str:
    """The class of an opcode in the instruction mix, `other` when it is not known."""
    if opcode == "HADD2" and ".F32" in modifiers:
        return "conversion"  # half to float is spelled as an addition of zero
    if opcode in ("IMAD", "UIMAD") and ".MOV" in modifiers:
        return "move"  # a copy on the multiplier's pipe
    return next((name for name, pattern in _CLASSES if pattern.match(opcode)), "other")


def match_kernels(disassembly: Disassembly, resources: Sequence[Resources]) -> list[KernelResources]:
    """One row a kernel, from ptxas's report and the disassembly of the same architecture.

    Raises ValueError when a kernel is in one and not in the other, which would mean that one of them was misread.
    """
    reported = {entry.kernel: entry for entry in resources}
    # Functions that are called across files have machine code and no entry; they are not kernels.
    if missing := sorted(set(reported) - set(disassembly.kernels)):
        raise ValueError(f"ptxas reported {missing[0]}, which the disassembly lacks")
    rows = []
    called = sum(code.partial_barriers for name, code in disassembly.kernels.items() if name not in reported)
    for name, code in disassembly.kernels.items():
        if (entry := reported.get(name)) is None:
            continue
        rows.append(
            KernelResources(
                name=name,
                demangled=demangle(name),
                registers=entry.registers,
                shared_bytes=entry.shared_bytes,
                stack_bytes=entry.stack_bytes,
                spill_store_bytes=entry.spill_store_bytes,
                spill_load_bytes=entry.spill_load_bytes,
                instructions=code.instructions,
                sass_sha256=code.sha256,
                instruction_mix=code.mix,
                partial_barriers=code.partial_barriers + called,
                parameters_unread=code.unread,
                shared_vector_reads=code.vector_reads,
            )
        )
    return rows


def demangle(name: str) -> str:
    """A C++ name in words through the C++ runtime library; the mangled name when that cannot."""
    library = _cxx_library()
    if library is None:
        return name
    status = ctypes.c_int()
    text = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if status.value != 0 or not text:
        return name
    try:
        return ctypes.cast(text, ctypes.c_char_p).value.decode()  # type: ignore[union-attr]
    finally:
        _free(text)


@cache
def _cxx_library() -> ctypes.CDLL | None:
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL("libstdc++.so.6")
        library.__cxa_demangle.restype = ctypes.c_void_p
        return library
    return None


def _free(pointer: int) -> None:
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free(pointer)


# --- across variants --------------------------------------------------------------------------------------------------


def identical_machine_code(records: Sequence[BuildRecord]) -> list[list[str]]:
    """Groups of two or more variants of one operator and device that are the same machine code, as `operator/variant`.

    Device code must agree on every architecture that they were built for, and host code too: variants that launch one
    kernel in different shapes are different. Whatever their macros and sources say, such variants are one binary.
    """
    groups: dict[tuple[object, ...], list[str]] = {}
    for record in records:
        device_code = tuple(sorted((cubin.arch, cubin.sass_sha256) for cubin in record.cubins))
        if record.status != "ok" or record.role != "variant" or record.abi == "python":
            continue
        if not device_code and record.host_code_sha256 is None:
            continue
        key = (record.operator, record.device, device_code, record.host_code_sha256)
        groups.setdefault(key, []).append(f"{record.operator}/{record.variant}")
    return [sorted(names) for names in groups.values() if len(names) > 1]
