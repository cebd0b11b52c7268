"""A configuration is checked whole, and every fault names its line, its value and what is allowed."""

import copy
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernelproof import config, toolchain
from kernelproof.errors import ConfigError, guide

ROOT = Path(__file__).resolve().parents[1]

GOOD = {
    "schema": "kernelproof.config/1",
    "project": "p",
    "operators": {
        "op": {
            "module": "op.py",
            "binding": "binding.cc",
            "shapes": {"small": {"rows": 2}, "large": {"rows": 2000}},
            "test": {"shapes": ["small"]},
            "bench": {"shapes": ["large"]},
            "variants": {
                "v": {"device": "cpu", "sources": ["v.cc"], "dtypes": ["float32"], "precision": {"output": "float32"}}
            },
            "baselines": {
                "b": {
                    "abi": "python",
                    "entry": "m:f",
                    "device": "cpu",
                    "dtypes": ["float32"],
                    "precision": {"output": "float32"},
                }
            },
        }
    },
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("op.py", "binding.cc", "v.cc"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(data: dict, folder: Path) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return Path(path.name)


def changed(key: str, value: object) -> dict:
    data = copy.deepcopy(GOOD)
    *path, last = key.split(".")
    target = data
    for part in path:
        target = target.setdefault(part, {})
    if value is None:
        del target[last]
    else:
        target[last] = value
    return data


DECLARED = config.Declared(
    {"batch": 1, "rows": None}, {"causal": [False, True], "layout": ["bhsd", "bshd"]}, ["normal"], ["float32"]
)
MODULE = """
import nothing_of_this_name

class Op:
    name = "op"
    dims: dict[str, int | None] = {"batch": 1, "rows": None}
    options = {"causal": (False, True), "layout": ("bhsd", "bshd")}
    families = ("normal",)
    dtypes = ["float32"]

    def make_call(self, case, generator):
        return case.dims.get("rows")

OPERATOR = Op()
"""


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "shapes.small.rowz",
            3,
            "shapes.small.rowz: op has no dimension rowz; allowed: batch, rows; did you mean 'row",
        ),
        ("shapes.large", {"batch": 3}, "shapes.large: the shape does not give rows"),
        ("test.families", ["normla"], "test.families: op has no family normla; allowed: normal; did you mean 'normal'"),
        ("test.options", {"causl": [True]}, "test.options.causl: op has no option causl; allowed: causal, layout"),
        ("bench.options", {"layout": ["bsdh"]}, "op has no value of layout bsdh; allowed: bhsd, bshd"),
        (
            "profile",
            {"shape": "large", "options": {"causal": "maybe"}},
            "no value of causal maybe; allowed: false, tru",
        ),
        ("variants.v.dtypes", ["uint8"], "variants.v.dtypes: op has no data type uint8; allowed: float32"),
        ("variants.v.limits", {"head_dim": [64]}, "v.limits.head_dim: op has no dimension head_dim; allowed: batch"),
    ],
)
def test_what_only_the_operator_knows_is_held_against_its_declaration(
    folder: Path, key: str, value: object, said: str
) -> None:
    loaded = config.load(written(changed(f"operators.op.{key}", value), folder))
    with pytest.raises(ConfigError) as caught:
        config.check_declared(loaded, loaded.operator("op"), DECLARED)
    (fault,) = caught.value.message.splitlines()[1:]
    assert said in fault
    text = (folder / "config.yaml").read_text().splitlines()
    line = int(fault.split(":")[1])
    last = fault.split(": ")[1].rpartition(".")[2]
    assert text[line - 1].strip().startswith(f"{last}:")
    # And in the same words when the configuration is read, where the module states it plainly.
    (folder / "op.py").write_text(MODULE)
    with pytest.raises(ConfigError) as early:
        config.load(Path("config.yaml"))
    assert early.value.message == caught.value.message


def test_what_a_module_states_plainly_is_read_without_running_it(folder: Path) -> None:
    (folder / "op.py").write_text(MODULE)
    assert config.stated("op.py", folder) == DECLARED
    config.load(written(GOOD, folder))


def test_a_data_type_that_there_is_not_is_the_modules_fault(folder: Path) -> None:
    (folder / "op.py").write_text(MODULE.replace('["float32"]', '["float17"]'))
    with pytest.raises(ConfigError) as caught:
        config.load(written(GOOD, folder))
    (fault,) = caught.value.message.splitlines()[1:]
    assert fault.startswith(
        "op.py:9: OPERATOR.dtypes has 'float17', which is no data type; allowed: bfloat16, float16,"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("class Op:", "class Op(Base):"),
        ("class Op:", "@changed\nclass Op:"),
        ("class Op:", "class Op(metaclass=Kind):"),
        ("OPERATOR = Op()", "OPERATOR = Op('more')"),
        ("OPERATOR = Op()", "OPERATOR = Op()\nif MORE:\n    OPERATOR = Other()"),
        ("OPERATOR = Op()", "Op = wrapped(Op)\nfrom other import OPERATOR"),
        ("OPERATOR = Op()", "class Op:\n    pass\nOPERATOR = Op()"),
        ("OPERATOR = Op()", "OPERATOR = Op()\nOPERATOR.dims['cols'] = 3"),
        ("OPERATOR = Op()", "OPERATOR = Op()\nOPERATOR.dims.update(cols=3)"),
        ("OPERATOR = Op()", "OPERATOR = Op()\nOPERATOR.dims |= {'cols': 3}"),
        ("OPERATOR = Op()", "OPERATOR = Op()\nsetattr(Op, 'dims', {})"),
        ('"rows": None}', '"rows": None, **MORE}'),
        ('"rows": None}', '"rows": None}\n    dims["cols"] = None'),
        ('"rows": None}', '"rows": None}\n    if MORE:\n        dims = MORE'),
        ("    def make_call", "    @property\n    def dims(self):\n        return {}\n\n    def make_call"),
        ("    def make_call", "    def __init__(self):\n        self.dims = {}\n\n    def make_call"),
        ('{"batch": 1, "rows": None}', '("batch", "rows")'),
        ("import", "not Python"),
    ],
)
def test_what_a_module_may_state_otherwise_is_left_to_a_stage(folder: Path, old: str, new: str) -> None:
    assert old in MODULE
    (folder / "op.py").write_text(MODULE.replace(old, new))
    assert config.stated("op.py", folder).dims is None
    config.load(written(changed(f"{OP}.shapes.small.cols", 3), folder))


def test_what_fits_nowhere_is_told_beside_what_the_schema_forbids(folder: Path) -> None:
    data = changed(f"{OP}.test.shapes", ["smal"])
    data["gate"] = {"max_ratio": -1}
    data["operators"]["op"]["variants"]["v"] |= {"sources": ["w.cc"], "flasg": []}
    with pytest.raises(ConfigError) as caught:
        config.load(written(data, folder))
    said = caught.value.message
    for fault in ("no shape 'smal'", "gate.max_ratio", "'w.cc' does not exist", "did you mean 'flags'?"):
        assert fault in said
    # What follows from a key that was misspelt is not told as another fault.
    data["operators"]["op"]["variants"]["v"]["source"] = data["operators"]["op"]["variants"]["v"].pop("sources")
    with pytest.raises(ConfigError) as caught:
        config.load(written(data, folder))
    assert "at least one source file" not in caught.value.message


def test_a_shape_that_the_machine_cannot_hold_is_a_fault(folder: Path) -> None:
    loaded = config.load(written(GOOD, folder))
    declared = config.Declared({"rows": None}, {}, ["normal"], ["float32"], {"large": 1e18}, {"small": "too few rows"})
    with pytest.raises(
        ConfigError, match=r"shapes.small: too few rows\n.*shapes.large: one call takes 931,322,575 GiB"
    ):
        config.check_declared(loaded, loaded.operator("op"), declared)


def test_what_is_declared_is_no_fault(folder: Path) -> None:
    loaded = config.load(written(GOOD, folder))
    config.check_declared(loaded, loaded.operator("op"), DECLARED)


def test_defaults_and_names_are_filled_in(folder: Path) -> None:
    loaded = config.load(written(GOOD, folder))
    operator = loaded.operator("op")
    variant = operator.variant("v")
    assert (variant.key, variant.role, variant.abi, variant.passing) == ("op/v", "variant", "tvm_ffi", "destination")
    assert operator.variant("b").passing == "return"
    assert operator.variant("b").trust == "python"
    assert variant.budget == config.Budget(registers=120, shared_bytes=65536, spill_bytes=0)
    assert operator.profile.shape == "large"
    assert operator.test.seeds == loaded.test.seeds
    assert loaded.gate.max_ratio == 0.95


@pytest.mark.parametrize(
    ("dtypes", "output", "usual"),
    [
        (["float32"], "input", "float32"),
        (["float16", "float32"], "input", "float32"),
        (["float32", "float64"], "input", "at_least_float32"),
        (["float16", "float64"], "input", "at_least_float32"),
        (["float32", "float64"], "float32", "float32"),
        (["float64"], "float64", "float64"),
        (["float32"], "float64", "float64"),
        (["float64"], "int64", "float32"),
    ],
)
def test_who_promises_float64_promises_its_arithmetic(folder: Path, dtypes: list[str], output: str, usual: str) -> None:
    data = changed("operators.op.variants.v.dtypes", dtypes)
    data["operators"]["op"]["variants"]["v"]["precision"] = {"output": output}
    precision = config.load(written(data, folder)).operator("op").variant("v").precision
    assert (precision.p, precision.accumulate) == (usual, usual)
    if "float64" in (*dtypes, output) and output in ("input", "float64"):
        assert precision.of(dtypes[-1]).accumulate == "float64"
    if "float16" in dtypes:
        assert precision.of("float16").accumulate == "float32"
    data["operators"]["op"]["variants"]["v"]["precision"] |= {"p": "bfloat16", "accumulate": "float32"}
    precision = config.load(written(data, folder)).operator("op").variant("v").precision
    assert (precision.p, precision.accumulate) == ("bfloat16", "float32")


def test_resolved_configuration_reads_back_the_same(folder: Path) -> None:
    loaded = config.load(written(GOOD, folder), ["bench.processes=3"])
    config.save(loaded, folder / "results" / "config.json")
    assert config.load(folder / "results" / "config.json") == loaded


OP = "operators.op"
GPU = GOOD["operators"]["op"]["variants"]["v"] | {"device": "cuda"}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (f"{OP}.variants.v.devcie", "cpu", "unknown key; allowed: abi, archs"),
        (f"{OP}.variants.v.devcie", "cpu", "did you mean 'device'?"),
        (f"{OP}.variants.v.device", "gpu", "allowed: cpu, cuda; did you mean 'cuda'?"),
        (f"{OP}.variants.v.device", "gpu", '"gpu" is not known; allowed: cpu, cuda'),
        (f"{OP}.variants.v.device", None, "the key 'device' is missing"),
        (f"{OP}.variants.v.dtypes", ["float23"], "did you mean 'float32'?"),
        (f"{OP}.variants.v.dtypes", ["fp32"], "did you mean 'float32'?"),
        (f"{OP}.variants.v.precision", "float32", '"float32" is not a mapping: write {output: float32}'),
        (f"{OP}.variants.v.dtypes", "float32", '"float32" is not a list: write [float32]'),
        ("test.seeds", 1, "1 is not a list: write [1]"),
        (f"{OP}.variants.v.limits", {"rows": 64}, "64 is not a list: write [64]"),
        (f"{OP}.variants.v.macros", ["REFUSE"], "is not a mapping: write {REFUSE: null}"),
        (f"{OP}.variants.v.flags", "-O3 -g", '"-O3 -g" is not a list: write [-O3, -g]'),
        (
            f"{OP}.variants.v",
            {**GPU, "flags": ["-lineinfo", "-gencode=arch=compute_90a,code=sm_90a"]},
            "v.flags[1]: '-gencode=arch=compute_90a,code=sm_90a' asks for machine code that no record would know of",
        ),
        (f"{OP}.variants.v", {**GPU, "flags": ["-arch=native"]}, "list architectures under `archs`"),
        (f"{OP}.variants.v", {**GPU, "flags": ["-rdc=true"]}, "'-rdc=true' needs a device linker"),
        (f"{OP}.variants.v", {**GPU, "flags": ["-rdc", "true"]}, "'-rdc' needs a device linker"),
        (f"{OP}.variants.v", {**GPU, "flags": ["-optf", "more"]}, "'-optf' hides flags in a file"),
        (f"{OP}.variants.v.sources", ["w.cc"], "'w.cc' does not exist; did you mean 'v.cc'?"),
        (f"{OP}.variants.v.sources", [], "abi tvm_ffi needs at least one source file"),
        (f"{OP}.variants.v.sources", ["/etc/passwd"], '"/etc/passwd" is not a path below this folder, without ..'),
        (f"{OP}.variants.v.sources", ["../v.cc"], "is not a path below this folder"),
        (f"{OP}.variants.v.macros", {"1BAD": 1}, "is not the name of a macro: letters, digits and _"),
        (f"{OP}.baselines.b.entry", "nothing", "abi python needs entry"),
        (f"{OP}.test.shapes", ["smal"], "no shape 'smal'; allowed: large, small; did you mean 'small'?"),
        (f"{OP}.test.cuda_shapes", ["smal"], "no shape 'smal'; allowed: large, small; did you mean 'small'?"),
        (f"{OP}.bench.cuda_shapes", ["smal"], "no shape 'smal'; allowed: large, small; did you mean 'small'?"),
        (f"{OP}.profile", {"shape": "huge"}, "no shape 'huge'; allowed: large, small"),
        (
            f"{OP}.profile",
            {"shape": "small", "baselines": ["x"]},
            "profile.baselines[0]: no baseline 'x' on cuda; the operator has none",
        ),
        (f"{OP}.shapes.small.rows", -1, "-1 is out of range; allowed: at least 0"),
        (f"{OP}.shapes.small.rows", "two", '"two" is not a whole number'),
        ("bench.processes", 0, "0 is out of range; allowed: at least 1"),
        ("bench.confidence", 95, "95 is out of range; allowed: above 0 and below 1"),
        (
            f"{OP}.variants",
            {"v": {**GOOD["operators"]["op"]["variants"]["v"], "device": "cuda", "gate": True}},
            "v.gate: it claims to be faster than the best baseline, and op has none on cuda: add one to operators.op.b",
        ),
        (f"{OP}.baselines.b.entry", "kernels/nope.py:gelu", "'kernels/nope.py' does not exist"),
        (f"{OP}.baselines.b.entry", "kernelproof.baselins:f", "no module 'kernelproof.baselins'"),
        (f"{OP}.baselines.b.entry", "kernelproof.baselines:sdpa_flsh", "'sdpa_flash'?"),
        ("bench.processes", True, "true is not a whole number"),
        ("bundle.max_bytes", 26_000_000, "at most 25000000"),
        ("archs", ["sm90"], 'archs[0]: "sm90" is not known; allowed: native, sm_100, '),
        ("archs", ["sm90"], "did you mean 'sm_90'?"),
        ("archs", ["native", "sm_9999"], 'archs[1]: "sm_9999" is not known; allowed: native, sm_100, '),
        (f"{OP}.variants.v.archs", ["sm_12x"], "did you mean 'sm_12"),
        (f"{OP}.variants.v.archs", ["sm_75q"], 'variants.v.archs[0]: "sm_75q" is not known; allowed: native, '),
        (f"{OP}.variants.v.archs", ["sm_75q"], "did you mean 'sm_75'?"),
        ("schema", "kernelproof.config/9", "which this kernelproof reads"),
        ("operators", {}, "must not be empty"),
    ],
)
def test_a_fault_says_what_is_allowed(folder: Path, key: str, value: object, expected: str) -> None:
    path = written(changed(key, value), folder)
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    assert expected in str(caught.value)
    assert "config.yaml:" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (
            f"{OP}.variants",
            {"v\n": GOOD["operators"]["op"]["variants"]["v"]},
            'variants."v\\n": "v\\n" is not a name: a ',
        ),
        (f"{OP}.variants.v.macros", {"A\n": 1}, "is not the name of a macro"),
        (f"{OP}.variants.v.sources", ["v.cc\n"], "is not a path below this folder"),
        (f"{OP}.variants.v.sources", ["a\n/../../v.cc"], "is not a path below this folder"),
        ("archs", ["sm_90a\n"], '"sm_90a\\n" is not known; allowed: native, '),
        ("archs", [90], "archs[0]: 90 is not known; allowed: native, "),
        (f"{OP}.shapes.small.rows", 1.5, "1.5 is not a whole number"),
        (f"{OP}.shapes.small.rows", "4", '"4" is not a whole number'),
        ("bench.processes", "1e-1", "0.1 is not a whole number"),
        ("test.tolerance.bound_factor", "1e999", '"1e999" is not a number'),
        (
            f"{OP}.variants.v.calls",
            ["cublass"],
            "no library 'cublass'; allowed: cublas, cudnn, cutlass, memcpy, memset, torch; did you mean 'cublas'?",
        ),
        (f"{OP}.variants.v.calls", ["k.*"], "calls: no library 'k.*'; allowed: cublas"),
    ],
)
def test_a_slip_is_refused(folder: Path, key: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(written(changed(key, value), folder))
    assert expected in str(caught.value)


def test_a_whole_number_may_have_a_point_or_an_exponent(folder: Path) -> None:
    text = yaml.safe_dump(GOOD).replace("rows: 2000", "rows: 2.E3").replace("rows: 2\n", "rows: 2.0\n")
    text += "test: {trials: 1e2, seeds: [0.0, 1e3], tolerance: {bound_factor: 1e7}}\nproject: 1e7\n"
    (folder / "config.yaml").write_text(text.replace("project: p\n", ""))
    loaded = config.load(Path("config.yaml"), ["bench.processes=5.0", "bench.precision=1e-5", "gate.same_band=.5E-2"])
    operator = loaded.operators["op"]
    assert operator.shapes == {"small": {"rows": 2}, "large": {"rows": 2000}}
    assert (loaded.test.trials, loaded.test.seeds, loaded.test.tolerance.bound_factor) == (100, [0, 1000], 1e7)
    assert (loaded.bench.processes, loaded.bench.precision, loaded.gate.same_band) == (5, 1e-5, 0.005)
    assert {type(number) for number in (operator.shapes["small"]["rows"], loaded.bench.processes)} == {int}
    assert loaded.project == "1e7"
    assert config.load(Path("config.yaml"), {"bench": {"blocks": "1e1"}}).bench.blocks == 10


@pytest.mark.parametrize("key", ["limits.rows", "budget.registers"])
def test_a_whole_number_of_a_variant_may_have_a_point(folder: Path, key: str) -> None:
    kept = [2.0] if key.startswith("limits") else 100.0
    loaded = config.load(written(changed(f"{OP}.variants.v.{key}", kept), folder))
    variant = loaded.operators["op"].variants["v"]
    assert variant.limits.get("rows", [2]) == [2]
    assert variant.budget.registers in (100, 120)


def test_on_a_gpu_kernels_may_be_declared_by_any_pattern_that_is_no_slip(folder: Path) -> None:
    variant = GOOD["operators"]["op"]["variants"]["v"] | {"device": "cuda"}  # type: ignore[index]
    config.load(written(changed(f"{OP}.variants.v", variant | {"calls": ["flash", "gemm", "^my_.*"]}), folder))
    with pytest.raises(ConfigError, match=r"calls: no library 'cudn'; allowed: .*; did you mean 'cudnn'"):
        config.load(written(changed(f"{OP}.variants.v", variant | {"calls": ["cudn"]}), folder))


def test_who_has_no_options_says_so(folder: Path) -> None:
    loaded = config.load(written(changed(f"{OP}.variants.v.options", {"causal": [True]}), folder))
    with pytest.raises(ConfigError, match="op has no option causal; it has none"):
        config.check_declared(loaded, loaded.operator("op"), config.Declared({"rows": None}, {}, ["n"], ["float32"]))


def test_an_architecture_that_the_toolkit_in_use_compiles_for_is_known(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc = folder / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\necho \"Allowed values for this option:  'compute_140','sm_140','sm_140a'.\"\n")
    nvcc.chmod(0o755)
    path = written(changed("archs", ["sm_140a", "sm_90a"]), folder)
    assert config.load(path, cuda_home=folder / "cuda").archs == ["sm_140a", "sm_90a"]
    with pytest.raises(ConfigError, match='"sm_140a" is not known'):
        config.load(path)
    monkeypatch.setenv(toolchain.CUDA_HOME_VARIABLE, str(folder / "cuda"))
    assert config.load(path).archs == ["sm_140a", "sm_90a"]
    with pytest.raises(ConfigError, match=r'"sm_140f" is not known; allowed: .*sm_140a, .*did you mean \'sm_140'):
        config.load(written(changed("archs", ["sm_140f"]), folder))


def test_the_schema_lists_what_the_locked_toolkit_compiles_for() -> None:
    home = next(iter(toolchain.wheel_homes()), Path("none"))
    if not toolchain.tool_version(home / "bin" / "nvcc").startswith("13.0."):
        pytest.skip("the locked toolkit is not installed; ./repro.sh selftest installs it")
    schema = yaml.safe_load(config.schema_file().read_text())
    assert sorted(schema["$defs"]["arch"]["enum"]) == ["native", *toolchain.compiled_archs(home)]


def test_a_fault_names_the_line(folder: Path) -> None:
    path = written(changed(f"{OP}.variants.v.devcie", "cpu"), folder)
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "devcie" in text)
    with pytest.raises(ConfigError, match=rf"config\.yaml:{line}: operators\.op\.variants\.v\.devcie: "):
        config.load(path)


@pytest.mark.parametrize(
    ("rung", "expected"),
    [
        ("v", "rungs[0]: no other variant 'v'; allowed: tiled"),
        ("tiles", "rungs[0]: no other variant 'tiles'; allowed: tiled; did you mean 'tiled'?"),
        ("tiled", "rungs[0]: tiled is of cuda tvm_ffi, v of cpu tvm_ffi"),
    ],
)
def test_a_rung_is_another_variant_of_the_same_kind(folder: Path, rung: str, expected: str) -> None:
    data = copy.deepcopy(GOOD)
    variants: Any = data["operators"]["op"]["variants"]  # type: ignore[index]
    variants["tiled"] = {**variants["v"], "device": "cuda"}
    variants["v"]["rungs"] = [rung]
    with pytest.raises(ConfigError) as caught:
        config.load(written(data, folder))
    assert f"{OP}.variants.v.{expected}\n" in f"{caught.value}\n"


def test_all_faults_come_at_once(folder: Path) -> None:
    data = changed(f"{OP}.variants.v.devcie", "cpu")
    data["gaet"] = {}
    data["operators"]["op"]["shapes"]["small"]["rows"] = -1
    with pytest.raises(ConfigError, match="3 faults") as caught:
        config.load(written(data, folder))
    assert "gaet: unknown key" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1", "not valid YAML"),
        ("a:\n\tb: 1", "there is a tab in this line: YAML is indented with spaces"),
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("- 1", "is not a mapping"),
        ("a: &a [*a]", "config.yaml:1: a[0]: an alias (*) to what it is a part of has no end"),
        (
            "a: &a [1,1,1,1,1,1,1,1,1]\n"
            + "".join(f"{y}: &{y} [{','.join([f'*{x}'] * 9)}]\n" for x, y in itertools.pairwise("abcdefghi")),
            "the document has more than 100000 values, aliases followed",
        ),
        ("a: &a {b: 1}\nc:\n  <<: *a", "config.yaml:3: c.<<: a merge key is not taken; write the keys out"),
        ("yes: 1", "YAML does not read this key as text; put it in quotes"),
        *((f"a:\n  {key}: 1", f"config.yaml:2: a.{key}: YAML does not read") for key in ("null", "1.5", "2024-01-01")),
        ("a:\n  ? [b]\n  : 1", "config.yaml:2: a: a key is text, and no list or mapping"),
        ("a: .nan", "config.yaml:1: a: .nan is not a finite number"),
        (
            "project: p\nproject: q\nschema: kernelproof.config/1\noperators: {}",
            "config.yaml:2: project: the key stands twice",
        ),
    ],
)
def test_broken_yaml(folder: Path, text: str, expected: str) -> None:
    (folder / "config.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.load(Path("config.yaml"))
    assert expected in str(caught.value)


def test_a_merge_key_is_told_once_and_not_what_is_missing_for_it(folder: Path) -> None:
    """In the order of the lines, with the faults that are there besides; an alias of what merges says nothing more."""
    data = changed("operators.op.variants", None)
    text = yaml.safe_dump(data, sort_keys=False)
    at = text.index("    module:")
    merging = "".join(f"      v{n}: &v{n}\n        <<: *all\n        abi: abu\n" for n in range(8))
    variants = f"    variants:\n      v: &all {{device: cpu, dtypes: [float32]}}\n{merging}      again: *v0\n"
    (folder / "config.yaml").write_text(text[:at] + variants + text[at:])
    with pytest.raises(ConfigError) as caught:
        config.load(Path("config.yaml"))
    told = [line.split(": ")[1:3] for line in str(caught.value).splitlines()[1:-1]]
    first, *others = told
    assert first == ["operators.op.variants.v", "the key 'precision' is missing"]
    refused = "a merge key is not taken; write the keys out"
    merges = [[f"operators.op.variants.v{n}.<<", refused] for n in range(8)]
    assert [each for each in told if "<<" in each[0]] == merges
    rest = [name.removeprefix("operators.op.variants.") for name, _ in others if "<<" not in name]
    assert rest == ["again.abi", *(f"v{n}.abi" for n in range(8))]


def test_a_file_that_is_not_utf_8_is_told_by_its_line(folder: Path) -> None:
    (folder / "config.yaml").write_bytes(b"project: p\nschema: \xff\n")
    with pytest.raises(ConfigError, match=r"config.yaml:2: the configuration is not UTF-8: byte 0xff\n  next: save"):
        config.load(Path("config.yaml"))


def test_what_is_not_finite_is_one_fault(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"1 fault in the configuration\n.*test.trials: .inf is not a finite number"):
        config.load(written(changed("test", {"trials": float("inf")}), folder))


def test_an_alias_repeats_a_value(folder: Path) -> None:
    data = copy.deepcopy(GOOD)
    data["operators"]["op"]["variants"]["w"] = data["operators"]["op"]["variants"]["v"]
    path = written(data, folder)
    assert "*id001" in path.read_text()
    variants = config.load(path).operators["op"].variants
    assert (variants["v"].name, variants["w"].name) == ("v", "w")
    assert variants["v"].sources == variants["w"].sources


@pytest.mark.parametrize("overrides", [["gate.max_ratio=.nan"], {"gate": {"max_ratio": ".inf"}}])
def test_an_override_that_is_no_number(folder: Path, overrides: object) -> None:
    with pytest.raises(ConfigError, match=r"gate\.max_ratio: (nan|inf) is not a finite number"):
        config.load(written(GOOD, folder), overrides)  # type: ignore[arg-type]


def test_a_source_is_a_file_of_the_repository(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (folder / "v.cc").unlink()
    (folder / "v.cc").mkdir()
    with pytest.raises(ConfigError, match=r"sources\[0\]: 'v\.cc' is a folder"):
        config.load(written(GOOD, folder))
    (folder / "v.cc").rmdir()
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "v.cc"
    elsewhere.touch()
    (folder / "v.cc").symlink_to(elsewhere)
    with pytest.raises(ConfigError, match=r"'v\.cc' leads out of the repository"):
        config.load(written(GOOD, folder))


def test_who_names_a_file_from_its_own_folder_is_told_where_paths_start(folder: Path) -> None:
    (folder / "kernels").mkdir()
    (folder / "v.cc").rename(folder / "kernels" / "v.cc")
    with pytest.raises(ConfigError, match=r"'v\.cc' does not exist; did you mean 'kernels/v\.cc'\? paths start at"):
        config.load(written(GOOD, folder))


def test_who_stands_in_a_sub_folder_is_told_where_paths_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = folder / "kernels" / "below"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    with pytest.raises(ConfigError, match=r"'v\.cc' does not exist, but does in \.\./\.\.: a command is run where"):
        config.load(written(GOOD, below))


def test_missing_file(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: the configuration does not exist"):
        config.load(Path("nowhere.yaml"))


@pytest.mark.parametrize(
    "overrides",
    [["bench.processes=3", "gate.max_ratio=0.9"], {"bench": {"processes": "3"}, "gate": {"max_ratio": 0.9}}],
    ids=["strings", "mapping as Snakemake gives it"],
)
def test_overrides(folder: Path, overrides: object) -> None:
    loaded = config.load(written(GOOD, folder), overrides)  # type: ignore[arg-type]
    assert (loaded.bench.processes, loaded.gate.max_ratio) == (3, 0.9)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("bench.processes=many", 'command line (--set): bench.processes: "many" is not a whole number'),
        ("bench.proceses=3", "command line (--set): bench.proceses: unknown key"),
        ("gaet.max_ratio=1", "command line (--set): gaet: unknown key"),
        ("bench", "not of the form key=value"),
    ],
)
def test_bad_overrides(folder: Path, override: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(written(GOOD, folder), [override])
    assert expected in str(caught.value)


def test_the_source_is_named_from_the_root_and_a_stranger_is_copied(folder: Path) -> None:
    inside = config.load((folder / written(GOOD, folder)).absolute(), root=Path())
    assert inside.source == "config.yaml"
    elsewhere = folder / "elsewhere.yaml"
    elsewhere.write_text(yaml.safe_dump(GOOD))
    root = folder / "root"
    root.mkdir()
    for name in ("op.py", "binding.cc", "v.cc"):
        (root / name).touch()
    config.save(config.load(elsewhere, root=root), root / "results" / "config.json")
    loaded = config.load(root / "results" / "config.json", root=root)
    assert loaded.source == "results/config.given.yaml"
    assert (root / loaded.source).read_text() == elsewhere.read_text()
    assert str(folder) not in (root / "results" / "config.json").read_text()


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (
            "operators.op.test.dtypes",
            ["float32"],
            "operators.op.test.dtypes: unknown key; allowed: cuda_shapes, families",
        ),
        ("operators.op.bench.families", ["normal"], "operators.op.bench.families: unknown key; allowed: cuda_shapes, "),
        ("operators.op.bench.family_shape", "small", "operators.op.bench.family_shape: unknown key"),
        ("operators.op.bench.seeds", [1], "operators.op.bench.seeds: unknown key"),
        ("operators.op.variants.v.dtypes", ["float8_e5m2"], '"float8_e5m2" is not known'),
        ("operators.op.variants.v.precision.p", "float4_e2m1", '"float4_e2m1" is not known'),
    ],
)
def test_what_would_be_ignored_is_refused(folder: Path, key: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(written(changed(key, value), folder))
    assert expected in str(caught.value)


def test_a_fault_names_the_option_that_the_override_was_given_with(folder: Path) -> None:
    path = written(GOOD, folder)
    with pytest.raises(ConfigError, match=r"command line \(--config\): bench\.processes: "):
        config.load(path, {"bench": {"processes": "many"}})  # as the workflow hands it on
    with pytest.raises(ConfigError, match=r"command line \(--set\): archs: '\[sm_89' is not a YAML value"):
        config.load(path, ["archs=[sm_89"])
    with pytest.raises(ConfigError, match=r"\(--config\): bench: '\{processes: \[\}' is not a YAML value"):
        config.load(path, {"bench": "{processes: [}"})
    with pytest.raises(ConfigError, match=r"\(--set\): archs: '2024-13-45' is not a YAML value"):
        config.load(path, ["archs=2024-13-45"])
    path.write_text(f"archs: 2024-13-45\n{path.read_text()}")
    with pytest.raises(ConfigError, match=r"config\.yaml:1: archs: '2024-13-45' is not a YAML value"):
        config.load(path)
    path = written(GOOD, folder)
    for key in ("null", "1.5", "2024-01-01", "true"):
        with pytest.raises(ConfigError, match=rf"\(--set\): bench: YAML does not read the key {key} in .* as text"):
            config.load(path, [f"bench={{{key}: 3}}"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("operators.op.variants.v_.macros.TILE=64", "operators.op.variants.v_: there is no variant 'v_'; allowed: v; "),
        ("operators.opp.bench.shapes=[small]", "operators.opp: there is no operator 'opp'; allowed: op; "),
        ("operators.op.shapes.smal={}", "operators.op.shapes.smal: there is no shape 'smal'; allowed: large, small; "),
    ],
)
def test_an_override_of_a_misspelt_name_is_told_as_that(folder: Path, override: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(written(GOOD, folder), [override])
    assert "1 fault" in str(caught.value)
    assert f"command line (--set): {said}did you mean" in str(caught.value)


def test_a_new_thing_may_come_by_overrides_and_says_what_it_lacks(folder: Path) -> None:
    new = "operators.op.variants.another"
    whole = ["device=cpu", "sources=[v.cc]", "dtypes=[float32]", "precision={output: float32}"]
    loaded = config.load(written(GOOD, folder), [f"{new}.{part}" for part in whole])
    assert set(loaded.operator("op").variants) == {"v", "another"}
    said = "there is no variant 'another'; allowed: v; a new one needs dtypes, precision too"
    with pytest.raises(ConfigError, match=rf"1 fault.*\n.*variants\.another: {said}"):
        config.load(written(GOOD, folder), [f"{new}.device=cpu"])


def test_what_a_new_operator_lacks_is_its_own(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(written(GOOD, folder), ["operators.zzz.variants.v.device=cpu"])
    said = str(caught.value)
    assert (
        "operators.zzz: there is no operator 'zzz'; allowed: op; a new one needs module, shapes, test, bench too"
        in said
    )
    assert "operators.zzz.variants.v: the key 'dtypes' is missing" in said


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("def gelu(x): ...\ndef _own(x): ...\n", "glu", "has no 'glu'; allowed: gelu; did you mean 'gelu'?"),
        ("import torch\n", "gelu", "has no 'gelu'; it has no function"),
        ("from torch.nn.functional import gelu\n", "gelu", None),
        ("from torch import *\n", "gelu", None),
        ("globals()['gelu'] = abs\n", "gelu", None),
        ("locals()['gelu'] = abs\n", "gelu", None),
        ("import sys\nsys.modules[__name__].gelu = abs\n", "gelu", None),
        ("if True:\n    gelu = lambda x: x\n", "gelu", None),
        ("this is no Python\n", "gelu", None),
    ],
)
def test_a_callable_that_a_file_does_not_have(folder: Path, text: str, name: str, said: str | None) -> None:
    (folder / "own.py").write_text(text)
    path = written(changed(f"{OP}.baselines.b.entry", f"own.py:{name}"), folder)
    if said is None:
        config.load(path)
        return
    place = f"{OP}.baselines.b.entry: own.py"
    with pytest.raises(ConfigError, match=rf"1 fault.*\n.*config.yaml:[0-9]+: {place} {re.escape(said)}"):
        config.load(path)


def test_a_module_of_ours_that_does_not_exist_is_told_with_its_line(folder: Path) -> None:
    path = written(changed("operators.op.module", "kernelproof.operators.rmsnrom"), folder)
    with pytest.raises(
        ConfigError, match=r"config\.yaml:\d+: operators\.op\.module: no module .*did you mean .*rmsnorm'"
    ):
        config.load(path)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("bench.processes", 100_000, "at least 1 and at most 1000"),
        ("bench.bootstrap", 10**9, "at least 100 and at most 1000000"),
        ("bench.cpu_threads", 10**6, "at least 0 and at most 4096"),
        ("gate.same_band", 1.5, "above 0 and below 1"),
    ],
)
def test_numbers_that_nobody_means_are_out_of_range(folder: Path, key: str, value: object, allowed: str) -> None:
    with pytest.raises(ConfigError, match=f"{value} is out of range; allowed: {allowed}"):
        config.load(written(changed(key, value), folder))


def test_unknown_names_suggest_the_nearest(folder: Path) -> None:
    loaded = config.load(written(GOOD, folder))
    with pytest.raises(ConfigError, match="did you mean 'op'"):
        loaded.operator("opp")
    with pytest.raises(ConfigError, match="no such variant; allowed: b, v"):
        loaded.operator("op").variant("x")


def test_the_projects_own_configuration_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[1])
    loaded = config.load()
    assert {"attention", "qkt", "rmsnorm"} <= set(loaded.operators)


@pytest.mark.parametrize(("name", "known"), [("kernel", ["level", "rungs"]), ("gpu_wait", ["gate"])])
def test_what_is_far_is_not_suggested(name: str, known: list[str]) -> None:
    assert "did you mean" not in config.among(name, known)


def test_a_hint_names_a_page_that_can_be_opened_from_where_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path("docs") / "reference" / "config.md"
    monkeypatch.chdir(ROOT)
    assert guide("reference/config.md") == str(page)
    monkeypatch.chdir(tmp_path)
    assert guide("reference/config.md") == str(ROOT / page)
    assert guide("reference/none.md") == str(Path("docs") / "reference" / "none.md")
