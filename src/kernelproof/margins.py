"""How far correct kernels stay from the judge's limits, as text: from the records of benchmarks/calibrate.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from kernelproof import formats
from kernelproof.formats import ABSENT
from kernelproof.records import CalibrationRecord, Combination

HEAD = ("operator", "kernel", "data types", "runs, cases", "(a) bound", "(b) RMS", "(c) bias", "(c) suite")
FIGURES = ("bound", "rms", "bias", "suite")


def lines(kept: Iterable[CalibrationRecord]) -> list[str]:
    """A paragraph and a table for each machine; above 1 is an accusation."""
    found: list[str] = []
    for record in kept:
        found += [_summary(record), "", *_table(record), "", *_remarks(record)]
    return found[:-1] or ["No calibration is kept."]


def _summary(record: CalibrationRecord) -> str:
    runs = [run for one in record.combinations for run in one.runs]
    accused = sum(bool(run.accusations) for run in runs)
    commit = f", {words}" if (words := record.provenance.words) else ""
    correct = sum(climb.verdict == "correct" for climb in record.climbs)
    cases, exact = sum(run.cases for run in runs), sum(run.exact for run in runs)
    text = (
        f"{record.device}, torch {record.torch}{commit}: {len(runs)} runs of {len(record.combinations)} combinations "
        f"of kernel, data type and layout, each under a seed of its own; {cases:,} cases and {exact:,} exact calls. "
        f"Runs in which somebody was accused: {accused}."
    )
    if record.climbs:
        text += f" Through the whole ladder: {correct} of {len(record.climbs)} kernels correct."
    return text


def _table(record: CalibrationRecord) -> Iterator[str]:
    yield "| " + " | ".join(HEAD) + " |"
    yield "| " + " | ".join("---" for _ in HEAD) + " |"
    for (operator, kernel), group in itertools.groupby(record.combinations, lambda one: (one.operator, one.kernel)):
        yield "| " + " | ".join([operator, kernel, *_row(list(group))]) + " |"


def _row(combinations: Sequence[Combination]) -> Iterator[str]:
    """Data types, counts and ratios of a kernel; layouts are one figure, data types are set apart by strokes."""
    dtypes = dict.fromkeys(one.dtype for one in combinations)
    runs = [run for one in combinations for run in one.runs]
    yield " / ".join(dtypes)
    yield f"{len(runs)}, {sum(run.cases for run in runs):,}"
    for figure in FIGURES:
        yield " / ".join(_largest([one for one in combinations if one.dtype == dtype], figure) for dtype in dtypes)


def _largest(combinations: Sequence[Combination], figure: str) -> str:
    known = [value for one in combinations for run in one.runs if (value := getattr(run.margins, figure)) is not None]
    return f"{max(known):.2f}" if known else ABSENT


def _remarks(record: CalibrationRecord) -> Iterator[str]:
    """Who was accused, and of what; what was not run; an empty line at the end. The record has every word."""
    said = [_accusation(name, list(group)) for name, group in itertools.groupby(record.combinations, _kernel)]
    said += [
        f"- on the ladder: {climb.kernel}: {climb.verdict}: {formats.one_line(climb.reason or 'no reason given')}"
        for climb in record.climbs
        if climb.verdict != "correct"
    ]
    said += [f"- left out: {name}: {why}." for name, why in record.left_out.items()]
    if any(said):
        yield from filter(None, said)
        yield ""


def _kernel(combination: Combination) -> str:
    return combination.kernel


def _accusation(kernel: str, combinations: Sequence[Combination]) -> str:
    """A line, or nothing. An accusation begins with the case and the criterion."""
    runs = [run for one in combinations for run in one.runs]
    accused = [run for run in runs if run.accusations]
    criteria = dict.fromkeys(words.split(": ")[1] for run in accused for words in run.accusations)
    return f"- accused: {kernel} in {len(accused)} of {len(runs)} runs ({', '.join(criteria)})" if accused else ""
