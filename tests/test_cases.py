"""Which cases are chosen, and what is said of those that a variant cannot take."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from kernelproof.cases import covering_cases, enumerate_cases, select_cases, unsupported
from kernelproof.config import Budget, CaseSelection, OperatorConfig, Precision, ProfileSelection, VariantConfig
from kernelproof.records import Case

SHAPES = {
    "main": {"batch": 1, "heads": 8, "seq": 512, "head_dim": 64},
    **{f"s{n}": {"batch": 1, "heads": 2, "seq": n, "head_dim": 64} for n in (1, 63, 65, 127, 500, 513)},
    "d128": {"batch": 1, "heads": 2, "seq": 200, "head_dim": 128},
}
OPTIONS: dict[str, list[Any]] = {"causal": [False, True], "layout": ["bhsd", "bshd"]}


def variant(**changes: Any) -> VariantConfig:
    made = VariantConfig(
        operator="attention",
        name="v",
        role="variant",
        device="cpu",
        dtypes=["float16", "bfloat16"],
        precision=Precision("input"),
        passing="destination",
        budget=Budget(120, 65536, 0),
    )
    return replace(made, **changes)


def operator(**changes: Any) -> OperatorConfig:
    made = OperatorConfig(
        name="attention",
        module="kernelproof.operators.attention",
        shapes=SHAPES,
        test=CaseSelection(list(SHAPES), OPTIONS, ["normal", "peaky", "sink_last"], [0, 1, 2]),
        bench=CaseSelection(["main"], {"causal": [False, True]}, [], [0]),
        profile=ProfileSelection("main"),
        variants={},
        baselines={},
    )
    return replace(made, **changes)


def test_ids_are_unique_and_the_order_is_the_same_every_time() -> None:
    first, second = (enumerate_cases(operator(), variant()) for _ in range(2))
    assert first == second
    assert len({case.id for case in first}) == len(first)


def test_the_profiled_shape_gets_every_option_and_data_type() -> None:
    cases = [c for c in enumerate_cases(operator(), variant()) if c.shape == "main" and c.family == "normal"]
    seen = {(c.options["causal"], c.options["layout"], c.dtype) for c in cases}
    assert len(seen) == 2 * 2 * 2


def test_every_shape_gets_every_value_of_every_option() -> None:
    cases = enumerate_cases(operator(), variant())
    for shape in SHAPES:
        for name, values in OPTIONS.items():
            assert {c.options[name] for c in cases if c.shape == shape} == set(values)


def test_shapes_between_them_get_every_pair_of_option_and_data_type() -> None:
    cases = [c for c in enumerate_cases(operator(), variant()) if c.shape != "main"]
    assert len({(c.options["causal"], c.options["layout"], c.dtype) for c in cases}) == 8


@pytest.mark.parametrize("options", [{}, {"causal": [False, True]}, {"causal": [False, True], "scale": [1, 2, 3]}])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_shape_meets_every_data_type(options: dict[str, list[Any]], count: int) -> None:
    dtypes = ["float32", "float16", "bfloat16", "float64"][:count]
    settings = operator(test=CaseSelection(list(SHAPES), options, ["normal", "peaky"], [0, 1, 2]))
    cases = enumerate_cases(settings, variant(dtypes=dtypes))
    assert {(case.shape, case.dtype) for case in cases} == set(itertools.product(SHAPES, dtypes))


def test_every_family_meets_the_profiled_shape_with_and_without_each_option() -> None:
    cases = enumerate_cases(operator(), variant())
    for family in ("peaky", "sink_last"):
        chosen = [c for c in cases if c.family == family]
        assert {c.shape for c in chosen} == {"main"}
        assert {c.options["causal"] for c in chosen} == {False, True}
        assert {c.dtype for c in chosen} == {"float16", "bfloat16"}


def test_every_family_meets_every_value_of_an_option_that_has_several() -> None:
    options = {"reduction": ["none", "mean", "sum"], "smooth": [False, True], "ignore": [False, True]}
    plain = operator()
    other = next(name for name in plain.shapes if name != "main")
    for also_on, most in (([], 3), ([other], 3), ([other, other], 4)):
        test = replace(plain.test, options=options, families_also_on=also_on)
        cases = enumerate_cases(operator(test=test), variant())
        for family in ("peaky", "sink_last"):
            chosen = [c for c in cases if c.family == family]
            assert len(chosen) <= most
            for name, values in options.items():
                assert {c.options[name] for c in chosen} == set(values)


def test_every_family_meets_the_shapes_that_are_named_for_it_too() -> None:
    plain = operator()
    other = next(name for name in plain.shapes if name != "main")
    added = enumerate_cases(operator(test=replace(plain.test, families_also_on=[other])), variant())
    usual = enumerate_cases(plain, variant())
    more = [case for case in added if case not in usual]
    assert {case.family for case in more} == {"peaky", "sink_last"}
    assert {case.shape for case in more} == {other}
    assert [case for case in added if case in usual] == usual


def test_every_seed_is_used() -> None:
    assert {c.seed for c in enumerate_cases(operator(), variant())} == {0, 1, 2}


def test_seeds_can_be_given_where_the_configuration_has_none() -> None:
    chosen = replace(operator().test, seeds=[])
    assert {c.seed for c in enumerate_cases(operator(test=chosen), variant(), seeds=[7])} == {7}


def test_without_families_all_that_the_operator_has_are_used() -> None:
    from kernelproof.operators.attention import OPERATOR

    chosen = replace(operator().test, families=[])
    assert {c.family for c in enumerate_cases(operator(test=chosen), variant(), families=OPERATOR.families)} == set(
        OPERATOR.families
    )


def test_the_count_stays_modest() -> None:
    chosen = replace(operator().test, families=[])
    assert len(enumerate_cases(operator(test=chosen), variant())) <= 60


def test_benchmark_has_one_case_for_each_shape_option_and_data_type() -> None:
    cases = enumerate_cases(operator(), variant(), "bench")
    assert [c.bench_id for c in cases] == [
        "main-float16",
        "main-bfloat16",
        "main-causal-float16",
        "main-causal-bfloat16",
    ]


def test_the_benchmark_takes_the_first_family_of_an_operator_that_has_no_usual_one() -> None:
    """Its module refuses any other."""
    for families, timed in (((), "normal"), (("wide", "normal"), "normal"), (("wide", "narrow"), "wide")):
        assert {case.family for case in enumerate_cases(operator(), variant(), "bench", families=families)} == {timed}


def test_shapes_for_a_gpu_are_tested_on_no_cpu() -> None:
    selection = replace(operator().test, shapes=["main", "s63"], cuda_shapes=["s513"])
    tested = {device: enumerate_cases(operator(test=selection), variant(device=device)) for device in ("cpu", "cuda")}
    assert {c.shape for c in tested["cpu"]} == {"main", "s63"}
    assert {c.shape for c in tested["cuda"]} == {"main", "s63", "s513"}
    for name, values in OPTIONS.items():
        assert {c.options[name] for c in tested["cuda"] if c.shape == "s513"} == set(values)


def test_shapes_for_a_gpu_are_timed_on_no_cpu() -> None:
    selection = replace(operator().bench, cuda_shapes=["s513", "main"])
    timed = {
        device: [c.bench_id for c in enumerate_cases(operator(bench=selection), variant(device=device), "bench")]
        for device in ("cpu", "cuda")
    }
    assert timed["cpu"] == [c.bench_id for c in enumerate_cases(operator(), variant(), "bench")]
    assert timed["cuda"][: len(timed["cpu"])] == timed["cpu"]
    assert {case.partition("-")[0] for case in timed["cuda"][len(timed["cpu"]) :]} == {"s513"}


def test_what_a_variant_cannot_take_is_listed_with_the_reason() -> None:
    selection = select_cases(operator(), variant(limits={"head_dim": [64]}, options={"causal": [False]}))
    assert {c.dims["head_dim"] for c in selection.cases} == {64}
    assert {c.options["causal"] for c in selection.cases} == {False}
    reasons = {s.case.shape: s.reason for s in selection.skipped if s.case.options["causal"] is False}
    assert reasons == {"d128": "takes head_dim 64, not 128"}
    assert {s.reason for s in selection.skipped} == {"takes head_dim 64, not 128", "takes causal false, not true"}
    everything = select_cases(operator(), variant())
    assert len(selection.cases) + len(selection.skipped) == len(everything.cases)


def test_a_data_type_that_is_not_taken_is_a_reason() -> None:
    case = Case("attention", "main", SHAPES["main"], {}, "float64")
    assert unsupported(variant(), case) == "takes float16 or bfloat16, not float64"


def test_an_operator_without_options_has_cases() -> None:
    plain = operator(test=CaseSelection(["main", "s63"], {}, ["normal"], [0]))
    assert [c.id for c in enumerate_cases(plain, variant(dtypes=["float32"]))] == [
        "main-float32-normal-s0",
        "s63-float32-normal-s0",
    ]


def test_cases_are_chosen_without_torch() -> None:
    script = "import sys, kernelproof.cases; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, env={"PYTHONPATH": "src"}).returncode == 0


@pytest.mark.parametrize("options", [{}, {"causal": [False, True]}, {"a": [1, 2, 3], "b": ["x", "y"]}])
def test_any_number_of_options_and_values_is_covered(options: dict[str, list[Any]]) -> None:
    shapes = list(SHAPES)
    cases = enumerate_cases(operator(test=CaseSelection(shapes, options, ["normal"], [0])), variant())
    for shape in shapes:
        for name, values in options.items():
            assert {c.options[name] for c in cases if c.shape == shape} == set(values)


def few(*, pairs: bool = False, most: int = 100, limited: tuple[str, ...] = ("head_dim",)) -> list[Case]:
    cases = [case for case in enumerate_cases(operator(), variant()) if case.family == "normal"]
    return covering_cases(cases, limited, most, pairs=pairs)


def test_one_size_is_followed_by_a_larger_one() -> None:
    """A workspace that is kept from the first call is too small then."""
    small, large, huge = (
        Case("o", str(rows), {"rows": rows, "cols": 97}, {}, "float32", "normal", 0) for rows in (3, 200, 1 << 20)
    )
    assert covering_cases([large, huge, small], [], 4) == [small, large]
    assert covering_cases([large, huge, small], [], 1) == [small]
    assert covering_cases([small, huge], [], 4) == [small]


def test_a_few_cases_hold_every_branch_once() -> None:
    chosen = few()
    assert len(chosen) <= 6
    assert {case.dtype for case in chosen} == {"float16", "bfloat16"}
    assert {case.dims["head_dim"] for case in chosen} == {64, 128}
    for name, values in OPTIONS.items():
        assert {case.options[name] for case in chosen} == set(values)
    lengths = {case.dims["seq"] for case in chosen}
    assert {length for length in lengths if length % 16} >= {1, 500}
    assert any(16 < length <= 256 and length % 16 for length in lengths)
    assert 512 not in lengths


def test_a_larger_case_is_not_taken_where_a_smaller_shows_the_same() -> None:
    assert 513 not in {case.dims["seq"] for case in few()}


def test_with_pairs_every_two_branches_meet() -> None:
    met = {(case.dtype, case.options["causal"]) for case in few(pairs=True)}
    assert len(met) == 4
    met = {(case.options["causal"], case.options["layout"]) for case in few(pairs=True)}
    assert len(met) == 4


def test_no_more_than_asked_for() -> None:
    assert len(few(most=2)) == 2
