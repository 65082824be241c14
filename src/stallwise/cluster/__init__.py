"""Shared clusters: jobs, topology, speed by placement, scheduling policies, and the simulator that runs them.

| module or package | contents                                                                   |
| ----------------- | -------------------------------------------------------------------------- |
| job               | `Job`, arrivals, the load of a trace                                       |
| topology          | `Cluster`: GPUs as a tree; `parse_cluster` reads counts and topology files |
| traces            | `read_trace`: published formats, and the speeds measured with them         |
| speed             | how fast a job runs by placement                                           |
| policies          | who gets which GPUs: `Policy`, the catalog, policies in rounds             |
| engine            | compiled decisions and the event loop                                      |
| simulator         | `simulate`: a list of jobs under one policy; `_outcome` is what comes out  |
| sweep             | many simulations side by side, and their comparison                        |
| live              | the policies for a real scheduler                                          |
"""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.cluster._outcome import Metrics, Outcome
    from stallwise.cluster.job import Job
    from stallwise.cluster.live import Scheduler
    from stallwise.cluster.policies.base import Policy
    from stallwise.cluster.policies.catalog import policy_named
    from stallwise.cluster.simulator import simulate
    from stallwise.cluster.speed.base import Speed
    from stallwise.cluster.sweep.cases import NamedCluster, SimulationResult, Sweep
    from stallwise.cluster.sweep.compare import SimulationComparison, compare_policies
    from stallwise.cluster.sweep.sweep import run_sweep
    from stallwise.cluster.topology import Cluster, parse_cluster
    from stallwise.cluster.traces._formats import read_trace
    from stallwise.cluster.traces.rows import Trace

__all__ = [
    "Cluster",
    "Job",
    "Metrics",
    "NamedCluster",
    "Outcome",
    "Policy",
    "Scheduler",
    "SimulationComparison",
    "SimulationResult",
    "Speed",
    "Sweep",
    "Trace",
    "compare_policies",
    "parse_cluster",
    "policy_named",
    "read_trace",
    "run_sweep",
    "simulate",
]

__getattr__ = loader(
    __name__,
    {
        "Cluster": "topology",
        "Job": "job",
        "Metrics": "_outcome",
        "NamedCluster": "sweep.cases",
        "Outcome": "_outcome",
        "Policy": "policies.base",
        "Scheduler": "live",
        "SimulationComparison": "sweep.compare",
        "SimulationResult": "sweep.cases",
        "Speed": "speed.base",
        "Sweep": "sweep.cases",
        "Trace": "traces.rows",
        "compare_policies": "sweep.compare",
        "parse_cluster": "topology",
        "policy_named": "policies.catalog",
        "read_trace": "traces._formats",
        "run_sweep": "sweep.sweep",
        "simulate": "simulator",
    },
)
