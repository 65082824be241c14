"""A market of machines replayed from a trace: how many there are, what they cost, how long they take and live.

Spot machines have places 0, 1, 2 …: place k exists while more than k machines are available. So the life of a machine
is known when it is ordered, and nothing but the trace decides on it.
"""

import bisect
import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from stallwise.errors import InputError
from stallwise.fleet._backend import Market
from stallwise.spot.lifetimes.log import AvailabilityTrace

_BOOT_SPREAD = 0.2
"""Boot times lie this fraction around their mean, each machine's decided by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketTrace:
    """Counts and prices from times on; the last of each holds for ever. Without counts there are always machines."""

    spot_usd_per_h: float
    on_demand_usd_per_h: float
    boot_s: float = 0.0
    grace_s: float = 30.0
    """Between notice and end of a spot machine; 0: no notice."""
    counts_at_s: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    prices_at_s: tuple[float, ...] = ()
    prices_usd_per_h: tuple[float, ...] = ()
    """Spot prices over time, instead of `spot_usd_per_h`."""

    def __post_init__(self) -> None:
        if len(self.counts_at_s) != len(self.counts) or len(self.prices_at_s) != len(self.prices_usd_per_h):
            raise InputError("A market has as many times as counts, and as many as prices.")
        if any(b < a for times in (self.counts_at_s, self.prices_at_s) for a, b in pairwise(times)):
            raise InputError("The times of a market go back.")
        prices = (self.spot_usd_per_h, self.on_demand_usd_per_h, *self.prices_usd_per_h)
        if not all(0 <= price < math.inf for price in (*prices, self.boot_s, self.grace_s)):
            raise InputError("Prices, boot time and grace of a market must be non-negative.")

    def usd_per_h(self, market: Market, at_s: float) -> float:
        """Price of one machine."""
        if market == "on-demand":
            return self.on_demand_usd_per_h
        if not self.prices_at_s:
            return self.spot_usd_per_h
        return self.prices_usd_per_h[max(0, bisect.bisect_right(self.prices_at_s, at_s) - 1)]

    def free_place(self, at_s: float, taken: Iterable[int]) -> int | None:
        """Lowest place for another spot machine; None: there is none."""
        used = set(taken)
        place = next(place for place in range(len(used) + 1) if place not in used)
        return place if not self.counts or place < self.counts[self._interval(at_s)] else None

    def end_s(self, place: int, at_s: float) -> float:
        """When the machine of this place is taken away; infinite: never."""
        if self.counts:
            for index in range(self._interval(at_s) + 1, len(self.counts)):
                if self.counts[index] <= place:
                    return self.counts_at_s[index]
        return math.inf

    def boot_of(self, name: str) -> float:
        """Seconds from order to ready of the machine of this name."""
        fraction = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") / 2**32
        return self.boot_s * (1 - _BOOT_SPREAD + 2 * _BOOT_SPREAD * fraction)

    def _interval(self, at_s: float) -> int:
        return max(0, bisect.bisect_right(self.counts_at_s, at_s) - 1)


def counts_from(trace: AvailabilityTrace, begin_s: float, length_s: float) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Times, beginning at 0, and counts of a part of a trace."""
    begin_s += float(trace.at_s[0])
    if not float(trace.at_s[0]) <= begin_s < trace.end_s:
        raise InputError(f"The trace is {trace.end_s - float(trace.at_s[0]):g} s long.", fields=("begin",))
    first = max(0, int((trace.at_s <= begin_s).sum()) - 1)
    last = int((trace.at_s < begin_s + length_s).sum())
    at_s = tuple(max(0.0, float(at) - begin_s) for at in trace.at_s[first:last])
    return at_s, tuple(int(count) for count in trace.counts[first:last])
