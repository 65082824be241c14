"""The laws of the data path."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.model.datapath import LoaderWork, fetch_part, speed, step_with_workers

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
    assert 0 <= fetch_part(LoaderWork(prepare_s=prepare_s, blocked_s=blocked_s, workers=n), consume_s) <= 1


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
    assert fetch_part(work, consume_s) == pytest.approx(part)


def test_the_slowest_stage_decides_and_the_unknown_does_not() -> None:
    assert speed(300.0, 200.0, 250.0) == 200.0
    assert speed(None, None, 250.0) == 250.0
