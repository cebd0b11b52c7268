"""Kernels as people have them, on a GPU: a PyTorch extension with a CUDA source, and a Triton kernel."""

from pathlib import Path

import pytest

from kernelproof import build, config, gpu, records, test
from kernelproof.records import TestRecord

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
test: {trials: 10}
"""


@pytest.mark.parametrize("variant", ["extension", "triton"])
def test_a_foreign_kernel_climbs_the_ladder(variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if variant == "triton":
        pytest.importorskip("triton")
    monkeypatch.chdir(tmp_path)
    Path("extension.cu").write_text(EXTENSION)
    Path("triton_kernel.py").write_text(TRITON)
    Path("config.yaml").write_text(CONFIG)
    settings = config.load()
    built = build.run(settings, "rmsnorm", variant, settings.record("build", "rmsnorm", variant), None)
    assert built.status == records.OK, built.compiler_message or built.reason
    test.run(settings, "rmsnorm", [variant], settings.results / "test" / "rmsnorm")
    record = records.read(settings.record("test", "rmsnorm", variant), TestRecord)
    assert record.verdict == "correct", record.reason
