"""Speeds by placement: stated, observed, corrected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.slurm._placement import corrected_speeds, with_reading
from stallwise.slurm.state import ObservedSpeed


def test_speeds_are_corrected_by_what_was_seen() -> None:
    said = (1.0, 0.9, 0.6)
    assert corrected_speeds(said, {}, 2) == said
    assert corrected_speeds(said, {0: 10.0, 2: 3.0}, 2) == pytest.approx((1.0, 0.9, 0.3))
    assert corrected_speeds(said, {1: 8.0}, 2) == pytest.approx(said), (
        "one width says nothing without a step to compare"
    )
    assert corrected_speeds(said, {1: 8.0}, 2, step_s=0.1) == pytest.approx((1.0, 0.8, 0.6))
    assert corrected_speeds((), {0: 10.0, 2: 5.0}, 2) == pytest.approx((1.0, 1.0, 0.5))


@given(
    st.lists(st.floats(0.05, 1), max_size=3).map(lambda found: tuple(sorted(found, reverse=True))),
    st.dictionaries(st.integers(0, 2), st.floats(0.01, 100), max_size=3),
    st.one_of(st.none(), st.floats(0.001, 10)),
)
def test_corrected_speeds_are_speeds(said: tuple[float, ...], seen: dict[int, float], step_s: float | None) -> None:
    found = corrected_speeds(said, seen, 2, step_s)
    assert all(0 < speed <= 1 for speed in found)
    assert list(found) == sorted(found, reverse=True), "wider is never faster"


def test_speeds_seen_across_a_switch_that_is_gone_are_forgotten() -> None:
    assert corrected_speeds((1.0, 0.9, 0.5), {3: 2.0}, levels=2) == (1.0, 0.9, 0.5)


def seen_speed(*readings: float) -> ObservedSpeed:
    entry = ObservedSpeed(user="u", model="m", gang=8, level=1)
    for steps in readings:
        entry = with_reading(entry, steps)
    return entry


def test_what_is_seen_is_a_median_that_forgets() -> None:
    assert seen_speed(*[10.0] * 30, *[20.0] * 11).steps_per_s == 20.0
    assert len(seen_speed(*[10.0] * 30).readings) == 21


def test_one_false_record_changes_nothing() -> None:
    assert seen_speed(10.0, 10.1, 1e300).steps_per_s == 10.1
    assert seen_speed(1e300, 10.0, 10.1).steps_per_s == 10.1, "two honest readings mend it"
    stated = (1.0, 0.96, 0.9)
    for observed in ({0: 1e300, 1: 10.0, 2: 9.0}, {0: 10.0, 2: 1e300}, {0: 10.0, 2: 1e-300}):
        speeds = corrected_speeds(stated, observed, 2)
        assert speeds == pytest.approx(stated), "a ratio that no placement makes"
    assert corrected_speeds(stated, {1: 1e300}, 2, step_s=0.1) == stated
