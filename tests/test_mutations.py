"""Mutation operators on small sources: what each plants, and where nothing is planted."""

from __future__ import annotations

import pytest

pytest.importorskip("tree_sitter_cuda", reason="./repro.sh selftest installs it")

from kernelproof import mutations


def planted(body: str) -> dict[str, set[str]]:
    """By operator, the bodies that a function's body becomes."""
    source = f"void f() {{\n{body}\n}}\n".encode()
    found: dict[str, set[str]] = {}
    for edit in mutations.edits(source):
        text = edit.apply(source).decode()
        found.setdefault(edit.operator, set()).add(text.removeprefix("void f() {\n").removesuffix("\n}\n"))
    return found


@pytest.mark.parametrize(
    ("operator", "body", "becomes"),
    [
        ("drop_barrier", "__syncthreads();", {";"}),
        ("drop_barrier", "cp_async_wait<kStages - 2>();", {";"}),
        ("drop_barrier", "full[stage].wait(phase);", {";"}),
        ("drop_barrier", 'asm volatile("bar.sync 0;" ::: "memory");', {";"}),
        ("drop_barrier", "#pragma omp barrier\na();", {"\na();"}),
        ("drop_reduction", "#pragma omp simd reduction(+ : s)\na();", {"#pragma omp simd\na();"}),
        ("bound_off_by_one", "while (i < n) a();", {"while (i <= n) a();", "while (i < (n) - 1) a();"}),
        (
            "bound_off_by_one",
            "for (int i = 0; i < n; ++i) a();",
            {
                "for (int i = 1; i < n; ++i) a();",
                "for (int i = 0; i <= n; ++i) a();",
                "for (int i = 0; i < (n) - 1; ++i) a();",
            },
        ),
        ("bound_off_by_one", "i = n + 1;", {"i = n;"}),
        (
            "weaken_mask",
            "if (row >= n) return;",
            {"if (row > n) return;", "if (!(row >= n)) return;", "if (true) return;", "if (false) return;"},
        ),
        ("index_off_by_one", "a(x[i]);", {"a(x[i + 1]);"}),
        ("swap_indices", "a(x[i][j]);", {"a(x[j][i]);"}),
        ("swap_arguments", "a(x, y, z);", {"a(y, x, z);", "a(x, z, y);"}),
        ("wrong_stride", "p = q + i * stride;", {"p = q + i;"}),
        ("wrong_stride", "p = q_stride.row;", {"p = q_stride.head;"}),
        ("drop_rescale", "total *= shrink;", {";"}),
        ("drop_rescale", "total = total * shrink + sum;", {"total = total + sum;"}),
        ("accumulate_to_assign", "sum += x;", {"sum = x;"}),
        ("drop_store", "o[i] = x;", {";"}),
        ("drop_store", "store(o, x);", {";"}),
        ("drop_call", "transpose(tile);", {";"}),
        ("drop_initialisation", "float sum = 0.0f;", {"float sum;"}),
        ("drop_initialisation", "std::fill(a, b, c);", {";"}),
        ("tile_constant", "constexpr int kKeys = 64;", {"constexpr int kKeys = 128;", "constexpr int kKeys = 32;"}),
        ("stage_count", "cp_async_wait<kStages - 2>();", {"cp_async_wait<kStages - 2 + 1>();"}),
        ("replace_arithmetic", "x = a % b;", {"x = a / b;"}),
        ("perturb_constant", "x = code - 128;", {"x = code - 129;", "x = code - 127;"}),
        ("perturb_constant", "x = 0.5f * y;", {"x = 0.5005f * y;"}),
        ("perturb_constant", "x = y * args.scale;", {"x = y * (args.scale * 1.001);"}),
        ("swap_min_max", "x = std::max<int>(a, b);", {"x = std::min<int>(a, b);"}),
    ],
)
def test_what_is_planted(operator: str, body: str, becomes: set[str]) -> None:
    assert planted(body)[operator] == becomes


def test_every_operator_is_tried_above() -> None:
    marks = next(iter(test_what_is_planted.pytestmark)).args[1]  # type: ignore[attr-defined]
    assert {mark[0] for mark in marks} == set(mutations.OPERATORS)


@pytest.mark.parametrize(
    "source",
    [
        "// if (a < b) x[i] = 1.5f;",
        "/* __syncthreads(); */",
        'const char *text = "a < b && c + 2";',
        "#include <vector>",
        "#define TILE (4 * 16)",
        "#if VERSION > 12\n#endif",
        "#pragma unroll 4\n",
        "#pragma omp parallel for schedule(dynamic, 16)\n",
        "static_assert(kTile % 16 == 0 && kTile > 2);",
        "template <int kDim = 64, bool kCausal = true> struct Tile;",
        "std::array<std::array<float, 4>, 8> tile;",
        "float tile[4 * 16][8];",
        "int f(int a @ b < 3);",
    ],
)
def test_nothing_is_planted(source: str) -> None:
    assert mutations.edits(source.encode()) == []


def test_angle_brackets_of_a_template_are_no_comparison() -> None:
    assert "weaken_mask" not in planted("multiply<false>(q, load<T, 4>(k));\nkernel<<<grid, block, 0, stream>>>(args);")


def test_code_within_a_condition_of_the_preprocessor_is_source() -> None:
    assert planted("#if FAST > 1\nsum += x;\n#endif")["accumulate_to_assign"] == {"#if FAST > 1\nsum = x;\n#endif"}


def test_no_two_edits_are_the_same_and_each_changes_something() -> None:
    source = b"void f() { if (a < b && true) x[i][i] = max(a, a) * scale - 1; }"
    made = [edit.apply(source) for edit in mutations.edits(source)]
    assert len(set(made)) == len(made)
    assert source not in made
