"""Which tests there are: every variant of the configuration, every rung, every case; a variant's rungs in order."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from kernelproof.errors import KernelproofError
from kernelproof.ladder.climb import Climb, Ladder
from kernelproof.ladder.outcomes import COLLECTED
from kernelproof.ladder.session import Resources, Session

LADDER = pytest.StashKey[Ladder]()
FOLDER = pytest.StashKey["tempfile.TemporaryDirectory[str]"]()
# pytest reads no command-line options from a conftest that is found through --pyargs.
CONFIG_VARIABLE = "KERNELPROOF_CONFIG"
CASES = {
    "test_correctness": "cases",
    "test_properties": "property_cases",
    "test_determinism": "repeated_cases",
}


def ladder_of(config: pytest.Config) -> Ladder:
    """The test stage's ladder, or one made from the configuration in the current folder."""
    given = config.pluginmanager.get_plugin("kernelproof-stage")
    if given is not None:
        return given.ladder  # type: ignore[no-any-return]
    if LADDER not in config.stash:
        from kernelproof.config import load

        try:
            settings = load(Path(os.environ.get(CONFIG_VARIABLE, "config.yaml")))
        except KernelproofError as error:
            raise pytest.UsageError(str(error)) from None
        config.stash[FOLDER] = tempfile.TemporaryDirectory(prefix="kernelproof-")
        resources = Resources(Path(config.stash[FOLDER].name))
        config.stash[LADDER] = Ladder(Session(settings, list(settings.variants()), resources))
    return config.stash[LADDER]


def pytest_unconfigure(config: pytest.Config) -> None:
    """End a ladder that was made here."""
    if LADDER in config.stash:
        config.stash[LADDER].close()
        config.stash[LADDER].session.resources.close()
        config.stash[FOLDER].cleanup()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`test_load[attention/cpu_flash]`, `test_correctness[attention/cpu_flash-mission-causal-…]`."""
    climbs = ladder_of(metafunc.config).climbs
    if metafunc.function.__name__ == "test_sanitizer":
        runs: list[tuple[Climb, str | None]] = [
            (climb, None) for climb in climbs if not climb.selection.sanitizer_tools
        ]
        runs += [(climb, tool) for climb in climbs for tool in climb.selection.sanitizer_tools]
        ids = [f"{climb.variant.key}-{tool}" for climb, tool in runs]
        metafunc.parametrize(("climb", "tool"), runs, ids=ids, indirect=["climb"])
        return
    attribute = CASES.get(metafunc.function.__name__)
    if attribute is None:
        metafunc.parametrize("climb", climbs, ids=[climb.variant.key for climb in climbs], indirect=True)
        return
    # A variant that cannot run here has no cases, but it is not left out: it is skipped, with the reason.
    pairs = [(climb, case) for climb in climbs for case in getattr(climb.selection, attribute) or [None]]
    ids = [f"{climb.variant.key}-{case.id}" if case else climb.variant.key for climb, case in pairs]
    metafunc.parametrize(("climb", "case"), pairs, ids=ids, indirect=["climb"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group by variant; within a variant the order is that of the file. What a level leaves out is no test of it."""
    items[:] = [item for item in items if not item.name.startswith("test_deep[") or _climb_of(item).selection.searches]
    if ladder_of(config).session.config.test.level == "quick":
        items[:] = [item for item in items if not item.name.startswith("test_properties[")]
    items[:] = [item for item in items if item.callspec.params.get("tool", "") is not None]  # type: ignore[attr-defined]
    order = {climb.variant.key: place for place, climb in enumerate(ladder_of(config).climbs)}
    items.sort(key=lambda item: order[_climb_of(item).variant.key])


def _climb_of(item: pytest.Item) -> Climb:
    climb: Climb = item.callspec.params["climb"]  # type: ignore[attr-defined]
    return climb


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell each variant which of its cases are asked for: they are run before any of them is judged."""
    for climb in ladder_of(session.config).climbs:
        climb.selection.asked = {rung: [] for rung in (*COLLECTED, "sanitizer")}
    for item in session.items:
        parameters = item.callspec.params  # type: ignore[attr-defined]
        if tool := parameters.get("tool"):
            parameters["climb"].selection.asked["sanitizer"].append(tool)
        if parameters.get("case"):
            rung = item.originalname.removeprefix("test_")  # type: ignore[attr-defined]
            parameters["climb"].selection.asked[rung].append(parameters["case"].id)


@pytest.fixture
def climb(request: pytest.FixtureRequest) -> Climb:
    """A variant on its way up; its worker ends when the tests go on to another variant."""
    entered: Climb = request.param
    ladder_of(request.config).enter(entered)
    return entered
