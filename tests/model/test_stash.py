"""The Stash view: laws that hold whatever was measured."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.model.stash import Stalls, Times, stalls, times_of_parts

seconds = st.floats(min_value=1e-6, max_value=1e4)
parts = st.floats(min_value=0.0, max_value=1e4)
maybe = st.none() | parts


def found(result: Stalls) -> dict[str, float | None]:
    named = {n: getattr(result, n) for n in ("interconnect", "network", "prep", "fetch")}
    return {name: None if stall is None else stall.percent for name, stall in named.items()}


@given(seconds, st.sampled_from([1, 2, 8]))
def test_equal_times_are_no_stall_anywhere(t: float, ranks: int) -> None:
    times = Times(ranks_per_machine=ranks, t0_s=t, t1_s=t, tn_s=t, t2_s=t, t3_s=t)
    assert set(found(stalls(times)).values()) == {0.0}


@given(seconds, seconds, seconds, seconds, seconds)
def test_all_but_the_network_are_bounded_by_100_percent(t0: float, t1: float, tn: float, t2: float, t3: float) -> None:
    percent = found(stalls(Times(ranks_per_machine=4, t0_s=t0, t1_s=t1, tn_s=tn, t2_s=t2, t3_s=t3)))
    for name in ("interconnect", "prep"):
        value = percent[name]
        assert value is not None
        assert 0 <= value <= 100
    assert percent["fetch"] is not None
    assert percent["fetch"] <= 100


def test_the_network_stall_is_not_bounded() -> None:
    percent = found(stalls(Times(ranks_per_machine=8, t1_s=1.0, tn_s=6.0)))
    assert percent == {"interconnect": None, "network": pytest.approx(500), "prep": None, "fetch": None}


@given(seconds, maybe, maybe, maybe, maybe, maybe, maybe, st.sampled_from([(1, 1), (4, 1), (4, 2), (2, 2)]))
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
    result = stalls(times)
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
    assert found(stalls(times)) == pytest.approx({"interconnect": 20.0, "network": 50.0, "prep": 25.0, "fetch": 20.0})


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
    assert found(stalls(times)) == dict.fromkeys(("interconnect", "network", "prep", "fetch"))


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
    assert found(stalls(times)) == {"interconnect": None, "network": 50.0, "prep": 0.0, "fetch": None}
