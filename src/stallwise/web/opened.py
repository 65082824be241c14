"""Runs that are open: what questions about them are answered from, kept while their files stay the same."""

import contextlib
import os
import stat
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from stallwise.cloud.subject import Subject, subject_of
from stallwise.cloud.wish import SpotTerms
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.instance import Instance
from stallwise.hardware.offer import Offer
from stallwise.model.calibrate import OwnLinks, own_links
from stallwise.model.whatif import Job
from stallwise.record.job import job_of
from stallwise.record.profile import Profile, profile_of
from stallwise.run.parts import PARTS_NAME
from stallwise.run.reader import Run
from stallwise.web.shelf import BROKEN, Shelf, entries

_KEPT = 16


@dataclass(frozen=True)
class Opened:
    """A run, and what follows from it; each is worked out when first asked for and may be a `StallwiseError`."""

    key: str
    run: Run
    catalog: Catalog
    offers_of: Callable[[Instance], Sequence[Offer]]
    """The catalog's, of an instance type."""
    spot_terms: dict[float, SpotTerms] = field(default_factory=dict)
    """By mean life in hours, for whoever works them out: they go with the run they were read from."""

    @cached_property
    def profile(self) -> Profile:
        """Where its step goes."""
        return profile_of(self.run)

    @cached_property
    def job(self) -> Job:
        """As what-ifs take it."""
        return job_of(self.run)

    @cached_property
    def links(self) -> OwnLinks:
        """The links it was measured on; whichever way the sliders stand, they stay."""
        return own_links(self.job)

    @cached_property
    def subject(self) -> Subject:
        """As recommendations take it."""
        return subject_of(self.run, self.catalog)

    def prepare(self) -> None:
        """Have ready whatever does not depend on where sliders stand; what cannot be is said when it is asked for."""
        with contextlib.suppress(*BROKEN):
            _ = self.links
        with contextlib.suppress(*BROKEN):
            _ = self.subject


@dataclass(frozen=True)
class Desk:
    """The last few runs that were asked about."""

    shelf: Shelf
    catalog: Catalog
    _open: "OrderedDict[tuple[object, ...], Opened]" = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def _offers(self) -> Mapping[tuple[str, str], Sequence[Offer]]:
        """By cloud and instance type: to look through all at every move of a slider would take most of its time."""
        found = defaultdict(list)
        for offer in self.catalog.offers:
            found[offer.instance.cloud, offer.instance.name].append(offer)
        return found

    def offers_of(self, instance: Instance) -> Sequence[Offer]:
        """Whatever is listed of an instance type."""
        return self._offers.get((instance.cloud, instance.name), ())

    def open(self, key: str) -> Opened:
        """The run by its path in the folder; read again when a file of it has changed."""
        stamp = (key, *_stamp(self.shelf.run_folder(key)))
        with self._lock:
            found = self._open.get(stamp)
            if found is None:
                found = self._open[stamp] = self._read(key)
            self._open.move_to_end(stamp)
            while len(self._open) > _KEPT:
                self._open.popitem(last=False)
        return found

    def _read(self, key: str) -> Opened:
        return Opened(key, Run.open(self.shelf.run_path(key)), self.catalog, self.offers_of)


def _stamp(folder: Path) -> tuple[tuple[str, int, int, int, int], ...]:
    """Names, kinds, sizes and times of a run's files, without following a link."""
    return tuple((name, it.st_mode, it.st_ino, it.st_size, it.st_mtime_ns) for name, it in sorted(_files(folder, 2)))


def _files(folder: Path, depth: int) -> Iterator[tuple[str, os.stat_result]]:
    for entry in entries(folder):
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # a run that is being recorded
            continue
        if not stat.S_ISDIR(found.st_mode):
            yield entry.path, found
        elif depth and (depth < 2 or entry.name == PARTS_NAME):
            yield from _files(Path(entry.path), depth - 1)
