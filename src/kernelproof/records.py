"""Versioned JSON records: the only way in which stages meet.

A record is a dataclass; on disk it is JSON with a `schema` key (`kernelproof.<stage>/<version>`) that a reader checks
before anything else. Files are written to a temporary name and renamed, so a record is whole or absent.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import hashlib
import json
import math
import os
import reprlib
import secrets
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from kernelproof import privacy
from kernelproof.errors import RecordError

OK, FAILED, NOT_RUN = "ok", "failed", "not_run"
# Flags of times that decide nothing, and what is said of them.
CORES_SHARED, OUTSIDE_DISAGREES, IN_COMPANY = "cores_shared", "disagrees_outside_clock", "slower_in_company"
GPU_SHARED = "gpu_shared"
DECIDES_NOTHING = {
    CORES_SHARED: "other programs had its cores; measure again (kernelproof bench) on a quiet machine",
    GPU_SHARED: "another process was on the GPU; measure again when it is free",
    OUTSIDE_DISAGREES: "our own clock does not confirm the time that its process tells; measure again",
    IN_COMPANY: "it is slower beside the variants than without them (whose doing it is, one variant less shows)",
}

NO_BASELINE = "no baseline is configured"  # why there is no ratio

# Text of which only these words are read: what reads a record looks them up.
Status = Annotated[str, OK, FAILED, NOT_RUN]
Device = Annotated[str, "cpu", "cuda"]
Role = Annotated[str, "variant", "baseline"]
TestVerdict = Annotated[str, "correct", "wrong", "crashed", "hung", NOT_RUN, "failed_to_build"]
Outcome = Annotated[str, "passed", "failed", "skipped"]
Said = Annotated[str, "faster", "same", "slower", "undecided"]


@dataclass
class Provenance:
    """Which state of the repository, when (UTC, ISO 8601) and by which kernelproof a record was made.

    `no_commit`: why there is no commit, in words.
    """

    commit: str | None = None
    branch: str | None = None
    dirty: bool = False
    diff_sha256: str | None = None
    commit_utc: str | None = None
    utc: str = ""
    kernelproof: str = ""
    no_commit: str | None = None

    @property
    def why_no_commit(self) -> str:
        """Why there is no commit; records of older releases do not say."""
        return self.no_commit or "no commit known"

    @property
    def words(self) -> str:
        """Which commit it was, in Markdown; empty without one."""
        if not self.commit:
            return ""
        return f"commit `{self.commit[:12]}`" + (" with changes that were not committed" if self.dirty else "")


@dataclass
class Record:
    """What every stage's record starts with.

    status: `ok`, `failed` or `not_run`; with the last two a `reason`, and a `remedy` where there is one. settings: the
    fingerprint of each value of the configuration that it depends on, by key; empty: none, or an older record.
    """

    SCHEMA: ClassVar[str] = ""

    status: Status = OK
    reason: str | None = None
    remedy: str | None = None
    provenance: Provenance = field(default_factory=Provenance)
    duration_s: float = 0.0
    settings: dict[str, str] = field(default_factory=dict, kw_only=True)


# --- capture ----------------------------------------------------------------------------------------------------------


# How the names of packages begin whose release can change what a kernel computes, or how fast.
DECISIVE_PACKAGES = (
    *("torch", "triton", "apache-tvm-ffi", "numpy", "xformers"),
    *("flash-attn", "quack", "nvidia-cu", "nvidia-nv"),
)


@dataclass
class Probe:
    """One look at the machine: `status` ok, failed (with `error`) or absent."""

    status: str
    value: Any = None
    error: str | None = None


@dataclass
class CaptureRecord(Record):
    """The machine as the run found it."""

    SCHEMA: ClassVar[str] = "kernelproof.capture/1"

    probes: dict[str, Probe] = field(default_factory=dict)


# --- build ------------------------------------------------------------------------------------------------------------


@dataclass
class FileHash:
    """A file, by its path relative to the repository (or `<toolkit>/…`, `<system>/…`), and its SHA-256."""

    path: str
    sha256: str
    bytes: int | None = None


@dataclass
class Compiler:
    """A compiler; `origin` is `wheels`, `cuda-home` or `system`."""

    name: str
    version: str
    sha256: str
    origin: str


@dataclass
class KernelResources:
    """What ptxas and the disassembly say of one kernel on one architecture."""

    name: str
    demangled: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    instructions: int
    sass_sha256: str
    instruction_mix: dict[str, int] = field(default_factory=dict)
    partial_barriers: int = 0  # instructions of barriers that some warps of a block may pass alone
    parameters_unread: list[list[int]] = field(default_factory=list)  # first byte and end of parts that nothing reads
    shared_vector_reads: list[list[int]] = field(default_factory=list)  # offset and bytes of loads of 8 or 16 bytes


@dataclass
class Cubin:
    """The machine code for one architecture. `instruction_mix` counts by class, `opcodes` by opcode."""

    arch: str
    path: str
    sha256: str
    bytes: int
    sass_sha256: str
    instruction_mix: dict[str, int] = field(default_factory=dict)
    opcodes: dict[str, int] = field(default_factory=dict)
    kernels: list[KernelResources] = field(default_factory=list)


@dataclass
class BudgetRow:
    """One resource of one kernel held against the variant's budget."""

    arch: str
    kernel: str
    what: str
    limit: int
    value: int
    ok: bool


@dataclass
class CompilerAdvice:
    """What ptxas says of lost speed: its sentence without the kernel's name, and the sentence's number (`C7511`).

    Of which kernel (demangled) and for which architecture; None where it does not say.
    """

    text: str
    code: str | None = None
    kernel: str | None = None
    arch: str | None = None


@dataclass
class BuildRecord(Record):
    """One variant, built."""

    SCHEMA: ClassVar[str] = "kernelproof.build/1"

    operator: str = ""
    variant: str = ""
    role: Role = "variant"
    device: Device = "cpu"
    abi: str = "tvm_ffi"
    signature: str = ""
    sources: list[FileHash] = field(default_factory=list)
    headers: list[FileHash] = field(default_factory=list)
    binding: list[FileHash] = field(default_factory=list)  # the operator's, and what it includes; none of a callable
    macros: dict[str, Any] = field(default_factory=dict)
    unread_macros: list[str] = field(default_factory=list)  # that no source and no header of the project mentions
    flags: list[str] = field(default_factory=list)
    archs: list[str] = field(default_factory=list)
    compiler: Compiler | None = None
    host_compiler: Compiler | None = None
    commands: list[str] = field(default_factory=list)
    log: str | None = None
    library: FileHash | None = None
    cubins: list[Cubin] = field(default_factory=list)
    budget: list[BudgetRow] = field(default_factory=list)
    advice: list[CompilerAdvice] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # of the compilers: `file:line: what they say`
    compiler_message: str | None = None
    host_code_sha256: str | None = None  # over the host's machine code, without names and paths
    binding_code_sha256: str | None = None  # the same over the binding's

    @property
    def files(self) -> list[FileHash]:
        """All that it was made of, each path once."""
        return list({file.path: file for file in (*self.binding, *self.headers, *self.sources)}.values())


# --- test -------------------------------------------------------------------------------------------------------------


OptionValue = bool | int | str


@dataclass(frozen=True)
class Case:
    """One input to an operator: dimensions (elements), options, data type, input family and seed."""

    operator: str
    shape: str
    dims: dict[str, int]
    options: dict[str, OptionValue] = field(default_factory=dict)
    dtype: str = "float32"
    family: str = "normal"
    seed: int = 0

    @functools.cached_property
    def id(self) -> str:
        """`mission-causal-bshd-float16-normal-s0`: a false flag is left out (the others: `option_id`)."""
        return "-".join([*self._what(), self.family, f"s{self.seed}"])

    @property
    def bench_id(self) -> str:
        """The id without the input family and the seed, which do not change the work."""
        return "-".join(self._what())

    def _what(self) -> list[str]:
        return [self.shape, *(option_id(*each) for each in self.options.items() if each[1] is not False), self.dtype]


def option_id(name: str, value: OptionValue) -> str:
    """An option in a case's id: `causal` of a true flag, `bshd` of a word, `groups8` of a number."""
    return name if value is True else value if isinstance(value, str) else f"{name}{value}"


# Criteria: what a failure is a failure of (kernelproof.judge says what they mean).
BOUND, RMS, BIAS, EXACT, RELATION = "bound", "rms", "bias", "exact", "relation"
# Words of a cause: a result is that of an earlier call, or follows from what an earlier call was given.
A_FEW = "all others are as precise as declared: these few places or values are treated in another way"
SAME_AS_EARLIER, OF_EARLIER = "are bit for bit what the call", "is that of an earlier call"
UNWRITTEN, NONFINITE, GUARD_BANDS, INPUTS = "unwritten", "nonfinite", "guard_bands", "inputs"
LATE = "late"  # outputs changed before the call's turn or after it was over (kernelproof.ordering)


@dataclass
class Failure:
    """A criterion that did not hold, and a sentence with the figure, the limit and the place."""

    criterion: str
    message: str


@dataclass
class CaseResult:
    """What the judge found in one case. Ratios are to the criterion's limit: above 1 is a failure."""

    id: str
    shape: str
    dims: dict[str, int]
    options: dict[str, OptionValue]
    dtype: str
    family: str
    seed: int
    status: Outcome
    failures: list[Failure] = field(default_factory=list)
    reason: str | None = None
    max_abs_error: float | None = None
    max_bound_ratio: float | None = None
    rms_error: float | None = None
    rms_ratio: float | None = None
    bias: float | None = None
    bias_ratio: float | None = None
    biases: dict[str, float] = field(default_factory=dict)  # of several outputs, by name: the ratio, with a sign
    nonfinite: int = 0
    unwritten: int = 0
    unwritten_where: str | None = None
    band_damage: list[str] = field(default_factory=list)
    inputs_changed: list[str] = field(default_factory=list)
    first_bad_index: list[int] | None = None
    duration_s: float = 0.0

    @classmethod
    def of(cls, case: Case, status: str, reason: str | None = None) -> CaseResult:
        """The result of a case of which nothing more is known yet."""
        options = dict(case.options)
        return cls(
            case.id, case.shape, dict(case.dims), options, case.dtype, case.family, case.seed, status, reason=reason
        )


@dataclass
class PropertyResult:
    """What must hold between calls: a relation of the operator, or memory that is used again. `case` is a case's id."""

    name: str
    claim: str
    case: str
    status: Outcome  # skipped (the candidate refused it; the message says so)
    message: str | None = None


@dataclass
class Rung:
    """One rung of the staged ladder: `passed`, `failed` or `skipped`, and why."""

    name: str
    status: str
    duration_s: float = 0.0
    message: str | None = None


@dataclass
class SourcePlace:
    """A place in a kernel that takes part in a finding; `access`: read, write or atomic, where the tool says it."""

    function: str
    file: str | None = None  # relative to the repository where it lies in it
    line: int | None = None
    source: str | None = None  # the line's text
    access: str | None = None


@dataclass
class SanitizerFinding:
    """What one of compute-sanitizer's tools found, the same finding of other threads and calls counted with it.

    `level`: error, warning or info. `own`: in a kernel of the variant's; what is in another's, such as a library's,
    condemns nobody. `message` says what it means, `text` is the tool's own words. Thread, block, address and size
    (bytes) are those of the first.
    """

    kind: str
    level: str
    own: bool
    message: str
    text: str
    kernel: str | None = None
    places: list[SourcePlace] = field(default_factory=list)
    thread: list[int] | None = None
    block: list[int] | None = None
    address: str | None = None
    bytes: int | None = None
    count: int = 1


@dataclass
class SanitizerRun:
    """One tool over all its cases: `passed`, `failed`, or `skipped` with the reason and what to do about it.

    `failures` are what condemns, their criterion the tool's name; `findings` are everything that it said.
    """

    tool: str
    status: str
    duration_s: float = 0.0
    calls: int = 0  # that came back
    refused: int = 0  # cases that the candidate declined
    reason: str | None = None
    remedy: str | None = None
    failures: list[Failure] = field(default_factory=list)
    findings: list[SanitizerFinding] = field(default_factory=list)


@dataclass
class Sanitizer:
    """The variant under compute-sanitizer: the tool's version, the ids of the cases, and what each tool found."""

    version: str | None = None
    cases: list[str] = field(default_factory=list)
    runs: list[SanitizerRun] = field(default_factory=list)


@dataclass
class Histogram:
    """Counts between edges; counts has one element fewer than edges."""

    edges: list[float]
    counts: list[int]


@dataclass
class NotSealed:
    """Why calls were made through the library: how many, and the first of them."""

    reason: str
    calls: int
    first: str


LAUNCHES = ".launches.json"  # what `Sealing.launches` names lies beside the record and ends like this; it is no record


@dataclass
class Sealing:
    """How many calls our launcher made from the cubins (`sealed`), and how many the variant's host code (`library`).

    A call that is repeated counts once. `launches`: the descriptions that the sealed calls were launched from.
    """

    sealed: int
    library: int
    left: list[NotSealed] = field(default_factory=list)
    cubins: list[FileHash] = field(default_factory=list)
    launches: FileHash | None = None


@dataclass
class TestRecord(Record):
    """One variant, tested. `verdict`: correct, wrong, crashed, hung, not_run or failed_to_build."""

    SCHEMA: ClassVar[str] = "kernelproof.test/1"
    __test__: ClassVar[bool] = False

    operator: str = ""
    variant: str = ""
    role: Role = "variant"
    device: Device = "cpu"
    trust: str = "library"  # sealed, library, python: the least of its calls
    precision: dict[str, str] = field(default_factory=dict)  # that it declared and was held to: output, p, accumulate
    sealing: Sealing | None = None  # of a variant whose calls could be sealed
    isolation: str = ""  # what confined its workers (`landlock-7+seccomp`, `process`: nothing); empty: none ran
    refused: list[str] = field(default_factory=list)  # what a worker tried before it was loaded, and could not do
    verdict: TestVerdict = NOT_RUN
    rungs: list[Rung] = field(default_factory=list)
    cases: list[CaseResult] = field(default_factory=list)
    properties: list[PropertyResult] = field(default_factory=list)
    bias_suite: float | None = None
    bias_suite_ratio: float | None = None
    error_histogram: Histogram | None = None
    sanitizer: Sanitizer | None = None  # None where the level, the device or the configuration leaves it out
    trials: int = 0
    level: str = "default"
    searched: int = 0  # cases that the deep level drew
    repeat: str | None = None  # the command that runs the case again of which `reason` tells
    fresh_seed: int | None = None
    build_signature: str | None = None
    module: FileHash | None = None  # the project's own file of the operator, which it was judged by
    imports: list[FileHash] | None = None  # the project's files that it imports; None in older records
    looser: dict[str, float] = field(default_factory=dict)  # limits of test.tolerance wider than the criteria's own
    junit: str | None = None
    log: str | None = None

    @property
    def told(self) -> Rung | None:
        """The failed rung that the reason tells, or else the first."""
        failed = [rung for rung in self.rungs if rung.status == FAILED]
        return next(
            (rung for rung in failed if (self.reason or "").startswith(f"{rung.name}: ")), next(iter(failed), None)
        )


# --- bench ------------------------------------------------------------------------------------------------------------


@dataclass
class Contender:
    """A variant or baseline in a benchmark; `outcome` says `timed` or why not."""

    name: str
    role: Role
    abi: str
    verdict: str
    correct: bool
    outcome: str
    build_signature: str | None = None  # of what was timed; None in older records


@dataclass
class TimeRow:
    """A time of one call in microseconds: median with its interval, by one method.

    method: graph_slope, event_pair, cpu_clock, floor, eager … `reasons` say in words what is likely behind `flags`.
    """

    contender: str
    case: str
    mode: str  # hot, cold
    method: str
    median_us: float
    low_us: float
    high_us: float
    samples: int
    processes: int
    flags: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    dram_bytes: float | None = None  # that a call read from memory at the least, by Nsight Compute's counter
    precise: int | None = None  # processes that ended since the ratio was known well enough; in others time was up

    def misfit(self) -> str | None:
        """Why it is no time."""
        return _no_interval(self.low_us, self.median_us, self.high_us)


@dataclass
class UntimedRow:
    """A mode of a case in which a contender that took part has no time: what happened in a word or two, and why.

    outcome: `too slow`, `discarded` (its samples do not count) or `no sample`.
    """

    contender: str
    case: str
    mode: str
    outcome: str
    reason: str = ""

    @property
    def why(self) -> str:
        """`too slow, already when hot: one visit takes 0.6 s, …`."""
        return f"{self.outcome}, {self.reason}" if self.reason else self.outcome


@dataclass
class EnergyRow:
    """Energy of one call of a contender, the whole board's; without a figure, the `reason`.

    resolution_j: what one step of the counter is, a call; calls and seconds: over how much it was taken; watts: while.
    """

    contender: str
    case: str
    mode: str
    joules_per_call: float | None = None
    resolution_j: float | None = None
    calls: int | None = None
    seconds: float | None = None
    watts: float | None = None
    reason: str | None = None


@dataclass
class RatioRow:
    """variant time / baseline time with its interval; below 1 the variant is faster.

    detectable: the smallest true difference, as a share, that this run would have called faster or slower four times
    in five; None from one process, and in records from before it was written down.
    """

    variant: str
    baseline: str
    case: str
    mode: str
    ratio: float
    low: float
    high: float
    verdict: Said
    detectable: float | None = None
    flags: list[str] = field(default_factory=list)  # of either time

    def misfit(self) -> str | None:
        """Why it is no ratio."""
        return _no_interval(self.low, self.ratio, self.high)


@dataclass
class OracleRow:
    """The variant against the fastest correct baseline of one case and mode."""

    variant: str
    case: str
    mode: str
    best_baseline: str | None
    ratio: float | None
    low: float | None
    high: float | None
    passed: bool
    reason: str
    flags: list[str] = field(default_factory=list)  # of either time
    undecided: bool = False  # whatever its interval: of one process, or of times beside other programs

    def misfit(self) -> str | None:
        """Why it is no ratio: it has all three figures or none."""
        figures = [figure for figure in (self.low, self.ratio, self.high) if figure is not None]
        return _no_interval(*figures) if figures else None


def _no_interval(*figures: float) -> str | None:
    """Why the lower end, the middle and the upper end are no time or ratio; None where they are."""
    if len(figures) == 3 and 0 <= figures[0] <= figures[1] <= figures[2] and figures[2] > 0:
        return None
    return (
        f"{', '.join(f'{figure:g}' for figure in figures)} are not a positive figure between the ends of its interval"
    )


@dataclass
class BenchCase:
    """A benchmarked case and what one call of it costs."""

    id: str
    shape: str
    dims: dict[str, int]
    options: dict[str, OptionValue]
    dtype: str
    flops: float
    bytes_read: float
    bytes_written: float
    seed: int | None = None  # of the timed values


@dataclass
class BenchRecord(Record):
    """All contenders of one operator on one device, measured together."""

    SCHEMA: ClassVar[str] = "kernelproof.bench/1"

    operator: str = ""
    device: Device = "cpu"
    contenders: list[Contender] = field(default_factory=list)
    cases: list[BenchCase] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    samples: str | None = None
    times: list[TimeRow] = field(default_factory=list)
    ratios: list[RatioRow] = field(default_factory=list)
    oracle: list[OracleRow] = field(default_factory=list)
    discarded: list[dict[str, Any]] = field(default_factory=list)
    states: dict[str, Any] = field(default_factory=dict)
    kernels_in_interval: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    energy: list[EnergyRow] = field(default_factory=list)
    gpu: str | None = None  # what stands for the UUID of the board that was measured on
    processes: int = 0
    startup_s: float = 0.0
    threads: int | None = None
    untimed: list[UntimedRow] = field(default_factory=list)


@dataclass
class Ceiling:
    """A rate that this machine reached: the median over `samples`, the lowest and the highest, in `unit` (B/s, FLOP/s).

    `how` says what was run; clock and throttle reasons are of its last sample, while it ran.
    """

    name: str  # copy, tensor_bfloat16, tensor_float8_e4m3fn, matmul_float32
    unit: str
    median: float
    low: float
    high: float
    samples: int
    how: str
    sm_clock_mhz: int | None = None
    throttle: list[str] = field(default_factory=list)


@dataclass
class CeilingsRecord(Record):
    """What a device reaches at its best, measured once a machine. `left_out`: name → why it could not be measured."""

    SCHEMA: ClassVar[str] = "kernelproof.ceilings/1"

    device: Device = "cpu"
    model: str | None = None
    driver: str | None = None
    torch: str | None = None
    threads: int | None = None
    ceilings: list[Ceiling] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def get(self, name: str) -> Ceiling | None:
        """A ceiling by name."""
        return next((ceiling for ceiling in self.ceilings if ceiling.name == name), None)


# --- profile ----------------------------------------------------------------------------------------------------------


@dataclass
class Metric:
    """A counter's value with its unit."""

    value: float | str | None
    unit: str = ""


@dataclass
class RuleAdvice:
    """One of Nsight Compute's rules that fired; the speed-up is its own estimate, in percent.

    scope: `global` is of the kernel's time, `local` of the unit's efficiency in isolation, None without an estimate.
    """

    name: str
    severity: str
    message: str
    estimated_speedup_percent: float | None = None
    scope: str | None = None

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Its place: what speeds up the kernel, by how much, then what speeds up a part; without an estimate last."""
        estimate = self.estimated_speedup_percent
        return estimate is None, self.scope == "local", -(estimate or 0.0)


@dataclass
class Stall:
    """What warps were doing, by NVIDIA's word for it (`long_scoreboard`), for which share of their time (0 to 1)."""

    reason: str
    share: float


@dataclass
class HotInstruction:
    """One machine instruction, its distance from the kernel's first, and its share of the kernel's samples (0 to 1)."""

    offset_bytes: int
    sass: str
    share: float


@dataclass
class HotLine:
    """A source line and its share of the warp samples (0 to 1), what its warps mostly waited for, and its hottest SASS.

    `file` is relative to the repository, `<toolkit>/…` for a header of CUDA's, or `SASS` where the build has no line
    information: then `line` is the instruction's distance from the kernel's first, in bytes.
    """

    file: str
    line: int
    source: str
    samples: int
    share: float
    stall: Stall | None = None
    instructions: list[HotInstruction] = field(default_factory=list)


@dataclass
class ProfiledKernel:
    """One launch in the report."""

    name: str
    grid: list[int]
    block: list[int]
    duration_us: float
    metrics: dict[str, Metric] = field(default_factory=dict)
    rules: list[RuleAdvice] = field(default_factory=list)
    hot_lines: list[HotLine] = field(default_factory=list)
    roofline: dict[str, float] = field(default_factory=dict)
    stalls: list[Stall] = field(default_factory=list)


@dataclass
class ProfileRecord(Record):
    """One variant or baseline under Nsight Compute.

    cost: `flops`, `bytes_read` and `bytes_written` of the case by the operator's cost model; what any kernel has to do.
    cache_control: `all` where ncu emptied the caches before each of its passes, so that the launch is a cold one.
    replay_s: of `duration_s`, what ncu's passes over the profiled call took.
    """

    SCHEMA: ClassVar[str] = "kernelproof.profile/1"

    operator: str = ""
    variant: str = ""
    role: Role = "variant"
    case: str = ""
    cost: dict[str, float] = field(default_factory=dict)
    cache_control: str = ""
    replay_s: float | None = None
    report: FileHash | None = None
    csv: str | None = None
    tool_version: str | None = None
    kernels: list[ProfiledKernel] = field(default_factory=list)
    log: str | None = None


# --- manifest ---------------------------------------------------------------------------------------------------------


@dataclass
class Verdict:
    """One variant in one line. `bad` verdicts make the run's exit code 1."""

    operator: str
    variant: str
    role: Role
    device: Device
    build: str
    correctness: str
    speed: str
    ratio: float | None
    profile: str
    bad: bool
    reason: str | None = None
    gate: str = ""  # the word of claims.py, with the cases that it rests on; empty for a baseline
    untimed: str = ""  # modes that it has no time in, and why, in the words of claims.py
    remedy: str | None = None  # of a bad one


@dataclass
class Member:
    """A file of the bundle. member_class: identity, measurement or context."""

    path: str
    sha256: str
    bytes: int
    member_class: str
    source: str | None = None


@dataclass
class ManifestRecord(Record):
    """What, from what, by what and where: the facts that the report shows and the bundle carries."""

    SCHEMA: ClassVar[str] = "kernelproof.manifest/1"

    project: str = ""
    folder: str = ""
    overall: str = ""
    verdicts: list[Verdict] = field(default_factory=list)
    measured: dict[str, Provenance] = field(default_factory=dict)
    identical_machine_code: list[list[str]] = field(default_factory=list)
    missing: list[dict[str, str]] = field(default_factory=list)
    tools: dict[str, Any] = field(default_factory=dict)
    records: list[str] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)

    @property
    def holds_workflow(self) -> bool:
        """Whether `./repro.sh` is among the sources: a repository of one's own takes the workflow from a clone."""
        return any(member.path == "source/repro.sh" for member in self.members)


# --- calibration ------------------------------------------------------------------------------------------------------


@dataclass
class Margins:
    """The largest ratio to each limit over some cases; above 1 is an accusation. None: nothing was relative to it."""

    bound: float | None = None
    rms: float | None = None
    bias: float | None = None
    suite: float | None = None


@dataclass
class CalibrationRun:
    """One kernel × data type × layout under one fresh seed: how many cases, and what the judge said against it."""

    seed: int
    cases: int
    exact: int  # exact calls, criterion (d)
    refused: int = 0
    relations: int = 0  # criterion (e)
    margins: Margins = field(default_factory=Margins)
    accusations: list[str] = field(default_factory=list)


@dataclass
class Combination:
    """A correct kernel in one data type and layout (`-` where the operator has none), and its runs."""

    operator: str
    kernel: str
    dtype: str
    layout: str
    p: str  # the declared type of the intermediate, `input` resolved
    runs: list[CalibrationRun] = field(default_factory=list)


@dataclass
class CalibrationClimb:
    """A correct kernel on the whole ladder of the test stage."""

    operator: str
    kernel: str
    verdict: str
    cases: int
    trials: int
    deterministic: bool = True
    rungs: list[str] = field(default_factory=list)  # those that passed
    reason: str | None = None


@dataclass
class CalibrationRecord(Record):
    """How far correct kernels stay from the judge's limits. `device` is a model, `left_out` kernel → why."""

    SCHEMA: ClassVar[str] = "kernelproof.calibration/1"

    device: str = ""
    torch: str = ""
    tolerance: dict[str, float] = field(default_factory=dict)
    combinations: list[Combination] = field(default_factory=list)
    climbs: list[CalibrationClimb] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


# --- selfcheck --------------------------------------------------------------------------------------------------------


@dataclass
class SelfcheckLine:
    """One line to hold: a figure in `unit`, its target in words, and whether it is held (None: not decided here)."""

    name: str
    target: str
    value: float | None
    unit: str
    held: bool | None
    detail: str = ""


@dataclass
class SelfcheckRecord(Record):
    """What the benchmark says of kernels whose time is known.

    group: processes of one comparison. `data`: what the pictures show, `same` and `different` as rows that end with
    ratio and interval (and the known ratio).
    """

    SCHEMA: ClassVar[str] = "kernelproof.selfcheck/1"

    device: Device = "cpu"
    machine: str = ""
    gpu: str | None = None
    driver: str | None = None
    torch: str = ""
    processes: int = 0
    group: int = 0
    twins: int = 0
    load_before: float = 0.0
    load_after: float = 0.0
    lines: list[SelfcheckLine] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)


# --- mutants ----------------------------------------------------------------------------------------------------------


@dataclass
class MutantControl:
    """The honest variant, taken through every round first: without it a verdict on a mutant says nothing.

    `fingerprint` is over its build, the configuration and kernelproof's sources: under the same one, outcomes hold.
    By round: its verdict, and the time limits (s) by rung that its mutants got.
    """

    operator: str
    variant: str
    fingerprint: str
    verdicts: dict[str, str] = field(default_factory=dict)
    time_limit_s: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass
class Mutant:
    """One planted fault: where, what, and what became of it.

    outcome: `listed`, `stillborn` (does not compile), `equivalent` (the same machine code), `killed`, `survived`,
    `argued` (survived, and `argument` says why it is no fault) or `not_run`. `rung` and `criterion` say what killed it,
    `round` the set of cases that it fell on or survived.
    """

    id: str
    operator: str
    variant: str
    file: str
    line: int
    mutation: str
    before: str
    after: str
    diff: str
    outcome: str = "listed"
    verdict: str | None = None
    round: str | None = None
    rung: str | None = None
    criterion: str | None = None
    message: str | None = None
    argument: str | None = None

    @property
    def key(self) -> str:
        """`operator/variant/id`."""
        return f"{self.operator}/{self.variant}/{self.id}"


@dataclass
class MutantsRecord(Record):
    """Faults planted into a project's own kernels, and what the verifier said of each.

    `possible`: all that could be made of the chosen sources; `kill_rate`: killed among those that are judged and no
    machine code of the honest variant, None where there are none.
    """

    SCHEMA: ClassVar[str] = "kernelproof.mutants/1"

    project: str = ""
    seed: int = 0
    possible: int = 0
    kill_rate: float | None = None
    controls: list[MutantControl] = field(default_factory=list)
    mutants: list[Mutant] = field(default_factory=list)


# --- reading and writing ----------------------------------------------------------------------------------------------

R = TypeVar("R", bound=Record)
MAX_DIGITS = 300  # of a whole number: with more of them no float holds it


def write(path: Path, record: Record) -> None:
    """Write a record as JSON, whole or not at all, without the credentials that this process knows."""
    payload = privacy.each_text({"schema": record.SCHEMA, **dataclasses.asdict(record)}, privacy.without_secrets)
    atomic_write(path, json.dumps(payload, indent=1, allow_nan=False, default=_unserialisable) + "\n")


def read(path: Path, kind: type[R]) -> R:
    """Read a record of one kind.

    Raises RecordError when the file is missing, is no JSON, is of another schema or lacks a field.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise RecordError("the record does not exist", subject=str(path), hint="run the stage that makes it") from None
    except OSError as error:
        raise RecordError(
            f"the record cannot be read: {error}", subject=str(path), hint="delete it and run again"
        ) from None
    return parse(data, kind, str(path))


def parse(data: bytes, kind: type[R], subject: str) -> R:
    """A record of one kind from its bytes; `subject` names them in the RecordError that `read` describes."""
    payload = loads(data, subject)
    schema = payload.pop("schema", None) if isinstance(payload, dict) else None
    if schema != kind.SCHEMA:
        raise RecordError(
            f"schema {reprlib.repr(schema)}, but this kernelproof reads {kind.SCHEMA!r}",
            subject=subject,
            hint="delete the record and run its stage again, or use the kernelproof that wrote it",
        )
    try:
        return typing.cast(R, from_json(kind, payload))
    except TypeError as error:
        raise RecordError(f"the record does not fit {kind.SCHEMA}: {error}", subject=subject) from None


def loads(data: bytes, subject: str) -> Any:
    """The value of JSON whose numbers are all finite. Raises RecordError, naming `subject`, for any other bytes."""
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_number, parse_float=_number, parse_int=_whole_number)
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"the record cannot be read: {error}", subject=subject, hint="delete it and run again"
        ) from None


def _number(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{reprlib.repr(text)} is no finite number")
    return value


def _whole_number(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


# The types of JSON that a plain type is read from, and how a message calls them.
_PLAIN: dict[Any, tuple[frozenset[type], str]] = {
    str: (frozenset({str}), "text"),
    bool: (frozenset({bool}), "true or false"),
    int: (frozenset({int}), "a whole number"),
    float: (frozenset({float, int}), "a number"),
    types.NoneType: (frozenset({types.NoneType}), "null"),
}

Reader = Callable[[Any], Any]


class _Misfit(TypeError):
    """A value that is not of its kind, and its place: `cases[3].rms_error: 'x' is not a number`."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.place = ""

    def __str__(self) -> str:
        message = super().__str__()
        return f"{self.place.removeprefix('.')}: {message}" if self.place else message


def from_json(kind: Any, value: Any) -> Any:
    """Build `kind` (a dataclass, list, dict, optional or plain type) from JSON data.

    Raises TypeError, with the place, for a value of another kind and for an unknown or missing field.
    """
    return _reader(kind)(value)


@functools.cache
def _reader(kind: Any) -> Reader:
    """What builds `kind`; made once a kind, since records have thousands of values."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in _PLAIN:
        return _plain_reader([kind], [])
    if origin is Annotated:
        return _word_reader(arguments[1:])
    if origin in (typing.Union, types.UnionType):
        return _plain_reader([a for a in arguments if a in _PLAIN], [a for a in arguments if a not in _PLAIN])
    if origin is list:
        return _list_reader(_reader(arguments[0]))
    if origin is dict:
        return _dict_reader(_reader(arguments[1]))
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind)
    return lambda value: value


def _plain_reader(plain: Iterable[Any], others: Iterable[Any]) -> Reader:
    """A value of one of some plain types, or else of the one other kind."""
    allowed = frozenset().union(*(_PLAIN[kind][0] for kind in plain))
    words = " or ".join(_PLAIN[kind][1] for kind in plain)
    other = next((_reader(kind) for kind in others), None)

    def read(value: Any) -> Any:
        if type(value) in allowed:
            return value
        if other is not None:
            return other(value)
        raise _Misfit(f"{reprlib.repr(value)} is not {words}")

    return read


def _word_reader(words: Iterable[str]) -> Reader:
    allowed = list(words)

    def read(value: Any) -> Any:
        if value not in allowed:
            raise _Misfit(f"{reprlib.repr(value)} is none of {', '.join(allowed)}")
        return value

    return read


def _list_reader(reader: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not list:
            raise _Misfit(f"{reprlib.repr(value)} is not a list")
        found: list[Any] = []
        try:
            for item in value:
                found.append(reader(item))
        except _Misfit as error:
            error.place = f"[{len(found)}]{error.place}"
            raise
        return found

    return read


def _dict_reader(reader: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _Misfit(f"{reprlib.repr(value)} is not a mapping")
        found, key = {}, ""
        try:
            for key, item in value.items():
                found[key] = reader(item)
        except _Misfit as error:
            error.place = f".{reprlib.repr(key)}{error.place}"
            raise
        return found

    return read


def _dataclass_reader(kind: Any) -> Reader:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = dataclasses.fields(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields}
    needed = [f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    has_check = hasattr(kind, "misfit")

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _Misfit(f"{reprlib.repr(value)} is not a mapping")
        found, name = {}, ""
        try:
            for name, item in value.items():
                if (reader := readers.get(name)) is None:
                    break
                found[name] = reader(item)
        except _Misfit as error:
            error.place = f".{name}{error.place}"
            raise
        if len(found) != len(value):
            raise _Misfit(f"unknown field {reprlib.repr(name)} in {kind.__name__}")
        if missing := [name for name in needed if name not in found]:
            raise _Misfit(f"there is no field {missing[0]!r} in {kind.__name__}")
        made = kind(**found)
        if has_check and (why := made.misfit()):
            raise _Misfit(why)
        return made

    return read


def _unserialisable(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):  # a NumPy scalar
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot go into a record")


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write a file under a temporary name in the same folder, then rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():  # the system would name the temporary file
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")  # mkstemp's would be for its owner alone
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def file_hash(root: Path, name: str) -> FileHash:
    """Of a file, by its path from `root`. Raises OSError where it cannot be read."""
    path = root / name
    return FileHash(name, sha256_file(path), path.stat().st_size)
