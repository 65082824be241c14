"""MosaicML Streaming: MDS shards of 8 MB in a bucket (a packed format), with its local copy in the run's own folder."""

import os
from typing import Any

from streaming import StreamingDataLoader, StreamingDataset

from benchmarks.data.loaders.common import READ_TIMEOUT_S, as_list, kept
from benchmarks.data.spec import Spec


class Marks(StreamingDataset):
    """Only number and length of a sample leave the worker."""

    def __getitem__(self, at: Any) -> Any:
        return kept(super().__getitem__(at)["sample"], "mark")


def make(spec: Spec) -> Any:
    """Its endpoint comes from the environment."""
    os.environ["S3_ENDPOINT_URL"] = spec.endpoint
    dataset = Marks(
        remote=f"s3://{spec.source}/mds",
        local=spec.cache,
        shuffle=True,
        batch_size=spec.batch,
        download_timeout=READ_TIMEOUT_S,
        num_canonical_nodes=1,
    )
    return StreamingDataLoader(dataset, batch_size=spec.batch, num_workers=spec.workers, collate_fn=as_list)
