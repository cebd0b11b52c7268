"""Options and surroundings that the whole test suite shares."""

import signal
from collections.abc import Iterator

import pytest

from kernelproof import privacy

# A shell that starts a command in the background has it ignore SIGINT, and so do its children: some of ours are to be
# interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-gold", action="store_true", help="write tests/gold anew instead of comparing with it")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Somebody's home folder: that of a container's user is one that every machine has."""
    monkeypatch.setenv("HOME", "/home/somebody")
    privacy._own.cache_clear()
    yield "/home/somebody"
    privacy._own.cache_clear()
