import math

import pytest

from kernelproof import formats


@pytest.mark.parametrize(
    ("value_us", "expected"),
    [
        (9.1234, "9.12 µs"),
        (63.7, "63.7 µs"),
        (1310.0, "1.31 ms"),
        (0.0123, "0.012 µs"),
        (2.5e6, "2.50 s"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_times_have_three_digits_and_their_unit(value_us: float | None, expected: str) -> None:
    assert formats.time_us(value_us).replace(formats.THIN, " ") == expected


def test_a_column_has_one_unit_and_as_many_decimals_as_its_smallest_needs() -> None:
    unit = formats.time_unit([9.1, 143.0, 63.7])
    assert [unit.format(v) for v in (9.1, 143.0, 63.7)] == ["9.10", "143.00", "63.70"]
    assert formats.time_unit([2310.0, 18420.0]).symbol == "ms"
    assert formats.time_unit([]).symbol == "µs"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.94712, "0.947×"), (2.414, "2.41×"), (31.04, "31.0×"), (172.3, "172×"), (None, "–"), (math.inf, "–")],
)
def test_ratios(value: float | None, expected: str) -> None:
    assert formats.ratio(value) == expected


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [
        (0.4231, 2, "0.42"),
        (912.4, 2, "912"),
        (1.234e-7, 2, "1.2×10⁻⁷"),
        (3.2e12, 3, "3.20×10¹²"),
        (0.0, 3, "0"),
        (None, 3, "–"),
        (math.nan, 3, "NaN"),
        (-math.inf, 3, "−∞"),
        (-0.5, 2, "−0.50"),
        (9.999, 2, "10"),
        ("sm_90", 3, "sm_90"),
    ],
)
def test_significant_figures(value: float | str | None, digits: int, expected: str) -> None:
    assert formats.significant(value, digits) == expected


def test_sizes_seconds_rates_counts() -> None:
    plain = [
        formats.size(512),
        formats.size(49152),
        formats.size(1_310_720),
        formats.seconds(0.0042),
        formats.seconds(0.34),
        formats.seconds(192.4),
        formats.rate(4.38e14, "FLOP/s"),
        formats.rate(12, "B/s"),
        formats.count(2_097_152),
        formats.percent(0.517),
    ]
    assert [text.replace(formats.THIN, " ") for text in plain] == [
        "512 B",
        "48.0 KiB",
        "1.25 MiB",
        "4.2 ms",
        "0.3 s",
        "3 min 12 s",
        "438 TFLOP/s",
        "12.0 B/s",
        "2 097 152",
        "51.7 %",
    ]


def test_of_many_names_the_first_are_listed() -> None:
    assert formats.first_of("abcde") == "a, b, c, d and e"
    assert formats.first_of("abcdef") == "a, b, c, d and 2 more"
    assert formats.first_of([]) == ""


def test_lists_and_plurals() -> None:
    assert formats.listed([]) == ""
    assert formats.listed(["a"]) == "a"
    assert formats.listed(["a", "b", "c"]) == "a, b and c"
    assert formats.plural(1, "case") == "1 case"
    assert formats.plural(2, "process", "processes") == "2 processes"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[01;31merror\x1b[0m: x", "error: x"),
        ("\x1b]8;;https://example.org\x07link\x1b]8;;\x07", "link"),
        ("\x1b]0;title\x1b\\rest", "rest"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("nul\0bell\a", "nul\ufffdbell\ufffd"),
        ("user\u202egnp.exe", "user\ufffdgnp.exe"),
        ("half \ud800 pair", "half \ufffd pair"),
        ("tab\tstays", "tab\tstays"),
    ],
)
def test_foreign_text_loses_what_is_not_text(text: str, expected: str) -> None:
    assert formats.clean(text) == expected
    formats.clean(text).encode("utf-8")


def test_an_excerpt_ends_at_a_line_and_says_what_is_missing() -> None:
    text = formats.excerpt("\n".join(f"line {n}" for n in range(100)), 60)
    assert text.splitlines()[-2].startswith("line ")
    assert "more characters in the log" in text.splitlines()[-1]
    assert formats.excerpt("short\n", 60) == "short"


@pytest.mark.parametrize("text", ["`", "``a``", "a|b", "line\nbreak", "@somebody #1 <b>", "trailing `", "\\|"])
def test_a_code_span_holds_anything_in_a_table_cell(text: str) -> None:
    span = formats.md_code(text)
    fence = span[: len(span) - len(span.lstrip("`"))]
    inner = span[len(fence) : -len(fence)]
    assert span.endswith(fence)
    assert fence not in inner
    assert "\n" not in span
    assert "|" not in inner.replace("\\|", "")


def test_text_in_markdown_is_inert() -> None:
    text = formats.md_text("**b** [x](javascript:1) <img src=x> @team #12 |")
    assert "@<!-- -->team" in text
    assert "<img" not in text.replace("\\<img", "")
    assert "[x](" not in text
    assert "\\|" in text


def test_what_was_made_inert_reads_in_a_terminal_as_it_was() -> None:
    text = "large_d128: **0.95** > 0.9 | @team #12 <b> [x](y) `z`"
    assert formats.md_as_typed(formats.md_text(text)) == text
    assert formats.md_as_typed(formats.md_text(r"C:\tmp\_x")) == r"C:\tmp\_x"
    assert formats.md_as_typed(formats.md_code(r"a | b\.c\_d")) == r"a | b\.c\_d"
    assert formats.md_as_typed(f"**{formats.md_code('`a` b')}**") == "`a` b"


def test_a_terminal_shows_columns_and_no_marks() -> None:
    cells = [formats.md_code("a | b"), formats.md_text("x\\"), f"**{formats.md_text('*|<details>')}**"]
    rows = "\n".join(f"| {cell} | 1 |" for cell in cells)
    folded = "<details><summary>3 of `them`</summary>\n\n</details>"
    assert formats.md_on_terminal(f"## Title\n\n| name | n |\n| --- | ---: |\n{rows}\n\n{folded}\n\nend\n") == (
        "Title\n\nname         n\na | b        1\nx\\           1\n*|<details>  1\n\n3 of them\n\nend"
    )


def test_a_block_cannot_be_closed_from_inside() -> None:
    block = formats.md_block("before\n```\n# heading\n````\nafter", 1000)
    assert block.startswith("`````text\n")
    assert block.endswith("\n`````")


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0182, "this run could see ±1.8\u202f%"),
        (584.9, "this run could see no factor below 586"),
        (None, "this run of one process could see nothing"),
    ],
)
def test_what_a_run_could_see(share: float | None, text: str) -> None:
    assert formats.could_see(share, "this run") == text


def test_one_process_has_no_interval() -> None:
    assert formats.interval(0.941, 0.953) == "0.941–0.953"
    assert formats.interval(5.88656, 5.88656) == "no interval"
    unit = formats.time_unit([29.45])
    assert (unit.span(29.0, 29.451), unit.span(29.45, 29.45)) == ("29.0–29.5", "no interval")
    assert unit.span(None, None) == "–––"
