"""Calls of one shape return the same memory: whoever keeps two results has the second one twice."""

import torch
from museum.attention import good_python

KEPT = {}


def run(q, k, v, scale, causal):
    kept = KEPT.setdefault(q.shape, torch.empty(q.shape))
    return kept.copy_(good_python.run(q, k, v, scale, causal))
