"""Time and state: work out of order, repeats compared outside, memory off its boundary, refusals, whose kernels ran.

On a CPU with candidates in Python and with traces as they are written; on a GPU with `traces/mannered.cu`, built,
tested and timed by the real stages.
"""

from __future__ import annotations

import ctypes
import dataclasses
import faulthandler
import itertools
import json
import math
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from defects import REPOSITORY, CallFiles, rmsnorm_call

from kernelproof import bench, build, config, contest, gpu, images, records, supervisor, test, traces
from kernelproof.config import Config
from kernelproof.contest.measurement import Measurement
from kernelproof.errors import ConfigError, TestError, WorkerReplyError
from kernelproof.ladder.calling import Ran
from kernelproof.loading import Candidate, handed_over, load_image
from kernelproof.operators import Call, attention, with_own_strides
from kernelproof.records import BenchRecord, BuildRecord, Case, Cubin, KernelResources, PropertyResult, TestRecord
from kernelproof.supervisor import WorkerHost

PRESENT, WHY = gpu.available()

CANDIDATES = """
import itertools
import sys
import threading
import time

import torch

SEEN, KEPT, CALLS = {}, [], itertools.count()


def norm(x, weight, eps):
    return x * (x.double().square().mean(-1, keepdim=True) + eps).rsqrt().float() * weight


def good(x, weight, eps):
    return norm(x, weight, eps)


good_1 = good_2 = good


def of_torch(x, weight, eps):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


declared = of_torch


def inner(x, weight, eps):
    return torch.ops.aten._fused_rms_norm(x, x.shape[-1:], weight, eps)[0]


def threaded(x, weight, eps):
    found = []
    thread = threading.Thread(target=lambda: found.append(of_torch(x, weight, eps)))
    thread.start()
    thread.join()
    return found[0]


@torch.library.custom_op("mine::norm", mutates_args=())
def wrapped(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return of_torch(x, weight, eps)


def bends_inputs(x, weight, eps):  # what it leaves to others, where it is timed, is not what it was given
    for element, value in SEEN.pop("bent", ()):
        element.copy_(value)
    result = norm(x, weight, eps)
    if "kernelproof.timing" in sys.modules:
        SEEN["bent"] = [(x[0, :1], x[0, :1].clone())]
        x[0, 0] += 3
    return result


def wants_a_graph(x, weight, eps):  # marks the caller's own tensor
    return norm(x.requires_grad_(True), weight, eps).detach()


def by_numpy(x, weight, eps):
    return norm(torch.from_numpy(x.numpy()), weight, eps)


def late(x, weight, y, eps):
    y.copy_(norm(x, weight, eps))
    time.sleep(0.02)
    threading.Timer(0.005, lambda: y.view(-1)[:2].fill_(0.5)).start()


def later(x, weight, y, eps):
    y.copy_(norm(x, weight, eps))
    threading.Timer(0.1, lambda: y.view(-1)[:2].fill_(0.5)).start()


def after_the_last(x, weight, y, eps):
    y.copy_(norm(x, weight, eps))
    if next(CALLS) == 2:
        threading.Timer(0.02, lambda: y.view(-1)[:2].fill_(0.5)).start()


def counting(x, weight, y, eps):
    y.copy_(norm(x, weight, eps))
    y.view(-1)[0] = next(CALLS)


def wants_boundaries(x, weight, eps):
    if x.data_ptr() % 16:
        raise ValueError("x must begin on 16 bytes; pass a copy")
    return norm(x, weight, eps)


def takes_boundaries(x, weight, eps):
    behind = x.data_ptr() % 16 // 4
    return norm(torch.as_strided(x, x.shape, x.stride(), x.storage_offset() - behind), weight, eps)


def looks_at_x_alone(x, weight, eps):
    behind = 0 if x.data_ptr() % 16 else weight.data_ptr() % 16 // 4
    return norm(x, torch.as_strided(weight, weight.shape, (1,), weight.storage_offset() - behind), eps)


def takes_rows_as_packed(x, weight, eps):
    return norm(torch.as_strided(x, x.shape, (x.shape[1], 1)), weight, eps)


def takes_rows_as_aligned(x, weight, eps):
    return norm(torch.as_strided(x, x.shape, (x.stride(0) // 4 * 4, 1)), weight, eps)


def wants_packed_rows(x, weight, eps):
    if not x.is_contiguous():
        raise ValueError("x must be contiguous")
    return norm(x, weight, eps)


def takes_elements_as_packed(x, weight, eps):
    return norm(torch.as_strided(x, x.shape, (*x.stride()[:-1], 1)), weight, eps)


def takes_weight_as_packed(x, weight, eps):
    return norm(x, torch.as_strided(weight, weight.shape, (1,)), eps)


def wants_elements_together(x, weight, eps):
    for name, tensor in (("x", x), ("weight", weight)):
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name} has stride {tensor.stride(-1)} along its last dimension, expected 1")
    return norm(x, weight, eps)


def writes_elements_together(x, weight, y, eps):
    torch.as_strided(y, y.shape, (*y.stride()[:-1], 1)).copy_(norm(x, weight, eps))


def returns_two_in_turn(x, weight, eps):
    one, other = SEEN.pop(x.shape, None) or (torch.empty(x.shape), torch.empty(x.shape))
    SEEN[x.shape] = other, one
    return one.copy_(norm(x, weight, eps))


def keeps_a_workspace(x, weight, eps):
    return SEEN.setdefault(x.shape, torch.empty(x.shape)).copy_(norm(x, weight, eps)).clone()


def declined(when, what):
    if when:
        raise NotImplementedError(f"{what} is not supported")


def refuses_offsets(x, weight, eps):
    declined(x.mean() > 5, "a mean like this")
    return norm(x, weight, eps)


def refuses_large_values(x, weight, eps):
    declined(x.abs().max() > 10, "a value like this")
    return norm(x, weight, eps)


def refuses_odd_rows(x, weight, eps):
    declined(len(x) % 2, "an odd number of rows")
    return norm(x, weight, eps)


def refuses_other_eps(x, weight, eps):
    declined(eps not in (0, 1e-5), "this eps")
    return norm(x, weight, eps)


def slow_clock(x, weight, eps):
    if not SEEN:
        true = SEEN["clock"] = time.perf_counter_ns
        time.perf_counter_ns = lambda: true() // 4
    return norm(x, weight, eps)


def unless_written(x, weight, eps):
    given = x, weight
    state = x._version, weight._version, eps
    for tensors, then, result in KEPT:
        if then == state and all(a is b for a, b in zip(tensors, given)):
            return result.clone()
    result = [norm(x, weight, eps) for _ in range(32)][0]
    KEPT.insert(0, (given, state, result))
    del KEPT[64:]
    return result.clone()
"""


# --- the worker -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerHost]:
    with WorkerHost(device="cpu", needs_torch=True, scratch=tmp_path_factory.mktemp("scratch"), threads=1) as host:
        yield host


def asked(host: WorkerHost, call: CallFiles, name: str, passing: str, repeats: int = 1, drawn: Any = ()) -> Any:
    (call.folder / "candidates.py").write_text(CANDIDATES)
    process = host.spawn(scratch=call.folder)
    entry = Candidate("python", "cpu", passing, f"candidates.py:{name}", None, str(call.folder))
    try:
        process.request("load", timeout_s=60, candidate=dataclasses.asdict(entry))
        reply = process.request("run", timeout_s=60, arguments=call.arguments, outputs=["y"], repeats=repeats)
        if drawn:
            process.request("repeats", timeout_s=60, images=[call.arguments["y"]["image"]], indices=drawn)
        return reply
    finally:
        process.close()


def test_a_result_that_changes_when_the_call_is_over_is_late(host: WorkerHost, tmp_path: Path) -> None:
    reply = asked(host, rmsnorm_call(tmp_path), "late", "destination")
    assert [(call, when) for call, when, _ in reply["out_of_order"]] == [(0, "after")]
    assert 1 <= reply["out_of_order"][0][2] <= 8


def test_a_result_that_changes_after_its_request_is_late_in_a_later_one(host: WorkerHost, tmp_path: Path) -> None:
    call = rmsnorm_call(tmp_path)
    (tmp_path / "candidates.py").write_text(CANDIDATES)
    process = host.spawn(scratch=tmp_path)
    entry = Candidate("python", "cpu", "destination", "candidates.py:later", None, str(tmp_path))
    process.request("load", timeout_s=60, candidate=dataclasses.asdict(entry))
    found = []
    for _ in range(2):
        reply = process.request("run", timeout_s=60, arguments=call.arguments, outputs=["y"])
        found.append([(number, when) for number, when, _ in reply["out_of_order"]])
        time.sleep(0.3)
    process.close()
    assert found == [[], [(0, "later")]]


def test_a_result_that_changes_after_the_last_repeat_is_late(host: WorkerHost, tmp_path: Path) -> None:
    reply = asked(host, rmsnorm_call(tmp_path), "after_the_last", "destination", repeats=3)
    assert [(call, when) for call, when, _ in reply["out_of_order"]] == [(0, "later")]


def test_what_is_handed_over_is_what_was_there_when_the_call_was_over(host: WorkerHost, tmp_path: Path) -> None:
    call = rmsnorm_call(tmp_path)
    asked(host, call, "late", "destination")
    assert call.error() < 1e-5


def test_an_honest_call_is_in_order(host: WorkerHost, tmp_path: Path) -> None:
    assert asked(host, rmsnorm_call(tmp_path), "good", "return", repeats=3)["out_of_order"] == []


def test_repeats_that_are_drawn_afterwards_are_handed_over(host: WorkerHost, tmp_path: Path) -> None:
    call = rmsnorm_call(tmp_path)
    reply = asked(host, call, "counting", "destination", repeats=6, drawn=[4, 1])
    assert (reply["kept"], reply["differing"]) == (5, 5)
    size = Path(call.arguments["y"]["image"]).stat().st_size
    data = handed_over(tmp_path, call.arguments["y"]["image"], ".repeats").read_bytes()
    assert len(data) == 2 * size
    firsts = [torch.frombuffer(bytearray(data[n * size + 4096 :][:4]), dtype=torch.float32).item() for n in (0, 1)]
    assert firsts == [5.0, 2.0]  # the calls count from 0, the repeats from the second call on


def test_the_judge_finds_the_first_element_that_differs_in_a_repeat(tmp_path: Path) -> None:
    call = Call({"x": torch.ones(2, 3), "y": torch.zeros(2, 3)}, outputs=("y",), axes=("row", "column"))
    layout = images.layout_images(call, tmp_path / "0")
    image = layout.images["y"]
    first, other = image.raw.clone(), image.raw.clone()
    image.elements(other)[1, 1] = -image.elements(first)[1, 1]
    other[0] ^= 1  # a guard band is no element
    handed_over(tmp_path, image.path).write_bytes(first.numpy().tobytes())
    repeats = torch.cat([first, other, first])
    handed_over(tmp_path, image.path, ".repeats").write_bytes(repeats.numpy().tobytes())
    _, ((*place, _),) = images.unlike_first(layout, tmp_path, 3)
    assert place == [1, "y", 4]
    with pytest.raises(TestError, match="bytes instead of"):
        images.unlike_first(layout, tmp_path, 2)


GOOD = {"repeats": 1, "differing": 0, "first_difference": None, "kept": 0, "farthest": None, "out_of_order": []}


@pytest.mark.parametrize(
    "reply",
    [
        *(None, {}, {**GOOD, "kept": "many"}, {**GOOD, "out_of_order": [[0, "never", 1]]}, {**GOOD, "differing": []}),
        *({**GOOD, "kept": count} for count in (math.inf, math.nan, True, -1, 10, 10**400)),
        *({**GOOD, "out_of_order": [[call, "after", size]]} for call, size in ((2, 1), (-1, 1), (0, math.inf))),
        *({**GOOD, "first_difference": place} for place in ([1], [1, "y", math.inf], [10, "y", 0], [1, "x", 0], "12")),
        *({**GOOD, "farthest": repeat} for repeat in (-1, 10, 1.0)),
    ],
)
def test_an_answer_that_no_worker_gives_is_refused(reply: Any) -> None:
    assert Ran.of(GOOD, ["y"]).out_of_order == []
    assert Ran.of({**GOOD, "kept": 9, "out_of_order": [[1, "after", 4]]}, ["y"], 2, 10).kept == 9
    with pytest.raises(WorkerReplyError, match="not one that it gives"):
        Ran.of(reply, ["y"], 2, 10)


# --- memory off its boundary ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.uint8])
def test_a_shifted_image_begins_one_element_later_and_is_read_back_whole(tmp_path: Path, dtype: torch.dtype) -> None:
    values = (torch.arange(12).reshape(3, 4) + 1).to(dtype)
    call = Call({"x": values, "y": torch.zeros(3, 4, dtype=dtype)}, outputs=("y",), axes=("row", "column"))
    layout = images.layout_images(call, tmp_path / "0", shifted=call.tensors)
    item = values.element_size()
    assert {entry["offset"] for entry in layout.spec.values()} == {images.BAND_BYTES + item}
    for image in layout.images.values():
        raw = image.raw.clone()
        if image.name == "y":
            image.elements(raw).copy_(values)
        handed_over(tmp_path, image.path).write_bytes(raw.numpy().tobytes())
    returned = images.read_back(layout, tmp_path)["y"]
    assert torch.equal(returned.output, values)
    assert (returned.band_damage, returned.inputs_changed) == ([], [])
    raw[images.BAND_BYTES + item - 1] ^= 1  # the last byte before the first element
    handed_over(tmp_path, image.path).write_bytes(raw.numpy().tobytes())
    assert "1 element before the beginning" in images.read_back(layout, tmp_path)["y"].band_damage[0]


@pytest.mark.parametrize(("side", "beyond"), [("end", 12), ("start", -1)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.uint8])
def test_a_fenced_image_has_no_memory_on_one_side(tmp_path: Path, dtype: torch.dtype, side: str, beyond: int) -> None:
    values = (torch.arange(12).reshape(3, 4) + 1).to(dtype)
    call = Call({"x": values, "y": torch.zeros(3, 4, dtype=dtype)}, outputs=("y",), axes=("row", "column"))
    layout = images.layout_images(call, tmp_path / "0", fenced=side)
    for image in layout.images.values():
        raw = image.raw.clone()
        image.elements(raw).copy_(values)
        handed_over(tmp_path, image.path).write_bytes(raw.numpy().tobytes())
    returned = images.read_back(layout, tmp_path)["y"]
    assert torch.equal(returned.output, values)
    assert (returned.band_damage, returned.inputs_changed) == ([], [])
    descriptor, item = {**layout.spec["x"], "dtype": str(dtype).removeprefix("torch.")}, values.element_size()
    for place, alive in ((0, True), (11, True), (beyond, False)):
        child = os.fork()
        if child == 0:
            faulthandler.disable()
            loaded = load_image(descriptor, "cpu", with_torch=True)
            ctypes.string_at(loaded.view.data_ptr() + place * item, item)
            os._exit(0)
        assert (os.waitpid(child, 0)[1] == 0) is alive


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("seq", [5, 7])
def test_tensors_have_strides_of_their_own(layout: str, seq: int) -> None:
    case = Case("attention", "t", {"batch": 2, "heads": 3, "seq": seq, "head_dim": 8}, {"layout": layout}, "float16")
    call = attention.OPERATOR.make_call(case, torch.Generator().manual_seed(0))
    apart = with_own_strides(call)
    assert apart.scalars == call.scalars
    assert all(torch.equal(tensor, call.tensor(name)) for name, tensor in apart.inputs.items())
    strides = [tensor.stride() for tensor in apart.tensors.values()]
    for dim in range(3):
        assert len({stride[dim] for stride in strides}) == 4
        assert all(stride[dim] % 8 == 0 for stride in strides)
    assert {stride[3] for stride in strides} == {1}
    heads_outside = [stride[1] > stride[2] for stride in strides]
    assert heads_outside == [(layout == "bhsd") == (place == 0) for place in range(4)]
    assert [stride[0] < min(stride[1:3]) for stride in strides] == [False, False, True, False]


def test_the_rows_of_one_tensor_are_an_element_apart() -> None:
    case = Case("attention", "t", {"batch": 2, "heads": 3, "seq": 5, "head_dim": 8}, {}, "float16")
    call = attention.OPERATOR.make_call(case, torch.Generator().manual_seed(0))
    apart = with_own_strides(call, "k")
    assert torch.equal(apart.tensor("k"), call.tensor("k"))
    assert apart.tensor("k").stride() == (139, 46, 9, 1)
    assert all(apart.tensor(name).stride() == call.tensor(name).stride() for name in ("q", "v", "o"))


def test_uneven_rows_begin_on_no_boundary() -> None:
    call = Call({"x": torch.zeros(3, 127), "y": torch.zeros(3, 128)}, outputs=("y",), axes=("row", "column"))
    strides = [with_own_strides(call, name).tensor(name).stride() for name in ("x", "y")]
    assert strides == [(129, 1), (129, 1)]


def climbed(
    folder: Path,
    names: list[str],
    passing: str = "return",
    families: Sequence[str] = ("normal",),
    more: Mapping[str, Mapping[str, Any]] | None = None,
    baselines: Mapping[str, str] | None = None,
    **settings: Any,
) -> dict[str, TestRecord]:
    """The test stage's records of some candidates. `more`: settings of single ones; baselines: which each one is."""
    common = {"abi": "python", "device": "cpu", "passing": passing, "dtypes": ["float32"]}
    common["precision"] = {"output": "float32"}
    data = {
        "schema": "kernelproof.config/1",
        "project": "p",
        "operators": {
            "rmsnorm": {
                "module": "kernelproof.operators.rmsnorm",
                "shapes": {"even": {"rows": 16, "cols": 96}},
                "test": {"shapes": ["even"], "families": list(families)},
                "bench": {"shapes": ["even"]},
                "variants": {
                    name: {**common, "entry": f"candidates.py:{name}", **(more or {}).get(name, {})} for name in names
                },
                "baselines": {
                    name: {**common, "entry": f"candidates.py:{of}"} for name, of in (baselines or {}).items()
                },
            }
        },
        "test": {"seeds": [0], "trials": 20},
        "bench": {
            "processes": 1,
            "blocks": 2,
            "sample_ms": 1.0,
            "max_seconds": 0.2,
            "modes": ["hot"],
            "cpu_threads": 1,
        },
        **settings,
    }
    folder.mkdir(exist_ok=True)
    (folder / "candidates.py").write_text(CANDIDATES)
    (folder / "config.yaml").write_text(yaml.safe_dump(data))
    loaded = config.load(folder / "config.yaml", root=folder)
    found = test.run(loaded, "rmsnorm", [*names, *(baselines or {})], loaded.results / "test" / "rmsnorm")
    return {record.variant: record for record in found}


def test_memory_off_its_boundary_is_handled_or_refused(tmp_path: Path) -> None:
    found = climbed(tmp_path, ["good", "wants_boundaries", "takes_boundaries"])
    shifted = {name: [p for p in record.properties if p.name == "shifted"] for name, record in found.items()}
    assert {name: [p.status for p in tried] for name, tried in shifted.items()} == {
        "good": ["passed"],
        "wants_boundaries": ["skipped"],
        "takes_boundaries": ["failed"],
    }
    assert "refused: ValueError: x must begin on 16 bytes" in str(shifted["wants_boundaries"][0].message)
    assert {name: record.verdict for name, record in found.items()} == {
        "good": "correct",
        "wants_boundaries": "correct",
        "takes_boundaries": "wrong",
    }


def test_each_tensor_has_a_boundary_and_strides_of_its_own(tmp_path: Path) -> None:
    found = climbed(
        tmp_path, ["looks_at_x_alone", "takes_rows_as_packed", "takes_rows_as_aligned", "wants_packed_rows"]
    )
    views = {
        name: {p.name: p.status for p in record.properties if p.name.startswith(("shifted", "strided"))}
        for name, record in found.items()
    }
    right = dict.fromkeys(
        ["strided", "strided x", "strided y", "shifted", "shifted x", "shifted weight", "shifted y"], "passed"
    )
    assert views == {
        "looks_at_x_alone": {**right, "shifted weight": "failed"},
        "takes_rows_as_packed": {**right, "strided": "failed", "strided x": "failed"},
        "takes_rows_as_aligned": {**right, "strided x": "failed"},
        "wants_packed_rows": {**right, "strided": "skipped", "strided x": "skipped"},
    }
    assert [record.verdict for record in found.values()] == ["wrong", "wrong", "wrong", "correct"]


def spaced(record: TestRecord) -> dict[str, PropertyResult]:
    return {found.name: found for found in record.properties if found.name.startswith("spaced")}


def test_elements_that_lie_apart_are_handled_or_refused(tmp_path: Path) -> None:
    found = climbed(tmp_path, ["good", "takes_elements_as_packed", "takes_weight_as_packed", "wants_elements_together"])
    right = dict.fromkeys(["spaced x", "spaced weight", "spaced y"], "passed")
    assert {name: {p.name: p.status for p in spaced(record).values()} for name, record in found.items()} == {
        "good": right,
        "takes_elements_as_packed": {**right, "spaced x": "failed"},
        "takes_weight_as_packed": {**right, "spaced weight": "failed"},
        "wants_elements_together": {**right, "spaced x": "skipped", "spaced weight": "skipped"},
    }
    assert [record.verdict for record in found.values()] == ["correct", "wrong", "wrong", "correct"]
    reason = str(found["takes_weight_as_packed"].reason)
    assert "with elements of weight alone two apart (its last stride is 2) the result is right, or refused" in reason
    assert "Likely cause: weight is read as if it were contiguous, whatever its strides" in reason
    reason = str(found["takes_elements_as_packed"].reason)
    assert "Likely cause: x is read as if the stride along its last dimension were 1" in reason
    said = str(spaced(found["wants_elements_together"])["spaced weight"].message)
    assert said.startswith("refused: ValueError: weight has stride 2 along its last dimension, expected 1")


def test_results_between_the_elements_of_an_output_are_found(tmp_path: Path) -> None:
    record = climbed(tmp_path, ["writes_elements_together"], passing="destination")["writes_elements_together"]
    assert record.verdict == "wrong"
    assert "bytes written between the elements of the view" in str(spaced(record)["spaced y"].message)
    assert {name: p.status for name, p in spaced(record).items()} == {
        "spaced x": "passed",
        "spaced weight": "passed",
        "spaced y": "failed",
    }


def test_who_is_late_is_named_for_it(tmp_path: Path) -> None:
    record = climbed(tmp_path, ["late"], passing="destination")["late"]
    assert record.verdict == "wrong"
    failures = {failure.criterion: failure.message for case in record.cases for failure in case.failures}
    assert "changed when the call was over" in failures["late"]


# --- memory that was returned -----------------------------------------------------------------------------------------


def test_a_result_is_left_alone_by_later_calls(tmp_path: Path) -> None:
    found = climbed(tmp_path, ["returns_two_in_turn", "keeps_a_workspace"])
    assert {name: record.verdict for name, record in found.items()} == {
        "returns_two_in_turn": "wrong",
        "keeps_a_workspace": "correct",
    }
    assert "a later call wrote to the tensor that it had returned" in str(found["returns_two_in_turn"].reason)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_values_may_not_be_refused(tmp_path: Path) -> None:
    found = climbed(tmp_path, ["refuses_offsets", "refuses_large_values"], families=["normal", "offset"])
    assert {name: record.verdict for name, record in found.items()} == {
        "refuses_offsets": "wrong",
        "refuses_large_values": "wrong",
    }
    for name, shape, words in (
        ("refuses_offsets", "even", "it refuses values: .* it said: a mean like this is not supported"),
        ("refuses_large_values", "sanity_zero_rows", "it refuses values: .* it said: a value like this"),
    ):
        failed = [case for case in found[name].cases if case.status == "failed"]
        assert {case.shape for case in failed} == {shape}
        assert {failure.criterion for case in failed for failure in case.failures} == {"refusal"}
        assert re.search(words, found[name].reason or "")
    assert found["refuses_offsets"].repeat is not None
    assert "-offset-" in found["refuses_offsets"].repeat


def test_shapes_and_scalars_may_be_refused_and_the_record_says_which_were(tmp_path: Path) -> None:
    found = climbed(tmp_path, ["refuses_odd_rows", "refuses_other_eps"])
    assert {record.verdict for record in found.values()} == {"correct"}
    skipped = {c.shape: c.reason for c in found["refuses_odd_rows"].cases if c.status == "skipped"}
    assert set(skipped) == {f"sanity_{name}" for name in ("signs", "constant", "one_entry", "zero_rows")}
    assert set(skipped.values()) == {"refused: an odd number of rows is not supported"}
    tried = {p.name: (p.status, p.message) for p in found["refuses_other_eps"].properties}
    assert tried.pop("scaled rows") == ("skipped", "refused: this eps is not supported")
    assert {status for status, _ in tried.values()} == {"passed"}


# --- whose kernels ran ------------------------------------------------------------------------------------------------

OWN_NAME = "void mine::norm<float>(float const*, int)"
GEMM = "nvjet_hsh_64x8_64x16_1x1_h_bz_TNT"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, char*[3]>(int, float)"
COPY = "Memcpy DtoD (Device -> Device)"


def built(*names: str) -> BuildRecord:
    kernels = [KernelResources(f"_Z{n}", name, 32, 0, 0, 0, 0, 10, "0") for n, name in enumerate(names)]
    return BuildRecord(operator="o", variant="v", cubins=[Cubin("sm_90a", "c", "0", 1, "0", kernels=kernels)])


@pytest.mark.parametrize(
    ("names", "calls", "fault"),
    [
        ([OWN_NAME], [], None),
        (["_Z0"], [], None),  # a name too long for the profiler stays mangled
        (["void mine::norm<float>(float const *, int)", COPY, "Memset (Device)"], [], None),
        ([OWN_NAME, "memset32", "memcpy32_post"], [], None),  # the driver's, in a graph
        (["memset32"], [], "no kernel of its own ran, only memset32"),
        ([OWN_NAME, "memset32_and_gemm(float*)"], [], "passed off"),
        ([GEMM], ["cublas"], None),
        ([OWN_NAME, "helper_of_theirs(float*)"], ["helper_of"], None),
        ([GEMM], [], "library call passed off as own work: nvjet_hsh.* is no kernel of its build"),
        ([OWN_NAME, ADD], ["cublas"], "at::native::vectorized_elementwise_kernel"),
        ([COPY], [], "no kernel of its own ran, only Memcpy DtoD"),
        ([COPY], ["memcpy"], None),
    ],
)
def test_kernels_are_own_declared_or_foreign(names: list[str], calls: list[str], fault: str | None) -> None:
    found = traces.sort_kernels(names, traces.own_kernels(built(OWN_NAME)), calls).fault
    if fault is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(fault, found), found


def test_of_a_python_variant_only_known_libraries_are_foreign() -> None:
    assert traces.sort_kernels(["attention_fwd_triton"], None, []).fault is None
    assert "passed off" in str(traces.sort_kernels(["attention_fwd_triton", ADD], None, []).fault)
    assert traces.sort_kernels(["attention_fwd_triton", ADD], None, ["torch"]).fault is None
    assert traces.sort_kernels(["memset32"], None, []).fault is None


def test_kernels_of_one_trace_alone_are_listed() -> None:
    assert traces.other_names([OWN_NAME, COPY], [OWN_NAME]) == []
    assert traces.other_names([OWN_NAME], ["cheap(int)"]) == ["cheap(int)", OWN_NAME]


def test_what_calls_may_hold_is_checked(tmp_path: Path) -> None:
    variant = {"abi": "python", "entry": "m:f", "device": "cuda", "dtypes": ["float32"], "calls": ["cublas", "sm90_("]}
    variant["precision"] = {"output": "float32"}
    operator = {"module": "kernelproof.operators.rmsnorm", "shapes": {"s": {"rows": 1, "cols": 8}}}
    operator |= {"test": {"shapes": ["s"]}, "bench": {"shapes": ["s"]}, "variants": {"v": variant}}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"schema": "kernelproof.config/1", "project": "p", "operators": {"o": operator}}))
    with pytest.raises(ConfigError, match=r"'sm90_\(' is no regular expression"):
        config.load(path, root=tmp_path)


def test_the_project_declares_the_library_that_it_calls() -> None:
    loaded = config.load(REPOSITORY / "config.yaml", root=REPOSITORY)
    assert {v.key: v.calls for v in loaded.variants() if v.calls} == {"qkt/cublas_qkt": ["cublas"]}


def measurement(tmp_path: Path, calls: list[str]) -> Measurement:
    """A measurement of one contender on no case, whose traces are put in by hand."""
    loaded = climbed_config(tmp_path, calls)
    variant = loaded.operator("rmsnorm").variants["ours"]
    contender = records.Contender("ours", "variant", "tvm_ffi", "correct", True, "timed")
    entrant = contest.entrants.Entrant(variant, contender, {}, traces.own_kernels(built(OWN_NAME)))
    return Measurement(loaded, "cuda", [entrant], [], None, tmp_path)  # type: ignore[arg-type]


def seen(name: str, count: float = 1.0) -> dict[str, Any]:
    """A kernel of a trace."""
    return {"name": name, "grid": [4, 1, 1], "block": [32, 1, 1], "count": count}


def climbed_config(folder: Path, calls: list[str]) -> Config:
    variant = {"abi": "python", "entry": "m:f", "device": "cuda", "dtypes": ["float32"], "calls": calls}
    variant["precision"] = {"output": "float32"}
    operator = {"module": "kernelproof.operators.rmsnorm", "shapes": {"s": {"rows": 1, "cols": 8}}}
    operator |= {"test": {"shapes": ["s"]}, "bench": {"shapes": ["s"]}, "variants": {"ours": variant}}
    data = {"schema": "kernelproof.config/1", "project": "p", "operators": {"rmsnorm": operator}}
    (folder / "config.yaml").write_text(yaml.safe_dump(data))
    return config.load(folder / "config.yaml", root=folder)


def test_an_undeclared_library_is_condemned_before_anything_is_timed(tmp_path: Path) -> None:
    for calls, correct in (([], False), (["cublas"], True)):
        folder = tmp_path / str(correct)
        folder.mkdir()
        found = measurement(folder, calls)
        found.found.kernels = {"ours": {"c": [seen(OWN_NAME), seen(GEMM)]}}
        found.found.eager_kernels = {"ours": {"c": [OWN_NAME, GEMM]}}
        found.judge_kernels()
        assert found.entrants["ours"].contender.correct is correct
        assert [entry["check"] for entry in found.found.dropped] == ([] if correct else ["library"])
        assert [k["origin"] for k in found.found.kernels["ours"]["c"]] == ["own", "declared" if correct else "foreign"]


@pytest.mark.parametrize("alone", [[seen(OWN_NAME)], [seen(OWN_NAME), seen(GEMM)]])
def test_who_is_accused_beside_others_is_traced_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: list[dict[str, Any]]
) -> None:
    """What another one left running shows in every trace of its process."""
    found, asked = measurement(tmp_path, []), []

    def is_traced_alone(name: str, case: str) -> bool:
        asked.append((name, case))
        found.found.kernels[name][case] = alone
        return True

    monkeypatch.setattr(found, "is_traced_alone", is_traced_alone)
    found.found.kernels = {"ours": {"c": [seen(OWN_NAME), seen("spin()", 0.625)]}}
    found.judge_kernels()
    assert asked == [("ours", "c")]
    assert found.entrants["ours"].contender.correct is (len(alone) == 1)
    assert [entry["reason"][:70] for entry in found.found.dropped] == (
        [] if len(alone) == 1 else ["wrong: library call passed off as own work: nvjet_hsh_64x8_64x16_1x1_h"]
    )


@pytest.mark.parametrize("owners", [1, 2])
def test_whose_kernels_run_beside_the_calls_of_others_is_dropped_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owners: int
) -> None:
    """A kernel that two builds have says nothing of either."""
    found = measurement(tmp_path, [])
    case = Case("rmsnorm", "s", {"rows": 1, "cols": 8}, {}, "float32", "normal", 0)
    for name in ("spinner", "other")[:owners]:
        variant = dataclasses.replace(found.entrants["ours"].variant, name=name)
        contender = records.Contender(name, "variant", "tvm_ffi", "correct", True, "timed")
        found.entrants[name] = contest.entrants.Entrant(variant, contender, {}, traces.own_kernels(built("spin()")))
    cost = records.BenchCase("s-float32", "s", {}, {}, "float32", 0.0, 0.0, 0.0)
    found.arenas = [contest.entrants.Arena(case, "fresh", {}, cost, {}, list(found.entrants))]

    def is_traced_alone(name: str, case: str) -> bool:
        found.found.kernels[name][case] = [seen(OWN_NAME)]
        return True

    monkeypatch.setattr(found, "is_traced_alone", is_traced_alone)
    found.found.kernels = {"ours": {"s-float32": [seen(OWN_NAME), seen("spin()", 0.625)]}}
    found.judge_kernels()
    assert found.entrants["ours"].contender.correct
    assert [(entry["contender"], entry["check"], entry["reason"]) for entry in found.found.dropped] == [
        ("spinner", "wall", "times escape: its kernel spin ran on the GPU while the calls of ours did")
    ][: owners % 2]


def test_a_graph_of_other_kernels_than_a_call_outside_is_noted_by_name(tmp_path: Path) -> None:
    found = measurement(tmp_path, ["fast"])
    found.found.kernels = {"ours": {"c": [seen("fast_path(int)")]}}
    found.found.eager_kernels = {"ours": {"c": [OWN_NAME]}}
    found.judge_kernels()
    assert [(n["outcome"], n["case"]) for n in found.found.notes] == [("other_kernels_when_timed", "c")]
    assert found.found.notes[0]["message"] == "not in both: fast_path; mine::norm<float>"


@pytest.mark.parametrize(
    ("kernels", "dropped", "noted"),
    [
        ([seen(OWN_NAME, 2.0), seen("tail()")], 0, 0),
        ([seen(OWN_NAME, 0.333)], 1, 0),
        ([seen(OWN_NAME, 0.005)], 1, 0),
        ([seen(OWN_NAME), seen("sometimes()", 0.125)], 1, 0),
        ([seen(OWN_NAME, 0.5), seen("stub()", 0.5)], 0, 1),
        ([seen(OWN_NAME), {"name": "Memset (Device)", "grid": [], "block": [], "count": 0.125}], 0, 0),
    ],
)
def test_calls_of_a_graph_that_run_nothing_are_an_escape(
    tmp_path: Path, kernels: list[dict[str, Any]], dropped: int, noted: int
) -> None:
    found = measurement(tmp_path, ["tail", "sometimes", "stub"])
    found.found.kernels = {"ours": {"c": kernels}}
    found.judge_kernels()
    assert len(found.found.dropped) == dropped
    assert len(found.found.notes) == noted
    assert all("not every call in a graph runs" in entry["reason"] for entry in found.found.dropped)


# --- times, seen from outside -----------------------------------------------------------------------------------------


def timed(folder: Path, names: list[str], **settings: Any) -> BenchRecord:
    """The bench stage on candidates that the test stage found right."""
    found = climbed(folder, names, **settings)
    assert {record.verdict for record in found.values()} == {"correct"}, found
    loaded = config.load(folder / "config.yaml", root=folder)
    return bench.run(loaded, "rmsnorm", "cpu", loaded.record("bench", "rmsnorm-cpu"))


@pytest.mark.alone
@pytest.mark.parametrize(
    ("guilty", "words"),
    [
        pytest.param("bends_inputs", "dropped: (spoils others|wrong)", marks=pytest.mark.slow),
        ("wants_a_graph", "dropped: failed"),
    ],
)
def test_who_makes_the_calls_of_others_go_wrong_leaves_and_they_stay(tmp_path: Path, guilty: str, words: str) -> None:
    record = timed(tmp_path, ["good", "by_numpy", guilty], baselines={"torch_cpu": "of_torch"})
    outcomes = {contender.name: contender.outcome for contender in record.contenders}
    found = outcomes.pop(guilty)
    assert outcomes == dict.fromkeys(["good", "by_numpy", "torch_cpu"], "timed")
    assert re.match(words, found)


@pytest.mark.parametrize(
    ("who", "in_tries", "dropped"),
    [
        ("suspect", range(99), "suspect: wrong"),
        ("suspect", [3, 6], "suspect: wrong"),  # by chance: not the first time alone, then in one pair, then alone
        ("neighbour", range(99), "neighbour: spoils others"),
        ("neighbour", [1], "suspect: not tried"),  # once, and not again: nobody is accused
    ],
)
def test_who_is_beside_a_fault_that_comes_by_chance_is_not_accused(
    who: str, in_tries: Sequence[int], dropped: str
) -> None:
    """who: whoever brings the fault about, in which of the processes that have it and the suspect."""
    roles = dict.fromkeys(("suspect", "neighbour", "other", "third"), "variant")
    said, tries = list[str](), itertools.count(1)

    class Tried(Measurement):
        def shows(self, names: list[str], *_: Any) -> bool:
            return who in names and next(tries) in in_tries

        def shows_alone(self, name: str, arena: Any, is_so: Any, action: str) -> bool:
            return self.shows([name], arena)

        def drop(self, name: str, arena: Any, reason: str, check: str = "") -> None:
            said.append(f"{name}: {reason}")

    found = Tried.__new__(Tried)
    found.entrants = {name: SimpleNamespace(variant=SimpleNamespace(role=role)) for name, role in roles.items()}  # type: ignore[misc]
    found.spoilt, found.oldest_s, found.arenas = set(), 0.0, []
    arena: Any = SimpleNamespace(asked=frozenset(roles), names=list(roles), id="case")
    found.arenas.append(arena)
    found.drop_if_guilty("suspect", arena, "wrong when timed", "outputs", lambda _: True)
    assert [words.startswith(dropped) for words in said] == [True], said


@pytest.mark.alone
def test_on_a_cpu_the_operator_that_a_baseline_is_is_no_own_work(tmp_path: Path) -> None:
    names, declares = (
        ["good", "of_torch", "wrapped", "inner", "threaded", "declared"],
        {"declared": {"calls": ["torch"]}},
    )
    record = timed(tmp_path, names, more=declares, baselines={"torch_cpu": "of_torch"})
    outcomes = {contender.name: contender.outcome for contender in record.contenders}
    operators = dict.fromkeys(("of_torch", "wrapped", "threaded"), "rms_norm") | {"inner": "_fused_rms_norm"}
    for name, operator in operators.items():
        words = f"library call passed off as own work: aten::{operator}, which the baseline torch_cpu is, takes"
        assert outcomes[name].startswith(f"dropped: wrong: {words}")
    assert {outcomes[name] for name in ("good", "declared", "torch_cpu")} == {"timed"}
    assert record.kernels_in_interval == {}  # operators are no kernels


def test_an_operator_that_works_in_place_is_the_one_that_does_not() -> None:
    def operators(**us: float) -> list[dict[str, Any]]:
        return [{"name": f"aten::{name}", "duration_us": each} for name, each in us.items()]

    baselines = {"torch_cpu": operators(index_add=9.0)}
    fault = traces.passed_off(operators(mul=2.0, index_add_=8.0), baselines, [])
    assert fault is not None
    assert "aten::index_add_, which the baseline torch_cpu is, takes 80%" in fault.reason
    assert traces.passed_off(operators(mul=2.0, index_add_=8.0), baselines, ["torch"]) is None
    assert traces.passed_off(operators(scatter_add_=8.0), baselines, []) is None


def test_a_baseline_that_wraps_an_operator_is_that_and_moving_is_nobodys() -> None:
    def operators(**us: float) -> list[dict[str, Any]]:
        return [{"name": f"aten::{name}", "duration_us": each} for name, each in us.items()]

    wrapped = {"base": operators(gelu=5.0, copy_=4.0)}
    fault = traces.passed_off(operators(empty=1.0, copy_=9.0, gelu=5.0), wrapped, [])
    assert fault is not None
    assert fault.is_all, "what it wraps is all that it computes"
    assert "takes 33% of the time" in fault.reason
    for honest in (operators(copy_=9.0, erf=5.0), operators(copy_=9.0, erf=5.0, gelu=4.0), operators(copy_=19, gelu=5)):
        assert traces.passed_off(honest, wrapped, []) is None
    copied = {"base": operators(copy_=4.0)}
    assert traces.passed_off(operators(copy_=9.0), copied, []) is not None, "a baseline that moves values is that"
    mostly_moved = {"base": operators(clone=8.0, mul=7.0, copy_=8.0)}
    assert traces.passed_off(operators(copy_=24.0, mul_=8.0), mostly_moved, []) is None
    for looked_at in ({"base": operators(detach=9.0, to=1.0)}, {"base": []}):  # as of a baseline in numpy
        assert traces.passed_off(operators(detach=2.0, to=0.2), looked_at, []) is None


@pytest.mark.alone
def test_a_clock_that_lies_and_results_that_are_remembered_are_seen_from_outside(tmp_path: Path) -> None:
    record = timed(tmp_path, ["good", "slow_clock", "unless_written"])
    left = {c.name: c.outcome for c in record.contenders}
    assert left["good"] == "timed"
    dropped = {entry["contender"]: entry for entry in record.discarded if entry["what"] == "contender"}
    assert set(dropped) == {"slow_clock", "unless_written"}
    assert {entry["check"] for entry in dropped.values()} == {"wall"}
    assert "by the clock of its own process" in dropped["slow_clock"]["reason"]
    assert "behind other work a call takes" in dropped["unless_written"]["reason"]
    assert {row.contender for row in record.times} == {"good"}
    assert all(c.correct for c in record.contenders)  # a time that is not true is no wrong result


def test_a_callable_that_was_changed_is_neither_timed_nor_tested(tmp_path: Path) -> None:
    climbed(tmp_path, ["good"])  # writes the project
    loaded = config.load(tmp_path / "config.yaml", root=tmp_path)
    build.run(loaded, "rmsnorm", "good", loaded.record("build", "rmsnorm", "good"))
    (tested,) = test.run(loaded, "rmsnorm", ["good"], loaded.results / "test" / "rmsnorm")
    assert (tested.verdict, bool(tested.build_signature)) == ("correct", True)
    (tmp_path / "candidates.py").write_text(CANDIDATES + "\n# changed\n")
    record = bench.run(loaded, "rmsnorm", "cpu", loaded.record("bench", "rmsnorm-cpu"))
    words = "candidates.py, of which it is made, was changed after the build; build it again: "
    assert f"{words}kernelproof build" in record.contenders[0].outcome
    (again,) = test.run(loaded, "rmsnorm", ["good"], tmp_path / "again")
    assert again.verdict == "not_run"
    assert str(again.reason).startswith("it was not built as it is now: candidates.py, of which it is made")


def test_results_that_were_handed_over_take_no_room_of_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie in the folder of all measuring processes until they are judged."""
    names = ["good", "good_1", "good_2"]
    climbed(tmp_path, names)
    loaded = config.load(tmp_path / "config.yaml", root=tmp_path)
    monkeypatch.setattr(supervisor, "SCRATCH_LIMIT_BYTES", 12 << 10)  # a result is 6 kB
    record = bench.run(loaded, "rmsnorm", "cpu", loaded.record("bench", "rmsnorm-cpu"))
    assert {c.name: c.outcome for c in record.contenders} == dict.fromkeys(names, "timed")


# --- on a GPU ---------------------------------------------------------------------------------------------------------

MANNERS = {
    "honest": "HONEST",
    "joined": "JOINED",
    "not_joined": "NOT_JOINED",
    "not_forked": "NOT_FORKED",
    "default": "DEFAULT",
    "thread": "THREAD",
    "remembers": "REMEMBERS",
}
RIGHT = ("honest", "joined", "remembers")
ON_GPU = {
    "schema": "kernelproof.config/1",
    "project": "traces",
    "archs": ["native"],
    "test": {"seeds": [0], "trials": 50, "level": "default"},
    "bench": {"processes": 1, "blocks": 2, "sample_ms": 1.0, "max_seconds": 0.1, "modes": ["hot"], "bootstrap": 200},
}


@dataclasses.dataclass
class OnGpu:
    """What the stages said."""

    tests: dict[str, TestRecord]
    benches: dict[str, BenchRecord]

    def caught(self, name: str) -> dict[str, str]:
        """The criteria that a variant broke in the tests, with their words."""
        return {f.criterion: f.message for case in self.tests[name].cases for f in case.failures}

    def dropped(self, operator: str) -> dict[str, dict[str, Any]]:
        """Who left the benchmark, and why."""
        entries = self.benches[operator].discarded
        return {entry["contender"]: entry for entry in entries if entry["what"] == "contender"}


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> OnGpu:
    """Every manner, and cuBLAS declared and not, built, tested and timed; all findings are printed."""
    folder = tmp_path_factory.mktemp("on_gpu")
    shutil.copytree(REPOSITORY / "csrc", folder / "csrc")
    shutil.copy(Path(__file__).with_name("traces") / "mannered.cu", folder / "csrc" / "rmsnorm")
    common = {"device": "cuda", "dtypes": ["float32"], "precision": {"output": "float32"}}
    source = {"sources": ["csrc/rmsnorm/mannered.cu"]}
    manners = {name: {**common, **source, "macros": {"MANNER": macro}} for name, macro in MANNERS.items()}
    half = {**common, "dtypes": ["float16"], "sources": ["csrc/qkt/cublas_qkt.cu"]}
    operators = {
        "rmsnorm": {
            "shapes": {"odd": {"rows": 17, "cols": 101}, "many": {"rows": 512, "cols": 512}},
            "test": {"shapes": ["odd", "many"], "families": ["normal"]},
            "bench": {"shapes": ["many"]},
            "variants": manners,
        },
        "qkt": {
            "shapes": {"s": {"batch": 1, "heads": 8, "seq": 512, "head_dim": 64}},
            "test": {"shapes": ["s"], "families": ["normal"]},
            "bench": {"shapes": ["s"]},
            "variants": {"declared": {**half, "calls": ["cublas"]}, "undeclared": half},
        },
    }
    for name, operator in operators.items():
        operator |= {
            "module": f"kernelproof.operators.{name}",
            "binding": f"csrc/{name}/binding.cc",
            "include": ["csrc"],
        }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**ON_GPU, "operators": operators}))
    loaded = config.load(path, root=folder)

    def make(variant: config.VariantConfig) -> BuildRecord:
        where = loaded.record("build", variant.operator, variant.name)
        return build.run(loaded, variant.operator, variant.name, where, cores=1)

    with ThreadPoolExecutor(8) as pool:
        for record in pool.map(make, loaded.variants()):
            assert record.status == records.OK, record.compiler_message or record.reason
    found = OnGpu({}, {})
    for name in operators:
        variants = list(loaded.operator(name).variants)
        for tested in test.run(loaded, name, variants, loaded.results / "test" / name):
            found.tests[tested.variant] = tested
        found.benches[name] = bench.run(loaded, name, "cuda", loaded.record("bench", f"{name}-cuda"))
    said = {
        **{name: [r.verdict, r.reason, found.caught(name)] for name, r in found.tests.items()},
        **{
            f"bench {name}": {**found.dropped(name), "kernels": r.kernels_in_interval, "notes": r.states.get("notes")}
            for name, r in found.benches.items()
        },
        "times": [[t.contender, t.method, t.median_us, t.flags] for r in found.benches.values() for t in r.times],
    }
    print(json.dumps(said, indent=1, default=str))
    return found


needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not PRESENT, reason=f"needs a GPU: {WHY}")]


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_gpu) for name in (*RIGHT, "declared", "undeclared")])
def test_who_keeps_the_order_of_its_stream_is_right(on_gpu: OnGpu, name: str) -> None:
    record = on_gpu.tests[name]
    assert (record.verdict, record.reason) == ("correct", None)
    shifted = [p.status for p in record.properties if p.name == "shifted"]
    assert shifted == ["passed"] or (shifted == ["skipped"] and record.operator == "qkt")  # cuBLAS may refuse


@pytest.mark.parametrize(
    ("name", "criteria", "words"),
    [
        pytest.param("not_joined", {"late"}, "changed when the call was over", marks=needs_gpu),
        pytest.param("not_forked", {"late"}, "before the stream that it was given had come", marks=needs_gpu),
        pytest.param("default", {"late"}, "before the stream that it was given had come", marks=needs_gpu),
        pytest.param("thread", {"late", "unwritten"}, "", marks=needs_gpu),
    ],
)
def test_who_does_not_is_named_for_it(on_gpu: OnGpu, name: str, criteria: set[str], words: str) -> None:
    assert on_gpu.tests[name].verdict == "wrong"
    caught = on_gpu.caught(name)
    assert criteria & set(caught), caught
    assert words in caught.get("late", words)


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_gpu) for name in ("honest", "joined", "declared")])
def test_an_honest_time_is_kept(on_gpu: OnGpu, name: str) -> None:
    operator = on_gpu.tests[name].operator
    assert name not in on_gpu.dropped(operator)
    rows = [row for row in on_gpu.benches[operator].times if row.contender == name and row.method == "graph_slope"]
    assert rows
    assert not {"other_kernels_when_timed", "disagrees_outside_clock", "not_traced"} & {
        f for r in rows for f in r.flags
    }


@pytest.mark.gpu
@pytest.mark.skipif(not PRESENT, reason=f"needs a GPU: {WHY}")
def test_a_library_that_is_not_declared_is_condemned(on_gpu: OnGpu) -> None:
    dropped = on_gpu.dropped("qkt")
    assert dropped["undeclared"]["check"] == "library"
    assert "library call passed off as own work" in dropped["undeclared"]["reason"]
    kernels = on_gpu.benches["qkt"].kernels_in_interval["declared"]
    assert {kernel["origin"] for kernel in kernels} <= {"declared", "copy"}


@pytest.mark.gpu
@pytest.mark.skipif(not PRESENT, reason=f"needs a GPU: {WHY}")
def test_results_that_the_device_remembers_are_seen_from_outside(on_gpu: OnGpu) -> None:
    dropped = on_gpu.dropped("rmsnorm")
    assert dropped["remembers"]["check"] == "wall"
    assert "results are remembered" in dropped["remembers"]["reason"]
