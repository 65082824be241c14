"""Policies side by side: what a sweep says about each, over its seeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

from stallwise.cluster.outcome import Metrics

if TYPE_CHECKING:
    from stallwise.cluster.job import Load
    from stallwise.cluster.sweep import Run, Sweep
    from stallwise.cluster.traces.rows import Trace

FIGURES: tuple[str, ...] = tuple(field.name for field in fields(Metrics) if field.name != "jobs")
# Of these more is better; of all others less is.
_MORE = frozenset({"utilisation", "occupation"})


@dataclass(frozen=True, kw_only=True, eq=False)
class Standing:
    """One policy in one setting, over all seeds."""

    policy: str
    clairvoyant: bool
    """It reads durations, which nobody knows of a real job."""
    runs: tuple["Run", ...]

    @cached_property
    def mean(self) -> dict[str, float]:
        """Every figure, averaged over the seeds."""
        return {name: sum(self.values(name)) / len(self.runs) for name in FIGURES}

    def values(self, figure: str) -> tuple[float, ...]:
        """One figure, seed by seed."""
        return tuple(float(getattr(run.metrics, figure)) for run in self.runs)

    def spread(self, figure: str) -> tuple[float, float]:
        """Least and most over the seeds."""
        values = self.values(figure)
        return min(values), max(values)

    def interval(self, figure: str) -> tuple[float, float]:
        """95 % interval of the mean over seeds: mean ± t · s / √n (Student), from two seeds on."""
        return mean_interval(self.values(figure))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """One cluster at one load, and how every policy did there."""

    cluster: str
    gpus: int
    load: float
    """How many times faster than in the trace jobs come."""
    asked: "Load"
    standings: tuple[Standing, ...]

    def best(self, figure: str) -> float:
        """The best mean of a figure among the policies."""
        values = [standing.mean[figure] for standing in self.standings]
        return max(values) if figure in _MORE else min(values)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """All settings of a sweep over one trace."""

    source: str
    format: str
    jobs: int
    seeds: int
    contention: bool
    arrivals: str
    settings: tuple[Setting, ...]
    notes: tuple[str, ...]

    @property
    def runs(self) -> list["Run"]:
        """Every simulation."""
        return [run for setting in self.settings for standing in setting.standings for run in standing.runs]


def compared(trace: "Trace", sweep: "Sweep", runs: list["Run"], notes: tuple[str, ...] = ()) -> Comparison:
    """The runs of a sweep, by setting and policy."""
    from stallwise.cluster.job import load
    from stallwise.cluster.policies import CLAIRVOYANT
    from stallwise.cluster.sweep import arrived

    settings = []
    for number, place in enumerate(sweep.places):
        for factor in sweep.loads:
            here = [run for run in runs if run.case.cluster == number and run.case.load == factor]
            standings = tuple(
                Standing(
                    policy=policy,
                    clairvoyant=policy.partition(":")[0] in CLAIRVOYANT,
                    runs=tuple(run for run in here if run.case.policy == policy),
                )
                for policy in sweep.policies
            )
            asked = load(arrived(sweep, factor, sweep.seeds[0]), place.cluster.gpus)
            settings.append(
                Setting(cluster=place.name, gpus=place.cluster.gpus, load=factor, asked=asked, standings=standings)
            )
    arrivals = sweep.arrivals if isinstance(sweep.arrivals, str) else f"at the rhythm of {sweep.arrivals.source}"
    return Comparison(
        source=trace.source,
        format=trace.format,
        jobs=len(trace.jobs),
        seeds=len(sweep.seeds),
        contention=sweep.contention,
        arrivals=arrivals,
        settings=tuple(settings),
        notes=(*trace.notes, *notes),
    )


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of independent values; unbounded for a single one."""
    from stallwise.model.intervals import t_quantile

    mean, count = sum(values) / len(values), len(values)
    if count < 2:
        return -math.inf, math.inf
    half = t_quantile(count - 1) * math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1) / count)
    return mean - half, mean + half


def verdict(setting: Setting) -> str:
    """Who has the least mean completion time, by how much, among those that could run on a real cluster.

    With several seeds the first two are compared seed by seed, on the same arrivals; a lead whose 95 % interval holds
    0 is none.
    """
    real = [standing for standing in setting.standings if not standing.clairvoyant] or list(setting.standings)
    ranked = sorted(real, key=lambda standing: standing.mean["jct_mean_s"])
    first = ranked[0]
    if len(ranked) == 1:
        return (
            f"{first.policy} is the only policy here that does not read durations."
            if len(setting.standings) > 1
            else ""
        )
    second = ranked[1]
    lead = 1 - first.mean["jct_mean_s"] / second.mean["jct_mean_s"]
    if lead < 0.0005:
        return f"{first.policy} and {second.policy} have the least mean completion time."
    if len(first.runs) > 1 and _lead_s(first, second)[0] <= 0:
        seeds = f"{len(first.runs)} seeds do not tell the two apart."
        return f"{first.policy} has the least mean completion time, {lead:.1%} under {second.policy}, but {seeds}"
    told = f"{first.policy} has the least mean completion time, {lead:.1%} under {second.policy}"
    longer = first.mean["makespan_s"] / min(standing.mean["makespan_s"] for standing in real) - 1
    return told + (f"; its makespan is {longer:.1%} over the shortest." if longer >= 0.0005 else ".")


def _lead_s(first: Standing, second: Standing) -> tuple[float, float]:
    """95 % interval of how much longer the second's jobs take, seed by seed."""
    pairs = zip(first.values("jct_mean_s"), second.values("jct_mean_s"), strict=True)
    return mean_interval([later - earlier for earlier, later in pairs])
