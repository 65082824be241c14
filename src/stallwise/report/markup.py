"""Pieces of HTML that every section of the page is made of. Text is escaped here; `Raw` is markup already."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from stallwise.record.profile import Profile


@dataclass(frozen=True, slots=True)
class Raw:
    """Markup that goes in as it is."""

    markup: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table with its class and the columns it spans; `small` stands beneath its words, `aside` after."""

    words: str | Raw
    kind: str = ""
    span: int = 1
    small: str = ""
    aside: str = ""
    swatch: str = ""


Row = Iterable[str | Cell]


def number(words: str) -> Cell:
    """A cell of numbers."""
    return Cell(words, "n")


def section(heading: str, body: str, key: str) -> str:
    """A section with its heading, which links can reach."""
    return f'<section><h2 id="{escape(key)}">{escape(heading)}</h2>{body}</section>\n'


def table(caption: str, heads: Row | None, rows: Iterable[Row], foot: Row | None = None) -> str:
    """A table whose first column names the row. It scrolls by itself, also from the keyboard, where it is too wide."""
    head = ""
    if heads is not None:
        head = f"<thead><tr>{''.join(_head(cell) for cell in heads)}</tr></thead>"
    body = "".join(f"<tr>{_row(row)}</tr>" for row in rows)
    last = f"<tfoot><tr>{_row(foot)}</tr></tfoot>" if foot is not None else ""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption><span>{escape(caption)}</span></caption>{head}<tbody>{body}</tbody>{last}</table></div>"
    )


def key_of(profile: Profile, part: str) -> str:
    """An id that two profiles in one notebook do not share."""
    return f"stallwise-{re.sub(r'[^A-Za-z0-9-]', '-', profile.run_id)}-{part}"


def _head(cell: str | Cell) -> str:
    """A column over pictures has no name: an empty cell is no heading."""
    words = cell.words if isinstance(cell, Cell) else cell
    return _cell("th", cell, scope="col") if words else _cell("td", cell)


def _row(cells: Row) -> str:
    first, *rest = cells
    return _cell("th", first, scope="row") + "".join(_cell("td", cell) for cell in rest)


def _cell(tag: str, cell: str | Cell, *, scope: str | None = None) -> str:
    made = cell if isinstance(cell, Cell) else Cell(cell)
    where = f' scope="{scope}"' if scope else ""
    style = f' class="{made.kind}"' if made.kind else ""
    span = f' colspan="{made.span}"' if made.span > 1 else ""
    words = made.words.markup if isinstance(made.words, Raw) else escape(made.words)
    swatch = f'<span class="swatch {made.swatch}"></span>' if made.swatch else ""
    small = f"<small>{escape(made.small)}</small>" if made.small else ""
    aside = f' <span class="aside">{escape(made.aside)}</span>' if made.aside else ""
    return f"<{tag}{where}{style}{span}>{swatch}{words}{aside}{small}</{tag}>"
