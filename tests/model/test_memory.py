"""Whether a job fits on a GPU."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.errors import InputError
from stallwise.model.compute.memory import Footprint, fewest_shards, fits, largest_batch, memory_need
from stallwise.units import GIB

SEVEN = Footprint(parameters=7e9, trained_parameters=7e9, activation_bytes=10 * GIB)
SMALL = Footprint(parameters=25e6, trained_parameters=25e6, state_bytes=4.0, activation_bytes=2 * GIB)


def test_sixteen_bytes_a_parameter_with_adam() -> None:
    found = memory_need(SEVEN)
    assert found.weights + found.gradients + found.optimizer == pytest.approx(16 * 7e9)
    assert not fits(SEVEN, 80 * GIB)
    assert largest_batch(SEVEN, 80 * GIB) is None


def test_sharding_makes_room() -> None:
    # 112 GB of state over n, 10 GiB of activations, 4.3 GiB gathered, times 1.08, and 1 GiB: 73 GiB over 2, 31 over 8.
    assert fewest_shards(SEVEN, 80 * GIB) == 2
    assert fewest_shards(SEVEN, 40 * GIB) == 8
    assert fits(SEVEN, 40 * GIB, shards=8)
    assert fewest_shards(SEVEN, 8 * GIB) is None
    assert memory_need(SEVEN, shards=8).optimizer == pytest.approx(memory_need(SEVEN).optimizer / 8)


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
        memory_need(SMALL, batch=0)
