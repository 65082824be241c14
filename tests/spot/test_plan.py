"""Time and cost under losses: Monte Carlo against closed forms, laws that hold on any fleet, schedules, policies."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.errors import InputError
from stallwise.spot.lifetimes.log import Trace
from stallwise.spot.lifetimes.models import Exponential, Lifetime, Weibull
from stallwise.spot.lifetimes.published import PUBLISHED_BATHTUB, watched_in
from stallwise.spot.plan.closed import (
    Work,
    cost_usd,
    eta_after_loss_s,
    expected_losses,
    expected_time,
    expected_time_memoryless,
    expected_time_without_checkpoints,
    time_through_losses,
)
from stallwise.spot.plan.fleet import Fleet, Kind, one_kind
from stallwise.spot.plan.interval import best_schedule, reuse, young_daly_s
from stallwise.spot.plan.outlook import Question, make_plan
from stallwise.spot.plan.regress import checkpoint_line, checkpoint_time, machine_start, worker_start
from stallwise.spot.plan.simulate import delayed, replay, simulate
from stallwise.spot.plan.zones import by_availability, follow

H = 3600.0
AGREE = 0.02
"""How far Monte Carlo and closed form may lie apart where the closed form's assumptions hold."""


def kind(life: Lifetime, **changes: float) -> Kind:
    return replace(Kind(name="spot", usd_per_h=3.0, spot_usd_per_h=1.0, life=life), **changes)


def job(**changes: float | bool) -> Work:
    made = Work(work_s=24 * H, interval_s=900, save_s=20, provision_s=90, restart_s=60)
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("life", "machines"),
    [
        (Exponential(200 * H), 64),
        (Exponential(50 * H), 1),
        (Weibull(300 * H, 0.6), 4),
        (PUBLISHED_BATHTUB, 1),
        (watched_in("K80", "us-west1").life(), 1),
        (watched_in("K80", "us-west1").life(), 4),
    ],
    ids=["64 exponential", "1 exponential", "4 Weibull", "1 bathtub", "1 K80", "4 K80"],
)
@pytest.mark.parametrize("redo", [True, False])
def test_monte_carlo_and_the_fixed_point_agree(life: Lifetime, machines: int, redo: bool) -> None:
    work, fleet = job(redo=redo), one_kind(kind(life), machines)
    drawn = simulate(work, fleet, replays=20_000)
    expected = expected_time(work, fleet.lives)
    assert drawn.time().mean == pytest.approx(expected.total_s, rel=AGREE)


def test_cm_dares_case_replaces_on_demand_and_loses_each_machine_once() -> None:
    work, fleet = job(redo=False), one_kind(kind(watched_in("K80", "us-east1").life()), 4)
    drawn = simulate(work, fleet, replays=20_000, replacement="on-demand")
    expected = expected_time(work, fleet.lives, replaced=False)
    assert drawn.time().mean == pytest.approx(expected.total_s, rel=AGREE)
    assert drawn.losses.mean() == pytest.approx(expected.losses, rel=AGREE)


def test_dalys_exact_time_is_met_where_losses_are_frequent() -> None:
    work, fleet = job(interval_s=1800, save_s=30), one_kind(kind(Exponential(64 * H)), 64)
    drawn = simulate(work, fleet, replays=5000)
    assert drawn.time().mean == pytest.approx(expected_time_memoryless(work, 1 / H), rel=AGREE)


def test_without_checkpoints_the_closed_form_is_met_too() -> None:
    life = Exponential(10 * H)
    work = job(work_s=10 * H, interval_s=math.inf, save_s=0)
    drawn = simulate(work, one_kind(kind(life), 1), replays=40_000)
    expected_s, through = expected_time_without_checkpoints(10 * H, life, 150)
    assert drawn.time().mean == pytest.approx(expected_s, rel=AGREE)
    assert through == pytest.approx(math.exp(-1), rel=1e-3)


def test_cost_bills_lost_machines_to_their_loss() -> None:
    """With nothing to wait for, machine time is the finish times the machines, less the time that some were away."""
    work, fleet = job(interval_s=1800), one_kind(kind(Exponential(100 * H)), 8)
    drawn = simulate(work, fleet, replays=200)
    away_s = drawn.losses * work.provision_s
    # A machine on its way when the job ends is counted as if it had come, by less than one machine's provisioning.
    assert drawn.cost_usd == pytest.approx((8 * drawn.finish_s - away_s) / H, abs=8 * work.provision_s / H)
    assert cost_usd([(2.0, 1800.0), (0.5, 7200.0)]) == 2.0


def test_the_seed_decides_and_threads_do_not() -> None:
    work, fleet = job(), one_kind(kind(Exponential(30 * H)), 5)
    one = simulate(work, fleet, replays=300, threads=1)
    assert np.array_equal(one.finish_s, simulate(work, fleet, replays=300, threads=3).finish_s)
    assert not np.array_equal(one.finish_s, simulate(work, fleet, replays=300, seed=2).finish_s)


def test_no_loss_takes_exactly_the_calm_time() -> None:
    work = job()
    drawn = simulate(work, one_kind(kind(Exponential(H)), 4, on_demand=4), replays=3)
    assert drawn.finish_s.tolist() == pytest.approx([work.calm_s] * 3)
    assert drawn.cost_usd.tolist() == pytest.approx([4 * 3.0 * work.calm_s / H] * 3)


@settings(max_examples=25, deadline=None)
@given(mean_h=st.floats(5, 500), machines=st.integers(1, 12), interval=st.floats(120, 7200))
def test_laws_that_hold_on_any_fleet(mean_h: float, machines: int, interval: float) -> None:
    work, fleet = job(work_s=6 * H, interval_s=interval), one_kind(kind(Exponential(mean_h * H)), machines)
    waiting = simulate(work, fleet, replays=400)
    carrying = simulate(work, fleet, replays=400, on_loss="carry-on")
    assert np.all(waiting.finish_s >= work.calm_s - 1e-6)
    assert np.all(carrying.redone_s == 0)
    assert carrying.time().mean <= waiting.time().mean * 1.001
    assert np.all(waiting.redone_s <= waiting.losses * min(interval, work.work_s) + 1e-6)
    calm = simulate(work, one_kind(kind(Exponential(4 * mean_h * H)), machines), replays=400)
    assert calm.time().mean <= waiting.time().mean * 1.02


def test_a_deadline_is_met_by_switching_in_time() -> None:
    work, fleet = job(interval_s=1800), one_kind(kind(Exponential(200 * H)), 64)
    deadline_s = 27 * H
    free = simulate(work, fleet, replays=2000)
    bound = simulate(work, fleet, replays=2000, deadline_s=deadline_s)
    assert free.within(deadline_s) < 0.8
    assert bound.within(deadline_s) > 0.99
    assert free.cost().mean < bound.cost().mean < simulate(work, fleet.on_demand(), replays=1).cost().mean
    assert 0 < (bound.on_demand_s > 0).mean() < 1


def test_kinds_mix_and_the_slowest_sets_the_pace_in_lock_step() -> None:
    fast, slow = kind(Exponential(100 * H), speed=3.0), kind(Exponential(100 * H))
    free = Fleet(groups=((fast, 2, 0), (slow, 1, 1)))
    assert (free.speed, free.machines, free.spot_machines) == (8.0, 4, 3)
    assert replace(free, lock_step=True).speed == 4.0
    drawn = simulate(job(), free, replays=500, on_loss="carry-on")
    assert drawn.time().mean > job().calm_s
    # A fast machine is missed more than a slow one.
    only_fast = Fleet(groups=((fast, 2, 0), (slow, 0, 2)))
    only_slow = Fleet(groups=((fast, 0, 2), (slow, 2, 0)))
    lost = [
        simulate(job(), f, replays=4000, on_loss="carry-on", replacement="none").time().mean
        for f in (only_fast, only_slow)
    ]
    assert lost[0] > lost[1]


def test_old_machines_are_sampled_given_that_they_live() -> None:
    cap = watched_in("V100", "us-central1").life()
    old = simulate(job(work_s=6 * H), one_kind(kind(cap, age_s=2 * H), 1), replays=4000)
    new = simulate(job(work_s=6 * H), one_kind(kind(cap), 1), replays=4000)
    assert old.losses.mean() < 0.01 < 0.5 < new.losses.mean()


def test_eta_and_piecewise_time() -> None:
    assert eta_after_loss_s(1000, 10, 5, 20) == 20 + (1000 - 100) / 10
    assert eta_after_loss_s(50, 10, 5, 20) == 10
    assert time_through_losses(100, [1, 1], [None, None]) == 50
    assert time_through_losses(100, [1, 1], [None, 20.0]) == 80
    assert time_through_losses(100, [1, 1], [10.0, 10.0]) == math.inf
    # ETA after a loss is the piecewise time of the same loss, seen from the loss.
    assert eta_after_loss_s(100, 2, 1, 1e9) == time_through_losses(100, [1.0], [None])


@pytest.mark.parametrize("away_s", [0.0, 600.0])
def test_the_renewal_function_is_the_long_run_rate(away_s: float) -> None:
    found = expected_losses(Exponential(H), 20 * H, replaced=True, away_s=away_s)
    assert found == pytest.approx(20 * H / (H + away_s), rel=0.02)
    assert expected_losses(Exponential(H), 20 * H, replaced=False) == pytest.approx(1)


def test_losses_that_outrun_progress_have_no_end() -> None:
    assert expected_time(job(interval_s=6 * H), [(Exponential(2 * H), 64)]).total_s == math.inf


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
    work = Work(work_s=work_s, interval_s=young_daly_s(save_s, life.mean_s), save_s=save_s)
    return simulate(work, one_kind(kind(life), 1), replays=20_000).time().mean


def test_old_machines_are_kept_in_the_middle_of_a_bathtub() -> None:
    assert reuse(PUBLISHED_BATHTUB, 8 * H, 4 * H)[0]
    assert not reuse(PUBLISHED_BATHTUB, 22 * H, 4 * H)[0]
    keep, kept_s, fresh_s = reuse(Exponential(10 * H), 5 * H, 2 * H, fresh_start_s=90)
    assert keep
    assert fresh_s - kept_s == pytest.approx(90)


def steady(counts: list[int], tick_s: float = 300.0) -> Trace:
    return Trace(np.arange(len(counts)) * tick_s, np.array(counts), len(counts) * tick_s)


def test_a_trace_is_followed_to_the_second() -> None:
    work = Work(work_s=1000, interval_s=400, save_s=10, provision_s=50, restart_s=50)
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
    work = Work(work_s=1000, interval_s=1000, save_s=0)
    out = replay(work, steady([2, 0, 2, 2, 2, 2]), 2, np.zeros(1), spot_usd_per_h=3.6, usd_per_h=36)
    assert out.finish_s.tolist() == pytest.approx([600 + 1000])
    assert out.cost_usd.tolist() == pytest.approx([2 * (300 + 1000) * 1e-3])


@pytest.mark.parametrize("policy", ["greedy", "uniform progress"])
def test_a_job_is_not_late_whatever_the_trace(policy: str) -> None:
    random = np.random.default_rng(5)
    counts = np.repeat(random.integers(0, 2, 400), random.integers(1, 20, 400)).tolist()
    trace = steady(counts)
    work = Work(work_s=6 * H, interval_s=900, save_s=20, provision_s=60, restart_s=60)
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


def test_zones() -> None:
    east, west = steady([1, 1, 0, 0, 1, 1, 0]), steady([0, 0, 1, 1, 1, 0, 0])
    assert by_availability({"east": east, "west": west}, 1)[0] == ("east", pytest.approx(4 / 7))
    both = follow([east, west], 1)
    assert both.availability(1) == pytest.approx(6 / 7, abs=0.01)
    moves = sum(1 for a, b in zip(both.counts, both.counts[1:], strict=False) if b < a)
    assert moves == 3, "east to west, west to east, and the end"
    apart = Trace(np.array([1e6]), np.array([1]), 2e6)
    with pytest.raises(InputError, match="do not overlap"):
        follow([east, apart], 1)


def test_guesses_say_where_they_come_from() -> None:
    line = checkpoint_line()
    assert line.mape < 0.1
    small = checkpoint_time(50e6)
    assert small.low_s < small.s < small.high_s
    assert "far beyond" not in small.said
    assert "far beyond" in checkpoint_time(5e9).said
    assert machine_start("K80").s != machine_start("P100").s
    assert worker_start(warm=True).s < worker_start().s


def question(**changes: object) -> Question:
    made = Question(
        name="job", work_s=20 * H, save_s=20, provision_s=90, restart_s=80, machines=4, replays=500,
        kind=kind(watched_in("V100", "us-central1").life()), deadline_s=24 * H, budget_usd=120.0,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_plan_has_every_part() -> None:
    found = make_plan(question())
    assert found.result.finish_s.low <= found.result.finish_s.median <= found.result.finish_s.high
    assert found.closed.total_s + 170 == pytest.approx(found.result.finish_s.mean, rel=AGREE)
    assert {"on-demand", "switch in time", "mix", "replace", "on loss", "saving", "start-up"} <= {
        lever.name for lever in found.levers
    }
    assert found.on_demand.cost_usd.mean == pytest.approx(4 * 3.0 * (found.on_demand.finish_s.mean - 90) / H)
    worth = {(lever.name, lever.said): lever for lever in found.levers}
    assert worth["saving", "checkpoints saved twice as fast"].saved_s > 0
    assert worth["start-up", "machines and training back twice as fast"].saved_s > 0
    levels = [value for _, value in found.finish_quantiles]
    assert levels == sorted(levels)
    assert found.verdict.startswith("Cheapest of what meets the limits")


def test_the_chosen_interval_beats_those_around_it() -> None:
    found = make_plan(question())
    assert found.interval.tried
    assert min(mean for _, mean in found.interval.tried) == dict(found.interval.tried)[found.interval.used_s]
    assert found.interval.schedule_s


def test_a_plan_without_checkpoints_is_refused_with_what_would_be_lost() -> None:
    with pytest.raises(
        InputError, match=r"Without checkpoints a loss of any of 4 spot machines .* 20 h of work, .* of them lost"
    ):
        make_plan(question(interval_s=math.inf))
    assert make_plan(question(interval_s=math.inf, on_demand=4)).result.losses == 0


def test_nothing_meets_what_cannot_be_met() -> None:
    assert make_plan(question(deadline_s=H)).verdict.startswith("Nothing looked at meets the limits")


def test_a_fleet_needs_machines() -> None:
    with pytest.raises(InputError, match="at least one machine"):
        Fleet(groups=())
    with pytest.raises(InputError, match="do not fit"):
        one_kind(kind(Exponential(H)), 2, on_demand=3)
