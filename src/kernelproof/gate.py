"""`kernelproof gate`: do the records bear out what is claimed, and did nothing become slower?

Correctness comes first: a variant that was found wrong, crashed, hung or did not build fails the gate, whatever its
speed. Speed is demanded only of variants with `gate: true` in config.yaml: in every case and mode that it asks for, the
upper bound of ours / fastest correct baseline must be at most `gate.max_ratio`. What was not run is listed as not run;
it neither passes nor fails, except that a gate on which nothing at all was judged could not run.

Beside the baselines of the same run stands the kept reference, `reports/reference/<gpu>/`, where it is of the same GPU
model, driver branch and clocks: a variant that is shown to be slower than there by more than `gate.max_regression`
fails.
Two runs are not paired, so this sees less (`differences.py`), and says how little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelproof import claims, consistency, differences, fingerprints, formats, records, runs, statistics
from kernelproof import config as configuration
from kernelproof.cases import enumerate_cases
from kernelproof.claims import FAILS, NO_CLAIM, NOT_RUN, PASSES
from kernelproof.config import Config, VariantConfig
from kernelproof.differences import NotCompared, TimeChange
from kernelproof.errors import ExitCode, RecordError
from kernelproof.records import DECIDES_NOTHING, BenchRecord, TestRecord
from kernelproof.runs import Run

BAD_VERDICTS = {"wrong", "crashed", "hung", "failed_to_build"}
KEPT = Path("reports") / "reference"
UNDECIDED = "undecided"
COLUMNS = ("variant", "device", "correctness", "speed", "worst case: ours / best baseline", "verdict", "reason")
REGRESSION_COLUMNS = ("variant", "device", "now / reference", "verdict", "reason")


@dataclass(frozen=True)
class Row:
    """One variant: its correctness and, of its claim, the case and mode with the highest upper bound."""

    operator: str
    variant: str
    device: str
    correctness: str  # the test's verdict, or `not run`
    speed: str  # passes, fails, no claim, not run
    status: str  # passes, fails, not run
    reason: str
    case: str | None = None
    mode: str | None = None
    best_baseline: str | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    said: str | None = None  # faster, same, slower or undecided, against that baseline
    detectable: float | None = None  # the smallest true difference, as a share, that this run could have shown


@dataclass(frozen=True)
class RegressionRow:
    """One variant against itself in the kept reference; `decisive` is the case with the highest lower bound."""

    operator: str
    variant: str
    device: str
    status: str  # passes, fails, undecided
    cases: int
    decisive: TimeChange

    @property
    def reason(self) -> str:
        """How many cases, which decides, and on what its figure rests."""
        at = f"{self.decisive.case} {self.decisive.mode}"
        more = f"; the worst of {self.cases} cases: {at}" if self.cases > 1 else f"; {at}"
        if self.decisive.verdict == differences.SAME_SAMPLES:
            return f"{differences.SAME_SAMPLES} as in the reference"
        basis = f"relative to {formats.listed(self.decisive.against)}" if self.decisive.against else differences.ALONE
        seen = f"; {formats.could_see(self.decisive.detectable, 'these runs')}" if self.status == UNDECIDED else ""
        return f"{basis}{more}{seen}"


@dataclass(frozen=True)
class Regression:
    """What the kept reference says, and what could not be held against it."""

    max_regression: float
    reference: str | None = None
    rows: list[RegressionRow] = field(default_factory=list)
    not_compared: list[NotCompared] = field(default_factory=list)


@dataclass(frozen=True)
class GateResult:
    """Every variant, the limit that claims were held to, and what became slower than in the kept reference."""

    max_ratio: float
    rows: list[Row] = field(default_factory=list)
    regression: Regression | None = None
    left_out: list[str] = field(default_factory=list)  # variants that a bundle has no test of

    @property
    def exit_code(self) -> ExitCode:
        """0: everything that ran holds. 1: something does not. 2: nothing was judged, or a bundle lacks a variant."""
        statuses = {row.status for row in self.rows}
        if self.regression and any(row.status == FAILS for row in self.regression.rows):
            return ExitCode.BAD_VERDICT
        if FAILS in statuses:
            return ExitCode.BAD_VERDICT
        return ExitCode.WELL if PASSES in statuses and not self.left_out else ExitCode.COULD_NOT_RUN

    @property
    def summary(self) -> str:
        """The decision in one sentence."""
        count = {status: sum(row.status == status for row in self.rows) for status in (PASSES, FAILS, NOT_RUN)}
        figures = f"{count[PASSES]} passed, {count[FAILS]} failed, {count[NOT_RUN]} not run"
        slower = [row for row in self.regression.rows if row.status == FAILS] if self.regression else []
        if slower:
            names = formats.listed(f"{row.operator}/{row.variant}" for row in slower)
            figures += f"; slower than in the kept reference: {names}"
        if unjudged := [f"{row.operator}/{row.variant}" for row in self.rows if row.speed == NOT_RUN]:
            some = any(row.speed in (PASSES, FAILS) for row in self.rows)
            figures += f"; {'claims not judged' if some else 'no claim was judged'}: {formats.listed(unjudged)}"
        if self.left_out:
            figures += f"; the bundle has no test of {formats.listed(self.left_out)}"
        judged = "Not everything" if self.left_out else "Nothing"
        return {
            ExitCode.WELL: f"The gate passes: {figures}.",
            ExitCode.BAD_VERDICT: f"The gate fails: {figures}.",
        }.get(self.exit_code, f"{judged} was judged: {figures}.")

    def as_json(self) -> dict[str, Any]:
        """The decision, for a program."""
        rows = [asdict(row) for row in self.rows]
        regression = None
        if self.regression:
            regression = asdict(self.regression)
            for row, plain in zip(self.regression.rows, regression["rows"], strict=True):
                plain["reason"] = row.reason
        return {
            "passed": self.exit_code == ExitCode.WELL,
            "summary": self.summary,
            "max_ratio": self.max_ratio,
            "rows": rows,
            "regression": regression,
        }

    def text(self) -> str:
        """The decision for a person, in aligned columns; what records say has no control characters any more."""
        return formats.clean("\n".join(self._written(_PLAIN)))

    def markdown(self) -> str:
        """The decision, as tables for a pull request."""
        return "\n".join(self._written(_MARKDOWN))

    def _written(self, form: _Form) -> Iterator[str]:
        yield from (form.text(self.summary), "")
        yield from form.table([COLUMNS, *self._cells(form)])
        found = self.regression
        if found is None or not (found.rows or found.not_compared):
            return
        limit = f"slower by more than {formats.percent(found.max_regression - 1, 0)} fails"
        reference = f" {form.text(found.reference)}" if found.reference else ""
        yield from ("", f"Against the kept reference{reference} ({limit}):", "")
        if found.rows:
            yield from form.table([REGRESSION_COLUMNS, *_regression_cells(found.rows, form)])
        if found.rows and found.not_compared:
            yield ""
        for other in found.not_compared:
            yield f"- not compared: {form.name(other.what)}: {form.text(other.reason)}"

    def _cells(self, form: _Form) -> Iterator[tuple[str, ...]]:
        """What the table says of each variant."""
        for row in self.rows:
            figure = ""
            if row.ratio is not None:
                against = form.name(row.best_baseline)
                figure = f"{row.ratio:.3f} [{row.low:.3f}, {row.high:.3f}] vs {against}"
            if row.said == statistics.UNDECIDED and row.detectable is not None:
                figure += f" (undecided: {formats.could_see(row.detectable, 'this run')})"
            who = form.name(f"{row.operator}/{row.variant}")
            yield who, row.device, row.correctness, row.speed, figure, row.status, form.text(row.reason)


def _regression_cells(rows: list[RegressionRow], form: _Form) -> Iterator[tuple[str, ...]]:
    """What the table says of each variant that the kept reference has too."""
    for row in rows:
        figure = f"{row.decisive.ratio:.3f} [{row.decisive.low:.3f}, {row.decisive.high:.3f}]"
        yield form.name(f"{row.operator}/{row.variant}"), row.device, figure, row.status, form.text(row.reason)


def _markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table of cells that are fit for Markdown, the first row its header."""
    header, *others = (f"| {' | '.join(row)} |" for row in rows)
    return [header, f"|{' --- |' * len(rows[0])}", *others]


@dataclass(frozen=True)
class _Form:
    """How a result is written: names and sentences, which may be a stranger's, and tables of them."""

    name: Callable[[object], str]
    text: Callable[[object], str]
    table: Callable[[Sequence[Sequence[str]]], list[str]]


_PLAIN = _Form(formats.one_line, lambda text: formats.one_line(text, 400), formats.columns)
_MARKDOWN = _Form(formats.md_code, formats.md_text, _markdown_table)


def run(config: Config | None, path: Path) -> GateResult:
    """Judge a run: `results`, a report's folder, kept records, or a bundle's tarball.

    Without a configuration, or with one that has none of its variants, by that which it was made with. Raises
    RecordError when there is none or a record in it cannot be read, BundleError for one that was tampered with.
    """
    now = runs.load(path)
    for unread in now.unread:
        raise RecordError(unread.reason, subject=f"{now.name}: {unread.path}", hint="run its stage again")
    known = {variant.key for variant in config.variants()} if config else set()
    if config is None or (now.config and not known & {*now.builds, *now.tests}):
        if not now.config:
            hint = "the configuration that its stages were given: kernelproof gate --config FILE"
            raise RecordError("no configuration is kept in it, as a run would have done", subject=now.name, hint=hint)
        own = configuration.of_run(now.config, f"{now.name}: config.json")
        config = replace(own, root=config.root if config else Path())
    rows = list(_rows(config, now))
    keys = [f"{row.operator}/{row.variant}" for row in rows]
    left_out = [key for key in keys if now.kind == runs.BUNDLE and key not in now.tests]
    return GateResult(config.gate.max_ratio, [*rows, *_strangers(config, now)], _regression(config, now), left_out)


def _rows(config: Config, now: Run) -> Iterator[Row]:
    for operator in config.operators.values():
        for variant in operator.variants.values():
            yield _row(config, variant, now)


def _strangers(config: Config, now: Run) -> Iterator[Row]:
    """Variants that were tested here with another configuration: a wrong one is wrong, and the others are named."""
    known = {variant.key for variant in config.variants()}
    for key, test in now.tests.items():
        if test.role != "variant" or key in known:
            continue
        fault = now.found_by_bench(key) if test.verdict == "correct" else None
        outcome, why = fault or (test.verdict.replace("_", " "), test.reason or "not judged by this one")
        reason = f"it was tested with another configuration, which --config names; {why}"
        bad = fault is not None or test.verdict in BAD_VERDICTS
        yield Row(test.operator, test.variant, test.device, outcome, NO_CLAIM, FAILS if bad else NOT_RUN, reason)


def _row(config: Config, variant: VariantConfig, now: Run) -> Row:
    who = (variant.operator, variant.name, variant.device)
    unjudged = NOT_RUN if variant.gate else NO_CLAIM
    test = now.tests.get(variant.key)
    if test is None or test.verdict == records.NOT_RUN:
        reason = (test.reason if test else None) or "there is no test record"
        return Row(*who, NOT_RUN, unjudged, FAILS if test and test.status == records.FAILED else NOT_RUN, reason)
    if test.verdict != "correct":
        reason = test.reason or "correctness is a precondition"
        status = FAILS if test.verdict in BAD_VERDICTS else NOT_RUN
        return Row(*who, test.verdict.replace("_", " "), unjudged, status, reason)
    bench = now.benches.get(f"{variant.operator}-{variant.device}")
    if (fault := claims.found_by_bench(bench, variant.name)) is not None:
        return Row(*who, fault[0], unjudged, FAILS, fault[1])
    if bench is not None:
        bench = replace(bench, oracle=claims.held_to(bench.oracle, config.gate.max_ratio))
    claim = claims.judge(variant.name, claimed=variant.gate, correct=True, bench=bench)
    status = claim.word
    if claim.word == NO_CLAIM:
        status = NOT_RUN if claims.not_tried(bench, variant.name) else PASSES
    reason = claim.why if variant.gate else f"gate: false; {claim.why}"
    if test.looser:
        wider = formats.listed(f"{name} {value:g}" for name, value in test.looser.items())
        reason += f"; correct by limits wider than the criteria's own: {wider}"
    build = now.builds.get(variant.key)
    over = next((claims.over_budget(row) for row in (build.budget if build else []) if not row.ok), "")
    if shortfall := _tested_less(config, variant, test, now) or over:
        status, reason = FAILS, shortfall
    elif claim.word == PASSES and bench is not None and (less := _measured_less(config, variant, bench, now)):
        claim, status, reason = replace(claim, word=FAILS), FAILS, less
    elif status == PASSES and bench is not None and bench.status == records.FAILED:
        status, reason = FAILS, f"bench: {bench.reason}"
    judged = Row(*who, "correct", claim.word, status, reason)
    if (case := claim.decisive) is None or bench is None:
        return judged
    place = (variant.name, case.best_baseline, case.case, case.mode)
    ratio = next((row for row in bench.ratios if (row.variant, row.baseline, row.case, row.mode) == place), None)
    return replace(
        judged,
        case=case.case,
        mode=case.mode,
        best_baseline=case.best_baseline,
        ratio=case.ratio,
        low=case.low,
        high=case.high,
        said=ratio.verdict if ratio else None,
        detectable=ratio.detectable if ratio else None,
    )


def _measured_less(config: Config, variant: VariantConfig, bench: BenchRecord, now: Run) -> str:
    """Why a claim that holds in all that was measured is not borne out: a run does not choose what it is held to."""
    asked = config.bench.confidence
    had = float(now.setting("bench", "confidence", asked))
    if had < asked:
        return (
            f"its intervals hold the truth {formats.percent(had)} of the time, and bench.confidence asks for "
            f"{formats.percent(asked)}: measure again"
        )
    operator = config.operator(variant.operator)
    known = {case.id: (case.dims, case.options, case.dtype) for case in bench.cases}
    wanted = {
        case.bench_id: (case.dims, case.options, case.dtype) for case in enumerate_cases(operator, variant, "bench")
    }
    missing = [case for case in wanted if case not in known]
    missing += [mode for mode in config.bench.modes if mode not in bench.modes]
    had_beside = {contender.name for contender in bench.contenders}
    beside = [baseline for baseline in operator.baselines.values() if baseline.device == variant.device]
    missing += [f"the baseline {baseline.name}" for baseline in beside if baseline.name not in had_beside]
    if missing:
        return (
            f"the configuration asks for {formats.listed(missing)} too, and nothing was measured there: measure again"
        )
    if other := [case for case, what in wanted.items() if known[case] != what]:
        return f"the configuration has another case by the name of {formats.listed(other)}: measure again"
    if bench.processes < config.bench.processes:
        return f"bench.processes: {bench.processes} for {config.bench.processes}: measure again"
    here = f"operators.{operator.name}"
    what_was_run = (f"{here}.variants.{variant.name}.", f"{here}.baselines.", f"{here}.module", "test.tolerance")
    now_asked = fingerprints.of(config, "bench", f"{operator.name}-{variant.device}")
    if changed := [key for key in fingerprints.changed(bench.settings, now_asked) if key.startswith(what_was_run)]:
        return f"{formats.listed(changed)} of the configuration was another when it was measured: measure again"
    return ""


def _tested_less(config: Config, variant: VariantConfig, test: TestRecord, now: Run) -> str:
    """Of which settings a test had less than the configuration asks for, or wider limits; empty where of none.

    The record itself says it, but for seeds and shapes, which the configuration of the run does.
    """
    less, levels = [], consistency.tests.LEVELS
    if test.trials < (trials := consistency.tests.trials_at(test.level, config.test.trials)):
        less.append(f"test.trials: {test.trials} for {trials}")
    if test.level in levels[: levels.index(config.test.level)]:
        less.append(f"test.level: {test.level} for {config.test.level}")
    tolerance = asdict(config.test.tolerance)
    if wider := [name for name, limit in test.looser.items() if limit > tolerance.get(name, limit)]:
        less.append(f"test.tolerance: wider {formats.listed(wider)}")
    if unseen := set(config.test.seeds) - set(now.setting("test", "seeds", config.test.seeds)):
        less.append(f"test.seeds: without {formats.listed(map(str, sorted(unseen)))}")
    if now.config:
        operator, key = config.operator(variant.operator), f"operators.{variant.operator}"
        tested, sizes = (fingerprints.value(now.config, f"{key}.{name}") or {} for name in ("test.shapes", "shapes"))
        asked = operator.test.shapes
        if untried := [name for name in asked if name not in tested or sizes.get(name) != operator.shapes[name]]:
            less.append(f"{key}.test.shapes: without {formats.listed(untried)}")
    if not less:
        return ""
    return f"the configuration asks for more than was done ({formats.listed(less)}): test and measure again"


# --- against the kept reference ---------------------------------------------------------------------------------------


def _regression(config: Config, now: Run) -> Regression:
    """Every correct variant against itself in the kept reference of this GPU model."""
    limit = config.gate.max_regression
    folders = sorted(path.parent for path in (config.root / KEPT).glob("*/records") if path.is_dir())
    if not folders:
        return Regression(limit, not_compared=[NotCompared("everything", f"nothing is kept in {KEPT}/")])
    candidates, refused = [], []
    for folder in folders:
        try:
            candidates.append(runs.load(folder))
        except RecordError as error:
            refused.append(NotCompared(folder.name, error.message))
    found: list[TimeChange] = []
    names: list[str] = []
    for bench, record in sorted(now.benches.items()):
        if record.status != records.OK or record.device != "cuda":
            continue  # what a CPU is called does not say which machine it is: its times are compared within a run alone
        reference, why = _reference_of(bench, now, candidates)
        if reference is None:
            refused.append(NotCompared(bench, why))
            continue
        only = [replace(run, benches={bench: run.benches[bench]}) for run in (reference, now)]
        settings = statistics.Settings(config.bench.confidence, config.bench.bootstrap)
        changes = differences.time_changes(only[0], only[1], limit - 1, settings)
        found += [row for row in changes.rows if row.role == "variant"]
        refused += [entry for entry in changes.not_compared if entry.what == bench or not changes.rows]
        names.append(Path(reference.name).name)
    rows = [_regressed(found, key, limit) for key in dict.fromkeys(row.key for row in found)]
    return Regression(limit, formats.listed(dict.fromkeys(names)) or None, rows, refused)


def _reference_of(bench: str, now: Run, candidates: list[Run]) -> tuple[Run | None, str]:
    """The newest kept run that a benchmark may be held against, or why there is none."""
    reasons = []
    for candidate in sorted(candidates, key=lambda run: run.utc, reverse=True):
        if bench not in candidate.benches:
            reasons.append(f"{Path(candidate.name).name} has no such benchmark")
        elif (why := runs.strictly(candidate, now, bench)) is not None:
            reasons.append(f"{Path(candidate.name).name} is not comparable: {why}")
        else:
            return candidate, ""
    return None, "; ".join(reasons) or "no kept run could be read"


def _is_doubtful(row: TimeChange) -> bool:
    """Whether either run says of its own time that it decides nothing; the same samples are no slower all the same."""
    flags = {*row.flags_before, *row.flags_after}
    return row.verdict != differences.SAME_SAMPLES and not flags.isdisjoint(DECIDES_NOTHING)


def _regressed(found: list[TimeChange], key: str, limit: float) -> RegressionRow:
    """One variant over its cases: fails where one is shown to be slower, passes where none can be."""
    mine = [row for row in found if row.key == key]
    decisive = max(mine, key=lambda row: (row.verdict == statistics.SLOWER, row.low))
    if decisive.verdict == statistics.SLOWER:
        status = FAILS
    elif all(row.high <= limit and min(row.processes) > 1 and not _is_doubtful(row) for row in mine):
        status = PASSES
    else:
        status = UNDECIDED
        decisive = max(mine, key=lambda row: row.high)
    return RegressionRow(decisive.operator, decisive.contender, decisive.device, status, len(mine), decisive)
