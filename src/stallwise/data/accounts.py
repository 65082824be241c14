"""What loading cost: samples, bytes, requests and seconds, by what they were for.

Every process adds up its own line of a table in shared memory, so the rank can read the whole account at any time and
a killed worker's part is not lost. While a job is profiled, each batch also goes to the run record (`record.loads`).
"""

import os
import time
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch

from stallwise.hardware.object_store import StorePrices
from stallwise.record.loads import Load

_LINES = 256


@dataclass(slots=True)
class Account:
    """Sums. Seconds are of all loading processes together; `network_s`, `cache_s` and `decode_s` do not overlap."""

    samples: float = 0
    bytes: float = 0
    hits: float = 0
    """Samples that came out of the node's cache."""
    shared: float = 0
    """Samples another process of the node was fetching already."""
    peer_hits: float = 0
    """Samples another node's cache gave."""
    peer_bytes: float = 0
    requests: float = 0
    """GETs sent, those that failed and those nobody waited for included."""
    retries: float = 0
    hedged: float = 0
    fetched_bytes: float = 0
    """Bytes that came from the store."""
    lists: float = 0
    skipped: float = 0
    """Samples left out because their object could not be read or decoded."""
    waits: float = 0
    """Samples that were not there when they were asked for."""
    network_s: float = 0
    """Waiting for the store."""
    cache_s: float = 0
    """Reading the node's cache."""
    decode_s: float = 0
    """In the user's decode function."""
    queue_s: float = 0
    """Batches asked for while the worker was busy with the one before."""

    def __add__(self, other: "Account") -> "Account":
        return Account(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def cost_usd(self, prices: StorePrices | None) -> float | None:
        """Dollars for requests and for bytes that left the region; None where a price is unknown."""
        return None if prices is None else prices.usd(int(self.requests), int(self.lists), int(self.fetched_bytes))


_NAMES = tuple(field.name for field in fields(Account))


class Accounts:
    """The table in shared memory: one line per process, in its first column whose it is."""

    def __init__(self) -> None:
        self._table = torch.zeros((_LINES, 1 + len(_NAMES)), dtype=torch.float64).share_memory_()  # type: ignore[no-untyped-call]

    def add(self, account: Account) -> None:
        """Put it to this process's line."""
        self._own()[1:] += np.array([getattr(account, name) for name in _NAMES])

    def total(self) -> Account:
        """Everything so far, also of processes that are gone."""
        return Account(*(float(value) for value in self._table.numpy()[:, 1:].sum(axis=0)))

    def _own(self) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        table, pid = self._table.numpy(), os.getpid()
        for line in [*range(pid % _LINES, _LINES), *range(pid % _LINES)]:
            owner = int(table[line, 0])
            # A line whose process is gone is continued: only sums are ever read.
            if owner == pid or owner == 0 or not _alive(owner):
                table[line, 0] = pid
                return table[line]  # type: ignore[no-any-return]
        return table[pid % _LINES]  # type: ignore[no-any-return]


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def load_of(worker: int, start_s: float, account: Account) -> Load:
    """A batch's account as a row of the run record."""
    return Load(
        worker=worker,
        start_s=start_s,
        wall_s=time.monotonic() - start_s,
        samples=int(account.samples),
        data_bytes=int(account.bytes),
        hits=int(account.hits),
        requests=int(account.requests),
        retries=int(account.retries),
        fetched_bytes=int(account.fetched_bytes),
        network_s=account.network_s,
        cache_s=account.cache_s,
        decode_s=account.decode_s,
        queue_s=account.queue_s,
    )
