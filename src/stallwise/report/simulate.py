"""A comparison of policies in the terminal: one table per setting, and the cluster over time as a line of blocks."""

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from stallwise.cluster.comparison import Comparison, Setting, Standing, verdict
from stallwise.cluster.traces.checks import load_sentence
from stallwise.report.terminal import table
from stallwise.report.text import show_number, show_percent

_WIDTH = 100
_LABEL = 14
_BLOCKS = " ▁▂▃▄▅▆▇█"
_SPARK = 34

Show = Callable[[float], str]


def show_time(value_s: float) -> str:
    """Three digits whatever the span: 41 s, 8.1 min, 38.4 h, 18.7 d, 1,480 d. Ten columns have to fit."""
    for unit_s, unit, most in ((1.0, "s", 100), (60.0, "min", 100), (3600.0, "h", 100)):
        if value_s / unit_s < most:
            return f"{_short(value_s / unit_s)} {unit}"
    return f"{_short(value_s / 86400)} d"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def show_count(value: float) -> str:
    """So many; a mean over seeds need not be whole."""
    return f"{value:,.0f}"


def show_many(value: float) -> str:
    """Likewise, thousands from 100,000 on: 9,369, 204k."""
    return show_count(value) if value < 99_950 else f"{value / 1000:,.0f}k"


# Figure, heading, how it is written, and what it says.
COLUMNS: tuple[tuple[str, str, Show, str], ...] = (
    ("jct_mean_s", "JCT mean", show_time, "arrival to end, mean over jobs"),
    ("jct_median_s", "median", show_time, "of the same"),
    ("jct_p95_s", "p95", show_time, "of the same: 95 % of the jobs take no longer"),
    ("queue_mean_s", "waiting", show_time, "without GPUs, at first and after every preemption; mean"),
    ("makespan_s", "makespan", show_time, "first arrival to last end"),
    ("utilisation", "used", show_percent, "full-speed work over all GPU time until the last end"),
    ("comm_share", "lost", show_percent, "time with GPUs lost to slow placements"),
    ("fragmentation", "idle", show_percent, "GPUs free although a waiting job was small enough"),
    ("fairness_p95", "ρ p95", show_number, "JCT over that of an equal share of the cluster"),
    ("preemptions", "stops", show_many, "preemptions of all jobs"),
)
INTERVAL = "± 95 %"
"""Heading of the interval of the first of them over seeds."""


def draw(found: Comparison) -> RenderableType:
    """Everything, setting by setting."""
    parts: list[RenderableType] = [_heading(found)]
    for setting in found.settings:
        parts += [_setting(found, setting), Text()]
    return Constrain(Group(*parts, _notes(found)), _WIDTH)


def _heading(found: Comparison) -> RenderableType:
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    line.add_column(no_wrap=True, justify="right")
    how = [found.format, f"arrivals {found.arrivals}"]
    if found.seeds > 1:
        how.append(f"{found.seeds} seeds")
    if found.contention:
        how.append("with contention")
    line.add_row(Text(f"{found.source}: {found.jobs:,} jobs", style="bold"), Text(" · ".join(how), style="dim"))
    return Group(line, Rule(style="dim"))


def show_setting(setting: Setting) -> str:
    """racks=2,machines=8,gpus=8: 128 GPUs; jobs come 1.5 times as fast."""
    speed = "" if setting.load == 1 else f"; jobs come {setting.load:g} times as fast"
    return f"{setting.cluster}: {setting.gpus:,} GPUs{speed}"


def _setting(found: Comparison, setting: Setting) -> RenderableType:
    rows = _labelled()
    rows.add_row("cluster", show_setting(setting))
    rows.add_row("load", load_sentence(setting.asked))
    said = verdict(setting)
    if said:
        rows.add_row("best", Text(said, style="bold"))
    return Group(rows, Text(), _figures(setting, spread=found.seeds > 1), Text(), _over_time(setting))


def _figures(setting: Setting, *, spread: bool) -> Table:
    """With several seeds the mean completion time has its 95 % interval beside it."""
    headings = [heading for _, heading, _, _ in COLUMNS]
    if spread:
        headings.insert(1, INTERVAL)
    drawn = table("policy", *((heading, "right") for heading in headings))
    for standing in setting.standings:
        cells = [_cell(setting, standing, figure, show) for figure, _, show, _ in COLUMNS]
        if spread:
            cells.insert(1, Text(show_interval(standing, COLUMNS[0][0]), style="dim"))
        drawn.add_row(show_policy(standing), *cells)
    return drawn


def show_policy(standing: Standing) -> str:
    """Its name; a star for one that reads durations."""
    return f"{standing.policy}*" if standing.clairvoyant else standing.policy


def show_interval(standing: Standing, figure: str) -> str:
    """±1.8 %: how far the mean over seeds may lie from that over all seeds there could be, with 95 %."""
    mean = standing.mean[figure]
    return f"±{(standing.interval(figure)[1] - mean) / mean:.1%}".replace("%", " %") if mean > 0 else ""


def _cell(setting: Setting, standing: Standing, figure: str, show: Show) -> Text:
    value = standing.mean[figure]
    best = len(setting.standings) > 1 and value == setting.best(figure)
    return Text(show(value), style="bold green" if best else "")


def _over_time(setting: Setting) -> Table:
    drawn = table("over time", "busy GPUs", ("most", "right"), "waiting jobs", ("most", "right"))
    most_busy = setting.gpus
    most_waiting = max((max(_waiting(standing), default=0.0) for standing in setting.standings), default=0.0)
    for standing in setting.standings:
        busy, waiting = standing.runs[0].timeline.busy_gpus, _waiting(standing)
        drawn.add_row(
            show_policy(standing),
            Text(spark(list(busy), most_busy), style="green"),
            show_count(max(busy, default=0.0)),
            Text(spark(waiting, most_waiting), style="yellow"),
            show_count(max(waiting, default=0.0)),
        )
    return drawn


def _waiting(standing: Standing) -> list[float]:
    return [float(value) for value in standing.runs[0].timeline.waiting_jobs]


def spark(values: Sequence[float], most: float) -> str:
    """A line of blocks, each the mean of its stretch; full height is `most`."""
    if not values or most <= 0:
        return ""
    made = []
    for i in range(_SPARK):
        low = i * len(values) // _SPARK
        part = values[low : max(low + 1, (i + 1) * len(values) // _SPARK)]
        level = sum(part) / len(part) / most
        made.append(_BLOCKS[max(int(level > 0), min(8, round(level * 8)))])
    return "".join(made).rstrip()


def _notes(found: Comparison) -> Table:
    rows = _labelled()
    for number, sentence in enumerate(notes(found)):
        rows.add_row("notes" if number == 0 else "", Text(sentence, style="dim"))
    return rows


def notes(found: Comparison) -> list[str]:
    """What has to be known to read the figures."""
    starred = any(standing.clairvoyant for setting in found.settings for standing in setting.standings)
    return [*found.notes, *(["* reads durations, which no scheduler knows of a real job."] if starred else [])]


def _labelled() -> Table:
    """A label and a text that wraps. The profile card has the same; importing it would bring a run's readers along."""
    rows = Table.grid(padding=0)
    rows.add_column(style="dim", width=_LABEL, no_wrap=True)
    rows.add_column(overflow="fold")
    return rows
