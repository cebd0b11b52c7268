"""Memory for a call's tensors, each an allocation of its own, in processes that must start fast.

A TVM-FFI candidate is called without torch: its tensors are DLPack views of memory from the CUDA driver, or of the
host's. What others take are torch's own tensors.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

CPU, CUDA = 1, 2  # DLDeviceType, <dlpack/dlpack.h>
CAPSULE_NAME = b"dltensor"
NUMPY_DTYPES = frozenset({"float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool"})
BYTE_DTYPES = frozenset({"float8_e4m3fn"})  # unknown to NumPy, which can hold the bytes of inputs all the same


class Memory(Protocol):
    """Where tensors are allocated, each by itself and of its exact size."""

    def allocate(self, size: int) -> Any: ...
    def write(self, buffer: Any, data: bytes) -> None: ...
    def free(self, buffer: Any) -> None: ...
    def view(self, buffer: Any, image: Mapping[str, Any]) -> Any: ...
    def synchronise(self) -> None: ...


def needs_torch(abi: str, device: str, inputs: Collection[str], others: Collection[str] = ()) -> bool:
    """Whether a worker for this variant must import torch: CUDA memory, PyTorch callables, dtypes NumPy lacks.

    inputs: the dtypes of tensors that are only read. others: those of outputs, and of what may be one.
    """
    held = NUMPY_DTYPES.issuperset(others) and (NUMPY_DTYPES | BYTE_DTYPES).issuperset(inputs)
    return abi != "tvm_ffi" or device != "cpu" or not held


def memory_of(abi: str, device: str) -> Memory:
    """The memory that a candidate's tensors lie in."""
    if abi != "tvm_ffi":
        return TorchMemory(device)
    return DriverMemory() if device == "cuda" else HostMemory()


def without_torch() -> None:
    """Before TVM-FFI is imported, which imports torch where it can: 2 s for nothing. For good, in this process."""
    sys.modules["torch"] = None  # type: ignore[assignment]


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

    Unless PYTORCH_NO_CUDA_MEMORY_CACHING is set, a tensor on a GPU is a part of a larger allocation.
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


def bytes_as(dtype: str, values: np.ndarray[Any, np.dtype[np.uint8]]) -> Any:
    """A TVM-FFI tensor of the same memory, whose bytes it takes for another type of a byte."""
    import tvm_ffi

    capsule = values.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    managed = _DLManagedTensor.from_address(pointer(capsule, CAPSULE_NAME))
    managed.dl_tensor.code = tvm_ffi.dtype(dtype).type_code
    return tvm_ffi.from_dlpack(capsule)


# --- images -----------------------------------------------------------------------------------------------------------


def payload_bytes(image: Mapping[str, Any]) -> int:
    """The bytes of an image between its guard bands: from its first element to its last."""
    return Path(image["image"]).stat().st_size - 2 * int(image["offset"])


def payload(image: Mapping[str, Any]) -> bytes:
    """What lies between the guard bands."""
    with Path(image["image"]).open("rb") as stream:
        stream.seek(int(image["offset"]))
        return stream.read(payload_bytes(image))
