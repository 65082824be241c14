"""Lines in a frame as inline SVG: distributions on a logarithmic scale, and the cluster over time."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 760, 260
_LEFT, _RIGHT, _TOP, _FLOOR = 56, 744, 14, 220
_COLOURS = ("network", "fetch", "compute", "interconnect", "prep", "copy", "rate")
# Lines beyond the colours there are get dashes.
_DASHES = ("", "6 3", "2 3", "8 3 2 3")

STYLE = ".stallwise svg .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }\n" + "".join(
    f".stallwise svg .line.c{i} {{ stroke: var(--{name}); }}\n"
    for i, name in enumerate(_COLOURS)
) + (
    ".stallwise .legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; list-style: none; padding: 0;"
    " font-size: .87em; }\n.stallwise .legend svg { display: inline-block; width: 1.6rem; height: .6rem;"
    " margin-right: .4rem; vertical-align: middle; }\n"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """One policy's line; `number` gives its colour everywhere."""

    name: str
    number: int
    x: Sequence[float]
    y: Sequence[float]


def legend(names: Sequence[str]) -> str:
    """Which line is whose."""
    items = "".join(
        f'<li><svg class="bar" aria-hidden="true" viewBox="0 0 26 10"><line {_look(i)} x1="0" y1="5" x2="26" y2="5">'
        f"</line></svg>{escape(name)}</li>"
        for i, name in enumerate(names)
    )
    return f'<ul class="legend">{items}</ul>'


def _look(number: int) -> str:
    dash = _DASHES[number // len(_COLOURS) % len(_DASHES)]
    return f'class="line c{number % len(_COLOURS)}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def chart(
    key: str,
    title: str,
    words: str,
    lines: Sequence[Line],
    *,
    show_x: Callable[[float], str],
    show_y: Callable[[float], str],
    most_y: float,
    logarithmic: bool = False,
) -> str:
    """A picture with axes and a description in words; `most_y` is the top of the frame."""
    low, high = _bounds([value for line in lines for value in line.x], logarithmic)
    most = most_y if most_y > 0 else 1.0

    def x(value: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (_scaled(value, low, logarithmic) - low) / (high - low)

    def y(value: float) -> float:
        return _FLOOR - (_FLOOR - _TOP) * min(1.0, value / most)

    drawn = [*_frame(show_y, most), *_ticks(low, high, x, show_x, logarithmic)]
    drawn += [_polyline(line, x, y) for line in lines]
    return (
        f'<svg class="picture" role="img" aria-labelledby="{key}-title {key}-words" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f'<title id="{key}-title">{escape(title)}</title><desc id="{key}-words">{escape(words)}</desc>'
        f"{''.join(drawn)}</svg><p>{escape(words)}</p>"
    )


def _bounds(values: Sequence[float], logarithmic: bool) -> tuple[float, float]:
    known = [value for value in values if value > 0 or not logarithmic]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    if logarithmic:
        low, high = math.log10(max(low, high / 1e6)), math.log10(high)
    return (low, high) if high > low else (low, low + 1.0)


def _scaled(value: float, low: float, logarithmic: bool) -> float:
    if not logarithmic:
        return value
    return max(low, math.log10(value)) if value > 0 else low


def _frame(show_y: Callable[[float], str], most: float) -> list[str]:
    sides = [
        f'<line class="axis" x1="{_LEFT}" y1="{_FLOOR}" x2="{_RIGHT}" y2="{_FLOOR}"></line>',
        f'<line class="axis" x1="{_LEFT}" y1="{_TOP}" x2="{_LEFT}" y2="{_FLOOR}"></line>',
    ]
    for part in (0.0, 0.5, 1.0):
        height = _FLOOR - (_FLOOR - _TOP) * part
        label = escape(show_y(most * part))
        sides.append(f'<text x="{_LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{label}</text>')
    return sides


def _ticks(
    low: float, high: float, x: Callable[[float], float], show_x: Callable[[float], str], logarithmic: bool
) -> list[str]:
    """Five labels along the axis, the outer ones inside the frame."""
    made = []
    for i in range(5):
        at = low + (high - low) * i / 4
        value = 10**at if logarithmic else at
        anchor = "start" if i == 0 else "end" if i == 4 else "middle"
        made.append(f'<text x="{x(value):.1f}" y="{_FLOOR + 20}" text-anchor="{anchor}">{escape(show_x(value))}</text>')
    return made


def _polyline(line: Line, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    points = [f"{x(at):.1f},{y(value):.1f}" for at, value in zip(line.x, line.y, strict=True)]
    kept = [point for i, point in enumerate(points) if i == 0 or point != points[i - 1]]
    return f'<polyline {_look(line.number)} points="{" ".join(kept)}"><title>{escape(line.name)}</title></polyline>'
