"""The decision log: one JSON object per line, what was decided for which job and why."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import msgspec

from stallwise.errors import InputError


class Journal:
    """Lines to a file that is opened anew when somebody has moved it away (logrotate), or to a stream."""

    def __init__(self, path: Path | None, stream: TextIO | None = None, clock: Callable[[], float] = time.time) -> None:
        self.path, self.stream, self.clock = path, stream, clock
        self._file: TextIO | None = None
        if path is not None:
            self._open()

    def _open(self) -> TextIO:
        assert self.path is not None  # noqa: S101 - only called with one
        try:
            self._file = self.path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise InputError(f"The log {self.path} cannot be written: {error.strerror}.") from None
        return self._file

    def write(self, what: str, **more: object) -> None:
        """One line."""
        line = msgspec.json.encode({"time_s": round(self.clock(), 3), "what": what, **more}).decode() + "\n"
        try:
            for stream in (self._current(), self.stream):
                if stream is not None:
                    stream.write(line)
                    stream.flush()
        except (OSError, InputError) as error:  # a full disk must not end the scheduling
            sys.stderr.write(f"stallwise: the log cannot be written ({error}): {line}")

    def _current(self) -> TextIO | None:
        if self._file is None or self.path is None:
            return None
        try:
            moved = self.path.stat().st_ino != _inode(self._file)
        except OSError:
            moved = True
        if moved:
            self._file.close()
            return self._open()
        return self._file

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _inode(file: TextIO) -> int:
    import os

    return os.fstat(file.fileno()).st_ino


def to_stdout() -> Journal:
    """For `--dry-run` and for those who let systemd keep the log."""
    return Journal(None, sys.stdout)
