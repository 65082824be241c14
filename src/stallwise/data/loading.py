"""One process's part in loading: it follows the order, fetches ahead, decodes, and keeps the account."""

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

from stallwise.data.accounts import Account, Accounts, load_of
from stallwise.data.ahead import Ahead, Loaded
from stallwise.data.cache import NodeCache
from stallwise.data.deli import DeliMode
from stallwise.data.fetch import Fetched
from stallwise.data.joining import Joiner
from stallwise.data.objects import Index, ObjectRef
from stallwise.data.order import Channel, Follower
from stallwise.data.proofs import Tags
from stallwise.data.store import Bucket
from stallwise.data.tuning import Pace, depth
from stallwise.errors import ObjectError, StallwiseError
from stallwise.hardware.object_store import StorePrices
from stallwise.record.loads import LoadLog
from stallwise.record.worker import collecting_folder

# An object whose size no listing gave counts as this much until one has come.
_USUAL_BYTES = 1 << 20


@dataclass(frozen=True)
class Plan:
    """The settings of a dataset that its processes need."""

    decode: Callable[[bytes, str], Any]
    cache: NodeCache | None
    lookahead_bytes: int
    concurrency: int
    patience_s: float
    """Longest that one object may take, all tries together: longer means that something hangs."""
    hedge: bool
    skip: bool
    prices: StorePrices | None
    budget_usd: float | None
    importance: Callable[[int], float] | None = None
    """Of a sample: what a cache ranked by it keeps."""


_Way = tuple[Follower, DeliMode | None]


class Loading:
    """Made in the process that uses it."""

    def __init__(
        self,
        index: Index,
        bucket: Bucket,
        read: Callable[[ObjectRef], Fetched],
        plan: Plan,
        accounts: Accounts,
        channels: Sequence[tuple[Channel, DeliMode | None]],
    ) -> None:
        self.pid = os.getpid()
        self._index, self._bucket, self._plan, self._accounts = index, bucket, plan, accounts
        self._read = read if index.starts is None else Joiner(read).get
        info = get_worker_info()
        self._worker, workers = (-1, 1) if info is None else (info.id, info.num_workers)
        self._ways = [(Follower(channel, max(self._worker, 0), workers), mode) for channel, mode in channels]
        for follower, _ in self._ways:
            # The rank itself lives on, and so does what lies in the node's cache.
            follower.crosses = info is None or plan.cache is not None
        self._way = 0
        self._workers = workers
        self._usual_bytes = index.total_bytes // max(len(index), 1) or _USUAL_BYTES
        self._room = max(1, plan.lookahead_bytes // workers // self._usual_bytes)
        pace = Pace(most=max(1, plan.concurrency // workers))
        self._ahead = Ahead(
            self._load,
            self._fetch,
            self._size_bytes,
            plan.lookahead_bytes // workers,
            pace,
            patience_s=plan.patience_s,
            hedge=plan.hedge,
        )
        self._tags = Tags()
        self._told: set[int] = set()
        self._now = Account()  # of the batch in work
        self._requested = Account()  # by all threads since the batch before
        self._lock = threading.Lock()
        self._taken_per_s = 0.0
        self._last_s = 0.0
        self._log: LoadLog | None = None
        if info is not None:
            # What a worker fetched after its last batch, nobody would hear of.
            Finalize(None, lambda: accounts.add(self.requested()), exitpriority=1)
        self._log_folder: str | None = None

    def load(self, numbers: list[int], *, whole: bool) -> list[Any]:
        """The samples of a `whole` batch, or one of them, decoded; fewer where some could not be had, if allowed."""
        start_s = time.monotonic()
        queued_s = self._look_ahead(numbers, start_s, whole=whole)
        found = []
        for number in numbers:
            sample = self._sample(number)
            if sample is not _LEFT_OUT:
                found.append(sample)
        self._close(start_s, len(numbers), queued_s)
        if not found and numbers and whole:
            raise ObjectError(f"None of the {len(numbers)} samples of a batch could be read or decoded.")
        return found

    def _sample(self, number: int) -> Any:
        ref_name, decoding_s = self._index[number].name, 0.0
        try:
            loaded, waited_s = self._cached(number) or self._ahead.take(number)
            self._count(loaded, waited_s)
            decoding_s = time.monotonic()
            return self._plan.decode(loaded.data, ref_name)
        except Exception as error:
            # Decoders raise all sorts of things; what is wrong with the set-up and not with the object is not left out.
            if not self._plan.skip or not (decoding_s or isinstance(error, ObjectError)):
                if decoding_s:
                    error.add_note(f"(while decoding {ref_name!a} of {self._bucket.shown})")
                raise
            self._now.skipped += 1
            warnings.warn(f"sample {number} is left out: {error}", stacklevel=2)
            return _LEFT_OUT
        finally:
            if decoding_s:
                self._now.decode_s += time.monotonic() - decoding_s

    def _cached(self, number: int) -> tuple[Loaded, float] | None:
        """From the node's cache, by this thread: another would cost more than the read."""
        if self._plan.cache is None or self._ahead.expects(number):
            return None
        start_s = time.monotonic()
        data = self._plan.cache.read(self._index.key(number), self._next_use_s(number))
        seconds = time.monotonic() - start_s
        return None if data is None else (Loaded(data, "cache", seconds), seconds)

    def _count(self, loaded: Loaded, waited_s: float) -> None:
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

    # Looking ahead.

    def prefetch(self, numbers: Sequence[int]) -> None:
        """Begin to load what will be asked for soon."""
        self._told.update(numbers)
        self._expect(numbers)

    def _look_ahead(self, numbers: list[int], start_s: float, *, whole: bool) -> float | None:
        """Follow the order and begin to load what comes next. Returns how long the batch lay in the queue, if known."""
        known, way = self._follow(numbers, whole=whole)
        self._expect([number for number in numbers[known:] if number not in self._told])
        self._told.difference_update(numbers)
        if way is None:
            return None
        follower, mode = way
        if mode is not None:
            self._expect(follower.ahead(mode.more(follower.outstanding)))
        else:
            concurrency = self._ahead.pace.concurrency
            wanted = depth(concurrency, len(numbers), self._taken_per_s)
            more = max(0, min(wanted, self._room) - follower.outstanding)
            # Past the epoch's end only what keeps the link busy until the next begins: this may be the last.
            self._expect(follower.ahead(more, past=max(concurrency, len(numbers))))
        return follower.waited_s(len(numbers), start_s) if whole else None

    def _follow(self, numbers: list[int], *, whole: bool) -> tuple[int, _Way | None]:
        """How many of the numbers are under way already, and the order they come from.

        That is the order followed so far or another sampler's over the same dataset.
        """
        if not self._ways:
            return 0, None
        follower, mode = self._ways[self._way]
        known = follower.follow(numbers, whole=whole)
        self._ahead.drop(follower.passed())
        if known:
            return known, (follower, mode)
        self._ahead.forget()
        others = [place for place in range(len(self._ways)) if place != self._way]
        for place in others:
            self._ways[place][0].follow(numbers, whole=whole)
        fitting = [place for place in (self._way, *others) if self._ways[place][0].found()]
        if fitting:
            self._way = max(fitting, key=lambda place: self._ways[place][0].begun)
            return 0, self._ways[self._way]
        return 0, None

    def _expect(self, numbers: Sequence[int]) -> None:
        """Begin to load them, apart from what lies in the node's cache: that is read when it is asked for."""
        cache = self._plan.cache
        self._ahead.expect(n for n in numbers if cache is None or not cache.contains(self._index.key(n)))

    # Loading one object, on any thread.

    def _load(self, number: int) -> Loaded:
        cache, ref = self._plan.cache, self._index[number]
        if cache is None:
            return self._fetch(number)
        start_s = time.monotonic()
        kept = cache.load(
            self._index.key(number),
            ref.size_bytes or 0,
            lambda: self._fetch(number).data,
            self._next_use_s(number),
            # A tag is the whole object's.
            fits=lambda data: ref.start is not None or self._tags.fits(ref.version, data),
        )
        return Loaded(kept.data, kept.source, time.monotonic() - start_s)

    def _fetch(self, number: int) -> Loaded:
        try:
            fetched = self._read(self._index[number])
        except ObjectError as error:
            self._requests(error.tries, 0)
            raise
        self._requests(fetched.tries, len(fetched.data) if fetched.read_bytes is None else fetched.read_bytes)
        if self._index.starts is None:
            self._tags.learn(self._index[number].version, fetched.data)
        return Loaded(fetched.data, "store", fetched.seconds)

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
        """When the sample will be wanted again on this node, by the pace so far; or where it stands by importance."""
        if self._plan.importance is not None:
            return -self._plan.importance(number)
        if not self._ways or self._taken_per_s <= 0:
            return None
        positions = self._ways[self._way][0].used_again(number)
        return None if positions is None else time.time() + positions / (self._taken_per_s * self._workers)

    # The account.

    def requested(self) -> Account:
        """What was asked of the store since the last batch."""
        with self._lock:
            return self._requested + Account()

    def _close(self, start_s: float, count: int, queued_s: float | None) -> None:
        """Put the batch to the account and to the run record, and learn the pace at which samples are taken."""
        with self._lock:
            now, self._requested = self._now + self._requested, Account()
        self._now = Account()
        now.queue_s = queued_s or 0.0
        now.hedged, self._ahead.hedged = self._ahead.hedged, 0
        self._accounts.add(now)
        end_s = time.monotonic()
        # Without the wait for the store: the pace it would be if data were always there.
        busy_s = max(end_s - (self._last_s or start_s) - now.network_s, 1e-6)
        self._taken_per_s += (count / busy_s - self._taken_per_s) * (0.2 if self._taken_per_s else 1.0)
        self._last_s = end_s
        self._keep(start_s, now, queued_s)
        self._check_budget()

    def _keep(self, start_s: float, now: Account, queued_s: float | None) -> None:
        folder = collecting_folder()
        if folder is None:
            return
        if self._log is None or folder != self._log_folder:
            self._log, self._log_folder = LoadLog(folder, self._facts()), folder
        now.queue_s = -1.0 if queued_s is None else queued_s
        self._log.add(load_of(self._worker, start_s, now))

    def _facts(self) -> str:
        """What the record should know of the bucket; nothing secret."""
        plan, prices, cache = self._plan, self._plan.prices, self._plan.cache
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
                "lookahead_bytes": plan.lookahead_bytes,
                "concurrency": plan.concurrency,
            }
        )

    def _check_budget(self) -> None:
        budget = self._plan.budget_usd
        spent = None if budget is None else self._accounts.total().cost_usd(self._plan.prices)
        if budget is not None and spent is not None and spent > budget:
            raise StallwiseError(
                f"The budget of {budget:g} dollars for requests and egress from {self._bucket.shown} is spent "
                f"({spent:.4f}). Raise budget_usd, or fill a cache first: stallwise data warm."
            )


class _LeftOut:
    """Stands for a sample that is left out; None may be a sample."""


_LEFT_OUT = _LeftOut()
