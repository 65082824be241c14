"""A worker of coordinated preparation: it asks what to prepare, prepares it, and hands it over, until its job is gone.

The random numbers of a batch follow from the seed, the epoch and the number of the batch, so that it does not
matter which worker of which job prepares it. While it decodes one batch, the objects of the next are on their way.
"""

import contextlib
import mmap
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
from torch.utils.data._utils import worker as torch_worker

from stallwise.data.batch_file import packed, size_bytes, written
from stallwise.data.staging import Spot
from stallwise.data.staging_client import Link, connect
from stallwise.data.staging_wire import Ask, Fail, GoneError, Hello, OrderOf, Put, Room
from stallwise.errors import StallwiseError

_MOST_TEXT = 20_000


@dataclass(frozen=True)
class Preparation:
    """What all jobs of a group have in common."""

    group: str
    dataset: Dataset[Any]
    collate: Callable[[list[Any]], Any]
    batch_size: int
    seed: int


def work(preparation: Preparation, job: str, number: int, workers: int) -> None:
    """The worker's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=number, num_workers=workers, seed=preparation.seed, dataset=preparation.dataset
    )
    parent = os.getppid()
    while os.getppid() == parent:
        with contextlib.suppress(GoneError, StallwiseError):
            link = connect(preparation.group, start=False)
            link.ask(Hello(job, is_worker=True))
            _Worker(preparation, link).run()
        # The books are gone, or do not know our job yet: it will open new ones, or has ended.
        if os.getppid() == parent:
            time.sleep(0.1)


class _Worker:
    def __init__(self, preparation: Preparation, link: Link) -> None:
        self._what, self._link = preparation, link
        self._orders: dict[int, npt.NDArray[np.int64]] = {}

    def run(self) -> None:
        """Until the connection ends."""
        spot = self._ask(wait=True)
        while True:
            following = self._ask(wait=False)
            if following is not None:
                self._expect(following)
            if spot is not None:
                self._prepare(spot)
            spot = following if following is not None else self._ask(wait=True)

    def _ask(self, *, wait: bool) -> Spot | None:
        return self._link.ask(Ask(wait))[0].spot

    def _expect(self, spot: Spot) -> None:
        expect = getattr(self._what.dataset, "prefetch", None)
        if expect is not None:
            expect(self._numbers(spot))

    def _prepare(self, spot: Spot) -> None:
        epoch, batch = spot
        try:
            parts = packed(self._made(spot))
        except Exception:
            self._link.tell(Fail(epoch, batch, traceback.format_exc()[-_MOST_TEXT:]))
            return
        answer, _ = self._link.ask(Room(epoch, batch, size_bytes(parts)))
        if not answer.is_wanted:
            return
        file = written(parts)
        try:
            self._link.tell(Put(epoch, batch), file)
        finally:
            os.close(file)

    def _made(self, spot: Spot) -> Any:
        _seed(self._what.seed, spot)
        numbers, dataset = self._numbers(spot), self._what.dataset
        if hasattr(dataset, "__getitems__"):
            return self._what.collate(dataset.__getitems__(numbers))
        return self._what.collate([dataset[number] for number in numbers])

    def _numbers(self, spot: Spot) -> list[int]:
        epoch, batch = spot
        if epoch not in self._orders:
            _, file = self._link.ask(OrderOf(epoch))
            if file is None:
                raise GoneError
            self._orders = {epoch: order_in(file), **{e: o for e, o in self._orders.items() if e == epoch - 1}}
        first = batch * self._what.batch_size
        numbers: list[int] = self._orders[epoch][first : first + self._what.batch_size].tolist()
        return numbers


def order_in(file: int) -> npt.NDArray[np.int64]:
    """The numbers in a file, which is closed.

    Mapped, not read: workers that were sent the same file share its position, and would read past each other.
    """
    try:
        size = os.fstat(file).st_size
        return np.frombuffer(mmap.mmap(file, size, prot=mmap.PROT_READ) if size else b"", dtype=np.int64)
    finally:
        os.close(file)


def _seed(seed: int, spot: Spot) -> None:
    mixed = xxhash.xxh3_64_intdigest(f"{seed} {spot[0]} {spot[1]}".encode())
    random.seed(mixed)
    np.random.seed(mixed % 2**32)
    torch.manual_seed(mixed % 2**63)
