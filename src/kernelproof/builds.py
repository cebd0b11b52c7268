"""What the build stage made of a variant: the stages after it take the very files that its record names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernelproof import fingerprints
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
            return f"{file.path}, of which it is made, was changed after the build"
        return f"{file.path} is not the file that the build made (its SHA-256 differs)"
    return None


def stale(config: Config, variant: VariantConfig, built: BuildRecord) -> str | None:
    """What of the variant is another than when it was built: of its configuration, or of the files that Python runs."""
    if keys := fingerprints.changed(built.settings, fingerprints.of(config, "build", variant.key)):
        return f"`{keys[0]}` in the configuration, {fingerprints.value(config, keys[0])}, was another at the build"
    files = built.sources if variant.abi == "python" else []
    return next(filter(None, (altered(file, config.root, source=True) for file in files)), None)


def library(config: Config, variant: VariantConfig, built: BuildRecord) -> Path | None:
    """A build's library, None for a Python variant. Raises RecordError where bytes are not those that were built."""
    if built.library is None and variant.abi != "python":
        raise RecordError("its build record names no library", subject=variant.key)
    why = stale(config, variant, built) or (built.library and altered(built.library, config.root))
    if why:
        raise RecordError(f"{why}; build it again: {config.command('build', variant)}", subject=variant.key)
    return (config.root / built.library.path).resolve() if built.library else None


def cubins_for(cubins: Sequence[Cubin], native: Sequence[str]) -> list[Cubin]:
    """Of each source's cubins the one that this GPU runs, as the CUDA runtime chooses it.

    native: the GPU's own architecture, `sm_90a`; with several kinds of GPUs nothing is chosen. A cubin runs on its own
    architecture and on later minor versions of it, one with a suffix on its own alone.
    """
    if len(native) != 1:
        return []
    wanted = _version(native[0])
    best: dict[str, Cubin] = {}
    for cubin in cubins:
        major, minor = _version(cubin.arch)
        suffixed = not cubin.arch[-1].isdigit()
        if (major, minor) != wanted if suffixed else major != wanted[0] or minor > wanted[1]:
            continue
        source = Path(cubin.path).stem.removesuffix(cubin.arch)  # `0-` of `0-sm_90a`; empty where there is one source
        if source not in best or _rank(cubin.arch) > _rank(best[source].arch):
            best[source] = cubin
    return list(best.values())


def _version(arch: str) -> tuple[int, int]:
    """`sm_90a` → (9, 0)."""
    digits = arch.removeprefix("sm_").rstrip("af")
    return int(digits[:-1]), int(digits[-1])


def _rank(arch: str) -> tuple[tuple[int, int], bool]:
    return _version(arch), arch.endswith("a")
