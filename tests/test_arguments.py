"""Copies of arguments: how many make a run cold, and that they are laid out alike."""

import pytest
import torch

from kernelproof import arguments


def test_a_cold_rotation_exceeds_the_cache_or_says_that_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "_cache_bytes", lambda device: 32 << 20)
    assert arguments._rotation(1 << 20, "cpu", "hot")[0] == 1
    count, said = arguments._rotation(1 << 20, "cpu", "cold")
    assert count == 64
    assert said["exceeds_cache"]
    assert arguments._rotation(1 << 30, "cuda", "cold")[0] == 2
    count, said = arguments._rotation(100, "cpu", "cold")
    assert count == arguments.SETS_LIMIT
    assert not said["exceeds_cache"]


def test_the_copies_keep_their_strides() -> None:
    value = torch.arange(24.0).reshape(2, 3, 4).transpose(0, 1)
    copy = arguments.clone(value)
    assert copy.stride() == value.stride()
    assert torch.equal(copy, value)
    assert copy.data_ptr() != value.data_ptr()
