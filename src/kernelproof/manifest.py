"""Stage `manifest`: what was made, from what, by what and where.

Reads every record that the configuration calls for and writes the facts that the report shows and the bundle carries: a
verdict a variant, the states of the repository that were measured, and every member with its hash. Nothing here looks
at the clock, so the same records give the same facts.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from kernelproof import claims, fingerprints, members, repository, sass
from kernelproof import config as configuration
from kernelproof.config import Config, OperatorConfig, VariantConfig
from kernelproof.errors import RecordError
from kernelproof.records import (
    DECISIVE_PACKAGES,
    FAILED,
    NOT_RUN,
    OK,
    BenchRecord,
    BuildRecord,
    CaptureRecord,
    CeilingsRecord,
    ManifestRecord,
    OracleRow,
    ProfileRecord,
    Provenance,
    Record,
    TestRecord,
    Verdict,
    read,
    write,
)

GOOD, BAD, INCOMPLETE = "good", "bad", "incomplete"
BAD_CORRECTNESS = frozenset({"wrong", "crashed", "hung", "failed_to_build"})
MISSING = "missing"

R = TypeVar("R", bound=Record)


@dataclasses.dataclass
class Gathered:
    """Every record that could be read, by path from the root, and what is missing with the reason."""

    records: dict[str, Record] = dataclasses.field(default_factory=dict)
    missing: list[dict[str, str]] = dataclasses.field(default_factory=list)

    def get(self, kind: type[R], path: str) -> R | None:
        record = self.records.get(path)
        return record if isinstance(record, kind) else None


def run(config: Config, folder: str, output: Path) -> ManifestRecord:
    """Gather all records and write the facts of the run whose report goes to `reports/<folder>`."""
    configuration.save(config, config.results / "config.json")  # a member; the workflow has written the same already
    gathered = gather(config)
    state = repository.of_run(config.root)
    times = [record.provenance.utc for record in gathered.records.values() if record.provenance.utc]
    state.utc = max(times, default=state.utc)  # the run's own time: this stage, run again, changes nothing
    facts = ManifestRecord(project=config.project, folder=folder, provenance=state)
    facts.settings = fingerprints.of(config, "manifest", folder)
    facts.identical_machine_code = sass.identical_machine_code(_all(gathered, BuildRecord))
    facts.verdicts = verdicts(config, gathered)
    _say_which_are_identical(facts)
    facts.missing = gathered.missing
    facts.overall = overall(facts)
    facts.measured = measured(gathered)
    facts.tools = tools(gathered)
    facts.records = sorted(gathered.records)
    facts.members = members.gather(config, gathered.records)
    facts.duration_s = 0.0
    write(output, facts)
    return facts


def expected(config: Config) -> Iterator[tuple[str, str, type[Record]]]:
    """(stage, subject, kind of record) of every record that a whole run of this configuration makes."""
    yield "capture", "capture", CaptureRecord
    variants = list(config.variants())
    for variant in variants:
        yield "build", variant.key, BuildRecord
        yield "test", variant.key, TestRecord
    for operator, device in sorted({(v.operator, v.device) for v in variants}):
        yield "bench", f"{operator}-{device}", BenchRecord
    for device in sorted({v.device for v in variants}):
        yield "bench", f"ceilings/{device}", CeilingsRecord
    for owner in config.operators.values():
        for variant in owner.profiled():
            yield "profile", variant.key, ProfileRecord


def gather(config: Config) -> Gathered:
    """Read every record; one that is missing or unreadable is listed with the reason."""
    gathered = Gathered()
    for stage, subject, kind in expected(config):
        path = f"results/{stage}/{subject}.json"
        try:
            gathered.records[path] = read(config.root / path, kind)
        except RecordError as error:
            gathered.missing.append({"stage": stage, "subject": subject, "reason": error.message})
    return gathered


# --- verdicts ---------------------------------------------------------------------------------------------------------


def verdicts(config: Config, gathered: Gathered) -> list[Verdict]:
    """One line a variant and baseline, in the configuration's order."""
    return [
        _verdict(config, operator, variant, gathered)
        for operator in config.operators.values()
        for variant in (*operator.variants.values(), *operator.baselines.values())
    ]


def overall(facts: ManifestRecord) -> str:
    """`bad` when some verdict is; `incomplete` when something was not run or is missing; else `good`."""
    if any(verdict.bad for verdict in facts.verdicts):
        return BAD
    waiting = any(v.role == "variant" and v.correctness in (NOT_RUN, MISSING) for v in facts.verdicts)
    return INCOMPLETE if waiting or facts.missing else GOOD


def _verdict(config: Config, operator: OperatorConfig, variant: VariantConfig, gathered: Gathered) -> Verdict:
    build = gathered.get(BuildRecord, f"results/build/{variant.key}.json")
    test = gathered.get(TestRecord, f"results/test/{variant.key}.json")
    bench = gathered.get(BenchRecord, f"results/bench/{operator.name}-{variant.device}.json")
    profile = gathered.get(ProfileRecord, f"results/profile/{variant.key}.json")
    row = _representative(operator, variant, bench)
    speed = _speed(variant, test, bench, row)
    correct = test is not None and test.verdict == "correct"
    claim = claims.judge(variant.name, claimed=variant.gate, correct=correct, bench=bench)
    faults = list(_faults(variant, build, test, bench, profile, claim))
    bad = bool(faults) and variant.role == "variant"
    remedies = [found.remedy for found in (build, test) if found and found.status == FAILED and found.remedy]
    return Verdict(
        operator=operator.name,
        variant=variant.name,
        role=variant.role,
        device=variant.device,
        build=_build_word(variant, build),
        correctness=_correctness(variant, test, bench),
        speed=speed,
        ratio=row.ratio if row else None,
        profile=profile.status if profile else _profile_word(variant),
        bad=bad,
        reason="; ".join(faults) or _why_not_run(test) or _why_no_ratio(variant, correct, claim, row),
        gate=str(claim) if variant.role == "variant" else "",
        untimed=claims.untimed(bench, variant.name),
        remedy=remedies[0] if bad and remedies else None,
    )


def _correctness(variant: VariantConfig, test: TestRecord | None, bench: BenchRecord | None) -> str:
    """The test's verdict, unless the benchmark found a wrong result, a crash or a hang that the test had not."""
    if test is None:
        return MISSING
    fault = claims.found_by_bench(bench, variant.name) if test.verdict == "correct" else None
    word = fault[0].split()[0] if fault and fault[0] not in claims.CAUGHT else test.verdict
    return "wrong" if word == "failed" else word  # as in a test, where a call that raises is wrong


def _say_which_are_identical(facts: ManifestRecord) -> None:
    """Two variants that are one binary, whatever their macros say, are named in each other's line."""
    for group in facts.identical_machine_code:
        for verdict in facts.verdicts:
            key = f"{verdict.operator}/{verdict.variant}"
            if key in group:
                others = ", ".join(name for name in group if name != key)
                same = f"the same machine code as {others}"
                verdict.reason = f"{verdict.reason}; {same}" if verdict.reason else same


def _faults(
    variant: VariantConfig,
    build: BuildRecord | None,
    test: TestRecord | None,
    bench: BenchRecord | None,
    profile: ProfileRecord | None,
    claim: claims.Claim,
) -> Iterator[str]:
    """What speaks against a variant, the first cause first."""
    if build is not None and build.status == FAILED:
        yield _first_line(build.reason or build.compiler_message) or "it does not build"
    elif test is None:
        yield "there is no record of its test"
    elif test.verdict in BAD_CORRECTNESS:
        yield _first_line(test.reason) or f"the test says: {test.verdict}"
    elif test.status == FAILED:
        yield f"test: {_first_line(test.reason)}"
    for over in build.budget if build else []:
        if not over.ok:
            yield claims.over_budget(over)
    if fault := claims.found_by_bench(bench, variant.name):
        yield fault[1] if fault[0] in claims.CAUGHT else f"{fault[0]}: {fault[1]}"
    if claim.word == claims.FAILS:
        yield f"the gate: {claim.why}"
    if bench is not None and bench.status == FAILED:
        yield f"bench: {_first_line(bench.reason)}"
    if profile is not None and profile.status == FAILED:
        yield f"profile: {_first_line(profile.reason)}"


def _representative(operator: OperatorConfig, variant: VariantConfig, bench: BenchRecord | None) -> OracleRow | None:
    """The oracle's row that stands for a variant: the profiled shape and options, hot, before others."""
    if bench is None:
        return None
    cases = {case.id: case for case in bench.cases}

    def rank(row: OracleRow) -> tuple[bool, int, bool]:
        case = cases.get(row.case)
        if case is None:
            return True, 0, True
        wanted = operator.profile.options
        different = sum(case.options.get(name) != value for name, value in wanted.items())
        further = sum(value is True for name, value in case.options.items() if name not in wanted)
        return case.shape != operator.profile.shape, 10 * different + further, row.mode != "hot"

    return min((row for row in bench.oracle if row.variant == variant.name), key=rank, default=None)


def _speed(variant: VariantConfig, test: TestRecord | None, bench: BenchRecord | None, row: OracleRow | None) -> str:
    """`faster`, `same`, `slower` or `undecided` against the best baseline; else why there is no such word."""
    if variant.role != "variant":
        return "baseline"
    if bench is None:
        return MISSING
    if row is None or row.best_baseline is None:
        return bench.status if bench.status != OK else "not_compared"
    found = (r for r in bench.ratios if (r.variant, r.baseline) == (row.variant, row.best_baseline))
    return next((r.verdict for r in found if (r.case, r.mode) == (row.case, row.mode)), "undecided")


def _build_word(variant: VariantConfig, build: BuildRecord | None) -> str:
    if variant.abi == "python":
        return "not_needed"
    return build.status if build else MISSING


def _profile_word(variant: VariantConfig) -> str:
    return MISSING if variant.device == "cuda" and variant.role == "variant" else "not_needed"


def _why_not_run(test: TestRecord | None) -> str | None:
    return _first_line(test.reason) if test is not None and test.verdict == NOT_RUN else None


def _why_no_ratio(variant: VariantConfig, correct: bool, claim: claims.Claim, row: OracleRow | None) -> str | None:
    """Of a correct variant: what the benchmark says of it, where that is no ratio."""
    if variant.role != "variant" or not correct or (row is not None and row.ratio is not None):
        return None
    return (row.reason if row else _first_line(claim.reason)) or None


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


# --- provenance and tools ---------------------------------------------------------------------------------------------


def measured(gathered: Gathered) -> dict[str, Provenance]:
    """Which state of the repository each stage measured; by record where a stage's records differ."""
    by_stage: dict[str, list[tuple[str, Provenance]]] = defaultdict(list)
    for path, record in gathered.records.items():
        _, stage, *rest = Path(path).with_suffix("").parts
        by_stage[stage].append(("/".join(rest), record.provenance))
    found: dict[str, Provenance] = {}
    for stage, states in by_stage.items():
        if len({(p.commit, p.dirty, p.diff_sha256) for _, p in states}) == 1:
            found[stage] = max((p for _, p in states), key=lambda p: p.utc)
        else:
            found |= {f"{stage} {subject}": state for subject, state in states}
    return found


def tools(gathered: Gathered) -> dict[str, Any]:
    """GPU, operating system, Python, compilers and the packages that decide a measurement."""
    capture = next(iter(_all(gathered, CaptureRecord)), None)
    values = {name: probe.value for name, probe in capture.probes.items() if probe.status == OK} if capture else {}
    packages = values.get("packages") or {}
    boards = values.get("gpu") or []
    compilers = {
        (c.name, c.version, c.origin, c.sha256)
        for build in _all(gathered, BuildRecord)
        for c in (build.compiler, build.host_compiler)
        if c is not None
    }
    found = {
        "gpu": [{key: board.get(key) for key in ("name", "driver", "cuda_driver", "uuid_sha256")} for board in boards],
        "cpu": (values.get("cpu") or {}).get("model"),
        "os": values.get("os"),
        "python": (values.get("python") or {}).get("version"),
        "packages": {name: packages[name] for name in sorted(packages) if name.startswith(DECISIVE_PACKAGES)},
        "compilers": [dict(zip(("name", "version", "origin", "sha256"), c, strict=True)) for c in sorted(compilers)],
        "ncu": next((p.tool_version for p in _all(gathered, ProfileRecord) if p.tool_version), None),
    }
    return {name: value for name, value in found.items() if value}


def _all(gathered: Gathered, kind: type[R]) -> list[R]:
    return [record for record in gathered.records.values() if isinstance(record, kind)]
