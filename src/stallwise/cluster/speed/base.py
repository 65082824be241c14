"""How fast a job runs on a placement: what every speed declares, and the two simplest ones.

A placement is known by its *shape*: how many domains of each level the gang touches, and with how many jobs it shares
the busiest link of each level. Two placements of one shape run equally fast, so rates are computed once per shape.
`_profiles.py` answers from layer profiles and collectives, `_tables.py` from measured step times.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from stallwise.cluster.job import Job
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError


@dataclass(frozen=True, slots=True)
class Shape:
    """The placement of a gang, up to symmetry."""

    gpus: int
    spans: tuple[int, ...]
    """Domains touched, per level of the cluster from the tightest to the widest."""
    sharers: tuple[int, ...] = ()
    """Jobs on the busiest link out of a domain of that level, this one included; empty means alone everywhere."""
    parts: tuple[int, ...] = ()
    """GPUs on each machine, most first, for speeds that tell 4+4 from 7+1 (`by_parts`); else empty."""

    def widest(self) -> int:
        """Return how many levels' borders the gang crosses: 0 inside one tightest domain."""
        return max((level + 1 for level, count in enumerate(self.spans) if count > 1), default=0)


class Speed(ABC):
    """Seconds of work that a job does per second, by placement. A subclass declares what else it knows."""

    __slots__ = ()

    shares: ClassVar[bool] = False
    """Whether jobs on one link slow each other (`Shape.sharers` counts)."""
    by_parts: ClassVar[bool] = False
    """Whether the number of GPUs on each machine counts (`Shape.parts`), not only how many domains are touched."""
    compares_kinds: ClassVar[bool] = False
    """Whether `on_kind` knows every kind of GPU, so that jobs may run on a cluster of several."""

    @abstractmethod
    def kind(self, job: Job) -> Hashable:
        """Return a key: jobs of one key and gang run equally fast on equal shapes."""

    @abstractmethod
    def rate(self, job: Job, shape: Shape) -> float:
        """Return the speed, above 0 and at most 1: 1 is full speed, at which `Job.work_s` is measured."""

    def skewed(self, job: Job) -> bool:
        """Whether one tensor dominates what the job exchanges (Tiresias); False where that is unknown."""
        return False

    def of_kind(self, kind: str) -> "Speed":
        """Return the speed on a kind of GPU, as measured there; itself where kinds were not measured."""
        return self

    def on_kind(self, job: Job, kind: str) -> float:
        """Return the packed speed on a kind of GPU over full speed; 0 where the job does not run on it."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class FullSpeed(Speed):
    """Placement does not matter (traces without models)."""

    def kind(self, job: Job) -> Hashable:
        return None

    def rate(self, job: Job, shape: Shape) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class Penalty(Speed):
    """A constant factor by the widest border a gang crosses: `by_level[0]` inside a machine, and so on outwards."""

    by_level: tuple[float, ...]
    machine: int = 0
    """Which level of the shapes the machine is: above 0 where machines have slots, whose borders cost nothing."""
    shares: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.by_level or not all(0 < factor <= 1 for factor in self.by_level):
            raise InputError(f"Speeds by level must lie above 0 and at most at 1, not {self.by_level}.")

    def inside(self, cluster: Cluster) -> Self:
        """Return the same penalty for a cluster whose machines may have slots."""
        return replace(self, machine=cluster.machine)

    def kind(self, job: Job) -> Hashable:
        return None

    def rate(self, job: Job, shape: Shape) -> float:
        """Return the factor of the widest border, shared where other jobs cross it too."""
        width = min(max(0, shape.widest() - self.machine), len(self.by_level) - 1)
        alone = self.by_level[width]
        sharers = max(shape.sharers, default=1)
        return alone / (alone + (1 - alone) * sharers)


def on_its_kind(speed: Speed, cluster: Cluster) -> Speed:
    """Return the speed on a cluster of one named kind of GPU: as measured there, or as it is where kinds were not."""
    return speed.of_kind(cluster.kinds[0]) if len(set(cluster.kinds)) == 1 else speed


def even_parts(gpus: int, machines: int) -> tuple[int, ...]:
    """Return the GPUs per machine of a gang spread as evenly as possible, most first."""
    least, more = divmod(gpus, machines)
    return (least + 1,) * more + (least,) * (machines - more)
