"""The pictures of the page: inline SVG, styled by the page's own CSS, each with a title and a description in words."""

import math
from html import escape

from stallwise.record.profile import Profile
from stallwise.report.parts import Part, RateRow, parts_of, rate_rows
from stallwise.report.text import show_number, show_percent, show_seconds

_WIDTH = 760
_LEFT, _RIGHT = 116, 580  # where bars begin and end; names stand left of it, numbers right
_ROW, _BAR = 34, 18

# A stage much faster than the narrowest one is drawn this many times as wide, with a dashed edge.
_WIDEST = 4.0
_SHORT = {"F": "storage", "P": "workers", "G": "device"}


def split_svg(profile: Profile, key: str) -> str:
    """The parts of a step as stairs from 0 to the step, with their intervals as whiskers."""
    parts = parts_of(profile)
    reach_s = max([profile.step_s, *(_end_s(part) for part in parts if part.words is None)])
    scale = (_RIGHT - _LEFT) / reach_s
    height = _ROW * len(parts) + 22
    step_x = _LEFT + profile.step_s * scale
    drawn = [_split_row(part, i * _ROW, scale, profile.step_s) for i, part in enumerate(parts)]
    drawn.append(_line(step_x, 0, step_x, height - 20, "limit"))
    drawn.append(_text(step_x, height - 6, f"step {show_seconds(profile.step_s)}", "end"))
    return _svg(key, height, "Where a step goes", _split_words(parts, profile), drawn)


def rates_svg(profile: Profile, key: str) -> str | None:
    """Storage, preparation and device as a funnel, dashed at the job's own speed; None where no rate is known."""
    rows = {row.name: row for row in rate_rows(profile)}
    flow = [(row, row.rate.samples_per_s) for row in (rows["F"], rows["P"], rows["G"]) if row.rate is not None]
    if not flow:
        return None
    speed = profile.samples_per_s
    narrowest = min([rate for _, rate in flow] + ([speed] if speed else []))
    cut = _WIDEST * narrowest
    scale = (_RIGHT - _LEFT) / min(cut, max([rate for _, rate in flow] + ([speed] if speed else [])))
    height = _ROW * len(flow) + 22
    drawn = [_rate_row(row, rate, i * _ROW, min(rate, cut) * scale, cut) for i, (row, rate) in enumerate(flow)]
    if speed:
        middle, half = (_LEFT + _RIGHT) / 2, min(speed, cut) * scale / 2
        drawn += [_line(x, 0, x, height - 20, "limit") for x in (middle - half, middle + half)]
        drawn.append(_text(middle, height - 6, f"the job: {show_number(speed)} samples/s", "middle"))
    words = "; ".join(f"{row.name}, {row.meaning}: {show_number(rate)} samples/s" for row, rate in flow)
    wide = " Dashed edges: wider than drawn." if any(rate > cut for _, rate in flow) else ""
    return _svg(key, height, "What each stage could do alone", f"{words}.{wide}", drawn)


def _end_s(part: Part) -> float:
    share = part.share
    if share is None:
        return part.start_s
    return part.start_s + (share.high_s if math.isfinite(share.high_s) else share.s)


def _split_row(part: Part, top: float, scale: float, step_s: float) -> str:
    middle = top + _ROW / 2
    name = _text(0, middle + 5, part.name, "start", "name")
    if part.share is None or part.words is not None:
        return name + _text(_LEFT, middle + 5, part.words or "", "start", "dim")
    share, start = part.share, _LEFT + part.start_s * scale
    bar = _rect(start, middle - _BAR / 2, max(1.0, share.s * scale), part.name)
    numbers = f"{show_seconds(share.s)} · {show_percent(share.s / step_s)}"
    whisker = ""
    if math.isfinite(share.high_s):
        low, high = start + share.low_s * scale, start + share.high_s * scale
        whisker = _line(low, middle, high, middle, "whisker")
        whisker += "".join(_line(x, middle - 5, x, middle + 5, "whisker") for x in (low, high))
    return name + bar + whisker + _text(_WIDTH, middle + 5, numbers, "end", "number")


def _rate_row(row: RateRow, rate: float, top: float, width: float, cut: float) -> str:
    middle = top + _ROW / 2
    bar = _rect((_LEFT + _RIGHT - width) / 2, middle - _BAR / 2, width, "rate cut" if rate > cut else "rate")
    name = _text(0, middle + 5, f"{row.name} {_SHORT[row.name]}", "start", "name")
    return bar + name + _text(_WIDTH, middle + 5, f"{show_number(rate)} samples/s", "end", "number")


def _split_words(parts: tuple[Part, ...], profile: Profile) -> str:
    said = [f"Step {show_seconds(profile.step_s)}."]
    for part in parts:
        if part.words is not None or part.share is None:
            said.append(f"{part.name}: {part.words}.")
        else:
            said.append(f"{part.name}: {show_seconds(part.share.s)}, {show_percent(part.share.s / profile.step_s)}.")
    return " ".join(said)


def _svg(key: str, height: float, title: str, words: str, drawn: list[str]) -> str:
    ids = f"{escape(key)}-title {escape(key)}-words"
    return (
        f'<svg role="img" aria-labelledby="{ids}" viewBox="0 0 {_WIDTH} {height:g}">'
        f'<title id="{escape(key)}-title">{escape(title)}</title>'
        f'<desc id="{escape(key)}-words">{escape(words)}</desc>{"".join(drawn)}</svg>'
    )


def _rect(x: float, y: float, width: float, kind: str) -> str:
    return f'<rect class="{escape(kind)}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_BAR}" rx="2"></rect>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"></line>'


def _text(x: float, y: float, words: str, anchor: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
