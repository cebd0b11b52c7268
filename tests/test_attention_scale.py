"""Every rung of attention takes scales of any sign: the usual calls, with Q and the scale negated."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kernelproof import build, config, gpu, records, test
from kernelproof.records import TestRecord

ROOT = Path(__file__).resolve().parents[1]
LADDER = config.load(ROOT / "config.yaml", root=ROOT).operator("attention")
PRESENT, WHY = gpu.available()
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not PRESENT, reason=f"needs a GPU: {WHY}")]
MODULE = """
from kernelproof.operators.attention import Attention


class Negated(Attention):
    def _call(self, case, q, k, v):
        call = super()._call(case, -q, k, v)
        call.arguments["scale"] *= -1
        return call


OPERATOR = Negated()
"""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=ON_GPU if rung.device == "cuda" else []) for name, rung in LADDER.variants.items()],
)
def test_a_negative_scale(name: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "csrc", tmp_path / "csrc")
    (tmp_path / "negated.py").write_text(MODULE)
    text = (ROOT / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(text.replace("kernelproof.operators.attention", "negated.py"))
    settings = config.load(
        tmp_path / "config.yaml",
        {
            "archs": ["native"],
            "test.level": "quick",
            "operators.attention.test": {"shapes": ["b2h2s64", "s127", "d128", "more_keys", "grouped"]},
        },
        root=tmp_path,
    )
    built = build.run(settings, "attention", name, settings.record("build", "attention", name))
    assert built.status == records.OK, built.compiler_message or built.reason
    test.run(settings, "attention", [name], settings.results / "test" / "attention")
    record = records.read(settings.record("test", "attention", name), TestRecord)
    assert record.verdict == "correct", record.reason
