"""Is a result right? Criteria (a), (b), (c) of docs/explanation/correctness.md, and all that may not be done to memory.

With ô the output, O the float64 reference, B its bound per element, u the unit roundoff and rnd() rounding to the
output's type:

(a) bound   |ô − O| ≤ B                                                     every element
(b) rms     RMS(ô − O) ≤ 1.5·max(RMS(rnd(O) − O), u·RMS(O)/4)               lower precision than declared
(c) bias    |⟨ô − rnd(O), O⟩| / ⟨O, O⟩ ≤ u/16 in a case, u/64 over a suite  what is wrong everywhere by a little

Exact cases (d) are references whose bound is that of the storage; relations between two calls (e) are judged by
`related`.

Two allowances were added when the thresholds were calibrated over torch's own backends (benchmarks/calibrate.py; the
margins are in docs/explanation/correctness.md). What float32 accumulation can cause by itself is the floor of (b) and
(c): it decides only for float32 outputs (`operators.accumulation_floors`). And a sum over few independent rows
fluctuates: see `STANDARD_ERRORS` below. Neither lets one of the faults in tests/test_judge.py through.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from kernelproof.causes import ADDED, Earlier, Knowing, explain, never_written
from kernelproof.errors import KernelproofError, TestError
from kernelproof.findings import (
    Findings,
    all_finite,
    describe_indices,
    first_place,
    name_of,
    same_limits,
    times_as_much,
    told_apart,
)
from kernelproof.images import Returned
from kernelproof.operators import SMALLEST_NORMAL, Call, Reference, Relation
from kernelproof.records import (
    BIAS,
    BOUND,
    EXACT,
    GUARD_BANDS,
    INPUTS,
    NONFINITE,
    RELATION,
    RMS,
    UNWRITTEN,
    Case,
    CaseResult,
    Failure,
    Histogram,
)
from kernelproof.results import bits_of

if TYPE_CHECKING:
    from kernelproof.config import Precision, Tolerance

# A bias must also be this many standard errors away from 0, the error being taken from how much the rows of the output
# differ in it: what all rows share reaches √n of them over n rows. Chance reaches 4 in one case of 16,000, and did when
# honest kernels were calibrated; 5 in one of 1.7 million. It decides for few rows (under 25 there is no bias to be
# seen), and where a result of few bits (subnormal float16) flips by whole units. An RMS over few rows has as much room.
STANDARD_ERRORS = 5.0


# Variance of the square of an evenly spread rounding error, over the square of its mean: 9/5 − 1.
ROUNDING_SPREAD = 0.8

# How far the two references of a relation may be from it, in units of what is allowed between two outputs: float64
# arithmetic stays 2⁻²⁰ below; a relation that does not hold is nowhere near.
REFERENCES_APART = 2.0**-10


# Of a limit; a larger ratio tells nobody more than the two numbers.
MANY_TIMES = 1e6
LARGE = 1e4  # what is taken for infinity where that is right


UNSET = "a variable or workspace that is used before it is set"
PACKED = "rows are stored as if they lay one behind the other, whatever the output's strides"

# What float64's own rounding may make of a reference, relative to its largest element.
FLOAT64_ROUNDING = 2.0**-40

# Edges of the histogram of |error|/bound. What is smaller or larger goes to the ends.
BINS_A_DECADE = 4
HISTOGRAM_EDGES = [0.0, *(10 ** (exponent / BINS_A_DECADE) for exponent in range(-24, 13))]
OF_MEMORY = (GUARD_BANDS, INPUTS)  # and not of one output
# Of the limit of a case's bias, a quarter of what a suite may have: nothing is added to the limit for the sake of less.
NEGLIGIBLE = 1 / 16
# Roundings of the largest result: so much a sum of terms as large loses where they cancel. And the share of wrong
# results that may be off by half of themselves then: where it is more, something is left out.
SMALL_ERROR, LOST_SHARE = 4, 0.1
BEYOND_ANY_LIMIT = 2.0**400  # times the largest value: an error that has a square
NEAREST = {"max_bound_ratio": "max_abs_error", "rms_ratio": "rms_error", "bias_ratio": "bias"}
FIRST_OVER = HISTOGRAM_EDGES.index(1.0)  # the bin that begins at the bound


@dataclass
class ErrorHistogram:
    """Counts of |error|/bound over all elements of all cases of a variant."""

    counts: torch.Tensor = field(default_factory=lambda: torch.zeros(len(HISTOGRAM_EDGES) - 1, dtype=torch.int64))

    def add(self, ratios: torch.Tensor) -> None:
        """Count ratios of any shape; NaN and infinity count as the largest.

        A bin is a quarter of a decade, so the logarithm says which it is, in a quarter of the time of a search: within
        rounding at every edge but 1, which tells what is over the bound.
        """
        largest, last = HISTOGRAM_EDGES[-1], len(self.counts) - 1
        decades = ratios.float().flatten().nan_to_num(largest, largest).log10_()
        places = decades.sub_(math.log10(HISTOGRAM_EDGES[1])).mul_(BINS_A_DECADE).add_(1).clamp_(0, last).int()
        inside = ratios.flatten() < 1
        places = torch.where(inside, places.clamp(max=FIRST_OVER - 1), places.clamp(min=FIRST_OVER))
        self.counts += torch.bincount(places, minlength=len(self.counts)).cpu()

    def record(self) -> Histogram:
        """As the record holds it."""
        return Histogram(list(HISTOGRAM_EDGES), self.counts.tolist())


def generator(case: Case) -> torch.Generator:
    """The random numbers of a case: a hash of everything that decides its values, which options do not."""
    identity = repr((case.operator, sorted(case.dims.items()), case.dtype, case.family, case.seed))
    seed = int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "little") >> 1
    return torch.Generator().manual_seed(seed)


def insist_on_declared(call: Call, precision: Precision) -> None:
    """Raise TestError where a variant declares another type than its first floating-point output has, or its first.

    Every limit follows from what is declared: with a coarser type they would be wide enough for anything.
    """
    name = next((name for name in call.outputs if call.tensor(name).is_floating_point()), call.outputs[0])
    kind, declared = call.tensor(name).dtype, getattr(torch, precision.output, None)
    if declared != kind:
        raise TestError(
            f"the variant declares results of {precision.output}, and {name} is {name_of(kind)}",
            subject="precision.output",
            hint=f"write output: {name_of(kind)}, or have `make_call` make {name} of {precision.output}",
        )


def judge_all(
    case: Case,
    call: Call,
    references: Mapping[str, Reference],
    returned: Mapping[str, Returned],
    tolerance: Tolerance,
    *,
    operator: Knowing | None = None,
    histogram: ErrorHistogram | None = None,
    earlier: Earlier | None = None,
) -> CaseResult:
    """Hold every output that a candidate handed over against its reference: `judge`, and of several the worst figures.

    Failures and places of several begin with the output's name. What an operator knows of faults is of the first.
    earlier: calls before whose results were right, by name, and those results, by output.
    """
    found = {
        name: judge(
            case,
            call.alone(name),
            references[name],
            returned[name],
            tolerance,
            operator=operator if name == call.outputs[0] else None,
            histogram=histogram,
            earlier=earlier,
        )
        for name in call.outputs
    }
    if len(found) == 1:
        return found[call.outputs[0]]
    for name, result in found.items():
        numeric = next((f for f in result.failures if f.criterion in (BOUND, EXACT)), None)
        other = _meant_for(name, references, returned) if numeric else None
        if numeric and other and _meant_for(other, references, returned) == name:
            numeric.message += f". It is what {other} should be: the outputs are given in another order"
    return _together(found)


def _meant_for(name: str, references: Mapping[str, Reference], returned: Mapping[str, Returned]) -> str | None:
    """The other output that the values handed over as `name` are right for, if there is one."""
    values = returned[name].output
    eps = torch.finfo(values.dtype).eps if values.dtype.is_floating_point else 0.0
    for other, reference in references.items():
        if other != name and reference.output.shape == values.shape:
            off = (values.to(reference.output.device).double() - reference.output).abs()
            fits = (off <= reference.bound + eps * reference.output.abs()) & torch.isfinite(reference.bound)
            if bool(fits.all()):
                return other
    return None


def _together(results: Mapping[str, CaseResult]) -> CaseResult:
    """The results of a case's outputs as one; its figures are of the output that comes nearest to each limit."""
    every = list(results.values())
    whole = dataclasses.replace(every[0])
    for ratio, figure in NEAREST.items():
        nearest = max(every, key=lambda result: -1.0 if (its := getattr(result, ratio)) is None else its)
        setattr(whole, ratio, getattr(nearest, ratio))
        setattr(whole, figure, getattr(nearest, figure))
    whole.nonfinite = sum(result.nonfinite for result in every)
    whole.unwritten = sum(result.unwritten for result in every)
    unwritten = [f"{name}: {result.unwritten_where}" for name, result in results.items() if result.unwritten]
    whole.unwritten_where = "; ".join(unwritten) or None
    whole.first_bad_index = next((r.first_bad_index for r in every if r.first_bad_index is not None), None)
    whole.biases = {
        name: math.copysign(result.bias_ratio, result.bias or 0.0)
        for name, result in results.items()
        if result.bias_ratio is not None
    }
    whole.failures = [
        failure if failure.criterion in OF_MEMORY else Failure(failure.criterion, f"{name}: {failure.message}")
        for name, result in results.items()
        for failure in result.failures
    ]
    whole.status = "failed" if whole.failures else "passed"
    return whole


def judge(
    case: Case,
    call: Call,
    reference: Reference,
    returned: Returned,
    tolerance: Tolerance,
    *,
    operator: Knowing | None = None,
    histogram: ErrorHistogram | None = None,
    earlier: Earlier | None = None,
) -> CaseResult:
    """Hold what a candidate handed over of a call with one output against the reference.

    With an `operator`, a wrong result is compared with what its known faults would have given, and with what `earlier`
    calls gave (see `judge_all`). Works on the device of the reference. Raises TestError when the reference itself is
    not finite or does not fit the output.
    """
    found = Findings(call, reference, returned)
    result = CaseResult.of(case, "passed")
    _memory(found, result)
    _nonfinite(found, result)
    _limits(found, result)
    _numbers(found, result, tolerance)
    if any(f.criterion in (BOUND, RMS, BIAS, EXACT) for f in result.failures):
        explain(found, result, operator, earlier or {})
    if histogram is not None and not reference.exact:
        histogram.add(found.usable(found.ratio))
    if not found.error.numel():
        result.max_bound_ratio = 0.0  # nothing is wrong of nothing
    result.status = "failed" if result.failures else "passed"
    return result


def related(
    relation: Relation,
    base_reference: Reference,
    base_output: torch.Tensor,
    reference: Reference,
    output: torch.Tensor,
    tolerance: Tolerance,
) -> Failure | None:
    """Hold the output of a transformed call against what follows from that of the base call (criterion e).

    base_reference and base_output belong to `relation.base` (or the call that the relations were asked for), reference
    and output to `relation.call`; outputs as handed over, in their own data type. With e the map `relation.expected`,
    O' = e(O) exactly. Correct outputs are ô = O + δ, |δ| ≤ B, and ô' = O' + δ', |δ'| ≤ B', so that

        |ô' − e(ô)| ≤ |e(O + δ) − e(O)| + |δ'| ≤ B̃ + B',   B̃ = max(|e(O + B) − e(O)|, |e(O − B) − e(O)|)

    when e takes each element from one element by a monotone function: δ lies between −B and B, and what follows from it
    between what follows from them. For a permutation B̃ is B permuted, for a·O + b it is |a|·B, for a constant 0. Where
    e mixes elements, their bounds may cancel in e(O ± B), and `relation.gain` makes up for it.

    An exact relation is held bit for bit, but for the sign of a zero; the references are not looked at. NaN and
    infinity break any relation, except where the reference means them or demands nothing (an infinite bound). Works on
    the device of the references. Raises TestError when shapes do not fit, or when the references themselves break the
    relation.
    """
    device = reference.output.device
    got, base = (tensor.to(device).double() for tensor in (output, base_output))
    wanted = relation.expected(base)
    if not got.shape == wanted.shape == reference.output.shape:
        raise TestError(
            f"{relation.name}: the output has shape {tuple(got.shape)}, expected makes {tuple(wanted.shape)} of the "
            f"base output, the reference has {tuple(reference.output.shape)}",
            subject="relations",
            hint="mend `expected` of the relation",
        )
    use = torch.ones_like(got, dtype=torch.bool)
    if relation.where is not None:
        use &= relation.where.to(device)
    if relation.exact:
        limit = torch.zeros_like(got)
        use &= torch.isfinite(relation.expected(base_reference.bound)) | reference.meant
    else:
        limit = tolerance.bound_factor * _allowed(relation, base_reference, reference, use)
        use &= torch.isfinite(limit) | reference.meant
    apart = (got - wanted).abs()
    bad = use & ~(apart <= limit)  # NaN compares false
    if relation.exact:
        bad |= use & ~(torch.isfinite(got) & torch.isfinite(wanted))
    if reference.limits is not None:
        bad = torch.where(use & reference.meant, ~same_limits(got, reference.limits), bad)
    if not bool(bad.any()):
        return None
    return Failure(RELATION, _broken(relation, got, base, wanted, limit, bad))


def insist_on_relation(relation: Relation, base: Reference, reference: Reference) -> None:
    """Raise TestError where the references of both calls, each computed by itself, break a relation.

    To be asked before a kernel that breaks one is condemned: where elements merely move, and where bits are compared,
    `kernelproof.operators.reference_after` takes the relation's word for the reference of its call.
    """
    use = torch.ones_like(reference.output, dtype=torch.bool)
    if relation.where is not None:
        use &= relation.where.to(use.device)
    _allowed(relation, base, reference, use)


def insist_on_same(reference: Reference, again: Reference) -> None:
    """Raise TestError where a reference that is computed again differs by more than float64's rounding."""
    off = (reference.output - again.output.to(reference.output.device)).abs()
    off = off.where(~_limits_apart(reference, again), math.inf)
    if bool((off > _float64_rounding(reference)).any()):  # NaN compares false: it is judged as such
        raise TestError(
            f"`reference` gave other results for the same call than before, by up to {float(off.max()):.3g}",
            subject="reference",
            hint="it may depend on nothing but the call's inputs: every random number from a generator that it seeds "
            "itself, and no output, which is filled with random bits before a call (an operator that works in place "
            "has an input of its own, and a copy as its output)",
        )


def insist_on_exact(name: str, exact: Reference, reference: Reference) -> None:
    """Raise TestError where the result of an exact call is not what the operator's own reference gives for it.

    To be asked before a kernel is condemned by one.
    """
    output, bound = (tensor.to(exact.output.device) for tensor in (reference.output, reference.bound))
    off = (exact.output - output).abs()
    allowed = exact.bound + bound + _float64_rounding(reference)
    bad = ~(off <= allowed) | _limits_apart(exact, reference)  # NaN compares false
    if not bool(bad.any()):
        return
    over = torch.where(bad, (off / allowed).nan_to_num(nan=math.inf), -1.0)
    worst = int(over.argmax())
    every = exact.whole, reference.whole, allowed.where(~exact.meant, 0.0)
    stated, computed, most = (float(values.flatten()[worst]) for values in every)
    shown = told_apart(stated, computed)
    raise TestError(
        f"the exact call {name!r} and `reference` disagree in {int(bad.sum())} of {bad.numel()} elements: the worst at "
        f"{[int(i) for i in np.unravel_index(worst, bad.shape)]} is {shown[0]} by `sanity_calls` and {shown[1]} "
        f"by `reference`, and {most:.3g} apart is allowed",
        subject="sanity_calls",
        hint="no kernel is at fault: mend the result that `sanity_calls` states, or `reference`",
    )


def _over(off: float, limit: float, what: str) -> str:
    """How far that is over a limit: as their ratio, unless next to nothing is allowed (beside 0, say)."""
    if off < MANY_TIMES * limit:
        return f", {times_as_much(off / limit, 3)} the {what} of {limit:.3g}"
    return f", where at most {limit:.3g} is allowed"


def _limits_apart(one: Reference, other: Reference) -> torch.Tensor:
    """Where one means an infinity or NaN, and the other, which demands something too, another or none."""
    both = [(each.meant, each.meant | each.bound.isfinite(), each.whole) for each in (one, other)]
    (meant, asked, values), (meant_too, asked_too, others) = ([t.to(one.output.device) for t in each] for each in both)
    return (meant | meant_too) & asked & asked_too & ~same_limits(values, others)


def _float64_rounding(reference: Reference) -> float:
    """How far two ways to compute a reference may be apart by the rounding of float64 alone."""
    return FLOAT64_ROUNDING * float(reference.output.abs().max()) if reference.output.numel() else 0.0


def _allowed(relation: Relation, base: Reference, reference: Reference, use: torch.Tensor) -> torch.Tensor:
    """gain·B̃ + B' of a relation, per element; infinite where one of the two references demands nothing."""
    expected = relation.expected(base.output)
    either_way = [(relation.expected(base.output + by) - expected).abs() for by in (base.bound, -base.bound)]
    carried = torch.maximum(*either_way).nan_to_num(nan=math.inf, posinf=math.inf)  # 0·∞: nothing was demanded
    allowed = relation.gain * carried + reference.bound
    off = (expected - reference.output).abs()
    apart = use & (off > REFERENCES_APART * allowed)
    if bool(apart.any()):
        if bool((apart <= ((allowed == 0) & (off <= _float64_rounding(reference)))).all()):
            raise TestError(
                f"its bound is 0 where its results are not exact: of two calls that {relation.name!r} holds together "
                f"they are {float(off[apart].max()):.3g} apart, which float64's own rounding makes",
                subject="reference",
                hint="state how far a right result may be from the reference; 0 is for results that nothing rounds",
            )
        raise TestError(
            f"{relation.name}: the references break the relation themselves, by up to {float(off[use].max()):.3g}: "
            f"{relation.claim} does not hold, or the transform is not exact in the inputs' data type",
            subject="relations",
            hint="this is a fault of the operator's `relations`, not of a kernel",
        )
    return allowed


def _broken(
    relation: Relation,
    got: torch.Tensor,
    base: torch.Tensor,
    wanted: torch.Tensor,
    limit: torch.Tensor,
    bad: torch.Tensor,
) -> str:
    """How many elements break a relation, where, the worst of them, and why perhaps."""
    count, total = int(bad.sum()), bad.numel()
    apart = (got - wanted).abs().nan_to_num(nan=math.inf, posinf=math.inf)
    over = torch.where(limit > 0, apart / limit, apart)
    worst = int(torch.where(bad, over, -1.0).argmax())
    index = [int(i) for i in np.unravel_index(worst, bad.shape)]
    is_, follows, most = (float(tensor.flatten()[worst]) for tensor in (got, wanted, limit))
    where = describe_indices(bad, relation.call.axes_of(relation.about))
    shown = told_apart(is_, follows)
    text = (
        f"{relation.name}: {relation.claim}. {count} of {total} elements ({100 * count / total:.3g} %) break that: "
        f"{where}; the worst at {index}: {shown[0]} where {shown[1]} follows from the base call"
    )
    off = abs(is_ - follows)
    if relation.exact:
        text += ", which holds bit for bit" + (f": they are {off:.3g} apart" if math.isfinite(off) else "")
    elif math.isfinite(off):
        text += f", {off:.3g} apart{_over(off, most, 'limit')}"
    cause = _why_broken(relation, got, base, wanted, bad)
    return f"{text}. Likely cause: {cause}" if cause else text


def _why_broken(
    relation: Relation, got: torch.Tensor, base: torch.Tensor, wanted: torch.Tensor, bad: torch.Tensor
) -> str:
    if not bool(torch.isfinite(got[bad]).all() & torch.isfinite(wanted[bad]).all()):
        return "NaN or infinity: 0/0, an overflow, or a read of memory that is no input"
    if torch.equal(got, base) and not torch.equal(wanted, base):
        return "the output is that of the base call, bit for bit: a result is kept and handed over again"
    return relation.cause


def skipped(case: Case, reason: str) -> CaseResult:
    """The result of a case that was not run."""
    result = CaseResult.of(case, "passed")
    result.status, result.reason = "skipped", reason
    return result


# --- the parts of a judgement -----------------------------------------------------------------------------------------


def _memory(found: Findings, result: CaseResult) -> None:
    """Unwritten elements, guard bands, inputs."""
    count = int(found.unwritten.sum())
    if count:
        result.unwritten = count
        result.unwritten_where = found.where(found.unwritten)
        result.first_bad_index = first_place(found.unwritten)
        everything = count == found.error.numel()
        cause = (
            "what is stored does not cover the whole output: too few threads for it, a loop that ends early, or a "
            "bound that is too small"
        )
        if everything:
            cause = "the kernel did not run, writes somewhere else, or returns a result of its own (`passing: return`)"
        elif found.added:
            cause = f"{ADDED} (so little is added to these that they stay as they are)"
        elif found.returned.between:
            cause = PACKED
        message = (
            f"{found.share(count)} still hold what was in memory before the call: {result.unwritten_where}; {cause}"
        )
        poison = found.returned.poison
        if not everything and poison is not None and not bool(bits_of(poison).any()):
            was = f"{found.share(count)} are 0, as the memory was before the call: {result.unwritten_where}"
            message = f"{was}; not written, or written as 0"
        result.failures.append(Failure(UNWRITTEN, message))
    if found.returned.band_damage:
        result.band_damage = list(found.returned.band_damage)
        cause = "an index is not checked against the end of the buffer"
        if found.returned.between and count < found.error.numel():
            cause = f"{PACKED}, or past their ends"
        message = "; ".join([*result.band_damage, cause])
        result.failures.append(Failure(GUARD_BANDS, message))
    if found.returned.inputs_changed:
        result.inputs_changed = list(found.returned.inputs_changed)
        words = "the kernel changed its inputs: " + "; ".join(result.inputs_changed)
        if 0 < result.unwritten == found.error.numel():
            words += "; since nothing of the output was written, it may take its arguments in another order"
        result.failures.append(Failure(INPUTS, words))


def _nonfinite(found: Findings, result: CaseResult) -> None:
    if found.whole:
        return
    bad = ~found.finite & ~found.unwritten & torch.isfinite(found.reference.bound)
    count = int(bad.sum())
    if not count:
        return
    result.nonfinite = count
    first = first_place(bad)
    result.first_bad_index = result.first_bad_index or first
    wrong = found.output[bad]
    counts = {
        "NaN": int(wrong.isnan().sum()),
        "+inf": int(wrong.isposinf().sum()),
        "-inf": int(wrong.isneginf().sum()),
    }
    largest = f"the largest {name_of(found.dtype)} is {torch.finfo(found.dtype).max:.4g}"
    if found.added:
        cause = ADDED
    elif fresh := never_written(found, bad):
        cause = fresh
    elif counts["NaN"] and any(bool(t.double().isnan().any()) for t in found.call.inputs.values()):
        cause = f"NaN of an input that is handed on, or {UNSET}"
    elif counts["-inf"] == count:
        cause = (
            "log(0) (a sum of exponentials that underflowed: the maximum was not subtracted), an overflow of negative "
            f"numbers ({largest}), or {UNSET}"
        )
    elif not counts["NaN"]:
        cause = f"an overflow: {largest}; or {UNSET}"
    elif _whole_rows(bad, found.expected):  # of one number a row each is a whole row
        where = "whole rows are NaN: " if bad.dim() > 1 else ""
        cause = (
            f"{where}a sum of 0 that is divided by, ∞/∞ behind an overflow (the exponential of a large number), ∞ − ∞ "
            f"in a row of which everything is masked, a read past the end of an input (NaN lies there), or {UNSET}"
        )
    else:
        cause = (
            "single elements are NaN: a read past the end of an input (NaN lies there), "
            "or memory that was never written"
        )
    kinds = " and ".join(f"{number} {kind}" for kind, number in counts.items() if number) + " values"
    result.failures.append(
        Failure(NONFINITE, f"{kinds} where the reference is finite, the first at {first}: {found.where(bad)}; {cause}")
    )


def _whole_rows(bad: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether what is bad are rows, but for what is 0 in them: a weight that is masked, say."""
    return bad.dim() < 2 or bool(((bad | (expected == 0)).all(-1) | ~bad.any(-1)).all())


def _limits(found: Findings, result: CaseResult) -> None:
    """Infinity and NaN that the operator means; where nothing else is demanded the case is judged by them alone."""
    limits = found.reference.limits
    if limits is None:
        return
    bad = found.missed & ~found.unwritten
    count = int(bad.sum())
    if not count:
        result.max_bound_ratio = 0.0
        return
    result.nonfinite += count
    first = first_place(bad)
    result.first_bad_index = result.first_bad_index or first
    got, wanted = (float(values[tuple(first)]) for values in (found.raw, limits))
    cause = "what has no finite result (a sum of nothing, a row of which everything is masked) is not told apart"
    if math.isnan(got):
        cause = "∞ − ∞ or 0/0, as in a row of which everything is masked"
    elif got == -wanted:
        cause = "the other sign"
    elif math.isinf(wanted) and abs(got) >= LARGE:
        cause = "a large number in the place of infinity"
    result.failures.append(
        Failure(
            NONFINITE,
            f"{found.share(count)} are not the infinity or NaN that is right there: {found.where(bad)}; the first at "
            f"{first} is {_figure(got)} instead of {_figure(wanted)}; {cause}",
        )
    )


def _figure(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{value:.6g}"


def _numbers(found: Findings, result: CaseResult, tolerance: Tolerance) -> None:
    """Criteria (a), (b), (c) on the elements that were written and are finite, and of which anything is demanded."""
    use = found.comparable
    if not bool(use.any()):
        return
    _bound(found, result, 1.0 if found.reference.exact else tolerance.bound_factor)
    if found.reference.exact or not found.dtype.is_floating_point:
        return  # the noise of rounding, (b) and (c), is a float's
    found, scale = _squarable(found)
    expected, error = map(found.usable, (found.expected, found.error))
    count = int(use.sum())
    square = _sum_of_squares(expected)
    rms = math.sqrt(_sum_of_squares(error) / count)
    result.rms_error = min(rms / scale, torch.finfo(torch.float64).max)
    if square == 0:
        return  # nothing to be relative to: (a) says it all
    u = found.reference.unit_roundoff
    if not 0 < u < 1:
        raise KernelproofError(
            f"unit_roundoff is {u:g}, and the output is of {name_of(found.dtype)}; allowed: above 0 and below 1",
            subject="reference",
            hint="state the roundoff of the least precise step, or exact=True where `bound` alone is to be judged",
        )
    rounded = expected.to(found.dtype).double()
    rounding = rounded - expected
    if smallest := SMALLEST_NORMAL.get(name_of(found.dtype)):  # what is below may be flushed to zero: a rounding of it
        rounding = rounding.where((expected.abs() >= smallest * scale) | (found.output != 0), -expected)
    ideal = math.sqrt(_sum_of_squares(rounding) / count)
    _rms(found, result, tolerance, rms=rms, ideal=ideal, typical=math.sqrt(square / count), scale=scale)
    per_row = _by_row((error - rounding) * expected)
    result.bias = float(per_row.sum()) / square
    chance = STANDARD_ERRORS * math.sqrt(float(per_row.square().sum())) / square
    limit = max(tolerance.bias_case * u, chance, found.reference.bias_floor)
    if abs(result.bias) > NEGLIGIBLE * limit:
        limit += max(_lopsided(found, expected, rounded, square), _tipped(found, expected, rounded, square))
    result.bias_ratio = abs(result.bias) / limit
    if result.bias_ratio > 1:
        direction = "too large" if result.bias > 0 else "too small"
        result.failures.append(
            Failure(
                BIAS,
                f"the result is {direction} by {abs(result.bias):.3g} of itself on average; the limit is {limit:.3g}",
            )
        )


def _lopsided(found: Findings, expected: torch.Tensor, rounded: torch.Tensor, square: float) -> float:
    """The bias that rounding the output makes of errors that have none, by where the reference lies between numbers.

    Where one key has nearly all of the weight, results lie just below a value that is itself a number of the output's
    type: errors in one direction move them to the next number, errors in the other do not. So errors of either sign, as
    large as evenly spread ones within the bound, are rounded; what does not cancel is no fault of a kernel.
    """

    unit = torch.finfo(found.dtype).eps / 2
    bound = found.reference.bound
    within = (bound if all_finite(bound) else bound.where(torch.isfinite(bound), 0.0)) - unit * expected.abs()
    spread = within.clamp_(min=0.0).div_(math.sqrt(3))
    up = (expected + spread).to(found.dtype).double()
    down = (expected - spread).to(found.dtype).double()  # one after the other: each is as large as the output
    both_ways = up.add_(down).div_(2).sub_(rounded).mul_(expected)
    return abs(float(both_ways.nan_to_num_(posinf=0.0, neginf=0.0).sum())) / square


def _tipped(found: Findings, expected: torch.Tensor, rounded: torch.Tensor, square: float) -> float:
    """The bias that rounding the output makes of a tiny one, which float32 alone may cause, beyond that itself.

    Where many results lie halfway between two numbers of the output's type (means of 2^k codes that are subnormal
    float16), one rounded scale that is right in 23 bits moves all of them to the same side.
    """
    tiny = found.reference.bias_floor
    moved = ((expected * (1 + way * tiny)).to(found.dtype).double().sub_(rounded) for way in (-1, 1))
    return max(0.0, *(abs(float(by.mul_(expected).sum())) / square - tiny for by in moved))


def _bound(found: Findings, result: CaseResult, factor: float) -> None:
    use = found.comparable
    ratio = found.usable(found.ratio) / factor
    worst = int(ratio.argmax())
    if math.isinf(float(ratio.flatten()[worst])):  # the bound is 0 there, as where the result is known exactly
        worst = int(found.magnitude.where(ratio.isinf(), 0.0).argmax())
    index = [int(i) for i in np.unravel_index(worst, ratio.shape)]
    result.max_abs_error = float(found.usable(found.magnitude).max())
    largest = float(ratio.flatten()[worst])
    result.max_bound_ratio = largest if math.isfinite(largest) else None  # an exact case has bound 0: no ratio
    bad = use & (ratio > 1)
    count = int(bad.sum())
    if not count:
        return
    result.first_bad_index = result.first_bad_index or first_place(bad)
    got, wanted = float(found.output.flatten()[worst]), float(found.expected.flatten()[worst])
    off = abs(got - wanted)
    limit = float(found.reference.bound.flatten()[worst]) * factor
    whole = not found.dtype.is_floating_point
    figures = " instead of ".join(
        [f"{got:.0f}", f"{wanted:.0f}"] if whole and wanted.is_integer() else told_apart(got, wanted)
    )
    place = f"{found.share(count)} are wrong: {found.where(bad)}; the worst at {index}: {figures}"
    kind = EXACT if found.reference.exact else BOUND
    if kind == EXACT and not limit:
        place += ", where the result is known exactly"
    else:
        place += f", an error of {off:.3g}{_over(off, limit, 'bound') if limit else ', and the bound there is 0'}"
    if kind == BOUND and _is_little(found, bad):
        place += (
            f"; all are off by {SMALL_ERROR} roundings of the largest result, {_largest(found):.3g}, at most: digits "
            "are lost that the reference keeps, or its bound does not count a cancellation or an argument's rounding"
        )
    result.failures.append(Failure(kind, place))


def _is_little(found: Findings, bad: torch.Tensor) -> bool:
    """Whether what is wrong may be what rounding leaves where terms as large as the largest result cancel."""
    magnitude = found.magnitude[bad]
    lost = (magnitude > found.expected[bad].abs() / 2).double().mean()
    return float(magnitude.max()) <= SMALL_ERROR * found.unit * _largest(found) and float(lost) < LOST_SHARE


def _largest(found: Findings) -> float:
    return float(found.usable(found.expected).abs().max())


def _rms(
    found: Findings,
    result: CaseResult,
    tolerance: Tolerance,
    *,
    rms: float,
    ideal: float,
    typical: float,
    scale: float,
) -> None:
    """Criterion (b), by root mean squares: of the error, of rounding alone, of what is expected; all times `scale`."""
    least = found.reference.unit_roundoff * typical / 4
    limit = tolerance.rms_factor * max(ideal, least, found.reference.rms_floor) * _few_rows(found)
    result.rms_ratio = rms / limit
    if result.rms_ratio > 1:
        result.failures.append(
            Failure(
                RMS,
                f"the RMS error is {result.rms_error:.3g}, {times_as_much(result.rms_ratio, 3)} the limit of "
                f"{limit / scale:.3g} for the declared precision (rounding the exact result to {name_of(found.dtype)} "
                f"costs {ideal / scale:.3g})",
            )
        )


def _squarable(found: Findings) -> tuple[Findings, float]:
    """What was found, of float64 times a power of two that makes the largest value about 1; and that power.

    The square of 1e160 is no number, and that of 1e-170 is 0: neither could be held to anything.
    """
    if found.dtype != torch.float64:
        return found, 1.0
    largest = float(found.usable(found.expected).abs().max())
    scale = math.ldexp(1.0, max(-1000, min(1000, -math.frexp(largest)[1])))
    reference, scaled = found.reference, copy.copy(found)
    scaled.reference = dataclasses.replace(
        reference, bound=reference.bound * scale, rms_floor=reference.rms_floor * scale
    )
    scaled.expected = found.expected * scale
    scaled.error = (found.error * scale).clamp(-BEYOND_ANY_LIMIT, BEYOND_ANY_LIMIT)
    return scaled, scale


def _sum_of_squares(values: torch.Tensor) -> float:
    flat = values.flatten()
    return float(flat.dot(flat))


def _by_row(values: torch.Tensor) -> torch.Tensor:
    """Sums over the last dimension; the elements of an output that has no other are rows themselves."""
    return values.sum(-1) if values.dim() > 1 else values


def _few_rows(found: Findings) -> float:
    """By what factor an RMS over these rows may exceed what it is on average, by STANDARD_ERRORS.

    What is rounded once a row (a weight of P) moves the whole row alike, so rows and not elements are independent, and
    those count that have the largest values. Decided by the reference alone: no candidate can widen its own limit.
    """
    per_row = _by_row(found.usable(found.expected).square())
    squared = float(per_row.square().sum())
    rows = float(per_row.sum()) ** 2 / squared if squared else 1.0
    return math.sqrt(1 + STANDARD_ERRORS * math.sqrt(ROUNDING_SPREAD / rows))


# --- what is wrong, in words ------------------------------------------------------------------------------------------


# --- places in words --------------------------------------------------------------------------------------------------
