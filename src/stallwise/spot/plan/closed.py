"""Time and cost in closed form, after CM-DARE (Li, Walls & Guo, ICDCS 2020).

    T   = W + ⌈W/I⌉ δ + N(T) (T_p + T_s [+ redone])
    N   = Σ_i Pr(R_i)             losses expected over T, read from each machine's lifetime: a fixed point in T

with W the work at full speed, I the work between checkpoints, δ the time of one, T_p until a machine is there, T_s
until it trains. CM-DARE counts each machine once, because its replacement is on-demand; where a replacement can be lost
too, N is the renewal function. Assumes that losses are rare enough not to overlap and that a loss stops the whole job.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stallwise.spot.lifetimes.models import Lifetime
from stallwise.units import SECONDS_PER_HOUR

_GRID = 1500
_ROUNDS = 200
_HOPELESS = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A job: seconds of work at full speed, checkpoints, and what coming back after a loss takes."""

    work_s: float
    interval_s: float
    """Work between two checkpoints; infinite for none."""
    save_s: float
    provision_s: float = 0.0
    restart_s: float = 0.0
    join_s: float | None = None
    """Pause when a machine is taken in, where it is another than after a loss; replays of a trace only."""
    redo: bool = True
    """Whether a loss throws away what was done since the last checkpoint."""

    @property
    def saves(self) -> int:
        """Checkpoints in all, the one at the end included."""
        return math.ceil(self.work_s / self.interval_s - 1e-9) if math.isfinite(self.interval_s) else 0

    @property
    def calm_s(self) -> float:
        """Time without any loss."""
        return self.work_s + self.saves * self.save_s


@dataclass(frozen=True, slots=True)
class Expected:
    """The closed form's answer: expected time, losses, and work done twice."""

    total_s: float
    losses: float
    redone_s: float


def cluster_speed(speeds: Sequence[float]) -> float:
    """Steps/s of workers that do not wait for each other: SP = Σ sp_i, also of different GPUs."""
    return float(sum(speeds))


def shortfall(measured: float, speeds: Sequence[float]) -> float:
    """How far a cluster stays behind the sum of its workers: 1 - measured / Σ sp_i; large: something is saturated."""
    return 1.0 - measured / cluster_speed(speeds)


def eta_after_loss_s(steps_left: float, speed: float, degraded: float, away_s: float) -> float:
    """ETA = T_o + (N - s - T_o SP') / SP: `away_s` at the degraded speed, then at full speed again."""
    done = away_s * degraded
    if done >= steps_left:
        return steps_left / degraded
    return away_s + (steps_left - done) / speed


def time_through_losses(work: float, speeds: Sequence[float], lost_at_s: Sequence[float | None]) -> float:
    """Time to do `work` when worker i, of speed i, is lost at `lost_at_s[i]` (None: never) and the others carry on."""
    t = 0.0
    for at_s in sorted(at_s for at_s in lost_at_s if at_s is not None):
        speed = sum(speeds[i] for i, other_s in enumerate(lost_at_s) if other_s is None or other_s >= at_s)
        if speed * (at_s - t) >= work:
            return t + work / speed
        work -= speed * (at_s - t)
        t = at_s
    left = sum(speed for speed, at_s in zip(speeds, lost_at_s, strict=True) if at_s is None)
    return t + work / left if left else math.inf


def expected_losses(life: Lifetime, duration_s: float, *, replaced: bool, away_s: float = 0.0) -> float:
    """Losses of one place in the fleet over a duration.

    Without replacement by another spot machine F(T); with it the renewal function
    M(t) = F(t) + ∫ M(t - x - away) dF(x), solved on a grid.
    """
    if not replaced:
        return float(life.gone(duration_s))
    at_s = np.linspace(0.0, duration_s, _GRID + 1)
    gone = np.asarray(life.gone(at_s))
    steps = np.diff(gone, prepend=0.0)
    count = np.zeros(_GRID + 1)
    lag = round(away_s / duration_s * _GRID) if duration_s else 0
    for i in range(_GRID + 1):
        back = i - lag
        count[i] = gone[i]
        if back > 0:
            # Losses within a cell are put at its middle: the mean of M read at both ends. Without a lag the first cell
            # reads the value sought, which is then on both sides.
            near, ahead = count[back:0:-1].copy(), count[back - 1 :: -1]
            if lag == 0:
                near[0] = 0.0
            count[i] += float(np.dot(steps[1 : back + 1], near + ahead)) / 2
            count[i] /= 1.0 - steps[1] / 2 if lag == 0 else 1.0
    return float(count[-1])


def expected_time(work: Work, lives: Sequence[tuple[Lifetime, int]], *, replaced: bool = True) -> Expected:
    """The fixed point for a fleet of so many machines of each lifetime; infinite where losses outrun progress."""
    total_s = work.calm_s
    losses = redone_s = 0.0
    away_s = work.provision_s + work.restart_s
    for _ in range(_ROUNDS):
        losses = sum(
            count * expected_losses(life, total_s, replaced=replaced, away_s=work.provision_s) for life, count in lives
        )
        # On average a loss comes half-way between two checkpoints.
        again_s = min(work.interval_s + work.save_s, work.work_s) / 2 if work.redo else 0.0
        redone_s = losses * again_s
        found_s = work.calm_s + losses * away_s + redone_s
        if found_s > _HOPELESS * work.calm_s:
            return Expected(math.inf, math.inf, math.inf)
        if abs(found_s - total_s) <= 1e-7 * total_s:
            break
        total_s = found_s
    return Expected(total_s, losses, redone_s)


def expected_time_memoryless(work: Work, losses_per_s: float) -> float:
    """Daly's exact time when losses come at a constant rate Λ and a loss stops everything.

    Each stretch of s = I + δ is tried until it succeeds: (1/Λ + D) (e^{Λ s} - 1), with D = T_p + T_s (Daly 2006,
    without losses during recovery).
    """
    away_s = work.provision_s + work.restart_s
    stretches = [work.interval_s + work.save_s] * (work.saves - 1)
    stretches.append(work.calm_s - sum(stretches))
    return sum((1.0 / losses_per_s + away_s) * math.expm1(losses_per_s * s) for s in stretches)


def expected_time_without_checkpoints(work_s: float, first_loss: Lifetime, away_s: float) -> tuple[float, float]:
    """Expected time when every loss starts the job over on fresh machines, and the chance to finish at the first try.

    E[T] = (∫_0^W S dt + D F(W)) / S(W).
    """
    at_s = np.linspace(0.0, work_s, 20_001)
    alive = 1.0 - np.asarray(first_loss.gone(at_s))
    through = float(alive[-1])
    tried_s = float(np.sum((alive[1:] + alive[:-1]) / 2) * work_s / 20_000)
    if through <= 0:
        return math.inf, 0.0
    return (tried_s + away_s * (1.0 - through)) / through, through


def cost_usd(rentals: Sequence[tuple[float, float]]) -> float:
    """Σ price × time over machines as (dollars/h, seconds): a machine that was lost is billed up to its loss."""
    return sum(usd_per_h * seconds for usd_per_h, seconds in rentals) / SECONDS_PER_HOUR


def mean_time_to_loss_s(lives: Sequence[tuple[Lifetime, int]]) -> float:
    """Between two losses anywhere in the fleet, in the long run: 1 / Σ n_i / mean_i."""
    rate = sum(count / life.mean_s for life, count in lives if math.isfinite(life.mean_s))
    return 1.0 / rate if rate else math.inf
