"""One configuration per job by integer program, after Sia (Jayaram Subramanya et al., SOSP 2023).

A configuration is a kind of GPU and a number of them. A job's goodput on each, at its best batch, is divided by its
least; a change of configuration counts `pollux.restart_factor` of it. Minimised is

    Σ_jobs Σ_configurations goodput^p · x  +  λ · (jobs without GPUs),   p = -0.5, λ = 1.1,

at most one configuration per job, at most the GPUs there are of each kind: a mixed-integer program, by HiGHS (without
presolve, which prints to standard output now and then). Terms are rounded to two decimals as in the released scheduler,
so that small changes of goodput do not move jobs; an unchanged
problem is not solved again. A job may at most double the GPUs it has tried.

What differs: speeds come from the tables the simulator runs on, not from one profiled GPU and a model learned on the
way; the restart cost is one number for all applications; rigid and pipelined jobs are not there.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from stallwise.cluster.policies._elastic import Config, Growing, MachinePool, Place, parts_of, place_all, sizes
from stallwise.cluster.policies._goodput import packed_parts
from stallwise.cluster.policies._pollux import cheapest, restart_factor
from stallwise.errors import StallwiseError

Floats = npt.NDArray[np.float64]
WAITING_COST = 1.1
"""λ: a job without GPUs costs more than one with its least goodput, which costs 1."""
_DECIMALS = 2
_GAP = 1e-4


class Sia:
    """The integer program during a simulation."""

    tunes = True

    def __init__(self, power: float = -0.5, restart_s: float = 30.0) -> None:
        self.power, self.restart_s = power, restart_s
        self.solved: dict[bytes, list[int]] = {}

    def allot(self, now: float, jobs: Mapping[int, Growing], fleet: MachinePool) -> dict[int, Place]:
        """Compute the costs of every configuration of every job, and take the cheapest choice."""
        if not jobs:
            return {}
        kinds = range(int(fleet.kind.max()) + 1)
        configs = [(kind, size) for kind in kinds for size in sizes(fleet.machine(kind), fleet.gpus(kind))]
        costs = np.array([self._costs(now, job, configs, fleet) for job in jobs.values()])
        key = costs.tobytes()
        if key not in self.solved:
            limits = np.array([fleet.gpus(kind) for kind in kinds], dtype=np.float64)
            self.solved = {key: choose(costs, configs, limits) if len(limits) > 1 else alike(costs, configs, limits)}
        chosen = {number: configs[at] for number, at in zip(jobs, self.solved[key], strict=True) if at >= 0}
        return place_all(chosen, jobs, fleet)

    def _costs(self, now: float, job: Growing, configs: list[Config], fleet: MachinePool) -> Floats:
        """Return goodput^p over the least; infinite where it is not allowed."""
        most = min(max(2 * job.tried_gpus, 1), job.most_gpus)
        speed = np.array([self._goodput(job, kind, count, most, fleet) for kind, count in configs])
        possible = speed > 0
        if job.tried_gpus:
            speed[possible] /= speed[possible].min()
        held = _held(job, fleet)
        age_s = now - job.row.arrival_s
        if held is not None and age_s >= self.restart_s:
            factor = restart_factor(age_s, job.restarts, self.restart_s)
            speed *= np.array([1.0 if config == held else factor for config in configs])
        with np.errstate(divide="ignore"):
            return np.where(possible, np.round(speed**self.power, _DECIMALS), np.inf)

    def _goodput(self, job: Growing, kind: int, count: int, most: int, fleet: MachinePool) -> float:
        machine, table = fleet.machine(kind), job.goodputs[kind]
        if count > most or -(-count // machine) > table.most_machines:
            return 0.0
        return job.goodput(kind, packed_parts(count, machine)) if job.tried_gpus else 1.0


def _held(job: Growing, fleet: MachinePool) -> Config | None:
    return (int(fleet.kind[job.place[0][0]]), sum(parts_of(job.place))) if job.place else None


def alike(costs: Floats, configs: list[Config], gpus: Floats) -> list[int]:
    """Solve the same program where all GPUs are alike, by dynamic programming over its one limit, which is faster."""
    counts = np.array([0, *(count for _, count in configs)])
    waiting = np.full((len(costs), 1), WAITING_COST)
    return [at - 1 for at in cheapest(np.hstack([waiting, costs]), counts, int(gpus[0]))]


def choose(costs: Floats, configs: list[Config], gpus: Floats) -> list[int]:
    """Return for each job (row) its configuration (column), -1 for none: the integer program of the module."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]
    from scipy.sparse import coo_array  # type: ignore[import-untyped]

    job, config = np.nonzero(np.isfinite(costs))
    count = len(job)
    kind = np.array([configs[at][0] for at in config])
    size = np.array([configs[at][1] for at in config], dtype=np.float64)
    rows = np.concatenate([job, len(costs) + kind])
    columns = np.concatenate([np.arange(count), np.arange(count)])
    matrix = coo_array((np.concatenate([np.ones(count), size]), (rows, columns)), shape=(len(costs) + len(gpus), count))
    limits = np.concatenate([np.ones(len(costs)), gpus])
    result = milp(
        costs[job, config] - WAITING_COST,
        constraints=LinearConstraint(matrix.tocsr(), ub=limits),
        integrality=np.ones(count),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": _GAP, "presolve": False},
    )
    if result.x is None:
        raise StallwiseError(f"The configurations of {len(costs)} jobs could not be chosen: {result.message}")
    out = [-1] * len(costs)
    for at in np.flatnonzero(result.x > 0.5):
        out[int(job[at])] = int(config[at])
    return out
