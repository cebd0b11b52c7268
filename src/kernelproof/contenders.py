"""Contenders where they are timed: loaded, called alike, and what the runner of one with a case's arguments can do.

Outputs are treated alike for everybody. In a graph nobody allocates (a returned tensor's memory belongs to the graph);
outside of one everybody does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kernelproof import loading
from kernelproof.arguments import ArgumentSets, like
from kernelproof.results import not_plain, poison

if TYPE_CHECKING:
    from kernelproof.moving_inputs import Draw, Touch
    from kernelproof.results import Result

FLOOR_VISITS = 6
TRACED_CALLS = 8


@dataclass
class Function:
    """A loaded contender."""

    name: str
    call: Callable[..., Any]
    passing: str


def loaded(entry: Mapping[str, Any]) -> Function:
    """A contender by its `name` and the fields of loading.Candidate. Raises what loading it raises."""
    fields = dict(entry)
    name = fields.pop("name")
    candidate = loading.Candidate(**fields)
    library = Path(candidate.library) if candidate.library else None
    return Function(name, loading.load(candidate, library, Path(candidate.root)), candidate.passing)


@dataclass
class Visit:
    """One sample: `calls` in a batch and µs per call; for a slope also the short batch and both batches' µs."""

    calls: int
    time_us: float
    short_calls: int | None = None
    short_us: float | None = None
    long_us: float | None = None


class Runner(Protocol):
    """One contender with one case's arguments: times its calls, and hands over what they gave."""

    name: str
    method: str
    checked: range  # the sets that `again` goes through
    visit_s: float  # what one visit costs
    too_slow: bool

    def prepare(self) -> None: ...
    def visit(self) -> Visit: ...
    def first_call(self) -> Visit: ...
    def trace(self) -> tuple[str, list[dict[str, Any]]]: ...
    def beside(self, launches: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Visit]]]: ...
    def repeat(self, times: int) -> float: ...
    def touched(self, touch: Touch | Draw, by: int, *, alone: bool = False) -> tuple[Callable[[int], object], int]: ...
    def moved(self, touch: Touch | Draw) -> list[Result]: ...
    def ahead(self, touch: Touch) -> list[Result]: ...
    def energy(self, case: str, mode: str) -> dict[str, Any]: ...
    def results(self) -> list[Result]: ...
    def poison(self) -> None: ...
    def again(self) -> None: ...


def allocating_call(
    call: Callable[..., Any], passing: str, sets: ArgumentSets, index: int, poisoned: bool = False
) -> Callable[[], Any]:
    """A call that gives back its outputs in new memory, whichever way the contender takes them."""
    layouts = sets.outputs(index)
    if passing == "return":
        inputs = sets.inputs(index)
        if len(layouts) == 1:
            return lambda: call(*inputs)
        return lambda: several(call(*inputs), len(layouts))
    if len(layouts) > 1:

        def allocate_all_and_call() -> Any:
            outputs = tuple(map(like, layouts))
            if poisoned:
                poison(outputs)
            call(*sets.with_outputs(index, outputs))
            return outputs

        return allocate_all_and_call
    (place,), (layout,) = sets.outputs_at, layouts
    before, after = sets.arguments[index][:place], sets.arguments[index][place + 1 :]

    def allocate_and_call() -> Any:
        output = like(layout)
        call(*before, output, *after)
        return output

    def poison_and_call() -> Any:
        output = like(layout)
        poison([output])
        call(*before, output, *after)
        return output

    return poison_and_call if poisoned else allocate_and_call


def several(returned: Any, count: int) -> Any:
    """What a call returned as several outputs, which are plain tensors in a tuple; None (no call at all) stays."""
    import torch

    if returned is None:
        return None
    outputs = loading.parts_of(returned)
    if outputs is None or len(outputs) != count:
        given = f"a {type(returned).__name__}" if outputs is None else f"{len(outputs)} values"
        raise TypeError(f"it returned {given} where {count} tensors are expected")
    for output in outputs:
        if type(output) is not torch.Tensor:
            raise not_plain(type(output))
    return outputs
