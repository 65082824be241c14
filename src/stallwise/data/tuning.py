"""How far and how widely to fetch ahead, from what is measured while it happens. Arithmetic only.

Concurrency. By Little's law c requests of latency t give c/t objects a second, until the link or the processor is full
and more of them only make each slower. So c is raised by half while somebody waits for data and the last raise brought
more than a few per cent, and taken back where it did not: at the knee, on a long link as on a short one. It begins
with few, and after the first answers with as many as would hide their latency at `ASSUMED_PER_S`: on a short link every
request more than needed only takes processor time from decoding.

Depth. Enough objects must be under way or ready to keep c requests busy through a batch that is taken at once, and to
outlast a hiccup of `COVER_S` at the pace they are taken. The limit in bytes is kept elsewhere (`ahead`) and wins.
"""

import math
from dataclasses import dataclass, field

FIRST_CONCURRENCY = 4
ASSUMED_PER_S = 1500.0
MOST_ASSUMED = 24
RAISE = 1.5
GAIN = 1.05
COVER_S = 2.0
# A pace is judged over so many requests in each place, and no shorter than this: fewer would be noise.
ROUNDS = 3
SHORTEST_S = 0.25
# After a raise that brought nothing, so many judgements pass before another: links change.
REST = 40


@dataclass
class Pace:
    """What one process has seen of its own requests, and the two numbers that follow."""

    most: int = 64
    concurrency: int = field(default=0)
    _rate: float = 0.0
    _before: int = 0
    _rest: int = 0
    _met: bool = False

    def __post_init__(self) -> None:
        self.concurrency = self.concurrency or min(FIRST_CONCURRENCY, self.most)

    def meet(self, latency_s: float) -> None:
        """The shortest of the first answers took so long."""
        if not self._met:
            self._met = True
            guess = min(MOST_ASSUMED, math.ceil(ASSUMED_PER_S * latency_s))
            self.concurrency = min(self.most, max(self.concurrency, guess))

    def judged_after(self, requests: int, seconds: float) -> bool:
        """Whether so many requests in so many seconds are enough to go by."""
        return requests >= ROUNDS * self.concurrency and seconds >= SHORTEST_S

    def judge(self, objects_per_s: float, *, starved: bool) -> None:
        """Objects came at this rate; `starved`: somebody waited for one most of the time."""
        if self._before:
            if objects_per_s < GAIN * self._rate:
                self.concurrency, self._rest = self._before, REST
            self._before = 0
        elif self._rest:
            self._rest -= 1
        elif starved and self.concurrency < self.most:
            self._before, self._rate = self.concurrency, objects_per_s
            self.concurrency = min(self.most, math.ceil(self.concurrency * RAISE))


def depth(concurrency: int, batch: int, taken_per_s: float) -> int:
    """Objects to have under way or ready ahead of the one that is taken."""
    return max(2 * concurrency, 2 * batch, math.ceil(COVER_S * taken_per_s))
