"""The judge: correct kernels are never accused, and every fault is named as what it is."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_flash import Flash

from kernelproof import findings, images, judge, processes, simfp8, suite
from kernelproof.config import Precision, Tolerance
from kernelproof.errors import KernelproofError, TestError, WorkerReplyError
from kernelproof.images import BAND_BYTES, Returned
from kernelproof.loading import handed_over
from kernelproof.operators import Call, Reference, accumulation_floors, forward_bound, qkt, units
from kernelproof.operators.attention import OPERATOR
from kernelproof.records import Case, CaseResult

TOLERANCE = Tolerance(bound_factor=1.0, rms_factor=1.5, bias_case=1 / 16, bias_suite=1 / 64)
INPUT = Precision("input", "input")
DIMS = {"batch": 1, "heads": 4, "kv_heads": 2, "seq": 200, "head_dim": 64}


def case_of(dims: dict[str, int] | None = None, causal: bool = False, layout: str = "bhsd", **changes: Any) -> Case:
    options: dict[str, bool | str] = {"causal": causal, "layout": layout}
    return Case("attention", "t", dims or DIMS, options, **{"dtype": "float16", **changes})


def run(kernel: Callable[..., torch.Tensor], case: Case, precision: Precision = INPUT) -> CaseResult:
    call = OPERATOR.make_call(case, judge.generator(case))
    inputs = [value for name, value in call.arguments.items() if name != "o"]
    return judged(case, call, kernel(*inputs), precision)


def judged(case: Case, call: Call, output: torch.Tensor, precision: Precision = INPUT, **returned: Any) -> CaseResult:
    reference = OPERATOR.reference(call, precision)
    return judge.judge(case, call, reference, Returned(output, **returned), TOLERANCE, operator=OPERATOR)


def criteria(result: CaseResult) -> list[str]:
    return [failure.criterion for failure in result.failures]


def correct_output(case: Case) -> tuple[Call, torch.Tensor]:
    call = OPERATOR.make_call(case, judge.generator(case))
    return call, OPERATOR.reference(call, INPUT).output.to(call.output.dtype)


# --- correct kernels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("family", OPERATOR.families)
def test_a_correct_kernel_passes_every_family(family: str, dtype: str) -> None:
    for causal in (False, True):
        result = run(Flash(), case_of(causal=causal, family=family, dtype=dtype))
        assert result.failures == []
        assert result.status == "passed"


@pytest.mark.parametrize("seq", [1, 2, 63, 65, 127, 500])
def test_a_correct_kernel_passes_every_length(seq: int) -> None:
    for layout, causal in (("bhsd", True), ("bshd", False)):
        result = run(Flash(tile=32), case_of({"heads": 2, "seq": seq, "head_dim": 64}, causal, layout, seed=seq))
        assert result.failures == []


@pytest.mark.parametrize(("seq", "seq_k"), [(40, 70), (70, 40)])
def test_a_correct_kernel_passes_with_unequal_lengths(seq: int, seq_k: int) -> None:
    dims = {"heads": 2, "seq": seq, "seq_k": seq_k, "head_dim": 32}
    assert run(Flash(tile=16), case_of(dims, causal=True)).failures == []


# --- wrong kernels ----------------------------------------------------------------------------------------------------

FAULTS: list[tuple[str, Flash, dict[str, Any], Precision, str, str]] = [
    ("last key skipped", Flash(skip_key=-1), {"family": "sink_last"}, INPUT, "bound", "the last key is skipped"),
    ("first key skipped", Flash(skip_key=0), {"family": "sink_first"}, INPUT, "bound", "the first key is skipped"),
    ("any key skipped", Flash(skip_key=77), {"family": "v_mean"}, INPUT, "rms", ""),
    ("first tile missing", Flash(skip_tile=0), {}, INPUT, "bound", "the first tile of 64 keys is skipped"),
    ("rest missing", Flash(skip_tile=3), {}, INPUT, "bound", "(192..199) are skipped"),
    ("stale maximum", Flash(stale_maximum=True), {"family": "staircase"}, INPUT, "bound", "are not rescaled when"),
    ("stale maximum, mild", Flash(stale_maximum=True), {}, INPUT, "bound", "not rescaled when the maximum rises"),
    ("unmasked padding", Flash(unmasked_padding=True), {}, INPUT, "bound", "zeros that are not masked"),
    ("no scale", Flash(scale_by=8), {}, INPUT, "bound", "not scaled by 1/√d"),
    ("scale twice", Flash(scale_by=1 / 8), {}, INPUT, "bound", "scaled by 1/√d twice"),
    ("exp for exp2", Flash(scale_by=math.log(2)), {}, INPUT, "bound", "log2(e)"),
    ("no causal mask", Flash(ignore_mask=True), {"causal": True}, INPUT, "bound", "mask is not applied"),
    ("one key of the future", Flash(shift_mask=1), {"causal": True}, INPUT, "bound", "one key of the future"),
    ("diagonal hidden", Flash(shift_mask=-1), {"causal": True}, INPUT, "bound", "hides the diagonal"),
    ("wrong key head", Flash(wrong_kv_head=True), {}, INPUT, "bound", "head h mod kv_heads"),
    ("zero point", Flash(zero_point=-0.5 / 127), {}, INPUT, "bound", "zero point"),
    ("P in bfloat16", Flash(p=torch.bfloat16), {}, INPUT, "rms", "coarser type than declared"),
    ("P in float16", Flash(), {}, Precision("input", "float32"), "bound", ""),
    ("P in float16, rms", Flash(p=torch.float16), {"dtype": "float32"}, Precision("input", "float32"), "rms", ""),
    ("truncated", Flash(p=torch.float32, truncate=True), {}, INPUT, "bias", "truncated to float16, not rounded"),
    ("truncated, v_mean", Flash(truncate=True), {"family": "v_mean"}, INPUT, "bias", "truncated to float16"),
    ("scale a little off", Flash(scale_by=1.004), {"family": "peaky"}, INPUT, "rms", ""),
]


@pytest.mark.parametrize(
    ("kernel", "changes", "precision", "criterion", "cause"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS]
)
def test_a_fault_is_caught_and_named(
    kernel: Flash, changes: dict[str, Any], precision: Precision, criterion: str, cause: str
) -> None:
    case = case_of(**changes)
    assert run(replace(Flash(p=kernel.p if kernel.truncate else None)), case).failures == []
    result = run(kernel, case, precision)
    assert criterion in criteria(result)
    assert result.status == "failed"
    assert any(cause in failure.message for failure in result.failures), [f.message for f in result.failures]


@pytest.mark.parametrize("family", OPERATOR.families)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_zeros_and_means_pass_no_family(family: str, dtype: str) -> None:
    def zeros(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
        return torch.zeros_like(q)

    def mean(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
        return v.float().mean(2, keepdim=True).repeat_interleave(2, 1).expand(q.shape).to(q.dtype)

    for fake in (zeros, mean):
        assert "bound" in criteria(run(fake, case_of(family=family, dtype=dtype)))


def test_a_wrong_scale_of_the_output_is_named() -> None:
    call, output = correct_output(case_of())
    result = judged(case_of(), call, (output.float() * 1.01).half())
    assert any("1.01" in f.message and "a wrong scale" in f.message for f in result.failures)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_holds_the_bytes_of_fresh_memory_was_never_written(dtype: str) -> None:
    """Of a result in the candidate's own memory, of which the poison says nothing."""
    call, output = correct_output(case_of(dtype=dtype))
    words = " of these hold what fresh memory is full of here (the bytes 0x7f): they are never written"
    output[..., -1, :] = torch.full((4,), processes.FILL, dtype=torch.uint8).view(output.dtype)[0]
    result = judged(case_of(dtype=dtype), call, output)
    assert any(words in failure.message for failure in result.failures)
    output[..., -1, :] = 3.0
    assert "fresh memory" not in " ".join(f.message for f in judged(case_of(dtype=dtype), call, output).failures)


def test_a_wrong_scale_is_named_where_rounding_of_the_wrong_result_is_all_that_hides_it() -> None:
    """An exact call's reference has no roundoff; what a fault makes of it is rounded all the same."""
    expected = torch.arange(1.0, 257.0, dtype=torch.float64).reshape(4, 64)
    call = Call({"x": torch.ones(4, 64), "y": torch.empty(4, 64, dtype=torch.float16)}, ("y",), ("row", "column"))
    reference = Reference(expected, torch.zeros_like(expected), 0.0, exact=True)
    output = (expected * 127 / 128).to(torch.float16)
    case = Case("attention", "exact", {}, {}, "float16")
    result = judge.judge(case, call, reference, Returned(output), TOLERANCE)
    assert "Likely cause: every element is 0.99218" in result.failures[0].message


def test_half_of_the_result_on_average_alone_is_not_called_a_wrong_scale() -> None:
    """A softmax over the wrong dimension was: "every element is 0.4999 times what it should be"."""
    call, output = correct_output(case_of())
    apart = torch.randn(output.shape, generator=torch.Generator().manual_seed(5)) / 8
    result = judged(case_of(), call, (output.float() * (0.5 + 0.5 * apart)).half())
    assert "bound" in criteria(result)
    assert not any("every element" in f.message for f in result.failures)


def test_noise_is_not_called_a_wrong_scale() -> None:
    call, output = correct_output(case_of())
    spread = float(output.double().square().mean().sqrt())
    noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(5)) * spread / 8
    result = judged(case_of(), call, noise.half())
    assert not any("wrong scale" in f.message for f in result.failures)


@pytest.mark.parametrize(
    ("value", "words"),
    [(65504.0, "65504, the end of float16's range"), (2.5, "2.5"), (0.0, "0: nothing is accumulated")],
)
def test_an_output_of_one_value_is_named(value: float, words: str) -> None:
    call, output = correct_output(case_of())
    reference = OPERATOR.reference(call, INPUT)
    result = judge.judge(case_of(), call, reference, Returned(torch.full_like(output, value)), TOLERANCE)
    assert f"every element is {words}" in result.failures[0].message


def test_no_fault_explains_infinite_values_that_it_does_not_have() -> None:
    """Every second feature is not divided by the sum, and leaves the range of the type."""
    call, output = correct_output(case_of())
    output[..., 1::2] = math.inf
    output[0, 0, 0, 0] += 1
    result = judged(case_of(), call, output)
    assert criteria(result)[0] == "nonfinite"
    assert not any("Likely cause" in f.message for f in result.failures)


def test_a_verdict_stands_where_suspects_fail() -> None:
    class Careless(type(OPERATOR)):  # type: ignore[misc]
        def suspects(self, call: Call, rows: torch.Tensor) -> Any:
            yield rows[:, 99]

    case = case_of()
    call, output = correct_output(case)
    output[0, 0, 0, 0] += 1
    reference = OPERATOR.reference(call, INPUT)
    result = judge.judge(case, call, reference, Returned(output), TOLERANCE, operator=Careless())
    assert result.status == "failed"
    assert "Likely cause: unknown, for the operator's `suspects` failed (IndexError" in result.failures[0].message


@pytest.mark.parametrize("shape", [(4000,), (4000, 1)])
def test_a_bias_is_found_whether_or_not_an_output_has_rows(shape: tuple[int, ...]) -> None:
    expected = torch.rand(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64) + 0.5
    call = Call({"x": torch.zeros(1), "y": torch.zeros(shape)}, outputs=("y",), axes=("row", "column")[: len(shape)])
    reference = Reference(expected, torch.full(shape, 1e-3, dtype=torch.float64), 2.0**-24)
    right, large = (
        judge.judge(case_of(), call, reference, Returned((expected * f).float()), TOLERANCE) for f in (1, 1 + 1e-7)
    )
    assert right.failures == []
    assert "bias" in criteria(large)


LOPSIDED = {"batch": 1, "heads": 8, "kv_heads": 2, "seq": 130, "head_dim": 64}


@pytest.mark.parametrize(("factor", "accused"), [(1.0, []), (1 - 2**-11, ["bias"]), (1 + 2**-10, ["bias"])])
def test_a_bias_that_rounding_makes_is_no_kernels_and_one_beyond_it_is(factor: float, accused: list[str]) -> None:
    """FlexAttention's case: the normalised weights are rounded, and one key has nearly all of the weight."""
    case = case_of(LOPSIDED, causal=True, dtype="bfloat16", family="sink_first", seed=613839701)

    def rounded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
        keys, values = (t.double().repeat_interleave(4, 1) for t in (k, v))
        scores = (q.double() @ keys.mT * scale).masked_fill(~torch.ones(130, 130).tril().bool(), -math.inf)
        return (scores.softmax(-1).to(q.dtype).double() @ values * factor).to(q.dtype)

    result = run(rounded, case)
    assert criteria(result) == accused
    assert abs(result.bias or 0) > 2**-8 / 16


@pytest.mark.parametrize(("factor", "accused"), [(1 - 4e-7, []), (1 + 1e-7, []), (1 - 3e-3, ["rms", "bias"])])
def test_one_rounded_scale_may_tip_all_results_that_lie_halfway(factor: float, accused: list[str]) -> None:
    """Means of 64 codes, as subnormal float16: every fourth lies halfway between two numbers, but for its scale."""
    whole = torch.randint(400, 600, (400, 64), generator=torch.Generator().manual_seed(3)).double()
    expected = (whole + 0.5 * (torch.arange(64) % 4 == 0)) * 2.0**-24 * (1 + 2e-7)
    call = Call({"x": torch.zeros(1), "y": torch.zeros(400, 64).half()}, outputs=("y",), axes=("row", "column"))
    bound = torch.full((400, 64), 2.0**-22, dtype=torch.float64)
    reference = Reference(expected, bound, 2.0**-11, bias_floor=2.0**-21)
    result = judge.judge(case_of(), call, reference, Returned((expected * factor).half()), TOLERANCE)
    assert criteria(result) == accused
    assert (abs(result.bias or 0) > 2**-11 / 16) == (factor < 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_is_flushed_to_zero_below_the_smallest_normal_number_is_no_bias(dtype: torch.dtype) -> None:
    smallest = torch.finfo(dtype).smallest_normal
    expected = smallest * 2.0**-3 * (1 + torch.rand(40, 64, generator=torch.Generator().manual_seed(3)).double())
    call = Call({"x": torch.zeros(1), "y": torch.zeros(40, 64, dtype=dtype)}, outputs=("y",), axes=("row", "column"))
    reference = Reference(expected, torch.full((40, 64), smallest, dtype=torch.float64), torch.finfo(dtype).eps / 2)
    flushed, kept = torch.zeros(40, 64, dtype=dtype), expected.to(dtype)
    halved = (expected / 2).to(dtype)
    found = [
        criteria(judge.judge(case_of(), call, reference, Returned(output), TOLERANCE))
        for output in (flushed, kept, torch.where(expected > expected.median(), kept, 0.0), halved)
    ]
    assert found[:3] == [[], [], []]
    assert "bias" in found[3]


def test_a_bias_too_small_for_one_case_is_found_over_the_suite() -> None:
    def off(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
        exact = Flash(p=torch.float32)(q.float(), k.float(), v.float(), scale, causal)
        return (exact * (1 + 2**-11 / 25)).to(q.dtype)

    dims = {"heads": 4, "seq": 120, "head_dim": 64}
    wrong = [run(off, case_of(dims, seed=seed)) for seed in range(18)]
    right = [run(Flash(), case_of(dims, seed=seed)) for seed in range(18)]
    assert {r.status for r in wrong} == {"passed"}
    assert suite.findings(right, TOLERANCE) == []
    found = suite.findings(wrong, TOLERANCE)
    assert [f.criterion for f in found] == ["bias"]
    assert "every result is too large" in found[0].message
    mean, ratio = suite.bias(wrong, TOLERANCE)
    assert mean == pytest.approx(1 / 25, rel=0.2)
    assert ratio == pytest.approx(64 / 25, rel=0.2)


def test_suite_bias_of_nothing_is_nothing() -> None:
    assert suite.bias([judge.skipped(case_of(), "why")], TOLERANCE) == (None, None)


# --- unwritten, NaN ---------------------------------------------------------------------------------------------------


def test_unwritten_rows_are_counted_and_located() -> None:
    case = case_of({"batch": 1, "heads": 8, "seq": 128, "head_dim": 64})
    call, output = correct_output(case)
    poison = images.random_bytes(output.nbytes, torch.Generator().manual_seed(3)).view(torch.float16).view(output.shape)
    row = torch.arange(128) % 32
    output[:, :, row >= 8] = poison[:, :, row >= 8]
    result = judged(case, call, output, poison=poison)
    assert result.unwritten == 8 * 96 * 64
    assert result.unwritten_where == "query rows 8..31 of each 32-row tile (24 of 32), in all heads and features"
    assert criteria(result) == ["unwritten"]  # the rows that were written are right
    assert "49152 of 65536 elements (75 %)" in result.failures[0].message


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.float64])
def test_unwritten_elements_are_found_whatever_their_size(dtype: torch.dtype) -> None:
    wanted = torch.arange(64.0, dtype=torch.float64).reshape(4, 16)
    call = Call({"x": torch.zeros(4), "y": torch.empty(4, 16, dtype=dtype)}, ("y",), ("row", "column"))
    poison = images.random_bytes(call.output.nbytes, torch.Generator().manual_seed(3)).view(dtype).view(4, 16)
    output = torch.cat([wanted[:3].to(dtype), poison[3:]])
    reference = Reference(wanted, torch.zeros_like(wanted), 0.0, exact=True)
    result = judge.judge(case_of(), call, reference, Returned(output, poison), TOLERANCE)
    assert (result.unwritten, result.unwritten_where) == (16, "row 3, in all columns")


def test_a_difference_is_told_with_the_digits_that_show_it() -> None:
    wanted = torch.ones(4, 16, dtype=torch.float64)
    call = Call({"x": torch.zeros(4), "y": torch.empty(4, 16)}, ("y",), ("row", "column"))
    reference = Reference(wanted, torch.zeros_like(wanted), 0.0, exact=True)
    output = wanted.float()
    output[1, 2] += 2.0**-23
    (failure,) = judge.judge(case_of(), call, reference, Returned(output), TOLERANCE).failures
    assert "the worst at [1, 2]: 1.00000012 instead of 1, where" in failure.message


def test_a_factor_is_told_with_the_digits_that_tell_it_from_1() -> None:
    """`every element is 1 times what it should be`; `rows …, from 1 to 1`."""
    right, unit = drawn(40, 200).softmax(-1), 2.0**-30
    assert "every element is 1.0000002 times what it should be" in said(right * (1 + 2e-7), right, unit)[0]
    rows = said(right * (1 + 2.0**-23 * (1 + torch.arange(40)[:, None] % 2)), right, unit)[0]
    assert "a factor of their own, from 1.00000012 to 1.00000024, and" in rows
    hardly = right.half().double()
    hardly[2, 3] += 4.0005 * 2.0**-11 * right[2, 3] - (hardly - right)[2, 3]
    assert "1.00012 times the bound" in said(hardly, right, 2.0**-11)[0]


def test_an_output_that_nobody_wrote() -> None:
    call, output = correct_output(case_of())
    poison = torch.full_like(output, 448.0)
    result = judged(case_of(), call, poison.clone(), poison=poison)
    assert result.unwritten == output.numel()
    assert result.unwritten_where == "everywhere"
    assert "did not run" in result.failures[0].message
    swapped = judged(case_of(), call, poison.clone(), poison=poison, inputs_changed=["q: 9 of 9 elements changed"])
    assert swapped.failures[1].message.endswith("it may take its arguments in another order")


def test_zeros_where_memory_was_cleared_need_not_be_unwritten() -> None:
    call, output = correct_output(case_of())
    output[..., :3] = 0.0
    result = judged(case_of(), call, output, poison=torch.zeros_like(output))
    failure = result.failures[criteria(result).index("unwritten")]
    assert "are 0, as the memory was before the call" in failure.message
    assert failure.message.endswith("; not written, or written as 0")


def test_right_values_that_happen_to_be_the_poison_are_written() -> None:
    call, output = correct_output(case_of())
    result = judged(case_of(), call, output, poison=output.clone())
    assert (result.unwritten, result.status) == (0, "passed")


def test_wrong_values_that_happen_to_be_the_poison_are_written() -> None:
    call, right = correct_output(case_of())
    output = right + 1
    poison = images.random_bytes(output.nbytes, torch.Generator().manual_seed(3)).view(torch.float16).view(output.shape)
    poison[0, 0, 0, 0] = output[0, 0, 0, 0]  # chance makes one of 65536
    result = judged(case_of(), call, output, poison=poison)
    assert (result.unwritten, criteria(result)[0]) == (0, "bound")


@pytest.mark.parametrize(("left", "also_wrong", "unwritten"), [(1, 0, 1), (2, 40, 2), (1, 40, 0)])
def test_a_few_elements_that_nobody_wrote(left: int, also_wrong: int, unwritten: int) -> None:
    """Of 41 wrong ones chance makes one hold it in a case of 1600, and a test has 150."""
    call, output = correct_output(case_of())
    output[0, 0, 0, :also_wrong] += 1
    poison = output + 2
    output[0, 1, 2, 3 : 3 + left] = poison[0, 1, 2, 3 : 3 + left]
    result = judged(case_of(), call, output, poison=poison)
    assert (result.unwritten, criteria(result)[0]) == (unwritten, "unwritten" if unwritten else "bound")


def test_so_little_that_a_cancellation_may_make_it_is_told() -> None:
    call, output = correct_output(case_of())
    words = "or its bound does not count a cancellation"
    for off, told in ((2.0**-10, True), (0.25, False)):
        spoilt = output.clone()
        small = (spoilt - 0.0025).abs().argmin()
        spoilt.view(-1)[small] += off
        (first, *_) = judged(case_of(), call, spoilt).failures
        assert (words in first.message) == told, first.message


def test_nan_is_counted_and_located() -> None:
    call, output = correct_output(case_of())
    output[0, 2, 64:96] = math.nan
    output[0, 3, 5, 7] = math.inf
    result = judged(case_of(), call, output)
    assert result.nonfinite == 32 * 64 + 1
    assert result.first_bad_index == [0, 2, 64, 0]
    assert criteria(result) == ["nonfinite"]
    assert "2048 NaN and 1 +inf values" in result.failures[0].message


@pytest.mark.parametrize("of_input", [True, False])
def test_nan_of_an_input_is_said_to_be_handed_on(of_input: bool) -> None:
    x = torch.arange(32.0).reshape(4, 8)
    output = x.clone()
    output[1, 3] = math.nan
    call = Call({"x": output.clone() if of_input else x, "y": torch.empty(4, 8)}, ("y",), ("row", "column"))
    wanted = x.double()
    reference = Reference(wanted, torch.full_like(wanted, 1e-5), 2.0**-24)
    (failure,) = judge.judge(case_of(), call, reference, Returned(output), TOLERANCE).failures
    assert ("NaN of an input that is handed on" in failure.message) == of_input
    assert ("a read past the end of an input" in failure.message) != of_input


def test_rows_of_nan_and_overflow_have_their_causes() -> None:
    call, output = correct_output(case_of())
    output[0, 2, 64:96] = math.nan
    said = judged(case_of(), call, output).failures[0].message
    assert "whole rows are NaN" in said
    assert "a variable or workspace that is used before it is set" in said
    wanted = torch.rand(4, 8).double() + 1
    wanted[:, 5:] = 0.0  # what is masked stays right
    padded = Call({"x": torch.ones(4, 8), "y": torch.empty(4, 8)}, ("y",), ("row", "column"))
    spoilt = wanted.float()
    spoilt[1:3, :5] = math.nan
    reference = Reference(wanted, torch.full_like(wanted, 1e-5), 2.0**-24)
    (failure,) = judge.judge(case_of(), padded, reference, Returned(spoilt), TOLERANCE).failures
    assert "whole rows are NaN" in failure.message
    call, output = correct_output(case_of())
    output[0, 1, 2, 3] = math.inf
    said = judged(case_of(), call, output).failures[0].message
    assert "an overflow: the largest float16 is 6.55e+04; or a variable or workspace that is used before" in said
    output[0, 1, 2, 3:5] = -math.inf
    said = judged(case_of(), call, output).failures[0].message
    assert said.startswith("2 -inf values where")
    assert "; log(0) (a sum of exponentials that underflowed: the maximum was not subtracted), an overflow" in said
    output[0, 1, 2, 7] = math.inf
    said = judged(case_of(), call, output).failures[0].message
    assert said.startswith("1 +inf and 2 -inf values where")
    assert "; an overflow: the largest" in said


def test_what_begins_at_some_length_is_said_once() -> None:
    results = []
    for seq in (63, 64, 512, 600):
        result = judge.skipped(case_of({"batch": 2 if seq == 512 else 1, "heads": 2, "seq": seq, "head_dim": 64}), "")
        result.status = "failed" if seq >= 512 else "passed"
        result.failures = [judge.Failure("nonfinite", "NaN")] if seq >= 512 else []
        results.append(result)
    found = suite.findings(results, TOLERANCE)
    assert len(found) == 1
    assert found[0].message.startswith("NaN or infinity only from seq = 512 on, smaller cases are right")


def test_what_one_family_alone_fails_begins_at_no_length() -> None:
    """Others than the usual one are on few shapes."""
    results = []
    for seq, family in ((63, "normal"), (64, "normal"), (512, "normal"), (600, "offset")):
        result = judge.skipped(case_of({"batch": 1, "heads": 2, "seq": seq, "head_dim": 64}, family=family), "")
        result.status = "passed" if family == "normal" else "failed"
        result.failures = [] if family == "normal" else [judge.Failure("bound", "wrong")]
        results.append(result)
    assert suite.findings(results, TOLERANCE) == []


@pytest.mark.parametrize("share", [1.0, 0.95, 0.5])
def test_a_result_that_an_earlier_call_gave_is_called_remembered(share: float) -> None:
    call_before, before = correct_output(case_of(seed=1))
    call, output = correct_output(case_of(seed=2))
    wrong = before.where(torch.rand(before.shape) < share, -before)
    reference = OPERATOR.reference(call, INPUT)
    made = {"another": (call, output), "earlier": (call_before, before)}
    earlier = {name: (its_call, {"o": Returned(gave)}) for name, (its_call, gave) in made.items()}
    result = judge.judge(case_of(seed=2), call, reference, Returned(wrong), TOLERANCE, earlier=earlier)
    said = "are bit for bit what the call earlier gave there, for other inputs: a result that is remembered"
    assert (said in result.failures[0].message) == (share > 0.9)


def test_what_the_same_inputs_give_with_another_option_is_not_called_remembered() -> None:
    without, before = correct_output(case_of(seed=1))
    call, _ = correct_output(case_of(seed=1, causal=True))
    earlier = {"earlier": (without, {"o": Returned(before)})}
    result = judge.judge(
        *(case_of(seed=1, causal=True), call, OPERATOR.reference(call, INPUT), Returned(before), TOLERANCE),
        operator=OPERATOR,
        earlier=earlier,
    )
    assert "the causal mask is not applied" in result.failures[0].message


def test_zeros_are_not_called_remembered() -> None:
    """An earlier result may have been zero there too, rightly."""
    (another, _), (call, output) = (correct_output(case_of(seed=seed)) for seed in (1, 2))
    row = torch.zeros_like(output, dtype=torch.bool)
    row[0, 0, 5] = True
    zeros, before = output.where(~row, 0.0), output.where(~row, 0.0)
    reference, earlier = OPERATOR.reference(call, INPUT), {"earlier": (another, {"o": Returned(before)})}
    result = judge.judge(case_of(), call, reference, Returned(zeros), TOLERANCE, earlier=earlier)
    assert "bit for bit" not in result.failures[0].message


def test_a_bound_of_negative_zero_lets_nothing_through() -> None:
    wanted = torch.tensor([[-3.0, 2.0], [-1.0, 0.0]], dtype=torch.float64)
    call = Call({"x": wanted.float(), "y": torch.empty(2, 2)}, ("y",), ("row", "column"))
    reference = Reference(wanted, wanted * 0, 0.0, exact=True)
    case = Case("op", "main", {"rows": 2, "cols": 2}, {}, "float32", "normal", 0)
    right = judge.judge(case, call, reference, Returned(wanted.float()), TOLERANCE)
    wrong = judge.judge(case, call, reference, Returned(wanted.float().clamp(min=-2.5)), TOLERANCE)
    assert (right.status, wrong.status) == ("passed", "failed")
    assert "1 of 4 elements" in wrong.failures[0].message


def test_a_reference_that_is_not_finite_is_no_reference() -> None:
    call, output = correct_output(case_of())
    reference = OPERATOR.reference(call, INPUT)
    broken = replace(reference, output=reference.output * math.nan)
    with pytest.raises(TestError, match="reference is not finite although all inputs are"):
        judge.judge(case_of(), call, broken, Returned(output), TOLERANCE)
    wild = replace(call, arguments={**call.arguments, "k": call.tensor("k") * math.inf})
    with pytest.raises(TestError, match="reference is not finite, nor is what `make_call` gives as k"):
        judge.judge(case_of(), wild, broken, Returned(output), TOLERANCE)
    for bound in (reference.bound * math.nan, -reference.bound):  # to which no error could be held
        with pytest.raises(TestError, match="the reference's bound is NaN or negative somewhere"):
            judge.judge(case_of(), call, replace(reference, bound=bound), Returned(output), TOLERANCE)
    with pytest.raises(
        TestError, match=r"reference: output and bound of the Reference have shape .*, and the call's output"
    ):
        judge.judge(case_of(), call, reference, Returned(output[:, :2]), TOLERANCE)


def test_what_is_infinite_by_definition_is_told_apart_and_may_be_left_open() -> None:
    call, output = correct_output(case_of())
    reference = OPERATOR.reference(call, INPUT)
    expected, bound = reference.output.clone(), reference.bound.clone()
    expected[0, 0, 0, 0] = -math.inf
    with pytest.raises(
        TestError, match=r"the reference is infinite in 1 of .* although all inputs are finite"
    ) as caught:
        judge.judge(case_of(), call, replace(reference, output=expected), Returned(output), TOLERANCE)
    assert "say Reference(…, nonfinite=True)" in str(caught.value.hint)
    expected[0, 0, 0, 0], bound[0, 0, 0, 0], output[0, 0, 0, 0] = 0, math.inf, -math.inf
    left_open = replace(reference, output=expected, bound=bound)
    assert judge.judge(case_of(), call, left_open, Returned(output), TOLERANCE).status == "passed"


def rows_left_open(open_value: float = 0.0) -> tuple[Call, Reference]:
    """64 rows of float16 of which the first 8 columns are nobody's business."""
    expected = torch.randn(64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected[:, :8] = open_value
    bound = expected.abs() * 2.0**-7 + 2.0**-20
    bound[:, :8] = math.inf
    call = Call({"x": expected, "y": torch.empty(64, 64, dtype=torch.float16)}, ("y",), ("row", "column"))
    return call, Reference(expected, bound, 2.0**-11)


@pytest.mark.parametrize("open_value", [0.0, -60000.0])
def test_where_nothing_is_demanded_nothing_is_judged_and_nothing_hides_the_rest(open_value: float) -> None:
    call, reference = rows_left_open(open_value)
    right = reference.output.to(torch.float16)
    poison = torch.randint(-30000, 30000, (64, 64), generator=torch.Generator().manual_seed(1), dtype=torch.int16)
    for left in (torch.full((64, 8), 5.0), torch.full((64, 8), math.nan), poison.view(torch.float16)[:, :8]):
        output = right.clone()
        output[:, :8] = left
        held = judge.judge(case_of(), call, reference, Returned(output, poison.view(torch.float16)), TOLERANCE)
        assert (held.status, held.unwritten) == ("passed", 0)
        output[3, 20:] = poison.view(torch.float16)[3, 20:]
        held = judge.judge(case_of(), call, reference, Returned(output, poison.view(torch.float16)), TOLERANCE)
        assert (held.status, held.unwritten) == ("failed", 44)
    coarse = right.to(torch.bfloat16).to(torch.float16)  # within the bound, and not within the declared roundoff
    assert [f.criterion for f in judge.judge(case_of(), call, reference, Returned(coarse), TOLERANCE).failures] == [
        "rms"
    ]


def test_what_is_left_open_gives_no_room_to_the_rest() -> None:
    accumulation = torch.full((4, 8), 1e-3, dtype=torch.float64)
    output, unit = torch.ones(4, 8, dtype=torch.float64), units(Precision("float32"), torch.float32)
    closed = accumulation_floors(output[:, 2:], accumulation[:, 2:], unit, accumulation[:, 2:])
    accumulation[:, :2], output[:, :2] = math.inf, -6e4
    for found, alone in zip(accumulation_floors(output, accumulation, unit, accumulation), closed, strict=True):
        assert 0 < found <= alone * 1.001


@pytest.mark.parametrize("size", [1.0, 1e-300, 1e-170, 1e160, 1e300])
@pytest.mark.parametrize("outlier", [1.0, 1e200])
def test_float64_is_judged_where_squares_are_no_numbers(size: float, outlier: float) -> None:
    expected = torch.randn(64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * size
    call = Call({"x": expected, "y": torch.empty_like(expected)}, ("y",), ("row", "column"))
    reference = Reference(expected, expected.abs() * 2.0**-40, 2.0**-53)
    assert judge.judge(case_of(), call, reference, Returned(expected.clone()), TOLERANCE).status == "passed"
    output = expected * (1 + 2.0**-41)
    output[0, 0] *= outlier if size * outlier < 1e300 else 1.0
    held = judge.judge(case_of(), call, reference, Returned(output), TOLERANCE)
    assert "rms" in {failure.criterion for failure in held.failures}
    assert all(math.isfinite(figure or 0) for figure in (held.rms_error, held.rms_ratio, held.bias, held.bias_ratio))


# --- images -----------------------------------------------------------------------------------------------------------


def write_back(
    layout: images.Layout, output: torch.Tensor, spoil: Callable[[str, torch.Tensor], None] | None = None
) -> None:
    """What a worker does: read each image, write the output, hand everything over."""
    for name, image in layout.images.items():
        raw = torch.frombuffer(bytearray(image.path.read_bytes()), dtype=torch.uint8)
        if name in layout.call.outputs:
            image.elements(raw).copy_(output)
        if spoil:
            spoil(name, raw)
        handed_over(image.path.parent, image.path).write_bytes(raw.numpy().tobytes())


@pytest.mark.parametrize("layout_name", ["bhsd", "bshd"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_images_carry_a_call_there_and_back(tmp_path: Path, layout_name: str, dtype: str) -> None:
    case = case_of(layout=layout_name, dtype=dtype)
    call, output = correct_output(case)
    layout = images.layout_images(call, tmp_path)
    spec = layout.spec
    assert list(spec) == ["q", "k", "v", "o", "scale", "causal"]
    assert spec["q"]["dtype"] == dtype
    assert spec["q"]["strides"] == list(call.tensor("q").stride())
    assert spec["scale"] == call.scalar("scale")
    raw = torch.frombuffer(bytearray(Path(spec["k"]["image"]).read_bytes()), dtype=torch.uint8)
    assert len(raw) == 2 * BAND_BYTES + call.tensor("k").nbytes
    band = raw[:BAND_BYTES].view(call.tensor("k").dtype)
    assert bool(torch.isnan(band).all())
    assert len(band.view(torch.uint8).unique()) > 64  # NaNs of many kinds, so that a store of NaN shows as well
    write_back(layout, output)
    returned = images.read_back(layout, tmp_path)["o"]
    assert torch.equal(returned.output, output)
    assert returned.output.stride() == call.output.stride()
    assert judged(case, call, returned.output, poison=returned.poison).failures == []
    assert (returned.band_damage, returned.inputs_changed) == ([], [])


def test_poison_is_fresh_every_time(tmp_path: Path) -> None:
    call, _ = correct_output(case_of())
    first, second = (images.layout_images(call, tmp_path).poison("o").view(torch.int16) for _ in range(2))
    assert float((first == second).float().mean()) < 1e-3


def test_a_write_past_the_end_is_caught(tmp_path: Path) -> None:
    call, output = correct_output(case_of())
    layout = images.layout_images(call, tmp_path)
    write_back(
        layout, output, lambda name, raw: raw[-BAND_BYTES : -BAND_BYTES + 6].bitwise_not_() if name == "o" else None
    )
    returned = images.read_back(layout, tmp_path)["o"]
    result = judged(case_of(), call, returned.output, band_damage=returned.band_damage)
    assert criteria(result) == ["guard_bands"]
    assert "o: " in result.band_damage[0]
    assert "written after the buffer, the nearest 1 element past the end, as far as 3" in result.band_damage[0]
    assert f"byte offset {output.nbytes} " in result.band_damage[0]


def test_a_write_before_the_beginning_of_another_buffer_is_caught(tmp_path: Path) -> None:
    call, output = correct_output(case_of())
    layout = images.layout_images(call, tmp_path)
    write_back(
        layout, output, lambda name, raw: raw[BAND_BYTES - 4 : BAND_BYTES].bitwise_not_() if name == "k" else None
    )
    damage = images.read_back(layout, tmp_path)["o"].band_damage
    assert len(damage) == 1
    assert damage[0].startswith("k: 4 bytes written before the buffer, the nearest 1 element before the beginning")


def test_a_changed_input_is_caught(tmp_path: Path) -> None:
    call, output = correct_output(case_of())
    layout = images.layout_images(call, tmp_path)

    def spoil(name: str, raw: torch.Tensor) -> None:
        if name == "v":
            layout.images["v"].elements(raw)[0, 1, 2, 3:5] += 1

    write_back(layout, output, spoil)
    returned = images.read_back(layout, tmp_path)["o"]
    assert returned.inputs_changed == ["v: 2 of 25600 elements changed, the first at [0, 1, 2, 3]"]
    assert returned.band_damage == []
    result = judged(case_of(), call, returned.output, inputs_changed=returned.inputs_changed)
    assert criteria(result) == ["inputs"]


def test_gaps_of_a_view_are_guarded(tmp_path: Path) -> None:
    wide = torch.randn(6, 40)
    call = Call({"x": wide[:, :32], "y": torch.empty(6, 40)[:, :32]}, ("y",), ("row", "column"))
    layout = images.layout_images(call, tmp_path)

    def spoil(name: str, raw: torch.Tensor) -> None:
        if name == "y":
            raw[BAND_BYTES + 4 * (2 * 40 + 35)] ^= 255

    write_back(layout, wide[:, :32], spoil)
    returned = images.read_back(layout, tmp_path)["y"]
    assert torch.equal(returned.output, wide[:, :32])
    assert returned.inputs_changed == []
    assert returned.band_damage == ["y: 1 bytes written between the rows of the view, the first at byte offset 460"]
    assert returned.between


def test_integer_inputs_have_random_bands(tmp_path: Path) -> None:
    case = Case("qkt", "t", {"heads": 2, "seq": 5, "head_dim": 16}, {}, "uint8")
    call = qkt.OPERATOR.make_call(case, judge.generator(case))
    layout = images.layout_images(call, tmp_path)
    assert len(layout.images["q"].raw[:BAND_BYTES].unique()) > 200


def test_a_missing_or_short_image_is_the_workers_fault(tmp_path: Path) -> None:
    call, output = correct_output(case_of())
    layout = images.layout_images(call, tmp_path)
    with pytest.raises(TestError, match="handed over no image"):
        images.read_back(layout, tmp_path)
    write_back(layout, output)
    (handed_over(tmp_path, layout.images["v"].path)).write_bytes(b"x")
    with pytest.raises(TestError, match="1 bytes instead of"):
        images.read_back(layout, tmp_path)


@pytest.mark.parametrize(
    ("put", "words"), [("link", "no image"), ("pipe", "no plain file"), ("folder", "no image|plain")]
)
def test_what_lies_in_an_images_place_is_not_followed(tmp_path: Path, put: str, words: str) -> None:
    """A link would lead the judge to another file, and a pipe would have it wait for ever."""
    call, output = correct_output(case_of())
    layout = images.layout_images(call, tmp_path)
    write_back(layout, output)
    path = handed_over(tmp_path, layout.images["v"].path)
    path.rename(tmp_path / "elsewhere")
    {"link": lambda: path.symlink_to("elsewhere"), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[put]()
    with pytest.raises(TestError, match=words):
        images.read_back(layout, tmp_path)


def test_a_last_dimension_of_one_has_whatever_stride_torch_says(tmp_path: Path) -> None:
    column = torch.randn(1, 32).T.contiguous()
    assert (column.is_contiguous(), column.stride(-1)) == (True, 32)
    call = Call({"x": column, "y": torch.empty(32, 1)}, ("y",), ("row", "column"))
    layout = images.layout_images(call, tmp_path)
    assert layout.spec["x"]["strides"] == layout.spec["y"]["strides"] == [1, 1]
    assert layout.images["x"].elements(layout.images["x"].raw).equal(column)


def test_elements_lie_apart_in_a_tensor_that_is_named_for_it_alone(tmp_path: Path) -> None:
    apart = torch.arange(12.0).reshape(2, 6)[:, ::2]
    call = Call({"x": torch.ones(2, 3), "y": apart}, ("y",), ("row", "column"))
    with pytest.raises(TestError, match="y has stride 2 along its last dimension, where every argument must have 1"):
        images.layout_images(call, tmp_path / "0", spaced=["x"])
    layout = images.layout_images(call, tmp_path / "1", spaced=["y"])
    for name, image in layout.images.items():
        raw = image.raw.clone()
        if name == "y":
            image.elements(raw).copy_(apart)
            raw[image.offset + 4] ^= 1  # of the first gap
        handed_over(tmp_path / "1", image.path).write_bytes(raw.numpy().tobytes())
    returned = images.read_back(layout, tmp_path / "1")["y"]
    assert torch.equal(returned.output, apart)
    assert returned.band_damage == ["y: 1 bytes written between the elements of the view, the first at byte offset 4"]


def test_images_are_not_written_through_a_link(tmp_path: Path) -> None:
    call, _ = correct_output(case_of())
    (tmp_path / "v.img").symlink_to("record.json")
    with pytest.raises(WorkerReplyError, match=r"v\.img: a link was put where this file is to be written"):
        images.layout_images(call, tmp_path)
    assert not (tmp_path / "record.json").exists()


# --- likely causes ----------------------------------------------------------------------------------------------------


def said(
    output: torch.Tensor, expected: torch.Tensor, unit: float = 0.0, poison: torch.Tensor | None = None, **inputs: Any
) -> list[str]:
    """What is said of a result whose elements may be off by four units (and 1e-12), and its RMS by 1.5 units."""
    call = Call({**inputs, "y": output}, ("y",), ("head", "row", "column")[-output.dim() :])
    reference = Reference(expected, 4 * unit * expected.abs() + (1e-12 if unit else 0.0), unit, rms_floor=unit)
    result = judge.judge(Case("c", "t", {}, {}, "float32"), call, reference, Returned(output, poison), TOLERANCE)
    return [failure.message for failure in result.failures]


def drawn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_constant_that_is_right_nearly_everywhere_is_no_cause() -> None:
    """Zeros with one number missing among them; a mean of 1/64 that comes out a little large everywhere."""
    sparse = torch.zeros(7, 37, dtype=torch.float64)
    sparse[3, 5] = 2.0
    assert "every element is 0" not in " ".join(said(torch.zeros(7, 37), sparse, 2**-24))
    mean = torch.full((8, 64), 1 / 64, dtype=torch.float64)
    assert "every element is 0.015625" not in " ".join(said((mean * (1 + 2**-21)).float(), mean, 2**-24))
    assert "every element is 0: nothing is accumulated" in said(torch.zeros(7, 37), drawn(7, 37), 2**-24)[0]


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int64])
def test_results_that_are_added_to_what_lay_in_memory_are_told_from_unwritten_ones(kind: torch.dtype) -> None:
    expected = (3 * drawn(60, 40)).abs().round()
    right = expected.to(kind)
    poison = images.random_bytes(right.nbytes, torch.Generator().manual_seed(3)).view(kind).view(60, 40)
    unit = torch.finfo(kind).eps / 2 if kind.is_floating_point else 0.0
    added = said(poison + right, expected, unit, poison)
    assert all("added to what the memory held before" in m for m in added if "RMS" not in m and "average" not in m)
    assert "still hold" in added[0]
    partly = said(torch.where(torch.arange(40) % 8 < 5, right, poison), expected, unit, poison)
    assert "what is stored does not cover the whole output" in partly[0]
    if kind.is_floating_point:
        assert "added to what the memory held before" in said((poison + right).relu(), expected, unit, poison)[0]
    beside = said(torch.where(torch.arange(40) % 8 < 5, right + 1, poison), expected, unit, poison)
    assert not any("added to what" in message for message in beside)


@pytest.mark.parametrize(("bits", "signed"), [(8, False), (16, False), (16, True), (32, True)])
def test_a_counter_that_wraps_is_named_with_its_bits(bits: int, signed: bool) -> None:
    wanted = torch.zeros(256, dtype=torch.int64)
    wanted[200], wanted[7] = 2**bits - 100 if signed else 2**bits + 34464 % 2**bits, 3
    half = 2 ** (bits - 1) * signed
    (message,) = said((wanted + half) % 2**bits - half, wanted.double())
    kept = f"off by multiples of 2^{bits}: it is kept in {bits} bits {'with' if signed else 'without'} a sign"
    assert kept in message
    assert "every element" not in message
    wanted[7], other = 2**bits - 100, wanted.clone()
    other[7] = 0
    assert not any("wraps" in m for m in said(other, wanted.double()))


def test_an_index_of_half_the_width_is_named() -> None:
    expected = torch.arange(40)
    poison = images.random_bytes(320, torch.Generator().manual_seed(3)).view(torch.int64)
    (message,) = said((poison >> 32 << 32) + expected, expected.double(), poison=poison)
    assert "only the low 32 bits of an element are written" in message


def test_an_index_into_all_rows_is_no_wrong_scale() -> None:
    """The largest of each row of a unit matrix: as an index into all of it 38 times what it should be."""
    right = torch.arange(37)
    (message,) = said(right + 37 * right, right.double(), x=torch.eye(37))
    assert "off by 37 times its place: an index into all of x" in message
    assert "a wrong scale" in said(right * 38, right.double(), x=torch.ones(37, 5))[0]


def test_of_few_elements_nothing_is_said_that_holds_for_every_one() -> None:
    expected = drawn(256).abs() * (torch.arange(256) == 200)
    unit = 2.0**-24
    for output, right in ((expected / 3, expected), (drawn(1) + 1, drawn(1)), (drawn(2, 1) + 0.5, drawn(2, 1))):
        assert not any("every element" in m for m in said(output.float(), right, unit))
    right = drawn(8, 8)
    assert "+0.5 is added to every element" in said((right + 0.5).float(), right, unit)[0]
    mostly = right + 0.5 * (torch.arange(8) > 0)
    assert not any("every element" in m for m in said(mostly.float(), right, unit))


@pytest.mark.parametrize(
    ("kind", "words"), [(torch.uint8, "a zero point that encoder"), (torch.float32, "a term that")]
)
def test_a_zero_point_is_blamed_where_inputs_are_codes(kind: torch.dtype, words: str) -> None:
    right = drawn(3, 20, 30)
    amounts = torch.tensor([0.5, -0.3, 0.7])[:, None, None]
    assert f": {words}" in said((right + 0.5).float(), right, 2.0**-24, x=torch.zeros(3, dtype=kind))[0]
    assert (
        f": {words}" in said((right + amounts)[None, 0].float(), right[None, 0], 2.0**-24, x=torch.zeros(3).to(kind))[0]
    )


def test_what_is_clamped_is_told_with_its_limits() -> None:
    right, unit = drawn(20, 30), 2.0**-24
    for clamped, words in (
        (right.clamp(-1, 1), "above 1 or below -1"),
        (right.clamp(max=1.5), "above 1.5"),
        (right.clamp(min=0), "below 0"),
    ):
        assert f"Likely cause: what should be {words} is clamped there" in said(clamped.float(), right, unit)[0]
    some = torch.arange(30) < 15
    of_positive = right.abs()
    for other, expected in (
        (right.clamp(max=1.5).where(some, right), right),  # right values lie beyond it
        (right * some, right),
        (of_positive * some, of_positive),
        (right.abs(), right),
        (right.clamp(-1, 1) * 1.5, right),
    ):
        assert not any("clamped" in message for message in said(other.float(), expected, unit))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_truncation_is_seen_beside_elements_that_cancel_and_such_that_stay(kind: torch.dtype) -> None:
    """Rows of constants, whose results are numbers of the type, and one result that float32 has not quite."""
    expected = drawn(48, 64)
    expected[::3] = expected[::3].to(kind).double()
    near = expected.to(kind)
    raw = near.view(torch.int16)
    raw -= (near.double().abs() > expected.abs()).short()
    expected[1, 1] = near[1, 1].double() * (1 - 2.0**-6)
    assert "truncated to" in said(near, expected, torch.finfo(kind).eps / 2)[0]
    noise = (expected * (1 + drawn(48, 64, seed=2) * torch.finfo(kind).eps)).to(kind)
    assert not any("truncated" in m for m in said(noise, expected, torch.finfo(kind).eps / 2))


def test_single_elements_are_a_matter_of_place_and_not_of_precision() -> None:
    right, unit = drawn(17, 1001), 2.0**-24
    last, within, column = right.float(), right.float(), right.float()
    last[-1, -1] *= 1.001
    within[3, 5] *= 1.001
    column[:, -2:] *= 1.001
    alone = "all others are right, and these are in the last"
    assert f"{alone} row and the last column: a tail" in said(last, right, unit)[0]
    assert f"{alone} 2 columns: a tail" in said(column, right, unit)[0]
    assert "these few places or values are treated in another way" in said(within, right, unit)[0]
    noisy = (right * (1 + drawn(17, 1001, seed=2) * 4 * unit)).float()
    noisy[-1, -1] *= 1.001
    assert not any("all others" in message for message in said(noisy, right, unit))
    whole = torch.arange(40)
    assert f"{alone} column: a tail" in said(whole + (whole == 39), whole.double())[0]
    ranks = torch.arange(12).view(4, 3).repeat(8, 1)  # a tail has nearly all of its elements wrong
    assert not any(alone in message for message in said(ranks + (ranks == 11), ranks.double()))


def test_whole_numbers_that_are_off_by_about_as_much_are_not_off_by_one_number() -> None:
    """Products that saturated are too small by 137 to 184 each; a zero point is one number."""
    right = 5_000_000 + torch.randint(0, 1000, (64, 64), generator=torch.Generator().manual_seed(0))
    spread = torch.randint(137, 185, (64, 64), generator=torch.Generator().manual_seed(1))
    assert "is added to every element" not in said(right - spread, right.double())[0]
    assert "-161 is added to every element" in said(right - 161, right.double())[0]


def test_the_worst_is_named_where_no_error_is_allowed() -> None:
    right = torch.arange(64)
    wrong = right + 1 * (right > 3)
    wrong[40] = 9000
    assert "the worst at [40]: 9000 instead of 40" in said(wrong, right.double())[0]


def test_rows_that_are_off_by_one_number_each_are_told_from_noise() -> None:
    """A softmax whose sums miss a term; constant rows less a mean that is a little off, times weights."""
    right, unit = drawn(40, 200).softmax(-1), 2.0**-24
    factors, weights = 1 + 1e-3 * drawn(40, 1).abs(), drawn(200, seed=2)
    (message, *_) = said((right * factors).float(), right, unit)
    assert f"rows are off by a factor of their own, from {factors.min():.6g} to {factors.max():.6g}" in message
    in_half = said((right * (1 + 20 * (factors - 1))).half(), right, 2.0**-11)
    assert "rows are off by a factor" in in_half[0]
    means = 1e-6 * drawn(40, 1) * (torch.arange(40) % 3 == 0)[:, None]
    assert "one number a row is off" in said((drawn(40, 200) + means * weights).float(), drawn(40, 200), unit)[0]
    for noise in (
        drawn(40, 200, seed=3),
        drawn(40, 200, seed=3).abs() + 0.5,
        weights * (torch.arange(40) == 3)[:, None],
    ):
        wrong = said((right * (1 + 1e-6 * noise)).float(), right, unit)
        assert wrong
        assert not any("rows" in message.split("Likely cause: ")[1] for message in wrong if "Likely" in message)


@pytest.mark.parametrize(
    ("kind", "words"), [(torch.bfloat16, "numbers of bfloat16"), (torch.float16, "numbers of float16")]
)
def test_a_coarser_type_is_asserted_of_results_that_are_its_numbers(kind: torch.dtype, words: str) -> None:
    right = drawn(40, 200)
    assert words in said(right.to(kind).float(), right, 2.0**-24)[0]
    coarse = said((right * (1 + drawn(40, 200, seed=2) * 2.0**-18)).float(), right, 2.0**-24)
    assert any("coarser type" in m and "or a function is approximated" in m for m in coarse)
    one_row = right * (1 + drawn(40, 200, seed=2) * 2.0**-18 * (torch.arange(40) == 7)[:, None])
    assert not any("coarser type" in m for m in said(one_row.float(), right, 2.0**-24))
    assert not any("numbers of" in m for m in said((right.round() + 8).float(), right, 2.0**-24))


def test_what_the_right_result_explains_is_no_cause() -> None:
    """Rows that differ by their sign, times weights of other columns; means of magnitudes beside means."""
    unit, signs, weights = 2.0**-24, 1.0 - 2 * (torch.arange(40) % 2)[:, None], drawn(200)
    wrong = said((signs * weights.roll(1)).float(), signs * weights, unit)
    assert wrong
    assert not any("Likely cause" in message for message in wrong)
    shifted = drawn(40, 200) + 3 + 0.75 * drawn(40, 200, seed=2)
    assert not any("is added" in message for message in said(shifted.float(), drawn(40, 200), unit))


def test_one_factor_is_told_from_one_a_head_and_one_a_row() -> None:
    right, unit = drawn(4, 20, 30), 2.0**-24
    factors = torch.tensor([1.0, 0.5, 1.25, 0.25])[:, None, None]
    heads = said((right * factors).float(), right, unit)[0]
    assert heads.endswith(
        "each head is off by a factor of its own, from 0.25 to 1.25: its scale is wrong, or another head's"
    )
    nearly = said((right * (2 + 4e-5 * drawn(4, 20, 1))).float(), right, unit)[0]
    assert "every element is about 1.9999" in nearly
    single = right * (torch.arange(30) == 3)
    assert (
        "each of the 80 elements that are not 0 is 0.3 times what it should be"
        in said((0.3 * single).float(), single, unit)[0]
    )


CODES = ({"heads": 2, "seq": 8, "head_dim": 32}, "uint8")


def suspected(family: str, taken: Callable[[Call], torch.Tensor]) -> str:
    """What is said of scores that are computed in another way."""
    case = Case("qkt", "t", CODES[0], {"scaled": False}, CODES[1], family)
    call = qkt.OPERATOR.make_call(case, judge.generator(case))
    reference = qkt.OPERATOR.reference(call, Precision(output="float32"))
    output = taken(call).float()
    result = judge.judge(case, call, reference, Returned(output), TOLERANCE, operator=qkt.OPERATOR)
    return result.failures[0].message


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.mT


def decoded(call: Call, name: str, scale: str | None = None) -> torch.Tensor:
    return simfp8.values(call.tensor(name), call.tensor(f"{scale or name}_scale"))


def test_a_scale_that_is_missing_or_anothers_is_that_of_q_or_of_k() -> None:
    assert suspected("normal", lambda c: scores(decoded(c, "q"), decoded(c, "k", "q"))).endswith(
        "Likely cause: the scale of Q is taken for K too"
    )
    missing = "the scale of {} is not applied"
    bare = suspected(
        "normal", lambda c: scores(decoded(c, "q"), decoded(c, "k") / c.tensor("k_scale")[..., None, None])
    )
    assert bare.endswith(f"Likely cause: {missing.format('K')}")
    either = suspected(
        "extremes", lambda c: scores(decoded(c, "q"), decoded(c, "k") / c.tensor("k_scale")[..., None, None])
    )
    assert either.endswith(f"Likely cause: {missing.format('Q')}, or {missing.format('K')}")


@pytest.mark.parametrize(
    ("kernel", "dims", "told"),
    [
        (Flash(scale_by=1 / 8), {}, "the scores are scaled by 1/√d twice"),
        (Flash(skip_tile=3), {}, "the keys after the last whole tile of 16 or 32 or 64 (192..199) are skipped"),
        (Flash(skip_tile=1), {"seq": 128}, "the last tile of 64 keys is skipped"),
    ],
)
def test_known_faults_that_come_to_the_same_are_told_once(kernel: Flash, dims: dict[str, int], told: str) -> None:
    """1/√d twice is 1/d, and the last tiles of 16, 32 and 64 of 200 keys are the same eight."""
    result = run(kernel, case_of({"batch": 1, "heads": 2, "seq": 200, "head_dim": 64} | dims))
    assert result.failures[0].message.endswith(f"Likely cause: {told}")


def test_a_known_fault_that_would_make_right_rows_wrong_is_not_all_there_is_to_it() -> None:
    kept = (torch.arange(8) != 3)[:, None]
    one_row = suspected("normal", lambda c: scores(decoded(c, "q") * kept, decoded(c, "k")))
    assert "nothing is accumulated: the result is zero (that fits the rows that are wrong; others are right" in one_row
    every = suspected("normal", lambda c: scores(decoded(c, "q") * 0, decoded(c, "k")))
    assert every.endswith("nothing is accumulated: the result is zero")
    little = suspected("normal", lambda c: scores(decoded(c, "q") * 0, decoded(c, "k")) + 1e-25)
    assert "the result is zero" not in little


# --- words and figures ------------------------------------------------------------------------------------------------


def mask_of(shape: tuple[int, ...], *index: Any) -> torch.Tensor:
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[index] = True
    return mask


ROW = torch.arange(100)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.ones(2, 8, 100, 64, dtype=torch.bool), "everywhere"),
        (mask_of((1, 8, 100, 64), 0, 3, 5, 7), "head 3, query row 5, feature 7"),
        (mask_of((1, 8, 100, 64), slice(None), slice(2, 4)), "heads 2..3, in all query rows and features"),
        (
            mask_of((2, 8, 100, 64), slice(None), slice(None), slice(96, 100)),
            "query rows 96..99 (the last 4 of 100), in all batches, heads and features",
        ),
        (
            mask_of((1, 1, 100, 64), slice(None), slice(None), ROW % 16 >= 8),
            "query rows 8..15 of each 16-row tile (8 of 16), in all features",
        ),
        (
            mask_of((1, 1, 100, 64), slice(None), slice(None), ROW % 2 == 1),
            "query rows 1 of each 2-row tile (1 of 2), in all features",
        ),
        (
            mask_of((1, 1, 100, 64), 0, 0, torch.tensor([3, 50, 71])),
            "query rows 3, 50, 71, in all features",
        ),
    ],
)
def test_places_in_words(mask: torch.Tensor, words: str) -> None:
    assert findings.describe_indices(mask, OPERATOR.axes) == words


@pytest.mark.parametrize(
    ("size", "period", "words"),
    [
        (64, 28, "62 of 64 columns from 0 to 63"),  # by chance: all but two
        (64, 32, "columns 0..26 of each 32-column tile (27 of 32)"),
        (84, 28, "columns 0..26 of each 28-column tile (27 of 28)"),
    ],
)
def test_what_repeats_twice_and_a_bit_repeats_by_chance(size: int, period: int, words: str) -> None:
    mask = torch.arange(size) % period < 27
    assert findings.describe_indices(mask, ("column",)) == words


def test_places_scattered_over_everything_are_a_sentence() -> None:
    mask = torch.eye(9, dtype=torch.bool)
    said = findings.describe_indices(mask, ("row", "column"))
    assert said == "scattered over all rows and columns (11.1 % of these)"


def test_scattered_places_say_so() -> None:
    mask = torch.eye(10, dtype=torch.bool)
    mask[9, 9] = False
    assert (
        findings.describe_indices(mask, ("row", "column")) == "scattered over rows 0..8, columns 0..8 (11.1 % of these)"
    )
    assert findings.describe_indices(mask, ("query", "day")).startswith("scattered over queries 0..8, days 0..8")


def test_places_of_a_long_axis_are_told_at_once() -> None:
    """Comparing each period with all places took half a minute for these, and hours for a million."""
    mask = torch.ones(1 << 20, dtype=torch.bool)
    mask[[77, 1 << 19]] = False
    started = time.monotonic()
    assert (
        findings.describe_indices(mask, ("element",))
        == f"{(1 << 20) - 2} of {1 << 20} elements from 0 to {(1 << 20) - 1}"
    )
    mask[:] = torch.arange(1 << 20) % 32 < 24
    assert findings.describe_indices(mask, ("element",)) == "elements 0..23 of each 32-element tile (24 of 32)"
    assert time.monotonic() - started < 20


def test_histogram_counts_every_element_once() -> None:
    histogram = judge.ErrorHistogram()
    histogram.add(torch.tensor([0.0, 1e-9, 0.5, 0.999, 1.001, 1e9, math.nan, math.inf]))
    record = histogram.record()
    assert len(record.edges) == len(record.counts) + 1
    assert record.edges == sorted(record.edges)
    assert sum(record.counts) == 8
    over = record.edges.index(1.0)
    assert sum(record.counts[:over]) == 4
    assert record.counts[-1] == 3


def test_the_histogram_tells_what_is_over_the_bound_to_the_last_digit() -> None:
    histogram = judge.ErrorHistogram()
    histogram.add(torch.tensor([1 - 1e-12, 1 - 1e-7, 1 - 3e-7], dtype=torch.float64))
    assert int(histogram.counts[: judge.FIRST_OVER].sum()) == 3
    histogram.add(torch.tensor([1.0, 1 + 1e-12, 1 + 1e-7], dtype=torch.float64))
    assert int(histogram.counts[judge.FIRST_OVER :].sum()) == 3


def test_a_case_gives_figures_and_fills_the_histogram() -> None:
    case = case_of()
    call, output = correct_output(case)
    histogram = judge.ErrorHistogram()
    reference = OPERATOR.reference(call, INPUT)
    result = judge.judge(case, call, reference, Returned(output), TOLERANCE, histogram=histogram)
    assert int(histogram.counts.sum()) == output.numel()
    assert result.id == case.id
    assert 0 < (result.max_bound_ratio or 0) < 1
    # What rounding costs is two thirds of the limit, less the room for chance that so many rows have.
    room = judge._few_rows(findings.Findings(call, reference, Returned(output)))
    assert 1 < room < 1.2
    assert (result.rms_ratio or 0) * room == pytest.approx(2 / 3, abs=0.01)
    assert result.bias == 0


def test_the_room_for_chance_is_that_of_the_rows_with_the_largest_values() -> None:
    def room(rows: int, dominant: bool = False) -> float:
        call, output = correct_output(case_of({"heads": 1, "seq": rows, "head_dim": 64}))
        ones = torch.ones_like(output, dtype=torch.float64)
        if dominant:
            ones[0, 0, 0] = 1e6
        reference = dataclasses.replace(OPERATOR.reference(call, INPUT), output=ones)
        return judge._few_rows(findings.Findings(call, reference, Returned(output)))

    alone = (1 + judge.STANDARD_ERRORS * judge.ROUNDING_SPREAD**0.5) ** 0.5
    assert room(1) == pytest.approx(alone)
    assert room(400, dominant=True) == pytest.approx(alone, rel=1e-3)
    assert room(400) == pytest.approx((1 + judge.STANDARD_ERRORS * (judge.ROUNDING_SPREAD / 400) ** 0.5) ** 0.5)


def test_the_random_numbers_of_a_case_do_not_depend_on_its_options() -> None:
    plain, strided = (judge.generator(case_of(causal=c, layout=o)) for c, o in ((False, "bhsd"), (True, "bshd")))
    assert plain.initial_seed() == strided.initial_seed()
    assert judge.generator(case_of(seed=1)).initial_seed() != plain.initial_seed()


def test_resolved_precision() -> None:
    assert Precision("input", "input").of("bfloat16") == Precision("bfloat16", "bfloat16", "float32")
    assert Precision("float32").of("uint8") == Precision("float32")


def test_an_output_of_zeros_is_judged_by_the_bound_alone() -> None:
    case = case_of({"heads": 1, "seq": 4, "head_dim": 8})
    call = OPERATOR.make_call(case, judge.generator(case))
    zero = torch.zeros(call.output.shape, dtype=torch.float64)
    result = judge.judge(case, call, Reference(zero, zero + 2**-24, 2**-11), Returned(zero.half()), TOLERANCE)
    assert (result.status, result.rms_ratio, result.bias) == ("passed", None, None)


def of_whole_numbers(output: torch.Tensor, expected: torch.Tensor, bound: float) -> CaseResult:
    """A result of any type, judged against a reference with the same bound everywhere."""
    call = Call({"y": output}, ("y",), ("row", "column"))
    reference = Reference(expected, torch.full_like(expected, bound), 0.0)
    return judge.judge(Case("codes", "t", {}, {}, "float32"), call, reference, Returned(output), TOLERANCE)


@pytest.mark.parametrize(
    ("value", "bound", "told"),
    [
        (0.25, 2.0**-149, "0.25 instead of 0, an error of 0.25, where at most 1.4e-45 is allowed"),
        (0.25, 2.0**-12, "0.25 instead of 0, an error of 0.25, 1.02e+03 times the bound of 0.000244"),
    ],
)
def test_an_error_where_next_to_nothing_is_allowed_is_told_without_a_ratio(
    value: float, bound: float, told: str
) -> None:
    """6.99e+46 times a bound is a number that nobody can do anything with."""
    expected = torch.zeros(4, 100, dtype=torch.float64)
    output = expected.float()
    output[2, 7] = value
    (failure,) = of_whole_numbers(output, expected, bound).failures
    assert told in failure.message


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_whole_numbers_are_judged_by_their_bound_alone(kind: torch.dtype) -> None:
    exact = torch.linspace(3, 100, 400, dtype=torch.float64).reshape(4, 100)
    nearest = exact.round().to(kind)
    assert of_whole_numbers(nearest, exact, 0.5).failures == []
    assert of_whole_numbers(nearest, nearest.double(), 0.0).failures == []
    cut = of_whole_numbers(exact.to(kind), exact, 0.5)
    assert criteria(cut) == ["bound"]
    assert f"results are truncated to {str(kind)[6:]}, not rounded" in cut.failures[0].message
    off = nearest.clone()
    off[2, 7] += 1
    (failure,) = of_whole_numbers(off, nearest.double(), 0.0).failures
    assert failure.message.endswith("an error of 1, and the bound there is 0")
    clamped = of_whole_numbers(torch.full_like(nearest, torch.iinfo(kind).max), exact, 0.5)
    assert f"the end of {str(kind)[6:]}'s range" in clamped.failures[0].message


def test_a_roundoff_of_0_is_the_operators_mistake_and_named() -> None:
    case, call = case_of(), OPERATOR.make_call(case_of(), judge.generator(case_of()))
    one = torch.ones(call.output.shape, dtype=torch.float64)
    with pytest.raises(
        KernelproofError, match="unit_roundoff is 0, and the output is of float16; allowed: above 0"
    ) as raised:
        judge.judge(case, call, Reference(one, one, 0.0), Returned(one.half()), TOLERANCE)
    assert raised.value.subject == "reference"


def test_an_output_of_float8_is_judged_as_any_float() -> None:
    exact = 20 * torch.randn(8, 512, generator=torch.Generator().manual_seed(1)).double()
    unit = units(Precision("float8_e4m3fn"), torch.float32)
    nothing = torch.zeros_like(exact)
    reference = Reference(exact, forward_bound(exact, nothing, nothing, unit), unit.coarse)
    nearest = exact.to(torch.float8_e4m3fn)
    cut = (nearest.view(torch.uint8) - (nearest.double().abs() > exact.abs()).byte()).view(torch.float8_e4m3fn)
    for output, words in ((nearest, ""), (cut, "truncated to float8_e4m3fn")):
        call = Call({"y": output}, ("y",), ("row", "column"))
        result = judge.judge(Case("codes", "t", {}, {}, "float32"), call, reference, Returned(output), TOLERANCE)
        assert [words in failure.message for failure in result.failures] == [True] * bool(words)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("finite", [False, True])
def test_around_an_input_lies_nan_or_what_is_large(tmp_path: Path, kind: torch.dtype, finite: bool) -> None:
    x = torch.zeros(4, 16).to(kind)[:, :9]
    image = images.layout_images(Call({"x": x, "y": x}, ("y",), ("i", "j")), tmp_path, finite=finite).images["x"]
    values = image.raw.view(kind).double()
    around = values[values != 0]
    assert len(around) == len(values) - 4 * 9
    assert bool(((around.abs() >= 128) & torch.isfinite(around)).all() if finite else around.isnan().all())


def test_axes_have_their_plurals() -> None:
    names = ["head", "batch", "query row", "entry", "key", "matrix", "index", "box", "class", "n"]
    plurals = ["heads", "batches", "query rows", "entries", "keys", "matrices", "indices", "boxes", "classes", "n"]
    assert [findings.plural_of(name) for name in names] == plurals
