"""Tables and choices from kept records: what is shown, what is absent, and that this repository's are current."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernelproof import cli, derive, records
from kernelproof import config as configuration
from kernelproof.config import Config
from kernelproof.errors import BundleError, ConfigError, ExitCode, KernelproofError, RecordError

ROOT = Path(__file__).resolve().parents[1]
GPU = "reports/reference/a-gpu/records"
DIMS = {"batch": 2, "heads": 4, "seq": 64, "head_dim": 64}
LARGE = {**DIMS, "seq": 512}


def settings(sources: list[str], **more: Any) -> dict[str, Any]:
    return {"device": "cuda", "sources": sources, "dtypes": ["float16"], "precision": {"output": "input"}, **more}


def configured() -> dict[str, Any]:
    variants = {
        "slow": settings(["csrc/op/slow.cu"], idea="one | two"),
        "fast": settings(["csrc/op/fast.cu"], limits={"head_dim": [64]}, archs=["sm_90a"]),
        "both": settings(["csrc/op/both.cu"], rungs=["slow", "fast"]),
        "host": settings(["csrc/op/host.cc"], device="cpu"),
    }
    operator = {
        "module": "op.py",
        "binding": "csrc/op/binding.cc",
        "shapes": {"main": DIMS, "large": LARGE},
        "test": {"shapes": ["main"]},
        "bench": {"shapes": ["main"], "cuda_shapes": ["large"], "options": {"causal": [False, True]}},
        "variants": variants,
    }
    return {"schema": "kernelproof.config/1", "project": "sample", "operators": {"op": operator}}


README = """\
Before.

<!-- derived: op measured -->
stale
<!-- end -->

<!-- derived: op takes -->
<!-- end -->

After.
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    for name in ("slow.cu", "fast.cu", "both.cu", "host.cc", "binding.cc"):
        records.atomic_write(tmp_path / "csrc/op" / name, "")
    records.atomic_write(tmp_path / "op.py", "")
    records.atomic_write(tmp_path / "csrc/README.md", README)
    records.atomic_write(tmp_path / "config.yaml", yaml.safe_dump(configured(), sort_keys=False))
    keep(tmp_path)
    return configuration.load(tmp_path / "config.yaml", root=tmp_path)


def case(shape: str, *, causal: bool = False, dtype: str = "float16") -> records.BenchCase:
    options: dict[str, bool | str] = {"causal": causal}
    wanted = records.Case("op", shape, LARGE if shape == "large" else DIMS, options, dtype)
    return records.BenchCase(wanted.bench_id, shape, wanted.dims, options, dtype, 4e9, 2e6, 1e6)


def time(contender: str, case_id: str, median_us: float, mode: str = "hot", method: str = "graph_slope") -> Any:
    return records.TimeRow(contender, case_id, mode, method, median_us, median_us, median_us, 60, 5)


def keep(root: Path) -> None:
    """The records of a machine with a GPU: `fast` was profiled, `both` is newer than they are."""
    state = records.Provenance(commit="0123456789abcdef")
    gpu = records.Probe("ok", [{"name": "A GPU", "compute_capability": "9.0"}])
    bench = records.BenchRecord(
        operator="op",
        device="cuda",
        provenance=state,
        cases=[case("main"), case("main", causal=True), case("large"), case("main", dtype="bfloat16")],
        times=[
            time("slow", "main-float16", 20.0),
            time("slow", "main-float16", 99.0, method="event_pair"),
            time("fast", "main-float16", 98.0, mode="cold"),
            time("fast", "main-float16", 3.125),
            time("slow", "main-causal-float16", 2.0),
            time("fast", "main-causal-float16", 4.0),
            time("slow", "large-float16", 160.0),
            time("fast", "main-bfloat16", 3.0),
            time("library", "main-float16", 10.0),
        ],
        oracle=[
            records.OracleRow("fast", "main-float16", "hot", "library", 0.3125, 0.31, 0.32, True, ""),
            records.OracleRow("fast", "main-float16", "cold", "library", 0.5, 0.4, 0.6, True, ""),
            records.OracleRow("slow", "main-float16", "hot", None, None, None, None, False, "no correct baseline"),
        ],
    )
    metrics = {
        derive.REGISTERS: records.Metric(96),
        derive.SHARED[0]: records.Metric(1024),
        derive.SHARED[1]: records.Metric(2048),
        derive.TENSOR_CORES: records.Metric(12.34),
    }
    kernels = [records.ProfiledKernel("k", [1], [1], 3.0, metrics), records.ProfiledKernel("combine", [1], [1], 1.0)]
    records.write(root / GPU / "capture/capture.json", records.CaptureRecord(probes={"gpu": gpu}))
    records.write(root / GPU / "bench/op-cuda.json", bench)
    records.write(
        root / GPU / "profile/op/fast.json", records.ProfileRecord(operator="op", variant="fast", kernels=kernels)
    )


def rows(text: str) -> dict[str, list[str]]:
    """The first table's cells by rung, with plain spaces."""
    found: dict[str, list[str]] = {}
    for line in text.replace("\u202f", " ").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) > 1 and (match := re.match(r"\[`(\w+)`\]", cells[1])):
            found.setdefault(match[1], cells)
    return found


def written(config: Config, name: str = "csrc/README.md") -> str:
    derive.run(config)
    return (config.root / name).read_text(encoding="utf-8")


# --- the README -------------------------------------------------------------------------------------------------------


def test_a_rung_has_its_figures_from_the_records(config: Config) -> None:
    found = rows(written(config))
    assert found["fast"] == ["2", "[`fast`](op/fast.cu)", "", "3.12", "0.312× `library`", "–", "96, 3.00 KiB", "12.3 %"]
    assert found["slow"][3:6] == ["20.0", "–", "25.0 TFLOP/s"]


def test_every_measured_case_has_its_fastest_rung(config: Config) -> None:
    readme = config.root / derive.README
    readme.write_text("<!-- derived: op cases -->\n<!-- end -->\n", encoding="utf-8")
    lines = written(config).replace("\u202f", " ").splitlines()
    assert "| `main-float16` | [`fast`](op/fast.cu) | 3.12 | 1.28 PFLOP/s | 0.312× `library` | 0.310–0.320 |" in lines
    assert "| `main-causal-float16` | [`slow`](op/slow.cu) | 2.00 | 2.00 PFLOP/s | – | – |" in lines


def test_what_was_not_measured_is_a_dash(config: Config) -> None:
    found = rows(written(config))
    assert (found["both"][0], found["both"][3:]) == ("3", ["–"] * 5)
    assert (found["host"][0], found["host"][3:]) == ("CPU", ["–"] * 5)


def test_an_operator_that_only_moves_bytes_has_its_rate_in_bytes(config: Config) -> None:
    path = config.root / GPU / "bench/op-cuda.json"
    bench = records.read(path, records.BenchRecord)
    bench.cases = [dataclasses.replace(found, flops=1e6) for found in bench.cases]
    records.write(path, bench)
    assert rows(written(config))["slow"][5] == "18.8 GB/s"
    copy = records.Ceiling("copy", "B/s", 25e9, 24e9, 26e9, 8, "a copy")
    ceilings = records.CeilingsRecord(device="cuda", ceilings=[copy])
    records.write(config.root / GPU / "bench/ceilings/cuda.json", ceilings)
    assert rows(written(config))["slow"][5] == "18.8 GB/s, 75 % of the copy bandwidth"


def test_the_machine_and_the_commit_are_named(config: Config) -> None:
    assert "A GPU at commit `0123456789ab`" in written(config)


def test_text_around_the_tables_stays_and_cells_are_escaped(config: Config) -> None:
    text = written(config)
    assert text.startswith("Before.\n\n<!-- derived: op measured -->\n")
    assert text.endswith("<!-- end -->\n\nAfter.\n")
    assert "stale" not in text
    assert rows(text)["slow"][2] == r"one \| two"


def test_a_rungs_idea_is_that_of_when_it_was_measured(config: Config) -> None:
    configuration.save(config, config.root / GPU / derive.CONFIG)
    newer = (config.root / "config.yaml").read_text(encoding="utf-8").replace("one | two", "three")
    records.atomic_write(config.root / "config.yaml", newer)
    found = rows(written(configuration.load(config.root / "config.yaml", root=config.root)))
    assert found["slow"][2] == r"one \| two"
    records.atomic_write(config.root / GPU / derive.CONFIG, "{}")  # of a version that nobody reads any more
    found = rows(written(configuration.load(config.root / "config.yaml", root=config.root)))
    assert found["slow"][2] == "three"


def test_what_a_rung_takes_is_what_it_declares(config: Config) -> None:
    _, takes = written(config).split("<!-- derived: op takes -->")
    assert rows(takes)["fast"][2:] == ["float16", "head_dim 64", "sm_90a"]
    assert rows(takes)["slow"][2:] == ["float16", "none", "every architecture"]
    assert rows(takes)["host"][4] == "the host"


def test_without_records_there_is_a_table_of_dashes(config: Config) -> None:
    text = "\n".join(derive._measured(config.operator("op"), []))
    assert rows(text)["fast"][3:] == ["–"] * 5


@pytest.mark.parametrize(
    ("marker", "error"),
    [
        ("op measurd", "no table 'measurd'; allowed: measured, cases, takes"),
        ("pp takes", "no such operator; allowed: op"),
    ],
)
def test_a_wrong_marker_is_named(config: Config, marker: str, error: str) -> None:
    records.atomic_write(config.root / "csrc/README.md", f"<!-- derived: {marker} -->\n<!-- end -->\n")
    with pytest.raises((KernelproofError, ConfigError), match=re.escape(error)):
        derive.run(config)


def test_records_that_are_not_those_of_their_manifest_are_believed_by_no_table(config: Config) -> None:
    (kept,) = (config.root / "reports" / "reference").iterdir()
    (kept / "manifest.yaml").write_text('{"members": []}', encoding="utf-8")
    with pytest.raises(BundleError, match="tampered with"):
        derive.run(config, check=True)


def test_every_kept_record_is_read_once(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    read, parsed = Counter[str](), Counter[str]()
    read_bytes, parse = Path.read_bytes, records.parse
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.update([path.name]) or read_bytes(path))
    monkeypatch.setattr(records, "parse", lambda *a: parsed.update([Path(a[2]).name]) or parse(*a))
    derive.run(config)
    kept = {"capture.json": 1, "op-cuda.json": 1, "fast.json": 1}
    assert {name: read[name] for name in kept} == kept
    assert parsed == kept


def test_a_missing_readme_is_named(config: Config) -> None:
    (config.root / "csrc/README.md").unlink()
    with pytest.raises(KernelproofError, match="there is no such file"):
        derive.run(config)


# --- choices ----------------------------------------------------------------------------------------------------------


def test_choices_are_the_rungs_by_time_in_every_measured_case(config: Config) -> None:
    text = written(config, "csrc/op/choices.h")
    table = [line.strip() for line in text.splitlines() if line.startswith("    {")]
    assert table == [
        "{90, false, 64, 512, 64, {fast::launch, slow::launch}},",
        "{90, true, 64, 512, 64, {slow::launch, fast::launch}},",
        "{90, false, 64, 4096, 512, {slow::launch}},",
    ]
    assert "// a-gpu, main-float16: 3.12 µs, 20.0 µs" in text
    assert "Launch rungs[2];" in text
    assert re.findall(r"^namespace (\w+)", text, re.MULTILINE) == ["fast", "slow"]


def test_machines_of_one_capability_share_a_row_and_a_rung_goes_by_all_of_them(config: Config) -> None:
    """Of two that disagree the one decides on which more hangs on it; another capability has a row of its own."""
    other = config.root / GPU.replace("a-gpu", "b-gpu")
    shutil.copytree(config.root / GPU, other)
    bench = records.read(other / "bench/op-cuda.json", records.BenchRecord)
    bench.times = [
        time("slow", "main-causal-float16", 9.0),
        time("fast", "main-causal-float16", 3.0),
        time("fast", "large-float16", 99.0),
    ]
    records.write(other / "bench/op-cuda.json", bench)
    table = written(config, "csrc/op/choices.h").partition("kChoices[] = {")[2]
    row = "{90, true, 64, 512, 64, {fast::launch, slow::launch}},"
    times = "// a-gpu, main-causal-float16: 4.00 µs, 2.00 µs\n    // b-gpu, main-causal-float16: 3.00 µs, 9.00 µs"
    assert f"{times}\n    {row}" in table
    assert "// b-gpu, large-float16: 99.0 µs, –\n    {90, false, 64, 4096, 512, {fast::launch, slow::launch}}," in table
    assert table.count("{90, ") == 3

    gpu = records.Probe("ok", [{"name": "B GPU", "compute_capability": "8.9"}])
    records.write(other / "capture/capture.json", records.CaptureRecord(probes={"gpu": gpu}))
    table = written(config, "csrc/op/choices.h")
    assert table.count("{90, ") == 3
    assert "{89, true, 64, 512, 64, {fast::launch, slow::launch}}," in table


def test_choices_without_any_time_are_an_error(config: Config) -> None:
    (config.root / GPU / "bench/op-cuda.json").unlink()
    with pytest.raises(RecordError, match="no kept record has a time of any of its rungs"):
        derive.run(config)


# --- the command ------------------------------------------------------------------------------------------------------


def test_check_writes_nothing_and_fails_where_a_file_differs(
    config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(config.root)
    assert cli.main(["derive", "--check"]) == ExitCode.BAD_VERDICT
    assert capsys.readouterr().out.splitlines() == [
        "csrc/README.md: differs from the records; run `kernelproof derive`",
        "csrc/op/choices.h: differs from the records; run `kernelproof derive`",
    ]
    assert Path("csrc/README.md").read_text() == README
    assert cli.main(["derive"]) == ExitCode.WELL
    assert capsys.readouterr().out == "csrc/README.md: written\ncsrc/op/choices.h: written\n"
    assert cli.main(["derive", "--check", "--json"]) == ExitCode.WELL
    found = json.loads(capsys.readouterr().out)
    assert found == [{"path": path, "current": True} for path in ("csrc/README.md", "csrc/op/choices.h")]


def test_what_this_repository_derives_is_current() -> None:
    config = configuration.load(ROOT / "config.yaml", root=ROOT)
    stale = [file.path for file in derive.run(config, check=True) if not file.current]
    assert not stale, "run `kernelproof derive`"


def test_every_operator_of_this_repository_has_its_tables() -> None:
    config = configuration.load(ROOT / "config.yaml", root=ROOT)
    marked = re.findall(r"<!-- derived: (\w+) (\w+) -->", (ROOT / derive.README).read_text(encoding="utf-8"))
    wanted = [(name, table) for name in config.operators for table in ("measured", "takes")]
    assert sorted(marked) == sorted([*wanted, ("attention", "cases")])
