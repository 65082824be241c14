"""Many simulations side by side: policies by clusters, loads and seeds, on all cores.

The compiled loop runs without Python's lock, so threads are enough. Each simulation is reduced at once to what is
compared and drawn (`Run`), so that a sweep over large traces fits in memory.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stallwise.cluster.job import Arrivals, Job, with_arrivals

if TYPE_CHECKING:
    from stallwise.cluster.outcome import Metrics, Outcome
    from stallwise.cluster.simulator import Costs
    from stallwise.cluster.speed import Speed
    from stallwise.cluster.topology import Cluster
    from stallwise.cluster.traces.helios import Rhythm

Floats = npt.NDArray[np.float64]
Tell = Callable[[str, int, int], None]

_POINTS = 240  # of a curve that is drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulation of a sweep."""

    policy: str
    cluster: int = 0
    """Its number in `Sweep.places`."""
    load: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Place:
    """A cluster by its name, and how fast jobs run where on it (None: placement costs nothing)."""

    name: str
    cluster: "Cluster"
    speed: "Speed | None" = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """The cluster over time at even steps; each value is the mean over its step."""

    time_s: Floats
    busy_gpus: Floats
    waiting_jobs: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """What is kept of one simulation."""

    case: Case
    metrics: "Metrics"
    levels: Floats
    """Parts of the jobs, 0 to 1, at which the next two are taken."""
    jct_s: Floats
    queue_s: Floats
    timeline: Timeline
    took_s: float
    outcome: "Outcome | None" = None
    """All of it, where the sweep keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sweep:
    """What is simulated: every policy on every cluster, at every load, with every seed."""

    jobs: tuple[Job, ...]
    places: tuple[Place, ...]
    policies: tuple[str, ...]
    loads: tuple[float, ...] = (1.0,)
    seeds: tuple[int, ...] = (0,)
    arrivals: "Arrivals | Rhythm" = "given"
    jobs_per_s: float | None = None
    costs: "Costs | None" = None
    contention: bool = False
    keep: bool = False
    """Keep every outcome whole."""
    cores: int = field(default_factory=lambda: _cores())

    def cases(self) -> list[Case]:
        """In the order of the report."""
        return [
            Case(policy=policy, cluster=cluster, load=load, seed=seed)
            for cluster in range(len(self.places))
            for load in self.loads
            for seed in self.seeds
            for policy in self.policies
        ]


def arrived(sweep: Sweep, load: float, seed: int) -> list[Job]:
    """The jobs of one simulation: arrivals as given, drawn, or at a rhythm; a load of 2 brings them twice as fast."""
    jobs = list(sweep.jobs)
    if isinstance(sweep.arrivals, str):
        rate = sweep.jobs_per_s
        jobs = with_arrivals(jobs, sweep.arrivals, jobs_per_s=rate, seed=seed)
    else:
        from stallwise.cluster.traces.helios import with_rhythm

        span_s = max(job.arrival_s for job in jobs) - min(job.arrival_s for job in jobs)
        jobs = with_rhythm(jobs, sweep.arrivals, span_s=span_s, seed=seed)
    return jobs if load == 1.0 else [replace(job, arrival_s=job.arrival_s / load) for job in jobs]


class _Counter:
    """Jobs that are done in all simulations together. Every few thousand events a simulation passes by here."""

    def __init__(self, tell: Tell | None, jobs: int) -> None:
        self._tell, self._jobs = tell, jobs
        self._done: dict[Case, int] = {}
        self._lock = threading.Lock()
        self.stopped = False

    def of(self, case: Case) -> Callable[[int, int], None]:
        """What one simulation calls; it ends there once the sweep is stopped, for a compiled loop hears no Ctrl-C."""

        def progress(done: int, _: int) -> None:
            if self.stopped:
                raise _StoppedError
            with self._lock:
                self._done[case] = done
                if self._tell is not None:
                    self._tell("jobs simulated", sum(self._done.values()), self._jobs)

        return progress


class _StoppedError(Exception):
    """Another simulation failed, or the user wants no more."""


def run_sweep(sweep: Sweep, tell: Tell | None = None) -> list[Run]:
    """All cases, in the order of `cases`, as many at a time as there are cores; `tell` hears how many jobs are done."""
    cases = sweep.cases()
    counter = _Counter(tell, len(cases) * len(sweep.jobs))
    with ThreadPoolExecutor(min(sweep.cores, len(cases))) as pool:
        made = [pool.submit(_run, sweep, case, counter) for case in cases]
        try:
            return [one.result() for one in made]
        except BaseException:
            counter.stopped = True
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run(sweep: Sweep, case: Case, counter: _Counter) -> Run:
    from stallwise.cluster.policies import policy_named
    from stallwise.cluster.simulator import Costs, simulate

    jobs = arrived(sweep, case.load, case.seed)
    place = sweep.places[case.cluster]
    began_s = time.perf_counter()
    outcome = simulate(
        jobs,
        place.cluster,
        policy_named(case.policy),
        speed=place.speed,
        costs=sweep.costs or Costs(),
        contention=sweep.contention,
        seed=case.seed,
        progress=counter.of(case),
    )
    return summarise(case, outcome, time.perf_counter() - began_s, keep=sweep.keep)


def summarise(case: Case, outcome: "Outcome", took_s: float, *, keep: bool = False) -> Run:
    """Figures, distributions and timeline of an outcome."""
    levels = np.linspace(0.0, 1.0, _POINTS + 1)
    return Run(
        case=case,
        metrics=outcome.metrics,
        levels=levels,
        jct_s=np.quantile(outcome.jct_s, levels),
        queue_s=np.quantile(outcome.queue_s, levels),
        timeline=timeline(outcome),
        took_s=took_s,
        outcome=outcome if keep else None,
    )


def timeline(outcome: "Outcome") -> Timeline:
    """Means over even steps, from the areas under the step functions: nothing between two samples is lost."""
    series = outcome.series
    if len(series.time_s) < 2:
        busy, waiting = (values.astype(np.float64) for values in (series.busy_gpus, series.waiting_jobs))
        return Timeline(time_s=series.time_s, busy_gpus=busy, waiting_jobs=waiting)
    edges = np.linspace(series.time_s[0], series.time_s[-1], _POINTS + 1)

    def means(values: npt.NDArray[Any]) -> Floats:
        area = np.concatenate([[0.0], np.cumsum(np.diff(series.time_s) * values[:-1])])
        return np.asarray(np.diff(np.interp(edges, series.time_s, area)) / np.maximum(np.diff(edges), 1e-12))

    return Timeline(time_s=edges[:-1], busy_gpus=means(series.busy_gpus), waiting_jobs=means(series.waiting_jobs))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
