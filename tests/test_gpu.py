"""What NVML says is recorded field by field; what it refuses is recorded as refused."""

import sys
import types

import pytest

from kernelproof import gpu


@pytest.fixture(autouse=True)
def no_library_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpu._nvml.cache_clear()
    gpu._handle.cache_clear()


def test_throttle_reasons_have_names() -> None:
    assert gpu.throttle_names(0) == []
    assert gpu.throttle_names(0x1 | 0x4 | 0x40) == ["gpu_idle", "sw_power_cap", "hw_thermal_slowdown"]
    assert gpu.throttle_names(0x8 | 0x10000) == ["hw_slowdown", "unknown_0x10000"]


def test_idleness_is_no_throttling() -> None:
    def state(*reasons: str) -> gpu.GpuSample:
        return gpu.GpuSample(1980, 3201, 40, 120.0, list(reasons), 3)

    assert not state().throttled
    assert not state("gpu_idle", "applications_clocks_setting").throttled
    assert state("gpu_idle", "sw_power_cap").throttled
    assert state("unknown_0x10000").throttled


def test_a_machine_without_a_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setattr(gpu, "NVML", "libnvidia-ml.so.none")
    assert gpu.available() == (False, "NVML's library (libnvidia-ml.so.none) was not found")
    assert "pynvml" not in sys.modules  # to import it takes as long as all the rest
    assert gpu.gpus() == []


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu.available() == (False, "the Python package nvidia-ml-py is not installed")


class Refused(Exception):
    """NVML's error, as the binding raises it."""


def board(refuses: set[str]) -> types.ModuleType:
    """A binding as pynvml's, of a machine with one GPU that refuses some questions. This machine has no GPU to ask."""
    nvml = types.ModuleType("pynvml")
    answers = {
        "nvmlInit": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetUUID": "GPU-11111111-2222-3333-4444-555555555555",
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlSystemGetDriverVersion": "580.65.06",
        "nvmlSystemGetCudaDriverVersion": 13000,
        "nvmlDeviceGetPowerUsage": 123456,
        "nvmlDeviceGetClockInfo": 1980,
        "nvmlDeviceGetTemperature": 41,
        "nvmlDeviceGetCurrentClocksEventReasons": 0x1,
        "nvmlDeviceGetEccMode": (1, 1),
        "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=7),
    }

    def answer(name: str) -> object:
        def ask(*arguments: object) -> object:
            if name in refuses:
                raise Refused("Not Supported")
            return answers[name]

        return ask

    for name in answers:
        setattr(nvml, name, answer(name))
    nvml.NVMLError = Refused  # type: ignore[attr-defined]
    nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM, nvml.NVML_TEMPERATURE_GPU = 1, 2, 0  # type: ignore[attr-defined]
    return nvml


def test_a_field_that_is_refused_does_not_spoil_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", board({"nvmlDeviceGetPowerUsage"}))
    (info,) = gpu.gpus()
    assert (info.name, info.compute_capability, info.cuda_driver) == ("NVIDIA H200", "9.0", "13.0")
    assert (info.power_w, info.errors["power_w"]) == (None, "Not Supported")
    assert info.ecc is True
    assert "vbios" in info.errors  # this binding does not even have the function


def test_no_uuid_leaves_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", board(set()))
    (info,) = gpu.gpus()
    assert info.uuid_sha256 is not None
    assert len(info.uuid_sha256) == gpu.UUID_DIGITS
    assert "11111111" not in repr(info)


def test_a_sample_holds_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", board({"nvmlDeviceGetTemperature"}))
    assert gpu.sample(0) == gpu.GpuSample(1980, 1980, None, 123.456, ["gpu_idle"], 7)


@pytest.mark.parametrize(
    ("visible", "index"), [(None, 0), ("", 0), ("2,1", 2), ("GPU-11111111", 0), ("GPU-none", 0), ("0", 0)]
)
def test_cuda_device_0_is_found_among_nvml_devices(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, index: int
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", board(set()))
    assert gpu.index_of_first_visible(visible) == index


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, ["GPU-11111111-2222-3333-4444-555555555555"]),
        ("0", ["GPU-11111111-2222-3333-4444-555555555555"]),
        ("GPU-1111", ["GPU-11111111-2222-3333-4444-555555555555"]),
        ("MIG-a", ["MIG-a"]),
        ("", []),
        ("7", []),
        ("none,0", []),
    ],
)
def test_what_cuda_leaves_visible(monkeypatch: pytest.MonkeyPatch, visible: str | None, found: list[str]) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", board(set()))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu.visible() == found


@pytest.mark.parametrize("visible", ["", "-1", "-1,0", "7", "NoDevFiles", "GPU-none"])
def test_a_board_that_cuda_may_not_use_is_not_available(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", board(set()))
    assert gpu.available() == (True, None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu.available() == (False, "CUDA_VISIBLE_DEVICES leaves no GPU of this machine")
    assert gpu.gpus() == []


@pytest.mark.parametrize("visible", ["0", "0,-1", "GPU-1111", "MIG-a"])
def test_a_board_that_cuda_may_use_is_available(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", board(set()))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu.available() == (True, None)


def test_an_instance_is_found_on_its_board(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(uuid: str) -> str:
        if uuid != "MIG-a":
            raise Refused("Not Found")
        return "instance"

    nvml = board(set())
    nvml.nvmlDeviceGetHandleByUUID = handle  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle = {"instance": "board"}.__getitem__  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetIndex = {"board": 3}.__getitem__  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert gpu.index_of_first_visible("MIG-a,MIG-b") == 3
    assert gpu.index_of_first_visible("MIG-none") == 0


def test_who_else_computes_and_what_it_used(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = board({"nvmlDeviceGetTotalEnergyConsumption"})
    nvml.nvmlDeviceGetComputeRunningProcesses = lambda handle: [types.SimpleNamespace(pid=7)]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert gpu.compute_processes(0) == [7]
    with pytest.raises(AttributeError):  # this binding does not even have the function
        gpu.energy_mj(0)


@pytest.mark.gpu
def test_the_real_board_answers() -> None:
    present, why = gpu.available()
    if not present:
        pytest.skip(f"needs a GPU: {why}")
    info, state = gpu.gpus()[0], gpu.sample(0)
    assert info.name
    assert info.driver
    assert state.sm_clock_mhz
    assert gpu.visible()
    assert isinstance(gpu.compute_processes(0), list)
