"""What calls gave, in bits: compared, poisoned before it is given again, and handed over to who judges it."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

    Result: TypeAlias = Tensor | tuple[Tensor, ...]  # of several outputs the latter


def outputs_of(result: Result) -> tuple[Tensor, ...]:
    """The outputs that a call gave."""
    return result if type(result) is tuple else (result,)  # one of a candidate's own could compute when it is read


def distinct(results: Sequence[Result]) -> list[tuple[Result, int]]:
    """The first result, and the first that differs from it in any bit, each with how many sets gave it (or not)."""
    import torch

    first = results[0]
    for output in itertools.chain.from_iterable(map(outputs_of, results)):
        if type(output) is not torch.Tensor:
            raise not_plain(type(output))
    bits = bytes_of(first)
    others = [result for result in results[1:] if not torch.equal(bytes_of(result), bits)]
    found = [(first, len(results) - len(others))]
    return [*found, (others[0], len(others))] if others else found


def not_plain(kind: type) -> TypeError:
    """What a call returned is no plain tensor. A subclass may compute when it is read, which no clock sees."""
    said = f"it returned a {kind.__name__}, not a plain Tensor"
    hints = {
        "NoneType": "; a function that fills its outputs says so by `passing: destination`",
        "ndarray": "; return torch.from_numpy(…) of it",
    }
    return TypeError(said + hints.get(kind.__name__, ""))


def bits_of(value: Tensor) -> Tensor:
    """The same memory as whole numbers of the same size."""
    import torch

    return value.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()])


def bytes_of(result: Result) -> Tensor:
    """The bytes of all its elements, of one output after the other."""
    import torch

    parts = [output.contiguous().reshape(-1).view(torch.uint8) for output in outputs_of(result)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def poison(values: Iterable[Tensor]) -> None:
    """Fill them with NaN, or, where they hold whole numbers, with a pattern of bits."""
    for value in values:
        value.fill_(float("nan") if value.is_floating_point() else 0x55)


class Handed:
    """A result that was handed over: its bytes, then the path and SHA-256 of the file that `write` makes of them."""

    def __init__(self, bits: Tensor) -> None:
        self.bits: Tensor | None = bits
        self.written: Future[tuple[str, str]] | None = None

    def write(self, folder: str, name: str) -> tuple[str, str]:
        """Hash and write it; both take as long as many a timing."""
        bits, self.bits = self.bits, None
        assert bits is not None
        data = memoryview(bits.numpy())
        digest = hashlib.sha256(data).hexdigest()
        # A short name: the same bytes of another process are the same file.
        path = Path(folder) / f"{name}-{digest[:24]}.output"
        if not path.exists():
            path.write_bytes(data)
        return str(path), digest

    def described(self, output: Mapping[str, Any]) -> dict[str, Any]:
        """An output and where it lies. Raises OSError where it could not be written."""
        assert self.written is not None
        path, digest = self.written.result()
        return {**output, "path": path, "sha256": digest}
