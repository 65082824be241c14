"""GPUs one by one to the job they help most, after Optimus (Peng et al., EuroSys 2018).

Every job gets one GPU, in order of arrival; each further GPU goes to the job whose remaining time it shortens most:
(step on n - step on n + 1 GPUs) x updates left. Batches stay as submitted. As in Pollux' artifact (Optimus+Oracle),
steps are the measured ones of a packed gang and the updates left are known. A job that keeps its number keeps its GPUs;
the others are placed from few GPUs to many, on the machines with the most free.
"""

import heapq
import math
from collections.abc import Mapping

from stallwise.cluster.policies._elastic import Growing, MachinePool, Place, parts_of
from stallwise.cluster.policies._goodput import packed_parts

_ROUNDING = 1e-8


class Optimus:
    """Marginal gains: numbers of GPUs first, then places."""

    tunes = False

    def allot(self, now: float, jobs: Mapping[int, Growing], fleet: MachinePool) -> dict[int, Place]:
        """Return numbers of GPUs by marginal gain, and places for them."""
        return spread(gains_first(jobs, int(fleet.size.sum()), fleet.machine(0)), jobs, fleet)


def gains_first(jobs: Mapping[int, Growing], gpus: int, machine: int) -> dict[int, int]:
    """Return the GPUs of every job that gets any."""
    counts = dict.fromkeys(list(jobs)[:gpus], 1)
    free = gpus - len(counts)
    heap = [(-_gain(jobs[number], 1, machine), place, number) for place, number in enumerate(counts)]
    heapq.heapify(heap)
    while free > 0 and heap and heap[0][0] < 0:
        _, place, number = heapq.heappop(heap)
        counts[number] += 1
        free -= 1
        heapq.heappush(heap, (-_gain(jobs[number], counts[number], machine), place, number))
    return counts


def _gain(job: Growing, gpus: int, machine: int) -> float:
    """Return the seconds that one more GPU saves."""
    if gpus + 1 > job.most_gpus:
        return 0.0
    table, last, batch = job.goodputs[0], job.goodputs[0].app.epochs - 1, job.batch or 0
    left = table.updates(batch, last) - table.updates(batch, job.epoch) if last > job.epoch else 1.0
    return (_step_s(job, gpus, machine) - _step_s(job, gpus + 1, machine)) * left


def _step_s(job: Growing, gpus: int, machine: int) -> float:
    """Predict a step as the artifact does: on one GPU always in two passes or more."""
    app, table = job.goodputs[0].app, job.goodputs[0]
    local = math.ceil((job.batch or 0) / gpus - _ROUNDING)
    extra = math.ceil(local / app.largest_local - _ROUNDING) - 1
    extra = max(1, extra) if gpus == 1 else extra
    per_gpu = min(math.ceil(local / (extra + 1) - _ROUNDING), max(app.progress) // (gpus * (extra + 1)))
    return table.step_s(packed_parts(gpus, machine), per_gpu, extra)


def spread(counts: Mapping[int, int], jobs: Mapping[int, Growing], fleet: MachinePool) -> dict[int, Place]:
    """Place jobs: unchanged numbers stay, the others go where most is free."""
    free = [int(size) for size in fleet.size]
    places = {number: jobs[number].place for number, count in counts.items()
              if sum(parts_of(jobs[number].place)) == count}  # fmt: skip
    for place in places.values():
        for machine, count in place:
            free[machine] -= count
    for number in sorted(counts, key=lambda number: counts[number]):
        if number in places:
            continue
        left, taken = counts[number], []
        while left > 0:
            machine = max(range(len(free)), key=lambda at: free[at])
            count = min(free[machine], left)
            free[machine] -= count
            left -= count
            taken.append((machine, count))
        places[number] = tuple(taken)
    return places
