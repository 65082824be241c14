"""From phase times to stalls that are never negative and add up to the step.

The phases of a profile form a ladder: each lacks something the one before has, so its true time cannot be longer.
Measured times may cross by noise; the isotonic fit (pool adjacent violators) is the nearest ladder that does not.
A stall is the difference between two neighbouring rungs; what is left on the last rung is compute.

**Stash.** The paper (Sharma et al., ICDCS 2023) defines the stalls of a step by other runs and other denominators. It
launches a job several times and takes differences:

    t0  one rank alone, synthetic data
    t1  all ranks of one machine, synthetic data
    tN  as many ranks over several machines, synthetic data
    t3  real data, page cache warm
    t2  real data, page cache cold

    interconnect  t1 - t0  of t1, floored at 0
    CPU (prep)    t3 - t1  of t3, floored at 0
    disk (fetch)  t2 - t3  of t2
    network       tN - t1  of t1, so that it may exceed 100 %

Each denominator is another run, so the percentages do not add up to anything. The paper's intended formulas are
used here; the released code computes something else (see `validation/cases/stash.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stallwise.model.statistics.intervals import Interval, paired_difference, positive_median, t_quantile


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a step: its seconds and their 95 % bounds.

    *Ablated*: what taking one thing away saves. `observed`: attributed from a timeline or from samples of the stack.
    """

    s: float
    low_s: float
    high_s: float
    observed: bool = False

    @property
    def distinguishable(self) -> bool:
        """Whether it is larger than noise: its lower bound is above 0."""
        return self.low_s > 0


def falling_fit(values: Sequence[float], weights: Sequence[float] | None = None) -> list[float]:
    """The non-increasing sequence nearest to `values` in weighted least squares (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(values, weights or [1.0] * len(values), strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] < pools[-1][0]:
            mean2, weight2, length2 = pools.pop()
            mean1, weight1, length1 = pools.pop()
            total = weight1 + weight2
            pools.append(((mean1 * weight1 + mean2 * weight2) / total, total, length1 + length2))
    return [mean for mean, _, length in pools for _ in range(length)]


def ladder_shares(rungs: Sequence[Mapping[int, float]]) -> tuple[list[Share], Share]:
    """Compute the stalls between neighbouring rungs, and the compute left, from the block means of each rung.

    `rungs[i]` maps a round to the mean step of that phase's block. Rung times are medians over rounds, fitted to
    fall. A stall's interval is that of the paired differences of its two rungs, cut off at zero and stretched to
    hold the fitted value; compute's is that of the last rung.
    """
    times = [positive_median(list(rung.values())) for rung in rungs]
    fitted = falling_fit([time.value for time in times], [time.blocks for time in times])
    stalls = []
    for i in range(len(rungs) - 1):
        value = max(0.0, fitted[i] - fitted[i + 1])
        stalls.append(_share(value, _paired(rungs[i], rungs[i + 1])))
    last = times[-1]
    return stalls, _share(fitted[-1], last)


def _paired(upper: Mapping[int, float], lower: Mapping[int, float]) -> Interval:
    rounds = sorted(upper.keys() & lower.keys())
    if not rounds:
        return Interval(0.0, 0.0, np.inf, "none", 0)
    return paired_difference([lower[r] for r in rounds], [upper[r] for r in rounds])


def _share(value: float, interval: Interval) -> Share:
    return Share(value, min(value, max(0.0, interval.low)), max(value, interval.high))


WORTH_IT = 0.05
"""A stall below this fraction of the step is not what to work on first."""
SMALL = 0.10
"""Compute is the bottleneck where no stall's upper bound exceeds this fraction of the step."""

_DRAWS = 2000
_NORMAL_QUANTILE = 1.96


def resampled_medians(rows: npt.NDArray[np.float64], seed: int = 0) -> npt.NDArray[np.float64] | None:
    """Medians of every row over rounds drawn with replacement, the same rounds for all rows: `(rows, draws)`.

    Columns are rounds. A bootstrap of few rounds is too narrow, so its deviations are stretched as Student's t is.
    None where there are fewer than two rounds.
    """
    rounds = rows.shape[1]
    if rounds < 2:
        return None
    drawn = np.random.default_rng(seed).integers(rounds, size=(_DRAWS, rounds))
    middle = np.median(rows, axis=1, keepdims=True)
    wider = np.sqrt(rounds / (rounds - 1)) * t_quantile(rounds - 1) / _NORMAL_QUANTILE
    medians: npt.NDArray[np.float64] = middle + wider * (np.median(rows[:, drawn], axis=2) - middle)
    return medians


def drawn_stalls(rungs: Sequence[Mapping[int, float]]) -> npt.NDArray[np.float64] | None:
    """Resample the stalls between neighbouring rungs, `(stalls, draws)`, over the rounds that all rungs have.

    A stall is the difference of two medians (as it is shown), or the median of paired differences (free of drift). Half
    of the draws are of either kind, so that where the two disagree, that is part of the uncertainty.
    """
    if len(rungs) < 2:
        return None
    rounds = sorted(set.intersection(*(set(rung) for rung in rungs)))
    times = np.array([[rung[number] for number in rounds] for rung in rungs])
    paired, medians = resampled_medians(times[:-1] - times[1:]), resampled_medians(times)
    if paired is None or medians is None:
        return None
    paired[:, ::2] = (medians[:-1] - medians[1:])[:, ::2]
    return np.maximum(0.0, paired)


def observed_draws(shares: Mapping[str, Share], seed: int = 0) -> dict[str, npt.NDArray[np.float64]]:
    """Draws of the observed shares among these, normal with their bounds as 95 %; without bounds there are none."""
    random = np.random.default_rng(seed)
    return {
        name: np.maximum(0.0, random.normal(share.s, (share.high_s - share.low_s) / (2 * _NORMAL_QUANTILE), _DRAWS))
        for name, share in shares.items()
        if share.observed and np.isfinite(share.high_s)
    }


def split_share(whole: Share, fraction: float) -> tuple[Share, Share]:
    """Split a share into a fraction (0 to 1) and the rest; bounds are split likewise."""
    rest, observed = 1.0 - fraction, whole.observed
    first_s = whole.s * fraction
    if not np.isfinite(whole.high_s):  # no bound on the whole is none on either
        return Share(first_s, 0.0, np.inf, observed), Share(whole.s - first_s, 0.0, np.inf, observed)
    first = Share(first_s, whole.low_s * fraction, whole.high_s * fraction, observed)
    rest_s = whole.s - first_s
    return first, Share(rest_s, whole.low_s * rest, max(rest_s, whole.high_s * rest), observed)


@dataclass(frozen=True, slots=True, kw_only=True)
class StashTimes:
    """Seconds of a step in each of Stash's runs (see above). None: not measured, or no such run for this job."""

    ranks_per_machine: int
    t0_s: float | None = None
    t1_s: float | None = None
    tn_s: float | None = None
    t2_s: float | None = None
    t3_s: float | None = None

    @property
    def machine(self) -> str:
        """Name of the run on one machine, the baseline of the network: t1, or t0 where a machine has a single rank."""
        return "t0" if self.ranks_per_machine == 1 else "t1"

    @property
    def synthetic(self) -> str:
        """Name of the run with synthetic data on all ranks, the baseline of real data."""
        return "tn" if self.tn_s is not None else self.machine

    def of(self, name: str) -> float | None:
        """The time called `name`: t0, t1, tn, t2 or t3."""
        return {"t0": self.t0_s, "t1": self.t1_s, "tn": self.tn_s, "t2": self.t2_s, "t3": self.t3_s}[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class StashStall:
    """One difference `more - less`, and the run that it is a percentage of."""

    more: str
    less: str
    of: str
    s: float
    of_s: float

    @property
    def percent(self) -> float:
        """Percentage of its own denominator."""
        return 100 * self.s / self.of_s if self.of_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StashStalls:
    """Stash's four stalls. None: not measured, or absent in this job."""

    interconnect: StashStall | None
    network: StashStall | None
    prep: StashStall | None
    fetch: StashStall | None


def stash_stalls(times: StashTimes) -> StashStalls:
    """The paper's formulas over `times`, floored where the paper floors."""
    machine, synthetic = times.machine, times.synthetic
    return StashStalls(
        interconnect=_stall(times, "t1", "t0", of="t1", floor=True),
        network=_stall(times, "tn", machine, of=machine),
        prep=_stall(times, "t3", synthetic, of="t3", floor=True),
        fetch=_stall(times, "t2", "t3", of="t2"),
    )


def _stall(times: StashTimes, more: str, less: str, *, of: str, floor: bool = False) -> StashStall | None:
    more_s, less_s, of_s = times.of(more), times.of(less), times.of(of)
    if more_s is None or less_s is None or of_s is None:
        return None
    s = more_s - less_s
    return StashStall(more=more, less=less, of=of, s=max(0.0, s) if floor else s, of_s=of_s)


def times_of_parts(
    *,
    compute_s: float,
    copy_s: float | None,
    interconnect_s: float | None,
    network_s: float | None,
    prep_s: float | None,
    fetch_s: float | None,
    cold_step_s: float | None,
    world_size: int,
    nodes: int,
) -> StashTimes:
    """Compose Stash's runs from the parts of one step, which were measured in one launch.

    Synthetic data lies in host memory and is copied to the device at every step, so the copy belongs to t0 and to
    all that follow: t0 = compute + copy, t1 = t0 + interconnect, tN = t1 + network. The step as it is counts as warm:
    t3 = the synthetic time + prep + fetch. So whatever the job still waits for storage with warm files is in Stash's
    CPU stall, as it was there wherever the data did not fit into memory. t2 is the cold step.
    """
    ranks = world_size // nodes
    alone_s = compute_s + (copy_s or 0.0)
    inside_s = alone_s + (interconnect_s or 0.0)
    synthetic_s = inside_s + (network_s or 0.0)
    is_divided = world_size == 1 or interconnect_s is not None or network_s is not None
    # Over several nodes, an exchange that was measured only as a whole says nothing of one machine's.
    machine_known = ranks > 1 and (nodes == 1 or interconnect_s is not None)
    data_s = None if prep_s is None else prep_s + (fetch_s or 0.0)
    return StashTimes(
        ranks_per_machine=ranks,
        t0_s=alone_s if is_divided else None,
        t1_s=inside_s if machine_known else None,
        tn_s=synthetic_s if nodes > 1 else None,
        t2_s=cold_step_s if data_s is not None else None,
        t3_s=synthetic_s + data_s if data_s is not None else None,
    )
