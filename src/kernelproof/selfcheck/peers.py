"""What other timers say of two kernels: `python -m kernelproof.selfcheck.peers '{...}'`, a process of its own.

Each tool is asked for the time of two kernels in turn, again and again; the spread of the ratio from one time to the
next says how often it must be asked for an interval of a given width. Prints JSON.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernelproof import loading

Calls = Sequence[Callable[[], Any]]


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
    print(json.dumps({name: entry for tool in TOOLS for name, entry in measured(tool, calls, task["repeats"]).items()}))


def measured(tool: str, calls: Calls, repeats: int) -> dict[str, dict[str, Any]]:
    """By each of the tool's measurements: times in µs of both, repeat by repeat, and seconds a repeat of both.

    Or the reason why there are none.
    """
    try:
        return TOOLS[tool](calls, repeats)
    except Exception as error:  # whatever a tool that is not ours does
        return {tool: {"reason": f"{type(error).__name__}: {error}"[:300]}}


def _repeated(timer: Callable[[Any], Any], calls: Calls, repeats: int) -> dict[str, Any]:
    """A timer that gives milliseconds, asked for each call in turn."""
    for call in calls:
        timer(call)  # compiles and warms up what it wants to
    started = time.perf_counter()
    times_us = [[1000 * float(timer(call)) for call in calls] for _ in range(repeats)]
    seconds = (time.perf_counter() - started) / repeats
    return {"version": importlib.metadata.version("triton"), "times_us": times_us, "seconds": seconds}


def _do_bench(calls: Calls, repeats: int) -> dict[str, dict[str, Any]]:
    testing = importlib.import_module("triton.testing")
    return {"do_bench": _repeated(lambda call: testing.do_bench(call, return_mode="median"), calls, repeats)}


def _do_bench_cudagraph(calls: Calls, repeats: int) -> dict[str, dict[str, Any]]:
    testing = importlib.import_module("triton.testing")
    tvm_ffi, torch = importlib.import_module("tvm_ffi"), importlib.import_module("torch")

    def timer(call: Any) -> Any:
        def on_the_captured_stream() -> None:
            with tvm_ffi.use_torch_stream():  # TVM-FFI is not told of a capture by another tool
                call()

        with torch.cuda.stream(torch.cuda.Stream()):  # it captures on no default stream
            return testing.do_bench_cudagraph(on_the_captured_stream, return_mode="median")

    return {"do_bench_cudagraph": _repeated(timer, calls, repeats)}


def _nvbench(calls: Calls, repeats: int) -> dict[str, dict[str, Any]]:
    """nvbench as it is by default: single calls until their noise is small or its limit is reached, then batches.

    Its Python interface allows one run a process, so repeats are an axis of that run.
    """
    nvbench, results = importlib.import_module("cuda.bench"), importlib.import_module("cuda.bench.results")
    tvm_ffi, torch = importlib.import_module("tvm_ffi"), importlib.import_module("torch")

    def chain(state: Any) -> None:
        call = calls[state.get_int64("kernel")]
        with torch.cuda.stream(torch.cuda.ExternalStream(state.get_stream().addressof())), tvm_ffi.use_torch_stream():
            state.exec(lambda launch: call())

    repeats = min(repeats, NVBENCH_REPEATS)
    axis = nvbench.register(chain).add_int64_axis("repeat", list(range(repeats)))
    axis.add_int64_axis("kernel", list(range(len(calls))))
    with tempfile.TemporaryDirectory(prefix="kernelproof-") as folder:
        output = str(Path(folder, "nvbench.json"))
        started = time.perf_counter()
        nvbench.run_all_benchmarks(["nvbench", "--quiet", "--json", output])
        seconds = (time.perf_counter() - started) / repeats
        states = results.BenchmarkResult.from_json(output)["chain"].states
    found = {}
    for name, tag in NVBENCH_MEANS.items():
        seconds_of = {
            (int(state.point["repeat"]), int(state.point["kernel"])): float(state.summaries[tag].value)
            for state in states
        }
        times_us = [[1e6 * seconds_of[repeat, kernel] for kernel in range(len(calls))] for repeat in range(repeats)]
        found[name] = {"version": nvbench.__version__, "times_us": times_us, "seconds": seconds}
    return found


NVBENCH_REPEATS = 4  # at 15 s a kernel, its limit where noise does not fall below what it asks for
NVBENCH_MEANS = {"nvbench": "nv/cold/time/gpu/mean", "nvbench_batch": "nv/batch/time/gpu/mean"}
TOOLS: dict[str, Callable[[Calls, int], dict[str, dict[str, Any]]]] = {
    "do_bench": _do_bench,
    "do_bench_cudagraph": _do_bench_cudagraph,
    "nvbench": _nvbench,
}


if __name__ == "__main__":
    main()
