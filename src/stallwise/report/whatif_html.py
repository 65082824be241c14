"""A what-if as one HTML file that needs nothing else, in the looks of the profile's page."""

import math
from collections.abc import Iterable
from html import escape
from pathlib import Path

from stallwise.model.whatif import Answer
from stallwise.record.outlook import Outlook
from stallwise.report.document import document, write
from stallwise.report.markup import Cell, Raw, Row, number, section, table
from stallwise.report.svg import Piece, bar
from stallwise.report.text import show_number, show_percent, show_seconds
from stallwise.report.timeline_svg import STYLE, timed
from stallwise.report.whatif import (
    PARTS,
    parts_s,
    show_baseline,
    show_change,
    show_fleet,
    show_gain_bounds,
    show_interval,
    show_link,
    show_share,
)

# Parts in the colours of the profile's.
_KINDS = {"compute": "compute", "exchange": "network", "copy": "copy", "data": "prep"}
_WIDTH, _HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _FLOOR = 56, 744, 16, 262
_STYLE = (
    STYLE
    + """
.stallwise svg .band { fill: var(--network); opacity: .18; }
.stallwise svg .line { fill: none; stroke: var(--network); stroke-width: 2; }
.stallwise svg .ideal { fill: none; stroke: var(--dim); stroke-width: 1; stroke-dasharray: 4 4; }
.stallwise svg .asked { fill: none; stroke: var(--ink); stroke-width: 2; }
"""
)


def write_page(found: Outlook, path: Path) -> Path:
    """Write the page to `path` and return it."""
    return write(page(found), path)


def page(found: Outlook) -> str:
    """The whole document: no script, nothing from elsewhere."""
    made = (
        ("Where the predicted step goes", "step", _split(found.answer)),
        ("A step over time", "time", timed(found.schedule, "whatif-over-time") if found.schedule.slots else ""),
        ("More GPUs", "curve", _curve(found)),
        ("Links", "links", _list(show_link(link) for link in found.links)),
        ("Taken for granted", "assumed", _list(found.assumptions)),
    )
    shown = [(name, f"whatif-{key}", body) for name, key, body in made if body]
    links = "".join(f'<a href="#{key}">{escape(name)}</a>' for name, key, _ in shown)
    body = "".join(section(name, body, key) for name, key, body in shown)
    nav = f'<nav aria-label="Sections">{links}</nav>'
    article = f'<article class="stallwise">{_heading(found, nav)}{body}</article>'
    return document(f"{found.name}: what if", article, _STYLE)


def _heading(found: Outlook, nav: str) -> str:
    changed = "; ".join(show_change(change) for change in found.changed) or "nothing is changed"
    kind = _KINDS[found.answer.binds]
    return (
        f'<header><h1>{escape(found.name)}: what if</h1><p class="dim">{escape(show_fleet(found))} · predicted from '
        f"{escape(found.source)}</p>{nav}{_tiles(found)}"
        f'<div class="verdict {kind}"><p><strong>Changed:</strong> {escape(changed)}</p>'
        f"<p><strong>As it is:</strong> {escape(show_baseline(found))}</p>"
        f"<p><strong>Binds:</strong> {escape(found.answer.binds)}, {escape(show_share(found.answer))}. Critical path: "
        f"{escape(found.answer.binding)}</p></div></header>\n"
    )


def _tiles(found: Outlook) -> str:
    answer = found.answer
    speed = "unknown" if answer.samples_per_s is None else show_number(answer.samples_per_s)
    faster = "unknown" if found.speedup is None else f"{found.speedup:.3g} ×"
    tiles = (
        ("predicted step", show_seconds(answer.step_s), show_interval(answer)),
        ("predicted speed", speed, "samples/s"),
        ("against as it is", faster, show_gain_bounds(found)),
        ("efficiency", show_percent(answer.efficiency), "of so many single GPUs"),
    )
    made = "".join(
        f'<div class="tile"><dt>{escape(name)}</dt><dd><strong>{escape(value)}</strong>{escape(more)}</dd></div>'
        for name, value, more in tiles
    )
    return f'<dl class="tiles">{made}</dl>'


def _split(answer: Answer) -> str:
    rows: list[Row] = []
    start_s = 0.0
    for name, seconds in parts_s(answer).items():
        pieces = [Piece(start_s / answer.step_s, seconds / answer.step_s, _KINDS[name])] if seconds else []
        rows.append(
            [
                Cell(name, small=PARTS[name], swatch=_KINDS[name]),
                Cell(Raw(bar(pieces)), "chart"),
                number(show_seconds(seconds)),
                number(show_percent(seconds / answer.step_s)),
            ]
        )
        start_s += seconds
    foot: Row = ["step", Cell("", "chart"), number(show_seconds(answer.step_s)), number("100 %")]
    heads: Row = ["part", Cell("", "chart"), number("predicted"), number("of the step")]
    return table("Each part begins where the one above ends; together they are the step.", heads, rows, foot)


def _curve(found: Outlook) -> str:
    ends = f"<p>{escape(found.curve_ends)}</p>" if found.curve_ends else ""
    if not found.curve:
        return ends
    rows: list[Row] = [
        [
            f"{point.gpus:,}",
            number(show_seconds(point.step_s)),
            Cell(show_interval(point), "n dim"),
            number("unknown" if point.samples_per_s is None else show_number(point.samples_per_s)),
            number(show_percent(point.efficiency)),
            point.binds,
        ]
        for point in found.curve
    ]
    heads: Row = ["GPUs", *(number(name) for name in ("step", "interval", "samples/s", "efficiency")), "binds"]
    drawn = table("Predicted; every GPU keeps its batch.", heads, rows)
    return f"{_picture(found)}{ends}{drawn}"


def _picture(found: Outlook) -> str:
    """How many single GPUs all of them are worth, both axes by powers of two; dashed: no loss."""
    points = [(point.gpus or 1, _worth(point, point.step_s), point) for point in found.curve]
    most = max(gpus for gpus, _, _ in points)
    line = " ".join(_at(gpus, worth, most) for gpus, worth, _ in points)
    upper = [_at(gpus, _worth(point, point.low_s), most) for gpus, _, point in points]
    lower = [_at(gpus, _worth(point, point.high_s), most) for gpus, _, point in points]
    drawn = [
        f'<polygon class="band" points="{" ".join([*upper, *reversed(lower)])}"></polygon>',
        f'<polyline class="ideal" points="{_at(1, 1, most)} {_at(most, most, most)}"></polyline>',
        f'<polyline class="line" points="{line}"></polyline>',
        *(
            f'<circle class="asked" cx="{_x(gpus, most):.1f}" cy="{_y(worth, most):.1f}" r="6"></circle>'
            for gpus, worth, _ in points
            if gpus == found.answer.gpus
        ),
        *_axes(most),
    ]
    last = points[-1]
    words = (
        f"{last[0]:,} GPUs do as much as {show_number(last[1])} single ones, "
        f"{show_percent(last[2].efficiency)} of what no loss would give."
    )
    return (
        '<svg class="picture" role="img" aria-labelledby="whatif-picture whatif-words" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        '<title id="whatif-picture">Speed over numbers of GPUs</title>'
        f'<desc id="whatif-words">{escape(words)}</desc>{"".join(drawn)}</svg>'
    )


def _worth(point: Answer, step_s: float) -> float:
    """How many single GPUs would do as much at that step; between half a GPU and all of them is drawn."""
    gpus = point.gpus or 1
    return min(float(gpus), max(0.5, gpus * point.efficiency * point.step_s / step_s)) if step_s else float(gpus)


def _axes(most: int) -> list[str]:
    drawn = [
        f'<line class="axis" x1="{_LEFT}" y1="{_FLOOR}" x2="{_RIGHT}" y2="{_FLOOR}"></line>',
        f'<line class="axis" x1="{_LEFT}" y1="{_TOP}" x2="{_LEFT}" y2="{_FLOOR}"></line>',
        f'<text x="{_RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">GPUs</text>',
        f'<text x="{_LEFT + 8}" y="{_TOP + 4}">worth so many single GPUs</text>',
    ]
    for power in range(0, int(math.log2(most)) + 1, 2):
        count = 2**power
        drawn.append(f'<text x="{_x(count, most):.1f}" y="{_FLOOR + 18}" text-anchor="middle">{count:,}</text>')
        drawn.append(f'<text x="{_LEFT - 8}" y="{_y(count, most) + 4:.1f}" text-anchor="end">{count:,}</text>')
    return drawn


def _at(gpus: float, worth: float, most: int) -> str:
    return f"{_x(gpus, most):.1f},{_y(worth, most):.1f}"


def _x(gpus: float, most: int) -> float:
    return _LEFT + (_RIGHT - _LEFT) * math.log2(gpus) / max(1.0, math.log2(most))


def _y(worth: float, most: int) -> float:
    # From half a GPU up: a step of several GPUs can be slower than twice that of one.
    return _FLOOR - (_FLOOR - _TOP) * (math.log2(worth) + 1) / (max(1.0, math.log2(most)) + 1)


def _list(sentences: Iterable[str]) -> str:
    items = list(sentences)
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>" if items else ""
