"""A worker process of a shared loader: it requests batches to prepare, prepares and delivers them until its job ends.

The random numbers of a batch follow from the seed, the epoch and the number of the batch, so that it does not
matter which worker of which job prepares it. While it decodes one batch, the objects of the next are prefetched.
"""

import contextlib
import mmap
import multiprocessing.connection
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch.utils.data import Dataset

from stallwise.data.shared._client import StagingConnection, connect
from stallwise.data.shared._coordinator import BatchId
from stallwise.data.shared._identity import probed_numbers, samples_digest
from stallwise.data.shared._memory import pack_batch, size_bytes, write_batch
from stallwise.data.shared._protocol import (
    BatchFailure,
    BatchUpload,
    DisconnectedError,
    OrderRequest,
    RoomRequest,
    StagingHello,
    WorkRequest,
)
from stallwise.errors import StallwiseError
from stallwise.torch_private import data_worker

_MOST_TEXT = 20_000


@dataclass(frozen=True)
class Preparation:
    """The settings that all jobs of a group have in common."""

    group: str
    dataset: Dataset[Any]
    collate: Callable[[list[Any]], Any]
    batch_size: int
    seed: int


def run_worker(
    preparation: Preparation,
    job: str,
    number: int,
    workers: int,
    back: "multiprocessing.connection.Connection[Any, Any] | None" = None,
) -> None:
    """Prepare batches until the job ends: the target of a worker process.

    With `back`, it first sends there the digest of a few samples, which jobs compare.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    data_worker._worker_info = data_worker.WorkerInfo(
        id=number, num_workers=workers, seed=preparation.seed, dataset=preparation.dataset
    )
    parent = os.getppid()
    if back is not None:
        with back:
            back.send_bytes(_samples(preparation).encode())
    while os.getppid() == parent:
        with contextlib.suppress(DisconnectedError, StallwiseError):
            connection = connect(preparation.group, start=False)
            connection.ask(StagingHello(job, is_worker=True))
            _Worker(preparation, connection).run()
        # The coordinator has ended, or does not know our job yet: the job starts another, or has ended.
        if os.getppid() == parent:
            time.sleep(0.1)


def _samples(preparation: Preparation) -> str:
    dataset = preparation.dataset
    return samples_digest(
        lambda number: _read(dataset, [number])[0],
        probed_numbers(dataset),
        lambda number: _seed(preparation.seed, (-1, number)),
    )


def _read(dataset: Dataset[Any], numbers: list[int]) -> list[Any]:
    if hasattr(dataset, "__getitems__"):
        return dataset.__getitems__(numbers)  # type: ignore[no-any-return]
    return [dataset[number] for number in numbers]


class _Worker:
    def __init__(self, preparation: Preparation, connection: StagingConnection) -> None:
        self._preparation, self._connection = preparation, connection
        self._orders: dict[int, npt.NDArray[np.int64]] = {}

    def run(self) -> None:
        """Prepare batches until the connection ends."""
        batch_id = self._request(wait=True)
        while True:
            following = self._request(wait=False)
            if following is not None:
                self._prefetch(following)
            if batch_id is not None:
                self._prepare(batch_id)
            batch_id = following if following is not None else self._request(wait=True)

    def _request(self, *, wait: bool) -> BatchId | None:
        return self._connection.ask(WorkRequest(wait))[0].batch

    def _prefetch(self, batch_id: BatchId) -> None:
        prefetch = getattr(self._preparation.dataset, "prefetch", None)
        if prefetch is not None:
            prefetch(self._numbers(batch_id))

    def _prepare(self, batch_id: BatchId) -> None:
        epoch, batch = batch_id
        try:
            parts = pack_batch(self._collated(batch_id))
        except Exception:
            self._connection.tell(BatchFailure(epoch, batch, traceback.format_exc()[-_MOST_TEXT:]))
            return
        reply, _ = self._connection.ask(RoomRequest(epoch, batch, size_bytes(parts)))
        if not reply.is_wanted:
            return
        file = write_batch(parts)
        try:
            self._connection.tell(BatchUpload(epoch, batch), file)
        finally:
            os.close(file)

    def _collated(self, batch_id: BatchId) -> Any:
        _seed(self._preparation.seed, batch_id)
        return self._preparation.collate(_read(self._preparation.dataset, self._numbers(batch_id)))

    def _numbers(self, batch_id: BatchId) -> list[int]:
        epoch, batch = batch_id
        if epoch not in self._orders:
            _, file = self._connection.ask(OrderRequest(epoch))
            if file is None:
                raise DisconnectedError
            self._orders = {epoch: order_in(file), **{e: o for e, o in self._orders.items() if e == epoch - 1}}
        first = batch * self._preparation.batch_size
        numbers: list[int] = self._orders[epoch][first : first + self._preparation.batch_size].tolist()
        return numbers


def order_in(file: int) -> npt.NDArray[np.int64]:
    """Return the numbers in a file, and close it.

    Mapped, not read: workers that were sent the same file share its position.
    """
    try:
        size = os.fstat(file).st_size
        return np.frombuffer(mmap.mmap(file, size, prot=mmap.PROT_READ) if size else b"", dtype=np.int64)
    finally:
        os.close(file)


def _seed(seed: int, batch_id: BatchId) -> None:
    mixed = xxhash.xxh3_64_intdigest(f"{seed} {batch_id[0]} {batch_id[1]}".encode())
    random.seed(mixed)
    np.random.seed(mixed % 2**32)
    torch.manual_seed(mixed % 2**63)
