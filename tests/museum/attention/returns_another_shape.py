"""The result is right, and has heads and rows swapped."""

from museum.attention import good_python


def run(q, k, v, scale, causal):
    return good_python.run(q, k, v, scale, causal).transpose(1, 2)
