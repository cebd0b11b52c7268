"""Pages and Markdown from templates: one environment, whose filters are how figures and foreign text are written.

Foreign text (kernel names, compiler output, names of files) loses control characters and is escaped; an absent value is
a fault of the template. The same values give the same bytes.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from kernelproof import formats
from kernelproof.errors import RecordError

TEMPLATES = Path(__file__).resolve().parent / "templates"


def render(name: str, **context: Any) -> str:
    """A template of this package, filled in."""
    return environment(".html" in name or ".svg" in name).get_template(name).render(**context)


@functools.cache
def environment(html: bool) -> jinja2.Environment:
    """The environment of HTML templates, which escape, or of Markdown ones, which escape by their filters."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=html,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update(
        {
            "us": formats.time_us,
            "ratio": formats.ratio,
            "interval": formats.interval,
            "count": formats.count,
            "fixed": formats.grouped,
            "limit": lambda value: f"{value:g}",
            "plural": formats.plural,
            "listed": formats.listed,
            "sig": formats.significant,
            "percent": formats.percent,
            "size": formats.size,
            "seconds": formats.seconds,
            "utc": formats.utc,
            "html": lambda text: str(escape(formats.one_line(text))),
            "code": formats.md_code,
            "md": formats.md_text,
            "block": formats.md_block,
            "rate": formats.rate,
            "could_see": formats.could_see,
        }
    )
    return made


def _finalize(value: Any) -> Any:
    """Foreign text loses control characters before it is escaped; None is a fault of the template, not a word."""
    if value is None:
        raise RecordError("a template printed an absent value", subject="report")
    return formats.clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value
