"""The laws of the data path."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.model.data.datapath import LoaderWork, fetch_fraction, speed, step_with_workers, taken_every_s
from validation.formulas import enough_cores, fetch_stall, prep_stall, staging_bytes

seconds = st.floats(min_value=0, max_value=10)
positive = st.floats(min_value=1e-4, max_value=10)
workers = st.integers(min_value=1, max_value=32)


@given(seconds, seconds, positive, workers, workers)
def test_more_workers_are_never_slower(
    prepare_s: float, blocked_s: float, consume_s: float, n: int, cores: int
) -> None:
    work = LoaderWork(prepare_s=prepare_s, blocked_s=blocked_s, workers=n)
    assert step_with_workers(work, consume_s, n + 1, cores) <= step_with_workers(work, consume_s, n, cores)


@given(seconds, seconds, positive, workers, workers)
def test_a_step_is_never_shorter_than_consuming(p: float, b: float, consume_s: float, n: int, cores: int) -> None:
    work = LoaderWork(prepare_s=p, blocked_s=b, workers=n)
    assert step_with_workers(work, consume_s, n, cores) >= consume_s


@given(seconds, seconds, positive, st.integers(min_value=0, max_value=32))
def test_blame_is_a_part_of_the_whole(prepare_s: float, blocked_s: float, consume_s: float, n: int) -> None:
    assert 0 <= fetch_fraction(LoaderWork(prepare_s=prepare_s, blocked_s=blocked_s, workers=n), consume_s) <= 1


@pytest.mark.parametrize(
    ("prepare_s", "blocked_s", "n", "consume_s", "part"),
    [
        (0.010, 0.000, 1, 0.005, 0.0),  # nothing but preparation
        (0.000, 0.010, 1, 0.005, 1.0),  # nothing but reading
        (0.010, 0.050, 1, 0.030, 1.0),  # preparation alone would be hidden
        (0.050, 0.010, 1, 0.030, 1 / 3),  # 20 ms would stay with instant reads, 10 more come from reading
        (0.010, 0.030, 0, 0.030, 0.75),  # no worker: one after the other
    ],
)
def test_who_is_to_blame(prepare_s: float, blocked_s: float, n: int, consume_s: float, part: float) -> None:
    work = LoaderWork(prepare_s=prepare_s, blocked_s=blocked_s, workers=n)
    assert fetch_fraction(work, consume_s) == pytest.approx(part)


def test_the_slowest_stage_decides_and_the_unknown_does_not() -> None:
    assert speed(300.0, 200.0, 250.0) == 200.0
    assert speed(None, None, 250.0) == 250.0


rate = st.floats(min_value=1, max_value=1e6)


@given(rate, rate, rate)
def test_stalls_are_what_is_missing_to_the_next_rate(fetch: float, prepare: float, ingest: float) -> None:
    """Without the prep stall and then without the fetch stall, an epoch takes what the GPU needs."""
    left = (1 - prep_stall(prepare, ingest)) * (1 - fetch_stall(fetch, prepare, ingest)) * ingest
    assert left == pytest.approx(speed(fetch, prepare, ingest))


def test_a_stage_that_keeps_up_stalls_nothing() -> None:
    assert prep_stall(300.0, 200.0) == 0
    assert fetch_stall(250.0, 300.0, 200.0) == 0
    assert prep_stall(100.0, 200.0) == 0.5
    assert fetch_stall(50.0, 100.0, 200.0) == 0.5


def test_enough_cores_is_where_the_curve_levels_off() -> None:
    rates = {1: 0.4, 2: 0.74, 3: 1.0, 4: 1.14, 6: 1.15, 24: 1.15}
    assert enough_cores(rates) == 4
    assert enough_cores(rates, share=1.0) == 6


def test_staging_grows_with_jobs() -> None:
    assert staging_bytes(100.0, jobs=8) == 1600


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
