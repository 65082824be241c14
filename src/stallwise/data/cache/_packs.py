"""Many small objects in few large files: the storage of the policy *packed*.

    packs/000000   up to 256 MB: entries one after the other, each at a multiple of 64 bytes with the header of an entry

A file per object costs at least a block of 4 KB, an inode, and five system calls per read. Here an entry takes its own
bytes rounded up to 64, and a read is one lookup in the index and one read of the pack. An entry's position is its rank
in the index: entries are numbered by the units that lie before them. Nothing is ever moved or written twice:

    allotted   the header says PART, with key and length: a writer that dies leaves a mark that a scan can step over
    written    then the first bytes say ENTRY; what is read is checked against key, length and checksum
    removed    they say GONE; the space is free again when its whole pack is, and the pack is removed

So packs are for caches that do not evict. An object larger than `MOST_BYTES` is a file of its own.
"""

import contextlib
import errno
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import xxhash

from stallwise.data.cache._locks import close_here, open_here
from stallwise.data.cache._table import TableSlot
from stallwise.data.cache.files import HEADER, MAGIC, BadEntryError, EntryFiles, Fits, StoredEntry

UNIT_BYTES = 64
PACK_UNITS = 1 << 22
MOST_BYTES = 1 << 20
_PART, _GONE = b"SWPART_1", b"SWGONE_1"
_NAME = re.compile(r"[0-9]{6,}")
_FLAGS = os.O_RDWR | os.O_NOFOLLOW
_MOST_OPEN = 256
_LAST_UNIT = 1 << 53


class EntryPacks:
    """The interface of `EntryFiles` over packs; `locate` looks a key up in the index, without its lock."""

    def __init__(self, files: EntryFiles, folder: Path, locate: Callable[[bytes], TableSlot | None]) -> None:
        self._files, self._folder, self._locate = files, folder, locate
        self._mutex = threading.Lock()
        self._open: OrderedDict[int, int] = OrderedDict()
        self._parts: dict[bytes, int] = {}

    def create_folder(self) -> None:
        """Create the folder, which makes the cache a packed one: only for a process that has joined the cache."""
        self._folder.mkdir(exist_ok=True)

    def close(self) -> None:
        with self._mutex:
            while self._open:
                close_here(self._open.popitem()[1])
        self._files.close()

    def charge_bytes(self, data_bytes: int) -> int:
        """Disk space in bytes of an entry with `data_bytes` of data."""
        return self._files.charge_bytes(data_bytes) if data_bytes > MOST_BYTES else UNIT_BYTES * _units(data_bytes)

    def allot(self, number: int, data_bytes: int) -> tuple[int, int]:
        """Return the units in use after this entry, and its number: 1 + the units before it, 0 for a file."""
        if data_bytes > MOST_BYTES:
            return number, 0
        units = _units(data_bytes)
        if number % PACK_UNITS + units > PACK_UNITS:
            number += PACK_UNITS - number % PACK_UNITS
        return number + units, number + 1

    def contains(self, key: bytes) -> bool:
        """Whether there is an entry, good or bad."""
        slot = self._slot(key)
        if slot is None or slot.is_written:
            return False
        return slot.rank < 0 or self._files.contains(key)

    def read(self, key: bytes, fits: Fits | None = None) -> bytes | None:
        """Return the data of an entry, None if there is none; BadEntryError if its checksum is wrong."""
        slot = self._slot(key)
        if slot is None or slot.is_written:
            return None
        if slot.rank >= 0:
            return self._files.read(key, fits)
        try:
            whole = self._bytes(_at(slot.rank), min(slot.charge, UNIT_BYTES * _units(MOST_BYTES)))
        except OSError as error:
            if error.errno == errno.EIO:
                raise BadEntryError("the disk could not read it") from None
            return None
        return _checked(whole, key)

    def open(self, key: bytes) -> BinaryIO | None:
        """Open an entry that is a file of its own; packed entries are not served to peers."""
        return self._files.open(key)

    def create(self, key: bytes, data_bytes: int, rank: float) -> int:
        """Mark the position as PART; return a descriptor to write to."""
        if rank >= 0:
            return self._files.create(key, data_bytes, rank)
        at = self._parts[key] = _at(rank)
        handle = self._pack(at, create=True)
        if handle is None:
            raise FileNotFoundError(f"the pack of {key.hex()}")
        try:
            os.pwrite(handle, HEADER.pack(_PART, key, data_bytes, bytes(16)), UNIT_BYTES * (at % PACK_UNITS))
        except OSError:
            os.close(handle)
            raise
        return handle

    def write(self, handle: int, key: bytes, data: bytes, *, handed: bool = False) -> int:
        """Write header and data at the position `create` marked; return the disk space they take."""
        if key not in self._parts:
            return self._files.write(handle, key, data, handed=handed)
        header = HEADER.pack(_PART, key, len(data), xxhash.xxh3_128_digest(data))
        rest, at = memoryview(header + data), UNIT_BYTES * (self._parts[key] % PACK_UNITS)
        while rest:
            done = os.pwrite(handle, rest, at)
            rest, at = rest[done:], at + done
        return self.charge_bytes(len(data))

    def publish(self, key: bytes) -> None:
        """Make the part an entry atomically."""
        at = self._parts.pop(key, None)
        if at is None:
            self._files.publish(key)
        else:
            self._mark(at, MAGIC)

    def remove(self, key: bytes) -> bool:
        """Remove an entry; return whether there was one."""
        slot = self._locate(key)
        if slot is None or slot.rank >= 0:
            return self._files.remove(key)
        try:
            return self._mark(_at(slot.rank), _GONE)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False  # unreadable, so it cannot be marked; its record is dropped all the same

    def remove_part(self, key: bytes) -> None:
        """Mark the part of an entry as removed, if there is one."""
        at = self._parts.pop(key, None)
        slot = self._locate(key)
        if at is None and slot is not None and slot.is_written and slot.rank < 0:
            at = _at(slot.rank)
        if at is not None:
            with contextlib.suppress(OSError):  # a part that stays has no live claim, and a scan drops it
                self._mark(at, _GONE)
        self._files.remove_part(key)

    def scan(self) -> Iterator[StoredEntry]:
        """Yield every entry and part on the disk."""
        for path in self._packs():
            yield from self._scan_pack(int(path.name))
        yield from self._files.scan()

    def sweep(self, number: int) -> None:
        """Remove empty packs, except the one being filled (`number` units are in use)."""
        for path in self._packs():
            if int(path.name) != number // PACK_UNITS and not any(self._scan_pack(int(path.name))):
                path.unlink()

    def _packs(self) -> list[Path]:
        try:
            return sorted(path for path in self._folder.iterdir() if _NAME.fullmatch(path.name))
        except FileNotFoundError:
            return []

    def _scan_pack(self, pack: int) -> Iterator[StoredEntry]:
        first = pack * PACK_UNITS
        handle = self._pack(first)
        if handle is None:
            return
        try:
            yield from self._scan_units(handle, first)
        finally:
            os.close(handle)

    def _scan_units(self, handle: int, first: int) -> Iterator[StoredEntry]:
        facts, unit = os.fstat(handle), 0
        end = min(-(-facts.st_size // UNIT_BYTES), PACK_UNITS)
        while unit < end:
            header = os.pread(handle, HEADER.size, UNIT_BYTES * unit)
            magic, key, length, _ = HEADER.unpack(header.ljust(HEADER.size, b"\0"))
            if magic not in (MAGIC, _PART, _GONE) or length > MOST_BYTES:
                unit += 1  # allotted and never marked
                continue
            if magic != _GONE:
                taken, at = UNIT_BYTES * _units(length), first + unit
                yield StoredEntry(key, taken, facts.st_mtime_ns, magic == _PART, -float(at + 1), at + _units(length))
            unit += _units(length)

    def _slot(self, key: bytes) -> TableSlot | None:
        """Look the key up; None also where the index cannot be read now."""
        try:
            return self._locate(key)
        except OSError:
            return None

    def _bytes(self, at: int, count: int) -> bytes:
        handle = self._pack(at)
        if handle is None:
            return b""
        try:
            return os.pread(handle, count, UNIT_BYTES * (at % PACK_UNITS))
        finally:
            os.close(handle)

    def _mark(self, at: int, magic: bytes) -> bool:
        handle = self._pack(at)
        if handle is None:
            return False
        try:
            return os.pwrite(handle, magic, UNIT_BYTES * (at % PACK_UNITS)) == len(magic)
        finally:
            os.close(handle)

    def _pack(self, at: int, *, create: bool = False) -> int | None:
        """Return a descriptor of a unit's pack, for the caller to close: another thread may close ours meanwhile."""
        pack = at // PACK_UNITS
        with self._mutex:
            handle = self._open.get(pack)
            if handle is None:
                try:
                    handle = _opened(self._folder / f"{pack:06d}", create=create)
                except FileNotFoundError:
                    return None
                self._open[pack] = handle
            self._open.move_to_end(pack)
            if len(self._open) > _MOST_OPEN:
                close_here(self._open.popitem(last=False)[1])
            return os.dup(handle)


def _opened(path: Path, *, create: bool) -> int:
    try:
        return open_here(path, _FLAGS | (os.O_CREAT if create else 0))
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise
    return open_here(path, os.O_RDONLY | os.O_NOFOLLOW)  # its entries can still be read


def _units(data_bytes: int) -> int:
    return -(-(HEADER.size + data_bytes) // UNIT_BYTES)


def _at(rank: float) -> int:
    """Return the unit of an entry; a rank that can be none is beyond all packs, where nothing is."""
    return int(-rank) - 1 if -rank < _LAST_UNIT else _LAST_UNIT


def _checked(whole: bytes, key: bytes) -> bytes | None:
    if len(whole) < HEADER.size:
        return None
    magic, own_key, length, digest = HEADER.unpack_from(whole)
    if magic != MAGIC or own_key != key:
        return None  # removed, or the index changed in this moment
    data = whole[HEADER.size : HEADER.size + length]
    if len(data) < length or xxhash.xxh3_128_digest(data) != digest:
        raise BadEntryError("its checksum is wrong")
    return data
