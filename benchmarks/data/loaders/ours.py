"""Stallwise: BucketDataset and Lookahead in a plain DataLoader, with whatever tunes itself left alone."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler

from benchmarks.data.loaders.common import as_list, kept
from benchmarks.data.spec import Spec
from stallwise.data import BucketDataset, DeliMode, Lookahead, NodeCache
from stallwise.data._dataset import LOOKAHEAD_BYTES


def make(spec: Spec) -> Any:
    """`extra`: `limit_bytes` of a cache in the run's folder, `mode` of DELI's three numbers, `lookahead_bytes`,
    `index_folder` of a kept index, how workers `start`."""
    cache = NodeCache(spec.cache, limit_bytes=spec.extra["limit_bytes"]) if "limit_bytes" in spec.extra else None
    options = {
        "access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
        "secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
    }
    dataset = BucketDataset(
        f"s3://{spec.source}/",
        partial(_keep, spec.decode),
        endpoint=spec.endpoint,
        options=options,
        cache=cache,
        index_folder=Path(spec.extra["index_folder"]) if "index_folder" in spec.extra else None,
        lookahead_bytes=spec.extra.get("lookahead_bytes", LOOKAHEAD_BYTES),
    )
    sampler = RandomSampler(dataset, num_samples=spec.samples, generator=torch.Generator().manual_seed(spec.seed))
    mode = DeliMode(**spec.extra["mode"]) if "mode" in spec.extra else None
    return DataLoader(
        dataset,
        sampler=Lookahead(sampler, mode=mode),
        batch_size=spec.batch,
        num_workers=spec.workers,
        collate_fn=as_list,
        persistent_workers=spec.workers > 0,
        multiprocessing_context=spec.extra.get("start") if spec.workers else None,
    )


def report(loader: Any) -> dict[str, Any]:
    """Of its own account: samples that were not there when asked for, the requests made, the wait for them."""
    account = loader.dataset.account()
    names = ("waits", "samples", "requests", "lists", "network_s")
    return {name: getattr(account, name) for name in names}


def _keep(decode: str, data: bytes, name: str) -> tuple[int, int]:
    return kept(data, decode)
