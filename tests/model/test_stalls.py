"""Stalls are never negative and add up to the step, whatever was measured."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.model.stalls import Share, falling_fit, ladder_shares, split_share

seconds = st.floats(min_value=1e-5, max_value=100.0)
rung = st.lists(seconds, min_size=1, max_size=12).map(lambda values: dict(enumerate(values)))


@given(st.lists(rung, min_size=1, max_size=5))
def test_stalls_and_compute_add_up_and_are_never_negative(rungs: list[dict[int, float]]) -> None:
    stalls, compute = ladder_shares(rungs)
    fitted = falling_fit([_median(r) for r in rungs], [len(r) for r in rungs])
    assert compute.s + sum(stall.s for stall in stalls) == pytest.approx(fitted[0])
    for share in (*stalls, compute):
        assert 0 <= share.low_s <= share.s <= share.high_s


@given(seconds, st.integers(min_value=2, max_value=5), st.integers(min_value=2, max_value=10))
def test_equal_phases_have_no_stall(step_s: float, phases: int, rounds: int) -> None:
    stalls, compute = ladder_shares([dict.fromkeys(range(rounds), step_s)] * phases)
    assert compute.s == pytest.approx(step_s)
    assert all(stall.s == 0 and not stall.distinguishable for stall in stalls)


@given(st.lists(seconds, min_size=1, max_size=8))
def test_the_fit_falls_and_keeps_the_mean(values: list[float]) -> None:
    fitted = falling_fit(values)
    assert all(a >= b for a, b in pairwise(fitted))
    assert sum(fitted) == pytest.approx(sum(values))


@given(st.lists(seconds, min_size=1, max_size=8).map(lambda v: sorted(v, reverse=True)))
def test_what_falls_already_is_left_alone(values: list[float]) -> None:
    assert falling_fit(values) == pytest.approx(values)


def test_a_clear_ladder_gives_the_differences() -> None:
    rungs = [{r: base + 0.001 * r for r in range(8)} for base in (0.100, 0.060, 0.050)]
    stalls, compute = ladder_shares(rungs)
    assert [round(stall.s, 6) for stall in stalls] == [0.040, 0.010]
    # Drift common to all phases cancels in the pairs, so the intervals are tight.
    assert all(stall.high_s - stall.low_s < 1e-9 for stall in stalls)
    assert compute.s == pytest.approx(0.0535)


def test_a_stall_below_its_noise_says_so() -> None:
    upper = {0: 0.101, 1: 0.099, 2: 0.102, 3: 0.098, 4: 0.101, 5: 0.099, 6: 0.100, 7: 0.103}
    lower = {0: 0.100, 1: 0.101, 2: 0.099, 3: 0.100, 4: 0.102, 5: 0.098, 6: 0.101, 7: 0.099}
    (stall,), _ = ladder_shares([upper, lower])
    assert not stall.distinguishable
    assert stall.high_s < 0.006


@given(seconds, st.floats(min_value=0, max_value=1))
def test_cutting_a_share_loses_nothing(value_s: float, part: float) -> None:
    first, rest = split_share(Share(value_s, value_s / 2, value_s * 2), part)
    assert first.s + rest.s == pytest.approx(value_s)


def _median(values: dict[int, float]) -> float:
    ordered = sorted(values.values())
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
