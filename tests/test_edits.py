"""What is changed in inputs, call by call."""

from __future__ import annotations

import math
import random

import pytest
import torch

from kernelproof import edits
from kernelproof.operators import Call
from kernelproof.results import bits_of


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float64, torch.uint8])
def test_heads_and_batches_become_alike_as_rows_do(dtype: torch.dtype) -> None:
    kept = torch.randperm(5 * 6 * 2 * 7).reshape(5, 6, 2, 7).remainder(250).to(dtype).transpose(1, 2)
    inputs = {"x": kept.clone(), "few": torch.ones(3, 3), "none": torch.empty(0, 4), "scale": torch.tensor(2.0)}
    edits._make_alike(inputs, torch.Generator().manual_seed(1))
    x = inputs["x"].double()
    assert x.shape == (5, 2, 6, 7)
    assert [(x[batch] != x[batch + 1]).sum() <= 1 for batch in (0, 2)] == [True, True]
    assert ((x[0, :, ::2] != x[0, :, 1::2]).sum(-1) <= 1).all()
    assert (x[0, 0] != x[0, 1]).sum() > 12, "two heads are too few"
    assert (x[4, :, ::2] == kept.double()[4, :, ::2]).all(), "whoever has no neighbour stays as it is, and so do firsts"
    assert (inputs["few"] == 1).all()


def test_rows_are_sorted_wherever_they_lie() -> None:
    strided, flat, one = torch.randn(3, 4, 12)[:, :, ::2].transpose(0, 1), torch.randn(9), torch.randn(1, 3)
    inputs = {"x": strided.clone(), "flat": flat.clone(), "one": one.clone(), "scale": torch.tensor(2.0)}
    edits._sort_rows(inputs, random.Random(3), later=True)
    assert torch.equal(inputs["x"].sort(-1).values, strided.sort(-1).values)
    assert ((inputs["x"] != strided).any(-1)).sum() == 2
    assert ((inputs["x"].diff(dim=-1) < 0).sum(-1) == 1).sum() > 0, "another row is nearly so"
    assert ((inputs["flat"] != flat.sort().values).nonzero().flatten() >= 4).sum() == 2, "and so is an only one"
    assert torch.equal(inputs["flat"].sort().values, flat.sort().values)
    assert torch.equal(inputs["one"], one.sort(-1).values)


def test_whole_numbers_come_close_where_float32_cannot_tell_them_apart() -> None:
    keys = torch.randint(-(2**31), 2**31 - 1, (4, 64), dtype=torch.int32)
    few = {
        "mask": torch.tensor([[0, 255, 255, 0, 0, 255]], dtype=torch.uint8),
        "labels": torch.tensor([[0, -100, 1, 4, -100, 2]]),
        "sentinels": torch.tensor([[-(2**62), 3, 2**62, 5, -(2**62), 7]]),
        "narrow": torch.tensor([[1, 2, 3, 4]], dtype=torch.uint16),
        "none": torch.zeros(0, 8, dtype=torch.int64),
    }
    inputs = {name: tensor.clone() for name, tensor in {"keys": keys, **few}.items()}
    edits._bring_close(inputs, torch.Generator().manual_seed(1))
    rising, falling = (inputs["keys"][:, 1::2] == keys[:, ::2] + way for way in (1, -1))
    close = rising | falling
    assert min(rising.sum(), falling.sum()) > 16
    assert close.sum() < 96
    assert torch.equal(inputs["keys"][:, 1::2][~close], keys[:, 1::2][~close])
    assert all(torch.equal(inputs[name], tensor) for name, tensor in few.items())


def test_a_row_that_repeats_values_keeps_two_at_least() -> None:
    row, short = torch.arange(5.0), torch.arange(3.0)
    for seed in range(20):
        inputs = {"row": row.clone(), "short": short.clone(), "scale": torch.tensor(2.0)}
        edits._repeat_values(inputs, torch.Generator().manual_seed(seed))
        assert inputs["row"][[0, 2, 4]].tolist() == [0, 2, 4]
        assert torch.equal(inputs["short"], short)


@pytest.mark.parametrize("rows", [torch.full((2, 3), 3.0), torch.ones(4, 1), torch.ones(0, 4)])
def test_what_cannot_be_exchanged_stays(rows: torch.Tensor) -> None:
    after = rows.clone()
    other = Call({"x": rows, "y": torch.empty(1)}, ("y",), ("row",))
    edits.edit({"x": after}, lambda _: other, edits.EDITS.index("exchange"), random.Random(1), None)
    assert torch.equal(after, rows)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float16, torch.bfloat16, torch.float64])
def test_numbers_with_other_exponents_or_signs_stay_among_their_like(dtype: torch.dtype) -> None:
    drawn = torch.randn(30, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    drawn[0, :4] = torch.tensor([0.0, -0.0, torch.finfo(dtype).tiny, 1.0], dtype=torch.float64).to(dtype)
    for factors in edits.OF_NUMBERS.values():
        after = drawn.clone()
        edits._scale(after, torch.Generator().manual_seed(1), factors)
        before, now = drawn.double(), after.double()
        assert set((now / before)[before != 0].unique().tolist()) == {1.0, *factors}
        assert before.min() <= now.min()
        assert now.max() <= before.max()
        assert now[0, 2].abs() >= torch.finfo(dtype).tiny
        assert torch.equal(now == 0, before == 0)


def test_what_has_no_numbers_of_either_sign_keeps_its_own() -> None:
    """An operator may have no meaning for others: probabilities, norms."""
    above, whole = torch.rand(9, 9) + 1, torch.arange(9, dtype=torch.uint8)
    for factors in edits.OF_NUMBERS.values():
        after = above.clone()
        edits._scale(after, torch.Generator().manual_seed(1), factors)
        assert torch.equal(after, above)  # between 1 and 2 nothing twice or half as large is
    assert edits.turns("signs", {"x": above, "i": whole}) == []
    assert edits.turns("exponents", {"x": above, "i": whole}) == ["x"]
    assert edits.turns("signs", {"i": whole, "x": above - 1.5}) == ["x"]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float64, torch.uint8])
def test_values_of_every_size_are_exchanged(dtype: torch.dtype) -> None:
    strided = torch.arange(24.0).to(dtype).reshape(4, 6)[:, ::2]
    before = strided.clone()
    edits._exchange(strided, (2, 2), across=False)
    assert (strided.float() != before.float()).nonzero().tolist() == [[2, 0], [2, 2]]
    strided.copy_(before)
    edits._exchange(strided, (2, 2), across=True)
    assert torch.equal(strided.float(), before.float()[[0, 1, 3, 2]])
    deep = before.reshape(2, 2, 3).clone()
    for place, order in (((0, 1, 0), [0, 2, 1, 3]), ((1, 1, 2), [3, 2, 1, 0])):
        edits._exchange(deep, place, across=True)
        assert torch.equal(deep.reshape(4, 3).float(), before.float()[order])
    one = torch.arange(3.0)
    edits._exchange(one, (1,), across=True)
    assert one.tolist() == [0, 2, 1], "one row has no other"


def test_of_one_input_values_of_different_rows_are_exchanged_too() -> None:
    """A median of each row is the same in whatever order its values are; who remembers results by all values' sum."""
    x = torch.randn(8, 9, generator=torch.Generator().manual_seed(0))
    places = [number for number, edit in enumerate(edits.EDITS) if edit == "exchange"][: edits.AT_LEAST]
    other = Call({"x": x, "y": torch.empty(8)}, ("y",), ("row",))
    changed = []
    for number in places:
        after = x.clone()
        edits.edit({"x": after}, lambda _: other, number, random.Random(1), None)
        changed.append(len((after != x).nonzero()[:, 0].unique()))
        assert torch.equal(after.flatten().sort().values, x.flatten().sort().values)
    assert changed == [1, 2, 1]


@pytest.mark.parametrize(
    ("dtype", "bits"), [(torch.float64, 26), (torch.float32, 12), (torch.float16, 5), (torch.bfloat16, 4)]
)
def test_low_bits_are_others_and_nothing_else_is(dtype: torch.dtype, bits: int) -> None:
    whole = {8: torch.int64, 4: torch.int32, 2: torch.int16}[dtype.itemsize]
    x = torch.randn(40, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0] = torch.tensor([0.0, -0.0, 1.0, 10.0, math.inf]).repeat(10)
    x[1] = torch.finfo(dtype).max
    call = Call({"x": x.clone(), "codes": torch.arange(99), "y": torch.empty(1)}, outputs=("y",), axes=("row",))
    edits.replace_low_bits(call.inputs, 7)
    after = call.inputs["x"]
    changed = x.view(whole) ^ after.view(whole)
    assert (int(changed.min()), int(changed.max())) == (0, pytest.approx(2**bits, rel=0.1))
    assert torch.equal(after[0], x[0])
    assert bool(after[1:].isfinite().all())
    assert float((changed[1:] != 0).float().mean()) > 0.8
    assert torch.equal(call.inputs["codes"], torch.arange(99))


@pytest.mark.parametrize(
    ("values", "bits"),
    [
        (torch.randint(-(1 << 31), (1 << 31) - 1, (9, 40)).int(), 16),
        (torch.randint(0, 60_000, (9, 40)), 8),
        (torch.randint(0, 256, (9, 40)).to(torch.uint8), 4),
        (torch.randint(0, 100_000, (9, 40)).int(), 16),
    ],
)
def test_digits_of_whole_numbers_change_by_halves(values: torch.Tensor, bits: int) -> None:
    """Who keeps results by the lower ones, or the upper ones, of one input; what leaves the range is none of it."""
    other = values.flatten().flip(0).reshape(values.shape)
    mask = (1 << bits) - 1
    for upper in (False, True):
        after = values.clone()
        edits._replace_digits(after, other, torch.Generator().manual_seed(1), upper=upper)
        kept = (after.long() ^ values.long()) & (mask if upper else ~mask)
        assert not kept.any()
        assert 0.1 < (after != values).double().mean() < 0.6
        assert values.min() <= after.min()
        assert after.max() <= values.max()
    few = torch.tensor([[0, 255, 255, 0, 255]], dtype=torch.uint8)
    after = few.clone()
    edits._replace_digits(after, few.flip(-1), torch.Generator().manual_seed(1), upper=True)
    assert set(after.flatten().tolist()) <= {0, 255}


@pytest.mark.parametrize("upper", [False, True])
def test_a_negative_number_that_stands_for_something_else_stays_the_only_one(upper: bool) -> None:
    labels = torch.randint(1000, (3, 40), generator=torch.Generator().manual_seed(2))
    labels[:, ::5] = -100
    other, after, traded = labels.flip(0).roll(1, 1), labels.clone(), labels.clone()
    edits._replace_digits(after, other, torch.Generator().manual_seed(1), upper=upper)
    edits._trade_digits({"labels": traded}, torch.Generator().manual_seed(1))
    for changed in (after, traded):
        assert set(changed[changed < 0].tolist()) == {-100}
        assert (changed != labels).double().mean() > 0.1


def test_every_input_has_its_turn() -> None:
    inputs = {name: torch.randn(3, 4) for name in "abcdef"} | {"i": torch.randint(0, 200, (3, 4)).to(torch.uint8)}
    often = edits.times(inputs)
    for kind, names in (("element", "abcdefi"), ("digits", "abcdefi"), ("exponents", "abcdef"), ("upper", "i")):
        turns = [edits.turn_of(n) for n, edit in enumerate(edits.EDITS) if edit == kind]
        made = [turn for turn in turns if turn < often[kind]]
        assert {edits.turns(kind, inputs)[turn % len(names)] for turn in made} == set(names)
    assert "digits" not in edits.times({"x": inputs["a"], "y": torch.zeros(2, dtype=torch.bool)})


@pytest.mark.parametrize("of_rows", [True, False])
def test_values_of_two_families_stand_side_by_side(of_rows: bool) -> None:
    inputs = {"x": torch.zeros(2, 16, 24), "weight": torch.zeros(24)}
    beside = Call(
        {name: torch.ones_like(tensor) for name, tensor in inputs.items()} | {"y": torch.empty(1)}, ("y",), ("i",)
    )
    edits._mix(inputs, beside, random.Random(1), of_rows=of_rows)
    pieces = inputs["x"].mean((0, 2) if of_rows else (0, 1))
    assert set(pieces.tolist()) == {0.0, 1.0}
    assert pieces.mean() == pytest.approx(0.5, abs=0.2)
    assert bool(inputs["weight"].any()) is not of_rows


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32, torch.uint8, torch.int8])
def test_what_neighbours_trade_leaves_sums_as_they_are(dtype: torch.dtype) -> None:
    """Who keeps the result of a sort, or a maximum, by the sum of what it has, or by all bits xored."""
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point:
        x = (1.5 + torch.rand(6, 41, generator=generator, dtype=torch.float64) / 2).to(dtype)
    else:
        limits = torch.iinfo(dtype)
        x = torch.randint(limits.min, limits.max, (6, 41), generator=generator).to(dtype)
    after = x.clone()
    edits._trade_digits({"x": after, "scale": torch.ones(())}, torch.Generator().manual_seed(1))
    assert (after != x).sum() > 8
    assert torch.allclose(after.double().sum(-1), x.double().sum(-1), rtol=1e-14)
    assert torch.equal(after[:, -1], x[:, -1])
    bits = bits_of(x) ^ bits_of(after)
    assert torch.equal(bits[:, 0:40:2], bits[:, 1:40:2])
    few = torch.tensor([[0, 255, 255, 0, 0, 255]], dtype=torch.uint8)
    kept = few.clone()
    edits._trade_digits({"few": kept}, torch.Generator().manual_seed(1))
    assert set(kept.flatten().tolist()) <= {0, 255}
