"""Overcommitted hosts: their view, and JSON."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from stallwise.overcommit.comparison import OvercommitComparison, OvercommitRow, verdict
from stallwise.overcommit.simulator import WAYS_TO_CHARGE
from stallwise.report.charts import line_of
from stallwise.report.format import plural, show_percent
from stallwise.report.html import page as html_page
from stallwise.report.json import schema
from stallwise.report.view import (
    Axis,
    Cell,
    Chart,
    Line,
    Notes,
    PartColumn,
    Row,
    Section,
    Span,
    TablePart,
    View,
    facts,
    number,
    section,
    table,
)

# Heading, the figure, whether more is better, and what it says.
COLUMNS: tuple[tuple[str, Callable[[OvercommitRow], float], bool, str], ...] = (
    ("failed", lambda row: row.figures.failure, False, "of all machines: refused, or preempted before their end"),
    ("refused", lambda row: row.figures.refused_on_demand, False, "of the machines on demand"),
    ("preempted", lambda row: row.figures.preempted_low, False, "of the machines of low priority"),
    ("loss", lambda row: row.figures.loss, False, "of the use low-priority machines wanted while they ran"),
    ("not served", lambda row: row.figures.unserved, False, "of all the use they wanted until their own end"),
    ("static", lambda row: row.increase("static"), True, "revenue of low priority per host at 0.2 of the price"),
    ("priority", lambda row: row.increase("priority"), True, "the same at their priority times the price"),
    ("allocation", lambda row: row.increase("allocation"), True, "the same at the price of what they hold"),
)


def draw(comparison: OvercommitComparison) -> View:
    """Everything, overcommitment by overcommitment; charts over overcommitment on a page."""
    best = verdict(comparison)
    levels = dict.fromkeys(row.overcommitment for row in comparison.rows)
    return View(
        f"{comparison.source}: {comparison.machines:,} machines",
        comparison.format + (" · a partition per priority" if comparison.partitioned else ""),
        (
            facts(_facts(comparison), only="terminal"),
            *((facts([("", best)], box="compute", only="page"),) if best else ()),
        ),
        (
            *(_chart(comparison, place) for place in range(len(_CHARTS))),
            section("Figures", "figures", *(_figures(comparison.rows, level) for level in levels)),
            section("All figures", "table", _every_row(comparison)),
            section("What the figures mean", "meaning", _meaning()),
            section("Notes", "notes", Notes("notes", (*comparison.notes, REVENUE))),
        ),
        key="overcommit",
        page_title=f"{comparison.source}: more machines than hosts hold",
        subtitle=f"{comparison.machines:,} machines, {comparison.low:,} of low priority · {comparison.format} · "
        f"{comparison.whole:,} hosts ({comparison.fleet}) hold everybody",
    )


def page(comparison: OvercommitComparison) -> str:
    """The comparison as one self-contained HTML page."""
    return html_page(draw(comparison))


def show_level(row: OvercommitRow) -> str:
    """61 % overcommitted: 27 hosts."""
    return f"{show_percent(row.overcommitment)} overcommitted: {plural(row.hosts, 'host')}"


def _facts(comparison: OvercommitComparison) -> Iterator[tuple[str, Line]]:
    yield "hosts", f"{comparison.fleet}: {comparison.whole:,} hold everybody at full size"
    yield "low priority", f"{comparison.low:,} machines may be shrunk or preempted"
    best = verdict(comparison)
    if best:
        yield "answer", Span(best, "strong")


def _figures(every: tuple[OvercommitRow, ...], level: float) -> TablePart:
    """The rules side by side at one overcommitment, the best figures marked."""
    rows = [row for row in every if row.overcommitment == level]
    best = [(max if more else min)(value(row) for row in rows) for _, value, more, _ in COLUMNS]
    shown = (
        Row(
            (
                row.way,
                *(
                    Cell(show_percent(value(row)), "best" if len(rows) > 1 and value(row) == top else "")
                    for (_, value, _, _), top in zip(COLUMNS, best, strict=True)
                ),
            )
        )
        for row in rows
    )
    columns = (PartColumn("rule"), *(number(name) for name, *_ in COLUMNS))
    return table(columns, shown, show_level(rows[0]), split=True, only="terminal")


REVENUE = (
    "Revenue (static, priority, allocation) is what low-priority machines bring per host, over what machines on demand "
    "bring per host of the whole fleet."
)


_CHARTS: tuple[tuple[str, str, Callable[[OvercommitRow], float]], ...] = (
    ("Failures", "Fraction of all machines that were refused or preempted", lambda row: row.figures.failure),
    ("Throughput loss", "Use of low-priority machines above what they held", lambda row: row.figures.loss),
    ("Work not served", "Use low-priority machines wanted and did not get", lambda row: row.figures.unserved),
    ("Revenue, static price", "Revenue of low priority per host", lambda row: row.increase("static")),
    ("Revenue, price by priority", "Revenue of low priority per host", lambda row: row.increase("priority")),
    ("Revenue, price of what is held", "Revenue of low priority per host", lambda row: row.increase("allocation")),
)


def _chart(comparison: OvercommitComparison, place: int) -> Section:
    name, sentence, value = _CHARTS[place]
    lines = tuple(
        line_of(way, i, [(row.overcommitment, value(row)) for row in comparison.of(way)])
        for i, way in enumerate(comparison.ways)
    )
    most = max((y for line in lines for _, y in line.points), default=0.0)
    last = "; ".join(f"{line.name} {show_percent(line.points[-1][1])}" for line in lines)
    description = f"{sentence}, over overcommitment. At {show_percent(lines[0].points[-1][0])}: {last}."
    axes = Axis(show_percent), Axis(show_percent, low=0.0, high=most or 1.0)
    chart = Chart(f"overcommit-{place}-chart", name, description, *axes, lines, legend=True, only="page")
    return section(name, f"chart-{place}", chart)


def _every_row(comparison: OvercommitComparison) -> TablePart:
    columns = (PartColumn("rule"), number("overcommitted"), number("hosts"), *(number(name) for name, *_ in COLUMNS))
    rows = (
        Row(
            (
                row.way,
                show_percent(row.overcommitment),
                f"{row.hosts:,}",
                *(show_percent(value(row)) for _, value, _, _ in COLUMNS),
            )
        )
        for row in comparison.rows
    )
    return table(columns, rows, "Every simulation", only="page")


def _meaning() -> TablePart:
    rows = ((name, meaning) for name, _, _, meaning in COLUMNS)
    return table((PartColumn("column"), PartColumn("says", wrap=True)), rows, "Columns", only="page")


def document(comparison: OvercommitComparison) -> dict[str, Any]:
    """`rows` holds one row per simulation."""
    return {
        **schema("overcommit"),
        "trace": comparison.source,
        "format": comparison.format,
        "machines": comparison.machines,
        "low_priority": comparison.low,
        "host": comparison.fleet,
        "whole_fleet_hosts": comparison.whole,
        "partitions": comparison.partitioned,
        "rows": [_row(row) for row in comparison.rows],
        "verdict": verdict(comparison),
        "notes": list(comparison.notes),
    }


def _row(row: OvercommitRow) -> dict[str, Any]:
    figures = asdict(row.figures)
    revenue = figures.pop("revenue")
    return {
        "rule": row.way,
        "overcommitment": row.overcommitment,
        **figures,
        "revenue": revenue,
        "revenue_increase": {price: row.increase(price) for price in WAYS_TO_CHARGE},
    }
