"""Fixed gangs in rounds: what a rule sees at the start of a round, and where its gangs are placed.

Large gangs are placed first, each on as few machines as hold it. A gang stays where it was if that is free, unless it
is spread wider than it would be anew.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stallwise.cluster.policies._programs import Floats, GangDemand
from stallwise.cluster.speed.base import Shape
from stallwise.cluster.topology import Cluster

Choice = tuple[int, int]
"""A job and the kind of GPU it gets for this round."""


@dataclass(slots=True, eq=False)
class GangQueue:
    """All jobs of a simulation as arrays in order of arrival, and which of them are active."""

    gang: npt.NDArray[np.int64]
    arrival: Floats
    work: Floats
    """Seconds at full speed on the reference kind."""
    left: Floats
    """Of those, still to do."""
    attained: Floats
    """GPU-seconds had."""
    rate: Floats
    """[job, kind]: seconds of work per second on that kind, packed."""
    gpus: npt.NDArray[np.int64]
    """GPUs of each kind, the kind that is fastest on average first."""
    now: float = 0.0
    active: npt.NDArray[np.int64] = None  # type: ignore[assignment] # set before every round
    changed: bool = True
    """Jobs came or ended since the last round."""

    def demand(self, *, aware: bool = True) -> GangDemand:
        """Return the active jobs as an allocation problem; unaware rules take all kinds for the reference kind."""
        rate = self.rate[self.active] if aware else np.ones((len(self.active), len(self.gpus)))
        return GangDemand(self.gang[self.active].astype(np.float64), rate, self.gpus.astype(np.float64))

    def fits(self, job: int, kind: int, free: npt.NDArray[np.int64]) -> bool:
        """Whether a job runs on that kind and there are GPUs for its gang."""
        return bool(self.rate[job, kind] > 0 and self.gang[job] <= free[kind])


class GangRule(Protocol):
    """Decides which jobs run on which kind of GPU in the coming round."""

    def choose(self, queue: GangQueue) -> list[Choice]:
        """Return gangs that fit the cluster together."""
        ...

    def ran(self, job: int, kind: int, seconds: float) -> None:
        """Account the seconds that a chosen job held its GPUs in the round that ended."""
        ...


def first_fit(queue: GangQueue, choices: list[Choice]) -> list[Choice]:
    """Return the choices that fit beside the ones before, in order; every job once."""
    free = queue.gpus.copy()
    taken: set[int] = set()
    out = []
    for job, kind in choices:
        if job not in taken and queue.fits(job, kind, free):
            free[kind] -= queue.gang[job]
            taken.add(job)
            out.append((job, kind))
            if not free.any():
                break
    return out


Held = tuple[int, ...]


def kinds_of(cluster: Cluster) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Return the names of the kinds of GPUs, in the order of the cluster, and the kind number of each GPU."""
    names = tuple(dict.fromkeys(cluster.kinds)) or ("",)
    numbers = np.array([names.index(kind) for kind in cluster.kinds] or [0] * cluster.gpus, dtype=np.int64)
    return names, numbers


@dataclass(slots=True, eq=False)
class GangPlacer:
    """GPUs of a cluster by machine and kind. Machines hold one kind."""

    cluster: Cluster
    kind: npt.NDArray[np.int64]
    """Of each GPU."""
    machine: npt.NDArray[np.int64] = field(init=False)
    rack: npt.NDArray[np.int64] = field(init=False)
    """Of each machine: the next wider domain."""
    kind_of: npt.NDArray[np.int64] = field(init=False)
    """Of each machine."""
    size: npt.NDArray[np.int64] = field(init=False)
    """GPUs of each machine, and which they are."""
    gpus: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        level = self.cluster.machine
        self.machine = self.cluster.domain[level].astype(np.int64)
        count = int(self.machine.max()) + 1
        first = np.searchsorted(self.machine, np.arange(count))
        above = self.cluster.domain[level + 1] if level + 1 < len(self.cluster.levels) else np.zeros_like(self.machine)
        self.rack, self.kind_of = above[first].astype(np.int64), self.kind[first]
        self.size = np.bincount(self.machine)
        self.gpus = [np.flatnonzero(self.machine == number).tolist() for number in range(count)]

    def place(
        self, chosen: Iterable[Choice], gangs: npt.NDArray[np.int64], before: Mapping[int, Held]
    ) -> dict[int, Held]:
        """Return GPUs for every chosen job; they fit together, so there is always room."""
        free = [list(gpus) for gpus in self.gpus]
        count = np.array([len(gpus) for gpus in self.gpus], dtype=np.int64)
        sizes: dict[int, list[Choice]] = {}
        for job, kind in chosen:
            sizes.setdefault(int(gangs[job]), []).append((job, kind))
        placed: dict[int, Held] = {}
        for size in sorted(sizes, reverse=True):
            moved = []
            for job, kind in sizes[size]:
                held = before.get(job, ())
                stays = bool(held) and self.kind[held[0]] == kind and self._all_free(held, free)
                if stays and self.width(held) <= self._least(size, kind):
                    placed[job] = self._take(held, free, count)
                else:
                    moved.append((job, kind, held if stays else ()))
            for job, kind, held in moved:
                picked = self._pick(size, kind, free, count)
                if held and self._all_free(held, free) and self.width(held) <= self.width(picked):
                    picked = held
                placed[job] = self._take(picked, free, count)
        return placed

    def width(self, held: Held) -> tuple[int, int]:
        """Count the racks and machines that a gang touches."""
        machines = {int(self.machine[gpu]) for gpu in held}
        return len({int(self.rack[machine]) for machine in machines}), len(machines)

    def _least(self, gang: int, kind: int) -> tuple[int, int]:
        """Return the smallest width that a gang of that size can have."""
        return 1, -(-gang // int(self.size[self.kind_of == kind].max()))

    def _all_free(self, held: Held, free: list[list[int]]) -> bool:
        return all(gpu in free[self.machine[gpu]] for gpu in held)

    def _take(self, held: Held, free: list[list[int]], count: npt.NDArray[np.int64]) -> Held:
        for gpu in held:
            free[self.machine[gpu]].remove(gpu)
            count[self.machine[gpu]] -= 1
        return held

    def _pick(self, gang: int, kind: int, free: list[list[int]], count: npt.NDArray[np.int64]) -> Held:
        """Best fit: the fullest machine with room; else the fewest machines, inside the fullest rack with room."""
        open_ = np.where(self.kind_of == kind, count, 0)
        room = np.flatnonzero(open_ >= gang)
        if len(room):
            return tuple(free[room[np.argmin(open_[room])]][:gang])
        racks = np.bincount(self.rack, weights=open_)
        wide = np.flatnonzero(racks >= gang)
        if len(wide):
            open_ = np.where(self.rack == wide[np.argmin(racks[wide])], open_, 0)
        out: list[int] = []
        for machine in np.argsort(-open_, kind="stable"):
            out += free[machine][: gang - len(out)]
            if len(out) == gang:
                break
        return tuple(out)

    def shape(self, held: Held, *, by_parts: bool, sharers: tuple[int, ...] = ()) -> Shape:
        """Return the shape of a gang's placement."""
        array = np.array(held)
        parts: tuple[int, ...] = ()
        if by_parts:
            counts = np.unique(self.machine[array], return_counts=True)[1]
            parts = tuple(sorted((int(number) for number in counts), reverse=True))
        return Shape(gpus=len(held), spans=self.cluster.spans(array), sharers=sharers, parts=parts)

    def sharers(self, placed: Mapping[int, Held]) -> dict[int, tuple[int, ...]]:
        """Count, for every job and level, the jobs on the busiest link out of a domain that it crosses."""
        levels = range(len(self.cluster.levels))
        touched = {job: [np.unique(self.cluster.domain[level][list(held)]) for level in levels]
                   for job, held in placed.items()}  # fmt: skip
        crossing = [np.zeros(self.cluster.size(level), dtype=np.int64) for level in levels]
        for domains in touched.values():
            for level in levels:
                if len(domains[level]) > 1:
                    crossing[level][domains[level]] += 1
        return {
            job: tuple(
                int(crossing[level][domains[level]].max())
                if level >= self.cluster.machine and len(domains[level]) > 1
                else 1
                for level in levels
            )
            for job, domains in touched.items()
        }


class ShortestService:
    """Least remaining service (work times GPUs) first, on the fastest kind with room: the order of Ada-SRSF."""

    def choose(self, queue: GangQueue) -> list[Choice]:
        """Return the jobs that fit, in order."""
        jobs = queue.active
        order = jobs[np.argsort(queue.left[jobs] * queue.gang[jobs], kind="stable")]
        return first_fit(queue, [(int(j), int(k)) for j in order for k in np.argsort(-queue.rate[j], kind="stable")])

    def ran(self, job: int, kind: int, seconds: float) -> None:
        """Nothing is accounted by this rule."""
