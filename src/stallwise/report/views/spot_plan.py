"""A plan on spot machines: its view, and JSON."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from stallwise.report.format import plural, show_number, show_percent, show_seconds, show_usd
from stallwise.report.html import page as html_page
from stallwise.report.json import plain, schema
from stallwise.report.view import (
    Axis,
    Chart,
    Figures,
    Limit,
    Line,
    Notes,
    Paragraph,
    Part,
    Row,
    Series,
    Span,
    TablePart,
    View,
    facts,
    number,
    section,
    table,
    words,
)
from stallwise.spot.plan.fleet import MachineKind
from stallwise.spot.plan.request import CONFIDENCE, CheckpointIntervals, MachineReuse, PlanLever, PlanResult, SpotPlan
from stallwise.spot.plan.simulate import OutcomeSpread

_SHOWN = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


def draw(plan: SpotPlan) -> View:
    """When it is finished, what it costs, how often to save, what each lever is worth."""
    sentences = dict(plan_facts(plan))
    names = [name for name in ("losses", "zone", "price", "reuse", "closed form") if name in sentences]
    paragraphs = [("do", plan.verdict), *((name, sentences[name]) for name in names)]
    strong = ("finish", "cost")
    summary: list[tuple[str, Line]] = [
        (name, Span(sentence, "strong") if name in strong else sentence) for name, sentence in sentences.items()
    ]
    kind = "compute" if plan.result.within >= CONFIDENCE else "fetch"
    return View(
        f"{plan.request.name}: plan on spot",
        show_fleet(plan),
        (_figures(plan), facts(summary, only="terminal"), facts(paragraphs, box=kind, only="page")),
        (
            section("When it is finished", "finish", _distribution(plan), _quantiles(plan, "finish")),
            section("What it costs", "cost", _quantiles(plan, "cost")),
            section("How often to save", "interval", *_interval(plan)),
            section("What each lever is worth", "levers", _levers(plan)),
            section("Assumed", "assumed", Notes("assumed", tuple(plan.assumptions))),
        ),
        key="spot",
        subtitle=f"{show_fleet(plan)} · {plan.method}",
    )


def page(plan: SpotPlan) -> str:
    """The plan as one self-contained HTML page."""
    return html_page(draw(plan))


def show_fleet(plan: SpotPlan) -> str:
    """4 machines, 1 of them on-demand; with other kinds, 2 + 3 of K80."""
    question = plan.request
    machines = f"{plural(question.machines, 'machine')}"
    if question.on_demand:
        machines = f"{machines}, {question.on_demand} of them on-demand"
    for kind, spot, on_demand in question.others:
        machines += f" + {spot + on_demand} of {kind.name}" + (f" ({on_demand} on-demand)" if on_demand else "")
    return machines


def plan_facts(plan: SpotPlan) -> Iterator[tuple[str, str]]:
    """The plan in labelled sentences."""
    question, result = plan.request, plan.result
    yield "work", f"{show_seconds(question.work_s)} without any loss or checkpoint"
    in_time = _limit(question.deadline_s, result.in_time, show_seconds)
    yield "finish", f"{show_spread(result.finish_s, show_seconds)} {in_time}".rstrip()
    yield (
        "cost",
        f"{show_spread(result.cost_usd, show_usd)} {_limit(question.budget_usd, result.in_budget, show_usd)}".rstrip(),
    )
    yield "on-demand", f"{show_seconds(plan.on_demand.finish_s.median)}, {show_usd(plan.on_demand.cost_usd.mean)}"
    yield "losses", f"{show_number(result.losses)} expected; {show_seconds(result.redone_s)} of work done again"
    yield "save", show_interval(plan.interval)
    if question.zones:
        yield "zone", show_zone(plan)
    if question.prices is not None:
        yield "price", show_rule(plan)
    if plan.reuse is not None:
        yield "reuse", show_reuse(plan.reuse)
    yield "closed form", _closed(plan)
    yield "method", plan.method
    yield "do", plan.verdict


def _limit(limit: float | None, part: float | None, show: Any) -> str:
    return "" if limit is None or part is None else f"  within {show(limit)}: {show_percent(part)}"


def show_spread(spread: OutcomeSpread, show: Any) -> str:
    """median (80 %: low to high)."""
    return f"{show(spread.median)}  (80 %: {show(spread.low)} to {show(spread.high)}; mean {show(spread.mean)})"


def show_interval(intervals: CheckpointIntervals) -> str:
    """every 12.8 min (least mean finish …); Young-Daly 9.13 min; programme on fresh machines 4, 4, 8 … min."""
    used = f"every {show_seconds(intervals.used_s)} of work ({intervals.why})"
    rules = [] if not math.isfinite(intervals.young_daly_s) else [f"Young-Daly {show_seconds(intervals.young_daly_s)}"]
    if intervals.schedule_s:
        first = ", ".join(show_number(value / 60) for value in intervals.schedule_s[:5])
        more = " …" if len(intervals.schedule_s) > 5 else ""
        rules.append(f"by dynamic programme, fresh machines: {first}{more} min")
    return "; ".join([used, *rules])


def show_zone(plan: SpotPlan) -> str:
    """Which zone, of how many, and what it is worth."""
    count = len(plan.request.zones) + 1
    planned = plan.request.kind.name.partition(",")[0]
    best = plan.best_zone
    if best is None:
        return f"{planned}, as planned, is the best of {count} looked at"
    name = best.description.partition(",")[0]
    return f"{name} is the best of {count} looked at: {_against(best)} against {planned}"


def _against(lever: PlanLever) -> str:
    """43.9 min sooner, $2.38 less."""
    parts = []
    if math.isfinite(lever.saved_s) and abs(lever.saved_s) >= 1:
        parts.append(f"{show_seconds(abs(lever.saved_s))} {'sooner' if lever.saved_s > 0 else 'later'}")
    if math.isfinite(lever.saved_usd) and abs(lever.saved_usd) >= 0.005:
        parts.append(f"{show_usd(abs(lever.saved_usd))} {'less' if lever.saved_usd > 0 else 'more'}")
    return ", ".join(parts) or "no difference"


def show_rule(plan: SpotPlan) -> str:
    """How the fleet follows its price."""
    rule, machines = plan.request.rule, plan.request.machines - plan.request.on_demand
    parts = [f"{machines} on spot whatever they cost (static)"]
    if rule.spend_usd_per_h is not None:
        parts = [f"as many as {show_usd(rule.spend_usd_per_h)}/h buys, up to {rule.most_of(machines)} (dynamic)"]
    elif math.isfinite(rule.cap_usd_per_h):
        parts = [f"{machines} on spot"]
    if math.isfinite(rule.cap_usd_per_h):
        parts.append(f"none above {show_usd(rule.cap_usd_per_h)}/h")
    return ", ".join(parts)


def show_reuse(reuse: MachineReuse) -> str:
    """Keep those of 6 h: 10.9 h expected, 11.4 h on fresh ones."""
    word = "keep" if reuse.keep else "replace"
    times = f"{show_seconds(reuse.kept_s)} expected on them, {show_seconds(reuse.fresh_s)} on fresh ones"
    return f"{word} the machines of {show_seconds(reuse.age_s)}: {times}, with one loss and no checkpoint"


def _closed(plan: SpotPlan) -> str:
    expected = plan.closed
    if not math.isfinite(expected.total_s):
        return "losses outrun progress: no end"
    start_s = plan.request.provision_s + plan.request.restart_s
    fresh = ", all machines fresh" if plan.reuse is not None else ""
    return f"{show_seconds(expected.total_s + start_s)} expected with {show_number(expected.losses)} losses{fresh}"


def _distribution(plan: SpotPlan) -> TablePart:
    times, costs = dict(plan.finish_quantiles), dict(plan.cost_quantiles)
    rows = ((show_percent(level), show_seconds(times[level]), show_usd(costs[level])) for level in _SHOWN)
    columns = (number("of replays"), number("finished by"), number("cost up to"))
    return table(columns, rows, "distribution", only="terminal")


def _levers(plan: SpotPlan) -> TablePart:
    limited = plan.request.limited
    columns = (
        "lever",
        words(""),
        number("finish"),
        number("cost"),
        number("time saved", 1),
        number("saved", 2),
        *((number("in limits"),) if limited else ()),
    )
    results: list[tuple[str, str, PlanResult, str, str]] = [("as planned", "", plan.result, "", "")]
    results += [(one.name, one.description, one.result, show_saved_s(one), show_saved_usd(one)) for one in plan.levers]
    rows = (
        Row(
            (
                name,
                description,
                show_seconds(result.finish_s.mean),
                show_usd(result.cost_usd.mean),
                saved_s,
                saved_usd,
                *((show_percent(result.within),) if limited else ()),
            ),
            tone="strong" if result is plan.result else "",
        )
        for name, description, result, saved_s, saved_usd in results
    )
    return table(columns, rows, "what each lever is worth, alone (mean finish and cost)")


def show_saved_s(lever: PlanLever) -> str:
    """1.2 h, or − 1.2 h."""
    return _signed(lever.saved_s, show_seconds(abs(lever.saved_s)))


def show_saved_usd(lever: PlanLever) -> str:
    """$3.10, or − $3.10."""
    return _signed(lever.saved_usd, show_usd(abs(lever.saved_usd)))


def _signed(value: float, shown: str) -> str:
    if not math.isfinite(value):
        return "unknown"
    if abs(value) < 0.005:
        return "none"
    return f"− {shown}" if value < 0 else shown


def document(plan: SpotPlan) -> dict[str, Any]:
    """Plain values; None for what is not known or has no end."""
    question = plan.request
    return {
        **schema("spot-plan"),
        "name": question.name,
        "machines": question.machines,
        "on_demand_machines": question.on_demand,
        "fleet": [_kind(*group) for group in question.fleet.groups],
        "lock_step": question.lock_step,
        "on_loss": question.on_loss,
        "work_s": question.work_s,
        "save_s": question.save_s,
        "provision_s": question.provision_s,
        "restart_s": question.restart_s,
        "usd_per_h": question.kind.usd_per_h,
        "spot_usd_per_h": question.kind.spot_usd_per_h,
        "mean_life_s": plain(question.kind.life.mean_s),
        "deadline_s": question.deadline_s,
        "budget_usd": question.budget_usd,
        "plan": _result(plan.result),
        "on_demand": _result(plan.on_demand),
        "closed_form": {"total_s": plain(plan.closed.total_s), "losses": plain(plan.closed.losses)},
        "interval": {
            "used_s": plain(plan.interval.used_s),
            "why": plan.interval.why,
            "young_daly_s": plain(plan.interval.young_daly_s),
            "schedule_s": list(plan.interval.schedule_s),
            "tried": [{"interval_s": at, "mean_finish_s": plain(mean)} for at, mean in plan.interval.tried],
        },
        "finish_quantiles": [{"level": level, "s": plain(value)} for level, value in plan.finish_quantiles],
        "cost_quantiles": [{"level": level, "usd": plain(value)} for level, value in plan.cost_quantiles],
        "levers": [_lever(lever) for lever in plan.levers],
        "zone": _zone(plan),
        "price": _price(plan),
        "reuse": _reuse(plan.reuse),
        "verdict": plan.verdict,
        "code": "within-limits" if plan.result.within >= CONFIDENCE else "outside-limits",
        "method": plan.method,
        "assumptions": list(plan.assumptions),
    }


def _kind(kind: MachineKind, spot: int, on_demand: int) -> dict[str, Any]:
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


def _zone(plan: SpotPlan) -> dict[str, Any]:
    best = plan.best_zone
    return {
        "planned": plan.request.kind.name,
        "looked_at": len(plan.request.zones) + 1,
        "best": plan.request.kind.name if best is None else best.description,
        "saved_s": 0.0 if best is None else plain(best.saved_s),
        "saved_usd": 0.0 if best is None else plain(best.saved_usd),
    }


def _price(plan: SpotPlan) -> dict[str, Any] | None:
    prices, rule = plan.request.prices, plan.request.rule
    if prices is None:
        return None
    return {
        "days": prices.days,
        "mean_usd_per_h": prices.mean_usd_per_h,
        "cap_usd_per_h": plain(rule.cap_usd_per_h),
        "spend_usd_per_h": rule.spend_usd_per_h,
        "most": rule.most_of(plan.request.machines - plan.request.on_demand),
    }


def _reuse(reuse: MachineReuse | None) -> dict[str, Any] | None:
    if reuse is None:
        return None
    return {"age_s": reuse.age_s, "keep": reuse.keep, "kept_s": plain(reuse.kept_s), "fresh_s": plain(reuse.fresh_s)}


def _lever(lever: PlanLever) -> dict[str, Any]:
    saved = {"saved_s": plain(lever.saved_s), "saved_usd": plain(lever.saved_usd)}
    return {"name": lever.name, "said": lever.description, **saved, **_result(lever.result)}


def _result(result: PlanResult) -> dict[str, Any]:
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


def _spread(spread: OutcomeSpread) -> dict[str, Any]:
    return {
        "mean": plain(spread.mean),
        "median": plain(spread.median),
        "low": plain(spread.low),
        "high": plain(spread.high),
    }


def _figures(plan: SpotPlan) -> Figures:
    question, result = plan.request, plan.result
    figures = [
        ("finish, median", show_seconds(result.finish_s.median), _range(result.finish_s, show_seconds)),
        ("cost, median", show_usd(result.cost_usd.median), _range(result.cost_usd, show_usd)),
        ("on-demand", show_usd(plan.on_demand.cost_usd.mean), show_seconds(plan.on_demand.finish_s.mean)),
    ]
    if question.deadline_s is not None and result.in_time is not None:
        figures.append(("in time", show_percent(result.in_time), f"within {show_seconds(question.deadline_s)}"))
    if question.budget_usd is not None and result.in_budget is not None:
        figures.append(("in budget", show_percent(result.in_budget), f"up to {show_usd(question.budget_usd)}"))
    return Figures(tuple(figures))


def _range(spread: OutcomeSpread, show: Callable[[float], str]) -> str:
    return f"80 %: {show(spread.low)} to {show(spread.high)}"


def _quantiles(plan: SpotPlan, what: str) -> Part:
    """The fraction of replays that are done by a time, or stay within a cost."""
    times = what == "finish"
    points = [pair for pair in (plan.finish_quantiles if times else plan.cost_quantiles) if math.isfinite(pair[1])]
    limit = plan.request.deadline_s if times else plan.request.budget_usd
    if len(points) < 2:
        return Paragraph("The job does not finish in the replays.", only="page")
    values = [value for _, value in points] + ([limit] if limit is not None else [])
    half = next((value for level, value in points if level >= 0.5), points[-1][1])
    show: Callable[[float], str] = show_seconds if times else show_usd
    return Chart(
        f"spot-{what}-chart",
        "Fraction of replays",
        f"Half of the replays {'are finished by' if times else 'cost up to'} {show(half)}.",
        Axis(show, low=min(values), high=max(values)),
        Axis(show_percent, low=0.0, high=1.0),
        (Series("", tuple((value, level) for level, value in points)),),
        limits=() if limit is None else (Limit("x", limit, "deadline" if times else "budget"),),
        only="page",
    )


def _interval(plan: SpotPlan) -> Iterator[Part]:
    yield Paragraph(f"{show_interval(plan.interval)}.", only="page")
    if plan.interval.tried:
        rows = ((show_seconds(at), show_seconds(mean)) for at, mean in plan.interval.tried)
        columns = ("work between checkpoints", number("mean finish"))
        yield table(columns, rows, "Mean finish with checkpoints so far apart.", only="page")
