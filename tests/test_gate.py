"""The gate: correctness before speed, and what was not run is neither passed nor failed."""

import dataclasses
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import packed_run
import pytest
import yaml
from simulated_runs import make, write

from kernelproof import bundle, claims, cli, config, gate, manifest, records, report, runs
from kernelproof.errors import BundleError, ExitCode, RecordError
from kernelproof.records import BenchRecord, Contender, OracleRow, RatioRow, TestRecord

PLAIN = {"abi": "python", "entry": "m:f", "dtypes": ["float32"], "precision": {"output": "float32"}}


@pytest.fixture
def loaded(tmp_path: Path) -> config.Config:
    """One CPU variant that claims nothing, and one CPU and one CUDA variant that claim to be faster."""
    data = {
        "schema": "kernelproof.config/1",
        "project": "p",
        "operators": {
            "op": {
                "module": "m",
                "shapes": {"s": {"rows": 1}},
                "test": {"shapes": ["s"]},
                "bench": {"shapes": ["s"]},
                "variants": {
                    "plain": {**PLAIN, "device": "cpu"},
                    "fast": {**PLAIN, "device": "cpu", "gate": True},
                    "gpu": {**PLAIN, "device": "cuda", "gate": True},
                },
                "baselines": {"base": {**PLAIN, "device": "cpu"}, "on_gpu": {**PLAIN, "device": "cuda"}},
            }
        },
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(data))
    return config.load(tmp_path / "config.yaml", root=tmp_path)


def test_records_of_stages_by_hand_need_a_configuration(loaded: config.Config) -> None:
    after_test(loaded, "plain", "correct")
    with pytest.raises(RecordError, match="no configuration is kept in it") as caught:
        gate.run(None, loaded.results)
    assert "kernelproof gate --config FILE" in str(caught.value.hint)
    assert gate.run(loaded, loaded.results).rows


CASE = records.BenchCase("s-float32", "s", {"rows": 1}, {}, "float32", 1.0, 1.0, 1.0)


def after_test(loaded: config.Config, name: str, verdict: str, reason: str | None = None, **more: Any) -> None:
    path = loaded.record("test", "op", name)
    more = {"trials": 100, **more}
    records.write(path, TestRecord(operator="op", variant=name, verdict=verdict, reason=reason, **more))


def benched(loaded: config.Config, highs: dict[str, float], **more: Any) -> None:
    oracle = [
        OracleRow(
            "fast", "s-float32", mode, "base", high - 0.02, high - 0.04, high, high <= 0.95, f"upper bound {high}"
        )
        for mode, high in highs.items()
    ]
    measured = {"cases": [CASE], "modes": ["hot", "cold"], "processes": 5, "contenders": [], **more}
    measured["contenders"] += [Contender("base", "baseline", "python", "correct", True, "timed")]
    records.write(loaded.record("bench", "op-cpu"), BenchRecord(operator="op", device="cpu", oracle=oracle, **measured))


def judged(loaded: config.Config) -> tuple[ExitCode, dict[str, gate.Row]]:
    result = gate.run(loaded, loaded.results)
    return result.exit_code, {row.variant: row for row in result.rows}


def test_who_left_and_nobody_knows_why_does_not_pass(loaded: config.Config) -> None:
    """It may hang when it is timed: on a machine that others use that is not known."""
    for name in ("plain", "fast"):
        after_test(loaded, name, "correct")
    gone = Contender("plain", "variant", "tvm_ffi", "correct", True, "dropped: not tried: other programs had the cores")
    benched(loaded, {"hot": 0.90, "cold": 0.94}, contenders=[gone])
    _, rows = judged(loaded)
    assert (rows["plain"].status, rows["fast"].status) == (claims.NOT_RUN, claims.PASSES)
    assert "not tried" in rows["plain"].reason


def test_the_gates_own_limit_judges_and_not_the_runs(loaded: config.Config) -> None:
    for name in ("plain", "fast", "gpu"):
        after_test(loaded, name, "correct" if name != "gpu" else "not_run")
    benched(loaded, {"hot": 0.90, "cold": 0.94})
    stricter = replace(loaded, gate=replace(loaded.gate, max_ratio=0.92))
    row = next(row for row in gate.run(stricter, loaded.results).rows if row.variant == "fast")
    assert (row.status, row.mode) == ("fails", "cold")
    assert "upper bound 0.94 > 0.92" in row.reason


def test_what_decided_nothing_passes_no_limit() -> None:
    row = OracleRow("fast", "s", "hot", "base", 0.5, 0.4, 0.6, False, "one process decides nothing", undecided=True)
    assert claims.held_to([row], 0.95) == claims.held_to([row], 2.0) == [row]
    forged = replace(row, high=1.2, passed=True, undecided=False)
    assert not claims.held_to([forged], 0.95)[0].passed
    above = replace(forged, passed=False)
    assert claims.held_to([above], 1.5)[0].passed  # by the run's own limit it did not


def test_who_decides_nothing_passes_nothing_whatever_the_record_says() -> None:
    row = OracleRow("fast", "s", "hot", "base", 1.1, 1.0, 1.2, True, "x", undecided=True)
    assert not claims.held_to([row], 0.95)[0].passed
    assert not claims.held_to([replace(row, undecided=False, ratio=None, low=None, high=None)], 0.95)[0].passed


@pytest.mark.parametrize(
    ("less", "words"),
    [
        ({"cases": []}, "asks for s-float32 too"),
        ({"modes": ["hot"]}, "asks for cold too"),
        ({"cases": [replace(CASE, dims={"rows": 2})]}, "has another case by the name of s-float32"),
        (
            {"settings": {"operators.op.variants.fast.flags": "of others"}},
            "variants.fast.flags.* was another when it was",
        ),
    ],
)
def test_a_run_does_not_choose_where_it_is_measured(
    loaded: config.Config, less: dict[str, list[Any]], words: str
) -> None:
    after_test(loaded, "fast", "correct")
    benched(loaded, {"hot": 0.90}, **less)
    code, rows = judged(loaded)
    assert (code, rows["fast"].status) == (ExitCode.BAD_VERDICT, "fails")
    assert re.search(words, rows["fast"].reason or "")


@pytest.mark.parametrize(
    ("had", "words"),
    [
        ({"test": {"seeds": [0, 1]}}, "test.seeds: without 2, 17 and 42"),
        ({"operators": {"op": {"shapes": {"s": {"rows": 1}}, "test": {"shapes": []}}}}, "test.shapes: without s"),
        ({"operators": {"op": {"shapes": {"s": {"rows": 3}}, "test": {"shapes": ["s"]}}}}, "test.shapes: without s"),
    ],
)
def test_a_run_does_not_choose_how_much_is_tried(loaded: config.Config, had: dict[str, Any], words: str) -> None:
    after_test(loaded, "fast", "correct")
    benched(loaded, {"hot": 0.90, "cold": 0.94})
    enough = {"operators": {"op": {"shapes": {"s": {"rows": 1}}, "test": {"shapes": ["s"]}}}}
    (loaded.results / "config.json").write_text(json.dumps(enough))
    assert judged(loaded)[1]["fast"].status == "passes"
    (loaded.results / "config.json").write_text(json.dumps(enough | had))
    _, rows = judged(loaded)
    assert rows["fast"].status == "fails"
    assert words in (rows["fast"].reason or "")


@pytest.mark.parametrize("name", ["plain", "fast"])
@pytest.mark.parametrize(
    ("less", "words"),
    [
        ({"trials": 9}, "test.trials: 9 for 100"),
        ({"level": "quick"}, "test.level: quick for default"),
        ({"looser": {"bound_factor": 100.0}}, "test.tolerance: wider bound_factor"),
    ],
)
def test_a_test_says_itself_how_much_was_tried_of_a_claim_or_none(
    loaded: config.Config, name: str, less: dict[str, Any], words: str
) -> None:
    for each in ("plain", "fast"):
        after_test(loaded, each, "correct", **(less if each == name else {}))
    benched(loaded, {"hot": 0.90, "cold": 0.94})
    config.save(loaded, loaded.results / "config.json")  # as it is now, and not as the test was made
    code, rows = judged(loaded)
    assert (code, {row.variant for row in rows.values() if row.status == "fails"}) == (ExitCode.BAD_VERDICT, {name})
    assert words in rows[name].reason


def test_a_quick_test_is_enough_where_no_more_is_asked(loaded: config.Config) -> None:
    for name in ("plain", "fast"):
        after_test(loaded, name, "correct", level="quick", trials=10)
    benched(loaded, {"hot": 0.90, "cold": 0.94})
    config.save(loaded, loaded.results / "config.json")
    assert judged(loaded)[1]["fast"].reason == (
        "the configuration asks for more than was done (test.level: quick for default): test and measure again"
    )
    quick = dataclasses.replace(loaded, test=dataclasses.replace(loaded.test, level="quick"))
    config.save(quick, quick.results / "config.json")
    assert judged(quick)[1]["fast"].status == "passes"


def test_a_benchmark_says_itself_of_how_many_processes_it_is(loaded: config.Config) -> None:
    after_test(loaded, "fast", "correct")
    benched(loaded, {"hot": 0.90, "cold": 0.94}, processes=2)
    assert "bench.processes: 2 for 5" in judged(loaded)[1]["fast"].reason


def test_who_exceeds_a_budget_fails(loaded: config.Config) -> None:
    for name in ("plain", "fast"):
        after_test(loaded, name, "correct")
    benched(loaded, {"hot": 0.90, "cold": 0.94})
    over = records.BudgetRow("sm_90", "kernel", "registers", 64, 255, False)
    built = records.BuildRecord(operator="op", variant="plain", budget=[over])
    records.write(loaded.record("build", "op", "plain"), built)
    _, rows = judged(loaded)
    assert (rows["plain"].status, rows["fast"].status) == ("fails", "passes")
    assert rows["plain"].reason == "kernel on sm_90: registers 255, budget 64"


def test_a_benchmark_that_failed_fails_who_claims_no_speed_too(loaded: config.Config) -> None:
    for name in ("plain", "fast"):
        after_test(loaded, name, "correct")
    benched(loaded, {}, status="failed", reason="every contender was dropped")
    code, rows = judged(loaded)
    assert (code, rows["plain"].status, rows["fast"].status) == (ExitCode.BAD_VERDICT, "fails", "fails")
    assert rows["plain"].reason == "bench: every contender was dropped"


def test_a_run_does_not_choose_whom_it_is_measured_beside(loaded: config.Config) -> None:
    after_test(loaded, "fast", "correct")
    benched(loaded, {"hot": 0.90, "cold": 0.94})
    operator = loaded.operators["op"]
    peer = replace(operator.variants["plain"], name="peer", role="baseline")
    more = replace(loaded, operators={"op": replace(operator, baselines={"peer": peer})})
    row = next(row for row in gate.run(more, loaded.results).rows if row.variant == "fast")
    assert (row.status, "the baseline peer too" in (row.reason or "")) == ("fails", True)


def test_a_run_does_not_choose_how_sure_it_must_be(loaded: config.Config) -> None:
    """Of the same samples an interval of 1 % is narrower than one of 95 %."""
    after_test(loaded, "fast", "correct")
    benched(loaded, {"hot": 0.90, "cold": 0.94})
    used = {
        "bench": {"confidence": 0.01},
        "operators": {"op": {"shapes": {"s": {"rows": 1}}, "test": {"shapes": ["s"]}}},
    }
    (loaded.results / "config.json").write_text(json.dumps(used))
    _, rows = judged(loaded)
    assert rows["fast"].status == "fails"
    assert "bench.confidence asks for 95.0" in rows["fast"].reason


def test_a_test_that_did_not_end_passes_no_gate(loaded: config.Config) -> None:
    after_test(loaded, "plain", "not_run", "the test run was cut short", status=records.FAILED)
    code, rows = judged(loaded)
    assert code == ExitCode.BAD_VERDICT
    assert (rows["plain"].status, rows["plain"].reason) == ("fails", "the test run was cut short")


def test_a_claim_that_holds(loaded: config.Config) -> None:
    after_test(loaded, "plain", "correct")
    after_test(loaded, "fast", "correct")
    after_test(loaded, "gpu", "not_run", "no GPU")
    benched(loaded, {"hot": 0.90, "cold": 0.94})
    code, rows = judged(loaded)
    assert code == ExitCode.WELL
    assert (rows["fast"].status, rows["fast"].mode, rows["fast"].high) == ("passes", "cold", 0.94)
    assert (rows["plain"].status, rows["plain"].speed) == ("passes", "no claim")
    # What was not run is said, and does not count as passed.
    assert (rows["gpu"].status, rows["gpu"].reason) == ("not run", "no GPU")
    assert gate.run(loaded, loaded.results).summary == (
        "The gate passes: 2 passed, 0 failed, 1 not run; claims not judged: op/gpu."
    )


def test_a_gate_without_a_claim_that_was_judged_says_so(loaded: config.Config) -> None:
    after_test(loaded, "plain", "correct")
    result = gate.run(loaded, loaded.results)
    assert result.exit_code == ExitCode.WELL
    assert result.summary == "The gate passes: 1 passed, 0 failed, 2 not run; no claim was judged: op/fast and op/gpu."


def test_a_claim_that_fails_in_one_mode_fails(loaded: config.Config) -> None:
    after_test(loaded, "fast", "correct")
    benched(loaded, {"hot": 0.90, "cold": 0.951})
    code, rows = judged(loaded)
    assert code == ExitCode.BAD_VERDICT
    assert rows["fast"].reason.startswith(
        "not shown within the limit in 1 of 2 cases; the worst: s-float32 cold, upper bound 0.951"
    )


@pytest.mark.parametrize("verdict", ["wrong", "crashed", "hung", "failed_to_build"])
def test_a_fast_kernel_that_is_not_correct_fails(loaded: config.Config, verdict: str) -> None:
    after_test(loaded, "fast", verdict)
    benched(loaded, {"hot": 0.10})
    code, rows = judged(loaded)
    assert code == ExitCode.BAD_VERDICT
    assert (rows["fast"].status, rows["fast"].speed) == ("fails", "not run")


def test_a_variant_without_a_claim_must_be_correct_all_the_same(loaded: config.Config) -> None:
    after_test(loaded, "plain", "wrong", "row 3 is off")
    after_test(loaded, "fast", "correct")
    benched(loaded, {"hot": 0.5})
    code, rows = judged(loaded)
    assert (code, rows["plain"].status, rows["plain"].reason) == (ExitCode.BAD_VERDICT, "fails", "row 3 is off")


@pytest.mark.parametrize("name", ["plain", "of_another_configuration"])
def test_wrong_when_timed_fails(loaded: config.Config, name: str) -> None:
    after_test(loaded, name, "correct")
    outcome = "dropped: wrong for new values in the same memory (hot)"
    benched(loaded, {}, contenders=[Contender(name, "variant", "python", "wrong", False, outcome)])
    code, rows = judged(loaded)
    assert code == ExitCode.BAD_VERDICT
    assert (rows[name].correctness, rows[name].speed, rows[name].status) == ("wrong when timed", "no claim", "fails")


def test_a_claim_that_could_not_be_timed_fails(loaded: config.Config) -> None:
    after_test(loaded, "fast", "correct")
    benched(loaded, {}, contenders=[Contender("fast", "variant", "python", "correct", True, "dropped: not captured")])
    code, rows = judged(loaded)
    assert code == ExitCode.BAD_VERDICT
    assert rows["fast"].reason == "claimed to be faster, but dropped: not captured"


@pytest.mark.parametrize(("verdict", "code"), [("wrong", ExitCode.BAD_VERDICT), ("correct", ExitCode.WELL)])
def test_who_was_tested_with_another_configuration_is_named_and_a_wrong_one_is_wrong(
    loaded: config.Config, verdict: str, code: ExitCode
) -> None:
    after_test(loaded, "fast", "correct")
    benched(loaded, {"hot": 0.9, "cold": 0.9})
    after_test(loaded, "stranger", verdict, "its last column is not written" if verdict == "wrong" else None)
    found, rows = judged(loaded)
    assert found == code
    assert rows["stranger"].correctness == verdict
    assert "another configuration, which --config names" in rows["stranger"].reason


def test_nothing_judged_could_not_run(loaded: config.Config) -> None:
    after_test(loaded, "gpu", "not_run", "no GPU")
    code, rows = judged(loaded)
    assert code == ExitCode.COULD_NOT_RUN
    assert {row.status for row in rows.values()} == {"not run"}
    with pytest.raises(RecordError, match="no such bundle or folder"):
        gate.run(loaded, loaded.root / "nowhere")


def test_both_forms_say_the_same(loaded: config.Config) -> None:
    after_test(loaded, "fast", "correct")
    benched(loaded, {"hot": 0.90})
    result = gate.run(loaded, loaded.root)  # a folder that has `results` in it
    as_json = result.as_json()
    assert as_json["passed"]
    assert as_json["max_ratio"] == 0.95
    row = next(row for row in as_json["rows"] if row["variant"] == "fast")
    assert row["ratio"] == 0.88
    assert "| `op/fast` | cpu | correct | passes | 0.880 [0.860, 0.900] vs `base` | passes |" in result.markdown()


def test_what_is_printed_is_plain_text_and_the_file_is_markdown(
    loaded: config.Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    after_test(loaded, "plain", "wrong", "new_var at [91] is *off* | <b>")
    after_test(loaded, "fast", "correct")
    benched(loaded, {"hot": 0.90})
    monkeypatch.chdir(loaded.root)
    assert cli.main(["gate", "--markdown", "gate.md"]) == 1
    summary, _, header, *rows = capsys.readouterr().out.splitlines()
    assert summary.startswith("The gate fails: 1 passed, 1 failed")
    plain, fast = (next(row for row in rows if row.startswith(f"op/{name}")) for name in ("plain", "fast"))
    assert plain.endswith("fails    new_var at [91] is *off* | <b>")
    assert fast.index("0.880 [0.860, 0.900] vs base") == header.index("worst case: ours / best baseline")
    assert rows[-1] == "- not compared: everything: nothing is kept in reports/reference/"
    assert not {"`", "\\"} & set("".join(rows))
    assert r"new\_var at \[91\] is \*off\* \| \<b\>" in Path("gate.md").read_text()
    assert "- not compared: `everything`: " in Path("gate.md").read_text()


def test_an_undecided_row_says_what_the_run_could_have_seen(loaded: config.Config) -> None:
    after_test(loaded, "fast", "correct")
    row = RatioRow("fast", "base", "s-float32", "hot", 0.93, 0.91, 0.95, "undecided", 0.0182)
    benched(loaded, {"hot": 0.95}, ratios=[row])
    result = gate.run(loaded, loaded.results)
    assert "vs `base` (undecided: this run could see ±1.8\u202f%)" in result.markdown()
    assert next(row for row in result.as_json()["rows"] if row["variant"] == "fast")["detectable"] == 0.0182


# --- against the kept reference ---------------------------------------------------------------------------------------


def kept(loaded: config.Config, now: runs.Run, *references: runs.Run) -> gate.GateResult:
    """The gate on a run, with others kept as references."""
    for number, reference in enumerate(references):
        write(reference, loaded.root / "reports" / "reference" / f"gpu{number}")
    return gate.run(loaded, write(now, loaded.root / "now"))


def test_slower_than_the_kept_reference_fails(loaded: config.Config) -> None:
    now = make(2, machine_code="other", factors={"fast": 1.15})
    result = kept(loaded, now, make(1))
    assert result.regression is not None
    rows = {row.variant: row for row in result.regression.rows}
    assert result.exit_code == ExitCode.BAD_VERDICT
    assert rows["fast"].status == "fails"
    assert rows["plain"].status in ("passes", "undecided")
    assert set(rows) == {"fast", "plain"}, "baselines have no regressions"
    assert "slower than in the kept reference: op/fast" in result.summary
    assert "Against the kept reference gpu0 (slower by more than 2\u202f% fails)" in result.markdown()
    plain = json.loads(json.dumps(result.as_json()))["regression"]
    assert plain["rows"][0]["decisive"]["basis"] == "relative to what did not change"


def test_what_did_not_change_does_not_fail(loaded: config.Config) -> None:
    for seed in range(2, 22, 2):
        result = kept(loaded, make(seed, machine_code="other"), make(seed + 1))
        assert result.regression is not None
        assert {row.status for row in result.regression.rows} <= {"passes", "undecided"}
        for row in result.regression.rows:
            assert ("these runs could see ±" in row.reason) == (row.status == "undecided")


def test_much_faster_passes(loaded: config.Config) -> None:
    result = kept(loaded, make(2, machine_code="other", factors={"fast": 0.8}), make(1))
    assert result.regression is not None
    assert next(row for row in result.regression.rows if row.variant == "fast").status == "passes"


def test_the_limit_comes_from_the_configuration(loaded: config.Config) -> None:
    lenient = replace(loaded, gate=replace(loaded.gate, max_regression=1.5))
    result = kept(lenient, make(2, machine_code="other", factors={"fast": 1.15}), make(1))
    assert result.regression is not None
    assert {row.status for row in result.regression.rows} == {"passes"}


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ({"gpu": "NVIDIA L4"}, "gpu0 is not comparable: the GPU models differ: NVIDIA L4 and NVIDIA H200"),
        ({"driver": "570.1"}, "gpu0 is not comparable: the driver's branches differ: 570 and 580"),
        ({"device": "cpu"}, "gpu0 has no such benchmark"),
    ],
)
def test_another_machine_is_not_compared(loaded: config.Config, reference: dict[str, str], why: str) -> None:
    result = kept(loaded, make(2, factors={"fast": 3}), make(1, **reference))  # type: ignore[arg-type]
    assert result.regression is not None
    assert not result.regression.rows
    assert [entry.reason for entry in result.regression.not_compared] == [why]
    assert f"- not compared: `op-cuda`: {why}" in result.markdown()


def test_other_clocks_are_not_compared_and_the_reference_of_this_gpu_is_chosen(loaded: config.Config) -> None:
    slow = make(1, day=9)
    slow.benches["op-cuda"].states["sm_clock_mhz"]["median"] = 1500.0
    result = kept(loaded, make(2), slow, make(3, day=1), make(4, gpu="NVIDIA L4", day=9))
    assert result.regression is not None
    assert result.regression.reference == "gpu1"
    assert result.regression.rows


def test_a_kept_reference_that_was_changed_is_refused_by_name(loaded: config.Config) -> None:
    folder = write(make(1), loaded.root / "reports" / "reference" / "gpu0")
    (folder / "manifest.yaml").write_text(json.dumps({"members": []}))
    with pytest.raises(BundleError, match="tampered with"):
        gate.run(loaded, write(make(2), loaded.root / "now"))


def test_times_of_a_cpu_are_not_held_against_another_machine(loaded: config.Config) -> None:
    result = kept(loaded, make(2, device="cpu", factors={"fast": 3}), make(1, device="cpu"))
    assert result.regression is not None
    assert not result.regression.rows


def test_a_record_of_another_version_stops_the_gate(loaded: config.Config) -> None:
    folder = write(make(2), loaded.root / "now")
    path = folder / "records" / "test" / "op" / "fast.json"
    path.write_text(path.read_text().replace("kernelproof.test/1", "kernelproof.test/9"))
    with pytest.raises(RecordError, match=r"kernelproof\.test/9"):
        gate.run(loaded, folder)


def test_a_measurement_that_the_reference_holds_is_no_regression(loaded: config.Config) -> None:
    result = kept(loaded, make(2), make(2))
    assert result.regression is not None
    assert {row.status for row in result.regression.rows} == {"passes"}
    assert {row.reason for row in result.regression.rows} == {"the same samples as in the reference"}


# --- a whole run ------------------------------------------------------------------------------------------------------


def test_a_whole_run_is_judged_from_results_and_from_its_bundle(tmp_path: Path) -> None:
    settings = packed_run.make(tmp_path)
    assert (settings.results / "bench" / "ceilings" / "cpu.json").is_file(), "as every run has them"
    (test,) = settings.results.glob("test/*/tiled.json")  # beside it lies what a sealed variant's calls launch
    test.with_suffix(records.LAUNCHES).write_text('{"schema": "kernelproof.launches/1", "kinds": []}')
    folder, facts = tmp_path / "reports" / packed_run.FOLDER, settings.record("manifest", packed_run.FOLDER)
    manifest.run(settings, packed_run.FOLDER, facts)
    report.run(settings, facts, folder / "report.html", folder / "summary.md")
    bundle.run(settings, facts, folder)
    for path in (settings.results, folder, next(folder.glob("*.tar.gz"))):
        result = gate.run(settings, path)
        assert result.exit_code == ExitCode.WELL
        assert {row.variant: row.correctness for row in result.rows} == {"plain": "correct", "tiled": "correct"}
    # Who has the tarball alone has no configuration, or one of other variants: then the run's own decides.
    others = dataclasses.replace(settings, operators={})
    for known in (None, others):
        assert gate.run(known, next(folder.glob("*.tar.gz"))).rows == result.rows
    # Whose bundle lacks a variant that is configured here has left it out.
    operator = settings.operators["op"]
    one = dataclasses.replace(operator.variants["plain"], name="unwelcome")
    more = dataclasses.replace(operator, variants=operator.variants | {"unwelcome": one})
    asked = dataclasses.replace(settings, operators={"op": more})
    result = gate.run(asked, next(folder.glob("*.tar.gz")))
    assert (result.exit_code, result.left_out) == (ExitCode.COULD_NOT_RUN, ["op/unwelcome"])
    assert "the bundle has no test of op/unwelcome" in result.summary
    assert gate.run(asked, settings.results).exit_code == ExitCode.WELL


HOSTILE = "\x1b[2J<script>alert(1)</script> ![x](http://evil) @torvalds \u202egnorw | #1\n# done"


def test_foreign_text_stays_text(loaded: config.Config) -> None:
    after_test(loaded, "plain", "wrong", HOSTILE)
    after_test(loaded, "fast", "correct")
    row = OracleRow("fast", "s-float32", "hot", HOSTILE, 0.9, 0.8, 0.94, True, HOSTILE)
    records.write(loaded.record("bench", "op-cpu"), BenchRecord(operator="op", device="cpu", oracle=[row]))
    shown = gate.run(loaded, loaded.results).markdown()
    assert "alert(1)" in shown
    assert not {"\x1b", "\u202e"} & set(shown)
    told = [line for line in shown.splitlines() if "alert" in line]
    assert len(told) == 2, "each on its own line"
    plain = next(line for line in told if "op/plain" in line)
    printed = gate.run(loaded, loaded.results).text()
    assert not {"\x1b", "\u202e"} & set(printed)
    assert len([line for line in printed.splitlines() if "alert" in line]) == 2
    for inert in ("\\<script\\>", "\\!\\[x\\](http:", "@<!-- -->torvalds", "\\|", "\\#1"):
        assert inert in plain.replace(r"http\:", "http:")


def test_the_command_writes_markdown(
    loaded: config.Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    after_test(loaded, "fast", "correct")
    benched(loaded, {"hot": 0.90})
    monkeypatch.chdir(loaded.root)
    assert cli.main(["gate", "--json", "--markdown", "gate.md"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]
    assert "The gate passes" in Path("gate.md").read_text()
