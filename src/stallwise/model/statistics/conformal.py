"""Intervals from errors made on rows that were not fitted (split conformal prediction).

Errors are logarithms of truth over prediction, found with whole GPUs or whole families of networks left out of the
fit. The interval of a new prediction runs between two of their quantiles; with (n + 1) in place of n it covers a new
row of a group like theirs at least at the requested level (Vovk et al., *Algorithmic Learning in a Random World*). A
group is weighted by the square root of its rows: a GPU with many does not dominate, nor does one with few count as
much.

Few groups have no useful quantiles: three GPUs say little about a fourth. There an error is a shift of its
whole group plus what rows of a group differ by. The shift is t-distributed; its variance is that of the groups'
medians, drawn towards what whole GPUs usually differ by as if four more had been seen (a moderated t, Smyth 2004).
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Values = Sequence[float] | Array
Labels = Sequence[str] | Indices

LEVEL = 0.8
FEW = 20
"""Groups below which their shifts are taken as t-distributed: a tail of a tenth holds two of them from here on."""
USUAL_SHIFT = 0.11
"""Shift of a whole GPU: root of the mean square of the medians of 29 GPUs, a measured step taken to each by physics
and by what the others show (`make fit` prints it). Lambda's GPUs, each left out with its generation, give 0.10."""
_AS_IF = 4


@dataclass(frozen=True, slots=True)
class ErrorSpread:
    """How far truth lies from a prediction: lowest and highest logarithm of truth over prediction."""

    low: float
    high: float
    rows: int = 0

    def around(self, value: float) -> tuple[float, float]:
        """Interval of a prediction of `value`."""
        return value * math.exp(self.low), value * math.exp(self.high)


def spread_of(errors: Values, groups: Labels | None = None, level: float = LEVEL) -> ErrorSpread:
    """Return the central spread that holds `level` of the errors, groups weighted by the square root of their rows."""
    values = np.asarray(errors, dtype=np.float64)
    if not len(values):
        raise ValueError("a spread needs errors")
    if groups is None:
        return _of_many(values, np.arange(len(values)), level)
    names, which = np.unique(np.asarray(groups), return_inverse=True)
    return _of_few(values, which, level) if len(names) < FEW else _of_many(values, which, level)


def _of_few(values: Array, which: Indices, level: float) -> ErrorSpread:
    """A t-distributed shift of the group, and what rows of one group differ by."""
    middles = np.array([np.median(values[which == i]) for i in range(int(which.max()) + 1)])
    freedom = len(middles) + _AS_IF
    variance = (float((middles**2).sum()) + _AS_IF * USUAL_SHIFT**2) / freedom
    half = _t_quantile((1 + level) / 2, freedom) * math.sqrt(variance)
    within = _of_many(values - middles[which], which, level)
    both = joined(ErrorSpread(-half, half), within)
    return ErrorSpread(both.low, both.high, len(values))


def _independent(values: Array, which: Indices) -> float:
    """Rows over the design effect 1 + (m - 1) ρ, for groups of m rows that are alike by ρ (analysis of variance)."""
    rows, sizes = len(values), np.bincount(which).astype(np.float64)
    groups = len(sizes)
    if groups in (1, rows):
        return float(rows)
    means = np.bincount(which, values) / sizes
    between = float((sizes * (means - values.mean()) ** 2).sum()) / (groups - 1)
    within = float(((values - means[which]) ** 2).sum()) / (rows - groups)
    size = (rows - float((sizes**2).sum()) / rows) / (groups - 1)
    alike = max(0.0, (between - within) / max(1e-12, between + (size - 1) * within))
    return rows / (1 + max(0.0, size - 1) * alike)


def _t_quantile(part: float, freedom: float) -> float:
    """Student's t, by the expansion around the normal (Abramowitz & Stegun 26.7.5); good from four degrees on."""
    z = statistics.NormalDist().inv_cdf(part)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def _of_many(values: Array, which: Indices, level: float) -> ErrorSpread:
    """Quantiles, groups weighted by the square root of their rows."""
    weights = 1.0 / np.sqrt(np.bincount(which)[which], dtype=np.float64)
    tail = (1 - level) / 2
    # The (n + 1) correction, n being how many independent errors the rows are worth; it takes half a tail at most, or
    # a dozen groups would give their extremes.
    tail = max(tail / 2, tail - (1 - tail) / (_independent(values, which) + 1))
    low, high = _quantiles(values, weights, (tail, 1 - tail))
    return ErrorSpread(low, high, len(values))


def choose(spreads: Mapping[str, ErrorSpread], *keys: str) -> ErrorSpread:
    """Return the spread of the first key that has one."""
    for key in keys:
        if key in spreads:
            return spreads[key]
    raise KeyError(f"no spread for any of {keys}")


def joined(*spreads: ErrorSpread) -> ErrorSpread:
    """The spread of a product of independent factors: tails add as squares (of logarithms about normal)."""
    low = math.sqrt(sum(min(0.0, s.low) ** 2 for s in spreads))
    high = math.sqrt(sum(max(0.0, s.high) ** 2 for s in spreads))
    return ErrorSpread(-low, high, min((s.rows for s in spreads), default=0))


def _quantiles(values: Array, weights: Array, parts: tuple[float, float]) -> tuple[float, float]:
    """Weighted quantiles, linear between the middles of neighbouring weights."""
    order = np.argsort(values, kind="stable")
    shares = weights[order]
    middles = (np.cumsum(shares) - shares / 2) / shares.sum()
    low, high = np.interp(parts, middles, values[order]).tolist()
    return low, high
