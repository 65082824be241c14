"""Each object is fetched once: who comes first flies, the others wait for the landing.

Threads of a process share a flight and its data; processes share a claim, and find the data in the cache. A claim is
freed by the kernel when its holder dies, and by its holder when the fetch fails: then the next one flies. Nobody
waits longer than the patience; who loses it fetches for itself.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from stallwise.data.keeper import Keeper

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1e-3, 2e-2


@dataclass(frozen=True, slots=True)
class Loaded:
    """An object and where it came from; `waited`: another thread or process fetched it meanwhile."""

    data: bytes
    source: Literal["cache", "store", "waited", "peer"]


@dataclass(frozen=True, slots=True)
class Got:
    """What a fetch brought. A guest belongs to another node's cache, which has it."""

    data: bytes
    source: Literal["store", "peer"] = "store"
    is_guest: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """An object somebody asks for, and until when it is worth waiting for others."""

    key: bytes
    size_bytes: int
    fetch: Callable[[], Got]
    next_use_s: float | None
    deadline_s: float
    is_guest: bool = False
    """Whether it belongs to another node's cache."""


class _Flight:
    """An object that a thread of this process is getting."""

    __slots__ = ("data", "landed")

    def __init__(self) -> None:
        self.landed = threading.Event()
        self.data: bytes | None = None


class Flights:
    """What this process is getting, by key."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self._under_way: dict[bytes, _Flight] = {}
        self._mutex = threading.Lock()

    def load(self, wanted: Wanted) -> Loaded:
        """Get an object that was not in the cache when it was last looked for."""
        while True:
            flight, is_mine = self._join(wanted.key)
            if is_mine:
                return self._fly(flight, wanted)
            if not flight.landed.wait(max(0.0, wanted.deadline_s - time.monotonic())):
                return self._fetch(wanted)
            if flight.data is not None:
                self.keeper.count("waited")
                return Loaded(flight.data, "waited")

    def _join(self, key: bytes) -> tuple[_Flight, bool]:
        with self._mutex:
            flight = self._under_way.get(key)
            if flight is not None:
                return flight, False
            flight = self._under_way[key] = _Flight()
            return flight, True

    def _fly(self, flight: _Flight, wanted: Wanted) -> Loaded:
        try:
            loaded = self._get(wanted)
            flight.data = loaded.data
            return loaded
        finally:
            with self._mutex:
                del self._under_way[wanted.key]
            flight.landed.set()

    def _get(self, wanted: Wanted) -> Loaded:
        """Claim, look again, fetch, keep. What will not be kept is fetched without a claim: no use to wait for it."""
        keeper = self.keeper
        if not keeper.might_keep(wanted.key, wanted.size_bytes, wanted.next_use_s, guest=wanted.is_guest):
            return self._fetch(wanted)
        others_had_it = not keeper.claims.take(wanted.key)
        if others_had_it and not self._wait(wanted):
            data = keeper.read(wanted.key, wanted.next_use_s)
            return self._found(data, "waited") if data is not None else self._fetch(wanted)
        try:
            data = keeper.read(wanted.key, wanted.next_use_s)
            if data is not None:
                return self._found(data, "waited" if others_had_it else "cache")
            got = wanted.fetch()
            keeper.count("misses")
            if not keeper.keep(wanted.key, got.data, wanted.next_use_s, guest=got.is_guest):
                keeper.count("bypassed")
            return Loaded(got.data, got.source)
        finally:
            keeper.claims.free(wanted.key)

    def _wait(self, wanted: Wanted) -> bool:
        """Wait for the claim; False when the object is there, or the patience is over."""
        pause_s = _FIRST_PAUSE_S
        while not self.keeper.claims.take(wanted.key):
            if self.keeper.contains(wanted.key) or time.monotonic() >= wanted.deadline_s:
                return False
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
        return True

    def _found(self, data: bytes, source: Literal["cache", "waited"]) -> Loaded:
        self.keeper.count("waited" if source == "waited" else "hits")
        return Loaded(data, source)

    def _fetch(self, wanted: Wanted) -> Loaded:
        """Fetch without keeping."""
        got = wanted.fetch()
        self.keeper.count("misses")
        self.keeper.count("bypassed")
        return Loaded(got.data, got.source)
