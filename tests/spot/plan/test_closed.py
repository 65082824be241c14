"""Closed forms against Monte Carlo and by hand."""

import math
from dataclasses import replace

import pytest

from stallwise.spot.lifetimes.models import Exponential, Lifetime, Weibull
from stallwise.spot.lifetimes.published import published_lifetimes_in
from stallwise.spot.plan.closed import (
    JobWork,
    expected_losses,
    expected_time,
    expected_time_without_checkpoints,
)
from stallwise.spot.plan.fleet import MachineKind, uniform_fleet
from stallwise.spot.plan.simulate import simulate
from validation.spot_formulas import (
    PUBLISHED_BATHTUB,
    cost_usd,
    eta_after_loss_s,
    expected_time_memoryless,
    time_through_losses,
)

H = 3600.0


AGREE = 0.02
"""How far Monte Carlo and closed form may lie apart where the closed form's assumptions hold."""


def kind(life: Lifetime, **changes: float) -> MachineKind:
    return replace(MachineKind(name="spot", usd_per_h=3.0, spot_usd_per_h=1.0, life=life), **changes)


def job(**changes: float | bool) -> JobWork:
    made = JobWork(work_s=24 * H, interval_s=900, save_s=20, provision_s=90, restart_s=60)
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("life", "machines"),
    [
        (Exponential(200 * H), 64),
        (Exponential(50 * H), 1),
        (Weibull(300 * H, 0.6), 4),
        (PUBLISHED_BATHTUB, 1),
        (published_lifetimes_in("K80", "us-west1").life(), 1),
        (published_lifetimes_in("K80", "us-west1").life(), 4),
    ],
    ids=["64 exponential", "1 exponential", "4 Weibull", "1 bathtub", "1 K80", "4 K80"],
)
@pytest.mark.parametrize("redo", [True, False])
def test_monte_carlo_and_the_fixed_point_agree(life: Lifetime, machines: int, redo: bool) -> None:
    work, fleet = job(redo=redo), uniform_fleet(kind(life), machines)
    drawn = simulate(work, fleet, replays=20_000)
    expected = expected_time(work, fleet.lives)
    assert drawn.time().mean == pytest.approx(expected.total_s, rel=AGREE)


def test_cm_dares_case_replaces_on_demand_and_loses_each_machine_once() -> None:
    work, fleet = job(redo=False), uniform_fleet(kind(published_lifetimes_in("K80", "us-east1").life()), 4)
    drawn = simulate(work, fleet, replays=20_000, replacement="on-demand")
    expected = expected_time(work, fleet.lives, replaced=False)
    assert drawn.time().mean == pytest.approx(expected.total_s, rel=AGREE)
    assert drawn.losses.mean() == pytest.approx(expected.losses, rel=AGREE)


def test_dalys_exact_time_is_met_where_losses_are_frequent() -> None:
    work, fleet = job(interval_s=1800, save_s=30), uniform_fleet(kind(Exponential(64 * H)), 64)
    drawn = simulate(work, fleet, replays=5000)
    assert drawn.time().mean == pytest.approx(expected_time_memoryless(work, 1 / H), rel=AGREE)


def test_without_checkpoints_the_closed_form_is_met_too() -> None:
    life = Exponential(10 * H)
    work = job(work_s=10 * H, interval_s=math.inf, save_s=0)
    drawn = simulate(work, uniform_fleet(kind(life), 1), replays=40_000)
    expected_s, through = expected_time_without_checkpoints(10 * H, life, 150)
    assert drawn.time().mean == pytest.approx(expected_s, rel=AGREE)
    assert through == pytest.approx(math.exp(-1), rel=1e-3)


def test_cost_bills_lost_machines_to_their_loss() -> None:
    """With nothing to wait for, machine time is the finish times the machines, less the time that some were away."""
    work, fleet = job(interval_s=1800), uniform_fleet(kind(Exponential(100 * H)), 8)
    drawn = simulate(work, fleet, replays=200)
    away_s = drawn.losses * work.provision_s
    # A machine on its way when the job ends is counted as if it had come, by less than one machine's provisioning.
    assert drawn.cost_usd == pytest.approx((8 * drawn.finish_s - away_s) / H, abs=8 * work.provision_s / H)
    assert cost_usd([(2.0, 1800.0), (0.5, 7200.0)]) == 2.0


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
