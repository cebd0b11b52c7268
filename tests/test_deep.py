"""Which cases the deep level draws; what it finds is in test_ladder.py."""

from __future__ import annotations

import dataclasses

from test_cases import operator, variant

from kernelproof.ladder import deep
from kernelproof.records import Case

SHAPES = {
    "plain": {"batch": 1, "heads": 2, "seq": 65, "head_dim": 64},
    "grouped": {"batch": 2, "heads": 8, "kv_heads": 2, "seq": 500, "seq_k": 300, "head_dim": 128},
}


def drawn(**limits: list[int]) -> list[Case]:
    settings = operator(shapes=SHAPES)
    settings = dataclasses.replace(settings, test=dataclasses.replace(settings.test, shapes=list(SHAPES)))
    cases: list[Case] = []
    layouts: list[int] = []

    def refused(case: Case, layout: int) -> None:
        cases.append(case)
        layouts.append(layout)

    deep.search(settings, variant(limits=limits), ["normal"], refused)
    assert 0.2 < layouts.count(0) / len(layouts) < 0.8
    assert max(layouts) <= deep.LAYOUTS
    return cases


def test_every_dimension_is_drawn_and_the_lengths_reach_as_far_as_ever() -> None:
    cases = drawn()
    assert len(cases) > 0.9 * deep.EXAMPLES
    assert len({case.shape for case in cases}) > 0.9 * len(cases)
    for name, most in {"batch": 4, "heads": 16, "kv_heads": 4, "seq": 1000, "seq_k": 600, "head_dim": 256}.items():
        found = {case.dims[name] for case in cases if name in case.dims}
        assert len(found) > 2
        assert max(found) <= most
    assert max(case.dims["seq"] for case in cases) > 500
    assert all(deep._elements(case.dims) <= deep.MOST_ELEMENTS for case in cases)


def test_heads_are_multiples_of_key_heads() -> None:
    grouped = [case.dims for case in drawn() if "kv_heads" in case.dims]
    assert len({dims["heads"] // dims["kv_heads"] for dims in grouped}) > 2
    assert not [dims for dims in grouped if dims["heads"] % dims["kv_heads"]]


def test_what_a_variant_does_not_take_is_not_drawn() -> None:
    cases = drawn(head_dim=[64, 128], seq=[7, 500])
    assert {(case.dims["head_dim"], case.dims["seq"]) for case in cases} == {(64, 7), (64, 500), (128, 7), (128, 500)}
    assert len(cases) > 20  # of so few dimensions fewer cases differ
