"""The codec: one definition, its rounding, and that kernels use the same constants."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from kernelproof import simfp8

CSRC = Path(__file__).resolve().parents[1] / "csrc"


@pytest.fixture
def heads() -> torch.Tensor:
    return (
        torch.randn(2, 3, 17, 8, generator=torch.Generator().manual_seed(5))
        * torch.tensor([1.0, 30.0, 1e-3])[:, None, None]
    )


def test_zero_is_exactly_128_and_comes_back_as_zero() -> None:
    x = torch.zeros(1, 1, 2, 4)
    scale = simfp8.scales(x)
    assert scale.item() == 1.0
    codes = simfp8.encode(x, scale)
    assert codes.unique().tolist() == [128]
    assert torch.equal(simfp8.decode(codes, scale), x.double())


def test_every_value_comes_back_within_half_a_step(heads: torch.Tensor) -> None:
    scale = simfp8.scales(heads)
    back = simfp8.decode(simfp8.encode(heads, scale), scale)
    step = simfp8.LARGEST / simfp8.LEVELS * scale.double()[..., None, None]
    assert bool(((back - heads).abs() <= step / 2 * (1 + 1e-6)).all())


def test_the_largest_magnitude_uses_the_last_code(heads: torch.Tensor) -> None:
    codes = simfp8.encode(heads, simfp8.scales(heads)).int() - simfp8.ZERO_POINT
    assert codes.abs().amax((-2, -1)).unique().tolist() == [127]


def test_decoding_is_unbiased_and_the_wrong_zero_point_is_not(heads: torch.Tensor) -> None:
    scale = simfp8.scales(heads)
    codes = simfp8.encode(heads, scale)
    step = simfp8.LARGEST / simfp8.LEVELS * scale.double()[..., None, None]
    assert float(((simfp8.decode(codes, scale) - heads) / step).mean().abs()) < 0.05
    assert float(((simfp8.decode(codes, scale, 127.5) - heads) / step).mean()) == pytest.approx(0.5, abs=0.05)


def test_one_scale_a_tensor_is_the_largest_of_the_heads(heads: torch.Tensor) -> None:
    per_head, per_tensor = simfp8.scales(heads), simfp8.scales(heads, "tensor")
    assert per_tensor.shape == per_head.shape
    assert per_tensor.unique().tolist() == [per_head.max().item()]


def test_a_nearly_zero_head_has_scale_one() -> None:
    x = torch.full((1, 2, 1, 1), 1e-6)
    x[:, 1] = 2e-6
    assert simfp8.scales(x)[0, 0] == 1.0
    assert simfp8.scales(x)[0, 1] == pytest.approx(2e-6 / 448)


def test_kernels_have_the_same_constants() -> None:
    assert (simfp8.LARGEST, simfp8.LEVELS, simfp8.ZERO_POINT) == (448.0, 127, 128)
    for folder, constant in (
        ("qkt", "kCodeProduct = (448.0 / 127.0) * (448.0 / 127.0);"),
        ("quantised_attention", "kCodeStep = 448.0 / 127.0;"),
    ):
        assert constant in (CSRC / folder / "launch.h").read_text()
        for path in (CSRC / folder).iterdir():
            found = set(re.findall(r"\b12[78]\.5\b", path.read_text()))
            assert not found, f"{path} decodes with another zero point"
