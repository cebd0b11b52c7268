"""A GPU that is none: tensors said to lie on it meet no others, as with CUDA. So CI sees a judge that mixes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CUDA = torch.device("cuda:0")
MARK = "said_to_be_on_a_gpu"
READ = {"numpy", "__array__"}  # of a tensor on a GPU they fail
# What CUDA takes of both: copies, and indices.
BOTH = {"copy_", "__getitem__", "__setitem__"}


class TwoDevices(TorchFunctionMode):
    """While it is entered, `device="cuda"` makes tensors on the CPU that are kept apart from all others.

    Functions of both raise what torch raises with a GPU, but for numbers (no dimensions), copies and indices.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), dict(kwargs or {})
        there = [tensor for tensor in _tensors([args, kwargs]) if hasattr(tensor, MARK)]
        if getattr(func, "__self__", None) is torch.Tensor.device:
            return CUDA if there else func(*args)
        if there and name in READ:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")
        here = [t for t in _tensors([args, kwargs]) if not hasattr(t, MARK) and t.dim()]
        if there and here and name not in BOTH:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
            )
        asked = [value for value in [*args, *kwargs.values()] if isinstance(value, torch.device | str)]
        devices = [torch.device(value) for value in asked if str(value).partition(":")[0] in ("cuda", "cpu")]
        args = [torch.device("cpu") if _is_cuda(value) else value for value in args]
        kwargs = {key: torch.device("cpu") if _is_cuda(value) else value for key, value in kwargs.items()}
        result = func(*args, **kwargs)
        goes_there = devices[-1].type == "cuda" if devices else bool(there) and name != "cpu"
        if isinstance(result, torch.Tensor) and hasattr(result, MARK) != goes_there:
            result = result.clone() if any(result is given for given in [*there, *here]) else result
        for tensor in _tensors(result):
            if goes_there:
                setattr(tensor, MARK, True)
        return result


def _is_cuda(value: Any) -> bool:
    return isinstance(value, torch.device | str) and str(value).partition(":")[0] == "cuda"


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)
