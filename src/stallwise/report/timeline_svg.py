"""A step over time: a lane for what loads, copies, computes and exchanges; the critical path as a line under them."""

from html import escape

from stallwise.model.schedule import Schedule, Slot
from stallwise.report.text import show_seconds

_WIDTH, _LEFT = 760, 92
_LANE, _TOP, _BAR = 30, 8, 16
_LANES = {
    "loader": ("read",),
    "copy": ("copy",),
    "device": ("forward", "backward", "update"),
    "exchange": ("exchange",),
}
KINDS = {
    "read": "prep",
    "copy": "copy",
    "forward": "forward",
    "backward": "backward",
    "update": "compute",
    "exchange": "network",
}
STYLE = """
.stallwise svg .critical { stroke: var(--ink); stroke-width: 3; }
.stallwise svg text.lane { fill: var(--ink); }
"""


def timed(found: Schedule, key: str) -> str:
    """The picture between what it is and what it says."""
    said = (
        f"By the model, whose step takes {show_seconds(found.step_s)}; the line under a lane is the critical path, "
        "which is what to shorten."
    )
    return (
        f'<p class="dim">{escape(said)}</p>{timeline_svg(found, key)}'
        f'<p class="dim legend">{legend(found)}</p><p>{escape(path_words(found))}</p>'
    )


def timeline_svg(found: Schedule, key: str) -> str:
    """The picture, and the same in words."""
    shown = lanes(found)
    floor = _TOP + _LANE * len(shown)
    scale = (_WIDTH - _LEFT) / found.step_s
    drawn = []
    for place, (name, slots) in enumerate(shown):
        y = _TOP + _LANE * place
        drawn.append(f'<rect class="track" x="{_LEFT}" y="{y}" width="{_WIDTH - _LEFT}" height="{_BAR}" rx="2"></rect>')
        drawn.append(f'<text class="lane" x="0" y="{y + 13}">{name}</text>')
        drawn += [_bar(slot, y, scale) for slot in slots]
    drawn.append(f'<line class="axis" x1="{_LEFT}" y1="{floor}" x2="{_WIDTH}" y2="{floor}"></line>')
    drawn.append(f'<text x="{_LEFT}" y="{floor + 16}">batch taken</text>')
    end = escape(show_seconds(found.step_s))
    drawn.append(f'<text x="{_WIDTH}" y="{floor + 16}" text-anchor="end">{end}</text>')
    return (
        f'<svg class="picture" role="img" aria-labelledby="{escape(key)}-title {escape(key)}-words" '
        f'viewBox="0 0 {_WIDTH} {floor + 22}"><title id="{escape(key)}-title">A step over time</title>'
        f'<desc id="{escape(key)}-words">{escape(path_words(found))}</desc>{"".join(drawn)}</svg>'
    )


def _bar(slot: Slot, y: int, scale: float) -> str:
    x, width = _LEFT + slot.start_s * scale, max(1.0, (slot.end_s - slot.start_s) * scale)
    drawn = (
        f'<rect class="{KINDS[slot.kind]}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}">'
        f"<title>{escape(slot_words(slot))}</title></rect>"
    )
    if not slot.critical:
        return drawn
    under = y + _BAR + 4
    return drawn + f'<line class="critical" x1="{x:.1f}" y1="{under}" x2="{x + width:.1f}" y2="{under}"></line>'


def lanes(found: Schedule) -> list[tuple[str, list[Slot]]]:
    """Those that the step has, each with its slots."""
    every = ((name, [slot for slot in found.slots if slot.kind in kinds]) for name, kinds in _LANES.items())
    return [(name, slots) for name, slots in every if slots]


def slot_words(slot: Slot) -> str:
    """`backward: 12 ms to 40 ms, on the critical path`."""
    times = f"{show_seconds(slot.start_s)} to {show_seconds(slot.end_s)}"
    return f"{slot.kind}: {times}{', on the critical path' if slot.critical else ''}"


def legend(found: Schedule) -> str:
    """Which colour is what."""
    kinds = [kind for kind in KINDS if any(slot.kind == kind for slot in found.slots)]
    return " ".join(f'<span><span class="swatch {KINDS[kind]}"></span>{kind}</span>' for kind in kinds)


def path_words(found: Schedule) -> str:
    """Critical: forward 30 ms, backward 50 ms, exchange 12 ms."""
    told = [(kind, found.critical_s(kind)) for kind in KINDS]
    said = ", ".join(f"{kind} {show_seconds(seconds)}" for kind, seconds in told if seconds > 0)
    return f"On the critical path: {said or 'nothing'}."
