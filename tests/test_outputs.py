"""Kernels with several outputs, from the test stage to the bench stage: each output counts, whichever is wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import yaml

from kernelproof import bench, config, images, judge, operators, records, suite, test
from kernelproof.errors import KernelproofError, TestError, WorkerTimeout
from kernelproof.ladder.climb import Climb
from kernelproof.ladder.session import Resources, Session
from kernelproof.ladder.standing import Standing
from kernelproof.operators import Call, Reference, Relation
from kernelproof.records import BenchRecord, Case, CaseResult, TestRecord

# y = x / max|x| of each row, float32 [rows, cols], and where that maximum lies, int64 [rows].
OPERATOR = """
import torch

from kernelproof.operators import Call, Cost, Reference, Relation, SanityCall, changed, dims_of, placed, shuffled

AXES = {"y": ("row", "column"), "place": ("row",)}


class Peaks:
    name, dims, options = "peaks", {"rows": None, "cols": None}, {}
    families, dtypes, axes = ("normal", "wide"), ("float32",), AXES

    def make_call(self, case, generator):
        d = dims_of(self, case)
        x = torch.rand(d["rows"], d["cols"], generator=generator)  # 2⁻²⁴ apart: no two of a row are alike
        return self.call((4.0 if case.family == "wide" else 1.0) * (x + torch.arange(x.shape[1]).flip(0) % 7))

    def call(self, x):
        place = torch.empty(len(x), dtype=torch.int64)
        return Call({"x": x, "y": torch.empty_like(x), "place": place}, outputs=("y", "place"), axes=AXES)

    def reference(self, call, precision, device="cpu"):
        x = call.tensor("x").to(device).double()
        peak, place = x.abs().max(-1, keepdim=True)
        y = x / peak
        right = place[:, 0].double()
        return {
            "y": Reference(y, y.abs() * 2.0**-22, 2.0**-24, rms_floor=2.0**-24),
            "place": Reference(right, torch.zeros_like(right), 0.0, exact=True),
        }

    def sanity_calls(self, case, generator):
        x = torch.zeros(5, 9)
        place = torch.tensor([3, 0, 8, 5, 1])
        x[torch.arange(5), place] = -2.0
        y, at = x.double() / 2, {"rows": 5, "cols": 9}
        right = {"y": y, "place": place.double()}
        exact = {name: Reference(value, torch.zeros_like(value), 0.0, exact=True) for name, value in right.items()}
        return [SanityCall("one_hot", type(case)(self.name, "one_hot", at, {}, case.dtype), self.call(x), exact)]

    def relations(self, case, call, generator):
        x = call.tensor("x")
        order = shuffled(x.shape[1], generator)
        back, after = order.argsort(), changed(call, x=placed(x[:, order], x))
        return [
            Relation("negated", "y(−x) = −y(x)", changed(call, x=-x), lambda y: -y, moves=True),
            Relation(
                "permuted", "reordering columns moves the place with them", after,
                lambda place: back.to(place.device)[place.long()].double(), exact=True, output="place",
            ),
        ]

    def cost(self, case):
        d = dims_of(self, case)
        size = 4 * d["rows"] * d["cols"]
        return Cost(size, size, size + 8 * d["rows"])

    def suspects(self, call, rows):
        yield from ()


OPERATOR = Peaks()
""".strip()

KERNELS = """
import time

import torch

SEEN = {"calls": 0}


def peaks(x):
    peak, place = x.abs().max(-1)
    return x / peak[:, None], place


def returned(x):
    return peaks(x)


def as_a_list(x):
    return list(peaks(x))


def into(x, y, place):
    for target, values in zip((y, place), peaks(x)):
        target.copy_(values)


def in_a_kind_of_tuple(x):  # as torch's own functions give their results
    return torch.return_types.topk(peaks(x))


def one_for_both(x):
    found = torch.zeros(len(x))
    return found, found


def one_alone(x):
    return peaks(x)[0]


def place_not_written(x, y, place):
    y.copy_(peaks(x)[0])


def last_place_not_written(x, y, place):
    right, where = peaks(x)
    y.copy_(right)
    place[:-1] = where[:-1]


def off_by_one(x, y, place):
    right, where = peaks(x)
    y.copy_(right)
    place.copy_(where + (torch.arange(len(x)) == len(x) // 2))


def beyond_its_end(x, y, place):
    into(x, y, place)
    place.as_strided((len(place) + 1,), (1,))[-1] = 7


def differs(x, y, place):
    into(x, y, place)
    SEEN["calls"] += 1
    place[0] += int(SEEN["calls"] % 2 == 0)


def differs_in_one(x, y, place):
    into(x, y, place)
    SEEN["calls"] += 1
    y[len(x) // 2, 3] += int(SEEN["calls"] % 3 and len(x) > 5)  # not in the exact call


def slow_at_first(x, y, place):
    time.sleep(0 if SEEN["calls"] else 2)
    SEEN["calls"] += 1
    into(x, y, place)


def remembers_places(x, y, place):
    right, where = peaks(x)
    y.copy_(right)
    place.copy_(SEEN.setdefault(tuple(x.shape), where))


def lazy_where_calls_come_often(x, y, place):
    right, where = peaks(x)
    SEEN["calls"] += 1
    y.copy_(right)
    if SEEN["calls"] < 300:
        place.copy_(where)


def returns_the_place_of_others(x):
    right, where = peaks(x)
    return right, SEEN.setdefault(tuple(x.shape), where)
""".strip()

SHAPES = {"small": {"rows": 33, "cols": 65}, "timed": {"rows": 64, "cols": 256}}
CASE = Case("peaks", "small", SHAPES["small"], {}, "float32", "normal", 3)


def variant(name: str, passing: str = "destination") -> dict[str, Any]:
    return {
        "abi": "python",
        "entry": f"kernels.py:{name}",
        "device": "cpu",
        "passing": passing,
        "dtypes": ["float32"],
        "precision": {"output": "float32"},
    }


def project(
    folder: Path, variants: dict[str, Any], baselines: dict[str, Any] | None = None, **more: str
) -> config.Config:
    (folder / "peaks.py").write_text(OPERATOR)
    (folder / "kernels.py").write_text(KERNELS)
    settings = {
        "module": "peaks.py",
        "shapes": SHAPES,
        "test": {"shapes": list(SHAPES)},
        "bench": {"shapes": ["timed"]},
    }
    timing = {"processes": 2, "blocks": 3, "max_seconds": 0.1, "modes": ["hot", "cold"], "cpu_threads": 1}
    data = {
        "schema": "kernelproof.config/1",
        "project": "p",
        "operators": {"peaks": {**settings, **more, "variants": variants, "baselines": baselines or {}}},
        "bench": timing,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(data))
    return config.load(folder / "config.yaml", root=folder)


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> operators.Operator:
    folder = tmp_path_factory.mktemp("peaks")
    (folder / "peaks.py").write_text(OPERATOR)
    return operators.load("peaks.py", folder)


RIGHT = {
    "returned": "return",
    "as_a_list": "return",
    "in_a_kind_of_tuple": "return",
    "into": "destination",
}
# The rung that finds it, and words of what it says.
WRONG = {
    "one_for_both": ("launch", "it returned a tensor of shape"),
    "one_alone": ("launch", "it returned a Tensor where a tuple of y, place is expected"),
    "place_not_written": ("sanity", "place: 5 of 5 elements"),
    "last_place_not_written": ("sanity", "place: 1 of 5 elements (20 %) still hold what was in memory"),
    "off_by_one": ("sanity", "place: 1 of 5 elements (20 %) are wrong: row 2"),
    "beyond_its_end": ("sanity", "place: (6|7|8) bytes written after the buffer"),
    "remembers_places": ("correctness", "place: "),
    "differs_in_one": ("sanity|correctness|properties", "y: "),
    "differs": ("sanity|correctness|determinism", "place: |of place"),
}


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TestRecord]:
    folder = tmp_path_factory.mktemp("tested")
    ways = RIGHT | {name: "return" if name.startswith("one_") else "destination" for name in WRONG}
    loaded = project(folder, {name: variant(name, way) for name, way in ways.items()})
    found = test.run(loaded, "peaks", list(ways), folder / "results" / "test" / "peaks")
    return {record.variant: record for record in found}


@pytest.mark.parametrize("name", RIGHT)
def test_right_ones_are_correct(tested: dict[str, TestRecord], name: str) -> None:
    record = tested[name]
    assert record.verdict == "correct", (record.reason, [rung.message for rung in record.rungs])
    assert {result.name for result in record.properties} >= {"negated", "permuted"}
    assert not [result for result in record.properties if result.status == "failed"]


@pytest.mark.parametrize("name", WRONG)
def test_whoever_is_wrong_in_one_of_them_is_wrong(tested: dict[str, TestRecord], name: str) -> None:
    record, (rungs, words) = tested[name], WRONG[name]
    assert record.verdict != "correct" if name.startswith("one_") else record.verdict == "wrong"
    failed = next(rung for rung in record.rungs if rung.status == "failed")
    assert re.fullmatch(rungs, failed.name)
    assert re.search(words if "|" in words else re.escape(words), failed.message or ""), failed.message


def test_a_first_call_in_python_may_compile(tmp_path: Path) -> None:
    loaded = project(tmp_path, {"slow_at_first": variant("slow_at_first")})
    limits = dataclasses.replace(loaded.test.time_limit_s, launch=1)
    loaded = dataclasses.replace(loaded, test=dataclasses.replace(loaded.test, time_limit_s=limits))
    (record,) = test.run(loaded, "peaks", ["slow_at_first"], tmp_path / "results" / "test" / "peaks")
    assert record.verdict == "correct", record.reason
    standing = Standing(cast(Any, SimpleNamespace(config=loaded)), loaded.operator("peaks").variant("slow_at_first"))
    standing.process_ended("launch", WorkerTimeout(60.0), "")
    assert "let config.yaml say `test: {time_limit_s: {launch: 300}}` for all runs;" in str(standing.remedy)
    assert str(standing.remedy).endswith("--variant slow_at_first --set test.time_limit_s.launch=300")


def test_of_who_is_wrong_in_another_way_each_time_that_is_told(tested: dict[str, TestRecord]) -> None:
    record = tested["differs_in_one"]
    _, _, told = str(record.reason).partition("; repeats of one call differ: ")
    assert re.search(
        r"\d+ of \d+ repeats gave other bits .*: a race, .* another way of computing after some calls$", told
    )
    assert not [rung.message for rung in record.rungs if records.A_FEW in (rung.message or "")]
    assert any(records.A_FEW in (found.message or "") for found in record.properties)


def test_what_is_timed_is_judged_in_all_of_them(tmp_path: Path) -> None:
    ways = {"returned": "return", "in_a_kind_of_tuple": "return", "into": "destination"}
    wrong = {"lazy_where_calls_come_often": "destination", "returns_the_place_of_others": "return"}
    everyone = {name: variant(name, way) for name, way in (ways | wrong).items()}
    loaded = project(tmp_path, everyone, {"listed": variant("as_a_list", "return")})
    for each in loaded.variants():
        found = TestRecord(operator="peaks", variant=each.name, role=each.role, device="cpu", verdict="correct")
        records.write(loaded.record("test", "peaks", each.name), found)
    output = loaded.record("bench", "peaks-cpu")
    bench.run(loaded, "peaks", "cpu", output)
    record = records.read(output, BenchRecord)
    outcomes = {contender.name: contender.outcome for contender in record.contenders}
    assert {name: outcomes[name] for name in (*ways, "listed")} == dict.fromkeys((*ways, "listed"), "timed")
    for name in wrong:
        assert "wrong" in outcomes[name], outcomes
        assert "place: " in outcomes[name]


def test_the_figures_of_a_case_are_those_of_the_output_that_comes_nearest(operator: operators.Operator) -> None:
    call = operator.make_call(CASE, judge.generator(CASE))
    right = operators.by_output(call, operator.reference(call, config.Precision("float32")), "reference")
    y, place = (right[name].output for name in ("y", "place"))
    spoiled, elsewhere = y.clone(), place.long()
    spoiled[2, 3] += 1e-3
    elsewhere[4] += 2
    tolerance = config.Tolerance(1.0, 1.5, 1 / 16, 1 / 64)
    for outputs, words, index in (
        ((y, place.long()), "", None),
        ((spoiled, place.long()), "y: 1 of 2145 elements", [2, 3]),
        ((y, elsewhere), "place: 1 of 33 elements", [4]),
        ((spoiled, elsewhere), "y: 1 of 2145", [2, 3]),
    ):
        kinds = (torch.float32, torch.int64)
        returned = {n: images.Returned(v.to(k)) for n, v, k in zip(("y", "place"), outputs, kinds, strict=True)}
        found = judge.judge_all(CASE, call, right, returned, tolerance, operator=operator)
        assert found.status == ("failed" if words else "passed")
        assert found.first_bad_index == index
        assert words in (found.failures[0].message if found.failures else "")
        assert (found.max_bound_ratio or 0) > 1 if outputs[0] is spoiled else (found.max_bound_ratio or 0) <= 1


def test_outputs_in_another_order_are_told(operator: operators.Operator) -> None:
    numbers = torch.arange(6.0)
    tensors = {"x": numbers, "low": numbers.clone(), "high": numbers.clone()}
    call = Call(tensors, outputs=("low", "high"), axes={"low": ("place",), "high": ("place",)})
    low, high = numbers.double() - 9, numbers.double() + 5
    right = {name: Reference(v, v.abs() * 2.0**-20, 2.0**-24) for name, v in (("low", low), ("high", high))}
    tolerance = config.Tolerance(1.0, 1.5, 1 / 16, 1 / 64)

    def said(**given: torch.Tensor) -> list[str]:
        returned = {name: images.Returned(values.float()) for name, values in given.items()}
        case = Case("both", "six", {}, {}, "float32")
        return [
            f.message
            for f in judge.judge_all(case, call, right, returned, tolerance).failures
            if f.criterion == "bound"
        ]

    one, other = said(low=high, high=low)
    assert one.endswith("It is what high should be: the outputs are given in another order")
    assert other.endswith("It is what low should be: the outputs are given in another order")
    assert "another order" not in said(low=low + 1, high=high)[0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Reference(torch.zeros(2).double(), torch.zeros(2), 0.0), "gave one Reference, and the outputs are y, place"),
        ({"y": None}, "gave y, and the outputs are y, place"),
        ({"y": None, "place": None}, "NoneType where Reference belongs"),
    ],
)
def test_a_reference_for_some_of_them_is_refused(operator: operators.Operator, given: Any, words: str) -> None:
    call = operator.make_call(CASE, judge.generator(CASE))
    with pytest.raises(KernelproofError, match=words):
        operators.by_output(call, given, "reference")


def test_a_relation_is_about_one_of_them(operator: operators.Operator) -> None:
    call = operator.make_call(CASE, judge.generator(CASE))
    assert [r.about for r in operators.relations_of(operator, CASE, call, judge.generator(CASE))] == ["y", "place"]

    class Other(type(operator)):  # type: ignore[misc]
        def relations(self, case: Case, call: Call, generator: torch.Generator) -> Iterator[Relation]:
            return [Relation("odd", "it is odd", call, lambda y: y, output="peak")]  # type: ignore[return-value]

    with pytest.raises(KernelproofError, match="its `output` is 'peak'; allowed: y, place"):
        operators.relations_of(Other(), CASE, call, judge.generator(CASE))


def test_the_type_that_is_declared_is_that_of_the_first_that_is_a_float() -> None:
    x = torch.ones(2)
    call = Call({"x": x, "place": x.long(), "y": x.clone()}, ("place", "y"), {"place": ("n",), "y": ("n",)})
    judge.insist_on_declared(call, config.Precision("float32"))
    with pytest.raises(TestError, match="declares results of bfloat16, and y is float32"):
        judge.insist_on_declared(call, config.Precision("bfloat16"))
    whole = Call({"x": x, "place": x.long()}, ("place",), ("n",))
    judge.insist_on_declared(whole, config.Precision("int64"))
    with pytest.raises(TestError, match="declares results of float32, and place is int64"):
        judge.insist_on_declared(whole, config.Precision("float32"))


def test_a_bias_of_any_output_shows_over_all_cases() -> None:
    """In every case the other one is nearer its limit, now above it and now below."""
    tolerance = config.Tolerance(1.0, 1.5, 1 / 16, 1 / 64)
    cases = []
    for number in range(16):
        y, rstd = CaseResult.of(CASE, "passed"), CaseResult.of(CASE, "passed")
        y.bias, y.bias_ratio = (-1e-9) ** (1 + number % 2), 0.6
        rstd.bias, rstd.bias_ratio = 1e-9, 0.5
        cases.append(judge._together({"y": y, "rstd": rstd}))
        assert cases[-1].bias_ratio == 0.6
    mean, ratio = suite.bias(cases, tolerance)
    assert (mean, ratio) == (0.5 / 16, 2.0)


@pytest.mark.parametrize(
    ("shape", "kind", "words"), [((), "float32", "the tensor has no dimension"), ((3,), "bool", "it is bool")]
)
def test_an_output_that_cannot_be_judged_is_refused(shape: tuple[int, ...], kind: str, words: str) -> None:
    result = torch.zeros(shape, dtype=getattr(torch, kind))
    with pytest.raises(KernelproofError, match=words):
        Call({"x": torch.ones(2), "y": result}, ("y",), ("n",) * len(shape))


def test_calls_of_a_relation_have_the_same_outputs(operator: operators.Operator) -> None:
    call = operator.make_call(CASE, judge.generator(CASE))

    class Other(type(operator)):  # type: ignore[misc]
        def relations(self, case: Case, call: Call, generator: torch.Generator) -> list[Relation]:
            return [Relation("fewer", "it is", Call(call.arguments, ("y",), ("row", "column")), lambda y: y)]

    with pytest.raises(KernelproofError, match="other outputs than the case's"):
        operators.relations_of(Other(), CASE, call, judge.generator(CASE))


def test_a_worker_can_hold_the_types_of_all_of_them(tmp_path: Path) -> None:
    """NumPy has no bfloat16: what one output alone is of, no declaration says."""
    listed = {"tested": {**variant("into"), "abi": "tvm_ffi", "sources": ["kernels.cc"]}}
    del listed["tested"]["entry"]
    found = {}
    for kind in ("int64", "bfloat16"):
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "kernels.cc").touch()
        (folder / "binding.cc").touch()
        loaded = project(folder, listed, binding="binding.cc")
        (folder / "peaks.py").write_text(OPERATOR.replace("dtype=torch.int64", f"dtype=torch.{kind}"))
        with contextlib.closing(Resources(folder)) as resources:
            tested = loaded.operator("peaks").variant("tested")
            climb = Climb(Session(loaded, [tested], resources), tested)
            found[kind] = climb.calls.host()._needs_torch
    assert found == {"int64": False, "bfloat16": True}


def test_one_alone_leaves_the_others_out(operator: operators.Operator) -> None:
    call = operator.make_call(CASE, judge.generator(CASE))
    alone = call.alone("place")
    assert (list(alone.arguments), alone.outputs, alone.axes) == (["x", "place"], ("place",), ("row",))
    assert call.output_bytes == 33 * 65 * 4 + 33 * 8
    json.dumps(images.outline(call))
