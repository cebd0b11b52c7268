"""The judge's process: who has references, when they are made, and that its own faults condemn nobody."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from defects import REPOSITORY, project
from two_devices import TwoDevices

from kernelproof import edits, images, judging, launches, test
from kernelproof.config import Precision, Tolerance
from kernelproof.errors import JudgeError, TestError, ToolError
from kernelproof.judging import Job, Judge, Terms
from kernelproof.ladder.calling import Calls
from kernelproof.ladder.session import Resources, Session
from kernelproof.loading import handed_over
from kernelproof.operators import Call, Reference
from kernelproof.records import Case

MODULE = "kernelproof.operators.rmsnorm"
CASE = Case("rmsnorm", "odd", {"rows": 17, "cols": 101}, seed=3)
TERMS = Terms(Precision("float32"), "cpu", Tolerance(1.0, 1.5, 1 / 16, 1 / 64), same_bits=True)
BAND_BYTES = 4096
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    judge = Judge(REPOSITORY, tmp_path_factory.mktemp("judge"), LIMIT_S)
    yield judge
    judge.close()


def values(argument: dict[str, Any], path: str) -> np.ndarray[Any, Any]:
    payload = Path(path).read_bytes()[BAND_BYTES:-BAND_BYTES]
    return np.frombuffer(payload, argument["dtype"]).reshape(argument["shape"]).copy()


def result(argument: dict[str, Any]) -> Path:
    """Where a worker whose folder is the images' would put what became of one."""
    return handed_over(Path(argument["image"]).parent, argument["image"])


def run_right(arguments: dict[str, Any], spoil: float = 0.0) -> None:
    """What a worker would do, in NumPy."""
    for argument in arguments.values():
        if isinstance(argument, dict):
            result(argument).write_bytes(Path(argument["image"]).read_bytes())
    x, weight = (values(arguments[name], arguments[name]["image"]).astype(float) for name in ("x", "weight"))
    y = x / np.sqrt((x**2).mean(1, keepdims=True) + arguments["eps"]) * weight
    y[0, 0] += spoil
    out = result(arguments["y"])
    data = out.read_bytes()
    out.write_bytes(data[:BAND_BYTES] + y.astype(np.float32).tobytes() + data[-BAND_BYTES:])


@pytest.mark.parametrize("part", ["case", "sanity", "tail"])
def test_a_right_result_passes_and_a_wrong_one_does_not(judge: Judge, tmp_path: Path, part: str) -> None:
    name = {"case": "", "sanity": next(iter(judge.exact_cases(MODULE, CASE))), "tail": "9.6"}[part]
    for spoil, status in ((0.0, "passed"), (1e-3, "failed")):
        job = Job(CASE, part, name)
        laid = judge.lay_out(MODULE, job, tmp_path / str(spoil))
        assert laid.bytes == sum(path.stat().st_size for path in (tmp_path / str(spoil)).iterdir())
        run_right(laid.arguments, spoil)
        judge.take(MODULE, job, tmp_path / str(spoil))
        found, histogram = judge.judge(MODULE, job, TERMS, count=True)
        assert found.status == status, found.failures
        assert histogram
        assert sum(histogram.counts) == (0 if part == "sanity" else 17 * 101)
        assert judge.judge(MODULE, job, TERMS) == (found, None), "errors are counted where that is asked for"
    judge.forget(MODULE)


def test_messages_hold_dataclasses_and_nothing_else_that_json_lacks() -> None:
    """What has attributes, as a tensor does, must not pass for an object of JSON, which is an image to a worker."""
    message = json.loads(judging._line({"job": Job(CASE), "terms": TERMS}))
    assert message == {"job": dataclasses.asdict(Job(CASE)), "terms": dataclasses.asdict(TERMS)}
    for foreign in (torch.zeros(()), Path(), {1}):
        with pytest.raises(TypeError):
            judging._line({"scale": foreign})


def test_references_are_kept_by_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layouts of a case share one, and so do the variants that are held to it."""
    chamber = judging.Chamber(REPOSITORY, "kernelproof.operators.attention")
    dims = {"heads": 2, "seq": 9, "head_dim": 8}
    bhsd, bshd = (Case("attention", "small", dims, {"layout": layout}, "float32") for layout in ("bhsd", "bshd"))
    other = dataclasses.replace(bhsd, seed=1)
    first = chamber._reference(Job(bhsd), TERMS)
    assert chamber._reference(Job(bshd, "repeat"), TERMS) is first
    chamber.do_forget()
    assert chamber._reference(Job(bhsd), TERMS) is first
    finer = dataclasses.replace(TERMS, precision=Precision("float32", p="float64"))
    assert chamber._reference(Job(bhsd), finer) is not first
    assert chamber._reference(Job(other), TERMS) is not first
    monkeypatch.setattr(judging, "REFERENCES_KEPT_BYTES", 2 * first["o"].output.nbytes)
    chamber._reference(Job(other, "tail", "7.9"), TERMS)
    assert len(chamber.references) == 1
    assert chamber._reference(Job(bhsd), TERMS) is not first


def test_each_call_differs_from_the_one_before_in_one_edit(judge: Judge, tmp_path: Path) -> None:
    often = judge.edits(MODULE, CASE)
    numbers = [n for n, edit in enumerate(edits.EDITS) if edits.turn_of(n) < often.get(edit, 0) and edit != "mixed"]
    assert [edits.EDITS[number] for number in numbers].count("digits") == 2
    assert "upper" not in often
    jobs = [Job(CASE), *(Job(CASE, edits.EDITS[number], f"9.{number}") for number in numbers)]
    laid = [judge.lay_out(MODULE, job, tmp_path / job.key).arguments for job in jobs]
    calls = [{name: values(spec[name], spec[name]["image"]).copy() for name in ("x", "weight")} for spec in laid]
    for place, (number, before, after) in enumerate(zip(numbers, calls[:-1], calls[1:], strict=True)):
        edit, turn = edits.EDITS[number], edits.turn_of(number)
        before = calls[place - 1] if edit == "begun" else before  # not of close values
        changed = {name: before[name] != after[name] for name in before}
        counts = {name: int(where.sum()) for name, where in changed.items()}
        if edit in ("element", "exchange", "end"):
            name = ("x", "weight")[turn % 2]
            again = edit == "end" and turn > 1  # x has its other last value by then
            across = edit == "exchange" and turn > 1  # two rows of x
            count = 2 * before["x"].shape[-1] if across else {"exchange": 2}.get(edit, 1)
            assert counts == {"x": 0, "weight": 0} | {name: 0 if again else count}
            assert edit != "exchange" or (np.sort(before[name].ravel()) == np.sort(after[name].ravel())).all()
            assert edit != "end" or again or changed[name].flat[-1]
            continue
        if edit in edits.OF_NUMBERS:
            name, other = ("x", "weight") if turn % 2 == 0 else ("weight", "x")
            assert counts[other] == 0
            if (edit, name) == ("signs", "weight"):
                assert counts[name] <= before[name].size / 10, "few are below 0"
                continue
            factors = np.unique(after[name][changed[name]] / before[name][changed[name]])
            assert set(factors) == set(edits.OF_NUMBERS[edit])
            assert 0.2 < changed[name].mean() < 0.6
            assert after[name].min() >= before[name].min()
            assert after[name].max() <= before[name].max()
            continue
        if edit == "digits":
            name, other = ("x", "weight") if turn % 2 == 0 else ("weight", "x")
            assert counts[other] == 0
            assert changed[name].mean() > 0.5
            assert (np.abs(after[name] / before[name] - 1) < 2.0**-11).all()
            continue
        if edit == "traded":
            assert counts["x"] > 10
            for name, where in changed.items():
                size = where.shape[-1] // 2 * 2
                pairs = [of[name][..., :size].reshape(*where.shape[:-1], -1, 2).astype(float) for of in (before, after)]
                assert (pairs[0].sum(-1) == pairs[1].sum(-1)).all()
                assert not where[..., size:].any()
            continue
        if edit == "sorted":
            (only,) = np.flatnonzero(np.diff(after["weight"]) < 0)
            assert (only >= after["weight"].size // 2) == (turn == 0)
            rows = (before["x"] != after["x"]).any(-1)
            assert rows.sum() == 2
            assert (np.sort(before["x"][rows]) == np.sort(after["x"][rows])).all()
            falls = [np.flatnonzero(np.diff(row) < 0).tolist() for row in after["x"][rows]]
            one, nearly = sorted(falls, key=len)
            assert one == []
            assert len(nearly) == 1
            assert (nearly[0] >= after["x"].shape[-1] // 2) == (turn == 0)
            continue
        if edit == "reversed":
            assert all((before[name] == after[name][..., ::-1]).all() for name in before)
            continue
        if edit == "repeated":
            for name, where in changed.items():
                assert not where[..., ::2].any()
                assert (where[..., 1::2].mean() if name == "x" else 0.5) == pytest.approx(0.5, abs=0.1)
                seconds = after[name][..., 1::2]
                assert (seconds == before[name][..., : 2 * seconds.shape[-1] : 2])[where[..., 1::2]].all()
            continue
        if edit == "alike":
            assert counts["weight"] == 0
            seconds = after["x"][1::2]
            own = seconds != after["x"][: 2 * len(seconds) : 2]
            assert (own.sum(-1) <= 1).all()
            assert own.any()
            assert not changed["x"][::2].any()
            assert (seconds == before["x"][1::2])[own].all()
            continue
        if edit == "close":
            for name, where in changed.items():
                assert not where[..., ::2].any()
                seconds, firsts = after[name][..., 1::2], after[name][..., : after[name].shape[-1] // 2 * 2 : 2]
                beside = [np.nextafter(firsts, np.copysign(far, firsts)) for far in (np.inf, 0.0)]
                assert ((seconds == beside[0]) | (seconds == beside[1]))[where[..., 1::2]].all()
                assert min((seconds == each).sum() for each in beside) > 0
            continue
        if edit == "begun":
            assert counts["weight"] == 0
            half = after["x"].shape[-1] // 2
            assert (after["x"][1::2, :half] == after["x"][:-1:2, :half]).all()
            assert not changed["x"][::2].any()
            assert not changed["x"][:, half:].any()
            continue
        for name, where in changed.items():
            all_of = np.zeros(where.shape, dtype=bool)
            size = where.shape[-1]
            if edit == "tail":
                all_of.flat[where.size - -(-where.size // 4) :] = True
            else:
                parts = {"later": (size - size // 2, size), "earlier": (0, size // 2)}
                start, end = parts.get(edit, (size // 4, size - size // 4))
                all_of[..., start:end] = True
            assert not where[~all_of].any()
            assert counts[name] == pytest.approx(int(all_of.sum()), abs=len(edits.EDITS))


@pytest.mark.parametrize(
    ("made", "of_one_kind"),
    [
        (lambda x: x * 0.3, True),
        (lambda x: x.round() * 2, False),
        (lambda x: x.abs() + 0.125, False),
        (lambda x: x * 5, False),
        (lambda x: x.double(), False),
        (lambda x: x.T, False),
        (lambda x: torch.where(x > 1, math.nan, x), True),
        (lambda x: x * math.nan, True),  # nothing is known
    ],
)
def test_a_tensor_stands_for_another_of_its_kind_alone(made: Callable[..., torch.Tensor], of_one_kind: bool) -> None:
    """Zero points that are held as floats are whole numbers, and a kernel may take them for that; scales are not."""
    one = torch.randn(9, 9, generator=torch.Generator().manual_seed(0))
    other = made(one)
    assert judging._of_one_kind(one, other) == of_one_kind
    assert judging._of_one_kind(other, one) == of_one_kind


def test_few_values_say_by_chance_what_kind_they_are_of() -> None:
    assert judging._of_one_kind(torch.tensor([0.01]), torch.tensor([-2.5]))
    assert not judging._of_one_kind(torch.tensor([0.1, 2.5, 0.3, 1.5]), torch.tensor([0.5, -2.5, 0.1, 1.5]))
    assert not judging._of_one_kind(torch.tensor([0.5]), torch.tensor([-2.0]))


def test_inputs_that_are_to_arrive_slowly_are_marked_and_outputs_are_not(judge: Judge, tmp_path: Path) -> None:
    laid = judge.lay_out(MODULE, Job(CASE, "zero-copy"), tmp_path)
    tensors = {name: value for name, value in laid.arguments.items() if isinstance(value, dict)}
    assert {name for name, value in tensors.items() if value.get("zero_copy")} == tensors.keys() - set(laid.outputs)
    assert launches.outlined(laid.arguments) == launches.outlined(
        judge.lay_out(MODULE, Job(CASE), tmp_path / "usual").arguments
    )


def test_elements_are_moved_apart_where_there_is_more_than_one() -> None:
    chamber = judging.Chamber(REPOSITORY, MODULE)
    views = chamber.do_views(CASE)
    assert [name for part, name in views if part == "spaced"] == ["x", "weight", "y"]
    column = chamber.do_views(dataclasses.replace(CASE, shape="column", dims={"rows": 17, "cols": 1}))
    assert not any(part == "spaced" for part, _ in column)
    chamber.operator.strided = False  # type: ignore[attr-defined]
    assert not any(part in ("spaced", "strided") for part, _ in chamber.do_views(CASE))


def test_what_lies_between_elements_is_what_is_read_by_who_leaves_strides_out(tmp_path: Path) -> None:
    chamber = judging.Chamber(REPOSITORY, MODULE)
    for name, causes in (("x", 2), ("weight", 1), ("y", 0)):
        laid = chamber.do_lay_out(Job(CASE, "spaced", name), str(tmp_path / name))
        strides = {key: value["strides"] for key, value in laid["arguments"].items() if isinstance(value, dict)}
        assert strides == {"x": [101, 1], "weight": [1], "y": [101, 1]} | {name: [2] if name == "weight" else [202, 2]}
        misread = chamber.misread.get(Job(CASE, "spaced", name).key, {})
        assert len(misread) == causes
        for call in misread.values():
            seen, meant = (made.tensor(name).flatten()[:101] for made in (call, chamber._call(Job(CASE))))
            assert torch.equal(seen[::2], meant[:51])
            assert bool((seen[1::2].abs() >= 1024).all())
    chamber.do_forget()
    assert not chamber.misread


def test_a_missing_result_is_the_candidates_fault(judge: Judge, tmp_path: Path) -> None:
    judge.lay_out(MODULE, Job(CASE), tmp_path)
    with pytest.raises(TestError, match="handed over no image"):
        judge.take(MODULE, Job(CASE), tmp_path)


def test_a_result_that_is_no_plain_file_is_not_waited_for(judge: Judge, tmp_path: Path) -> None:
    laid = judge.lay_out(MODULE, Job(CASE), tmp_path)
    run_right(laid.arguments)
    out = result(laid.arguments["y"])
    out.unlink()
    os.mkfifo(out)
    with pytest.raises(TestError, match="is no plain file"):
        judge.take(MODULE, Job(CASE), tmp_path)


def test_a_module_that_is_not_there_condemns_nobody(judge: Judge) -> None:
    with pytest.raises(JudgeError, match="cannot be imported"):
        judge.families("kernelproof.operators.softmaxx")
    assert judge.families(MODULE)[0] == "normal"


DRIFTING = """
import torch
from kernelproof.operators.rmsnorm import OPERATOR as rmsnorm

class Drifting(type(rmsnorm)):
    made = 0

    def make_call(self, case, generator):
        call = super().make_call(case, generator)
        Drifting.made += 1
        call.tensor("x").flatten()[0] += float(Drifting.made > SINCE)
        return call

OPERATOR = Drifting()
"""


@pytest.mark.parametrize("since", [1, 2])
def test_inputs_that_are_not_the_same_for_every_variant_condemn_nobody(tmp_path: Path, since: int) -> None:
    """A result was once held against a reference that had been made from other values of the same case."""
    (tmp_path / "drifting.py").write_text(DRIFTING.replace("SINCE", str(since)))
    judge = Judge(tmp_path, tmp_path, LIMIT_S)
    try:
        if since > 1:
            run_right(judge.lay_out("drifting.py", Job(CASE), tmp_path / "first").arguments)
            judge.take("drifting.py", Job(CASE), tmp_path / "first")
            assert judge.judge("drifting.py", Job(CASE), TERMS)[0].status == "passed"
            judge.forget("drifting.py")
        with pytest.raises(JudgeError, match=r"`make_call` gave other inputs") as caught:
            judge.lay_out("drifting.py", Job(CASE), tmp_path / "second")
        assert caught.value.subject == "drifting.py: odd-float32-normal-s3"
    finally:
        judge.close()


UNSEEDED = """
import torch
from kernelproof.operators.rmsnorm import OPERATOR as rmsnorm

class Unseeded(type(rmsnorm)):
    def make_call(self, case, generator):
        call = super().make_call(case, generator)
        call.tensor("x").flatten()[0] += torch.rand(()) if case.family == "offset" else 0
        return call

OPERATOR = Unseeded()
"""


def test_a_family_that_does_not_follow_from_the_seed_is_found_by_its_first_case(tmp_path: Path) -> None:
    (tmp_path / "unseeded.py").write_text(UNSEEDED)
    chamber = judging.Chamber(tmp_path, "unseeded.py")
    chamber._drawn(CASE)
    with pytest.raises(TestError, match="gave other inputs"):
        chamber._drawn(dataclasses.replace(CASE, family="offset"))


@pytest.mark.parametrize("dims", [{"rows": 17, "cols": 101}, {"rows": 17, "cols": 1}, {"rows": 2, "cols": 3}])
@pytest.mark.parametrize("family", ["normal", "offset"])
def test_inputs_that_do_not_follow_from_the_seed_condemn_nobody(
    tmp_path: Path, family: str, dims: dict[str, int]
) -> None:
    """Nobody could tell who computes from who remembers; a family of one value is another matter, and so are few."""
    changed = UNSEEDED.replace("        call.tensor", f"        if case.family == {family!r}: call.tensor")
    changed = re.sub(r"call\.tensor.*", "[tensor.fill_(0.5) for tensor in call.inputs.values()]", changed)
    (tmp_path / "constant.py").write_text(changed)
    chamber = judging.Chamber(tmp_path, "constant.py")
    case = dataclasses.replace(CASE, family=family, shape="s", dims=dims)
    for _ in ("one variant", "the next"):
        if family == "normal" and dims["cols"] == 101:
            with pytest.raises(TestError, match="the same inputs under 4 seeds") as caught:
                chamber.do_edits(case)
            assert caught.value.subject == f"constant.py: {case.id}"
        else:
            chamber.do_edits(case)


def test_an_input_of_an_earlier_call_is_told(judge: Judge, tmp_path: Path) -> None:
    """Who keeps a weight, or what it made of it, from the first call of these sizes on."""
    kept = b""
    for case in (CASE, dataclasses.replace(CASE, seed=CASE.seed + 1)):
        arguments = judge.lay_out(MODULE, Job(case), tmp_path / case.id).arguments
        image = Path(arguments["weight"]["image"])
        given, kept = image.read_bytes(), kept or image.read_bytes()
        image.write_bytes(kept)
        run_right(arguments)
        result(arguments["weight"]).write_bytes(given)
        judge.take(MODULE, Job(case), tmp_path / case.id)
        found, _ = judge.judge(MODULE, Job(case), TERMS)
    assert {failure.criterion for failure in found.failures} >= {"bound"}
    (bound,) = (failure.message for failure in found.failures if failure.criterion == "bound")
    assert f"Likely cause: weight is that of an earlier call ({CASE.id})" in bound


def test_what_an_earlier_input_gives_is_asked_of_each_output() -> None:
    outputs = {name: torch.full((2, 3), value, dtype=torch.float64) for name, value in (("a", 1.0), ("b", 2.0))}
    axes = dict.fromkeys(outputs, ("row", "column"))
    call = Call({name: value.float() for name, value in outputs.items()}, ("a", "b"), axes)
    given = {name: Reference(value, value, 2.0**-24) for name, value in outputs.items()}
    asked = []

    def computed(read: Call) -> dict[str, Reference]:
        asked.append(read)
        return given

    nobody = SimpleNamespace(suspects=lambda call, rows: None)
    reading = judging._Reading(nobody, lambda: {"kept": call}, computed)  # type: ignore[arg-type]
    for name, wanted in outputs.items():
        (suspect,) = reading.suspects(call.alone(name), torch.tensor([[1]]))
        assert torch.equal(suspect.output(), wanted[1:])
    assert asked == [call], "once"


FRAGILE = """
import torch
from kernelproof.operators.rmsnorm import OPERATOR as rmsnorm

class Fragile(type(rmsnorm)):
    def make_call(self, case, generator):
        call = super().make_call(case, generator)
        call.tensor("x").copy_(call.tensor("x").sort(-1).values)
        return call

    def reference(self, call, precision, device="cpu"):
        found = super().reference(call, precision, device)
        if not torch.equal(call.tensor("x"), call.tensor("x").sort(-1).values):
            found.output.fill_(torch.nan)
        return found

OPERATOR = Fragile()
"""


def test_a_reference_that_is_not_for_changed_inputs_is_told_how_to_say_so(tmp_path: Path) -> None:
    (tmp_path / "fragile.py").write_text(FRAGILE)
    judge = Judge(tmp_path, tmp_path, LIMIT_S)
    try:
        for job in (Job(CASE), Job(CASE, "reversed", f"5.{edits.EDITS.index('reversed')}")):
            run_right(judge.lay_out("fragile.py", job, tmp_path / job.key).arguments)
            judge.take("fragile.py", job, tmp_path / job.key)
            if job.part == "case":
                assert judge.judge("fragile.py", job, TERMS)[0].status == "passed"
        with pytest.raises(JudgeError, match="the reference is not finite") as caught:
            judge.judge("fragile.py", job, TERMS)
        assert "OPERATOR.whole" in (caught.value.hint or "")
    finally:
        judge.close()


TWICE = """
from kernelproof.operators.rmsnorm import OPERATOR as rmsnorm

class Twice(type(rmsnorm)):
    def sanity_calls(self, case, generator):
        return [*super().sanity_calls(case, generator)] * 2

OPERATOR = Twice()
"""


def test_exact_calls_of_one_name_are_refused(tmp_path: Path) -> None:
    """Of two with one name the first was dropped, and nobody was told."""
    (tmp_path / "twice.py").write_text(TWICE)
    judge = Judge(tmp_path, tmp_path, LIMIT_S)
    try:
        for _ in range(2):
            with pytest.raises(JudgeError, match="two exact calls have this name"):
                judge.exact_cases("twice.py", CASE)
    finally:
        judge.close()


DEAF = """
from kernelproof.operators import Call, rmsnorm

class Deaf(type(rmsnorm.OPERATOR)):
    def make_call(self, case, generator):
        call = super().make_call(case, generator)
        made = {name: getattr(value, "double", lambda: value)() for name, value in call.arguments.items()}
        made |= {name: call.arguments[name] for name in call.outputs}  # which are no inputs
        return Call(made, call.outputs, call.axes)

OPERATOR = Deaf()
"""


def test_inputs_of_another_data_type_than_the_case_has_are_the_operators_fault(tmp_path: Path) -> None:
    """A kernel that takes float32 alone would have been condemned for refusing them."""
    (tmp_path / "deaf.py").write_text(DEAF)
    judge = Judge(tmp_path, tmp_path, LIMIT_S)
    try:
        with pytest.raises(JudgeError, match="`make_call` made tensors of float64 for a case of float32") as caught:
            judge.lay_out("deaf.py", Job(CASE), tmp_path / "first")
        assert caught.value.subject == "deaf.py:5"
    finally:
        judge.close()


ODD = """
import torch
from kernelproof.operators.rmsnorm import OPERATOR as rmsnorm

class Odd(type(rmsnorm)):
    made = {}

    def make_call(self, case, generator):
        call = super().make_call(case, generator)
        draws = Odd.made[case.id] = Odd.made.get(case.id, 0) + 1
        call.tensor("x").flatten()[0] += float(case.seed > 3 and draws == 1)
        return call

OPERATOR = Odd()
"""


def test_one_odd_draw_of_a_case_is_forgiven_and_a_second_is_not(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    chamber = judging.Chamber(tmp_path, "odd.py")
    odd, other = (dataclasses.replace(CASE, seed=seed) for seed in (4, 5))
    first = chamber._drawn(CASE)
    for case in (odd, other):
        chamber._drawn(case)
    right = judging._digest(chamber._drawn(odd))
    assert chamber.inputs[odd.id] == right == judging._digest(chamber._drawn(odd))
    with pytest.raises(TestError, match="gave other inputs"):
        chamber._drawn(other)
    assert judging._digest(chamber._drawn(CASE)) == judging._digest(first)


MISSHAPEN = """
from kernelproof.operators import Reference, rmsnorm

class Misshapen(rmsnorm.RmsNorm):
    def reference(self, call, precision, device="cpu"):
        found = super().reference(call, precision, device)
        return Reference(found.output[:, :1], found.bound[:, :1], found.unit_roundoff)

OPERATOR = Misshapen()
"""


def test_a_reference_of_another_shape_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "misshapen.py").write_text(MISSHAPEN)
    judge = Judge(tmp_path, tmp_path, LIMIT_S)
    try:
        run_right(judge.lay_out("misshapen.py", Job(CASE), tmp_path / "first").arguments)
        judge.take("misshapen.py", Job(CASE), tmp_path / "first")
        with pytest.raises(JudgeError, match=r"have shape \[17, 1\], and the call's output \[17, 101\]") as caught:
            judge.judge("misshapen.py", Job(CASE), TERMS)
        assert caught.value.subject == "misshapen.py:5"
        assert str(caught.value.hint).startswith("`reference` gives a value and a bound for each element")
    finally:
        judge.close()


def test_without_torch_there_is_no_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ToolError, match="this Python has no module torch") as caught:
        Judge(REPOSITORY, tmp_path, LIMIT_S)
    assert caught.value.subject == sys.executable


def test_a_judge_that_is_killed_condemns_nobody(tmp_path: Path) -> None:
    judge = Judge(REPOSITORY, tmp_path, LIMIT_S)
    assert judge.families(MODULE)
    os.kill(judge._process.pid, signal.SIGKILL)
    with pytest.raises(JudgeError, match="the judge's process was killed by SIGKILL"):
        judge.families(MODULE)
    judge.close()


def test_what_was_begun_is_done_beside_the_caller_and_answered_to_who_asks_for_the_same(
    judge: Judge, tmp_path: Path
) -> None:
    jobs = [Job(dataclasses.replace(CASE, seed=seed)) for seed in range(40)]
    folders = [tmp_path / str(seed) for seed in range(40)]
    for job, folder in zip(jobs[1:], folders[1:], strict=True):
        judge.begin_to_lay_out(MODULE, job, folder)
    assert judge.families(MODULE)  # behind them
    assert all(folder.is_dir() for folder in folders[1:])
    made = (folders[3] / "x.img").stat().st_mtime_ns
    laid = [judge.lay_out(MODULE, job, folder) for job, folder in zip(jobs[:4], folders[:4], strict=True)]
    assert (folders[3] / "x.img").stat().st_mtime_ns == made
    for place, each in enumerate(laid):
        run_right(each.arguments, spoil=float(place == 2))
        judge.take(MODULE, jobs[place], folders[place])
    judge.drop()
    assert judge.families(MODULE)
    judge.lay_out(MODULE, jobs[5], folders[5])  # once more, for nobody took the first
    assert [judge.judge(MODULE, job, TERMS)[0].status for job in jobs[:4]] == ["passed", "passed", "failed", "passed"]


def test_what_was_begun_and_fails_is_told_to_who_takes_it(judge: Judge, tmp_path: Path) -> None:
    impossible = Job(dataclasses.replace(CASE, dtype="float8"))
    for _ in range(2):
        judge.begin_to_lay_out(MODULE, impossible, tmp_path / "impossible")
        judge.drop()
    judge.begin_to_lay_out(MODULE, impossible, tmp_path / "impossible")
    assert judge.families(MODULE)
    with pytest.raises(JudgeError, match="float8"):
        judge.lay_out(MODULE, impossible, tmp_path / "impossible")


def test_projects_whose_operators_are_our_own_share_a_judge_and_no_case(tmp_path: Path) -> None:
    resources = Resources(tmp_path)
    first, second = (tmp_path / name for name in ("first", "second"))
    try:
        judges = [resources.judge(folder, {MODULE}, LIMIT_S) for folder in (first, second)]
        assert judges[0]._process is judges[1]._process
        assert resources.judge(first, {MODULE, "mine.py"}, LIMIT_S)._process is not judges[0]._process
        for judge, folder, rows in zip(judges, (first, second), (17, 3), strict=True):
            job = Job(dataclasses.replace(CASE, dims={"rows": rows, "cols": 101}))  # under the same id
            run_right(judge.lay_out(MODULE, job, folder).arguments)
            judge.take(MODULE, job, folder)
            assert judge.judge(MODULE, job, TERMS)[0].status == "passed"
        os.kill(judges[0]._process.pid, signal.SIGKILL)
        judges[0]._process.wait()
        assert resources.judge(first, {MODULE}, LIMIT_S).families(MODULE)
    finally:
        resources.close()


def test_a_judge_that_dies_in_the_middle_of_a_session_is_said_to_have_died(tmp_path: Path) -> None:
    config, resources = project(tmp_path, "good"), Resources(tmp_path)
    try:
        session = Session(config, [config.operator("rmsnorm").variant("good")], resources)
        assert session.judge.families(MODULE)
        os.kill(session.judge._process.pid, signal.SIGKILL)
        session.judge._process.wait()
        with pytest.raises(JudgeError, match="the judge's process was killed by SIGKILL"):
            session.judge.forget(MODULE)
    finally:
        resources.close()


ENDLESS = """
from kernelproof.operators.rmsnorm import RmsNorm


class Endless(RmsNorm):
    def make_call(self, case, generator):
        while True:
            pass


OPERATOR = Endless()
"""


def test_an_operator_that_never_ends_is_ended_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(judging, "PATIENCE_S", 4.0)
    (tmp_path / "endless.py").write_text(ENDLESS)
    judge = Judge(tmp_path, tmp_path, limit_s=60.0)
    judge.lay_out(MODULE, Job(CASE), tmp_path / "first")  # so that it has started, which takes seconds
    judge._limit_s = 5.0
    with pytest.raises(JudgeError, match=r"did not answer `lay out of odd-float32-normal-s3` within 5 s") as caught:
        judge.lay_out("endless.py", Job(CASE), tmp_path / "second")
    place = r"endless\.py:\d, in make_call"
    assert re.fullmatch(place, str(caught.value.subject))
    assert "endless.py" in Path(str(caught.value.log)).read_text()  # the whole stack
    said = capfd.readouterr().err
    assert re.search(rf"^kernelproof: waiting for {place} \(`lay out of odd-.*`\), since 4 of 5 s$", said, re.MULTILINE)
    assert "test.operator_limit_s" in str(caught.value.hint)
    assert judge._process.poll() is not None
    judge.close()


LEAVING = """
import os
import sys
from kernelproof.operators import rmsnorm

class Leaving(rmsnorm.RmsNorm):
    def reference(self, call, precision, device="cpu"):
        print(SAID, end="", flush=True)
        EXIT(3)

OPERATOR = Leaving()
"""


@pytest.mark.parametrize(
    ("leave", "said", "words"),
    [
        ("sys.exit", "", "leaving.py:9: `Leaving.reference` raised SystemExit: 3 (case "),
        ("os._exit", "", "leaving.py: the judge's process ended with exit code 3 in the middle of `unfit of "),
        ("os._exit", "so long", "leaving.py: the judge's process ended with exit code 3 in the middle of `unfit of "),
        ("os._exit", "libtorch_cpu.so: failed to map segment from shared object", "next: memory ran out: close other"),
    ],
)
def test_an_operator_that_ends_the_process_is_named_and_leaves_no_folder(
    tmp_path: Path, leave: str, said: str, words: str
) -> None:
    project(tmp_path, "good")
    path = tmp_path / "config.yaml"
    path.write_text(path.read_text().replace("kernelproof.operators.rmsnorm", "leaving.py"))
    (tmp_path / "leaving.py").write_text(LEAVING.replace("EXIT", leave).replace("SAID", repr(said)))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "kernelproof", "test", "--operator", "rmsnorm", "--variant", "good"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "TMPDIR": str(temporary)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert [path.read_text() for path in temporary.iterdir()] == [said] * bool(said)


def test_no_worker_lives_when_a_result_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a candidate may look for in other processes is not there while it can look."""
    config = project(tmp_path, "good")
    judged, living = Calls.judged, []

    def watched(self: Calls, *arguments: Any, **options: Any) -> Any:
        living.append(self._worker is not None)
        return judged(self, *arguments, **options)

    monkeypatch.setattr(Calls, "judged", watched)
    (record,) = test.run(config, "rmsnorm", ["good"], config.results / "test" / "rmsnorm")
    assert record.verdict == "correct"
    assert len(living) > 10
    assert not any(living)


@pytest.mark.parametrize("foreseen", [True, False])
def test_calls_are_laid_out_while_those_before_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, foreseen: bool
) -> None:
    config = project(tmp_path, "good")
    run, begin, lay_out = Calls.run, Judge.begin_to_lay_out, Judge.lay_out
    begun, made = [], []

    def running(self: Calls, jobs: Any, *arguments: Any, following: Any = (), **options: Any) -> Any:
        other = () if foreseen else [*jobs, Job(dataclasses.replace(CASE, seed=len(begun)))]
        return run(self, jobs, *arguments, following=other or following, **options)

    def beginning(self: Judge, module: str, job: Job, folder: Path) -> None:
        begun.append((job.key, folder))
        begin(self, module, job, folder)

    def laying_out(self: Judge, module: str, job: Job, folder: Path) -> Any:
        made.append((job.key, folder))
        return lay_out(self, module, job, folder)

    monkeypatch.setattr(Calls, "run", running)
    monkeypatch.setattr(Judge, "begin_to_lay_out", beginning)
    monkeypatch.setattr(Judge, "lay_out", laying_out)
    (record,) = test.run(config, "rmsnorm", ["good"], config.results / "test" / "rmsnorm")
    assert record.verdict == "correct", record
    assert len(made) > len(begun) > 10
    assert set(begun) <= set(made) if foreseen else not set(begun) & set(made)


def test_the_supervisor_has_no_tensors(tmp_path: Path) -> None:
    project(tmp_path, "good")
    code = (
        "import sys; from kernelproof.cli import main; "
        "code = main(['test', '--operator', 'rmsnorm', '--variant', 'good']); "
        "print(code, 'torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[-2:] == ["0", "False"], done.stdout
    assert "Warning" not in done.stderr, done.stderr


# What is judged with a GPU: a case of each operator whose outputs have every kind of fault.
ON_GPU = {
    "attention": (
        Case("attention", "s", {"heads": 2, "seq": 40, "head_dim": 16}, {"causal": True}, "float16"),
        "input",
    ),
    "rmsnorm": (dataclasses.replace(CASE, dtype="bfloat16"), "input"),
    "qkt": (Case("qkt", "s", {"heads": 2, "seq": 40, "head_dim": 16}, {}, "uint8"), "float32"),
    "quantised_attention": (
        Case("quantised_attention", "s", {"heads": 2, "seq": 40, "head_dim": 16}, {}, "uint8"),
        "float16",
    ),
}
FAULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda right: right,
    "factor": lambda right: right * 1.01,
    "constant": lambda right: right + 0.5,
    "zero": torch.zeros_like,
    "nan": lambda right: torch.full_like(right, math.nan),
    "rows": lambda right: torch.where(torch.arange(right.shape[-2])[:, None] % 3 == 0, right.roll(1, -1), right),
    "last": lambda right: torch.where(torch.arange(right.shape[-1]) == right.shape[-1] - 1, 0.0, right),
    "coarse": lambda right: right.to(torch.float8_e4m3fn).to(right.dtype),
}


@pytest.mark.parametrize("name", ON_GPU)
def test_with_a_gpu_nothing_meets_a_tensor_of_the_cpu(name: str) -> None:
    """References lie on the GPU then, and an operator's exact calls, results and inputs do not."""
    case, output = ON_GPU[name]
    chamber = judging.Chamber(REPOSITORY, f"kernelproof.operators.{name}")
    terms = dataclasses.replace(TERMS, precision=Precision(output), device="cuda")
    failed, met = set(), set[str]()
    with TwoDevices():
        exact = [Job(case, "sanity", each) for each in chamber.do_exact_cases(case)]
        related = [Job(case, "relation", each) for each in chamber._relations(case)]
        for job in [Job(case), *exact, *related]:
            (name,), kind = chamber._call(job).outputs, chamber._call(job).output.dtype
            reference = chamber._reference(job, terms)[name]
            right = reference.output.cpu().to(kind)
            # Every fault in a first job of each kind; after that one, for what the others' own references do.
            faults = {fault: FAULTS[fault] for fault in (FAULTS if job.part not in met else ("none", "rows"))}
            met.add(job.part)
            for fault, wrong in faults.items():
                poison = torch.rand(right.shape).to(kind)
                chamber.returned[job.key] = {name: images.Returned(wrong(right.float()).to(kind), poison)}
                found, _ = chamber.do_judge(job, terms, None)
                failed |= {(job.part, fault)} if found.status == "failed" else set()
                if job.part == "relation":
                    base = chamber._base(job)
                    given = chamber._reference(base, terms)[name].output.cpu().to(kind)
                    chamber.returned[base.key] = {name: images.Returned(given, poison)}
                    chamber.do_related(job, terms)
            chamber.returned[job.key] = {name: images.Returned(poison, poison)}
            assert chamber.do_judge(job, terms, None)[0].status == "failed" or job.part == "relation"
    assert {part for part, _ in failed} >= {"case", "sanity"}
    assert not {pair for pair in failed if pair[1] == "none"}


@pytest.mark.parametrize(
    ("declared", "refused"), [("float32", False), ("input", False), ("bfloat16", True), ("float64", True)]
)
def test_the_declared_type_of_results_is_the_one_that_they_have(declared: str, refused: bool) -> None:
    """A coarser one would widen every limit."""
    chamber = judging.Chamber(REPOSITORY, MODULE)
    terms = dataclasses.replace(TERMS, precision=Precision(declared))
    if not refused:
        chamber._reference(Job(CASE), terms)
        return
    with pytest.raises(TestError, match=f"declares results of {declared}, and y is float32"):
        chamber._reference(Job(CASE), terms)
