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
from stallwise.spot.plan.fleet import Kind
from stallwise.spot.plan.outlook import Intervals, Lever, Plan, Result, Reuse
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
    """4 machines, 1 of them on-demand; with other kinds, 2 + 3 of K80."""
    asked = found.question
    machines = f"{asked.machines} {'machine' if asked.machines == 1 else 'machines'}"
    if asked.on_demand:
        machines = f"{machines}, {asked.on_demand} of them on-demand"
    for kind, spot, on_demand in asked.others:
        machines += f" + {spot + on_demand} of {kind.name}" + (f" ({on_demand} on-demand)" if on_demand else "")
    return machines


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
    if asked.zones:
        yield "zone", show_zone(found)
    if asked.prices is not None:
        yield "price", show_rule(found)
    if found.reuse is not None:
        yield "reuse", show_reuse(found.reuse)
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


def show_zone(found: Plan) -> str:
    """Which zone, of how many, and what it is worth."""
    count = len(found.question.zones) + 1
    here = found.question.kind.name.partition(",")[0]
    best = found.best_zone
    if best is None:
        return f"{here}, as planned, is the best of {count} looked at"
    name = best.said.partition(",")[0]
    return f"{name} is the best of {count} looked at: {_against(best)} against {here}"


def _against(lever: Lever) -> str:
    """43.9 min sooner, $2.38 less."""
    parts = []
    if math.isfinite(lever.saved_s) and abs(lever.saved_s) >= 1:
        parts.append(f"{show_hours(abs(lever.saved_s))} {'sooner' if lever.saved_s > 0 else 'later'}")
    if math.isfinite(lever.saved_usd) and abs(lever.saved_usd) >= 0.005:
        parts.append(f"{show_usd(abs(lever.saved_usd))} {'less' if lever.saved_usd > 0 else 'more'}")
    return ", ".join(parts) or "no difference"


def show_rule(found: Plan) -> str:
    """How the fleet follows its price."""
    rule, machines = found.question.rule, found.question.machines - found.question.on_demand
    said = [f"{machines} on spot whatever they cost (static)"]
    if rule.spend_usd_per_h is not None:
        said = [f"as many as ${rule.spend_usd_per_h:.4g}/h buys, up to {rule.most_of(machines)} (dynamic)"]
    elif math.isfinite(rule.cap_usd_per_h):
        said = [f"{machines} on spot"]
    if math.isfinite(rule.cap_usd_per_h):
        said.append(f"none above ${rule.cap_usd_per_h:.4g}/h")
    return ", ".join(said)


def show_reuse(found: Reuse) -> str:
    """Keep those of 6 h: 10.9 h expected, 11.4 h on fresh ones."""
    word = "keep" if found.keep else "replace"
    times = f"{show_time(found.kept_s)} expected on them, {show_time(found.fresh_s)} on fresh ones"
    return f"{word} the machines of {show_hours(found.age_s)}: {times}, with one loss and no checkpoint"


def _closed(found: Plan) -> str:
    expected = found.closed
    if not math.isfinite(expected.total_s):
        return "losses outrun progress: no end"
    start_s = found.question.provision_s + found.question.restart_s
    fresh = ", all machines fresh" if found.reuse is not None else ""
    return f"{show_hours(expected.total_s + start_s)} expected with {expected.losses:.3g} losses{fresh}"


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
    limited = found.question.limited
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
        "fleet": [_kind(*group) for group in asked.fleet.groups],
        "lock_step": asked.lock_step,
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
        "zone": _zone(found),
        "price": _price(found),
        "reuse": _reuse(found.reuse),
        "verdict": found.verdict,
        "method": found.method,
        "assumptions": list(found.assumptions),
    }


def _kind(kind: Kind, spot: int, on_demand: int) -> dict[str, Any]:
    return {
        "name": kind.name,
        "spot": spot,
        "on_demand": on_demand,
        "speed": kind.speed,
        "age_s": kind.age_s,
        "usd_per_h": kind.usd_per_h,
        "spot_usd_per_h": kind.spot_usd_per_h,
        "mean_life_s": plain(kind.life.mean_s),
    }


def _zone(found: Plan) -> dict[str, Any]:
    best = found.best_zone
    return {
        "planned": found.question.kind.name,
        "looked_at": len(found.question.zones) + 1,
        "best": found.question.kind.name if best is None else best.said,
        "saved_s": 0.0 if best is None else plain(best.saved_s),
        "saved_usd": 0.0 if best is None else plain(best.saved_usd),
    }


def _price(found: Plan) -> dict[str, Any] | None:
    prices, rule = found.question.prices, found.question.rule
    if prices is None:
        return None
    return {
        "days": prices.days,
        "mean_usd_per_h": prices.mean_usd_per_h,
        "cap_usd_per_h": plain(rule.cap_usd_per_h),
        "spend_usd_per_h": rule.spend_usd_per_h,
        "most": rule.most_of(found.question.machines - found.question.on_demand),
    }


def _reuse(found: Reuse | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"age_s": found.age_s, "keep": found.keep, "kept_s": plain(found.kept_s), "fresh_s": plain(found.fresh_s)}


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
