"""Policies side by side: the figures of each over the seeds of a sweep, and which is best."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

from stallwise.cluster._outcome import Metrics
from stallwise.cluster.policies._user import is_file
from stallwise.sentences import Sentence
from stallwise.units import show_percent

if TYPE_CHECKING:
    from stallwise.cluster.job import TraceLoad
    from stallwise.cluster.sweep.cases import SimulationResult, Sweep
    from stallwise.cluster.traces.rows import Trace

FIGURES: tuple[str, ...] = tuple(field.name for field in fields(Metrics) if field.name != "jobs")
# Of these more is better; of all others less is.
_MORE = frozenset({"utilisation", "occupation"})


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyStanding:
    """Figures of one policy in one setting, over all seeds."""

    policy: str
    label: str
    """The policy in tables and sentences: a file without its folders, where that tells it from the others."""
    clairvoyant: bool
    """Whether it reads durations, which are unknown for a real job."""
    results: tuple["SimulationResult", ...]

    @cached_property
    def mean(self) -> dict[str, float]:
        """Every figure, averaged over the seeds."""
        return {name: sum(self.values(name)) / len(self.results) for name in FIGURES}

    def values(self, figure: str) -> tuple[float, ...]:
        """One figure, seed by seed."""
        return tuple(float(getattr(result.metrics, figure)) for result in self.results)

    def spread(self, figure: str) -> tuple[float, float]:
        """Least and most over the seeds."""
        values = self.values(figure)
        return min(values), max(values)

    def interval(self, figure: str) -> tuple[float, float]:
        """95 % interval of the mean over seeds: mean ± t · s / √n (Student), from two seeds on."""
        return mean_interval(self.values(figure))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SweepSetting:
    """One cluster at one load, and how every policy did there."""

    cluster: str
    gpus: int
    load: float
    """Arrival rate as a multiple of that in the trace."""
    demand: "TraceLoad"
    """What the jobs ask of the cluster."""
    standings: tuple[PolicyStanding, ...]

    def best(self, figure: str) -> float:
        """The best mean of a figure among the policies."""
        values = [standing.mean[figure] for standing in self.standings]
        return max(values) if figure in _MORE else min(values)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulationComparison:
    """All settings of a sweep over one trace."""

    source: str
    format: str
    jobs: int
    seeds: int
    contention: bool
    arrivals: str
    settings: tuple[SweepSetting, ...]
    notes: tuple[Sentence, ...]

    @property
    def results(self) -> list["SimulationResult"]:
        return [result for setting in self.settings for standing in setting.standings for result in standing.results]


def compare_policies(
    trace: "Trace", sweep: "Sweep", results: list["SimulationResult"], notes: tuple[Sentence, ...] = ()
) -> SimulationComparison:
    """Group the results of a sweep by setting and policy."""
    from stallwise.cluster.job import load
    from stallwise.cluster.policies.catalog import policy_named
    from stallwise.cluster.sweep.cases import draw_jobs

    labels = _labels(sweep.policies)
    settings = []
    for number, target in enumerate(sweep.clusters):
        for factor in sweep.loads:
            members = [one for one in results if one.case.cluster == number and one.case.load == factor]
            standings = tuple(
                PolicyStanding(
                    policy=policy,
                    label=labels[policy],
                    clairvoyant=policy_named(policy, sweep.sources).clairvoyant,
                    results=tuple(one for one in members if one.case.policy == policy),
                )
                for policy in sweep.policies
            )
            demand = load(draw_jobs(sweep, factor, sweep.seeds[0]), target.cluster.gpus)
            settings.append(
                SweepSetting(
                    cluster=target.name, gpus=target.cluster.gpus, load=factor, demand=demand, standings=standings
                )
            )
    arrivals = sweep.arrivals if isinstance(sweep.arrivals, str) else f"at the rhythm of {sweep.arrivals.source}"
    return SimulationComparison(
        source=trace.source,
        format=trace.format,
        jobs=len(trace.jobs),
        seeds=len(sweep.seeds),
        contention=sweep.contention,
        arrivals=arrivals,
        settings=tuple(settings),
        notes=(*trace.notes, *notes),
    )


def _labels(policies: Sequence[str]) -> dict[str, str]:
    """Return the names of policies in tables; of files without their folders, unless two would be alike."""
    short = {name: name.rpartition("/")[2] if is_file(name) else name for name in policies}
    return short if len(set(short.values())) == len(policies) else {name: name for name in policies}


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of independent values; unbounded for a single one."""
    from stallwise.model.statistics.intervals import t_quantile

    mean, count = sum(values) / len(values), len(values)
    if count < 2:
        return -math.inf, math.inf
    half = t_quantile(count - 1) * math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1) / count)
    return mean - half, mean + half


def verdict(setting: SweepSetting) -> Sentence | None:
    """Name the policy with the least mean completion time among those that could run on a real cluster, and its lead.

    With several seeds the first two are compared seed by seed, on the same arrivals; a lead whose 95 % interval holds
    0 is none.
    """
    real = [standing for standing in setting.standings if not standing.clairvoyant] or list(setting.standings)
    ranked = sorted(real, key=lambda standing: standing.mean["jct_mean_s"])
    first = ranked[0]
    if len(ranked) == 1:
        if len(setting.standings) == 1:
            return None
        return Sentence(
            "policies.without-durations", f"{first.label} is the only policy here that does not read durations."
        )
    second = ranked[1]
    lead = 1 - first.mean["jct_mean_s"] / second.mean["jct_mean_s"]
    if lead < 0.0005:
        return Sentence("policies.equal", f"{first.label} and {second.label} have the least mean completion time.")
    sentence = f"{first.label} has the least mean completion time, {show_percent(lead)} below {second.label}"
    if len(first.results) > 1 and _lead_s(first, second)[0] <= 0:
        words = f"{sentence}, but {len(first.results)} seeds do not tell the two apart."
        return Sentence("policies.not-told-apart", words, seeds=len(first.results), lead=lead)
    longer = first.mean["makespan_s"] / min(standing.mean["makespan_s"] for standing in real) - 1
    makespan = f"; its makespan is {show_percent(longer)} longer than the shortest" if longer >= 0.0005 else ""
    return Sentence("policies.least-mean", f"{sentence}{makespan}.", lead=lead)


def _lead_s(first: PolicyStanding, second: PolicyStanding) -> tuple[float, float]:
    """95 % interval of how much longer the second's jobs take, seed by seed."""
    pairs = zip(first.values("jct_mean_s"), second.values("jct_mean_s"), strict=True)
    return mean_interval([later - earlier for earlier, later in pairs])
