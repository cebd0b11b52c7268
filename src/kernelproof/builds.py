"""What the build stage made of a variant: the stages after it take the very files that its record names."""

from __future__ import annotations

from pathlib import Path

from kernelproof.config import Config, VariantConfig
from kernelproof.errors import RecordError
from kernelproof.records import BuildRecord, Cubin, FileHash, sha256_file


def altered(file: FileHash | Cubin, root: Path, *, source: bool = False) -> str | None:
    """How a file is no longer the one that the build made, or read as a `source`; None where it is."""
    path = root / file.path
    if not path.is_file():
        return f"{file.path} is gone"
    if sha256_file(path) != file.sha256:
        if source:
            return f"{file.path}, of which or beside which it is made, was changed after the build"
        return f"{file.path} is not the file that the build made (its SHA-256 differs)"
    return None


def library(config: Config, variant: VariantConfig, built: BuildRecord) -> Path | None:
    """A build's library, None for a Python variant. Raises RecordError where bytes are not those that were built."""
    if built.library is None and variant.abi != "python":
        raise RecordError("its build record names no library", subject=variant.key)
    for file in [built.library] if built.library else built.sources:
        if why := altered(file, config.root, source=not built.library):
            raise RecordError(f"{why}; build it again: {config.command('build', variant)}", subject=variant.key)
    return (config.root / built.library.path).resolve() if built.library else None
