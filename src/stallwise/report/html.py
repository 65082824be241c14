"""The HTML renderer: a view as a self-contained page, or as an article in a notebook.

The markup is in `templates/`, escaped by Jinja2; only `charts` makes markup of its own. A page has no script and needs
no other file. Style sheets lie in `css/`.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from stallwise.errors import InputError
from stallwise.report.charts import bar_svg, chart_svg, legend_svg
from stallwise.report.view import Cell, Chart, Part, PartColumn, Row, TablePart, View, spans, text_of

_SHEETS = ("base", "charts")


def page(view: View) -> str:
    """A view as one HTML document."""
    style = "".join(stylesheet(name) for name in ("body", *_SHEETS))
    article = _article(view, links=view.links)
    return _environment().get_template("page.html.j2").render(view=view, style=style, article=article)


def notebook(view: View) -> str:
    """A view as an article that keeps the look of the notebook around it; without links, whose ids could be taken."""
    style = "".join(map(stylesheet, _SHEETS))
    return f'<style>{style}</style><article class="stallwise">{_article(view, links=False)}</article>'


@functools.cache
def stylesheet(name: str) -> str:
    """The text of a file of `css/`."""
    return (Path(__file__).with_name("css") / f"{name}.css").read_text(encoding="utf-8")


def write_html(page: str, path: Path) -> Path:
    """Write the page to `path` and return it."""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"The page cannot be written to {path} ({error.strerror}).", fields=("html",)) from None
    return path


@functools.cache
def _environment() -> Environment:
    loader = FileSystemLoader(Path(__file__).with_name("templates"))
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.globals |= {"spans": spans, "text_of": text_of, "bar": bar_svg, "svg": _svg, "render": render}
    return environment


def _article(view: View, *, links: bool) -> str:
    sections = [one for one in view.sections if any(part.only != "terminal" for part in one.parts)]
    return _environment().get_template("article.html.j2").render(view=view, sections=sections, links=links)


def render(part: Part) -> str:
    """The markup of a part, by the macro with the name of its class."""
    macros = _environment().get_template("parts.html.j2").module
    macro = getattr(macros, type(part).__name__)
    return str(macro(part, _grid(part)) if isinstance(part, TablePart) else macro(part))


def _svg(chart: Chart) -> str:
    legend = legend_svg(chart.series) if chart.legend else ""
    return legend + chart_svg(chart)


_Cells = list[tuple[Cell, str]]


@dataclass(frozen=True, slots=True)
class _Grid:
    """A table as its template takes it: each cell with its classes."""

    caption: str
    heads: list[tuple[str, str, str]]
    rows: list[_Cells]
    foot: _Cells


def _grid(table: TablePart) -> _Grid:
    columns = [column for column in table.columns if column.only != "terminal"]
    heads = [(column.name, _classes(column, head=True), column.swatch) for column in columns]
    return _Grid(
        table.title or table.caption,
        heads if any(name for name, _, _ in heads) else [],
        [_cells(table, row) for row in table.rows if row.only != "terminal"],
        _cells(table, table.foot) if table.foot else [],
    )


def _cells(table: TablePart, row: Row) -> _Cells:
    cells: _Cells = []
    at = 0
    for one in row.cells:
        cell = one if isinstance(one, Cell) else Cell(one)
        column = table.columns[at]
        at += cell.span
        if column.only == "terminal":
            continue
        tones = (cell.tone, row.tone if not cell.tone else "")
        kind = "words" if cell.span > 1 else _classes(column)
        cells.append((cell, " ".join(filter(None, (kind, *tones)))))
    return cells


def _classes(column: PartColumn, *, head: bool = False) -> str:
    kinds: Iterable[str] = ("n" if column.numeric else "", "chart" if column.bar else "", "" if head else column.kind)
    return " ".join(filter(None, kinds))
