"""Answers of processes that have run a candidate: what has not their form is refused, whatever it is."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from kernelproof import replies, timing
from kernelproof.errors import WorkerError, WorkerReplyError

NESTED: list[Any] = []
for _ in range(900):
    NESTED = [NESTED]
PLACE = {"contender": "ours", "case": "small-float32", "mode": "hot"}
SAMPLE = {**PLACE, "block": 0, "order": 1, "method": "cpu_clock", "calls": 4, "time_us": 2.5, "load": 0.5}
SAMPLE |= {"short_calls": None, "short_us": None, "long_us": None, "sm_clock_mhz": 1980, "offset_s": 0.1}
SAMPLE |= {"temperature_c": 40, "power_w": 300.0, "throttle": "sw_power_cap"}
KERNEL = {
    "name": "k",
    "grid": [1, 2, 3],
    "block": [],
    "cluster": [],
    "shared_bytes": 0,
    "count": 1.0,
    "duration_us": 2.0,
    "sm_clock_mhz": 1980,
}
GOOD: dict[str, Any] = {
    "samples": {name: [value, value] for name, value in SAMPLE.items()},
    "outcomes": [{**PLACE, "case": "", "outcome": "failed", "message": "it failed"}],
    "outputs": [
        {**PLACE, "version": "timed", "number": 0, "copies": 1, "tensors": [["float32", [2, 3]]]}
        | {"sha256": "ab" * 32, "path": f"/somewhere/ours-{'ab' * 12}.output"}
    ],
    "kernels": {"ours": {"small-float32": [{**KERNEL, "source": "torch.profiler"}]}},
    "eager_kernels": {"ours": {"small-float32": ["k"]}},
    "rotation": {"small-float32": {"hot": {"sets": 1, "set_bytes": 3, "cache_bytes": 5}}},
    "energy": [{**PLACE, "reason": "no counter"}, {**PLACE, "joules_per_call": 0.1, "calls": 3}],
    "stopping": [{**PLACE, "blocks": 3, "half_width": None, "ended": "budget"}],
    "neighbours": 0,
    "state_s": 0.1,
}


def measured(reply: Any) -> None:
    replies.check_measured(reply, ["ours", "base"], "small-float32", ["hot", "cold"])


def test_what_a_process_gives_is_an_answer() -> None:
    assert list(GOOD) == list(vars(timing.Found()))
    assert set(SAMPLE) == set(timing.COLUMNS) == set(replies.columns([], "", []))
    measured(json.loads(json.dumps(GOOD)))
    measured(vars(timing.Found()))


def changed(path: str, value: Any) -> Any:
    """A good answer with something else in one place."""
    reply = copy.deepcopy(GOOD)
    *place, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    inner: Any = reply
    for part in place:
        inner = inner[part]
    inner[last] = value
    return reply


@pytest.mark.parametrize("value", [None, [], {}, 5, "fast", NESTED])
def test_no_answer_at_all(value: Any) -> None:
    with pytest.raises(WorkerError, match=r"not one that it gives \(its samples, outcomes, "):
        measured(value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((name, value) for name in GOOD for value in ("fast", 10**400, float("nan"), [1], {"ours": 1}, NESTED)),
        *((name, None) for name in GOOD if name != "neighbours"),  # which NVML may not show
        *((f"samples.{name}", value) for name in SAMPLE for value in (None, [1.0], [[], []], [-1e300, float("inf")])),
        ("samples.process", [1, 1]),
        ("samples.time_us", ["fast", "fast"]),
        ("samples.time_us", [True, True]),
        ("samples.contender", ["ours", "stranger"]),
        ("samples.case", ["other", "other"]),
        ("outcomes.0.outcome", "correct"),
        ("outcomes.0.contender", "stranger"),
        ("outcomes.0.message", {"a": 1}),
        ("outputs.0.path", "/somewhere/\0"),
        ("outputs.0.path", "/somewhere/base.output"),
        ("outputs.0.sha256", 5),
        ("outputs.0.shape", [2, 3.0]),
        ("kernels.ours", {"small-float32": []}),
        ("kernels.ours.small-float32.0.more", 1),
        ("kernels.stranger", {}),
        ("energy.0.more", 1),
        ("rotation.small-float32.hot.sets", 0),
    ],
)
def test_what_no_process_gives_is_refused_and_named(path: str, value: Any) -> None:
    with pytest.raises(WorkerError, match=rf"not one that it gives \(its {path.split('.')[0]}\)"):
        measured(changed(path, value))


def test_a_witness() -> None:
    kinds = ["timed", "same", "new"]
    calls = dict.fromkeys(kinds, 3)
    replies.check_held({"calls": {"ours": calls}, "outcomes": []}, "ours", kinds)
    replies.check_held({"calls": {}, "outcomes": []}, "ours", kinds)
    replies.check_replayed({"own_us": None})
    replies.check_replayed({"own_us": 1.5})
    for held in (None, {}, {"calls": {"base": calls}}, {"calls": {"ours": {"timed": 3}}}, {"calls": {"ours": [1]}}):
        with pytest.raises(WorkerReplyError, match="its calls"):
            replies.check_held(held, "ours", kinds)
    failed = {"contender": "ours", "case": "c", "mode": "hot", "outcome": "not_captured", "message": "it waits"}
    replies.check_held({"calls": {}, "outcomes": [failed]}, "ours", kinds)
    for outcomes in (None, [{}], [{**failed, "message": 3}], [{**failed, "contender": "base"}], ["it waits"]):
        with pytest.raises(WorkerReplyError, match="its outcomes"):
            replies.check_held({"calls": {}, "outcomes": outcomes}, "ours", kinds)
    replies.check_held({"calls": {"ours": {**calls, "touch": 3}}, "outcomes": []}, "ours", [*kinds, "touch"])
    with pytest.raises(WorkerReplyError, match="its calls"):
        replies.check_held({"calls": {"ours": {**calls, "touch": 1}}, "outcomes": []}, "ours", [*kinds, "touch"])
    output = {"contender": "ours", "case": "c", "mode": "hot", "version": "moved", "number": 0, "copies": 1}
    output |= {"path": "/x/ours-ab.output", "tensors": [["float32", [2]], ["int64", []]], "sha256": "ab"}
    replies.check_moved({"outputs": [output]}, "ours", "c", ["hot"])
    for other in (
        {"contender": "base"},
        {"version": "timed"},
        {"path": "/x/base-ab.output"},
        {"tensors": [["float32", [-1]]]},
    ):
        with pytest.raises(WorkerReplyError, match="its outputs"):
            replies.check_moved({"outputs": [{**output, **other}]}, "ours", "c", ["hot"])
    for replayed in (None, {}, {"own_us": "fast"}, {"own_us": float("nan")}, {"own_us": -1.0}, {"own_us": 10**400}):
        with pytest.raises(WorkerReplyError, match="its own_us"):
            replies.check_replayed(replayed)
