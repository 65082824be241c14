"""`BucketDataset`: a map-style dataset whose samples are the objects of a bucket.

    cache = NodeCache("/mnt/nvme/cache", limit_bytes=200 * 10**9)
    dataset = BucketDataset("s3://bucket/train/", decode, match="*.jpg", cache=cache)
    loader = DataLoader(dataset, batch_size=32, num_workers=4, sampler=Lookahead(RandomSampler(dataset)))

It works in a plain `DataLoader` and in `StatefulDataLoader`, with any number of workers, forked or spawned. Without
`Lookahead` the objects of one batch are fetched together; with it, those of the batches to come as well. What a process
needs to fetch (connections, threads) it makes for itself.
"""

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import urlsplit

from torch.utils.data import Dataset, get_worker_info

from stallwise.data._accounts import Account, Accounts
from stallwise.data.cache.cache import NodeCache
from stallwise.data.objects._fetch import LONGEST_PAUSE_S, Fetcher
from stallwise.data.objects._names import LeftOut
from stallwise.data.objects.helper import StoreHelper, needs_helper
from stallwise.data.objects.index import MAX_AGE_S, Index, Part, index_of_names, kept_index, parts_of
from stallwise.data.objects.store import ObjectBucket
from stallwise.data.prefetch._loading import LoadingSettings, ProcessLoader
from stallwise.data.prefetch._pace import DeliMode
from stallwise.data.prefetch.order import OrderChannel
from stallwise.errors import InputError
from stallwise.hardware.prices import StorePrices, store_prices

# What `BucketDataset` consists of itself; a subclass may have more.
_FIELDS = {
    "_accounts",
    "_channels",
    "_fetcher",
    "_helper",
    "_prices",
    "_process_loader",
    "_settings",
    "index",
    "left_out",
}
_log = logging.getLogger("stallwise.data")
T = TypeVar("T")
Decode = Callable[[bytes, str], T]
OnError = Literal["raise", "skip"]

LOOKAHEAD_BYTES = 256 << 20
CONCURRENCY = 64


def as_bytes(data: bytes, name: str) -> bytes:
    """Return the data unchanged: the decode function of a dataset that has none."""
    return data


class BucketDataset(Dataset[T], Generic[T]):
    """The objects under `url`, sorted by name, each decoded by `decode(data, name)`.

    url              s3://bucket/prefix, gs://…, az://…, https://…, file:///…
    endpoint         another server with the store's API ("http://127.0.0.1:8333")
    options          obstore's settings for the store: credentials, region …; never printed, recorded or logged
    match, keys      a shell pattern names must match; or the names themselves, for stores that cannot list
    parts            samples that are parts of objects, as (name, start, length): records packed into shards. Neighbours
                     that are requested at the same time are read by one request
    cache            a `NodeCache`, or its folder's path together with `cache_bytes`
    lookahead_bytes  limit of what one rank's workers together hold ahead of what is requested
    concurrency      limit of one rank's concurrent requests, over all its workers
    retries, timeout_s, hedge      settings of one request
    on_error         "raise", or "skip": leave a sample out that cannot be read or decoded, and count it
    refresh, index_max_age_s, index_folder    when to list again, and where the index is kept
    prices, budget_usd             prices of requests and bytes, and the limit in dollars of this rank and its workers
    """

    def __init__(
        self,
        url: str,
        decode: Decode[T] | None = None,
        *,
        endpoint: str | None = None,
        options: Mapping[str, Any] | None = None,
        match: str = "*",
        keys: Iterable[str] | None = None,
        parts: Iterable[Part] | None = None,
        cache: NodeCache | str | Path | None = None,
        cache_bytes: int | None = None,
        lookahead_bytes: int = LOOKAHEAD_BYTES,
        concurrency: int = CONCURRENCY,
        retries: int = 5,
        timeout_s: float = 30.0,
        hedge: bool = True,
        on_error: OnError = "raise",
        refresh: bool = False,
        index_max_age_s: float = MAX_AGE_S,
        index_folder: str | Path | None = None,
        prices: StorePrices | None = None,
        budget_usd: float | None = None,
    ) -> None:
        bucket = ObjectBucket(url, endpoint, dict(options or {}), timeout_s=timeout_s)
        self._fetcher = Fetcher(bucket, retries)
        self._helper = StoreHelper(bucket, retries)
        self._accounts = Accounts()
        self.left_out = LeftOut()
        if keys is None:
            folder = None if index_folder is None else Path(index_folder)
            self.index = self._listed(match, folder, refresh=refresh, max_age_s=index_max_age_s)
        else:
            self.index = index_of_names(bucket, keys)
        if parts is not None:
            self.index = parts_of(self.index, parts, bucket.shown)
        self._prices = prices if prices is not None else store_prices(urlsplit(url).scheme)
        _check_budget(budget_usd, self._prices)
        self._settings = LoadingSettings(
            decode=as_bytes if decode is None else decode,
            cache=_cache_of(cache, cache_bytes),
            lookahead_bytes=_above_zero("lookahead_bytes", lookahead_bytes),
            concurrency=_above_zero("concurrency", concurrency),
            patience_s=2 * (timeout_s + LONGEST_PAUSE_S) * (retries + 1),
            hedge=hedge,
            skip=_skips(on_error),
            prices=self._prices,
            budget_usd=budget_usd,
        )
        self._channels: list[tuple[OrderChannel, DeliMode | None]] = []
        self._process_loader: ProcessLoader | None = None

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, number: int) -> T:
        samples = self._loader().load([self._checked(number)], whole=False)
        if not samples:
            raise InputError(
                f"Sample {number} was left out (on_error='skip'), and a sample requested by itself cannot be. "
                "Let the loader request batches (batch_size=…), or use on_error='raise'."
            )
        return samples[0]  # type: ignore[no-any-return]

    def __getitems__(self, numbers: Sequence[int]) -> list[T]:
        return self._loader().load([self._checked(number) for number in numbers], whole=True)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process_loader": None}

    def fingerprint_state(self) -> dict[str, Any]:
        """Return what its samples depend on: jobs that share batches compare this (`shared.fingerprint`)."""
        own = {"objects": f"{self.shown} {self.index.fingerprint}", "decode": self.decode, "skip": self._settings.skip}
        return own | {name: value for name, value in vars(self).items() if name not in _FIELDS}

    @property
    def cache(self) -> NodeCache | None:
        """The node's cache this dataset reads and fills."""
        return self._settings.cache

    def is_cached(self, number: int) -> bool:
        """Whether a sample's object lies in the node's cache."""
        cache = self._settings.cache
        return cache is not None and cache.contains(self.index.key(self._checked(number)))

    def keep_important(self, importance: Callable[[int], float]) -> None:
        """Let the cache keep the samples of the highest weight (SHADE's cache): pass `sampler.importance`.

        Call it before the loader starts. The cache must have the policy `importance`.
        """
        if self._settings.cache is None or self._settings.cache.policy != "importance":
            raise InputError("A cache that keeps what is important is NodeCache(…, policy='importance').")
        self._settings = replace(self._settings, importance=importance)
        self._process_loader = None

    @property
    def decode(self) -> Decode[T]:
        """The function that turns an object into a sample."""
        return self._settings.decode

    def prefetch(self, numbers: Sequence[int]) -> None:
        """Start to load samples that will be requested soon, once each. `Lookahead` does this for whole epochs."""
        self._loader().prefetch([self._checked(number) for number in numbers])

    @property
    def shown(self) -> str:
        """The bucket's address, without secrets."""
        return self._fetcher.bucket.shown

    def name(self, number: int) -> str:
        """Return the object's name under the prefix."""
        return self.index[self._checked(number)].name

    def account(self) -> Account:
        """Return what loading has cost so far, in this process and in all its loader workers."""
        total, loader = self._accounts.total(), self._process_loader
        return total + loader.requested() if loader is not None and loader.pid == os.getpid() else total

    def cost_usd(self) -> float | None:
        """Return dollars for requests and bytes out of the region so far; None where prices are not known."""
        return self.account().cost_usd(self._prices)

    def follow(self, channel: OrderChannel, mode: DeliMode | None) -> None:
        """Prefetch in the order that the channel announces (`Lookahead` calls this)."""
        self._channels.append((channel, mode))
        self._process_loader = None

    def unfollow(self, channel: OrderChannel) -> None:
        """Remove the channel of a deleted sampler: loaders made anew every epoch must not leave their orders behind."""
        self._channels = [kept for kept in self._channels if kept[0] is not channel]

    def _loader(self) -> ProcessLoader:
        """Return this process's connections and threads; those of the process it was forked from stay untouched."""
        if self._process_loader is None or self._process_loader.pid != os.getpid():
            uses_helper = needs_helper(worker=get_worker_info() is not None)
            read = self._helper.get if uses_helper else self._fetcher.get
            self._process_loader = ProcessLoader(
                self.index, self._fetcher.bucket, read, self._settings, self._accounts, self._channels
            )
        return self._process_loader

    def _listed(self, match: str, folder: Path | None, *, refresh: bool, max_age_s: float) -> Index:
        bucket = self._helper.bucket
        kept = None if refresh else kept_index(bucket, match=match, folder=folder, max_age_s=max_age_s)
        if kept is None:
            requests = self._helper.list(match, folder, refresh=refresh, max_age_s=max_age_s)
            self._accounts.add(Account(lists=requests))
            kept = kept_index(bucket, match=match, folder=folder, max_age_s=math.inf)
            if kept is None:
                raise InputError(f"The index of {bucket.shown} was removed right after it was written.")
        self.left_out = kept.left_out
        if kept.left_out.unreadable:
            _log.warning(
                "%d objects of %s are left out, because their names cannot be asked for: %a, for example.",
                *(kept.left_out.unreadable, bucket.shown, kept.left_out.example),
            )
        return kept.index

    def _checked(self, number: int) -> int:
        number = int(number)
        if not -len(self.index) <= number < len(self.index):
            raise IndexError(f"sample {number} of {len(self.index)}")
        return number % len(self.index)


def _cache_of(cache: NodeCache | str | Path | None, limit_bytes: int | None) -> NodeCache | None:
    if cache is None or isinstance(cache, NodeCache):
        if limit_bytes is not None:
            raise InputError("cache_bytes goes with a cache given by its folder; a NodeCache has its own limit.")
        return cache
    if limit_bytes is None:
        raise InputError(f"The cache in {cache} needs a limit: cache_bytes=200 * 10**9, for example.")
    return NodeCache(Path(cache), limit_bytes)


def _above_zero(name: str, value: int) -> int:
    if value < 1:
        raise InputError(f"{name} must be at least 1, not {value}.")
    return value


def _check_budget(budget_usd: float | None, prices: StorePrices | None) -> None:
    if budget_usd is not None and (prices is None or prices.usd(1, 1, 1) is None):
        raise InputError("A budget needs prices, and this store's are not known: pass prices=StorePrices(…).")


def _skips(on_error: str) -> bool:
    if on_error not in ("raise", "skip"):
        raise InputError(f"on_error is 'raise' or 'skip', not {on_error!r}.")
    return on_error == "skip"
