"""Finish-time fairness by auction, after Themis (Mahajan et al., NSDI 2020).

ρ of a job is its finish time here over that with an equal share of the cluster: (age + work left) / (work · max(1,
contention)), contention being GPUs asked for by all jobs present over GPUs. Every round all GPUs are offered to the
worst off fraction of the jobs. Each bids with its valuation 1/ρ if it runs this round and if it does not. The auction
gives GPUs so that the product of valuations is largest; leftovers go by ρ to jobs that fit, so no GPU idles that can be
used.

What is approximated: jobs bid for their whole gang only (a trace says nothing about other sizes); the winners of the
largest product are found exactly by dynamic programming over GPUs, once per kind; the hidden payments that make bidding
the truth worth while are left out, for simulated jobs do not lie; leftovers go by ρ, not at random.
"""

import math

import numpy as np
import numpy.typing as npt

from stallwise.cluster.policies._gangs import Choice, GangQueue, first_fit
from stallwise.cluster.policies._programs import Floats


class Themis:
    """The arbiter of the auction."""

    def __init__(self, round_s: float, worst_part: float = 0.2) -> None:
        self.round_s, self.worst_part = round_s, worst_part

    def choose(self, queue: GangQueue) -> list[Choice]:
        """Return the winners first, then the others by ρ."""
        jobs = queue.active
        rho = ratios(queue)
        order = jobs[np.argsort(-rho, kind="stable")]
        bidders = order[: max(1, math.ceil(self.worst_part * len(order)))]
        won: list[Choice] = []
        for kind, gpus in enumerate(queue.gpus):
            taken = {job for job, _ in won}
            bids = np.array([job for job in bidders if job not in taken and queue.rate[job, kind] > 0], dtype=np.int64)
            if len(bids):
                gain = self._gains(queue, bids, kind)
                won += [(int(bids[at]), kind) for at in auction(queue.gang[bids], gain, int(gpus))]
        rest = [(int(job), int(kind)) for job in order for kind in np.argsort(-queue.rate[job], kind="stable")]
        return first_fit(queue, [*won, *rest])

    def ran(self, job: int, kind: int, seconds: float) -> None:
        """Nothing is accounted: ρ follows from the queue."""

    def _gains(self, queue: GangQueue, bids: npt.NDArray[np.int64], kind: int) -> Floats:
        """log of the valuation with GPUs this round over that without: log((age + left + round) / (age + left))."""
        ahead = queue.now - queue.arrival[bids] + queue.left[bids]
        return np.asarray(np.log1p(self.round_s * queue.rate[bids, kind] / ahead))


def ratios(queue: GangQueue) -> Floats:
    """Return ρ of every active job if it ran from now on."""
    jobs = queue.active
    contention = max(1.0, float(queue.gang[jobs].sum() / queue.gpus.sum()))
    shared_s = queue.now - queue.arrival[jobs] + queue.left[jobs]
    return np.asarray(shared_s / (queue.work[jobs] * contention))


def auction(gangs: npt.NDArray[np.int64], gains: Floats, gpus: int) -> list[int]:
    """Bids of the largest sum of gains (product of valuations) that fit `gpus`: a knapsack, solved exactly."""
    best = np.zeros(gpus + 1)
    takes = np.zeros((len(gangs), gpus + 1), dtype=np.bool_)
    for row, (gang, gain) in enumerate(zip(gangs, gains, strict=True)):
        if gang > gpus:
            continue
        with_it = best[: gpus + 1 - gang] + gain
        takes[row, gang:] = with_it > best[gang:]
        best[gang:] = np.maximum(with_it, best[gang:])
    out, room = [], gpus
    for row in range(len(gangs) - 1, -1, -1):
        if takes[row, room]:
            out.append(row)
            room -= int(gangs[row])
    return out[::-1]
