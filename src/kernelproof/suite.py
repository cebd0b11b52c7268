"""What only shows over all cases of a variant: criterion (c) over a suite, and the size at which a fault begins."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kernelproof.records import BIAS, BOUND, NONFINITE, UNWRITTEN, CaseResult, Failure

if TYPE_CHECKING:
    from kernelproof.config import Tolerance

# Dimensions along which kernels go tile by tile.
LENGTHS = ("seq", "seq_k", "cols")


def bias(results: Iterable[CaseResult], tolerance: Tolerance) -> tuple[float | None, float | None]:
    """The mean bias over a suite in units of u, and its ratio to the limit (above 1 is a failure); of several outputs
    that of the worst.

    Cases count in units of their own limit, so that data types and short cases can be averaged. n cases that fluctuate
    within their limit have a mean within limit/√n: with fewer than 16 cases that is the suite's limit.
    """
    by_output: dict[str, list[float]] = defaultdict(list)
    for result in results:
        alone = {} if result.bias_ratio is None else {"": math.copysign(result.bias_ratio, result.bias or 0.0)}
        for name, ratio in (result.biases or alone).items():
            by_output[name].append(ratio)
    found = []
    for signed in by_output.values():
        mean = tolerance.bias_case * sum(signed) / len(signed)
        found.append((mean, abs(mean) / max(tolerance.bias_suite, tolerance.bias_case / math.sqrt(len(signed)))))
    return max(found, key=lambda pair: pair[1], default=(None, None))


def findings(results: Sequence[CaseResult], tolerance: Tolerance) -> list[Failure]:
    """What only shows over all cases: a bias too small for one case, and faults that begin at some size."""
    found = []
    mean, ratio = bias(results, tolerance)
    if mean is not None and ratio is not None and ratio > 1:
        found.append(
            Failure(
                BIAS,
                f"over {sum(r.bias is not None for r in results)} cases the mean bias is {mean:+.3g} u, "
                f"{ratio:.2g} times the limit of {abs(mean) / ratio:.3g} u: every result is "
                f"{'too large' if mean > 0 else 'too small'} by a little "
                "(a scale that is slightly off, or truncation instead of rounding)",
            )
        )
    # Of the input family that most cases have: others are on few shapes, and fail there whatever the size.
    families = [family for family, _ in Counter(r.family for r in results).most_common(1)]
    usual = [r for r in results if r.family in families and r.status != "skipped"]
    for criterion, what in ((NONFINITE, "NaN or infinity"), (UNWRITTEN, "unwritten elements"), (BOUND, "errors")):
        onset = _onset(usual, criterion)
        if onset is not None:
            hint = (
                "look at what happens with more than one tile: a missing barrier between storing a tile and using it, "
                "a maximum that is not carried on, a buffer that is too small"
            )
            found.append(Failure(criterion, f"{what} only from {onset} on, smaller cases are right; {hint}"))
    return found


def _onset(results: Sequence[CaseResult], criterion: str) -> str | None:
    """`seq = 512` if cases fail a criterion from that size on and never below; the lengths are tried first."""
    names = dict.fromkeys(name for r in results for name in r.dims)
    for name in sorted(names, key=lambda n: n not in LENGTHS):
        by_size: dict[int, set[bool]] = {}
        for r in results:
            if name in r.dims:
                by_size.setdefault(r.dims[name], set()).add(any(f.criterion == criterion for f in r.failures))
        failing = [size for size, outcomes in by_size.items() if True in outcomes]
        passing = [size for size, outcomes in by_size.items() if outcomes == {False}]
        if failing and passing and max(passing) < min(failing):
            return f"{name} = {min(failing)}"
    return None
