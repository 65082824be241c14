"""One way of running a job: its outcomes, how they meet the limits, and how often to save."""

import math
from dataclasses import replace

from stallwise.errors import InputError
from stallwise.spot.lifetimes.models import Lifetime, first_of, fleet_of
from stallwise.spot.plan.closed import expected_time_without_checkpoints, mean_time_to_loss_s
from stallwise.spot.plan.fleet import Fleet
from stallwise.spot.plan.history import from_history
from stallwise.spot.plan.interval import best_schedule, reuse, young_daly_s
from stallwise.spot.plan.price import STATIC
from stallwise.spot.plan.question import Intervals, Question, Result, Reuse
from stallwise.spot.plan.simulate import Outcomes, Policy, simulate
from stallwise.units import SECONDS_PER_HOUR

# Steps of the dynamic programme: its time grows with the third power.
_GRID = 150
_SEARCHED = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)


def evaluate(question: Question, interval_s: float) -> Outcomes:
    """Outcomes of the question's job: replays of the trace's past where there is one, else Monte Carlo."""
    return _from_history(question, interval_s) if question.replayed else _simulated(question, interval_s)


def _from_history(question: Question, interval_s: float) -> Outcomes:
    assert question.trace is not None  # noqa: S101 - `replayed` says so
    policy: Policy = "spot only"
    if question.switch:
        policy = "uniform progress" if question.uniform else "greedy"
    return from_history(
        question.job(interval_s),
        question.trace,
        question.machines,
        usd_per_h=question.kind.usd_per_h,
        spot_usd_per_h=question.kind.spot_usd_per_h,
        other_usd_per_h=question.other_usd_per_h,
        on_loss=question.on_loss,
        policy=policy,
        deadline_s=question.deadline_s if question.switch else None,
        prices=question.prices,
        rule=question.rule,
    ).outcomes


def _simulated(question: Question, interval_s: float) -> Outcomes:
    deadline_s = question.deadline_s if question.switch else None
    # The first machines have to come too, unless the job starts on some that are there; nobody bills for that.
    there = question.kind.age_s > 0 and not question.others and not question.on_demand
    come_s = 0.0 if there else question.provision_s
    spot = question.fleet.spot_machines
    outcomes = simulate(
        question.job(interval_s),
        question.fleet,
        replays=question.replays if spot else 1,
        seed=question.seed,
        on_loss=question.on_loss,
        replacement=question.replacement,
        begin_s=question.restart_s,
        deadline_s=None if deadline_s is None else deadline_s - come_s,
        prices=question.prices if spot else None,
        rule=question.rule if spot else STATIC,
    )
    return replace(outcomes, finish_s=outcomes.finish_s + come_s)


def judged(outcomes: Outcomes, question: Question) -> Result:
    """Outcomes against the question's limits."""
    deadline_s, budget_usd = question.deadline_s, question.budget_usd
    return Result(
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


def refuse_without_checkpoints(question: Question) -> None:
    """Raise with what would be lost."""
    fleet = question.fleet
    if question.interval_s is None or math.isfinite(question.interval_s) or not fleet.spot_machines:
        return
    if question.on_loss == "carry-on":
        return
    away_s = question.provision_s + question.restart_s
    expected_s, through = expected_time_without_checkpoints(
        question.work_s, _first_loss(fleet, question.work_s * 2), away_s
    )
    hours, work_h = expected_s / SECONDS_PER_HOUR, question.work_s / SECONDS_PER_HOUR
    expected = f"{hours:,.3g} h are expected for {work_h:.3g} h of work" if hours < 1e6 else "it would never finish"
    lost_h = (expected_s - question.work_s) / SECONDS_PER_HOUR
    lost = f", {lost_h:,.3g} h of them lost" if hours < 1e6 else ""
    raise InputError(
        f"Without checkpoints a loss of any of {fleet.spot_machines} spot machines starts the job over: the chance to "
        f"get through is {through:.2g}, and {expected}{lost}. Let the job save and leave --interval out, or rent "
        "on-demand."
    )


def _first_loss(fleet: Fleet, horizon_s: float) -> Lifetime:
    """The time to the first loss in the fleet."""
    return first_of(fleet.lives, horizon_s) if fleet.spot_machines > 1 else fleet.lives[0][0]


def choose_interval(question: Question) -> Intervals:
    """The user's interval, or the one with the least mean finish among multiples of Young-Daly's."""
    fleet = question.fleet
    to_loss_s = mean_time_to_loss_s(fleet.lives)
    daly_s = min(young_daly_s(question.save_s, to_loss_s), question.work_s)
    if not fleet.spot_machines:
        used_s = question.interval_s or question.work_s
        return Intervals(used_s=used_s, why="no machine can be lost", young_daly_s=daly_s, schedule_s=())
    schedule = _schedule(question)
    used_s, why, tried = _used(question, daly_s)
    return Intervals(used_s=used_s, why=why, young_daly_s=daly_s, schedule_s=schedule, tried=tried)


def used_interval_s(question: Question) -> float:
    """The interval that a plan of this question uses, without the schedule that only its page shows."""
    daly_s = young_daly_s(question.save_s, mean_time_to_loss_s(question.fleet.lives))
    return _used(question, min(daly_s, question.work_s))[0]


def _used(question: Question, daly_s: float) -> tuple[float, str, tuple[tuple[float, float], ...]]:
    if question.interval_s is not None:
        return question.interval_s, "given", ()
    if question.on_loss == "carry-on" or question.save_s == 0:
        return min(question.work_s, max(daly_s, SECONDS_PER_HOUR / 6)), "a loss costs no work", ()
    tried = _search(question, daly_s)
    return min(tried, key=lambda pair: pair[1])[0], "least mean finish of those tried", tuple(tried)


def _schedule(question: Question) -> tuple[float, ...]:
    life = _first_loss(question.fleet, 3 * question.work_s)
    away_s = question.provision_s + question.restart_s
    # Longer jobs look the same as their first day; a grid over all of it would be too coarse for the first intervals.
    work_s = min(question.work_s, 24.0 * SECONDS_PER_HOUR)
    return best_schedule(life, work_s, question.save_s, away_s=away_s, unit_s=work_s / _GRID).intervals_s


def _search(question: Question, daly_s: float) -> list[tuple[float, float]]:
    fewer = replace(question, replays=max(200, min(4000, question.replays)))
    wanted = {min(question.work_s, factor * daly_s) for factor in _SEARCHED}
    found = []
    for interval_s in sorted(wanted):
        finish_s = evaluate(fewer, interval_s).finish_s
        found.append((interval_s, float(finish_s.mean())))
    return found


def reuse_of(question: Question) -> Reuse | None:
    """The rule of Kadupitiya et al. (HPDC 2020) for the machines the job would start on; None where they are fresh."""
    spot = question.machines - question.on_demand
    if question.kind.age_s <= 0 or not spot:
        return None
    age_s, work_s = question.kind.age_s, question.work_s
    life = fleet_of(question.kind.life, spot, 2 * work_s + age_s) if spot > 1 else question.kind.life
    keep, kept_s, fresh_s = reuse(life, age_s, work_s, question.provision_s)
    return Reuse(age_s=age_s, keep=keep, kept_s=kept_s, fresh_s=fresh_s)
