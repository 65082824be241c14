"""One controller per partition: a second one on this host, or with this state, is refused.

The kernel lets go of both locks the moment their process ends, however it ends. The socket's name holds wherever
the state is kept; the file's lock also holds between hosts that share the state's file system.
"""

import contextlib
import fcntl
import socket
from collections.abc import Iterator
from pathlib import Path

from stallwise.errors import InputError

_NAME = "schedule.lock"


@contextlib.contextmanager
def only_one(folder: Path, about: str) -> Iterator[None]:
    """Hold the partition, or say that somebody else does."""
    refused = InputError(
        f"Another controller already schedules {about}. Stop it first (systemctl stop stallwise-schedule)."
    )
    with socket.socket(socket.AF_UNIX) as name, _lock_file(folder).open("a") as file:
        try:
            name.bind("\0stallwise-schedule:" + about)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise refused from None
        yield


def _lock_file(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _NAME).touch()
    except OSError as error:
        raise InputError(
            f"The state folder {folder} cannot be written: {error.strerror}. Give another with --state."
        ) from None
    return folder / _NAME
