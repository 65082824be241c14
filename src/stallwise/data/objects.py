"""What a bucket holds: objects by name, size and version, in one fixed order.

An index is the list a sampler's numbers refer to. It never changes during a job: sample 17 is the same object, in the
same version, on every rank, in every worker and after every restart. Its fingerprint says so.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

KEY_BYTES = 16
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One object. `version` is its ETag, or what else the store gives that changes with the content.

    With `start`, only the `size_bytes` of it that begin there.
    """

    name: str
    size_bytes: int | None = None
    version: str | None = None
    start: int | None = None


@dataclass(frozen=True)
class _Texts:
    """Many texts in two buffers. A list of a million strings would be copied page by page into every forked worker,
    because counting references writes to each of them.
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
    """All objects of a bucket. `bucket` says which, without credentials."""

    bucket: str
    _names: _Texts
    _versions: _Texts
    sizes_bytes: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64] | None = None
    """Where samples are parts of objects: where each begins."""

    @classmethod
    def of(cls, bucket: str, objects: Iterable[ObjectRef]) -> "Index":
        """In the order given."""
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
        """Of those whose size is known."""
        return int(self.sizes_bytes[self.sizes_bytes > 0].sum())

    @cached_property
    def fingerprint(self) -> str:
        """The same exactly where bucket, names, sizes, versions and order are."""
        digest = hashlib.blake2b(self.bucket.encode(), digest_size=KEY_BYTES)
        for part in (self._names, self._versions):
            digest.update(part.ends.tobytes())
            digest.update(part.text)
        digest.update(self.sizes_bytes.tobytes())
        digest.update(b"" if self.starts is None else self.starts.tobytes())
        return digest.hexdigest()

    def key(self, number: int) -> bytes:
        """What the object is called in a cache: its identity and version, never its name.

        Two buckets, two prefixes or two versions of one object never meet; a cache file's name comes from this alone,
        so an object's name cannot lead out of the cache's folder.
        """
        ref = self[number]
        text = f"{self.bucket}\0{ref.name}\0{ref.version}\0{ref.size_bytes}"
        text += "" if ref.start is None else f"\0{ref.start}"
        return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=KEY_BYTES).digest()
