"""What is shown of a result, before it is drawn: heading, facts, tables, charts and notes.

A view holds text and numbers already in words, and no markup. `terminal` draws it with rich, `html` as a page or for a
notebook.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Only = Literal["", "terminal", "page"]
"""Where a part is drawn; everywhere if empty."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a line with a tone: strong, dim, good, bad, warn, or the name of a part of a step."""

    text: str
    tone: str = ""


Line = str | Span | tuple[str | Span, ...]
"""One line of text; pieces may have tones."""


def spans(line: Line) -> tuple[Span, ...]:
    """The pieces of a line."""
    pieces = line if isinstance(line, tuple) else (line,)
    return tuple(piece if isinstance(piece, Span) else Span(piece) for piece in pieces)


def text_of(line: Line) -> str:
    """A line without tones."""
    return "".join(span.text for span in spans(line))


class BarPiece(NamedTuple):
    """A coloured part of a bar, as fractions of its width."""

    start: float
    width: float
    kind: str


@dataclass(frozen=True, slots=True)
class Bar:
    """Pieces of a bar, an interval over them, a dashed limit; `cut` where the bar is cut off."""

    pieces: tuple[BarPiece, ...] = ()
    whisker: tuple[float, float] | None = None
    limit: float | None = None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell. `note` stands below its text and `aside` after it, both only on a page; it spans `span` columns."""

    text: Line = ""
    tone: str = ""
    note: str = ""
    aside: str = ""
    swatch: str = ""
    span: int = 1
    bar: Bar | None = None


@dataclass(frozen=True, slots=True)
class PartColumn:
    """A column of a table.

    Where the screen is too narrow the column with the highest `priority` goes first; one of priority 0 stays. The text
    of a column with `wrap` may continue on the next line. A column with `bar` characters holds bars.
    """

    name: str
    numeric: bool = False
    priority: int = 0
    wrap: bool = False
    bar: int = 0
    only: Only = ""
    kind: str = ""
    swatch: str = ""


def number(name: str, priority: int = 0, only: Only = "") -> PartColumn:
    """A column of numbers, to the right."""
    return PartColumn(name, numeric=True, priority=priority, only=only)


def words(name: str, priority: int = 0) -> PartColumn:
    """A column of sentences that wrap."""
    return PartColumn(name, priority=priority, wrap=True, kind="words")


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of a row, in one tone."""

    cells: tuple[Cell | Line, ...]
    tone: str = ""
    only: Only = ""


@dataclass(frozen=True, slots=True)
class TablePart:
    """Rows under columns. `split` continues a table that is too wide below itself instead of leaving columns out.

    A `headless` table has its title and the names of its columns only on a page. `caption` is the title on a page of a
    table that has none in the terminal, where it follows its heading.
    """

    columns: tuple[PartColumn, ...]
    rows: tuple[Row, ...]
    title: str = ""
    note: str = ""
    caption: str = ""
    foot: Row | None = None
    split: bool = False
    headless: bool = False
    only: Only = ""


def table(
    columns: Iterable[PartColumn | str],
    rows: Iterable[Row | Iterable[Cell | Line]],
    title: str = "",
    note: str = "",
    *,
    caption: str = "",
    foot: Row | None = None,
    split: bool = False,
    headless: bool = False,
    only: Only = "",
) -> TablePart:
    """A table from what is at hand: names as columns, any iterable of cells as a row."""
    return TablePart(
        tuple(PartColumn(one) if isinstance(one, str) else one for one in columns),
        tuple(row if isinstance(row, Row) else Row(tuple(row)) for row in rows),
        title,
        note,
        caption,
        foot,
        split,
        headless,
        only,
    )


@dataclass(frozen=True, slots=True)
class Facts:
    """Labels and sentences. On a page a table under `title`, or paragraphs; with `box`, in a box of that colour."""

    rows: tuple[tuple[str, Line], ...]
    title: str = ""
    box: str | None = None
    label_width: int = 0
    only: Only = ""


def facts(
    rows: Iterable[tuple[str, Line]], title: str = "", *, box: str | None = None, label_width: int = 0, only: Only = ""
) -> Facts:
    """Facts from any iterable; consecutive rows with the same label show it once."""
    shown: list[tuple[str, Line]] = []
    last = ""
    for label, line in rows:
        shown.append(("" if label == last else label, line))
        last = label or last
    return Facts(tuple(shown), title, box, label_width, only)


@dataclass(frozen=True, slots=True)
class Notes:
    """Sentences under one label; a list on a page."""

    label: str
    sentences: tuple[str, ...]
    only: Only = ""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A line of its own."""

    line: Line
    tone: str = ""
    only: Only = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """The main figures of a page: (name, value, the line below it). A terminal has them in its facts."""

    tiles: tuple[tuple[str, str, str], ...]
    only: Only = "page"


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a pipeline: its name, figure, bar, and small lines below."""

    name: str
    figure: str = ""
    bar: Bar | None = None
    small: tuple[str, ...] = ()
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages with arrows between them, on a page."""

    stages: tuple[Stage, ...]
    only: Only = "page"


@dataclass(frozen=True, slots=True)
class Axis:
    """How values of an axis are written; `low` and `high` are its ends where the data does not say them."""

    show: Callable[[float], str]
    label: str = ""
    logarithmic: bool = False
    low: float | None = None
    high: float | None = None
    ticks: tuple[float, ...] = ()


Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Series:
    """Points joined by a line, or dots of a `radius`. `kind` gives the colour; `glyph` draws it in a terminal too."""

    name: str
    points: Points
    kind: str = "line"
    dash: str = ""
    radius: float = 0.0
    titles: tuple[str, ...] = ()
    glyph: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """A dashed line at a value of one axis."""

    axis: Literal["x", "y"]
    value: float
    name: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Series over two axes, with a description in words for those who do not see it."""

    key: str
    title: str
    description: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    bands: tuple[tuple[Points, Points], ...] = ()
    limits: tuple[Limit, ...] = ()
    height: float = 260.0
    legend: bool = False
    caption: str = ""
    only: Only = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing that `charts` has made, for pages."""

    svg: str
    before: str = ""
    after: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    only: Only = "page"


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to copy, with a label."""

    label: str
    lines: tuple[str, ...]
    only: Only = ""


Part = TablePart | Facts | Notes | Paragraph | Figures | Pipeline | Chart | Picture | Code


@dataclass(frozen=True, slots=True)
class Section:
    """Parts under a heading; on a page `key` is where links lead. Without parts it is left out."""

    title: str
    key: str
    parts: tuple[Part, ...]
    columns: bool = False


def section(title: str, key: str, *parts: Part | None) -> Section:
    """A section of the parts that are there and say something."""
    return Section(title, key, tuple(part for part in parts if part is not None and not _is_empty(part)))


def _is_empty(part: Part) -> bool:
    if isinstance(part, Facts | TablePart):
        return not part.rows
    return isinstance(part, Notes) and not part.sentences


@dataclass(frozen=True, slots=True)
class View:
    """All that is shown of one result.

    `intro` stands under the heading, on a page in its header. `key` begins the ids of a page. The parts of sections
    follow each other in a terminal, without the headings of the sections.
    """

    title: str
    aside: Line = ""
    intro: tuple[Part, ...] = ()
    sections: tuple[Section, ...] = ()
    key: str = "view"
    subtitle: str = ""
    page_title: str = ""
    warning: str = ""
    links: bool = True
    rule: bool = True

    def parts(self) -> tuple[Part, ...]:
        """Every part in order."""
        return (*self.intro, *(part for one in self.sections for part in one.parts))


def view(title: str, *parts: Part | None, aside: Line = "", rule: bool = True, warning: str = "") -> View:
    """A view without sections of its own."""
    return View(title, aside, tuple(part for part in parts if part is not None), rule=rule, warning=warning)
