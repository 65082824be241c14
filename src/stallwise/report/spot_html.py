"""A plan on spot machines as one HTML file that needs nothing else, in the looks of the profile's page."""

import math
from html import escape
from pathlib import Path

from stallwise.report.document import document, write
from stallwise.report.markup import Cell, Row, number, section, table
from stallwise.report.spot_plan import (
    facts,
    show_fleet,
    show_interval,
    show_saved_s,
    show_saved_usd,
    show_time,
    show_usd,
)
from stallwise.report.text import show_percent, show_seconds
from stallwise.spot.plan.outlook import SURE, Plan, Result

_WIDTH, _HEIGHT = 760, 240
_LEFT, _RIGHT, _TOP, _FLOOR = 56, 744, 16, 200
_STYLE = """
.stallwise svg .line { fill: none; stroke: var(--network); stroke-width: 2; }
.stallwise svg .band { fill: var(--network); opacity: .18; }
"""


def write_page(found: Plan, path: Path) -> Path:
    """Write the page to `path` and return it."""
    return write(page(found), path)


def page(found: Plan) -> str:
    """The whole document: no script, nothing from elsewhere."""
    made = (
        ("When it is finished", "finish", _distribution(found, "finish")),
        ("What it costs", "cost", _distribution(found, "cost")),
        ("How often to save", "interval", _interval(found)),
        ("What each lever is worth", "levers", _levers(found)),
        ("Taken for granted", "assumed", _list(found.assumptions)),
    )
    links = "".join(f'<a href="#spot-{key}">{escape(name)}</a>' for name, key, _ in made)
    body = "".join(section(name, drawn, f"spot-{key}") for name, key, drawn in made)
    nav = f'<nav aria-label="Sections">{links}</nav>'
    title = f"{found.question.name}: plan on spot"
    return document(title, f'<article class="stallwise">{_heading(found, title, nav)}{body}</article>', _STYLE)


def _heading(found: Plan, title: str, nav: str) -> str:
    kind = "compute" if found.result.within >= SURE else "fetch"
    told = dict(facts(found))
    return (
        f'<header><h1>{escape(title)}</h1><p class="dim">{escape(show_fleet(found))} · {escape(found.method)}</p>{nav}'
        f'{_tiles(found)}<div class="verdict {kind}"><p><strong>Do:</strong> {escape(found.verdict)}</p>'
        f"<p><strong>Losses:</strong> {escape(told['losses'])}</p>"
        f"{_also(told)}<p><strong>Closed form:</strong> {escape(told['closed form'])}</p></div></header>\n"
    )


def _also(told: dict[str, str]) -> str:
    """Zone, price and reuse, where the plan says something of them."""
    named = [(name, told[name]) for name in ("zone", "price", "reuse") if name in told]
    return "".join(f"<p><strong>{name.capitalize()}:</strong> {escape(said)}</p>" for name, said in named)


def _tiles(found: Plan) -> str:
    asked, result = found.question, found.result
    tiles = [
        (
            "finish, median",
            show_time(result.finish_s.median),
            _range(result.finish_s.low, result.finish_s.high, show_time),
        ),
        ("cost, median", show_usd(result.cost_usd.median), _range(result.cost_usd.low, result.cost_usd.high, show_usd)),
        ("on-demand", show_usd(found.on_demand.cost_usd.mean), show_time(found.on_demand.finish_s.mean)),
    ]
    if asked.deadline_s is not None and result.in_time is not None:
        tiles.append(("in time", show_percent(result.in_time), f"within {show_time(asked.deadline_s)}"))
    if asked.budget_usd is not None and result.in_budget is not None:
        tiles.append(("in budget", show_percent(result.in_budget), f"up to {show_usd(asked.budget_usd)}"))
    made = "".join(
        f'<div class="tile"><dt>{escape(name)}</dt><dd><strong>{escape(value)}</strong>{escape(more)}</dd></div>'
        for name, value, more in tiles
    )
    return f'<dl class="tiles">{made}</dl>'


def _range(low: float, high: float, show: object) -> str:
    return f"80 %: {show(low)} to {show(high)}"  # type: ignore[operator]


def _distribution(found: Plan, what: str) -> str:
    """The part of replays that are done by a time, or stay within a cost."""
    times = what == "finish"
    points = [pair for pair in (found.finish_quantiles if times else found.cost_quantiles) if math.isfinite(pair[1])]
    limit = found.question.deadline_s if times else found.question.budget_usd
    if len(points) < 2:
        return "<p>The job does not finish in the replays.</p>"
    values = [value for _, value in points] + ([limit] if limit is not None else [])
    low, high = min(values), max(values)
    span = high - low or max(high, 1.0)

    def x(value: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (value - low) / span

    def y(level: float) -> float:
        return _FLOOR - (_FLOOR - _TOP) * level

    show = show_time if times else show_usd
    line = " ".join(f"{x(value):.1f},{y(level):.1f}" for level, value in points)
    drawn = [
        f'<polyline class="line" points="{line}"></polyline>',
        f'<line class="axis" x1="{_LEFT}" y1="{_FLOOR}" x2="{_RIGHT}" y2="{_FLOOR}"></line>',
        f'<line class="axis" x1="{_LEFT}" y1="{_TOP}" x2="{_LEFT}" y2="{_FLOOR}"></line>',
        *(
            f'<text x="{_LEFT - 8}" y="{y(level) + 4:.1f}" text-anchor="end">{show_percent(level)}</text>'
            for level in (0.0, 0.5, 1.0)
        ),
        f'<text x="{_LEFT}" y="{_FLOOR + 20}">{escape(show(low))}</text>',
        f'<text x="{_RIGHT}" y="{_FLOOR + 20}" text-anchor="end">{escape(show(high))}</text>',
    ]
    if limit is not None:
        word = "deadline" if times else "budget"
        drawn.append(f'<line class="limit" x1="{x(limit):.1f}" y1="{_TOP}" x2="{x(limit):.1f}" y2="{_FLOOR}"></line>')
        drawn.append(f'<text x="{x(limit) - 6:.1f}" y="{_TOP + 10}" text-anchor="end">{word}</text>')
    half = next((value for level, value in points if level >= 0.5), points[-1][1])
    words = f"Half of the replays {'are finished by' if times else 'cost up to'} {show(half)}."
    return (
        f'<svg class="picture" role="img" aria-labelledby="spot-{what}-title spot-{what}-words" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}"><title id="spot-{what}-title">Part of replays</title>'
        f'<desc id="spot-{what}-words">{escape(words)}</desc>{"".join(drawn)}</svg><p>{escape(words)}</p>'
    )


def _interval(found: Plan) -> str:
    told = f"<p>{escape(show_interval(found.interval))}.</p>"
    if not found.interval.tried:
        return told
    rows: list[Row] = [[show_seconds(at), number(show_time(mean))] for at, mean in found.interval.tried]
    return told + table(
        "Mean finish with checkpoints so far apart.", ["work between checkpoints", number("mean finish")], rows
    )


def _levers(found: Plan) -> str:
    heads: Row = ["lever", "", *(number(name) for name in ("finish", "cost", "time saved", "saved", "in limits"))]
    rows: list[Row] = [["as planned", "", *_means(found.result), number(""), number(""), _within(found.result)]]
    rows += [
        [
            lever.name,
            Cell(lever.said, "words"),
            *_means(lever.result),
            number(show_saved_s(lever)),
            number(show_saved_usd(lever)),
            _within(lever.result),
        ]
        for lever in found.levers
    ]
    return table("Each alone, the rest as planned; mean finish and cost.", heads, rows)


def _means(result: Result) -> tuple[Cell, Cell]:
    return number(show_time(result.finish_s.mean)), number(show_usd(result.cost_usd.mean))


def _within(result: Result) -> Cell:
    return number(show_percent(result.within))


def _list(sentences: tuple[str, ...]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in sentences)}</ul>"
