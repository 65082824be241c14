"""Gavel's allocation problems (Narayanan et al., OSDI 2020) as linear programs.

Solved by HiGHS; where all GPUs are alike, in closed form.

An allocation X[job, kind] is the fraction of the time a job spends on a kind of GPU. A job m that needs g_m GPUs and
does T[m, k] seconds of work per second on kind k has throughput Σ_k T[m, k] X[m, k], and

    Σ_k X[m, k] <= 1 for every job,  Σ_m g_m X[m, k] <= GPUs of kind k,  X >= 0.

`max_min` maximises the least of all jobs' normalised throughputs, `makespan` the least of throughput over remaining
work, `finish_time` minimises the largest ratio of finish times, shared over isolated. Each of them fixes the worst off
only; among their solutions the one with the largest sum of the same terms is taken, so that no job is left with less
than there is to have.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stallwise.errors import StallwiseError

Floats = npt.NDArray[np.float64]

_SLACK = 1e-7
"""Fraction of the optimum given up when ties are broken: solvers meet constraints to about this."""
_RATIO_PRECISION = 1e-4
"""Finish-time ratios are found to this part."""
_MOST_STEPS = 60


@dataclass(frozen=True, slots=True, eq=False)
class GangDemand:
    """The jobs of one problem, and the cluster."""

    gang: Floats
    """GPUs of each job."""
    rate: Floats
    """[job, kind]: work done per second on its gang of that kind; 0 where it does not run."""
    gpus: Floats
    """GPUs of each kind."""

    @property
    def usable(self) -> npt.NDArray[np.bool_]:
        """[job, kind]: it runs there and its gang fits."""
        return np.asarray((self.rate > 0) & (self.gang[:, None] <= self.gpus[None, :]))


def proportional(demand: GangDemand) -> Floats:
    """Return the throughput with kinds in the proportion of the cluster: what Gavel's max-min normalises by."""
    return np.asarray((demand.rate * (demand.gpus / demand.gpus.sum())[None, :]).sum(axis=1))


def isolated(demand: GangDemand) -> Floats:
    """Return the throughput of each job with 1/n of every kind of GPU, which is at most all the time."""
    share = demand.gpus[None, :] / len(demand.gang) / demand.gang[:, None]
    share = share / np.maximum(share.sum(axis=1), 1.0)[:, None]
    return np.asarray((demand.rate * share).sum(axis=1))


def max_min(demand: GangDemand) -> Floats:
    """Maximise the least normalised throughput, times GPUs: a job of g GPUs gets a g-th of the time of a job of one."""
    scale = demand.gang / np.maximum(proportional(demand), 1e-12)
    return _largest_least(demand, scale)


def makespan(demand: GangDemand, left: Floats) -> Floats:
    """Minimise the time until all are done: 1 / the largest least throughput over remaining work, which is above 0."""
    return _largest_least(demand, 1.0 / left)


def finish_time(demand: GangDemand, left: Floats, elapsed: Floats, alone: Floats) -> Floats:
    """Minimise the largest ρ = (elapsed + left / throughput) / alone.

    For a given ρ this asks whether every throughput can be left / (ρ · alone - elapsed): a linear program whose
    optimum s says by which factor all could be had at once; ρ is the least with s >= 1, found by bisection.
    """
    low = float((elapsed / alone).max())
    high = max(low, float(((elapsed + left / np.maximum(_best_alone(demand), 1e-12)) / alone).max())) + 1e-6
    while _factor(demand, left, high * alone - elapsed) < 1:
        low, high = high, 2 * high + 1
    for _ in range(_MOST_STEPS):
        if high - low <= _RATIO_PRECISION * high:
            break
        middle = (low + high) / 2
        if _factor(demand, left, middle * alone - elapsed) >= 1:
            high = middle
        else:
            low = middle
    return _largest_least(demand, (high * alone - elapsed) / left)


def _best_alone(demand: GangDemand) -> Floats:
    return np.asarray(np.where(demand.usable, demand.rate, 0.0).max(axis=1))


def _factor(demand: GangDemand, left: Floats, time: Floats) -> float:
    """Return how many times the needed throughput, left / time, all jobs can have; 0 where time is up."""
    if (time <= 0).any():
        return 0.0
    return _solve(demand, time / left)[1]


def _largest_least(demand: GangDemand, scale: Floats) -> Floats:
    """X that maximises min_m scale_m · throughput_m, and then the sum of these."""
    _, least = _solve(demand, scale)
    return _solve(demand, scale, at_least=least * (1 - _SLACK))[0]


def _solve(demand: GangDemand, scale: Floats, at_least: float | None = None) -> tuple[Floats, float]:
    """The largest least term; or with `at_least`, the largest sum of terms that are all above it."""
    jobs, kinds = demand.rate.shape
    if kinds == 1:
        return _one_kind(demand, scale, at_least)
    usable = demand.usable
    worth = np.where(usable, demand.rate * scale[:, None], 0.0)
    top = float(worth.max())  # terms of any size: the solver works on numbers around 1
    cost = np.append(np.zeros(jobs * kinds), -1.0) if at_least is None else np.append(-(worth / top).ravel(), 0.0)
    most = np.append(usable.ravel().astype(np.float64), np.inf if at_least is None else at_least / top)
    least = np.append(np.zeros(jobs * kinds), 0.0 if at_least is None else at_least / top)
    result = _linprog(cost, *_constraints(demand, worth / top), np.column_stack([least, most]))
    share = np.clip(result.x[:-1].reshape(jobs, kinds), 0.0, 1.0)
    return share, float((share * worth).sum(axis=1).min())


def _one_kind(demand: GangDemand, scale: Floats, at_least: float | None) -> tuple[Floats, float]:
    """Solve the same where all GPUs are alike: a job's need for a level t is t / worth, so t solves a line.

    t <= min worth (a job has at most all the time) and Σ gang · t / worth <= GPUs; what is left goes to the jobs that
    make the most of a GPU.
    """
    gang, worth = demand.gang, np.maximum(demand.rate[:, 0] * scale, 1e-300)
    level = min(float(worth.min()), float(demand.gpus[0] / (gang / worth).sum())) if at_least is None else at_least
    share = np.minimum(level / worth, 1.0)
    if at_least is None:
        return share[:, None], level
    free = float(demand.gpus[0] - (gang * share).sum())
    order = np.argsort(-worth / gang, kind="stable")
    room = (gang * (1 - share))[order]
    more = np.clip(free - np.concatenate([[0.0], np.cumsum(room)[:-1]]), 0.0, room)
    share[order] += more / gang[order]
    return share[:, None], level


def _constraints(demand: GangDemand, worth: Floats) -> tuple[Any, Floats]:
    """Rows: every term is above the level (the last variable); all of a job's time; all of a kind's GPUs."""
    from scipy.sparse import coo_array  # type: ignore[import-untyped]

    jobs, kinds = worth.shape
    cell = np.arange(jobs * kinds)
    job, kind = cell // kinds, cell % kinds
    rows = np.concatenate([job, np.arange(jobs), jobs + job, 2 * jobs + kind])
    columns = np.concatenate([cell, np.full(jobs, jobs * kinds), cell, cell])
    values = np.concatenate([-worth.ravel(), np.ones(jobs), np.ones(jobs * kinds), demand.gang[job]])
    matrix = coo_array((values, (rows, columns)), shape=(2 * jobs + kinds, jobs * kinds + 1)).tocsr()
    return matrix, np.concatenate([np.zeros(jobs), np.ones(jobs), demand.gpus])


def _linprog(cost: Floats, matrix: Any, limit: Floats, bounds: Floats) -> Any:
    from scipy.optimize import linprog  # type: ignore[import-untyped]

    result = linprog(cost, A_ub=matrix, b_ub=limit, bounds=bounds, method="highs")
    if result.status != 0:
        raise StallwiseError(f"The allocation of {len(limit)} constraints has no solution: {result.message}")
    return result
