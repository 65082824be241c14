"""What loading has cost: samples, bytes, requests and seconds, by purpose.

Every process adds up its own line of a table in shared memory, so the rank can read the whole account at any time and
a killed worker's share is not lost. While a job is profiled, each batch also goes to the run record
(`record.observe.worker`).
"""

import os
import time
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch

from stallwise.hardware.prices import StorePrices
from stallwise.record.observe.worker import BatchLoad

_LINES = 256


@dataclass(slots=True)
class Account:
    """Sums over all loading processes; `network_s`, `cache_s` and `decode_s` do not overlap."""

    samples: float = 0
    bytes: float = 0
    hits: float = 0
    """Samples read from the node's cache."""
    shared: float = 0
    """Samples that another process of the node was already fetching."""
    peer_hits: float = 0
    """Samples read from another node's cache."""
    peer_bytes: float = 0
    requests: float = 0
    """GETs sent, including failed and hedged ones."""
    retries: float = 0
    hedged: float = 0
    fetched_bytes: float = 0
    """Bytes read from the store."""
    lists: float = 0
    skipped: float = 0
    """Samples left out because their object could not be read or decoded."""
    waits: float = 0
    """Samples that were not ready when they were requested."""
    network_s: float = 0
    """Seconds waiting for the store or a peer."""
    cache_s: float = 0
    """Seconds reading the node's cache."""
    decode_s: float = 0
    """Seconds in the user's decode function."""
    queue_s: float = 0
    """Seconds that batches waited in the queue while the worker was busy with the one before."""

    def __add__(self, other: "Account") -> "Account":
        return Account(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def cost_usd(self, prices: StorePrices | None) -> float | None:
        """Return dollars for requests and for bytes out of the region; None where a price is unknown."""
        return None if prices is None else prices.usd(int(self.requests), int(self.lists), int(self.fetched_bytes))


_NAMES = tuple(field.name for field in fields(Account))


class Accounts:
    """The table in shared memory: one line per process, whose PID is in the first column."""

    def __init__(self) -> None:
        self._table = torch.zeros((_LINES, 1 + len(_NAMES)), dtype=torch.float64).share_memory_()  # type: ignore[no-untyped-call]

    def add(self, account: Account) -> None:
        """Add to this process's line."""
        self._own()[1:] += np.array([getattr(account, name) for name in _NAMES])

    def total(self) -> Account:
        """Sum over all processes, including those that ended."""
        return Account(*(float(value) for value in self._table.numpy()[:, 1:].sum(axis=0)))

    def _own(self) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        table, pid = self._table.numpy(), os.getpid()
        for line in [*range(pid % _LINES, _LINES), *range(pid % _LINES)]:
            owner = int(table[line, 0])
            # The line of a process that ended is reused: only sums are ever read.
            if owner == pid or owner == 0 or not _alive(owner):
                table[line, 0] = pid
                return table[line]  # type: ignore[no-any-return]
        return table[pid % _LINES]  # type: ignore[no-any-return]


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def load_of(worker: int, start_s: float, account: Account) -> BatchLoad:
    """Convert a batch's account into a row of the run record."""
    return BatchLoad(
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
