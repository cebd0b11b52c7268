"""Does a bundle agree with itself: its records with one another, the manifest, and the files packed beside them?

`kernelproof verify` asks this of members that it has hashed, with the standard library alone. Whoever makes a bundle
can write into it whatever agrees; found here is what was changed in one place and left in another.

Not looked at: pages, REPLAY.md, logs, JUnit XML, what a launch is given, what a profile counted, and the intervals of
times, whose bootstrap the standard library does not have. Those of ratios are never narrower than Student's t, which is
computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from kernelproof.consistency import benchmarks, builds, manifests, packing, profiles, tests
from kernelproof.consistency.inside import (
    CONFIG,
    FACTS,
    MACHINE_CODE,
    MALFORMED,
    RECORD,
    RESOLVED,
    Bundle,
    Contradiction,
    alike,
    quoted,
)
from kernelproof.verify import MANIFEST, strict_json

RAW = ("samples/", "launches/")  # members that the check of the record beside them reads


def wanted(name: str) -> bool:
    """Whether a member's bytes are needed here; of all others the hash is."""
    return name == MANIFEST or name.startswith(RAW) or is_document(name)


def is_document(name: str) -> bool:
    """Whether a member is a record, the configuration or another document of JSON that is looked into."""
    return name in (FACTS, CONFIG, RESOLVED, MACHINE_CODE) or bool(RECORD.fullmatch(name))


def find(sha256: Mapping[str, str], kept: Mapping[str, bytes]) -> list[Contradiction]:
    """Every contradiction, from the SHA-256 of all members and the bytes of those that are wanted; never raises."""
    documents: dict[str, dict[str, Any]] = {}
    found: list[Contradiction] = []
    for name, data in kept.items():
        if wanted(name) and not name.startswith(RAW):
            found += _guarded(name, _parsed, name, data, documents)
    bundle = Bundle(sha256, kept, documents)
    for name, (stage, _) in bundle.records.items():
        for check in CHECKS[stage]:
            found += _guarded(name, check, bundle, name)
    for whole in (*WHOLE, *(OF_A_RUN if bundle.records else ())):
        found += _guarded(MANIFEST, whole, bundle)
    return found


def _guarded(member: str, check: Callable[..., Iterable[Contradiction]], *arguments: object) -> Iterator[Contradiction]:
    try:
        yield from check(*arguments)
    except MALFORMED as error:
        yield Contradiction(member, f"it is not of the form that its schema has ({quoted(error)})")


def _parsed(name: str, data: bytes, documents: dict[str, dict[str, Any]]) -> Iterator[Contradiction]:
    """Read a document; a record of another schema than its path says is as good as none."""
    document = strict_json(data)
    if not isinstance(document, dict):
        raise TypeError(type(document).__name__)
    if place := RECORD.fullmatch(name):
        kind = "ceilings" if place["subject"].startswith("ceilings/") else place["stage"]
        if document["schema"] != f"kernelproof.{kind}/1":
            yield Contradiction(name, f"its schema is {quoted(document['schema'])}, known is 'kernelproof.{kind}/1'")
            return
    documents[name] = document


def _identity(bundle: Bundle, name: str) -> Iterator[Contradiction]:
    """A record lies where its operator and variant, or device, say."""
    stage, subject = bundle.records[name]
    record = bundle.documents[name]
    if subject.startswith("ceilings/"):
        says = f"ceilings/{record['device']}"
    elif stage == "capture":
        says = "capture"
    else:
        says = (
            f"{record['operator']}-{record['device']}" if stage == "bench" else "{operator}/{variant}".format(**record)
        )
    if not alike(says, subject):
        yield Contradiction(
            name, f"it is the record of {quoted(says)}, and lies where that of {quoted(subject)} belongs"
        )


def _state(bundle: Bundle, name: str) -> Iterator[Contradiction]:
    """The manifest says of which state of the repository a record is."""
    stage, subject = bundle.records[name]
    measured = bundle.manifest["measured"]
    said = measured.get(stage) or measured.get(f"{stage} {subject}")
    if said is None:
        yield Contradiction(name, f"{MANIFEST} does not say which state of the repository it measured")
        return
    mine = bundle.documents[name]["provenance"]
    for what in ("commit", "dirty", "diff_sha256"):
        if mine[what] != said[what]:
            yield Contradiction(name, f"{what} is {quoted(mine[what])}, in {MANIFEST} it measured {quoted(said[what])}")


def made_with_others(bundle: Bundle) -> Iterator[Contradiction]:
    """Every record was made with the settings that the configuration has; older ones do not say with which."""
    for name in (*bundle.records, FACTS) if CONFIG in bundle.documents else ():
        for key, made in bundle.documents.get(name, {}).get("settings", {}).items():
            there, said = bundle.fingerprint(key)
            if there not in (None, made):
                yield Contradiction(name, f"it was made with another {quoted(key)[1:-1]} than {CONFIG} has, {said}")


Check = Callable[[Bundle, str], Iterable[Contradiction]]
CHECKS: dict[str, tuple[Check, ...]] = {
    "capture": (_identity, _state),
    "build": (_identity, _state, builds.check),
    "test": (_identity, _state, tests.check),
    "bench": (_identity, _state, benchmarks.check),
    "profile": (_identity, _state, profiles.check),
}
Whole = Callable[[Bundle], Iterable[Contradiction]]
WHOLE: tuple[Whole, ...] = (
    made_with_others,
    manifests.facts,
    manifests.measured,
    manifests.verdicts,
    manifests.overall,
    builds.machine_code,
    builds.cubins,
    packing.gathered,
)
OF_A_RUN: tuple[Whole, ...] = (
    packing.settled,
    manifests.called_for,
    manifests.surroundings,
    manifests.when_made,
    builds.same_machine_code,
    packing.classes,
    packing.left_out,
)
