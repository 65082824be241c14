"""Speeds of the jobs of a trace by placement: measured with them, from layer profiles, or flat factors.

Measurements are searched beside the trace, in the folders above it, or where the caller says.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from stallwise.cluster.speed.base import Penalty, Speed
from stallwise.cluster.topology import Cluster
from stallwise.cluster.traces.rows import Trace
from stallwise.errors import InputError, UnknownNameError
from stallwise.sentences import Sentence

_UP = 3  # folders that are searched, from that of the trace upwards


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeeds:
    """Measurements that give the jobs of a trace their speeds."""

    profiles: Path | None = None
    """Folder of layer profiles or applications, or Gavel's table; None: searched beside the trace."""
    own: tuple[tuple[str, Path], ...] = ()
    """Models of the trace, each with the folder of a run or a layer file that gives its speed."""
    network: str = "released"
    """Links of layer profiles, as `profiles.network_of` reads them."""
    gpu: str = "v100"
    """Worker type of Gavel's table."""


def find_profiles(trace: Path, measured: MeasuredSpeeds, *names: str) -> Path | None:
    """Find the first of `names` that exists, from the folder of the trace upwards; `measured.profiles` goes first."""
    if measured.profiles is not None:
        if not measured.profiles.exists():
            raise InputError(f"There is nothing at {measured.profiles}. Check the path.", fields=("profiles",))
        return measured.profiles
    folder = trace.resolve().parent
    for _ in range(_UP):
        for name in names:
            if (folder / name).exists():
                return folder / name
        folder = folder.parent
    return None


def require_profiles(trace: Path, measured: MeasuredSpeeds, *names: str, why: str) -> Path:
    """Find profiles as `find_profiles` does; raise `InputError` where there are none, because the trace needs them."""
    path = find_profiles(trace, measured, *names)
    if path is None:
        raise InputError(
            f"{trace.name} {why}, and there is no {names[0]} beside it. Say where it is.", fields=("profiles",)
        )
    return path


_LAYERS = "layer_profiles"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSpeeds:
    """Speed on a cluster (layer profiles use the links of its levels), and the models that have one."""

    on: Callable[[Cluster], Speed | None]
    """Returns None where the speed is unknown, and placement costs nothing."""
    models: Collection[str] | None = None
    """None: every model is accepted, or the reader has checked them."""


def trace_speeds(
    trace: Trace, path: Path, measured: MeasuredSpeeds, flat: tuple[float, ...] | None
) -> tuple[Trace, TraceSpeeds]:
    """Return the trace with a note on where its speeds come from, and the speeds."""
    if measured.own and (flat is not None or trace.speed is not None):
        other = "flat slowdowns" if flat is not None else f"what was measured with {trace.source}"
        raise InputError(
            f"Speeds come from own profiles or from {other}, not from both. Leave one out.",
            fields=("profile", "slowdown") if flat is not None else ("profile",),
        )
    if flat is not None:
        penalty = Penalty(flat)
        return _noted(
            trace, Sentence("speed.by-border", "Speed by the widest border a gang crosses, alike for all jobs.")
        ), TraceSpeeds(on=lambda cluster: penalty.inside(cluster))
    if trace.speed is not None:
        return trace, TraceSpeeds(on=lambda _: trace.speed)
    folder = None
    if trace.format == "Dally" or (measured.profiles is not None and any(job.model for job in trace.jobs)):
        folder = find_profiles(path, measured, _LAYERS)
    if folder is None and not measured.own:
        note = Sentence(
            "speed.unknown",
            "Nothing is known about the speed of these jobs by placement: where they run costs nothing.",
        )
        return _noted(trace, note), TraceSpeeds(on=lambda _: None)
    return _layered(trace, folder, measured)


def _layered(trace: Trace, folder: Path | None, measured: MeasuredSpeeds) -> tuple[Trace, TraceSpeeds]:
    from stallwise.cluster.speed._profiles import LayerProfiles, network_of, own_profile, read_profiles

    network = network_of(measured.network)
    _check_names(trace, measured)
    own = {name: own_profile(path) for name, path in measured.own}
    profiles = (read_profiles(folder) if folder is not None else {}) | {name: it.gradients for name, it in own.items()}
    sources = [f"the layer profiles in {folder.name}"] if folder is not None else []
    sources += [f"{path} for {name}" for name, path in measured.own]
    note = Sentence("speed.from-profiles", f"Speed by placement from {', '.join(sources)}, network {measured.network}.")
    speeds = TraceSpeeds(
        on=lambda cluster: LayerProfiles(profiles, network, levels=cluster.levels, own=own), models=tuple(profiles)
    )
    return _noted(trace, note), speeds


def _check_names(trace: Trace, measured: MeasuredSpeeds) -> None:
    """Reject a profile that no job of the trace would use: its name is a typo."""
    models = sorted({job.model for job in trace.jobs if job.model is not None})
    for name, _ in measured.own:
        if name not in models:
            raise UnknownNameError(f"model in {trace.source}", name, models)


def _noted(trace: Trace, note: Sentence) -> Trace:
    return replace(trace, notes=(*trace.notes, note))
