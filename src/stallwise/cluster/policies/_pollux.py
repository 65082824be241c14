"""The fairest use of goodput, after Pollux (Qiao et al., OSDI 2021).

A job's speedup on a number of GPUs is its goodput there, at its best batch, over that on an equal share of the cluster.
The power mean of all speedups (p = -1) is made largest; a change of GPUs counts max(age - restarts x cost, 0) / (age +
cost) of its speedup, and a job may at most double the GPUs it has tried.

What differs from the released scheduler: it searches allocations with a genetic algorithm, random and never finished;
here the sum of speedup^p over `configurations` is minimised exactly, by dynamic programming over GPUs. Its jobs fit a
model of their step time while they run; here speeds come from the tables the simulator runs on. Whole machines for
jobs that need more than one keep two spread jobs off one machine, which it enforces by hand.
"""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from stallwise.cluster.policies._elastic import Config, Growing, MachinePool, Place, parts_of, place_all, sizes
from stallwise.cluster.policies._goodput import packed_parts

Floats = npt.NDArray[np.float64]
_NOTHING = 1e-3
"""Speedup of a job without GPUs, so that its power is finite."""


def restart_factor(age_s: float, restarts: int, restart_s: float) -> float:
    """Return the fraction of a speedup that a change of GPUs leaves, by the part of its life lost to changes."""
    return max(age_s - max(restarts, 0) * restart_s, 0.0) / (age_s + restart_s)


class Pollux:
    """Exact search over configurations."""

    tunes = True

    def __init__(self, power: float = -1.0, restart_s: float = 30.0) -> None:
        self.power, self.restart_s = power, restart_s

    def allot(self, now: float, jobs: Mapping[int, Growing], fleet: MachinePool) -> dict[int, Place]:
        """Compute the costs of every configuration of every job, and take the cheapest choice."""
        if not jobs:
            return {}
        gpus, machine = int(fleet.size.sum()), fleet.machine(0)
        counts = np.array([0, *sizes(machine, gpus)])
        fair = math.ceil(gpus / len(jobs))
        costs = np.array([self._costs(now, job, counts, fair, machine) for job in jobs.values()])
        picked = cheapest(costs, counts, gpus)
        chosen: dict[int, Config] = {
            number: (0, int(counts[at])) for number, at in zip(jobs, picked, strict=True) if counts[at]
        }
        return place_all(chosen, jobs, fleet)

    def _costs(self, now: float, job: Growing, counts: npt.NDArray[np.int64], fair: int, machine: int) -> Floats:
        """Return (speedup / GPUs of a machine)^p by configuration; infinite where it is not allowed."""
        most = min(max(2 * job.tried_gpus, 1), job.most_gpus)
        factor = restart_factor(now - job.row.arrival_s, job.restarts, self.restart_s)
        held = sum(parts_of(job.place))
        base = job.goodput(0, packed_parts(fair, machine)) if job.tried_gpus else 1.0
        costs = np.full(len(counts), np.inf)
        for at, count in enumerate(counts):
            if count > most:
                break
            speedup = 0.0
            if count and job.tried_gpus:
                speedup = job.goodput(0, packed_parts(int(count), machine)) / base
            elif count:
                speedup = count / fair
            costs[at] = (speedup / machine * (1.0 if count == held else factor) + _NOTHING) ** self.power
        return costs


def cheapest(costs: Floats, counts: npt.NDArray[np.int64], gpus: int) -> list[int]:
    """Return for each job (row) the column of the least sum of costs whose counts fit, by dynamic programming."""
    best = np.zeros(gpus + 1)
    room = np.arange(gpus + 1)
    before = room[None, :] - counts[:, None]
    fits, before = before >= 0, np.maximum(before, 0)
    taken = np.zeros((len(costs), gpus + 1), dtype=np.int64)
    for row, cost in enumerate(costs):
        whole = np.where(fits, best[before] + cost[:, None], np.inf)
        taken[row] = whole.argmin(axis=0)
        best = whole[taken[row], room]
    out, left = [], gpus
    for row in range(len(costs) - 1, -1, -1):
        out.append(int(taken[row, left]))
        left -= int(counts[out[-1]])
    return out[::-1]
