"""The CUDA driver's API through ctypes: as much of it as it takes to describe launches and to start kernels.

An entry point is asked for by its name and by the CUDA version that introduced the signature which stands here
(`cuGetProcAddress`), so that every driver since gives the same function. A call that fails raises DriverError with the
name of the function, of the error, and the driver's words. Numbers and layouts are those of <cuda.h>, and
tests/test_cuda_driver.py holds them against that header.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_ulonglong, c_ushort, c_void_p
from dataclasses import dataclass
from typing import Any

SUCCESS, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED = 0, 1, 500, 801  # CUresult
LEGACY_STREAM = 1  # CU_GET_PROC_ADDRESS_LEGACY_STREAM: stream 0 is the one that waits for the others
CAPTURE_GLOBAL = 0  # CU_STREAM_CAPTURE_MODE_GLOBAL: what would not be captured fails
STREAM_BLOCKING = 0  # CU_STREAM_DEFAULT: work for stream 0 cannot pass by unseen while this one is captured
POINTER_MEMORY_TYPE = 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE
DEVICE_SHARED_BYTES = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
FUNCTION_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
FUNCTION_SHARED_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
CARVEOUT_MOST = 100  # CU_SHAREDMEM_CARVEOUT_MAX_SHARED, per cent
FUNCTION_NONPORTABLE_CLUSTER = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
PARAMETERS_END, PARAMETERS_BUFFER, PARAMETERS_SIZE = 0, 1, 2  # CU_LAUNCH_PARAM_*
EDGE_PROGRAMMATIC = 1  # CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC

# CUlaunchAttributeID
COOPERATIVE, CLUSTER_DIMENSION, CLUSTER_SCHEDULING, PROGRAMMATIC_SERIALIZATION, PREFERRED_CLUSTER = 2, 4, 5, 6, 11

# CUgraphNodeType, in words
KERNEL_NODE, MEMSET_NODE, EMPTY_NODE = 0, 2, 5
NODE_TYPES = {
    KERNEL_NODE: "a kernel",
    1: "a copy of memory",
    MEMSET_NODE: "a fill of memory",
    3: "a call of the host",
    4: "a graph",
    EMPTY_NODE: "nothing",
    6: "a wait for an event",
    7: "the record of an event",
    8: "a signal to a semaphore",
    9: "a wait for a semaphore",
    10: "an allocation",
    11: "the release of an allocation",
    12: "a batch of memory operations",
    13: "a condition",
}


class KernelNodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = [
        ("func", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("sharedMemBytes", c_uint),
        ("kernelParams", POINTER(c_void_p)),
        ("extra", POINTER(c_void_p)),
        ("kern", c_void_p),
        ("ctx", c_void_p),
    ]


class MemsetNodeParams(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS_v1: `width` in elements, `pitch` in bytes."""

    _fields_ = [
        ("dst", c_ulonglong),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("elementSize", c_uint),
        ("width", c_size_t),
        ("height", c_size_t),
    ]


class EdgeData(ctypes.Structure):
    """CUgraphEdgeData."""

    _fields_ = [("from_port", c_ubyte), ("to_port", c_ubyte), ("type", c_ubyte), ("reserved", c_ubyte * 5)]


class LaunchAttributeValue(ctypes.Union):
    """CUlaunchAttributeValue, the members that are used here."""

    _fields_ = [("pad", c_ubyte * 64), ("number", c_int), ("dimensions", c_uint * 3)]


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = [("id", c_uint), ("pad", c_ubyte * 4), ("value", LaunchAttributeValue)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("sharedMemBytes", c_uint),
        ("hStream", c_void_p),
        ("attrs", POINTER(LaunchAttribute)),
        ("numAttrs", c_uint),
    ]


# Name → the CUDA version (1000 · major + 10 · minor) that introduced this signature, and its arguments' types.
SIGNATURES: dict[str, tuple[int, list[Any]]] = {
    "cuInit": (2000, [c_uint]),
    "cuDeviceGet": (2000, [POINTER(c_int), c_int]),
    "cuDeviceGetAttribute": (2000, [POINTER(c_int), c_int, c_int]),
    "cuDevicePrimaryCtxRetain": (7000, [POINTER(c_void_p), c_int]),
    "cuCtxSetCurrent": (4000, [c_void_p]),
    "cuMemAlloc": (3020, [POINTER(c_ulonglong), c_size_t]),
    "cuMemcpyHtoD": (3020, [c_ulonglong, c_char_p, c_size_t]),
    "cuMemFree": (3020, [c_ulonglong]),
    "cuCtxGetLimit": (3010, [POINTER(c_size_t), c_int]),
    "cuCtxSetLimit": (3010, [c_int, c_size_t]),
    "cuCtxSynchronize": (2000, []),
    "cuProfilerStart": (4000, []),
    "cuProfilerStop": (4000, []),
    "cuStreamCreate": (2000, [POINTER(c_void_p), c_uint]),
    "cuStreamDestroy": (4000, [c_void_p]),
    "cuStreamBeginCapture": (10010, [c_void_p, c_int]),
    "cuStreamEndCapture": (10000, [c_void_p, POINTER(c_void_p)]),
    "cuGraphDestroy": (10000, [c_void_p]),
    "cuGraphGetNodes": (10000, [c_void_p, POINTER(c_void_p), POINTER(c_size_t)]),
    "cuGraphGetEdges": (
        12030,
        [c_void_p, POINTER(c_void_p), POINTER(c_void_p), POINTER(EdgeData), POINTER(c_size_t)],
    ),
    "cuGraphNodeGetType": (10000, [c_void_p, POINTER(c_int)]),
    "cuGraphKernelNodeGetParams": (12000, [c_void_p, POINTER(KernelNodeParams)]),
    "cuGraphKernelNodeGetAttribute": (11000, [c_void_p, c_int, POINTER(LaunchAttributeValue)]),
    "cuGraphMemsetNodeGetParams": (10000, [c_void_p, POINTER(MemsetNodeParams)]),
    "cuFuncGetName": (12030, [POINTER(c_char_p), c_void_p]),
    "cuFuncGetParamInfo": (12040, [c_void_p, c_size_t, POINTER(c_size_t), POINTER(c_size_t)]),
    "cuFuncGetAttribute": (2020, [POINTER(c_int), c_int, c_void_p]),
    "cuFuncSetAttribute": (9000, [c_void_p, c_int, c_int]),
    "cuKernelGetFunction": (12000, [POINTER(c_void_p), c_void_p]),
    "cuPointerGetAttribute": (4000, [c_void_p, c_int, c_ulonglong]),
    "cuModuleLoadData": (2000, [POINTER(c_void_p), c_char_p]),
    "cuModuleGetFunction": (2000, [POINTER(c_void_p), c_void_p, c_char_p]),
    "cuLaunchKernelEx": (11060, [POINTER(LaunchConfig), c_void_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "cuMemsetD8Async": (3020, [c_ulonglong, c_ubyte, c_size_t, c_void_p]),
    "cuMemsetD16Async": (3020, [c_ulonglong, c_ushort, c_size_t, c_void_p]),
    "cuMemsetD32Async": (3020, [c_ulonglong, c_uint, c_size_t, c_void_p]),
    "cuMemsetD2D8Async": (3020, [c_ulonglong, c_size_t, c_ubyte, c_size_t, c_size_t, c_void_p]),
    "cuMemsetD2D16Async": (3020, [c_ulonglong, c_size_t, c_ushort, c_size_t, c_size_t, c_void_p]),
    "cuMemsetD2D32Async": (3020, [c_ulonglong, c_size_t, c_uint, c_size_t, c_size_t, c_void_p]),
}


class DriverError(RuntimeError):
    """The driver refused a call. `code` is its CUresult; None where there is no driver or no such function."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class Driver:
    """The driver's functions, each by its name: what fails raises DriverError."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
            self._address_of = self._library.cuGetProcAddress_v2
        except (OSError, AttributeError) as error:
            raise DriverError(f"this needs NVIDIA's driver 525 or newer: {error}") from None
        self._address_of.argtypes = [c_char_p, POINTER(c_void_p), c_int, c_ulonglong, POINTER(c_int)]

    def __getattr__(self, name: str) -> Callable[..., None]:
        """The entry point of this name in SIGNATURES, checked."""
        function = self._function(name)

        def checked(*arguments: Any) -> None:
            code = function(*arguments)
            if code != SUCCESS:
                raise DriverError(f"{name}: {self._words(code)}", code)

        setattr(self, name, checked)
        return checked

    def _function(self, name: str) -> Callable[..., int]:
        if name not in SIGNATURES:
            raise AttributeError(name)
        version, types = SIGNATURES[name]
        address, found = c_void_p(), c_int()
        code = self._address_of(name.encode(), ctypes.byref(address), version, LEGACY_STREAM, ctypes.byref(found))
        if code != SUCCESS or not address.value:
            needed = f"{version // 1000}.{version % 1000 // 10}"
            raise DriverError(f"this driver has no {name}; it came with CUDA {needed}")
        function: Callable[..., int] = ctypes.CFUNCTYPE(c_int, *types)(address.value)
        return function

    def _words(self, code: int) -> str:
        """`CUDA_ERROR_INVALID_VALUE (1): invalid argument`."""
        name, text = c_char_p(), c_char_p()
        self._library.cuGetErrorName(c_int(code), ctypes.byref(name))
        self._library.cuGetErrorString(c_int(code), ctypes.byref(text))
        return f"{(name.value or b'an unknown error').decode()} ({code}): {(text.value or b'no words').decode()}"


@functools.cache
def driver() -> Driver:
    """The driver of this process. Raises DriverError when there is none."""
    return Driver()


def compiled(ptx: bytes, name: str) -> c_void_p:
    """A kernel of a few lines of PTX, which the driver compiles in a millisecond; it stays loaded."""
    module, function = c_void_p(), c_void_p()
    driver().cuModuleLoadData(ctypes.byref(module), ptx)
    driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode())
    return function


def launch(
    function: c_void_p, blocks: int, threads: int, arguments: Sequence[Any], stream: int, shared_bytes: int = 0
) -> None:
    """Start so many blocks of a kernel of ours in one dimension. `arguments`: of its parameters' types in ctypes."""
    pointers = (c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
    config = LaunchConfig((blocks, 1, 1), (threads, 1, 1), shared_bytes, stream)
    driver().cuLaunchKernelEx(ctypes.byref(config), function, pointers, None)


EMPTY_KERNEL = "kernelproof_empty"
EMPTY_PTX = f"""
.version 6.4
.target sm_75
.address_size 64
.visible .entry {EMPTY_KERNEL}() {{ ret; }}
"""


@functools.cache
def empty_kernel() -> c_void_p:
    """A kernel that does nothing."""
    return compiled(EMPTY_PTX.encode(), EMPTY_KERNEL)


# --- graphs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """A node of a graph: handle, CUgraphNodeType, and the indices of the nodes that it waits for.

    programmatic: whether it may start before the last of them has ended, as that one allows.
    """

    handle: int
    type: int
    after: tuple[int, ...]
    programmatic: bool


def graph_nodes(graph: c_void_p) -> list[Node]:
    """The nodes of a graph in the order of their creation."""
    count = c_size_t()
    driver().cuGraphGetNodes(graph, None, ctypes.byref(count))
    handles = (c_void_p * count.value)()
    if count.value:
        driver().cuGraphGetNodes(graph, handles, ctypes.byref(count))
    index = {handle: place for place, handle in enumerate(handles)}
    edges = c_size_t()
    driver().cuGraphGetEdges(graph, None, None, None, ctypes.byref(edges))
    sources, targets = (c_void_p * edges.value)(), (c_void_p * edges.value)()
    data = (EdgeData * edges.value)()
    if edges.value:
        driver().cuGraphGetEdges(graph, sources, targets, data, ctypes.byref(edges))
    nodes = []
    for handle in handles:
        mine = [place for place in range(edges.value) if targets[place] == handle]
        kind = c_int()
        driver().cuGraphNodeGetType(handle, ctypes.byref(kind))
        after = tuple(index[sources[place]] for place in mine)
        programmatic = any(data[place].type == EDGE_PROGRAMMATIC for place in mine)
        nodes.append(Node(int(handle or 0), kind.value, after, programmatic))
    return nodes


@dataclass(frozen=True)
class KernelNode:
    """What a kernel node would launch; `parameters` as the kernel finds them, gaps between them zero."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    parameters: bytes
    cooperative: bool
    cluster: tuple[int, int, int]
    preferred_cluster: tuple[int, int, int]
    cluster_scheduling: int
    nonportable_cluster: bool


def kernel_node(node: Node) -> KernelNode:
    """Read a kernel node."""
    given = KernelNodeParams()
    driver().cuGraphKernelNodeGetParams(node.handle, ctypes.byref(given))
    function = _function_of(given)
    name, nonportable = c_char_p(), c_int()
    driver().cuFuncGetName(ctypes.byref(name), function)
    driver().cuFuncGetAttribute(ctypes.byref(nonportable), FUNCTION_NONPORTABLE_CLUSTER, function)
    return KernelNode(
        (name.value or b"").decode(),
        _three(given.grid),
        _three(given.block),
        given.sharedMemBytes,
        _parameters(given, parameter_places(function)),
        bool(_attribute(node, COOPERATIVE).number),
        _three(_attribute(node, CLUSTER_DIMENSION, optional=True).dimensions),
        _three(_attribute(node, PREFERRED_CLUSTER, optional=True).dimensions),
        int(_attribute(node, CLUSTER_SCHEDULING, optional=True).number),
        bool(nonportable.value),
    )


def memset_node(node: Node) -> MemsetNodeParams:
    """Read a memset node."""
    given = MemsetNodeParams()
    driver().cuGraphMemsetNodeGetParams(node.handle, ctypes.byref(given))
    return given


def parameter_places(function: c_void_p) -> list[tuple[int, int]]:
    """Offset and size in bytes of each of a kernel's parameters, as its machine code says."""
    places: list[tuple[int, int]] = []
    offset, size = c_size_t(), c_size_t()
    while True:
        try:
            driver().cuFuncGetParamInfo(function, len(places), ctypes.byref(offset), ctypes.byref(size))
        except DriverError as error:
            if error.code == INVALID_VALUE:  # one past the last
                return places
            raise
        places.append((offset.value, size.value))


def is_memory(address: int) -> bool:
    """Whether an address lies in memory that the driver knows: a device's, or pinned or managed memory of the host."""
    kind = c_uint()
    try:
        driver().cuPointerGetAttribute(ctypes.byref(kind), POINTER_MEMORY_TYPE, address)
    except DriverError as error:
        if error.code == INVALID_VALUE:
            return False
        raise
    return True


def _function_of(given: KernelNodeParams) -> c_void_p:
    """The function of a node. The runtime's kernels belong to no context yet, and may stand in the function's place."""
    function = c_void_p()
    if given.func:
        try:
            name = c_char_p()
            driver().cuFuncGetName(ctypes.byref(name), given.func)
            return c_void_p(given.func)
        except DriverError:
            driver().cuKernelGetFunction(ctypes.byref(function), given.func)
            return function
    driver().cuKernelGetFunction(ctypes.byref(function), given.kern)
    return function


def _parameters(given: KernelNodeParams, places: list[tuple[int, int]]) -> bytes:
    whole = bytearray(max((offset + size for offset, size in places), default=0))
    if places and given.kernelParams:
        for index, (offset, size) in enumerate(places):
            whole[offset : offset + size] = ctypes.string_at(given.kernelParams[index] or 0, size)
    elif places and given.extra:
        extra: dict[int, int] = {}
        place = 0
        while (key := given.extra[place] or PARAMETERS_END) != PARAMETERS_END:
            extra[key] = given.extra[place + 1] or 0
            place += 2
        size = c_size_t.from_address(extra[PARAMETERS_SIZE]).value
        whole[:size] = ctypes.string_at(extra[PARAMETERS_BUFFER], size)[: len(whole)]
    elif places:
        raise DriverError("the graph's kernel node came without its parameters")
    return bytes(whole)


def _attribute(node: Node, attribute: int, *, optional: bool = False) -> LaunchAttributeValue:
    value = LaunchAttributeValue()
    try:
        driver().cuGraphKernelNodeGetAttribute(node.handle, attribute, ctypes.byref(value))
    except DriverError as error:
        if not optional or error.code not in (INVALID_VALUE, NOT_SUPPORTED):
            raise
        return LaunchAttributeValue()  # a driver or GPU that does not know it: then no node has it either
    return value


def _three(values: Any) -> tuple[int, int, int]:
    x, y, z = values
    return int(x), int(y), int(z)


# --- launches ---------------------------------------------------------------------------------------------------------


def launch_attributes(
    *, cluster: tuple[int, ...] = (), cooperative: bool = False, overlapping: bool = False, cluster_scheduling: int = 0
) -> list[LaunchAttribute]:
    """The attributes of a launch: only those that are asked for."""
    found = []

    def add(attribute: int) -> LaunchAttributeValue:
        found.append(LaunchAttribute(id=attribute))
        value: LaunchAttributeValue = found[-1].value
        return value

    if any(cluster):
        add(CLUSTER_DIMENSION).dimensions[:] = list(cluster)
    if any(cluster) and cluster_scheduling:
        add(CLUSTER_SCHEDULING).number = cluster_scheduling
    if cooperative:
        add(COOPERATIVE).number = 1
    if overlapping:
        add(PROGRAMMATIC_SERIALIZATION).number = 1
    return found
