"""Fitting lives: exponential, Weibull and bathtub by censored likelihood, beside the Kaplan-Meier curve.

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
from stallwise.spot.lifetimes.log import Floats, Life, arrays
from stallwise.spot.lifetimes.models import Bathtub, Exponential, Lifetime, Table, Weibull, table_of_survival
from stallwise.spot.lifetimes.survival import Z95, Survival, kaplan_meier
from stallwise.units import SECONDS_PER_HOUR

Lost = npt.NDArray[np.bool_]

DAY_S = 24.0 * SECONDS_PER_HOUR
# Fewer losses leave four parameters without ground.
_LOSSES_FOR_BATHTUB = 20
# Google's preemptible machines end at 24 h; what lasts until five per cent before is taken as having met that limit.
_NEAR_CAP = 0.95
_MET_CAP = 0.02
_SLACK_S = 1.25 * SECONDS_PER_HOUR
_SHORTEST_S = 1.0


@dataclass(frozen=True)
class Fitted:
    """One shape with its parameters, how likely it makes the log, and how close it comes to Kaplan-Meier."""

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
class Estimate:
    """Everything a group of lives says."""

    machines: int
    losses: int
    exposure_s: float
    survival: Survival
    curve: Table
    fits: tuple[Fitted, ...]

    @property
    def best(self) -> Fitted:
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


def estimate(lives: Sequence[Life], source: str) -> Estimate:
    """Survival and fits of a group; a sentence where there is nothing to estimate from."""
    if not lives:
        raise InputError(f"{source} has no lives. Check the file.")
    lived_s, lost = arrays(lives)
    if not lost.any():
        total_h = lived_s.sum() / SECONDS_PER_HOUR
        raise InputError(
            f"None of the {len(lives)} machines in {source} was lost: all rows are censored ({total_h:.3g} "
            "machine-hours without a loss), so no lifetime can be fitted. Give a longer log, or --mean-life."
        )
    # A machine lost in the second it came is counted as one second: a density needs a length.
    lived_s = np.maximum(lived_s, _SHORTEST_S)
    survival = kaplan_meier(lived_s, lost)
    rate = float(lost.sum() / lived_s.sum())
    curve = table_of_survival(survival, rate, _cap_s(lived_s, lost))
    return Estimate(
        machines=len(lives),
        losses=int(lost.sum()),
        exposure_s=float(lived_s.sum()),
        survival=survival,
        curve=curve,
        fits=tuple(_fits(lived_s, lost, survival)),
    )


def _cap_s(lived_s: Floats, lost: Lost) -> float:
    """24 h and a little where machines pile up there and none lives longer; else no cap."""
    longest_s = float(lived_s.max())
    near = lived_s >= _NEAR_CAP * DAY_S
    if longest_s <= DAY_S + _SLACK_S and near.mean() >= _MET_CAP:
        return max(DAY_S, longest_s)
    return math.inf


def _fits(lived_s: Floats, lost: Lost, survival: Survival) -> list[Fitted]:
    found = [
        _judged("exponential", fit_exponential(lived_s, lost), 1, lived_s, lost, survival),
        _judged("Weibull", fit_weibull(lived_s, lost), 2, lived_s, lost, survival),
    ]
    cap_s = _cap_s(lived_s, lost)
    if math.isfinite(cap_s) and lost.sum() >= _LOSSES_FOR_BATHTUB:
        found.append(_judged("bathtub", fit_bathtub(lived_s, lost, survival), 4, lived_s, lost, survival))
    return found


def _judged(name: str, life: Lifetime, parameters: int, lived_s: Floats, lost: Lost, survival: Survival) -> Fitted:
    found = log_likelihood(life, lived_s, lost)
    return Fitted(name, life, found, parameters, _r2(life.gone(survival.at_s), 1.0 - survival.alive))


def log_likelihood(life: Lifetime, lived_s: Floats, lost: Lost) -> float:
    """Σ log f over losses + Σ log S over the rest; densities by central differences, losses at a cap by its jump."""
    wide_s = np.minimum(1.0, lived_s / 2)
    ahead = np.asarray(life.gone(np.minimum(lived_s + wide_s, life.cap_s * (1 - 1e-12))))
    density = (ahead - np.asarray(life.gone(lived_s - wide_s))) / (2 * wide_s)
    alive = 1.0 - np.asarray(life.gone(np.minimum(lived_s, life.cap_s * (1 - 1e-9))))
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
    wanted = float(logs[lost].mean())

    def excess(shape: float) -> float:
        powers = t**shape
        return float((powers * logs).sum() / powers.sum()) - 1.0 / shape - wanted

    shape = _root(excess, 1e-2, 1e2)
    scale = float((t**shape).sum() / lost.sum()) ** (1.0 / shape)
    return Weibull(scale * longest_s, shape)


def _root(rises: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function of a positive number passes 0, by halving its logarithm."""
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if rises(middle) > 0 else (middle, high)
    return math.sqrt(low * high)


def fit_bathtub(lived_s: Floats, lost: Lost, survival: Survival) -> Bathtub:
    """Censored likelihood, started from least squares on the Kaplan-Meier curve."""
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    cap_s = _cap_s(lived_s, lost)
    inside = survival.at_s < _NEAR_CAP * DAY_S
    start = _least_squares(survival.at_s[inside], 1.0 - survival.alive[inside], cap_s)

    def loss(logs: Floats) -> float:
        return -log_likelihood(_of_logs(logs, cap_s), lived_s, lost)

    parameters = np.log([start.scale, start.early_s, start.late_s, start.wall_s])
    found = minimize(loss, parameters, method="Nelder-Mead", options={"maxiter": 2000, "xatol": 1e-4, "fatol": 1e-3})
    return min((start, _of_logs(found.x, cap_s)), key=lambda life: -log_likelihood(life, lived_s, lost))


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


def _least_squares(at_s: Floats, gone: Floats, cap_s: float) -> Bathtub:
    """A, τ1, τ2, b with τ2 and b inside what such a limit can mean (τ2 to 5 h, b 20 to 30 h)."""
    from scipy.optimize import least_squares

    hours = at_s / SECONDS_PER_HOUR

    def misses(p: Floats) -> Floats:
        return np.asarray(p[0] * (-np.expm1(-hours / p[1]) + np.exp((hours - p[3]) / p[2])) - gone)

    found = least_squares(
        misses, [0.4137, 0.9, 0.76, 24.0], bounds=([0.01, 0.01, 0.05, 20.0], [2.0, 24.0, 5.0, 30.0]), method="dogbox"
    )
    scale, early, late, wall = found.x.tolist()
    hour = float(SECONDS_PER_HOUR)
    return Bathtub(scale, early * hour, late * hour, wall * hour, cap_s)


def _r2(fitted: Floats, seen: Floats) -> float:
    spread = float(((seen - seen.mean()) ** 2).sum())
    return 1.0 - float(((np.asarray(fitted) - seen) ** 2).sum()) / spread if spread else math.nan


@dataclass(frozen=True, slots=True)
class HourOfDay:
    """Losses in one hour of the day, and the machine-hours in which they could have happened."""

    hour: int
    losses: int
    machine_h: float

    @property
    def per_h(self) -> float | None:
        """Losses per machine-hour; None where no machine was watched."""
        return self.losses / self.machine_h if self.machine_h else None


def by_hour(lives: Sequence[Life]) -> tuple[HourOfDay, ...]:
    """Rate of loss by hour of the day, local time; empty where the log gives no times of day."""
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
