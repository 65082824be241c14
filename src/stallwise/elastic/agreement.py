"""All ranks come to the same decision at the same step, without waiting for each other.

At each step's end every rank throws what it knows into one small all-reduce (MAX) on a group of its own and looks at
what all had said one step *earlier*, which has long arrived. So ranks act on the same words at the same step: a notice
that any rank hears during step k ends all of them after step k + 1, at the latest k + 2.

The vector holds the flags, then a few times of every rank and the speed it is asked to do with, in places of its own
(the others leave zero there).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

FLAGS = 3
LEAVE, AGAIN, SAVE = range(FLAGS)
TIMES = 4
"""Per rank: waiting for data, forward, backward, exchange; milliseconds."""
_OWN = TIMES + 1
"""And the speed it is asked to do with; 0: nobody asks."""


@dataclass(frozen=True, slots=True)
class Word:
    """What all ranks together had said at one step."""

    flags: tuple[float, ...] = (0.0,) * FLAGS
    times_ms: tuple[tuple[float, ...], ...] = ()
    speeds: tuple[float, ...] = ()

    def says(self, flag: int) -> bool:
        """Whether any rank did."""
        return self.flags[flag] > 0


class Agreement:
    """One group's running agreement."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._pending: tuple[dist.Work | None, torch.Tensor] | None = None

    def heard(self) -> Word:
        """What was said a step ago."""
        if self._pending is None:
            return Word()
        work, said = self._pending
        self._pending = None
        if work is not None:
            work.wait()
        values = said.tolist()
        own = [tuple(values[FLAGS + r * _OWN : FLAGS + (r + 1) * _OWN]) for r in range(self._world)]
        return Word(tuple(values[:FLAGS]), tuple(one[:TIMES] for one in own), tuple(one[TIMES] for one in own))

    def say(self, flags: Sequence[float], times_ms: Sequence[float], speed: float = 0.0) -> None:
        """This rank's part for the next step."""
        said = torch.zeros(FLAGS + self._world * _OWN, dtype=torch.float64)
        said[:FLAGS] = torch.tensor(flags, dtype=torch.float64)
        place = FLAGS + self._rank * _OWN
        said[place : place + _OWN] = torch.tensor([*times_ms, speed], dtype=torch.float64)
        work = dist.all_reduce(said, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._pending = work, said

    def finish(self) -> None:
        """Wait for what is under way, before the group goes."""
        self.heard()
