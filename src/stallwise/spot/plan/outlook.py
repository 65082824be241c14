"""The plan for one job: distribution of finish and cost, the interval to save at, and what each lever is worth.

Everything is evaluated by the same Monte Carlo (or, where the lifetimes come with a long enough trace, by replays of
its past); the closed form stands beside it as a check.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from stallwise.spot.lifetimes.log import Floats
from stallwise.spot.plan.closed import expected_time
from stallwise.spot.plan.evaluate import choose_interval, evaluate, judged, refuse_without_checkpoints, reuse_of
from stallwise.spot.plan.levers import BOUGHT, all_on_demand, best_zone, calm_interval_s, levers_of
from stallwise.spot.plan.question import SURE, Intervals, Lever, Plan, Question, Result, Reuse

__all__ = [
    "SURE",
    "Intervals",
    "Lever",
    "Plan",
    "Question",
    "Result",
    "Reuse",
    "choose_interval",
    "evaluate",
    "judged",
    "make_plan",
    "refuse_without_checkpoints",
]

_DECILES = tuple(round(0.05 * i, 2) for i in range(1, 20))


def make_plan(question: Question) -> Plan:
    """Everything; an `InputError` for a plan without checkpoints on machines that can be lost."""
    refuse_without_checkpoints(question)
    interval = choose_interval(question)
    outcomes = evaluate(question, interval.used_s)
    result = judged(outcomes, question)
    calm = judged(evaluate(all_on_demand(question), calm_interval_s(interval)), question)
    levers = tuple(levers_of(question, interval, result))
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
        reuse=reuse_of(question),
        best_zone=best_zone(question, result, levers),
        assumptions=(*question.assumptions, *_assumed(question)),
    )


def _verdict(question: Question, result: Result, calm: Result, levers: Sequence[Lever]) -> str:
    """What to do, in one sentence."""
    if not question.fleet.spot_machines:
        return "No machine can be lost: the job takes as long as it takes."
    saving = 1.0 - result.cost_usd.mean / calm.cost_usd.mean if calm.cost_usd.mean else 0.0
    if not question.limited:
        word = f"{_percent(saving)} less" if saving >= 0 else f"{_percent(-saving)} more"
        return f"On spot the job costs {word} than on-demand."
    bought = [lever for lever in levers if lever.name in BOUGHT]
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
    if question.replayed and question.trace is not None:
        days = (question.trace.end_s - question.trace.at_s[0]) / 86400
        found = (
            f"replays of the job from moments like now in {days:.3g} days of log, recent ones first, and room for "
            "days unlike them"
        )
    else:
        found = f"Monte Carlo, {question.replays:,} replays, machines lost independently of each other"
    prices = question.prices
    return found if prices is None else f"{found}; prices of {prices.days:.3g} days, each replay from another moment"


def _assumed(question: Question) -> Iterator[str]:
    if not question.fleet.spot_machines:
        return
    if question.trace is None and question.kind.wait is None and question.replacement == "spot":
        yield "Another spot machine can always be had; where that is not so, give a log with a trace."
    if question.on_loss == "shrink":
        yield "With fewer machines the job is slower in proportion; each keeps its batch."
    if question.others:
        shares = "equal shares, so that all wait for the slowest" if question.lock_step else "shares by their speed"
        yield f"Machines of different kinds do {shares}."
    if question.rule.moves:
        yield "Machines let go because of their price are not lost: the job saves first, and pays for that."
    yield "A lost machine is billed up to its loss, a new one from when it is there. On-demand saves once an hour."


def _quantiles(values: Floats) -> tuple[tuple[float, float], ...]:
    found = np.quantile(values, _DECILES, method="nearest")
    return tuple((level, float(value)) for level, value in zip(_DECILES, found, strict=True))
