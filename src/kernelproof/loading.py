"""From a built library and files of raw bytes to a call: used in the worker, never in the process that judges.

A tensor argument is an *image*, a file of `guard band | payload | guard band`; the variant is given a view of the
payload. NumPy serves CPU variants, so that their worker need not import torch (two seconds); torch serves the rest.
"""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import mmap
import os
import re
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from kernelproof.errors import NoSuchEntry, WorkerReplyError
from kernelproof.memory import BYTE_DTYPES, bytes_as

# Address space on either side of an image, in bytes, that nothing may touch: access beyond the guard bands is a crash.
FENCE_BYTES = 8 << 20
PROT_NONE = 0  # <sys/mman.h>
IOV_MAX = 1024  # <limits.h>
NAMED = 20  # of the names in a module, where none is near the one that is asked for
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.writev.restype = ctypes.c_ssize_t


def raised_in(error: Exception, root: Path) -> str:
    """` (kernels.py:12)`: the innermost line of the project's own, and not kernelproof's, that raised an exception."""
    place, ours = "", Path(__file__).parent
    trace = error.__traceback__
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if path.is_relative_to(root) and not path.is_relative_to(ours):
            place = f" ({path.relative_to(root)}:{trace.tb_lineno})"
        trace = trace.tb_next
    return place


class Loadable(Protocol):
    """The part of a variant's configuration that loading needs."""

    @property
    def abi(self) -> str: ...
    @property
    def entry(self) -> str: ...


@dataclass(frozen=True)
class Candidate:
    """A variant as its worker knows it: how to call it, and not what it is judged on."""

    abi: str  # tvm_ffi, torch, python
    device: str  # cpu, cuda
    passing: str  # destination, return
    entry: str
    library: str | None
    root: str
    cubins: list[dict[str, str]] | None = None  # path, sha256: these alone are loaded, and none of the above


@dataclass
class Image:
    """A tensor argument in memory: all bytes with their guard bands, the elements, and what the variant is given."""

    raw: Any  # numpy or torch uint8 [bytes]
    view: Any
    lent: Any = None  # to the variant, where it is not the view

    @property
    def argument(self) -> Any:
        """What the variant is given."""
        return self.view if self.lent is None else self.lent


@contextlib.contextmanager
def unlimited_files() -> Iterator[None]:
    """Lift the limit on the size of files, which is meant for what a candidate writes itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def span_bytes(tensor: Any) -> int:
    """Bytes from the first to the last element of a torch tensor, both included."""
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    return int(span * tensor.element_size())


def is_there(tensor: Any) -> bool:
    """Whether all memory of a torch tensor on a CPU can be read; whoever waits for a read does not learn of it.

    What a handler computes when somebody reads it is not there yet. A byte of every page goes into a pipe: the kernel
    reads it, and says so where it cannot.
    """
    span = span_bytes(tensor)
    if not span:
        return True
    first = tensor.data_ptr()
    pages = np.arange(first - first % mmap.PAGESIZE, first + span, mmap.PAGESIZE, dtype=np.uint64)
    pages[0] = first
    vectors = np.stack([pages, np.ones_like(pages)], axis=1)  # struct iovec, <sys/uio.h>
    source, target = os.pipe()
    try:
        for start in range(0, len(vectors), IOV_MAX):
            some = np.ascontiguousarray(vectors[start : start + IOV_MAX])
            if _LIBC.writev(target, some.ctypes.data_as(ctypes.c_void_p), len(some)) != len(some):
                return False
            os.read(source, IOV_MAX)
    finally:
        os.close(source)
        os.close(target)
    return True


def load(variant: Loadable, library: Path | None, root: Path) -> Callable[..., Any]:
    """The variant as a callable.

    Raises WorkerReplyError when the library cannot be loaded, NoSuchEntry when it has no such function.
    """
    loaders = {"tvm_ffi": _load_tvm_ffi, "torch": _load_torch_extension, "python": _load_python}
    try:
        return loaders[variant.abi](variant.entry or "run", library, root)
    except WorkerReplyError:
        raise
    except Exception as error:
        raise WorkerReplyError(
            f"it cannot be loaded: {type(error).__name__}: {error}{raised_in(error, root.resolve())}",
            subject=_name(variant, library),
        ) from error


def _name(variant: Loadable, library: Path | None) -> str:
    return variant.entry if library is None else library.name


def _load_tvm_ffi(entry: str, library: Path | None, root: Path) -> Callable[..., Any]:
    import tvm_ffi

    tvm_ffi.register_error("NotImplementedError", NotImplementedError)  # by default an unknown name is a RuntimeError
    module = tvm_ffi.load_module(str(_existing(library)))
    try:
        function = module.get_function(entry)
    except Exception:
        function = None
    if function is None:
        raise _no_such_entry(entry, _existing(library))

    def call(*arguments: Any) -> Any:
        return function(*arguments)

    call.module = module  # type: ignore[attr-defined]  # the library must outlive the function
    return call


def _no_such_entry(entry: str, library: Path) -> NoSuchEntry:
    """A function that is asked for and not exported; each that is has a symbol of its own."""
    from kernelproof.config import among

    found = re.findall(rb"\0__tvm_ffi_([A-Za-z]\w*)(?=\0)", library.read_bytes())
    exported = sorted({name.decode() for name in found})
    export = f"the binding with TVM_FFI_DLL_EXPORT_TYPED_FUNC({entry}, ...)"
    return NoSuchEntry(
        f"the library exports no TVM-FFI function {entry!r}, which is the variant's `entry` (run where it has none); "
        + (among(entry, exported) if exported else "it exports none at all"),
        subject=library.name,
        hint=f"mend `entry` in the configuration, or end {export}" if exported else f"end {export}",
    )


def _load_torch_extension(entry: str, library: Path | None, root: Path) -> Callable[..., Any]:
    path = _existing(library)
    # The module's name was fixed when it was compiled (TORCH_EXTENSION_NAME); its initialiser bears it. In front of it,
    # as a package's, stands one of its file: pybind11 gives the first of two modules of one name for both.
    package = f"variant_{hashlib.sha256(bytes(path)).hexdigest()[:16]}"
    names = sorted({name.decode() for name in re.findall(rb"PyInit_(\w+)", path.read_bytes())})
    if not names:
        raise WorkerReplyError("the library is no Python extension (no PyInit_ function)", subject=path.name)
    importlib.import_module("torch")
    for name in names:
        loader = importlib.machinery.ExtensionFileLoader(f"{package}.{name}", str(path))
        spec = importlib.util.spec_from_file_location(loader.name, path, loader=loader)
        if spec is None:
            continue
        try:
            module = importlib.util.module_from_spec(spec)
        except ImportError:
            continue  # a string in the binary that only looks like an initialiser
        loader.exec_module(module)
        return _attribute(module, entry, path.name)
    raise WorkerReplyError(f"none of {', '.join(names)} can be imported from it", subject=path.name)


def _load_python(entry: str, library: Path | None, root: Path) -> Callable[..., Any]:
    where, _, function = entry.rpartition(":")
    if not where:
        raise WorkerReplyError(f"entry {entry!r} is not of the form module:function or file.py:function")
    if where.endswith(".py"):
        path = root / where
        if not path.is_file():
            raise WorkerReplyError("the file does not exist", subject=where)
        spec = importlib.util.spec_from_file_location(f"kernelproof_candidate_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # Triton and dataclasses look a function's module up by name
        _import_from(path.parent)  # as for a script: what lies beside it
        if str(root) not in sys.path:
            sys.path.append(str(root))  # and from the root, as operators' modules do
        spec.loader.exec_module(module)
    else:
        _import_from(root)
        module = importlib.import_module(where)
    return _attribute(module, function, where)


def _import_from(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _attribute(module: Any, name: str, where: str) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if not callable(function):
        public = [each for each in dir(module) if not each.startswith("_")]
        close = difflib.get_close_matches(name, public, n=1)
        more = f" and {len(public) - NAMED} more" if len(public) > NAMED else ""
        known = f"did you mean {close[0]!r}?" if close else f"it has: {', '.join(public[:NAMED])}{more}"
        raise NoSuchEntry(f"there is no function {name!r} in it; {known}", subject=where)
    return function  # type: ignore[no-any-return]


def _existing(library: Path | None) -> Path:
    if library is None or not library.is_file():
        raise WorkerReplyError("the library does not exist", subject=str(library))
    return library


# --- images -----------------------------------------------------------------------------------------------------------


def load_image(descriptor: Mapping[str, Any], device: str, with_torch: bool) -> Image:
    """Read an image and put it whole, guard bands included, on the device.

    descriptor: `image` (path), `offset` (bytes to the first element), `dtype`, `shape`, `strides` (in elements).
    With `zero_copy` it is put into pinned memory of the host, which a GPU reads across the bus.
    """
    raw = _read_fenced(Path(descriptor["image"]))
    if not with_torch:
        shape, strides = tuple(descriptor["shape"]), tuple(descriptor["strides"])
        offset, dtype = int(descriptor["offset"]), str(descriptor["dtype"])
        kind = np.dtype("uint8" if dtype in BYTE_DTYPES else dtype)
        view = np.ndarray(shape, kind, buffer=raw, offset=offset, strides=[s * kind.itemsize for s in strides])
        return Image(raw, view, lent=bytes_as(dtype, view) if dtype in BYTE_DTYPES else None)
    import torch

    whole = torch.from_numpy(raw)
    if device == "cuda":
        whole = torch.as_tensor(_Mapped(whole), device="cuda") if descriptor.get("zero_copy") else whole.to("cuda")
    return _on_torch(whole, descriptor)


class _Mapped:
    """A copy of a tensor's bytes in pinned memory of the host, as torch takes it for memory of the GPU.

    Under unified addressing both have one address for it. Who shares the memory keeps this object. Raises
    WorkerReplyError where the machine has no such memory.
    """

    def __init__(self, whole: Any) -> None:
        try:
            self._pinned = whole.pin_memory()
        except RuntimeError:
            raise WorkerReplyError("this machine maps no memory of the host into the GPU's") from None
        self.__cuda_array_interface__ = {
            "shape": (len(self._pinned),),
            "typestr": "|u1",
            "data": (self._pinned.data_ptr(), False),
            "version": 3,
        }


def blank_image(descriptor: Mapping[str, Any]) -> Image:
    """An image of zeros on the GPU, laid out as the image would be that this describes (images.outline)."""
    import torch

    return _on_torch(torch.zeros(int(descriptor["bytes"]), dtype=torch.uint8, device="cuda"), descriptor)


def _on_torch(whole: Any, descriptor: Mapping[str, Any]) -> Image:
    import torch

    shape, strides, offset = tuple(descriptor["shape"]), tuple(descriptor["strides"]), int(descriptor["offset"])
    kind: torch.dtype = getattr(torch, str(descriptor["dtype"]))
    elements = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
    payload = whole[offset : offset + elements * kind.itemsize].view(kind)
    return Image(whole, payload.as_strided(shape, strides))


def _read_fenced(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The file's bytes, beginning on a page as device memory does, so that vector loads are as aligned as there."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    space = mmap.mmap(-1, FENCE_BYTES + pages + FENCE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    raw = np.frombuffer(space, np.uint8, size, FENCE_BYTES)
    for start in (raw.ctypes.data - FENCE_BYTES, raw.ctypes.data + pages):
        _LIBC.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(FENCE_BYTES), PROT_NONE)
    with path.open("rb") as stream:
        if stream.readinto(raw.data) != size:
            raise WorkerReplyError("the image was cut short while it was read", subject=path.name)
    return raw


def parts_of(returned: Any) -> tuple[Any, ...] | None:
    """What a call returned as several outputs: of a tuple or list, or of a kind of one (`torch.topk`'s), its items.

    They are read once, by no code of the candidate's. None for anything else.
    """
    kind = next((kind for kind in (tuple, list) if isinstance(returned, kind)), None)
    return tuple(kind.__iter__(returned)) if kind else None


def handed_over(folder: Path, image: Path | str, suffix: str = ".out") -> Path:
    """Where a worker writes what became of an image: in its own folder, and never where the images lie."""
    above, name = os.path.split(image)
    return folder / f"{os.path.basename(above)}-{name}{suffix}"


def new_file(path: Path) -> BinaryIO:
    """A file in the place of one that may be there: to truncate that would wait for the disk it is on its way to.

    Nobody else may read it. Raises WorkerReplyError for a link, which only a candidate can have put there.
    """
    if path.is_symlink():
        raise WorkerReplyError("a link was put where this file is to be written", subject=path.name)
    path.unlink(missing_ok=True)
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))


def to_bytes(raw: Any) -> memoryview:
    """An image's bytes, copied from the device if need be (which waits for the device's work)."""
    whole: np.ndarray[Any, Any] = raw if isinstance(raw, np.ndarray) else raw.cpu().numpy()
    return whole.data


def on_stream(context: contextlib.AbstractContextManager[Any]) -> contextlib.AbstractContextManager[Any]:
    """Enter a stream, or a capture, of torch's for torch and, if it is loaded, for TVM-FFI."""
    if "tvm_ffi" not in sys.modules:
        return context
    import tvm_ffi

    entered: contextlib.AbstractContextManager[Any] = tvm_ffi.use_torch_stream(context)
    return entered


def synchronise(device: str) -> None:
    """Wait until the device has done what was asked; an error of a kernel surfaces here."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
