"""What changes in the inputs of a case, call by call, for who recognises inputs by a part of their values.

The judge makes these edits of inputs whose parts may take other values (`operators.changeable`), one after the other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from kernelproof.operators import Call

# What changes in the inputs of a case, call by call, so that each call differs from the one before it in that alone:
# one element, of one input after the other; the places of two; the very last element, which no whole vector holds; the
# last elements of each input, one in TAIL_SHARE; the later and the earlier half of all its rows, and what is between
# their ends; the lower digits of one input, and the upper ones of whole numbers; the lower ones of two neighbours,
# which they trade, so that sums stay where order does not matter; the order of all rows, in which maxima and
# histograms stay. And what random values never have: a row in order and one nearly so, values that come twice in a
# row, and rows that are like others but for one value. Then only exponents of one input after the other, and only
# signs, for who recognises inputs by all other bits. At last a value is the next number after its neighbour, for who
# looks for the largest by fewer bits than that, and rows begin like others, where an index tells places of one row
# apart; and rows, or columns, of another family of values lie between those of the case. These are made of no call
# between. What changes one input goes on behind them where there are more inputs than three.
TIES = ("repeated", "alike")
OF_NUMBERS = {"exponents": (2.0, 0.5), "signs": (-1.0,)}  # and by what some numbers are multiplied
OF_ONE = ("element", "exchange", "end", "digits", "upper", *OF_NUMBERS)  # input, whose turn it is
AT_LEAST, AT_MOST = 3, 8  # inputs that have their turn
ONCE_EACH = ("digits", "upper")
MIXTURES = 4  # of two families: rows and columns in turn
EDITS = (
    *AT_LEAST * ("element",),
    *AT_LEAST * ("exchange",),
    *AT_LEAST * ("end",),
    "tail",
    "later",
    "earlier",
    "middle",
    *AT_LEAST * ("digits",),
    *AT_LEAST * ("upper",),
    "traded",
    *2 * ("sorted", "reversed"),
    *TIES,
    *AT_LEAST * ("exponents",),
    *AT_LEAST * ("signs",),
    "close",
    "begun",
    *MIXTURES * ("mixed",),
    *(AT_MOST - AT_LEAST) * OF_ONE,
)
FOR_INDICES = ("close", "begun")  # each made of the last call before both, for where an output is an index alone
ASIDE = (*FOR_INDICES, "mixed")  # of which no other is made; `mixed` is made of the case
FEW_DISTINCT = 16  # whole numbers may be codes that are a few numbers and no others
BEHIND_TIES = (*TIES, *OF_NUMBERS, "close")  # edits that are made behind those, of values that are equal then
TAIL_SHARE = 4
TURNS = 16  # in which rows are given back their values, before all are
FEWEST_BEGUN = 8  # rows and columns: of fewer chance may hide that an index is not of a row
EQUAL_IN_FLOAT32 = 1 << 24  # whole numbers from here on have no float32 of their own each
FEWEST_ALIKE = 4  # values of a row, or rows, of which some become like others: two at least differ all the same


def turn_of(number: int) -> int:
    """Which of its kind one of EDITS is."""
    return EDITS[:number].count(EDITS[number])


def turns(kind: str, inputs: Mapping[str, Tensor]) -> list[str]:
    """The inputs, by name, in which an edit of OF_ONE can change anything."""
    return [name for name, tensor in inputs.items() if tensor.numel() and _has_room(kind, tensor)]


def times(inputs: Mapping[str, Tensor]) -> dict[str, int]:
    """How often each edit is made in these inputs; of OF_ONE, once in each input or AT_LEAST."""
    found = {kind: EDITS.count(kind) for kind in dict.fromkeys(EDITS)}
    for kind in OF_ONE:
        count = len(turns(kind, inputs))
        found[kind] = min(count if kind in ONCE_EACH or not count else max(count, AT_LEAST), AT_MOST)
    found["traded"] = int(any(_has_room("digits", tensor) for tensor in inputs.values()))
    numbers = [tensor for tensor in inputs.values() if tensor.is_floating_point() and tensor.element_size() > 1]
    if len(numbers) == found["digits"] == 1:
        found["digits"] = 0  # all numbers have had other low bits then
    return {kind: count for kind, count in found.items() if count}


def _has_room(kind: str, tensor: Tensor) -> bool:
    if kind in ("digits", "upper"):
        return _digits(tensor) > 0 and not (kind == "upper" and tensor.is_floating_point())
    if kind == "signs":
        return tensor.is_floating_point() and bool(((values := tensor.double()) < 0).any() and (values > 0).any())
    return kind not in OF_NUMBERS or tensor.is_floating_point()


def _digits(tensor: Tensor) -> int:
    """How many bits are the lower half: of a mantissa; of a width that whole numbers do not fit into; 0 for none."""
    import torch

    if tensor.is_floating_point():
        return (1 - round(math.log2(torch.finfo(tensor.dtype).eps))) // 2 if tensor.element_size() > 1 else 0
    if tensor.dtype not in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64) or not tensor.numel():
        return 0
    least, most = (int(end) for end in tensor.aminmax())
    bits = max(-least, most, 0).bit_length()
    return next((width for width in (32, 16, 8, 4) if bits > width), bits // 2)


def edit(
    inputs: Mapping[str, Tensor], other: Callable[[int], Call], number: int, draw: random.Random, beside: Call | None
) -> None:
    """Make one of EDITS in inputs; new values are those of other calls of the case: 0; 1 of halves, 2 of middles.

    beside: the call of another family, for `mixed`.
    """
    kind, turn = EDITS[number], turn_of(number)
    names = turns(kind, inputs)
    if not names:
        return
    name = names[turn % len(names)]
    tensor = inputs[name]
    place = tuple(draw.randrange(size) for size in tensor.shape)
    if kind in ("element", "end"):
        place = place if kind == "element" else tuple(size - 1 for size in tensor.shape)
        tensor[place] = other(0).tensor(name)[place]
    elif kind == "exchange":
        _exchange(tensor, place, across=turn // len(names) % 2 == 1)
    elif kind == "tail":
        _replace_tails(inputs, other(0))
    elif kind == "later":
        _replace_part(inputs, other(1), lambda size: slice(size - size // 2, None))
    elif kind == "earlier":
        _replace_part(inputs, other(1), lambda size: slice(size // 2))
    elif kind == "middle":
        _replace_part(inputs, other(2), lambda size: slice(size // 4, size - size // 4))
    elif kind == "digits" and tensor.is_floating_point():
        replace_low_bits({name: tensor}, draw.randrange(1 << 62))
    elif kind in ("digits", "upper"):
        _replace_digits(tensor, other(0).tensor(name), _generator(draw), upper=kind == "upper")
    elif kind == "traded":
        _trade_digits(inputs, _generator(draw))
    elif kind == "mixed":
        assert beside is not None
        _mix(inputs, beside, draw, of_rows=turn % 2 == 0)
    elif kind == "sorted":
        _sort_rows(inputs, draw, later=turn == 0)
    elif kind == "reversed":
        _reverse_rows(inputs)
    elif kind == "close":
        _bring_close(inputs, _generator(draw))
    elif kind == "begun":
        _begin_alike(inputs)
    elif kind == "repeated":
        _repeat_values(inputs, _generator(draw))
    elif kind == "alike":
        _make_alike(inputs, _generator(draw))
    else:
        _scale(tensor, _generator(draw), OF_NUMBERS[kind])


def take_ties_back(before: Mapping[str, Tensor], now: Mapping[str, Tensor], *, of_rows: bool) -> bool:
    """Give rows of `now` their values of `before` where values became equal that were all different; True: all rows.

    Rows that are all different stay so: what is left of an edit makes no tie, whether by chance or by its kind.
    of_rows: only values of one row are looked at.
    """
    import torch

    from kernelproof.results import bits_of

    edited = left = False
    for name, tensor in now.items():
        old = before[name]
        edited |= not torch.equal(bits_of(tensor), bits_of(old))
        if not tensor.numel():
            continue
        dims = (None, *range(tensor.dim()))
        distinct = [dim for dim in (dims[-1:] if of_rows else dims) if not bool(_tied(old, dim).any())]
        for turn in range(TURNS if distinct else 0):
            tied = torch.stack([_tied(tensor, dim) for dim in distinct]).any(0)
            if not bool(tied.any()):
                break
            rows = tied.any(-1, keepdim=True).expand(tied.shape) if turn < TURNS - 1 else torch.ones_like(tied)
            bits_of(tensor)[rows] = bits_of(old)[rows]
        left |= not torch.equal(bits_of(tensor), bits_of(old))
    return edited and not left


def _tied(tensor: Tensor, dim: int | None) -> Tensor:
    """Where a value is equal to another along a dimension; without one, to another of all."""
    import torch

    values = (tensor.flatten() if dim is None else tensor.movedim(dim, -1)).double()
    rising, order = values.sort(-1)
    same = rising[..., 1:] == rising[..., :-1]
    none = torch.zeros_like(rising[..., :1], dtype=torch.bool)
    tied = torch.empty_like(rising, dtype=torch.bool)
    tied.scatter_(-1, order, torch.cat([none, same], -1) | torch.cat([same, none], -1))
    return tied.view(tensor.shape) if dim is None else tied.movedim(-1, dim)


def _row_at(tensor: Tensor, number: int) -> tuple[int, ...]:
    """The place of a row, by its number among all rows."""
    import numpy

    return tuple(map(int, numpy.unravel_index(number, tensor.shape[:-1])))


def _exchange(tensor: Tensor, place: tuple[int, ...], *, across: bool) -> None:
    """Exchange an element with the next of its row that is another: what is summed up over the row stays.

    across: exchange its row with the next one, where there are several: of what goes by a row's values in whatever
    order the first changes nothing, and what is summed up over all rows stays. Where all are alike, nothing changes.
    """
    import numpy

    from kernelproof.results import bits_of

    bits, (*above, first) = bits_of(tensor), place
    if across and (rows := math.prod(tensor.shape[:-1])) > 1:
        after = (numpy.ravel_multi_index(above, tensor.shape[:-1]) + 1) % rows
        ours, theirs = tuple(above), _row_at(tensor, int(after))
        bits[ours], bits[theirs] = bits[theirs].clone(), bits[ours].clone()
        return
    row = bits[tuple(above)]
    others = (row.roll(-first) != row[first]).nonzero()
    if len(others):
        second = (first + int(others[0])) % len(row)
        row[[first, second]] = row[[second, first]]


def _replace_tails(inputs: Mapping[str, Tensor], other: Call) -> None:
    """Give the last elements of these inputs the values of another call's."""
    for name, tensor in inputs.items():
        values = tensor.contiguous().flatten()
        kept = len(values) - -(-len(values) // TAIL_SHARE)
        values[kept:] = other.tensor(name).contiguous().flatten()[kept:]
        tensor.copy_(values.reshape(tensor.shape))


def _replace_part(inputs: Mapping[str, Tensor], other: Call, part: Callable[[int], slice]) -> None:
    """Give a part of each row of these inputs, by a row's size, the values of another call's."""
    for name, tensor in inputs.items():
        if tensor.dim():
            there = part(tensor.shape[-1])
            tensor[..., there] = other.tensor(name)[..., there]


def _replace_digits(tensor: Tensor, other: Tensor, generator: Generator, *, upper: bool) -> None:
    """Give every second whole number, as a coin says, the upper or the lower digits of another one.

    Nothing leaves the range of the tensor's own values; where these are few, each stays one of them or of the other's.
    """
    import torch

    mask = (1 << _digits(tensor)) - 1
    own, others = tensor.long(), other.long()
    mixed = (others & ~mask) | (own & mask) if upper else (own & ~mask) | (others & mask)
    use = _is_one_of(mixed, own, torch.cat([own.flatten(), others.flatten()]))
    use &= torch.randint(2, own.shape, generator=generator, dtype=torch.bool)
    tensor.copy_(torch.where(use, mixed, own).to(tensor.dtype))


def _is_one_of(values: Tensor, own: Tensor, known: Tensor) -> Tensor:
    """Which values lie in the range of a tensor's own, and are known ones where these are few.

    Where one negative number is known, it stands for something else (-100 for a label that is to be ignored), and no
    other is allowed.
    """
    import torch

    use, known = (values >= own.min()) & (values <= own.max()), torch.unique(known)
    if len(known) <= FEW_DISTINCT:
        return use & torch.isin(values, known)
    below = known[known < 0]
    return use & ((values >= 0) | (values == below)) if len(below) == 1 else use


def _trade_digits(inputs: Mapping[str, Tensor], generator: Generator) -> None:
    """Let neighbours in a row trade their lower digits, as a coin says: what is summed up, or xored, stays.

    Of floating-point numbers those with one sign and exponent. Whole numbers that are few stay among themselves.
    """
    import torch

    from kernelproof.results import bits_of

    for tensor in inputs.values():
        if not tensor.dim() or tensor.shape[-1] < FEWEST_ALIKE or not _has_room("digits", tensor):
            continue
        bits, size = bits_of(tensor), tensor.shape[-1] // 2 * 2
        first, second = bits[..., 0:size:2], bits[..., 1:size:2]
        use = torch.randint(2, first.shape, generator=generator, dtype=torch.bool)
        mask = (1 << _digits(tensor)) - 1
        pair = (first & ~mask) | (second & mask), (second & ~mask) | (first & mask)
        if tensor.is_floating_point():
            mantissa = round(-math.log2(torch.finfo(tensor.dtype).eps))
            use &= (first >> mantissa) == (second >> mantissa)
        else:
            for mixed in pair:
                use &= _is_one_of(mixed.to(tensor.dtype), tensor, tensor)
        new = [torch.where(use, mixed, old) for mixed, old in zip(pair, (first, second), strict=True)]
        first.copy_(new[0])
        second.copy_(new[1])


def _mix(inputs: Mapping[str, Tensor], beside: Call, draw: random.Random, *, of_rows: bool) -> None:
    """Give every second row of these inputs, or every second piece of all rows, the values of another call's."""
    piece = 1 if of_rows else 1 << draw.randrange(3, 8)
    for name, tensor in inputs.items():
        axis = -2 if of_rows else -1
        if tensor.dim() < -axis or name not in beside.inputs or beside.tensor(name).shape != tensor.shape:
            continue  # a family may do without one
        size = tensor.shape[axis]
        piece_of = min(piece, max(1, size // 4))
        for start in range(piece_of, size, 2 * piece_of):
            part = slice(start, start + piece_of)
            index = (..., part, slice(None)) if of_rows else (..., part)
            tensor[index] = beside.tensor(name)[index]


def _sort_rows(inputs: Mapping[str, Tensor], draw: random.Random, *, later: bool) -> None:
    """Put the values of one row of each input in rising order: those below zero together, none behind a larger one.

    Of another row, or of the only one, two neighbours in its later or earlier half change places then: what looks at
    the first or the last ones, or at some, takes it for sorted.
    """
    from kernelproof.results import bits_of

    for tensor in inputs.values():
        if not tensor.dim() or not tensor.numel():
            continue
        rows, size = math.prod(tensor.shape[:-1]), tensor.shape[-1]
        for number, at in enumerate(draw.sample(range(rows), min(rows, 2))):
            row = tensor[_row_at(tensor, at)]
            order = row.double().argsort()
            if (number == 1 or rows == 1) and size >= FEWEST_ALIKE:
                first = draw.randrange(size // 2, size - 1) if later else draw.randrange(size // 2)
                order[[first, first + 1]] = order[[first + 1, first]]
            bits = bits_of(row)
            bits.copy_(bits[order])


def _reverse_rows(inputs: Mapping[str, Tensor]) -> None:
    from kernelproof.results import bits_of

    for bits in map(bits_of, inputs.values()):
        bits.copy_(bits.flip(-1) if bits.dim() else bits)


def _repeat_values(inputs: Mapping[str, Tensor], generator: Generator) -> None:
    """Let the second of every two neighbours in a row have the value of the first, as a coin says."""
    import torch

    from kernelproof.results import bits_of

    for tensor in inputs.values():
        if tensor.dim() and tensor.shape[-1] >= FEWEST_ALIKE:
            bits = bits_of(tensor)
            second = bits[..., 1::2]
            coins = torch.randint(2, second.shape, generator=generator, dtype=torch.bool)
            second.copy_(torch.where(coins, bits[..., : bits.shape[-1] // 2 * 2 : 2], second))


def _bring_close(inputs: Mapping[str, Tensor], generator: Generator) -> None:
    """Let the second of every two neighbours in a row be the next number after the first or before it, by coins.

    Both ways, for equal ones stay in their order where who sorts is stable.

    Of whole numbers those that float32 takes for equal: smaller ones may be codes or labels, of which the next one may
    be none, and the least and the largest what stands for a place that is left out.
    """
    import torch

    from kernelproof.results import bits_of

    for tensor in inputs.values():
        wide = tensor.dtype in (torch.int32, torch.int64)
        if (
            (wide or tensor.is_floating_point())
            and tensor.numel()
            and tensor.dim()
            and tensor.shape[-1] >= FEWEST_ALIKE
        ):
            numbers, bits = tensor[..., : tensor.shape[-1] // 2 * 2 : 2], bits_of(tensor)
            if tensor.is_floating_point():
                limits = torch.finfo(tensor.dtype)  # beyond them there is no next one, or it may be flushed to zero
                usual = (numbers.double().abs() > limits.tiny) & (numbers.double().abs() < limits.max / 2)
            else:
                least, most = tensor.aminmax()
                usual = ((numbers > EQUAL_IN_FLOAT32) | (numbers < -EQUAL_IN_FLOAT32)) & (numbers > least)
                usual &= (numbers < most) & (numbers - 1 > least) & (numbers + 1 < most)
            coins, ways = torch.randint(2, (2, *usual.shape), generator=generator, dtype=torch.bool)
            first, second = bits[..., : bits.shape[-1] // 2 * 2 : 2], bits[..., 1::2]
            second.copy_(torch.where(coins & usual, torch.where(ways, first + 1, first - 1), second))


def begins_alike(tensor: Tensor) -> bool:
    """Whether an input has rows of which some can begin like others."""
    return tensor.dim() > 1 and tensor.numel() > 0 and bool(min(tensor.shape[-2:]) >= FEWEST_BEGUN)


def _begin_alike(inputs: Mapping[str, Tensor]) -> None:
    """Let the first half of every second row be that of the row before it."""
    from kernelproof.results import bits_of

    for tensor in filter(begins_alike, inputs.values()):
        bits = bits_of(tensor)[..., : tensor.shape[-1] // 2]
        seconds = bits[..., 1::2, :]
        seconds.copy_(bits[..., ::2, :].narrow(-2, 0, seconds.shape[-2]))


def _make_alike(inputs: Mapping[str, Tensor], generator: Generator) -> None:
    """Make every second row like the one before it but for one value, then what rows make up, a head, a batch."""
    import torch

    from kernelproof.results import bits_of

    for tensor in inputs.values():
        bits = bits_of(tensor) if tensor.numel() else tensor
        for axis in reversed(range(bits.dim() - 1)):
            if bits.shape[axis] < FEWEST_ALIKE:
                continue
            firsts, seconds = (bits[(slice(None),) * axis + (slice(start, None, 2),)] for start in (0, 1))
            firsts = firsts.narrow(axis, 0, seconds.shape[axis])
            each = math.prod(seconds.shape[: axis + 1])
            kept = torch.zeros(each, seconds.numel() // each, dtype=torch.bool)
            kept[torch.arange(each), torch.randint(kept.shape[1], (each,), generator=generator)] = True
            seconds.copy_(torch.where(kept.reshape(seconds.shape), seconds, firsts))


def _scale(tensor: Tensor, generator: Generator, factors: Sequence[float]) -> None:
    """Multiply every second number, as a coin says, by one of these powers of 2.

    Nothing leaves the range of the tensor's own values, outside which an operator may have no meaning, nor loses bits.
    """
    import torch

    if not tensor.is_floating_point():
        return
    before = tensor.double()
    numbers = before[before.isfinite()]
    if not numbers.numel():
        return
    which = torch.randint(2 * len(factors), before.shape, generator=generator)
    after = before
    for number, factor in enumerate(factors):
        scaled = before * factor
        inside = (
            (scaled >= numbers.min()) & (scaled <= numbers.max()) & (scaled.abs() >= torch.finfo(tensor.dtype).tiny)
        )
        after = torch.where((which == number) & inside, scaled, after)
    tensor.copy_(after.to(tensor.dtype))


def _generator(draw: random.Random) -> Generator:
    import torch

    return torch.Generator().manual_seed(draw.randrange(1 << 62))


def replace_low_bits(inputs: Mapping[str, Tensor], seed: int) -> None:
    """Draw anew the low half of the mantissa of each floating-point element of these, those of 8 bits left out.

    Signs and exponents stay. So does what has no low bits: a zero, a small whole number, an infinity.
    """
    import torch

    from kernelproof.results import bits_of

    generator = torch.Generator().manual_seed(seed)
    for tensor in inputs.values():
        if tensor.is_floating_point() and (digits := _digits(tensor)):
            end = 1 << digits
            bits = bits_of(tensor)
            high = bits & -end
            drawn = torch.randint(end, bits.shape, generator=generator, dtype=bits.dtype)
            bits.copy_(torch.where(bits == high, bits, high | drawn))
