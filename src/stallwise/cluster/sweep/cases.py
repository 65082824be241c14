"""The simulations of a sweep: every policy on every cluster, at every load, with every seed.

`simulate_cases` is what every engine runs. Each simulation is reduced at once to what is compared and drawn
(`SimulationResult`), so that a sweep over large traces fits in memory; only the first seed is drawn.
"""

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stallwise.cluster.job import Arrivals, Job, with_arrivals
from stallwise.cluster.policies._user import is_file, read_source

if TYPE_CHECKING:
    from stallwise.cluster._outcome import Metrics, Outcome
    from stallwise.cluster.simulator import RestartCosts
    from stallwise.cluster.speed import Speed
    from stallwise.cluster.topology import Cluster
    from stallwise.cluster.traces.rhythm import Rhythm

Floats = npt.NDArray[np.float64]

_CURVE_POINTS = 240
_EMPTY: Floats = np.empty(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulation of a sweep."""

    policy: str
    cluster: int = 0
    """Index into `Sweep.clusters`."""
    load: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedCluster:
    """A cluster, its name in reports, and the speed of jobs by placement (None: placement costs nothing)."""

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
class SimulationResult:
    """What is kept of one simulation. Curves are empty for all seeds but the first, which is the one drawn."""

    case: Case
    metrics: "Metrics"
    levels: Floats
    """Fractions of the jobs, 0 to 1, at which `jct_s` and `queue_s` are quantiles."""
    jct_s: Floats
    queue_s: Floats
    timeline: Timeline
    took_s: float
    outcome: "Outcome | None" = None
    """The whole outcome, where the sweep keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sweep:
    """What is simulated: every policy on every cluster, at every load, with every seed."""

    jobs: tuple[Job, ...]
    clusters: tuple[NamedCluster, ...]
    policies: tuple[str, ...]
    loads: tuple[float, ...] = (1.0,)
    seeds: tuple[int, ...] = (0,)
    arrivals: "Arrivals | Rhythm" = "given"
    jobs_per_s: float | None = None
    costs: "RestartCosts | None" = None
    contention: bool = False
    keep: bool = False
    """Keep the whole outcome of every simulation."""
    cores: int = field(default_factory=lambda: available_cores())
    sources: Mapping[str, str] = field(default_factory=dict)
    """Texts of the policies that are files, by name: worker processes need not read them."""

    def __post_init__(self) -> None:
        missing = [name for name in self.policies if is_file(name) and name not in self.sources]
        if missing:
            object.__setattr__(self, "sources", {**self.sources, **{name: read_source(name) for name in missing}})

    def cases(self) -> list[Case]:
        """All simulations, in the order of the report."""
        return [
            Case(policy=policy, cluster=cluster, load=load, seed=seed)
            for cluster in range(len(self.clusters))
            for load in self.loads
            for seed in self.seeds
            for policy in self.policies
        ]


class FinishedCase(NamedTuple):
    """A simulation that is done."""

    number: int
    """Index in `Sweep.cases`."""
    result: SimulationResult
    seconds: float
    """Drawing arrivals, simulating and summarising together: what portions of work are cut by."""


NumberedCase = tuple[int, Case]
CaseProgress = Callable[[int, int], None]
"""`progress(number, jobs)`: that many jobs of simulation `number` are done."""
Engine = Callable[["Sweep", Sequence[NumberedCase], CaseProgress], Iterator[FinishedCase]]
"""Runs cases in any order and yields each as soon as it is done. Closing the iterator ends the work."""


def draw_jobs(sweep: Sweep, load: float, seed: int) -> list[Job]:
    """Return the jobs of one simulation: arrivals as given, drawn, or at a rhythm; a load of 2 doubles their rate."""
    jobs = list(sweep.jobs)
    if isinstance(sweep.arrivals, str):
        jobs = with_arrivals(jobs, sweep.arrivals, jobs_per_s=sweep.jobs_per_s, seed=seed)
    else:
        from stallwise.cluster.traces.rhythm import with_rhythm

        span_s = max(job.arrival_s for job in jobs) - min(job.arrival_s for job in jobs)
        jobs = with_rhythm(jobs, sweep.arrivals, span_s=span_s, seed=seed)
    return jobs if load == 1.0 else [replace(job, arrival_s=job.arrival_s / load) for job in jobs]


def simulate_cases(sweep: Sweep, portion: Sequence[NumberedCase], progress: CaseProgress) -> Iterator[FinishedCase]:
    """Simulate cases one after the other in this thread. Policies side by side share the arrivals drawn for them."""
    drawn_for: tuple[float, int] | None = None
    jobs: list[Job] = []
    for number, case in portion:
        began_s = time.perf_counter()
        if drawn_for != (case.load, case.seed):
            drawn_for, jobs = (case.load, case.seed), draw_jobs(sweep, case.load, case.seed)
        result = _simulate(sweep, case, jobs, functools.partial(progress, number))
        yield FinishedCase(number, result, time.perf_counter() - began_s)


def _simulate(sweep: Sweep, case: Case, jobs: list[Job], progress: Callable[[int], None]) -> SimulationResult:
    from stallwise.cluster.policies.catalog import policy_named
    from stallwise.cluster.simulator import RestartCosts, simulate

    target = sweep.clusters[case.cluster]
    began_s = time.perf_counter()
    outcome = simulate(
        jobs,
        target.cluster,
        policy_named(case.policy, sweep.sources),
        speed=target.speed,
        costs=sweep.costs or RestartCosts(),
        contention=sweep.contention,
        seed=case.seed,
        progress=lambda done, _: progress(done),
    )
    took_s = time.perf_counter() - began_s
    return summarise(case, outcome, took_s, keep=sweep.keep, drawn=case.seed == sweep.seeds[0])


def summarise(
    case: Case, outcome: "Outcome", took_s: float, *, keep: bool = False, drawn: bool = True
) -> SimulationResult:
    """Reduce an outcome to its figures and, where it is drawn, its distributions and timeline."""
    levels = np.linspace(0.0, 1.0, _CURVE_POINTS + 1) if drawn else _EMPTY
    return SimulationResult(
        case=case,
        metrics=outcome.metrics,
        levels=levels,
        jct_s=np.quantile(outcome.jct_s, levels) if drawn else _EMPTY,
        queue_s=np.quantile(outcome.queue_s, levels) if drawn else _EMPTY,
        timeline=timeline(outcome) if drawn else Timeline(time_s=_EMPTY, busy_gpus=_EMPTY, waiting_jobs=_EMPTY),
        took_s=took_s,
        outcome=outcome if keep else None,
    )


def timeline(outcome: "Outcome") -> Timeline:
    """Average over even steps, from the areas under the step functions: nothing between two samples is lost."""
    series = outcome.series
    if len(series.time_s) < 2:
        busy, waiting = (values.astype(np.float64) for values in (series.busy_gpus, series.waiting_jobs))
        return Timeline(time_s=series.time_s, busy_gpus=busy, waiting_jobs=waiting)
    edges = np.linspace(series.time_s[0], series.time_s[-1], _CURVE_POINTS + 1)

    def means(values: npt.NDArray[Any]) -> Floats:
        area = np.concatenate([[0.0], np.cumsum(np.diff(series.time_s) * values[:-1])])
        return np.asarray(np.diff(np.interp(edges, series.time_s, area)) / np.maximum(np.diff(edges), 1e-12))

    return Timeline(time_s=edges[:-1], busy_gpus=means(series.busy_gpus), waiting_jobs=means(series.waiting_jobs))


def available_cores() -> int:
    """Count the CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
