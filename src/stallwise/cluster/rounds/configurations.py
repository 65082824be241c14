"""Numbers of GPUs a job may get, and machines for them: powers of two inside a machine, then whole machines (Sia's).

Such gangs always fit together where their GPUs do: from the largest down, each into the fullest machine with room.
"""

from collections.abc import Mapping

import numpy as np

from stallwise.cluster.rounds.elastic import Fleet, Growing, Place, parts_of

Config = tuple[int, int]
"""Kind of GPU and how many."""


def sizes(machine: int, gpus: int) -> list[int]:
    """1, 2, 4, … up to a machine, and whole machines up to all GPUs."""
    inside = [1 << power for power in range(machine.bit_length()) if 1 << power < machine]
    return [*inside, *range(machine, gpus + 1, machine)]


def place_all(chosen: Mapping[int, Config], jobs: Mapping[int, Growing], fleet: Fleet) -> dict[int, Place]:
    """Large gangs first, each where it was if that is free; those that move keep off the places of those that stay."""
    free = fleet.size.copy()
    stays = {
        number: jobs[number].place
        for number, (kind, gpus) in chosen.items()
        if jobs[number].place
        and fleet.kind[jobs[number].place[0][0]] == kind
        and sum(parts_of(jobs[number].place)) == gpus
    }
    wanted = np.zeros_like(free)
    for place in stays.values():
        for machine, count in place:
            wanted[machine] += count
    places: dict[int, Place] = {}
    order = sorted(chosen, key=lambda number: (-chosen[number][1], number not in stays))
    for number in order:
        place = stays.get(number, ())
        for machine, count in place:
            wanted[machine] -= count
        if not place or any(free[machine] < count for machine, count in place):
            place = _pick(*chosen[number], free, wanted, fleet)
        for machine, count in place:
            free[machine] -= count
        places[number] = place
    return places


def _pick(kind: int, gpus: int, free: np.ndarray, wanted: np.ndarray, fleet: Fleet) -> Place:
    """The fullest machine with room, or empty ones; first those that nobody who stays wants."""
    here = np.flatnonzero((fleet.kind == kind) & (free > 0))
    inside = here[free[here] >= gpus]
    if len(inside):
        crowds = np.maximum(gpus - (free[inside] - wanted[inside]), 0)
        return ((int(inside[np.lexsort((free[inside], crowds))[0]]), gpus),)
    out, left = [], gpus
    for machine in here[np.lexsort((wanted[here], -free[here]))]:
        count = min(int(free[machine]), left)
        out.append((int(machine), count))
        left -= count
        if left == 0:
            break
    return tuple(out)
