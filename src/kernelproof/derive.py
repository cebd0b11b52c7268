"""`kernelproof derive`: what the repository says was measured, written from the records that it keeps, never by hand.

    reports/reference/<machine>/records/          the kept records of a full run on one machine
    reports/reference/<machine>/calibration.json  how far correct kernels stay from the judge's limits
    csrc/README.md                                tables, between `<!-- derived: OPERATOR TABLE -->` and `<!-- end -->`
    csrc/<operator>/choices.h                     for a dispatcher: which of its rungs was fastest where
    docs/explanation/correctness.md               the judge's margins, in `<!-- derived: calibration margins -->`
    reports/reference/<machine>/selfcheck.json    what the benchmark says of kernels whose time is known
    docs/explanation/selfcheck.md                 its figures, in `<!-- derived: selfcheck lines -->`, and pictures

TABLE is `measured` (each rung's time, rate, ratio to the best peer, resources), `cases` (for each measured case the
fastest rung) or `takes` (what a rung accepts, from the configuration). A dispatcher is a variant with `rungs`; each is
a namespace of its own name.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from kernelproof import config as configuration
from kernelproof import formats, known_times, margins, records, runs, samples
from kernelproof.cases import enumerate_cases
from kernelproof.config import Config, OperatorConfig, VariantConfig
from kernelproof.errors import ConfigError, KernelproofError, RecordError
from kernelproof.formats import ABSENT
from kernelproof.records import (
    BenchCase,
    BenchRecord,
    CalibrationRecord,
    CaptureRecord,
    CeilingsRecord,
    ProfileRecord,
    R,
    SelfcheckRecord,
)

README = Path("csrc") / "README.md"
CHOICES = "choices.h"
CONFIG = "config.json"
MARGINS_PAGE = Path("docs") / "explanation" / "correctness.md"
CALIBRATION = "calibration.json"
SELFCHECK_PAGE = Path("docs") / "explanation" / "selfcheck.md"
SELFCHECK = "selfcheck.json"
KEPT = Path("reports") / "reference"
MODE = "hot"
COMPUTE_BOUND = 50.0  # operations a byte of inputs and outputs; below, bytes a second say more than operations
TENSOR_CORES = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
REGISTERS = "launch__registers_per_thread"
SHARED = ("launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic")

_MARKED = re.compile(r"(<!-- derived: (\w+) (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Derived:
    """A derived file (relative to the root), what it has to be, and whether it is that already."""

    path: str
    text: str
    current: bool


def run(config: Config, *, check: bool = False) -> list[Derived]:
    """Every derived file. Those that differ are written, or with `check` only named.

    Raises KernelproofError where the README or a record is missing or cannot be read.
    """
    kept = _kept(config.root)
    found = [_compared(config.root, README, _readme(config, kept)), *_margins(config.root), *_selfchecks(config.root)]
    for operator in config.operators.values():
        for variant in operator.variants.values():
            if variant.rungs:
                path = Path(variant.sources[0]).with_name(CHOICES)
                found.append(_compared(config.root, path, _choices(operator, variant, kept)))
    for file in found:
        if not check and not file.current:
            records.atomic_write(config.root / file.path, file.text)
    return found


def _compared(root: Path, path: Path, text: str) -> Derived:
    target = root / path
    return Derived(str(path), text, target.is_file() and target.read_text(encoding="utf-8") == text)


# --- the records ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """The records of one machine."""

    name: str  # of its folder
    files: Mapping[str, bytes]
    known: dict[str, Any] = field(default_factory=dict)  # records, once they were asked for

    def read(self, kind: type[R], *names: str) -> R | None:
        """A record, or None where there is none."""
        path = f"{'/'.join(names)}.json"
        if path in self.files and path not in self.known:
            self.known[path] = records.parse(self.files[path], kind, str(KEPT / self.name / "records" / path))
        found: R | None = self.known.get(path)
        return found

    @cached_property
    def config(self) -> Config | None:
        """The run's own configuration, None where it was not kept or is of another version."""
        with contextlib.suppress(KeyError, ValueError, ConfigError):
            return configuration.of_run(json.loads(self.files[CONFIG]), f"{self.name}: {CONFIG}")
        return None

    def idea(self, variant: VariantConfig) -> str:
        """What a variant was when it was measured."""
        operator = self.config.operators.get(variant.operator) if self.config else None
        measured = operator.variants.get(variant.name) if operator else None
        return measured.idea if measured else variant.idea

    @cached_property
    def gpu(self) -> dict[str, str]:
        """The GPU as the capture stage found it; empty without one."""
        capture = self.read(CaptureRecord, "capture", "capture")
        found = capture.probes.get("gpu") if capture else None
        return {key: str(value) for key, value in found.value[0].items()} if found and found.value else {}


def _kept(root: Path) -> list[Kept]:
    """Every kept machine. Raises BundleError for records that are not those of the manifest beside them."""
    folders = sorted(path.parent for path in (root / KEPT).glob("*/records"))
    return [Kept(folder.name, runs.kept_records(folder)) for folder in folders]


# --- pages of the documentation ---------------------------------------------------------------------------------------


def _margins(root: Path) -> Iterator[Derived]:
    """The page with the judge's margins, where a project has one that asks for them."""
    kept = [records.read(path, CalibrationRecord) for path in sorted((root / KEPT).glob(f"*/{CALIBRATION}"))]
    yield from _page(root, MARGINS_PAGE, ("calibration", "margins"), lambda: margins.lines(kept))


def _selfchecks(root: Path) -> Iterator[Derived]:
    """The page of the selfchecks and a file a picture, where a project has one that asks for them."""
    paths = sorted((root / KEPT).glob(f"*/{SELFCHECK}"))
    kept = {path.parent.name: records.read(path, SelfcheckRecord) for path in paths}
    folder = SELFCHECK_PAGE.with_suffix("")
    asked = list(_page(root, SELFCHECK_PAGE, ("selfcheck", "lines"), lambda: known_times.lines(kept, folder.name)))
    yield from asked
    for name, record in kept.items() if asked else ():
        for what, text in known_times.pictures(record).items():
            yield _compared(root, folder / f"{name}-{what}.svg", text)


def _page(root: Path, page: Path, asked: tuple[str, str], lines: Callable[[], list[str]]) -> Iterator[Derived]:
    """A page with its marked part replaced; nothing where there is no such page, or it asks for nothing."""
    text = (root / page).read_text(encoding="utf-8") if (root / page).is_file() else ""

    def replaced(match: re.Match[str]) -> str:
        opening, subject, table, _, closing = match.groups()
        if (subject, table) != asked:
            raise KernelproofError(f"no table {subject} {table}; allowed: {' '.join(asked)}", subject=str(page))
        return opening + "\n".join(["", *lines(), "", closing])

    if _MARKED.search(text):
        yield _compared(root, page, _MARKED.sub(replaced, text))


# --- the README -------------------------------------------------------------------------------------------------------


def _readme(config: Config, kept: Sequence[Kept]) -> str:
    path = config.root / README
    if not path.is_file():
        raise KernelproofError(
            "there is no such file",
            subject=str(README),
            hint="make one with a line `<!-- derived: OPERATOR measured -->` and below it `<!-- end -->`",
        )

    def replaced(match: re.Match[str]) -> str:
        opening, operator, table, _, closing = match.groups()
        tables = {"measured": _measured, "cases": _cases, "takes": _takes}
        if table not in tables:
            raise KernelproofError(f"no table {table!r}; allowed: {', '.join(tables)}", subject=str(README))
        return opening + "\n".join(["", *tables[table](config.operator(operator), kept), "", closing])

    return _MARKED.sub(replaced, path.read_text(encoding="utf-8"))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines]


def _link(variant: VariantConfig) -> str:
    return (
        f"[`{variant.name}`]({os.path.relpath(variant.sources[0], README.parent)})" if variant.sources else variant.name
    )


def _measured(operator: OperatorConfig, kept: Sequence[Kept]) -> list[str]:
    """A table for each machine, the rungs of a device numbered as in the configuration."""
    lines: list[str] = []
    for machine in kept:
        lines += [*_machine(operator, machine), ""]
    return lines[:-1] or [
        *_table(_head(operator), [_row(operator, *numbered, None) for numbered in _numbered(operator)])
    ]


def _machine(operator: OperatorConfig, machine: Kept) -> Iterator[str]:
    bench = machine.read(BenchRecord, "bench", f"{operator.name}-cuda")
    commit = bench.provenance.words if bench else ""
    name = machine.gpu.get("name", machine.name)
    of = f" at {commit}" if commit else ""
    page = os.path.relpath(KEPT / machine.name / "summary.md", README.parent)
    yield f"{name}{of}, hot ([all of it]({page})):"
    yield ""
    yield from _table(_head(operator), [_row(operator, *numbered, machine) for numbered in _numbered(operator)])


def _head(operator: OperatorConfig) -> list[str]:
    large = _large(operator)
    return [
        "", "rung", "idea", f"`{operator.profile.shape}`, µs", "to the best peer", f"`{large}`" if large else "large",
        "registers, shared memory", "tensor cores busy",
    ]  # fmt: skip


def _numbered(operator: OperatorConfig) -> Iterator[tuple[str, VariantConfig]]:
    number = 0
    for variant in operator.variants.values():
        if variant.device == "cuda":
            number += 1
        yield str(number) if variant.device == "cuda" else "CPU", variant


def _large(operator: OperatorConfig) -> str | None:
    """The largest benchmarked shape, unless it is the main one."""
    names = [*operator.bench.shapes, *operator.bench.cuda_shapes]
    largest = max(names, key=lambda name: math.prod(operator.shapes[name].values()))
    return None if largest == operator.profile.shape else largest


def _row(operator: OperatorConfig, number: str, variant: VariantConfig, machine: Kept | None) -> list[str]:
    bench = machine.read(BenchRecord, "bench", f"{operator.name}-{variant.device}") if machine else None
    profile = machine.read(ProfileRecord, "profile", operator.name, variant.name) if machine else None
    main, large = (_case(operator, variant, bench, shape) for shape in (operator.profile.shape, _large(operator)))
    return [
        number,
        _link(variant),
        machine.idea(variant) if machine else variant.idea,
        _time(bench, variant, main),
        _to_best(bench, variant, main),
        _rate(bench, variant, large, machine),
        *_resources(profile),
    ]


def _case(
    operator: OperatorConfig, variant: VariantConfig, bench: BenchRecord | None, shape: str | None
) -> BenchCase | None:
    """A variant's first case of a shape, if it was measured."""
    known = {case.id: case for case in bench.cases} if bench else {}
    wanted = [case.bench_id for case in enumerate_cases(operator, variant, "bench") if case.shape == shape]
    return known.get(wanted[0]) if wanted else None


def _median_us(bench: BenchRecord | None, name: str, case: BenchCase | None) -> float | None:
    deciding = samples.PRIMARY.values()
    for row in bench.times if bench and case else []:
        if (row.contender, row.case, row.mode) == (name, case and case.id, MODE) and row.method in deciding:
            return row.median_us
    return None


def _time(bench: BenchRecord | None, variant: VariantConfig, case: BenchCase | None) -> str:
    median_us = _median_us(bench, variant.name, case)
    return ABSENT if median_us is None else formats.significant(median_us)


def _to_best(bench: BenchRecord | None, variant: VariantConfig, case: BenchCase | None) -> str:
    for row in bench.oracle if bench and case else []:
        if (row.variant, row.case, row.mode) == (variant.name, case and case.id, MODE) and row.ratio is not None:
            return f"{formats.ratio(row.ratio)} `{row.best_baseline}`"
    return ABSENT


def _rate(bench: BenchRecord | None, variant: VariantConfig, case: BenchCase | None, machine: Kept | None) -> str:
    """Operations a second; bytes where the operator moves them and does little else, with their share of a copy's."""
    median_us = _median_us(bench, variant.name, case)
    if case is None or median_us is None:
        return ABSENT
    moved = case.bytes_read + case.bytes_written
    if case.flops >= COMPUTE_BOUND * moved:
        return formats.rate(case.flops / (median_us * 1e-6), "FLOP/s")
    reached = moved / (median_us * 1e-6)
    ceilings = machine.read(CeilingsRecord, "bench", "ceilings", variant.device) if machine else None
    copy = ceilings.get("copy") if ceilings else None
    of = f", {formats.percent(reached / copy.median, 0)} of the copy bandwidth" if copy else ""
    return formats.rate(reached, "B/s") + of


def _resources(profile: ProfileRecord | None) -> tuple[str, str]:
    """Registers a thread with shared memory a block, and the share of time in which tensor cores worked."""
    kernel = max(profile.kernels, key=lambda kernel: kernel.duration_us, default=None) if profile else None
    if kernel is None:
        return ABSENT, ABSENT

    def value(name: str) -> float | None:
        metric = kernel.metrics.get(name)
        return metric.value if metric and isinstance(metric.value, (int, float)) else None

    registers, shared, tensor = value(REGISTERS), [value(name) for name in SHARED], value(TENSOR_CORES)
    known = [part for part in shared if part is not None]
    used = f"{formats.count(registers)}, {formats.size(sum(known)) if known else ABSENT}"
    return used, ABSENT if tensor is None else formats.percent(tensor / 100)


def _cases(operator: OperatorConfig, kept: Sequence[Kept]) -> list[str]:
    """A table for each machine: of every case that was measured on its GPU the fastest rung."""
    lines: list[str] = []
    head = ["case", "fastest rung", "µs", "rate", "to the best peer", "interval"]
    for machine in kept:
        bench = machine.read(BenchRecord, "bench", f"{operator.name}-cuda")
        rows = [row for case in (bench.cases if bench else []) if (row := _fastest(operator, bench, case, machine))]
        lines += [f"{machine.gpu.get('name', machine.name)}, hot:", "", *_table(head, rows), ""]
    return lines[:-1] or _table(head, [])


def _fastest(operator: OperatorConfig, bench: BenchRecord | None, case: BenchCase, machine: Kept) -> list[str] | None:
    timed = {name: _median_us(bench, name, case) for name, rung in operator.variants.items() if not rung.rungs}
    known = {name: median_us for name, median_us in timed.items() if median_us is not None}
    if not known:
        return None
    best = operator.variants[min(known, key=lambda name: known[name])]
    figures = [f"`{case.id}`", _link(best), _time(bench, best, case), _rate(bench, best, case, machine)]
    return [*figures, _to_best(bench, best, case), _interval(bench, best, case)]


def _interval(bench: BenchRecord | None, variant: VariantConfig, case: BenchCase) -> str:
    for row in bench.oracle if bench else []:
        if (row.variant, row.case, row.mode) == (variant.name, case.id, MODE):
            return formats.interval(row.low, row.high)
    return ABSENT


def _takes(operator: OperatorConfig, kept: Sequence[Kept]) -> list[str]:
    """What each rung accepts, by its declaration."""
    return _table(["", "rung", "data types", "limits", "machine code for"], [
        [
            number,
            _link(variant),
            formats.listed(variant.dtypes),
            "; ".join(_limit(name, values) for name, values in {**variant.limits, **variant.options}.items()) or "none",
            "the host" if variant.device == "cpu" else formats.listed(variant.archs or ["every architecture"]),
        ]
        for number, variant in _numbered(operator)
    ])  # fmt: skip


def _limit(name: str, values: Sequence[object]) -> str:
    return f"{name} {', '.join(str(value).lower() for value in values)}"


# --- the dispatcher's choices -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """One case on one machine: which calls of the dispatcher it stands for, and the times of rungs, µs."""

    key: tuple[object, ...]  # what a row of the table begins with
    place: str  # the machine and the case
    times: dict[str, float]


def _choices(operator: OperatorConfig, variant: VariantConfig, kept: Sequence[Kept]) -> str:
    rows: dict[tuple[object, ...], list[Measured]] = {}  # GPUs of one compute capability share a row
    for machine in kept:
        for measured in _measured_choices(operator, variant, machine):
            rows.setdefault(measured.key, []).append(measured)
    if not rows:
        raise RecordError(
            "no kept record has a time of any of its rungs",
            subject=variant.key,
            hint=f"keep the records of a run on a GPU under {KEPT}/<gpu>/records",
        )
    declared = [
        f"namespace {rung} {{\nKERNELPROOF_HIDDEN const char *launch(const AttentionArgs &args, void *stream);\n}}"
        for rung in sorted(variant.rungs)
    ]
    lines = [line for key, row in rows.items() for line in _choice_lines(key, row)]
    return CHOICES_TEXT.format(declared="\n".join(declared), rungs=len(variant.rungs), lines="\n".join(lines))


def _measured_choices(operator: OperatorConfig, variant: VariantConfig, machine: Kept) -> Iterator[Measured]:
    """The cases of one machine, in the dispatcher's first data type: the others cost the same."""
    bench = machine.read(BenchRecord, "bench", f"{operator.name}-{variant.device}")
    major, _, minor = machine.gpu.get("compute_capability", "0.0").partition(".")
    for case in bench.cases if bench else []:
        times = {rung: median for rung in variant.rungs if (median := _median_us(bench, rung, case)) is not None}
        if times and case.dtype == variant.dtypes[0]:
            dims, causal = case.dims, "true" if case.options.get("causal") else "false"
            query_rows, key_rows = dims["batch"] * dims["heads"] * dims["seq"], dims.get("seq_k", dims["seq"])
            key = (10 * int(major) + int(minor), causal, dims["head_dim"], query_rows, key_rows)
            yield Measured(key, f"{machine.name}, {case.id}", times)


def _choice_lines(key: Sequence[object], row: Sequence[Measured]) -> Iterator[str]:
    """The rungs by their times over those of the fastest, averaged over the machines that have one; and the times."""

    def slower_than_best(rung: str) -> float:
        return fmean(math.log(each.times[rung] / min(each.times.values())) for each in row if rung in each.times)

    rungs = sorted({rung for each in row for rung in each.times}, key=lambda rung: (slower_than_best(rung), rung))
    for each in row:
        times = [f"{formats.significant(each.times[rung])} µs" if rung in each.times else "–" for rung in rungs]
        yield f"    // {each.place}: {', '.join(times)}"
    yield f"    {{{', '.join(map(str, key))}, {{{', '.join(f'{rung}::launch' for rung in rungs)}}}}},"


CHOICES_TEXT = """\
// Which rung was fastest where. Written by `kernelproof derive` from the records in reports/reference/.
#pragma once

#include "launch.h"

{declared}

using Launch = const char *(*)(const AttentionArgs &args, void *stream);

// A case that was measured, on every GPU of a compute capability.
struct Choice {{
    int capability;  // of the GPU: 90 for compute capability 9.0
    bool causal;
    int64_t head_dim;
    int64_t query_rows;  // of all heads and batches together
    int64_t key_rows;
    Launch rungs[{rungs}];  // the fastest first, by times over the best one's; null: no more
}};

// clang-format off
constexpr Choice kChoices[] = {{
{lines}
}};
// clang-format on
"""
