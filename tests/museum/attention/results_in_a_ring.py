"""Calls of one shape return twelve kept buffers in turn: whoever keeps thirteen results has the last twice."""

import itertools

import torch
from museum.attention import good_python

RINGS = {}


def run(q, k, v, scale, causal):
    if q.shape not in RINGS:
        RINGS[q.shape] = itertools.cycle([torch.empty(q.shape) for _ in range(12)])
    return next(RINGS[q.shape]).copy_(good_python.run(q, k, v, scale, causal))
