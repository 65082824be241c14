"""What fits, and what surrounds the steps of a job."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.errors import InputError
from stallwise.model.epoch import Plan, Step, whole
from stallwise.model.memory import Footprint, fewest_shards, fits, largest_batch, need
from stallwise.units import GIB

SEVEN = Footprint(parameters=7e9, trained_parameters=7e9, activation_bytes=10 * GIB)
SMALL = Footprint(parameters=25e6, trained_parameters=25e6, state_bytes=4.0, activation_bytes=2 * GIB)
STEP = Step(s=0.1, low_s=0.09, high_s=0.12)
PLAN = Plan(samples=1000, batch=10)


def test_sixteen_bytes_a_parameter_with_adam() -> None:
    found = need(SEVEN)
    assert found.weights + found.gradients + found.optimizer == pytest.approx(16 * 7e9)
    assert not fits(SEVEN, 80 * GIB)
    assert largest_batch(SEVEN, 80 * GIB) is None


def test_sharding_makes_room() -> None:
    # 112 GB of state over n, 10 GiB of activations, 4.3 GiB gathered, times 1.08, and 1 GiB: 73 GiB over 2, 31 over 8.
    assert fewest_shards(SEVEN, 80 * GIB) == 2
    assert fewest_shards(SEVEN, 40 * GIB) == 8
    assert fits(SEVEN, 40 * GIB, shards=8)
    assert fewest_shards(SEVEN, 8 * GIB) is None
    assert need(SEVEN, shards=8).optimizer == pytest.approx(need(SEVEN).optimizer / 8)


@given(st.floats(8, 200), st.integers(1, 64))
def test_the_largest_batch_fits_and_a_larger_one_does_not(memory_gib: float, shards: int) -> None:
    batch = largest_batch(SMALL, memory_gib * GIB, shards=shards)
    assert batch is not None
    assert fits(SMALL, memory_gib * GIB, batch=0.999 * batch, shards=shards)
    assert not fits(SMALL, memory_gib * GIB, batch=1.001 * batch, shards=shards)


def test_without_activations_any_batch_fits() -> None:
    assert largest_batch(replace(SMALL, activation_bytes=0.0), 8 * GIB) == math.inf


def test_nonsense_is_refused() -> None:
    with pytest.raises(InputError, match="batch above 0"):
        need(SMALL, batch=0)
    with pytest.raises(InputError, match="within its bounds"):
        Step(s=1.0, low_s=2.0, high_s=3.0)
    with pytest.raises(InputError, match="above 0"):
        Plan(samples=0, batch=1)
    with pytest.raises(InputError, match="startup_s"):
        Plan(samples=1, batch=1, startup_s=-1)
    with pytest.raises(InputError, match="checkpoint_every_s"):
        Plan(samples=1, batch=1, checkpoint_every_s=0)


def test_an_epoch_is_its_steps() -> None:
    found = whole(STEP, PLAN)
    assert (found.epoch_s, found.low_s, found.high_s) == (pytest.approx(10), pytest.approx(9), pytest.approx(12))
    assert found.samples_per_s == pytest.approx(100)
    assert replace(PLAN, samples=1001).steps == 101


def test_everything_around_the_steps_adds_up() -> None:
    plan = replace(PLAN, epochs=3, startup_s=60, evaluation_s=5, checkpoint_s=2)
    assert whole(STEP, plan).job_s == pytest.approx(60 + 3 * (10 + 5 + 2))
    often = replace(plan, checkpoint_every_s=4)
    assert whole(STEP, often).epoch_s == pytest.approx(10 * 1.5 + 5)


def test_only_the_first_epoch_is_cold() -> None:
    found = whole(replace(STEP, cold_s=0.3), replace(PLAN, epochs=4))
    assert found.first_epoch_s == pytest.approx(30)
    assert found.job_s == pytest.approx(30 + 3 * 10)
    # A cold step is never quicker than a warm one.
    assert whole(replace(STEP, cold_s=0.01), PLAN).first_epoch_s == pytest.approx(10)


@given(st.floats(0.5, 20), st.floats(0, 1000))
def test_more_to_do_never_ends_sooner(epochs: float, startup_s: float) -> None:
    plan = replace(PLAN, epochs=epochs, startup_s=startup_s)
    assert whole(STEP, replace(plan, epochs=epochs + 1)).job_s > whole(STEP, plan).job_s
    found = whole(STEP, plan)
    assert found.low_s <= found.job_s <= found.high_s


def test_dollars_follow_time_and_machines() -> None:
    found = whole(Step(s=36, low_s=36, high_s=72), PLAN)
    assert found.usd(2.0, machines=3) == (pytest.approx(6.0), pytest.approx(6.0), pytest.approx(12.0))
