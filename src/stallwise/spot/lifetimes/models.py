"""Distributions of a machine's life: exponential, Weibull, bathtub, and a table of any shape.

All say `gone(t)`, the probability F(t) of being lost within t of being obtained, and `mean_s`. What happens over a
stretch from age s to age t, given that the machine is there at s, is the conditional probability

    P(lost in (s, t] | alive at s) = (F(t) - F(s)) / (1 - F(s)),

which is what every plan uses; the unconditional F(t) - F(s) that the bathtub paper uses is too small at any age.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stallwise.spot.lifetimes.log import Floats
from stallwise.spot.lifetimes.survival import Survival
from stallwise.units import SECONDS_PER_HOUR

_POINTS = 4096


class Lifetime(Protocol):
    """What a plan needs to know of a life."""

    def gone(self, after_s: float | Floats) -> Floats:
        """F(t): the probability of being lost within t."""
        ...

    @property
    def mean_s(self) -> float:
        """The mean life; infinite where machines are never lost."""
        ...

    @property
    def cap_s(self) -> float:
        """No machine lives longer (a cloud's 24 h limit); infinite where there is none."""
        ...


def lost_between(life: Lifetime, age_s: float | Floats, until_s: float | Floats) -> Floats:
    """P(lost in (age, until] | alive at age)."""
    before = np.asarray(life.gone(age_s))
    alive = 1.0 - before
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (np.asarray(life.gone(until_s)) - before) / alive
    return np.where(alive > 0, np.clip(found, 0.0, 1.0), 1.0)


@dataclass(frozen=True, slots=True)
class Forever:
    """On-demand: never lost."""

    def gone(self, after_s: float | Floats) -> Floats:
        """0."""
        return np.zeros_like(np.asarray(after_s, dtype=np.float64))

    @property
    def mean_s(self) -> float:
        """Infinite."""
        return math.inf

    @property
    def cap_s(self) -> float:
        """None."""
        return math.inf


@dataclass(frozen=True, slots=True)
class Exponential:
    """F(t) = 1 - exp(-t / mean): age does not matter."""

    mean_s: float

    def gone(self, after_s: float | Floats) -> Floats:
        """F(t)."""
        return -np.expm1(-np.asarray(after_s, dtype=np.float64) / self.mean_s)

    @property
    def cap_s(self) -> float:
        """None."""
        return math.inf


@dataclass(frozen=True, slots=True)
class Weibull:
    """F(t) = 1 - exp(-(t / scale)^shape): a shape below 1 means the young die."""

    scale_s: float
    shape: float

    def gone(self, after_s: float | Floats) -> Floats:
        """F(t)."""
        return -np.expm1(-((np.asarray(after_s, dtype=np.float64) / self.scale_s) ** self.shape))

    @property
    def mean_s(self) -> float:
        """Scale · Γ(1 + 1/shape)."""
        return self.scale_s * math.gamma(1.0 + 1.0 / self.shape)

    @property
    def cap_s(self) -> float:
        """None."""
        return math.inf


@dataclass(frozen=True, slots=True)
class Bathtub:
    """F(t) = A (1 - exp(-t/τ1) + exp((t - b)/τ2)) up to the cap, where all that are left go.

    Kadupitiya, Jadhao & Sharma, HPDC 2020: many die young, then few, then the provider's limit comes.
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

    def gone(self, after_s: float | Floats) -> Floats:
        """F(t); 1 from the cap on."""
        t = np.asarray(after_s, dtype=np.float64)
        return np.where(t >= self.cap_s, 1.0, np.clip(self.raw(t), 0.0, 1.0))

    def formula_mean_s(self, until_s: float) -> float:
        """∫ t f(t) dt from 0 to `until_s` by the paper's antiderivative.

        [-A (t + τ1) exp(-t/τ1) + A (t - τ2) exp((t - b)/τ2)] between the ends.
        """

        def at(t: float) -> float:
            early = -(t + self.early_s) * math.exp(-t / self.early_s)
            return self.scale * (early + (t - self.late_s) * math.exp((t - self.wall_s) / self.late_s))

        return at(until_s) - at(0.0)

    @property
    def mean_s(self) -> float:
        """The mean life with everything gone at the cap."""
        return _mean_s(self)


@dataclass(frozen=True)
class Table:
    """F at points of time, straight between them; beyond the last, losses at `tail_per_s`, or all at once at a cap."""

    at_s: Floats
    lost: Floats
    tail_per_s: float = 0.0
    cap_s: float = math.inf

    def gone(self, after_s: float | Floats) -> Floats:
        """F(t)."""
        t = np.asarray(after_s, dtype=np.float64)
        inside = np.interp(t, self.at_s, self.lost)
        beyond = 1.0 - (1.0 - self.lost[-1]) * np.exp(-self.tail_per_s * np.maximum(0.0, t - self.at_s[-1]))
        found = np.where(t > self.at_s[-1], beyond, inside)
        return np.where(t >= self.cap_s, 1.0, found)

    @property
    def mean_s(self) -> float:
        """∫ S dt; infinite where some are never lost."""
        left = 1.0 - float(self.lost[-1])
        if math.isfinite(self.cap_s):
            return _mean_s(self)
        alive = 1.0 - self.lost
        known = float(np.sum((alive[1:] + alive[:-1]) / 2 * np.diff(self.at_s)))
        if left <= 0:
            return known
        return known + left / self.tail_per_s if self.tail_per_s else math.inf


def table_of_survival(survival: Survival, tail_per_s: float, cap_s: float = math.inf) -> Table:
    """Kaplan-Meier as a distribution: between losses straight, beyond the longest life at the mean rate of loss."""
    at_s = np.concatenate([[0.0], survival.at_s])
    lost = np.concatenate([[0.0], 1.0 - survival.alive])
    if survival.longest_s > at_s[-1]:
        at_s, lost = np.append(at_s, survival.longest_s), np.append(lost, lost[-1])
    first = np.concatenate([[True], np.diff(at_s) > 0])
    return Table(at_s[first], lost[first], tail_per_s, cap_s)


def fleet_of(life: Lifetime, machines: int, horizon_s: float) -> Table:
    """The time to the first loss among so many fresh machines: F_n = 1 - (1 - F)^n."""
    return first_of([(life, machines)], horizon_s)


def first_of(lives: Sequence[tuple[Lifetime, int]], horizon_s: float) -> Table:
    """The time to the first loss among fresh machines of several kinds: 1 - Π (1 - F_k)^n_k."""
    cap_s = min(life.cap_s for life, _ in lives)
    at_s = np.linspace(0.0, min(horizon_s, cap_s), _POINTS)
    alive = np.ones(_POINTS)
    for life, machines in lives:
        alive *= (1.0 - np.asarray(life.gone(at_s))) ** machines
    rate = sum(machines / life.mean_s for life, machines in lives if math.isfinite(life.mean_s))
    return Table(at_s, 1.0 - alive, rate, cap_s)


def _mean_s(life: Lifetime) -> float:
    at_s = np.linspace(0.0, life.cap_s, 20_001)
    alive = 1.0 - np.asarray(life.gone(at_s))
    alive[-1] = alive[-2]  # what goes at the cap lived up to it
    return float(np.sum((alive[1:] + alive[:-1]) / 2) * (at_s[1] - at_s[0]))
