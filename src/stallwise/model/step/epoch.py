"""From a step to an epoch and a whole job on a fleet: what surrounds the steps.

    epoch = steps · step + evaluation + checkpoints
    job   = start-up + first epoch (data not yet in memory) + (epochs - 1) · epoch

The first epoch reads every sample from storage; later ones find in memory what the cache kept (`cache`). Checkpoints
stop the job unless they are written beside it. Costs are in USD.
"""

import math
from dataclasses import dataclass

import numpy as np

from stallwise.errors import InputError
from stallwise.model.step.prediction import Columns
from stallwise.units import SECONDS_PER_HOUR


def cost_usd(duration_s: float, usd_per_h: float, machines: int = 1) -> float:
    """Cost of `machines` machines at `usd_per_h` each for `duration_s`: n · t · price / 3600."""
    return machines * duration_s * usd_per_h / SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedStep:
    """Seconds of a step with bounds; `cold_s` when every sample comes from storage."""

    s: float
    low_s: float
    high_s: float
    cold_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.low_s <= self.s <= self.high_s:
            raise InputError(f"A step of {self.s:g} s must lie within its bounds {self.low_s:g} to {self.high_s:g} s.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """What a job does around its steps."""

    samples: float
    """Number in an epoch."""
    batch: float
    """Samples per step of all GPUs together."""
    epochs: float = 1.0
    startup_s: float = 0.0
    """From the order to the first step: machines, containers, data set, compilation."""
    evaluation_s: float = 0.0
    """Evaluation after every epoch."""
    checkpoint_s: float = 0.0
    """Time for which one checkpoint stops the job."""
    checkpoint_every_s: float | None = None
    """None: after every epoch, where it takes time at all."""
    cold_first: bool = True
    """Whether the first epoch reads every sample from storage; not where `samples` are those of the whole job."""

    def __post_init__(self) -> None:
        if not (self.samples > 0 and self.batch > 0 and self.epochs > 0):
            raise InputError(
                f"An epoch needs samples, a batch and epochs above 0, not {self.samples:g}, {self.batch:g} and "
                f"{self.epochs:g}."
            )
        for name in ("startup_s", "evaluation_s", "checkpoint_s"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} is a time of at least 0 s, not {getattr(self, name)}.")
        if self.checkpoint_every_s is not None and not self.checkpoint_every_s > 0:
            raise InputError(f"checkpoint_every_s is a time above 0 s, not {self.checkpoint_every_s}.")

    @property
    def steps(self) -> int:
        """Steps of an epoch; a last, smaller batch is a step too."""
        return math.ceil(self.samples / self.batch - 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDuration:
    """Times of a job from order to end, in seconds."""

    epoch_s: float
    """An epoch after the first."""
    first_epoch_s: float
    job_s: float
    low_s: float
    high_s: float
    samples_per_s: float
    """Throughput of an epoch after the first, with everything around the steps."""

    def usd(self, usd_per_h: float, machines: int) -> tuple[float, float, float]:
        """Cost in USD, with the bounds of the time."""
        return (
            cost_usd(self.job_s, usd_per_h, machines),
            cost_usd(self.low_s, usd_per_h, machines),
            cost_usd(self.high_s, usd_per_h, machines),
        )


def job_duration(step: BoundedStep, plan: TrainingPlan) -> JobDuration:
    """Compute the duration of the job; its bounds follow from those of the step alone."""
    cold = step.cold_s if step.cold_s is not None else step.s
    steps_s = np.array([step.s, step.low_s, step.high_s])
    batch = np.full(3, plan.batch)
    middle, low, high = job_s(steps_s, cold * steps_s / step.s, batch, plan).tolist()
    first_s = max(step.s, cold) if plan.cold_first else step.s
    later, first = _epoch_s(np.array([step.s, first_s]), batch[:2], plan).tolist()
    return JobDuration(
        epoch_s=later,
        first_epoch_s=first,
        job_s=middle,
        low_s=low,
        high_s=high,
        samples_per_s=plan.samples / later,
    )


def job_s(step_s: Columns, cold_s: Columns, batch: Columns, plan: TrainingPlan) -> Columns:
    """Seconds of the job by column, for steps of `batch` samples; the batch of the plan itself does not count."""
    first = min(1.0, plan.epochs) if plan.cold_first else 0.0
    later = plan.epochs - first
    cold = _epoch_s(np.maximum(step_s, cold_s), batch, plan)
    return plan.startup_s + first * cold + later * _epoch_s(step_s, batch, plan)


def _epoch_s(step_s: Columns, batch: Columns, plan: TrainingPlan) -> Columns:
    """Seconds of an epoch: steps (the last may be smaller) with checkpoints, then evaluation."""
    running_s = np.ceil(plan.samples / batch - 1e-9) * step_s
    if plan.checkpoint_every_s is None:
        return running_s + plan.checkpoint_s + plan.evaluation_s
    return running_s * (1 + plan.checkpoint_s / plan.checkpoint_every_s) + plan.evaluation_s
