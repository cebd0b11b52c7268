"""Which settings of the configuration a stage depends on: told once, for the workflow, the records and `verify`.

A record carries the fingerprint of each of them, by the key that `--set` takes (`test.trials`). A run makes again what
was made with other values; in a bundle they are held against the configuration that is packed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelproof.config import Config, VariantConfig

# Of a variant; its idea and its claim (`gate`) are only shown.
BUILT = ("device", "abi", "sources", "rungs", "macros", "flags", "archs", "budget")
CALLED = ("entry", "dtypes", "precision", "passing", "options", "limits", "deterministic", "requires", "calls")
UNFELT = ("gpu_wait_s",)  # settings of a stage that change no result
SECTIONS = ("project", "archs", "operators", "test", "bench", "profile", "gate", "bundle")  # all that is configured


def of(config: Config, stage: str, subject: str) -> dict[str, str]:
    """Key → fingerprint of all that the record `results/<stage>/<subject>.json` depends on."""
    return {key: fingerprint(config, key) for key in _keys(config, stage, subject)}


def changed(made: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The keys whose values are not those that a record was made with; none where it does not say, as older ones."""
    return sorted(key for key in made.keys() | now.keys() if made.get(key) != now.get(key)) if made else []


def fingerprint(config: Config | Mapping[str, Any], key: str) -> str:
    """16 hexadecimal digits over a value of the configuration, or of its JSON."""
    return digest(text(value(config, key)))


def digest(value_text: str) -> str:
    """The fingerprint of a value whose `text` is known."""
    return hashlib.sha256(value_text.encode()).hexdigest()[:16]


def text(found: Any) -> str:
    """A value of a configuration as JSON: one text whatever the order of its keys, and of 600 and 600.0."""
    return re.sub(r"(?<=\d)\.0(?=[,\]} ]|$)", "", json.dumps(found, sort_keys=True, default=dataclasses.asdict))


def value(config: Config | Mapping[str, Any], key: str) -> Any:
    """What a configuration, or its JSON, has under a dotted key; None where that is nothing."""
    found: Any = config
    for name in key.split("."):
        if isinstance(found, dict):
            found = found.get(name)
        else:
            found = getattr(found, name, None) if dataclasses.is_dataclass(found) else None
    return found


def _keys(config: Config, stage: str, subject: str) -> Iterator[str]:
    if stage == "manifest":
        yield from SECTIONS
    elif subject == "ceilings/cpu":
        yield "bench.cpu_threads"
    elif stage in ("build", "test", "bench", "profile") and not subject.startswith("ceilings/"):
        yield from _of_operator(config, stage, *subject.split("-" if stage == "bench" else "/"))


def _of_operator(config: Config, stage: str, name: str, subject: str) -> Iterator[str]:
    """subject: a variant or baseline; of a benchmark the device."""
    operator, here = config.operator(name), f"operators.{name}"
    variants = operator.contenders(subject) if stage == "bench" else [operator.variant(subject)]
    yield from ("archs", f"{here}.binding", f"{here}.include")
    yield from _of_variants(variants, BUILT)
    yield from _of_variants((operator.variant(rung) for each in variants for rung in each.rungs), BUILT)
    yield from _of_variants((each for each in variants if each.abi == "python"), ["entry"])  # whose file that is
    if stage == "build":
        return
    yield f"{here}.module"
    yield from _of_variants(variants, CALLED)
    if stage == "profile":
        yield from (f"{here}.profile.shape", f"{here}.profile.options", f"{here}.shapes.{operator.profile.shape}")
    else:
        yield f"{here}.shapes"
        yield from _within(config, f"{here}.{stage}")
    yield from _within(config, stage)
    if stage == "test":
        yield from (f"{here}.profile.shape", "bench.cpu_threads")
    elif stage == "bench":  # whose results are judged for values of the test's families
        yield from (
            f"{here}.test.families",
            f"{here}.test.options",
            "test.tolerance",
            "gate.max_ratio",
            "gate.same_band",
        )


def _of_variants(variants: Iterable[VariantConfig], names: Iterable[str]) -> Iterator[str]:
    for each in variants:
        yield from (f"operators.{each.operator}.{each.role}s.{each.name}.{name}" for name in names)


def _within(config: Config, key: str) -> Iterator[str]:
    names = (field.name for field in dataclasses.fields(value(config, key)))
    yield from (f"{key}.{name}" for name in names if name not in UNFELT)
