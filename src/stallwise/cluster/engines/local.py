"""The cores of this machine: threads to begin with, processes of their own once that is worth their start.

The compiled loop runs without Python's lock, so a few large simulations are quick in threads, and nothing has to be
started. Many small ones spend most of their time in Python, one thread at a time; they go to processes.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType

from stallwise.cluster.engines.portions import Portions
from stallwise.cluster.sweep import Heard, Made, Numbered, Sweep, simulated

_WORTH_S = 2.0
"""Work on all cores that pays for starting processes, each of which needs most of a second before it begins."""
_TARGET_S = 0.5
"""Of one portion: also how much work is done again when a process is lost."""


@dataclass(frozen=True, slots=True)
class Local:
    """So many simulations at a time."""

    cores: int

    def __call__(self, sweep: Sweep, cases: Sequence[Numbered], heard: Heard) -> Iterator[Made]:
        """Each as it is done."""
        left = Portions(cases, workers=self.cores, target_s=_TARGET_S)
        with _Threads(sweep, left, heard) as threads:
            yield from threads.until_worth_processes()
            if left:
                from stallwise.cluster.engines.processes import in_processes

                yield from in_processes(sweep, left, heard)
            yield from threads.to_the_end()


class _Threads:
    """Simulations in this process."""

    def __init__(self, sweep: Sweep, left: Portions, heard: Heard) -> None:
        self._sweep, self._left, self._heard = sweep, left, heard
        self._pool = ThreadPoolExecutor(left.workers)
        self._running: set[Future[list[Made]]] = set()
        self._stopped = threading.Event()
        self._began_s = time.perf_counter()

    def __enter__(self) -> "_Threads":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._pool.shutdown()

    def until_worth_processes(self) -> Iterator[Made]:
        """All of it, where processes are never worth their start."""
        while self._left and not self._worth_processes():
            while self._left and len(self._running) < self._left.workers:
                self._running.add(self._pool.submit(self._one, self._left.one()))
            yield from self._done()

    def to_the_end(self) -> Iterator[Made]:
        """What is still under way."""
        while self._running:
            yield from self._done()

    def _one(self, portion: list[Numbered]) -> list[Made]:
        return list(simulated(self._sweep, portion, self._hear))

    def _hear(self, number: int, jobs: int) -> None:
        # A compiled loop hears no Ctrl-C; every few thousand events it passes by here.
        if self._stopped.is_set():
            raise _StoppedError
        self._heard(number, jobs)

    def _done(self) -> Iterator[Made]:
        done, self._running = wait(self._running, return_when=FIRST_COMPLETED)
        for future in done:
            for made in future.result():
                self._left.heard(made)
                yield made

    def _worth_processes(self) -> bool:
        """Whether what is left takes long, or what ran did: it may be a policy that thinks in Python."""
        long = self._left.remaining_s > _WORTH_S or time.perf_counter() - self._began_s > _WORTH_S
        return long and self._left.workers > 1 and len(self._left) > 1


class _StoppedError(Exception):
    """Another simulation failed, or the user wants no more."""
