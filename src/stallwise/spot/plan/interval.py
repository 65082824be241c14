"""How often to save: Young-Daly's rule, and the best schedule under any lifetime by dynamic programme.

    Young 1974, Daly 2006     I = √(2 δ M)
    Kadupitiya et al. 2020    M*(J, t) = min_i P (i + δ + M*(J - i, t + i + δ)) + (1 - P) (E[lost] + D + M*(J, 0))

M*(J, t) is the least expected time to do the work J on a machine of age t, P the probability that it lasts for i + δ
more. The paper's code takes 1 - P = F(t + i + δ) - F(t); given that the machine is alive at t it is that over 1 - F(t),
which is what is used here unless `conditional` is off. After a loss a fresh machine starts from the last checkpoint.
"""

import math
from dataclasses import dataclass

import numpy as np

from stallwise.errors import InputError
from stallwise.spot.lifetimes.log import Floats
from stallwise.spot.lifetimes.models import Lifetime, lost_between

_STEPS = 300


@dataclass(frozen=True, slots=True)
class CheckpointSchedule:
    """Work between checkpoints on a fresh machine that is not lost, and the expected time of the whole job."""

    intervals_s: tuple[float, ...]
    expected_s: float


def young_daly_s(save_s: float, mean_to_loss_s: float) -> float:
    """√(2 δ M); infinite where nothing is ever lost."""
    if save_s < 0 or mean_to_loss_s <= 0:
        raise InputError("An interval needs a time to save of at least 0 and a mean lifetime above 0.")
    return math.sqrt(2.0 * save_s * mean_to_loss_s) if math.isfinite(mean_to_loss_s) else math.inf


def best_schedule(
    life: Lifetime,
    work_s: float,
    save_s: float,
    *,
    away_s: float = 0.0,
    unit_s: float | None = None,
    conditional: bool = True,
    half_lost: bool = False,
) -> CheckpointSchedule:
    """The dynamic programme on a grid of `unit_s` (a 300th of the work).

    `half_lost` takes half a stretch as lost, as the paper's code does, instead of the expectation under the lifetime.
    """
    unit = unit_s or work_s / _STEPS
    steps = max(1, round(work_s / unit))
    # Ages reach as far as all work with a save after every unit, in units; saves fall between grid points.
    ages_s = np.arange(math.ceil(steps * (1 + save_s / unit)) + 2, dtype=np.float64) * unit
    best = np.zeros((steps + 1, len(ages_s)))
    window = [_stretch(life, ages_s, i * unit + save_s, conditional, half_lost) for i in range(steps + 1)]
    for left in range(1, steps + 1):
        fresh = _fresh(best, window, left, unit, save_s, away_s)
        best[left] = np.inf
        for i in range(1, left + 1):
            lost, wasted_s = window[i]
            later = np.interp(ages_s + i * unit + save_s, ages_s, best[left - i])
            expected_s = (1 - lost) * (i * unit + save_s + later) + lost * (wasted_s + away_s + fresh)
            best[left] = np.minimum(best[left], expected_s)
        best[left][0] = fresh
    return CheckpointSchedule(tuple(_path(best, window, unit, save_s, away_s)), float(best[steps][0]))


def _stretch(
    life: Lifetime, ages_s: Floats, length_s: float, conditional: bool, half_lost: bool
) -> tuple[Floats, Floats]:
    """For every age: the probability of a loss within the stretch, and the time wasted if there is one."""
    if conditional:
        lost = lost_between(life, ages_s, ages_s + length_s)
    else:
        lost = np.clip(np.asarray(life.cdf(ages_s + length_s)) - np.asarray(life.cdf(ages_s)), 0.0, 1.0)
    if half_lost:
        return lost, np.full_like(lost, length_s / 2)
    return lost, _wasted_s(life, ages_s, length_s)


def _wasted_s(life: Lifetime, ages_s: Floats, length_s: float) -> Floats:
    """E[L - t | t < L ≤ t + s] = (∫_t^{t+s} S du - s S(t + s)) / (S(t) - S(t + s))."""
    points = np.linspace(0.0, length_s, 17)
    alive = 1.0 - np.asarray(life.cdf(ages_s[:, None] + points[None, :]))
    area = ((alive[:, 1:] + alive[:, :-1]) / 2).sum(axis=1) * (length_s / 16)
    drop = alive[:, 0] - alive[:, -1]
    with np.errstate(divide="ignore", invalid="ignore"):
        wasted_s = (area - length_s * alive[:, -1]) / drop
    return np.clip(np.where(drop > 1e-12, wasted_s, length_s / 2), 0.0, length_s)


def _fresh(
    best: Floats, window: list[tuple[Floats, Floats]], left: int, unit: float, save_s: float, away_s: float
) -> float:
    """At age 0 both sides hold M*(J, 0): solved for it, M = (P (…) + (1 - P) (lost + D)) / P."""
    expected_s = np.full(left + 1, np.inf)
    for i in range(1, left + 1):
        lost, wasted_s = float(window[i][0][0]), float(window[i][1][0])
        if lost >= 1:
            continue
        later = _at(best[left - i], (i * unit + save_s) / unit)
        expected_s[i] = ((1 - lost) * (i * unit + save_s + later) + lost * (wasted_s + away_s)) / (1 - lost)
    return float(expected_s.min())


def _path(best: Floats, window: list[tuple[Floats, Floats]], unit: float, save_s: float, away_s: float) -> list[float]:
    """Return the chosen intervals in seconds along the path without a loss."""
    left, age, intervals_s = len(best) - 1, 0.0, list[float]()
    while left:
        options = np.full(left + 1, np.inf)
        for i in range(1, left + 1):
            lost, wasted_s = _at(window[i][0], age), _at(window[i][1], age)
            later = _at(best[left - i], age + (i * unit + save_s) / unit)
            options[i] = (1 - lost) * (i * unit + save_s + later) + lost * (wasted_s + away_s + best[left][0])
        chosen = int(options.argmin())
        intervals_s.append(chosen * unit)
        age += (chosen * unit + save_s) / unit
        left -= chosen
    return intervals_s


def _at(values: Floats, place: float) -> float:
    low = min(int(place), len(values) - 1)
    high = min(low + 1, len(values) - 1)
    part = place - int(place)
    return float(values[low] * (1 - part) + values[high] * part)


def reuse(life: Lifetime, age_s: float, work_s: float, fresh_start_s: float = 0.0) -> tuple[bool, float, float]:
    """Whether to run on a machine of that age or ask for a fresh one, with the expected times of both.

    The paper's rule, keep it iff E[T_s] ≤ E[T_0], with conditional probabilities and the time to get a fresh machine.
    """

    def expected_s(start_s: float) -> float:
        points = np.linspace(start_s, start_s + work_s, 4001)
        lost = np.asarray(life.cdf(points))
        alive = 1.0 - float(lost[0])
        if alive <= 0:
            return math.inf
        middle = (points[1:] + points[:-1]) / 2 - start_s
        return work_s + float(np.dot(middle, np.diff(lost))) / alive

    kept_s, fresh_s = expected_s(age_s), expected_s(0.0) + fresh_start_s
    return kept_s <= fresh_s, kept_s, fresh_s
