"""From phase times to stalls that are never negative and add up to the step.

The phases of a profile form a ladder: each lacks something the one before has, so its true time cannot be longer.
Measured times may cross by noise; the isotonic fit (pool adjacent violators) is the nearest ladder that does not.
A stall is the difference between two neighbouring rungs; what is left on the last rung is compute.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stallwise.model.intervals import Interval, median_of_block_means, paired_difference


@dataclass(frozen=True, slots=True)
class Share:
    """Part of a step: its time and the bounds within which noise leaves it."""

    s: float
    low_s: float
    high_s: float

    @property
    def distinguishable(self) -> bool:
        """Whether it is larger than its noise."""
        return self.low_s > 0


def falling_fit(values: Sequence[float], weights: Sequence[float] | None = None) -> list[float]:
    """The non-increasing sequence nearest to `values` in weighted least squares (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(values, weights or [1.0] * len(values), strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] < pools[-1][0]:
            mean2, weight2, length2 = pools.pop()
            mean1, weight1, length1 = pools.pop()
            total = weight1 + weight2
            pools.append(((mean1 * weight1 + mean2 * weight2) / total, total, length1 + length2))
    return [mean for mean, _, length in pools for _ in range(length)]


def ladder_shares(rungs: Sequence[Mapping[int, float]]) -> tuple[list[Share], Share]:
    """Stalls between neighbouring rungs and the compute that is left, from the block means of each rung.

    `rungs[i]` maps a round to the mean step of that phase's block. Rung times are medians over rounds, fitted to
    fall. A stall's interval is that of the paired differences of its two rungs, cut off at zero and stretched to
    hold the fitted value; compute's is that of the last rung.
    """
    times = [median_of_block_means(list(rung.values())) for rung in rungs]
    fitted = falling_fit([time.value for time in times], [time.blocks for time in times])
    stalls = []
    for i in range(len(rungs) - 1):
        value = max(0.0, fitted[i] - fitted[i + 1])
        stalls.append(_share(value, _paired(rungs[i], rungs[i + 1])))
    return stalls, _share(fitted[-1], times[-1])


def _paired(upper: Mapping[int, float], lower: Mapping[int, float]) -> Interval:
    rounds = sorted(upper.keys() & lower.keys())
    if not rounds:
        return Interval(0.0, 0.0, np.inf, "none", 0)
    return paired_difference([lower[r] for r in rounds], [upper[r] for r in rounds])


def _share(value: float, interval: Interval) -> Share:
    return Share(value, min(value, max(0.0, interval.low)), max(value, interval.high))


def split_share(whole: Share, part: float) -> tuple[Share, Share]:
    """Cut a share in two at `part` (0 to 1); bounds are cut alike."""
    first = Share(whole.s * part, whole.low_s * part, whole.high_s * part)
    rest = 1.0 - part
    return first, Share(whole.s - first.s, whole.low_s * rest, whole.high_s * rest)
