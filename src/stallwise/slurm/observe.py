"""Steps per second of a running job, from the run record it writes (docs/run-record.md).

The path is the user's word and the files are the user's: links are not followed, large files not read, and what does
not decode is not there. Only what was written since the job got its nodes counts. Folders are looked at up to a number
of entries.
"""

import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from stallwise.run.parts import PARTS_NAME, PartRows, rank_folder

_LARGEST_BYTES = 8 << 20
_FILES = 4
_LEAST_STEPS = 10
_AS_IS = "as is"
_FOLDERS = 200
_ENTRIES = 20_000
"""Names looked at in one folder."""


def steps_per_s(record: Path, since_s: float) -> float | None:
    """Of the newest run at or below `record`, first rank, steps of the *as is* phase; None where too few are there."""
    times: list[float] = []
    for folder in _runs(record, since_s):
        for path in _parts(rank_folder(folder, 0), since_s):
            times += _durations(path)
        break
    return len(times) / sum(times) if len(times) >= _LEAST_STEPS and sum(times) > 0 else None


def _runs(record: Path, since_s: float) -> Iterator[Path]:
    """The record itself, or the runs in it, the one written last first."""
    if not record.is_absolute():
        return
    try:
        with os.scandir(record) as entries:
            inside = list(islice(entries, _FOLDERS))
        found = [record, *(Path(entry.path) for entry in inside if entry.is_dir(follow_symlinks=False))]
        dated = [(folder, _changed(rank_folder(folder, 0))) for folder in found if (folder / PARTS_NAME).is_dir()]
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
    except (OSError, ValueError, TypeError, IndexError, msgspec.MsgspecError):
        return []
    return [value for value in chosen if 0 < value < float("inf")]


def _read(path: Path) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_size > _LARGEST_BYTES:
            raise OSError("not a small plain file")
        return file.read(_LARGEST_BYTES)
