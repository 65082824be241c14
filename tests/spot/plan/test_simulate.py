"""Monte Carlo and replays of a trace: laws, and cases by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.spot.lifetimes.log import AvailabilityTrace
from stallwise.spot.lifetimes.models import Exponential, Lifetime
from stallwise.spot.lifetimes.published import published_lifetimes_in
from stallwise.spot.plan.closed import (
    JobWork,
)
from stallwise.spot.plan.fleet import MachineKind, SpotFleet, uniform_fleet
from stallwise.spot.plan.simulate import delayed, replay, simulate

H = 3600.0


def kind(life: Lifetime, **changes: float) -> MachineKind:
    return replace(MachineKind(name="spot", usd_per_h=3.0, spot_usd_per_h=1.0, life=life), **changes)


def job(**changes: float | bool) -> JobWork:
    made = JobWork(work_s=24 * H, interval_s=900, save_s=20, provision_s=90, restart_s=60)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_the_seed_decides_and_threads_do_not() -> None:
    work, fleet = job(), uniform_fleet(kind(Exponential(30 * H)), 5)
    one = simulate(work, fleet, replays=300, threads=1)
    assert np.array_equal(one.finish_s, simulate(work, fleet, replays=300, threads=3).finish_s)
    assert not np.array_equal(one.finish_s, simulate(work, fleet, replays=300, seed=2).finish_s)


def test_no_loss_takes_exactly_the_calm_time() -> None:
    work = job()
    drawn = simulate(work, uniform_fleet(kind(Exponential(H)), 4, on_demand=4), replays=3)
    assert drawn.finish_s.tolist() == pytest.approx([work.calm_s] * 3)
    assert drawn.cost_usd.tolist() == pytest.approx([4 * 3.0 * work.calm_s / H] * 3)


@settings(max_examples=25, deadline=None)
@given(mean_h=st.floats(5, 500), machines=st.integers(1, 12), interval=st.floats(120, 7200))
def test_laws_that_hold_on_any_fleet(mean_h: float, machines: int, interval: float) -> None:
    work, fleet = job(work_s=6 * H, interval_s=interval), uniform_fleet(kind(Exponential(mean_h * H)), machines)
    waiting = simulate(work, fleet, replays=400)
    carrying = simulate(work, fleet, replays=400, on_loss="carry-on")
    assert np.all(waiting.finish_s >= work.calm_s - 1e-6)
    assert np.all(carrying.redone_s == 0)
    assert carrying.time().mean <= waiting.time().mean * 1.001
    assert np.all(waiting.redone_s <= waiting.losses * min(interval, work.work_s) + 1e-6)
    calm = simulate(work, uniform_fleet(kind(Exponential(4 * mean_h * H)), machines), replays=400)
    assert calm.time().mean <= waiting.time().mean * 1.02


def test_a_deadline_is_met_by_switching_in_time() -> None:
    work, fleet = job(interval_s=1800), uniform_fleet(kind(Exponential(200 * H)), 64)
    deadline_s = 27 * H
    free = simulate(work, fleet, replays=2000)
    bound = simulate(work, fleet, replays=2000, deadline_s=deadline_s)
    assert free.within(deadline_s) < 0.8
    assert bound.within(deadline_s) > 0.99
    assert free.cost().mean < bound.cost().mean < simulate(work, fleet.on_demand(), replays=1).cost().mean
    assert 0 < (bound.on_demand_s > 0).mean() < 1


def test_kinds_mix_and_the_slowest_sets_the_pace_in_lock_step() -> None:
    fast, slow = kind(Exponential(100 * H), speed=3.0), kind(Exponential(100 * H))
    free = SpotFleet(groups=((fast, 2, 0), (slow, 1, 1)))
    assert (free.speed, free.machines, free.spot_machines) == (8.0, 4, 3)
    assert replace(free, lock_step=True).speed == 4.0
    drawn = simulate(job(), free, replays=500, on_loss="carry-on")
    assert drawn.time().mean > job().calm_s
    # A fast machine is missed more than a slow one.
    only_fast = SpotFleet(groups=((fast, 2, 0), (slow, 0, 2)))
    only_slow = SpotFleet(groups=((fast, 0, 2), (slow, 2, 0)))
    lost = [
        simulate(job(), f, replays=4000, on_loss="carry-on", replacement="none").time().mean
        for f in (only_fast, only_slow)
    ]
    assert lost[0] > lost[1]


def test_old_machines_are_sampled_given_that_they_live() -> None:
    cap = published_lifetimes_in("V100", "us-central1").life()
    old = simulate(job(work_s=6 * H), uniform_fleet(kind(cap, age_s=2 * H), 1), replays=4000)
    new = simulate(job(work_s=6 * H), uniform_fleet(kind(cap), 1), replays=4000)
    assert old.losses.mean() < 0.01 < 0.5 < new.losses.mean()


def steady(counts: list[int], tick_s: float = 300.0) -> AvailabilityTrace:
    return AvailabilityTrace(np.arange(len(counts)) * tick_s, np.array(counts), len(counts) * tick_s)


def test_a_trace_is_followed_to_the_second() -> None:
    work = JobWork(work_s=1000, interval_s=400, save_s=10, provision_s=50, restart_s=50)
    whole = steady([2] * 12)
    calm_s = 100 + 1000 + 3 * 10
    assert replay(work, whole, 2, np.array([0.0, 450.0])).finish_s.tolist() == pytest.approx([calm_s, calm_s])
    # Lost after 600 s, back after 900 s: 90 s of work since the save at 510 s are redone, and start-up comes again.
    gap = replay(work, steady([2, 2, 0, 2, 2, 2, 2, 2, 2]), 2, np.zeros(1))
    assert gap.redone_s.tolist() == pytest.approx([90.0])
    assert gap.finish_s.tolist() == pytest.approx([900 + 100 + 600 + 2 * 10])
    assert gap.losses.tolist() == [2]
    # With half the machines the dynamic fleet goes on while the static one waits.
    thin = steady([2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    assert replay(work, thin, 2, np.zeros(1)).finished == 0
    assert replay(work, thin, 2, np.zeros(1), on_loss="shrink").finished == 1
    assert replay(work, thin, 2, np.zeros(1), on_loss="carry-on").redone_s.tolist() == [0]


def test_replays_bill_what_is_held() -> None:
    work = JobWork(work_s=1000, interval_s=1000, save_s=0)
    out = replay(work, steady([2, 0, 2, 2, 2, 2]), 2, np.zeros(1), spot_usd_per_h=3.6, usd_per_h=36)
    assert out.finish_s.tolist() == pytest.approx([600 + 1000])
    assert out.cost_usd.tolist() == pytest.approx([2 * (300 + 1000) * 1e-3])


@pytest.mark.parametrize("policy", ["greedy", "uniform progress"])
def test_a_job_is_not_late_whatever_the_trace(policy: str) -> None:
    random = np.random.default_rng(5)
    counts = np.repeat(random.integers(0, 2, 400), random.integers(1, 20, 400)).tolist()
    trace = steady(counts)
    work = JobWork(work_s=6 * H, interval_s=900, save_s=20, provision_s=60, restart_s=60)
    starts = np.linspace(0, trace.end_s - 20 * H, 200)
    free = replay(work, trace, 1, starts, spot_usd_per_h=1, usd_per_h=3)
    bound = replay(work, trace, 1, starts, spot_usd_per_h=1, usd_per_h=3, policy=policy, deadline_s=9 * H)  # type: ignore[arg-type]
    assert free.within(9 * H) < 0.3
    assert bound.within(9 * H) == 1
    assert bound.cost_usd.mean() < 3 * work.calm_s / H


def test_new_machines_count_once_they_train() -> None:
    trace = delayed(steady([0, 1, 1, 1, 0, 1, 0, 0]), 400.0)
    at = np.array([100.0, 500, 800, 1100, 1300, 1700, 2300])
    counts = trace.counts[np.searchsorted(trace.at_s, at, side="right") - 1]
    assert counts.tolist() == [0, 0, 1, 1, 0, 0, 0]
