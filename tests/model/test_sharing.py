"""Laws of sharing: it never makes anything slower, and where there is nothing to share it changes nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.model.bucket import Epoch, Link, epoch_misses, epoch_wait
from stallwise.model.cache import partitioned
from stallwise.model.cachesim import NoEviction, replay_servers, resharded
from stallwise.model.sharing import apart, partitioned_misses, partitioned_wait, together

parts = st.floats(0, 1)
rates = st.floats(1, 1e5)
LINK = Link(latency_s=0.03, bytes_per_s=25e6, concurrency=64)


@given(parts, st.integers(1, 16), st.integers(1, 6))
def test_shared_caches_never_read_more_than_separate_ones(cached: float, nodes: int, epochs: int) -> None:
    shared = partitioned_misses(cached, nodes, epochs)
    separate = epoch_misses("no-evict", cached, nodes=nodes, epochs=epochs)
    assert all(a <= b + 1e-9 for a, b in zip(shared, separate, strict=True))


@pytest.mark.parametrize(("cached", "nodes"), [(0.65, 2), (0.3, 2), (0.2, 4), (0.25, 4)])
def test_the_closed_form_is_what_a_replay_gives(cached: float, nodes: int) -> None:
    caches = [NoEviction(round(cached * 6000)) for _ in range(nodes)]
    replayed = replay_servers(caches, resharded(6000, 3, servers=nodes))
    assert replayed == pytest.approx(partitioned_misses(cached, nodes, 3), abs=1e-3)


@given(rates, parts)
def test_without_peers_it_is_the_wait_of_one_node(ready: float, miss: float) -> None:
    epoch = Epoch(samples=1000, sample_bytes=1e5, ready_samples_per_s=ready, first_samples=32)
    alone, shared = epoch_wait(epoch, LINK, miss), partitioned_wait(epoch, LINK, 1e9, miss=miss, peer=0.0)
    assert shared.wait_s == pytest.approx(alone.wait_s)
    assert shared.high_s == pytest.approx(alone.high_s)


@given(rates, parts, st.floats(1e6, 1e9))
def test_a_faster_way_to_peers_is_never_slower(ready: float, peer: float, peer_rate: float) -> None:
    epoch = Epoch(samples=1000, sample_bytes=1e5, ready_samples_per_s=ready, first_samples=32)
    slow, fast = (
        partitioned_wait(epoch, LINK, rate, miss=0.0, peer=peer).wait_s for rate in (peer_rate, 2 * peer_rate)
    )
    assert fast <= slow + 1e-9


@given(st.integers(1, 16), rates, rates, rates, parts)
def test_together_is_never_slower_than_apart(
    jobs: int, take: float, prepare: float, storage: float, cached: float
) -> None:
    alone, shared = apart(jobs, take, prepare, storage, cached), together(jobs, take, prepare, storage, cached)
    assert shared.samples_per_s >= alone.samples_per_s * (1 - 1e-9)
    assert shared.reads <= alone.reads + 1e-6
    assert shared.samples_per_s <= jobs * max(alone.samples_per_s, 1e-9) * (1 + 1e-6) or cached > 0


def test_jobs_that_are_bound_by_preparing_gain_as_many_times_as_they_are() -> None:
    alone, shared = apart(8, 1e6, 100, None, 1.0), together(8, 1e6, 100, None, 1.0)
    assert shared.samples_per_s / alone.samples_per_s == pytest.approx(8)


def test_coordl_reads_of_eight_jobs_on_fma() -> None:
    """stash-14: 550 GB together of 950 GB, 45 % cached."""
    assert 950 * together(8, 1e6, 100, 1e6, 0.45).reads == pytest.approx(550, rel=0.10)


def test_all_nodes_with_room_for_their_share_have_no_misses() -> None:
    assert partitioned(0.65, 2).storage == 0
    assert partitioned_misses(0.65, 2, 3) == (1.0, 0.0, 0.0)
