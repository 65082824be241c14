"""An overcommitted fleet as one HTML file that needs nothing else: figures over overcommitment, and the table."""

from collections.abc import Callable
from html import escape
from pathlib import Path

from stallwise.cluster.deflation.overcommitment import Overcommitted, Row, verdict
from stallwise.report.document import document, write
from stallwise.report.markup import Cell, number, section, table
from stallwise.report.markup import Row as Cells
from stallwise.report.overcommit import COLUMNS, REVENUE
from stallwise.report.simulate_plots import STYLE, Line, chart, legend
from stallwise.report.text import show_percent

_CHARTS: tuple[tuple[str, str, Callable[[Row], float]], ...] = (
    ("Failures", "Part of all machines that were refused or preempted", lambda row: row.figures.failure),
    ("Throughput loss", "Use of low-priority machines above what they held", lambda row: row.figures.loss),
    ("Work not served", "Use low-priority machines wanted and did not get", lambda row: row.figures.unserved),
    ("Revenue, static price", "Revenue of low priority per host", lambda row: row.increase("static")),
    ("Revenue, price by priority", "Revenue of low priority per host", lambda row: row.increase("priority")),
    ("Revenue, price of what is held", "Revenue of low priority per host", lambda row: row.increase("allocation")),
)


def write_page(found: Overcommitted, path: Path) -> Path:
    """Write the page to `path` and return it."""
    return write(page(found), path)


def page(found: Overcommitted) -> str:
    """The whole document: no script, nothing from elsewhere."""
    made = [(name, f"chart-{i}", _chart(found, i)) for i, (name, *_) in enumerate(_CHARTS)]
    made.append(("All figures", "table", _table(found)))
    made.append(("What the figures mean", "meaning", _meaning()))
    made.append(("Notes", "notes", f"<ul>{''.join(f'<li>{escape(one)}</li>' for one in (*found.notes, REVENUE))}</ul>"))
    links = "".join(f'<a href="#overcommit-{key}">{escape(name)}</a>' for name, key, _ in made)
    body = "".join(section(name, drawn, f"overcommit-{key}") for name, key, drawn in made)
    title = f"{found.source}: more machines than hosts hold"
    said = verdict(found)
    header = (
        f'<header><h1>{escape(title)}</h1><p class="dim">{found.machines:,} machines, {found.low:,} of low priority · '
        f"{escape(found.format)} · {found.whole:,} hosts ({escape(found.fleet)}) hold everybody</p>"
        f'<nav aria-label="Sections">{links}</nav>'
        + (f'<div class="verdict compute"><p>{escape(said)}</p></div>' if said else "")
        + "</header>\n"
    )
    return document(title, f'<article class="stallwise">{header}{body}</article>', STYLE)


def _chart(found: Overcommitted, place: int) -> str:
    name, words, value = _CHARTS[place]
    lines = [
        Line(way, i, [row.overcommitment for row in found.of(way)], [value(row) for row in found.of(way)])
        for i, way in enumerate(found.ways)
    ]
    most = max((max(line.y, default=0.0) for line in lines), default=0.0)
    last = "; ".join(f"{line.name} {show_percent(line.y[-1])}" for line in lines)
    told = f"{words}, over overcommitment. At {show_percent(lines[0].x[-1])}: {last}."
    drawn = chart(f"overcommit-{place}", name, told, lines, show_x=show_percent, show_y=show_percent, most_y=most)
    return legend(found.ways) + drawn


def _table(found: Overcommitted) -> str:
    heads: list[str | Cell] = [
        "rule", Cell("overcommitted", "n"), Cell("hosts", "n"), *(Cell(heading, "n") for heading, *_ in COLUMNS),
    ]  # fmt: skip
    rows: list[Cells] = [
        [
            row.way,
            number(show_percent(row.overcommitment)),
            number(f"{row.hosts:,}"),
            *(number(show_percent(value(row))) for _, value, _, _ in COLUMNS),
        ]
        for row in found.rows
    ]
    return table("Every simulation", heads, rows)


def _meaning() -> str:
    rows = [[heading, said] for heading, _, _, said in COLUMNS]
    return table("Columns", ["column", "says"], rows)
