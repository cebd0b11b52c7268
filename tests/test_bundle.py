"""The bundle: the same bytes everywhere, nothing private, never half of one."""

import html
import json
import os
import resource
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import packed_run
import pytest
import yaml

from kernelproof import OF_A_RUN, bundle, cli, manifest, privacy, records, report, verify
from kernelproof import config as configuration
from kernelproof.config import Config
from kernelproof.errors import BundleError


@pytest.fixture
def run(tmp_path: Path) -> "Run":
    return Run(tmp_path / "repo")


class Run:
    """A finished run, its facts and its pages, ready to be packed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config: Config = packed_run.make(root)
        self.folder = root / "reports" / packed_run.FOLDER
        self.facts = root / "results/manifest" / f"{packed_run.FOLDER}.json"
        self.gather()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "report.html").write_text("<!doctype html><title>report</title>")
        (self.folder / "summary.md").write_text("# Summary\n")

    def gather(self) -> None:
        manifest.run(self.config, packed_run.FOLDER, self.facts)
        # The sample lies in no git repository: give its facts the commit that its records have.
        facts = records.read(self.facts, records.ManifestRecord)
        facts.provenance = packed_run.STATE
        records.write(self.facts, facts)

    def pack(self) -> Path:
        return self.folder / bundle.run(self.config, self.facts, self.folder).tarball

    def with_limit(self, max_bytes: int) -> None:
        self.config = replace(self.config, bundle=replace(self.config.bundle, max_bytes=max_bytes))


def unpacked(tarball: Path) -> dict[str, bytes]:
    with tarfile.open(tarball) as archive:
        return {
            member.name.partition("/")[2]: archive.extractfile(member).read()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }


def test_who_packs_what_contradicts_itself_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run.root / "results/build/op/plain.json"
    built = records.read(path, records.BuildRecord)
    records.write(path, replace(built, signature="another"))
    run.gather()
    receipt = bundle.run(run.config, run.facts, run.folder)
    says = "records/test/op/plain.json: it tested the build 'aa', and the build's record is of 'another'"
    assert receipt.contradictions == [says]
    assert [problem.message for problem in verify.run(run.folder / receipt.tarball).problems] == [
        says.partition(": ")[2]
    ]
    monkeypatch.chdir(run.root)
    assert cli.main(["bundle", "--folder", str(run.folder)]) == 3
    assert f"it contradicts itself, and `kernelproof verify` refuses it: {says}" in capsys.readouterr().out


def test_a_bundle_holds_the_run_and_verifies(run: Run) -> None:
    tarball = run.pack()
    assert tarball.name == "kernelproof-0123456789ab-20250301T120000Z.tar.gz"
    result = verify.run(tarball)
    assert result.problems == []
    assert result.exit_code == 0
    assert (result.commit, result.overall) == (packed_run.COMMIT, "good")
    names = set(unpacked(tarball))
    assert {
        "manifest.yaml",
        "SHA256SUMS",
        "REPLAY.md",
        "report.html",
        "summary.md",
        "config.json",
        "machine-code.json",
        "records/bench/op-cpu.json",
        "records/manifest.json",
        "samples/op-cpu.csv.gz",
        "junit/op/plain.xml",
        "logs/build/op/plain.log",
        "cubins/op/tiled/sm_89.cubin",
        "sass/op/tiled/sm_89.sass",
        "profile/op/tiled.ncu-rep",
        "source/csrc/op/tiled.cu",
        "source/repro.sh",
        "source/op.py",
        "source/envs/tool.txt",
    } <= names
    assert not [name for name in names if "pycache" in name or "bundle/other.log" in name or ".snakemake" in name]


def test_another_configuration_file_is_in_the_bundle_and_replay_names_it(run: Run) -> None:
    members = unpacked(run.pack())
    assert "       ./repro.sh\n" in members["REPLAY.md"].decode()
    assert members["source/config.yaml"] == (run.config.root / "config.yaml").read_bytes()
    other = run.config.root / "configs" / "my other.yaml"
    other.parent.mkdir()
    other.write_bytes(members["source/config.yaml"] + b"bundle: {max_bytes: 5000000}\n")
    run.config = configuration.load(other, root=run.config.root)
    run.gather()
    members = unpacked(run.pack())
    assert members["source/configs/my other.yaml"] == other.read_bytes()
    assert "./repro.sh -- --configfile 'configs/my other.yaml'\n" in members["REPLAY.md"].decode()
    assert "./repro.sh -- --configfile config.resolved.json\n" in members["REPLAY.md"].decode()
    packed = next(run.folder.glob("*.tar.gz")).name
    compared = f"       .venv/bin/kernelproof compare ../../{packed} reports/*/kernelproof-*.tar.gz\n"
    assert compared in members["REPLAY.md"].decode()
    assert json.loads(members["source/config.resolved.json"])["bundle"]["max_bytes"] == 5_000_000
    assert members["source/config.resolved.json"] == members["config.json"]


def test_a_record_of_other_settings_is_not_packed(run: Run) -> None:
    """`verify` would find the bundle contradictory; what was packed before stays."""
    before = run.pack().read_bytes()
    run.config = replace(run.config, test=replace(run.config.test, trials=7))
    run.gather()
    says = r"(?s)records/test/op/library.json: it was made with another test.trials than config.json has, 7.*repro.sh"
    with pytest.raises(BundleError, match=says):
        run.pack()
    assert next(run.folder.glob("*.tar.gz")).read_bytes() == before


def test_a_bundle_of_ones_own_repository_is_replayed_with_a_clone(run: Run) -> None:
    (run.config.root / "repro.sh").unlink()
    run.gather()
    text = unpacked(run.pack())["REPLAY.md"].decode()
    assert "a clone of kernelproof (version\n   0.1.0 made this bundle)" in text
    assert '       export PATH="$KERNELPROOF/.venv/bin:$PATH"\n' in text
    for name in ("config.yaml", "config.resolved.json"):
        command = f'kernelproof run -- --snakefile "$KERNELPROOF/Snakefile" --configfile {name}'
        assert f"       {command}\n" in text
    assert "       ./repro.sh" not in text
    assert "       kernelproof compare ../../" in text


def test_the_manifest_lists_every_member_and_is_json_and_yaml(run: Run) -> None:
    tarball = run.pack()
    text = (run.folder / "manifest.yaml").read_text(encoding="utf-8")
    document = json.loads(text)
    assert yaml.safe_load(text) == document
    members = unpacked(tarball)
    assert members["manifest.yaml"].decode() == text
    assert {row["path"] for row in document["members"]} == set(members) - {"manifest.yaml", "SHA256SUMS"}
    classes = {row["path"]: row["class"] for row in document["members"]}
    assert classes["source/csrc/op/plain.cc"] == classes["config.json"] == "identity"
    assert classes["samples/op-cpu.csv.gz"] == classes["records/test/op/plain.json"] == "measurement"
    assert classes["machine-code.json"] == "identity"
    assert json.loads(members["machine-code.json"]) == {"op/tiled": {"sm_89": "22"}}
    assert classes["records/capture/capture.json"] == classes["logs/build/op/plain.log"] == "context"


def test_the_receipt_names_what_was_packed(run: Run) -> None:
    tarball = run.pack()
    receipt = json.loads((run.folder / "bundle.json").read_text())
    assert receipt["tarball"] == tarball.name
    assert receipt["bytes"] == tarball.stat().st_size
    assert receipt["sha256"] == records.sha256_file(tarball)
    assert receipt["manifest_sha256"] == verify.run(tarball).identity


def test_sums_are_read_by_coreutils(run: Run, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "-xzf", run.pack(), "-C", tmp_path / "out"], check=True)
    (home,) = (tmp_path / "out").iterdir()
    done = subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=home, check=False)
    assert done.returncode == 0


def test_the_same_bytes_from_another_folder_umask_zone_and_locale(run: Run, tmp_path: Path) -> None:
    """A second process packs a copy of the run elsewhere, under settings that leak into careless archives."""
    first = run.pack().read_bytes()
    script = (
        "import os, sys; os.umask(0o077)\n"
        "from pathlib import Path\n"
        "import test_bundle\n"
        "print(test_bundle.Run(Path(sys.argv[1])).pack())\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONHASHSEED": "12345",
        "TZ": "Pacific/Kiritimati",
        "LC_ALL": "C",
        "HOME": str(tmp_path),
    }
    elsewhere = tmp_path / "a much longer folder" / "copy"
    done = subprocess.run(
        [sys.executable, "-c", script, str(elsewhere)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).read_bytes() == first


def test_packing_again_changes_nothing_and_an_older_tarball_goes(run: Run) -> None:
    older = run.folder / "kernelproof-0123456789ab-20240101T000000Z.tar.gz"
    older.write_bytes(b"of an earlier run")
    tarball = run.pack()
    first = tarball.read_bytes()
    assert not older.exists()
    assert run.pack().read_bytes() == first
    assert sorted(path.name for path in run.folder.iterdir()) == sorted(
        ["bundle.json", tarball.name, "manifest.yaml", "report.html", "summary.md"]
    )


def test_nothing_private_is_packed(run: Run, home: str) -> None:
    page = f"<!doctype html><pre>{home}/kernels/tiled.cu(3): error</pre>"
    (run.folder / "report.html").write_text(page)
    (run.root / "results/logs/build/op/plain.log").write_text(f"g++ {home}/plain.cc\n")
    run.gather()
    members = unpacked(run.pack())
    assert not [path for path, data in members.items() if f"{home}/".encode() in data]
    assert members["report.html"] == b"<!doctype html><pre>&lt;home&gt;/kernels/tiled.cu(3): error</pre>"
    assert members["report.html"] == (run.folder / "report.html").read_bytes()
    assert members["logs/build/op/plain.log"] == b"g++ <home>/plain.cc\n"


SECRET = 'pä<s&w"rd\x01_longenough'
TOKEN = "ghp_" + "a" * 36


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    privacy.secrets.cache_clear()
    yield SECRET
    monkeypatch.undo()
    privacy.secrets.cache_clear()


def traces(members: dict[str, bytes], *private: str) -> list[tuple[str, str]]:
    """Which member holds which of the private texts, as it is or as JSON or HTML escape it."""
    forms = [(text, form) for text in private for form in {text, json.dumps(text)[1:-1], html.escape(text)}]
    return [(path, text) for path, data in members.items() for text, form in forms if form.encode() in data]


def test_facts_hold_nothing_private(run: Run, secret: str, home: str) -> None:
    path = run.root / "results/test/op/plain.json"
    told = replace(
        records.read(path, records.TestRecord), verdict="wrong", reason=f"{TOKEN} {secret} in {home}/kernels"
    )
    records.atomic_write(path, json.dumps({"schema": told.SCHEMA, **asdict(told)}))  # as others may have written it
    run.gather()
    facts = records.read(run.facts, records.ManifestRecord)
    facts.provenance = replace(packed_run.STATE, branch=f"{home}/{TOKEN}")
    records.write(run.facts, facts)
    packed = unpacked(run.pack())
    packed["bundle.json"] = (run.folder / "bundle.json").read_bytes()
    assert not traces(packed, TOKEN, secret, f"{home}/")
    document = json.loads(packed["manifest.yaml"])
    assert document["verdicts"][0]["reason"] == "[secret] [secret] in <home>/kernels"
    assert document["provenance"]["branch"] == "<home>/[secret]"
    assert json.loads(packed["bundle.json"])["provenance"]["branch"] == "<home>/[secret]"


@pytest.mark.parametrize("before", [0, 380])  # the summary cuts texts at 400 characters
def test_a_secret_is_taken_out_before_it_is_escaped_or_cut(run: Run, secret: str, before: int) -> None:
    path = run.root / "results/test/op/plain.json"
    said = f"{'x' * before} {secret}"
    told = replace(records.read(path, records.TestRecord), verdict="wrong", reason=said)
    records.atomic_write(path, json.dumps({"schema": told.SCHEMA, **asdict(told)}))
    (run.root / "results/test/op/plain.xml").write_text(f'<testsuite message="{html.escape(said)}"/>')
    (run.root / "results/logs/build/op/plain.log").write_text(said)
    run.gather()
    report.run(run.config, run.facts, run.folder / "report.html", run.folder / "summary.md")
    packed = unpacked(run.pack())
    assert not traces(packed, secret, secret[:8])
    assert json.loads(packed["records/test/op/plain.json"])["reason"].endswith(" [secret]")


def test_what_git_ignores_is_not_packed(run: Run) -> None:
    def add(path: str, text: str = "private") -> None:
        (run.root / path).parent.mkdir(parents=True, exist_ok=True)
        (run.root / path).write_text(text)

    add(".gitignore", "private/\nbinding.cc\nread.h\nother.h\n/results/\n/reports/\n")
    for path in ("csrc/private/notes.txt", "csrc/op/other.h", "csrc/op/read.h", "csrc/op/new.h"):
        add(path)
    subprocess.run(["git", "init", "--quiet", run.root], check=True)
    subprocess.run(["git", "-C", run.root, "add", "csrc/op/plain.cc", "op.py"], check=True)
    build = records.read(run.root / "results/build/op/plain.json", records.BuildRecord)
    build.headers = [records.FileHash("csrc/op/read.h", "00")]
    records.write(run.root / "results/build/op/plain.json", build)
    run.gather()
    names = {name.removeprefix("source/") for name in unpacked(run.pack()) if name.startswith("source/csrc/")}
    assert names == {
        "csrc/op/plain.cc",
        "csrc/op/tiled.cu",
        "csrc/op/binding.cc",  # the configuration names it
        "csrc/op/read.h",  # the build read it
        "csrc/op/new.h",  # not yet added
    }


def test_who_measured_is_not_in_the_bundle_of_another(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = run.root / "elsewhere"
    elsewhere.mkdir()
    with monkeypatch.context() as there:
        there.chdir(elsewhere)
        there.setenv("HOME", "/nfs/homes/measurer")
        there.setattr("socket.gethostname", lambda: "node7.cluster")
        there.setattr("getpass.getuser", lambda: "measurer")
        privacy.note(run.config.results)
    path = run.root / "results/test/op/plain.json"
    said = "measurer on node7: /nfs/homes/measurer/kernels"
    records.write(path, replace(records.read(path, records.TestRecord), verdict="wrong", reason=said))
    run.gather()
    report.run(run.config, run.facts, run.folder / "report.html", run.folder / "summary.md")
    packed = unpacked(run.pack())
    assert not traces(packed, "measurer", "node7")
    assert json.loads(packed["manifest.yaml"])["verdicts"][0]["reason"] == "<user> on <host>: <home>/kernels"


# --- size -------------------------------------------------------------------------------------------------------------


def test_what_is_dropped_first_is_stated(run: Run) -> None:
    noise = os.urandom(200_000)
    (run.root / "results/profile/op/tiled.ncu-rep").write_bytes(noise)
    run.gather()
    run.with_limit(100_000)
    tarball = run.pack()
    assert tarball.stat().st_size <= 100_000
    document = json.loads((run.folder / "manifest.yaml").read_text())
    dropped = document["dropped"]
    assert [row["path"] for row in dropped] == [
        "profile/op/tiled.csv",
        "sass/op/tiled/sm_89.sass",
        "cubins/op/tiled/sm_89.cubin",
        "profile/op/tiled.ncu-rep",
    ]
    assert dropped[3]["bytes"] == 200_000
    assert all(row["why"] for row in dropped)
    assert "profile/op/tiled.ncu-rep" not in unpacked(tarball)
    assert verify.run(tarball).good


def test_each_step_by_hand_says_what_it_made(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.root)
    (run.root / "config.yaml").write_text(json.dumps(packed_run.SETTINGS))
    for name in OF_A_RUN:
        monkeypatch.delenv(name, raising=False)
    folder = f"--folder=reports/{packed_run.FOLDER}"
    said = []
    for step in ("manifest", "report", "bundle"):
        assert cli.main([step, folder]) == 0
        said += capsys.readouterr().out.splitlines()
    number = len(records.read(run.facts, records.ManifestRecord).records)
    assert said[0] == f"{packed_run.FOLDER}: {number} records gathered, good"
    assert said[1:3] == [f"reports/{packed_run.FOLDER}/{name}" for name in ("report.html", "summary.md")]
    (tarball,) = run.folder.glob("*.tar.gz")
    assert said[3].startswith(f"reports/{packed_run.FOLDER}/{tarball.name}: ")
    for path in (run.root / "results").glob("*/**/*.json"):
        path.unlink()
    assert cli.main(["manifest", folder]) == 0
    assert "there is no record to gather" in capsys.readouterr().out


def test_reports_of_baselines_go_before_those_of_variants() -> None:
    def item(path: str, size: int) -> bundle.Packed:
        return bundle.Packed(records.Member(path, "", size, "measurement"), os.urandom(size))

    paths = {"profile/op/ours.ncu-rep": 900, "profile/op/other.ncu-rep": 700, "profile/op/library.ncu-rep": 300}
    packed = [item(path, size) for path, size in paths.items()]
    chosen = [
        [found.member.path.split("/")[-1] for found in bundle._next_to_drop(packed, too_much, {"op/library"})]
        for too_much in (100, 400, 1300)
    ]
    library, ours, other = "library.ncu-rep", "ours.ncu-rep", "other.ncu-rep"
    assert chosen == [[library], [library, ours], [library, ours, other]]


def test_a_bundle_above_the_hard_limit_is_not_written(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "HARD_MAX_BYTES", 2_000)
    with pytest.raises(BundleError, match="at most 2000") as caught:
        run.pack()
    assert "the largest member is" in str(caught.value)
    assert not list(run.folder.glob("*.tar.gz"))


# --- faults -----------------------------------------------------------------------------------------------------------


def test_a_record_that_changed_since_the_manifest_stops_the_packing(run: Run) -> None:
    (run.root / "results/bench/op-cpu.csv.gz").write_bytes(b"other samples")
    with pytest.raises(BundleError, match="changed since the manifest was made") as caught:
        run.pack()
    assert caught.value.subject == "results/bench/op-cpu.csv.gz"
    assert "kernelproof manifest, then report" in str(caught.value.hint)


def test_a_missing_page_stops_the_packing(run: Run) -> None:
    (run.folder / "report.html").unlink()
    with pytest.raises(BundleError, match=r"report\.html"):
        run.pack()


@contextmanager
def files_no_larger_than(limit: int) -> Iterator[None]:
    """A disk that is full after so many bytes of one file, as far as a process can have one without privileges."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write then fails with EFBIG
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_the_previous_bundle(run: Run) -> None:
    run.pack()
    before = {path.name: path.read_bytes() for path in run.folder.iterdir()}
    (run.folder / "report.html").write_text("<!doctype html>another page")
    with files_no_larger_than(3_000), pytest.raises(BundleError, match="the disk is full") as caught:
        run.pack()
    assert "free some space" in str(caught.value)
    after = {path.name: path.read_bytes() for path in run.folder.iterdir()}
    assert after == before | {"report.html": b"<!doctype html>another page"}
    assert verify.run(run.pack()).good  # and with space again the same command works


def test_a_full_file_system_leaves_nothing(run: Run, tmp_path: Path) -> None:
    """The same on a real file system of 16 KiB, where the machine lets us mount one."""
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(small)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a file system; the test above fills a file instead")
    try:
        for page in ("report.html", "summary.md"):
            (small / page).write_text("page")
        (run.root / "results/bench/op-cpu.csv.gz").write_bytes(os.urandom(30_000))
        run.gather()
        with pytest.raises(BundleError, match="the disk is full"):
            bundle.run(run.config, run.facts, small)
        assert sorted(path.name for path in small.iterdir()) == ["report.html", "summary.md"]
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_what_a_killed_packing_left_is_swept_away(run: Run) -> None:
    stale = run.folder / ".bundle-killed"
    stale.mkdir()
    (stale / "half.tar.gz").write_bytes(b"half")
    run.pack()
    assert not stale.exists()


# --- the manifest's form ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1e-05, "b": 1.5e300, "c": -2e16, "d": 0.1, "e": 10},
        {"text": 'quotes " \\ tab \t del \x7f nel \x85 ls \u2028 µs 🙂 bom \ufeff'},
        {"yes": "yes", "null": "null", "1.0": "1:30", "~": None, "on": True},
        [[], {}, [1, [2, {"deep": []}]], ""],
        {"- a": "#c", "b: c": "*d", "e": "&f"},
    ],
)
def test_yaml_and_json_read_the_manifest_alike(value: object) -> None:
    text = bundle.yaml_json(value)
    assert json.loads(text) == value
    assert yaml.safe_load(text) == value


def test_a_member_with_a_path_too_long_is_named() -> None:
    with pytest.raises(BundleError, match="too long") as caught:
        bundle.pack("kernelproof-x", [("a" * 300, b"")], 0)
    assert caught.value.subject == "a" * 300


@pytest.mark.parametrize("name", ["logs/aux.log", "logs/a:b.log", "logs/a ./b.log"])
def test_a_member_that_verify_would_refuse_is_not_packed(run: Run, name: str) -> None:
    """An honest bundle must not read as one that was tampered with."""
    facts = records.read(run.facts, records.ManifestRecord)
    facts.members.append(replace(facts.members[0], path=name, source=f"results/{name}"))
    records.write(run.facts, facts)
    with pytest.raises(BundleError, match="means something else on another system") as caught:
        run.pack()
    assert (caught.value.subject, caught.value.hint) == (f"results/{name}", "rename that file")
