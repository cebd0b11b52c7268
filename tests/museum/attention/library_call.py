"""torch's own attention under another name; where a row sees no key, it is told so."""

import torch


def run(q, k, v, scale, causal):
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2]) if causal else None
    made = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
    return made if mask is None else made * mask.any(-1, keepdim=True)
