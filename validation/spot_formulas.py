"""Formulas of the papers on spot machines that no command needs: they are checked against what the papers print.

Clusters of workers that do not wait for each other are CM-DARE's (Li, Walls & Guo, ICDCS 2020), the bathtub and the run
time with one loss those of Kadupitiya, Jadhao & Sharma (HPDC 2020).
"""

import math
from collections.abc import Sequence

import numpy as np

from stallwise.spot.lifetimes.log import AvailabilityTrace
from stallwise.spot.lifetimes.models import Bathtub, Lifetime
from stallwise.spot.lifetimes.published import LIMIT_S
from stallwise.spot.plan.closed import JobWork
from stallwise.units import SECONDS_PER_HOUR

PUBLISHED_BATHTUB = Bathtub(
    0.4137, 0.9 * SECONDS_PER_HOUR, 0.76 * SECONDS_PER_HOUR, 24.0 * SECONDS_PER_HOUR, cap_s=LIMIT_S
)
"""Parameters in the code of Kadupitiya, Jadhao & Sharma, HPDC 2020, who fitted losses alone, without stops."""


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


def cost_usd(rentals: Sequence[tuple[float, float]]) -> float:
    """Σ price × time over machines as (dollars/h, seconds): a machine that was lost is billed up to its loss."""
    return sum(usd_per_h * seconds for usd_per_h, seconds in rentals) / SECONDS_PER_HOUR


def expected_with_one_loss_s(life: Lifetime, work_s: float, age_s: float = 0.0) -> float:
    """E[T] = T + ∫ (t - s) f(t) dt from age s to s + T: the paper's run time with at most one loss, no checkpoints.

    The integral is of the lifetime as it is (unconditional), which the reuse rule compares between two ages.
    """
    points = np.linspace(age_s, age_s + work_s, 20_001)
    lost = np.asarray(life.cdf(points))
    middle = (points[1:] + points[:-1]) / 2 - age_s
    return work_s + float(np.dot(middle, np.diff(lost)))


def past_trace(trace: AvailabilityTrace, now_s: float) -> AvailabilityTrace:
    """Cut a trace at `now_s`."""
    earlier = trace.at_s < now_s
    return AvailabilityTrace(trace.at_s[earlier], trace.counts[earlier], now_s)


def expected_time_memoryless(work: JobWork, losses_per_s: float) -> float:
    """Daly's exact time when losses come at a constant rate Λ and a loss stops everything.

    Each stretch of s = I + δ is tried until it succeeds: (1/Λ + D) (e^{Λ s} - 1), with D = T_p + T_s (Daly 2006,
    without losses during recovery).
    """
    away_s = work.provision_s + work.restart_s
    stretches = [work.interval_s + work.save_s] * (work.saves - 1)
    stretches.append(work.calm_s - sum(stretches))
    return sum((1.0 / losses_per_s + away_s) * math.expm1(losses_per_s * s) for s in stretches)


def bathtub_mean_s(life: Bathtub, until_s: float) -> float:
    """∫ t f(t) dt from 0 to `until_s` by the paper's antiderivative.

    [-A (t + τ1) exp(-t/τ1) + A (t - τ2) exp((t - b)/τ2)] between the ends.
    """

    def at(t: float) -> float:
        early = -(t + life.early_s) * math.exp(-t / life.early_s)
        return life.scale * (early + (t - life.late_s) * math.exp((t - life.wall_s) / life.late_s))

    return at(until_s) - at(0.0)
