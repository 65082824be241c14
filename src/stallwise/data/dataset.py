"""`BucketDataset`: a map-style dataset whose samples are the objects of a bucket.

    cache = NodeCache("/mnt/nvme/cache", limit_bytes=200 * 10**9)
    dataset = BucketDataset("s3://bucket/train/", decode, match="*.jpg", cache=cache)
    loader = DataLoader(dataset, batch_size=32, num_workers=4, sampler=Lookahead(RandomSampler(dataset)))

It works in a plain `DataLoader` and in `StatefulDataLoader`, with any number of workers, forked or spawned. Without
`Lookahead` the objects of one batch are fetched together; with it, those of the batches to come as well. What a process
needs to fetch (connections, threads) it makes for itself and hands to nobody.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import urlsplit

from torch.utils.data import Dataset, get_worker_info

from stallwise.data.accounts import Account, Accounts
from stallwise.data.cache import NodeCache
from stallwise.data.deli import DeliMode
from stallwise.data.fetch import LONGEST_PAUSE_S, Fetcher
from stallwise.data.helper import Helper, needs_helper
from stallwise.data.listing import MAX_AGE_S, Part, kept_index, named, parts_of
from stallwise.data.loading import Loading, Plan
from stallwise.data.objects import Index
from stallwise.data.order import Channel
from stallwise.data.store import Bucket
from stallwise.errors import InputError
from stallwise.hardware.object_store import StorePrices, prices_of

T = TypeVar("T")
Decode = Callable[[bytes, str], T]
OnError = Literal["raise", "skip"]

LOOKAHEAD_BYTES = 256 << 20
CONCURRENCY = 64


def as_bytes(data: bytes, name: str) -> bytes:
    """The decode function of a dataset that has none."""
    return data


class BucketDataset(Dataset[T], Generic[T]):
    """The objects under `url`, sorted by name, each decoded by `decode(data, name)`.

    url              s3://bucket/prefix, gs://…, az://…, https://…, file:///…
    endpoint         another server that speaks the store's language ("http://127.0.0.1:8333")
    options          obstore's settings for the store: credentials, region …; never printed, recorded or logged
    match, keys      a shell pattern names must match; or the names themselves, for stores that cannot list
    parts            samples that are parts of objects, as (name, start, length): records packed into shards. Neighbours
                     that are wanted at the same time are read by one request
    cache            a `NodeCache`, or its folder's path together with `cache_bytes`
    lookahead_bytes  most that one rank's workers together hold ahead of what is asked for
    concurrency      most requests one rank's workers together have under way
    retries, timeout_s, hedge      how one request is made
    on_error         "raise", or "skip": leave a sample out that cannot be read or decoded, and count it
    refresh, index_max_age_s, index_folder    when to list again, and where the index is kept
    prices, budget_usd             what requests and bytes cost, and when to stop: dollars of this rank and its workers
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
        bucket = Bucket(url, endpoint, dict(options or {}), timeout_s=timeout_s)
        self._fetcher = Fetcher(bucket, retries)
        self._helper = Helper(bucket, retries)
        self._accounts = Accounts()
        if keys is None:
            folder = None if index_folder is None else Path(index_folder)
            self.index = self._listed(match, folder, refresh=refresh, max_age_s=index_max_age_s)
        else:
            self.index = named(bucket, keys)
        if parts is not None:
            self.index = parts_of(self.index, parts, bucket.shown)
        self._prices = prices if prices is not None else prices_of(urlsplit(url).scheme)
        _check_budget(budget_usd, self._prices)
        self._plan = Plan(
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
        self._channels: list[tuple[Channel, DeliMode | None]] = []
        self._loading: Loading | None = None

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, number: int) -> T:
        found = self._here().load([self._checked(number)], whole=False)
        if not found:
            raise InputError(
                f"Sample {number} was left out (on_error='skip'), and a sample asked for by itself cannot be. "
                "Let the loader ask for batches (batch_size=…), or use on_error='raise'."
            )
        return found[0]  # type: ignore[no-any-return]

    def __getitems__(self, numbers: Sequence[int]) -> list[T]:
        return self._here().load([self._checked(number) for number in numbers], whole=True)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loading": None}

    @property
    def cache(self) -> NodeCache | None:
        """The node's cache this dataset reads and fills."""
        return self._plan.cache

    def is_cached(self, number: int) -> bool:
        """Whether a sample's object lies in the node's cache."""
        cache = self._plan.cache
        return cache is not None and cache.contains(self.index.key(self._checked(number)))

    def keep_important(self, importance: Callable[[int], float]) -> None:
        """Let the cache keep what weighs most (SHADE's cache): `dataset.keep_important(sampler.importance)`.

        Say so before the loader begins. The cache has the policy `importance`.
        """
        if self._plan.cache is None or self._plan.cache.policy != "importance":
            raise InputError("A cache that keeps what is important is NodeCache(…, policy='importance').")
        self._plan = replace(self._plan, importance=importance)
        self._loading = None

    @property
    def decode(self) -> Decode[T]:
        """The function that makes a sample of an object."""
        return self._plan.decode

    def prefetch(self, numbers: Sequence[int]) -> None:
        """These will be asked for soon, once each: begin to load them. `Lookahead` does this for whole epochs."""
        self._here().prefetch([self._checked(number) for number in numbers])

    @property
    def shown(self) -> str:
        """The bucket's address, without anything secret."""
        return self._fetcher.bucket.shown

    def name(self, number: int) -> str:
        """The object's name under the prefix."""
        return self.index[self._checked(number)].name

    def account(self) -> Account:
        """What loading has cost so far, in this process and in all its loader workers."""
        total = self._accounts.total()
        return total + self._loading.requested() if self._loading and self._loading.pid == os.getpid() else total

    def cost_usd(self) -> float | None:
        """Dollars for requests and for bytes out of the region so far; None where the store's prices are not known."""
        return self.account().cost_usd(self._prices)

    def follow(self, channel: Channel, mode: DeliMode | None) -> None:
        """Look ahead in the order written there (`Lookahead` calls this)."""
        self._channels.append((channel, mode))
        self._loading = None

    def unfollow(self, channel: Channel) -> None:
        """Its sampler is gone: loaders made anew every epoch must not leave their orders behind."""
        self._channels = [kept for kept in self._channels if kept[0] is not channel]

    def _here(self) -> Loading:
        """This process's connections and threads; those of the process it was forked from stay untouched."""
        if self._loading is None or self._loading.pid != os.getpid():
            helped = needs_helper(worker=get_worker_info() is not None)
            read = self._helper.get if helped else self._fetcher.get
            self._loading = Loading(self.index, self._fetcher.bucket, read, self._plan, self._accounts, self._channels)
        return self._loading

    def _listed(self, match: str, folder: Path | None, *, refresh: bool, max_age_s: float) -> Index:
        bucket = self._helper.bucket
        kept = None if refresh else kept_index(bucket, match=match, folder=folder, max_age_s=max_age_s)
        if kept is None:
            requests = self._helper.list(match, folder, refresh=refresh, max_age_s=max_age_s)
            self._accounts.add(Account(lists=requests))
            kept = kept_index(bucket, match=match, folder=folder, max_age_s=math.inf)
            if kept is None:
                raise InputError(f"The index of {bucket.shown} vanished as soon as it was made.")
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
        raise InputError("A budget needs prices, and this store's are not known here: give prices=StorePrices(…).")


def _skips(on_error: str) -> bool:
    if on_error not in ("raise", "skip"):
        raise InputError(f"on_error is 'raise' or 'skip', not {on_error!r}.")
    return on_error == "skip"
