"""Policies on real folders hit exactly where the replays of `model/data/cache` and a plain Belady do."""

import math
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.data.cache._eviction import OVERDUE_S
from stallwise.data.cache._index import CachePolicy
from stallwise.data.cache._table import FEWEST_SLOTS, EntryTable, TableTotals, file_bytes
from stallwise.data.cache.cache import NodeCache
from stallwise.model.data.cache import Cache, Fifo
from tests.data.cache_box import BLOCK, assert_sound, entry_files, key_of, load
from validation.formulas import NoEviction, shuffled

CAPACITY, ITEMS = 20, 50
# The cache forgets uses that are long overdue: these lie far ahead.
BEGIN_S = 4e9


def replays(policy: CachePolicy) -> Cache:
    if policy == "no-evict":
        return NoEviction(CAPACITY)
    return Fifo(CAPACITY, renew=policy == "lru")


def some_reads(seed: int) -> list[int]:
    """Three shuffled epochs, then reads with favourites."""
    favourites = random.Random(seed).choices(range(ITEMS), weights=[1 / (item + 1) for item in range(ITEMS)], k=150)
    return [item for epoch in shuffled(ITEMS, 3, seed=seed) for item in epoch] + favourites


@pytest.mark.parametrize("policy", ["no-evict", "lru", "fifo"])
@pytest.mark.parametrize("seed", [1, 2])
def test_hits_are_those_of_the_replay(tmp_path: Path, policy: CachePolicy, seed: int) -> None:
    cache, model = NodeCache(tmp_path / "cache", CAPACITY * BLOCK, policy), replays(policy)
    reads = some_reads(seed)
    hits = [load(cache, item, 1000) == "cache" for item in reads]
    assert hits == [model.read(item) for item in reads]
    assert 0 < sum(hits) < len(reads)
    assert cache.stat().evictions == (0 if policy == "no-evict" else len(reads) - sum(hits) - CAPACITY)


def next_uses(reads: list[int]) -> list[float]:
    """For every read, when its item is read next; inf if never."""
    following: dict[int, int] = {}
    uses = [math.inf] * len(reads)
    for at in reversed(range(len(reads))):
        uses[at] = following.get(reads[at], math.inf)
        following[reads[at]] = at
    return uses


def belady(reads: list[int], capacity: int) -> list[bool]:
    """Keeps, of the cached items and the current one, those that are used soonest (bypass included)."""
    cached: dict[int, float] = {}
    hits = []
    for item, use in zip(reads, next_uses(reads), strict=True):
        hits.append(item in cached)
        cached[item] = use
        if len(cached) > capacity:
            del cached[max(cached, key=lambda other: (cached[other], other == item))]
    return hits


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_farthest_next_use_is_belady(tmp_path: Path, seed: int) -> None:
    reads = some_reads(seed)
    cache = NodeCache(tmp_path / "cache", CAPACITY * BLOCK, "farthest")
    uses = [None if math.isinf(use) else BEGIN_S + use for use in next_uses(reads)]
    hits = [load(cache, item, 1000, use) == "cache" for item, use in zip(reads, uses, strict=True)]
    assert sum(hits) == sum(belady(reads, CAPACITY))
    for other in (Fifo(CAPACITY), Fifo(CAPACITY, renew=True), NoEviction(CAPACITY)):
        assert sum(hits) > sum(other.read(item) for item in reads)
    assert_sound(cache)


def test_without_estimates_the_farthest_is_never_evicted(tmp_path: Path) -> None:
    cache, model = NodeCache(tmp_path / "cache", CAPACITY * BLOCK, "farthest"), NoEviction(CAPACITY)
    reads = some_reads(4)
    assert [load(cache, item, 1000) == "cache" for item in reads] == [model.read(item) for item in reads]


def test_a_large_object_does_not_push_out_what_is_wanted_sooner(tmp_path: Path) -> None:
    """Three must go, two are wanted later than the newcomer: none goes."""
    cache = NodeCache(tmp_path / "cache", 4 * BLOCK, "farthest")
    for number, use in enumerate([10, 20, 100, 110]):
        load(cache, number, 100, BEGIN_S + use)
    load(cache, 9, 3 * BLOCK - 48, BEGIN_S + 50)
    assert [load(cache, number, 100, BEGIN_S + 200) for number in range(4)] == ["cache"] * 4
    load(cache, 8, 2 * BLOCK - 48, BEGIN_S + 60)
    assert cache.stat().evictions == 2
    assert_sound(cache)


def test_what_a_job_that_ended_wanted_does_not_stay_for_ever(tmp_path: Path) -> None:
    folder, long_ago_s = tmp_path / "cache", 1e9
    cache = NodeCache(folder, 4 * BLOCK, "farthest")
    for number in range(4):
        load(cache, number, 100, long_ago_s + OVERDUE_S)
    cache.close()
    cache = NodeCache(folder, 4 * BLOCK, "farthest")
    assert [load(cache, number, 100, BEGIN_S) for number in range(10, 14)] == ["store"] * 4
    assert [load(cache, number, 100, BEGIN_S) for number in range(10, 14)] == ["cache"] * 4


def test_the_order_of_use_survives_a_new_process_and_a_recount(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    cache = NodeCache(folder, 4 * BLOCK, "lru")
    for number in (0, 1, 2, 3, 0):
        load(cache, number, 100)
    cache.verify()
    cache.close()
    cache = NodeCache(folder, 4 * BLOCK, "lru")
    load(cache, 4, 100)  # 1 was used longest ago
    assert {path.name for path in entry_files(cache)} == {key_of(number).hex() for number in (0, 2, 3, 4)}


def test_a_folder_may_change_its_policy_when_nobody_uses_it(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    for policy in ("no-evict", "farthest", "lru", "fifo", "no-evict"):
        cache = NodeCache(folder, 6 * BLOCK, policy)  # type: ignore[arg-type]
        for number in range(8):
            load(cache, number, 100, BEGIN_S + number)
        assert_sound(cache)
        assert cache.stat().entries == 6
        cache.close()


@pytest.fixture
def table(tmp_path: Path) -> Iterator[EntryTable]:
    handle = os.open(tmp_path / "ledger", os.O_RDWR | os.O_CREAT)
    table = EntryTable(handle, TableTotals())
    table.fill([], [], [])
    yield table
    os.close(handle)


changes = st.lists(
    st.tuples(st.sampled_from(["put", "put", "drop", "rank", "write"]), st.integers(0, 30), st.integers(-9, 9)),
    max_size=80,
)


@settings(max_examples=100, deadline=None)
@given(changes)
def test_the_table_is_a_dictionary_that_knows_its_highest_rank(changes: list[tuple[str, int, int]]) -> None:
    handle = os.memfd_create("ledger")
    table = EntryTable(handle, TableTotals())
    table.fill([], [], [])
    model: dict[bytes, tuple[int, float]] = {}
    for what, number, value in changes:
        key = number.to_bytes(16, "big")  # neighbours: the worst keys for a hash table
        place = table.find(key)
        assert place.is_used == (key in model)
        if what in {"put", "write"}:
            charge = (1000 + number) * (1 if what == "put" else -1)
            table.put(place, charge, value)
            model[key] = charge, float(value)
        elif place.is_used and what == "drop":
            table.drop(place)
            del model[key]
        elif place.is_used:
            table.set_rank(place, value)
            model[key] = model[key][0], float(value)
        kept = [rank for charge, rank in model.values() if charge > 0]
        highest = table.highest()
        assert (highest.rank if highest else None) == max(kept, default=None)
        assert table.is_sound()
        assert table.totals.used_bytes == sum(abs(charge) for charge, _ in model.values())
    os.close(handle)


def test_the_table_grows_and_keeps_everything(table: EntryTable) -> None:
    ranks = random.Random(5).sample(range(100_000), 5000)
    for number, rank in enumerate(ranks):
        table.put(table.find(key_of(number)), 10, rank)
    assert table.totals.slots > FEWEST_SLOTS
    assert table.is_sound()
    for rank in sorted(ranks, reverse=True):
        highest = table.highest()
        assert highest
        assert highest.rank == rank
        table.drop(highest)
    assert table.highest() is None
    assert table.totals == TableTotals(slots=table.totals.slots, gone=table.totals.gone)


def test_the_ledger_takes_at_most_130_bytes_per_entry(table: EntryTable) -> None:
    keys = [number.to_bytes(16, "little") for number in range(200_000)]
    table.fill(keys, [1] * len(keys), [0.0] * len(keys))
    assert table.is_sound()
    assert 50 < file_bytes(table.totals.slots) / len(keys) < 130
    assert all(table.find(key).is_used for key in random.Random(1).sample(keys, 200))
