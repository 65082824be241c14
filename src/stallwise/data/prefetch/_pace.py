"""How far ahead and with how many requests to prefetch, from what is measured meanwhile. Arithmetic only.

Concurrency. By Little's law c requests of latency t give c/t objects a second, until the link or the CPU is saturated
and more requests only make each slower. So c is raised by half while a caller waits for data and the last raise brought
more than a few per cent, and lowered again where it did not: this finds the knee, on a long link as on a short one. It
starts low, and after the first replies continues with as many as would hide their latency at `ASSUMED_PER_S`: on a
short link every request more than needed only takes CPU time from decoding.

Depth. Enough objects must be in progress or ready to keep c requests busy through a batch that is taken at once, and to
outlast a stall of `COVER_S` seconds at the current pace. The limit in bytes is kept elsewhere (`ahead`) and wins.

`DeliMode` is DELI's rule instead, for comparison: fixed numbers of samples. DELI's sampler requests `fetch_items`
samples at once as soon as no more than `threshold_items` of those requested before are left, and its cache holds
`cache_items`, first in, first out. Where threshold + fetch exceeds the cache, samples are dropped before they are used:
its published waits jump just there. Such a setting is refused.
"""

import math
from dataclasses import dataclass, field

from stallwise.errors import InputError

FIRST_CONCURRENCY = 4
ASSUMED_PER_S = 1500.0
MOST_ASSUMED = 24
RAISE = 1.5
GAIN = 1.05
COVER_S = 2.0
# A pace is judged over this many requests per concurrent one, and no less than these seconds: fewer would be noise.
ROUNDS = 3
SHORTEST_S = 0.25
# After a raise without gain, this many judgements pass before another: links change.
REST = 40


@dataclass
class FetchPace:
    """One process's measurements of its own requests, and the concurrency that follows from them."""

    most: int = 64
    concurrency: int = field(default=0)
    _rate: float = 0.0
    _before: int = 0
    _rest: int = 0
    _has_latency: bool = False

    def __post_init__(self) -> None:
        self.concurrency = self.concurrency or min(FIRST_CONCURRENCY, self.most)

    def set_latency(self, latency_s: float) -> None:
        """Set the first concurrency from the shortest latency of the first replies (seconds)."""
        if not self._has_latency:
            self._has_latency = True
            guess = min(MOST_ASSUMED, math.ceil(ASSUMED_PER_S * latency_s))
            self.concurrency = min(self.most, max(self.concurrency, guess))

    def can_judge(self, requests: int, seconds: float) -> bool:
        """Whether `requests` in `seconds` are enough for a judgement."""
        return requests >= ROUNDS * self.concurrency and seconds >= SHORTEST_S

    def judge(self, objects_per_s: float, *, starved: bool) -> None:
        """Adapt the concurrency to the rate; `starved`: a caller waited for data most of the time."""
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
    """Return the number of objects to have in progress or ready ahead of the one that is taken."""
    return max(2 * concurrency, 2 * batch, math.ceil(COVER_S * taken_per_s))


@dataclass(frozen=True)
class DeliMode:
    """Fetch size, cache and threshold in samples (of one process, as in DELI, which used no workers)."""

    fetch_items: int
    cache_items: int
    threshold_items: int

    def __post_init__(self) -> None:
        if self.fetch_items < 1 or self.cache_items < 1 or self.threshold_items < 0:
            raise InputError("Fetch size and cache must be at least one sample, the threshold at least none.")
        if self.threshold_items + self.fetch_items > self.cache_items:
            raise InputError(
                f"A threshold of {self.threshold_items} and a fetch size of {self.fetch_items} need a cache of "
                f"{self.threshold_items + self.fetch_items} samples, not {self.cache_items}: samples would be dropped "
                "before they are used. Make the cache larger or the fetch size smaller."
            )

    def more(self, outstanding: int) -> int:
        """Return how many samples to request now, when `outstanding` of those requested are left."""
        return self.fetch_items if outstanding <= self.threshold_items else 0
