"""Whether a setting helps: the posterior of its gain, from the rounds of a trial and the profile's prediction as prior.

A round measures every arm once, neighbours in time, so its ratio of step times is free of drift. With μ the logarithm
of the step's ratio and σ the noise of a round,

    μ ~ half N(log(1 - predicted gain), τ²), half N(0, 0.5²)
    σ ~ lognormal around 6 %, ratio of a round ~ N(μ, σ²) in logarithms

τ comes from the prediction's interval and is never below `_LEAST_TAU`: models are off by more than they know. With the
other half the prediction may be wrong altogether, and does not outvote rounds that contradict it. The posterior is
summed up on a grid of (μ, σ), so that two rounds that agree say much and two that do not say little. Rounds go on until
an arm wins or loses with 95 %, or the time is spent (*inconclusive*).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

KEEP = 0.03
"""Smallest gain that counts as one: a fraction of the step."""
CERTAIN = 0.95
"""Probability from which an arm has won, or (of the opposite) lost."""
LEAST_ROUNDS = 2

Outcome = Literal["better", "not better", "inconclusive"]

_LEAST_TAU = 0.35
_UNTOLD_TAU = 0.5
_NORMAL_95 = 1.96
_USUAL_NOISE, _NOISE_SPREAD = 0.06, 0.7
_MOST_GAIN = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class GainPrior:
    """A predicted gain with its interval."""

    gain: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GainPosterior:
    """The gain of a setting after so many rounds: median, 95 % interval, probability that it is worth keeping."""

    gain: float
    low: float
    high: float
    probability: float
    """That the gain is at least `KEEP`."""
    rounds: int

    @property
    def outcome(self) -> Outcome:
        """Won, lost, or neither."""
        if self.rounds < LEAST_ROUNDS:
            return "inconclusive"
        if self.probability >= CERTAIN:
            return "better"
        return "not better" if self.probability <= 1 - CERTAIN else "inconclusive"


def gain_posterior(before_s: Sequence[float], after_s: Sequence[float], prior: GainPrior) -> GainPosterior:
    """Combine the rounds of a trial with the prediction."""
    ratios = [math.log(after / before) for before, after in zip(before_s, after_s, strict=True)]
    mu, sigma, noise = _grid()
    centre = math.log(1 - min(prior.gain, _MOST_GAIN))
    low, high = (math.log(1 - min(bound, _MOST_GAIN)) for bound in (prior.high, prior.low))
    tau = max(_LEAST_TAU, (high - low) / (2 * _NORMAL_95))
    weight = np.logaddexp(_log_normal(mu, centre, tau), _log_normal(mu, 0.0, _UNTOLD_TAU))[:, None] + noise[None, :]
    for ratio in ratios:
        weight = weight - np.log(sigma)[None, :] - 0.5 * ((ratio - mu[:, None]) / sigma[None, :]) ** 2
    density = np.exp(weight - weight.max()).sum(axis=1)
    cumulative = np.cumsum(density) / density.sum()
    at = [float(np.interp(level, cumulative, mu)) for level in (0.025, 0.5, 0.975)]
    return GainPosterior(
        gain=1 - math.exp(at[1]),
        low=1 - math.exp(at[2]),
        high=1 - math.exp(at[0]),
        probability=float(np.interp(math.log(1 - KEEP), mu, cumulative)),
        rounds=len(ratios),
    )


@lru_cache
def _grid() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Logarithms of step ratios, noises of a round, and the logarithm of each noise's prior."""
    mu = np.linspace(-4.5, 2.0, 1301)
    sigma = np.geomspace(0.005, 0.8, 40)
    return mu, sigma, -0.5 * (np.log(sigma / _USUAL_NOISE) / _NOISE_SPREAD) ** 2


def _log_normal(values: npt.NDArray[np.float64], centre: float, spread: float) -> npt.NDArray[np.float64]:
    logs: npt.NDArray[np.float64] = -0.5 * ((values - centre) / spread) ** 2 - math.log(spread)
    return logs


def is_decided(times_s: Sequence[Sequence[float]], priors: Sequence[GainPrior]) -> bool:
    """Whether every arm has won or lost against the first; `times_s` holds the rounds of each arm."""
    rounds = min(map(len, times_s), default=0)
    if rounds < LEAST_ROUNDS:
        return False
    before, *challengers = (times[:rounds] for times in times_s)
    judged = (gain_posterior(before, after, prior) for after, prior in zip(challengers, priors[1:], strict=True))
    return all(one.outcome != "inconclusive" for one in judged)
