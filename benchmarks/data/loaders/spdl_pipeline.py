"""SPDL's pipeline in the training process: asynchronous GETs, `extra["concurrency"]` at a time, then batches.

SPDL brings no client for object stores, so it gets obstore's asynchronous one, the fastest that fits its stages; the
order is that of every raw loader here. Its figures must not depend on processes: it has none.
"""

import os
from collections.abc import Iterator
from typing import Any

from benchmarks.data.loaders.common import kept
from benchmarks.data.spec import Spec


class Batches:
    """A pipeline anew for every epoch, as its manual does."""

    def __init__(self, spec: Spec) -> None:
        from obstore.store import S3Store

        self._spec = spec
        self._store = S3Store(
            spec.source,
            endpoint=spec.endpoint,
            access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
            secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
            region="us-east-1",
            client_options={"allow_http": True, "timeout": "20s"},
        )
        self._names = sorted(one["path"] for chunk in self._store.list() for one in chunk)
        self._epoch = 0

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        import torch
        from spdl.pipeline import PipelineBuilder

        dice = torch.Generator().manual_seed(self._spec.seed + self._epoch)
        self._epoch += 1
        order = torch.randperm(len(self._names), generator=dice).tolist()[: self._spec.samples]
        pipeline = (
            PipelineBuilder()
            .add_source([self._names[i] for i in order])
            .pipe(self._read, concurrency=self._spec.extra["concurrency"])
            .aggregate(self._spec.batch)
            .add_sink(8)
            .build(num_threads=2)
        )
        with pipeline.auto_stop():
            yield from pipeline

    async def _read(self, name: str) -> tuple[int, int]:
        reply = await self._store.get_async(name)
        return kept(bytes(await reply.bytes_async()), self._spec.decode)


def make(spec: Spec) -> Any:
    """An iterable of batches."""
    return Batches(spec)
