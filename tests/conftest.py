"""Options that the whole test suite shares."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-gold", action="store_true", help="write tests/gold anew instead of comparing with it")
