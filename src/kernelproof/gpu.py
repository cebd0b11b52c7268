"""The GPU as NVML sees it. Only looks: no clock, limit or mode is ever set here.

Every value is read on its own, because a board, a driver or a virtual machine may refuse any one of them: what could
not be read is recorded with NVML's error, and the rest stands. No serial number is read, and the UUID is hashed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

NVML = "libnvidia-ml.so.1"  # the driver's
UUID_DIGITS = 16  # of the hash's hexadecimal digits: enough to tell two boards apart

# Bits of the "clocks event reasons", named as nvidia-smi does (NVML reference, group nvmlClocksEventReasons).
THROTTLE_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clocks_setting",
}
HARMLESS_REASONS = frozenset({"gpu_idle", "applications_clocks_setting", "display_clocks_setting", "sync_boost"})


@dataclass
class GpuInfo:
    """One board. A field that could not be read is None, and `errors` says why.

    uuid_sha256 is a prefix of the hash of NVML's UUID; clocks in MHz, power in W, memory in bytes.
    """

    index: int
    name: str | None = None
    uuid_sha256: str | None = None
    architecture: str | None = None
    compute_capability: str | None = None
    multiprocessors: int | None = None
    cuda_cores: int | None = None
    driver: str | None = None
    cuda_driver: str | None = None
    vbios: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_bus_bits: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    temperature_c: int | None = None
    throttle_reasons: list[str] | None = None
    ecc: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None
    pcie: dict[str, int] | None = None
    processes: int | None = None
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GpuSample:
    """The state of a board at one moment; None where NVML does not say."""

    sm_clock_mhz: int | None
    mem_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    throttle_reasons: list[str]
    utilisation: int | None

    @property
    def throttled(self) -> bool:
        """Whether the clocks are held down by heat or power, as opposed to idleness or a setting."""
        return not HARMLESS_REASONS.issuperset(self.throttle_reasons)


def available() -> tuple[bool, str | None]:
    """Whether there is an NVIDIA GPU that NVML can see and CUDA may use, and if not, why."""
    try:
        count, usable = _nvml().nvmlDeviceGetCount(), visible()
    except Exception as error:  # any fault in loading or starting NVML means the same to the caller, who gets the words
        return False, _words(error)
    if not count:
        return False, "NVML sees no GPU"
    return (True, None) if usable else (False, "CUDA_VISIBLE_DEVICES leaves no GPU of this machine")


def gpus() -> list[GpuInfo]:
    """Every board that NVML sees; none where `available()` is false."""
    if not available()[0]:
        return []
    return [_gpu(index) for index in range(_nvml().nvmlDeviceGetCount())]


def index_of_first_visible(visible: str | None) -> int:
    """NVML's index of the board of CUDA's device 0, from CUDA_VISIBLE_DEVICES, of which NVML itself knows nothing."""
    first = (visible or "").split(",")[0].strip()
    if first.isdigit():
        return int(first)
    if first.startswith("GPU-"):
        nvml = _nvml()
        for index in range(nvml.nvmlDeviceGetCount()):
            if _text(nvml.nvmlDeviceGetUUID(_handle(index))).startswith(first):
                return index
    if first.startswith("MIG-"):
        nvml = _nvml()
        with contextlib.suppress(nvml.NVMLError):  # an instance that it does not know
            board = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml.nvmlDeviceGetHandleByUUID(first))
            return int(nvml.nvmlDeviceGetIndex(board))
    return 0


def sample(index: int = 0) -> GpuSample:
    """A board's clocks, temperature, power and throttle reasons now; some tens of microseconds a value."""
    nvml, handle = _nvml(), _handle(index)

    def read(name: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, name)(handle, *arguments)
        except nvml.NVMLError:
            return None

    power_mw, utilisation = read("nvmlDeviceGetPowerUsage"), read("nvmlDeviceGetUtilizationRates")
    return GpuSample(
        sm_clock_mhz=read("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        mem_clock_mhz=read("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        temperature_c=read("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        power_w=None if power_mw is None else power_mw / 1000,
        throttle_reasons=throttle_names(read(_reasons_function(nvml)) or 0),
        utilisation=None if utilisation is None else utilisation.gpu,
    )


def energy_mj(index: int = 0) -> int:
    """What the board has used since the driver was loaded, in millijoules (Volta and later).

    Raises whatever NVML raises where the board does not count it.
    """
    return int(_nvml().nvmlDeviceGetTotalEnergyConsumption(_handle(index)))


def compute_processes(index: int = 0) -> list[int] | None:
    """Ids of the processes that compute on a board, as NVML counts them (a container may not know the numbers).

    None where NVML does not say.
    """
    nvml = _nvml()
    try:
        return [int(process.pid) for process in nvml.nvmlDeviceGetComputeRunningProcesses(_handle(index))]
    except nvml.NVMLError:
        return None


def free_memory(index: int = 0) -> tuple[int, int] | None:
    """What of a board's memory nobody holds, and all of it, in bytes; None where NVML does not say."""
    nvml = _nvml()
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(_handle(index))
    except nvml.NVMLError:
        return None
    return int(memory.free), int(memory.total)


def visible() -> list[str]:
    """UUIDs of the boards that CUDA_VISIBLE_DEVICES leaves, in its order, MIG instances by their own."""
    nvml = _nvml()
    known = [_text(nvml.nvmlDeviceGetUUID(_handle(index))) for index in range(nvml.nvmlDeviceGetCount())]
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return known
    found = []
    for name in (part.strip() for part in given.split(",")):
        if name.isdigit() and int(name) < len(known):
            found.append(known[int(name)])
        elif name.startswith("GPU-"):
            found += [uuid for uuid in known if uuid.startswith(name)][:1]
        elif name.startswith("MIG-"):
            found.append(name)
        else:
            break  # CUDA, too, ignores what follows a name that it does not know
    return found


def uuid_sha256(uuid: str) -> str:
    """What stands for a board in records and file names."""
    return hashlib.sha256(uuid.encode()).hexdigest()[:UUID_DIGITS]


def throttle_names(bits: int) -> list[str]:
    """The names of the reasons in a bit mask; a bit that this release does not know is named by its value."""
    known = [name for bit, name in THROTTLE_REASONS.items() if bits & bit]
    unknown = bits & ~sum(THROTTLE_REASONS)
    return known + ([f"unknown_{unknown:#x}"] if unknown else [])


def _gpu(index: int) -> GpuInfo:
    nvml, handle = _nvml(), _handle(index)
    info = GpuInfo(index)
    for name, probe in _PROBES.items():
        try:
            setattr(info, name, probe(nvml, handle))
        except (nvml.NVMLError, AttributeError, ValueError, TypeError) as error:
            info.errors[name] = _words(error)
    return info


def _capability(nvml: Any, handle: Any) -> str:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return f"{major}.{minor}"


def _cuda_driver(nvml: Any, handle: Any) -> str:
    version = nvml.nvmlSystemGetCudaDriverVersion()
    return f"{version // 1000}.{version % 1000 // 10}"


def _pcie(nvml: Any, handle: Any) -> dict[str, int]:
    return {
        "generation": nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
        "width": nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        "generation_max": nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
        "width_max": nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
    }


def _architecture_name(nvml: Any, handle: Any) -> str:
    number = nvml.nvmlDeviceGetArchitecture(handle)
    names = {getattr(nvml, name): name for name in dir(nvml) if name.startswith("NVML_DEVICE_ARCH_")}
    return str(names.get(number, str(number))).removeprefix("NVML_DEVICE_ARCH_").lower()


def _reasons_function(nvml: Any) -> str:
    # Renamed in driver 535; the old name stays for older bindings.
    new = "nvmlDeviceGetCurrentClocksEventReasons"
    return new if hasattr(nvml, new) else "nvmlDeviceGetCurrentClocksThrottleReasons"


_PROBES: dict[str, Callable[[Any, Any], Any]] = {
    "name": lambda n, h: _text(n.nvmlDeviceGetName(h)),
    "uuid_sha256": lambda n, h: uuid_sha256(_text(n.nvmlDeviceGetUUID(h))),
    "architecture": _architecture_name,
    "compute_capability": _capability,
    "multiprocessors": lambda n, h: n.nvmlDeviceGetAttributes_v2(h).multiprocessorCount,
    "cuda_cores": lambda n, h: n.nvmlDeviceGetNumGpuCores(h),
    "driver": lambda n, h: _text(n.nvmlSystemGetDriverVersion()),
    "cuda_driver": _cuda_driver,
    "vbios": lambda n, h: _text(n.nvmlDeviceGetVbiosVersion(h)),
    "memory_total_bytes": lambda n, h: n.nvmlDeviceGetMemoryInfo(h).total,
    "memory_used_bytes": lambda n, h: n.nvmlDeviceGetMemoryInfo(h).used,
    "memory_bus_bits": lambda n, h: n.nvmlDeviceGetMemoryBusWidth(h),
    "sm_clock_mhz": lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM),
    "sm_clock_max_mhz": lambda n, h: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM),
    "memory_clock_max_mhz": lambda n, h: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_MEM),
    "power_w": lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1000,
    "power_limit_w": lambda n, h: n.nvmlDeviceGetEnforcedPowerLimit(h) / 1000,
    "power_limit_default_w": lambda n, h: n.nvmlDeviceGetPowerManagementDefaultLimit(h) / 1000,
    "temperature_c": lambda n, h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU),
    "throttle_reasons": lambda n, h: throttle_names(getattr(n, _reasons_function(n))(h)),
    "ecc": lambda n, h: bool(n.nvmlDeviceGetEccMode(h)[0]),
    "mig": lambda n, h: bool(n.nvmlDeviceGetMigMode(h)[0]),
    "persistence": lambda n, h: bool(n.nvmlDeviceGetPersistenceMode(h)),
    "pcie": _pcie,
    "processes": lambda n, h: len(n.nvmlDeviceGetComputeRunningProcesses(h)),
}


@functools.cache
def _nvml() -> Any:
    """The NVML binding, started once a process. Raises whatever stands in its way (no library, no driver)."""
    if "pynvml" not in sys.modules:  # the binding loads it too; without a driver that is known 40 ms sooner
        ctypes.CDLL(NVML)
    import pynvml

    pynvml.nvmlInit()
    return pynvml


@functools.cache
def _handle(index: int) -> Any:
    return _nvml().nvmlDeviceGetHandleByIndex(index)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _words(error: Exception) -> str:
    if isinstance(error, ImportError):
        return "the Python package nvidia-ml-py is not installed"
    if isinstance(error, OSError):
        return f"NVML's library ({NVML}) was not found"
    return str(error) or type(error).__name__
