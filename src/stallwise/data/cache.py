"""A cache of objects in a folder, bounded in bytes, shared by all ranks, loader workers and jobs of a node.

No daemon and no server: processes meet in the folder. What it promises:

- The disk space of all entries, those being written included, never exceeds the limit. (The ledger and the folders come
  on top: 0.2 MB, 4 KB per folder, 50 to 130 bytes per entry.) While jobs with different limits use it, the lowest
  holds; a lower limit than last time shrinks it when it is opened. All who use it at a time use one policy.
- An object is fetched once: who claims it fetches, others wait for it, and take over if the claimant dies or gives up.
  Nobody waits longer than `patience_s`; then it fetches for itself. What is not going to be kept is not waited for.
- No entry is returned whose checksum (xxh3-128) is wrong; it is removed, counted and fetched again.
- It survives the death of any process at any moment, a full or read-only disk, and files that were cut short, changed
  or removed. The worst that can happen is a miss.

The data is not secret from, nor safe against, others who may write the folder: a folder we make is for its owner only.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from stallwise.data.entries import KEY_BYTES
from stallwise.data.flights import Flights, Got, Loaded, Wanted
from stallwise.data.folder import is_cache, ledger_path, packs_path
from stallwise.data.keeper import Keeper
from stallwise.data.ledger import Head, Ledger
from stallwise.data.policy import POLICIES, Policy
from stallwise.errors import CacheError, InputError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from stallwise.data.peers import Peers

__all__ = ["CacheStat", "Loaded", "NodeCache", "Verified"]

PATIENCE_S = 60.0

_opening = threading.Lock()


def _after_fork() -> None:
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStat:
    """What a cache holds now, and what happened in it since it was made, over all processes.

    Counts of a killed process may lack its last few dozen events.
    """

    entries: int  # those being written included
    used_bytes: int
    limit_bytes: int
    policy: Policy
    hits: int
    misses: int
    waited: int
    inserted: int
    evictions: int
    bypassed: int
    healed: int


@dataclass(frozen=True, slots=True)
class Verified:
    """What a check of all entries found."""

    entries: int
    bad: int
    removed: int  # fewer than bad only where the folder cannot be written


class NodeCache:
    """A cache folder. Carries only its settings: it is opened at first use, in every process anew."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        limit_bytes: int,
        policy: Policy = "no-evict",
        *,
        patience_s: float = PATIENCE_S,
        peers: "Peers | None" = None,
    ) -> None:
        if policy not in POLICIES:
            raise InputError(f"No cache policy is called {policy!r}. There are {', '.join(POLICIES)}.")
        if limit_bytes <= 0:
            raise InputError(f"A cache needs a limit of more than {limit_bytes} bytes.")
        self.folder = Path(folder).expanduser().absolute()
        self.limit_bytes, self.policy, self.patience_s = int(limit_bytes), policy, patience_s
        self.peers = peers
        self._forget()
        if peers is not None:
            if policy != "no-evict":
                raise InputError(f"Nodes that share their caches keep what is theirs: no-evict, not {policy}.")
            self._hold()  # the folder must be a cache before it has an identity
            peers.join(self.folder, self.limit_bytes)

    @classmethod
    def existing(cls, folder: str | os.PathLike[str]) -> "NodeCache":
        """The cache that lies in `folder`, with the limit and policy it was last used with."""
        path = Path(folder).expanduser().absolute()
        if not is_cache(path):
            raise CacheError(f"There is no cache in {path}. Name the folder a cache was made in.")
        head = _head(path)
        if head is None or head.policy >= len(POLICIES):
            raise CacheError(f"The ledger of the cache {path} is damaged. Open it with a limit, which repairs it.")
        return cls(path, head.limit_bytes, POLICIES[head.policy])

    def __repr__(self) -> str:
        return f"NodeCache({str(self.folder)!r}, limit_bytes={self.limit_bytes}, policy={self.policy!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("folder", "limit_bytes", "policy", "patience_s", "peers")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def read(self, key: bytes, next_use_s: float | None = None) -> bytes | None:
        """The object, or None; counts as a hit or a miss."""
        keeper = self._hold().keeper
        data = keeper.read(_checked(key), next_use_s)
        keeper.count("misses" if data is None else "hits")
        return data

    def load(
        self,
        key: bytes,
        size_bytes: int,
        fetch: "Callable[[], Buffer]",
        next_use_s: float | None = None,
        *,
        fits: Callable[[bytes], bool | None] | None = None,
    ) -> Loaded:
        """The object, fetched if it is not there, and kept if the policy wants it.

        Only one caller on the node fetches an object; what `fetch` raises goes to that one, and the next one tries.
        `size_bytes` is what the object should measure, `next_use_s` the time (as `time.time()`) it will be wanted
        after this (under the policy *importance*: minus its importance). With peers, the node that should have it is
        asked first; `fits` judges what it sends.
        """
        flights = self._hold()
        data = flights.keeper.read(_checked(key), next_use_s)
        if data is None:
            return flights.load(self._wanted(key, size_bytes, fetch, next_use_s, fits))
        flights.keeper.count("hits")
        return Loaded(data, "cache")

    def _wanted(
        self,
        key: bytes,
        size_bytes: int,
        fetch: "Callable[[], Buffer]",
        next_use_s: float | None,
        fits: Callable[[bytes], bool | None] | None,
    ) -> Wanted:
        deadline_s = time.monotonic() + self.patience_s
        peers = self.peers
        if peers is None:
            return Wanted(key, size_bytes, lambda: Got(bytes(fetch())), next_use_s, deadline_s)
        route = peers.route(key)
        return Wanted(
            key,
            size_bytes,
            lambda: peers.get(key, size_bytes, route, fetch, fits),
            next_use_s,
            deadline_s,
            not route.is_mine,
        )

    def keep(self, key: bytes, data: bytes) -> bool:
        """Put an object in that belongs here, whoever fetched it; whether it is there now."""
        keeper = self._hold().keeper
        if keeper.contains(_checked(key)):
            keeper.adopt(key)
            return True
        if not keeper.claims.take(key):
            return False  # somebody is fetching it, and keeps it
        try:
            return keeper.keep(key, data, None)
        finally:
            keeper.claims.free(key)

    def reserve(self, key: bytes) -> bool:
        """Claim an object that somebody else will bring (`keep`): this node's processes wait for it till `release`."""
        keeper = self._hold().keeper
        return keeper.might_keep(_checked(key), 0, None) and keeper.claims.take(key)

    def release(self, key: bytes) -> None:
        """It does not come, or is there."""
        self._hold().keeper.claims.free(key)

    def is_coming(self, key: bytes) -> bool:
        """Whether some process of this node is fetching it."""
        return self._hold().keeper.claims.is_live(_checked(key))

    def open_entry(self, key: bytes) -> BinaryIO | None:
        """The file of an entry, header and all, unread."""
        return self._hold().keeper.open_entry(_checked(key))

    def charge_bytes(self, size_bytes: int) -> int:
        """What an object of this size takes of the limit."""
        return self._hold().keeper.charge_bytes(size_bytes)

    def contains(self, key: bytes) -> bool:
        """Whether there is an entry; it is not read."""
        return self._hold().keeper.contains(_checked(key))

    def stat(self) -> CacheStat:
        """What it holds, and what happened in it."""
        head, counts = self._hold().keeper.totals()
        return CacheStat(
            entries=head.totals.records if head else 0,
            used_bytes=head.totals.used_bytes if head else 0,
            limit_bytes=min(self.limit_bytes, head.limit_bytes) if head else self.limit_bytes,
            policy=self.policy,
            hits=counts.hits,
            misses=counts.misses,
            waited=counts.waited,
            inserted=counts.inserted,
            evictions=counts.evicted,
            bypassed=counts.bypassed,
            healed=counts.healed,
        )

    def verify(self, progress: Callable[[int, int], None] | None = None) -> Verified:
        """Read every entry, remove the bad ones and count anew; `progress` hears how many of how many are done."""
        seen = 0

        def note(done: int, total: int) -> None:
            nonlocal seen
            seen = done
            if progress:
                progress(done, total)

        bad = [is_removed for _, is_removed in self._hold().keeper.verify(note)]
        return Verified(seen, len(bad), sum(bad))

    def clear(self) -> None:
        """Remove every entry; the folder stays a cache."""
        self._hold().keeper.clear()

    def close(self) -> None:
        """Let the folder go in this process; the next use opens it again. No thread may be using it."""
        if self._held is not None:
            self._held.keeper.close()
        self._forget()

    def _forget(self) -> None:
        self._held: Flights | None = None

    def _hold(self) -> Flights:
        """The folder as this process holds it: opened at first use, after a fork, and when somebody removed it."""
        held = self._held
        if held is not None and held.keeper.pid == os.getpid() and not held.keeper.is_lost:
            return held
        with _opening:
            held = self._held
            if held is None or held.keeper.pid != os.getpid():
                held = self._open()
            elif held.keeper.is_lost:
                held = self._reopen(held)
            self._held = held
            return held

    def _open(self) -> Flights:
        if self.policy != "packed" and packs_path(self.folder).is_dir():
            raise CacheError(
                f"The cache in {self.folder} is packed. Open it with policy='packed', or choose another folder."
            )
        if self.policy == "packed" and not packs_path(self.folder).is_dir() and _holds_files(self.folder):
            raise CacheError(
                f"The cache in {self.folder} keeps its objects in files of their own and cannot become a packed one. "
                "Clear it first, or choose another folder."
            )
        keeper = Keeper(self.folder, self.limit_bytes, self.policy)
        # At exit, also that of a multiprocessing child, what was batched is written; threads may still be reading then.
        Finalize(self, keeper.flush, exitpriority=1)
        weakref.finalize(self, keeper.close).atexit = False
        return Flights(keeper)

    def _reopen(self, lost: Flights) -> Flights:
        try:
            return self._open()
        except CacheError as error:
            lost.keeper.pause(str(error))  # training goes on without a cache
            return lost


def _head(folder: Path) -> Head | None:
    ledger = Ledger(ledger_path(folder), POLICIES[0], 1, is_writable=False)
    try:
        return ledger.peek()
    finally:
        ledger.close()


def _holds_files(folder: Path) -> bool:
    """Whether a cache of another policy lies there that is not empty."""
    try:
        head = _head(folder) if is_cache(folder) else None
    except OSError:
        return False
    return head is not None and head.totals.records > 0 and head.policy != POLICIES.index("packed")


def _checked(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise InputError(f"A cache key has {KEY_BYTES} bytes, not {len(key)}.")
    return key
