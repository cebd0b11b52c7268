"""The simulated-FP8 codec: linear 8-bit codes with one scale per head or per tensor. This is its only definition.

With a = max|x| over a head (or the whole tensor):

    scale    s = a / 448 if a > 1e-6 else 1
    encode   u = clamp(round(127·x / (448·s)) + 128, 0, 255)      (round half to even)
    decode   x = (u − 128) / 127 · 448 · s

Zero is exactly 128. 448 is the largest float8_e4m3 number, which the codec stands in for. csrc/qkt/launch.h and
csrc/quantised_attention/launch.h hold the same constants for kernels, and tests/test_simfp8.py compares them. The
functions take and give torch tensors, through their methods only: importing this module does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ZERO_POINT = 128
LEVELS = 127  # codes on either side of zero
LARGEST = 448.0  # the magnitude that `LEVELS` stands for at scale 1
SMALLEST_MAXIMUM = 1e-6  # below it a head counts as zero and its scale is 1
GRANULARITIES = ("head", "tensor")


def scales(x: torch.Tensor, granularity: str = "head") -> torch.Tensor:
    """Scales of x [batch, heads, rows, features] in float32: [batch, heads], all equal with granularity `tensor`."""
    largest = x.float().abs().amax((-2, -1))
    if granularity == "tensor":
        largest = largest.amax().expand(largest.shape).clone()
    return (largest / LARGEST).masked_fill(largest <= SMALLEST_MAXIMUM, 1.0)


def encode(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Codes (uint8) of x [batch, heads, rows, features] at the scales [batch, heads], computed in float64."""
    steps = x.double() * LEVELS / (LARGEST * scale.double()[..., None, None])
    return (steps.round() + ZERO_POINT).clamp(0, 255).byte()


def decode(codes: torch.Tensor, scale: torch.Tensor, zero_point: float = ZERO_POINT) -> torch.Tensor:
    """The float64 values of codes. `zero_point` is for diagnosis: a decoder with another one is wrong."""
    return (codes.double() - zero_point) / LEVELS * LARGEST * scale.double()[..., None, None]


def values(numbers: torch.Tensor, scale: torch.Tensor, zero_point: float = ZERO_POINT) -> torch.Tensor:
    """What numbers with a scale a head stand for, in float64: codes where they are uint8, else themselves, scaled."""
    if not numbers.is_floating_point():
        return decode(numbers, scale, zero_point)
    return numbers.double() * scale.double()[..., None, None]
