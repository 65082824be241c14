"""Charts as inline SVG, styled by the page's own CSS.

A bar stands in a table beside its numbers, so it is hidden from screen readers; a picture of its own has a title and a
description in words.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape

from stallwise.analysis.profile import GradientReady, RankTimes
from stallwise.model.step.iteration import StepTimetable, TimetableSlot
from stallwise.report.format import show_bytes, show_seconds
from stallwise.report.view import Axis, Bar, Chart, Limit, Picture, Series

_BAR = 16
_WIDTH = 760
_GRADIENTS_HEIGHT = 168
_GRADIENTS_TOP, _GRADIENTS_FLOOR = 22, 146  # of the gradient picture: labels above, the time axis below
_LETTER = 7.5  # about what a letter takes; where buckets come too close, only the first is named


def picture(key: str, title: str, words: str, drawn: Iterable[str], height: float) -> str:
    """An image of the page's width with its title, a description in words, and ids that begin with `key`."""
    return (
        f'<svg class="picture" role="img" aria-labelledby="{escape(key)}-title {escape(key)}-words" '
        f'viewBox="0 0 {_WIDTH} {height:.0f}"><title id="{escape(key)}-title">{escape(title)}</title>'
        f'<desc id="{escape(key)}-words">{escape(words)}</desc>{"".join(drawn)}</svg>'
    )


def bar_svg(bar: Bar) -> str:
    """A bar as wide as its table cell. Positions are percentages, so nothing is distorted at any width."""
    drawn = [f'<rect class="track" x="0%" y="0" width="100%" height="{_BAR}" rx="2"></rect>']
    for piece in bar.pieces:
        width = max(piece.width, 0.004)  # never so thin that it is not there
        drawn.append(_rect(min(piece.start, 1 - width), width, piece.kind))
    if bar.cut:
        drawn += [_upright(x, "limit", 0, _BAR) for x in (0.985, 0.995)]
    if bar.limit is not None:
        drawn.append(_upright(bar.limit, "limit", -3, _BAR + 3))
    if bar.whisker is not None:
        low, high = bar.whisker
        middle = _BAR / 2
        drawn.append(f'<line class="whisker" x1="{low:.2%}" y1="{middle:g}" x2="{high:.2%}" y2="{middle:g}"></line>')
        drawn += [_upright(x, "whisker", middle - 4, middle + 4) for x in (low, high)]
    return f'<svg class="bar" aria-hidden="true" width="100%" height="{_BAR}">{"".join(drawn)}</svg>'


_LEFT, _RIGHT, _TOP = 64, 744, 16
_UNDER = 40  # below the horizontal axis: its numbers, and its name


def chart_svg(chart: Chart) -> str:
    """A chart as a picture with axes, and its description in words."""
    floor = chart.height - _UNDER
    across = _Pixels(chart.x, [x for x, _ in _points(chart)], _LEFT, _RIGHT)
    upward = _Pixels(chart.y, [y for _, y in _points(chart)], floor, _TOP)
    drawn = [*_grid(across, upward, floor)]
    for upper, lower in chart.bands:
        corners = _corners([*upper, *reversed(lower)], across, upward)
        drawn.append(f'<polygon class="band" points="{corners}"></polygon>')
    for limit in chart.limits:
        drawn += _limit(limit, across, upward, floor)
    for series in chart.series:
        drawn += _series(series, across, upward)
    if chart.x.label:
        drawn.append(_label(_RIGHT, chart.height - 4, chart.x.label, "end"))
    if chart.y.label:
        drawn.append(_label(_LEFT + 8, _TOP + 4, chart.y.label, "start"))
    return picture(chart.key, chart.title, chart.description, drawn, chart.height)


def _points(chart: Chart) -> list[tuple[float, float]]:
    return [point for series in chart.series for point in series.points]


class _Pixels:
    """Values of an axis to pixels."""

    def __init__(self, axis: Axis, values: Sequence[float], begin: float, end: float) -> None:
        self.axis, self.begin, self.end = axis, begin, end
        usable = [value for value in values if value > 0 or not axis.logarithmic]
        low = axis.low if axis.low is not None else min(usable, default=0.0 if not axis.logarithmic else 1.0)
        high = axis.high if axis.high is not None else max(usable, default=low + 1.0)
        if axis.logarithmic:
            low = max(low, high / 1e6)
        self.low, self.high = low, high if high > low else low * 10 if axis.logarithmic else low + 1.0

    def at(self, value: float) -> float:
        """The pixel of a value; values outside are drawn on the edge."""
        inside = min(self.high, max(self.low, value))
        low, high, at = (math.log(x) if self.axis.logarithmic else x for x in (self.low, self.high, inside))
        return self.begin + (self.end - self.begin) * (at - low) / (high - low)

    def inside(self, value: float) -> bool:
        """Whether it can be drawn."""
        return self.low <= value <= self.high

    def ticks(self, count: int) -> tuple[float, ...]:
        """Where numbers stand: as the axis says, or evenly."""
        if self.axis.ticks:
            return tuple(tick for tick in self.axis.ticks if self.inside(tick))
        steps = [i / (count - 1) for i in range(count)]
        if self.axis.logarithmic:
            return tuple(self.low * (self.high / self.low) ** step for step in steps)
        return tuple(self.low + (self.high - self.low) * step for step in steps)


def _grid(across: _Pixels, upward: _Pixels, floor: float) -> Iterator[str]:
    """The axes with their numbers, the outer ones inside the frame."""
    yield f'<line class="axis" x1="{_LEFT}" y1="{floor}" x2="{_RIGHT}" y2="{floor}"></line>'
    yield f'<line class="axis" x1="{_LEFT}" y1="{_TOP}" x2="{_LEFT}" y2="{floor}"></line>'
    for tick in across.ticks(5):
        x = across.at(tick)
        anchor = "start" if x < _LEFT + 40 else "end" if x > _RIGHT - 40 else "middle"
        yield _label(x, floor + 18, across.axis.show(tick), anchor)
        if across.axis.ticks:
            yield f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{floor}"></line>'
    for tick in upward.ticks(3):
        y = upward.at(tick)
        yield _label(_LEFT - 8, y + 4, upward.axis.show(tick), "end")
        if upward.axis.ticks:
            yield f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_RIGHT}" y2="{y:.1f}"></line>'


def _limit(limit: Limit, across: _Pixels, upward: _Pixels, floor: float) -> Iterator[str]:
    if limit.axis == "x" and across.inside(limit.value):
        x = across.at(limit.value)
        near_end = x > _RIGHT - 80
        yield f'<line class="limit" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{floor}"></line>'
        yield _label(x - 6 if near_end else x + 6, _TOP + 10, limit.name, "end" if near_end else "start")
    if limit.axis == "y" and upward.inside(limit.value):
        y = upward.at(limit.value)
        yield f'<line class="limit" x1="{_LEFT}" y1="{y:.1f}" x2="{_RIGHT}" y2="{y:.1f}"></line>'
        yield _label(_RIGHT, y - 4, limit.name, "end")


def _corners(points: Iterable[tuple[float, float]], across: _Pixels, upward: _Pixels) -> str:
    places = [f"{across.at(x):.1f},{upward.at(y):.1f}" for x, y in points]
    return " ".join(place for i, place in enumerate(places) if i == 0 or place != places[i - 1])


def _series(series: Series, across: _Pixels, upward: _Pixels) -> Iterator[str]:
    title = f"<title>{escape(series.name)}</title>" if series.name else ""
    if not series.radius:
        dash = f' stroke-dasharray="{series.dash}"' if series.dash else ""
        corners = _corners(series.points, across, upward)
        yield f'<polyline class="{series.kind}"{dash} points="{corners}">{title}</polyline>'
        return
    for i, (x, y) in enumerate(series.points):
        name = f"<title>{escape(series.titles[i])}</title>" if series.titles else title
        place = f'cx="{across.at(x):.1f}" cy="{upward.at(y):.1f}" r="{series.radius:g}"'
        yield f'<circle class="{series.kind}" {place}>{name}</circle>'
    if series.label and series.points:
        x, y = across.at(series.points[0][0]), upward.at(series.points[0][1])
        place = f'x="{min(x + 12, _RIGHT - 160):.1f}" y="{max(y - 12, _TOP + 14):.1f}"'
        yield f'<text class="name" {place}>{escape(series.label)}</text>'


_COLOURS = 7
_DASHES = ("", "6 3", "2 3", "8 3 2 3")
"""Lines beyond the number of colours get dashes."""


def line_of(name: str, place: int, points: Iterable[tuple[float, float]]) -> Series:
    """A line with the colour and dashes of its place among others."""
    dash = _DASHES[place // _COLOURS % len(_DASHES)]
    return Series(name, tuple(points), kind=f"line c{place % _COLOURS}", dash=dash)


def legend_svg(series: Iterable[Series]) -> str:
    """The names of lines and dots beside their colours and dashes."""
    items = "".join(
        f'<li><svg class="bar" aria-hidden="true" viewBox="0 0 26 10">{_sample(one)}</svg>{escape(one.name)}</li>'
        for one in series
        if one.name
    )
    return f'<ul class="legend">{items}</ul>'


def _sample(series: Series) -> str:
    if series.radius:
        return f'<circle class="{series.kind}" cx="13" cy="5" r="5"></circle>'
    dash = f' stroke-dasharray="{series.dash}"' if series.dash else ""
    return f'<line class="{series.kind}"{dash} x1="0" y1="5" x2="26" y2="5"></line>'


def gradients_svg(gradients: tuple[GradientReady, ...], backward_s: float | None, key: str) -> str:
    """Bytes of gradients that are ready, over the backward pass; a shade per bucket, a line where it is complete."""
    reach_s = max([backward_s or 0.0, gradients[-1].ready_s]) or 1.0
    total = sum(gradient.bytes for gradient in gradients) or 1
    scale_x = _WIDTH / reach_s
    buckets = in_buckets(gradients)
    shades = {bucket: "odd" if place % 2 else "even" for place, (bucket, _) in enumerate(buckets)}
    drawn = list(_gradient_areas(gradients, shades, scale_x, (_GRADIENTS_FLOOR - _GRADIENTS_TOP) / total))
    free_x = 0.0
    for bucket, members in buckets:
        x = members[-1].ready_s * scale_x
        if bucket is not None:
            drawn.append(
                f'<line class="limit" x1="{x:.1f}" y1="{_GRADIENTS_TOP - 4}" x2="{x:.1f}" y2="{_GRADIENTS_FLOOR}">'
                "</line>"
            )
            words = f"bucket {bucket} · {show_seconds(members[-1].ready_s)}"
            width = len(words) * _LETTER
            left = min(max(0.0, x - width / 2), _WIDTH - width)
            if left >= free_x:
                drawn.append(_label(left + width / 2, _GRADIENTS_TOP - 8, words, "middle"))
                free_x = left + width
    drawn.append(f'<line class="axis" x1="0" y1="{_GRADIENTS_FLOOR}" x2="{_WIDTH}" y2="{_GRADIENTS_FLOOR}"></line>')
    drawn.append(_label(0, _GRADIENTS_HEIGHT - 6, "backward begins", "start"))
    drawn.append(_label(_WIDTH, _GRADIENTS_HEIGHT - 6, show_seconds(reach_s), "end"))
    return picture(key, "When gradients are ready", _gradients_words(gradients, total), drawn, _GRADIENTS_HEIGHT)


def in_buckets(gradients: tuple[GradientReady, ...]) -> list[tuple[int | None, tuple[GradientReady, ...]]]:
    """The buckets by the moment they are complete, each with its gradients in ready order."""
    buckets: dict[int | None, list[GradientReady]] = {}
    for gradient in gradients:
        buckets.setdefault(gradient.bucket, []).append(gradient)
    ordered = [(number, tuple(sorted(members, key=lambda g: g.ready_s))) for number, members in buckets.items()]
    return sorted(ordered, key=lambda item: item[1][-1].ready_s)


def _gradient_areas(
    gradients: tuple[GradientReady, ...], shades: dict[int | None, str], scale_x: float, scale_y: float
) -> Iterator[str]:
    """Bytes that are ready, from one gradient to the next; neighbours of one bucket as one shape."""
    sums = itertools.accumulate(gradient.bytes for gradient in gradients)
    until = [*(gradient.ready_s * scale_x for gradient in gradients[1:]), float(_WIDTH)]
    columns = zip(gradients, until, sums, strict=True)
    for bucket, run in itertools.groupby(columns, key=lambda column: column[0].bucket):
        points, right = [], 0.0
        for gradient, right, ready_bytes in run:
            y = _GRADIENTS_FLOOR - ready_bytes * scale_y
            points += [(gradient.ready_s * scale_x, y), (right, y)]
        corners = [(points[0][0], float(_GRADIENTS_FLOOR)), *points, (right, float(_GRADIENTS_FLOOR))]
        shape = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        yield f'<polygon class="{shades[bucket]}" points="{shape}"></polygon>'


def _gradients_words(gradients: tuple[GradientReady, ...], total: int) -> str:
    first, last = gradients[0], gradients[-1]
    sentence = (
        f"The first gradient is ready after {show_seconds(first.ready_s)}, the last of {show_bytes(total)} after "
    )
    complete = [
        f"bucket {number} after {show_seconds(members[-1].ready_s)}"
        for number, members in in_buckets(gradients)
        if number is not None
    ]
    return f"{sentence}{show_seconds(last.ready_s)}." + (f" Complete: {', '.join(complete)}." if complete else "")


def _rect(start: float, width: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{start:.2%}" y="0" width="{width:.2%}" height="{_BAR}" rx="2"></rect>'


def _upright(x: float, kind: str, top: float, bottom: float) -> str:
    return f'<line class="{kind}" x1="{x:.2%}" y1="{top:g}" x2="{x:.2%}" y2="{bottom:g}"></line>'


def _label(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


_SHADES = 5
_MAX_CELLS = 2048
_MAX_SIDE = 26.0


def heat_picture(
    ranks: Sequence[RankTimes], value_s: Callable[[RankTimes], float], what: str, key: str, per_node: int
) -> Picture:
    """A cell per rank in order of rank, rows of whole nodes; of very many a cell holds the slowest of several."""
    size = math.ceil(len(ranks) / _MAX_CELLS)
    groups = [ranks[i : i + size] for i in range(0, len(ranks), size)]
    worst = [max(group, key=value_s) for group in groups]
    low, high = min(map(value_s, ranks)), max(map(value_s, ranks))
    columns = _heat_columns(len(groups), max(1, per_node // size))
    side = min(_MAX_SIDE, _WIDTH / columns)
    drawn = []
    for place, (group, one) in enumerate(zip(groups, worst, strict=True)):
        name = f"rank {one.rank}" if len(group) == 1 else f"slowest of ranks {group[0].rank} to {group[-1].rank}"
        x, y = place % columns * side, place // columns * side
        title = escape(f"{name}, node {one.node}: {show_seconds(value_s(one))}")
        drawn.append(
            f'<rect class="heat{_shade(value_s(one), low, high)}" x="{x:.1f}" y="{y:.1f}" width="{side - 1:.1f}" '
            f'height="{side - 1:.1f}"><title>{title}</title></rect>'
        )
    slowest = max(ranks, key=value_s)
    words = (
        f"{what} of {len(ranks):,} ranks: {show_seconds(low)} to {show_seconds(high)}; rank {slowest.rank} on node "
        f"{slowest.node} takes longest."
    )
    rows = math.ceil(len(groups) / columns)
    legend = tuple((f"heat{i}", show_seconds(low + (high - low) * i / _SHADES)) for i in range(_SHADES))
    return Picture(picture(key, f"{what} by rank", words, drawn, rows * side), after=words, legend=legend)


def _heat_columns(cells: int, per_node: int) -> int:
    """As many whole nodes in a row as keep the map about four times as wide as it is high."""
    columns = max(1, round(math.sqrt(4 * cells) / per_node)) * per_node
    return max(1, min(cells, max(columns, per_node), int(_WIDTH // 5)))


def _shade(value: float, low: float, high: float) -> int:
    return min(_SHADES - 1, int(_SHADES * (value - low) / (high - low))) if high > low else 0


_LANES_LEFT = 92
_LANE_HEIGHT, _LANES_TOP = 30, 8
_LANES = {
    "loader": ("read",),
    "copy": ("copy",),
    "device": ("forward", "backward", "update"),
    "exchange": ("exchange",),
}
SLOT_KINDS = {
    "read": "prep",
    "copy": "copy",
    "forward": "forward",
    "backward": "backward",
    "update": "compute",
    "exchange": "interconnect",  # the network's blue is too near to backward's
}


def step_timeline(timetable: StepTimetable | None, key: str) -> tuple[Picture, ...]:
    """The picture of a step over time with a caption, a legend and its critical path in words."""
    if timetable is None or not timetable.slots:
        return ()
    sentence = (
        f"By the model, whose step takes {show_seconds(timetable.step_s)}; the line under a lane is the critical path, "
        "which is what to shorten."
    )
    kinds = [kind for kind in SLOT_KINDS if any(slot.kind == kind for slot in timetable.slots)]
    legend = tuple((SLOT_KINDS[kind], kind) for kind in kinds)
    return (Picture(timeline_svg(timetable, key), sentence, path_words(timetable), legend),)


def timeline_svg(timetable: StepTimetable, key: str) -> str:
    """A lane for what loads, copies, computes and exchanges; the critical path as a line under them."""
    shown = lanes(timetable)
    floor = _LANES_TOP + _LANE_HEIGHT * len(shown)
    scale = (_WIDTH - _LANES_LEFT) / timetable.step_s
    drawn = []
    for place, (name, slots) in enumerate(shown):
        y = _LANES_TOP + _LANE_HEIGHT * place
        drawn.append(
            f'<rect class="track" x="{_LANES_LEFT}" y="{y}" width="{_WIDTH - _LANES_LEFT}" height="{_BAR}" rx="2">'
            "</rect>"
        )
        drawn.append(f'<text class="lane" x="0" y="{y + 13}">{name}</text>')
        drawn += [_slot_bar(slot, y, scale) for slot in slots]
    drawn.append(f'<line class="axis" x1="{_LANES_LEFT}" y1="{floor}" x2="{_WIDTH}" y2="{floor}"></line>')
    drawn.append(f'<text x="{_LANES_LEFT}" y="{floor + 16}">batch taken</text>')
    end = escape(show_seconds(timetable.step_s))
    drawn.append(f'<text x="{_WIDTH}" y="{floor + 16}" text-anchor="end">{end}</text>')
    return picture(key, "A step over time", path_words(timetable), drawn, floor + 22)


def _slot_bar(slot: TimetableSlot, y: int, scale: float) -> str:
    x, width = _LANES_LEFT + slot.start_s * scale, max(1.0, (slot.end_s - slot.start_s) * scale)
    drawn = (
        f'<rect class="{SLOT_KINDS[slot.kind]}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}">'
        f"<title>{escape(slot_words(slot))}</title></rect>"
    )
    if not slot.critical:
        return drawn
    under = y + _BAR + 4
    return drawn + f'<line class="critical" x1="{x:.1f}" y1="{under}" x2="{x + width:.1f}" y2="{under}"></line>'


def lanes(timetable: StepTimetable) -> list[tuple[str, list[TimetableSlot]]]:
    """The lanes that the step has, each with its slots."""
    every = ((name, [slot for slot in timetable.slots if slot.kind in kinds]) for name, kinds in _LANES.items())
    return [(name, slots) for name, slots in every if slots]


def slot_words(slot: TimetableSlot) -> str:
    """`backward: 12 ms to 40 ms, on the critical path`."""
    times = f"{show_seconds(slot.start_s)} to {show_seconds(slot.end_s)}"
    return f"{slot.kind}: {times}{', on the critical path' if slot.critical else ''}"


def path_words(timetable: StepTimetable) -> str:
    """Critical: forward 30 ms, backward 50 ms, exchange 12 ms."""
    critical = [(kind, timetable.critical_s(kind)) for kind in SLOT_KINDS]
    parts = ", ".join(f"{kind} {show_seconds(seconds)}" for kind, seconds in critical if seconds > 0)
    return f"On the critical path: {parts or 'nothing'}."
