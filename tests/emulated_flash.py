"""A blocked attention with an online softmax, as kernels do it, and the faults that kernels have."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

LOG2E = 1.4426950408889634


@dataclass(frozen=True)
class Flash:
    """One implementation. p: the type that P is rounded to (None: the inputs'). The rest are faults."""

    p: torch.dtype | None = None
    tile: int = 64
    skip_key: int | None = None
    skip_tile: int | None = None
    stale_maximum: bool = False
    truncate: bool = False
    scale_by: float = 1.0
    zero_point: float = 0.0  # added to V, as a share of its largest magnitude
    ignore_mask: bool = False
    shift_mask: int = 0
    wrong_kv_head: bool = False
    unmasked_padding: bool = False

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
        """O in the inputs' type."""
        group = q.shape[1] // k.shape[1]
        head = torch.arange(q.shape[1])
        head = head % k.shape[1] if self.wrong_kv_head else head // group
        qf, kf, vf = q.float(), k.float()[:, head], v.float()[:, head]
        vf = vf + self.zero_point * vf.abs().max()
        seq, seq_k, keys = q.shape[2], k.shape[2], torch.arange(k.shape[2])
        visible = torch.ones(seq, seq_k, dtype=torch.bool)
        if causal and not self.ignore_mask:
            visible = keys <= torch.arange(seq)[:, None] + seq_k - seq + self.shift_mask
        if self.skip_key is not None:
            visible = visible & (keys != self.skip_key % seq_k)
        if self.skip_tile is not None:
            visible = visible & (keys // self.tile != self.skip_tile)
        if self.unmasked_padding:
            extra = -seq_k % self.tile
            kf, vf = (torch.nn.functional.pad(t, (0, 0, 0, extra)) for t in (kf, vf))
            visible = torch.nn.functional.pad(visible, (0, extra), value=True)
        out = self._online(qf, kf, vf, visible, scale * self.scale_by * LOG2E, self.p or q.dtype)
        return _truncated(out, q.dtype) if self.truncate else out.to(q.dtype)

    def _online(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        visible: torch.Tensor,
        scale: float,
        p_type: torch.dtype,
    ) -> torch.Tensor:
        m = torch.full((*q.shape[:-1], 1), -math.inf)
        total, out = torch.zeros_like(m), torch.zeros_like(q)
        for t in range(0, k.shape[2], self.tile):
            tile = slice(t, t + self.tile)
            s = (q @ k[:, :, tile].mT).masked_fill(~visible[:, tile], -math.inf)
            new = torch.maximum(m, s.amax(-1, keepdim=True))
            at = new.masked_fill(new == -math.inf, 0)
            p = torch.exp2(s * scale - at * scale)
            keep = torch.ones_like(m) if self.stale_maximum else torch.exp2((m - at) * scale)
            total = total * keep + p.sum(-1, keepdim=True)
            out = out * keep + p.to(p_type).float() @ v[:, :, tile]
            m = new
        return torch.where(total > 0, out / total, 0.0)


def _truncated(x: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Cut off the bits that the type does not have."""
    lost = 13 if kind == torch.float16 else 16
    return (x.view(torch.int32) & ~((1 << lost) - 1)).view(torch.float32).to(kind)
