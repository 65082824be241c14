"""Lines through measured (bytes, seconds): one for small messages, one for large ones.

Times of messages from kilobytes to megabytes span four decades, so *relative* residuals are minimised:
an ordinary fit sees only the largest messages. Outliers (a neighbour on the machine, a lost packet) are damped by
Huber weights, and points with large errors count less. Constants and slopes below zero are not allowed, because no
link has them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from stallwise.errors import InputError
from stallwise.model.exchange.collectives import AlphaBeta, Segments

Points = Sequence[tuple[float, float]]
Vector = npt.NDArray[np.float64]
Weighting = Literal["relative", "absolute"]

_HUBER = 1.345  # standard deviations beyond which a residual counts less; 95 % efficient on normal noise
_ROUNDS = 30
_PER_SEGMENT = 3
_SAME = 1e-4  # relative residuals below this are no reason for a second line
_FLOOR = 0.02  # smallest relative error of a point: lines are an approximation


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted cost; `residuals` are measured/fitted - 1, in order of size."""

    cost: Segments
    residuals: tuple[float, ...]

    @property
    def low(self) -> float:
        """Factor on a fitted time that 2.5 % of the points lie below."""
        return 1 + float(np.quantile(self.residuals, 0.025))

    @property
    def high(self) -> float:
        """Factor on a fitted time that 2.5 % of the points lie above."""
        return 1 + float(np.quantile(self.residuals, 0.975))

    def interval_s(self, size_bytes: float) -> tuple[float, float]:
        """Where 95 % of points like those measured lie around the fitted time."""
        fitted_s = self.cost.time_s(size_bytes)
        return fitted_s * min(1.0, self.low), fitted_s * max(1.0, self.high)


def fit_alpha_beta(points: Points, weighting: Weighting = "relative", errors: Sequence[float] = ()) -> AlphaBeta:
    """Fit one line. `absolute` is the ordinary least squares of published a and b, without robustness.

    Relative: iteratively reweighted least squares on (t - a - bM)/t with Huber weights, scale from the median
    absolute deviation (Huber 1981). Where a or b would be negative it is 0 and the other is fitted alone. `errors`
    are the points' relative standard errors, if known; a point weighs 1/(2 %² + error²).
    """
    sizes, times, trust = _arrays(points, errors)
    if len(np.unique(sizes)) < 2:
        raise InputError("A line needs messages of at least two sizes. Measure more sizes.")
    base = trust / times**2 if weighting == "relative" else np.ones_like(times)
    line = _weighted_line(sizes, times, base)
    for _ in range(_ROUNDS if weighting == "relative" else 0):
        residuals = np.sqrt(trust) * (times - line[0] - line[1] * sizes) / times
        line = _weighted_line(sizes, times, base * _huber_weights(residuals))
    return AlphaBeta(*line)


def fit_segments(points: Points, errors: Sequence[float] = ()) -> Fit:
    """Fit two lines and the size where one takes over, or one line where two are not clearly better.

    Every break that leaves three sizes on each side is tried; the one with the smallest mean of squared relative
    residuals S, weighted as in `fit_alpha_beta`, is taken. Two lines and a break (5 numbers) must beat one line (2) by
    Schwarz's criterion n ln S + p ln n.
    """
    sizes, times, trust = _arrays(points, errors)
    line = fit_alpha_beta(points, errors=errors)
    candidates = [Segments(line, line), *_two_lines(sizes, times, trust)]
    best = min(candidates, key=lambda cost: _criterion(cost, sizes, times, trust))
    return Fit(best, tuple(_residuals(best, sizes, times).tolist()))


def _two_lines(sizes: Vector, times: Vector, trust: Vector) -> list[Segments]:
    distinct = np.unique(sizes)
    errors = np.sqrt(1 / trust - _FLOOR**2)

    def line(chosen: npt.NDArray[np.bool_]) -> AlphaBeta:
        points = list(zip(sizes[chosen].tolist(), times[chosen].tolist(), strict=True))
        return fit_alpha_beta(points, errors=errors[chosen].tolist())

    candidates = []
    for below, above in list(pairwise(distinct.tolist()))[_PER_SEGMENT - 1 : len(distinct) - _PER_SEGMENT]:
        small, large = line(sizes <= below), line(sizes >= above)
        candidates.append(Segments(small, large, _break(small, large, below, above)))
    return candidates


def _break(small: AlphaBeta, large: AlphaBeta, below: float, above: float) -> float:
    """Where the lines cross, if that is between the two sizes; else half-way on a logarithmic scale."""
    slopes = small.s_per_byte - large.s_per_byte
    crossing = (large.latency_s - small.latency_s) / slopes if slopes else math.nan
    return crossing if below < crossing <= above else math.sqrt(below * above)


def _criterion(cost: Segments, sizes: Vector, times: Vector, trust: Vector) -> float:
    spread = float(np.average(_residuals(cost, sizes, times) ** 2, weights=trust))
    count = 2 if cost.break_bytes is None else 5
    return len(sizes) * math.log(max(spread, _SAME**2)) + count * math.log(len(sizes))


def _residuals(cost: Segments, sizes: Vector, times: Vector) -> Vector:
    # A fitted time of zero cannot be: times are positive, so at least one of a line's numbers is.
    fitted = np.array([cost.time_s(size) for size in sizes.tolist()], dtype=np.float64)
    return np.asarray(times / fitted - 1, dtype=np.float64)


def _arrays(points: Points, errors: Sequence[float]) -> tuple[Vector, Vector, Vector]:
    """Sizes in rising order, times, and weights of the points."""
    for size, time_s in points:
        if not (0 < size < math.inf and 0 < time_s < math.inf):
            raise InputError(f"A message of {size} bytes in {time_s} s cannot be used: both are finite and above zero.")
    if not points:
        raise InputError("There is no measured message to fit a link to. Measure at least two sizes.")
    standard_errors = errors or [0.0] * len(points)
    rows = sorted((size, time_s, error) for (size, time_s), error in zip(points, standard_errors, strict=True))
    sizes, times, relative_errors = np.array(rows, dtype=np.float64).T
    return sizes, times, 1 / (_FLOOR**2 + relative_errors**2)


def _huber_weights(residuals: Vector) -> Vector:
    scale = float(np.median(np.abs(residuals))) / 0.6745
    if scale == 0:
        return np.ones_like(residuals)
    far = np.maximum(np.abs(residuals) / (_HUBER * scale), 1.0)
    return np.asarray(1 / far, dtype=np.float64)


def _weighted_line(sizes: Vector, times: Vector, weights: Vector) -> tuple[float, float]:
    """Minimise Σ w (t - a - bM)² over a ≥ 0, b ≥ 0."""
    total = weights.sum()
    mean_size, mean_time = (weights @ sizes) / total, (weights @ times) / total
    centred = sizes - mean_size
    slope = float(weights @ (centred * (times - mean_time)) / (weights @ centred**2))
    constant = float(mean_time - slope * mean_size)
    if slope < 0:
        return float(mean_time), 0.0
    if constant < 0:
        return 0.0, float((weights @ (sizes * times)) / (weights @ sizes**2))
    return constant, slope
