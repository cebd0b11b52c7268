"""`kernelproof init`: the folder is what examples/ holds, and the tutorial works to the letter."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from defects import REPOSITORY

from kernelproof import config, judge, operators, records, scaffold
from kernelproof.config import Precision, Tolerance
from kernelproof.contest.measurement import OTHERS_SHARE
from kernelproof.errors import KernelproofError
from kernelproof.images import Returned
from kernelproof.records import Case

TUTORIAL = REPOSITORY / "docs" / "how-to" / "add-a-kernel.md"


def test_the_example_is_what_init_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = scaffold.run("gelu", Path("examples/gelu"))
    example = REPOSITORY / "examples" / "gelu"
    assert {path.name for path in made} == {p.name for p in example.iterdir() if p.name != "__pycache__"}
    for path in made:
        same = path.read_text() == (example / path.name).read_text()
        assert same, f"{path.name} differs: remove examples/gelu and run `kernelproof init gelu`"


def test_the_folder_is_a_valid_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scaffold.run("swish2", Path("a/b"))
    found = config.load(Path("a/b/config.yaml"))
    assert list(found.operators) == ["swish2"]
    assert found.operators["swish2"].variants["cpu"].sources == ["a/b/kernel.cc"]


def test_what_a_vector_leaves_over_is_more_than_one_element(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is wrong from the second column of a tail on would else be correct."""
    monkeypatch.chdir(tmp_path)
    scaffold.run("swish2", Path("a"))
    shapes = config.load(Path("a/config.yaml")).operators["swish2"].shapes.values()
    operator = operators.load("a/op.py", tmp_path)
    case = Case("swish2", "odd", {"rows": 1, "cols": 1}, {}, "float32")
    exact = [call.case.dims for call in operator.sanity_calls(case, torch.Generator())]
    assert {dims["cols"] % 8 for dims in shapes} >= {1, 3}
    assert {dims["cols"] % 8 for dims in exact} == {5}


def test_exact_calls_are_exact_for_an_erf_that_ends_one_rounding_short_of_one() -> None:
    operator = operators.load("examples/gelu/op.py", REPOSITORY)
    case = Case("gelu", "odd", {"rows": 1, "cols": 1}, {}, "float32")
    for sanity in operator.sanity_calls(case, torch.Generator()):
        x = sanity.call.tensor("x")
        short = torch.erf(x * 0.5**0.5).clamp(-1 + 2**-24, 1 - 2**-24)
        assert isinstance(sanity.reference, operators.Reference)
        assert torch.equal((0.5 * x * (1 + short)).double(), sanity.reference.output), sanity.name


def test_commands_quote_a_folder_with_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scaffold.run("swish2", Path("my kernels"))
    assert "--config 'my kernels/config.yaml' --operator swish2" in Path("my kernels/config.yaml").read_text()
    assert config.load(Path("my kernels/config.yaml")).operators["swish2"].module == "my kernels/op.py"


@pytest.mark.parametrize(
    ("name", "into", "words"),
    [
        ("My-Op", "x", "for example my_op"),
        ("3d", "x", "for example my_3d"),
        ("on", "x", "YAML does not read it as text"),
        ("class", "x", "it is a word of Python's"),
        ("op", "../x", "outside the current one"),
        ("op", ".", "exists and is left as it is"),
    ],
)
def test_what_init_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, into: str, words: str) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("kernel.cu").write_text("mine")
    with pytest.raises(KernelproofError, match=words):
        scaffold.run(name, Path(into))
    assert Path("kernel.cu").read_text() == "mine"
    assert [path.name for path in tmp_path.rglob("*.yaml")] == []


def followed(page: Path, tmp_path: Path, number: int) -> list[str]:
    """What every shell block of a page prints, in order, in an empty folder."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, module in (("kernelproof", "-m kernelproof"), ("python", "")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (commands / name).chmod(0o755)
    folder = tmp_path / "project"
    folder.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{commands}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY / "src"),
        "KERNELPROOF": str(REPOSITORY),
        **{f"GIT_{who}_{what}": "n@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == number
    output = []
    for block in blocks:
        command = ["bash", "-euo", "pipefail", "-c", block]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        output.append(done.stdout)
    return output


def test_the_tutorial_to_the_letter(tmp_path: Path) -> None:
    """Every shell block of the tutorial, in order, in an empty folder."""
    output = followed(TUTORIAL, tmp_path, 8)
    assert re.search(r"\d+ passed", output[3])
    broken = json.loads(output[4][output[4].index("{") :])
    assert broken["verdict"] == "wrong"
    assert broken["reason"].startswith("sanity: ")
    assert re.search("unwritten: .*row 6, column 36", broken["reason"]), broken["reason"]
    assert json.loads((tmp_path / "project/results/test/squash/cpu.json").read_text())["verdict"] == "correct"
    timed = records.read(tmp_path / "project/results/bench/squash-cpu.json", records.BenchRecord)
    if timed.status == records.OK and timed.states["others_share"] <= OTHERS_SHARE:  # else other tests ran
        line = r"^squash/cpu: timed; .* times the fastest correct baseline( \([\w ]+(, [\w ]+)*\))?$"
        assert re.search(line, output[6], re.MULTILINE), output[6]


def test_the_way_for_ones_own_repository_to_the_letter(tmp_path: Path) -> None:
    output = followed(REPOSITORY / "docs" / "how-to" / "own-repository.md", tmp_path, 4)
    assert "squash/cpu" in output[2]
    assert "-dirty-" not in output[2]
    (tarball,) = (tmp_path / "project/reports").glob("*/*.tar.gz")
    with tarfile.open(tarball) as archive:
        packed = {name.partition("/source/")[2] for name in archive.getnames()}
    made = {f"squash/{path.name}" for path in (tmp_path / "project/squash").iterdir() if path.is_file()}
    assert made <= packed  # the header too, which no configuration names
    (report,) = (tmp_path / "project/reports").glob("*/report.html")
    assert f"report   {report.relative_to(tmp_path / 'project')}" in output[2]


@pytest.mark.parametrize("cols", [128, 1024, 8192])
def test_the_bound_of_the_tutorial_accuses_nobody_and_finds_little_faults(cols: int) -> None:
    (text,) = re.findall(r"^```python\n(def reference.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    names = dict(vars(operators))
    exec(text, names)
    precision, tolerance = Precision("float32"), Tolerance(1.0, 1.5, 1 / 16, 1 / 64)

    def failures(x: torch.Tensor, y: torch.Tensor) -> list[str]:
        call = operators.Call({"x": x, "y": y}, ("y",), ("row", "column"))
        case = Case("softmax", "s", {"rows": len(x), "cols": cols}, {}, "float32")
        reference = names["reference"](None, call, precision)
        return [f.criterion for f in judge.judge(case, call, reference, Returned(y), tolerance).failures]

    little = max(1e-5, cols * 2**-24 / 4)  # of what a chain of so many may swallow
    for scale in (1, 4, 8):
        x = scale * torch.randn(64, cols, generator=torch.Generator().manual_seed(cols))
        weights = (x - x.amax(-1, keepdim=True)).exp()
        chain = torch.from_numpy(np.cumsum(weights.numpy(), -1, dtype=np.float32)[:, -1:])
        assert failures(x, x.softmax(-1)) == []
        assert failures(x, weights / chain) == []
        assert "bias" in failures(x, x.softmax(-1) * (1 + little))
        assert "bound" in failures(x, x.bfloat16().float().softmax(-1))
