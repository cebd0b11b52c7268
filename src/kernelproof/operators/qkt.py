"""Attention scores: S = factor·Q·Kᵀ, of simulated-FP8 codes (codec: kernelproof.simfp8) or of 16-bit numbers.

Shapes: q [batch, heads, seq, head_dim], k [batch, heads, seq_k, head_dim]; q_scale, k_scale [batch, heads] (float32);
scores [batch, heads, seq, seq_k] (float32). uint8 is a code; float16 and bfloat16 stand for themselves, and their
scales are 1. The reference decodes the codes that the kernel is given, so quantisation error is no part of the verdict.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from kernelproof import simfp8
from kernelproof.operators import (
    Call,
    Cost,
    Reference,
    Relation,
    SanityCall,
    Suspect,
    accumulation_floors,
    changed,
    dims_of,
    dtype,
    exactly,
    forward_bound,
    option,
    placed,
    shuffled,
    traded,
    units,
)
from kernelproof.records import Case, OptionValue

if TYPE_CHECKING:
    from kernelproof.config import Precision

CODES = "uint8"
Coded = tuple[torch.Tensor, torch.Tensor]  # codes, scales

# In the bound: worst-case growth of the sum over head_dim and of the decoding, in units of u_a = 8·û; 64 roundings.
ACCUMULATION = 8
# Up to which u_a is that of any sum. Tensor cores cut a sum off, towards zero, every 16 features: at 160 of one sign
# cuBLAS is too small by 5.7e-7 (an H200).
FEW_FEATURES = 64


class Scores:
    """The scores operator (see kernelproof.operators.Operator)."""

    name = "qkt"
    dims: dict[str, int | str | None] = {"batch": 1, "heads": None, "seq": None, "seq_k": "seq", "head_dim": None}
    options: dict[str, tuple[OptionValue, ...]] = {"scaled": (False, True)}
    dtypes = ("uint8", "float16", "bfloat16")
    strided = True
    axes = ("batch", "head", "query row", "key")

    @property
    def families(self) -> tuple[str, ...]:
        """The input families, the default first."""
        return tuple(FAMILIES)

    def make_call(self, case: Case, generator: torch.Generator) -> Call:
        """Codes and scales of a case; factor is 1, or 1/√head_dim with the option `scaled`.

        16-bit numbers are what the codes of the same family stand for, rounded.
        """
        d = dims_of(self, case)
        build = FAMILIES[case.family]
        q = build((d["batch"], d["heads"], d["seq"], d["head_dim"]), generator)
        k = build((d["batch"], d["heads"], d["seq_k"], d["head_dim"]), generator)
        return self._call(case, q, k)

    def _call(self, case: Case, q: Coded, k: Coded) -> Call:
        if case.dtype != CODES:
            q, k = ((simfp8.decode(*coded).to(dtype(case.dtype)), torch.ones_like(coded[1])) for coded in (q, k))
        shape = (*q[0].shape[:3], k[0].shape[2])
        factor = 1.0 / math.sqrt(q[0].shape[-1]) if option(self, case, "scaled") else 1.0
        arguments = {
            "q": q[0],
            "k": k[0],
            "q_scale": q[1],
            "k_scale": k[1],
            "scores": torch.empty(shape, dtype=torch.float32),
            "factor": factor,
        }
        return Call(arguments, outputs=("scores",), axes=self.axes)

    def reference(self, call: Call, precision: Precision, device: str | torch.device = "cpu") -> Reference:
        """Scores in float64 on the decoded codes, with B = u_o|S| + 2u_p(1+u_p)A + 8u_a·A, A = factor·|Q||K|ᵀ.

        The declared `p` is what the operands are decoded to: both are rounded, hence the factor 2.
        """
        q, k = (simfp8.values(call.tensor(n).to(device), call.tensor(f"{n}_scale").to(device)) for n in "qk")
        unit = units(precision, call.output.dtype)
        unit = dataclasses.replace(unit, accumulate=unit.accumulate * max(1.0, q.shape[-1] / FEW_FEATURES))
        factor = call.scalar("factor")
        output = (q @ k.mT).mul_(factor)
        condition = (q.float().abs() @ k.float().abs().mT).mul_(abs(factor)).double()
        accumulation = ACCUMULATION * unit.accumulate * condition
        bound = forward_bound(output, 2 * condition, accumulation, unit)
        return Reference(output, bound, unit.coarse, *accumulation_floors(output, accumulation, unit))

    def sanity_calls(self, case: Case, generator: torch.Generator) -> list[SanityCall]:
        """Queries that select one feature of the keys, where rows, features and heads all differ; the same with two
        batches and lengths that no tile divides; and codes of zero, whatever the scale: K's is subnormal.
        """
        d = dims_of(self, case)
        batches = max(2, d["batch"])
        made = []
        for name, batch, seq, seq_k in (
            ("one_hot", d["batch"], 96, 96),
            ("zero", d["batch"], 96, 96),
            ("one_hot_tail", batches, 65, 97),
        ):
            dims = {**d, "batch": batch, "seq": seq, "seq_k": seq_k}
            at = Case(self.name, f"sanity_{name}", dims, dict(case.options), case.dtype, name)
            call = self._call(at, *_selecting(dims, name == "zero", generator))
            left, right = (simfp8.values(call.tensor(n), call.tensor(f"{n}_scale")) for n in "qk")
            exact = call.scalar("factor") * (left @ right.mT)
            # One product and no cancellation: a handful of float32 roundings, and zero where there is nothing.
            made.append(SanityCall(name, at, call, Reference(exact, exact.abs() * 2.0**-20, 0.0, exact=True)))
        return made

    def relations(self, case: Case, call: Call, generator: torch.Generator) -> list[Relation]:
        """Scales, the factor and signs, permutations of rows and heads, and keys of zeros."""
        made = [_scaled(call), _scaled_factor(call), _negated(call), _permuted_rows(call, generator)]
        made += [_permuted_heads(call, generator), _zero_keys(call, generator)]
        return [relation for relation in made if relation is not None]

    def cost(self, case: Case) -> Cost:
        """2·d operations for each score; inputs and scales read once, scores written once."""
        d = dims_of(self, case)
        lead = d["batch"] * d["heads"]
        read = lead * (d["seq"] + d["seq_k"]) * d["head_dim"] * dtype(case.dtype).itemsize + 8 * lead
        scores = lead * d["seq"] * d["seq_k"]
        return Cost(2.0 * scores * d["head_dim"], read, 4 * scores)

    def suspects(self, call: Call, rows: torch.Tensor) -> Iterator[Suspect]:
        """What well-known faults would have given for these rows, [n, 3] of batch, head, query row."""
        b, h, i = rows.cpu().unbind(1)
        q, k = call.tensor("q")[b, h, i][:, None], call.tensor("k")[b, h]
        q_scale, k_scale = call.tensor("q_scale")[b, h], call.tensor("k_scale")[b, h]
        factor, d = call.scalar("factor"), q.shape[-1]

        def scores(
            zero_q: float = 128,
            zero_k: float = 128,
            scale_q: torch.Tensor = q_scale,
            scale_k: torch.Tensor = k_scale,
            by: float = factor,
        ) -> torch.Tensor:
            left = simfp8.values(q, scale_q, zero_q)
            return by * (left @ simfp8.values(k, scale_k, zero_k).mT)[:, 0]

        for zero in (127.5, 127.0, 0.0) if q.dtype == torch.uint8 else ():
            cause = f"codes are decoded with zero point {zero:g}; the encoder's is {simfp8.ZERO_POINT}"
            yield Suspect(f"{cause} (Q and K)", functools.partial(scores, zero, zero))
            yield Suspect(f"{cause} (Q only)", functools.partial(scores, zero))
            yield Suspect(f"{cause} (K only)", functools.partial(scores, zero_k=zero))
        for steps in (128, 127.5) if q.dtype == torch.uint8 else ():
            cause = f"codes are decoded over {steps:g} steps instead of {simfp8.LEVELS}"
            yield Suspect(cause, functools.partial(scores, by=factor * (simfp8.LEVELS / steps) ** 2))
        yield Suspect("the scores are not scaled by 1/√d", lambda: scores(by=1.0))
        yield Suspect(
            "the scores are scaled by 1/√d where raw ones were asked for", lambda: scores(by=1 / math.sqrt(d))
        )
        if factor != 1:
            yield Suspect("the scores are scaled by 1/√d twice", lambda: scores(by=factor / math.sqrt(d)))
        q0, k0 = (call.tensor(name)[b, torch.zeros_like(h)] for name in ("q_scale", "k_scale"))
        yield Suspect("every head uses the scale of head 0 for Q", lambda: scores(scale_q=q0))
        yield Suspect("every head uses the scale of head 0 for K", lambda: scores(scale_k=k0))
        yield Suspect("the scale of Q is not applied", lambda: scores(scale_q=torch.ones_like(q_scale)))
        yield Suspect("the scale of K is not applied", lambda: scores(scale_k=torch.ones_like(k_scale)))
        yield Suspect("the scale of Q is taken for K too", lambda: scores(scale_k=q_scale))
        yield Suspect("the scale of K is taken for Q too", lambda: scores(scale_q=k_scale))
        yield Suspect("nothing is accumulated: the result is zero", lambda: scores(by=0.0))


# --- exact cases ------------------------------------------------------------------------------------------------------


def _selecting(dims: dict[str, int], zero: bool, generator: torch.Generator) -> tuple[Coded, Coded]:
    """Queries with one code that is not zero, at a feature of the row's and a scale of the head's, and random keys.

    With `zero` the queries are nothing but zeros, and the scale of the keys is the smallest number there is.
    """
    lead, features = (dims["batch"], dims["heads"]), dims["head_dim"]
    q = torch.full((*lead, dims["seq"], features), simfp8.ZERO_POINT, dtype=torch.uint8)
    row = torch.arange(dims["seq"])
    if not zero:
        q[..., row, row * 7 % features] = torch.where(row % 2 == 0, 255, 1).byte()
    k = torch.randint(0, 256, (*lead, dims["seq_k"], features), generator=generator, dtype=torch.uint8)
    heads = 2.0 ** torch.arange(lead[1]).remainder(4).repeat(lead[0], 1)
    return (q, heads), (k, torch.full(lead, 2.0**-149 if zero else 1.0))


# --- relations --------------------------------------------------------------------------------------------------------


def _zero(tensor: torch.Tensor) -> int:
    """What stands for zero in memory."""
    return simfp8.ZERO_POINT if tensor.dtype == torch.uint8 else 0


def _scaled(call: Call) -> Relation | None:
    """Another power of two in each head, for Q and for K. 16-bit numbers are scaled themselves: their scales are 1."""
    batches, heads = call.tensor("q_scale").shape
    place = torch.arange(batches * heads).reshape(batches, heads)
    powers = {"q": 2.0 ** (place % 4).double(), "k": 2.0 ** -(place % 3).double()}
    moved: dict[str, torch.Tensor | None] = {}
    for name, power in powers.items():
        numbers, scale = call.tensor(name), call.tensor(f"{name}_scale")
        if numbers.dtype == torch.uint8:
            moved[f"{name}_scale"] = exactly(scale.double() * power, scale)
        else:
            moved[name] = exactly(numbers.double() * power[..., None, None], numbers)
    arguments = {name: tensor for name, tensor in moved.items() if tensor is not None}
    if len(arguments) < len(moved):
        return None
    factor = (powers["q"] * powers["k"])[..., None, None]
    return Relation(
        "scaled by powers of two",
        "a power of two for Q and for K in each head is one for the head's scores",
        changed(call, **arguments),
        lambda output: output * factor.to(output.device),
        cause="a scale is not applied, or that of another head is",
    )


def _scaled_factor(call: Call) -> Relation | None:
    """Q → 4Q with factor → factor/4; of codes Q's scales are multiplied."""
    return traded(
        call,
        "q_scale" if call.tensor("q").dtype == torch.uint8 else "q",
        "factor",
        "scaled factor",
        "Q times {by} with {of} of the factor leaves the scores as they are",
        "the factor is not the one that was asked for: 1 or 1/√d is taken whatever is given",
    )


def _negated(call: Call) -> Relation | None:
    """Left out where a code of 0 occurs, which has no opposite."""
    q = call.tensor("q")
    opposite = exactly(2 * _zero(q) - q.double(), q)
    if opposite is None:
        return None
    return Relation(
        "negated queries",
        "−Q gives −S",
        changed(call, q=opposite),
        lambda output: -output,
        moves=True,
        cause="the zero point is another than the encoder's, or codes are taken for signed numbers",
    )


def _permuted_rows(call: Call, generator: torch.Generator) -> Relation | None:
    q, k = call.tensor("q"), call.tensor("k")
    row, key = shuffled(q.shape[2], generator), shuffled(k.shape[2], generator)
    if len(row) * len(key) == 1:
        return None
    moved = {"q": placed(q[:, :, row], q), "k": placed(k[:, :, key], k)}
    return Relation(
        "permuted rows",
        "reordering queries and keys reorders rows and columns of the scores in the same way",
        changed(call, **moved),
        lambda output: output[:, :, row.to(output.device)][..., key.to(output.device)],
        moves=True,
        cause="rows or keys are treated by their position: an index is wrong, or a tile is not computed",
    )


def _permuted_heads(call: Call, generator: torch.Generator) -> Relation | None:
    batches, heads = call.tensor("q_scale").shape
    if batches * heads == 1:
        return None
    batch, head = shuffled(batches, generator), shuffled(heads, generator)
    moved = {name: placed(tensor[batch][:, head], tensor) for name, tensor in call.inputs.items()}
    return Relation(
        "permuted heads",
        "reordering batches and heads reorders those of the scores in the same way",
        changed(call, **moved),
        lambda output: output[batch.to(output.device)][:, head.to(output.device)],
        moves=True,
        cause="a wrong head or batch is read, of the codes or of the scales",
    )


def _zero_keys(call: Call, generator: torch.Generator) -> Relation | None:
    """Some keys of every head become zero: their scores are 0 exactly, and no other changes."""
    k = call.tensor("k")
    gone = torch.rand(k.shape[2], generator=generator) < 0.5
    gone[torch.randint(len(gone), (), generator=generator)] = True
    kept = (~gone).double()
    return Relation(
        "keys of zeros",
        "keys of zeros have scores of exactly 0, and the scores of the others stay",
        changed(call, k=placed(torch.where(gone[:, None], float(_zero(k)), k.double()), k)),
        lambda output: output * kept.to(output.device),
        exact=True,
        cause="zero is not decoded to zero, or a score takes in another key",
    )


# --- input families ---------------------------------------------------------------------------------------------------


def _coded(x: torch.Tensor) -> Coded:
    scale = simfp8.scales(x)
    return simfp8.encode(x, scale), scale


def _heavy_tailed(shape: tuple[int, ...], generator: torch.Generator) -> Coded:
    """A few large values set the scale, and most codes lie around zero."""
    chi = torch.randn(3, *shape, generator=generator).square_().mean(0).sqrt_().clamp_min_(1e-3)
    return _coded(torch.randn(shape, generator=generator) / chi)


def _per_head_scale(shape: tuple[int, ...], generator: torch.Generator) -> Coded:
    heads = torch.arange(shape[1])[:, None, None] % 8 - 4
    return _coded(torch.randn(shape, generator=generator) * 2.0**heads)


def _all_codes(shape: tuple[int, ...], generator: torch.Generator) -> Coded:
    """Every code, 0 included, which the encoder never gives."""
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8), torch.ones(shape[:2])


def _extremes(shape: tuple[int, ...], generator: torch.Generator) -> Coded:
    """Only the largest magnitudes, -128, -127 and 127: products add up or cancel, and two of -128 exceed 16 bits.

    The first row of each head is -128 throughout: no sum is larger than that of two of them.
    """
    drawn = torch.randint(0, 3, shape, generator=generator)
    drawn[:, :, :1] = 0
    return torch.tensor([0, 1, 255], dtype=torch.uint8)[drawn], torch.full(shape[:2], 0.25)


def _zero_head(shape: tuple[int, ...], generator: torch.Generator) -> Coded:
    """Every other head is all zero: its scale is 1 and its codes are 128."""
    x = torch.randn(shape, generator=generator)
    x[:, ::2] = 0
    return _coded(x)


FAMILIES: dict[str, Callable[[tuple[int, ...], torch.Generator], Coded]] = {
    "normal": lambda shape, generator: _coded(torch.randn(shape, generator=generator)),
    "offset": lambda shape, generator: _coded(torch.randn(shape, generator=generator) + 2),
    "heavy_tailed": _heavy_tailed,
    "per_head_scale": _per_head_scale,
    "all_codes": _all_codes,
    "extremes": _extremes,
    "zero_head": _zero_head,
}

OPERATOR = Scores()
