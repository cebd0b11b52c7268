"""From the museum's list to records: pieces as variants of a project, built and tested by the real stages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kernelproof import build, config, records
from kernelproof.config import Config
from kernelproof.errors import ConfigError
from kernelproof.records import BenchRecord, BuildRecord, CaseResult, TestRecord

MUSEUM = Path(__file__).resolve().parent
REPOSITORY = MUSEUM.parents[1]
LIST = MUSEUM / "pieces.yaml"
TWINS = ("good", "good_online", "good_python")  # right kernels, which must be found right
KEYS = {"class", "check", "says", "origin", "pending", "abi"}
TIME_LIMIT_S = 600


@dataclass(frozen=True)
class Piece:
    """One planted defect. `check` holds the checks of which one must catch it; `abi` is `tvm_ffi` or `python`."""

    operator: str
    name: str
    kind: str  # a key of the list's `classes`
    check: list[str]
    says: str = ""
    origin: str = ""
    pending: str = ""
    abi: str = "tvm_ffi"

    @property
    def key(self) -> str:
        """`operator/name`."""
        return f"{self.operator}/{self.name}"

    @property
    def source(self) -> Path:
        """The file with the defect."""
        return MUSEUM / self.operator / f"{self.name}{'.py' if self.abi == 'python' else '.cc'}"

    @property
    def wrong(self) -> str:
        """What is wrong, as the source says it first."""
        text = self.source.read_text(encoding="utf-8")
        if self.abi == "python":
            return text.split('"""')[1].strip()
        comment = re.match(r"(?://[^\n]*\n)+", text)
        return " ".join(line.removeprefix("//").strip() for line in comment[0].splitlines()) if comment else ""


@dataclass(frozen=True)
class Catalogue:
    """The whole list."""

    classes: dict[str, str]
    origin: dict[str, str]
    elsewhere: dict[str, str]
    pieces: dict[str, Piece] = field(default_factory=dict)


def catalogue(path: Path = LIST) -> Catalogue:
    """Read the list. Raises ConfigError for an unknown key, class or origin, and for a piece without a check."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = Catalogue(data["classes"], data["origin"], data["elsewhere"])
    for operator, pieces in data["pieces"].items():
        for name, facts in pieces.items():
            piece = _piece(operator, name, facts, found)
            found.pieces[piece.key] = piece
    return found


def _piece(operator: str, name: str, facts: dict[str, Any], within: Catalogue) -> Piece:
    key = f"{operator}/{name}"
    for given, allowed in (
        (set(facts), KEYS),
        ({facts.get("class")}, set(within.classes)),
        ({facts.get("origin")} - {None}, set(within.origin)),
    ):
        if given - allowed:
            unknown = ", ".join(map(str, sorted(given - allowed, key=str)))
            raise ConfigError(f"unknown: {unknown}; allowed: {', '.join(sorted(allowed))}", subject=key)
    if not facts.get("check"):
        raise ConfigError("no check is named that must catch it", subject=key, hint="e.g. check: [sanity/exact]")
    return Piece(operator, name, facts["class"], **{k: v for k, v in facts.items() if k != "class"})


def workshop(folder: Path, pieces: Iterable[Piece]) -> Config:
    """A project in `folder` with the honest twins and these pieces, its sources copied from here."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in (("csrc", REPOSITORY / "csrc"), ("museum", MUSEUM)):
        shutil.copytree(source, folder / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    data = yaml.safe_load((MUSEUM / "config.yaml").read_text(encoding="utf-8"))
    for piece in pieces:
        variants = data["operators"][piece.operator]["variants"]
        variants[piece.name] = dict(variants["good"], idea=piece.wrong)
        if piece.abi == "python":
            del variants[piece.name]["sources"], variants[piece.name]["flags"]
            entry = f"museum.{piece.operator}.{piece.name}:run"
            variants[piece.name] |= {"abi": "python", "passing": "return", "entry": entry}
        else:
            variants[piece.name]["sources"] = [f"museum/{piece.operator}/{piece.name}.cc"]
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return config.load(path, root=folder)


def make(project: Config, workers: int) -> dict[str, BuildRecord]:
    """Build every variant of the project, several at a time; a binding is compiled once an operator."""

    def one(key: str) -> BuildRecord:
        operator, name = key.split("/")
        return build.run(project, operator, name, project.record("build", operator, name), cores=1)

    keys = [variant.key for variant in project.variants()]
    first = [f"{operator}/good" for operator in project.operators]
    with ThreadPoolExecutor(workers) as pool:
        made = dict(zip(first, pool.map(one, first), strict=True))
        rest = [key for key in keys if key not in made]
        return made | dict(zip(rest, pool.map(one, rest), strict=True))


TEST = """
import gc, sys
from pathlib import Path
import pytest, torch
from kernelproof import config, test
gc.freeze()  # what was imported need not be looked through once a variant
root = Path(sys.argv[1])
settings = config.load(root / "config.yaml", root=root)
for operator in settings.operators:
    names = [key.split("/")[1] for key in sys.argv[2:] if key.split("/")[0] == operator]
    test.run(settings, operator, names, settings.results / "test" / operator)
"""


def judge(project: Config, workers: int) -> dict[str, TestRecord]:
    """Test every variant of the project, dealt out to so many processes."""
    variants = list(project.variants())
    with ThreadPoolExecutor(workers) as pool:
        hands = [[variant.key for variant in variants[place::workers]] for place in range(workers)]
        list(pool.map(lambda keys: _python(TEST, project.root, *keys), hands))
    return {v.key: records.read(project.record("test", v.operator, v.name), TestRecord) for v in variants}


BENCH = """
import sys
from pathlib import Path
from kernelproof import bench, config
root = Path(sys.argv[1])
settings = config.load(root / "config.yaml", root=root)
bench.run(settings, sys.argv[2], "cpu", settings.record("bench", sys.argv[2] + "-cpu"))
"""


def time(project: Config, pieces: Iterable[Piece]) -> dict[str, BenchRecord]:
    """The bench stage on what the tests found right, for every operator with a piece that only it can catch.

    It judges the results of the timed calls.
    """
    found = {}
    for operator in sorted(
        {piece.operator for piece in pieces if any(check.startswith("bench/") for check in piece.check)}
    ):
        _python(BENCH, project.root, operator)
        found[operator] = records.read(project.record("bench", f"{operator}-cpu"), BenchRecord)
    return found


def _python(program: str, root: Path, *arguments: str) -> None:
    command = [sys.executable, "-c", program, str(root.resolve()), *arguments]
    # Several at a time: torch's threads would only wait for each other.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")


# --- what caught it ---------------------------------------------------------------------------------------------------


def caught_by(record: TestRecord, timed: BenchRecord | None = None) -> dict[str, str]:
    """Every check that failed, `rung/criterion`, with its words; `bench/outputs`: results wrong when timed.

    Also `bench/library`, kernels that are not its own, and `bench/wall`, times that are not so.
    """
    found: dict[str, str] = {}
    for case in record.cases:
        for failure in case.failures:
            found.setdefault(f"{_rung_of(case)}/{failure.criterion}", failure.message)
    for rung in record.rungs:
        if rung.status == "failed" and not any(check.startswith(f"{rung.name}/") for check in found):
            found[f"{rung.name}/{_criterion(record, rung.name, rung.message or '')}"] = rung.message or ""
    if timed is not None and timed.operator == record.operator:
        for dropped in timed.discarded:
            if dropped.get("contender") == record.variant and dropped.get("check"):
                found[f"bench/{dropped['check']}"] = dropped["reason"]
    return found


def by_own_class(piece: Piece, found: dict[str, str]) -> bool:
    """Whether a check that must catch the piece is among those that failed; a check without criterion is a rung."""
    return any(name == check or name.startswith(f"{check}/") for check in piece.check for name in found)


def _rung_of(case: CaseResult) -> str:
    return "sanity" if case.shape.startswith("sanity_") else "correctness"


def _criterion(record: TestRecord, rung: str, message: str) -> str:
    """What a rung without results of its own failed on."""
    if "no answer within" in message:
        return "hang"
    if record.verdict == "crashed":
        return "crash"
    if "was changed or removed while" in message:
        return "library"
    if message.startswith("all cases together"):
        return "suite"
    return "bits" if rung == "determinism" else "error"
