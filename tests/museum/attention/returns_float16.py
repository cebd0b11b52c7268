"""The result is right, and of another data type."""

from museum.attention import good_python


def run(q, k, v, scale, causal):
    return good_python.run(q, k, v, scale, causal).half()
