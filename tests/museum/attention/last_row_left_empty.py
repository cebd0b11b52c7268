"""The last query row of each head is left as `torch.empty` gave it, in memory of the candidate's own."""

import torch
from museum.attention import good_python
from torch import Tensor


def run(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """Attention but for the last row."""
    result = torch.empty(q.shape)
    rows = q.shape[2] - (q.shape[2] > 1)
    result[:, :, :rows] = good_python.run(q, k, v, scale, causal)[:, :, :rows]
    return result
