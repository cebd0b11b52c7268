"""From records to what the report shows: one small dataclass for each thing on the page.

Everything is decided here (what is said first, in which order, with which word and colour); the templates only lay it
out. Views hold plain figures where a template formats them, and positions from `charts` where a template draws them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelproof import charts, formats
from kernelproof.charts import Axis
from kernelproof.records import (
    FAILED,
    NOT_RUN,
    OK,
    BenchCase,
    BenchRecord,
    BudgetRow,
    BuildRecord,
    CaptureRecord,
    CaseResult,
    Cubin,
    HotLine,
    KernelResources,
    ManifestRecord,
    OracleRow,
    Probe,
    ProfiledKernel,
    ProfileRecord,
    Provenance,
    Record,
    RuleAdvice,
    Rung,
    TestRecord,
    TimeRow,
    Verdict,
)

STAGES = ("capture", "build", "test", "bench", "profile", "manifest")
RUNGS = ("build", "load", "launch", "sanity", "correctness", "determinism")
PRIMARY_METHODS = ("graph_slope", "cpu_clock")
METHODS = {
    "graph_slope": "graph slope",
    "cpu_clock": "clock",
    "event_pair": "event pair",
    "cupti": "CUPTI",
    "ncu": "Nsight Compute",
    "eager": "eager",
    "floor": "floor",
}
HISTOGRAM_HEIGHT = 34.0  # pixels
ROOFLINE_CASES = 6


@dataclass(frozen=True)
class Limits:
    """How much detail the page takes in; a page over its size limit is rendered again with the next smaller set."""

    failing_cases: int = 40
    message_characters: int = 6000
    kernels: int = 24
    bench_cases: int = 40
    members: int = 400
    packages: int = 400
    hot_lines: int = 12


LIMITS = (
    Limits(),
    Limits(15, 2000, 8, 12, 80, 80, 6),
    Limits(4, 600, 3, 4, 12, 12, 3),
)


@dataclass(frozen=True)
class Settings:
    """What the page needs of the configuration."""

    project: str
    max_ratio: float = 0.95
    same_band: float = 0.005
    confidence: float = 0.95
    profile_shapes: Mapping[str, str] = field(default_factory=dict)
    profile_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ideas: Mapping[str, str] = field(default_factory=dict)
    gated: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Unreadable:
    """A record that the manifest lists and that could not be read."""

    path: str
    message: str


@dataclass
class Records:
    """Every record of a run."""

    manifest: ManifestRecord
    capture: CaptureRecord | None = None
    builds: list[BuildRecord] = field(default_factory=list)
    tests: list[TestRecord] = field(default_factory=list)
    benches: list[BenchRecord] = field(default_factory=list)
    profiles: list[ProfileRecord] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)


@dataclass(frozen=True)
class Badge:
    """A short word with a meaning: kind is good, bad, warn, muted or info."""

    kind: str
    word: str
    title: str = ""


BADGES = {
    "correct": Badge("good", "correct"),
    "wrong": Badge("bad", "wrong"),
    "crashed": Badge("bad", "crashed"),
    "hung": Badge("bad", "hung"),
    "failed_to_build": Badge("bad", "failed to build"),
    "not_run": Badge("muted", "not run"),
    "missing": Badge("muted", "no record"),
    "ok": Badge("good", "built"),
    "failed": Badge("bad", "failed"),
    "passed": Badge("good", "passed"),
    "skipped": Badge("muted", "skipped"),
    "faster": Badge("good", "faster"),
    "same": Badge("info", "same"),
    "slower": Badge("warn", "slower"),
    "undecided": Badge("info", "undecided"),
}


def badge(word: str, **words: str) -> Badge:
    """The badge for a record's word; `words` renames it here (`ok='profiled'`)."""
    known = BADGES.get(word, Badge("muted", word.replace("_", " ")))
    return Badge(known.kind, words.get(word, known.word))


# --- verdict ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Speed:
    """A variant against the fastest correct baseline, in one case."""

    ratio: float
    low: float
    high: float
    baseline: str
    case: str
    mode: str
    whisker: charts.Whisker
    passed: bool


@dataclass(frozen=True)
class VerdictRow:
    """One variant of the verdict table."""

    name: str
    idea: str
    correctness: Badge
    build: Badge | None
    speed_word: Badge | None
    gate: Badge | None
    gate_note: str
    speed: Speed | None
    reason: str
    bad: bool


@dataclass(frozen=True)
class VerdictGroup:
    """One operator on one device."""

    operator: str
    device: str
    sentence: str
    rows: tuple[VerdictRow, ...]
    baselines: tuple[VerdictRow, ...]
    axis: Axis | None
    one_at: float
    gate_at: float


@dataclass(frozen=True)
class Headline:
    """The verdict in one sentence. kind: good, bad or warn."""

    kind: str
    word: str
    sentence: str
    details: tuple[str, ...]


@dataclass(frozen=True)
class StageNote:
    """How a stage went, for the strip under the headline and the heading of its section."""

    name: str
    badge: Badge
    note: str


def _speeds(records: Records, settings: Settings) -> dict[tuple[str, str], tuple[OracleRow, BenchCase | None]]:
    """For each (operator, variant) the oracle's row that stands for it: the profiled shape, hot, where there is one."""
    chosen: dict[tuple[str, str], tuple[OracleRow, BenchCase | None]] = {}
    for bench in records.benches:
        cases = {case.id: case for case in bench.cases}
        for row in bench.oracle:
            key = (bench.operator, row.variant)
            rank = _case_rank(bench, cases.get(row.case), row.mode, settings)
            if key not in chosen or rank < _case_rank(bench, chosen[key][1], chosen[key][0].mode, settings):
                chosen[key] = (row, cases.get(row.case))
    return chosen


def _case_rank(bench: BenchRecord, case: BenchCase | None, mode: str, settings: Settings) -> tuple[int, ...]:
    """Smaller stands better for the whole: the profiled shape and options first, hot before cold."""
    if case is None:
        return (2, 99, 1)
    wanted = settings.profile_options.get(bench.operator, {})
    different = sum(case.options.get(name) != value for name, value in wanted.items())
    set_flags = sum(value is True for name, value in case.options.items() if name not in wanted)
    return (int(case.shape != settings.profile_shapes.get(bench.operator)), different * 10 + set_flags, int(mode != "hot"))


def verdict_groups(records: Records, settings: Settings) -> list[VerdictGroup]:
    """The verdict tables, in the order of the configuration."""
    speeds = _speeds(records, settings)
    oracle: dict[tuple[str, str], list[OracleRow]] = defaultdict(list)
    for bench in records.benches:
        for row in bench.oracle:
            oracle[bench.operator, row.variant].append(row)
    groups: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for verdict in records.manifest.verdicts:
        groups[verdict.operator, verdict.device].append(verdict)
    return [
        _verdict_group(operator, device, verdicts, speeds, oracle, settings)
        for (operator, device), verdicts in groups.items()
    ]


def _verdict_group(
    operator: str,
    device: str,
    verdicts: Sequence[Verdict],
    speeds: Mapping[tuple[str, str], tuple[OracleRow, BenchCase | None]],
    oracle: Mapping[tuple[str, str], Sequence[OracleRow]],
    settings: Settings,
) -> VerdictGroup:
    known = [speeds[operator, v.variant][0] for v in verdicts if (operator, v.variant) in speeds]
    figures = [x for r in known for x in (r.ratio, r.low, r.high) if x is not None and x > 0]
    on = charts.axis([*figures, 1.0, settings.max_ratio], "×") if figures else None

    def row(verdict: Verdict) -> VerdictRow:
        chosen = speeds.get((operator, verdict.variant))
        speed = _speed(chosen, on)
        rows = oracle.get((operator, verdict.variant), [])
        gated = f"{operator}/{verdict.variant}" in settings.gated
        build = badge(verdict.build) if verdict.build not in ("", "none", "not_needed") else None
        return VerdictRow(
            verdict.variant,
            settings.ideas.get(f"{operator}/{verdict.variant}", ""),
            badge(verdict.correctness),
            build,
            badge(verdict.speed) if speed and verdict.speed in BADGES else None,
            _gate_badge(speed, gated),
            f"{sum(r.passed for r in rows)} of {formats.plural(len(rows), 'case')}" if speed else "",
            speed,
            _why(verdict, chosen),
            verdict.bad,
        )

    ours = tuple(row(v) for v in verdicts if v.role == "variant")
    baselines = tuple(row(v) for v in verdicts if v.role != "variant")
    sentence = _group_sentence(ours, settings)
    return VerdictGroup(
        operator, device, sentence, ours, baselines, on, on.at(1.0) if on else 0, on.at(settings.max_ratio) if on else 0
    )


def _speed(chosen: tuple[OracleRow, BenchCase | None] | None, on: Axis | None) -> Speed | None:
    if chosen is None or on is None:
        return None
    row, case = chosen
    if row.ratio is None or row.low is None or row.high is None or row.best_baseline is None:
        return None
    title = f"{formats.ratio(row.ratio)} the time of {row.best_baseline}, interval {formats.interval(row.low, row.high)}"
    drawn = charts.whisker(on, row.ratio, row.low, row.high, "ratio", title)
    where = case_label(case) if case else row.case
    return Speed(row.ratio, row.low, row.high, row.best_baseline, where, row.mode, drawn, row.passed)


def _gate_badge(speed: Speed | None, gated: bool) -> Badge | None:
    if speed is None:
        return None
    if speed.passed:
        return Badge("good", "passes")
    return Badge("bad", "fails") if gated else Badge("muted", "above", "not held to the gate by the configuration")


def _why(verdict: Verdict, chosen: tuple[OracleRow, BenchCase | None] | None) -> str:
    if verdict.reason:
        return verdict.reason
    if chosen and chosen[0].ratio is None:
        return chosen[0].reason
    return ""


def _group_sentence(rows: Sequence[VerdictRow], settings: Settings) -> str:
    timed = [r for r in rows if r.speed is not None and r.correctness.word == "correct"]
    if not rows:
        return "Only baselines here."
    if not timed:
        running = [r for r in rows if r.correctness.word != "not run"]
        return "No correct variant was timed." if running else "Nothing ran on this device."
    best = min(timed, key=lambda r: r.speed.ratio if r.speed else math.inf)
    speed = best.speed
    assert speed is not None
    level = f"{100 * settings.confidence:g}{formats.THIN}%"
    return (
        f"The fastest correct variant, {best.name}, takes {formats.ratio(speed.ratio)} the time of {speed.baseline} "
        f"({level} interval {formats.interval(speed.low, speed.high)}; {speed.case}, {speed.mode})."
    )


def headline(records: Records, groups: Sequence[VerdictGroup]) -> Headline:
    """The one sentence: how many variants are correct, what is wrong with the others, and the gate."""
    rows = [(g, r) for g in groups for r in g.rows]
    by_word: dict[str, list[str]] = defaultdict(list)
    for _, r in rows:
        by_word[r.correctness.word].append(r.name)
    correct = len(by_word.get("correct", []))
    if not rows:
        return Headline("warn", "nothing to judge", "There is no variant to judge.", ())
    sentence = f"{_correct_words(correct, len(rows))}{_gate_words([r for _, r in rows], correct)}."
    details = [
        f"{formats.listed(names)} {_verb(word, len(names))}."
        for word, names in by_word.items()
        if word not in ("correct", "not run")
    ]
    if waiting := by_word.get("not run"):
        reasons = Counter(r.reason for _, r in rows if r.correctness.word == "not run" and r.reason)
        why = f": {reasons.most_common(1)[0][0].rstrip('.')}" if reasons else ""
        details.append(f"{formats.listed(waiting)} {'was' if len(waiting) == 1 else 'were'} not run{why}.")
    details += [f"{r.name}: {r.reason.rstrip('.')}." for _, r in rows if r.bad and r.correctness.word == "correct"]
    bad = records.manifest.overall == "bad" or any(v.bad for v in records.manifest.verdicts) or bool(records.unreadable)
    short = records.manifest.overall == "incomplete" or waiting
    kind, word = ("bad", "Not accepted") if bad else ("warn", "Incomplete") if short else ("good", "Accepted")
    return Headline(kind, word, sentence, tuple(details))


def _correct_words(correct: int, number: int) -> str:
    if number == 1:
        return f"The variant is {'correct' if correct else 'not shown to be correct'}"
    if correct == number:
        return f"All {number} variants are correct"
    return f"{correct or 'None'} of {number} variants {'is' if correct < 2 else 'are'} correct"


def _gate_words(rows: Sequence[VerdictRow], correct: int) -> str:
    timed = [row.gate for row in rows if row.gate and row.correctness.word == "correct"]
    passing = sum(gate.kind == "good" for gate in timed)
    if not timed:
        return ", and no speed was measured" if correct else ""
    if passing:
        return f", and {'it' if len(rows) == 1 else 'all' if passing == len(rows) else passing} {'passes' if passing == 1 else 'pass'} the speed gate"
    return "; it does not pass the speed gate" if len(rows) == 1 else "; none passes the speed gate"


def _verb(word: str, number: int) -> str:
    if word == "no record":
        return "has no record of a test" if number == 1 else "have no record of a test"
    if word == "wrong":
        return f"{'is' if number == 1 else 'are'} {word}"
    return word


def stage_notes(records: Records) -> list[StageNote]:
    """How each stage went, in one badge each."""
    by_stage: dict[str, Sequence[Record]] = {
        "capture": [records.capture] if records.capture else [],
        "build": records.builds,
        "test": records.tests,
        "bench": records.benches,
        "profile": records.profiles,
    }
    return [_stage_note(name, found) for name, found in by_stage.items()]


def _stage_note(name: str, found: Sequence[Record]) -> StageNote:
    status = Counter(record.status for record in found)
    spent = formats.seconds(sum(record.duration_s for record in found))
    if not found:
        return StageNote(name, Badge("muted", "no record"), "no record of this stage")
    number = formats.plural(len(found), "record")
    if status[OK] == len(found):
        return StageNote(name, Badge("good", "ran"), f"{number}, {spent}")
    if status[NOT_RUN] == len(found):
        return StageNote(name, Badge("muted", "not run"), number)
    parts = [f"{status[s]} {w}" for s, w in ((OK, "ran"), (FAILED, "failed"), (NOT_RUN, "not run")) if status[s]]
    return StageNote(name, Badge("bad" if status[FAILED] else "info", ", ".join(parts)), f"{number}, {spent}")


# --- environment ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fact:
    """A line of a list of facts."""

    name: str
    value: str


@dataclass(frozen=True)
class ProbeView:
    """A probe of the capture stage, its value flattened into lines."""

    name: str
    badge: Badge
    facts: tuple[Fact, ...]
    error: str
    left_out: int


PROBE_TITLES = {
    "cpu": "CPU",
    "os": "Operating system",
    "gpu": "GPU",
    "cuda_toolchain": "CUDA toolchain",
    "python": "Python",
    "packages": "Packages",
    "git": "Git",
    "container": "Container",
    "environment": "Environment variables",
    "limits": "Limits",
}


def probes(capture: CaptureRecord | None, limits: Limits) -> list[ProbeView]:
    """Every probe, in the order of the record."""
    return [_probe(name, probe, limits) for name, probe in (capture.probes.items() if capture else ())]


def _probe(name: str, probe: Probe, limits: Limits) -> ProbeView:
    facts = [] if probe.value is None else list(flatten(probe.value))
    word = {"ok": Badge("good", "ok"), "failed": Badge("bad", "failed"), "absent": Badge("muted", "absent")}
    return ProbeView(
        PROBE_TITLES.get(name, name.replace("_", " ")),
        word.get(probe.status, Badge("muted", probe.status)),
        tuple(facts[: limits.packages]),
        probe.error or "",
        max(0, len(facts) - limits.packages),
    )


def machine(capture: CaptureRecord | None) -> list[Fact]:
    """The few facts that everybody asks for first; what a probe could not find is said instead."""
    if capture is None:
        return []
    found = {name: probe.value for name, probe in capture.probes.items() if probe.status == OK}
    lines = [
        ("GPU", _gpu_line(capture.probes.get("gpu"))),
        ("CPU", _join(found.get("cpu"), ("model", "{}"), ("usable_cores", "{} cores usable"))),
        ("memory", _join(found.get("memory"), ("total_bytes", "{}"))),
        ("system", _join(found.get("os"), ("name", "{}"), ("kernel", "kernel {}"))),
        ("Python", _join(found.get("python"), ("version", "{}"))),
        ("torch", _join(found.get("packages"), ("torch", "{}"))),
        ("nvcc", _join(_mapping(found.get("cuda_toolchain")).get("nvcc"), ("version", "{}"), ("origin", "from {}"))),
        ("host compiler", _join(found.get("host_compiler"), ("version", "{}"))),
    ]
    return [Fact(name, text) for name, text in lines if text]


def _gpu_line(probe: Probe | None) -> str:
    if probe is None:
        return ""
    if probe.status != OK:
        return "no NVIDIA GPU" if probe.status == "absent" else f"GPU not known: {probe.error or 'the probe failed'}"
    boards = probe.value if isinstance(probe.value, list) else [probe.value]
    parts = ("name", "{}"), ("compute_capability", "sm {}"), ("driver", "driver {}"), ("power_limit_w", "{} W limit")
    return "; ".join(_join(board, *parts) for board in boards)


def _join(value: Any, *parts: tuple[str, str]) -> str:
    known = _mapping(value)
    return ", ".join(text.format(shown_as(name, known[name])) for name, text in parts if known.get(name) is not None)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def flatten(value: Any, name: str = "", key: str = "") -> Iterable[Fact]:
    """Nested data as lines `a.b` = value; lists of plain values on one line."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            label = _words(str(key).removesuffix("_bytes"))
            yield from flatten(inner, f"{name} · {label}" if name else label, str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        for number, inner in enumerate(value):
            yield from flatten(inner, f"{name} {number}" if name else str(number), key)
    else:
        yield Fact(name or "value", shown_as(key, value))


def _words(key: object) -> str:
    return str(key).replace("_", " ")


def shown_as(key: str, value: Any) -> str:
    """A plain value whose name tells its unit: sizes and hashes are shortened."""
    if key.endswith("_bytes") and isinstance(value, int):
        return formats.size(value)
    if "sha256" in key and isinstance(value, str):
        return value[:16]
    return shown(value)


def shown(value: Any) -> str:
    """A plain value of a record in words."""
    if value is None or value == "" or value == []:
        return formats.ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return formats.significant(value, 4)
    if isinstance(value, list):
        return ", ".join(shown(item) for item in value)
    return str(value)


# --- build ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelRow:
    """A kernel's resources on one architecture; `over` holds the resources above the budget, with their limits."""

    arch: str
    resources: KernelResources
    over: Mapping[str, int]


def short_name(demangled: str, limit: int = 90) -> str:
    """A kernel's name without return type and parameter list; template arguments stay, since they tell kernels apart."""
    name = formats.one_line(demangled, 2000).removeprefix("void ")
    depth = 0
    for position, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and position and not name.startswith("(anonymous", position):
            name = name[:position]
            break
    return name if len(name) <= limit else f"{name[: limit - 1]}…"


@dataclass(frozen=True)
class MixBar:
    """The instruction mix of a variant on one architecture."""

    arch: str
    total: int
    segments: tuple[charts.Segment, ...]
    counts: Mapping[str, int]


@dataclass(frozen=True)
class BuildView:
    """One variant's build."""

    record: BuildRecord
    badge: Badge
    kernels: tuple[KernelRow, ...]
    kernels_left_out: int
    mixes: tuple[MixBar, ...]
    over_budget: tuple[BudgetRow, ...]
    within_budget: bool | None
    message: str
    macros: tuple[str, ...]


@dataclass(frozen=True)
class BuildsView:
    """All builds and the legend that their instruction mixes share."""

    views: tuple[BuildView, ...]
    legend: tuple[tuple[int, str], ...]
    identical: tuple[tuple[str, ...], ...]


# The order in which classes are stacked: arithmetic, then memory, then the rest. A class that is not here counts as other.
INSTRUCTION_CLASSES = (
    "tensor",
    "fp16",
    "fp32",
    "fp64",
    "special function",
    "conversion",
    "integer",
    "matrix load/store",
    "shared memory",
    "async copy",
    "global memory",
    "local memory",
    "constant memory",
    "warp exchange",
    "barrier",
    "control",
    "move",
    "other",
)
SLOTS = {name: slot for slot, name in enumerate(INSTRUCTION_CLASSES)}


def builds(records: Records, limits: Limits) -> BuildsView:
    """Builds in the order of the records."""
    views = tuple(_build(record, limits) for record in records.builds)
    present = {segment.name for view in views for mix in view.mixes for segment in mix.segments}
    return BuildsView(
        views,
        tuple((slot, name) for name, slot in SLOTS.items() if name in present),
        tuple(tuple(group) for group in records.manifest.identical_machine_code),
    )


def _build(record: BuildRecord, limits: Limits) -> BuildView:
    over: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for row in record.budget:
        if not row.ok:
            over[row.arch, row.kernel][row.what] = row.limit
    kernels = [
        KernelRow(c.arch, k, over.get((c.arch, k.name)) or over.get((c.arch, k.demangled)) or {})
        for c in record.cubins
        for k in c.kernels
    ]
    failing = tuple(row for row in record.budget if not row.ok)
    return BuildView(
        record,
        badge(record.status),
        tuple(kernels[: limits.kernels]),
        max(0, len(kernels) - limits.kernels),
        tuple(_mix(c) for c in record.cubins if c.instruction_mix),
        failing,
        not failing if record.budget else None,
        formats.excerpt(record.compiler_message or "", limits.message_characters),
        tuple(name if value is None else f"{name}={value}" for name, value in record.macros.items()),
    )


def _mix(cubin: Cubin) -> MixBar:
    counts: Counter[str] = Counter()
    for name, number in cubin.instruction_mix.items():
        counts[name if name in SLOTS else "other"] += number
    return MixBar(cubin.arch, counts.total(), tuple(charts.stacked(counts, SLOTS)), dict(counts))


# --- test -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One cell of the correctness matrix."""

    kind: str  # good, bad, muted, none
    mark: str
    figure: str
    title: str


@dataclass(frozen=True)
class MatrixRow:
    """A line of the matrix: one shape, option or input family."""

    name: str
    note: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class MatrixPart:
    """A block of the matrix."""

    title: str
    rows: tuple[MatrixRow, ...]


@dataclass(frozen=True)
class TestView:
    """One variant's test."""

    record: TestRecord
    badge: Badge
    rungs: tuple[Rung | None, ...]
    passed: int
    failed: int
    skipped: int
    worst_bound: float | None
    worst_rms: float | None
    worst_bias: float | None
    picture: charts.ErrorPicture | None
    failing: tuple[CaseResult, ...]
    failing_left_out: int
    message: str


@dataclass(frozen=True)
class TestGroup:
    """All tests of one operator."""

    operator: str
    columns: tuple[TestView, ...]
    with_cases: tuple[TestView, ...]
    parts: tuple[MatrixPart, ...]
    fresh_seeds: tuple[int, ...]
    axis: Axis
    bound_at: float


def tests(records: Records, limits: Limits) -> list[TestGroup]:
    """Tests by operator; variants before baselines."""
    by_operator: dict[str, list[TestRecord]] = defaultdict(list)
    for record in records.tests:
        by_operator[record.operator].append(record)
    return [
        _test_group(operator, sorted(found, key=lambda r: r.role != "variant"), limits)
        for operator, found in by_operator.items()
    ]


def _test_group(operator: str, found: Sequence[TestRecord], limits: Limits) -> TestGroup:
    on = charts.error_axis(r.error_histogram for r in found if r.error_histogram)
    columns = tuple(_test(record, on, limits) for record in found)
    with_cases = [r for r in found if r.cases]
    parts = [
        _part("By shape", with_cases, lambda c: c.shape, _dims_note),
        _part("By input family", with_cases, lambda c: c.family, lambda c: ""),
        _part("By option and type", with_cases, _option_key, lambda c: ""),
    ]
    seeds = dict.fromkeys(r.fresh_seed for r in found if r.fresh_seed is not None)
    return TestGroup(
        operator,
        columns,
        tuple(c for c in columns if c.record.cases),
        tuple(p for p in parts if p.rows),
        tuple(seeds),
        on,
        on.at(1.0),
    )


def _test(record: TestRecord, on: Axis, limits: Limits) -> TestView:
    status = Counter(case.status for case in record.cases)
    failing = [case for case in record.cases if case.status == FAILED]
    rungs = {rung.name: rung for rung in record.rungs}
    message = next((r.message for r in record.rungs if r.status == FAILED and r.message), record.reason) or ""
    return TestView(
        record,
        badge(record.verdict),
        tuple(rungs.get(name) for name in RUNGS),
        status["passed"],
        status[FAILED],
        status["skipped"],
        _worst(c.max_bound_ratio for c in record.cases),
        _worst(c.rms_ratio for c in record.cases),
        _worst(c.bias_ratio for c in record.cases),
        charts.error_picture(record.error_histogram, on, HISTOGRAM_HEIGHT) if record.error_histogram else None,
        tuple(failing[: limits.failing_cases]),
        max(0, len(failing) - limits.failing_cases),
        formats.excerpt(message, min(limits.message_characters, 1200)),
    )


def _worst(values: Iterable[float | None]) -> float | None:
    return max((abs(v) for v in values if v is not None), default=None)


def _part(
    title: str,
    found: Sequence[TestRecord],
    key: Callable[[CaseResult], str],
    note: Callable[[CaseResult], str],
) -> MatrixPart:
    notes: dict[str, str] = {}
    cells: dict[tuple[str, int], list[CaseResult]] = defaultdict(list)
    for column, record in enumerate(found):
        for case in record.cases:
            notes.setdefault(key(case), note(case))
            cells[key(case), column].append(case)
    rows = [
        MatrixRow(name, text, tuple(_cell(cells.get((name, column), [])) for column in range(len(found))))
        for name, text in notes.items()
    ]
    return MatrixPart(title, tuple(rows))


def _cell(cases: Sequence[CaseResult]) -> Cell:
    ran = [c for c in cases if c.status != "skipped"]
    if not cases:
        return Cell("none", "", "", "no case")
    if not ran:
        return Cell("muted", formats.ABSENT, "skip", cases[0].reason or f"{formats.plural(len(cases), 'case')} skipped")
    failed = [c for c in ran if c.status == FAILED]
    worst = max(failed or ran, key=lambda c: math.inf if c.nonfinite else (c.max_bound_ratio or 0.0))
    figure = "NaN" if worst.nonfinite else formats.significant(worst.max_bound_ratio, 2)
    error = formats.significant(worst.max_abs_error, 2)
    title = f"{formats.plural(len(ran), 'case')}, {len(failed)} failed; worst {worst.id}: largest error {error}"
    if failed:
        criteria = sorted({f.criterion for c in failed for f in c.failures})
        title += f"; criteria not met: {', '.join(criteria)}" if criteria else ""
        return Cell("bad", "✗", figure, title)
    return Cell("good", "✓", figure, title)


def dims_text(dims: Mapping[str, int]) -> str:
    """`batch 1 · heads 8 · …`, in the operator's own names."""
    return " · ".join(f"{_words(name)}{formats.THIN}{value}" for name, value in dims.items())


def _dims_note(case: CaseResult) -> str:
    return dims_text(case.dims)


def _option_key(case: CaseResult) -> str:
    return " · ".join([*_options(case.options), case.dtype])


def _options(options: Mapping[str, bool | str]) -> list[str]:
    return [name if value is True else f"not {name}" if value is False else str(value) for name, value in options.items()]


# --- bench ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BenchRow:
    """One contender in one case."""

    name: str
    ours: bool
    badge: Badge | None
    best: bool
    whiskers: tuple[charts.Whisker, ...]
    floors: tuple[float, ...]
    hot: TimeRow | None
    cold: TimeRow | None
    floor_us: float | None
    ratio: str
    ratio_interval: str
    speed: Badge | None
    flags: tuple[str, ...]


@dataclass(frozen=True)
class MethodRow:
    """One contender's time by every method, in one mode."""

    name: str
    mode: str
    cells: tuple[TimeRow | None, ...]
    flags: tuple[str, ...]


@dataclass(frozen=True)
class CaseView:
    """All contenders of one case."""

    case: BenchCase
    label: str
    dims: str
    cost: str
    unit: formats.TimeUnit
    axis: Axis
    rows: tuple[BenchRow, ...]
    best_at: float | None
    methods: tuple[str, ...]
    method_rows: tuple[MethodRow, ...]


@dataclass(frozen=True)
class RoofView:
    """A roofline, how its ceilings came about, and the case whose points are named."""

    picture: charts.Roofline
    note: str
    labelled: str


@dataclass(frozen=True)
class OracleLine:
    """One case and mode, with a cell for each variant."""

    case: str
    mode: str
    baseline: str
    cells: tuple[OracleRow | None, ...]


@dataclass(frozen=True)
class OracleView:
    """The oracle's rows as a table, and why variants did not pass."""

    variants: tuple[str, ...]
    lines: tuple[OracleLine, ...]
    reasons: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class BenchView:
    """One operator on one device."""

    record: BenchRecord
    first: CaseView | None
    others: tuple[CaseView, ...]
    left_out: int
    oracle: OracleView
    absent: tuple[tuple[str, Badge, str], ...]
    states: tuple[Fact, ...]
    kernels: tuple[tuple[str, str], ...]
    discarded: tuple[str, ...]
    roof: RoofView | None


def benches(records: Records, settings: Settings, limits: Limits) -> list[BenchView]:
    """Benchmarks in the order of the records."""
    profiled = {(p.operator, p.variant): p for p in records.profiles if p.status == OK}
    return [_bench(record, profiled, settings, limits) for record in records.benches]


def case_label(case: BenchCase) -> str:
    """`mission, causal, bshd, float16`."""
    return ", ".join([case.shape, *(o for o in _options(case.options) if not o.startswith("not ")), case.dtype])


def primary(times: Iterable[TimeRow]) -> list[TimeRow]:
    """The rows by the method that decides: graph slope on a GPU, the clock on a CPU."""
    rows = list(times)
    for method in PRIMARY_METHODS:
        if found := [row for row in rows if row.method == method]:
            return found
    return [row for row in rows if row.method not in ("floor", "eager")]


def _bench(
    record: BenchRecord, profiled: Mapping[tuple[str, str], ProfileRecord], settings: Settings, limits: Limits
) -> BenchView:
    ordered = sorted(record.cases, key=lambda c: _case_rank(record, c, "hot", settings))
    timed = {row.case for row in record.times}
    ordered = [case for case in ordered if case.id in timed]
    views = [_case(record, case, profiled) for case in ordered[: limits.bench_cases]]
    labels = {case.id: case_label(case) for case in record.cases}
    absent = [
        (c.name, badge(c.verdict), c.outcome) for c in record.contenders if not any(t.contender == c.name for t in record.times)
    ]
    return BenchView(
        record,
        views[0] if views else None,
        tuple(views[1:]),
        max(0, len(ordered) - limits.bench_cases),
        _oracle(record, labels),
        tuple(absent),
        tuple(flatten(record.states)),
        tuple((name, _launches(found)) for name, found in record.kernels_in_interval.items()),
        tuple(", ".join(f"{_words(k)} {shown(v)}" for k, v in entry.items()) for entry in record.discarded[: limits.failing_cases]),
        _roof(record, profiled, ordered),
    )


def _oracle(record: BenchRecord, labels: Mapping[str, str]) -> OracleView:
    variants = tuple(dict.fromkeys(row.variant for row in record.oracle))
    cells = {(row.case, row.mode, row.variant): row for row in record.oracle}
    lines = []
    for case, mode in dict.fromkeys((row.case, row.mode) for row in record.oracle):
        found = tuple(cells.get((case, mode, name)) for name in variants)
        baseline = next((row.best_baseline for row in found if row and row.best_baseline), "")
        lines.append(OracleLine(labels.get(case, case), mode, baseline, found))
    reasons = [
        (name, tuple(dict.fromkeys(r.reason for r in record.oracle if r.variant == name and r.reason and not r.passed)))
        for name in variants
    ]
    return OracleView(variants, tuple(lines), tuple((name, why) for name, why in reasons if why))


def _launches(found: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(f"{shown(k.get('count', 1))} × {k.get('name', '')}" for k in found)


def _case(record: BenchRecord, case: BenchCase, profiled: Mapping[tuple[str, str], ProfileRecord]) -> CaseView:
    times = [row for row in record.times if row.case == case.id]
    deciding = primary(times)
    floors = [row for row in times if row.method == "floor"]
    unit = formats.time_unit(row.median_us for row in deciding)
    figures = [x for row in [*deciding, *floors] for x in (row.median_us, row.low_us, row.high_us) if x > 0]
    on = charts.axis(figures, unit.symbol, unit.scale)
    best = _best_baseline(record, case.id, deciding)
    best_row = next((r for r in deciding if r.contender == best and r.mode == _first_mode(record)), None)
    contenders = [c for c in record.contenders if any(t.contender == c.name for t in deciding)]
    rows = [_bench_row(record, case, c.name, deciding, floors, on, best) for c in contenders]
    rows.sort(key=lambda r: (r.hot or r.cold).median_us if (r.hot or r.cold) else math.inf)  # type: ignore[union-attr]
    methods = [m for m in METHODS if any(t.method == m for t in times)]
    methods += sorted({t.method for t in times} - set(methods))
    method_rows = _method_rows(record, case, times, methods, profiled)
    if any(cell and cell.method == "ncu" for row in method_rows for cell in row.cells[-1:]):
        methods = [*methods, "ncu"]
    return CaseView(
        case,
        case_label(case),
        dims_text(case.dims),
        f"{formats.rate(case.flops, 'FLOP')}, {formats.size(case.bytes_read)} read, {formats.size(case.bytes_written)} written",
        unit,
        on,
        tuple(rows),
        on.at(best_row.median_us) if best_row else None,
        tuple(methods),
        tuple(method_rows),
    )


def _first_mode(record: BenchRecord) -> str:
    return "hot" if "hot" in record.modes or not record.modes else record.modes[0]


def _best_baseline(record: BenchRecord, case: str, deciding: Sequence[TimeRow]) -> str | None:
    """The oracle's choice, or the fastest correct baseline where no variant was judged."""
    mode = _first_mode(record)
    for row in record.oracle:
        if row.case == case and row.mode == mode and row.best_baseline:
            return row.best_baseline
    correct = {c.name for c in record.contenders if c.role != "variant" and c.correct}
    found = [row for row in deciding if row.contender in correct and row.mode == mode]
    return min(found, key=lambda r: r.median_us).contender if found else None


def _bench_row(
    record: BenchRecord,
    case: BenchCase,
    name: str,
    deciding: Sequence[TimeRow],
    floors: Sequence[TimeRow],
    on: Axis,
    best: str | None,
) -> BenchRow:
    contender = next(c for c in record.contenders if c.name == name)
    mine = {row.mode: row for row in deciding if row.contender == name}
    my_floors = [row for row in floors if row.contender == name]
    hot, cold = mine.get("hot"), mine.get("cold")
    first = mine.get(_first_mode(record))
    ratio, interval, speed = "", "", None
    for row in record.ratios:
        if (row.variant, row.baseline, row.case, row.mode) == (name, best, case.id, _first_mode(record)):
            ratio, interval, speed = formats.ratio(row.ratio), formats.interval(row.low, row.high), badge(row.verdict)
    best_row = next((r for r in deciding if r.contender == best and r.mode == _first_mode(record)), None)
    if not ratio and first and best_row and best_row.median_us > 0:
        ratio = "1×" if name == best else f"≈{formats.THIN}{formats.ratio(first.median_us / best_row.median_us)}"
    flags = [flag for row in record.times if row.contender == name and row.case == case.id for flag in row.flags]
    return BenchRow(
        name,
        contender.role == "variant",
        None if contender.correct else badge(contender.verdict),
        name == best,
        tuple(_time_whisker(on, row) for row in mine.values()),
        tuple(sorted({on.at(row.median_us) for row in my_floors})),
        hot,
        cold,
        min((row.median_us for row in my_floors), default=None),
        ratio,
        interval,
        speed if contender.correct else None,
        tuple(dict.fromkeys(flags)),
    )


def _time_whisker(on: Axis, row: TimeRow) -> charts.Whisker:
    title = (
        f"{row.contender}, {row.mode}: {formats.time_us(row.median_us)}, interval {formats.time_us(row.low_us)} to "
        f"{formats.time_us(row.high_us)}, {formats.plural(row.samples, 'sample')} in {formats.plural(row.processes, 'process', 'processes')}"
    )
    return charts.whisker(on, row.median_us, row.low_us, row.high_us, row.mode, title)


def _method_rows(
    record: BenchRecord,
    case: BenchCase,
    times: Sequence[TimeRow],
    methods: Sequence[str],
    profiled: Mapping[tuple[str, str], ProfileRecord],
) -> list[MethodRow]:
    rows: list[MethodRow] = []
    durations = {c.name: _ncu_time(profiled.get((record.operator, c.name)), case) for c in record.contenders}
    with_ncu = any(durations.values())
    for contender in record.contenders:
        modes = dict.fromkeys(t.mode for t in times if t.contender == contender.name)
        for number, mode in enumerate(modes):
            mine = {t.method: t for t in times if t.contender == contender.name and t.mode == mode}
            cells = [mine.get(method) for method in methods]
            if with_ncu:
                # Nsight Compute empties the caches before its one launch, so it stands beside the cold times.
                here = mode == "cold" or (number == len(modes) - 1 and "cold" not in modes)
                cells.append(durations[contender.name] if here else None)
            flags = dict.fromkeys(flag for t in mine.values() for flag in t.flags)
            rows.append(MethodRow(contender.name, mode, tuple(cells), tuple(flags)))
    return rows


def _ncu_time(profile: ProfileRecord | None, case: BenchCase) -> TimeRow | None:
    if profile is None or not profile.kernels or not (profile.case == case.id or profile.case.startswith(f"{case.id}-")):
        return None
    spent = sum(kernel.duration_us for kernel in profile.kernels)
    return TimeRow(profile.variant, case.id, "cold", "ncu", spent, spent, spent, 1, 1)


# --- roofline ---------------------------------------------------------------------------------------------------------

def _roof(
    record: BenchRecord, profiled: Mapping[tuple[str, str], ProfileRecord], cases: Sequence[BenchCase]
) -> RoofView | None:
    """The cost model's intensity against the rate achieved hot: variants, and each case's best baseline."""
    points: list[charts.RoofPoint] = []
    mode = _first_mode(record)
    for number, case in enumerate(cases[:ROOFLINE_CASES]):
        deciding = [r for r in primary(t for t in record.times if t.case == case.id) if r.mode == mode]
        points += _roof_points(record, case, deciding, everybody=number == 0)
    ceilings = _ceilings(record, profiled)
    picture = charts.roofline(points, ceilings)
    return RoofView(picture, _roof_note(ceilings), case_label(cases[0]) if len(cases) > 1 else "") if picture else None


def _roof_points(
    record: BenchRecord, case: BenchCase, deciding: Sequence[TimeRow], *, everybody: bool
) -> list[charts.RoofPoint]:
    """The fastest correct variant and the best baseline of a case; with `everybody`, all variants, and with names."""
    contenders = {c.name: c for c in record.contenders}
    moved = case.bytes_read + case.bytes_written
    ours = [r for r in deciding if contenders[r.contender].role == "variant" and r.median_us > 0]
    correct = [r for r in ours if contenders[r.contender].correct]
    chosen = ours if everybody else sorted(correct, key=lambda r: r.median_us)[:1]
    best = _best_baseline(record, case.id, deciding)
    points = []
    for row in [*chosen, *(r for r in deciding if r.contender == best and r.median_us > 0)]:
        contender = contenders[row.contender]
        kind = "baseline" if contender.role != "variant" else "variant" if contender.correct else "wrong"
        if moved > 0:
            rate = case.flops / (row.median_us * 1e-6)
            points.append(charts.RoofPoint(row.contender, case.flops / moved, rate, kind, case_label(case), everybody))
    return points


def _ceilings(record: BenchRecord, profiled: Mapping[tuple[str, str], ProfileRecord]) -> list[charts.Ceiling]:
    """Ceilings that bench measured (`states.ceilings`) and, where there is none of a kind, those of the GPU's counters."""
    own = record.states.get("ceilings")
    counters: dict[str, float] = {}
    for (operator, _), profile in profiled.items():
        for kernel in profile.kernels if operator == record.operator else ():
            for name, value in kernel.roofline.items():
                if name.startswith("peak_"):
                    counters[name] = max(value, counters.get(name, 0.0))
    found = [_ceiling(name, value, True) for name, value in own.items()] if isinstance(own, Mapping) else []
    measured = {c.is_bandwidth for c in found if c}
    found += [c for name, value in counters.items() if (c := _ceiling(name, value, False)) and c.is_bandwidth not in measured]
    return [c for c in found if c]


def _ceiling(name: str, value: Any, measured: bool) -> charts.Ceiling | None:
    """`…_bytes_per_s` is a bandwidth and `…_flops_per_s` an arithmetic rate; anything else is no ceiling."""
    if not isinstance(value, int | float) or value <= 0:
        return None
    for ending, unit, bandwidth in (("_bytes_per_s", "B/s", True), ("_flops_per_s", "FLOP/s", False)):
        if name.endswith(ending):
            label = f"{_words(name.removesuffix(ending))}{'' if measured else ' by the counters'}, {formats.rate(value, unit)}"
            return charts.Ceiling(label, float(value), bandwidth, measured)
    return None


def _roof_note(ceilings: Sequence[charts.Ceiling]) -> str:
    if not ceilings:
        return "No ceiling was measured on this machine, so none is drawn; datasheet figures are not used."
    if all(c.measured for c in ceilings):
        return "The ceilings were measured on this machine."
    return "Ceilings ‘by the counters’ are this GPU’s peak as its counters tell it, at the clocks of the profiled launch."


# --- profile ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MetricBar:
    """A metric in percent of its peak, drawn as a bar."""

    name: str
    metric: str
    percent: float


@dataclass(frozen=True)
class MetricRow:
    """Any other metric."""

    name: str
    metric: str
    value: str


@dataclass(frozen=True)
class ProfiledKernelView:
    """One profiled launch."""

    kernel: ProfiledKernel
    launch: str
    bars: tuple[MetricBar, ...]
    metrics: tuple[MetricRow, ...]
    rules: tuple[RuleAdvice, ...]
    hot_lines: tuple[HotLine, ...]


@dataclass(frozen=True)
class ProfileView:
    """One variant's profile."""

    record: ProfileRecord
    badge: Badge
    kernels: tuple[ProfiledKernelView, ...]


METRIC_NAMES = {
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "Compute (SM) throughput",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "Memory throughput",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM throughput",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "L2 throughput",
    "lts__t_sectors.avg.pct_of_peak_sustained_elapsed": "L2 sectors",
    "l1tex__throughput.avg.pct_of_peak_sustained_active": "L1 throughput",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": "Tensor cores",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": "Tensor cores (active)",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "Achieved occupancy",
    "dram__sectors_read.sum": "DRAM sectors read",
    "dram__sectors_write.sum": "DRAM sectors written",
    "dram__bytes_read.sum": "DRAM bytes read",
    "dram__bytes_write.sum": "DRAM bytes written",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": "Shared-memory load bank conflicts",
    "smsp__inst_executed_pipe_tensor.sum": "Tensor instructions",
    "smsp__inst_executed_pipe_fma.sum": "FMA instructions",
    "smsp__thread_inst_executed_per_inst_executed.ratio": "Threads per instruction",
    "launch__occupancy_limit_registers": "Blocks allowed by registers",
    "launch__occupancy_limit_shared_mem": "Blocks allowed by shared memory",
    "launch__registers_per_thread": "Registers a thread",
    "sm__maximum_warps_per_active_cycle_pct": "Theoretical occupancy",
}


def profiles(records: Records, limits: Limits) -> list[ProfileView]:
    """Profiles that hold kernels; what did not run is told elsewhere."""
    return [
        ProfileView(p, badge(p.status, ok="profiled"), tuple(_profiled(k, limits) for k in p.kernels[: limits.kernels]))
        for p in records.profiles
        if p.kernels
    ]


def _profiled(kernel: ProfiledKernel, limits: Limits) -> ProfiledKernelView:
    bars, rows = [], []
    for metric, found in kernel.metrics.items():
        name = METRIC_NAMES.get(metric, metric)
        if found.unit == "%" and isinstance(found.value, (int, float)):
            bars.append(MetricBar(name, metric, float(found.value)))
        else:
            unit = f"{formats.THIN}{found.unit}" if found.unit else ""
            rows.append(MetricRow(name, metric, f"{formats.significant(found.value, 4)}{unit}"))
    order = list(METRIC_NAMES)
    bars.sort(key=lambda b: order.index(b.metric) if b.metric in METRIC_NAMES else len(order))
    rules = sorted(kernel.rules, key=lambda r: -(r.estimated_speedup_percent or 0.0))
    lines = sorted(kernel.hot_lines, key=lambda line: -line.share)[: limits.hot_lines]
    launch = f"grid {_by(kernel.grid)}, block {_by(kernel.block)}, {formats.time_us(kernel.duration_us)}"
    return ProfiledKernelView(kernel, launch, tuple(bars), tuple(rows), tuple(rules), tuple(lines))


def _by(numbers: Sequence[int]) -> str:
    return "×".join(str(n) for n in numbers)


# --- what did not run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NotRun:
    """Work that was not done or failed for one reason: what it would have been, why, and what to do about it."""

    stage: str
    badge: Badge
    subjects: tuple[str, ...]
    reason: str
    remedy: str


def not_run(records: Records) -> list[NotRun]:
    """Everything that a stage did not do, grouped by reason."""
    found: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)

    def add(stage: str, record: Record, subject: str) -> None:
        if record.status != OK:
            key = (stage, record.status, formats.one_line(record.reason or "no reason recorded", 600), record.remedy or "")
            found[key].append(subject)

    if records.capture is None:
        found["capture", NOT_RUN, "there is no record of the machine", "run `kernelproof capture`"].append("the machine")
    else:
        add("capture", records.capture, "the machine")
        for name, probe in records.capture.probes.items():
            if probe.status == FAILED:
                found["capture", FAILED, formats.one_line(probe.error or "no error recorded"), ""].append(name)
    for build in records.builds:
        add("build", build, f"{build.operator}/{build.variant}")
    for test in records.tests:
        add("test", test, f"{test.operator}/{test.variant}")
    for bench in records.benches:
        add("bench", bench, f"{bench.operator} on {bench.device}")
    for profile in records.profiles:
        add("profile", profile, f"{profile.operator}/{profile.variant}")
    for gap in records.manifest.missing:
        stage = gap.get("stage", "run")
        subject = gap.get("what") or gap.get("subject") or gap.get("path") or gap.get("record") or ""
        key = (stage, NOT_RUN, formats.one_line(gap.get("reason", "no record"), 600), gap.get("remedy") or "")
        if subject not in found[key]:
            found[key].append(subject)
    for gone in records.unreadable:
        found["records", FAILED, formats.one_line(gone.message, 600), "run the stage again"].append(gone.path)
    return [
        NotRun(stage, badge(status), tuple(subject for subject in subjects if subject), reason, remedy)
        for (stage, status, reason, remedy), subjects in found.items()
    ]


# --- how to reproduce, manifest ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasuredRow:
    """From which state of the repository records come."""

    what: str
    commit: str
    state: str
    utc: str


@dataclass(frozen=True)
class ClassTotal:
    """How many members of a class, and how large."""

    name: str
    meaning: str
    number: int
    bytes: int


@dataclass(frozen=True)
class ReproduceView:
    """Commits and commands."""

    bundle: MeasuredRow
    measured: tuple[MeasuredRow, ...]
    apart: bool
    commit: str
    dirty: bool
    diff: str
    commands: tuple[tuple[str, str], ...]


CLASSES = {
    "identity": "must be equal, byte for byte, when replayed",
    "measurement": "compared statistically",
    "context": "for information",
}


def reproduce(records: Records) -> ReproduceView:
    """Which commit was measured, which is bundled, and what to type."""
    manifest = records.manifest
    here = manifest.provenance
    states: dict[tuple[str, bool, str], list[tuple[str, Provenance]]] = defaultdict(list)
    for what, state in manifest.measured.items():
        states[state.commit or "", state.dirty, state.diff_sha256 or ""].append((what, state))
    rows = tuple(
        _measured(", ".join(_words(w) for w, _ in group), max((p for _, p in group), key=lambda p: p.utc))
        for group in states.values()
    )
    apart = any(key != (here.commit or "", here.dirty, here.diff_sha256 or "") for key in states)
    newest = max((p for group in states.values() for _, p in group), key=lambda p: p.utc, default=here)
    return ReproduceView(
        _measured("this report and bundle", here),
        rows,
        apart,
        newest.commit or "",
        newest.dirty,
        (newest.diff_sha256 or "")[:8],
        _commands(records, newest),
    )


def _measured(what: str, state: Provenance) -> MeasuredRow:
    if state.commit is None:
        shown_state = f"no git repository; tree {(state.diff_sha256 or '')[:8]}"
    else:
        shown_state = f"dirty, difference {(state.diff_sha256 or '')[:8]}" if state.dirty else "clean"
    return MeasuredRow(what, state.commit or formats.ABSENT, shown_state, state.utc)


def _commands(records: Records, state: Provenance) -> tuple[tuple[str, str], ...]:
    commands = []
    if state.commit:
        commands.append(("the code that was measured", f"git checkout {state.commit}"))
    commands.append(("everything again, from nothing", "./repro.sh --fresh"))
    tested = next((t for t in records.tests if t.status == OK and t.role == "variant"), None)
    if tested:
        commands.append(("one variant's tests", f"kernelproof test --operator {tested.operator} --variant {tested.variant}"))
    bench = next((b for b in records.benches if b.status == OK and b.cases), None)
    if bench:
        name = next((c.name for c in bench.contenders if c.role == "variant" and c.correct), None)
        if name:
            select = f"--operator {bench.operator} --variant {name} --shape {bench.cases[0].shape}"
            commands.append(("one launch, for a profiler", f"kernelproof bench {select} --once"))
    commands.append(("is the bundle whole and unchanged?", "kernelproof verify kernelproof-*.tar.gz"))
    return tuple(commands)


def class_totals(manifest: ManifestRecord) -> list[ClassTotal]:
    """Members by class."""
    names = [*CLASSES, *sorted({m.member_class for m in manifest.members} - set(CLASSES))]
    totals = []
    for name in names:
        sizes = [m.bytes for m in manifest.members if m.member_class == name]
        if sizes:
            totals.append(ClassTotal(name, CLASSES.get(name, ""), len(sizes), sum(sizes)))
    return totals
