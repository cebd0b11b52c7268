"""The calibration: honest kernels are accused of nothing, a planted fault is, and what is kept says both."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kernelproof import cli, derive, judge, margins, records
from kernelproof.errors import ExitCode
from kernelproof.operators import attention, rmsnorm
from kernelproof.records import CalibrationClimb, CalibrationRecord, CalibrationRun, Case, Combination, Margins

ROOT = Path(__file__).resolve().parents[1]

# Off by a thousandth of the rescaling: within (a) nearly everywhere, wrong on average.
PLANTED = """
import torch
from dataclasses import dataclass

@dataclass(frozen=True)
class Planted:
    operator: str = "rmsnorm"
    name: str = "planted"
    idea: str = "a scale that is slightly off"
    dtypes: tuple = ("float16",)
    precision: tuple = (("output", "input"), ("p", "float32"))
    devices: tuple = ("cpu",)
    deterministic: bool = True

KERNELS = [Planted()]

def planted(x, weight, eps):
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.float() * FACTOR).to(x.dtype)
"""


@pytest.fixture(scope="module")
def calibrate() -> ModuleType:
    """benchmarks/calibrate.py as a module."""
    spec = importlib.util.spec_from_file_location("calibrate", ROOT / "benchmarks" / "calibrate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def kept(calibrate: ModuleType, path: Path, *arguments: str) -> tuple[int, CalibrationRecord]:
    """Exit code, and the record as it was written."""
    code = calibrate.main(["--device", "cpu", "--output", str(path), *arguments])
    return code, records.read(path, CalibrationRecord)


# --- who is accused ---------------------------------------------------------------------------------------------------


def test_honest_kernels_are_accused_of_nothing_under_fresh_seeds(calibrate: ModuleType, tmp_path: Path) -> None:
    chosen = [
        "attention/split_keys-float16",
        "attention/float32_throughout-float32-bshd",
        "qkt/*-float16",
        "norm_in_*-float16",
    ]
    only = [word for pattern in chosen for word in ("--only", pattern)]
    code, record = kept(calibrate, tmp_path / "c.json", "--seeds", "1", "--no-ladder", *only)
    assert (code, record.status, calibrate.accused(record)) == (ExitCode.WELL, records.OK, [])
    layouts = {(one.dtype, one.layout) for one in record.combinations if one.kernel == "split_keys"}
    assert layouts == {("float16", "bhsd"), ("float16", "bshd")}
    seeds = [run.seed for one in record.combinations for run in one.runs]
    assert len(seeds) == len(set(seeds)) == len(record.combinations)
    assert all(
        run.cases >= 15 and run.exact >= 1 and run.relations >= 1 for one in record.combinations for run in one.runs
    )
    assert all((run.margins.bound or 0) > 0 for one in record.combinations for run in one.runs)


def test_a_kernel_that_never_gives_the_same_bits_is_correct_on_the_whole_ladder(
    calibrate: ModuleType, tmp_path: Path
) -> None:
    code, record = kept(calibrate, tmp_path / "c.json", "--seeds", "1", "--only", "norm_in_random_order-float32")
    (climb,) = record.climbs
    assert (code, climb.verdict, climb.deterministic) == (ExitCode.WELL, "correct", False)
    assert climb.rungs[-1] == "determinism"


@pytest.mark.parametrize("factor", [1.01, 1.0002])
def test_a_planted_fault_is_accused(
    calibrate: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], factor: float
) -> None:
    file = tmp_path / "planted.py"
    file.write_text(PLANTED.replace("FACTOR", str(factor)))
    arguments = ["--kernels", str(file), "--only", "rmsnorm/planted", "--seeds", "1", "--seed", "7"]
    code, record = kept(calibrate, tmp_path / "c.json", *arguments)
    assert (code, record.status) == (ExitCode.BAD_VERDICT, records.FAILED)
    (run,) = record.combinations[0].runs
    criterion = {1.01: "bound", 1.0002: "bias"}[factor]
    assert any(f": {criterion}: " in words for words in run.accusations)
    assert record.climbs[0].verdict == "wrong"
    assert "rmsnorm/planted-float16--, seed 7" in capsys.readouterr().out


def test_a_kernel_that_raises_is_named_and_the_others_go_on(calibrate: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "planted.py"
    file.write_text(PLANTED.replace("FACTOR", "missing"))
    arguments = ["--kernels", str(file), "--only", "rmsnorm/planted", "--only", "cpu_rows", "--seeds", "1"]
    code, record = kept(calibrate, tmp_path / "c.json", "--no-ladder", *arguments)
    assert code == ExitCode.BAD_VERDICT
    found = {one.kernel: one.runs[0] for one in record.combinations}
    assert found["planted"].accusations == ["all cases: error: it raised NameError: name 'missing' is not defined"]
    assert (found["cpu_rows"].accusations, found["cpu_rows"].cases > 15) == ([], True)


def test_a_name_that_nothing_has_and_a_file_that_is_no_collection_could_not_run(
    calibrate: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate.main(["--device", "cpu", "--only", "attention/no_such"]) == ExitCode.COULD_NOT_RUN
    assert "attention/no_such: no kernel" in capsys.readouterr().err
    assert calibrate.main(["--device", "cpu", "--kernels", str(tmp_path / "none.py")]) == ExitCode.COULD_NOT_RUN
    assert "is no Python file" in capsys.readouterr().err


def test_json_is_the_record_and_nothing_else(calibrate: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--device", "cpu", "--only", "rmsnorm/norm_in_blocks-float16", "--seeds", "1", "--no-ladder", "--json"]
    assert calibrate.main([*arguments, "--seed", "3"]) == ExitCode.WELL
    made = json.loads(capsys.readouterr().out)
    assert [run["seed"] for one in made["combinations"] for run in one["runs"]] == [3]


# --- what is run ------------------------------------------------------------------------------------------------------


def test_there_are_enough_combinations(calibrate: ModuleType, tmp_path: Path) -> None:
    honest = calibrate.collection(calibrate.HONEST)
    chosen = calibrate.configured("cpu", honest, tmp_path)
    found = calibrate.combinations(chosen, "cpu", [])
    assert len({one.name for one in found}) == len(found) >= 40
    assert {made.name for made in honest.KERNELS if "cpu" in made.devices} <= {one.variant.name for one in found}
    assert {"cpu_naive", "cpu_flash", "cpu_rows", "cpu_qkt", "cpu_quantised"} <= {one.variant.name for one in found}


def test_a_run_meets_every_family_and_every_shape(calibrate: ModuleType, tmp_path: Path) -> None:
    chosen = calibrate.configured("cpu", calibrate.collection(calibrate.HONEST), tmp_path)
    for operator, kernel in (("attention", "split_keys"), ("quantised_attention", "scales_at_the_end")):
        combined = calibrate.combinations(chosen, "cpu", [f"{operator}/{kernel}-*-bshd"])[0]
        found = list(calibrate.cases(combined, 5))
        assert {case.family for case in found} == set(calibrate._module(combined.operator).families)
        assert {case.shape for case in found} == set(calibrate.SHAPES[operator])
        assert {case.options["layout"] for case in found} == {"bshd"}
        assert {case.options["causal"] for case in found} == {False, True}


def test_graphs_and_backends_of_a_gpu_are_only_asked_for_there(calibrate: ModuleType, tmp_path: Path) -> None:
    chosen = calibrate.configured("cuda", calibrate.collection(calibrate.HONEST), tmp_path)
    found = calibrate.combinations(chosen, "cuda", [])
    assert {"graph_captured", "sdpa_cudnn", "sdpa_efficient", "fp16_wgmma"} <= {one.variant.name for one in found}
    assert {one.variant.device for one in found} == {"cuda"}


def test_random_order_is_not_the_same_twice_and_the_others_are(calibrate: ModuleType) -> None:
    honest = calibrate.collection(calibrate.HONEST)
    for operator, dims in (
        (attention.OPERATOR, {"heads": 2, "seq": 65, "head_dim": 64}),
        (rmsnorm.OPERATOR, {"rows": 9, "cols": 500}),
    ):
        case = Case(operator.name, "s", dims, {}, "float32")
        call = operator.make_call(case, judge.generator(case))
        inputs = [value for name, value in call.arguments.items() if name not in call.outputs]
        for made in honest.KERNELS:
            if made.operator == operator.name and "cpu" in made.devices:
                # Two sums in other orders are the same now and then; eight are not.
                first, *others = (getattr(honest, made.name)(*inputs) for _ in range(8))
                assert all(torch.equal(first, other) for other in others) == made.deterministic, made.name


# --- what is written of it --------------------------------------------------------------------------------------------


def record(**more: Any) -> CalibrationRecord:
    """Two data types of one kernel: two runs of three cases in one, one of them accused, and one in the other."""
    accused = CalibrationRun(2, 3, 1, 0, 0, Margins(0.25, 1.5, 0.125, 0.5), ["a-case: rms: too | noisy"])
    return CalibrationRecord(
        device="A CPU",
        torch="9.9",
        combinations=[
            Combination(
                "op",
                "k",
                "float16",
                "bhsd",
                "input",
                [CalibrationRun(1, 3, 1, 0, 0, Margins(0.5, 0.75, None, 0.0)), accused],
            ),
            Combination("op", "k", "float32", "bhsd", "float32", [CalibrationRun(3, 3, 1)]),
        ],
        climbs=[CalibrationClimb("op", "k", "wrong", 5, 20, reason="it is")],
        left_out={"other": "it needs what is not here"},
        **more,
    )


def test_a_row_has_the_largest_ratio_of_each_data_type() -> None:
    text = margins.lines([record()])
    assert "| op | k | float16 / float32 | 3, 9 | 0.50 / – | 1.50 / – | 0.12 / – | 0.50 / – |" in text
    assert text[0].startswith("A CPU, torch 9.9: 3 runs of 2 combinations")
    assert (
        "9 cases and 3 exact calls. Runs in which somebody was accused: 1. Through the whole ladder: 0 of 1" in text[0]
    )
    assert "- accused: k in 1 of 3 runs (rms)" in text
    assert "- on the ladder: k: wrong: it is" in text
    assert "- left out: other: it needs what is not here." in text


def test_derive_writes_the_page_and_check_sees_that_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / derive.MARGINS_PAGE
    records.atomic_write(page, "Before.\n\n<!-- derived: calibration margins -->\n<!-- end -->\n\nAfter.\n")
    records.write(tmp_path / derive.KEPT / "cpu" / derive.CALIBRATION, record())
    (found,) = derive._margins(tmp_path)
    assert not found.current
    records.atomic_write(page, found.text)
    (again,) = derive._margins(tmp_path)
    assert again.current
    assert "Before.\n" in again.text
    assert "| op | k |" in again.text
    assert again.text.endswith("<!-- end -->\n\nAfter.\n")


def test_this_repository_keeps_a_calibration_in_which_enough_was_run() -> None:
    found = records.read(ROOT / derive.KEPT / "cpu" / derive.CALIBRATION, CalibrationRecord)
    assert len(found.combinations) >= 40
    assert sum(len(one.runs) for one in found.combinations) >= 300
    seeds = [run.seed for one in found.combinations for run in one.runs]
    assert len(set(seeds)) == len(seeds)


def test_the_command_line_knows_the_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    assert cli.main(["derive", "--check", "--json"]) == ExitCode.WELL
    assert str(derive.MARGINS_PAGE) in {file["path"] for file in json.loads(capsys.readouterr().out)}
