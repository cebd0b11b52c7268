"""The result overwrites Q on the GPU, and Q is what is returned."""

from museum.attention import good_python


def run(q, k, v, scale, causal):
    return q.copy_(good_python.run(q, k, v, scale, causal))
