"""A small finished run on disk, for tests of the stages that gather and pack: a CPU and a CUDA variant, a baseline."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import yaml

from kernelproof import config as configuration
from kernelproof import fingerprints, records
from kernelproof.config import Config

UTC = "2025-03-01T12:00:00Z"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
STATE = records.Provenance(
    commit=COMMIT, branch="main", commit_utc="2025-02-28T10:00:00Z", utc=UTC, kernelproof="0.1.0"
)
FOLDER = COMMIT[:12]

SETTINGS = {
    "schema": "kernelproof.config/1",
    "project": "sample",
    "bench": {"modes": ["hot"]},
    "operators": {
        "op": {
            "module": "op.py",
            "binding": "csrc/op/binding.cc",
            "shapes": {"small": {"rows": 2}, "large": {"rows": 2000}},
            "test": {"shapes": ["small"]},
            "bench": {"shapes": ["large"]},
            "profile": {"shape": "large"},
            "variants": {
                "plain": {"device": "cpu", "sources": ["csrc/op/plain.cc"], "dtypes": ["float32"]},
                "tiled": {"device": "cuda", "sources": ["csrc/op/tiled.cu"], "dtypes": ["float16"]},
            },
            "baselines": {"library": {"abi": "python", "entry": "m:f", "device": "cpu", "dtypes": ["float32"]}},
        }
    },
}
for variants in (SETTINGS["operators"]["op"][kind] for kind in ("variants", "baselines")):  # type: ignore[index]
    for settings in variants.values():
        settings["precision"] = {"output": "float32"}

SOURCES = {
    "op.py": "OPERATOR = None\n",
    "repro.sh": "#!/bin/sh\nexit 0\n",
    "csrc/op/binding.cc": "// binding\n",
    "csrc/op/plain.cc": "// plain\n",
    "csrc/op/tiled.cu": "// tiled\n",
    "src/kernelproof/__init__.py": "",
    "src/kernelproof/__pycache__/stale.pyc": "not a source",
    "envs/tool.txt": "pandas==2 --hash=sha256:00\n",
}
RUNGS = ("build", "load", "launch", "sanity", "correctness", "properties", "determinism")
TEXTS = {
    "results/logs/build/op/plain.log": "g++ plain.cc\n",
    "results/logs/bundle/other.log": "of the stage that is running\n",
    "results/store/build/bb/sm_89.sass": "NOP\n",
    "results/test/op/plain.xml": '<testsuites><testsuite name="p" hostname="workstation7" tests="1"/></testsuites>\n',
    "results/profile/op/tiled.csv": "metric,value\n" * 400,
}
CUBIN = "results/store/build/bb/sm_89.cubin"
REPORT = "results/profile/op/tiled.ncu-rep"
SAMPLES = "process,block,contender,case,mode,method,time_us,throttle\n" + "".join(
    f"{process},{block},{contender},large-float32,hot,cpu_clock,{time_us * (1 + process / 10 + block / 100):.6g},\n"
    for process in range(3)
    for block in range(4)
    for contender, time_us in (("plain", 9.0), ("library", 10.0))
)
BINARIES = {
    CUBIN: b"\x7fELF" + bytes(range(256)) * 40,
    REPORT: b"NVR\0" + bytes(range(256)) * 60,
    "results/bench/op-cpu.csv.gz": gzip.compress(SAMPLES.encode(), mtime=0),
}


def make(root: Path) -> Config:
    """Write a whole run below `root` and give back its configuration."""
    for path, text in (SOURCES | TEXTS).items():
        _write(root / path, text.encode())
    for path, data in BINARIES.items():
        _write(root / path, data)
    (root / "config.yaml").write_text(yaml.safe_dump(SETTINGS, sort_keys=False))
    config = replace(configuration.load(root / "config.yaml", root=root), source="config.yaml")
    configuration.save(config, root / "results/config.json")
    for record in made_records():
        path = record_path(record)
        _, stage, subject = path.removesuffix(".json").split("/", 2)
        record.settings = fingerprints.of(config, stage, subject)
        records.write(root / path, record)
    return config


def made_records() -> list[records.Record]:
    """Every record of the run."""
    common = {"provenance": STATE, "operator": "op"}
    hashed = records.FileHash(REPORT, hashlib.sha256(BINARIES[REPORT]).hexdigest(), len(BINARIES[REPORT]))
    cubin = records.Cubin("sm_89", CUBIN, hashlib.sha256(BINARIES[CUBIN]).hexdigest(), 10244, "22")
    case = records.BenchCase("large-float32", "large", {"rows": 2000}, {}, "float32", 1e6, 1e5, 1e5)
    oracle = records.OracleRow("plain", "large-float32", "hot", "library", 0.9, 0.88, 0.92, True, "0.92 <= 0.95")
    ratio = records.RatioRow("plain", "library", "large-float32", "hot", 0.9, 0.88, 0.92, "faster")
    probes = {"cpu": records.Probe("ok", {"model": "a processor"}), "gpu": records.Probe("ok", [{"name": "a board"}])}
    passed = records.CaseResult.of(records.Case("op", "small", {"rows": 2}), "passed")
    tested = {
        "verdict": "correct",
        "rungs": [records.Rung(name, "passed") for name in RUNGS],
        "cases": [replace(passed, max_bound_ratio=0.5, rms_ratio=0.4)],
        "error_histogram": records.Histogram([0.0, 0.1, 1.0, 1e3], [3, 1, 0]),
        "isolation": "landlock-7+seccomp",
        "properties": [
            records.PropertyResult(name, "it holds", "small-float32-normal-s0", "passed")
            for name in ("fresh values", "new values")
        ],
        "trials": 100,
        "precision": {"output": "float32", "p": "float32", "accumulate": "float32"},
    }
    timed = [
        records.Contender("plain", "variant", "tvm_ffi", "correct", True, "timed"),
        records.Contender("library", "baseline", "python", "correct", True, "timed"),
    ]
    times = [
        records.TimeRow(name, case.id, "hot", "cpu_clock", median, median * 0.8, median * 1.2, 12, 3)
        for name, median in (("plain", 10.0349), ("library", 11.1499))
    ]
    return [
        records.CaptureRecord(provenance=STATE, probes=probes),
        records.BuildRecord(**common, variant="plain", signature="aa"),
        records.BuildRecord(**common, variant="tiled", device="cuda", signature="bb", cubins=[cubin]),
        records.BuildRecord(**common, variant="library", role="baseline", abi="python"),
        records.TestRecord(
            **common, variant="plain", **tested, build_signature="aa", junit="results/test/op/plain.xml"
        ),
        records.TestRecord(**common, variant="tiled", device="cuda", **tested, build_signature="bb"),
        records.TestRecord(**common, variant="library", role="baseline", **tested),
        records.BenchRecord(
            **common,
            duration_s=60.0,
            modes=["hot"],
            contenders=timed,
            cases=[case],
            times=times,
            oracle=[oracle],
            ratios=[ratio],
            samples="results/bench/op-cpu.csv.gz",
        ),
        records.BenchRecord(**common, device="cuda", status="not_run", reason="no GPU"),
        records.CeilingsRecord(
            provenance=STATE, ceilings=[records.Ceiling("copy", "B/s", 9e9, 8e9, 1e10, 8, "a copy")]
        ),
        records.CeilingsRecord(provenance=STATE, device="cuda", status="not_run", reason="no GPU"),
        records.ProfileRecord(**common, variant="tiled", report=hashed, csv="results/profile/op/tiled.csv"),
    ]


def record_path(record: records.Record) -> str:
    """Where a record lies, from the root."""
    match record:
        case records.CaptureRecord():
            return "results/capture/capture.json"
        case records.BuildRecord() | records.TestRecord() | records.ProfileRecord():
            stage = record.SCHEMA.removeprefix("kernelproof.").partition("/")[0]
            return f"results/{stage}/{record.operator}/{record.variant}.json"
        case records.BenchRecord():
            return f"results/bench/{record.operator}-{record.device}.json"
        case records.CeilingsRecord():
            return f"results/bench/ceilings/{record.device}.json"
    raise TypeError(type(record))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
