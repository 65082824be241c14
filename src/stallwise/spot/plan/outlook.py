"""The plan for one job: distribution of finish and cost, the interval to save at, and what each lever is worth.

Everything is evaluated by the same Monte Carlo (or, where the lifetimes come with a long enough trace, by replays of
its past); the closed form stands beside it as a check.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stallwise.errors import InputError
from stallwise.spot.lifetimes.log import Floats, Trace
from stallwise.spot.lifetimes.models import fleet_of
from stallwise.spot.plan.closed import (
    Expected,
    Work,
    expected_time,
    expected_time_without_checkpoints,
    mean_time_to_loss_s,
)
from stallwise.spot.plan.fleet import Fleet, Kind, OnLoss, Replacement, one_kind
from stallwise.spot.plan.history import from_history
from stallwise.spot.plan.interval import best_schedule, young_daly_s
from stallwise.spot.plan.simulate import Outcomes, Spread, simulate
from stallwise.spot.plan.zones import follow
from stallwise.units import SECONDS_PER_HOUR

SURE = 0.9
"""A plan is said to meet a limit when it does so in this part of the replays."""

_DECILES = tuple(round(0.05 * i, 2) for i in range(1, 20))
_BOUGHT = ("on-demand", "switch in time", "mix", "replace", "zone")
# Steps of the dynamic programme: its time grows with the third power.
_GRID = 150
_SEARCHED = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)


@dataclass(frozen=True, kw_only=True)
class Question:
    """A job, the machines it is to run on, and the limits it has to meet."""

    name: str
    work_s: float
    """At the full speed of the fleet."""
    save_s: float
    provision_s: float
    restart_s: float
    kind: Kind
    machines: int
    on_demand: int = 0
    on_loss: OnLoss = "wait"
    replacement: Replacement = "spot"
    interval_s: float | None = None
    """None: find the best; infinite: no checkpoints."""
    deadline_s: float | None = None
    budget_usd: float | None = None
    switch: bool = False
    """Move to on-demand in time for the deadline."""
    trace: Trace | None = None
    other_usd_per_h: float = 0.0
    replays: int = 10_000
    seed: int = 1
    zones: tuple[tuple[str, Kind, Trace | None], ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def fleet(self) -> Fleet:
        """The machines."""
        return one_kind(self.kind, self.machines, on_demand=self.on_demand, other_usd_per_h=self.other_usd_per_h)

    def job(self, interval_s: float) -> Work:
        """The job with checkpoints so far apart."""
        return Work(
            work_s=self.work_s,
            interval_s=interval_s,
            save_s=self.save_s,
            provision_s=self.provision_s,
            restart_s=self.restart_s,
            redo=self.on_loss != "carry-on",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One way of running the job: finish and cost with 80 % intervals, and how often it meets the limits."""

    finish_s: Spread
    cost_usd: Spread
    finished: float
    in_time: float | None
    in_budget: float | None
    within: float
    losses: float
    redone_s: float
    switched: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """Something that can be done, alone: what comes out, and the difference in mean time and cost to the plan."""

    name: str
    said: str
    result: Result
    saved_s: float
    saved_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """How often to save: what is used and why, beside the two rules."""

    used_s: float
    why: str
    young_daly_s: float
    schedule_s: tuple[float, ...]
    """By dynamic programme, on fresh machines without a loss."""
    tried: tuple[tuple[float, float], ...] = ()
    """(interval, mean finish) of the search."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer to a question."""

    question: Question
    interval: Intervals
    result: Result
    on_demand: Result
    closed: Expected
    levers: tuple[Lever, ...]
    verdict: str
    method: str
    finish_quantiles: tuple[tuple[float, float], ...]
    cost_quantiles: tuple[tuple[float, float], ...]
    assumptions: tuple[str, ...] = field(default=())


def make_plan(question: Question) -> Plan:
    """Everything; an `InputError` for a plan without checkpoints on machines that can be lost."""
    refuse_without_checkpoints(question)
    interval = choose_interval(question)
    outcomes = evaluate(question, interval.used_s)
    result = judged(outcomes, question)
    calm = judged(evaluate(_all_on_demand(question), _calm_interval_s(interval)), question)
    levers = tuple(_levers(question, interval, result))
    lives = question.fleet.lives
    return Plan(
        question=question,
        interval=interval,
        result=result,
        on_demand=calm,
        closed=expected_time(question.job(interval.used_s), lives, replaced=question.replacement == "spot"),
        levers=levers,
        verdict=_verdict(question, result, calm, levers),
        method=_method(question),
        finish_quantiles=_quantiles(outcomes.finish_s),
        cost_quantiles=_quantiles(outcomes.cost_usd),
        assumptions=(*question.assumptions, *_assumed(question)),
    )


def refuse_without_checkpoints(question: Question) -> None:
    """Raise with what would be lost."""
    fleet = question.fleet
    if question.interval_s is None or math.isfinite(question.interval_s) or not fleet.spot_machines:
        return
    if question.on_loss == "carry-on":
        return
    away_s = question.provision_s + question.restart_s
    life = fleet_of(question.kind.life, fleet.spot_machines, question.work_s * 2)
    expected_s, through = expected_time_without_checkpoints(question.work_s, life, away_s)
    hours, work_h = expected_s / SECONDS_PER_HOUR, question.work_s / SECONDS_PER_HOUR
    expected = f"{hours:,.3g} h are expected for {work_h:.3g} h of work" if hours < 1e6 else "it would never finish"
    lost_h = (expected_s - question.work_s) / SECONDS_PER_HOUR
    lost = f", {lost_h:,.3g} h of them lost" if hours < 1e6 else ""
    raise InputError(
        f"Without checkpoints a loss of any of {fleet.spot_machines} spot machines starts the job over: the chance to "
        f"get through is {through:.2g}, and {expected}{lost}. Let the job save and leave --interval out, or rent "
        "on-demand."
    )


def choose_interval(question: Question) -> Intervals:
    """The user's interval, or the one with the least mean finish among multiples of Young-Daly's."""
    fleet = question.fleet
    to_loss_s = mean_time_to_loss_s(fleet.lives)
    daly_s = min(young_daly_s(question.save_s, to_loss_s), question.work_s)
    if not fleet.spot_machines:
        used_s = question.interval_s or question.work_s
        return Intervals(used_s=used_s, why="no machine can be lost", young_daly_s=daly_s, schedule_s=())
    schedule = _schedule(question)
    if question.interval_s is not None:
        return Intervals(used_s=question.interval_s, why="given", young_daly_s=daly_s, schedule_s=schedule)
    if question.on_loss == "carry-on" or question.save_s == 0:
        used_s = min(question.work_s, max(daly_s, SECONDS_PER_HOUR / 6))
        return Intervals(used_s=used_s, why="a loss costs no work", young_daly_s=daly_s, schedule_s=schedule)
    tried = _search(question, daly_s)
    used_s = min(tried, key=lambda pair: pair[1])[0]
    return Intervals(
        used_s=used_s,
        why="least mean finish of those tried",
        young_daly_s=daly_s,
        schedule_s=schedule,
        tried=tuple(tried),
    )


def _schedule(question: Question) -> tuple[float, ...]:
    fleet = question.fleet
    life = (
        fleet_of(question.kind.life, fleet.spot_machines, 3 * question.work_s)
        if fleet.spot_machines > 1
        else question.kind.life
    )
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


def evaluate(question: Question, interval_s: float) -> Outcomes:
    """Outcomes of the question's job: replays of the trace's past where there is one, else Monte Carlo."""
    work = question.job(interval_s)
    deadline_s = question.deadline_s if question.switch else None
    if question.trace is not None and question.on_demand == 0 and question.fleet.spot_machines:
        return from_history(
            work,
            question.trace,
            question.machines,
            usd_per_h=question.kind.usd_per_h,
            spot_usd_per_h=question.kind.spot_usd_per_h,
            other_usd_per_h=question.other_usd_per_h,
            on_loss=question.on_loss,
            policy="greedy" if question.switch else "spot only",
            deadline_s=deadline_s,
        ).outcomes
    outcomes = simulate(
        work,
        question.fleet,
        replays=question.replays if question.fleet.spot_machines else 1,
        seed=question.seed,
        on_loss=question.on_loss,
        replacement=question.replacement,
        begin_s=question.restart_s,
        deadline_s=None if deadline_s is None else deadline_s - question.provision_s,
    )
    # The first machines have to come too; nobody bills for that.
    return replace(outcomes, finish_s=outcomes.finish_s + question.provision_s)


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


def _levers(question: Question, interval: Intervals, base: Result) -> Iterator[Lever]:
    for name, said, changed, interval_s in _changes(question, interval):
        try:
            result = judged(evaluate(changed, interval_s), question)
        except InputError:
            continue  # a zone whose log is too short to say anything
        yield Lever(
            name=name,
            said=said,
            result=result,
            saved_s=base.finish_s.mean - result.finish_s.mean,
            saved_usd=base.cost_usd.mean - result.cost_usd.mean,
        )


def _changes(question: Question, interval: Intervals) -> Iterator[tuple[str, str, Question, float]]:
    """Every lever as (name, sentence, changed question, interval)."""
    used_s = interval.used_s
    yield "on-demand", "every machine on-demand", _all_on_demand(question), _calm_interval_s(interval)
    if not question.fleet.spot_machines:
        return
    if question.deadline_s is not None and not question.switch:
        yield (
            "switch in time",
            "on-demand from the last moment that still meets the deadline",
            replace(question, switch=True),
            used_s,
        )
    yield from _mixes(question, used_s)
    yield from _ways(question, used_s)
    if question.interval_s is not None and question.on_loss != "carry-on":
        best = choose_interval(replace(question, interval_s=None))
        yield "interval", f"checkpoints every {best.used_s / 60:.3g} min", question, best.used_s
    yield "saving", "checkpoints saved twice as fast", replace(question, save_s=question.save_s / 2), used_s
    faster = replace(question, provision_s=question.provision_s / 2, restart_s=question.restart_s / 2)
    yield "start-up", "machines and training back twice as fast", faster, used_s
    for name, kind, trace in question.zones:
        yield "zone", name, replace(question, kind=kind, trace=trace, zones=()), used_s
    traces = [trace for trace in (question.trace, *(trace for _, _, trace in question.zones)) if trace is not None]
    if len(traces) > 1:
        moving = replace(question, trace=follow(traces, question.machines), zones=())
        yield "zone", "whichever has the machines; a move costs a loss", moving, used_s


def _mixes(question: Question, used_s: float) -> Iterator[tuple[str, str, Question, float]]:
    counts = sorted({1, question.machines // 2} - {0, question.machines})
    for count in counts if question.trace is None and question.on_demand == 0 else ():
        yield "mix", f"{count} of {question.machines} on-demand", replace(question, on_demand=count), used_s
    if question.trace is None and question.replacement == "spot":
        yield "replace", "lost machines replaced on-demand", replace(question, replacement="on-demand"), used_s


def _ways(question: Question, used_s: float) -> Iterator[tuple[str, str, Question, float]]:
    said: dict[OnLoss, str] = {
        "wait": "a loss stops the job until the fleet is whole (static)",
        "shrink": "go on with those that are left, take new ones in (dynamic)",
        "carry-on": "the others just go on, nothing is redone",
    }
    for way, sentence in said.items():
        if way != question.on_loss and question.machines > 1:
            yield "on loss", sentence, replace(question, on_loss=way), used_s


def _calm_interval_s(interval: Intervals) -> float:
    """Machines that are not taken away need no more than a checkpoint an hour."""
    return max(interval.used_s, float(SECONDS_PER_HOUR))


def _all_on_demand(question: Question) -> Question:
    return replace(question, on_demand=question.machines, trace=None, switch=False)


def _verdict(question: Question, result: Result, calm: Result, levers: Sequence[Lever]) -> str:
    """What to do, in one sentence."""
    if not question.fleet.spot_machines:
        return "No machine can be lost: the job takes as long as it takes."
    limits = question.deadline_s is not None or question.budget_usd is not None
    saving = 1.0 - result.cost_usd.mean / calm.cost_usd.mean if calm.cost_usd.mean else 0.0
    if not limits:
        word = f"{_percent(saving)} less" if saving >= 0 else f"{_percent(-saving)} more"
        return f"On spot the job costs {word} than on-demand."
    # What money can do; a job that survives losses otherwise is another job.
    bought = [lever for lever in levers if lever.name in _BOUGHT]
    ways: list[tuple[str, Result]] = [
        ("as planned", result),
        *((f"{lever.name}, {lever.said}", lever.result) for lever in bought),
    ]
    good = [(name, way) for name, way in ways if way.within >= SURE]
    if not good:
        best_name, best = max(ways, key=lambda pair: pair[1].within)
        closest = f"closest, in {_percent(best.within)}: {best_name}"
        return f"Nothing looked at meets the limits in {_percent(SURE)} of cases; {closest}."
    name, chosen = min(good, key=lambda pair: pair[1].cost_usd.mean)
    return (
        f"Cheapest of what meets the limits in at least {_percent(SURE)} of cases: {name} ({_percent(chosen.within)})."
    )


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def _method(question: Question) -> str:
    if question.trace is not None and question.on_demand == 0 and question.fleet.spot_machines:
        days = (question.trace.end_s - question.trace.at_s[0]) / 86400
        return f"replays of the job from moments like now in {days:.3g} days of log"
    return f"Monte Carlo, {question.replays:,} replays, machines lost independently of each other"


def _assumed(question: Question) -> Iterator[str]:
    if not question.fleet.spot_machines:
        return
    if question.trace is None and question.kind.wait is None and question.replacement == "spot":
        yield "Another spot machine can always be had; where that is not so, give a log with a trace."
    if question.on_loss == "shrink":
        yield "With fewer machines the job is slower in proportion; each keeps its batch."
    yield "A lost machine is billed up to its loss, a new one from when it is there. On-demand saves once an hour."


def _quantiles(values: Floats) -> tuple[tuple[float, float], ...]:
    found = np.quantile(values, _DECILES, method="nearest")
    return tuple((level, float(value)) for level, value in zip(_DECILES, found, strict=True))
