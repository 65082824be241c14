"""Reading one object: with retries, checked before it is returned, and with neighbouring reads joined.

A try that fails transiently (a server's 5xx, a reset, a time-out, a body that ends early) is repeated after a random
fraction of a doubling pause ("full jitter", Brooker, AWS Architecture Blog 2015), so that workers which failed together
do not retry together. Permanent failures (gone, forbidden, changed) are raised at once. A body is accepted only if its
length and ETag are those of the index: a half body that a proxy called complete is a failed try, and an object that was
overwritten since it was listed is an error, never a silently different sample.

Records packed into large objects (shards) are read by name, offset and length. A GET of 2 KB costs as much as one of
2 MB, in dollars and nearly in time. So the first reader of a part waits a moment for others (`RangeCoalescer`); then
parts that lie close together are read by one ranged GET and cut apart in memory. The bytes between them are read for
nothing: never more than `gap_bytes` between two parts, and `most_bytes` in all.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from stallwise.data.objects.index import ObjectRef
from stallwise.data.objects.store import ObjectBucket
from stallwise.errors import InputError, ObjectError, StallwiseError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0

# Not the global generator: a failed try would change what decode functions draw.
_spread = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class FetchedObject:
    """An object's bytes, the seconds of the successful try, and the number of tries."""

    data: bytes
    seconds: float
    tries: int
    read_bytes: int | None = None
    """Bytes read from the store where that is not `len(data)`: one read may serve several parts."""


class Fetcher:
    """Reads objects of one bucket from any thread; each process opens the store for itself."""

    def __init__(self, bucket: ObjectBucket, retries: int = 5) -> None:
        if retries < 0:
            raise InputError(f"retries must be 0 or more, not {retries}.")
        self.bucket, self._retries = bucket, retries
        self._forget()

    def _forget(self) -> None:
        self._store: ObjectStore | None = None
        self._pid = -1
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"bucket": self.bucket, "_retries": self._retries}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def store(self) -> "ObjectStore":
        """Return this process's own store; one inherited over fork is left untouched."""
        if self._pid == os.getpid() and self._store is not None:
            return self._store
        if self._pid != os.getpid():
            # The lock may have been held by a thread that fork did not copy.
            self._lock = threading.Lock()
            self._store, self._pid = None, os.getpid()
        with self._lock:
            if self._store is None:
                self._store = self.bucket.open()
            return self._store

    def get(self, ref: ObjectRef, stop: Callable[[], bool] = lambda: False) -> FetchedObject:
        """Return the object; `ObjectError` after the last try. No retry once `stop()` is true."""
        for tries in range(1, self._retries + 2):
            start = time.monotonic()
            try:
                data = self._try(ref)
                return FetchedObject(data, time.monotonic() - start, tries)
            except _FinalError as error:
                raise ObjectError(f"{self._shown(ref)} {error}", tries) from None
            except StallwiseError:
                raise  # the store cannot even be opened
            except Exception as error:
                if tries > self._retries or stop():
                    times = "once" if tries == 1 else f"{tries} times"
                    reason = f"could not be read, tried {times}; the last time: {self.bucket.error_text(error)}"
                    raise ObjectError(f"{self._shown(ref)} {reason}", tries) from None
            _pause(tries)
        raise AssertionError("unreachable")

    def _try(self, ref: ObjectRef) -> bytes:
        store = self.store()
        import obstore
        from obstore.exceptions import NotSupportedError, PermissionDeniedError, UnauthenticatedError

        try:
            options: obstore.GetOptions = {}
            if ref.start is not None:
                options["range"] = (ref.start, ref.start + (ref.size_bytes or 0))
            reply = obstore.get(store, ref.name, options=options)
            tag = reply.meta["e_tag"]
            data = bytes(reply.bytes())
        except FileNotFoundError:
            raise _FinalError("is gone from the bucket. Make the index anew (refresh=True).") from None
        except (PermissionDeniedError, UnauthenticatedError, PermissionError):
            raise _FinalError("may not be read with these credentials.") from None
        except (NotSupportedError, ValueError) as error:
            raise _FinalError(f"cannot be asked for: {self.bucket.error_text(error)}") from None
        if ref.version is not None and tag is not None and not _same(tag, ref.version):
            raise _FinalError("has changed since it was listed. Make the index anew (refresh=True).")
        if ref.size_bytes is not None and len(data) != ref.size_bytes:
            raise OSError(f"{len(data)} bytes came instead of {ref.size_bytes}")
        return data

    def _shown(self, ref: ObjectRef) -> str:
        # A name may hold anything, also line breaks and terminal codes.
        return f"{self.bucket.shown.rstrip('/')}/{ascii(ref.name[:200])[1:-1]}"


class _FinalError(Exception):
    """A failure that another try cannot fix."""


def _same(tag: str, listed: str) -> bool:
    """Whether two ETags are equal: Azure omits in listings the quotes it sends with objects."""
    return tag.removeprefix("W/").strip('"') == listed.removeprefix("W/").strip('"')


def _pause(tries: int) -> None:
    longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (tries - 1))
    time.sleep(_spread.uniform(0, longest))


GAP_BYTES = 64 << 10
MOST_BYTES = 8 << 20
WAIT_S = 0.002
"""Seconds; a store's reply takes 20 to 100 ms."""


@dataclass(eq=False)
class _PartRequest:
    """A part that a thread waits for."""

    ref: ObjectRef
    read: "_RangeRead | None" = None
    assigned: threading.Event = field(default_factory=threading.Event)


@dataclass(eq=False)
class _RangeRead:
    """A range that covers several parts; the thread of the first request reads it."""

    whole: ObjectRef
    first: _PartRequest
    fetched: FetchedObject | None = None
    error: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)


class RangeCoalescer:
    """Wraps a reader of single objects and joins neighbouring reads; whole objects pass through. Thread-safe."""

    def __init__(
        self, read: Callable[[ObjectRef], FetchedObject], *, gap_bytes: int = GAP_BYTES, most_bytes: int = MOST_BYTES
    ) -> None:
        self._read, self._gap_bytes, self._most_bytes = read, gap_bytes, most_bytes
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, str | None], list[_PartRequest]] = {}

    def get(self, ref: ObjectRef) -> FetchedObject:
        """Return the part; `tries` and `read_bytes` are counted once, by the thread that read the range."""
        if ref.start is None or ref.size_bytes is None:
            return self._read(ref)
        request = _PartRequest(ref)
        if self._is_first(request):
            time.sleep(WAIT_S)
            self._assign(ref)
        request.assigned.wait()
        read = request.read
        if read is None:
            raise AssertionError("an assigned request has a read")
        if read.first is request:
            self._perform(read)
        read.done.wait()
        return _part(read, request)

    def _is_first(self, request: _PartRequest) -> bool:
        with self._lock:
            others = self._waiting.setdefault((request.ref.name, request.ref.version), [])
            others.append(request)
            return len(others) == 1

    def _assign(self, ref: ObjectRef) -> None:
        with self._lock:
            requests = self._waiting.pop((ref.name, ref.version))
        for members in _group_neighbours(requests, self._gap_bytes, self._most_bytes):
            start, end = members[0].ref.start or 0, max(_end(one.ref) for one in members)
            read = _RangeRead(replace(members[0].ref, start=start, size_bytes=end - start), members[0])
            for one in members:
                one.read = read
                one.assigned.set()

    def _perform(self, read: _RangeRead) -> None:
        try:
            read.fetched = self._read(read.whole)
        except Exception as error:
            read.error = error
        except BaseException:
            read.error = InterruptedError("the thread that read for others was ended")
            raise
        finally:
            read.done.set()


def _group_neighbours(requests: Sequence[_PartRequest], gap_bytes: int, most_bytes: int) -> list[list[_PartRequest]]:
    """Group parts that lie close together, in the order of the object."""
    groups: list[list[_PartRequest]] = []
    end = 0
    for request in sorted(requests, key=lambda one: one.ref.start or 0):
        start = request.ref.start or 0
        near = bool(groups) and start - end <= gap_bytes
        if near and max(end, _end(request.ref)) - (groups[-1][0].ref.start or 0) <= most_bytes:
            groups[-1].append(request)
        else:
            groups.append([request])
            end = 0
        end = max(end, _end(request.ref))
    return groups


def _end(ref: ObjectRef) -> int:
    return (ref.start or 0) + (ref.size_bytes or 0)


def _part(read: _RangeRead, request: _PartRequest) -> FetchedObject:
    is_reader = read.first is request
    if read.fetched is None:
        if isinstance(read.error, ObjectError) and not is_reader:
            raise ObjectError(str(read.error), 0)  # the reading thread has counted the tries
        raise read.error or AssertionError("neither read nor failed")
    fetched, at = read.fetched, (request.ref.start or 0) - (read.whole.start or 0)
    data = fetched.data[at : at + (request.ref.size_bytes or 0)]
    tries, read_bytes = (fetched.tries, len(fetched.data)) if is_reader else (0, 0)
    return FetchedObject(data, fetched.seconds, tries, read_bytes)
