"""What `kernelproof selfcheck` found, as text and pictures: from the records that are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kernelproof import charts, formats, rendering
from kernelproof.charts import IntervalRow, Picture
from kernelproof.records import SelfcheckRecord

HELD = {True: "held", False: "**not held**", None: "not decided"}
NAMES = {
    "accuracy": "accuracy",
    "false_positives": "false positives",
    "power_2_percent": "a true +2 %",
    "power_1_percent": "a true +1 %",
    "coverage": "coverage of the 95 % interval",
    "repeatability": "repeatability of a ratio",
    "repeatability_shortest": "the same, shortest kernel",
    "seconds": "seconds a kernel, shape and process",
    "overhead": "share of wall time that measures",
    "cold": "cold inputs from memory",
    "speed_do_bench": "wall time of `triton.testing.do_bench`",
    "speed_do_bench_cudagraph": "wall time of `do_bench_cudagraph`",
    "speed_nvbench": "wall time of nvbench, single calls",
    "speed_nvbench_batch": "wall time of nvbench, batches",
}
TITLES = {
    "accuracy": "What a kernel's time is over the time it waits by a clock",
    "same": "A kernel compared with itself: every ratio with its 95 % interval",
    "different": "Kernels that take 1 and 2 % longer: every ratio with its 95 % interval",
}
BAND = (0.995, 1.005)
HOLDS, MISSES = "holds", "misses"  # an interval and the known ratio


def lines(kept: Mapping[str, SelfcheckRecord], folder: str) -> list[str]:
    """A paragraph, a table and the pictures (in `folder`, relative to the page) of each machine."""
    found: list[str] = []
    for name, record in kept.items():
        found += [f"## {record.machine}", "", _summary(record), "", *_table(record), ""]
        for what in pictures(record):
            found += [f"![{TITLES[what]}]({folder}/{name}-{what}.svg)", ""]
    return found[:-1] or ["No selfcheck is kept."]


def _summary(record: SelfcheckRecord) -> str:
    commit = f", {words}" if (words := record.provenance.words) else ""
    driver = f", driver {record.driver}" if record.driver else ""
    load = f" Load average {record.load_before:g} before and {record.load_after:g} after."
    return (
        f"{record.machine}{driver}, torch {record.torch}{commit}: {record.processes} processes, compared in groups of "
        f"{record.group}; {record.twins} kernels of one kind; {formats.seconds(record.duration_s)} in all.{load}"
    )


def _table(record: SelfcheckRecord) -> Iterator[str]:
    yield "| line | target | measured | verdict | of what |"
    yield "| --- | --- | --- | --- | --- |"
    for line in record.lines:
        figure = formats.ABSENT if line.value is None else f"{formats.significant(line.value)} {line.unit}".strip()
        cells = [NAMES.get(line.name, line.name), line.target, figure, HELD[line.held], line.detail]
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def pictures(record: SelfcheckRecord) -> dict[str, str]:
    """SVG files by name, those for which the record has figures."""
    data = record.data
    made = {
        "accuracy": _accuracy(data.get("accuracy") or {}),
        "same": _same(data.get("same") or []),
        "different": _different(data.get("different") or []),
    }
    return {name: _svg(name, picture) for name, picture in made.items() if picture}


def _accuracy(found: Mapping[str, Any]) -> Picture | None:
    rows = [
        IntervalRow(
            f"{point['waited_us']:.3f} µs",
            point["over_us"],
            point["over_us"],
            point["over_us"],
            HOLDS,
            f"waits {point['waited_us']:.3f} µs, takes {point['measured_us']:.3f} µs",
        )
        for point in found.get("points", [])
    ]
    marks = {found["intercept_us"]: "intercept of the line"} if rows else {}
    return charts.interval_picture(rows, marks, unit="µs", row_height=22.0)


def _same(rows: Iterable[list[float]]) -> Picture | None:
    found = []
    before = None
    for nominal_us, _, ratio, low, high in sorted(rows, key=lambda row: (row[0], row[2])):
        label = "" if nominal_us == before else f"{nominal_us:g} µs"
        before = nominal_us
        found.append(_row(label, ratio, low, high, 1.0))
    marks = {1.0: "the same", BAND[0]: "−0.5 %", BAND[1]: "+0.5 %"}
    return charts.interval_picture(found, marks, row_height=max(1.5, min(8.0, 600 / max(1, len(found)))))


def _different(rows: Iterable[list[Any]]) -> Picture | None:
    found = []
    before, marks = None, {}
    for kind, _, ratio, low, high, truth in sorted(rows, key=lambda row: (row[0], row[2])):
        label = "" if kind == before else f"+{kind.removeprefix('plus_')} %"
        before = kind
        marks[truth] = f"true {truth:.4f}"
        found.append(_row(label, ratio, low, high, truth))
    marks[BAND[1]] = "+0.5 %"
    return charts.interval_picture(found, marks, row_height=max(2.0, min(8.0, 600 / max(1, len(found)))))


def _row(label: str, ratio: float, low: float, high: float, truth: float) -> IntervalRow:
    kind = HOLDS if low <= truth <= high else MISSES
    return IntervalRow(label, ratio, low, high, kind, f"{ratio:.4f}, {low:.4f} to {high:.4f}")


def _svg(name: str, picture: Picture) -> str:
    return rendering.render("intervals.svg.j2", title=TITLES[name], picture=picture)
