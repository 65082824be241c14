"""The shared index file of a cache: a header, one row per process that uses the cache, and the table of entries.

A process that changes it holds its lock and marks the header dirty meanwhile; a dirty or damaged index is rebuilt from
what lies in the folder. Each process has a row with its limit, its policy and its counts, held by a lock on the row's
first byte. Rows are never reset: the next holder counts on from where the last one stopped, so the sum over all rows is
the sum over all processes that ever used the cache. Rows are written every few events: what a killed process counted
since (fewer than `_FLUSH_EVERY`) is lost.
"""

import contextlib
import math
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, get_args

import xxhash

from stallwise.data.cache._locks import FileLocks, close_here, open_here
from stallwise.data.cache._table import DamagedError, EntryTable, TableSlot, TableTotals
from stallwise.data.cache.files import StoredEntry
from stallwise.errors import CacheError

CachePolicy = Literal["no-evict", "farthest", "lru", "fifo", "importance", "packed"]
"""Eviction policies (`eviction` says what each does). The header stores the position in this list: append only."""
POLICIES: tuple[CachePolicy, ...] = get_args(CachePolicy)
RANKED: frozenset[CachePolicy] = frozenset({"farthest", "importance"})
"""Policies under which the reader supplies an entry's rank; an entry without one is evicted first."""

ROWS_AT = 4096
ROWS = 1024
_ROW = struct.Struct("<9q")  # limit, policy, counts
_STOP = ROWS_AT + ROWS * _ROW.size
_ABSURD = 1 << 60
_FLUSH_EVERY, _FLUSH_S = 64, 0.5


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Events in a cache, in objects."""

    hits: int
    misses: int
    waited: int
    inserted: int
    evicted: int
    bypassed: int
    healed: int


_COLUMNS = {column.name: number for number, column in enumerate(fields(CacheCounts))}


class Tally:
    """This process's row of limit, policy and counts, and the sum over all rows."""

    def __init__(self, handle: int, locks: FileLocks) -> None:
        self._handle, self._locks = handle, locks
        self._lock = threading.Lock()
        self._at = -1
        self._counts, self._since, self._flushed_s = [0] * len(_COLUMNS), 0, 0.0
        self._limit = self._policy = 0

    def take(self, limit_bytes: int, policy: int) -> None:
        """Take a row. When all are taken, the last one is shared, and its sharers may lose counts."""
        if self._at >= 0:
            return
        rows = range(ROWS_AT, _STOP, _ROW.size)
        self._at = next((at for at in rows if self._locks.take_byte(at)), rows[-1])
        with self._lock:  # count on from where the last holder stopped
            self._counts = [a + b for a, b in zip(self._counts, _counts_of(self._read(self._at, 1)), strict=True)]
        self._limit, self._policy = limit_bytes, policy
        self._flush()

    def others(self) -> list[tuple[int, int]]:
        """Return limit and policy of every other process that uses the cache now."""
        taken = self._locks.taken_bytes(ROWS_AT, _STOP, _ROW.size)
        return [_ROW.unpack(self._read(at, 1))[:2] for at in taken]

    def add(self, name: str, number: int = 1) -> None:
        """Add `number` to the count of this name (a field of `CacheCounts`)."""
        with self._lock:
            self._counts[_COLUMNS[name]] += number
            self._since += 1
            if self._since >= _FLUSH_EVERY or time.monotonic() - self._flushed_s > _FLUSH_S:
                self._flush()

    def flush(self) -> None:
        with self._lock:
            self._flush()

    def total(self) -> CacheCounts:
        """Sum the counts of all processes, living and dead."""
        self.flush()
        counted = [_counts_of(row) for row in _split(self._read(ROWS_AT, ROWS))]
        if self._at < 0:
            counted.append(self._counts)
        return CacheCounts(*(sum(column) for column in zip(*counted, strict=True)))

    def wipe(self) -> None:
        """Zero all rows, because they are damaged. Other processes rewrite theirs at their next event."""
        os.pwrite(self._handle, bytes(_STOP - ROWS_AT), ROWS_AT)
        self.flush()

    def _flush(self) -> None:
        self._since, self._flushed_s = 0, time.monotonic()
        if self._at >= 0:
            with contextlib.suppress(OSError):
                os.pwrite(self._handle, _ROW.pack(self._limit, self._policy, *self._counts), self._at)

    def _read(self, at: int, rows: int) -> bytes:
        return os.pread(self._handle, rows * _ROW.size, at).ljust(rows * _ROW.size, b"\0")


def _split(rows: bytes) -> list[bytes]:
    return [rows[at : at + _ROW.size] for at in range(0, len(rows), _ROW.size)]


def _counts_of(row: bytes) -> list[int]:
    counts = list(_ROW.unpack(row)[2:])
    return counts if all(0 <= count < _ABSURD for count in counts) else [0] * len(counts)


_MAGIC = b"SWLEDGR1"
_HEADER = struct.Struct("<8sII16sqqd4qQ")
_SUM = struct.Struct("<Q")
_PATIENCE_S = 5.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class UnavailableError(Exception):
    """The index cannot be locked now: another process holds it for long, or its file was removed."""


@dataclass(slots=True)
class IndexHeader:
    """The first bytes of the index file. `number` counts insertions and, under LRU, hits."""

    policy: int
    limit_bytes: int
    boot: bytes
    number: int = 0
    tidied_s: float = 0.0
    is_dirty: bool = False
    totals: TableTotals = field(default_factory=TableTotals)


@dataclass(slots=True)
class LockedIndex:
    """The header and table of an index whose lock the caller holds."""

    head: IndexHeader
    table: EntryTable


class CacheIndex:
    """An open index file."""

    def __init__(self, path: Path, policy: CachePolicy, limit_bytes: int, *, is_writable: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT if is_writable else os.O_RDONLY
        self._handle = open_here(path, flags | os.O_NOFOLLOW)
        self.locks = FileLocks(self._handle)
        self.tally = Tally(self._handle, self.locks)
        self._policy, self._limit_bytes = POLICIES.index(policy), limit_bytes
        self._boot = _boot()
        self._mutex = threading.Lock()
        self.is_lost = False

    def close(self) -> None:
        """Close the file, which frees every lock on it."""
        close_here(self._handle)

    def attach(self, folder: Path, scan: Callable[[], list[StoredEntry]]) -> None:
        """Join the processes that use the folder: same policy, and the lowest limit of all.

        The records are added up once, here; an index that is not sound is rebuilt from `scan`.
        """
        self._scan = scan
        with self._locked():
            other = next((policy for _, policy in self.tally.others() if policy != self._policy), None)
            if other is not None:
                raise _other_policy(folder, self._policy, other)
            self.tally.take(self._limit_bytes, self._policy)
            head = self.peek()
            if head is None or head.policy != self._policy or not self._is_sound(head):
                head = self._rebuilt(head)
            head.limit_bytes = self.lowest_limit_bytes()
            self._store(head)

    def lowest_limit_bytes(self) -> int:
        """Return the lowest limit among the processes that use the folder now, this one included."""
        return min([self._limit_bytes, *(limit for limit, _ in self.tally.others() if limit > 0)])

    @contextlib.contextmanager
    def holding(self) -> Iterator[LockedIndex]:
        """Lock the index for reading and for changes of a single record that leave its totals alone."""
        with self._locked():
            head = self.peek()
            if head is None or head.is_dirty or head.boot != self._boot:
                head = self._rebuilt(head)
                self._store(head)
            yield LockedIndex(head, self.table(head))

    @contextlib.contextmanager
    def changing(self) -> Iterator[LockedIndex]:
        """Lock the index for changes. An exception leaves it dirty, and the next caller rebuilds it."""
        with self.holding() as page:
            page.head.is_dirty = True
            self._store(page.head)
            yield page
            page.head.is_dirty, page.head.totals = False, page.table.totals
            self._store(page.head)

    def peek(self) -> IndexHeader | None:
        """Read the header without the lock; None if it is damaged."""
        data = os.pread(self._handle, _HEADER.size + _SUM.size, 0)
        if len(data) < _HEADER.size + _SUM.size or not data.startswith(_MAGIC):
            return None
        if _SUM.unpack(data[_HEADER.size :])[0] != xxhash.xxh3_64_intdigest(data[: _HEADER.size]):
            return None
        _, policy, dirty, boot, limit, number, tidied_s, *totals = _HEADER.unpack(data[: _HEADER.size])
        return IndexHeader(policy, limit, boot, number, tidied_s, bool(dirty), TableTotals(*totals))

    def slot(self, key: bytes) -> TableSlot | None:
        """Return the record of `key`, read without the lock: the caller must check what lies where it points."""
        head = self.peek()
        try:
            slot = None if head is None else self.table(head).find(key)
        except DamagedError:
            return None
        return slot if slot is not None and slot.is_used else None

    def contains(self, key: bytes) -> bool:
        """Whether there is a record of `key`: probably, because it is read without the lock."""
        head = self.peek()
        try:
            return head is not None and self.table(head).find(key).is_used
        except DamagedError:
            return True

    def table(self, head: IndexHeader) -> EntryTable:
        """Return the table of records; without the lock it may only be read."""
        return EntryTable(self._handle, head.totals)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._mutex.acquire(timeout=_PATIENCE_S):
            raise UnavailableError("another thread holds it")
        try:
            if not self.locks.take_index(_PATIENCE_S):
                raise UnavailableError("another process holds it")
            try:
                # The folder was removed: locks on a file without a name exclude no process.
                self.is_lost = os.fstat(self._handle).st_nlink == 0
                if self.is_lost:
                    raise UnavailableError("it was removed")
                yield
            finally:
                self.locks.free_index()
        finally:
            self._mutex.release()

    def _is_sound(self, head: IndexHeader) -> bool:
        if head.is_dirty or head.boot != self._boot:
            return False
        with contextlib.suppress(DamagedError):
            return self.table(head).is_sound()
        return False

    def recount(self) -> None:
        """Rebuild the index from what lies in the folder."""
        with self._locked():
            self._store(self._rebuilt(self.peek()))

    def _rebuilt(self, old: IndexHeader | None) -> IndexHeader:
        """Rebuild the table from the folder. Ranks are carried over; a file without one is evicted first."""
        head = IndexHeader(self._policy, self.lowest_limit_bytes(), self._boot)
        ranks: dict[bytes, float] = {}
        if old is None:
            self.tally.wipe()
        else:
            ranks = self._ranks(old)
            old.is_dirty = True
            self._store(old)  # should we be killed while we write the table
            head.number = old.number if old.policy == self._policy else 0  # other policies count other things
        scanned = self._scan()
        head.number = max([head.number, *(file.number for file in scanned)])
        ranks |= {file.key: file.rank for file in scanned if file.rank is not None}
        charges = _charges(scanned)
        first = math.inf if POLICIES[self._policy] in RANKED else 0.0
        table = self.table(head)
        table.fill(list(charges), list(charges.values()), [ranks.get(key, first) for key in charges])
        head.totals = table.totals
        return head

    def _ranks(self, head: IndexHeader) -> dict[bytes, float]:
        """Read the ranks of the old table, as far as it is readable."""
        with contextlib.suppress(DamagedError):
            return dict(self.table(head).ranks()) if head.policy == self._policy else {}
        return {}

    def _store(self, head: IndexHeader) -> None:
        totals = head.totals
        settings = (head.policy, head.is_dirty, head.boot, head.limit_bytes, head.number, head.tidied_s)
        data = _HEADER.pack(
            _MAGIC, *settings, totals.slots, totals.used_bytes, totals.records, totals.gone, totals.fold
        )
        os.pwrite(self._handle, data + _SUM.pack(xxhash.xxh3_64_intdigest(data)), 0)


def _charges(entries: Iterable[StoredEntry]) -> dict[bytes, int]:
    """Disk space in bytes by key, oldest first; negative for an entry being written."""
    charges: dict[bytes, int] = {}
    for file in sorted(entries, key=lambda file: file.modified_ns):
        before = charges.get(file.key, 0)
        charge = abs(before) + file.charge_bytes
        charges[file.key] = -charge if file.is_part or before < 0 else charge
    return charges


def _boot() -> bytes:
    """Identify this boot of the machine: entries being written before a reboot have no writer any more."""
    try:
        return xxhash.xxh3_128_digest(_BOOT.read_bytes())
    except OSError:
        return bytes(16)


def _other_policy(folder: Path, own: int, other: int) -> CacheError:
    return CacheError(
        f"The cache folder {folder} is in use with policy {POLICIES[other]!r} and cannot be opened with "
        f"{POLICIES[own]!r}. Use the same policy, or another folder."
    )
