"""Watching loaders: every fetch from a DataLoader is timed, and in replay phases answered from a ring of kept batches.

`DataLoader.__iter__` and `BaseDataLoaderIter.__next__` are patched on the class (and `__iter__` of torchdata's
StatefulDataLoader), so the script keeps the objects it created, of the types it expects. An epoch keeps its length in
replay phases: the loop ends after as many batches as the loader would have given, so that progress bars and
learning-rate schedules hold. A stream does not say how long it is: batches of it that replayed ones stood in for are
skipped, as far as that takes little time, and once an epoch has ended its length is known.

Accelerate's dispatching loader reads on rank 0 and sends each rank its share. All ranks are watched where they
receive, not where one of them reads: they must agree on where a step begins.
"""

import functools
import itertools
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from torch.utils.data import DataLoader

from stallwise.record.observe.worker import WatchedFetch, WorkerInit, unwatch_fetchers, watch_fetchers
from stallwise.record.rank.script import when_imported
from stallwise.torch_private import BaseDataLoaderIter

Item = TypeVar("Item")

# How long batches of a stream may be skipped at a time.
_SKIP_S = 0.5


class LoaderListener(Protocol):
    """Is told of every fetch; the recorder implements it."""

    resting: int
    """Whether fetches may pass without a word, but for the first of an epoch."""

    def fetch_begins(self, source: "BatchSource") -> Any | None:
        """A fetch begins; returns a batch to hand out instead of the real one, or None."""

    def fetch_ended(self, source: "BatchSource", batch: Any, start_s: float, end_s: float) -> None:
        """A fetch ended with this batch."""

    def epoch_ended(self, source: "BatchSource") -> None:
        """The source has no more batches: an epoch is over."""

    def iterator_created(self, source: "BatchSource", start_s: float, end_s: float) -> None:
        """An iterator over the source was created, workers included."""


class BatchSource:
    """Something batches come from: a DataLoader, or an iterable the script wrapped in `stallwise.batches`."""

    def __init__(self, key: int, loader: Any) -> None:
        self.key = key
        self.workers: int = getattr(loader, "num_workers", 0) or 0
        depth = getattr(loader, "prefetch_factor", None)
        self.queued: int = self.workers * (depth if depth is not None else 2)
        self.prefetch_factor: int | None = depth
        self.batch_size: int | None = getattr(loader, "batch_size", None)
        self.length = length_of(loader)
        self.is_stream = self.length is None
        self.keeps_queue = False  # an iterator that begins an epoch with the queue of the one before
        self.dataset_length = length_of(getattr(loader, "dataset", None))
        self.sampler_length = length_of(getattr(loader, "sampler", None))
        self.begin_epoch()

    def epoch_samples(self, world_size: int) -> int | None:
        """Samples of an epoch over all ranks: the dataset, or less where the samplers leave samples out."""
        if self.dataset_length is None or self.sampler_length is None:
            return self.dataset_length
        if world_size == 1:
            return self.sampler_length
        drawn = self.sampler_length * world_size
        # What a distributed sampler drops to be even on every rank counts; a sampler that is not divided draws it all.
        return drawn if drawn + world_size <= self.dataset_length else self.dataset_length

    def begin_epoch(self) -> None:
        """Reset the counts of the epoch."""
        self.delivered = 0
        self.replayed = 0
        self.stale = 0
        self.skipped = 0
        self.skip_until_s = 0.0
        self.prepared = 0  # batches taken from the real loader, dropped ones included

    def end_epoch(self) -> None:
        """Learn the length of a stream from an epoch that came to its end."""
        if self.is_stream and self.length is None and self.delivered:
            # What was replayed beyond what was skipped lengthened this epoch; the stream itself is shorter.
            self.length = max(1, self.delivered - self.replayed + self.skipped)

    @property
    def is_single(self) -> bool:
        """Whether an epoch is one batch."""
        return self.length == 1

    def drop_queue(self) -> None:
        """Throw away what the workers prepared while batches were replayed, before the next real fetch.

        A loader slower than the training would otherwise live on that head start for long: q batches of it last
        q / (1 - consume / produce) steps, not q.
        """
        self.stale = self.queued
        self.skip_until_s = time.monotonic() + _SKIP_S

    @property
    def skips(self) -> bool:
        """Whether the next batch is to be thrown away: prepared too early, or one that a replayed one stood in for."""
        if self.stale:
            return True
        behind = self.is_stream and self.length is None and self.skipped < self.replayed
        return behind and time.monotonic() < self.skip_until_s

    def skip(self) -> None:
        """Count a batch that is thrown away."""
        self.stale = max(0, self.stale - 1)
        self.skipped += 1

    @property
    def steady_batches(self) -> int | None:
        """Batches of an epoch that come at the loader's own pace; None where its length is not known.

        When an epoch begins, the workers start (unless they persist) and fill the whole queue at once; the batches of
        that queue say nothing about how fast the loader delivers. Workers deliver in bursts of one batch each, so only
        whole bursts count. 0: an epoch is too short to have any, and its steps are all it has.
        """
        if self.length is None:
            return None
        if not self.workers:
            return self.length - 1
        # The last step of an epoch contains its end, and is left out too.
        return max(0, self.length - 1 - self.queued) // self.workers * self.workers

    @property
    def steady(self) -> bool:
        """Whether the batch that was delivered last is one by which a steady step can be told."""
        if self.steady_batches == 0 or self.keeps_queue:
            return True
        if self.replayed or not self.workers:
            return self.delivered > 1
        behind = self.prepared - self.queued
        return behind > 0 and (self.steady_batches is None or behind <= self.steady_batches)

    @property
    def full(self) -> bool:
        """Whether the epoch has delivered as many batches as its loader has."""
        return self.length is not None and self.delivered >= self.length


def length_of(sized: Any) -> int | None:
    """Batches of a loader's epoch, samples of a dataset or sampler; None where it does not say."""
    try:
        return len(sized)
    except Exception:
        return None  # it is the script's own code, which may never have been called


class Loaders:
    """All sources of batches in this rank, watched by patching the DataLoader classes."""

    def __init__(self, listener: LoaderListener, folder: str) -> None:
        self._listener = listener
        self._folder = folder
        self._keys = itertools.count()
        self._alike: dict[Any, list[int]] = {}
        self._wrapped: set[int] = set()
        self._sources: weakref.WeakKeyDictionary[Any, BatchSource] = weakref.WeakKeyDictionary()
        self._dispatched: weakref.WeakSet[Any] = weakref.WeakSet()  # loaders that a dispatching one reads from
        self._in_rank: WatchedFetch | None = None
        self._unpatch: list[Callable[[], None]] = []

    def watch(self) -> None:
        """Patch the DataLoader classes of this process."""
        loaders, advance = self, BaseDataLoaderIter.__next__

        def __next__(iterator: Any) -> Any:  # noqa: N807
            source = getattr(iterator, "_stallwise_source", None)
            if source is None:
                return advance(iterator)
            if source.workers == 0 and loaders._in_rank is not None:
                loaders._in_rank.log.loader = source.key
            return loaders._next(source, lambda: advance(iterator))

        self._watch_iteration(DataLoader)
        self._patch(BaseDataLoaderIter, "__next__", __next__)
        when_imported("accelerate.data_loader", self._watch_dispatching)
        # It has an __iter__ of its own; its iterators are torch's.
        stateful = "torchdata.stateful_dataloader.stateful_dataloader"
        when_imported(stateful, lambda module: self._watch_iteration(module.StatefulDataLoader))

    def _watch_iteration(self, kind: Any) -> None:
        loaders, iterate = self, kind.__iter__

        def __iter__(loader: Any) -> Any:  # noqa: N807
            return loaders._iterate(loader, iterate)

        self._patch(kind, "__iter__", __iter__)

    def release(self) -> None:
        """Undo the patches of DataLoader and its fetchers."""
        while self._unpatch:
            self._unpatch.pop()()
        unwatch_fetchers()

    def _patch(self, kind: Any, name: str, function: Callable[..., Any]) -> None:
        self._unpatch.append(functools.partial(setattr, kind, name, getattr(kind, name)))
        setattr(kind, name, function)

    def _watch_dispatching(self, module: Any) -> None:
        loaders, kind = self, module.DataLoaderDispatcher
        iterate = kind.__iter__

        def __iter__(loader: Any) -> Any:  # noqa: N807
            loaders._dispatched.add(loader.base_dataloader)
            source = loaders._source(loader)
            source.begin_epoch()
            return loaders._watched(source, iterate(loader))

        self._patch(kind, "__iter__", __iter__)

    def wrap(self, iterable: Iterable[Item]) -> Iterator[Item]:
        """Watch any iterable of batches (`stallwise.batches`)."""
        source = BatchSource(self._key(iterable), iterable)
        self._wrapped.add(source.key)
        try:
            yield from self._watched(source, iter(iterable))
        finally:
            self._wrapped.discard(source.key)

    def _watched(self, source: BatchSource, iterator: Iterator[Item]) -> Iterator[Item]:
        while True:
            try:
                batch = self._next(source, lambda: next(iterator))
            except StopIteration:
                return
            yield batch

    def _source(self, loader: Any) -> BatchSource:
        source = self._sources.get(loader)
        if source is None:
            source = self._sources[loader] = BatchSource(self._key(loader), loader)
        return source

    def _key(self, loader: Any) -> int:
        """A number for the source; a loader that is created again for every epoch is one source."""
        taken = {source.key for source in self._sources.values()} | self._wrapped
        kinds = (type(loader), type(getattr(loader, "dataset", None)))
        sizes = (getattr(loader, "batch_size", None), getattr(loader, "num_workers", None), length_of(loader))
        keys = self._alike.setdefault((kinds, sizes), [])
        free = next((key for key in keys if key not in taken), None)
        if free is None:
            keys.append(free := next(self._keys))
        return free

    def _iterate(self, loader: DataLoader[Any], iterate: Callable[[Any], Any]) -> Any:
        source = self._source(loader)
        source.begin_epoch()
        if source.workers == 0 and self._in_rank is None:
            self._in_rank = WatchedFetch(self._folder, source.key, -1)
            watch_fetchers(self._in_rank)
        start = time.monotonic()
        user_init = loader.worker_init_fn
        if source.workers:
            loader.worker_init_fn = WorkerInit(self._folder, source.key, user_init)
        try:
            iterator = iterate(loader)
        finally:
            loader.worker_init_fn = user_init
        # Some samplers and frameworks return iterators of their own; those are not ours to mark.
        if isinstance(iterator, BaseDataLoaderIter) and loader not in self._dispatched:
            iterator._stallwise_source = source  # type: ignore[attr-defined]
        source.keeps_queue = getattr(iterator, "_stallwise_keeps_queue", False)
        self._listener.iterator_created(source, start, time.monotonic())
        return iterator

    def _next(self, source: BatchSource, advance: Callable[[], Any]) -> Any:
        watched = not (self._listener.resting and source.delivered)
        start = time.monotonic() if watched else 0.0
        batch = self._listener.fetch_begins(source) if watched else None
        # The loader itself knows no better than its own end; a replayed batch must not come after it, nor may the
        # loader go on for as long as batches were replayed.
        if source.full and (source.replayed or batch is not None):
            self._listener.epoch_ended(source)
            raise StopIteration
        if batch is not None:
            source.replayed += 1
        else:
            try:
                while source.skips:
                    source.skip()
                    advance()
                    source.prepared += 1
                batch = advance()
                source.prepared += 1
            except StopIteration:
                source.end_epoch()
                self._listener.epoch_ended(source)
                raise
        source.delivered += 1
        if watched:
            self._listener.fetch_ended(source, batch, start, time.monotonic())
        return batch
