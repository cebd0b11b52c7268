"""`kernelproof init OPERATOR`: a small folder with everything that a new operator needs, ready to run.

The files are those of `skeleton/` with the operator's name and the folder put in: an operator module (GELU, as a worked
example), a binding, a CPU and a CUDA kernel, and a configuration.
"""

from __future__ import annotations

import keyword
import os
import re
import shlex
from pathlib import Path
from string import Template

import yaml

from kernelproof.errors import KernelproofError
from kernelproof.records import atomic_write

SKELETON = Path(__file__).resolve().parent / "skeleton"
FILES = ("op.py", "launch.h", "binding.cc", "kernel.cc", "kernel.cu", "config.yaml")


def run(operator_name: str, into: Path) -> list[Path]:
    """Write the folder; gives back the files.

    `into` must lie below the current folder, because a configuration's paths start there. Raises KernelproofError for a
    name or folder that cannot be used, and when one of the files exists.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", operator_name):
        raise KernelproofError(
            "not a name for an operator: lower-case letters, digits and _, a letter first",
            subject=operator_name,
            hint=f"for example {_suggestion(operator_name)}",
        )
    if not isinstance(yaml.safe_load(operator_name), str):
        raise KernelproofError(
            "no name for an operator: YAML does not read it as text", subject=operator_name, hint=f"my_{operator_name}"
        )
    if keyword.iskeyword(operator_name):
        raise KernelproofError(
            "no name for an operator: it is a word of Python's", subject=operator_name, hint=f"my_{operator_name}"
        )
    folder = Path(os.path.relpath(into))
    if ".." in folder.parts:
        raise KernelproofError(
            "the folder lies outside the current one",
            subject=str(into),
            hint="name one below it, or change to the repository that is to hold it",
        )
    if taken := [folder / name for name in FILES if (folder / name).exists()]:
        raise KernelproofError(
            "the file exists and is left as it is", subject=str(taken[0]), hint="choose another folder with --into"
        )
    names = {"operator": operator_name, "folder": folder.as_posix()}
    names["config"] = shlex.quote(f"{folder.as_posix()}/config.yaml")  # in commands
    written = []
    for name in FILES:
        text = Template((SKELETON / name).read_text(encoding="utf-8"))
        atomic_write(folder / name, text.substitute(names))
        written.append(folder / name)
    return written


def _suggestion(name: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    return words if words[:1].isalpha() else f"my_{words}".rstrip("_")
