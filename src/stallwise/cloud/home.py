"""Staying where the job runs: as it is, and with what its own loader could do.

The honest answer is sometimes not to rent. Where the loader holds the job up and cores are idle, more loader workers
cost nothing; their effect is the ratio of two what-ifs on the run's own machine, put on the measured step.
"""

from dataclasses import dataclass

import numpy as np

from stallwise.cloud.bids import job_columns, probability
from stallwise.cloud.subject import Subject
from stallwise.cloud.wish import Wish
from stallwise.model.calibrate import OwnLinks, own_links
from stallwise.model.cost import cost_usd
from stallwise.model.fabric import Fabric, link_of_rate
from stallwise.model.stalls import Share
from stallwise.model.whatif import Change, Job, what_if
from stallwise.record.setup import own_fabric

_WORTH = 1.03
"""Fewer than 3 % are not worth a sentence."""
_NEARLY = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The job where it runs now."""

    gpu: str | None
    gpus: int
    nodes: int
    workers: int | None
    step: Share
    job_s: float
    low_s: float
    high_s: float
    usd: float | None
    """None: what the machine costs is not known."""
    in_time: float | None
    more_workers: int | None = None
    """Loader workers of each GPU that this is with, where it is not as it is."""
    speedup: float = 1.0

    def meets(self, wish: Wish) -> bool:
        """Whether it keeps the limits; a cost that is not known keeps any."""
        if wish.deadline_s is not None and (self.in_time or 0.0) < wish.sure:
            return False
        return wish.budget_usd is None or self.usd is None or self.usd <= wish.budget_usd


def home_of(subject: Subject, wish: Wish) -> tuple[Home, Home | None]:
    """As it is, and with more loader workers where they help."""
    job = subject.job
    step = job.step or Share(subject.measured_compute_s, subject.measured_compute_s, subject.measured_compute_s)
    as_is = _home(subject, wish, step, None, 1.0)
    found = better_workers(subject)
    if found is None:
        return as_is, None
    workers, speedup = found
    quicker = Share(step.s / speedup, step.low_s / speedup, step.high_s / speedup)
    return as_is, _home(subject, wish, quicker, workers, speedup)


def better_workers(subject: Subject) -> tuple[int, float] | None:
    """The fewest loader workers that are within 2 % of the best, and how many times as fast; None: none is worth it."""
    job = subject.job
    if job.work is None or not job.cores_per_node:
        return None
    ranks = min(job.gpus or 1, job.gpus_per_node)
    most = max(1, job.cores_per_node // ranks)
    fabric = _own_fabric(job)
    before = what_if(job, Change(), fabric, job.gpus).step_s
    counts = range(job.work.workers + 1, most + 1)
    steps = {count: what_if(job, Change(workers=count), fabric, job.gpus).step_s for count in counts[:64]}
    if not steps:
        return None
    best = min(steps.values())
    if before / best < _WORTH:
        return None
    chosen = min(count for count, step_s in steps.items() if step_s <= _NEARLY * best)
    return chosen, before / steps[chosen]


def _own_fabric(job: Job) -> Fabric | None:
    """The run's own links; where its exchange was not measured, one that takes no time: only loading is compared."""
    if (job.gpus or 1) == 1:
        return None
    own = own_links(job)
    if own != OwnLinks():
        return own_fabric(job, own)
    free = link_of_rate(1e18, 0.0, "given")
    return Fabric(gpus_per_node=job.gpus_per_node, inside=free, between=free)


def _home(subject: Subject, wish: Wish, step: Share, workers: int | None, speedup: float) -> Home:
    job = subject.job
    steps = np.array([step.s, max(1e-12, step.low_s), step.high_s])
    batch = np.full(3, subject.batch)
    mid, low, high = job_columns(steps, steps, batch, wish).tolist()
    nodes = max(1, (job.gpus or 1) // job.gpus_per_node)
    return Home(
        gpu=None if subject.source is None else subject.source.name,
        gpus=job.gpus or 1,
        nodes=nodes,
        workers=None if job.work is None else job.work.workers,
        step=step,
        job_s=mid,
        low_s=low,
        high_s=high,
        usd=None if wish.here_usd_per_h is None else cost_usd(mid, wish.here_usd_per_h, nodes),
        in_time=None if wish.deadline_s is None else probability(wish.deadline_s, mid, low, high),
        more_workers=workers,
        speedup=speedup,
    )
