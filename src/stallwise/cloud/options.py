"""One bid written out: what it is, what it takes and costs, where its step goes, and how likely it keeps the limits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from stallwise.cloud.bids import Bids, plan_of, probability
from stallwise.cloud.fleets import Shape
from stallwise.cloud.losses import Replayed
from stallwise.cloud.subject import Subject
from stallwise.cloud.wish import Wish
from stallwise.hardware.offer import Offer
from stallwise.model.epoch import Step, whole
from stallwise.model.fabric import Fabric
from stallwise.model.schedule import Schedule, schedule
from stallwise.model.whatif import Answer, Change, Job, prediction, what_if
from stallwise.units import SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A fleet at a price. Times count from the order, bounds hold 80 %."""

    offer: Offer
    usd_per_h: float
    """Of one machine, after discounts."""
    nodes: int
    used: int
    """GPUs used of each machine."""
    samples_per_gpu: float
    batch: float
    """Of all GPUs together."""
    passes: int
    """Passes per step."""
    workers: int
    """Loader workers of each GPU."""
    step_s: float
    step_low_s: float
    step_high_s: float
    epoch_s: float
    job_s: float
    low_s: float
    high_s: float
    usd: float
    low_usd: float
    high_usd: float
    moving_usd: float | None
    """Of `usd`: bringing the data there, once; None: not known, counted as nothing."""
    keeping_usd: float | None
    in_time: float | None
    """Probability of keeping the deadline; None without one."""
    in_budget: float | None
    in_limits: float
    answer: Answer
    storage_bound: bool
    """Whether reading what memory does not keep sets the pace."""
    shape: Shape
    provision_s: float = 0.0
    spot: Replayed | None = None

    @property
    def billed_s(self) -> float:
        """Of `job_s`, what the machines are paid for."""
        return self.job_s - self.provision_s

    @property
    def gpus(self) -> int:
        """In use."""
        return self.nodes * self.used

    @property
    def samples_per_s(self) -> float:
        """In a later epoch's steps."""
        return self.batch / self.step_s

    @property
    def rent_usd(self) -> float:
        """Of `usd`, the machines."""
        return self.usd - (self.moving_usd or 0.0) - (self.keeping_usd or 0.0)

    @property
    def name(self) -> str:
        """2 × p4d.24xlarge, spot."""
        count = f"{self.nodes} × " if self.nodes > 1 else ""
        part = (
            f" ({self.used} of {self.offer.instance.gpu_count} GPUs)"
            if self.used < self.offer.instance.gpu_count
            else ""
        )
        return f"{count}{self.offer.instance.name}{part}{', spot' if self.offer.market == 'spot' else ''}"


def option_of(subject: Subject, bids: Bids, column: int, wish: Wish, replays: Mapping[int, Replayed]) -> Option:
    """The bid of one column."""
    fleet = int(bids.fleet[column])
    one = bids.offers[int(bids.offer[column])]
    speeds, fleets = bids.speeds, bids.fleets
    shape = fleets.shapes[int(fleets.shape[fleet])]
    used, nodes = int(fleets.used[fleet]), int(fleets.nodes[fleet])
    step_s, low_s, high_s = (float(column_of[fleet]) for column_of in (speeds.step_s, speeds.low_s, speeds.high_s))
    factor, passes = float(speeds.batch[fleet]), int(speeds.passes[fleet])
    workers = _enough_workers(subject, factor, step_s, int(speeds.workers[fleet]), shape.prepare)
    answer = answer_of(subject, shape, used, nodes, factor, passes, workers)
    per_gpu = subject.samples * factor
    batch = per_gpu * used * nodes
    found = whole(Step(s=step_s, low_s=low_s, high_s=high_s, cold_s=float(speeds.cold_s[fleet])), plan_of(wish, batch))
    replayed = replays.get(column)
    in_time, in_budget = _chances(bids, column, wish, replayed)
    hours = float(bids.job_s[column] - bids.provision_s) / SECONDS_PER_HOUR
    return Option(
        offer=one.offer,
        usd_per_h=one.usd_per_h,
        nodes=nodes,
        used=used,
        samples_per_gpu=per_gpu,
        batch=batch,
        passes=passes * max(1, subject.job.overlap.accumulate),
        workers=workers,
        step_s=step_s,
        step_low_s=low_s,
        step_high_s=high_s,
        epoch_s=found.epoch_s,
        job_s=float(bids.job_s[column]),
        low_s=float(bids.low_s[column]),
        high_s=float(bids.high_s[column]),
        usd=float(bids.usd[column]),
        low_usd=float(bids.low_usd[column]),
        high_usd=float(bids.high_usd[column]),
        moving_usd=one.moving_usd,
        keeping_usd=None if one.keeping_usd_per_h is None else one.keeping_usd_per_h * hours,
        in_time=in_time,
        in_budget=in_budget,
        in_limits=replayed.in_limits
        if replayed
        else min(in_time if in_time is not None else 1.0, in_budget if in_budget is not None else 1.0),
        answer=answer,
        storage_bound=step_s > 1.01 * answer.step_s,
        shape=shape,
        provision_s=bids.provision_s,
        spot=replayed,
    )


def _enough_workers(subject: Subject, batch: float, step_s: float, most: int, prepare: float) -> int:
    """As few as keep loading a fifth quicker than the step; all there is room for where it sets the pace."""
    if subject.job.work is None:
        return most
    work_s = (subject.job.work.prepare_s * prepare + subject.job.work.blocked_s) * batch
    return min(most, max(1, math.ceil(1.2 * work_s / step_s)))


def _chances(bids: Bids, column: int, wish: Wish, replayed: Replayed | None) -> tuple[float | None, float | None]:
    """Of the deadline and of the budget, each alone."""
    if replayed is not None:
        return (
            None if wish.deadline_s is None else replayed.in_time,
            None if wish.budget_usd is None else replayed.in_budget,
        )
    fixed_s = bids.fixed_s
    in_time = (
        None
        if wish.deadline_s is None
        else probability(
            wish.deadline_s - fixed_s, *(float(c[column]) - fixed_s for c in (bids.job_s, bids.low_s, bids.high_s))
        )
    )
    in_budget = None if wish.budget_usd is None else probability(
        wish.budget_usd, *(float(c[column]) for c in (bids.usd, bids.low_usd, bids.high_usd))
    )  # fmt: skip
    return in_time, in_budget


def answer_of(subject: Subject, shape: Shape, used: int, nodes: int, batch: float, passes: int, workers: int) -> Answer:
    """The same fleet through `what_if`: its split, what binds, its critical path."""
    return what_if(*_asked(subject, shape, used, nodes, batch, passes, workers))


def schedule_of(subject: Subject, option: Option) -> Schedule:
    """When each part of the step behind `option.answer` runs."""
    batch, passes = option.samples_per_gpu / subject.samples, option.passes // max(1, subject.job.overlap.accumulate)
    asked = _asked(subject, option.shape, option.used, option.nodes, batch, passes, option.workers)
    return schedule(prediction(*asked).graph)


def _asked(
    subject: Subject, shape: Shape, used: int, nodes: int, batch: float, passes: int, workers: int
) -> tuple[Job, Change, Fabric, int]:
    job, trace = subject.job, subject.job.trace
    seconds = float(shape.time.seconds(np.array([batch]), np.array([float(passes)]))[0])
    before = max(1, job.overlap.accumulate)
    in_passes = before * (trace.forward_s + trace.backward_s)
    change = Change(
        compute_speed=(in_passes * batch + trace.update_s) / seconds,
        batch=batch / passes,
        overlap=replace(job.overlap, accumulate=before * passes),
        workers=workers if job.work is not None else None,
        cores_per_node=shape.cores,
        prepare_speed=1 / shape.prepare,
    )
    bounded = replace(job, compute_factors=(shape.time.low, shape.time.high))
    return bounded, change, replace(shape.fabric, gpus_per_node=used), used * nodes
