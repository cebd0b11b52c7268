"""Settings that decide how fast others run in this process: no contender may leave them changed.

Which kernels torch runs, on how many threads, and how the GPU's L2 cache is used.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kernelproof.cuda_driver import DriverError, driver

OPENMP = re.compile(r"(/\S*/lib(?:gomp|iomp5|omp5?)(?:-\w+)?\.so[.\d]*)$", re.MULTILINE)  # in a list of what is mapped


@contextmanager
def torch_kept(*, refused: bool) -> Iterator[None]:
    """Torch is afterwards as it was, with as many threads, in as many levels: the next contender would have another.

    So is the use of the GPU's L2 cache. So are the process's folder and the mode of new files, which who compiles in a
    first call needs; nobody is blamed for those. Raises RuntimeError where torch or the cache was left otherwise, if
    that is `refused`: while it is loaded one may mean itself.
    """
    import torch

    folder, mask = os.getcwd(), os.umask(0o077)
    os.umask(mask)
    kept = {"threads": (torch.get_num_threads, torch.set_num_threads)} | _openmp_settings() | _torch_settings()
    kept |= _device_settings()
    found = {name: get() for name, (get, _) in kept.items()}
    left = found
    try:
        yield
    finally:
        os.umask(mask)
        os.chdir(folder)
        left = {name: get() for name, (get, _) in kept.items()}
        for name, (_, put) in kept.items():
            if left[name] != found[name]:
                put(found[name])
    if refused and (changed := [name for name in kept if left[name] != found[name]]):
        words = ", ".join(f"with {name} {left[name]} where it found {found[name]}" for name in changed)
        raise RuntimeError(f"it left the process {words}, and the others would have had them")


@functools.cache
def _torch_settings() -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    """How to read and to set what decides which kernels torch runs, and on what."""
    import torch

    def flag(module: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
        return (lambda: getattr(module, name)), (lambda value: setattr(module, name, value))

    precision = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    found: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
        "the default type": (torch.get_default_dtype, torch.set_default_dtype),
        "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
        "the precision of float32 products": precision,
        "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        "oneDNN": flag(torch.backends.mkldnn, "enabled"),
    }
    for name in ("enabled", "benchmark", "deterministic"):
        found[f"cuDNN {name}"] = flag(torch.backends.cudnn, name)
    for kind in ("flash", "mem_efficient", "math", "cudnn"):
        get, put = (getattr(torch.backends.cuda, name, None) for name in (f"{kind}_sdp_enabled", f"enable_{kind}_sdp"))
        if get and put:
            found[f"{kind} attention"] = (get, put)
    return found


def _device_settings() -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    """How to read and to set what the current CUDA context does with its L2 cache; nothing where there is no context.

    A context that an error has ended says what it said before. Source: CUDA driver API, CUlimit.
    """
    import torch

    if not torch.cuda.is_initialized():
        return {}

    def limit(number: int) -> tuple[Callable[[], int], Callable[[int], object]]:
        value = ctypes.c_size_t()

        def get() -> int:
            with suppress(DriverError):
                driver().cuCtxGetLimit(ctypes.byref(value), number)
            return value.value

        def put(wanted: int) -> None:
            with suppress(DriverError):
                driver().cuCtxSetLimit(number, wanted)

        return get, put

    return {"bytes fetched into L2 at a time": limit(0x05), "bytes of L2 set aside": limit(0x06)}


@functools.cache
def _openmp_settings() -> dict[str, tuple[Callable[[], int], Callable[[int], object]]]:
    """How to read and to set what may keep torch's threads from working, in each OpenMP that is loaded by now."""
    found = {}
    for path in sorted(set(OPENMP.findall(Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")))):
        runtime = ctypes.CDLL(path)
        for words, setting in (("levels of threads", "max_active_levels"), ("leave to adjust them", "dynamic")):
            get, put = (getattr(runtime, f"omp_{verb}_{setting}") for verb in ("get", "set"))
            found[f"{words} ({Path(path).name})"] = (get, put)
    return found
