"""When methods disagree, and what is said to be behind it."""

from typing import Any

import pytest

from kernelproof import methods

AGREEING = {
    "graph_slope": 9.1,
    "wall_slope": 9.12,
    "event_pair": 13.2,
    "floor": 1.15,
    "floor_event_pair": 5.3,
    "cupti": 7.97,
}


LONG = {"graph_slope": 1333.75, "wall_slope": 1333.7, "event_pair": 1338.0, "floor": 3.08, "cupti": 1333.0}


def doubts(mode: str = "hot", changed: dict[str, float] | None = None, **more: Any) -> dict[str, str]:
    return dict(methods.doubts(methods.Seen("graph_slope", mode, {**AGREEING, **(changed or {})}, **more)))


def test_methods_that_agree_are_not_flagged() -> None:
    assert doubts(kernels=1) == {}
    assert dict(methods.doubts(methods.Seen("cpu_clock", "hot", {"cpu_clock": 50.0, "floor": 1.0}))) == {}


@pytest.mark.parametrize(
    ("flag", "given", "words"),
    [
        ("disagrees_wall_slope", {"changed": {"wall_slope": 9.9}}, "the host was kept from queueing"),
        ("disagrees_event_pair", {"changed": {"event_pair": 16.0}, "kernels": 2}, "2 kernels inside"),
        ("disagrees_event_pair", {"changed": {"event_pair": 16.0, "eager": 30.0}, "kernels": 1}, "host-bound"),
        (
            "disagrees_event_pair",
            {"changed": {"graph_slope": 2.1, "event_pair": 6.37, "wall_slope": 2.1, "cupti": 1.0}},
            "longer by 0.12 µs; likely: the resolution",
        ),
        ("disagrees_event_pair", {"changed": {"event_pair": 16.0}, "kernels": 1}, "waits for its own start"),
        ("disagrees_event_pair", {"changed": {"event_pair": 11.0}, "kernels": 2}, "which the floor's do not"),
        ("disagrees_event_pair", {"changed": {"event_pair": 11.0, "eager": 30.0}, "kernels": 1}, "hides behind the"),
        ("disagrees_wall_slope", {"changed": {"wall_slope": 8.5}}, "shorter by 0.60 µs; likely: a few pairs"),
        ("disagrees_cupti", {"changed": {"cupti": 5.0}, "kernels": 2}, "leave out the gaps"),
        ("disagrees_cupti", {"changed": {"cupti": 12.0}, "kernels": 1}, "tracing itself"),
        ("disagrees_cupti", {"changed": {"cupti": 12.0}, "kernels": 2}, "counts twice"),
        (
            "disagrees_ncu",
            {"changed": {"ncu": 13.0, "floor_ncu": 2.0}, "kernels": 1},
            "longer by 3.05 µs; likely: a kernel",
        ),
        ("disagrees_ncu", {"changed": {"ncu": 13.0, "floor_ncu": 2.0}, "kernels": 3}, "none start before"),
        ("disagrees_ncu", {"changed": {"ncu": 7.0, "floor_ncu": 2.0}, "kernels": 2}, "leave out the gaps"),
        (
            "disagrees_ncu",
            {"changed": {"ncu": 13.0, "floor_ncu": 2.0}, "clock_mhz": {"graph_slope": 1980.0, "ncu": 1740.0}},
            "longer by 1.72 µs; likely: the SM clock changed, 1980 MHz for graph slope and 1740 MHz here",
        ),
        (
            "disagrees_ncu",
            {"changed": {**LONG, "ncu": 1269.0, "floor_ncu": 3.9}, "kernels": 1},
            "shorter by 61.67 µs; likely: calls in a row",
        ),
        ("disagrees_cupti", {"changed": {**LONG, "cupti": 1265.8}, "kernels": 1}, "likely: calls in a row"),
        (
            "disagrees_event_pair",
            {"changed": {**LONG, "event_pair": 1280.0}, "kernels": 2},
            "likely: calls in a row",
        ),
        # A higher clock does not explain a longer time, nor a lower one a shorter.
        (
            "disagrees_wall_slope",
            {"changed": {"wall_slope": 9.9}, "clock_mhz": {"graph_slope": 1740.0, "wall_slope": 1980.0}},
            "the host was kept",
        ),
        (
            "disagrees_cupti",
            {"changed": {"cupti": 5.0}, "clock_mhz": {"graph_slope": 1980.0, "cupti": 1740.0}},
            "leaves out",
        ),
        (
            "disagrees_wall_slope",
            {"changed": {"wall_slope": 10.4}, "clock_mhz": {"graph_slope": 1980.0, "wall_slope": 1740.0}},
            "the SM clock changed, 1980 MHz for graph slope and 1740 MHz here",
        ),
    ],
)
def test_each_reason_in_words(flag: str, given: dict[str, Any], words: str) -> None:
    found = doubts(**given)
    assert set(found) == {flag}
    assert words in found[flag]


def test_a_cold_time_that_is_none() -> None:
    rotation = {"sets": 5, "set_bytes": 24 << 20, "cache_bytes": 60 << 20, "exceeds_cache": True}
    facts = {"rotation": rotation, "hot_us": 30.0, "bytes_per_s": 4.8e12}  # 5 µs at least
    agreeing = {"graph_slope": 30.1, "wall_slope": 30.0, "cupti": 29.0, "event_pair": 34.2}
    assert set(doubts("cold", agreeing, **facts)) == {"cold_as_hot"}
    assert doubts("cold", {**agreeing, "graph_slope": 30.5}, **facts) == {}
    assert doubts("cold", agreeing, **{**facts, "rotation": {**rotation, "set_bytes": 1 << 20}}) == {}
    small = {**rotation, "exceeds_cache": False}
    assert set(doubts("cold", agreeing, **{**facts, "rotation": small})) == {"rotation_within_cache"}


@pytest.mark.parametrize(
    ("counted_us", "clock_mhz"),
    [(9.95, 1980.0), (11.26, 1740.0), (9.95, 1740.0), (9.97, 1740.0)],
)
def test_what_is_counted_agrees_at_the_clock_that_it_found(counted_us: float, clock_mhz: float) -> None:
    """As long as the slope, longer as the clock was lower, or anything between: part of a kernel waits for memory."""
    clocks = {"graph_slope": 1980.0, "ncu": clock_mhz}
    assert doubts(changed={"ncu": counted_us, "floor_ncu": 2.0}, clock_mhz=clocks, kernels=1) == {}


@pytest.mark.parametrize(
    ("counted_us", "disagrees"), [(7.6, True), (7.8, False), (9.0, False), (10.1, False), (10.4, True)]
)
def test_a_kernels_own_duration_holds_some_of_an_empty_ones(counted_us: float, disagrees: bool) -> None:
    """Above its floor the call takes 7.95 µs, and 0.27 µs are allowed; ncu's empty kernel takes 2 µs."""
    changed = {"ncu": counted_us, "floor_ncu": 2.0}
    assert ("disagrees_ncu" in doubts(changed=changed, kernels=1)) == disagrees


@pytest.mark.parametrize(
    ("changed", "flag"),
    [
        ({"event_pair": 11.9}, "disagrees_event_pair"),  # 6.6 µs above its floor, the slope 7.95
        ({"cupti": 6.8}, "disagrees_cupti"),
        ({"ncu": 7.1, "floor_ncu": 1.5}, "disagrees_ncu"),
    ],
)
def test_a_fill_of_which_the_floor_has_nothing_explains_a_little(changed: dict[str, float], flag: str) -> None:
    assert set(doubts(changed=changed, kernels=2)) == {flag}
    assert doubts(changed=changed, kernels=2, fills=1) == {}
    shorter = {name: value - (0.0 if "floor" in name else 2.0) for name, value in changed.items()}
    assert set(doubts(changed=shorter, kernels=2, fills=1)) == {flag}  # and not more than a little


def test_counted_bytes_decide_whether_a_time_is_cold() -> None:
    rotation = {"sets": 5, "set_bytes": 24 << 20, "cache_bytes": 60 << 20, "exceeds_cache": False}
    facts = {"rotation": rotation, "hot_us": 9.1, "bytes_per_s": 4.8e12}
    assert doubts("cold", **facts, from_memory=0.99) == {}
    found = doubts("cold", **facts, from_memory=0.61)
    assert found == {"not_cold": "warm where cold was asked: 61% of the bytes that a call has to read came from memory"}
    assert doubts("hot", **facts, from_memory=0.0) == {}


@pytest.mark.parametrize(
    ("cold_us", "hot_us", "set_bytes"),
    [(72.2423, 72.1104, 268443648), (70.1772, 69.8995, 268443648), (137.541, 137.376, 536887296)],
)
def test_inputs_larger_than_the_cache_are_as_cold_when_hot(cold_us: float, hot_us: float, set_bytes: int) -> None:
    """RMSNorm on an H200 whose L2 holds 60 MiB, from the kept record."""
    rotation = {"sets": 2, "set_bytes": set_bytes, "cache_bytes": 62914560, "exceeds_cache": True}
    seen = methods.Seen(
        "graph_slope", "cold", {"graph_slope": cold_us}, hot_us=hot_us, rotation=rotation, bytes_per_s=4.8e12
    )
    assert dict(methods.doubts(seen)) == {}
