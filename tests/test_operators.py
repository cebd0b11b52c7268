"""The shipped operators: references against independent arithmetic, bounds, families, exact cases, known faults."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm_ffi
import yaml

from kernelproof import baselines, judge, operators, simfp8, toolchain
from kernelproof.config import AT_LEAST_FLOAT32, Precision, Tolerance, load, schema_file, stated
from kernelproof.errors import ConfigError, JudgeError, KernelproofError, TestError
from kernelproof.images import Returned
from kernelproof.operators import attention, qkt, quantised_attention, rmsnorm
from kernelproof.records import Case

TOLERANCE = Tolerance(1.0, 1.5, 1 / 16, 1 / 64)
INPUT = Precision("input", "input")
ALL = [attention.OPERATOR, qkt.OPERATOR, quantised_attention.OPERATOR, rmsnorm.OPERATOR]
BYTES = ("qkt", "quantised_attention")
SMALL: dict[str, dict[str, int]] = {
    "attention": {"batch": 2, "heads": 4, "kv_heads": 2, "seq": 37, "head_dim": 32},
    "qkt": {"batch": 2, "heads": 3, "seq": 21, "seq_k": 34, "head_dim": 32},
    "quantised_attention": {"batch": 2, "heads": 4, "kv_heads": 2, "seq": 37, "head_dim": 32},
    "rmsnorm": {"rows": 40, "cols": 77},
}


def case_of(operator: str, dims: dict[str, int] | None = None, **changes: Any) -> Case:
    dtype = "uint8" if operator in BYTES else "float16"
    return Case(operator, "t", dims or SMALL[operator], changes.pop("options", {}), **{"dtype": dtype, **changes})


def call_of(case: Case) -> operators.Call:
    operator = next(o for o in ALL if o.name == case.operator)
    return operator.make_call(case, judge.generator(case))


def precision_of(operator: str) -> Precision:
    """What the library computes in."""
    return {"qkt": Precision("float32"), "quantised_attention": Precision("float16")}.get(operator, INPUT)


def naive_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """By the definition, one query at a time, in float64."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                seen = min(k.shape[2], max(0, i + 1 + k.shape[2] - q.shape[2])) if causal else k.shape[2]
                scores = [float(q[b, h, i].double() @ k[b, h // group, j].double()) * scale for j in range(seen)]
                weights = [math.exp(s - max(scores)) for s in scores]
                for j, weight in enumerate(weights):
                    out[b, h, i] += weight / math.fsum(weights) * v[b, h // group, j].double()
    return out


# --- the interface ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ALL, ids=lambda o: o.name)
def test_every_operator_keeps_the_interface(operator: operators.Operator) -> None:
    assert isinstance(operator, operators.Operator)
    assert operator.families[0] == "normal"
    assert operators.load(f"kernelproof.operators.{operator.name}", Path()) is operator


@pytest.mark.parametrize("operator", ALL, ids=lambda o: o.name)
def test_what_is_read_of_a_module_is_what_it_has_when_run(operator: operators.Operator) -> None:
    read = stated(f"kernelproof.operators.{operator.name}", Path())
    assert read.dims in (None, operator.dims)
    assert read.options in (None, {name: list(values) for name, values in operator.options.items()})
    assert read.dtypes in (None, list(operator.dtypes))
    # That of quantised attention says `ATTENTION.dims`.
    assert (read.dims is None) == (read.options is None) == (operator is quantised_attention.OPERATOR)


def test_load_takes_a_path(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from kernelproof.operators.rmsnorm import OPERATOR\n")
    assert operators.load("mine.py", tmp_path) is rmsnorm.OPERATOR


def test_load_finds_a_module_below_the_projects_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_kernels").mkdir()
    (tmp_path / "own_kernels/norm.py").write_text("from kernelproof.operators.rmsnorm import OPERATOR\n")
    assert operators.load("own_kernels.norm", tmp_path) is rmsnorm.OPERATOR


CHANGED = "from kernelproof.operators import rmsnorm\nclass O(rmsnorm.RmsNorm):\n"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("families = 'normal'", "write families = ('normal',)"),
        ("families = ()", None),
        ("axes = ()", "a result that is one number has shape [1], and one axis"),
    ],
)
def test_what_is_no_tuple_of_names_is_told_with_what_to_write_or_nothing(
    tmp_path: Path, line: str, hint: str | None
) -> None:
    (tmp_path / "broken.py").write_text(f"{CHANGED}    {line}\nOPERATOR = O()\n")
    with pytest.raises(ConfigError, match="not a tuple of names") as caught:
        operators.load("broken.py", tmp_path)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("X = 1\nimport nothing_of_that_name\n", "broken.py:2: it cannot be imported: ModuleNotFoundError: No module"),
        ("X = 1\nY = (\n", "broken.py:2: it cannot be imported: SyntaxError: '\\(' was never closed"),
        ("X = 1\n", "defines no OPERATOR"),
        ("class O:\n    pass\nOPERATOR = O\n", r"OPERATOR is a class; write OPERATOR = O\(\)"),
        (
            f"{CHANGED}    dims = ('rows',)\nOPERATOR = O()\n",
            r"OPERATOR.dims is \('rows',\), not a mapping like {\"rows\": ",
        ),
        (
            f"{CHANGED}    options = {{'causal': True}}\nOPERATOR = O()\n",
            r"OPERATOR.options\['causal'\] is True, not a tuple of its values\n  next: write \(False, True\)",
        ),
        (f"{CHANGED}    strided = 'no'\nOPERATOR = O()\n", "OPERATOR.strided is 'no'; allowed: True and False"),
        (f"{CHANGED}    axes = 'row'\nOPERATOR = O()\n", "OPERATOR.axes is 'row', not a tuple of names"),
        (f"{CHANGED}    axes = ()\nOPERATOR = O()\n", r"OPERATOR.axes is \(\), not a tuple of names"),
        (
            f"{CHANGED}    dtypes = ('fp32',)\nOPERATOR = O()\n",
            "OPERATOR.dtypes has 'fp32', which is no data type; allowed",
        ),
        ("class O:\n    name = 'x'\nOPERATOR = O()\n", "lacks dims, options, families"),
        (
            "class O:\n    sanity_cals = dims = options = 1\nOPERATOR = O()\n",
            r"lacks name, .*, sanity_calls \(is 'sanity_cals' meant to be it\?\), cost, suspects",
        ),
    ],
)
def test_load_says_what_is_wrong_with_a_module(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "broken.py").write_text(text)
    with pytest.raises((ConfigError, JudgeError)) as caught:
        operators.load("broken.py", tmp_path)
    assert re.search(message, str(caught.value)), caught.value


def test_of_an_argument_that_a_call_lacks_those_that_it_has_are_told() -> None:
    call = operators.Call(
        {"x": torch.zeros(1), "labels": torch.zeros(1), "eps": 1e-5, "y": torch.zeros(1)}, ("y",), ("row",)
    )
    with pytest.raises(LookupError, match="no tensor 'label'; it has x, labels, y; did you mean 'labels'"):
        call.tensor("label")
    with pytest.raises(LookupError, match="no scalar 'epsilon'; it has eps"):
        call.scalar("epsilon")


def test_a_cost_that_is_a_number_is_called_none() -> None:
    """And is no refusal of the shape, as a KernelproofError of the operator's own is."""

    class Cheap(rmsnorm.RmsNorm):
        def cost(self, case: Case) -> Any:
            return 5 * case.dims["rows"]

    root = Path(__file__).resolve().parents[1]
    settings = load(root / "config.yaml", root=root).operator("rmsnorm")
    with pytest.raises(KernelproofError, match="`cost` gave int where Cost belongs"):
        operators.declared(Cheap(), settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"outputs": ("out",)},
            r"outputs of a Call: \('out',\) does not name tensors, each once, in a tuple; allowed: x, y",
        ),
        ({"outputs": "y"}, "'y' does not name tensors"),
        ({"outputs": ()}, "does not name tensors"),
        ({"outputs": ("y", "y")}, "does not name tensors, each once"),
        ({"outputs": ("x", "y")}, "(?s)None does not name the 2 dimensions of y, in a tuple.*'x': "),
        ({"outputs": ("x", "y"), "axes": {"x": ("a", "b"), "y": ("a",)}}, "the 2 dimensions of y"),
        ({"axes": ("row",)}, "does not name the 2 dimensions of y"),
        ({"arguments": {"n": [1]}}, "n: the argument is a list; allowed: tensor, int, float, bool, None"),
        (
            {"arguments": {"x": torch.ones(2, dtype=torch.complex64), "y": torch.ones(2, 3)}},
            "(?s)x: it is complex64, and some input has to be of a supported data type: float64, .*torch.view_as_real",
        ),
    ],
)
def test_a_call_that_makes_no_sense_says_so(changes: dict[str, Any], message: str) -> None:
    tensors = {"x": torch.ones(2, 3), "y": torch.ones(2, 3)}
    given = {"arguments": tensors, "outputs": ("y",), "axes": ("row", "column")}
    with pytest.raises(KernelproofError, match=message):
        operators.Call(**{**given, **changes})


@pytest.mark.parametrize(
    ("output", "bound", "unit", "message"),
    [
        (torch.ones(3), torch.ones(3), 0.0, "output of a Reference: it is float32, and has to be computed in float64"),
        (torch.ones(3).double(), torch.ones(1), 0.0, r"bound of a Reference: it has shape \[1\], and the output \[3\]"),
        (torch.ones(3).double(), 1e-5, 0.0, "bound of a Reference: it is no tensor"),
        (torch.ones(3).double(), torch.ones(3), 1e-3, "unit_roundoff of a Reference: it is 0.001; allowed: 0 "),
        (torch.ones(3).double(), torch.ones(3), math.nan, "unit_roundoff of a Reference: it is nan; allowed: 0 "),
        (torch.ones(3).double(), torch.ones(3), 1.0, "unit_roundoff of a Reference: it is 1.0; allowed: 0 "),
    ],
)
def test_a_reference_that_makes_no_sense_says_so(output: torch.Tensor, bound: Any, unit: float, message: str) -> None:
    with pytest.raises(KernelproofError, match=message):
        operators.Reference(output, bound, unit)


def test_load_of_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be imported"):
        operators.load("absent.py", tmp_path)


def test_dimensions_have_defaults_and_unknown_ones_are_refused() -> None:
    dims = operators.dims_of(attention.OPERATOR, case_of("attention", {"heads": 6, "seq": 9, "head_dim": 8}))
    assert dims == {"batch": 1, "heads": 6, "kv_heads": 6, "seq": 9, "seq_k": 9, "head_dim": 8}
    with pytest.raises(ConfigError, match="does not give head_dim"):
        operators.dims_of(attention.OPERATOR, case_of("attention", {"heads": 6, "seq": 9}))
    with pytest.raises(ConfigError, match="unknown dimension headdim"):
        operators.dims_of(attention.OPERATOR, case_of("attention", {"heads": 6, "seq": 9, "headdim": 8}))


def test_units_of_a_precision() -> None:
    half = operators.units(INPUT, torch.float16)
    assert (half.output, half.intermediate, half.accumulate, half.smallest) == (2**-11, 2**-11, 2**-21, 2**-24)
    beside = operators.units(INPUT, torch.float16, torch.float32)  # of another output
    assert (beside.output, beside.intermediate) == (2.0**-24, half.intermediate)
    assert beside.smallest == torch.finfo(torch.float32).smallest_normal  # what is below may be flushed to zero
    mixed = operators.units(Precision("float32", "bfloat16"), torch.float16)
    assert (mixed.output, mixed.intermediate, mixed.coarse) == (2**-24, 2**-8, 2**-8)
    eight = operators.units(Precision("float16", "float8_e4m3fn"), torch.uint8)
    assert (eight.output, eight.intermediate, eight.intermediate_smallest) == (2**-11, 2**-4, 2**-9)
    tensor_core = operators.units(Precision("float16", "float8_e4m3fn", "fp22"), torch.uint8)
    assert (tensor_core.accumulate, tensor_core.coarse) == (2**-11, 2**-4)
    with pytest.raises(ConfigError, match="no unit roundoff"):
        operators.units(Precision("float15"), torch.float16)


def summed_in_14_bits(q: torch.Tensor, k: torch.Tensor, at_once: int = 32) -> torch.Tensor:
    """Q Kᵀ as tensor cores sum 8-bit products: aligned to the largest term, and cut off 14 bits below its first."""
    total = torch.zeros(*q.shape[:-1], k.shape[-2], dtype=torch.float64)
    for first in range(0, q.shape[-1], at_once):
        part = slice(first, first + at_once)
        terms = torch.cat([q[..., :, None, part] * k[..., None, :, part], total[..., None]], dim=-1)
        step = 2.0 ** (torch.frexp(terms.abs().amax(-1, keepdim=True)).exponent - 14)
        total = (torch.trunc(terms / step) * step).sum(-1)
    return total


def test_sums_of_8_bit_products_in_tensor_cores_are_within_the_bound_that_declares_them() -> None:
    """Where two scores of 4099 differ by 0.04, as in the case in which an H200's e4m3_wgmma was found wrong."""
    dims = {"batch": 2, "heads": 2, "seq": 64, "head_dim": 64}
    options: dict[str, bool | str] = {"scales": "head"}
    case = case_of("quantised_attention", dims, dtype="float8_e4m3fn", family="near_overflow", options=options)
    call = call_of(case)
    scales = (call.tensor("q_scale") * call.tensor("k_scale")).double()[..., None, None] * call.scalar("scale")
    scores = summed_in_14_bits(call.tensor("q").double(), call.tensor("k").double()) * scales
    output = scores.softmax(-1) @ simfp8.values(call.tensor("v"), call.tensor("v_scale")).double()
    for accumulate, accused in (("float32", True), ("fp22", False)):
        declared = Precision("float16", "float8_e4m3fn", accumulate)
        reference = quantised_attention.OPERATOR.reference(call, declared)
        found = judge.judge(
            case, call, reference, Returned(output.half()), TOLERANCE, operator=quantised_attention.OPERATOR
        )
        assert ("bound" in {failure.criterion for failure in found.failures}) is accused
        # What is wrong by hardly more than its bound is like the result of many faults, and of none in particular.
        assert not any("Likely cause" in failure.message for failure in found.failures)


@pytest.mark.parametrize("operator", ALL, ids=lambda o: o.name)
def test_cases_are_reproducible_and_seeds_differ(operator: operators.Operator) -> None:
    first, again, other = (call_of(case_of(operator.name, seed=seed)) for seed in (1, 1, 2))
    for name, tensor in first.inputs.items():
        assert torch.equal(tensor, again.tensor(name))
    name = next(iter(first.inputs))
    assert not torch.equal(first.tensor(name), other.tensor(name))


@pytest.mark.parametrize(
    ("operator", "family", "dtype"), [(o, f, d) for o in ALL for f in o.families for d in o.dtypes]
)
def test_every_family_has_finite_inputs_and_a_finite_reference(
    operator: operators.Operator, family: str, dtype: str
) -> None:
    call = call_of(case_of(operator.name, family=family, dtype=dtype))
    reference = operator.reference(call, precision_of(operator.name))
    for tensor in call.inputs.values():
        assert bool(torch.isfinite(tensor.float()).all())
    assert bool(torch.isfinite(reference.output).all())
    assert bool((reference.bound > 0).all())
    assert reference.output.shape == reference.bound.shape == call.output.shape
    # Rounding the exact result is well inside the bound.
    rounded = reference.output.to(call.output.dtype).double()
    assert bool(((rounded - reference.output).abs() <= reference.bound).all())


# --- attention --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seq_k", [5, 9, 13])
def test_attention_reference_is_the_definition(causal: bool, seq_k: int) -> None:
    dims = {"batch": 2, "heads": 4, "kv_heads": 2, "seq": 9, "seq_k": seq_k, "head_dim": 8}
    call = call_of(case_of("attention", dims, options={"causal": causal, "layout": "bshd"}))
    reference = attention.OPERATOR.reference(call, INPUT)
    q, k, v = (call.tensor(name) for name in "qkv")
    expected = naive_attention(q, k, v, call.scalar("scale"), causal)
    assert torch.allclose(reference.output, expected, rtol=1e-13, atol=1e-15)


def test_queries_that_see_no_key_give_zero() -> None:
    dims = {"heads": 2, "seq": 9, "seq_k": 5, "head_dim": 8}
    call = call_of(case_of("attention", dims, options={"causal": True}))
    reference = attention.OPERATOR.reference(call, INPUT)
    assert reference.output[:, :, :4].abs().max() == 0
    assert reference.output[:, :, 4:].abs().amin() > 0
    assert reference.bound[:, :, :4].unique().tolist() == [2**-24]  # nothing but the smallest subnormal


def test_attention_bound_is_the_formula_of_criterion_a() -> None:
    call = call_of(case_of("attention", {"heads": 2, "seq": 19, "head_dim": 16}, family="peaky"))
    reference = attention.OPERATOR.reference(call, INPUT)
    q, k, v = (call.tensor(name).double() for name in "qkv")
    scale, u, u_a = call.scalar("scale"), 2**-11, 2**-21
    p = torch.softmax(scale * (q @ k.mT), -1)
    t = scale * (q.abs() @ k.abs().mT)
    o, a = p @ v, p @ v.abs()
    d = (p * t) @ v.abs() + (p * t).sum(-1, keepdim=True) * o.abs()
    bound = u * o.abs() + u * (1 + u) * a + u_a * (8 * a + math.sqrt(16) * d) + 2**-24
    bound += 2**-25 * p.amax(-1, keepdim=True) * v.abs().sum(-2, keepdim=True)
    assert torch.allclose(reference.bound, bound, rtol=1e-5)


def test_the_reference_does_not_depend_on_how_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(
        "attention", {"batch": 2, "heads": 6, "kv_heads": 3, "seq": 150, "head_dim": 8}, options={"causal": True}
    )
    call = call_of(case)
    whole = attention.Attention().reference(call, INPUT)
    largest = 0

    def attend(q: torch.Tensor, k: torch.Tensor, *rest: Any) -> Any:
        nonlocal largest
        largest = max(largest, q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2])
        return original(q, k, *rest)

    original = attention._attend
    monkeypatch.setattr(attention, "_attend", attend)
    monkeypatch.setitem(attention.CHUNK_ELEMENTS, "cpu", 3000)
    parts = attention.Attention().reference(call, INPUT)
    assert largest <= 3000
    assert torch.allclose(whole.output, parts.output, rtol=1e-13, atol=1e-15)
    assert torch.allclose(whole.bound, parts.bound, rtol=1e-5)


PEAK_OF_A_REFERENCE = """
from pathlib import Path
from kernelproof import judge
from kernelproof.config import Precision
from kernelproof.operators.attention import Attention
from kernelproof.records import Case

def peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) * 1024

def call(seq):
    case = Case("attention", "t", {"heads": 1, "seq": seq, "head_dim": 16}, {"causal": True}, "float16")
    return Attention().make_call(case, judge.generator(case))

half = Precision("float16", "float16")
Attention().reference(call(64), half)  # what is allocated once
long = call(8192)
before = peak()
reference = Attention().reference(long, half)
print(peak() - before - reference.output.nbytes - reference.bound.nbytes)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of the memory is read from /proc")
def test_a_long_reference_takes_little_memory() -> None:
    """Less than half of one matrix of scores, of which there would be several: 8192² doubles are 512 MiB."""
    # A process of its own: a peak does not come down again, and this process has been higher.
    environment = {**os.environ, "PYTHONPATH": str(Path(operators.__file__).parents[2])}
    command = [sys.executable, "-c", PEAK_OF_A_REFERENCE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 256 << 20


def test_layouts_share_values() -> None:
    plain, strided = (call_of(case_of("attention", options={"layout": layout})) for layout in ("bhsd", "bshd"))
    assert strided.tensor("q").stride() == (37 * 4 * 32, 32, 4 * 32, 1)
    assert strided.output.stride() == strided.tensor("q").stride()
    assert torch.equal(plain.tensor("v"), strided.tensor("v"))


def test_the_staircase_raises_the_maximum_in_every_block() -> None:
    call = call_of(case_of("attention", {"heads": 2, "seq": 128, "head_dim": 64}, family="staircase"))
    scores = call.tensor("q").double() @ call.tensor("k").double().mT * call.scalar("scale")
    maxima = scores.mean((0, 1, 2)).reshape(-1, 16).mean(-1)
    assert bool((maxima.diff() > 0.5).all())


@pytest.mark.parametrize(("family", "key"), [("sink_first", 0), ("sink_last", -1)])
def test_a_sink_takes_most_of_the_weight(family: str, key: int) -> None:
    call = call_of(case_of("attention", {"heads": 2, "seq": 128, "head_dim": 64}, family=family))
    scores = call.tensor("q").double() @ call.tensor("k").double().mT * call.scalar("scale")
    assert float(torch.softmax(scores, -1)[..., key].median()) > 0.7


def test_denormal_inputs_are_subnormal_and_matter() -> None:
    call = call_of(case_of("attention", {"heads": 2, "seq": 64, "head_dim": 64}, family="denormal"))
    smallest = torch.finfo(torch.float16).tiny
    q = call.tensor("q")
    assert float((call.tensor("v").abs() < smallest).float().mean()) > 0.95
    assert float((q[..., ::2].abs() < smallest).float().mean()) > 0.9
    reference = attention.OPERATOR.reference(call, INPUT)
    call.arguments["q"] = q.where(q.abs() >= smallest, torch.zeros_like(q))
    flushed = attention.OPERATOR.reference(call, INPUT)
    assert bool(((flushed.output - reference.output).abs() > reference.bound).any())


def test_attention_cost() -> None:
    dims = {"batch": 1, "heads": 8, "seq": 512, "head_dim": 64}
    full = attention.OPERATOR.cost(case_of("attention", dims))
    assert full.flops == 4 * 8 * 512 * 512 * 64
    assert full.exponentials == 8 * 512 * 512
    assert (full.bytes_read, full.bytes_written) == (3 * 8 * 512 * 64 * 2, 8 * 512 * 64 * 2)
    causal = attention.OPERATOR.cost(case_of("attention", dims, options={"causal": True}))
    assert causal.exponentials == 8 * 512 * 513 / 2


# --- exact cases ------------------------------------------------------------------------------------------------------

LIBRARY = {
    "attention": baselines.sdpa_math,
    "qkt": baselines.qkt_torch,
    "quantised_attention": baselines.quantised_torch,
    "rmsnorm": baselines.rmsnorm_torch,
}


def run_library(call: operators.Call, operator: str) -> torch.Tensor:
    return LIBRARY[operator](*(value for name, value in call.arguments.items() if name not in call.outputs))


@pytest.mark.parametrize("operator", ALL, ids=lambda o: o.name)
def test_exact_cases_are_right_and_the_library_gives_them(operator: operators.Operator) -> None:
    for dtype in operator.dtypes:
        for options in [{name: values[i] for name, values in operator.options.items()} for i in (0, 1)]:
            case = case_of(operator.name, dtype=dtype, options=options)
            made = operator.sanity_calls(case, judge.generator(case))
            assert len(made) >= 2
            for exact in made:
                assert exact.reference.exact
                reference = operator.reference(exact.call, precision_of(operator.name))
                use = torch.isfinite(exact.reference.bound)
                assert float(use.double().mean()) > 0.05
                judge.insist_on_exact(exact.name, exact.reference, reference)
                returned = Returned(run_library(exact.call, operator.name))
                result = judge.judge(exact.case, exact.call, exact.reference, returned, TOLERANCE, operator=operator)
                assert result.failures == []


@pytest.mark.parametrize("operator", ALL, ids=lambda o: o.name)
def test_an_exact_case_has_another_value_in_every_batch_and_head(operator: operators.Operator) -> None:
    """Results of another batch or head, or of the next row, are no exact results."""
    case = case_of(operator.name)
    by_name = {made.name: made for made in operator.sanity_calls(case, judge.generator(case))}
    exact = by_name["signs" if operator is rmsnorm.OPERATOR else "one_hot_tail"]
    output = exact.reference.output
    if operator is not rmsnorm.OPERATOR:
        assert output.shape[0] >= 2
        assert exact.case.dims["seq"] % 2 == 1
    for dim in range(output.dim() - 1):
        moved = Returned(output.roll(1, dim).to(exact.call.output.dtype))
        result = judge.judge(exact.case, exact.call, exact.reference, moved, TOLERANCE)
        assert [failure.criterion for failure in result.failures] == ["exact"]


@pytest.mark.parametrize("name", ["attention", "quantised_attention"])
def test_values_of_zero_and_a_single_key_are_exact(name: str) -> None:
    operator = next(o for o in ALL if o.name == name)
    for dtype in operator.dtypes:
        case = case_of(name, dtype=dtype)
        by_name = {made.name: made for made in operator.sanity_calls(case, judge.generator(case))}
        zero, single = by_name["zero_values"], by_name["single_key"]
        assert not bool(zero.reference.output.any())
        assert not bool(zero.reference.bound.any())
        assert single.call.tensor("k").shape[2] == single.call.tensor("q").shape[2] == 1
        wrong = single.reference.output.clone()
        wrong[0, 1, 0, 2] *= 1 + 2.0**-8
        returned = Returned(wrong.to(single.call.output.dtype))
        result = judge.judge(single.case, single.call, single.reference, returned, TOLERANCE)
        assert [failure.criterion for failure in result.failures] == ["exact"]


def test_rows_of_zeros_are_asked_for_and_no_others() -> None:
    case = case_of("rmsnorm")
    exact = {m.name: m for m in rmsnorm.OPERATOR.sanity_calls(case, judge.generator(case))}["zero_rows"]
    output = run_library(exact.call, "rmsnorm")
    assert bool(output[1::2].any())
    output[1::2] = 7.0
    judged = judge.judge(exact.case, exact.call, exact.reference, Returned(output), TOLERANCE)
    assert judged.failures == []
    output[0] = math.nan  # 0/0 where eps is left out
    judged = judge.judge(exact.case, exact.call, exact.reference, Returned(output), TOLERANCE)
    assert [failure.criterion for failure in judged.failures] == ["nonfinite"]


@pytest.mark.parametrize("head_dim", [16, 32, 40, 64, 80, 128])
@pytest.mark.parametrize("seq", [1, 7, 128, 600])
def test_one_hot_scores_are_zero_for_one_key_and_far_below_for_the_rest(head_dim: int, seq: int) -> None:
    case = case_of("attention", {"heads": 2, "seq": seq, "head_dim": head_dim}, options={"causal": True})
    q, k, v, expected = attention._one_hot_exact(attention.Draw(case, judge.generator(case)))
    scores = q @ k.mT / math.sqrt(head_dim)
    best = scores.topk(min(2, seq), -1).values
    assert best[..., 0].abs().max() == 0
    if 2**2 ** int(math.log2(head_dim // 2)) < seq:
        return  # there are not that many codewords, and some keys are the same
    if seq > 1:
        assert best[..., 1].max() <= -200
    chosen = scores.argmax(-1)
    assert bool((chosen <= torch.arange(seq)).all())
    assert torch.equal(expected, v.gather(2, chosen[..., None].expand(v.shape)))


def test_a_factor_a_row_is_none_of_an_output_of_one_number_a_row() -> None:
    """[rows, 1] times [rows] would be [rows, rows], of which the mean square is as many times too large."""
    x = torch.randn(6, 64, dtype=torch.float64)
    output, unit = x.mean(-1), operators.units(Precision("float32"), torch.float32)
    chained = unit.accumulate * x.abs().sum(-1) / 8
    with pytest.raises(TestError, match=r"accumulation_floors: `chained` is of \[6, 6\] where the output is of \[6\]"):
        operators.accumulation_floors(output, chained, unit, chained * operators.alike(x))
    floors = operators.accumulation_floors(output, chained, unit, chained * operators.alike(x)[..., 0])
    assert all(0 < floor < 1e-3 for floor in floors)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_who_leaves_out_keys_of_little_weight_is_wrong(dtype: str) -> None:
    """Though nearly all of the weight is on the keys that it keeps."""
    case = case_of("attention", {"heads": 2, "seq": 200, "head_dim": 64}, family="light_keys", dtype=dtype)
    call = attention.OPERATOR.make_call(case, judge.generator(case))
    q, k, v = (call.tensor(name).double() for name in "qkv")
    weights = torch.softmax(q @ k.mT * call.scalar("scale"), -1)
    assert weights[..., 66:134].sum(-1).min() > (0.9 if dtype == "float16" else 0.999999)
    reference = attention.OPERATOR.reference(call, Precision(dtype, "float32"))
    without = weights.clone()
    without[..., :66] = without[..., 134:] = 0
    failed = judge.judge(case, call, reference, Returned((without @ v).to(call.output.dtype)), TOLERANCE)
    assert {failure.criterion for failure in failed.failures} >= {"bound", "rms"}
    right = judge.judge(case, call, reference, Returned((weights @ v).to(call.output.dtype)), TOLERANCE)
    assert right.failures == []


def test_a_row_that_is_off_by_one_in_the_last_place_is_no_exact_result() -> None:
    case = case_of("attention")
    exact = attention.OPERATOR.sanity_calls(case, judge.generator(case))[0]
    output = exact.reference.output.to(torch.float16)
    output[1, 2, 3, 4] = torch.nextafter(output[1, 2, 3, 4], torch.tensor(1e4, dtype=torch.float16))
    result = judge.judge(exact.case, exact.call, exact.reference, Returned(output), TOLERANCE)
    assert [f.criterion for f in result.failures] == ["exact"]
    assert result.first_bad_index == [1, 2, 3, 4]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_exact_means_survive_float32_roundings_and_nothing_coarser(dtype: str) -> None:
    case = case_of("attention", dtype=dtype)
    exact = attention.OPERATOR.sanity_calls(case, judge.generator(case))[1]
    for off, wrong in ((2**-23, False), (2**-10, True)):
        noise = torch.randn(
            exact.reference.output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
        )
        output = (exact.reference.output * (1 + off) + noise.clamp(-3, 3) * off / 4).to(operators.dtype(dtype))
        result = judge.judge(exact.case, exact.call, exact.reference, Returned(output), TOLERANCE)
        assert bool(result.failures) is wrong


# --- scores of codes --------------------------------------------------------------------------------------------------


def test_scores_reference_is_the_definition() -> None:
    case = case_of("qkt", options={"scaled": True})
    call = call_of(case)
    reference = qkt.OPERATOR.reference(call, Precision("float32"))
    b, h, i, j = 1, 2, 20, 33
    total = 0.0
    for f in range(32):
        x = (int(call.tensor("q")[b, h, i, f]) - 128) / 127 * 448 * float(call.tensor("q_scale")[b, h])
        y = (int(call.tensor("k")[b, h, j, f]) - 128) / 127 * 448 * float(call.tensor("k_scale")[b, h])
        total += x * y
    assert float(reference.output[b, h, i, j]) == pytest.approx(total / math.sqrt(32), rel=1e-12)


@pytest.mark.parametrize("family", qkt.OPERATOR.families)
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dtype", qkt.OPERATOR.dtypes)
def test_library_scores_pass(family: str, scaled: bool, dtype: str) -> None:
    case = case_of("qkt", family=family, dtype=dtype, options={"scaled": scaled})
    call = call_of(case)
    reference = qkt.OPERATOR.reference(call, Precision("float32"))
    result = judge.judge(case, call, reference, Returned(run_library(call, "qkt")), TOLERANCE)
    assert result.failures == []


def test_16_bit_numbers_stand_for_themselves() -> None:
    call = call_of(case_of("qkt", dtype="bfloat16", family="per_head_scale"))
    assert call.tensor("q").dtype == call.tensor("k").dtype == torch.bfloat16
    assert call.tensor("q_scale").unique().tolist() == call.tensor("k_scale").unique().tolist() == [1]
    reference = qkt.OPERATOR.reference(call, Precision("float32"))
    assert torch.equal(reference.output, call.tensor("q").double() @ call.tensor("k").double().mT)
    operator = qkt.OPERATOR
    causes = [s.cause for s in operator.suspects(call, torch.tensor([[0, 0, 0]]))]
    assert causes
    assert not [cause for cause in causes if "codes" in cause]


def test_codes_in_half_precision_give_the_same_scores() -> None:
    case = case_of("qkt", family="all_codes")
    call = call_of(case)
    inputs = [value for name, value in call.arguments.items() if name not in call.outputs]
    assert torch.equal(baselines.qkt_half(*inputs), baselines.qkt_torch(*inputs))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["Q and K", "Q only", "K only"])
def test_a_wrong_zero_point_is_named(name: str) -> None:
    case = case_of("qkt")
    call = call_of(case)
    zero = {"q": 128.0 if name == "K only" else 127.5, "k": 128.0 if name == "Q only" else 127.5}
    q, k = (simfp8.decode(call.tensor(n), call.tensor(f"{n}_scale"), zero[n]) for n in "qk")
    output = (q @ k.mT).float()
    reference = qkt.OPERATOR.reference(call, Precision("float32"))
    result = judge.judge(case, call, reference, Returned(output), TOLERANCE, operator=qkt.OPERATOR)
    assert result.status == "failed"
    assert f"codes are decoded with zero point 127.5; the encoder's is 128 ({name})" in result.failures[0].message


# --- attention on quantised inputs ------------------------------------------------------------------------------------

CODECS = quantised_attention.OPERATOR.dtypes


@pytest.mark.parametrize("dtype", CODECS)
@pytest.mark.parametrize("causal", [False, True])
def test_quantised_reference_is_attention_on_what_the_codes_stand_for(dtype: str, causal: bool) -> None:
    dims = {"batch": 2, "heads": 4, "kv_heads": 2, "seq": 9, "seq_k": 5, "head_dim": 8}
    call = call_of(case_of("quantised_attention", dims, dtype=dtype, options={"causal": causal, "scales": "head"}))
    decoded = {}
    for name in "qkv":
        worth = call.tensor(f"{name}_scale").double()[..., None, None]
        codes = call.tensor(name)
        decoded[name] = ((codes.double() - 128) * 448 / 127 if dtype == "uint8" else codes.double()) * worth
    reference = quantised_attention.OPERATOR.reference(call, Precision("float16"))
    expected = naive_attention(decoded["q"], decoded["k"], decoded["v"], call.scalar("scale"), causal)
    assert torch.allclose(reference.output, expected, rtol=1e-12, atol=1e-15)
    assert call.output.dtype == torch.float16


@pytest.mark.parametrize("dtype", CODECS)
def test_scales_serve_a_tensor_or_a_head(dtype: str) -> None:
    calls = [call_of(case_of("quantised_attention", dtype=dtype, options={"scales": s})) for s in ("tensor", "head")]
    for name in ("q_scale", "k_scale", "v_scale"):
        whole, per_head = (call.tensor(name) for call in calls)
        assert whole.unique().tolist() == [per_head.max().item()]
        assert len(per_head.unique()) == per_head.numel()


@pytest.mark.parametrize("dtype", CODECS)
def test_either_codec_uses_its_whole_range_and_no_more(dtype: str) -> None:
    x = torch.randn(1, 2, 33, 16, generator=torch.Generator().manual_seed(3)) * 1000
    codes, scale = quantised_attention.encoded(x, dtype, "head")
    back = simfp8.values(codes, scale)
    assert torch.allclose(back.abs().amax((-2, -1)), x.abs().amax((-2, -1)).double(), rtol=1e-6)
    step = 2**-4 * x.double().abs() + scale.double()[..., None, None] * (2**-10 if dtype != "uint8" else 448 / 254)
    assert bool(((back - x).abs() <= step).all())
    doubled = quantised_attention.encode(x * 2, scale, dtype)  # saturates
    assert torch.allclose(simfp8.values(doubled, scale).abs().max(), back.abs().max(), rtol=0.02)


@pytest.mark.parametrize("family", quantised_attention.OPERATOR.families)
@pytest.mark.parametrize("dtype", CODECS)
def test_library_attention_on_codes_passes(family: str, dtype: str) -> None:
    options = {"causal": True, "layout": "bshd", "scales": "head"}
    case = case_of("quantised_attention", family=family, dtype=dtype, options=options)
    call = call_of(case)
    reference = quantised_attention.OPERATOR.reference(call, Precision("float16"))
    returned = Returned(run_library(call, "quantised_attention"))
    assert judge.judge(case, call, reference, returned, TOLERANCE).failures == []


def attention_of_weights_in(dtype: torch.dtype, scale: float, call: operators.Call) -> torch.Tensor:
    """Attention in float64 but for the weights, times a power of two, in `dtype`."""
    q, k, v = (simfp8.values(call.tensor(n), call.tensor(f"{n}_scale")) for n in "qkv")
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.mT * call.scalar("scale")
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    rounded = (weights * scale).float().to(dtype).double() / scale
    return (rounded @ v / weights.sum(-1, keepdim=True)).half()


@pytest.mark.parametrize("family", quantised_attention.OPERATOR.families)
def test_e4m3_weights_pass_where_they_are_declared_and_nowhere_else(family: str) -> None:
    case = case_of("quantised_attention", family=family, dtype="float8_e4m3fn")
    call = call_of(case)
    returned = Returned(attention_of_weights_in(torch.float8_e4m3fn, 256.0, call))
    honest, dishonest = (
        judge.judge(case, call, quantised_attention.OPERATOR.reference(call, declared), returned, TOLERANCE)
        for declared in (Precision("float16", "float8_e4m3fn"), Precision("float16", "float16"))
    )
    assert honest.failures == []
    if family not in ("one_hot", "sink_first", "sink_last"):  # weights of 0 and 1, or nearly
        assert dishonest.failures != []


def test_weights_coarser_than_e4m3_are_seen() -> None:
    case = case_of("quantised_attention", {"heads": 4, "seq": 128, "head_dim": 64}, dtype="float8_e4m3fn")
    call = call_of(case)
    reference = quantised_attention.OPERATOR.reference(call, Precision("float16", "float8_e4m3fn"))
    returned = Returned(attention_of_weights_in(torch.float8_e5m2, 2.0**14, call))
    failures = judge.judge(case, call, reference, returned, TOLERANCE).failures
    assert [failure.criterion for failure in failures] == ["rms"]


def test_of_the_faults_that_fit_the_nearest_is_named() -> None:
    """To scale small scores twice gives nearly what it gives to ignore them: within the bound of coarse weights."""
    case = case_of("quantised_attention", {"heads": 2, "seq": 64, "head_dim": 64}, dtype="float8_e4m3fn")
    call = call_of(case)
    v = simfp8.values(call.tensor("v"), call.tensor("v_scale"))
    output = v.mean(2, keepdim=True).expand(call.output.shape).half()
    operator = quantised_attention.OPERATOR
    reference = operator.reference(call, Precision("float16", "float8_e4m3fn", "fp22"))
    result = judge.judge(case, call, reference, Returned(output), TOLERANCE, operator=operator)
    assert "Likely cause: every key weighs the same" in result.failures[0].message


@pytest.mark.parametrize(
    ("names", "said"),
    [("qkv", "Q, K and V"), ("qk", "Q, and K perhaps"), ("q", "Q, and K perhaps"), ("v", "V only"), ("k", "")],
)
def test_a_wrong_zero_point_in_attention_is_named(names: str, said: str) -> None:
    case = case_of("quantised_attention", options={"scales": "head"})
    call = call_of(case)
    q, k, v = (
        simfp8.decode(call.tensor(n), call.tensor(f"{n}_scale"), 127.5 if n in names else 128.0).float() for n in "qkv"
    )
    output = baselines.sdpa_math(q, k, v, call.scalar("scale"), False).half()
    operator = quantised_attention.OPERATOR
    reference = operator.reference(call, Precision("float16"))
    result = judge.judge(case, call, reference, Returned(output), TOLERANCE, operator=operator)
    if not said:  # no softmax notices the zero point of K
        assert result.failures == []
        return
    assert f"codes are decoded with zero point 127.5; the encoder's is 128 ({said})" in result.failures[0].message


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("v", "the scale of V is not applied"),
        ("head", "every head uses the scale of head 0 for V"),
        ("mask", "the causal mask is not applied"),
    ],
)
def test_faults_of_quantised_attention_are_named(fault: str, said: str) -> None:
    options = {"scales": "head", "causal": fault == "mask"}
    case = case_of("quantised_attention", dtype="float8_e4m3fn", options=options)
    call = call_of(case)
    v_scale = call.tensor("v_scale")
    changed = {"v": torch.ones_like(v_scale), "head": v_scale[:, :1].expand_as(v_scale)}
    arguments = [value for name, value in call.arguments.items() if name not in call.outputs]
    arguments[5] = changed.get(fault, v_scale)
    arguments[7] = False
    output = baselines.quantised_torch(*arguments)  # type: ignore[arg-type]
    operator = quantised_attention.OPERATOR
    reference = operator.reference(call, Precision("float16"))
    result = judge.judge(case, call, reference, Returned(output), TOLERANCE, operator=operator)
    assert said in result.failures[0].message


@pytest.fixture(scope="module")
def cpu_quantised(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """The variant for the CPU, compiled without what makes it fast."""
    root, folder = Path(__file__).resolve().parents[1], tmp_path_factory.mktemp("cpu_quantised")
    host, ffi = toolchain.find_host_compiler(), toolchain.tvm_ffi_folder()
    sources = [root / "csrc" / "quantised_attention" / name for name in ("binding.cc", "cpu_quantised.cc")]
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", f"-I{root / 'csrc'}", f"-I{ffi / 'include'}"]
    library = folder / "lib.so"
    subprocess.run(
        [str(host.path), *flags, *map(str, sources), f"-L{ffi / 'lib'}", "-ltvm_ffi", "-o", str(library)], check=True
    )
    module = tvm_ffi.load_module(str(library))
    function = module.get_function("run")

    def call(*arguments: Any) -> None:
        function(*arguments)

    call.module = module  # type: ignore[attr-defined]  # the library must outlive the function
    return call


@pytest.mark.parametrize("family", quantised_attention.OPERATOR.families)
@pytest.mark.parametrize("dtype", CODECS)
def test_the_variant_for_the_cpu_passes(cpu_quantised: Callable[..., None], family: str, dtype: str) -> None:
    dims = {"batch": 2, "heads": 4, "kv_heads": 2, "seq": 37, "seq_k": 21, "head_dim": 24}
    options = {"causal": True, "layout": "bshd", "scales": "head"}
    case = case_of("quantised_attention", dims, family=family, dtype=dtype, options=options)
    call = call_of(case)
    cpu_quantised(*call.arguments.values())
    reference = quantised_attention.OPERATOR.reference(call, Precision("float16"))
    assert judge.judge(case, call, reference, Returned(call.output), TOLERANCE).failures == []


@pytest.mark.parametrize("dtype", CODECS)
def test_the_variant_for_the_cpu_is_exact_where_it_must_be(cpu_quantised: Callable[..., None], dtype: str) -> None:
    case = case_of("quantised_attention", dtype=dtype, options={"scales": "head"})
    for exact in quantised_attention.OPERATOR.sanity_calls(case, judge.generator(case)):
        cpu_quantised(*exact.call.arguments.values())
        result = judge.judge(exact.case, exact.call, exact.reference, Returned(exact.call.output), TOLERANCE)
        assert result.failures == []


def test_one_scale_may_serve_all_heads_without_being_copied(cpu_quantised: Callable[..., None]) -> None:
    call = call_of(case_of("quantised_attention", options={"scales": "tensor"}))
    cpu_quantised(*call.arguments.values())
    copied = call.output.clone()
    for name in ("q_scale", "k_scale", "v_scale"):
        call.arguments[name] = call.tensor(name)[:1, :1].expand_as(call.tensor(name))
        assert call.tensor(name).stride() == (0, 0)
    cpu_quantised(*call.arguments.values())
    assert torch.equal(call.output, copied)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("q", lambda t: t.to(torch.int8), "q is int8, expected uint8 .simulated FP8. or float8_e4m3fn"),
        ("k", lambda t: t.view(torch.float8_e4m3fn), "k is dtype code 10 of bits 8, expected uint8"),
        ("v_scale", lambda t: t.double(), "v_scale is float64, expected float32"),
        ("k_scale", lambda t: t[:, :1], r"k_scale has shape \[2, 1\], expected \[2, 2\]"),
        ("o", lambda t: t.float(), "o is float32, expected float16"),
    ],
)
def test_the_binding_says_what_does_not_fit(
    cpu_quantised: Callable[..., None], name: str, change: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    call = call_of(case_of("quantised_attention"))
    call.arguments[name] = change(call.tensor(name))
    with pytest.raises((TypeError, ValueError), match=message):
        cpu_quantised(*call.arguments.values())


def test_cost_of_quantised_attention() -> None:
    dims = {"batch": 1, "heads": 8, "kv_heads": 2, "seq": 512, "head_dim": 64}
    cost = quantised_attention.OPERATOR.cost(case_of("quantised_attention", dims))
    assert cost.flops == 4 * 8 * 512 * 512 * 64
    assert cost.bytes_read == (8 + 2 * 2) * (512 * 64 + 4)
    assert cost.bytes_written == 8 * 512 * 64 * 2


def test_values_of_v_mean_have_one_sign_in_each_head() -> None:
    signs = call_of(case_of("attention", family="v_mean")).tensor("v").sign()
    assert torch.equal(signs.amin((0, 2, 3)), signs.amax((0, 2, 3)))
    assert signs[0, :2, 0, 0].tolist() == [-1, 1]


@pytest.mark.parametrize("family", quantised_attention.OPERATOR.families)
def test_inputs_of_a_single_feature_can_be_made(family: str) -> None:
    """The deep level draws such: of a size of 1 torch keeps any stride, and a kernel is given 1."""
    dims = {"batch": 1, "heads": 3, "seq": 2, "head_dim": 1}
    for layout in ("bhsd", "bshd"):
        call = call_of(case_of("quantised_attention", dims, dtype="uint8", family=family, options={"layout": layout}))
        assert {tensor.stride(-1) for tensor in call.tensors.values()} == {1}


# --- RMSNorm ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", rmsnorm.OPERATOR.dtypes)
@pytest.mark.parametrize("family", rmsnorm.OPERATOR.families)
def test_library_rmsnorm_passes(family: str, dtype: str) -> None:
    case = case_of("rmsnorm", family=family, dtype=dtype)
    call = call_of(case)
    reference = rmsnorm.OPERATOR.reference(call, Precision("input"))
    result = judge.judge(case, call, reference, Returned(run_library(call, "rmsnorm")), TOLERANCE)
    assert result.failures == []


def test_a_sum_that_ends_early_is_told_with_every_width_that_it_fits() -> None:
    case = Case("rmsnorm", "one_more", {"rows": 3, "cols": 1025}, {}, "float32")
    call = rmsnorm.OPERATOR.make_call(case, judge.generator(case))
    x, weight = call.tensor("x"), call.tensor("weight")
    output = x * (x[:, :1024].square().sum(-1, keepdim=True) / 1025 + call.scalar("eps")).rsqrt() * weight
    reference = rmsnorm.OPERATOR.reference(call, Precision("input"))
    result = judge.judge(case, call, reference, Returned(output), TOLERANCE, operator=rmsnorm.OPERATOR)
    assert result.failures[0].message.endswith(
        "only the first 1024 columns are summed: those after the last whole 32, 64, 128, 256 and 1024 are missing"
    )


@pytest.mark.parametrize("dtype", rmsnorm.OPERATOR.dtypes)
def test_weights_span_powers_of_two_and_results_stay_in_range(dtype: str) -> None:
    call = call_of(case_of("rmsnorm", family="weight_scales", dtype=dtype))
    weight, limits = call.tensor("weight").double().abs(), torch.finfo(call.output.dtype)
    assert float(weight.max() / weight.median()) > 2**5
    output = rmsnorm.OPERATOR.reference(call, Precision("input")).output.abs()
    assert float(output.max()) < limits.max / 4
    assert float((output > limits.smallest_normal).double().mean()) > 0.97


@pytest.mark.parametrize("cols", [1001, 4096, 16385, 131072])
def test_a_plain_chain_of_float32_additions_is_right_however_long_a_row_is(cols: int) -> None:
    case = Case("rmsnorm", "wide", {"rows": 3, "cols": cols}, {}, "float32")
    call = rmsnorm.OPERATOR.make_call(case, judge.generator(case))
    x, weight = call.tensor("x"), call.tensor("weight")
    squares = np.add.accumulate((x * x).numpy(), axis=-1, dtype=np.float32)[:, -1:]
    output = x / torch.sqrt(torch.from_numpy(squares) / cols + call.scalar("eps")) * weight
    result = judge.judge(case, call, rmsnorm.OPERATOR.reference(call, Precision("input")), Returned(output), TOLERANCE)
    assert not result.failures
    halves = torch.sqrt((x.half() * x.half()).float().mean(-1, keepdim=True) + call.scalar("eps"))
    coarse = judge.judge(
        case,
        call,
        rmsnorm.OPERATOR.reference(call, Precision("input")),
        Returned(x / halves.half() * weight),
        TOLERANCE,
    )
    assert coarse.failures


def faulty_rmsnorm(fault: str, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x, w = x.float(), weight.float()
    square = x.square().mean(-1, keepdim=True)
    if fault == "eps is left out":
        return x * square.rsqrt() * w
    if fault == "the weight is not applied":
        return x * (square + eps).rsqrt()
    if fault == "the mean is subtracted":
        centred = x - x.mean(-1, keepdim=True)
        return centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * w
    if fault == "only the first 64 columns":
        return x * (x[:, :64].square().sum(-1, keepdim=True) / x.shape[1] + eps).rsqrt() * w
    return x * (square * x.shape[1] + eps).rsqrt() * w


@pytest.mark.parametrize(
    ("fault", "family"),
    [
        ("eps is left out", "small"),
        ("the weight is not applied", "normal"),
        ("the mean is subtracted", "offset"),
        ("only the first 64 columns", "normal"),
        ("the sum of squares is not divided", "normal"),
    ],
)
def test_faults_of_rmsnorm_are_named(fault: str, family: str) -> None:
    case = case_of("rmsnorm", {"rows": 20, "cols": 140}, family=family)
    call = call_of(case)
    output = faulty_rmsnorm(fault, call.tensor("x"), call.tensor("weight"), call.scalar("eps")).half()
    reference = rmsnorm.OPERATOR.reference(call, Precision("input"))
    result = judge.judge(case, call, reference, Returned(output), TOLERANCE, operator=rmsnorm.OPERATOR)
    assert fault in result.failures[0].message


def test_costs_of_the_small_operators() -> None:
    scores = qkt.OPERATOR.cost(case_of("qkt", {"heads": 2, "seq": 8, "head_dim": 64}))
    assert scores == operators.Cost(2 * 2 * 8 * 8 * 64, 2 * 2 * 8 * 64 + 16, 2 * 8 * 8 * 4)
    norm = rmsnorm.OPERATOR.cost(case_of("rmsnorm", {"rows": 3, "cols": 8}))
    assert norm == operators.Cost(96, (24 + 8) * 2, 48)


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("operator", ALL, ids=lambda o: o.name)
def test_references_on_a_gpu_are_those_of_the_cpu(operator: operators.Operator) -> None:
    call = call_of(case_of(operator.name))
    precision = precision_of(operator.name)
    here, there = (operator.reference(call, precision, device) for device in ("cpu", "cuda"))
    assert there.output.device.type == "cuda"
    assert torch.allclose(here.output, there.output.cpu(), rtol=1e-12, atol=1e-15)
    assert torch.allclose(here.bound, there.bound.cpu(), rtol=1e-4)
    result = judge.judge(case_of(operator.name), call, there, Returned(run_library(call, operator.name)), TOLERANCE)
    assert result.failures == []


def test_strides_of_their_own_are_no_multiples_of_one_another() -> None:
    case = Case("attention", "t", {"batch": 2, "heads": 3, "kv_heads": 3, "seq": 5, "head_dim": 16}, {}, "float16")
    call = call_of(case)
    moved = operators.with_own_strides(call)
    strides = {name: moved.tensor(name).stride() for name in "qkvo"}
    assert len(set(strides.values())) == 4
    for name, (batch, head, row, column) in strides.items():
        inner, outer = sorted((head, row))
        assert (column, inner > 16, outer % inner > 0, batch % outer > 0) == (1, True, True, True), name
        assert all(stride * 2 % 16 == 0 for stride in (batch, head, row)), name  # 16 bytes
    assert all(torch.equal(moved.tensor(name), call.tensor(name)) for name in "qkv")


def test_the_elements_of_one_tensor_lie_apart() -> None:
    call = call_of(case_of("rmsnorm"))
    moved = operators.with_gaps(call, "weight")
    assert (call.tensor("weight").stride(), moved.tensor("weight").stride()) == ((1,), (2,))
    assert torch.equal(moved.tensor("weight"), call.tensor("weight"))
    assert all(moved.arguments[name] is call.arguments[name] for name in ("x", "y", "eps"))
    rows, columns = operators.with_gaps(call, "x").tensor("x").stride()
    assert (rows, columns) == (2 * call.tensor("x").stride(0), 2)


def test_the_schema_names_the_data_types_that_operators_know() -> None:
    schema = yaml.safe_load(schema_file().read_text())
    precision = schema["$defs"]["variant"]["properties"]["precision"]["properties"]
    assert schema["$defs"]["dtype"]["enum"] == list(operators.DTYPES)
    assert precision["output"]["enum"] == [*operators.DTYPES, "input"]
    known = set(operators.UNIT_ROUNDOFF) & set(operators.SMALLEST_SUBNORMAL)
    assert {name for part in ("output", "p") for name in precision[part]["enum"]} - {"input", AT_LEAST_FLOAT32} <= known


def test_terms_are_alike_as_far_as_they_are_the_same() -> None:
    different = torch.arange(4096.0)
    rows = [different, different // 256, different * 0, different % 2, (different == 0).float()]
    assert operators.alike(torch.stack(rows)).flatten().tolist() == [1 / 8, 3 / 4, 1, 1, 1]
    assert operators.alike(torch.zeros(2, 3, 5)).shape == (2, 3, 1)


@pytest.mark.parametrize("below", [2.5, 6.0, 10.0, 12.3])
def test_a_plain_loop_is_right_where_one_value_is_above_others_that_are_alike(below: float) -> None:
    """A softmax as the guide to one's own operator has it; each term is rounded as the one before it."""
    x = torch.full((32, 4096), -below)
    x[:, 0] = 0
    wanted = x.double().softmax(-1)
    unit = operators.units(Precision("float32"), torch.float32)
    chained = unit.accumulate * wanted * x.shape[-1] / 8
    accumulation = unit.accumulate * wanted * (8 - x.double()) + chained
    terms = x.exp()
    total = torch.from_numpy(np.add.accumulate(terms.numpy(), axis=1, dtype=np.float32)[:, -1:])
    call = operators.Call({"x": x, "y": torch.empty_like(x)}, ("y",), ("row", "column"))
    bound = operators.forward_bound(wanted, wanted, accumulation, unit)
    floors = operators.accumulation_floors(wanted, accumulation, unit, chained * operators.alike(x))
    reference = operators.Reference(wanted, bound, unit.coarse, *floors)
    case, tolerance = Case("softmax", "s", {"rows": 32}, {}, "float32"), Tolerance(1.0, 1.5, 1 / 16, 1 / 64)

    def failures(output: torch.Tensor) -> list[str]:
        return [
            failure.criterion for failure in judge.judge(case, call, reference, Returned(output), tolerance).failures
        ]

    assert failures(terms / total) == []
    assert failures(terms / total * (1 + 2 * 4096 * 2**-24)) != []


def test_an_error_that_a_whole_row_shares_is_allowed_where_one_chain_makes_it() -> None:
    """The mean of equal values in one chain: every rounding goes in one direction, and every column is off by it."""
    x = torch.randn(64, 1, generator=torch.Generator().manual_seed(0)).expand(64, 1024).contiguous()
    mean = torch.from_numpy(np.add.accumulate(x.numpy(), axis=1, dtype=np.float32)[:, -1:]) / x.shape[-1]
    bias, scale = torch.ones(1024), 1e-5**-0.5
    wanted = ((x.double() - x.double().mean(-1, keepdim=True)) * scale + bias).double()
    unit = operators.units(Precision("float32"), torch.float32)
    chained = unit.accumulate * scale * x.abs().double() * x.shape[-1] / 8
    case = Case("norm", "s", {"rows": 64}, {}, "float32")
    call = operators.Call({"x": x, "y": torch.empty_like(x)}, ("y",), ("row", "column"))

    def failures(*floors: torch.Tensor) -> list[str]:
        bound = operators.forward_bound(wanted, wanted, chained, unit)
        found = operators.accumulation_floors(wanted, chained, unit, *floors)
        reference = operators.Reference(wanted, bound, unit.coarse, *found)
        tolerance = Tolerance(1.0, 1.5, 1 / 16, 1 / 64)
        returned = Returned(((x - mean) * scale + bias).float())
        return [failure.criterion for failure in judge.judge(case, call, reference, returned, tolerance).failures]

    assert "rms" in failures()
    assert failures(chained) == []


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float8_e4m3fn"])
def test_a_value_is_rounded_as_its_type_holds_it(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = 10.0 ** torch.randint(-9, 2, (10000,), generator=generator).double()
    values = torch.randn(10000, generator=generator, dtype=torch.float64) * sizes
    values[:2] = torch.tensor([0.0, 300.0])
    wanted = values.to(operators.dtype(name)).double()
    unit = operators.units(Precision("float64", p=name), torch.float64)
    assert torch.equal(unit.rounded(values), wanted)
    assert not torch.equal(values, wanted)
    assert torch.equal(unit.stored(values), values)
    stored = operators.units(Precision(name), torch.float64).stored(values)
    near_zero = wanted.abs() < operators.SMALLEST_NORMAL.get(name, 0)
    assert torch.equal(stored.where(~near_zero, wanted), wanted)


TOLERANCE = Tolerance(1.0, 1.5, 1 / 16, 1 / 64)


def failures_of(output: torch.Tensor, wanted: torch.Tensor, condition: torch.Tensor, p: str, **more: Any) -> set[str]:
    """By what an output of a declared `p` is wrong, whose sums are short. more: for `accumulation_floors`."""
    unit = operators.units(Precision(operators.dtype_name(output.dtype), p=p), output.dtype)
    accumulation = unit.accumulate * condition * (1 + 256 / 8)
    bound = operators.forward_bound(wanted, condition, accumulation, unit)
    if "rounded" in more:
        more["rounded"] = [make(unit) for make in more["rounded"]]
    floors = operators.accumulation_floors(wanted, accumulation, unit, **more)
    reference = operators.Reference(wanted, bound, unit.coarse, *floors)
    call = operators.Call({"y": torch.empty_like(output)}, ("y",), ("row", "column"))
    case = Case("op", "s", {"rows": len(output)}, {}, operators.dtype_name(output.dtype))
    return {found.criterion for found in judge.judge(case, call, reference, Returned(output), TOLERANCE).failures}


@pytest.mark.parametrize("stated", [False, True], ids=["unstated", "stated"])
@pytest.mark.parametrize("shape", [(512, 256, 64), (1, 131, 2), (2, 7, 3), (17, 131, 19)])
def test_operands_rounded_as_declared_are_no_lower_precision(shape: tuple[int, int, int], stated: bool) -> None:
    """Products of operands in bfloat16, summed in float32: in one element or two, terms cancel by chance."""
    rows, inner, columns = shape
    generator = torch.Generator().manual_seed(0)
    for _ in range(3 if rows > 100 else 100):
        x, w = (torch.randn(*s, generator=generator).double() for s in ((rows, inner), (inner, columns)))
        wanted, condition = x @ w, 2 * (x.abs() @ w.abs())
        ways = [lambda u, x=x, w=w: u.rounded(x) @ u.rounded(w), lambda u, x=x, w=w: x @ u.rounded(w)]
        more = {"rounded": ways} if stated else {}
        for output in (x.bfloat16().double() @ w.bfloat16().double(), x @ w.bfloat16().double()):
            assert failures_of(output.float(), wanted, condition, "bfloat16", **more) == set()
    coarser = (x.to(torch.float8_e4m3fn).double() @ w.to(torch.float8_e4m3fn).double()).float()
    if stated or rows > 2:
        assert failures_of(coarser, wanted, condition, "bfloat16", **more)


def test_few_values_rounded_as_declared_lean_to_one_side() -> None:
    """Weights of four bits and one scale, dequantised in half precision: each of a few values has one error."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(-8, 8, (128, 64), generator=generator).double()
    x = torch.randn(512, 128, generator=generator).double()
    leaning = []
    for scale in torch.linspace(0.01, 0.02, 20).tolist():
        w = codes * scale
        wanted, condition = x @ w, x.abs() @ w.abs()
        output = (x @ w.half().double()).float()
        more = {"rounded": [lambda unit, x=x, w=w: x @ unit.rounded(w)]}
        assert failures_of(output, wanted, condition, "float16", **more) == set()
        leaning += failures_of(output, wanted, condition, "float16")
        off = (x @ w * (1 + 1 / 1024)).float()  # of a scale that is one step of float16 too large
        assert failures_of(off, wanted, condition, "float16", **more) >= {"bias"}
    assert set(leaning) == {"bias"}


def test_one_value_rounded_twice_as_declared_is_right() -> None:
    """x·s + b in bfloat16 with the product rounded, as PyTorch's eager mode does it, where all x are one number."""
    generator = torch.Generator().manual_seed(0)
    accused = 0
    for _ in range(100):
        x = torch.full((64, 32), float(torch.rand(1, generator=generator)) + 0.1).bfloat16()
        b = torch.full((32,), 0.25).bfloat16()
        product = x.double() * 0.7
        more = {"rounded": [lambda unit, product=product: unit.rounded(product) + 0.25]}
        assert failures_of(x * 0.7 + b, product + 0.25, product.abs(), "bfloat16", **more) == set()
        accused += bool(failures_of(x * 0.7 + b, product + 0.25, product.abs(), "bfloat16", rounded=[]))
    assert accused
