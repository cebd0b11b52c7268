"""What a call gives the GPU to do, as data: kernels by name, their grids, and parameters without an address in them.

A description is made by a process that holds the candidate's library, from two captures of one call whose tensors lie
elsewhere in each. A word of the parameters that follows a tensor from place to place is that tensor's address, and is
taken out; what is the same in both stays; what is neither has no description. Whoever launches puts its own tensors'
addresses in. Pure data: no driver, no tensors; what comes from a candidate's process is checked here (`checked`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelproof.errors import RecordError
from kernelproof.records import from_json
from kernelproof.sass import demangle

SCHEMA = "kernelproof.launches/1"

WORD_BYTES, ADDRESS_BYTES = 4, 8
PARAMETERS_LIMIT_BYTES = 32764  # of one kernel, since CUDA 12.1; before, 4 KB
STEPS_LIMIT = 64  # of one call: what a description can carry is limited, and no launcher needs more
NO_ADDRESS_BELOW = 1 << 32  # smaller numbers are sizes and counts, on every driver there is

# Where a call's tensors lie: argument → address of the first byte of its image, and the image's bytes.
Spans = Mapping[str, tuple[int, int]]


class Indescribable(Exception):
    """What a call does cannot be said in data; the message says why, as the end of 'it runs as a library, for …'."""


@dataclass(frozen=True)
class Address:
    """Eight bytes of the parameters that are an address: `offset` bytes into the image of an argument."""

    at: int
    argument: str
    offset: int


@dataclass(frozen=True)
class Kernel:
    """A launch. Grid and cluster in blocks (cluster of zeros: none), block in threads, dynamic shared memory in bytes.

    overlapping: it may start before the kernel before it has ended, as that one allows.
    """

    name: str
    grid: list[int]
    block: list[int]
    shared_bytes: int = 0
    cluster: list[int] = field(default_factory=lambda: [0, 0, 0])
    cluster_scheduling: int = 0
    nonportable_cluster: bool = False
    cooperative: bool = False
    overlapping: bool = False


@dataclass(frozen=True)
class Fill:
    """A fill of memory: `width` elements in each of `height` rows, `pitch` bytes apart."""

    value: int
    element_bytes: int
    width: int
    height: int
    pitch: int


@dataclass(frozen=True)
class Step:
    """One piece of a call's work: a kernel with its parameters, or a fill, whose parameter is its address.

    parameters: hexadecimal, zeros where `addresses` says that an address goes.
    """

    parameters: str
    addresses: list[Address] = field(default_factory=list)
    kernel: Kernel | None = None
    fill: Fill | None = None

    @property
    def what(self) -> str:
        """For messages."""
        return self.kernel.name if self.kernel else "a fill of memory"


def signature(outline: Mapping[str, Any]) -> str:
    """What calls have in common that launch alike: data types, shapes, strides, scalars; no values, no addresses."""
    return json.dumps(outline, sort_keys=True)


def outlined(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The outline of a call whose images are written: what a worker is told of it, without where its images are."""
    where = ("image", "zero_copy")
    return {
        name: {key: part for key, part in value.items() if key not in where} if isinstance(value, dict) else value
        for name, value in arguments.items()
    }


# --- made from two captures -------------------------------------------------------------------------------------------


def described(
    first: Sequence[Step],
    second: Sequence[Step],
    at_first: Spans,
    at_second: Spans,
    unread: Mapping[str, Sequence[Sequence[int]]] | None = None,
) -> list[Step]:
    """Two captures of one call, with whole addresses in them, made into one description.

    unread: by kernel, parts of its parameters that it does not read (sass.unread_parameters).
    Raises Indescribable when they differ in more than those and the addresses of the call's tensors.
    """
    if not first and not second:
        raise Indescribable("it queued no work on the caller's stream")
    shapes = [[(step.kernel, step.fill) for step in steps] for steps in (first, second)]
    if shapes[0] != shapes[1]:
        raise Indescribable("what it launches hangs on where its tensors lie")
    steps = []
    for one, other in zip(first, second, strict=True):
        try:
            parameters, addresses = relocated(
                bytes.fromhex(one.parameters),
                bytes.fromhex(other.parameters),
                at_first,
                at_second,
                (unread or {}).get(one.kernel.name, ()) if one.kernel else (),
            )
        except Indescribable as error:
            raise Indescribable(f"{error} (in the parameters of {one.what})") from None
        if one.fill and len(addresses) != 1:
            raise Indescribable("it fills memory that is none of the call's tensors")
        steps.append(dataclasses.replace(one, parameters=parameters.hex(), addresses=addresses))
    return steps


def relocated(
    first: bytes, second: bytes, at_first: Spans, at_second: Spans, unread: Sequence[Sequence[int]] = ()
) -> tuple[bytes, list[Address]]:
    """Parameters as two captures had them: with zeros for the addresses of tensors, and those addresses.

    An address is looked for at every fourth byte: structs and tensor maps hold them too. What differs in a part that is
    `unread` (first byte and end of each) becomes zero: padding, the byte of an empty struct. Raises Indescribable.
    """
    if len(first) != len(second):
        raise Indescribable(f"the parameters are {len(first)} bytes in one call and {len(second)} in another")
    whole, addresses, place = bytearray(first), list[Address](), 0
    while place < len(first):
        address = _address(first, second, place, at_first, at_second)
        if address is not None:
            addresses.append(address)
            whole[place : place + ADDRESS_BYTES] = bytes(ADDRESS_BYTES)
            place += ADDRESS_BYTES
            continue
        end = min(place + WORD_BYTES, len(first))
        for at in (at for at in range(place, end) if first[at] != second[at]):
            whole[at] = 0
            if any(start <= at < stop for start, stop in unread):
                continue
            raise Indescribable(
                f"bytes {place} to {end - 1} are {first[place:end].hex()} in one call and {second[place:end].hex()} in "
                "another that differs in its tensors' addresses alone, and are no such address: memory of its own, "
                "padding that was never set, or something computed from addresses"
            )
        place = end
    return bytes(whole), addresses


def _address(first: bytes, second: bytes, place: int, at_first: Spans, at_second: Spans) -> Address | None:
    if place + ADDRESS_BYTES > len(first):
        return None
    one, other = (struct.unpack_from("<Q", data, place)[0] for data in (first, second))
    for name, (start, size) in at_first.items():
        offset = one - start
        if 0 <= offset < size and other - at_second[name][0] == offset:
            return Address(place, name, offset)
    return None


def refuse_own_memory(steps: Sequence[Step], is_memory: Callable[[int], bool]) -> None:
    """Raises Indescribable for an address in memory that is none of the call's tensors: a workspace, a table."""
    for step in steps:
        data, taken = bytes.fromhex(step.parameters), {address.at for address in step.addresses}
        for place in range(0, len(data) - ADDRESS_BYTES + 1, WORD_BYTES):
            if any(place - ADDRESS_BYTES < at < place + ADDRESS_BYTES for at in taken):
                continue
            (value,) = struct.unpack_from("<Q", data, place)
            if value >= NO_ADDRESS_BELOW and is_memory(value):
                raise Indescribable(
                    f"it hands {step.what} memory that is none of the call's tensors, such as a workspace "
                    f"(byte {place} of the parameters)"
                )


def apart(at_first: Spans, at_second: Spans) -> bool:
    """Whether two placements tell every address, and every distance between two tensors, from a constant."""
    moved = {name: at_second[name][0] - start for name, (start, _) in at_first.items()}
    return 0 not in moved.values() and len(set(moved.values())) == len(moved)


# --- taken from a process that is not trusted -------------------------------------------------------------------------


def checked(value: Any, outline: Mapping[str, Any], kernels: Mapping[str, int]) -> list[Step]:
    """A description as a candidate's process gave it, when it is one.

    outline: the call's arguments (images.outline). kernels: name → in how many cubins it is. Raises Indescribable.
    """
    try:
        steps = steps_of(value)
        for step in steps:
            _check(step, {name: argument["bytes"] for name, argument in outline.items() if isinstance(argument, dict)})
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise Indescribable(f"its process gave a description that is none: {error}") from None
    if not 0 < len(steps) <= STEPS_LIMIT:
        raise Indescribable(f"it launches {len(steps)} kernels and fills; a description has 1 to {STEPS_LIMIT}")
    for step in steps:
        if step.kernel and kernels.get(step.kernel.name, 0) != 1:
            where = "several" if step.kernel.name in kernels else "none"
            raise Indescribable(f"it launches {step.kernel.name}, which is in {where} of the build's cubins")
    return steps


def _check(step: Step, sizes: Mapping[str, int]) -> None:
    """Raises ValueError or TypeError for numbers that no launch has."""
    size = len(bytes.fromhex(step.parameters))
    if size > PARAMETERS_LIMIT_BYTES:
        raise ValueError(f"{size} bytes of parameters; a kernel has at most {PARAMETERS_LIMIT_BYTES}")
    end = 0
    for address in step.addresses:
        _whole(address.at, end, size - ADDRESS_BYTES)
        _whole(address.offset, 0, sizes[address.argument] - 1)
        end = address.at + ADDRESS_BYTES
    if (step.kernel is None) == (step.fill is None):
        raise ValueError("a step is a kernel or a fill")
    if step.kernel:
        kernel = step.kernel
        for dimensions, least in ((kernel.grid, 1), (kernel.block, 1), (kernel.cluster, 0)):
            if len(dimensions) != 3:
                raise ValueError(f"{dimensions} are not three dimensions")
            for count in dimensions:
                _whole(count, least, 2**31 - 1)
        for number in (kernel.shared_bytes, kernel.cluster_scheduling):
            _whole(number, 0, 2**31 - 1)
        for flag in (kernel.nonportable_cluster, kernel.cooperative, kernel.overlapping):
            if not isinstance(flag, bool):
                raise TypeError(f"{flag!r} is not true or false")
        if not isinstance(kernel.name, str):
            raise TypeError(f"{kernel.name!r} is no name")
    if step.fill:
        fill = step.fill
        if len(step.addresses) != 1 or size != ADDRESS_BYTES or fill.element_bytes not in (1, 2, 4):
            raise ValueError("a fill has one address, and elements of 1, 2 or 4 bytes")
        _whole(fill.value, 0, 2 ** (8 * fill.element_bytes) - 1)
        for number in (fill.width, fill.height, fill.pitch):
            _whole(number, 0, 2**48)
        address = step.addresses[0]
        rows = (fill.height - 1) * fill.pitch if fill.height > 1 else 0
        if address.offset + rows + fill.width * fill.element_bytes > sizes[address.argument]:
            raise ValueError(f"a fill reaches beyond the end of {address.argument}")


def _whole(number: Any, least: int, most: int) -> None:
    if type(number) is not int or not least <= number <= most:
        raise ValueError(f"{number!r} is not a whole number from {least} to {most}")


# --- kept -------------------------------------------------------------------------------------------------------------


def kept(kinds: Sequence[Mapping[str, Any]]) -> str:
    """The file of descriptions: `calls`, `arguments` and `steps` of each kind of call (docs/reference/records.md)."""
    return json.dumps({"schema": SCHEMA, "kinds": list(kinds)}, indent=1) + "\n"


def read(path: Path, sha256: str) -> dict[str, list[Step]]:
    """The descriptions in a file, by signature. Raises RecordError unless it is the file that was recorded."""
    try:
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise RecordError("it is not the file that the test stage wrote", subject=str(path), hint="test it again")
        value = json.loads(data)
        if value["schema"] != SCHEMA:
            raise RecordError(f"schema {value['schema']!r} is not {SCHEMA!r}", subject=str(path))
        return {signature(kind["arguments"]): steps_of(kind["steps"]) for kind in value["kinds"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"it cannot be read: {error}", subject=str(path), hint="test it again") from None


def same_kernels(steps: Sequence[Step], traced: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a trace of one call (cupti.per_call) has a description's kernels: names, grids, blocks, how often."""
    expected = Counter(_seen(s.kernel.name, s.kernel.grid, s.kernel.block) for s in steps if s.kernel)
    found = Counter[tuple[Any, ...]]()
    for event in traced:
        if event["grid"]:  # a fill has none
            found[_seen(event["name"], event["grid"], event["block"])] += round(event["count"])
    return expected == found


def _seen(name: str, grid: Sequence[int], block: Sequence[int]) -> tuple[Any, ...]:
    return demangle(name).replace(" ", ""), *grid, *block


# --- put to use -------------------------------------------------------------------------------------------------------


def steps_of(description: Any) -> list[Step]:
    """A description from JSON; what `checked` let through is one."""
    steps: list[Step] = from_json(list[Step], description)
    return steps


def begins_early(description: Any) -> bool:
    """Whether one of a call's kernels may start before the one before it has ended."""
    return any(step.kernel is not None and step.kernel.overlapping for step in steps_of(description))


def placed(step: Step, spans: Spans) -> bytes:
    """The parameters of a step with the addresses of a call's tensors in them."""
    data = bytearray.fromhex(step.parameters)
    for address in step.addresses:
        struct.pack_into("<Q", data, address.at, spans[address.argument][0] + address.offset)
    return bytes(data)
