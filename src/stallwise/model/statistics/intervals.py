"""95 % confidence intervals of phase times and of their differences.

A phase's time is the median over its blocks of the block *mean*. Loaders deliver in bursts, so single steps
say little, while a block that spans whole bursts has a mean that does; the median over blocks is robust against
a block in which the machine did something else. All intervals are for that median.

    one phase            order statistics; exact for any distribution (from 6 blocks); below that t, of logarithms
    two separate sets    MOVER: each set's own interval, combined; no assumption of equal spread
    interleaved blocks   order statistics of the pairwise differences; drift cancels

They take blocks as independent. What differs between two launches (another neighbour, another clock rate) is
not in the blocks of either, so the difference of two runs says nothing about it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

LEVEL = 0.95

# Blocks that differ so much say nothing: an interval over more than a factor of e^5 to either side is none.
_MOST_LOG = 5.0

Method = Literal["order statistics", "t", "mover", "none"]
Values = Sequence[float] | npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval, in the unit of the values it was computed from.

    `method` says how the interval was computed; with "none" there were too few blocks and it is unbounded.
    """

    value: float
    low: float
    high: float
    method: Method
    blocks: int

    @property
    def is_bounded(self) -> bool:
        """Whether both bounds are finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def excludes(self, value: float) -> bool:
        """Whether `value` lies outside: a difference that excludes 0 is beyond noise."""
        return value < self.low or value > self.high


def median_of_block_means(means: Values) -> Interval:
    """The median of independent block means with its 95 % interval.

    From 6 blocks: the interval [x_(k), x_(n+1-k)] of the ordered means, with the largest k for which
    1 - 2 P(Binomial(n, 1/2) < k) >= 0.95. It covers the median of any continuous distribution with at least
    that probability (Thompson 1936; David & Nagaraja, *Order Statistics*, 7.1).
    With 2 to 5 no such k exists; then mean ± t s/√n, which trusts the means to be about normal. With one
    block nothing is known of the spread and the bounds are infinite.
    """
    ordered = np.sort(_finite(means))
    count = len(ordered)
    value = float(np.median(ordered))
    if count == 1:
        return Interval(value, -math.inf, math.inf, "none", count)
    k = order_statistic_rank(count)
    if k:
        return Interval(value, float(ordered[k - 1]), float(ordered[count - k]), "order statistics", count)
    centre = float(ordered.mean())
    half = t_quantile(count - 1) * float(ordered.std(ddof=1)) / math.sqrt(count)
    # The median is always inside in exact arithmetic (|mean - median| <= s); equal values may round outside.
    return Interval(value, min(value, centre - half), max(value, centre + half), "t", count)


def positive_median(values: Values) -> Interval:
    """The median of positive values (durations, rates), with an interval that never reaches zero.

    As `median_of_block_means`, but with 2 to 5 blocks the t interval is taken of the logarithms: what varies in a step
    time are factors, and mean ± t s/√n of two blocks would reach below zero.
    """
    finite = _finite(values)
    plain = median_of_block_means(finite)
    if plain.method != "t" or finite.min() <= 0:
        return plain
    logs = np.log(finite)
    half = t_quantile(len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    if half > _MOST_LOG:
        return Interval(plain.value, -math.inf, math.inf, "none", plain.blocks)
    low, high = math.exp(float(logs.mean()) - half), math.exp(float(logs.mean()) + half)
    return Interval(plain.value, min(plain.value, low), max(plain.value, high), "t", plain.blocks)


def combine(baseline: Interval, other: Interval) -> Interval:
    """`other` minus `baseline` for two independent values with their intervals.

    MOVER (Zou & Donner 2008, Statistics in Medicine 27:1693): with (l1, u1) and (l2, u2) around m1 and m2,
    low  = m2 - m1 - sqrt((m2 - l2)² + (u1 - m1)²)
    high = m2 - m1 + sqrt((u2 - m2)² + (m1 - l1)²).
    Chosen over Mann-Whitney, whose interval is too short when the smaller set is the noisier one (as an as-is phase is
    against a replayed one), and over Welch, whose value would not be the difference of the two medians that are shown.
    """
    value = other.value - baseline.value
    blocks = min(baseline.blocks, other.blocks)
    if not (baseline.is_bounded and other.is_bounded):
        return Interval(value, -math.inf, math.inf, "none", blocks)
    below = math.hypot(other.value - other.low, baseline.high - baseline.value)
    above = math.hypot(other.high - other.value, baseline.value - baseline.low)
    return Interval(value, value - below, value + above, "mover", blocks)


def combine_relative(baseline: Interval, other: Interval) -> Interval:
    """`other / baseline - 1` (0.12: 12 % more) for two independent positive values with their intervals.

    The same combination on the logarithms, m2/m1 - 1 = exp(log m2 - log m1) - 1, so that the uncertainty of the
    baseline counts too. The value is exactly the ratio of the two. A bound at or below zero (a t interval of very few
    blocks) makes the result unbounded.
    """
    if baseline.value <= 0 or other.value <= 0:
        raise ValueError("a relative difference needs positive values")
    ratio = combine(_logarithm(baseline), _logarithm(other))
    low = math.expm1(ratio.low) if ratio.is_bounded else -math.inf
    high = math.expm1(ratio.high) if ratio.is_bounded else math.inf
    value = other.value / baseline.value - 1
    # exp(log) may round past the exact ratio when an interval has no width.
    return Interval(value, min(low, value), max(high, value), ratio.method, ratio.blocks)


def paired_difference(baseline: Values, other: Values) -> Interval:
    """The median over block pairs of `other[i] - baseline[i]`, for blocks that are neighbours in time.

    Whatever drifts slower than a pair takes cancels in each difference; what is left is treated like block
    means (order statistics from 6 pairs: the inverted sign test, which needs no symmetry).
    """
    first, second = _finite(baseline), _finite(other)
    if len(first) != len(second):
        raise ValueError(f"paired_difference needs pairs of blocks, not {len(first)} and {len(second)}")
    return median_of_block_means(second - first)


@lru_cache
def order_statistic_rank(count: int) -> int:
    """The largest k with P(x_(k) <= median <= x_(n+1-k)) >= 95 %, or 0 where there is none (n < 6)."""
    # Whole numbers, because 2^n leaves the floats at 1024 blocks: P(B < k) <= 1/40 means 40 * tail <= 2^n.
    tail, k = 0, 0
    while 40 * (tail + math.comb(count, k)) <= 2**count:
        tail += math.comb(count, k)
        k += 1
    return k


@lru_cache
def t_quantile(degrees: int) -> float:
    """The two-sided 95 % quantile of Student's t, to about six digits.

    With t = √ν tan θ the density of |t| becomes proportional to cos^(ν-1) θ on [0, π/2]: it is summed on a
    grid and inverted by interpolation. Not scipy's, because this module is imported inside training processes.
    """
    theta = np.linspace(0.0, math.pi / 2, 20_001)
    density = np.cos(theta) ** (degrees - 1)
    mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    angle = float(np.interp(LEVEL * mass[-1], mass, theta))
    return math.sqrt(degrees) * math.tan(angle)


def _logarithm(interval: Interval) -> Interval:
    if interval.low <= 0 or not interval.is_bounded:
        return Interval(math.log(interval.value), -math.inf, math.inf, "none", interval.blocks)
    low, high = math.log(interval.low), math.log(interval.high)
    return Interval(math.log(interval.value), low, high, interval.method, interval.blocks)


def _finite(values: Values) -> npt.NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if not len(array) or not np.isfinite(array).all():
        raise ValueError("block means must be finite numbers, at least one")
    return array
