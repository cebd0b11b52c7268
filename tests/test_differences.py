"""What is said of times between two runs: never that a kernel changed which did not, and that it did when it did."""

import gzip
import math
from dataclasses import replace

import pytest
import simulated_runs
from simulated_runs import BENCH, QUICK

from kernelproof import differences, records
from kernelproof.differences import ALONE, RELATIVE, SAME_SAMPLES, TimeChanges
from kernelproof.runs import Run

BAND = 0.005


def changes(before: Run, after: Run) -> TimeChanges:
    return differences.time_changes(before, after, BAND, QUICK)


def test_what_did_not_change_is_never_called_faster_or_slower() -> None:
    said = []
    for seed in range(0, 80, 2):
        found = changes(simulated_runs.make(seed), simulated_runs.make(seed + 1, machine_code="other"))
        assert not found.not_compared
        said += [row.verdict for row in found.rows]
    assert len(said) == 40 * 24
    assert said.count("faster") == said.count("slower") == 0


def test_a_machine_that_is_slower_as_a_whole_is_no_slower_kernel() -> None:
    before = simulated_runs.make(1, machine=0)
    after = simulated_runs.make(2, machine=0, factors=dict.fromkeys(simulated_runs.TIMES_US, 1.2))
    found = changes(before, after)
    assert {row.verdict for row in found.rows} == {"undecided"}
    assert all(row.basis == RELATIVE for row in found.rows)
    assert min(row.plain[0] for row in found.rows) > 1.15


def test_five_percent_is_found() -> None:
    found = {"slower": 0, "faster": 0}
    for seed in range(0, 40, 2):
        for word, factor in (("slower", 1.05), ("faster", 1 / 1.05)):
            before = simulated_runs.make(seed, own=0.004)
            after = simulated_runs.make(seed + 1, own=0.004, machine_code="other", factors={"fast": factor})
            rows = [row for row in changes(before, after).rows if row.contender == "fast"]
            assert len(rows) == 4
            assert {row.verdict for row in rows} <= {word, "undecided"}
            assert rows[0].against == ["cudnn", "efficient", "flash", "math", "plain"]
            found[word] += sum(row.verdict == word for row in rows)
    assert min(found.values()) >= 72, "of 80"


def test_the_order_of_the_runs_inverts_every_ratio() -> None:
    before = simulated_runs.make(3)
    after = simulated_runs.make(4, machine_code="other", factors={"fast": 1.3})
    there, back = changes(before, after), changes(after, before)
    assert len(there.rows) == len(back.rows)
    opposite = {"slower": "faster", "faster": "slower", "undecided": "undecided", "same": "same"}
    for row in there.rows:
        other = next(o for o in back.rows if (o.contender, o.case, o.mode) == (row.contender, row.case, row.mode))
        assert (row.ratio * other.ratio, row.low * other.high) == (pytest.approx(1), pytest.approx(1))
        assert other.verdict == opposite[row.verdict]
    assert "slower" in {row.verdict for row in there.rows}


def test_a_measurement_against_itself_is_no_comparison() -> None:
    run = simulated_runs.make(5)
    data = run.read_samples(f"{BENCH}.csv.gz")
    assert data is not None
    packed_again = replace(run, read_samples=lambda name: gzip.compress(gzip.decompress(data)))
    rows = changes(run, packed_again).rows
    assert len(rows) == 24
    for row in rows:
        assert (row.verdict, row.ratio, row.low, row.high, row.detectable) == (SAME_SAMPLES, 1, 1, 1, None)
        assert row.before_us == row.after_us > 0


def test_two_processes_that_disagree_by_orders_of_magnitude() -> None:
    before, after = (simulated_runs.make(seed, processes=2) for seed in (1, 2))
    data = after.read_samples(f"{BENCH}.csv.gz")
    assert data is not None
    head, *rows = gzip.decompress(data).decode().splitlines()
    wild = [",".join([*row.split(",")[:6], "1e-6" if row[0] == "0" else "1e12", ""]) for row in rows]
    wild_run = replace(after, read_samples=lambda name: gzip.compress("\n".join([head, *wild]).encode()))
    found = differences.time_changes(before, wild_run, BAND, replace(QUICK, confidence=0.999))
    assert {row.verdict for row in found.rows} == {"undecided"}
    assert all(math.isfinite(figure) for row in found.rows for figure in (row.low, row.high, row.detectable or 0))


def test_baselines_of_other_packages_are_no_yardstick() -> None:
    found = changes(simulated_runs.make(6, torch="2.4.1"), simulated_runs.make(7, torch="2.11.0"))
    assert {row.basis for row in found.rows} == {ALONE}
    assert not any(row.against or row.same_code for row in found.rows)
    assert all(row.ratio == row.plain[0] for row in found.rows)


def test_a_baseline_that_is_slower_is_left_out_of_the_yardstick_only_if_it_changed() -> None:
    before, after = simulated_runs.make(8), simulated_runs.make(9, machine_code="other")
    after = simulated_runs.changed(after, "op/math", lambda build: build.sources.clear())
    row = next(row for row in changes(before, after).rows if row.contender == "fast")
    assert row.against == ["cudnn", "efficient", "flash", "plain"]


def test_unchanged_code_is_neither_faster_nor_slower_when_its_control_moves() -> None:
    before = simulated_runs.make(1, device="cpu", only=("plain", "math"))
    after = simulated_runs.make(2, device="cpu", only=("plain", "math"), factors={"math": 1 / 7})
    found = changes(before, after)
    assert {row.verdict for row in found.rows} <= {"undecided", "unchanged code"}
    assert any("unchanged code moved by" in text for text in found.cautions)


@pytest.mark.parametrize("flag", sorted(records.DECIDES_NOTHING))
@pytest.mark.parametrize("who", ["fast", "plain"])
def test_times_that_decide_nothing_in_a_run_decide_nothing_between_two(who: str, flag: str) -> None:
    before, after = simulated_runs.make(1), simulated_runs.make(2, machine_code="other", factors={"fast": 2})
    assert {row.verdict for row in changes(before, after).rows if row.contender == "fast"} == {"slower"}
    for row in after.benches[BENCH].times:
        row.flags += [flag] if row.contender == who else []
    for one, other in ((before, after), (after, before)):
        rows = [row for row in changes(one, other).rows if row.contender == "fast"]
        assert {row.verdict for row in rows} == {"undecided"}


def test_unchanged_code_says_so_where_the_interval_decides() -> None:
    found = changes(simulated_runs.make(1), simulated_runs.make(2, factors={"math": 3}))
    assert {row.verdict for row in found.rows if row.contender == "math"} == {"unchanged code"}


def test_one_control_that_moved_far_decides_nothing_of_what_changed() -> None:
    only = ("fast", "math")
    before = simulated_runs.make(1, device="cpu", only=only)
    after = simulated_runs.make(2, device="cpu", only=only, machine_code="other", factors={"math": 1 / 7})
    rows = [row for row in changes(before, after).rows if row.contender == "fast"]
    assert {(row.verdict, row.basis) for row in rows} == {("undecided", RELATIVE)}


# --- what cannot be compared ------------------------------------------------------------------------------------------


def reasons(before: Run, after: Run) -> dict[str, str]:
    found = changes(before, after)
    return {entry.what: entry.reason for entry in found.not_compared}


def test_another_gpu_model_is_refused() -> None:
    found = changes(simulated_runs.make(1, gpu="NVIDIA H200"), simulated_runs.make(2, gpu="NVIDIA L4"))
    assert not found.rows
    assert found.not_compared[0].reason == "the GPU models differ: NVIDIA H200 and NVIDIA L4"


def test_another_driver_is_a_caution() -> None:
    found = changes(simulated_runs.make(1), simulated_runs.make(2, driver="590.1"))
    assert found.rows
    assert any("driver 580.10 and 590.1" in text for text in found.cautions)


def test_another_processor_is_refused_for_a_cpu() -> None:
    before, after = simulated_runs.make(1, device="cpu"), simulated_runs.make(2, device="cpu")
    assert after.capture is not None
    after.capture.probes["cpu"] = records.Probe("ok", {"model": "another", "usable_cores": 16})
    assert reasons(before, after)["op-cpu"] == "the processors differ: a processor and another"


def test_a_generic_name_is_no_proof_of_the_same_processor() -> None:
    before, after = simulated_runs.make(1, device="cpu"), simulated_runs.make(2, device="cpu")
    for run, model, flags in ((before, "AMD EPYC Processor", ["avx2"]), (after, "AMD EPYC Processor", ["avx512f"])):
        assert run.capture is not None
        run.capture.probes["cpu"] = records.Probe("ok", {"model": model, "usable_cores": 16, "flags": flags})
    assert changes(before, after).cautions == [
        "op-cpu: the processor's flags differs",
        "op-cpu: 'AMD EPYC Processor' names no model: these may be different processors",
    ]


def test_no_benchmark_and_one_that_was_not_run() -> None:
    before, after = simulated_runs.make(1, name="A"), simulated_runs.make(2, name="B")
    assert reasons(before, replace(after, benches={}))[BENCH] == "no benchmark in B: there is none"
    idle = records.BenchRecord(operator="op", device="cuda", status="not_run", reason="no GPU")
    assert reasons(before, replace(after, benches={BENCH: idle}))[BENCH] == "not run in B: no GPU"


def test_samples_that_are_not_there_or_broken() -> None:
    before, after = simulated_runs.make(1, name="A"), simulated_runs.make(2, name="B")
    assert "samples are not there" in reasons(before, replace(after, read_samples=lambda name: None))[BENCH]
    broken = replace(after, read_samples=lambda name: b"\x1f\x8bnothing")
    assert reasons(before, broken)[BENCH].startswith(f"B: {BENCH}.csv.gz: the samples cannot be read")


def test_a_baseline_that_refused_a_case_and_one_that_is_wrong() -> None:
    before, after = simulated_runs.make(1, name="A"), simulated_runs.make(2, name="B")
    bench = after.benches[BENCH]
    bench.times = [row for row in bench.times if (row.contender, row.case) != ("cudnn", "large")]
    next(entry for entry in bench.contenders if entry.name == "cudnn").outcome = "timed, but dropped from large"
    wrong = next(entry for entry in bench.contenders if entry.name == "math")
    wrong.verdict, wrong.correct = "wrong", False
    found = reasons(before, after)
    assert found["op/cudnn, large, hot"] == "not timed in B: timed, but dropped from large"
    assert found["op/math, small, cold"] == "wrong in B: its time says nothing"
    rows = {(row.contender, row.case): row for row in changes(before, after).rows}
    assert ("cudnn", "large") not in rows
    assert "cudnn" in rows["fast", "small"].against
    assert "cudnn" not in rows["fast", "large"].against


def test_a_contender_that_a_benchmark_does_not_name_is_listed() -> None:
    before, after = simulated_runs.make(1, name="A"), simulated_runs.make(2, name="B")
    after.benches[BENCH].contenders = []
    assert not changes(before, after).rows
    found = reasons(before, after)
    assert len(found) == 24
    assert set(found.values()) == {"not among the contenders of the benchmark in B"}


def test_another_case_by_the_same_name() -> None:
    before, after = simulated_runs.make(1), simulated_runs.make(2)
    after.benches[BENCH].cases[0].dims = {"rows": 16}
    assert reasons(before, after)["op/fast, small, hot"].startswith("another case by the same name")


@pytest.mark.parametrize("processes", [1, 2])
def test_few_processes_decide_nothing_or_little(processes: int) -> None:
    found = changes(simulated_runs.make(1), simulated_runs.make(2, processes=processes, factors={"fast": 1.02}))
    rows = [row for row in found.rows if row.contender == "fast"]
    assert {row.verdict for row in rows} == {"undecided"}
    assert all((row.detectable is None) == (processes == 1) for row in rows)


def test_throttled_samples_do_not_count() -> None:
    before, after = simulated_runs.make(1), simulated_runs.make(1)
    import gzip

    data = after.read_samples(f"{BENCH}.csv.gz")
    assert data is not None
    lines = gzip.decompress(data).decode().splitlines()
    hot = [line.rsplit(",", 2)[0] + ",5000,sw_power_cap|hw_thermal_slowdown" for line in lines[1:]]
    both = gzip.compress("\n".join([*lines, *hot, ""]).encode())
    after.read_samples = lambda name: both
    assert all(math.isclose(row.plain[0], 1) for row in changes(before, after).rows)
