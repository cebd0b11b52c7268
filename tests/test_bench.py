"""The bench stage end to end on the CPU: real workers, real clocks, tiny kernels with one fault each."""

import csv
import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernelproof import bench, config, records, samples, sandbox, statistics
from kernelproof.config import Precision
from kernelproof.records import BenchRecord, TestRecord

# Each contender is RMSNorm in torch; `work` is how often it is done, so ratios are known.
CONTENDERS = """
import os
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


def raising(x, weight, eps):
    raise ValueError("no such launch")


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
"""


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


def measured(loaded: config.Config) -> BenchRecord:
    output = loaded.record("bench", "rmsnorm-cpu")
    bench.run(loaded, "rmsnorm", "cpu", output)
    return records.read(output, BenchRecord)


def outcomes(record: BenchRecord) -> dict[str, str]:
    return {contender.name: contender.outcome for contender in record.contenders}


def test_a_known_ratio_is_found_and_every_sample_is_kept(tmp_path: Path) -> None:
    variants = {"ours": contender("once"), "ours_into": contender("into", "destination")}
    loaded = project(tmp_path, variants, {"slow": contender("thrice")}, modes=("hot", "cold"))
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
    # Both contenders' timed results, the same after poison, and the results for new values.
    assert record.states["outputs_judged"] >= 6
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


def test_faulty_contenders_are_named_and_the_others_go_on(tmp_path: Path) -> None:
    variants = {name: contender(name) for name in ("once", "raising", "crashing", "remembering")}
    variants["lazy"] = contender("lazy", "destination")
    record = measured(project(tmp_path, variants, {"base": contender("thrice")}))
    found = outcomes(record)
    assert found["once"] == found["base"] == "timed"
    assert "ValueError: no such launch" in found["raising"]
    assert "crashed" in found["crashing"]
    assert "SIGABRT" in found["crashing"]
    assert "wrong for new values in the same memory" in found["remembering"]
    assert "wrong" in found["lazy"]
    assert {row.contender for row in record.times} == {"once", "base"}
    assert {row.variant for row in record.ratios} == {"once"}
    verdicts = {contender.name: contender.correct for contender in record.contenders}
    assert verdicts == {
        "once": True,
        "base": True,
        "raising": True,
        "crashing": True,
        "remembering": False,
        "lazy": False,
    }
    assert {entry["contender"] for entry in record.discarded} == {"raising", "crashing", "remembering", "lazy"}


def test_who_wants_to_take_the_host_down_is_refused_and_leaves(tmp_path: Path) -> None:
    variants = {name: contender(name) for name in ("once", "killing")}
    found = outcomes(measured(project(tmp_path, variants, {})))
    assert found["once"] == "timed"
    assert "PermissionError" in found["killing"]


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
        return bench._fault(
            loaded, case, call, reference, output | {"dtype": "float16", "shape": (1, 2, 128, 64)}, tmp_path
        )

    assert said(1.0) is None
    assert str(said(1 + 2**-13)).startswith("the result is too large by")


def test_only_correct_contenders_are_timed(tmp_path: Path) -> None:
    loaded = project(tmp_path, {"good": contender("once"), "bad": contender("once"), "new": contender("once")}, {})
    path = loaded.record("test", "rmsnorm", "bad")
    path.write_text(path.read_text().replace('"verdict": "correct"', '"verdict": "wrong"'))
    loaded.record("test", "rmsnorm", "new").unlink()
    record = measured(loaded)
    assert outcomes(record)["bad"] == "not benchmarked: wrong"
    assert outcomes(record)["new"] == "not benchmarked: the record does not exist"
    assert {row.contender for row in record.times} == {"good"}
    assert [row.reason for row in record.oracle] == ["no correct baseline was timed"]
    assert not record.oracle[0].passed


def test_nothing_to_measure_is_a_record(tmp_path: Path) -> None:
    loaded = project(tmp_path, {"ours": contender("once")}, {})
    loaded.record("test", "rmsnorm", "ours").unlink()
    record = measured(loaded)
    assert (record.status, record.reason) == (records.NOT_RUN, "no contender is correct")


def test_without_a_gpu_the_record_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelproof import gpu

    monkeypatch.setattr(gpu, "available", lambda: (False, "no driver"))
    loaded = project(tmp_path, {"ours": contender("once", device="cuda")}, {})
    record = bench.run(loaded, "rmsnorm", "cuda", tmp_path / "record.json")
    assert (record.status, record.reason) == (records.NOT_RUN, "no GPU: no driver")
    assert record.remedy
    assert outcomes(record) == {"ours": "not benchmarked: no GPU"}
    assert json.loads((tmp_path / "record.json").read_text())["schema"] == "kernelproof.bench/1"


def test_a_single_call_for_a_profiler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = project(tmp_path, {"ours": contender("into", "destination")}, {})
    bench.once(loaded, "rmsnorm", "ours", "small", {})
    assert capsys.readouterr().out.startswith("rmsnorm/ours small-float32: one call, ")
    with pytest.raises(bench.BenchError, match="no such shape; allowed: small"):
        bench.once(loaded, "rmsnorm", "ours", "smal", {})
