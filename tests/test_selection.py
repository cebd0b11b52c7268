"""Which cases each rung takes. Those that are listed are in test_cases.py."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_cases import SHAPES, operator, variant

from kernelproof.ladder.selection import (
    DRAWN_FAMILIES,
    FENCED_FAMILIES,
    QUICK_TRIALS,
    REPEATED_CASES,
    RungCases,
    _next_sizes,
    elements,
)
from kernelproof.ladder.session import Session

FRESH = 4711
FAMILIES = ["normal", "peaky", "sink_last", "staircase", "onehot"]


def chosen(*, level: str = "default", threads: int = 1, only: str | None = None, **changes: Any) -> RungCases:
    """Of a variant on a machine that has what it needs, by an operator that takes every shape."""
    settings = operator()
    settings = dataclasses.replace(settings, test=dataclasses.replace(settings.test, family_shape="s127"))
    sanitizer = SimpleNamespace(tools=["memcheck"], cases=4)
    test = SimpleNamespace(level=level, seeds=[0, 1, 2], trials=100, sanitizer=sanitizer)
    session = SimpleNamespace(
        config=SimpleNamespace(test=test, operator=lambda name: settings),
        resources=SimpleNamespace(fresh_seed=FRESH),
        judge=SimpleNamespace(declared=lambda settings: SimpleNamespace(refused={})),
        threads=threads,
        only=only,
        lacking=lambda variant: ("no usable GPU here", "find one") if variant.requires else None,
        families=lambda variant: FAMILIES,
    )
    return RungCases(session, variant(**changes))  # type: ignore[arg-type]


def usual(cases: Sequence[Any]) -> list[Any]:
    return [case for case in cases if case.family == "normal"]


def shapes(cases: Sequence[Any]) -> list[str]:
    return list(dict.fromkeys(case.shape for case in cases))


def test_a_variant_that_cannot_run_here_has_no_case() -> None:
    absent = chosen(requires=["no-such-kernels"])
    assert (absent.cases, absent.left_out, absent.property_cases, absent.repeated_cases) == ([], [], [], [])
    assert (absent.viewed_cases, absent.spaced_cases, absent.fenced_cases, absent.neighbours) == ([], [], [], {})


@pytest.mark.parametrize(
    ("entry", "absent"),
    [
        ("no_such_peer.kernels:run", "no_such_peer"),
        ("torch.nn.functional:rms_norm", ""),
        ("mine.kernels:run", ""),
        ("no_such_peer.py:run", ""),  # a file that is not there is a mistake
        ("time:sleep", ""),
    ],
)
def test_a_peer_that_is_not_installed_is_not_wrong(tmp_path: Path, entry: str, absent: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    peer = variant(role="baseline", abi="python", entry=entry)
    found = Session.lacking(SimpleNamespace(root=tmp_path), peer)  # type: ignore[arg-type]
    assert (found is not None) == bool(absent)
    if found:
        assert found[0] == f"no_such_peer, which its entry {entry!r} is in, is not installed"
        assert found[1].endswith(".baselines.v.entry")
    assert Session.lacking(SimpleNamespace(root=tmp_path), variant(abi="python", entry=entry)) is None  # type: ignore[arg-type]


def test_what_it_declares_not_to_take_is_left_out_with_the_reason() -> None:
    limited = chosen(limits={"head_dim": [64]})
    assert shapes(limited.cases) == [name for name in SHAPES if name != "d128"]
    assert {(result.shape, result.status) for result in limited.left_out} == {("d128", "skipped")}
    assert {result.reason for result in limited.left_out} == {"takes head_dim 64, not 128"}


def test_no_seed_of_what_is_drawn_was_known_before_the_build() -> None:
    found = chosen()
    fresh = [case for case in found.cases if case.seed == FRESH]
    assert {case.family for case in fresh if case.shape == "main"} > {"normal"}
    assert len({case.family for case in fresh} - {"normal"}) == DRAWN_FAMILIES
    assert {case.seed for case in (*found.property_cases, *found.neighbours["rising"][0][:-1])} == {FRESH}


def test_each_shape_has_values_that_nobody_knew_before_the_build_in_each_data_type() -> None:
    """A kernel that knew the listed seeds' inputs of one shape, and was wrong on all others there, was once correct."""
    found = chosen()
    fresh = {(case.shape, case.dtype) for case in found.cases if case.seed == FRESH and case.family == "normal"}
    assert fresh == {(case.shape, case.dtype) for case in found.cases}
    assert len({case.id for case in found.cases}) == len(found.cases)
    listed = {case.seed for case in found.cases if case.shape == "main"}
    assert listed > {FRESH}
    others = [
        case for case in found.cases if case.shape == "s127" and case.dtype == "float16" and case.family == "normal"
    ]
    assert [case.seed for case in others].count(FRESH) == 1


def test_properties_are_tried_in_every_data_type_on_options_that_differ() -> None:
    for dtype in ("float16", "bfloat16"):
        first, second, *_ = (case for case in chosen().property_cases if case.dtype == dtype)
        assert first.shape == second.shape == "s127"
        assert all(first.options[name] != second.options[name] for name in first.options)
    assert chosen(level="quick").property_cases == []


def with_dims(found: RungCases, changed: dict[str, dict[str, int]], others: dict[str, int]) -> list[Any]:
    return [dataclasses.replace(case, dims=case.dims | changed.get(case.shape, others)) for case in found.cases]


def test_properties_are_tried_on_rows_of_whole_vectors_in_every_data_type(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen()
    assert "d128" not in shapes(found.property_cases)
    monkeypatch.setattr(RungCases, "cases", with_dims(found, {"d128": {}}, {"head_dim": 63}))
    del found.property_cases
    for dtype in ("float16", "bfloat16"):
        assert "d128" in {case.shape for case in found.property_cases if case.dtype == dtype}


@pytest.mark.parametrize("main", [{"head_dim": 64}, {"head_dim": 64, "top": 5}], ids=["last", "before a small one"])
def test_properties_are_tried_on_rows_that_vectors_do_not_fill(
    main: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a vectorised loop leaves over is nobody's elsewhere: the usual main shape is of whole vectors."""
    found = chosen()
    monkeypatch.setattr(RungCases, "cases", with_dims(found, {"s63": {**main, "head_dim": 33}}, main))
    for dtype in ("float16", "bfloat16"):
        assert "s63" in {case.shape for case in found.property_cases if case.dtype == dtype}


@pytest.mark.parametrize(
    "cols", [{"s63": 601}, {"s500": 4096}, {"s63": 601, "s500": 4096}], ids=["tail", "most", "both"]
)
def test_properties_are_tried_on_a_tail_of_any_dimension_and_on_the_longest(
    cols: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the inputs the last dimension is another one than of the output, as with the best `top` of `cols`."""
    found = chosen()
    dims = {"rows": 2, "cols": 512, "top": 8}
    cases = [dataclasses.replace(c, dims=dims | {"cols": cols.get(c.shape, 512)}) for c in found.cases]
    monkeypatch.setattr(RungCases, "cases", cases)
    assert {"s63", "s500"} & {*shapes(found.property_cases)} == {*cols}


def test_properties_are_tried_on_whole_tiles_and_on_every_size_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of grouped heads and of tiles kernels have paths of their own, whatever the data type."""
    found = chosen()
    grouped = {"s500": {"kv_heads": 2, "seq_k": 72}, "s513": {"kv_heads": 2}}
    cases = with_dims(found, {**grouped, "s63": {"groups": 1 << 20}}, {})
    monkeypatch.setattr(RungCases, "cases", cases)
    assert sorted(shapes(found.property_cases)) == ["main", "s127", "s500"], "what alone gives a size may be too large"
    further = [case for case in found.property_cases if case.shape != "s127"]
    assert (len(further), len({case.dtype for case in further})) == (2, 2)
    assert {case.seed for case in further} == {FRESH}
    seen = set()
    for seed in range(20):
        found.session.resources.fresh_seed = seed
        del found.property_cases
        seen |= {json.dumps(case.options) for case in found.property_cases if case.shape == "s500"}
    assert len(seen) > 1, "options are drawn"


def test_elements_are_moved_apart_in_the_smallest_case_of_each_data_type() -> None:
    found = chosen()
    assert [case.dtype for case in found.spaced_cases] == ["float16", "bfloat16"]
    for case in found.spaced_cases:
        others = [other for other in found.viewed_cases if other.dtype == case.dtype and 1 not in other.dims.values()]
        assert case in (others or found.viewed_cases)
        assert elements(case) == min(map(elements, others or [case]))


def test_every_shape_begins_off_its_boundary() -> None:
    found = chosen()
    seen = {(case.dtype, case.shape) for case in (*found.viewed_cases, *found.shifted_cases)}
    assert seen == {(case.dtype, case.shape) for case in found.cases}
    assert chosen(level="quick").shifted_cases == []


def test_memory_ends_behind_the_main_shape_and_behind_other_families() -> None:
    fenced = chosen().fenced_cases
    assert "main" in shapes(fenced)
    others = [case for case in fenced if case.family != "normal"]
    assert 1 < len(others) == len({case.family for case in others}) <= FENCED_FAMILIES
    for case in others:
        assert elements(case) == min(elements(other) for other in chosen().cases if other.family == case.family)
    assert chosen(device="cuda").fenced_cases == []


@pytest.mark.parametrize(("device", "first"), [("cpu", "s127"), ("cuda", "main")])
def test_large_cases_are_repeated_as_far_as_the_device_is_fast(device: str, first: str) -> None:
    repeated = usual(chosen(device=device).repeated_cases)
    assert (len(repeated), repeated[0].shape) == (REPEATED_CASES, first)
    assert repeated == sorted(repeated, key=elements, reverse=True)


def test_where_threads_may_race_a_long_call_is_repeated_too() -> None:
    alone, team = chosen(), chosen(threads=2)
    assert (alone.has_team, team.has_team, chosen(threads=2, device="cuda").has_team) == (False, True, False)
    assert shapes(usual(team.repeated_cases))[:-1] == shapes(usual(alone.repeated_cases))
    assert usual(team.repeated_cases)[-1].shape == "main"


def test_some_other_values_are_repeated_too_where_a_race_may_be() -> None:
    found = chosen()
    others = [case for case in found.repeated_cases if case.family != "normal"]
    assert len(others) == len({case.family for case in others}) == DRAWN_FAMILIES
    assert chosen(role="baseline").repeated_cases == usual(found.repeated_cases)
    assert usual(found.zero_copy_cases) == found.zero_copy_cases


def test_a_neighbour_differs_in_one_size() -> None:
    found = chosen().neighbours
    begun, beside = set[str](), set[str]()
    for way, sequence in ((way, each) for way, those in found.items() for each in those):
        *cases, again = sequence  # the shape once more, with values of its own
        (base,) = (number for number, case in enumerate(cases) if case.shape in SHAPES)
        assert (again.dims, again.seed) == (cases[base].dims, cases[base].seed + 1)
        for number, case in enumerate(cases):
            other = [name for name, size in case.dims.items() if size != again.dims[name]]
            assert len(other) == (number != base)
            assert all((case.dims[name] > again.dims[name]) == ((number > base) == (way == "rising")) for name in other)
            begun |= {*other} if number == 0 else set()
            beside |= {*other}
    assert len(beside) > 1
    assert begun == beside, "each dimension comes first in some process"


def test_a_shape_of_ones_is_not_the_one_that_others_are_neighbours_of(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = dict.fromkeys(operator().shapes["main"], 1)
    test = dataclasses.replace(operator().test, shapes=[*operator().test.shapes, "tiny"])
    with_ones = dataclasses.replace(operator(), shapes={**operator().shapes, "tiny": tiny}, test=test)
    monkeypatch.setattr(sys.modules[__name__], "operator", lambda: with_ones)
    found = chosen()
    assert "tiny" in shapes(found.cases)
    assert all(each[-1].shape in SHAPES for those in found.neighbours.values() for each in those)


def test_sizes_come_together_that_no_shape_has_together_but_not_all_the_largest() -> None:
    first = dataclasses.replace(chosen().cases[0], dims={"rows": 40, "keys": 24, "cols": 16})
    others = [
        dataclasses.replace(first, dims={"rows": 8, "keys": 300, "cols": 16}),
        dataclasses.replace(first, dims={"rows": 40, "cols": 1 << 20}),
    ]
    beside = _next_sizes(first, [first, *others])
    assert beside["keys", 1] == {"rows": 40, "keys": 300, "cols": 16}, "more elements than any of these has"
    assert ("cols", 1) not in beside


def test_a_baseline_and_the_quick_level_do_less() -> None:
    baseline = chosen(role="baseline", device="cuda")
    assert (baseline.viewed_cases, baseline.neighbours, baseline.sanitizer_tools) == ([], {}, [])
    assert chosen(device="cuda").sanitizer_tools == ["memcheck"]
    quick = chosen(device="cuda", level="quick")
    assert (quick.sanitizer_tools, quick.trials, shapes(quick.cases)) == ([], QUICK_TRIALS, ["main"])


def test_only_what_is_asked_for_is_climbed() -> None:
    found = chosen()
    assert found.asked_for("correctness", found.cases) == found.cases
    found.asked = {"correctness": [found.cases[1].id]}
    assert found.asked_for("correctness", found.cases) == [found.cases[1]]
    assert found.asked_for("determinism", found.repeated_cases) == []


def test_one_case_alone_is_every_rungs() -> None:
    wanted = chosen().cases[3]
    one = chosen(only=wanted.id)
    assert one.cases == one.property_cases == one.repeated_cases == one.sanitizer_cases == [wanted]
    assert not chosen(only=wanted.id, level="deep").searches
    assert chosen(level="deep").searches
