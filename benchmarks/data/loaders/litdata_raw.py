"""LitData's StreamingRawDataset (raw files), optionally with its file cache.

Settings in its favour: its own look-ahead is switched off at batch 1, where it takes any single number for a sequence
and reads 16 times the data; workers are forked or spawned as `extra["start"]` says. Plain HTTP is switched on from
outside, in every process that imports this, because its options have no place for it.
"""

from functools import partial
from typing import Any

from litdata import StreamingRawDataset
from litdata.streaming import downloader

from benchmarks.data.loaders.common import kept, shuffled
from benchmarks.data.spec import Spec

downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True


def make(spec: Spec) -> Any:
    """Samples are decoded in `collate_fn`, as its manual advises; the cache is a folder without a limit."""
    dataset = StreamingRawDataset(
        f"s3://{spec.source}/",
        cache_dir=spec.cache,
        cache_files=bool(spec.extra.get("cache_files")),
        storage_options={"endpoint_url": spec.endpoint},
        max_prefetch=0 if spec.batch == 1 else 16,
        download_timeout=60.0,
    )
    context = spec.extra.get("start", "spawn") if spec.workers else None
    return shuffled(dataset, spec, collate_fn=partial(_collate, spec.decode), multiprocessing_context=context)


def _collate(decode: str, batch: list[bytes]) -> list[tuple[int, int]]:
    return [kept(data, decode) for data in batch]
