"""Kaplan-Meier: the part of machines still there after so long, with bands, whatever the shape.

At each moment t_i with d_i losses among n_i machines at risk,

    S(t) = Π (1 - d_i / n_i)                                       (Kaplan & Meier 1958)
    V(t) = Σ d_i / (n_i (n_i - d_i))                               (Greenwood 1926)
    band = S(t) ^ exp(± z √V / log S(t))                           (log-log, stays inside 0 and 1)

A machine censored at t counts as at risk at t.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stallwise.spot.lifetimes.log import Floats

Z95 = 1.959963984540054


@dataclass(frozen=True)
class Survival:
    """The estimate after each moment with a loss; before the first everything survives."""

    at_s: Floats
    alive: Floats
    low: Floats
    high: Floats
    longest_s: float
    """Nothing is known beyond the longest life."""

    def gone(self, after_s: float | Floats) -> Floats:
        """F(t) = 1 - S(t); the last value beyond what is known."""
        return 1.0 - self._read(self.alive, after_s)

    def gone_bounds(self, after_s: float | Floats) -> tuple[Floats, Floats]:
        """95 % band of F(t)."""
        return 1.0 - self._read(self.high, after_s), 1.0 - self._read(self.low, after_s)

    def _read(self, values: Floats, after_s: float | Floats) -> Floats:
        place = np.searchsorted(self.at_s, np.asarray(after_s, dtype=np.float64), side="right")
        return np.append(1.0, values)[place]

    def median_s(self) -> float | None:
        """When half are gone; None where fewer ever were."""
        below = np.flatnonzero(self.alive <= 0.5)
        return float(self.at_s[below[0]]) if len(below) else None


def kaplan_meier(lived_s: Floats, lost: npt.NDArray[np.bool_]) -> Survival:
    """The estimate with its 95 % band."""
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
    # Once nobody is left there is no variance to speak of: the band is what it was before.
    low, high = np.where(alive > 0, low, 0.0), np.where(alive > 0, high, np.append(1.0, high)[:-1][: len(high)])
    return Survival(at_s, alive, np.fmin(low, alive), np.fmax(high, alive), float(ordered[-1]))
