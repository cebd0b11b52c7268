"""What a benchmark says of a variant's speed: claims pass or fail, the rest is told without a verdict."""

import pytest

from kernelproof import claims
from kernelproof.records import BenchRecord, Contender, OracleRow, TimeRow, UntimedRow


def bench(*highs: float | None) -> BenchRecord:
    rows = [
        OracleRow("v", f"c{number}", "hot", "base", high, high, high, high <= 0.95, f"up to {high}")
        if high is not None
        else OracleRow("v", f"c{number}", "hot", None, None, None, None, False, "no correct baseline was timed")
        for number, high in enumerate(highs)
    ]
    return BenchRecord(operator="op", device="cpu", oracle=rows)


@pytest.mark.parametrize(
    ("highs", "claimed", "said"),
    [
        ((0.9, 0.8, 0.7), True, "passes, within the limit in all 3 cases"),
        ((0.9, 0.96, 0.7), True, "fails, not shown within the limit in 1 of 3 cases"),
        ((0.9, None), True, "fails, not shown within the limit in 1 of 2 cases"),
        ((0.9, 0.96, 0.7), False, "no claim, not shown within the limit in 1 of 3 cases"),
        ((0.9, 0.8), False, "no claim, within the limit in all 2 cases"),
        ((1.9, 1.8), False, "no claim, not shown within the limit in 2 of 2 cases"),
        ((1.9,), True, "fails, not shown within the limit in its one case"),
        ((None, None), True, "fails, nothing to compare it with"),
        ((None,), False, "no claim, nothing to compare it with"),
        ((), True, "fails"),
        ((), False, "no claim"),
    ],
)
def test_a_claim_passes_in_every_case_or_fails(highs: tuple[float, ...], claimed: bool, said: str) -> None:
    assert str(claims.judge("v", claimed=claimed, correct=True, bench=bench(*highs))) == said


def test_a_ratio_that_is_not_known_is_not_one_that_nobody_asked_for() -> None:
    unknown = bench(None)
    unknown.oracle[0].best_baseline = "torch"
    assert str(claims.judge("v", claimed=True, correct=True, bench=unknown)) == "fails, no ratio is known"


def test_the_deciding_case_is_named() -> None:
    found = claims.judge("v", claimed=True, correct=True, bench=bench(0.9, 1.2, 0.99))
    assert found.why == "not shown within the limit in 2 of 3 cases; the worst: c1 hot, up to 1.2"
    found = claims.judge("v", claimed=True, correct=True, bench=bench(0.9, 0.93))
    assert found.why == "within the limit in all 2 cases; the closest: c1 hot, up to 0.93"


@pytest.mark.parametrize("claimed", [True, False])
def test_what_is_not_correct_or_not_measured_neither_passes_nor_fails(claimed: bool) -> None:
    word = claims.NOT_RUN if claimed else claims.NO_CLAIM
    wrong = BenchRecord(contenders=[Contender("v", "variant", "tvm_ffi", "wrong", False, "dropped: wrong")])
    absent = BenchRecord("not_run", "no GPU")
    for correct, record in ((False, bench(0.5)), (True, wrong), (True, None), (True, absent)):
        found = claims.judge("v", claimed=claimed, correct=correct, bench=record)
        assert (found.word, found.note, bool(found.reason)) == (word, "", True)


def test_a_mode_without_a_time_is_named_with_its_reason() -> None:
    assert claims.untimed(None, "v") == claims.untimed(bench(0.9), "v") == ""
    record = BenchRecord(
        times=[TimeRow(name, case, "hot", "cpu_clock", 1.0, 1.0, 1.0, 1, 1) for name in "vw" for case in "abc"],
        untimed=[
            UntimedRow("v", "a", "cold", "too slow", "0.6 s"),
            UntimedRow("w", "a", "cold", "too slow", "0.9 s"),
            UntimedRow("v", "b", "cold", "too slow", "0.7 s"),
            UntimedRow("v", "c", "cold", "no sample"),
            UntimedRow("w", "d", "hot", "discarded", "throttled"),
        ],
    )
    assert (
        claims.untimed(record, "v") == "not timed cold in 2 of 3 cases: too slow, 0.6 s; not timed cold in c: no sample"
    )
    assert (
        claims.untimed(record, "w") == "not timed cold in a: too slow, 0.9 s; not timed hot in d: discarded, throttled"
    )


def test_a_verdict_of_the_test_is_not_the_benchmarks() -> None:
    contender = Contender("v", "variant", "tvm_ffi", "wrong", False, "not benchmarked: wrong")
    assert claims.found_by_bench(BenchRecord(contenders=[contender]), "v") is None


@pytest.mark.parametrize("fault", ["crashed", "hung", "failed"])
@pytest.mark.parametrize(
    ("outcome", "why"),
    [("{}: it said why", "it said why"), ("{} (hot): it said why", "hot: it said why"), ("{} at once", "{} at once")],
)
def test_a_variant_that_fails_when_timed_is_found(fault: str, outcome: str, why: str) -> None:
    outcome = f"dropped: {outcome.format(fault)}"
    record = BenchRecord(contenders=[Contender("v", "variant", "tvm_ffi", "correct", True, outcome)])
    assert claims.found_by_bench(record, "v") == (f"{fault} when timed", why.format(fault))


def test_a_wrong_result_when_timed_is_told_once() -> None:
    outcome = "dropped: wrong when timed (hot): 1 of 9 elements are wrong: row 0"
    record = BenchRecord(contenders=[Contender("v", "variant", "tvm_ffi", "wrong", False, outcome)])
    assert claims.found_by_bench(record, "v") == ("wrong when timed", "hot: 1 of 9 elements are wrong: row 0")


@pytest.mark.parametrize("word", claims.CAUGHT)
@pytest.mark.parametrize("case", [None, "s-float32"])
@pytest.mark.parametrize("claimed", [True, False])
def test_whoever_was_caught_is_at_fault_with_or_without_a_claim(word: str, case: str | None, claimed: bool) -> None:
    record = bench(0.5)
    record.contenders = [Contender("v", "variant", "tvm_ffi", "correct", True, "timed")]
    record.discarded = [{"what": "contender", "contender": "v", "case": case, "reason": f"{word}: results are kept"}]
    assert claims.found_by_bench(record, "v") == (word, f"dropped from {case or 'all cases'}: {word}: results are kept")
    assert claims.judge("v", claimed=claimed, correct=True, bench=record).word in (claims.NOT_RUN, claims.NO_CLAIM)
    assert claims.found_by_bench(record, "w") is None
    record.discarded[0]["reason"] = "not tried: other programs had the cores"
    assert claims.found_by_bench(record, "v") is None
