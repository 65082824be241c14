"""In the job: several settings of one loader tried in turns, in blocks of the same launch.

The script's loop asks one iterator, which asks the loader of the arm whose turn it is. Every block begins with workers
of its own and lets go of those before, so no arm lives on batches another time prepared, and none takes cores
from another. An arm's loader runs over the script's own dataset and sampler, epoch after epoch without end; the
script's epoch ends after as many batches as it would have.

Which batch of the job ends a block is laid down before the launch, so all ranks switch at the same step. Whether time
is up only rank 0 says, at the end of a block, through the store that the process group came together by.
"""

import copy
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from torch import distributed as dist
from torch.utils.data import BatchSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from stallwise.record.recorder import ProfileDone
from stallwise.run.atomic import write_atomically
from stallwise.tune.knobs import BLOCKS_NAME, Block, Knobs, Ran, Trial

# Beyond the time of a trial: setting up the job belongs to it too.
_GRACE_S = 60.0
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
        self._made_s = time.monotonic()
        self._ran: list[Ran] = []
        self._live: Any = None
        self._live_of: tuple[Any, int] | None = None
        self._starts_s: list[float] = []

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
        done = self._given - block.settle
        if done == block.batches or (done > 0 and self._drags(block, done, now_s)):
            self._close(now_s, done)
        elif self._late(now_s) and not _several():
            self._end()
        self._given += 1

    def check_overdue(self) -> None:
        """The job steps on, but no batch of the loader under trial was asked for: it is not there in this launch."""
        now_s = time.monotonic()
        limit_s = self._trial.max_s
        if limit_s is not None and now_s - self._made_s > limit_s + _GRACE_S:
            self._end()

    def batch(self, loader: Any) -> Any:
        """The next batch of the arm's own loader."""
        if self._live is not None and self._live_of == (loader, self._at):
            return _next_batch(self._live)
        self._stop()
        began_s = time.monotonic()
        self._live, self._live_of = _started(loader, self._trial.arms[self.arm]), (loader, self._at)
        batch = _next_batch(self._live)
        self._starts_s = [time.monotonic() - began_s]
        return batch

    def first(self, iterator: Any, advance: Callable[[Any], Any]) -> Any:
        """The next batch of an iterator that is the script's own; if it is the first, what beginning took is noted."""
        start_s = iterator.__dict__.pop("_stallwise_start_s", None)
        if start_s is None:
            return advance(iterator)
        began_s = time.monotonic()
        batch = advance(iterator)
        self._starts_s.append(start_s + time.monotonic() - began_s)
        return batch

    def _drags(self, block: Block, done: int, now_s: float) -> bool:
        if block.most_s is None or self._begin_s is None or done % block.quantum:
            return False
        return now_s - self._begin_s >= block.most_s and not _several()

    def _close(self, now_s: float, batches: int) -> None:
        block = self._trial.blocks[self._at]
        if self._begin_s is not None:
            ran = Ran(arm=block.arm, begin_s=self._begin_s, end_s=now_s, batches=batches, start_s=self._start_s)
            self._ran.append(ran)
        if self._first:
            write_atomically(Path(self._trial.folder, BLOCKS_NAME), msgspec.json.encode(self._ran))
        if self._at + 1 == len(self._trial.blocks) or self._all_stop(now_s):
            self._end()
        self._at += 1
        self._given, self._begin_s = 0, now_s if self._trial.blocks[self._at].settle == 0 else None

    @property
    def _start_s(self) -> float:
        """Of the epochs after the first where there are some: the first one's workers may be kept, and caches fill."""
        starts_s = self._starts_s[1:] or self._starts_s
        return sum(starts_s) / len(starts_s) if starts_s else 0.0

    def _late(self, now_s: float) -> bool:
        return self._trial.max_s is not None and now_s - (self._first_s or now_s) > self._trial.max_s

    def _all_stop(self, now_s: float) -> bool:
        if not _several():
            return self._late(now_s)
        store, key = dist.distributed_c10d._get_default_store(), f"stallwise/late/{self._at}"
        if self._first:
            store.set(key, str(int(self._late(now_s))))
        return bool(int(store.get(key)))

    def _end(self) -> None:
        self._stop()
        raise ProfileDone

    def _stop(self) -> None:
        live, self._live = self._live, None
        if isinstance(live, _MultiProcessingDataLoaderIter):
            live._shutdown_workers()


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


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
