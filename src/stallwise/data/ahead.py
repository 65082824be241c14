"""Loads objects on a few threads before they are asked for, within a limit of bytes.

`expect` says what will be wanted, in order; `take` hands an object over and lets the next begin. Threads live in the
process that began them: after a fork the child starts with none. A load somebody waits for much longer than loads
usually take is begun a second time, and the first to arrive counts (a hedged request: Dean and Barroso, "The Tail at
Scale", CACM 2013).
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stallwise.data.tuning import FIRST_CONCURRENCY, Pace
from stallwise.errors import ObjectError

# A wait is hedged after this many usual times, never before this many seconds, and while none is known later.
HEDGE_FACTOR = 8.0
HEDGE_FLOOR_S = 0.5
HEDGE_FIRST_S = 5.0
MOST_HEDGES = 3
_IDLE_S = 5.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """An object's bytes and what getting them took."""

    data: bytes
    source: str  # "cache", "store" or "waited": another process of the node fetched it
    seconds: float


class _Slot:
    """One expected object."""

    __slots__ = ("begun", "dropped", "error", "flying", "loaded", "manned", "size_bytes", "stuck", "wanted")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.wanted = 1
        self.begun = False
        self.dropped = False
        self.flying = 0  # requests under way for it
        self.manned = False  # one of the threads is at it
        self.stuck = False  # and is not counted on any more
        self.loaded: Loaded | None = None
        self.error: Exception | None = None

    @property
    def over(self) -> bool:
        return self.loaded is not None or self.error is not None


class Ahead:
    """The objects under way and ready in this process."""

    def __init__(
        self,
        load: Callable[[int], Loaded],
        load_again: Callable[[int], Loaded],
        size_bytes: Callable[[int], int],
        limit_bytes: int,
        pace: Pace,
        *,
        patience_s: float = 600.0,
        hedge: bool = True,
    ) -> None:
        self._patience_s = patience_s
        self._load, self._load_again = load, load_again
        self._size_bytes, self._limit_bytes = size_bytes, limit_bytes
        self.pace, self._hedge = pace, hedge
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._ready = threading.Condition(self._lock)
        self._slots: dict[int, _Slot] = {}
        self._queue: deque[int] = deque()
        self._held_bytes = 0
        self._threads = 0
        self._busy = 0  # threads at work, those that are stuck apart
        self._stuck = 0
        self._waits_for: set[int] = set()
        self._usual_s = 0.0
        self._shortest_s = math.inf
        self._judged = (time.monotonic(), 0)
        self._loads = 0
        self._waited_s = 0.0
        self.hedged = 0  # requests made a second time; the account takes them from here

    def expect(self, numbers: Iterable[int]) -> None:
        """These will be asked for next, in this order, after all those expected before."""
        with self._lock:
            for number in numbers:
                slot = self._slots.get(number)
                if slot is not None:
                    slot.wanted += 1
                    continue
                self._slots[number] = _Slot(self._size_bytes(number))
                self._queue.append(number)
            self._wake()

    def expects(self, number: int) -> bool:
        """Whether it is under way, or will be."""
        with self._lock:
            return number in self._slots

    def take(self, number: int) -> tuple[Loaded, float]:
        """The object, and how long the caller waited for it (0 where it lay ready)."""
        start = time.monotonic()
        with self._lock:
            slot = self._slots.get(number)
            if slot is None:
                slot = self._slots[number] = _Slot(self._size_bytes(number))
                self._queue.appendleft(number)
            elif not slot.begun and self._queue[0] != number:
                self._queue.remove(number)
                self._queue.appendleft(number)
            if not slot.begun:
                # Also one that was kept back by the limit: it may pass it now.
                self._wake()
            ready = slot.over
            if not ready:
                self._wait(number, slot)
            waited_s = 0.0 if ready else time.monotonic() - start
            self._waited_s += waited_s
            self._done_with(number, slot)
        if slot.error is not None:
            raise slot.error
        if slot.loaded is None:
            raise AssertionError("a slot that is over holds its object or an error")
        return slot.loaded, waited_s

    def drop(self, numbers: Iterable[int]) -> None:
        """These were expected once and will not be asked for; who expects one a second time still gets it."""
        with self._lock:
            for number in numbers:
                slot = self._slots.get(number)
                if slot is None:
                    continue
                slot.wanted -= 1
                if slot.wanted == 0:
                    del self._slots[number]
                    self._let_go(slot)
                    if not slot.begun:
                        self._queue.remove(number)
            self._wake()

    def forget(self) -> None:
        """What was expected will not come: drop it. What is under way is dropped when it arrives."""
        with self._lock:
            for slot in self._slots.values():
                self._let_go(slot)
            self._slots.clear()
            self._queue.clear()

    # Everything below up to `_run`, and `_wait`, is called with the lock held.

    def _let_go(self, slot: _Slot) -> None:
        slot.dropped = slot.begun
        if slot.begun and slot.flying == 0:
            self._held_bytes -= slot.size_bytes

    def _begin(self, slot: _Slot) -> None:
        slot.begun, slot.flying = True, 1
        self._held_bytes += slot.size_bytes

    def _done_with(self, number: int, slot: _Slot) -> None:
        if self._slots.get(number) is not slot:
            return
        del self._slots[number]
        if slot.begun:
            self._held_bytes -= slot.size_bytes
        else:
            self._queue.remove(number)  # given up before it began
        if slot.wanted > 1:
            # It will be asked for again, but not soon: it is loaded again then, and does not hold up others till then.
            self._slots[number] = again = _Slot(slot.size_bytes)
            again.wanted = slot.wanted - 1
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
        over = self._held_bytes + slot.size_bytes > self._limit_bytes and self._held_bytes > 0
        # What somebody waits for is loaded in any case: the limit is for what is ahead of that.
        if over and self._queue[0] not in self._waits_for:
            return None
        number = self._queue.popleft()
        self._begin(slot)
        return number, slot

    def _judge(self) -> None:
        then, loads = self._judged
        now = time.monotonic()
        requests, seconds = self._loads - loads, now - then
        if self.pace.judged_after(requests, seconds):
            self.pace.judge(requests / seconds, starved=self._waited_s > 0.5 * seconds)
            self._judged, self._waited_s = (now, self._loads), 0.0

    # Threads.

    def _run(self) -> None:
        while True:
            with self._lock:
                woken = True
                while (got := self._next()) is None:
                    # Looked once more after the time is up: a wake-up may have come in that moment.
                    if not woken or self._threads - self._stuck > self.pace.concurrency:
                        self._threads -= 1
                        return
                    woken = self._work.wait(_IDLE_S)
                number, slot = got
                self._busy, slot.manned = self._busy + 1, True
            try:
                self._fill(self._load, number, slot)
            finally:
                with self._lock:
                    self._busy, self._stuck = self._busy - (not slot.stuck), self._stuck - slot.stuck
                    slot.manned = slot.stuck = False

    def _fill(self, load: Callable[[int], Loaded], number: int, slot: _Slot) -> None:
        """Load into the slot; the first to do so counts."""
        loaded: Loaded | None = None
        error: Exception | None = None
        try:
            loaded = load(number)
        except Exception as caught:
            error = caught
        except BaseException as caught:  # a panic in obstore is no Exception; somebody waits for an answer
            error = ObjectError(f"Sample {number} could not be read: {type(caught).__name__}.")
        with self._lock:
            if loaded is not None and loaded.source != "cache":
                self._loads += 1
                self._shortest_s = min(self._shortest_s, loaded.seconds)
                if self._loads == FIRST_CONCURRENCY:
                    self.pace.meet(self._shortest_s)
                    self._wake()
                # A stalled one must not make the next stall look usual.
                usual_s = min(loaded.seconds, 4 * self._usual_s) if self._usual_s else loaded.seconds
                self._usual_s += (usual_s - self._usual_s) * (0.1 if self._usual_s else 1.0)
                self._judge()
            slot.flying -= 1
            if slot.dropped and slot.flying == 0:
                self._held_bytes -= slot.size_bytes
            elif loaded is not None and self._slots.get(number) is slot:
                # What the listing did not say is known now.
                self._held_bytes += len(loaded.data) - slot.size_bytes
                slot.size_bytes = len(loaded.data)
            # An error counts only where no other request can still do better.
            if not slot.over and (error is None or slot.flying == 0):
                slot.loaded, slot.error = loaded, error
            if number in self._waits_for:
                self._ready.notify_all()

    def _wait(self, number: int, slot: _Slot) -> None:
        self._waits_for.add(number)
        give_up_s = time.monotonic() + self._patience_s
        while not slot.over:
            usual_s = HEDGE_FACTOR * self._usual_s or HEDGE_FIRST_S
            hedge_s = max(HEDGE_FLOOR_S, usual_s) if self._hedge else self._patience_s
            if self._ready.wait(min(hedge_s, self._patience_s)) or slot.over:
                continue
            if time.monotonic() > give_up_s:
                slot.error = ObjectError(
                    f"Nothing has come of sample {number} for {self._patience_s:.0f} s: reading hangs. Where the "
                    "process that made the loader uses obstore itself, give the loader multiprocessing_context='spawn'."
                )
            elif self._hedge:
                self._again(number, slot)
        self._waits_for.discard(number)

    def _again(self, number: int, slot: _Slot) -> None:
        if slot.manned and not slot.stuck:
            # Another thread takes the place of the one that waits: a few stalled answers must not hold up all others.
            slot.stuck, self._stuck, self._busy = True, self._stuck + 1, self._busy - 1
            self._wake()
        if 0 < slot.flying < MOST_HEDGES:
            slot.flying += 1
            self.hedged += 1
            # Not by way of the cache: there it would wait for the first.
            threading.Thread(target=self._fill, args=(self._load_again, number, slot), daemon=True).start()
