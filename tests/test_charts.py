import itertools
import math

import pytest

from kernelproof import charts
from kernelproof.records import Histogram


def test_a_wide_range_is_logarithmic_and_a_narrow_one_is_not() -> None:
    assert charts.axis([1.15, 143.0]).logarithmic
    assert not charts.axis([9.0, 10.0]).logarithmic


@pytest.mark.parametrize(
    "values", [[1.15, 143.0], [9.0, 10.0], [5.0], [], [0.0, 0.0], [1e-7, 100.0], [0.89, 7.2], [1e-9, 1e9]]
)
def test_an_axis_keeps_everything_inside_and_its_labels_apart(values: list[float]) -> None:
    axis = charts.axis(values, "µs")
    places = [axis.at(v) for v in values]
    assert all(0 <= p <= 100 for p in places)
    assert places == sorted(places) if values == sorted(values) else True
    at = [t.at for t in axis.ticks]
    assert 2 <= len(at) <= 10
    assert all(b - a >= 9 for a, b in itertools.pairwise(at))


@pytest.mark.parametrize("values", [[0.88, 7.18], [0.95, 1.27], [0.151, 1.0], [0.63, 8.3], [1.0, 26.0], [0.97, 6.3]])
def test_labels_beside_each_other_are_read_as_two(values: list[float]) -> None:
    """Of 220 pixels 13 % lay between the middles of `1.5 ×` and `2 ×`, and no more than a blank between the two.

    With 14 % there were two. Of an axis that is short of room 2 stays, and 1.5 goes.
    """
    ticks = charts.axis(values, "×", width=220.0).ticks
    assert len(ticks) >= 3
    labels = {tick.label.partition("\u202f")[0] for tick in ticks}
    assert "1.5" not in labels or "2" in labels
    digit = 7.6  # pixels, of 12
    for left, right in itertools.pairwise(ticks):
        sizes = {"start": (0.0, 1.0), "middle": (0.5, 0.5), "end": (1.0, 0.0)}
        taken = sizes[left.anchor][1] * (len(left.label) - 1) + sizes[right.anchor][0] * (len(right.label) - 1)
        assert (right.at - left.at) * 2.2 - taken * digit >= 10, (left, right)


def test_an_axis_is_monotonic_and_logarithmic_steps_are_equal() -> None:
    axis = charts.axis([1.0, 100.0])
    assert axis.at(10.0) - axis.at(1.0) == pytest.approx(axis.at(100.0) - axis.at(10.0), abs=0.02)
    assert axis.at(1e-9) == axis.at(1.0)  # outside: at the edge


def test_ticks_are_in_the_unit_of_the_column() -> None:
    labels = [t.label for t in charts.axis([2000.0, 18000.0], "ms", 1e3).ticks]
    assert all(label.endswith("ms") for label in labels)
    assert any(label.startswith("10") for label in labels)


def test_a_stacked_bar_fills_its_width_in_the_order_of_the_slots() -> None:
    segments = charts.stacked({"b": 1, "a": 3, "none": 0}, {"a": 0, "none": 1, "b": 2})
    assert [(s.name, s.at, s.width) for s in segments] == [("a", 0.0, 75.0), ("b", 75.0, 25.0)]
    assert charts.stacked({}, {}) == []


def test_a_label_that_does_not_fit_is_left_out() -> None:
    wide, narrow = charts.stacked({"integer": 97, "barrier": 3}, {"integer": 0, "barrier": 1})
    assert (wide.label, narrow.label) == ("integer", "")


def test_one_element_over_the_bound_is_seen() -> None:
    histogram = Histogram([0.0, 1e-6, 1e-3, 1.0, 10.0, 1000.0], [5, 0, 1_000_000, 0, 1])
    axis = charts.error_axis([histogram])
    picture = charts.error_picture(histogram, axis, 34.0)
    assert (picture.total, picture.over) == (1_000_006, 1)
    assert [c.over for c in picture.columns] == [False, False, True]
    assert picture.columns[-1].height >= 2.0
    assert picture.columns[-1].at >= axis.at(1.0)


def test_an_empty_histogram_is_an_empty_picture() -> None:
    axis = charts.error_axis([])
    assert charts.error_picture(Histogram([], []), axis, 34.0).columns == ()
    assert 0 < axis.at(1.0) < 100


def test_points_are_under_their_roof() -> None:
    points = [
        charts.RoofPoint("ours", 256.0, 6e13, "variant", labelled=True),
        charts.RoofPoint("best", 256.0, 5.9e13, "baseline", labelled=True),
    ]
    ceilings = [charts.Ceiling("copy", 4e12, True), charts.Ceiling("tensor", 7e14, False)]
    roof = charts.roofline(points, ceilings)
    assert roof is not None
    slope, flat = roof.lines
    assert flat.y1 == flat.y2 < min(p.y for p in roof.points)
    assert slope.y1 > slope.y2 == flat.y1  # rises to the ridge
    assert slope.x2 == roof.across.at(7e14 / 4e12)
    first, second = roof.points
    assert second.label_y - first.label_y >= 14


@pytest.mark.parametrize(
    "points", [[], [charts.RoofPoint("x", 0.0, 1e9, "variant")], [charts.RoofPoint("x", 1.0, math.nan, "variant")]]
)
def test_nothing_to_place_is_no_roofline(points: list[charts.RoofPoint]) -> None:
    assert charts.roofline(points, []) is None
