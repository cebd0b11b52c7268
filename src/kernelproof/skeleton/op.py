"""$operator: y = x·Φ(x), with Φ the normal distribution (GELU). A worked example: put your own operator in its place.

kernelproof asks six things of an operator: its inputs, the right result with a bound for its error, some calls whose
result is known without arithmetic, what a call costs, and (optional) relations between calls and, for diagnosis, what
known faults would give.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from kernelproof.operators import (
    Call,
    Cost,
    Reference,
    Relation,
    SanityCall,
    Suspect,
    changed,
    dims_of,
    dtype,
    forward_bound,
    placed,
    shuffled,
    units,
)
from kernelproof.records import Case

if TYPE_CHECKING:
    from kernelproof.config import Precision


class Gelu:
    """The operator (see kernelproof.operators.Operator). Shapes: x, y [rows, cols]."""

    name = "$operator"
    dims: dict[str, int | str | None] = {"rows": None, "cols": None}  # None: every shape in config.yaml gives it
    options: dict[str, tuple[bool | int | str, ...]] = {}  # e.g. {"causal": (False, True)}
    families = ("normal", "wide", "integers")  # how inputs are drawn; config.yaml picks some
    dtypes = ("float32", "float16")
    axes = ("row", "column")  # of the output, for messages

    def make_call(self, case: Case, generator: torch.Generator) -> Call:
        """The arguments in the order of the binding's `run`, on the CPU. The kernel never sees the generator."""
        d = dims_of(self, case)
        x = torch.randn(d["rows"], d["cols"], generator=generator)
        if case.family == "wide":
            x = 4 * x
        elif case.family == "integers":
            x = (3 * x).round()
        return self._call(x.to(dtype(case.dtype)))

    def _call(self, x: torch.Tensor) -> Call:
        return Call({"x": x, "y": torch.empty_like(x)}, outputs=("y",), axes=self.axes)

    def reference(self, call: Call, precision: Precision, device: str | torch.device = "cpu") -> Reference:
        """Y in float64 on the very values of the call, and how far from it a correct kernel may be.

        The usual formula ½x(1 + erf(x/√2)) cancels for negative x, so its error is relative to x rather than to y.
        """
        x = call.tensor("x").to(device).double()
        unit = units(precision, call.tensor("x").dtype)
        output = x * torch.special.erfc(-x / math.sqrt(2)) / 2
        accumulation = unit.accumulate * x.abs()
        bound = forward_bound(output, torch.zeros_like(x), accumulation, unit)
        # An erf in float32 is good to one or two roundings, which may all go the same way: floors of (b) and (c).
        rms_floor = float(accumulation.square().mean().sqrt()) / 4
        return Reference(output, bound, unit.coarse, rms_floor, bias_floor=unit.accumulate / 8)

    def sanity_calls(self, case: Case, generator: torch.Generator) -> list[SanityCall]:
        """Y = x exactly where x is large, and another x in every place: a wrong index shows. Y = 0 where x is.

        Any other bits are wrong here, without a bound, so a call belongs here only if every legitimate kernel gives
        these very bits. Where x is very negative one does not: ½x(1 + erf(x/√2)) with an erf that ends one rounding
        short of −1 gives no zero, and is within the bound of `reference`, which judges such x.
        7·37 elements, 5 more than a vector's multiple in a row and 3 in all: no vector or block divides them.
        """
        rows, cols = 7, 37
        place = torch.arange(rows * cols).reshape(rows, cols)
        one_hot = torch.where(place == 5 * cols + 17, 64.0, 0.0)
        calls = []
        for name, x in (("large", 16.0 + place), ("one_hot", one_hot)):
            at = Case(self.name, f"sanity_{name}", {"rows": rows, "cols": cols}, {}, case.dtype, name)
            call = self._call(x.to(dtype(case.dtype)))
            expected = call.tensor("x").double().clamp_min(0)
            calls.append(SanityCall(name, at, call, Reference(expected, torch.zeros_like(expected), 0.0, exact=True)))
        return calls

    def relations(self, case: Case, call: Call, generator: torch.Generator) -> list[Relation]:
        """Calls whose results follow from one another, whatever the reference says. Transforms must be exact."""
        x = call.tensor("x")
        order = shuffled(x.numel(), generator)
        return [
            Relation(
                "odd part",
                "y(−x) = y(x) − x",
                changed(call, x=-x),
                lambda y: y - x.to(y.device),
                cause="the two sides of zero are not computed in the same way",
            ),
            Relation(
                "permuted elements",
                "reordering x reorders y in the same way",
                changed(call, x=placed(x.flatten()[order].reshape(x.shape), x)),
                lambda y: y.flatten()[order.to(y.device)].reshape(y.shape),
                moves=True,
                cause="an element is treated by its position: an index is wrong, or a tail is left out",
            ),
        ]

    def cost(self, case: Case) -> Cost:
        """Per element: 4 operations, one erfc; x is read and y written once."""
        d = dims_of(self, case)
        elements = d["rows"] * d["cols"]
        size = elements * dtype(case.dtype).itemsize
        return Cost(4.0 * elements, size, size, exponentials=elements)

    def suspects(self, call: Call, rows: torch.Tensor) -> Iterator[Suspect]:
        """What likely faults would have given for these rows; the report names the one that fits a wrong result."""
        x = call.tensor("x")[rows[:, 0].cpu()].double()
        yield Suspect("the tanh approximation was used", lambda: torch.nn.functional.gelu(x, approximate="tanh"))
        yield Suspect("the input was copied", lambda: x)


OPERATOR = Gelu()
