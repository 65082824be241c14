"""From a step to an epoch, a job and its cost."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.errors import InputError
from stallwise.model.step.epoch import BoundedStep, TrainingPlan, cost_usd, job_duration
from validation.formulas import increase

STEP = BoundedStep(s=0.1, low_s=0.09, high_s=0.12)
PLAN = TrainingPlan(samples=1000, batch=10)
positive = st.floats(min_value=1e-3, max_value=1e6)


def test_an_hour_of_two_machines() -> None:
    assert cost_usd(3600, 12.24, machines=2) == pytest.approx(24.48)


@given(positive, positive, st.integers(min_value=1, max_value=1000))
def test_cost_scales_with_machines(duration_s: float, usd_per_h: float, machines: int) -> None:
    assert cost_usd(duration_s, usd_per_h, machines) == pytest.approx(machines * cost_usd(duration_s, usd_per_h))


@given(positive, positive, positive)
def test_at_one_price_per_gpu_a_stall_costs_what_it_takes(single_s: float, spread_s: float, usd_per_h: float) -> None:
    """Stash #22: two half-size machines at half the price each cost more exactly as they take longer."""
    spread = cost_usd(spread_s, usd_per_h / 2, machines=2)
    single = cost_usd(single_s, usd_per_h)
    assert increase(spread, single) == pytest.approx(increase(spread_s, single_s), rel=1e-9, abs=1e-9)


def test_an_epoch_is_its_steps() -> None:
    found = job_duration(STEP, PLAN)
    assert (found.epoch_s, found.low_s, found.high_s) == (pytest.approx(10), pytest.approx(9), pytest.approx(12))
    assert found.samples_per_s == pytest.approx(100)
    assert replace(PLAN, samples=1001).steps == 101


def test_everything_around_the_steps_adds_up() -> None:
    plan = replace(PLAN, epochs=3, startup_s=60, evaluation_s=5, checkpoint_s=2)
    assert job_duration(STEP, plan).job_s == pytest.approx(60 + 3 * (10 + 5 + 2))
    often = replace(plan, checkpoint_every_s=4)
    assert job_duration(STEP, often).epoch_s == pytest.approx(10 * 1.5 + 5)


def test_only_the_first_epoch_is_cold() -> None:
    found = job_duration(replace(STEP, cold_s=0.3), replace(PLAN, epochs=4))
    assert found.first_epoch_s == pytest.approx(30)
    assert found.job_s == pytest.approx(30 + 3 * 10)
    # A cold step is never quicker than a warm one.
    assert job_duration(replace(STEP, cold_s=0.01), PLAN).first_epoch_s == pytest.approx(10)


@given(st.floats(0.5, 20), st.floats(0, 1000))
def test_more_to_do_never_ends_sooner(epochs: float, startup_s: float) -> None:
    plan = replace(PLAN, epochs=epochs, startup_s=startup_s)
    assert job_duration(STEP, replace(plan, epochs=epochs + 1)).job_s > job_duration(STEP, plan).job_s
    found = job_duration(STEP, plan)
    assert found.low_s <= found.job_s <= found.high_s


def test_dollars_follow_time_and_machines() -> None:
    found = job_duration(BoundedStep(s=36, low_s=36, high_s=72), PLAN)
    assert found.usd(2.0, machines=3) == (pytest.approx(6.0), pytest.approx(6.0), pytest.approx(12.0))


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(InputError, match="within its bounds"):
        BoundedStep(s=1.0, low_s=2.0, high_s=3.0)
    with pytest.raises(InputError, match="above 0"):
        TrainingPlan(samples=0, batch=1)
    with pytest.raises(InputError, match="startup_s"):
        TrainingPlan(samples=1, batch=1, startup_s=-1)
    with pytest.raises(InputError, match="checkpoint_every_s"):
        TrainingPlan(samples=1, batch=1, checkpoint_every_s=0)
