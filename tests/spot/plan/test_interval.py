"""How often to save, and whether to keep old machines."""

import math
from dataclasses import replace

import numpy as np
import pytest

from stallwise.spot.lifetimes.models import Exponential, Lifetime
from stallwise.spot.plan.closed import JobWork
from stallwise.spot.plan.fleet import MachineKind, uniform_fleet
from stallwise.spot.plan.interval import best_schedule, reuse, young_daly_s
from stallwise.spot.plan.simulate import simulate
from validation.spot_formulas import PUBLISHED_BATHTUB, expected_time_memoryless

H = 3600.0


def kind(life: Lifetime, **changes: float) -> MachineKind:
    return replace(MachineKind(name="spot", usd_per_h=3.0, spot_usd_per_h=1.0, life=life), **changes)


def job(**changes: float | bool) -> JobWork:
    made = JobWork(work_s=24 * H, interval_s=900, save_s=20, provision_s=90, restart_s=60)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_schedules() -> None:
    assert young_daly_s(60, 2 * H) == pytest.approx(math.sqrt(2 * 60 * 2 * H))
    flat = best_schedule(Exponential(10 * H), 10 * H, 120, away_s=150)
    daly_s = young_daly_s(120, 10 * H)
    # Without memory the best schedule is even, and close to Young-Daly's.
    assert max(flat.intervals_s) - min(flat.intervals_s[:-1]) <= 3 * 120
    assert np.mean(flat.intervals_s) == pytest.approx(daly_s, rel=0.15)
    # Its expected time is that of Daly's formula at that interval.
    even = job(work_s=10 * H, interval_s=float(np.mean(flat.intervals_s)), save_s=120)
    assert flat.expected_s == pytest.approx(expected_time_memoryless(even, 1 / (10 * H)), rel=0.005)
    # Where the young die, saving begins often and becomes rare.
    rising = best_schedule(PUBLISHED_BATHTUB, 5 * H, 60)
    assert rising.intervals_s[0] < rising.intervals_s[-1]
    assert rising.expected_s < even_time(PUBLISHED_BATHTUB, 5 * H, 60)


def even_time(life: Lifetime, work_s: float, save_s: float) -> float:
    """Mean time with Young-Daly's even intervals."""
    work = JobWork(work_s=work_s, interval_s=young_daly_s(save_s, life.mean_s), save_s=save_s)
    return simulate(work, uniform_fleet(kind(life), 1), replays=20_000).time().mean


def test_old_machines_are_kept_in_the_middle_of_a_bathtub() -> None:
    assert reuse(PUBLISHED_BATHTUB, 8 * H, 4 * H)[0]
    assert not reuse(PUBLISHED_BATHTUB, 22 * H, 4 * H)[0]
    keep, kept_s, fresh_s = reuse(Exponential(10 * H), 5 * H, 2 * H, fresh_start_s=90)
    assert keep
    assert fresh_s - kept_s == pytest.approx(90)
