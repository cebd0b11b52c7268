"""The deep level's search: cases that nobody listed, drawn by Hypothesis, and the smallest one that fails.

Each case starts from a shape of the configuration, whose lengths are then replaced by any others, and of its other
dimensions about half; it takes any option, data type, input family and seed, and half of the cases a layout that is not
the usual one (Judge.views: strides of their own, off its boundary). What a variant's `limits` leave out is not drawn. A
failing case is shrunk; its id says all that is needed to run it again, in the usual layout and in the others.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernelproof.cases import shape_of, unsupported
from kernelproof.errors import KernelproofError
from kernelproof.records import Case, CaseResult
from kernelproof.suite import LENGTHS

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

    from kernelproof.config import OperatorConfig, VariantConfig

EXAMPLES = 200
# One run of Hypothesis begins with the smallest case and, from its eleventh on, draws mostly copies of earlier ones in
# which one value took another's place: of 200 cases less than half had lengths of their own. Runs of ten are all fresh.
FRESH = 10
BUDGET_S = 180.0  # no further case is begun after that
MOST_ELEMENTS = 1 << 21  # product of the dimensions: the reference of a larger case takes a second
LAYOUTS = 32  # more than a case has ways to be laid out
REACH = 2  # a dimension goes up to so many times its largest in the configuration


class _Found(Exception):
    """A case failed; of no other kind than what Hypothesis is to make smaller."""


@dataclass
class Search:
    """What was searched: the cases that ran, and the smallest failure if there was one."""

    examples: int = 0
    failure: CaseResult | None = None


def search(
    settings: OperatorConfig, variant: VariantConfig, families: list[str], run: Callable[[Case, int], CaseResult | None]
) -> Search:
    """Draw cases and run them until one fails, then make it smaller.

    `run` is given a case and the number of a layout, of which 0 is the usual one and the others are taken modulo what
    there are; it gives None for what is refused.

    Raises KernelproofError when Hypothesis is not installed.
    """
    try:
        import hypothesis
        from hypothesis import strategies as st
    except ImportError:
        raise KernelproofError(
            "the deep level needs the package hypothesis", subject=variant.key, hint="install it, or take another level"
        ) from None

    shapes = [dims for name in settings.test.shapes if _elements(dims := dict(settings.shapes[name]))]
    most = {name: REACH * max(s.get(name, 1) for s in shapes) for name in set().union(*shapes)}

    @st.composite
    def drawn(draw: DrawFn) -> Case:
        shape = draw(st.sampled_from(sorted(shapes, key=_elements)))
        # Key heads come before heads, their multiples; lengths come last and get the room that the others leave.
        order = sorted(shape, key=lambda name: (name in LENGTHS, name != "kv_heads"))
        replaced = {name: name in LENGTHS or draw(st.booleans()) for name in order}
        if "kv_heads" in shape:
            replaced["heads"] = replaced["kv_heads"]
        names = [name for name in order if replaced[name]]
        dims = shape | dict.fromkeys(names, 1)
        for name in names:
            step = dims.get("kv_heads", 1) if name == "heads" else 1
            # A smaller head_dim leaves no room: what grows with the square of a length does not depend on it.
            room = MOST_ELEMENTS // _elements({n: dims[n] if n in LENGTHS else max(dims[n], shape[n]) for n in dims})
            largest = min(most[name], room) if name in LENGTHS else most[name]
            limits = variant.limits.get(name)
            dims[name] = (
                draw(st.sampled_from(limits)) if limits else step * draw(st.integers(1, max(1, largest // step)))
            )
        options = {name: draw(st.sampled_from(values)) for name, values in settings.test.options.items()}
        return Case(
            settings.name,
            shape_of(dims),
            dims,
            options,
            draw(st.sampled_from(variant.dtypes)),
            draw(st.sampled_from(families)),
            draw(st.integers(0, 2**31 - 1)),
        )

    found, deadline = Search(), time.monotonic() + BUDGET_S
    done: set[tuple[str, int]] = set()

    def holds(case: Case, layout: int) -> None:
        if time.monotonic() > deadline or (case.id, layout) in done:
            return
        if _elements(case.dims) <= MOST_ELEMENTS and not unsupported(variant, case):
            result = run(case, layout)
            found.examples += result is not None
            if result is not None and result.status == "failed":
                found.failure = result  # the last one that Hypothesis tries is the smallest
                raise _Found(result.id)
        done.add((case.id, layout))

    checked: Any = hypothesis.given(drawn(), st.just(0) | st.integers(1, LAYOUTS))(holds)
    checked = hypothesis.settings(
        max_examples=FRESH,
        database=None,
        derandomize=False,  # as it would be under CI, where each run would draw the same ten
        deadline=None,
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
        suppress_health_check=list(hypothesis.HealthCheck),
    )(checked)
    # Flaky: it failed and then did not, as with a race. Either way there is a failure.
    with contextlib.suppress(_Found, hypothesis.errors.Flaky):
        while len(done) < EXAMPLES and time.monotonic() < deadline:
            before = len(done)
            checked()
            if len(done) == before:
                break
    return found


def _elements(dims: dict[str, int]) -> int:
    product = 1
    for size in dims.values():
        product *= size
    return product
