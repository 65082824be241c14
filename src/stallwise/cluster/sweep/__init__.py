"""Sweeps: many simulations side by side, over policies, clusters, loads and seeds.

| module  | contents                                                      |
| ------- | ------------------------------------------------------------- |
| cases   | what is simulated, and one simulation after the other         |
| sweep   | `run_sweep`: cases to an engine, results to a journal         |
| local   | engine on this machine: threads, then worker processes        |
| ray     | engine on a Ray cluster                                       |
| results | results on disk, one line of JSON each; interrupted sweeps    |
| compare | policies side by side                                         |
"""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.cluster.sweep.cases import NamedCluster, SimulationResult, Sweep
    from stallwise.cluster.sweep.compare import SimulationComparison, compare_policies
    from stallwise.cluster.sweep.local import LocalEngine
    from stallwise.cluster.sweep.ray import RayEngine
    from stallwise.cluster.sweep.results import ResultsFile
    from stallwise.cluster.sweep.sweep import run_sweep

__all__ = [
    "LocalEngine",
    "NamedCluster",
    "RayEngine",
    "ResultsFile",
    "SimulationComparison",
    "SimulationResult",
    "Sweep",
    "compare_policies",
    "run_sweep",
]

__getattr__ = loader(
    __name__,
    {
        "LocalEngine": "local",
        "NamedCluster": "cases",
        "RayEngine": "ray",
        "ResultsFile": "results",
        "SimulationComparison": "compare",
        "SimulationResult": "cases",
        "Sweep": "cases",
        "compare_policies": "compare",
        "run_sweep": "sweep",
    },
)
