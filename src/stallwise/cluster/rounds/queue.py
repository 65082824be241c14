"""What a rule over fixed gangs sees at the start of a round."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stallwise.cluster.rounds.programs import Demand, Floats

Choice = tuple[int, int]
"""A job and the kind of GPU it gets for this round."""


@dataclass(slots=True, eq=False)
class Queue:
    """All jobs of a simulation as arrays in order of arrival, and which of them are there and not done."""

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
    """GPUs of each kind, the kind that is quickest on average first."""
    now: float = 0.0
    active: npt.NDArray[np.int64] = None  # type: ignore[assignment] # set before every round
    changed: bool = True
    """Jobs came or ended since the last round."""

    def demand(self, *, aware: bool = True) -> Demand:
        """The active jobs as a problem; who is not aware takes all kinds for the reference kind."""
        rate = self.rate[self.active] if aware else np.ones((len(self.active), len(self.gpus)))
        return Demand(self.gang[self.active].astype(np.float64), rate, self.gpus.astype(np.float64))

    def fits(self, job: int, kind: int, free: npt.NDArray[np.int64]) -> bool:
        """Whether it runs on that kind and there are GPUs for its gang."""
        return bool(self.rate[job, kind] > 0 and self.gang[job] <= free[kind])


class Rule(Protocol):
    """Who runs on which kind of GPU in the coming round."""

    def choose(self, queue: Queue) -> list[Choice]:
        """Gangs that fit the cluster together."""
        ...

    def ran(self, job: int, kind: int, seconds: float) -> None:
        """A chosen job held its GPUs for so long in the round that ended."""
        ...


def first_fit(queue: Queue, choices: list[Choice]) -> list[Choice]:
    """Of choices in order, those that fit beside the ones before; every job once."""
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
