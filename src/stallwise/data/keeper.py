"""One process's hold on a cache folder: what it reads, keeps and repairs.

Keeping an object takes two short changes of the ledger. The first makes room, charges the disk space and creates the
part file; the second, once the data is written, renames it. At every moment the ledger charges at least what lies on
the disk, so the limit holds for any number of writers, and a writer that dies leaves a charge without a live
claim, which the next one who needs the room takes back.

Nothing here raises because a cache fails: an object that cannot be kept is simply not kept.
"""

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from stallwise.data.claims import Claims
from stallwise.data.entries import BadEntryError, Entries, Found
from stallwise.data.folder import entries_path, ledger_path, packs_path, prepare, unusable
from stallwise.data.ledger import Head, Ledger, Page, UnavailableError
from stallwise.data.packs import Packs
from stallwise.data.policy import GUEST_RANK, Policy, counts_hits, rank_of_hit, rank_of_insert
from stallwise.data.room import Room
from stallwise.data.table import DamagedError
from stallwise.data.tally import Counts
from stallwise.errors import CacheError

_TOUCHES, _TOUCHES_S = 256, 1.0
# After a failure nothing is kept for so long: a full disk is not asked again for every object.
_PAUSE_S = 5.0
# A long rebuild, or a stopped process: every attempt costs seconds of waiting.
_BUSY_PAUSE_S = 60.0

_log = logging.getLogger("stallwise.data")


class Keeper:
    """The folder as this process holds it; any thread may use it."""

    def __init__(self, folder: Path, limit_bytes: int, policy: Policy) -> None:
        self.pid = os.getpid()
        self._folder, self._policy = folder, policy
        self._is_writable = prepare(folder)
        files = Entries(str(entries_path(folder)))
        try:
            self._ledger = Ledger(ledger_path(folder), policy, limit_bytes, is_writable=self._is_writable)
        except OSError as error:
            files.close()
            raise unusable(folder, error) from None
        self._entries: Entries | Packs = files
        if policy == "packed":
            self._entries = Packs(files, packs_path(folder), self._ledger.place)
        self._room = Room(self._entries, self._ledger, policy, limit_bytes)
        self._mutex = threading.Lock()
        self._touches: list[tuple[bytes, float | None]] = []
        self._touched_s = time.monotonic()
        self._resumes_s, self._has_warned, self._is_attached, self._is_closed = 0.0, False, False, False
        if not self._is_writable:
            self.pause("it is read-only", math.inf)
        try:
            self._attach()
        except CacheError:
            self.close()
            raise

    @property
    def claims(self) -> Claims:
        """Who fetches what."""
        return self._ledger.claims

    @property
    def is_lost(self) -> bool:
        """Whether the folder was removed, and may be opened anew."""
        return self._ledger.is_lost and time.monotonic() >= self._resumes_s

    def count(self, name: str, number: int = 1) -> None:
        """Count something."""
        self._ledger.tally.add(name, number)

    def charge_bytes(self, size_bytes: int) -> int:
        """The space an entry of this size takes."""
        return self._entries.charge_bytes(size_bytes)

    def contains(self, key: bytes) -> bool:
        """Whether there is an entry, unread."""
        return self._entries.contains(key)

    def read(self, key: bytes, next_use_s: float | None = None) -> bytes | None:
        """The data of an entry; one that is not what was put in is removed."""
        try:
            data = self._entries.read(key)
        except BadEntryError:
            self._heal(key)
            return None
        if data is not None and counts_hits(self._policy):
            self._touch(key, next_use_s)
        return data

    def might_keep(self, key: bytes, size_bytes: int, next_use_s: float | None, *, guest: bool = False) -> bool:
        """Whether an object is likely to be kept, and so worth fetching for everybody."""
        if self._is_paused or not (self._is_attached or self._attach()):
            return False
        charge, rank = self._entries.charge_bytes(size_bytes), rank_of_insert(self._policy, 0, next_use_s, guest=guest)
        try:
            if self._room.might_fit(key, charge, rank):
                return True
            if not self._touches:
                return False
            self._write_touches()  # what was hit since may now be the farthest
            return self._room.might_fit(key, charge, rank)
        except OSError:
            return False

    def keep(self, key: bytes, data: bytes, next_use_s: float | None, *, guest: bool = False) -> bool:
        """Keep an object this process has claimed, if there is or can be room for it."""
        try:
            with self._tolerating(disk=False):
                handle = self._begin(key, len(data), next_use_s, guest=guest)
                if handle is None:
                    return False
                try:
                    taken = self._entries.write(handle, key, data)
                finally:
                    os.close(handle)
                return self._finish(key, taken)
        except OSError as error:
            self.pause(os.strerror(error.errno or 0))
            self._undo(key)
        return False

    def adopt(self, key: bytes) -> None:
        """An entry that may have come as a guest belongs here from now on."""
        if not self._is_attached or self._is_paused:
            return
        with self._tolerating(), self._ledger.changing() as page:
            place = page.table.find(key)
            if place.is_there and place.rank == GUEST_RANK and self._policy == "no-evict":
                page.head.number += 1
                page.table.set_rank(place, -float(page.head.number))

    def open_entry(self, key: bytes) -> BinaryIO | None:
        """The file of an entry, header and all, unread."""
        return self._entries.open(key)

    def _begin(self, key: bytes, data_bytes: int, next_use_s: float | None, *, guest: bool) -> int | None:
        """Charge the space and create the part; None if there is no room."""
        charge = self._entries.charge_bytes(data_bytes)
        with self._ledger.changing() as page:
            self._apply_touches(page)
            if (place := page.table.find(key)).is_there:  # its file is gone, or its writer died
                self._entries.remove_part(key)
                page.table.drop(place)
            after, number = self._entries.allot(page.head.number, data_bytes)
            rank = rank_of_insert(self._policy, number, next_use_s, guest=guest)
            evicted = self._room.make(page, charge, rank)
            if evicted is None:
                return None
            page.head.number = after
            try:
                page.table.put(page.table.find(key), -charge, rank)
                begun: int | OSError = self._entries.create(key, data_bytes, rank)
            except OSError as error:  # raised below: the ledger is sound, and must not be left dirty
                self._forget_part(page, key)
                begun = error
        if evicted:
            self.count("evicted", evicted)
        if isinstance(begun, OSError):
            raise begun
        return begun

    def _finish(self, key: bytes, charge: int) -> bool:
        """Rename the part, unless the folder was cleared or the file takes more than it was charged and fits."""
        with self._ledger.holding() as page:
            place = page.table.find(key)
            if place.is_written and charge == -place.charge:
                self._entries.publish(key)
                page.table.finish(place)
                self.count("inserted")
                return True
        with self._ledger.changing() as page:
            place = page.table.find(key)
            grown = charge - abs(place.charge)
            if place.is_written and page.table.totals.used_bytes + grown <= self._room.limit_bytes(page.head):
                self._entries.publish(key)
                page.table.put(place, charge, place.rank)
                self.count("inserted")
                return True
            self._forget_part(page, key)
        return False

    def _undo(self, key: bytes) -> None:
        with self._tolerating(), self._ledger.changing() as page:
            self._forget_part(page, key)

    def _forget_part(self, page: Page, key: bytes) -> None:
        self._entries.remove_part(key)
        if (place := page.table.find(key)).is_written:
            page.table.drop(place)

    def _heal(self, key: bytes) -> None:
        """Remove an entry that is still bad when nobody else can be repairing it."""
        if not self._is_attached or self._is_paused:
            return
        with self._tolerating(), self._ledger.changing() as page:
            try:
                self._entries.read(key)
            except BadEntryError:
                self._entries.remove(key)
                place = page.table.find(key)
                if place.is_there and not place.is_written:
                    page.table.drop(place)
                self.count("healed")

    def _touch(self, key: bytes, next_use_s: float | None) -> None:
        with self._mutex:
            self._touches.append((key, next_use_s))
            now_s = time.monotonic()
            if len(self._touches) < _TOUCHES and now_s - self._touched_s < _TOUCHES_S:
                return
            self._touched_s = now_s
        self._write_touches()

    def _write_touches(self) -> None:
        if self._touches and self._is_attached and not self._is_paused:
            with self._tolerating(), self._ledger.changing() as page:
                self._apply_touches(page)
        with self._mutex:
            del self._touches[: -4 * _TOUCHES]  # a ledger that cannot be had must not eat the memory

    def _apply_touches(self, page: Page) -> None:
        with self._mutex:
            touches, self._touches = self._touches, []
        for key, next_use_s in touches:
            place = page.table.find(key)
            page.head.number += 1
            rank = rank_of_hit(self._policy, page.head.number, next_use_s)
            if place.is_there and rank is not None:
                page.table.set_rank(place, rank)

    @contextlib.contextmanager
    def _tolerating(self, *, disk: bool = True) -> Iterator[None]:
        """Go on without a ledger that cannot be had now; a damaged one is dirty, and the next change rebuilds it."""
        try:
            yield
        except DamagedError:
            pass
        except UnavailableError:
            if not self._ledger.is_lost:  # if it is, the folder is opened anew
                self.pause("somebody holds its ledger", _BUSY_PAUSE_S)
        except OSError:
            if not disk:
                raise

    @property
    def _is_paused(self) -> bool:
        return time.monotonic() < self._resumes_s

    def _attach(self) -> bool:
        """Join the folder; it may fail for a while (a full disk, a long rebuild), and entries are read all the same."""
        if self._is_paused:
            return False
        try:
            self._ledger.attach(self._folder, self._scan)
            self._entries.furnish()
            with self._ledger.changing() as page:
                self._room.tidy(page)
                evicted = self._room.shrink(page)
                if evicted:
                    self._entries.sweep(page.head.number)
        except OSError as error:
            self.pause(os.strerror(error.errno or 0))
            return False
        except (UnavailableError, DamagedError):
            self.pause("somebody holds its ledger", _BUSY_PAUSE_S)
            return False
        self._is_attached = True
        self.count("evicted", evicted)
        return True

    def _scan(self) -> list[Found]:
        """What lies in the folder; parts whose writer died are removed."""
        return [file for file in self._entries.scan() if not (file.is_part and self._is_dead(file.key))]

    def _is_dead(self, key: bytes) -> bool:
        if self.claims.is_live(key):
            return False
        self._entries.remove_part(key)
        return True

    def verify(self, progress: Callable[[int, int], None] | None) -> Iterator[tuple[Found, bool]]:
        """Read everything; yields what is bad, and whether it could be removed."""
        files = [file for file in self._entries.scan() if not file.is_part]
        for number, file in enumerate(files, 1):
            try:
                self._entries.read(file.key)
            except BadEntryError:
                self._heal(file.key)
                yield file, not self._entries.contains(file.key)
            if progress:
                progress(number, len(files))
        self._recount()

    def clear(self) -> None:
        """Remove every entry. What is being written at the moment stays."""
        for file in self._entries.scan():
            if not file.is_part:
                self._entries.remove(file.key)
        self._recount()

    def _recount(self) -> None:
        if self._is_attached or self._attach():
            self._ledger.recount()
            with self._ledger.holding() as page:
                self._entries.sweep(page.head.number)

    def totals(self) -> tuple[Head | None, Counts]:
        """The ledger's head and all counts."""
        return self._ledger.peek(), self._ledger.tally.total()

    def flush(self) -> None:
        """Write what was batched."""
        if not self._is_closed and self._is_attached:
            self._write_touches()
            with contextlib.suppress(OSError):
                self._ledger.tally.flush()

    def close(self) -> None:
        """Flush and free everything; nobody may use it any more."""
        if self.pid == os.getpid() and not self._is_closed:
            self.flush()
            self._is_closed = True
            self._ledger.close()
            self._entries.close()

    def pause(self, reason: str, seconds: float | None = None) -> None:
        """Keep nothing for a while; say why, once."""
        self._resumes_s = time.monotonic() + (_PAUSE_S if seconds is None else seconds)
        if not self._has_warned:
            self._has_warned = True
            _log.warning("The cache %s cannot keep anything now: %s. Training goes on without.", self._folder, reason)
