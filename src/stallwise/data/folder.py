"""A folder becomes a cache only if it is empty or already is one; whatever is not ours stays untouched.

CACHEDIR.TAG   says so to people, backup programs (bford.info/cachedir) and us; carries the format's number
ledger         who holds what, and every lock
entries/       one file per object
packs/         many objects per file, where the cache was made so
peer           the cache's identity among the nodes that share theirs
"""

import errno
import os
import re
from pathlib import Path

from stallwise.errors import CacheError

FORMAT = 1
_SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55\n"
_TAG = _SIGNATURE + f"# A cache of Stallwise, format {FORMAT}. It may be deleted while nothing uses it.\n"
_FORMAT = re.compile(r"# A cache of Stallwise, format (\d+)\.")
_OURS = {"CACHEDIR.TAG", "ledger", "entries", "packs", "peer"}
_IGNORED = {"lost+found"}  # the root of a file system of its own


def ledger_path(folder: Path) -> Path:
    """Where the ledger lies."""
    return folder / "ledger"


def entries_path(folder: Path) -> Path:
    """Where the entries lie."""
    return folder / "entries"


def packs_path(folder: Path) -> Path:
    """Where the packs lie, if it has some."""
    return folder / "packs"


def prepare(folder: Path) -> bool:
    """Make `folder` a cache, or see that it is one; whether it can be written.

    A cache that lies on a read-only file system is still good for reading.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check(folder)
        return _furnish(folder)
    except OSError as error:
        raise unusable(folder, error) from None


def is_cache(folder: Path) -> bool:
    """Whether there is a cache of ours, of this format."""
    try:
        return (folder / "CACHEDIR.TAG").read_text(errors="replace") == _TAG and ledger_path(folder).is_file()
    except OSError:
        return False


def _check(folder: Path) -> None:
    tag = _read_tag(folder)
    if match := _FORMAT.search(tag):
        if int(match[1]) != FORMAT:
            raise CacheError(
                f"The cache folder {folder} has format {match[1]}, this Stallwise writes format {FORMAT}. "
                "Choose another folder, or delete this one."
            )
        return
    foreign = sorted({entry.name for entry in folder.iterdir()} - _OURS - _IGNORED)
    # A tag cut short, or none beside names that are ours: the process that made the folder was killed.
    if foreign or not _TAG.startswith(tag):
        raise CacheError(
            f"{folder} holds files that are not of a cache ({', '.join(foreign[:3]) or 'CACHEDIR.TAG'}). "
            "Choose an empty folder."
        )


def _read_tag(folder: Path) -> str:
    try:
        return (folder / "CACHEDIR.TAG").read_text(errors="replace")[:4096]
    except FileNotFoundError:
        return ""


def _furnish(folder: Path) -> bool:
    try:
        if _read_tag(folder) != _TAG:
            (folder / "CACHEDIR.TAG").write_text(_TAG)
        entries_path(folder).mkdir(exist_ok=True)
    except OSError as error:
        # Full, or not ours to write: what is in it can be read all the same.
        if error.errno not in {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT}:
            raise
        if not entries_path(folder).is_dir() or not ledger_path(folder).is_file():
            raise
        return False
    return os.access(folder, os.W_OK) and (not ledger_path(folder).exists() or os.access(ledger_path(folder), os.W_OK))


def unusable(folder: Path, error: OSError) -> CacheError:
    """The sentence for a folder that cannot be made a cache."""
    return CacheError(
        f"The cache folder {folder} cannot be used ({error.strerror or error}). Choose a folder you may write, with "
        "free space."
    )
