"""Sweeps made here, and whether two of them answered alike to the last bit."""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from stallwise.cluster.job import Job
from stallwise.cluster.sweep.cases import NamedCluster, SimulationResult, Sweep
from stallwise.cluster.topology import Cluster

POLICIES = ("fifo", "srtf", "las", "gandiva", "gavel")


def made_sweep(*, seeds: int = 2, jobs: int = 40, policies: tuple[str, ...] = POLICIES, keep: bool = False) -> Sweep:
    """Jobs of up to eight GPUs on two clusters, at two loads."""
    random = np.random.default_rng(3)
    made = tuple(
        Job(
            id=f"j{i}",
            arrival_s=60.0 * i,
            gpus=int(random.choice([1, 1, 2, 4, 8])),
            work_s=float(random.integers(1800)),
        )
        for i in range(jobs)
    )
    places = tuple(
        NamedCluster(name=f"machines={machines},gpus=4", cluster=Cluster.counts(machines=machines, gpus=4))
        for machines in (2, 3)
    )
    return Sweep(
        jobs=made, clusters=places, policies=policies, loads=(0.5, 1.0), seeds=tuple(range(seeds)), arrivals="poisson",
        keep=keep,
    )  # fmt: skip


def contents(runs: Sequence[SimulationResult]) -> list[object]:
    """Everything of the runs but how long they took, arrays as bytes."""
    return [
        (
            run.case,
            run.metrics,
            *(getattr(run, name).tobytes() for name in ("levels", "jct_s", "queue_s")),
            *(getattr(run.timeline, field.name).tobytes() for field in fields(run.timeline)),
            *(() if run.outcome is None else (run.outcome.jobs, run.outcome.finish_s.tobytes(), run.outcome.events)),
        )
        for run in runs
    ]
