"""Watching DataLoaders: every fetch is timed, and in replay phases answered from the ring.

`DataLoader.__iter__` and `_BaseDataLoaderIter.__next__` are patched on the class, so the script keeps the objects
it made, of the types it expects. An epoch keeps its length in replay phases: the loop ends after as many batches
as the loader would have given, so that progress bars and learning-rate schedules hold.

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
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stallwise.record.on_import import when_imported
from stallwise.record.worker import WatchedFetch, WorkerStart, unwatch_fetchers, watch_fetchers

Item = TypeVar("Item")


class Listener(Protocol):
    """What the recorder wants to hear of loaders."""

    def wants(self, source: "Source") -> Any | None:
        """A fetch begins. A batch to hand out instead of the real one, or None."""

    def fetched(self, source: "Source", batch: Any, start_s: float, end_s: float) -> None:
        """A fetch ended with this batch."""

    def ended(self, source: "Source") -> None:
        """The source has no more batches: an epoch is over."""

    def started(self, source: "Source", start_s: float, end_s: float) -> None:
        """An iterator over the source was made, workers included."""


class Source:
    """Something batches come from: a DataLoader, or an iterable the script wrapped in `stallwise.batches`."""

    def __init__(self, key: int, loader: Any) -> None:
        self.key = key
        self.workers: int = getattr(loader, "num_workers", 0) or 0
        depth = getattr(loader, "prefetch_factor", None)
        self.queued: int = self.workers * (depth if depth is not None else 2)
        self.batch_size: int | None = getattr(loader, "batch_size", None)
        self.length = length_of(loader)
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Count from the start."""
        self.given = 0
        self.replayed = 0
        self.stale = 0

    def drop_queue(self) -> None:
        """Throw away what the workers prepared while batches were replayed, before the next real fetch.

        A loader slower than the training would else live on that head start for long: q batches of it last
        q / (1 - consume / produce) steps, not q.
        """
        self.stale = self.queued

    @property
    def full(self) -> bool:
        """Whether the epoch has given as many batches as its loader has."""
        return self.length is not None and self.given >= self.length


def length_of(loader: Any) -> int | None:
    """Batches of an epoch, where the loader says so."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


class Loaders:
    """All sources of this rank."""

    def __init__(self, listener: Listener, folder: str) -> None:
        self._listener = listener
        self._folder = folder
        self._keys = itertools.count()
        self._alike: dict[Any, list[int]] = {}
        self._wrapped: set[int] = set()
        self._sources: weakref.WeakKeyDictionary[Any, Source] = weakref.WeakKeyDictionary()
        self._dispatched: weakref.WeakSet[Any] = weakref.WeakSet()  # loaders that a dispatching one reads from
        self._own: WatchedFetch | None = None
        self._unpatch: list[Callable[[], None]] = []

    def watch(self) -> None:
        """Patch the DataLoader classes of this process."""
        loaders, iterate, advance = self, DataLoader.__iter__, _BaseDataLoaderIter.__next__

        def __iter__(loader: Any) -> Any:  # noqa: N807
            return loaders._iterate(loader, iterate)

        def __next__(iterator: Any) -> Any:  # noqa: N807
            source = getattr(iterator, "_stallwise_source", None)
            if source is None:
                return advance(iterator)
            if source.workers == 0 and loaders._own is not None:
                loaders._own.account.loader = source.key
            return loaders._next(source, lambda: advance(iterator))

        self._patch(DataLoader, "__iter__", __iter__)
        self._patch(_BaseDataLoaderIter, "__next__", __next__)
        when_imported("accelerate.data_loader", self._watch_dispatching)

    def release(self) -> None:
        """Stop watching: loaders are again what they were."""
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
        source = Source(self._key(iterable), iterable)
        self._wrapped.add(source.key)
        try:
            yield from self._watched(source, iter(iterable))
        finally:
            self._wrapped.discard(source.key)

    def _watched(self, source: Source, iterator: Iterator[Item]) -> Iterator[Item]:
        while True:
            try:
                batch = self._next(source, lambda: next(iterator))
            except StopIteration:
                return
            yield batch

    def _source(self, loader: Any) -> Source:
        source = self._sources.get(loader)
        if source is None:
            source = self._sources[loader] = Source(self._key(loader), loader)
        return source

    def _key(self, loader: Any) -> int:
        """A number for the source. A loader made anew for every epoch is one source: it gets that of the one before."""
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
        if source.workers == 0 and self._own is None:
            self._own = WatchedFetch(self._folder, source.key, -1)
            watch_fetchers(self._own)
        start = time.monotonic()
        kept = loader.worker_init_fn
        if source.workers:
            loader.worker_init_fn = WorkerStart(self._folder, source.key, kept)
        try:
            iterator = iterate(loader)
        finally:
            loader.worker_init_fn = kept
        # Some samplers and frameworks return iterators of their own; those are not ours to mark.
        if isinstance(iterator, _BaseDataLoaderIter) and loader not in self._dispatched:
            iterator._stallwise_source = source  # type: ignore[attr-defined]
        self._listener.started(source, start, time.monotonic())
        return iterator

    def _next(self, source: Source, advance: Callable[[], Any]) -> Any:
        start = time.monotonic()
        batch = self._listener.wants(source)
        # The loader itself knows no better than its own end; a replayed batch must not come after it, nor may the
        # loader go on for as long as batches were replayed.
        if source.full and (source.replayed or batch is not None):
            self._listener.ended(source)
            raise StopIteration
        if batch is not None:
            source.replayed += 1
        else:
            try:
                while source.stale:
                    source.stale -= 1
                    advance()
                batch = advance()
            except StopIteration:
                self._listener.ended(source)
                raise
        source.given += 1
        self._listener.fetched(source, batch, start, time.monotonic())
        return batch
