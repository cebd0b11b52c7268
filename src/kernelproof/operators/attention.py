"""Attention forward: O = softmax(scale·Q·Kᵀ + mask)·V, with grouped heads and a causal mask.

Shapes: Q, O [batch, heads, seq, head_dim]; K, V [batch, kv_heads, seq_k, head_dim]. Query head h reads key head
h // (heads / kv_heads). The causal mask is aligned at the bottom right: query i sees key j iff j ≤ i + seq_k − seq. A
query that sees no key gives 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from kernelproof.operators import (
    ROUNDING_RMS,
    Call,
    Cost,
    Reference,
    Relation,
    SanityCall,
    Suspect,
    accumulation_floors,
    attention_relations,
    dims_of,
    dtype,
    dtype_name,
    forward_bound,
    option,
    units,
)
from kernelproof.records import Case, OptionValue

if TYPE_CHECKING:
    from kernelproof.config import Precision

# Elements of the score matrix held at once: 2¹⁹ doubles are 4 MiB on a CPU, about a core's cache; a GPU takes 512 MiB.
CHUNK_ELEMENTS = {"cpu": 2**19, "cuda": 2**26}
FAR_BELOW_ZERO, LIGHT_KEYS = "far_below", "light_keys"  # names of families
FAR_BELOW = 16000  # beyond −10⁴, and about as far from 0 as the scores of near_overflow: as well known in float32

Inputs = dict[str, torch.Tensor]
Family = Callable[["Draw"], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


class Attention:
    """The attention operator (see kernelproof.operators.Operator)."""

    name = "attention"
    dims: dict[str, int | str | None] = {
        "batch": 1,
        "heads": None,
        "kv_heads": "heads",
        "seq": None,
        "seq_k": "seq",
        "head_dim": None,
    }
    options: dict[str, tuple[OptionValue, ...]] = {"causal": (False, True), "layout": ("bhsd", "bshd")}
    dtypes = ("float32", "float16", "bfloat16")
    strided = True
    axes = ("batch", "head", "query row", "feature")

    @property
    def families(self) -> tuple[str, ...]:
        """The input families, the default first."""
        return tuple(FAMILIES)

    def make_call(self, case: Case, generator: torch.Generator) -> Call:
        """Inputs of a case: Q, K, V in its data type and layout, scale = 1/√head_dim."""
        draw = Draw(case, generator)
        return self._call(case, *FAMILIES[case.family](draw))

    def _call(self, case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Call:
        kind = dtype(case.dtype)
        q, k, v = (laid_out(t.to(kind), str(option(self, case, "layout"))) for t in (q, k, v))
        arguments = {
            "q": q,
            "k": k,
            "v": v,
            "o": torch.empty_like(q),
            "scale": 1.0 / math.sqrt(q.shape[-1]),
            "causal": bool(option(self, case, "causal")),
        }
        return Call(arguments, outputs=("o",), axes=self.axes)

    def reference(self, call: Call, precision: Precision, device: str | torch.device = "cpu") -> Reference:
        """O in float64 and its bound, on the very values of the call; memory is bounded by CHUNK_ELEMENTS.

        B = u_o|O| + u_p(1+u_p)A + u_a(8A + √d·D) + smallest number, with A = P·|V|, T = |scale|·|Q||K|ᵀ and
        D = (P∘T)·|V| + rowsum(P∘T)·|O| (docs/explanation/correctness.md, a).

        To it comes what calibration showed to be missing: a weight below the smallest normal number of P's type is
        rounded absolutely, which counts where the values of the heavy keys are 0: half a subnormal (relative to the
        row's largest weight) for each key, times |V|. Bounds are computed in float32. Criterion (b) is stated for P of
        the output's type; where P is coarser (float8 weights, a float16 output), what rounding each weight by itself
        gives, √Σ(P∘V)², is its floor.
        """
        q, k, v = (call.tensor(name).to(device) for name in "qkv")
        unit = units(precision, q.dtype)
        output = torch.empty(q.shape, dtype=torch.float64, device=device)
        condition = torch.empty(q.shape, dtype=torch.float32, device=device)
        sensitivity, underflow = torch.empty_like(condition), torch.empty_like(condition)
        noise, coarse_weights = torch.empty_like(condition), unit.intermediate > unit.output
        for place, rows, keys, values, mask in _chunks(q, k, v, bool(call.scalar("causal"))):
            found = _attend(rows, keys, values, call.scalar("scale"), mask, coarse_weights)
            output[place], condition[place], sensitivity[place], underflow[place], noise[place] = found
        accumulation = unit.accumulate * (8 * condition.double() + math.sqrt(q.shape[-1]) * sensitivity.double())
        bound = forward_bound(output, condition.double(), accumulation, unit)
        bound += unit.intermediate_smallest / 2 * underflow
        rms_floor, bias_floor = accumulation_floors(output, accumulation, unit, rounded=())
        rms_floor = math.hypot(rms_floor, ROUNDING_RMS * unit.intermediate * math.sqrt(float(noise.double().mean())))
        return Reference(output, bound, unit.coarse, rms_floor, bias_floor)

    def sanity_calls(self, case: Case, generator: torch.Generator) -> list[SanityCall]:
        """Exact cases (docs/explanation/correctness.md, d): one selected key, the mean of 2ᵏ keys, a single key, zeros.

        The selected key's score is 0 and all others are below −200, so that every exponential is 1 or underflows to 0
        in whatever order and base it is taken, and O is a row of V bit for bit. With Q = 0 and small integers in V
        every sum is exact even in half precision, and O is the mean, rounded once. A single key weighs 1 whatever its
        score, and zeros add up to zero whatever they weigh. All but the first two have a length that no tile divides,
        and two batches at least: a wrong index shows.
        """
        d = dims_of(self, case)
        length = min(128, 2 ** (2 ** int(math.log2(max(2, d["head_dim"] // 2)))))
        odd, batches = length * 3 // 4 | 1, max(2, d["batch"])
        made = []
        for name, build, batch, keys in (
            ("one_hot", _one_hot_exact, d["batch"], length),
            ("mean", _mean_exact, d["batch"], length),
            ("one_hot_tail", _one_hot_exact, batches, odd),
            ("single_key", _single_key_exact, batches, 1),
            ("zero_values", _zero_values_exact, batches, odd),
        ):
            dims = {**d, "batch": batch, "seq": keys, "seq_k": keys}
            at = Case(self.name, f"sanity_{name}", dims, dict(case.options), case.dtype, name, case.seed)
            draw = Draw(at, generator)
            q, k, v, expected = build(draw)
            call = self._call(at, q, k, v)
            expected = expected.to(call.output.dtype).double()
            # Less than a unit in the last place of any half-precision value but 0, so those are judged bit for bit.
            slack = 2.0**-21 * float(v.abs().max())
            # NaN marks rows that are not exact; nothing is demanded of them here.
            bound = torch.where(expected.isnan(), math.inf, slack)
            reference = Reference(expected.nan_to_num(), bound, 0.0, exact=True)
            made.append(SanityCall(name, at, call, reference))
        return made

    def relations(self, case: Case, call: Call, generator: torch.Generator) -> list[Relation]:
        """Relations between calls (docs/explanation/correctness.md, e); see `attention_relations`."""
        return attention_relations.relations(call, generator)

    def cost(self, case: Case) -> Cost:
        """4·d operations and one exponential for each visible pair of query and key; each tensor moved once."""
        d = dims_of(self, case)
        pairs = _visible_pairs(d["seq"], d["seq_k"], bool(option(self, case, "causal"))) * d["batch"] * d["heads"]
        item = dtype(case.dtype).itemsize
        query = d["batch"] * d["heads"] * d["seq"] * d["head_dim"] * item
        key = d["batch"] * d["kv_heads"] * d["seq_k"] * d["head_dim"] * item
        return Cost(4.0 * pairs * d["head_dim"], query + 2 * key, query, pairs)

    def suspects(self, call: Call, rows: torch.Tensor) -> Iterator[Suspect]:
        """What well-known faults would have given for these rows, [n, 3] of batch, head, query row."""
        yield from _suspects(call, rows)


# --- reference --------------------------------------------------------------------------------------------------------


Place = tuple[slice, slice, slice]


def _chunks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> Iterator[tuple[Place, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """Cut the work so that one score matrix has at most CHUNK_ELEMENTS elements (but at least one row a key head).

    Yields where the chunk lies in the output; its queries [n, group, rows, d] and its keys and values [n, 1, keys, d]
    as given, n counting batch and key heads; and the mask [rows, keys], true where a key is hidden, None without.
    """
    batch, heads, seq, _ = q.shape
    kv_heads, seq_k = k.shape[1], k.shape[2]
    group = heads // kv_heads
    budget = CHUNK_ELEMENTS["cpu" if q.device.type == "cpu" else "cuda"]
    heads_at_once = max(1, min(kv_heads, budget // max(1, group * seq * seq_k)))
    rows_at_once = max(1, min(seq, budget // max(1, group * seq_k)))
    if causal and seq > 128:
        rows_at_once = min(rows_at_once, max(128, seq // 4))  # later keys are skipped
    for b in range(batch):
        for h in range(0, kv_heads, heads_at_once):
            kv = slice(h, min(h + heads_at_once, kv_heads))
            for r in range(0, seq, rows_at_once):
                end = min(r + rows_at_once, seq)
                keys = min(seq_k, max(1, end + seq_k - seq)) if causal else seq_k
                place = (slice(b, b + 1), slice(kv.start * group, kv.stop * group), slice(r, end))
                mask = None
                if causal:
                    query = torch.arange(r, end, device=q.device)[:, None]
                    mask = torch.arange(keys, device=q.device) > query + (seq_k - seq)
                queries = q[place].reshape(kv.stop - kv.start, group, end - r, -1)
                yield place, queries, k[b, kv, None, :keys], v[b, kv, None, :keys], mask


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, mask: torch.Tensor | None, coarse_weights: bool
) -> tuple[torch.Tensor, ...]:
    """O (float64) of a chunk; in float32 A, D, max(P)·Σ|V| over the visible keys and Σ(P∘V)²; [1, heads, rows, d] each.

    The last is 0 unless the weights are `coarse_weights`.
    """
    p = weights((q.double() @ k.double().mT).mul_(scale), mask)
    output = p @ v.double()
    p32, v_abs = p.float(), v.float().abs()
    pt = (q.float().abs() @ k.float().abs().mT).mul_(abs(scale)).mul_(p32)
    condition = p32 @ v_abs
    sensitivity = pt @ v_abs + pt.sum(-1, keepdim=True) * output.float().abs()
    if mask is None:
        total = v_abs.sum(-2, keepdim=True)
    else:
        seen = (~mask).sum(-1)  # the visible keys are the first ones
        total = v_abs.cumsum(-2)[:, :, (seen - 1).clamp_min(0)]
    underflow = p32.amax(-1, keepdim=True) * total
    noise = p32.square() @ v_abs.square() if coarse_weights else torch.zeros_like(condition)
    return tuple(t.reshape(1, -1, *t.shape[-2:]) for t in (output, condition, sensitivity, underflow, noise))


def weights(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Softmax over the last dimension; hidden keys weigh 0, and so does everything in a row that sees nothing."""
    if mask is None:
        return torch.softmax(scores, -1)
    p = torch.softmax(scores.masked_fill_(mask, -math.inf), -1)
    return p.masked_fill_(mask.all(-1, keepdim=True), 0.0) if bool(mask.all(-1).any()) else p


def _visible_pairs(seq: int, seq_k: int, causal: bool) -> int:
    if not causal:
        return seq * seq_k
    return sum(min(seq_k, max(0, i + 1 + seq_k - seq)) for i in range(seq))


def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values [B, H, S, D], in memory as B·H·S·D or as B·S·H·D; strides are that also where a size is 1."""
    if layout == "bhsd":
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)


# --- input families ---------------------------------------------------------------------------------------------------


class Draw:
    """Random numbers of a case's shapes, in float32 on the CPU."""

    def __init__(self, case: Case, generator: torch.Generator) -> None:
        d = dims_of(OPERATOR, case)
        self.generator = generator
        self.dtype = dtype(case.dtype)
        self.causal = bool(option(OPERATOR, case, "causal"))
        self.query = (d["batch"], d["heads"], d["seq"], d["head_dim"])
        self.key = (d["batch"], d["kv_heads"], d["seq_k"], d["head_dim"])
        self.seq, self.seq_k, self.head_dim = d["seq"], d["seq_k"], d["head_dim"]

    def normal(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Standard normal."""
        return torch.randn(shape, generator=self.generator)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Integers from low to high, both included."""
        return torch.randint(low, high + 1, shape, generator=self.generator).float()

    def heavy(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Student's t with 3 degrees of freedom, cut at ±50."""
        chi = self.normal((3, *shape)).square_().mean(0).sqrt_()
        return (self.normal(shape) / chi.clamp_min_(1e-3)).clamp_(-50, 50)

    def direction(self) -> torch.Tensor:
        """A vector of ±1 along the head dimension: its product with itself, scaled, is √d."""
        return self.integers(0, 1, (self.head_dim,)) * 2 - 1

    def three(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Standard normal Q, K and V."""
        return self.normal(self.query), self.normal(self.key), self.normal(self.key)


def _normal(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return draw.three()


def _peaky(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = draw.three()
    return q * 4, k, v


def _staircase(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The score rises by 1 with every 16 keys: the running maximum moves in every block."""
    q, k, v = draw.three()
    w = draw.direction()
    step = torch.arange(draw.seq_k).div(16, rounding_mode="floor")[:, None]
    # (w·4)·(w·step/(4√d))·d/√d = step
    return q * 0.5 + w * 4, k * 0.25 + step * w / (4 * math.sqrt(draw.head_dim)), v


def _sink(draw: Draw, key: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One key that every query prefers, with a value of its own: it takes about nine tenths of the weight."""
    q, k, v = draw.three()
    w = draw.direction()
    # The other scores have variance 5, so that their exponentials add up to seq_k·e^2.5.
    height = math.log(9 * draw.seq_k) + 2.5
    k[:, :, key] = w * height / (2 * math.sqrt(draw.head_dim))
    v[:, :, key] += 4
    return q + w * 2, k, v


def _offset(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores around 16·√d: softmax must not care."""
    q, k, v = draw.three()
    return q * 0.5 + 4, k * 0.5 + 4, v


def _heavy_tailed(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return draw.heavy(draw.query), draw.heavy(draw.key), draw.heavy(draw.key)


def _integers(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Exact scores with many ties.

    Not fewer than seven values: P would take so few that its rounding errors no longer average out, which is a bias of
    correct code (with ±1 up to 3 times the limit of criterion c, with ±2 up to 1.2 times).
    """
    return draw.integers(-3, 3, draw.query), draw.integers(-3, 3, draw.key), draw.integers(-8, 8, draw.key)


def _denormal(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """V around 2⁻¹⁶ and half of Q's features around 2⁻¹⁵, subnormal in float16; K makes up for Q, so that both matter.

    Wider exponents get 2⁻¹⁰⁰ instead: GPU code that flushes float32 subnormals to zero is not wrong for it. The scores
    stay of order 1: if they were all tiny, P would be rounded to 1 throughout while its sum is not: correct code,
    biased.
    """
    q, k, v = draw.three()
    half = draw.dtype == torch.float16
    q[..., ::2] *= 2.0**-15 if half else 2.0**-100
    k[..., ::2] *= 2.0**12 if half else 2.0**97
    return q, k, v * (2.0**-16 if half else 2.0**-100)


def _per_head_scale(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every head has a magnitude of its own: reading another head's data is a factor of two."""
    q, k, v = draw.three()
    heads = torch.arange(draw.key[1])[:, None, None]
    return q, k, v * 2.0 ** (heads % 8 - 4)


def _v_mean(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """V around 3, and of one sign in each head: negative in the first, then in turn."""
    q, k, v = draw.three()
    signs = torch.arange(draw.key[1])[:, None, None] % 2 * 2 - 1
    return q, k, signs * (v + 3).abs()


def _near_overflow(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """V within a factor of two of float16's largest number, and unscaled scores beyond it in every other head.

    Wider exponents get 2¹⁰⁰: a sum that is divided at its end may not overflow for a correct kernel.
    """
    q, k, v = draw.three()
    half = draw.dtype == torch.float16
    v = torch.where(v < 0, -1.0, 1.0) * (0.5 + v.abs().clamp_max(4) / 9) * (65504 if half else 2.0**100)
    q[:, ::2] *= 48
    k[:, ::2] *= 48
    return q, k, v


def _far_below(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every score is about −16000, where a maximum that starts at −10⁴ stays, and weights differ as ever.

    All are whole numbers, so that sums of products are exact in whatever order: half of the features carry the offset.
    """
    carrying = (draw.head_dim + 1) // 2
    square = FAR_BELOW * math.sqrt(draw.head_dim) / carrying
    ours = 2.0 ** round(math.log2(square) / 2)
    q, k = draw.integers(-2, 2, draw.query), draw.integers(-2, 2, draw.key)
    q[..., :carrying], k[..., :carrying] = ours, -round(square / ours)
    return q, k, draw.normal(draw.key)


def _light_keys(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The first and the last third of the keys weigh e⁻¹⁶ of the others, and their values are e¹⁶ times as large.

    They are most of the answer, and whole tiles that one may think negligible. In float16 they weigh about twice as
    much as its smallest normal number, also where a row's weights are rounded when they add up to 1.
    """
    q, k, v = draw.three()
    w = draw.direction()
    light = torch.ones(draw.seq_k, 1)
    light[draw.seq_k // 3 : draw.seq_k - draw.seq_k // 3] = 0
    depth = math.log(max(2, 2**13 / draw.seq_k)) if draw.dtype == torch.float16 else 16
    q -= (q @ w)[..., None] * w / draw.head_dim  # so that these weigh as little in every row
    # (w/4)·(−4·depth/√d·w)/√d = −depth
    return q + w / 4, k - 4 * depth / math.sqrt(draw.head_dim) * light * w, v * torch.exp(depth * light)


def _one_hot(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v, _ = _one_hot_exact(draw)
    return q, k, v


FAMILIES: dict[str, Family] = {
    "normal": _normal,
    "peaky": _peaky,
    "staircase": _staircase,
    "sink_first": lambda draw: _sink(draw, 0),
    "sink_last": lambda draw: _sink(draw, -1),
    "offset": _offset,
    "heavy_tailed": _heavy_tailed,
    "integers": _integers,
    "one_hot": _one_hot,
    "denormal": _denormal,
    "per_head_scale": _per_head_scale,
    "v_mean": _v_mean,
    "near_overflow": _near_overflow,
    FAR_BELOW_ZERO: _far_below,
    LIGHT_KEYS: _light_keys,
}


# --- exact cases ------------------------------------------------------------------------------------------------------


def _codewords(count: int, length: int) -> torch.Tensor:
    """`count` vectors of ±1 and `length`, any two of which differ in their product by a quarter of it or more.

    Blocks of a Hadamard matrix and its negative, one index digit a block: [count, length], zero-padded at the end.
    """
    whole = 2 ** int(math.log2(length))
    parts = 1
    while (2 * whole // parts) ** parts < count and parts < whole:
        parts *= 2
    block = whole // parts
    rows = torch.ones(1, 1)
    while rows.shape[0] < block:
        rows = torch.cat([torch.cat([rows, rows], 1), torch.cat([rows, -rows], 1)], 0)
    alphabet = torch.cat([rows, -rows])
    index = torch.arange(count)
    digits = [alphabet[index // (2 * block) ** part % (2 * block)] for part in range(parts)]
    words = torch.cat(digits, 1)
    return torch.nn.functional.pad(words, (0, length - words.shape[1]))


def _one_hot_exact(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each query selects one key that it can see, at score 0, the rest below −200; O is that key's row of V.

    Half of the features carry the codeword, the other half subtract its length: scale·c²·(⟨w_i, w_j⟩ − n).
    """
    half = max(1, draw.head_dim // 2)
    words = _codewords(draw.seq_k, half)
    energy = float((words[0] ** 2).sum())
    others = float((words[1:] @ words[0]).max()) if draw.seq_k > 1 else 0.0
    # Magnitude c of both sides, a power of two, so that the second-best key is 200 behind.
    gap = max(1.0, energy - others) / math.sqrt(draw.head_dim)
    c = 2.0 ** math.ceil(math.log2(200 / gap) / 2)
    against = torch.zeros(half)
    against[: int(energy)] = 1
    row = torch.arange(draw.seq)
    seen = (row + 1 + draw.seq_k - draw.seq).clamp(0, draw.seq_k) if draw.causal else torch.full_like(row, draw.seq_k)
    chosen = (torch.rand(*draw.query[:3], generator=draw.generator) * seen).long().clamp_max(draw.seq_k - 1)
    q = torch.zeros(draw.query)
    k = torch.zeros(draw.key)
    q[..., :half] = c * words[chosen]
    q[..., half : 2 * half] = c * against
    k[..., :half] = c * words
    k[..., half : 2 * half] = -c * against
    v = draw.integers(1, 120, draw.key) * torch.where(draw.normal(draw.key) < 0, -1.0, 1.0)  # exact even in bfloat16
    group = draw.query[1] // draw.key[1]
    grouped = v.repeat_interleave(group, 1)
    expected = grouped.gather(2, chosen[..., None].expand(draw.query))
    expected[:, :, seen == 0] = 0
    return q, k, v, expected


def _mean_exact(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Q = 0: all visible keys weigh the same. Rows whose number of visible keys is no power of two expect NaN."""
    q = torch.zeros(draw.query)
    k = draw.normal(draw.key)
    v = draw.integers(-4, 4, draw.key)  # sums stay below 256: exact in bfloat16
    group = draw.query[1] // draw.key[1]
    row = torch.arange(draw.seq)
    seen = (row + 1 + draw.seq_k - draw.seq).clamp(0, draw.seq_k) if draw.causal else torch.full_like(row, draw.seq_k)
    sums = torch.nn.functional.pad(v.cumsum(2), (0, 0, 1, 0)).repeat_interleave(group, 1)
    expected = sums[:, :, seen] / seen.clamp_min(1)[:, None]
    power = (seen > 0) & (seen & (seen - 1) == 0)
    expected[:, :, ~power] = math.nan
    expected[:, :, seen == 0] = 0
    return q, k, v, expected


def _single_key_exact(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The only key has all the weight, whatever its score: O is its value. For seq = seq_k = 1."""
    q, k, sign = draw.three()
    v = draw.integers(1, 120, draw.key) * torch.where(sign < 0, -1.0, 1.0)
    return q, k, v, v.repeat_interleave(draw.query[1] // draw.key[1], 1)


def _zero_values_exact(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = draw.three()
    return q, k, torch.zeros_like(v), torch.zeros_like(q)


# --- diagnosis --------------------------------------------------------------------------------------------------------


class _Rows:
    """Chosen rows of a call in float64: scores [n, keys], values [n, keys, d], hidden keys [n, keys]."""

    def __init__(self, call: Call, rows: torch.Tensor) -> None:
        self.q, self.k, self.v = (call.tensor(name).cpu() for name in "qkv")
        self.scale, self.causal = call.scalar("scale"), bool(call.scalar("causal"))
        self.b, self.h, self.i = rows.unbind(1)
        self.seq, self.seq_k = self.q.shape[2], self.k.shape[2]
        self.group = self.q.shape[1] // self.k.shape[1]
        self.key = torch.arange(self.seq_k)

    def hidden(self, causal: bool, shift: int = 0) -> torch.Tensor:
        """The mask, or the one whose diagonal lies `shift` keys further."""
        if not causal:
            return torch.zeros(len(self.i), self.seq_k, dtype=torch.bool)
        return self.key > (self.i + self.seq_k - self.seq + shift)[:, None]

    def scores(self, kv_head: torch.Tensor | None = None) -> torch.Tensor:
        """Unscaled scores."""
        head = self.h // self.group if kv_head is None else kv_head
        return torch.einsum("nd,nkd->nk", self.q[self.b, self.h, self.i].double(), self.k[self.b, head].double())

    def values(self, kv_head: torch.Tensor | None = None) -> torch.Tensor:
        head = self.h // self.group if kv_head is None else kv_head
        return self.v[self.b, head].double()

    def output(
        self,
        scale: float | None = None,
        hidden: torch.Tensor | None = None,
        kv_head: torch.Tensor | None = None,
    ) -> torch.Tensor:
        scores = self.scores(kv_head) * (self.scale if scale is None else scale)
        p = weights(scores, self.hidden(self.causal) if hidden is None else hidden)
        return torch.einsum("nk,nkd->nd", p, self.values(kv_head))

    def stale_maximum(self, tile: int, rescale_sum: bool) -> torch.Tensor:
        """The online softmax that forgets to rescale its accumulator when the maximum rises."""
        scores = (self.scores() * self.scale).masked_fill_(self.hidden(self.causal), -math.inf)
        running = scores.cummax(1).values
        last = (self.key // tile * tile + tile - 1).clamp_max(self.seq_k - 1)
        weight = torch.exp(scores - running[:, last])
        normal = torch.exp(scores - running[:, -1:]) if rescale_sum else weight
        return torch.einsum("nk,nkd->nd", weight, self.values()) / normal.sum(1, keepdim=True)

    def padded_keys(self, tile: int) -> torch.Tensor:
        """The last tile filled up with keys of score 0 that nobody masked."""
        scores = (self.scores() * self.scale).masked_fill_(self.hidden(self.causal), -math.inf)
        extra = torch.zeros(len(scores), -self.seq_k % tile, dtype=scores.dtype)
        p = torch.softmax(torch.cat([scores, extra], 1), 1)[:, : self.seq_k]
        return torch.einsum("nk,nkd->nd", p, self.values())

    def unnormalised(self) -> torch.Tensor:
        scores = (self.scores() * self.scale).masked_fill_(self.hidden(self.causal), -math.inf)
        p = torch.exp(scores - scores.amax(1, keepdim=True))
        return torch.einsum("nk,nkd->nd", p, self.values())

    def base_two(self) -> torch.Tensor:
        return self.output(scale=self.scale * math.log(2))


def rows_of(call: Call, rows: torch.Tensor) -> torch.Tensor:
    """O in float64 for some rows of a call, [n, 3] of batch, head, query row: [n, head_dim]."""
    return _Rows(call, rows.cpu()).output()


MOST_KEY_HEADS = 8  # of which each may be the last one that is read


def _suspects(call: Call, chosen: torch.Tensor) -> Iterator[Suspect]:
    rows = _Rows(call, chosen.cpu())
    d = rows.q.shape[-1]
    hidden = rows.hidden(rows.causal)
    yield Suspect("the scores are not scaled by 1/√d", lambda: rows.output(scale=1.0))
    yield Suspect("the scores are scaled by 1/√d twice", lambda: rows.output(scale=rows.scale**2))
    if not math.isclose(rows.scale**2, 1.0 / d, rel_tol=1e-6):  # then it is the same
        yield Suspect(f"the scores are scaled by 1/d (1/{d}) instead of 1/√d", lambda: rows.output(scale=1.0 / d))
    yield Suspect("exp2 is taken of scores that were not multiplied by log2(e)", rows.base_two)
    yield Suspect("the sum of exponentials is never divided by", rows.unnormalised)
    yield Suspect("every key weighs the same: Q·Kᵀ is ignored", lambda: rows.output(scale=0.0))
    yield Suspect(
        "nothing is accumulated: the result is zero", lambda: torch.zeros(len(chosen), d, dtype=torch.float64)
    )
    if rows.causal:
        yield Suspect("the causal mask is not applied", lambda: rows.output(hidden=rows.hidden(False)))
        yield Suspect("the causal mask hides the diagonal too", lambda: rows.output(hidden=rows.hidden(True, -1)))
        yield Suspect("the causal mask lets one key of the future in", lambda: rows.output(hidden=rows.hidden(True, 1)))
        if rows.seq != rows.seq_k:
            shift = rows.seq - rows.seq_k
            yield Suspect(
                "the causal mask is aligned at the top left, not at the bottom right",
                lambda: rows.output(hidden=rows.hidden(True, shift)),
            )
    elif rows.seq > 1:
        yield Suspect(
            "a causal mask is applied where none was asked for", lambda: rows.output(hidden=rows.hidden(True))
        )
    if rows.seq_k > 1:
        yield Suspect("the last key is skipped", lambda: rows.output(hidden=hidden | (rows.key == rows.seq_k - 1)))
        yield Suspect("the first key is skipped", lambda: rows.output(hidden=hidden | (rows.key == 0)))
    if rows.group > 1:
        wrong = rows.h % rows.k.shape[1]
        yield Suspect(
            "query head h reads key head h mod kv_heads instead of h // (heads / kv_heads)",
            lambda: rows.output(kv_head=wrong),
        )
    if rows.k.shape[1] > 1:
        yield Suspect(
            "every head reads the keys and values of head 0", lambda: rows.output(kv_head=torch.zeros_like(rows.h))
        )
        for last in range(1, min(rows.k.shape[1] - 1, 1 + MOST_KEY_HEADS)):
            clamped = (rows.h // rows.group).clamp(max=last)
            yield Suspect(
                f"heads that belong to key heads beyond {last} read the keys and values of key head {last}",
                functools.partial(rows.output, kv_head=clamped),
            )
    for tile in (16, 32, 64, 128):
        yield from _tile_suspects(rows, hidden, tile)


def _tile_suspects(rows: _Rows, hidden: torch.Tensor, tile: int) -> Iterator[Suspect]:
    if rows.seq_k <= tile:
        return
    whole = rows.seq_k // tile * tile
    if whole < rows.seq_k:
        yield Suspect(
            f"the keys after the last whole tile of {tile} ({whole}..{rows.seq_k - 1}) are skipped",
            lambda: rows.output(hidden=hidden | (rows.key >= whole)),
        )
        yield Suspect(
            f"the last tile of {tile} keys is filled up with zeros that are not masked", lambda: rows.padded_keys(tile)
        )
    for first, name in ((0, "first"), (whole - tile, "last"))[: 1 if whole < rows.seq_k else 2]:
        inside = (rows.key >= first) & (rows.key < first + tile)
        yield Suspect(
            f"the {name} tile of {tile} keys is skipped", functools.partial(rows.output, hidden=hidden | inside)
        )
    yield Suspect(
        f"the accumulators are not rescaled when the maximum rises (tiles of {tile} keys)",
        lambda: rows.stale_maximum(tile, rescale_sum=False),
    )
    yield Suspect(
        f"the output accumulator is not rescaled when the maximum rises, the sum is (tiles of {tile} keys)",
        lambda: rows.stale_maximum(tile, rescale_sum=True),
    )


OPERATOR = Attention()

__all__ = ["FAMILIES", "FAR_BELOW_ZERO", "OPERATOR", "Attention", "dtype_name", "laid_out", "rows_of", "weights"]
