"""Records are whole or absent, and a reader refuses what it does not know."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelproof import records
from kernelproof.errors import RecordError


def build_record() -> records.BuildRecord:
    return records.BuildRecord(
        operator="attention",
        variant="v",
        headers=[records.FileHash("a.h", "00")],
        cubins=[records.Cubin("sm_89", "a.cubin", "11", 3, "22", {"tensor": 4})],
        compiler=records.Compiler("nvcc", "13.0", "33", "wheels"),
        provenance=records.Provenance(commit="c"),
    )


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "record.json"
    records.write(path, build_record())
    assert records.read(path, records.BuildRecord) == build_record()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"schema": "kernelproof.build/2"}, "schema 'kernelproof.build/2', but this kernelproof reads"),
        ({"schema": None}, "schema None"),
        ({"surprise": 1}, "unknown field 'surprise'"),
        ({"headers": [{"path": "a.h"}]}, "headers[0]: there is no field 'sha256' in FileHash"),
        ({"device": "tpu"}, "device: 'tpu' is none of cpu, cuda"),
        ({"status": ["ok"]}, "status: ['ok'] is none of ok, failed, not_run"),
        ({"duration_s": "1"}, "duration_s: '1' is not a number"),
        ({"duration_s": True}, "duration_s: True is not a number"),
        ({"duration_s": None}, "duration_s: None is not a number"),
        ({"cubins": {}}, "cubins: {} is not a list"),
        ({"headers": [{"path": "a.h", "sha256": "00"}, 3]}, "headers[1]: 3 is not a mapping"),
        ({"headers": [{"path": "a.h", "sha256": "00", "bytes": 1.5}]}, "headers[0].bytes: 1.5 is not a whole number"),
        ({"compiler": "nvcc"}, "compiler: 'nvcc' is not a mapping"),
        ({"reason": 3}, "reason: 3 is not text or null"),
        ({"provenance": {"dirty": 1}}, "provenance.dirty: 1 is not true or false"),
        ({"flags": [["-O3"]]}, "flags[0]: ['-O3'] is not text"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(tmp_path: Path, change: dict, expected: str) -> None:
    path = tmp_path / "record.json"
    records.write(path, build_record())
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RecordError) as caught:
        records.read(path, records.BuildRecord)
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_test_record_from_before_isolation_was_stated_is_read(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    records.write(path, records.TestRecord(operator="o", variant="v", isolation="seccomp", refused=["sockets"]))
    old = json.loads(path.read_text())
    del old["isolation"], old["refused"]
    path.write_text(json.dumps(old))
    found = records.read(path, records.TestRecord)
    assert (found.isolation, found.refused) == ("", [])


@pytest.mark.parametrize(
    ("number", "said"),
    [
        ("NaN", "'NaN' is no finite number"),
        ("-Infinity", "'-Infinity' is no finite number"),
        ("1e999", "'1e999' is no finite number"),
        ("9" * 301, "a number of 301 digits"),
    ],
)
def test_a_number_that_is_none_is_refused(tmp_path: Path, number: str, said: str) -> None:
    path = tmp_path / "record.json"
    records.write(path, build_record())
    path.write_text(path.read_text().replace('"duration_s": 0.0', f'"duration_s": {number}'))
    with pytest.raises(RecordError, match=f"cannot be read: {said}"):
        records.read(path, records.BuildRecord)


def test_a_whole_number_is_a_number_and_text_may_stand_for_one(tmp_path: Path) -> None:
    metrics = {"a": records.Metric(3), "b": records.Metric("n/a"), "c": records.Metric(None), "d": records.Metric(0.5)}
    record = records.ProfileRecord(kernels=[records.ProfiledKernel("k", [1], [32], 7, metrics)], duration_s=2)
    records.write(tmp_path / "record.json", record)
    assert records.read(tmp_path / "record.json", records.ProfileRecord) == record


@pytest.mark.parametrize("content", [None, "", "{", "[]", "\x00", "[" * 100_000, '{"schema": []}'])
def test_an_unreadable_record_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "record.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(RecordError):
        records.read(path, records.BuildRecord)


def test_not_a_number_is_not_written(tmp_path: Path) -> None:
    record = records.BuildRecord(duration_s=float("nan"))
    with pytest.raises(ValueError, match="JSON compliant"):
        records.write(tmp_path / "record.json", record)
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    records.atomic_write(path, "old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        records.atomic_write(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_folder_in_the_way_is_named_and_no_temporary_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        records.atomic_write(tmp_path, "text")
    assert caught.value.filename == str(tmp_path)


def test_case_ids_tell_cases_apart() -> None:
    case = records.Case("attention", "mission", {"seq": 512}, {"causal": True, "layout": "bshd"}, "float16", "peaky", 3)
    assert case.id == "mission-causal-bshd-float16-peaky-s3"
    assert case.bench_id == "mission-causal-bshd-float16"


@pytest.mark.parametrize(("umask", "mode"), [("022", 0o644), ("077", 0o600), ("002", 0o664)])
def test_a_file_is_for_whom_the_umask_lets_read_it(tmp_path: Path, umask: str, mode: int) -> None:
    program = (
        "import sys, pathlib; from kernelproof import records; records.atomic_write(pathlib.Path(sys.argv[1]), 'x')"
    )
    path = tmp_path / "file"
    command = ["sh", "-c", f'umask {umask}; exec "$@"', "sh", sys.executable, "-c", program, str(path)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    assert path.stat().st_mode & 0o777 == mode
