"""Which of a project's Python files a module of its own consists of, of an operator or a callable, with its imports."""

from __future__ import annotations

import ast
import itertools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path


def file_of(module: str, root: Path) -> str | None:
    """The file of an operator's module from the root; None where it is not the project's.

    `module`: a dotted name, or a `.py` path from the root.
    """
    if module.endswith(".py"):
        return os.path.relpath(root / module, root)
    found = _found(module, root)
    return os.path.relpath(found, root) if found and not module.startswith("kernelproof.") else None


def files_of(module: str, root: Path) -> list[str]:
    """That file and all that it imports of the project, also by way of others, from the root.

    Names are looked up as Python does: beside a module that is given as a path, and from the root.
    """
    if (first := file_of(module, root)) is None:
        return []
    if module.endswith(".py"):
        waiting = [root / first]
        folders = [waiting[0].parent, waiting[0].resolve().parent, root]  # of a link, and of what it leads to
    else:
        waiting, folders = [*filter(None, (_found(name, root) for name in _with_packages(module)))], [root]
    files = {os.path.relpath(path, root) for path in waiting}
    while waiting:
        for name, beside in _imported(waiting.pop()):
            for path in itertools.chain(*(_files(name, folder) for folder in ([beside] if beside else folders))):
                if (shown := os.path.relpath(path, root)) not in files and not shown.startswith(os.pardir):
                    files.add(shown)
                    waiting.append(path)
    return sorted(files)


def may_import_more(file: Path) -> bool:
    """Whether a file's text does not say all that it imports: it imports by names that it makes, or runs a text."""
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Name) and node.id in ("__import__", "exec", "eval"):
            return True
        named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(name.partition(".")[0] in ("importlib", "runpy") for name in named):
            return True
    return False


def parsed(source: bytes) -> ast.Module:
    """`ast.parse` without warnings: they are its author's, who reads them where it is run."""
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(source)


def _tree(file: Path) -> ast.Module:
    """Of a file that cannot be read or parsed nothing: who runs it tells that."""
    try:
        return parsed(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _found(name: str, folder: Path) -> Path | None:
    path = folder.joinpath(*filter(None, name.split(".")))
    # A package goes before a module of its name, as Python has it.
    return next((each for each in (path / "__init__.py", path.with_suffix(".py")) if each.is_file()), None)


def _files(name: str, folder: Path) -> list[Path]:
    """The file of a name; of `package.*` all that the package may say in `__all__`."""
    package, _, last = name.rpartition(".")
    if last == "*":
        return sorted(folder.joinpath(*filter(None, package.split("."))).glob("*.py"))
    return [path] if (path := _found(name, folder)) else []


def _imported(file: Path) -> Iterator[tuple[str, Path | None]]:
    """The names that a file may import, and the folder where a relative one begins."""
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from ((name, None) for name in _with_packages(alias.name))
        elif isinstance(node, ast.ImportFrom):
            beside = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else None
            module = node.module or ""
            for alias in node.names:
                name = f"{module}.{alias.name}".lstrip(".")
                yield from ((each, beside) for each in _with_packages(name))


def _with_packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
