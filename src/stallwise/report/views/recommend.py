"""A recommendation: the pick, the front with a chart, why others lost, what is assumed; its view, and JSON."""

import math
from collections.abc import Iterator
from typing import Any

from stallwise.cloud.handover import spot_plan_words
from stallwise.cloud.measured import MeasuredChoice
from stallwise.cloud.options import FleetOption, OwnMachine
from stallwise.cloud.recommend import Recommendation, SearchCounts
from stallwise.report.format import (
    plural,
    show_bounds,
    show_count,
    show_factor,
    show_number,
    show_percent,
    show_probability,
    show_seconds,
    show_usd,
    show_usd_bounds,
)
from stallwise.report.html import page as html_page
from stallwise.report.json import schema
from stallwise.report.view import (
    Axis,
    Cell,
    Chart,
    Figures,
    Limit,
    Line,
    Notes,
    PartColumn,
    Points,
    Row,
    Series,
    Span,
    TablePart,
    View,
    facts,
    number,
    section,
    table,
    view,
    words,
)


def draw(recommendation: Recommendation) -> View:
    """The answer, the front, why others lost, what is assumed."""
    notes = (*recommendation.warnings, *recommendation.assumptions)
    return View(
        f"{recommendation.model.job.name}: what to rent",
        show_request(recommendation),
        (
            *_figures(recommendation),
            facts(_summary(recommendation), only="terminal"),
            facts(_page_facts(recommendation), box="", only="page"),
        ),
        (
            section("The front", "front", *_front(recommendation)),
            section("Time and cost", "picture", *_chart(recommendation)),
            section("Why others lost", "lost", *_losers(recommendation)),
            section(
                "Assumed",
                "assumed",
                Notes("assumed", recommendation.assumptions, only="terminal"),
                Notes("assumed", notes, only="page"),
            ),
        ),
        key="recommend",
        subtitle=f"{show_request(recommendation)} · prices {show_age(recommendation)}",
    )


def page(recommendation: Recommendation) -> str:
    """The recommendation as one self-contained HTML page."""
    return html_page(draw(recommendation))


def show_request(recommendation: Recommendation) -> str:
    """1,281,167 samples × 90 epochs, done in 12 h, 90 % confidence."""
    request = recommendation.request
    epochs = f" × {show_number(request.epochs)} epochs" if request.epochs != 1 else ""
    limits = [f"{show_count(request.samples)} samples{epochs}"]
    if request.deadline_s is not None:
        limits.append(f"done in {show_seconds(request.deadline_s)}")
    if request.budget_usd is not None:
        limits.append(f"at most {show_usd(request.budget_usd)}")
    if request.limited:
        limits.append(f"{show_percent(request.confidence)} confidence")
    return ", ".join(limits)


def _summary(recommendation: Recommendation) -> Iterator[tuple[str, Line]]:
    yield "answer", Span(recommendation.verdict, "strong")
    if recommendation.impossible:
        yield "answer", recommendation.impossible
    yield from _own_machines(recommendation)
    if recommendation.pick is not None:
        yield from pick_facts(recommendation, recommendation.pick)
    judged = recommendation.search_counts
    looked_at = f"{plural(judged.fleets, 'fleet')} of {plural(judged.types, 'instance type')}{_refused(judged)}"
    yield "looked at", Span(looked_at, "dim")
    yield "prices", Span(show_age(recommendation), "dim")


def _own_machines(recommendation: Recommendation) -> Iterator[tuple[str, Line]]:
    yield "now", show_own_machine(recommendation.own_machine)
    if recommendation.own_machine_tuned is not None:
        yield "more workers", show_own_machine(recommendation.own_machine_tuned)


def _page_facts(recommendation: Recommendation) -> Iterator[tuple[str, Line]]:
    yield "", Span(recommendation.verdict, "strong")
    if recommendation.impossible:
        yield "", Span(recommendation.impossible, "strong")
    yield from _own_machines(recommendation)
    if recommendation.pick is not None:
        yield from pick_facts(recommendation, recommendation.pick)


def _refused(judged: SearchCounts) -> str:
    """The reasons for which fleets were excluded, with counts."""
    reasons = (
        (judged.no_room, "lack memory"),
        (judged.uneven, "cannot share the batch evenly"),
        (judged.large_batch, "would grow the global batch beyond 8 times the measured one"),
    )
    excluded = ", ".join(f"{count:,} {reason}" for count, reason in reasons if count)
    return f"; {excluded}" if excluded else ""


def show_age(recommendation: Recommendation) -> str:
    """How old the prices are."""
    age = recommendation.age
    return "none" if age is None else f"listed {age.oldest_as_of} to {age.newest_as_of}, up to {age.age_days} days old"


def show_own_machine(home: OwnMachine) -> str:
    """4 × A10G, 2 loader workers per GPU: 14.2 h."""
    what = f"{home.gpus} × {home.gpu}" if home.gpu else "CPUs"
    workers = home.more_workers if home.more_workers is not None else home.workers
    more = f" instead of {home.workers}" if home.more_workers is not None else ""
    loader = (
        "" if workers is None else f", {plural(workers, 'loader worker')} per {'GPU' if home.gpu else 'process'}{more}"
    )
    bounds = show_bounds(home.low_s, home.high_s)
    cost = ", cost unknown" if home.usd is None else f", {show_usd(home.usd)}"
    return f"{what}{loader}: {show_seconds(home.job_s)} ({bounds}){cost}"


def pick_facts(recommendation: Recommendation, pick: FleetOption) -> Iterator[tuple[str, str]]:
    """The pick in labelled sentences."""
    instance, offer = pick.offer.instance, pick.offer
    yield (
        "pick",
        f"{pick.name}: {pick.gpus} × {instance.gpu.name}, {instance.cloud} {offer.zone or offer.region}, "
        f"{show_usd(pick.usd_per_h)}/h a machine, a price of {offer.origin.as_of}",
    )
    time = f"{show_seconds(pick.job_s)} ({show_bounds(pick.low_s, pick.high_s)})"
    yield "time", time + _chance("meets the deadline", pick.in_time)
    yield "cost", show_cost(pick) + _chance("keeps the budget", pick.in_budget)
    yield (
        "step",
        f"{show_seconds(pick.step_s)} ({show_bounds(pick.step_low_s, pick.step_high_s)}), "
        f"{show_number(pick.samples_per_s)} samples/s; {show_split(pick)}",
    )
    yield "settings", show_settings(pick)
    if pick.spot is not None:
        result = pick.spot.result
        yield (
            "spot",
            f"{show_number(result.losses)} losses on average, {show_seconds(result.redone_s)} done twice; save every "
            f"{show_seconds(pick.spot.interval_s)}",
        )
    if recommendation.zones is not None:
        zones = recommendation.zones
        low, high = zones.cheapest, zones.dearest
        places = (
            f"{zones.places} at {show_usd(low.usd_per_h)}/h ({low.zone or low.region}) to {show_usd(high.usd_per_h)}/h "
            f"({high.zone or high.region}), median {show_usd(zones.median_usd_per_h)}/h"
        )
        ratio = high.usd_per_h / low.usd_per_h if low.usd_per_h else 1.0
        yield "places", places if ratio < 1.05 else f"{places}: prices differ by up to {show_factor(ratio)}"


def _chance(what: str, fraction: float | None) -> str:
    return "" if fraction is None else f"; {what} with {show_probability(fraction)} probability"


def show_cost(option: FleetOption) -> str:
    """$12.34 ($11 to $15): machines $10, moving the data $2, keeping a copy $0.34."""
    whole = f"{show_usd(option.usd)} ({show_usd_bounds(option.low_usd, option.high_usd)})"
    parts = [f"machines {show_usd(option.rent_usd)}"]
    for name, value in (("moving the data", option.moving_usd), ("keeping a copy", option.keeping_usd)):
        if value:
            parts.append(f"{name} {show_usd(value)}")
    return whole if len(parts) == 1 else f"{whole}: {', '.join(parts)}"


def show_split(option: FleetOption) -> str:
    """compute 61 %, exchange 30 %, data 9 %."""
    split, step_s = option.answer.split, option.answer.step_s
    parts = (
        ("compute", split.compute_s),
        ("exchange", split.exchange_s),
        ("copy", split.copy_s),
        ("data", split.read_s),
    )
    return ", ".join(f"{name} {show_percent(value / step_s)}" for name, value in parts if value >= 0.005 * step_s)


def show_settings(option: FleetOption) -> str:
    """Batch, passes and loader workers."""
    passes = f" in {option.passes} passes" if option.passes > 1 else ""
    return (
        f"{show_count(option.samples_per_gpu)} samples per GPU and step{passes} ({show_count(option.batch)} in all), "
        f"num_workers {option.workers} per GPU"
    )


def show_bottleneck(option: FleetOption) -> str:
    """What limits the fleet's step."""
    return "storage" if option.storage_bound else option.answer.binds


def _is_pick(recommendation: Recommendation, option: FleetOption) -> bool:
    pick = recommendation.pick
    return pick is not None and option.name == pick.name and option.offer == pick.offer


def _front(recommendation: Recommendation) -> Iterator[TablePart]:
    if not recommendation.front:
        return
    columns = (
        PartColumn("fleet"),
        PartColumn("GPUs", priority=2),
        PartColumn("where", priority=1),
        number("time"),
        number("cost"),
        number("80 % interval", 3),
        PartColumn("bound by", priority=4),
    )
    rows = []
    for option in recommendation.front:
        picked = _is_pick(recommendation, option)
        cells: tuple[Cell | Line, ...] = (
            Cell(option.name, note="the pick" if picked else ""),
            f"{option.gpus} × {option.offer.instance.gpu.name}",
            f"{option.offer.instance.cloud} {option.offer.zone or option.offer.region}",
            show_seconds(option.job_s),
            show_usd(option.usd),
            Cell(show_usd_bounds(option.low_usd, option.high_usd), "dim"),
            show_bottleneck(option),
        )
        rows.append(Row(cells, tone="strong" if picked else ""))
    yield table(columns, rows, "the front: nothing that can be rented is both faster and cheaper")


def _losers(recommendation: Recommendation) -> Iterator[TablePart]:
    if recommendation.neighbours:
        rows = (
            (one.option.name, show_seconds(one.option.job_s), show_usd(one.option.usd), one.why)
            for one in recommendation.neighbours
        )
        columns = (PartColumn("fleet", kind="name"), number("time"), number("cost"), words("against the pick"))
        yield table(columns, rows, "why others lost")


def _chart(recommendation: Recommendation) -> Iterator[Chart]:
    """Time against cost, both by their logarithm."""
    points = [point for point in recommendation.points if point.usd > 0 and point.job_s > 0]
    if not points:
        return
    limits = []
    if recommendation.request.deadline_s is not None:
        limits.append(Limit("x", recommendation.request.deadline_s, "deadline"))
    if recommendation.request.budget_usd is not None:
        limits.append(Limit("y", recommendation.request.budget_usd, "budget"))
    times, costs = [point.job_s for point in points], [point.usd for point in points]
    series = [
        _dots("fleets", [point for point in points if not point.spot], "fleet"),
        _dots("on spot", [point for point in points if point.spot], "lost"),
        *_front_series(recommendation),
    ]
    yield Chart(
        "recommend",
        "Time and cost of fleets",
        f"{plural(len(points), 'fleet')} by time and cost; {len(recommendation.front)} on the front. "
        f"{recommendation.verdict}",
        Axis(show_seconds, "time from the order to the end", logarithmic=True, ticks=_ticks(times, 3600.0)),
        Axis(show_usd, "cost", logarithmic=True, ticks=_ticks(costs)),
        tuple(one for one in series if one.points),
        limits=tuple(limits),
        height=420,
        caption="Every point is a fleet: grey on-demand, blue spot, green the front, orange the pick with its 80 % "
        "bounds. Both axes are logarithmic.",
    )


def _dots(name: str, points: list[Any], kind: str) -> Series:
    titles = tuple(
        f"{one.name} ({one.gpu}{', spot' if one.spot else ''}): {show_seconds(one.job_s)}, {show_usd(one.usd)}"
        for one in points
    )
    return Series(name, tuple((one.job_s, one.usd) for one in points), kind, radius=3, titles=titles, glyph="·")


def _front_series(recommendation: Recommendation) -> Iterator[Series]:
    """The front as stairs and dots, the pick with its bounds."""
    front = recommendation.front
    corners: list[tuple[float, float]] = []
    for i, option in enumerate(front):
        corners += [(option.job_s, front[i - 1].usd)] if i else []
        corners.append((option.job_s, option.usd))
    yield Series("", tuple(corners), "front")
    titles = tuple(f"{option.name}: {show_seconds(option.job_s)}, {show_usd(option.usd)}" for option in front)
    dots: Points = tuple((option.job_s, option.usd) for option in front)
    yield Series("the front", dots, "edge", radius=4, titles=titles, glyph="o")
    pick = recommendation.pick
    if pick is not None:
        yield Series("", ((pick.low_s, pick.usd), (pick.high_s, pick.usd)), "whisker")
        yield Series("", ((pick.job_s, pick.low_usd), (pick.job_s, pick.high_usd)), "whisker")
        yield Series("the pick", ((pick.job_s, pick.usd),), "pick", radius=7, glyph="◆", label=pick.name)


def _ticks(values: list[float], unit: float = 1.0) -> tuple[float, ...]:
    """1, 2 and 5 times powers of ten of the unit, about as far as the values reach."""
    low, high = math.log10(min(values) / unit), math.log10(max(values) / unit)
    every = (1, 2, 5) if high - low < 2 else (1,)
    return tuple(m * unit * 10.0**e for e in range(math.floor(low) - 1, math.ceil(high) + 1) for m in every)


def _figures(recommendation: Recommendation) -> Iterator[Figures]:
    pick = recommendation.pick
    if pick is None:
        return
    limited = recommendation.request.limited
    yield Figures(
        (
            ("predicted time", show_seconds(pick.job_s), show_bounds(pick.low_s, pick.high_s)),
            ("predicted cost", show_usd(pick.usd), show_usd_bounds(pick.low_usd, pick.high_usd)),
            (
                "keeps the limits",
                show_probability(pick.in_limits) if limited else "no limit",
                "probability" if limited else "",
            ),
            ("speed", show_number(pick.samples_per_s), "samples/s"),
        )
    )


def draw_measured(choice: MeasuredChoice) -> View:
    """Stash's mode: configurations as measured."""
    rows = []
    for one, seconds, usd in choice.rows:
        mark = "pick" if one.name == choice.pick else "front" if one.name in choice.front else ""
        late = choice.deadline_s is not None and seconds > choice.deadline_s
        rows.append((one.name, show_seconds(seconds), show_usd(usd), "too late" if late else mark))
    columns = ("configuration", number("time"), number("cost"), "")
    return view("", table(columns, rows, f"measured configurations, {show_number(choice.epochs)} epochs"))


def document(recommendation: Recommendation) -> dict[str, Any]:
    """Everything that the screen shows, and the points of the picture."""
    request = recommendation.request
    return {
        **schema("recommend"),
        "job": recommendation.model.job.name,
        "samples": request.samples,
        "epochs": request.epochs,
        "deadline_s": request.deadline_s,
        "budget_usd": request.budget_usd,
        "sure": request.confidence,
        "batch": "scaled" if request.scale_batch else "kept",
        "verdict": recommendation.verdict,
        "code": _code(recommendation),
        "stay": recommendation.stay is not None,
        "impossible": recommendation.impossible,
        "now": _own_machine_record(recommendation.own_machine),
        "now_with_more_workers": None
        if recommendation.own_machine_tuned is None
        else _own_machine_record(recommendation.own_machine_tuned),
        "pick": None if recommendation.pick is None else option_record(recommendation.pick),
        "spot_plan": spot_plan_words(recommendation.pick, recommendation)
        if recommendation.pick is not None and recommendation.pick.spot
        else None,
        "front": [option_record(option) for option in recommendation.front],
        "lost": [{**option_record(one.option), "why": one.why} for one in recommendation.neighbours],
        "places": None
        if recommendation.zones is None
        else {
            "count": recommendation.zones.places,
            "lowest_usd_per_h": recommendation.zones.cheapest.usd_per_h,
            "lowest_in": recommendation.zones.cheapest.zone or recommendation.zones.cheapest.region,
            "median_usd_per_h": recommendation.zones.median_usd_per_h,
            "highest_usd_per_h": recommendation.zones.dearest.usd_per_h,
            "highest_in": recommendation.zones.dearest.zone or recommendation.zones.dearest.region,
        },
        "prices": None
        if recommendation.age is None
        else {
            "oldest": str(recommendation.age.oldest_as_of),
            "newest": str(recommendation.age.newest_as_of),
            "age_days": recommendation.age.age_days,
            "stale": recommendation.age.stale,
        },
        "looked_at": {
            "offers": recommendation.search_counts.offers,
            "instance_types": recommendation.search_counts.types,
            "fleets": recommendation.search_counts.fleets,
            "without_room": recommendation.search_counts.no_room,
            "batch_not_shared_evenly": recommendation.search_counts.uneven,
            "global_batch_too_large": recommendation.search_counts.large_batch,
            "without_network": recommendation.search_counts.alone,
            "not_judged": list(recommendation.search_counts.unjudged),
        },
        "points": [
            {"time_s": p.job_s, "usd": p.usd, "gpu": p.gpu, "fleet": p.name, "spot": p.spot}
            for p in recommendation.points
        ],
        "warnings": list(recommendation.warnings),
        "assumptions": list(recommendation.assumptions),
    }


def _code(recommendation: Recommendation) -> str:
    """The answer for programs: stay, stay-and-tune, rent or impossible."""
    if recommendation.stay is not None:
        return "stay-and-tune" if recommendation.stay.more_workers else "stay"
    return "impossible" if recommendation.pick is None else "rent"


def option_record(option: FleetOption) -> dict[str, Any]:
    """The record of one fleet."""
    split, offer = option.answer.split, option.offer
    return {
        "fleet": option.name,
        "cloud": offer.instance.cloud,
        "instance": offer.instance.name,
        "region": offer.region,
        "zone": offer.zone,
        "market": offer.market,
        "gpu": offer.instance.gpu.name,
        "machines": option.nodes,
        "gpus": option.gpus,
        "gpus_per_machine": option.used,
        "usd_per_h": option.usd_per_h,
        "listed_usd_per_h": offer.usd_per_h,
        "listed_as_of": str(offer.origin.as_of),
        "step_s": option.step_s,
        "step_low_s": option.step_low_s,
        "step_high_s": option.step_high_s,
        "samples_per_s": option.samples_per_s,
        "epoch_s": option.epoch_s,
        "time_s": option.job_s,
        "time_low_s": option.low_s,
        "time_high_s": option.high_s,
        "billed_s": option.billed_s,
        "usd": option.usd,
        "usd_low": option.low_usd,
        "usd_high": option.high_usd,
        "machines_usd": option.rent_usd,
        "moving_usd": option.moving_usd,
        "keeping_usd": option.keeping_usd,
        "in_time": option.in_time,
        "in_budget": option.in_budget,
        "in_limits": option.in_limits,
        "batch_per_gpu": option.samples_per_gpu,
        "batch": option.batch,
        "passes": option.passes,
        "workers_per_gpu": option.workers,
        "split_s": {
            "compute": split.compute_s,
            "exchange": split.exchange_s,
            "copy": split.copy_s,
            "data": split.read_s,
        },
        "binds": "storage" if option.storage_bound else option.answer.binds,
        "spot": None
        if option.spot is None
        else {
            "work_s": option.spot.spot_request.work_s,
            "losses": option.spot.result.losses,
            "redone_s": option.spot.result.redone_s,
            "checkpoint_every_s": option.spot.interval_s,
            "checkpoint_s": option.spot.spot_request.save_s,
            "provision_s": option.spot.spot_request.provision_s,
            "restart_s": option.spot.spot_request.restart_s,
            "on_demand_usd_per_h": option.spot.spot_request.kind.usd_per_h,
            "finished": option.spot.result.finished,
        },
    }


def _own_machine_record(home: OwnMachine) -> dict[str, Any]:
    return {
        "gpu": home.gpu,
        "gpus": home.gpus,
        "workers_per_gpu": home.workers if home.more_workers is None else home.more_workers,
        "step_s": home.step.s,
        "time_s": home.job_s,
        "time_low_s": home.low_s,
        "time_high_s": home.high_s,
        "usd": home.usd,
        "in_time": home.in_time,
        "speedup": home.speedup,
    }


def measured_document(choice: MeasuredChoice) -> dict[str, Any]:
    """Measured configurations and the pick among them."""
    return {
        **schema("recommend-measured"),
        "epochs": choice.epochs,
        "deadline_s": choice.deadline_s,
        "budget_usd": choice.budget_usd,
        "pick": choice.pick,
        "infeasible": choice.infeasible,
        "front": list(choice.front),
        "configurations": [
            {"configuration": one.name, "machines": one.machines, "usd_per_h": one.usd_per_h, "time_s": s, "usd": usd}
            for one, s, usd in choice.rows
        ],
    }
