"""Caches replayed read by read: what the closed forms of `cache` leave out, and what they are checked against.

Items are numbers, capacities counts of items. `replay` drives one cache, `replay_servers` several that serve each
other.
"""

import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np


class Cache(Protocol):
    """`read` says whether an item was there, and lets it in or not as the policy wants."""

    def read(self, item: int) -> bool:
        """Whether it is a hit."""
        ...


class NoEviction:
    """Takes items in until it is full, and keeps them (MinIO)."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: set[int] = set()

    def read(self, item: int) -> bool:
        """Whether it is a hit."""
        if item in self._held:
            return True
        if len(self._held) < self._capacity:
            self._held.add(item)
        return False

    def __contains__(self, item: int) -> bool:
        return item in self._held


class Fifo:
    """The item that came first leaves first; with `renew`, a hit counts as coming anew, which is LRU."""

    def __init__(self, capacity: int, *, renew: bool = False) -> None:
        self._capacity, self._renew = capacity, renew
        self._held: OrderedDict[int, None] = OrderedDict()

    def read(self, item: int) -> bool:
        """Whether it is a hit."""
        if item in self._held:
            if self._renew:
                self._held.move_to_end(item)
            return True
        self._held[item] = None
        if len(self._held) > self._capacity:
            self._held.popitem(last=False)
        return False


class RandomReplacement:
    """Any item leaves."""

    def __init__(self, capacity: int, seed: int = 0) -> None:
        self._capacity = capacity
        self._places: list[int] = []
        self._held: set[int] = set()
        self._random = random.Random(seed)  # noqa: S311 - no secret

    def read(self, item: int) -> bool:
        """Whether it is a hit."""
        if item in self._held:
            return True
        if len(self._places) < self._capacity:
            self._places.append(item)
        elif self._capacity:
            place = int(self._random.random() * self._capacity)
            self._held.discard(self._places[place])
            self._places[place] = item
        if self._capacity:
            self._held.add(item)
        return False


def shuffled(items: int, epochs: int, *, jobs: int = 1, seed: int = 0) -> Iterator[list[int]]:
    """One list of reads per epoch; several jobs take turns, each in its own order."""
    numbers = np.random.default_rng(seed)
    for _ in range(epochs):
        yield np.stack([numbers.permutation(items) for _ in range(jobs)], axis=1).ravel().tolist()


def resharded(items: int, epochs: int, *, servers: int, seed: int = 0) -> Iterator[list[list[int]]]:
    """One list of reads per server and epoch: a new random split of all items every time."""
    numbers = np.random.default_rng(seed)
    for _ in range(epochs):
        yield [part.tolist() for part in np.array_split(numbers.permutation(items), servers)]


def replay(cache: Cache, epochs: Iterable[Iterable[int]]) -> list[float]:
    """The part of each epoch's reads that missed."""
    missed = []
    for reads in epochs:
        hits = [cache.read(item) for item in reads]
        missed.append(1 - sum(hits) / len(hits))
    return missed


def replay_servers(caches: Sequence[NoEviction], epochs: Iterable[Sequence[Sequence[int]]]) -> list[float]:
    """The part of each epoch's reads that neither the own cache nor a peer's could serve.

    A directory tells who holds what: an item that a peer has is fetched from there and not held twice.
    """
    missed = []
    for shards in epochs:
        reads = [(server, item) for server, shard in enumerate(shards) for item in shard]
        served = [_served(caches, server, item) for server, item in reads]
        missed.append(1 - sum(served) / len(served))
    return missed


def _served(caches: Sequence[NoEviction], server: int, item: int) -> bool:
    return any(item in cache for cache in caches) or caches[server].read(item)
