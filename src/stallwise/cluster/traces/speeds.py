"""Which speeds the jobs of a trace have by placement: measured with them, from layer profiles, or flat factors."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from stallwise.cluster.speed import Penalty, Speed
from stallwise.cluster.topology import Cluster
from stallwise.cluster.traces.measured import Measured, beside
from stallwise.cluster.traces.rows import Trace
from stallwise.errors import UnknownNameError

_LAYERS = "layer_profiles"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Speed on a cluster (layer profiles price the links of its levels), and the models that have one."""

    on: Callable[[Cluster], Speed | None]
    """None: nothing is known, and placement costs nothing."""
    models: Collection[str] | None = None
    """None: any model will do, or the reader has looked at every one."""


def speeds_of(trace: Trace, path: Path, measured: Measured, flat: tuple[float, ...] | None) -> tuple[Trace, Speeds]:
    """The trace with a note on where its speeds come from, and those."""
    if flat is not None:
        penalty = Penalty(flat)
        return _noted(trace, "Speed by the widest border a gang crosses, alike for all jobs: --slowdown."), Speeds(
            on=lambda _: penalty
        )
    if trace.speed is not None:
        return trace, Speeds(on=lambda _: trace.speed)
    found = None
    if trace.format == "Dally" or (measured.profiles is not None and any(job.model for job in trace.jobs)):
        found = beside(path, measured, _LAYERS)
    if found is None:
        said = "Nothing is known about the speed of these jobs by placement: where they run costs nothing."
        return _noted(trace, said), Speeds(on=lambda _: None)
    return _layered(trace, found, measured)


def _layered(trace: Trace, folder: Path, measured: Measured) -> tuple[Trace, Speeds]:
    from stallwise.cluster.profiles import NETWORKS, LayerProfiles, read_profiles

    if measured.network not in NETWORKS:
        raise UnknownNameError(f"network ({', '.join(NETWORKS)})", measured.network, NETWORKS)
    known = read_profiles(folder)
    network = NETWORKS[measured.network]
    said = f"Speed by placement from the layer profiles in {folder.name}, {measured.network} network."
    speeds = Speeds(on=lambda cluster: LayerProfiles(known, network, levels=cluster.levels), models=tuple(known))
    return _noted(trace, said), speeds


def _noted(trace: Trace, said: str) -> Trace:
    return replace(trace, notes=(*trace.notes, said))
