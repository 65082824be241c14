"""Jobs that grow and shrink: what a rule over them sees, the numbers of GPUs it may give, and their machines.

Configurations are Sia's: powers of two inside a machine, then whole machines. Such gangs always fit together where
their GPUs do: from the largest down, each into the fullest machine with room.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stallwise.cluster.job import Job
from stallwise.cluster.policies._goodput import AppGoodput, Parts

Place = tuple[tuple[int, int], ...]
"""Machines and how many GPUs of each, in the order they were taken."""


def parts_of(place: Place) -> Parts:
    """Return the GPUs per machine of a place."""
    return tuple(count for _, count in place)


@dataclass(slots=True, eq=False)
class Growing:
    """One job that grows and shrinks, and its progress."""

    row: Job
    goodputs: tuple[AppGoodput, ...]
    """By kind of GPU."""
    batch: int | None
    """None: the best there is, epoch by epoch."""
    most_gpus: int
    tried_gpus: int = 0
    """The most it has run on."""
    progress: float = 0.0
    epoch: int = 0
    loading_s: float = 0.0
    restarts: int = -1
    attained: float = 0.0
    place: Place = ()

    def goodput(self, kind: int, parts: Parts) -> float:
        """Return the progress per second in the current epoch."""
        return self.goodputs[kind].goodput(parts, self.epoch, self.batch)

    def step(self, kind: int, seconds: float) -> float | None:
        """Run for some seconds; return after how many of them the job was done, None if it was not."""
        if not self.place:
            return None
        parts, spent = parts_of(self.place), min(self.loading_s, seconds)
        self.loading_s -= spent
        table = self.goodputs[kind]
        while spent < seconds:
            rate, until = self.goodput(kind, parts), table.until(self.epoch)
            needed = (until - self.progress) / rate
            if spent + needed > seconds:
                self.progress += rate * (seconds - spent)
                break
            spent, self.progress, self.epoch = spent + needed, until, self.epoch + 1
            if self.epoch >= table.app.epochs:
                return spent
        return None


@dataclass(slots=True, eq=False)
class MachinePool:
    """Machines of the cluster by kind and size."""

    kind: npt.NDArray[np.int64]
    """Of each machine."""
    size: npt.NDArray[np.int64]
    """GPUs of each."""

    def machine(self, kind: int) -> int:
        """Return the GPUs of the largest machine of a kind."""
        return int(self.size[self.kind == kind].max())

    def gpus(self, kind: int) -> int:
        """Return the number of GPUs of a kind."""
        return int(self.size[self.kind == kind].sum())


class ElasticRule(Protocol):
    """Decides how many GPUs each job gets, and where."""

    tunes: bool
    """Batch sizes are chosen anew; otherwise those of the trace stay."""

    def allot(self, now: float, jobs: Mapping[int, Growing], fleet: MachinePool) -> dict[int, Place]:
        """Return the places of all jobs that run in the coming round."""
        ...


Config = tuple[int, int]
"""Kind of GPU and how many."""


def sizes(machine: int, gpus: int) -> list[int]:
    """Return 1, 2, 4, … up to a machine, and whole machines up to all GPUs (Sia's configurations)."""
    inside = [1 << power for power in range(machine.bit_length()) if 1 << power < machine]
    return [*inside, *range(machine, gpus + 1, machine)]


class Placed(Protocol):
    """A job that may have GPUs."""

    place: Place


def place_all(chosen: Mapping[int, Config], jobs: Mapping[int, Placed], fleet: MachinePool) -> dict[int, Place]:
    """Place large gangs first, each where it was if that is free; those that move avoid places of staying ones."""
    free = fleet.size.copy()
    stays = {
        number: jobs[number].place
        for number, (kind, gpus) in chosen.items()
        if jobs[number].place
        and fleet.kind[jobs[number].place[0][0]] == kind
        and sum(parts_of(jobs[number].place)) == gpus
    }
    reserved = np.zeros_like(free)
    for place in stays.values():
        for machine, count in place:
            reserved[machine] += count
    places: dict[int, Place] = {}
    order = sorted(chosen, key=lambda number: (-chosen[number][1], number not in stays))
    for number in order:
        place = stays.get(number, ())
        for machine, count in place:
            reserved[machine] -= count
        if not place or any(free[machine] < count for machine, count in place):
            place = _pick(*chosen[number], free, reserved, fleet)
        for machine, count in place:
            free[machine] -= count
        places[number] = place
    return places


def _pick(kind: int, gpus: int, free: np.ndarray, reserved: np.ndarray, fleet: MachinePool) -> Place:
    """Return the fullest machine with room, or empty ones; first those that no staying job reserves."""
    machines = np.flatnonzero((fleet.kind == kind) & (free > 0))
    inside = machines[free[machines] >= gpus]
    if len(inside):
        crowds = np.maximum(gpus - (free[inside] - reserved[inside]), 0)
        return ((int(inside[np.lexsort((free[inside], crowds))[0]]), gpus),)
    out, left = [], gpus
    for machine in machines[np.lexsort((reserved[machines], -free[machines]))]:
        count = min(int(free[machine]), left)
        out.append((int(machine), count))
        left -= count
        if left == 0:
            break
    return tuple(out)
