"""Two runs side by side: verdicts that changed come first, every input that changed is listed, times are honest."""

import csv
import gzip
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import simulated_runs
from simulated_runs import make, write

from kernelproof import cli, compare, records, runs
from kernelproof.differences import SAME_SAMPLES
from kernelproof.errors import ExitCode, RecordError
from kernelproof.operators import UNIT_ROUNDOFF
from kernelproof.records import BuildRecord, FileHash, Probe, TestRecord

REFERENCE = Path(__file__).resolve().parents[1] / "reports" / "reference" / "nvidia-h200"


def test_right_under_one_torch_and_wrong_under_another() -> None:
    before = make(1, torch="2.4.1")
    after = make(2, torch="2.11.0", verdicts={"fast": "wrong", "flash": "wrong"})
    found = compare.compare(before, after)
    first = found.verdicts[0]
    assert first.sentence == "op/fast: correct under torch 2.4.1, wrong under torch 2.11.0"
    assert first.reason == "small-normal-s0: bound: 37.5 times the bound at [0, 3]"
    assert (first.kind, found.exit_code) == ("broke", ExitCode.BAD_VERDICT)
    assert found.summary == "No longer correct: op/fast."
    # A baseline that broke is told, and is no fault of a variant's.
    assert {(change.variant, change.role) for change in found.verdicts} == {
        ("op/fast", "variant"),
        ("op/flash", "baseline"),
    }
    assert [(e.criterion, e.before, e.after) for e in found.errors if e.variant == "op/fast"] == [("bound", 0.4, 37.5)]
    assert found.environment[0].what != found.environment[-1].what
    assert next(change for change in found.environment if "torch" in change.what).after == "2.11.0"
    for text in (found.markdown(), found.html()):
        assert text.index("correct under torch") < text.index("package torch")
    # Its time is not compared, and the baselines' are not a yardstick: they are another torch's.
    assert not any(row.contender == "fast" for row in found.times)
    assert {row.basis for row in found.times} == {"times alone"}


def test_what_a_missing_gpu_changes_is_no_fault_of_torch() -> None:
    before, after = make(1, torch="2.4.1"), make(2, torch="2.11.0", verdicts={"fast": "not_run"})
    assert after.capture
    after.capture.probes["gpu"] = Probe("absent", None, "no GPU")
    first = compare.compare(before, after).verdicts[0]
    assert first.sentence == "op/fast: correct on NVIDIA H200, not run without a GPU"


def test_of_several_changes_none_is_called_the_cause() -> None:
    before, after = make(1, torch="2.4.1"), make(2, torch="2.11.0", driver="590.1", verdicts={"fast": "wrong"})
    first = compare.compare(before, after).verdicts[0]
    assert first.sentence == "op/fast: correct under torch 2.4.1, wrong under torch 2.11.0 (changed too: driver)"


def test_the_other_way_round_it_was_mended() -> None:
    found = compare.compare(make(1, verdicts={"fast": "wrong"}), make(2))
    assert (found.verdicts[0].kind, found.exit_code, found.summary) == (
        "mended",
        ExitCode.WELL,
        "Correct now: op/fast.",
    )


def test_every_verdict_that_changed_is_in_the_sentence() -> None:
    before, after = make(1, verdicts={"plain": "not_run"}), make(2)
    found = compare.compare(before, after)
    assert (found.exit_code, found.summary) == (ExitCode.WELL, "Another verdict: op/plain.")
    found = compare.compare(make(1, verdicts={"plain": "wrong"}), make(2, verdicts={"plain": "hung"}))
    assert found.summary.startswith("Another verdict: op/plain")


@pytest.mark.parametrize("lost", ["not_run", "missing"])
def test_what_was_correct_and_is_not_tested_is_not_decided(lost: str) -> None:
    after = make(2, verdicts={"fast": "not_run"})
    if lost == "missing":
        del after.tests["op/fast"]
    found = compare.compare(make(1), after)
    assert (found.verdicts[0].kind, found.verdicts[0].after) == ("lost", lost)
    assert (found.exit_code, found.summary) == (
        ExitCode.COULD_NOT_RUN,
        "Correct before and not tested now: op/fast.",
    )
    assert found.markdown().startswith("## ⚠️ B against A")
    assert "✓ B is no worse" not in found.html()
    slower = make(2, verdicts={"plain": "not_run"}, machine_code="other", factors={"fast": 1.5})
    assert compare.compare(make(1), slower).exit_code == ExitCode.BAD_VERDICT


def test_who_was_wrong_and_is_left_out_is_not_passed_over() -> None:
    after = make(2)
    del after.tests["op/plain"], after.builds["op/plain"]
    found = compare.compare(make(1, verdicts={"plain": "wrong"}), after)
    assert (found.verdicts[0].kind, found.verdicts[0].after) == ("gone", "missing")
    assert found.summary.startswith("Not correct before and not tested now: op/plain")
    assert (found.exit_code, found.mark) == (ExitCode.WELL, "⚠️")


def test_a_binding_that_changed_is_changed_code() -> None:
    def bound(sha256: str, code: str | None) -> Callable[[BuildRecord], None]:
        def change(build: BuildRecord) -> None:
            build.binding, build.binding_code_sha256 = [FileHash("csrc/op/binding.cc", sha256)], code

        return change

    slower = {"factors": {"fast": 1.5}}
    before = simulated_runs.changed(make(1), "op/fast", bound("1" * 64, "1" * 64))
    after = simulated_runs.changed(make(2, **slower), "op/fast", bound("2" * 64, "2" * 64))
    assert not runs.same_code(before, after, "op/fast")
    found = compare.compare(before, after)
    (build,) = found.builds_that_differ
    assert (build.machine_code, build.note) == ("different", "the binding's machine code differs")
    assert [change.what for change in build.inputs] == ["file csrc/op/binding.cc"]
    assert found.exit_code == ExitCode.BAD_VERDICT
    # A record from before bindings were written down says nothing of them.
    older = simulated_runs.changed(make(3), "op/fast", lambda build: None)
    assert runs.same_code(older, after, "op/fast")
    assert not compare.compare(older, after).builds_that_differ


def test_a_baseline_that_is_no_longer_tested_decides_nothing() -> None:
    found = compare.compare(make(1), make(2, verdicts={"math": "not_run"}))
    assert found.verdicts[0].sentence.startswith("op/math: correct")
    assert (found.exit_code, found.summary[:28]) == (ExitCode.WELL, "No variant's verdict changed")


def test_a_measurement_that_both_runs_hold_is_called_that() -> None:
    run = make(1)
    found = compare.compare(run, replace(run, name="again"))
    assert {row.verdict for row in found.times} == {SAME_SAMPLES}
    assert (found.exit_code, found.summary) == (
        ExitCode.WELL,
        "No variant's verdict changed, and no time is shown to differ (8 of 8 the same samples).",
    )
    assert {row["verdict"] for row in found.as_json()["times"]} == {SAME_SAMPLES}
    for text in (found.markdown(), found.html()):
        assert SAME_SAMPLES in text
        assert "could see" not in text


def macro(build: BuildRecord) -> None:
    build.macros["STAGES"] = 3


def source(build: BuildRecord) -> None:
    build.sources = [FileHash("csrc/op/fast.cu", "9" * 64), FileHash("csrc/op/more_.cuh", "8" * 64)]


def flag(build: BuildRecord) -> None:
    build.flags.append("--use_fast_math")


def compiler(build: BuildRecord) -> None:
    assert build.compiler is not None
    build.compiler = replace(build.compiler, version="13.1.0")


@pytest.mark.parametrize(
    ("change", "listed"),
    [
        (macro, [("macro STAGES", "2", "3")]),
        (source, [("file csrc/op/fast.cu", "c" * 16, "9" * 16), ("file csrc/op/more_.cuh", "absent", "8" * 16)]),
        (flag, [("flags", "-O3", "-O3 --use_fast_math")]),
        (compiler, [("compiler", "nvcc 13.0.88 (dddddddddddd)", "nvcc 13.1.0 (dddddddddddd)")]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_input_that_changed_is_listed(change: Any, listed: list[tuple[str, str, str]]) -> None:
    before = make(1)
    after = simulated_runs.changed(make(2), "op/fast", change)
    found = compare.compare(before, after)
    (build,) = found.builds_that_differ
    assert [(c.what, c.before, c.after) for c in build.inputs] == listed
    assert all(f">{what}</th>" in found.html() for what, *_ in listed)
    assert build.machine_code == "same"
    # Two variants that were one binary although their macros differed: the mistake that this project is against.
    assert ("did they reach the compiler" in build.note) == (change in (macro, flag))


def test_machine_code_that_changed_is_told_kernel_by_kernel() -> None:
    def other(build: BuildRecord) -> None:
        kernel = build.cubins[0].kernels[0]
        kernel.sass_sha256 = build.cubins[0].sass_sha256 = "other"
        kernel.registers, kernel.spill_store_bytes, kernel.shared_bytes, kernel.instructions = 80, 16, 2048, 95
        kernel.instruction_mix = {"tensor": 12, "fp32": 80, "local memory": 3}

    found = compare.compare(make(1), simulated_runs.changed(make(2), "op/fast", other))
    (build,) = found.builds_that_differ
    (kernel,) = build.kernels
    assert ">shared bytes</th>" in found.html()
    assert (build.machine_code, kernel.arch, kernel.kernel) == ("different", "sm_90a", "kern(float*)")
    assert {c.what: (c.before, c.after) for c in kernel.resources} == {
        "registers": ("64", "80"),
        "shared_bytes": ("1024", "2048"),
        "spill_store_bytes": ("0", "16"),
        "instructions": ("100", "95"),
    }
    assert kernel.mix == {"fp32": -10, "local memory": 3, "tensor": 2}
    assert "registers 64 → 80" in found.markdown()


def test_a_kernel_of_an_unnamed_namespace_is_the_same_wherever_it_was_built() -> None:
    def placed(folder: str, registers: int = 64) -> Callable[[BuildRecord], None]:
        def change(build: BuildRecord) -> None:
            kernel = build.cubins[0].kernels[0]
            kernel.name, kernel.registers = f"_ZN41_GLOBAL__N__{folder}_9_kernel_cu_64adc26c6kernelEPf", registers

        return change

    here, there, changed = (
        simulated_runs.changed(make(number), "op/fast", placed(*how))
        for number, how in ((1, ("2929d1ca",)), (2, ("2beaf07b",)), (2, ("2beaf07b", 80)))
    )
    assert not [build.kernels for build in compare.compare(here, there).builds_that_differ if build.kernels]
    (build,) = compare.compare(here, changed).builds_that_differ
    assert [kernel.what for kernel in build.kernels] == ["changed"]


def test_a_package_and_a_driver_that_changed_are_listed() -> None:
    found = compare.compare(make(1), make(2, torch="2.12.0", driver="590.1"))
    listed = {change.what: (change.before, change.after) for change in found.environment}
    assert listed["package torch"] == ("2.11.0", "2.12.0")
    assert listed["driver"] == ("580.10", "590.1")
    assert "package requests" not in listed


def test_times_across_gpu_models_are_refused_and_the_rest_is_compared() -> None:
    before, after = make(1), make(2, gpu="NVIDIA L4", verdicts={"plain": "crashed"}, factors={"fast": 9})
    found = compare.compare(before, after)
    assert not found.times
    assert [entry.reason for entry in found.times_not_compared] == ["the GPU models differ: NVIDIA H200 and NVIDIA L4"]
    assert found.verdicts[0].sentence == "op/plain: correct under NVIDIA H200, crashed under NVIDIA L4"
    refused = "no times of op-cuda were compared: the GPU models differ: NVIDIA H200 and NVIDIA L4."
    assert found.summary == f"No longer correct: op/plain; {refused}"
    alone = compare.compare(make(1), make(2, gpu="NVIDIA L4"))
    assert alone.summary == f"No variant's verdict changed; {refused}"
    assert "the GPU models differ" in found.markdown()
    assert "the GPU models differ" in found.html()


def test_a_run_does_not_choose_what_counts_as_the_same() -> None:
    before, after = make(1), make(2, machine_code="other", factors={"fast": 1.5})
    after.config = {"gate": {"same_band": 0.9}, "bench": {"confidence": 0.01}}
    found = compare.compare(before, after)
    assert found.exit_code == ExitCode.BAD_VERDICT
    assert {"gate.same_band", "bench.confidence"} <= {change.what for change in found.environment}


def test_what_the_benchmark_found_is_a_verdict() -> None:
    before, after = make(1), make(2)
    (ours,) = [each for each in after.benches["op-cuda"].contenders if each.name == "fast"]
    ours.correct, ours.verdict, ours.outcome = False, "wrong", "timed, but dropped from small (wrong when timed: 7)"
    found = compare.compare(before, after)
    assert (found.exit_code, found.summary.split(";")[0].rstrip(".")) == (
        ExitCode.BAD_VERDICT,
        "No longer correct: op/fast",
    )
    (change,) = found.verdicts
    assert (change.after, change.reason) == ("wrong when timed", "dropped from small (wrong when timed: 7)")
    assert compare.compare(after, before).verdicts[0].kind == "mended"


def test_who_is_correct_by_less_than_before_is_told() -> None:
    before, after = make(1), make(1)
    old, new = before.tests["op/fast"], after.tests["op/fast"]
    old.cases = [replace(old.cases[0], shape=shape) for shape in ("s1", "s2", "s3")]
    new.cases = [replace(old.cases[0], seed=77), replace(old.cases[1], status="skipped")]
    old.rungs = [records.Rung(name, "passed") for name in ("correctness", "sanitizer")]
    new.rungs = [records.Rung("correctness", "passed"), records.Rung("sanitizer", "skipped")]
    found = compare.compare(before, after)
    assert [entry.what for entry in found.tested_less] == [
        "without shape s2 and s3 and rung sanitizer; 1 case instead of 3"
    ]
    assert found.exit_code == ExitCode.COULD_NOT_RUN
    assert found.summary.startswith("Correct by less than before (without shape s2 and s3 and rung")
    for text in (found.markdown(), found.html()):
        assert "1 case instead of 3" in text
    assert not compare.compare(after, before).tested_less
    old.level, new.level, old.trials, new.trials = "deep", "quick", 100, 10
    (told,) = compare.compare(before, after).tested_less
    assert "; at the quick level instead of deep; 10 repeats instead of 100; " in told.what


@pytest.mark.parametrize(
    ("what", "words", "looser"),
    [
        ("limits", "bound_factor 1 → 1e+06", True),
        ("precision", "declared accumulate float32 → bfloat16", True),
        ("deterministic", "declared deterministic true → false", True),
        ("finer", "declared accumulate float32 → float64", False),
        ("module", "the operator's op.py aaaaaaaaaaaa → bbbbbbbbbbbb", True),
        ("helper", "the operator's helper.py aaaaaaaaaaaa → bbbbbbbbbbbb", True),
        ("new helper", "the operator's helper.py none → bbbbbbbbbbbb", True),
    ],
)
@pytest.mark.parametrize("was", ["wrong", "correct"])
def test_who_is_held_to_something_else_is_not_mended(was: str, what: str, words: str, looser: bool) -> None:
    before, after = make(1, verdicts={"fast": was}), make(2)
    old, new = before.tests["op/fast"], after.tests["op/fast"]
    for test, sha256 in ((old, "a" * 64), (new, "b" * 64 if what == "module" else "a" * 64)):
        test.module, test.precision = FileHash("op.py", sha256), {"output": "input", "accumulate": "float32"}
    if "helper" in what:
        old.imports = [FileHash("old/same.py", "c" * 64)]
        old.imports += [FileHash("helper.py", "a" * 64)] * (what == "helper")
        new.imports = [FileHash("new/same.py", "c" * 64), FileHash("helper.py", "b" * 64)]
    if what == "limits":
        new.looser = {"bound_factor": 1e6}
    new.precision |= {"accumulate": {"precision": "bfloat16", "finer": "float64"}.get(what, "float32")}
    declared = {"deterministic": what != "deterministic"}
    before.config = {**before.config, "operators": {"op": {"variants": {"fast": {}}}}}
    after.config = {**after.config, "operators": {"op": {"variants": {"fast": declared}}}}
    found = compare.compare(before, after)
    assert [(one.variant, one.words, one.looser) for one in found.judged_otherwise] == [("op/fast", words, looser)]
    assert f"eld to something else than before ({words}): op/fast" in found.summary
    assert [change.kind for change in found.verdicts] == (["changed"] if was == "wrong" else [])
    assert (found.mark, found.exit_code) == ("⚠️", ExitCode.COULD_NOT_RUN if looser else ExitCode.WELL)
    assert not [entry for entry in found.errors if entry.variant == "op/fast"]
    for text in (found.markdown(), found.html()):
        assert "say nothing of the kernel's change" in text


@pytest.mark.parametrize("flagged", ["fast", "math"])
def test_times_that_differ_in_a_disturbed_run_are_not_called_the_same(flagged: str) -> None:
    before, after = make(1), make(2, machine_code="other", factors={"fast": 1.5})
    for row in before.benches[simulated_runs.BENCH].times:
        row.flags = ["cores_shared"] if row.contender == flagged else []
    found = compare.compare(before, after)
    assert (found.exit_code, found.mark) == (ExitCode.WELL, "⚠️")
    said = "4 of 8 undecided although their intervals exclude 1 (A: cores_shared): measure again"
    assert found.summary == f"No variant's verdict changed; {said}."
    assert "! not all times can be told apart" in found.html()
    row.flags = []
    quiet = compare.compare(before, make(2))
    assert (quiet.withheld, "no time is shown to differ" in quiet.summary) == ("", True)


def test_what_an_older_record_does_not_list_has_not_changed() -> None:
    before, after = make(1), make(2)
    old, new = before.tests["op/fast"], after.tests["op/fast"]
    old.module = new.module = FileHash("op.py", "a" * 64)
    old.imports, new.imports = None, [FileHash("helper.py", "b" * 64)]
    assert compare.compare(before, after).judged_otherwise == []
    old.imports = []
    assert [one.words for one in compare.compare(before, after).judged_otherwise] == [
        "the operator's helper.py none → bbbbbbbbbbbb"
    ]


def test_declared_types_are_known_by_how_fine_they_are() -> None:
    assert sorted(compare.PRECISE, key=UNIT_ROUNDOFF.__getitem__) == list(compare.PRECISE)
    assert set(compare.PRECISE) == {name for name, roundoff in UNIT_ROUNDOFF.items() if roundoff}


def test_a_verdict_is_of_the_commit_that_its_own_record_names() -> None:
    before, after = make(1), make(2, verdicts={"fast": "wrong"})
    for run, commit in ((before, "1" * 40), (after, "2" * 40)):
        run.tests["op/fast"].provenance = replace(run.tests["op/fast"].provenance, commit=commit, utc="2026-01-01")
    (change,) = compare.compare(before, after).verdicts
    assert change.sentence == f"op/fast: correct at {'1' * 12}, wrong at {'2' * 12}"


def test_slower_is_exit_code_one_and_the_same_is_none() -> None:
    slower = compare.compare(make(1), make(2, machine_code="other", factors={"fast": 1.5}))
    assert (slower.exit_code, slower.summary) == (ExitCode.BAD_VERDICT, "Slower in 4 cases: op/fast.")
    same = compare.compare(make(1), make(2))
    assert same.exit_code == ExitCode.WELL
    assert same.summary == "No variant's verdict changed, and no time is shown to differ (8 of 8 undecided)."
    baseline = compare.compare(make(1), make(2, factors={"math": 1.5}))
    assert baseline.exit_code == ExitCode.WELL
    assert "Baselines that differ" in baseline.markdown()


def test_a_doubtful_time_is_flagged_where_it_is_compared() -> None:
    before, after = make(1), make(2)
    row = next(row for row in after.benches[simulated_runs.BENCH].times if row.contender == "fast")
    row.flags = ["power_capped"]
    after.benches[simulated_runs.BENCH].times.append(replace(row, method="eager", flags=["gpu_shared"]))
    found = compare.compare(before, after)
    flagged = [row for row in found.as_json()["times"] if row["flags_before"] or row["flags_after"]]
    assert [(row["contender"], row["flags_before"], row["flags_after"]) for row in flagged] == [
        ("fast", [], ["power_capped"])
    ]
    for text in (found.markdown(), found.html()):
        assert "B: power capped" in text


def test_nothing_in_common() -> None:
    one, other = make(1, only=("fast",)), make(2, only=("plain",))
    with pytest.raises(RecordError, match="no variant in common"):
        compare.compare(one, other)


def test_who_came_and_is_wrong_is_told_and_is_no_worsening() -> None:
    found = compare.compare(make(1, only=("plain", "cudnn")), make(2, commit="b", verdicts={"fast": "wrong"}))
    assert (found.exit_code, found.mark) == (ExitCode.WELL, "⚠️")
    assert found.summary.startswith("New and not correct: op/fast.")
    assert f"op/fast: not tested at {'a' * 12}, wrong at {'b' * 12}" in found.markdown()
    assert compare.compare(make(1, only=("plain", "cudnn")), make(2)).verdicts == []


def test_variants_of_one_run_alone() -> None:
    found = compare.compare(make(1, only=("fast", "plain", "cudnn")), make(2, only=("fast", "cudnn", "math")))
    assert (found.only_before, found.only_after) == (["op/plain"], ["op/math"])
    assert found.exit_code == ExitCode.COULD_NOT_RUN  # a correct one is not tested in B
    assert found.summary.startswith("Correct before and not tested now: op/plain")


def test_a_variant_that_calls_itself_a_baseline_breaks_all_the_same() -> None:
    before, after = make(1), make(2, verdicts={"fast": "wrong"})
    after.tests["op/fast"].role = after.builds["op/fast"].role = "baseline"
    found = compare.compare(before, after)
    assert [(change.variant, change.role) for change in found.broke] == [("op/fast", "variant")]


def test_another_project_is_told() -> None:
    before, after = (replace(make(seed), config={"project": name}) for seed, name in ((1, "one"), (2, "other")))
    change = next(iter(compare.environment(before, after)))
    assert (change.what, change.before, change.after) == ("project", "one", "other")


def test_what_cannot_be_read_is_no_success() -> None:
    after = make(2)
    after.unread.append(runs.Unread("bench/op-cuda.json", "it is cut off"))
    found = compare.compare(make(1), after)
    assert found.exit_code == ExitCode.COULD_NOT_RUN
    assert found.summary == "Not read: bench/op-cuda.json of run."


# --- real records of an H200 ------------------------------------------------------------------------------------------


def perturbed(folder: Path, factor: float) -> Path:
    """The kept reference with one variant's machine code and times changed, its manifest left behind."""
    shutil.copytree(REFERENCE / "records", folder / "records")
    path = folder / "records" / "bench" / "rmsnorm-cuda.csv.gz"
    rows = list(csv.DictReader(io.StringIO(gzip.decompress(path.read_bytes()).decode())))
    for row in rows:
        if row["contender"] == "one_pass":
            row["time_us"] = f"{float(row['time_us']) * factor:.6g}"
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(gzip.compress(text.getvalue().encode()))
    build = folder / "records" / "build" / "rmsnorm" / "one_pass.json"
    record = json.loads(build.read_text())
    for cubin in record["cubins"]:
        cubin["sass_sha256"] = "another"
    build.write_text(json.dumps(record))
    return folder


def test_real_records_against_themselves_and_against_a_planted_change(tmp_path: Path) -> None:
    reference = runs.load(REFERENCE)
    changed = runs.load(perturbed(tmp_path / "slower", 1.08))
    found = compare.compare(reference, changed)
    said = {(row.contender, row.verdict) for row in found.times if row.verdict != "undecided"}
    assert {entry for entry in said if entry[1] != SAME_SAMPLES} == {("one_pass", "slower")}
    assert {row.operator for row in found.times if row.verdict != SAME_SAMPLES} == {"rmsnorm"}
    assert {row.contender for row in found.slower} == {"one_pass"}
    assert len(found.times) > 400
    assert found.exit_code == ExitCode.BAD_VERDICT
    assert not found.verdicts
    assert [build.variant for build in found.builds_that_differ] == ["rmsnorm/one_pass"]


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_in_all_its_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(make(1, name="a"), tmp_path / "a")
    b = write(make(2, name="b", factors={"fast": 1.5}, machine_code="other"), tmp_path / "b")
    markdown, page = tmp_path / "out" / "pr.md", tmp_path / "out" / "page.html"
    assert cli.main(["compare", str(a), str(b), "--json", "--markdown", str(markdown), "--html", str(page)]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert (printed["schema"], printed["exit_code"]) == (compare.SCHEMA, 1)
    assert {row["verdict"] for row in printed["times"] if row["contender"] == "fast"} == {"slower"}
    assert {b["variant"]: b["machine_code"] for b in printed["builds"]}["op/fast"] == "different"
    assert "**1." in markdown.read_text()
    assert "<script" not in page.read_text()
    assert "src=" not in page.read_text()
    assert cli.main(["compare", str(a), str(a)]) == 0
    assert cli.main(["compare", str(a), str(tmp_path / "nowhere")]) == 2
    assert "no such bundle or folder" in capsys.readouterr().err


def test_foreign_text_stays_text(tmp_path: Path) -> None:
    hostile = "</td><script>alert(1)</script>|@everyone\x1b[31m"

    def name(build: BuildRecord) -> None:
        build.macros[hostile] = hostile

    after = simulated_runs.changed(make(2), "op/fast", name)
    after.tests["op/fast"] = TestRecord(operator="op", variant="fast", device="cuda", verdict="wrong", reason=hostile)
    found = compare.compare(make(1), after)
    assert "<script>" not in found.html()
    assert "\x1b" not in found.html() + found.markdown()
    assert hostile not in found.markdown()


def test_neither_torch_nor_the_network_is_needed(tmp_path: Path) -> None:
    import subprocess
    import sys

    a = write(make(1), tmp_path / "a")
    code = (
        "import sys, socket\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, *more):\n"
        "        assert name.partition('.')[0] != 'torch', 'torch was imported'\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "socket.socket.connect = None\n"
        "from kernelproof import cli\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    for command in (["compare", str(a), str(a)], ["history", str(a), str(a)]):
        done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_no_tick_stands_above_what_is_wrong_now() -> None:
    """A baseline that broke makes no variant worse, and who was not tested before was not correct: still no tick."""
    before, after = make(1, name="A"), make(2, name="B", commit="b", verdicts={"flash": "wrong"})
    found = compare.compare(before, after)
    assert (found.exit_code, found.mark) == (ExitCode.WELL, "⚠️")
    untested = make(1, name="A", verdicts={"fast": "not_run"})
    assert compare.compare(untested, make(2, name="B", commit="b", verdicts={"fast": "wrong"})).mark == "⚠️"
