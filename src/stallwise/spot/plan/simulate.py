"""Monte Carlo: the job many times over, each time with other losses; and the same job through a recorded trace.

Replays are numbered and each has its own stream of random numbers, so that the outcome depends on the seed alone and
not on the number of threads. Machines are lost independently of each other; where whole zones lose machines together,
replay a trace of that zone.
"""

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from stallwise.errors import InputError
from stallwise.spot.lifetimes.log import AvailabilityTrace, Floats
from stallwise.spot.plan.closed import JobWork
from stallwise.spot.plan.fleet import ON_LOSS, REPLACEMENTS, OnLoss, Replacement, SpotFleet, lookups
from stallwise.spot.plan.prices import STATIC, PriceRule, PriceTrack, SpotPrices, follow_prices
from stallwise.units import SECONDS_PER_HOUR

OnDemandPolicy = Literal["spot only", "greedy", "uniform progress"]
POLICIES: tuple[OnDemandPolicy, ...] = ("spot only", "greedy", "uniform progress")
# A job that takes this many times its calm time is given up.
_GIVE_UP = 100.0
LEVEL = 0.8
# Fewer replays are done before a thread has started.
_PER_THREAD = 100


@dataclass(frozen=True)
class Outcomes:
    """Results of each replay; a time is infinite where the job did not finish."""

    finish_s: Floats
    cost_usd: Floats
    losses: Floats
    redone_s: Floats
    on_demand_s: Floats
    """Time on on-demand machines at the end, after switching because of the deadline."""

    def __len__(self) -> int:
        return len(self.finish_s)

    @property
    def finished(self) -> float:
        """Fraction of the replays that finished."""
        return float(np.isfinite(self.finish_s).mean())

    def time(self, level: float = LEVEL) -> "OutcomeSpread":
        return outcome_spread(self.finish_s, level)

    def cost(self, level: float = LEVEL) -> "OutcomeSpread":
        return outcome_spread(self.cost_usd, level)

    def within(self, deadline_s: float | None = None, budget_usd: float | None = None) -> float:
        """Fraction of the replays that meet the deadline and the budget."""
        good = np.isfinite(self.finish_s)
        if deadline_s is not None:
            good &= self.finish_s <= deadline_s
        if budget_usd is not None:
            good &= self.cost_usd <= budget_usd
        return float(good.mean())


@dataclass(frozen=True, slots=True)
class OutcomeSpread:
    """Mean, median and an interval that holds a given fraction of the outcomes."""

    mean: float
    median: float
    low: float
    high: float


def outcome_spread(values: Floats, level: float = LEVEL) -> OutcomeSpread:
    """Summarise values by quantiles that are values themselves, because some may be infinite."""
    low, median, high = np.quantile(values, [(1 - level) / 2, 0.5, (1 + level) / 2], method="nearest")
    return OutcomeSpread(float(values.mean()), float(median), float(low), float(high))


def simulate(
    work: JobWork,
    fleet: SpotFleet,
    *,
    replays: int = 10_000,
    seed: int = 1,
    on_loss: OnLoss = "wait",
    replacement: Replacement = "spot",
    least: int = 1,
    begin_s: float = 0.0,
    deadline_s: float | None = None,
    prices: SpotPrices | None = None,
    rule: PriceRule = STATIC,
    threads: int | None = None,
) -> Outcomes:
    """Simulate the job on the fleet `replays` times. `work` is at the fleet's full speed.

    With `prices` each replay begins at another moment of them, and the fleet follows `rule`; one kind of machine only.

    With a deadline the job moves to on-demand for good at the last moment from which it is still met, one more loss
    included ("Can't Be Late", Wu et al., NSDI 2024: the greedy policy). `least` machines are enough with *shrink* and
    *carry-on*.
    """
    _check_job(work, on_loss)
    calm_s = work.calm_s + begin_s
    limit_s = _GIVE_UP * calm_s
    spot_count = fleet.spot_machines
    base = fleet.groups[0][0].spot_usd_per_h
    follow = follow_prices(prices, rule, spot_count, base, replays, work.work_s)
    full, on_demand_size = fleet.speed, fleet.machines
    if prices is not None:
        fleet = _room_to_grow(fleet, rule)
    weights = np.array(fleet.speeds) / full
    kinds = [kind for kind, _, _ in fleet.groups]
    life_s, life_cdf = lookups([kind.life for kind in kinds], limit_s)
    wait_s, wait_cdf = lookups([kind.wait for kind in kinds], limit_s)
    once_s = min(work.interval_s, work.work_s) + work.save_s + work.provision_s + work.restart_s
    fixed = (
        np.array([is_spot for _, spot, od in fleet.groups for is_spot in [True] * spot + [False] * od]),
        np.array([i for i, (_, spot, od) in enumerate(fleet.groups) for _ in range(spot + od)]),
        weights,
        np.array([kind.spot_usd_per_h for kind in kinds]) / SECONDS_PER_HOUR,
        np.array([kind.usd_per_h for kind in kinds]) / SECONDS_PER_HOUR,
        fleet.other_usd_per_h / SECONDS_PER_HOUR,
        life_s,
        life_cdf,
        np.array([kind.age_s for kind in kinds], dtype=np.float64),
        np.array([float(kind.life.cdf(kind.age_s)) if kind.age_s else 0.0 for kind in kinds]),
        wait_s,
        wait_cdf,
        follow.at_s,
        follow.relative,
        follow.paid_s,
        follow.sizes,
        follow.starts_s,
        on_demand_size,
        float(begin_s),
        float(work.work_s),
        float(min(work.interval_s, work.work_s)),
        float(work.save_s),
        float(work.provision_s),
        float(work.restart_s),
        ON_LOSS.index(on_loss),
        work.redo and on_loss != "carry-on",
        REPLACEMENTS.index(replacement),
        max(1, min(least, fleet.machines)),
        math.inf if deadline_s is None else float(deadline_s),
        once_s,
        limit_s,
    )
    from stallwise.spot.plan import _kernels as kernels

    return _in_threads(lambda first, last, out: kernels.simulate(first, last, seed, *fixed, *out), replays, threads)


def _room_to_grow(fleet: SpotFleet, rule: PriceRule) -> SpotFleet:
    """Return the fleet at its largest; the rule decides which of its machines are held."""
    if len(fleet.groups) > 1:
        raise InputError("Prices that move are for fleets of one kind of machine.", fields=("mix", "price_history"))
    kind, spot, on_demand = fleet.groups[0]
    return replace(fleet, groups=((kind, rule.most_of(spot), on_demand),))


def replay(
    work: JobWork,
    trace: AvailabilityTrace,
    machines: int,
    starts_s: Floats,
    *,
    usd_per_h: float = 0.0,
    spot_usd_per_h: float = 0.0,
    other_usd_per_h: float = 0.0,
    on_loss: OnLoss = "wait",
    least: int = 1,
    policy: OnDemandPolicy = "spot only",
    deadline_s: float | None = None,
    prices: SpotPrices | None = None,
    rule: PriceRule = STATIC,
    price_starts_s: Floats | None = None,
    threads: int | None = None,
) -> Outcomes:
    """Start the job at each of `starts_s` in a recorded trace; infinite where the trace ends before it does.

    Prices, where given, run on their own clock: each start has its moment of them (by default evenly over the series).
    The fleet holds what there is, up to `machines`; with *shrink* it grows and shrinks with availability (dynamic),
    with *wait* it trains only when whole (static). Start-up counts from each start.
    """
    _check_job(work, on_loss)
    if policy != "spot only" and deadline_s is None:
        raise InputError(f"The policy {policy} needs a deadline.")
    base = spot_usd_per_h or 1.0
    price = follow_prices(prices, rule, machines, base, len(starts_s), work.work_s)
    if on_loss == "carry-on":
        lag_s = work.provision_s + work.restart_s
        trace, price = delayed(trace, lag_s), _delayed_price(price, lag_s)
    hour = float(SECONDS_PER_HOUR)
    # In the loop a machine that is taken in pauses all for provision + restart.
    wait_s = work.provision_s if work.join_s is None else work.join_s - work.restart_s
    fixed = (
        np.asarray(starts_s, dtype=np.float64),
        trace.at_s.astype(np.float64),
        trace.counts,
        float(trace.end_s),
        machines,
        spot_usd_per_h / hour,
        usd_per_h / hour,
        other_usd_per_h / hour,
        price.at_s,
        price.relative,
        price.sizes,
        price.starts_s if price_starts_s is None else np.asarray(price_starts_s, dtype=np.float64),
        float(work.work_s),
        float(min(work.interval_s, work.work_s)),
        float(work.save_s),
        float(wait_s),
        float(work.restart_s),
        ON_LOSS.index(on_loss),
        work.redo and on_loss != "carry-on",
        max(1, min(least, machines)),
        POLICIES.index(policy),
        math.inf if deadline_s is None else float(deadline_s),
    )
    from stallwise.spot.plan import _kernels as kernels

    return _in_threads(lambda first, last, out: kernels.replay(first, last, *fixed, *out), len(starts_s), threads)


def _delayed_price(price: PriceTrack, lag_s: float) -> PriceTrack:
    """Delay machines that are taken because they became cheap by `lag_s`, too; those let go leave at once."""
    if len(price.at_s) == 1:
        return price
    late = delayed(AvailabilityTrace(price.at_s, price.sizes, float(price.at_s[-1]) + lag_s), lag_s)
    place = np.searchsorted(price.at_s, late.at_s, side="right") - 1
    relative = price.relative[place]
    paid_s = np.concatenate([[0.0], np.cumsum(relative[:-1] * np.diff(late.at_s))])
    return PriceTrack(late.at_s, relative, paid_s, late.counts, price.starts_s)


def delayed(trace: AvailabilityTrace, lag_s: float) -> AvailabilityTrace:
    """Trace of machines that train: each counts from `lag_s` after it came."""
    moments = np.unique(np.concatenate([trace.at_s, trace.at_s + lag_s]))
    moments = moments[moments <= trace.end_s]
    # A moment plus the lag less the lag may lie a rounding error before the moment, where the machine is not there yet.
    first = np.maximum(0, np.searchsorted(trace.at_s, moments - lag_s + 1e-6, side="right") - 1)
    last = np.searchsorted(trace.at_s, moments, side="right")
    counts = np.array([trace.counts[a:b].min() for a, b in zip(first, last, strict=True)], dtype=np.int64)
    return replace(trace, at_s=moments, counts=counts)


def _check_job(work: JobWork, on_loss: OnLoss) -> None:
    if work.work_s <= 0 or work.interval_s <= 0 or min(work.save_s, work.provision_s, work.restart_s) < 0:
        raise InputError("A job needs work and an interval above 0, and times to save and start of at least 0.")
    if on_loss not in ON_LOSS:
        raise InputError(f"on_loss must be one of {', '.join(ON_LOSS)}, got {on_loss!r}.", fields=("on_loss",))


def _in_threads(run: Any, count: int, threads: int | None) -> Outcomes:
    """Run replays in equal parts on threads; the compiled loops release the interpreter's lock."""
    out = tuple(np.empty(count) for _ in range(5))
    parts = max(1, min(threads or os.cpu_count() or 1, count // _PER_THREAD))
    edges = [count * i // parts for i in range(parts + 1)]
    if parts == 1:
        run(0, count, out)
    else:
        run(0, 0, out)  # compiles once, before the threads start
        with ThreadPoolExecutor(parts) as pool:
            list(pool.map(lambda i: run(edges[i], edges[i + 1], out), range(parts)))
    return Outcomes(*out)
