"""Index of an object store: its objects by name, size and version, in one fixed order, listed once and kept on disk.

An index is the list a sampler's numbers refer to. It never changes during a job: sample 17 is the same object, in the
same version, on every rank, in every worker and after every restart; its fingerprint proves it.

Listing 1.3 million objects takes a thousand requests and minutes; repeating it on every rank and at every restart is
what makes loaders "hang" at start. The first process of a node lists, holding a lock; the others, and later jobs, read
the kept index while it is young enough. Objects that changed meanwhile are noticed when they are read (`fetch`).
"""

import fcntl
import fnmatch
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from stallwise.data.objects._names import LeftOut, Listed, list_raw, without_markers
from stallwise.data.objects.store import ObjectBucket
from stallwise.errors import InputError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

KEY_BYTES = 16
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One object. `version` is its ETag, or another value of the store that changes with the content.

    With `start`, only the `size_bytes` of it that begin there.
    """

    name: str
    size_bytes: int | None = None
    version: str | None = None
    start: int | None = None


@dataclass(frozen=True)
class _Texts:
    """Many strings in two buffers. A list of a million strings would be copied page by page into every forked worker,
    because reference counting writes to each of them.
    """

    text: bytes
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "_Texts":
        parts = [text.encode(errors="surrogatepass") for text in texts]
        return cls(b"".join(parts), np.cumsum([0, *map(len, parts)], dtype=np.int64))

    def __getitem__(self, number: int) -> str:
        return self.text[self.ends[number] : self.ends[number + 1]].decode(errors="surrogatepass")


@dataclass(frozen=True)
class Index:
    """All objects of a bucket. `bucket` identifies it, without credentials."""

    bucket: str
    _names: _Texts
    _versions: _Texts
    sizes_bytes: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64] | None = None
    """Offset of each sample, where samples are parts of objects."""

    @classmethod
    def of(cls, bucket: str, objects: Iterable[ObjectRef]) -> "Index":
        refs = list(objects)
        sizes = np.array([_UNKNOWN if ref.size_bytes is None else ref.size_bytes for ref in refs], dtype=np.int64)
        names, versions = _Texts.of(r.name for r in refs), _Texts.of(r.version or "" for r in refs)
        if all(ref.start is None for ref in refs):
            return cls(bucket, names, versions, sizes)
        starts = np.array([_UNKNOWN if ref.start is None else ref.start for ref in refs], dtype=np.int64)
        return cls(bucket, names, versions, sizes, starts)

    def __len__(self) -> int:
        return len(self.sizes_bytes)

    def __iter__(self) -> Iterator[ObjectRef]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> ObjectRef:
        size = int(self.sizes_bytes[number])
        start = _UNKNOWN if self.starts is None else int(self.starts[number])
        return ObjectRef(
            self._names[number],
            None if size == _UNKNOWN else size,
            self._versions[number] or None,
            None if start == _UNKNOWN else start,
        )

    @cached_property
    def total_bytes(self) -> int:
        """Sum of the known sizes."""
        return int(self.sizes_bytes[self.sizes_bytes > 0].sum())

    @cached_property
    def fingerprint(self) -> str:
        """Digest of bucket, names, sizes, versions and order."""
        digest = hashlib.blake2b(self.bucket.encode(), digest_size=KEY_BYTES)
        for part in (self._names, self._versions):
            digest.update(part.ends.tobytes())
            digest.update(part.text)
        digest.update(self.sizes_bytes.tobytes())
        digest.update(b"" if self.starts is None else self.starts.tobytes())
        return digest.hexdigest()

    def key(self, number: int) -> bytes:
        """Return the key of an object in a cache: a digest of its identity and version.

        Two buckets, two prefixes or two versions of one object never collide; a cache file is named by this alone,
        so an object's name cannot lead out of the cache's folder.
        """
        ref = self[number]
        text = f"{self.bucket}\0{ref.name}\0{ref.version}\0{ref.size_bytes}"
        text += "" if ref.start is None else f"\0{ref.start}"
        return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=KEY_BYTES).digest()


MAX_AGE_S = 24 * 3600.0
_VERSION = 2
_CHUNK = 1000


class _IndexFile(msgspec.Struct, frozen=True, array_like=True):
    """The file format of a kept index (msgpack)."""

    version: int
    url: str
    match: str
    made_s: float
    requests: int
    objects: list[tuple[str, Annotated[int, msgspec.Meta(ge=0, le=1 << 62)] | None, str | None]]
    left_out: tuple[int, int, str] = (0, 0, "")
    """Folder markers, unreadable names, and the first of those."""


@dataclass(frozen=True)
class ListedIndex:
    """An index, and the requests it cost this process: 0 where a kept one was read."""

    index: Index
    requests: int
    age_s: float
    left_out: LeftOut = field(default_factory=LeftOut)


def index_of(
    bucket: ObjectBucket,
    *,
    match: str = "*",
    folder: Path | None = None,
    refresh: bool = False,
    max_age_s: float = MAX_AGE_S,
    progress: Callable[[int], None] = lambda _: None,
) -> ListedIndex:
    """Return the index of the bucket: a kept one where there is one, else listed now and kept.

    `match` is a shell pattern over the whole name ("*.jpg"). Nothing is written to the bucket.
    """
    path = _path(bucket, match, folder)
    requested_s = time.time()
    with _locked(path):
        kept = _read(path)
        # A rank that refreshed while this one waited for the lock has done it for both.
        oldest_s = requested_s if refresh else requested_s - max_age_s
        if kept is not None and kept.made_s >= oldest_s:
            return ListedIndex(_index(bucket, kept), 0, time.time() - kept.made_s, LeftOut(*kept.left_out))
        kept = _list(bucket, match, progress)
        _write(path, kept)
    return ListedIndex(_index(bucket, kept), kept.requests, 0.0, LeftOut(*kept.left_out))


def kept_index(bucket: ObjectBucket, *, match: str, folder: Path | None, max_age_s: float) -> ListedIndex | None:
    """Return the kept index if it is young enough; sends no request."""
    kept = _read(_path(bucket, match, folder))
    if kept is None or time.time() - kept.made_s > max_age_s:
        return None
    return ListedIndex(_index(bucket, kept), 0, time.time() - kept.made_s, LeftOut(*kept.left_out))


def _path(bucket: ObjectBucket, match: str, folder: Path | None) -> Path:
    name = blake2b(f"{bucket.identity}\0{match}".encode(), digest_size=16).hexdigest()
    return (folder or default_folder()) / f"{name}.index"


def default_folder() -> Path:
    """The folder where indexes are kept by default: in the user's cache folder."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("stallwise")) / "indexes"


def index_of_names(bucket: ObjectBucket, names: Iterable[str]) -> Index:
    """Build an index from names, for stores that cannot list (plain HTTP): sizes and versions are not known."""
    refs = [ObjectRef(name) for name in names]
    if not refs or any(not ref.name.strip("/") for ref in refs):
        raise InputError(f"keys= must name the objects of {bucket.shown}: there are none, or one has no name.")
    return Index.of(bucket.identity, refs)


Part = tuple[str, int, int]
"""Name of an object, offset and length of the part in bytes."""


def parts_of(index: Index, parts: Iterable[Part], shown: str) -> Index:
    """Build an index of parts of the objects in another index, in the order given."""
    objects = {ref.name: ref for ref in index}
    refs = []
    for name, start, length in parts:
        whole = objects.get(name)
        if whole is None:
            raise InputError(f"parts= names {name!a}, which is not among the objects of {shown}.")
        if start < 0 or length < 1 or (whole.size_bytes is not None and start + length > whole.size_bytes):
            raise InputError(
                f"parts= asks for bytes {start} to {start + length} of {name!a}, which has {whole.size_bytes}."
            )
        refs.append(ObjectRef(name, length, whole.version, start))
    if not refs:
        raise InputError(f"parts= must name parts of the objects of {shown}; there are none.")
    return Index.of(index.bucket, refs)


def _index(bucket: ObjectBucket, kept: _IndexFile) -> Index:
    return Index.of(bucket.identity, (ObjectRef(*fields) for fields in kept.objects))


def _list(bucket: ObjectBucket, match: str, progress: Callable[[int], None]) -> _IndexFile:
    store = bucket.open()
    import obstore

    objects: list[Listed] = []
    began_s, left_out = time.time(), LeftOut()
    try:
        try:
            for chunk in obstore.list(store, chunk_size=_CHUNK):
                objects += [(meta["path"], meta["size"], meta["e_tag"]) for meta in chunk]
                progress(len(objects))
        except obstore.exceptions.InvalidPathError:
            objects = []
            for page in list_raw(bucket, store, left_out):
                objects += page
                progress(len(objects))
        names = len(objects) + left_out.markers + left_out.unreadable
        objects = without_markers(objects, lambda name: _exists(store, name), left_out)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{bucket.shown} cannot be listed: {bucket.error_text(error)} "
            "(A store that cannot list, as plain HTTP servers, needs its objects' names: keys=[…].)"
        ) from None
    objects = [each for each in objects if fnmatch.fnmatchcase(each[0], match)]
    if not objects:
        what = f"none of its {names} objects matches {match!r}" if names else "there are no objects under it"
        raise InputError(f"{bucket.shown} holds nothing to read: {what}.")
    objects.sort()
    return _IndexFile(_VERSION, bucket.shown, match, began_s, -(-max(names, 1) // _CHUNK), objects, astuple(left_out))


def _exists(store: "ObjectStore", name: str) -> bool:
    import obstore

    try:
        obstore.head(store, name)
    except FileNotFoundError:
        return False
    return True


def _read(path: Path) -> _IndexFile | None:
    """Read a kept index; None where it is missing, truncated, or of another version."""
    try:
        kept = msgspec.msgpack.decode(path.read_bytes(), type=_IndexFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return kept if kept.version == _VERSION else None


def _write(path: Path, kept: _IndexFile) -> None:
    from stallwise.run.atomic import replace_file

    replace_file(path, msgspec.msgpack.encode(kept), durable=False)


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
