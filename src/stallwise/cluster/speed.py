"""How fast a job runs on a placement: what the simulator asks, and the two simplest answers.

A placement is known by its *shape*: how many domains of each level the gang touches, and with how many jobs it shares
the busiest link of each level. Two placements of one shape run equally fast, so rates are computed once per shape.
`profiles.py` answers from layer profiles and collectives, `tables.py` from measured step times.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self, cast

from stallwise.cluster.job import Job
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError


@dataclass(frozen=True, slots=True)
class Shape:
    """Where a gang sits, up to symmetry."""

    gpus: int
    spans: tuple[int, ...]
    """Domains touched, per level of the cluster from the tightest to the widest."""
    sharers: tuple[int, ...] = ()
    """Jobs on the busiest link out of a domain of that level, this one included; empty means alone everywhere."""
    parts: tuple[int, ...] = ()
    """GPUs on each machine, most first, for speeds that tell 4+4 from 7+1 (`by_parts`); else empty."""

    def widest(self) -> int:
        """Levels whose border the gang crosses: 0 inside one tightest domain, `len(spans)` across the widest."""
        return max((level + 1 for level, count in enumerate(self.spans) if count > 1), default=0)


class Speed(Protocol):
    """Seconds of work done per second."""

    def kind(self, job: Job) -> Hashable:
        """Jobs of one kind and gang run equally fast on equal shapes."""
        ...

    def rate(self, job: Job, shape: Shape) -> float:
        """Above 0, at most 1: 1 is full speed, what `Job.work_s` is measured at."""
        ...


@dataclass(frozen=True, slots=True)
class FullSpeed:
    """Placement does not matter (traces that say nothing about models)."""

    def kind(self, job: Job) -> Hashable:
        """All alike."""
        return None

    def rate(self, job: Job, shape: Shape) -> float:
        """Always 1."""
        return 1.0


@dataclass(frozen=True, slots=True)
class Penalty:
    """A flat factor by the widest border a gang crosses: `by_level[0]` inside a machine, and so on out."""

    by_level: tuple[float, ...]
    machine: int = 0
    """Which level of the shapes the machine is: above 0 where machines have slots, whose borders cost nothing."""
    shares: ClassVar[bool] = True  # jobs on one link slow each other

    def __post_init__(self) -> None:
        if not self.by_level or not all(0 < factor <= 1 for factor in self.by_level):
            raise InputError(f"Speeds by level must lie above 0 and at most at 1, not {self.by_level}.")

    def inside(self, cluster: Cluster) -> Self:
        """The same on a cluster, whose machines may have slots."""
        return replace(self, machine=cluster.machine)

    def kind(self, job: Job) -> Hashable:
        """All alike."""
        return None

    def rate(self, job: Job, shape: Shape) -> float:
        """The factor of the widest border, shared where others cross it too."""
        width = min(max(0, shape.widest() - self.machine), len(self.by_level) - 1)
        alone = self.by_level[width]
        sharers = max(shape.sharers, default=1)
        return alone / (alone + (1 - alone) * sharers)


def on_its_kind(speed: Speed, cluster: Cluster) -> Speed:
    """The speed on a cluster of one named kind of GPU: as measured there, or as it is where kinds were not measured."""
    measured = getattr(speed, "of_kind", None)
    if measured is None or len(set(cluster.kinds)) != 1:
        return speed
    return cast("Speed", measured(cluster.kinds[0]))


def even_parts(gpus: int, machines: int) -> tuple[int, ...]:
    """A gang spread as evenly as it goes, most GPUs first."""
    least, more = divmod(gpus, machines)
    return (least + 1,) * more + (least,) * (machines - more)
