"""A naive event simulator in pure Python, kept to measure the product's own against: counted GPUs, no placement.

At every arrival, end, change of queue or end of a lease all jobs that are there are put in order and started as far as
GPUs reach. FIFO is strict (nobody overtakes), the others skip a gang that does not fit. The answers are those of
Tiresias' released simulator (NSDI 2019) for FIFO, SRTF and SRSF; 2D-LAS demotes at the moment a threshold is reached;
LAS gives GPUs back after an hour; Gandiva takes turns of a minute that end for all at once.
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

    __slots__ = (
        "asked_s",
        "began_s",
        "gpus",
        "index",
        "joined",
        "left_s",
        "queue",
        "running",
        "served_s",
        "submit_s",
        "until_s",
    )

    def __init__(self, index: int, job: Asked) -> None:
        self.index, self.submit_s, self.gpus = index, job.submit_s, job.gpus
        self.left_s, self.served_s, self.queue, self.running = job.work_s, 0.0, 0, False
        self.joined = self.asked_s = self.began_s = job.submit_s
        self.until_s = math.inf


class Rule(NamedTuple):
    """A policy: the order, and who gives GPUs back."""

    key: Callable[[Here], tuple[float, ...]]
    strict: bool = False
    keeps: bool = False
    """Whoever runs goes on until its end, or the end of its lease."""
    queues: bool = False
    lease_s: float = math.inf
    slices: bool = False
    """Leases end for all at once, at multiples."""


ORDERS: dict[str, Rule] = {
    "fifo": Rule(lambda job: (job.submit_s, job.index), strict=True, keeps=True),
    "srtf": Rule(lambda job: (job.left_s, job.submit_s, job.index)),
    "srsf": Rule(lambda job: (job.left_s * job.gpus, job.submit_s, job.index)),
    "2d-las": Rule(lambda job: (job.queue, not job.running, job.joined, job.index), queues=True),
    "las": Rule(lambda job: (job.served_s,), keeps=True, lease_s=3600.0),
    "gandiva": Rule(
        lambda job: (job.running, -job.began_s if job.running else job.asked_s), keeps=True, lease_s=60.0, slices=True
    ),
}


def simulate(jobs: Sequence[Asked], gpus: int, policy: str) -> list[float]:
    """When each job ends."""
    rule = ORDERS[policy]
    ends = [math.nan] * len(jobs)
    arrivals = [(job.submit_s, index) for index, job in enumerate(jobs)]
    heapq.heapify(arrivals)
    here: list[Here] = []
    now = 0.0
    while arrivals or here:
        now = _next(now, arrivals, here, rule)
        while arrivals and arrivals[0][0] <= now:
            _, index = heapq.heappop(arrivals)
            here.append(Here(index, jobs[index]))
        for job in here:
            if job.running and job.left_s <= 1e-9:
                ends[job.index] = now
        here = [job for job in here if math.isnan(ends[job.index])]
        if rule.queues:
            _demote(here, now)
        if not rule.slices:
            _expire(here, now)
        here.sort(key=rule.key)
        _start(here, gpus, now, rule)
    return ends


def _next(now: float, arrivals: list[tuple[float, int]], here: list[Here], rule: Rule) -> float:
    """Go to the next event; running jobs get on until then."""
    soonest = arrivals[0][0] if arrivals else math.inf
    if rule.slices and here:
        soonest = min(soonest, (now // rule.lease_s + 1) * rule.lease_s)
    for job in here:
        if job.running:
            soonest = min(soonest, now + job.left_s, job.until_s)
            if rule.queues and job.queue < len(LIMITS_GPU_S):
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


def _expire(here: list[Here], now: float) -> None:
    for job in here:
        if job.running and job.until_s <= now:
            job.running, job.asked_s = False, now


def _start(ordered: list[Here], gpus: int, now: float, rule: Rule) -> None:
    """In order, as far as GPUs reach. Strict: the first that does not fit stops the rest."""
    free, stopped = gpus, False
    keeps = rule.keeps and not (rule.slices and now % rule.lease_s == 0)
    if keeps:
        free -= sum(job.gpus for job in ordered if job.running)
    for job in ordered:
        if keeps and job.running:
            continue
        fits = job.gpus <= free and not stopped
        if fits:
            free -= job.gpus
            if not job.running:
                job.began_s, job.until_s = now, math.inf if rule.slices else now + rule.lease_s
        elif rule.strict:
            stopped = True
        if job.running and not fits:
            job.asked_s = now
        job.running = fits
