"""What every process that uses a cache says about itself: its limit, its policy, and what it counted.

Each has a row in the ledger file, held by a lock on the row's first byte. Nobody resets a row: the next holder counts
on from where the last one stopped, so that the sum over all rows is the sum over all processes there ever were. Rows
are written every few events: what a killed process counted since (fewer than `_FLUSH_EVERY`) is lost.
"""

import contextlib
import os
import struct
import threading
import time
from dataclasses import dataclass, fields

from stallwise.data.claims import Claims

ROWS_AT = 4096
ROWS = 1024
_ROW = struct.Struct("<9q")  # limit, policy, counts
_STOP = ROWS_AT + ROWS * _ROW.size
_ABSURD = 1 << 60
_FLUSH_EVERY, _FLUSH_S = 64, 0.5


@dataclass(frozen=True, slots=True)
class Counts:
    """What happened in a cache: objects, not bytes."""

    hits: int
    misses: int
    waited: int
    inserted: int
    evicted: int
    bypassed: int
    healed: int


_COLUMNS = {column.name: number for number, column in enumerate(fields(Counts))}


class Tally:
    """This process's row, and the sum of all."""

    def __init__(self, handle: int, claims: Claims) -> None:
        self._handle, self._claims = handle, claims
        self._lock = threading.Lock()
        self._at = -1
        self._counts, self._since, self._flushed_s = [0] * len(_COLUMNS), 0, 0.0
        self._limit = self._policy = 0

    def take(self, limit_bytes: int, policy: int) -> None:
        """Take a row. Where all are taken, the last is shared, and counts are lost between those who do."""
        if self._at >= 0:
            return
        rows = range(ROWS_AT, _STOP, _ROW.size)
        self._at = next((at for at in rows if self._claims.take_byte(at)), rows[-1])
        with self._lock:  # count on from where the last holder stopped
            self._counts = [a + b for a, b in zip(self._counts, _counts_of(self._read(self._at, 1)), strict=True)]
        self._limit, self._policy = limit_bytes, policy
        self._flush()

    def others(self) -> list[tuple[int, int]]:
        """Limit and policy of everybody else who uses the cache now."""
        taken = self._claims.taken_bytes(ROWS_AT, _STOP, _ROW.size)
        return [_ROW.unpack(self._read(at, 1))[:2] for at in taken]

    def add(self, name: str, number: int = 1) -> None:
        """Count something."""
        with self._lock:
            self._counts[_COLUMNS[name]] += number
            self._since += 1
            if self._since >= _FLUSH_EVERY or time.monotonic() - self._flushed_s > _FLUSH_S:
                self._flush()

    def flush(self) -> None:
        """Write what was counted."""
        with self._lock:
            self._flush()

    def total(self) -> Counts:
        """Over all processes, living and dead."""
        self.flush()
        counted = [_counts_of(row) for row in _split(self._read(ROWS_AT, ROWS))]
        if self._at < 0:
            counted.append(self._counts)
        return Counts(*(sum(column) for column in zip(*counted, strict=True)))

    def wipe(self) -> None:
        """Begin at zero: the rows hold nonsense. Others write theirs again when they next count something."""
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
