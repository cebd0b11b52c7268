"""Attention on quantised inputs: O = softmax(scale·Q·Kᵀ + mask)·V of what the codes of Q, K and V stand for.

Shapes: q, o [batch, heads, seq, head_dim]; k, v [batch, kv_heads, seq_k, head_dim]; q_scale [batch, heads], k_scale and
v_scale [batch, kv_heads] (float32); o is float16. The data type of a case is the codec of its codes:

    uint8           simulated FP8 (kernelproof.simfp8): (u − 128)/127·448·s
    float8_e4m3fn   true FP8: the number itself, times s

The option `scales` is what one scale serves: the tensor, in which case all entries are equal, or a head. Everything
else is kernelproof.operators.attention on the decoded values, so quantisation error is no part of the verdict.
"""

from __future__ import annotations

import dataclasses
import functools
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
    attention,
    attention_relations,
    by_output,
    dims_of,
    dtype,
    option,
)
from kernelproof.records import Case, OptionValue

if TYPE_CHECKING:
    from kernelproof.config import Precision

Coded = tuple[torch.Tensor, torch.Tensor]  # codes, scales

ATTENTION = attention.OPERATOR
SIMULATED, E4M3 = "uint8", "float8_e4m3fn"
# Every code that is a number, the ones that no encoder gives included.
ALL_CODES = "all_codes"


class QuantisedAttention:
    """The operator of attention on quantised inputs (see kernelproof.operators.Operator)."""

    name = "quantised_attention"
    dims = ATTENTION.dims
    options: dict[str, tuple[OptionValue, ...]] = {**ATTENTION.options, "scales": ("tensor", "head")}
    dtypes = (SIMULATED, E4M3)
    strided = True
    axes = ATTENTION.axes

    @property
    def families(self) -> tuple[str, ...]:
        """Those of attention, quantised, and codes at random."""
        # Sums of float8's tensor cores have 14 bits or so: no weight is known where every score is −16000. And 8 bits
        # have no room for light weights, nor for values beside others that are e⁸ times as large.
        without = (attention.FAR_BELOW_ZERO, attention.LIGHT_KEYS)
        return (*(name for name in ATTENTION.families if name not in without), ALL_CODES)

    def make_call(self, case: Case, generator: torch.Generator) -> Call:
        """Codes and scales of a case; scale = 1/√head_dim."""
        if case.family == ALL_CODES:
            d = dims_of(self, case)
            query = (d["batch"], d["heads"], d["seq"], d["head_dim"])
            key = (d["batch"], d["kv_heads"], d["seq_k"], d["head_dim"])
            return self._call(case, *(_all_codes(shape, case.dtype, generator) for shape in (query, key, key)))
        plain = ATTENTION.make_call(_plain(case), generator)
        granularity = str(option(self, case, "scales"))
        return self._call(case, *(encoded(plain.tensor(name), case.dtype, granularity) for name in "qkv"))

    def _call(self, case: Case, q: Coded, k: Coded, v: Coded) -> Call:
        layout = str(option(self, case, "layout"))
        codes = [attention.laid_out(tensor, layout) for tensor, _ in (q, k, v)]
        arguments = {
            "q": codes[0],
            "k": codes[1],
            "v": codes[2],
            "q_scale": q[1],
            "k_scale": k[1],
            "v_scale": v[1],
            "o": torch.empty_like(codes[0], dtype=torch.float16),
            "scale": codes[0].shape[-1] ** -0.5,
            "causal": bool(option(self, case, "causal")),
        }
        return Call(arguments, outputs=("o",), axes=self.axes)

    def reference(self, call: Call, precision: Precision, device: str | torch.device = "cpu") -> Reference:
        """Attention's reference, bound included, on the decoded values in float64."""
        return ATTENTION.reference(_decoded(call), precision, device)

    def sanity_calls(self, case: Case, generator: torch.Generator) -> list[SanityCall]:
        """Attention's exact cases in codes: with one hot, O is a row of what V's codes stand for.

        Where the scores matter, Q and K hold one magnitude and 0, which any scale keeps. The scale of V makes whole
        numbers of its codes, and with scales per head it is larger by a factor of two from one head to the next.
        """
        made = []
        for plain in ATTENTION.sanity_calls(_plain(case, "float32"), generator):
            q, k = (encoded(plain.call.tensor(name), case.dtype, "head") for name in "qk")
            (stated,) = by_output(plain.call, plain.reference, "sanity_calls").values()
            values, expected = plain.call.tensor("v"), stated.output
            heads = torch.arange(values.shape[1]) % 4 * float(option(self, case, "scales") == "head")
            unit = simfp8.LEVELS / simfp8.LARGEST if case.dtype == SIMULATED else 1.0
            worth = (unit * 2.0**heads).float().expand(values.shape[:2]).contiguous()
            ones = torch.full_like(worth, unit)
            v = encode(values, ones, case.dtype), worth
            if plain.name != "mean":  # whose values every codec has
                expected = simfp8.values(encode(expected, ones[:, :1], case.dtype), ones[:, :1]).round()
            factor = (2.0**heads).repeat_interleave(expected.shape[1] // len(heads))[:, None, None]
            at = dataclasses.replace(plain.case, operator=self.name, options=dict(case.options), dtype=case.dtype)
            reference = Reference(expected * factor, stated.bound * factor.max(), 0.0, exact=True)
            made.append(SanityCall(plain.name, at, self._call(at, q, k, v), reference))
        return made

    def relations(self, case: Case, call: Call, generator: torch.Generator) -> list[Relation]:
        """Attention's relations, on codes, and one of the scales; see kernelproof.operators.attention_relations."""
        return [*attention_relations.relations(call, generator), attention_relations.scaled(call)]

    def cost(self, case: Case) -> Cost:
        """Attention's, with codes of one byte, four bytes for each scale and two for each element of the output."""
        d = dims_of(self, case)
        plain = ATTENTION.cost(dataclasses.replace(case, operator=ATTENTION.name, dtype=SIMULATED))
        scales = 4 * d["batch"] * (d["heads"] + 2 * d["kv_heads"])
        return Cost(plain.flops, plain.bytes_read + scales, 2 * plain.bytes_written, plain.exponentials)

    def suspects(self, call: Call, rows: torch.Tensor) -> Iterator[Suspect]:
        """What known faults would have given for these rows, [n, 3]: of the codec first, then those of attention."""
        yield from _codec_suspects(call, rows)
        yield from ATTENTION.suspects(_decoded(call), rows)


def encode(x: torch.Tensor, scale: torch.Tensor, codec: str) -> torch.Tensor:
    """Codes of x [batch, heads, rows, features] at the scales [batch, heads]; e4m3 is rounded to nearest, ties even."""
    if codec == SIMULATED:
        return simfp8.encode(x, scale)
    steps = x.double() / scale.double()[..., None, None]
    return steps.clamp(-simfp8.LARGEST, simfp8.LARGEST).float().to(dtype(codec))


def encoded(x: torch.Tensor, codec: str, granularity: str) -> Coded:
    """Codes and scales of x. Both codecs scale the largest magnitude to 448, the end of their range."""
    scale = simfp8.scales(x, granularity)
    return encode(x, scale, codec), scale


def _plain(case: Case, kind: str = "float16") -> Case:
    """The case of attention that a case here is the quantised form of."""
    options = {name: value for name, value in case.options.items() if name in ATTENTION.options}
    return dataclasses.replace(case, operator=ATTENTION.name, options=options, dtype=kind)


def _decoded(call: Call, **changes: torch.Tensor) -> Call:
    """The call of attention on the decoded values; `changes` replace some of them."""
    kept = [name for name in "qkv" if name not in changes]
    values = {name: simfp8.values(call.tensor(name), call.tensor(f"{name}_scale")) for name in kept}
    arguments = {name: changes.get(name, values.get(name)) for name in "qkv"}
    rest = {name: call.arguments[name] for name in ("o", "scale", "causal")}
    return Call({**arguments, **rest}, call.outputs, call.axes)


def _all_codes(shape: tuple[int, ...], codec: str, generator: torch.Generator) -> Coded:
    codes = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    if codec == SIMULATED:
        return codes, torch.full(shape[:2], 2.0**-8)
    numbers = torch.where(codes & 127 == 127, codes - 1, codes).view(dtype(codec))  # 127 and 255 are NaN
    return numbers, torch.full(shape[:2], 2.0**-6)


# --- diagnosis --------------------------------------------------------------------------------------------------------


def _codec_suspects(call: Call, rows: torch.Tensor) -> Iterator[Suspect]:
    codes = {name: call.tensor(name) for name in "qkv"}
    scales = {name: call.tensor(f"{name}_scale") for name in "qkv"}

    def output(**changes: Callable[[], torch.Tensor]) -> torch.Tensor:
        return attention.rows_of(_decoded(call, **{name: change() for name, change in changes.items()}), rows)

    def suspect(cause: str, names: str, values: Callable[[str], torch.Tensor]) -> Suspect:
        return Suspect(cause, functools.partial(output, **{name: functools.partial(values, name) for name in names}))

    if codes["q"].dtype == torch.uint8:
        yield from _zero_point_suspects(codes, scales, suspect)
    for name in "qkv":
        yield suspect(
            f"the scale of {name.upper()} is not applied",
            name,
            lambda n: simfp8.values(codes[n], torch.ones_like(scales[n])),
        )
        if scales[name].shape[1] > 1:
            yield suspect(
                f"every head uses the scale of head 0 for {name.upper()}",
                name,
                lambda n: simfp8.values(codes[n], scales[n][:, :1].expand_as(scales[n])),
            )
        yield suspect(
            f"the scale of {name.upper()} is applied twice",
            name,
            lambda n: simfp8.values(codes[n], scales[n] * scales[n]),
        )
    others = {"k": "v", "v": "k"}
    for names, cause in (("kv", "are exchanged"), ("v", "are K's for both"), ("k", "are V's for both")):
        yield suspect(f"the scales of K and V {cause}", names, lambda n: simfp8.values(codes[n], scales[others[n]]))


def _zero_point_suspects(
    codes: dict[str, torch.Tensor],
    scales: dict[str, torch.Tensor],
    suspect: Callable[[str, str, Callable[[str], torch.Tensor]], Suspect],
) -> Iterator[Suspect]:
    """K's is not told apart: it adds the same to all scores of a row, and the softmax is what it was."""
    for zero in (127.5, 127.0, 0.0):
        cause = f"codes are decoded with zero point {zero:g}; the encoder's is {simfp8.ZERO_POINT}"
        for names, where in (("qkv", "Q, K and V"), ("q", "Q, and K perhaps"), ("v", "V only")):
            yield suspect(f"{cause} ({where})", names, lambda n, zero=zero: simfp8.values(codes[n], scales[n], zero))  # type: ignore[misc]
    for levels in (128.0, 127.5):
        part = simfp8.LEVELS / levels
        cause = f"codes are decoded over {levels:g} steps instead of {simfp8.LEVELS}"
        yield suspect(cause, "qkv", lambda n, part=part: simfp8.values(codes[n], scales[n]) * part)  # type: ignore[misc]


OPERATOR = QuantisedAttention()
