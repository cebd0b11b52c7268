"""Which of a project's own Python files an operator's module is made of: its own, and what it imports of theirs."""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Iterator
from pathlib import Path


def file_of(module: str, root: Path) -> str | None:
    """The file of an operator's module from the root; None where it is not the project's.

    `module`: a dotted name, or a `.py` path from the root.
    """
    if module.endswith(".py"):
        return module
    found = _found(module, root)
    return os.path.relpath(found, root) if found and not module.startswith("kernelproof.") else None


def files_of(module: str, root: Path) -> list[str]:
    """That file and all that it imports of the project, also by way of others, from the root.

    Names are looked up as Python does: beside a module that is given as a path, and from the root.
    """
    if (first := file_of(module, root)) is None:
        return []
    folders = [(root / first).parent, root] if module.endswith(".py") else [root]
    packages = [_found(name, root) for name in _with_packages(module)] if not module.endswith(".py") else []
    waiting = [root / first, *filter(None, packages)]
    files = {os.path.relpath(path, root) for path in waiting}
    while waiting:
        for name, beside in _imported(waiting.pop()):
            for folder in [beside] if beside else folders:
                path = _found(name, folder)
                if path and (shown := os.path.relpath(path, root)) not in files and not shown.startswith(os.pardir):
                    files.add(shown)
                    waiting.append(path)
    return sorted(files)


def _found(name: str, folder: Path) -> Path | None:
    path = folder.joinpath(*filter(None, name.split(".")))
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


def _imported(file: Path) -> Iterator[tuple[str, Path | None]]:
    """The names that a file may import, and the folder where a relative one begins."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from ((name, None) for name in _with_packages(alias.name))
        elif isinstance(node, ast.ImportFrom):
            beside = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else None
            module = node.module or ""
            for alias in node.names:
                yield from ((name, beside) for name in _with_packages(f"{module}.{alias.name}".lstrip(".")))


def _with_packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
