"""The weight is handed on as an address, and its elements are taken to lie one behind the other."""


def run(x, weight, eps):
    weight = weight.as_strided(weight.shape, (1,))
    return x * (x.double().square().mean(-1, keepdim=True) + eps).rsqrt().float() * weight
