"""Spot prices that move, and fleets that follow them: a price above which no machine is held, or a spend to keep to.

    static      so many machines, whatever they cost
    cap         the same machines, none while one costs more than the cap (a bid)
    dynamic     as many machines as a steady spend buys: n(t) = spend / price(t), within limits

A machine that is let go because of its price is not lost: the job saves first and goes on where it was. The idea of
clusters that grow while machines are cheap is that of Li, Walls, Xu & Guo (ICAC 2019), who added them by hand.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stallwise.errors import InputError
from stallwise.spot.lifetimes.log import Floats
from stallwise.units import SECONDS_PER_HOUR

Ints = npt.NDArray[np.int64]
DAY_S = 24.0 * SECONDS_PER_HOUR
# A replay that begins closer to the end of the series sees its last price for longer than that price was seen.
_ROOM = 2.0


@dataclass(frozen=True)
class Prices:
    """Dollars per machine-hour on spot: `usd_per_h[i]` from `at_s[i]` to `at_s[i + 1]`, the last to `end_s`."""

    at_s: Floats
    usd_per_h: Floats
    end_s: float
    name: str = ""

    def __post_init__(self) -> None:
        if len(self.at_s) == 0 or np.any(np.diff(self.at_s) <= 0) or self.end_s < self.at_s[-1]:
            raise InputError(f"The prices {self.name or 'given'} need times that go forward. Sort them.")
        if not np.all(np.isfinite(self.usd_per_h)) or np.any(self.usd_per_h <= 0):
            raise InputError(f"The prices {self.name or 'given'} need to be above 0. Correct or leave out the others.")

    @property
    def days(self) -> float:
        """How long they were watched."""
        return (self.end_s - float(self.at_s[0])) / DAY_S

    @property
    def spans_s(self) -> Floats:
        """How long each price held."""
        return np.diff(np.append(self.at_s, self.end_s))

    @property
    def mean_usd_per_h(self) -> float:
        """Over time."""
        spans_s = self.spans_s
        return float(np.dot(self.usd_per_h, spans_s) / spans_s.sum()) if spans_s.sum() else float(self.usd_per_h[-1])

    def quantile(self, part: float) -> float:
        """The price that is not passed in this part of the time."""
        order = np.argsort(self.usd_per_h)
        below = np.cumsum(self.spans_s[order])
        place = int(np.searchsorted(below, part * below[-1]))
        return float(self.usd_per_h[order][min(place, len(order) - 1)])

    def starts(self, count: int, work_s: float) -> Floats:
        """Moments from which to replay, evenly over the series, with room for the job where there is some."""
        first, last = float(self.at_s[0]), max(float(self.at_s[0]), self.end_s - _ROOM * work_s)
        return np.linspace(first, last, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRule:
    """What the fleet does as the price moves; without any rule it does nothing (static)."""

    cap_usd_per_h: float = math.inf
    """No spot machine is held while one costs more."""
    spend_usd_per_h: float | None = None
    """As many spot machines as this buys; None: a fixed number."""
    least: int = 0
    most: int | None = None
    """With a spend: never fewer, never more; None: twice the fleet."""

    def __post_init__(self) -> None:
        if self.cap_usd_per_h <= 0 or (self.spend_usd_per_h is not None and self.spend_usd_per_h <= 0):
            raise InputError("A price cap and a spend per hour are above 0.")
        if self.least < 0 or (self.most is not None and self.most < max(1, self.least)):
            raise InputError(f"A fleet of {self.least} to {self.most} machines is none. Give a largest size from 1.")

    @property
    def moves(self) -> bool:
        """Whether the price changes the fleet at all."""
        return math.isfinite(self.cap_usd_per_h) or self.spend_usd_per_h is not None

    def most_of(self, machines: int) -> int:
        """The largest fleet of spot machines."""
        if self.spend_usd_per_h is None:
            return machines
        return 2 * machines if self.most is None else self.most

    def wanted(self, usd_per_h: Floats, machines: int) -> Ints:
        """Spot machines to hold at each price."""
        if self.spend_usd_per_h is None:
            sizes = np.full(len(usd_per_h), machines)
        else:
            sizes = np.floor(self.spend_usd_per_h / usd_per_h + 1e-9)
            sizes = np.clip(sizes, self.least, self.most_of(machines))
        return np.where(usd_per_h <= self.cap_usd_per_h, sizes, 0).astype(np.int64)


STATIC = PriceRule()


def steady_spend(prices: Prices, machines: int) -> PriceRule:
    """The dynamic rule that spends on average what the static fleet does: the mean price times its machines."""
    return PriceRule(spend_usd_per_h=prices.mean_usd_per_h * machines)


@dataclass(frozen=True, slots=True)
class Followed:
    """Prices and a rule as the compiled loops take them: relative to a base price, with running sums."""

    at_s: Floats
    relative: Floats
    paid_s: Floats
    """∫ relative price dt up to each time."""
    wanted: Ints
    starts_s: Floats


def followed(prices: Prices | None, rule: PriceRule, machines: int, base: float, count: int, work_s: float) -> Followed:
    """`base` is the spot price the loops multiply by; without prices everything costs just that."""
    if prices is None:
        if rule.moves:
            raise InputError("A price cap or a spend needs prices that move. Give --price-history.")
        one = np.ones(1)
        return Followed(np.zeros(1), one, np.zeros(1), np.full(1, machines, dtype=np.int64), np.zeros(count))
    if base <= 0:
        raise InputError("Prices that move need a spot price above 0 to be measured against.")
    wanted = rule.wanted(prices.usd_per_h, machines)
    if not wanted.any():
        raise InputError(
            f"The price was never at or below {rule.cap_usd_per_h:g} $/h (least {prices.usd_per_h.min():.4g}), so no "
            "machine would ever be held. Give a higher --price-cap or --spend."
        )
    relative = prices.usd_per_h / base
    paid_s = np.concatenate([[0.0], np.cumsum(relative[:-1] * np.diff(prices.at_s))])
    return Followed(prices.at_s.astype(np.float64), relative, paid_s, wanted, prices.starts(count, work_s))
