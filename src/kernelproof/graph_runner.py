"""A contender's calls on a GPU, timed by the slope between two CUDA graphs (`graph_slope`).

A CUDA graph of few calls and one of many are replayed behind a third that keeps the device busy while the host queues
them; the slope between the two is the time of a call: what every replay costs once cancels. Beside the slope, and never
subtracted from it: `event_pair` around single calls, `wall_slope` (the same graphs by the host's clock: an independent
witness), `eager` latency, and the `floor`: an empty kernel of the same grid, block and shared memory by the same two
methods.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof import cuda_driver, cupti, energy, loading
from kernelproof.arguments import ArgumentSets, clone, like
from kernelproof.contenders import FLOOR_VISITS, TRACED_CALLS, Function, Visit, allocating_call, several
from kernelproof.late_inputs import LateInputs
from kernelproof.moving_inputs import MOVED_CALLS, TOUCHED_CALLS_US, Draw, Touch
from kernelproof.results import outputs_of, poison
from kernelproof.torch_profiler import kernels_of

if TYPE_CHECKING:
    from kernelproof.results import Result

CALLS_LIMIT, DRAWN_CALLS_LIMIT = 2000, 100  # in one graph; to draw the values of a call takes several kernels
SHORT_SHARE = 4  # the long graph has this many times the calls of the short one
SINGLE_CALLS = 24  # event pairs, a process and case
WALL_PAIRS = 6
# Timed calls in the midst of which values become new, on a GPU: more in a row than a sample has.
ROW_US, ROW_REPLAYS = 60_000.0, 6
LATE_US = 50.0  # after so long inputs are right: a call that does not wait has begun by then
CALLS_BEFORE = 2  # own calls, captured in front of the one that is judged
PORTABLE_CLUSTER = 8  # blocks that every GPU with clusters takes

_on = loading.on_stream


class Replays:
    """Batches of replays of a graph on the current stream (energy.Queue)."""

    def __init__(self, torch: Any, graph: Any) -> None:
        self.graph = graph
        self.before, self.last = torch.cuda.Event(), torch.cuda.Event()

    def add(self, replays: int) -> None:
        """Queue a batch."""
        for _ in range(replays):
            self.graph.replay()
        self.before, self.last = self.last, self.before
        self.last.record()

    def wait(self) -> None:
        """Until the batches before the last are done."""
        self.before.synchronize()

    def at_work(self) -> bool:
        """Whether the last batch is not done."""
        return not self.last.query()


class GraphRunner:
    """GPU: the slope between two CUDA graphs."""

    method = "graph_slope"

    def __init__(self, function: Function, sets: ArgumentSets, sample_ms: float, budget_s: float) -> None:
        import torch

        self.torch = torch
        self.name = function.name
        self.function = function
        self.sets = sets
        self.checked = range(len(sets))
        self.sample_ms = sample_ms
        wanted = len(sets) if function.passing == "destination" else 0
        self.outputs = [tuple(map(like, sets.outputs(index))) for index in range(wanted)]
        self.kept: list[Any] = [None] * len(sets)
        # The graph of calls on a row that moves, how many they are, what the last gives.
        self.moving: tuple[Any, int, Any]
        self.touched_result: Any = None
        self.budget_s = budget_s
        self.visit_s = 0.0
        self.too_slow = False
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]

    def call(self, index: int = 0) -> Any:
        """One call into this contender's own memory (destination), or one that returns its result."""
        if self.function.passing == "return":
            result, count = self.function.call(*self.sets.inputs(index)), len(self.sets.outputs_at)
            return several(result if count > 1 else (result,), count)
        self.function.call(*self.sets.with_outputs(index, self.outputs[index]))
        return self.outputs[index]

    def prepare(self) -> None:
        """Warm up, find out how long a call takes, capture both graphs, replay each once."""
        stream = self.torch.cuda.Stream()
        stream.wait_stream(self.torch.cuda.current_stream())
        with _on(self.torch.cuda.stream(stream)):  # workspaces and plans are set up here, not while a graph is captured
            for _ in range(3):
                self.call()
        self.torch.cuda.synchronize()
        sets = len(self.sets)
        probe, calls = self.capture(sets), sets
        self.replay_us(probe)
        each_us = self.replay_us(probe) / calls
        if each_us * calls < 200:  # what a replay costs once is a good part of that
            calls = sets * math.ceil(20 / sets)
            probe = self.capture(calls)
            self.replay_us(probe)
            each_us = self.replay_us(probe) / calls
        self.visit_s = each_us * 4 * sets / 1e6  # the least: twice a short graph of one rotation, and a long one of two
        self.too_slow = self.visit_s > self.budget_s
        if self.too_slow:
            self.long, self._first = probe, Visit(calls, each_us)
            return
        wanted = min(CALLS_LIMIT, math.ceil(1000 * self.sample_ms / each_us))
        self.short_calls = sets * max(1, math.ceil(wanted / SHORT_SHARE / sets))
        self.long_calls = self.short_calls + sets * max(1, math.ceil((wanted - self.short_calls) / sets))
        self.short = probe if self.short_calls == calls else self.capture(self.short_calls)
        self.long = self.capture(self.long_calls)
        self.replay_us(self.short)
        self.each_us = self.replay_us(self.long) / self.long_calls
        self.visit_s = self.each_us * (2 * self.short_calls + self.long_calls) / 1e6

    def capture(self, calls: int) -> Any:
        """A graph of so many calls, in the order of the rotation."""
        self.kept = [None] * len(self.sets)
        turn = itertools.cycle(range(len(self.sets)))

        def call() -> None:
            index = next(turn)
            self.kept[index] = self.call(index)

        return self.capture_calls(call, calls)

    def capture_calls(self, call: Callable[[], None], calls: int) -> Any:
        """A graph of so many calls of this contender. Raises what the capture raises, as the outcome `not_captured`."""
        try:
            return self.capture_other(call, calls)
        except Exception as error:
            error.outcome = "not_captured"  # type: ignore[attr-defined]
            raise

    def replay_us(self, graph: Any) -> float:
        start, end, _ = self.events
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1000

    def visit(self) -> Visit:
        """The short graph to keep the device busy, then short and long between events, queued before one is done."""
        return _slope(self.events, self.short, self.long, self.short_calls, self.long_calls)

    def first_call(self) -> Visit:
        return self._first

    def beside(self, launches: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Visit]]]:
        yield "wall_slope", [self.wall() for _ in range(WALL_PAIRS)]
        eager = self.eager()
        yield "eager", eager
        # The device must stay busy until the host has queued the call, or the pair measures the host.
        busy = max(1, math.ceil(1.5 * min(visit.time_us for visit in eager) / (self.each_us * self.short_calls)))
        yield "event_pair", [self.pair(self.call, busy) for _ in range(SINGLE_CALLS)]
        if launches:
            floor = EmptyKernels(launches)
            short, long = (self.capture_other(floor.launch, count) for count in (50, 250))
            yield "floor", [_slope(self.events, short, long, 50, 250) for _ in range(FLOOR_VISITS + 1)][1:]
            yield "floor_event_pair", [self.pair(floor.launch, busy) for _ in range(SINGLE_CALLS)]

    def capture_other(self, launch: Callable[[], None], calls: int) -> Any:
        graph = self.torch.cuda.CUDAGraph()
        with _on(self.torch.cuda.graph(graph, capture_error_mode="thread_local")):
            for _ in range(calls):
                launch()
        return graph

    def wall(self) -> Visit:
        """Both graphs by the host's clock, from an idle device to an idle device."""
        times_us = []
        for graph in (self.short, self.long):
            self.torch.cuda.synchronize()
            start = time.perf_counter_ns()
            graph.replay()
            self.torch.cuda.synchronize()
            times_us.append((time.perf_counter_ns() - start) / 1000)
        return _visit_of_slope(self.short_calls, self.long_calls, times_us[0], times_us[1])

    def eager(self) -> list[Visit]:
        """What a caller without a graph waits for: calls in a row, output allocated in each, by the host's clock."""
        call = allocating_call(self.function.call, self.function.passing, self.sets, 0)
        count = max(4, min(100, math.ceil(2000 / self.each_us)))
        visits = []
        for _ in range(4):
            self.torch.cuda.synchronize()
            start = time.perf_counter_ns()
            for _ in range(count):
                call()
            self.torch.cuda.synchronize()
            visits.append(Visit(count, (time.perf_counter_ns() - start) / 1000 / count))
        return visits[1:]

    def pair(self, launch: Callable[[], Any], busy: int) -> Visit:
        """One call between two events, behind work that keeps the device busy meanwhile."""
        start, end, _ = self.events
        for _ in range(busy):
            self.short.replay()
        start.record()
        launch()
        end.record()
        end.synchronize()
        return Visit(1, float(start.elapsed_time(end)) * 1000)

    def energy(self, case: str, mode: str) -> dict[str, Any]:
        """The board's energy over replays of the long graph; where there is no figure, the reason."""
        from kernelproof import gpu

        index = gpu.index_of_first_visible(os.environ.get("CUDA_VISIBLE_DEVICES"))

        replay_s = self.each_us * self.long_calls / 1e6
        try:
            spent = energy.per_call(
                Replays(self.torch, self.long), self.long_calls, replay_s, lambda: gpu.energy_mj(index)
            )
        except energy.NoEnergy as why:
            return {"contender": self.name, "case": case, "mode": mode, "reason": str(why)}
        finally:
            self.torch.cuda.synchronize()
        return energy.as_row(spent, self.name, case, mode)

    def trace(self) -> tuple[str, list[dict[str, Any]]]:
        """Who saw it, and the kernels (copies and fills too) that one call runs, from a graph of a few calls."""
        calls = TRACED_CALLS * len(self.sets)
        graph = self.capture(calls)
        graph.replay()
        source, kernels = self.observed(graph.replay, calls)
        if not kernels:
            raise RuntimeError("the profiler saw no kernel")
        return source, kernels

    def observed(self, action: Callable[[], Any], calls: int) -> tuple[str, list[dict[str, Any]]]:
        """Who looked, and what the device did for each of so many calls that an action makes, until it was idle."""

        def work() -> None:
            action()
            self.torch.cuda.synchronize()

        self.torch.cuda.synchronize()
        if installed := cupti.version():
            try:
                if kernels := cupti.per_call(cupti.traced(work), calls):
                    return f"cupti-python {installed}", kernels
                why = "it saw no kernel"
            except Exception as error:  # whatever the binding raises; torch.profiler has a CUPTI of its own
                why = f"{type(error).__name__}: {error}"[:200]
        else:
            why = "cupti-python is not installed"
        return f"torch.profiler ({why})", kernels_of(self.profiled(work), calls)

    def profiled(self, work: Callable[[], None]) -> list[dict[str, Any]]:
        """The events of torch's profiler, which has a CUPTI of its own."""
        activities = [self.torch.profiler.ProfilerActivity.CUDA]
        with self.torch.profiler.profile(activities=activities) as profiler:
            work()
        with tempfile.TemporaryDirectory() as folder, loading.unlimited_files():
            path = Path(folder, "trace.json")
            profiler.export_chrome_trace(str(path))
            events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
        return events

    def repeat(self, times: int) -> float:
        """The very graph that was timed, so many times, until the whole device is idle; µs by events."""
        start, end, _ = self.events
        start.record()
        for _ in range(times):
            self.long.replay()
        end.record()
        self.torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1000

    def touched(self, touch: Touch | Draw, by: int, *, alone: bool = False) -> tuple[Callable[[int], object], int]:
        """A graph of calls on values that move by `by` before each: a function that replays it, and its calls.

        `alone`: what moves the values, without the calls.
        """
        most = DRAWN_CALLS_LIMIT if isinstance(touch, Draw) else CALLS_LIMIT
        count = max(MOVED_CALLS, min(most, math.ceil(TOUCHED_CALLS_US / self.each_us)))

        def step() -> None:
            index = touch.step(by)
            if not alone:
                self.touched_result = self.call(index)

        step()
        self.torch.cuda.synchronize()
        touch.take(count)
        graph = self.capture_calls(step, count)

        def run(times: int) -> None:
            touch.begin()
            for _ in range(times):
                graph.replay()
            self.torch.cuda.synchronize()

        if by and isinstance(touch, Touch):
            self.moving = graph, count, self.touched_result
        return run, count

    def moved(self, touch: Touch | Draw) -> list[Result]:
        """The graph of calls on values that move; what the last one gave, of the values that the case names."""
        if isinstance(touch, Draw):

            def step() -> None:
                self.touched_result = self.call(touch.step(1))

            touch.before(MOVED_CALLS)
            graph, result = self.capture_calls(step, MOVED_CALLS), self.touched_result
        else:
            graph, count, result = self.moving
            touch.before(count)
        graph.replay()
        self.torch.cuda.synchronize()
        return [result] if isinstance(touch, Draw) else [tuple(map(clone, result)), self.amid(touch)]

    def ahead(self, touch: Touch) -> list[Result]:
        """The last of some captured calls, on the values that the case names: it may begin before they are right.

        Before it come calls as timed ones do, so that who waits at the start of a graph only is seen too.
        """
        touch.before(1)
        touch.finish()
        late = LateInputs(value for value in self.sets.inputs(0) if isinstance(value, self.torch.Tensor))
        results: list[Result] = []

        def calls() -> None:
            for _ in range(CALLS_BEFORE):
                self.call()
            late.scramble()
            late.scramble(LATE_US, ahead=True)
            results.append(self.call())

        graph = self.capture_calls(calls, 1)
        graph.replay()
        self.torch.cuda.synchronize()
        return results

    def amid(self, touch: Touch) -> Result:
        """The last result of a long row of timed calls, in the midst of which the values become what the case names.

        Nothing of ours runs between two of them; the last graph alone waits for the values, which are there by then. So
        who computes nothing late in a row cannot tell that it must.
        """
        touch.before(1)
        main, side = self.torch.cuda.current_stream(), self.torch.cuda.Stream()
        half, there = self.torch.cuda.Event(), self.torch.cuda.Event()
        replays = max(ROW_REPLAYS, math.ceil(ROW_US / (self.each_us * self.long_calls)))
        self.torch.cuda.synchronize()
        for number in range(replays):
            if number == replays // 2:
                half.record(main)
                side.wait_event(half)
                with self.torch.cuda.stream(side):
                    touch.finish()
                there.record(side)
            if number == replays - 1:
                main.wait_event(there)
            self.long.replay()
        self.torch.cuda.synchronize()
        result: Result = self.kept[0]
        return result

    def results(self) -> list[Result]:
        self.torch.cuda.synchronize()
        return list(self.kept)

    def poison(self) -> None:
        poison([output for result in self.kept if result is not None for output in outputs_of(result)])

    def again(self) -> None:
        """The very graph that was timed, once more."""
        self.long.replay()
        self.torch.cuda.synchronize()


def _slope(events: Sequence[Any], short: Any, long: Any, short_calls: int, long_calls: int) -> Visit:
    begin, middle, end = events
    short.replay()
    begin.record()
    short.replay()
    middle.record()
    long.replay()
    end.record()
    end.synchronize()
    short_us, long_us = (1000 * float(a.elapsed_time(b)) for a, b in ((begin, middle), (middle, end)))
    return _visit_of_slope(short_calls, long_calls, short_us, long_us)


def _visit_of_slope(short_calls: int, long_calls: int, short_us: float, long_us: float) -> Visit:
    each_us = (long_us - short_us) / (long_calls - short_calls)
    return Visit(long_calls, each_us, short_calls, round(short_us, 3), round(long_us, 3))


# --- the floor --------------------------------------------------------------------------------------------------------


class EmptyKernels:
    """The floor of a call: an empty kernel for each of its kernels, of the same grid, block, cluster and shared memory.

    Dynamic stands in for static shared memory. What copies and fills cost is not in it.
    """

    def __init__(self, launches: Sequence[Mapping[str, Any]]) -> None:
        self.function = cuda_driver.empty_kernel()
        self.launches: list[cuda_driver.LaunchConfig] = []
        for launch in launches:
            if launch["grid"] and launch["block"]:
                self.launches += [_like_launch(launch) for _ in range(max(1, round(launch["count"])))]
        most = max((launch.sharedMemBytes for launch in self.launches), default=0)
        if most > 48 << 10:  # above this a kernel without static shared memory must ask
            cuda_driver.driver().cuFuncSetAttribute(self.function, cuda_driver.FUNCTION_DYNAMIC_SHARED_BYTES, most)
        if any(math.prod(launch.get("cluster") or [1]) > PORTABLE_CLUSTER for launch in launches):
            cuda_driver.driver().cuFuncSetAttribute(self.function, cuda_driver.FUNCTION_NONPORTABLE_CLUSTER, 1)

    def launch(self) -> None:
        """One call's worth of empty kernels on the current stream."""
        import torch

        stream = torch.cuda.current_stream().cuda_stream
        for config in self.launches:
            config.hStream = stream
            cuda_driver.driver().cuLaunchKernelEx(ctypes.byref(config), self.function, None, None)


def _like_launch(launch: Mapping[str, Any]) -> cuda_driver.LaunchConfig:
    config = cuda_driver.LaunchConfig(
        grid=tuple(launch["grid"]), block=tuple(launch["block"]), sharedMemBytes=launch["shared_bytes"]
    )
    if attributes := cuda_driver.launch_attributes(cluster=tuple(launch.get("cluster", ()))):
        config.attrs = (cuda_driver.LaunchAttribute * len(attributes))(*attributes)
        config.numAttrs = len(attributes)
    return config
