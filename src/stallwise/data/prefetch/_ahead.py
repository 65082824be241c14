"""Prefetching of objects on a few threads, before they are requested, within a limit of bytes.

`expect` announces what will be requested, in order; `take` hands an object over and lets the next one start. Threads
belong to the process that started them: after a fork the child starts with none. A load that takes much longer than
usual while a caller waits for it is started a second time, and the first to arrive counts (a hedged request: Dean and
Barroso, "The Tail at Scale", CACM 2013).
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stallwise.data.prefetch._pace import FIRST_CONCURRENCY, FetchPace
from stallwise.errors import ObjectError

# A wait is hedged after a multiple of the usual seconds, never before the floor; later while no usual time is known.
HEDGE_FACTOR = 8.0
HEDGE_FLOOR_S = 0.5
HEDGE_FIRST_S = 5.0
MOST_HEDGES = 3
_IDLE_S = 5.0


@dataclass(frozen=True, slots=True)
class PrefetchedObject:
    """An object's bytes, their source and the seconds to get them."""

    data: bytes
    source: str  # "cache", "store", "peer", or "waited": another process of the node fetched it
    seconds: float


class _Slot:
    """The state of an expected object."""

    __slots__ = ("dropped", "error", "has_thread", "loaded", "requests", "size_bytes", "started", "stuck", "uses")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.uses = 1  # how often it is expected
        self.started = False
        self.dropped = False
        self.requests = 0  # in progress
        self.has_thread = False  # one of the threads is loading it
        self.stuck = False  # and is not counted as busy any more
        self.loaded: PrefetchedObject | None = None
        self.error: Exception | None = None

    @property
    def over(self) -> bool:
        return self.loaded is not None or self.error is not None


class Prefetcher:
    """The objects in progress and ready in this process."""

    def __init__(
        self,
        load: Callable[[int], PrefetchedObject],
        load_uncached: Callable[[int], PrefetchedObject],
        size_bytes: Callable[[int], int],
        limit_bytes: int,
        pace: FetchPace,
        *,
        patience_s: float = 600.0,
        hedge: bool = True,
    ) -> None:
        self._patience_s = patience_s
        self._load, self._load_uncached = load, load_uncached
        self._size_bytes, self._limit_bytes = size_bytes, limit_bytes
        self.pace, self._hedge = pace, hedge
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._ready = threading.Condition(self._lock)
        self._slots: dict[int, _Slot] = {}
        self._queue: deque[int] = deque()
        self._reserved_bytes = 0
        self._threads = 0
        self._busy = 0  # threads loading, without the stuck ones
        self._stuck = 0
        self._awaited: set[int] = set()
        self._usual_s = 0.0
        self._shortest_s = math.inf
        self._judged = (time.monotonic(), 0)
        self._loads = 0
        self._waited_s = 0.0
        self.hedged = 0  # requests sent a second time; the caller reads and resets it

    def expect(self, numbers: Iterable[int]) -> None:
        """Announce numbers that will be requested in this order, after all those announced before."""
        with self._lock:
            for number in numbers:
                slot = self._slots.get(number)
                if slot is not None:
                    slot.uses += 1
                    continue
                self._slots[number] = _Slot(self._size_bytes(number))
                self._queue.append(number)
            self._wake()

    def expects(self, number: int) -> bool:
        """Whether the object is expected, in progress or ready."""
        with self._lock:
            return number in self._slots

    def take(self, number: int) -> tuple[PrefetchedObject, float]:
        """Return the object, and the seconds the caller waited for it (0 where it was ready)."""
        start = time.monotonic()
        with self._lock:
            slot = self._slots.get(number)
            if slot is None:
                slot = self._slots[number] = _Slot(self._size_bytes(number))
                self._queue.appendleft(number)
            elif not slot.started and self._queue[0] != number:
                self._queue.remove(number)
                self._queue.appendleft(number)
            if not slot.started:
                # Also one that was held back by the limit: it may exceed it now.
                self._wake()
            ready = slot.over
            if not ready:
                self._wait(number, slot)
            waited_s = 0.0 if ready else time.monotonic() - start
            self._waited_s += waited_s
            self._remove(number, slot)
        if slot.error is not None:
            raise slot.error
        if slot.loaded is None:
            raise AssertionError("a slot that is over holds its object or an error")
        return slot.loaded, waited_s

    def drop(self, numbers: Iterable[int]) -> None:
        """Withdraw one announcement of each number; one that was announced twice is still loaded."""
        with self._lock:
            for number in numbers:
                slot = self._slots.get(number)
                if slot is None:
                    continue
                slot.uses -= 1
                if slot.uses == 0:
                    del self._slots[number]
                    self._release(slot)
                    if not slot.started:
                        self._queue.remove(number)
            self._wake()

    def forget(self) -> None:
        """Withdraw everything that was announced. Loads in progress are dropped when they arrive."""
        with self._lock:
            for slot in self._slots.values():
                self._release(slot)
            self._slots.clear()
            self._queue.clear()

    # Everything below up to `_run`, and `_wait`, is called with the lock held.

    def _release(self, slot: _Slot) -> None:
        slot.dropped = slot.started
        if slot.started and slot.requests == 0:
            self._reserved_bytes -= slot.size_bytes

    def _begin(self, slot: _Slot) -> None:
        slot.started, slot.requests = True, 1
        self._reserved_bytes += slot.size_bytes

    def _remove(self, number: int, slot: _Slot) -> None:
        if self._slots.get(number) is not slot:
            return
        del self._slots[number]
        if slot.started:
            self._reserved_bytes -= slot.size_bytes
        else:
            self._queue.remove(number)  # given up before it started
        if slot.uses > 1:
            # It will be requested again, but not soon: it is loaded again then, and does not take room from others now.
            self._slots[number] = again = _Slot(slot.size_bytes)
            again.uses = slot.uses - 1
            self._queue.append(number)
        self._wake()

    def _wake(self) -> None:
        if not self._queue:
            return
        idle = self._threads - self._stuck - self._busy
        if idle > 0:
            self._work.notify(min(idle, len(self._queue)))
        while self._threads - self._stuck < min(self.pace.concurrency, self._busy + len(self._queue)):
            threading.Thread(target=self._run, name="stallwise-ahead", daemon=True).start()
            self._threads += 1

    def _next(self) -> tuple[int, _Slot] | None:
        if not self._queue or self._busy >= self.pace.concurrency:
            return None
        slot = self._slots[self._queue[0]]
        over = self._reserved_bytes + slot.size_bytes > self._limit_bytes and self._reserved_bytes > 0
        # An object that a caller waits for is loaded in any case: the limit is for prefetched ones.
        if over and self._queue[0] not in self._awaited:
            return None
        number = self._queue.popleft()
        self._begin(slot)
        return number, slot

    def _judge(self) -> None:
        then, loads = self._judged
        now = time.monotonic()
        requests, seconds = self._loads - loads, now - then
        if self.pace.can_judge(requests, seconds):
            self.pace.judge(requests / seconds, starved=self._waited_s > 0.5 * seconds)
            self._judged, self._waited_s = (now, self._loads), 0.0

    # Threads.

    def _run(self) -> None:
        while True:
            with self._lock:
                woken = True
                while (item := self._next()) is None:
                    # Check once more after the time-out: a wake-up may have come in that moment.
                    if not woken or self._threads - self._stuck > self.pace.concurrency:
                        self._threads -= 1
                        return
                    woken = self._work.wait(_IDLE_S)
                number, slot = item
                self._busy, slot.has_thread = self._busy + 1, True
            try:
                self._fill(self._load, number, slot)
            finally:
                with self._lock:
                    self._busy, self._stuck = self._busy - (not slot.stuck), self._stuck - slot.stuck
                    slot.has_thread = slot.stuck = False

    def _fill(self, load: Callable[[int], PrefetchedObject], number: int, slot: _Slot) -> None:
        """Load into the slot; the first result counts."""
        loaded: PrefetchedObject | None = None
        error: Exception | None = None
        try:
            loaded = load(number)
        except Exception as caught:
            error = caught
        except BaseException as caught:  # a panic in obstore is not an Exception, and a caller may be waiting
            error = ObjectError(f"Sample {number} could not be read: {type(caught).__name__}.")
        with self._lock:
            if loaded is not None and loaded.source != "cache":
                self._loads += 1
                self._shortest_s = min(self._shortest_s, loaded.seconds)
                if self._loads == FIRST_CONCURRENCY:
                    self.pace.set_latency(self._shortest_s)
                    self._wake()
                # One stalled load must not make the next stall look usual.
                usual_s = min(loaded.seconds, 4 * self._usual_s) if self._usual_s else loaded.seconds
                self._usual_s += (usual_s - self._usual_s) * (0.1 if self._usual_s else 1.0)
                self._judge()
            slot.requests -= 1
            if slot.dropped and slot.requests == 0:
                self._reserved_bytes -= slot.size_bytes
            elif loaded is not None and self._slots.get(number) is slot:
                # The listing may not have given the size.
                self._reserved_bytes += len(loaded.data) - slot.size_bytes
                slot.size_bytes = len(loaded.data)
            # An error counts only where no other request can still succeed.
            if not slot.over and (error is None or slot.requests == 0):
                slot.loaded, slot.error = loaded, error
            if number in self._awaited:
                self._ready.notify_all()

    def _wait(self, number: int, slot: _Slot) -> None:
        self._awaited.add(number)
        give_up_s = time.monotonic() + self._patience_s
        while not slot.over:
            usual_s = HEDGE_FACTOR * self._usual_s or HEDGE_FIRST_S
            hedge_s = max(HEDGE_FLOOR_S, usual_s) if self._hedge else self._patience_s
            if self._ready.wait(min(hedge_s, self._patience_s)) or slot.over:
                continue
            if time.monotonic() > give_up_s:
                slot.error = ObjectError(
                    f"Nothing of sample {number} has arrived for {self._patience_s:.0f} s: reading hangs. If the "
                    "process that made the loader uses obstore itself, give the loader multiprocessing_context='spawn'."
                )
            elif self._hedge:
                self._send_hedge(number, slot)
        self._awaited.discard(number)

    def _send_hedge(self, number: int, slot: _Slot) -> None:
        if slot.has_thread and not slot.stuck:
            # Another thread replaces the stuck one: a few stalled replies must not hold up all others.
            slot.stuck, self._stuck, self._busy = True, self._stuck + 1, self._busy - 1
            self._wake()
        if 0 < slot.requests < MOST_HEDGES:
            slot.requests += 1
            self.hedged += 1
            # Not through the cache: there it would wait for the first request.
            threading.Thread(target=self._fill, args=(self._load_uncached, number, slot), daemon=True).start()
