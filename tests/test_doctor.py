"""kernelproof doctor: findings, remedies, and what follows from them."""

import json
from pathlib import Path

import pytest

from kernelproof import doctor, toolchain
from kernelproof.doctor import LIMITED, MISSING, OK, Check
from kernelproof.errors import ToolError

CLONE = Path(__file__).resolve().parents[1]


def test_every_need_is_a_check() -> None:
    assert {need for needed in doctor.NEEDS.values() for need in needed} <= set(doctor.CHECKS)
    assert set(doctor.ESSENTIAL) <= set(doctor.NEEDS)


def test_this_machine_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    status = doctor.main(as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [check["name"] for check in found["checks"]] == list(doctor.CHECKS)
    assert all(check["remedy"] for check in found["checks"] if check["status"] != OK)
    possible = {ability["name"]: ability["possible"] for ability in found["abilities"]}
    assert status == (0 if all(possible[name] for name in doctor.ESSENTIAL) else 2)


def test_what_is_missing_stands_in_the_way() -> None:
    found = [Check(name, OK, "") for name in doctor.CHECKS if name not in ("GPU", "git")]
    found += [Check("GPU", MISSING, "none", "buy one"), Check("git", LIMITED, "", "install it")]
    abilities = {ability.name: ability for ability in doctor.judge(found)}
    assert abilities["build and measure CPU variants"].possible
    assert abilities["profile CUDA variants"].lacking == ["GPU"]


def test_without_compute_sanitizer_less_is_tested(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELPROOF_COMPUTE_SANITIZER", str(tmp_path / "nowhere"))
    found = doctor.compute_sanitizer()
    assert found.status == LIMITED
    assert "CUDA variants are tested without its four tools" in found.detail
    assert found.remedy is not None
    assert "nvidia-cuda-sanitizer-api" in found.remedy


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert doctor.main(as_json=False) == 2
    said = capsys.readouterr().out
    assert "missing  C++ compiler" in said
    assert "cannot   build and measure CPU variants (missing: C++ compiler)" in said


def test_a_missing_disassembler_is_not_a_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ToolError("it is missing: looked for /x/nvdisasm", subject="nvdisasm", hint="install it")

    def absent(*_: object) -> None:
        raise missing

    monkeypatch.setattr(toolchain, "_find_binary_tool", absent)
    monkeypatch.setattr(toolchain, "_find_home", lambda _: (Path("/x"), "cuda-home"))
    nvcc = toolchain.Tool("nvcc", Path("/x/bin/nvcc"), "13.0.88", "0" * 64, "cuda-home")
    monkeypatch.setattr(toolchain, "_compile_tools", lambda *_: {"nvcc": nvcc})
    names = ("CUDA compiler", "cuobjdump, nvdisasm")
    compiler, tools = (doctor._looked(name, doctor.CHECKS[name]) for name in names)
    assert (compiler.status, compiler.detail) == (OK, "nvcc 13.0.88 (cuda-home)")
    assert (tools.status, tools.detail) == (MISSING, "nvdisasm: it is missing: looked for /x/nvdisasm")
    lacking = {ability.name: ability.lacking for ability in doctor.judge([compiler, tools])}
    assert lacking["build CUDA variants and analyse their machine code"] == ["cuobjdump, nvdisasm"]


def test_a_probe_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ToolError("is broken", hint="mend it")

    monkeypatch.setattr(toolchain, "find_host_compiler", broken)
    assert doctor._looked("C++ compiler", doctor.host_compiler) == Check(
        "C++ compiler", MISSING, "is broken", "mend it"
    )
    monkeypatch.setattr(toolchain, "find_host_compiler", lambda: 1 / 0)
    found = doctor._looked("C++ compiler", doctor.host_compiler)
    assert (found.status, "ZeroDivisionError" in found.detail) == (MISSING, True)


def test_a_repository_of_ones_own_runs_the_workflow_of_the_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERNELPROOF", raising=False)
    doctor.main(as_json=False)
    said = capsys.readouterr().out
    assert "limited  workflow" in said
    assert "no Snakefile and no config.yaml here: a run has to name both" in said
    assert f"→ kernelproof run -- --snakefile {CLONE}/Snakefile --configfile FILE; `kernelproof init` makes" in said
    assert "can      run the workflow\n" in said
    assert list(tmp_path.iterdir()) == []


def test_the_command_names_what_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNELPROOF", str(CLONE))
    Path("config.yaml").touch()
    assert doctor.workflow().remedy == 'kernelproof run -- --snakefile "$KERNELPROOF/Snakefile"'
    Path("Snakefile").touch()
    assert doctor.workflow().status == OK
    Path("config.yaml").unlink()
    assert (doctor.workflow().remedy or "").startswith("kernelproof run -- --configfile FILE")


def test_a_folder_without_a_workflow_in_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNELPROOF", str(tmp_path))  # no clone
    assert doctor.main(as_json=False) == 2
    said = capsys.readouterr().out
    assert "there is no Snakefile here" in said
    assert "cannot   run the workflow (missing: workflow)" in said
    assert list(tmp_path.iterdir()) == []


def test_reports_that_cannot_be_written_stand_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("reports").write_text("a file")
    assert (doctor.workflow().status, "no report can be written" in doctor.workflow().detail) == (MISSING, True)
