"""What every part of the page shares: settings, limits, the records, badges, and values in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelproof import claims, formats
from kernelproof.records import (
    DECIDES_NOTHING,
    BenchCase,
    BenchRecord,
    BuildRecord,
    CaptureRecord,
    CeilingsRecord,
    ManifestRecord,
    OptionValue,
    ProfileRecord,
    RatioRow,
    TestRecord,
    option_id,
)


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
    hover: bool = True  # texts that show where the pointer rests
    advice: int = 20  # of a kernel
    counters: bool = True  # of a kernel: those that are not drawn; and a baseline's own profile


LIMITS = (
    Limits(),
    Limits(15, 2000, 8, 40, 80, 80, 6, advice=6, counters=False),
    Limits(15, 2000, 8, 12, 80, 80, 6, advice=4, counters=False),
    Limits(15, 2000, 8, 12, 80, 80, 6, hover=False, advice=4, counters=False),
    Limits(4, 600, 2, 6, 12, 12, 3, hover=False, advice=3, counters=False),
    Limits(4, 600, 2, 3, 12, 12, 2, hover=False, advice=3, counters=False),
    Limits(4, 600, 1, 2, 12, 12, 1, hover=False, advice=2, counters=False),
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
    source: str = "config.yaml"  # the configuration's file


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
    ceilings: dict[str, CeilingsRecord] = field(default_factory=dict)  # by device
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


def refuted_when_timed(records: Records) -> dict[str, str]:
    """Who passed the test and has another verdict by the benchmark: `operator/variant`, and `wrong when timed`."""
    tests = {f"{test.operator}/{test.variant}": test.verdict for test in records.tests}
    benches = {(bench.operator, bench.device): bench for bench in records.benches}
    found = {}
    for verdict in records.manifest.verdicts:
        key = f"{verdict.operator}/{verdict.variant}"
        if tests.get(key) == "correct" and verdict.correctness not in ("correct", "missing"):
            fault = claims.found_by_bench(benches.get((verdict.operator, verdict.device)), verdict.variant)
            found[key] = fault[0] if fault else f"{verdict.correctness} when timed"
    return found


def case_rank(bench: BenchRecord, case: BenchCase | None, mode: str, settings: Settings) -> tuple[int, ...]:
    """Smaller stands better for the whole: the profiled shape and options first, hot before cold."""
    if case is None:
        return (2, 99, 1)
    wanted = settings.profile_options.get(bench.operator, {})
    different = sum(case.options.get(name) != value for name, value in wanted.items())
    set_flags = sum(value is True for name, value in case.options.items() if name not in wanted)
    return (
        int(case.shape != settings.profile_shapes.get(bench.operator)),
        different * 10 + set_flags,
        int(mode != "hot"),
    )


def doubt(bench: BenchRecord, row: RatioRow, settings: Settings) -> str:
    """Why a comparison is undecided although its interval leaves 1 out; empty where the interval includes it."""
    if row.verdict != "undecided" or (row.low <= 1 + settings.same_band and row.high >= 1 - settings.same_band):
        return ""
    if row.detectable is None:
        return "undecided: one process decides nothing"
    for flag, why in DECIDES_NOTHING.items():
        if flag in row.flags:
            return f"undecided: {why}"
    number, rate = formats.plural(len(bench.ratios), "comparison"), formats.percent(1 - settings.confidence, 0)
    return f"undecided: the interval leaves 1 out, but not clearly enough among {number} (false discovery rate {rate})"


ALIKE = frozenset({"power_capped"})  # flags of what falls on all contenders of a block: no reason to doubt a ratio


def doubts(flags: Iterable[str]) -> str:
    """What makes a ratio of flagged times doubtful, in words; empty where nothing does."""
    return "; ".join(words(flag) for flag in flags if flag not in ALIKE)


@dataclass(frozen=True)
class Fact:
    """A line of a list of facts."""

    name: str
    value: str


def flatten(value: Any, name: str = "", key: str = "") -> Iterable[Fact]:
    """Nested data as lines `a.b` = value; lists of plain values on one line."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            label = words(str(key).removesuffix("_bytes"))
            yield from flatten(inner, f"{name} · {label}" if name else label, str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        for number, inner in enumerate(value):
            yield from flatten(inner, f"{name} {number}" if name else str(number), key)
    else:
        yield Fact(name or "value", shown_as(key, value))


def words(key: object) -> str:
    """A key of a record as it reads on the page."""
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


def arithmetic_ceiling(dtype: str, device: str) -> str:
    """The ceiling that a case's arithmetic is held against: of a GPU's tensor cores, but for float32.

    The simulated FP8 codes (uint8) are multiplied as 16-bit numbers.
    """
    if device == "cpu" or dtype in ("float32", "float64"):
        return "matmul_float32"
    return "tensor_float8_e4m3fn" if dtype.startswith("float8") else "tensor_bfloat16"


def dims_text(dims: Mapping[str, int]) -> str:
    """`batch 1 · heads 8 · …`, in the operator's own names."""
    return " · ".join(f"{words(name)}{formats.THIN}{value}" for name, value in dims.items())


def option_words(options: Mapping[str, OptionValue]) -> list[str]:
    """Options of a case: `causal`, `not causal`, `bhsd`, `groups8`."""
    return [f"not {name}" if value is False else option_id(name, value) for name, value in options.items()]


def case_label(case: BenchCase) -> str:
    """`mission, causal, bshd, float16`."""
    return ", ".join([case.shape, *(o for o in option_words(case.options) if not o.startswith("not ")), case.dtype])
