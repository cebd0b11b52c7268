"""Builds: resources against their budget, the instruction mix, messages."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernelproof import charts, formats
from kernelproof.records import BudgetRow, BuildRecord, CompilerAdvice, Cubin, KernelResources
from kernelproof.views.common import Badge, Limits, Records, badge


@dataclass(frozen=True)
class KernelRow:
    """A kernel's resources on one architecture; `over` holds the resources above the budget, with their limits."""

    arch: str
    resources: KernelResources
    over: Mapping[str, int]


def short_name(demangled: str, limit: int = 90) -> str:
    """A kernel's name without return type and parameters; template arguments stay, since they tell kernels apart."""
    name = formats.one_line(demangled, 2000).removeprefix("void ")
    depth = 0
    for position, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and position and not name.startswith("(anonymous", position):
            name = name[:position]
            break
    return name if len(name) <= limit else f"{name[: limit - 1]}…"


@dataclass(frozen=True)
class MixBar:
    """The instruction mix of a variant on one architecture."""

    arch: str
    total: int
    segments: tuple[charts.Segment, ...]
    counts: Mapping[str, int]


@dataclass(frozen=True)
class MostOf:
    """The most that any kernel of a variant takes, over its architectures."""

    kernels: int
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int
    instructions: int


@dataclass(frozen=True)
class AdviceView:
    """What ptxas advises of one or several kernels: what that means, of which and where, and its own words."""

    words: str
    of: str
    said: str


@dataclass(frozen=True)
class BuildView:
    """One variant's build."""

    record: BuildRecord
    badge: Badge
    kernels: tuple[KernelRow, ...]
    kernels_left_out: int
    most: MostOf | None
    mixes: tuple[MixBar, ...]
    over_budget: tuple[BudgetRow, ...]
    within_budget: bool | None
    advice: tuple[AdviceView, ...]
    message: str
    macros: tuple[str, ...]


@dataclass(frozen=True)
class Identical:
    """Variants that are one binary; `differ`: in what their compiler was given, which then made no difference."""

    names: tuple[str, ...]
    differ: bool


@dataclass(frozen=True)
class BuildsView:
    """All builds and the legend that their instruction mixes share."""

    views: tuple[BuildView, ...]
    legend: tuple[tuple[int, str], ...]
    identical: tuple[Identical, ...]


# In the order in which they are stacked: arithmetic, memory, the rest. A class that is not here counts as other.
INSTRUCTION_CLASSES = (
    "tensor",
    "fp16",
    "fp32",
    "fp64",
    "special function",
    "conversion",
    "integer",
    "matrix load/store",
    "shared memory",
    "async copy",
    "global memory",
    "local memory",
    "constant memory",
    "warp exchange",
    "barrier",
    "control",
    "move",
    "other",
)


SLOTS = {name: slot for slot, name in enumerate(INSTRUCTION_CLASSES)}


def builds(records: Records, limits: Limits) -> BuildsView:
    """Builds in the order of the records."""
    views = tuple(_build(record, limits) for record in records.builds)
    present = {segment.name for view in views for mix in view.mixes for segment in mix.segments}
    return BuildsView(
        views,
        tuple((slot, name) for name, slot in SLOTS.items() if name in present),
        tuple(_identical(records, group) for group in records.manifest.identical_machine_code),
    )


def _identical(records: Records, group: Sequence[str]) -> Identical:
    given = [
        ([(source.path, source.sha256) for source in build.sources], build.macros, build.flags)
        for build in records.builds
        if f"{build.operator}/{build.variant}" in group
    ]
    return Identical(tuple(group), any(each != given[0] for each in given))


def _build(record: BuildRecord, limits: Limits) -> BuildView:
    over: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for row in record.budget:
        if not row.ok:
            over[row.arch, row.kernel][row.what] = row.limit
    kernels = [
        KernelRow(c.arch, k, over.get((c.arch, k.name)) or over.get((c.arch, k.demangled)) or {})
        for c in record.cubins
        for k in c.kernels
    ]
    failing = tuple(row for row in record.budget if not row.ok)
    return BuildView(
        record,
        badge(record.status),
        tuple(kernels[: limits.kernels]),
        max(0, len(kernels) - limits.kernels),
        _most([row.resources for row in kernels]),
        tuple(_mixes(record.cubins)),
        failing,
        not failing if record.budget else None,
        tuple(_advice(record)),
        formats.excerpt(record.compiler_message or "", limits.message_characters),
        tuple(name if value is None else f"{name}={value}" for name, value in record.macros.items()),
    )


# What ptxas means, by a word of its sentence.
ADVICE = {
    "wgmma": "wgmma is not asynchronous here: each is waited for before the next one starts",
    "setmaxnreg": "setmaxnreg does nothing, so every warp keeps the number of registers that it was launched with",
    "": "a kernel may be slower than it could be",
}
NAMED_KERNELS = 3  # of those that one advice is for


def _advice(record: BuildRecord) -> Iterator[AdviceView]:
    """Instances of a template get the same advice: once for all of them."""
    alike: dict[str, list[CompilerAdvice]] = defaultdict(list)
    for advice in record.advice:
        alike[f"{advice.code}: {advice.text}" if advice.code else advice.text].append(advice)
    for said, found in alike.items():
        names = list(dict.fromkeys(short_name(each.kernel) for each in found if each.kernel))
        more = len(names) - NAMED_KERNELS
        of = formats.listed([*names[:NAMED_KERNELS], *([formats.plural(more, "more kernel")] if more > 0 else [])])
        archs = formats.listed(dict.fromkeys(each.arch for each in found if each.arch))
        words = next(meaning for word, meaning in ADVICE.items() if word in said)
        yield AdviceView(words, ", ".join(filter(None, (of, archs))), said)


def _most(found: Sequence[KernelResources]) -> MostOf | None:
    if not found:
        return None
    return MostOf(
        len(found),
        max(kernel.registers for kernel in found),
        max(kernel.shared_bytes for kernel in found),
        max(kernel.stack_bytes for kernel in found),
        max(kernel.spill_store_bytes + kernel.spill_load_bytes for kernel in found),
        max(kernel.instructions for kernel in found),
    )


def _mixes(cubins: Sequence[Cubin]) -> Iterator[MixBar]:
    """A bar for each architecture, over the cubins of all sources."""
    by_arch: dict[str, Counter[str]] = defaultdict(Counter)
    for cubin in cubins:
        for name, number in cubin.instruction_mix.items():
            by_arch[cubin.arch][name if name in SLOTS else "other"] += number
    for arch, counts in by_arch.items():
        yield MixBar(arch, counts.total(), tuple(charts.stacked(counts, SLOTS)), dict(counts))
