"""Is a bundle what was packed, and does it agree with itself? Offline, in memory, with the standard library alone.

This file also runs by itself, copied to a machine that has nothing but Python: `python verify.py BUNDLE.tar.gz`. It
then answers the first question alone; the second is that of `kernelproof.consistency`.

A bundle is a gzip file in one canonical form: plain ustar headers, regular files alone, members sorted below one folder
named in `manifest.yaml`. The manifest is YAML written in its JSON subset, so `json` reads it; it holds the SHA-256 of
every other member but `SHA256SUMS`, whose text follows from it. Nothing is ever extracted here, and nothing is
allocated on the word of a header: every limit is checked while the stream is read.

What this proves: the members are those that the manifest lists, and the manifest is the one whose SHA-256 is printed as
the bundle's identity; and that the records do not contradict one another, the manifest or the files beside them. What
it cannot prove: that the manifest is the one its author made, or that anything in it is true. Compare the identity
with the one that you were given (`--identity`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import struct
import sys
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

SCHEMA = "kernelproof.bundle/1"
MANIFEST, SUMS = "manifest.yaml", "SHA256SUMS"
MOST_TOLD = 100  # problems that a person is told
RECEIPT, LOOSE = "bundle.json", ("report.html", "summary.md", MANIFEST)  # lie beside a bundle in its report's folder
CLASSES = ("identity", "measurement", "context")

WHOLE, TAMPERED, UNREADABLE, CONTRADICTORY = "whole", "tampered", "unreadable", "contradictory"
EXIT_CODES = {WHOLE: 0, TAMPERED: 1, UNREADABLE: 2, CONTRADICTORY: 3}

MAX_PACKED_BYTES = 25 * 1024 * 1024  # what GitHub takes as an attachment
MAX_UNPACKED_BYTES = 1024 * 1024 * 1024
MAX_MANIFEST_BYTES = 4 * 1024 * 1024  # of a run with 40 variants: 150 kB
MAX_RECORDS_BYTES = 32 * 1024 * 1024  # of all records together, which are parsed; of that run: 4 MB
MAX_KEPT_BYTES = 64 * 1024 * 1024  # of all members that are kept in memory
MAX_MEMBERS = 20_000
MAX_EXTENSIONS_BYTES = 4 * 1024 * 1024  # of all headers together that another program writes beside the plain ones
# Logs and zeros in machine code pack to 1:30 at best; deflate reaches 1:1032, which only a bomb uses.
MAX_RATIO = 100
RATIO_FREE_BYTES = 16 * 1024 * 1024  # below this size no ratio is looked at

# gzip header: deflate, no flags (so no file name), mtime 0, a level below 9 (or 9, as once), unknown system. RFC 1952.
GZIP_HEADERS = tuple(bytes.fromhex(f"1f8b0800000000{level}ff") for level in ("0000", "0002"))
BLOCK = 512  # a tar block, in bytes
RECORD = 20 * BLOCK  # a tar archive is filled up to a multiple of this
USTAR = b"ustar\x0000"
MAX_PATH = 1024  # characters of a member's name
MAX_NAME_BYTES = 4096  # in a gzip header
DEVICES = re.compile(r"(?i)(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9\xb9\xb2\xb3]) *(?:\..*)?")  # on Windows
PAX_LENGTH = re.compile(rb"([0-9]{1,5}) ")
SHA256 = re.compile(r"[0-9a-f]{64}")
CHUNK = 256 * 1024
TAR_KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"5": "a folder",
    b"6": "a FIFO",
}


class Unreadable(Exception):
    """The file is no bundle, or only a part of one."""


class Damaged(Exception):
    """The file is a bundle that was changed: what is wrong with which member (None: with the archive itself)."""

    def __init__(self, message: str, member: str | None = None) -> None:
        super().__init__(message)
        self.member = member


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    kind: changed, added, removed, renamed, unsafe, duplicate, damaged or unreadable, or contradiction.
    """

    kind: str
    member: str | None
    message: str

    def __str__(self) -> str:
        member = _shown(self.member or "")
        return f"{self.kind}: {member}: {self.message}" if member else f"{self.kind}: {self.message}"


@dataclass
class VerifyResult:
    """What was found. `identity` is the SHA-256 of manifest.yaml, `bytes` the size of all members unpacked.

    overall: what the run says of itself. consistent: whether the bundle agrees with itself; None where nobody looked.
    branch, changes: of the commit; the hash of what was not committed. measured: other states of the repository that
    records are of, in words. beside: the files beside it that are the same as in it; None
    where the bundle itself was named, and not its folder.
    """

    path: str
    status: str = WHOLE
    identity: str | None = None
    bundle: str | None = None
    commit: str | None = None
    branch: str | None = None
    changes: str | None = None
    measured: list[str] = field(default_factory=list)
    overall: str | None = None
    beside: list[str] | None = None
    members: int = 0
    bytes: int = 0
    consistent: bool | None = None
    problems: list[Problem] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Nothing was found; whether the run is `good` is `overall`."""
        return self.status == WHOLE

    @property
    def exit_code(self) -> int:
        """0 whole, 1 tampered with, 2 unreadable, 3 whole and contradicting itself."""
        return EXIT_CODES[self.status]

    def text(self) -> str:
        """The result for a person, one problem a line."""
        # What stands before the path is not said again.
        told = (problem.message if problem.kind == UNREADABLE == self.status else problem for problem in self.problems)
        problems = [f"  {line}" for line in told]
        if (more := len(problems) - MOST_TOLD) > 0:
            problems[MOST_TOLD:] = [f"  and {more} more, which --json has"]
        if self.status not in (WHOLE, CONTRADICTORY):
            return "\n".join([f"{self.status}: {self.path}", *problems])
        agrees = {
            True: "consistent: records, manifest, samples, sources and machine code agree with one another\n"
            "not looked at: what report.html, summary.md and logs say, nor can it be seen if all was invented alike",
            False: f"contradictory: {_things(len(self.problems))}",
            None: "consistency: not looked at; an installed kernelproof does, this file alone does not",
        }
        whole = f"whole and unchanged: {self.members} members, {self.bytes} bytes, identity {self.identity}"
        read = []
        if self.beside is not None:
            there = (
                f"as in it, beside it: {', '.join(self.beside)}" if self.beside else "none of its pages is beside it"
            )
            read = [f"read: {_shown(self.path)}; {there}"]
        says = f"the run says of itself: {_shown(self.overall or 'nothing')}"
        return "\n".join([whole, agrees[self.consistent], *problems, *read, _shown(self.origin), says])

    @property
    def origin(self) -> str:
        """`of commit 0123456789ab (main), as committed`, and what was measured at others. The manifest's own word."""
        if self.commit is None:
            known = f"of no commit (its files: {self.changes[:8]})" if self.changes else "of no commit"
        else:
            branch = f" ({self.branch})" if self.branch else ""
            changes = f"with uncommitted changes ({self.changes[:8]})" if self.changes else "as committed"
            known = f"of commit {self.commit[:12]}{branch}, {changes}"
        return "; ".join([known, *self.measured])


def _things(number: int) -> str:
    one, more = "one thing in it does not agree with the rest", "things in it do not agree with one another"
    return one if number == 1 else f"{number} {more}"


def _shown(text: str) -> str:
    """Escaped: the text is a stranger's, and could move the cursor or look like another in other letters."""
    return re.sub(r"[^ -~]", lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


@dataclass(frozen=True)
class Packed:
    """A member as it lies in the archive; `kept` holds the bytes of the manifest, the sums and what was asked for."""

    name: str
    sha256: str
    size: int
    kept: bytes | None


def run(path: Path, identity: str | None = None, folder: Path | None = None) -> VerifyResult:
    """Verify a bundle; never raises for what is in the file.

    identity: the SHA-256 of manifest.yaml that the bundle is expected to have. folder: where pages and manifest lie
    beside it, which have to be those that it holds.
    """
    return contents(path, lambda name: False, identity, folder)[0]


def contents(
    path: Path, wanted: Callable[[str], bool], identity: str | None = None, folder: Path | None = None
) -> tuple[VerifyResult, dict[str, bytes]]:
    """Verify a bundle and give back the members that are wanted, by name below the bundle's folder.

    What is given back is what was verified: the file is read once. Nothing where the bundle is not good.
    """
    result = VerifyResult(path=str(path))
    packed: dict[str, Packed] = {}
    needed = _needed_for_consistency()
    sha256 = hashlib.sha256()
    try:
        with Path(path).open("rb") as stream:
            for member in _members(_Hashed(stream, sha256), result, lambda name: wanted(name) or needed(name)):
                packed[member.name] = member
        _check(packed, result)
    except Unreadable as error:
        result.status = UNREADABLE
        result.problems.append(Problem("unreadable", None, str(error)))
    except OSError as error:
        result.status = UNREADABLE
        result.problems.append(Problem("unreadable", None, error.strerror or str(error)))
    except Damaged as error:
        result.problems.append(_problem(error))
        _look_again(Path(path), result)
    if identity is not None and result.identity is not None and result.identity != identity.lower():
        message = f"the bundle's identity is {result.identity}, not the expected {identity}"
        result.problems.append(Problem("changed", MANIFEST, message))
    if result.problems and result.status == WHOLE:
        result.status = TAMPERED
    inside = {name.partition("/")[2]: member for name, member in packed.items()} if result.good else {}
    kept = {name: member.kept for name, member in inside.items() if member.kept is not None}
    if result.good and __package__:
        _check_consistency(inside, kept, result)
    if folder is not None and inside:
        _check_beside(folder, inside, result, sha256.hexdigest())
    return result, {name: data for name, data in kept.items() if result.good and wanted(name)}


def _needed_for_consistency() -> Callable[[str], bool]:
    """Which members' bytes are looked at; none where this file runs by itself."""
    if not __package__:
        return lambda name: False
    from kernelproof import consistency

    return consistency.wanted


def _check_consistency(inside: dict[str, Packed], kept: dict[str, bytes], result: VerifyResult) -> None:
    """Hold the members of a whole bundle against one another."""
    from kernelproof import consistency

    found = consistency.find({name: member.sha256 for name, member in inside.items()}, kept)
    result.consistent = not found
    if found:
        result.status = CONTRADICTORY
        result.problems += [Problem("contradiction", one.member, one.message) for one in found]


def _check_beside(folder: Path, inside: dict[str, Packed], result: VerifyResult, sha256: str) -> None:
    """Hold the pages, the manifest and the receipt in a folder against the bundle: who reads them unpacks nothing.

    sha256: of the bundle's file.
    """
    result.beside, found = [], list[Problem]()
    for name in (*LOOSE, RECEIPT):
        file = folder / name
        if not file.is_file():
            continue
        try:
            unlike = (
                _unlike_receipt(file, result, sha256) if name == RECEIPT else _unlike_member(file, inside[name].sha256)
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            unlike = f"it cannot be held against the bundle ({type(error).__name__})"
        if unlike:
            found.append(Problem("contradiction", str(file), unlike))
        else:
            result.beside.append(name)
    if found:
        result.status, result.consistent = CONTRADICTORY, False
        result.problems += found


def _unlike_member(file: Path, sha256: str) -> str | None:
    """How a file is not the member of its name."""
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    return None if found == sha256 else f"SHA-256 {found}, of the member of this name {sha256}"


def _unlike_receipt(file: Path, result: VerifyResult, sha256: str) -> str | None:
    """How a receipt is not that of the bundle, whose file has this SHA-256."""
    with file.open("rb") as stream:
        receipt = strict_json(stream.read(MAX_MANIFEST_BYTES))
    there = {"manifest_sha256": result.identity, "sha256": sha256, "overall": result.overall}
    for what, value in there.items():
        if receipt[what] != value:
            return f"{what} is {receipt[what]!r}, of the bundle {value!r}"
    return None


# --- the manifest against the members ---------------------------------------------------------------------------------


def _check(packed: dict[str, Packed], result: VerifyResult, *, whole: bool = True) -> None:
    """Hold every member against the manifest; where not the whole archive was read, what is not there is no finding."""
    top = _top_folder(packed, result)
    inside = {name[len(top) + 1 :]: member for name, member in packed.items()}
    result.members, result.bytes = len(inside), sum(member.size for member in inside.values())
    manifest = _manifest(inside, result)
    if manifest["bundle"] != top:
        message = f"the folder is {top!r}, but the manifest was packed as {manifest['bundle']!r}"
        result.problems.append(Problem("renamed", top, message))
    listed = manifest["members"]
    result.problems += _collisions({*inside, *listed})
    differences = _differences(listed, {name: m for name, m in inside.items() if name not in (MANIFEST, SUMS)})
    result.problems += [problem for problem in differences if whole or problem.kind not in ("removed", "renamed")]
    expected = sums_text({**{name: sha for name, (sha, _) in listed.items()}, MANIFEST: str(result.identity)})
    if SUMS not in inside and not whole:
        return
    if SUMS not in inside:
        result.problems.append(Problem("removed", SUMS, "it is not in the bundle"))
    elif inside[SUMS].kept != expected:
        result.problems.append(
            Problem("changed", SUMS, f"it does not follow from {MANIFEST}: one of the two was changed")
        )


def _look_again(path: Path, result: VerifyResult) -> None:
    """After damage, name what was changed, with the eyes of a program that unpacks any archive.

    Whoever unpacks a bundle, edits it and packs it again leaves no header as it was; this reads what the first look
    refuses, within the same limits. It only adds problems: nothing that it reads is given back.
    """
    again = VerifyResult(result.path)
    packed: dict[str, Packed] = {}
    whole = False
    try:
        with path.open("rb") as stream:
            for member in _members_of_any_form(stream, again):
                packed[member.name] = member
        whole = True
    except (Unreadable, OSError) as error:
        again.problems.append(Problem("damaged", None, str(error)))
    except Damaged as error:
        again.problems.append(_problem(error))
    if MANIFEST in packed:  # packed without its folder
        packed = {f"./{name}": member for name, member in packed.items()}
    try:
        _check(packed, again, whole=whole)
    except Unreadable:
        pass
    except Damaged as error:
        again.problems += [_problem(error)] if whole else []
    result.problems = list(dict.fromkeys([*result.problems, *again.problems]))
    if again.identity is not None:
        result.identity, result.bundle = again.identity, again.bundle
        result.commit, result.overall = again.commit, again.overall
        result.branch, result.changes, result.measured = again.branch, again.changes, again.measured


def _problem(error: Damaged) -> Problem:
    return Problem("damaged" if error.member is None else "unsafe", error.member, str(error))


def _top_folder(packed: dict[str, Packed], result: VerifyResult) -> str:
    """The folder that the manifest lies in; members outside it are problems."""
    if not packed:
        raise Unreadable("the archive has no member")
    home = next((name.partition("/")[0] for name in packed if name.partition("/")[2] == MANIFEST), None)
    if home is None:
        raise Damaged(f"there is no {MANIFEST}: it was removed or renamed, or this is no kernelproof bundle")
    for name in [name for name in packed if not name.startswith(f"{home}/")]:
        result.problems.append(Problem("added", name, f"it lies outside the bundle's folder {home!r}"))
        del packed[name]
    return home


def _manifest(inside: dict[str, Packed], result: VerifyResult) -> dict[str, Any]:
    """The manifest's bundle name and members ({path: (sha256, bytes)}); sets the result's identity and facts."""
    result.identity = inside[MANIFEST].sha256
    try:
        document = strict_json(inside[MANIFEST].kept or b"")
        schema = document["schema"]
        if schema != SCHEMA:
            raise Unreadable(f"{MANIFEST} has schema {schema!r}; this verifier knows {SCHEMA!r}")
        listed: dict[str, tuple[str, int]] = {}
        if len(document["members"]) > MAX_MEMBERS:
            raise Damaged(f"{MANIFEST} lists more than {MAX_MEMBERS} members")
        for row in document["members"]:
            name, sha256, size = row["path"], row["sha256"], row["bytes"]
            if not (isinstance(name, str) and isinstance(sha256, str) and type(size) is int):
                raise TypeError(f"member {name!r}")
            if why := unsafe(name):
                raise Damaged(f"{MANIFEST} lists it, and {why}", name)
            if not SHA256.fullmatch(sha256):
                raise Damaged(f"{MANIFEST} has {sha256!r} for its SHA-256", name)
            if row["class"] not in CLASSES:
                message = f"{MANIFEST} puts it into the class {row['class']!r}; there are {', '.join(CLASSES)}"
                result.problems.append(Problem("changed", name, message))
            if name in listed:
                result.problems.append(Problem("duplicate", name, f"{MANIFEST} lists it twice"))
            listed[name] = (sha256, size)
        result.bundle, result.overall = str(document["bundle"]), str(document.get("overall"))
        _origin(document, result)
        return {"bundle": result.bundle, "members": listed}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{MANIFEST} cannot be read ({type(error).__name__}: {error}): it was changed") from None


def _origin(document: dict[str, Any], result: VerifyResult) -> None:
    """Of which commit the manifest is, and of which others the records are that were not made again."""
    state = document.get("provenance") or {}
    commit, branch, changes = (state.get(what) for what in ("commit", "branch", "diff_sha256"))
    result.commit = None if commit is None else str(commit)
    result.branch = None if branch is None else str(branch)
    result.changes = str(changes or "unknown") if changes or state.get("dirty") else None
    others: dict[str, bool] = {}
    for other in (document.get("measured") or {}).values():
        named = (
            f"{str(other['commit'])[:12]}{'+' if other.get('dirty') else ''}" if other.get("commit") else "no commit"
        )
        mine = all(other.get(what) == state.get(what) for what in ("commit", "dirty", "diff_sha256"))
        others[named] = others.get(named, False) or mine
    if others and not any(others.values()):
        result.measured = [f"everything was measured at {', '.join(sorted(others))}"]
    elif not all(others.values()):
        others_said = ", ".join(sorted(named for named, mine in others.items() if not mine))
        result.measured = [f"some of it was measured at {others_said}"]


def strict_json(data: bytes) -> Any:
    """JSON that every reader reads alike. Raises ValueError or RecursionError for any other."""
    return json.loads(
        data.decode("utf-8"), object_pairs_hook=_each_key_once, parse_constant=_no_number, parse_float=_finite
    )


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping whose keys are all different: readers do not agree on which of two counts."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice")
        found[key] = value
    return found


def _finite(text: str) -> float:
    """A number that is no infinity to whoever reads it (`1e999`)."""
    number = float(text)
    return _no_number(text) if number in (float("inf"), float("-inf")) else number


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _differences(listed: dict[str, tuple[str, int]], found: dict[str, Packed]) -> list[Problem]:
    """Every changed, removed, renamed and added member."""
    problems = [
        Problem("changed", name, _changed(listed[name], member))
        for name, member in found.items()
        if name in listed and (member.sha256, member.size) != listed[name]
    ]
    added = {name: member for name, member in found.items() if name not in listed}
    twins: dict[str, list[str]] = defaultdict(list)
    for name, member in reversed(added.items()):
        twins[member.sha256].append(name)
    for name in (name for name in listed if name not in found):
        if not twins[listed[name][0]]:
            problems.append(Problem("removed", name, f"{MANIFEST} lists it, and it is not in the bundle"))
        else:
            twin = twins[listed[name][0]].pop()
            del added[twin]
            problems.append(Problem("renamed", name, f"it is now called {twin!r}"))
    return problems + [Problem("added", name, f"{MANIFEST} does not list it") for name in added]


def _collisions(names: Iterable[str]) -> list[Problem]:
    """Members that overwrite each other where file names have no case or other accents, or cannot lie side by side."""
    problems = []
    forms: dict[str, str] = {}
    for name in sorted(names):
        form = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
        if form in forms:
            problems.append(Problem("duplicate", name, f"on some systems it is the same file as {forms[form]!r}"))
        forms[form] = name
    for form, name in forms.items():
        folder = form
        while folder := folder.rpartition("/")[0]:
            if folder in forms:
                problems.append(Problem("unsafe", name, f"the file {forms[folder]!r} lies where its folder would"))
    return problems


def _changed(expected: tuple[str, int], found: Packed) -> str:
    return f"SHA-256 {found.sha256[:16]}… ({found.size} bytes), packed with {expected[0][:16]}… ({expected[1]} bytes)"


def sums_text(sha256_by_name: dict[str, str]) -> bytes:
    """SHA256SUMS in the form that `sha256sum --check` reads: every member but itself, sorted by name."""
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(sha256_by_name.items())).encode("utf-8")


# --- the archive ------------------------------------------------------------------------------------------------------


def _members(stream: _Hashed, result: VerifyResult, wanted: Callable[[str], bool]) -> Iterator[Packed]:
    """Every member in turn, hashed while it is read; problems of form go to the result. Raises Unreadable, Damaged."""
    blocks = _Inflated(stream)
    seen: set[str] = set()
    previous, mtime, zeros, kept = "", None, 0, Kept()
    while header := blocks.read(BLOCK, at_end_ok=True):
        if not any(header):
            zeros += 1
            continue
        if zeros:
            raise Damaged("there is data after the end of the archive")
        name, size, mode, owner, changed = _header(header)
        if name in seen:
            result.problems.append(Problem("duplicate", name, "the archive holds it twice"))
        seen.add(name)
        if len(seen) > MAX_MEMBERS:
            raise Damaged(f"more than {MAX_MEMBERS} members")
        if name < previous or owner != (0, 0) or (mtime is not None and changed != mtime):
            result.problems.append(Problem("changed", name, "its place, owner or time is not as packed"))
        previous, mtime = name, changed
        inside = name.partition("/")[2]
        keep = inside in (MANIFEST, SUMS) or wanted(inside)
        if keep:
            kept.add(name, inside, size)
        member, starts = _body(blocks, name, size, keep)
        if mode != file_mode(starts):
            result.problems.append(Problem("changed", name, f"its mode is {mode:o}, packed as {file_mode(starts):o}"))
        yield member
    if not zeros:
        raise Unreadable("the archive is cut short: it has no end mark")
    ends = blocks.position - zeros * BLOCK
    if zeros * BLOCK != 2 * BLOCK + -(ends + 2 * BLOCK) % RECORD:
        raise Damaged(f"it ends with {zeros} empty blocks, which is not what kernelproof writes")


def file_mode(starts: bytes) -> int:
    """The mode that a member is packed with: scripts run, all else is read."""
    return 0o755 if starts.startswith(b"#!") else 0o644


@dataclass
class Kept:
    """How many bytes are kept in memory so far, and how many of them are records."""

    bytes: int = 0
    records: int = 0

    def add(self, name: str, inside: str, size: int) -> None:
        """Raises Damaged for a member that is too large, alone or with those before it."""
        if inside in (MANIFEST, SUMS) and size > MAX_MANIFEST_BYTES:
            raise Damaged(f"it has {size} bytes, at most {MAX_MANIFEST_BYTES}", name)
        self.bytes += size
        self.records += size if name.endswith(".json") else 0
        if self.records > MAX_RECORDS_BYTES:
            raise Damaged(f"with it the records have more than {MAX_RECORDS_BYTES} bytes", name)
        if self.bytes > MAX_KEPT_BYTES:
            raise Damaged(f"with it records and samples have more than {MAX_KEPT_BYTES} bytes", name)


def _members_of_any_form(stream: BinaryIO, result: VerifyResult) -> Iterator[Packed]:
    """Every file of a tar archive as other programs write one, up to its end mark. Raises Unreadable, Damaged.

    What no archive of ours has (links, names that lead out, a name twice) goes to the result; folders are left out.
    Long names are read where GNU and pax put them.
    """
    blocks, kept, seen = _Inflated(stream, any_header=True), Kept(), set[str]()
    long_name, headers, extensions = "", 0, 0
    while any(header := blocks.read(BLOCK, at_end_ok=True)):
        headers += 1
        if len(seen) > MAX_MEMBERS or headers > 3 * MAX_MEMBERS:  # folders and long names have headers too
            raise Damaged(f"more than {MAX_MEMBERS} members")
        prefix = _text(header[345:500]) if header[257:263] == USTAR[:6] else ""  # GNU has other things there
        name = (long_name or "/".join(filter(None, (prefix, _text(header[:100]))))).removeprefix("./")
        shown = _checked_name(header, name)
        kind, size = header[156:157], _octal(header[124:136], shown)
        if kind in (b"L", b"K", b"x", b"g"):  # of what follows: its long name or target, its pax records or everybody's
            extensions += size
            if extensions > MAX_EXTENSIONS_BYTES:
                raise Damaged(f"its further headers have more than {MAX_EXTENSIONS_BYTES} bytes")
            body = blocks.read(size + -size % BLOCK)[:size]
            if kind == b"L":
                long_name = _text(body)
            elif kind == b"x":
                long_name = _pax_path(body) or long_name
            continue
        long_name = ""
        if kind == b"5":
            continue
        if kind in TAR_KINDS:
            result.problems.append(Problem("unsafe", shown, f"it is {TAR_KINDS[kind]}, not a regular file"))
            continue
        if len(name) > MAX_PATH:
            raise Damaged(str(unsafe(name)), shown)
        if why := unsafe(name):
            result.problems.append(Problem("unsafe", shown, why))
        if name in seen:
            result.problems.append(Problem("duplicate", name, "the archive holds it twice"))
        seen.add(name)
        inside = name if name in (MANIFEST, SUMS) else name.partition("/")[2]
        keep = inside in (MANIFEST, SUMS)
        if keep:
            kept.add(name, inside, size)
        yield _body(blocks, name, size, keep)[0]


def _pax_path(body: bytes) -> str:
    """The name in a pax header, whose records are `LENGTH KEY=VALUE` and a line's end; empty where it has none."""
    at = 0
    while found := PAX_LENGTH.match(body, at):
        end = at + int(found[1])
        if end <= found.end():
            break
        if body.startswith(b"path=", found.end()):
            return body[found.end() + len(b"path=") : end - 1].decode("utf-8", "backslashreplace")
        at = end
    return ""


def _body(blocks: _Inflated, name: str, size: int, keep: bool) -> tuple[Packed, bytes]:
    """A member, hashed and where it is wanted kept, and the two bytes that it starts with."""
    digest, kept, left, starts = hashlib.sha256(), [], size, b""
    while left:
        data = blocks.read(min(left, CHUNK))
        starts = starts or data[:2]
        digest.update(data)
        left -= len(data)
        if keep:
            kept.append(data)
    if any(blocks.read(-size % BLOCK)):
        raise Damaged("there is data between its end and the next member, or the file was damaged on its way", name)
    return Packed(name, digest.hexdigest(), size, b"".join(kept) if keep else None), starts


def _header(block: bytes) -> tuple[str, int, int, tuple[int, int], int]:
    """name, size, mode, (uid, gid), mtime of a plain ustar header of a regular file. Raises Damaged for any other."""
    name = _text(block[:100])
    if block[257:265] == USTAR and block[345] != 0:
        name = f"{_text(block[345:500])}/{name}"
    shown = _checked_name(block, name)
    kind = block[156:157]
    if kind != b"0":
        raise Damaged(f"it is {TAR_KINDS.get(kind, f'of tar type {kind!r}')}, not a regular file", shown)
    if why := unsafe(name):
        raise Damaged(why, shown)
    size, mtime = (_octal(block[at : at + 12], shown) for at in (124, 136))
    mode, uid, gid = (_octal(block[at : at + 8], shown) for at in (100, 108, 116))
    if block != _canonical_header(name, size, mode, (uid, gid), mtime):
        raise Damaged("its header is not the plain ustar header of a regular file that kernelproof writes", shown)
    return name, size, mode, (uid, gid), mtime


def _checked_name(block: bytes, name: str) -> str:
    """The name as it may be shown. Raises Damaged where the header's checksum is not its own."""
    shown = name.encode("unicode_escape", "replace").decode("ascii")[:200]
    checksum = sum(block[:148]) + 8 * 0x20 + sum(block[156:])
    if _octal(block[148:156], shown) != checksum:
        raise Damaged(f"the header that calls itself {shown!r} does not match its checksum")
    return shown


def _canonical_header(name: str, size: int, mode: int, owner: tuple[int, int], mtime: int) -> bytes | None:
    """The one header that says this, byte for byte as the packer writes it; None where it writes none."""
    parts = name.split("/")
    splits = (("/".join(parts[:at]).encode(), "/".join(parts[at:]).encode()) for at in range(len(parts)))
    fitting = ((prefix, rest) for prefix, rest in splits if len(prefix) <= 155 and len(rest) <= 100)
    prefix, rest = next(fitting, (b"", b""))
    if not rest:
        return None
    numbers = [b"%07o\0" % number for number in (mode, *owner)] + [b"%011o\0" % number for number in (size, mtime)]
    fields = [rest, *numbers, b" " * 8, b"0", b"", USTAR, b"", b"", b"", b"", prefix]
    block = struct.pack("100s 8s 8s 8s 12s 12s 8s c 100s 8s 32s 32s 8s 8s 155s 12x", *fields)
    return block[:148] + b"%06o\0" % sum(block) + block[155:]


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "backslashreplace")


def _octal(raw: bytes, name: str) -> int:
    digits = raw.rstrip(b" \0").lstrip(b" ")
    if not re.fullmatch(rb"[0-7]{1,12}", digits):
        raise Damaged("a number in its header is not octal", name)
    return int(digits, 8)


def unsafe(name: str) -> str | None:
    """Why a member of this name must not be unpacked, or None."""
    if len(name) > MAX_PATH:
        return f"its path is longer than {MAX_PATH} characters"
    if name.startswith("/"):
        return "its path is absolute"
    parts = name.split("/")
    if ".." in parts:
        return "its path leads out of the folder (..)"
    if "" in parts or "." in parts:
        return "its path has an empty part"
    if not name.isprintable():
        return "its path has characters that cannot be shown"
    if "\\" in name or ":" in name or any(part[-1] in ". " or DEVICES.fullmatch(part) for part in parts):
        return "its path means something else on another system"
    return None


class _Hashed:
    """A file that is read once, from its start: what was read of it is in its hash."""

    def __init__(self, stream: BinaryIO, sha256: hashlib._Hash) -> None:
        self._stream, self._sha256 = stream, sha256

    def read(self, size: int) -> bytes:
        """At most so many bytes."""
        data = self._stream.read(size)
        self._sha256.update(data)
        return data


class _Inflated:
    """The bytes below the gzip layer, never more at once than is asked for, with the limits that stop a bomb."""

    def __init__(self, stream: BinaryIO | _Hashed, *, any_header: bool = False) -> None:
        """any_header: the gzip header may be that of another program."""
        self._stream = stream
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._crc = self._in = self._out = 0
        self._ready, self._at = b"", 0
        header = stream.read(len(GZIP_HEADERS[0]))
        if header[:2] != GZIP_HEADERS[0][:2]:
            raise Unreadable("it is not a gzip file")
        if len(header) < len(GZIP_HEADERS[0]):
            raise Unreadable("the file is cut short")
        if any_header:
            self._skip_fields(header[3])
        elif header not in GZIP_HEADERS:
            raise Damaged("its gzip header is not the one that kernelproof writes")

    def _skip_fields(self, flags: int) -> None:
        """Pass over what the flags announce: extra bytes, a file's name, a comment, a checksum. RFC 1952."""
        if flags & 4:
            self._stream.read(int.from_bytes(self._stream.read(2), "little"))
        for flag in (8, 16):
            if flags & flag and not any(self._stream.read(1) in (b"\0", b"") for _ in range(MAX_NAME_BYTES)):
                raise Damaged("a text in its gzip header does not end")
        if flags & 2:
            self._stream.read(2)

    @property
    def position(self) -> int:
        """How many bytes were read."""
        return self._out - len(self._ready) + self._at

    def read(self, size: int, *, at_end_ok: bool = False) -> bytes:
        """Exactly `size` bytes; nothing at the stream's end where that is allowed. Raises Unreadable or Damaged."""
        while len(self._ready) - self._at < size and not self._inflate.eof:
            self._more()
        data = self._ready[self._at : self._at + size]
        self._at += len(data)
        if len(data) == size:
            return data
        self._trailer()
        if at_end_ok and not data:
            return b""
        raise Unreadable("the archive is cut short in the middle of a member")

    def _more(self) -> None:
        packed = self._inflate.unconsumed_tail or self._stream.read(CHUNK)
        if not packed:
            raise Unreadable("the file is cut short")
        try:
            data = self._inflate.decompress(packed, CHUNK)
        except zlib.error:
            raise Damaged("the compressed data is damaged: bytes were changed after it was packed") from None
        self._in += len(packed) - len(self._inflate.unconsumed_tail) - len(self._inflate.unused_data)
        self._out += len(data)
        self._crc = zlib.crc32(data, self._crc)
        self._ready, self._at = self._ready[self._at :] + data, 0
        if self._in > MAX_PACKED_BYTES:
            raise Damaged(f"it is larger than a bundle may be ({MAX_PACKED_BYTES} bytes)")
        if self._out > MAX_UNPACKED_BYTES:
            raise Damaged(f"it unpacks to more than {MAX_UNPACKED_BYTES} bytes: a bomb")
        if self._out > RATIO_FREE_BYTES and self._out > MAX_RATIO * self._in:
            raise Damaged(f"it unpacks to more than {MAX_RATIO} times its size: a bomb")

    def _trailer(self) -> None:
        """Hold the stream against its own checksum, which is looked at last so that a changed member is named first."""
        rest = self._inflate.unused_data + self._stream.read(9)
        if len(rest) < 8:
            raise Unreadable("the file is cut short")
        if len(rest) > 8:
            raise Damaged("there is data after the end of the gzip stream")
        if rest != self._crc.to_bytes(4, "little") + (self._out & 0xFFFFFFFF).to_bytes(4, "little"):
            raise Damaged("the checksum of the compressed data does not match: bytes were changed after it was packed")


def main(arguments: list[str] | None = None) -> int:
    """The command line; gives back the exit code."""
    parser = argparse.ArgumentParser(
        prog="kernelproof verify" if __package__ else None,
        description="Verify kernelproof bundles offline. Exit code: 0 whole and unchanged, 1 tampered with, "
        "2 unreadable, 3 whole, but its records contradict one another, the manifest or the files beside them; of "
        "several bundles the highest.",
    )
    parser.add_argument(
        "bundles", nargs="+", type=Path, metavar="BUNDLE", help="kernelproof-….tar.gz, or the folder that holds it"
    )
    parser.add_argument("--identity", help="the SHA-256 of manifest.yaml that the bundle must have")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    if options.identity and not re.fullmatch("[0-9a-fA-F]{64}", options.identity):
        parser.error(f"--identity: {options.identity!r} is no SHA-256, which has 64 hexadecimal digits")
    several = len(options.bundles) > 1
    if options.identity and several:
        parser.error(f"--identity is that of one bundle, and {len(options.bundles)} are named")
    results = []
    for path, bundle in [(path, _tarball(path, parser)) for path in options.bundles]:
        result = run(bundle, options.identity, path) if path.is_dir() else run(bundle, options.identity)
        results.append(result)
        if not options.json:
            print(f"{bundle}:\n{result.text()}" if several else result.text())
    if options.json:
        found = [{**asdict(result), "exit_code": result.exit_code} for result in results]
        print(json.dumps(found if several else found[0], indent=1))
    return max(result.exit_code for result in results)


def _tarball(path: Path, parser: argparse.ArgumentParser) -> Path:
    """The file that is meant: a folder stands for the one tarball in it."""
    if not path.is_dir():
        return path
    tarballs = sorted(path.glob("*.tar.gz"))
    if len(tarballs) != 1:
        found = ", ".join(map(str, tarballs or sorted(path.glob("*/kernelproof-*.tar.gz")))) or "it holds none"
        parser.error(f"{path} is a folder; name the tarball in it, kernelproof-….tar.gz: {found}")
    return tarballs[0]


if __name__ == "__main__":
    sys.exit(main())
