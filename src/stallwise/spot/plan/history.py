"""Forecasts from an availability log: the job replayed from many moments of a zone's own past, with an allowance for
regimes that the log has not shown.

Availability comes in regimes of days. Lives and waits drawn independently forget them and give intervals that are too
narrow; stretches of the past keep them. The forecast is made in four steps:

1. The job is replayed from evenly spaced moments of the log that are like now (machines to be had, or not). Replays
   that the log cut off are censored: finish times are weighted by Kaplan-Meier.
2. A moment counts half after each `HALF_LIFE_S`: capacity drifts within weeks.
3. The log shows n = its weighted length / (`REGIME_S` + the job) regimes. The next may be one it has not shown, with
   probability 1 / (n + 1): the rule of succession, or a Dirichlet process of weight one (Ferguson 1973).
4. In such a regime the job is not delayed with probability `CALM` (if machines are there now), else by the zone's
   usual delay times exp(σ z), z normal, with σ = `SPREAD` the scatter of delays between days and zones.

The four constants were measured, or chosen, on eight public series (Wu et al., NSDI 2024) named in
`validation/cases/spot_coverage.py`, and judged once on 22 others.
"""

import math
from dataclasses import dataclass, fields
from statistics import NormalDist

import numpy as np

from stallwise.errors import InputError
from stallwise.spot.lifetimes.log import AvailabilityTrace, Floats
from stallwise.spot.plan.closed import JobWork
from stallwise.spot.plan.fleet import OnLoss
from stallwise.spot.plan.prices import STATIC, PriceRule, SpotPrices
from stallwise.spot.plan.simulate import OnDemandPolicy, Outcomes, replay
from stallwise.units import SECONDS_PER_HOUR

DAY_S = 86400.0
STARTS = 1000
# Delays of neighbouring days are alike: 1 + 2 Σ ρ = 2.6 to 3.0 days for jobs of 6 to 24 h, the job included.
REGIME_S = 2 * DAY_S
HALF_LIFE_S = 7 * DAY_S
# Scatter of log delay: 1.05 between the days of a zone, 1.25 between zones.
SPREAD = 1.6
CALM = 0.25
SHORTEST_S = 3 * DAY_S
_FEWEST = 20
_UNSEEN = 101
# Less delay than this is none: the log's ticks are longer.
_DELAYED_S = 60.0


@dataclass(frozen=True)
class HistoryForecast:
    """Outcomes to expect, how many days of log and how many regimes they come from."""

    outcomes: Outcomes
    days: float
    ready_now: bool
    regimes: float


@dataclass(frozen=True, slots=True)
class _Past:
    """Replays from moments like now, and the mass that each has."""

    outcomes: Outcomes
    observed_s: Floats
    """Time to finish, or how long the log covers the job without an end."""
    mass: Floats
    calm: Floats
    """Finish, cost, losses, redone work and on-demand time of a job without delays."""
    bought: Floats | None
    """The same of a job that moves to on-demand in time for its deadline, at the worst all of it."""


def usable_trace(trace: AvailabilityTrace | None, machines: int) -> AvailabilityTrace | None:
    """Return the trace where `machines` can be forecast from it: it once had them, and is long enough; else None."""
    if trace is None or trace.most < machines or trace.end_s - trace.at_s[0] < SHORTEST_S:
        return None
    return trace


def forecast_from_history(
    work: JobWork,
    trace: AvailabilityTrace,
    machines: int,
    *,
    ready_now: bool | None = None,
    usd_per_h: float = 0.0,
    spot_usd_per_h: float = 0.0,
    other_usd_per_h: float = 0.0,
    on_loss: OnLoss = "wait",
    policy: OnDemandPolicy = "spot only",
    deadline_s: float | None = None,
    prices: SpotPrices | None = None,
    rule: PriceRule = STATIC,
) -> HistoryForecast:
    """Forecast a job that starts when the log ends; `ready_now` overrides whether the machines are available then."""
    _check(trace)
    ready = bool(trace.counts[-1] >= machines if ready_now is None else ready_now)
    every_s = np.linspace(trace.at_s[0], trace.end_s, STARTS, endpoint=False)
    starts_s = _like(trace, every_s, machines, ready=ready)
    outcomes = replay(
        work,
        trace,
        machines,
        starts_s,
        usd_per_h=usd_per_h,
        spot_usd_per_h=spot_usd_per_h,
        other_usd_per_h=other_usd_per_h,
        on_loss=on_loss,
        policy=policy,
        deadline_s=deadline_s,
        prices=prices,
        rule=rule,
    )
    ages_s = trace.end_s - starts_s
    observed_s = np.where(np.isfinite(outcomes.finish_s), outcomes.finish_s, ages_s)
    mass = _kaplan_meier(observed_s, np.isfinite(outcomes.finish_s), _weight(ages_s))
    days = float(trace.end_s - trace.at_s[0]) / DAY_S
    calm_s = work.calm_s + work.provision_s + work.restart_s
    calm = [calm_s, calm_s * (machines * spot_usd_per_h + other_usd_per_h) / SECONDS_PER_HOUR, 0.0, 0.0, 0.0]
    bought = None
    if deadline_s is not None and policy != "spot only":
        bought = np.array([deadline_s, calm_s * machines * usd_per_h / SECONDS_PER_HOUR, 0.0, 0.0, calm_s])
    past = _Past(outcomes, observed_s, mass, np.array(calm), bought)
    regimes = float(_weight(trace.end_s - every_s).mean()) * days * DAY_S / (REGIME_S + calm_s)
    return HistoryForecast(_draw(past, unseen=1.0 / (regimes + 1.0), ready=ready), days, ready, regimes)


def _check(trace: AvailabilityTrace) -> None:
    if trace.end_s - trace.at_s[0] < SHORTEST_S:
        raise InputError(
            f"The log covers {(trace.end_s - trace.at_s[0]) / DAY_S:.2g} days; {SHORTEST_S / DAY_S:.0f} are needed to "
            "forecast from it. Give a longer log, or a mean lifetime.",
            fields=("lifetimes", "mean_life"),
        )


def _like(trace: AvailabilityTrace, moments_s: Floats, machines: int, *, ready: bool) -> Floats:
    """Moments at which the whole fleet was, or was not, available; all moments where hardly any is like that."""
    place = np.searchsorted(trace.at_s, moments_s, side="right") - 1
    like = moments_s[(trace.counts[place] >= machines) == ready]
    return like if len(like) >= _FEWEST else moments_s


def _weight(age_s: Floats) -> Floats:
    return np.asarray(0.5 ** (age_s / HALF_LIFE_S))


def _kaplan_meier(observed_s: Floats, ended: np.ndarray[tuple[int], np.dtype[np.bool_]], weight: Floats) -> Floats:
    """Probability mass of each replay; what is missing to 1 lies beyond the longest that was observed."""
    order = np.argsort(observed_s, kind="stable")
    at_risk = weight[order][::-1].cumsum()[::-1]
    left = np.cumprod(np.where(ended[order], 1.0 - weight[order] / at_risk, 1.0))
    mass = np.zeros(len(observed_s))
    mass[order] = np.where(ended[order], np.concatenate([[1.0], left[:-1]]) - left, 0.0)
    return mass


def _draw(past: _Past, *, unseen: float, ready: bool) -> Outcomes:
    """Draw as many outcomes as there were starts, evenly through the distribution of the forecast."""
    columns = np.array([getattr(past.outcomes, field.name) for field in fields(Outcomes)])
    kept = past.mass > 0
    beyond = max(0.0, 1.0 - float(past.mass.sum()))
    z = np.array([NormalDist().inv_cdf((i + 0.5) / _UNSEEN) for i in range(_UNSEEN)])
    usual, longest = _usual(past, columns), _longest(past, columns)
    calm = past.calm[:, None]
    other = _in_time(calm + (usual - past.calm)[:, None] * np.exp(SPREAD * z), past.bought)
    further = _in_time(calm + (longest - past.calm)[:, None] * np.exp(SPREAD * np.abs(z)), past.bought)
    calm_part = CALM if ready else 0.0
    every = np.concatenate([columns[:, kept], calm, other, further], axis=1)
    mass = np.concatenate(
        [
            past.mass[kept] * (1.0 - unseen),
            [unseen * calm_part],
            np.full(_UNSEEN, unseen * (1.0 - calm_part) / _UNSEEN),
            np.full(_UNSEEN, (1.0 - unseen) * beyond / _UNSEEN),
        ]
    )
    order = np.argsort(every[0], kind="stable")
    below = np.cumsum(mass[order])
    places = np.searchsorted(below, (np.arange(STARTS) + 0.5) / STARTS * below[-1])
    return Outcomes(*every[:, order[np.minimum(places, len(order) - 1)]])


def _usual(past: _Past, columns: Floats) -> Floats:
    """The outcome with the median delay of those that were delayed."""
    delay_s = past.outcomes.finish_s - past.calm[0]
    delayed = np.flatnonzero((delay_s > _DELAYED_S) & (past.mass > 0))
    if not len(delayed):
        # Nothing was ever delayed: a fifth more is the least that the zones looked at showed.
        return np.asarray(past.calm * np.array([1.2, 1.2, 1.0, 1.0, 1.0]) + np.array([0.0, 0.0, 1.0, 0.0, 0.0]))
    order = delayed[np.argsort(delay_s[delayed])]
    below = np.cumsum(past.mass[order])
    beyond = max(0.0, 1.0 - float(past.mass.sum()))
    place = int(np.searchsorted(below, (below[-1] + beyond) / 2))
    return np.asarray(columns[:, order[min(place, len(order) - 1)]])


def _longest(past: _Past, columns: Floats) -> Floats:
    """The replay that was observed longest; its cost, where it did not end, is that of the work and of nothing else."""
    longest = int(past.observed_s.argmax())
    outcome = columns[:, longest].copy()
    if not math.isfinite(outcome[0]):
        outcome[0] = max(float(past.observed_s[longest]), float(past.calm[0]))
        outcome[1] = past.calm[1]
    return outcome


def _in_time(outcomes: Floats, bought: Floats | None) -> Floats:
    """Cap outcomes of unseen regimes at the deadline where the job moves to on-demand in time."""
    if bought is None:
        return outcomes
    return np.where(outcomes[0] > bought[0], bought[:, None], outcomes)
