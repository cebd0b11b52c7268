"""The scripts under benchmarks/ that no other test runs still go with the stages that they measure."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from kernelproof import config

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_cpu_flash_is_timed_beside_torch() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "attention_cpu.py"), "--processes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: slower, which a crowded machine may make of it
    said = re.findall(r"^(\S+) (hot|cold) *: cpu_flash \S+ ms, torch \S+ ms; ratio \d", done.stdout, re.MULTILINE)
    assert said == [(case, mode) for case in ("mission-float32", "mission-causal-float32") for mode in ("hot", "cold")]


def test_torchs_build_has_a_binding_for_every_operator() -> None:
    built = {v.operator for v in config.load(ROOT / "config.yaml", root=ROOT).variants() if v.abi == "tvm_ffi"}
    assert runpy.run_path(str(ROOT / "benchmarks" / "build_vs_torch.py"))["BODIES"].keys() == built


def test_what_the_project_began_with_is_still_there(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "whole_run.py"))
    kept = tmp_path / "config.yaml"
    kept.write_text((ROOT / "config.yaml").read_text())
    script["keep_first"](kept)
    found = config.load(kept, root=ROOT)
    assert {o.name: {*o.variants, *o.baselines} for o in found.operators.values()} == script["FIRST"]
