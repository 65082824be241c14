"""The pictures of the page: inline SVG, styled by the page's own CSS.

A bar stands in a table beside its numbers, so it is hidden from readers that speak; a picture of its own has a title
and a description in words.
"""

import itertools
from collections.abc import Iterable, Iterator
from html import escape
from typing import NamedTuple

from stallwise.record.detail import GradientReady
from stallwise.report.text import show_bytes, show_seconds

_BAR = 16
_WIDTH, _HEIGHT = 760, 168
_TOP, _FLOOR = 22, 146  # of the gradient picture: labels above, the time axis below
_LETTER = 7.5  # about what a letter takes; where buckets come too close, only the first is named


class Piece(NamedTuple):
    """A coloured part of a bar, as fractions of its width."""

    start: float
    width: float
    kind: str


def bar(
    pieces: Iterable[Piece],
    *,
    whisker: tuple[float, float] | None = None,
    limit: float | None = None,
    cut: bool = False,
) -> str:
    """A bar as wide as its place: pieces, an interval over them, a dashed limit; `cut` where it goes on unseen.

    Positions are percentages, so nothing is distorted however wide the place is.
    """
    drawn = [f'<rect class="track" x="0%" y="0" width="100%" height="{_BAR}" rx="2"></rect>']
    for piece in pieces:
        width = max(piece.width, 0.004)  # never so thin that it is not there
        start = min(piece.start, 1 - width)
        drawn.append(_rect(start, width, piece.kind))
    if cut:
        drawn += [_upright(x, "limit", 0, _BAR) for x in (0.985, 0.995)]
    if limit is not None:
        drawn.append(_upright(limit, "limit", -3, _BAR + 3))
    if whisker is not None:
        low, high = whisker
        middle = _BAR / 2
        drawn.append(f'<line class="whisker" x1="{low:.2%}" y1="{middle:g}" x2="{high:.2%}" y2="{middle:g}"></line>')
        drawn += [_upright(x, "whisker", middle - 4, middle + 4) for x in (low, high)]
    return f'<svg class="bar" aria-hidden="true" width="100%" height="{_BAR}">{"".join(drawn)}</svg>'


def gradients_svg(gradients: tuple[GradientReady, ...], backward_s: float | None, key: str) -> str:
    """Bytes of gradients that are ready, over the backward pass; a shade per bucket, a line where it is complete."""
    reach_s = max([backward_s or 0.0, gradients[-1].ready_s]) or 1.0
    total = sum(gradient.bytes for gradient in gradients) or 1
    scale_x = _WIDTH / reach_s
    buckets = in_buckets(gradients)
    shades = {bucket: "odd" if place % 2 else "even" for place, (bucket, _) in enumerate(buckets)}
    drawn = list(_areas(gradients, shades, scale_x, (_FLOOR - _TOP) / total))
    free_x = 0.0
    for bucket, members in buckets:
        x = members[-1].ready_s * scale_x
        if bucket is not None:
            drawn.append(f'<line class="limit" x1="{x:.1f}" y1="{_TOP - 4}" x2="{x:.1f}" y2="{_FLOOR}"></line>')
            words = f"bucket {bucket} · {show_seconds(members[-1].ready_s)}"
            width = len(words) * _LETTER
            left = min(max(0.0, x - width / 2), _WIDTH - width)
            if left >= free_x:
                drawn.append(_label(left + width / 2, _TOP - 8, words, "middle"))
                free_x = left + width
    drawn.append(f'<line class="axis" x1="0" y1="{_FLOOR}" x2="{_WIDTH}" y2="{_FLOOR}"></line>')
    drawn.append(_label(0, _HEIGHT - 6, "backward begins", "start"))
    drawn.append(_label(_WIDTH, _HEIGHT - 6, show_seconds(reach_s), "end"))
    return (
        f'<svg class="picture" role="img" aria-labelledby="{escape(key)}-title {escape(key)}-words" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}"><title id="{escape(key)}-title">When gradients are ready</title>'
        f'<desc id="{escape(key)}-words">{escape(_words(gradients, total))}</desc>{"".join(drawn)}</svg>'
    )


def in_buckets(gradients: tuple[GradientReady, ...]) -> list[tuple[int | None, tuple[GradientReady, ...]]]:
    """The buckets by the moment they are complete, each with its gradients in ready order."""
    buckets: dict[int | None, list[GradientReady]] = {}
    for gradient in gradients:
        buckets.setdefault(gradient.bucket, []).append(gradient)
    found = [(number, tuple(sorted(members, key=lambda g: g.ready_s))) for number, members in buckets.items()]
    return sorted(found, key=lambda item: item[1][-1].ready_s)


def _areas(
    gradients: tuple[GradientReady, ...], shades: dict[int | None, str], scale_x: float, scale_y: float
) -> Iterator[str]:
    """What is ready, from each gradient's moment to the next one's; neighbours of one bucket as one shape."""
    sums = itertools.accumulate(gradient.bytes for gradient in gradients)
    until = [*(gradient.ready_s * scale_x for gradient in gradients[1:]), float(_WIDTH)]
    columns = zip(gradients, until, sums, strict=True)
    for bucket, run in itertools.groupby(columns, key=lambda column: column[0].bucket):
        points, right = [], 0.0
        for gradient, right, ready_bytes in run:
            y = _FLOOR - ready_bytes * scale_y
            points += [(gradient.ready_s * scale_x, y), (right, y)]
        corners = [(points[0][0], float(_FLOOR)), *points, (right, float(_FLOOR))]
        shape = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        yield f'<polygon class="{shades[bucket]}" points="{shape}"></polygon>'


def _words(gradients: tuple[GradientReady, ...], total: int) -> str:
    first, last = gradients[0], gradients[-1]
    said = f"The first gradient is ready after {show_seconds(first.ready_s)}, the last of {show_bytes(total)} after "
    complete = [
        f"bucket {number} after {show_seconds(members[-1].ready_s)}"
        for number, members in in_buckets(gradients)
        if number is not None
    ]
    return f"{said}{show_seconds(last.ready_s)}." + (f" Complete: {', '.join(complete)}." if complete else "")


def _rect(start: float, width: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{start:.2%}" y="0" width="{width:.2%}" height="{_BAR}" rx="2"></rect>'


def _upright(x: float, kind: str, top: float, bottom: float) -> str:
    return f'<line class="{kind}" x1="{x:.2%}" y1="{top:g}" x2="{x:.2%}" y2="{bottom:g}"></line>'


def _label(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
