"""One file per object in a cache folder: its format, and how it is read, written, found and removed.

    entries/1/1f0c…        48 bytes of header (magic with format, key, length, xxh3-128 of the data), then the data
    entries/1/1f0c….part   the same, being written; a rename makes it an entry

Names are the hexadecimal digits of 16-byte keys, so the name of an object never touches the file system. Nothing is
flushed to the disk: what a power cut leaves half written fails its checksum when it is read. Files and folders of any
other name, links and special files are never touched.
"""

import contextlib
import errno
import os
import re
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

import xxhash

from stallwise.data.claims import close_here, open_here

MAGIC = b"SWENTRY1"
HEADER = struct.Struct("<8s16sQ16s")
KEY_BYTES = 16
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_SHELF = re.compile(r"[0-9a-f]")
_ENTRY = re.compile(r"([0-9a-f]{32})(\.part)?")
_BLOCK_BYTES = 4096


class BadEntryError(Exception):
    """The bytes of an entry are not those that were put in."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file of the cache as it lies on the disk; `charge_bytes` is the disk space it takes or will take."""

    key: bytes
    charge_bytes: int
    modified_ns: int
    is_part: bool
    rank: float | None = None
    """Where the place on the disk says it."""
    number: int = 0
    """The ledger's number after it, where that counts places."""


class Entries:
    """The entry files under one folder, addressed by key."""

    def __init__(self, folder: str) -> None:
        self._folder = open_here(folder, _FOLDER)
        self._block = max(_BLOCK_BYTES, os.fstatvfs(self._folder).f_frsize)

    def close(self) -> None:
        """Let the folder go."""
        close_here(self._folder)

    def charge_bytes(self, data_bytes: int) -> int:
        """Disk space an entry of so much data takes: whole blocks."""
        return -(-(HEADER.size + data_bytes) // self._block) * self._block

    def contains(self, key: bytes) -> bool:
        """Whether there is an entry, good or bad."""
        try:
            os.stat(_name(key), dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return False
        return True

    def read(self, key: bytes) -> bytes | None:
        """The data of an entry, None if there is none; BadEntryError if it is not what was put in."""
        try:
            handle = os.open(_name(key), _READ, dir_fd=self._folder)
        except OSError:
            return None
        try:
            return _checked(handle, key)
        except OSError as error:
            if error.errno == errno.EIO:
                raise BadEntryError("the disk could not read it") from None
            return None
        finally:
            os.close(handle)

    def open(self, key: bytes) -> BinaryIO | None:
        """The file of an entry, header and all, unread."""
        try:
            return cast("BinaryIO", os.fdopen(os.open(_name(key), _READ, dir_fd=self._folder), "rb", buffering=0))
        except OSError:
            return None

    def allot(self, number: int, data_bytes: int) -> tuple[int, int]:
        """The ledger's number after another entry, and the entry's own."""
        return number + 1, number + 1

    def create(self, key: bytes, data_bytes: int, rank: float) -> int:
        """An open part file that already has the length of the whole entry, so that a scan sees what it will take."""
        try:
            handle = os.open(_name(key) + ".part", _WRITE, 0o666, dir_fd=self._folder)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(key.hex()[0], dir_fd=self._folder)
            handle = os.open(_name(key) + ".part", _WRITE, 0o666, dir_fd=self._folder)
        try:
            os.truncate(handle, HEADER.size + data_bytes)
        except OSError:
            os.close(handle)
            raise
        return handle

    def write(self, handle: int, key: bytes, data: bytes) -> int:
        """Header and data into an open part file; the space it takes."""
        write_part(handle, key, data)
        return max(512 * os.fstat(handle).st_blocks, self.charge_bytes(len(data)))

    def furnish(self) -> None:
        """The folder is there."""

    def sweep(self, number: int) -> None:
        """Files leave nothing behind."""

    def publish(self, key: bytes) -> None:
        """Make the part an entry, in one step."""
        name = _name(key)
        os.replace(name + ".part", name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def remove(self, key: bytes) -> bool:
        """Remove an entry; whether there was one."""
        return self._remove(_name(key))

    def remove_part(self, key: bytes) -> None:
        """Remove what was being written."""
        self._remove(_name(key) + ".part")

    def scan(self) -> Iterator[Found]:
        """Every entry and part on the disk."""
        for shelf in _names(self._folder):
            if not _SHELF.fullmatch(shelf):
                continue
            try:
                handle = os.open(shelf, _FOLDER, dir_fd=self._folder)
            except OSError:
                continue
            try:
                yield from self._scan_shelf(handle, shelf)
            finally:
                os.close(handle)

    def _scan_shelf(self, handle: int, shelf: str) -> Iterator[Found]:
        for name in _names(handle):
            match = _ENTRY.fullmatch(name)
            if not match or not name.startswith(shelf):
                continue
            try:
                facts = os.stat(name, dir_fd=handle, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(facts.st_mode):
                charge = max(self.charge_bytes(facts.st_size - HEADER.size), 512 * facts.st_blocks)
                yield Found(bytes.fromhex(match[1]), charge, facts.st_mtime_ns, match[2] is not None)

    def _remove(self, name: str) -> bool:
        try:
            os.unlink(name, dir_fd=self._folder)
        except FileNotFoundError:
            return False
        return True


def write_part(handle: int, key: bytes, data: bytes) -> None:
    """Header and data into an open part file."""
    header = HEADER.pack(MAGIC, key, len(data), xxhash.xxh3_128_digest(data))
    rest = [memoryview(header), memoryview(data)]
    while rest:
        written = os.writev(handle, rest)
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if rest:
            rest[0] = rest[0][written:]


def _checked(handle: int, key: bytes) -> bytes:
    header = os.read(handle, HEADER.size)
    if len(header) < HEADER.size:
        raise BadEntryError("it ends within its header")
    magic, own_key, length, digest = HEADER.unpack(header)
    if magic != MAGIC or own_key != key or os.fstat(handle).st_size != HEADER.size + length:
        raise BadEntryError("its header does not fit it")
    data = os.read(handle, length)
    if len(data) < length:  # one read brings 2 GiB at most
        data = b"".join([data, *_rest(handle, length - len(data))])
    if xxhash.xxh3_128_digest(data) != digest:
        raise BadEntryError("its checksum is wrong")
    return data


def _rest(handle: int, missing: int) -> Iterator[bytes]:
    while missing and (more := os.read(handle, missing)):
        missing -= len(more)
        yield more


def _name(key: bytes) -> str:
    digits = key.hex()
    return f"{digits[0]}/{digits}"


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as found:
        return [entry.name for entry in found]
