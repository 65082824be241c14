"""Jobs of a shared cluster, their arrivals, and how much of the cluster a trace needs."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from stallwise.errors import InputError

Arrivals = Literal["given", "batch", "poisson"]
_LISTED = 5
"""Bad jobs named in one message; the rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job that needs a gang of GPUs. `work_s` is its run time at full speed once it holds all of them."""

    id: str
    arrival_s: float
    gpus: int
    work_s: float
    model: str | None = None
    """Name of a speed profile; None is never slowed by its placement."""
    batch_size: int | None = None
    iteration_s: float | None = None
    """Wall time of one iteration at full speed; leases end between chunks of iterations."""
    gpu_utilisation: float | None = None
    """Fraction of a GPU it keeps busy; two jobs may be packed where both fit."""
    deadline_s: float | None = None
    """Seconds after its arrival by which it should be done."""
    user: str | None = None
    line: int | None = None
    """Line of its trace."""

    @property
    def service_s(self) -> float:
        """GPU-seconds at full speed."""
        return self.work_s * self.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLoad:
    """Work of a trace compared with the GPUs of a cluster."""

    gpu_s: float
    """Work of all jobs at full speed."""
    span_s: float
    """From the first arrival to the last."""
    gpus: int
    largest_gang: int

    @property
    def demand(self) -> float:
        """Work over what the cluster can do while jobs arrive; above 1 the queue grows; infinite for a batch."""
        return self.gpu_s / (self.gpus * self.span_s) if self.span_s > 0 else math.inf


def load(jobs: Sequence[Job], gpus: int) -> TraceLoad:
    """Compute how much of `gpus` GPUs the jobs need."""
    arrivals = [job.arrival_s for job in jobs]
    return TraceLoad(
        gpu_s=math.fsum(job.service_s for job in jobs),
        span_s=max(arrivals, default=0.0) - min(arrivals, default=0.0),
        gpus=gpus,
        largest_gang=max((job.gpus for job in jobs), default=0),
    )


def with_arrivals(
    jobs: Iterable[Job], arrivals: Arrivals, *, jobs_per_s: float | None = None, seed: int = 0
) -> list[Job]:
    """Return the same jobs, arriving as given, all at once, or one after the other in a Poisson process.

    Poisson keeps the order of the given arrivals and draws exponential gaps of mean 1 / `jobs_per_s` (by default the
    rate of the trace itself), the first job after one gap.
    """
    ordered = sorted(jobs, key=lambda job: job.arrival_s)
    if arrivals == "given" or not ordered:
        return ordered
    if arrivals == "batch":
        return [replace(job, arrival_s=0.0) for job in ordered]
    span_s = ordered[-1].arrival_s - ordered[0].arrival_s
    rate = jobs_per_s if jobs_per_s is not None else (len(ordered) / span_s if span_s > 0 else 0.0)
    if not (0 < rate < math.inf):
        raise InputError(f"Poisson arrivals at {rate} jobs/s are not possible; give a rate above 0.")
    times = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, len(ordered)))
    return [replace(job, arrival_s=float(time)) for job, time in zip(ordered, times, strict=True)]


def check_jobs(jobs: Sequence[Job], gpus: int) -> None:
    """Raise `InputError` for jobs that cannot be simulated: impossible times or gangs, ids that occur twice."""
    problems = [text for job in jobs for text in job_faults(job, gpus)]
    if len({job.id for job in jobs}) < len(jobs):
        counts = Counter(job.id for job in jobs)
        problems += [f"{count} jobs are called {name!r}" for name, count in counts.items() if count > 1]
    if not jobs:
        problems = ["there are no jobs"]
    if problems:
        more = f", and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
        raise InputError(f"These jobs cannot be simulated: {'; '.join(problems[:_LISTED])}{more}.")


def job_faults(job: Job, gpus: int) -> list[str]:
    """List what is wrong with one job on a cluster of `gpus` GPUs, as phrases."""
    phrases = []
    if not 0 <= job.arrival_s < math.inf:
        phrases.append(f"arrives at {job.arrival_s} s")
    if not 0 < job.work_s < math.inf:
        phrases.append(f"has {job.work_s} s of work")
    if job.gpus < 1:
        phrases.append(f"asks for {job.gpus} GPUs")
    if job.gpus > gpus:
        phrases.append(f"asks for {job.gpus} GPUs, the cluster has {gpus}")
    where = "" if job.line is None else f" (line {job.line})"
    return [f"job {job.id!r}{where} {phrase}" for phrase in phrases]
