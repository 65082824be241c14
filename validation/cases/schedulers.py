"""Policies that compute allocations in rounds, against the simulators they were published with. Cluster rows V7 to V9.

Tolerances, written before anything was computed: Gavel's makespans within 3 %, its average completion times within 5 %
and what knowing the kinds of GPUs is worth within 5 points. Optimus is an exact rule on measured tables: 5 %. Pollux'
genetic search is replaced by an exact one and its jobs' speeds are known instead of fitted on the way: 10 %, and 5
points (the margin of its README) for what it gains on the other two. Its README says 48 % against Optimus, while the
means it publishes make that 51.6 %; the row of the latter was added after our figure was known.
"""

import csv
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import ClassVar

from stallwise.cluster.job import Job
from stallwise.cluster.policies.catalog import policy_named
from stallwise.cluster.simulator import RestartCosts, simulate
from stallwise.cluster.speed._tables import Apps, GavelThroughputs
from stallwise.cluster.speed.base import Shape, Speed
from stallwise.cluster.topology import Cluster
from stallwise.cluster.traces import Trace, read_trace
from validation.cases.cluster import pollux_tiresias_jct
from validation.harness import Case, data_file

_GAVEL = "github.com/stanford-futuredata/gavel at c4fa400, run with rounds of 360 s"
_POLLUX = "github.com/petuum/adaptdl, osdi21-artifact, README and results-jobload"
_ROUNDS = "realised in rounds of 360 s by target over received share; placement costs nothing."
_ALIKE = f"Linear program, in closed form as all GPUs are alike, {_ROUNDS}"
_APART = f"Linear program by HiGHS where kinds are known, in closed form over one pool where they are not, {_ROUNDS}"
_KINDS = {"v100": 8, "p100": 16, "k80": 24}
_WORKLOADS = range(1, 9)
_MEANS = 100 * (2751.1 / 5681.9 - 1)


@dataclass(frozen=True, slots=True)
class _Anywhere(Speed):
    """Gavel's throughputs by kind of GPU; where a gang lies costs nothing, as in the simulator it came with."""

    table: GavelThroughputs
    compares_kinds: ClassVar[bool] = True

    def kind(self, job: Job) -> None:
        """All alike."""

    def rate(self, job: Job, shape: Shape) -> float:
        """Full speed everywhere."""
        return 1.0

    def on_kind(self, job: Job, kind: str) -> float:
        """As measured."""
        return self.table.on_kind(job, kind)


def _trace(folder: Path, name: str) -> Trace:
    return read_trace(data_file(folder, f"cluster_traces/{name}.csv"))


@cache
def _makespan(policy: str, folder: Path) -> float:
    jobs = _trace(folder, "gavel/physical_cluster/minimize_makespan").jobs
    return simulate(jobs, Cluster.counts(gpus=1, machines=36), policy_named(policy)).makespan_s


@cache
def _mixed(policy: str, folder: Path) -> float:
    """Average completion time of 96 jobs on 8 V100, 16 P100 and 24 K80."""
    trace = _trace(folder, "gavel/physical_cluster/max_min_fairness")
    assert isinstance(trace.speed, GavelThroughputs)
    names = tuple(name for name, count in _KINDS.items() for _ in range(count))
    cluster = replace(Cluster.counts(gpus=1, machines=len(names)), kinds=names)
    return float(simulate(trace.jobs, cluster, policy_named(policy), speed=_Anywhere(trace.speed)).jct_s.mean())


def _awareness(folder: Path) -> float:
    return 100 * (_mixed("gavel", folder) / _mixed("gavel-unaware", folder) - 1)


@cache
def _workloads(folder: Path) -> tuple[Apps, list[list[Job]]]:
    """Pollux' eight workloads on one set of tables, so that what is looked up for one serves the next."""
    apps, out = Apps.read(folder / "cluster_traces/pollux/app_profiles"), []
    for number in _WORKLOADS:
        with data_file(folder, f"cluster_traces/pollux/workloads/workload-{number}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        keys = ("num_replicas", "batch_size")
        out.append([apps.job(r["name"], float(r["time"]), r["application"], *(int(r[k]) for k in keys)) for r in rows])
    return apps, out


@cache
def _elastic(policy: str, folder: Path) -> float:
    """Mean over the workloads of average completion times, 16 machines of 4 GPUs; a change costs 30 s."""
    data_file(folder, "cluster_traces/pollux/workloads/workload-1.csv")
    cluster, costs = Cluster.counts(gpus=4, machines=16), RestartCosts(restart_s=30.0, first_start_s=30.0)
    apps, workloads = _workloads(folder)
    made = [simulate(jobs, cluster, policy_named(policy), speed=apps, costs=costs) for jobs in workloads]
    return sum(float(outcome.jct_s.mean()) for outcome in made) / len(made)


def _optimus(folder: Path) -> float:
    return _elastic("optimus", folder)


def _tiresias(folder: Path) -> float:
    return sum(pollux_tiresias_jct(folder, number) for number in _WORKLOADS) / len(_WORKLOADS)


def _against(other: Callable[[Path], float], folder: Path) -> float:
    return 100 * (_elastic("pollux", folder) / other(folder) - 1)


def _saved(folder: Path) -> float:
    return _against(_optimus, folder)


def _in_order(folder: Path) -> float:
    return float(_elastic("pollux", folder) < _tiresias(folder) < _elastic("optimus", folder))


def _v7(
    case: str, published: float, unit: str, tolerance: float, method: str, compute: Callable[[Path], float]
) -> Case:
    return Case(
        id="cluster-V7",
        case=case,
        source=_POLLUX,
        method=method,
        published=published,
        unit=unit,
        tolerance=tolerance,
        compute=compute,
    )


def _v8(name: str, policy: str, published: float) -> Case:
    return Case(
        id="cluster-V8",
        case=f"makespan, 100 jobs on 36 V100, {name}",
        source=_GAVEL,
        method=_ALIKE,
        published=published,
        unit="s",
        tolerance=0.03 * published,
        compute=partial(_makespan, policy),
    )


def _v9(name: str, published: float, unit: str, tolerance: float, compute: Callable[[Path], float]) -> Case:
    return Case(
        id="cluster-V9",
        case=f"{name}, 96 jobs on 8 V100, 16 P100 and 24 K80, least attained service",
        source=_GAVEL,
        method=_APART,
        published=published,
        unit=unit,
        tolerance=tolerance,
        compute=compute,
    )


_GREEDY = "GPUs one by one to the largest saving, on measured step times; rounds of a minute."
_EXACT = "Power mean of speedups over configurations, exact instead of the genetic search; rounds of a minute."

CASES = [
    _v7(
        "average JCT, mean of Pollux workloads 1 to 8, Optimus", 5681.9, "s", 0.05 * 5681.9, _GREEDY,
        _optimus,
    ),
    _v7(
        "average JCT, mean of Pollux workloads 1 to 8, Pollux", 2751.1, "s", 0.10 * 2751.1, _EXACT,
        partial(_elastic, "pollux"),
    ),
    _v7("Pollux is quicker than Tiresias, and that than Optimus", 1.0, "", 0.0, _EXACT, _in_order),
    _v7("average JCT of Pollux against Optimus, as its README says", -48.0, "%", 5.0, _EXACT, _saved),
    _v7("average JCT of Pollux against Optimus, by its own two means", _MEANS, "%", 5.0, _EXACT, _saved),
    _v7("average JCT of Pollux against Tiresias", -32.0, "%", 5.0, _EXACT, partial(_against, _tiresias)),
    _v8("max-min fairness (least attained service)", "gavel", 62279.6),
    _v8("finish-time fairness", "gavel-ftf", 61920.8),
    _v8("least makespan", "gavel-makespan", 60402.6),
    _v9("average JCT, kinds of GPUs not known", 19989.0, "s", 0.05 * 19989.0, partial(_mixed, "gavel-unaware")),
    _v9("average JCT, kinds of GPUs known", 14623.0, "s", 0.05 * 14623.0, partial(_mixed, "gavel")),
    _v9("average JCT, known against not known", 100 * (14623 / 19989 - 1), "%", 5.0, _awareness),
]  # fmt: skip
