"""Why a result is wrong: likely causes, of what is seen in all that is wrong and in nothing that is right.

None of them decides a verdict. The operator's own `suspects`, faults of its kind, come first: each is asked what it
would give.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Protocol, TypeAlias

import torch

from kernelproof.findings import (
    SEVERAL,
    Findings,
    more_than_chance,
    name_of,
    plural_of,
    same_bits,
    times_as_much,
    told_apart,
)
from kernelproof.images import Returned
from kernelproof.operators import Call, Suspect
from kernelproof.processes import FILL, NAN_FILL
from kernelproof.records import A_FEW, BIAS, BOUND, EXACT, OF_EARLIER, RMS, SAME_AS_EARLIER, CaseResult

MOSTLY = 0.9  # of the wrong elements, for one cause to be it

# Results of which an RMS says how precise they are as a whole.
FEWEST_ON_AVERAGE = 32

# Of two known faults whose results are as near as that to what was handed over, none is told from the other.
AS_NEAR = 1 + 1e-6

ADDED = "results are added to what the memory held before the call: it is not cleared first"

Earlier: TypeAlias = Mapping[str, tuple[Call, Mapping[str, Returned]]]  # see judge_all


class Knowing(Protocol):
    """Who knows of faults: an operator."""

    def suspects(self, call: Call, rows: torch.Tensor) -> Iterator[Suspect]:
        """See kernelproof.operators.Operator."""
        ...


def explain(found: Findings, result: CaseResult, operator: Knowing | None, earlier: Earlier) -> None:
    """Append the likely cause to the first numerical failure, if one fits."""
    doubtful = None
    cause = _remembered(found, earlier)
    try:
        cause, doubtful = (cause, None) if cause else _suspect(found, operator)
    except Exception as error:  # an operator's code that only explains: the verdict stands without it
        cause = f"unknown, for the operator's `suspects` failed ({type(error).__name__}: {error})"
    if cause is None and found.added:
        cause = ADDED
    cause = cause or never_written(found, found.comparable & ~found.inside)
    cause = cause or _whole_number(found) or _constant(found) or _clamped(found) or _factor(found)
    cause = cause or _truncated(found) or _stored(found)
    cause = cause or doubtful or _few(found, result) or _one_a_row(found) or _precision(found, result)
    if cause is None:
        return
    numeric = next(f for f in result.failures if f.criterion in (BOUND, EXACT, RMS, BIAS))
    numeric.message += f". Likely cause: {cause}"


def never_written(found: Findings, bad: torch.Tensor) -> str | None:
    """Wrong elements of a result in the candidate's own memory that hold what all fresh memory is full of.

    Of one byte that is a number like any other, and the largest int8.
    """
    if found.raw.element_size() == 1:
        return None
    size, device = found.raw.element_size(), found.raw.device
    for byte in (FILL, NAN_FILL) if found.dtype.is_floating_point else (FILL,):  # of whole numbers, -1 says much else
        filled = torch.full((size,), byte, dtype=torch.uint8, device=device).view(found.dtype)
        fresh = same_bits(found.raw, filled.expand(found.raw.shape)) & bad
        if bool(fresh.any()) and more_than_chance(fresh, bad, bits=8 * size):
            return (
                f"{int(fresh.sum())} of these hold what fresh memory is full of here (the bytes 0x{byte:x}): they are "
                "never written, or what is added up in them is not cleared before"
            )
    return None


def _remembered(found: Findings, earlier: Earlier) -> str | None:
    """Wrong elements that are, bit for bit, what an earlier call gave there, which was right for that one's inputs.

    Of zeros, and of a few whole numbers, that may be chance; and of the same inputs it is an option or a scalar that
    the kernel does not go by.
    """
    bad = found.comparable & ~found.inside
    count = int(bad.sum())
    fewest = min(count, SEVERAL) if found.dtype.is_floating_point else SEVERAL
    for name, (call, outputs) in earlier.items() if count else ():
        returned = outputs.get(found.call.outputs[0])
        if returned is None or returned.output.shape != found.raw.shape or returned.output.dtype != found.dtype:
            continue
        kept = same_bits(found.raw, returned.output.to(found.raw.device)) & bad
        values = found.output[kept].unique()
        if int(kept.sum()) >= MOSTLY * count and int((values != 0).sum()) >= fewest and _unlike(call, found.call):
            return (
                f"{found.share(int(kept.sum()))} {SAME_AS_EARLIER} {name} gave there, for other inputs: a "
                "result that is remembered, by an address or by a part of the inputs, or memory that holds it still "
                "and is never written"
            )
    return None


def _unlike(one: Call, other: Call) -> bool:
    """Whether some input of two calls differs."""
    pairs = [(tensor, other.inputs.get(name)) for name, tensor in one.inputs.items()]
    return any(b is None or a.shape != b.shape or not bool(same_bits(a, b).all()) for a, b in pairs)


def _suspect(found: Findings, operator: Knowing | None) -> tuple[str | None, str | None]:
    """The known fault that gives the very rows that are wrong; of several, the one that comes nearest, or all that do.

    One that would change rows that are right cannot be all there is to it: it comes second, and that is said.
    """
    bad = found.comparable & ~found.inside
    if operator is None or not bool(bad.any()):
        return None, None
    rows = _some_rows(bad.any(-1), 24)
    index = tuple(rows.unbind(1))
    got, expected = found.output.cpu()[index], found.expected.cpu()[index]
    finite = torch.isfinite(got)
    # The bound plus its own size relative to the value: a fault's result differs from O, and so does its rounding.
    unit = max(found.unit, 2.0**-20)
    slack = 2 * found.reference.bound.cpu()[index].nan_to_num(posinf=0.0)[finite]
    errors = (got - expected)[finite].abs()
    apart = errors.max()
    fitting: list[tuple[float, str, torch.Tensor]] = []
    for suspect in operator.suspects(found.call, rows) or ():
        would = suspect.output()
        if not torch.equal(torch.isfinite(would.to(found.dtype)), finite):
            continue
        if bool(got[finite].any()) and not bool(would[finite].any()):
            continue  # next to nothing is not nothing
        off = (got - would)[finite].abs()
        # Where the error is hardly more than the bound, the slack is no evidence: it must explain most of it.
        fits = bool((off <= slack + 4 * unit * would[finite].abs() + 1e-3 * errors).all()) and off.max() <= apart / 5
        if fits:
            fitting.append((float(off.square().sum()), suspect.cause, would[finite]))
    if not fitting:
        return None, None
    nearest = min(rest for rest, *_ in fitting) * AS_NEAR
    causes = {cause: would for rest, cause, would in fitting if rest <= nearest}
    right = _some_rows(found.inside.all(-1), 8)
    if not len(right):
        return ", or ".join(_told_once(causes)), None
    index = tuple(right.unbind(1))
    expected, slack = found.expected.cpu()[index], 2 * found.reference.bound.cpu()[index]
    agreeing = dict[str, torch.Tensor]()
    for suspect in operator.suspects(found.call, right) or ():
        if suspect.cause in causes:
            off = (suspect.output() - expected).abs()
            if bool((off <= slack + 4 * unit * expected.abs()).all()):
                agreeing[suspect.cause] = causes[suspect.cause]
    if agreeing:
        return ", or ".join(_told_once(agreeing)), None
    # Of another call's input one number everywhere, zeros behind an end say, fits by chance.
    causes = {cause: would for cause, would in causes.items() if OF_EARLIER not in cause or len(would.unique()) > 1}
    if not causes:
        return None, None
    but = "that fits the rows that are wrong; others are right, which it would make wrong too"
    return None, f"{', or '.join(_told_once(causes))} ({but})"


def _told_once(causes: Mapping[str, torch.Tensor]) -> list[str]:
    """Causes, each with what it would have given: the first three.

    One fault with two sizes that come to the same is one: `tiles of 16 or 32 keys`.
    """
    told: list[tuple[list[str], torch.Tensor]] = []
    for cause, would in causes.items():
        words = re.split(r"(\d+)", cause)  # every second is a number
        for before, other in told:
            unlike = [place for place, (one, two) in enumerate(zip(before, words, strict=False)) if one != two]
            sizes_alone = len(before) == len(words) and len(unlike) == 1 and unlike[0] % 2 == 1
            if sizes_alone and float((would - other).norm()) <= 1e-9 * float(other.norm()):
                before[unlike[0]] += f" or {words[unlike[0]]}"
                break
        else:
            told.append((words, would))
    return ["".join(words) for words, _ in told[:3]]


def _some_rows(mask: torch.Tensor, most: int) -> torch.Tensor:
    """Some of the rows where a mask is true, evenly spread: their indices."""
    rows = mask.nonzero()
    return rows[torch.linspace(0, len(rows) - 1, min(most, len(rows))).long().unique().to(rows.device)].cpu()


def _whole_number(found: Findings) -> str | None:
    """Whole numbers of which only the low bits are right, and indices that count from elsewhere."""
    bad = found.comparable & ~found.inside
    if found.dtype.is_floating_point or not bool(bad.any()):
        return None
    got, wanted = found.raw[bad].long(), found.expected[bad].round().long()
    for bits in (32, 16, 8):
        if bits >= 8 * found.raw.element_size() or bool(((got - wanted) % 2**bits).any()):
            continue
        least, most = int(got.min()), int(got.max())
        signed = least < 0
        if -signed * 2 ** (bits - 1) <= least and most < 2 ** (bits - signed):
            sign = "with" if signed else "without"
            return f"what is wrong is off by multiples of 2^{bits}: it is kept in {bits} bits {sign} a sign, and wraps"
        poison = found.returned.poison
        if poison is not None and bool((poison.to(bad.device)[bad].long() >> bits == got >> bits).all()):
            return f"only the low {bits} bits of an element are written, and the rest is what was in memory before"
    place = torch.arange(bad.numel(), device=bad.device)
    for name, tensor in found.call.inputs.items():
        size = tensor.shape[-1] if tensor.dim() > 1 else 0
        if size and found.whole and len(place) >= SEVERAL and bool((found.error.flatten() == size * place).all()):
            return f"every element is off by {size} times its place: an index into all of {name} and not into its row"
    return None


def _constant(found: Findings) -> str | None:
    """The same value everywhere; the same amount added everywhere, or everywhere in a head."""
    if not found.whole:
        return None
    if found.expected.numel() > 1 and bool((found.expected == found.expected.flatten()[0]).all()):
        return None  # of one right result every fault is the same everywhere
    least, most = map(float, found.output.aminmax())
    if least == most and found.output.numel() > 1:
        near = (found.expected - most).abs() <= found.expected.abs() / 1000
        if float(near.double().mean()) <= 0.9:  # else it is right nearly everywhere
            return f"every element is {most:.6g}" + _end_of_range(most, found.dtype)
    error = found.error
    hint = "a zero point that encoder and decoder do not share gives this, or a correction for it that is missing"
    if not any(tensor.dtype.itemsize == 1 for tensor in found.call.inputs.values()):
        hint = "a term that is missing or there twice (of inputs that were codes, a zero point)"
    mean, slack = float(error.mean()), found.reference.bound + found.unit * found.output.abs()
    share = 1 / 10 if found.dtype.is_floating_point else 0.0
    if error.numel() >= SEVERAL and abs(mean) > 0 and bool(_alike(error.flatten(), slack.flatten(), share)):
        largest = float(found.expected.abs().max())
        return (
            f"{mean:+.4g} is added to every element ({mean / largest:+.3g} of the largest): {hint}" if largest else None
        )
    if (
        error.dim() > 2
        and error.flatten(2).shape[-1] >= SEVERAL
        and bool(_alike(error.flatten(2), slack.flatten(2), share).all())
    ):
        first = float(error[0, 0].mean())
        return f"a constant of its own is added in each {found.axes[1]} ({first:+.4g} in the first): {hint}"
    return None


def _alike(error: torch.Tensor, slack: torch.Tensor, share: float) -> torch.Tensor:
    """Whether nearly all errors along the last dimension are one number, but for a `share` of it and for `slack`.

    Of whole numbers, which are not rounded to relative precision, the share is 0, and the mean lies beside them by 1/2.
    """
    mean = error.mean(-1, keepdim=True)
    room = mean.abs() * share + 2 * slack if share else 1 / 2 + 2 * slack
    near = (error - mean).abs() <= torch.minimum(room, mean.abs() / 2)
    return (near.double().mean(-1) > 0.95) & (mean[..., 0].abs() > 3 * (error - mean).square().mean(-1).sqrt())


def _end_of_range(value: float, kind: torch.dtype) -> str:
    if value == 0:
        return ": nothing is accumulated or stored"
    range_of = torch.finfo(kind) if kind.is_floating_point else torch.iinfo(kind)
    ends = (float(range_of.min), float(range_of.max))
    return f", the end of {name_of(kind)}'s range: it is clamped there" if value in ends else ""


def _clamped(found: Findings) -> str | None:
    """What lies beyond a limit holds the limit, and nothing that is right lies beyond it."""
    bad, slack = found.comparable & ~found.inside, found.reference.bound
    if int(bad.sum()) < SEVERAL:
        return None
    got, wanted = found.output[bad], found.expected[bad]
    right = found.comparable & found.inside
    sides, several = [], False  # several: one wrong value for one right one is no limit
    for limit, way, name in ((float(got.max()), 1, "above"), (float(got.min()), -1, "below")):
        beyond = way * (wanted - limit) > 0
        if not bool(beyond.any()):
            continue
        if bool((got[beyond] != limit).any()) or bool((right & (way * (found.expected - limit) > slack)).any()):
            return None
        several |= bool((wanted[beyond] != wanted[beyond][0]).any())
        sides.append((beyond, f"{name} {limit:.6g}"))
    if not several or not bool(torch.stack([beyond for beyond, _ in sides]).any(0).all()):
        return None
    return f"what should be {' or '.join(words for _, words in sides)} is clamped there"


def _factor(found: Findings) -> str | None:
    """The right result times a constant: in every element, as far as rounding lets it be seen."""
    expected, output = map(found.usable, (found.expected, found.output))
    square = float(expected.square().sum())
    if square == 0 or int((expected != 0).sum()) < SEVERAL:
        return None
    factor = float((output * expected).sum()) / square
    rest = output - factor * expected
    total = float((output - expected).square().sum())
    # What is left must be small beside the output: noise has next to nothing of the expected values in it. And it must
    # be so everywhere: a softmax over the wrong dimension is half of the right one, but for a few elements.
    right = min(total, factor * factor * square)
    within = found.usable(found.reference.bound) * max(1.0, abs(factor)) + found.unit * output.abs()
    if float(rest.square().sum()) >= right / 25 or bool((rest.abs() > 2 * within).any()):
        return None
    if abs(factor - 1) <= found.unit:
        return None
    if (count := int((expected != 0).sum())) < expected.numel() / 4:
        return f"each of the {count} elements that are not 0 is {times_as_much(factor)} what it should be"
    return f"every element is {times_as_much(factor)} what it should be: a wrong scale"


def _truncated(found: Findings) -> str | None:
    """Results cut off instead of rounded: half a unit in the last place towards zero on average, never a whole one."""
    of_floats = torch.finfo(found.dtype) if found.dtype.is_floating_point else None
    use = found.comparable & (found.expected.abs() > (of_floats.tiny if of_floats else 0.0))
    expected = found.expected[use]
    place = torch.exp2(torch.floor(torch.log2(expected.abs()))) * of_floats.eps if of_floats else 1.0
    cut = (expected.to(found.dtype).double() - expected).abs() > place / 64  # a number of the type stays as it is
    if not bool(cut.any()):
        return None
    towards = (found.error[use] * expected.sign() / place)[cut]
    most = towards[(towards > -1.5) & (towards < 0.5)]  # all, but where numbers cancel
    mean = float(most.mean())
    if -0.6 < mean < -0.4 and len(most) >= 0.99 * len(towards):
        return (
            f"results are truncated to {name_of(found.dtype)}, not rounded "
            f"(on average {-mean:.2f} of a last place towards zero)"
        )
    return None


def _stored(found: Findings) -> str | None:
    """Results that are numbers of a coarser type, and as far off as rounding to it makes them."""
    right = found.expected.to(found.dtype)
    for kind, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16 or TF32")):
        eps = torch.finfo(kind).eps
        if not found.dtype.is_floating_point or eps <= torch.finfo(found.dtype).eps:
            continue
        ours, by_chance = (float((t == t.to(kind).to(t.dtype)).double().mean()) for t in (found.raw, right))
        near = found.magnitude <= eps * found.expected.abs() + found.reference.bound
        if ours > 0.99 > 2 * by_chance and float(near.double().mean()) > 0.99:
            return f"results are numbers of {name}: they are rounded to it before they are stored"
    return None


def _few(found: Findings, result: CaseResult) -> str | None:
    """Few elements are wrong, or the last ones of an axis, and all others are as right as they must be."""
    bad = found.comparable & ~found.inside
    right = found.usable(found.error)[~bad]
    if not found.whole or len(right) in (0, bad.numel()):
        return None
    if not _as_precise(right, result):
        return None
    last, tail = [], bad
    for axis, (name, size) in enumerate(zip(found.axes, bad.shape, strict=True)):
        places = bad.movedim(axis, 0).flatten(1).any(1) if bad.dim() > 1 else bad
        first = int(places.nonzero()[0])
        if first > size / 2 and bool(places[first:].all()):
            last.append(f"{size - first} {plural_of(name)}" if first < size - 1 else name)
            tail = tail.narrow(axis, first, size - first)
    if last and float(tail.double().mean()) > 3 / 4:
        where = " and the last ".join(last)
        cause = "a tail, a bound that is wrong, or something that only these take in"
        return f"all others are right, and these are in the last {where}: {cause}"
    if len(right) > 0.99 * bad.numel() and (result.rms_ratio or 0) > 1:
        return A_FEW
    return None


def _one_a_row(found: Findings) -> str | None:
    """One number a row is off: each row by a factor of its own, or by a pattern that all rows share."""
    if found.error.dim() < 2 or found.error.shape[-1] < SEVERAL:
        return None
    rows = (found.usable(v).flatten(0, -2) for v in (found.error, found.expected, found.reference.bound))
    error, expected, bound = rows
    rounding = expected.to(found.dtype).double() - expected
    if bool((bound > 0).all() & torch.isfinite(bound).all()):
        factors, rest = _times_rows(error / bound, expected / bound, rounding / bound)
        if rest is not None and float(rest.abs().max()) <= 1:
            least, most = (float(1 + factor) for factor in factors.aminmax())
            if most - least <= abs(most + least - 2) / 200:
                return f"every element is about {times_as_much((least + most) / 2)} what it should be: a wrong scale"
            if head := _one_a_head(found):
                return head
            span = "from {} to {}".format(*told_apart(least, most))
            return (
                f"rows are off by a factor of their own, {span}, and all of a row by the same: "
                "what is computed once a row is wrong or too coarse (a sum, a maximum, a reciprocal)"
            )
    worst = int(error.square().sum(-1).argmax())
    others = torch.arange(len(error), device=error.device) != worst  # that has its own pattern in any case
    if _times_rows(expected[others], expected[worst], rounding[others])[1] is not None:
        return None  # the right result has one pattern itself
    sizes, rest = _times_rows(error[others], error[worst], rounding[others])
    if rest is not None and bool(((sizes - 1).abs() > 1 / 4).any()):
        return (
            "the errors of wrong rows have one pattern, of another size in each: one number a row is off "
            "(a mean, a sum, a maximum), or one term of every sum"
        )
    return None


def _one_a_head(found: Findings) -> str | None:
    """Rows that are off by a factor which is the same in all rows of a head (of what is before the last two axes)."""
    if found.error.dim() < 3:
        return None
    every = (found.usable(v) for v in (found.error, found.expected, found.expected.to(found.dtype).double()))
    error, expected, rounded = ((v / found.reference.bound).flatten(0, -3).flatten(1) for v in every)
    factors, rest = _times_rows(error, expected, rounded - expected)
    if rest is None or float(rest.abs().max()) > 1:
        return None
    least, most = (float(1 + factor) for factor in factors.aminmax())
    name = found.axes[-3]
    span = "from {} to {}".format(*told_apart(least, most))
    return f"each {name} is off by a factor of its own, {span}: its scale is wrong, or another {name}'s"


def _times_rows(
    error: torch.Tensor, pattern: torch.Tensor, rounding: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """By how much of a pattern each row is off, and what that leaves: None if more than rounding does.

    The pattern must be seen in several columns: one dominant element is a multiple of anything.
    """
    times = ((error * pattern).sum(-1) / (pattern * pattern).sum(-1)).nan_to_num(posinf=0.0, neginf=0.0)
    explained = times[:, None] * pattern
    rest, squares = error - explained, explained.square()
    wide = float(squares.sum(-1).square().sum()) > 4 * float(squares.square().sum())
    total, left = float(error.square().sum()), float(rest.square().sum())
    return times, rest if wide and left < min(total / 2, total / 25 + 1.5 * float(rounding.square().sum())) else None


def _precision(found: Findings, result: CaseResult) -> str | None:
    """Too noisy for the declared precision, but right on average: the noise of a coarser type."""
    if result.rms_ratio is None or result.rms_ratio <= 1 or (result.bias_ratio or 0) > 1:
        return None
    if int(found.comparable.sum()) < FEWEST_ON_AVERAGE:
        return None
    if (result.max_bound_ratio or 0) > 100 or _in_some_rows(found, result):
        return None
    if found.dtype in (torch.float16, torch.bfloat16) and result.rms_ratio < 3 / 2:
        return (
            "a step is rounded to the output's type that is not declared to be (P, where `p` is finer; scores; sums), "
            "or the sum is rounded twice"
        )
    if found.dtype == torch.bfloat16:
        return "an intermediate is kept in less than bfloat16, or large numbers cancel in a sum"
    if found.dtype == torch.float32 and result.rms_ratio < 3:
        return "a function is approximated (a short series for exp, a rough reciprocal), or a small term is left out"
    return (
        "an intermediate is kept in a coarser type than declared (bfloat16 where float16 is, TF32 products), or a "
        "function is approximated (a short series for exp or tanh), or a small term is left out"
    )


def _in_some_rows(found: Findings, result: CaseResult) -> bool:
    """Whether few rows or elements hold what is wrong, and the others are as precise as declared: a coarser type is
    in all.
    """
    bad = found.comparable & ~found.inside
    few = int(bad.sum()) < int(found.comparable.sum()) / 4
    if few and _as_precise(found.error[found.comparable & found.inside], result):
        return True
    if bad.dim() < 2:
        return False
    wrong = bad.flatten(0, -2).any(-1)
    others = found.usable(found.error).flatten(0, -2)[~wrong]
    return float(wrong.double().mean()) < 1 / 4 and _as_precise(others, result)


def _as_precise(errors: torch.Tensor, result: CaseResult) -> bool:
    """Whether the RMS of some of the errors is within the limit that all of them are held to, where they are."""
    if not (result.rms_error and result.rms_ratio):
        return True
    return float(errors.square().mean().sqrt()) <= result.rms_error / result.rms_ratio
