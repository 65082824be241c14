"""The folder the page is about: which runs and simulations it holds, and the only way to open one of them.

Records come from elsewhere and are not trusted. What is opened lies inside the folder, is reached without following a
single link, and is not larger than a record of thousands of ranks would be.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from stallwise.errors import InputError, RunError, StallwiseError
from stallwise.run.manifest import MANIFEST_NAME, Manifest, decode
from stallwise.run.parts import PARTS_NAME

MOST_MANIFEST_BYTES = 16 * 2**20
"""A manifest of 1,024 ranks has 0.2 MB."""
MOST_TABLE_BYTES = 512 * 2**20
MOST_PARTS_BYTES = 512 * 2**20
MOST_ROWS = 50_000_000
MOST_FILE_BYTES = 64 * 2**20
"""Of a simulation."""
DEPTH = 4
MOST_FOLDERS = 20_000
_PEEK = 400

# What a hostile manifest may make the decoder raise.
BROKEN = (StallwiseError, OSError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One thing in the folder, by its path from there. `why` says why it is not shown."""

    key: str
    manifest: Manifest | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Everything found."""

    runs: tuple[Listed, ...]
    refused: tuple[Listed, ...]
    simulations: tuple[str, ...]
    jobs: tuple[str, ...]
    cut: bool
    """Whether there were more folders than are looked into."""


@dataclass(frozen=True)
class Shelf:
    """A folder of runs."""

    folder: Path

    @cached_property
    def root(self) -> Path:
        """The folder itself, whatever links lead to it."""
        return self.folder.resolve()

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            raise InputError(f"There is no folder at {self.folder}. Give one that holds runs.")

    def listing(self) -> Listing:
        """Look through the folder: manifests are read, tables are not."""
        runs: list[Listed] = []
        refused: list[Listed] = []
        files: dict[str, list[str]] = {"simulation": [], "jobs": []}
        folders = list(self._folders())
        for folder in folders[:MOST_FOLDERS]:
            key = folder.relative_to(self.root).as_posix()
            if not _told(key):
                refused.append(Listed(key=ascii(key), why="Its name is not UTF-8."))
                continue
            try:
                inside = {entry.name: entry for entry in entries(folder)}
            except OSError:
                continue
            if MANIFEST_NAME in inside:
                try:
                    runs.append(Listed(key=key, manifest=self._manifest(folder)))
                except BROKEN as error:
                    refused.append(Listed(key=key, why=_sentence(error)))
                continue
            for name, entry in sorted(inside.items()):
                kind = _kind(entry)
                if kind and _told(name):
                    files[kind].append((folder / name).relative_to(self.root).as_posix())
        runs.sort(key=lambda one: (one.manifest.created.timestamp() if one.manifest else 0.0, one.key), reverse=True)
        return Listing(
            runs=tuple(runs),
            refused=tuple(refused),
            simulations=tuple(files["simulation"]),
            jobs=tuple(files["jobs"]),
            cut=len(folders) > MOST_FOLDERS,
        )

    def run_path(self, key: str) -> Path:
        """Where a run lies; everything a reader would open there has been looked at. A `RunError` refuses it."""
        folder = self.run_folder(key)
        self._manifest(folder)
        for entry in entries(folder):
            if entry.name.endswith(".parquet"):
                _plain_file(entry, f"{key}/{entry.name}", MOST_TABLE_BYTES)
                _few_rows(Path(entry.path), f"{key}/{entry.name}")
            elif entry.name == PARTS_NAME:
                _parts(entry, key)
        return folder

    def run_folder(self, key: str) -> Path:
        """Where a run would lie; nothing in it has been looked at."""
        folder = self._inside(key)
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise RunError(f"{key} is not a run's folder.")
        return folder

    def file_path(self, key: str) -> Path:
        """A simulation's file."""
        path = self._inside(key)
        _check(path.name, os.lstat(path), key, MOST_FILE_BYTES)
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
            _check(path.name, os.lstat(path), name, MOST_MANIFEST_BYTES)
        except FileNotFoundError:
            raise RunError(f"{name} is not there, so its folder is not a run.") from None
        try:
            return decode(path.read_bytes(), path)
        except RecursionError:
            raise RunError(f"{name} is nested too deeply to be a manifest.") from None

    def _folders(self) -> Iterator[Path]:
        """The folder and those in it, not through links, not into runs, not into hidden ones."""
        level = [self.root]
        for depth in range(DEPTH + 1):
            below = []
            for folder in level:
                yield folder
                # Without an error where the folder is closed to us.
                if depth < DEPTH and not os.path.exists(folder / MANIFEST_NAME):  # noqa: PTH110
                    below += _children(folder)
            level = below[:MOST_FOLDERS]


def entries(folder: Path | str) -> "list[os.DirEntry[str]]":
    """What lies in a folder, not what links there lead to."""
    with os.scandir(folder) as found:
        return list(found)


def _told(name: str) -> bool:
    """Whether a name can be told: one in another encoding cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _children(folder: Path) -> list[Path]:
    try:
        found = [entry for entry in entries(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(Path(entry.path) for entry in found if not entry.name.startswith("."))


def _kind(entry: os.DirEntry[str]) -> str | None:
    """Whether a file is a simulation (JSON) or a table of its jobs (CSV), by how it begins."""
    if not entry.name.endswith((".json", ".csv")) or not entry.is_file(follow_symlinks=False):
        return None
    try:
        if entry.stat(follow_symlinks=False).st_size > MOST_FILE_BYTES:
            return None
        with open(entry.path, "rb") as file:  # noqa: PTH123 - an entry is what was looked at
            head = file.read(_PEEK)
    except OSError:
        return None
    if entry.name.endswith(".csv"):
        return "jobs" if head.startswith(b"policy,cluster,load,seed,job_id,") else None
    return "simulation" if head.lstrip().startswith(b"{") and b'"trace"' in head and b'"arrivals"' in head else None


def _plain_file(entry: os.DirEntry[str], name: str, most: int) -> int:
    found = entry.stat(follow_symlinks=False)
    _check(entry.name, found, name, most)
    return found.st_size


def _check(short: str, found: os.stat_result, name: str, most: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise RunError(f"{name} is a link or no plain file, and is not read.")
    if found.st_size > most:
        raise RunError(
            f"{name} has {found.st_size / 1e6:,.0f} MB; the page reads up to {most / 1e6:,.0f} MB of a {short}."
        )


def _few_rows(path: Path, name: str) -> None:
    """A small file can unpack into a very large table; its own count of rows is cheap to read."""
    import polars

    try:
        rows = int(polars.scan_parquet(path, glob=False).select(polars.len()).collect().item())
    except (polars.exceptions.PolarsError, polars.exceptions.PanicException, OSError):
        return  # the reader says what is wrong with it
    if rows > MOST_ROWS:
        raise RunError(f"{name} has {rows:,} rows; the page reads up to {MOST_ROWS:,}.")


def _parts(parts: os.DirEntry[str], key: str) -> None:
    if not parts.is_dir(follow_symlinks=False):
        raise RunError(f"{key}/{PARTS_NAME} is a link or no folder, and is not read.")
    size = 0
    for rank in entries(parts.path):
        if not rank.is_dir(follow_symlinks=False):
            raise RunError(f"{key}/{PARTS_NAME}/{rank.name} is a link or no folder, and is not read.")
        for entry in entries(rank.path):
            size += _plain_file(entry, f"{key}/{PARTS_NAME}/{rank.name}/{entry.name}", MOST_PARTS_BYTES)
    if size > MOST_PARTS_BYTES:
        raise RunError(f"The parts of {key} have {size / 1e6:,.0f} MB; join them with `stallwise run join` first.")


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, StallwiseError) else f"It cannot be read ({type(error).__name__})."
