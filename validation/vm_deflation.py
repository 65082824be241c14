"""VM deflation (Fuerst et al., HPDC 2020) one decision at a time, in plain Python.

The simulator makes the same decisions in compiled code for whole traces (`stallwise.overcommit`). Here are a pool of
holders that gives and gets back one resource (5.1), the choice of a host for one machine (5.2), and how often machines
use more than a deflated size would leave them (3): what the paper states and the tests compare the simulator with.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from stallwise.errors import InputError
from stallwise.overcommit._shares import (
    DETERMINISTIC,
    Rule,
    cosine,
    offer,
    priority_milli,
    room_of,
    rule_number,
    share_out,
    switch,
    weight_of,
)
from stallwise.overcommit.resources import Floats, ResourceAmounts, UseSeries


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A machine, pod or job that holds some of a resource and may be shrunk."""

    size: int
    least: int = 0
    """Below this it does not work: loader minimum, resident memory."""
    priority: float = 0.5
    """Above 0, at most 1: the higher, the less it gives. Kept in thousandths."""

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.size:
            raise InputError(f"The minimum must be between 0 and the size of {self.size}, got {self.least}.")
        if not 0 < self.priority <= 1:
            raise InputError(f"The priority must be in (0, 1], got {self.priority}.")

    @property
    def priority_milli(self) -> int:
        return priority_milli(self.priority)


def rooms(holders: Sequence[Holder], rule: Rule) -> tuple[int, ...]:
    """Return the most each holder may lose under a rule."""
    number = rule_number(rule)
    return tuple(int(room_of(number, h.size, h.least, h.priority_milli)) for h in holders)


def reclaim_shares(holders: Sequence[Holder], amount: int, rule: Rule) -> tuple[int, ...]:
    """Return what each holder gives so that the sum is exactly `amount`; nobody falls below its minimum or gains."""
    number, room = rule_number(rule), rooms(holders, rule)
    if not 0 <= amount <= sum(room):
        raise InputError(f"{amount} cannot be reclaimed: these holders can give between 0 and {sum(room)}.")
    taken = [0] * len(holders)
    priority = [holder.priority_milli for holder in holders]
    if number == DETERMINISTIC:
        switch(room, priority, taken, len(holders), amount)
    else:
        share_out(room, [weight_of(number, one) for one in priority], taken, len(holders), amount)
    return tuple(taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The holders on one host, and how much of their sizes is taken from them in all."""

    holders: tuple[Holder, ...]
    rule: Rule = "proportional"
    taken: int = 0

    @property
    def most(self) -> int:
        """The most that may be taken from all holders together."""
        return sum(rooms(self.holders, self.rule))

    @property
    def held(self) -> tuple[int, ...]:
        """What each holder has left."""
        taken = reclaim_shares(self.holders, self.taken, self.rule)
        return tuple(holder.size - one for holder, one in zip(self.holders, taken, strict=True))

    def reclaim(self, amount: int) -> Self:
        """Deflate: take `amount` more."""
        if amount > self.most - self.taken:
            raise InputError(
                f"{amount} cannot be reclaimed: {self.most - self.taken} is left above the minima. Stop a holder, or "
                "take less."
            )
        return replace(self, taken=self.taken + amount)

    def give_back(self, amount: int) -> Self:
        """Reinflate; nobody grows beyond its size, any excess stays free."""
        return replace(self, taken=max(0, self.taken - amount))


NOTHING = ResourceAmounts()
_SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """A server and the machines on it, as sums: one decision of what `kernels` does for all.

    1. A host is out where some resource would not suffice even with everybody on it at their minimum (admission).
    2. Hosts with room come before hosts that must shrink somebody.
    3. Among these the highest fitness wins: the cosine between demand and offer, both as fractions of the host.
    4. Of equally fit ones the less overcommitted is taken.
    """

    total: ResourceAmounts
    firm: ResourceAmounts = NOTHING
    """Held by machines that are never shrunk."""
    soft: ResourceAmounts = NOTHING
    """The sizes of the others."""
    room: ResourceAmounts = NOTHING
    """The most these may lose."""

    @property
    def overcommitted(self) -> float:
        """Highest ratio of requested to available amount over the resources."""
        rows = zip(self.firm, self.soft, self.total, strict=True)
        return max(((firm + soft) / total for firm, soft, total in rows if total), default=0.0)

    def offers(self) -> tuple[float, ...]:
        """What the host offers of each resource, as fractions of its total."""
        rows = zip(self.total, self.firm, self.soft, self.room, strict=True)
        return tuple(float(offer(*row)) / max(1, row[0]) for row in rows)

    def missing(self, size: ResourceAmounts) -> tuple[int, ...]:
        """Amounts that would have to be reclaimed for one more machine."""
        rows = zip(self.total, self.firm, self.soft, size, strict=True)
        return tuple(max(0, firm + soft + more - total) for total, firm, soft, more in rows)

    def admits(self, size: ResourceAmounts, loss: ResourceAmounts | None = None) -> bool:
        """Whether one more machine fits with everybody at their minimum; `loss` is what it may itself lose."""
        own = loss or NOTHING
        rows = zip(self.missing(size), self.room, own, strict=True)
        return all(lack <= room + mine for lack, room, mine in rows)


def fitness(demand: Sequence[float], offered: Sequence[float]) -> float:
    """Return 1 where the demand is parallel to what is offered, 0 where nothing is offered."""
    return float(cosine(demand, offered, len(demand)))


def best_host(size: ResourceAmounts, hosts: Sequence[HostLoad], loss: ResourceAmounts | None = None) -> int | None:
    """Return the index of the host a machine goes to; None: it is refused."""
    best: tuple[int, bool, float, float] | None = None
    for place, host in enumerate(hosts):
        if not host.admits(size, loss):
            continue
        free = not any(host.missing(size))
        demand = [one / max(1, total) for one, total in zip(size, host.total, strict=True)]
        candidate = (place, free, fitness(demand, host.offers()), host.overcommitted)
        if best is None or _better(candidate, best):
            best = candidate
    return None if best is None else best[0]


def _better(one: tuple[int, bool, float, float], other: tuple[int, bool, float, float]) -> bool:
    if one[1] != other[1]:
        return one[1]
    if abs(one[2] - other[2]) > _SAME:
        return one[2] > other[2]
    return one[3] < other[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeflationLevel:
    """Machines shrunk by one fraction of their size."""

    deflation: float
    above_median: float
    """Fraction of the time in which use is above what is left, of the median machine."""
    above_mean: float
    loss: float | None
    """Use above what is left as a fraction of all use; None where only peaks are known."""


def fraction_above(peak: UseSeries, deflation: float) -> Floats:
    """Return, for each machine, the fraction of slots whose peak use is above the deflated size."""
    return np.asarray((peak.part > 1 - deflation).mean(axis=1))


def use_cut_off(use: UseSeries, deflation: float) -> float:
    """Return the use above the deflated size as a fraction of all use, of all machines together."""
    whole = float(use.part.sum())
    return float(np.maximum(0.0, use.part - (1 - deflation)).sum()) / whole if whole > 0 else 0.0


def deflation_levels(
    peak: UseSeries, mean: UseSeries | None, deflations: Sequence[float]
) -> tuple[DeflationLevel, ...]:
    """Compute both figures at each deflation: how often from peaks, how much from means."""
    for deflation in deflations:
        if not 0 <= deflation < 1:
            raise InputError(f"A deflation must be in [0, 1), got {deflation}.")
    return tuple(
        DeflationLevel(
            deflation=part,
            above_median=float(np.median(fraction_above(peak, part))),
            above_mean=float(fraction_above(peak, part).mean()),
            loss=None if mean is None else use_cut_off(mean, part),
        )
        for part in deflations
    )
