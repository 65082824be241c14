"""Lists a prefix once and keeps the index.

Listing 1.3 million objects takes a thousand requests and minutes; every rank and every restart doing so again is what
makes loaders "hang" at start. The first process of a node lists, holding a lock; the others, and later jobs, read what
it left, as long as it is young enough. Objects that changed meanwhile are noticed when they are read (`fetch`).
"""

import fcntl
import fnmatch
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec

from stallwise.data.fetch import Fetcher
from stallwise.data.objects import Index, ObjectRef
from stallwise.data.store import Bucket
from stallwise.errors import InputError

MAX_AGE_S = 24 * 3600.0
_VERSION = 1
_CHUNK = 1000


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """An index on disk."""

    version: int
    url: str
    match: str
    made_s: float
    requests: int
    objects: list[tuple[str, int | None, str | None]]


@dataclass(frozen=True)
class Listed:
    """An index, and what it cost this process: no request where another one's was read."""

    index: Index
    requests: int
    age_s: float


def index_of(
    bucket: Bucket,
    *,
    match: str = "*",
    folder: Path | None = None,
    refresh: bool = False,
    max_age_s: float = MAX_AGE_S,
    progress: Callable[[int], None] = lambda _: None,
) -> Listed:
    """The index of the bucket: a kept one where there is one, else listed now and kept.

    `match` is a shell pattern over the whole name ("*.jpg"). Nothing is written to the bucket.
    """
    path = _path(bucket, match, folder)
    asked_s = time.time()
    with _locked(path):
        kept = _read(path)
        # Another rank that refreshed while this one waited for the lock has done it for both.
        oldest_s = asked_s if refresh else asked_s - max_age_s
        if kept is not None and kept.made_s >= oldest_s:
            return Listed(_index(bucket, kept), 0, time.time() - kept.made_s)
        kept = _list(bucket, match, progress)
        _write(path, kept)
    return Listed(_index(bucket, kept), kept.requests, 0.0)


def kept_index(bucket: Bucket, *, match: str, folder: Path | None, max_age_s: float) -> Listed | None:
    """The index as it was kept, if it is young enough; the store is not asked."""
    kept = _read(_path(bucket, match, folder))
    if kept is None or time.time() - kept.made_s > max_age_s:
        return None
    return Listed(_index(bucket, kept), 0, time.time() - kept.made_s)


def _path(bucket: Bucket, match: str, folder: Path | None) -> Path:
    name = blake2b(f"{bucket.identity}\0{match}".encode(), digest_size=16).hexdigest()
    return (folder or default_folder()) / f"{name}.index"


def default_folder() -> Path:
    """Where indexes are kept unless told otherwise: the user's cache folder."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("stallwise")) / "indexes"


def named(bucket: Bucket, names: Iterable[str]) -> Index:
    """An index of given names, for stores that cannot list (plain HTTP): sizes and versions show when they are read."""
    found = [ObjectRef(name) for name in names]
    if not found or any(not ref.name.strip("/") for ref in found):
        raise InputError(f"keys= must name the objects of {bucket.shown}: there are none, or one has no name.")
    return Index.of(bucket.identity, found)


Part = tuple[str, int, int]
"""Name of an object, where the part begins, how many bytes it has."""


def parts_of(index: Index, parts: Iterable[Part], shown: str) -> Index:
    """An index of parts of the objects in another, in the order given."""
    known = {ref.name: ref for ref in index}
    found = []
    for name, start, length in parts:
        whole = known.get(name)
        if whole is None:
            raise InputError(f"parts= names {name!a}, which is not among the objects of {shown}.")
        if start < 0 or length < 1 or (whole.size_bytes is not None and start + length > whole.size_bytes):
            raise InputError(
                f"parts= asks for bytes {start} to {start + length} of {name!a}, which has {whole.size_bytes}."
            )
        found.append(ObjectRef(name, length, whole.version, start))
    if not found:
        raise InputError(f"parts= must name parts of the objects of {shown}; there are none.")
    return Index.of(index.bucket, found)


def _index(bucket: Bucket, kept: _Kept) -> Index:
    return Index.of(bucket.identity, (ObjectRef(*fields) for fields in kept.objects))


def _list(bucket: Bucket, match: str, progress: Callable[[int], None]) -> _Kept:
    store = Fetcher(bucket).store()
    import obstore

    found: list[tuple[str, int | None, str | None]] = []
    began_s, seen = time.time(), 0
    try:
        for chunk in obstore.list(store, chunk_size=_CHUNK):
            seen += len(chunk)
            # A name that ends in a slash is the mark some tools leave for an empty folder.
            found += [
                (meta["path"], meta["size"], meta["e_tag"])
                for meta in chunk
                if not meta["path"].endswith("/") and fnmatch.fnmatchcase(meta["path"], match)
            ]
            progress(seen)
    except Exception as error:
        raise InputError(
            f"{bucket.shown} cannot be listed: {bucket.said(error)} "
            "(A store that cannot list, as plain HTTP servers, needs its objects' names: keys=[…].)"
        ) from None
    if not found:
        what = f"none of its {seen} objects matches {match!r}" if seen else "there are no objects under it"
        raise InputError(f"{bucket.shown} holds nothing to read: {what}.")
    found.sort()
    return _Kept(_VERSION, bucket.shown, match, began_s, -(-max(seen, 1) // _CHUNK), found)


def _read(path: Path) -> _Kept | None:
    """What was kept, or nothing where it is missing, torn, or of another version."""
    try:
        kept = msgspec.msgpack.decode(path.read_bytes(), type=_Kept)
    except (OSError, msgspec.DecodeError):
        return None
    return kept if kept.version == _VERSION else None


def _write(path: Path, kept: _Kept) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.part")
    try:
        temporary.write_bytes(msgspec.msgpack.encode(kept))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(
            f"Indexes cannot be kept in {path.parent}: {error.strerror}. Give another index_folder."
        ) from None
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
