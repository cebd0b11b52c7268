"""Mutation operators: each plants one fault of a known class into CUDA or C++ source.

The source is parsed with tree-sitter's CUDA grammar, which reads plain C++ too and keeps going where it does not
understand a construct. So a template's angle bracket is no comparison, and nothing is changed in comments, strings,
preprocessor lines (but OpenMP's own barriers and reductions) and in what the parser could not read.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelproof.errors import ToolError

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

# What each operator plants.
OPERATORS = {
    "drop_barrier": "a barrier, fence, wait or commit is left out",
    "drop_reduction": "threads add to one variable without OpenMP's reduction",
    "bound_off_by_one": "a loop runs once too often or too seldom, or + 1 is forgotten",
    "weaken_mask": "a condition is shifted by one, negated, always true, always false, or loses a part",
    "index_off_by_one": "an element's neighbour is read or written",
    "swap_indices": "two indices change places",
    "swap_arguments": "two neighbouring arguments change places",
    "wrong_stride": "a stride is left out or is another dimension's",
    "drop_rescale": "what was summed so far is not rescaled",
    "accumulate_to_assign": "a sum keeps its last term only",
    "drop_store": "a result is not stored",
    "drop_call": "a step is left out",
    "drop_initialisation": "memory is used as it was found",
    "tile_constant": "a tile, stage or thread count is halved or doubled",
    "stage_count": "one stage more may still be under way",
    "replace_arithmetic": "another arithmetic operator",
    "perturb_constant": "a constant, scale or eps is wrong by a thousandth, a whole number by one",
    "swap_min_max": "minimum and maximum change places",
}

UNTOUCHED = {
    "comment", "string_literal", "raw_string_literal", "char_literal", "preproc_include", "preproc_def",
    "preproc_function_def", "static_assert_declaration", "template_parameter_list", "attribute_declaration",
    "gnu_asm_expression", "ERROR", "array_declarator", "using_declaration", "enumerator", "alignas_qualifier",
}  # fmt: skip
BARRIER = re.compile(r"sync|barrier|fence|wait|arrive|commit|\bbar\.", re.I)
FILL = re.compile(r"fill|memset|zero|clear|reset|init", re.I)
STORE = re.compile(r"store|copy|write|\bput", re.I)
RESCALE = re.compile(r"shrink|rescale|correction|inverse|factor|scale\b", re.I)
STRIDE = re.compile(r"stride|pitch", re.I)
NUDGED = re.compile(r"log2_?e$|eps(ilon)?$|scale$|factor$|step$|worth$", re.I)
ZERO = re.compile(r"(\{\s*\}|0|0?\.0*[fF]?|0\.0*[fF]?)$")
INTEGER = re.compile(r"[1-9]\d*$")

SHIFTED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
ARITHMETIC = {"+": "-", "-": "+", "*": "+", "/": "*", "%": "/", "<<": ">>", ">>": "<<"}
OTHER_STRIDE = {"row": "head", "head": "row", "batch": "head"}
OPPOSITE = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "fmin": "fmax", "fmax": "fmin"}
OPPOSITE |= {"fminf": "fmaxf", "fmaxf": "fminf", "min_element": "max_element", "max_element": "min_element"}
COMMUTATIVE = {*OPPOSITE, "__hadd", "__hmul", "fabs"}


@dataclass(frozen=True, order=True)
class Edit:
    """Bytes [start, end) of a source become `text`, which plants what `operator` says."""

    start: int
    end: int
    text: str
    operator: str

    def apply(self, source: bytes) -> bytes:
        """The source with the fault in it."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def edits(source: bytes) -> list[Edit]:
    """Every fault that the operators can plant into a source, in its order; no two give the same text."""
    found: dict[tuple[int, int, str], Edit] = {}
    for node in _mutable(_parser().parse(source).root_node):
        for rule in RULES.get(node.type, ()):
            for edit in rule(node):
                if source[edit.start : edit.end] != edit.text.encode():
                    found.setdefault((edit.start, edit.end, edit.text), edit)
    return sorted(found.values())


def _parser() -> Parser:
    try:
        import tree_sitter
        import tree_sitter_cuda
    except ImportError as error:
        raise ToolError(
            f"the Python package {error.name} is missing; sources are parsed with it",
            subject="kernelproof mutants",
            hint="./repro.sh selftest installs it, or `pip --python PYTHON install tree-sitter tree-sitter-cuda`",
        ) from None
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))


def _mutable(node: Node) -> Iterator[Node]:
    """The nodes in which a fault may be planted, from the outside to the inside."""
    yield node
    condition = node.child_by_field_name("condition") if node.type.startswith("preproc_") else None
    for child in node.named_children:
        if child.type in UNTOUCHED or child.is_missing or child == condition:
            continue
        if child.type == "template_argument_list":
            yield child
            continue
        yield from _mutable(child)


# --- reading the tree -------------------------------------------------------------------------------------------------


def _text(node: Node | None) -> str:
    return node.text.decode() if node is not None and node.text is not None else ""


def _field(node: Node, name: str) -> Node | None:
    return node.child_by_field_name(name)


def _last_name(node: Node | None) -> str:
    """`max` of `std::max<float>`, `row` of `args.q_stride.row`, `wait` of `bar.wait`."""
    text = re.sub(r"<.*", "", _text(node), flags=re.DOTALL)
    return re.split(r"::|\.|->", text)[-1].strip()


def _becomes(node: Node, text: str, operator: str) -> Edit:
    return Edit(node.start_byte, node.end_byte, text, operator)


def _statement(node: Node) -> Node | None:
    """The expression statement that a node is the whole of."""
    parent = node.parent
    return parent if parent is not None and parent.type == "expression_statement" else None


def _ancestor_condition(node: Node) -> str:
    """The kind of statement whose condition a node is a part of; empty for none."""
    child, parent = node, node.parent
    while parent is not None and parent.type.endswith(("expression", "clause")):
        child, parent = parent, parent.parent
    inside = parent is not None and _field(parent, "condition") == child
    return parent.type if inside and parent is not None else ""


# --- rules: a node's faults -------------------------------------------------------------------------------------------


def _comparison(node: Node) -> Iterator[Edit]:
    sign, right = _field(node, "operator"), _field(node, "right")
    other = SHIFTED.get(_text(sign))
    if sign is None or right is None or other is None:
        return
    loop = _ancestor_condition(node) in ("for_statement", "while_statement", "do_statement")
    yield _becomes(sign, other, "bound_off_by_one" if loop else "weaken_mask")
    if loop:
        yield _becomes(right, f"({_text(right)}) - 1", "bound_off_by_one")


def _logic(node: Node) -> Iterator[Edit]:
    if _text(_field(node, "operator")) in ("&&", "||"):
        for side in ("left", "right"):
            yield _becomes(node, _text(_field(node, side)), "weaken_mask")


def _arithmetic(node: Node) -> Iterator[Edit]:
    sign, left, right = (_field(node, name) for name in ("operator", "left", "right"))
    if sign is None or left is None or right is None or _text(sign) not in ARITHMETIC:
        return
    yield _becomes(sign, ARITHMETIC[_text(sign)], "replace_arithmetic")
    if _text(sign) in "+-" and _text(right) == "1":
        yield _becomes(node, _text(left), "bound_off_by_one")
    for operand, rest in ((right, left), (left, right)):
        if _text(sign) == "*" or (_text(sign) == "/" and operand is right):
            for names, operator in ((STRIDE, "wrong_stride"), (RESCALE, "drop_rescale")):
                if names.search(_text(operand)):
                    yield _becomes(node, _text(rest), operator)


def _assignment(node: Node) -> Iterator[Edit]:
    sign, left, right = (_field(node, name) for name in ("operator", "left", "right"))
    statement = _statement(node)
    if sign is None or left is None or right is None:
        return
    in_loop_head = node.parent is not None and node.parent.type == "for_statement"
    if _text(sign) != "=" and not in_loop_head:
        yield _becomes(sign, "=", "accumulate_to_assign")
    if statement is None:
        return
    if _text(sign) in ("*=", "/="):
        yield _becomes(statement, ";", "drop_rescale")
    elif _text(sign) == "=":
        yield _becomes(statement, ";", "drop_initialisation" if ZERO.match(_text(right)) else "drop_store")


def _call_statement(node: Node) -> Iterator[Edit]:
    inner = node.named_children[0] if node.named_children else None
    if inner is None:
        return
    if inner.type == "gnu_asm_expression":
        if BARRIER.search(_text(_field(inner, "assembly_code"))):
            yield _becomes(node, ";", "drop_barrier")
    elif inner.type == "call_expression":
        name = _last_name(_field(inner, "function"))
        kinds = ((BARRIER, "drop_barrier"), (FILL, "drop_initialisation"), (STORE, "drop_store"))
        yield _becomes(node, ";", next((kind for names, kind in kinds if names.search(name)), "drop_call"))


def _call(node: Node) -> Iterator[Edit]:
    function, arguments = _field(node, "function"), _field(node, "arguments")
    if function is None or arguments is None:
        return
    name = _last_name(function)
    if name in OPPOSITE:
        at = _text(function).rindex(name)
        changed = _text(function)[:at] + OPPOSITE[name] + _text(function)[at + len(name) :]
        yield _becomes(function, changed, "swap_min_max")
    given = [child for child in arguments.named_children if child.type != "comment"]
    if name not in COMMUTATIVE:
        for one, two in itertools.pairwise(given):
            yield Edit(one.start_byte, two.end_byte, f"{_text(two)}, {_text(one)}", "swap_arguments")


def _subscript(node: Node) -> Iterator[Edit]:
    base, indices = _field(node, "argument"), _field(node, "indices")
    if base is None or indices is None or len(indices.named_children) != 1:
        return
    index = indices.named_children[0]
    yield _becomes(index, f"{_text(index)} + 1", "index_off_by_one")
    inner = _field(base, "indices") if base.type == "subscript_expression" else None
    if inner is not None:
        yield Edit(inner.start_byte, indices.end_byte, _text(indices) + _text(inner), "swap_indices")


def _declared(node: Node) -> Iterator[Edit]:
    declarator, value, declaration = _field(node, "declarator"), _field(node, "value"), node.parent
    if declarator is None or value is None or declaration is None:
        return
    qualifiers = {_text(child) for child in declaration.children if child.type == "type_qualifier"}
    if "constexpr" in qualifiers and INTEGER.match(_text(value)):
        size = int(_text(value))
        yield _becomes(value, str(size * 2), "tile_constant")
        if size > 1:
            yield _becomes(value, str(size // 2), "tile_constant")
    elif not qualifiers & {"const", "constexpr"} and ZERO.match(_text(value)):
        if declaration.parent is not None and declaration.parent.type == "for_statement":
            if _text(value) == "0":
                yield _becomes(value, "1", "bound_off_by_one")
        else:
            yield _becomes(node, _text(declarator), "drop_initialisation")


def _number(node: Node) -> Iterator[Edit]:
    text, parent = _text(node), node.parent
    if parent is None or (parent.type == "init_declarator" and INTEGER.match(text)):
        return
    if INTEGER.match(text):
        if int(text) > 1:
            yield _becomes(node, str(int(text) + 1), "perturb_constant")
            yield _becomes(node, str(int(text) - 1), "perturb_constant")
    elif match := re.fullmatch(r"(\d*\.\d*(?:[eE][+-]?\d+)?)([fF]?)", text):
        value = float(match[1])
        yield _becomes(node, f"{value * 1.001 if value else 1.0!r}{match[2]}", "perturb_constant")


def _named_constant(node: Node) -> Iterator[Edit]:
    parent = node.parent
    if parent is not None and parent.type in ("binary_expression", "argument_list") and NUDGED.search(_last_name(node)):
        yield _becomes(node, f"({_text(node)} * 1.001)", "perturb_constant")


def _other_stride(node: Node) -> Iterator[Edit]:
    field = _field(node, "field")
    if field is not None and STRIDE.search(_text(_field(node, "argument"))) and _text(field) in OTHER_STRIDE:
        yield _becomes(field, OTHER_STRIDE[_text(field)], "wrong_stride")


def _condition(node: Node) -> Iterator[Edit]:
    condition = _field(node, "condition")
    if condition is not None and condition.type == "condition_clause":
        condition = None if _field(condition, "initializer") else _field(condition, "value")
    constexpr = any(_text(child) == "constexpr" for child in node.children)
    if condition is None or constexpr or condition.type == "declaration":
        return
    for text in (f"!({_text(condition)})", "true", "false"):
        yield _becomes(condition, text, "weaken_mask")


def _boolean(node: Node) -> Iterator[Edit]:
    yield _becomes(node, "false" if _text(node) == "true" else "true", "weaken_mask")


def _continue(node: Node) -> Iterator[Edit]:
    yield _becomes(node, ";", "weaken_mask")


def _awaited(node: Node) -> Iterator[Edit]:
    """`wait<N>()` lets N stages be under way."""
    function = node.parent
    if function is not None and BARRIER.search(_text(_field(function, "name"))) and len(node.named_children) == 1:
        count = node.named_children[0]
        yield _becomes(count, f"{_text(count)} + 1", "stage_count")


def _pragma(node: Node) -> Iterator[Edit]:
    said = _field(node, "argument")
    if said is None or not _text(said).startswith("omp "):
        return
    if re.match(r"omp barrier\b", _text(said)):
        yield Edit(node.start_byte, said.end_byte, "", "drop_barrier")
    elif clause := re.search(r"\s*\breduction\([^()]*\)", _text(said)):
        text = _text(said)[: clause.start()] + _text(said)[clause.end() :]
        yield _becomes(said, text, "drop_reduction")


RULES: dict[str, tuple[Callable[[Node], Iterator[Edit]], ...]] = {
    "binary_expression": (_comparison, _logic, _arithmetic),
    "assignment_expression": (_assignment,),
    "expression_statement": (_call_statement,),
    "call_expression": (_call,),
    "subscript_expression": (_subscript,),
    "init_declarator": (_declared,),
    "number_literal": (_number,),
    "identifier": (_named_constant,),
    "field_expression": (_other_stride, _named_constant),
    "if_statement": (_condition,),
    "conditional_expression": (_condition,),
    "true": (_boolean,),
    "false": (_boolean,),
    "continue_statement": (_continue,),
    "template_argument_list": (_awaited,),
    "preproc_call": (_pragma,),
}
