"""Whether machines could be deflated at all: how often, and by how much, they use more than is left (HPDC 2020, 3)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stallwise.cluster.deflation.resources import Floats, Use
from stallwise.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Machines shrunk by one part of their size."""

    deflation: float
    above_median: float
    """Part of the time in which use is above what is left, of the median machine."""
    above_mean: float
    loss: float | None
    """Use above what is left over all use; None where only peaks are known."""


def above(peak: Use, deflation: float) -> Floats:
    """Of each machine, the part of slots whose peak use is above the deflated size."""
    return np.asarray((peak.part > 1 - deflation).mean(axis=1))


def loss(use: Use, deflation: float) -> float:
    """Use above the deflated size over all use: the area cut off, of all machines together."""
    whole = float(use.part.sum())
    return float(np.maximum(0.0, use.part - (1 - deflation)).sum()) / whole if whole > 0 else 0.0


def feasible(peak: Use, mean: Use | None, deflations: Sequence[float]) -> tuple[Level, ...]:
    """Both figures at each deflation; peaks for how often, means for how much."""
    for part in deflations:
        if not 0 <= part < 1:
            raise InputError(f"A deflation lies from 0 to under 1, not at {part}.")
    return tuple(
        Level(
            deflation=part,
            above_median=float(np.median(above(peak, part))),
            above_mean=float(above(peak, part).mean()),
            loss=None if mean is None else loss(mean, part),
        )
        for part in deflations
    )
