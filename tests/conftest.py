"""Options and surroundings that the whole test suite shares."""

import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelproof import privacy

# A shell that starts a command in the background has it ignore SIGINT, and so do its children: some of ours are to be
# interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Of two processes each takes the next file: the longest come first, so that none is left over at the end.
LONGEST = [
    f"test_{name}.py"
    for name in "museum workflow bench build mutants ladder scaffold traces sanitizer profile escapes repro".split()
]
DOOR, ROOM = Path(__file__).with_name("gold"), Path(__file__)  # whatever is always there can be locked


@contextlib.contextmanager
def locked(path: Path, how: int) -> Iterator[None]:
    """Hold a lock that the other processes of the suite see (fcntl.LOCK_EX, LOCK_SH); waits for it."""
    held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, how)
        yield
    finally:
        os.close(held)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test that is marked `alone` waits until no other runs, and meanwhile none begins."""
    with contextlib.ExitStack() as room:
        with locked(DOOR, fcntl.LOCK_EX):
            room.enter_context(locked(ROOM, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH))
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-gold", action="store_true", help="write tests/gold anew instead of comparing with it")


@pytest.fixture(scope="session", autouse=True)
def one_thread_beside_others() -> None:
    """Two processes with a thread a core each wait for one another: a test of 5 s took 53."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        import torch

        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_imports(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A project's modules and folders are the test's alone: `kernels` of the next one is another."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before, folder = set(sys.modules), str(tmp_path_factory.getbasetemp())
    yield
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(folder):
            del sys.modules[name]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Somebody's home folder: that of a container's user is one that every machine has."""
    monkeypatch.setenv("HOME", "/home/somebody")
    privacy._own.cache_clear()
    yield "/home/somebody"
    privacy._own.cache_clear()
