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
            {"changed": {"graph_slope": 2.1, "event_pair": 6.13, "wall_slope": 2.1, "cupti": 1.0}},
            "resolution",
        ),
        ("disagrees_cupti", {"changed": {"cupti": 5.0}, "kernels": 2}, "leave out the gaps"),
        ("disagrees_cupti", {"changed": {"cupti": 12.0}, "kernels": 1}, "tracing itself"),
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
    rotation = {"sets": 8, "set_bytes": 64 << 20, "exceeds_cache": True}
    facts = {"rotation": rotation, "hot_us": 100.0, "bytes_per_s": 4.8e12}  # 14 µs at least
    agreeing = {"graph_slope": 100.2, "wall_slope": 100.0, "cupti": 99.0, "event_pair": 104.3}
    assert set(doubts("cold", agreeing, **facts)) == {"cold_as_hot"}
    assert doubts("cold", {**agreeing, "graph_slope": 102.0}, **facts) == {}
    assert doubts("cold", agreeing, **{**facts, "rotation": {**rotation, "set_bytes": 1 << 20}}) == {}
    small = {**rotation, "exceeds_cache": False}
    assert set(doubts("cold", agreeing, **{**facts, "rotation": small})) == {"rotation_within_cache"}
