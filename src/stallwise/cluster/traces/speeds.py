"""Which speeds the jobs of a trace have by placement: measured with them, from layer profiles, or flat factors."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from stallwise.cluster.speed import Penalty, Speed
from stallwise.cluster.topology import Cluster
from stallwise.cluster.traces.measured import Measured, beside
from stallwise.cluster.traces.rows import Trace
from stallwise.errors import InputError, UnknownNameError

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
    if measured.own and (flat is not None or trace.speed is not None):
        other = "--slowdown" if flat is not None else f"what was measured with {trace.source}"
        raise InputError(f"Speeds come from --profile or from {other}, not from both. Leave one out.")
    if flat is not None:
        penalty = Penalty(flat)
        return _noted(trace, "Speed by the widest border a gang crosses, alike for all jobs: --slowdown."), Speeds(
            on=lambda cluster: penalty.inside(cluster)
        )
    if trace.speed is not None:
        return trace, Speeds(on=lambda _: trace.speed)
    found = None
    if trace.format == "Dally" or (measured.profiles is not None and any(job.model for job in trace.jobs)):
        found = beside(path, measured, _LAYERS)
    if found is None and not measured.own:
        said = "Nothing is known about the speed of these jobs by placement: where they run costs nothing."
        return _noted(trace, said), Speeds(on=lambda _: None)
    return _layered(trace, found, measured)


def _layered(trace: Trace, folder: Path | None, measured: Measured) -> tuple[Trace, Speeds]:
    from stallwise.cluster.own_profiles import own_profile
    from stallwise.cluster.profiles import LayerProfiles, network_of, read_profiles

    network = network_of(measured.network)
    _check_names(trace, measured)
    own = {name: own_profile(path) for name, path in measured.own}
    known = (read_profiles(folder) if folder is not None else {}) | {name: it.gradients for name, it in own.items()}
    sent = {name: it.messages for name, it in own.items()}
    sources = [f"the layer profiles in {folder.name}"] if folder is not None else []
    sources += [f"{path} for {name}" for name, path in measured.own]
    said = f"Speed by placement from {', '.join(sources)}, network {measured.network}."
    speeds = Speeds(
        on=lambda cluster: LayerProfiles(known, network, levels=cluster.levels, messages=sent), models=tuple(known)
    )
    return _noted(trace, said), speeds


def _check_names(trace: Trace, measured: Measured) -> None:
    """A profile that no job would use is a slip of the pen."""
    models = sorted({job.model for job in trace.jobs if job.model is not None})
    for name, _ in measured.own:
        if name not in models:
            raise UnknownNameError(f"model in {trace.source}", name, models)


def _noted(trace: Trace, said: str) -> Trace:
    return replace(trace, notes=(*trace.notes, said))
