"""Every way to tamper with a bundle is refused, and the member is named."""

import gzip
import hashlib
import io
import json
import random
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelproof import bundle, verify
from kernelproof.records import Member

NAME = "kernelproof-0123456789ab-20250301T120000Z"
FILES = {
    "records/a.json": b'{"median_us": 9.1}\n',
    "samples/b.csv.gz": bytes(random.Random(7).randbytes(3000)),
    "source/kernel.cu": b"__global__ void kernel() {}\n" * 30,
    "source/repro.sh": b"#!/bin/sh\n",
}


MISSING = [{"stage": "capture", "subject": "capture", "reason": "not run"}]
SAID = {
    "project": "sample",
    "overall": "incomplete",
    "provenance": {"commit": "c"},
    "measured": {},
    "verdicts": [],
    "identical_machine_code": [],
    "missing": MISSING,
    "tools": {},
}


def gathered(files: dict[str, bytes]) -> dict[str, bytes]:
    """These files, and the facts of the manifest's stage, which name them."""
    rows = [{"path": path, "sha256": hashlib.sha256(data).hexdigest()} for path, data in sorted(files.items())]
    facts = SAID | {"folder": "", "records": [], "members": rows}
    return files | {"records/manifest.json": json.dumps(facts).encode()}


def document(files: dict[str, bytes]) -> bytes:
    """A manifest for these files, as the bundle stage writes it."""
    rows = [
        {"path": path, "class": "identity", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for path, data in sorted(gathered(files).items())
    ]
    facts = {"schema": verify.SCHEMA, "bundle": NAME} | SAID | {"dropped": [], "members": rows}
    return (bundle.yaml_json(facts) + "\n").encode()


def members_of(files: dict[str, bytes]) -> list[tuple[str, bytes]]:
    """What the bundle stage packs for these files: with manifest and sums, sorted."""
    packed = [bundle.Packed(Member(path, "", len(data), "identity"), data) for path, data in gathered(files).items()]
    return bundle._with_manifest(packed, document(files))


def packed(members: list[tuple[str, bytes]] | None = None) -> bytes:
    return bundle.pack(NAME, members if members is not None else members_of(FILES), 1_700_000_000)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "bundle.tar.gz"
    path.write_bytes(packed())
    return path


def verified(tmp_path: Path, data: bytes) -> verify.VerifyResult:
    path = tmp_path / "tampered.tar.gz"
    path.write_bytes(data)
    return verify.run(path)


def test_an_untouched_bundle_is_good(good: Path) -> None:
    result = verify.run(good)
    assert (result.status, result.exit_code, result.consistent, result.problems) == ("whole", 0, True, [])
    assert result.members == len(FILES) + 3
    assert result.bundle == NAME


def test_the_identity_is_compared_when_it_is_given(good: Path) -> None:
    identity = verify.run(good).identity
    assert identity is not None
    assert verify.run(good, identity.upper()).good
    other = verify.run(good, "0" * 64)
    assert other.exit_code == 1
    assert identity in str(other.problems[0])


# --- flipped bytes ----------------------------------------------------------------------------------------------------


def test_no_flipped_byte_goes_unnoticed(tmp_path: Path) -> None:
    """Every byte of the compressed file, inverted in turn."""
    data = packed(members_of({"records/a.json": FILES["records/a.json"], "noise": FILES["samples/b.csv.gz"][:200]}))
    missed = []
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0xFF
        if verified(tmp_path, bytes(changed)).good:
            missed.append(place)
    assert missed == []


def test_a_changed_byte_names_its_member(tmp_path: Path) -> None:
    change = replaced("records/a.json", FILES["records/a.json"].replace(b"9.1", b"1.9"))
    result = verified(tmp_path, packed(change(members_of(FILES))))
    assert result.exit_code == 1
    assert [(p.kind, p.member) for p in result.problems] == [("changed", "records/a.json")]


def test_a_flipped_byte_in_the_stream_names_its_member(tmp_path: Path) -> None:
    """A literal byte of the noise member, whose change inflates well: the checksum and the member both tell."""
    data = packed()
    for place in range(len(data) // 2, len(data) - 200):
        changed = bytearray(data)
        changed[place] ^= 0x01
        result = verified(tmp_path, bytes(changed))
        if any(problem.kind == "changed" for problem in result.problems):
            assert result.exit_code == 1
            assert any(problem.member == "samples/b.csv.gz" for problem in result.problems)
            assert any("checksum" in problem.message for problem in result.problems)
            return
    pytest.fail("no place was found whose change inflates")


# --- members ----------------------------------------------------------------------------------------------------------


def add(name: str) -> Callable[[list[tuple[str, bytes]]], list[tuple[str, bytes]]]:
    return lambda members: sorted([*members, (name, b"extra")])


def without(name: str) -> Callable[[list[tuple[str, bytes]]], list[tuple[str, bytes]]]:
    return lambda members: [(path, data) for path, data in members if path != name]


def rename(old: str, new: str) -> Callable[[list[tuple[str, bytes]]], list[tuple[str, bytes]]]:
    return lambda members: sorted((new if path == old else path, data) for path, data in members)


def replaced(name: str, data: bytes) -> Callable[[list[tuple[str, bytes]]], list[tuple[str, bytes]]]:
    return lambda members: [(path, data if path == name else kept) for path, kept in members]


def in_manifest(old: bytes, new: bytes) -> Callable[[list[tuple[str, bytes]]], list[tuple[str, bytes]]]:
    """The first such place of the manifest changed."""
    return replaced("manifest.yaml", document(FILES).replace(old, new, 1))


def twice(name: str) -> Callable[[list[tuple[str, bytes]]], list[tuple[str, bytes]]]:
    return lambda members: sorted([*members, (name, dict(members)[name])])


@pytest.mark.parametrize(
    ("change", "kind", "member"),
    [
        (add("records/zz.json"), "added", "records/zz.json"),
        (without("samples/b.csv.gz"), "removed", "samples/b.csv.gz"),
        (rename("records/a.json", "records/b.json"), "renamed", "records/a.json"),
        (replaced("source/repro.sh", b"#!/bin/sh\nrm -r /\n"), "changed", "source/repro.sh"),
        (replaced("SHA256SUMS", b""), "changed", "SHA256SUMS"),
        (without("SHA256SUMS"), "removed", "SHA256SUMS"),
        (twice("records/a.json"), "duplicate", f"{NAME}/records/a.json"),
        (without("manifest.yaml"), "damaged", None),
        (rename("manifest.yaml", "manifest.yml"), "damaged", None),
        (replaced("manifest.yaml", b"{"), "damaged", None),
        (replaced("manifest.yaml", b"[]"), "damaged", None),
        (in_manifest(b'"overall"', b'"overall": "bad", "overall"'), "damaged", None),
        (in_manifest(b'"incomplete"', b"NaN"), "damaged", None),
        (in_manifest(b'"identity"', b'"identical"'), "changed", "records/a.json"),
        (replaced("manifest.yaml", document(FILES).replace(b'"incomplete"', b'"bad"')), "changed", "SHA256SUMS"),
        (add("../escaped"), "unsafe", f"{NAME}/../escaped"),
        (add("a\\b"), "unsafe", f"{NAME}/a\\\\b"),
        (add("a//b"), "unsafe", f"{NAME}/a//b"),
        (add("new\nline"), "unsafe", f"{NAME}/new\\nline"),
        (add("report.html."), "unsafe", f"{NAME}/report.html."),
        (add("logs /a"), "unsafe", f"{NAME}/logs /a"),
        (add("report.html:x"), "unsafe", f"{NAME}/report.html:x"),
        (add("con"), "unsafe", f"{NAME}/con"),
        (add("source/Aux.cu"), "unsafe", f"{NAME}/source/Aux.cu"),
        (add("source/auxiliary.cu"), "added", "source/auxiliary.cu"),
    ],
)
def test_a_member_that_is_not_as_packed_is_named(
    tmp_path: Path, change: Callable[[list[tuple[str, bytes]]], list[tuple[str, bytes]]], kind: str, member: str | None
) -> None:
    result = verified(tmp_path, packed(change(members_of(FILES))))
    assert result.exit_code == 1
    assert (kind, member) in [(problem.kind, problem.member) for problem in result.problems]


def test_a_strangers_name_reaches_no_terminal_raw(tmp_path: Path) -> None:
    """A path in the manifest could clear the screen and print a verdict of its own."""
    change = in_manifest(b'"records/a.json"', b'"\\u001b[2J\\ngood: r\\u0435port"')
    shown = verified(tmp_path, packed(change(members_of(FILES)))).text()
    assert "unsafe: \\x1b[2J\\ngood: r\\u0435port: manifest.yaml lists it, and its path has characters" in shown


def test_an_identity_that_is_none_is_a_slip_and_no_tampering(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        verify.main([str(good), "--identity", "abc123"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: kernelproof verify [-h]")
    assert "'abc123' is no SHA-256, which has 64 hexadecimal digits" in said


def test_a_consistent_forgery_has_another_identity(tmp_path: Path, good: Path) -> None:
    """Whoever rewrites manifest and sums too makes a whole bundle, but not this one."""
    files = FILES | {"records/a.json": b'{"median_us": 1.9}\n'}
    forged = verified(tmp_path, packed(members_of(files)))
    identity = verify.run(good).identity
    assert forged.good
    assert forged.identity != identity
    assert verify.run(tmp_path / "tampered.tar.gz", identity).exit_code == 1


def test_a_bundle_below_another_folder_is_renamed(tmp_path: Path) -> None:
    result = verified(tmp_path, bundle.pack("elsewhere", members_of(FILES), 0))
    assert [(p.kind, p.member) for p in result.problems] == [("renamed", "elsewhere")]


# --- archives that no packer of ours makes ----------------------------------------------------------------------------


def archive(*extra: tarfile.TarInfo, data: bytes = b"", format: int = tarfile.USTAR_FORMAT) -> bytes:
    """The good members, then the extra headers, each with `data`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for path, content in members_of(FILES):
            info = tarfile.TarInfo(f"{NAME}/{path}")
            info.size, info.mtime = len(content), 1_700_000_000
            info.mode = 0o755 if content.startswith(b"#!") else 0o644
            tar.addfile(info, io.BytesIO(content))
        for info in extra:
            tar.addfile(info, io.BytesIO(data))
    return zipped(buffer.getvalue())


def zipped(data: bytes, level: int = 9) -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=level, fileobj=buffer, mtime=0) as stream:
        stream.write(data)
    return buffer.getvalue()


def header(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mtime = kind, target, size, 1_700_000_000
    return info


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (header(f"{NAME}/link", tarfile.SYMTYPE, "/etc/passwd"), "a symbolic link"),
        (header(f"{NAME}/link", tarfile.LNKTYPE, f"{NAME}/manifest.yaml"), "a hard link"),
        (header(f"{NAME}/zz", tarfile.DIRTYPE), "a folder"),
        (header(f"{NAME}/zz", tarfile.CHRTYPE), "a character device"),
        (header(f"{NAME}/zz", tarfile.BLKTYPE), "a block device"),
        (header(f"{NAME}/zz", tarfile.FIFOTYPE), "a FIFO"),
        (header("/etc/cron.d/job"), "its path is absolute"),
        (header(f"{NAME}/../../up"), "leads out of the folder"),
        (header("C:evil"), "means something else on another system"),
    ],
)
def test_an_unsafe_member_is_refused_by_name(tmp_path: Path, extra: tarfile.TarInfo, says: str) -> None:
    result = verified(tmp_path, archive(extra))
    assert result.exit_code == 1
    assert any(
        says in problem.message and (problem.member or "").rstrip("/") == extra.name for problem in result.problems
    )


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_headers_that_carry_another_name_are_refused(tmp_path: Path, format: int) -> None:
    """pax and GNU long names hide the real path from a reader that does not know them."""
    result = verified(tmp_path, archive(header(f"{NAME}/" + "x" * 300), format=format))
    assert result.exit_code == 1
    assert any(problem.kind == "unsafe" for problem in result.problems)


def test_a_member_outside_the_folder_is_an_addition(tmp_path: Path) -> None:
    result = verified(tmp_path, archive(header("zz-outside")))
    assert ("added", "zz-outside") in [(p.kind, p.member) for p in result.problems]


@pytest.mark.parametrize("change", ["mode", "uid", "mtime"])
def test_metadata_that_is_not_as_packed_is_named(tmp_path: Path, change: str) -> None:
    info = header(f"{NAME}/zz")
    setattr(info, change, {"mode": 0o4755, "uid": 1000, "mtime": 5}[change])
    result = verified(tmp_path, archive(info))
    assert ("changed", f"{NAME}/zz") in [(p.kind, p.member) for p in result.problems]


@pytest.mark.parametrize(
    "hide",
    [
        lambda data: data + b"hidden",
        lambda data: data + gzip.compress(b"hidden"),
        lambda data: zipped(gzip.decompress(data) + b"hidden".ljust(512, b"\0")),
        lambda data: gzip.compress(gzip.decompress(data), 9, mtime=0)[:3] + b"\x08" + data[4:],
    ],
    ids=["after the stream", "a second stream", "after the archive", "in the gzip header"],
)
def test_nothing_can_be_hidden_around_the_archive(tmp_path: Path, hide: Callable[[bytes], bytes]) -> None:
    assert verified(tmp_path, hide(packed())).exit_code == 1


def test_nothing_can_be_hidden_between_members(tmp_path: Path) -> None:
    raw = bytearray(gzip.decompress(packed()))
    end_of_first = 512 + int(raw[124:136].rstrip(b"\0 "), 8)
    assert end_of_first % 512  # so padding follows
    raw[end_of_first] = 1
    assert verified(tmp_path, zipped(bytes(raw))).exit_code == 1


def reheaded(change: Callable[[bytearray], None]) -> bytes:
    """The good archive with its first header changed and the checksum brought up to date."""
    raw = bytearray(gzip.decompress(packed()))
    change(raw)
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    return zipped(bytes(raw))


def put(at: int, data: bytes) -> Callable[[bytearray], None]:
    def change(raw: bytearray) -> None:
        raw[at : at + len(data)] = data

    return change


@pytest.mark.parametrize(
    "change",
    [put(90, b"hidden"), put(400, b"hidden"), put(329, b"0000007"), put(337, b"hidden"), put(100, b"   644 ")],
    ids=["after the name", "after the prefix", "devmajor", "devminor", "other padding"],
)
def test_nothing_can_be_hidden_in_a_header(tmp_path: Path, change: Callable[[bytearray], None]) -> None:
    assert verified(tmp_path, reheaded(lambda raw: None)).good
    result = verified(tmp_path, reheaded(change))
    assert result.exit_code == 1
    assert "its header is not" in str(result.problems[0])


def test_the_packers_long_names_are_canonical(tmp_path: Path) -> None:
    """Names that do not fit are split into prefix and name, as tarfile splits them."""
    long = {"a/" * 40 + "é" * 40: b"1", "b" * 90 + "/" + "c" * 100: b"2", f"{'d/' * 70}e": b"3"}
    assert verified(tmp_path, packed(members_of(FILES | long))).good


@pytest.mark.parametrize("blocks", [-1, 1, 20])
def test_the_archive_ends_as_the_packer_ends_it(tmp_path: Path, blocks: int) -> None:
    raw = gzip.decompress(packed())
    changed = raw[: blocks * 512] if blocks < 0 else raw + bytes(blocks * 512)
    result = verified(tmp_path, zipped(changed))
    assert result.exit_code == 1
    assert "empty blocks" in str(result.problems[0])


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"Records/A.json": b"evil"}, "duplicate"),
        ({"source/caf\u00e9.py": b"1", "source/cafe\u0301.py": b"2"}, "duplicate"),
        ({"source/kernel.cu/part": b"1"}, "unsafe"),
        ({"SOURCE": b"1"}, "unsafe"),
    ],
    ids=["case", "accents", "a file's folder", "a folder's file, in another case"],
)
def test_members_that_overwrite_each_other_elsewhere_are_refused(
    tmp_path: Path, files: dict[str, bytes], kind: str
) -> None:
    result = verified(tmp_path, packed(members_of(FILES | files)))
    assert result.exit_code == 1
    assert kind in {problem.kind for problem in result.problems}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"records/a.json"', b'"records/\\ud800"'),
        (b'"records/a.json"', b'"../a.json"'),
        (document(FILES).partition(b'"sha256": ')[2][:66], b'"\\ud800"'),
        (document(FILES).partition(b'"sha256": ')[2][:66], b'"0"'),
        (b'"bytes": 19', b'"bytes": true'),
    ],
    ids=["surrogate path", "path that leads out", "surrogate hash", "short hash", "size that is no number"],
)
def test_what_the_manifest_lists_has_the_form_of_a_member(tmp_path: Path, old: bytes, new: bytes) -> None:
    assert old in document(FILES)
    result = verified(tmp_path, packed(in_manifest(old, new)(members_of(FILES))))
    assert [problem.kind in ("damaged", "unsafe") for problem in result.problems] == [True]
    assert result.text().isascii()


# --- packed again by another program ---------------------------------------------------------------------------------


LONG = "records/" + "long/" * 30 + "c.json"  # its name fits no plain header beside the folder's


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """A bundle's folder as somebody unpacked and edited it: one member changed, one gone, one more."""
    (tmp_path / "good.tar.gz").write_bytes(packed(members_of(FILES | {LONG: b"{}"})))
    subprocess.run(["tar", "-xzf", "good.tar.gz"], cwd=tmp_path, check=True)  # before 3.11.4 Python's has no filter
    folder = tmp_path / NAME
    (folder / "records/a.json").write_text('{"median_us": 1.9}\n')
    (folder / LONG).write_text("[]")
    (folder / "source/kernel.cu").unlink()
    (folder / "source/more.cu").write_text("more")
    return folder


EDITED = {
    ("changed", "records/a.json"),
    ("changed", LONG),
    ("removed", "source/kernel.cu"),
    ("added", "source/more.cu"),
}


@pytest.mark.parametrize("form", ["gnu", "pax", "ustar"])
@pytest.mark.parametrize("place", ["..", "."])
def test_a_bundle_that_tar_packed_again_names_what_was_edited(
    tmp_path: Path, unpacked: Path, form: str, place: str
) -> None:
    where, what = (unpacked.parent, NAME) if place == ".." else (unpacked, ".")
    path = tmp_path / "again.tar.gz"
    subprocess.run(["tar", f"--format={form}", "-czf", path, "-C", where, what], check=True)
    result = verify.run(path)
    assert result.exit_code == 1
    assert result.problems[0].message == "its gzip header is not the one that kernelproof writes"
    found = {(problem.kind, problem.member) for problem in result.problems[1:]}
    assert found == EDITED | ({("renamed", ".")} if place == "." else set())


def test_a_bundle_whose_gzip_header_has_a_name_is_read_too(tmp_path: Path, unpacked: Path) -> None:
    subprocess.run(["tar", "-cf", "again.tar", NAME], cwd=tmp_path, check=True)
    subprocess.run(["gzip", "--name", "again.tar"], cwd=tmp_path, check=True)
    result = verify.run(tmp_path / "again.tar.gz")
    assert {(problem.kind, problem.member) for problem in result.problems[1:]} == EDITED


def test_python_packed_it_again(tmp_path: Path, unpacked: Path) -> None:
    """Its archives have pax headers for times with fractions."""
    with tarfile.open(tmp_path / "again.tar.gz", "w:gz") as tar:
        tar.add(unpacked, NAME)
    assert {(p.kind, p.member) for p in verify.run(tmp_path / "again.tar.gz").problems} >= EDITED


def test_the_second_look_stays_within_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first look refuses at its first header must not become a way around what stops it later."""

    def foreign(raw: bytes) -> str:
        return verified(tmp_path, gzip.compress(raw, 9)).text()

    started = time.monotonic()
    assert "a bomb" in foreign(header(f"{NAME}/zeros", size=1 << 32).tobuf(tarfile.USTAR_FORMAT) + bytes(1 << 26))
    long_name = header("././@LongLink", tarfile.GNUTYPE_LONGNAME, size=7 << 30)
    assert "further headers have more than" in foreign(long_name.tobuf(tarfile.GNU_FORMAT) + bytes(512))
    huge = header(f"{NAME}/manifest.yaml", size=7 << 30)
    assert f"it has {7 << 30} bytes, at most" in foreign(huge.tobuf(tarfile.USTAR_FORMAT) + bytes(512))
    monkeypatch.setattr(verify, "MAX_MEMBERS", 3)
    folders = header(f"{NAME}/f", tarfile.DIRTYPE).tobuf(tarfile.USTAR_FORMAT)
    assert "more than 3 members" in foreign(folders * 10)
    record = header("x", tarfile.XHDTYPE, size=512).tobuf(tarfile.PAX_FORMAT) + b"0 path=x\n".ljust(512, b"\0")
    assert "more than 3 members" in foreign(record * 10)
    assert time.monotonic() - started < 3


def test_what_cannot_be_read_to_its_end_accuses_nobody_of_removing(tmp_path: Path, unpacked: Path) -> None:
    subprocess.run(["tar", "-czf", "again.tar.gz", NAME], cwd=tmp_path, check=True)
    data = (tmp_path / "again.tar.gz").read_bytes()
    kinds = {problem.kind for problem in verified(tmp_path, data[: len(data) // 2]).problems}
    assert kinds <= {"damaged", "changed", "added"}


@pytest.mark.parametrize("place", range(40))
def test_no_flipped_byte_of_a_foreign_archive_is_a_fault_of_ours(tmp_path: Path, unpacked: Path, place: int) -> None:
    subprocess.run(["tar", "-czf", "again.tar.gz", NAME], cwd=tmp_path, check=True)
    data = bytearray((tmp_path / "again.tar.gz").read_bytes())
    data[place * len(data) // 40] ^= 0xFF
    assert verified(tmp_path, bytes(data)).exit_code in (1, 2)


def test_links_in_a_foreign_archive_are_named(tmp_path: Path, unpacked: Path) -> None:
    (unpacked / "source/link").symlink_to("/etc/passwd")
    subprocess.run(["tar", "-czf", "again.tar.gz", NAME], cwd=tmp_path, check=True)
    shown = verify.run(tmp_path / "again.tar.gz").text()
    assert f"unsafe: {NAME}/source/link: it is a symbolic link, not a regular file" in shown


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_bomb_is_stopped_at_once(tmp_path: Path) -> None:
    """4 GiB of zeros pack to 4 MB; a verifier that unpacked them would take a minute or the memory."""
    block = io.BytesIO()
    info = header(f"{NAME}/zeros", size=1 << 32)
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=block, mtime=0) as stream:
        stream.write(info.tobuf(tarfile.USTAR_FORMAT))
        zeros = bytes(1 << 20)
        for _ in range(64):
            stream.write(zeros)
    started = time.monotonic()
    result = verified(tmp_path, block.getvalue())
    assert time.monotonic() - started < 1
    assert result.exit_code == 1
    assert "a bomb" in str(result.problems[0])


def test_a_header_that_claims_a_huge_size_takes_no_memory(tmp_path: Path) -> None:
    import resource

    data = zipped(header(f"{NAME}/manifest.yaml", size=7 << 30).tobuf(tarfile.USTAR_FORMAT) + b"x" * 5000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert not verified(tmp_path, data).good
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def test_limits_on_size_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "MAX_PACKED_BYTES", 1000)
    assert "larger than a bundle may be" in verified(tmp_path, packed()).text()
    monkeypatch.undo()
    monkeypatch.setattr(verify, "MAX_MEMBERS", 3)
    assert "more than 3 members" in verified(tmp_path, packed()).text()
    monkeypatch.undo()
    monkeypatch.setattr(verify, "MAX_UNPACKED_BYTES", 1000)
    assert "a bomb" in verified(tmp_path, packed()).text()


def test_many_removed_and_many_added_members_take_no_time(tmp_path: Path) -> None:
    """Each removed one is looked for among the added ones; 19,000 times 19,000 would take half a minute."""
    rows = [{"path": f"z{n}", "class": "context", "bytes": 1, "sha256": f"{n:064x}"} for n in range(19_000)]
    facts = json.loads(document({})) | {"members": rows}
    files = {f"a/{n}": b"%d" % n for n in range(19_000)} | {"manifest.yaml": json.dumps(facts).encode()}
    data = packed(sorted(files.items()))
    started = time.monotonic()
    result = verified(tmp_path, data)
    assert time.monotonic() - started < 5
    assert {problem.kind for problem in result.problems} == {"removed", "added"}


def test_limits_on_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty objects take fifty times the memory of their text."""
    blob = b'{"x":[' + b"{}," * 2_000_000 + b"{}]}"
    started = time.monotonic()
    result = verified(tmp_path, packed([("manifest.yaml", blob)]))
    assert time.monotonic() - started < 1
    assert f"it has {len(blob)} bytes, at most {verify.MAX_MANIFEST_BYTES}" in str(result.problems[0])
    monkeypatch.setattr(verify, "MAX_MEMBERS", len(FILES) + 3)
    rows = json.loads(document(FILES))["members"] * 2
    listed = json.dumps(json.loads(document(FILES)) | {"members": rows}).encode()
    result = verified(tmp_path, packed(replaced("manifest.yaml", listed)(members_of(FILES))))
    assert "lists more than 7 members" in str(result.problems[0])


def test_limits_on_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FILES | {"records/test/op/v.json": b"{}" * 1000}
    monkeypatch.setattr(verify, "MAX_RECORDS_BYTES", 1000)
    assert "the records have more than 1000 bytes" in verified(tmp_path, packed(members_of(files))).text()
    monkeypatch.undo()
    monkeypatch.setattr(verify, "MAX_KEPT_BYTES", 3000)
    assert "have more than 3000 bytes" in verified(tmp_path, packed(members_of(FILES))).text()


def test_a_25_mb_bundle_takes_less_than_two_seconds(tmp_path: Path) -> None:
    noise = random.Random(3).randbytes(1 << 20)
    files = {f"samples/{i:02}.gz": bytes([i]) + noise for i in range(23)}
    path = tmp_path / "large.tar.gz"
    path.write_bytes(bundle.pack(NAME, members_of(files), 0))
    assert path.stat().st_size > 23_000_000
    started = time.monotonic()
    assert verify.run(path).good
    assert time.monotonic() - started < 2


# --- unreadable -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 1, 9, 10, 100, 0.5, 0.99, -9, -8, -1])
def test_a_cut_bundle_is_unreadable(tmp_path: Path, keep: float) -> None:
    data = packed()
    result = verified(tmp_path, data[: int(len(data) * keep)] if isinstance(keep, float) else data[:keep])
    assert result.exit_code == 2


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"not a bundle", zipped(b""), zipped(b"x" * 511)])
def test_what_is_no_bundle_is_unreadable(tmp_path: Path, data: bytes) -> None:
    result = verified(tmp_path, data)
    assert result.exit_code == 2
    assert result.identity is None


def test_a_missing_file_and_a_folder_are_unreadable(tmp_path: Path) -> None:
    assert verify.run(tmp_path / "nothing").exit_code == 2
    assert verify.run(tmp_path).exit_code == 2
    assert verify.run(tmp_path / "nothing").text() == f"unreadable: {tmp_path}/nothing\n  No such file or directory"


def test_of_very_many_problems_the_first_are_told(tmp_path: Path) -> None:
    problems = [verify.Problem("contradiction", f"records/{number}.json", "it is odd") for number in range(250)]
    told = verify.VerifyResult("b.tar.gz", status=verify.CONTRADICTORY, problems=problems, consistent=False).text()
    assert "contradictory: 250 things" in told
    assert "records/99.json" in told
    assert "records/100.json" not in told
    assert "  and 150 more, which --json has" in told


def test_an_unknown_schema_is_not_guessed_at(tmp_path: Path) -> None:
    change = replaced("manifest.yaml", document(FILES).replace(b"bundle/1", b"bundle/2"))
    result = verified(tmp_path, packed(change(members_of(FILES))))
    assert result.exit_code == 2
    assert "bundle/2" in result.text()


# --- the command ------------------------------------------------------------------------------------------------------


def command(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    # -I: neither this package nor anything installed beside it is in reach
    return subprocess.run(
        [sys.executable, "-I", "-S", *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_the_file_runs_alone(tmp_path: Path, good: Path) -> None:
    alone = tmp_path / "elsewhere" / "verify.py"
    alone.parent.mkdir()
    shutil.copy(verify.__file__, alone)
    done = command(alone, good, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("whole and unchanged: 7 members")
    assert "consistency: not looked at" in done.stdout
    good.write_bytes(packed(add("zz")(members_of(FILES))))
    done = command(alone, good, cwd=tmp_path)
    assert done.returncode == 1
    assert "added: zz" in done.stdout
    assert command(alone, tmp_path / "nothing", cwd=tmp_path).returncode == 2
    assert command(alone, cwd=tmp_path).stderr.startswith("usage: verify.py [-h]")


def test_the_runs_own_word_is_told_apart_from_what_was_verified(tmp_path: Path) -> None:
    """`good` is a run's own word. What a stranger wrote there reaches no terminal raw."""
    facts = json.loads(document(FILES)) | {"overall": "good\x1b[2J"}
    members = dict(members_of(FILES)) | {"manifest.yaml": json.dumps(facts).encode()}
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in members.items() if name != "SHA256SUMS"}
    members["SHA256SUMS"] = verify.sums_text(sums)
    result = verified(tmp_path, packed(sorted(members.items())))
    assert (result.status, result.exit_code) == ("contradictory", 3)
    first, second, *_, last = result.text().splitlines()
    assert first.startswith("whole and unchanged: 7 members")
    assert second == "contradictory: 2 things in it do not agree with one another"  # the facts, and the verdicts
    assert last == "the run says of itself: good\\x1b[2J"


def test_the_result_as_json(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main([str(good), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["status"], result["overall"], result["consistent"]) == ("whole", "incomplete", True)
    assert len(result["identity"]) == 64


def test_a_folder_stands_for_the_one_tarball_in_it(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main([str(good.parent)]) == 0
    assert capsys.readouterr().out.startswith("whole and unchanged")
    shutil.copy(good, good.with_name("other.tar.gz"))
    with pytest.raises(SystemExit, match="2"):
        verify.main([str(good.parent)])
    assert f"name the tarball in it, kernelproof-….tar.gz: {good}, " in capsys.readouterr().err


def test_what_lies_beside_a_bundle_is_what_it_holds(
    tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pages are read where they lie, and only the bundle has the hashes."""
    folder = tmp_path / "reports"
    folder.mkdir()
    files = FILES | {"report.html": b"<title>report</title>"}
    receipt = {"tarball": good.name, "overall": "incomplete"}
    (folder / good.name).write_bytes(packed(members_of(files)))
    receipt["sha256"] = hashlib.sha256((folder / good.name).read_bytes()).hexdigest()
    receipt["manifest_sha256"] = hashlib.sha256(document(files)).hexdigest()
    beside = {"report.html": files["report.html"], "manifest.yaml": document(files)}
    beside["bundle.json"] = json.dumps(receipt).encode()
    for name, data in beside.items():
        (folder / name).write_bytes(data)
    assert verify.main([str(folder)]) == 0
    said = capsys.readouterr().out
    assert f"read: {folder / good.name}; as in it, beside it: report.html, manifest.yaml, bundle.json\n" in said
    forged = {"manifest.yaml": b"{}", "bundle.json": json.dumps(receipt | {"overall": "good"}).encode()}
    for name in beside:
        (folder / name).write_bytes(forged.get(name, b"<h1>all correct</h1>"))
        assert verify.main([str(folder)]) == 3
        said = capsys.readouterr().out
        assert "contradictory: one thing in it does not agree with the rest\n" in said
        assert f"contradiction: {folder / name}: " in said
        assert verify.main([str(folder / good.name)]) == 0
        assert "read: " not in capsys.readouterr().out
        (folder / name).write_bytes(beside[name])
    (folder / "bundle.json").write_bytes(b"{}")
    assert verify.main([str(folder)]) == 3


def test_a_bundle_in_its_folder_is_read_once(
    tmp_path: Path, good: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the receipt is held against is the very file that was verified."""
    receipt = {"manifest_sha256": verify.run(good).identity, "sha256": hashlib.sha256(good.read_bytes()).hexdigest()}
    good.with_name("bundle.json").write_text(json.dumps(receipt | {"overall": "incomplete"}), encoding="utf-8")
    opened: list[str] = []
    plain = Path.open

    def noted(path: Path, *arguments: str) -> object:
        opened.append(path.name)
        return plain(path, *arguments)

    monkeypatch.setattr(Path, "open", noted)
    assert verify.main([str(good.parent)]) == 0
    assert "beside it: bundle.json\n" in capsys.readouterr().out
    assert opened == [good.name, "bundle.json"]


@pytest.mark.parametrize(
    ("provenance", "measured", "says"),
    [
        ({"commit": None}, {}, "of no commit"),
        ({"commit": None, "diff_sha256": "1a" * 32}, {}, "of no commit (its files: 1a1a1a1a)"),
        ({"commit": "c" * 40, "branch": "main"}, {}, "of commit cccccccccccc (main), as committed"),
        (
            {"commit": "c" * 40, "branch": "m\x1b[2J", "dirty": True, "diff_sha256": "1a" * 32},
            {"bench": {"commit": "d" * 40, "dirty": True, "diff_sha256": "2b" * 32}},
            *(
                "of commit cccccccccccc (m\\x1b[2J), with uncommitted changes (1a1a1a1a); "
                "everything was measured at dddddddddddd+",
            ),
        ),
        (
            {"commit": "c" * 40, "dirty": False, "diff_sha256": None},
            {
                "bench": {"commit": "c" * 40, "dirty": False, "diff_sha256": None},
                "test": {"commit": None, "dirty": False, "diff_sha256": "2b" * 32},
            },
            "of commit cccccccccccc, as committed; some of it was measured at no commit",
        ),
    ],
)
def test_what_it_is_of_is_told(provenance: dict[str, object], measured: dict[str, object], says: str) -> None:
    """A run keeps what did not change, so records of another commit are no contradiction."""
    result = verify.VerifyResult("a.tar.gz")
    verify._origin({"provenance": provenance, "measured": measured}, result)
    assert result.text().splitlines()[-2] == says


def test_several_bundles_are_judged_each_and_the_worst_counts(
    tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = tmp_path / "none.kept"
    none.write_bytes(b"no bundle")
    assert verify.main([str(good), str(good.parent)]) == 0
    assert verify.main([str(none), str(good)]) == 2
    said = capsys.readouterr().out.splitlines()
    assert said.count(f"{good}:") == 3
    assert said[said.index(f"{none}:") + 1].startswith("unreadable: ")
    assert said[-6] == f"{good}:"
    assert said[-5].startswith("whole and unchanged: ")
    assert verify.main(["--json", str(none), str(good)]) == 2
    assert [found["exit_code"] for found in json.loads(capsys.readouterr().out)] == [2, 0]
    with pytest.raises(SystemExit, match="2"):
        verify.main(["--identity", "0" * 64, str(none), str(good)])
    assert "--identity is that of one bundle, and 2 are named" in capsys.readouterr().err


def test_a_path_without_end_is_refused_at_once(tmp_path: Path) -> None:
    """Each folder of it would be looked up beside every other."""
    name = "b/" + "a/" * 100_000 + "x"
    archive = tmp_path / "long.tar.gz"
    with tarfile.open(archive, "w:gz", format=tarfile.GNU_FORMAT) as packed:
        packed.addfile(tarfile.TarInfo(name), io.BytesIO())
    started = time.monotonic()
    result = verify.run(archive)
    assert time.monotonic() - started < 1.0
    assert result.exit_code == 1
    assert any("longer than 1024 characters" in str(problem) for problem in result.problems)
