"""The atomic write of the package: a file has its old content or its new one, never a part."""

import contextlib
import os
from pathlib import Path

from stallwise.errors import RunError


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that readers, and power cuts, see the old file or the new one, never a part."""
    try:
        replace_file(path, data)
    except OSError as error:
        raise unwritable(path, error) from None


def replace_file(path: Path, data: bytes, *, durable: bool = True, mode: int | None = None) -> None:
    """As `write_atomically`, but raise the OSError itself.

    The bytes go to a new temporary file in the same folder (a rename is atomic only within a file system), which takes
    the name in one step. `durable`: the file and its folder are flushed to the disk, so that it survives a power cut.
    `mode`: permissions, whatever the umask; by default the umask decides.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    # O_EXCL: in a folder of another user nobody can have the bytes written through a link.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            flush_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def flush_folder(folder: Path) -> None:
    """Make renames and new names in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path, *, mode: int = 0o777) -> None:
    """Create `folder` and its parents, or say why not; `mode` is that of the folder itself, if it is new."""
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None


def unwritable(path: Path, error: OSError) -> RunError:
    """The sentence for a path that cannot be written."""
    return RunError(f"{path} cannot be written ({error.strerror or error}). Free some space or choose another folder.")
