"""Loading in one process: follow the announced order, prefetch, decode, and account for the cost."""

import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.util import Finalize
from typing import Any

from torch.utils.data import get_worker_info

from stallwise.data._accounts import Account, Accounts, load_of
from stallwise.data.cache.cache import NodeCache
from stallwise.data.objects._fetch import FetchedObject, RangeCoalescer
from stallwise.data.objects.index import Index, ObjectRef
from stallwise.data.objects.store import ObjectBucket
from stallwise.data.peers._protocol import ETagCheck
from stallwise.data.prefetch._ahead import PrefetchedObject, Prefetcher
from stallwise.data.prefetch._pace import DeliMode, FetchPace, depth
from stallwise.data.prefetch.order import OrderChannel, OrderFollower
from stallwise.errors import ObjectError, StallwiseError
from stallwise.hardware.prices import StorePrices
from stallwise.record.observe.worker import LoadLog, collecting_folder

# Assumed size of an object that no listing gave, until one has been read.
_USUAL_BYTES = 1 << 20


@dataclass(frozen=True)
class LoadingSettings:
    """The settings of a dataset that each of its processes needs."""

    decode: Callable[[bytes, str], Any]
    cache: NodeCache | None
    lookahead_bytes: int
    concurrency: int
    patience_s: float
    """Limit in seconds for one object, all tries together: beyond it, reading hangs."""
    hedge: bool
    skip: bool
    prices: StorePrices | None
    budget_usd: float | None
    importance: Callable[[int], float] | None = None
    """Weight of a sample, by which a cache of the policy *importance* ranks it."""


_Route = tuple[OrderFollower, DeliMode | None]


class ProcessLoader:
    """The connections, threads and counts of one process of a dataset; created in that process."""

    def __init__(
        self,
        index: Index,
        bucket: ObjectBucket,
        read: Callable[[ObjectRef], FetchedObject],
        settings: LoadingSettings,
        accounts: Accounts,
        channels: Sequence[tuple[OrderChannel, DeliMode | None]],
    ) -> None:
        self.pid = os.getpid()
        self._index, self._bucket, self._settings, self._accounts = index, bucket, settings, accounts
        self._read = read if index.starts is None else RangeCoalescer(read).get
        info = get_worker_info()
        self._worker, workers = (-1, 1) if info is None else (info.id, info.num_workers)
        self._routes = [(OrderFollower(channel, max(self._worker, 0), workers), mode) for channel, mode in channels]
        for follower, _ in self._routes:
            # The rank itself lives on into the next epoch, and so does the node's cache.
            follower.crosses = info is None or settings.cache is not None
        self._route = 0
        self._workers = workers
        self._usual_bytes = index.total_bytes // max(len(index), 1) or _USUAL_BYTES
        self._most_ahead = max(1, settings.lookahead_bytes // workers // self._usual_bytes)
        pace = FetchPace(most=max(1, settings.concurrency // workers))
        self._prefetcher = Prefetcher(
            self._load,
            self._fetch,
            self._size_bytes,
            settings.lookahead_bytes // workers,
            pace,
            patience_s=settings.patience_s,
            hedge=settings.hedge,
        )
        self._etags = ETagCheck()
        self._announced: set[int] = set()
        self._now = Account()  # of the batch in work
        self._requested = Account()  # by all threads since the batch before
        self._lock = threading.Lock()
        self._taken_per_s = 0.0
        self._last_s = 0.0
        self._log: LoadLog | None = None
        if info is not None:
            # Counts what a worker fetched after its last batch.
            Finalize(None, lambda: accounts.add(self.requested()), exitpriority=1)
        self._log_folder: str | None = None

    def load(self, numbers: list[int], *, whole: bool) -> list[Any]:
        """Return the decoded samples of a `whole` batch, or of one sample; fewer with `skip` where some failed."""
        start_s = time.monotonic()
        queued_s = self._look_ahead(numbers, start_s, whole=whole)
        samples = []
        for number in numbers:
            sample = self._sample(number)
            if sample is not _LEFT_OUT:
                samples.append(sample)
        self._close(start_s, len(numbers), queued_s)
        if not samples and numbers and whole:
            raise ObjectError(f"None of the {len(numbers)} samples of a batch could be read or decoded.")
        return samples

    def _sample(self, number: int) -> Any:
        ref_name, decoding_s = self._index[number].name, 0.0
        try:
            loaded, waited_s = self._cached(number) or self._prefetcher.take(number)
            self._count(loaded, waited_s)
            decoding_s = time.monotonic()
            return self._settings.decode(loaded.data, ref_name)
        except Exception as error:
            # Decoders raise anything; an error of the set-up, not of the object, is never skipped.
            if not self._settings.skip or not (decoding_s or isinstance(error, ObjectError)):
                if decoding_s:
                    error.add_note(f"(while decoding {ref_name!a} of {self._bucket.shown})")
                raise
            self._now.skipped += 1
            warnings.warn(f"sample {number} is left out: {error}", stacklevel=2)
            return _LEFT_OUT
        finally:
            if decoding_s:
                self._now.decode_s += time.monotonic() - decoding_s

    def _cached(self, number: int) -> tuple[PrefetchedObject, float] | None:
        """Read from the node's cache on this thread: switching threads would cost more than the read."""
        if self._settings.cache is None or self._prefetcher.expects(number):
            return None
        start_s = time.monotonic()
        data = self._settings.cache.read(self._index.key(number), self._next_use_s(number))
        seconds = time.monotonic() - start_s
        return None if data is None else (PrefetchedObject(data, "cache", seconds), seconds)

    def _count(self, loaded: PrefetchedObject, waited_s: float) -> None:
        now = self._now
        now.samples += 1
        now.bytes += len(loaded.data)
        now.hits += loaded.source == "cache"
        now.shared += loaded.source == "waited"
        now.peer_hits += loaded.source == "peer"
        now.peer_bytes += len(loaded.data) if loaded.source == "peer" else 0
        if loaded.source == "cache":
            now.cache_s += waited_s
        else:
            now.network_s += waited_s
            now.waits += waited_s > 0

    # Prefetching.

    def prefetch(self, numbers: Sequence[int]) -> None:
        """Start to load samples that will be requested soon."""
        self._announced.update(numbers)
        self._expect(numbers)

    def _look_ahead(self, numbers: list[int], start_s: float, *, whole: bool) -> float | None:
        """Follow the order and start to load what comes next. Return the batch's seconds in the queue, if known."""
        announced, route = self._follow(numbers, whole=whole)
        self._expect([number for number in numbers[announced:] if number not in self._announced])
        self._announced.difference_update(numbers)
        if route is None:
            return None
        follower, mode = route
        if mode is not None:
            self._expect(follower.ahead(mode.more(follower.outstanding)))
        else:
            concurrency = self._prefetcher.pace.concurrency
            target = depth(concurrency, len(numbers), self._taken_per_s)
            more = max(0, min(target, self._most_ahead) - follower.outstanding)
            # Past the epoch's end only as much as keeps the link busy until the next begins: this may be the last.
            self._expect(follower.ahead(more, past=max(concurrency, len(numbers))))
        return follower.waited_s(len(numbers), start_s) if whole else None

    def _follow(self, numbers: list[int], *, whole: bool) -> tuple[int, _Route | None]:
        """Return how many of the numbers are loading already, and the order they come from.

        That is the order followed so far or another sampler's over the same dataset.
        """
        if not self._routes:
            return 0, None
        follower, mode = self._routes[self._route]
        announced = follower.follow(numbers, whole=whole)
        self._prefetcher.drop(follower.skipped())
        if announced:
            return announced, (follower, mode)
        self._prefetcher.forget()
        others = [number for number in range(len(self._routes)) if number != self._route]
        for number in others:
            self._routes[number][0].follow(numbers, whole=whole)
        fitting = [number for number in (self._route, *others) if self._routes[number][0].is_located]
        if fitting:
            self._route = max(fitting, key=lambda number: self._routes[number][0].epoch_began_ns)
            return 0, self._routes[self._route]
        return 0, None

    def _expect(self, numbers: Sequence[int]) -> None:
        """Start to load them, except those in the node's cache, which are read when they are requested."""
        cache = self._settings.cache
        self._prefetcher.expect(n for n in numbers if cache is None or not cache.contains(self._index.key(n)))

    # Loading one object, on any thread.

    def _load(self, number: int) -> PrefetchedObject:
        cache, ref = self._settings.cache, self._index[number]
        if cache is None:
            return self._fetch(number)
        start_s = time.monotonic()
        kept = cache.load(
            self._index.key(number),
            ref.size_bytes or 0,
            lambda: self._fetch(number).data,
            self._next_use_s(number),
            # An ETag is the whole object's.
            fits=lambda data: ref.start is not None or self._etags.fits(ref.version, data),
        )
        return PrefetchedObject(kept.data, kept.source, time.monotonic() - start_s)

    def _fetch(self, number: int) -> PrefetchedObject:
        try:
            fetched = self._read(self._index[number])
        except ObjectError as error:
            self._requests(error.tries, 0)
            raise
        self._requests(fetched.tries, len(fetched.data) if fetched.read_bytes is None else fetched.read_bytes)
        if self._index.starts is None:
            self._etags.learn(self._index[number].version, fetched.data)
        return PrefetchedObject(fetched.data, "store", fetched.seconds)

    def _requests(self, tries: int, fetched_bytes: int) -> None:
        with self._lock:
            self._requested.requests += tries
            self._requested.retries += max(0, tries - 1)
            self._requested.fetched_bytes += fetched_bytes
            if self._index.total_bytes == 0 and fetched_bytes:
                self._usual_bytes = fetched_bytes

    def _size_bytes(self, number: int) -> int:
        size = int(self._index.sizes_bytes[number])
        return size if size >= 0 else self._usual_bytes

    def _next_use_s(self, number: int) -> float | None:
        """Estimate when (`time.time()`) this node uses the sample again; or return its rank by importance."""
        if self._settings.importance is not None:
            return -self._settings.importance(number)
        if not self._routes or self._taken_per_s <= 0:
            return None
        positions = self._routes[self._route][0].used_again(number)
        return None if positions is None else time.time() + positions / (self._taken_per_s * self._workers)

    # The account.

    def requested(self) -> Account:
        """Return the requests to the store since the last batch."""
        with self._lock:
            return self._requested + Account()

    def _close(self, start_s: float, count: int, queued_s: float | None) -> None:
        """Add the batch to the account and the run record, and update the rate at which samples are taken."""
        with self._lock:
            now, self._requested = self._now + self._requested, Account()
        self._now = Account()
        now.queue_s = queued_s or 0.0
        now.hedged, self._prefetcher.hedged = self._prefetcher.hedged, 0
        self._accounts.add(now)
        end_s = time.monotonic()
        # Without the wait for the store: the rate if data were always ready.
        busy_s = max(end_s - (self._last_s or start_s) - now.network_s, 1e-6)
        self._taken_per_s += (count / busy_s - self._taken_per_s) * (0.2 if self._taken_per_s else 1.0)
        self._last_s = end_s
        self._record(start_s, now, queued_s)
        self._check_budget()

    def _record(self, start_s: float, now: Account, queued_s: float | None) -> None:
        folder = collecting_folder()
        if folder is None:
            return
        if self._log is None or folder != self._log_folder:
            self._log, self._log_folder = LoadLog(folder, self._facts()), folder
        now.queue_s = -1.0 if queued_s is None else queued_s
        self._log.add(load_of(self._worker, start_s, now))

    def _facts(self) -> str:
        """Return the facts of the bucket for the run record, as JSON without secrets."""
        settings, prices, cache = self._settings, self._settings.prices, self._settings.cache
        return json.dumps(
            {
                "url": self._bucket.shown,
                "objects": len(self._index),
                "bytes": self._index.total_bytes,
                "lists": int(self._accounts.total().lists),
                "get_usd": None if prices is None else prices.get_usd,
                "list_usd": None if prices is None else prices.list_usd,
                "egress_usd_per_byte": None if prices is None else prices.egress_usd_per_byte,
                "cache_bytes": None if cache is None else cache.limit_bytes,
                "policy": None if cache is None else cache.policy,
                "lookahead_bytes": settings.lookahead_bytes,
                "concurrency": settings.concurrency,
            }
        )

    def _check_budget(self) -> None:
        budget = self._settings.budget_usd
        spent = None if budget is None else self._accounts.total().cost_usd(self._settings.prices)
        if budget is not None and spent is not None and spent > budget:
            raise StallwiseError(
                f"The budget of {budget:g} dollars for requests and egress from {self._bucket.shown} is spent "
                f"({spent:.4f}). Raise budget_usd, or fill a cache first: stallwise data warm."
            )


class _LeftOut:
    """Type of the marker of a skipped sample; None may be a sample."""


_LEFT_OUT = _LeftOut()
