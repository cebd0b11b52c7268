"""Which tests there are: every variant of the configuration, every rung, every case; a variant's rungs in order."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from kernelproof.errors import KernelproofError
from kernelproof.ladder.climb import COLLECTED, Climb, Resources, Session

SESSION = pytest.StashKey[Session]()
FOLDER = pytest.StashKey["tempfile.TemporaryDirectory[str]"]()
# pytest reads no command-line options from a conftest that is found through --pyargs.
CONFIG_VARIABLE = "KERNELPROOF_CONFIG"
CASES = {
    "test_correctness": "cases",
    "test_properties": "property_cases",
    "test_determinism": "repeated_cases",
}


def session_of(config: pytest.Config) -> Session:
    """The test stage's session, or one made from the configuration in the current folder."""
    given = config.pluginmanager.get_plugin("kernelproof-stage")
    if given is not None:
        return given.session  # type: ignore[no-any-return]
    if SESSION not in config.stash:
        from kernelproof.config import load

        try:
            settings = load(Path(os.environ.get(CONFIG_VARIABLE, "config.yaml")))
        except KernelproofError as error:
            raise pytest.UsageError(str(error)) from None
        config.stash[FOLDER] = tempfile.TemporaryDirectory(prefix="kernelproof-")
        resources = Resources(Path(config.stash[FOLDER].name))
        config.stash[SESSION] = Session(settings, list(settings.variants()), resources)
    return config.stash[SESSION]


def pytest_unconfigure(config: pytest.Config) -> None:
    """End a session that was made here."""
    if SESSION in config.stash:
        config.stash[SESSION].close()
        config.stash[SESSION].resources.close()
        config.stash[FOLDER].cleanup()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`test_load[attention/cpu_flash]`, `test_correctness[attention/cpu_flash-mission-causal-…]`."""
    climbs = session_of(metafunc.config).climbs
    if metafunc.function.__name__ == "test_sanitizer":
        runs: list[tuple[Climb, str | None]] = [(climb, None) for climb in climbs if not climb.sanitizer_tools]
        runs += [(climb, tool) for climb in climbs for tool in climb.sanitizer_tools]
        ids = [f"{climb.variant.key}-{tool}" for climb, tool in runs]
        metafunc.parametrize(("climb", "tool"), runs, ids=ids, indirect=["climb"])
        return
    attribute = CASES.get(metafunc.function.__name__)
    if attribute is None:
        metafunc.parametrize("climb", climbs, ids=[climb.variant.key for climb in climbs], indirect=True)
        return
    # A variant that cannot run here has no cases, but it is not left out: it is skipped, with the reason.
    pairs = [(climb, case) for climb in climbs for case in getattr(climb, attribute) or [None]]
    ids = [f"{climb.variant.key}-{case.id}" if case else climb.variant.key for climb, case in pairs]
    metafunc.parametrize(("climb", "case"), pairs, ids=ids, indirect=["climb"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group by variant; within a variant the order is that of the file. Cases are searched for where that is asked."""
    items[:] = [item for item in items if not item.name.startswith("test_deep[") or _climb_of(item).searches]
    items[:] = [item for item in items if item.callspec.params.get("tool", "") is not None]  # type: ignore[attr-defined]
    order = {climb.variant.key: place for place, climb in enumerate(session_of(config).climbs)}
    items.sort(key=lambda item: order[_climb_of(item).variant.key])


def _climb_of(item: pytest.Item) -> Climb:
    climb: Climb = item.callspec.params["climb"]  # type: ignore[attr-defined]
    return climb


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell each variant which of its cases are asked for: they are run before any of them is judged."""
    for climb in session_of(session.config).climbs:
        climb.selected = {rung: [] for rung in (*COLLECTED, "sanitizer")}
    for item in session.items:
        parameters = item.callspec.params  # type: ignore[attr-defined]
        if tool := parameters.get("tool"):
            parameters["climb"].selected["sanitizer"].append(tool)
        if parameters.get("case"):
            rung = item.originalname.removeprefix("test_")  # type: ignore[attr-defined]
            parameters["climb"].selected[rung].append(parameters["case"].id)


@pytest.fixture
def climb(request: pytest.FixtureRequest) -> Climb:
    """A variant on its way up; its worker ends when the tests go on to another variant."""
    entered: Climb = request.param
    session_of(request.config).enter(entered)
    return entered
