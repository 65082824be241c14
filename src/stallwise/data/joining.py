"""Neighbouring small reads of one object, joined into one ranged GET.

Records packed into large objects (shards) are read by their place: name, start, length. A GET of 2 KB costs as much as
one of 2 MB, in dollars and nearly in time. So who asks first for a part of an object waits a moment for others; then
parts that lie close together are read at once, by one of those who asked, and cut apart in memory. Bytes in between are
read for nothing: never more than `gap_bytes` between two parts, and `most_bytes` in all.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from stallwise.data.fetch import Fetched
from stallwise.data.objects import ObjectRef
from stallwise.errors import ObjectError

GAP_BYTES = 64 << 10
MOST_BYTES = 8 << 20
WAIT_S = 0.002
"""Against 20 to 100 ms of a store's answer."""


@dataclass(eq=False)
class _Asked:
    """One part that a thread waits for."""

    ref: ObjectRef
    run: "_Run | None" = None
    told: threading.Event = field(default_factory=threading.Event)


@dataclass(eq=False)
class _Run:
    """Parts that are read at once."""

    whole: ObjectRef
    first: _Asked
    fetched: Fetched | None = None
    error: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Joiner:
    """Stands in front of what reads one object; whole objects pass. Any thread may ask."""

    def __init__(
        self, read: Callable[[ObjectRef], Fetched], *, gap_bytes: int = GAP_BYTES, most_bytes: int = MOST_BYTES
    ) -> None:
        self._read, self._gap_bytes, self._most_bytes = read, gap_bytes, most_bytes
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, str | None], list[_Asked]] = {}

    def get(self, ref: ObjectRef) -> Fetched:
        """The part; `tries` and `read_bytes` count with the one that read for all."""
        if ref.start is None or ref.size_bytes is None:
            return self._read(ref)
        asked = _Asked(ref)
        if self._is_first(asked):
            time.sleep(WAIT_S)
            self._share_out(ref)
        asked.told.wait()
        run = asked.run
        if run is None:
            raise AssertionError("whoever was told has a run")
        if run.first is asked:
            self._fly(run)
        run.done.wait()
        return _part(run, asked)

    def _is_first(self, asked: _Asked) -> bool:
        with self._lock:
            others = self._waiting.setdefault((asked.ref.name, asked.ref.version), [])
            others.append(asked)
            return len(others) == 1

    def _share_out(self, ref: ObjectRef) -> None:
        with self._lock:
            every = self._waiting.pop((ref.name, ref.version))
        for members in joined(every, self._gap_bytes, self._most_bytes):
            start, end = members[0].ref.start or 0, max(_end(one.ref) for one in members)
            run = _Run(replace(members[0].ref, start=start, size_bytes=end - start), members[0])
            for one in members:
                one.run = run
                one.told.set()

    def _fly(self, run: _Run) -> None:
        try:
            run.fetched = self._read(run.whole)
        except Exception as error:
            run.error = error
        except BaseException:
            run.error = InterruptedError("the thread that read for others was ended")
            raise
        finally:
            run.done.set()


def joined(every: Sequence[_Asked], gap_bytes: int, most_bytes: int) -> list[list[_Asked]]:
    """Runs of parts that lie close together, in the order of the object."""
    runs: list[list[_Asked]] = []
    end = 0
    for asked in sorted(every, key=lambda one: one.ref.start or 0):
        start = asked.ref.start or 0
        near = bool(runs) and start - end <= gap_bytes
        if near and max(end, _end(asked.ref)) - (runs[-1][0].ref.start or 0) <= most_bytes:
            runs[-1].append(asked)
        else:
            runs.append([asked])
            end = 0
        end = max(end, _end(asked.ref))
    return runs


def _end(ref: ObjectRef) -> int:
    return (ref.start or 0) + (ref.size_bytes or 0)


def _part(run: _Run, asked: _Asked) -> Fetched:
    is_reader = run.first is asked
    if run.fetched is None:
        if isinstance(run.error, ObjectError) and not is_reader:
            raise ObjectError(str(run.error), 0)  # whoever read has counted the tries
        raise run.error or AssertionError("neither read nor failed")
    found, at = run.fetched, (asked.ref.start or 0) - (run.whole.start or 0)
    data = found.data[at : at + (asked.ref.size_bytes or 0)]
    return Fetched(data, found.seconds, found.tries if is_reader else 0, len(found.data) if is_reader else 0)
