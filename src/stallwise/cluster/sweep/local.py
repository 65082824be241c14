"""Engine on the cores of this machine: threads to begin with, worker processes once they are worth their start.

The compiled loop runs without Python's lock, so a few large simulations are fast in threads, and nothing has to be
started. Many small ones spend most of their time in Python, one thread at a time; they go to worker processes.

The process pool is written by hand because it keeps what loky (3.7 was tried) does not: each result is yielded as it is
done and not with its portion, a long simulation reports progress, a worker that dies costs its own portion and not
those of the whole pool, the simulation that killed it is known, and no worker outlives this process after SIGKILL.
"""

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from queue import SimpleQueue
from types import TracebackType
from typing import IO, cast

from stallwise.cluster.sweep.cases import CaseProgress, FinishedCase, NumberedCase, Sweep, draw_jobs, simulate_cases
from stallwise.errors import StallwiseError

_WORTH_S = 2.0
"""Work on all cores that pays for starting processes, each of which needs most of a second before it begins."""
_TARGET_S = 0.5
"""Length of one portion: also how much work is done again when a process is lost."""
_ROUNDING_S = 1e-9
_LATEST_WEIGHT = 0.3
"""Weight of the latest time: the first one of a worker also loads the compiled loop, and is soon outweighed."""
_PROGRESS_EVERY_S = 0.2
# -P: nothing in the current folder may stand in for a module.
_COMMAND = (sys.executable, "-P", "-c", "from stallwise.cluster.sweep.local import main; main()")
_TRIES = 3
"""Times that one simulation may end its process before the sweep gives up."""


class Portions:
    """The cases left to simulate, cut into portions of about equal time. Several threads may take from it.

    A small simulation takes a millisecond, a large one minutes; handing out each alone would cost more than many of
    them take. A portion is worth `target_s`, and towards the end less, so that all workers finish together: never more
    than an even share of half of what is left (guided self-scheduling, Polychronopoulos and Kuck, 1987). How long a
    case takes is estimated from earlier ones of its policy and cluster.
    """

    def __init__(self, cases: Iterable[NumberedCase], *, workers: int, target_s: float) -> None:
        self.workers, self._target_s = workers, target_s
        self._cases = deque(cases)
        self._seconds: dict[tuple[str, int], float] = {}
        self._mean_s: float | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._cases)

    @property
    def remaining_s(self) -> float:
        """Estimated time all workers need for what is left; 0 before the first `record`."""
        return (self._mean_s or 0.0) * len(self._cases) / self.workers

    def one(self) -> list[NumberedCase]:
        """Take the next case alone; empty when all are taken."""
        with self._lock:
            return [self._cases.popleft()] if self._cases else []

    def take(self) -> list[NumberedCase]:
        """Take the next portion; empty when all are taken."""
        if self._mean_s is None:
            return self.one()
        with self._lock:
            worth_s = min(self._target_s, self.remaining_s / 2)
            portion: list[NumberedCase] = []
            while self._cases and worth_s > _ROUNDING_S:
                portion.append(self._cases.popleft())
                worth_s -= self._expected_s(portion[-1])
            return portion or ([self._cases.popleft()] if self._cases else [])

    def record(self, finished: FinishedCase) -> None:
        """Learn from the time that a case took."""
        kind = finished.result.case.policy, finished.result.case.cluster
        with self._lock:
            self._seconds[kind] = _moving_mean(self._seconds.get(kind), finished.seconds)
            self._mean_s = _moving_mean(self._mean_s, finished.seconds)

    def _expected_s(self, numbered: NumberedCase) -> float:
        case = numbered[1]
        return max(self._seconds.get((case.policy, case.cluster), self._mean_s or 0.0), 1e-6)


def _moving_mean(before_s: float | None, now_s: float) -> float:
    return now_s if before_s is None else before_s + _LATEST_WEIGHT * (now_s - before_s)


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Runs `cores` simulations at a time on this machine."""

    cores: int

    def __call__(self, sweep: Sweep, cases: Sequence[NumberedCase], progress: CaseProgress) -> Iterator[FinishedCase]:
        """Yield each case as it is done."""
        portions = Portions(cases, workers=self.cores, target_s=_TARGET_S)
        with _ThreadPool(sweep, portions, progress) as threads:
            yield from threads.until_worth_processes()
            if portions:
                yield from run_in_processes(sweep, portions, progress)
            yield from threads.remaining()


class _ThreadPool:
    """Simulations in this process."""

    def __init__(self, sweep: Sweep, portions: Portions, progress: CaseProgress) -> None:
        # Without numba this fails here. In threads one would see the other's half-imported module and blame that.
        import stallwise.cluster.engine.compile  # noqa: F401

        self._sweep, self._portions, self._progress = sweep, portions, progress
        self._pool = ThreadPoolExecutor(portions.workers)
        self._running: set[Future[list[FinishedCase]]] = set()
        self._stopped = threading.Event()
        self._began_s = time.perf_counter()

    def __enter__(self) -> "_ThreadPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._pool.shutdown()

    def until_worth_processes(self) -> Iterator[FinishedCase]:
        """Yield results until processes are worth their start: all of them where that never is so."""
        while self._portions and not self._worth_processes():
            while self._portions and len(self._running) < self._portions.workers:
                self._running.add(self._pool.submit(self._simulate, self._portions.one()))
            yield from self._finished()

    def remaining(self) -> Iterator[FinishedCase]:
        """Yield the results of what is still running."""
        while self._running:
            yield from self._finished()

    def _simulate(self, portion: list[NumberedCase]) -> list[FinishedCase]:
        return list(simulate_cases(self._sweep, portion, self._report))

    def _report(self, number: int, jobs: int) -> None:
        # A compiled loop does not notice Ctrl-C; every few thousand events it calls this.
        if self._stopped.is_set():
            raise _StoppedError
        self._progress(number, jobs)

    def _finished(self) -> Iterator[FinishedCase]:
        done, self._running = wait(self._running, return_when=FIRST_COMPLETED)
        for future in done:
            for finished in future.result():
                self._portions.record(finished)
                yield finished

    def _worth_processes(self) -> bool:
        """Whether what is left takes long, or what ran did: its policy may decide in Python."""
        long = self._portions.remaining_s > _WORTH_S or time.perf_counter() - self._began_s > _WORTH_S
        return long and self._portions.workers > 1 and len(self._portions) > 1


class _StoppedError(Exception):
    """Another simulation failed, or the caller closed the sweep."""


def run_in_processes(sweep: Sweep, portions: Portions, progress: CaseProgress) -> Iterator[FinishedCase]:
    """Simulate everything left in worker processes; yield each case as it is done.

    Each worker has a thread here that feeds it and starts another when it is lost. What a lost worker had not answered
    is simulated again by its successor.
    """
    pool = _ProcessPool(sweep, portions, progress)
    threads = [threading.Thread(target=pool.serve, daemon=True) for _ in range(min(portions.workers, len(portions)))]
    for thread in threads:
        thread.start()
    try:
        running = len(threads)
        while running:
            item = pool.results.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        pool.kill()
        for thread in threads:
            thread.join()


class _LostError(Exception):
    """A worker ended before it had answered."""


class _ProcessPool:
    """The workers of one sweep."""

    def __init__(self, sweep: Sweep, portions: Portions, progress: CaseProgress) -> None:
        self.results: SimpleQueue[FinishedCase | BaseException | None] = SimpleQueue()
        """Finished cases; None for each thread that ends; an exception that ends the sweep."""
        self._sweep, self._portions, self._progress = sweep, portions, progress
        self._pickled = pickle.dumps(sweep, protocol=pickle.HIGHEST_PROTOCOL)
        self._running: list[subprocess.Popen[bytes]] = []
        self._killed = False
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Feed one worker after the other until nothing is left; the body of a thread."""
        process: subprocess.Popen[bytes] | None = None
        try:
            while portion := self._portions.take():
                process = self._run_portion(portion, process)
            self.results.put(None)
        except BaseException as error:  # for the thread that waits
            self.results.put(error)
        finally:
            if process is not None:
                self._end(process)

    def _run_portion(
        self, portion: list[NumberedCase], process: subprocess.Popen[bytes] | None
    ) -> subprocess.Popen[bytes]:
        """Run a portion to its end, in `process` or a successor, and return the process that is alive."""
        losses, first = 0, portion[0]
        while True:
            if portion and portion[0] != first:
                losses, first = 0, portion[0]
            process = process or self._start()
            try:
                self._exchange(process, portion)
            except (_LostError, OSError):
                code = self._end(process)
                process, losses = None, losses + 1
                if losses >= _TRIES:
                    raise StallwiseError(_gave_up(first, code), fields=("cores",)) from None
            except BaseException:
                self._end(process)
                raise
            else:
                return process

    def _exchange(self, process: subprocess.Popen[bytes], portion: list[NumberedCase]) -> None:
        """Send a portion and remove from it what is answered."""
        pickle.dump(portion, _pipe(process.stdin))
        _pipe(process.stdin).flush()
        while portion:
            message = _receive(_pipe(process.stdout))
            if isinstance(message, CaseFailure):
                raise message.error()
            if isinstance(message, FinishedCase):
                finished = with_jobs(self._sweep, message)
                self._portions.record(finished)
                portion.pop(0)
                self.results.put(finished)
            else:
                self._progress(*message)

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._killed:
                raise _LostError
            # A process group of its own: Ctrl-C reaches this process only, which then ends the workers.
            process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
            self._running.append(process)
        with contextlib.suppress(OSError):  # it is gone already; the first portion will show it
            _pipe(process.stdin).write(self._pickled)
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        with self._lock:
            if process in self._running:
                self._running.remove(process)
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # it is gone, and what was buffered for it
                _pipe(pipe).close()
        process.kill()
        return process.wait()

    def kill(self) -> None:
        """End all workers now and start no others."""
        with self._lock:
            self._killed = True
            for process in self._running:
                process.kill()


def _receive(pipe: IO[bytes]) -> "WorkerMessage":
    try:
        return cast("WorkerMessage", pickle.load(pipe))  # noqa: S301  # our own process wrote it
    except (EOFError, pickle.UnpicklingError):
        raise _LostError from None


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    return cast("IO[bytes]", pipe)  # Popen was told to open it


def _gave_up(numbered: NumberedCase, code: int) -> str:
    case = numbered[1]
    cause = f"signal {-code}" if code < 0 else f"exit code {code}"
    return (
        f"The process that simulates {case.policy} at load {case.load:g} with seed {case.seed} ended {_TRIES} times "
        f"before it was done ({cause}). Where memory is short, use fewer cores."
    )


@dataclass(frozen=True, slots=True)
class CaseFailure:
    """Why a simulation has no answer, in a form that travels between processes."""

    message: str
    expected: bool
    """True: a sentence for the user; False: a traceback."""
    fields: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: Exception) -> "CaseFailure":
        if isinstance(error, StallwiseError):
            return cls(str(error), True, error.fields)
        return cls(traceback.format_exc(), False)

    def error(self) -> Exception:
        """Return the exception to raise where the answer was awaited."""
        if self.expected:
            return StallwiseError(self.message, fields=self.fields)
        return RuntimeError(f"In a worker: {self.message}")


WorkerMessage = FinishedCase | CaseFailure | tuple[int, int]
"""From a worker: a finished case, a failure, or `(number, jobs)` while a long simulation is running."""


def main() -> None:
    """Run a worker process until its input pipe is closed: it reads the sweep, then portions of cases."""
    # What else is printed here must not get between the answers.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        _serve(sys.stdin.buffer, out)
    except (EOFError, BrokenPipeError):
        # Nobody reads any more; flushing at exit would complain about it.
        os._exit(0)


def _serve(pipe: IO[bytes], out: IO[bytes]) -> None:
    def send(message: WorkerMessage) -> None:
        pickle.dump(message, out, protocol=pickle.HIGHEST_PROTOCOL)
        out.flush()

    sweep: Sweep = pickle.load(pipe)  # noqa: S301  # our own process wrote it
    while True:
        portion: list[NumberedCase] = pickle.load(pipe)  # noqa: S301
        try:
            for finished in simulate_cases(sweep, portion, _throttled(send)):
                send(without_jobs(finished))
        except BrokenPipeError:
            raise
        except Exception as error:
            send(CaseFailure.of(error))


def _throttled(send: Callable[[WorkerMessage], None]) -> CaseProgress:
    """Send the progress of long simulations, and none of short ones."""
    last_s = time.monotonic()

    def progress(number: int, jobs: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= _PROGRESS_EVERY_S:
            last_s = time.monotonic()
            send((number, jobs))

    return progress


def without_jobs(finished: FinishedCase) -> FinishedCase:
    """Drop the jobs of the outcome, most of its size, before it is sent; `with_jobs` draws them again."""
    outcome = finished.result.outcome
    if outcome is None:
        return finished
    return finished._replace(result=replace(finished.result, outcome=replace(outcome, jobs=())))


def with_jobs(sweep: Sweep, finished: FinishedCase) -> FinishedCase:
    """Draw the jobs that `without_jobs` dropped again."""
    outcome, case = finished.result.outcome, finished.result.case
    if outcome is None:
        return finished
    jobs = tuple(draw_jobs(sweep, case.load, case.seed))
    return finished._replace(result=replace(finished.result, outcome=replace(outcome, jobs=jobs)))
