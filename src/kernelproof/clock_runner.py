"""A contender's calls on a CPU, timed by the monotonic clock around a batch (`cpu_clock`)."""

from __future__ import annotations

import itertools
import math
import mmap
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelproof import loading, processes, replies
from kernelproof.arguments import ArgumentSets, clone, like
from kernelproof.contenders import FLOOR_VISITS, TRACED_CALLS, Function, Visit, allocating_call
from kernelproof.moving_inputs import MOVED_CALLS, TOUCHED_CALLS_US, Draw, Touch
from kernelproof.results import not_plain, outputs_of, poison
from kernelproof.torch_profiler import all_threads, operators_of

if TYPE_CHECKING:
    from kernelproof.results import Result

# On a CPU: whose first call takes less than so long is called again before it is too slow, for a first call makes
# threads, or plans; how long one is takes the least of so many calls, or of those that fit into so long.
SECOND_CALL_S, RESTING_CALLS, RESTING_US = 5.0, 8, 40_000
# Of a row, what changes behind half as many calls again as are timed in a process: the largest first, for it shows the
# most, and of results that differ from the first one alone is handed over. 0: one element.
LATE_SHARES, LONGER_ROW = (0.5, 0.25, 0.25, 0.0, 0.0), 1.5
AMID_ROWS, BETWEEN_WRITES = 3, 50  # rows; calls, at most
AGAIN_CALLS, AGAIN_BYTES, AGAIN_S = 16, 8 << 20, 0.05  # at most, beside one for each set
ABSENT = "a part of its result is not in memory when its call is over, but made when somebody reads it"


class ClockRunner:
    """CPU: batches by the monotonic clock. The output is allocated in each call, as a returning baseline does."""

    method = "cpu_clock"

    def __init__(self, function: Function, sets: ArgumentSets, sample_ms: float, budget_s: float) -> None:
        self.name = function.name
        self.function = function
        self.sets = sets
        self.sample_ms = sample_ms
        self.budget_s = budget_s
        self.calls = [allocating_call(function.call, function.passing, sets, index) for index in range(len(sets))]
        self.nothing = [allocating_call(_nothing, function.passing, sets, index) for index in range(len(sets))]
        self.turn = itertools.cycle(range(len(sets)))
        self.checked = range(min(4, len(sets)))
        self.batch = 1
        self.visit_s = 0.0
        self.too_slow = False
        self.last: list[Result] = []

    def prepare(self) -> None:
        """Call until a batch lasts long enough. The first call may set things up and is a sample only if it is all."""
        first_us = self.timed(self.calls, 1)
        if self.budget_s < first_us / 1e6 < SECOND_CALL_S:
            first_us = min(first_us, self.timed(self.calls, 1))
        self.visit_s = first_us / 1e6
        self.too_slow = self.visit_s > self.budget_s
        self._first = Visit(1, first_us)
        if self.too_slow:
            return
        # Threads that another contender left spinning take milliseconds off these calls until they rest.
        calls = min(RESTING_CALLS, math.ceil(RESTING_US / max(1.0, first_us)))  # a clock that was patched may say -1
        each_us = min(self.timed(self.calls, 1) for _ in range(calls))
        while each_us * self.batch < 250 * self.sample_ms and self.batch < 1 << 20:
            self.batch *= 4
            # Of two, for another program may take the core during one: a call would seem to fill a whole sample.
            each_us = min(self.timed(self.calls, self.batch) for _ in range(2))
        self.batch = max(1, math.ceil(1000 * self.sample_ms / each_us))
        self.warm = each_us < 20_000  # another OpenMP pool spins for some ms after its last call: let it come to rest
        self.visit_s = each_us * (self.batch + self.warm) / 1e6

    def visit(self) -> Visit:
        processes.keep_freed_memory()  # the same for everybody, whatever the contender before asked of malloc
        if self.warm:
            self.timed(self.calls, 1)
        time_us = self.timed(self.calls, self.batch)
        for output in itertools.chain.from_iterable(map(outputs_of, self.last)):
            if not loading.is_there(output):
                error = RuntimeError(ABSENT)
                error.outcome = replies.ESCAPE  # type: ignore[attr-defined]
                raise error
        return Visit(self.batch, time_us)

    def first_call(self) -> Visit:
        return self._first

    def timed(self, calls: Sequence[Callable[[], Any]], count: int) -> float:
        """µs per call of a batch that goes on where the last one ended in the rotation."""
        batch = [calls[next(self.turn)] for _ in range(count)]
        result, plain, other = None, tuple if len(self.sets.outputs_at) > 1 else type(self.sets.outputs()[0]), None
        start = time.perf_counter_ns()
        for call in batch:
            result = call()
            if type(result) is not plain:  # of every call: one that knows which is the last can make that one honest
                other = type(result)
        elapsed_ns = time.perf_counter_ns() - start
        if calls is self.calls and other is not None:
            raise not_plain(other)
        if result is not None:
            self.last = [result]
        return elapsed_ns / 1000 / count

    def beside(self, launches: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Visit]]]:
        """The floor: the same loop and allocation around a call that does nothing."""
        last, count = self.last, 200
        yield "floor", [Visit(count, self.timed(self.nothing, count)) for _ in range(FLOOR_VISITS)]
        self.last = last

    def trace(self) -> tuple[str, list[dict[str, Any]]]:
        """Who saw it, and torch's operators that one call runs; what a library does by itself has no names there.

        By what torch.profiler.profile does its work with: that imports TorchInductor first, which takes seconds.
        """
        from torch.autograd.profiler import profile

        count = 1 if self.too_slow else TRACED_CALLS
        with profile(use_kineto=True, **all_threads()) as profiler:
            self.timed(self.calls, count)
        return "torch.profiler", operators_of(profiler.function_events, count)

    def repeat(self, times: int) -> float:
        """The batch that is a sample, so many times; µs by the clock that samples are taken with."""
        return sum(self.timed(self.calls, self.batch) * self.batch for _ in range(times))

    def touched(self, touch: Touch | Draw, by: int, *, alone: bool = False) -> tuple[Callable[[int], object], int]:
        """Calls on values that move by `by` before each: a function that makes its batch n times, and the batch.

        Every page of a result is read, for it could be computed by whoever reads it first (mprotect and a handler).
        `alone`: what moves the values and reads, without the calls.
        """
        count = max(1, math.ceil(TOUCHED_CALLS_US / (1e6 * self.visit_s / (self.batch + self.warm))))
        written = self.calls[0]()

        def run(times: int) -> None:
            touch.begin()
            touch.take(count)
            for _ in range(times * count):
                index = touch.step(by)
                _read_pages(written if alone else self.calls[index]())

        return run, count

    def still(self, touch: Touch) -> tuple[Callable[[int], object], int]:
        """The batch that is a sample, on values that no call has seen before it: a function that makes it n times."""

        def run(times: int) -> None:
            touch.begin()
            for _ in range(times):
                self.timed(self.calls, self.batch)

        return run, self.batch

    def moved(self, touch: Touch | Draw) -> list[Result]:
        """Calls in a row on values that move; what the last one gave, of the values that the case names.

        They follow as many as a sample may have, in memory that still holds a result: who computes nothing in a long
        row of calls, or but for the one that ends a sample, does so here too, where nobody can say which is the last.
        """
        touch.before(MOVED_CALLS)
        self.timed(self.calls, random.randint(1, self.batch))
        for _ in range(MOVED_CALLS):
            self.last = [self.calls[touch.step(1)]()]
        return self.last if isinstance(touch, Draw) else [*self.last, *self.late(touch), *self.amid(touch)]

    def ahead(self, touch: Touch) -> list[Result]:
        """Nothing: no call on a CPU begins before it is made."""
        return []

    def late(self, touch: Touch) -> Iterator[Result]:
        """What a call gives behind more than are timed in one process, since when a part of a row changed.

        Who has seen the same values often enough to look at some of them only misses such a part.
        """
        row_s, each_us = LONGER_ROW * self.budget_s, max(1.0, 1e6 * self.visit_s / (self.batch + self.warm))
        for share in LATE_SHARES:
            touch.begin()
            self.calls[0]()  # what is remembered is not what the last of these calls is to give
            touch.all_but(share)
            end_s = time.monotonic() + 2 * row_s  # who remembered takes longer now than when it was timed
            for _ in range(max(1, math.ceil(1e6 * row_s / each_us) // self.batch)):
                self.timed(self.calls, self.batch)
                if time.monotonic() > end_s:
                    break
            touch.finish()
            yield tuple(map(clone, outputs_of(self.calls[0]())))

    def amid(self, touch: Touch) -> Iterator[Result]:
        """The last results of rows of calls as close behind each other as timed ones, amid which values change.

        Nothing but a copy of a row to where another was, a µs, lies between two of them: who leaves work out
        where calls come fast, over the result of an earlier one, does so here too. Few calls follow, since any other
        program may come between two.
        """
        call, writes = self.calls[0], touch.writes()
        for _ in range(AMID_ROWS):
            touch.begin()
            result, row = None, [call] * self.batch
            for write in writes:
                row += [write, *[call] * random.randint(1, min(self.batch, BETWEEN_WRITES))]
            for act in row:
                result = act()
            yield tuple(map(clone, outputs_of(result)))

    def energy(self, case: str, mode: str) -> dict[str, Any]:
        return {"contender": self.name, "case": case, "mode": mode, "reason": "no counter of a CPU's energy is read"}

    def results(self) -> list[Result]:
        return self.last

    def poison(self) -> None:
        """Fill memory that a returned output is likely to get with NaN, and free it; `again` sees to given outputs."""
        poison([like(layout) for _ in range(4) for layout in self.sets.outputs()])

    def again(self) -> None:
        """A call on each of the first sets; on a rotation of hundreds the rest would tell nothing new.

        Of short calls some more, for who leaves something unwritten now and then.
        """
        call, passing = self.function.call, self.function.passing
        calls = [allocating_call(call, passing, self.sets, index, poisoned=True) for index in self.checked]
        end_s, self.last = time.monotonic() + AGAIN_S, [call() for call in calls]
        size = sum(output.nbytes for output in outputs_of(self.last[0]))
        for call in itertools.cycle(calls):
            if len(self.last) * size > AGAIN_BYTES or len(self.last) >= AGAIN_CALLS or time.monotonic() > end_s:
                break
            self.last.append(call())


def _nothing(*_: Any) -> None:
    return None


def _read_pages(result: Result) -> None:
    """Read an element of every page that a result lies on."""
    for output in outputs_of(result):
        step = max(1, mmap.PAGESIZE // output.element_size())
        pages = math.ceil(loading.span_bytes(output) / (step * output.element_size()))
        output.as_strided((pages,), (step,)).clone()
