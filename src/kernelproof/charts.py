"""Geometry of the report's pictures: numbers in, positions out. The SVG markup is in the templates.

Horizontal positions are percentages of the plot's width, so that a picture is as wide as the page it is read on while
its text stays the size of the text around it. Vertical positions are CSS pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernelproof import formats
from kernelproof.records import Histogram

_MARGIN = 3.0  # percent of the width kept free at both ends, so that no mark is cut
_LABEL_LINE = 14.0  # pixels between labels that stand above each other
_LABEL_WIDTH = 60.0  # pixels that the label of a reference line needs
_LABEL_GAP = 12.0  # pixels between labels beside each other: less reads as one
_CHARACTER = 7.6  # pixels of a digit in them
_NARROW = {".": 0.5, formats.THIN: 0.3} | dict.fromkeys("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", 0.6)  # of that
_PLOT_WIDTH = 300.0  # pixels: of a plot on a phone or a tablet
_LOG_SPAN = 3.0  # a range wider than this factor gets a logarithmic axis


@dataclass(frozen=True)
class Tick:
    """A labelled position on an axis. `anchor` keeps the label inside the picture."""

    at: float
    label: str
    anchor: str = "middle"


@dataclass(frozen=True)
class Axis:
    """A horizontal axis: values from `low` to `high` onto 0–100 % of the width."""

    low: float
    high: float
    logarithmic: bool
    ticks: tuple[Tick, ...] = ()

    def at(self, value: float) -> float:
        """Position in percent; a value outside the range sits at its edge."""
        low, high, value = (_log(v) if self.logarithmic else v for v in (self.low, self.high, value))
        inner = (value - low) / (high - low) if high > low else 0.5
        return _round(_MARGIN + (100 - 2 * _MARGIN) * min(1.0, max(0.0, inner)))


def axis(values: Iterable[float], unit: str = "", scale: float = 1.0, width: float | None = _PLOT_WIDTH) -> Axis:
    """An axis that holds all values, logarithmic when they span more than a factor of three.

    Ticks are labelled with value / scale and the unit. width: pixels of the narrowest plot that it is drawn on; None
    for an upright one.
    """
    known = [v for v in values if math.isfinite(v)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if low == high:
        low, high = (low * 0.9, high * 1.1) if low > 0 else (low - 0.5, high + 0.5)
    logarithmic = low > 0 and high / low > _LOG_SPAN
    positions = _log_ticks(low / scale, high / scale) if logarithmic else _linear_ticks(low / scale, high / scale)
    bare = Axis(low, high, logarithmic)
    ticks = [Tick(bare.at(p * scale), _tick_label(p, unit)) for p in positions]
    return Axis(low, high, logarithmic, tuple(_kept_apart(ticks, width)))


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        ticks = [s * 10.0**d for d in decades for s in steps if low * 0.9999 <= s * 10.0**d <= high * 1.0001]
        if len(ticks) >= 4:
            break
    if len(ticks) <= 9:
        return ticks
    stride = math.ceil(len(ticks) / 8)
    return [10.0**d for d in decades if d % stride == 0 and low * 0.9999 <= 10.0**d <= high * 1.0001]


def _linear_ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _tick_label(value: float, unit: str) -> str:
    figure = f"{value:g}" if 1e-2 <= abs(value) < 1e5 or value == 0 else formats.power_of_ten(value)
    return f"{figure}{formats.THIN}{unit}" if unit else figure


def _kept_apart(ticks: Sequence[Tick], width: float | None) -> list[Tick]:
    """Turn the outermost labels inwards, and drop those closer than 9 % or too close to be read apart."""
    kept: list[Tick] = []
    for tick in (replace(t, anchor="start" if t.at < 6 else "end" if t.at > 94 else "middle") for t in ticks):
        if kept and (tick.at - kept[-1].at < 9 or (width and _between(kept[-1], tick, width) < _LABEL_GAP)):
            continue
        kept.append(tick)
    return kept


def _between(left: Tick, right: Tick, width: float) -> float:
    """Pixels from the end of one label to the start of the next."""
    behind = {"start": 1.0, "middle": 0.5, "end": 0.0}  # the share of a label that lies behind its tick
    ends = behind[left.anchor] * _label_width(left.label)
    return (right.at - left.at) / 100 * width - ends - (1 - behind[right.anchor]) * _label_width(right.label)


def _label_width(label: str) -> float:
    return _CHARACTER * sum(_NARROW.get(character, 1.0) for character in label)


def _log(value: float) -> float:
    return math.log10(value) if value > 0 else -300.0


def _round(value: float) -> float:
    return round(value, 2)


# --- intervals --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Whisker:
    """A median with its interval; `kind` is the template's name for the mark (hot, cold, ratio)."""

    at: float
    low: float
    high: float
    kind: str
    title: str

    @property
    def width(self) -> float:
        """Of the interval, in percent."""
        return _round(self.high - self.low)


def whisker(on: Axis, middle: float, low: float, high: float, kind: str, title: str) -> Whisker:
    """A median and its interval on an axis."""
    return Whisker(on.at(middle), on.at(low), on.at(high), kind, title)


@dataclass(frozen=True)
class IntervalRow:
    """An estimate with its interval; `kind` is the template's name for its colour. A label stands once for many."""

    label: str
    middle: float
    low: float
    high: float
    kind: str
    title: str


@dataclass(frozen=True)
class PlacedRow:
    """The same in pixels."""

    label: str
    label_y: float
    at: float
    low: float
    high: float
    y: float
    kind: str
    title: str


@dataclass(frozen=True)
class Picture:
    """A file of its own: many intervals below each other on one axis. All positions in pixels."""

    width: float
    height: float
    top: float
    bottom: float
    radius: float
    stroke: float
    ticks: tuple[Tick, ...]
    marks: tuple[Tick, ...]
    rows: tuple[PlacedRow, ...]


def interval_picture(
    rows: Sequence[IntervalRow], marks: Mapping[float, str], unit: str = "", row_height: float = 8.0
) -> Picture | None:
    """Rows from the top down with reference lines at `marks`, the most important first; None without a row.

    What is far outside (beyond four times the spread of the middle half) sits at the edge, so that the rest is seen. Of
    marks that are close together only the first keeps its label.
    """
    if not rows:
        return None
    left, top, width = 90.0, 56.0, 860.0
    in_sight = _in_sight([v for row in rows for v in (row.low, row.middle, row.high)])
    on = axis([*in_sight, *marks], unit, width=width - left)

    def x(value: float) -> float:
        return round(left + (width - left) * on.at(value) / 100, 1)

    bottom = round(top + row_height * len(rows), 1)
    placed = [
        PlacedRow(
            row.label,
            round(top + row_height * number + max(10.0, row_height / 2 + 4), 1),
            x(row.middle),
            x(row.low),
            x(row.high),
            round(top + row_height * (number + 0.5), 1),
            row.kind,
            row.title,
        )
        for number, row in enumerate(rows)
    ]
    ticks = tuple(Tick(round(left + (width - left) * tick.at / 100, 1), tick.label) for tick in on.ticks)
    named: list[Tick] = []
    for value, label in marks.items():
        crowded = any(other.label and abs(other.at - x(value)) < _LABEL_WIDTH for other in named)
        named.append(Tick(x(value), "" if crowded else label))
    radius = round(max(1.0, min(4.0, row_height / 3)), 1)
    stroke = round(min(1.0, 0.4 * row_height), 2)
    return Picture(width, bottom + 30, top, bottom, radius, stroke, ticks, tuple(named), tuple(placed))


def _in_sight(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    first, third = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
    reach = 4 * (third - first)
    return [v for v in ordered if first - reach <= v <= third + reach] or list(ordered)


# --- a quantity over several runs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """A value of one run with its interval. Readings of one `group` (a machine) are joined by a line.

    Without a value it is at the foot, and no line goes past it.
    """

    value: float | None
    low: float
    high: float
    group: str
    kind: str  # good, bad
    title: str


@dataclass(frozen=True)
class Spot:
    """A reading's place: x in percent, y and the ends of its interval in pixels from the top."""

    x: float
    y: float
    low_y: float
    high_y: float
    kind: str
    title: str


@dataclass(frozen=True)
class Series:
    """Readings from left to right, `height` pixels high; `numbers` stand under the runs, joins are (x1, y1, x2, y2)."""

    height: float
    rows: tuple[Tick, ...]
    numbers: tuple[Tick, ...]
    spots: tuple[Spot, ...]
    joins: tuple[tuple[float, float, float, float], ...]


_SERIES_LEFT, _SERIES_RIGHT = 13.0, 96.0  # percent: on the left the figures of the vertical axis


def series(readings: Sequence[Reading | None], scale: float = 1.0, height: float = 120.0) -> Series | None:
    """Place one reading a run, None for a run that has none; None when no run has one. Figures are value / scale."""
    known = [(reading.low, reading.value, reading.high) for reading in readings if reading and reading.value]
    if not known:
        return None
    figures = [figure for reading in known for figure in reading]
    middle = math.sqrt(min(figures) * max(figures))
    # At least 10 % from top to bottom: what runs differ by without a cause must not fill the picture.
    up = axis([*figures, middle * 0.95, middle * 1.05], scale=scale, width=None)

    def y(value: float) -> float:
        return _round(height * (1 - up.at(value) / 100))

    step = (_SERIES_RIGHT - _SERIES_LEFT) / max(1, len(readings) - 1)
    stride = math.ceil(len(readings) / 12)
    places = [_round(_SERIES_LEFT + step * index) for index in range(len(readings))]
    spots, joins = [], []
    last: dict[str, tuple[float, float]] = {}
    for x, reading in zip(places, readings, strict=True):
        if reading is None:
            continue
        if reading.value is None:
            spots.append(Spot(x, height, height, height, reading.kind, reading.title))
            last.clear()
            continue
        spots.append(Spot(x, y(reading.value), y(reading.low), y(reading.high), reading.kind, reading.title))
        if reading.group in last:
            joins.append((*last[reading.group], x, y(reading.value)))
        last[reading.group] = (x, y(reading.value))
    rows = tuple(Tick(_round(height * (1 - tick.at / 100)), tick.label) for tick in up.ticks)
    numbers = tuple(Tick(x, str(index + 1)) for index, x in enumerate(places) if index % stride == 0)
    return Series(height, rows, numbers, tuple(spots), tuple(joins))


# --- stacked bars -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Segment:
    """A part of a stacked bar: position and width in percent, `slot` picks colour and pattern."""

    name: str
    slot: int
    at: float
    width: float
    amount: float

    @property
    def label(self) -> str:
        """The name, where it fits."""
        return self.name if self.width >= 2.2 + 1.45 * len(self.name) else ""


def stacked(parts: Mapping[str, float], slots: Mapping[str, int]) -> list[Segment]:
    """The parts of a whole, in the order of `slots` and to the full width."""
    whole = sum(parts.values())
    if whole <= 0:
        return []
    segments, at = [], 0.0
    for name in sorted(parts, key=lambda n: slots[n]):
        width = 100 * parts[name] / whole
        if width > 0:
            segments.append(Segment(name, slots[name], _round(at), _round(width), parts[name]))
        at += width
    return segments


# --- histogram of errors ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A bar of a histogram; `over` the bound or within it."""

    at: float
    width: float
    height: float
    over: bool
    title: str


@dataclass(frozen=True)
class ErrorPicture:
    """|error| / bound of every element. Both axes are logarithmic: one bad element among millions must show."""

    columns: tuple[Column, ...]
    total: int
    over: int


def error_picture(histogram: Histogram, on: Axis, height: float) -> ErrorPicture:
    """Place a histogram of |error| / bound on a shared axis; `height` is that of the fullest bin, in pixels."""
    bins = list(zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False))
    fullest = max((n for *_, n in bins), default=0)
    columns = []
    for low, high, number in bins:
        if number <= 0:
            continue
        left, right = on.at(low), on.at(high)
        tall = max(2.0, height * math.log10(1 + number) / math.log10(1 + fullest))
        share = f"{formats.significant(low, 2)} to {formats.significant(high, 2)}"
        title = f"{formats.count(number)} elements with |error| of {share} × the bound"
        columns.append(Column(left, _round(max(0.4, right - left)), _round(tall), low >= 0.999999, title))
    return ErrorPicture(tuple(columns), sum(histogram.counts), sum(n for low, _, n in bins if low >= 0.999999))


def error_axis(histograms: Iterable[Histogram]) -> Axis:
    """One axis for every variant's errors, from the smallest filled bin to at least ten times the bound."""
    low, high = 1e-1, 1e1
    for histogram in histograms:
        filled = [
            (a, b) for a, b, n in zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False) if n > 0
        ]
        low = min([low, *(a for a, _ in filled if a > 0), *(b / 10 for a, b in filled if a <= 0 < b)])
        high = max([high, *(b for _, b in filled if math.isfinite(b))])
    return axis([low, high])


# --- roofline ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RoofPoint:
    """Something measured: `intensity` in FLOP per byte, `flops_per_s` achieved."""

    name: str
    intensity: float
    flops_per_s: float
    kind: str  # variant, baseline, wrong
    detail: str = ""
    labelled: bool = False


@dataclass(frozen=True)
class Ceiling:
    """A measured limit of the machine: bandwidth in bytes/s or arithmetic in FLOP/s."""

    name: str
    value: float
    is_bandwidth: bool
    measured: bool = True


@dataclass(frozen=True)
class PlacedPoint:
    """A point of the picture and its label's line; x in percent, y in pixels from the top."""

    x: float
    y: float
    label_y: float
    anchor: str
    point: RoofPoint


@dataclass(frozen=True)
class Line:
    """A straight line; x in percent, y in pixels."""

    x1: float
    y1: float
    x2: float
    y2: float
    label: str
    label_x: float
    label_y: float
    anchor: str


@dataclass(frozen=True)
class Roofline:
    """A log-log roofline of `height` pixels."""

    height: float
    across: Axis
    rows: tuple[Tick, ...]
    lines: tuple[Line, ...]
    points: tuple[PlacedPoint, ...]


def roofline(points: Sequence[RoofPoint], ceilings: Sequence[Ceiling], height: float = 320.0) -> Roofline | None:
    """Place points under their ceilings; None when there is nothing to place."""
    good = [p for p in points if p.intensity > 0 and p.flops_per_s > 0]
    if not good:
        return None
    bandwidths = [c.value for c in ceilings if c.is_bandwidth and c.value > 0]
    peaks = [c.value for c in ceilings if not c.is_bandwidth and c.value > 0]
    ridges = [peak / bandwidth for peak in peaks for bandwidth in bandwidths]
    xs = [p.intensity for p in good] + ridges
    across = axis([10 ** math.floor(_log(min(xs)) - 0.3), 10 ** math.ceil(_log(max(xs)) + 0.3)])
    tops = [p.flops_per_s for p in good] + peaks
    low, high = 10 ** math.floor(_log(min(tops)) - 0.2), 10 ** math.ceil(_log(max(tops)) + 0.05)
    vertical = _Vertical(low, high, height)
    lines = [_roof(c, across, vertical, peaks) for c in ceilings if c.value > 0]
    return Roofline(
        height, across, vertical.ticks(), tuple(line for line in lines if line), _placed(good, across, vertical)
    )


def _placed(points: Sequence[RoofPoint], across: Axis, vertical: _Vertical) -> tuple[PlacedPoint, ...]:
    """Points from the top down, labels of one column at least a line apart."""
    placed = []
    last: dict[float, float] = {}
    for point in sorted(points, key=lambda p: -p.flops_per_s):
        x, y = across.at(point.intensity), vertical.at(point.flops_per_s)
        label_y = max(y + 4, last.get(x, -math.inf) + _LABEL_LINE)
        if point.labelled:
            last[x] = label_y
        placed.append(PlacedPoint(x, y, round(label_y, 1), "start" if x < 60 else "end", point))
    return tuple(placed)


@dataclass(frozen=True)
class _Vertical:
    """A logarithmic axis in pixels, growing upwards."""

    low: float
    high: float
    height: float

    def at(self, value: float) -> float:
        inner = (_log(value) - _log(self.low)) / (_log(self.high) - _log(self.low))
        return round(self.height * (1 - min(1.0, max(0.0, inner))), 1)

    def ticks(self) -> tuple[Tick, ...]:
        decades = range(round(_log(self.low)), round(_log(self.high)) + 1)
        return tuple(Tick(self.at(10.0**d), formats.rate(10.0**d, "FLOP/s", 1)) for d in decades)


def _roof(ceiling: Ceiling, across: Axis, vertical: _Vertical, peaks: Sequence[float]) -> Line | None:
    """A bandwidth's slope up to the highest peak, or an arithmetic ceiling's flat line."""
    if not ceiling.is_bandwidth:
        y = vertical.at(ceiling.value)
        return Line(
            across.at(across.low), y, across.at(across.high), y, ceiling.name, across.at(across.high), y - 6, "end"
        )
    top = min([vertical.high, *([max(peaks)] if peaks else [])])
    left = max(across.low, vertical.low / ceiling.value)
    right = min(across.high, top / ceiling.value)
    if left >= right:
        return None
    y1, y2 = vertical.at(left * ceiling.value), vertical.at(right * ceiling.value)
    middle = math.sqrt(left * right)
    return Line(
        across.at(left),
        y1,
        across.at(right),
        y2,
        ceiling.name,
        across.at(middle) + 1.5,
        vertical.at(middle * ceiling.value) + 14,
        "start",
    )
