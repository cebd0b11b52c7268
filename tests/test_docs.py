"""What the documentation says is there is there, and the other way round."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernelproof import bundle, cli, environment, gpu, operators, records, run
from kernelproof.errors import KernelproofError

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
MADE = {"results", "reports", ".venv", ".git", ".snakemake", ".pytest_cache", ".hypothesis", "gold"}
PAGES = sorted(p for p in ROOT.rglob("*.md") if not MADE & set(p.relative_to(ROOT).parts))


def text_of(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def sections(text: str) -> dict[str, str]:
    """Each heading of the second level with what stands below it."""
    _, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}


# --- links ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    local = [target.partition("#")[0] for target in targets if not re.match(r"[a-z]+:|#", target)]
    broken = [target for target in local if not (page.parent / target).exists()]
    assert not broken


@pytest.mark.parametrize("path", sorted((ROOT / "src").rglob("*.py")), ids=lambda p: p.name)
def test_pages_that_the_sources_name_are_there(path: Path) -> None:
    named = re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
    assert not [page for page in named if not (ROOT / page).exists()]


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"\]\(([\w/-]+\.md)\)", index))


def test_the_tutorial_shows_what_a_machine_without_a_gpu_prints() -> None:
    tutorial = (ROOT / "docs" / "tutorial" / "first-report.md").read_text(encoding="utf-8")
    assert f"not run   no usable GPU here ({gpu._words(OSError())})" in tutorial


def test_stated_defaults_of_options_are_those_of_the_commands() -> None:
    """`(default 20)` stood there for an option of 40."""
    page, differing = sections(text_of("commands.md")), []
    for name, parser in commands().items():
        body = next(body for heading, body in page.items() if f"kernelproof {name}" in heading)
        for action in (action for action in parser._actions if action.option_strings):
            row = re.search(rf"^\| `{action.option_strings[-1]} [^|]*\|(.*)\|$", body, re.MULTILINE)
            stated = re.search(r"default:? (\d+)", row[1]) if row else None
            if stated and int(stated[1]) != int(action.default):
                differing.append((name, action.dest, stated[1], action.default))
    assert not differing


def test_the_tutorial_marks_what_it_calls_undecided() -> None:
    tutorial = (ROOT / "docs" / "tutorial" / "first-report.md").read_text(encoding="utf-8")
    shown = {"operator": "attention", "variant": "cpu_naive", "speed": "undecided", "ratio": 8.11}
    _, row, line = run.table([shown])
    assert row.split()[-3] in tutorial
    assert line in tutorial


def test_who_adds_a_kernel_is_told_what_an_operator_gives() -> None:
    page = (ROOT / "docs" / "how-to" / "add-a-kernel.md").read_text(encoding="utf-8")
    for needed in (*(field.name for field in dataclasses.fields(operators.Cost)), "`moves=True`", "call.scalar("):
        assert needed in page
    assert f"from {KernelproofError.__module__} import KernelproofError" in page


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


# --- configuration ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SchemaKey:
    """A key of the schema; a group has keys of its own, which are listed instead of it where it has no row."""

    group: bool
    default: Any


def schema_keys() -> dict[str, SchemaKey]:
    """Every key by its dotted name; what a user names is in capitals: operators.OPERATOR.variants.VARIANT.idea."""
    schema = yaml.safe_load((ROOT / "workflow" / "schemas" / "config.schema.yaml").read_text(encoding="utf-8"))
    found: dict[str, SchemaKey] = {}

    def walk(node: dict[str, Any], prefix: str) -> None:
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
        for name, inner in node.get("properties", {}).items():
            key = f"{prefix}{name}"
            resolved = schema["$defs"][inner["$ref"].rpartition("/")[2]] if "$ref" in inner else inner
            found[key] = SchemaKey("properties" in resolved, inner.get("default"))
            walk(inner, f"{key}.")
            named = inner.get("additionalProperties")
            if isinstance(named, dict) and "$ref" in named and name in ("operators", "variants", "baselines"):
                walk(named, f"{key}.{'OPERATOR' if name == 'operators' else 'VARIANT'}.")

    walk(schema, "")
    return found


def documented_keys() -> dict[str, str]:
    """Every key in a table of config.md, by its dotted name, with its default as written."""
    found: dict[str, str] = {}
    for heading, body in sections(text_of("config.md")).items():
        prefixes = [f"{prefix}." for prefix in re.findall(r"`([\w.]+)`", heading)] or [""]
        for key, default in re.findall(r"^\| `([\w.]+)` \|[^|]*\| ([^|]*) \|", body, re.MULTILINE):
            found |= {prefix + key: default for prefix in prefixes}
    return found


def test_every_key_is_documented_and_no_other() -> None:
    in_schema, in_page = schema_keys(), documented_keys()
    assert not set(in_page) - set(in_schema)
    assert not {key for key, known in in_schema.items() if not known.group} - set(in_page)


def test_documented_defaults_are_those_of_the_schema() -> None:
    in_schema = schema_keys()
    stated = {key: yaml.safe_load(text[1:-1]) for key, text in documented_keys().items() if re.fullmatch("`.*`", text)}
    assert stated == {key: in_schema[key].default for key in stated}
    with_default = {key for key, known in in_schema.items() if known.default is not None and not known.group}
    assert with_default <= set(stated)


# --- commands ---------------------------------------------------------------------------------------------------------


def options_in(text: str) -> set[str]:
    """The options in the first column of the tables."""
    rows = re.findall(r"^\| `(--[\w-]+)[^|]*\|", text.replace("\\|", "/"), re.MULTILINE)
    return set(rows)


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {name for action in parser._actions for name in action.option_strings if name.startswith("--")}


def commands() -> dict[str, argparse.ArgumentParser]:
    found = next(a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(found.choices)


def help_options(capsys: pytest.CaptureFixture[str], call: Any) -> set[str]:
    with pytest.raises(SystemExit):
        call()
    return set(re.findall(r"^ +(?:-\w, )?(--[\w-]+)", capsys.readouterr().out, re.MULTILINE))


@pytest.mark.parametrize("name", sorted(set(commands()) - {"run"}))
def test_every_option_of_a_command_is_documented(name: str) -> None:
    page = sections(text_of("commands.md"))
    body = next(body for heading, body in page.items() if f"kernelproof {name}" in heading)
    common = options_in(page["Every kernelproof command"])
    assert options_of(commands()[name]) - common == options_in(body)


def test_every_option_of_run_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_options(capsys, lambda: run.main(["--help"]))
    assert shown - {"--help"} == options_in(sections(text_of("commands.md"))["kernelproof run"])


def test_every_option_of_repro_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_options(capsys, lambda: environment.parse(["--help"]))
    assert shown == options_in(sections(text_of("commands.md"))["./repro.sh"])


def test_no_command_is_documented_that_is_not_there() -> None:
    headings = " ".join(sections(text_of("commands.md")))
    assert set(re.findall(r"kernelproof (\w+)", headings)) - {"command"} == set(commands())


def shell_lines() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for block in re.findall(r"^```(?:sh|)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            yield from ((page, line) for line in block.replace("\\\n", " ").splitlines())


def test_options_in_examples_are_known() -> None:
    known = {name: options_of(parser) for name, parser in commands().items()}
    unknown = []
    for page, line in shell_lines():
        if match := re.match(r"(?:\.venv/bin/)?kernelproof (\w+)([^#]*)", line):
            used = set(re.findall(r"(?<!\S)(--[\w-]+)", match[2]))
            if match[1] not in known or (match[1] != "run" and used - known[match[1]]):
                unknown.append((page.name, line))
        elif match := re.match(r"\./repro\.sh([^#]*)", line):
            ours = match[1].partition(" -- ")[0]
            if set(re.findall(r"(?<!\S)(--[\w-]+)", ours)) - options_in(sections(text_of("commands.md"))["./repro.sh"]):
                unknown.append((page.name, line))
    assert not unknown


# --- records ----------------------------------------------------------------------------------------------------------

KINDS = [
    *(kind for kind in vars(records).values() if isinstance(kind, type) and issubclass(kind, records.Record)),
    bundle.BundleRecord,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_field_of_a_record_is_documented(kind: type[records.Record]) -> None:
    page = sections(text_of("records.md"))
    body = page[kind.SCHEMA or "Every record"]
    common = set() if kind is records.Record else {field.name for field in dataclasses.fields(records.Record)}
    fields = {field.name for field in dataclasses.fields(kind)} - common
    assert fields <= set(re.findall(r"`(\w+)`", body))


def test_no_unknown_record_is_documented() -> None:
    known = {kind.SCHEMA for kind in KINDS if kind.SCHEMA}
    assert {heading for heading in sections(text_of("records.md")) if heading.startswith("kernelproof.")} == known


def test_every_module_has_a_docstring() -> None:
    without = [p.name for p in (ROOT / "src").rglob("*.py") if not ast.get_docstring(ast.parse(p.read_text("utf-8")))]
    assert not without
