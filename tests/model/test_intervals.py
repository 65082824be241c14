import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.model.statistics.intervals import (
    Interval,
    combine,
    combine_relative,
    median_of_block_means,
    order_statistic_rank,
    paired_difference,
    t_quantile,
)

Array = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, int], Array]

TRIALS = 2000
HONEST = 0.93

times = st.lists(st.floats(0.001, 1000.0), min_size=1, max_size=40)
several = st.lists(st.floats(0.001, 1000.0), min_size=2, max_size=20)


def difference(baseline: Sequence[float] | Array, other: Sequence[float] | Array) -> Interval:
    return combine(median_of_block_means(baseline), median_of_block_means(other))


def relative_difference(baseline: Sequence[float] | Array, other: Sequence[float] | Array) -> Interval:
    return combine_relative(median_of_block_means(baseline), median_of_block_means(other))


def _normal(rng: np.random.Generator, trials: int, blocks: int) -> Array:
    return rng.normal(40.0, 2.0, (trials, blocks))


def _noisy(rng: np.random.Generator, trials: int, blocks: int) -> Array:
    return rng.normal(45.0, 10.0, (trials, blocks))


def _bursty(rng: np.random.Generator, trials: int, blocks: int) -> Array:
    """Blocks of 16 steps of which about a quarter wait for the loader: mean far above median."""
    steps = rng.gamma(4.0, 1.0, (trials, blocks, 16))
    waits = (rng.random(steps.shape) < 0.25) * rng.exponential(40.0, steps.shape)
    return (steps + waits).mean(axis=2)


def _skewed(rng: np.random.Generator, trials: int, blocks: int) -> Array:
    return rng.lognormal(0.0, 1.2, (trials, blocks, 16)).mean(axis=2)


DRAWS = [_normal, _noisy, _bursty, _skewed]


@lru_cache
def _truth(draw: Draw) -> float:
    return float(np.median(draw(np.random.default_rng(99), 500, 1000)))


def _coverage(intervals: list[Interval], truth: float) -> float:
    return float(np.mean([interval.low <= truth <= interval.high for interval in intervals]))


@pytest.mark.parametrize("blocks", [3, 5, 6, 10, 30])
@pytest.mark.parametrize("draw", DRAWS)
def test_median_intervals_cover(draw: Draw, blocks: int) -> None:
    means = draw(np.random.default_rng(1), TRIALS, blocks)
    assert _coverage([median_of_block_means(row) for row in means], _truth(draw)) >= HONEST


@pytest.mark.parametrize("sizes", [(3, 3), (6, 6), (20, 20), (20, 5), (5, 20)])
@pytest.mark.parametrize("first", [_normal, _bursty])
@pytest.mark.parametrize("second", DRAWS)
def test_difference_intervals_cover(first: Draw, second: Draw, sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(2)
    a, b = first(rng, TRIALS, sizes[0]), second(rng, TRIALS, sizes[1])
    made = [difference(x, y) for x, y in zip(a, b, strict=True)]
    assert _coverage(made, _truth(second) - _truth(first)) >= HONEST


@pytest.mark.parametrize("blocks", [4, 8, 20])
def test_relative_intervals_cover(blocks: int) -> None:
    rng = np.random.default_rng(3)
    a, b = _bursty(rng, TRIALS, blocks), 1.1 * _bursty(rng, TRIALS, blocks)
    made = [relative_difference(x, y) for x, y in zip(a, b, strict=True)]
    assert _coverage(made, 0.1) >= HONEST


@pytest.mark.parametrize("blocks", [4, 8, 20])
def test_paired_intervals_cover_in_spite_of_drift(blocks: int) -> None:
    rng = np.random.default_rng(4)
    drift = np.cumsum(rng.normal(0.0, 5.0, (TRIALS, blocks)), axis=1)
    a = _bursty(rng, TRIALS, blocks) + drift
    b = _bursty(rng, TRIALS, blocks) + drift + 3.0
    pairs = [paired_difference(x, y) for x, y in zip(a, b, strict=True)]
    assert _coverage(pairs, 3.0) >= HONEST


def test_pairing_narrows_what_drifts() -> None:
    rng = np.random.default_rng(5)
    drift = np.linspace(0.0, 50.0, 20)
    a, b = rng.normal(100.0, 1.0, 20) + drift, rng.normal(103.0, 1.0, 20) + drift
    paired, apart = paired_difference(a, b), difference(a, b)
    assert paired.high - paired.low < (apart.high - apart.low) / 5
    assert paired.excludes(0.0)
    assert not apart.excludes(0.0)


@given(times)
def test_value_lies_inside(values: list[float]) -> None:
    made = median_of_block_means(values)
    assert made.low <= made.value <= made.high
    assert made.value == float(np.median(values))


@given(several, several)
def test_difference_lies_inside_and_turns_round(a: list[float], b: list[float]) -> None:
    forth, back = difference(a, b), difference(b, a)
    assert forth.low <= forth.value <= forth.high
    assert (forth.value, forth.low, forth.high) == pytest.approx((-back.value, -back.high, -back.low))
    relative = relative_difference(a, b)
    assert relative.low <= relative.value <= relative.high


@given(times, st.floats(-1000.0, 1000.0))
def test_shift_moves_the_interval(values: list[float], shift: float) -> None:
    before, after = median_of_block_means(values), median_of_block_means([v + shift for v in values])
    expected = (before.value + shift, before.low + shift, before.high + shift)
    assert (after.value, after.low, after.high) == pytest.approx(expected, abs=1e-6)


@given(several, several, st.floats(-100.0, 100.0))
def test_shifting_both_leaves_the_difference(a: list[float], b: list[float], shift: float) -> None:
    before, after = difference(a, b), difference([v + shift for v in a], [v + shift for v in b])
    assert (after.value, after.low, after.high) == pytest.approx((before.value, before.low, before.high), abs=1e-6)


@given(several, several, st.floats(0.01, 100.0))
def test_scale_scales_and_leaves_the_ratio(a: list[float], b: list[float], scale: float) -> None:
    larger = [v * scale for v in a], [v * scale for v in b]
    before, after = difference(a, b), difference(*larger)
    expected = (before.value * scale, before.low * scale, before.high * scale)
    assert (after.value, after.low, after.high) == pytest.approx(expected, abs=1e-6)
    assert relative_difference(*larger).value == pytest.approx(relative_difference(a, b).value, abs=1e-9)


@given(times)
def test_order_does_not_matter(values: list[float]) -> None:
    assert median_of_block_means(values) == median_of_block_means(sorted(values, reverse=True))


def test_methods_by_number_of_blocks() -> None:
    assert median_of_block_means([1.0]) == Interval(1.0, -math.inf, math.inf, "none", 1)
    assert not median_of_block_means([1.0]).is_bounded
    assert median_of_block_means([1.0, 2.0, 4.0]).method == "t"
    six = median_of_block_means([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert (six.value, six.low, six.high, six.method) == (3.5, 1.0, 6.0, "order statistics")
    assert difference([1.0], [1.0, 2.0]).method == "none"


def test_ranks_are_those_of_the_tables() -> None:
    """Conover, *Practical Nonparametric Statistics*: k for the 95 % interval of a median."""
    assert {n: order_statistic_rank(n) for n in (5, 6, 8, 9, 12, 15, 20, 25, 30)} == {
        5: 0, 6: 1, 8: 1, 9: 2, 12: 3, 15: 4, 20: 6, 25: 8, 30: 10,
    }  # fmt: skip
    assert 900 < order_statistic_rank(2000) < 1000


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (10, 2.22814), (30, 2.04227)],
)
def test_t_quantiles_are_those_of_the_tables(degrees: int, expected: float) -> None:
    assert t_quantile(degrees) == pytest.approx(expected, rel=1e-5)


def test_equal_blocks_have_no_width() -> None:
    same = relative_difference([0.1] * 8, [0.1] * 8)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("bad", [[], [math.nan], [math.inf, 1.0]])
def test_nonsense_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        median_of_block_means(bad)


def test_mismatches_are_refused() -> None:
    with pytest.raises(ValueError, match="pairs"):
        paired_difference([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="positive"):
        relative_difference([0.0, 0.0], [1.0, 1.0])
