"""A naive event simulator in pure Python, kept to measure the product's own against: counted GPUs, no placement.

At every arrival, end or change of queue all jobs that are there are put in order and started as far as GPUs reach.
FIFO is strict (nobody overtakes), the others skip a gang that does not fit. The answers are those of Tiresias'
released simulator (NSDI 2019) for FIFO, SRTF and SRSF; 2D-LAS demotes at the moment a threshold is reached.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

LIMITS_GPU_S = (3250.0, 7200.0)


class Asked(NamedTuple):
    """A job as the trace has it."""

    submit_s: float
    gpus: int
    work_s: float


class Here:
    """A job that has come and is not done."""

    __slots__ = ("gpus", "index", "joined", "left_s", "queue", "running", "served_s", "submit_s")

    def __init__(self, index: int, job: Asked) -> None:
        self.index, self.submit_s, self.gpus = index, job.submit_s, job.gpus
        self.left_s, self.served_s, self.queue, self.running = job.work_s, 0.0, 0, False
        self.joined = job.submit_s


Key = Callable[[Here], tuple[float, ...]]

ORDERS: dict[str, Key] = {
    "fifo": lambda job: (job.submit_s, job.index),
    "srtf": lambda job: (job.left_s, job.submit_s, job.index),
    "srsf": lambda job: (job.left_s * job.gpus, job.submit_s, job.index),
    "2d-las": lambda job: (job.queue, not job.running, job.joined, job.index),
}


def simulate(jobs: Sequence[Asked], gpus: int, policy: str) -> list[float]:
    """When each job ends."""
    order, strict, queues = ORDERS[policy], policy == "fifo", policy == "2d-las"
    ends = [math.nan] * len(jobs)
    arrivals = [(job.submit_s, index) for index, job in enumerate(jobs)]
    heapq.heapify(arrivals)
    here: list[Here] = []
    now = 0.0
    while arrivals or here:
        now = _next(now, arrivals, here, queues)
        while arrivals and arrivals[0][0] <= now:
            _, index = heapq.heappop(arrivals)
            here.append(Here(index, jobs[index]))
        for job in here:
            if job.running and job.left_s <= 1e-9:
                ends[job.index] = now
        here = [job for job in here if math.isnan(ends[job.index])]
        if queues:
            _demote(here, now)
        here.sort(key=order)
        _start(here, gpus, strict=strict)
    return ends


def _next(now: float, arrivals: list[tuple[float, int]], here: list[Here], queues: bool) -> float:
    """Go to the next event; running jobs get on until then."""
    soonest = arrivals[0][0] if arrivals else math.inf
    for job in here:
        if job.running:
            soonest = min(soonest, now + job.left_s)
            if queues and job.queue < len(LIMITS_GPU_S):
                soonest = min(soonest, now + (LIMITS_GPU_S[job.queue] - job.served_s) / job.gpus)
    for job in here:
        if job.running:
            job.left_s -= soonest - now
            job.served_s += (soonest - now) * job.gpus
    return soonest


def _demote(here: list[Here], now: float) -> None:
    for job in here:
        queue = sum(job.served_s >= limit - 1e-6 for limit in LIMITS_GPU_S)
        if queue != job.queue:
            job.queue, job.joined = queue, now


def _start(ordered: list[Here], gpus: int, *, strict: bool) -> None:
    """In order, as far as GPUs reach. Strict: the first that does not fit stops the rest."""
    free, stopped = gpus, False
    if strict:
        free -= sum(job.gpus for job in ordered if job.running)
    for job in ordered:
        if strict and job.running:
            continue
        job.running = job.gpus <= free and not stopped
        if job.running:
            free -= job.gpus
        elif strict:
            stopped = True
