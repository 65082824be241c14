"""Formulas of the papers that only a validation needs: no command or public function computes them.

DS-Analyzer's stalls and "how much cache is enough", caches replayed read by read (Mohan et al., VLDB 2021), and the
Stash paper's network stall.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from stallwise.errors import InputError


def increase(value: float, base: float) -> float:
    """How much larger `value` is than `base`, as a fraction of `base`.

    The Stash paper's network stall is this with the single machine's time as the base, so it is not bounded by 1.
    """
    return (value - base) / base


def prep_stall(prepare: float, ingest: float) -> float:
    """Fraction of an epoch lost to preparation when nothing has to be fetched: 1 - min(P, G)/G."""
    return 1 - min(prepare, ingest) / ingest


def fetch_stall(fetch: float, prepare: float, ingest: float) -> float:
    """Fraction of an epoch lost to storage beyond that: 1 - F/min(P, G) where F is the smaller."""
    return max(0.0, 1 - fetch / min(prepare, ingest))


def enough_cores(rates: Mapping[int, float], share: float = 0.98) -> int:
    """The fewest cores that reach `share` of the best rate measured: the knee of a curve that levels off."""
    best = max(rates.values())
    return min(cores for cores, rate in rates.items() if rate >= share * best)


def staging_bytes(batch_bytes: float, jobs: int, batches_per_job: int = 2) -> float:
    """Memory for batches prepared once for several jobs: each job prepares one while it consumes another."""
    return jobs * batches_per_job * batch_bytes


def fetch_rate(hit: float, cache_rate: float, storage_rate: float) -> float:
    """F(x) = 1 / (x/C + (1-x)/S): samples/s when x of them come from the cache (C) and the rest from storage (S)."""
    _check_rates(cache_rate, storage_rate)
    return 1 / (hit / cache_rate + (1 - hit) / storage_rate)


def hit_needed(rate: float, cache_rate: float, storage_rate: float) -> float | None:
    """Hit rate x with F(x) = `rate`: (1/S - 1/rate) / (1/S - 1/C).

    0 where storage alone is enough, None where nothing is.
    """
    _check_rates(rate, cache_rate, storage_rate)
    if rate <= storage_rate:
        return 0.0
    if rate > cache_rate:
        return None
    return (1 / storage_rate - 1 / rate) / (1 / storage_rate - 1 / cache_rate)


def _check_rates(*rates: float) -> None:
    for rate in rates:
        if not rate > 0:
            raise InputError(f"A rate is a number of samples per second above zero, not {rate}.")


class NoEviction:
    """A cache that admits items until it is full and never evicts (MinIO)."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: set[int] = set()

    def read(self, item: int) -> bool:
        if item in self._items:
            return True
        if len(self._items) < self._capacity:
            self._items.add(item)
        return False

    def __contains__(self, item: int) -> bool:
        return item in self._items


class RandomReplacement:
    """A cache that evicts a random item."""

    def __init__(self, capacity: int, seed: int = 0) -> None:
        self._capacity = capacity
        self._slots: list[int] = []
        self._items: set[int] = set()
        self._random = random.Random(seed)  # noqa: S311 - no secret

    def read(self, item: int) -> bool:
        if item in self._items:
            return True
        if len(self._slots) < self._capacity:
            self._slots.append(item)
        elif self._capacity:
            slot = int(self._random.random() * self._capacity)
            self._items.discard(self._slots[slot])
            self._slots[slot] = item
        if self._capacity:
            self._items.add(item)
        return False


def shuffled(items: int, epochs: int, *, jobs: int = 1, seed: int = 0) -> Iterator[list[int]]:
    """Yield the reads of each epoch in random order; several jobs take turns, each in its own order."""
    numbers = np.random.default_rng(seed)
    for _ in range(epochs):
        yield np.stack([numbers.permutation(items) for _ in range(jobs)], axis=1).ravel().tolist()


def replay_servers(caches: Sequence[NoEviction], epochs: Iterable[Sequence[Sequence[int]]]) -> list[float]:
    """Return the fraction of each epoch's reads that neither the own cache nor a peer's could serve.

    A directory knows which server has which item: one that a peer has is fetched from there and not stored twice.
    """
    missed = []
    for shards in epochs:
        reads = [(server, item) for server, shard in enumerate(shards) for item in shard]
        served = [_served(caches, server, item) for server, item in reads]
        missed.append(1 - sum(served) / len(served))
    return missed


def _served(caches: Sequence[NoEviction], server: int, item: int) -> bool:
    return any(item in cache for cache in caches) or caches[server].read(item)
