"""Stage `capture`: the machine as the run found it.

Each probe looks at one thing and is on its own: what cannot be read is recorded as failed, with the error, and what is
not there as absent. Nothing private gets in: environment variables come from an allow-list, serial numbers are not
read, the GPU's UUID is hashed, and every string passes through `privacy.scrubbed`.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import re
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kernelproof import gpu, privacy, processes, repository
from kernelproof.config import Config
from kernelproof.errors import ToolError
from kernelproof.records import CaptureRecord, Probe, sha256_file, write

# Variables that change what is built or measured and whose values name no person, machine or secret.
ENVIRONMENT = (
    "CC",
    "CFLAGS",
    "CI",
    "CUDA_CACHE_DISABLE",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_HOME",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CXX",
    "CXXFLAGS",
    "GOMP_CPU_AFFINITY",
    "GITHUB_ACTIONS",
    "KERNELPROOF_CUDA_HOME",
    "KMP_AFFINITY",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MKL_NUM_THREADS",
    "NVCC_APPEND_FLAGS",
    "NVCC_PREPEND_FLAGS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "OPENBLAS_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_CUDA_ARCH_LIST",
    "TVM_FFI_DISABLE_TORCH_C_DLPACK",
)
# Flags that decide which code path a numerical library takes; a CPU has some 130 more.
CPU_FLAGS = frozenset(
    {
        *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8", "hypervisor"),
        *("avx512f", "avx512bw", "avx512vl", "avx512_bf16", "avx512_fp16", "avx512_vnni"),
        *("asimd", "sve", "sve2", "bf16", "i8mm"),
    }
)


class Absent(Exception):
    """What a probe looks for is not on this machine; the message says what that means."""


def run(config: Config, output: Path) -> CaptureRecord:
    """Look at everything and write the record. A probe that fails does not stop the others."""
    started = time.monotonic()
    record = CaptureRecord(provenance=repository.provenance(config.root))
    record.probes = {name: look(probe, config) for name, probe in PROBES.items()}
    record.duration_s = time.monotonic() - started
    write(output, record)
    return record


def look(probe: Callable[[Config], Any], config: Config) -> Probe:
    """Run one probe; what it raises becomes part of the record."""
    try:
        return Probe("ok", privacy.cleaned(probe(config)))
    except Absent as why:
        return Probe("absent", None, privacy.scrubbed(str(why)))
    except Exception as error:  # a probe's fault of any kind is a finding about the machine, not a reason to stop
        return Probe("failed", None, privacy.scrubbed(f"{type(error).__name__}: {error}"))


# --- probes -----------------------------------------------------------------------------------------------------------


def cpu(config: Config) -> dict[str, Any]:
    """Model, flags that matter, cores this process may use, load averages, frequency governor."""
    first: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        first.setdefault(key.strip(), value.strip())
    flags = set((first.get("flags") or first.get("Features") or "").split())
    return {
        "model": first.get("model name") or platform.machine(),
        "architecture": platform.machine(),
        "flags": sorted(CPU_FLAGS & flags),
        "logical_cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "physical_cores": _physical_cores(),
        "cgroup_cores": _cgroup_cores(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "governor": _read_or_none("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "max_mhz": _khz_to_mhz(_read_or_none("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")),
        "boost": _read_or_none("/sys/devices/system/cpu/cpufreq/boost"),
        "smt": _read_or_none("/sys/devices/system/cpu/smt/active"),
    }


def memory(config: Config) -> dict[str, int | None]:
    """Total and available memory and the container's limit, in bytes."""
    kilobytes = {
        key: int(value.split()[0])
        for key, _, value in (line.partition(":") for line in Path("/proc/meminfo").read_text().splitlines())
    }
    limit = _read_or_none("/sys/fs/cgroup/memory.max")
    return {
        "total_bytes": kilobytes["MemTotal"] * 1024,
        "available_bytes": kilobytes["MemAvailable"] * 1024,
        "cgroup_limit_bytes": int(limit) if limit and limit.isdigit() else None,
    }


def operating_system(config: Config) -> dict[str, Any]:
    """Distribution, kernel and C library."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    return {
        "name": release.get("PRETTY_NAME") or platform.system(),
        "kernel": re.match(r"[\d.]*", platform.release())[0],  # type: ignore[index]  # what follows can name the site
        "libc": " ".join(platform.libc_ver()),
    }


def gpus(config: Config) -> list[dict[str, Any]]:
    """Every GPU that NVML sees."""
    present, why = gpu.available()
    if not present:
        raise Absent(f"no NVIDIA GPU: {why}")
    return [dataclasses.asdict(board) for board in gpu.gpus()]


def cuda_toolchain(config: Config) -> dict[str, Any]:
    """The CUDA tools that `build` takes and the profiler, each with origin, version and SHA-256."""
    from kernelproof import nsight, toolchain

    facts: dict[str, Any] = {}
    try:
        found = toolchain.find_cuda(cache=_tool_cache(config))
        facts |= {"version": found.version, "origin": found.origin, "tools": _tools(found.tools.values())}
    except ToolError as error:
        facts["error"] = str(error)
    if ncu := nsight.find_ncu():
        version = nsight.version(ncu)
        facts["ncu"] = {"version": version, "sha256": sha256_file(ncu.resolve()), "origin": "system"}
    if set(facts) == {"error"}:
        raise Absent(str(facts["error"]))
    return facts


def host_compiler(config: Config) -> dict[str, Any]:
    """The C++ compiler that `build` takes; the hash covers the compiler proper behind the driver too."""
    from kernelproof import toolchain

    try:
        found = toolchain.find_host_compiler(cache=_tool_cache(config))
    except ToolError as error:
        raise Absent(str(error)) from None
    return dataclasses.asdict(found.compiler())


def python(config: Config) -> dict[str, Any]:
    """The interpreter."""
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "compiler": platform.python_compiler(),
        "platform": sysconfig.get_platform(),
        "virtual_environment": sys.prefix != sys.base_prefix,
        "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
    }


def packages(config: Config) -> dict[str, str]:
    """Every installed distribution with its version, from metadata alone: nothing is imported."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(name.lower().replace("_", "-"), distribution.version)  # the first on sys.path is imported
    return dict(sorted(found.items()))


def git(config: Config) -> dict[str, Any]:
    """Commit, branch and dirty state with the hash of the difference (untracked files in it)."""
    state = repository.provenance(config.root)
    if state.commit is None:
        raise Absent(f"{state.no_commit}; the files' hash is {state.diff_sha256}")
    facts = {name: getattr(state, name) for name in ("commit", "branch", "dirty", "diff_sha256", "commit_utc")}
    version = processes.run(["git", "--version"], timeout_s=20).stdout.strip().removeprefix("git version ")
    return {**facts, "version": version}


def container(config: Config) -> dict[str, str]:
    """What kind of container or virtual machine this is."""
    signs = {
        "docker": Path("/.dockerenv").exists(),
        "podman": Path("/run/.containerenv").exists(),
        "kubernetes": "KUBERNETES_SERVICE_HOST" in os.environ,
        "apptainer": "APPTAINER_NAME" in os.environ or "SINGULARITY_NAME" in os.environ,
        "gvisor": "gvisor" in (_read_or_none("/proc/version") or "").lower(),
    }
    kind = next((name for name, seen in signs.items() if seen), None)
    groups = _read_or_none("/proc/1/cgroup") or ""
    kind = kind or next((name for name in ("docker", "kubepods", "libpod", "lxc") if name in groups), None)
    product = _read_or_none("/sys/class/dmi/id/product_name")
    if kind is None and not product:
        raise Absent("no sign of a container")
    return {"kind": kind or "none", "machine": product or "unknown"}


def environment(config: Config) -> dict[str, str]:
    """The variables of the allow-list that are set; boards that they name by UUID as `gpu` names them."""
    return {name: _boards_hashed(os.environ[name]) for name in ENVIRONMENT if name in os.environ}


def limits(config: Config) -> dict[str, Any]:
    """What may stop a run: free disk (bytes), open files, locked memory, and whether GPU counters are permitted."""
    import resource

    disk = shutil.disk_usage(config.root)
    soft_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    shm = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
    return {
        "disk_free_bytes": disk.free,
        "disk_total_bytes": disk.total,
        "shared_memory_bytes": shm.total if shm else None,
        "open_files": soft_files,
        "perf_event_paranoid": _read_or_none("/proc/sys/kernel/perf_event_paranoid"),
        "gpu_counters": counters_permitted(),
    }


def counters_permitted() -> str:
    """`everybody`, `administrators` or `unknown`: who may read GPU performance counters by the driver's setting."""
    parameters = _read_or_none("/proc/driver/nvidia/params") or ""
    for line in parameters.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "RmProfilingAdminOnly":
            return "administrators" if value.strip() == "1" else "everybody"
    return "unknown"


PROBES: dict[str, Callable[[Config], Any]] = {
    "cpu": cpu,
    "memory": memory,
    "os": operating_system,
    "gpu": gpus,
    "cuda_toolchain": cuda_toolchain,
    "host_compiler": host_compiler,
    "python": python,
    "packages": packages,
    "git": git,
    "container": container,
    "environment": environment,
    "limits": limits,
}


# --- helpers ----------------------------------------------------------------------------------------------------------


def _tools(tools: Iterable[Any]) -> dict[str, dict[str, str]]:
    return {tool.name: {"version": tool.version, "sha256": tool.sha256, "origin": tool.origin} for tool in tools}


def _boards_hashed(text: str) -> str:
    return re.sub(r"\b(GPU|MIG)-[^\s,]+", lambda found: f"{found[1]}-{gpu.uuid_sha256(found[0])}", text)


def _tool_cache(config: Config) -> Path:
    """Where `build` remembers the hashes of tools: a toolkit's 200 MB take half a second."""
    return config.results / "store" / "tools.json"


def _physical_cores() -> int | None:
    cores = set()
    for topology in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology"):
        package, core = (_read_or_none(topology / name) for name in ("physical_package_id", "core_id"))
        cores.add((package, core))
    return len(cores) or None


def _cgroup_cores() -> float | None:
    """The container's CPU quota in cores, or None without one."""
    quota, _, period = (_read_or_none("/sys/fs/cgroup/cpu.max") or "max").partition(" ")
    return round(int(quota) / int(period), 2) if quota.isdigit() and period.isdigit() else None


def _read_or_none(path: str | Path) -> str | None:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return None


def _khz_to_mhz(text: str | None) -> int | None:
    return int(text) // 1000 if text and text.isdigit() else None
