"""From a step to an epoch and a whole job on a fleet: what surrounds the steps.

    epoch = steps · step + evaluation + checkpoints
    job   = start-up + first epoch (data not yet in memory) + (epochs - 1) · epoch

The first epoch reads every sample from storage; later ones find in memory what the cache kept (`cache`). Checkpoints
stop the job unless they are written beside it. Seconds in, seconds and dollars out.
"""

import math
from dataclasses import dataclass

from stallwise.errors import InputError
from stallwise.model.cost import cost_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step with its bounds; `cold_s` when every sample comes from storage."""

    s: float
    low_s: float
    high_s: float
    cold_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.low_s <= self.s <= self.high_s:
            raise InputError(f"A step of {self.s:g} s must lie within its bounds {self.low_s:g} to {self.high_s:g} s.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a job does around its steps."""

    samples: float
    """In an epoch."""
    batch: float
    """Of all GPUs together."""
    epochs: float = 1.0
    startup_s: float = 0.0
    """From the order to the first step: machines, containers, data set, compilation."""
    evaluation_s: float = 0.0
    """After every epoch."""
    checkpoint_s: float = 0.0
    """That one checkpoint stops the job for."""
    checkpoint_every_s: float | None = None
    """None: after every epoch, where it takes time at all."""

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
        """Of an epoch; a last, smaller batch is a step too."""
        return math.ceil(self.samples / self.batch - 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A job from order to end."""

    epoch_s: float
    """A later one."""
    first_epoch_s: float
    job_s: float
    low_s: float
    high_s: float
    samples_per_s: float
    """In a later epoch, with everything around the steps."""

    def usd(self, usd_per_h: float, machines: int) -> tuple[float, float, float]:
        """Dollars, with the bounds of the time."""
        return (
            cost_usd(self.job_s, usd_per_h, machines),
            cost_usd(self.low_s, usd_per_h, machines),
            cost_usd(self.high_s, usd_per_h, machines),
        )


def whole(step: Step, plan: Plan) -> Whole:
    """The job; its bounds are those of the step carried through, what surrounds the steps is taken as given."""
    epoch_s = _epoch_s(step.s, plan)
    cold = step.cold_s if step.cold_s is not None else step.s
    return Whole(
        epoch_s=epoch_s,
        first_epoch_s=_epoch_s(max(step.s, cold), plan),
        job_s=_job_s(step.s, cold, plan),
        low_s=_job_s(step.low_s, cold * step.low_s / step.s, plan),
        high_s=_job_s(step.high_s, cold * step.high_s / step.s, plan),
        samples_per_s=plan.samples / epoch_s,
    )


def _job_s(step_s: float, cold_s: float, plan: Plan) -> float:
    first = min(1.0, plan.epochs)
    later = plan.epochs - first
    return plan.startup_s + first * _epoch_s(max(step_s, cold_s), plan) + later * _epoch_s(step_s, plan)


def _epoch_s(step_s: float, plan: Plan) -> float:
    """Steps, checkpoints among them, then evaluation."""
    running_s = plan.steps * step_s
    if plan.checkpoint_every_s is None:
        return running_s + plan.checkpoint_s + plan.evaluation_s
    return running_s * (1 + plan.checkpoint_s / plan.checkpoint_every_s) + plan.evaluation_s
