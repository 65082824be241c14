"""The options of a user: a bid in full (time, cost, split of its step, probability of keeping the limits), or staying.

Staying is sometimes the better answer. Where the loader limits the job and cores are idle, more loader workers cost
nothing; their effect is the ratio of two what-ifs on the run's own machine, applied to the measured step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from stallwise.analysis.fleets import FleetSettings, one_fleet, steps_of
from stallwise.analysis.job import JobModel
from stallwise.analysis.target import Node, Target, node_of, own_fabric
from stallwise.cloud.bids import Bids, job_columns, plan_of, probability
from stallwise.cloud.losses import SpotReplay
from stallwise.cloud.request import RecommendRequest
from stallwise.hardware.instance import Offer
from stallwise.model.exchange.fabric import Fabric, link_of_rate
from stallwise.model.statistics.stalls import Share
from stallwise.model.step.epoch import BoundedStep, cost_usd, job_duration
from stallwise.model.step.iteration import StepTimetable, step_timetable
from stallwise.model.step.job import MeasuredJob, OwnLinks, own_links
from stallwise.model.step.setups import Setups, StepEstimate, setup_prediction, step_estimates, step_times
from stallwise.units import SECONDS_PER_HOUR

_WORTHWHILE = 0.95
"""More loader workers are reported where a step takes less than this fraction of the time with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOption:
    """A fleet at a price. Times in seconds from the order, costs in USD, bounds hold 80 %."""

    offer: Offer
    usd_per_h: float
    """Price of one machine after discounts."""
    nodes: int
    used: int
    """GPUs used on each machine."""
    samples_per_gpu: float
    batch: float
    """Samples per step of all GPUs together."""
    passes: int
    """Forward and backward passes per step."""
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
    """Part of `usd` for moving the data there, once; None: not known, counted as 0."""
    keeping_usd: float | None
    in_time: float | None
    """Probability of keeping the deadline; None without one."""
    in_budget: float | None
    in_limits: float
    answer: StepEstimate
    storage_bound: bool
    """Whether storage limits the step, reading what memory does not keep."""
    node: Node
    setups: Setups = field(compare=False, repr=False)
    """The set-up, as a column."""
    provision_s: float = 0.0
    spot: SpotReplay | None = None

    @property
    def billed_s(self) -> float:
        """Part of `job_s` that is billed."""
        return self.job_s - self.provision_s

    @property
    def gpus(self) -> int:
        """GPUs in use on all machines."""
        return self.nodes * self.used

    @property
    def samples_per_s(self) -> float:
        """Throughput of steps after the first epoch."""
        return self.batch / self.step_s

    @property
    def rent_usd(self) -> float:
        """Part of `usd` for the machines."""
        return self.usd - (self.moving_usd or 0.0) - (self.keeping_usd or 0.0)

    @property
    def name(self) -> str:
        """Short description, such as "2 × p4d.24xlarge, spot"."""
        count = f"{self.nodes} × " if self.nodes > 1 else ""
        part = (
            f" ({self.used} of {self.offer.instance.gpu_count} GPUs)"
            if self.used < self.offer.instance.gpu_count
            else ""
        )
        return f"{count}{self.offer.instance.name}{part}{', spot' if self.offer.market == 'spot' else ''}"


def option_of(
    model: JobModel, bids: Bids, column: int, request: RecommendRequest, replays: Mapping[int, SpotReplay]
) -> FleetOption:
    """Return the bid of one column in full."""
    fleet = int(bids.fleet[column])
    one = bids.offers[int(bids.offer[column])]
    steps, fleets = bids.steps, bids.fleets
    node = fleets.kinds[int(fleets.kind[fleet])]
    used, nodes = int(fleets.used[fleet]), int(fleets.nodes[fleet])
    step_s, low_s, high_s = (float(column_of[fleet]) for column_of in (steps.step_s, steps.low_s, steps.high_s))
    setups = steps.setups.take(np.array([fleet]))
    factor = float(setups.batch[0])
    (answer,) = step_estimates(model.job, setups)
    per_gpu = model.samples * factor
    batch = per_gpu * used * nodes
    duration = job_duration(
        BoundedStep(s=step_s, low_s=low_s, high_s=high_s, cold_s=float(steps.cold_s[fleet])), plan_of(request, batch)
    )
    replayed = replays.get(column)
    in_time, in_budget = _chances(bids, column, request, replayed)
    hours = float(bids.job_s[column] - bids.provision_s) / SECONDS_PER_HOUR
    return FleetOption(
        offer=one.offer,
        usd_per_h=one.usd_per_h,
        nodes=nodes,
        used=used,
        samples_per_gpu=per_gpu,
        batch=batch,
        passes=int(setups.passes[0]),
        workers=int(setups.workers[0]),
        step_s=step_s,
        step_low_s=low_s,
        step_high_s=high_s,
        epoch_s=duration.epoch_s,
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
        storage_bound=float(setups.storage_s[0]) >= step_s,
        node=node,
        setups=setups,
        provision_s=bids.provision_s,
        spot=replayed,
    )


def _chances(
    bids: Bids, column: int, request: RecommendRequest, replayed: SpotReplay | None
) -> tuple[float | None, float | None]:
    """Probabilities of keeping the deadline and of keeping the budget, each alone."""
    if replayed is not None:
        return (
            None if request.deadline_s is None else replayed.in_time,
            None if request.budget_usd is None else replayed.in_budget,
        )
    fixed_s = bids.fixed_s
    in_time = (
        None
        if request.deadline_s is None
        else probability(
            request.deadline_s - fixed_s, *(float(c[column]) - fixed_s for c in (bids.job_s, bids.low_s, bids.high_s))
        )
    )
    in_budget = None if request.budget_usd is None else probability(
        request.budget_usd, *(float(c[column]) for c in (bids.usd, bids.low_usd, bids.high_usd))
    )  # fmt: skip
    return in_time, in_budget


def faster_workers(model: JobModel, option: FleetOption) -> tuple[int, float] | None:
    """Loader workers per GPU that the vCPUs allow, and the step with them, where the loader limits the step."""
    setups, cores = option.setups, float(option.setups.cores[0])
    if model.job.work is None or np.isnan(cores):
        return None
    most = int(cores // int(setups.on_node[0]))
    if most <= int(setups.workers[0]):
        return None
    faster_s = float(step_times(model.job, replace(setups, workers=np.array([most]))).step_s[0])
    return (most, faster_s) if faster_s < _WORTHWHILE * option.step_s else None


def schedule_of(model: JobModel, option: FleetOption) -> StepTimetable:
    """When each part of the step behind `option.answer` runs."""
    return step_timetable(setup_prediction(model.job, option.setups).graph)


_WORTH = 1.03
"""Smallest speed-up by more loader workers that is reported."""
_NEARLY = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMachine:
    """The job on the machines where it runs now."""

    gpu: str | None
    gpus: int
    nodes: int
    workers: int | None
    step: Share
    job_s: float
    low_s: float
    high_s: float
    usd: float | None
    """None: the price of the machine is not known."""
    in_time: float | None
    more_workers: int | None = None
    """Loader workers of each GPU, where they differ from the run's."""
    speedup: float = 1.0

    def meets(self, request: RecommendRequest) -> bool:
        """Whether it keeps the limits; an unknown cost keeps any budget."""
        if request.deadline_s is not None and (self.in_time or 0.0) < request.confidence:
            return False
        return request.budget_usd is None or self.usd is None or self.usd <= request.budget_usd


def own_machines(
    model: JobModel, request: RecommendRequest, own: OwnLinks | None = None
) -> tuple[OwnMachine, OwnMachine | None]:
    """Return the run's own machine as it is, and with more loader workers where they help."""
    job = model.job
    step = job.step or Share(model.measured_compute_s, model.measured_compute_s, model.measured_compute_s)
    as_is = _own_machine(model, request, step, None, 1.0)
    improvement = better_workers(model, own)
    if improvement is None:
        return as_is, None
    workers, speedup = improvement
    quicker = Share(step.s / speedup, step.low_s / speedup, step.high_s / speedup)
    return as_is, _own_machine(model, request, quicker, workers, speedup)


def better_workers(model: JobModel, own: OwnLinks | None = None) -> tuple[int, float] | None:
    """The fewest loader workers within 2 % of the best step, and the speed-up; None where it is below 3 %."""
    job = model.job
    if job.work is None or not job.cores_per_node:
        return None
    used = min(job.gpus or 1, job.gpus_per_node)
    fabric = _own_fabric(job, own)
    kind = replace(node_of(model, Target(), OwnLinks(), job.gpus_per_node), fabric=fabric)
    fleet = one_fleet(kind, used=used, nodes=max(1, (job.gpus or 1) // used))

    def step_s(workers: int | None) -> float:
        return float(steps_of(model, fleet, FleetSettings(workers=workers, judge_memory=False)).step_s[0])

    before, most = step_s(None), max(1, job.cores_per_node // used)
    steps = {count: step_s(count) for count in range(job.work.workers + 1, most + 1)[:64]}
    if not steps:
        return None
    best = min(steps.values())
    if before / best < _WORTH:
        return None
    chosen = min(count for count, seconds in steps.items() if seconds <= _NEARLY * best)
    return chosen, before / steps[chosen]


def _own_fabric(job: MeasuredJob, own: OwnLinks | None) -> Fabric:
    """The run's own links; where its exchange was not measured, one that takes no time: only loading is compared."""
    links = own_links(job) if own is None else own
    if links != OwnLinks():
        return own_fabric(job, links)
    free = link_of_rate(1e18, 0.0, "given")
    return Fabric(gpus_per_node=job.gpus_per_node, inside=free, between=free)


def _own_machine(
    model: JobModel, request: RecommendRequest, step: Share, workers: int | None, speedup: float
) -> OwnMachine:
    job = model.job
    steps = np.array([step.s, max(1e-12, step.low_s), step.high_s])
    batch = np.full(3, model.global_batch)
    mid, low, high = job_columns(steps, steps, batch, request).tolist()
    nodes = max(1, (job.gpus or 1) // job.gpus_per_node)
    return OwnMachine(
        gpu=None if model.source is None else model.source.name,
        gpus=job.gpus or 1,
        nodes=nodes,
        workers=None if job.work is None else job.work.workers,
        step=step,
        job_s=mid,
        low_s=low,
        high_s=high,
        usd=None if request.own_usd_per_h is None else cost_usd(mid, request.own_usd_per_h, nodes),
        in_time=None if request.deadline_s is None else probability(request.deadline_s, mid, low, high),
        more_workers=workers,
        speedup=speedup,
    )
