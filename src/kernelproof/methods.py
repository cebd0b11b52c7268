"""The methods by which one call is timed: what each is called, when two of them disagree, and the likely reason why.

Two methods disagree when they differ by more than max(3 %, 0.1 µs) after the floor (an empty kernel of the same
launch, by the same method) is accounted for. In a kernel's own duration an empty one's is in part, and how much of it
nobody knows: between nothing and all of it. The floor has nothing of fills and copies, whose own is as little known. A
reason is a guess from what was recorded beside, in words, and of the difference's own sign: what can only lengthen a
time explains none that is shorter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

DISAGREE_SHARE, DISAGREE_US = 0.03, 0.1
HOST_BOUND = 1.5  # eager latency this many times the device's time: the caller waits for the host
CLOCK_SHARE = 0.02  # a clock that differs by more explains a time that differs by more than is allowed
EVENT_STEP_US = 0.032  # of a CUDA event's clock on H100 and H200; older GPUs step more coarsely
COLD_IS_HOT = 0.005  # relative
GAP_US = 3.0  # from one kernel to the next it takes less
FILL_US = 1.5  # of a call's time that an empty fill would take, at most: 0.7 to 1.4 of cuDNN's on an H200
COLD_SHARE = 0.98  # of the bytes that a call has to read must come from memory
MEMORY_SHARE = 0.1  # of a call's time that reading its arguments from memory would take at the very least
ROW_OF_CALLS = "calls in a row load the GPU's power and memory more than a few alone, and lower its clock"
COUNTED = ("ncu", "floor_ncu")  # calls and floors under Nsight Compute
TRACES = {"cupti": "cupti-python", "device_trace": "torch.profiler"}  # each with who took it


@dataclass(frozen=True)
class Seen:
    """What is known of one contender on one case in one mode.

    times_us and clock_mhz by method; kernels: launches in a call, 0 where unknown; fills: how many of them are no
    kernels but fills or copies, of which the floor has nothing and which Nsight Compute does not list; hot_us: the
    primary time when hot; rotation: that of ArgumentSets; bytes_per_s: the GPU's memory; from_memory: of the bytes that
    a call has to read, the share that came from there. None where unknown.
    """

    primary: str
    mode: str
    times_us: Mapping[str, float]
    clock_mhz: Mapping[str, float] = field(default_factory=dict)
    kernels: float = 0.0
    fills: float = 0.0
    hot_us: float | None = None
    rotation: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: float | None = None
    from_memory: float | None = None

    def clock_share(self, method: str) -> float:
        """How many times the primary method's SM clock this one's was; 1 where either is unknown."""
        mine, other = self.clock_mhz.get(self.primary), self.clock_mhz.get(method)
        return other / mine if mine and other else 1.0

    def above_floor(self, method: str) -> float | None:
        """Its time less the floor of the same kind; None where either was not taken."""
        floors = {"event_pair": "floor_event_pair", "ncu": "floor_ncu"}
        time_us, floor_us = self.times_us.get(method), self.times_us.get(floors.get(method, "floor"))
        return None if time_us is None or floor_us is None else time_us - floor_us


def doubts(seen: Seen) -> Iterator[tuple[str, str]]:
    """Flags of the primary time, each with the likely reason in words."""
    slope_us, net_us = seen.times_us[seen.primary], seen.above_floor(seen.primary)
    allowed_us, fills_us = max(DISAGREE_SHARE * slope_us, DISAGREE_US), FILL_US * seen.fills
    wall_us = seen.times_us.get("wall_slope")
    if wall_us is not None and abs(over_us := wall_us - slope_us) > allowed_us:
        yield "disagrees_wall_slope", _why(seen, "wall_slope", over_us, _by_the_host(over_us))
    pair_us = seen.above_floor("event_pair")
    if pair_us is not None and net_us is not None:
        over_us = _beyond(pair_us, net_us - fills_us, net_us)
        if abs(over_us) > allowed_us:
            yield "disagrees_event_pair", _why(seen, "event_pair", over_us, _single_call(seen, over_us))
    for method in TRACES:
        traced_us = seen.times_us.get(method)
        if traced_us is not None and net_us is not None:
            over_us = _beyond(traced_us, net_us - fills_us, slope_us)
            if abs(over_us) > allowed_us:
                yield f"disagrees_{method}", _why(seen, method, over_us, _traced(seen, over_us))
    counted_us, least_us = seen.times_us.get("ncu"), seen.above_floor("ncu")
    if counted_us is not None and least_us is not None and net_us is not None:
        # It runs at the clock that it finds. What waits for memory takes as long at any clock, all else in proportion.
        share = seen.clock_share("ncu")
        over_us = _beyond(net_us, least_us * min(1.0, share), counted_us * max(1.0, share) + fills_us)
        if abs(over_us) > allowed_us:
            yield "disagrees_ncu", _why(seen, "ncu", -over_us, _alone(seen, -over_us))
    yield from _warm(seen)


def _beyond(value: float, low: float, high: float) -> float:
    """How far a value lies above or, negative, below a range; 0 within."""
    return value - high if value > high else min(0.0, value - low)


def _why(seen: Seen, method: str, over_us: float, otherwise: str) -> str:
    """The difference, and a clock that differs, if it explains it, before anything else."""
    said = f"{_words(method)} {'longer' if over_us > 0 else 'shorter'} by {abs(over_us):.2f} µs; likely: "
    faster = seen.clock_share(method) - 1  # a call takes less by a higher clock
    if abs(faster) > CLOCK_SHARE and (faster > 0) == (over_us < 0):
        mine, other = seen.clock_mhz[seen.primary], seen.clock_mhz[method]
        return f"{said}the SM clock changed, {mine:.0f} MHz for {_words(seen.primary)} and {other:.0f} MHz here"
    return said + otherwise


def _by_the_host(over_us: float) -> str:
    if over_us > 0:
        return "the host was kept from queueing"
    return "a few pairs of graphs after the samples, when the device was faster than while they were taken"


def _single_call(seen: Seen, over_us: float) -> str:
    eager_us = seen.times_us.get("eager")
    if over_us > 0 and seen.kernels > 1:
        return f"{seen.kernels:g} kernels inside: gaps between single launches are longer than those in a graph"
    if over_us > 0 and eager_us is not None and eager_us > HOST_BOUND * seen.times_us[seen.primary]:
        return "host-bound: the host queues a call more slowly than the device runs it"
    if abs(over_us) < 4 * EVENT_STEP_US:
        return "the resolution of the event timer, which single calls cannot average out"
    if over_us > 0:
        return "a call alone waits for its own start and end, which calls in a row hide behind one another"
    if over_us < -GAP_US * max(1.0, seen.kernels):
        return ROW_OF_CALLS
    if seen.kernels > 1:
        hidden = "each launch but the first hides behind the kernel before it, which the floor's do not"
        return f"{seen.kernels:g} kernels inside: {hidden}"
    return "part of a single call's floor hides behind the call itself"


def _traced(seen: Seen, over_us: float) -> str:
    if over_us < -GAP_US * max(1.0, seen.kernels):
        return ROW_OF_CALLS
    if over_us < 0 and seen.kernels > 1:
        return f"{seen.kernels:g} kernels inside, whose durations leave out the gaps between them"
    if over_us < 0:
        return "the time from one kernel to the next, which its duration leaves out"
    if seen.kernels > 1:
        return f"{seen.kernels:g} kernels inside: what ran at the same time counts twice, and tracing lengthens kernels"
    return "tracing itself lengthened the kernels, or each began beside the one before it, whose end its duration holds"


def _alone(seen: Seen, over_us: float) -> str:
    if over_us > 0 and seen.kernels > 1:
        return f"{seen.kernels:g} kernels inside, and Nsight Compute lets none start before the last has ended"
    if over_us > 0:
        return "a kernel alone, on a device that was idle: no other call hides its start and its end"
    return _traced(seen, over_us)


def _warm(seen: Seen) -> Iterator[tuple[str, str]]:
    """A cold time that nothing says was cold."""
    if seen.mode != "cold":
        return
    if seen.from_memory is not None:  # then nothing need be guessed
        if seen.from_memory < COLD_SHARE:
            share = f"{seen.from_memory:.0%} of the bytes that a call has to read came from memory"
            yield "not_cold", f"warm where cold was asked: {share}"
        return
    if not seen.rotation:
        return
    if not seen.rotation.get("exceeds_cache", True):
        yield "rotation_within_cache", "as many copies as are allowed do not exceed the cache: some of it was warm"
        return
    set_bytes, cache_bytes = (seen.rotation.get(name, 0) for name in ("set_bytes", "cache_bytes"))
    if seen.hot_us and seen.bytes_per_s and 2 * set_bytes <= cache_bytes:  # a larger set is not warm when hot either
        cold_us = seen.times_us[seen.primary]
        least_us = 1e6 * set_bytes / seen.bytes_per_s
        if cold_us <= (1 + COLD_IS_HOT) * seen.hot_us and least_us > MEMORY_SHARE * cold_us:
            yield (
                "cold_as_hot",
                "warm where cold was asked: as fast as hot, although its inputs should not be in the cache",
            )


def _words(method: str) -> str:
    return method.replace("_", " ")
