"""Stalls from phases add up to the step; Stash's stalls follow the paper's formulas."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.model.statistics.stalls import (
    Share,
    StashStalls,
    StashTimes,
    falling_fit,
    ladder_shares,
    split_share,
    stash_stalls,
    times_of_parts,
)

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


seconds_of_stash = st.floats(min_value=1e-6, max_value=1e4)
parts = st.floats(min_value=0.0, max_value=1e4)
maybe = st.none() | parts


def found(result: StashStalls) -> dict[str, float | None]:
    named = {n: getattr(result, n) for n in ("interconnect", "network", "prep", "fetch")}
    return {name: None if stall is None else stall.percent for name, stall in named.items()}


@given(seconds_of_stash, st.sampled_from([1, 2, 8]))
def test_equal_times_are_no_stall_anywhere(t: float, ranks: int) -> None:
    times = StashTimes(ranks_per_machine=ranks, t0_s=t, t1_s=t, tn_s=t, t2_s=t, t3_s=t)
    assert set(found(stash_stalls(times)).values()) == {0.0}


@given(seconds_of_stash, seconds_of_stash, seconds_of_stash, seconds_of_stash, seconds_of_stash)
def test_all_but_the_network_are_bounded_by_100_percent(t0: float, t1: float, tn: float, t2: float, t3: float) -> None:
    percent = found(stash_stalls(StashTimes(ranks_per_machine=4, t0_s=t0, t1_s=t1, tn_s=tn, t2_s=t2, t3_s=t3)))
    for name in ("interconnect", "prep"):
        value = percent[name]
        assert value is not None
        assert 0 <= value <= 100
    assert percent["fetch"] is not None
    assert percent["fetch"] <= 100


def test_the_network_stall_is_not_bounded() -> None:
    percent = found(stash_stalls(StashTimes(ranks_per_machine=8, t1_s=1.0, tn_s=6.0)))
    assert percent == {"interconnect": None, "network": pytest.approx(500), "prep": None, "fetch": None}


@given(seconds_of_stash, maybe, maybe, maybe, maybe, maybe, maybe, st.sampled_from([(1, 1), (4, 1), (4, 2), (2, 2)]))
def test_what_was_not_measured_is_none_and_runs_never_shrink(
    compute: float,
    copy: float | None,
    interconnect: float | None,
    network: float | None,
    prep: float | None,
    fetch: float | None,
    cold: float | None,
    size: tuple[int, int],
) -> None:
    world_size, nodes = size
    times = times_of_parts(
        compute_s=compute,
        copy_s=copy,
        interconnect_s=interconnect if world_size > nodes else None,
        network_s=network if nodes > 1 else None,
        prep_s=prep,
        fetch_s=fetch,
        cold_step_s=cold,
        world_size=world_size,
        nodes=nodes,
    )
    result = stash_stalls(times)
    assert (result.network is not None) <= (nodes > 1)
    assert (result.interconnect is not None) <= (world_size > nodes)
    assert (result.prep is None) == (prep is None)
    assert (result.fetch is None) == (prep is None or cold is None)
    runs = [t for t in (times.t0_s, times.t1_s, times.tn_s, times.t3_s) if t is not None]
    assert all(less <= more for less, more in pairwise(runs))


def test_the_parts_of_a_job_over_two_nodes() -> None:
    times = times_of_parts(
        compute_s=6.0,
        copy_s=2.0,
        interconnect_s=2.0,
        network_s=5.0,
        prep_s=4.0,
        fetch_s=1.0,
        cold_step_s=25.0,
        world_size=16,
        nodes=2,
    )
    assert (times.t0_s, times.t1_s, times.tn_s, times.t3_s, times.t2_s) == (8.0, 10.0, 15.0, 20.0, 25.0)
    # The copy is in every run, as Stash's synthetic tensors lie in host memory; prep is held against tN.
    assert found(stash_stalls(times)) == pytest.approx(
        {"interconnect": 20.0, "network": 50.0, "prep": 25.0, "fetch": 20.0}
    )


def test_an_exchange_that_was_measured_only_as_a_whole_gives_no_network_stall() -> None:
    times = times_of_parts(
        compute_s=6.0,
        copy_s=None,
        interconnect_s=None,
        network_s=5.0,
        prep_s=None,
        fetch_s=None,
        cold_step_s=None,
        world_size=4,
        nodes=2,
    )
    assert found(stash_stalls(times)) == dict.fromkeys(("interconnect", "network", "prep", "fetch"))


def test_one_rank_per_node_has_a_network_stall_and_no_interconnect() -> None:
    times = times_of_parts(
        compute_s=6.0,
        copy_s=None,
        interconnect_s=None,
        network_s=3.0,
        prep_s=0.0,
        fetch_s=None,
        cold_step_s=None,
        world_size=2,
        nodes=2,
    )
    assert found(stash_stalls(times)) == {"interconnect": None, "network": 50.0, "prep": 0.0, "fetch": None}
