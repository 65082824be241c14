"""boto3 in a map dataset, one GET per sample: what most people write first. Each worker opens its own client.

`extra["threads"]`: that many GETs of a batch at a time in every worker, by `__getitems__`.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.data.loaders.common import READ_TIMEOUT_S, kept, shuffled
from benchmarks.data.spec import Spec


def client(endpoint: str) -> Any:
    """With a time-out that shows a stall instead of hiding it."""
    import boto3
    from botocore.config import Config

    times = {"read_timeout": READ_TIMEOUT_S, "connect_timeout": 5, "retries": {"max_attempts": 1}}
    config = Config(max_pool_connections=64, **times)
    return boto3.client("s3", endpoint_url=endpoint, config=config)


class Objects:
    """Listed once, when it is made."""

    def __init__(self, spec: Spec) -> None:
        self._spec, self._pid, self._pool = spec, -1, None
        pages = client(spec.endpoint).get_paginator("list_objects_v2").paginate(Bucket=spec.source)
        self.names = [one["Key"] for page in pages for one in page.get("Contents", ())]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: int) -> tuple[int, int]:
        self._open()
        answer = self._client.get_object(Bucket=self._spec.source, Key=self.names[number])
        return kept(answer["Body"].read(), self._spec.decode)

    def __getitems__(self, numbers: list[int]) -> list[tuple[int, int]]:
        self._open()
        return list((self._pool.map if self._pool else map)(self.__getitem__, numbers))

    def _open(self) -> None:
        if self._pid != os.getpid():
            self._pid, self._client = os.getpid(), client(self._spec.endpoint)
            threads = self._spec.extra.get("threads", 1)
            self._pool = ThreadPoolExecutor(threads) if threads > 1 else None


def make(spec: Spec) -> Any:
    """Shuffled, as all raw loaders here."""
    return shuffled(Objects(spec), spec)
