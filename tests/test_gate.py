"""The gate: correctness before speed, and what was not run is neither passed nor failed."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kernelproof import config, gate, records
from kernelproof.errors import ExitCode, RecordError
from kernelproof.records import BenchRecord, Contender, OracleRow, TestRecord

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
                "baselines": {},
            }
        },
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(data))
    return config.load(tmp_path / "config.yaml", root=tmp_path)


def after_test(loaded: config.Config, name: str, verdict: str, reason: str | None = None) -> None:
    path = loaded.record("test", "op", name)
    records.write(path, TestRecord(operator="op", variant=name, verdict=verdict, reason=reason))


def benched(loaded: config.Config, highs: dict[str, float], **more: Any) -> None:
    oracle = [
        OracleRow(
            "fast", "s-float32", mode, "base", high - 0.02, high - 0.04, high, high <= 0.95, f"upper bound {high}"
        )
        for mode, high in highs.items()
    ]
    record = BenchRecord(operator="op", device="cpu", oracle=oracle, **more)
    records.write(loaded.record("bench", "op-cpu"), record)


def judged(loaded: config.Config) -> tuple[ExitCode, dict[str, gate.Row]]:
    result = gate.run(loaded, loaded.results)
    return result.exit_code, {row.variant: row for row in result.rows}


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
    assert gate.run(loaded, loaded.results).summary == "The gate passes: 2 passed, 0 failed, 1 not run."


def test_a_claim_that_fails_in_one_mode_fails(loaded: config.Config) -> None:
    after_test(loaded, "fast", "correct")
    benched(loaded, {"hot": 0.90, "cold": 0.951})
    code, rows = judged(loaded)
    assert code == ExitCode.BAD_VERDICT
    assert rows["fast"].reason.startswith("above in 1 of 2 cases; the worst: s-float32 cold, upper bound 0.951")


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


def test_wrong_when_timed_fails(loaded: config.Config) -> None:
    after_test(loaded, "plain", "correct")
    outcome = "dropped: wrong for new values in the same memory (hot)"
    benched(loaded, {}, contenders=[Contender("plain", "variant", "python", "wrong", False, outcome)])
    code, rows = judged(loaded)
    assert (code, rows["plain"].correctness, rows["plain"].speed) == (
        ExitCode.BAD_VERDICT,
        "wrong when timed",
        "no claim",
    )


def test_a_claim_that_could_not_be_timed_fails(loaded: config.Config) -> None:
    after_test(loaded, "fast", "correct")
    benched(loaded, {}, contenders=[Contender("fast", "variant", "python", "correct", True, "dropped: not captured")])
    code, rows = judged(loaded)
    assert code == ExitCode.BAD_VERDICT
    assert rows["fast"].reason == "claimed to be faster, but dropped: not captured"


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
    assert "| op/fast | cpu | correct | passes | 0.880 [0.860, 0.900] vs base | passes |" in result.markdown()
