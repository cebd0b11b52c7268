"""The facts: one verdict a variant, what is missing, which commit was measured, every member hashed."""

from dataclasses import replace
from pathlib import Path

import packed_run
import pytest

from kernelproof import manifest, members, privacy, records
from kernelproof.config import Config
from kernelproof.errors import BundleError


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return packed_run.make(tmp_path)


def gathered(config: Config) -> records.ManifestRecord:
    return manifest.run(config, packed_run.FOLDER, config.results / "manifest/x.json")


def rewrite(config: Config, path: str, kind: type[records.Record], **changes: object) -> None:
    record = records.read(config.root / path, kind)
    records.write(config.root / path, replace(record, **changes))  # type: ignore[arg-type]


def verdict(facts: records.ManifestRecord, variant: str) -> records.Verdict:
    return next(v for v in facts.verdicts if v.variant == variant)


def test_a_good_run(config: Config) -> None:
    facts = gathered(config)
    assert facts.overall == "good"
    assert facts.missing == []
    assert verdict(facts, "plain") == records.Verdict(
        *("op", "plain", "variant", "cpu", "ok", "correct", "faster", 0.9, "not_needed", False),
        gate="no claim, within the limit in its one case",
    )
    assert (verdict(facts, "tiled").speed, verdict(facts, "tiled").profile) == ("not_run", "ok")
    assert verdict(facts, "library").build == "not_needed"
    assert records.read(config.results / "manifest/x.json", records.ManifestRecord) == facts


def test_the_same_records_give_the_same_facts(config: Config) -> None:
    path = config.results / "manifest/x.json"
    gathered(config)
    first = path.read_bytes()
    gathered(config)
    assert path.read_bytes() == first


@pytest.mark.parametrize("word", ["wrong", "crashed", "hung"])
def test_a_bad_variant_is_bad_with_its_reason(config: Config, word: str) -> None:
    failed = {"status": "failed", "remedy": "let config.yaml say so"}
    rewrite(config, "results/test/op/plain.json", records.TestRecord, verdict=word, reason="row 3 of 7\nmore", **failed)
    facts = gathered(config)
    assert facts.overall == "bad"
    assert verdict(facts, "plain").bad
    assert (verdict(facts, "plain").reason, verdict(facts, "plain").remedy) == ("row 3 of 7", failed["remedy"])
    assert not verdict(facts, "tiled").bad


def test_a_wrong_baseline_does_not_condemn_the_run(config: Config) -> None:
    rewrite(config, "results/test/op/library.json", records.TestRecord, verdict="wrong", reason="bias")
    facts = gathered(config)
    assert facts.overall == "good"
    assert verdict(facts, "library").reason == "bias"


def test_a_variant_that_does_not_build_is_bad(config: Config) -> None:
    changes = {"status": "failed", "compiler_message": "plain.cc:3: error: no"}
    rewrite(config, "results/build/op/plain.json", records.BuildRecord, **changes)
    rewrite(config, "results/test/op/plain.json", records.TestRecord, verdict="failed_to_build", status="not_run")
    facts = gathered(config)
    assert (verdict(facts, "plain").build, verdict(facts, "plain").reason) == ("failed", "plain.cc:3: error: no")
    assert facts.overall == "bad"


def test_a_kernel_over_its_budget_is_bad(config: Config) -> None:
    over = records.BudgetRow("sm_90a", "kernel", "registers", 120, 168, ok=False)
    rewrite(config, "results/build/op/tiled.json", records.BuildRecord, budget=[over])
    found = verdict(gathered(config), "tiled")
    assert found.bad
    assert found.reason == "kernel on sm_90a: registers 168, budget 120"


def test_a_failed_profile_is_bad_and_one_not_run_is_not(config: Config) -> None:
    rewrite(config, "results/profile/op/tiled.json", records.ProfileRecord, status="not_run", reason="no GPU")
    assert gathered(config).overall == "good"
    rewrite(config, "results/profile/op/tiled.json", records.ProfileRecord, status="failed", reason="empty report")
    assert verdict(gathered(config), "tiled").reason == "profile: empty report"


def test_the_gate_condemns_only_variants_that_claim_to_pass_it(config: Config) -> None:
    row = records.OracleRow("plain", "large-float32", "hot", "library", 1.2, 1.1, 1.3, False, "1.3 > 0.95")
    rewrite(config, "results/bench/op-cpu.json", records.BenchRecord, oracle=[row])
    assert gathered(config).overall == "good"
    operator = config.operators["op"]
    plain = replace(operator.variants["plain"], gate=True)
    claimed = replace(config, operators={"op": replace(operator, variants={**operator.variants, "plain": plain})})
    said = verdict(gathered(claimed), "plain")
    assert (said.gate, said.bad) == ("fails, not shown within the limit in its one case", True)
    assert said.reason == "the gate: not shown within the limit in its one case: large-float32 hot, 1.3 > 0.95"


def test_a_mode_without_a_time_is_in_the_verdict(config: Config) -> None:
    row = records.UntimedRow("plain", "large-float32", "cold", "too slow", "one visit takes 3 s")
    rewrite(config, "results/bench/op-cpu.json", records.BenchRecord, untimed=[row])
    facts = gathered(config)
    assert verdict(facts, "plain").untimed == "not timed cold in large-float32: too slow, one visit takes 3 s"
    assert (verdict(facts, "library").untimed, facts.overall) == ("", "good")


def test_a_fault_that_the_benchmark_found_is_bad_as_for_the_gate(config: Config) -> None:
    outcome = "dropped: wrong for new values in the same memory (hot)"
    contender = records.Contender("plain", "variant", "tvm_ffi", "wrong", False, outcome)
    rewrite(config, "results/bench/op-cpu.json", records.BenchRecord, contenders=[contender])
    said = verdict(gathered(config), "plain")
    words = "wrong when timed: wrong for new values in the same memory (hot)"
    assert (said.bad, said.reason, said.gate) == (True, words, "no claim")
    assert said.correctness == "wrong"


def test_whose_times_were_made_up_is_bad_though_it_claims_nothing(config: Config) -> None:
    reason = "times escape: a call takes 741 µs cold, and 268 µs on values of before: results are remembered"
    dropped = {"what": "contender", "contender": "plain", "case": None, "reason": reason, "check": "wall"}
    contender = records.Contender("plain", "variant", "tvm_ffi", "correct", True, f"dropped: {reason}")
    rewrite(config, "results/bench/op-cpu.json", records.BenchRecord, contenders=[contender], discarded=[dropped])
    facts = gathered(config)
    said = verdict(facts, "plain")
    assert (said.bad, said.correctness, said.gate) == (True, "correct", "no claim")
    assert said.reason == f"dropped from all cases: {reason}"
    assert facts.overall == "bad"


def test_a_test_that_did_not_end_is_bad_and_no_verdict(config: Config) -> None:
    changes = {"verdict": "not_run", "status": "failed", "reason": "the test run was cut short"}
    rewrite(config, "results/test/op/tiled.json", records.TestRecord, **changes)
    said = verdict(gathered(config), "tiled")
    assert (said.correctness, said.bad, said.reason) == ("not_run", True, "test: the test run was cut short")


def test_what_was_not_run_makes_the_run_incomplete(config: Config) -> None:
    rewrite(
        config, "results/test/op/tiled.json", records.TestRecord, verdict="not_run", status="not_run", reason="no GPU"
    )
    facts = gathered(config)
    assert facts.overall == "incomplete"
    assert (verdict(facts, "tiled").bad, verdict(facts, "tiled").reason) == (False, "no GPU")


def test_a_missing_or_unreadable_record_is_listed(config: Config) -> None:
    (config.root / "results/test/op/plain.json").unlink()
    (config.root / "results/capture/capture.json").write_text("{")
    facts = gathered(config)
    assert [(gap["stage"], gap["subject"]) for gap in facts.missing] == [("capture", "capture"), ("test", "op/plain")]
    assert verdict(facts, "plain").correctness == "missing"
    assert facts.overall == "bad"
    assert "results/test/op/plain.json" not in facts.records


def test_measured_commits_are_stated_apart(config: Config) -> None:
    assert set(gathered(config).measured) == {"capture", "build", "test", "bench", "profile"}
    other = replace(packed_run.STATE, commit="f" * 40, utc="2025-04-01T00:00:00Z")
    rewrite(config, "results/build/op/plain.json", records.BuildRecord, provenance=other)
    facts = gathered(config)
    assert facts.measured["build op/plain"].commit == "f" * 40
    assert facts.measured["build op/tiled"].commit == packed_run.COMMIT
    assert facts.measured["test"].commit == packed_run.COMMIT
    assert facts.provenance.utc == "2025-04-01T00:00:00Z"  # the run's time is its newest record's


def test_variants_that_are_one_binary_are_named(config: Config) -> None:
    tiled = records.read(config.root / "results/build/op/tiled.json", records.BuildRecord)
    for name in ("plain", "tiled"):
        twin = replace(tiled, variant=name, macros={"USE_CP_ASYNC": name == "tiled"})
        records.write(config.record("build", "op", name), twin)
    facts = gathered(config)
    assert facts.identical_machine_code == [["op/plain", "op/tiled"]]
    assert verdict(facts, "plain").reason == "the same machine code as op/tiled"
    assert verdict(facts, "tiled").reason == "no GPU; the same machine code as op/plain"


def test_why_a_correct_variant_has_no_ratio_is_told_before_whose_machine_code_it_shares(config: Config) -> None:
    bench = records.read(config.root / "results/bench/op-cpu.json", records.BenchRecord)
    (row, *_) = [row for row in bench.oracle if row.variant == "plain"]
    shared = replace(row, ratio=None, low=None, high=None, passed=False, reason="the cores were shared")
    rewrite(config, "results/bench/op-cpu.json", records.BenchRecord, oracle=[shared])
    assert verdict(gathered(config), "plain").reason == "the cores were shared"
    contender = records.Contender("plain", "variant", "tvm_ffi", "correct", True, "not tried: others had the cores")
    rewrite(config, "results/bench/op-cpu.json", records.BenchRecord, oracle=[], contenders=[contender])
    assert verdict(gathered(config), "plain").reason == "not tried: others had the cores"


# --- members ----------------------------------------------------------------------------------------------------------


def test_the_machines_name_and_credentials_stay_out(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_JOB_TOKEN", "s3cr3t-of-the-job")
    privacy.secrets.cache_clear()
    log = config.root / "results/logs/build/op/plain.log"
    log.write_text("token s3cr3t-of-the-job, ghp_" + "a" * 36 + "\n")
    facts = gathered(config)
    by_path = {m.path: m for m in facts.members}
    names = privacy.noted(config.results)
    source = by_path["logs/build/op/plain.log"].source or ""
    text = members.content(config.root, source, "logs/build/op/plain.log", names)
    assert text == b"token [secret], [secret]\n"
    junit = members.content(config.root, "results/test/op/plain.xml", "junit/op/plain.xml", names)
    assert b'hostname="host"' in junit
    assert b"workstation7" not in junit
    monkeypatch.undo()
    privacy.secrets.cache_clear()


def test_a_credential_in_a_source_stops_the_bundle(config: Config) -> None:
    (config.root / "csrc/op/plain.cc").write_text("// ghp_" + "b" * 36 + "\n")
    with pytest.raises(BundleError, match="looks like a credential") as caught:
        gathered(config)
    assert caught.value.subject == "csrc/op/plain.cc"
    assert "b" * 10 not in str(caught.value)


def test_links_do_not_lead_out_of_the_repository(config: Config, tmp_path: Path) -> None:
    outside = tmp_path.parent / "outside.txt"
    outside.write_text("private")
    (config.root / "csrc/op/link.cc").symlink_to(outside)
    (config.root / "csrc/folder").symlink_to(tmp_path.parent)
    assert not [m for m in gathered(config).members if "link" in m.path or m.path.startswith("source/csrc/folder")]
