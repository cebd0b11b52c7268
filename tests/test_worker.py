"""What a worker does with a candidate: repeats, returned tensors, the bits that it compares."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from defects import LAZY, CallFiles, candidate, rmsnorm_call

from kernelproof import ordering, worker
from kernelproof.errors import WorkerError, WorkerGreedy, WorkerReplyError
from kernelproof.loading import Candidate
from kernelproof.supervisor import WorkerHost

CANDIDATES = """
import json
import sys

import torch

def good(x, weight, eps):
    return x * (x.double().square().mean(-1, keepdim=True) + eps).rsqrt().float() * weight

def as_a_list(x, weight, eps):
    return [good(x, weight, eps)]

def turned(x, weight, eps):
    return good(x, weight, eps).t()

def wide(x, weight, eps):
    return good(x, weight, eps).double()

def the_input_itself(x, weight, eps):
    return x

def part_of_the_input(x, weight, eps):
    return torch.as_strided(x, x.shape, x.stride(), x.storage_offset())

def nothing(x, weight, eps):
    pass

def an_array(x, weight, eps):
    return x.numpy()

def two(x, weight, eps):
    return x + 1, x + 2

def one_for_both(weight, eps):
    found = torch.zeros(6, 10)
    return found, found

#LAZY

def when_read(x, weight, eps):
    return Lazy(x, lambda: good(x, weight, eps))

def a_parameter(x, weight, eps):
    return torch.nn.Parameter(good(x, weight, eps))

def sparse(x, weight, eps):
    return x.to_sparse()


def negated(x, weight, eps):
    return torch.complex(good(x, weight, eps), -good(x, weight, eps)).conj().imag

def twelve_in_turn(x, weight, eps):
    global calls
    calls += 1
    if calls <= 12:
        kept.append(torch.empty_like(x))
    return kept[calls % 12 - 1].copy_(good(x, weight, eps) + calls)

kept = []

def astray(x, weight, eps):
    global calls
    calls += 1
    result = good(x, weight, eps)
    result[0, 0] += {1: 0.0, 4: 1.0, 6: float("nan"), 8: 50.0}.get(calls, 1e-6 * calls)
    return result

calls = 0

def signed_zero(x, weight, eps):
    global calls
    calls += 1
    return torch.zeros_like(x) * (-1 if calls > 1 else 1)

def says_so(x, weight, eps):
    print("hello from the candidate")
    return good(x, weight, eps)

def answering(text):
    kind = sys.modules["__main__"].Worker
    kind.say = lambda self, message: self.connection.sendall(text(message["token"]) + b"\\n")

def no_object(x, weight, eps):
    answering(lambda token: b"5")

def nested(x, weight, eps):
    answering(lambda token: b"[" * 100_000)

def no_utf_8(x, weight, eps):
    answering(lambda token: b'{"token": "\\xff"}')

def accented_token(x, weight, eps):
    answering(lambda token: json.dumps({"token": "\\u00e9", "result": {}}).encode())

def neither_result_nor_error(x, weight, eps):
    answering(lambda token: json.dumps({"token": token}).encode())

def error_is_a_number(x, weight, eps):
    answering(lambda token: json.dumps({"token": token, "error": 5}).encode())

def error_without_words(x, weight, eps):
    answering(lambda token: json.dumps({"token": token, "error": {"type": "E", "message": 5}}).encode())

def a_file_of_a_compiler(x, weight, eps):
    with open("header.gch", "wb") as file:
        file.truncate(180 << 20)
    return good(x, weight, eps)

def a_file_too_large(x, weight, eps):
    with open("everything", "wb") as file:
        file.truncate(1 << 30)

def half_a_character(x, weight, eps):
    raise RuntimeError(chr(0xD800))

def refused_by_torch(x, weight, eps):
    return torch.matmul(x, weight[:1])
""".replace("#LAZY", LAZY)

NO_ANSWERS = ("no_object", "nested", "no_utf_8", "accented_token", "neither_result_nor_error", "error_is_a_number")


@pytest.fixture(scope="module")
def torch_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerHost]:
    with WorkerHost(device="cpu", needs_torch=True, scratch=tmp_path_factory.mktemp("scratch"), threads=1) as host:
        yield host


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("candidates")
    (folder / "candidates.py").write_text(CANDIDATES)
    return folder


@pytest.fixture
def call(tmp_path: Path) -> CallFiles:
    return rmsnorm_call(tmp_path)


def run_python(
    host: WorkerHost,
    folder: Path,
    name: str,
    call: CallFiles,
    repeats: int = 1,
    log: Path | None = None,
    outputs: tuple[str, ...] = ("y",),
) -> Any:
    process = host.spawn(log, scratch=call.folder)
    entry = Candidate("python", "cpu", "return", f"candidates.py:{name}", None, str(folder))
    try:
        process.request("load", timeout_s=60, candidate=dataclasses.asdict(entry))
        return process.request("run", timeout_s=60, arguments=call.arguments, outputs=list(outputs), repeats=repeats)
    finally:
        process.close()


@pytest.mark.parametrize("name", ["good", "as_a_list"])
def test_a_returned_tensor_is_handed_over(torch_host: WorkerHost, folder: Path, call: CallFiles, name: str) -> None:
    reply = run_python(torch_host, folder, name, call, repeats=4)
    assert (reply["repeats"], reply["differing"], reply["first_difference"]) == (4, 0, None)
    assert call.error() < 1e-5


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("turned", r"shape \(10, 6\); \(6, 10\) is expected"),
        ("wide", r"dtype torch\.float64; torch\.float32 is expected"),
        ("the_input_itself", "lies in the memory of its input 'x'"),
        ("part_of_the_input", "lies in the memory of its input 'x'"),
        ("nothing", "returned a NoneType, not a plain Tensor"),
        ("an_array", r"returned a ndarray, not a plain Tensor; return torch\.from_numpy\(…\) of it"),
        ("when_read", "returned a Lazy, not a plain Tensor"),
        ("a_parameter", "returned a Parameter, not a plain Tensor"),
        ("sparse", "a tensor of the layout torch.sparse_coo, not torch.strided"),
        ("negated", "a view that is negated or conjugated when somebody reads it"),
        ("two", "returned 2 values where one tensor is expected"),
    ],
)
def test_what_may_not_be_returned(torch_host: WorkerHost, folder: Path, call: CallFiles, name: str, words: str) -> None:
    with pytest.raises(WorkerReplyError, match=words) as caught:
        run_python(torch_host, folder, name, call)
    assert not caught.value.message.startswith("RuntimeError")  # as what a candidate raises does


def test_one_tensor_is_not_two_outputs(torch_host: WorkerHost, folder: Path, call: CallFiles) -> None:
    with pytest.raises(WorkerReplyError, match="one tensor for two of its outputs"):
        run_python(torch_host, folder, "one_for_both", call, outputs=("x", "y"))


@pytest.mark.parametrize("name", [*NO_ANSWERS, "error_without_words"])
def test_what_is_no_answer_is_not_taken_for_one(
    torch_host: WorkerHost, folder: Path, call: CallFiles, name: str
) -> None:
    with pytest.raises(WorkerError, match="not written by the worker"):
        run_python(torch_host, folder, name, call)


def test_words_that_no_file_can_hold_are_put_right(torch_host: WorkerHost, folder: Path, call: CallFiles) -> None:
    with pytest.raises(WorkerReplyError, match=r"^RuntimeError: \? \(candidates.py:\d+\)$"):
        run_python(torch_host, folder, "half_a_character", call)


def test_an_exception_is_told_with_the_line_of_the_candidate_that_it_came_through(
    torch_host: WorkerHost, folder: Path, call: CallFiles
) -> None:
    line = next(n for n, text in enumerate(CANDIDATES.splitlines(), 1) if "torch.matmul" in text)
    with pytest.raises(WorkerReplyError, match=rf"^RuntimeError: .* \(candidates\.py:{line}\)$"):
        run_python(torch_host, folder, "refused_by_torch", call)


def test_words_of_a_library_that_are_not_utf_8_are_kept(torch_host: WorkerHost, call: CallFiles) -> None:
    described = candidate("says_it_in_latin_1")
    process = torch_host.spawn(scratch=call.folder)
    process.request("load", timeout_s=60, candidate=described)
    with pytest.raises(WorkerReplyError, match=r"^RuntimeError: no table for a caf\ufffd$"):
        process.request("run", timeout_s=60, arguments=call.arguments, outputs=["y"])
    process.close()


def test_a_file_that_is_too_large_is_named_as_such_and_a_compilers_is_not(
    torch_host: WorkerHost, folder: Path, call: CallFiles
) -> None:
    run_python(torch_host, folder, "a_file_of_a_compiler", call)
    with pytest.raises(WorkerGreedy, match=r"beyond 192 MB, the limit here: OSError: .*File too large"):
        run_python(torch_host, folder, "a_file_too_large", call)


def test_minus_zero_is_another_result_than_zero(torch_host: WorkerHost, folder: Path, call: CallFiles) -> None:
    reply = run_python(torch_host, folder, "signed_zero", call, repeats=3)
    assert reply["differing"] == 2
    assert reply["first_difference"] == [1, "y", 0]


def test_what_a_candidate_prints_goes_to_its_log(
    torch_host: WorkerHost, folder: Path, call: CallFiles, tmp_path: Path
) -> None:
    run_python(torch_host, folder, "says_so", call, log=tmp_path / "log")
    assert (tmp_path / "log").read_text() == "hello from the candidate\n"


def test_repeats_that_differ_are_counted_and_the_first_is_located(torch_host: WorkerHost, call: CallFiles) -> None:
    described = candidate("differs_from_call_to_call")
    process = torch_host.spawn(scratch=call.folder)
    process.request("load", timeout_s=60, candidate=described)
    reply = process.request("run", timeout_s=60, arguments=call.arguments, outputs=["y"], repeats=20)
    process.close()
    assert reply["differing"] == 2  # calls 8 and 15 of 20: every seventh repeat
    assert reply["first_difference"] == [7, "y", 9]


def test_the_repeat_that_lies_farthest_from_the_first_call_is_named(
    torch_host: WorkerHost, folder: Path, call: CallFiles
) -> None:
    assert run_python(torch_host, folder, "astray", call, repeats=5)["farthest"] == 2  # the fourth call
    assert run_python(torch_host, folder, "astray", call, repeats=10)["farthest"] == 4
    assert run_python(torch_host, folder, "good", call, repeats=3)["farthest"] is None


def test_results_in_memory_that_is_used_in_turn_are_found(
    torch_host: WorkerHost, folder: Path, call: CallFiles
) -> None:
    process = torch_host.spawn(scratch=call.folder)
    entry = Candidate("python", "cpu", "return", "candidates.py:twelve_in_turn", None, str(folder))
    process.request("load", timeout_s=60, candidate=dataclasses.asdict(entry))
    following = [call.arguments] * 12
    with pytest.raises(WorkerReplyError, match="a later call wrote to the tensor"):
        process.request("run", timeout_s=60, arguments=call.arguments, outputs=["y"], following=following)
    process.close()


def test_the_first_call_is_what_is_handed_over_and_inputs_as_the_last_left_them(
    torch_host: WorkerHost, call: CallFiles
) -> None:
    described = candidate("changes_an_input")
    process = torch_host.spawn(scratch=call.folder)
    process.request("load", timeout_s=60, candidate=described)
    process.request("run", timeout_s=60, arguments=call.arguments, outputs=["y"], repeats=2)
    process.close()
    assert call.error() < 1e-5
    assert call.output("x")[0, 5] == 3


def test_run_needs_something_loaded(torch_host: WorkerHost, call: CallFiles) -> None:
    process = torch_host.spawn(scratch=call.folder)
    with pytest.raises(WorkerReplyError, match="nothing is loaded"):
        process.request("run", timeout_s=60, arguments=call.arguments, outputs=["y"])
    process.close()


def test_bits_tell_nan_and_minus_zero_apart() -> None:
    values = np.array([0.0, np.nan, 1.0], np.float32)
    same, other = values.copy(), np.array([-0.0, np.nan, 1.0], np.float32)
    assert worker._first_difference(worker._bits(values), worker._bits(same)) is None
    assert worker._first_difference(worker._bits(values), worker._bits(other)) == 0


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("place", [0, 1, 70, 6 * 13 - 1])
def test_a_single_byte_is_seen_wherever_it_lies(kind: str, place: int) -> None:
    whole = np.arange(6 * 13, dtype=np.uint8).reshape(6, 13)
    for layout in (lambda values: values, lambda values: values[:, 1:], lambda values: values.T):
        then, now = whole.copy(), whole.copy()
        given = [layout(values if kind == "numpy" else torch.from_numpy(values)) for values in (then, now)]
        assert ordering.alike(*given)
        now.reshape(-1)[place] ^= 0x80
        seen = bool((layout(then) != layout(now)).any())
        assert ordering.alike(*given) != seen
        assert ordering._changed({"y": given[0]}, {"y": given[1]}) == seen
