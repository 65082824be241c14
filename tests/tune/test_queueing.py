"""The loader as a pipeline: its mean is the rate model's, and no law of queues is broken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.tune.queueing import taken_every_s

times = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=40)
waits = st.floats(0.0, 1.0)


@pytest.mark.parametrize(("workers", "consume_s"), [(1, 0.02), (2, 0.02), (4, 0.02), (8, 0.05)])
def test_even_batches_come_at_the_rate_of_the_slower_side(workers: int, consume_s: float) -> None:
    found = taken_every_s([0.1] * 50, consume_s, workers)
    assert found == pytest.approx(max(consume_s, 0.1 / workers), rel=0.02)


def test_without_workers_loading_and_consuming_take_turns() -> None:
    assert taken_every_s([0.1, 0.3], 0.05, 0) == pytest.approx(0.25)


def test_uneven_batches_cost_time_that_a_deeper_queue_saves() -> None:
    uneven = ([0.01] * 9 + [0.5]) * 8  # 59 ms on average, for a loop that takes 60 ms
    shallow, deep = (taken_every_s(uneven, 0.06, 1, depth) for depth in (2, 16))
    assert shallow > 1.2 * 0.06
    assert deep < shallow


@given(times, waits, st.integers(1, 8), st.integers(1, 8))
def test_never_faster_than_either_side_alone(batches: list[float], wait_s: float, workers: int, depth: int) -> None:
    found = taken_every_s(batches, wait_s, workers, depth)
    assert found >= wait_s * (1 - 1e-9)
    assert found <= wait_s + max(batches) + 1e-9


@given(times, waits, st.integers(1, 6), st.integers(1, 4))
def test_a_deeper_queue_never_takes_longer_in_the_long_run(
    batches: list[float], wait_s: float, workers: int, depth: int
) -> None:
    # Windows of a long run are compared, not infinite ones: a part of one batch per hundred is their edge.
    shallow, deep = (taken_every_s(batches, wait_s, workers, of) for of in (depth, 2 * depth))
    assert deep <= shallow + max(batches) * 0.1
