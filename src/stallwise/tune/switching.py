"""In the job: several settings of one loader tried in turns, in blocks of the same launch.

The script's loop asks one iterator, which asks the loader of the arm whose turn it is. Every block begins with workers
of its own and lets go of those before, so no arm lives on batches another time prepared, and none takes cores
from another. An arm's loader runs over the script's own dataset and sampler, epoch after epoch without end; the
script's epoch ends after as many batches as it would have.

Which batch of the job ends a block is laid down before the launch, so all ranks switch at the same step.
"""

import copy
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from torch.utils.data import BatchSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from stallwise.record.recorder import ProfileDone
from stallwise.run.atomic import write_atomically
from stallwise.tune.knobs import BLOCKS_NAME, Knobs, Ran, Trial

# As it is before anybody patches it.
_next_batch = _BaseDataLoaderIter.__next__


class Board:
    """Counts batches of the loader under trial, says whose turn it is, and ends the job when all had theirs."""

    def __init__(self, trial: Trial, *, first: bool) -> None:
        self._trial = trial
        self._first = first
        self._at = 0
        self._given = 0
        self._begin_s: float | None = None
        self._first_s: float | None = None
        self._ran: list[Ran] = []
        self._live: Any = None
        self._live_arm: int | None = None

    @property
    def arm(self) -> int:
        """Whose turn it is."""
        return self._trial.blocks[self._at].arm

    def turn(self) -> None:
        """The loop asks for a batch."""
        now_s = time.monotonic()
        if self._first_s is None:
            self._first_s = now_s
        block = self._trial.blocks[self._at]
        if self._given == block.settle:
            self._begin_s = now_s
        if self._given == block.settle + block.batches:
            self._close(now_s)
        elif self._trial.max_s is not None and now_s - self._first_s > self._trial.max_s:
            self._end()
        self._given += 1

    def batch(self, loader: Any) -> Any:
        """The next batch of the arm's own loader."""
        if self._live is None or self._live_arm != self._at:
            self._stop()
            self._live, self._live_arm = _started(loader, self._trial.arms[self.arm]), self._at
        return _next_batch(self._live)

    def _close(self, now_s: float) -> None:
        block = self._trial.blocks[self._at]
        if self._begin_s is not None:
            self._ran.append(Ran(arm=block.arm, begin_s=self._begin_s, end_s=now_s, batches=block.batches))
        if self._first:
            write_atomically(Path(self._trial.folder, BLOCKS_NAME), msgspec.json.encode(self._ran))
        if self._at + 1 == len(self._trial.blocks):
            self._end()
        self._at += 1
        self._given, self._begin_s = 0, now_s if self._trial.blocks[self._at].settle == 0 else None

    def _end(self) -> None:
        self._stop()
        raise ProfileDone

    def _stop(self) -> None:
        live, self._live = self._live, None
        if isinstance(live, _MultiProcessingDataLoaderIter):
            live._shutdown_workers()


class Switching(_BaseDataLoaderIter):
    """What the script's loop iterates over. It has no workers itself."""

    def __init__(self, loader: Any, board: Board) -> None:
        # Not super().__init__: that would begin to draw from the sampler.
        self._loader = loader
        self._board = board
        self._yielded = 0

    def __len__(self) -> int:
        return len(self._loader)

    def advance(self) -> Any:
        """The next batch, or the epoch's end where the script expects it."""
        if self._yielded >= len(self._loader):
            raise StopIteration
        self._board.turn()
        self._yielded += 1
        return self._board.batch(self._loader)


class _Endless:
    """A sampler's epochs one after the other."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self._sampler


def _ahead(loader: Any) -> tuple[Any, Any, Any]:
    """The dataset, and its sampler and batch sampler with the order known ahead.

    The dataset is a copy, because one that looks ahead tells all workers that are started later.
    """
    from stallwise.data import Lookahead

    dataset = copy.copy(loader.dataset)
    dataset._channels = []
    sampler = Lookahead(loader.sampler, dataset)
    batches = loader.batch_sampler
    return dataset, sampler, batches and BatchSampler(sampler, batches.batch_size, batches.drop_last)


def _started(loader: Any, knobs: Knobs) -> Any:
    """An iterator over a copy of `loader` with other settings; its workers start here."""
    arm = copy.copy(loader)
    workers = loader.num_workers if knobs.num_workers is None else knobs.num_workers
    depth = (loader.prefetch_factor or 2) if knobs.prefetch_factor is None else knobs.prefetch_factor
    dataset, sampler, batches = _ahead(loader) if knobs.lookahead else (loader.dataset, loader.sampler, None)
    batches = batches or loader.batch_sampler
    name, endless = ("sampler", _Endless(sampler)) if batches is None else ("batch_sampler", _Endless(batches))
    # Past __setattr__, which forbids to change the sampler of a loader that is in use: this copy is not yet.
    arm.__dict__.update(
        {
            "num_workers": workers,
            "prefetch_factor": depth if workers else None,
            "pin_memory": loader.pin_memory if knobs.pin_memory is None else knobs.pin_memory,
            "persistent_workers": False,
            "_iterator": None,
            "dataset": dataset,
            name: endless,
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more workers than cores: that is what is being found out
        return arm._get_iterator()
