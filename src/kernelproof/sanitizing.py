"""The process that compute-sanitizer watches: `python -m kernelproof.sanitizing PLAN`, started by `sanitizer`.

It loads one candidate and calls it on a few cases, which the judge has laid out as images. Nothing is handed over and
nothing is judged: the tool around it does the looking. So that it sees as much as it can, every buffer is an allocation
of its own with its exact size (no guard bands: the byte past the end belongs to nobody), outputs are left as they were
allocated, and each case is called on other values in the same inputs.

Four tools start such a process for each variant, so it must start fast: a TVM-FFI candidate is called without torch,
its tensors are DLPack views of memory from the CUDA driver.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from kernelproof.processes import end_with

CPU, CUDA = 1, 2  # DLDeviceType, <dlpack/dlpack.h>
CAPSULE_NAME = b"dltensor"


def main() -> None:
    """Carry out a plan; every step is a line of its progress file, so that it is known how far this process came."""
    plan = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    end_with(plan["supervisor"])
    with Path(plan["progress"]).open("a", encoding="utf-8", buffering=1) as progress:

        def say(state: str, **facts: Any) -> None:
            progress.write(json.dumps({"state": state, "time_s": time.monotonic(), **facts}) + "\n")

        call_all(plan, say)


def call_all(plan: Mapping[str, Any], say: Callable[..., None]) -> None:
    """Load the candidate and make every call.

    plan: `candidate` (loading.Candidate), and `calls`: for each case the arguments of its calls as an image's worker
    gets them, all laid out alike, and which of them are outputs. After an error no further call is made: it can leave
    the CUDA context unusable.
    """
    from kernelproof.loading import Candidate, load

    candidate = Candidate(**plan["candidate"])
    if candidate.abi == "tvm_ffi":
        sys.modules["torch"] = None  # type: ignore[assignment]  # TVM-FFI imports torch where it can: 2 s for nothing
    try:
        memory = _memory(candidate)
        function = load(candidate, Path(candidate.library) if candidate.library else None, Path(candidate.root))
    except Exception as error:
        say("unloadable", message=_words(error))
        return
    say("loaded")
    for number, case in enumerate(plan["calls"]):
        say("calling", call=number)
        try:
            call_case(function, candidate.passing, memory, case["values"], case["outputs"])
        except NotImplementedError as error:
            say("refused", call=number, message=_words(error))
        except Exception as error:
            say("failed", call=number, message=_words(error))
            return
        else:
            say("returned", call=number)
    say("finished")


def call_case(
    function: Callable[..., Any], passing: str, memory: Memory, values: list[dict[str, Any]], outputs: list[str]
) -> None:
    """Call a candidate once on each set of values; inputs stay where they are, outputs are allocated anew each time."""
    images = {name: value for name, value in values[0].items() if isinstance(value, dict)}
    inputs = {name: memory.allocate(payload_bytes(image)) for name, image in images.items() if name not in outputs}
    for arguments in values:
        for name, buffer in inputs.items():
            memory.write(buffer, payload(arguments[name]))
        fresh = {name: memory.allocate(payload_bytes(images[name])) for name in outputs}
        views = {name: memory.view(buffer, images[name]) for name, buffer in (inputs | fresh).items()}
        given = {name: views.get(name, value) for name, value in arguments.items()}
        if passing == "return":
            given = {name: value for name, value in given.items() if name not in outputs}
        function(*given.values())
        memory.synchronise()
        del views, given
        for buffer in fresh.values():
            memory.free(buffer)
    for buffer in inputs.values():
        memory.free(buffer)


def payload_bytes(image: Mapping[str, Any]) -> int:
    """The bytes of an image between its guard bands: from its first element to its last."""
    return Path(image["image"]).stat().st_size - 2 * int(image["offset"])


def payload(image: Mapping[str, Any]) -> bytes:
    """What lies between the guard bands."""
    with Path(image["image"]).open("rb") as stream:
        stream.seek(int(image["offset"]))
        return stream.read(payload_bytes(image))


# --- memory -----------------------------------------------------------------------------------------------------------


class Memory(Protocol):
    """Where tensors are allocated, each by itself and of its exact size."""

    def allocate(self, size: int) -> Any: ...
    def write(self, buffer: Any, data: bytes) -> None: ...
    def free(self, buffer: Any) -> None: ...
    def view(self, buffer: Any, image: Mapping[str, Any]) -> Any: ...
    def synchronise(self) -> None: ...


def _memory(candidate: Any) -> Memory:
    if candidate.abi != "tvm_ffi":
        return TorchMemory(candidate.device)
    return DriverMemory() if candidate.device == "cuda" else HostMemory()


class DriverMemory:
    """Device memory of the first GPU from the CUDA driver, in the context that the CUDA runtime uses too."""

    def __init__(self) -> None:
        from kernelproof.cuda_driver import driver

        self._driver = driver()
        device, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._driver.cuInit(0)
        self._driver.cuDeviceGet(ctypes.byref(device), 0)
        self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), device)
        self._driver.cuCtxSetCurrent(self._context)

    def allocate(self, size: int) -> int:
        """Uninitialised memory; its address."""
        address = ctypes.c_ulonglong()
        self._driver.cuMemAlloc(ctypes.byref(address), size)
        return address.value

    def write(self, buffer: int, data: bytes) -> None:
        """Copy bytes to the device."""
        self._driver.cuMemcpyHtoD(buffer, data, len(data))

    def free(self, buffer: int) -> None:
        """Give memory back."""
        self._driver.cuMemFree(buffer)

    def view(self, buffer: int, image: Mapping[str, Any]) -> Any:
        """A TVM-FFI tensor."""
        return tensor(buffer, CUDA, image)

    def synchronise(self) -> None:
        """Wait until the device has done what was asked; an error of a kernel surfaces here."""
        self._driver.cuCtxSynchronize()


class HostMemory:
    """Memory of the host, for a candidate that runs there."""

    def allocate(self, size: int) -> Any:
        """A buffer of so many bytes."""
        return (ctypes.c_char * size)()

    def write(self, buffer: Any, data: bytes) -> None:
        """Copy bytes."""
        ctypes.memmove(buffer, data, len(data))

    def free(self, buffer: Any) -> None:
        """Python does that."""

    def view(self, buffer: Any, image: Mapping[str, Any]) -> Any:
        """A TVM-FFI tensor."""
        return tensor(ctypes.addressof(buffer), CPU, image)

    def synchronise(self) -> None:
        """A CPU candidate has done its work when it returns."""


class TorchMemory:
    """torch's, for candidates that take torch tensors.

    PYTORCH_NO_CUDA_MEMORY_CACHING must be set, else a tensor is a part of a larger allocation.
    """

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        self._device = device

    def allocate(self, size: int) -> Any:
        """Uninitialised memory: uint8 [size]."""
        return self._torch.empty(size, dtype=self._torch.uint8, device=self._device)

    def write(self, buffer: Any, data: bytes) -> None:
        """Copy bytes to the device."""
        buffer.copy_(self._torch.frombuffer(bytearray(data), dtype=self._torch.uint8))

    def free(self, buffer: Any) -> None:
        """The caller drops it, and without a cache that frees it."""

    def view(self, buffer: Any, image: Mapping[str, Any]) -> Any:
        """A torch tensor."""
        typed = buffer.view(getattr(self._torch, image["dtype"]))
        return typed.as_strided(tuple(image["shape"]), tuple(image["strides"]))

    def synchronise(self) -> None:
        """Wait until the device has done what was asked; an error of a kernel surfaces here."""
        if self._device == "cuda":
            self._torch.cuda.synchronize()


# --- DLPack -----------------------------------------------------------------------------------------------------------


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (("dl_tensor", _DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_LENT: list[_DLManagedTensor] = []  # a view without a deleter must never go: a candidate may keep its own


def tensor(address: int, device_type: int, image: Mapping[str, Any]) -> Any:
    """A TVM-FFI tensor over memory that somebody else owns: an image's dtype, shape and strides (elements)."""
    import tvm_ffi

    dtype = tvm_ffi.dtype(image["dtype"])
    dimensions = ctypes.c_int64 * len(image["shape"])
    managed = _DLManagedTensor()
    view = managed.dl_tensor
    view.data, view.device_type, view.device_id = address, device_type, 0
    view.ndim, view.code, view.bits, view.lanes = len(image["shape"]), dtype.type_code, dtype.bits, dtype.lanes
    view.shape, view.strides = dimensions(*image["shape"]), dimensions(*image["strides"])
    _LENT.append(managed)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return tvm_ffi.from_dlpack(new(ctypes.addressof(managed), CAPSULE_NAME, None))


def _words(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:500]


if __name__ == "__main__":
    main()
