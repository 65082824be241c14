"""Worker processes on this machine, each with a thread here that feeds it and starts another when it is lost.

A worker reads from a pipe what to simulate and writes each answer as it is done; it ends when the pipe does, so none
outlives this process. What a lost worker had not answered is simulated again by its successor.
"""

import contextlib
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import IO, cast

from stallwise.cluster.engines.portions import Portions
from stallwise.cluster.engines.worker import Answer, Failed, restored
from stallwise.cluster.sweep import Heard, Made, Numbered, Sweep
from stallwise.errors import StallwiseError

# -P: nothing in the current folder may stand in for a module.
_COMMAND = (sys.executable, "-P", "-c", "from stallwise.cluster.engines.worker import main; main()")
_TRIES = 3
"""Times that one simulation may end its process before the sweep gives up."""


def in_processes(sweep: Sweep, left: Portions, heard: Heard) -> Iterator[Made]:
    """Everything left, each simulation as it is done."""
    crew = _Crew(sweep, left, heard)
    attending = [threading.Thread(target=crew.attend, daemon=True) for _ in range(min(left.workers, len(left)))]
    for thread in attending:
        thread.start()
    try:
        under_way = len(attending)
        while under_way:
            said = crew.said.get()
            if isinstance(said, BaseException):
                raise said
            if said is None:
                under_way -= 1
            else:
                yield said
    finally:
        crew.dismiss()
        for thread in attending:
            thread.join()


class _LostError(Exception):
    """A worker ended before it had answered."""


@dataclass(slots=True)
class _Seat:
    """Where one worker after the other sits."""

    process: subprocess.Popen[bytes] | None = None


class _Crew:
    """The workers of one sweep."""

    def __init__(self, sweep: Sweep, left: Portions, heard: Heard) -> None:
        self.said: SimpleQueue[Made | BaseException | None] = SimpleQueue()
        self._sweep, self._left, self._heard = sweep, left, heard
        self._packed = pickle.dumps(sweep, protocol=pickle.HIGHEST_PROTOCOL)
        self._running: list[subprocess.Popen[bytes]] = []
        self._dismissed = False
        self._lock = threading.Lock()

    def attend(self) -> None:
        """One worker after the other until nothing is left; the thread of a worker."""
        seat = _Seat()
        try:
            while portion := self._left.take():
                self._through(portion, seat)
            self.said.put(None)
        except BaseException as error:  # for the thread that waits
            self.said.put(error)
        finally:
            if seat.process is not None:
                self._end(seat.process)

    def _through(self, portion: list[Numbered], seat: "_Seat") -> None:
        """A portion to its end, by the worker that sits there or a successor."""
        lost, at = 0, portion[0]
        while portion:
            if portion[0] != at:
                lost, at = 0, portion[0]
            seat.process = process = seat.process or self._started()
            try:
                self._answered(process, portion)
            except (_LostError, OSError):
                code = self._end(process)
                seat.process, lost = None, lost + 1
                if lost >= _TRIES:
                    raise StallwiseError(_gave_up(at, code)) from None

    def _answered(self, process: subprocess.Popen[bytes], portion: list[Numbered]) -> None:
        """Hand over a portion and take away what is answered."""
        pickle.dump(portion, _pipe(process.stdin))
        _pipe(process.stdin).flush()
        while portion:
            answer = _read(_pipe(process.stdout))
            if isinstance(answer, Failed):
                raise answer.error()
            if isinstance(answer, Made):
                made = restored(self._sweep, answer)
                self._left.heard(made)
                portion.pop(0)
                self.said.put(made)
            else:
                self._heard(*answer)

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._dismissed:
                raise _LostError
            # A group of its own: Ctrl-C is for us, who then end it.
            process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
            self._running.append(process)
        with contextlib.suppress(OSError):  # it is gone already, which the first portion finds out
            _pipe(process.stdin).write(self._packed)
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        with self._lock:
            if process in self._running:
                self._running.remove(process)
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # it is gone, and what we still had for it with it
                _pipe(pipe).close()
        process.kill()
        return process.wait()

    def dismiss(self) -> None:
        """End all of them, now."""
        with self._lock:
            self._dismissed = True
            for process in self._running:
                process.kill()


def _read(pipe: IO[bytes]) -> Answer:
    try:
        return cast("Answer", pickle.load(pipe))  # noqa: S301  # our own process wrote it
    except (EOFError, pickle.UnpicklingError):
        raise _LostError from None


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    return cast("IO[bytes]", pipe)  # opened so


def _gave_up(numbered: Numbered, code: int) -> str:
    case = numbered[1]
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return (
        f"The process that simulates {case.policy} at load {case.load:g} with seed {case.seed} ended {_TRIES} times "
        f"before it was done ({how}). Where memory is short, give a smaller --cores."
    )
