"""Inputs that change from call to call in the memory where they lie, for calls on values that none has seen before."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernelproof import loading
from kernelproof.arguments import ArgumentSets, case_fresh, clone
from kernelproof.results import bits_of

if TYPE_CHECKING:
    from torch import Tensor

TOUCHED_CALLS_US = 1000.0  # a replay of calls whose values are new
MOVED_CALLS = 3  # of them in a row, at least, before one whose result is handed over
TOSSES = 64  # coins tossed for a tensor whose values are drawn anew, at least, where it has as many
# From call to call the bits of what is touched grow by so much, by their bytes: enough for a result to show it.
TOUCH_STRIDES = {2: 1, 4: 1 << 12, 8: 1 << 41}
BYTE_SHIFT, LARGE_BYTE = (
    3,
    0x60,
)  # of a float of a byte: its count's bits that do not show; from there on it may overflow


class Touch:
    """A row of each input of the first set, as the case's `moved` says, which takes new values from call to call.

    Finite numbers stay finite: no kernel has to take what no case holds. To move by 0 costs the same and changes
    nothing. Values are drawn by a generator that no contender has: who sets torch's own back gets the same again.
    """

    def __init__(self, sets: ArgumentSets) -> None:
        self.sets = sets
        self.rows: list[_TouchedRow] = []
        generator = _own_generator()
        self.keeps_own = False  # values are the case's, to move by 0 from: what a call costs may depend on them
        self.left = 0  # steps until values start elsewhere
        self.chunk = 1
        for name, place in sets.case["moved"].items():
            row = sets.arguments[0][sets.names.index(name)][tuple(place)]
            other = loading.load_image(case_fresh(sets.case)[name], sets.device, with_torch=True).view[tuple(place)]
            self.rows.append(_TouchedRow(row, other, generator))

    def begin(self) -> None:
        """Put values in place that were not there before, numbers of about one half; or the case's own again."""
        for row in self.rows:
            row.begin(own=self.keeps_own)

    def take(self, steps: int) -> None:
        """Steps are made so many at a time from now on."""
        self.chunk, self.left = steps, 0

    def step(self, by: int) -> int:
        """The values of the next call, which is on the set with this index."""
        if self.left == 0:
            for row in self.rows:
                row.start(by)
            self.left = self.chunk
        self.left -= 1
        for row in self.rows:
            row.step(by)
        return 0

    def before(self, calls: int) -> None:
        """Put values in place that so many steps by 1 make the case's own, with these rows of its `fresh`."""
        own = self.sets.case["arguments"]
        self.sets.refresh({name: own[name] for name in case_fresh(self.sets.case)}, [0])
        self.take(calls)
        for row in self.rows:
            row.before(calls)

    def all_but(self, share: float) -> None:
        """Put the values of `finish` in place, but for some of one row that follow each other, one at least.

        These are the case's own: `share` of any of the rows, from any of its elements on.
        """
        self.finish()
        self.rows[_any_of(len(self.rows), self.rows[0].generator)].all_but(share)

    def writes(self) -> list[Callable[[], object]]:
        """What `finish` does, in parts that take as little time as can be: one for each row."""
        return [functools.partial(row.bits.copy_, row.last) for row in self.rows]

    def finish(self) -> None:
        """Put the values in place to which the steps after `before` lead."""
        for write in self.writes():
            write()


class _TouchedRow:
    """A row as whole numbers: bits that grow, or shrink, by a stride from call to call.

    A float's could grow until they mean infinity. So they start elsewhere from time to time: where the lower bits of a
    count change those of a number about one half, the lowest three of the exponent among them. Floats of one byte have
    too few bits for a stride and start elsewhere in each call. Whole numbers of one byte may be indices or classes, so
    they take the values that the row has or will have, each of them the one before it.
    """

    def __init__(self, row: Tensor, other: Tensor, generator: Any) -> None:
        import torch

        self.row, self.bits, self.last, self.generator = row, bits_of(row), bits_of(other), generator
        self.own = self.bits.clone()
        self.turns = not row.is_floating_point()  # numbers of a byte: others are not moved
        self.stride = TOUCH_STRIDES.get(row.element_size(), 0)
        self.delta, self.base, self.count, self.work = (torch.zeros_like(self.last) for _ in range(4))
        self.mask = torch.full_like(self.last, 0 if self.turns else _free_bits(row.dtype))
        odd = 2 * torch.randint(0, 64, self.last.shape, generator=generator) + 1
        self.pace = odd.to(self.last.dtype).to(self.last.device)
        self.ring = torch.cat([self.own.flatten(), self.last.flatten()])

    def begin(self, *, own: bool = False) -> None:
        import torch

        if self.turns:
            ring = torch.cat([self.own.flatten(), self.last.flatten()])
            order = torch.randperm(len(ring), generator=self.generator).to(ring.device)
            self.turn(ring if own else ring[order], 0)
            return
        start = torch.empty(self.row.shape).uniform_(0.5, 1.0, generator=self.generator)
        self.base.copy_(self.own if own else bits_of(start.to(self.row.dtype)))
        self.delta.fill_(self.stride)
        self.count.zero_()
        self.mask.fill_(_free_bits(self.row.dtype))
        self.bits.copy_(self.base)

    def start(self, by: int) -> None:
        if self.stride and not self.turns:
            self._start_elsewhere(by)

    def turn(self, ring: Tensor, by: int) -> None:
        """Take the values of a ring, turned by so many."""
        self.ring.copy_(ring.roll(by))
        self.bits.copy_(self.ring[: self.bits.numel()].reshape(self.bits.shape))

    def step(self, by: int) -> None:
        if self.turns:
            self.turn(self.ring, by)
        elif self.stride:
            self.bits.add_(self.delta, alpha=by)
        else:
            self._start_elsewhere(by)

    def _start_elsewhere(self, by: int) -> None:
        import torch

        self.count.add_(self.pace, alpha=by)
        torch.bitwise_right_shift(self.count, 0 if self.stride else BYTE_SHIFT, out=self.work)
        self.work.bitwise_and_(self.mask)
        torch.bitwise_xor(self.base, self.work, out=self.bits)

    def all_but(self, share: float) -> None:
        import torch

        count = self.last.numel()
        first = _any_of(count, self.generator)
        places = (torch.arange(count, device=self.last.device) - first) % max(1, count)
        kept = (places < max(1, round(share * count))).reshape(self.last.shape)
        self.bits.copy_(torch.where(kept, self.own, self.last))

    def before(self, calls: int) -> None:
        """The start from which so many steps lead to the last values: from below, or from above what is too small."""
        import torch

        if self.turns:
            self.turn(torch.cat([self.last.flatten(), self.own.flatten()]), -calls)
            return
        size = self.last & (1 << (8 * self.last.element_size() - 1)) - 1  # without its sign
        if self.stride:
            self.delta.copy_(torch.where(size >= calls * self.stride, self.stride, -self.stride))
            self.base.copy_(self.last - calls * self.delta)
            self.count.copy_(-self.pace)  # the first step starts right there
        else:
            self.base.copy_(self.last)
            self.mask.copy_(torch.where(size >= LARGE_BYTE, 0, _free_bits(self.row.dtype)))
            self.count.copy_(-calls * self.pace.long() % 256)


def _any_of(count: int, generator: Any) -> int:
    """A number from 0 to below `count`."""
    import torch

    return int(torch.randint(max(1, count), (), generator=generator))


def _own_generator() -> Any:
    """A generator of random numbers on the CPU with a seed that nobody knows."""
    import torch

    return torch.Generator().manual_seed(int.from_bytes(os.urandom(7)))


def _free_bits(dtype: Any) -> int:
    """The bits of a number about one half that may be anything: it stays finite, and of about its size."""
    import torch

    kind = torch.finfo(dtype)
    mantissa = round(-math.log2(kind.eps))
    free: int = mantissa + min(3, kind.bits - 1 - mantissa - 2)
    return (1 << free) - 1


class Draw:
    """Every row of the inputs that the case's `drawn` names, new for each call, in each set in turn.

    An element becomes its own or the one before it in the case's tensor, as a row of coins says that is tossed for each
    call: the values are as large as before. To step by 0 tosses as well, and changes nothing.
    """

    def __init__(self, sets: ArgumentSets) -> None:
        import torch

        self.sets = sets
        # A graph draws with the generator that its capture registers, which calls that are replayed cannot set back.
        self.generator = _own_generator() if sets.device == "cpu" else None
        self.turn = itertools.cycle(range(len(sets)))
        self.left = 0  # steps to the values of the case's `fresh`,
        self.last: dict[int, Tensor] = {}  # which lie ready, since a capture takes nothing from the host
        self.tensors: list[tuple[int, Tensor, Tensor, Tensor, Tensor]] = []  # place; both; coins; those of no change
        for place in map(sets.names.index, sets.case["drawn"]):
            own, shape = bits_of(clone(sets.arguments[0][place])), list[int]()
            while len(shape) < own.dim() and math.prod(shape) < TOSSES:
                shape.insert(0, own.shape[-1 - len(shape)])
            coins, kept = (torch.zeros(shape, dtype=torch.bool, device=sets.device) for _ in range(2))
            self.tensors.append((place, own, own.roll(1), coins, kept))

    def take(self, steps: int) -> None:
        """Steps are alike, however many are made at a time."""

    def begin(self) -> None:
        """Other values for steps by 0 too."""
        for *_, kept in self.tensors:
            kept.bernoulli_(0.5, generator=self.generator)

    def step(self, by: int) -> int:
        """The values of the next call, which is on the set with this index."""
        import torch

        index = next(self.turn)
        for place, own, other, coins, kept in self.tensors:
            coins.bernoulli_(0.5, generator=self.generator)
            torch.where(coins if by else kept, own, other, out=bits_of(self.sets.arguments[index][place]))
        self.left -= 1
        if self.left == 0:
            for place, values in self.last.items():
                self.sets.arguments[index][place].copy_(values)
        return index

    def before(self, calls: int) -> None:
        """So many steps from now the values are those of the case's `fresh`."""
        self.left, sets = calls, self.sets
        self.last = {
            sets.names.index(name): loading.load_image(image, sets.device, with_torch=True).view
            for name, image in case_fresh(sets.case).items()
        }
