"""The machine is recorded probe by probe, and nothing private gets in."""

import getpass
import json
import socket
from pathlib import Path

import packed_run
import pytest

from kernelproof import capture, gpu, records
from kernelproof.config import Config


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return packed_run.make(tmp_path)


def test_every_probe_answers_or_says_why_not(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "results/capture/capture.json"
    record = capture.run(config, path)
    assert records.read(path, records.CaptureRecord) == record
    assert set(record.probes) == set(capture.PROBES)
    for name, probe in record.probes.items():
        assert probe.status in ("ok", "absent", "failed"), name
        assert (probe.status == "ok") == (probe.error is None), name
    for name in ("cpu", "memory", "os", "python", "packages", "environment", "limits"):
        assert record.probes[name].status == "ok", record.probes[name]
    assert record.probes["cpu"].value["usable_cores"] >= 1
    assert record.probes["packages"].value["pytest"] == pytest.__version__


def test_a_probe_that_fails_is_recorded_and_the_others_go_on(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(config: Config) -> None:
        raise ZeroDivisionError("no such thing")

    monkeypatch.setitem(capture.PROBES, "cpu", broken)
    record = capture.run(config, tmp_path / "capture.json")
    assert record.status == "ok"
    assert record.probes["cpu"] == records.Probe("failed", None, "ZeroDivisionError: no such thing")
    assert record.probes["os"].status == "ok"


def test_nothing_private_gets_in(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{home}/lib:/usr/lib")
    monkeypatch.setenv("GITHUB_TOKEN", "very-secret-token-of-mine")
    monkeypatch.setenv("SOME_PASSWORD", "hunter2hunter2")
    path = tmp_path / "capture.json"
    capture.run(config, path)
    text = path.read_text()
    assert "very-secret-token-of-mine" not in text
    assert "hunter2hunter2" not in text
    assert f"{home}/" not in text
    for private in (socket.gethostname(), getpass.getuser()):
        if len(private) > 4:
            assert private not in json.dumps(json.loads(text)["probes"]["environment"])
    assert json.loads(text)["probes"]["environment"]["value"]["LD_LIBRARY_PATH"] == "<home>/lib:/usr/lib"


def test_only_listed_variables_are_kept(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("MY_OWN_VARIABLE", "x")
    found = capture.environment(config)
    assert found["CUDA_VISIBLE_DEVICES"] == "1"
    assert set(found) <= set(capture.ENVIRONMENT)


def test_boards_are_named_by_the_hash_of_their_uuid(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{uuid},MIG-{uuid}/1/0,GPU-1111,0")
    named = capture.environment(config)["CUDA_VISIBLE_DEVICES"].split(",")
    assert named[0] == f"GPU-{gpu.uuid_sha256(uuid)}"
    assert named[1] == f"MIG-{gpu.uuid_sha256(f'MIG-{uuid}/1/0')}"
    assert named[2] == f"GPU-{gpu.uuid_sha256('GPU-1111')}"
    assert named[3] == "0"


def test_the_time_zone_is_not_asked_for(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    assert "TZ" not in capture.environment(config)


def test_no_listed_variable_holds_secrets() -> None:
    assert not [name for name in capture.ENVIRONMENT if any(w in name for w in ("TOKEN", "SECRET", "KEY", "PASS"))]


def test_no_repository_is_no_failure(config: Config) -> None:
    probe = capture.look(capture.git, config)
    assert probe.status == "absent"
    assert "no git repository; the files' hash is" in str(probe.error)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("RmProfilingAdminOnly: 1\nOther: 0\n", "administrators"),
        ("Other: 1\nRmProfilingAdminOnly: 0\n", "everybody"),
        ("", "unknown"),
        (None, "unknown"),
    ],
)
def test_who_may_read_counters(monkeypatch: pytest.MonkeyPatch, parameters: str | None, expected: str) -> None:
    monkeypatch.setattr(capture, "_read_or_none", lambda path: parameters)
    assert capture.counters_permitted() == expected
