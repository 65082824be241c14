"""Batches that came from a bucket, as the process that loaded them saw it: what each waited for.

`data/` appends one fixed-size record per batch to its process's own file, in the folder where the profiler collects
what loader workers write; the launcher makes rows of the table `loads` from it. Outside a profile there is no folder
and nothing is written.

This module is imported inside loader workers, so it imports next to nothing.
"""

import os
import struct
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

_RECORD = struct.Struct("<iddqqqqqqdddd")
SUFFIX = ".loads"
FACTS_SUFFIX = ".bucket"
_logs = count()  # of this process: it may read two buckets, to train and to validate


class Load(NamedTuple):
    """One batch. Times are of time.monotonic(), the same clock in all processes of a machine."""

    worker: int  # -1 where the rank loads its own data
    start_s: float
    wall_s: float
    samples: int
    data_bytes: int
    hits: int
    requests: int
    retries: int
    fetched_bytes: int
    network_s: float
    cache_s: float
    decode_s: float
    queue_s: float  # below 0 where unknown


class LoadLog:
    """Appends the batches of one process to its file, and says once what bucket they come from (as JSON)."""

    def __init__(self, folder: str, facts: str) -> None:
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"bucket-{os.getpid()}-{next(_logs)}")
        with open(path + FACTS_SUFFIX, "w") as file:
            file.write(facts)
        self._file = os.open(path + SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, load: Load) -> None:
        """One write: whole or, where the process is killed in it, left out."""
        os.write(self._file, _RECORD.pack(*load))


def read_loads(path: Path) -> Iterator[Load]:
    """The batches of one file; a torn last one is left out."""
    data = path.read_bytes()
    for row in _RECORD.iter_unpack(data[: len(data) - len(data) % _RECORD.size]):
        yield Load(*row)
