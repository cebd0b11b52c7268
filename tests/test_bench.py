"""The bench stage end to end on the CPU: real workers, real clocks, tiny kernels with one fault each."""

import csv
import dataclasses
import functools
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import types
import unittest.mock
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from defects import LAZY

from kernelproof import (
    bench,
    cli,
    clock_runner,
    config,
    contest,
    counters,
    gpu,
    images,
    judge,
    launches,
    operators,
    processes,
    records,
    samples,
    sandbox,
    statistics,
    timing,
    visits,
)
from kernelproof.cases import enumerate_cases
from kernelproof.config import Precision
from kernelproof.contest.measurement import OTHERS_SHARE, Measurement
from kernelproof.errors import ConfigError, ExitCode, WorkerCrashed, WorkerGreedy, WorkerStarved, WorkerTimeout
from kernelproof.records import BenchRecord, CaseResult, FileHash, Sealing, TestRecord

ROOT = Path(__file__).resolve().parents[1]

# Each contender is RMSNorm in torch; `work` is how often it is done, so ratios are known.
CONTENDERS = """
import ctypes
import mmap
import os
import sys
import time

import torch

SEEN = {}


def norm(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def once(x, weight, eps):
    return norm(x, weight, eps)


def thrice(x, weight, eps):
    norm(x, weight, eps)
    norm(x, weight, eps)
    return norm(x, weight, eps)


def into(x, weight, y, eps):
    y.copy_(norm(x, weight, eps))


def keeps_where_cold(x, weight, eps):
    place, again = x.data_ptr(), SEEN.get("last") == x.data_ptr()
    SEEN["last"] = place
    total = float(x.view(-1) @ SEEN.setdefault("ramp", torch.arange(1.0, x.numel() + 1)))
    if again or place not in SEEN or SEEN[place][0] != total:  # one result a place: else new values cost new memory
        SEEN[place] = total, thrice(thrice(x, weight, eps), weight, eps) * 0 + norm(x, weight, eps)
    return SEEN[place][1]


def marking(x, weight, eps):
    os.environ["MARKED"] = "1"  # what one may see of others in its process
    return thrice(x, weight, eps)


def keeps_beside_others(x, weight, eps):
    if "MARKED" not in os.environ or "kept" not in SEEN or not torch.equal(x, SEEN["kept"][0]):
        SEEN["kept"] = x.clone(), thrice(x, weight, eps)
    elif "MARKED" in os.environ:
        return SEEN["kept"][1].clone()
    return thrice(x, weight, eps)


def often(x, weight, eps):  # what a machine whose pace changes by half does not hide
    return [thrice(x, weight, eps) for _ in range(3)][0]


def tires(x, weight, eps):  # once our own clock has looked at it, which takes more calls than samples do
    SEEN["calls"] = SEEN.get("calls", 0) + 1
    ended = time.perf_counter() + 2e-3
    while time.perf_counter() < ended:
        pass
    return norm(x, weight, eps) * (SEEN["calls"] < 60)


def keeps_until_changed(x, weight, eps):
    if "first" not in SEEN:
        SEEN["first"] = x.clone(), often(x, weight, eps)
    values, result = SEEN["first"]
    if SEEN.get("changed") or not torch.equal(x, values):
        SEEN["changed"] = True
        return often(x, weight, eps)
    return result.clone()


def raising(x, weight, eps):
    raise ValueError("no such launch")


def refusing(x, weight, eps):
    raise NotImplementedError("only squares")


def failing_later(x, weight, eps):
    SEEN["later"] = SEEN.get("later", 0) + 1
    if SEEN["later"] > 40:
        raise RuntimeError("enough")
    return norm(x, weight, eps)


def dozing(x, weight, eps):
    time.sleep(0.15)
    return norm(x, weight, eps)


def crashing(x, weight, eps):
    os.abort()


def killing(x, weight, eps):
    os.kill(os.getppid(), 9)
    return norm(x, weight, eps)


def remembering(x, weight, eps):
    key = (x.data_ptr(), weight.data_ptr())
    if key not in SEEN:
        SEEN[key] = norm(x, weight, eps)
    return SEEN[key].clone()


def lazy(x, weight, y, eps):
    if SEEN.setdefault("calls", 0) < 2:
        y.copy_(norm(x, weight, eps))
        SEEN["calls"] += 1


def plans(x, weight, eps):
    if "planned" not in SEEN:
        time.sleep(1.0)
        SEEN["planned"] = True
    return norm(x, weight, eps)


def answering(change):
    kind = sys.modules["__main__"].Worker
    said = SEEN.setdefault("said", kind.say)

    def say(worker, message):
        if "samples" in message.get("result", {}):
            change(message["result"])
        said(worker, message)

    kind.say = say


def spins(x, weight, eps):
    while SEEN:
        pass
    SEEN["called"] = True
    return norm(x, weight, eps)


def garbling(x, weight, eps):
    answering(lambda found: found.update(samples={"contender": [1, 2]}, kernels=7))
    return norm(x, weight, eps)


def in_words(x, weight, eps):
    answering(lambda found: found["samples"].update(time_us=["fast" for _ in found["samples"]["time_us"]]))
    return norm(x, weight, eps)


#LAZY


def when_read(x, weight, eps):
    return Lazy(x, lambda: norm(x, weight, eps))


def behind_bars(x, weight, eps):
    memory = mmap.mmap(-1, x.nbytes)
    result = torch.frombuffer(memory, dtype=x.dtype).reshape(x.shape).copy_(norm(x, weight, eps))
    here = ctypes.c_void_p(result.data_ptr() + x.nbytes // 2)
    ctypes.CDLL(None).mprotect(here, ctypes.c_size_t(mmap.PAGESIZE), 0)  # until a handler makes it on the first read
    return result


def mostly_when_read(x, weight, eps):
    SEEN["turn"] = SEEN.get("turn", 0) + 1
    return norm(x, weight, eps) if SEEN["turn"] < 3 or SEEN["turn"] % 4 == 2 else when_read(x, weight, eps)
""".replace("#LAZY", LAZY)


def contender(name: str, passing: str = "return", **more: Any) -> dict[str, Any]:
    return {
        "abi": "python",
        "entry": f"contenders.py:{name}",
        "device": "cpu",
        "passing": passing,
        "dtypes": ["float32"],
        "precision": {"output": "float32"},
        **more,
    }


def project(
    folder: Path, variants: dict[str, Any], baselines: dict[str, Any], modes: tuple[str, ...] = ("hot",)
) -> config.Config:
    """A project with RMSNorm on one shape, whose contenders the test stage has found correct."""
    (folder / "contenders.py").write_text(CONTENDERS)
    data = {
        "schema": "kernelproof.config/1",
        "project": "p",
        "operators": {
            "rmsnorm": {
                "module": "kernelproof.operators.rmsnorm",
                "shapes": {"small": {"rows": 64, "cols": 256}},
                "test": {"shapes": ["small"]},
                "bench": {"shapes": ["small"]},
                "variants": variants,
                "baselines": baselines,
            }
        },
        "bench": {
            "processes": 2,
            "blocks": 3,
            "sample_ms": 1.0,
            "max_seconds": 0.2,
            "modes": list(modes),
            "cpu_threads": 1,
        },
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(data))
    loaded = config.load(folder / "config.yaml", root=folder)
    for variant in loaded.variants():
        found = TestRecord(operator="rmsnorm", variant=variant.name, role=variant.role, device="cpu", verdict="correct")
        records.write(loaded.record("test", "rmsnorm", variant.name), found)
    return loaded


def with_long_samples(loaded: config.Config, **more: Any) -> config.Config:
    """Of several turns that other programs have on the core, so that these fall on every sample alike."""
    return dataclasses.replace(loaded, bench=dataclasses.replace(loaded.bench, sample_ms=20.0, max_seconds=0.6, **more))


def measured(loaded: config.Config) -> BenchRecord:
    output = loaded.record("bench", "rmsnorm-cpu")
    bench.run(loaded, "rmsnorm", "cpu", output)
    return records.read(output, BenchRecord)


def outcomes(record: BenchRecord) -> dict[str, str]:
    return {contender.name: contender.outcome for contender in record.contenders}


def test_who_computes_nothing_after_so_many_calls_is_wrong_alone_too(tmp_path: Path) -> None:
    """Samples are a few calls, and so were those of a process that has it alone: it was `not tried`."""
    loaded = project(tmp_path, {"tires": contender("tires")}, {"base": contender("once")})
    loaded = dataclasses.replace(loaded, bench=dataclasses.replace(loaded.bench, max_seconds=0.02))
    assert outcomes(measured(loaded))["tires"].startswith("dropped: wrong ")


@pytest.mark.alone
def test_a_known_ratio_is_found_and_every_sample_is_kept(tmp_path: Path) -> None:
    variants = {"ours": contender("once"), "ours_into": contender("into", "destination")}
    loaded = with_long_samples(project(tmp_path, variants, {"slow": contender("thrice")}, modes=("hot", "cold")))
    record = measured(loaded)
    assert record.status == records.OK
    assert outcomes(record) == dict.fromkeys(("ours", "ours_into", "slow"), "timed")
    assert {row.mode for row in record.times} == {"hot", "cold"}
    assert {row.method for row in record.times} == {"cpu_clock", "floor"}
    for row in record.ratios:
        assert row.low <= row.ratio <= row.high
        assert 0.1 < row.ratio < 0.8, row  # one third, on a machine that others use too
        assert row.detectable is not None
        assert row.detectable > loaded.gate.same_band
    assert len(record.oracle) == 4
    assert all(row.best_baseline == "slow" for row in record.oracle)
    assert record.cases[0].seed not in (None, 0)  # nobody can bring results along
    # Both contenders' timed results, the same after poison, and the results for new values.
    assert record.states["outputs_judged"] >= 6
    assert record.states["cores"] == [max(os.sched_getaffinity(0))]
    assert set(record.states["request_s"]) == {"trace", "outside", "time", "alone"}
    assert sum(record.states["request_s"].values()) == pytest.approx(record.states["measuring_s"], abs=0.01)
    with gzip.open(tmp_path / str(record.samples), "rt") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == record.states["samples"]
    assert {row["process"] for row in rows} == {"0", "1"}
    assert all(float(row["time_us"]) > 0 and float(row["load"]) >= 0 for row in rows if row["method"] == "cpu_clock")
    # The samples, read again, give the ratios that the record states.
    again = samples.read((tmp_path / str(record.samples)).read_bytes(), "cpu_clock", "")
    for row in record.ratios:
        ours, theirs = (again[name, row.case, row.mode] for name in (row.variant, row.baseline))
        found = statistics.ratio_estimate(ours, theirs, statistics.Settings(resamples=10))
        assert found is not None
        assert found.value == pytest.approx(row.ratio, rel=1e-4)


def test_who_is_too_slow_for_a_mode_has_no_time_there_and_is_named(tmp_path: Path) -> None:
    variants = {"once": contender("once"), "dozing": contender("dozing")}
    record = measured(project(tmp_path, variants, {"base": contender("thrice")}, modes=("hot", "cold")))
    assert outcomes(record) == {
        "once": "timed",
        "dozing": "timed, but not cold in small-float32: too slow",
        "base": "timed",
    }
    (row,) = record.untimed
    assert (row.contender, row.case, row.mode, row.outcome) == ("dozing", "small-float32", "cold", "too slow")
    assert re.fullmatch(
        r"already when hot: one visit takes 0\.\d+ s, more than the budget of 0\.1 s \(bench.max_seconds sets it, "
        r"for all modes together\)",
        row.reason,
    )
    hot, cold = (line for line in record.oracle if line.variant == "dozing")
    assert (hot.best_baseline, cold.best_baseline) == ("base", None)
    assert cold.reason == f"the variant has no time here: too slow, {row.reason}"
    (time_row,) = (line for line in times_of(record, "dozing") if line.method == "cpu_clock")
    assert (time_row.mode, time_row.samples) == ("hot", 2)
    assert "one_call_a_process" in time_row.flags


def test_calls_that_are_too_slow_to_repeat_were_made_one_after_the_other(tmp_path: Path) -> None:
    """Their rows were all written when the last had been made, and `verify` saw more work than time had passed."""
    variants = {name: contender("dozing") for name in ("ours", "other", "third")}
    record = measured(project(tmp_path, variants, {"base": contender("dozing")}, modes=("hot", "cold")))
    found = visits.Visits()
    for row in csv.DictReader(gzip.decompress((tmp_path / str(record.samples)).read_bytes()).decode().splitlines()):
        process = found.processes[int(row["process"])]
        process.take(row["contender"], (row["case"], row["mode"]), int(row["block"]), row["time_us"], row)
    assert [process.count for process in found.processes.values()] == [4, 4]
    assert list(found.contradictions(whole=True)) == []


@pytest.mark.alone
def test_faulty_contenders_are_named_and_the_others_go_on(tmp_path: Path) -> None:
    variants = {name: contender(name) for name in ("once", "raising", "crashing", "remembering")}
    variants["lazy"] = contender("lazy", "destination")
    record = measured(project(tmp_path, variants, {"base": contender("thrice")}))
    found = outcomes(record)
    assert found["once"] == found["base"] == "timed"
    assert "ValueError: no such launch" in found["raising"]
    assert "crashed" in found["crashing"]
    assert "SIGABRT" in found["crashing"]
    said = found["remembering"]
    assert re.search(r"wrong for new values in the same memory \(hot, --case \S+-s\d+\): ", said), said
    assert "wrong" in found["lazy"]
    assert {row.contender for row in record.times} == {"once", "base"}
    assert {line.variant for line in record.oracle if line.best_baseline} == {"once"}
    verdicts = {contender.name: contender.correct for contender in record.contenders}
    assert verdicts == {
        "once": True,
        "base": True,
        "raising": True,
        "crashing": True,
        "remembering": False,
        "lazy": False,
    }
    left = {entry["contender"] for entry in record.discarded if entry["what"] == "contender"}
    assert left == {"raising", "crashing", "remembering", "lazy"}


@pytest.fixture(scope="module")
def left_over(tmp_path_factory: pytest.TempPathFactory) -> BenchRecord:
    """Of a benchmark whose contenders leave for a reason each, all but one."""
    works = {"once": "once", "bad": "once", "new": "once", "killing": "killing", "late": "failing_later"}
    variants = {name: contender(work) for name, work in works.items()}
    loaded = project(tmp_path_factory.mktemp("left"), variants, {"picky": contender("refusing")})
    path = loaded.record("test", "rmsnorm", "bad")
    path.write_text(path.read_text().replace('"verdict": "correct"', '"verdict": "wrong"'))
    loaded.record("test", "rmsnorm", "new").unlink()
    return measured(loaded)


def test_who_was_not_run_is_left_out_with_the_reason(tmp_path: Path) -> None:
    loaded = project(tmp_path, {"ours": contender("once")}, {})
    tested = TestRecord(operator="rmsnorm", variant="ours", status="not_run", reason="nothing was built yet")
    records.write(loaded.record("test", "rmsnorm", "ours"), tested)
    (entrant,) = contest.entrants.entrants_of(loaded, loaded.operator("rmsnorm"), "cpu")
    assert entrant.contender.outcome == "not benchmarked: not run: nothing was built yet"


def test_where_no_baseline_is_configured_that_is_why_there_is_no_ratio(tmp_path: Path) -> None:
    loaded = project(tmp_path, {"ours": contender("once")}, {})
    found = measured(loaded)
    assert {row.reason for row in found.oracle} == {"no baseline is configured for cpu"}


def test_only_correct_contenders_are_timed(left_over: BenchRecord) -> None:
    assert outcomes(left_over)["bad"] == "not benchmarked: wrong"
    assert outcomes(left_over)["new"].startswith("not benchmarked: it was not tested (do that with: ")
    assert {row.contender for row in left_over.times} == {"once"}
    (line,) = (line for line in left_over.oracle if line.variant == "once")
    assert not line.passed
    assert line.reason.startswith("no correct baseline was timed (picky: dropped: refused: NotImplementedError")


def test_one_variant_is_measured_against_the_baselines_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = project(tmp_path, {"ours": contender("once"), "other": contender("once")}, {"library": contender("once")})
    kept = loaded.record("bench", "rmsnorm-cpu")
    kept.parent.mkdir(parents=True)
    kept.write_text("of all of them")
    command = ["bench", "--operator", "rmsnorm", "--variant"]
    assert cli.main([*command, "ours"]) == ExitCode.WELL
    apart = Path("results", "repeated", "rmsnorm-cpu", "ours.json")
    assert f"{apart}: of ours and the baselines alone, and no part of a report\n" in capsys.readouterr().out
    record = records.read(apart, BenchRecord)
    assert outcomes(record) == {"ours": "timed", "other": "not benchmarked: not asked for", "library": "timed"}
    assert {row.contender for row in record.times} == {"ours", "library"}
    assert kept.read_text() == "of all of them"
    assert not kept.with_suffix(".csv.gz").exists()

    loaded.record("test", "rmsnorm", "other").unlink()
    assert cli.main([*command, "other"]) == ExitCode.WELL
    assert "it cannot be measured (other: not benchmarked: it was not tested (do that with: " in capsys.readouterr().out
    assert outcomes(records.read(apart, BenchRecord)) == outcomes(record), "each variant's is kept"


def test_a_baseline_that_refuses_the_shape_is_named(left_over: BenchRecord) -> None:
    assert outcomes(left_over)["picky"] == "dropped: refused: NotImplementedError: only squares"


def test_one_that_fails_in_the_middle_is_named(left_over: BenchRecord) -> None:
    assert outcomes(left_over)["late"] == "dropped: failed: RuntimeError: enough"


def test_who_wants_to_take_the_host_down_is_refused_and_leaves(left_over: BenchRecord) -> None:
    assert outcomes(left_over)["once"] == "timed"
    assert "PermissionError" in outcomes(left_over)["killing"]


def test_who_takes_the_host_down_is_found_and_nobody_else_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the kill the process goes on for a moment, in which the journal names the next contender."""
    monkeypatch.setattr(sandbox, "DEVICES", frozenset())
    variants = {name: contender(name) for name in ("once", "killing")}
    record = measured(project(tmp_path, variants, {"base": contender("thrice")}))
    found = outcomes(record)
    assert found["once"] == found["base"] == "timed"
    assert "crashed: the worker host was killed by SIGKILL" in found["killing"]
    assert {row.contender for row in record.times} == {"once", "base"}


@pytest.mark.parametrize(("name", "part"), [("garbling", "samples, kernels"), ("in_words", "samples")])
def test_who_garbles_the_answer_is_found_and_nobody_else_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, part: str
) -> None:
    monkeypatch.setattr(Measurement, "look_from_outside", lambda *_: True)  # which garbles nothing
    variants = {name: contender(name) for name in ("once", name)}
    record = measured(project(tmp_path, variants, {"base": contender("thrice")}))
    found = outcomes(record)
    assert found["once"] == found["base"] == "timed"
    assert f"the worker's answer is not one that it gives (its {part})" in found[name]
    assert {row.contender for row in record.times} == {"once", "base"}


def test_a_result_that_is_computed_when_it_is_read_or_cannot_be_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Measurement, "look_from_outside", lambda *_: True)  # whose clock sees a part of it
    names = ("once", "when_read", "mostly_when_read", "behind_bars")
    record = measured(project(tmp_path, {name: contender(name) for name in names}, {}))
    lazy = "dropped: failed: TypeError: it returned a Lazy, not a plain Tensor"
    absent = f"dropped: times escape: RuntimeError: {clock_runner.ABSENT}"
    assert outcomes(record) == dict(zip(names, ("timed", lazy, lazy, absent), strict=True))
    assert {row.contender for row in record.times} == {"once"}
    assert next(e["check"] for e in record.discarded if e.get("contender") == "behind_bars") == "wall"


def test_a_journal_that_is_none_names_nobody(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    for text in ("", "[" * contest.measurement.JOURNAL_BYTES, '"a"', "5", "[1]"):
        journal.write_text(text)
        assert contest.measurement._read_journal(journal) == ("", "")


def test_timed_results_are_held_to_every_criterion(tmp_path: Path) -> None:
    """A result that is everywhere too large by a quarter of a rounding keeps the bound and the RMS, and is biased."""
    import torch

    from kernelproof import judge
    from kernelproof.operators import attention

    loaded = project(tmp_path, {"ours": contender("once")}, {})
    dims = {"batch": 1, "heads": 2, "seq": 128, "head_dim": 64}
    case = records.Case("attention", "s", dims, {"causal": False, "layout": "bhsd"}, "float16", "normal", 3)
    call = attention.OPERATOR.make_call(case, judge.generator(case))
    reference = attention.OPERATOR.reference(call, Precision("float16", "float16"), "cpu")

    def said(factor: float) -> str | None:
        data = bytes((reference.output * factor).to(torch.float16).numpy().tobytes())
        (tmp_path / "output").write_bytes(data)
        output = {"path": str(tmp_path / "output"), "sha256": hashlib.sha256(data).hexdigest()}
        output |= {"tensors": [["float16", [1, 2, 128, 64]]]}
        handed = functools.partial(contest.outputs._handed_over, output, call, tmp_path)
        return contest.outputs._fault(loaded, case, call, {"o": reference}, handed)

    assert said(1.0) is None
    assert str(said(1 + 2**-13)).startswith("the result is too large by")


def test_what_the_operator_does_not_have_is_told_and_nothing_is_lost_and_samples_go_with_their_record(
    tmp_path: Path,
) -> None:
    loaded = project(tmp_path, {"good": contender("once")}, {})
    output = loaded.record("bench", "rmsnorm-cpu")
    faulty = config.load(tmp_path / "config.yaml", {"operators.rmsnorm.test.families": ["nonsense"]}, root=tmp_path)

    def nothing_is_lost(files: int) -> None:
        kept = {path.name: path.read_bytes() for path in output.parent.iterdir()}
        assert len(kept) == files
        with pytest.raises(ConfigError, match="rmsnorm has no family nonsense"):
            bench.run(faulty, "rmsnorm", "cpu", output)
        assert {path.name: path.read_bytes() for path in output.parent.iterdir()} == kept

    first = tmp_path / str(measured(loaded).samples)
    assert first.is_file()
    nothing_is_lost(2)
    loaded.record("test", "rmsnorm", "good").unlink()
    assert measured(loaded).samples is None
    assert not first.exists()
    nothing_is_lost(1)


def summarised(
    folder: Path,
    rows: list[dict[str, Any]],
    others: int | None = 0,
    energy: list[dict[str, Any]] | None = None,
    notes: list[dict[str, Any]] | None = None,
    counted: list[counters.Counted] | None = None,
    dropped: list[dict[str, Any]] | None = None,
    tested: list[str] | None = None,
    peer: dict[str, Any] | None = None,
) -> BenchRecord:
    """What the stage says of samples that came from its processes; `rows` override what a good sample is.

    `peer` takes part where it has a sample or was dropped, `peer` overrides what it is; `tested`: on the very case.
    """
    named = {row["contender"] for row in [*rows, *(dropped or [])]}
    peers = {"peer": contender("thrice", **(peer or {}))} if "peer" in named else {}
    loaded = project(folder, {"ours": contender("once")}, {"base": contender("thrice"), **peers})
    for name in tested or []:
        path = loaded.record("test", "rmsnorm", name)
        case = CaseResult("small", "small", {}, {}, "float32", "normal", 0, "passed")
        records.write(path, dataclasses.replace(records.read(path, TestRecord), cases=[case]))
    entrants = contest.entrants.entrants_of(loaded, loaded.operator("rmsnorm"), "cpu")
    from kernelproof import operators

    operator = operators.load("kernelproof.operators.rmsnorm", folder)
    arenas = contest.entrants.arenas_of(loaded.operator("rmsnorm"), operator, entrants, folder / "images")
    found = contest.measurement.Measured(
        neighbours=others, energy=energy or [], notes=notes or [], counted=counted or [], dropped=dropped or []
    )
    for entry in dropped or []:
        for arena in arenas:
            if entry["contender"] in arena.names and entry["case"] in (None, arena.id):
                arena.names.remove(entry["contender"])
    good = {"case": arenas[0].id, "mode": "hot", "method": "cpu_clock", "calls": 100, "time_us": 10.0, "throttle": ""}
    for row in rows:
        for name in ("process", *bench_columns()):
            found.samples[name].append({"process": 0, "block": 0, "order": 0, **good, **row}.get(name))
    modes = list(dict.fromkeys(row.get("mode", "hot") for row in rows)) or ["hot"]
    record = BenchRecord(operator="rmsnorm", device="cpu", modes=modes, processes=2)
    record.contenders = [entrant.contender for entrant in entrants]
    record.cases = [arena.cost for arena in arenas]
    contest.summary.Summary(loaded, record, entrants, arenas, found).fill(0, folder / "samples.csv.gz")
    return record


def bench_columns() -> tuple[str, ...]:
    from kernelproof import timing

    return timing.COLUMNS


def blocks(name: str, clocks: tuple[float, ...] = (1980.0, 1980.0), **more: Any) -> list[dict[str, Any]]:
    """Two processes of two blocks, with the SM clock of each block."""
    return [
        {"contender": name, "process": process, "block": block, "sm_clock_mhz": clock, **more}
        for process in range(2)
        for block, clock in enumerate(clocks)
    ]


def test_times_beside_a_busy_program_are_flagged_and_decide_nothing(tmp_path: Path) -> None:
    loaded = project(tmp_path, {"ours": contender("once")}, {"slow": contender("thrice")})
    loaded = with_long_samples(loaded, processes=4)  # of two, one burst makes any ratio possible
    with processes.pinned(processes.cores_to_measure_on(1)):
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        record = measured(loaded)
    finally:
        busy.kill()
        busy.wait()
    assert record.states["others_share"] > OTHERS_SHARE
    assert all("cores_shared" in row.flags for row in record.times if row.method == "cpu_clock")
    assert record.ratios
    assert all("cores_shared" in row.flags and row.verdict == "undecided" for row in record.ratios)
    assert record.oracle
    assert not any(row.passed for row in record.oracle)


def test_a_time_that_our_clock_does_not_confirm_decides_nothing(tmp_path: Path) -> None:
    rows = [*blocks("ours"), *blocks("base", time_us=30.0)]
    for folder in ("confirmed", "doubtful"):
        (tmp_path / folder).mkdir()
    confirmed = summarised(tmp_path / "confirmed", rows)
    assert [(row.verdict, row.flags) for row in confirmed.ratios] == [("faster", [])]
    assert [(row.passed, row.undecided) for row in confirmed.oracle] == [(True, False)]
    note = {"contender": "ours", "case": confirmed.cases[0].id, "outcome": records.OUTSIDE_DISAGREES}
    doubtful = summarised(tmp_path / "doubtful", rows, notes=[{**note, "mode": "hot"}])
    assert [(row.verdict, row.flags) for row in doubtful.ratios] == [("undecided", [records.OUTSIDE_DISAGREES])]
    (row,) = doubtful.oracle
    assert (row.passed, row.undecided, row.reason.partition(";")[0]) == (
        *(False, True),
        "our own clock does not confirm the time that its process tells",
    )


def times_of(record: BenchRecord, name: str) -> list[records.TimeRow]:
    return [row for row in record.times if row.contender == name]


def test_a_gpu_that_throttles_throughout_gives_no_number(tmp_path: Path) -> None:
    record = summarised(tmp_path, [*blocks("ours", throttle="hw_thermal_slowdown"), *blocks("base")])
    assert outcomes(record) == {
        "ours": "no time: every sample was taken while the GPU was throttled",
        "base": "timed",
    }
    assert not times_of(record, "ours")
    assert not record.ratios
    why = "discarded, throttled: hw_thermal_slowdown"
    assert [row.reason for row in record.oracle] == [f"the variant has no time here: {why}"]
    assert [row.why for row in record.untimed] == [why]
    assert {entry["reason"] for entry in record.discarded} == {"throttled: hw_thermal_slowdown"}


def test_throttled_in_one_mode_alone_is_not_simply_timed(tmp_path: Path) -> None:
    throttled = blocks("ours", mode="cold", throttle="hw_thermal_slowdown")
    record = summarised(tmp_path, [*blocks("ours"), *throttled, *blocks("base"), *blocks("base", mode="cold")])
    assert outcomes(record) == {"ours": "timed, but not cold in small-float32: discarded", "base": "timed"}


def test_one_call_a_process_is_flagged_in_the_mode_that_had_no_more(tmp_path: Path) -> None:
    slow = {"contender": "ours", "case": "small-float32", "mode": "cold", "outcome": "slow", "message": "0.3 s"}
    rows = [*blocks("ours"), *blocks("ours", mode="cold"), *blocks("base"), *blocks("base", mode="cold")]
    record = summarised(tmp_path, rows, notes=[slow])
    assert {row.mode: row.flags for row in times_of(record, "ours")} == {"hot": [], "cold": ["one_call_a_process"]}
    assert record.untimed == []


def counted(name: str, dram_bytes: float, mode: str = "cold") -> counters.Counted:
    """Two calls of 4.1 and 4.3 µs, at a clock below that of the samples."""
    return counters.Counted(name, "small-float32", mode, [dram_bytes, 2 * dram_bytes], [4.1, 4.3], 1.5, 1740.0)


def test_what_was_counted_proves_a_cold_time_or_flags_it_wherever_it_is_used(tmp_path: Path) -> None:
    rows = [*blocks("ours", mode="cold"), *blocks("base", mode="cold")]
    needed = summarised(tmp_path, rows).cases[0].bytes_read
    given = [counted("ours", 0.5 * needed), counted("base", needed)]
    record = summarised(tmp_path, rows, counted=given)
    times = {(row.contender, row.method): row for row in record.times}
    ncu, floor = times["ours", "ncu"], times["ours", "floor_ncu"]
    assert (ncu.median_us, ncu.low_us, ncu.high_us, ncu.samples) == (4.2, 4.1, 4.3, 2)
    assert (ncu.dram_bytes, floor.median_us, floor.dram_bytes) == (0.5 * needed, 1.5, None)
    assert times["base", "cpu_clock"].flags == []
    assert times["ours", "cpu_clock"].flags == ["not_cold"]
    assert "50% of the bytes" in times["ours", "cpu_clock"].reasons[0]
    assert [row.flags for row in (*record.ratios, *record.oracle)] == [["not_cold"]] * 2
    # With a floor of the first mode the cold slope of 10 µs is held against the 4.2 µs that were counted.
    hot = [*blocks("base"), *blocks("base", method="floor", time_us=1.0)]
    (cold,) = [
        row
        for row in summarised(tmp_path, [*hot, *rows], counted=given).times
        if (row.contender, row.mode, row.method) == ("base", "cold", "cpu_clock")
    ]
    assert cold.flags == ["disagrees_ncu"]
    assert cold.reasons[0].startswith("ncu shorter by 4.8")


def test_a_clock_that_drops_between_blocks_is_flagged(tmp_path: Path) -> None:
    record = summarised(tmp_path, [*blocks("ours", (1980.0, 1500.0)), *blocks("base", (1980.0, 1965.0))])
    (ours,), (base,) = times_of(record, "ours"), times_of(record, "base")
    assert ours.flags == ["clock_changed"]
    assert ours.reasons == ["the SM clock moved from 1500 to 1980 MHz between its blocks"]
    assert base.flags == []


def test_another_process_on_the_gpu_is_flagged_and_recorded(tmp_path: Path) -> None:
    record = summarised(tmp_path, [*blocks("ours"), *blocks("base")], others=2)
    assert record.states["others_on_the_gpu"] == 2
    unknown = summarised(tmp_path, [*blocks("ours"), *blocks("base")], others=None)
    assert unknown.states["others_on_the_gpu"] == contest.summary.NOT_SHOWN
    assert not any("gpu_shared" in row.flags for row in unknown.times)
    for row in record.times:
        assert row.flags == ["gpu_shared"]
        assert row.reasons == ["2 other processes on the GPU while it was measured"]
    assert [ratio.verdict for ratio in record.ratios] == ["undecided"]
    why = records.DECIDES_NOTHING[records.GPU_SHARED]
    assert [(line.passed, line.undecided, line.reason) for line in record.oracle] == [(False, True, why)]


def test_one_sample_is_no_number_like_the_others(tmp_path: Path) -> None:
    record = summarised(tmp_path, [{"contender": "ours"}, *blocks("base")])
    (row,) = times_of(record, "ours")
    assert row.flags == ["one_sample", "only_1_of_2_processes"]
    assert row.low_us == row.median_us == row.high_us
    assert [ratio.verdict for ratio in record.ratios] == ["undecided"]
    assert [(line.passed, line.reason) for line in record.oracle] == [(False, "one process decides nothing")]


def test_samples_of_a_single_block_are_no_number_like_the_others(tmp_path: Path) -> None:
    record = summarised(tmp_path, [{"contender": "ours"}, {"contender": "ours", "time_us": 11.0}, *blocks("base")])
    (row,) = times_of(record, "ours")
    assert row.flags == ["one_block", "only_1_of_2_processes"]
    assert (row.samples, row.low_us) == (2, row.high_us)


def test_who_leaves_a_case_in_two_modes_for_one_reason_is_told_once() -> None:
    arena = types.SimpleNamespace(id="small-float32", names=["ours", "base"])
    told = types.SimpleNamespace(
        found=contest.measurement.Measured(), arenas=[arena], entrants={"base": unittest.mock.MagicMock()}
    )
    for _ in ("hot", "cold"):
        contest.measurement.Measurement.drop(told, "base", arena, "refused: only squares", "wall")  # type: ignore[arg-type]
    gone = {"contender": "base", "case": "small-float32", "reason": "refused: only squares", "check": "wall"}
    assert told.found.dropped == [gone]
    assert arena.names == ["ours"]


def test_a_ratio_that_may_be_anything_is_no_number_like_the_others(tmp_path: Path) -> None:
    """Two processes that differ widely once gave `0.941` with an interval of 0 to 359,513."""
    ours = [{**row, "time_us": 4.0 + 20 * row["process"]} for row in blocks("ours")]
    record = summarised(tmp_path, [*ours, *blocks("base")])
    assert record.ratios == []
    (line,) = record.oracle
    assert (line.best_baseline, line.ratio, line.low, line.high, line.passed) == ("base", None, None, None, False)
    pair = {"variant": "ours", "baseline": "base", "case": line.case, "mode": "hot"}
    assert record.discarded == [{"what": "ratio", **pair, "reason": line.reason}]
    words = r"the ratio is not known: 2 of 2 processes timed both, and it may lie anywhere from .+ to .+: measure"
    assert re.match(words, line.reason), line.reason
    assert [row.contender for row in record.times if row.method == "cpu_clock"] == ["ours", "base"]  # times are times


@pytest.mark.parametrize(
    ("low", "high", "told"), [(0.0472, 487.3, "from 0.047 to 490"), (0.0, 359513.0, "from 0 to 360\u202f000")]
)
def test_a_range_is_told_in_one_notation(low: float, high: float, told: str) -> None:
    """It was `from 0.047 to 4.9e+02`."""
    summary: Any = types.SimpleNamespace(record=types.SimpleNamespace(processes=3))
    estimate: Any = types.SimpleNamespace(replicates=3, low=low, high=high)
    assert f"may lie anywhere {told}: measure" in contest.summary.Summary.too_wide(summary, estimate)


def test_no_sample_at_all_is_a_failed_record(tmp_path: Path) -> None:
    record = summarised(tmp_path, [])
    assert (record.status, record.reason) == (records.FAILED, "every contender was dropped")


@pytest.mark.parametrize(
    ("reasons", "status"),
    [
        ([contest.measurement.NOT_TRIED], records.NOT_RUN),
        ([contest.measurement.NOT_TRIED, "crashed: the process was killed by SIGSEGV"], records.FAILED),
    ],
)
def test_who_could_not_be_tried_beside_busy_programs_has_not_failed(
    tmp_path: Path, reasons: list[str], status: str
) -> None:
    """Else a run on a crowded machine ends with a bad verdict on a right kernel."""
    gone = [
        {"contender": name, "case": "small-float32", "reason": reason}
        for name, reason in zip(("ours", "base"), reasons, strict=False)
    ]
    record = summarised(tmp_path, [], dropped=gone)
    assert (record.status, contest.measurement.NOT_TRIED in str(record.reason)) == (status, status == records.NOT_RUN)


def test_energy_is_recorded_or_says_why_not(tmp_path: Path) -> None:
    given = [
        {"contender": "ours", "case": "small-float32", "mode": "hot", "joules_per_call": 0.0015},
        {"contender": "base", "case": "small-float32", "mode": "hot", "reason": "no counter"},
    ]
    record = summarised(tmp_path, [*blocks("ours"), *blocks("base")], energy=given)
    assert [(row.joules_per_call, row.reason) for row in record.energy] == [(0.0015, None), (None, "no counter")]


@pytest.mark.parametrize(
    ("reason", "tested", "check", "undecided"),
    [
        ("refused: only squares", False, {}, False),  # what it was never tested on it may refuse
        ("refused: only squares", True, {}, True),
        ("failed: ValueError: no such launch", False, {}, True),
        ("crashed: the process was killed by SIGSEGV", False, {}, True),
        ("crashed: the process was killed by SIGSEGV", False, {"case": None}, True),
        ("not loaded: ImportError: no such module", False, {"case": None}, True),  # it could be, in its test
        ("not captured: it waits", False, {}, False),
        ("wrong when timed (hot): bound", False, {"check": "outputs"}, False),  # no peer
    ],
)
def test_a_claim_is_not_decided_where_a_correct_peer_left(
    tmp_path: Path, reason: str, tested: bool, check: dict[str, Any], undecided: bool
) -> None:
    """Who is in its process could have seen to it."""
    gone = [{"contender": "peer", "case": "small-float32", "reason": reason} | check]
    rows = [*blocks("ours"), *blocks("base", time_us=30.0)]
    (row,) = summarised(tmp_path, rows, dropped=gone, tested=["peer"] if tested else []).oracle
    assert (row.undecided, row.passed) == (undecided, not undecided)
    assert row.reason.startswith("peer, correct in its test, left") is undecided


def test_who_never_took_part_in_a_case_is_not_missed_there(tmp_path: Path) -> None:
    gone = [{"contender": "peer", "case": None, "reason": "crashed: the process was killed by SIGSEGV"}]
    rows = [*blocks("ours"), *blocks("base", time_us=30.0)]
    (row,) = summarised(tmp_path, rows, dropped=gone, peer={"dtypes": ["float16"]}).oracle
    assert (row.undecided, row.passed) == (False, True)


def test_a_claim_is_not_decided_where_a_baseline_is_slower_beside_the_variants(tmp_path: Path) -> None:
    """Also where it is another than the one that looks fastest now."""
    said = {"contender": "peer", "case": "small-float32", "outcome": "slower_in_company", "message": "1.7 times"}
    rows = [*blocks("ours"), *blocks("base", time_us=30.0), *blocks("peer", time_us=40.0)]
    record = summarised(tmp_path, rows, notes=[said])
    assert [row.flags for row in record.times if row.contender == "peer"] == [["slower_in_company"]]
    (row,) = record.oracle
    assert (row.best_baseline, row.undecided, row.passed) == ("base", True, False)
    assert row.reason.startswith("peer: 1.7 times")


def test_nothing_to_measure_is_a_record(tmp_path: Path) -> None:
    loaded = project(tmp_path, {"ours": contender("once")}, {})
    loaded.record("test", "rmsnorm", "ours").unlink()
    record = measured(loaded)
    assert record.status == records.NOT_RUN
    assert "no contender is correct (ours: not benchmarked: it was not tested" in str(record.reason)


def test_without_a_gpu_the_record_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelproof import gpu

    monkeypatch.setattr(gpu, "available", lambda: (False, "no driver"))
    loaded = project(tmp_path, {"ours": contender("once", device="cuda")}, {})
    record = bench.run(loaded, "rmsnorm", "cuda", tmp_path / "record.json")
    assert (record.status, record.reason) == (records.NOT_RUN, "no GPU: no driver")
    assert record.remedy
    assert outcomes(record) == {"ours": "not benchmarked: no GPU"}
    assert json.loads((tmp_path / "record.json").read_text())["schema"] == "kernelproof.bench/1"


@pytest.mark.parametrize(
    ("kernel", "grid", "flags"),
    [("_Z4normPf", [17, 1, 1], []), ("_Z4normPf", [18, 1, 1], ["other_kernels_than_sealed"])],
)
def test_a_timed_call_is_compared_with_the_one_that_was_sealed(
    tmp_path: Path, kernel: str, grid: list[int], flags: list[str]
) -> None:
    loaded = project(tmp_path, {"ours": contender("once", device="cuda")}, {})
    settings = loaded.operator("rmsnorm")
    operator = operators.load(settings.module, loaded.root)
    case = enumerate_cases(settings, settings.variant("ours"), "bench")[0]
    outline = images.outline(operator.make_call(case, judge.generator(case)))
    step = {"parameters": "", "addresses": [], "kernel": {"name": kernel, "grid": [17, 1, 1], "block": [32, 1, 1]}}
    (tmp_path / "launches.json").write_text(launches.kept([{"calls": [], "arguments": outline, "steps": [step]}]))
    path = loaded.record("test", "rmsnorm", "ours")
    tested = records.read(path, TestRecord)
    tested.sealing = Sealing(1, 0, launches=FileHash("launches.json", records.sha256_file(tmp_path / "launches.json")))
    records.write(path, tested)

    entrants = contest.entrants.entrants_of(loaded, settings, "cuda")
    arenas = contest.entrants.arenas_of(settings, operator, entrants, tmp_path / "images")
    traced = {
        "name": "norm(float*)",
        "grid": grid,
        "block": [32, 1, 1],
        "count": 1.0,
        "duration_us": 3.0,
        "source": "torch.profiler",
    }
    found = contest.measurement.Measured(kernels={"ours": {case.bench_id: [traced]}})
    record = BenchRecord(operator="rmsnorm", device="cuda", modes=["hot"])
    contest.summary.Summary(loaded, record, entrants, arenas, found).times({})
    assert [(row.method, row.flags) for row in record.times] == [("device_trace", flags)]


def sampled_on_a_gpu(folder: Path, names: set[str], rows: list[dict[str, Any]]) -> Measurement:
    """A measurement that is over, with these samples; of the contenders `base` is a baseline."""
    variants = {name: contender("once", device="cuda") for name in names - {"base"}}
    loaded = project(folder, variants, {"base": contender("thrice", device="cuda")})
    settings = loaded.operator("rmsnorm")
    entrants = contest.entrants.entrants_of(loaded, settings, "cuda")
    operator = operators.load(settings.module, loaded.root)
    arenas = contest.entrants.arenas_of(settings, operator, entrants, folder / "images")
    measurement = Measurement(loaded, "cuda", entrants, arenas, None, folder)  # type: ignore[arg-type]
    for row in rows:
        for name in bench_columns():
            measurement.found.samples[name].append({"case": arenas[0].id, "mode": "hot", **row}.get(name))
    return measurement


def slope(name: str, short_us: float, long_us: float) -> dict[str, Any]:
    """A sample of 25 and of 100 calls."""
    times = {"calls": 100, "time_us": (long_us - short_us) / 75, "short_calls": 25, "short_us": short_us}
    return {"contender": name, "method": "graph_slope", "long_us": long_us, **times}


def test_a_failed_capture_costs_the_others_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves torch's allocator and stream not as before: the process goes, and the others are asked again."""
    measurement = sampled_on_a_gpu(tmp_path, {"spoils", "rival", "base"}, [])
    spawned, asked = [], list[list[str]]()

    def spawn() -> Any:
        spawned.append(1)
        return types.SimpleNamespace(close=lambda: None)

    def ask(worker: Any, arena: contest.entrants.Arena, names: list[str], *_: Any) -> dict[str, Any]:
        asked.append(sorted(names))
        found = timing.Found()
        place = {"case": arena.id, "mode": "hot"}
        found.sample(contender="rival", **place, time_us=99.0 if "spoils" in names else 5.0)
        if "spoils" in names:
            found.outcomes.append({"contender": "spoils", **place, "outcome": "not_captured", "message": "it waits"})
        return vars(found)

    monkeypatch.setattr(measurement, "host", types.SimpleNamespace(check=lambda: None))
    monkeypatch.setattr(measurement, "spawn", spawn)
    monkeypatch.setattr(measurement, "ask", ask)
    measurement.process("time", 0)
    cases = len(measurement.arenas)
    assert asked == [["base", "rival", "spoils"], ["base", "rival"]] * cases
    assert len(spawned) == 1 + cases
    assert measurement.found.samples["time_us"] == [5.0] * cases
    assert {entry["reason"] for entry in measurement.found.dropped} == {"not captured: it waits"}


def test_a_graph_that_is_slowed_where_it_is_short_is_an_escape(tmp_path: Path) -> None:
    """Calls of 10 µs and 9 µs a replay: of the bent ones the short graph waits, and the slope is 8 and not 10 µs."""
    honest, bent = (259.0, 1009.0), (409.0, 1009.0)
    rows = [slope("honest", *honest), slope("honest", *honest), slope("honest", *bent)]  # somebody was in the way once
    rows += [slope(name, *bent) for name in ("bent", "base") for _ in range(3)]
    rows.append({"contender": "honest", "method": "graph_slope", "calls": 1, "time_us": 9.0})  # too slow for graphs
    measurement = sampled_on_a_gpu(tmp_path, {"honest", "bent", "base"}, rows)
    measurement.drop_escaped()
    (dropped,) = measurement.found.dropped
    assert (dropped["contender"], dropped["check"]) == ("bent", "wall")
    assert dropped["reason"] == "times escape: in the long graph a call takes 1.25 times what the slope says (hot)"


def test_of_the_kept_samples_none_is_bent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest.measurement, "SLOPE_AGREES", 1.05)
    numbers, rows = ("calls", "time_us", "long_us"), []
    for path in sorted((ROOT / "reports" / "reference").glob("*/records/bench/*-cuda.csv.gz")):
        with gzip.open(path, "rt") as stream:
            found = [row for row in csv.DictReader(stream) if row["method"] == "graph_slope"]
        rows += [{**row, **{name: float(row[name] or 0) for name in numbers}} for row in found]
    assert rows
    measurement = sampled_on_a_gpu(tmp_path, {row["contender"] for row in rows}, rows)
    assert not [(name, reason) for name, _, reason in measurement.bent()]


def of_mode(name: str, mode: str, *times_us: float, sm_clock_mhz: float | None = None) -> list[dict[str, Any]]:
    """Samples of a graph's slope."""
    of_all = {"contender": name, "mode": mode, "method": "graph_slope", "calls": 100, "sm_clock_mhz": sm_clock_mhz}
    return [{**of_all, "time_us": time_us} for time_us in times_us]


@pytest.mark.parametrize(
    ("what", "processes", "said"),
    [
        (
            "kept",
            contest.measurement.LOOKS,
            "times escape: a call takes 7 µs where copies of its inputs take turns (cold), and 10 µs",
        ),
        ("kept_among_others", contest.measurement.LOOKS, contest.measurement.NOT_TRIED),
        ("not_again", contest.measurement.LOOKS, None),
        ("no_room", 1, None),
        ("no_memory", 1, None),
        ("crashes", 1, "crashed: the candidate's process was killed"),
        ("refuses", 1, "not loaded: it waits for somebody"),
    ],
)
def test_who_is_faster_where_inputs_take_turns_is_accused_if_it_is_so_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, processes: int, said: str | None
) -> None:
    """A machine that was slow for the hot samples alone accuses nobody: further processes are asked."""

    def ask(worker: Any, arena: contest.entrants.Arena, names: list[str], *_: Any) -> dict[str, Any]:
        asked.append(names)
        ends = {
            "no_room": WorkerGreedy("it wrote too much"),
            "no_memory": WorkerStarved(-9),
            "crashes": WorkerCrashed(-9),
        }
        if what in ends:
            raise ends[what]
        found = timing.Found()
        if what == "refuses":
            waits = {"contender": names[0], "case": arena.id, "mode": "cold", "outcome": "not_loaded"}
            found.outcomes.append({**waits, "message": "it waits for somebody"})
        cold_us = 10.0 if what == "not_again" and len(asked) == contest.measurement.LOOKS else 7.0
        for row in of_mode(names[0], "hot", 10.0) + ([] if what == "refuses" else of_mode(names[0], "cold", cold_us)):
            found.sample(case=arena.id, **row)
        return vars(found)

    rows = of_mode("honest", "hot", *[10.0] * 3, 14.0) + of_mode("honest", "cold", 9.9, 9.9, 30.0)
    # A clock that was lower for the hot ones makes them longer; a short graph that somebody slowed, too short.
    rows += of_mode("slowed", "hot", 10.0, sm_clock_mhz=1400.0) + of_mode("slowed", "cold", 7.0, sm_clock_mhz=1980.0)
    for name in ("keeps", "base"):
        rows += of_mode(name, "hot", -2.0, 3.0, *[10.0] * 6, 14.0) + of_mode(name, "cold", 7.0, 7.0, 30.0)
    asked = list[list[str]]()
    measurement = sampled_on_a_gpu(tmp_path, {"honest", "slowed", "keeps", "base"}, rows)
    monkeypatch.setattr(measurement, "ask", ask)
    monkeypatch.setattr(measurement, "spawn", lambda: types.SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(contest.measurement, "Beside", lambda *_: types.SimpleNamespace(share=lambda: 0.5))
    monkeypatch.setattr(measurement, "crowded", lambda share: what == "kept_among_others" and len(asked) == 2)
    measurement.look_at_doubtful_times()
    measurement.drop_escaped()
    assert asked == [["keeps"]] * processes
    dropped = measurement.found.dropped
    assert [entry["contender"] for entry in dropped] == ["keeps"] * bool(said)
    assert not said or dropped[0]["reason"].startswith(said)
    assert [entry["contender"] for entry in dropped if entry.get("check") == "wall"] == ["keeps"] * (what == "kept")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("keeps_where_cold", r"a call takes \S+ µs where copies of its inputs take turns \(cold\), and \S+ µs where"),
        ("keeps_beside_others", r"seen from outside a call takes \S+ µs; when it was timed it took \S+ µs"),
        ("keeps_until_changed", r"a call takes \S+ µs since values changed for the first time, and \S+ before"),
    ],
)
def test_results_that_are_kept_where_nobody_looks_are_an_escape(tmp_path: Path, name: str, words: str) -> None:
    """Each computes whenever it is looked at once: what is new, what has changed, what is alone in its process."""
    # Only who has been through all copies once can remember.
    modes, longer = (
        (("hot", "cold"), {"sample_ms": 30.0, "max_seconds": 3.0}) if name == "keeps_where_cold" else (("hot",), {})
    )
    loaded = project(tmp_path, {name: contender(name)}, {"base": contender("marking")}, modes)
    record = measured(dataclasses.replace(loaded, bench=dataclasses.replace(loaded.bench, processes=1, **longer)))
    found = outcomes(record)
    assert found["base"] == "timed"
    assert re.match(f"dropped: times escape: {words}", found[name]), found[name]


def test_of_the_kept_samples_none_is_faster_when_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest.measurement, "HOT_OVER_COLD", 1.1)
    rows = []
    for path in sorted((ROOT / "reports" / "reference").glob("*/records/bench/*-cuda.csv.gz")):
        with gzip.open(path, "rt") as stream:
            found = [row for row in csv.DictReader(stream) if row["method"] == "graph_slope"]
        numbers = {name: [float(row[name]) for row in found] for name in ("time_us", "sm_clock_mhz")}
        rows += [
            {**row, "case": f"{path} {row['case']}", "time_us": time_us, "sm_clock_mhz": mhz}
            for row, time_us, mhz in zip(found, *numbers.values(), strict=True)
        ]
    assert {row["mode"] for row in rows} == {"hot", "cold"}
    measurement = sampled_on_a_gpu(tmp_path, {row["contender"] for row in rows}, rows)
    everybody = types.SimpleNamespace(names=list(measurement.entrants))
    monkeypatch.setattr(measurement, "arena", lambda case: everybody)
    assert not list(measurement.faster_when_cold())


REMEMBERED = contest.measurement.Escape("times escape: results are remembered")
OF_TWO_MOMENTS = dataclasses.replace(REMEMBERED, processes=contest.measurement.LOOKS)
AT_WORK = contest.measurement.Escape("times escape: it keeps 1 threads at work", spoils_others=True, by_times=False)
NOT_TRIED = contest.measurement.Escape(contest.measurement.NOT_TRIED, check="")


@pytest.mark.parametrize(
    ("seen", "shares", "cores", "verdict"),
    [
        ([REMEMBERED] * 3, [0.5] * 3, 2, NOT_TRIED),
        ([REMEMBERED] * 3, [0.5, 0.5, 0.0], 2, REMEMBERED),
        ([REMEMBERED, None], [0.5, 0.5], 2, None),
        ([REMEMBERED], [0.0], 2, REMEMBERED),
        ([REMEMBERED], [0.5], 1, REMEMBERED),  # one thread has nobody to spin for
        ([AT_WORK], [0.5], 2, AT_WORK),
        ([OF_TWO_MOMENTS] * 3, [0.0] * 3, 2, OF_TWO_MOMENTS),
        ([OF_TWO_MOMENTS, OF_TWO_MOMENTS, None], [0.0] * 3, 2, None),
        ([OF_TWO_MOMENTS] * 3, [0.0, 0.5, 0.0], 2, dataclasses.replace(NOT_TRIED, processes=contest.measurement.LOOKS)),
    ],
)
def test_who_is_accused_by_times_beside_busy_programs_is_looked_at_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seen: list[contest.measurement.Escape | None],
    shares: list[float],
    cores: int,
    verdict: contest.measurement.Escape | None,
) -> None:
    measurement = on_cores(tmp_path, monkeypatch, shares, cores)
    spawned: list[int] = []
    monkeypatch.setattr(measurement, "spawn", lambda: types.SimpleNamespace(close=lambda: spawned.append(1)))
    monkeypatch.setattr(measurement, "seen_from_outside", lambda *_: seen.pop(0))
    assert measurement.seen_alone(measurement.seen_from_outside) == verdict
    assert not seen
    assert len(spawned) <= contest.measurement.LOOKS
    if verdict == NOT_TRIED:
        measurement.found.escapes.append(("ours", measurement.arenas[0], verdict))
        measurement.drop_escaped()
        ours = measurement.entrants["ours"].contender
        assert (ours.outcome, ours.correct) == (f"dropped: {contest.measurement.NOT_TRIED}", True)
        assert [entry.get("check") for entry in measurement.found.dropped] == [None]


def on_cores(folder: Path, monkeypatch: pytest.MonkeyPatch, shares: list[float], cores: int = 2) -> Measurement:
    """A measurement of `ours` on so many cores of a CPU, of which others have these shares while it is looked at."""
    loaded = project(folder, {"ours": contender("once")}, {"base": contender("thrice")})
    settings = loaded.operator("rmsnorm")
    entrants = contest.entrants.entrants_of(loaded, settings, "cpu")
    arenas = contest.entrants.arenas_of(
        settings, operators.load(settings.module, loaded.root), entrants, folder / "images"
    )
    host = types.SimpleNamespace(cores=set(range(cores)))
    left = iter(shares)
    monkeypatch.setattr(contest.measurement, "Beside", lambda *_: types.SimpleNamespace(share=lambda: next(left)))
    return Measurement(loaded, "cpu", entrants, arenas, host, folder)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("company_us", "alone_us", "slower"),
    [
        ([20.0] * 5, [10.0] * 3, True),
        ([20.0, 20.0, 20.0, 20.0, 10.0], [10.0] * 3, True),
        ([12.0] * 5, [10.0], False),
        ([20.0, 20.0, 20.0, 11.0, 11.0], [10.0], False),  # other programs, in most processes
        ([20.0] * 5, [10.0, 19.0], False),  # and here in the first that had baselines alone
        ([21.0] * 5, [19.0] * 3, True),  # the claim of ours, at 19.5, would not pass by that
        ([21.0] * 5, [20.8], False),
        ([30.0] * 5, [28.0], False),  # it would
    ],
)
def test_a_baseline_that_is_slower_beside_the_variants_is_seen_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, company_us: list[float], alone_us: list[float], slower: bool
) -> None:
    measurement = on_cores(tmp_path, monkeypatch, [])
    (arena,) = measurement.arenas
    for process, time_us in enumerate(company_us):
        for name, us in (("ours", 19.5), ("base", time_us)):
            sample = {"contender": name, "case": arena.id, "mode": "hot", "method": "cpu_clock", "process": process}
            for column, value in {**sample, "time_us": us, "throttle": ""}.items():
                measurement.found.samples[column].append(value)
    asked: list[list[str]] = []

    def ask(worker: Any, arena: contest.entrants.Arena, names: list[str], *_: Any, alone: bool) -> dict[str, Any]:
        assert alone
        asked.append(names)
        sample = {"contender": "base", "case": arena.id, "mode": "hot", "method": "cpu_clock"}
        sample |= {"time_us": alone_us[len(asked) - 1]}
        return {"samples": {name: [value] for name, value in sample.items()}, "outcomes": [], "outputs": []}

    monkeypatch.setattr(measurement, "spawn", lambda: types.SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(measurement, "ask", ask)
    measurement.look_at_baselines_alone()
    assert asked == [["base"]] * len(alone_us)
    assert [note["outcome"] for note in measurement.found.notes] == ["slower_in_company"] * slower


@pytest.mark.parametrize(
    ("mine_us", "shares", "looks", "outcome"),
    [
        ([9.0] * 3, [0.5] * 3, 3, f"dropped: {contest.measurement.NOT_TRIED}"),
        ([9.0, 1.0], [0.5, 0.5], 2, "timed"),  # what others made long the first time
        ([9.0] * 2, [0.0] * 2, 2, "dropped: wrong: library call passed off as own work: aten::mm"),
        ([9.0] * 3, [0.0, 0.5, 0.0], 3, "dropped: wrong: library call passed off as own work: aten::mm"),
        ([9.0, 1.0], [0.0] * 2, 2, "timed"),  # an interruption that nobody's share of the cores shows
        ([None], [0.5], 1, "dropped: wrong: library call passed off as own work: aten::mm"),  # and does nothing else
    ],
)
def test_a_share_of_the_time_in_torch_is_looked_at_more_than_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mine_us: list[float | None],
    shares: list[float],
    looks: int,
    outcome: str,
) -> None:
    measurement = on_cores(tmp_path, monkeypatch, shares)
    (arena,), asked = measurement.arenas, 0

    def process(action: str, index: int) -> None:
        nonlocal asked
        product = {"name": "aten::mm", "duration_us": mine_us[asked]}
        mine = (
            [{**product, "duration_us": 9.0}]
            if mine_us[asked] is None
            else [product, {"name": "x", "duration_us": 5.0}]
        )
        calls = {"ours": mine, "base": [{"name": "aten::mm", "duration_us": 9.0}]}
        measurement.found.kernels = {name: {arena.id: call} for name, call in calls.items()}
        measurement.beside_trace.setdefault(arena.id, []).append(shares[asked])
        asked += 1

    monkeypatch.setattr(measurement, "process", process)
    measurement.look_into_torch()
    assert asked == looks
    ours = measurement.entrants["ours"].contender
    assert ours.outcome.startswith(outcome)
    assert ours.correct is not outcome.startswith("dropped: wrong")


@pytest.mark.parametrize(("seen", "stay"), [([[7], [7], []], 0), ([[7]], 1), ([None], None), ([[]], 0)])
def test_who_is_about_to_leave_a_gpu_is_nobody_who_shares_it(
    monkeypatch: pytest.MonkeyPatch, seen: list[list[int] | None], stay: int | None
) -> None:
    monkeypatch.setattr(bench, "LEAVING_S", 0.3)
    monkeypatch.setattr(gpu, "compute_processes", lambda _: seen.pop(0) if len(seen) > 1 else seen[0])
    assert bench._others_on(0) == stay


def test_a_first_call_that_plans_is_not_what_a_call_takes(tmp_path: Path) -> None:
    loaded = project(tmp_path, {"plans": contender("plans")}, {"once": contender("once")})
    record = measured(dataclasses.replace(loaded, bench=dataclasses.replace(loaded.bench, max_seconds=0.02)))
    assert outcomes(record) == {"plans": "timed", "once": "timed"}
    assert max(row.median_us for row in record.times) < 100_000


def test_each_input_has_a_row_that_moves() -> None:
    x, w, ids = torch.zeros(3, 4, 5), torch.zeros(5), torch.zeros(3, dtype=torch.int64)
    call = operators.Call({"x": x, "w": w, "ids": ids, "n": 2.0, "y": torch.zeros(3)}, ("y",), ("row",))
    rows = contest.entrants._rows_to_move(
        operators.changeable(operators.load("kernelproof.operators.rmsnorm", ROOT), call)
    )
    assert set(rows) == {"x", "w"}
    assert (len(rows["x"]), rows["w"]) == (2, [])
    other = dataclasses.replace(call, arguments={**call.arguments, "x": x + 1, "w": w + 1})
    moved = contest.entrants._moved(call, other, rows)
    assert (int(moved.tensor("x").sum()), int(moved.tensor("w").sum()), int(x.sum())) == (5, 5, 0)
    tensors = {"q": torch.zeros(2, 3, dtype=torch.uint8), "scale": torch.ones(2), "y": torch.zeros(3)}
    assert set(contest.entrants._rows_to_move(operators.Call(tensors, ("y",), ("row",)).inputs)) == {"q", "scale"}


def test_a_fault_in_the_operators_module_names_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tmp_path, {"ours": contender("once")}, {})
    text = (tmp_path / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(text.replace("kernelproof.operators.rmsnorm", "broken.py"))
    (tmp_path / "broken.py").write_text(
        "from kernelproof.operators import rmsnorm\n"
        "class Broken(type(rmsnorm.OPERATOR)):\n"
        "    def make_call(self, case, generator):\n"
        "        return {}['x']\n"
        "OPERATOR = Broken()\n"
    )
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", "--operator", "rmsnorm", "--device", "cpu"]) == 2
    assert "kernelproof: broken.py:4: `Broken.make_call` raised KeyError: 'x'\n" in capsys.readouterr().err


@pytest.mark.alone
def test_who_hangs_on_a_core_of_its_own_hung_however_many_others_have_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was once `not tried`, and passed the gate."""
    monkeypatch.setattr(contest.measurement, "REQUEST_BASE_S", 4.0)
    loaded = with_long_samples(project(tmp_path, {"ours": contender("spins")}, {"base": contender("once")}))
    monkeypatch.setattr(contest.measurement.Measurement, "crowded", lambda *_: True)
    record = measured(loaded)
    (outcome,) = (entry.outcome for entry in record.contenders if entry.name == "ours")
    assert outcome.startswith("dropped: hung: no answer within")


def test_who_takes_too_long_is_told_with_the_key_that_gives_more_time() -> None:
    assert contest.measurement._how_it_ended(WorkerTimeout(63)) == (
        "hung: no answer within 63 s; the process was killed; if it only takes long, "
        "--set bench.max_seconds=SECONDS gives it more"
    )
