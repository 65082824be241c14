"""What preparing one batch costs, measured where it happens: in the loader worker.

Per batch: wall time; processor time of the whole process, so that a decoder's threads count; time ready to run
with no core free (`schedstat`); bytes read (`/proc/self/io`). What is left of the wall time was spent blocked:
on a disk, a network file system, a bucket. Each record is appended as one fixed-size write to the worker's own
file, so a killed worker loses nothing and no queue of the loader is touched. Measuring takes some 50 µs a batch (the
kernel's files cost most) and is kept below half a per cent of the worker's time.

This module is imported inside loader workers, so it imports next to nothing.
"""

import mmap
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_RECORD = struct.Struct("<iidddddqi")
CONTROL_NAME = "control"

# The part of a worker's time that measuring may take.
_FELT = 0.005
_KNOWN_AFTER = 5

COLD = 1
"""Value of the control byte that asks workers to read their files from storage, not from the page cache."""


class BatchCost(NamedTuple):
    """One prepared batch."""

    loader: int
    worker: int  # -1 where the rank loads its own data
    start_s: float  # time.monotonic(), the same clock in all processes of a machine
    wall_s: float
    cpu_s: float
    runqueue_wait_s: float
    blocked_s: float
    read_bytes: int
    samples: int  # -1 where unknown


def read_costs(path: Path) -> Iterator[BatchCost]:
    """The records of one worker; a torn last one is left out."""
    data = path.read_bytes()
    whole = len(data) - len(data) % _RECORD.size
    for fields in _RECORD.iter_unpack(data[:whole]):
        yield BatchCost(*fields)


class Account:
    """Measures the batches one process prepares and appends them to its file in `folder`."""

    def __init__(self, folder: str, loader: int, worker: int) -> None:
        self.loader = loader
        self._worker = worker
        self.skip = 0
        self._measuring_s = float("inf")
        self._measured = 0
        name = f"worker-{loader}-{worker if worker >= 0 else 'own'}-{os.getpid()}.costs"
        # The launcher may have removed the folder already when a late worker starts.
        os.makedirs(folder, exist_ok=True)
        self._file = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._schedstat = _open_quietly("/proc/self/schedstat")
        self._io = _open_quietly("/proc/self/io")

    def measure(self, prepare: Callable[[], Any], samples: int) -> Any:
        """Run `prepare` and record what it cost."""
        began = time.monotonic()
        wait_before, read_before = self._runqueue_wait_s(), self._read_bytes()
        cpu_before, start = time.process_time(), time.monotonic()
        batch = prepare()
        wall = time.monotonic() - start
        cpu = time.process_time() - cpu_before
        wait = self._runqueue_wait_s() - wait_before
        blocked = max(0.0, wall - min(cpu, wall) - wait)
        read = self._read_bytes() - read_before
        fields = (self.loader, self._worker, start, wall, cpu, wait, blocked, read, samples)
        os.write(self._file, _RECORD.pack(*fields))
        # The least it ever took: on a busy machine the core may be taken away in between, for longer than any batch.
        self._measuring_s = min(self._measuring_s, time.monotonic() - began - wall)
        self._measured += 1
        # Among batches so small that measuring would be felt, one in several is enough.
        known = wall > 0 and self._measured >= _KNOWN_AFTER
        self.skip = int(self._measuring_s / (_FELT * wall)) if known else 0
        return batch

    def _runqueue_wait_s(self) -> float:
        if self._schedstat < 0:
            return 0.0
        return int(os.pread(self._schedstat, 96, 0).split()[1]) / 1e9

    def _read_bytes(self) -> int:
        # "rchar: 123\n…": what read() returned, from the page cache or from storage.
        return int(os.pread(self._io, 64, 0).split(None, 2)[1]) if self._io >= 0 else 0


def _open_quietly(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return -1


class Control:
    """One byte shared by the rank and its workers: what the next batches are to be prepared under."""

    def __init__(self, folder: str) -> None:
        path = os.path.join(folder, CONTROL_NAME)
        os.makedirs(folder, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.truncate(file, mmap.PAGESIZE)
            self._page = mmap.mmap(file, mmap.PAGESIZE)
        finally:
            os.close(file)

    @property
    def cold(self) -> bool:
        """Whether files are to be read from storage."""
        return self._page[0] == COLD

    @cold.setter
    def cold(self, wanted: bool) -> None:
        self._page[0] = COLD if wanted else 0


class _ColdReads:
    """Drops a file's cached pages at the moment it is opened, which needs neither root nor its name beforehand.

    Python raises the audit event `open` before it opens a file. Opening the file once more and advising the
    kernel that its pages are not needed makes the read that follows cold. Pages that are dirty or mapped stay.
    """

    def __init__(self) -> None:
        self.on = False
        self._inside = False
        sys.addaudithook(self._audit)

    def _audit(self, event: str, details: tuple[Any, ...]) -> None:
        if event != "open" or not self.on or self._inside:
            return
        path, _mode, flags = details
        if not isinstance(path, (str, bytes)) or (flags & os.O_ACCMODE) != os.O_RDONLY:
            return
        self._inside = True
        try:
            drop_cached_pages(path)
        finally:
            self._inside = False


def drop_cached_pages(path: str | bytes) -> None:
    """Make the next read of `path` come from storage, as far as the kernel goes along."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        pass  # a pipe, a device: nothing is cached
    finally:
        os.close(file)


_folder: str | None = None


def collecting_folder() -> str | None:
    """Where this process may leave what it measured about loading; None where nobody profiles."""
    return _folder


class WatchedFetch:
    """Stands in for a fetcher's `fetch`: measures it, and follows the control byte."""

    def __init__(self, folder: str, loader: int, worker: int) -> None:
        self.folder = folder
        self.account = Account(folder, loader, worker)
        self._control = Control(folder)
        self._cold_reads: _ColdReads | None = None

    def __call__(self, fetcher: Any, fetch: Callable[[Any, Any], Any], index: Any) -> Any:
        """Prepare the batch at `index` as `fetcher` would."""
        cold = self._control.cold
        if self.account.skip and not cold and self._cold_reads is None:
            self.account.skip -= 1
            return fetch(fetcher, index)
        if cold and self._cold_reads is None:
            self._cold_reads = _ColdReads()
        if self._cold_reads is not None:
            self._cold_reads.on = cold
        samples = len(index) if isinstance(index, (list, tuple)) else -1
        return self.account.measure(lambda: fetch(fetcher, index), samples)


class WorkerStart:
    """The `worker_init_fn` of a watched loader: arranges the measuring, then does what the user's own did.

    It is pickled into spawned workers, so it holds only plain values and the user's function.
    """

    def __init__(self, folder: str, loader: int, user_function: Callable[[int], None] | None) -> None:
        self._folder = folder
        self._loader = loader
        self._user_function = user_function

    def __call__(self, worker: int) -> None:
        """Runs in the worker before its first batch."""
        watch_fetchers(WatchedFetch(self._folder, self._loader, worker))
        if self._user_function is not None:
            self._user_function(worker)


def watch_fetchers(watched: WatchedFetch) -> None:
    """From now on every fetcher of this process goes through `watched`."""
    global _folder
    _folder = watched.folder
    from torch.utils.data._utils import fetch as fetchers

    for kind in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher):
        # A forked worker inherits its parent's patch: replace that one, not the original.
        original = getattr(kind.fetch, "_stallwise_original", kind.fetch)

        def fetch(self: Any, index: Any, _original: Callable[..., Any] = original) -> Any:
            return watched(self, _original, index)

        fetch._stallwise_original = original  # type: ignore[attr-defined]
        kind.fetch = fetch  # type: ignore[method-assign]


def unwatch_fetchers() -> None:
    """The fetchers of this process are again what they were."""
    global _folder
    _folder = None
    from torch.utils.data._utils import fetch as fetchers

    for kind in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher):
        kind.fetch = getattr(kind.fetch, "_stallwise_original", kind.fetch)  # type: ignore[method-assign]
