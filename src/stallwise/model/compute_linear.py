"""A linear correction of a logarithm, with features by name: what the physics misses, as far as data show it.

A feature nobody has seen has no weight and changes nothing, so an unknown GPU or network falls back on what it shares
with known ones: its figures, its family, in the end the physics alone. Weights come from a ridge regression in which
rarer features are held closer to zero (`fitting/`).
"""

import math
from collections.abc import Iterable, Mapping

Features = dict[str, float]


def correction(weights: Mapping[str, float], features: Mapping[str, float]) -> float:
    """Σ weight · value; a feature without a weight counts nothing."""
    return math.fsum(weights.get(name, 0.0) * value for name, value in features.items())


def one(*names: str) -> Features:
    """Features that are present or not."""
    return dict.fromkeys(names, 1.0)


def crossed(labels: Iterable[str], values: Mapping[str, float]) -> Features:
    """Every value once per label: `net=bert×log_peak`."""
    return {f"{label}×{name}": value for label in labels for name, value in values.items()}
