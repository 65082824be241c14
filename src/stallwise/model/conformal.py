"""Intervals from errors made on rows that were not fitted (split conformal prediction).

Errors are logarithms of truth over prediction, found with whole GPUs or whole families of networks left out of the
fit. The interval of a new prediction runs between two of their quantiles; with (n + 1) in place of n it covers a
new row of a group like theirs at least as often as asked (Vovk et al., *Algorithmic Learning in a Random World*). Every
group counts alike, so that a GPU with many rows does not speak for all.

Few groups have no quantiles worth the name: three GPUs say little about a fourth. There an error is a shift of its
whole group plus what rows of a group differ by. The shift is t-distributed; its variance is that of the groups'
medians, drawn towards what whole GPUs usually differ by as if four more had been seen (a moderated t, Smyth 2004).
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEVEL = 0.8
FEW = 10
"""Groups below which their shifts are taken as t-distributed."""
USUAL_SHIFT = 0.10
"""Of a whole GPU: root of the mean square of the medians of Lambda's GPUs, each left out with its generation, as in a
table of few (`make fit` prints it)."""
_AS_IF = 4


@dataclass(frozen=True, slots=True)
class Spread:
    """How far truth lies from a prediction: lowest and highest logarithm of truth over prediction."""

    low: float
    high: float
    rows: int = 0

    def around(self, value: float) -> tuple[float, float]:
        """The interval of a prediction."""
        return value * math.exp(self.low), value * math.exp(self.high)


def spread_of(errors: Sequence[float], groups: Sequence[str] | None = None, level: float = LEVEL) -> Spread:
    """The spread that holds `level` of the errors, as much below as above, every group counting alike."""
    if not errors:
        raise ValueError("a spread needs errors")
    labels = list(groups) if groups is not None else [str(i) for i in range(len(errors))]
    if groups is not None and len(set(labels)) < FEW:
        return _of_few(errors, labels, level)
    return _of_many(errors, labels, level)


def _of_few(errors: Sequence[float], labels: Sequence[str], level: float) -> Spread:
    """A t-distributed shift of the group, and what rows of one group differ by."""
    middles = {
        name: statistics.median(error for error, label in zip(errors, labels, strict=True) if label == name)
        for name in set(labels)
    }
    freedom = len(middles) + _AS_IF
    variance = (math.fsum(middle**2 for middle in middles.values()) + _AS_IF * USUAL_SHIFT**2) / freedom
    half = _t_quantile((1 + level) / 2, freedom) * math.sqrt(variance)
    within = _of_many([e - middles[label] for e, label in zip(errors, labels, strict=True)], labels, level)
    both = joined(Spread(-half, half), within)
    return Spread(both.low, both.high, len(errors))


def _independent(errors: Sequence[float], labels: Sequence[str]) -> float:
    """Rows over the design effect 1 + (m - 1) ρ, for groups of m rows that are alike by ρ (analysis of variance)."""
    rows, sizes = len(errors), Counter(labels)
    if len(sizes) in (1, rows):
        return float(rows)
    sums = dict.fromkeys(sizes, 0.0)
    for error, label in zip(errors, labels, strict=True):
        sums[label] += error
    mean = math.fsum(errors) / rows
    between = math.fsum(n * (sums[g] / n - mean) ** 2 for g, n in sizes.items()) / (len(sizes) - 1)
    within = math.fsum((e - sums[g] / sizes[g]) ** 2 for e, g in zip(errors, labels, strict=True)) / (rows - len(sizes))
    size = (rows - sum(n * n for n in sizes.values()) / rows) / (len(sizes) - 1)
    alike = max(0.0, (between - within) / max(1e-12, between + (size - 1) * within))
    return rows / (1 + max(0.0, size - 1) * alike)


def _t_quantile(part: float, freedom: float) -> float:
    """Student's t, by the expansion around the normal (Abramowitz & Stegun 26.7.5); good from four degrees on."""
    z = statistics.NormalDist().inv_cdf(part)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def _of_many(errors: Sequence[float], labels: Sequence[str], level: float) -> Spread:
    """Quantiles, every group counting alike."""
    sizes = Counter(labels)
    weights = [1.0 / sizes[label] for label in labels]
    tail = (1 - level) / 2
    # The (n + 1) correction, n being how many independent errors the rows are worth; it takes half a tail at most, or
    # a dozen groups would give their extremes.
    tail = max(tail / 2, tail - (1 - tail) / (_independent(errors, labels) + 1))
    return Spread(_quantile(errors, weights, tail), _quantile(errors, weights, 1 - tail), len(errors))


def choose(spreads: Mapping[str, Spread], *keys: str) -> Spread:
    """The spread of the first key that has one."""
    for key in keys:
        if key in spreads:
            return spreads[key]
    raise KeyError(f"no spread for any of {keys}")


def joined(*spreads: Spread) -> Spread:
    """The spread of a product of independent factors: tails add as squares (of logarithms about normal)."""
    low = math.sqrt(sum(min(0.0, s.low) ** 2 for s in spreads))
    high = math.sqrt(sum(max(0.0, s.high) ** 2 for s in spreads))
    return Spread(-low, high, min((s.rows for s in spreads), default=0))


def _quantile(values: Sequence[float], weights: Sequence[float], part: float) -> float:
    """Weighted quantile, linear between the middles of neighbouring weights."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    total, done = math.fsum(weights), 0.0
    before: tuple[float, float] | None = None
    for i in order:
        middle = (done + weights[i] / 2) / total
        if middle >= part:
            if before is None or middle == before[0]:
                return values[i]
            share = (part - before[0]) / (middle - before[0])
            return before[1] + share * (values[i] - before[1])
        before = (middle, values[i])
        done += weights[i]
    return values[order[-1]]
