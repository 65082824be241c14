"""A scheduler that begins in the middle: jobs that have waited and run before, some of which run now.

Whoever drives a real cluster can be stopped at any moment. It then knows what its jobs have behind them and where they
are, and makes a `Scheduler` from that; decisions go on as if nothing had happened.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stallwise.cluster.job import Job
from stallwise.cluster.kernels.state import BUSY, HELD, N_RUNNING, RUNNING
from stallwise.cluster.policy import Policy
from stallwise.cluster.rules import Costs
from stallwise.cluster.scheduler import Scheduler
from stallwise.cluster.speed import Shape, Speed
from stallwise.cluster.topology import Cluster
from stallwise.cluster.tuner import AutoTuner


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A job with what it has behind it."""

    job: Job
    asked_s: float
    """When it last began to wait."""
    waited_s: float = 0.0
    """Waited before that and kept (policies whose patience survives a preemption)."""
    ran_s: float = 0.0
    """With GPUs, before `granted_s` where it runs."""
    done_s: float = 0.0
    """Work done in that time, in seconds at full speed."""
    first_s: float | None = None
    gpus: tuple[int, ...] = ()
    """Where it runs; empty: it waits."""
    granted_s: float = 0.0
    lease_s: float = math.inf
    """When its lease ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A job of `gang` GPUs got a machine or a rack after a wait."""

    gang: int
    level: str
    """`machine` or `rack`."""
    time_s: float
    wait_s: float


def resumed(
    cluster: Cluster,
    policy: Policy,
    standings: Sequence[Standing],
    *,
    speed: Speed | None = None,
    costs: Costs | None = None,
    waits: Iterable[Wait] = (),
    down: Sequence[int] = (),
) -> Scheduler:
    """A scheduler with these jobs, in this order of arrival; `down` GPUs are nobody's."""
    scheduler = Scheduler(cluster, policy, speed=speed, costs=costs)
    for standing in standings:
        scheduler.submit(standing.job, standing.asked_s, admitted=True)
        _remember(scheduler, len(scheduler.jobs) - 1, standing)
    for index, standing in enumerate(standings):
        if standing.gpus:
            _seat(scheduler, index, standing)
        scheduler.resume(standing.job.id)
    scheduler.set_down(tuple(down), down=True)
    _note(scheduler, waits)
    return scheduler


def _remember(scheduler: Scheduler, index: int, standing: Standing) -> None:
    book = scheduler.book
    book["arrival"][index] = standing.job.arrival_s
    book["waited"][index], book["ran"][index] = standing.waited_s, standing.ran_s
    # A declared length is a guess; a job that outlives it is about to end for ever.
    book["left"][index] = max(standing.job.work_s - standing.done_s, 1.0)
    book["first"][index] = -1.0 if standing.first_s is None else standing.first_s
    limits = scheduler.desk.limits
    book["queue"][index] = np.searchsorted(limits, standing.ran_s * standing.job.gpus, side="right")


def _seat(scheduler: Scheduler, index: int, standing: Standing) -> None:
    """Put a running job where it is."""
    from stallwise.cluster.kernels.space import recount

    book, space, desk = scheduler.book, scheduler.space, scheduler.desk
    start, gang = int(book["offset"][index]), len(standing.gpus)
    # Domains are counted along them: in order.
    for slot, gpu in enumerate(sorted(standing.gpus)):
        space.owner[gpu] = index
        space.held[start + slot] = gpu
        recount(space, gpu, -1, -1)
    shape = Shape(gpus=gang, spans=scheduler.cluster.spans(np.array(standing.gpus, dtype=np.int32)))
    rate = scheduler.speed.rate(standing.job, shape)
    for name, value in (
        ("state", RUNNING),
        ("began", standing.granted_s),
        ("since", standing.granted_s),
        ("granted", standing.granted_s),
        ("lease", standing.lease_s),
        ("rate", rate),
        ("base", rate),
    ):
        book[name][index] = value
    desk.tally[[BUSY, HELD]] += gang
    desk.tally[N_RUNNING] += 1
    desk.queued[0, book["size"][index]] -= 1


def _note(scheduler: Scheduler, waits: Iterable[Wait]) -> None:
    """Past waits into the tuner's windows, oldest first."""
    from stallwise.cluster.kernels.waiting import MACHINE, RACK, note_wait

    sizes = {int(row["gang"]): int(row["size"]) for row in scheduler.book[: len(scheduler.jobs)]}
    lease = float(scheduler.rules["lease"])
    for wait in waits:
        if wait.gang in sizes:
            tier = MACHINE if wait.level == "machine" else RACK
            note_wait(scheduler.rules, scheduler.desk, sizes[wait.gang], tier, wait.time_s, wait.wait_s / lease)


def patience_s(scheduler: Scheduler, job_id: str, level: int, waits: Iterable[Wait] = ()) -> float:
    """How long at most, from when it began to wait, a job declines GPUs no tighter than `level`; for people to read.

    Where a gang may land ragged or packed the longer of the two counts.
    """
    index, wait, rules = scheduler.number[job_id], scheduler.policy.patience, scheduler.rules
    gang, lease = int(scheduler.book["gang"][index]), float(rules["lease"])
    machine, largest = int(rules["machine"]), scheduler.space.largest
    if level <= machine or not scheduler.policy.placement.localities:
        return 0.0
    if wait.kind == "sensitivity":
        levels = len(scheduler.cluster.levels) + 1
        tier = scheduler.desk.tier[scheduler.book["kind"][index]]
        best = tier[next(at for at in range(levels) if largest[at] >= gang)]
        loss = max(best / tier[level], best / tier[levels + level]) - 1.0
        return float(min(wait.cap_s, wait.factor * lease * max(0.0, loss)))
    if wait.kind == "none" or gang > largest[level - 1]:
        return 0.0
    return lease * _timer_leases(scheduler.policy, gang, lease, waits, machine=level == machine + 1)


def _timer_leases(policy: Policy, gang: int, lease_s: float, waits: Iterable[Wait], *, machine: bool) -> float:
    wait = policy.patience
    if wait.kind == "timers":
        return wait.machine_leases if machine else wait.rack_leases
    tuner = AutoTuner(wait.tuning)
    for past in waits:
        if past.gang == gang:
            tuner.add(past.level, past.time_s / lease_s, past.wait_s / lease_s)
    return tuner.timers_leases()[0 if machine else 1]
