"""A study as one HTML file that needs nothing else: errors, coefficients, measured and predicted as a picture."""

import math
from collections.abc import Iterable
from html import escape
from pathlib import Path

from stallwise.model.macro import HeldOut, family_errors
from stallwise.record.study import LinkStudy, Study
from stallwise.report.document import document, write
from stallwise.report.markup import Row, number, section, table
from stallwise.report.study import coefficients, show_link, unfinished
from stallwise.report.text import show_bytes, show_percent, show_seconds

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _FLOOR = 72, 744, 16, 376
_COLOURS = ("network", "fetch", "compute", "interconnect", "prep", "copy")
_STYLE = "".join(f".stallwise svg .point.c{i} {{ fill: var(--{name}); }}\n" for i, name in enumerate(_COLOURS)) + (
    ".stallwise svg .ideal { fill: none; stroke: var(--dim); stroke-width: 1; stroke-dasharray: 4 4; }\n"
    ".stallwise .legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; list-style: none; padding: 0; }\n"
)


def write_page(found: Study, path: Path) -> Path:
    """Write the page to `path` and return it."""
    return write(page(found), path)


def page(found: Study) -> str:
    """The whole document: no script, nothing from elsewhere."""
    settings = found.settings
    said = (
        f"{len(settings.networks)} networks, 1/{settings.scale} of their gradients, batch {settings.batch}, on the "
        "stand-in accelerator"
    )
    missing = unfinished(found)
    note = "" if missing is None else f"<p>{escape(missing)}</p>"
    body = note + section("Held-out families", _errors(found.links), "study-errors")
    body += section("Coefficients", _coefficients(found.links), "study-coefficients")
    for place, link in enumerate(found.links):
        body += section(show_link(link), _picture(link, f"study-{place}") + _networks(link), f"study-link-{place}")
    head = f'<header><h1>The stall by macro features</h1><p class="dim">{escape(said)}</p></header>'
    return document("The stall by macro features", f'<article class="stallwise">{head}{body}</article>', _STYLE)


def _errors(links: Iterable[LinkStudy]) -> str:
    made = list(links)
    families = list(dict.fromkeys(one.seen.family for link in made for one in link.held_out))
    errors = [family_errors(link.held_out) for link in made]
    rows: list[Row] = [
        [family, *(number(show_percent(of[family]) if family in of else "too few") for of in errors)]
        for family in families
    ]
    heads: Row = ["family", *(number(show_link(link)) for link in made)]
    return table("Mean error of the stall of each family, predicted from the other families.", heads, rows)


def _coefficients(links: Iterable[LinkStudy]) -> str:
    made = list(links)
    heads: Row = ["link", *(number(name) for name in coefficients(made[0].fit))]
    rows: list[Row] = [[show_link(link), *(number(v) for v in coefficients(link.fit).values())] for link in made]
    caption = (
        "stall = constant + max over buckets g of per tensor and per layer until g is complete "
        "+ per bucket and per byte of g and those after it - what is left of backward"
    )
    return table(caption, heads, rows)


def _networks(link: LinkStudy) -> str:
    held = {one.seen.network: one for one in link.held_out}
    rows: list[Row] = [
        [
            one.network,
            number(f"{one.features.tensors}"),
            number(f"{one.features.layers}"),
            number(show_bytes(one.features.bytes)),
            number(show_seconds(one.step_s)),
            number(show_seconds(one.stall_s)),
            number(show_seconds(held[one.network].predicted_s) if one.network in held else ""),
            number(f"{100 * held[one.network].error:+.1f} %" if one.network in held else ""),
        ]
        for one in link.seen
    ]
    names = ("tensors", "layers", "bytes", "alone", "stall", "held out", "error")
    heads: Row = ["network", *(number(name) for name in names)]
    return table("Measured, and predicted by a fit that saw no network of the family.", heads, rows)


def _picture(link: LinkStudy, key: str) -> str:
    points = [one for one in link.held_out if one.predicted_s > 0]
    if not points:
        return "<p>Too few families for a picture.</p>"
    values = [value for one in points for value in (one.seen.stall_s, one.predicted_s)]
    low, high = min(values), max(max(values), min(values) * 1.01)
    families = list(dict.fromkeys(one.seen.family for one in points))
    drawn = [
        f'<polyline class="ideal" points="{_LEFT},{_FLOOR} {_RIGHT},{_TOP}"></polyline>',
        f'<line class="axis" x1="{_LEFT}" y1="{_FLOOR}" x2="{_RIGHT}" y2="{_FLOOR}"></line>',
        f'<line class="axis" x1="{_LEFT}" y1="{_TOP}" x2="{_LEFT}" y2="{_FLOOR}"></line>',
        f'<text x="{_RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">measured, to {escape(show_seconds(high))}</text>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 4}">{escape(show_seconds(low))}</text>',
        f'<text x="{_LEFT + 8}" y="{_TOP + 4}">predicted, its family held out</text>',
        *(_point(one, families.index(one.seen.family), low, high) for one in points),
    ]
    worst = max(points, key=lambda one: abs(one.error))
    words = f"{len(points)} networks; furthest off is {worst.seen.network} with {100 * worst.error:+.1f} %."
    return (
        f'<svg class="picture" role="img" aria-labelledby="{key}-title {key}-words" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f'<title id="{key}-title">Measured and predicted stall</title><desc id="{key}-words">{escape(words)}</desc>'
        f"{''.join(drawn)}</svg>{_legend(families)}<p>{escape(words)}</p>"
    )


def _point(one: HeldOut, family: int, low: float, high: float) -> str:
    x = _LEFT + (_RIGHT - _LEFT) * _part(one.seen.stall_s, low, high)
    y = _FLOOR - (_FLOOR - _TOP) * _part(one.predicted_s, low, high)
    title = f"{one.seen.network}: {show_seconds(one.seen.stall_s)}, predicted {show_seconds(one.predicted_s)}"
    return (
        f'<circle class="point c{family % len(_COLOURS)}" cx="{x:.1f}" cy="{y:.1f}" r="5">'
        f"<title>{escape(title)}</title></circle>"
    )


def _part(value: float, low: float, high: float) -> float:
    return math.log(value / low) / math.log(high / low)


def _legend(families: list[str]) -> str:
    items = "".join(
        f'<li><svg width="12" height="12" aria-hidden="true"><circle class="point c{i % len(_COLOURS)}" cx="6" cy="6" '
        f'r="5"></circle></svg> {escape(family)}</li>'
        for i, family in enumerate(families)
    )
    return f'<ul class="legend">{items}</ul>'
