"""A candidate's kernels without its host code: what a worker does to describe a call, and to run a description.

`describe` runs in a worker that has loaded the candidate's library; it captures one call twice, and nothing of what it
says is believed before launches.checked has seen it. `Cubins` runs in a worker that never loads that library: it holds
the machine code of the build's record, and starts from it what a description says.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelproof import cuda_driver, launches
from kernelproof.cuda_driver import EMPTY_NODE, KERNEL_NODE, MEMSET_NODE, NODE_TYPES, DriverError, driver
from kernelproof.errors import WorkerReplyError
from kernelproof.launches import Fill, Indescribable, Kernel, Spans, Step
from kernelproof.loading import Image, blank_image

ALIGNMENT_BYTES = 512  # of every image on the device: a launcher may choose its kernel by that
SPACERS = 8  # placements that are tried before two of them differ in every distance


def spans_of(images: Mapping[str, Image]) -> dict[str, tuple[int, int]]:
    """Where the images of a call lie on the device. Raises RuntimeError unless all are aligned alike."""
    spans = {name: (int(image.raw.data_ptr()), len(image.raw)) for name, image in images.items()}
    for name, (start, _) in spans.items():
        if start % ALIGNMENT_BYTES:
            raise RuntimeError(f"the image of {name} lies at {start:#x}, no multiple of {ALIGNMENT_BYTES} bytes")
    return spans


# --- describing -------------------------------------------------------------------------------------------------------


def describe(
    call: Callable[[Mapping[str, Any]], object],
    outline: Mapping[str, Any],
    unread: Mapping[str, Sequence[Sequence[int]]] | None = None,
) -> list[Step]:
    """What a call launches. `call` takes the arguments by name; `outline`: see images.outline.

    `unread`: see launches.described.

    The tensors hold zeros, and the call runs once before it is captured, so that workspaces and modules are there.
    Raises Indescribable, or what the candidate raises.
    """
    import torch

    first, second = _two_placements(outline)
    scalars = {name: value for name, value in outline.items() if not isinstance(value, dict)}
    captures = []
    with _stream() as stream, _current(torch.cuda.ExternalStream(stream.value)):
        for number, images in enumerate((first, second)):
            arguments = {name: images[name].view if name in images else scalars[name] for name in outline}
            if number == 0:
                call(arguments)
                driver().cuCtxSynchronize()
            with _captured(stream, lambda arguments=arguments: call(arguments)) as graph:  # type: ignore[misc]
                captures.append(_steps(graph))
    steps = launches.described(captures[0], captures[1], spans_of(first), spans_of(second), unread)
    launches.refuse_own_memory(steps, cuda_driver.is_memory)
    return steps


def _two_placements(outline: Mapping[str, Any]) -> tuple[dict[str, Image], dict[str, Image]]:
    """The call's tensors twice, so that no address and no distance between two of them is the same."""
    import torch

    described = {name: value for name, value in outline.items() if isinstance(value, dict)}
    first = {name: blank_image(value) for name, value in described.items()}
    spacers = []
    for spaces in range(SPACERS):
        second = {}
        for place, (name, value) in enumerate(reversed(described.items())):
            second[name] = blank_image(value)
            spacers += [torch.empty((place + 1) << 20, dtype=torch.uint8, device="cuda") for _ in range(spaces)]
        torch.cuda.synchronize()
        if launches.apart(spans_of(first), spans_of(second)):
            return first, second
        spacers += [image.raw for image in second.values()]
    raise Indescribable("its tensors could not be laid out in two ways that differ")


@contextlib.contextmanager
def _stream() -> Iterator[c_void_p]:
    """A stream that stream 0 waits for: during a capture, work queued there fails instead of passing by unseen."""
    stream = c_void_p()
    driver().cuStreamCreate(ctypes.byref(stream), cuda_driver.STREAM_BLOCKING)
    try:
        yield stream
    finally:
        driver().cuStreamDestroy(stream)


@contextlib.contextmanager
def _current(stream: Any) -> Iterator[None]:
    """Make a stream the current one for torch and TVM-FFI."""
    import torch
    import tvm_ffi

    with tvm_ffi.use_torch_stream(torch.cuda.stream(stream)):
        yield


@contextlib.contextmanager
def _captured(stream: c_void_p, call: Callable[[], object]) -> Iterator[c_void_p]:
    """The graph of an empty kernel and then the call: whether the call may begin before it has ended shows there.

    Raises what the call raises; a capture that the call broke is Indescribable.
    """
    graph, empty = c_void_p(), cuda_driver.empty_kernel()
    ahead = cuda_driver.LaunchConfig(grid=(1, 1, 1), block=(1, 1, 1), hStream=stream)
    driver().cuStreamBeginCapture(stream, cuda_driver.CAPTURE_GLOBAL)
    try:
        driver().cuLaunchKernelEx(ctypes.byref(ahead), empty, None, None)
        call()
    except BaseException:
        with contextlib.suppress(DriverError):
            driver().cuStreamEndCapture(stream, ctypes.byref(graph))
        if graph.value:
            driver().cuGraphDestroy(graph)
        raise
    try:
        driver().cuStreamEndCapture(stream, ctypes.byref(graph))
    except DriverError as error:
        raise Indescribable(f"it cannot be captured: {error}") from None
    try:
        yield graph
    finally:
        driver().cuGraphDestroy(graph)


def _steps(graph: c_void_p) -> list[Step]:
    """A call's work in an order that keeps every dependency, whole addresses in the parameters."""
    _, *called = _in_order(cuda_driver.graph_nodes(graph))  # behind the empty kernel, which all of them wait for
    return [_step(node) for node in called if node.type != EMPTY_NODE]


def _in_order(nodes: Sequence[cuda_driver.Node]) -> list[cuda_driver.Node]:
    """Every node behind those that it waits for; otherwise as they were made."""
    placed: dict[int, cuda_driver.Node] = {}
    while len(placed) < len(nodes):
        ready = next(n for n, node in enumerate(nodes) if n not in placed and set(node.after) <= placed.keys())
        placed[ready] = nodes[ready]
    return list(placed.values())


def _step(node: cuda_driver.Node) -> Step:
    if node.type == MEMSET_NODE:
        fill = cuda_driver.memset_node(node)
        pitch = fill.pitch if fill.height > 1 else 0
        what = Fill(fill.value, fill.elementSize, fill.width, fill.height, pitch)
        return Step(fill.dst.to_bytes(8, "little").hex(), fill=what)
    if node.type != KERNEL_NODE:
        raise Indescribable(f"beside kernels it queues {NODE_TYPES.get(node.type, f'a node of type {node.type}')}")
    found = cuda_driver.kernel_node(node)
    if any(found.preferred_cluster) and found.preferred_cluster != found.cluster:
        raise Indescribable(f"{found.name} has a preferred cluster size, which the driver need not keep to")
    kernel = Kernel(
        found.name,
        list(found.grid),
        list(found.block),
        found.shared_bytes,
        list(found.cluster),
        found.cluster_scheduling,
        found.nonportable_cluster,
        found.cooperative,
        node.programmatic,
    )
    return Step(found.parameters.hex(), kernel=kernel)


# --- running ----------------------------------------------------------------------------------------------------------


class Cubins:
    """The machine code of a build, loaded from the files that its record names.

    `files`: path and SHA-256 of each. Raises WorkerReplyError when one is not the recorded file.
    """

    def __init__(self, files: Sequence[Mapping[str, str]]) -> None:
        import torch

        torch.zeros(1, device="cuda")  # makes the device's context current, which modules are loaded into
        self._modules: list[tuple[str, c_void_p]] = []
        for file in files:
            path = Path(file["path"])
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() != file["sha256"]:
                raise WorkerReplyError(
                    "it is not the file that the build made (its SHA-256 differs)", subject=path.name
                )
            module = c_void_p()
            driver().cuModuleLoadData(ctypes.byref(module), data)
            self._modules.append((path.name, module))
        self._functions: dict[str, c_void_p] = {}

    def function(self, name: str) -> c_void_p:
        """A kernel by its name in the machine code. Raises WorkerReplyError unless exactly one cubin has it."""
        if name not in self._functions:
            found = []
            for _, module in self._modules:
                function = c_void_p()
                try:
                    driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode())
                except DriverError as error:
                    if error.code != cuda_driver.NOT_FOUND:
                        raise
                else:
                    found.append(function)
            if len(found) != 1:
                names = ", ".join(file for file, _ in self._modules)
                raise WorkerReplyError(f"{len(found)} of the cubins ({names}) have such a kernel", subject=name)
            self._functions[name] = found[0]
        return self._functions[name]

    def prepared(self, description: Any, images: Mapping[str, Image]) -> Callable[[], None]:
        """A call that queues a description's work on torch's current stream, for these tensors."""
        spans = spans_of(images)
        queued = [self._prepared(step, spans) for step in launches.steps_of(description)]

        def call() -> None:
            import torch

            stream = c_void_p(torch.cuda.current_stream().cuda_stream)
            for queue in queued:
                queue(stream)

        return call

    def _prepared(self, step: Step, spans: Spans) -> Callable[[c_void_p], None]:
        data = launches.placed(step, spans)
        if step.kernel is None:
            assert step.fill is not None
            return _fill(step.fill, int.from_bytes(data, "little"))
        return _Launch(step.kernel, self.function(step.kernel.name), data)


@dataclass
class _Launch:
    """A kernel ready to be started; what the driver reads when it is stays alive in here."""

    kernel: Kernel
    function: c_void_p
    data: bytes
    _kept: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        kernel = self.kernel
        places = cuda_driver.parameter_places(self.function)
        size = max((offset + length for offset, length in places), default=0)
        if size != len(self.data):
            raise WorkerReplyError(
                f"the description has {len(self.data)} bytes of parameters, the kernel {size}", subject=kernel.name
            )
        # Aligned as strictly as a parameter can be: a tensor map is read from a multiple of 64 bytes.
        space = ctypes.create_string_buffer(len(self.data) + 128)
        start = -(-ctypes.addressof(space) // 128) * 128
        ctypes.memmove(start, self.data, len(self.data))
        self._parameters = (c_void_p * len(places))(*(start + offset for offset, _ in places))
        attributes = cuda_driver.launch_attributes(
            cluster=tuple(kernel.cluster),
            cooperative=kernel.cooperative,
            overlapping=kernel.overlapping,
            cluster_scheduling=kernel.cluster_scheduling,
        )
        self._attributes = (cuda_driver.LaunchAttribute * len(attributes))(*attributes)
        self._kept = [space]

    def __call__(self, stream: c_void_p) -> None:
        kernel = self.kernel
        config = cuda_driver.LaunchConfig(
            grid=tuple(kernel.grid),
            block=tuple(kernel.block),
            sharedMemBytes=kernel.shared_bytes,
            hStream=stream,
            attrs=self._attributes,
            numAttrs=len(self._attributes),
        )
        try:
            # Before each launch: another of the same function may have asked for less. Static shared memory counts
            # too, so how much a kernel has without asking is not known here.
            if kernel.shared_bytes:
                attribute = cuda_driver.FUNCTION_DYNAMIC_SHARED_BYTES
                driver().cuFuncSetAttribute(self.function, attribute, kernel.shared_bytes)
            if kernel.nonportable_cluster:
                driver().cuFuncSetAttribute(self.function, cuda_driver.FUNCTION_NONPORTABLE_CLUSTER, 1)
            driver().cuLaunchKernelEx(ctypes.byref(config), self.function, self._parameters, None)
        except DriverError as error:
            raise DriverError(f"{error}; the launch: {kernel}, parameters {self.data.hex()}", error.code) from None


def _fill(fill: Fill, address: int) -> Callable[[c_void_p], None]:
    bits = 8 * fill.element_bytes
    if fill.height == 1:
        one = getattr(driver(), f"cuMemsetD{bits}Async")
        return lambda stream: one(address, fill.value, fill.width, stream)
    rows = getattr(driver(), f"cuMemsetD2D{bits}Async")
    return lambda stream: rows(address, fill.pitch, fill.value, fill.width, fill.height, stream)
