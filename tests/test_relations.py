"""Relations between calls: they hold for correct kernels, are made by exact transforms, and faults break them."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_flash import Flash

from kernelproof import baselines, judge, operators, simfp8
from kernelproof.config import Precision, Tolerance
from kernelproof.errors import KernelproofError, TestError
from kernelproof.operators import (
    Call,
    Reference,
    Relation,
    attention,
    attention_relations,
    qkt,
    quantised_attention,
    relations_of,
    rmsnorm,
)
from kernelproof.records import Case, Failure

TOLERANCE = Tolerance(bound_factor=1.0, rms_factor=1.5, bias_case=1 / 16, bias_suite=1 / 64)
INPUT, SINGLE, HALF = Precision("input", "input"), Precision("input", "float32"), Precision("float16")
GELU = operators.load("examples/gelu/op.py", Path(__file__).resolve().parents[1])
ALL = [attention.OPERATOR, qkt.OPERATOR, quantised_attention.OPERATOR, rmsnorm.OPERATOR, GELU]
SMALL: dict[str, dict[str, int]] = {
    "attention": {"batch": 2, "heads": 4, "kv_heads": 2, "seq": 37, "head_dim": 32},
    "qkt": {"batch": 2, "heads": 3, "seq": 21, "seq_k": 34, "head_dim": 32},
    "quantised_attention": {"batch": 2, "heads": 4, "kv_heads": 2, "seq": 37, "head_dim": 32},
    "rmsnorm": {"rows": 40, "cols": 77},
    "gelu": {"rows": 7, "cols": 77},
}
SHAPES: list[dict[str, int]] = [
    {"heads": 3, "seq": 33, "seq_k": 50, "head_dim": 16},
    {"batch": 2, "heads": 1, "seq": 50, "seq_k": 20, "head_dim": 16},
    {"heads": 1, "seq": 1, "head_dim": 8},
    {"heads": 2, "kv_heads": 1, "seq": 2, "seq_k": 1, "head_dim": 24},
]
Kernel = Callable[..., torch.Tensor]


def case_of(operator: operators.Operator, dims: dict[str, int] | None = None, **changes: Any) -> Case:
    dtype = "uint8" if operator in (qkt.OPERATOR, quantised_attention.OPERATOR) else "float16"
    options = changes.pop("options", {})
    return Case(operator.name, "t", dims or SMALL[operator.name], options, **{"dtype": dtype, **changes})


def call_and_relations(operator: operators.Operator, case: Case) -> tuple[Call, list[Relation]]:
    call = operator.make_call(case, judge.generator(case))
    return call, relations_of(operator, case, call, torch.Generator().manual_seed(case.seed + 17))


def run(kernel: Kernel, call: Call) -> torch.Tensor:
    return kernel(*(value for name, value in call.arguments.items() if name not in call.outputs))


def precision_of(operator: operators.Operator, dtype: str, declared: Precision) -> Precision:
    return Precision("float32") if operator is qkt.OPERATOR else declared.of(dtype)


def broken(
    operator: operators.Operator, case: Case, kernel: Kernel | None, declared: Precision = INPUT
) -> dict[str, Failure]:
    """The relations that a kernel breaks; without a kernel the rounded reference is judged."""
    precision = precision_of(operator, case.dtype, declared)
    call, relations = call_and_relations(operator, case)
    found = {}
    for relation in relations:
        base, after = relation.base or call, relation.call
        references = [operator.reference(c, precision) for c in (base, after)]
        if kernel is None:
            outputs = [r.output.to(call.output.dtype) for r in references]
        else:
            outputs = [run(kernel, c) for c in (base, after)]
        failure = judge.related(relation, references[0], outputs[0], references[1], outputs[1], TOLERANCE)
        if failure:
            found[relation.name] = failure
    return found


def both(operator: operators.Operator) -> list[dict[str, bool | str]]:
    """The options' first values, and their last ones."""
    return [{name: values[i] for name, values in operator.options.items()} for i in (0, -1)]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The tensors are small: threads cost more than they bring."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# --- what operators state ---------------------------------------------------------------------------------------------

STATED = {
    "attention": {"permuted keys", "shifted keys", "scaled queries", "affine values", "constant values"}
    | {"permuted heads", "permuted queries"},
    "qkt": {"scaled by powers of two", "scaled factor", "negated queries"}
    | {"permuted rows", "permuted heads", "keys of zeros"},
    "rmsnorm": {"scaled rows", "negated rows", "halved weight", "permuted rows", "permuted columns", "changed rows"},
    "gelu": {"odd part", "permuted elements"},
}
STATED["quantised_attention"] = STATED["attention"] | {"scaled by powers of two"}


@pytest.mark.parametrize("operator", ALL, ids=lambda o: o.name)
def test_every_operator_states_its_relations(operator: operators.Operator) -> None:
    _, relations = call_and_relations(operator, case_of(operator))
    assert {relation.name for relation in relations} == STATED[operator.name]
    assert all(relation.claim and relation.claim[-1] != "." for relation in relations)


def test_a_causal_mask_has_relations_of_its_own() -> None:
    dims = {"heads": 2, "seq": 9, "seq_k": 14, "head_dim": 8}
    names = [
        {relation.name for relation in call_and_relations(attention.OPERATOR, case_of(attention.OPERATOR, d, **o))[1]}
        for d, o in ((SMALL["attention"], {"options": {"causal": True}}), (dims, {"options": {"causal": True}}))
    ]
    assert "changed future" in names[0] & names[1]
    assert "permuted queries" not in names[0] | names[1]
    assert "permuted keys" not in names[0]  # every key but the first is hidden from some query
    assert "permuted keys" in names[1]  # six keys are seen by all


def test_an_operator_without_relations_is_none_the_worse() -> None:
    class Old:
        name = "old"

    call = attention.OPERATOR.make_call(case_of(attention.OPERATOR), torch.Generator())
    assert relations_of(Old(), case_of(attention.OPERATOR), call, torch.Generator()) == []  # type: ignore[arg-type]


def stating(*relations: Relation) -> Any:
    class Stating:
        name = "stating"

        def relations(self, case: Case, call: Call, generator: torch.Generator) -> list[Relation]:
            return list(relations)

    return Stating()


def test_relations_that_make_no_sense_are_refused() -> None:
    case = case_of(attention.OPERATOR, options={"layout": "bshd"})
    call, found = call_and_relations(attention.OPERATOR, case)
    with pytest.raises(KernelproofError, match="relations: permuted keys: two relations have this name"):
        relations_of(stating(found[0], found[0]), case, call, torch.Generator())
    packed = replace(found[0], call=operators.changed(call, k=call.tensor("k").contiguous()))
    with pytest.raises(KernelproofError, match=r"k of the transformed call is float16 .* with strides"):
        relations_of(stating(packed), case, call, torch.Generator())
    with pytest.raises(KernelproofError, match="there is no such argument; allowed: q, k, v"):
        operators.changed(call, w=1)


@pytest.mark.parametrize("operator", ALL, ids=lambda o: o.name)
def test_the_base_call_is_left_as_it_is_and_choices_are_the_generators(operator: operators.Operator) -> None:
    case = case_of(operator)
    call, relations = call_and_relations(operator, case)
    fresh = operator.make_call(case, judge.generator(case))
    for name, tensor in call.inputs.items():
        assert torch.equal(tensor, fresh.tensor(name))
    for relation, again in zip(relations, call_and_relations(operator, case)[1], strict=True):
        changes = [
            name
            for name, tensor in relation.call.inputs.items()
            if not torch.equal(tensor.double(), (relation.base or call).tensor(name).double())
        ]
        assert changes, relation.name
        for name, tensor in relation.call.inputs.items():
            assert torch.equal(tensor, again.call.tensor(name))


def test_what_exactly_does() -> None:
    half = torch.zeros(3, 4, dtype=torch.float16)[:, :2]
    made = operators.exactly(torch.full((3, 2), 0.5, dtype=torch.float64), half)
    assert made is not None
    assert (made.dtype, made.stride()) == (torch.float16, (4, 1))
    for value in (0.1, 1e5, 2.0**-25, math.nan):
        assert operators.exactly(torch.full((3, 2), value, dtype=torch.float64), half) is None
    codes = torch.zeros(2, dtype=torch.uint8)
    assert operators.exactly(torch.tensor([0.0, 255.0], dtype=torch.float64), codes) is not None
    for value in (256.0, -1.0, 3.5):
        assert operators.exactly(torch.tensor([0.0, value], dtype=torch.float64), codes) is None


def test_shuffled_never_leaves_everything_in_place() -> None:
    generator = torch.Generator().manual_seed(0)
    for count in (2, 3, 7):
        for _ in range(50):
            order = operators.shuffled(count, generator)
            assert not torch.equal(order, torch.arange(count))
            assert torch.equal(order.sort().values, torch.arange(count))
    assert operators.shuffled(1, generator).tolist() == [0]


# --- correct kernels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("operator", "family"), [(o, f) for o in ALL for f in o.families])
def test_rounded_references_break_no_relation(operator: operators.Operator, family: str) -> None:
    """With it, that the references of two calls agree: else the judge raises TestError."""
    for turn, dtype in enumerate(operator.dtypes):
        for seed, chosen in enumerate(both(operator)):
            case = case_of(operator, family=family, dtype=dtype, options=chosen, seed=2 * turn + seed)
            assert broken(operator, case, None, HALF if operator is quantised_attention.OPERATOR else SINGLE) == {}


@pytest.mark.parametrize("operator", [attention.OPERATOR, quantised_attention.OPERATOR], ids=lambda o: o.name)
@pytest.mark.parametrize("dims", SHAPES, ids=lambda d: f"{d['seq']}x{d.get('seq_k', d['seq'])}")
def test_every_shape_of_attention_has_relations_that_hold(operator: operators.Operator, dims: dict[str, int]) -> None:
    for causal, dtype, family in itertools.product((False, True), operator.dtypes, ("normal", "near_overflow")):
        case = case_of(operator, dims, dtype=dtype, family=family, options={"causal": causal})
        assert broken(operator, case, None, HALF if operator is quantised_attention.OPERATOR else SINGLE) == {}


@pytest.mark.parametrize("operator", ALL, ids=lambda o: o.name)
def test_exact_relations_hold_between_references(operator: operators.Operator) -> None:
    count = 0
    dims = SMALL[operator.name] | ({"seq": 260} if "seq" in SMALL[operator.name] else {})  # of attention: three tiles
    for options, seed in itertools.product(both(operator), range(12)):
        case = case_of(operator, dims, options=options, seed=seed)
        call, relations = call_and_relations(operator, case)
        for relation in relations:
            if not relation.exact:
                continue
            precision = precision_of(operator, case.dtype, HALF)
            base, after = (operator.reference(c, precision).output for c in (relation.base or call, relation.call))
            where = torch.ones_like(after, dtype=torch.bool) if relation.where is None else relation.where
            assert bool(where.any())
            assert torch.allclose(relation.expected(base)[where], after[where], rtol=1e-13, atol=0)
            count += 1
    assert (count == 0) == (operator is GELU)


@pytest.mark.parametrize(("operator", "family"), [(o, f) for o in ALL for f in o.families])
def test_a_reference_that_only_moves_need_not_be_computed(operator: operators.Operator, family: str) -> None:
    for dtype, options in itertools.product(operator.dtypes, both(operator)):
        case = case_of(operator, family=family, dtype=dtype, options=options)
        precision = precision_of(operator, dtype, HALF if operator is quantised_attention.OPERATOR else INPUT)
        call, relations = call_and_relations(operator, case)
        reference = functools.partial(operator.reference, precision=precision)
        base = reference(call)
        for relation in relations:
            own = base if relation.base is None else reference(relation.base)
            made, computed = operators.reference_after(relation, own, reference), reference(relation.call)
            if relation.moves:
                atol = 1e-9 * float(base.bound.max())  # sums in another order: a row moves to another place of a tile
                assert torch.allclose(made.output, computed.output, rtol=1e-11, atol=atol), relation.name
                assert torch.allclose(made.bound, computed.bound, rtol=1e-4), relation.name
                assert made.rms_floor == pytest.approx(computed.rms_floor, rel=1e-4)
            elif relation.exact:
                assert bool(made.bound.isinf().all())
            else:
                assert torch.equal(made.bound, computed.bound)
    assert any(relation.moves for relation in relations)


CORRECT: list[tuple[str, operators.Operator, Kernel, Precision, tuple[str, ...]]] = [
    ("flash, tiles of 16", attention.OPERATOR, Flash(tile=16), INPUT, ("float16", "bfloat16", "float32")),
    ("flash, P in float32", attention.OPERATOR, Flash(p=torch.float32), SINGLE, ("float16", "bfloat16", "float32")),
    ("sdpa math", attention.OPERATOR, baselines.sdpa_math, SINGLE, ("float16", "bfloat16", "float32")),
    ("sdpa", attention.OPERATOR, baselines.sdpa_default, INPUT, ("float16", "bfloat16", "float32")),
    ("decoded sdpa", quantised_attention.OPERATOR, baselines.quantised_torch, HALF, ("uint8", "float8_e4m3fn")),
    ("qkt_torch", qkt.OPERATOR, baselines.qkt_torch, Precision("float32"), qkt.OPERATOR.dtypes),
    ("rmsnorm_torch", rmsnorm.OPERATOR, baselines.rmsnorm_torch, INPUT, rmsnorm.OPERATOR.dtypes),
    ("gelu", GELU, torch.nn.functional.gelu, INPUT, GELU.dtypes),
]


@pytest.mark.parametrize(
    ("operator", "kernel", "declared", "dtypes", "family"),
    [(*row[1:], family) for row in CORRECT for family in row[1].families],
    ids=[f"{row[0]}-{family}" for row in CORRECT for family in row[1].families],
)
def test_correct_kernels_break_no_relation(
    operator: operators.Operator, kernel: Kernel, declared: Precision, dtypes: tuple[str, ...], family: str
) -> None:
    for turn, dtype in enumerate(dtypes):
        for seed, chosen in enumerate(both(operator)):
            case = case_of(operator, family=family, dtype=dtype, options=chosen, seed=100 + 2 * turn + seed)
            assert broken(operator, case, kernel, declared) == {}


# --- wrong kernels ----------------------------------------------------------------------------------------------------


def heads_of_zero(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """Every head reads the keys and values of head 0."""
    return Flash()(q, k[:, :1].expand_as(k), v[:, :1].expand_as(v), scale, causal)


def last_batch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """Every batch reads the values of the last one."""
    return Flash()(q, k, v[-1:].expand_as(v), scale, causal)


def features_missing(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """The last eight features of V are not read."""
    return Flash()(q, k, torch.cat([v[..., :-8], torch.zeros_like(v[..., -8:])], -1), scale, causal)


def keys_of_v_missing(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """The weights of the last four keys are counted, their values are not."""
    return Flash()(q, k, torch.cat([v[:, :, :-4], torch.zeros_like(v[:, :, -4:])], 2), scale, causal)


def no_maximum(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """Exponentials of the scores as they are, kept in half precision."""
    group = q.shape[1] // k.shape[1]
    p = torch.exp((q.float() @ k.float().repeat_interleave(group, 1).mT) * scale).half().float()
    return (p @ v.float().repeat_interleave(group, 1) / p.sum(-1, keepdim=True)).half()


def row_shifted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """Row 5 is computed for row 4's query."""
    q = q.clone()
    q[:, :, 5] = q[:, :, 4]
    return Flash()(q, k, v, scale, causal)


def scale_of_its_own(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """1/√d, whatever scale is asked for."""
    return Flash()(q, k, v, q.shape[-1] ** -0.5, causal)


def nan_row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    out = Flash()(q, k, v, scale, causal)
    out[0, 1, 3] = math.nan
    return out


def faulty_rmsnorm(fault: str) -> Kernel:
    def kernel(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        square = x.float().square()
        mean = square.mean(-1, keepdim=True)
        if fault == "constant eps":
            eps = 1e-5
        elif fault == "partial sum":
            mean = square[:, :64].sum(-1, keepdim=True) / x.shape[1]
        elif fault == "neighbour":
            mean = mean + mean.roll(1, 0) * 2**-9
        elif fault == "clamped":
            x = x.clamp_min(0)
        elif fault == "one plus weight":
            weight = 1 + weight
        elif fault == "row":
            mean[5] = mean[4]
        return (x.float() * (mean + eps).rsqrt() * weight.float()).half()

    return kernel


def faulty_qkt(fault: str) -> Kernel:
    def kernel(q: torch.Tensor, k: torch.Tensor, q_scale: torch.Tensor, k_scale: torch.Tensor, by: float) -> Any:
        if fault == "scale of head 0":
            q_scale = q_scale[:, :1].expand_as(q_scale)
        if fault == "factor":
            by = 1.0
        zero = 127.0 if fault == "zero point" else 128.0
        scores = by * (simfp8.decode(q, q_scale, zero) @ simfp8.decode(k, k_scale, zero).mT)
        if fault == "tile":
            scores[:, :, 16:] = 0
        if fault == "head":
            scores = by * (simfp8.decode(q, q_scale) @ simfp8.decode(k[:, :1].expand_as(k), k_scale).mT)
        return scores.float()

    return kernel


def half_computed(x: torch.Tensor) -> torch.Tensor:
    """The last 5 elements are not computed."""
    y = torch.nn.functional.gelu(x).flatten()
    y[-5:] = 0
    return y.reshape(x.shape)


def cut_left(x: torch.Tensor) -> torch.Tensor:
    """Nothing is left below −2."""
    return torch.nn.functional.gelu(x).where(x > -2, 0)


CAUSAL = {"options": {"causal": True}}
A, R, S = attention.OPERATOR, rmsnorm.OPERATOR, qkt.OPERATOR
FAULTS: list[tuple[str, operators.Operator, Kernel, dict[str, Any], str, str]] = [
    ("one key of the future", A, Flash(shift_mask=1), CAUSAL, "changed future", "the mask lets later keys in"),
    ("all of the future", A, Flash(ignore_mask=True), CAUSAL, "changed future", "the mask lets later keys in"),
    ("keys of head 0", A, heads_of_zero, {}, "permuted heads", "a wrong head or batch"),
    ("head h mod kv_heads", A, Flash(wrong_kv_head=True), {}, "permuted heads", "a wrong head or batch"),
    ("values of the last batch", A, last_batch, {}, "permuted heads", "a wrong head or batch"),
    ("a key skipped", A, Flash(skip_key=5), {}, "permuted keys", "by their position"),
    ("a tile skipped", A, Flash(tile=16, skip_tile=1), {}, "permuted keys", "by their position"),
    ("stale maximum", A, Flash(tile=16, stale_maximum=True), {"family": "peaky"}, "permuted keys", "not rescaled"),
    ("stale maximum, V = 1", A, Flash(tile=16, stale_maximum=True), {}, "permuted keys", ""),
    ("unmasked padding", A, Flash(tile=16, unmasked_padding=True), {}, "constant values", "do not add up to 1"),
    ("features of V", A, features_missing, {}, "affine values", "part of V is not read"),
    ("features of V, V = 1", A, features_missing, {}, "constant values", ""),
    ("keys of V", A, keys_of_v_missing, {}, "constant values", "do not add up to 1"),
    ("keys of V, moved", A, keys_of_v_missing, {}, "permuted keys", "by their position"),
    ("zero point", A, Flash(zero_point=-0.5 / 127), {}, "constant values", ""),
    ("no maximum", A, no_maximum, {"family": "offset"}, "shifted keys", ""),
    ("wrong query", A, row_shifted, {}, "permuted queries", "a row index is wrong"),
    ("scale of its own", A, scale_of_its_own, {}, "scaled queries", "1/√d is taken"),
    ("NaN", A, nan_row, {}, "constant values", "NaN or infinity: 0/0, an overflow"),
    ("constant eps", R, faulty_rmsnorm("constant eps"), {}, "scaled rows", "eps is not the one"),
    ("partial sum", R, faulty_rmsnorm("partial sum"), {}, "permuted columns", "the sum does not take all"),
    ("other row's sum", R, faulty_rmsnorm("neighbour"), {}, "changed rows", "a sum takes in another row"),
    ("negative clamped", R, faulty_rmsnorm("clamped"), {}, "negated rows", "clamped that should not"),
    ("one plus weight", R, faulty_rmsnorm("one plus weight"), {}, "halved weight", "not applied as a factor"),
    ("row index", R, faulty_rmsnorm("row"), {}, "permuted rows", "a row index is wrong"),
    ("scale of head 0", S, faulty_qkt("scale of head 0"), {}, "scaled by powers of two", "that of another head"),
    ("factor of its own", S, faulty_qkt("factor"), {}, "scaled factor", "1/√d is taken"),
    ("zero point of scores", S, faulty_qkt("zero point"), {}, "keys of zeros", "zero is not decoded to zero"),
    ("zero point, mirrored", S, faulty_qkt("zero point"), {}, "negated queries", "zero point is another"),
    ("rows not computed", S, faulty_qkt("tile"), {}, "permuted rows", "a tile is not computed"),
    ("head of K", S, faulty_qkt("head"), {}, "permuted heads", "a wrong head"),
    ("gelu's tail", GELU, half_computed, {}, "permuted elements", "a tail is left out"),
    ("gelu's left side", GELU, cut_left, {}, "odd part", "the two sides of zero"),
]


@pytest.mark.parametrize(
    ("operator", "kernel", "changes", "relation", "cause"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS]
)
def test_a_fault_breaks_its_relation(
    operator: operators.Operator, kernel: Kernel, changes: dict[str, Any], relation: str, cause: str
) -> None:
    for seed in (0, 1, 2):
        found = broken(operator, case_of(operator, seed=seed, **changes), kernel)
        assert relation in found
        assert found[relation].criterion == judge.RELATION
        assert found[relation].message.startswith(f"{relation}: ")
        assert cause in found[relation].message


@pytest.mark.parametrize("dtype", quantised_attention.OPERATOR.dtypes)
@pytest.mark.parametrize(
    ("fault", "relation"),
    [
        ("scale of V", "scaled by powers of two"),
        ("scale", "scaled queries"),
        ("head 0", "permuted heads"),
        ("mask", "changed future"),
        ("skipped", "permuted keys"),
    ],
)
def test_faults_of_quantised_attention_break_relations(fault: str, relation: str, dtype: str) -> None:
    def kernel(q: Any, k: Any, v: Any, q_scale: Any, k_scale: Any, v_scale: Any, scale: float, causal: bool) -> Any:
        if fault == "scale of V":
            v_scale = torch.full_like(v_scale, 0.01)
        if fault == "head 0":
            k_scale = k_scale[:, :1].expand_as(k_scale)
        if fault == "scale":
            scale = q.shape[-1] ** -0.5
        q, k, v = (simfp8.values(*pair).float() for pair in ((q, q_scale), (k, k_scale), (v, v_scale)))
        flash = Flash(ignore_mask=fault == "mask", skip_key=5 if fault == "skipped" else None)
        return flash(q, k, v, scale, causal).half()

    options = {"scales": "head", "causal": fault == "mask"}
    family = "per_head_scale" if fault == "head 0" else "normal"
    case = case_of(quantised_attention.OPERATOR, dtype=dtype, options=options, family=family)
    if fault == "head 0":  # the codec takes the magnitudes of heads out of Q and K: give them back by their scales
        case = replace(case, family="all_codes")
        call, relations = call_and_relations(quantised_attention.OPERATOR, case)
        scales = call.tensor("k_scale") * torch.tensor([1.0, 4.0])
        call = operators.changed(call, k_scale=scales)
        relations = relations_of(quantised_attention.OPERATOR, case, call, torch.Generator().manual_seed(1))
        permuted = next(r for r in relations if r.name == relation)
        reference = [quantised_attention.OPERATOR.reference(c, HALF) for c in (call, permuted.call)]
        output = [run(kernel, c) for c in (call, permuted.call)]
        assert judge.related(permuted, reference[0], output[0], reference[1], output[1], TOLERANCE) is not None
        return
    assert relation in broken(quantised_attention.OPERATOR, case, kernel, HALF)


def future_of_a_tile(**changes: Any) -> tuple[Case, Call, Relation]:
    """A causal case whose future begins with a tile of queries, so that no bit before it may change."""
    for seed in range(100):
        case = case_of(A, SMALL["attention"] | {"seq": 200}, options={"causal": True}, seed=seed, **changes)
        call, relations = call_and_relations(A, case)
        relation = next(r for r in relations if r.name == "changed future")
        if relation.exact:
            return case, call, relation
    raise AssertionError("no such case of 100")


def maximum_of_16_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """Rows share a maximum, as those of a warp can: what one of them alone sees shows in the others' rounding."""
    group = q.shape[1] // k.shape[1]
    k, v = (tensor.float().repeat_interleave(group, 1) for tensor in (k, v))
    scores = q.float() @ k.mT * scale
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])
    scores = scores.masked_fill(hidden, -math.inf) if causal else scores
    rows = torch.cat([t.amax((-2, -1), keepdim=True).expand_as(t[..., :1]) for t in scores.split(16, 2)], 2)
    weights = (scores - rows).exp()
    return (weights.to(q.dtype).float() @ v / weights.sum(-1, keepdim=True)).to(q.dtype)


def test_rows_of_a_tile_may_round_together() -> None:
    changed_bits = exact = 0
    for seed in range(12):
        case = case_of(A, SMALL["attention"] | {"seq": 200}, options={"causal": True}, seed=seed)
        call, relations = call_and_relations(A, case)
        relation = next(r for r in relations if r.name == "changed future")
        base, after = (run(maximum_of_16_rows, c)[relation.where] for c in (call, relation.call))
        assert "changed future" not in broken(A, case, maximum_of_16_rows)
        exact += relation.exact
        changed_bits += not torch.equal(base, after)
    assert 0 < exact < 12
    assert changed_bits >= 3


def test_a_leak_is_located_and_said_to_hold_bit_for_bit() -> None:
    case, call, relation = future_of_a_tile()
    assert relation.where is not None
    row = int(relation.where[0, 0, :, 0].sum())
    message = broken(A, case, Flash(shift_mask=1))["changed future"].message
    assert f"queries before row {row} do not see the keys from {row} on" in message
    assert f"query row {row - 1}, in all batches, heads and features; the worst at [" in message
    assert re.search(
        r", which holds bit for bit: they are \S+ apart. Likely cause: the mask lets later keys in", message
    )
    assert bool((relation.call.tensor("k")[:, :, :row] == call.tensor("k")[:, :, :row]).all())


def test_two_numbers_that_differ_are_shown_apart() -> None:
    """By one unit in the last place of float32, in a relation that holds bit for bit."""
    _, call, relation = future_of_a_tile(dtype="float32")
    references = [A.reference(c, INPUT.of("float32")) for c in (call, relation.call)]
    base = run(Flash(), call)
    moved = torch.nextafter(base, torch.full_like(base, math.inf))
    failure = judge.related(relation, references[0], base, references[1], moved, TOLERANCE)
    assert failure
    shown = re.search(r"\]: (\S+) where (\S+) follows", failure.message)
    assert shown
    assert shown[1] != shown[2]


def test_a_result_that_is_handed_over_again_is_named() -> None:
    kept: list[torch.Tensor] = []

    def memoised(*arguments: Any) -> torch.Tensor:
        kept.append(Flash()(*arguments))
        return kept[0]

    case = case_of(A)
    call, relations = call_and_relations(A, case)
    relation = next(r for r in relations if r.name == "permuted heads")
    references = [A.reference(c, INPUT.of("float16")) for c in (call, relation.call)]
    outputs = [run(memoised, c) for c in (call, relation.call)]
    failure = judge.related(relation, references[0], outputs[0], references[1], outputs[1], TOLERANCE)
    assert failure is not None
    assert "a result is kept and handed over again" in failure.message


# --- the judgement ----------------------------------------------------------------------------------------------------


def two_by_two(
    apart: float, bound: float = 1.0, **changes: Any
) -> tuple[Relation, Reference, torch.Tensor, Reference, torch.Tensor]:
    """y = x + 3 with x all ones, bounds as given, and one element of the second output off."""
    call = Call({"x": torch.ones(2, 2), "y": torch.empty(2, 2)}, ("y",), ("row", "column"))
    relation = Relation("shifted", "x + 3 gives y + 3", call, **{"expected": lambda y: y + 3, **changes})
    base = torch.ones(2, 2, dtype=torch.float64)
    bounds = torch.full_like(base, bound)
    after = (base + 3).float()
    after[1, 0] += apart
    return relation, Reference(base, bounds, 0.0), base.float(), Reference(base + 3, bounds / 4, 0.0), after


@pytest.mark.parametrize(
    ("apart", "tolerance", "changes", "breaks"),
    [
        (1.25, 1.0, {}, False),
        (1.26, 1.0, {}, True),
        (-1.26, 1.0, {}, True),
        (1.26, 1.1, {}, False),
        (2.25, 1.0, {"gain": 2.0}, False),
        (2.26, 1.0, {"gain": 2.0}, True),
        (9.0, 1.0, {"where": torch.tensor([[True, True], [False, True]])}, False),
        (9.0, 1.0, {"where": torch.tensor([[False, False], [True, False]])}, True),
        (math.nan, 1.0, {}, True),
        (math.inf, 1.0, {}, True),
        (math.nan, 1.0, {"where": torch.tensor([[True, True], [False, True]])}, False),
        (0.0, 1.0, {"bound": 0.0}, False),
        (2.0**-21, 1.0, {"bound": 0.0}, True),
        (0.0, 1.0, {"exact": True}, False),
        (2.0**-21, 1.0, {"exact": True}, True),
        (math.nan, 1.0, {"exact": True}, True),
        (math.inf, 1.0, {"exact": True}, True),
        (9.0, 1.0, {"bound": math.inf}, False),
        (math.nan, 1.0, {"bound": math.inf}, False),
    ],
)
def test_what_is_allowed_between_two_outputs(
    apart: float, tolerance: float, changes: dict[str, Any], breaks: bool
) -> None:
    failure = judge.related(*two_by_two(apart, **changes), replace(TOLERANCE, bound_factor=tolerance))
    assert (failure is not None) == breaks
    if failure:
        assert "1 of 4 elements (25 %) break that: row 1, column 0; the worst at [1, 0]" in failure.message


def test_the_bound_is_carried_over_by_the_transform() -> None:
    call = Call({"x": torch.ones(3), "y": torch.empty(3)}, ("y",), ("element",))
    output = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    base = Reference(output, torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64), 0.0)
    other = Reference(-2 * output.flip(0), torch.zeros(3, dtype=torch.float64), 0.0)
    relation = Relation("turned", "turned and doubled", call, lambda y: -2 * y.flip(0))
    for place, most in enumerate((0.25, 0.5, 1.0)):  # twice the bounds, in the other order
        for sign in (-1, 1):
            after = other.output.clone()
            after[place] += sign * most
            assert judge.related(relation, base, output, other, after, TOLERANCE) is None
            after[place] += sign * 2.0**-20
            assert judge.related(relation, base, output, other, after, TOLERANCE) is not None


def test_an_infinity_in_both_outputs_is_no_agreement() -> None:
    relation, base, output, other, after = two_by_two(math.inf, exact=True)
    output[1, 0] = math.inf
    failure = judge.related(relation, base, output, other, after, TOLERANCE)
    assert failure is not None
    assert "NaN or infinity" in failure.message


def test_the_sign_of_a_zero_is_no_difference() -> None:
    zero = torch.zeros(2, 2, dtype=torch.float64)
    reference = Reference(zero, zero, 0.0)
    call = Call({"y": torch.empty(2, 2)}, ("y",), ("row", "column"))
    relation = Relation("same", "the same", call, lambda y: y, exact=True)
    assert judge.related(relation, reference, -zero.half(), reference, zero.half(), TOLERANCE) is None


def test_exact_calls_of_the_skeleton_are_what_its_reference_gives() -> None:
    for dtype in GELU.dtypes:
        made = GELU.sanity_calls(Case("gelu", "t", {"rows": 4, "cols": 9}, {}, dtype), torch.Generator())
        assert made
        for exact in made:
            judge.insist_on_exact(exact.name, exact.reference, GELU.reference(exact.call, Precision(dtype)))


def test_a_bound_of_zero_where_results_are_rounded_is_the_references_fault_and_not_the_relations() -> None:
    relation, base, output, other, after = two_by_two(0.0)
    base, other = (replace(each, bound=torch.zeros_like(each.bound)) for each in (base, other))
    for apart, subject in ((8.88e-16, "reference"), (1e-6, "relations")):
        rounded = replace(other, output=other.output + apart)
        with pytest.raises(TestError) as caught:
            judge.related(relation, base, output, rounded, after, TOLERANCE)
        assert caught.value.subject == subject
        assert ("its bound is 0 where its results are not exact" in caught.value.message) == (apart < 1e-6)
    assert judge.related(relation, base, base.output, other, other.output, TOLERANCE) is None


def test_a_relation_that_the_references_break_is_the_operators_fault() -> None:
    relation, base, output, other, after = two_by_two(0.0)
    false = replace(relation, expected=lambda y: y + 3.01)
    with pytest.raises(TestError, match=r"shifted: the references break the relation themselves, by up to 0\.01"):
        judge.related(false, base, output, other, after, TOLERANCE)
    with pytest.raises(TestError, match=r"expected makes \(4,\) of the base output"):
        judge.related(replace(relation, expected=torch.flatten), base, output, other, after, TOLERANCE)


# --- transforms of attention ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("family", attention.OPERATOR.families)
def test_sums_are_exact_on_a_base_of_their_own(family: str, dtype: str) -> None:
    call, relations = call_and_relations(A, case_of(A, family=family, dtype=dtype))
    by_name = {relation.name: relation for relation in relations}
    shifted = by_name["shifted keys"]
    before, after = ((c or call).tensor("k").double() for c in (shifted.base, shifted.call))
    difference = after - before
    assert bool((difference == difference[:, :, :1]).all())
    assert bool(difference.any())
    affine = by_name["affine values"]
    before, after = ((c or call).tensor("v").double() for c in (affine.base, affine.call))
    added = after + before / 2
    assert bool((added == added[:, :, :1]).all())
    if family != "one_hot":  # the base is the call, to a step in 64 or less
        original = call.tensor("v").double()
        largest = original.abs().amax(2, keepdim=True)
        factor = 4 if family == "near_overflow" and dtype == "float16" else 1
        assert bool(((factor * before - original).abs() <= largest * 2.0**-5).all())


def test_whole_numbers_need_no_base_of_their_own() -> None:
    _, relations = call_and_relations(A, case_of(A, family="integers"))
    assert all(relation.base is None for relation in relations)


@pytest.mark.parametrize("seed", range(20))
def test_the_future_is_what_the_last_query_of_the_past_looks_for(seed: int) -> None:
    dims = {"batch": 2, "heads": 4, "kv_heads": 2, "seq": 12, "seq_k": 9 + seed % 6, "head_dim": 16}
    case = case_of(A, dims, options={"causal": True}, seed=seed)
    call = A.make_call(case, judge.generator(case))
    future = attention_relations._changed_future(call, torch.Generator().manual_seed(seed))
    assert future is not None
    assert future.where is not None
    row = int(future.where[0, 0, :, 0].sum())
    key = row + dims["seq_k"] - dims["seq"]
    assert 1 <= row < dims["seq"]
    assert 1 <= key < dims["seq_k"]  # the last query of the past sees a key, and not all
    k, v = future.call.tensor("k"), future.call.tensor("v")
    assert torch.equal(k[:, :, :key], call.tensor("k")[:, :, :key])
    assert torch.equal(v[:, :, :key], call.tensor("v")[:, :, :key])
    assert torch.equal(k[:, 1, key], call.tensor("q")[:, 2, row - 1])
    assert torch.equal(v[:, :, key:], -call.tensor("v")[:, :, key:])


def test_references_that_mean_other_infinities_contradict_one_another() -> None:
    none, some = (torch.tensor([1.0, math.inf * sign, 2.0], dtype=torch.float64) for sign in (-1, 1))
    bound = torch.full_like(none, 1e-3)
    one, other, none_too = (Reference(values, bound, 0.0, nonfinite=True) for values in (none, some, none))
    judge.insist_on_same(one, none_too)
    judge.insist_on_exact("masked", one, none_too)
    finite = Reference(torch.tensor([1.0, 5.0, 2.0], dtype=torch.float64), bound, 0.0)
    for wrong, shown in ((other, "-inf by `sanity_calls` and inf by"), (finite, "-inf by `sanity_calls` and 5 by")):
        with pytest.raises(TestError, match="gave other results for the same call") as caught:
            judge.insist_on_same(one, wrong)
        assert "no output, which is filled with random bits before a call (an operator that" in str(caught.value.hint)
        with pytest.raises(TestError, match=re.escape(shown)):
            judge.insist_on_exact("masked", one, wrong)
    nothing_asked = Reference(finite.output, torch.tensor([1e-3, math.inf, 1e-3], dtype=torch.float64), 0.0)
    judge.insist_on_exact("masked", one, nothing_asked)


@pytest.mark.parametrize("exact", [False, True])
def test_a_relation_takes_the_infinity_that_is_meant_along(exact: bool) -> None:
    output = torch.tensor([1.0, -math.inf, math.nan], dtype=torch.float64)
    call = Call({"y": torch.empty(3)}, ("y",), ("row",))
    relation = Relation("turned", "y turned", call, lambda y: y.flip(0), moves=not exact, exact=exact)
    base = Reference(output, torch.full_like(output, 1e-3), 2.0**-24, nonfinite=True)
    after = operators.reference_after(relation, base, lambda _: pytest.fail("it is the base's, moved"))
    right = output.flip(0).float()

    def broken(values: torch.Tensor) -> str:
        failure = judge.related(relation, base, output.float(), after, values, TOLERANCE)
        return failure.message if failure else ""

    assert broken(right) == ""
    for place, value in ((1, math.inf), (1, 0.0), (0, math.inf), (2, -math.inf)):
        other = right.clone()
        other[place] = value
        assert f"the worst at [{place}]" in broken(other)
