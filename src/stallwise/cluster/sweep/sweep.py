"""Running a sweep: cases to an engine, results to a journal, progress to the caller."""

import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Protocol, cast

from stallwise.cluster.sweep.cases import Engine, FinishedCase, SimulationResult, Sweep
from stallwise.cluster.sweep.local import LocalEngine

SweepProgress = Callable[[str, int, int], None]
"""`progress(unit, done, total)`."""
_COUNT_CASES_FROM = 100
"""From this number of simulations on, progress counts simulations instead of their jobs."""


class SweepJournal(Protocol):
    """Where results are kept as they come (`results.ResultsFile`)."""

    def load(self, sweep: Sweep) -> dict[int, SimulationResult]:
        """Return earlier results of this sweep by their index in `Sweep.cases`."""
        ...

    def add(self, sweep: Sweep, result: SimulationResult) -> None:
        """Append the result of one simulation."""
        ...


def run_sweep(
    sweep: Sweep,
    progress: SweepProgress | None = None,
    *,
    engine: Engine | None = None,
    journal: SweepJournal | None = None,
) -> list[SimulationResult]:
    """Simulate all cases and return their results in the order of `Sweep.cases`, whatever engine runs them.

    Without an engine they run on the cores of this machine. Cases that the journal holds are not simulated again.
    """
    if engine is None:
        engine = LocalEngine(sweep.cores)
    cases = sweep.cases()
    results = {} if journal is None else journal.load(sweep)
    remaining = [(number, case) for number, case in enumerate(cases) if number not in results]
    counter = _ProgressCounter(progress, len(cases), len(sweep.jobs), len(results))
    with contextlib.closing(cast("Generator[FinishedCase]", engine(sweep, remaining, counter.update))) as stream:
        for finished in stream:
            results[finished.number] = finished.result
            if journal is not None:
                journal.add(sweep, finished.result)
            counter.finish(finished.number)
    return [results[number] for number in range(len(cases))]


class _ProgressCounter:
    """Progress of all simulations together: in jobs, or in simulations where there are many."""

    def __init__(self, progress: SweepProgress | None, cases: int, jobs: int, finished: int) -> None:
        self._progress, self._cases, self._jobs = progress, cases, jobs
        self._finished, self._jobs_done = finished, dict[int, int]()
        self._lock = threading.Lock()

    def update(self, number: int, jobs: int) -> None:
        """Note the jobs done in a running simulation; called from any thread."""
        with self._lock:
            self._jobs_done[number] = jobs
            self._report()

    def finish(self, number: int) -> None:
        with self._lock:
            self._jobs_done.pop(number, None)
            self._finished += 1
            self._report()

    def _report(self) -> None:
        if self._progress is None:
            return
        if self._cases >= _COUNT_CASES_FROM:
            self._progress("simulations", self._finished, self._cases)
        else:
            jobs = self._finished * self._jobs + sum(self._jobs_done.values())
            self._progress("jobs simulated", jobs, self._cases * self._jobs)
