"""The page of a recommendation: the answer, time against cost with the front, why the others lost."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from stallwise.cloud.options import Option
from stallwise.cloud.recommend import Point, Recommendation
from stallwise.report.document import document, write
from stallwise.report.markup import Cell, Row, number, section, table
from stallwise.report.recommend import pick_facts, show_age, show_home, show_usd_bounds, show_wish
from stallwise.report.text import show_number, show_percent, show_seconds

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _FLOOR = 64, 744, 24, 372

_STYLE = """
.stallwise svg .fleet { fill: var(--rate); opacity: .35; }
.stallwise svg .lost { fill: var(--copy); opacity: .5; }
.stallwise svg .front { fill: none; stroke: var(--compute); stroke-width: 2; }
.stallwise svg .edge { fill: var(--compute); }
.stallwise svg .pick { fill: var(--fetch); stroke: var(--paper); stroke-width: 2; }
.stallwise svg .grid { stroke: var(--line); stroke-width: 1; }
.stallwise svg text.name { fill: var(--ink); font-weight: 600; }
"""


def page(found: Recommendation) -> str:
    """The whole document."""
    sections = [("Time and cost", "picture", _picture(found)), ("The front", "front", _front(found.front, found.pick))]
    if found.neighbours:
        sections.append(("Why others lost", "lost", _lost(found)))
    sections.append(("Taken for granted", "assumed", _list([*found.warnings, *found.assumptions])))
    body = "".join(section(heading, made, f"recommend-{key}") for heading, key, made in sections if made)
    title = f"{found.subject.job.name}: what to rent"
    return document(title, f'<article class="stallwise">{_header(found)}{body}</article>', _STYLE)


def write_page(found: Recommendation, path: Path) -> Path:
    """Write the page and return where it is."""
    return write(page(found), path)


def _header(found: Recommendation) -> str:
    said = [found.verdict, *([found.impossible] if found.impossible else [])]
    lines = [("Now", show_home(found.home))]
    if found.home_better is not None:
        lines.append(("Now, with more workers", show_home(found.home_better)))
    if found.pick is not None:
        lines += [(name.capitalize(), words) for name, words in pick_facts(found, found.pick)]
    facts = "".join(f"<p><strong>{escape(name)}:</strong> {escape(words)}</p>" for name, words in lines)
    verdict = "".join(f"<p><strong>{escape(words)}</strong></p>" for words in said)
    return (
        f"<header><h1>{escape(found.subject.job.name)}: what to rent</h1>"
        f'<p class="dim">{escape(show_wish(found))} · prices {escape(show_age(found))}</p>'
        f'{_tiles(found)}<div class="verdict">{verdict}{facts}</div></header>\n'
    )


def _tiles(found: Recommendation) -> str:
    pick = found.pick
    if pick is None:
        return ""
    chance = "no limit" if not found.wish.limited else show_percent(pick.in_limits)
    tiles = (
        ("predicted time", show_seconds(pick.job_s), f"{show_seconds(pick.low_s)} to {show_seconds(pick.high_s)}"),
        ("predicted cost", f"${pick.usd:,.2f}", f"${pick.low_usd:,.2f} to ${pick.high_usd:,.2f}"),
        ("keeps the limits", chance, "probability" if found.wish.limited else ""),
        ("speed", show_number(pick.samples_per_s), "samples/s"),
    )
    made = "".join(
        f'<div class="tile"><dt>{escape(name)}</dt><dd><strong>{escape(value)}</strong>{escape(more)}</dd></div>'
        for name, value, more in tiles
    )
    return f'<dl class="tiles">{made}</dl>'


class _Axis:
    """Values to pixels by their logarithm."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self.low, self.high = min(values) * 0.9, max(values) * 1.1
        self.begin, self.end = begin, end

    def at(self, value: float) -> float:
        """Its place."""
        part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return self.begin + min(1.0, part) * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """1, 2 and 5 times powers of ten within."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        every = (1, 2, 5) if last - first < 4 else (1,)
        found = [m * 10.0**e for e in range(first, last + 1) for m in every]
        return [value for value in found if self.low <= value <= self.high]


def _picture(found: Recommendation) -> str:
    points = [point for point in found.points if point.usd > 0 and point.job_s > 0]
    if not points:
        return ""
    x = _Axis([point.job_s / 3600 for point in points], _LEFT, _RIGHT)
    y = _Axis([point.usd for point in points], _FLOOR, _TOP)
    drawn = [*_axes(x, y), *(_dot(point, x, y) for point in points), *_limits(found, x, y), *_edges(found, x, y)]
    words = f"{len(points)} fleets by time and cost; {len(found.front)} on the front. {found.verdict}"
    return (
        '<svg class="picture" role="img" aria-labelledby="recommend-title recommend-words" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}"><title id="recommend-title">Time and cost of fleets</title>'
        f'<desc id="recommend-words">{escape(words)}</desc>{"".join(drawn)}</svg>'
        '<p class="dim">Every point is a fleet: grey on-demand, blue spot, green the front, orange the pick with its '
        "80 % bounds. Both axes go by the logarithm.</p>"
    )


def _dot(point: Point, x: _Axis, y: _Axis) -> str:
    kind = "lost" if point.spot else "fleet"
    name = f"{point.name} ({point.gpu}{', spot' if point.spot else ''}): {show_seconds(point.job_s)}, ${point.usd:,.2f}"
    return (
        f'<circle class="{kind}" cx="{x.at(point.job_s / 3600):.1f}" cy="{y.at(point.usd):.1f}" r="3">'
        f"<title>{escape(name)}</title></circle>"
    )


def _edges(found: Recommendation, x: _Axis, y: _Axis) -> list[str]:
    """The front as stairs, its fleets, the pick with its bounds."""
    corners: list[str] = []
    before: Option | None = None
    for option in found.front:
        if before is not None:
            corners.append(f"{x.at(option.job_s / 3600):.1f},{y.at(before.usd):.1f}")
        corners.append(f"{x.at(option.job_s / 3600):.1f},{y.at(option.usd):.1f}")
        before = option
    drawn = [f'<polyline class="front" points="{" ".join(corners)}"></polyline>'] if corners else []
    for option in found.front:
        title = escape(f"{option.name}: {show_seconds(option.job_s)}, ${option.usd:,.2f}")
        place = f'cx="{x.at(option.job_s / 3600):.1f}" cy="{y.at(option.usd):.1f}"'
        drawn.append(f'<circle class="edge" {place} r="4"><title>{title}</title></circle>')
    pick = found.pick
    if pick is not None:
        across, down = x.at(pick.job_s / 3600), y.at(pick.usd)
        left, right = x.at(pick.low_s / 3600), x.at(pick.high_s / 3600)
        drawn += [
            f'<line class="whisker" x1="{left:.1f}" y1="{down:.1f}" x2="{right:.1f}" y2="{down:.1f}"></line>',
            f'<line class="whisker" x1="{across:.1f}" y1="{y.at(pick.low_usd):.1f}" x2="{across:.1f}" '
            f'y2="{y.at(pick.high_usd):.1f}"></line>',
            f'<circle class="pick" cx="{across:.1f}" cy="{down:.1f}" r="7"></circle>',
            f'<text class="name" x="{min(across + 12, _RIGHT - 160):.1f}" y="{max(down - 12, _TOP + 14):.1f}">'
            f"{escape(pick.name)}</text>",
        ]
    return drawn


def _limits(found: Recommendation, x: _Axis, y: _Axis) -> list[str]:
    drawn = []
    deadline_s, budget = found.wish.deadline_s, found.wish.budget_usd
    if deadline_s is not None and x.low < deadline_s / 3600 < x.high:
        at = x.at(deadline_s / 3600)
        drawn.append(f'<line class="limit" x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{_FLOOR}"></line>')
        drawn.append(f'<text x="{at + 4:.1f}" y="{_TOP + 10}">deadline</text>')
    if budget is not None and y.low < budget < y.high:
        at = y.at(budget)
        drawn.append(f'<line class="limit" x1="{_LEFT}" y1="{at:.1f}" x2="{_RIGHT}" y2="{at:.1f}"></line>')
        drawn.append(f'<text x="{_RIGHT}" y="{at - 4:.1f}" text-anchor="end">budget</text>')
    return drawn


def _axes(x: _Axis, y: _Axis) -> list[str]:
    drawn = []
    for tick in x.ticks():
        at = x.at(tick)
        drawn.append(f'<line class="grid" x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{_FLOOR}"></line>')
        drawn.append(f'<text x="{at:.1f}" y="{_FLOOR + 18}" text-anchor="middle">{tick:,g} h</text>')
    for tick in y.ticks():
        at = y.at(tick)
        drawn.append(f'<line class="grid" x1="{_LEFT}" y1="{at:.1f}" x2="{_RIGHT}" y2="{at:.1f}"></line>')
        drawn.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">${tick:,g}</text>')
    drawn.append(f'<line class="axis" x1="{_LEFT}" y1="{_FLOOR}" x2="{_RIGHT}" y2="{_FLOOR}"></line>')
    drawn.append(f'<line class="axis" x1="{_LEFT}" y1="{_TOP}" x2="{_LEFT}" y2="{_FLOOR}"></line>')
    drawn.append(f'<text x="{_RIGHT}" y="{_HEIGHT - 6}" text-anchor="end">time from the order to the end</text>')
    drawn.append(f'<text x="{_LEFT + 6}" y="{_TOP + 10}">cost</text>')
    return drawn


def _front(options: Sequence[Option], pick: Option | None) -> str:
    rows: list[Row] = [
        [
            Cell(option.name, small="the pick" if pick is not None and option.name == pick.name else ""),
            f"{option.gpus} × {option.offer.instance.gpu.name}",
            f"{option.offer.instance.cloud} {option.offer.zone or option.offer.region}",
            number(show_seconds(option.job_s)),
            number(f"${option.usd:,.2f}"),
            Cell(show_usd_bounds(option), "n dim"),
            "storage" if option.storage_bound else option.answer.binds,
        ]
        for option in options
    ]
    heads: Row = ["fleet", "GPUs", "where", *(number(name) for name in ("time", "cost", "80 %")), "binds"]
    return table("Nothing that can be rented is both quicker and cheaper.", heads, rows) if rows else ""


def _lost(found: Recommendation) -> str:
    rows: list[Row] = [
        [
            Cell(one.option.name, "name"),
            number(show_seconds(one.option.job_s)),
            number(f"${one.option.usd:,.2f}"),
            Cell(one.why, "words"),
        ]
        for one in found.neighbours
    ]
    return table("Near the pick.", ["fleet", number("time"), number("cost"), "why"], rows)


def _list(sentences: Iterable[str]) -> str:
    items = list(sentences)
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>" if items else ""
