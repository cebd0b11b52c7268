"""Mutants from end to end: planted, built, judged, argued about."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("tree_sitter_cuda", reason="./repro.sh selftest installs it")

from kernelproof import cli, config, mutants, records
from kernelproof.config import Config
from kernelproof.errors import ExitCode, MutantsError
from kernelproof.mutants import Selection
from kernelproof.records import (
    BuildRecord,
    CaseResult,
    Failure,
    FileHash,
    Mutant,
    MutantsRecord,
    Rung,
    Sanitizer,
    SanitizerRun,
    TestRecord,
)

ROOT = Path(__file__).resolve().parents[1]
FIXTURE = ROOT / "tests" / "fixtures" / "mutants" / "blocked.cc"
CONFIG = """schema: kernelproof.config/1
project: planted
operators:
  rmsnorm:
    module: kernelproof.operators.rmsnorm
    binding: csrc/rmsnorm/binding.cc
    include: ["."]
    shapes: {tiny: {rows: 3, cols: 8}, odd: {rows: 17, cols: 101}}
    test: {shapes: [tiny, odd]}
    bench: {shapes: [tiny]}
    variants:
      blocked: {device: cpu, sources: [blocked.cc], flags: [-O1], dtypes: [float32], precision: {output: float32}}
test: {seeds: [0], trials: 5}
"""
WRONG = """\
      wrong: {device: cpu, sources: [wrong.cc], flags: [-O1], dtypes: [float32], precision: {output: float32}}
"""
CHOSEN = Selection(only=["tile_constant", "drop_rescale"])


def project(folder: Path) -> Config:
    """A project with one kernel that has a place for every outcome."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("common", "rmsnorm"):
        shutil.copytree(ROOT / "csrc" / name, folder / "csrc" / name)
    shutil.copy(FIXTURE, folder)
    (folder / "config.yaml").write_text(CONFIG)
    return config.load(folder / "config.yaml", root=folder)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, MutantsRecord, list[str]]:
    """A project, the record of its mutants, and what was said meanwhile."""
    found, said = project(tmp_path_factory.mktemp("planted")), list[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mutants, "BATCHES", 1)  # a process takes longer to start than to judge all of them
        record = mutants.run(found, CHOSEN, found.results / "mutants", 1, say=said.append)
    return found, record, said


def with_its_controls(judged: tuple[Config, MutantsRecord, list[str]], folder: Path) -> Config:
    """The same project, whose honest variant has been through every round, and no mutant; all of them are built."""
    found = project(folder)
    store = Path("mutants", "project", "results", "store")
    shutil.copytree(judged[0].results / store, found.results / store)
    records.write(found.results / "mutants" / "mutants.json", MutantsRecord(controls=judged[1].controls))
    return found


def by_outcome(record: MutantsRecord) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for mutant in record.mutants:
        found.setdefault(mutant.outcome, []).append(f"{mutant.before} -> {mutant.after}")
    return {outcome: sorted(changes) for outcome, changes in found.items()}


def test_each_outcome_is_found(judged: tuple[Config, MutantsRecord, list[str]]) -> None:
    _, record, _ = judged
    found = by_outcome(record)
    assert found.pop("survived") == ["16 -> 32", "16 -> 8"]  # another block size is no fault
    assert found.pop("equivalent") == ["8 -> 16", "8 -> 4"]  # of a constant that nobody uses
    assert found.pop("stillborn") == ["4 -> 2", "4 -> 8"]  # static_assert
    assert len(found.pop("killed")) == 2
    assert not found
    assert record.kill_rate == 0.5


def test_what_killed_a_mutant_is_recorded(judged: tuple[Config, MutantsRecord, list[str]]) -> None:
    _, record, _ = judged
    for mutant in record.mutants:
        if mutant.outcome == "killed":
            assert (mutant.verdict, mutant.round) == ("wrong", "quick")
            assert mutant.rung in ("sanity", "correctness")
            assert mutant.criterion in ("bound", "exact")
            assert mutant.message
        elif mutant.outcome == "survived":
            assert (mutant.verdict, mutant.round, mutant.rung) == ("correct", "every case", None)
        elif mutant.outcome == "stillborn":
            assert "four lanes" in (mutant.message or "")


def test_the_honest_variant_went_through_every_round_first(judged: tuple[Config, MutantsRecord, list[str]]) -> None:
    _, record, said = judged
    (control,) = record.controls
    assert control.verdicts == {"quick": "correct", "small shapes": "correct", "every case": "correct"}
    assert [line.startswith("rmsnorm/blocked, without a fault: correct") for line in said[:3]] == [True] * 3


def test_the_page_lists_survivors_with_their_diffs(judged: tuple[Config, MutantsRecord, list[str]]) -> None:
    found, record, _ = judged
    text = (found.results / "mutants" / "mutants.md").read_text()
    assert text == mutants.page(record)
    survivors = [mutant for mutant in record.mutants if mutant.outcome == "survived"]
    assert all(mutant.diff in text for mutant in survivors)
    assert "| rmsnorm/blocked | 8 | 2 | 2 | 0 | 2 | 0 | 2 | 50.0 % |" in text
    assert "+constexpr int kBlock = 32;" in survivors[0].diff
    assert records.read(found.results / "mutants" / "mutants.json", MutantsRecord) == record


def test_who_hung_beside_others_is_judged_again_alone(
    judged: tuple[Config, MutantsRecord, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected, _ = judged
    stuck = next(mutants.name_of(mutant) for mutant in expected.mutants if mutant.outcome == "survived")
    waited: set[str] = set()
    test = mutants.Workshop.test

    def on_a_busy_machine(shop: mutants.Workshop, operator: str, names: list[str], round_name: str) -> list[TestRecord]:
        """Every mutant is out of time once, and one of them always."""
        late = [name for name in names if name != "blocked" and (name not in waited or name == stuck)]
        waited.update(names)
        in_time = [name for name in names if name not in late]
        found = dict(zip(in_time, test(shop, operator, in_time, round_name) if in_time else [], strict=True))
        return [found.get(name) or condemned("hung", "launch") for name in names]

    monkeypatch.setattr(mutants.Workshop, "test", on_a_busy_machine)
    found = with_its_controls(judged, tmp_path)
    chosen = Selection(only=["tile_constant"])
    record = mutants.run(found, chosen, found.results / "mutants", 2, say=lambda line: None)
    outcomes = {
        mutants.name_of(mutant): (mutant.outcome, mutant.rung, mutant.criterion)
        for mutant in expected.mutants
        if mutant.mutation == "tile_constant"
    }
    assert [outcome for outcome, _, _ in outcomes.values()].count("survived") > 1
    outcomes[stuck] = ("killed", "launch", "hang")
    assert {mutants.name_of(m): (m.outcome, m.rung, m.criterion) for m in record.mutants} == outcomes
    assert not list((found.results / "mutants" / "project" / mutants.PLANTED).iterdir())


def test_what_could_not_be_judged_is_left_and_the_others_are_judged(
    judged: tuple[Config, MutantsRecord, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = mutants.Workshop.test
    unlucky: list[str] = []

    def on_a_full_disk(shop: mutants.Workshop, operator: str, names: list[str], round_name: str) -> list[TestRecord]:
        unlucky.extend(name for name in names if name != "blocked" and not unlucky)
        if unlucky and unlucky[0] in names:
            raise MutantsError("`kernelproof test` could not run: no space left", subject=unlucky[0])
        return test(shop, operator, names, round_name)

    monkeypatch.setattr(mutants.Workshop, "test", on_a_full_disk)
    found = with_its_controls(judged, tmp_path)
    output = found.results / "mutants"
    said: list[str] = []
    with pytest.raises(MutantsError, match="no space left"):
        mutants.run(found, Selection(only=["tile_constant"]), output, 1, say=said.append)
    record = records.read(output / "mutants.json", MutantsRecord)
    left = {mutants.name_of(mutant) for mutant in record.mutants if mutant.outcome == "listed"}
    assert unlucky[0] in left
    assert len(left) < len([m for m in record.mutants if m.outcome not in ("stillborn", "equivalent")])
    assert any("not judged: `kernelproof test` could not run: no space left" in line for line in said)
    assert (record.status, "no space left" in str(record.reason)) == ("failed", True)


def test_an_argument_settles_a_survivor_and_nothing_is_judged_again(
    judged: tuple[Config, MutantsRecord, list[str]], tmp_path: Path
) -> None:
    found, record, _ = judged
    survivors = [mutant for mutant in record.mutants if mutant.outcome == "survived"]
    reasons = "".join(f"  {mutant.id}: the same sums in the same order\n" for mutant in survivors)
    (tmp_path / "why.yaml").write_text(f"rmsnorm/blocked:\n{reasons}")
    output = tmp_path / "again"
    shutil.copytree(found.results / "mutants", output, symlinks=True)
    said: list[str] = []
    again = mutants.run(found, CHOSEN, output, 1, tmp_path / "why.yaml", said.append)
    assert said == []
    assert {m.argument for m in again.mutants if m.outcome == "argued"} == {"the same sums in the same order"}
    assert Counter(mutant.outcome for mutant in again.mutants)["argued"] == len(survivors)
    assert again.kill_rate == 0.5


def test_outcomes_are_of_all_that_the_operators_module_imports(
    judged: tuple[Config, MutantsRecord, list[str]], tmp_path: Path
) -> None:
    """The variant's build is the other project's: what a fingerprint takes in besides is the configuration's."""
    (built,) = (records.read(path, BuildRecord) for path in judged[0].results.rglob("build/rmsnorm/blocked.json"))
    project(tmp_path)
    (tmp_path / "op.py").write_text("from helper import *\n")
    (tmp_path / "helper.py").write_text("from kernelproof.operators.rmsnorm import OPERATOR\n")
    (tmp_path / "config.yaml").write_text(CONFIG.replace("kernelproof.operators.rmsnorm", "op.py"))
    found = config.load(tmp_path / "config.yaml", root=tmp_path)
    before = mutants._fingerprint(found, built)
    assert mutants._fingerprint(found, built) == before
    (tmp_path / "helper.py").write_text("from kernelproof.operators.rmsnorm import OPERATOR  # another\n")
    assert mutants._fingerprint(found, built) != before


def test_an_argument_for_a_mutant_that_is_no_more_is_an_error(
    judged: tuple[Config, MutantsRecord, list[str]], tmp_path: Path
) -> None:
    found, _, _ = judged
    (tmp_path / "why.yaml").write_text("rmsnorm/blocked:\n  0123456789ab: it was fine once\n")
    with pytest.raises(MutantsError, match="no such mutant can be made any more") as raised:
        mutants.run(found, CHOSEN, found.results / "mutants", 1, tmp_path / "why.yaml")
    assert raised.value.subject == "rmsnorm/blocked/0123456789ab"


def test_the_projects_arguments_are_about_mutants_that_can_be_made() -> None:
    """Else a run on a GPU ends before it began: whoever changes a kernel looks at its arguments."""
    root = Path(__file__).parents[1]
    loaded = config.load(root / "config.yaml", root=root)
    reasons = mutants._arguments(root / "reports/reference/nvidia-h200/arguments.yaml", required=True)
    argued = [loaded.operator(operator).variant(name) for operator, name, _ in (key.split("/") for key in reasons)]
    targets = list({variant.key: variant for variant in argued}.values())
    made = [mutant for variant in targets for mutant in mutants._mutants(loaded, variant, variant.sources)]
    mutants._insist_on_known(reasons, made, targets)


def test_an_honest_variant_that_is_wrong_is_an_error_and_the_others_are_judged(
    judged: tuple[Config, MutantsRecord, list[str]], tmp_path: Path
) -> None:
    with_its_controls(judged, tmp_path)
    source = (tmp_path / "blocked.cc").read_text()
    (tmp_path / "wrong.cc").write_text(source.replace("+ args.eps", "- args.eps"))
    (tmp_path / "config.yaml").write_text(CONFIG.replace("test: {seeds", f"{WRONG}test: {{seeds"))
    found = config.load(tmp_path / "config.yaml", root=tmp_path)
    output = found.results / "mutants"
    chosen = dataclasses.replace(CHOSEN, only=["drop_rescale"])
    with pytest.raises(MutantsError, match="the variant itself is not correct") as raised:
        mutants.run(found, chosen, output, 2, say=lambda _: None)
    assert raised.value.subject == "rmsnorm/wrong"
    record = records.read(output / "mutants.json", MutantsRecord)
    assert {(m.variant, m.outcome) for m in record.mutants} == {("blocked", "killed"), ("wrong", "listed")}
    assert record.status == "failed"
    assert "the variant itself is not correct" in str(record.reason)
    assert [control.variant for control in record.controls] == ["blocked"]


# --- which mutants ----------------------------------------------------------------------------------------------------


def test_an_id_holds_when_lines_elsewhere_change(tmp_path: Path) -> None:
    found = project(tmp_path)
    before = mutants.listed(found, Selection()).mutants
    source = tmp_path / "blocked.cc"
    source.write_text("// One more line.\n\n" + source.read_text())
    after = mutants.listed(found, Selection()).mutants
    assert [m.id for m in after] == [m.id for m in before]
    assert [m.line for m in after] == [m.line + 2 for m in before]
    assert len({m.id for m in before}) == len(before) > 30


def test_a_few_are_spread_evenly_and_the_seed_chooses_them(tmp_path: Path) -> None:
    found = project(tmp_path)
    whole = mutants.listed(found, Selection()).mutants
    kinds = {m.mutation for m in whole}
    few = mutants.listed(found, Selection(most=len(kinds))).mutants
    assert {m.mutation for m in few} == kinds
    assert few == mutants.listed(found, Selection(most=len(kinds))).mutants
    assert few != mutants.listed(found, Selection(most=len(kinds), seed=1)).mutants
    more = mutants.listed(found, Selection(most=2 * len(kinds))).mutants
    assert {m.id for m in few} < {m.id for m in more}


@pytest.mark.parametrize("name", ["fp16_wgmma", "fp16_mma_cp_async", "ws_p1", "cpu_flash"])
def test_every_kernel_of_the_ladder_gives_mutants(name: str) -> None:
    found = config.load(ROOT / "config.yaml", root=ROOT)
    made = mutants.listed(found, Selection(variants=[name])).mutants
    assert len(made) > 100
    if name != "cpu_flash":
        assert "drop_barrier" in {mutant.mutation for mutant in made}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--variant", "nobody"], "nobody: no compiled variant of this name; allowed: blocked"),
        (["--operator", "rmsnrm"], "did you mean 'rmsnorm'?"),
        (["--only", "drop_bariers"], "drop_bariers: no such mutation operator; allowed: accumulate_to_assign"),
        (["--list", "--only", "drop_barrier"], "mutants: no source of any variant has a place for drop_barrier"),
        (["--list", "--headers"], "--list: which headers a variant includes is known only after it is built"),
        (["--arguments", "nowhere.yaml"], "nowhere.yaml: not a file of arguments"),
    ],
)
def test_what_a_user_did_wrong_is_said_in_words(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    project(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["mutants", *arguments]) == ExitCode.COULD_NOT_RUN
    assert words in capsys.readouterr().err


def test_a_list_is_printed_and_builds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["mutants", "--list", "--only", "drop_store", "--json"]) == ExitCode.WELL
    (listed,) = json.loads(capsys.readouterr().out)["mutants"]
    assert (listed["outcome"], listed["mutation"], listed["file"]) == ("listed", "drop_store", "blocked.cc")
    assert not (tmp_path / "results").exists()


def test_the_sanitizer_is_for_those_that_reach_the_last_round() -> None:
    rounds = mutants.rounds_of(config.load(ROOT / "config.yaml", root=ROOT))
    assert [bool(each.config.test.sanitizer.tools) for each in rounds] == [False, False, True]


# --- what killed it ---------------------------------------------------------------------------------------------------


def condemned(verdict: str, rung: str, *criteria: str) -> TestRecord:
    failures = [Failure(criterion, "too far off") for criterion in criteria]
    case = CaseResult("a", "a", {}, {}, "float32", "normal", 0, "failed", failures=failures)
    return TestRecord(verdict=verdict, rungs=[Rung("load", "passed"), Rung(rung, "failed")], cases=[case])


def crashed_after_wrong_results() -> TestRecord:
    record = condemned("crashed", "correctness", "bound")
    record.rungs.append(Rung("properties", "failed"))
    record.reason = "properties: tiny: the process was killed by SIGSEGV; failed too: correctness"
    return record


def under_a_tool(record: TestRecord, tool: str) -> TestRecord:
    record.sanitizer = Sanitizer(runs=[SanitizerRun(tool, "failed", failures=[Failure(tool, "two lines")])])
    return record


@pytest.mark.parametrize(
    ("record", "rung", "criterion"),
    [
        (condemned("wrong", "sanity", "guard_bands", "bound"), "sanity", "guard_bands"),
        (condemned("wrong", "correctness"), "correctness", "suite"),
        (condemned("wrong", "determinism"), "determinism", "determinism"),
        (condemned("hung", "launch"), "launch", "hang"),
        (condemned("crashed", "correctness", "crash"), "correctness", "crash"),
        (crashed_after_wrong_results(), "properties", "crash"),
        (under_a_tool(condemned("wrong", "sanitizer"), "racecheck"), "sanitizer", "racecheck"),
    ],
)
def test_rung_and_criterion(record: TestRecord, rung: str, criterion: str) -> None:
    assert mutants.killed_by(record)[:2] == (rung, criterion)


def test_what_does_not_compile_or_is_the_same_code_is_not_counted() -> None:
    def made(outcome: str) -> Mutant:
        return Mutant("i", "o", "v", "f", 1, "drop_store", "", "", "", outcome)

    outcomes = ["killed", "killed", "killed", "survived", "stillborn", "equivalent", "not_run", "listed"]
    assert mutants.kill_rate([made(outcome) for outcome in outcomes]) == 0.75
    assert mutants.kill_rate([made("stillborn")]) is None


def test_no_fault_is_planted_in_the_rungs_of_a_dispatcher() -> None:
    """They are compiled as they are by themselves: the compiler would not read the mutated file."""
    ladder = config.load(ROOT / "config.yaml", root=ROOT)
    attention = ladder.operator("attention").variant("attention")
    rungs = [name for rung in attention.rungs for name in ladder.operator("attention").variant(rung).sources]
    built = BuildRecord(
        operator="attention",
        variant="attention",
        sources=[FileHash(name, "") for name in [*attention.sources, *rungs]],
        headers=[FileHash("csrc/attention/choices.h", "")],
    )
    assert mutants._own_files(ladder, built) == [*attention.sources, "csrc/attention/choices.h"]
