"""What is packed: all that the run gathered and the records name, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from kernelproof.consistency.inside import (
    CONFIG,
    FACTS,
    MACHINE_CODE,
    RECORD,
    RESOLVED,
    Bundle,
    Contradiction,
    alike,
    judged_by,
    made_of,
    packed_source,
    quoted,
)
from kernelproof.verify import MANIFEST, SUMS

MEASURED = ("samples/", "junit/", "launches/", "profile/")  # members of the class `measurement`, beside records
OF_RECORDS = (*MEASURED, "sass/")  # members that are there because a record names them; cubins are looked at apart
# What the packing makes; every other member was gathered before.
MADE = frozenset({MANIFEST, SUMS, FACTS, MACHINE_CODE, "report.html", "summary.md", "REPLAY.md"})


def gathered(bundle: Bundle) -> Iterator[Contradiction]:
    """What the run gathered is packed as it was, or listed among what was dropped; and nothing else is packed."""
    facts = bundle.documents.get(FACTS)
    if facts is None:
        return
    for name in sorted(bundle.sha256.keys() - {member["path"] for member in facts["members"]} - MADE):
        yield Contradiction(name, f"it is packed, and is not among the members of {FACTS}")
    there = {entry["path"]: entry["sha256"] for entry in bundle.manifest["dropped"]} | dict(bundle.sha256)
    for member in facts["members"]:
        if member["path"] not in there:
            yield Contradiction(
                member["path"], f"it is a member in {FACTS}, and neither packed nor among what was dropped"
            )
        elif there[member["path"]] != member["sha256"]:
            says = f"SHA-256 {quoted(there[member['path']])[1:-1]}"
            yield Contradiction(member["path"], f"{says}, in {FACTS} {quoted(member['sha256'])}")


def classes(bundle: Bundle) -> Iterator[Contradiction]:
    """What has to be the same on a replay, and what is measured, is called so."""
    for row in bundle.manifest["members"]:
        stage = place["stage"] if (place := RECORD.fullmatch(row["path"])) else ""
        if row["path"] in (CONFIG, MACHINE_CODE) or row["path"].startswith("source/"):
            expected = "identity"
        elif stage in ("test", "bench", "profile") and not row["path"].startswith("records/bench/ceilings/"):
            expected = "measurement"
        else:
            expected = "measurement" if row["path"].startswith(MEASURED) else "context"
        if row["class"] != expected:
            yield Contradiction(row["path"], f"its class is {quoted(row['class'])}, and what it is is {expected!r}")


def left_out(bundle: Bundle) -> Iterator[Contradiction]:
    """What a record names is packed, or listed among what was dropped; what belongs to records is named by one."""
    dropped = {entry["path"]: entry["sha256"] for entry in bundle.manifest["dropped"]}
    hashes, named = {*bundle.sha256.values(), *dropped.values()}, set()
    for name, (stage, subject) in bundle.records.items():
        for member, sha256 in _named(stage, subject, bundle.documents[name]):
            named.add(member)
            # A source that is a link is packed where it points to.
            if member not in bundle.sha256 and member not in dropped and (sha256 is None or sha256 not in hashes):
                says = f"it names {quoted(member)}, which is neither packed nor among what was dropped"
                if not member.startswith("sass/"):  # there is none where nothing was disassembled
                    yield Contradiction(name, says)
    for name in sorted(bundle.sha256):
        if name.startswith(OF_RECORDS) and name not in named:
            yield Contradiction(name, "no record names it")


def _named(stage: str, subject: str, record: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """The members that a record names, as in members.py; a source with its hash."""
    if stage in ("build", "test") and record.get("log"):
        yield f"logs/{stage}/{subject}.{stage}.log", None
    if stage == "build":
        for cubin in record["cubins"]:
            yield f"cubins/{subject}/{cubin['arch']}.cubin", None
            yield f"sass/{subject}/{cubin['arch']}.sass", None
        for file in made_of(record):
            if not file["path"].startswith(("<", "/", "..")):  # a toolkit's, or outside of the repository
                yield packed_source(file), file["sha256"]
    elif stage == "test":
        for file in judged_by(record):
            yield packed_source(file), file["sha256"]
        if record.get("junit"):
            yield f"junit/{subject}.xml", None
        if (record.get("sealing") or {}).get("launches"):
            yield f"launches/{subject}.json", None
    elif stage == "bench" and record.get("samples"):
        yield f"samples/{subject}.csv.gz", None
    elif stage == "profile":
        if record.get("report"):
            yield f"profile/{subject}.ncu-rep", None
        if record.get("csv"):
            yield f"profile/{subject}.csv", None


def settled(bundle: Bundle) -> Iterator[Contradiction]:
    """The configuration is there, and the one to run again with is the one to read."""
    if CONFIG not in bundle.sha256:
        yield Contradiction(CONFIG, "it is not packed")
    elif bundle.sha256.get(RESOLVED, bundle.sha256[CONFIG]) != bundle.sha256[CONFIG]:
        (again,) = (row for row in bundle.manifest["members"] if row["path"] == RESOLVED)
        if again.get("source") == PurePosixPath(RESOLVED).name:  # it was what this run was made with: another's
            return
        for where, ours, theirs in _unlike(bundle.documents[CONFIG], bundle.documents[RESOLVED]):
            yield Contradiction(CONFIG, f"{quoted(where)} is {quoted(ours)}, in {RESOLVED} {quoted(theirs)}")
            return


def _unlike(said: object, there: object, where: str = "") -> Iterator[tuple[str, object, object]]:
    """Where two documents differ by more than private words that the first is without: the place and both values."""
    if isinstance(said, dict) and isinstance(there, dict) and len(said) == len(there):
        for (key, value), (other, its) in zip(said.items(), there.items(), strict=True):
            yield from _unlike(key, other, f"{where}.{key}".lstrip("."))
            yield from _unlike(value, its, f"{where}.{key}".lstrip("."))
    elif isinstance(said, list) and isinstance(there, list) and len(said) == len(there):
        for index, (value, its) in enumerate(zip(said, there, strict=True)):
            yield from _unlike(value, its, f"{where}[{index}]")
    elif said != there and not (isinstance(said, str) and isinstance(there, str) and alike(said, there)):
        yield where, said, there
