"""What other timers say of two kernels: `python -m kernelproof.selfcheck.peers '{...}'`, a process of its own.

Each tool is asked in turn for the time of two kernels, again and again; the spread of the ratio from one time to the
next says how often it must be asked for an interval of a given width. Prints JSON.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelproof import loading


def main() -> None:
    """Read the task from the command line: `candidates` (two), `arguments` (numbers), `repeats`."""
    import torch

    task = json.loads(sys.argv[1])
    x, y = (torch.ones(64, device=task["candidates"][0]["device"]) for _ in range(2))
    calls: list[Callable[[], Any]] = []
    for fields in task["candidates"]:
        candidate = loading.Candidate(**fields)
        function = loading.load(candidate, Path(str(candidate.library)), Path(candidate.root))
        calls.append(functools.partial(function, x, y, *task["arguments"]))
    print(json.dumps({name: measured(name, calls, task["repeats"]) for name in TOOLS}))


def measured(name: str, calls: list[Callable[[], Any]], repeats: int) -> dict[str, Any]:
    """Times in µs of both, repeat by repeat, and seconds a repeat of both; or the reason why there are none."""
    try:
        timer, version = TOOLS[name]()
        for call in calls:
            timer(call)  # compiles and warms up what it wants to
        started = time.perf_counter()
        times_us = [[1000 * float(timer(call)) for call in calls] for _ in range(repeats)]
        return {"version": version, "times_us": times_us, "seconds": (time.perf_counter() - started) / repeats}
    except Exception as error:  # whatever a tool that is not ours does
        return {"reason": f"{type(error).__name__}: {error}"[:300]}


def _do_bench() -> tuple[Callable[[Any], Any], str]:
    testing = importlib.import_module("triton.testing")
    return lambda call: testing.do_bench(call, return_mode="median"), importlib.metadata.version("triton")


def _do_bench_cudagraph() -> tuple[Callable[[Any], Any], str]:
    testing = importlib.import_module("triton.testing")
    tvm_ffi, torch = importlib.import_module("tvm_ffi"), importlib.import_module("torch")

    def timer(call: Any) -> Any:
        def on_the_captured_stream() -> None:
            with tvm_ffi.use_torch_stream():  # TVM-FFI is not told of a capture by another tool
                call()

        with torch.cuda.stream(torch.cuda.Stream()):  # it captures on no default stream
            return testing.do_bench_cudagraph(on_the_captured_stream, return_mode="median")

    return timer, importlib.metadata.version("triton")


def _nvbench() -> tuple[Callable[[Any], Any], str]:
    importlib.import_module("cuda.bench")
    raise RuntimeError("cuda-bench is installed; a comparison with it is not written")


TOOLS = {"do_bench": _do_bench, "do_bench_cudagraph": _do_bench_cudagraph, "nvbench": _nvbench}


if __name__ == "__main__":
    main()
