"""One object out of the bucket: tried again where that can help, checked before anybody sees it.

A try that fails in passing (a server's 5xx, a reset, a time-out, a body that ends early) is repeated after a random
part of a doubling pause ("full jitter", Brooker, AWS Architecture Blog 2015), so that workers which failed together
do not come back together. What cannot get better (gone, forbidden, changed) fails at once. A body counts only if its
length and ETag are those of the index: a half body that a proxy called complete is a failed try, and an object that was
overwritten since it was listed is an error, never a silently different sample.
"""

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stallwise.data.objects import ObjectRef
from stallwise.data.store import Bucket
from stallwise.errors import InputError, ObjectError, StallwiseError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0

# Not the generator that everybody draws from: a try that failed would change what decode functions draw.
_spread = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Fetched:
    """A whole object, how long the try that brought it took, and how many tries it needed."""

    data: bytes
    seconds: float
    tries: int
    read_bytes: int | None = None
    """From the store, where it is not all of the data and nothing else: one read may serve several."""


class Fetcher:
    """Reads objects of one bucket, from any thread of any process: the store is opened per process."""

    def __init__(self, bucket: Bucket, retries: int = 5) -> None:
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
        """This process's own; one inherited over fork is left untouched."""
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

    def get(self, ref: ObjectRef, stop: Callable[[], bool] = lambda: False) -> Fetched:
        """The object; `ObjectError` after the last try. `stop` says that nobody wants it any more."""
        for tries in range(1, self._retries + 2):
            start = time.monotonic()
            try:
                data = self._try(ref)
                return Fetched(data, time.monotonic() - start, tries)
            except _FinalError as error:
                raise ObjectError(f"{self._shown(ref)} {error}", tries) from None
            except StallwiseError:
                raise  # the store cannot even be opened
            except Exception as error:
                if tries > self._retries or stop():
                    times = "once" if tries == 1 else f"{tries} times"
                    said = f"could not be read, tried {times}; the last time: {self.bucket.said(error)}"
                    raise ObjectError(f"{self._shown(ref)} {said}", tries) from None
            _pause(tries)
        raise AssertionError("unreachable")

    def _try(self, ref: ObjectRef) -> bytes:
        store = self.store()
        import obstore
        from obstore.exceptions import NotSupportedError, PermissionDeniedError, UnauthenticatedError

        try:
            wanted: obstore.GetOptions = {}
            if ref.start is not None:
                wanted["range"] = (ref.start, ref.start + (ref.size_bytes or 0))
            found = obstore.get(store, ref.name, options=wanted)
            tag = found.meta["e_tag"]
            data = bytes(found.bytes())
        except FileNotFoundError:
            raise _FinalError("is gone from the bucket. Make the index anew (refresh=True).") from None
        except (PermissionDeniedError, UnauthenticatedError, PermissionError):
            raise _FinalError("may not be read with these credentials.") from None
        except (NotSupportedError, ValueError) as error:
            raise _FinalError(f"cannot be asked for: {self.bucket.said(error)}") from None
        if ref.version is not None and tag is not None and not _same(tag, ref.version):
            raise _FinalError("has changed since it was listed. Make the index anew (refresh=True).")
        if ref.size_bytes is not None and len(data) != ref.size_bytes:
            raise OSError(f"{len(data)} bytes came instead of {ref.size_bytes}")
        return data

    def _shown(self, ref: ObjectRef) -> str:
        # A name may hold anything, also line breaks and terminal codes.
        return f"{self.bucket.shown.rstrip('/')}/{ascii(ref.name[:200])[1:-1]}"


class _FinalError(Exception):
    """What another try cannot mend."""


def _same(tag: str, listed: str) -> bool:
    """Whether two ETags are one: Azure lists them without the quotes it answers with."""
    return tag.removeprefix("W/").strip('"') == listed.removeprefix("W/").strip('"')


def _pause(tries: int) -> None:
    longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (tries - 1))
    time.sleep(_spread.uniform(0, longest))
