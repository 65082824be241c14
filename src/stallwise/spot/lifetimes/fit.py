"""Fitting lifetimes: exponential, Weibull and bathtub by censored likelihood, beside the Kaplan-Meier curve.

A life that was lost at t contributes log f(t), a censored one log S(t). The bathtub's start values come from least
squares on the Kaplan-Meier curve, as its authors fit it; `published_bathtub` is their own way, losses alone. Fits are
compared by Akaike's criterion; the curve itself needs no choice of shape and is what plans use.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stallwise.errors import InputError
from stallwise.spot.lifetimes.log import Floats, LifetimeLog, MachineLife, arrays, grouped
from stallwise.spot.lifetimes.models import (
    Z95,
    Bathtub,
    Exponential,
    Lifetime,
    SurvivalCurve,
    TabulatedLifetime,
    Weibull,
    kaplan_meier,
    table_of_survival,
)
from stallwise.units import SECONDS_PER_HOUR

Lost = npt.NDArray[np.bool_]

DAY_S = 24.0 * SECONDS_PER_HOUR
# Fewer losses do not determine four parameters.
_LOSSES_FOR_BATHTUB = 20
# Google's preemptible machines end at 24 h; what lasts until five per cent before is taken as having met that limit.
_NEAR_CAP = 0.95
_MET_CAP = 0.02
_SLACK_S = 1.25 * SECONDS_PER_HOUR
_SHORTEST_S = 1.0


@dataclass(frozen=True)
class FittedLifetime:
    """A fitted distribution, its likelihood on the log, and its R² against Kaplan-Meier."""

    name: str
    life: Lifetime
    log_likelihood: float
    parameters: int
    r2: float

    @property
    def aic(self) -> float:
        """2 k - 2 log L: the smaller the better."""
        return 2.0 * self.parameters - 2.0 * self.log_likelihood


@dataclass(frozen=True)
class LifetimeEstimate:
    """Lifetime of a group of machines: the Kaplan-Meier curve and the fitted distributions."""

    machines: int
    losses: int
    exposure_s: float
    survival: SurvivalCurve
    curve: TabulatedLifetime
    fits: tuple[FittedLifetime, ...]

    @property
    def best(self) -> FittedLifetime:
        """The fitted shape with the smallest criterion."""
        return min(self.fits, key=lambda fitted: fitted.aic)

    @property
    def mean_s(self) -> float:
        """Total time over losses: the mean life if age did not matter."""
        return self.exposure_s / self.losses

    @property
    def mean_bounds_s(self) -> tuple[float, float]:
        """95 %: the log of a rate from d losses has a standard error of 1/√d."""
        spread = math.exp(Z95 / math.sqrt(self.losses))
        return self.mean_s / spread, self.mean_s * spread


def estimate_lifetime(lives: Sequence[MachineLife], source: str) -> LifetimeEstimate:
    """Estimate the lifetime of a group of machines; raise `InputError` where there is nothing to estimate from."""
    if not lives:
        raise InputError(f"{source} has no lives. Check the file.")
    lived_s, lost = arrays(lives)
    if not lost.any():
        total_h = lived_s.sum() / SECONDS_PER_HOUR
        raise InputError(
            f"None of the {len(lives)} machines in {source} was lost: all rows are censored ({total_h:.3g} "
            "machine-hours without a loss), so no lifetime can be fitted. Give a longer log, or a mean lifetime.",
            fields=("mean_life",),
        )
    # A machine lost in the second it came is counted as one second: a density needs a length.
    lived_s = np.maximum(lived_s, _SHORTEST_S)
    survival = kaplan_meier(lived_s, lost)
    rate = float(lost.sum() / lived_s.sum())
    curve = table_of_survival(survival, rate, _cap_s(lived_s, lost))
    return LifetimeEstimate(
        machines=len(lives),
        losses=int(lost.sum()),
        exposure_s=float(lived_s.sum()),
        survival=survival,
        curve=curve,
        fits=tuple(_fits(lived_s, lost, survival)),
    )


def _cap_s(lived_s: Floats, lost: Lost) -> float:
    """24 h and a little where many machines end there and none lives longer; else infinite."""
    longest_s = float(lived_s.max())
    near = lived_s >= _NEAR_CAP * DAY_S
    if longest_s <= DAY_S + _SLACK_S and near.mean() >= _MET_CAP:
        return max(DAY_S, longest_s)
    return math.inf


def _fits(lived_s: Floats, lost: Lost, survival: SurvivalCurve) -> list[FittedLifetime]:
    fits = [
        _assess("exponential", fit_exponential(lived_s, lost), 1, lived_s, lost, survival),
        _assess("Weibull", fit_weibull(lived_s, lost), 2, lived_s, lost, survival),
    ]
    cap_s = _cap_s(lived_s, lost)
    if math.isfinite(cap_s) and lost.sum() >= _LOSSES_FOR_BATHTUB:
        fits.append(_assess("bathtub", fit_bathtub(lived_s, lost, survival), 4, lived_s, lost, survival))
    return fits


def _assess(
    name: str, life: Lifetime, parameters: int, lived_s: Floats, lost: Lost, survival: SurvivalCurve
) -> FittedLifetime:
    likelihood = log_likelihood(life, lived_s, lost)
    return FittedLifetime(name, life, likelihood, parameters, _r2(life.cdf(survival.at_s), 1.0 - survival.alive))


def log_likelihood(life: Lifetime, lived_s: Floats, lost: Lost) -> float:
    """Σ log f over losses + Σ log S over the rest; densities by central differences, losses at a cap by its jump."""
    wide_s = np.minimum(1.0, lived_s / 2)
    ahead = np.asarray(life.cdf(np.minimum(lived_s + wide_s, life.cap_s * (1 - 1e-12))))
    density = (ahead - np.asarray(life.cdf(lived_s - wide_s))) / (2 * wide_s)
    alive = 1.0 - np.asarray(life.cdf(np.minimum(lived_s, life.cap_s * (1 - 1e-9))))
    at_cap = lived_s >= life.cap_s - 1.0
    terms = np.where(lost & ~at_cap, density, alive)
    return float(np.log(np.maximum(terms, 1e-300)).sum())


def fit_exponential(lived_s: Floats, lost: Lost) -> Exponential:
    """Mean life = total time / losses."""
    return Exponential(float(lived_s.sum() / lost.sum()))


def fit_weibull(lived_s: Floats, lost: Lost) -> Weibull:
    """The shape k solves Σ t^k log t / Σ t^k - 1/k = mean of log t over losses; then scale^k = Σ t^k / losses."""
    # Scaled by the longest life, so that no power overflows.
    longest_s = float(lived_s.max())
    t = lived_s / longest_s
    logs = np.log(t)
    target = float(logs[lost].mean())

    def excess(shape: float) -> float:
        powers = t**shape
        return float((powers * logs).sum() / powers.sum()) - 1.0 / shape - target

    shape = _root(excess, 1e-2, 1e2)
    scale = float((t**shape).sum() / lost.sum()) ** (1.0 / shape)
    return Weibull(scale * longest_s, shape)


def _root(rises: Callable[[float], float], low: float, high: float) -> float:
    """Find where an increasing function of a positive number passes 0, by bisection of its logarithm."""
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if rises(middle) > 0 else (middle, high)
    return math.sqrt(low * high)


def fit_bathtub(lived_s: Floats, lost: Lost, survival: SurvivalCurve) -> Bathtub:
    """Censored likelihood, started from least squares on the Kaplan-Meier curve."""
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    cap_s = _cap_s(lived_s, lost)
    inside = survival.at_s < _NEAR_CAP * DAY_S
    start = _least_squares(survival.at_s[inside], 1.0 - survival.alive[inside], cap_s)

    def loss(logs: Floats) -> float:
        return -log_likelihood(_of_logs(logs, cap_s), lived_s, lost)

    parameters = np.log([start.scale, start.early_s, start.late_s, start.wall_s])
    optimum = minimize(loss, parameters, method="Nelder-Mead", options={"maxiter": 2000, "xatol": 1e-4, "fatol": 1e-3})
    return min((start, _of_logs(optimum.x, cap_s)), key=lambda life: -log_likelihood(life, lived_s, lost))


def _of_logs(logs: Floats, cap_s: float) -> Bathtub:
    scale, early_s, late_s, wall_s = np.exp(np.clip(logs, -20.0, 20.0)).tolist()
    return Bathtub(scale, early_s, late_s, wall_s, cap_s)


def published_bathtub(lost_s: Floats) -> tuple[Bathtub, float]:
    """The authors' fit and its R²: least squares on the distribution of the losses alone, stops left out.

    It answers "of the machines that were lost, how many within t", not "how many machines are lost within t".
    """
    ordered = np.sort(lost_s)
    below = np.arange(1, len(ordered) + 1) / len(ordered)
    life = _least_squares(ordered, below, math.inf)
    return life, _r2(life.raw(ordered), below)


def _least_squares(at_s: Floats, lost: Floats, cap_s: float) -> Bathtub:
    """A, τ1, τ2, b with τ2 and b inside what such a limit can mean (τ2 to 5 h, b 20 to 30 h)."""
    from scipy.optimize import least_squares

    hours = at_s / SECONDS_PER_HOUR

    def misses(p: Floats) -> Floats:
        return np.asarray(p[0] * (-np.expm1(-hours / p[1]) + np.exp((hours - p[3]) / p[2])) - lost)

    solution = least_squares(
        misses, [0.4137, 0.9, 0.76, 24.0], bounds=([0.01, 0.01, 0.05, 20.0], [2.0, 24.0, 5.0, 30.0]), method="dogbox"
    )
    scale, early, late, wall = solution.x.tolist()
    hour = float(SECONDS_PER_HOUR)
    return Bathtub(scale, early * hour, late * hour, wall * hour, cap_s)


def _r2(fitted: Floats, observed: Floats) -> float:
    spread = float(((observed - observed.mean()) ** 2).sum())
    return 1.0 - float(((np.asarray(fitted) - observed) ** 2).sum()) / spread if spread else math.nan


@dataclass(frozen=True, slots=True)
class HourOfDay:
    """Losses in one hour of the day, and the machine-hours in which they could have happened."""

    hour: int
    losses: int
    machine_h: float

    @property
    def per_h(self) -> float | None:
        """Losses per machine-hour; None where no machine was observed."""
        return self.losses / self.machine_h if self.machine_h else None


def by_hour(lives: Sequence[MachineLife]) -> tuple[HourOfDay, ...]:
    """Compute losses by hour of the day, local time; empty where the log gives no times of day."""
    dated = [(life, life.began) for life in lives if life.began is not None]
    if not dated:
        return ()
    losses, machine_h = np.zeros(24, dtype=int), np.zeros(24)
    for life, began in dated:
        start_h = began.hour + began.minute / 60 + began.second / 3600
        end_h = start_h + life.lived_s / SECONDS_PER_HOUR
        for slot in range(int(start_h), int(end_h) + 1):
            machine_h[slot % 24] += max(0.0, min(end_h, slot + 1) - max(start_h, slot))
        losses[int(end_h) % 24] += life.lost
    return tuple(HourOfDay(hour, int(losses[hour]), float(machine_h[hour])) for hour in range(24))


HOURS = (1, 2, 6, 12, 24, 48)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFraction:
    """Fraction of machines lost within `hours`, with its 95 % band."""

    hours: int
    part: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LifetimeGroup:
    """Machines of one GPU or region; the estimate is None where none of them was lost."""

    name: str
    machines: int
    losses: int
    machine_h: float
    estimate: LifetimeEstimate | None


@dataclass(frozen=True, kw_only=True)
class FittedLog:
    """A log's estimate, the same by GPU and region, and losses by hour of day."""

    log: LifetimeLog
    estimate: LifetimeEstimate
    by_gpu: tuple[LifetimeGroup, ...]
    by_region: tuple[LifetimeGroup, ...]
    by_hour: tuple[HourOfDay, ...]


def fit_log(log: LifetimeLog) -> FittedLog:
    """Fit a log and each of its groups by GPU and region; groups only where there is more than one."""
    return FittedLog(
        log=log,
        estimate=estimate_lifetime(log.lives, log.source),
        by_gpu=_groups(log.lives, lambda life: life.gpu, log.source),
        by_region=_groups(log.lives, lambda life: life.region, log.source),
        by_hour=by_hour(log.lives),
    )


def _groups(
    lives: Sequence[MachineLife], label: Callable[[MachineLife], str | None], source: str
) -> tuple[LifetimeGroup, ...]:
    groups = grouped(lives, label)
    if len(groups) < 2:
        return ()
    return tuple(
        LifetimeGroup(
            name=name,
            machines=len(members),
            losses=sum(life.lost for life in members),
            machine_h=sum(life.lived_s for life in members) / SECONDS_PER_HOUR,
            estimate=estimate_lifetime(members, source) if any(life.lost for life in members) else None,
        )
        for name, members in groups.items()
    )


def losses_within(estimate: LifetimeEstimate) -> tuple[LossFraction, ...]:
    """Read the survival curve at whole hours, as far as the log reaches."""
    rows = []
    for hours in HOURS:
        at_s = float(hours * SECONDS_PER_HOUR)
        if at_s > estimate.survival.longest_s:
            break
        low, high = estimate.survival.cdf_bounds(at_s)
        rows.append(
            LossFraction(hours=hours, part=float(estimate.survival.cdf(at_s)), low=float(low), high=float(high))
        )
    return tuple(rows)
