"""Intervals from errors: they cover what they say, and every group counts alike."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.model.statistics.conformal import USUAL_SHIFT, ErrorSpread, choose, joined, spread_of


@pytest.mark.parametrize("count", [30, 100, 1000])
def test_new_errors_of_the_same_kind_are_covered_as_often_as_said(count: int) -> None:
    rng = random.Random(count)
    covered = []
    for _ in range(200):
        spread = spread_of([rng.gauss(0.05, 0.2) for _ in range(count)])
        covered += [spread.low <= rng.gauss(0.05, 0.2) <= spread.high for _ in range(20)]
    assert 0.78 <= sum(covered) / len(covered) <= 0.90


def test_few_errors_give_their_extremes() -> None:
    spread = spread_of([-0.2, 0.0, 0.1])
    assert (spread.low, spread.high) == (-0.2, 0.1)


def test_a_group_with_many_rows_does_not_speak_for_all() -> None:
    errors = [0.0] * 3000 + [1.0] * 290
    groups = ["many"] * 3000 + [f"few {i % 29}" for i in range(290)]
    assert spread_of(errors).high == 0.0
    assert spread_of(errors, groups).high == 1.0


@pytest.mark.parametrize("count", [2, 3, 6, 9])
def test_few_groups_cover_a_row_of_another(count: int) -> None:
    """Groups that differ by as much as whole GPUs usually do, rows of one by less."""
    rng = random.Random(count)
    covered = []
    for _ in range(150):
        shifts = {str(g): rng.gauss(0, USUAL_SHIFT) for g in range(count + 1)}
        labels = [str(g) for g in range(count) for _ in range(20)]
        spread = spread_of([shifts[label] + rng.gauss(0, 0.05) for label in labels], labels)
        covered += [spread.low <= shifts[str(count)] + rng.gauss(0, 0.05) <= spread.high for _ in range(10)]
    assert 0.75 <= sum(covered) / len(covered) <= 0.93


def test_few_groups_far_apart_are_wider_than_few_alike() -> None:
    labels = [str(i % 3) for i in range(30)]
    alike = spread_of([0.01 * (i % 2) for i in range(30)], labels)
    apart = spread_of([0.5 * (i % 3 - 1) for i in range(30)], labels)
    assert apart.high > 2 * alike.high
    assert apart.low < 2 * alike.low


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=50), st.floats(0.1, 10))
def test_the_interval_holds_its_order(errors: list[float], value: float) -> None:
    spread = spread_of(errors)
    low, high = spread.around(value)
    assert low <= high


def test_independent_factors_add_as_squares() -> None:
    both = joined(ErrorSpread(-0.3, 0.3), ErrorSpread(-0.4, 0.4))
    assert (both.low, both.high) == (pytest.approx(-0.5), pytest.approx(0.5))
    assert joined(ErrorSpread(0.1, 0.2)).low == 0.0


def test_the_closest_case_is_taken() -> None:
    found = {"a": ErrorSpread(-1, 1), "": ErrorSpread(-2, 2)}
    assert choose(found, "b", "a", "") == ErrorSpread(-1, 1)
    with pytest.raises(KeyError):
        choose({}, "a")


def test_no_errors_no_spread() -> None:
    with pytest.raises(ValueError, match="needs errors"):
        spread_of([])
    assert math.isfinite(spread_of([0.1]).low)
