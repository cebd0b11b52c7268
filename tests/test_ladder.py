"""The staged ladder over correct and wrong kernels, run as the test stage runs it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from defects import REPOSITORY, project

from kernelproof import bench, build, cli, contest, gpu, lease, operators, records, test
from kernelproof import config as configuration
from kernelproof.config import Config
from kernelproof.errors import ConfigError, TestError, WorkerReplyError, WorkerStarved
from kernelproof.ladder import calling, outcomes, verdicts
from kernelproof.ladder.calling import Calls
from kernelproof.ladder.planning import PARTS
from kernelproof.records import BuildRecord, FileHash, PropertyResult, Rung, TestRecord
from kernelproof.supervisor import Worker


def climbed(config: Config, name: str) -> TestRecord:
    """The record of one variant, as it was written."""
    folder = config.results / "test" / "rmsnorm"
    (given,) = test.run(config, "rmsnorm", [name], folder)
    written = records.read(folder / f"{name}.json", TestRecord)
    assert written == given
    return written


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for projects with operators of their own, whose files have a name each: so they share a judge."""
    return tmp_path_factory.mktemp("own")


def status(record: TestRecord) -> dict[str, str]:
    return {rung.name: rung.status for rung in record.rungs}


def with_module(config: Config, name: str, text: str) -> Config:
    """The configuration with an operator's module of its own beside it."""
    (config.root / name).write_text(text)
    operator = dataclasses.replace(config.operators["rmsnorm"], module=name)
    return dataclasses.replace(config, operators={"rmsnorm": operator})


def test_what_a_gpu_says_of_a_kernel_that_failed() -> None:
    said = (
        "AcceleratorError: CUDA error: misaligned address\nSearch for `cudaErrorMisalignedAddress' in https://docs.nvidia"
        ".com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.\nCUDA kernel errors might be "
        "asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging "
        "consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
    )
    first, cause = outcomes.words(WorkerReplyError(said)).split(". Likely cause: ")
    assert first == "AcceleratorError: CUDA error: misaligned address"
    assert cause.startswith("a vector access")
    new = "CUDA error: something new\nat a place"
    assert outcomes.words(WorkerReplyError(new)) == new


def test_a_right_kernel_is_correct(tmp_path: Path) -> None:
    record = climbed(project(tmp_path, "good"), "good")
    assert (record.verdict, record.status, record.reason) == ("correct", "ok", None)
    assert set(status(record).values()) == {"passed"}
    assert {case.status for case in record.cases} == {"passed"}
    assert record.fresh_seed in {case.seed for case in record.cases}
    assert record.error_histogram is not None
    assert sum(record.error_histogram.counts) > 1000
    tree = ElementTree.parse(tmp_path / (record.junit or ""))
    names = [element.get("name", "") for element in tree.iter("testcase")]
    assert "test_correctness[rmsnorm/good-odd-float32-normal-s0]" in names
    assert len([name for name in names if name.startswith("test_correctness")]) == len(record.cases)
    assert [element.get("hostname") for element in tree.iter("testsuite")] == [""]


# Kernel, verdict, the rung that found it, and in which words.
WRONG = [
    ("writes_past_the_end", "wrong", "sanity", "guard_bands: y: [34] bytes written after the buffer"),
    ("writes_before_the_start", "wrong", "sanity", "1 element before the beginning"),
    ("writes_far_past_the_end", "crashed", "launch", "killed by SIGSEGV"),
    ("skips_constant_rows", "wrong", "sanity", "constant.*unwritten"),
    ("nan", "wrong", "sanity", "nonfinite: 1 NaN"),
    ("rows_unwritten", "wrong", "sanity", "unwritten: .*rows 1..3 of each 4-row tile"),
    ("changes_an_input", "wrong", "sanity", "inputs: the kernel changed its inputs: x"),
    ("one_row_for_all", "wrong", "sanity", "exact calls are wrong"),
    ("forgets_eps", "wrong", "sanity", "zero_rows.*NaN values where the reference is finite"),
    (
        "differs_from_call_to_call",
        "wrong",
        "determinism",
        r"\d of \d+ repeats gave other bits .* repeat \d at row 0, column \d+: a race.*`deterministic: false`$",
    ),
    ("adds_to_what_is_there", "wrong", "sanity", "instead of|nonfinite"),
    (
        "takes_zeros_for_a_result",
        "wrong",
        "properties",
        r": zeroed \(expected: with outputs that .*unwritten: ",
    ),
    ("adds_up_from_an_unset_variable", "wrong", "sanity", "exact calls are wrong"),
    (
        "fetches_beyond_the_last_row",
        "crashed",
        "properties",
        r"^tiny-float32-normal-s0: fenced end \(expected: with no memory behind any tensor .* killed by SIGSEGV",
    ),
    ("fetches_beyond_16_rows_of_96", "crashed", "properties", r"^even-float32-normal-s0: fenced end .* SIGSEGV"),
    ("fetches_before_whole_numbers", "crashed", "properties", r"^even-float32-integers-s0: fenced start .* SIGSEGV"),
    (
        "misses_the_tail_off_a_boundary",
        "wrong",
        "properties",
        r"^odd-float32-normal-s\d+: (fenced end|shifted) .* column 100, ",
    ),
    (
        "recognises_first_values",
        "wrong",
        "properties",
        "new last values|one new value",
    ),
    ("raises", "wrong", "launch", "this kernel takes no such input"),
    ("segfault", "crashed", "launch", "killed by SIGSEGV in the middle of a call"),
    ("exit_zero", "crashed", "launch", "ended the process with exit code 0 in the middle of a call"),
    ("hang", "hung", "launch", "no answer within 4 s"),
]


@pytest.mark.parametrize(
    ("message", "hinted"),
    [
        ("RuntimeError: mine takes head_dim 64 and 128, not 72", "head_dim"),
        ("RuntimeError: heads must be even", "heads"),
        ("RuntimeError: mine takes float16 or bfloat16, not float32", "columns"),
        ("RuntimeError: no causal mask yet", "columns"),
        ("RuntimeError: this kernel takes no such input", "columns"),
        ("RuntimeError: rows of a length that is no multiple of 8", "columns"),
        ("RuntimeError: no workspace: 2 k blocks are taken", ""),
        ("RuntimeError: CUBLAS_STATUS_NOT_INITIALIZED", ""),
        ("RuntimeError: CUDA error: too many heads", ""),
        ("ValueError: head_dim 72", ""),
    ],
)
def test_a_launcher_that_speaks_of_no_size_is_not_told_to_declare_them(message: str, hinted: str) -> None:
    """One that does is told with a dimension of the operator's own shapes."""
    given = ("heads", "seq_k", "head_dim", "kv_heads", "columns"), {"causal": [True]}
    said = outcomes.undeclared(WorkerReplyError(message), "tvm_ffi", *given)
    assert (f"`limits: {{{hinted}: [64, 128]}}`" in said) if hinted else said == ""
    own, torchs = (
        WorkerReplyError(message.replace("Runtime", kind).replace("Value", kind)) for kind in ("Value", "Runtime")
    )
    assert not outcomes.undeclared(torchs, "python", *given), "a library's error is no refusal"
    assert bool(outcomes.undeclared(own, "python", *given)) == bool(hinted or "head_dim" in message)


def test_a_function_that_takes_other_arguments_is_told_what_a_call_hands_over() -> None:
    error = WorkerReplyError("TypeError: Mismatched number of arguments when calling: `run(0: DLTensor*)`")
    assert "the function of the binding takes these" in outcomes.mismatched(error, "tvm_ffi")
    assert 'entry: "file.py:function"' in outcomes.mismatched(error, "python")
    assert not outcomes.mismatched(WorkerReplyError("TypeError: 'int' object is not callable"), "python")
    assert not outcomes.mismatched(WorkerReplyError("RuntimeError: an argument is no number"), "python")


@pytest.mark.parametrize(("name", "verdict", "rung", "words"), WRONG)
def test_a_wrong_kernel_is_named_for_what_it_is(tmp_path: Path, name: str, verdict: str, rung: str, words: str) -> None:
    record = climbed(project(tmp_path, name), name)
    found = next(r for r in record.rungs if r.status == "failed")
    assert (record.verdict, record.status, found.name) == (verdict, "failed", rung)
    assert re.search(words, found.message or ""), found.message
    assert record.reason == f"{rung}: {found.message}"
    case = str(found.message).split(": ")[0] if rung in ("correctness", "properties", "determinism") else ""
    assert f" --case {case}" in str(record.repeat)
    above = record.rungs[record.rungs.index(found) + 1 :]
    if rung not in ("correctness", "properties"):  # what is above these is looked at all the same
        assert {r.status for r in above} <= {"skipped"}
        assert all(r.message and not r.message.startswith("not run") for r in above)  # the status says that already


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: two threads never run at a time")
def test_threads_that_race_are_found(tmp_path: Path) -> None:
    name = "one_buffer_for_all_threads"
    for attempt in range(3):  # where others have the cores, threads seldom run at a time
        record = climbed(project(tmp_path / str(attempt), name, trials=200), name)
        if record.verdict != "correct":
            break
    assert record.verdict == "wrong"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: two threads never run at a time")
def test_half_of_the_repeats_are_made_by_a_process_whose_idle_threads_spin(tmp_path: Path) -> None:
    record = climbed(project(tmp_path, "prints_environment"), "prints_environment")
    said = (tmp_path / str(record.log)).read_text()
    calls, asleep = said.count("OMP_NUM_THREADS="), said.count("(loaded: idle threads sleep)")
    # Shapes, half of the trials at most, and a fifth of that on other values; a long log is cut once, which may tear a
    # call in two.
    assert 3 <= calls - asleep <= 3 * 10 + 2 + 1
    assert "OMP_WAIT_POLICY" not in said  # when calls are made nobody can tell


def test_a_result_that_is_remembered_by_its_address_is_found_in_memory_that_is_used_again(tmp_path: Path) -> None:
    record = climbed(project(tmp_path, "remembers_addresses"), "remembers_addresses")
    assert record.verdict == "wrong"
    failed = {found.name for found in record.properties if found.status == "failed"}
    # Where mappings are given out anew at the same address, earlier rungs see it too.
    assert failed >= {"new values", "new last values"} or status(record)["sanity"] == "failed"


def test_the_quick_level_leaves_properties_and_families_out_and_says_so(tmp_path: Path) -> None:
    name = "fetches_beyond_the_last_row"  # which no other rung sees
    record = climbed(project(tmp_path, name, level="quick"), name)
    assert (record.verdict, record.level, record.trials, record.properties) == ("correct", "quick", 10, [])
    assert list(status(record)) == ["build", "load", "launch", "sanity", "correctness", "determinism"]
    assert {case.shape for case in record.cases} == {"even"}
    assert {case.family for case in record.cases} == {"normal"}
    assert record.fresh_seed in {case.seed for case in record.cases}
    assert record.junit is not None
    junit = (tmp_path / record.junit).read_text()
    assert 'failures="0"' in junit
    assert "test_properties" not in junit


def test_the_deep_level_finds_and_shrinks_what_no_listed_case_shows(tmp_path: Path) -> None:
    name = "wrong_beyond_the_listed_widths"
    assert climbed(project(tmp_path / "default", name), name).verdict == "correct"
    config = project(tmp_path / "deep", name, level="deep")
    record = climbed(config, name)
    assert record.verdict == "wrong"
    (failed,) = (case for case in record.cases if case.status == "failed")
    assert failed.dims["cols"] == 102
    assert record.repeat == f"kernelproof test --operator rmsnorm --variant {name} --case {failed.id}"
    (again,) = test.run(config, "rmsnorm", [name], tmp_path / "again", failed.id)
    assert again.verdict == "wrong"
    assert failed.id in {case.id for case in again.cases}


def test_the_deep_level_draws_every_dimension_and_none_that_the_operator_refuses(own: Path) -> None:
    name = "wrong_on_6_of_7_rows"
    config = project(own, name, level="deep")
    (failed,) = (case for case in climbed(config, name).cases if case.status == "failed")
    assert failed.dims["rows"] % 7 == 6
    few = (
        "from kernelproof.errors import ConfigError\n"
        "from kernelproof.operators import rmsnorm\n"
        "class Few(type(rmsnorm.OPERATOR)):\n"
        "    def cost(self, case):\n"
        "        if case.dims['rows'] not in (3, 16, 17):\n"
        "            raise ConfigError('there are no such rows')\n"
        "        return super().cost(case)\n"
        "OPERATOR = Few()\n"
    )
    record = climbed(with_module(config, "few.py", few), name)
    assert record.verdict == "correct"
    assert record.searched is not None
    assert record.searched > 20


@pytest.mark.parametrize(("where", "verdict"), [("rows == 3", "correct"), ("rows > 0", "not_run")])
def test_a_case_of_which_nothing_is_demanded_is_not_passed(own: Path, where: str, verdict: str) -> None:
    open_there = (
        "import dataclasses\n"
        "from kernelproof.operators import rmsnorm\n"
        "class Open(type(rmsnorm.OPERATOR)):\n"
        "    def reference(self, call, precision, device='cpu'):\n"
        "        found, rows = super().reference(call, precision, device), len(call.tensor('x'))\n"
        f"        return dataclasses.replace(found, bound=found.bound * (float('inf') if {where} else 1.0))\n"
        "OPERATOR = Open()\n"
    )
    record = climbed(with_module(project(own, "good"), f"open_{verdict}.py", open_there), "good")
    assert record.verdict == verdict, record.reason
    assert {case.status for case in record.cases if case.shape == "tiny"} == {"skipped"}
    assert any("nothing is demanded here" in (case.reason or "") for case in record.cases)
    assert not any("refused" in (rung.message or "") for rung in record.rungs)
    assert "it refuses" not in (record.remedy or "")
    if verdict == "correct":
        said = next(rung.message or "" for rung in record.rungs if rung.name == "correctness")
        assert "nothing is demanded: the reference's bound is infinite there" in said
    if verdict == "not_run":
        assert "correctness: nothing is demanded here: the reference's bound is infinite" in (record.reason or "")


def test_a_case_is_run_again_by_its_id(tmp_path: Path) -> None:
    config = project(tmp_path, "recognises_first_values")
    wrong = climbed(config, "recognises_first_values")
    assert wrong.repeat
    case = wrong.repeat.split(" --case ")[1]
    (again,) = test.run(config, "rmsnorm", ["recognises_first_values"], tmp_path / "again", case)
    assert {found.id for found in again.cases} == {case}
    # What is fenced, begins off its boundary or has neighbours are cases that any run chooses: here this one alone.
    elsewhere = ("fenced", "shifted")
    assert {p.case for p in again.properties if p.name.startswith(elsewhere)} == {case}
    first, then = (
        [(p.name, p.case, p.status) for p in record.properties if not p.name.startswith((*elsewhere, "neighbour"))]
        for record in (wrong, again)
    )
    first = [each for each in first if each[1] == case]  # another shape's properties were tried, too
    assert "failed" in {status for *_, status in first}
    assert then == first


def test_a_library_may_decline_a_case(tmp_path: Path) -> None:
    record = climbed(project(tmp_path, "declines_101_columns"), "declines_101_columns")
    assert record.verdict == "correct", record.reason
    declined = {case.shape: case.reason for case in record.cases if case.status == "skipped"}
    assert declined == {"odd": "refused: no 101 columns"}
    told = next(rung.message for rung in record.rungs if rung.name == "correctness")
    assert f"it refused 2 of {len(record.cases)} cases" in told


def test_who_declines_the_profiled_shape_alone_is_told_what_to_profile(tmp_path: Path) -> None:
    config = project(tmp_path, "declines_101_columns")
    known = config.operators["rmsnorm"]
    operator = dataclasses.replace(
        known,
        shapes=known.shapes | {"prime": {"rows": 5, "cols": 103}},  # rows of whole vectors have properties of their own
        test=dataclasses.replace(known.test, shapes=["odd", "prime"]),
        profile=dataclasses.replace(known.profile, shape="odd"),
    )
    record = climbed(dataclasses.replace(config, operators={"rmsnorm": operator}), "declines_101_columns")
    assert record.verdict == "not_run"
    assert record.remedy
    assert record.remedy.startswith("it refuses odd, the profiled shape")
    assert record.remedy.endswith("(config.yaml:13: operators.rmsnorm.profile.shape)")


def test_a_case_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TestError, match="there is no such case; the nearest is odd-float32-normal-s7"):
        test.run(project(tmp_path, "good"), "rmsnorm", ["good"], tmp_path / "again", "od-float32-normal-s7")
    with pytest.raises(TestError, match="there is no such case") as caught:
        test.run(project(tmp_path, "good"), "rmsnorm", ["good"], tmp_path / "again", "odd-float32")
    assert caught.value.hint is None  # it is of a shape of ours, and no exact call
    with pytest.raises(
        TestError, match=r"no such case(.|\n)*exact calls are no cases: they are made whatever case is asked for"
    ):
        test.run(project(tmp_path, "good"), "rmsnorm", ["good"], tmp_path / "again", "sanity_zero-float32-zero-s0")


def test_of_repeats_that_differ_more_than_the_first_is_judged(tmp_path: Path) -> None:
    config = project(tmp_path, "wrong_in_later_repeats")
    object.__setattr__(config.operators["rmsnorm"].variants["wrong_in_later_repeats"], "deterministic", False)
    object.__setattr__(config.test, "trials", 100)
    record = climbed(config, "wrong_in_later_repeats")
    assert record.verdict == "wrong"
    found = re.search(
        r"the first of them repeat 1 at .* of those that were looked at repeat (\d+) is wrong: bound",
        record.reason or "",
    )
    assert found, record.reason
    assert int(found[1]) > 30


def test_of_repeats_that_differ_the_farthest_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "COMPARED_BYTES", 0)  # as for a large result, of which few repeats are compared
    config = project(tmp_path, "wrong_in_one_repeat")
    object.__setattr__(config.operators["rmsnorm"].variants["wrong_in_one_repeat"], "deterministic", False)
    object.__setattr__(config.test, "trials", 100)
    record = climbed(config, "wrong_in_one_repeat")
    assert record.verdict == "wrong"
    assert re.search(r"of those that were looked at repeat \d+ is wrong: bound", record.reason or ""), record.reason


def test_limits_that_no_shape_meets_condemn_nobody(tmp_path: Path) -> None:
    project(tmp_path, "good")
    path = tmp_path / "config.yaml"
    path.write_text(path.read_text().replace("good: {", "good: {limits: {rows: [99]}, "))
    record = climbed(configuration.load(path, root=tmp_path), "good")
    assert (record.verdict, record.status) == ("not_run", "not_run")
    assert re.match(r"it declares to take none of the \d+ cases: takes rows 99, not 16; ", str(record.reason))
    assert "correct limits, options or dtypes of operators.rmsnorm.variants.good, or add a shape" in str(record.remedy)


@pytest.mark.parametrize(("name", "verdict"), [("sums_in_any_order", "correct"), ("wrong_now_and_then", "wrong")])
def test_where_bits_are_not_promised_repeats_may_differ_but_must_be_right(
    tmp_path: Path, name: str, verdict: str
) -> None:
    config = project(tmp_path, name)
    promised = climbed(config, name)
    assert (promised.verdict, status(promised)["determinism"]) == ("wrong", "failed")
    object.__setattr__(config.operators["rmsnorm"].variants[name], "deterministic", False)
    record = climbed(config, name)
    assert record.verdict == verdict, record.reason
    if verdict == "wrong":
        assert re.search(r"repeats gave other bits .* and that one is wrong: bound", record.reason or "")


def test_a_crash_in_one_case_leaves_the_others(tmp_path: Path) -> None:
    record = climbed(project(tmp_path, "segfault_on_17_rows"), "segfault_on_17_rows")
    assert record.verdict == "crashed"
    assert {case.shape for case in record.cases if case.status == "failed"} == {"odd"}
    assert {case.shape for case in record.cases if case.status == "passed"} == {"tiny", "even"}
    crashed = next(case for case in record.cases if case.status == "failed")
    assert crashed.failures[0].criterion == "crash"
    assert "SIGSEGV" in crashed.failures[0].message
    assert re.search(r"gdb .*--args python -m kernelproof bench .*--once --shape odd ", str(record.remedy)), (
        record.remedy
    )


def test_the_log_of_a_crash_has_the_candidates_own_functions_and_not_those_that_called_it(tmp_path: Path) -> None:
    record = told(tmp_path, "os.kill(os.getpid(), 11)")
    log = (tmp_path / str(record.log)).read_text()
    printed = log[log.index("--- printed by the candidate's processes ---") :]
    assert 'mine.py", line 4 in run\n  (kernelproof, which made the call)\n\n' in printed
    assert not re.search(r'worker\.py", line \d+ in ', printed), printed
    assert record.remedy is None  # no debugger of C++ says more


def told(folder: Path, kernel: str, **settings: Any) -> TestRecord:
    """The record of a kernel in Python, given what its function does after it has computed what is right."""
    config = project(folder, "good", **settings)
    (folder / "mine.py").write_text(
        "import os\n"
        "def run(x, weight, y, eps):\n"
        "    y.copy_(x * (x.square().mean(1, keepdim=True) + eps).rsqrt() * weight)\n"
        f"    {kernel}\n"
    )
    good = dataclasses.replace(config.operators["rmsnorm"].variants["good"], abi="python", entry="mine.py:run")
    operator = dataclasses.replace(config.operators["rmsnorm"], variants={"good": good})
    config.record("build", "rmsnorm", "good").unlink()
    return climbed(dataclasses.replace(config, operators={"rmsnorm": operator}), "good")


def test_who_crashed_is_told_of_the_crash_and_not_of_wrong_results_before_it(tmp_path: Path) -> None:
    record = told(
        tmp_path, "y.fill_(float('nan')) if x.shape == (3, 8) else x.shape == (17, 101) and os.kill(os.getpid(), 11)"
    )
    assert record.verdict == "crashed"
    assert str(record.reason).startswith(
        "correctness: odd-float32-normal-s0: the process was killed by SIGSEGV in the middle of a call; failed too: "
    )
    assert str(record.repeat).endswith("--case odd-float32-normal-s0")


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (
            "x.shape == (3, 8) and y.mul_(1.001); x.shape == (17, 101) and y.fill_(7)",
            "odd-.*: bound: .*every element is 7",
        ),
        ("x.shape == (16, 96) and y.fill_(7); x.shape == (3, 8) and y[0].fill_(float('nan'))", "tiny-.*: nonfinite: "),
    ],
)
def test_of_cases_that_fail_the_most_telling_is_told_and_repeated(tmp_path: Path, kernel: str, words: str) -> None:
    record = told(tmp_path, kernel)
    assert record.verdict == "wrong"
    assert re.match(f"correctness: {words}", record.reason or ""), record.reason
    assert str(record.repeat).endswith(f"--case {str(record.reason).split(': ')[1]}")


def test_the_deep_level_lays_what_it_draws_out_in_other_ways(tmp_path: Path) -> None:
    kernel = "len(x) > 17 and x.stride(0) != x.shape[1] and y.mul_(1.5)"
    record = told(tmp_path, kernel, level="deep")
    assert record.verdict == "wrong"
    (failed,) = (case for case in record.cases if case.status == "failed")
    assert failed.dims["rows"] == 18
    assert re.search(r"^correctness: the search: rows=18.* laid out in another way \(strided", record.reason or "")
    assert str(record.repeat).endswith(f"--case {failed.id}")


def test_who_needs_what_a_candidate_is_kept_from_is_not_run(tmp_path: Path) -> None:
    record = told(tmp_path, "open('/usr/share/of-mine', 'w')")
    assert record.verdict == "not_run"
    assert re.search(r"^it needs what a candidate is kept from, in launch \(.*Permission denied", record.reason or "")
    assert "kernelproof doctor" in (record.remedy or "")
    assert "failed" not in status(record).values()
    late = told(tmp_path / "late", "x.shape == (17, 101) and open('/usr/share/of-mine', 'w')")
    assert late.verdict == "not_run"
    assert "in correctness (odd-" in (late.reason or "")
    drawn = told(tmp_path / "drawn", "x.shape[1] in range(150, 203) and open('/usr/share/of-mine', 'w')", level="deep")
    assert drawn.verdict == "not_run"
    assert "in correctness (the search)" in (drawn.reason or "")
    wrong = told(tmp_path / "wrong", "y.mul_(2); x.shape == (17, 101) and open('/usr/share/of-mine', 'w')")
    assert wrong.verdict == "wrong"


def test_after_a_few_crashes_the_rest_is_not_run(tmp_path: Path) -> None:
    record = climbed(project(tmp_path, "segfault_from_16_rows"), "segfault_from_16_rows")
    assert record.verdict == "crashed"
    assert sum(case.status == "failed" for case in record.cases) == 3
    left = [case for case in record.cases if case.status == "skipped"]
    assert left
    assert all(case.reason and "the variant crashed 3 times" in case.reason for case in left)
    assert {case.status for case in record.cases if case.shape == "tiny"} <= {"passed", "skipped"}


def test_a_hang_costs_one_time_limit(tmp_path: Path) -> None:
    config = project(tmp_path, "hang_on_odd_rows")
    started = time.monotonic()
    record = climbed(config, "hang_on_odd_rows")
    assert record.verdict == "hung"
    assert time.monotonic() - started < 30
    assert sum("no answer within" in (rung.message or "") for rung in record.rungs) == 1
    rung = str(record.reason).split(": ")[0]
    assert str(record.remedy).endswith(
        f"raise test.time_limit_s.{rung}: kernelproof test --operator rmsnorm --variant hang_on_odd_rows "
        f"--set test.time_limit_s.{rung}=20"
    )


@pytest.mark.parametrize("changed", [{"macros": {"STEP": 2}}, {"flags": ["-O1"]}, {"abi": "torch"}])
def test_a_build_of_another_configuration_is_not_tested(tmp_path: Path, changed: dict[str, Any]) -> None:
    config = project(tmp_path, "good")
    operator = config.operators["rmsnorm"]
    variants = {"good": dataclasses.replace(operator.variants["good"], **changed)}
    operator = dataclasses.replace(operator, variants=variants)
    (word,) = changed
    record = climbed(dataclasses.replace(config, operators={"rmsnorm": operator}), "good")
    assert record.verdict == "not_run"
    key = f"operators.rmsnorm.variants.good.{word}"
    words = f"it was not built as it is now: `{key}` in the configuration, {changed[word]}, was another at the build"
    assert record.reason == words
    assert record.remedy == "kernelproof build --operator rmsnorm --variant good"


def test_an_altered_library_is_not_loaded(tmp_path: Path) -> None:
    config = project(tmp_path, "good")
    with (tmp_path / "good.so").open("ab") as stream:
        stream.write(b"x")
    record = climbed(config, "good")
    assert (record.verdict, status(record)["build"], status(record)["load"]) == ("failed_to_build", "failed", "skipped")
    assert "is not the file that the build made" in (record.reason or "")


def test_a_misspelt_entry_is_told_with_its_place_in_the_configuration(tmp_path: Path) -> None:
    config = project(tmp_path, "good")
    path = tmp_path / "config.yaml"
    path.write_text(path.read_text().replace("good: {device", "good: {\n        entry: runn,\n        device"))
    operators = configuration.load(path, root=tmp_path).operators
    record = climbed(dataclasses.replace(config, operators=operators), "good")
    assert "no TVM-FFI function 'runn'" in (record.reason or "")
    assert "; mend `entry` in the configuration, or end the binding with " in (record.reason or "")
    assert "next:" not in (record.reason or "")  # that is for the remedy
    assert record.remedy == "mend operators.rmsnorm.variants.good.entry, now 'runn': config.yaml:16"


def test_whose_loading_fails_in_such_words_has_no_misspelt_entry(tmp_path: Path) -> None:
    config = project(tmp_path, "good")
    (tmp_path / "mine.py").write_text("raise RuntimeError(\"there is no function 'run' in it\")\n")
    good = dataclasses.replace(config.operators["rmsnorm"].variants["good"], abi="python", entry="mine.py:run")
    operator = dataclasses.replace(config.operators["rmsnorm"], variants={"good": good})
    config.record("build", "rmsnorm", "good").unlink()
    record = climbed(dataclasses.replace(config, operators={"rmsnorm": operator}), "good")
    assert "RuntimeError: there is no function 'run' in it" in (record.reason or "")
    assert record.remedy is None
    (tmp_path / "mine.py").write_text("def runn(x, weight, eps): ...\n")
    record = climbed(dataclasses.replace(config, operators={"rmsnorm": operator}), "good")
    assert (record.remedy or "").startswith("mend operators.rmsnorm.variants.good.entry, now 'mine.py:run'")


def test_what_did_not_build_is_not_run(tmp_path: Path) -> None:
    config = project(tmp_path, "good")
    broken = BuildRecord(operator="rmsnorm", variant="good", status="failed", compiler_message="error: expected ';'")
    records.write(config.record("build", "rmsnorm", "good"), broken)
    record = climbed(config, "good")
    assert (record.verdict, record.reason) == ("failed_to_build", "build: error: expected ';'")


def test_a_source_that_was_changed_since_the_build_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = project(tmp_path, "good")
    path = config.record("build", "rmsnorm", "good")
    built = records.read(path, BuildRecord)
    (tmp_path / "good.cc").write_text("old")
    built.sources = [FileHash("good.cc", records.sha256_file(tmp_path / "good.cc"))]
    records.write(path, built)
    monkeypatch.chdir(tmp_path)
    command = ["test", "--operator", "rmsnorm", "--variant", "good", "--level", "quick"]
    cli.main(command)
    assert "was changed" not in capsys.readouterr().out
    (tmp_path / "good.cc").write_text("new")
    cli.main(command)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "rmsnorm/good: good.cc was changed since it was built, and this is of what was; "
        "kernelproof build --operator rmsnorm --variant good"
    )


def test_what_nobody_built_is_not_run_and_names_the_command(tmp_path: Path) -> None:
    config = project(tmp_path, "good")
    config.record("build", "rmsnorm", "good").unlink()
    record = climbed(config, "good")
    assert (record.verdict, record.status, record.reason) == ("not_run", "not_run", "nothing was built yet")
    assert set(status(record).values()) == {"skipped"}
    assert record.remedy == "kernelproof build --operator rmsnorm --variant good"
    elsewhere = dataclasses.replace(config, source="my kernels/config.yaml")
    remedy = climbed(elsewhere, "good").remedy
    assert remedy == "kernelproof build --config 'my kernels/config.yaml' --operator rmsnorm --variant good"


def test_without_a_gpu_a_cuda_variant_is_not_run_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = project(tmp_path, "good")
    monkeypatch.setattr("kernelproof.gpu.available", lambda: (False, "NVML sees no GPU"))
    variant = config.operators["rmsnorm"].variants["good"]
    object.__setattr__(variant, "device", "cuda")
    path = config.record("build", "rmsnorm", "good")
    records.write(path, dataclasses.replace(records.read(path, BuildRecord), settings={}))
    record = climbed(config, "good")
    assert (record.verdict, record.status) == ("not_run", "not_run")
    assert record.reason == "no usable GPU here (NVML sees no GPU)"
    assert record.remedy
    assert status(record) == {"build": "passed"} | dict.fromkeys(
        ("load", "launch", "sanity", "correctness", "properties", "determinism", "sanitizer"), "skipped"
    )


def test_a_gpu_that_others_measure_on_for_too_long_leaves_the_variant_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = project(tmp_path, "good")
    config = dataclasses.replace(config, bench=dataclasses.replace(config.bench, gpu_wait_s=0.0))
    object.__setattr__(config.operators["rmsnorm"].variants["good"], "device", "cuda")
    monkeypatch.setattr("kernelproof.gpu.available", lambda: (True, None))
    monkeypatch.setattr("kernelproof.gpu.visible", lambda: ["GPU-one"])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    measuring = lease.lock(gpu.uuid_sha256("GPU-one"))
    assert measuring is not None
    record = climbed(config, "good")
    os.close(measuring)
    assert (record.verdict, record.status, record.rungs) == ("not_run", "not_run", [])
    assert record.reason == "the GPU is in use by another kernelproof, and 0 s of waiting have passed"
    assert record.remedy == "wait for it to end, or set bench.gpu_wait_s to more seconds"


def test_a_record_is_written_when_pytest_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = project(tmp_path, "good")

    def dies(*_: object, **__: object) -> int:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(pytest, "main", dies)
    record = climbed(config, "good")
    assert (record.verdict, record.status) == ("not_run", "failed")
    assert record.reason == "pytest itself failed: RuntimeError: out of luck"


BROKEN_MODULES = {
    "does not import": ("X = 1\nsyntax error", "SyntaxError", "config.yaml:5: operators.rmsnorm.module: {}:2: "),
    "is no operator": ("OPERATOR = 1\n", "lacks name", "config.yaml:5: operators.rmsnorm.module: {}: "),
    "cannot make the inputs": (
        "from kernelproof.operators import rmsnorm\n"
        "class Broken(type(rmsnorm.OPERATOR)):\n"
        "    def make_call(self, case, generator):\n"
        "        raise RuntimeError('there is no memory for that')\n"
        "OPERATOR = Broken()\n",
        r"`Broken.make_call` raised RuntimeError: there is no memory for that \(case tiny-float32-normal-s0\)",
        "rmsnorm/good: {}:4: ",
    ),
    "gives no reference": (
        "from kernelproof.operators import rmsnorm\n"
        "class Broken(type(rmsnorm.OPERATOR)):\n"
        "    def reference(self, call, precision, device='cpu'):\n"
        "        return call.output\n"
        "OPERATOR = Broken()\n",
        "`reference` gave Tensor where Reference belongs",
        "rmsnorm/good: {}: ",
    ),
    "changes its inputs": (
        "from kernelproof.operators import rmsnorm\n"
        "class Broken(type(rmsnorm.OPERATOR)):\n"
        "    def reference(self, call, precision, device='cpu'):\n"
        "        call.tensor('x').to(device)[0, 0] = 0\n"
        "        return super().reference(call, precision, device)\n"
        "OPERATOR = Broken()\n",
        "`reference` changes the inputs that it is given, which kernels are given, too",
        "rmsnorm/good: {}:3: ",
    ),
}


@pytest.mark.parametrize("fault", BROKEN_MODULES)
def test_a_fault_in_the_operators_module_is_an_error_and_no_verdict(own: Path, fault: str) -> None:
    """Else a variant would be `not run`, and the run would end with 0."""
    config = project(own, "good")
    text, words, subject = BROKEN_MODULES[fault]
    module = f"{fault.replace(' ', '_')}.py"
    config = with_module(config, module, text)
    with pytest.raises((ConfigError, TestError), match=words) as caught:
        climbed(config, "good")
    assert str(caught.value).startswith(subject.format(module))
    left = records.read(config.record("test", "rmsnorm", "good"), TestRecord)
    assert (left.status, left.verdict, left.reason) == ("failed", "not_run", str(caught.value).splitlines()[0])


@pytest.mark.parametrize("kind", ["moves", "exact"])
def test_a_relation_that_does_not_hold_condemns_nobody(own: Path, kind: str) -> None:
    """Where elements merely move, or bits are compared, the reference is not computed for a kernel that keeps it."""
    config = project(own, "good")
    text = (
        "from kernelproof.operators import Relation, changed, exactly, rmsnorm\n"
        "class False_(type(rmsnorm.OPERATOR)):\n"
        "    def relations(self, case, call, generator):\n"
        "        x = call.tensor('x')\n"
        "        twice = exactly(x.double() * 2, x)\n"
        "        after = [] if twice is None else [changed(call, x=twice)]\n"
        f"        return [Relation('twice', 'twice x, twice y', c, lambda y: 2 * y, {kind}=True) for c in after]\n"
        "OPERATOR = False_()\n"
    )
    config = with_module(config, f"false_{kind}.py", text)
    with pytest.raises(TestError, match=r"twice: the references break the relation themselves") as caught:
        climbed(config, "good")
    assert "fault of the operator's `relations`" in str(caught.value.hint)


def test_a_wrong_result_of_an_exact_call_condemns_nobody(own: Path) -> None:
    config = project(own, "good")
    text = (
        "from kernelproof.operators import rmsnorm\n"
        "class FalseSign(type(rmsnorm.OPERATOR)):\n"
        "    def sanity_calls(self, case, generator):\n"
        "        made = super().sanity_calls(case, generator)\n"
        "        made[0].reference.output[2, 3] *= -4\n"
        "        return made\n"
        "OPERATOR = FalseSign()\n"
    )
    config = with_module(config, "false_sign.py", text)
    words = (
        r"^rmsnorm/good: false_sign.py:3: the exact call 'signs' and `reference` disagree in 1 of \d+ elements: "
        r"the worst at \[2, 3\] is \S+ by `sanity_calls` and \S+ by `reference`, .*-sanity-signs\)"
    )
    with pytest.raises(TestError, match=words) as caught:
        climbed(config, "good")
    assert caught.value.hint == "no kernel is at fault: mend the result that `sanity_calls` states, or `reference`"


def test_a_reference_that_the_exact_calls_refute_condemns_nobody(own: Path) -> None:
    """The kernel gives what the exact calls state; that the reference does not, no case shows but by the kernel."""
    config = project(own, "good")
    text = (
        "from kernelproof.operators import rmsnorm\n"
        "import dataclasses\n"
        "class Forgot(type(rmsnorm.OPERATOR)):\n"
        "    def reference(self, call, precision, device):\n"
        "        made = super().reference(call, precision, device)\n"
        "        return dataclasses.replace(made, output=made.output / 2)\n"
        "OPERATOR = Forgot()\n"
    )
    config = with_module(config, "forgot.py", text)
    with pytest.raises(TestError, match=r"the exact call '\w+' and `reference` disagree"):
        climbed(config, "good")


def test_what_an_operator_does_not_supply_is_said(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = project(own, "good")
    (own / "bare.py").write_text(
        "from kernelproof.operators import rmsnorm\n"
        "class Bare(type(rmsnorm.OPERATOR)):\n"
        "    def sanity_calls(self, case, generator):\n"
        "        return []\n"
        "    def relations(self, case, call, generator):\n"
        "        return []\n"
        "OPERATOR = Bare()\n"
    )
    said = climbed(config, "good")
    supplied = ("sanity", "properties")  # with one core the rung of the determinism has something to say too
    assert not any(rung.message for rung in said.rungs if rung.name in supplied)
    text = (own / "config.yaml").read_text()
    (own / "config.yaml").write_text(text.replace("kernelproof.operators.rmsnorm", "bare.py"))
    monkeypatch.chdir(own)
    assert cli.main(["test", "--operator", "rmsnorm", "--variant", "good"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("rmsnorm/good: correct")
    assert [line.split(",")[0] for line in rest if line.split(":")[0].strip() in supplied] == [
        "  sanity: no exact call was made",
        "  properties: no relation between calls was tried",
    ]


@pytest.mark.parametrize("name", ["raises", "exit_zero"])
def test_a_full_disk_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The worker cannot hand its results over, or dies of its log, as a candidate could that fails by itself."""
    config = project(tmp_path, name)
    status_of = os.statvfs

    def full(path: str | Path) -> os.statvfs_result:
        return os.statvfs_result([0 if place == 4 else value for place, value in enumerate(status_of(path))])

    monkeypatch.setattr(os, "statvfs", full)
    with pytest.raises(OSError, match="No space left on device"):
        climbed(config, name)


def test_an_unknown_dimension_is_an_error(tmp_path: Path) -> None:
    config = project(tmp_path, "good")
    shapes = {name: {"rows": 3, "colz": 8} for name in ("tiny", "odd", "even")}
    operator = dataclasses.replace(config.operators["rmsnorm"], shapes=shapes)
    words = "shapes.tiny.colz: rmsnorm has no dimension colz; allowed: cols, rows; did you mean 'cols'"
    with pytest.raises(ConfigError, match=words):
        climbed(dataclasses.replace(config, operators={"rmsnorm": operator}), "good")


def test_a_fault_of_our_own_condemns_nobody_and_ends_one_variant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged, config = Calls.judged, project(tmp_path, "good", "nan")

    def falling_over(self: Calls, *job: Any, **settings: Any) -> Any:
        return {}["surprise"] if self.variant.name == "nan" else judged(self, *job, **settings)

    monkeypatch.setattr(Calls, "judged", falling_over)
    nan, good = test.run(config, "rmsnorm", ["nan", "good"], config.results / "test" / "rmsnorm")
    assert (nan.status, nan.verdict) == ("failed", "not_run")
    assert nan.reason == "kernelproof itself failed: KeyError: 'surprise'"
    assert records.read(config.record("test", "rmsnorm", "nan"), TestRecord) == nan
    assert "in falling_over" in (tmp_path / str(nan.log)).read_text()
    assert good.verdict == "correct", good.reason


def test_a_machine_without_memory_condemns_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "_crashed", lambda self: WorkerStarved(-9))
    record = climbed(project(tmp_path, "exit_zero"), "exit_zero")
    assert (record.status, record.verdict) == ("failed", "not_run")
    assert "the machine's memory ran out" in (record.reason or "")


def test_a_data_type_that_the_operator_does_not_have_condemns_no_kernel(tmp_path: Path) -> None:
    config = project(tmp_path, "good")
    variants = config.operators["rmsnorm"].variants
    variants["good"] = dataclasses.replace(variants["good"], dtypes=["uint8"])
    with pytest.raises(ConfigError, match=r"variants.good.dtypes: rmsnorm has no data type uint8; allowed: bfloat16"):
        climbed(config, "good")


def test_junit_xml_stays_well_formed_where_a_path_is_scrubbed(tmp_path: Path) -> None:
    junit = tmp_path / "v.xml"
    junit.write_text(f'<testsuite hostname="h"><failure message="no {sys.prefix}/share &amp;">x</failure></testsuite>')
    test._scrub_junit(junit)
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("hostname"), suite[0].get("message")) == ("", "no <prefix>/share &")


def test_an_interrupt_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = project(tmp_path, "good")
    monkeypatch.setattr(pytest, "main", lambda *_, **__: pytest.ExitCode.INTERRUPTED)
    with pytest.raises(KeyboardInterrupt):
        test.run(config, "rmsnorm", ["good"], config.results / "test" / "rmsnorm")
    left = records.read(config.record("test", "rmsnorm", "good"), TestRecord)
    assert (left.status, left.verdict, left.reason) == ("failed", "not_run", "the test run was cut short")


def test_an_unknown_variant_is_refused(tmp_path: Path) -> None:
    config = project(tmp_path, "good")
    with pytest.raises(ConfigError, match="did you mean 'good'"):
        test.run(config, "rmsnorm", ["godo"], tmp_path)


def test_by_hand_on_one_variant(tmp_path: Path) -> None:
    project(tmp_path, "good", "nan")
    command = [sys.executable, "-m", "pytest", "--pyargs", "kernelproof.ladder", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [*command, "-k", "nan or (good and sanity)"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "nonfinite: 1 NaN" in done.stdout, done.stdout
    assert re.search(r"\d+ failed, \d+ passed, \d+ skipped, \d+ deselected", done.stdout)
    assert "FAILED" in done.stdout
    assert "rmsnorm/good" not in done.stdout.split("short test summary")[1]
    assert not list((tmp_path / "results").rglob("test/*"))


def test_the_record_is_plain_json(tmp_path: Path) -> None:
    config = project(tmp_path, "nan")
    climbed(config, "nan")
    json.loads(
        config.record("test", "rmsnorm", "nan").read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON")
    )


def test_what_was_tested_as_another_build_is_not_benchmarked(tmp_path: Path) -> None:
    config = project(tmp_path, "good")
    variant = config.operators["rmsnorm"].variants["good"]
    assert contest.entrants._entrant(config, variant).contender.outcome == (
        "not benchmarked: it was not tested (do that with: kernelproof test --operator rmsnorm --variant good)"
    )
    climbed(config, "good")
    assert contest.entrants._entrant(config, variant).contender.correct
    path = config.record("build", "rmsnorm", "good")
    built = records.read(path, BuildRecord)
    built.signature = "of a source that was changed since"
    records.write(path, built)
    contender = contest.entrants._entrant(config, variant).contender
    assert not contender.correct
    assert contender.outcome == (
        "not benchmarked: what was tested is another build "
        "(test this one: kernelproof test --operator rmsnorm --variant good)"
    )


@pytest.mark.parametrize(
    ("requires", "reason"),
    [("pytest>=1", None), ("pytest<1", "pytest<1 is not installed"), ("no-such-kernels", "no-such-kernels is not")],
)
def test_what_needs_a_package_that_is_not_installed_is_not_run(
    tmp_path: Path, requires: str, reason: str | None
) -> None:
    text = "      good: {device: cpu, "
    config = project(tmp_path, "good", level="quick")
    file = tmp_path / "config.yaml"
    file.write_text(file.read_text().replace(text, f'{text}requires: ["{requires}"], '))
    config = dataclasses.replace(configuration.load(file, root=tmp_path), test=config.test)
    record = climbed(config, "good")
    assert record.verdict == ("correct" if reason is None else "not_run")
    assert (record.reason or "").startswith(reason or "")
    assert record.remedy == (reason and f"install it beside torch: pip install '{requires}'")


# --- whole numbers ----------------------------------------------------------------------------------------------------

COUNTING = '''
import torch

from kernelproof.operators import Call, Cost, Reference, Relation, SanityCall, changed, dims_of, dtype, shuffled
from kernelproof.records import Case


class Counting:
    """How often each value occurs: v [count] below bins, int32 -> h [bins], int64."""

    name, dims, options = "counting", {"count": None, "bins": None}, {}
    families, dtypes, axes = ("even",), ("int32",), ("bin",)

    def make_call(self, case, generator):
        d = dims_of(self, case)
        return self.call(torch.randint(d["bins"], (d["count"],), generator=generator).to(dtype(case.dtype)), d["bins"])

    def call(self, v, bins):
        return Call({"v": v, "h": torch.empty(bins, dtype=torch.int64)}, ("h",), self.axes)

    def reference(self, call, precision, device="cpu"):
        h = torch.bincount(call.tensor("v").to(device), minlength=len(call.output)).double()
        return Reference(h, torch.zeros_like(h), 0.0)

    def sanity_calls(self, case, generator):
        call = self.call(torch.arange(33).int() % 7, 7)
        at = Case(self.name, "each", {"count": 33, "bins": 7}, {}, "int32")
        want = torch.tensor([5.0] * 5 + [4.0] * 2).double()
        return [SanityCall("each", at, call, Reference(want, torch.zeros_like(want), 0.0, exact=True))]

    def relations(self, case, call, generator):
        v = call.tensor("v")
        order = shuffled(len(v), generator)
        return [Relation("order", "the order does not matter", changed(call, v=v[order]), lambda h: h, moves=True)]

    def cost(self, case):
        d = dims_of(self, case)
        return Cost(d["count"], 4 * d["count"], 8 * d["bins"])

    def suspects(self, call, rows):
        return iter(())


OPERATOR = Counting()
'''
COUNTERS = """
import torch


def right(v, h):
    h.copy_(torch.bincount(v, minlength=len(h)))


def one_missing(v, h):
    right(v[: len(v) - len(v) // 500], h)


def not_cleared(v, h):
    h.add_(torch.bincount(v, minlength=len(h)))


def half_written(v, h):
    h.view(torch.int32)[::2] = torch.bincount(v, minlength=len(h)).int()
"""


def built(
    folder: Path,
    operator: str,
    shape: str,
    dtype: str,
    names: Sequence[str],
    module: str,
    kernels: str,
    output: str = "int64",
) -> Config:
    """A project with one operator and shape, whose module and kernels are Python, and that gives whole numbers."""
    kind = f"abi: python, device: cpu, passing: destination, dtypes: [{dtype}], precision: {{output: {output}}}"
    lines = "".join(f'      {name}: {{{kind}, entry: "kernels.py:{name}"}}\n' for name in names)
    (folder / f"{operator}.py").write_text(module)
    (folder / "kernels.py").write_text(kernels)
    (folder / "config.yaml").write_text(
        f"schema: kernelproof.config/1\nproject: own\noperators:\n  {operator}:\n    module: {operator}.py\n"
        f"    shapes: {{odd: {shape}}}\n    test: {{shapes: [odd]}}\n    bench: {{shapes: [odd]}}\n"
        f"    profile: {{shape: odd}}\n    variants:\n{lines}test: {{seeds: [0], trials: 5}}\n"
        "bench: {processes: 1, blocks: 2, max_seconds: 0.05, cpu_threads: 1}\n"
    )
    loaded = configuration.load(folder / "config.yaml", root=folder)
    for name in loaded.operators[operator].variants:
        build.run(loaded, operator, name, loaded.record("build", operator, name))
    return loaded


def test_counts_are_right_to_the_last_one_or_wrong(tmp_path: Path) -> None:
    """Whole numbers in and out, with no floating-point number anywhere, from the tests through the benchmark."""
    names = ("right", "one_missing", "not_cleared", "half_written")
    loaded = built(tmp_path, "counting", "{count: 1001, bins: 17}", "int32", names, COUNTING, COUNTERS)
    tested = test.run(loaded, "counting", list(names), loaded.results / "test" / "counting")
    assert [record.verdict for record in tested] == ["correct", "wrong", "wrong", "wrong"]
    right, one_missing, *unwritten = (record.reason or "" for record in tested)
    assert right == ""
    assert re.search(r"correctness: .*bound: .* an error of \d, and the bound there is 0", one_missing), one_missing
    assert all(reason.startswith("sanity: ") for reason in unwritten)
    bench.run(loaded, "counting", "cpu", loaded.record("bench", "counting-cpu"))
    record = records.read(loaded.record("bench", "counting-cpu"), records.BenchRecord)
    assert [contender.outcome for contender in record.contenders] == ["timed"] + ["not benchmarked: wrong"] * 3
    assert all("values_never_changed" in row.flags for row in record.times if row.method == "cpu_clock")
    skipped = {each.name: each.message for each in tested[0].properties if each.status == "skipped"}
    assert set(skipped) >= {"new low bits", "one new value", "new last values"}
    assert "all are whole numbers of more than a byte" in skipped["one new value"]
    assert "new values" not in skipped


@pytest.mark.parametrize(("status", "code"), [("3", 3), ("", 0), ("'so long'", 1)])
def test_who_leaves_is_told_with_the_status_that_it_asked_for(tmp_path: Path, status: str, code: int) -> None:
    leaving = f"import sys\n\n\ndef leaves(*arguments):\n    sys.exit({status})\n"
    loaded = built(tmp_path, "counting", "{count: 1001, bins: 17}", "int32", ["leaves"], COUNTING, leaving)
    (record,) = test.run(loaded, "counting", ["leaves"], loaded.results / "test" / "counting")
    assert record.verdict == "crashed"
    assert f"the candidate ended the process with exit code {code} in the middle of a call" in (record.reason or "")


# What ends an operator that supplies neither exact calls nor suspects.
NOTHING_MORE = """
    def sanity_calls(self, case, generator):
        return []

    def cost(self, case):
        return Cost(1.0, 1.0, 1.0)

    def suspects(self, call, rows):
        return iter(())


OPERATOR = {}()
"""
BUCKETS = '''
import torch

from kernelproof.operators import Call, Cost, Reference, dims_of


class Buckets:
    """How many of the sorted edges lie at or below each value: x [count], edges [count], order [count] -> n [count]."""

    name, dims, options = "buckets", {"count": None}, {}
    families, dtypes, axes, whole = ("normal",), ("float32",), ("value",), ("edges",)

    def make_call(self, case, generator):
        count = dims_of(self, case)["count"]
        x, edges = torch.randn(2, count, generator=generator)
        order = torch.randperm(count, generator=generator)
        n = torch.empty(count, dtype=torch.int64)
        return Call({"x": x, "edges": edges.sort().values, "order": order, "n": n}, ("n",), self.axes)

    def reference(self, call, precision, device="cpu"):
        x, edges, order = (call.tensor(name).to(device) for name in ("x", "edges", "order"))
        n = torch.searchsorted(edges, x[order], right=True).double()
        return Reference(n, torch.zeros_like(n), 0.0)
'''
BUCKETS += NOTHING_MORE.format("Buckets")
BUCKET_KERNELS = """
import torch


def counts(x, edges, order, n):
    n.copy_((edges <= x[order, None]).sum(1))


KEPT = {}


def keeps_the_order(x, edges, order, n):
    own = KEPT.setdefault(x.numpy().tobytes(), order.clone())
    n.copy_((edges <= x[own, None]).sum(1))


def scatters(x, edges, order, n):
    n[torch.argsort(order)] = (edges <= x[:, None]).sum(1)
    torch.bincount(order, minlength=len(n)).sub(1).count_nonzero().item() and n.zero_()
"""


def test_inputs_whose_values_belong_together_stay_so(tmp_path: Path) -> None:
    """Sorted ones that the operator names, and a permutation: no part of them is another draw's, when timed neither."""
    names = ["counts", "scatters"]
    (tmp_path / "bucket_words.py").write_text("WORDS = 1\n")
    module = f"import bucket_words\n{BUCKETS}"
    loaded = built(tmp_path, "buckets", "{count: 801}", "float32", names, module, BUCKET_KERNELS)
    tested = test.run(loaded, "buckets", names, loaded.results / "test" / "buckets")
    assert [(record.verdict, record.reason) for record in tested] == [("correct", None)] * 2
    passed = {each.name for each in tested[0].properties if each.status == "passed"}
    assert {"new values", "one new value", "new low bits"} <= passed
    ties = {each.name: each.message for each in tested[0].properties if each.status == "skipped"}
    assert set(ties) >= {"repeated values", "rows alike"}, "an index may name either of two equal values"
    assert "an output is of whole numbers" in ties["rows alike"]
    bench.run(loaded, "buckets", "cpu", loaded.record("bench", "buckets-cpu"))
    record = records.read(loaded.record("bench", "buckets-cpu"), records.BenchRecord)
    assert [contender.outcome for contender in record.contenders] == ["timed"] * 2
    flagged = [row for row in record.times if row.method == "cpu_clock"]
    assert all("values_never_changed" in row.flags for row in flagged)  # x moves, and not what lies beside it
    assert all("edges and order; whether" in " ".join(row.reasons) for row in flagged)
    for name in ("bucket_words.py", "buckets.py"):
        with (tmp_path / name).open("a") as file:
            file.write("# judged by other words\n")
        bench.run(loaded, "buckets", "cpu", loaded.record("bench", "buckets-cpu"))
        (told, _) = records.read(loaded.record("bench", "buckets-cpu"), records.BenchRecord).contenders
        assert told.outcome.startswith(f"not benchmarked: {name} was changed after the test (test again: ")


SHIFT = """
import torch

from kernelproof.operators import Call, Cost, Reference, dims_of


class Shift:
    '''y = x + bias, of which family `plain` has none: x [count], bias [count] or None -> y [count].'''

    name, dims, options = "shift", {"count": None}, {"order": ("rising", "falling")}  # which changes nothing
    families, dtypes, axes = ("normal", "plain"), ("float32",), ("value",)

    def make_call(self, case, generator):
        x, bias = (torch.randn(dims_of(self, case)["count"], generator=generator) for _ in "ab")
        bias = None if case.family == "plain" else bias
        return Call({"x": x, "bias": bias, "y": torch.empty_like(x)}, ("y",), self.axes)

    def reference(self, call, precision, device="cpu"):
        y = call.tensor("x").to(device).double()
        if call.arguments["bias"] is not None:
            y = y + call.tensor("bias").to(device).double()
        return Reference(y, y.abs() * 2.0**-24, 2.0**-24)
"""
SHIFTS = """
def right(x, bias, y):
    y.copy_(x if bias is None else x + bias)


KEPT = []


def keeps_a_bias(x, bias, y):
    KEPT[:] = KEPT if bias is None else [bias.clone()]
    y.copy_(x + KEPT[0] if KEPT else x)
"""


def test_a_tensor_that_a_call_does_without_is_none(tmp_path: Path) -> None:
    names = ["right", "keeps_a_bias"]
    module = SHIFT + NOTHING_MORE.format("Shift")
    loaded = built(tmp_path, "shift", "{count: 801}", "float32", names, module, SHIFTS, output="float32")
    right, keeps = test.run(loaded, "shift", names, loaded.results / "test" / "shift")
    assert (right.verdict, right.reason) == ("correct", None)
    assert {case.family for case in right.cases if case.status == "passed"} == {"normal", "plain"}
    said = {rung.name: rung.message for rung in right.rungs}["correctness"]
    assert said == "no case varies the operator's `order`: name it in test.options"
    assert keeps.verdict == "wrong"
    assert "plain" in (keeps.reason or "")
    bench.run(loaded, "shift", "cpu", loaded.record("bench", "shift-cpu"))
    record = records.read(loaded.record("bench", "shift-cpu"), records.BenchRecord)
    assert [contender.outcome for contender in record.contenders] == ["timed", "not benchmarked: wrong"]


def test_indices_that_are_kept_by_the_values_beside_them_are_told(tmp_path: Path) -> None:
    names = ["counts", "keeps_the_order"]
    loaded = built(tmp_path, "buckets", "{count: 801}", "float32", names, BUCKETS, BUCKET_KERNELS)
    right, kept = test.run(loaded, "buckets", names, loaded.results / "test" / "buckets")
    assert (right.verdict, kept.verdict) == ("correct", "wrong")
    assert "other whole inputs" in {each.name for each in right.properties if each.status == "passed"}
    assert "other whole inputs (expected: beside the same other inputs" in (kept.reason or "")


TOP = """
import torch

from kernelproof.operators import Call, Cost, Reference, dims_of


class Top:
    name, dims, options = "top", {"cols": None, "k": None}, {}
    families, dtypes, axes = ("normal",), ("float32",), ("rank",)

    def make_call(self, case, generator):
        d = dims_of(self, case)
        return Call({"x": torch.randn(d["cols"], generator=generator), "y": torch.empty(d["k"])}, ("y",), self.axes)

    def reference(self, call, precision, device="cpu"):
        output = call.tensor("x").to(device).double().topk(len(call.tensor("y"))).values
        return Reference(output, torch.zeros_like(output), 0.0, exact=True)
"""
TOP += NOTHING_MORE.format("Top")


def test_nobody_is_asked_for_sizes_that_the_reference_is_not_for(tmp_path: Path) -> None:
    """The eight largest of five, by sizes that no shape has: a right kernel aborted there, and was called crashed."""
    kernel = "import os\n\n\ndef right(x, y):\n    len(y) > len(x) and os.abort()\n    y.copy_(x.topk(len(y)).values)\n"
    shapes = "{cols: 40, k: 8}, even: {cols: 5, k: 2}"
    loaded = built(tmp_path, "top", shapes, "float32", ["right"], TOP, kernel, "float32")
    path = tmp_path / "config.yaml"
    path.write_text(path.read_text().replace("test: {shapes: [odd]}", "test: {shapes: [odd, even]}"))
    loaded = configuration.load(path, root=tmp_path)
    build.run(loaded, "top", "right", loaded.record("build", "top", "right"))
    (record,) = test.run(loaded, "top", ["right"], loaded.results / "test" / "top")
    assert (record.verdict, record.reason) == ("correct", None)
    assert any(each.name.startswith("neighbour") for each in record.properties)


PRODUCT = """
import torch

from kernelproof.operators import Call, Cost, Reference, dims_of


class Product:
    name, dims, options = "product", {"rows": None, "cols": None}, {}
    families, dtypes, axes = ("normal",), ("float32",), ("row", "column")

    def make_call(self, case, generator):
        d = dims_of(self, case)
        a, b = torch.randn(2, d["rows"], d["cols"], generator=generator)
        return Call({"a": a, "b": b, "y": torch.empty_like(a)}, ("y",), self.axes)

    def reference(self, call, precision, device="cpu"):
        output = call.tensor("a").to(device).double() * call.tensor("b").to(device).double()
        return Reference(output, 2.0**-24 * output.abs(), 2.0**-24)
"""
PRODUCT += NOTHING_MORE.format("Product")
PRODUCTS = """
def right(a, b, y):
    y.copy_(a * b)


def packed_by_address(a, b, y):
    packed = {}
    packed[a.data_ptr()] = a / 2
    packed[b.data_ptr()] = 2 * b
    y.copy_(packed[a.data_ptr()] * packed[b.data_ptr()])


def takes_no_square(a, b, y):
    if a.data_ptr() == b.data_ptr():
        raise NotImplementedError("two tensors are needed")
    y.copy_(a * b)
"""


def test_two_inputs_may_be_one_tensor(tmp_path: Path) -> None:
    names = ["right", "packed_by_address", "takes_no_square"]
    loaded = built(tmp_path, "product", "{rows: 3, cols: 701}", "float32", names, PRODUCT, PRODUCTS, "float32")
    right, packed, refuses = test.run(loaded, "product", names, loaded.results / "test" / "product")
    assert (right.verdict, packed.verdict, refuses.verdict) == ("correct", "wrong", "correct"), right.reason
    assert "aliased a+b (expected: with one tensor for a and b the result is right, or refused): " in (
        packed.reason or ""
    )
    found = [next(p for p in record.properties if p.name == "aliased a+b") for record in (right, refuses)]
    assert [(each.status, each.message) for each in found] == [
        ("passed", None),
        ("skipped", "refused: two tensors are needed"),
    ]


PLACES = """
import torch

from kernelproof.operators import Call, Cost, Reference, dims_of


class Places:
    name = "places"
    dims = {"cols": None, "k": None}
    options = {}
    families = ("shuffled",)
    dtypes = ("float32",)
    axes = ("place",)

    def make_call(self, case, generator):
        d = dims_of(self, case)
        x = torch.randperm(d["cols"], generator=generator).float()
        return Call({"x": x, "y": torch.empty(d["k"], dtype=torch.int64)}, ("y",), self.axes)

    def reference(self, call, precision, device="cpu"):
        output = call.tensor("x").to(device).double().argsort(stable=True)[: len(call.tensor("y"))].double()
        return Reference(output, torch.zeros_like(output), 0.0, exact=True)
"""
PLACES += NOTHING_MORE.format("Places")


FACTORS = """
import torch

from kernelproof.operators import Call, Cost, Reference, accumulation_floors, dims_of, forward_bound, units


class Factors:
    name = "factors"
    dims = {"size": None}
    options = {}
    families = ("normal",)
    dtypes = ("float32",)
    axes = ("row", "column")

    def make_call(self, case, generator):
        size = dims_of(self, case)["size"]
        b = torch.randn(size, size, generator=generator)
        b = b @ b.mT + 9 * torch.eye(size)
        return Call({"a": b.triu() + b.triu(1).mT, "l": torch.empty(size, size)}, ("l",), self.axes)

    def reference(self, call, precision, device="cpu"):
        a = call.tensor("a").to(device).double()
        if FAILS and not torch.equal(a, a.mT):
            raise ValueError("not symmetric")
        output = torch.linalg.cholesky(a) if FAILS else torch.linalg.cholesky_ex(a).L.nan_to_num()
        unit = units(precision, torch.float32)
        accumulation = (64 * unit.accumulate * a.abs().max()).expand(output.shape).clone()
        return Reference(output, forward_bound(output, a.abs(), accumulation, unit), unit.coarse,
                         *accumulation_floors(output, accumulation, unit))
"""
FACTORS += NOTHING_MORE.format("Factors")
FACTORING = """
import torch

def right(a, l):
    l.copy_(torch.linalg.cholesky(a))
def raises(a, l):
    assert torch.equal(a, a.mT)
    l.copy_(torch.linalg.cholesky(a))
def last_row_left(a, l):
    l.copy_(torch.linalg.cholesky(a)); l[-1, 0] = 0
"""


def test_inputs_that_are_none_once_they_are_changed_accuse_nobody_who_raises(tmp_path: Path) -> None:
    """A matrix is no longer symmetric or positive definite; the operator's reference raises, too."""
    module, names = FACTORS.replace("FAILS", "True"), ["right", "raises", "last_row_left"]
    loaded = built(tmp_path, "factors", "{size: 12}", "float32", names, module, FACTORING, "float32")
    *honest, wrong = test.run(loaded, "factors", names, loaded.results / "test" / "factors")
    for right in honest:
        assert (right.verdict, right.reason) == ("correct", None)
        skipped = [each.name for each in right.properties if each.status == "skipped" and "fails (Val" in each.message]
        assert "new low bits" in skipped
        assert "passed" in {each.status for each in right.properties}
        rungs = {rung.name: rung.message or "" for rung in right.rungs}
        assert "name inputs whose values belong together in OPERATOR.whole" in rungs["properties"]
    assert wrong.verdict == "wrong"
    assert (wrong.reason or "").startswith("correctness:")
    assert "OPERATOR.whole" not in (wrong.remedy or ""), "it is wrong of other inputs, too"


def test_whose_inputs_may_not_be_changed_learns_how_to_say_so(tmp_path: Path) -> None:
    module = FACTORS.replace("FAILS", "False")
    loaded = built(tmp_path, "factors", "{size: 12}", "float32", ["right"], module, FACTORING, "float32")
    (right,) = test.run(loaded, "factors", ["right"], loaded.results / "test" / "factors")
    assert right.verdict == "wrong"
    assert "name these inputs in OPERATOR.whole" in (right.remedy or "")


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("the mantissas are wrong", True),
        ("all of these are bit for bit what the call medium gave there, for other inputs: a result", False),
        ("weight is that of an earlier call (medium): it, or what was made of it, is kept", False),
    ],
)
def test_whose_results_are_an_earlier_calls_is_not_told_to_leave_inputs_alone(cause: str, said: bool) -> None:
    found = [PropertyResult(PARTS["tail"][0], "", "case", "failed", f"12 of 34 values differ; {cause}")]
    rungs = [Rung("correctness", "passed", 1.0), Rung("properties", "failed", 1.0)]
    standing = SimpleNamespace(properties_found=found)
    selection = SimpleNamespace(settings=SimpleNamespace(module="mine.py"))
    remedy = verdicts._whole(rungs, cast(Any, standing), cast(Any, selection))
    assert ("OPERATOR.whole" in (remedy or "")) == said


def test_no_values_are_made_equal_where_an_index_says_which(tmp_path: Path) -> None:
    """Halves of two permutations have values in common; who took the last of two equal ones was called wrong."""
    kernel = "def right(x, y):\n    y.copy_(len(x) - 1 - x.flip(0).argsort(stable=True)[: len(y)])\n"
    kernel += "def memo(x, y, kept={}):\n    y.copy_(kept.setdefault(str(x[:2]), x.argsort()[: len(y)]))\n"
    loaded = built(tmp_path, "places", "{cols: 40, k: 40}", "float32", ["right", "memo"], PLACES, kernel)
    right, memo = test.run(loaded, "places", ["right", "memo"], loaded.results / "test" / "places")
    assert (right.verdict, right.reason) == ("correct", None)
    skipped = {each.name: each.message or "" for each in right.properties if each.status == "skipped"}
    assert skipped.keys() >= {"new later halves", "new last values"}
    assert "values would be equal that are all different" in skipped["new later halves"]
    assert memo.verdict == "wrong"
    assert "exchanged" in (memo.reason or "")


BEST = """
import torch

from kernelproof.operators import Call, Cost, Reference, dims_of


class Best:
    name = "best"
    dims = {"rows": None, "cols": None}
    options = {}
    families = ("distinct",)
    dtypes = ("float32",)
    axes = ("row", "place")

    def make_call(self, case, generator):
        d = dims_of(self, case)
        rows = [torch.randperm(40_000, generator=generator)[: d["cols"]] for _ in range(d["rows"])]
        y = torch.empty(d["rows"], 8, dtype=torch.int64)
        return Call({"x": torch.stack(rows).float(), "y": y}, ("y",), self.axes)

    def reference(self, call, precision, device="cpu"):
        output = (-call.tensor("x").to(device).double()).argsort(-1)[:, :8].double()
        return Reference(output, torch.zeros_like(output), 0.0, exact=True)
"""
BEST += NOTHING_MORE.format("Best")


def test_a_tie_by_chance_costs_its_row_alone(tmp_path: Path) -> None:
    """Nearly every change of all rows makes a tie in one, and the others are enough to see a result that was kept."""
    kernel = "def right(x, y):\n    last = x.flip(1).argsort(dim=1, descending=True, stable=True)\n"
    kernel += "    y.copy_(x.shape[1] - 1 - last[:, :8])\n"
    kernel += "def memo(x, y, kept={}):\n    found = (-x).argsort(-1)[:, :8]\n"
    kernel += "    y.copy_(kept.setdefault(str(x[:, 0].tolist()), found))\n"
    loaded = built(tmp_path, "best", "{rows: 40, cols: 200}", "float32", ["right", "memo"], BEST, kernel)
    right, memo = test.run(loaded, "best", ["right", "memo"], loaded.results / "test" / "best")
    assert right.verdict == "correct", right.reason
    done = {each.name for each in right.properties if each.status == "passed"}
    assert done >= {"new values", "new later halves", "new earlier halves"}
    assert memo.verdict == "wrong"
    assert "new later halves" in (memo.reason or "")


LARGEST = """
import torch

from kernelproof.operators import Call, Cost, Reference, dims_of


class Largest:
    name = "largest"
    dims = {"rows": None, "cols": None}
    options = {}
    families = ("normal",)
    dtypes = ("float32",)
    axes = {"y": ("row",), "at": ("row",)}

    def make_call(self, case, generator):
        d = dims_of(self, case)
        x = torch.randn(d["rows"], d["cols"], generator=generator)
        y, at = torch.empty(d["rows"]), torch.empty(d["rows"], dtype=torch.int64)
        return Call({"x": x, "y": y, "at": at}, ("y", "at"), self.axes)

    def reference(self, call, precision, device="cpu"):
        y, at = call.tensor("x").to(device).double().max(-1)
        zero = torch.zeros_like(y)
        return {name: Reference(each.double(), zero, 0.0, exact=True) for name, each in (("y", y), ("at", at))}
"""
LARGEST += NOTHING_MORE.format("Largest")


def test_the_largest_of_close_values_and_of_rows_that_begin_alike_is_found(tmp_path: Path) -> None:
    """Who keeps the index in the low bits of the value was right for all random ones, and who allows an epsilon.

    So was who takes rows for one by their first values. Of columns an index names a row, of which two may be alike.
    """
    kernel = """
import torch

def right(x, y, at):
    y.copy_(x.amax(-1))
    at.copy_(x.argmax(-1))

def packed(x, y, at):
    at.copy_((x.view(torch.int32) & -16).view(torch.float32).argmax(-1))
    y.copy_(x.gather(-1, at[:, None])[:, 0])

def nearly(x, y, at):
    at.copy_((x >= x.amax(-1, keepdim=True) - 1e-6).int().argmax(-1))
    y.copy_(x.gather(-1, at[:, None])[:, 0])

def by_their_start(x, y, at):
    seen = {}
    for number, row in enumerate(x):
        y[number], at[number] = seen.setdefault(tuple(row[:8].tolist()), (row.amax(), row.argmax()))

def last_of_columns(x, y, at):
    y.copy_(x.amax(0))
    at.copy_(len(x) - 1 - x.flip(0).argmax(0))

def rounded(x, y, at):
    y.copy_(x.amax(-1))
    at.copy_((x * 0.7).argmax(-1))
"""
    names = ["right", "packed", "nearly", "by_their_start"]
    loaded = built(tmp_path, "largest", "{rows: 40, cols: 24}", "float32", names, LARGEST, kernel, "float32")
    right, *wrong = test.run(loaded, "largest", names, loaded.results / "test" / "largest")
    assert (right.verdict, right.reason) == ("correct", None)
    assert "close values" in {each.name for each in right.properties if each.status == "passed"}
    for record, name in zip(wrong, ["close values", "close values", "rows begun alike"], strict=True):
        assert record.verdict == "wrong"
        assert name in (record.reason or "")
    of_columns = LARGEST.replace('d["rows"])', 'd["cols"])').replace('d["rows"], dtype', 'd["cols"], dtype')
    of_columns = of_columns.replace("max(-1)", "max(0)").replace('("row",)', '("col",)')
    not_exact = LARGEST.replace("zero, 0.0, exact=True", "zero + 1e-6, 2.0**-24")
    for name, text, rows, why in (
        ("last_of_columns", of_columns, 24, "an index of such values may name a place in either of two rows"),
        ("last_of_columns", of_columns, 6, None),
        ("rounded", not_exact, 40, ""),
    ):
        folder = tmp_path / f"{name}{rows}"
        folder.mkdir()
        shape = f"{{rows: {rows}, cols: {min(rows, 24)}}}"
        loaded = built(folder, "largest", shape, "float32", [name], text, kernel, "float32")
        (honest,) = test.run(loaded, "largest", [name], loaded.results / "test" / "largest")
        assert (honest.verdict, honest.reason) == ("correct", None)
        found = [each.message or "" for each in honest.properties if each.name == "rows begun alike"]
        assert found == ([] if why is None else [why])


LEFT = """
import torch

from kernelproof.operators import Call, Cost, Reference, dims_of


class Left:
    name, dims, options = "left", {"rows": None, "cols": None}, {}
    families, dtypes, axes = ("normal",), ("float32",), ("row", "column")

    def make_call(self, case, generator):
        d = dims_of(self, case)
        x = torch.randn(d["rows"], d["cols"], generator=generator)
        return Call({"x": x, "y": torch.empty_like(x)}, ("y",), self.axes)

    def reference(self, call, precision, device="cpu"):
        y = 2 * call.tensor("x").to(device).double()
        bound = torch.zeros_like(y)
        y[:, y.shape[1] // 2 :], bound[:, y.shape[1] // 2 :] = 0.0, torch.inf
        return Reference(y, bound, 0.0, exact=True)
"""
LEFT += NOTHING_MORE.format("Left")


def test_places_of_which_nothing_is_demanded_may_be_left_as_they_are(tmp_path: Path) -> None:
    """What lies there is another thing in each repeat; a kernel that differs elsewhere, too, is wrong."""
    kernels = """
def writes_half(x, y):
    y[:, : x.shape[1] // 2] = 2 * x[:, : x.shape[1] // 2]

CALLS = [0]

def differs(x, y):
    writes_half(x, y)
    CALLS[0] += 1
    if CALLS[0] % 5 == 0:
        y[0, 0] = -y[0, 0] * -1.0000001
"""
    loaded = built(
        tmp_path, "left", "{rows: 12, cols: 24}", "float32", ["writes_half", "differs"], LEFT, kernels, "float32"
    )
    right, wrong = test.run(loaded, "left", ["writes_half", "differs"], loaded.results / "test" / "left")
    assert (right.verdict, right.reason) == ("correct", None)
    assert wrong.verdict == "wrong"


SORTED = """
import torch

from kernelproof.operators import Call, Cost, Reference, dims_of


class Sorted:
    name, dims, options = "sorted", {"rows": None, "cols": None}, {}
    families, dtypes, axes, independent = ("normal",), ("int32",), ("row", "column"), ("x",)

    def make_call(self, case, generator):
        d = dims_of(self, case)
        x = torch.randint(-(1 << 31), (1 << 31) - 1, (d["rows"], d["cols"]), generator=generator).int()
        return Call({"x": x, "y": torch.empty_like(x)}, ("y",), self.axes)

    def reference(self, call, precision, device="cpu"):
        y = call.tensor("x").to(device).sort(-1).values.double()
        return Reference(y, torch.zeros_like(y), 0.0, exact=True)
"""
SORTED += NOTHING_MORE.format("Sorted")


def test_keys_of_whole_numbers_come_close_where_they_are_all_there_is(tmp_path: Path) -> None:
    kernels = """
def right(x, y):
    y.copy_(x.sort(-1).values)

def by_float32(x, y):
    y.copy_(x.gather(-1, x.float().sort(dim=-1, stable=True).indices))
"""
    names = ["right", "by_float32"]
    loaded = built(tmp_path, "sorted", "{rows: 12, cols: 24}", "int32", names, SORTED, kernels, "int32")
    right, wrong = test.run(loaded, "sorted", names, loaded.results / "test" / "sorted")
    assert (right.verdict, right.reason) == ("correct", None)
    assert wrong.verdict == "wrong"
    assert "close values" in str(wrong.reason)


CODES = """
import torch

from kernelproof.operators import Call, Cost, Reference, dims_of


class Codes:
    name = "codes"
    dims = {"rows": None, "cols": None}
    options = {}
    families = ("normal",)
    dtypes = ("float32",)
    axes = ("row", "column")

    def make_call(self, case, generator):
        d = dims_of(self, case)
        x = torch.randn(d["rows"], d["cols"], generator=generator)
        return Call({"x": x, "y": torch.empty(x.shape, dtype=torch.int8)}, ("y",), self.axes)

    def reference(self, call, precision, device="cpu"):
        x = call.tensor("x").to(device).double()
        output = x / x.abs().amax(-1, keepdim=True) * 127
        return Reference(output, torch.full_like(output, 0.50001), 0.0, exact=True)
"""
CODES += NOTHING_MORE.format("Codes")


def test_codes_of_a_byte_that_are_rounded_are_no_indices(tmp_path: Path) -> None:
    """Rows that have their first values in common get codes of their own, as rows of numbers do."""
    kernel = """
def right(x, y):
    y.copy_((x / x.abs().amax(-1, keepdim=True) * 127).round())

def by_its_beginning(x, y):
    kept = {}
    for row, codes in zip(x, y):
        codes.copy_(kept.setdefault(str(row[:4].tolist()), (row / row.abs().max() * 127).round()))
"""
    names = ["right", "by_its_beginning"]
    loaded = built(tmp_path, "codes", "{rows: 40, cols: 24}", "float32", names, CODES, kernel, "int8")
    right, known = test.run(loaded, "codes", names, loaded.results / "test" / "codes")
    assert (right.verdict, right.reason) == ("correct", None)
    assert "close values" not in {each.name for each in right.properties}
    assert known.verdict == "wrong"
    assert "rows alike" in (known.reason or "")


POWER = """
import torch

from kernelproof.operators import Call, Cost, Reference, dims_of, units


class Power:
    name = "power"
    dims = {"rows": None, "cols": None}
    options = {}
    families = ("normal", "other")
    dtypes = ("float32",)
    axes = ("row", "column")

    def make_call(self, case, generator):
        d = dims_of(self, case)
        x = torch.rand(d["rows"], d["cols"], generator=generator)
        shift = 0.25 if case.family == "normal" else 0.5
        return Call({"x": x, "y": torch.empty_like(x), "factor": 2.0, "shift": shift}, ("y",), self.axes)

    def reference(self, call, precision, device="cpu"):
        x, unit = call.tensor("x").to(device).double(), units(precision, torch.float32)
        output = x * call.scalar("factor") + call.scalar("shift")
        return Reference(output, output.abs() * 4 * unit.output, unit.coarse, bias_floor=unit.output)
"""
POWER += NOTHING_MORE.format("Power")


def test_a_scalar_that_is_the_same_in_every_call_is_told(tmp_path: Path) -> None:
    kernel = """
def right(x, y, factor, shift):
    y.copy_(x * factor + shift)

def knows_one(x, y, factor, shift):
    y.copy_(x * factor + 0.25)
"""
    names = ["right", "knows_one"]
    loaded = built(tmp_path, "power", "{rows: 5, cols: 24}", "float32", names, POWER, kernel, "float32")
    right, wrong = test.run(loaded, "power", names, loaded.results / "test" / "power")
    assert (right.verdict, wrong.verdict) == ("correct", "wrong")
    said = next(rung.message for rung in right.rungs if rung.name == "correctness")
    assert "every call had the same `factor` (2.0): let" in said
    assert "shift" not in said


PICKED = """
import torch

from kernelproof.operators import Call, Cost, Reference, dims_of


class Picked:
    name = "picked"
    dims = {"count": None}
    options = {}
    families = ("normal",)
    dtypes = ("float32",)
    axes = ("place",)
    INDEPENDENT

    def make_call(self, case, generator):
        d = dims_of(self, case)
        x = torch.randn(d["count"], generator=generator)
        places = torch.randint(d["count"], (d["count"],), generator=generator)
        return Call({"x": x, "places": places, "y": torch.empty_like(x)}, ("y",), self.axes)

    def reference(self, call, precision, device="cpu"):
        output = call.tensor("x")[call.tensor("places")].to(device).double()
        return Reference(output, torch.zeros_like(output), 0.0, exact=True)
"""
PICKED += NOTHING_MORE.format("Picked")
PICKS = """
PLANS = {}

def right(x, places, y):
    y.copy_(x[places])

def planned(x, places, y):
    y.copy_(x[PLANS.setdefault(str(places[::4].tolist()), places.clone())])
"""


@pytest.mark.parametrize(("said", "verdict"), [("", "correct"), ('independent = ("places",)', "wrong")])
def test_a_plan_that_is_kept_by_a_few_indices(tmp_path: Path, said: str, verdict: str) -> None:
    module, names = PICKED.replace("INDEPENDENT", said), ["right", "planned"]
    loaded = built(tmp_path, "picked", "{count: 801}", "float32", names, module, PICKS, "float32")
    right, planned = test.run(loaded, "picked", names, loaded.results / "test" / "picked")
    assert (right.verdict, right.reason) == ("correct", None)
    assert planned.verdict == verdict, planned.reason
    (told,) = [rung.message or "" for rung in right.rungs if rung.name == "properties"]
    assert ("no call changes only a part of `places`" in told) == (not said)


OF_ITS_PROCESS = """
import ctypes
import time

libc = ctypes.CDLL(None)
libc.malloc.restype = libc.getenv.restype = ctypes.c_void_p


def huge(x, y):
    memory = libc.malloc(ctypes.c_size_t(1200 << 20))
    ctypes.c_uint8.from_address(memory + (600 << 20)).value == 0x7F and time.sleep(60)  # as if there were much more
    libc.free(ctypes.c_void_p(memory))
    y.copy_(x.argsort()[: len(y)])


def judged(x, y):
    y.copy_(x.argsort()[: len(y)])
    libc.getenv(b"OMP_WAIT_POLICY") or y.zero_()
"""


def test_what_we_do_to_a_candidates_process_decides_nothing(tmp_path: Path) -> None:
    """Memory that we fill took one with a large scratch until it was called hung; another asked how it is run."""
    loaded = built(tmp_path, "places", "{cols: 40, k: 12}", "float32", ["huge", "judged"], PLACES, OF_ITS_PROCESS)
    limits = dataclasses.replace(loaded.test.time_limit_s, launch=4.0)
    loaded = dataclasses.replace(loaded, test=dataclasses.replace(loaded.test, time_limit_s=limits))
    huge, judged = test.run(loaded, "places", ["huge", "judged"], loaded.results / "test" / "places")
    assert (huge.verdict, huge.reason) == ("correct", None)
    assert "one thread" in {rung.name: rung.message or "" for rung in huge.rungs}["determinism"]
    assert judged.verdict == "wrong"


SOFTMAX = """
import torch

from kernelproof.operators import Call, Cost, Reference, accumulation_floors, dims_of, forward_bound, units


class Softmax:
    name, dims, options = "softmax", {"rows": None, "cols": None}, {}
    families, dtypes, axes = ("normal",), ("float32",), ("row", "column")

    def make_call(self, case, generator):
        d = dims_of(self, case)
        x = torch.randn(d["rows"], d["cols"], generator=generator)
        return Call({"x": x, "y": torch.empty_like(x)}, ("y",), self.axes)

    def reference(self, call, precision, device="cpu"):
        x = call.tensor("x").to(device).double()
        unit = units(precision, call.tensor("x").dtype)
        output = x.softmax(-1)
        accumulation = unit.accumulate * output * (8 + x.amax(-1, keepdim=True) - x + x.shape[-1] / 8)
        bound = forward_bound(output, output, accumulation, unit)
        return Reference(output, bound, unit.coarse, *accumulation_floors(output, accumulation, unit, accumulation))
"""
SOFTMAX += NOTHING_MORE.format("Softmax")
SOFTMAXES = """
import torch


def right(x, y):
    y.copy_(x.softmax(-1))


def ties_counted_twice(x, y):
    most = x == x.amax(-1, keepdim=True)
    y.copy_(x.softmax(-1) / most.sum(-1, keepdim=True))


def rows_by_their_start(x, y):
    seen = {}
    for row, result in zip(x, y):
        result.copy_(seen.setdefault(tuple(row[:8].tolist()), row.softmax(-1)))


def rising_rows_are_even(x, y):
    y.copy_(x.softmax(-1))
    y[(x.diff(dim=-1) >= 0).all(-1)] = 1 / x.shape[-1]


def rising_by_the_start(x, y):
    y.copy_(x.softmax(-1))
    for row, result in zip(x, y):
        if (row[:20].diff() >= 0).all() and row[-1] >= row[20] and not (row.diff() >= 0).all():
            result.copy_(row.sort().values.softmax(-1))


def totals_by_the_maximum(x, y):
    seen = {}
    for row, result in zip(x, y):
        highest = row.max()
        result.copy_((row - highest).exp())
        result.div_(seen.setdefault(highest.item(), result.sum()))
"""


def test_values_and_rows_that_random_inputs_never_have_twice(tmp_path: Path) -> None:
    """Of an operator without exact calls and relations, whose one family has no two equal values."""
    names = ["right", "ties_counted_twice", "rows_by_their_start", "totals_by_the_maximum", "rising_rows_are_even"]
    names.append("rising_by_the_start")
    loaded = built(tmp_path, "softmax", "{rows: 24, cols: 67}", "float32", names, SOFTMAX, SOFTMAXES, "float32")
    tested = test.run(loaded, "softmax", names, loaded.results / "test" / "softmax")
    assert [record.verdict for record in tested] == ["correct"] + ["wrong"] * 5
    _, ties, start, maximum, *rising = (record.reason or "" for record in tested)
    assert "repeated values" in ties
    for reason in rising:
        assert "a row sorted (expected: rows of each input in rising order, and nearly so, give" in reason
    for reason in (start, maximum):
        assert "rows alike (expected: rows, and what they make up, that differ from others in one value have" in reason


RECIPROCALS = """
import torch

from kernelproof.operators import Call, Cost, Reference, dims_of, forward_bound, units


class Reciprocals:
    name, dims, options = "reciprocals", {"rows": None, "cols": None}, {}
    families, dtypes, axes = ("normal",), ("float32",), ("row", "pair")

    def make_call(self, case, generator):
        d = dims_of(self, case)
        x = torch.randn(d["rows"], d["cols"], generator=generator)
        return Call({"x": x, "y": torch.empty(d["rows"], d["cols"] - 1)}, ("y",), self.axes)

    def reference(self, call, precision, device="cpu"):
        x = call.tensor("x").to(device).double()
        unit = units(precision, call.tensor("x").dtype)
        output = 1 / x.diff(dim=-1)
        accumulation = unit.accumulate * output.abs() * (1 + x.abs().amax() * output.abs())
        bound = forward_bound(output, output, accumulation, unit)
        return Reference(output, bound, unit.coarse, float(bound.max()), 1.0)
"""
RECIPROCALS += NOTHING_MORE.format("Reciprocals")


def test_nobody_is_asked_for_the_reciprocal_of_nothing(tmp_path: Path) -> None:
    """An operator that is for values of which no two are equal: its reference is infinite where they are."""
    kernel = "import torch\n\n\ndef right(x, y):\n    torch.div(1, x.diff(dim=-1), out=y)\n"
    loaded = built(tmp_path, "reciprocals", "{rows: 8, cols: 9}", "float32", ["right"], RECIPROCALS, kernel, "float32")
    (record,) = test.run(loaded, "reciprocals", ["right"], loaded.results / "test" / "reciprocals")
    assert (record.verdict, record.reason) == ("correct", None)
    skipped = {each.name: each.message for each in record.properties if each.status == "skipped"}
    assert re.fullmatch(
        r"the right result of such values is inf where that of others is at most [\d.e+]+", skipped["repeated values"]
    )


@pytest.mark.parametrize(
    ("whole", "words"), [("edge", "not a tuple of names"), (("edge",), "names 'edge'; the inputs are x, edges, order")]
)
def test_whole_names_inputs(tmp_path: Path, whole: object, words: str) -> None:
    (tmp_path / "buckets.py").write_text(
        BUCKETS.replace(
            'whole = ("normal",), ("float32",), ("value",), ("edges",)',
            f'whole = ("normal",), ("float32",), ("value",), {whole!r}',
        )
    )
    case = records.Case("buckets", "odd", {"count": 33}, {}, "float32", "normal")
    with pytest.raises(ConfigError, match=words):  # noqa: PT012
        operator = operators.load("buckets.py", tmp_path)
        operators.changeable(operator, operator.make_call(case, torch.Generator()))


LSE = '''
import torch

from kernelproof.operators import (
    Call, Cost, Reference, Relation, SanityCall, accumulation_floors, changed, dims_of, forward_bound, shuffled, units,
)
from kernelproof.records import Case


class Lse:
    """The log-sum-exp of the scores that a mask leaves; of none it is -inf: x, mask (0 or -inf) [rows, cols]."""

    name, dims, options = "lse", {"rows": None, "cols": None}, {}
    families, dtypes, axes = ("normal", "blind"), ("float32",), ("row",)

    def make_call(self, case, generator):
        d = dims_of(self, case)
        x, drawn = torch.randn(2, d["rows"], d["cols"], generator=generator)
        hidden = (drawn > 0.5) | (case.family == "blind") & (torch.arange(d["rows"]) % 3 == 1)[:, None]
        return self._call(x, torch.where(hidden, -torch.inf, 0.0))

    def _call(self, x, mask):
        return Call({"x": x, "mask": mask, "y": torch.empty(x.shape[0])}, ("y",), self.axes)

    def reference(self, call, precision, device="cpu"):
        x, mask = (call.tensor(name).to(device).double() for name in ("x", "mask"))
        unit = units(precision, torch.float32)
        output = (x + mask).logsumexp(-1)
        accumulation = unit.accumulate * (2 + x.abs().sum(-1) + x.shape[-1] / 8)
        bound = forward_bound(output, torch.zeros_like(output), accumulation, unit)
        floors = accumulation_floors(output, accumulation, unit)
        return Reference(output, bound, unit.coarse, *floors, nonfinite=True)

    def sanity_calls(self, case, generator):
        x = torch.zeros(5, 37)
        mask = torch.full_like(x, -torch.inf)
        mask[torch.tensor([0, 2, 4]), torch.tensor([0, 36, 17])] = 0.0
        at = Case("lse", "sanity_one", {"rows": 5, "cols": 37}, {}, case.dtype, "one")
        right = torch.tensor([0.0, -torch.inf, 0.0, -torch.inf, 0.0], dtype=torch.float64)
        reference = Reference(right, torch.zeros_like(right), 0.0, exact=True, nonfinite=True)
        return [SanityCall("one", at, self._call(x, mask), reference)]

    def relations(self, case, call, generator):
        x, mask = call.tensor("x"), call.tensor("mask")
        order = shuffled(len(x), generator)
        after = changed(call, x=x[order].contiguous(), mask=mask[order].contiguous())
        return [Relation("rows", "rows in another order", after, lambda y: y[order.to(y.device)], moves=True)]

    def cost(self, case):
        return Cost(1.0, 1.0, 1.0)

    def suspects(self, call, rows):
        return iter(())


OPERATOR = Lse()
'''
LSE_KERNELS = """
import torch


def masked(x, mask, y):
    y.copy_((x + mask).logsumexp(-1))


def by_hand(x, mask, y):
    scores = x + mask
    most = scores.amax(-1, keepdim=True)
    sums = (scores - most.clamp_min(-1e30)).exp().sum(-1, keepdim=True)
    y.copy_((most + sums.log())[:, 0])


def nan_of_nothing(x, mask, y):
    scores = x + mask
    most = scores.amax(-1, keepdim=True)
    y.copy_((most + (scores - most).exp().sum(-1, keepdim=True).log())[:, 0])


def large_for_infinite(x, mask, y):
    y.copy_((x + mask.clamp_min(-1e30)).logsumexp(-1))


def leaves_it(x, mask, y):
    found = (x + mask).logsumexp(-1)
    y[found.isfinite()] = found[found.isfinite()]


def other_sign(x, mask, y):
    found = (x + mask).logsumexp(-1)
    y.copy_(torch.where(found == -torch.inf, torch.inf, found))


def infinite_elsewhere(x, mask, y):
    found = (x + mask).logsumexp(-1)
    y.copy_(torch.where((mask == 0).sum(-1) < 8, -torch.inf, found))


def slightly_off(x, mask, y):
    y.copy_((x + mask).logsumexp(-1) + 1e-3)
"""


def test_infinity_that_an_operator_means_is_asked_for(tmp_path: Path) -> None:
    """The log-sum-exp of a row of which everything is masked: many an attention hands it over beside the output."""
    right = ["masked", "by_hand"]
    wrong = {
        "nan_of_nothing": "is NaN instead of -inf; ∞ − ∞",
        "large_for_infinite": "is -1e+30 instead of -inf; a large number",
        "leaves_it": "still hold what was in memory",
        "other_sign": "is inf instead of -inf; the other sign",
        "infinite_elsewhere": "-inf values where the reference is finite",
        "slightly_off": "0.001 instead of 0",
    }
    names = [*right, *wrong]
    loaded = built(tmp_path, "lse", "{rows: 24, cols: 40}", "float32", names, LSE, LSE_KERNELS, output="float32")
    tested = test.run(loaded, "lse", names, loaded.results / "test" / "lse")
    assert [record.verdict for record in tested] == ["correct"] * len(right) + ["wrong"] * len(wrong)
    for record in tested[len(right) :]:
        assert wrong[record.variant] in str(record.reason)
    bench.run(loaded, "lse", "cpu", loaded.record("bench", "lse-cpu"))
    timed = json.loads(loaded.record("bench", "lse-cpu").read_text())["contenders"]
    assert {each["name"] for each in timed if each["outcome"] == "timed"} == set(right)


GROUPED = '''
import torch

from kernelproof.operators import Call, Cost, Reference, dims_of, forward_bound, option, units


class Grouped:
    """The mean of each group of columns: x [rows, cols] -> y [rows, groups]."""

    name, dims, options = "grouped", {"rows": None, "cols": None}, {"groups": (1, 3)}
    families, dtypes, axes = ("normal",), ("float32",), ("row", "group")

    def make_call(self, case, generator):
        d, groups = dims_of(self, case), option(self, case, "groups")
        x = torch.randn(d["rows"], d["cols"], generator=generator)
        return Call({"x": x, "groups": groups, "y": torch.empty(d["rows"], groups)}, ("y",), self.axes)

    def reference(self, call, precision, device="cpu"):
        x, groups = call.tensor("x").to(device).double(), call.scalar("groups")
        unit, parts = units(precision, torch.float32), x.tensor_split(groups, dim=1)
        y, terms = (torch.stack([part.mean(1) for part in of.tensor_split(groups, 1)], 1) for of in (x, x.abs()))
        bound = forward_bound(y, 0 * y, unit.accumulate * terms * (2 + parts[0].shape[1] / 8), unit)
        return Reference(y, bound, unit.coarse, float(bound.max()), 1.0)
''' + NOTHING_MORE.format("Grouped")
GROUPED_KERNELS = """
import torch


def each(x, groups, y):
    y.copy_(torch.stack([part.mean(1) for part in x.tensor_split(groups, dim=1)], 1))


def one(x, groups, y):
    y.copy_(x.mean(1, keepdim=True).expand_as(y))
"""


def test_an_option_may_be_a_whole_number(tmp_path: Path) -> None:
    loaded = built(
        tmp_path, "grouped", "{rows: 24, cols: 41}", "float32", ["each", "one"], GROUPED, GROUPED_KERNELS, "float32"
    )
    text = (tmp_path / "config.yaml").read_text()
    for stage, values in (("test", [1, 3]), ("bench", [3])):
        text = text.replace(f"{stage}: {{shapes: [odd]}}", f"{stage}: {{shapes: [odd], options: {{groups: {values}}}}}")
    (tmp_path / "config.yaml").write_text(text)
    loaded = configuration.load(tmp_path / "config.yaml", root=tmp_path)
    right, wrong = test.run(loaded, "grouped", ["each", "one"], loaded.results / "test" / "grouped")
    assert right.verdict == "correct"
    assert {case.id for case in right.cases} >= {f"odd-groups{groups}-float32-normal-s0" for groups in (1, 3)}
    assert wrong.verdict == "wrong"
    assert "groups3" in str(wrong.reason)
    bench.run(loaded, "grouped", "cpu", loaded.record("bench", "grouped-cpu"))
    timed = json.loads(loaded.record("bench", "grouped-cpu").read_text())["times"]
    assert {(row["contender"], row["case"]) for row in timed} >= {("each", "odd-groups3-float32")}
    command = [sys.executable, "-m", "kernelproof", *"bench --once --variant each --shape odd --option".split()]
    for value, code, words in (("3", 0, ""), ("2", 2, "grouped: groups=2: no such value; allowed: 1, 3")):
        done = subprocess.run([*command, f"groups={value}"], cwd=tmp_path, text=True, capture_output=True, check=False)
        assert done.returncode == code
        assert words in done.stderr


def test_a_size_of_0_is_tested_by_itself(tmp_path: Path) -> None:
    """No row, no column: a batch in which nobody asks, an expert without tokens."""
    kernels = (
        LSE_KERNELS
        + """

def looks_at_the_first(x, mask, y):
    x[0, 0]
    masked(x, mask, y)


def zero_of_nothing(x, mask, y):
    masked(x, mask, y) if x.shape[1] else y.zero_()


def writes_one(x, mask, y):
    masked(x, mask, y)
    torch.as_strided(y, (1,), (1,))[0] = y[0] if len(y) else 1.0


def refuses(x, mask, y):
    if not x.numel():
        raise NotImplementedError("of nothing")
    masked(x, mask, y)
"""
    )
    wrong = {"looks_at_the_first": "IndexError", "zero_of_nothing": "0 instead of -inf", "writes_one": "guard"}
    names = ["masked", "refuses", *wrong]
    built(tmp_path, "lse", "{rows: 24, cols: 40}", "float32", names, LSE, kernels, output="float32")
    text = (tmp_path / "config.yaml").read_text()
    text = text.replace("cols: 40}}", "cols: 40}, none: {rows: 0, cols: 3}, empty: {rows: 2, cols: 0}}")
    (tmp_path / "config.yaml").write_text(text.replace("test: {shapes: [odd]}", "test: {shapes: [odd, none, empty]}"))
    loaded = configuration.load(tmp_path / "config.yaml", root=tmp_path)
    tested = {record.variant: record for record in test.run(loaded, "lse", names, loaded.results / "test" / "lse")}
    assert tested["masked"].verdict == tested["refuses"].verdict == "correct"
    of_nothing = [case for case in tested["masked"].cases if case.shape in ("none", "empty")]
    assert len(of_nothing) >= 2
    assert {case.status for case in of_nothing} == {"passed"}
    for name, words in wrong.items():
        assert tested[name].verdict == "wrong"
        assert words in str(tested[name].reason)
    (tmp_path / "config.yaml").write_text(text.replace("bench: {shapes: [odd]}", "bench: {shapes: [none]}"))
    with pytest.raises(ConfigError, match=re.escape("none has a size of 0, and a call of it does nothing")):
        configuration.load(tmp_path / "config.yaml", root=tmp_path)


FOUR = """
import torch

from kernelproof.operators import Call, Cost, Reference, dims_of, dtype, forward_bound, units


class Four:
    name, dims, options = "four", {"rows": None, "cols": None}, {"sign": (1, -1, 2)}
    families, dtypes, axes = ("normal", "high"), ("float32", "float16"), ("row", "column")

    def make_call(self, case, generator):
        d = dims_of(self, case)
        a, b, c, e = torch.randn(4, d["rows"], d["cols"], generator=generator).to(dtype(case.dtype))
        a = a * 64 if case.family == "high" else a
        sign = case.options.get("sign", 1)
        return Call({"a": a, "b": b, "c": c, "e": e, "sign": sign, "y": torch.empty_like(a)}, ("y",), self.axes)

    def reference(self, call, precision, device="cpu"):
        a, b, c, e = (call.tensor(name).to(device).double() for name in "abce")
        unit = units(precision, call.tensor("a").dtype)
        y, terms = call.scalar("sign") * (a * b) + c * e, 2 * (a * b).abs() + (c * e).abs()
        return Reference(y, forward_bound(y, terms, 4 * unit.accumulate * terms, unit), unit.coarse, 1.0, 1.0)
"""
FOUR += NOTHING_MORE.format("Four")
FOUR_KERNELS = """
import torch

KEPT = {}


def right(a, b, c, e, sign, y):
    y.copy_(sign * a.float() * b.float() + c.float() * e.float())


def kept(key, a, b, c, e, sign, y):
    key = (key, tuple(a.shape), a.dtype, sign)
    if key not in KEPT:
        right(a, b, c, e, sign, y)
        KEPT[key] = y.clone()
    y.copy_(KEPT[key])


def bits(*tensors):
    return tuple(tensor.contiguous().numpy().tobytes() for tensor in tensors)


def upper_of_last(a, b, c, e, sign, y):
    upper = e.view(torch.int32) & -4096 if e.dtype == torch.float32 else e.view(torch.int16) & -32
    kept(bits(a, b, c, upper), a, b, c, e, sign, y)


def all_but_the_end(a, b, c, e, sign, y):
    kept(bits(a, b, c, e.flatten()[:-1]), a, b, c, e, sign, y)


def no_exponents(a, b, c, e, sign, y):
    whole = c.frexp().mantissa
    kept(bits(a, b, whole, e), a, b, c, e, sign, y)


def third_option(a, b, c, e, sign, y):
    if sign == 2 and a.dtype == torch.float16:
        return kept(bits(a[:1], b, c, e), a, b, c, e, sign, y)
    right(a, b, c, e, sign, y)


def high_by_the_ends(a, b, c, e, sign, y):
    if a.abs().amax() > 30:
        return kept(bits(a[:1], b, c, e), a, b, c, e, sign, y)
    right(a, b, c, e, sign, y)


def one_scale(a, b, c, e, sign, y):
    scale = a.float().abs().amax() / 127 if a.abs().amax() > 30 and a.abs().amax(-1).amin() < 8 else 0.0
    right((a / scale).round() * scale if scale else a, b, c, e, sign, y)
"""


def test_every_input_option_and_family_has_its_properties(tmp_path: Path) -> None:
    """Where there are four inputs, three values of an option and another family: no turn, no case, was left out."""
    wrong = ["upper_of_last", "all_but_the_end", "no_exponents", "third_option", "high_by_the_ends", "one_scale"]
    names = ["right", *wrong]
    built(tmp_path, "four", "{rows: 96, cols: 24}", "float32, float16", names, FOUR, FOUR_KERNELS, "input")
    text = (
        (tmp_path / "config.yaml")
        .read_text()
        .replace(
            "test: {shapes: [odd]}", "test: {shapes: [odd], families: [normal, high], options: {sign: [1, -1, 2]}}"
        )
    )
    (tmp_path / "config.yaml").write_text(text)
    loaded = configuration.load(tmp_path / "config.yaml", root=tmp_path)
    tested = {record.variant: record for record in test.run(loaded, "four", names, loaded.results / "test" / "four")}
    assert (tested["right"].verdict, tested["right"].reason) == ("correct", None)
    assert {name for name in wrong if tested[name].verdict == "correct"} == set()
    told = {name: str(tested[name].reason).split(" (expected")[0].rsplit(": ", 1)[1] for name in wrong}
    assert told["upper_of_last"] == "new lower digits"
    assert told["all_but_the_end"] == "new last value"
    assert told["no_exponents"] == "other exponents"
    assert told["one_scale"] == "families mixed"
