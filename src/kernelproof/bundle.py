"""Stage `bundle`: the manifest with every member's hash, and the tarball that carries it all.

Packing the same records gives the same bytes, from whatever folder, under whatever umask, time zone or locale: members
are sorted, owned by nobody, as old as the commit, and compressed by one fixed setting. Everything is written under a
temporary name first and renamed when it is whole, so a full disk leaves the previous bundle as it was.

Another release of zlib may compress to other bytes. The bundle's identity is therefore the SHA-256 of its manifest,
which holds the hash of every member, and not that of the tarball.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gzip
import hashlib
import io
import json
import math
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from kernelproof import consistency, members, privacy, verify
from kernelproof.config import Config
from kernelproof.errors import BundleError
from kernelproof.records import ManifestRecord, Member, Record, atomic_write, read, write

SCHEMA = "kernelproof.bundle/1"
MANIFEST, SUMS, REPLAY, RECEIPT = "manifest.yaml", "SHA256SUMS", "REPLAY.md", "bundle.json"
MACHINE_CODE = "machine-code.json"
PAGES = ("report.html", "summary.md")
HARD_MAX_BYTES = 25_000_000  # what GitHub takes as an attachment
LEVEL = 7  # 2 % larger than at 9, in a quarter of the time
TAR_NAME_BYTES = 100  # of a ustar header; a longer path is split into prefix and name
AGAIN = "run again; by hand: kernelproof manifest, then report, then bundle, with the same --config and --folder"
FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass
class BundleRecord(Record):
    """What was packed: the tarball's name, hash and size, and the bundle's identity (the SHA-256 of manifest.yaml)."""

    SCHEMA: ClassVar[str] = "kernelproof.receipt/1"

    tarball: str = ""
    sha256: str = ""
    bytes: int = 0
    manifest_sha256: str = ""
    members: int = 0
    overall: str = ""
    dropped: list[dict[str, Any]] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)  # for which `verify` refuses it


@dataclass(frozen=True)
class Packed:
    """A member with its bytes in hand."""

    member: Member
    data: bytes


def run(config: Config, manifest_path: Path, folder_path: Path) -> BundleRecord:
    """Write manifest.yaml, the tarball and bundle.json to the report's folder.

    Raises BundleError when a member changed since the manifest was made, a record was made with other settings than
    are packed, a page is missing, the bundle would be too large or the disk is full; the folder then holds what it held
    before.
    """
    facts = members.cleaned_facts(config, read(manifest_path, ManifestRecord))
    name = bundle_name(facts)
    packed = _collect(config, facts, folder_path, name)
    dropped: list[dict[str, Any]] = []
    limit = min(config.bundle.max_bytes, HARD_MAX_BYTES)
    theirs = {f"{verdict.operator}/{verdict.variant}" for verdict in facts.verdicts if verdict.role == "baseline"}
    while True:
        manifest = manifest_text(facts, name, packed, dropped, limit)
        files = _with_manifest(packed, manifest)
        tarball = pack(name, files, _mtime(facts))
        if len(tarball) <= limit or not (droppable := _next_to_drop(packed, len(tarball) - limit, theirs)):
            break
        gone = {item.member.path for item in droppable}
        packed = [item for item in packed if item.member.path not in gone]
        dropped += [_dropped(item) for item in droppable]
    if len(tarball) > HARD_MAX_BYTES:
        largest = max(packed, key=lambda item: item.member.bytes).member
        raise BundleError(
            f"{len(tarball)} bytes without all that may be left out; at most {HARD_MAX_BYTES} can be attached",
            subject=name,
            hint=f"fewer cases or processes; the largest member is {largest.path} ({largest.bytes} bytes)",
        )
    receipt = BundleRecord(
        provenance=facts.provenance,
        tarball=f"{name}.tar.gz",
        sha256=hashlib.sha256(tarball).hexdigest(),
        bytes=len(tarball),
        manifest_sha256=hashlib.sha256(manifest).hexdigest(),
        members=len(packed) + 2,
        overall=facts.overall,
        dropped=dropped,
        contradictions=_contradictions(files),
    )
    _deliver(folder_path, receipt, manifest, tarball)
    return receipt


def _contradictions(files: Iterable[tuple[str, bytes]]) -> list[str]:
    """What of the members does not agree, as `verify` will say: stages that were repeated by hand, say."""
    inside = dict(files)
    hashes = {path: hashlib.sha256(data).hexdigest() for path, data in inside.items()}
    found = consistency.find(hashes, {path: data for path, data in inside.items() if consistency.wanted(path)})
    return [f"{one.member}: {one.message}" for one in found]


def bundle_name(facts: ManifestRecord) -> str:
    """`kernelproof-<commit>-<time of the run>`: the run's time, not the packing's."""
    return f"kernelproof-{facts.folder}-{re.sub(r'[^0-9TZ]', '', facts.provenance.utc)}"


# --- what goes in -----------------------------------------------------------------------------------------------------


def _collect(config: Config, facts: ManifestRecord, folder: Path, name: str) -> list[Packed]:
    """Every member with its bytes, held against the hash in the facts."""
    packed, names = [], privacy.noted(config.results)
    for member in facts.members:
        if why := verify.unsafe(member.path):
            subject = member.source or member.path
            raise BundleError(f"{why}, and `verify` refuses such a bundle", subject=subject, hint="rename that file")
        try:
            data = members.content(config.root, member.source or member.path, member.path, names)
        except FileNotFoundError:
            raise BundleError("it is gone since the manifest was made", subject=member.source, hint=AGAIN) from None
        if hashlib.sha256(data).hexdigest() != member.sha256:
            raise BundleError("changed since the manifest was made", subject=member.source, hint=AGAIN)
        packed.append(Packed(member, data))
    packed += [_made(page, _page(config, folder / page), members.CONTEXT) for page in PAGES]
    packed.append(_made(REPLAY, replay_text(facts, name, config.source).encode(), members.CONTEXT))
    packed.append(_made("records/manifest.json", _record_bytes(facts), members.CONTEXT))
    packed.append(_made(MACHINE_CODE, machine_code_text(packed), members.IDENTITY))
    _refuse_other_settings(packed, members.command_of_run(facts, config.source))
    return sorted(packed, key=lambda item: item.member.path)


def _refuse_other_settings(packed: list[Packed], command: str) -> None:
    """Raises BundleError where `verify` would: for a record that was made with other settings than are packed."""
    documents = {p.member.path: json.loads(p.data) for p in packed if consistency.is_document(p.member.path)}
    for found in consistency.made_with_others(consistency.inside.Bundle({}, {}, documents)):
        hint = f"`{command}` makes it again; by hand give every stage the same settings"
        raise BundleError(found.message, subject=found.member, hint=hint)


def _page(config: Config, path: Path) -> bytes:
    """A page's bytes; what is private goes out of the page itself too, so that the folder and the bundle agree."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise BundleError("the page is not there", subject=str(path), hint="run the report stage") from None
    cleaned = members.cleaned_page(config, data)
    if cleaned != data:
        atomic_write(path, cleaned)
    return cleaned


def _made(path: str, data: bytes, member_class: str) -> Packed:
    return Packed(Member(path, hashlib.sha256(data).hexdigest(), len(data), member_class), data)


def machine_code_text(packed: list[Packed]) -> bytes:
    """The normalised machine code's hash by variant and cubin (`sm_90a`, or of several sources `0-sm_90a`, …), from the
    builds' records: equal on every replay.

    The cubins themselves also hold what may differ, such as paths and the order of symbols.
    """
    found: dict[str, dict[str, str]] = {}
    for item in packed:
        if item.member.path.startswith("records/build/"):
            build = json.loads(item.data)
            hashes = {PurePosixPath(cubin["path"]).stem: cubin["sass_sha256"] for cubin in build["cubins"]}
            if hashes:
                found[f"{build['operator']}/{build['variant']}"] = hashes
    return (json.dumps(found, indent=1, sort_keys=True) + "\n").encode()


def _record_bytes(facts: ManifestRecord) -> bytes:
    payload = {"schema": facts.SCHEMA, **dataclasses.asdict(facts)}
    return (json.dumps(payload, indent=1, allow_nan=False) + "\n").encode()


def _next_to_drop(packed: list[Packed], too_much: int, baselines: set[str]) -> list[Packed]:
    """The next members to leave out: of the first kind that there is, the baselines' and the largest until it fits."""

    def rank(item: Packed) -> tuple[bool, int, str]:
        contender = item.member.path.partition("/")[2].rpartition(".")[0]
        return contender not in baselines, -item.member.bytes, item.member.path

    for prefix, suffix, _ in members.DROPPED_FIRST:
        kind = [p for p in packed if p.member.path.startswith(prefix) and p.member.path.endswith(suffix)]
        chosen: list[Packed] = []
        for item in sorted(kind, key=rank):
            if too_much <= 0:
                break
            chosen.append(item)
            too_much -= len(zlib.compress(item.data, LEVEL))
        if chosen:
            return chosen
    return []


def _dropped(item: Packed) -> dict[str, Any]:
    path = item.member.path
    why = next(w for prefix, suffix, w in members.DROPPED_FIRST if path.startswith(prefix) and path.endswith(suffix))
    return {"path": path, "bytes": item.member.bytes, "sha256": item.member.sha256, "why": why}


def _mtime(facts: ManifestRecord) -> int:
    """The commit's time in seconds since 1970; the run's where there is no commit."""
    text = facts.provenance.commit_utc or facts.provenance.utc
    return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp())


def replay_text(facts: ManifestRecord, name: str, configuration: str) -> str:
    """How to check this bundle and run it again."""
    state = facts.provenance
    commit = state.commit or f"none ({state.why_no_commit})"
    dirt = f" with uncommitted changes (difference {state.diff_sha256})" if state.commit and state.dirty else ""
    needed, path, command = "git and a C++ compiler", "", ".venv/bin/kernelproof"
    if not facts.holds_workflow:
        needed += f""", and a clone of kernelproof (version
   {state.kernelproof} made this bundle) in which `./repro.sh` has run. The sources are of a repository that uses it,
   and hold no workflow"""
        command, path = (
            "kernelproof",
            """
       export KERNELPROOF=/path/to/the/clone
       export PATH="$KERNELPROOF/.venv/bin:$PATH\"""",
        )
    return f"""# How to check and replay {name}

Commit: {commit}{dirt}. `source/` holds the files as they were built and measured; records name the commit that each
was made from.

1. Check it, offline and without installing anything. Take `verify.py` from a kernelproof that you trust, not from
   this bundle:

       python verify.py {name}.tar.gz

   It prints the bundle's identity, the SHA-256 of `manifest.yaml`. Compare that with the one you were given.
   `kernelproof verify`, where it is installed, also says whether records, samples and manifest agree with one another.

2. Run it again. On Linux with Python 3.11 or later, {needed}:
{path}
       tar xf {name}.tar.gz
       cd {name}/source
       {members.command_of_run(facts, configuration)}

   The configuration is `{configuration}`. Values that were set on the command line are not in it; they are in
   `{members.RESOLVED}`, which holds everything:

       {members.command_of_run(facts, members.RESOLVED)}

   With an NVIDIA GPU everything runs; without one the CPU variants run, and the CUDA variants are built and analysed.

3. Compare, in the same folder: A is this bundle, and B the new run.

       {command} compare ../../{name}.tar.gz reports/*/kernelproof-*.tar.gz

   It ends with 0 where nothing is worse. Under Correctness no verdict may have changed; under What changed no source,
   macro or flag, and no machine code unless a compiler or, with -march=native, the processor is another. Times say
   something where Surroundings has the same GPU and processor. Members of class `identity` must be equal byte for byte
   (both `manifest.yaml` have their SHA-256); of class `measurement` they are statistics; `context` is information.

`config.json` is the same configuration to read, `records/` what every stage found, `samples/` every timing sample.
"""


# --- the manifest -----------------------------------------------------------------------------------------------------


def manifest_text(
    facts: ManifestRecord, name: str, packed: list[Packed], dropped: list[dict[str, Any]], limit: int
) -> bytes:
    """manifest.yaml: YAML in its JSON subset, so that any JSON parser reads it too; one line a verdict and member."""
    document = {
        "schema": SCHEMA,
        "bundle": name,
        "project": facts.project,
        "overall": facts.overall,
        "provenance": dataclasses.asdict(facts.provenance),
        "measured": {what: dataclasses.asdict(state) for what, state in facts.measured.items()},
        "verdicts": [dataclasses.asdict(verdict) for verdict in facts.verdicts],
        "identical_machine_code": facts.identical_machine_code,
        "missing": facts.missing,
        "tools": facts.tools,
        "limit_bytes": limit,
        "dropped": dropped,
        "members": [
            {"path": m.path, "class": m.member_class, "bytes": m.bytes, "sha256": m.sha256, "source": m.source}
            for m in (item.member for item in packed)
        ],
    }
    return (yaml_json(document) + "\n").encode("utf-8")


def yaml_json(value: Any, indent: int = 0) -> str:
    """JSON that YAML 1.1 reads alike: a container of scalars on one line, others opened up.

    Floats keep a point before their exponent (1.0e-05), without which YAML 1.1 takes them for strings, and characters
    that YAML calls unprintable are escaped.
    """
    pad = " " * (indent + 1)
    if isinstance(value, dict) and any(isinstance(item, dict | list) and item for item in value.values()):
        rows = [f"{pad}{_scalar(str(key))}: {yaml_json(item, indent + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + "\n" + " " * indent + "}"
    if isinstance(value, list) and any(isinstance(item, dict | list) and item for item in value):
        return "[\n" + ",\n".join(pad + yaml_json(item, indent + 1) for item in value) + "\n" + " " * indent + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(str(key))}: {yaml_json(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(yaml_json(item) for item in value) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BundleError(f"{value} has no place in a manifest")
        text = repr(value)
        return re.sub(r"^(-?\d+)e", r"\1.0e", text)
    text = json.dumps(value, ensure_ascii=False)
    return re.sub(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]", lambda m: f"\\u{ord(m[0]):04x}", text)


# --- the archive ------------------------------------------------------------------------------------------------------


def _with_manifest(packed: list[Packed], manifest: bytes) -> list[tuple[str, bytes]]:
    """All members with the manifest and the sums, sorted by name."""
    files = {item.member.path: item.data for item in packed} | {MANIFEST: manifest}
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in sorted(files.items()))
    return sorted((files | {SUMS: sums.encode()}).items())


def pack(name: str, files: list[tuple[str, bytes]], mtime: int) -> bytes:
    """The tarball's bytes: plain ustar headers below the folder `name`, gzip without a time or a name."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=buffer, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT, encoding="utf-8") as archive,
    ):
        for path, data in files:
            header = tarfile.TarInfo(f"{name}/{path}")
            header.size, header.mtime = len(data), mtime
            # Only scripts run; a mode from the file system would depend on the umask and the file system.
            header.mode = 0o755 if data.startswith(b"#!") else 0o644
            try:
                archive.addfile(header, io.BytesIO(data))
            except ValueError:
                raise BundleError("the path is too long for a tar header", subject=path) from None
    return buffer.getvalue()


def _deliver(folder: Path, receipt: BundleRecord, manifest: bytes, tarball: bytes) -> None:
    """Write all three to a temporary folder, then rename each into place and remove older tarballs."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob(".bundle-*"):  # of a packing that was killed; the run's lock keeps a second one out
        shutil.rmtree(stale, ignore_errors=True)
    scratch: Path | None = None
    try:
        scratch = Path(tempfile.mkdtemp(prefix=".bundle-", dir=folder))
        _write_through(scratch / receipt.tarball, tarball)
        _write_through(scratch / MANIFEST, manifest)
        write(scratch / RECEIPT, receipt)
        for file in (receipt.tarball, MANIFEST, RECEIPT):
            os.replace(scratch / file, folder / file)
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        raise BundleError(
            f"the disk is full: the bundle needs {len(tarball) + len(manifest)} bytes ({error.strerror})",
            subject=str(folder),
            hint="free some space and run the same command again; what was there before is unharmed",
        ) from None
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
    for older in folder.glob("kernelproof-*.tar.gz"):
        if older.name != receipt.tarball:
            with contextlib.suppress(FileNotFoundError):
                older.unlink()


def _write_through(path: Path, data: bytes) -> None:
    """Write and wait for the disk: some file systems report that they are full only then."""
    with path.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
