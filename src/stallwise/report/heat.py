"""Ranks as a map of shades: thousands at a glance, the slow ones stand out. The figures stand in a table beside it."""

import math
from collections.abc import Callable, Sequence
from html import escape

from stallwise.record.detail import RankTimes
from stallwise.report.text import show_seconds

SHADES = 5
_WIDTH = 760.0
_MOST_CELLS = 2048
_LARGEST = 26.0

# Every shade keeps 3:1 to the paper; slower is further from it.
STYLE = "".join(
    f".stallwise svg .heat{i} {{ fill: {light}; }}\n.stallwise .swatch.heat{i} {{ background: {light}; }}\n"
    for i, light in enumerate(("#5b94b8", "#3f7ba1", "#266287", "#0f4766", "#00263b"))
) + "@media (prefers-color-scheme: dark) {\n" + "".join(
    f".stallwise svg .heat{i} {{ fill: {dark}; }}\n.stallwise .swatch.heat{i} {{ background: {dark}; }}\n"
    for i, dark in enumerate(("#4a7fa3", "#679dc2", "#8abcdd", "#b3daf3", "#e8f6ff"))
) + "}\n@media print {\n" + "".join(
    f".stallwise svg .heat{i} {{ fill: {light}; }}\n.stallwise .swatch.heat{i} {{ background: {light}; }}\n"
    for i, light in enumerate(("#5b94b8", "#3f7ba1", "#266287", "#0f4766", "#00263b"))
) + "}\n"  # fmt: skip


def heat_svg(
    ranks: Sequence[RankTimes], value_s: Callable[[RankTimes], float], what: str, key: str, per_node: int
) -> str:
    """A cell per rank in order of rank, rows of whole nodes; of very many a cell holds the slowest of several."""
    size = math.ceil(len(ranks) / _MOST_CELLS)
    groups = [ranks[i : i + size] for i in range(0, len(ranks), size)]
    worst = [max(group, key=value_s) for group in groups]
    low, high = min(map(value_s, ranks)), max(map(value_s, ranks))
    columns = _columns(len(groups), max(1, per_node // size))
    side = min(_LARGEST, _WIDTH / columns)
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
    return (
        f'<svg class="picture" role="img" aria-labelledby="{escape(key)}-title {escape(key)}-words" '
        f'viewBox="0 0 {_WIDTH:g} {rows * side:.0f}"><title id="{escape(key)}-title">{escape(what)} by rank</title>'
        f'<desc id="{escape(key)}-words">{escape(words)}</desc>{"".join(drawn)}</svg>'
        f'<p class="dim">{escape(words)} {_legend(low, high)}</p>'
    )


def _columns(cells: int, per_node: int) -> int:
    """As many whole nodes in a row as keep the map about four times as wide as it is high."""
    wanted = max(1, round(math.sqrt(4 * cells) / per_node)) * per_node
    return max(1, min(cells, max(wanted, per_node), int(_WIDTH // 5)))


def _shade(value: float, low: float, high: float) -> int:
    return min(SHADES - 1, int(SHADES * (value - low) / (high - low))) if high > low else 0


def _legend(low: float, high: float) -> str:
    ends = [low + (high - low) * i / SHADES for i in range(SHADES)]
    return " ".join(f'<span class="swatch heat{i}"></span>{escape(show_seconds(end))}' for i, end in enumerate(ends))
