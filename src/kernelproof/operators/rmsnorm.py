"""RMSNorm: y = x / √(mean(x²) + eps) · weight, row by row.

Shapes: x, y [rows, cols]; weight [cols]. It has nothing in common with attention, which is the point: this module is
all that an operator needs, and docs/how-to/add-a-kernel.md walks through it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from kernelproof.formats import listed
from kernelproof.operators import (
    Call,
    Cost,
    Reference,
    Relation,
    SanityCall,
    Suspect,
    accumulation_floors,
    changed,
    dims_of,
    dtype,
    exactly,
    forward_bound,
    placed,
    shuffled,
    units,
)
from kernelproof.records import Case, OptionValue

if TYPE_CHECKING:
    from kernelproof.config import Precision

EPS = 1e-5

WEIGHT_SCALES = "weight_scales"  # the family whose weights span the data type's powers of two
SIGNED_WEIGHTS = "signed_weights"  # whose weights are of either sign, every third of them 0

# In the bound: the sum of squares has no cancellation, and half of its relative error reaches y. 64 roundings, and more
# in proportion where a row is longer than WIDE: in one chain of additions each loses more, the larger the sum is then.
ACCUMULATION, WIDE = 8, 1024


class RmsNorm:
    """The RMSNorm operator (see kernelproof.operators.Operator)."""

    name = "rmsnorm"
    dims: dict[str, int | str | None] = {"rows": None, "cols": None}
    options: dict[str, tuple[OptionValue, ...]] = {}
    dtypes = ("float32", "float16", "bfloat16")
    strided = True
    axes = ("row", "column")

    @property
    def families(self) -> tuple[str, ...]:
        """The input families, the default first."""
        return tuple(FAMILIES)

    def make_call(self, case: Case, generator: torch.Generator) -> Call:
        """Inputs of a case: x of the family, weights around 1 unless the family is theirs, eps = 1e-5."""
        d, kind = dims_of(self, case), dtype(case.dtype)
        x = FAMILIES[case.family](torch.randn(d["rows"], d["cols"], generator=generator), kind)
        weight = 1 + 0.5 * torch.randn(d["cols"], generator=generator)
        if case.family == WEIGHT_SCALES:
            most = 8 if kind == torch.float16 else 40  # outputs neither overflow nor vanish
            weight *= 2.0 ** torch.randint(-most, most + 1, weight.shape, generator=generator)
        if case.family == SIGNED_WEIGHTS:
            weight = torch.randn(weight.shape, generator=generator)
            weight[::3] = 0
        return self._call(x.to(kind), weight.to(kind), EPS)

    def _call(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Call:
        return Call({"x": x, "weight": weight, "y": torch.empty_like(x), "eps": eps}, outputs=("y",), axes=self.axes)

    def reference(self, call: Call, precision: Precision, device: str | torch.device = "cpu") -> Reference:
        """y in float64, with B = u_o|y| + u_p(1+u_p)|y| + 8u_a|y|: every operation is well conditioned, so A = |y|.

        The last term grows with the columns beyond WIDE.

        The declared `p` is the type that x / √(mean(x²) + eps) is rounded to before the weight is applied: absolutely,
        by half a subnormal, where that is subnormal.
        """
        x, weight = (call.tensor(name).to(device).double() for name in ("x", "weight"))
        unit = units(precision, call.tensor("x").dtype)
        normalised = x * (x.square().mean(-1, keepdim=True) + call.scalar("eps")).rsqrt()
        output = normalised * weight
        accumulation = ACCUMULATION * max(1.0, x.shape[-1] / WIDE) * unit.accumulate * output.abs()
        bound = forward_bound(output, output.abs(), accumulation, unit)
        bound += unit.intermediate_smallest / 2 * weight.abs()
        rounded = [unit.rounded(normalised) * weight] if unit.intermediate >= unit.output else []
        floors = accumulation_floors(output, accumulation, unit, rounded=rounded)
        return Reference(output, bound, unit.coarse, *floors)

    def sanity_calls(self, case: Case, generator: torch.Generator) -> list[SanityCall]:
        """Rows of ±c, and of c and −c in turn, which give ±weight; and rows with a single entry, which give
        ±√cols·weight there. eps is 0. And with eps = 1e-5 rows of zeros, which give zeros, between others of which
        nothing is asked. In one call the weights are 1 at both ends, for who looks there only.
        """
        cols, kind = dims_of(self, case)["cols"], dtype(case.dtype)
        rows = 25
        row = torch.arange(rows)
        weight = 2.0 ** torch.randint(-3, 4, (cols,), generator=generator)
        ends = weight.clone()
        ends[0] = ends[-1] = 1
        signs = torch.where(torch.rand(rows, cols, generator=generator) < 0.5, -1.0, 1.0)
        turns = (1.0 - 2 * (row % 2))[:, None]
        flat = signs * 2.0 ** (row % 9 - 4)[:, None]
        single = torch.zeros(rows, cols)
        single[row, row * 5 % cols] = flat[row, row * 5 % cols]
        made = []
        for name, x, by, right in (
            ("signs", flat, weight, signs),
            ("constant", flat.abs() * turns, ends, turns),
            ("one_entry", single, weight, single.sign() * math.sqrt(cols)),
        ):
            at = Case(self.name, f"sanity_{name}", {"rows": rows, "cols": cols}, {}, case.dtype, name)
            rounded = (right * by).to(kind).double()
            # An approximate reciprocal root is good to a few float32 roundings; half precision hides them.
            slack = 2.0**-21 if kind == torch.float32 else torch.finfo(kind).eps if name == "one_entry" else 0.0
            made.append(
                SanityCall(
                    name,
                    at,
                    self._call(x.to(kind), by.to(kind), 0.0),
                    Reference(rounded, rounded.abs() * slack, 0.0, exact=True),
                )
            )
        at = Case(self.name, "sanity_zero_rows", {"rows": rows, "cols": cols}, {}, case.dtype, "zero_rows")
        asked = (row % 2 == 0)[:, None].expand(rows, cols)
        call = self._call((flat * ~asked).to(kind), weight.to(kind), EPS)
        zero = torch.zeros(rows, cols, dtype=torch.float64)
        made.append(SanityCall("zero_rows", at, call, Reference(zero, zero.where(asked, math.inf), 0.0, exact=True)))
        return made

    def relations(self, case: Case, call: Call, generator: torch.Generator) -> list[Relation]:
        """Scales and signs, permutations, and rows that have nothing to do with each other."""
        made = [_scaled_rows(call), _negated_rows(call), _scaled_weight(call)]
        made += [_permuted_rows(call, generator), _permuted_columns(call, generator)]
        made += [_changed_rows(call, generator)]
        return [relation for relation in made if relation is not None]

    def cost(self, case: Case) -> Cost:
        """Four operations an element; x and the weights read once, y written once."""
        d, item = dims_of(self, case), dtype(case.dtype).itemsize
        elements = d["rows"] * d["cols"]
        return Cost(4.0 * elements, (elements + d["cols"]) * item, elements * item)

    def suspects(self, call: Call, rows: torch.Tensor) -> Iterator[Suspect]:
        """What well-known faults would have given for these rows, [n, 1]."""
        x, weight, eps = call.tensor("x")[rows[:, 0].cpu()].double(), call.tensor("weight").double(), call.scalar("eps")
        square = x.square().mean(-1, keepdim=True)
        cols = x.shape[-1]

        def normed(square: torch.Tensor, eps: float = eps) -> torch.Tensor:
            return x * (square + eps).rsqrt() * weight

        yield Suspect("eps is left out", lambda: normed(square, 0.0))
        yield Suspect("eps is added after the root", lambda: x / (square.sqrt() + eps) * weight)
        yield Suspect("the weight is not applied", lambda: normed(square) / weight)
        yield Suspect("the weight is applied as 1 + weight", lambda: normed(square) / weight * (1 + weight))
        yield Suspect("the sum of squares is not divided by the number of columns", lambda: normed(square * cols))
        yield Suspect("the root is not taken", lambda: x / (square + eps) * weight)
        yield Suspect("the mean is subtracted, as in LayerNorm", lambda: _layer_norm(x, weight, eps))
        yield Suspect("nothing is computed: the result is zero", lambda: torch.zeros_like(x))
        cuts: dict[int, list[str]] = {}  # columns that are summed → widths of which they are the whole ones
        for width in (32, 64, 128, 256, 1024):
            if cols > width:
                cuts.setdefault(width, [])
            if 0 < (whole := cols // width * width) < cols:
                cuts.setdefault(whole, []).append(str(width))
        for summed, widths in cuts.items():
            part = x[:, :summed].square().sum(-1, keepdim=True) / cols
            missing = f": those after the last whole {listed(widths)} are missing" if widths else ""
            yield Suspect(f"only the first {summed} columns are summed{missing}", functools.partial(normed, part))


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


# --- relations --------------------------------------------------------------------------------------------------------


def _scaled_rows(call: Call) -> Relation:
    """x → 32x with eps → 1024·eps, from rows so small (by a power of two) that eps counts as much as their squares."""
    x, eps = call.tensor("x"), call.scalar("eps")
    mean = float(x.double().square().mean())
    shrink = 2.0 ** round(math.log2(eps / mean) / 2) if eps > 0 and mean > 0 else 1.0
    base = changed(call, x=placed(x.double() * shrink, x))
    return Relation(
        "scaled rows",
        "rows about √eps times 32 with eps times 1024 leave the output as it is",
        changed(call, x=placed(base.tensor("x").double() * 32, x), eps=eps * 1024),
        lambda output: output,
        base=base,
        moves=True,
        cause="eps is not the one that was asked for, or is added in another place",
    )


def _negated_rows(call: Call) -> Relation:
    return Relation(
        "negated rows",
        "−x gives −y",
        changed(call, x=-call.tensor("x")),
        lambda output: -output,
        exact=True,
        cause="something is subtracted or clamped that should not be",
    )


def _scaled_weight(call: Call) -> Relation | None:
    """Bit for bit where both outputs are normal numbers, a factor of 4 from either end of their range."""
    x, weight = call.tensor("x"), call.tensor("weight")
    scaled = exactly(weight.double() / 2, weight)
    if scaled is None:
        return None
    root = (x.double().square().mean(-1, keepdim=True) + call.scalar("eps")).rsqrt()
    size, limits = (x.double() * root * weight.double()).abs(), torch.finfo(call.output.dtype)
    return Relation(
        "halved weight",
        "half the weight gives half the output",
        changed(call, weight=scaled),
        lambda output: output / 2,
        exact=True,
        where=(size > 8 * limits.tiny) & (size < limits.max / 4),
        cause="the weight is not applied as a factor, or is rounded on the way",
    )


def _permuted_rows(call: Call, generator: torch.Generator) -> Relation | None:
    x = call.tensor("x")
    if x.shape[0] < 2:
        return None
    order = shuffled(x.shape[0], generator)
    return Relation(
        "permuted rows",
        "reordering the rows of x reorders those of the output in the same way",
        changed(call, x=placed(x[order], x)),
        lambda output: output[order.to(output.device)],
        moves=True,
        cause="a row index is wrong, or rows are treated by their position",
    )


def _permuted_columns(call: Call, generator: torch.Generator) -> Relation | None:
    x, weight = call.tensor("x"), call.tensor("weight")
    if x.shape[1] < 2:
        return None
    order = shuffled(x.shape[1], generator)
    moved = {"x": placed(x[:, order], x), "weight": placed(weight[order], weight)}
    return Relation(
        "permuted columns",
        "reordering the columns of x together with the weights reorders those of the output in the same way",
        changed(call, **moved),
        lambda output: output[:, order.to(output.device)],
        moves=True,
        cause="columns are treated by their position: the sum does not take all, or a weight is another's",
    )


def _changed_rows(call: Call, generator: torch.Generator) -> Relation | None:
    """About half of the rows, one at least, become as large as the largest entry; the others must not notice."""
    x = call.tensor("x")
    rows = x.shape[0]
    if rows < 2:
        return None
    kept = torch.rand(rows, generator=generator) < 0.5
    kept[torch.randperm(rows, generator=generator)[:2]] = torch.tensor([True, False])
    loud = x.double().abs().max().clamp_min(1.0)
    return Relation(
        "changed rows",
        "other rows do not change a row's result",
        changed(call, x=placed(torch.where(kept[:, None], x.double(), loud), x)),
        lambda output: output,
        exact=True,
        where=kept[:, None].expand(x.shape),
        cause="a sum takes in another row, or is kept from one row to the next",
    )


# --- input families ---------------------------------------------------------------------------------------------------


def _heavy_tailed(x: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Cubes of normal numbers: few columns make up the sum."""
    return x**3


def _one_entry(x: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    row = torch.arange(x.shape[0])
    single = torch.zeros_like(x)
    single[row, row * 5 % x.shape[1]] = x[row, row * 5 % x.shape[1]]
    return single


def _outliers(x: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Three usual entries a row among so small ones that no square counts beside theirs, and their sum does.

    Three, since with a single one the row comes to its sign times √cols, whose rounding would be a bias of all rows.
    """
    row = torch.arange(x.shape[0])
    many = x * 3e-4
    for step in (5, 7, 11):
        column = row * step % x.shape[1]
        many[row, column] = x[row, column]
    return many


def _per_row_scale(x: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    return x * 2.0 ** (torch.arange(x.shape[0])[:, None] % 12 - 6)


def _near_overflow(x: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Squares beyond float16; in wider exponents as large as float32 sums allow."""
    return x.clamp(-4, 4) * (2.0**13 if kind == torch.float16 else 2.0**50)


def _denormal(x: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Far below eps, subnormal in float16: y is x·weight/√eps."""
    return x * (2.0**-17 if kind == torch.float16 else 2.0**-100)


def _zero_rows(x: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    return x * (torch.arange(x.shape[0])[:, None] % 2)


FAMILIES: dict[str, Callable[[torch.Tensor, torch.dtype], torch.Tensor]] = {
    "normal": lambda x, kind: x,
    "offset": lambda x, kind: x + 8,
    "heavy_tailed": _heavy_tailed,
    "per_row_scale": _per_row_scale,
    "one_entry": _one_entry,
    "integers": lambda x, kind: (x * 4).round(),
    "small": lambda x, kind: x * math.sqrt(EPS),
    "denormal": _denormal,
    "near_overflow": _near_overflow,
    "zero_rows": _zero_rows,
    "negative": lambda x, kind: -x.abs(),
    "outliers": _outliers,
    WEIGHT_SCALES: lambda x, kind: x,
    SIGNED_WEIGHTS: lambda x, kind: x,
}

OPERATOR = RmsNorm()
