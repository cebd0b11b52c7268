"""The selfcheck: its statistics on samples whose truth is known, its kernels, and the whole of it in short."""

import dataclasses
import json
import math
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from kernelproof import cli, config, gpu, known_times, processes, records, selfcheck, statistics
from kernelproof.records import SelfcheckRecord
from kernelproof.selfcheck import analysis
from kernelproof.selfcheck.analysis import Shape

SETTINGS = statistics.Settings(resamples=1000)
ITERATIONS = {"base": 1000, "plus_1": 1012, "plus_2": 1025}
TRUE_US = {"base": 5.0, "plus_1": 5.048, "plus_2": 5.1}  # 1 µs and 4 ns an iteration


def samples(processes: int = 20, between: float = 0.0005, within: float = 0.002, twins: int = 4) -> analysis.Samples:
    """Chains of two lengths: each process has its own offset for each contender, each visit its noise."""
    random = np.random.default_rng(5)
    found: dict[tuple[str, str], analysis.ByProcess] = {}
    names = [f"base.{letter}" for letter in "abcdefg"[:twins]]
    for shape in shapes():
        more = ["plus_1.a", "plus_1.b", "plus_2.a", "plus_2.b"] if shape.nominal_us == 5 else []
        for name in [*names, *more]:
            time_us = 1 + 0.004 * shape.iterations[analysis.kind_of(name)]
            found[name, shape.case] = {
                process: {
                    block: list(time_us * np.exp(offset + within * random.standard_normal(2))) for block in range(6)
                }
                for process, offset in enumerate(between * random.standard_normal(processes))
            }
        found["timer", shape.case] = {p: {0: [shape.ns / 1000 + 1.15]} for p in range(processes)}
    return found


def shapes() -> list[Shape]:
    return [
        Shape("us_5-float32", 5.0, 3840, ITERATIONS),
        Shape("us_20-float32", 20.0, 18848, {"base": 4750, "plus_1": 4800, "plus_2": 4850}),
    ]


def test_a_clocks_kernel_shows_a_slope_of_one_and_any_other() -> None:
    given = samples()
    line, data = analysis.accuracy(given, shapes(), analysis.GPU_TARGETS)
    assert line.held
    assert data["intercept_us"] == pytest.approx(1.15, abs=1e-6)
    off = {key: {p: {0: [1.01 * us for us in by_block[0]]} for p, by_block in by.items()} for key, by in given.items()}
    line, _ = analysis.accuracy(off, shapes(), analysis.GPU_TARGETS)
    assert not line.held
    assert line.value == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(ValueError, match="two different numbers"):
        analysis.fitted([3.0, 3.0], [1.0, 2.0])


@pytest.fixture(scope="module")
def pairs() -> list[analysis.Pair]:
    return analysis.pairs(samples(), shapes(), 5, 0.005, SETTINGS)


def test_every_two_chains_are_compared_in_every_group(pairs: list[analysis.Pair]) -> None:
    # Four groups; at 5 µs 8 contenders, at 20 µs 4: 28 and 6 pairs.
    assert len(pairs) == 4 * (28 + 6)
    assert {pair.group for pair in pairs} == {0, 1, 2, 3}
    assert not [pair for pair in pairs if "timer" in pair.kinds]
    known = {pair.kinds: pair.truth for pair in pairs}
    assert known["base", "base"] == 1.0
    for kind in ("plus_1", "plus_2"):
        assert known[kind, "base"] == pytest.approx(TRUE_US[kind] / 5, abs=5e-4)


def test_differences_are_found_and_none_is_invented(pairs: list[analysis.Pair]) -> None:
    found = {line.name: line for line in analysis.power(pairs)}
    assert found["power_2_percent"].value == 100
    assert found["power_2_percent"].held
    line = analysis.false_positives(pairs, analysis.GPU_TARGETS)
    assert (line.value, line.held) == (0, None)  # fewer than 300 prove nothing
    assert "of which 24 share no kernel" in line.detail  # a group: 2 + 1 + 1 at 5 µs, 2 at 20 µs
    many = [dataclasses.replace(pairs[0], kinds=("base", "base"), verdict="same")] * 300
    assert analysis.false_positives(many, analysis.GPU_TARGETS).held
    wrong = [dataclasses.replace(many[0], verdict="slower")]
    assert analysis.false_positives([*many, *wrong], analysis.GPU_TARGETS).held is False
    assert analysis.false_positives([*many, *wrong], analysis.CPU_TARGETS).held


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    found = analysis.pairs(samples(processes=60, twins=7), shapes(), 5, 0.005, SETTINGS)
    line = analysis.coverage(found)
    assert line.value is not None
    assert 90 < line.value < 99
    short = [dataclasses.replace(pair, low=pair.ratio, high=pair.ratio) for pair in found]
    assert analysis.coverage(short).held is False


def test_a_coverage_out_of_range_decides_nothing_where_a_few_groups_make_it(pairs: list[analysis.Pair]) -> None:
    """Comparisons of a group at a length err together: 320 of them in 20 cells are 20 observations, not 320."""
    missed = [(group, us) for group in range(4) for us in (2.0, 3.0, 5.0, 10.0, 20.0)]

    def share(missing: int, cells: int) -> analysis.SelfcheckLine:
        right = dataclasses.replace(pairs[0], kinds=("base", "base"), low=0.9, high=1.1, truth=1.0)
        wrong = dataclasses.replace(right, low=1.05)
        return analysis.coverage(
            [
                dataclasses.replace(wrong if number < missing and place < cells else right, group=group, nominal_us=us)
                for place, (group, us) in enumerate(missed)
                for number in range(16)
            ]
        )

    clustered, spread = share(8, 4), share(2, 16)  # each 90 %
    assert (clustered.value, clustered.held) == (90, None)
    assert "320 of 320" not in clustered.detail
    assert clustered.detail.endswith("standard error 4.6 % over 20 groups and lengths: too few to tell")
    assert (spread.value, spread.held) == (90, False)


def test_the_plain_design_invents_differences() -> None:
    given = samples(between=0.01)
    plain = analysis.naive(given, shapes(), 300)
    assert plain["wrong"] > plain["trials"] / 2
    found = [pair for pair in analysis.pairs(given, shapes(), 5, 0.005, SETTINGS) if pair.same]
    assert sum(pair.verdict in ("faster", "slower") for pair in found) < len(found) / 20


def test_the_spread_between_processes_is_what_it_is() -> None:
    lines = [line for line, _ in analysis.repeatability(samples(between=0.003), shapes(), analysis.GPU_TARGETS)]
    # A ratio of two offsets of 0.3 % each, and the medians of noisy blocks.
    assert [line.name for line in lines] == ["repeatability", "repeatability_shortest"]
    assert lines[0].value == pytest.approx(0.42, rel=0.35)
    assert lines[0].held is False
    assert lines[1].held


def test_what_a_peer_needs_follows_from_its_spread() -> None:
    times = [[5.0 * (1 + 0.01 * (-1) ** number), 5.1] for number in range(12)]
    said = {"tool": {"version": "1", "times_us": times, "seconds": 0.25}, "nvbench": {"reason": "not installed"}}
    line, absent = analysis.peer_lines(said, width=0.002, seconds=0.1)
    repeats = math.ceil((1.96 * 0.0104 / 0.002) ** 2)
    assert line.value == pytest.approx(repeats * 0.25 / 0.1, rel=0.05)
    assert line.held
    assert (absent.held, absent.detail) == (None, "not installed")


def test_what_was_measured_is_drawn(pairs: list[analysis.Pair]) -> None:
    _, accuracy = analysis.accuracy(samples(), shapes(), analysis.GPU_TARGETS)
    data = {
        "accuracy": accuracy,
        "same": [[p.nominal_us, p.group, p.ratio, p.low, p.high] for p in pairs if p.same],
        "different": [[p.kinds[0], p.group, p.ratio, p.low, p.high, p.truth] for p in pairs if p.kinds[1] == "base"],
    }
    drawn = known_times.pictures(SelfcheckRecord(data=data))
    assert set(drawn) == {"accuracy", "same", "different"}
    assert drawn["same"].count("<circle") == len(data["same"])
    assert 'class="misses"' in drawn["same"]  # one in twenty
    assert "true 1.02" in drawn["different"]
    assert known_times.pictures(SelfcheckRecord()) == {}
    assert known_times.lines({}, "selfcheck") == ["No selfcheck is kept."]


def test_too_few_processes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["selfcheck", "--device", "cpu", "--processes", "9", "--output", str(tmp_path / "x.json")]) == 2
    assert "--processes 10 or more" in capsys.readouterr().err
    assert not (tmp_path / "x.json").exists()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration whose operators do not matter."""
    root = Path(__file__).resolve().parents[1]
    shutil.copytree(root / "csrc", tmp_path / "csrc")
    (tmp_path / "config.yaml").write_bytes((root / "config.yaml").read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_whole_of_it_on_a_cpu(project: Path) -> None:
    """What it says of this machine is no matter of a test; that it says it is."""
    settings = ["--set", "bench.processes=2", "--set", "bench.blocks=3", "--set", "bench.max_seconds=0.02"]
    command = ["selfcheck", "--device", "cpu", "--processes", "4", "--twins", "2", "--seconds", "5", *settings]
    assert cli.main(command) in (0, 1)
    record = records.read(project / "results" / "selfcheck" / "selfcheck-cpu.json", SelfcheckRecord)
    assert (record.processes, record.group, record.twins) == (4, 2, 2)
    assert len(record.data["same"]) == 2 * (5 + 2)  # a pair at each length, and each longer chain with its like
    assert len(record.data["different"]) == 2 * 8
    names = [line.name for line in record.lines]
    assert names[:2] == ["accuracy", "false_positives"]
    assert {"power_2_percent", "coverage", "repeatability", "seconds", "overhead", "cold"} <= set(names)
    # A wait that is 478 µs longer takes so much longer on any machine, if others leave it some time.
    points = record.data["accuracy"]["points"]
    assert points[-1]["measured_us"] - points[0]["measured_us"] > 0.95 * 478
    assert set(known_times.pictures(record)) == {"accuracy", "same", "different"}
    json.dumps(record.data, allow_nan=False)


def candidate(project: Path, entry: str) -> dict[str, object]:
    """A kernel of the selfcheck's CPU library, built by the build command."""
    loaded = config.load(project / "config.yaml", root=project)
    own = selfcheck._built(selfcheck._project(loaded), "cpu")
    fields = dict(selfcheck._entrant(own, "cpu", entry, {}, "variant").candidate)
    del fields["name"]
    return fields


def said(module: str, task: dict[str, object]) -> object:
    command = [sys.executable, "-m", f"kernelproof.selfcheck.{module}", json.dumps(task)]
    environment = {**os.environ, "PYTHONPATH": processes.python_path(), "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}
    return json.loads(processes.run(command, env=environment, timeout_s=120).stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_processes_beside_it_call_what_they_are_given(project: Path) -> None:
    """On a CPU nobody counts bytes and no peer times, but the kernels are loaded, given their arguments and called."""
    task = {"candidates": [candidate(project, "base"), candidate(project, "plus_2")], "arguments": [1, 9, 9, 9]}
    found = said("peers", {**task, "repeats": 2})
    assert isinstance(found, dict)
    assert set(found) == {"do_bench", "do_bench_cudagraph", "nvbench"}
    assert all("reason" in entry for entry in found.values())


PRESENT, WHY = gpu.available()


@pytest.mark.gpu
@pytest.mark.skipif(not PRESENT, reason=f"needs a GPU: {WHY}")
def test_the_whole_of_it_on_a_gpu(project: Path) -> None:
    """In the least that it takes; the figures of a machine are kept by a full run."""
    before = gpu.compute_processes()  # this one, and judges of earlier tests
    settings = ["--set", "bench.processes=2", "--set", "bench.max_seconds=0.05"]
    command = ["selfcheck", "--device", "cuda", "--processes", "4", "--twins", "2", "--seconds", "40", *settings]
    assert cli.main(command) in (0, 1)
    record = records.read(project / "results" / "selfcheck" / "selfcheck-cuda.json", SelfcheckRecord)
    held = {line.name: (line.held, line.value, line.detail) for line in record.lines}
    print("\n".join(selfcheck.summary(record)))
    assert held["accuracy"][0], held["accuracy"]
    assert held["false_positives"][1] == 0, held["false_positives"]
    assert record.gpu
    assert (record.data["others_on_the_gpu"] or 0) <= len(before or ())
    assert (project / "results" / "selfcheck" / "selfcheck-cuda.csv.gz").is_file()
    for name in ("cold", "speed_do_bench", "speed_do_bench_cudagraph"):  # nvbench where it is installed
        assert held[name][1] is not None, held[name]
