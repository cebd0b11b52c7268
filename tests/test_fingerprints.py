"""Which settings a stage depends on: none is forgotten, and a change costs the stages that it is of."""

import dataclasses
import json
from pathlib import Path

import pytest

from kernelproof import config, fingerprints, manifest

ROOT = Path(__file__).resolve().parents[1]
SUBJECTS = {
    "build": "attention/fp16_wmma",
    "test": "attention/fp16_wmma",
    "bench": "attention-cuda",
    "profile": "attention/fp16_wmma",
    "manifest": "a",
}
VARIANT = "operators.attention.variants.fp16_wmma"


def stages_of(*overrides: str) -> set[str]:
    """The stages that make another record when these are set."""
    before, after = (config.load(ROOT / "config.yaml", given, root=ROOT) for given in ((), overrides))
    return {
        stage
        for stage, subject in SUBJECTS.items()
        if fingerprints.of(before, stage, subject) != fingerprints.of(after, stage, subject)
    }


@pytest.mark.parametrize(
    ("override", "stages"),
    [
        ("archs=[sm_80]", {"build", "test", "bench", "profile"}),
        (f"{VARIANT}.macros.MORE=1", {"build", "test", "bench", "profile"}),
        (f"{VARIANT}.precision.output=float32", {"test", "bench", "profile"}),
        (f"{VARIANT}.idea=none", set()),
        ("operators.attention.variants.cpu_flash.flags=[-O1]", set()),
        ("operators.attention.shapes.mission.seq=64", {"test", "bench", "profile"}),
        ("test.trials=99", {"test"}),
        ("test.level=deep", {"test"}),
        ("test.tolerance.rms_factor=2", {"test", "bench"}),
        ("bench.processes=2", {"bench"}),
        ("bench.gpu_wait_s=7", set()),
        ("operators.attention.test.families=[normal]", {"test", "bench"}),
        ("gate.max_ratio=2", {"bench"}),
        ("profile.time_limit_s=7", {"profile"}),
        ("bundle.max_bytes=1000000", set()),
    ],
)
def test_a_setting_is_of_the_stages_that_look_at_it(override: str, stages: set[str]) -> None:
    assert stages_of(override) == stages | {"manifest"}  # which packs the configuration


def test_no_setting_is_forgotten() -> None:
    def names(kind: type) -> set[str]:
        return {field.name for field in dataclasses.fields(kind)}

    path, shown = {"operator", "name", "role"}, {"idea", "gate"}
    assert {*fingerprints.BUILT, *fingerprints.CALLED} | path | shown == names(config.VariantConfig)
    assert not set(fingerprints.BUILT) & set(fingerprints.CALLED)
    assert {*fingerprints.SECTIONS, "source", "root"} == names(config.Config)


def test_a_dispatcher_is_also_of_its_rungs_settings() -> None:
    settings = config.load(ROOT / "config.yaml")
    (dispatcher,) = (v for v in settings.operators["attention"].variants.values() if v.rungs)
    found = fingerprints.of(settings, "build", dispatcher.key)
    assert {f"operators.attention.variants.{rung}.flags" for rung in dispatcher.rungs} <= found.keys()


def test_a_configuration_and_its_json_have_the_same(tmp_path: Path) -> None:
    """`verify` has the packed one alone."""
    settings = config.load(ROOT / "config.yaml")
    config.save(settings, tmp_path / "config.json")
    packed = json.loads((tmp_path / "config.json").read_bytes())
    for stage, subject, _ in (*manifest.expected(settings), ("manifest", "a", None)):
        found = fingerprints.of(settings, stage, subject)
        assert {key: fingerprints.fingerprint(packed, key) for key in found} == found
        assert found == fingerprints.of(config.load(tmp_path / "config.json"), stage, subject)
        assert (found == {}) == (subject in ("capture", "ceilings/cuda"))


def test_values_that_are_equal_have_one_fingerprint() -> None:
    one, other = {"a": {"b": 600, "c": [1.5, 2]}}, {"a": {"c": [1.5, 2.0], "b": 600.0}}
    assert fingerprints.fingerprint(one, "a") == fingerprints.fingerprint(other, "a")
    assert fingerprints.fingerprint(one, "a") != fingerprints.fingerprint({"a": {"b": 600, "c": [1.5, 20]}}, "a")


def test_of_json_only_what_it_says_is_a_value() -> None:
    assert fingerprints.value({"archs": []}, "archs.append") is None


def test_of_a_record_that_says_nothing_nothing_changed() -> None:
    now = {"a": "1", "b": "2"}
    assert fingerprints.changed({}, now) == []
    assert fingerprints.changed(now, now) == []
    assert fingerprints.changed({"b": "3", "c": "4"}, now) == ["a", "b", "c"]
