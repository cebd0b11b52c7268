"""What contenders are called with: copies of a case's arguments.

*Hot*: one set of inputs. *Cold*: as many copies, visited in turn, as exceed twice the last-level cache (a GPU's L2).
"""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof import loading

if TYPE_CHECKING:
    from torch import Tensor

CACHES_EXCEEDED = 2  # a cold rotation is this many times the cache
CPU_COLD_LIMIT_BYTES = 256 << 20
GPU_COLD_LIMIT_BYTES = 8 << 30
SETS_LIMIT = 1024  # copies in a cold rotation: more would make graphs of thousands of nodes


class ArgumentSets:
    """Copies of a case's arguments: one (hot), or a rotation that does not fit the cache (cold)."""

    def __init__(self, case: Mapping[str, Any], device: str, mode: str) -> None:
        import torch

        self.case = case
        self.device = device
        self.names = list(case["arguments"])
        self.outputs_at = [self.names.index(name) for name in case["outputs"]]
        originals = [
            loading.load_image(value, device, with_torch=True).view if isinstance(value, dict) else value
            for value in case["arguments"].values()
        ]
        size = sum(value.numel() * value.element_size() for value in originals if isinstance(value, torch.Tensor))
        count, self.rotation = _rotation(size, device, mode)
        self.arguments = [[clone(value) for value in originals] for _ in range(count)]

    def __len__(self) -> int:
        return len(self.arguments)

    def inputs(self, index: int) -> list[Any]:
        """One set without the outputs."""
        return [value for place, value in enumerate(self.arguments[index]) if place not in self.outputs_at]

    def outputs(self, index: int = 0) -> list[Tensor]:
        """The output arguments of one set: their layout; every contender has memory of its own."""
        return [self.arguments[index][place] for place in self.outputs_at]

    def with_outputs(self, index: int, outputs: Sequence[Tensor]) -> list[Any]:
        """The arguments of one set with these for the outputs."""
        arguments = list(self.arguments[index])
        for place, output in zip(self.outputs_at, outputs, strict=True):
            arguments[place] = output
        return arguments

    def refresh(self, images: Mapping[str, Any], only: Sequence[int] | None = None) -> bool:
        """Put other values into the same memory, in every set or `only` some. False when there are none."""
        for name, image in images.items():
            values = loading.load_image(image, self.device, with_torch=True).view
            for index in range(len(self)) if only is None else only:
                self.arguments[index][self.names.index(name)].copy_(values)
        return bool(images)


def case_fresh(case: Mapping[str, Any]) -> Mapping[str, Any]:
    """The images of other values that a case brings; may be none."""
    fresh: Mapping[str, Any] = case.get("fresh") or {}
    return fresh


def _rotation(size_bytes: int, device: str, mode: str) -> tuple[int, dict[str, Any]]:
    """How many sets, and the figures that say whether they make a cold run cold."""
    cache = _cache_bytes(device)
    if mode == "hot":
        return 1, {"sets": 1, "set_bytes": size_bytes, "cache_bytes": cache}
    limit = CPU_COLD_LIMIT_BYTES if device == "cpu" else GPU_COLD_LIMIT_BYTES
    wanted = max(2, math.ceil(CACHES_EXCEEDED * cache / max(1, size_bytes)))
    count = max(2, min(wanted, SETS_LIMIT, limit // max(1, size_bytes)))
    enough = count >= wanted
    return count, {"sets": count, "set_bytes": size_bytes, "cache_bytes": cache, "exceeds_cache": enough}


def _cache_bytes(device: str) -> int:
    """The GPU's L2, or the CPU's last-level cache; 32 MiB where the system does not say."""
    if device == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(0).L2_cache_size)
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    factors = {"K": 1 << 10, "M": 1 << 20}
    known = [int(size[:-1]) * factors[size[-1]] for size in sizes if size[-1:] in factors]
    return max(known, default=32 << 20)


def clone(value: Any) -> Any:
    """A tensor's values in new memory of the same strides; what is no tensor as it is."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)


def like(layout: Tensor) -> Tensor:
    """New memory of the same shape, strides and data type, which nothing is written to."""
    import torch

    return torch.empty_strided(layout.shape, layout.stride(), dtype=layout.dtype, device=layout.device)


def release(device: str) -> None:
    """Give memory back that nobody holds any more."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
