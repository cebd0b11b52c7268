"""What must hold between two calls of attention, of numbers or of codes (docs/explanation/correctness.md, e).

A call has q, o [batch, heads, seq, head_dim] and k, v [batch, kv_heads, seq_k, head_dim]; quantised ones also q_scale
[batch, heads], k_scale and v_scale [batch, kv_heads]. All transforms are made on what lies in memory, so that they are
exact: a permutation, a sign, a power of two, and for sums a base call of its own, whose numbers leave room for them.
"""

from __future__ import annotations

import torch

from kernelproof import simfp8
from kernelproof.operators import Call, Relation, changed, exactly, placed, shuffled, traded

# Bits of a significand, the leading one included.
SIGNIFICAND = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8, torch.float8_e4m3fn: 4}

# The code of constant values, less the zero point: the largest would overflow where V reaches the output's end.
HALF_WAY = 64.0

TILE_ROWS = 128  # tiles of 16, 32 and 64 queries begin there, too; those of 48 or 192 that round together do not

SKIPS = "keys are treated by their position: some are skipped or counted twice, or a tile is not rescaled"
HEADS = "a wrong head or batch is read, or one of them is treated in another way"
VALUES = "part of V is not read, or the weights do not add up to 1"
FUTURE = "the mask lets later keys in, or they take part in a maximum or a sum"


def relations(call: Call, generator: torch.Generator) -> list[Relation]:
    """The relations of one call; those that its lengths, its mask or its data type do not allow are left out."""
    made: list[Relation | None] = [
        _permuted_keys(call, generator),
        _shifted_keys(call, generator),
        _scaled_queries(call),
        _affine_values(call, generator),
        _constant_values(call),
        _permuted_heads(call, generator),
        _permuted_queries(call, generator),
        _changed_future(call, generator),
    ]
    return [relation for relation in made if relation is not None]


def scaled(call: Call) -> Relation:
    """Quantised only: the scales of Q, K and V times 4, 1/4 and 1/4. A power of two changes no significand."""
    factors = {"q_scale": 4.0, "k_scale": 0.25, "v_scale": 0.25}
    scales = {name: call.tensor(name) * factor for name, factor in factors.items()}
    return Relation(
        "scaled by powers of two",
        "scales of Q times 4 and of K and V times 1/4 give a quarter of the output",
        changed(call, **scales),
        lambda output: output / 4,
        cause="a scale is not applied, or one of another head or tensor is",
    )


# --- the relations ----------------------------------------------------------------------------------------------------


def _permuted_keys(call: Call, generator: torch.Generator) -> Relation | None:
    """Keys change places among those that every query sees: all, or under a causal mask those of the first query."""
    seq, seq_k = _lengths(call)
    free = seq_k - seq + 1 if _causal(call) else seq_k
    if free < 2:
        return None
    order = torch.cat([shuffled(free, generator), torch.arange(free, seq_k)])
    moved = {name: placed(call.tensor(name)[:, :, order], call.tensor(name)) for name in "kv"}
    return Relation(
        "permuted keys",
        "reordering keys and values together changes nothing",
        changed(call, **moved),
        _same,
        moves=True,
        cause=SKIPS,
    )


def _shifted_keys(call: Call, generator: torch.Generator) -> Relation | None:
    """K + 1·cᵀ adds ⟨q, c⟩ to all scores of a query, which no softmax notices."""
    base, numbers, shift = _with_room(call, "k", generator)
    moved = _stored(numbers + shift, call.tensor("k"))
    if moved is None or not bool(shift.any()):
        return None
    return Relation(
        "shifted keys",
        "adding one vector to every key leaves the output as it is",
        changed(base or call, k=moved),
        _same,
        base=base,
        cause="the maximum is not subtracted or not carried on, or some keys are not read",
    )


def _scaled_queries(call: Call) -> Relation | None:
    """Q → 4Q with scale → scale/4; of codes Q's scales are multiplied."""
    return traded(
        call,
        "q_scale" if "q_scale" in call.arguments else "q",
        "scale",
        "scaled queries",
        "Q times {by} with {of} of the scale leaves the output as it is",
        "the scale is not the one that was asked for: 1/√d is taken whatever is given",
    )


def _affine_values(call: Call, generator: torch.Generator) -> Relation | None:
    """V → aV + b with a = −1/2, or −1 where halves are not exact, and a b for each head and feature."""
    base, numbers, shift = _with_room(call, "v", generator)
    for factor in (-0.5, -1.0):
        moved = _stored(factor * numbers + shift, call.tensor("v"))
        if moved is not None:
            break
    else:
        return None
    added = _grouped(call, shift * _worth(call, "v")) * _sees_a_key(call)
    return Relation(
        "affine values",
        f"V times {factor:g} plus one vector gives the output times {factor:g} plus that vector",
        changed(base or call, v=moved),
        lambda output: factor * output + added.to(output.device),
        base=base,
        cause=VALUES,
    )


def _constant_values(call: Call) -> Relation:
    """V = 1 gives 1: the weights add up to 1. With scales, one code gives what it stands for."""
    v = call.tensor("v")
    number = HALF_WAY if v.dtype == torch.uint8 else 1.0
    flat = _stored(torch.full(v.shape, number, dtype=torch.float64), v)
    assert flat is not None, f"{number} is a number in every data type"
    value = (number * _worth(call, "v")).expand(*v.shape[:2], 1, 1)
    wanted = (_grouped(call, value) * _sees_a_key(call)).expand(call.output.shape)
    return Relation(
        "constant values",
        "values that are all the same give that value",
        changed(call, v=flat),
        lambda output: wanted.to(output.device),
        cause="the weights do not add up to 1: the sum and the product take different keys, or a rescaling is missing",
    )


def _permuted_heads(call: Call, generator: torch.Generator) -> Relation | None:
    """Batches, key heads, and the query heads of each key head change places."""
    (batches, heads, _, _), kv_heads = call.tensor("q").shape, call.tensor("k").shape[1]
    if batches * heads == 1:
        return None
    group = heads // kv_heads
    batch, kv_head = shuffled(batches, generator), shuffled(kv_heads, generator)
    # The first group keeps its order: if all were turned, a kernel that takes h mod kv_heads for the key head may pass.
    inside = torch.stack([torch.randperm(group, generator=generator) for _ in range(kv_heads)])
    inside[0] = torch.arange(group) if kv_heads > 1 else shuffled(group, generator)
    head = (kv_head[:, None] * group + inside).flatten()
    of_key = ("k", "v", "k_scale", "v_scale")
    moved = {
        name: placed(tensor[batch][:, kv_head if name in of_key else head], tensor)
        for name, tensor in call.inputs.items()
    }
    return Relation(
        "permuted heads",
        "reordering batches and heads of Q, K and V together reorders the output in the same way",
        changed(call, **moved),
        lambda output: output[batch.to(output.device)][:, head.to(output.device)],
        moves=True,
        cause=HEADS,
    )


def _permuted_queries(call: Call, generator: torch.Generator) -> Relation | None:
    """Without a mask a query does not know its place."""
    seq, _ = _lengths(call)
    if _causal(call) or seq < 2:
        return None
    order = shuffled(seq, generator)
    return Relation(
        "permuted queries",
        "reordering the queries reorders the rows of the output in the same way",
        changed(call, q=placed(call.tensor("q")[:, :, order], call.tensor("q"))),
        lambda output: output[:, :, order.to(output.device)],
        moves=True,
        cause="queries are treated by their position: a row index is wrong, or a mask is applied",
    )


def _changed_future(call: Call, generator: torch.Generator) -> Relation | None:
    """Keys from a random place on become what the last query before it looks for, and their values change sign.

    Any query that sees one of them too early gives it a large weight. Where a tile of queries begins with them, no bit
    of those before may change. Within a tile it may: a kernel can keep the maximum of earlier keys as long as the
    scores of all its rows allow it.
    """
    seq, seq_k = _lengths(call)
    first = max(1, seq - seq_k + 1)  # the second query that sees a key
    if not _causal(call) or first >= seq:
        return None
    row = int(torch.randint(first, seq, (), generator=generator))  # the first query that sees what is changed
    begins = row // TILE_ROWS * TILE_ROWS
    if begins >= first and torch.rand((), generator=generator) < 0.5:
        row = begins
    key = row - seq + seq_k
    q, k, v = (call.tensor(name) for name in "qkv")
    group = q.shape[1] // k.shape[1]
    keys, values = k.clone(), v.clone()
    keys[:, :, key:] = q[:, ::group, row - 1 : row]
    values[:, :, key:] = _negated(v[:, :, key:])
    past = torch.arange(seq)[:, None] < row
    return Relation(
        "changed future",
        f"queries before row {row} do not see the keys from {key} on, whatever these hold",
        changed(call, k=placed(keys, k), v=placed(values, v)),
        _same,
        exact=row % TILE_ROWS == 0,
        where=past.expand(call.output.shape),
        cause=FUTURE,
    )


# --- numbers in memory ------------------------------------------------------------------------------------------------


def _same(output: torch.Tensor) -> torch.Tensor:
    return output


def _causal(call: Call) -> bool:
    return bool(call.scalar("causal"))


def _lengths(call: Call) -> tuple[int, int]:
    return call.tensor("q").shape[2], call.tensor("k").shape[2]


def _sees_a_key(call: Call) -> torch.Tensor:
    """1 for the rows that see a key and 0 for the others, float64 [seq, 1]."""
    seq, seq_k = _lengths(call)
    sees = torch.arange(seq)[:, None] >= seq - seq_k if _causal(call) else torch.ones(seq, 1)
    return sees.double()


def _grouped(call: Call, of_key_heads: torch.Tensor) -> torch.Tensor:
    """[batch, kv_heads, ...] repeated for the query heads of each key head."""
    return of_key_heads.repeat_interleave(call.tensor("q").shape[1] // call.tensor("k").shape[1], 1)


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """What elements stand for, up to `_worth`, in float64: codes of simulated FP8 count from their zero point."""
    return tensor.double() - simfp8.ZERO_POINT if tensor.dtype == torch.uint8 else tensor.double()


def _stored(numbers: torch.Tensor, like: torch.Tensor) -> torch.Tensor | None:
    """The inverse of `_numbers`, in the strides of a tensor; None where a number is not exact in its data type."""
    return exactly(numbers + simfp8.ZERO_POINT if like.dtype == torch.uint8 else numbers, like)


def _worth(call: Call, name: str) -> torch.Tensor:
    """What a number of one is worth in each head, float64 [batch, heads, 1, 1]; 1 without scales."""
    if f"{name}_scale" not in call.arguments:
        return torch.ones(1, 1, 1, 1, dtype=torch.float64)
    step = simfp8.LARGEST / simfp8.LEVELS if call.tensor(name).dtype == torch.uint8 else 1.0
    return step * call.tensor(f"{name}_scale").double()[..., None, None]


def _negated(codes: torch.Tensor) -> torch.Tensor:
    """Numbers with the other sign; the codes of simulated FP8 mirrored, off by half a step, which reaches code 0."""
    return 255 - codes if codes.dtype == torch.uint8 else (-codes.double()).to(codes.dtype)


def _with_room(call: Call, name: str, generator: torch.Generator) -> tuple[Call | None, torch.Tensor, torch.Tensor]:
    """A base call to which a vector a head can be added exactly: it (None: `call` itself), its memory's numbers, shift.

    Numbers and shift are float64, [batch, kv_heads, seq_k, d] and [batch, kv_heads, 1, d]. Numbers are cut to whole
    steps, so that two bits of the significand are left for the sum; what would overflow is divided by 4 first. The
    shift is at most as large as the numbers of its feature.
    """
    tensor = call.tensor(name)
    coded, numbers = tensor.dtype == torch.uint8, _numbers(tensor)
    if coded:
        numbers = (numbers / 2).trunc()
        step = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    else:
        limits = torch.finfo(tensor.dtype)
        if float(numbers.abs().max()) > limits.max / 4:
            numbers = numbers / 4
        largest = numbers.abs().amax(2, keepdim=True)
        step = torch.exp2(largest.log2().ceil() - (SIGNIFICAND[tensor.dtype] - 2))
        # A step of two subnormals, so that half of it is still a number.
        step = step.clamp_min(2 * limits.smallest_normal * limits.eps)
        numbers = (numbers / step).trunc() * step
    reach = (numbers.abs().amax(2, keepdim=True) / step).clamp_max(63.0 if coded else float("inf"))
    drawn = torch.rand(reach.shape, generator=generator, dtype=torch.float64) * 2 - 1
    shift = (drawn * reach).round() * step
    cut = _stored(numbers, tensor)
    assert cut is not None, f"{name}: cut to steps of {float(step.max()):g}, yet not exact"
    base = None if torch.equal(cut.double(), tensor.double()) else changed(call, **{name: cut})
    return base, numbers, shift
