"""Locks on single bytes of one file: which process fetches an object, may change the index, is alive.

They are `fcntl` locks of an open file description (F_OFD_SETLK). The kernel frees them when the last descriptor is
closed, so a process that dies in any way frees what it held: no clean-up, time-out or process number is needed, also
across containers that share the folder. Bytes far beyond the end of the file cost nothing. Two things they do not do:

- Threads of one process share a description and do not exclude each other; callers hold a mutex or look at
  what their own process has claimed first.
- A forked child inherits the description, and would hold the locks of a parent that was killed. Every descriptor is
  therefore closed in the child right after the fork; the child opens its own.
"""

import fcntl
import os
import struct
import threading
import time
from pathlib import Path

import xxhash

_FLOCK = struct.Struct("hhqqi4x")  # struct flock on 64-bit Linux: type, whence, start, length, pid

# The index file's own bytes come first; these offsets lie beyond any of them.
_INDEX_AT = (1 << 62) - 1
_CLAIMS_AT = 1 << 62
_CLAIMS = 1 << 61

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5e-5, 2e-3

_open: set[int] = set()
# No fork between opening a descriptor and recording it. Re-entrant: a finalizer may close one in between.
_forking = threading.RLock()


def open_here(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """Open a file that forked children must not inherit."""
    with _forking:
        handle = os.open(path, flags | os.O_CLOEXEC, mode)
        _open.add(handle)
    return handle


def close_here(handle: int) -> None:
    """Close what `open_here` opened in this process."""
    with _forking:
        if handle in _open:
            _open.discard(handle)
            os.close(handle)


def _close_inherited() -> None:
    for handle in _open:
        os.close(handle)
    _open.clear()
    _forking.release()


os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_close_inherited)


class FileLocks:
    """The byte locks of one open index file."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._mine: set[bytes] = set()

    def take(self, key: bytes) -> bool:
        """Claim an object for this process if no other has; threads must not claim the same one twice."""
        if not self._lock(fcntl.F_WRLCK, _claim_at(key)):
            return False
        self._mine.add(key)
        return True

    def free(self, key: bytes) -> None:
        self._mine.discard(key)
        self._lock(fcntl.F_UNLCK, _claim_at(key))

    def is_live(self, key: bytes) -> bool:
        """Whether some process, this one included, holds the claim."""
        return key in self._mine or self._any_taken(_claim_at(key), 1) is not None

    def take_byte(self, at: int) -> bool:
        """Lock a byte of the file for as long as it is open here."""
        return self._lock(fcntl.F_WRLCK, at)

    def taken_bytes(self, start: int, stop: int, step: int) -> list[int]:
        """Return those of the bytes `start`, `start + step` … below `stop` that other processes have locked."""
        locked, ranges = [], [(start, stop)]
        while ranges:
            first, last = ranges.pop()
            # The kernel names any lock in the range, not the lowest.
            if first < last and (at := self._any_taken(first, last - first)) is not None:
                locked.append(at)
                ranges += [(first, at), (at + step, last)]
        return sorted(locked)

    def take_index(self, patience_s: float) -> bool:
        """Lock the index for changes, waiting at most `patience_s` seconds."""
        deadline, pause_s = time.monotonic() + patience_s, _FIRST_PAUSE_S
        while not self._lock(fcntl.F_WRLCK, _INDEX_AT):
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
        return True

    def free_index(self) -> None:
        self._lock(fcntl.F_UNLCK, _INDEX_AT)

    def _lock(self, kind: int, at: int) -> bool:
        try:
            fcntl.fcntl(self._handle, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, at, 1, 0))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _any_taken(self, start: int, length: int) -> int | None:
        """Return one byte of the range that another description has locked, if any."""
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        kind, _, at, _, _ = _FLOCK.unpack(fcntl.fcntl(self._handle, fcntl.F_OFD_GETLK, query))
        return None if kind == fcntl.F_UNLCK else max(at, start)


def _claim_at(key: bytes) -> int:
    return _CLAIMS_AT + xxhash.xxh3_64_intdigest(key) % _CLAIMS
