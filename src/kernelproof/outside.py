"""A contender's calls, timed from outside its process by the supervisor's clocks: does its own account agree?

`bench` asks; a worker that holds the contender (holding.hold) makes the calls. What each look compares, and which
honest kernels set its limit, is told in docs/explanation/measurement.md.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelproof import replies

if TYPE_CHECKING:
    from kernelproof.supervisor import Worker

# From outside, by the supervisor's clock: so much at least, then so many times as much; the slope is a call's time.
SLOPE_US, LONGER = 5000.0, 3
REPLAYS = 1000
ROUNDS = 12  # at most: the first after which the clocks agree ends it
LONGEST_US = 160_000.0  # while they do not, what replays take is doubled up to this
# Who hides a thousandfold has replays of a third of a second: some of these tell as much as a dozen short ones.
ENOUGH_S = 5.0
AGREE_WITHIN = 1.1
APART_LIMIT = 1.25  # after the last round by more: what a contender says of its time is not so
WAIT_S = 60.0
# How long who should be at rest is looked at, how often in that, and how many times; cores that it may keep busy.
REST_S, REST_LOOKS, RESTS, RESTING = 0.1, 5, 20, 0.1
SETTLED = 3  # a difference of two kinds can hide what it looks for: so many looks before one may end it
BEHIND_LIMIT_CPU, BEHIND_GAP_CPU_US = 2.0, 5.0  # honest kernels: 0.84 to 1.1 times, on two idle cores
# On a CPU branches that depend on values are predicted where values come again: 11 µs instead of 42 for rows sorted.
PREDICTED_GAP_US, PREDICTED_LIMIT = 100.0, 10.0
BEHIND_GAP_US = 1.5  # from one kernel to the next: what a call behind another kernel may cost beyond that


class Look(NamedTuple):
    """What replays take, in µs: until the answer is there, by their process's own clock, beyond that, of processors."""

    outside_us: float
    own_us: float
    hidden_us: float
    processor_us: float


class Outside:
    """A contender that a worker holds (holding.hold), timed by the supervisor's clocks.

    calls: of one replay of each kind. The process says them; one that says too many makes its own calls look cheap, and
    one that does not make them hands over the outputs of none. room_bytes: for results, in the worker's folder. spins:
    its idle threads may spin meanwhile, on cores of their own.
    """

    def __init__(
        self,
        worker: Worker,
        name: str,
        calls: Mapping[str, int],
        device: str,
        room_bytes: int = 0,
        *,
        spins: bool = False,
    ) -> None:
        self.worker = worker
        self.name = name
        self.calls = {kind: max(1, int(count)) for kind, count in calls.items()}
        self.device = device
        self.room_bytes = room_bytes
        self.spins = spins
        self.least: dict[tuple[str, int], Look] = {}  # of replays of a kind, so many at a time
        self.unchanged_us = 0.0  # a CPU's call before any value changed, as `behind_touch_us` has it afterwards

    def works_on(self) -> float:
        """How many threads its processes keep at work long after a call, or waiting for a core; 0 where all rest."""
        self.look("timed", 1)
        at_work = 0.0
        for _ in range(RESTS):
            had_s, seen = self.worker.processor_time_s(), 0
            for _ in range(REST_LOOKS):
                time.sleep(REST_S / REST_LOOKS)
                seen += self.worker.threads_at_work()
            if not seen and self.worker.processor_time_s() - had_s < RESTING * REST_S:
                return 0.0
            at_work = seen / REST_LOOKS
        return max(at_work, RESTING)

    def clocks_apart(self) -> tuple[float, float, float]:
        """How many times as long calls take as their own process's clock says; both, in µs.

        Its clock runs over the very calls that ours does, so what other programs take falls on both, but not what
        passes before the answer is read.
        """
        seen_us, own_us = 0.0, 0.0
        for (slope,) in self.looks("timed"):
            seen_us, own_us = slope.own_us + slope.hidden_us, slope.own_us
            self.unchanged_us = self.cost_us(slope)
            if _agree(seen_us, own_us):
                break
        self.least.clear()
        if seen_us <= 0:
            return 1.0, seen_us, own_us
        return (seen_us / own_us if own_us > 0 else math.inf), seen_us, own_us

    def settled_us(self) -> float:
        """What a call takes after some looks, of a CPU."""
        *_, (slope,) = itertools.islice(self.looks("timed"), SETTLED + 1)
        return self.cost_us(slope)

    def cost_us(self, look: Look) -> float:
        """What a CPU's call takes: by our clock where threads spin for one another, else the processor time it had."""
        return max(0.0, look.outside_us if self.spins else look.processor_us)

    def beyond_us(self, look: Look, touch: Look) -> float:
        """What a CPU's call takes beyond what changes its values: by the clock that `cost_us` goes by."""
        return look.outside_us - touch.outside_us if self.spins else look.processor_us - touch.processor_us

    def values_apart(self) -> tuple[float, float, float]:
        """How many times as long calls on new values take as calls on those of the call before; both, in µs.

        Where a GPU works, by our clock; on a CPU by the processor time that the process had, which is what they cost
        whatever else runs. What cannot be told from nothing counts as equal.
        """
        new_us, same_us = 0.0, 0.0
        for slopes in self.looks("new", "same"):
            new_us, same_us = (look.processor_us if self.device == "cpu" else look.outside_us for look in slopes)
            if _agree(new_us, same_us):
                break
        return (new_us / same_us if new_us > 0 and same_us > 0 else 1.0), new_us, same_us

    def behind_touch_us(self, seen_us: float) -> tuple[float, float]:
        """What a call takes behind work of ours that may have changed its inputs and did not, and behind its own.

        In µs. On a GPU the second is what was seen before. On a CPU both are of the same looks, since programs that
        begin meanwhile would lengthen the first alone; by processor time, where no thread spins while another writes.
        """
        behind_us, own_us = 0.0, seen_us
        on_cpu = ["timed"] if self.device == "cpu" else []
        for number, (touched, touch, *timed) in enumerate(self.looks("own", "touch", *on_cpu)):
            behind_us = touched.outside_us - touch.outside_us
            if timed:
                own_us = self.cost_us(timed[0])
                behind_us = self.beyond_us(touched, touch)
            if number >= SETTLED and behind_us <= behind_limit_us(own_us, self.device):
                break
        return behind_us, own_us

    def unseen_apart(self) -> tuple[float, float]:
        """What a call of a CPU takes on unseen values, beyond moving them, and in a row on such that stay; in µs.

        Between calls on new values there is work of ours. Between the others there is none, so nobody can tell them
        from those that are timed.
        """
        unseen_us, still_us = 0.0, 0.0
        for number, (new, touch, still) in enumerate(self.looks("new", "touch", "still")):
            unseen_us, still_us = self.beyond_us(new, touch), self.cost_us(still)
            if number >= SETTLED and unseen_us <= rows_limit_us(still_us, "cpu"):
                break
        return unseen_us, still_us

    def rows_apart(self) -> tuple[float, float]:
        """What calls take on values of which every row is new, and on the last ones again, beyond drawing; in µs."""
        new_us, same_us = 0.0, 0.0
        for number, slopes in enumerate(self.looks("all_new", "all_same", "all_touch")):
            new, same, touch = (look.processor_us if self.device == "cpu" else look.outside_us for look in slopes)
            new_us, same_us = new - touch, max(0.0, same - touch)
            if number and new_us <= rows_limit_us(same_us, self.device):
                break
        return new_us, same_us

    def looks(self, *kinds: str) -> Iterator[list[Look]]:
        """What a call of each kind takes, by all looks so far: again and again, at more replays, until nobody asks."""
        few, started = {kind: self.few(kind) for kind in kinds}, time.monotonic()
        for number in range(ROUNDS):
            yield [self.slope(kind, times) for kind, times in few.items()]
            if number > SETTLED and time.monotonic() - started > ENOUGH_S:
                return
            few = {kind: self.longer(kind, times, number) for kind, times in few.items()}

    def few(self, kind: str) -> int:
        """How many replays take long enough to be told from a request without any."""
        each_us = self.look(kind, 1).outside_us
        return max(1, min(REPLAYS, math.ceil(SLOPE_US / max(1.0, each_us))))

    def longer(self, kind: str, times: int, number: int) -> int:
        """How many replays to make after so many looks at `times`: what is no replay's weighs less in more of them."""
        enough = number % 2 == 0 or 2 * self.least[kind, times].outside_us > LONGEST_US
        return times if enough else 2 * times

    def slope(self, kind: str, times: int) -> Look:
        """Replay again; of a call, without what a request costs once.

        From the least that so many replays and some times as many have taken so far: whatever the machine does besides
        only adds to a time.
        """
        few, more = self.again(kind, times), self.again(kind, LONGER * times)
        calls = self.calls[kind] * times * (LONGER - 1)
        return Look(*((b - a) / calls for a, b in zip(few, more, strict=True)))

    def again(self, kind: str, times: int) -> Look:
        """The least of all looks at so many replays, after one more."""
        found = self.look(kind, times)
        self.least[kind, times] = Look(*map(min, found, self.least.get((kind, times), found)))
        return self.least[kind, times]

    def look(self, kind: str, times: int) -> Look:
        """Have so many replays made."""
        had_s, started = self.worker.processor_time_s(), time.perf_counter_ns()
        reply = self.ask("replay", kind=kind, times=times)
        outside_us = (time.perf_counter_ns() - started) / 1000
        processor_us = 1e6 * (self.worker.processor_time_s() - had_s)
        replies.check_replayed(reply)
        own_us = float(reply["own_us"] or 0.0)
        return Look(outside_us, own_us, outside_us - own_us, processor_us)

    def ask(self, step: str, **payload: Any) -> Any:
        asked = {"step": step, "contender": self.name, **payload}
        return self.worker.request("witness", timeout_s=WAIT_S, room_bytes=self.room_bytes, **asked)


def behind_limit_us(seen_us: float, device: str) -> float:
    """What a call may take behind other work, where it takes so much behind one of its own."""
    if device == "cpu":
        return BEHIND_LIMIT_CPU * seen_us + BEHIND_GAP_CPU_US
    return APART_LIMIT * seen_us + BEHIND_GAP_US


def rows_limit_us(same_us: float, device: str) -> float:
    """What a call may take on values of which every row is new, where it takes so much on its last ones."""
    if device == "cpu":
        predicted_us = PREDICTED_LIMIT * same_us + BEHIND_GAP_CPU_US
        return min(BEHIND_LIMIT_CPU * same_us + PREDICTED_GAP_US, predicted_us)
    return behind_limit_us(same_us, device)


def _agree(a_us: float, b_us: float) -> bool:
    """Neither takes longer: if it is the second, that is the machine's doing, and may hide that it takes less."""
    return min(a_us, b_us) > 0 and 1 / AGREE_WITHIN <= a_us / b_us <= AGREE_WITHIN
