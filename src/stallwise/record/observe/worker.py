"""What preparing one batch costs, measured where it happens: in the loader worker.

Per batch: wall time; CPU time of the whole process, so that a decoder's threads count; time ready to run
with no core free (`schedstat`); bytes read (`/proc/self/io`). What is left of the wall time was spent blocked:
on a disk, a network file system, an object store. Each record is appended as one fixed-size write to the worker's own
file, so a killed worker loses nothing and no queue of the loader is touched. Measuring takes some 50 µs a batch (the
kernel's files cost most) and is kept below half a per cent of the worker's time.

`data/` logs in the same folder what each batch from an object store waited for (`LoadLog`); outside a profile there is
no folder and nothing is written.

This module is imported inside loader workers, so it imports next to nothing.
"""

import mmap
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

_COST_RECORD = struct.Struct("<iidddddqi")
_LOAD_RECORD = struct.Struct("<iddqqqqqqdddd")
_CONTROL_NAME = "control"
COSTS_SUFFIX = ".costs"
LOADS_SUFFIX = ".loads"
FACTS_SUFFIX = ".bucket"

_MAX_OVERHEAD = 0.005
"""The fraction of a worker's time that measuring may take."""
_MIN_MEASURED = 5
"""Batches after which the cost of measuring is known."""

COLD = 1
"""Value of the control byte that asks workers to read their files from storage, not from the page cache."""


class BatchCost(NamedTuple):
    """What one process spent on preparing one batch."""

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
    whole = len(data) - len(data) % _COST_RECORD.size
    for fields in _COST_RECORD.iter_unpack(data[:whole]):
        yield BatchCost(*fields)


def read_all_costs(folder: Path) -> list[BatchCost]:
    """Every record of every worker of one rank."""
    return [cost for path in sorted(folder.glob(f"*{COSTS_SUFFIX}")) for cost in read_costs(path)]


def reads_files(folder: Path) -> bool:
    """Whether preparing batches reads data: more than 64 bytes per sample through read()."""
    costs = read_all_costs(folder)
    samples = sum(max(cost.samples, 1) for cost in costs)
    return bool(costs) and sum(cost.read_bytes for cost in costs) > 64 * samples


class BatchCostLog:
    """Measures the batches one process prepares and appends them to its file in `folder`."""

    def __init__(self, folder: str, loader: int, worker: int) -> None:
        self.loader = loader
        self._worker = worker
        self.skip = 0
        self._measuring_s = float("inf")
        self._measured = 0
        name = f"worker-{loader}-{worker if worker >= 0 else 'own'}-{os.getpid()}{COSTS_SUFFIX}"
        # The launcher may have removed the folder already when a late worker starts.
        os.makedirs(folder, exist_ok=True)
        self._file = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._schedstat = _open_quietly("/proc/self/schedstat")
        self._io = _open_quietly("/proc/self/io")

    def measure(self, prepare: Callable[[], Any], samples: Callable[[Any], int]) -> Any:
        """Run `prepare` and record what it cost; `samples` counts those of a batch."""
        began = time.monotonic()
        wait_before, read_before = self._runqueue_wait_s(), self._read_bytes()
        cpu_before, start = time.process_time(), time.monotonic()
        batch = prepare()
        wall = time.monotonic() - start
        cpu = time.process_time() - cpu_before
        wait = self._runqueue_wait_s() - wait_before
        blocked = max(0.0, wall - min(cpu, wall) - wait)
        read = self._read_bytes() - read_before
        fields = (self.loader, self._worker, start, wall, cpu, wait, blocked, read, samples(batch))
        os.write(self._file, _COST_RECORD.pack(*fields))
        # The least it ever took: on a busy machine the core may be taken away in between, for longer than any batch.
        self._measuring_s = min(self._measuring_s, time.monotonic() - began - wall)
        self._measured += 1
        # Of batches so small that measuring would slow the worker down, one in several is enough.
        calibrated = wall > 0 and self._measured >= _MIN_MEASURED
        self.skip = int(self._measuring_s / (_MAX_OVERHEAD * wall)) if calibrated else 0
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


class WorkerControl:
    """One byte shared by the rank and its workers: whether the next batches are read from storage."""

    def __init__(self, folder: str) -> None:
        path = os.path.join(folder, _CONTROL_NAME)
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
    def cold(self, value: bool) -> None:
        self._page[0] = COLD if value else 0


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
    """Make the next read of `path` come from storage, as far as the kernel allows."""
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
    """The folder for what this process measures about loading; None where nobody profiles."""
    return _folder


class WatchedFetch:
    """Stands in for a fetcher's `fetch`: measures it, and follows the control byte."""

    def __init__(self, folder: str, loader: int, worker: int) -> None:
        self.folder = folder
        self.log = BatchCostLog(folder, loader, worker)
        self._control = WorkerControl(folder)
        self._cold_reads: _ColdReads | None = None

    def __call__(self, fetcher: Any, fetch: Callable[[Any, Any], Any], index: Any) -> Any:
        """Prepare the batch at `index` as `fetcher` would."""
        cold = self._control.cold
        if self.log.skip and not cold and self._cold_reads is None:
            self.log.skip -= 1
            return fetch(fetcher, index)
        if cold and self._cold_reads is None:
            self._cold_reads = _ColdReads()
        if self._cold_reads is not None:
            self._cold_reads.on = cold
        return self.log.measure(lambda: fetch(fetcher, index), lambda batch: _samples(batch, index))


def _samples(batch: Any, index: Any) -> int:
    """Samples of a batch as the rank counts them: an item of the dataset may be a whole batch by itself."""
    from stallwise.record.ablate._replay import batch_counts

    try:
        samples, _ = batch_counts(batch)
    except Exception:
        samples = None
    if samples is None:
        samples = len(index) if isinstance(index, (list, tuple)) else -1
    return samples


class WorkerInit:
    """The `worker_init_fn` of a watched loader: starts the measuring, then calls the user's own function.

    It is pickled into spawned workers, so it holds only plain values and the user's function.
    """

    def __init__(self, folder: str, loader: int, user_function: Callable[[int], None] | None) -> None:
        self._folder = folder
        self._loader = loader
        self._user_function = user_function

    def __call__(self, worker: int) -> None:
        """Run in the worker before its first batch."""
        watch_fetchers(WatchedFetch(self._folder, self._loader, worker))
        if self._user_function is not None:
            self._user_function(worker)


def watch_fetchers(watched: WatchedFetch) -> None:
    """Send every fetch of this process through `watched`."""
    global _folder
    _folder = watched.folder
    from stallwise.torch_private import IterableDatasetFetcher, MapDatasetFetcher

    for kind in (MapDatasetFetcher, IterableDatasetFetcher):
        # A forked worker inherits its parent's patch: replace that one, not the original.
        original = getattr(kind.fetch, "_stallwise_original", kind.fetch)

        def fetch(self: Any, index: Any, _original: Callable[..., Any] = original) -> Any:
            return watched(self, _original, index)

        fetch._stallwise_original = original  # type: ignore[attr-defined]
        kind.fetch = fetch  # type: ignore[method-assign]


def unwatch_fetchers() -> None:
    """Undo what `watch_fetchers` patched."""
    global _folder
    _folder = None
    from stallwise.torch_private import IterableDatasetFetcher, MapDatasetFetcher

    for kind in (MapDatasetFetcher, IterableDatasetFetcher):
        kind.fetch = getattr(kind.fetch, "_stallwise_original", kind.fetch)  # type: ignore[method-assign]


_logs = count()  # of this process: it may read two object stores, to train and to validate


class BatchLoad(NamedTuple):
    """What one batch from an object store waited for; times are of time.monotonic(), as in `BatchCost`."""

    worker: int  # -1 where the rank loads its own data
    start_s: float
    wall_s: float
    samples: int
    data_bytes: int
    hits: int
    requests: int
    retries: int
    fetched_bytes: int
    network_s: float
    cache_s: float
    decode_s: float
    queue_s: float  # below 0 where unknown


class LoadLog:
    """Appends the batches of one process to its file; `facts` (JSON) says once which object store they come from."""

    def __init__(self, folder: str, facts: str) -> None:
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"bucket-{os.getpid()}-{next(_logs)}")
        with open(path + FACTS_SUFFIX, "w") as file:
            file.write(facts)
        self._file = os.open(path + LOADS_SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, load: BatchLoad) -> None:
        """Append one record in a single write: a process that is killed leaves it whole or not at all."""
        os.write(self._file, _LOAD_RECORD.pack(*load))


def read_loads(path: Path) -> Iterator[BatchLoad]:
    """The batches of one file; a torn last one is left out."""
    data = path.read_bytes()
    for row in _LOAD_RECORD.iter_unpack(data[: len(data) - len(data) % _LOAD_RECORD.size]):
        yield BatchLoad(*row)
