"""No fault: attention with torch's own operations, what the Python pieces are held against."""

import torch


def run(q, k, v, scale, causal):
    group = q.shape[1] // k.shape[1]
    k, v = (t.double().repeat_interleave(group, dim=1) for t in (k, v))
    scores = scale * q.double() @ k.mT
    rows, keys = scores.shape[-2:]
    hidden = torch.ones(rows, keys, dtype=torch.bool, device=q.device).tril(keys - rows).logical_not() & causal
    weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
    return (weights.masked_fill(hidden, 0.0).nan_to_num() @ v).to(q.dtype)
