"""How figures and foreign text are written: the one place for units, significant digits and hostile strings.

Nothing here knows about records; the report, the summary and the command line share it.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

ABSENT = "–"
NO_INTERVAL = "no interval"  # of one process
THIN = "\u202f"  # narrow no-break space: between thousands and between a figure and its unit

MOST_IN_A_HEADLINE = 4  # of one kind; the tables name all

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor movement
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # operating-system commands: titles, hyperlinks
    r"|\x1b[ -/]*[0-~]"  # any other escape sequence
)
_MARKDOWN = re.compile(r"([\\`*_\[\]#|<>~!@&$]|:(?=/)|(?<=www)\.)")


@dataclass(frozen=True)
class TimeUnit:
    """A unit of time for a column, so that its figures line up: value_us / scale, with `decimals` places."""

    symbol: str
    scale: float
    decimals: int

    def format(self, value_us: float | None) -> str:
        """The bare figure, without its unit."""
        if value_us is None or not math.isfinite(value_us):
            return ABSENT
        return grouped(value_us / self.scale, self.decimals)

    def span(self, low_us: float | None, high_us: float | None) -> str:
        """The bare ends of an interval; one process has none."""
        if low_us is not None and low_us == high_us:
            return NO_INTERVAL
        return f"{self.format(low_us)}–{self.format(high_us)}"


def time_unit(values_us: Iterable[float | None]) -> TimeUnit:
    """The unit in which the smallest of these times has at least three significant digits."""
    known = [v for v in values_us if v is not None and math.isfinite(v) and v > 0]
    smallest = min(known, default=1.0)
    symbol, scale = ("µs", 1.0) if smallest < 1e3 else ("ms", 1e3) if smallest < 1e6 else ("s", 1e6)
    leading = math.floor(math.log10(smallest / scale)) if known else 0
    return TimeUnit(symbol, scale, min(3, max(0, 2 - leading)))


def time_us(value_us: float | None) -> str:
    """A single time with its unit: `9.12 µs`, `1.31 ms`."""
    if value_us is None or not math.isfinite(value_us):
        return ABSENT
    unit = time_unit([abs(value_us)])
    return f"{unit.format(value_us)}{THIN}{unit.symbol}"


def seconds(value_s: float | None) -> str:
    """A duration of the run's own work: `340 ms`, `4.2 s`, `3 min 12 s`."""
    if value_s is None or not math.isfinite(value_s):
        return ABSENT
    if value_s < 0.0995:
        return f"{value_s * 1e3:.0f}{THIN}ms" if value_s >= 0.0095 else f"{value_s * 1e3:.1f}{THIN}ms"
    if value_s < 99.95:
        return f"{value_s:.1f}{THIN}s"
    minutes, rest = divmod(round(value_s), 60)
    return f"{minutes}{THIN}min {rest:02d}{THIN}s"


def grouped(value: float, decimals: int = 0) -> str:
    """A figure with thousands set apart: `2 097 152`."""
    return f"{value:,.{decimals}f}".replace(",", THIN).replace("-", "−")


def count(value: float | None) -> str:
    """A whole number with thousands set apart."""
    return ABSENT if value is None else grouped(round(value))


def significant(value: float | str | None, digits: int = 3) -> str:
    """A figure of any size to so many significant digits; very large and small ones as powers of ten."""
    if value is None:
        return ABSENT
    if isinstance(value, str):
        return clean(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    if -4 < exponent < 6:
        return grouped(value, max(0, digits - 1 - exponent))
    mantissa = grouped(value / 10.0**exponent, digits - 1)
    return f"{mantissa}×10{str(exponent).translate(_SUPERSCRIPT)}"


def power_of_ten(value: float) -> str:
    """A figure of one digit for an axis: `10⁻⁶`, `5×10⁻³`."""
    text = significant(value, 1)
    if "×" not in text:
        exponent = math.floor(math.log10(abs(value)) + 1e-9)
        text = f"{value / 10.0**exponent:.0f}×10{str(exponent).translate(_SUPERSCRIPT)}"
    return text.removeprefix("1×")


def ratio(value: float | None) -> str:
    """A quotient of two times: `0.947×`, `2.41×`, `172×`. Three decimals where the gate is decided."""
    return ABSENT if value is None or not math.isfinite(value) else f"{_ratio_figure(value)}×"


def interval(low: float | None, high: float | None) -> str:
    """A confidence interval of a ratio: `0.941–0.953`; one process has none."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ABSENT
    if low == high:
        return NO_INTERVAL
    return f"{_ratio_figure(low)}–{_ratio_figure(high)}"


def _ratio_figure(value: float) -> str:
    return (
        f"{value:.3f}"
        if value < 2
        else f"{value:.2f}"
        if value < 20
        else f"{value:.1f}"
        if value < 100
        else f"{value:.0f}"
    )


def percent(share: float | None, decimals: int = 1) -> str:
    """A share (0 to 1) in percent."""
    return ABSENT if share is None or not math.isfinite(share) else f"{100 * share:.{decimals}f}{THIN}%"


def could_see(share: float | None, what: str) -> str:
    """How small a difference measurements could have shown: `this run could see ±1.8 %`."""
    if share is None:
        return f"{what} of one process could see nothing"
    if share >= 1:
        return f"{what} could see no factor below {significant(1 + share, 2)}"
    return f"{what} could see ±{percent(share)}"


def size(value_bytes: float | None) -> str:
    """A number of bytes: `512 B`, `48.0 KiB`, `1.25 MiB`."""
    if value_bytes is None:
        return ABSENT
    if value_bytes < 1024:
        return f"{value_bytes:.0f}{THIN}B"
    for symbol in ("KiB", "MiB", "GiB"):
        value_bytes /= 1024
        if value_bytes < 1024 or symbol == "GiB":
            break
    return f"{value_bytes:.{2 if value_bytes < 10 else 1 if value_bytes < 100 else 0}f}{THIN}{symbol}"


def rate(value: float | None, unit: str, digits: int = 3) -> str:
    """A rate with an SI prefix: `438 TFLOP/s`, `3.9 TB/s`."""
    if value is None or not math.isfinite(value):
        return ABSENT
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{significant(value / factor, digits)}{THIN}{prefix}{unit}"
    return f"{significant(value, digits)}{THIN}{unit}"


def utc(text: str) -> str:
    """An ISO 8601 time in UTC as `2026-03-14 09:26 UTC`; anything else as it is."""
    match = re.match(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)", text)
    return f"{match[1]} {match[2]}{THIN}UTC" if match else clean(text)


def plural(number: int, singular: str, plural_form: str | None = None) -> str:
    """`1 variant`, `3 variants`."""
    return f"{count(number)} {singular if number == 1 else plural_form or singular + 's'}"


def listed(names: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    items = list(names)
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def few(found: Sequence[T]) -> tuple[Sequence[T], int]:
    """As many as a headline takes, and how many are left; one alone is not left."""
    number = len(found) if len(found) <= MOST_IN_A_HEADLINE + 1 else MOST_IN_A_HEADLINE
    return found[:number], len(found) - number


def first_of(names: Iterable[str]) -> str:
    """Like `listed`, for a headline: of many names the first ones, and how many more: `a, b, c, d and 9 more`."""
    shown, more = few(list(names))
    return listed([*shown, *([f"{more} more"] if more else [])])


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table for a terminal: one line a row, each column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


# --- foreign text -----------------------------------------------------------------------------------------------------


def clean(text: object) -> str:
    """Text of unknown origin (kernel names, compiler output, logs) made fit to show.

    Escape sequences of terminals go; control characters, lone surrogates and the bidirectional marks that make text
    read in another order than it is become a visible replacement character. Escaping for HTML is the template's work.
    """
    plain = _ANSI.sub("", str(text).replace("\r\n", "\n").replace("\r", "\n"))
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs") else "\ufffd" for c in plain)


def one_line(text: object, limit: int = 240) -> str:
    """The text on one line, cut to `limit` characters."""
    line = " ".join(clean(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def excerpt(text: object, limit: int) -> str:
    """The beginning of a long text, cut at a line's end where possible, saying how much is left out."""
    whole = clean(text).strip("\n")
    if len(whole) <= limit:
        return whole
    kept = whole[:limit]
    kept = kept[: kept.rfind("\n")] if "\n" in kept[limit // 2 :] else kept
    return f"{kept}\n… {count(len(whole) - len(kept))} more characters in the log"


def md_text(text: object) -> str:
    """Text on one line of Markdown, with every character that Markdown, HTML or GitHub would act upon made inert."""
    return _MARKDOWN.sub(r"\\\1", one_line(text, 400)).replace("\\@", "@<!-- -->")


def md_as_typed(markdown: str) -> str:
    """Markdown as text: what was made inert, as it was before, without marks for code and bold."""

    def typed(found: re.Match[str]) -> str:
        return found[4] or (found[3] or "").replace("\\|", "|")  # in a code span nothing else is escaped

    return re.sub(r"(`+)( ?)(.*?)\2\1|\*\*|\\([!-/:-@\[-`{-~])", typed, markdown.replace("@<!-- -->", "@"))


def md_on_terminal(markdown: str) -> str:
    """Markdown for who reads it in a terminal: as text, with tables in aligned columns."""
    lines, table = list[str](), list[list[str]]()
    for line in [*markdown.splitlines(), ""]:
        if line.startswith("|"):
            if line.strip("|-: "):
                table.append([md_as_typed(cell.strip()) for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
            continue
        lines += columns(table) if table else []
        table.clear()
        folded = re.fullmatch(r"</?details>(?:<summary>(.*)</summary>)?", line)
        lines.append(md_as_typed(folded[1] or "" if folded else re.sub("^#+ ", "", line)))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip()


def md_code(text: object, limit: int = 240) -> str:
    """Text as a code span that is safe in a table cell: mentions, issue numbers and links inside it stay text."""
    line = one_line(text, limit).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", line)), default=0))
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}" if line else ABSENT


def md_block(text: object, limit: int, language: str = "text") -> str:
    """Text as a fenced code block whose fence the text cannot close."""
    body = excerpt(text, limit)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", body)), default=0))
    return f"{fence}{language}\n{body}\n{fence}"
