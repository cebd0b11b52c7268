"""Candidates that try to get out, to look in or to lie: none gets what it wants, and each is named.

Those of them that gain something give a right result only if their attempt worked. Without the sandbox most of them
are `correct`: the last test runs them like that, for else these tests could not fail.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from defects import HERE, project

from kernelproof import config, records, sandbox, test
from kernelproof.config import Config
from kernelproof.records import TestRecord

pytestmark = pytest.mark.skipif(sandbox.kernel_abi() == 0, reason="this kernel has no Landlock, or it is off")


def climbed(settings: Config, name: str) -> TestRecord:
    folder = settings.results / "test" / "rmsnorm"
    test.run(settings, "rmsnorm", [name], folder)
    assert sorted(path.name for path in folder.iterdir()) == [f"{name}.{end}" for end in ("json", "log", "xml")]
    return records.read(folder / f"{name}.json", TestRecord)


def python_project(folder: Path, name: str) -> Config:
    """A project whose one variant is a Python file of defects/."""
    settings = yaml.safe_load((project(folder, "good").root / "config.yaml").read_text())
    variant = {"abi": "python", "device": "cpu", "passing": "return", "dtypes": ["float32"]}
    variant |= {"entry": f"{name}.py:run", "precision": {"output": "float32"}}
    settings["operators"]["rmsnorm"]["variants"] = {name: variant}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    shutil.copy(HERE / f"{name}.py", folder)
    return config.load(folder / "config.yaml", root=folder)


def first_failure(record: TestRecord) -> str:
    return next(f"{rung.name}: {rung.message}" for rung in record.rungs if rung.status == "failed")


GAINS = [
    ("kills_its_host", "refused: kill"),
    ("changes_its_library", "refused: writing to its library"),
    ("writes_a_record", "refused: writing a record"),
    ("reads_other_memory", "refused: reading other memory"),
    ("traces_its_host", "refused: ptrace"),
    ("opens_sockets", "refused: sockets"),
    ("follows_a_link", "refused: leaving its folder"),
    ("looks_for_references", "refused: looking around"),
]


@pytest.mark.parametrize(("name", "words"), GAINS)
def test_what_is_refused_gains_nothing(tmp_path: Path, name: str, words: str) -> None:
    settings = project(tmp_path, name)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    record = climbed(settings, name)
    assert record.verdict == "wrong", record.reason
    assert words in first_failure(record)
    assert {path: path.read_bytes() for path in before} == before
    assert record.isolation.startswith("landlock-")
    assert len(record.refused) == 14


@pytest.mark.parametrize(
    ("name", "verdict", "words"),
    [
        ("links_its_results", "wrong", r"\S+\.img\.out: a link was put where this file is to be written"),
        ("fills_the_disk", "crashed", r"wrote more than \d+ MB into files"),
        ("fills_the_disk_unseen", "crashed", r"wrote more than \d+ MB into files"),
        ("nests_folders", "crashed", r"nested folders more than \d+ deep"),
        ("nests_long_names", "crashed", "or than a path can be"),
        ("forks_without_end", "crashed", r"started more than \d+ processes"),
        ("prints_its_verdict", "wrong", "sanity: .*exact calls are wrong"),
        ("child_writes_later", "wrong", "sanity: .*exact calls are wrong"),
        ("forged_answer", "crashed", "not written by the worker"),
        ("nested_answer", "crashed", "not written by the worker"),
    ],
)
def test_who_lies_or_takes_too_much_is_named(tmp_path: Path, name: str, verdict: str, words: str) -> None:
    settings = project(tmp_path, name)
    written = (tmp_path / "config.yaml").read_bytes()
    record = climbed(settings, name)
    assert record.verdict == verdict, record.reason
    assert re.search(words, first_failure(record)), first_failure(record)
    assert (tmp_path / "config.yaml").read_bytes() == written


def test_a_child_neither_outlives_its_worker_nor_writes(tmp_path: Path) -> None:
    settings = project(tmp_path, "child_writes_later")
    climbed(settings, "child_writes_later")
    log = (settings.results / "test" / "rmsnorm" / "child_writes_later.log").read_text()
    children = [int(pid) for pid in re.findall(r"^child (\d+)", log, re.MULTILINE)]
    assert children
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    time.sleep(1)  # longer than it would have waited
    assert not (settings.results / "test" / "rmsnorm" / "forged.json").exists()


@pytest.mark.parametrize(
    ("name", "verdict", "words"),
    [
        ("patches_python", "wrong", "handed over no image|exact calls are wrong|bound"),
        ("answers_for_its_worker", "(wrong|crashed)", "handed over no image|exit code 0"),
        ("escapes_from_python", "wrong", "PermissionError: refused: every way"),
    ],
)
def test_from_python(tmp_path: Path, name: str, verdict: str, words: str) -> None:
    record = climbed(python_project(tmp_path, name), name)
    assert re.fullmatch(verdict, record.verdict), record.reason
    assert re.search(words, first_failure(record)), first_failure(record)
    assert record.trust == "python"
    assert record.isolation.startswith("landlock-")


@pytest.fixture(scope="module")
def unconfined() -> Iterator[None]:
    """From here on workers have no sandbox: the last tests of this file share a judge and hosts that say so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "DEVICES", frozenset())
        test._resources.cache_clear()  # which keeps a host
        yield
    test._resources.cache_clear()


@pytest.mark.usefixtures("unconfined")
@pytest.mark.parametrize(
    ("name", "verdict", "words"),
    [
        ("kills_its_host", "crashed", "launch: tiny-.*: the worker host was killed by SIGKILL"),
        ("changes_its_library", "wrong", "its library: .* was changed or removed while"),
        ("writes_a_record", "correct", ""),
        ("reads_other_memory", "correct", ""),
        ("opens_sockets", "correct", ""),
        ("follows_a_link", "correct", ""),
        ("looks_for_references", "correct", ""),
    ],
)
def test_without_a_sandbox_they_would(tmp_path: Path, name: str, verdict: str, words: str) -> None:
    settings = project(tmp_path, name)
    (record,) = test.run(settings, "rmsnorm", [name], settings.results / "test" / "rmsnorm")
    assert (record.verdict, record.isolation, record.refused) == (verdict, "process", []), record.reason
    assert not words or re.search(words, first_failure(record)), first_failure(record)
