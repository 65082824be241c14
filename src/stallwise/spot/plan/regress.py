"""Times that have to be guessed before launch: saving a checkpoint, getting a machine, starting a worker on it.

Fitted on CM-DARE's published measurements and judged by leaving out one whole model at a time: the repeats of one model
are alike, and a random split over repeats measures memory, not prediction. The published best model (a support-vector
machine with a width of 1 MB) is the worst one for a size it has not seen; a straight line is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from stallwise.spot.lifetimes import published
from stallwise.units import MB


@dataclass(frozen=True, slots=True)
class Line:
    """y = intercept + slope x, with the errors (predicted / measured - 1) of points that were left out."""

    intercept: float
    slope: float
    held_out: tuple[float, ...]
    largest_x: float

    def __call__(self, x: float) -> float:
        """The value on the line."""
        return self.intercept + self.slope * x

    @property
    def mape(self) -> float:
        """Mean of the absolute held-out errors."""
        return float(np.mean(np.abs(self.held_out)))

    def bounds(self, x: float) -> tuple[float, float]:
        """The line divided by the 10 % and 90 % quantiles of measured over predicted among held-out points."""
        ratios = 1.0 / (1.0 + np.array(self.held_out))
        low, high = np.quantile(ratios, [0.1, 0.9])
        return self(x) * float(low), self(x) * float(high)


def fit_line(x: Sequence[float], y: Sequence[float], groups: Sequence[object] | None = None) -> Line:
    """Least squares over all points; errors by leaving out one group at a time (each point its own by default)."""
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    labels = list(groups) if groups is not None else list(range(len(xs)))
    errors = np.empty(len(xs))
    for label in dict.fromkeys(labels):
        out = np.array([other == label for other in labels])
        slope, intercept = np.polyfit(xs[~out], ys[~out], 1)
        errors[out] = (intercept + slope * xs[out]) / ys[out] - 1.0
    slope, intercept = np.polyfit(xs, ys, 1)
    return Line(float(intercept), float(slope), tuple(errors.tolist()), float(xs.max()))


@cache
def checkpoint_line() -> Line:
    """Seconds over MB: 20 models' checkpoints to Google's object storage, 6 to 204 MB."""
    sizes, seconds = zip(*published.checkpoints(), strict=True)
    return fit_line(sizes, seconds)


@dataclass(frozen=True, slots=True)
class Guess:
    """A time with bounds and the sentence that says where it comes from."""

    s: float
    low_s: float
    high_s: float
    said: str


def checkpoint_time(size_bytes: float) -> Guess:
    """A checkpoint of that size."""
    line, size_mb = checkpoint_line(), size_bytes / MB
    low_s, high_s = line.bounds(size_mb)
    beyond = f"; far beyond the {line.largest_x:.0f} MB it was fitted on" if size_mb > 2 * line.largest_x else ""
    said = (
        f"Saving {size_mb:,.0f} MB takes {line(size_mb):.3g} s by a line through 20 published checkpoints to object "
        f"storage, 2019 (held-out error {line.mape:.0%}){beyond}. Measure yours and give --checkpoint-time."
    )
    return Guess(line(size_mb), low_s, high_s, said)


def machine_start(gpu: str | None = None, market: str = "spot") -> Guess:
    """Until a machine can be logged into: the mean for that GPU and market, else over all of that market."""
    of_market = [start for start in published.start_ups() if start.market == market]
    chosen = [start for start in of_market if gpu and start.gpu.lower() == gpu.lower()] or of_market
    means = [start.machine_s for start in chosen]
    weights = [start.samples for start in chosen]
    mean_s = float(np.average(means, weights=weights))
    said = (
        f"A replacement is there {mean_s:.0f} s after it is asked for, as on Google's {market} GPUs of 2019. "
        "Give --provision."
    )
    return Guess(mean_s, min(means), max(means), said)


def worker_start(*, warm: bool = False) -> Guess:
    """Until a worker trains on a machine that is there."""
    times = [pair[1 if warm else 0] for pair in published.worker_restarts().values()]
    mean_s = float(np.mean(times))
    said = (
        f"Training goes on {mean_s:.0f} s after the machines are there, the mean of four models with "
        f"{'everything in place' if warm else 'nothing in place'}. Give --restart."
    )
    return Guess(mean_s, min(times), max(times), said)
