"""The driver layer against the toolkit's header: layouts, numbers, signatures; and against a driver made of it."""

from __future__ import annotations

import ctypes
import re
import sys
import textwrap
from pathlib import Path

import pytest

from kernelproof import cuda_driver, toolchain
from kernelproof.processes import python_path, run

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def include() -> Path:
    """The folder with <cuda.h>."""
    for home in toolchain.wheel_homes():
        if (home / "include" / "cuda.h").is_file():
            return home / "include"
    pytest.skip("there is no <cuda.h>: the toolkit's wheels are not installed")


def compiled(source: Path, target: Path, include: Path, *flags: str) -> Path:
    """Compile C++ with the header, every warning an error."""
    compiler = toolchain.find_host_compiler(None).path
    words = [compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-isystem", include, *flags, source, "-o", target]
    run([str(word) for word in words])
    return target


# The header's structures, and the names that the members have there.
STRUCTURES = {
    "CUDA_KERNEL_NODE_PARAMS_v2": (cuda_driver.KernelNodeParams, {"grid": "gridDimX", "block": "blockDimX"}),
    "CUDA_MEMSET_NODE_PARAMS_v1": (cuda_driver.MemsetNodeParams, {}),
    "CUgraphEdgeData": (cuda_driver.EdgeData, {}),
    "CUlaunchAttribute": (cuda_driver.LaunchAttribute, {}),
    "CUlaunchConfig": (cuda_driver.LaunchConfig, {"grid": "gridDimX", "block": "blockDimX"}),
    "CUlaunchAttributeValue": (
        cuda_driver.LaunchAttributeValue,
        {"number": "cooperative", "dimensions": "clusterDim"},
    ),
}
NUMBERS = {
    "CUDA_SUCCESS": cuda_driver.SUCCESS,
    "CUDA_ERROR_INVALID_VALUE": cuda_driver.INVALID_VALUE,
    "CUDA_ERROR_NOT_FOUND": cuda_driver.NOT_FOUND,
    "CUDA_ERROR_NOT_SUPPORTED": cuda_driver.NOT_SUPPORTED,
    "CU_GET_PROC_ADDRESS_LEGACY_STREAM": cuda_driver.LEGACY_STREAM,
    "CU_STREAM_CAPTURE_MODE_GLOBAL": cuda_driver.CAPTURE_GLOBAL,
    "CU_STREAM_DEFAULT": cuda_driver.STREAM_BLOCKING,
    "CU_POINTER_ATTRIBUTE_MEMORY_TYPE": cuda_driver.POINTER_MEMORY_TYPE,
    "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": cuda_driver.FUNCTION_DYNAMIC_SHARED_BYTES,
    "CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT": cuda_driver.FUNCTION_SHARED_CARVEOUT,
    "CU_SHAREDMEM_CARVEOUT_MAX_SHARED": cuda_driver.CARVEOUT_MOST,
    "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": cuda_driver.DEVICE_SHARED_BYTES,
    "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED": cuda_driver.FUNCTION_NONPORTABLE_CLUSTER,
    "CU_LAUNCH_PARAM_END_AS_INT": cuda_driver.PARAMETERS_END,
    "CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT": cuda_driver.PARAMETERS_BUFFER,
    "CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT": cuda_driver.PARAMETERS_SIZE,
    "CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC": cuda_driver.EDGE_PROGRAMMATIC,
    "CU_LAUNCH_ATTRIBUTE_COOPERATIVE": cuda_driver.COOPERATIVE,
    "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION": cuda_driver.CLUSTER_DIMENSION,
    "CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE": cuda_driver.CLUSTER_SCHEDULING,
    "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION": cuda_driver.PROGRAMMATIC_SERIALIZATION,
    "CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION": cuda_driver.PREFERRED_CLUSTER,
    "CU_GRAPH_NODE_TYPE_KERNEL": cuda_driver.KERNEL_NODE,
    "CU_GRAPH_NODE_TYPE_MEMSET": cuda_driver.MEMSET_NODE,
    "CU_GRAPH_NODE_TYPE_EMPTY": cuda_driver.EMPTY_NODE,
    "CU_GRAPH_NODE_TYPE_CONDITIONAL": max(cuda_driver.NODE_TYPES),
}


def test_layouts_and_numbers_are_the_headers(include: Path, tmp_path: Path) -> None:
    asked = [f'number("{name}", {name});' for name in NUMBERS]
    for name, (ours, renamed) in STRUCTURES.items():
        asked.append(f'number("{name}", sizeof({name}));')
        fields = [renamed.get(field[0], field[0]) for field in ours._fields_]
        if name != "CUlaunchAttributeValue":
            asked += [f'number("{name}.{field}", offsetof({name}, {field}));' for field in fields]
        else:
            asked += [f'number("{name}.{field}", sizeof({name}::{field}));' for field in fields]
    source = tmp_path / "layout.cc"
    source.write_text(
        "#include <cuda.h>\n#include <cstddef>\n#include <cstdio>\n"
        'template <typename T> void number(const char *name, T value) { printf("%s %lld\\n", name, '
        "static_cast<long long>(value)); }\n"
        f"int main() {{\n{chr(10).join(asked)}\n}}\n"
    )
    said = run([str(compiled(source, tmp_path / "layout", include))]).stdout
    theirs = {name: int(value) for name, value in (line.split() for line in said.splitlines())}
    assert {name: theirs[name] for name in NUMBERS} == NUMBERS
    for name, (ours, renamed) in STRUCTURES.items():
        assert ctypes.sizeof(ours) == theirs[name], name
        for field in ours._fields_:
            descriptor = getattr(ours, field[0])
            expected = descriptor.size if ours is cuda_driver.LaunchAttributeValue else descriptor.offset
            assert expected == theirs[f"{name}.{renamed.get(field[0], field[0])}"], f"{name}.{field[0]}"


def test_every_entry_point_is_of_a_version_that_the_header_knows(include: Path) -> None:
    text = "".join((include / f"{name}Typedefs.h").read_text() for name in ("cuda", "cudaProfiler"))
    for name, (version, types) in cuda_driver.SIGNATURES.items():
        found = re.search(rf"CUDAAPI \*PFN_{name}_v{version}\)\((.*?)\);", text)
        assert found, f"{name} has no signature of version {version}"
        taken = [] if found[1] == "void" else found[1].split(",")
        assert len(taken) == len(types), f"{name} takes {found[1]}"
        for kind, words in zip(types, taken, strict=True):
            pointer = "*" in words or re.search(r"\bCU(stream|graph|graphNode|function|kernel|module|context)\b", words)
            bytes_wide = 8 if pointer or re.search(r"size_t|deviceptr", words) else 4
            bytes_wide = {"unsigned char": 1, "unsigned short": 2}.get(words.rsplit(" ", 1)[0].strip(), bytes_wide)
            assert ctypes.sizeof(kind) == bytes_wide, f"{name}: {words}"


def test_a_machine_without_a_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(cuda_driver.DriverError, match=r"driver 525 or newer.*libcuda\.so\.1"):
        cuda_driver.Driver()


@pytest.fixture(scope="module")
def fake(include: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fake")
    flags = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    return compiled(HERE / "fixtures" / "fake_driver.cc", folder / "libcuda.so.1", include, *flags)


def said_with(fake: Path, program: str) -> str:
    """What a program prints for which the fake is the driver; a process of its own, since a driver is for good."""
    start = f"import ctypes\nfake = ctypes.CDLL({str(fake)!r})\nfake.what_was_done.restype = ctypes.c_char_p\n"
    code = start + textwrap.dedent(program)
    return run([sys.executable, "-c", code], env={"PYTHONPATH": python_path()}).stdout


def test_a_graph_is_read_as_the_header_lays_it_out(fake: Path) -> None:
    said = said_with(
        fake,
        """
        from kernelproof import cuda_driver, sealed
        nodes = cuda_driver.graph_nodes(ctypes.c_void_p(5))
        steps = [sealed._step(node) for node in sealed._in_order(nodes)]
        for step in steps:
            print(step)
        print(sealed._steps(ctypes.c_void_p(5)) == steps[1:])
        print([(node.handle, node.type, node.after, node.programmatic) for node in nodes])
        print(cuda_driver.is_memory(0x7F0000000000), cuda_driver.is_memory(42))
        """,
    ).splitlines()
    first, fill, second, rest_is_called, nodes, memory = said
    assert "name='_Z5firstPfi', grid=[7, 8, 9], block=[32, 2, 1], shared_bytes=65536, cluster=[4, 2, 1]" in first
    assert "cluster_scheduling=1, nonportable_cluster=True, cooperative=False, overlapping=False" in first
    expected = (
        (0x7F0012345678).to_bytes(8, "little")
        + (42).to_bytes(4, "little")
        + bytes(52)
        + b"".join(word.to_bytes(8, "little") for word in (0x7F00AABBCCDD, 1, 2, 3, *[0] * 12))
    )
    assert f"parameters='{expected.hex()}'" in first
    assert "fill=Fill(value=85, element_bytes=1, width=100, height=3, pitch=4096)" in fill
    assert f"parameters='{(0x7F0000001000).to_bytes(8, 'little').hex()}'" in fill
    assert "name='_Z6secondPf'" in second
    assert "cluster=[0, 0, 0]" in second
    assert "cooperative=True, overlapping=True" in second
    assert f"parameters='{(0x7F0000000040).to_bytes(8, 'little').hex()}'" in second
    assert rest_is_called == "True"  # behind what all the others wait for: in a capture our own empty kernel
    assert nodes == "[(3, 0, (2,), True), (1, 0, (), False), (2, 2, (1,), False)]"
    assert memory == "True False"


LAUNCH = """
    import hashlib, pathlib, sys, types
    from kernelproof import launches, sealed
    from kernelproof.launches import Address, Fill, Kernel, Step

    sys.modules["torch"] = types.SimpleNamespace(zeros=lambda *a, **b: None)  # what makes a context current: none here
    files = []
    for name in ("a", "b"):
        path = pathlib.Path({folder!r}, name)
        path.write_bytes(name.encode())
        files.append({{"path": str(path), "sha256": hashlib.sha256(name.encode()).hexdigest()}})
    cubins = sealed.Cubins(files)
    stream = ctypes.c_void_p(0xabc)
    spans = {{"x": (0x7f0000000000, 8192), "y": (0x7f0100000000, 8192)}}
    def start(step):
        cubins._prepared(step, spans)(stream)
"""


def test_launches_arrive_as_they_were_described(fake: Path, tmp_path: Path) -> None:
    said = said_with(
        fake,
        textwrap.dedent(LAUNCH.format(folder=str(tmp_path)))
        + textwrap.dedent("""
        whole = bytearray(192)
        whole[8:12] = (42).to_bytes(4, "little")
        whole[72:80] = (1).to_bytes(8, "little")
        addresses = [Address(0, "x", 4096), Address(64, "y", 4100)]
        first = Kernel("_Z5firstPfi", [7, 8, 9], [32, 2, 1], 65536, [4, 2, 1], 1, True, False, False)
        start(Step(whole.hex(), addresses, kernel=first))
        start(Step("00" * 8, [Address(0, "y", 16)], fill=Fill(85, 1, 100, 3, 4096)))
        start(Step("00" * 8, [Address(0, "y", 16)], fill=Fill(85, 1, 100, 1, 0)))
        second = Kernel("_Z6secondPf", [1, 1, 1], [128, 1, 1], cooperative=True, overlapping=True)
        start(Step("00" * 8, [Address(0, "y", 0)], kernel=second))
        print(fake.what_was_done().decode())
        """),
    )
    pointer, at_map = (value.to_bytes(8, "little").hex() for value in (0x7F0000001000, 0x7F0100001004))
    assert said.splitlines()[:6] == [
        "attribute 0x10 8 65536",
        "attribute 0x10 14 1",
        "launch _Z5firstPfi grid 7 8 9 block 32 2 1 shared 65536 stream 0xabc cluster 4 2 1 policy 1 "
        f"{pointer} 2a000000 {at_map}{'01'.ljust(16, '0')}{'00' * 112}",
        "fill 7f0100000010 pitch 4096 55 100 x 3 stream 0xabc",
        "fill 7f0100000010 55 100 stream 0xabc",
        "launch _Z6secondPf grid 1 1 1 block 128 1 1 shared 0 stream 0xabc cooperative 1 overlapping 1 "
        + (0x7F0100000000).to_bytes(8, "little").hex(),
    ]


def test_each_launch_has_the_shared_memory_that_it_asks_for(fake: Path, tmp_path: Path) -> None:
    """Static memory leaves the function 32 KiB until it asks; launches of it with more and less take turns."""
    said = said_with(
        fake,
        textwrap.dedent(LAUNCH.format(folder=str(tmp_path)))
        + textwrap.dedent("""
        def prepared(shared_bytes):
            kernel = Kernel("_Z6secondPf", [1, 1, 1], [128, 1, 1], shared_bytes)
            return cubins._prepared(Step("00" * 8, [Address(0, "y", 0)], kernel=kernel), spans)
        queued = [prepared(kib << 10) for kib in (100, 40, 64, 0)]
        for queue in queued * 2:
            queue(stream)
        print(fake.what_was_done().decode())
        """),
    )
    launched = [int(line.split(" shared ")[1].split()[0]) >> 10 for line in said.splitlines() if "launch" in line]
    assert launched == [100, 40, 64, 0] * 2


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("Step('00' * 16, kernel=Kernel('_Z6secondPf', [1, 1, 1], [1, 1, 1]))", "16 bytes of parameters, the kernel 8"),
        (
            "Step('00' * 8, kernel=Kernel('_Z5other', [1, 1, 1], [1, 1, 1]))",
            "0 of the cubins (a, b) have such a kernel",
        ),
        (
            "Step('00' * 8, kernel=Kernel('_Z6secondPf', [1, 1, 1], [2048, 1, 1]))",
            "cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE (1): in words; the launch: Kernel(name='_Z6secondPf'",
        ),
        ("Step('00' * 8, [Address(0, 'x', 0)], fill=Fill(1, 2, 1, 1, 0))", "this driver has no cuMemsetD16Async"),
    ],
)
def test_what_does_not_fit_is_told(fake: Path, tmp_path: Path, step: str, message: str) -> None:
    program = f"""
        try:
            start({step})
        except Exception as error:
            print(type(error).__name__, error)
        print(fake.what_was_done().decode())
    """
    said = said_with(fake, textwrap.dedent(LAUNCH.format(folder=str(tmp_path))) + textwrap.dedent(program))
    assert message in said
    assert "launch _Z" not in said


def test_a_cubin_that_was_changed_is_not_loaded(fake: Path, tmp_path: Path) -> None:
    program = textwrap.dedent(LAUNCH.format(folder=str(tmp_path))) + textwrap.dedent("""
        pathlib.Path(files[0]["path"]).write_bytes(b"changed")
        try:
            sealed.Cubins(files)
        except Exception as error:
            print(type(error).__name__, error)
        """)
    assert "WorkerReplyError a: it is not the file that the build made (its SHA-256 differs)" in said_with(
        fake, program
    )
