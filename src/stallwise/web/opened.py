"""Runs that are open: what questions about them are answered from, kept while their files stay the same."""

import contextlib
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from stallwise.cloud.subject import Subject, subject_of
from stallwise.hardware.catalog import Catalog
from stallwise.model.whatif import Job
from stallwise.record.job import job_of
from stallwise.record.profile import Profile, profile_of
from stallwise.run.manifest import MANIFEST_NAME
from stallwise.run.parts import PARTS_NAME
from stallwise.run.reader import Run
from stallwise.web.shelf import Shelf

_KEPT = 16


@dataclass(frozen=True)
class Opened:
    """A run, and what follows from it; each is worked out when first asked for and may be a `StallwiseError`."""

    key: str
    run: Run
    catalog: Catalog

    @cached_property
    def profile(self) -> Profile:
        """Where its step goes."""
        return profile_of(self.run)

    @cached_property
    def job(self) -> Job:
        """As what-ifs take it."""
        return job_of(self.run)

    @cached_property
    def subject(self) -> Subject:
        """As recommendations take it."""
        return subject_of(self.run, self.catalog)


@dataclass(frozen=True)
class Desk:
    """The last few runs that were asked about."""

    shelf: Shelf
    catalog: Catalog
    _open: "OrderedDict[tuple[object, ...], Opened]" = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self, key: str) -> Opened:
        """The run by its path in the folder; read again when a file of it has changed."""
        path = self.shelf.run_path(key)
        stamp = (key, *_stamp(path))
        with self._lock:
            found = self._open.get(stamp)
            if found is None:
                found = self._open[stamp] = Opened(key, Run.open(path), self.catalog)
            self._open.move_to_end(stamp)
            while len(self._open) > _KEPT:
                self._open.popitem(last=False)
        return found


def _stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of a run's files."""
    files = [path / MANIFEST_NAME, *sorted(path.glob("*.parquet")), *sorted(path.glob(f"{PARTS_NAME}/*/*"))]
    found = []
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # a run that is being recorded
            stat = file.lstat()
            found.append((file.name, stat.st_size, stat.st_mtime_ns))
    return tuple(found)
