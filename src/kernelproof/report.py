"""The report stage: every record into one HTML page that needs nothing else, and a summary for the pull request.

Nothing in either comes from the moment of rendering: the same records give the same bytes.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from kernelproof import privacy, rendering
from kernelproof.config import Config
from kernelproof.errors import RecordError
from kernelproof.records import (
    OK,
    BenchRecord,
    BuildRecord,
    CaptureRecord,
    CeilingsRecord,
    ManifestRecord,
    ProfileRecord,
    Record,
    TestRecord,
    atomic_write,
    read,
)
from kernelproof.views import bench, build, capture, profile, test, verdict
from kernelproof.views import run as whole
from kernelproof.views.common import LIMITS, Badge, Limits, Records, Settings, Unreadable, doubts, flatten, shown

MAX_HTML_BYTES = 1_000_000
OPTIONAL_TAG = re.compile(r"</(?:td|th|tr|li|dd|dt)>(?=\s*<)")  # a tenth of large tables, which HTML lets go
MAX_SUMMARY_CHARACTERS = 60_000

_KINDS: dict[str, type[Record]] = {
    kind.SCHEMA.partition("/")[0].removeprefix("kernelproof."): kind
    for kind in (CaptureRecord, BuildRecord, TestRecord, BenchRecord, CeilingsRecord, ProfileRecord)
}


@dataclass(frozen=True)
class Written:
    """What the stage made."""

    html: str
    summary: str
    html_bytes: int
    summary_characters: int
    status: str = OK
    reason: str | None = None


def run(config: Config, manifest_path: Path, html: Path, summary: Path) -> Written:
    """Render the page and the summary of the run whose facts are at `manifest_path`.

    Raises RecordError when the facts themselves cannot be read; another record that cannot be read is reported on the
    page as such.
    """
    names = privacy.noted(config.results)
    found = privacy.cleaned(read_all(manifest_path, config.root), names)  # before anything is escaped or cut
    settings = privacy.cleaned(settings_of(config), names)
    page = render_html(found, settings)
    text = render_summary(found, settings)
    atomic_write(html, page)
    atomic_write(summary, text)
    return Written(str(html), str(summary), len(page.encode()), len(text))


def settings_of(config: Config) -> Settings:
    """What the page needs of the configuration."""
    return Settings(
        project=config.project,
        max_ratio=config.gate.max_ratio,
        same_band=config.gate.same_band,
        confidence=config.bench.confidence,
        profile_shapes={name: operator.profile.shape for name, operator in config.operators.items()},
        profile_options={name: operator.profile.options for name, operator in config.operators.items()},
        ideas={variant.key: variant.idea for variant in config.variants()},
        gated=frozenset(variant.key for variant in config.variants() if variant.gate),
        source=config.source,
    )


# --- reading ----------------------------------------------------------------------------------------------------------


def read_all(manifest_path: Path, root: Path) -> Records:
    """Every record that the manifest's facts list, by paths relative to `root`."""
    found = Records(manifest=read(manifest_path, ManifestRecord))
    for name in found.manifest.records:
        path = root / name
        try:
            stage = _stage_of(path)
            if stage in _KINDS:
                _file(found, read(path, _KINDS[stage]))
        except RecordError as error:
            found.unreadable.append(Unreadable(name, error.message))
    return found


def _stage_of(path: Path) -> str:
    """The stage by a record's schema; an unknown one raises RecordError, since its record would go missing silently."""
    try:
        payload = json.loads(path.read_text(encoding="utf-8"))
        schema = payload.get("schema") if isinstance(payload, dict) else None
    except FileNotFoundError:
        raise RecordError("the record does not exist", subject=str(path)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"the record cannot be read: {type(error).__name__}", subject=str(path)) from None
    stage = str(schema).removeprefix("kernelproof.").partition("/")[0]
    if stage not in (*_KINDS, "manifest"):
        raise RecordError(f"schema {schema!r} is not one that the report knows", subject=str(path))
    return stage


def _file(found: Records, record: Record) -> None:
    match record:
        case CaptureRecord():
            found.capture = record
        case BuildRecord():
            found.builds.append(record)
        case TestRecord():
            found.tests.append(record)
        case BenchRecord():
            found.benches.append(record)
        case CeilingsRecord():
            found.ceilings[record.device] = record
        case ProfileRecord():
            found.profiles.append(record)


# --- rendering --------------------------------------------------------------------------------------------------------


def render_html(found: Records, settings: Settings) -> str:
    """The page. Rendered with less detail, and saying so, as long as it is over its size limit."""
    page = ""
    for number, limits in enumerate(LIMITS):
        page = _template("report.html.j2").render(**_context(found, settings, limits), shortened=number > 0)
        if number > 0:
            page = OPTIONAL_TAG.sub("", page)
        if not limits.hover:
            page = _plainer(page)
        if len(page.encode()) <= MAX_HTML_BYTES:
            break
    else:
        raise RecordError(
            f"the page is {len(page.encode()):,} bytes even with the least detail; the limit is {MAX_HTML_BYTES:,}",
            subject="report.html",
            hint="measure fewer shapes or variants in one run",
        )
    return page


def _plainer(page: str) -> str:
    """The page without hover texts: a quarter of one with many variants."""
    head, closing, body = page.partition("</head>")
    return head + closing + re.sub(r'<title>[^<]*</title>| title="[^"]*"', "", body)


def render_summary(found: Records, settings: Settings) -> str:
    """The summary in GitHub-flavoured Markdown."""
    text = ""
    for limits in LIMITS:
        text = _template("summary.md.j2").render(**_context(found, settings, limits))
        if len(text) <= MAX_SUMMARY_CHARACTERS:
            return text
    kept = text[: text.rfind("\n", 0, MAX_SUMMARY_CHARACTERS - 200)]
    return f"{kept}\n\n(cut here at {MAX_SUMMARY_CHARACTERS} characters; the report has the rest)\n"


def _context(found: Records, settings: Settings, limits: Limits) -> dict[str, Any]:
    groups = verdict.verdict_groups(found, settings)
    gaps = whole.not_run(found)
    return {
        "settings": settings,
        "limits": limits,
        "manifest": found.manifest,
        "capture": found.capture,
        "unreadable": found.unreadable,
        "groups": groups,
        "headline": verdict.headline(found, groups),
        "stages": {note.name: note for note in verdict.stage_notes(found)},
        "probes": capture.probes(found.capture, limits),
        "machine": capture.machine(found.capture),
        "builds": build.builds(found, limits),
        "tests": test.tests(found, limits),
        "sanitizer_tools": test.SANITIZER_TOOLS,
        "benches": bench.benches(found, settings, limits),
        "methods": bench.METHODS,
        "profiles": profile.profiles(found, limits),
        "not_run": gaps,
        "not_run_title": whole.not_run_title(gaps),
        "reproduce": whole.reproduce(found, settings),
        "totals": whole.class_totals(found.manifest),
        "histogram_height": test.HISTOGRAM_HEIGHT,
    }


def _template(name: str) -> jinja2.Template:
    return _environment(html=".html" in name).get_template(name)


@functools.cache
def _environment(html: bool) -> jinja2.Environment:
    """The shared environment with what only the report's templates use."""
    environment = rendering.environment(html).overlay()
    environment.filters = environment.filters | {
        "doubts": doubts,
        "shown": shown,
        "flatten": flatten,
        "shortname": build.short_name,
    }
    environment.globals = environment.globals | {"sign": _sign}
    return environment


def _sign(found: Badge) -> str:
    return {"good": "✅", "bad": "❌", "warn": "⚠️"}.get(found.kind, "➖")
