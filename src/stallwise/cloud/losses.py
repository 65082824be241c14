"""Bids on spot machines, which may be lost.

All of them are first estimated by Daly's closed form, which only serves to select the few on the front of time and
cost. These go through `spot/plan` replay by replay, as `stallwise spot plan` does it: the same interval between
checkpoints, the same replays of a log's trace where there is one. What comes out stands in the answer.
"""

from dataclasses import dataclass, replace

import numpy as np

from stallwise.cloud.bids import Z80, Bids, front, keeps
from stallwise.cloud.request import RecommendRequest, SpotTerms
from stallwise.model.step.prediction import Columns
from stallwise.model.step.setups import Numbers
from stallwise.spot.plan.fleet import MachineKind
from stallwise.spot.plan.history import usable_trace
from stallwise.spot.plan.planner import evaluate, judge_outcomes, used_interval_s
from stallwise.spot.plan.request import PlanResult, SpotRequest

MOST = 8
"""Number of fleets replayed of those that may be picked, and of the rest of the front."""
_STRETCHED, _LOST = 20.0, 1000.0
"""Fleets that take this many times as long, or lose this many machines, are not replayed."""
_GRID = np.array([-1.645, -1.036, -0.674, -0.385, -0.126, 0.126, 0.385, 0.674, 1.036, 1.645])
"""Normal quantiles at 5, 15 … 95 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotReplay:
    """The result of `spot/plan` for one bid, at the middle of the job's predicted length."""

    spot_request: SpotRequest
    interval_s: float
    result: PlanResult
    in_time: float
    in_budget: float
    in_limits: float
    """Probabilities of keeping deadline, budget and both, the prediction's own uncertainty included."""


def through_losses(bids: Bids, request: RecommendRequest) -> tuple[Bids, dict[int, SpotReplay], Bids]:
    """Return the bids with spot bids on the front after losses, their replays by column, and all spot bids by Daly's
    closed form (for charts).
    """
    spot = bids.spot
    if request.spot is None or not spot.any():
        return bids, {}, bids.take(spot)
    rough = _roughly(bids, request.spot)
    chosen = np.flatnonzero(spot)
    chosen = chosen[np.isfinite(rough.job_s[chosen])]
    best = _worth_replaying(rough, chosen, request)
    kept = np.concatenate([np.flatnonzero(~spot), best]).astype(np.int64)
    selected = rough.take(kept)
    replays: dict[int, SpotReplay] = {}
    columns = {name: getattr(selected, name).copy() for name in _WRITTEN}
    for place in range(len(kept) - len(best), len(kept)):
        replays[place] = _replay(bids, int(kept[place]), request, columns, place)
    return replace(selected, **columns), replays, rough.take(chosen)


_WRITTEN = ("job_s", "low_s", "high_s", "usd", "low_usd", "high_usd", "bound_s", "bound_usd")


def _worth_replaying(rough: Bids, chosen: Numbers, request: RecommendRequest) -> Numbers:
    """Select the fronts by the mean and by the bounds: a bid that is slower on average may have the lower bound.

    Those that may be picked come first, cheapest or fastest as requested; the rest is for the chart.
    """
    sides = ((rough.job_s, rough.usd), (rough.bound_s, rough.usd), (rough.bound_s, rough.bound_usd))
    best = np.unique(np.concatenate([chosen[front(time[chosen], cost[chosen])] for time, cost in sides]))
    near = best[keeps(rough.take(best), request)]
    key = rough.job_s if request.budget_usd is not None and request.deadline_s is None else rough.usd
    near = near[np.argsort(key[near], kind="stable")][:MOST]
    return np.union1d(near, _thinned(np.setdiff1d(best, near)))


def _thinned(best: Numbers) -> Numbers:
    if len(best) <= MOST:
        return best
    return best[np.unique(np.linspace(0, len(best) - 1, MOST).round().astype(np.int64))]


def _roughly(bids: Bids, terms: SpotTerms) -> Bids:
    """Times and costs of spot bids by Daly's time for a constant rate of losses."""
    spot = bids.spot
    work = bids.job_s - bids.fixed_s
    rate = bids.nodes / terms.life.mean_s
    interval = np.minimum(np.maximum(work, 1.0), np.sqrt(2 * terms.save_s / rate) + 1.0)
    with np.errstate(over="ignore"):
        tries = (1 / rate + terms.provision_s + terms.restart_s) * np.expm1(rate * (interval + terms.save_s))
        stretch = tries / interval
        useful = (stretch < _STRETCHED) & (rate * work * stretch < _LOST)
    factor = np.where(spot, np.where(useful, stretch, np.inf), 1.0)
    return _stretched(bids, factor, terms)


def _stretched(bids: Bids, factor: Columns, terms: SpotTerms) -> Bids:
    def time(seconds: Columns) -> Columns:
        return bids.fixed_s + (seconds - bids.fixed_s) * factor

    ratio = (time(bids.job_s) - bids.provision_s) / (bids.job_s - bids.provision_s)
    return replace(
        bids,
        job_s=time(bids.job_s),
        low_s=time(bids.low_s),
        high_s=time(bids.high_s),
        usd=bids.usd * ratio,
        low_usd=bids.low_usd * ratio,
        high_usd=bids.high_usd * ratio,
        bound_s=time(bids.bound_s),
        bound_usd=bids.bound_usd * ratio,
    )


def _spot_request(bids: Bids, column: int, request: RecommendRequest) -> SpotRequest:
    terms = request.spot
    assert terms is not None  # noqa: S101 - only called for spot bids
    one = bids.offers[int(bids.offer[column])]
    on_demand = [
        other.usd_per_h
        for other in bids.offers
        if other.offer.instance == one.offer.instance and other.offer.market == "on-demand"
    ]
    return SpotRequest(
        name=one.offer.instance.name,
        work_s=float(bids.job_s[column] - bids.fixed_s),
        save_s=terms.save_s,
        provision_s=terms.provision_s,
        restart_s=terms.restart_s,
        kind=MachineKind(
            name=f"{one.offer.instance.name} {one.offer.zone or one.offer.region}",
            usd_per_h=min(on_demand, default=one.offer.usd_per_h),
            spot_usd_per_h=one.usd_per_h,
            life=terms.life,
        ),
        machines=int(bids.nodes[column]),
        on_loss=terms.on_loss,
        deadline_s=request.deadline_s,
        budget_usd=request.budget_usd,
        trace=usable_trace(terms.trace, int(bids.nodes[column])),
        other_usd_per_h=one.keeping_usd_per_h or 0.0,
        replays=terms.replays,
        seed=terms.seed,
    )


def _replay(bids: Bids, column: int, request: RecommendRequest, columns: dict[str, Columns], place: int) -> SpotReplay:
    spot_request = _spot_request(bids, column, request)
    interval_s = used_interval_s(spot_request)
    outcomes = evaluate(spot_request, interval_s)
    once = bids.offers[int(bids.offer[column])].moving_usd or 0.0
    work = bids.job_s[column] - bids.fixed_s
    low, high = ((bound[column] - bids.fixed_s) / work for bound in (bids.low_s, bids.high_s))
    factors = np.where(_GRID < 0, low ** (-_GRID / Z80), high ** (_GRID / Z80))
    # Losses and redone work grow with the job's own length; machines and their start do not.
    times = request.provision_s + (outcomes.finish_s - request.provision_s)[:, None] * factors
    costs = once + outcomes.cost_usd[:, None] * factors
    soon = np.isfinite(times) & (times <= (request.deadline_s or np.inf))
    cheap = np.isfinite(times) & (costs <= (request.budget_usd or np.inf))
    _write(columns, place, "s", times, request.confidence)
    _write(columns, place, "usd", costs, request.confidence)
    columns["job_s"][place], columns["usd"][place] = outcomes.finish_s.mean(), once + outcomes.cost_usd.mean()
    return SpotReplay(
        spot_request=spot_request,
        interval_s=interval_s,
        result=judge_outcomes(outcomes, spot_request),
        in_time=float(soon.mean()),
        in_budget=float(cheap.mean()),
        in_limits=float((soon & cheap).mean()),
    )


def _write(columns: dict[str, Columns], place: int, unit: str, values: Columns, confidence: float) -> None:
    flat = values.ravel()
    for name, part in ((f"low_{unit}", 0.1), (f"high_{unit}", 0.9), (f"bound_{unit}", confidence)):
        columns[name][place] = np.quantile(flat, part, method="higher")
