"""Checks a cache: every entry's checksum, and its contents against what its buckets hold now."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stallwise.data.cache import CacheStat, NodeCache
from stallwise.data.listing import index_of
from stallwise.data.objects import Index
from stallwise.data.store import Bucket


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
class Checked:
    """What was found. The field names are the keys of `--json`."""

    entries: int
    removed: int
    seconds: float
    buckets: tuple[BucketCheck, ...]
    extra: int | None
    """Entries that are of none of the buckets as they are now; None where no bucket was given."""
    stat: CacheStat


def check(
    cache: NodeCache,
    buckets: Sequence[Bucket],
    *,
    match: str = "*",
    folder: Path | None = None,
    progress: Callable[[str, int, int | None], None] = lambda *_: None,
) -> Checked:
    """Read every entry, remove what is bad, and compare with the buckets. Nothing is fetched."""
    start = time.monotonic()
    verified = cache.verify(lambda done, of: progress("entries", done, of))
    seconds = time.monotonic() - start
    found = [_compare(cache, bucket, match, folder, progress) for bucket in buckets]
    stat = cache.stat()
    return Checked(
        entries=verified.entries,
        removed=verified.removed,
        seconds=seconds,
        buckets=tuple(found),
        extra=max(0, stat.entries - sum(one.cached for one in found)) if found else None,
        stat=stat,
    )


def _compare(
    cache: NodeCache, bucket: Bucket, match: str, folder: Path | None, progress: Callable[[str, int, int | None], None]
) -> BucketCheck:
    def listing(seen: int) -> None:
        progress("names listed", seen, None)

    # What was kept, however old; where nothing was, this lists, and is itself what the bucket holds now.
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
    """Objects of the same name in another version or size, those that are gone, and new ones."""
    old = {ref.name: (ref.version, ref.size_bytes) for ref in before}
    changed = new = 0
    for ref in now:
        known = old.pop(ref.name, None)
        new += known is None
        changed += known is not None and known != (ref.version, ref.size_bytes)
    return changed, len(old), new
