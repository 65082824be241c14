"""The terminal renderer: views as text of the width that there is.

No number is ever cut: a table that does not fit leaves out its least important columns and says which, continues below
itself, or shows each row as lines of its own. What comes from records is made printable here, so that it cannot move
the cursor, colour the terminal or hide text.
"""

import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from stallwise.report.format import printable
from stallwise.report.view import (
    Bar,
    Cell,
    Chart,
    Code,
    Facts,
    Line,
    Notes,
    Paragraph,
    Part,
    PartColumn,
    Row,
    TablePart,
    View,
    spans,
)

WIDTH = 100
"""Columns that sentences and bars use at most; a table may be wider."""
LABEL = 14
"""Columns of a label: the longest one and a gap, so that every section starts its second column there."""
# A pipe or a log has no width; wide enough for every table, narrow enough to read.
_PIPE_WIDTH = 120
_GAP = 2
_NARROWEST_WORDS, _LONGEST_WORD = 16, 32
_NARROWEST_BAR = 8

_STYLES = {
    "strong": "bold",
    "dim": "dim",
    "good": "green",
    "best": "bold green",
    "bad": "bold red",
    "warn": "yellow",
    "alarm": "bold yellow",
    "compute": "green",
    "copy": "cyan",
    "interconnect": "magenta",
    "network": "blue",
    "prep": "yellow",
    "fetch": "red",
}


def console() -> Console:
    """A console on stdout; without a terminal it keeps a fixed width so that logs are not folded at 80."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(width=width, highlight=False, soft_wrap=False)


def draw(shown: View | RenderableType) -> RenderableType:
    """A view as a rich renderable; what rich can print already is returned as it is."""
    return _Drawn(shown) if isinstance(shown, View) else shown


def _styled(line: Line, tone: str = "") -> Text:
    shown = Text(style=_STYLES.get(tone, ""), no_wrap=False, overflow="fold")
    for span in spans(line):
        style = " ".join(_STYLES.get(name, "") for name in span.tone.split()).strip()
        shown.append(printable(span.text), style=style or None)
    return shown


@dataclass(frozen=True)
class _Drawn:
    view: View

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        yield from self._head(min(width, WIDTH))
        before: Part | None = None
        for part in self.view.parts():
            lines = list(_part(part, width)) if part.only != "page" else []
            if not lines:
                continue
            titled = isinstance(part, Facts) and part.title
            close = isinstance(before, Facts | Paragraph) and isinstance(part, Facts | Paragraph) and not titled
            if before is not None and not close:
                yield Text()
            yield from lines
            before = part

    def _head(self, width: int) -> Iterator[Text]:
        view = self.view
        if not view.title:
            return
        aside = _styled(view.aside, "dim" if isinstance(view.aside, str) else "")
        title = _styled(view.title, "strong")
        room = width - title.cell_len
        if aside.cell_len and aside.cell_len + _GAP <= room:
            yield Text.assemble(title, " " * (room - aside.cell_len), aside)
        else:
            yield from _wrapped(title, width)
            if aside.cell_len:
                yield from _wrapped(aside, width)
        if view.rule:
            yield Text("─" * width, style="dim")
        if view.warning:
            yield from _wrapped(_styled(view.warning, "alarm"), width)


def _part(part: Part, width: int) -> Iterator[Text]:
    sentences = min(width, WIDTH)
    if isinstance(part, TablePart):
        yield from _table(part, width)
    elif isinstance(part, Facts):
        yield from _facts(part.rows, part.label_width or LABEL, sentences, part.title)
    elif isinstance(part, Notes):
        rows = [(part.label if i == 0 else "", one) for i, one in enumerate(part.sentences)]
        yield from _facts(rows, LABEL if part.label else 0, sentences, tone="dim")
    elif isinstance(part, Paragraph):
        yield from _wrapped(_styled(part.line, part.tone), sentences)
    elif isinstance(part, Code):
        yield from _facts([(part.label if i == 0 else "", one) for i, one in enumerate(part.lines)], LABEL, sentences)
    elif isinstance(part, Chart):
        yield from _chart(part)


def _wrapped(text: Text, width: int) -> Iterator[Text]:
    yield from text.wrap(Console(width=width, file=sys.stderr), width)


def _facts(
    rows: Iterable[tuple[str, Line]], label_width: int, width: int, title: str = "", tone: str = ""
) -> Iterator[Text]:
    if title:
        yield Text(printable(title), style="bold")
    for label, line in rows:
        name = printable(label)
        lines = list(_wrapped(_styled(line, tone), max(10, width - label_width))) or [Text()]
        if cell_len(name) >= label_width > 0:
            yield Text(name, style="dim")
            name = ""
        for i, one in enumerate(lines):
            shown = Text((name if i == 0 else "").ljust(label_width), style="dim")
            shown = Text.assemble(shown, one)
            shown.rstrip()
            yield shown


# Tables: columns are measured, left out or continued below until they fit, then drawn line by line.


def _table(table: TablePart, width: int) -> Iterator[Text]:
    shown = [i for i, column in enumerate(table.columns) if column.only != "page"]
    rows = [row for row in (*table.rows, *([table.foot] if table.foot else [])) if row.only != "page"]
    if table.title and not table.headless:
        yield from _wrapped(Text(printable(table.title), style="bold"), width)
    if not rows:
        return
    if table.split:
        groups = _groups(table, rows, shown, width)
        for i, group in enumerate(groups):
            if i:
                yield Text()
            yield from _grid(table, rows, group, width)
        dropped: list[int] = []
    else:
        kept, dropped = _fitting(table, rows, shown, width)
        if _least(table, rows, kept) > width:
            yield from _stacked(table, rows, shown, width)
            dropped = []
        else:
            yield from _grid(table, rows, kept, width)
    if table.note:
        yield from _wrapped(_styled(table.note, "dim"), min(width, WIDTH))
    names = [printable(table.columns[i].name) for i in dropped if table.columns[i].name]
    if names:
        sentence = f"Left out at this width: {', '.join(names)}."
        yield from _wrapped(Text(sentence, style="dim"), min(width, WIDTH))


def _fitting(table: TablePart, rows: Sequence[Row], shown: list[int], width: int) -> tuple[list[int], list[int]]:
    """The columns that fit, and those that were left out, least important first."""
    kept, dropped = list(shown), []
    while _least(table, rows, kept) > width:
        optional = [i for i in kept if table.columns[i].priority]
        if not optional:
            break
        least = max(optional, key=lambda i: (table.columns[i].priority, i))
        kept.remove(least)
        dropped.append(least)
    return kept, sorted(dropped)


def _groups(table: TablePart, rows: Sequence[Row], shown: list[int], width: int) -> list[list[int]]:
    """Columns in as few tables as they need, the first column in each."""
    first, *rest = shown
    groups: list[list[int]] = [[first]]
    for i in rest:
        if len(groups[-1]) > 1 and _least(table, rows, [*groups[-1], i]) > width:
            groups.append([first])
        groups[-1].append(i)
    return groups


def _cell_of(row: Row, place: int) -> Cell | None:
    """The cell that begins in a column; None where one before it spans the column."""
    at = 0
    for one in row.cells:
        cell = one if isinstance(one, Cell) else Cell(one)
        if at == place:
            return cell
        at += cell.span
        if at > place:
            return None
    return Cell()


def _natural(column: PartColumn, cells: Iterable[Cell | None], headless: bool) -> tuple[int, int]:
    """The least width that cuts nothing, and the width at which nothing wraps."""
    if column.bar:
        return _NARROWEST_BAR, column.bar
    texts = [_styled(cell.text).plain for cell in cells if cell is not None and cell.span == 1]
    lengths = [cell_len(text) for text in texts]
    head = 0 if headless else cell_len(printable(column.name))
    natural = max([head, *lengths])
    if not column.wrap:
        return natural, natural
    longest = max([0, *(cell_len(word) for text in texts for word in text.split())])
    return min(natural, max(_NARROWEST_WORDS, min(longest, _LONGEST_WORD), head)), natural


def _measure(table: TablePart, rows: Sequence[Row], columns: Sequence[int]) -> list[tuple[int, int]]:
    return [_natural(table.columns[i], [_cell_of(row, i) for row in rows], table.headless) for i in columns]


def _least(table: TablePart, rows: Sequence[Row], columns: Sequence[int]) -> int:
    """The least width of some columns with the gaps between them."""
    return sum(least for least, _ in _measure(table, rows, columns)) + _GAP * (len(columns) - 1)


def _widths(table: TablePart, rows: Sequence[Row], columns: Sequence[int], width: int) -> list[int]:
    """What each column gets: first sentences up to their length, then bars."""
    measured = _measure(table, rows, columns)
    widths = [least for least, _ in measured]
    room = width - sum(widths) - _GAP * (len(columns) - 1)
    for bars in (False, True):
        for place, (_, natural) in enumerate(measured):
            if bool(table.columns[columns[place]].bar) is bars and room > 0:
                more = min(room, natural - widths[place])
                widths[place] += more
                room -= more
    return widths


def _grid(table: TablePart, rows: Sequence[Row], columns: list[int], width: int) -> Iterator[Text]:
    limit = min(width, WIDTH) if any(table.columns[i].bar or table.columns[i].wrap for i in columns) else width
    limit = max(limit, min(width, _least(table, rows, columns)))
    widths = _widths(table, rows, columns, limit)
    if table.headless and columns:
        widths[0] = max(widths[0], min(LABEL - _GAP, widths[0] + limit - sum(widths) - _GAP * (len(widths) - 1)))
    if not table.headless and any(table.columns[i].name for i in columns):
        heads = [
            _aligned(Text(printable(table.columns[i].name), style="dim"), table.columns[i], w)
            for i, w in zip(columns, widths, strict=True)
        ]
        yield _joined(heads)
    for row in rows:
        yield from _lines(table, row, columns, widths, limit)


def _lines(table: TablePart, row: Row, columns: list[int], widths: list[int], limit: int) -> Iterator[Text]:
    blocks: list[tuple[PartColumn, int, list[Text]]] = []
    used = 0
    for place, (i, column_width) in enumerate(zip(columns, widths, strict=True)):
        cell = _cell_of(row, i)
        if cell is None:
            continue
        room = column_width
        if cell.span > 1:
            room = (
                max(limit - used, 1)
                if place == len(columns) - 1 or cell.span >= len(table.columns) - i
                else sum(w for j, w in zip(columns, widths, strict=True) if i <= j < i + cell.span)
                + _GAP * (sum(i <= j < i + cell.span for j in columns) - 1)
            )
        column = PartColumn("") if cell.span > 1 else table.columns[i]  # what spans columns begins at their left
        blocks.append((column, room, _block(cell, table.columns[i], room, row.tone)))
        used += room + _GAP
    height = max(len(lines) for _, _, lines in blocks)
    for n in range(height):
        yield _joined(
            [_aligned(lines[n] if n < len(lines) else Text(), column, room) for column, room, lines in blocks]
        )


def _block(cell: Cell, column: PartColumn, width: int, tone: str) -> list[Text]:
    if cell.bar is not None and column.bar:
        return [_bar(cell.bar, width)]
    text = _styled(cell.text, cell.tone or tone)
    if column.wrap or cell.span > 1:
        return list(_wrapped(text, max(1, width))) or [Text()]
    return [text]


def _aligned(text: Text, column: PartColumn, width: int) -> Text:
    missing = " " * max(0, width - text.cell_len)
    return Text.assemble(missing, text) if column.numeric else Text.assemble(text, missing)


def _joined(cells: Iterable[Text]) -> Text:
    line = Text(" " * _GAP).join(cells)
    line.no_wrap = True
    line.rstrip()
    return line


def _bar(bar: Bar, width: int) -> Text:
    """The pieces as blocks, each at least one column wide."""
    drawn = Text()
    for piece in bar.pieces:
        start = min(width - 1, round(piece.start * width))
        end = min(width, max(start + 1, round((piece.start + piece.width) * width)))
        start = max(start, drawn.cell_len)
        drawn.append(" " * (start - drawn.cell_len))
        drawn.append("█" * max(0, end - start), style=_STYLES.get(piece.kind, ""))
    return drawn


def _stacked(table: TablePart, rows: Sequence[Row], columns: list[int], width: int) -> Iterator[Text]:
    """Each row as lines of its own: its first cell, then the others with their names."""
    names = [printable(table.columns[i].name) for i in columns[1:]]
    label = max([0, *map(cell_len, names)]) + _GAP
    for row in rows:
        head = _cell_of(row, columns[0]) or Cell()
        yield from _wrapped(_styled(head.text, head.tone or row.tone or "strong"), width)
        for i, name in zip(columns[1:], names, strict=True):
            cell = _cell_of(row, i)
            if cell is None or table.columns[i].bar or not _styled(cell.text).plain:
                continue
            lines = _wrapped(_styled(cell.text, cell.tone or row.tone), max(10, width - label - _GAP))
            for n, line in enumerate(lines):
                yield Text.assemble("  ", ((name if n == 0 else "").ljust(label), "dim"), line)


_CHART_ROWS, _CHART_COLUMNS, _CHART_LABEL = 12, 64, 12


def _chart(chart: Chart) -> Iterator[Text]:
    """The series that have a glyph, as characters on a grid."""
    series = [one for one in chart.series if one.glyph]
    points = [point for one in series for point in one.points]
    if not points:
        return
    across = _Scale([x for x, _ in points], _CHART_COLUMNS, chart.x.logarithmic)
    upward = _Scale([y for _, y in points], _CHART_ROWS, chart.y.logarithmic)
    grid = [[" "] * _CHART_COLUMNS for _ in range(_CHART_ROWS)]
    for limit in chart.limits:
        if limit.axis == "x" and across.holds(limit.value):
            for row in grid:
                row[across.place(limit.value)] = "│"
        elif limit.axis == "y" and upward.holds(limit.value):
            grid[_CHART_ROWS - 1 - upward.place(limit.value)] = ["─"] * _CHART_COLUMNS
    for one in series:
        for x, y in one.points:
            grid[_CHART_ROWS - 1 - upward.place(y)][across.place(x)] = one.glyph
    ends = {0: chart.y.show(upward.high), _CHART_ROWS - 1: chart.y.show(upward.low)}
    for i, row in enumerate(grid):
        yield Text(f"{ends.get(i, ''):>{_CHART_LABEL}} ▕{''.join(row)}".rstrip(), no_wrap=True)
    margin = " " * (_CHART_LABEL + 2)
    low, high = chart.x.show(across.low), chart.x.show(across.high)
    yield Text(f"{margin}{low}{high.rjust(_CHART_COLUMNS - len(low))}", no_wrap=True)
    glyphs = {"x": "│", "y": "─"}
    keys = [f"{one.glyph} {printable(one.name)}" for one in series]
    keys += [f"{glyphs[limit.axis]} {limit.name}" for limit in chart.limits]
    yield Text(margin + "   ".join(keys), no_wrap=True)


class _Scale:
    """From a value to one of `cells` places."""

    def __init__(self, values: Sequence[float], cells: int, logarithmic: bool) -> None:
        self._logarithmic = logarithmic
        self.low, self.high, self.cells = min(values), max(values), cells

    def holds(self, value: float) -> bool:
        """Whether it can be drawn."""
        return self.low <= value <= self.high

    def place(self, value: float) -> int:
        """The cell of a value."""
        low, high, at = (math.log(x) if self._logarithmic else x for x in (self.low, self.high, value))
        return min(self.cells - 1, max(0, round((at - low) / ((high - low) or 1.0) * (self.cells - 1))))
