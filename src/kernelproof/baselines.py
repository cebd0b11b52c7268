"""What kernels are compared with: libraries, as callables of `abi: python` with `passing: return`.

Each SDPA backend is forced, so that a figure belongs to a backend and not to torch's choice; a library that cannot take
a case, or is not installed, raises NotImplementedError, which is recorded as refused. The causal mask is aligned at the
bottom right, as everywhere here; torch's own flag aligns at the top left, which is the same for seq = seq_k.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from kernelproof import simfp8


def sdpa_default(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """torch's scaled_dot_product_attention with the backend of its choice. q [B, H, Sq, D]; k, v [B, Hkv, Sk, D]."""
    seq, seq_k = q.shape[2], k.shape[2]
    grouped = q.shape[1] != k.shape[1]
    if not causal or seq == seq_k:
        return scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal, enable_gqa=grouped)
    hidden = torch.ones(seq, seq_k, dtype=torch.bool, device=q.device).triu_(1 + seq_k - seq)
    if seq > seq_k:
        # Rows that see no key are 0/0 in some backends. They are computed without a mask and then set to 0.
        nothing = hidden.all(-1, keepdim=True)
        out = scaled_dot_product_attention(q, k, v, attn_mask=~hidden | nothing, scale=scale, enable_gqa=grouped)
        return out.masked_fill(nothing, 0)
    return scaled_dot_product_attention(q, k, v, attn_mask=~hidden, scale=scale, enable_gqa=grouped)


def sdpa_math(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """The unfused composition: matrix product, softmax, matrix product."""
    with _forced(SDPBackend.MATH):
        return sdpa_default(q, k, v, scale, causal)


def sdpa_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """FlashAttention as torch ships it (on the CPU, torch's own blocked kernel)."""
    with _forced(SDPBackend.FLASH_ATTENTION):
        return sdpa_default(q, k, v, scale, causal)


def sdpa_efficient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """The CUTLASS memory-efficient backend. It knows no grouped heads, so K and V are repeated for it."""
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    with _forced(SDPBackend.EFFICIENT_ATTENTION):
        return sdpa_default(q, k, v, scale, causal)


def sdpa_cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """cuDNN's fused attention."""
    with _forced(SDPBackend.CUDNN_ATTENTION):
        return sdpa_default(q, k, v, scale, causal)


@contextlib.contextmanager
def _forced(backend: SDPBackend) -> Iterator[None]:
    """One backend and no other, for the calls within."""
    try:
        with sdpa_kernel(backend):
            yield
    except RuntimeError as error:
        if "No available kernel" in str(error):
            raise NotImplementedError(f"torch's {backend.name} backend does not take this case") from error
        raise


def flash_attention_4(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """FlashAttention-4 (flash-attn-4), which compiles a kernel in memory when it first needs it."""
    try:
        from flash_attn.cute import flash_attn_func
    except ImportError as error:
        raise NotImplementedError(f"FlashAttention-4 is not installed: {error}") from error
    if torch.cuda.get_device_capability(q.device) < (8, 0):
        raise NotImplementedError("FlashAttention-4 needs a GPU of compute capability 8.0 or above")
    dim = q.shape[-1]
    if dim % 8 or dim > 128 or scale <= 0:  # it looks for the largest score before it scales
        raise NotImplementedError(f"it takes head_dim 8, 16, … 128 and a positive scale, not {dim} and {scale}")
    out, _ = flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), softmax_scale=scale, causal=causal)
    return out.transpose(1, 2)


def qkt_torch(
    q: torch.Tensor, k: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor, factor: float
) -> torch.Tensor:
    """Scores: of codes in float32, one batched product, the scales at the end; of 16-bit numbers see `qkt_half`."""
    if q.dtype != torch.uint8:
        return _product_of_halves(q, k) * factor
    left, right = (codes.float() - simfp8.ZERO_POINT for codes in (q, k))
    return (left @ right.mT) * _worth(q_scale, k_scale, factor)


def qkt_half(
    q: torch.Tensor, k: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor, factor: float
) -> torch.Tensor:
    """Scores of codes, which less 128 are whole in float16, by the tensor cores."""
    left, right = (codes.half() - simfp8.ZERO_POINT for codes in (q, k))
    return _product_of_halves(left, right) * _worth(q_scale, k_scale, factor)


def _worth(q_scale: torch.Tensor, k_scale: torch.Tensor, factor: float) -> torch.Tensor:
    step = simfp8.LARGEST / simfp8.LEVELS
    return (q_scale * k_scale * (step * step * factor))[..., None, None]


def _product_of_halves(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Q·Kᵀ in float32: cuBLAS on a GPU, where it sums in float32; a CPU multiplies in float32."""
    if not q.is_cuda:
        return q.float() @ k.float().mT
    product = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT, out_dtype=torch.float32)
    return product.unflatten(0, q.shape[:2])


def quantised_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_scale: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    scale: float,
    causal: bool,
) -> torch.Tensor:
    """Attention on quantised inputs as torch has it: decode to float32, then SDPA. q [B, H, Sq, D]; float16 out."""
    decoded = _decoded(q, q_scale), _decoded(k, k_scale), _decoded(v, v_scale)
    return sdpa_default(*decoded, scale, causal).half()


def _decoded(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Codes [B, H, S, D] of either codec in float32 (see kernelproof.operators.quantised_attention)."""
    if codes.dtype != torch.uint8:
        return codes.float() * scale[..., None, None]
    return (codes.float() - simfp8.ZERO_POINT) * (scale * (simfp8.LARGEST / simfp8.LEVELS))[..., None, None]


def rmsnorm_torch(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """torch's rms_norm. x [rows, cols], weight [cols]."""
    return rms_norm(x, (x.shape[-1],), weight, eps)
