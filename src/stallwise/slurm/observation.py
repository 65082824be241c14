"""Steps per second of running jobs, from the run records they write (docs/run-record.md).

The path is the user's text and the files are the user's: links are not followed, large files not read, and what does
not decode is ignored. Only what was written since the job has its nodes counts. Folders are listed up to a number of
entries.

Records are read in a process of their own (`python -m stallwise.slurm.observation`), since they may lie on any file
system of the users': a reader that takes too long is killed. One that cannot even be killed (a hard mount whose server
is gone) is left alone, and no other is started while it lives. It is a process and not a thread because a thread in
such a call would keep the controller itself, and with it the partition's lock, from ending.
"""

import contextlib
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

import msgspec

from stallwise.run.join import PARTS_NAME, PartRows, rank_folder

_MAX_BYTES = 8 << 20
_FILES = 4
_MIN_STEPS = 10
_AS_IS = "as is"
_FOLDERS = 200
_ENTRIES = 20_000
"""Names listed of one folder."""
_SHORTEST_STEP_S, _LONGEST_STEP_S = 1e-5, 1e5
"""Durations outside are no steps of a training job."""


def steps_per_s(record: Path, since_s: float) -> float | None:
    """Return the rate of the newest run at or below `record`: first rank, *as is* phase; None with too few steps."""
    times: list[float] = []
    for folder in _runs(record, since_s):
        for path in _parts(rank_folder(folder, 0), since_s):
            times += _durations(path)
        break
    return len(times) / sum(times) if len(times) >= _MIN_STEPS and sum(times) > 0 else None


def _runs(record: Path, since_s: float) -> Iterator[Path]:
    """Yield the record itself, or the runs in it, the one written last first."""
    if not record.is_absolute():
        return
    try:
        with os.scandir(record) as entries:
            inside = list(islice(entries, _FOLDERS))
        folders = [record, *(Path(entry.path) for entry in inside if entry.is_dir(follow_symlinks=False))]
        dated = [(folder, _changed(rank_folder(folder, 0))) for folder in folders if (folder / PARTS_NAME).is_dir()]
    except OSError:
        return
    for folder, changed_s in sorted(dated, key=lambda pair: -pair[1]):
        if changed_s >= since_s:
            yield folder


def _changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _parts(folder: Path, since_s: float) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, _ENTRIES)]
    except OSError:
        return []
    # Files are numbered in the order they were written, so the last few are enough to look at.
    last = sorted(name for name in names if name.startswith("steps-") and name.endswith(".json"))[-_FILES:]
    return [folder / name for name in last if _changed(folder / name) >= since_s]


def _durations(path: Path) -> list[float]:
    try:
        part = msgspec.json.decode(_read(path), type=PartRows)
        phase, kept, took = (part.columns.index(name) for name in ("phase", "kept", "duration_s"))
        chosen = [float(row[took]) for row in part.rows if row[phase] == _AS_IS and row[kept]]
    except (OSError, ValueError, TypeError, IndexError, OverflowError, RecursionError, msgspec.MsgspecError):
        return []
    return [value for value in chosen if _SHORTEST_STEP_S <= value <= _LONGEST_STEP_S]


def _read(path: Path) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            raise OSError("not a small plain file")
        return file.read(_MAX_BYTES)


_LONGEST_S = 20.0
_RECORDS = 500
"""Read by one process; the others come next time."""


class ReadRequest(msgspec.Struct, frozen=True):
    """One job's record to read: only what was written since `since_s` counts."""

    job: str
    record: str
    since_s: float


class SpeedReading(msgspec.Struct, frozen=True):
    """The speed that a job's record shows."""

    job: str
    since_s: float
    read_s: float
    """When it was read."""
    steps_per_s: float
    """0: the record shows none, or cannot be read."""


@dataclass(slots=True)
class RecordReader:
    """Runs at most one reading process at a time."""

    longest_s: float = _LONGEST_S
    command: Sequence[str] = (sys.executable, "-m", "stallwise.slurm.observation")
    clock: Callable[[], float] = time.monotonic
    _process: subprocess.Popen[bytes] | None = None
    _answers: IO[bytes] | None = None
    _began_s: float = 0.0
    _first: int = 0
    """Place of the first request being read; a later round begins elsewhere (`_next`)."""
    _next: int = 0

    @property
    def busy(self) -> bool:
        """Whether a process is reading, or cannot be killed."""
        return self._process is not None

    def start(self, requests: Sequence[ReadRequest]) -> None:
        """Start reading, unless a process still is."""
        if self.busy or not requests:
            return
        self._first = self._next % len(requests)
        chosen = [*requests[self._first :], *requests[: self._first]][:_RECORDS]
        self._next = self._first + len(chosen)
        try:
            self._begin(msgspec.json.encode(chosen))
        except OSError:  # a full disk, no more processes: nothing is learned this time, and scheduling goes on
            self._process = None

    def _begin(self, requests: bytes) -> None:
        with tempfile.TemporaryFile() as file:
            file.write(requests)
            file.seek(0)
            self._answers = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it is collected
            try:
                self._process = subprocess.Popen(
                    self.command, stdin=file, stdout=self._answers, stderr=subprocess.DEVNULL, cwd="/"
                )
            except OSError:
                self._answers.close()
                raise
        self._began_s = self.clock()

    def collect(self) -> list[SpeedReading]:
        """Return the readings of a process that has ended; none while it runs. Never waits."""
        if self._process is None:
            return []
        late = self.clock() - self._began_s > self.longest_s
        if self._process.poll() is None and late:
            self._process.kill()
        if self._process.poll() is None:
            return []
        self._process = None
        readings = self._read()
        if late:  # the next round begins behind the record that did not end, so that it hides no others
            self._next = self._first + len(readings) + 1
        return [reading for reading in readings if reading.steps_per_s > 0]

    def _read(self) -> list[SpeedReading]:
        assert self._answers is not None  # noqa: S101 - set with the process
        with self._answers as file:
            file.seek(0)
            lines = file.read().split(b"\n")[:-1]  # a killed one may have left half a line
        readings = []
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError, UnicodeError):  # other output of the process
                readings.append(msgspec.json.decode(line, type=SpeedReading))
        return readings

    def close(self) -> None:
        """Kill a process that still reads, without waiting for it."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()


def main() -> None:
    """Read the requested records: requests from stdin, a reading per line as soon as it is known."""
    for request in msgspec.json.decode(sys.stdin.buffer.read(), type=list[ReadRequest]):
        read_s = time.time()
        try:
            steps = steps_per_s(Path(request.record), request.since_s)
        except Exception:  # whatever one user's record holds, those of others are read
            steps = None
        reading = SpeedReading(request.job, request.since_s, read_s, steps or 0.0)
        os.write(sys.stdout.fileno(), msgspec.json.encode(reading) + b"\n")


if __name__ == "__main__":
    main()
