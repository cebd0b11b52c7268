"""What is read from the events of torch's profiler, as they are written."""

from types import SimpleNamespace
from typing import Any

from kernelproof import torch_profiler


def test_kernels_are_read_from_a_trace() -> None:
    def kernel(name: str, start: float, duration: float, grid: list[int]) -> dict[str, Any]:
        details = {"grid": grid, "block": [128, 1, 1], "shared memory": 1024}
        return {"cat": "kernel", "name": name, "ts": start, "dur": duration, "args": details}

    events = [
        {"cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 0, "dur": 3},
        kernel("combine", 12.0, 1.0, [4, 1, 1]),
        kernel("split", 10.0, 2.0, [8, 1, 1]),
        kernel("split", 20.0, 4.0, [8, 1, 1]),
        kernel("combine", 25.0, 1.0, [4, 1, 1]),
        {"cat": "gpu_memset", "name": "Memset (Device)", "ts": 9.0, "dur": 0.5, "args": {"bytes": 4}},
    ]
    found = torch_profiler.kernels_of(events, 2)
    assert [(k["name"], k["count"], k["duration_us"], k["grid"]) for k in found] == [
        ("Memset (Device)", 0.5, 0.25, []),
        ("split", 1.0, 3.0, [8, 1, 1]),
        ("combine", 1.0, 1.0, [4, 1, 1]),
    ]


def operator(name: str, took_us: float, *below: Any) -> Any:
    """What torch's profiler tells of an operator and of those that it calls."""
    took = SimpleNamespace(elapsed_us=lambda: took_us)
    return SimpleNamespace(name=name, cpu_parent=None, cpu_children=below, time_range=took)


def test_a_call_that_was_interrupted_is_not_what_an_operator_takes() -> None:
    """Of four calls, two multiplications and a sum each, one multiplication stood still for 5 ms."""
    calls = [(2.0, 3.0, 20.0), (2.0, 5000.0, 20.0), (2.0, 4.0, 21.0), (2.0, 3.0, 22.0)]
    names = ("aten::mul", "aten::mul", "aten::sum")
    events = [operator(name, us) for call in calls for name, us in zip(names, call, strict=True)]
    found = {o["name"]: (o["count"], o["duration_us"]) for o in torch_profiler.operators_of(events, 4)}
    assert found == {"aten::mul": (2.0, 5.5), "aten::sum": (1.0, 20.5)}
    # Not every call has it: what it takes is spread over all of them.
    assert torch_profiler.operators_of(events[:4], 4)[1]["duration_us"] == 5.0


def test_an_operator_that_was_interrupted_inside_another_is_not_that_other() -> None:
    """Else a mean that stood still for 5 ms inside a norm is what the norm is, and every other mean a norm."""

    def norm(mean_us: float) -> Any:
        inside = operator("aten::_fused_norm", mean_us + 20.0, operator("aten::mean", mean_us))
        return operator("aten::norm", inside.time_range.elapsed_us() + 2.0, inside)

    (found,) = torch_profiler.operators_of([norm(5.0), norm(5000.0), norm(4.0), norm(6.0)], 4)
    assert found["inside"] == ["aten::_fused_norm"]


def test_who_multiplies_twice_is_no_multiplication() -> None:
    """Attention by two products of matrices, which take nine tenths of it, is a composition."""
    parts = [operator("aten::bmm", 45.0), operator("aten::softmax", 10.0), operator("aten::bmm", 45.0)]
    (found,) = torch_profiler.operators_of([operator("aten::attention", 100.0, *parts)], 1)
    assert found["inside"] == []
