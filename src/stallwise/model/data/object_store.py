"""An epoch from an object store: fetch rate, misses of a cache, waiting time, and what sharing caches or batches saves.

**Fetching.** c requests are under way; each waits `latency_s` and then sends its object over a link of B bytes/s that
all of them share. That is a closed network of one place to wait and one server, and F objects/s lie between

    mean value analysis    transfers of random length: r = (s/B)(1 + q), F = n / (latency + r), q = F r, for n = 1 … c
                           (Reiser and Lavenberg, JACM 1980)
    asymptotic bound       all transfers alike: min(c / (latency + s/B), B/s)   (Denning and Buzen, 1978)

The first is the prediction, the second its upper end. On a link of 30 ms and 200 Mbit/s with objects of 100 KB, eight
requests were measured to bring 176 objects/s; the two say 175 and 195.

**Waiting.** A job that looks ahead fetches m N of its N samples while it trains: a pipeline of two stages that begins
with a batch of b samples nobody could fetch before,

    wait = (latency + b m/F) + (1 - b/N) max(0, m N/F - N/G)

with G samples/s that the job takes when data is always there. A loader that asks for one object at a time waits for
each, and its wait is a straight line over the misses, as DELI's is (its public raw data, R² 0.97 and 0.99):

    wait = m N (t_get - t_hit) + N t_hit

**Sharing between nodes** (CoorDL, Mohan et al., VLDB 2021). With caches of c of the dataset on n nodes that never
evict and serve each other (`cache.partitioned`), the object store is read once and then for 1 - n c of an epoch's
reads; c of them are local, the rest goes between the nodes. A node waits for whichever of the two ways takes longer,
they run side by side:

    wait = first + (1 - b/N) max(0, max(m N/F, p N s/B) - N/G)

with the store's F objects/s (`fetch_rate`) and B bytes/s that a node gets from its peers.

**Sharing between jobs.** J jobs on a node take samples at G/s each; the node prepares P/s and reads F/s from storage,
all jobs together. Apart, every job prepares all samples: each gets min(G, P/J, F/(J m_J)), m_J being what a cache
leaves that J orders share (`cache.shared_miss`). Together a sample is prepared and read once, and only copied J times
(t_copy s each, on the same cores): each job gets min(G, 1/(1/P + J t_copy/k), F/m) on k cores.
"""

import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from stallwise.errors import InputError
from stallwise.model.data.cache import (
    Fifo,
    fifo_miss,
    lru_miss,
    no_evict_miss,
    partitioned,
    replay,
    resharded,
    shared_miss,
)

EvictionPolicy = Literal["no-evict", "farthest", "lru", "fifo"]
POLICIES: tuple[EvictionPolicy, ...] = get_args(EvictionPolicy)

LINK_USED_LOW = 0.82
"""Lowest fraction of a link's rate that loaders with look-ahead attain: 82 to 91 % were measured on 30 ms and
200 Mbit/s."""

_REPLAYED = 12_000
_REPLAYED_EPOCHS = 8
# Beyond these a shard gets smaller instead of the dataset larger.
_MOST_SERVERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreLink:
    """A node's link to the object store. Concurrency: requests of all its processes together."""

    latency_s: float
    bytes_per_s: float
    concurrency: int

    def __post_init__(self) -> None:
        if not (self.latency_s >= 0 and self.bytes_per_s > 0 and self.concurrency >= 1):
            raise InputError("A link needs a latency from 0, a rate above 0 and at least one request at a time.")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRate:
    """Objects per second, with bounds."""

    low: float
    objects_per_s: float
    high: float


def fetch_rate(link: ObjectStoreLink, object_bytes: float) -> FetchRate:
    """F of the module's text; its lower end is where the link gives only `LINK_USED_LOW` of its rate."""
    transfer_s = max(object_bytes, 1.0) / link.bytes_per_s
    queued, rate = 0.0, 0.0
    for requests in range(1, link.concurrency + 1):
        response_s = transfer_s * (1 + queued)
        rate = requests / (link.latency_s + response_s)
        queued = rate * response_s
    bound = min(link.concurrency / (link.latency_s + transfer_s), 1 / transfer_s)
    return FetchRate(low=LINK_USED_LOW * rate, objects_per_s=rate, high=max(rate, bound))


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReads:
    """What one node reads in an epoch, and its throughput when it never waits for data."""

    samples: float
    sample_bytes: float
    ready_samples_per_s: float
    first_samples: float = 1.0
    """Samples of the batches that are needed before the first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochWait:
    """Seconds of one epoch. `wait_s` is the time the job waits for data, between `low_s` and `high_s`."""

    compute_s: float
    fetch_s: float
    first_s: float
    wait_s: float
    low_s: float
    high_s: float


def epoch_wait(epoch: EpochReads, link: ObjectStoreLink, miss: float) -> EpochWait:
    """Wait of an epoch with look-ahead, a fraction `miss` of whose reads goes to the object store."""
    missed = _fraction(miss)
    rate = fetch_rate(link, epoch.sample_bytes)
    compute_s = epoch.samples / epoch.ready_samples_per_s

    def at(objects_per_s: float) -> tuple[float, float, float]:
        fetch_s = missed * epoch.samples / objects_per_s
        first_samples = min(epoch.first_samples, epoch.samples)
        first_s = (link.latency_s if missed > 0 else 0.0) + first_samples * missed / objects_per_s
        rest = 1 - min(1.0, epoch.first_samples / epoch.samples)
        return fetch_s, first_s, first_s + rest * max(0.0, fetch_s - compute_s)

    fetch_s, first_s, wait_s = at(rate.objects_per_s)
    return EpochWait(
        compute_s=compute_s,
        fetch_s=fetch_s,
        first_s=first_s,
        wait_s=wait_s,
        low_s=at(rate.high)[2],
        high_s=at(rate.low)[2],
    )


def epoch_misses(
    policy: EvictionPolicy, cached: float, *, nodes: int = 1, epochs: int = 1, sticky: bool = False
) -> tuple[float, ...]:
    """Fraction of each epoch's reads that goes to the object store, starting with an empty cache on every node.

    `cached` is what one node's cache holds, as a fraction of the whole dataset. Every epoch gives each node a new
    random 1/nodes of it; with `sticky` partitions a node gets the same one each time, which is one node with `nodes`
    times the cache. Without eviction a node keeps what it has seen until it is full, so in epoch e it misses 1 -
    min(c, 1 - (1 - 1/nodes)^(e-1)). All else is replayed read by read for its first epochs, on 12,000 samples per
    node; once settled, FIFO and LRU on one node follow their closed forms (`model.cache`), others the replay's mean.
    """
    if nodes < 1 or epochs < 1:
        raise InputError(f"There must be at least one node and one epoch, not {nodes} and {epochs}.")
    if policy not in POLICIES:
        raise InputError(f"A policy is one of {', '.join(POLICIES)}, not {policy!r}.")
    part, servers = (_fraction(cached * nodes), 1) if sticky else (_fraction(cached), nodes)
    if policy == "no-evict":
        return tuple(1 - min(part, 1 - (1 - 1 / servers) ** epoch) for epoch in range(epochs))
    replayed = _replayed(policy, part, servers, min(epochs, _REPLAYED_EPOCHS))
    return (*replayed, *[_settled(policy, part, servers, replayed)] * (epochs - len(replayed)))


def _settled(policy: EvictionPolicy, part: float, servers: int, replayed: Sequence[float]) -> float:
    if servers == 1 and policy in ("lru", "fifo"):
        return lru_miss(part) if policy == "lru" else fifo_miss(part)
    return sum(replayed[-4:]) / len(replayed[-4:])


def _replayed(policy: EvictionPolicy, part: float, servers: int, epochs: int) -> tuple[float, ...]:
    items = _REPLAYED * min(servers, _MOST_SERVERS)
    capacity = round(part * items)
    shards = [split[0] for split in resharded(items, epochs + 1, servers=servers)]
    if policy == "farthest":
        return tuple(_farthest(shards, capacity))
    if capacity == 0:
        return (1.0,) * epochs
    return tuple(replay(Fifo(capacity, renew=policy == "lru"), shards[:-1]))


def _farthest(shards: Sequence[Sequence[int]], capacity: int) -> Iterable[float]:
    """Misses of each epoch but the last when the next epoch is known.

    The item used last is evicted, or not admitted.
    """
    next_use: dict[int, float] = {}
    heap: list[tuple[float, int]] = []
    start = 0
    for shard, following in itertools.pairwise(shards):
        uses = {item: float(start + len(shard) + at) for at, item in enumerate(following)}
        missed = 0
        for item in shard:
            missed += item not in next_use
            _keep(next_use, heap, item, uses.get(item, math.inf), capacity)
        start += len(shard)
        yield missed / max(len(shard), 1)


def _keep(next_use: dict[int, float], heap: list[tuple[float, int]], item: int, use: float, capacity: int) -> None:
    if item not in next_use and len(next_use) >= capacity:
        while heap and next_use.get(heap[0][1]) != -heap[0][0]:
            heapq.heappop(heap)
        if not heap or -heap[0][0] <= use:
            return
        del next_use[heapq.heappop(heap)[1]]
    next_use[item] = use
    heapq.heappush(heap, (-use, item))


def _fraction(value: float) -> float:
    if not value >= 0:
        raise InputError(f"A fraction of the dataset or of its reads is a number from 0 to 1, not {value}.")
    return min(1.0, value)


def partitioned_misses(cached: float, nodes: int, epochs: int) -> tuple[float, ...]:
    """Fraction of each epoch's reads that goes to the object store.

    All of the first, then what no node has room for.
    """
    if epochs < 1:
        raise InputError(f"There must be at least one epoch, not {epochs}.")
    return (1.0, *[partitioned(cached, nodes).storage] * (epochs - 1))


def partitioned_wait(
    epoch: EpochReads, link: ObjectStoreLink, peer_bytes_per_s: float, *, miss: float, peer: float
) -> EpochWait:
    """Wait of a node that reads a fraction `miss` from the object store and `peer` from other nodes in parallel."""
    rate = fetch_rate(link, epoch.sample_bytes)
    compute_s = epoch.samples / epoch.ready_samples_per_s
    peer_s = peer * epoch.samples * epoch.sample_bytes / peer_bytes_per_s
    first = min(epoch.first_samples, epoch.samples)

    def at(objects_per_s: float) -> tuple[float, float, float]:
        fetch_s = max(miss * epoch.samples / objects_per_s, peer_s)
        lead_s = (link.latency_s if miss > 0 else 0.0) + first / epoch.samples * fetch_s
        return fetch_s, lead_s, lead_s + (1 - first / epoch.samples) * max(0.0, fetch_s - compute_s)

    fetch_s, first_s, wait_s = at(rate.objects_per_s)
    return EpochWait(
        compute_s=compute_s,
        fetch_s=fetch_s,
        first_s=first_s,
        wait_s=wait_s,
        low_s=at(rate.high)[2],
        high_s=at(rate.low)[2],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRate:
    """Throughput of each job of a node, and how often an epoch reads the dataset from storage."""

    samples_per_s: float
    reads: float


def apart(jobs: int, take_per_s: float, prepare_per_s: float, storage_per_s: float | None, cached: float) -> SharedRate:
    """Rate where every job prepares all its samples; they share cores, storage and a page cache that holds `cached`."""
    reads = jobs * shared_miss(cached, jobs)
    return SharedRate(samples_per_s=_least(take_per_s, prepare_per_s / jobs, storage_per_s, reads), reads=reads)


def together(
    jobs: int,
    take_per_s: float,
    prepare_per_s: float,
    storage_per_s: float | None,
    cached: float,
    *,
    copy_s: float = 0.0,
    cores: int = 1,
) -> SharedRate:
    """Rate where every sample is prepared once for all; each job copies it, which takes `copy_s` on one of `cores`."""
    if jobs < 1 or cores < 1:
        raise InputError(f"There must be at least one job and one core, not {jobs} and {cores}.")
    reads = no_evict_miss(cached)
    prepared = 1 / (1 / prepare_per_s + jobs * copy_s / cores)
    return SharedRate(samples_per_s=_least(take_per_s, prepared, storage_per_s, reads), reads=reads)


def _least(take_per_s: float, prepare_per_s: float, storage_per_s: float | None, reads: float) -> float:
    """Rate of the slowest stage; storage delivers `storage_per_s`, of which a job needs `reads` per sample."""
    fetched = [storage_per_s / reads] if storage_per_s is not None and reads > 0 else []
    return min(take_per_s, prepare_per_s, *fetched)
