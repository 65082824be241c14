"""Many simulations side by side: policies by clusters, loads and seeds, on whatever engine runs them.

Each simulation is reduced at once to what is compared and drawn (`Run`), so that a sweep over large traces fits in
memory; only the first seed is drawn. `engines/` has what runs them: the cores of this machine, or a Ray cluster.
"""

import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

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
_MANY = 100  # simulations, from which on they are counted rather than their jobs
_NOTHING: Floats = np.empty(0)


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
    """What is kept of one simulation. Curves are empty for all seeds but the first, which is the one drawn."""

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
    cores: int = field(default_factory=lambda: cores_here())

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


class Made(NamedTuple):
    """A simulation that is done."""

    number: int
    """Its place in the order of the report."""
    run: Run
    seconds: float
    """All of it: drawing arrivals, simulating, summing up. What portions of work are cut by."""


Numbered = tuple[int, Case]
Heard = Callable[[int, int], None]
"""`heard(number, jobs)`: so many jobs of that simulation are done."""
Engine = Callable[["Sweep", Sequence[Numbered], Heard], Iterator[Made]]
"""Runs cases in any order and gives each as soon as it is done. Closing the iterator ends the work."""


class Journal(Protocol):
    """Where simulations are kept as they come (`results.Results`)."""

    def known(self, sweep: Sweep) -> dict[int, Run]:
        """Those kept earlier, by their place in the order of the report."""
        ...

    def add(self, sweep: Sweep, run: Run) -> None:
        """Keep one more."""
        ...


def run_sweep(
    sweep: Sweep, tell: Tell | None = None, *, engine: Engine | None = None, journal: Journal | None = None
) -> list[Run]:
    """All cases, in the order of `cases`, whatever runs them; `tell` hears how far they are.

    Without an engine they run on the cores of this machine. What a journal has already is not simulated again.
    """
    if engine is None:
        from stallwise.cluster.engines.local import Local

        engine = Local(sweep.cores)
    cases = sweep.cases()
    runs = {} if journal is None else journal.known(sweep)
    left = [(number, case) for number, case in enumerate(cases) if number not in runs]
    progress = _Progress(tell, len(cases), len(sweep.jobs), len(runs))
    with contextlib.closing(cast("Generator[Made]", engine(sweep, left, progress.heard))) as stream:
        for made in stream:
            runs[made.number] = made.run
            if journal is not None:
                journal.add(sweep, made.run)
            progress.done(made.number)
    return [runs[number] for number in range(len(cases))]


class _Progress:
    """How far all simulations are together: in jobs, or in simulations where there are many."""

    def __init__(self, tell: Tell | None, cases: int, jobs: int, known: int) -> None:
        self._tell, self._cases, self._jobs = tell, cases, jobs
        self._whole, self._under_way = known, dict[int, int]()
        self._lock = threading.Lock()

    def heard(self, number: int, jobs: int) -> None:
        """From inside a simulation, in any thread."""
        with self._lock:
            self._under_way[number] = jobs
            self._say()

    def done(self, number: int) -> None:
        """It is over."""
        with self._lock:
            self._under_way.pop(number, None)
            self._whole += 1
            self._say()

    def _say(self) -> None:
        if self._tell is None:
            return
        if self._cases >= _MANY:
            self._tell("simulations", self._whole, self._cases)
        else:
            jobs = self._whole * self._jobs + sum(self._under_way.values())
            self._tell("jobs simulated", jobs, self._cases * self._jobs)


def simulated(sweep: Sweep, portion: Sequence[Numbered], heard: Heard) -> Iterator[Made]:
    """One case after the other, here and now. Policies side by side share the arrivals they are drawn."""
    last: tuple[float, int] | None = None
    jobs: list[Job] = []
    for number, case in portion:
        began_s = time.perf_counter()
        if last != (case.load, case.seed):
            last, jobs = (case.load, case.seed), arrived(sweep, case.load, case.seed)
        run = _run(sweep, case, jobs, functools.partial(heard, number))
        yield Made(number, run, time.perf_counter() - began_s)


def _run(sweep: Sweep, case: Case, jobs: list[Job], heard: Callable[[int], None]) -> Run:
    from stallwise.cluster.policies import policy_named
    from stallwise.cluster.simulator import Costs, simulate

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
        progress=lambda done, _: heard(done),
    )
    took_s = time.perf_counter() - began_s
    return summarise(case, outcome, took_s, keep=sweep.keep, drawn=case.seed == sweep.seeds[0])


def summarise(case: Case, outcome: "Outcome", took_s: float, *, keep: bool = False, drawn: bool = True) -> Run:
    """Figures of an outcome, and where it is drawn its distributions and timeline."""
    levels = np.linspace(0.0, 1.0, _POINTS + 1) if drawn else _NOTHING
    return Run(
        case=case,
        metrics=outcome.metrics,
        levels=levels,
        jct_s=np.quantile(outcome.jct_s, levels) if drawn else _NOTHING,
        queue_s=np.quantile(outcome.queue_s, levels) if drawn else _NOTHING,
        timeline=timeline(outcome) if drawn else Timeline(time_s=_NOTHING, busy_gpus=_NOTHING, waiting_jobs=_NOTHING),
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


def cores_here() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
