"""Whose kernels ran in a call: the names in a trace, held against those that the build made and the variant declared.

A kernel is a variant's own when a cubin of its build has it. A Python variant has no cubins: of its kernels only those
that bear the name of a known library are told from its own. Copies and fills of the runtime (memcpy, memset) may stand
beside own kernels; they are no work by themselves. In a graph the driver may make them with kernels (`memset32`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelproof.records import BuildRecord

# What the kernels of libraries are called; each is searched for in a name. The names of one library's kernels are often
# another's (cuBLAS and cuDNN are made of cutlass in part), so a kernel may belong to several.
FAMILIES = {
    "cublas": r"cublas|nvjet|xmma|cutlass|gemm|gemv|splitKreduce|^(void )?dot_kernel|^(volta|turing|ampere|hopper)_",
    "cutlass": r"cutlass|\bcute::",
    "cudnn": r"cudnn|xmma|cutlass",
    "torch": r"^aten::|\b(at|c10|flash)::|at_cuda|pytorch_flash|fmha_cutlass|^flash_fwd|vectorized_elementwise_kernel",
    "memcpy": r"^Memcpy\b|^memcpy\d+(_\w+)?$",
    "memset": r"^Memset\b|^memset\d+(_\w+)?$",
}
LIBRARIES = ("cublas", "cutlass", "cudnn", "torch")
COPIES = ("memcpy", "memset")
OPERATOR = "aten::"  # what names of torch's operators begin with, in its profiler
# Of them, without the `_` of what works in place: those that move or set values, and those that only look at them in
# another way or take memory.
MOVES = {"copy", "clone", "_to_copy", "to", "contiguous", "fill", "zero", "zeros", "zeros_like", "ones", "full", "cat"}
FREE = {"alias", "as_strided", "detach", "empty", "empty_like", "empty_strided", "expand", "lift_fresh", "permute"}
FREE |= {"reshape", "resize", "resolve_conj", "resolve_neg", "select", "slice", "squeeze", "t", "transpose"}
FREE |= {"unsqueeze", "view"}
IS_OPERATOR, MOSTLY = 0.8, 0.5  # shares of a call's time in torch's operators that one of them has
OWN, DECLARED, COPY, FOREIGN = "own", "declared", "copy", "foreign"


@dataclass
class Sorted:
    """The kernels of a trace by whose they are, and what is wrong with that; names in order of first appearance."""

    origin: dict[str, str] = field(default_factory=dict)
    fault: str | None = None


def own_kernels(build: BuildRecord) -> set[str]:
    """The names, mangled and in words, of every kernel that a build made."""
    kernels = [kernel for cubin in build.cubins for kernel in cubin.kernels]
    return {_plain(name) for kernel in kernels for name in (kernel.name, kernel.demangled)}


def sort_kernels(names: Iterable[str], own: Collection[str] | None, calls: Sequence[str]) -> Sorted:
    """Tell own kernels, declared ones, copies and foreign ones apart.

    own: from `own_kernels`; None for a Python variant, which has no build. calls: what the variant declares, names of
    FAMILIES or regular expressions that are searched for in a kernel's name.
    """
    found = Sorted({name: _origin(name, own, calls) for name in names})
    foreign = [name for name, origin in found.origin.items() if origin == FOREIGN]
    if foreign:
        found.fault = (
            f"library call passed off as own work: {'; '.join(map(short, foreign))} "
            f"{'is' if len(foreign) == 1 else 'are'} no kernel of its build, and its `calls` does not declare "
            f"{'it' if len(foreign) == 1 else 'them'}"
        )
    elif found.origin and set(found.origin.values()) == {COPY}:
        found.fault = f"no kernel of its own ran, only {'; '.join(map(short, found.origin))}"
    return found


@dataclass(frozen=True)
class PassedOff:
    """What is wrong with a call that is a library's; whether it and the baseline are nothing else, by any clock."""

    reason: str
    is_all: bool


def passed_off(
    call: Sequence[Mapping[str, Any]], baselines: Mapping[str, Sequence[Mapping[str, Any]]], calls: Sequence[str]
) -> PassedOff | None:
    """What is wrong with a call on a CPU that is for the most part the operator of torch which a baseline is.

    call, baselines: torch's operators in a call (torch_profiler.operators_of). A composition of other operators is own
    work. A baseline that wraps an operator is that, and then as much moving as it does itself counts for nobody.
    """
    for baseline, operators in baselines.items():
        work, moves = _work(operators)
        heaviest = max(work, key=lambda operator: float(operator["duration_us"]), default=None)
        if heaviest is None or _plain_name(heaviest) in FREE:  # whatever computes there is none of torch's
            continue
        known = _names(heaviest)
        is_it = _share(work, [heaviest]) >= IS_OPERATOR and _share([*work, *moves], [heaviest]) >= MOSTLY
        mine, moved = _work(call) if moves else (call, [])
        same = [operator for operator in mine if _names(operator) & known]
        beyond = max(0.0, _us(moved) - _us(moves))
        share = _us(same) / (_us(mine) + beyond) if same else 0.0
        declared = any(_belongs(name, calls) for name in {*known, str(heaviest["name"])})
        if is_it and share >= MOSTLY and not declared:
            name = max(same, key=lambda operator: float(operator["duration_us"]))["name"]
            reason = (
                f"library call passed off as own work: {name}, which the baseline {baseline} is, takes "
                f"{_share(call, same):.0%} of the time that a call spends in torch, and its `calls` does not declare "
                "`torch`"
            )
            others = {_plain_name(operator) for operator in moved} - {_plain_name(operator) for operator in moves}
            return PassedOff(reason, is_all=len(work) == 1 and len(same) == len(mine) and not others)
    return None


def _work(operators: Sequence[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    """What computes, and what moves values; all operators are the first where none computes."""
    named = [(_plain_name(operator), operator) for operator in operators]
    work = [operator for name, operator in named if name not in MOVES | FREE]
    return (work, [operator for name, operator in named if name in MOVES]) if work else (operators, [])


def _plain_name(operator: Mapping[str, Any]) -> str:
    """`copy` of `aten::copy_`."""
    return str(operator["name"]).removeprefix(OPERATOR).rstrip("_")


def _us(operators: Sequence[Mapping[str, Any]]) -> float:
    return sum(float(operator["duration_us"]) for operator in operators)


def _names(operator: Mapping[str, Any]) -> set[str]:
    """Its own name and those of what it leaves its work to; `add_`, which works in place, is `add`."""
    return {name.rstrip("_") for name in (str(operator["name"]), *operator.get("inside", ()))}


def _share(operators: Sequence[Mapping[str, Any]], some: Sequence[Mapping[str, Any]]) -> float:
    """Of the time of all operators, what some of them take."""
    whole = _us(operators)
    return _us(some) / whole if whole else 0.0


def other_names(one: Iterable[str], other: Iterable[str]) -> list[str]:
    """Kernels that ran in one of two traces alone; copies and fills are left out, since a graph may merge them."""
    return sorted(name for name in set(one) ^ set(other) if not _belongs(name, COPIES))


def names_of(kernels: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names in a list of kernels (torch_profiler.kernels_of)."""
    return list(dict.fromkeys(str(kernel["name"]) for kernel in kernels))


def short(name: str, most: int = 120) -> str:
    """A kernel's name without its parameters, cut to a length that a message can hold."""
    plain = re.sub(r"\((?!anonymous namespace\)).*$", "", name).removeprefix("void ")
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def _origin(name: str, own: Collection[str] | None, calls: Sequence[str]) -> str:
    if is_own(name, own):
        return OWN
    if _belongs(name, calls):
        return DECLARED
    if _belongs(name, COPIES) and (own is not None or name[0].isupper()):  # a Python function may be called memset32
        return COPY
    return OWN if own is None and not _belongs(name, LIBRARIES) else FOREIGN


def is_own(name: str, own: Collection[str] | None) -> bool:
    """Whether a kernel is one of a build (own: from `own_kernels`)."""
    return own is not None and _plain(name) in own


def _belongs(name: str, patterns: Iterable[str]) -> bool:
    return any(re.search(FAMILIES.get(pattern, pattern), name) for pattern in patterns)


def _plain(name: str) -> str:
    return re.sub(r"\s+", "", name)
