"""A run is read from wherever it lies, and nothing of one that was changed is believed."""

import gzip
import hashlib
import json
import shutil
from pathlib import Path

import packed_run
import pytest
import simulated_runs

from kernelproof import bundle, manifest, records, report, runs
from kernelproof.errors import BundleError, RecordError

REFERENCE = Path(__file__).resolve().parents[1] / "reports" / "reference" / "nvidia-h200"


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A report's folder with a real bundle in it."""
    root = tmp_path / "project"
    config = packed_run.make(root)
    folder = root / "reports" / packed_run.FOLDER
    facts = config.record("manifest", packed_run.FOLDER)
    manifest.run(config, packed_run.FOLDER, facts)
    report.run(config, facts, folder / "report.html", folder / "summary.md")
    bundle.run(config, facts, folder)
    return folder


def test_a_bundle_a_reports_folder_and_results_are_the_same_run(packed: Path) -> None:
    tarball = next(packed.glob("*.tar.gz"))
    found = [runs.load(path) for path in (tarball, packed, packed.parents[1])]
    for one in found:
        assert sorted(one.tests) == ["op/library", "op/plain", "op/tiled"]
        assert sorted(one.benches) == ["op-cpu", "op-cuda"]
        assert one.commits == [packed_run.COMMIT[:12]]
        assert one.utc == packed_run.UTC
        assert one.config["operators"]["op"]["profile"]["shape"] == "large"
        assert one.read_samples("op-cpu.csv.gz") == packed_run.BINARIES["results/bench/op-cpu.csv.gz"]
    receipt = json.loads((packed / "bundle.json").read_text())
    assert [one.identity for one in found] == [receipt["manifest_sha256"]] * 2 + [None]
    assert list(runs.keys(*found)) == ["op/plain", "op/tiled", "op/library"]


def test_a_changed_bundle_is_refused_by_name(packed: Path) -> None:
    import io
    import tarfile

    tarball = next(packed.glob("*.tar.gz"))
    with tarfile.open(tarball) as archive:
        files = [(m.name.partition("/")[2], archive.extractfile(m).read()) for m in archive]  # type: ignore[union-attr]
        top, mtime = archive.getnames()[0].partition("/")[0], int(archive.getmembers()[0].mtime)
    swapped = [(n, d.replace(b'"correct"', b'"wrong"') if n == "records/test/op/plain.json" else d) for n, d in files]
    tarball.write_bytes(bundle.pack(top, swapped, mtime))
    assert io.BytesIO(tarball.read_bytes())
    with pytest.raises(BundleError, match=r"tampered with: changed: records/test/op/plain\.json") as caught:
        runs.load(packed)
    assert "kernelproof verify" in str(caught.value)
    tarball.write_bytes(tarball.read_bytes()[:2000])
    with pytest.raises(BundleError, match="unreadable"):
        runs.load(tarball)


def test_kept_records_are_held_against_their_manifest(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(REFERENCE, kept)
    one = runs.load(kept)
    assert one.gpu["name"] == "NVIDIA H200"
    assert one.identity is not None
    path = kept / "records" / "bench" / "attention-cuda.csv.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b"sdpa_flash", b"sdpa_flush")))
    for named in (kept, kept / "records"):
        with pytest.raises(BundleError, match=r"tampered with: samples/attention-cuda\.csv\.gz is not what was packed"):
            runs.load(named)
    path.unlink()
    added = kept / "records" / "test" / "attention" / "new.json"
    shutil.copy(kept / "records" / "test" / "attention" / "fp16_wmma.json", added)
    with pytest.raises(BundleError, match=r"test/attention/new\.json is not in it"):
        runs.load(kept)


def test_kept_records_that_contradict_one_another_are_refused_whatever_their_hashes(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(REFERENCE, kept)
    record, manifest = kept / "records" / "bench" / "rmsnorm-cuda.json", kept / "manifest.yaml"
    before = record.read_bytes()
    bench = json.loads(before)
    (row,) = [r for r in bench["oracle"] if (r["variant"], r["case"], r["mode"]) == ("naive", "large-float16", "hot")]
    row["low"] = row["ratio"] = row["high"] = 0.01
    record.write_text(json.dumps(bench))
    old, new = (hashlib.sha256(data).hexdigest() for data in (before, record.read_bytes()))
    manifest.write_text(manifest.read_text().replace(old, new))
    with pytest.raises(
        BundleError, match=r"kept records contradict one another: records/bench/rmsnorm-cuda\.json: .*naive"
    ):
        runs.load(kept)


@pytest.mark.parametrize(
    "gone",
    [
        "records/test/qkt/simfp8_qkt.json",
        "records/profile/qkt/simfp8_qkt.json",
        "records/bench/rmsnorm-cuda.json",
        "records/bench/rmsnorm-cuda.csv.gz",
        "records/config.json",
    ],
)
def test_a_kept_record_that_was_removed_is_missed(tmp_path: Path, gone: str) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(REFERENCE, kept)
    (kept / gone).unlink()
    with pytest.raises(BundleError, match=rf"tampered with: \S*{Path(gone).name} is missing, by manifest\.yaml"):
        runs.load(kept)


def test_an_unpacked_bundle_is_the_run_that_was_packed(packed: Path, tmp_path: Path) -> None:
    tarball = next(packed.glob("*.tar.gz"))
    shutil.unpack_archive(tarball, tmp_path / "unpacked")
    (folder,) = (tmp_path / "unpacked").iterdir()
    found, expected = runs.load(folder), runs.load(tarball)
    assert (found.identity, found.config) == (expected.identity, expected.config)
    assert found.read_samples("op-cpu.csv.gz") == expected.read_samples("op-cpu.csv.gz")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("[" * 100_000, "cannot be read"),
        ('{"operators": {"op": 3}}', "3 is not a mapping"),
        ('{"operators": {"op": {"profile": {"options": []}}}}', "[] is not a mapping"),
        ('{"gate": {"same_band": "x"}}', "'x' is not a number"),
        ('{"bench": {"confidence": 7}}', "bench.confidence: 7 is not between 0 and 1"),
        ("[]", "[] is not a mapping"),
    ],
)
def test_a_configuration_that_is_none_is_listed(tmp_path: Path, config: str, said: str) -> None:
    folder = simulated_runs.write(simulated_runs.make(), tmp_path / "run")
    (folder / "records" / "config.json").write_text(config)
    one = runs.load(folder)
    assert [entry.path for entry in one.unread] == ["config.json"]
    assert said in one.unread[0].reason
    assert list(runs.keys(one))


def test_what_a_probe_found_may_be_anything() -> None:
    one = simulated_runs.make()
    assert one.capture is not None
    one.capture.probes |= {name: records.Probe("ok", [1]) for name in ("cpu", "packages", "gpu")}
    assert (one.cpu, one.packages, one.gpu, one.machine) == ({}, {}, {}, "")


def test_what_cannot_be_read_is_listed(tmp_path: Path) -> None:
    folder = simulated_runs.write(simulated_runs.make(), tmp_path / "run")
    path = folder / "records" / "test" / "op" / "fast.json"
    path.write_text(path.read_text().replace("kernelproof.test/1", "kernelproof.test/9"))
    (folder / "records" / "build" / "op" / "plain.json").write_text("{")
    one = runs.load(folder)
    assert "op/fast" not in one.tests
    assert {entry.path for entry in one.unread} == {"test/op/fast.json", "build/op/plain.json"}
    assert "schema 'kernelproof.test/9'" in next(e.reason for e in one.unread if e.path.startswith("test"))


def test_no_run_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no such bundle or folder"):
        runs.load(tmp_path / "nowhere")
    with pytest.raises(RecordError, match="no records and no bundle"):
        runs.load(tmp_path)
    for name in ("kernelproof-a.tar.gz", "kernelproof-b.tar.gz"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(RecordError, match="2 bundles"):
        runs.load(tmp_path)
    records.atomic_write(tmp_path / "results" / "test" / "op" / "v.json", "{}")
    with pytest.raises(RecordError, match="no record in it can be read"):
        runs.load(tmp_path)


def test_the_same_code() -> None:
    before, after = simulated_runs.make(1), simulated_runs.make(2, machine_code="other")
    assert runs.same_code(before, after, "op/plain")
    assert runs.same_code(before, after, "op/cudnn")
    assert not runs.same_code(before, after, "op/fast")
    assert not runs.same_code(before, simulated_runs.make(3, torch="2.12"), "op/plain")
    assert not runs.same_code(before, after, "op/unknown")


def test_library_calls_are_the_same_where_their_kernels_are() -> None:
    def moved(run: runs.Run, sha256: str) -> runs.Run:
        source = records.FileHash(f"src/{runs.LIBRARY_CALLS}", sha256)
        return simulated_runs.changed(run, "op/flash", lambda build: build.sources.__setitem__(slice(None), [source]))

    before, after = moved(simulated_runs.make(1), "1"), moved(simulated_runs.make(2), "2")
    assert not runs.same_code(before, after, "op/flash")
    for run in (before, after):
        run.benches["op-cuda"].kernels_in_interval["flash"] = [{"case": "small", "name": "fwd", "count": 1}]
    assert runs.same_code(before, after, "op/flash")
    after.benches["op-cuda"].kernels_in_interval["flash"] = [{"case": "small", "name": "fwd_v2", "count": 1}]
    assert not runs.same_code(before, after, "op/flash")


def test_a_benchmark_is_of_the_board_that_it_names() -> None:
    before, after = simulated_runs.make(1), simulated_runs.make(1)
    assert after.capture
    (board,) = after.capture.probes["gpu"].value
    other = {**board, "name": "NVIDIA L4", "uuid_sha256": "l4"}
    after.capture.probes["gpu"].value = [board, other]
    assert "another than the benchmark names" in str(runs.comparability(before, after, "op-cuda").refusal)
    after.benches["op-cuda"].gpu = board["uuid_sha256"]
    assert runs.comparability(before, after, "op-cuda").refusal is None
    after.benches["op-cuda"].gpu = "l4"
    assert runs.comparability(before, after, "op-cuda").refusal == "the GPU models differ: NVIDIA H200 and NVIDIA L4"
    after.benches["op-cuda"].gpu = "gone"
    assert "another than the benchmark names" in str(runs.comparability(before, after, "op-cuda").refusal)


def test_a_regression_gate_asks_for_the_same_driver_branch_and_clocks() -> None:
    before = simulated_runs.make(1, driver="580.10")
    assert runs.strictly(before, simulated_runs.make(2, driver="580.99"), "op-cuda") is None
    assert runs.strictly(before, simulated_runs.make(2, driver="590.1"), "op-cuda") == (
        "the driver's branches differ: 580 and 590"
    )
    slow = simulated_runs.make(2)
    slow.benches["op-cuda"].states["sm_clock_mhz"]["median"] = 1500.0
    assert "clocks differ: median SM clock" in str(runs.strictly(before, slow, "op-cuda"))
    assert "GPU models differ" in str(runs.strictly(before, simulated_runs.make(2, gpu="NVIDIA L4"), "op-cuda"))
