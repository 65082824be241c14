"""Distributions of a machine's life: exponential, Weibull, bathtub, and a table of any shape.

All say `cdf(t)`, the probability F(t) of being lost within t of being obtained, and `mean_s`. What happens over a
stretch from age s to age t, given that the machine is there at s, is the conditional probability

    P(lost in (s, t] | alive at s) = (F(t) - F(s)) / (1 - F(s)),

which is what every plan uses; the unconditional F(t) - F(s) that the bathtub paper uses is too small at any age.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stallwise.spot.lifetimes.log import Floats
from stallwise.units import SECONDS_PER_HOUR

Z95 = 1.959963984540054


@dataclass(frozen=True)
class SurvivalCurve:
    """Kaplan-Meier estimate after each time with a loss; before the first everything survives."""

    at_s: Floats
    alive: Floats
    low: Floats
    high: Floats
    longest_s: float
    """Nothing is known beyond the longest life."""

    def cdf(self, after_s: float | Floats) -> Floats:
        """F(t) = 1 - S(t); the last value beyond the longest life."""
        return 1.0 - self._read(self.alive, after_s)

    def cdf_bounds(self, after_s: float | Floats) -> tuple[Floats, Floats]:
        """95 % band of F(t)."""
        return 1.0 - self._read(self.high, after_s), 1.0 - self._read(self.low, after_s)

    def _read(self, values: Floats, after_s: float | Floats) -> Floats:
        place = np.searchsorted(self.at_s, np.asarray(after_s, dtype=np.float64), side="right")
        return np.append(1.0, values)[place]

    def median_s(self) -> float | None:
        """Time by which half are lost; None where fewer ever were."""
        below = np.flatnonzero(self.alive <= 0.5)
        return float(self.at_s[below[0]]) if len(below) else None


def kaplan_meier(lived_s: Floats, lost: npt.NDArray[np.bool_]) -> SurvivalCurve:
    """Kaplan-Meier estimate with its 95 % band.

    At each time t_i with d_i losses among n_i machines at risk,

        S(t) = Π (1 - d_i / n_i)                                       (Kaplan & Meier 1958)
        V(t) = Σ d_i / (n_i (n_i - d_i))                               (Greenwood 1926)
        band = S(t) ^ exp(± z √V / log S(t))                           (log-log, stays inside 0 and 1)

    A machine censored at t counts as at risk at t.
    """
    at_s = np.unique(lived_s[lost])
    ordered = np.sort(lived_s)
    at_risk = len(ordered) - np.searchsorted(ordered, at_s, side="left")
    lost_sorted = np.sort(lived_s[lost])
    losses = np.searchsorted(lost_sorted, at_s, side="right") - np.searchsorted(lost_sorted, at_s, side="left")
    alive = np.cumprod(1.0 - losses / at_risk).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.cumsum(losses / (at_risk * (at_risk - losses)))
        spread = Z95 * np.sqrt(variance) / np.log(alive)
        low, high = alive ** np.exp(-spread), alive ** np.exp(spread)
    # Once no machine is left the variance is undefined: the band stays as it was.
    low, high = np.where(alive > 0, low, 0.0), np.where(alive > 0, high, np.append(1.0, high)[:-1][: len(high)])
    return SurvivalCurve(at_s, alive, np.fmin(low, alive), np.fmax(high, alive), float(ordered[-1]))


_POINTS = 4096


class Lifetime(Protocol):
    """Distribution of the time from obtaining a machine to losing it."""

    def cdf(self, after_s: float | Floats) -> Floats:
        """F(t): the probability of a loss within `after_s`."""
        ...

    @property
    def mean_s(self) -> float:
        """Mean lifetime; infinite where machines are never lost."""
        ...

    @property
    def cap_s(self) -> float:
        """Longest lifetime (a cloud's 24 h limit); infinite where there is none."""
        ...


def lost_between(life: Lifetime, age_s: float | Floats, until_s: float | Floats) -> Floats:
    """P(lost in (age, until] | alive at age)."""
    before = np.asarray(life.cdf(age_s))
    alive = 1.0 - before
    with np.errstate(divide="ignore", invalid="ignore"):
        probability = (np.asarray(life.cdf(until_s)) - before) / alive
    return np.where(alive > 0, np.clip(probability, 0.0, 1.0), 1.0)


@dataclass(frozen=True, slots=True)
class Exponential:
    """F(t) = 1 - exp(-t / mean): age does not matter."""

    mean_s: float

    def cdf(self, after_s: float | Floats) -> Floats:
        return -np.expm1(-np.asarray(after_s, dtype=np.float64) / self.mean_s)

    @property
    def cap_s(self) -> float:
        return math.inf


@dataclass(frozen=True, slots=True)
class Weibull:
    """F(t) = 1 - exp(-(t / scale)^shape): with a shape below 1 young machines are lost most."""

    scale_s: float
    shape: float

    def cdf(self, after_s: float | Floats) -> Floats:
        return -np.expm1(-((np.asarray(after_s, dtype=np.float64) / self.scale_s) ** self.shape))

    @property
    def mean_s(self) -> float:
        """Scale · Γ(1 + 1/shape)."""
        return self.scale_s * math.gamma(1.0 + 1.0 / self.shape)

    @property
    def cap_s(self) -> float:
        return math.inf


@dataclass(frozen=True, slots=True)
class Bathtub:
    """F(t) = A (1 - exp(-t/τ1) + exp((t - b)/τ2)) up to the cap, where all that are left are lost.

    Kadupitiya, Jadhao & Sharma, HPDC 2020: many are lost young, then few, then the provider's limit comes.
    """

    scale: float
    early_s: float
    late_s: float
    wall_s: float
    cap_s: float = 24.0 * SECONDS_PER_HOUR

    def raw(self, after_s: float | Floats) -> Floats:
        """The formula as it stands, which passes 1 beyond the cap."""
        t = np.asarray(after_s, dtype=np.float64)
        late = np.exp(np.minimum((t - self.wall_s) / self.late_s, 50.0))
        return np.asarray(self.scale * (-np.expm1(-t / self.early_s) + late))

    def cdf(self, after_s: float | Floats) -> Floats:
        """F(t); 1 from the cap on."""
        t = np.asarray(after_s, dtype=np.float64)
        return np.where(t >= self.cap_s, 1.0, np.clip(self.raw(t), 0.0, 1.0))

    @property
    def mean_s(self) -> float:
        """Mean lifetime, with every machine lost at the cap."""
        return _mean_s(self)


@dataclass(frozen=True)
class TabulatedLifetime:
    """F at points of time, straight between them; beyond the last, losses at `tail_per_s`, or all at once at a cap."""

    at_s: Floats
    lost: Floats
    tail_per_s: float = 0.0
    cap_s: float = math.inf

    def cdf(self, after_s: float | Floats) -> Floats:
        t = np.asarray(after_s, dtype=np.float64)
        inside = np.interp(t, self.at_s, self.lost)
        beyond = 1.0 - (1.0 - self.lost[-1]) * np.exp(-self.tail_per_s * np.maximum(0.0, t - self.at_s[-1]))
        lost = np.where(t > self.at_s[-1], beyond, inside)
        return np.where(t >= self.cap_s, 1.0, lost)

    @property
    def mean_s(self) -> float:
        """∫ S dt; infinite where some are never lost."""
        left = 1.0 - float(self.lost[-1])
        if math.isfinite(self.cap_s):
            return _mean_s(self)
        alive = 1.0 - self.lost
        area_s = float(np.sum((alive[1:] + alive[:-1]) / 2 * np.diff(self.at_s)))
        if left <= 0:
            return area_s
        return area_s + left / self.tail_per_s if self.tail_per_s else math.inf


def table_of_survival(survival: SurvivalCurve, tail_per_s: float, cap_s: float = math.inf) -> TabulatedLifetime:
    """Turn a Kaplan-Meier curve into a lifetime: linear between losses, then at the mean loss rate."""
    at_s = np.concatenate([[0.0], survival.at_s])
    lost = np.concatenate([[0.0], 1.0 - survival.alive])
    if survival.longest_s > at_s[-1]:
        at_s, lost = np.append(at_s, survival.longest_s), np.append(lost, lost[-1])
    first = np.concatenate([[True], np.diff(at_s) > 0])
    return TabulatedLifetime(at_s[first], lost[first], tail_per_s, cap_s)


def first_loss_in_fleet(life: Lifetime, machines: int, horizon_s: float) -> TabulatedLifetime:
    """Time to the first loss among `machines` fresh machines: F_n = 1 - (1 - F)^n."""
    return first_loss_of([(life, machines)], horizon_s)


def first_loss_of(lives: Sequence[tuple[Lifetime, int]], horizon_s: float) -> TabulatedLifetime:
    """Time to the first loss among fresh machines of several kinds: 1 - Π (1 - F_k)^n_k."""
    cap_s = min(life.cap_s for life, _ in lives)
    at_s = np.linspace(0.0, min(horizon_s, cap_s), _POINTS)
    alive = np.ones(_POINTS)
    for life, machines in lives:
        alive *= (1.0 - np.asarray(life.cdf(at_s))) ** machines
    rate = sum(machines / life.mean_s for life, machines in lives if math.isfinite(life.mean_s))
    return TabulatedLifetime(at_s, 1.0 - alive, rate, cap_s)


def _mean_s(life: Lifetime) -> float:
    at_s = np.linspace(0.0, life.cap_s, 20_001)
    alive = 1.0 - np.asarray(life.cdf(at_s))
    alive[-1] = alive[-2]  # what is lost at the cap lived up to it
    return float(np.sum((alive[1:] + alive[:-1]) / 2) * (at_s[1] - at_s[0]))
