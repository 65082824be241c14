"""Tables on narrow screens, and text that comes from records."""

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from stallwise.report import terminal
from stallwise.report.format import printable
from stallwise.report.view import Cell, Facts, Notes, PartColumn, Row, Span, View, number, table, view, words

WIDTHS = (80, 100, 120)


def printed(shown: View, width: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(terminal.draw(shown))
    return out.getvalue()


def test_the_least_important_column_goes_first_and_is_named() -> None:
    columns = (number("$/h"), "market", PartColumn("region", priority=1), PartColumn("confidence", priority=2))
    row = ("1.09", "spot", "r" * 60, "c" * 20)
    text = printed(view("", table(columns, [row])), 80)
    assert text.splitlines() == [
        " $/h  market  region",
        f"1.09  spot    {'r' * 60}",
        "Left out at this width: confidence.",
    ]
    assert "confidence" in printed(view("", table(columns, [row])), 120).splitlines()[0]


def test_a_table_that_may_not_lose_a_column_continues_below() -> None:
    columns = ("policy", *(number(f"figure{i}") for i in range(12)))
    row = ("fifo", *("1,234.5 s" for _ in range(12)))
    text = printed(view("", table(columns, [row], split=True)), 80)
    assert text.count("fifo") == 2
    assert [f"figure{i}" in text for i in range(12)] == [True] * 12
    assert text.count("1,234.5 s") == 12
    assert "Left out" not in text


def test_a_table_that_cannot_fit_is_stacked() -> None:
    columns = ("name", number("first"), number("second"))
    text = printed(view("", table(columns, [("a", "1" * 50, "2" * 50)])), 80)
    assert [line.rstrip() for line in text.splitlines()] == ["a", f"  first   {'1' * 50}", f"  second  {'2' * 50}"]


numbers = st.from_regex(r"[1-9][0-9,.]{0,9}( (ms|GB/s|%|h))?", fullmatch=True)
names = st.from_regex(r"[a-z]{1,18}", fullmatch=True)
sentences = st.lists(names, max_size=9).map(" ".join)


@st.composite
def tables(draw: st.DrawFn) -> View:
    """A first column of names, then columns of all kinds."""
    columns = [PartColumn("name")]
    for i in range(draw(st.integers(1, 12))):
        priority = draw(st.integers(0, 3))
        columns.append(draw(st.sampled_from((number(f"n{i}", priority), words(f"w{i}", priority)))))
    rows = [
        Row(
            (
                draw(names),
                *(draw(numbers if one.numeric else st.lists(names, max_size=9).map(" ".join)) for one in columns[1:]),
            )
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    return view("", table(columns, rows, split=draw(st.booleans())))


@settings(max_examples=60, deadline=None)
@given(tables(), st.sampled_from(WIDTHS))
def test_no_number_is_ever_cut(shown: View, width: int) -> None:
    text = printed(shown, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    (part,) = shown.parts()
    left_out = re.search(r"Left out at this width: (.*)\.", re.sub(r"\s+", " ", text))
    hidden = set(left_out.group(1).split(", ")) if left_out else set()
    for row in part.rows:  # type: ignore[union-attr]
        for column, cell in zip(part.columns, row.cells, strict=True):  # type: ignore[union-attr]
            if column.name not in hidden:
                pieces = [str(cell)] if column.numeric else str(cell).split()
                assert all(piece in text for piece in pieces), (column, cell)


@pytest.mark.parametrize("width", WIDTHS)
def test_facts_wrap_beside_their_labels(width: int) -> None:
    shown = printed(View("title", "aside", (Facts((("label", "word " * 60),)), Notes("notes", ("one", "two")))), width)
    lines = shown.splitlines()
    assert lines[0] == "title" + "aside".rjust(min(width, 100) - 5)
    assert lines[1] == "─" * min(width, 100)
    assert lines[2].startswith("label         word")
    assert lines[3].startswith("              word")
    assert lines[-2:] == ["notes         one", "              two"]


def test_nothing_from_a_record_moves_the_cursor() -> None:
    evil = "a\x1b[2J\x9b31mb\rc\nd\x07\u202e\u200b\udcff"
    shown = view(evil, table((evil, number("n")), [(Cell(evil), evil), (Span(evil, "bad"), "1")], evil, evil))
    shown = View(evil, evil, (*shown.intro, Facts(((evil, evil),), evil), Notes(evil, (evil,))), warning=evil)
    for width in (20, 80):
        text = printed(shown, width)
        assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert "\\x1b[2J\\x9b31mb\\rc\\nd\\x07\\u202e\\u200b\\udcff" in printed(view("", Facts((("", evil),))), 100)
    assert printable("é 中 \u00a0 × …") == "é 中 \u00a0 × …"


def test_markup_of_rich_is_text() -> None:
    assert "[bold]x[/bold]" in printed(view("", Facts((("a", "[bold]x[/bold]"),))))
