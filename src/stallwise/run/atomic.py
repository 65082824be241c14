"""Files that are either wholly there or not there at all."""

import contextlib
import os
from pathlib import Path

from stallwise.errors import RunError


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that readers, and power cuts, see the old file or the new one, never a part.

    The bytes go to a temporary file in the same folder (a rename is atomic only within a file system), are
    flushed to the disk, and take the name in one step; then the folder itself is flushed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        flush_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise unwritable(path, error) from None


def flush_folder(folder: Path) -> None:
    """Make renames and new names in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Create `folder` and its parents, or say why not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None


def unwritable(path: Path, error: OSError) -> RunError:
    """The sentence for a path that cannot be written."""
    return RunError(f"{path} cannot be written ({error.strerror or error}). Free some space or choose another folder.")
