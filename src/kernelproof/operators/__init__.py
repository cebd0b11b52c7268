"""What an operator module provides, and the parts of it that all operators share.

An operator module exposes `OPERATOR`, an instance of a class that implements `Operator`: named dimensions, inputs for
each family, a float64 reference with an error bound, exact cases, a cost model and, for diagnosis, known faults. It may
also state relations between calls (`Relation`).

Error model. With û(x) the unit roundoff of a data type, the bound of criterion (a) is

    B = u_o·|O| + u_p·(1 + u_p)·A + (accumulation term in u_a) + smallest number of the output type

u_o is the roundoff of the declared output type, u_p of the declared intermediate (P in attention) and u_a = 8·û of the
declared accumulation type: 2⁻²¹ for float32. When output and P share a type this is exactly the formula of
docs/explanation/correctness.md.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import torch

from kernelproof.config import Declared
from kernelproof.errors import ConfigError, KernelproofError, TestError, blamed, guide, nearest
from kernelproof.records import Case, OptionValue

if TYPE_CHECKING:
    from kernelproof.config import OperatorConfig, Precision

Argument: TypeAlias = torch.Tensor | int | float | bool | None
T = TypeVar("T")

DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
}
WHOLE = [name for name, kind in DTYPES.items() if not kind.is_floating_point]

# û: half the distance from 1 to the next number.
UNIT_ROUNDOFF: dict[str, float] = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "fp22": 2.0**-14,  # what tensor cores keep of sums of 8-bit products (sm_89, wgmma of sm_90): 14 bits
    "tfloat32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    **dict.fromkeys(WHOLE, 0.0),
}

SMALLEST_SUBNORMAL: dict[str, float] = {
    "float64": 2.0**-1074,
    "float32": 2.0**-149,
    "tfloat32": 2.0**-136,
    "float16": 2.0**-24,
    "bfloat16": 2.0**-133,
    "float8_e4m3fn": 2.0**-9,
    "float8_e5m2": 2.0**-16,
    **dict.fromkeys(WHOLE, 0.0),
}
# Results that fast arithmetic may flush to zero (-use_fast_math, -ffast-math), by the smallest that it may not.
SMALLEST_NORMAL = {"float64": 2.0**-1022, "float32": 2.0**-126, "bfloat16": 2.0**-126}


@dataclass
class Call:
    """One call of a kernel: arguments in call order, on the CPU.

    `outputs` names the arguments that the kernel writes; `axes` names the output's dimensions for messages, of several
    outputs by each one's name. Tensors may be views with any strides, but their last dimension has stride 1, as long as
    the test does not move its elements apart (`with_gaps`).
    """

    arguments: dict[str, Argument]
    outputs: tuple[str, ...]
    axes: tuple[str, ...] | Mapping[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        for name, value in self.arguments.items():
            if not isinstance(value, Argument):
                raise KernelproofError(
                    f"the argument is a {type(value).__name__}; allowed: tensor, int, float, bool, None", subject=name
                )
        named = isinstance(self.outputs, tuple) and self.outputs and set(self.outputs) <= set(self.tensors)
        if not named or len(set(self.outputs)) < len(self.outputs):
            raise KernelproofError(
                f"{self.outputs!r} does not name tensors, each once, in a tuple; allowed: {', '.join(self.tensors)}",
                subject="outputs of a Call",
            )
        odd = [(name, dtype_name(tensor.dtype)) for name, tensor in self.inputs.items()]
        if odd and not DTYPES.keys() & {kind for _, kind in odd}:
            raise KernelproofError(
                f"it is {odd[0][1]}, and some input has to be of a supported data type: {', '.join(DTYPES)}",
                subject=odd[0][0],
                hint="hand it over as one of these: torch.view_as_real(x) of complex numbers, x.view(torch.int32), …",
            )
        if kinds := [name for name in self.outputs if self.tensors[name].dtype == torch.bool]:
            hint = "make it uint8"
            raise KernelproofError("it is bool, which has no differences", subject=f"output {kinds[0]}", hint=hint)
        if scalars := [name for name, tensor in self.tensors.items() if not tensor.dim()]:
            hint = "give it the shape [1]; a number that no kernel reads from memory is an int, float or bool"
            raise KernelproofError("the tensor has no dimension", subject=scalars[0], hint=hint)
        by_name = self.axes if isinstance(self.axes, Mapping) else {self.outputs[0]: self.axes}
        for name in self.outputs:
            axes, dimensions = by_name.get(name), self.tensors[name].dim()
            if not isinstance(axes, tuple) or len(axes) != dimensions:
                raise KernelproofError(
                    f"{axes!r} does not name the {dimensions} dimensions of {name}, in a tuple",
                    subject="axes of a Call",
                    hint="of several outputs `axes` is a mapping: " + ", ".join(f"{n!r}: (…)" for n in self.outputs)
                    if len(self.outputs) > 1
                    else None,
                )

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensor arguments, inputs and outputs."""
        return {name: value for name, value in self.arguments.items() if isinstance(value, torch.Tensor)}

    @property
    def scalars(self) -> dict[str, int | float | bool | None]:
        """The other arguments; None stands for a tensor that a call does without."""
        return {name: value for name, value in self.arguments.items() if not isinstance(value, torch.Tensor)}

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """The tensor arguments that the kernel must leave as they are."""
        return {name: value for name, value in self.tensors.items() if name not in self.outputs}

    @property
    def output(self) -> torch.Tensor:
        """The (first) output: its shape, strides and data type; its values mean nothing."""
        return self.tensors[self.outputs[0]]

    @property
    def output_bytes(self) -> int:
        """Of all elements of all outputs."""
        return sum(self.tensors[name].nbytes for name in self.outputs)

    def axes_of(self, output: str) -> tuple[str, ...]:
        """The names of an output's dimensions."""
        return self.axes[output] if isinstance(self.axes, Mapping) else self.axes

    def alone(self, output: str) -> Call:
        """The same inputs with one of the outputs."""
        if self.outputs == (output,):
            return self
        arguments = {n: value for n, value in self.arguments.items() if n == output or n not in self.outputs}
        return Call(arguments, (output,), self.axes_of(output))

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor argument by name. Raises LookupError where there is none."""
        value = self.arguments.get(name)
        if not isinstance(value, torch.Tensor):
            raise _absent("tensor", name, self.tensors)
        return value

    def scalar(self, name: str) -> float:
        """A scalar argument by name. Raises LookupError where there is none."""
        if name not in self.arguments:
            raise _absent("scalar", name, self.scalars)
        value = self.arguments[name]
        if value is None or isinstance(value, torch.Tensor):
            raise KernelproofError(f"is {'None' if value is None else 'a tensor'}, not a scalar", subject=name)
        return value


def _absent(kind: str, name: str, known: Iterable[str]) -> LookupError:
    return LookupError(f"a call has no {kind} {name!r}; it has {', '.join(known)}{nearest(name, known)}")


@dataclass
class Reference:
    """What is right, and how far from it a correct kernel may be.

    output: float64, shape of the output. bound: criterion (a), per element; infinite where nothing is demanded.
    unit_roundoff: u of criteria (b) and (c). rms_floor and bias_floor: what float32 accumulation alone may cause in (b)
    (absolute) and (c) (relative), see `accumulation_floors`. exact: only `bound` is judged, as of outputs of whole
    numbers: of an index it is 0, of what is rounded to whole numbers a half and what float arithmetic adds. Of int64
    only what float64 holds can be told apart, up to 2⁵³. nonfinite: infinity and NaN in `output` are meant (the
    log-sum-exp of nothing is -inf), and there a kernel has to give the same; else they are refused as an overflow.
    What was meant is moved to `limits`, which is 0 elsewhere: `output` is 0 then, and the bound infinite.
    """

    output: torch.Tensor
    bound: torch.Tensor
    unit_roundoff: float
    rms_floor: float = 0.0
    bias_floor: float = 0.0
    exact: bool = False
    nonfinite: bool = False
    limits: torch.Tensor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        for name, value in (("output", self.output), ("bound", self.bound)):
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                raise KernelproofError(
                    f"it is {_kind(value)}; allowed: a tensor of floating-point numbers",
                    subject=f"{name} of a Reference",
                )
        if self.output.dtype != torch.float64:
            raise KernelproofError(
                f"it is {dtype_name(self.output.dtype)}, and has to be computed in float64",
                subject="output of a Reference",
                hint="start from `call.tensor(...).to(device).double()`",
            )
        if self.bound.shape != self.output.shape:
            raise KernelproofError(
                f"it has shape {list(self.bound.shape)}, and the output {list(self.output.shape)}: it is one for each "
                "element of the output",
                subject="bound of a Reference",
                hint="give both the shape of what the call's output is",
            )
        if self.nonfinite and not bool((finite := self.output.isfinite()).all()):
            self.limits = self.output.where(~finite, 0.0)
            self.output, self.bound = self.output.where(finite, 0.0), self.bound.where(finite, math.inf)
        if bool(((self.bound == 0) & self.bound.signbit()).any()):  # -1.0 * 0: what is divided by it is below 0
            self.bound = torch.where(self.bound == 0, 0.0, self.bound)
        for name, floor in (("rms_floor", self.rms_floor), ("bias_floor", self.bias_floor)):
            whole = self.output.numel() and bool(self.output.isfinite().all())
            if isinstance(floor, float) and math.isnan(floor) and not whole:
                continue  # a mean of nothing, or what is told is why
            if not isinstance(floor, float | int) or not floor >= 0:
                what = f"a tensor of {list(floor.shape)}" if isinstance(floor, torch.Tensor) else repr(floor)
                raise KernelproofError(
                    f"it is {what}; allowed: a number that is not below 0",
                    subject=f"{name} of a Reference",
                    hint="take `accumulation_floors`, or `float(...)` of what you computed",
                )
        unit = self.unit_roundoff
        if not isinstance(unit, float | int) or not (unit == 0 or (0 < unit < 1 and math.frexp(unit)[0] == 0.5)):
            raise KernelproofError(
                f"it is {unit!r}; allowed: 0 (nothing is rounded), or half a step of a data type near 1: a power of 2 "
                "below 1 such as 2.0**-24 (float32) or 2.0**-11 (float16)",
                subject="unit_roundoff of a Reference",
                hint="take `units(precision, x.dtype).coarse`; how far an element may be off is `bound`",
            )

    @property
    def meant(self) -> torch.Tensor:
        """Where infinity or NaN is meant: a mask."""
        if self.limits is None:
            return torch.zeros_like(self.output, dtype=torch.bool)
        return ~self.limits.isfinite()

    @property
    def whole(self) -> torch.Tensor:
        """The output with the infinities and NaN that are meant."""
        return self.output if self.limits is None else self.output.where(~self.meant, self.limits)


# What is right of a call: of several outputs by each one's name.
References = Reference | Mapping[str, Reference]


@dataclass
class SanityCall:
    """A call whose result is known without arithmetic on the reference's side; `reference.exact` is true."""

    name: str
    case: Case
    call: Call
    reference: References


@dataclass(frozen=True)
class Cost:
    """What one call of a case must do at least: floating-point operations, bytes from and to memory, exponentials."""

    flops: float
    bytes_read: float
    bytes_written: float
    exponentials: float = 0.0


@dataclass
class Suspect:
    """A known fault and what it would have given: float64, shape [rows asked for, last dimension]."""

    cause: str
    output: Callable[[], torch.Tensor] = field(repr=False)


@dataclass
class Relation:
    """A transformed call whose output follows from that of the base call (docs/explanation/correctness.md, e).

    The judge holds |ô' − expected(ô)| to gain·B̃ + B', with B̃ what `expected` makes of the base's bound; see
    `kernelproof.judge.related`. That needs `expected` to take each element from one element of the base output, by a
    monotone function (permutations, powers of two, signs, offsets, constants), or a `gain` that makes up for it.

    name: short, unique in the operator. claim: one sentence for the report. call: the transformed call, with the
    shapes, strides, data types and scalars of the base, but those that the transform is about; every transform is exact
    in the inputs' data types. expected: base output to output of `call`, both float64, on whatever device they are.
    exact: they agree bit for bit. where: bool, shape of the output: only there; None is everywhere. base: the call that
    the output of `call` follows from; None is the one that the relations were asked for. cause: what a kernel that
    breaks the relation probably does, for the message. moves: `expected` only reorders elements and changes signs, and
    the bound of `call` is the base's, reordered; see `reference_after`. output: the name of the one that all this is
    about; empty is the first.
    """

    name: str
    claim: str
    call: Call
    expected: Callable[[torch.Tensor], torch.Tensor] = field(repr=False)
    gain: float = 1.0
    exact: bool = False
    where: torch.Tensor | None = field(default=None, repr=False)
    base: Call | None = None
    cause: str = ""
    moves: bool = False
    output: str = ""

    @property
    def about(self) -> str:
        """The name of the output that it is about."""
        return self.output or self.call.outputs[0]


@runtime_checkable
class Operator(Protocol):
    """The interface of an operator module's `OPERATOR`.

    dims: the dimensions a shape may give, with a default: an int, the name of another dimension, or None (required).
    options: the values of each option, the default first. axes: the output's dimensions, as in a `Call`.

    One more method is optional, and called through `relations_of`:

        def relations(self, case: Case, call: Call, generator: torch.Generator) -> list[Relation]

    It gives the relations that hold for `call`, an outcome of `make_call` for `case`, which it leaves as it is. Random
    choices (which permutation) are drawn from `generator`.

    And two attributes: with `strided = True` a kernel must go by each tensor's own strides, or refuse them; see
    `with_own_strides` and `with_gaps`. `whole` names inputs, of every case, whose values belong together, such as
    sorted ones, and `independent` inputs of whole numbers of which each element may be another by itself, such as
    positions or labels; see `changeable`.
    """

    # Read only, so that a class attribute and a property will both do.
    @property
    def name(self) -> str: ...
    @property
    def dims(self) -> Mapping[str, int | str | None]: ...
    @property
    def options(self) -> Mapping[str, tuple[OptionValue, ...]]: ...
    @property
    def families(self) -> tuple[str, ...]: ...
    @property
    def dtypes(self) -> tuple[str, ...]: ...
    @property
    def axes(self) -> tuple[str, ...] | Mapping[str, tuple[str, ...]]: ...

    def make_call(self, case: Case, generator: torch.Generator) -> Call:
        """The inputs of a case, drawn from `generator`, and outputs whose values mean nothing."""
        ...

    def reference(self, call: Call, precision: Precision, device: str | torch.device = "cpu") -> References:
        """The float64 result on the very values of the call, with the bounds; tensors are left on `device`.

        Of several outputs a mapping from their names.
        """
        ...

    def sanity_calls(self, case: Case, generator: torch.Generator) -> list[SanityCall]:
        """Exact cases in the data type and options of `case`; only its dimensions other than lengths are kept."""
        ...

    def cost(self, case: Case) -> Cost:
        """The cost model of a case."""
        ...

    def suspects(self, call: Call, rows: torch.Tensor) -> Iterator[Suspect]:
        """Results of known faults for some rows of the (first) output (int64 [n, output dimensions − 1])."""
        ...


def load(module: str, root: Path) -> Operator:
    """The operator of a dotted module name, or of a `.py` path relative to `root`.

    Raises ConfigError when there is no such module or it has no usable `OPERATOR`, JudgeError for a fault in it.
    """
    try:
        with blamed(module, root):
            loaded = _import(module, root)
    except (ImportError, FileNotFoundError) as error:
        raise ConfigError(f"the operator module cannot be imported: {error}", subject=module) from error
    found = getattr(loaded, "OPERATOR", None)
    if found is None:
        raise ConfigError(
            "the operator module defines no OPERATOR", subject=module, hint=f"see {guide('how-to/add-a-kernel.md')}"
        )
    if isinstance(found, type):
        raise ConfigError(f"OPERATOR is a class; write OPERATOR = {found.__name__}()", subject=module)
    if not isinstance(found, Operator):
        wanted = ("name", "dims", "options", "families", "dtypes", "axes")
        methods = ("make_call", "reference", "sanity_calls", "cost", "suspects")
        missing = [name for name in (*wanted, *methods) if not hasattr(found, name)]
        others = [name for name in dir(found) if not name.startswith("_") and name not in (*wanted, *methods)]
        meant = {name: difflib.get_close_matches(name, others, n=1, cutoff=0.75) for name in missing}
        named = [f"{name} (is {close[0]!r} meant to be it?)" if (close := meant[name]) else name for name in missing]
        raise ConfigError(
            f"OPERATOR lacks {', '.join(named)}",
            subject=module,
            hint="an operator that knows no likely faults has `def suspects(self, call, rows): return iter(())`; "
            * ("suspects" in missing)
            + "all that is needed: kernelproof/operators/__init__.py, Operator",
        )
    for name in ("families", "dtypes", "axes"):
        if isinstance(getattr(found, name), str) or not getattr(found, name):
            given = getattr(found, name)
            single = "a result that is one number has shape [1], and one axis" if name == "axes" else None
            hint = f"write {name} = ({given!r},)" if isinstance(given, str) else single
            raise ConfigError(f"OPERATOR.{name} is {given!r}, not a tuple of names", subject=module, hint=hint)
    for name, example in (("dims", '{"rows": None}'), ("options", '{"causal": (False, True)}')):
        if not isinstance(getattr(found, name), Mapping):
            given = getattr(found, name)
            raise ConfigError(f"OPERATOR.{name} is {given!r}, not a mapping like {example}", subject=module)
    options: Mapping[str, Any] = found.options
    for name, values in options.items():
        if isinstance(values, str) or not isinstance(values, Iterable) or not values:
            hint = "write (False, True)" if isinstance(values, bool) else f"write ({values!r},)"
            raise ConfigError(
                f"OPERATOR.options[{name!r}] is {values!r}, not a tuple of its values", subject=module, hint=hint
            )
    if not isinstance(strided := getattr(found, "strided", False), bool):
        raise ConfigError(f"OPERATOR.strided is {strided!r}; allowed: True and False", subject=module)
    for what in ("whole", "independent"):
        if isinstance(names := getattr(found, what, ()), str) or not isinstance(names, Iterable):
            raise ConfigError(f"OPERATOR.{what} is {names!r}, not a tuple of names of inputs", subject=module)
    if unknown := [name for name in found.dtypes if name not in DTYPES]:
        raise ConfigError(
            f"OPERATOR.dtypes has {unknown[0]!r}, which is no data type; allowed: {', '.join(DTYPES)}", subject=module
        )
    return found


def changeable(operator: Operator, call: Call) -> dict[str, torch.Tensor]:
    """The inputs of which a part may take values of another draw: numbers, and codes of a byte.

    Not so what the operator names in `whole`, nor other whole numbers, which may be indices (offsets of rows, a
    permutation), unless they are named in `independent`. Raises ConfigError for a name that no input has.
    """
    for what in ("whole", "independent"):
        if unknown := [name for name in getattr(operator, what, ()) if name not in call.inputs]:
            raise ConfigError(
                f"OPERATOR.{what} names {unknown[0]!r}; the inputs are {', '.join(call.inputs)}"
                f"{nearest(unknown[0], call.inputs)}",
                subject=operator.name,
            )
    held = {*getattr(operator, "whole", ()), *indices(operator, call)}
    return {name: tensor for name, tensor in call.inputs.items() if name not in held}


def indices(operator: Operator, call: Call) -> list[str]:
    """The inputs that may be indices whose values belong together, for all that the operator says of them."""
    said = {*getattr(operator, "whole", ()), *getattr(operator, "independent", ())}
    return [name for name, tensor in call.inputs.items() if name not in said and may_be_index(tensor)]


def may_be_index(tensor: torch.Tensor) -> bool:
    """Whether it is of whole numbers of more than a byte, which may say where in another tensor something is."""
    return not tensor.is_floating_point() and tensor.element_size() > 1


def expect(kind: type[T], found: Any, method: str) -> list[T]:
    """What an operator's method gave, as a list. Raises KernelproofError for what is not all of a kind."""
    wrong = [each for each in found if not isinstance(each, kind)] if isinstance(found, list | tuple) else [found]
    if wrong:
        hint = "does it `return` what it made?" if wrong[0] is None else None
        raise KernelproofError(f"`{method}` gave {type(wrong[0]).__name__} where {kind.__name__} belongs", hint=hint)
    return list(found)


def by_output(call: Call, found: References, method: str) -> dict[str, Reference]:
    """What an operator's method gave for a call, by output. Raises KernelproofError where it is not for all of them."""
    if not isinstance(found, Mapping) and len(call.outputs) == 1:
        found = {call.outputs[0]: found}
    if not isinstance(found, Mapping) or set(found) != set(call.outputs):
        given = ", ".join(map(str, found)) or "nothing" if isinstance(found, Mapping) else f"one {type(found).__name__}"
        raise KernelproofError(
            f"`{method}` gave {given}, and the outputs are {', '.join(call.outputs)}",
            subject=method,
            hint=f"give {{{', '.join(f'{name!r}: Reference(…)' for name in call.outputs)}}}",
        )
    return dict(zip(call.outputs, expect(Reference, [found[name] for name in call.outputs], method), strict=True))


def references_of(
    operator: Operator, call: Call, precision: Precision, device: str | torch.device
) -> dict[str, Reference]:
    """The references of a call by output. Raises KernelproofError where the operator does not give all of them."""
    return by_output(call, operator.reference(call, precision, device), "reference")


def declared(operator: Operator, settings: OperatorConfig) -> Declared:
    """What the operator takes, and of the configured shapes what each takes or why it is refused."""
    sizes: dict[str, float] = {}
    refused: dict[str, str] = {}
    for shape, dims in settings.shapes.items():
        case = Case(operator.name, shape, dict(dims), {}, operator.dtypes[0], operator.families[0])
        if set(dims) <= set(operator.dims) and all(n in dims for n, given in operator.dims.items() if given is None):
            try:
                given = operator.cost(case)
            except KernelproofError as error:
                refused[shape] = error.message
                continue
            (cost,) = expect(Cost, [given], "cost")
            sizes[shape] = cost.bytes_read + cost.bytes_written
    options = {name: list(values) for name, values in operator.options.items()}
    return Declared(dict(operator.dims), options, list(operator.families), list(operator.dtypes), sizes, refused)


def _import(module: str, root: Path) -> ModuleType:
    path = (root / module).resolve()
    folders = [path.parent] if module.endswith(".py") else []  # what lies beside a file, as for a script
    for folder in map(str, (*folders, root.resolve())):
        if not module.startswith("kernelproof.") and folder not in sys.path:
            sys.path.append(folder)  # the last: what lies in a project hides nothing
    if not module.endswith(".py"):
        return importlib.import_module(module)
    name = f"kernelproof_operator_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python module")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded  # dataclasses look their module up by name
    spec.loader.exec_module(loaded)
    return loaded


def relations_of(operator: Operator, case: Case, call: Call, generator: torch.Generator) -> list[Relation]:
    """The relations of an operator for a call of a case; none for an operator that states none.

    The generator that the call's inputs were drawn from will do; relations are then repeatable with the case.

    Raises KernelproofError, with the relation's name, for one whose call is not of the base's kind.
    """
    stated = getattr(operator, "relations", None)
    if stated is None:
        return []
    relations = expect(Relation, stated(case, call, generator), "relations")
    names = [relation.name for relation in relations]
    for relation in relations:
        fault = functools.partial(_faulty, relation)
        if names.count(relation.name) > 1:
            raise fault("two relations have this name", "give each a name of its own")
        if relation.about not in call.outputs:
            what = f"its `output` is {relation.output!r}; allowed: {', '.join(call.outputs)}"
            raise fault(what, "mend it in `relations`, or leave it out, which means the first")
        base = relation.base or call
        if {relation.call.outputs, base.outputs} != {call.outputs}:
            what = f"its calls have other outputs than the case's ({', '.join(call.outputs)})"
            raise fault(what, "make them with `changed`, which keeps them")
        for name, tensor in base.tensors.items():
            other = relation.call.arguments.get(name)
            if not isinstance(other, torch.Tensor) or _kind(other) != _kind(tensor):
                what = f"{name} of the transformed call is {_kind(other)}; the base call has {_kind(tensor)}"
                raise fault(what, "make it with `placed` or `exactly`, which keep them")
    return relations


def _faulty(relation: Relation, what: str, hint: str) -> KernelproofError:
    return KernelproofError(f"{relation.name}: {what}", subject="relations", hint=hint)


def reference_after(relation: Relation, base: Reference, reference: Callable[[Call], Reference]) -> Reference:
    """The reference that `kernelproof.judge.related` needs of a relation's call, computed only where it must be.

    Where the relation merely moves elements it is the base's, moved; where it is exact, bounds do not matter, and they
    are infinite.
    """
    if not relation.moves and not relation.exact:
        return reference(relation.call)
    output, endless = relation.expected(base.output), torch.full_like(base.bound, math.inf)
    bound = relation.expected(base.bound).abs() if relation.moves else endless
    after = dataclasses.replace(base, output=output, bound=bound)
    after.limits = None if base.limits is None else relation.expected(base.limits)
    return after


def _kind(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return "no tensor"
    return f"{dtype_name(value.dtype)} {list(value.shape)} with strides {list(value.stride())}"


def changed(call: Call, **arguments: Argument) -> Call:
    """The call with some arguments replaced; it shares all others, the output included."""
    unknown = [name for name in arguments if name not in call.arguments]
    if unknown:
        raise KernelproofError(f"there is no such argument; allowed: {', '.join(call.arguments)}", subject=unknown[0])
    return Call({**call.arguments, **arguments}, call.outputs, call.axes)


def traded(call: Call, tensor: str, scalar: str, name: str, claim: str, cause: str) -> Relation | None:
    """The relation that a tensor times 4 with a quarter of a scalar, or the other way, leaves the output as it is.

    The other way where the first overflows; None where both do. `claim` has {by} and {of} for the two factors.
    """
    for by in (4.0, 0.25):
        moved = exactly(call.tensor(tensor).double() * by, call.tensor(tensor))
        if moved is not None:
            after = changed(call, **{tensor: moved, scalar: call.scalar(scalar) / by})
            words = claim.format(by=f"{by:g}", of=f"{1 / by:g}")
            return Relation(name, words, after, lambda output: output, moves=True, cause=cause)
    return None


def with_own_strides(call: Call, alone: str = "") -> Call:
    """The same values in memory in which no two tensors have the same strides; the last dimension keeps stride 1.

    Rows of the first tensor are padded by 16 bytes, of the second by 32, and so on, or by more where a stride would be
    one of an earlier tensor's, and what rows make up as well: what began on 16 bytes still does. In every other tensor
    the two dimensions before the last change places in memory, as heads and rows may; in the third (and the seventh)
    all of those come in reverse, as batches may lie inside rows. With the name of a tensor `alone` changes: its rows
    are padded by one element, or two, so that the second begins on 16 bytes no more.
    """
    arguments, taken = dict(call.arguments), {1}
    for place, (name, tensor) in enumerate(call.tensors.items()):
        if tensor.dim() < 2 or alone not in ("", name):
            continue
        inner_first = sorted(range(tensor.dim() - 1), key=tensor.stride)
        if not alone:
            turned = {1: 2, 2: len(inner_first), 3: 2}.get(place % 4, 0)
            inner_first[:turned] = inner_first[:turned][::-1]
        size, columns = tensor.element_size(), tensor.shape[-1]
        uneven = 1 if (columns + 1) * size % 16 else 2
        padding = uneven if alone else 16 * (place + 1) // size
        strides = _padded_strides(tensor, inner_first, padding)
        while not alone and taken & set(strides[:-1]):
            padding += 16 // size
            strides = _padded_strides(tensor, inner_first, padding)
        taken.update(strides)
        arguments[name] = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
    return Call(arguments, call.outputs, call.axes)


def _padded_strides(tensor: torch.Tensor, inner_first: Sequence[int], padding: int) -> list[int]:
    """Strides in elements where rows, and whatever is made up of them, are so many elements longer than they need."""
    strides, step = [1] * tensor.dim(), tensor.shape[-1] + padding
    for dim in inner_first:
        strides[dim] = step
        step = step * tensor.shape[dim] + padding
    return strides


def with_gaps(call: Call, name: str) -> Call:
    """The same values, the elements of one tensor two apart, as those of every second column of a wider one are."""
    tensor = call.tensor(name)
    strides = [2 * stride for stride in tensor.stride()]
    return changed(call, **{name: torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)})


def placed(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Values in the shape, strides and data type of a tensor, rounded where they must be."""
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device).copy_(values)


def exactly(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor | None:
    """The same for float64 values which must not be rounded: None where one would be, or overflows."""
    made = placed(values, like)
    return made if torch.equal(made.double(), values.expand(like.shape)) else None


def shuffled(count: int, generator: torch.Generator) -> torch.Tensor:
    """A random permutation of 0..count − 1, int64; never the identity unless count is 1."""
    order = torch.randperm(count, generator=generator)
    return order.roll(1) if torch.equal(order, torch.arange(count)) else order


def dims_of(operator: Operator, case: Case) -> dict[str, int]:
    """The dimensions of a case, defaults filled in. Raises ConfigError for a missing or unknown one."""
    unknown = [name for name in case.dims if name not in operator.dims]
    if unknown:
        raise ConfigError(f"unknown dimension {unknown[0]}; allowed: {', '.join(operator.dims)}", subject=case.shape)
    dims: dict[str, int] = {}
    for name, default in operator.dims.items():
        value = case.dims.get(name, dims.get(default) if isinstance(default, str) else default)
        if not isinstance(value, int):
            raise ConfigError(f"the shape does not give {name}", subject=case.shape)
        dims[name] = value
    return dims


def option(operator: Operator, case: Case, name: str) -> OptionValue:
    """An option's value in a case, or its default."""
    return case.options.get(name, operator.options[name][0])


def dtype(name: str) -> torch.dtype:
    """The torch data type of a name in config.yaml."""
    try:
        return DTYPES[name]
    except KeyError:
        raise ConfigError(f"unknown data type; allowed: {', '.join(DTYPES)}", subject=name) from None


def dtype_name(value: torch.dtype) -> str:
    """`float16` for torch.float16."""
    return str(value).removeprefix("torch.")


def roundoff(name: str) -> float:
    """û of a data type by name. Raises ConfigError for an unknown one."""
    try:
        return UNIT_ROUNDOFF[name]
    except KeyError:
        raise ConfigError(f"no unit roundoff is known; allowed: {', '.join(UNIT_ROUNDOFF)}", subject=name) from None


@dataclass(frozen=True)
class Units:
    """Roundoffs of a declared precision (accumulation: 8·û), and what a result and an intermediate lose near zero: the
    smallest subnormal of its type, a result of float32, bfloat16 or float64 the smallest normal number.
    """

    output: float
    intermediate: float
    accumulate: float
    smallest: float
    intermediate_smallest: float

    @property
    def coarse(self) -> float:
        """U of criteria (b) and (c)."""
        return max(self.output, self.intermediate)

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """Values as the declared `p` holds them, to nearest; float64, of the same shape. Nothing overflows."""
        return _to_nearest(values, self.intermediate, self.intermediate_smallest)

    def stored(self, values: torch.Tensor) -> torch.Tensor:
        """Values as the output holds them, to nearest, and to multiples of `smallest`; float64, of the same shape."""
        return _to_nearest(values, self.output, self.smallest)


def _to_nearest(values: torch.Tensor, roundoff: float, smallest: float) -> torch.Tensor:
    """Values rounded to multiples of what a number of their size is counted in, of `smallest` at least."""
    values = values.double()
    if roundoff <= UNIT_ROUNDOFF["float64"]:  # 0 is of whole numbers, which an operator rounds as it means to
        return values
    power = (values / values.frexp().mantissa).nan_to_num_(0.0)  # exactly; `torch.ldexp` computes it in float32
    step = power.mul_(roundoff).clamp_(min=smallest)
    return (values / step).round_().mul_(step)


def units(precision: Precision, input_dtype: torch.dtype, output_dtype: torch.dtype | None = None) -> Units:
    """The roundoffs of a declared precision, of what it is for the inputs' own data type.

    output_dtype: of an output that has another type than the declared one, as several may have.
    """
    declared = precision.of(dtype_name(input_dtype))
    output = dtype_name(output_dtype) if output_dtype else declared.output
    return Units(
        output=roundoff(output),
        intermediate=roundoff(declared.p),
        accumulate=8 * roundoff(declared.accumulate),
        smallest=SMALLEST_NORMAL.get(output, SMALLEST_SUBNORMAL[output]),
        intermediate_smallest=SMALLEST_SUBNORMAL[declared.p],
    )


def output_dtype(precision: Precision, input_dtype: torch.dtype) -> torch.dtype:
    """The declared data type of the output."""
    return input_dtype if precision.output == "input" else dtype(precision.output)


def forward_bound(
    output: torch.Tensor, condition: torch.Tensor, accumulation: torch.Tensor, unit: Units
) -> torch.Tensor:
    """B = u_o|O| + u_p(1+u_p)·A + accumulation + smallest number of the output's type (Units), per element.

    condition is A, the sum of the magnitudes of the terms of O; accumulation is the u_a term, already multiplied.
    """
    u = unit.intermediate
    # In place: the outputs of a case fill a cache many times over.
    return output.double().abs().mul_(unit.output).add_(u * (1 + u) * condition).add_(accumulation).add_(unit.smallest)


# RMS of the relative error of rounding to nearest, in units of the roundoff, over significands spread as 1/x: √(1/3 of
# the mean of 1/x² on [1, 2)).
ROUNDING_RMS = 0.425

# How much of the worst-case accumulation term shows up in the RMS error and in the bias of correct float32 code: three
# times the largest share seen in calibration (torch's CPU backends and two hand-written softmaxes in float32, 13
# families, 8 shapes; benchmarks/calibrate.py repeats it).
RMS_SHARE = 1 / 64
BIAS_SHARE = 1 / 256

# The RMS of more normally distributed elements is below two fifths of the expected one once in a million times. Of
# fewer, whose terms may cancel in all of them, the bound decides.
FEW_ELEMENTS = 16


def alike(terms: torch.Tensor) -> torch.Tensor:
    """How far the roundings of one chain over the last dimension go in one direction, from 1/8 to 1; a number a row.

    terms: what is summed, or what each term follows from. Terms that are the same are rounded the same way, and other
    ones by chance: with the shares f of the different values, the sum is off by about n·û·√Σf² of itself. Thrice that
    is given; of what a large partial sum swallows an eighth is seen where no two terms are the same.
    """
    rows = terms.sort(-1).values
    group = torch.zeros(rows.shape, dtype=torch.int64, device=rows.device)
    group[..., 1:] = (rows[..., 1:] != rows[..., :-1]).cumsum(-1)
    counts = torch.zeros(rows.shape, dtype=torch.float64, device=rows.device)
    counts.scatter_add_(-1, group, torch.ones_like(counts))
    shares = (counts / rows.shape[-1]).square_().sum(-1, keepdim=True).sqrt_()
    return (3 * shares).clamp_(1 / 8, 1)


def _fits(shape: torch.Size, output: torch.Size) -> bool:
    """Whether numbers of this shape are one for each element of the output, or one for several."""
    behind = output[len(output) - len(shape) :]  # torch.broadcast_shapes takes a second to import what it is made of
    return len(shape) <= len(output) and all(size in (1, wanted) for size, wanted in zip(shape, behind, strict=True))


def accumulation_floors(
    output: torch.Tensor,
    accumulation: torch.Tensor,
    unit: Units,
    chained: torch.Tensor | None = None,
    rounded: Iterable[torch.Tensor] | None = None,
) -> tuple[float, float]:
    """What float32 accumulation and the declared `p` alone may cause: RMS error (absolute) and bias (relative).

    Criteria (b) and (c) are stated for outputs of half precision, whose rounding hides the accumulation error. With a
    float32 output it is all there is. The floor has three parts: u_a itself, since one approximate reciprocal or one
    rounded constant moves every element alike by a few roundings; a share of the accumulation term of the bound; and
    all of `chained`. That is the part of the accumulation term which a sum of many terms in one chain makes, times what
    `alike` gives: whoever uses the sum has the same error in a whole row, and terms that are the same are all rounded
    in one direction. Of constants that are added to 1 in float32 (a softmax of one largest value), one in ten is off by
    0.7 of n·û in rows of 4096, and the worst by 0.99; of different values by 0.054. Where `accumulation` or
    `output` is infinite nothing is added.

    rounded: the output in float64 with the intermediates rounded to `p` (`unit.rounded`), once for each place where a
    right kernel may round them: what that and storing it cost here is known then, also where few values are different,
    all of which are rounded in one direction. Without it, and where `p` is no finer than the output, errors of random
    signs are expected, as large beside the output as each rounding beside its term; of FEW_ELEMENTS, whose terms may
    cancel by chance, as large as all that `accumulation` counts. An empty one says that the caller counts this itself.

    Raises TestError for one of them that has more elements than the output, or in other places.
    """
    if not output.numel():
        return 0.0, 0.0
    rounded = None if rounded is None else list(rounded)
    for name, given in (("accumulation", [accumulation]), ("chained", [chained]), ("rounded", rounded or [])):
        for one in given:
            if one is not None and not _fits(one.shape, output.shape):
                raise TestError(
                    f"`{name}` is of {list(one.shape)} where the output is of {list(output.shape)}: no number for each "
                    "of its elements",
                    subject="accumulation_floors",
                    hint="a factor a row, as `alike` gives, is alike(x)[..., 0] where the output is one number a row",
                )
    demanded = accumulation.isfinite() & output.isfinite()
    if not bool(demanded.all()):
        output, accumulation = output.where(demanded, 0.0), accumulation.where(demanded, 0.0)
        chained = None if chained is None else chained.where(demanded, 0.0)
        rounded = None if rounded is None else [way.where(demanded, 0.0) for way in rounded]
    square = float((output * output).sum())
    typical = math.sqrt(square / max(1, output.numel()))
    rms = unit.accumulate * typical
    rms += RMS_SHARE * float((accumulation * accumulation).mean().sqrt())
    rms += float((chained * chained).mean().sqrt()) if chained is not None else 0.0
    declared, leaning = 0.0, 0.0
    if rounded is None and unit.intermediate >= unit.output:
        few = output.numel() <= FEW_ELEMENTS
        terms = float(accumulation.square().mean().sqrt()) / unit.accumulate if few else 0.0
        declared = ROUNDING_RMS * math.hypot(unit.output * typical, unit.intermediate * math.hypot(typical, terms))
    for way in map(unit.stored, rounded or ()):
        declared = max(declared, float((way - output).square().mean().sqrt()))
        leaning = max(leaning, abs(float(((way - unit.stored(output)) * output).sum())))
    rms = max(rms, declared)
    if square == 0:
        return rms, unit.accumulate
    bias = BIAS_SHARE * accumulation + (chained if chained is not None else 0.0)
    return rms, unit.accumulate + (float((bias * output.abs()).sum()) + leaning) / square
