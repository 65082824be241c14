"""Gavel's mechanism: shares of a linear program, realised in rounds (Narayanan et al., OSDI 2020).

Every kind of GPU serves jobs by priority = target share / share received so far. Shares are computed anew when jobs
came or ended, at most every `RESET_S`; from then on what was received counts from zero, each job with half a round to
its name so that no share is 0. What was owed at a reset breaks ties. A job without a target yet gets what others leave.
"""

from typing import Literal

import numpy as np

from stallwise.cluster.policies._gangs import Choice, GangQueue, first_fit
from stallwise.cluster.policies._programs import Floats, GangDemand, finish_time, isolated, makespan, max_min

RESET_S = 1920.0
"""Least time between two allocations of the released scheduler."""

Aim = Literal["max-min", "makespan", "finish-time"]


class Gavel:
    """One of Gavel's policies during a simulation."""

    def __init__(self, aim: Aim, queue: GangQueue, round_s: float, *, aware: bool = True, seed: int = 0) -> None:
        shape = queue.rate.shape
        self.aim, self.aware, self.half_s = aim, aware, round_s / 2
        self.target = np.zeros(shape)
        self.owed = np.zeros(shape)
        self.had = np.full(shape, self.half_s)
        self.all_had = np.zeros(shape[1])
        self.reset_s = -np.inf
        self.stale = True
        self.random = np.random.default_rng(seed)
        self.alone_s = np.zeros(shape[0])
        """Time that the work done so far would have taken with an equal share."""
        self.alone = np.ones(shape[0])
        self.left_before = queue.work.copy()

    def choose(self, queue: GangQueue) -> list[Choice]:
        """Choose by priority, kind by kind: the fastest first, or in random order for a policy unaware of kinds."""
        self.stale = self.stale or queue.changed
        if self.stale and queue.now - self.reset_s >= RESET_S:
            self._allocate(queue)
        jobs = queue.active
        priority = self._priorities(queue)
        kinds = np.arange(len(queue.gpus))
        if not self.aware:
            self.random.shuffle(kinds)
        turn = []
        for kind in kinds:
            keys = (-self.target[jobs, kind], -self.owed[jobs, kind], -priority[:, kind])
            turn += [(int(job), int(kind)) for job in jobs[np.lexsort(keys)]]
        return first_fit(queue, turn)

    def ran(self, job: int, kind: int, seconds: float) -> None:
        """Count the time towards the job's share."""
        self.had[job, kind] += seconds
        self.all_had[kind] += seconds

    def _priorities(self, queue: GangQueue) -> Floats:
        jobs = queue.active
        part = self.had[jobs] / np.maximum(self.all_had, 1e-12)[None, :]
        return np.asarray(np.where(queue.rate[jobs] > 0, self.target[jobs] / part, 0.0))

    def _allocate(self, queue: GangQueue) -> None:
        since_s = queue.now - self.reset_s if np.isfinite(self.reset_s) else 0.0
        self.owed += self.target * since_s - (self.had - self.half_s)
        self.had[:] = self.half_s
        self.all_had[:] = self.half_s * len(queue.active)
        self.target[:] = 0.0
        self.target[queue.active] = self._shares(queue)
        self.reset_s, self.stale = queue.now, False

    def _shares(self, queue: GangQueue) -> Floats:
        """Return [job, kind]. An unaware policy shares one pool, and spreads each job's time over kinds by their size.

        (To that program every split is as good; an interior-point solver, as Gavel uses, ends up near the even one.)
        """
        if self.aware:
            return self._solved(queue, queue.demand())
        pool = queue.demand(aware=False)
        one = GangDemand(pool.gang, pool.rate[:, :1], pool.gpus.sum(keepdims=True))
        return np.asarray(self._solved(queue, one) * (pool.gpus / pool.gpus.sum())[None, :])

    def _solved(self, queue: GangQueue, demand: GangDemand) -> Floats:
        left = queue.left[queue.active]
        # The term of a job with next to nothing left would be so large that the solver sees nothing of the others;
        # a running job gets a whole round anyway. One kind is solved in closed form, for work of any size.
        ahead = np.maximum(left, 2 * self.half_s) if demand.rate.shape[1] > 1 else left
        if self.aim == "max-min":
            return max_min(demand)
        if self.aim == "makespan":
            return makespan(demand, ahead)
        jobs = queue.active
        self.alone_s[jobs] += (self.left_before[jobs] - left) / self.alone[jobs]
        self.alone[jobs] = isolated(demand)
        self.left_before[jobs] = left
        whole_s = self.alone_s[jobs] + ahead / self.alone[jobs]
        return finish_time(demand, ahead, queue.now - queue.arrival[jobs], whole_s)
