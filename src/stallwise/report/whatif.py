"""The terminal's view of a what-if: what changes, the step, where it goes, the curve, what is taken for granted."""

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from stallwise.model.whatif import Answer
from stallwise.record.outlook import Changed, Outlook, UsedLink
from stallwise.report.card import WIDTH, labelled
from stallwise.report.terminal import table
from stallwise.report.text import show_bounds, show_number, show_percent, show_rate, show_seconds
from stallwise.units import BITS_PER_BYTE

PARTS = {
    "compute": "forward, backward and update",
    "exchange": "exchange of gradients that compute does not hide",
    "copy": "batches going from host to device",
    "data": "waiting for the loader",
}
"""The parts of a predicted step, in the order in which they are shown."""

_LABEL = 14
_STYLES = {"compute": "green", "exchange": "blue", "copy": "cyan", "data": "yellow"}
_BAR = 20  # columns of the bar in the curve
_EVEN = 0.0005  # a part below this is not drawn


def draw(found: Outlook) -> RenderableType:
    """Everything on one screen."""
    sections: list[RenderableType] = [
        _heading(found),
        _summary(found),
        Text(),
        _Bars(found.answer),
        Text(),
        _binding(found.answer),
    ]
    if found.curve:
        sections += [Text(), _curve(found.curve, found.answer.gpus)]
    rows = labelled()
    if found.curve_ends:
        rows.add_row("curve", Text(found.curve_ends, style="dim"))
    for number, sentence in enumerate(found.assumptions):
        rows.add_row("assumed" if number == 0 else "", Text(sentence, style="dim"))
    return Constrain(Group(*sections, Text(), rows), WIDTH)


def _heading(found: Outlook) -> RenderableType:
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    line.add_column(no_wrap=True, justify="right")
    line.add_row(Text(f"{found.name}: what if", style="bold"), Text(show_fleet(found), style="dim"))
    return Group(line, Rule(style="dim"))


def show_fleet(found: Outlook) -> str:
    """16 GPUs on 2 nodes."""
    gpus, per_node = found.answer.gpus, found.gpus_per_node
    if gpus is None or per_node is None:
        return "GPUs as in the file"
    return f"{_plural(gpus, 'GPU')} on {_plural(-(-gpus // per_node), 'node')}"


def _summary(found: Outlook) -> RenderableType:
    rows = labelled()
    if not found.changed:
        rows.add_row("changed", Text("nothing", style="dim"))
    for number, change in enumerate(found.changed):
        rows.add_row("changed" if number == 0 else "", Text(show_change(change)))
    for number, link in enumerate(found.links):
        rows.add_row("links" if number == 0 else "", Text(show_link(link)))
    rows.add_row("as it is", Text(show_baseline(found)))
    rows.add_row("", Text())
    rows.add_row("predicted", _headline(found))
    return rows


def show_change(change: Changed) -> str:
    """GPUs: 1 on 1 node → 16 on 2 nodes."""
    return f"{change.name}: {change.before or 'unknown'} → {change.after}"


def show_link(used: UsedLink) -> str:
    """between nodes: 3.13 GB/s (25 Gb/s), starts in 30 µs; listed for p4d.24xlarge."""
    link, rate = used.link, used.link.bytes_per_s
    speed = "any rate" if rate is None else f"{show_rate(rate)} ({show_number(rate * BITS_PER_BYTE / 1e9)} Gb/s)"
    starts = f", starts in {show_seconds(link.latency_s)}" if link.latency_s else ""
    return f"{used.tier}: {speed}{starts}; {' '.join(filter(None, (link.origin, link.source)))}"


def show_baseline(found: Outlook) -> str:
    """measured 109 ms (105 to 123 ms), 147 samples/s; model 108 ms, 0.9 % less."""
    said = []
    if found.measured is not None:
        speed = found.measured_samples_per_s
        bounds = show_bounds(found.measured.low_s, found.measured.high_s)
        samples = "" if speed is None else f", {show_number(speed)} samples/s"
        said.append(f"measured {show_seconds(found.measured.s)} ({bounds}){samples}")
    if found.baseline is None:
        said.append("model: unknown, its links are not known")
    else:
        said.append(f"model {show_seconds(found.baseline.step_s)}{_error(found.model_error)}")
    return "; ".join(said)


def _error(error: float | None) -> str:
    if error is None:
        return ""
    if abs(error) < _EVEN:
        return ", as measured"
    return f", {show_percent(abs(error))} {'more' if error > 0 else 'less'} than measured"


def _headline(found: Outlook) -> Text:
    answer = found.answer
    line = Text.assemble((show_seconds(answer.step_s), "bold"), (f"  ({show_interval(answer)})", "dim"))
    if answer.samples_per_s is not None:
        line.append(f"   {show_number(answer.samples_per_s)} samples/s", style="bold")
    if found.speedup is not None and answer != found.baseline:
        line.append(f"   {show_speedup(found)}", style="bold")
    return line


def show_interval(answer: Answer) -> str:
    """The bounds of a step, or that there are none."""
    return show_bounds(answer.low_s, answer.high_s) if answer.bounded else "interval unknown"


def show_speedup(found: Outlook) -> str:
    """1.8 × as fast (1.5 to 2)."""
    bounds = show_gain_bounds(found)
    return f"{found.speedup:.3g} × as fast" + (f" ({bounds})" if bounds else "")


def show_gain_bounds(found: Outlook) -> str:
    """1.5 to 2, or nothing where no interval is known."""
    if not found.answer.bounded or found.speedup_low is None or found.speedup_high is None:
        return ""
    return f"{found.speedup_low:.3g} to {found.speedup_high:.3g}"


class _Bars:
    """The split as stairs, like the card's."""

    def __init__(self, answer: Answer) -> None:
        self.step_s = answer.step_s
        self.parts = parts_s(answer)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        seconds = {name: show_seconds(value) for name, value in self.parts.items()}
        percents = {name: show_percent(value / self.step_s) for name, value in self.parts.items()}
        widths = [max(map(len, column.values())) for column in (seconds, percents)]
        room = max(8, options.max_width - _LABEL - sum(widths) - 4)
        start_s = 0.0
        for name, value in self.parts.items():
            line = Text(name.ljust(_LABEL), no_wrap=True, end="\n")
            if value < _EVEN * self.step_s:
                line.append("hidden, or none", style="dim")
            else:
                line.append(_stair(start_s, value, room / self.step_s, room), style=_STYLES[name])
                line.append(f"  {seconds[name]:>{widths[0]}}", style="bold")
                line.append(f"  {percents[name]:>{widths[1]}}")
            start_s += value
            yield line


def parts_s(answer: Answer) -> dict[str, float]:
    """Seconds by part; they add up to the step."""
    split = answer.split
    return {"compute": split.compute_s, "exchange": split.exchange_s, "copy": split.copy_s, "data": split.read_s}


def _stair(start_s: float, length_s: float, scale: float, room: int) -> str:
    start = min(room - 1, round(start_s * scale))
    end = min(room, max(start + 1, round((start_s + length_s) * scale)))
    return (" " * start + "█" * (end - start)).ljust(room)


def _binding(answer: Answer) -> Table:
    rows = labelled()
    rows.add_row("binds", Text.assemble((answer.binds, f"bold {_STYLES[answer.binds]}"), f" · {show_share(answer)}"))
    rows.add_row("critical path", Text(answer.binding))
    return rows


def show_share(answer: Answer) -> str:
    """12 % of the step."""
    return f"{show_percent(parts_s(answer)[answer.binds] / answer.step_s)} of the step"


def _curve(points: tuple[Answer, ...], asked: int | None) -> Table:
    drawn = table(
        ("GPUs", "right"), ("step", "right"), "interval", ("samples/s", "right"), ("efficiency", "right"), "", "binds",
        title="predicted for other numbers of GPUs, each with its batch",
    )  # fmt: skip
    for point in points:
        speed = "unknown" if point.samples_per_s is None else show_number(point.samples_per_s)
        bar = "█" * round(_BAR * min(1.0, point.efficiency))
        drawn.add_row(
            f"{point.gpus:,}",
            show_seconds(point.step_s),
            show_interval(point),
            speed,
            show_percent(point.efficiency),
            Text(bar, style=_STYLES[point.binds]),
            point.binds,
            style="bold" if point.gpus == asked else None,
        )
    return drawn


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
