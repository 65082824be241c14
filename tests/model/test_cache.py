"""Closed forms against caches replayed read by read, and the laws of the data path behind them.

Bar, written beforehand: within 0.01 of the replay of 4,000 samples over 16 epochs, the first six left out.
"""

import itertools
import statistics
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stallwise.errors import InputError
from stallwise.model.data import cache
from stallwise.model.data.cache import Cache, Fifo, replay, resharded
from validation import formulas
from validation.formulas import NoEviction, RandomReplacement, replay_servers, shuffled

ITEMS, EPOCHS, SETTLED = 4000, 22, 6
PARTS = (0.02, 0.1, 0.25, 0.35, 0.5, 0.6, 0.65, 0.8, 0.95)
POLICIES: tuple[cache.CachePolicy, ...] = ("no eviction", "lru", "fifo", "page cache", "page cache, file order")
parts = st.floats(0, 1)
rates = st.floats(1, 1e6)


def settled(missed: list[float]) -> float:
    return statistics.mean(missed[SETTLED:])


@pytest.mark.parametrize("cached", PARTS)
@pytest.mark.parametrize(
    ("closed", "make"),
    [
        (cache.no_evict_miss, NoEviction),
        (cache.lru_miss, lambda capacity: Fifo(capacity, renew=True)),
        (cache.fifo_miss, Fifo),
        (cache.page_cache_miss, RandomReplacement),
    ],
    ids=["no eviction", "lru", "fifo", "random"],
)
def test_closed_forms_are_what_a_replay_shows(
    closed: Callable[[float], float], make: Callable[[int], Cache], cached: float
) -> None:
    replayed = settled(replay(make(round(cached * ITEMS)), shuffled(ITEMS, EPOCHS)))
    assert closed(cached) == pytest.approx(replayed, abs=0.01)


@pytest.mark.parametrize("cached", PARTS)
def test_reading_in_file_order(cached: float) -> None:
    capacity = round(cached * ITEMS)
    replayed = settled(replay(RandomReplacement(capacity), itertools.repeat(range(ITEMS), EPOCHS)))
    assert cache.page_cache_sequential_miss(cached) == pytest.approx(replayed, abs=0.01)
    for thrashing in (Fifo(capacity), Fifo(capacity, renew=True)):
        assert settled(replay(thrashing, itertools.repeat(range(ITEMS), EPOCHS))) == 1


@pytest.mark.parametrize(("cached", "servers"), [(0.1, 2), (0.514, 2), (0.3, 3), (0.8, 4)])
def test_servers_that_read_another_part_every_epoch(cached: float, servers: int) -> None:
    first = [shards[0] for shards in resharded(ITEMS, 40, servers=servers)]
    replayed = statistics.mean(replay(RandomReplacement(round(cached * ITEMS)), first)[15:])
    assert cache.resharded_miss(cached, servers) == pytest.approx(replayed, abs=0.01)


@pytest.mark.parametrize(("cached", "jobs"), [(0.1, 2), (0.35, 2), (0.35, 8), (0.7, 8)])
def test_jobs_that_share_a_cache(cached: float, jobs: int) -> None:
    items = ITEMS // 2
    replayed = settled(replay(RandomReplacement(round(cached * items)), shuffled(items, 16, jobs=jobs)))
    assert cache.shared_miss(cached, jobs) == pytest.approx(replayed, abs=0.01)


@pytest.mark.parametrize(("cached", "servers"), [(0.2, 2), (0.5, 2), (0.65, 2), (0.2, 4)])
def test_servers_that_serve_each_other(cached: float, servers: int) -> None:
    caches = [NoEviction(round(cached * ITEMS)) for _ in range(servers)]
    replayed = replay_servers(caches, resharded(ITEMS, 4, servers=servers))
    assert replayed[0] == 1
    # A server stops at its own shard in the first epoch; what fits beyond fills up later and repeats others'.
    assert cache.partitioned(cached, servers).storage == pytest.approx(replayed[-1], abs=0.01)


@pytest.mark.parametrize(("share", "measured"), [(0.25, 0.989), (0.50, 0.953), (0.75, 0.887), (1e9, 0.667)])
def test_the_second_epoch_of_a_fifo_on_three_nodes_is_the_one_measured(share: float, measured: float) -> None:
    """DELI's published runs (cake-lab/DELI): each of three nodes reads a new third of 42,000 samples every epoch."""
    items = 42_000
    first = [shards[0] for shards in resharded(items, 2, servers=3)]
    assert replay(Fifo(round(share * items / 3)), first)[1] == pytest.approx(measured, abs=0.005)


@given(st.sampled_from(POLICIES), parts, parts)
def test_a_larger_cache_never_misses_more(policy: cache.CachePolicy, one: float, other: float) -> None:
    small, large = sorted((one, other))
    assert cache.miss(policy, large) <= cache.miss(policy, small) + 1e-9


@given(st.sampled_from(POLICIES), parts)
@example("fifo", 1e-12)
def test_nothing_beats_never_evicting_and_everything_fits_in_a_whole_cache(
    policy: cache.CachePolicy, cached: float
) -> None:
    assert cache.miss("no eviction", cached) - 1e-9 <= cache.miss(policy, cached) <= 1
    assert cache.miss(policy, 1.0) == pytest.approx(0, abs=1e-9)
    assert cache.miss(policy, 3.0) == pytest.approx(0, abs=1e-9)
    assert cache.miss(policy, 0.0) == pytest.approx(1)


@given(parts)
def test_one_server_and_one_job_are_the_plain_case(cached: float) -> None:
    assert cache.resharded_miss(cached, 1) == pytest.approx(cache.page_cache_miss(cached))
    assert cache.shared_miss(cached, 1) == pytest.approx(cache.page_cache_miss(cached), abs=2e-3)
    assert cache.partitioned(cached, 1).storage == pytest.approx(cache.no_evict_miss(cached))


@given(parts, st.integers(1, 64))
def test_every_read_is_served_from_somewhere(cached: float, servers: int) -> None:
    sources = cache.partitioned(cached, servers)
    assert sources.local + sources.peer + sources.storage == pytest.approx(1)
    assert min(sources.local, sources.peer, sources.storage) >= 0


@given(parts, parts, rates, rates)
def test_a_fetch_rate_lies_between_storage_and_cache(one: float, other: float, a: float, b: float) -> None:
    storage, fast = sorted((a, b))
    less, more = sorted((one, other))
    assert formulas.fetch_rate(0.0, fast, storage) == pytest.approx(storage)
    assert formulas.fetch_rate(1.0, fast, storage) == pytest.approx(fast)
    assert formulas.fetch_rate(less, fast, storage) <= formulas.fetch_rate(more, fast, storage) * (1 + 1e-12)


@given(rates, rates, rates)
def test_the_hits_needed_give_the_rate_wanted(a: float, b: float, c: float) -> None:
    storage, wanted, fast = sorted((a, b, c))
    hit = formulas.hit_needed(wanted, fast, storage)
    assert hit is not None
    assert formulas.fetch_rate(hit, fast, storage) >= wanted * (1 - 1e-9)
    assert formulas.hit_needed(fast * 1.01, fast, storage) is None


@pytest.mark.parametrize("bad", [-0.1, float("nan")])
def test_impossible_parts_are_refused(bad: float) -> None:
    for policy in POLICIES:
        with pytest.raises(InputError, match="0 to 1"):
            cache.miss(policy, bad)
    with pytest.raises(InputError, match="above zero"):
        formulas.fetch_rate(0.5, bad, 1.0)
    with pytest.raises(InputError, match="at least one"):
        cache.shared_miss(0.5, 0)
