"""A call's output beside its reference: what can be compared, what is wrong, and how places and figures are put."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import torch

from kernelproof.errors import TestError
from kernelproof.images import Returned
from kernelproof.operators import Call, Reference
from kernelproof.results import bits_of

# Wrong elements that equal what their memory held before are unwritten where chance makes so many this rarely: a kernel
# that writes 32768 wrong float16 values makes one in two cases, and has covered its tiles all the same. A test has some
# 150 cases; one float16 element that is wrong and holds it is so by chance in 1.5e-5.
BY_CHANCE = 2e-5

# A cause that is said of every element, or of a row, is seen in so many at least: fewer are alike by chance.
SEVERAL = 8

LONGEST_READ = 1 << 20  # an axis in which a period is looked for, element by element


def told_apart(one: float, other: float, digits: int = 6) -> tuple[str, str]:
    """Both with so many digits, or as many more as tell them apart."""
    for figures in (digits, 6, 9, 17):
        shown = f"{one:.{figures}g}", f"{other:.{figures}g}"
        if shown[0] != shown[1]:
            break
    return shown


def times_as_much(factor: float, digits: int = 6) -> str:
    """A factor that is not 1, with as many digits as show that."""
    return f"{told_apart(factor, 1.0, digits)[0]} times"


class Findings:
    """The output beside its reference, and which elements can be compared at all."""

    def __init__(self, call: Call, reference: Reference, returned: Returned) -> None:
        self.call, self.reference, self.returned = call, reference, returned
        expected = reference.output
        if returned.output.shape != expected.shape:
            raise TestError(
                f"output and bound of the Reference have shape {list(expected.shape)}, and the call's output "
                f"{list(returned.output.shape)}",
                subject="reference",
                hint="`reference` gives a value and a bound for each element of the output that `make_call` makes",
            )
        if not all_finite(expected):
            numbers = {name: tensor for name, tensor in call.inputs.items() if tensor.is_floating_point()}
            if wild := [name for name, tensor in numbers.items() if not all_finite(tensor.double())]:
                raise TestError(
                    f"the reference is not finite, nor is what `make_call` gives as {' and '.join(wild)}",
                    subject="make_call",
                    hint="look for an overflow where the inputs are made, or rounded to the case's data type; where it "
                    "is meant, say Reference(…, nonfinite=True): a kernel has to give the same infinity or NaN there",
                )
            if not bool(expected.isnan().any()):
                count = f"{int(expected.isinf().sum())} of {expected.numel()}"
                raise TestError(
                    f"the reference is infinite in {count} elements although all inputs are finite, and an infinite "
                    "value has no error that could be judged",
                    subject="reference",
                    hint="where that is meant (the log-sum-exp of nothing, say), say Reference(…, nonfinite=True): a "
                    "kernel has to give the same there; 0 with a bound of inf demands nothing there; where none was "
                    "meant, look for an overflow and log(0) in `reference`",
                )
            raise TestError(
                "the reference is not finite although all inputs are",
                subject="reference",
                hint="look for 0/0, inf - inf and an overflow in `reference`; where NaN is meant, say "
                "Reference(…, nonfinite=True)",
            )
        if reference.bound.numel() and not float(reference.bound.min()) >= 0:
            raise TestError(
                "the reference's bound is NaN or negative somewhere, which no error could be held to",
                subject="reference",
                hint="look for 0/0 and inf - inf in the operator's `reference`",
            )
        self.dtype, self.axes = call.output.dtype, call.axes_of(call.outputs[0])
        self.raw = returned.output.to(expected.device)
        self.output = self.raw.double()
        self.expected = expected
        self.error = self.output - expected
        self.magnitude = self.error.abs()
        self.finite = torch.ones(expected.shape, dtype=torch.bool, device=expected.device)
        if not all_finite(self.output):
            self.finite = torch.isfinite(self.output)
        self.inside = self.finite & (self.magnitude <= reference.bound)
        demanded = None if all_finite(reference.bound) else torch.isfinite(reference.bound)
        self.missed = torch.zeros_like(self.finite)  # infinity or NaN that is right here, and was not given
        if reference.limits is not None:
            if not call.output.dtype.is_floating_point:
                raise TestError(
                    f"the reference is not finite, and {name_of(call.output.dtype)} has neither infinity nor NaN",
                    subject="reference",
                    hint="take nonfinite=True away, and state what whole number is right there",
                )
            meant = reference.meant
            self.missed = meant & ~same_limits(self.output, reference.limits)
            self.output, self.error = (values.where(~meant, 0.0) for values in (self.output, self.error))
            self.magnitude, self.finite = self.error.abs(), self.finite | meant
            self.inside = torch.where(meant, ~self.missed, self.inside)
        self.unwritten = torch.zeros_like(self.finite)
        self.added = False
        if returned.poison is not None and not bool(self.inside.all()):
            # Chance makes a few written elements of a 16-bit type equal to their poison, and a few poisons right. The
            # right ones are told by their row, the wrong ones by how many they are among all that is wrong.
            poison = returned.poison.to(expected.device)
            same = same_bits(self.raw, poison)
            wrong = same & ~self.inside
            if bool(wrong.any()) and more_than_chance(wrong, ~self.inside, bits=8 * self.raw.element_size()):
                self.unwritten = same & wrong.any(-1, keepdim=True)
                if demanded is not None:
                    self.unwritten &= demanded | self.missed
            self.added = self._added_to(poison, ~self.inside & self.finite & ~same)
        # A guard against 0/0 where the bound is 0 (exact cases) and the element is right.
        self.ratio = torch.where(self.inside & (self.error == 0), 0.0, self.magnitude / reference.bound)
        self.comparable = self.finite & ~self.unwritten
        if demanded is not None:
            self.comparable &= demanded
        self.whole = bool(self.comparable.all())
        # What a fault would give is rounded too, where the reference of an exact call is not.
        rounding = torch.finfo(self.dtype).eps / 2 if self.dtype.is_floating_point else 0.0
        self.unit = max(reference.unit_roundoff, rounding)

    def _added_to(self, poison: torch.Tensor, wrong: torch.Tensor) -> bool:
        """Whether what is wrong is the right result and what the memory held, or what is large comes near that.

        Near, and not the same: what adds into its output and hands the sum to a function keeps large numbers alone.
        """
        held, eps = poison.double(), torch.finfo(self.dtype).eps if self.dtype.is_floating_point else 0.0
        got = self.output - held if eps else (self.raw - poison).double()  # whole numbers wrap, there and back
        slack = self.reference.bound + 16 * eps * (held.abs() + self.expected.abs())
        told = wrong & torch.isfinite(held) & (held.abs() > 2 * slack)
        fits = told & ((got - self.expected).abs() <= slack)
        large = told & (self.magnitude > 4 * self.expected.abs().max()) & (eps > 0)
        near = large & ((self.output - held).abs() <= held.abs() / 4)
        counts = [int(mask.sum()) for mask in (told, fits, large, near)]
        return counts[1] >= max(1, 3 / 4 * counts[0]) or counts[3] >= max(SEVERAL, 3 / 4 * counts[2])

    def usable(self, values: torch.Tensor) -> torch.Tensor:
        """The same with 0 where the output cannot be compared, or nothing is demanded of it."""
        return values if self.whole else values.where(self.comparable, 0.0)

    def where(self, mask: torch.Tensor) -> str:
        """The place of some elements in words."""
        return describe_indices(mask, self.axes)

    def share(self, count: int) -> str:
        """How many elements: `24 of 96 elements (25 %)`."""
        total = self.error.numel()
        return f"{count} of {total} elements ({100 * count / total:.3g} %)"


def more_than_chance(same: torch.Tensor, among: torch.Tensor, bits: int) -> bool:
    """Whether more elements are the same than random bits make so (by Poisson's law: such events are rare)."""
    count, expected = same.sum().double(), among.sum().double() * 2.0**-bits
    return float(torch.special.gammainc(count, expected)) < BY_CHANCE


def describe_indices(mask: torch.Tensor, axes: Sequence[str]) -> str:
    """Where a mask is true, in words: `query rows 8..31 of each 32-row tile (24 of 32), in all batches and heads`.

    Exact when the places are all combinations of places per axis; otherwise the ranges, and how full they are.
    """
    if bool(mask.all()):
        return "everywhere"
    hit = []
    for axis in range(mask.dim()):
        others = [a for a in range(mask.dim()) if a != axis]
        hit.append(
            (mask.any(others) if others else mask).nonzero()[:, 0].tolist() if others else mask.nonzero()[:, 0].tolist()
        )
    words, whole = [], []
    for name, places, size in zip(axes, hit, mask.shape, strict=True):
        if len(places) == size:
            if size > 1:
                whole.append(plural_of(name))
        else:
            words.append(_places(name, places, size))
    count, product = int(mask.sum()), math.prod(len(places) for places in hit)
    text = ", ".join(words)
    if whole:
        everywhere = " and ".join([", ".join(whole[:-1]), whole[-1]]) if len(whole) > 1 else whole[0]
        text += f", in all {everywhere}" if text else f"all {everywhere}"
    return text if count == product else f"scattered over {text} ({100 * count / product:.3g} % of these)"


def _places(name: str, places: list[int], size: int) -> str:
    """Some indices of one axis, in words."""
    if len(places) == 1:
        return f"{name} {places[0]}"
    plural = plural_of(name)
    run = _range(places)
    if run:
        if places[-1] == size - 1:
            return f"{plural} {run} (the last {len(places)} of {size})"
        return f"{plural} {run}"
    period = _period(places, size)
    if period:
        inside = [p for p in places if p < period]
        each = _range(inside) or ", ".join(map(str, inside[:8])) + ("…" if len(inside) > 8 else "")
        unit = name.split()[-1]
        return f"{plural} {each} of each {period}-{unit} tile ({len(inside)} of {period})"
    if len(places) <= 8:
        return f"{plural} {', '.join(map(str, places))}"
    return f"{len(places)} of {size} {plural} from {places[0]} to {places[-1]}"


def _range(places: list[int]) -> str | None:
    if places[-1] - places[0] + 1 != len(places):
        return None
    return f"{places[0]}..{places[-1]}" if len(places) > 1 else str(places[0])


def _period(places: list[int], size: int) -> int | None:
    """The smallest period with which the places repeat: fitting twice and nothing over, or three times or more.

    A last, incomplete period counts too; two and a part are there by chance where most places are hit, and so are two
    of one place each.

    By the borders of the text that the axis is, in linear time. Source: Knuth, Morris & Pratt, *Fast pattern matching
    in strings*, SIAM J. Comput. 6 (1977).
    """
    if size > LONGEST_READ:
        return None
    present = bytearray(size)
    for place in places:
        present[place] = 1
    borders, border = [0] * size, 0
    for i in range(1, size):
        while border and present[i] != present[border]:
            border = borders[border - 1]
        border += present[i] == present[border]
        borders[i] = border
    while border and size - border < 2:
        border = borders[border - 1]
    period = size - border
    return period if border and (3 * period <= size or (2 * period == size and len(places) > 2)) else None


def plural_of(name: str) -> str:
    """`heads` of an axis `head`."""
    if len(name) < 3 or re.search("[^siu]s$", name):  # a symbol, `rows`
        return name
    if name.endswith("is"):
        return f"{name[:-2]}es"
    if re.search("[^aeiou]y$", name):
        return f"{name[:-1]}ies"
    if re.search("(trix|dex|tex)$", name):  # matrix, index, vertex
        return f"{name[:-2]}ices"
    return name + ("es" if re.search("(s|x|z|ch|sh)$", name) else "s")


def first_place(mask: torch.Tensor) -> list[int]:
    """The indices of the first element of a mask that holds one."""
    return [int(i) for i in mask.nonzero()[0]]


def all_finite(values: torch.Tensor) -> bool:
    """Whether no element is NaN or infinite: in one pass, which makes no mask."""
    return not values.numel() or all(math.isfinite(float(end)) for end in values.aminmax())


def name_of(kind: torch.dtype) -> str:
    """`float16` of torch.float16."""
    return str(kind).removeprefix("torch.")


def same_limits(values: torch.Tensor, limits: torch.Tensor) -> torch.Tensor:
    """Which elements are the same infinity, or NaN of any bits as the other is."""
    return (values == limits) | (values.isnan() & limits.isnan())


def same_bits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Which elements are the same in every bit, NaN too."""
    return bits_of(a.contiguous()) == bits_of(b.contiguous())
