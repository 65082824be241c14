"""Time and cost in closed form, after CM-DARE (Li, Walls & Guo, ICDCS 2020).

    T   = W + ⌈W/I⌉ δ + N(T) (T_p + T_s [+ redone])
    N   = Σ_i Pr(R_i)             losses expected over T, read from each machine's lifetime: a fixed point in T

with W the work at full speed, I the work between checkpoints, δ the time of one, T_p the time until a machine is there,
T_s until it trains. CM-DARE counts each machine once, because its replacement is on-demand; where a replacement can be
lost too, N is the renewal function. Assumes that losses are rare enough not to overlap and that a loss stops the whole
job.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stallwise.spot.lifetimes.models import Lifetime

_GRID = 1500
_ROUNDS = 200
_HOPELESS = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWork:
    """A job: seconds of work at full speed, its checkpoints, and the times to come back after a loss."""

    work_s: float
    interval_s: float
    """Work between two checkpoints; infinite for none."""
    save_s: float
    provision_s: float = 0.0
    restart_s: float = 0.0
    join_s: float | None = None
    """Pause when a machine joins, where it differs from that after a loss; replays of a trace only."""
    redo: bool = True
    """Whether a loss throws away what was done since the last checkpoint."""

    @property
    def saves(self) -> int:
        """Number of checkpoints, the one at the end included."""
        return math.ceil(self.work_s / self.interval_s - 1e-9) if math.isfinite(self.interval_s) else 0

    @property
    def calm_s(self) -> float:
        """Time without any loss."""
        return self.work_s + self.saves * self.save_s


@dataclass(frozen=True, slots=True)
class ExpectedTime:
    """The closed form's answer: expected time, losses, and work done twice."""

    total_s: float
    losses: float
    redone_s: float


def expected_losses(life: Lifetime, duration_s: float, *, replaced: bool, away_s: float = 0.0) -> float:
    """Expected losses of one place in the fleet over `duration_s`.

    Without replacement by another spot machine F(T); with it the renewal function
    M(t) = F(t) + ∫ M(t - x - away) dF(x), solved on a grid.
    """
    if not replaced:
        return float(life.cdf(duration_s))
    at_s = np.linspace(0.0, duration_s, _GRID + 1)
    lost = np.asarray(life.cdf(at_s))
    steps = np.diff(lost, prepend=0.0)
    count = np.zeros(_GRID + 1)
    lag = round(away_s / duration_s * _GRID) if duration_s else 0
    for i in range(_GRID + 1):
        back = i - lag
        count[i] = lost[i]
        if back > 0:
            # Losses within a cell are put at its middle: the mean of M read at both ends. Without a lag the first cell
            # reads the value sought, which is then on both sides.
            near, ahead = count[back:0:-1].copy(), count[back - 1 :: -1]
            if lag == 0:
                near[0] = 0.0
            count[i] += float(np.dot(steps[1 : back + 1], near + ahead)) / 2
            count[i] /= 1.0 - steps[1] / 2 if lag == 0 else 1.0
    return float(count[-1])


def expected_time(work: JobWork, lives: Sequence[tuple[Lifetime, int]], *, replaced: bool = True) -> ExpectedTime:
    """Solve the fixed point for a fleet of `(lifetime, machines)`; infinite where losses outrun progress."""
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
        next_s = work.calm_s + losses * away_s + redone_s
        if next_s > _HOPELESS * work.calm_s:
            return ExpectedTime(math.inf, math.inf, math.inf)
        if abs(next_s - total_s) <= 1e-7 * total_s:
            break
        total_s = next_s
    return ExpectedTime(total_s, losses, redone_s)


def expected_time_without_checkpoints(work_s: float, first_loss: Lifetime, away_s: float) -> tuple[float, float]:
    """Expected time when every loss starts the job over on fresh machines, and the chance to finish at the first try.

    E[T] = (∫_0^W S dt + D F(W)) / S(W).
    """
    at_s = np.linspace(0.0, work_s, 20_001)
    alive = 1.0 - np.asarray(first_loss.cdf(at_s))
    through = float(alive[-1])
    tried_s = float(np.sum((alive[1:] + alive[:-1]) / 2) * work_s / 20_000)
    if through <= 0:
        return math.inf, 0.0
    return (tried_s + away_s * (1.0 - through)) / through, through


def mean_time_to_loss_s(lives: Sequence[tuple[Lifetime, int]]) -> float:
    """Between two losses anywhere in the fleet, in the long run: 1 / Σ n_i / mean_i."""
    rate = sum(count / life.mean_s for life, count in lives if math.isfinite(life.mean_s))
    return 1.0 / rate if rate else math.inf
