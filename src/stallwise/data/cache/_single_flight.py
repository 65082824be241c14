"""Single-flight: concurrent requests for an object share one fetch, among threads and among processes."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from stallwise.data.cache._folder import CacheFolder
from stallwise.data.cache.files import Fits

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1e-3, 2e-2


@dataclass(frozen=True, slots=True)
class CacheResult:
    """An object and its source; `waited`: another thread or process fetched it meanwhile."""

    data: bytes
    source: Literal["cache", "store", "waited", "peer"]


@dataclass(frozen=True, slots=True)
class FetchResult:
    """An object as a fetch returned it. A guest belongs to another node's cache, which has it."""

    data: bytes
    source: Literal["store", "peer"] = "store"
    is_guest: bool = False


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A requested object, and until when (`time.monotonic()`) to wait for another process that fetches it."""

    key: bytes
    size_bytes: int
    fetch: Callable[[], FetchResult]
    next_use_s: float | None
    deadline_s: float
    is_guest: bool = False
    """Whether the object belongs to another node's cache."""
    fits: Fits | None = None


class _Flight:
    """A fetch in progress by a thread of this process."""

    __slots__ = ("data", "done")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.data: bytes | None = None


class SingleFlight:
    """The fetches in progress of this process, by key."""

    def __init__(self, cache_folder: CacheFolder) -> None:
        self.cache_folder = cache_folder
        self._in_progress: dict[bytes, _Flight] = {}
        self._mutex = threading.Lock()

    def load(self, request: FetchRequest) -> CacheResult:
        """Return an object that was not in the cache at the last look."""
        while True:
            flight, is_mine = self._join(request.key)
            if is_mine:
                return self._lead(flight, request)
            if not flight.done.wait(max(0.0, request.deadline_s - time.monotonic())):
                return self._fetch(request)
            if flight.data is not None:
                self.cache_folder.count("waited")
                return CacheResult(flight.data, "waited")

    def _join(self, key: bytes) -> tuple[_Flight, bool]:
        with self._mutex:
            flight = self._in_progress.get(key)
            if flight is not None:
                return flight, False
            flight = self._in_progress[key] = _Flight()
            return flight, True

    def _lead(self, flight: _Flight, request: FetchRequest) -> CacheResult:
        try:
            loaded = self._get(request)
            flight.data = loaded.data
            return loaded
        finally:
            with self._mutex:
                del self._in_progress[request.key]
            flight.done.set()

    def _get(self, request: FetchRequest) -> CacheResult:
        """Claim, look again, fetch, keep. An object that will not be kept is fetched without a claim."""
        folder = self.cache_folder
        if not folder.might_keep(request.key, request.size_bytes, request.next_use_s, guest=request.is_guest):
            return self._fetch(request)
        others_had_it = not folder.locks.take(request.key)
        if others_had_it and not self._wait(request):
            data = folder.read(request.key, request.next_use_s, request.fits)
            return self._hit(data, "waited") if data is not None else self._fetch(request)
        try:
            data = folder.read(request.key, request.next_use_s, request.fits)
            if data is not None:
                return self._hit(data, "waited" if others_had_it else "cache")
            fetched = request.fetch()
            folder.count("misses")
            if not folder.keep(request.key, fetched.data, request.next_use_s, guest=fetched.is_guest):
                folder.count("bypassed")
            return CacheResult(fetched.data, fetched.source)
        finally:
            folder.locks.free(request.key)

    def _wait(self, request: FetchRequest) -> bool:
        """Wait for the claim; False when the object has arrived or the deadline has passed."""
        pause_s = _FIRST_PAUSE_S
        while not self.cache_folder.locks.take(request.key):
            if self.cache_folder.contains(request.key) or time.monotonic() >= request.deadline_s:
                return False
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
        return True

    def _hit(self, data: bytes, source: Literal["cache", "waited"]) -> CacheResult:
        self.cache_folder.count("waited" if source == "waited" else "hits")
        return CacheResult(data, source)

    def _fetch(self, request: FetchRequest) -> CacheResult:
        """Fetch an object that is not kept."""
        fetched = request.fetch()
        self.cache_folder.count("misses")
        self.cache_folder.count("bypassed")
        return CacheResult(fetched.data, fetched.source)
