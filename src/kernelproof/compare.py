"""`kernelproof compare A B`: what changed from one run to another, in results, times, machine code and surroundings.

A and B are bundles, or folders with records. A is the older state and B the one that is asked about, so a ratio of
times is B / A and below 1 means faster. Correctness comes first: a verdict that changed says more than any time.

What differs and what follows stand side by side and are not tied together: two runs show that a variant is right under
one torch and wrong under another, not why.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelproof import charts, differences, formats, rendering, runs, statistics
from kernelproof.config import CRITERIA, Precision
from kernelproof.consistency.tests import LEVELS
from kernelproof.differences import NotCompared, TimeChange
from kernelproof.errors import ExitCode, RecordError
from kernelproof.records import (
    DECIDES_NOTHING,
    NOT_RUN,
    OK,
    BuildRecord,
    CaseResult,
    Cubin,
    KernelResources,
    TestRecord,
)
from kernelproof.runs import BAD, CORRECT, MISSING, Run, Side

SCHEMA = "kernelproof.compare/1"
ABSENT = "absent"  # a fact of one run that the other has not
BROKE, LOST, NEW, GONE, MENDED, CHANGED = "broke", "lost", "new", "gone", "mended", "changed"
NO_VERDICT = frozenset({MISSING, NOT_RUN})
NAMED_OF_A_KIND = 3  # shapes, say, that were left out; of more the number
FEWER_CASES = 0.75  # of those before: fewer are told
ERROR_CHANGE = 0.02  # ratios to a limit that move by less are not listed
MAX_ROWS, MAX_KERNELS, MAX_ENVIRONMENT = 120, 12, 40  # in Markdown and on the page; the JSON holds all
# Data types that are declared, finest first.
PRECISE = (
    "float64",
    "float32",
    "fp22",
    "tfloat32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
)
# Settings that decide how much a verdict holds.
STRICTNESS = (
    ("test", "level"),
    ("test", "trials"),
    ("test", "seeds"),
    ("gate", "max_ratio"),
    ("gate", "same_band"),
    ("bench", "confidence"),
    ("bench", "processes"),
)
UNNAMED = re.compile("(_GLOBAL__N__)[0-9a-f]{8}")  # a namespace without a name, in a mangled one
RESOURCES = ("registers", "shared_bytes", "stack_bytes", "spill_store_bytes", "spill_load_bytes", "instructions")


@dataclass(frozen=True)
class Change:
    """Something that differs, before and after; `absent` where one run has no such thing."""

    what: str
    before: str
    after: str


@dataclass(frozen=True)
class VerdictChange:
    """A variant whose verdict changed.

    kind: `broke` (it was correct and is wrong), `lost` (it was correct, and no test says so now), `new` (it is wrong
    and was not there), `mended` (it was wrong and is correct) or `changed`.
    """

    variant: str
    role: str
    kind: str
    before: str
    after: str
    reason: str
    sentence: str


@dataclass(frozen=True)
class TestedLess:
    """A variant that is correct in both runs, of which B has tried less than A had."""

    variant: str
    role: str
    what: str  # `without shape s513 and rung sanitizer`, `1 case instead of 73`


@dataclass(frozen=True)
class JudgedOtherwise:
    """A variant that B has held to something else than A: what it declares, wider limits, another reference.

    looser: it is correct in B, and some of this is wider or coarser than before, or nobody knows (the operator's file).
    """

    variant: str
    role: str
    changes: list[Change]
    looser: bool

    @property
    def words(self) -> str:
        """`bound_factor 1 → 1000000, declared accumulate float32 → bfloat16`."""
        return ", ".join(f"{change.what} {change.before} → {change.after}" for change in self.changes)


@dataclass(frozen=True)
class ErrorChange:
    """The largest ratio of an error to its limit over the cases that both runs passed or failed; above 1 is wrong.

    Of variants that both have held to the same limits.
    """

    variant: str
    criterion: str  # bound, rms, bias
    case: str
    before: float
    after: float


@dataclass(frozen=True)
class KernelChange:
    """A kernel of one architecture that differs: resources and classes of instructions that moved."""

    arch: str
    kernel: str
    what: str  # changed, added, removed
    resources: list[Change] = field(default_factory=list)
    mix: dict[str, int] = field(default_factory=dict)  # class → instructions more than before


@dataclass(frozen=True)
class BuildChange:
    """What went into a variant's build and what came out of it, as far as it differs.

    machine_code: `same`, `different`, or `unknown` where a run has none on record.
    """

    variant: str
    machine_code: str
    inputs: list[Change] = field(default_factory=list)
    kernels: list[KernelChange] = field(default_factory=list)
    note: str = ""


@dataclass
class Comparison:
    """Two runs side by side."""

    before: Side
    after: Side
    verdicts: list[VerdictChange] = field(default_factory=list)
    tested_less: list[TestedLess] = field(default_factory=list)
    judged_otherwise: list[JudgedOtherwise] = field(default_factory=list)
    errors: list[ErrorChange] = field(default_factory=list)
    times: list[TimeChange] = field(default_factory=list)
    times_not_compared: list[NotCompared] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)
    builds: list[BuildChange] = field(default_factory=list)
    environment: list[Change] = field(default_factory=list)
    only_before: list[str] = field(default_factory=list)
    only_after: list[str] = field(default_factory=list)
    unread: list[NotCompared] = field(default_factory=list)
    common: int = 0
    benches: list[str] = field(default_factory=list)  # that both runs measured

    @property
    def broke(self) -> list[VerdictChange]:
        """Variants that were correct and are not."""
        return [change for change in self.verdicts if change.kind == BROKE and change.role == "variant"]

    @property
    def lost(self) -> list[VerdictChange]:
        """Variants that were correct and have no verdict any more."""
        return [change for change in self.verdicts if change.kind == LOST and change.role == "variant"]

    @property
    def less(self) -> list[TestedLess]:
        """Variants that are still called correct, after less was tried."""
        return [entry for entry in self.tested_less if entry.role == "variant"]

    @property
    def looser(self) -> list[JudgedOtherwise]:
        """Variants that are correct, perhaps by wider limits than before or a coarser declaration."""
        return [one for one in self.judged_otherwise if one.looser and one.role == "variant"]

    @property
    def slower(self) -> list[TimeChange]:
        """Variants' cases that became slower."""
        return [row for row in self.times if row.verdict == statistics.SLOWER and row.role == "variant"]

    @property
    def withheld(self) -> str:
        """How many times of variants are undecided for a flag alone, and which; empty where none is."""
        ours = [row for row in self.times if row.role == "variant"]
        found = [flags for row in ours if row.verdict == statistics.UNDECIDED and (flags := self._disturbed(row))]
        if not found:
            return ""
        said = "; ".join(sorted(set[str]().union(*found)))
        return f"{len(found)} of {len(ours)} undecided although their intervals exclude 1 ({said}): measure again"

    def _disturbed(self, row: TimeChange) -> set[str]:
        """Which run is flagged with what that decides nothing, of a time whose interval excludes 1."""
        if row.low <= 1 <= row.high:
            return set()
        place = (row.operator, row.device, row.case, row.mode)
        beside = [one for one in self.times if (one.operator, one.device, one.case, one.mode) == place]
        named = [one for one in beside if one.contender in (row.contender, *row.against)]
        sides = [(side, flags) for one in named for side, flags in (("A", one.flags_before), ("B", one.flags_after))]
        return {f"{side}: {flag}" for side, flags in sides for flag in flags if flag in DECIDES_NOTHING}

    @property
    def builds_that_differ(self) -> list[BuildChange]:
        """Builds of which there is something to say."""
        return [build for build in self.builds if build.inputs or build.kernels or build.note]

    @property
    def exit_code(self) -> ExitCode:
        """0: nothing is worse in B. 1: a variant broke, or is slower. 2: none did, as far as could be seen: a correct
        one is not tested, or less than before, or by wider limits, or a record cannot be read.
        """
        if self.broke or self.slower:
            return ExitCode.BAD_VERDICT
        return ExitCode.COULD_NOT_RUN if self.lost or self.less or self.looser or self.unread else ExitCode.WELL

    @property
    def mark(self) -> str:
        """For the head of a page: a tick where something was compared that could be told apart."""
        if self.exit_code:
            return "❌" if self.exit_code == ExitCode.BAD_VERDICT else "⚠️"
        # Of a baseline, of who was not tested before, or of who is wrong and was left out.
        if any(change.after in BAD or change.kind == GONE for change in self.verdicts):
            return "⚠️"
        if any(one.role == "variant" for one in self.judged_otherwise):
            return "⚠️"
        if self.withheld:
            return "⚠️"
        told = any(row.verdict != statistics.UNDECIDED for row in self.times if row.role == "variant")
        return "✅" if told or self.verdicts else "➖"

    @property
    def summary(self) -> str:
        """The whole in one sentence."""
        parts = []
        otherwise = dict[str, list[str]]()
        for kind, word in (
            (BROKE, "no longer correct"),
            (LOST, "correct before and not tested now"),
            (NEW, "new and not correct"),
            (GONE, "not correct before and not tested now"),
            (MENDED, "correct now"),
            (CHANGED, "another verdict"),
        ):
            names = [change.variant for change in self.verdicts if change.kind == kind and change.role == "variant"]
            if names:
                parts.append(f"{word}: {formats.first_of(names)}")
        for what in dict.fromkeys(entry.what for entry in self.less):
            names = [entry.variant for entry in self.less if entry.what == what]
            parts.append(f"correct by less than before ({what}): {formats.first_of(names)}")
        for one in self.judged_otherwise:
            if one.role == "variant":
                otherwise.setdefault(one.words, []).append(one.variant)
        for words, names in otherwise.items():
            parts.append(f"held to something else than before ({words}): {formats.first_of(names)}")
        for word in (statistics.SLOWER, statistics.FASTER):
            found = [row for row in self.times if row.verdict == word and row.role == "variant"]
            if found:
                names = list(dict.fromkeys(row.key for row in found))
                cases = formats.plural(len(found), "case")
                parts.append(f"{word} in {cases}: {formats.first_of(names)}")
        if self.unread:
            parts.append(f"not read: {formats.listed(entry.what for entry in self.unread)}")
        refused: dict[str, list[str]] = {}
        for entry in self.times_not_compared:
            if entry.what in self.benches:
                refused.setdefault(entry.reason, []).append(entry.what)
        not_compared = [f"no times of {formats.listed(names)} were compared: {why}" for why, names in refused.items()]
        not_compared = [*filter(None, [self.withheld]), *not_compared]
        if parts:
            parts += not_compared
            return f"{parts[0][0].upper()}{'; '.join(parts)[1:]}."
        said = Counter(row.verdict for row in self.times if row.role == "variant")
        if not said:
            return f"No variant's verdict changed; {'; '.join(not_compared) or 'no times were compared'}."
        if self.withheld:
            return f"No variant's verdict changed; {'; '.join(not_compared)}."
        open_words = (statistics.UNDECIDED, differences.UNCHANGED, differences.SAME_SAMPLES)
        counted = formats.listed(f"{said[word]} of {said.total()} {word}" for word in open_words if said[word])
        rest = f" ({counted})" if counted else ""
        return "; ".join([f"No variant's verdict changed, and no time is shown to differ{rest}", *not_compared]) + "."

    def as_json(self) -> dict[str, Any]:
        """Everything, for a program."""
        return {"schema": SCHEMA, "summary": self.summary, "exit_code": int(self.exit_code), **asdict(self)}

    def markdown(self) -> str:
        """For a pull request."""
        return rendering.render("compare.md.j2", **self._context())

    def html(self) -> str:
        """One page that asks nothing of any server."""
        return rendering.render("compare.html.j2", **self._context(), **self._plots())

    def _context(self) -> dict[str, Any]:
        """What the templates show, how much of it, and in which order."""
        decisive = (statistics.SLOWER, statistics.FASTER)
        ours = [row for row in self.times if row.role == "variant"]
        decided = sorted((r for r in ours if r.verdict in decisive), key=lambda r: (r.verdict == decisive[1], -r.ratio))
        rest = [row for row in ours if row.verdict not in decisive]
        theirs = [
            row for row in self.times if row.role != "variant" and row.verdict in (*decisive, differences.UNCHANGED)
        ]
        refusals: dict[str, list[str]] = {}
        for entry in self.times_not_compared:
            refusals.setdefault(entry.reason, []).append(entry.what)
        return {
            "c": self,
            "ours": decided + rest,
            "decided": decided,
            "rest": rest,
            "theirs": theirs,
            "refusals": list(refusals.items()),
            "changed_builds": _grouped(self.builds_that_differ),
            "rows": MAX_ROWS,
            "kernels": MAX_KERNELS,
            "environment_rows": MAX_ENVIRONMENT,
        }

    def _plots(self) -> dict[str, Any]:
        """One axis for every ratio, and each row's place on it."""
        axis = charts.axis([1.0, *(figure for row in self.times for figure in (row.low, row.high))])
        titles = {id(row): f"{row.key}, {row.case}, {row.mode}: {formats.ratio(row.ratio)}" for row in self.times}
        marks = {id(r): charts.whisker(axis, r.ratio, r.low, r.high, "hot", titles[id(r)]) for r in self.times}
        return {"axis": axis, "whisker": lambda row: marks[id(row)]}


def _grouped(builds: Iterable[BuildChange]) -> list[tuple[list[str], BuildChange]]:
    """Builds that say the same, none of them of kernels, with all their names."""
    found: list[tuple[list[str], BuildChange]] = []
    for build in builds:
        same = replace(build, variant="")
        twin = next((names for names, other in found if replace(other, variant="") == same and not other.kernels), None)
        if twin is None:
            found.append(([build.variant], build))
        else:
            twin.append(build.variant)
    return found


def run(before: Path, after: Path) -> Comparison:
    """Compare two runs.

    Raises BundleError for one that was tampered with, RecordError where there is nothing to read or nothing in common.
    """
    return compare(runs.load(before), runs.load(after))


def compare(before: Run, after: Run) -> Comparison:
    """Compare two runs that were read. Raises RecordError when they have no variant in common."""
    keys = list(runs.keys(before, after))
    common = [key for key in keys if before.knows(key) and after.knows(key)]
    if not common:
        raise RecordError(
            "they have no variant in common",
            subject=f"{before.name} and {after.name}",
            hint="compare two runs of the same project",
        )
    timed = [[name for name, bench in run.benches.items() if bench.status == OK] for run in (before, after)]
    benches = [name for name in timed[1] if name in timed[0]]
    found = Comparison(before.side, after.side, common=len(common), benches=benches)
    found.only_before = [key for key in keys if key not in common and before.knows(key)]
    found.only_after = [key for key in keys if key not in common and key not in found.only_before]
    found.unread = [
        NotCompared(f"{entry.path} of {run.name}", entry.reason) for run in (before, after) for entry in run.unread
    ]
    found.environment = list(environment(before, after))
    gone = [key for key in found.only_before if before.role(key) == "variant"]
    came = [key for key in found.only_after if after.role(key) == "variant" and after.verdict(key) in BAD]
    found.judged_otherwise = list(_judged_otherwise(before, after, common))
    otherwise = {one.variant for one in found.judged_otherwise}
    found.verdicts = list(_verdicts(before, after, [*common, *gone, *came], found.environment, otherwise))
    found.tested_less = list(_tested_less(before, after, common))
    found.errors = list(_errors(before, after, [key for key in common if key not in otherwise]))
    found.builds = [change for key in common if (change := _build(before, after, key)) is not None]
    changes = differences.time_changes(before, after, *differences.settings_of(before, after))
    found.times, found.times_not_compared, found.cautions = changes.rows, changes.not_compared, changes.cautions
    return found


# --- surroundings -----------------------------------------------------------------------------------------------------


def environment(before: Run, after: Run) -> Iterator[Change]:
    """What differs in machine, driver, Python, packages and compilers; packages that decide come first."""
    for what, ours, theirs in (
        ("project", after.config.get("project"), before.config.get("project")),
        ("GPU", after.gpu.get("name"), before.gpu.get("name")),
        ("board", after.gpu.get("uuid_sha256"), before.gpu.get("uuid_sha256")),
        ("driver", after.gpu.get("driver"), before.gpu.get("driver")),
        ("CUDA of the driver", after.gpu.get("cuda_driver"), before.gpu.get("cuda_driver")),
        ("VBIOS", after.gpu.get("vbios"), before.gpu.get("vbios")),
        ("highest SM clock, MHz", after.gpu.get("sm_clock_max_mhz"), before.gpu.get("sm_clock_max_mhz")),
        ("highest memory clock, MHz", after.gpu.get("memory_clock_max_mhz"), before.gpu.get("memory_clock_max_mhz")),
        ("power limit, W", after.gpu.get("power_limit_w"), before.gpu.get("power_limit_w")),
        ("processor", after.cpu.get("model"), before.cpu.get("model")),
        ("usable cores", after.cpu.get("usable_cores"), before.cpu.get("usable_cores")),
        ("operating system", _fact(after, "os", "name"), _fact(before, "os", "name")),
        ("Linux", _fact(after, "os", "kernel"), _fact(before, "os", "kernel")),
        ("C library", _fact(after, "os", "libc"), _fact(before, "os", "libc")),
        ("Python", _fact(after, "python", "version"), _fact(before, "python", "version")),
        ("CUDA toolchain", _fact(after, "cuda_toolchain", "version"), _fact(before, "cuda_toolchain", "version")),
        ("host compiler", _fact(after, "host_compiler", "version"), _fact(before, "host_compiler", "version")),
        ("kernelproof", _tool(after), _tool(before)),
        *((f"{part}.{name}", *(run.setting(part, name) for run in (after, before))) for part, name in STRICTNESS),
    ):
        if ours != theirs:
            yield Change(what, _text(theirs), _text(ours))
    names = sorted(set(before.packages) | set(after.packages), key=lambda name: (name not in {*before.decisive}, name))
    if before.packages and after.packages:
        for name in names:
            if before.packages.get(name) != after.packages.get(name):
                yield Change(f"package {name}", _text(before.packages.get(name)), _text(after.packages.get(name)))
    variables = before.facts("environment"), after.facts("environment")
    for name in sorted({*variables[0], *variables[1]}):
        if variables[0].get(name) != variables[1].get(name):
            yield Change(f"variable {name}", _text(variables[0].get(name)), _text(variables[1].get(name)))


def _fact(run: Run, probe: str, key: str) -> Any:
    return run.facts(probe).get(key)


def _tool(run: Run) -> str:
    known = [*run.tests.values(), *run.builds.values()]
    return formats.listed(sorted({record.provenance.kernelproof for record in known if record.provenance.kernelproof}))


def _text(value: Any) -> str:
    return ABSENT if value in (None, "") else str(value)


# --- correctness ------------------------------------------------------------------------------------------------------


def _verdicts(
    before: Run, after: Run, keys: Iterable[str], environment: Sequence[Change], otherwise: Collection[str]
) -> Iterator[VerdictChange]:
    """Verdicts that changed, the broken ones first; who is held to something else is not called mended."""
    found = []
    for key in keys:
        words = [run.verdict(key) for run in (before, after)]
        if words[0] == words[1]:
            continue
        kind = BROKE if words[0] == CORRECT and words[1] in BAD else CHANGED
        kind = LOST if words[0] == CORRECT and words[1] in NO_VERDICT else kind
        kind = GONE if words[0] in BAD and not after.knows(key) else kind
        kind = MENDED if words[1] == CORRECT and words[0] in BAD and key not in otherwise else kind
        kind = kind if before.knows(key) else NEW
        worse = before if kind == MENDED else after
        sentence = _sentence(key, words, environment, before, after)
        sentence += ", held to something else" if key in otherwise else ""
        role = "variant" if "variant" in (before.role(key), after.role(key)) else after.role(key)
        found.append(VerdictChange(key, role, kind, words[0], words[1], _reason(worse, key), sentence))
    order = (BROKE, LOST, NEW, GONE, MENDED, CHANGED)
    yield from sorted(found, key=lambda change: order.index(change.kind))


def _tested_less(before: Run, after: Run, keys: Iterable[str]) -> Iterator[TestedLess]:
    """Who was correct and is, by fewer cases, without a shape, say, or with rungs left out: the same word for less."""
    for key in keys:
        old, new = before.tests.get(key), after.tests.get(key)
        if old is None or new is None or not before.verdict(key) == after.verdict(key) == CORRECT:
            continue
        had, has = (_tried(test) for test in (old, new))
        less = []
        if lost := [said for kind in had.covered if (said := _lost(kind, had.covered[kind], has.covered[kind]))]:
            less.append(f"without {formats.listed(lost)}")
        levels = [LEVELS.index(test.level) for test in (old, new) if test.level in LEVELS]
        if levels != sorted(levels):
            less.append(f"at the {new.level} level instead of {old.level}")
        if new.trials < old.trials:
            less.append(f"{formats.plural(new.trials, 'repeat')} instead of {old.trials}")
        if has.cases < FEWER_CASES * had.cases:
            less.append(f"{formats.plural(has.cases, 'case')} instead of {had.cases}")
        if less:
            role = "variant" if "variant" in (before.role(key), after.role(key)) else after.role(key)
            yield TestedLess(key, role, "; ".join(less))


def _judged_otherwise(before: Run, after: Run, keys: Iterable[str]) -> Iterator[JudgedOtherwise]:
    """Who was tested in both runs, and held to other limits, another declaration or another reference."""
    for key in keys:
        old, new = before.tests.get(key), after.tests.get(key)
        if old is None or new is None or NOT_RUN in (old.verdict, new.verdict):
            continue
        changes, looser = [], False
        for name, usual in asdict(CRITERIA).items():
            limits = [test.looser.get(name, usual) for test in (old, new)]
            if limits[0] != limits[1]:
                changes.append(Change(name, *(f"{limit:g}" for limit in limits)))
                looser |= limits[1] > limits[0]
        for name in (name for name in old.precision if name in new.precision):
            said = [test.precision[name] for test in (old, new)]
            if said[0] != said[1]:
                changes.append(Change(f"declared {name}", *said))
                looser |= _roundest(old, said[0]) < _roundest(new, said[1])
        steady = [run.declares(key, "deterministic", True) for run in (before, after)]
        if steady[0] != steady[1] and None not in steady:
            changes.append(Change("declared deterministic", *(str(one).lower() for one in steady)))
            looser |= not steady[1]
        for path, *hashes in _other_modules(old, new):
            changes.append(Change(f"the operator's {path}", *hashes))
            looser = True  # nobody knows
        looser &= after.verdict(key) == CORRECT
        if changes:
            role = "variant" if "variant" in (before.role(key), after.role(key)) else after.role(key)
            yield JudgedOtherwise(key, role, changes, looser)


def _other_modules(old: TestRecord, new: TestRecord) -> Iterator[tuple[str, str, str]]:
    """Of what an operator's own module consists of, what is not the same: a path and a hash of each side.

    A file by another path is the same where its text is; what a module imports is known of newer records only.
    """
    if not (old.module and new.module):
        return
    if old.module.sha256 != new.module.sha256:
        yield new.module.path, old.module.sha256[:12], new.module.sha256[:12]
    if old.imports is None or new.imports is None:
        return
    texts = {file.sha256 for file in old.imports} & {file.sha256 for file in new.imports}
    sides = [
        {file.path: file.sha256[:12] for file in files if file.sha256 not in texts}
        for files in (old.imports, new.imports)
    ]
    for path in sorted(sides[0] | sides[1]):
        yield path, sides[0].get(path, "none"), sides[1].get(path, "none")


def _roundest(test: TestRecord, name: str) -> int:
    """The place in PRECISE of the coarsest that a test declared for any of its cases; -1 if not known."""
    kinds = {Precision(name).of(case.dtype).output for case in test.cases} or {name}
    return max((PRECISE.index(kind) for kind in kinds if kind in PRECISE), default=-1)


def _lost(kind: str, had: Sequence[str], has: Sequence[str]) -> str:
    """`shape s513`, or `16 of 18 shapes`; empty where nothing was lost."""
    names = [name for name in had if name not in has]
    if len(names) > NAMED_OF_A_KIND:
        return f"{len(names)} of {formats.plural(len(had), kind, {'family': 'families'}.get(kind))}"
    return f"{kind} {formats.listed(names)}" if names else ""


@dataclass(frozen=True)
class _Tried:
    """What passed in a test: how many cases, and by kind what they and the rungs covered.

    Which shape is tried with which family follows from how many there are of each, so it is not asked for.
    """

    cases: int
    covered: dict[str, list[str]]


def _tried(test: TestRecord) -> _Tried:
    # A shape with a `=` was drawn by the search, which no two runs do alike.
    cases = [case for case in test.cases if case.status == "passed" and "=" not in case.shape]
    options = (f"{name}={value}".lower() for case in cases for name, value in sorted(case.options.items()))
    covered = {
        "shape": (case.shape for case in cases),
        "data type": (case.dtype for case in cases),
        "option": options,
        "family": (case.family for case in cases),
        "rung": (rung.name for rung in test.rungs if rung.status == "passed"),
    }
    return _Tried(len(cases), {kind: list(dict.fromkeys(names)) for kind, names in covered.items()})


def _sentence(key: str, words: Sequence[str], environment: Sequence[Change], before: Run, after: Run) -> str:
    """`op/fast: correct under torch 2.4.1, wrong under torch 2.11.0`, or by what else tells the runs apart."""
    old, new = ("not tested" if word == MISSING else word.replace("_", " ") for word in words)
    by = {change.what: change for change in environment}
    known = {"package torch": "torch ", "GPU": "", "driver": "driver ", "package triton": "triton "}
    decisive = [what for what in known if what in by]
    if "GPU" in by and ABSENT in (by["GPU"].before, by["GPU"].after) and after.device(key) == "cuda":
        old_on, new_on = ("without a GPU" if on == ABSENT else f"on {on}" for on in (by["GPU"].before, by["GPU"].after))
        return f"{key}: {old} {old_on}, {new} {new_on}"
    if decisive:
        what, *others = decisive
        also = f" (changed too: {formats.listed(other.removeprefix('package ') for other in others)})" if others else ""
        return f"{key}: {old} under {known[what]}{by[what].before}, {new} under {known[what]}{by[what].after}{also}"
    at = [run.commit_of(key) for run in (before, after)]
    if at[0] != at[1] and all(at):
        return f"{key}: {old} at {at[0]}, {new} at {at[1]}"
    return f"{key}: {old} in {before.name}, {new} in {after.name}"


def _reason(run: Run, key: str) -> str:
    """Why a test failed: its own reason, or the first failure; or what the benchmark found."""
    test = run.tests.get(key)
    if test is None:
        return "there is no test record"
    if test.verdict == CORRECT and (found := run.found_by_bench(key)):
        return formats.one_line(found[1])
    first = next((case for case in test.cases if case.status == "failed"), None)
    if first is not None and first.failures:
        return formats.one_line(f"{first.id}: {first.failures[0].criterion}: {first.failures[0].message}")
    if test.reason:
        return formats.one_line(test.reason)
    rung = next((rung for rung in test.rungs if rung.status == "failed"), None)
    return formats.one_line(f"{rung.name}: {rung.message}") if rung else ""


def _errors(before: Run, after: Run, keys: Iterable[str]) -> Iterator[ErrorChange]:
    """Per variant and criterion the worst ratio to the limit over the cases of both runs, where it moved."""
    for key in keys:
        old, new = before.tests.get(key), after.tests.get(key)
        if old is None or new is None:
            continue
        was = {case.id: case for case in old.cases}
        both = [(was[case.id], case) for case in new.cases if case.id in was]
        for criterion, name in (("bound", "max_bound_ratio"), ("rms", "rms_ratio"), ("bias", "bias_ratio")):
            if change := _error(key, criterion, name, both):
                yield change


def _error(key: str, criterion: str, name: str, both: Sequence[tuple[CaseResult, CaseResult]]) -> ErrorChange | None:
    pairs = [(case.id, getattr(old, name), getattr(case, name)) for old, case in both]
    known = [(case, abs(old), abs(new)) for case, old, new in pairs if old is not None and new is not None]
    moved = [pair for pair in known if abs(pair[2] - pair[1]) > ERROR_CHANGE * max(pair[1], pair[2])]
    if not moved:
        return None
    # The case with the largest error on either side: a factor between two tiny errors says nothing.
    case, old, new = max(moved, key=lambda pair: max(pair[1], pair[2]))
    return ErrorChange(key, criterion, case, old, new)


# --- builds -----------------------------------------------------------------------------------------------------------


def _build(before: Run, after: Run, key: str) -> BuildChange | None:
    old, new = before.builds.get(key), after.builds.get(key)
    if old is None or new is None:
        missing = formats.listed(run.name for run, build in ((before, old), (after, new)) if build is None)
        return BuildChange(key, "unknown", note=f"no build record in {missing}")
    inputs = [*_files(old, new), *_settings_of(old, new)]
    if new.abi == "python":
        return BuildChange(key, "unknown", inputs)
    same = runs.same_machine_code(old, new)
    if same is None:
        return BuildChange(key, "unknown", inputs)
    code = "same" if same else "different"
    kernels = [change for arch in _archs(old, new) for change in _kernels(arch, old, new)]
    note = ""
    if code == "different" and not kernels:
        if _device_differs(old, new):
            note = "constants or launch code differ"
        elif old.host_code_sha256 != new.host_code_sha256:
            note = "the host's machine code differs"
        else:
            note = "the binding's machine code differs"
    if code == "same" and any(change.what.startswith(("macro", "flag")) for change in inputs):
        note = "macros or flags differ, and the machine code does not: did they reach the compiler?"
    return BuildChange(key, code, inputs, kernels, note)


def _device_differs(old: BuildRecord, new: BuildRecord) -> bool:
    return {c.arch: c.sass_sha256 for c in old.cubins} != {c.arch: c.sass_sha256 for c in new.cubins}


def _files(old: BuildRecord, new: BuildRecord) -> Iterator[Change]:
    known = bool(old.binding) == bool(new.binding)  # older records say nothing of it
    was, now = (runs.hashes(build if known else replace(build, binding=[])) for build in (old, new))
    for path in sorted({*was, *now}):
        if was.get(path) != now.get(path):
            yield Change(f"file {path}", _text((was.get(path) or "")[:16]), _text((now.get(path) or "")[:16]))


def _settings_of(old: BuildRecord, new: BuildRecord) -> Iterator[Change]:
    for name in sorted({*old.macros, *new.macros}):
        if old.macros.get(name) != new.macros.get(name):
            yield Change(f"macro {name}", _macro(old.macros, name), _macro(new.macros, name))
    for what, was, now in (("flags", old.flags, new.flags), ("architectures", old.archs, new.archs)):
        if was != now:
            yield Change(what, " ".join(was) or "none", " ".join(now) or "none")
    for what, tool, other in (
        ("compiler", old.compiler, new.compiler),
        ("host compiler", old.host_compiler, new.host_compiler),
    ):
        told = [f"{found.name} {found.version} ({found.sha256[:12]})" if found else "absent" for found in (tool, other)]
        if told[0] != told[1]:
            yield Change(what, told[0], told[1])
    if old.abi != new.abi:
        yield Change("abi", old.abi, new.abi)
    if old.status != new.status:
        yield Change("build", old.status, new.status)


def _macro(macros: Mapping[str, Any], name: str) -> str:
    return "not set" if name not in macros else str(macros[name])


def _archs(old: BuildRecord, new: BuildRecord) -> list[str]:
    return list(dict.fromkeys(cubin.arch for cubin in (*new.cubins, *old.cubins)))


def _kernels(arch: str, old: BuildRecord, new: BuildRecord) -> Iterator[KernelChange]:
    """Kernels that differ on one architecture, by their mangled name.

    nvcc names the unnamed namespace of a file after a hash of where it lies, which says nothing of the kernel.
    """
    cubins = [[cubin for cubin in build.cubins if cubin.arch == arch] for build in (old, new)]
    if not cubins[0] or not cubins[1]:
        what = "added" if cubins[1] else "removed"
        yield KernelChange(arch, f"all {sum(len(c.kernels) for c in cubins[0] or cubins[1])} kernels", what)
        return
    was, now = (
        {UNNAMED.sub(r"\1", kernel.name): (kernel, cubin) for cubin in side for kernel in cubin.kernels}
        for side in cubins
    )
    for name in sorted({*was, *now}):
        if name not in was or name not in now:
            kernel = (now.get(name) or was[name])[0]
            yield KernelChange(arch, kernel.demangled, "added" if name in now else "removed")
            continue
        (mine, my_cubin), (other, other_cubin) = now[name], was[name]
        resources = [
            Change(what, str(getattr(other, what)), str(getattr(mine, what)))
            for what in RESOURCES
            if getattr(other, what) != getattr(mine, what)
        ]
        if mine.sass_sha256 != other.sass_sha256 or resources:
            mix = _mix_change(_mix(other, other_cubin), _mix(mine, my_cubin))
            yield KernelChange(arch, mine.demangled, "changed", resources, mix)


def _mix(kernel: KernelResources, cubin: Cubin) -> Mapping[str, int] | None:
    """A kernel's instruction mix; older records have one for the whole cubin, which is its own if it is alone."""
    if kernel.instruction_mix:
        return kernel.instruction_mix
    return cubin.instruction_mix if len(cubin.kernels) == 1 else None


def _mix_change(was: Mapping[str, int] | None, now: Mapping[str, int] | None) -> dict[str, int]:
    if was is None or now is None:
        return {}
    found = {name: now.get(name, 0) - was.get(name, 0) for name in sorted({*was, *now})}
    return {name: more for name, more in sorted(found.items(), key=lambda item: -abs(item[1])) if more}
