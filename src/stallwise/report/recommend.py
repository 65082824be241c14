"""The terminal's view of a recommendation: the pick, the front with a chart, why the others lost, what is assumed."""

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from stallwise.cloud.home import Home
from stallwise.cloud.measured import MeasuredChoice
from stallwise.cloud.options import Option
from stallwise.cloud.recommend import Recommendation
from stallwise.report.card import WIDTH, labelled
from stallwise.report.terminal import table
from stallwise.report.text import show_bounds, show_number, show_percent, show_seconds

_CHART_ROWS, _CHART_COLUMNS = 12, 64


def draw(found: Recommendation) -> RenderableType:
    """Everything on one screen or two."""
    sections: list[RenderableType] = [_heading(found), _summary(found)]
    if found.front:
        sections += [Text(), _front(found), Text(), _chart(found)]
    if found.neighbours:
        sections += [Text(), _losers(found)]
    rows = labelled()
    for number, sentence in enumerate(found.assumptions):
        rows.add_row("assumed" if number == 0 else "", Text(sentence, style="dim"))
    return Constrain(Group(*sections, Text(), rows), WIDTH)


def _heading(found: Recommendation) -> RenderableType:
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    line.add_column(no_wrap=True, justify="right")
    line.add_row(Text(f"{found.subject.job.name}: what to rent", style="bold"), Text(show_wish(found), style="dim"))
    return Group(line, Rule(style="dim"))


def show_wish(found: Recommendation) -> str:
    """1,281,167 samples × 90 epochs, done in 12 h, 90 % sure."""
    wish = found.wish
    said = [f"{wish.samples:,.0f} samples" + (f" × {wish.epochs:g} epochs" if wish.epochs != 1 else "")]
    if wish.deadline_s is not None:
        said.append(f"done in {show_seconds(wish.deadline_s)}")
    if wish.budget_usd is not None:
        said.append(f"at most ${wish.budget_usd:,.0f}")
    if wish.limited:
        said.append(f"{show_percent(wish.sure)} sure")
    return ", ".join(said)


def _summary(found: Recommendation) -> Table:
    rows = labelled()
    rows.add_row("answer", Text(found.verdict, style="bold"))
    if found.impossible:
        rows.add_row("", Text(found.impossible))
    rows.add_row("now", Text(show_home(found.home)))
    if found.home_better is not None:
        rows.add_row("", Text(show_home(found.home_better)))
    if found.pick is not None:
        for name, words in pick_facts(found, found.pick):
            rows.add_row(name, Text(words))
    judged = found.judged
    rows.add_row(
        "looked at",
        Text(
            f"{judged.fleets:,} fleets of {judged.types:,} instance types; {judged.no_room:,} lack memory, "
            f"the batch cannot be shared among {judged.uneven:,}",
            style="dim",
        ),
    )
    rows.add_row("prices", Text(show_age(found), style="dim"))
    return rows


def show_age(found: Recommendation) -> str:
    """How old the prices are."""
    if found.age is None:
        return "none"
    return f"listed {found.age.oldest_as_of} to {found.age.newest_as_of}, up to {found.age.age_days} days old"


def show_home(home: Home) -> str:
    """4 × A10G, 2 loader workers: 14.2 h."""
    what = f"{home.gpus} × {home.gpu}" if home.gpu else "processors"
    workers = home.more_workers if home.more_workers is not None else home.workers
    more = f" instead of {home.workers}" if home.more_workers is not None else ""
    loader = "" if workers is None else f", {workers} loader workers per GPU{more}"
    bounds = show_bounds(home.low_s, home.high_s)
    cost = ", cost unknown" if home.usd is None else f", ${home.usd:,.2f}"
    return f"{what}{loader}: {show_seconds(home.job_s)} ({bounds}){cost}"


def pick_facts(found: Recommendation, pick: Option) -> list[tuple[str, str]]:
    """The pick in labelled sentences, for every renderer."""
    instance = pick.offer.instance
    facts = [
        (
            "pick",
            f"{pick.name}: {pick.gpus} × {instance.gpu.name}, {instance.cloud} {pick.offer.zone or pick.offer.region}, "
            f"${pick.usd_per_h:,.4g}/h a machine",
        ),
        ("time", f"{show_seconds(pick.job_s)} ({show_bounds(pick.low_s, pick.high_s)}){_chance(pick.in_time)}"),
        ("cost", show_cost(pick) + _chance(pick.in_budget)),
        (
            "step",
            f"{show_seconds(pick.step_s)} ({show_bounds(pick.step_low_s, pick.step_high_s)}), "
            f"{show_number(pick.samples_per_s)} samples/s; {show_split(pick)}",
        ),
        ("settings", show_settings(pick)),
    ]
    if pick.spot is not None:
        result = pick.spot.result
        facts.append(
            (
                "spot",
                f"{result.losses:.2g} losses on average, {show_seconds(result.redone_s)} done twice; save every "
                f"{show_seconds(pick.spot.interval_s)}",
            )
        )
    if found.zones is not None:
        zones = found.zones
        facts.append(
            (
                "places",
                f"{zones.places} at ${zones.cheapest.usd_per_h:,.4g}/h "
                f"({zones.cheapest.zone or zones.cheapest.region}) to ${zones.dearest.usd_per_h:,.4g}/h "
                f"({zones.dearest.zone or zones.dearest.region}), median ${zones.median_usd_per_h:,.4g}/h: the choice "
                f"is worth {zones.dearest.usd_per_h / zones.cheapest.usd_per_h:.2g} ×",
            )
        )
    return facts


def _chance(part: float | None) -> str:
    return "" if part is None else f"; kept with {show_percent(part)}"


def show_cost(option: Option) -> str:
    """$12.34 (11.00 to 15.10): machines $10, moving the data $2, keeping a copy $0.34."""
    words = f"${option.usd:,.2f} ({option.low_usd:,.2f} to {option.high_usd:,.2f})"
    parts = [f"machines ${option.rent_usd:,.2f}"]
    for name, value in (("moving the data", option.moving_usd), ("keeping a copy", option.keeping_usd)):
        if value:
            parts.append(f"{name} ${value:,.2f}")
    return words if len(parts) == 1 else f"{words}: {', '.join(parts)}"


def show_usd_bounds(option: Option) -> str:
    """67 to 136, 0.69 to 1.44."""
    digits = 0 if option.low_usd >= 10 else 2
    return f"{option.low_usd:,.{digits}f} to {option.high_usd:,.{digits}f}"


def show_split(option: Option) -> str:
    """compute 61 %, exchange 30 %, data 9 %."""
    split, step_s = option.answer.split, option.answer.step_s
    parts = (
        ("compute", split.compute_s),
        ("exchange", split.exchange_s),
        ("copy", split.copy_s),
        ("data", split.read_s),
    )
    return ", ".join(f"{name} {show_percent(value / step_s)}" for name, value in parts if value >= 0.005 * step_s)


def show_settings(option: Option) -> str:
    """Batch, passes and loader workers."""
    passes = f" in {option.passes} passes" if option.passes > 1 else ""
    return (
        f"{option.samples_per_gpu:g} samples per GPU and step{passes} ({option.batch:g} in all), "
        f"num_workers {option.workers} per GPU"
    )


def _front(found: Recommendation) -> Table:
    drawn = table(
        "fleet", "GPUs", "where", ("time", "right"), ("cost", "right"), ("80 %", "right"), "binds",
        title="the front: nothing is both quicker and cheaper",
    )  # fmt: skip
    for option in found.front:
        picked = found.pick is not None and option.name == found.pick.name and option.offer == found.pick.offer
        drawn.add_row(
            option.name,
            f"{option.gpus} × {option.offer.instance.gpu.name}",
            option.offer.zone or option.offer.region,
            show_seconds(option.job_s),
            f"${option.usd:,.2f}",
            show_usd_bounds(option),
            "storage" if option.storage_bound else option.answer.binds,
            style="bold" if picked else None,
        )
    return drawn


def _losers(found: Recommendation) -> Table:
    rows = labelled()
    rows.columns[0].width = 34
    rows.add_row(Text("why others lost", style="bold"), Text())
    for neighbour in found.neighbours:
        option = neighbour.option
        rows.add_row(
            Text(option.name, overflow="ellipsis", no_wrap=True),
            Text(f"{show_seconds(option.job_s)}, ${option.usd:,.2f}: {neighbour.why}"),
        )
    return rows


def _chart(found: Recommendation) -> Text:
    """Time against cost, both by their logarithm: · fleets, o the front, ◆ the pick, │ the deadline, ─ the budget."""
    points = [(point.job_s, point.usd) for point in found.points if point.usd > 0]
    scale_x, scale_y = (_Scale([p[i] for p in points], n) for i, n in ((0, _CHART_COLUMNS), (1, _CHART_ROWS)))
    grid = [[" "] * _CHART_COLUMNS for _ in range(_CHART_ROWS)]
    if found.wish.deadline_s is not None and scale_x.holds(found.wish.deadline_s):
        for row in grid:
            row[scale_x.place(found.wish.deadline_s)] = "│"
    if found.wish.budget_usd is not None and scale_y.holds(found.wish.budget_usd):
        grid[_CHART_ROWS - 1 - scale_y.place(found.wish.budget_usd)] = ["─"] * _CHART_COLUMNS
    marks: list[tuple[Sequence[tuple[float, float]], str]] = [
        (points, "·"),
        ([(option.job_s, option.usd) for option in found.front], "o"),
        ([(found.pick.job_s, found.pick.usd)] if found.pick else [], "◆"),
    ]
    for group, mark in marks:
        for seconds, usd in group:
            grid[_CHART_ROWS - 1 - scale_y.place(usd)][scale_x.place(seconds)] = mark
    lines = []
    for number, row in enumerate(grid):
        label = f"${scale_y.high:,.0f}" if number == 0 else f"${scale_y.low:,.2f}" if number == _CHART_ROWS - 1 else ""
        lines.append(f"{label:>12} ▕{''.join(row)}")
    axis = f"{show_seconds(scale_x.low)}{' ' * (_CHART_COLUMNS - 14)}{show_seconds(scale_x.high)}"
    keys = "· fleets   o front   ◆ pick" + ("   │ deadline" if found.wish.deadline_s else "")
    keys += "   ─ budget" if found.wish.budget_usd else ""
    return Text("\n".join([*lines, f"{'':>14}{axis}", f"{'':>14}{keys}"]), no_wrap=True)


class _Scale:
    """From a value to one of `cells` places, by logarithm."""

    def __init__(self, values: Sequence[float], cells: int) -> None:
        self.low, self.high, self.cells = min(values, default=1.0), max(values, default=2.0), cells

    def holds(self, value: float) -> bool:
        """Whether it can be drawn."""
        return self.low <= value <= self.high

    def place(self, value: float) -> int:
        """Its cell."""
        span = math.log(self.high / self.low) or 1.0
        part = math.log(max(value, self.low) / self.low) / span
        return min(self.cells - 1, max(0, round(part * (self.cells - 1))))


def draw_measured(found: MeasuredChoice) -> RenderableType:
    """Stash's mode: configurations as measured."""
    drawn = table(
        "configuration",
        ("time", "right"),
        ("cost", "right"),
        "",
        title=f"measured configurations, {found.epochs:g} epochs",
    )
    for one, seconds, usd in found.rows:
        mark = "pick" if one.name == found.pick else "front" if one.name in found.front else ""
        late = found.deadline_s is not None and seconds > found.deadline_s
        drawn.add_row(one.name, show_seconds(seconds), f"${usd:,.2f}", "too late" if late else mark)
    return drawn
