"""The operator of the kernels with a known time: a copy of 64 numbers, or sums over a large input.

The numbers are small whole ones, so that every result is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from kernelproof.operators import Call, Cost, Reference, Relation, SanityCall, Suspect, dims_of
from kernelproof.records import Case, OptionValue

if TYPE_CHECKING:
    from kernelproof.config import Precision

LANES, BLOCKS, THREADS, VECTOR_WIDTH = 64, 1024, 256, 4  # spin.h
NUMBERS = ("ns", "iterations", "plus_1", "plus_2")


class Spin:
    """The operator (see kernelproof.operators.Operator). Shapes: x [elements], y [64], or [1024] where x is longer."""

    name = "spin"
    dims: dict[str, int | str | None] = {"elements": None, **dict.fromkeys(NUMBERS)}
    options: dict[str, tuple[OptionValue, ...]] = {}
    families = ("normal",)
    dtypes = ("float32",)
    axes = ("place",)

    def make_call(self, case: Case, generator: torch.Generator) -> Call:
        """The arguments in the order of the binding's entries."""
        d = dims_of(self, case)
        x = torch.randint(-4, 5, (d["elements"],), generator=generator, dtype=torch.int8).float()
        y = torch.empty(LANES if d["elements"] == LANES else BLOCKS)
        return Call({"x": x, "y": y, **{name: d[name] for name in NUMBERS}}, outputs=("y",), axes=self.axes)

    def reference(self, call: Call, precision: Precision, device: str | torch.device = "cpu") -> Reference:
        """The copy, or the sum of the elements that each block takes, turn by turn."""
        x = call.tensor("x").to(device).double()
        if call.output.numel() == BLOCKS:
            turn = VECTOR_WIDTH * THREADS
            padded = torch.nn.functional.pad(x, (0, -x.numel() % (turn * BLOCKS)))
            x = padded.reshape(-1, BLOCKS, turn).sum(dim=(0, 2))
        return Reference(x, torch.zeros_like(x), 0.0, exact=True)

    def sanity_calls(self, case: Case, generator: torch.Generator) -> list[SanityCall]:
        """None: every call is exact."""
        return []

    def relations(self, case: Case, call: Call, generator: torch.Generator) -> list[Relation]:
        """None: there is nothing to compute."""
        return []

    def cost(self, case: Case) -> Cost:
        """X is read and y is written once."""
        d = dims_of(self, case)
        return Cost(0.0, 4.0 * d["elements"], 4.0 * (LANES if d["elements"] == LANES else BLOCKS))

    def suspects(self, call: Call, rows: torch.Tensor) -> Iterator[Suspect]:
        """None."""
        yield from ()


OPERATOR = Spin()
