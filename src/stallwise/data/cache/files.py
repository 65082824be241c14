"""The cache folder on disk: its layout, and the format of an entry (one file per object).

    entries/1/1f0c…        48 bytes of header (magic with format, key, length, xxh3-128 of the data), then the data;
                           a magic of its own marks what another node handed over and nobody has checked yet
    entries/1/1f0c….part   the same, being written; a rename makes it an entry

Names are the hexadecimal digits of 16-byte keys, so the name of an object never touches the file system. Nothing is
flushed to the disk: what a power cut leaves half written fails its checksum when it is read. Files and folders of any
other name, links and special files are never touched. `CACHEDIR.TAG` names the folder's format.
"""

import contextlib
import errno
import os
import re
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import xxhash

from stallwise.data.cache._locks import close_here, open_here
from stallwise.errors import CacheError

MAGIC = b"SWENTRY1"
HANDED = b"SWHANDED"
"""An entry from another node: read only by who can hold it against the object's version, and then one of ours."""
HEADER = struct.Struct("<8s16sQ16s")
KEY_BYTES = 16
Fits = Callable[[bytes], bool | None]
"""Whether bytes are those of an object's version; None: not known now."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_SUBFOLDER = re.compile(r"[0-9a-f]")
_ENTRY = re.compile(r"([0-9a-f]{32})(\.part)?")
_BLOCK_BYTES = 4096


class BadEntryError(Exception):
    """An entry whose bytes are not those that were written."""


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry or part as it lies on the disk; `charge_bytes` is the disk space it takes or will take."""

    key: bytes
    charge_bytes: int
    modified_ns: int
    is_part: bool
    rank: float | None = None
    """Known where the position on the disk determines it (packs)."""
    number: int = 0
    """The index's number after it, where that counts positions (packs)."""


class EntryFiles:
    """The entry files under one folder, addressed by key."""

    def __init__(self, folder: str) -> None:
        self._folder = open_here(folder, _FOLDER)
        self._block = max(_BLOCK_BYTES, os.fstatvfs(self._folder).f_frsize)

    def close(self) -> None:
        close_here(self._folder)

    def charge_bytes(self, data_bytes: int) -> int:
        """Disk space in bytes of an entry with `data_bytes` of data: whole blocks."""
        return -(-(HEADER.size + data_bytes) // self._block) * self._block

    def contains(self, key: bytes) -> bool:
        """Whether there is an entry, good or bad."""
        try:
            os.stat(_name(key), dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return False
        return True

    def read(self, key: bytes, fits: Fits | None = None) -> bytes | None:
        """Return the data of an entry, None if there is none; BadEntryError if its checksum is wrong.

        One that another node handed over is returned only if its bytes fit, and is an ordinary one from then on.
        """
        try:
            handle = os.open(_name(key), _READ, dir_fd=self._folder)
        except OSError:
            return None
        try:
            data, is_handed = _checked(handle, key)
        except OSError as error:
            if error.errno == errno.EIO:
                raise BadEntryError("the disk could not read it") from None
            return None
        finally:
            os.close(handle)
        if not is_handed:
            return data
        is_right = None if fits is None else fits(data)
        if is_right is False:
            raise BadEntryError("another node handed over bytes that are not those of the object's version")
        if is_right:
            self._accept(key)
        return data if is_right else None

    def _accept(self, key: bytes) -> None:
        """Make an ordinary entry of a checked one; where that fails, the next reader checks it again."""
        with contextlib.suppress(OSError):
            handle = os.open(_name(key), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
            try:
                os.pwrite(handle, MAGIC, 0)
            finally:
                os.close(handle)

    def open(self, key: bytes) -> BinaryIO | None:
        """Open the file of an entry, positioned at its header."""
        try:
            return cast("BinaryIO", os.fdopen(os.open(_name(key), _READ, dir_fd=self._folder), "rb", buffering=0))
        except OSError:
            return None

    def allot(self, number: int, data_bytes: int) -> tuple[int, int]:
        """Return the index's number after another entry, and the entry's own."""
        return number + 1, number + 1

    def create(self, key: bytes, data_bytes: int, rank: float) -> int:
        """Open a part file that already has the length of the whole entry, so that a scan sees what it will take."""
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

    def write(self, handle: int, key: bytes, data: bytes, *, handed: bool = False) -> int:
        """Write header and data into an open part file; return the disk space it takes."""
        _write_part(handle, HANDED if handed else MAGIC, key, data)
        return max(512 * os.fstat(handle).st_blocks, self.charge_bytes(len(data)))

    def create_folder(self) -> None:
        """No-op: the folder exists since `prepare`."""

    def sweep(self, number: int) -> None:
        """No-op: removed files leave nothing behind."""

    def publish(self, key: bytes) -> None:
        """Make the part an entry atomically."""
        name = _name(key)
        os.replace(name + ".part", name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def remove(self, key: bytes) -> bool:
        """Remove an entry; return whether there was one."""
        return self._remove(_name(key))

    def remove_part(self, key: bytes) -> None:
        """Remove the part file of an entry, if there is one."""
        self._remove(_name(key) + ".part")

    def scan(self) -> Iterator[StoredEntry]:
        """Yield every entry and part on the disk."""
        for subfolder in _names(self._folder):
            if not _SUBFOLDER.fullmatch(subfolder):
                continue
            try:
                handle = os.open(subfolder, _FOLDER, dir_fd=self._folder)
            except OSError:
                continue
            try:
                yield from self._scan_subfolder(handle, subfolder)
            finally:
                os.close(handle)

    def _scan_subfolder(self, handle: int, subfolder: str) -> Iterator[StoredEntry]:
        for name in _names(handle):
            match = _ENTRY.fullmatch(name)
            if not match or not name.startswith(subfolder):
                continue
            try:
                facts = os.stat(name, dir_fd=handle, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(facts.st_mode):
                charge = max(self.charge_bytes(facts.st_size - HEADER.size), 512 * facts.st_blocks)
                yield StoredEntry(bytes.fromhex(match[1]), charge, facts.st_mtime_ns, match[2] is not None)

    def _remove(self, name: str) -> bool:
        try:
            os.unlink(name, dir_fd=self._folder)
        except FileNotFoundError:
            return False
        return True


def _write_part(handle: int, magic: bytes, key: bytes, data: bytes) -> None:
    header = HEADER.pack(magic, key, len(data), xxhash.xxh3_128_digest(data))
    rest = [memoryview(header), memoryview(data)]
    while rest:
        written = os.writev(handle, rest)
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if rest:
            rest[0] = rest[0][written:]


def _checked(handle: int, key: bytes) -> tuple[bytes, bool]:
    """Return the data of an entry, and whether another node handed it over."""
    header = os.read(handle, HEADER.size)
    if len(header) < HEADER.size:
        raise BadEntryError("it ends within its header")
    magic, own_key, length, digest = HEADER.unpack(header)
    if magic not in (MAGIC, HANDED) or own_key != key or os.fstat(handle).st_size != HEADER.size + length:
        raise BadEntryError("its header does not fit it")
    data = os.read(handle, length)
    if len(data) < length:  # one read brings 2 GiB at most
        data = b"".join([data, *_rest(handle, length - len(data))])
    if xxhash.xxh3_128_digest(data) != digest:
        raise BadEntryError("its checksum is wrong")
    return data, magic == HANDED


def _rest(handle: int, missing: int) -> Iterator[bytes]:
    while missing and (more := os.read(handle, missing)):
        missing -= len(more)
        yield more


def _name(key: bytes) -> str:
    digits = key.hex()
    return f"{digits[0]}/{digits}"


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


FORMAT = 1
_SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55\n"
_TAG = _SIGNATURE + f"# A cache of Stallwise, format {FORMAT}. It may be deleted while nothing uses it.\n"
_FORMAT = re.compile(r"# A cache of Stallwise, format (\d+)\.")
_OURS = {"CACHEDIR.TAG", "ledger", "entries", "packs", "peer"}
_IGNORED = {"lost+found"}  # the root of a file system of its own


def index_path(folder: Path) -> Path:
    """Path of the shared index file (named `ledger`, which is part of the format)."""
    return folder / "ledger"


def entries_path(folder: Path) -> Path:
    return folder / "entries"


def packs_path(folder: Path) -> Path:
    """Path of the packs; the folder exists only under the policy *packed*."""
    return folder / "packs"


def prepare(folder: Path, *, shared: bool) -> bool:
    """Make `folder` a cache, or check that it is one; return whether it can be written.

    A cache on a read-only file system can still be read. Unless it is `shared`, nobody else but root may be able to put
    entries in: their names follow from the objects', and their checksums are those of whatever was put in.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not shared:
            _check_owner(folder)
        _check(folder)
        return _create(folder)
    except OSError as error:
        raise unusable(folder, error) from None


def is_cache(folder: Path) -> bool:
    """Whether `folder` is a Stallwise cache of this format."""
    try:
        return (folder / "CACHEDIR.TAG").read_text(errors="replace") == _TAG and index_path(folder).is_file()
    except OSError:
        return False


def _check_owner(folder: Path) -> None:
    is_reachable = True
    for path in (folder, index_path(folder), entries_path(folder), packs_path(folder), *entries_path(folder).glob("?")):
        try:
            facts = path.stat() if path == folder else path.lstat()
        except FileNotFoundError:
            continue
        if facts.st_uid not in (os.geteuid(), 0):
            raise CacheError(
                f"{path} belongs to another user (number {facts.st_uid}), who could put other samples into the cache. "
                "Choose a folder of your own, or trust its users: NodeCache(…, shared=True)."
            )
        if is_reachable and not stat.S_ISLNK(facts.st_mode) and facts.st_mode & 0o022:
            raise CacheError(
                f"{path} may be written by other users, who could put other samples into the cache. Take that away "
                "(chmod -R go-w), or trust them: NodeCache(…, shared=True)."
            )
        if path == folder:
            is_reachable = bool(facts.st_mode & 0o011)  # what lies inside of a closed folder is nobody else's


def _check(folder: Path) -> None:
    tag = _read_tag(folder)
    if match := _FORMAT.search(tag):
        if int(match[1]) != FORMAT:
            raise CacheError(
                f"The cache folder {folder} has format {match[1]}, this Stallwise writes format {FORMAT}. "
                "Choose another folder, or delete this one."
            )
        return
    foreign = sorted({entry.name for entry in folder.iterdir()} - _OURS - _IGNORED)
    # A truncated tag, or none beside our own names: the process that created the folder was killed.
    if foreign or not _TAG.startswith(tag):
        raise CacheError(
            f"{folder} holds files that are not of a cache ({', '.join(foreign[:3]) or 'CACHEDIR.TAG'}). "
            "Choose an empty folder."
        )


def _read_tag(folder: Path) -> str:
    try:
        return (folder / "CACHEDIR.TAG").read_text(errors="replace")[:4096]
    except FileNotFoundError:
        return ""


def _create(folder: Path) -> bool:
    try:
        if _read_tag(folder) != _TAG:
            (folder / "CACHEDIR.TAG").write_text(_TAG)
        entries_path(folder).mkdir(exist_ok=True)
    except OSError as error:
        # Full or not writable: its entries can still be read.
        if error.errno not in {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT}:
            raise
        if not entries_path(folder).is_dir() or not index_path(folder).is_file():
            raise
        return False
    return os.access(folder, os.W_OK) and (not index_path(folder).exists() or os.access(index_path(folder), os.W_OK))


def unusable(folder: Path, error: OSError) -> CacheError:
    """Return the error for a folder that cannot be made a cache."""
    return CacheError(
        f"The cache folder {folder} cannot be used ({error.strerror or error}). Choose a folder you may write, with "
        "free space."
    )
