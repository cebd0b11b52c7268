"""What of the slope can be checked without a GPU; with one, tests/test_timing.py."""

import pytest

from kernelproof import graph_runner


def test_the_slope_leaves_out_what_a_replay_costs_once() -> None:
    visit = graph_runner._visit_of_slope(25, 100, 40.0 + 25 * 9.1, 40.0 + 100 * 9.1)
    assert visit.time_us == pytest.approx(9.1)
    assert (visit.calls, visit.short_calls) == (100, 25)
