"""The compilers and binary tools that a build uses: where each is, which version, which bytes.

The CUDA toolchain is looked for in this order, and its origin is recorded:

1. `--cuda-home DIR` or `KERNELPROOF_CUDA_HOME` (origin `cuda-home`; nothing else is tried when it is given);
2. the PyPI wheels next to this interpreter, `nvidia/cu<major>` (origin `wheels`);
3. `CUDA_HOME`, `/usr/local/cuda`, `nvcc` on the PATH (origin `system`).

Nothing here imports torch or tvm_ffi; their folders are found through the import system's finder alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelproof.errors import ToolError
from kernelproof.processes import run
from kernelproof.records import Compiler, atomic_write, sha256_file

CUDA_HOME_VARIABLE = "KERNELPROOF_CUDA_HOME"
REMEDY = "install the toolchain wheels (./repro.sh does; or pip install -r envs/cuda.txt), or give --cuda-home DIR"

# Tool: (path below the toolkit's home, PyPI wheel that carries it). Every one of them shapes the machine code.
COMPILE_TOOLS = {
    "nvcc": ("bin/nvcc", "nvidia-cuda-nvcc"),
    "cudafe++": ("bin/cudafe++", "nvidia-cuda-nvcc"),
    "cicc": ("nvvm/bin/cicc", "nvidia-nvvm"),
    "ptxas": ("bin/ptxas", "nvidia-cuda-nvcc"),
    "fatbinary": ("bin/fatbinary", "nvidia-cuda-nvcc"),
}
HOST_COMPILERS = ("g++", "c++")
# They only read machine code, so they may come from elsewhere than the compiler.
BINARY_TOOLS = {
    "cuobjdump": ("bin/cuobjdump", "nvidia-cuda-cuobjdump"),
    "nvdisasm": ("bin/nvdisasm", "nvidia-cuda-nvdisasm"),
}
RUNTIME = "libcudart_static.a"
NEEDED_FILES = {
    "include/cuda_runtime.h": "nvidia-cuda-runtime",
    "include/crt/host_config.h": "nvidia-cuda-crt",
}
_VERSIONS = (re.compile(r"\bV(\d+\.\d+\.\d+)"), re.compile(r"\b(\d+\.\d+(?:\.\d+)?)\b"))


@dataclass(frozen=True)
class Tool:
    """One program: its path, version, SHA-256 and where it comes from (wheels, cuda-home, system, triton)."""

    name: str
    path: Path
    version: str
    sha256: str
    origin: str


@dataclass(frozen=True)
class CudaToolchain:
    """A CUDA toolkit with its tools. `home` holds bin/, include/ and lib/ (wheels) or lib64/ (installers)."""

    home: Path
    origin: str
    version: str
    tools: dict[str, Tool]

    @property
    def include(self) -> Path:
        """The folder with cuda_runtime.h."""
        return self.home / "include"

    @property
    def library_folder(self) -> Path:
        """The folder with libcudart_static.a."""
        return _library_folder(self.home)

    @property
    def fingerprint(self) -> str:
        """One SHA-256 over every tool that shapes the machine code, and the runtime library that is linked in."""
        return _combined({name: self.tools[name].sha256 for name in (*COMPILE_TOOLS, RUNTIME)})

    def compiler(self) -> Compiler:
        """The toolchain as a build record names it; the hash covers all compiling tools."""
        return Compiler("nvcc", self.version, self.fingerprint, self.origin)


@dataclass(frozen=True)
class HostCompiler:
    """The C++ compiler: its driver, and a SHA-256 over the driver and the compilers proper (of C too) behind it."""

    tool: Tool
    fingerprint: str

    @property
    def path(self) -> Path:
        """The driver's path."""
        return self.tool.path

    def compiler(self) -> Compiler:
        """The compiler as a build record names it."""
        return Compiler(self.tool.name, self.tool.version, self.fingerprint, self.tool.origin)


class ToolCache:
    """Versions and hashes of tools by (path, size, mtime): hashing a toolkit's 200 MB takes half a second."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.entries: dict[str, dict[str, str | int]] = {}
        if path is not None and path.is_file():
            # A cache that cannot be read is made again.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                kept = json.loads(path.read_text(encoding="utf-8"))
                self.entries = {key: entry for key, entry in kept.items() if isinstance(entry, dict)}

    def tool(self, name: str, path: Path, origin: str, version: str | None = None) -> Tool:
        """Identify a program, asking for its version unless that is given. Raises ToolError when it cannot be read."""
        try:
            state = path.stat()
            key = str(path)
            entry = self.entries.get(key, {})
            if (entry.get("bytes"), entry.get("mtime_ns")) != (state.st_size, state.st_mtime_ns):
                entry = {
                    "bytes": state.st_size,
                    "mtime_ns": state.st_mtime_ns,
                    "sha256": sha256_file(path),
                    "version": tool_version(path) if version is None and os.access(path, os.X_OK) else version or "",
                }
                self.entries[key] = entry
                self._save()
        except OSError as error:
            raise ToolError(f"{name} cannot be read: {error.strerror}", subject=str(path), hint=REMEDY) from None
        return Tool(name, path, str(entry["version"]), str(entry["sha256"]), origin)

    def _save(self) -> None:
        if self.path is None:
            return
        with contextlib.suppress(OSError):  # a cache that cannot be kept costs time and nothing else
            atomic_write(self.path, json.dumps(self.entries, indent=1, sort_keys=True) + "\n")


def tool_version(path: Path) -> str:
    """What a program says of its version, the number alone (`13.0.88`); `unknown` when it says none."""
    # cicc has no --version that names the release, and cudafe++ prints its on stderr.
    for option in ("--version", "-V", "-v"):
        try:
            done = run([path, option], check=False, timeout_s=20)
        except ToolError:
            continue
        for pattern in _VERSIONS if done.returncode == 0 else ():
            if found := pattern.search(done.stdout) or pattern.search(done.stderr):
                return found[1]
    return "unknown"


def find_cuda(cuda_home: Path | None = None, cache: Path | None = None) -> CudaToolchain:
    """Find the CUDA toolchain; `cache` is a file that remembers versions and hashes.

    Raises ToolError that names the missing tool, where it was looked for, and the remedy.
    """
    home, origin = _find_home(cuda_home)
    known = ToolCache(cache)
    tools = _compile_tools(home, origin, known) | _binary_tools(home, origin, known)
    return CudaToolchain(home, origin, tools["nvcc"].version, tools)


def find_compile_tools(cuda_home: Path | None = None) -> dict[str, Tool]:
    """What compiles and links, without what reads machine code. Raises ToolError like `find_cuda`."""
    return _compile_tools(*_find_home(cuda_home), ToolCache(None))


def find_binary_tools(cuda_home: Path | None = None) -> dict[str, Tool]:
    """What reads machine code, wherever it lies. Raises ToolError that names the missing tool."""
    home: Path | None
    try:
        home, origin = _find_home(cuda_home)
    except ToolError:
        home, origin = None, ""  # without a compiler they can still be elsewhere
    return _binary_tools(home, origin, ToolCache(None))


def _compile_tools(home: Path, origin: str, known: ToolCache) -> dict[str, Tool]:
    for path, wheel in NEEDED_FILES.items():
        if not (home / path).is_file():
            raise _missing(Path(path).name, wheel, [home / path])
    if not (_library_folder(home) / RUNTIME).is_file():
        raise _missing(RUNTIME, "nvidia-cuda-runtime", [home / "lib64" / RUNTIME, home / "lib" / RUNTIME])
    tools = {}
    for name, (below, wheel) in COMPILE_TOOLS.items():
        if not (home / below).is_file():
            raise _missing(name, wheel, [home / below])
        tools[name] = known.tool(name, home / below, origin)
    tools[RUNTIME] = known.tool(RUNTIME, _library_folder(home) / RUNTIME, origin)
    return tools


def _binary_tools(home: Path | None, origin: str, known: ToolCache) -> dict[str, Tool]:
    return {
        name: known.tool(name, *_find_binary_tool(name, below, wheel, home, origin))
        for name, (below, wheel) in BINARY_TOOLS.items()
    }


def host_compiler_path() -> Path | None:
    """Where the C++ compiler is: $CXX, else g++, else c++; None where there is none."""
    names = os.environ.get("CXX", "").split()[:1] or HOST_COMPILERS
    return next((Path(path).absolute() for name in names if (path := shutil.which(name))), None)


def find_host_compiler(cache: Path | None = None) -> HostCompiler:
    """The C++ compiler: $CXX, else g++, else c++. Raises ToolError with the remedy when there is none."""
    wanted = os.environ.get("CXX", "").split()
    names = wanted[:1] or list(HOST_COMPILERS)
    found = host_compiler_path()
    if found is None:
        raise ToolError(
            f"no C++ compiler: looked for {', '.join(names)} on the PATH",
            subject="CXX" if wanted else "g++",
            hint="install g++ (Debian/Ubuntu: apt-get install g++), or set CXX to the compiler's path",
        )
    known = ToolCache(cache)
    driver = known.tool(found.name, found, "system")
    parts = {"driver": driver.sha256}
    for name in ("cc1plus", "cc1"):  # of C++, and of C
        proper = run([str(found), f"-print-prog-name={name}"], check=False, timeout_s=20).stdout.strip()
        if os.path.isabs(proper) and Path(proper).is_file():
            # Asked for its version, it compiles its standard input as well and leaves `<stdin>.s` behind.
            parts[name] = known.tool(name, Path(proper), "system", driver.version).sha256
    return HostCompiler(driver, _combined(parts))


def resolved_target(compiler: HostCompiler, flags: list[str]) -> str:
    """What `-march=native` and its like mean on this machine: a SHA-256 over the resolved target options, else ''."""
    native = [flag for flag in flags if flag.startswith(("-march=", "-mtune=", "-mcpu=")) and flag.endswith("native")]
    if not native:
        return ""
    done = run([compiler.path, *native, "-Q", "--help=target"], check=False, timeout_s=20)
    return hashlib.sha256(done.stdout.encode()).hexdigest()


def find_ninja() -> Path:
    """The ninja program: the wheel's, next to this interpreter, else the one on the PATH. Raises ToolError."""
    beside = [Path(sysconfig.get_path("scripts")) / "ninja", Path(sys.executable).parent / "ninja"]
    for candidate in beside:
        if os.access(candidate, os.X_OK):
            return candidate
    if found := shutil.which("ninja"):
        return Path(found)
    raise ToolError(
        f"it is missing: looked in {', '.join(str(p.parent) for p in beside[:1])} and on the PATH",
        subject="ninja",
        hint="pip install ninja (./repro.sh does)",
    )


def package_folder(name: str) -> Path | None:
    """Where an installed package lies, without importing it (`torch` alone takes two seconds)."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def tvm_ffi_folder() -> Path:
    """The folder of apache-tvm-ffi, with include/ and lib/. Raises ToolError when it is not installed."""
    folder = package_folder("tvm_ffi")
    if folder is None or not (folder / "include").is_dir() or not (folder / "lib" / "libtvm_ffi.so").is_file():
        raise ToolError(
            "apache-tvm-ffi is missing", subject="tvm_ffi", hint="pip install apache-tvm-ffi (./repro.sh does)"
        )
    return folder


@functools.cache
def native_archs() -> tuple[str, ...]:
    """The architectures of the GPUs present, e.g. `('sm_90a',)`; empty when there is none. Does not import torch."""
    capabilities = _capabilities_by_nvml()
    if capabilities is None:
        capabilities = _capabilities_by_driver()
    return tuple(sorted({arch_name(*capability) for capability in capabilities}))


def arch_name(major: int, minor: int) -> str:
    """The architecture with its own instructions: from compute capability 9.0 on those need the suffix `a`."""
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def compiled_archs(cuda_home: Path | None = None) -> list[str]:
    """Every architecture that the CUDA compiler in use makes machine code for; empty where there is none."""
    try:
        home, _ = _find_home(cuda_home)
        said = run([home / "bin" / "nvcc", "--help"], check=False, timeout_s=20).stdout
    except ToolError:
        return []
    return sorted(set(re.findall(r"'(sm_\w+)'", said)))  # --list-gpu-code leaves out those with a suffix


def resolve_archs(archs: list[str]) -> list[str]:
    """`native` replaced by the present GPUs' architectures (dropped when there is none), each arch once."""
    expanded = [arch for entry in archs for arch in (native_archs() if entry == "native" else (entry,))]
    return list(dict.fromkeys(expanded))


def _find_home(cuda_home: Path | None) -> tuple[Path, str]:
    given = cuda_home or (Path(os.environ[CUDA_HOME_VARIABLE]) if os.environ.get(CUDA_HOME_VARIABLE) else None)
    if given is not None:
        if not (given / "bin" / "nvcc").is_file():
            raise ToolError(
                f"there is no CUDA toolkit: {given / 'bin' / 'nvcc'} does not exist",
                subject="--cuda-home" if cuda_home else CUDA_HOME_VARIABLE,
                hint="give the folder that holds bin/nvcc, or leave it out to use the wheels",
            )
        return given.resolve(), "cuda-home"
    for home in wheel_homes():
        if (home / "bin" / "nvcc").is_file():
            return home, "wheels"
    for home in _system_homes():
        if (home / "bin" / "nvcc").is_file():
            return home, "system"
    raise ToolError(
        "it is missing: looked in this interpreter's site-packages (nvidia/cu*/bin), $CUDA_HOME, /usr/local/cuda and "
        "on the PATH",
        subject="nvcc",
        hint=REMEDY,
    )


def wheel_homes() -> list[Path]:
    """The folders `nvidia/cu<major>` that wheels install, newest first."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        spec = None
    roots = list(spec.submodule_search_locations or []) if spec else []
    homes = [home for root in roots for home in Path(root).glob("cu[0-9]*") if home.is_dir()]
    return sorted(homes, key=lambda home: -int(re.sub(r"\D", "", home.name) or 0))


def _system_homes() -> Iterator[Path]:
    if named := os.environ.get("CUDA_HOME"):
        yield Path(named)
    yield Path("/usr/local/cuda")
    if found := shutil.which("nvcc"):
        yield Path(found).resolve().parent.parent
        # On some systems it is a script or a wrapper: nvcc itself knows where it lives.
        shown = run([found, "--dryrun", "-c", "-x", "cu", "/dev/null"], check=False, timeout_s=20)
        if top := re.search(r"^#\$ _HERE_=(.+)$", shown.stderr, re.MULTILINE):
            yield Path(top[1]).resolve().parent


def _find_binary_tool(name: str, below: str, wheel: str, home: Path | None, origin: str) -> tuple[Path, str]:
    places = [(home / below, origin)] if home else []
    places += [(other / below, "wheels") for other in wheel_homes()]
    places += [(other / below, "system") for other in (Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda"),)]
    if found := shutil.which(name):
        places.append((Path(found), "system"))
    if triton := package_folder("triton"):
        places.append((triton / "backends" / "nvidia" / below, "triton"))
    for path, where in places:
        if path.is_file():
            return path, where
    raise _missing(name, wheel, [path for path, _ in places])


def _missing(name: str, wheel: str, places: list[Path]) -> ToolError:
    looked = ", ".join(dict.fromkeys(str(place) for place in places))
    return ToolError(f"it is missing: looked for {looked}", subject=name, hint=f"{REMEDY}; {name} is in {wheel}")


def _library_folder(home: Path) -> Path:
    folders = [home / "lib64", home / "lib"]  # installers have the first, wheels the second
    return next((folder for folder in folders if (folder / RUNTIME).is_file()), folders[-1])


def _combined(parts: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _capabilities_by_nvml() -> list[tuple[int, int]] | None:
    """Compute capabilities of all GPUs; None when NVML cannot say."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)) for handle in handles]
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _capabilities_by_driver() -> list[tuple[int, int]]:
    """Compute capabilities through the CUDA driver; empty without a driver."""
    major_attribute, minor_attribute = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{MAJOR,MINOR}, <cuda.h>
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count, value = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []

    def attribute(code: int, device: int) -> int:
        driver.cuDeviceGetAttribute(ctypes.byref(value), code, device)
        return value.value

    return [(attribute(major_attribute, i), attribute(minor_attribute, i)) for i in range(count.value)]
