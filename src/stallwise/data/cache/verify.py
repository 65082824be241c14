"""Checking a cache: every entry's checksum, and its contents against what its object stores hold now."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stallwise.data.cache.cache import CacheStat, NodeCache
from stallwise.data.objects.index import Index, index_of
from stallwise.data.objects.store import ObjectBucket


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketCheck:
    """A bucket as it is now, beside the cache. `changed`, `gone`, `new` compare with the index kept before, if any."""

    url: str
    objects: int
    bytes: int
    cached: int
    missing: int
    missing_bytes: int
    changed: int | None
    gone: int | None
    new: int | None
    lists: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCheck:
    """Result of a check. The field names are the keys of its JSON."""

    entries: int
    removed: int
    seconds: float
    buckets: tuple[BucketCheck, ...]
    extra: int | None
    """Entries that belong to none of the buckets as they are now; None where no bucket was given."""
    stat: CacheStat


def check_cache(
    cache: NodeCache,
    buckets: Sequence[ObjectBucket],
    *,
    match: str = "*",
    folder: Path | None = None,
    progress: Callable[[str, int, int | None], None] = lambda *_: None,
) -> CacheCheck:
    """Read every entry, remove what is bad, and compare with the buckets. Nothing is fetched."""
    start = time.monotonic()
    verified = cache.verify(lambda done, of: progress("entries", done, of))
    seconds = time.monotonic() - start
    compared = [_compare(cache, bucket, match, folder, progress) for bucket in buckets]
    stat = cache.stat()
    return CacheCheck(
        entries=verified.entries,
        removed=verified.removed,
        seconds=seconds,
        buckets=tuple(compared),
        extra=max(0, stat.entries - sum(one.cached for one in compared)) if compared else None,
        stat=stat,
    )


def _compare(
    cache: NodeCache,
    bucket: ObjectBucket,
    match: str,
    folder: Path | None,
    progress: Callable[[str, int, int | None], None],
) -> BucketCheck:
    def listing(names: int) -> None:
        progress("names listed", names, None)

    # The kept index, however old; without one, this lists, and is itself what the bucket holds now.
    before = index_of(bucket, match=match, folder=folder, max_age_s=math.inf, progress=listing)
    listed_now = before.requests > 0
    now = before if listed_now else index_of(bucket, match=match, folder=folder, refresh=True, progress=listing)
    index, missing = now.index, []
    for number in range(len(index)):
        if not cache.contains(index.key(number)):
            missing.append(number)
        if number % 1000 == 0:
            progress("objects", number, len(index))
    changed, gone, new = (None, None, None) if listed_now else _differences(before.index, index)
    return BucketCheck(
        url=bucket.shown,
        objects=len(index),
        bytes=index.total_bytes,
        cached=len(index) - len(missing),
        missing=len(missing),
        missing_bytes=sum(max(0, int(index.sizes_bytes[number])) for number in missing),
        changed=changed,
        gone=gone,
        new=new,
        lists=now.requests,
    )


def _differences(before: Index, now: Index) -> tuple[int, int, int]:
    """Count objects that changed version or size, that are gone, and that are new."""
    old = {ref.name: (ref.version, ref.size_bytes) for ref in before}
    changed = new = 0
    for ref in now:
        previous = old.pop(ref.name, None)
        new += previous is None
        changed += previous is not None and previous != (ref.version, ref.size_bytes)
    return changed, len(old), new
