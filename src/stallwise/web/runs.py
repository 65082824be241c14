"""The folder the page is about: which runs and simulations it holds, and the only way to open one of them.

Records come from elsewhere and are not trusted. What is opened lies inside the folder, is reached without following a
single link, and is not larger than a record of thousands of ranks would be.
"""

import contextlib
import os
import stat
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from stallwise.analysis.analysis import Analysis, open_run
from stallwise.cloud.request import SpotTerms
from stallwise.errors import InputError, RunError, StallwiseError
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.instance import Instance, Offer
from stallwise.run.join import OLD_TABLE_SUFFIX, PARTS_NAME, TABLE_SUFFIX
from stallwise.run.manifest import MANIFEST_NAME, Manifest, decode
from stallwise.run.reader import Run
from stallwise.run.table_file import check_table_size

MAX_MANIFEST_BYTES = 16 * 2**20
"""A manifest of 1,024 ranks has 0.2 MB."""
MAX_TABLE_BYTES = 512 * 2**20
MAX_PARTS_BYTES = 512 * 2**20
MAX_FILE_BYTES = 64 * 2**20
"""Of a simulation."""
MAX_DEPTH = 4
MAX_FOLDERS = 20_000
_PEEK = 400

# What a hostile manifest may make the decoder raise.
READ_ERRORS = (StallwiseError, OSError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderEntry:
    """One thing in the folder, by its path from there. `why` says why it is not shown."""

    key: str
    manifest: Manifest | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderListing:
    """The runs and simulations of the folder, and what could not be read."""

    runs: tuple[FolderEntry, ...]
    refused: tuple[FolderEntry, ...]
    simulations: tuple[str, ...]
    jobs: tuple[str, ...]
    cut: bool
    """Whether there were more folders than are looked into."""


@dataclass(frozen=True)
class RunFolder:
    """A folder of runs."""

    folder: Path

    @cached_property
    def root(self) -> Path:
        """The folder itself, whatever links lead to it."""
        return self.folder.resolve()

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            raise InputError(f"There is no folder at {self.folder}. Give one that holds runs.")

    def listing(self) -> FolderListing:
        """Look through the folder: manifests are read, tables are not."""
        runs: list[FolderEntry] = []
        refused: list[FolderEntry] = []
        files: dict[str, list[str]] = {"simulation": [], "jobs": []}
        folders = list(self._folders())
        for folder in folders[:MAX_FOLDERS]:
            key = folder.relative_to(self.root).as_posix()
            if not _is_utf8(key):
                refused.append(FolderEntry(key=ascii(key), why="Its name is not UTF-8."))
                continue
            try:
                inside = {entry.name: entry for entry in entries(folder)}
            except OSError:
                continue
            if MANIFEST_NAME in inside:
                try:
                    runs.append(FolderEntry(key=key, manifest=self._manifest(folder)))
                except READ_ERRORS as error:
                    refused.append(FolderEntry(key=key, why=_sentence(error)))
                continue
            for name, entry in sorted(inside.items()):
                kind = _kind(entry)
                if kind and _is_utf8(name):
                    files[kind].append((folder / name).relative_to(self.root).as_posix())
        runs.sort(key=lambda one: (one.manifest.created.timestamp() if one.manifest else 0.0, one.key), reverse=True)
        return FolderListing(
            runs=tuple(runs),
            refused=tuple(refused),
            simulations=tuple(files["simulation"]),
            jobs=tuple(files["jobs"]),
            cut=len(folders) > MAX_FOLDERS,
        )

    def run_path(self, key: str) -> Path:
        """The folder of a run after every file that a reader would open was checked; a `RunError` refuses it."""
        folder = self.run_folder(key)
        self._manifest(folder)
        for entry in entries(folder):
            if entry.name.endswith((TABLE_SUFFIX, OLD_TABLE_SUFFIX)):
                _plain_file(entry, f"{key}/{entry.name}", MAX_TABLE_BYTES)
                check_table_size(Path(entry.path))
            elif entry.name == PARTS_NAME:
                _parts(entry, key)
        return folder

    def run_folder(self, key: str) -> Path:
        """The folder of a run; its files are not checked."""
        folder = self._inside(key)
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise RunError(f"{key} is not a run's folder.")
        return folder

    def file_path(self, key: str) -> Path:
        """The path of a simulation's file or of a table of its jobs; an error where it is neither."""
        path = self._inside(key)
        _check(path.name, os.lstat(path), key, MAX_FILE_BYTES)
        if not path.name.endswith((".json", ".csv")):
            raise InputError(f"{key} is neither a simulation nor a table of its jobs.")
        return path

    def _inside(self, key: str) -> Path:
        """The path of a key: no way up, no absolute path, no link on the way."""
        words = key.split("/") if key != "." else []
        if "\0" in key or "\\" in key or any(word in ("", ".", "..") for word in words):
            raise InputError("That is not a path inside the folder.")
        path = self.root
        for word in words:
            path = path / word
            try:
                mode = os.lstat(path).st_mode
            except (OSError, ValueError):
                raise InputError(f"There is nothing at {key} in the folder.") from None
            if stat.S_ISLNK(mode):
                raise InputError(f"{key} leads through a link, and links are not followed.")
        return path

    def _manifest(self, folder: Path) -> Manifest:
        path = folder / MANIFEST_NAME
        name = path.relative_to(self.root).as_posix()
        try:
            _check(path.name, os.lstat(path), name, MAX_MANIFEST_BYTES)
        except FileNotFoundError:
            raise RunError(f"{name} is not there, so its folder is not a run.") from None
        try:
            return decode(path.read_bytes(), path)
        except RecursionError:
            raise RunError(f"{name} is nested too deeply to be a manifest.") from None

    def _folders(self) -> Iterator[Path]:
        """The folder and its subfolders; links, runs and hidden folders are not entered."""
        level = [self.root]
        for depth in range(MAX_DEPTH + 1):
            below = []
            for folder in level:
                yield folder
                # Without an error where the folder is closed to us.
                if depth < MAX_DEPTH and not os.path.exists(folder / MANIFEST_NAME):  # noqa: PTH110
                    below += _children(folder)
            level = below[:MAX_FOLDERS]


def entries(folder: Path | str) -> "list[os.DirEntry[str]]":
    """The entries of a folder; links are not followed."""
    with os.scandir(folder) as scan:
        return list(scan)


def _is_utf8(name: str) -> bool:
    """Whether a name is valid UTF-8, so that JSON can carry it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _children(folder: Path) -> list[Path]:
    try:
        folders = [entry for entry in entries(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(Path(entry.path) for entry in folders if not entry.name.startswith("."))


def _kind(entry: os.DirEntry[str]) -> str | None:
    """Whether a file is a simulation (JSON) or a table of its jobs (CSV), by how it begins."""
    if not entry.name.endswith((".json", ".csv")) or not entry.is_file(follow_symlinks=False):
        return None
    try:
        if entry.stat(follow_symlinks=False).st_size > MAX_FILE_BYTES:
            return None
        with open(entry.path, "rb") as file:  # noqa: PTH123 - an entry is what was looked at
            head = file.read(_PEEK)
    except OSError:
        return None
    if entry.name.endswith(".csv"):
        return "jobs" if head.startswith(b"policy,cluster,load,seed,job_id,") else None
    return "simulation" if head.lstrip().startswith(b"{") and b'"trace"' in head and b'"arrivals"' in head else None


def _plain_file(entry: os.DirEntry[str], name: str, limit: int) -> int:
    status = entry.stat(follow_symlinks=False)
    _check(entry.name, status, name, limit)
    return status.st_size


def _check(short: str, status: os.stat_result, name: str, limit: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise RunError(f"{name} is a link or no plain file, and is not read.")
    if status.st_size > limit:
        raise RunError(
            f"{name} has {status.st_size / 1e6:,.0f} MB; the page reads up to {limit / 1e6:,.0f} MB of a {short}."
        )


def _parts(parts: os.DirEntry[str], key: str) -> None:
    if not parts.is_dir(follow_symlinks=False):
        raise RunError(f"{key}/{PARTS_NAME} is a link or no folder, and is not read.")
    size = 0
    for rank in entries(parts.path):
        if not rank.is_dir(follow_symlinks=False):
            raise RunError(f"{key}/{PARTS_NAME}/{rank.name} is a link or no folder, and is not read.")
        for entry in entries(rank.path):
            size += _plain_file(entry, f"{key}/{PARTS_NAME}/{rank.name}/{entry.name}", MAX_PARTS_BYTES)
    if size > MAX_PARTS_BYTES:
        raise RunError(f"The parts of {key} have {size / 1e6:,.0f} MB; join them with `stallwise run join` first.")


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, StallwiseError) else f"It cannot be read ({type(error).__name__})."


_MAX_OPEN = 16


@dataclass(frozen=True)
class OpenRun:
    """A run on the page: its analysis, the catalog's offers, and what was worked out for the sliders."""

    key: str
    analysis: Analysis
    offers_of: Callable[[Instance], Sequence[Offer]]
    """The catalog's, of an instance type."""
    spot_terms: dict[float, SpotTerms] = field(default_factory=dict)
    """By mean life in hours; kept with the run that they were read from."""

    @property
    def run(self) -> Run:
        """The record of the run."""
        return self.analysis.run

    @property
    def catalog(self) -> Catalog:
        """GPUs, instance types and prices."""
        return self.analysis.catalog

    def prepare(self) -> None:
        """Compute what does not depend on the sliders; errors are reported when a request needs it."""
        with contextlib.suppress(*READ_ERRORS):
            _ = self.analysis.links


@dataclass(frozen=True)
class RunCache:
    """The runs that were opened last, read again when their files change."""

    folder: RunFolder
    catalog: Catalog
    _open: "OrderedDict[tuple[object, ...], OpenRun]" = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def _offers(self) -> Mapping[tuple[str, str], Sequence[Offer]]:
        """Offers by cloud and instance type, so that a slider does not search all of them."""
        offers = defaultdict(list)
        for offer in self.catalog.offers:
            offers[offer.instance.cloud, offer.instance.name].append(offer)
        return offers

    def offers_of(self, instance: Instance) -> Sequence[Offer]:
        """The catalog's offers of an instance type."""
        return self._offers.get((instance.cloud, instance.name), ())

    def open(self, key: str) -> OpenRun:
        """The run by its path in the folder; read again when a file of it has changed."""
        stamp = (key, *_stamp(self.folder.run_folder(key)))
        with self._lock:
            run = self._open.get(stamp)
            if run is None:
                run = self._open[stamp] = self._read(key)
            self._open.move_to_end(stamp)
            while len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)
        return run

    def _read(self, key: str) -> OpenRun:
        return OpenRun(key, open_run(self.folder.run_path(key), self.catalog), self.offers_of)


def _stamp(folder: Path) -> tuple[tuple[str, int, int, int, int], ...]:
    """Names, kinds, sizes and times of a run's files, without following a link."""
    return tuple((name, it.st_mode, it.st_ino, it.st_size, it.st_mtime_ns) for name, it in sorted(_files(folder, 2)))


def _files(folder: Path, depth: int) -> Iterator[tuple[str, os.stat_result]]:
    for entry in entries(folder):
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # a run that is being recorded
            continue
        if not stat.S_ISDIR(status.st_mode):
            yield entry.path, status
        elif depth and (depth < 2 or entry.name == PARTS_NAME):
            yield from _files(Path(entry.path), depth - 1)
