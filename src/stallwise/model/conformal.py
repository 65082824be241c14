"""Intervals from errors made on rows that were not fitted (split conformal prediction).

Errors are logarithms of truth over prediction, found with whole GPUs or whole families of networks left out of the
fit. The interval of a new prediction runs between two of their quantiles; with (n + 1) in place of n it covers a
new row of a group like theirs at least as often as asked (Vovk et al., *Algorithmic Learning in a Random World*). Every
group counts alike, so that a GPU with many rows does not speak for all.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEVEL = 0.8


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
    sizes = {label: labels.count(label) for label in set(labels)}
    weights = [1.0 / sizes[label] for label in labels]
    tail = (1 - level) / 2
    # The (n + 1) correction in terms of groups: with few of them the tails are cut shorter.
    tail = max(0.0, tail - (1 - tail) / (len(errors) + 1))
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
