"""K and V are gone through by their strides, but for the last: features of a row are taken to lie side by side."""

from museum.attention import good_python


def run(q, k, v, scale, causal):
    k, v = (t.as_strided(t.shape, (*t.stride()[:-1], 1)) for t in (k, v))
    return good_python.run(q, k, v, scale, causal)
