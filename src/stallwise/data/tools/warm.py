"""Filling a node's cache from a bucket before training: missing objects are fetched, on several threads.

Only as much is fetched as there is room for: an object that a full cache would drop again costs and gains nothing. It
may be interrupted at any moment; what has arrived by then is kept, and the next run continues from there.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stallwise.data.objects._fetch import Fetcher
from stallwise.data.objects.index import Index
from stallwise.data.objects.store import ObjectBucket
from stallwise.errors import InputError, ObjectError, StallwiseError
from stallwise.hardware.prices import StorePrices
from stallwise.sentences import Sentence

if TYPE_CHECKING:
    from stallwise.data.cache.cache import NodeCache

# This many failures in a row, with nothing fetched between them, mean that none will succeed.
GIVE_UP_AFTER = 20
_TICK_S = 0.1
_LEAVE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmProgress:
    """Progress of a warm-up."""

    objects: int
    of_objects: int
    bytes: int
    of_bytes: int
    failed: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailure:
    """An object that could not be fetched, and the reason."""

    name: str
    reason: Sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingObjects:
    """The objects of a bucket that a cache lacks, and for which of them it has room."""

    numbers: Sequence[int]
    """Numbers of the objects to fetch, in the order of the index."""
    bytes: int
    present: int
    no_room: int
    """Missing objects left out because the cache would not keep them."""
    no_room_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmResult:
    """Result of a warm-up. The field names are the keys of its JSON."""

    url: str
    objects: int
    bytes: int | None
    """None where the sizes are not known before objects are read."""
    present: int
    fetched: int
    fetched_bytes: int
    dropped: int
    """Objects fetched and not kept, because the cache was filled meanwhile."""
    no_room: int
    no_room_bytes: int
    failed: tuple[FetchFailure, ...]
    left: int
    """Objects not tried, because the warm-up was stopped."""
    requests: int
    lists: int
    retries: int
    seconds: float
    usd: float | None
    interrupted: bool
    stopped_because: Sentence | None


def missing_objects(
    index: Index, cache: "NodeCache", progress: Callable[[int], None] = lambda _: None
) -> MissingObjects:
    """Compare the index with the cache; nothing is fetched."""
    missing, present_bytes = [], 0
    for number in range(len(index)):
        if cache.contains(index.key(number)):
            present_bytes += cache.charge_bytes(_size(index, number))
        else:
            missing.append(number)
        if number % 1000 == 0:
            progress(number)
    progress(len(index))
    stat = cache.stat()
    # Under a policy that evicts, other data makes room; this bucket's objects must not evict each other.
    room = stat.limit_bytes - (stat.used_bytes if cache.policy not in ("lru", "fifo") else present_bytes)
    chosen, bytes_ = [], 0
    for number in missing:
        charge = cache.charge_bytes(_size(index, number))
        if charge <= room:
            room -= charge
            chosen.append(number)
            bytes_ += _size(index, number)
    taken = set(chosen)
    return MissingObjects(
        numbers=chosen,
        bytes=bytes_,
        present=len(index) - len(missing),
        no_room=len(missing) - len(chosen),
        no_room_bytes=sum(_size(index, number) for number in missing if number not in taken),
    )


def check_budget(
    need: MissingObjects, lists: int, prices: StorePrices | None, budget_usd: float | None
) -> float | None:
    """Return what fetching all will cost at least, in dollars; `InputError` where that exceeds the budget."""
    cost = None if prices is None else prices.usd(len(need.numbers), lists, need.bytes)
    if budget_usd is None:
        return cost
    if cost is None:
        raise InputError("The store's prices are not known, so a budget cannot be kept.", fields=("budget",))
    if cost > budget_usd:
        raise InputError(
            f"Fetching {len(need.numbers):,} objects costs {cost:.4f} dollars, more than the budget of {budget_usd:g}. "
            "Raise the budget, or take fewer objects (a pattern, a smaller cache).",
            fields=("budget", "match", "limit"),
        )
    return cost


class CacheWarmer:
    """Fetches missing objects into a cache on several threads."""

    def __init__(
        self,
        bucket: ObjectBucket,
        index: Index,
        cache: "NodeCache",
        need: MissingObjects,
        *,
        lists: int = 0,
        concurrency: int = 32,
        retries: int = 5,
        prices: StorePrices | None = None,
        budget_usd: float | None = None,
    ) -> None:
        if concurrency < 1:
            raise InputError(f"The concurrency must be at least 1, not {concurrency}.", fields=("concurrency",))
        self._bucket, self._index, self._cache, self._need = bucket, index, cache, need
        self._fetcher, self._threads = Fetcher(bucket, retries), concurrency
        self._lists, self._prices, self._budget_usd = lists, prices, budget_usd
        self._todo: Iterator[int] = iter(need.numbers)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._why: Sentence | None = None
        self._done = self._fetched = self._fetched_bytes = self._dropped = 0
        self._requests = self._retries = self._in_a_row = 0
        self._failed: list[FetchFailure] = []
        self._broken: BaseException | None = None

    def run(self, progress: Callable[[WarmProgress], None] = lambda _: None) -> WarmResult:
        """Fetch until all objects are in the cache, the budget is spent, or Ctrl-C."""
        start = time.monotonic()
        threads = [
            threading.Thread(target=self._work, name="stallwise-warm", daemon=True)
            for _ in range(min(self._threads, len(self._need.numbers)))
        ]
        interrupted = False
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(_TICK_S)
                    progress(self._now(start))
        except KeyboardInterrupt:
            interrupted = True
            self._stop_threads([thread for thread in threads if thread.ident is not None])
        if self._broken is not None:
            raise self._broken
        progress(self._now(start))
        return self._result(time.monotonic() - start, interrupted=interrupted)

    def _stop_threads(self, threads: Sequence[threading.Thread]) -> None:
        """Stop the threads and wait a few seconds for fetches in progress."""
        self._stop.set()
        until = time.monotonic() + _LEAVE_S
        try:
            for thread in threads:
                thread.join(max(0.0, until - time.monotonic()))
        except KeyboardInterrupt:
            return

    def _work(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                number = next(self._todo, None)
            if number is None:
                return
            try:
                self._fetch(number)
            except ObjectError as error:
                self._note_failure(number, error)
            except BaseException as error:
                self._broken = error
                self._stop.set()

    def _fetch(self, number: int) -> None:
        key, ref = self._index.key(number), self._index[number]
        tries = size = 0

        def fetch() -> bytes:
            nonlocal tries, size
            fetched = self._fetcher.get(ref, self._stop.is_set)
            tries, size = fetched.tries, len(fetched.data)
            return fetched.data

        self._cache.load(key, ref.size_bytes or 0, fetch)
        kept = self._cache.contains(key)
        with self._lock:
            self._done += 1
            self._requests += tries
            self._retries += max(0, tries - 1)
            self._fetched += tries > 0
            self._fetched_bytes += size
            self._dropped += not kept
            self._in_a_row = 0
        if not kept:
            self._end(Sentence("cache.full", "The cache is full: it does not keep what is fetched."))
        self._check_spent()

    def _note_failure(self, number: int, error: StallwiseError) -> None:
        if self._stop.is_set():
            return
        with self._lock:
            self._done += 1
            self._requests += getattr(error, "tries", 1)
            self._in_a_row += 1
            self._failed.append(
                FetchFailure(name=self._index[number].name, reason=Sentence("object.unreadable", str(error)))
            )
        if self._in_a_row >= GIVE_UP_AFTER:
            self._end(Sentence("objects.unreadable", f"{GIVE_UP_AFTER} objects in a row could not be read."))

    def _check_spent(self) -> None:
        if self._budget_usd is not None:
            spent = self._usd()
            if spent is not None and spent > self._budget_usd:
                words = f"The budget of {self._budget_usd:g} dollars is spent."
                self._end(Sentence("budget.spent", words, budget_usd=self._budget_usd))

    def _end(self, why: Sentence) -> None:
        with self._lock:
            self._why = self._why or why
        self._stop.set()

    def _usd(self) -> float | None:
        if self._prices is None:
            return None
        return self._prices.usd(self._requests, self._lists, self._fetched_bytes)

    def _now(self, start: float) -> WarmProgress:
        return WarmProgress(
            objects=self._done,
            of_objects=len(self._need.numbers),
            bytes=self._fetched_bytes,
            of_bytes=self._need.bytes,
            failed=len(self._failed),
            seconds=time.monotonic() - start,
        )

    def _result(self, seconds: float, *, interrupted: bool) -> WarmResult:
        with self._lock:
            return WarmResult(
                url=self._bucket.shown,
                objects=len(self._index),
                bytes=self._index.total_bytes if (self._index.sizes_bytes >= 0).all() else None,
                present=self._need.present,
                fetched=self._fetched,
                fetched_bytes=self._fetched_bytes,
                dropped=self._dropped,
                no_room=self._need.no_room,
                no_room_bytes=self._need.no_room_bytes,
                failed=tuple(sorted(self._failed, key=lambda one: one.name)),
                left=len(self._need.numbers) - self._done,
                requests=self._requests,
                lists=self._lists,
                retries=self._retries,
                seconds=seconds,
                usd=self._usd(),
                interrupted=interrupted,
                stopped_because=self._why,
            )


def _size(index: Index, number: int) -> int:
    return max(0, int(index.sizes_bytes[number]))
