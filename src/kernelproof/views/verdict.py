"""The verdict: one sentence, a badge a stage, a row a variant."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernelproof import charts, claims, formats
from kernelproof.charts import Axis
from kernelproof.claims import Claim
from kernelproof.config import CRITERIA
from kernelproof.consistency.tests import QUICK
from kernelproof.records import (
    FAILED,
    NO_BASELINE,
    NOT_RUN,
    OK,
    BenchCase,
    BenchRecord,
    OracleRow,
    Record,
    TestRecord,
    Verdict,
)
from kernelproof.samples import PRIMARY
from kernelproof.views.common import (
    BADGES,
    Badge,
    Records,
    Settings,
    badge,
    case_label,
    case_rank,
    doubt,
    doubts,
    refuted_when_timed,
)


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
    doubt: str  # why it is undecided, where the interval alone would have decided
    flags: str  # of the two times, in words, where they make it doubtful


@dataclass(frozen=True)
class VerdictRow:
    """One variant of the verdict table."""

    name: str
    idea: str
    correctness: Badge
    build: Badge | None
    speed_word: Badge | None
    claim: Claim
    gate: Badge
    speed: Speed | None
    reason: str
    untimed: str
    bad: bool


@dataclass(frozen=True)
class Folded:
    """Variants that were not run for one reason: one line in place of a row each."""

    reason: str
    rows: tuple[VerdictRow, ...]


@dataclass(frozen=True)
class VerdictGroup:
    """One operator on one device; `shown` are the rows that are not folded."""

    operator: str
    device: str
    sentence: str
    rows: tuple[VerdictRow, ...]
    shown: tuple[VerdictRow, ...]
    folded: tuple[Folded, ...]
    baselines: tuple[VerdictRow, ...]
    axis: Axis | None
    one_at: float
    gate_at: float

    @property
    def refused_baselines(self) -> str:
        """What is to be thought of baselines that are not correct; empty where all are."""
        names = [row.name for row in self.baselines if row.correctness.kind == "bad"]
        if not names:
            return ""
        each = "it is" if len(names) == 1 else "they are"
        return (
            f"{formats.listed(names)}: {each} held to the same criteria as the variants, and it is the baseline's own "
            "result that does not meet them. No variant is blamed for that, or compared with such a baseline."
        )


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


REFUTED = "refuted"  # of a test that was passed: by the benchmark
REASON_IN_THE_HEADLINE = 200  # characters; the tables have the whole
PLOT_WIDTH = 220.0  # pixels: of the ratios, beside four other columns

NOT_TIMED = {
    "missing": "there is no record of a benchmark",
    "not_run": "the benchmark was not run",
    "failed": "the benchmark failed",
}


def _speeds(records: Records, settings: Settings) -> dict[tuple[str, str], tuple[OracleRow, BenchCase | None]]:
    """For each (operator, variant) the oracle's row that stands for it: the profiled shape, hot, where there is one."""
    chosen: dict[tuple[str, str], tuple[OracleRow, BenchCase | None]] = {}
    for bench in records.benches:
        cases = {case.id: case for case in bench.cases}
        for row in bench.oracle:
            key = (bench.operator, row.variant)
            rank = case_rank(bench, cases.get(row.case), row.mode, settings)
            if key not in chosen or rank < case_rank(bench, chosen[key][1], chosen[key][0].mode, settings):
                chosen[key] = (row, cases.get(row.case))
    return chosen


def verdict_groups(records: Records, settings: Settings) -> list[VerdictGroup]:
    """The verdict tables, an operator's GPU first; those in which no variant ran last."""
    speeds = _speeds(records, settings)
    benches = {(bench.operator, bench.device): bench for bench in records.benches}
    groups: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for verdict in records.manifest.verdicts:
        groups[verdict.operator, verdict.device].append(verdict)
    made = [
        _verdict_group(operator, device, verdicts, speeds, benches.get((operator, device)), settings)
        for (operator, device), verdicts in groups.items()
    ]
    operators = list(dict.fromkeys(operator for operator, _ in groups))

    def place(group: VerdictGroup) -> tuple[bool, bool, int, bool]:
        ran = any(row.correctness.word not in ("not run", "no record") for row in group.rows)
        return not ran, not group.shown, operators.index(group.operator), group.device == "cpu"

    return sorted(made, key=place)


def _verdict_group(
    operator: str,
    device: str,
    verdicts: Sequence[Verdict],
    speeds: Mapping[tuple[str, str], tuple[OracleRow, BenchCase | None]],
    bench: BenchRecord | None,
    settings: Settings,
) -> VerdictGroup:
    correct = [v.variant for v in verdicts if v.correctness == "correct"]
    known = [speeds[operator, name][0] for name in correct if (operator, name) in speeds]
    figures = [x for r in known for x in (r.ratio, r.low, r.high) if x is not None and x > 0]
    on = charts.axis([*figures, 1.0, settings.max_ratio], "×", width=PLOT_WIDTH) if figures else None

    def row(verdict: Verdict) -> VerdictRow:
        # Without correctness there is no speed, even where an older benchmark holds one.
        chosen = speeds.get((operator, verdict.variant)) if verdict.correctness == "correct" else None
        speed = _speed(chosen, on, bench, settings)
        claim = claims.judge(
            verdict.variant,
            claimed=f"{operator}/{verdict.variant}" in settings.gated,
            correct=verdict.correctness == "correct",
            bench=bench,
        )
        build = badge(verdict.build) if verdict.build not in ("", "none", "not_needed") else None
        return VerdictRow(
            verdict.variant,
            settings.ideas.get(f"{operator}/{verdict.variant}", ""),
            badge(verdict.correctness),
            build,
            badge(verdict.speed) if speed and verdict.speed in BADGES else None,
            claim,
            _gate_badge(claim),
            speed,
            _why(verdict, chosen, claim, bench),
            claims.untimed(bench, verdict.variant),
            verdict.bad,
        )

    ours = tuple(row(v) for v in verdicts if v.role == "variant")
    baselines = tuple(row(v) for v in verdicts if v.role != "variant")
    folded = _folded(ours)
    return VerdictGroup(
        operator,
        device,
        _group_sentence(ours, settings, compared=bool(baselines)),
        ours,
        tuple(row for row in ours if not any(row in fold.rows for fold in folded)),
        folded,
        baselines,
        on,
        on.at(1.0) if on else 0,
        on.at(settings.max_ratio) if on else 0,
    )


def _folded(rows: Sequence[VerdictRow]) -> tuple[Folded, ...]:
    """What was not run, by its reason, where several variants share that."""
    by_reason: dict[str, list[VerdictRow]] = defaultdict(list)
    for row in rows:
        if row.correctness.word == "not run" and row.reason:
            by_reason[row.reason].append(row)
    return tuple(Folded(reason, tuple(found)) for reason, found in by_reason.items() if len(found) > 1)


def _speed(
    chosen: tuple[OracleRow, BenchCase | None] | None, on: Axis | None, bench: BenchRecord | None, settings: Settings
) -> Speed | None:
    if chosen is None or on is None:
        return None
    row, case = chosen
    if row.ratio is None or row.low is None or row.high is None or row.best_baseline is None:
        return None
    basis = f"interval {formats.interval(row.low, row.high)}" if row.low < row.high else formats.NO_INTERVAL
    title = f"{formats.ratio(row.ratio)} the time of {row.best_baseline}, {basis}"
    drawn = charts.whisker(on, row.ratio, row.low, row.high, "ratio", title)
    where = case_label(case) if case else row.case
    wanted = (row.variant, row.best_baseline, row.case, row.mode)
    compared = [r for r in bench.ratios if (r.variant, r.baseline, r.case, r.mode) == wanted] if bench else []
    why = doubt(bench, compared[0], settings) if bench and compared else ""
    return Speed(row.ratio, row.low, row.high, row.best_baseline, where, row.mode, drawn, why, doubts(row.flags))


def _gate_badge(claim: Claim) -> Badge:
    title = "the configuration claims no speed for it (gate: false)" if claim.word == claims.NO_CLAIM else claim.why
    return Badge({claims.PASSES: "good", claims.FAILS: "bad"}.get(claim.word, "muted"), claim.word, title)


def _why(
    verdict: Verdict, chosen: tuple[OracleRow, BenchCase | None] | None, claim: Claim, bench: BenchRecord | None
) -> str:
    if chosen and bench and chosen[0].ratio is None:
        row = chosen[0]
        timed = [t for t in bench.times if (t.contender, t.case, t.mode) == (row.variant, row.case, row.mode)]
        own = next((t.median_us for t in timed if t.method == PRIMARY[bench.device]), None)
        said = (
            f"{formats.time_us(own)} in {case_label(chosen[1]) if chosen[1] else row.case}, {row.mode}: " if own else ""
        )
        return said + (verdict.reason or row.reason)
    if verdict.reason:
        return verdict.reason
    return NOT_TIMED.get(verdict.speed, claim.reason) if chosen is None and verdict.correctness == "correct" else ""


def _group_sentence(rows: Sequence[VerdictRow], settings: Settings, *, compared: bool) -> str:
    timed = [r for r in rows if r.speed is not None and r.correctness.word == "correct"]
    if not rows:
        return "Only baselines here."
    if not timed:
        running = [r for r in rows if r.correctness.word != "not run"]
        if running and not compared:
            return f"There is no ratio to show: {NO_BASELINE}."
        return "No correct variant has a ratio to show." if running else "Nothing ran on this device."
    best = min(timed, key=lambda r: r.speed.ratio if r.speed else math.inf)
    speed = best.speed
    assert speed is not None
    level = f"{100 * settings.confidence:g}{formats.THIN}%"
    without = [r.name for r in rows if r.speed is None and r.correctness.word == "correct"]
    who = f"fastest correct variant{' that has a ratio' if without else ''}, {best.name},"
    others = f" No ratio: {formats.first_of(without)}." if without else ""
    if best.speed_word and best.speed_word.word == "undecided":
        several = speed.low < speed.high
        taken = f"{formats.interval(speed.low, speed.high)} times" if several else formats.ratio(speed.ratio)
        return (
            f"Undecided: the {who} takes {taken} the time of {speed.baseline} "
            f"({f'{level} interval; ' if several else ''}{speed.case}, {speed.mode})"
            f"{': ' + speed.doubt.removeprefix('undecided: ') if speed.doubt else ''}.{others}"
        )
    return (
        f"The {who} takes {formats.ratio(speed.ratio)} the time of {speed.baseline} "
        f"({level} interval {formats.interval(speed.low, speed.high)}; {speed.case}, {speed.mode}).{others}"
    )


def headline(records: Records, groups: Sequence[VerdictGroup]) -> Headline:
    """The one sentence: how many variants are correct, what is wrong with the others, and the claims of speed."""
    several = len({g.operator for g in groups}) > 1
    rows = [(f"{g.operator}/{r.name}" if several else r.name, r) for g in groups for r in g.rows]
    by_word: dict[str, list[str]] = defaultdict(list)
    for name, r in rows:
        by_word[r.correctness.word].append(name)
    correct = len(by_word.get("correct", []))
    if not rows:
        return Headline("warn", "nothing to judge", "There is no variant to judge.", ())
    waiting, untested = by_word.get("not run", []), len(by_word.get("no record", []))
    left = _waitingwords(records, groups, len(waiting)) if waiting else ""
    wrong = len(by_word.get("wrong", []))
    said = _correctwords(correct, len(rows) - len(waiting) - untested, left, untested, wrong)
    sentence = f"{said}; {_claimwords([r.claim.word for _, r in rows])}."
    details = [
        f"{formats.first_of(names)} {_verb(word, len(names))}."
        for word, names in by_word.items()
        if word not in ("correct", "not run")
    ]
    if waiting:
        reasons = Counter(r.reason for _, r in rows if r.correctness.word == "not run" and r.reason)
        why = f": {reasons.most_common(1)[0][0].rstrip('.')}" if reasons else ""
        few = len(waiting) <= formats.MOST_IN_A_HEADLINE
        who = formats.listed(waiting) if few else formats.plural(len(waiting), "variant")
        details.append(f"{who} {'was' if len(waiting) == 1 else 'were'} not run{why}.")
    other = [(name, r.reason) for name, r in rows if r.bad and r.correctness.word == "correct"]
    shown, more = formats.few(other)
    details += [f"{name}: {formats.one_line(reason, REASON_IN_THE_HEADLINE).rstrip('.')}." for name, reason in shown]
    if more:
        details.append(f"{formats.plural(more, 'more correct variant')} {'is' if more == 1 else 'are'} not accepted.")
    bad = records.manifest.overall == "bad" or any(v.bad for v in records.manifest.verdicts) or bool(records.unreadable)
    short = records.manifest.overall == "incomplete" or waiting
    kind, word = ("bad", "Not accepted") if bad else ("warn", "Incomplete") if short else ("good", "Accepted")
    if any(test.level == QUICK for test in records.tests):
        kind, word = ("warn", "Accepted at the quick level") if kind == "good" else (kind, word)
        details.insert(0, "Tested at the quick level: one shape on normal values, and no properties.")
    if looser := {name: value for test in records.tests for name, value in test.looser.items()}:
        kind, word = ("warn", "Accepted with looser limits") if kind == "good" else (kind, word)
        limits = [f"{name} {value:g} instead of {getattr(CRITERIA, name):g}" for name, value in looser.items()]
        details.insert(0, f"Results were judged with wider limits than kernelproof's own: {formats.listed(limits)}.")
    return Headline(kind, word, sentence, tuple(details))


def _waitingwords(records: Records, groups: Sequence[VerdictGroup], number: int) -> str:
    """What keeps the variants back that were not run: `19 need a GPU`."""
    probe = records.capture.probes.get("gpu") if records.capture else None
    devices = {group.device for group in groups if any(row.correctness.word == "not run" for row in group.rows)}
    if devices == {"cuda"} and probe is not None and probe.status == "absent":
        return f"{number} {'needs' if number == 1 else 'need'} a GPU"
    return f"{number} {'was' if number == 1 else 'were'} not run"


def _correctwords(correct: int, number: int, left: str, untested: int = 0, wrong: int = 0) -> str:
    """`number`: of variants that were tested; `left`: what keeps others back; `untested`: those without a record."""
    rest = f", {left}" if left else ""
    if number == 0 and not untested:
        return f"No variant could run{rest}"
    if number == 0:
        return f"Nothing was tested: {formats.plural(untested, 'variant')} {_verb('no record', untested)}{rest}"
    ran = " that could run" if left else ""
    if untested:
        ran = f" that {'was' if number == 1 else 'were'} tested"
        rest = f", {untested} {_verb('no record', untested)}{rest}"
    if number == 1:
        is_so = "correct" if correct else "wrong" if wrong else "not shown to be correct"
        return f"The variant{ran} is {is_so}{rest}"
    if correct == number:
        return f"All {number} variants{ran} are correct{rest}"
    return f"{correct or 'None'} of {number} variants{ran} {'is' if correct < 2 else 'are'} correct{rest}"


def _claimwords(words: Sequence[str]) -> str:
    """How many of the claims of speed hold; a variant that claims nothing does not count."""
    number = Counter(words)
    holding, waiting = number[claims.PASSES], number[claims.NOT_RUN]
    judged = holding + number[claims.FAILS]
    match judged, waiting:
        case 0, 0:
            return "no speed is claimed"
        case 0, 1:
            return "the one speed claim was not judged"
        case 0, _:
            return f"none of {waiting} speed claims was judged"
        case 1, 0:
            return f"the one speed claim {'holds' if holding else 'is not shown to hold'}"
    said = f"{holding} of {judged} speed claims {'holds' if holding == 1 else 'hold'}"
    return f"{said}, {waiting} {'was' if waiting == 1 else 'were'} not judged" if waiting else said


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
    absent = Counter(gap.get("stage") for gap in records.manifest.missing)
    refuted = refuted_when_timed(records)
    return [_stage_note(name, found, absent[name], refuted) for name, found in by_stage.items()]


def _stage_note(name: str, found: Sequence[Record], absent: int, refuted: Collection[str]) -> StageNote:
    """`absent`: records that the run was to make and that do not exist."""
    status = Counter(record.status for record in found)
    spent = formats.seconds(sum(record.duration_s for record in found))
    if not found:
        if name == "profile" and not absent:
            return StageNote(name, Badge("muted", "not needed"), "no CUDA variant is configured")
        return StageNote(name, Badge("muted", "no record"), "no record of this stage")
    number = formats.plural(len(found), "record")
    doubted = name == "test" and bool(refuted)
    if status[OK] == len(found) and not absent and not doubted:
        return StageNote(name, Badge("good", "ran"), f"{number}, {spent}")
    if status[NOT_RUN] == len(found) and not absent:
        return StageNote(name, Badge("muted", "not run"), number)
    counts = _of_tests(found, refuted) if name == "test" else [*_counted(status, "ran")]
    words = ", ".join([*counts, *([f"{absent} without a record"] if absent else [])])
    return StageNote(name, Badge("bad" if status[FAILED] or doubted else "info", words), f"{number}, {spent}")


def _counted(status: Mapping[str, int], well: str) -> Iterator[str]:
    said = {OK: well, REFUTED: "passed but found wrong when timed", FAILED: "failed", NOT_RUN: "not run"}
    yield from (f"{status[word]} {what}" for word, what in said.items() if status.get(word))


def _of_tests(found: Sequence[Record], refuted: Collection[str]) -> Iterator[str]:
    """Variants by their verdicts, as the headline counts them, and baselines apart."""
    words: dict[bool, Counter[str]] = defaultdict(Counter)
    for test in found:
        if isinstance(test, TestRecord):
            passed = REFUTED if f"{test.operator}/{test.variant}" in refuted else OK
            other = test.status if test.verdict == "not_run" else FAILED
            words[test.role == "variant"][passed if test.verdict == "correct" else other] += 1
    yield from _counted(words[True], "passed")
    if said := formats.listed(_counted(words[False], "passed")):
        yield f"of the baselines {said}"
