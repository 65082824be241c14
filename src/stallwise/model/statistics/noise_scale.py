"""The gradient noise scale: the batch beyond which a larger one saves few steps.

McCandlish et al. 2018 ("An empirical model of large-batch training"): to reach the same loss with batches of B samples
takes steps in proportion to 1 + B_noise/B, with B_noise = tr Σ / |G|², Σ the covariance of one sample's gradient and G
the mean gradient. For a gradient over B samples E|g|² = |G|² + tr Σ/B, so squared norms at two sizes of the batch tell
both. With a large batch made of n small ones

    tr Σ / B_large = (|g_small|² - |g_large|²) / (n - 1)        |G|² = (n |g_large|² - |g_small|²) / (n - 1)

and their ratio is B_noise / B_large. Each step gives one pair of unbiased estimates; the interval of the ratio of their
means is Fieller's (1954), which is unbounded where the mean gradient is not told from zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stallwise.model.statistics.intervals import t_quantile

_FEWEST_STEPS = 4

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NoiseRatio:
    """B_noise over the batch it was measured at, with its 95 % interval; `high` and `value` may be infinite."""

    value: float
    low: float
    high: float


def noise_ratio(small: Sequence[float], large: Sequence[float], parts: Sequence[int]) -> NoiseRatio | None:
    """The noise scale in units of the large batch, from squared gradient norms of each step; None: too few steps.

    `small` are means over the small batches of a step, `parts` how many of them make the large one.
    """
    squares = np.array([small, large, parts], dtype=np.float64)
    squares = squares[:, np.isfinite(squares).all(axis=0) & (squares[2] > 1)]
    if squares.shape[1] < _FEWEST_STEPS:
        return None
    near, far, count = squares
    noise, signal = (near - far) / (count - 1), (count * far - near) / (count - 1)
    return _ratio_of_means(noise, signal)


def samples_factor(batch: Numbers, noise_samples: float) -> Numbers:
    """Samples that reach the same loss with batches of `batch`, over those with the smallest batches: 1 + B/B_noise."""
    return 1.0 + batch / noise_samples


def _ratio_of_means(above: Numbers, below: Numbers) -> NoiseRatio | None:
    """Fieller's interval of mean(above) / mean(below) for pairs, cut at zero."""
    count = len(above)
    x, y = float(above.mean()), float(below.mean())
    t2 = t_quantile(count - 1) ** 2 / count
    covariance = np.cov(above, below)
    a = y * y - t2 * float(covariance[1, 1])
    b = x * y - t2 * float(covariance[0, 1])
    c = x * x - t2 * float(covariance[0, 0])
    value = max(0.0, x) / y if y > 0 else math.inf
    root = math.sqrt(max(0.0, b * b - a * c))
    if a > 0:
        return NoiseRatio(value, max(0.0, (b - root) / a), max(value, (b + root) / a))
    # The mean gradient may be zero: only a lower bound is left, and none where the noise may be zero as well.
    if c <= 0 or a == 0:
        return None
    return NoiseRatio(value, max(0.0, (b - root) / a), math.inf)
