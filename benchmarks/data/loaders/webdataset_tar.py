"""WebDataset: tar shards of 8 MB in a bucket, read as a stream by curl from signed addresses (`extra["urls"]`).

A packed format: somebody has to make the shards first, and its shuffle is of shards and within a buffer.
"""

from functools import partial
from typing import Any

import webdataset
from torch.utils.data import DataLoader

from benchmarks.data.loaders.common import READ_TIMEOUT_S, as_list, kept
from benchmarks.data.spec import Spec

_BUFFER = 256


def make(spec: Spec) -> Any:
    """Shards split over workers; one curl per shard."""
    urls = [f"pipe:curl -s -f --max-time {READ_TIMEOUT_S} '{url}'" for url in spec.extra["urls"]]
    dataset = (
        webdataset.WebDataset(urls, shardshuffle=len(urls), empty_check=False, seed=spec.seed)
        .shuffle(_BUFFER, initial=min(spec.batch, _BUFFER))
        .to_tuple("bin")
        .map(partial(_keep, spec.decode))
    )
    options = {"batch_size": spec.batch, "num_workers": spec.workers, "collate_fn": as_list}
    return DataLoader(dataset, persistent_workers=spec.workers > 0, **options)


def _keep(decode: str, sample: tuple[bytes]) -> tuple[int, int]:
    return kept(sample[0], decode)
