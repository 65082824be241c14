"""Small objects: a cache in packs against files, records of a shard read together against one by one, SHADE's cache.

No bars: what each wins, printed. Only ratios within one run mean anything.
"""

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
from torch.utils.data import DataLoader, SequentialSampler

from benchmarks.data.race import quick
from benchmarks.harness import Result
from stallwise.data import BucketDataset, ImportanceSampler, Lookahead, NodeCache
from stallwise.data.cache._index import CachePolicy
from stallwise.data.objects._fetch import FetchedObject, RangeCoalescer
from stallwise.data.objects.index import ObjectRef
from tests.data.cache_box import bytes_of, key_of
from tests.data.testbed.proxy import Proxy, fault_proxy
from tests.data.testbed.seaweed import Seaweed, objects, seaweed

SMALL = 1000
RECORD, SHARD = 2_000, 1_000_000
LATENCY_S = 0.02


def measure() -> Iterator[Result]:
    """Packs, records, importance."""
    yield from _packs()
    with tempfile.TemporaryDirectory() as folder, seaweed(Path(folder) / "weed") as server:
        with fault_proxy(server) as proxy:
            yield _records(server, proxy, Path(folder))
        yield _importance(server, Path(folder))


def _packs() -> Iterator[Result]:
    count = 2_000 if quick() else 20_000
    policies: tuple[CachePolicy, ...] = ("no-evict", "packed")
    filled: dict[CachePolicy, float] = {}
    read: dict[CachePolicy, float] = {}
    disk: dict[CachePolicy, int] = {}
    files: dict[CachePolicy, int] = {}
    with tempfile.TemporaryDirectory(dir=Path.cwd() / "build") as name:
        for policy in policies:
            cache = NodeCache(Path(name) / policy, 10**9, policy)
            filled[policy] = _timed(cache, range(count))
            order = list(range(count))
            random.Random(1).shuffle(order)
            read[policy] = min(_timed(cache, order) for _ in range(3))
            there = [path.lstat() for path in cache.folder.rglob("*") if path.is_file() and path.name != "ledger"]
            disk[policy], files[policy] = sum(512 * one.st_blocks for one in there), len(there)
            cache.close()
    plain, packed = policies
    yield Result(
        claim=f"a cache of {count:,} objects of {SMALL} bytes, packed against files: disk space",
        measured=f"{disk[packed] / count:,.0f} bytes each in {files[packed]} files, {disk[plain] / count:,.0f} in "
        f"{files[plain]:,}: {disk[plain] / disk[packed]:.1f} times as many fit",
        held=disk[packed] < disk[plain],
    )
    yield Result(
        claim="the same: time of a read that hits, and of keeping one",
        measured=f"{1e6 * read[packed] / count:.1f} µs against {1e6 * read[plain] / count:.1f}; "
        f"{1e6 * filled[packed] / count:.0f} µs against {1e6 * filled[plain] / count:.0f}",
    )


def _timed(cache: NodeCache, order: "range | list[int]") -> float:
    start = time.perf_counter()
    for number in order:
        cache.load(key_of(number), SMALL, lambda number=number: bytes_of(number, SMALL))  # type: ignore[misc]
    return time.perf_counter() - start


def _size(data: bytes, name: str) -> int:
    return len(data)


def _records(server: Seaweed, proxy: Proxy, folder: Path) -> Result:
    """An epoch in the shards' own order, 20 ms from the store."""
    server.fill("shards", objects(2 if quick() else 4, SHARD))
    given = {"endpoint": proxy.endpoint, "options": server.options, "index_folder": folder / "index"}
    names = [ref.name for ref in BucketDataset("s3://shards/", **given).index]  # type: ignore[arg-type]
    parts = [(name, at, RECORD) for name in names for at in range(0, SHARD, RECORD)]
    told = {}
    for joins in (True, False):
        proxy.set(latency_s=LATENCY_S)
        proxy.reset()
        dataset = BucketDataset("s3://shards/", _size, parts=parts, **given)  # type: ignore[arg-type]
        loader = DataLoader(dataset, 64, sampler=Lookahead(SequentialSampler(dataset)))
        start = time.perf_counter()
        with mock.patch("stallwise.data.prefetch._loading.RangeCoalescer", RangeCoalescer if joins else _Alone):
            total = sum(int(batch.sum()) for batch in loader)
        assert total == len(parts) * RECORD
        told[joins] = (time.perf_counter() - start, proxy.traffic().requests["get"])
    (joined_s, joined), (alone_s, alone) = told[True], told[False]
    return Result(
        claim=f"{len(parts):,} records of {RECORD} bytes in {len(names)} shards, {1e3 * LATENCY_S:.0f} ms away: joined "
        "against one by one",
        measured=f"{joined} GETs against {alone:,} ({alone / joined:.0f}×), {joined_s:.1f} s against {alone_s:.1f} s",
        held=joined < alone,
    )


class _Alone(RangeCoalescer):
    """Reads each record by itself."""

    def get(self, ref: ObjectRef) -> FetchedObject:
        return self._read(ref)


def _importance(server: Seaweed, folder: Path) -> Result:
    """Hits of the same draws, with room for a fifth; losses grow with the sample's number."""
    count, epochs, batch = (200, 5, 50) if quick() else (1000, 8, 100)
    server.fill("hard", objects(count, 3_900))
    shares = {}
    policies: tuple[CachePolicy, ...] = ("no-evict", "lru", "importance")
    for policy in policies:
        cache = NodeCache(folder / policy, count // 5 * 4096, policy)
        dataset = BucketDataset(
            "s3://hard/", _size, endpoint=server.endpoint, options=server.options, cache=cache,
            index_folder=folder / "index",
        )  # fmt: skip
        sampler = ImportanceSampler(dataset, changes_the_distribution=True, smoothing=0.0)
        if policy == "importance":
            dataset.keep_important(sampler.importance)
        for epoch in range(epochs):
            hits = dataset.account().hits
            drawn = list(sampler)
            for nth, _ in enumerate(DataLoader(dataset, batch, sampler=drawn)):
                numbers = drawn[batch * nth : batch * (nth + 1)]
                sampler.learn(numbers, np.array(numbers, dtype=float))
            if epoch == epochs - 1:
                shares[policy] = (dataset.account().hits - hits) / count
    return Result(
        claim=f"importance sampling, room for 20 % of {count} objects: hits of the last epoch by what the cache keeps",
        measured=", ".join(f"{policy} {share:.1%}" for policy, share in shares.items()),
        held=shares["importance"] > shares["no-evict"],
    )
