"""Whether the outputs of timed calls are right, by the same reference and criteria as in the test stage."""

from __future__ import annotations

import functools
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kernelproof.config import Config
from kernelproof.contest.entrants import Arena, values_of
from kernelproof.contest.measurement import Measurement
from kernelproof.errors import TestError
from kernelproof.processes import keep_freed_memory
from kernelproof.records import Case

if TYPE_CHECKING:
    from torch import Tensor

    from kernelproof.operators import Call, Operator, Reference

T = TypeVar("T")
R = TypeVar("R")
READ_AHEAD = 2  # results, while one is judged
WHEN = {
    "timed": "when timed",
    "poisoned": "after its output was poisoned",
    "fresh": "for new values in the same memory",
    "moved": "for values that changed from call to call",
    "ahead": "behind a kernel that lets it begin early (programmatic dependent launch) and puts its inputs right later",
}


def judge_outputs(config: Config, measurement: Measurement, operator: Operator) -> int:
    """Judge what the timed calls wrote; a contender that was wrong is dropped. Gives back how many results were judged.

    Processes and modes that gave the same bytes are judged once.
    """
    from kernelproof.operators import references_of

    keep_freed_memory()
    judged = 0
    references: dict[tuple[str, str, str], Mapping[str, Reference]] = {}
    # What is wrong for the timed values is told first; of two cases' references one is kept at a time.
    order = sorted(measurement.found.outputs.items(), key=lambda found: (found[0][1], found[0][2] == "moved"))

    def read(found: tuple[tuple[str, str, str, str], Mapping[str, Any]]) -> Tensor:
        (_, case_id, values, _), output = found
        return _handed_over(output, measurement.arena(case_id).calls[values], measurement.scratch)

    for ((name, case_id, values, _), output), data in _ahead(read, order):
        arena, variant = measurement.arena(case_id), measurement.entrants[name].variant
        if name not in arena.names:
            continue
        call = arena.calls[values]
        precision = variant.precision.of(arena.case.dtype)
        key = (case_id, values, repr(precision))
        if key not in references:
            references = {other: made for other, made in references.items() if other[0] == case_id}
            references[key] = references_of(operator, call, precision, measurement.device)
        judged += 1
        if fault := _fault(config, arena.case, call, references[key], data):
            where = f"{output['mode']}, --case {arena.fresh}" if values == "fresh" else output["mode"]
            reason = f"wrong {WHEN[output['version']]} ({where}): {fault}"

            is_wrong = functools.partial(_gave_wrong, config, measurement, operator, name, arena)
            measurement.drop_if_guilty(name, arena, reason, "outputs", is_wrong)
    return judged


def _ahead(make: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[T, Callable[[], R]]]:
    """Each item and what says, or raises, what was made of it, while the next ones are made in threads."""
    with ThreadPoolExecutor(READ_AHEAD) as threads:
        waiting = deque[tuple[T, Future[R]]]()
        for item in items:
            waiting.append((item, threads.submit(make, item)))
            if len(waiting) > READ_AHEAD:
                first, made = waiting.popleft()
                yield first, made.result
        for first, made in waiting:
            yield first, made.result


def _gave_wrong(
    config: Config,
    measurement: Measurement,
    operator: Operator,
    name: str,
    arena: Arena,
    reply: Mapping[str, Any],
) -> bool:
    """Whether any result of a contender's calls in a case, in the answer of a process, is not right."""
    from kernelproof.operators import references_of

    precision = measurement.entrants[name].variant.precision.of(arena.case.dtype)
    for output in (each for each in reply["outputs"] if each["contender"] == name):
        call = arena.calls[values_of(output["version"])]
        right = references_of(operator, call, precision, measurement.device)
        data = functools.partial(_handed_over, output, call, measurement.scratch)
        if _fault(config, arena.case, call, right, data):
            return True
    return False


def _handed_over(output: Mapping[str, Any], call: Call, folder: Path) -> Tensor:
    """The bytes of a result. Raises TestError where they are not those that were announced, or of other tensors."""
    from kernelproof import images
    from kernelproof.operators import dtype_name

    wanted = [[dtype_name(call.tensor(name).dtype), list(call.tensor(name).shape)] for name in call.outputs]
    if output["tensors"] != wanted:
        found, right = (" and ".join(f"{kind} {shape}" for kind, shape in each) for each in (output["tensors"], wanted))
        raise TestError(f"{found} instead of {right}")
    # only in the worker's folder: the name comes from a process that has run candidates
    data = images.read_file(folder / Path(output["path"]).name, call.output_bytes)
    if hashlib.sha256(data.numpy().data).hexdigest() != output["sha256"]:
        raise TestError("the bytes handed over are not those that were announced")
    return data


def _fault(
    config: Config, case: Case, call: Call, references: Mapping[str, Reference], data: Callable[[], Tensor]
) -> str | None:
    """Why a result, whose bytes `data` gives, is not right by any of the test's criteria, or None."""
    from kernelproof import images, judge

    try:
        left = data()
    except TestError as error:
        return error.message
    returned = {}
    for name in call.outputs:
        tensor = call.tensor(name)
        bits, left = left[: tensor.nbytes], left[tensor.nbytes :]
        if bits.storage_offset() % tensor.element_size():
            bits = bits.clone()
        returned[name] = images.Returned(bits.view(tensor.dtype).reshape(tensor.shape))
    result = judge.judge_all(case, call, references, returned, config.test.tolerance)
    return "; ".join(failure.message for failure in result.failures) or None
