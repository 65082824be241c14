"""Measuring a bucket from this machine: the time of a list and a GET, and the gain of more concurrent requests.

1. Pages of the listing are read: as many as a quarter of the time allows, at most ten.
2. Objects are fetched one after the other; each GET is timed to its first byte and to its last.
3. With 1, 2, 4, … concurrent requests, objects are fetched for a second or two each, until more bring less than 5 %
   more objects (the rule by which a dataset adapts itself, `prefetch.pace`) twice in a row. Every thread's first
   request opens a connection and does not count.

Objects are taken in a random order, so that a store that caches what it sent lately is not favoured more than by a
shuffled epoch. Nothing is written.
"""

import itertools
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stallwise.data.objects._fetch import Fetcher
from stallwise.data.objects.index import ObjectRef
from stallwise.data.objects.store import ObjectBucket
from stallwise.data.prefetch._pace import GAIN, ROUNDS
from stallwise.errors import InputError, ObjectError, StallwiseError
from stallwise.hardware.prices import StorePrices

MOST_AT_ONCE = 256
_PAGE = 1000
_MOST_PAGES = 10
_SINGLES = (8, 64)  # at least, at most
_LEVEL_S = 1.0
_SHORTEST_LEVEL_S = 0.4
_RETRIES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingTimes:
    """Time of listing. `whole`: the end of the bucket was reached."""

    objects: int
    pages: int
    seconds: float
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleRequestTimes:
    """Times of one GET at a time: to the first byte, to the last, and of the first GET, which connects."""

    requests: int
    connect_s: float
    first_byte_p50_s: float
    first_byte_p95_s: float
    whole_p50_s: float
    whole_p95_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyLevel:
    """Rates and latencies with `concurrency` concurrent requests."""

    concurrency: int
    requests: int
    objects_per_s: float
    bytes_per_s: float
    p50_s: float
    p95_s: float
    cpu_s_per_object: float
    cores: float
    """CPU time of this process per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """Result of a measurement. The field names are the keys of its JSON."""

    url: str
    listing: ListingTimes | None
    object_bytes: float
    single: SingleRequestTimes
    levels: tuple[ConcurrencyLevel, ...]
    best: ConcurrencyLevel
    latency_s: float
    """Time of one GET without the transfer time of its bytes: the round trip and the connection's slow start."""
    link_bytes_per_s: float
    """The highest rate measured."""
    grows: bool
    """Whether the rate still grew when time, budget or concurrency ran out."""
    bound: str
    requests: int
    retries: int
    lists: int
    fetched_bytes: int
    failed: int
    seconds: float
    usd: float | None


@dataclass(slots=True)
class _Totals:
    """Requests, bytes and failures of the whole measurement."""

    requests: int = 0
    retries: int = 0
    bytes: int = 0
    failed: int = 0
    last_error: StallwiseError | None = None


class _Arrival(NamedTuple):
    """One object: when it arrived, how long it took, its bytes."""

    at_s: float
    seconds: float
    size: int


class _Window:
    """The measured interval: from when every thread has its connection until each has fetched a few objects.

    As many requests are in progress at its start as at its end, so that counting the arrivals within it is fair.
    """

    def __init__(self, threads: int, began_s: float, end_s: float) -> None:
        self.began_s, self.until_s = began_s, end_s
        self.ready_s: float | None = None
        self.arrivals: list[_Arrival] = []
        self._connecting = threads

    def add(self, one: _Arrival, *, first: bool) -> None:
        self.arrivals.append(one)
        self._connecting -= first
        if self.ready_s is None and self._connecting == 0:
            self.ready_s = one.at_s
            self.until_s = min(self.until_s, one.at_s + max(_LEVEL_S, ROUNDS * (one.at_s - self.began_s)))

    def counted(self) -> list[_Arrival]:
        return [one for one in self.arrivals if self.ready_s is not None and self.ready_s < one.at_s <= self.until_s]


class StoreBenchmark:
    """Measures a bucket within `max_s` seconds and `budget_usd` dollars."""

    def __init__(
        self,
        bucket: ObjectBucket,
        *,
        names: Sequence[str] | None = None,
        prices: StorePrices | None = None,
        max_s: float = 30.0,
        budget_usd: float | None = None,
        most: int = MOST_AT_ONCE,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        if max_s < 1 or most < 1:
            raise InputError(f"A measurement needs at least 1 s and 1 concurrent request, not {max_s:g} and {most}.")
        if budget_usd is not None and (prices is None or prices.usd(1, 1, 1) is None):
            raise InputError("The store's prices are not known, so a budget cannot be kept.", fields=("budget",))
        self._bucket, self._names, self._prices, self._most = bucket, names, prices, most
        self._max_s, self._budget_usd, self._progress = max_s, budget_usd, progress
        self._fetcher = Fetcher(bucket, _RETRIES)
        self._totals, self._lists = _Totals(), 0
        self._lock = threading.Lock()

    def run(self) -> BenchResult:
        """Measure listing, single requests and increasing concurrency."""
        self._start = time.monotonic()
        refs, listing = self._list() if self._names is None else ([ObjectRef(name) for name in self._names], None)
        if not refs:
            raise InputError(f"{self._bucket.shown} holds nothing to read: there are no objects under it.")
        order = _endless(refs)
        single, sizes = self._singles(order)
        levels, grows = self._levels(order, single)
        most = max(level.objects_per_s for level in levels)
        # The lowest concurrency within the gain that would have counted.
        best = next(level for level in levels if GAIN * level.objects_per_s >= most)
        return BenchResult(
            url=self._bucket.shown,
            listing=listing,
            object_bytes=statistics.fmean(sizes),
            single=single,
            levels=tuple(levels),
            best=best,
            latency_s=max(single.first_byte_p50_s, single.whole_p50_s - statistics.fmean(sizes) / best.bytes_per_s),
            link_bytes_per_s=best.bytes_per_s,
            grows=grows,
            bound=_bound(best, grows=grows),
            requests=self._totals.requests,
            retries=self._totals.retries,
            lists=self._lists,
            fetched_bytes=self._totals.bytes,
            failed=self._totals.failed,
            seconds=time.monotonic() - self._start,
            usd=self._usd(),
        )

    def _list(self) -> tuple[list[ObjectRef], ListingTimes]:
        import obstore

        refs: list[ObjectRef] = []
        start, whole = time.monotonic(), True
        try:
            for page in obstore.list(self._fetcher.store(), chunk_size=_PAGE):
                self._lists += 1
                refs += [ObjectRef(m["path"], m["size"], m["e_tag"]) for m in page if not m["path"].endswith("/")]
                if self._lists >= _MOST_PAGES or time.monotonic() - start > self._max_s / 4:
                    whole = False
                    break
        except StallwiseError:
            raise
        except Exception as error:
            reason = self._bucket.error_text(error)
            raise InputError(
                f"{self._bucket.shown} cannot be listed: {reason} (A store that cannot list needs the objects' names.)",
                fields=("keys",),
            ) from None
        pages = max(self._lists, 1)
        return refs, ListingTimes(objects=len(refs), pages=pages, seconds=time.monotonic() - start, whole=whole)

    def _singles(self, order: Iterator[ObjectRef]) -> tuple[SingleRequestTimes, list[int]]:
        firsts: list[float] = []
        wholes: list[float] = []
        sizes: list[int] = []
        until = time.monotonic() + self._max_s / 6
        connect_s = self._timed(next(order))[1]
        least, most = _SINGLES
        while len(firsts) < most and (len(firsts) < least or time.monotonic() < until) and self._may_continue():
            first_s, whole_s, size = self._timed(next(order))
            firsts.append(first_s)
            wholes.append(whole_s)
            sizes.append(size)
        if not firsts:
            raise InputError("Time or budget ran out before one object was measured.", fields=("max_time", "budget"))
        return SingleRequestTimes(
            requests=len(firsts),
            connect_s=connect_s,
            first_byte_p50_s=_quantile(firsts, 0.5),
            first_byte_p95_s=_quantile(firsts, 0.95),
            whole_p50_s=_quantile(wholes, 0.5),
            whole_p95_s=_quantile(wholes, 0.95),
        ), sizes

    def _timed(self, ref: ObjectRef) -> tuple[float, float, int]:
        """Return the seconds to the first and last byte, and the bytes. Without retries: those would be timed."""
        import obstore

        start = time.monotonic()
        try:
            reply = obstore.get(self._fetcher.store(), ref.name)
            first_s = time.monotonic() - start
            size = len(reply.bytes())
        except StallwiseError:
            raise
        except Exception:
            # Again with retries and a readable error.
            again = self._fetcher.get(ref)
            first_s, size = time.monotonic() - start, len(again.data)
            self._totals.requests += again.tries
        self._totals.requests += 1
        self._totals.bytes += size
        return first_s, time.monotonic() - start, size

    def _levels(self, order: Iterator[ObjectRef], single: SingleRequestTimes) -> tuple[list[ConcurrencyLevel], bool]:
        levels: list[ConcurrencyLevel] = []
        concurrency = 1
        while True:
            self._progress(concurrency)
            level = self._level(order, concurrency, single)
            if level is None:
                break
            levels.append(level)
            if _has_levelled_off([one.objects_per_s for one in levels]):
                return levels, False
            if concurrency >= self._most:
                return levels, True
            concurrency = min(2 * concurrency, self._most)
        if not levels:
            raise self._totals.last_error or InputError(
                "Time or budget ran out before anything was measured.", fields=("max_time", "budget")
            )
        return levels, True

    def _level(
        self, order: Iterator[ObjectRef], concurrency: int, single: SingleRequestTimes
    ) -> ConcurrencyLevel | None:
        """Measure one level; None where no time or budget is left for it."""
        left_s = self._max_s - (time.monotonic() - self._start)
        if left_s < max(_SHORTEST_LEVEL_S, 3 * single.whole_p50_s) or not self._may_continue():
            return None
        window = _Window(concurrency, time.monotonic(), time.monotonic() + left_s)
        cpu = time.process_time()
        threads = [threading.Thread(target=self._work, args=(order, window), daemon=True) for _ in range(concurrency)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cpu_s, wall_s = time.process_time() - cpu, time.monotonic() - window.began_s
        counted = window.counted()
        if len(counted) < 2 or window.ready_s is None:
            return None
        span_s = min(window.until_s, time.monotonic()) - window.ready_s
        return ConcurrencyLevel(
            concurrency=concurrency,
            requests=len(window.arrivals),
            objects_per_s=len(counted) / span_s,
            bytes_per_s=sum(one.size for one in counted) / span_s,
            p50_s=_quantile([one.seconds for one in counted], 0.5),
            p95_s=_quantile([one.seconds for one in counted], 0.95),
            cpu_s_per_object=cpu_s / len(window.arrivals),
            cores=cpu_s / wall_s,
        )

    def _work(self, order: Iterator[ObjectRef], window: "_Window") -> None:
        first = True
        while time.monotonic() < window.until_s and self._may_continue():
            with self._lock:
                ref = next(order)
            began_s = time.monotonic()
            size = self._get(ref)
            if size is None:
                continue
            with self._lock:
                window.add(_Arrival(time.monotonic(), time.monotonic() - began_s, size), first=first)
            first = False

    def _get(self, ref: ObjectRef) -> int | None:
        """Fetch an object and return its size in bytes; None where it failed."""
        try:
            fetched = self._fetcher.get(ref)
        except ObjectError as error:
            with self._lock:
                self._totals.requests += getattr(error, "tries", 1)
                self._totals.failed += 1
                self._totals.last_error = error
            return None
        with self._lock:
            self._totals.requests += fetched.tries
            self._totals.retries += fetched.tries - 1
            self._totals.bytes += len(fetched.data)
        return len(fetched.data)

    def _may_continue(self) -> bool:
        if time.monotonic() - self._start > self._max_s or self._totals.failed > 100:
            return False
        spent = self._usd()
        return self._budget_usd is None or spent is None or spent < self._budget_usd

    def _usd(self) -> float | None:
        if self._prices is None:
            return None
        return self._prices.usd(self._totals.requests, self._lists, self._totals.bytes)


def _endless(refs: Sequence[ObjectRef]) -> Iterator[ObjectRef]:
    order = list(refs)
    random.Random(0).shuffle(order)  # noqa: S311 - an order, no secret
    return itertools.cycle(order)


def _has_levelled_off(rates: Sequence[float]) -> bool:
    return len(rates) > 2 and max(rates[-2:]) < GAIN * max(rates[:-2])


def _quantile(values: Sequence[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(fraction * (len(ordered) - 1)))]


def _bound(best: ConcurrencyLevel, *, grows: bool) -> str:
    """Return what limits the rate."""
    cores = os.cpu_count() or 1
    if best.cores > 0.8 * min(cores, max(1, best.concurrency)):
        return "processor"
    return "not reached" if grows else "link or store"
