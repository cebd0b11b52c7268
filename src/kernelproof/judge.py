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
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import torch

from kernelproof.errors import KernelproofError, TestError
from kernelproof.images import Returned
from kernelproof.operators import Call, Reference, Relation, Suspect
from kernelproof.processes import FILL
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

# Wrong elements that equal what their memory held before are unwritten where chance makes so many this rarely: a kernel
# that writes 32768 wrong float16 values makes one in two cases, and has covered its tiles all the same.
BY_CHANCE = 1e-3

# Variance of the square of an evenly spread rounding error, over the square of its mean: 9/5 − 1.
ROUNDING_SPREAD = 0.8

# How far the two references of a relation may be from it, in units of what is allowed between two outputs: float64
# arithmetic stays 2⁻²⁰ below; a relation that does not hold is nowhere near.
REFERENCES_APART = 2.0**-10

# A cause that is said of every element, or of a row, is seen in so many at least: fewer are alike by chance.
MOSTLY = 0.9  # of the wrong elements, for one cause to be it
SEVERAL = 8

# Of a limit; a larger ratio tells nobody more than the two numbers.
MANY_TIMES = 1e6

# Results of which an RMS says how precise they are as a whole.
FEWEST_ON_AVERAGE = 32

# Of two known faults whose results are as near as that to what was handed over, none is told from the other.
AS_NEAR = 1 + 1e-6

ADDED = "results are added to what the memory held before the call: it is not cleared first"

UNSET = "a variable or workspace that is used before it is set"

# What float64's own rounding may make of a reference, relative to its largest element.
FLOAT64_ROUNDING = 2.0**-40

# Edges of the histogram of |error|/bound. What is smaller or larger goes to the ends.
BINS_A_DECADE = 4
HISTOGRAM_EDGES = [0.0, *(10 ** (exponent / BINS_A_DECADE) for exponent in range(-24, 13))]
OF_MEMORY = (GUARD_BANDS, INPUTS)  # and not of one output
# Of the limit of a case's bias, a quarter of what a suite may have: nothing is added to the limit for the sake of less.
NEGLIGIBLE = 1 / 16
LONGEST_READ = 1 << 20  # an axis in which a period is looked for, element by element
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


Earlier: TypeAlias = Mapping[str, tuple[Call, Mapping[str, Returned]]]  # see judge_all


class Knowing(Protocol):
    """Who knows of faults: an operator."""

    def suspects(self, call: Call, rows: torch.Tensor) -> Iterator[Suspect]:
        """See kernelproof.operators.Operator."""
        ...


def generator(case: Case) -> torch.Generator:
    """The random numbers of a case: a hash of everything that decides its values, which options do not."""
    identity = repr((case.operator, sorted(case.dims.items()), case.dtype, case.family, case.seed))
    seed = int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "little") >> 1
    return torch.Generator().manual_seed(seed)


def resolved(precision: Precision, case_dtype: str) -> Precision:
    """A declared precision with `input` replaced by the data type of a case."""
    declared = {name: case_dtype if kind == "input" else kind for name, kind in dataclasses.asdict(precision).items()}
    return dataclasses.replace(precision, **declared)


def insist_on_declared(call: Call, precision: Precision) -> None:
    """Raise TestError where a variant declares another type than its first floating-point output has, or its first.

    Every limit follows from what is declared: with a coarser type they would be wide enough for anything.
    """
    name = next((name for name in call.outputs if call.tensor(name).is_floating_point()), call.outputs[0])
    kind, declared = call.tensor(name).dtype, getattr(torch, precision.output, None)
    if declared != kind:
        raise TestError(
            f"the variant declares results of {precision.output}, and {name} is {_name(kind)}",
            subject="precision.output",
            hint=f"write output: {_name(kind)}, or have `make_call` make {name} of {precision.output}",
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
        nearest = max(every, key=lambda result: getattr(result, ratio) or 0.0)
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
    found = _Findings(call, reference, returned)
    result = CaseResult.of(case, "passed")
    _memory(found, result)
    _nonfinite(found, result)
    _numbers(found, result, tolerance)
    if any(f.criterion in (BOUND, RMS, BIAS, EXACT) for f in result.failures):
        _explain(found, result, operator, earlier or {})
    if histogram is not None and not reference.exact:
        histogram.add(found.ratio)
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
    infinity break any relation, except where the reference demands nothing (an infinite bound). Works on the device of
    the references. Raises TestError when shapes do not fit, or when the references themselves break the relation.
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
    else:
        limit = tolerance.bound_factor * _allowed(relation, base_reference, reference, use)
        use &= torch.isfinite(limit)
    apart = (got - wanted).abs()
    bad = use & ~(apart <= limit)  # NaN compares false
    if relation.exact:
        bad |= use & ~(torch.isfinite(got) & torch.isfinite(wanted))
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
    if bool((off > _float64_rounding(reference)).any()):  # NaN compares false: it is judged as such
        raise TestError(
            f"`reference` gave other results for the same call than before, by up to {float(off.max()):.3g}",
            subject="reference",
            hint="it may depend on nothing but the call: every random number from a generator that it seeds itself",
        )


def insist_on_exact(name: str, exact: Reference, reference: Reference) -> None:
    """Raise TestError where the result of an exact call is not what the operator's own reference gives for it.

    To be asked before a kernel is condemned by one.
    """
    output, bound = (tensor.to(exact.output.device) for tensor in (reference.output, reference.bound))
    off = (exact.output - output).abs()
    allowed = exact.bound + bound + _float64_rounding(reference)
    bad = ~(off <= allowed)  # NaN compares false
    if not bool(bad.any()):
        return
    over = torch.where(bad, (off / allowed).nan_to_num(nan=math.inf), -1.0)
    worst = int(over.argmax())
    stated, computed, most = (float(values.flatten()[worst]) for values in (exact.output, output, allowed))
    shown = _apart(stated, computed)
    raise TestError(
        f"the exact call {name!r} and `reference` disagree in {int(bad.sum())} of {bad.numel()} elements: the worst at "
        f"{[int(i) for i in np.unravel_index(worst, bad.shape)]} is {shown[0]} by `sanity_calls` and {shown[1]} "
        f"by `reference`, and {most:.3g} apart is allowed",
        subject="sanity_calls",
        hint="no kernel is at fault: mend the result that `sanity_calls` states, or `reference`",
    )


def _apart(one: float, other: float, digits: int = 6) -> tuple[str, str]:
    """Both with so many digits, or as many more as tell them apart."""
    for figures in (digits, 6, 9, 17):
        shown = f"{one:.{figures}g}", f"{other:.{figures}g}"
        if shown[0] != shown[1]:
            break
    return shown


def _times(factor: float, digits: int = 6) -> str:
    """A factor that is not 1, with as many digits as show that."""
    return f"{_apart(factor, 1.0, digits)[0]} times"


def _over(off: float, limit: float, what: str) -> str:
    """How far that is over a limit: as their ratio, unless next to nothing is allowed (beside 0, say)."""
    if off < MANY_TIMES * limit:
        return f", {_times(off / limit, 3)} the {what} of {limit:.3g}"
    return f", where at most {limit:.3g} is allowed"


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
    shown = _apart(is_, follows)
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


class _Findings:
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
        if not _all_finite(expected):
            numbers = {name: tensor for name, tensor in call.inputs.items() if tensor.is_floating_point()}
            if wild := [name for name, tensor in numbers.items() if not _all_finite(tensor.double())]:
                raise TestError(
                    f"the reference is not finite, nor is what `make_call` gives as {' and '.join(wild)}",
                    subject="make_call",
                    hint="look for an overflow where the inputs are made, or rounded to the case's data type",
                )
            if not bool(expected.isnan().any()):
                count = f"{int(expected.isinf().sum())} of {expected.numel()}"
                raise TestError(
                    f"the reference is infinite in {count} elements although all inputs are finite, and an infinite "
                    "value has no error that could be judged",
                    subject="reference",
                    hint="of finite inputs an output is finite: define what is left out (a masked place, say) as 0 or "
                    "another finite number, in kernels too, or as 0 with a bound of inf, which demands nothing there; "
                    "where none was meant, look for an overflow and log(0) in `reference`",
                )
            raise TestError(
                "the reference is not finite although all inputs are",
                subject="reference",
                hint="look for 0/0, inf - inf and an overflow in `reference`",
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
        if not _all_finite(self.output):
            self.finite = torch.isfinite(self.output)
        self.inside = self.finite & (self.magnitude <= reference.bound)
        demanded = None if _all_finite(reference.bound) else torch.isfinite(reference.bound)
        self.unwritten = torch.zeros_like(self.finite)
        self.added = False
        if returned.poison is not None and not bool(self.inside.all()):
            # Chance makes a few written elements of a 16-bit type equal to their poison, and a few poisons right. The
            # right ones are told by their row, the wrong ones by how many they are among all that is wrong.
            poison = returned.poison.to(expected.device)
            same = _same_bits(self.raw, poison)
            wrong = same & ~self.inside
            if bool(wrong.any()) and _more_than_chance(wrong, ~self.inside, bits=8 * self.raw.element_size()):
                self.unwritten = same & wrong.any(-1, keepdim=True)
                if demanded is not None:
                    self.unwritten &= demanded
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


def _more_than_chance(same: torch.Tensor, among: torch.Tensor, bits: int) -> bool:
    """Whether more elements are the same than random bits make so (by Poisson's law: such events are rare)."""
    count, expected = same.sum().double(), among.sum().double() * 2.0**-bits
    return float(torch.special.gammainc(count, expected)) < BY_CHANCE


def _memory(found: _Findings, result: CaseResult) -> None:
    """Unwritten elements, guard bands, inputs."""
    count = int(found.unwritten.sum())
    if count:
        result.unwritten = count
        result.unwritten_where = found.where(found.unwritten)
        result.first_bad_index = _first(found.unwritten)
        everything = count == found.error.numel()
        cause = (
            "what is stored does not cover the whole output: too few threads for it, a loop that ends early, or a "
            "bound that is too small"
        )
        if everything:
            cause = "the kernel did not run, or writes somewhere else"
        elif found.added:
            cause = f"{ADDED} (so little is added to these that they stay as they are)"
        message = (
            f"{found.share(count)} still hold what was in memory before the call: {result.unwritten_where}; {cause}"
        )
        result.failures.append(Failure(UNWRITTEN, message))
    if found.returned.band_damage:
        result.band_damage = list(found.returned.band_damage)
        message = "; ".join(result.band_damage) + "; an index is not checked against the end of the buffer"
        result.failures.append(Failure(GUARD_BANDS, message))
    if found.returned.inputs_changed:
        result.inputs_changed = list(found.returned.inputs_changed)
        words = "the kernel changed its inputs: " + "; ".join(result.inputs_changed)
        if 0 < result.unwritten == found.error.numel():
            words += "; since nothing of the output was written, it may take its arguments in another order"
        result.failures.append(Failure(INPUTS, words))


def _nonfinite(found: _Findings, result: CaseResult) -> None:
    if found.whole:
        return
    bad = ~found.finite & ~found.unwritten & torch.isfinite(found.reference.bound)
    count = int(bad.sum())
    if not count:
        return
    result.nonfinite = count
    first = _first(bad)
    result.first_bad_index = result.first_bad_index or first
    wrong = found.output[bad]
    counts = {
        "NaN": int(wrong.isnan().sum()),
        "+inf": int(wrong.isposinf().sum()),
        "-inf": int(wrong.isneginf().sum()),
    }
    largest = f"the largest {_name(found.dtype)} is {torch.finfo(found.dtype).max:.4g}"
    if found.added:
        cause = ADDED
    elif fresh := _fresh(found, bad):
        cause = fresh
    elif counts["-inf"] == count:
        cause = (
            "log(0) (a sum of exponentials that underflowed: the maximum was not subtracted), an overflow of negative "
            f"numbers ({largest}), or {UNSET}"
        )
    elif not counts["NaN"]:
        cause = f"an overflow: {largest}; or {UNSET}"
    elif bool((bad.all(-1) == bad.any(-1)).all()):
        cause = (
            "whole rows are NaN: a sum of 0 that is divided by, ∞/∞ behind an overflow (the exponential of a large "
            "number), ∞ − ∞ in a row of which everything is masked, a read past the end of an input (NaN lies there), "
            f"or {UNSET}"
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


def _numbers(found: _Findings, result: CaseResult, tolerance: Tolerance) -> None:
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
            f"unit_roundoff is {u:g}, and the output is of {_name(found.dtype)}; allowed: above 0 and below 1",
            subject="reference",
            hint="state the roundoff of the least precise step, or exact=True where `bound` alone is to be judged",
        )
    rounded = expected.to(found.dtype).double()
    rounding = rounded - expected
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


def _lopsided(found: _Findings, expected: torch.Tensor, rounded: torch.Tensor, square: float) -> float:
    """The bias that rounding the output makes of errors that have none, by where the reference lies between numbers.

    Where one key has nearly all of the weight, results lie just below a value that is itself a number of the output's
    type: errors in one direction move them to the next number, errors in the other do not. So errors of either sign, as
    large as evenly spread ones within the bound, are rounded; what does not cancel is no fault of a kernel.
    """

    unit = torch.finfo(found.dtype).eps / 2
    bound = found.reference.bound
    within = (bound if _all_finite(bound) else bound.where(torch.isfinite(bound), 0.0)) - unit * expected.abs()
    spread = within.clamp_(min=0.0).div_(math.sqrt(3))
    up = (expected + spread).to(found.dtype).double()
    down = (expected - spread).to(found.dtype).double()  # one after the other: each is as large as the output
    both_ways = up.add_(down).div_(2).sub_(rounded).mul_(expected)
    return abs(float(both_ways.nan_to_num_(posinf=0.0, neginf=0.0).sum())) / square


def _tipped(found: _Findings, expected: torch.Tensor, rounded: torch.Tensor, square: float) -> float:
    """The bias that rounding the output makes of a tiny one, which float32 alone may cause, beyond that itself.

    Where many results lie halfway between two numbers of the output's type (means of 2^k codes that are subnormal
    float16), one rounded scale that is right in 23 bits moves all of them to the same side.
    """
    tiny = found.reference.bias_floor
    moved = ((expected * (1 + way * tiny)).to(found.dtype).double().sub_(rounded) for way in (-1, 1))
    return max(0.0, *(abs(float(by.mul_(expected).sum())) / square - tiny for by in moved))


def _bound(found: _Findings, result: CaseResult, factor: float) -> None:
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
    result.first_bad_index = result.first_bad_index or _first(bad)
    got, wanted = float(found.output.flatten()[worst]), float(found.expected.flatten()[worst])
    off = abs(got - wanted)
    limit = float(found.reference.bound.flatten()[worst]) * factor
    figures = " instead of ".join(_apart(got, wanted))
    place = f"{found.share(count)} are wrong: {found.where(bad)}; the worst at {index}: {figures}"
    if found.reference.exact:
        result.failures.append(Failure(EXACT, f"{place}, where the result is known exactly"))
    else:
        over = _over(off, limit, "bound") if limit else ", and the bound there is 0"
        result.failures.append(Failure(BOUND, f"{place}, an error of {off:.3g}{over}"))


def _rms(
    found: _Findings,
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
                f"the RMS error is {result.rms_error:.3g}, {_times(result.rms_ratio, 3)} the limit of "
                f"{limit / scale:.3g} for the declared precision (rounding the exact result to {_name(found.dtype)} "
                f"costs {ideal / scale:.3g})",
            )
        )


def _squarable(found: _Findings) -> tuple[_Findings, float]:
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


def _few_rows(found: _Findings) -> float:
    """By what factor an RMS over these rows may exceed what it is on average, by STANDARD_ERRORS.

    What is rounded once a row (a weight of P) moves the whole row alike, so rows and not elements are independent, and
    those count that have the largest values. Decided by the reference alone: no candidate can widen its own limit.
    """
    per_row = _by_row(found.usable(found.expected).square())
    squared = float(per_row.square().sum())
    rows = float(per_row.sum()) ** 2 / squared if squared else 1.0
    return math.sqrt(1 + STANDARD_ERRORS * math.sqrt(ROUNDING_SPREAD / rows))


# --- what is wrong, in words ------------------------------------------------------------------------------------------


def _explain(found: _Findings, result: CaseResult, operator: Knowing | None, earlier: Earlier) -> None:
    """Append the likely cause to the first numerical failure, if one fits."""
    doubtful = None
    cause = _remembered(found, earlier)
    try:
        cause, doubtful = (cause, None) if cause else _suspect(found, operator)
    except Exception as error:  # an operator's code that only explains: the verdict stands without it
        cause = f"unknown, for the operator's `suspects` failed ({type(error).__name__}: {error})"
    if cause is None and found.added:
        cause = ADDED
    cause = cause or _fresh(found, found.comparable & ~found.inside)
    cause = cause or _whole_number(found) or _constant(found) or _clamped(found) or _factor(found)
    cause = cause or _truncated(found) or _stored(found)
    cause = cause or doubtful or _few(found, result) or _one_a_row(found) or _precision(found, result)
    if cause is None:
        return
    numeric = next(f for f in result.failures if f.criterion in (BOUND, EXACT, RMS, BIAS))
    numeric.message += f". Likely cause: {cause}"


def _fresh(found: _Findings, bad: torch.Tensor) -> str | None:
    """Wrong elements of a result in the candidate's own memory that hold what all fresh memory is full of.

    Of one byte that is a number like any other, and the largest int8.
    """
    if found.raw.element_size() == 1:
        return None
    filled = torch.full((found.raw.element_size(),), FILL, dtype=torch.uint8, device=found.raw.device).view(found.dtype)
    fresh = _same_bits(found.raw, filled.expand(found.raw.shape)) & bad
    if not bool(fresh.any()) or not _more_than_chance(fresh, bad, bits=8 * found.raw.element_size()):
        return None
    return (
        f"{int(fresh.sum())} of these hold what fresh memory is full of here (the bytes 0x{FILL:x}): they are never "
        "written, or what is added up in them is not cleared before"
    )


def _remembered(found: _Findings, earlier: Earlier) -> str | None:
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
        kept = _same_bits(found.raw, returned.output.to(found.raw.device)) & bad
        values = found.output[kept].unique()
        if int(kept.sum()) >= MOSTLY * count and int((values != 0).sum()) >= fewest and _unlike(call, found.call):
            return (
                f"{found.share(int(kept.sum()))} are bit for bit what the call {name} gave there, for other inputs: a "
                "result that is remembered, by an address or by a part of the inputs, or memory that holds it still "
                "and is never written"
            )
    return None


def _unlike(one: Call, other: Call) -> bool:
    """Whether some input of two calls differs."""
    pairs = [(tensor, other.inputs.get(name)) for name, tensor in one.inputs.items()]
    return any(b is None or a.shape != b.shape or not bool(_same_bits(a, b).all()) for a, b in pairs)


def _suspect(found: _Findings, operator: Knowing | None) -> tuple[str | None, str | None]:
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


def _whole_number(found: _Findings) -> str | None:
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


def _constant(found: _Findings) -> str | None:
    """The same value everywhere; the same amount added everywhere, or everywhere in a head."""
    if not found.whole:
        return None
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
    return f", the end of {_name(kind)}'s range: it is clamped there" if value in ends else ""


def _clamped(found: _Findings) -> str | None:
    """What lies beyond a limit holds the limit, and nothing that is right lies beyond it."""
    bad, slack = found.comparable & ~found.inside, found.reference.bound
    if int(bad.sum()) < SEVERAL:
        return None
    got, wanted = found.output[bad], found.expected[bad]
    right = found.comparable & found.inside
    sides = []
    for limit, way, name in ((float(got.max()), 1, "above"), (float(got.min()), -1, "below")):
        beyond = way * (wanted - limit) > 0
        if not bool(beyond.any()):
            continue
        if bool((got[beyond] != limit).any()) or bool((right & (way * (found.expected - limit) > slack)).any()):
            return None
        sides.append((beyond, f"{name} {limit:.6g}"))
    if not sides or not bool(torch.stack([beyond for beyond, _ in sides]).any(0).all()):
        return None
    return f"what should be {' or '.join(words for _, words in sides)} is clamped there"


def _factor(found: _Findings) -> str | None:
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
        return f"each of the {count} elements that are not 0 is {_times(factor)} what it should be"
    return f"every element is {_times(factor)} what it should be: a wrong scale"


def _truncated(found: _Findings) -> str | None:
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
            f"results are truncated to {_name(found.dtype)}, not rounded "
            f"(on average {-mean:.2f} of a last place towards zero)"
        )
    return None


def _stored(found: _Findings) -> str | None:
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


def _few(found: _Findings, result: CaseResult) -> str | None:
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
            last.append(f"{size - first} {_plural(name)}" if first < size - 1 else name)
            tail = tail.narrow(axis, first, size - first)
    if last and float(tail.double().mean()) > 3 / 4:
        where = " and the last ".join(last)
        cause = "a tail, a bound that is wrong, or something that only these take in"
        return f"all others are right, and these are in the last {where}: {cause}"
    if len(right) > 0.99 * bad.numel() and (result.rms_ratio or 0) > 1:
        return "all others are as precise as declared: these few places or values are treated in another way"
    return None


def _one_a_row(found: _Findings) -> str | None:
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
                return f"every element is about {_times((least + most) / 2)} what it should be: a wrong scale"
            if head := _one_a_head(found):
                return head
            span = "from {} to {}".format(*_apart(least, most))
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


def _one_a_head(found: _Findings) -> str | None:
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
    span = "from {} to {}".format(*_apart(least, most))
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


def _precision(found: _Findings, result: CaseResult) -> str | None:
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


def _in_some_rows(found: _Findings, result: CaseResult) -> bool:
    """Whether few rows hold what is wrong, and the others are as precise as declared: a coarser type is in all."""
    bad = found.comparable & ~found.inside
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


# --- places in words --------------------------------------------------------------------------------------------------


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
                whole.append(_plural(name))
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
    plural = _plural(name)
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
    """The smallest period, fitting twice, with which the places repeat; a last, incomplete period counts too.

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
    return size - border if border > 0 and size - border <= size // 2 else None


def _plural(name: str) -> str:
    if re.search("[^aeiou]y$", name):
        return f"{name[:-1]}ies"
    return name + ("es" if name.endswith("ch") else "s")


def _first(mask: torch.Tensor) -> list[int]:
    return [int(i) for i in mask.nonzero()[0]]


def _all_finite(values: torch.Tensor) -> bool:
    """Whether no element is NaN or infinite: in one pass, which makes no mask."""
    return not values.numel() or all(math.isfinite(float(end)) for end in values.aminmax())


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return bits_of(a.contiguous()) == bits_of(b.contiguous())
