"""The style that CONTRIBUTING.md asks for, held by the tools. A tool that is not installed skips its test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NATIVE = (
    "csrc",
    "src/kernelproof/selfcheck",
    "src/kernelproof/skeleton",
    "examples",
    "tests/defects",
    "tests/museum",
    "tests/sanitizer",
)

# What `snakemake --lint` says of the workflow and is meant to be so: the beginning of its words, and why.
LINT_ALLOWED = {
    "Environment variable KERNELPROOF_RUN_PID": "the Snakefile sets it for its jobs; nobody else has to",
    "Environment variable PYTHONPATH": "the Snakefile adds src/ to it; nobody else has to",
    "Mixed rules and functions": "common.smk holds four one-line functions that need CONFIG; the rest is workflow.py",
    "Shell command directly uses variable KERNELPROOF": "the command's name is no parameter: it decides no result, and "
    "as one it would make another interpreter's path a reason to run again",
    "Shell command directly uses variable RESOLVED": "the resolved configuration is none either: each rule names "
    "the parts of it that it depends on",
    "Specify a conda environment": "./repro.sh makes one environment from hash-locked files for all rules",
}


def tool(name: str) -> str:
    """The path of a tool, in the environment of these tests first."""
    folders = [Path(sys.executable).parent, *map(Path, os.environ.get("PATH", "").split(os.pathsep))]
    for folder in folders:
        if os.access(folder / name, os.X_OK):
            return str(folder / name)
    pytest.skip(f"{name} is not installed; ./repro.sh selftest installs it")


def said(*command: str, folder: Path = ROOT) -> tuple[int, str]:
    """Exit code of a tool, and what it said."""
    done = subprocess.run(
        command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600, check=False
    )
    return done.returncode, done.stdout


def passes(*command: str) -> None:
    code, text = said(*command)
    assert code == 0, text


def test_no_python_that_is_started_imports_from_the_folder_it_is_in() -> None:
    """`-P`: a user's operator.py or random.py there would stand in for the standard library's."""
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "workflow").rglob("*.smk"), ROOT / "repro.sh"]
    started = re.compile(r""".*(?:["']-m["'], ["']|(?:python"|\}) -m )\w+.*""")
    lines = [(path.name, line) for path in files for line in started.findall(path.read_text())]
    assert len(lines) > 12
    assert [each for each in lines if "-P" not in each[1]] == []


def test_ruff_finds_nothing() -> None:
    passes(tool("ruff"), "check", "--no-cache", ".")


def test_python_is_formatted() -> None:
    passes(tool("ruff"), "format", "--check", "--no-cache", ".")


def test_types_hold() -> None:
    passes(tool("mypy"), "--cache-dir", os.devnull)


def test_kernels_are_formatted() -> None:
    files = [p for folder in NATIVE for p in (ROOT / folder).rglob("*") if p.suffix in {".cc", ".cu", ".h", ".cuh"}]
    assert files
    passes(tool("clang-format"), "--dry-run", "-Werror", *sorted(map(str, files)))


def test_workflow_is_formatted() -> None:
    passes(tool("snakefmt"), "--check", "Snakefile", "workflow")


@pytest.fixture(scope="module")
def lints(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What Snakemake's linter says, seen from a folder of its own: the repository's may be at work."""
    folder = tmp_path_factory.mktemp("lint")
    for name in ("Snakefile", "config.yaml", "src", "workflow", "profiles"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "csrc", folder / "csrc")  # whose files may not lie outside the folder
    code, text = said(tool("snakemake"), "--lint", folder=folder)
    found = re.findall(r"^    \* (.+)$", text, re.MULTILINE)
    assert found or code == 0, text
    return found


def test_snakemake_lint_says_only_what_is_allowed(lints: list[str]) -> None:
    assert not [lint for lint in lints if not lint.startswith(tuple(LINT_ALLOWED))]


def test_nothing_is_allowed_that_is_not_said(lints: list[str]) -> None:
    assert not [words for words in LINT_ALLOWED if not any(lint.startswith(words) for lint in lints)]
