"""From the museum's list to records: pieces as variants of a project, built and tested by the real stages."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kernelproof import build, config, records
from kernelproof.config import Config
from kernelproof.errors import ConfigError, RecordError
from kernelproof.processes import python_path
from kernelproof.records import BenchRecord, BuildRecord, CaseResult, TestRecord

MUSEUM = Path(__file__).resolve().parent
REPOSITORY = MUSEUM.parents[1]
LIST = MUSEUM / "pieces.yaml"
CONFIGURATIONS = {"cpu": MUSEUM / "config.yaml", "cuda": MUSEUM / "cuda.yaml"}
TWIN = {"cpu": "good", "cuda": "good_cuda"}  # the right kernel whose settings a piece has
KEYS = {"class", "check", "says", "origin", "pending", "abi", "device", "calls"}
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
CHECKS_OF_TOOLS = {f"sanitizer/{tool}" for tool in SANITIZERS}
WALL_AGREES = 1.25  # the host's clock may tell so many times what the GPU's events tell, or so many times less
TIME_LIMIT_S = 600


@dataclass(frozen=True)
class Piece:
    """One planted defect. `check` holds the checks of which one must catch it.

    `abi` is `tvm_ffi` or `python`; `device` is `cpu` or `cuda`, as the suffix of the source says.
    """

    operator: str
    name: str
    kind: str  # a key of the list's `classes`
    check: list[str]
    says: str = ""
    origin: str = ""
    pending: str = ""
    abi: str = "tvm_ffi"
    device: str = "cpu"
    calls: Sequence[str] = ()  # libraries whose kernels it declares

    @property
    def key(self) -> str:
        """`operator/name`."""
        return f"{self.operator}/{self.name}"

    @property
    def source(self) -> Path:
        """The file with the defect."""
        return MUSEUM / self.operator / (self.name + self.suffix)

    @property
    def suffix(self) -> str:
        """`.py`, `.cu` or `.cc`."""
        return ".py" if self.abi == "python" else {"cuda": ".cu", "cpu": ".cc"}[self.device]

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
    suffix = "cuda" if (MUSEUM / operator / f"{name}.cu").is_file() else "cpu"
    return Piece(
        operator, name, facts["class"], **{"device": suffix} | {k: v for k, v in facts.items() if k != "class"}
    )


def twins() -> dict[str, str]:
    """The honest twins, a baseline among them, `operator/name`, and the device of each."""
    found = {}
    for device, path in CONFIGURATIONS.items():
        operators = yaml.safe_load(path.read_text(encoding="utf-8"))["operators"]
        for operator, facts in operators.items():
            honest = (*facts["variants"], *facts.get("baselines", {}))
            found |= {f"{operator}/{name}": device for name in honest}
    return found


def workshop(
    folder: Path,
    pieces: Iterable[Piece],
    device: str = "cpu",
    archs: list[str] | None = None,
    seeds: list[int] | None = None,
) -> Config:
    """A project in `folder` with the honest twins of a device and those of the pieces that run there.

    Sources are copied from here. `archs` replaces the configuration's, for a compiler without a GPU; `seeds` those of
    its cases, of which there is a fresh one in any run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in (("csrc", REPOSITORY / "csrc"), ("museum", MUSEUM)):
        shutil.copytree(source, folder / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    data = yaml.safe_load(CONFIGURATIONS[device].read_text(encoding="utf-8"))
    if archs:
        data["archs"] = archs
    if seeds:
        data["test"]["seeds"] = seeds
    for piece in (piece for piece in pieces if piece.device == device):
        variants = data["operators"][piece.operator]["variants"]
        variants[piece.name] = dict(variants[TWIN[device]], idea=piece.wrong)
        if piece.abi == "python":
            for built in ("sources", "flags"):
                variants[piece.name].pop(built, None)
            entry = f"museum.{piece.operator}.{piece.name}:run"
            variants[piece.name] |= {"abi": "python", "passing": "return", "entry": entry}
            if piece.calls:
                variants[piece.name]["calls"] = list(piece.calls)
        else:
            variants[piece.name]["sources"] = [f"museum/{piece.operator}/{piece.source.name}"]
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return config.load(path, root=folder)


def make(project: Config, workers: int) -> dict[str, BuildRecord]:
    """Build every variant of the project, several at a time; a binding is compiled once an operator."""

    def one(key: str) -> BuildRecord:
        operator, name = key.split("/")
        return build.run(project, operator, name, project.record("build", operator, name), cores=1)

    keys = [variant.key for variant in project.variants()]
    first = [next(key for key in keys if key.startswith(f"{operator}/")) for operator in project.operators]
    with ThreadPoolExecutor(workers) as pool:
        made = dict(zip(first, pool.map(one, first), strict=True))
        rest = [key for key in keys if key not in made]
        return made | dict(zip(rest, pool.map(one, rest), strict=True))


TEST = """
import dataclasses, sys
from pathlib import Path
from kernelproof import config, test
root = Path(sys.argv[1])
loaded = config.load(root / "config.yaml", root=root)
troubles = 0
for argument in sys.argv[2:]:
    key, _, tools = argument.partition(":")
    operator, name = key.split("/")
    settings = loaded
    if hasattr(loaded.test, "sanitizer"):
        chosen = dataclasses.replace(loaded.test.sanitizer, tools=list(filter(None, tools.split(","))))
        settings = dataclasses.replace(loaded, test=dataclasses.replace(loaded.test, sanitizer=chosen))
    try:
        test.run(settings, operator, [name], settings.results / "test" / operator)
    except Exception as error:
        print(f"{key}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        troubles += 1
sys.exit(1 if troubles else 0)
"""


def judge(
    project: Config, workers: int, pieces: Iterable[Piece] = (), troubles: list[str] | None = None
) -> dict[str, TestRecord]:
    """Test every variant of the project, dealt out to so many processes.

    A sanitizer starts the interpreter anew, which takes seconds: on a GPU pieces are seen by the tools that must catch
    them, and the twins by all.

    What is no fault of a variant raises RuntimeError, once all hands are played. With a list of `troubles` it is added
    to that instead, and variants without a record are left out.
    """
    keys = sorted((variant.key for variant in project.variants()), key=lambda key: key.partition("/"))
    tools = {piece.key: [c.removeprefix("sanitizer/") for c in piece.check if c in CHECKS_OF_TOOLS] for piece in pieces}
    arguments = [f"{key}:{','.join(tools.get(key, SANITIZERS))}" for key in keys]
    with ThreadPoolExecutor(workers) as pool:
        hands = [hand for place in range(workers) if (hand := arguments[place::workers])]
        said = [text for text in pool.map(lambda hand: _python(TEST, project.root, *hand), hands) if text]
    if said and troubles is None:
        raise RuntimeError("\n\n".join(said))
    if troubles is not None:
        troubles += said
    found = {}
    for key in keys:
        operator, name = key.split("/")
        with contextlib.suppress(*([] if troubles is None else [RecordError])):
            found[key] = records.read(project.record("test", operator, name), TestRecord)
    return found


BENCH = """
import sys
from pathlib import Path
from kernelproof import bench, config
root = Path(sys.argv[1])
settings = config.load(root / "config.yaml", root=root)
bench.run(settings, sys.argv[2], sys.argv[3], settings.record("bench", f"{sys.argv[2]}-{sys.argv[3]}"))
"""


def time(
    project: Config, pieces: Iterable[Piece], device: str = "cpu", troubles: list[str] | None = None
) -> dict[str, BenchRecord]:
    """The bench stage on what the tests found right, for every operator with a piece that only it can catch.

    It judges the results of the timed calls. Troubles as those of `judge`.
    """
    found = {}
    wanted = {p.operator for p in pieces if p.device == device and any(c.startswith("bench/") for c in p.check)}
    for operator in sorted(wanted):
        if said := _python(BENCH, project.root, operator, device):
            if troubles is None:
                raise RuntimeError(said)
            troubles.append(said)
        else:
            found[operator] = records.read(project.record("bench", f"{operator}-{device}"), BenchRecord)
    return found


def _python(program: str, root: Path, *arguments: str) -> str:
    """Run a program; what it said if it failed or took too long, else nothing."""
    command = [sys.executable, "-c", program, str(root.resolve()), *arguments]
    # Several at a time: torch's threads would only wait for each other.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path()}
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{' '.join(arguments)} took more than {TIME_LIMIT_S} s"
    if done.returncode == 0:
        return ""
    return f"{' '.join(arguments)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"


# --- what caught it ---------------------------------------------------------------------------------------------------


def caught_by(record: TestRecord, timed: BenchRecord | None = None) -> dict[str, str]:
    """Every check that failed, `rung/criterion`, with its words; `bench/…` for what the bench stage found."""
    found: dict[str, str] = {}
    for case in record.cases:
        for failure in case.failures:
            found.setdefault(f"{_rung_of(case)}/{failure.criterion}", failure.message)
    for run in record.sanitizer.runs if record.sanitizer else []:
        for failure in run.failures:
            found.setdefault(f"sanitizer/{failure.criterion}", failure.message)
    for rung in record.rungs:
        if rung.status == "failed" and not any(check.startswith(f"{rung.name}/") for check in found):
            broken = [f"{p.name} ({p.claim}): {p.message}" for p in record.properties if p.status == "failed"]
            words = "; ".join(broken) if rung.name == "properties" and broken else rung.message or ""
            for criterion in _criteria(record, rung.name, words):
                found[f"{rung.name}/{criterion}"] = words
    if timed is not None and timed.operator == record.operator:
        for dropped in timed.discarded:
            tried = not dropped["reason"].startswith("not tried")
            if dropped.get("contender") == record.variant and dropped.get("what") == "contender" and tried:
                criterion = dropped.get("check") or _bench_criterion(dropped["reason"])
                found[f"bench/{criterion}"] = dropped["reason"]
        found |= _by_the_wall(record.variant, timed)
    return found


def by_own_class(piece: Piece, found: dict[str, str]) -> bool:
    """Whether a check that must catch the piece is among those that failed.

    A check without a slash is a rung with any criterion, or a criterion on any rung.
    """
    return any(check in (name, *name.split("/")) for check in piece.check for name in found)


def _rung_of(case: CaseResult) -> str:
    return "sanity" if case.shape.startswith("sanity_") else "correctness"


def _criteria(record: TestRecord, rung: str, message: str) -> list[str]:
    """What a rung without results of its own failed on."""
    if "no answer within" in message:
        return ["hang"]
    if record.verdict == "crashed":
        return ["crash"]
    if "was changed or removed while" in message:
        return ["library"]
    if message.startswith("all cases together"):
        return ["suite"]
    found = ["bits" if rung == "determinism" else "error"]
    # Rungs above correctness judge calls too, and name the criterion of each: `late: …`.
    return found + [word for word in ("late", "library") if re.search(rf"\b{word}\b: ", message)]


def _by_the_wall(variant: str, timed: BenchRecord) -> dict[str, str]:
    """`bench/wall` where the host's clock, seen from outside, tells another time of a call than the GPU's events."""
    times = {(row.case, row.method): row.median_us for row in timed.times if row.contender == variant}
    for (case, method), wall_us in times.items():
        events_us = times.get((case, "graph_slope"), 0.0) if method == "wall_slope" else 0.0
        if events_us > 0 and not 1 / WALL_AGREES < wall_us / events_us < WALL_AGREES:
            return {"bench/wall": f"{case}: {wall_us:.4g} µs a call by the host's clock, {events_us:.4g} by events"}
    return {}


def _bench_criterion(reason: str) -> str:
    """From why a contender was dropped to what found that out."""
    what = reason.partition(":")[0]
    return "outputs" if what.startswith("wrong") else what.replace(" ", "_")
