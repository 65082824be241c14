"""What-if: a measured job with other GPUs, links, buckets, overlap, batch, compute or data path.

A change edits the run's own set-up; `setups` has the step on it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stallwise.model.exchange.fabric import Fabric
from stallwise.model.exchange.overlap import Overlap
from stallwise.model.step.job import MeasuredJob
from stallwise.model.step.prediction import Columns
from stallwise.model.step.setups import (
    OWN_EXCHANGE,
    Numbers,
    Setups,
    StepEstimate,
    blocked_times,
    check_loader,
    step_estimates,
)
from stallwise.sentences import Sentence

POWERS_OF_TWO = tuple(2**n for n in range(11))
"""1 to 1,024 GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupChange:
    """A change of a set-up; the defaults change nothing."""

    compute_speed: float = 1.0
    """Factor on the speed of compute."""
    batch: float = 1.0
    """Factor on the batch of every GPU."""
    overlap: Overlap | None = None
    copy: Literal["inline", "engine"] = "inline"
    """Whether copying a batch waits with compute, or runs beside it."""
    workers: int | None = None
    cached: float | None = None
    """Fraction of the data set in memory."""
    storage_speed: float = 1.0
    cores_per_node: int | None = None
    prepare_speed: float = 1.0
    """Factor on the speed at which one core prepares samples."""


def speedup(after: StepEstimate, before: StepEstimate) -> float:
    """Ratio of samples per second."""
    return after.work / after.step_s * before.step_s / before.work


def what_if(job: MeasuredJob, change: SetupChange, fabric: Fabric | None, gpus: int | None) -> StepEstimate:
    """Predict the job on `gpus` of the fleet under `change`; None keeps the trace's own exchange."""
    return step_estimates(job, changed_setups(job, change, fabric, (gpus,)))[0]


def scaling(
    job: MeasuredJob, change: SetupChange, fabric: Fabric, counts: Sequence[int] = POWERS_OF_TWO
) -> tuple[StepEstimate, ...]:
    """Predict the job at each number of GPUs, every GPU keeping its batch."""
    return step_estimates(job, changed_setups(job, change, fabric, counts))


def changed_setups(
    job: MeasuredJob, change: SetupChange, fabric: Fabric | None, counts: Sequence[int | None]
) -> Setups:
    """Return the run's own set-up under a change, with one column for each number of GPUs."""
    overlap = change.overlap or job.overlap
    batch = change.batch * overlap.accumulate / job.overlap.accumulate
    gpus = np.array([OWN_EXCHANGE if count is None else count for count in counts], dtype=np.int64)
    size = len(gpus)
    low, high = job.compute_factors or (1.0, 1.0)
    work = job.work
    measured_workers = work.workers if work else 1
    blocked_s, cold_s = blocked_times(job, cached=change.cached, storage_speed=change.storage_speed)
    if change.workers is not None:
        check_loader(job)

    def column(value: float) -> Columns:
        return np.full(size, value, dtype=np.float64)

    def whole(value: int) -> Numbers:
        return np.full(size, value, dtype=np.int64)

    return Setups(
        gpus=gpus,
        on_node=np.minimum(np.maximum(1, gpus), fabric.gpus_per_node if fabric else 1),
        fabrics=(fabric,),
        fabric=whole(0),
        compute_s=column((job.passes_s * batch + job.trace.update_s) / change.compute_speed),
        compute_low=column(low),
        compute_high=column(high),
        batch=column(batch),
        passes=whole(overlap.accumulate),
        workers=whole(measured_workers if change.workers is None else change.workers),
        cores=column(change.cores_per_node or job.cores_per_node or math.nan),
        prepare=column(1 / change.prepare_speed),
        blocked_s=column(blocked_s),
        cold_blocked_s=column(cold_s),
        storage_s=column(0.0),
        cold_storage_s=column(0.0),
        copy_times=column(1.0),
        overlap=overlap,
        copy=change.copy,
    )


_NOTES = {
    "p3-ideal": Sentence(
        "scheme.ideal", "p3-ideal is a limit that no scheduler reaches; compare with it, do not plan by it."
    ),
    "horovod": Sentence(
        "scheme.negotiation",
        "Agreeing on which tensors are ready is taken to cost nothing; the cycle begins with backward.",
    ),
    "p3": Sentence(
        "scheme.no-cost",
        "The scheduler itself is taken to cost nothing, and each slice pays its start-up time in full.",
    ),
    "bytescheduler": Sentence(
        "scheme.no-cost",
        "The scheduler itself is taken to cost nothing, and each slice pays its start-up time in full.",
    ),
    "local-sgd": Sentence(
        "scheme.convergence", "What updates from parameters that drift apart do to convergence is not modelled."
    ),
}


def scheme_notes(overlap: Overlap) -> list[Sentence]:
    """Return the assumptions of a way of exchanging gradients, in sentences."""
    notes = [_NOTES[overlap.scheme]] if overlap.scheme in _NOTES else []
    if overlap.compression < 1.0:
        notes.append(
            Sentence("compression.conversion", "Converting gradients to 16 bits and back is taken to cost nothing.")
        )
    if overlap.sparse is not None:
        notes.append(
            Sentence(
                "compression.selection",
                "Selecting the largest values takes as long as published for a V100; convergence is not modelled.",
            )
        )
    if overlap.through == "servers":
        notes.append(
            Sentence("scheme.parameter-server", "A parameter server is taken to run on every worker's machine.")
        )
    return notes
