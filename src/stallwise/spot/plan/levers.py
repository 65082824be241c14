"""What can be done about a plan, each alone: on-demand, mixes, prices, zones, faster saves, another way to lose."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from stallwise.errors import InputError
from stallwise.spot.plan.evaluate import choose_interval, evaluate, judged
from stallwise.spot.plan.fleet import Kind, OnLoss
from stallwise.spot.plan.price import STATIC, PriceRule, steady_spend
from stallwise.spot.plan.question import SURE, Intervals, Lever, Question, Result
from stallwise.spot.plan.zones import follow
from stallwise.units import SECONDS_PER_HOUR

BOUGHT = ("on-demand", "switch in time", "mix", "replace", "zone", "kinds", "price", "reuse")
"""Levers that money or a choice can pull; a job that survives losses otherwise is another job."""

Change = tuple[str, str, Question, float]
# Caps at which the fleet is let go for up to a tenth, a quarter and a half of the time.
_CAPS = (0.9, 0.75, 0.5)


def levers_of(question: Question, interval: Intervals, base: Result) -> Iterator[Lever]:
    """Each lever with what it is worth beside the plan."""
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


def _changes(question: Question, interval: Intervals) -> Iterator[Change]:
    """Every lever as (name, sentence, changed question, interval)."""
    used_s = interval.used_s
    yield "on-demand", "every machine on-demand", all_on_demand(question), calm_interval_s(interval)
    if not question.fleet.spot_machines:
        return
    yield from _switches(question, used_s)
    yield from _mixes(question, used_s)
    yield from _kinds(question, used_s)
    yield from _prices(question, used_s)
    yield from _ways(question, used_s)
    if question.kind.age_s > 0:
        fresh = replace(question, kind=replace(question.kind, age_s=0.0))
        yield "reuse", "fresh machines instead of those that are there", fresh, used_s
    if question.interval_s is not None and question.on_loss != "carry-on":
        best = choose_interval(replace(question, interval_s=None))
        yield "interval", f"checkpoints every {best.used_s / 60:.3g} min", question, best.used_s
    yield "saving", "checkpoints saved twice as fast", replace(question, save_s=question.save_s / 2), used_s
    faster = replace(question, provision_s=question.provision_s / 2, restart_s=question.restart_s / 2)
    yield "start-up", "machines and training back twice as fast", faster, used_s
    yield from _zones(question, used_s)


def _switches(question: Question, used_s: float) -> Iterator[Change]:
    if question.deadline_s is None:
        return
    greedy = "on-demand from the last moment that still meets the deadline"
    if not question.switch or question.uniform:
        yield "switch in time", greedy, replace(question, switch=True, uniform=False), used_s
    if question.replayed and not question.uniform:
        said = "on-demand whenever work is behind a straight line to the deadline"
        yield "switch in time", said, replace(question, switch=True, uniform=True), used_s


def _mixes(question: Question, used_s: float) -> Iterator[Change]:
    counts = sorted({1, question.machines // 2} - {0, question.machines})
    free = question.trace is None and question.on_demand == 0 and question.prices is None
    for count in counts if free else ():
        yield "mix", f"{count} of {question.machines} on-demand", replace(question, on_demand=count), used_s
    if question.trace is None and question.replacement == "spot" and question.prices is None:
        yield "replace", "lost machines replaced on-demand", replace(question, replacement="on-demand"), used_s


def _kinds(question: Question, used_s: float) -> Iterator[Change]:
    """A fleet of several kinds: without each of them, and with all spot machines of one kind on-demand."""
    groups = question.fleet.groups
    for place, (kind, spot, on_demand) in enumerate(groups if len(groups) > 1 else ()):
        rest = tuple(group for number, group in enumerate(groups) if number != place)
        count = spot + on_demand
        yield "kinds", f"without the {count} of {_short(kind)}", _regrouped(question, rest), used_s
        if spot:
            bought = tuple((k, 0, s + o) if i == place else (k, s, o) for i, (k, s, o) in enumerate(groups))
            yield "mix", f"the {count} of {_short(kind)} on-demand", _regrouped(question, bought), used_s
    if len(groups) > 1 and question.lock_step:
        yield "kinds", "each machine a share by its speed", _reshared(question, lock_step=False), used_s


def _short(kind: Kind) -> str:
    return kind.name.partition(",")[0]


def _regrouped(question: Question, groups: tuple[tuple[Kind, int, int], ...]) -> Question:
    """The same work on other machines: seconds go with the inverse of the fleet's speed."""
    kind, spot, on_demand = groups[0]
    changed = replace(question, kind=kind, machines=spot + on_demand, on_demand=on_demand, others=groups[1:])
    return replace(changed, work_s=question.work_s * question.fleet.speed / changed.fleet.speed)


def _reshared(question: Question, *, lock_step: bool) -> Question:
    changed = replace(question, lock_step=lock_step)
    return replace(changed, work_s=question.work_s * question.fleet.speed / changed.fleet.speed)


def _prices(question: Question, used_s: float) -> Iterator[Change]:
    prices = question.prices
    if prices is None:
        return
    if question.rule.moves:
        yield "price", "the same machines, whatever they cost (static)", replace(question, rule=STATIC), used_s
    caps = {prices.quantile(part) for part in _CAPS} - {float(prices.usd_per_h.max()), question.rule.cap_usd_per_h}
    for cap in sorted(caps, reverse=True):
        part = float(prices.spans_s[prices.usd_per_h <= cap].sum() / prices.spans_s.sum())
        said = f"no machine above ${cap:.3g}/h, the price in {100 * part:.0f} % of the time"
        yield "price", said, replace(question, rule=PriceRule(cap_usd_per_h=cap)), used_s
    if question.rule.spend_usd_per_h is None:
        rule = steady_spend(prices, question.machines - question.on_demand)
        way: OnLoss = "shrink" if question.on_loss == "wait" else question.on_loss
        said = f"as many as ${rule.spend_usd_per_h:.3g}/h buys, up to twice the fleet (dynamic)"
        yield "price", said, replace(question, rule=rule, on_loss=way), used_s


def _ways(question: Question, used_s: float) -> Iterator[Change]:
    said: dict[OnLoss, str] = {
        "wait": "a loss stops the job until the fleet is whole (static)",
        "shrink": "go on with those that are left, take new ones in (dynamic)",
        "carry-on": "the others just go on, nothing is redone",
    }
    for way, sentence in said.items():
        if way != question.on_loss and question.fleet.machines > 1:
            yield "on loss", sentence, replace(question, on_loss=way), used_s


def _zones(question: Question, used_s: float) -> Iterator[Change]:
    for name, kind, trace in question.zones:
        yield "zone", name, replace(question, kind=kind, trace=trace, zones=()), used_s
    traces = [trace for trace in (question.trace, *(trace for _, _, trace in question.zones)) if trace is not None]
    if len(traces) > 1 and question.replayed:
        try:
            moving = replace(question, trace=follow(traces, question.machines), zones=())
        except InputError:
            return  # watched at different times: no fleet could have moved between them
        yield "zone", "whichever has the machines; a move costs a loss", moving, used_s


def calm_interval_s(interval: Intervals) -> float:
    """Machines that are not taken away need no more than a checkpoint an hour."""
    return max(interval.used_s, float(SECONDS_PER_HOUR))


def all_on_demand(question: Question) -> Question:
    """The same machines, none of them spot."""
    others = tuple((kind, 0, spot + on_demand) for kind, spot, on_demand in question.others)
    fresh = replace(question.kind, age_s=0.0)
    return replace(
        question, kind=fresh, on_demand=question.machines, others=others, trace=None, switch=False, rule=STATIC
    )


def best_zone(question: Question, base: Result, levers: Sequence[Lever]) -> Lever | None:
    """The zone that meets the limits most surely, then most cheaply; None where that is the one planned for."""
    zones = [lever for lever in levers if lever.name == "zone"]

    def worth(result: Result) -> tuple[float, float, float]:
        sure = min(result.within, SURE) if question.limited else 0.0
        return -sure, result.cost_usd.mean, result.finish_s.mean

    best = min(zones, key=lambda lever: worth(lever.result), default=None)
    return best if best is not None and worth(best.result) < worth(base) else None
