"""Launches as data: addresses found and put in again, what has no description, what a candidate may say of one."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelproof import launches
from kernelproof.errors import RecordError
from kernelproof.launches import Address, Fill, Indescribable, Kernel, Step

# Where the tensors of two calls lie: nothing is at the same distance in both.
HERE = {"q": (0x7F1200000000, 16384), "k": (0x7F1200010000, 16384), "o": (0x7F1200020000, 8192 + 6)}
THERE = {"q": (0x7F3400090000, 16384), "k": (0x7F3400040000, 16384), "o": (0x7F3400000000, 8192 + 6)}
ELSEWHERE = {"q": (0x7E0000000200, 16384), "k": (0x7D0000000000, 16384), "o": (0x7C0000000000, 8192 + 6)}


def word(value: int) -> bytes:
    return struct.pack("<Q", value)


def parameters(parts: list[bytes | tuple[str, int]], spans: dict[str, tuple[int, int]]) -> bytes:
    """Bytes as they are, and for a name with an offset the address that this is in one call."""
    return b"".join(part if isinstance(part, bytes) else word(spans[part[0]][0] + part[1]) for part in parts)


# Small numbers, floats, and everything else that is no address of these tensors.
constants = st.one_of(
    st.binary(min_size=1, max_size=6).map(lambda data: data.ljust(-(-len(data) // 4) * 4, b"\0")),
    st.integers(0, 2**31).map(lambda value: struct.pack("<I", value)),
    st.floats().map(lambda value: struct.pack("<d", value)),
    st.just(word(HERE["q"][0])[4:]),  # the upper half of an address, where no address is
)
pointers = st.sampled_from(sorted(HERE)).flatmap(
    lambda name: st.tuples(st.just(name), st.integers(0, HERE[name][1] - 1))
)


@given(st.lists(st.one_of(constants, pointers), max_size=24), st.binary(max_size=3))
def test_addresses_are_found_wherever_they_are_and_put_in_again(
    parts: list[bytes | tuple[str, int]], tail: bytes
) -> None:
    parts = [*parts, tail]
    first, second = parameters(parts, HERE), parameters(parts, THERE)
    found, addresses = launches.relocated(first, second, HERE, THERE)
    assert [(a.argument, a.offset) for a in addresses] == [part for part in parts if isinstance(part, tuple)]
    assert len(found) == len(first)
    for address in addresses:
        assert found[address.at : address.at + 8] == bytes(8)
    step = Step(found.hex(), addresses, kernel=Kernel("k", [1, 1, 1], [1, 1, 1]))
    assert launches.placed(step, HERE) == first
    assert launches.placed(step, THERE) == second
    assert launches.placed(step, ELSEWHERE) == parameters(parts, ELSEWHERE)


@given(st.lists(constants, max_size=6), pointers, st.integers(0, 63))
def test_a_word_that_follows_no_tensor_has_no_description(parts: list[bytes], pointer: Any, bit: int) -> None:
    first = parameters([*parts, pointer], HERE)
    second = bytearray(parameters([*parts, pointer], THERE))
    at = len(first) - 8
    value = struct.unpack_from("<Q", second, at)[0] ^ (1 << bit)  # another offset into the tensor, or outside it
    struct.pack_into("<Q", second, at, value)
    with pytest.raises(Indescribable, match=r"in one call and .* in another that differs in its tensors' addresses"):
        launches.relocated(first, bytes(second), HERE, THERE)


def test_what_no_instruction_reads_may_differ_and_becomes_zero() -> None:
    """A flag and its padding behind a pointer, then the byte of an empty struct."""
    first = parameters([("q", 64), b"\1\xaa\xbb\xcc", b"\x11\xff\0\0"], HERE)
    second = parameters([("q", 64), b"\1\xdd\xbb\0", b"\x22\0\0\0"], THERE)
    found, addresses = launches.relocated(first, second, HERE, THERE, [[9, 12], [12, 20]])
    assert found[8:] == b"\1\0\xbb\0" + b"\0\0\0\0"
    assert [(a.argument, a.offset) for a in addresses] == [("q", 64)]
    for unread in ([[9, 12]], [[9, 11], [12, 16]], [[10, 16]], []):
        with pytest.raises(Indescribable, match="padding that was never set"):
            launches.relocated(first, second, HERE, THERE, unread)


def test_a_number_that_looks_like_an_address_in_one_call_only_stays_a_number() -> None:
    looks = word(HERE["k"][0] + 128)
    found, addresses = launches.relocated(looks, looks, HERE, THERE)
    assert found == looks
    assert addresses == []


def test_the_distance_of_two_tensors_has_no_description() -> None:
    def distance(spans: dict[str, tuple[int, int]]) -> bytes:
        return struct.pack("<q", spans["k"][0] - spans["q"][0])

    with pytest.raises(Indescribable, match="something computed from addresses"):
        launches.relocated(distance(HERE), distance(THERE), HERE, THERE)


def test_placements_are_apart_when_no_address_and_no_distance_is_the_same() -> None:
    assert launches.apart(HERE, THERE)
    assert not launches.apart(HERE, HERE)
    shifted = {name: (start + 4096, size) for name, (start, size) in HERE.items()}
    assert not launches.apart(HERE, shifted)
    assert not launches.apart(HERE, {**THERE, "q": HERE["q"]})


KERNEL = Kernel("_Z1kPf", [4, 1, 1], [128, 1, 1])


def captured(*data: bytes, kernel: Kernel = KERNEL) -> list[Step]:
    return [Step(each.hex(), kernel=kernel) for each in data]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([], [], "queued no work on the caller's stream"),
        (captured(b""), captured(b"", b""), "hangs on where its tensors lie"),
        (
            captured(b""),
            captured(b"", kernel=dataclasses.replace(KERNEL, grid=[5, 1, 1])),
            "hangs on where its tensors lie",
        ),
        (captured(bytes(8)), captured(bytes(4)), "8 bytes in one call and 4 in another"),
        (captured(b"abcd"), captured(b"abce"), r"bytes 0 to 3 are 61626364 in one call.*parameters of _Z1kPf"),
        (
            [Step(word(7).hex(), fill=Fill(0, 1, 8, 1, 0))],
            [Step(word(7).hex(), fill=Fill(0, 1, 8, 1, 0))],
            "fills memory that is none of the call's tensors",
        ),
    ],
)
def test_captures_that_differ_have_no_description(first: list[Step], second: list[Step], message: str) -> None:
    with pytest.raises(Indescribable, match=message):
        launches.described(first, second, HERE, THERE)


def test_memory_of_its_own_has_no_description() -> None:
    workspace = 0x7F5500000000
    data = word(0) + struct.pack("<i", 3) + word(workspace) + word(17) + struct.pack("<i", 0)
    step = Step(data.hex(), [Address(0, "q", 0)], kernel=KERNEL)
    asked: list[int] = []

    def is_memory(address: int) -> bool:
        asked.append(address)
        return address == workspace

    with pytest.raises(Indescribable, match=r"hands _Z1kPf memory that is none .* \(byte 12 of the parameters\)"):
        launches.refuse_own_memory([step], is_memory)
    assert min(asked) >= launches.NO_ADDRESS_BELOW
    launches.refuse_own_memory([step], lambda address: False)


# --- what a candidate's process says ----------------------------------------------------------------------------------

OUTLINE: dict[str, Any] = {
    "x": {"offset": 4096, "bytes": 8192 + 64, "dtype": "float32", "shape": [16], "strides": [1]},
    "y": {"offset": 4096, "bytes": 8192 + 64, "dtype": "float32", "shape": [16], "strides": [1]},
    "eps": 1e-5,
}
STEPS = [
    Step((bytes(16) + word(5)).hex(), [Address(0, "x", 4096), Address(8, "y", 4096)], kernel=KERNEL),
    Step(bytes(8).hex(), [Address(0, "y", 4096)], fill=Fill(0xFF, 1, 32, 2, 32)),
]


def said(**changes: Any) -> list[dict[str, Any]]:
    """The description above, its kernel (`kernel.grid`), fill or step changed."""
    value = [dataclasses.asdict(step) for step in STEPS]
    for path, change in changes.items():
        part, _, name = path.rpartition("__")
        target = value[1]["fill"] if part == "fill" else value[0][part] if part else value[0]
        target[name] = change
    return value


def test_a_description_survives_its_journey() -> None:
    assert launches.checked(said(), OUTLINE, {KERNEL.name: 1}) == STEPS


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "a description that is none"),
        ("steps", "a description that is none"),
        ([], "launches 0 kernels and fills"),
        (said()[:1] * 65, "launches 65 kernels and fills; a description has 1 to 64"),
        ([{"more": 1}], "unknown field 'more'"),
        (said(parameters="zz"), "a description that is none"),
        (said(parameters="00" * 40_000), "40000 bytes of parameters; a kernel has at most 32764"),
        (said(addresses=[{"at": 20, "argument": "x", "offset": 0}]), "20 is not a whole number from 0 to 16"),
        (said(addresses=[{"at": -8, "argument": "x", "offset": 0}]), "-8 is not a whole number"),
        (
            said(addresses=[{"at": 0, "argument": "x", "offset": 8192 + 64}]),
            "8256 is not a whole number from 0 to 8255",
        ),
        (said(addresses=[{"at": 0, "argument": "eps", "offset": 0}]), "eps"),
        (said(addresses=[{"at": 0, "argument": "z", "offset": 0}]), "z"),
        (
            said(addresses=[{"at": 0, "argument": "x", "offset": 0}, {"at": 4, "argument": "x", "offset": 0}]),
            "4 is not a whole number from 8",
        ),
        (said(kernel=None), "a step is a kernel or a fill"),
        (said(kernel__grid=[1, 1]), "are not three dimensions"),
        (said(kernel__grid=[0, 1, 1]), "0 is not a whole number from 1"),
        (said(kernel__block=[1, 1, 2**40]), "is not a whole number from 1"),
        (said(kernel__block=[1, 1, True]), "True is not a whole number"),
        (said(kernel__shared_bytes=-1), "-1 is not a whole number"),
        (said(kernel__cooperative=1), "1 is not true or false"),
        (said(kernel__name="_Z5otherPf"), "_Z5otherPf, which is in none of the build's cubins"),
        (said(kernel__name="_Z5twicePf"), "_Z5twicePf, which is in several of the build's cubins"),
        (said(kernel__name=None), r"kernel\.name: None is not text"),
        (said(fill__element_bytes=3), "elements of 1, 2 or 4 bytes"),
        (said(fill__value=256), "256 is not a whole number from 0 to 255"),
        (said(fill__width=10_000), "a fill reaches beyond the end of y"),
        (said(fill__pitch=8192), "a fill reaches beyond the end of y"),
    ],
)
def test_what_no_launch_is_is_refused(value: Any, message: str) -> None:
    with pytest.raises(Indescribable, match=message):
        launches.checked(value, OUTLINE, {KERNEL.name: 1, "_Z5twicePf": 2})


def test_calls_of_one_kind_share_a_signature() -> None:
    other = {**OUTLINE, "x": {**OUTLINE["x"], "strides": [2]}}
    assert launches.signature(OUTLINE) == launches.signature(dict(reversed(OUTLINE.items())))
    assert launches.signature(OUTLINE) != launches.signature(other)
    assert launches.signature(OUTLINE) != launches.signature({**OUTLINE, "eps": 1e-6})


# --- kept, and compared with a trace ----------------------------------------------------------------------------------


def test_what_is_kept_is_found_by_what_a_worker_was_told(tmp_path: Path) -> None:
    text = launches.kept([{"calls": ["a"], "arguments": OUTLINE, "steps": [dataclasses.asdict(s) for s in STEPS]}])
    path = tmp_path / "launches.json"
    path.write_text(text)
    found = launches.read(path, hashlib.sha256(text.encode()).hexdigest())
    told = {name: {"image": "x.img", **v} if isinstance(v, dict) else v for name, v in OUTLINE.items()}
    assert found == {launches.signature(launches.outlined(told)): STEPS}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "it cannot be read: .*No such file"),
        ("{", "it cannot be read"),
        ("[]", "it cannot be read"),
        ('{"schema": "kernelproof.launches/2", "kinds": []}', "schema 'kernelproof.launches/2' is not"),
        ('{"schema": "kernelproof.launches/1", "kinds": [{}]}', "it cannot be read: 'arguments'"),
    ],
)
def test_what_is_no_file_of_launches_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "launches.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RecordError, match=message):
        launches.read(path, hashlib.sha256((text or "").encode()).hexdigest())


def test_a_file_that_was_changed_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "launches.json"
    path.write_text(launches.kept([]))
    with pytest.raises(RecordError, match="not the file that the test stage wrote"):
        launches.read(path, "0" * 64)


def event(name: str = "k(float*)", count: float = 1.0, **changes: Any) -> dict[str, Any]:
    return {"name": name, "grid": [4, 1, 1], "block": [128, 1, 1], "shared_bytes": 0, "count": count, **changes}


FILL = event("Memset (Device)", grid=[], block=[])


@pytest.mark.parametrize(
    ("traced", "same"),
    [
        ([event()], True),
        ([event(), FILL], True),
        ([event("_Z1kPf")], True),
        ([event("k(float *)")], True),
        ([event(count=0.999)], True),
        ([], False),
        ([event(), event("other()")], False),
        ([event("other()")], False),
        ([event(count=2.0)], False),
        ([event(grid=[5, 1, 1])], False),
        ([event(block=[64, 1, 1])], False),
    ],
)
def test_a_trace_has_the_described_kernels_or_it_has_not(traced: list[dict[str, Any]], same: bool) -> None:
    assert launches.same_kernels(STEPS, traced) == same


@pytest.mark.parametrize("overlapping", [[False, False], [False, True], [True, False]])
def test_a_call_begins_early_where_one_of_its_kernels_may(overlapping: list[bool]) -> None:
    kernels = [
        Kernel(f"kernel_{place}", [1, 1, 1], [32, 1, 1], overlapping=may) for place, may in enumerate(overlapping)
    ]
    description = [dataclasses.asdict(Step("", kernel=kernel)) for kernel in kernels]
    fill = dataclasses.asdict(Step("0000000000000000", fill=Fill(0, 1, 16, 1, 0)))
    assert launches.begins_early([fill, *description]) == any(overlapping)
