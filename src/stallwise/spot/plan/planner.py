"""The plan of a job on spot machines: how often to save, finish and cost, and what each change would be worth.

`make_plan` answers a request; `evaluate` and `judge_outcomes` give one way of running the job; `plan_levers` compares
single changes: on-demand, mixes, prices, zones, faster saves, another reaction to losses.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from stallwise.errors import InputError
from stallwise.sentences import Sentence
from stallwise.spot.lifetimes.log import Floats
from stallwise.spot.lifetimes.models import Lifetime, first_loss_in_fleet, first_loss_of
from stallwise.spot.plan.closed import expected_time, expected_time_without_checkpoints, mean_time_to_loss_s
from stallwise.spot.plan.fleet import MachineKind, OnLoss, SpotFleet, follow_zones
from stallwise.spot.plan.history import forecast_from_history
from stallwise.spot.plan.interval import best_schedule, reuse, young_daly_s
from stallwise.spot.plan.prices import STATIC, PriceRule, steady_spend
from stallwise.spot.plan.request import (
    CONFIDENCE,
    CheckpointIntervals,
    MachineReuse,
    PlanLever,
    PlanResult,
    SpotPlan,
    SpotRequest,
)
from stallwise.spot.plan.simulate import OnDemandPolicy, Outcomes, simulate
from stallwise.units import SECONDS_PER_HOUR, show_count, show_seconds

# Steps of the dynamic programme: its time grows with the third power.
_GRID = 150
_SEARCHED = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)


def evaluate(request: SpotRequest, interval_s: float) -> Outcomes:
    """Compute outcomes of the job: replays of the trace's past where there is one, else Monte Carlo."""
    return _from_history(request, interval_s) if request.replayed else _simulated(request, interval_s)


def _from_history(request: SpotRequest, interval_s: float) -> Outcomes:
    assert request.trace is not None  # noqa: S101 - `replayed` says so
    policy: OnDemandPolicy = "spot only"
    if request.switch:
        policy = "uniform progress" if request.uniform else "greedy"
    return forecast_from_history(
        request.job(interval_s),
        request.trace,
        request.machines,
        usd_per_h=request.kind.usd_per_h,
        spot_usd_per_h=request.kind.spot_usd_per_h,
        other_usd_per_h=request.other_usd_per_h,
        on_loss=request.on_loss,
        policy=policy,
        deadline_s=request.deadline_s if request.switch else None,
        prices=request.prices,
        rule=request.rule,
    ).outcomes


def _simulated(request: SpotRequest, interval_s: float) -> Outcomes:
    deadline_s = request.deadline_s if request.switch else None
    # The first machines have to be provisioned too, unless the job starts on running ones; that time is not billed.
    running = request.kind.age_s > 0 and not request.others and not request.on_demand
    come_s = 0.0 if running else request.provision_s
    spot = request.fleet.spot_machines
    outcomes = simulate(
        request.job(interval_s),
        request.fleet,
        replays=request.replays if spot else 1,
        seed=request.seed,
        on_loss=request.on_loss,
        replacement=request.replacement,
        begin_s=request.restart_s,
        deadline_s=None if deadline_s is None else deadline_s - come_s,
        prices=request.prices if spot else None,
        rule=request.rule if spot else STATIC,
    )
    return replace(outcomes, finish_s=outcomes.finish_s + come_s)


def judge_outcomes(outcomes: Outcomes, request: SpotRequest) -> PlanResult:
    """Summarise outcomes and compare them with the limits of the request."""
    deadline_s, budget_usd = request.deadline_s, request.budget_usd
    return PlanResult(
        finish_s=outcomes.time(),
        cost_usd=outcomes.cost(),
        finished=outcomes.finished,
        in_time=None if deadline_s is None else outcomes.within(deadline_s),
        in_budget=None if budget_usd is None else outcomes.within(None, budget_usd),
        within=outcomes.within(deadline_s, budget_usd),
        losses=float(outcomes.losses.mean()),
        redone_s=float(outcomes.redone_s.mean()),
        switched=float((outcomes.on_demand_s > 0).mean()),
    )


def refuse_without_checkpoints(request: SpotRequest) -> None:
    """Raise `InputError` for spot machines without checkpoints, with the time that would be lost."""
    fleet = request.fleet
    if request.interval_s is None or math.isfinite(request.interval_s) or not fleet.spot_machines:
        return
    if request.on_loss == "carry-on":
        return
    away_s = request.provision_s + request.restart_s
    expected_s, through = expected_time_without_checkpoints(
        request.work_s, _first_loss(fleet, request.work_s * 2), away_s
    )
    hours, work_h = expected_s / SECONDS_PER_HOUR, request.work_s / SECONDS_PER_HOUR
    expected = f"{hours:,.3g} h are expected for {work_h:.3g} h of work" if hours < 1e6 else "it would never finish"
    lost_h = (expected_s - request.work_s) / SECONDS_PER_HOUR
    lost = f", {lost_h:,.3g} h of them lost" if hours < 1e6 else ""
    raise InputError(
        f"Without checkpoints a loss of any of {fleet.spot_machines} spot machines starts the job over: the chance to "
        f"get through is {through:.2g}, and {expected}{lost}. Let the job save, or rent on-demand.",
        fields=("interval",),
    )


_FEWEST_REPLAYS = 200
"""Of each interval that is tried."""
_MOST_LOSSES = 5e7
"""Losses of all replays of one plan: with the intervals and levers that are tried too, a few minutes."""


def _refuse_too_many_losses(request: SpotRequest) -> None:
    """Raise `InputError` for replays that would take hours."""
    if request.replayed or not request.fleet.spot_machines:
        return
    losses = request.work_s / mean_time_to_loss_s(request.fleet.lives)
    if losses * max(_FEWEST_REPLAYS, request.replays) <= _MOST_LOSSES:
        return
    fewer = int(_MOST_LOSSES / losses)
    advice = f"Take at most {fewer:,} replays." if fewer >= _FEWEST_REPLAYS else "Plan a shorter job."
    raise InputError(
        f"The job takes {show_seconds(request.work_s)} at full speed and loses {show_count(round(losses))} machines: "
        f"too many to replay it {request.replays:,} times. {advice}",
        fields=("replays",) if fewer >= _FEWEST_REPLAYS else ("steps",),
    )


def _first_loss(fleet: SpotFleet, horizon_s: float) -> Lifetime:
    """Distribution of the time to the first loss in the fleet."""
    return first_loss_of(fleet.lives, horizon_s) if fleet.spot_machines > 1 else fleet.lives[0][0]


def choose_interval(request: SpotRequest) -> CheckpointIntervals:
    """Choose the interval: the user's, or the one with the least mean finish among multiples of Young-Daly's."""
    fleet = request.fleet
    to_loss_s = mean_time_to_loss_s(fleet.lives)
    daly_s = min(young_daly_s(request.save_s, to_loss_s), request.work_s)
    if not fleet.spot_machines:
        used_s = request.interval_s or request.work_s
        return CheckpointIntervals(
            used_s=used_s,
            why=Sentence("interval.no-loss", "no machine can be lost"),
            young_daly_s=daly_s,
            schedule_s=(),
        )
    schedule = _schedule(request)
    used_s, why, tried = _used(request, daly_s)
    return CheckpointIntervals(used_s=used_s, why=why, young_daly_s=daly_s, schedule_s=schedule, tried=tried)


def used_interval_s(request: SpotRequest) -> float:
    """Return the interval that a plan of this request uses, without computing the schedule that only its page shows."""
    daly_s = young_daly_s(request.save_s, mean_time_to_loss_s(request.fleet.lives))
    return _used(request, min(daly_s, request.work_s))[0]


def _used(request: SpotRequest, daly_s: float) -> tuple[float, Sentence, tuple[tuple[float, float], ...]]:
    if request.interval_s is not None:
        return request.interval_s, Sentence("interval.given", "given"), ()
    if request.on_loss == "carry-on" or request.save_s == 0:
        free = Sentence("interval.no-work-lost", "a loss costs no work")
        return min(request.work_s, max(daly_s, SECONDS_PER_HOUR / 6)), free, ()
    tried = _search(request, daly_s)
    best = Sentence("interval.least-finish", "least mean finish of those tried")
    return min(tried, key=lambda pair: pair[1])[0], best, tuple(tried)


def _schedule(request: SpotRequest) -> tuple[float, ...]:
    life = _first_loss(request.fleet, 3 * request.work_s)
    away_s = request.provision_s + request.restart_s
    # Longer jobs look the same as their first day; a grid over all of it would be too coarse for the first intervals.
    work_s = min(request.work_s, 24.0 * SECONDS_PER_HOUR)
    return best_schedule(life, work_s, request.save_s, away_s=away_s, unit_s=work_s / _GRID).intervals_s


def _search(request: SpotRequest, daly_s: float) -> list[tuple[float, float]]:
    fewer = replace(request, replays=max(_FEWEST_REPLAYS, min(4000, request.replays)))
    candidates = {min(request.work_s, factor * daly_s) for factor in _SEARCHED}
    tried = []
    for interval_s in sorted(candidates):
        finish_s = evaluate(fewer, interval_s).finish_s
        tried.append((interval_s, float(finish_s.mean())))
    return tried


def machine_reuse(request: SpotRequest) -> MachineReuse | None:
    """Apply the reuse rule of Kadupitiya et al. (HPDC 2020) to the machines the job starts on; None for fresh ones."""
    spot = request.machines - request.on_demand
    if request.kind.age_s <= 0 or not spot:
        return None
    age_s, work_s = request.kind.age_s, request.work_s
    life = first_loss_in_fleet(request.kind.life, spot, 2 * work_s + age_s) if spot > 1 else request.kind.life
    keep, kept_s, fresh_s = reuse(life, age_s, work_s, request.provision_s)
    return MachineReuse(age_s=age_s, keep=keep, kept_s=kept_s, fresh_s=fresh_s)


BOUGHT = ("on-demand", "switch in time", "mix", "replace", "zone", "kinds", "price", "reuse")
"""Levers that money or a choice of machines can pull; the others change the job itself."""

LeverChange = tuple[str, str, SpotRequest, float]
"""(name, description, changed request, interval in seconds)."""
# Caps at which the fleet is let go for up to a tenth, a quarter and a half of the time.
_CAPS = (0.9, 0.75, 0.5)


def plan_levers(request: SpotRequest, interval: CheckpointIntervals, base: PlanResult) -> Iterator[PlanLever]:
    """Yield each lever with its result and what it saves compared with the plan."""
    for name, description, changed, interval_s in _changes(request, interval):
        try:
            result = judge_outcomes(evaluate(changed, interval_s), request)
        except InputError:
            continue  # a zone whose log is too short to say anything
        yield PlanLever(
            name=name,
            description=description,
            result=result,
            saved_s=base.finish_s.mean - result.finish_s.mean,
            saved_usd=base.cost_usd.mean - result.cost_usd.mean,
        )


def _changes(request: SpotRequest, interval: CheckpointIntervals) -> Iterator[LeverChange]:
    used_s = interval.used_s
    yield "on-demand", "every machine on-demand", all_on_demand(request), calm_interval_s(interval)
    if not request.fleet.spot_machines:
        return
    yield from _switches(request, used_s)
    yield from _mixes(request, used_s)
    yield from _kinds(request, used_s)
    yield from _prices(request, used_s)
    yield from _ways(request, used_s)
    if request.kind.age_s > 0:
        fresh = replace(request, kind=replace(request.kind, age_s=0.0))
        yield "reuse", "fresh machines instead of those that are there", fresh, used_s
    if request.interval_s is not None and request.on_loss != "carry-on":
        best = choose_interval(replace(request, interval_s=None))
        yield "interval", f"checkpoints every {best.used_s / 60:.3g} min", request, best.used_s
    yield "saving", "checkpoints saved twice as fast", replace(request, save_s=request.save_s / 2), used_s
    faster = replace(request, provision_s=request.provision_s / 2, restart_s=request.restart_s / 2)
    yield "start-up", "machines and training back twice as fast", faster, used_s
    yield from _zones(request, used_s)


def _switches(request: SpotRequest, used_s: float) -> Iterator[LeverChange]:
    if request.deadline_s is None:
        return
    greedy = "on-demand from the last moment that still meets the deadline"
    if not request.switch or request.uniform:
        yield "switch in time", greedy, replace(request, switch=True, uniform=False), used_s
    if request.replayed and not request.uniform:
        description = "on-demand whenever work is behind a straight line to the deadline"
        yield "switch in time", description, replace(request, switch=True, uniform=True), used_s


def _mixes(request: SpotRequest, used_s: float) -> Iterator[LeverChange]:
    counts = sorted({1, request.machines // 2} - {0, request.machines})
    free = request.trace is None and request.on_demand == 0 and request.prices is None
    for count in counts if free else ():
        yield "mix", f"{count} of {request.machines} on-demand", replace(request, on_demand=count), used_s
    if request.trace is None and request.replacement == "spot" and request.prices is None:
        yield "replace", "lost machines replaced on-demand", replace(request, replacement="on-demand"), used_s


def _kinds(request: SpotRequest, used_s: float) -> Iterator[LeverChange]:
    """For a fleet of several kinds: without each of them, and with all spot machines of one kind on-demand."""
    groups = request.fleet.groups
    for place, (kind, spot, on_demand) in enumerate(groups if len(groups) > 1 else ()):
        rest = tuple(group for number, group in enumerate(groups) if number != place)
        count = spot + on_demand
        yield "kinds", f"without the {count} of {_short(kind)}", _regrouped(request, rest), used_s
        if spot:
            bought = tuple((k, 0, s + o) if i == place else (k, s, o) for i, (k, s, o) in enumerate(groups))
            yield "mix", f"the {count} of {_short(kind)} on-demand", _regrouped(request, bought), used_s
    if len(groups) > 1 and request.lock_step:
        yield "kinds", "each machine a share by its speed", _reshared(request, lock_step=False), used_s


def _short(kind: MachineKind) -> str:
    return kind.name.partition(",")[0]


def _regrouped(request: SpotRequest, groups: tuple[tuple[MachineKind, int, int], ...]) -> SpotRequest:
    """Put the same work on other machines: its seconds scale with the inverse of the fleet's speed."""
    kind, spot, on_demand = groups[0]
    changed = replace(request, kind=kind, machines=spot + on_demand, on_demand=on_demand, others=groups[1:])
    return replace(changed, work_s=request.work_s * request.fleet.speed / changed.fleet.speed)


def _reshared(request: SpotRequest, *, lock_step: bool) -> SpotRequest:
    changed = replace(request, lock_step=lock_step)
    return replace(changed, work_s=request.work_s * request.fleet.speed / changed.fleet.speed)


def _prices(request: SpotRequest, used_s: float) -> Iterator[LeverChange]:
    prices = request.prices
    if prices is None:
        return
    if request.rule.moves:
        yield "price", "the same machines, whatever they cost (static)", replace(request, rule=STATIC), used_s
    caps = {prices.quantile(part) for part in _CAPS} - {float(prices.usd_per_h.max()), request.rule.cap_usd_per_h}
    for cap in sorted(caps, reverse=True):
        part = float(prices.spans_s[prices.usd_per_h <= cap].sum() / prices.spans_s.sum())
        description = f"no machine above ${cap:.3g}/h, the price in {100 * part:.0f} % of the time"
        yield "price", description, replace(request, rule=PriceRule(cap_usd_per_h=cap)), used_s
    if request.rule.spend_usd_per_h is None:
        rule = steady_spend(prices, request.machines - request.on_demand)
        way: OnLoss = "shrink" if request.on_loss == "wait" else request.on_loss
        description = f"as many as ${rule.spend_usd_per_h:.3g}/h buys, up to twice the fleet (dynamic)"
        yield "price", description, replace(request, rule=rule, on_loss=way), used_s


def _ways(request: SpotRequest, used_s: float) -> Iterator[LeverChange]:
    descriptions: dict[OnLoss, str] = {
        "wait": "a loss stops the job until the fleet is whole (static)",
        "shrink": "go on with those that are left, take new ones in (dynamic)",
        "carry-on": "the others just go on, nothing is redone",
    }
    for way, description in descriptions.items():
        if way != request.on_loss and request.fleet.machines > 1:
            yield "on loss", description, replace(request, on_loss=way), used_s


def _zones(request: SpotRequest, used_s: float) -> Iterator[LeverChange]:
    for name, kind, trace in request.zones:
        yield "zone", name, replace(request, kind=kind, trace=trace, zones=()), used_s
    traces = [trace for trace in (request.trace, *(trace for _, _, trace in request.zones)) if trace is not None]
    if len(traces) > 1 and request.replayed:
        try:
            moving = replace(request, trace=follow_zones(traces, request.machines), zones=())
        except InputError:
            return  # observed at different times: no fleet could have moved between them
        yield "zone", "whichever has the machines; a move costs a loss", moving, used_s


def calm_interval_s(interval: CheckpointIntervals) -> float:
    """Interval on machines that are never lost: at most one checkpoint an hour."""
    return max(interval.used_s, float(SECONDS_PER_HOUR))


def all_on_demand(request: SpotRequest) -> SpotRequest:
    """Return the request with the same machines, none of them spot."""
    others = tuple((kind, 0, spot + on_demand) for kind, spot, on_demand in request.others)
    fresh = replace(request.kind, age_s=0.0)
    return replace(
        request, kind=fresh, on_demand=request.machines, others=others, trace=None, switch=False, rule=STATIC
    )


def best_zone(request: SpotRequest, base: PlanResult, levers: Sequence[PlanLever]) -> PlanLever | None:
    """Find the zone that meets the limits most often, then at least cost; None where that is the one planned for."""
    zones = [lever for lever in levers if lever.name == "zone"]

    def worth(result: PlanResult) -> tuple[float, float, float]:
        confidence = min(result.within, CONFIDENCE) if request.limited else 0.0
        return -confidence, result.cost_usd.mean, result.finish_s.mean

    best = min(zones, key=lambda lever: worth(lever.result), default=None)
    return best if best is not None and worth(best.result) < worth(base) else None


_DECILES = tuple(round(0.05 * i, 2) for i in range(1, 20))


def make_plan(request: SpotRequest) -> SpotPlan:
    """Answer a request; raise `InputError` for a plan without checkpoints on machines that can be lost."""
    refuse_without_checkpoints(request)
    _refuse_too_many_losses(request)
    interval = choose_interval(request)
    outcomes = evaluate(request, interval.used_s)
    result = judge_outcomes(outcomes, request)
    calm = judge_outcomes(evaluate(all_on_demand(request), calm_interval_s(interval)), request)
    levers = tuple(plan_levers(request, interval, result))
    lives = request.fleet.lives
    return SpotPlan(
        request=request,
        interval=interval,
        result=result,
        on_demand=calm,
        closed=expected_time(request.job(interval.used_s), lives, replaced=request.replacement == "spot"),
        levers=levers,
        verdict=_verdict(request, result, calm, levers),
        method=_method(request),
        finish_quantiles=_quantiles(outcomes.finish_s),
        cost_quantiles=_quantiles(outcomes.cost_usd),
        reuse=machine_reuse(request),
        best_zone=best_zone(request, result, levers),
        assumptions=(*request.assumptions, *_assumed(request)),
    )


def _verdict(request: SpotRequest, result: PlanResult, calm: PlanResult, levers: Sequence[PlanLever]) -> Sentence:
    if not request.fleet.spot_machines:
        return Sentence("spot.no-loss", "No machine can be lost: the job takes as long as it takes.")
    saving = 1.0 - result.cost_usd.mean / calm.cost_usd.mean if calm.cost_usd.mean else 0.0
    if not request.limited:
        word = f"{_percent(saving)} less" if saving >= 0 else f"{_percent(-saving)} more"
        return Sentence("spot.saving", f"On spot the job costs {word} than on-demand.", saving=saving)
    bought = [lever for lever in levers if lever.name in BOUGHT]
    ways: list[tuple[str, PlanResult]] = [
        ("as planned", result),
        *((f"{lever.name}, {lever.description}", lever.result) for lever in bought),
    ]
    good = [(name, way) for name, way in ways if way.within >= CONFIDENCE]
    if not good:
        best_name, best = max(ways, key=lambda pair: pair[1].within)
        closest = f"closest, in {_percent(best.within)}: {best_name}"
        return Sentence(
            "spot.impossible", f"Nothing looked at meets the limits in {_percent(CONFIDENCE)} of cases; {closest}."
        )
    name, chosen = min(good, key=lambda pair: pair[1].cost_usd.mean)
    limits = f"the limits in at least {_percent(CONFIDENCE)} of cases"
    return Sentence("spot.cheapest", f"Cheapest of what meets {limits}: {name} ({_percent(chosen.within)}).")


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


def _method(request: SpotRequest) -> str:
    if request.replayed and request.trace is not None:
        days = (request.trace.end_s - request.trace.at_s[0]) / 86400
        method = (
            f"replays of the job from moments like now in {days:.3g} days of log, recent ones first, and room for "
            "days unlike them"
        )
    else:
        method = f"Monte Carlo, {request.replays:,} replays, machines lost independently of each other"
    prices = request.prices
    return method if prices is None else f"{method}; prices of {prices.days:.3g} days, each replay from another moment"


def _assumed(request: SpotRequest) -> Iterator[Sentence]:
    if not request.fleet.spot_machines:
        return
    if request.trace is None and request.kind.wait is None and request.replacement == "spot":
        yield Sentence(
            "spot.always-available",
            "Another spot machine can always be had; where that is not so, give a log with a trace.",
        )
    if request.on_loss == "shrink":
        yield Sentence(
            "spot.fewer-machines", "With fewer machines the job is slower in proportion; each keeps its batch."
        )
    if request.others:
        shares = "equal shares, so that all wait for the slowest" if request.lock_step else "shares by their speed"
        yield Sentence("spot.kinds", f"Machines of different kinds do {shares}.")
    if request.rule.moves:
        yield Sentence(
            "spot.let-go",
            "Machines let go because of their price are not lost: the job saves first, and pays for that.",
        )
    yield Sentence(
        "spot.billing",
        "A lost machine is billed up to its loss, a new one from when it is there. On-demand saves once an hour.",
    )


def _quantiles(values: Floats) -> tuple[tuple[float, float], ...]:
    quantiles = np.quantile(values, _DECILES, method="nearest")
    return tuple((level, float(value)) for level, value in zip(_DECILES, quantiles, strict=True))
