"""A cache of objects in a folder, bounded in bytes, shared by all ranks, loader workers and jobs of a node.

No daemon and no server: processes meet in the folder. What it promises:

- The disk space of all entries, those being written included, never exceeds the limit. (The index and the folders come
  on top: 0.2 MB, 4 KB per folder, 50 to 130 bytes per entry.) While jobs with different limits use it, the lowest
  holds; a lower limit than last time shrinks it when it is opened. All concurrent users use one policy.
- An object is fetched once: the process that claims it fetches; others wait and take over if it dies or gives up.
  No process waits longer than `patience_s`; then it fetches for itself. Objects that will not be kept are not waited
  for.
- No entry is returned whose checksum (xxh3-128) is wrong; it is removed, counted and fetched again.
- It survives the death of any process at any moment, a full or read-only disk, and files that were truncated, changed
  or removed. The worst case is a miss.

A folder that another user owns or may write is refused, unless it is `shared`: who may write it may put other samples
in.
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

from stallwise.data.cache._folder import CacheFolder
from stallwise.data.cache._index import POLICIES, CacheIndex, CachePolicy, IndexHeader
from stallwise.data.cache._single_flight import CacheResult, FetchRequest, FetchResult, SingleFlight
from stallwise.data.cache.files import KEY_BYTES, Fits, index_path, is_cache, packs_path
from stallwise.errors import CacheError, InputError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from stallwise.data.peers._peers import Peers

__all__ = ["CacheResult", "CacheStat", "NodeCache", "VerifyResult"]

PATIENCE_S = 60.0

_opening = threading.Lock()


def _after_fork() -> None:
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStat:
    """Contents of a cache now, and its events since it was created, over all processes.

    Counts of a killed process may lack its last few dozen events.
    """

    entries: int  # those being written included
    used_bytes: int
    limit_bytes: int
    policy: CachePolicy
    hits: int
    misses: int
    waited: int
    inserted: int
    evictions: int
    bypassed: int
    healed: int


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Counts of a check of all entries."""

    entries: int
    bad: int
    removed: int  # fewer than bad only where the folder cannot be written


class NodeCache:
    """A cache folder. Pickles only its settings: each process opens the folder at first use."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        limit_bytes: int,
        policy: CachePolicy = "no-evict",
        *,
        patience_s: float = PATIENCE_S,
        peers: "Peers | None" = None,
        shared: bool = False,
    ) -> None:
        if policy not in POLICIES:
            raise InputError(f"No cache policy is called {policy!r}. There are {', '.join(POLICIES)}.")
        if limit_bytes <= 0:
            raise InputError(f"A cache needs a limit of more than {limit_bytes} bytes.")
        self.folder = Path(folder).expanduser().absolute()
        self.limit_bytes, self.policy, self.patience_s = int(limit_bytes), policy, patience_s
        self.peers, self.shared = peers, shared
        self._forget()
        if peers is not None:
            if policy != "no-evict":
                raise InputError(f"Nodes that share their caches keep what is theirs: no-evict, not {policy}.")
            self._hold()  # the folder must be a cache before it has an identity
            peers.join(self.folder, self.limit_bytes, shared=shared)

    @classmethod
    def existing(cls, folder: str | os.PathLike[str], *, shared: bool = False) -> "NodeCache":
        """Open the cache in `folder` with the limit and policy it was last used with."""
        path = Path(folder).expanduser().absolute()
        if not is_cache(path):
            raise CacheError(f"There is no cache in {path}. Name the folder a cache was made in.")
        head = _head(path)
        if head is None or head.policy >= len(POLICIES):
            raise CacheError(f"The index of the cache {path} is damaged. Open it with a limit, which repairs it.")
        return cls(path, head.limit_bytes, POLICIES[head.policy], shared=shared)

    def __repr__(self) -> str:
        return f"NodeCache({str(self.folder)!r}, limit_bytes={self.limit_bytes}, policy={self.policy!r})"

    def __getstate__(self) -> dict[str, Any]:
        names = ("folder", "limit_bytes", "policy", "patience_s", "peers", "shared")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def read(self, key: bytes, next_use_s: float | None = None, *, fits: Fits | None = None) -> bytes | None:
        """Return the object or None; counts as a hit or a miss.

        What another node handed over is returned once `fits` has held it against the object's version.
        """
        folder = self._hold().cache_folder
        data = folder.read(_checked(key), next_use_s, fits)
        folder.count("misses" if data is None else "hits")
        return data

    def load(
        self,
        key: bytes,
        size_bytes: int,
        fetch: "Callable[[], Buffer]",
        next_use_s: float | None = None,
        *,
        fits: Fits | None = None,
    ) -> CacheResult:
        """Return the object, fetched if it is not in the cache, and kept if the policy admits it.

        Only one caller on the node fetches an object; what `fetch` raises goes to that one, and the next one tries.
        `size_bytes` is the expected size, `next_use_s` the time (as `time.time()`) of the next use after this one
        (under the policy *importance*: minus its importance). With peers, the node that should have it is asked first;
        `fits` checks what it sends, and what it has handed over.
        """
        flight = self._hold()
        data = flight.cache_folder.read(_checked(key), next_use_s, fits)
        if data is None:
            return flight.load(self._request(key, size_bytes, fetch, next_use_s, fits))
        flight.cache_folder.count("hits")
        return CacheResult(data, "cache")

    def _request(
        self,
        key: bytes,
        size_bytes: int,
        fetch: "Callable[[], Buffer]",
        next_use_s: float | None,
        fits: Fits | None,
    ) -> FetchRequest:
        deadline_s = time.monotonic() + self.patience_s
        peers = self.peers
        if peers is None:
            return FetchRequest(key, size_bytes, lambda: FetchResult(bytes(fetch())), next_use_s, deadline_s, fits=fits)
        route = peers.route(key)
        return FetchRequest(
            key,
            size_bytes,
            lambda: peers.get(key, size_bytes, route, fetch, fits),
            next_use_s,
            deadline_s,
            not route.is_mine,
            fits,
        )

    def keep(self, key: bytes, data: bytes) -> bool:
        """Insert an object that belongs to this node and that another node hands over; return whether it is there now.

        Nobody has checked that these are the object's bytes: its first reader does.
        """
        folder = self._hold().cache_folder
        if folder.contains(_checked(key)):
            folder.adopt(key)
            return True
        if not folder.locks.take(key):
            return False  # another process is fetching it, and keeps it
        try:
            return folder.keep(key, data, None, handed=True)
        finally:
            folder.locks.free(key)

    def reserve(self, key: bytes) -> bool:
        """Claim an object that another node will bring (`keep`): this node's processes wait for it until `release`."""
        folder = self._hold().cache_folder
        return folder.might_keep(_checked(key), 0, None) and folder.locks.take(key)

    def release(self, key: bytes) -> None:
        """Free the claim of `reserve`: the object has arrived, or will not come."""
        self._hold().cache_folder.locks.free(key)

    def is_coming(self, key: bytes) -> bool:
        """Whether a process of this node is fetching the object."""
        return self._hold().cache_folder.locks.is_live(_checked(key))

    def open_entry(self, key: bytes) -> BinaryIO | None:
        """Open the file of an entry, positioned at its header; None if there is none."""
        return self._hold().cache_folder.open_entry(_checked(key))

    def charge_bytes(self, size_bytes: int) -> int:
        """Bytes of the limit that an object of `size_bytes` takes."""
        return self._hold().cache_folder.charge_bytes(size_bytes)

    def contains(self, key: bytes) -> bool:
        """Whether there is an entry; it is not read."""
        return self._hold().cache_folder.contains(_checked(key))

    def stat(self) -> CacheStat:
        """Return contents and event counts."""
        head, counts = self._hold().cache_folder.totals()
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

    def verify(self, progress: Callable[[int, int], None] | None = None) -> VerifyResult:
        """Read every entry, remove the bad ones and recount; `progress` is called with (entries done, entries)."""
        checked = 0

        def note(done: int, total: int) -> None:
            nonlocal checked
            checked = done
            if progress:
                progress(done, total)

        bad = [is_removed for _, is_removed in self._hold().cache_folder.verify(note)]
        return VerifyResult(checked, len(bad), sum(bad))

    def clear(self) -> None:
        """Remove every entry; the folder stays a cache."""
        self._hold().cache_folder.clear()

    def close(self) -> None:
        """Close the folder in this process; the next use reopens it. No thread may be using it."""
        if self._flight is not None:
            self._flight.cache_folder.close()
        self._forget()

    def _forget(self) -> None:
        self._flight: SingleFlight | None = None

    def _hold(self) -> SingleFlight:
        """Return the folder as this process has it open: opened at first use, after a fork, and when it was removed."""
        flight = self._flight
        if flight is not None and flight.cache_folder.pid == os.getpid() and not flight.cache_folder.is_lost:
            return flight
        with _opening:
            flight = self._flight
            if flight is None or flight.cache_folder.pid != os.getpid():
                flight = self._open()
            elif flight.cache_folder.is_lost:
                flight = self._reopen(flight)
            self._flight = flight
            return flight

    def _open(self) -> SingleFlight:
        if self.policy != "packed" and packs_path(self.folder).is_dir():
            raise CacheError(
                f"The cache in {self.folder} is packed. Open it with policy='packed', or choose another folder."
            )
        if self.policy == "packed" and not packs_path(self.folder).is_dir() and _holds_files(self.folder):
            raise CacheError(
                f"The cache in {self.folder} keeps its objects in files of their own and cannot become a packed one. "
                "Clear it first, or choose another folder."
            )
        folder = CacheFolder(self.folder, self.limit_bytes, self.policy, shared=self.shared)
        # Batched counts are written at exit, also that of a multiprocessing child; threads may still be reading then.
        Finalize(self, folder.flush, exitpriority=1)
        weakref.finalize(self, folder.close).atexit = False
        return SingleFlight(folder)

    def _reopen(self, lost: SingleFlight) -> SingleFlight:
        try:
            return self._open()
        except CacheError as error:
            lost.cache_folder.pause(str(error))  # training continues without a cache
            return lost


def _head(folder: Path) -> IndexHeader | None:
    index = CacheIndex(index_path(folder), POLICIES[0], 1, is_writable=False)
    try:
        return index.peek()
    finally:
        index.close()


def _holds_files(folder: Path) -> bool:
    """Whether the folder is a non-empty cache of another policy than *packed*."""
    try:
        head = _head(folder) if is_cache(folder) else None
    except OSError:
        return False
    return head is not None and head.totals.records > 0 and head.policy != POLICIES.index("packed")


def _checked(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise InputError(f"A cache key has {KEY_BYTES} bytes, not {len(key)}.")
    return key
