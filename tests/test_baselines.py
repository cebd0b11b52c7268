"""Libraries that need not be installed: refused where they are not, and handed what they take where they are."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

from kernelproof import baselines

SCALE = 0.3


def inputs(rows: int = 5, keys: int = 7, dim: int = 8) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Grouped heads, as q [B, H, Sq, D]; k, v [B, Hkv, Sk, D]."""
    torch.manual_seed(0)
    return torch.randn(2, 4, rows, dim), torch.randn(2, 2, keys, dim), torch.randn(2, 2, keys, dim)


def attention_of_rows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, softmax_scale: float, causal: bool
) -> tuple[torch.Tensor, None]:
    """In FlashAttention's layout, [B, S, H, D]; beside the output comes what is asked for only to train."""
    out = baselines.sdpa_math(*(x.transpose(1, 2) for x in (q, k, v)), softmax_scale, causal)
    return out.transpose(1, 2).contiguous(), None


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A stand-in for FlashAttention-4, on a GPU that it takes."""
    package: Any = types.ModuleType("flash_attn.cute")
    package.flash_attn_func = attention_of_rows
    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", package)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    return monkeypatch


@pytest.mark.parametrize("absent", ["flash_attn", "flash_attn.cute"])  # neither, or an earlier FlashAttention alone
def test_flash_attention_4_is_refused_where_it_is_not_installed(absent: str, installed: pytest.MonkeyPatch) -> None:
    installed.delitem(sys.modules, "flash_attn.cute")
    installed.setitem(sys.modules, absent, None)
    with pytest.raises(NotImplementedError, match=r"FlashAttention-4 is not installed: .*flash_attn"):
        baselines.flash_attention_4(*inputs(), SCALE, False)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "keys"), [(5, 5), (5, 7), (7, 5)])
def test_flash_attention_4_is_given_its_layout(causal: bool, rows: int, keys: int) -> None:
    given = inputs(rows, keys)
    torch.testing.assert_close(
        baselines.flash_attention_4(*given, SCALE, causal), baselines.sdpa_math(*given, SCALE, causal)
    )


def test_flash_attention_4_refuses_what_it_does_not_take(installed: pytest.MonkeyPatch) -> None:
    for dim, scale in ((12, SCALE), (136, SCALE), (8, 0.0), (8, -SCALE)):
        with pytest.raises(NotImplementedError, match=f"not {dim} and {scale}"):
            baselines.flash_attention_4(*inputs(dim=dim), scale, False)
    installed.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(NotImplementedError, match="needs a GPU of compute capability"):
        baselines.flash_attention_4(*inputs(), SCALE, False)
