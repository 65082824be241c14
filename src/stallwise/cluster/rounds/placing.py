"""Gangs of a round on GPUs: large ones first, each on as few machines as hold it.

A gang stays where it was if that is free, unless it is spread wider than it would be anew.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stallwise.cluster.rounds.queue import Choice
from stallwise.cluster.speed import Shape
from stallwise.cluster.topology import Cluster

Held = tuple[int, ...]


def kinds_of(cluster: Cluster) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Names of the kinds of GPUs, in the order they are met, and the number of each GPU's."""
    names = tuple(dict.fromkeys(cluster.kinds)) or ("",)
    numbers = np.array([names.index(kind) for kind in cluster.kinds] or [0] * cluster.gpus, dtype=np.int64)
    return names, numbers


@dataclass(slots=True, eq=False)
class Floor:
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
        """GPUs for every chosen job; they fit together, so there is always room."""
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
        """Racks and machines a gang touches."""
        machines = {int(self.machine[gpu]) for gpu in held}
        return len({int(self.rack[machine]) for machine in machines}), len(machines)

    def _least(self, gang: int, kind: int) -> tuple[int, int]:
        """No gang of that size is tighter than this."""
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
        """Where a gang sits."""
        array = np.array(held)
        parts: tuple[int, ...] = ()
        if by_parts:
            counts = np.unique(self.machine[array], return_counts=True)[1]
            parts = tuple(sorted((int(number) for number in counts), reverse=True))
        return Shape(gpus=len(held), spans=self.cluster.spans(array), sharers=sharers, parts=parts)

    def sharers(self, placed: Mapping[int, Held]) -> dict[int, tuple[int, ...]]:
        """Jobs on the busiest link out of a domain of each level, of every job: those that cross its border too."""
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
