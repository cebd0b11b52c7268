"""Who may import whom: the walls of docs/explanation/architecture.md, held."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "kernelproof"

GROUND = {"errors", "privacy", "records"}
STAGES = {"capture", "build", "test", "bench", "profile", "manifest", "report", "bundle"}
STAGES |= {"gate", "compare", "history", "derive", "doctor", "scaffold", "run", "mutants"}
# What a stage consists of besides its own file, and shares with nobody.
PARTS = {
    "report": {"views"},
    "mutants": {"mutations"},
    "test": {"ladder"},
    "bench": {"contest", "outside", "selfcheck"},
}
TOP = {"cli", "workflow", "__main__"}
# Rooms of a package, in an order: each may know those before it.
LADDER = ["outcomes", "sealing", "deep", "session", "selection", "standing", "calling", "planning", "collecting"]
LADDER += ["properties", "determinism", "examination", "verdicts", "climb", "conftest", "test_ladder"]
CONSISTENCY = ["inside", "tests", "builds", "profiles", "packing", "samples", "benchmarks", "manifests"]
CONTEST = ["entrants", "measurement", "outputs", "summary"]
ROOMS = {"ladder": LADDER, "contest": CONTEST, "consistency": CONSISTENCY}
NEEDS_TENSORS = {
    "operators",
    "simfp8",
    "judge",
    "causes",
    "findings",
    "edits",
    "judging",  # its process; the supervisor's end of it has no tensors
    "images",
    "loading",
    "memory",
    "ordering",
    "late_inputs",
    "shared_memory",
    "sealed",
    "arguments",
    "moving_inputs",
    "contenders",
    "clock_runner",
    "graph_runner",
    "results",
    "torch_profiler",
    "torch_settings",
    "timing",
    "counters",
    "ceilings",
    "worker",
    "baselines",
    "ladder",
    "bench",
    "contest",
    "skeleton",
    "selfcheck",
}


def top_level(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path, *, only_top: bool = False) -> set[str]:
    """Every module that a file imports, by its full name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in tree.body if only_top else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "kernelproof" or node.module.removeprefix("kernelproof.") in ROOMS:
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def ours(path: Path) -> set[str]:
    names = {name.split(".")[1] for name in imports(path) if name.startswith("kernelproof.")}
    return names - {top_level(path), "__version__"}


FILES = sorted(PACKAGE.rglob("*.py"))


def stage_of(name: str) -> str | None:
    return name if name in STAGES else next((stage for stage, parts in PARTS.items() if name in parts), None)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    name, imported = top_level(path), ours(path)
    if name in TOP or name == "__init__":
        return
    assert not imported & TOP, f"{name} imports the command line"
    if name in GROUND:
        assert imported <= GROUND
    elif stage := stage_of(name):
        others = {stage_of(other) for other in imported} - {stage, None}
        assert not others, f"stage {stage} imports stage {others}; stages meet through records"
    else:
        assert not {stage_of(other) for other in imported} - {None}, f"{name} imports a stage"


@pytest.mark.parametrize(("package", "order"), ROOMS.items())
def test_rooms_follow_one_another(package: str, order: list[str]) -> None:
    rooms = {path.stem: path for path in (PACKAGE / package).glob("*.py") if path.stem != "__init__"}
    assert rooms.keys() == set(order)
    for place, name in enumerate(order):
        known = {other for other in order if f"kernelproof.{package}.{other}" in imports(rooms[name])}
        assert known <= set(order[:place]), name


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_torch_stays_where_tensors_are(path: Path) -> None:
    if top_level(path) not in NEEDS_TENSORS:
        assert not {name for name in imports(path) if name.split(".")[0] == "torch"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_one_door_for_subprocesses(path: Path) -> None:
    if top_level(path) != "processes":
        assert "subprocess" not in imports(path)


OF_VERIFY = ["verify.py", "visits.py", *(f"consistency/{path.name}" for path in (PACKAGE / "consistency").glob("*.py"))]


@pytest.mark.parametrize("name", OF_VERIFY)
def test_verify_needs_only_the_standard_library(name: str) -> None:
    import sys

    foreign = {name.split(".")[0] for name in imports(PACKAGE / name)} - set(sys.stdlib_module_names)
    assert not foreign - {"kernelproof"}
    assert ours(PACKAGE / name) <= {"verify", "consistency", "fingerprints", "visits"}
    runs = imports(PACKAGE / "fingerprints.py", only_top=True)  # and not what only a type checker looks at
    assert runs <= set(sys.stdlib_module_names) | {"collections.abc"}


def test_verify_runs_as_a_single_file() -> None:
    import sys

    assert not {n.split(".")[0] for n in imports(PACKAGE / "verify.py", only_top=True)} - set(sys.stdlib_module_names)
