"""Kernels as people have them, on a GPU: a PyTorch extension with a CUDA source, and a Triton kernel."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelproof import build, config, gpu, records, supervisor, test
from kernelproof.records import TestRecord

Climb = Callable[[str], tuple[TestRecord, int]]

PRESENT, WHY = gpu.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not PRESENT, reason=f"needs a GPU: {WHY}")]

EXTENSION = r"""
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

__global__ void rms_norm(const float *x, const float *weight, float *y, int64_t stride, int columns, float eps) {
    const float *row = x + blockIdx.x * stride;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < columns; i += 32) sum += row[i] * row[i];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    const float scale = 1.0f / sqrtf(sum / columns + eps);
    for (int i = threadIdx.x; i < columns; i += 32) y[blockIdx.x * columns + i] = row[i] * scale * weight[i];
}

torch::Tensor run(torch::Tensor x, torch::Tensor weight, double eps) {
    auto y = torch::empty({x.size(0), x.size(1)}, x.options());
    rms_norm<<<x.size(0), 32, 0, c10::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), y.data_ptr<float>(), x.stride(0), x.size(1), eps);
    return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""

TRITON = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, weight, y, stride, stride_y, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + at, mask=at < columns, other=0.0)
    scale = 1.0 / tl.sqrt_rn(tl.sum(values * values) / columns + eps)
    tl.store(y + row * stride_y + at, values * scale * tl.load(weight + at, mask=at < columns), mask=at < columns)


def run(x, weight, y, eps):
    kernel[(x.shape[0],)](x, weight, y, x.stride(0), y.stride(0), x.shape[1], eps, triton.next_power_of_2(x.shape[1]))


def run_aligned(x, weight, y, eps):
    for tensor in (x, weight, y):
        if tensor.data_ptr() % 16 or not tensor.is_contiguous():
            raise ValueError("every tensor must be contiguous and begin on 16 bytes")
    run(x, weight, y, eps)
"""

CONFIG = """\
schema: kernelproof.config/1
project: abis
archs: [native]
operators:
  rmsnorm:
    module: kernelproof.operators.rmsnorm
    shapes: {tiny: {rows: 3, cols: 8}, odd: {rows: 17, cols: 1001}}
    test: {shapes: [tiny, odd]}
    bench: {shapes: [odd]}
    variants:
      extension: {abi: torch, device: cuda, sources: [extension.cu], dtypes: [float32], precision: {output: float32}}
      triton:
        abi: python
        device: cuda
        entry: triton_kernel.py:run
        passing: destination
        dtypes: [float32]
        precision: {output: float32}
      aligned:
        abi: python
        device: cuda
        entry: triton_kernel.py:run_aligned
        passing: destination
        dtypes: [float32]
        precision: {output: float32}
test: {trials: 10}
"""


@pytest.fixture
def climb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Climb:
    """Build and test a variant: its record, and how many processes the test took."""
    monkeypatch.chdir(tmp_path)
    Path("extension.cu").write_text(EXTENSION)
    Path("triton_kernel.py").write_text(TRITON)
    Path("config.yaml").write_text(CONFIG)
    settings = config.load()
    spawned: list[supervisor.Worker] = []
    spawn = supervisor.WorkerHost.spawn

    def noted(*arguments: Any, **named: Any) -> supervisor.Worker:
        spawned.append(spawn(*arguments, **named))
        return spawned[-1]

    monkeypatch.setattr(supervisor.WorkerHost, "spawn", noted)

    def climbed(variant: str) -> tuple[TestRecord, int]:
        before = len(spawned)
        built = build.run(settings, "rmsnorm", variant, settings.record("build", "rmsnorm", variant), None)
        assert built.status == records.OK, built.compiler_message or built.reason
        test.run(settings, "rmsnorm", [variant], settings.results / "test" / "rmsnorm")
        record = records.read(settings.record("test", "rmsnorm", variant), TestRecord)
        return record, len(spawned) - before

    return climbed


@pytest.mark.parametrize("variant", ["extension", "triton"])
def test_a_foreign_kernel_climbs_the_ladder(variant: str, climb: Climb) -> None:
    if variant == "triton":
        pytest.importorskip("triton")
    record, _ = climb(variant)
    assert record.verdict == "correct", record.reason


def test_calls_that_are_refused_for_their_layout_share_a_process(climb: Climb) -> None:
    pytest.importorskip("triton")
    _, usual = climb("triton")
    record, taken = climb("aligned")
    assert record.verdict == "correct", record.reason
    refused = [found for found in record.properties if found.status == "skipped"]
    assert refused
    assert all("must be contiguous and begin on 16 bytes" in str(found.message) for found in refused)
    cases = {found.case for found in refused}
    assert len(refused) >= 4 * len(cases)
    assert taken <= usual + len(cases)  # who was refused leaves, before a call of another kind


def test_a_gpu_that_others_filled_condemns_nobody(climb: Climb) -> None:
    import torch

    held, size = [], torch.cuda.mem_get_info()[0]
    try:
        while size > 1 << 20:
            try:
                held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                size //= 2
        record, _ = climb("extension")
    finally:
        held.clear()
        torch.cuda.empty_cache()
    assert (record.status, record.verdict) == ("failed", "not_run")
    assert "the GPU's memory ran out, and other programs have it" in (record.reason or "")
