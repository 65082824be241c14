"""A plan on spot machines: the terminal's view and the JSON document."""

import math
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from stallwise.report.card import WIDTH, labelled
from stallwise.report.profile_json import plain
from stallwise.report.spot_fit import show_hours
from stallwise.report.terminal import table
from stallwise.report.text import show_percent, show_seconds
from stallwise.spot.plan.outlook import Intervals, Lever, Plan, Result
from stallwise.spot.plan.simulate import Spread

_BAR = 34
_SHOWN = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


def draw(found: Plan) -> RenderableType:
    """Everything on one screen."""
    rows = labelled()
    for number, sentence in enumerate(found.assumptions):
        rows.add_row("assumed" if number == 0 else "", Text(sentence, style="dim"))
    return Constrain(
        Group(_heading(found), _summary(found), Text(), _distribution(found), Text(), _levers(found), Text(), rows),
        WIDTH,
    )


def _heading(found: Plan) -> RenderableType:
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    line.add_column(no_wrap=True, justify="right")
    line.add_row(Text(f"{found.question.name}: plan on spot", style="bold"), Text(show_fleet(found), style="dim"))
    return Group(line, Rule(style="dim"))


def show_fleet(found: Plan) -> str:
    """4 machines, 1 of them on-demand."""
    asked = found.question
    machines = f"{asked.machines} {'machine' if asked.machines == 1 else 'machines'}"
    return machines if not asked.on_demand else f"{machines}, {asked.on_demand} of them on-demand"


def _summary(found: Plan) -> Table:
    rows = labelled()
    for name, sentence in facts(found):
        rows.add_row(name, Text(sentence, style="bold" if name in ("finish", "cost") else ""))
    return rows


def facts(found: Plan) -> Iterator[tuple[str, str]]:
    """The plan in labelled sentences."""
    asked, result = found.question, found.result
    yield "work", f"{show_hours(asked.work_s)} without any loss or checkpoint"
    yield (
        "finish",
        f"{show_spread(result.finish_s, show_time)} {_limit(asked.deadline_s, result.in_time, show_hours)}".rstrip(),
    )
    yield (
        "cost",
        f"{show_spread(result.cost_usd, show_usd)} {_limit(asked.budget_usd, result.in_budget, show_usd)}".rstrip(),
    )
    yield "on-demand", f"{show_time(found.on_demand.finish_s.median)}, {show_usd(found.on_demand.cost_usd.mean)}"
    yield "losses", f"{result.losses:.3g} expected; {show_time(result.redone_s)} of work done again"
    yield "save", show_interval(found.interval)
    yield "closed form", _closed(found)
    yield "method", found.method
    yield "do", found.verdict


def _limit(limit: float | None, part: float | None, show: Any) -> str:
    return "" if limit is None or part is None else f"  within {show(limit)}: {show_percent(part)}"


def show_spread(found: Spread, show: Any) -> str:
    """median (80 %: low to high)."""
    return f"{show(found.median)}  (80 %: {show(found.low)} to {show(found.high)}; mean {show(found.mean)})"


def show_time(value_s: float) -> str:
    """A time, or that there is none."""
    return show_hours(value_s) if math.isfinite(value_s) else "never"


def show_usd(value: float) -> str:
    """$12.34, $1,230."""
    if not math.isfinite(value):
        return "no end"
    return f"${value:,.0f}" if value >= 1000 else f"${value:.2f}"


def show_interval(found: Intervals) -> str:
    """every 12.8 min (least mean finish …); Young-Daly 9.13 min; programme on fresh machines 4, 4, 8 … min."""
    used = f"every {show_seconds(found.used_s)} of work ({found.why})"
    rules = [] if not math.isfinite(found.young_daly_s) else [f"Young-Daly {show_seconds(found.young_daly_s)}"]
    if found.schedule_s:
        first = ", ".join(f"{value / 60:.3g}" for value in found.schedule_s[:5])
        more = " …" if len(found.schedule_s) > 5 else ""
        rules.append(f"by dynamic programme, fresh machines: {first}{more} min")
    return "; ".join([used, *rules])


def _closed(found: Plan) -> str:
    expected = found.closed
    if not math.isfinite(expected.total_s):
        return "losses outrun progress: no end"
    start_s = found.question.provision_s + found.question.restart_s
    return f"{show_hours(expected.total_s + start_s)} expected with {expected.losses:.3g} losses"


def _distribution(found: Plan) -> Table:
    drawn = table(("in", "right"), ("finished by", "right"), "", ("cost up to", "right"), title="distribution")
    times, costs = dict(found.finish_quantiles), dict(found.cost_quantiles)
    most = max([value for value in times.values() if math.isfinite(value)], default=1.0)
    for level in _SHOWN:
        part = min(1.0, times[level] / most) if math.isfinite(times[level]) else 1.0
        drawn.add_row(
            show_percent(level),
            show_time(times[level]),
            Text("█" * round(_BAR * part), style="green"),
            show_usd(costs[level]),
        )
    return drawn


def _levers(found: Plan) -> Table:
    limited = found.question.deadline_s is not None or found.question.budget_usd is not None
    drawn = table(
        "lever", "", ("finish", "right"), ("cost", "right"), ("time saved", "right"), ("saved", "right"),
        title="what each lever is worth, alone (mean finish and cost)",
    )  # fmt: skip
    drawn.columns[1].no_wrap = False
    if limited:
        drawn.add_column("in limits", justify="right", no_wrap=True)
    cells = ["as planned", "", *_means(found.result), "", ""]
    drawn.add_row(*cells, *([show_percent(found.result.within)] if limited else []), style="bold")
    for lever in found.levers:
        cells = [lever.name, lever.said, *_means(lever.result), show_saved_s(lever), show_saved_usd(lever)]
        drawn.add_row(*cells, *([show_percent(lever.result.within)] if limited else []))
    return drawn


def _means(result: Result) -> tuple[str, str]:
    return show_time(result.finish_s.mean), show_usd(result.cost_usd.mean)


def show_saved_s(lever: Lever) -> str:
    """1.2 h, or − 1.2 h."""
    return _signed(lever.saved_s, show_hours(abs(lever.saved_s)))


def show_saved_usd(lever: Lever) -> str:
    """$3.10, or − $3.10."""
    return _signed(lever.saved_usd, show_usd(abs(lever.saved_usd)))


def _signed(value: float, shown: str) -> str:
    if not math.isfinite(value):
        return "unknown"
    if abs(value) < 0.005:
        return "none"
    return f"− {shown}" if value < 0 else shown


def document(found: Plan) -> dict[str, Any]:
    """Plain values; None for what is not known or has no end."""
    asked = found.question
    return {
        "name": asked.name,
        "machines": asked.machines,
        "on_demand_machines": asked.on_demand,
        "on_loss": asked.on_loss,
        "work_s": asked.work_s,
        "save_s": asked.save_s,
        "provision_s": asked.provision_s,
        "restart_s": asked.restart_s,
        "usd_per_h": asked.kind.usd_per_h,
        "spot_usd_per_h": asked.kind.spot_usd_per_h,
        "mean_life_s": plain(asked.kind.life.mean_s),
        "deadline_s": asked.deadline_s,
        "budget_usd": asked.budget_usd,
        "plan": _result(found.result),
        "on_demand": _result(found.on_demand),
        "closed_form": {"total_s": plain(found.closed.total_s), "losses": plain(found.closed.losses)},
        "interval": {
            "used_s": plain(found.interval.used_s),
            "why": found.interval.why,
            "young_daly_s": plain(found.interval.young_daly_s),
            "schedule_s": list(found.interval.schedule_s),
            "tried": [{"interval_s": at, "mean_finish_s": plain(mean)} for at, mean in found.interval.tried],
        },
        "finish_quantiles": [{"level": level, "s": plain(value)} for level, value in found.finish_quantiles],
        "cost_quantiles": [{"level": level, "usd": plain(value)} for level, value in found.cost_quantiles],
        "levers": [_lever(lever) for lever in found.levers],
        "verdict": found.verdict,
        "method": found.method,
        "assumptions": list(found.assumptions),
    }


def _lever(lever: Lever) -> dict[str, Any]:
    saved = {"saved_s": plain(lever.saved_s), "saved_usd": plain(lever.saved_usd)}
    return {"name": lever.name, "said": lever.said, **saved, **_result(lever.result)}


def _result(result: Result) -> dict[str, Any]:
    return {
        "finish_s": _spread(result.finish_s),
        "cost_usd": _spread(result.cost_usd),
        "finished": result.finished,
        "in_time": result.in_time,
        "in_budget": result.in_budget,
        "within": result.within,
        "losses": result.losses,
        "redone_s": result.redone_s,
        "switched": result.switched,
    }


def _spread(found: Spread) -> dict[str, Any]:
    return {
        "mean": plain(found.mean),
        "median": plain(found.median),
        "low": plain(found.low),
        "high": plain(found.high),
    }
