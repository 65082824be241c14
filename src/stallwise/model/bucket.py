"""An epoch out of a bucket: how fast objects come, what a cache leaves to fetch, and how long the job waits.

Fetching. c requests are under way; each waits `latency_s` and then sends its object over a link of B bytes/s that all
of them share. That is a closed network of one place to wait and one server, and F objects/s lie between

    mean value analysis    transfers of random length: r = (s/B)(1 + q), F = n / (latency + r), q = F r, for n = 1 … c
                           (Reiser and Lavenberg, JACM 1980)
    asymptotic bound       all transfers alike: min(c / (latency + s/B), B/s)   (Denning and Buzen, 1978)

The first is the prediction, the second its upper end. On a link of 30 ms and 200 Mbit/s with objects of 100 KB, eight
requests were measured to bring 176 objects/s; the two say 175 and 195.

Waiting. A job that looks ahead fetches m N of its N samples while it trains: a pipeline of two stages that begins
with a batch of b samples nobody could fetch before,

    wait = (latency + b m/F) + (1 - b/N) max(0, m N/F - N/G)

with G samples/s that the job takes when data is always there. A loader that asks for one object at a time waits for
each, and its wait is a straight line over the misses, as DELI's is (its public raw data, R² 0.97 and 0.99):

    wait = m N (t_get - t_hit) + N t_hit
"""

import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from stallwise.errors import InputError
from stallwise.model.cache import fifo_miss, lru_miss
from stallwise.model.cachesim import Fifo, replay, resharded

Policy = Literal["no-evict", "farthest", "lru", "fifo"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

# Loaders that look ahead make so much of a link's rate: 82 to 91 % were measured on 30 ms and 200 Mbit/s.
LINK_USED_LOW = 0.82

_REPLAYED = 12_000
_REPLAYED_EPOCHS = 8
# Beyond these a shard gets smaller instead of the dataset larger.
_MOST_SERVERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The way to the bucket, as one node has it. Concurrency: requests of all its processes together."""

    latency_s: float
    bytes_per_s: float
    concurrency: int

    def __post_init__(self) -> None:
        if not (self.latency_s >= 0 and self.bytes_per_s > 0 and self.concurrency >= 1):
            raise InputError("A link needs a latency from 0, a rate above 0 and at least one request at a time.")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRate:
    """Objects per second, with the ends between which the link leaves it."""

    low: float
    objects_per_s: float
    high: float


def fetch_rate(link: Link, object_bytes: float) -> FetchRate:
    """F of the module's text. The lower end: the link gives only the least share that loaders have made of one."""
    transfer_s = max(object_bytes, 1.0) / link.bytes_per_s
    queued, rate = 0.0, 0.0
    for requests in range(1, link.concurrency + 1):
        response_s = transfer_s * (1 + queued)
        rate = requests / (link.latency_s + response_s)
        queued = rate * response_s
    bound = min(link.concurrency / (link.latency_s + transfer_s), 1 / transfer_s)
    return FetchRate(low=LINK_USED_LOW * rate, objects_per_s=rate, high=max(rate, bound))


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What one node reads in an epoch, and how fast it would if data were always there."""

    samples: float
    sample_bytes: float
    ready_samples_per_s: float
    first_samples: float = 1.0
    """Of the batches that must be there before the first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Seconds of one epoch. `wait_s` is what the job stands still, between `low_s` and `high_s`."""

    compute_s: float
    fetch_s: float
    first_s: float
    wait_s: float
    low_s: float
    high_s: float


def epoch_wait(epoch: Epoch, link: Link, miss: float) -> Wait:
    """The wait of an epoch that looks ahead, of whose reads the part `miss` goes to the bucket."""
    part = _part(miss)
    rate = fetch_rate(link, epoch.sample_bytes)
    compute_s = epoch.samples / epoch.ready_samples_per_s

    def at(objects_per_s: float) -> tuple[float, float, float]:
        fetch_s = part * epoch.samples / objects_per_s
        first_s = (link.latency_s if part > 0 else 0.0) + min(epoch.first_samples, epoch.samples) * part / objects_per_s
        rest = 1 - min(1.0, epoch.first_samples / epoch.samples)
        return fetch_s, first_s, first_s + rest * max(0.0, fetch_s - compute_s)

    fetch_s, first_s, wait_s = at(rate.objects_per_s)
    return Wait(
        compute_s=compute_s,
        fetch_s=fetch_s,
        first_s=first_s,
        wait_s=wait_s,
        low_s=at(rate.high)[2],
        high_s=at(rate.low)[2],
    )


def serial_wait_s(samples: float, get_s: float, hit_s: float, miss: float) -> float:
    """The wait of an epoch that asks for one object at a time: a straight line over the misses."""
    return samples * (_part(miss) * (get_s - hit_s) + hit_s)


def epoch_misses(
    policy: Policy, cached: float, *, nodes: int = 1, epochs: int = 1, sticky: bool = False
) -> tuple[float, ...]:
    """The part of each epoch's reads that goes to the bucket, beginning with an empty cache on every node.

    `cached` is what one node's cache holds, as a part of the whole dataset. Every epoch deals a new random 1/nodes of
    it to each node; with `sticky` partitions a node gets the same one each time, which is one node with `nodes` times
    the cache. Without eviction a node keeps what it has seen until it is full, so in epoch e it misses
    1 - min(c, 1 - (1 - 1/nodes)^(e-1)). All else is replayed read by read for its first epochs, on 12,000 samples per
    node; once settled, FIFO and LRU on one node follow their closed forms (`model.cache`), others the replay's mean.
    """
    if nodes < 1 or epochs < 1:
        raise InputError(f"There must be at least one node and one epoch, not {nodes} and {epochs}.")
    if policy not in POLICIES:
        raise InputError(f"A policy is one of {', '.join(POLICIES)}, not {policy!r}.")
    part, servers = (_part(cached * nodes), 1) if sticky else (_part(cached), nodes)
    if policy == "no-evict":
        return tuple(1 - min(part, 1 - (1 - 1 / servers) ** epoch) for epoch in range(epochs))
    replayed = _replayed(policy, part, servers, min(epochs, _REPLAYED_EPOCHS))
    return (*replayed, *[_settled(policy, part, servers, replayed)] * (epochs - len(replayed)))


def _settled(policy: Policy, part: float, servers: int, replayed: Sequence[float]) -> float:
    if servers == 1 and policy in ("lru", "fifo"):
        return lru_miss(part) if policy == "lru" else fifo_miss(part)
    return sum(replayed[-4:]) / len(replayed[-4:])


def _replayed(policy: Policy, part: float, servers: int, epochs: int) -> tuple[float, ...]:
    items = _REPLAYED * min(servers, _MOST_SERVERS)
    capacity = round(part * items)
    shards = [split[0] for split in resharded(items, epochs + 1, servers=servers)]
    if policy == "farthest":
        return tuple(_farthest(shards, capacity))
    if capacity == 0:
        return (1.0,) * epochs
    return tuple(replay(Fifo(capacity, renew=policy == "lru"), shards[:-1]))


def _farthest(shards: Sequence[Sequence[int]], capacity: int) -> Iterable[float]:
    """Misses of each epoch but the last where the next epoch is known: what is used last goes, or is not let in."""
    held: dict[int, float] = {}
    heap: list[tuple[float, int]] = []
    start = 0
    for shard, following in itertools.pairwise(shards):
        uses = {item: float(start + len(shard) + at) for at, item in enumerate(following)}
        missed = 0
        for item in shard:
            missed += item not in held
            _keep(held, heap, item, uses.get(item, math.inf), capacity)
        start += len(shard)
        yield missed / max(len(shard), 1)


def _keep(held: dict[int, float], heap: list[tuple[float, int]], item: int, use: float, capacity: int) -> None:
    if item not in held and len(held) >= capacity:
        while heap and held.get(heap[0][1]) != -heap[0][0]:
            heapq.heappop(heap)
        if not heap or -heap[0][0] <= use:
            return
        del held[heapq.heappop(heap)[1]]
    held[item] = use
    heapq.heappush(heap, (-use, item))


def _part(value: float) -> float:
    if not value >= 0:
        raise InputError(f"A part of the dataset or of its reads is a number from 0 to 1, not {value}.")
    return min(1.0, value)
