"""From policies, jobs and clusters to the arrays of `state.py`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from stallwise.cluster.engine.state import (
    JOB,
    N_COUNTS,
    N_SAMPLE,
    N_TIMES,
    PARAMS,
    RANDOM,
    ROUND_AT,
    WAKE_AT,
    WAKE_PLANNED,
    GpuTopology,
    LoopState,
    Record,
    Rows,
)
from stallwise.cluster.job import Job
from stallwise.cluster.policies.base import BYS, FITS, PREEMPTINGS, REACHES, WAITINGS, Policy
from stallwise.cluster.speed.base import FullSpeed, Shape, Speed, even_parts
from stallwise.cluster.topology import Cluster

_WINDOW = 4096
"""Past waits kept per size and level; the history drops them long before."""
_SAMPLE = 2048
"""Ended jobs the Gittins index looks at."""
_TABLE = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartCosts:
    """What a change of GPUs costs a job, in seconds."""

    checkpoint_s_per_gpu: float = 0.0
    """Seconds until the GPUs of a preempted job are free, per GPU of its gang (Dally: 1 s)."""
    restart_s: float = 0.0
    """Seconds without progress when a stopped job gets GPUs again."""
    first_start_s: float = 0.0
    """Seconds without progress when a job starts for the first time."""


@dataclass(frozen=True, slots=True)
class SpeedKinds:
    """Groups of jobs of equal speed: a number per job, and one example job for each number."""

    of: npt.NDArray[np.int64]
    examples: tuple[Job, ...]


def kinds_of(jobs: Sequence[Job], speed: Speed) -> SpeedKinds:
    """Group jobs by gang and by what their speed depends on."""
    numbers: dict[Any, int] = {}
    examples: list[Job] = []
    of: list[int] = []
    for job in jobs:
        number = numbers.setdefault((speed.kind(job), job.gpus), len(examples))
        if number == len(examples):
            examples.append(job)
        of.append(number)
    return SpeedKinds(np.array(of, dtype=np.int64), tuple(examples))


def params_of(
    policy: Policy, costs: RestartCosts, cluster: Cluster, speed: Speed, *, contention: bool, live: bool = False
) -> Record:
    """Encode a policy and the costs as numbers. `live`: on a real cluster, where the ends of jobs are reported."""
    shrinks = policy.shrinking
    order, place, wait, stop = policy.order, policy.placement, policy.patience, policy.preemption
    tuning = wait.tuning
    values = {
        "by": BYS.index(order.by),
        "strict": int(order.strict),
        "running_first": int(order.running_first),
        "promote": float(order.promote),
        "delta": float(order.delta_gpu_s),
        "age": float(order.age_s),
        "fit": FITS.index(place.fit),
        "reach": REACHES.index(place.reach),
        "localities": int(place.localities),
        "avoid": int(place.avoid_sharing and contention),
        "patience": WAITINGS.index(wait.kind),
        "machine_leases": float(wait.machine_leases),
        "rack_leases": float(wait.rack_leases),
        "history": float(tuning.history_leases),
        "deviations": float(tuning.deviations),
        "least_machine": float(tuning.least_machine),
        "least_rack": float(tuning.least_rack),
        "share": float(tuning.share),
        "skips": int(tuning.skips),
        "factor": float(wait.factor),
        "cap": float(wait.cap_s),
        "survives": int(wait.survives),
        "wakes": int(wait.wakes),
        "preempt": PREEMPTINGS.index(stop.kind),
        "lease": float(stop.lease_s),
        "renew": int(stop.renew),
        "aligned": int(stop.aligned and stop.kind == "lease"),
        "quantum": float(stop.quantum_s),
        "margin": float(stop.margin),
        "migrate": int(stop.migrate),
        "force": int(stop.force > 0 and shrinks is None),  # where jobs shrink, none is stopped for another
        "force_gain": float(stop.force),
        "migrate_gain": float(stop.migrate_gain),
        "pack": float(stop.pack),
        "packed_rate": float(stop.packed_rate),
        "admit": float(policy.admission.demand),
        "checkpoint_per_gpu": float(costs.checkpoint_s_per_gpu),
        "restart": float(costs.restart_s),
        "first_start": float(costs.first_start_s),
        "deflate": 1.0 if shrinks is None else float(shrinks.to),
        "resize": 0.0 if shrinks is None else float(shrinks.resize_s),
        "machine": cluster.machine,
        "flat": int(isinstance(speed, FullSpeed)),
        "parts": int(speed.by_parts),
        "contention": int(contention),
        "live": int(live),
    }
    row = np.zeros(1, dtype=PARAMS)
    for name, value in values.items():
        row[name] = value
    return row[0]


def rows_of(jobs: Sequence[Job], policy: Policy, speed: Speed, kinds: SpeedKinds) -> Rows:
    """Build one row per job, in order of arrival."""
    shrinks = policy.shrinking
    count = len(jobs)
    columns = np.zeros(count, dtype=JOB)
    gang = np.array([job.gpus for job in jobs], dtype=np.int64)
    work = np.array([job.work_s for job in jobs], dtype=np.float64)
    chunk = policy.preemption.chunk_iterations
    columns["arrival"][:] = [job.arrival_s for job in jobs]
    for name in ("gang", "full", "least"):
        columns[name][:] = gang
    columns["knee"][:] = 1.0
    if shrinks is not None:
        columns["least"][:] = [shrinks.least(job.gpus) for job in jobs]
        columns["knee"][:] = [1.0 - shrinks.slack_of(job.gpu_utilisation) for job in jobs]
    columns["work"][:] = work
    columns["left"][:] = work
    columns["kind"][:] = kinds.of
    columns["size"][:] = np.unique(gang, return_inverse=True)[1]
    columns["skew"][:] = np.array([speed.skewed(job) for job in kinds.examples], dtype=np.int8)[kinds.of]
    columns["util"][:] = [1.0 if job.gpu_utilisation is None else job.gpu_utilisation for job in jobs]
    if chunk > 0:
        columns["chunk"][:] = [chunk * (job.iteration_s or 0.0) for job in jobs]
    columns["offset"][:] = np.concatenate([[0], np.cumsum(gang, dtype=np.int64)[:-1]])
    for name in ("first", "finish", "host", "guest"):
        columns[name][:] = -1
    columns["lease"][:] = np.inf
    return columns


def topology_of(cluster: Cluster, slots: int) -> GpuTopology:
    """Build the arrays of an empty cluster with room for `slots` GPUs of gangs."""
    gpus, levels = cluster.gpus, len(cluster.levels)
    domain = np.vstack([cluster.domain, np.zeros((1, gpus), dtype=np.int64)]).astype(np.int64)
    counts = np.array([row.max() + 1 for row in domain], dtype=np.int64)
    first = np.zeros((levels + 1, counts.max()), dtype=np.int64)
    size = np.zeros_like(first)
    for level, row in enumerate(domain):
        start = np.searchsorted(row, np.arange(counts[level]))
        first[level, : counts[level]] = start
        size[level, : counts[level]] = np.diff(np.append(start, gpus))
    return GpuTopology(
        domain=domain,
        first=first,
        size=size,
        domains=counts,
        largest=size.max(axis=1).astype(np.int64),
        free=size.copy(),
        open=size.copy(),
        owner=np.full(gpus, -1, dtype=np.int64),
        clean=np.zeros(gpus),
        crossing=np.zeros((max(levels, 1), counts.max()), dtype=np.int64),
        gang_gpus=np.zeros(slots, dtype=np.int64),
    )


def state_of(
    rows: Rows, cluster: Cluster, policy: Policy, speed: Speed, kinds: SpeedKinds, *, seed: int, series: bool
) -> LoopState:
    """Build everything the loop keeps besides jobs and GPUs."""
    count = len(rows)
    sizes = int(rows["size"].max()) + 1
    auto = policy.patience.kind == "auto"
    counts = np.zeros(N_COUNTS, dtype=np.int64)
    counts[RANDOM] = seed
    clock = np.zeros(N_TIMES)
    clock[WAKE_AT], clock[WAKE_PLANNED], clock[ROUND_AT] = np.inf, -1.0, -1.0
    sample = np.zeros(_SAMPLE if policy.order.by == "gittins" else 0)
    history = np.sort(np.array(policy.order.history_gpu_s, dtype=np.float64))
    if len(sample) and len(history):
        history = history if len(history) < _SAMPLE else np.quantile(history, np.linspace(0, 1, _SAMPLE // 2))
        sample[: len(history)] = history
        counts[N_SAMPLE] = len(history)
    sums = np.concatenate([[0.0], np.cumsum(sample)])
    room = 4 * count + 64
    state = LoopState(
        limits=np.array(policy.order.limits_gpu_s, dtype=np.float64),
        order=np.zeros(count, dtype=np.int64),
        tally=counts,
        clock=clock,
        acts=np.zeros((room, 2), dtype=np.int64),
        heap_time=np.zeros(2 * room),
        heap_what=np.zeros((2 * room, 3), dtype=np.int64),
        wait_time=np.zeros((2, sizes, _WINDOW if auto else 1)),
        wait=np.zeros((2, sizes, _WINDOW if auto else 1)),
        waits=np.zeros((2, sizes), dtype=np.int64),
        queued=np.zeros((2, sizes), dtype=np.int64),
        victims=np.zeros(count, dtype=np.int64),
        tier=tiers(cluster, speed, kinds, policy),
        speed_keys=np.zeros(_TABLE, dtype=np.int64),
        speeds=np.zeros(_TABLE),
        need=np.zeros(room, dtype=np.int64),
        sample=sample,
        sums=sums,
        series=np.zeros((4 * count + 64 if series else 1, 6)),
        scratch=np.zeros(cluster.gpus + 1, dtype=np.int64),
    )
    state.queued[1][rows["size"]] = rows["least"]
    return state


def tiers(cluster: Cluster, speed: Speed, kinds: SpeedKinds, policy: Policy) -> npt.NDArray[np.float64]:
    """Compute the speed of each kind of job when it must go out to a level: the least spread that crosses it.

    [kind, level], and behind them the same for ragged gangs.

    This is what a scheduler knows beforehand from a profile; nothing in it depends on how long a job will run.
    """
    levels = len(cluster.levels) + 1
    table = np.ones((len(kinds.examples), 2 * levels))
    if isinstance(speed, FullSpeed) or not (policy.patience.kind == "sensitivity" or policy.preemption.migrate):
        return table
    parts = speed.by_parts
    for kind, job in enumerate(kinds.examples):
        for level in range(levels):
            for ragged in (False, True):
                shape = least_spread(cluster, job.gpus, level, ragged=ragged, by_parts=parts)
                table[kind, levels * ragged + level] = speed.rate(job, shape)
    return table


@lru_cache(maxsize=4096)
def least_spread(cluster: Cluster, gpus: int, level: int, *, ragged: bool = False, by_parts: bool = False) -> Shape:
    """Return the tightest shape of a gang that crosses the borders below `level`: two domains where one would hold it.

    A ragged gang is on one machine more than it needs, and so (mostly) not evenly spread.
    """
    counts = []
    machine = cluster.machine
    for below in range(len(cluster.levels)):
        needed = math.ceil(gpus / cluster.largest(below))
        needed = max(needed, 2 if below < level and gpus > 1 else 1)
        if ragged and below <= machine:
            needed = min(gpus, max(needed, math.ceil(gpus / cluster.largest(machine)) + 1))
        counts.append(needed)
    # The tightest level may be slots, but speeds by parts count machines.
    parts = even_parts(gpus, counts[machine]) if by_parts and counts else ()
    return Shape(gpus=gpus, spans=tuple(counts), parts=parts)
