"""One process's access to a cache folder: reading, keeping and repairing entries.

Keeping an object takes two short changes of the index. The first makes room, charges the disk space and creates the
part file; the second, once the data is written, renames it. At every moment the index charges at least what lies on
the disk, so the limit holds for any number of writers, and a writer that dies leaves a charge without a live
claim, which the next process that needs the room takes back.

No method raises because a cache fails: an object that cannot be kept is simply not kept.
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

from stallwise.data.cache._eviction import GUEST_RANK, Evictor, counts_hits, rank_of_hit, rank_of_insert
from stallwise.data.cache._index import CacheCounts, CacheIndex, CachePolicy, IndexHeader, LockedIndex, UnavailableError
from stallwise.data.cache._locks import FileLocks
from stallwise.data.cache._packs import EntryPacks
from stallwise.data.cache._table import DamagedError
from stallwise.data.cache.files import (
    BadEntryError,
    EntryFiles,
    Fits,
    StoredEntry,
    entries_path,
    index_path,
    packs_path,
    prepare,
    unusable,
)
from stallwise.errors import CacheError

_TOUCHES, _TOUCHES_S = 256, 1.0
# After a failure nothing is kept for this long: a full disk is not tried again for every object.
_PAUSE_S = 5.0
# A long rebuild, or a stopped process: every attempt costs seconds of waiting.
_BUSY_PAUSE_S = 60.0

_log = logging.getLogger("stallwise.data")


class CacheFolder:
    """The folder as this process has it open; any thread may use it."""

    def __init__(self, folder: Path, limit_bytes: int, policy: CachePolicy, *, shared: bool = False) -> None:
        self.pid = os.getpid()
        self._folder, self._policy = folder, policy
        self._is_writable = prepare(folder, shared=shared)
        files = EntryFiles(str(entries_path(folder)))
        try:
            self._index = CacheIndex(index_path(folder), policy, limit_bytes, is_writable=self._is_writable)
        except OSError as error:
            files.close()
            raise unusable(folder, error) from None
        self._entries: EntryFiles | EntryPacks = files
        if policy == "packed":
            self._entries = EntryPacks(files, packs_path(folder), self._index.slot)
        self._evictor = Evictor(self._entries, self._index, policy, limit_bytes)
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
    def locks(self) -> FileLocks:
        """Claims: which process fetches which object."""
        return self._index.locks

    @property
    def is_lost(self) -> bool:
        """Whether the folder was removed and may be reopened."""
        return self._index.is_lost and time.monotonic() >= self._resumes_s

    def count(self, name: str, number: int = 1) -> None:
        """Add `number` to the count of this name (a field of `CacheCounts`)."""
        self._index.tally.add(name, number)

    def charge_bytes(self, size_bytes: int) -> int:
        """Disk space in bytes of an entry with `size_bytes` of data."""
        return self._entries.charge_bytes(size_bytes)

    def contains(self, key: bytes) -> bool:
        """Whether there is an entry; it is not read."""
        return self._entries.contains(key)

    def read(self, key: bytes, next_use_s: float | None = None, fits: Fits | None = None) -> bytes | None:
        """Return the data of an entry; one with a wrong checksum, or handed over and not fitting, is removed."""
        try:
            data = self._entries.read(key, fits)
        except BadEntryError:
            self._heal(key, fits)
            return None
        if data is not None and counts_hits(self._policy):
            self._touch(key, next_use_s)
        return data

    def might_keep(self, key: bytes, size_bytes: int, next_use_s: float | None, *, guest: bool = False) -> bool:
        """Whether an object is likely to be kept, so that other processes should wait for this fetch."""
        if self._is_paused or not (self._is_attached or self._attach()):
            return False
        charge, rank = self._entries.charge_bytes(size_bytes), rank_of_insert(self._policy, 0, next_use_s, guest=guest)
        try:
            if self._evictor.might_fit(key, charge, rank):
                return True
            if not self._touches:
                return False
            self._write_touches()  # hits not written yet may have changed the ranks
            return self._evictor.might_fit(key, charge, rank)
        except OSError:
            return False

    def keep(
        self, key: bytes, data: bytes, next_use_s: float | None, *, guest: bool = False, handed: bool = False
    ) -> bool:
        """Write an object this process has claimed, if there is or can be room for it; return whether it is kept."""
        try:
            with self._tolerating(disk=False):
                handle = self._begin(key, len(data), next_use_s, guest=guest)
                if handle is None:
                    return False
                try:
                    taken = self._entries.write(handle, key, data, handed=handed)
                finally:
                    os.close(handle)
                return self._finish(key, taken)
        except OSError as error:
            self.pause(os.strerror(error.errno or 0))
            self._undo(key)
        return False

    def adopt(self, key: bytes) -> None:
        """Turn a guest entry into one that belongs to this node."""
        if not self._is_attached or self._is_paused:
            return
        with self._tolerating(), self._index.changing() as page:
            slot = page.table.find(key)
            if slot.is_used and slot.rank == GUEST_RANK and self._policy == "no-evict":
                page.head.number += 1
                page.table.set_rank(slot, -float(page.head.number))

    def open_entry(self, key: bytes) -> BinaryIO | None:
        """Open the file of an entry, positioned at its header."""
        return self._entries.open(key)

    def _begin(self, key: bytes, data_bytes: int, next_use_s: float | None, *, guest: bool) -> int | None:
        """Charge the space and create the part; return its descriptor, None if there is no room."""
        charge = self._entries.charge_bytes(data_bytes)
        with self._index.changing() as page:
            self._apply_touches(page)
            # Its file is gone, its writer died, or another node handed it over and it cannot be checked.
            if (slot := page.table.find(key)).is_used:
                self._entries.remove_part(key)
                if not slot.is_written and self._entries.contains(key):
                    self._entries.remove(key)
                page.table.drop(slot)
            after, number = self._entries.allot(page.head.number, data_bytes)
            rank = rank_of_insert(self._policy, number, next_use_s, guest=guest)
            evicted = self._evictor.make_room(page, charge, rank)
            if evicted is None:
                return None
            page.head.number = after
            try:
                page.table.put(page.table.find(key), -charge, rank)
                begun: int | OSError = self._entries.create(key, data_bytes, rank)
            except OSError as error:  # raised below: the index is sound and must not be left dirty
                self._forget_part(page, key)
                begun = error
        if evicted:
            self.count("evicted", evicted)
        if isinstance(begun, OSError):
            raise begun
        return begun

    def _finish(self, key: bytes, charge: int) -> bool:
        """Rename the part, unless the folder was cleared or the file is larger than charged and does not fit."""
        with self._index.holding() as page:
            slot = page.table.find(key)
            if slot.is_written and charge == -slot.charge:
                self._entries.publish(key)
                page.table.finish(slot)
                self.count("inserted")
                return True
        with self._index.changing() as page:
            slot = page.table.find(key)
            grown = charge - abs(slot.charge)
            if slot.is_written and page.table.totals.used_bytes + grown <= self._evictor.limit_bytes(page.head):
                self._entries.publish(key)
                page.table.put(slot, charge, slot.rank)
                self.count("inserted")
                return True
            self._forget_part(page, key)
        return False

    def _undo(self, key: bytes) -> None:
        with self._tolerating(), self._index.changing() as page:
            self._forget_part(page, key)

    def _forget_part(self, page: LockedIndex, key: bytes) -> None:
        self._entries.remove_part(key)
        if (slot := page.table.find(key)).is_written:
            page.table.drop(slot)

    def _heal(self, key: bytes, fits: Fits | None = None) -> None:
        """Remove an entry that is still bad once the index is locked, so that no other process can be repairing it."""
        if not self._is_attached or self._is_paused:
            return
        with self._tolerating(), self._index.changing() as page:
            try:
                self._entries.read(key, fits)
            except BadEntryError:
                self._entries.remove(key)
                slot = page.table.find(key)
                if slot.is_used and not slot.is_written:
                    page.table.drop(slot)
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
            with self._tolerating(), self._index.changing() as page:
                self._apply_touches(page)
        with self._mutex:
            del self._touches[: -4 * _TOUCHES]  # bounded also while the index cannot be locked

    def _apply_touches(self, page: LockedIndex) -> None:
        with self._mutex:
            touches, self._touches = self._touches, []
        for key, next_use_s in touches:
            slot = page.table.find(key)
            page.head.number += 1
            rank = rank_of_hit(self._policy, page.head.number, next_use_s)
            if slot.is_used and rank is not None:
                page.table.set_rank(slot, rank)

    @contextlib.contextmanager
    def _tolerating(self, *, disk: bool = True) -> Iterator[None]:
        """Ignore an index that cannot be locked now; a damaged one is dirty, and the next change rebuilds it."""
        try:
            yield
        except DamagedError:
            pass
        except UnavailableError:
            if not self._index.is_lost:  # if it is, the folder is reopened
                self.pause("another process holds its index", _BUSY_PAUSE_S)
        except OSError:
            if not disk:
                raise

    @property
    def _is_paused(self) -> bool:
        return time.monotonic() < self._resumes_s

    def _attach(self) -> bool:
        """Join the folder. This may fail for a while (a full disk, a long rebuild); entries are still read."""
        if self._is_paused:
            return False
        try:
            self._index.attach(self._folder, self._scan)
            self._entries.create_folder()
            with self._index.changing() as page:
                self._evictor.tidy(page)
                evicted = self._evictor.shrink(page)
                if evicted:
                    self._entries.sweep(page.head.number)
        except OSError as error:
            self.pause(os.strerror(error.errno or 0))
            return False
        except (UnavailableError, DamagedError):
            self.pause("another process holds its index", _BUSY_PAUSE_S)
            return False
        self._is_attached = True
        self.count("evicted", evicted)
        return True

    def _scan(self) -> list[StoredEntry]:
        """List what lies in the folder; parts whose writer died are removed."""
        return [file for file in self._entries.scan() if not (file.is_part and self._remove_dead_part(file.key))]

    def _remove_dead_part(self, key: bytes) -> bool:
        if self.locks.is_live(key):
            return False
        self._entries.remove_part(key)
        return True

    def verify(self, progress: Callable[[int, int], None] | None) -> Iterator[tuple[StoredEntry, bool]]:
        """Read every entry; yield the bad ones, and whether each could be removed."""
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
        """Remove every entry, except those being written at the moment."""
        for file in self._entries.scan():
            if not file.is_part:
                self._entries.remove(file.key)
        self._recount()

    def _recount(self) -> None:
        if self._is_attached or self._attach():
            self._index.recount()
            with self._index.holding() as page:
                self._entries.sweep(page.head.number)

    def totals(self) -> tuple[IndexHeader | None, CacheCounts]:
        """Return the index's header and the counts of all processes."""
        return self._index.peek(), self._index.tally.total()

    def flush(self) -> None:
        """Write batched hits and counts."""
        if not self._is_closed and self._is_attached:
            self._write_touches()
            with contextlib.suppress(OSError):
                self._index.tally.flush()

    def close(self) -> None:
        """Flush and close everything; it must not be used afterwards."""
        if self.pid == os.getpid() and not self._is_closed:
            self.flush()
            self._is_closed = True
            self._index.close()
            self._entries.close()

    def pause(self, reason: str, seconds: float | None = None) -> None:
        """Keep nothing for a while (seconds); log the reason once."""
        self._resumes_s = time.monotonic() + (_PAUSE_S if seconds is None else seconds)
        if not self._has_warned:
            self._has_warned = True
            _log.warning("The cache %s cannot keep anything now: %s. Training goes on without.", self._folder, reason)
