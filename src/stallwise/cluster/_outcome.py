"""Outcome of a simulation: arrays per job, a time series, and the figures that are compared."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stallwise.cluster.job import Job

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Figures of one simulation, times in seconds."""

    jobs: int
    jct_mean_s: float
    jct_median_s: float
    jct_p95_s: float
    queue_mean_s: float
    queue_p95_s: float
    makespan_s: float
    comm_mean_s: float
    """Time per job spent running without progress because of its placement."""
    comm_share: float
    """The same as a fraction of all time with GPUs."""
    utilisation: float
    """GPU-seconds of progress at full speed over all the cluster had from first arrival to last end."""
    occupation: float
    """GPU-seconds held by jobs over the same."""
    fragmentation: float
    """Time-averaged fraction of the cluster that stood free while a waiting job asked for no more than that."""
    fairness_mean: float
    """Finish-time fairness (Themis): JCT over what an equal share of the cluster would take; less is better."""
    fairness_p95: float
    fairness_worst: float
    preemptions: int
    migrations: int
    deflations: int = 0
    deadlines: int = 0
    """Jobs that should be done by some time."""
    deadlines_met: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClusterSeries:
    """The cluster after every event; values hold until the next time."""

    time_s: Floats
    busy_gpus: Counts
    running_jobs: Counts
    waiting_jobs: Counts
    waiting_gpus: Counts
    fragmented_gpus: Counts
    """Free GPUs that at least one waiting job was small enough for."""

    @classmethod
    def of(cls, rows: Floats) -> "ClusterSeries":
        """Make a series from rows with a column for each field, in this order."""
        return cls(
            time_s=rows[:, 0],
            busy_gpus=rows[:, 1].astype(np.int64),
            running_jobs=rows[:, 2].astype(np.int64),
            waiting_jobs=rows[:, 3].astype(np.int64),
            waiting_gpus=rows[:, 4].astype(np.int64),
            fragmented_gpus=rows[:, 5].astype(np.int64),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What happened to every job under one policy. Arrays are in the order of `jobs`."""

    jobs: tuple[Job, ...]
    policy: str
    cluster_gpus: int
    first_start_s: Floats
    finish_s: Floats
    run_s: Floats
    """Time holding GPUs."""
    comm_s: Floats
    """Of `run_s`, lost to a placement slower than full speed; 0 where jobs grow and shrink."""
    overhead_s: Floats
    """Of `run_s`, spent starting and restarting."""
    preemptions: Counts
    migrations: Counts
    widest: Counts
    """Widest border crossed in its life: 0 inside the tightest domain, number of levels across the widest."""
    series: ClusterSeries
    events: int
    held_gpu_s: Floats | None = None
    """GPU-seconds held, where jobs grow and shrink; None: the gang for as long as it ran."""
    deflations: Counts | None = None
    """Times a job gave up GPUs instead of being stopped; None where jobs do not shrink."""

    @cached_property
    def arrival_s(self) -> Floats:
        return np.array([job.arrival_s for job in self.jobs])

    @cached_property
    def work_s(self) -> Floats:
        """Work of each job at full speed."""
        return np.array([job.work_s for job in self.jobs])

    @cached_property
    def deadline_s(self) -> Floats:
        """Seconds after its arrival by which each job should be done; NaN for those without."""
        return np.array([math.nan if job.deadline_s is None else job.deadline_s for job in self.jobs])

    @cached_property
    def gpus(self) -> Counts:
        """Gang size of each job."""
        return np.array([job.gpus for job in self.jobs], dtype=np.int64)

    @property
    def jct_s(self) -> Floats:
        """Job completion time: from arrival to end."""
        return self.finish_s - self.arrival_s

    @property
    def queue_s(self) -> Floats:
        """Waiting time, at first and after every preemption."""
        return self.jct_s - self.run_s

    @property
    def makespan_s(self) -> float:
        """First arrival to last end."""
        return float(self.finish_s.max() - self.arrival_s.min())

    def fairness(self) -> Floats:
        """JCT over the time an equal share of the cluster would give: work · max(1, mean demand / GPUs).

        Themis' ρ, with the contention averaged over the job's life.
        """
        return self.jct_s / (self.work_s * np.maximum(1.0, self._contention()))

    def _contention(self) -> Floats:
        """GPUs requested by the jobs present over those of the cluster, averaged over each job's life."""
        arrival, finish = self.arrival_s, self.finish_s
        times = np.concatenate([arrival, finish])
        steps = np.concatenate([self.gpus, -self.gpus])
        order = np.argsort(times, kind="stable")
        at, demand = times[order], np.cumsum(steps[order]) / self.cluster_gpus
        area = np.concatenate([[0.0], np.cumsum(np.diff(at) * demand[:-1])])
        gpu_s = np.interp(finish, at, area) - np.interp(arrival, at, area)
        return np.asarray(gpu_s / np.maximum(finish - arrival, 1e-12))

    @property
    def metrics(self) -> Metrics:
        jct, queue, rho = self.jct_s, self.queue_s, self.fairness()
        gpus = self.gpus
        held_gpu_s = self.run_s * gpus if self.held_gpu_s is None else self.held_gpu_s
        whole = self.cluster_gpus * self.makespan_s
        return Metrics(
            jobs=len(self.jobs),
            jct_mean_s=float(jct.mean()),
            jct_median_s=float(np.median(jct)),
            jct_p95_s=float(np.percentile(jct, 95)),
            queue_mean_s=float(queue.mean()),
            queue_p95_s=float(np.percentile(queue, 95)),
            makespan_s=self.makespan_s,
            comm_mean_s=float(self.comm_s.mean()),
            comm_share=float((self.comm_s * gpus).sum() / max(held_gpu_s.sum(), 1e-12)),
            utilisation=float((self.work_s * gpus).sum() / whole),
            occupation=float(held_gpu_s.sum() / whole),
            fragmentation=self._fragmentation(),
            fairness_mean=float(rho.mean()),
            fairness_p95=float(np.percentile(rho, 95)),
            fairness_worst=float(rho.max()),
            preemptions=int(self.preemptions.sum()),
            migrations=int(self.migrations.sum()),
            deflations=0 if self.deflations is None else int(self.deflations.sum()),
            deadlines=sum(job.deadline_s is not None for job in self.jobs),
            deadlines_met=int((jct <= self.deadline_s).sum()),
        )

    def _fragmentation(self) -> float:
        time = self.series.time_s
        if len(time) < 2:
            return 0.0
        area = float((np.diff(time) * self.series.fragmented_gpus[:-1]).sum())
        return area / (self.cluster_gpus * float(time[-1] - time[0]))
