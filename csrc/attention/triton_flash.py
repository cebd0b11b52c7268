"""Attention forward in Triton, flash with an online softmax: what a page of Python reaches, as a baseline."""

from __future__ import annotations

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU-only installation has none
    triton = None

LOG2_E = 1.4426950408889634
ROWS, KEYS = 128, 64  # of a tile

if triton is not None:

    @triton.jit
    def flash(
        q,  # [batch, heads, rows, DIM]
        k,  # [batch, key_heads, keys, DIM]
        v,  # [batch, key_heads, keys, DIM]
        o,  # [batch, heads, rows, DIM]
        q_batch, q_head, q_row,
        k_batch, k_head, k_row,
        v_batch, v_head, v_row,
        o_batch, o_head, o_row,
        heads, group, rows, keys, factor,
        CAUSAL: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    ):  # fmt: skip
        """One tile of query rows of one head."""
        batch = (tl.program_id(1) // heads).to(tl.int64)
        head = (tl.program_id(1) % heads).to(tl.int64)
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        at = tl.arange(0, DIM)
        q_rmem = tl.load(
            q + batch * q_batch + head * q_head + row[:, None] * q_row + at, mask=row[:, None] < rows, other=0.0
        )
        k += batch * k_batch + head // group * k_head
        v += batch * v_batch + head // group * v_head
        visible = row + keys - rows + 1 if CAUSAL else row * 0 + keys  # keys that a row sees
        last = tl.minimum(keys, tl.max(visible))
        highest = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        o_rmem = tl.zeros([ROWS, DIM], tl.float32)
        for first in range(0, last, KEYS):
            key = first + tl.arange(0, KEYS)
            k_rmem = tl.load(k + key[None, :] * k_row + at[:, None], mask=key[None, :] < keys, other=0.0)
            scores = tl.dot(q_rmem, k_rmem) * factor
            seen = (key[None, :] < keys) & (key[None, :] < visible[:, None])
            scores = tl.where(seen, scores, float("-inf"))
            now = tl.maximum(highest, tl.max(scores, 1))
            base = tl.where(now == float("-inf"), 0.0, now)  # no key seen yet: inf - inf is no number
            shrink = tl.exp2(highest - base)
            weights = tl.exp2(scores - base[:, None])
            total = total * shrink + tl.sum(weights, 1)
            v_rmem = tl.load(v + key[:, None] * v_row + at[None, :], mask=key[:, None] < keys, other=0.0)
            o_rmem = tl.dot(weights.to(v_rmem.dtype), v_rmem, o_rmem * shrink[:, None])
            highest = now
        o_rmem = tl.where(total[:, None] > 0, o_rmem / total[:, None], 0.0)
        to = o + batch * o_batch + head * o_head + row[:, None] * o_row + at
        tl.store(to, o_rmem.to(o.dtype.element_ty), mask=row[:, None] < rows)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """q [B, H, Sq, D]; k, v [B, Hkv, Sk, D], last stride 1. Raises NotImplementedError for what it does not take."""
    if triton is None:
        raise NotImplementedError("Triton is not installed")
    batch, heads, rows, dim = q.shape
    if dim not in (64, 128) or scale <= 0:
        raise NotImplementedError(f"it takes head_dim 64 or 128 and a positive scale, not {dim} and {scale}")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    strides = [stride for tensor in (q, k, v, out) for stride in tensor.stride()[:3]]
    flash[triton.cdiv(rows, ROWS), batch * heads](
        q, k, v, out, *strides, heads, heads // k.shape[1], rows, k.shape[2], scale * LOG2_E,
        CAUSAL=causal, DIM=dim, ROWS=ROWS, KEYS=KEYS, num_warps=4 if dim == 64 else 8, num_stages=3,
    )  # fmt: skip
    return out
