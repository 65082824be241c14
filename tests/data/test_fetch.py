"""Samples that are parts of objects, from a real store: neighbours that are wanted together are read together."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from stallwise.data import BucketDataset, Lookahead, NodeCache
from stallwise.data._accounts import Account
from stallwise.data.objects import _fetch as fetch
from stallwise.data.objects._fetch import GAP_BYTES, FetchedObject, RangeCoalescer
from stallwise.data.objects.index import ObjectRef
from stallwise.errors import InputError, ObjectError
from tests.data.testbed.proxy import Proxy
from tests.data.testbed.seaweed import Seaweed, content, objects
from tests.waiting import PATIENCE_S, until

SHARDS, SHARD, RECORD = 4, 200_000, 2_000
PER_SHARD = SHARD // RECORD


def named(data: bytes, name: str) -> tuple[str, bytes]:
    return name, data


@pytest.fixture
def packed(
    seaweed: Seaweed, proxy: Proxy, new_bucket: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """A dataset of the records in four shards; neighbours are waited for as long as a busy machine needs."""
    monkeypatch.setattr(fetch, "WAIT_S", 0.2)
    bucket = new_bucket(objects(SHARDS, SHARD))

    def make(**options: Any) -> BucketDataset[tuple[str, bytes]]:
        settings: dict[str, Any] = {
            "endpoint": proxy.endpoint,
            "options": seaweed.options,
            "index_folder": tmp_path / "indexes",
            "hedge": False,
            "timeout_s": PATIENCE_S,
        }
        plain = BucketDataset(f"s3://{bucket}/", named, **settings)
        parts = [(plain.name(n), at, RECORD) for n in range(SHARDS) for at in range(0, SHARD, RECORD)]
        proxy.reset()
        return BucketDataset(f"s3://{bucket}/", named, **{"parts": parts, **settings, **options})

    return make


def read(dataset: Any, *, shuffled: bool, workers: int = 0) -> list[tuple[str, bytes]]:
    order = RandomSampler(dataset) if shuffled else SequentialSampler(dataset)
    loader = DataLoader(dataset, 50, sampler=Lookahead(order), collate_fn=list, num_workers=workers)
    return [sample for batch in loader for sample in batch]


def right(dataset: Any, samples: list[tuple[str, bytes]]) -> bool:
    expected = sorted(
        (ref.name, content(ref.name, SHARD)[ref.start : ref.start + ref.size_bytes]) for ref in dataset.index
    )
    return sorted(samples) == expected


def settled(dataset: Any, proxy: Proxy) -> tuple[Account, int]:
    """The account, once it counts every request: those past the epoch's end are counted when their answers come."""
    until(lambda: proxy.traffic().requests["get"] == dataset.account().requests)
    return dataset.account(), proxy.traffic().requests["get"]


@pytest.mark.parametrize("workers", [0, 2])
def test_neighbours_are_read_together_and_come_out_right(
    packed: Callable[..., Any], proxy: Proxy, workers: int
) -> None:
    dataset = packed()
    assert len(dataset) == SHARDS * PER_SHARD
    assert right(dataset, read(dataset, shuffled=False, workers=workers))
    account, gets = settled(dataset, proxy)
    print(f"{len(dataset)} records of {RECORD} bytes in order: {gets} GETs instead of {len(dataset)}")
    assert gets <= len(dataset) / 2
    # A reader that comes late on a busy machine leaves a gap in a joined read, which is then read twice.
    assert len(dataset) * RECORD <= account.fetched_bytes <= len(dataset) * RECORD + (len(dataset) - gets) * GAP_BYTES


def test_any_order_is_right_and_reads_no_more_than_gaps(packed: Callable[..., Any], proxy: Proxy) -> None:
    dataset = packed()
    assert right(dataset, read(dataset, shuffled=True))
    account, gets = settled(dataset, proxy)
    print(f"shuffled: {gets} GETs, {account.fetched_bytes / (len(dataset) * RECORD):.2f} of the bytes")
    assert gets < len(dataset)


def test_parts_are_cached_each_by_itself(packed: Callable[..., Any], proxy: Proxy, tmp_path: Path) -> None:
    dataset = packed(cache=NodeCache(tmp_path / "cache", 10**8))
    assert right(dataset, read(dataset, shuffled=False))
    proxy.reset()
    assert right(dataset, read(dataset, shuffled=True))
    assert proxy.traffic().requests.get("get", 0) == 0
    assert dataset.account().hits == len(dataset)


def test_what_cannot_be_is_said(packed: Callable[..., Any]) -> None:
    name = packed().name(0)
    for parts, message in (
        ([("none", 0, 5)], "not among the objects"),
        ([(name, SHARD - 1, 2)], "which has 200000"),
        ([(name, -1, 2)], "bytes -1"),
        ([(name, 0, 0)], "bytes 0 to 0"),
        ([], "there are none"),
    ):
        with pytest.raises(InputError, match=message):
            packed(parts=parts)


WHOLE = bytes(range(256)) * 40
places = st.lists(
    st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(1, 300)).map(lambda p: (p[0], min(p[1], len(WHOLE) - p[0]))),
    min_size=1,
    max_size=30,
)


@given(places, st.integers(0, 500), st.integers(1, 3000))
def test_everybody_gets_their_own_bytes(parts: list[tuple[int, int]], gap: int, most: int) -> None:
    reads: list[tuple[int, int]] = []
    lock = Lock()

    def store(ref: ObjectRef) -> FetchedObject:
        assert ref.start is not None
        assert ref.size_bytes is not None
        with lock:
            reads.append((ref.start, ref.size_bytes))
        return FetchedObject(WHOLE[ref.start : ref.start + ref.size_bytes], 0.0, 1)

    coalescer = RangeCoalescer(store, gap_bytes=gap, most_bytes=most)
    with ThreadPoolExecutor(len(parts)) as pool:
        results = list(pool.map(lambda one: coalescer.get(ObjectRef("x", one[1], "v", one[0])), parts))
    assert [one.data for one in results] == [WHOLE[at : at + length] for at, length in parts]
    assert sum(one.tries for one in results) == len(reads)
    assert sum(one.read_bytes or 0 for one in results) == sum(length for _, length in reads)
    longest = max(length for _, length in parts)
    assert all(length <= max(most, longest) for _, length in reads)


def test_a_read_that_fails_fails_for_all_and_the_next_goes_on() -> None:
    broken, reads = [True], [0]

    def store(ref: ObjectRef) -> FetchedObject:
        reads[0] += 1
        if broken[0]:
            raise ObjectError("gone", 1)
        return FetchedObject(bytes(ref.size_bytes or 0), 0.0, 1)

    coalescer = RangeCoalescer(store)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(coalescer.get, ObjectRef("x", 10, "v", 10 * n)) for n in range(4)]
        errors = [one.exception() for one in futures]
        assert [isinstance(error, ObjectError) for error in errors] == [True] * 4
        assert sum(error.tries for error in errors if isinstance(error, ObjectError)) == reads[0]
        broken[0] = False
        assert coalescer.get(ObjectRef("x", 10, "v", 0)).data == bytes(10)
