"""Records of running jobs, read by a process of its own: a file system that does not answer holds up nobody's start.

The controller asks and goes on; what has been read by then it collects at a later look. A reader that takes too long is
killed, and what it had read until then counts. One that cannot even be killed (a hard mount whose server is gone) is
left alone, and no other is started while it lives. It is a process and not a thread because a thread in such a call
would keep the controller itself, and with it the partition's lock, from ending.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from stallwise.slurm.observe import steps_per_s

_LONGEST_S = 20.0
_RECORDS = 500
"""Read in one go; the others come next time."""


class Wanted(msgspec.Struct, frozen=True):
    """One job's record: only what was written since counts."""

    job: str
    record: str
    since_s: float


class Found(msgspec.Struct, frozen=True):
    """What it says."""

    job: str
    since_s: float
    read_s: float
    """When it was read."""
    steps_per_s: float


@dataclass(slots=True)
class Reader:
    """At most one reading process at a time."""

    longest_s: float = _LONGEST_S
    command: Sequence[str] = (sys.executable, "-m", "stallwise.slurm.reading")
    clock: Callable[[], float] = time.monotonic
    _process: subprocess.Popen[bytes] | None = None
    _answers: IO[bytes] | None = None
    _began_s: float = 0.0
    _next: int = field(default=0)

    @property
    def busy(self) -> bool:
        """Whether one is at work, or cannot be got rid of."""
        return self._process is not None

    def ask(self, wanted: Sequence[Wanted]) -> None:
        """Begin to read, unless one is at it still."""
        if self.busy or not wanted:
            return
        first = self._next % len(wanted)
        chosen = [*wanted[first:], *wanted[:first]][:_RECORDS]
        self._next = first + len(chosen)
        try:
            self._begin(msgspec.json.encode(chosen))
        except OSError:  # a full disk, no more processes: nothing is learned this time, and scheduling goes on
            self._process = None

    def _begin(self, questions: bytes) -> None:
        with tempfile.TemporaryFile() as file:
            file.write(questions)
            file.seek(0)
            self._answers = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it is collected
            try:
                self._process = subprocess.Popen(
                    self.command, stdin=file, stdout=self._answers, stderr=subprocess.DEVNULL, cwd="/"
                )
            except OSError:
                self._answers.close()
                raise
        self._began_s = self.clock()

    def collect(self) -> list[Found]:
        """What a reader that has ended had found; nothing while it is at work. Never waits."""
        if self._process is None:
            return []
        late = self.clock() - self._began_s > self.longest_s
        if self._process.poll() is None and late:
            self._process.kill()
        if self._process.poll() is None:
            return []
        self._process = None
        return self._read()

    def _read(self) -> list[Found]:
        assert self._answers is not None  # noqa: S101 - set with the process
        with self._answers as file:
            file.seek(0)
            lines = file.read().split(b"\n")[:-1]  # a killed one may have left half a line
        found = []
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError, UnicodeError):  # whatever else came out of it
                found.append(msgspec.json.decode(line, type=Found))
        return found

    def close(self) -> None:
        """No reader outlives the controller if that can be helped; this does not wait for it either."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()


def main() -> None:
    """The process: questions from stdin, an answer per line as soon as it is known."""
    for wanted in msgspec.json.decode(sys.stdin.buffer.read(), type=list[Wanted]):
        read_s = time.time()
        steps = steps_per_s(Path(wanted.record), wanted.since_s)
        if steps is not None:
            found = Found(wanted.job, wanted.since_s, read_s, steps)
            os.write(sys.stdout.fileno(), msgspec.json.encode(found) + b"\n")


if __name__ == "__main__":
    main()
