"""Memory images: what a candidate is given and what it hands back, as files of raw bytes.

An image is

    guard band (BAND_BYTES, a little more where the payload is shifted) | payload | guard band (BAND_BYTES)

On a CPU the pages before and behind an image can be read and written by nobody (loading). A payload that is fenced has
no guard band on one side: whoever passes that end, if only to read, is killed.

Around float inputs the bands hold NaNs, so that a read past the end shows in the result; around everything else random
bits. The payload of an output is poison, fresh random bits for every call, or zeros in one. Bytes that belong to no
element (the gaps of a strided view) count as guard band. Reading back compares every guard byte and every input byte
with what was laid out.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernelproof.errors import TestError
from kernelproof.loading import handed_over, new_file, span_bytes
from kernelproof.operators import Call, dtype_name
from kernelproof.ordering import alike

BAND_BYTES = 4096
OUT_SUFFIX, DIFFERING_SUFFIX, REPEATS_SUFFIX = ".out", ".differing", ".repeats"  # see worker.Worker.run

# A quiet NaN is these bits set, whatever the others; by size and kind of the element.
_QUIET_NAN: dict[torch.dtype, tuple[torch.dtype, int]] = {
    torch.float8_e4m3fn: (torch.uint8, 0x7F),
    torch.float16: (torch.int16, 0x7E00),
    torch.bfloat16: (torch.int16, 0x7FC0),
    torch.float32: (torch.int32, 0x7FC00000),
    torch.float64: (torch.int64, 0x7FF8000000000000),
}
# Of these types: bits of the exponent, and those of it in a number that is large among others: no NaN is swallowed.
_LARGE: dict[torch.dtype, tuple[int, int]] = {
    torch.float8_e4m3fn: (0x78, 0x70),
    torch.float16: (0x7C00, 0x6400),
    torch.bfloat16: (0x7F80, 0x4480),
    torch.float32: (0x7F800000, 0x44800000),
    torch.float64: (0x7FF << 52, 0x409 << 52),
}


@dataclass
class Image:
    """One tensor argument in memory: its bytes as laid out, and which of them are elements."""

    name: str
    path: Path
    tensor: torch.Tensor  # the argument's shape, strides and data type
    raw: torch.Tensor = field(repr=False)  # uint8, the whole image
    offset: int = BAND_BYTES  # bytes to the first element
    after: int = BAND_BYTES  # bytes behind the last

    @property
    def span_bytes(self) -> int:
        """Bytes from the first to the last element, both included."""
        return int(self.raw.numel()) - self.offset - self.after

    def elements(self, raw: torch.Tensor) -> torch.Tensor:
        """The tensor that lies in an image with this layout."""
        payload = raw[self.offset : self.offset + self.span_bytes].view(self.tensor.dtype)
        return payload.as_strided(self.tensor.shape, self.tensor.stride())

    def guard_mask(self) -> torch.Tensor | None:
        """True for payload bytes that belong to no element; None when there are none."""
        if self.span_bytes == self.tensor.nbytes:
            return None
        item = self.tensor.element_size()
        mask = torch.ones(self.span_bytes // item, dtype=torch.bool)
        mask.as_strided(self.tensor.shape, self.tensor.stride()).fill_(False)
        return mask.repeat_interleave(item)


@dataclass
class Layout:
    """A call as images on disk. `spec` is what a worker is told: no operator, no seed, no reference."""

    call: Call
    images: dict[str, Image]

    @property
    def spec(self) -> dict[str, Any]:
        """Arguments in call order: an image's path, offset (bytes), dtype, shape, strides (elements); or a scalar."""
        return {
            name: {**argument, "image": str(self.images[name].path), "offset": self.images[name].offset}
            if isinstance(argument, dict)
            else argument
            for name, argument in outline(self.call).items()
        }

    def poison(self, output: str) -> torch.Tensor:
        """What an output held before the call."""
        return self.images[output].elements(self.images[output].raw)


@dataclass
class Returned:
    """What a candidate handed over: an output, and what became of everything that it should not have touched.

    band_damage and inputs_changed are sentences, told with the first of several outputs. between: some of the damage
    lies between the elements of an output. Without a poison the output is taken to be written.
    """

    output: torch.Tensor
    poison: torch.Tensor | None = None
    band_damage: list[str] = field(default_factory=list)
    inputs_changed: list[str] = field(default_factory=list)
    between: bool = False


def outline(call: Call) -> dict[str, Any]:
    """How a call's images are laid out, and not what is in them: nothing need be written for it.

    Arguments in call order: offset (bytes), dtype, shape, strides (elements) and size of the image (`bytes`); or a
    scalar. The stride along a last dimension of 1 is 1, as kernels check, whatever torch says of it.
    """
    return {
        name: {
            "offset": BAND_BYTES,
            "bytes": 2 * BAND_BYTES + span_bytes(value),
            "dtype": dtype_name(value.dtype),
            "shape": list(value.shape),
            "strides": [*value.stride()[:-1], 1 if value.shape[-1] == 1 else value.stride(-1)],
        }
        if isinstance(value, torch.Tensor)
        else value
        for name, value in call.arguments.items()
    }


def layout_images(
    call: Call,
    directory: Path,
    generator: torch.Generator | None = None,
    *,
    shifted: Collection[str] = (),
    fenced: str | None = None,
    finite: bool = False,
    spaced: Collection[str] = (),
    together: Collection[str] = (),
    zeroed: bool = False,
) -> Layout:
    """Write a call's tensors as images into a folder; without a generator the system seeds the random bits.

    shifted: the tensors that begin one element behind the page on which they lie otherwise.
    fenced: all tensors end where a page does (`end`), or begin there (`start`), with no guard band on that side.
    finite: around the elements of inputs lie large numbers, and not NaN, which some comparisons swallow.
    spaced: the tensors whose last dimension may have another stride than 1.
    together: the inputs that are one tensor, and so one image.
    zeroed: the elements of outputs are zeros, which who looks may take for a result.
    The generator must not be the one that the inputs were drawn from: poison is fresh even when a case is repeated.
    Raises TestError where a tensor that is not `spaced` has another last stride than 1, WorkerReplyError where a
    candidate put a link in an image's place.
    """
    directory.mkdir(parents=True, exist_ok=True)
    images: dict[str, Image] = {}
    for name, tensor in call.tensors.items():
        if tensor.numel() and tensor.shape[-1] != 1 and tensor.stride(-1) != 1 and name not in spaced:
            raise TestError(
                f"{name} has stride {tensor.stride(-1)} along its last dimension, where every argument must have 1",
                subject="make_call",
                hint=f"hand over {name}.contiguous()",
            )
        if name in together and (first := next((each for each in together if each in images), None)):
            images[name] = images[first]
            continue
        bands = _bands(tensor, name in shifted, fenced)
        images[name] = _image(name, tensor, name in call.outputs, directory / f"{name}.img", generator, bands, finite)
        if zeroed and name in call.outputs:
            images[name].elements(images[name].raw).zero_()
    for image in _each_once(images):
        with new_file(image.path) as stream:
            stream.write(image.raw.numpy().data)
    return Layout(call, images)


def read_back(layout: Layout, folder: Path, suffix: str = OUT_SUFFIX) -> dict[str, Returned]:
    """What the worker handed over in its folder (loading.handed_over), compared with what it was given; by output.

    The poison of a call that differed is not known here: its output is taken to be written.

    Raises TestError when an image is missing, no plain file or of another size: then the worker is at fault, or what
    the candidate did to its files.
    """
    damage: list[str] = []
    changed: list[str] = []
    outputs, between = {}, False
    for image in _each_once(layout.images):
        after = read_file(handed_over(folder, image.path, suffix), image.raw.numel())
        outside, inside = _band_damage(image, after)
        damage += [*outside, *inside]
        between = between or (bool(inside) and image.name in layout.call.outputs)
        if image.name in layout.call.outputs:
            poison = layout.poison(image.name) if suffix == OUT_SUFFIX else None
            outputs[image.name] = Returned(image.elements(after), poison)
        else:
            changed += _changes(image, after)
    first = outputs[layout.call.outputs[0]]
    first.band_damage, first.inputs_changed, first.between = damage, changed, between
    return outputs


def _each_once(images: Mapping[str, Image]) -> list[Image]:
    """The images of a call's tensors, of which several may have one."""
    return list({image.path: image for image in images.values()}.values())


def unlike_first(
    layout: Layout, folder: Path, count: int
) -> tuple[dict[str, torch.Tensor], list[tuple[int, str, int, dict[str, Returned]]]]:
    """The first call's result, and which of so many repeats handed over are not the same bit for bit.

    Of those the position, the place and the result: the place, of the first element that differs, is an output and a
    flat index. Raises TestError as `read_back` does.
    """
    first: dict[str, torch.Tensor] = {}
    results: list[dict[str, Returned]] = [{} for _ in range(count)]
    places: dict[int, tuple[str, int]] = {}
    for name in layout.call.outputs:
        image = layout.images[name]
        size = image.raw.numel()
        first[name] = image.elements(read_file(handed_over(folder, image.path), size))
        wanted = _bits(first[name])
        repeats = read_file(handed_over(folder, image.path, REPEATS_SUFFIX), count * size)
        for position, result in enumerate(results):
            output = image.elements(repeats[position * size : (position + 1) * size].clone())
            result[name], bits = Returned(output), _bits(output)
            if position not in places and not alike(bits, wanted):
                places[position] = name, int((bits != wanted).any(1).nonzero()[0, 0])
    return first, [(position, *places[position], results[position]) for position in sorted(places)]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """uint8 [elements, bytes of one]."""
    return tensor.contiguous().view(torch.uint8).reshape(-1, tensor.element_size())


def random_bytes(count: int, generator: torch.Generator | None = None) -> torch.Tensor:
    """Random bits, uint8 [count]."""
    if generator is None:
        # From a seed of the system's, whose own bits are slow. Who has the memory can read what lies in it anyway.
        stream = np.random.SFC64(int.from_bytes(os.urandom(16), "little"))
        return torch.from_numpy(stream.random_raw(count // 8 + 1).view(np.uint8)[:count])
    words = torch.randint(-(2**63), 2**63 - 1, (count // 8 + 1,), generator=generator)
    return words.view(torch.uint8)[:count]


def _bands(tensor: torch.Tensor, shifted: bool, fenced: str | None) -> tuple[int, int]:
    """Bytes of the guard bands before and behind a payload."""
    if fenced is None or not tensor.numel():
        return BAND_BYTES + shifted * tensor.element_size(), BAND_BYTES
    return (0, BAND_BYTES) if fenced == "start" else (-span_bytes(tensor) % mmap.PAGESIZE, 0)


def _image(
    name: str,
    tensor: torch.Tensor,
    is_output: bool,
    path: Path,
    generator: torch.Generator | None,
    bands: tuple[int, int],
    finite: bool,
) -> Image:
    span = span_bytes(tensor)
    offset, after = bands
    # Where the payload is all elements, random bits under them would be lost.
    gaps = is_output or span != tensor.nbytes
    around = random_bytes(offset + (span if gaps else 0) + after, generator)
    if not is_output and tensor.dtype in _QUIET_NAN:
        integer, bits = _QUIET_NAN[tensor.dtype]
        # The payload's size is a multiple of the element's, so the same view fits both bands and the gaps.
        words = around.view(integer)
        if finite:
            exponent, large = _LARGE[tensor.dtype]
            words.bitwise_or_(exponent).bitwise_xor_(exponent ^ large)
        else:
            words.bitwise_or_(bits)
    raw = around
    if not gaps:
        raw = torch.empty(offset + span + after, dtype=torch.uint8)
        raw[:offset], raw[offset + span :] = around[:offset], around[offset:]
    image = Image(name, path, tensor, raw, offset, after)
    if not is_output:
        image.elements(raw).copy_(tensor)
    return image


def read_file(path: Path, size: int) -> torch.Tensor:
    """A file that a worker handed over, as uint8 [size].

    A candidate may have put anything in its place: a link to another file, a pipe that never ends. Raises TestError
    unless it is a plain file of that size.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            about = os.fstat(stream.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise TestError("what the worker handed over is no plain file", subject=path.name)
            if about.st_size != size:
                message = f"the worker handed over {about.st_size} bytes instead of {size}"
                raise TestError(message, subject=path.name)
            data = np.fromfile(stream, np.uint8, size)
    except OSError as error:
        raise TestError(f"the worker handed over no image: {error}", subject=path.name) from error
    if len(data) != size:
        found = f"{len(data)} bytes" if len(data) < size else "more bytes"
        raise TestError(f"the worker handed over {found} instead of {size}", subject=path.name)
    return torch.from_numpy(data)


def _band_damage(image: Image, after: torch.Tensor) -> tuple[list[str], list[str]]:
    """A sentence for each guard band that is no longer what it was, and one for what lies between a view's elements."""
    item, end = image.tensor.element_size(), image.offset + image.span_bytes
    found, between = [], []
    for side, start, stop in (("before", 0, image.offset), ("after", end, after.numel())):
        places = _differing(image.raw[start:stop], after[start:stop])
        if places.numel():
            first, last = int(places[0]), int(places[-1])
            near = first // item if side == "after" else (last - image.offset) // item
            far = last // item if side == "after" else (first - image.offset) // item
            position = (
                f"{_elements(near + 1)} past the end" if side == "after" else f"{_elements(-near)} before the beginning"
            )
            reach = "" if near == far else f", as far as {abs(far) + (side == 'after')}"
            found.append(
                f"{image.name}: {len(places)} bytes written {side} the buffer, the nearest {position}{reach} "
                f"(byte offset {first - image.offset if side == 'before' else first + image.span_bytes} "
                "from the buffer's start)"
            )
    gaps = image.guard_mask()
    if gaps is not None:
        differing = _differing(image.raw[image.offset : end], after[image.offset : end])
        places = differing[gaps[differing]]
        if places.numel():
            what = "rows" if image.tensor.stride(-1) == 1 else "elements"
            between.append(
                f"{image.name}: {len(places)} bytes written between the {what} of the view, "
                f"the first at byte offset {int(places[0])}"
            )
    return found, between


def _differing(before: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    """Where two runs of bytes differ; where they do not, which is nearly always, no mask is made."""
    if alike(now, before):
        return torch.empty(0, dtype=torch.int64)
    return torch.from_numpy(now.numpy() != before.numpy()).nonzero()[:, 0]  # ten times as fast as torch compares bytes


def _changes(image: Image, after: torch.Tensor) -> list[str]:
    start, end = image.offset, image.offset + image.span_bytes
    if alike(after[start:end], image.raw[start:end]):
        return []
    before, now = (_bits(image.elements(raw)) for raw in (image.raw, after))
    places = (before != now).any(1).nonzero()[:, 0]
    if not places.numel():
        return []  # only gaps, which are reported as guard bands
    index = [int(i) for i in np.unravel_index(int(places[0]), image.tensor.shape)]
    return [f"{image.name}: {len(places)} of {math.prod(image.tensor.shape)} elements changed, the first at {index}"]


def _elements(count: int) -> str:
    return f"{count} element" if count == 1 else f"{count} elements"
