"""Who gives how much of one resource when an amount is reclaimed, and how they get it back.

The policies of VM deflation (Fuerst et al., HPDC 2020, 5.1). M is a holder's size, m its minimum, π its priority:

| rule             | gives, at most M - m           |
| proportional     | M (1 - a)                      |
| minimum          | (M - m)(1 - a)                 |
| priority         | M (1 - a π)                    |
| priority-minimum | (M - m)(1 - a π), m ≥ π M      |
| deterministic    | M - m or nothing, m ≥ π M      |

In the paper the first and the third are of machines without a minimum. Where one has one, M - m stands in M's place:
nobody falls below its minimum under any rule.

What each gives is a function of the *total* that is taken, never of the way there: taking R and giving R back restores
every holder, and so does any other order of the same changes. Amounts are whole units of what an actuator can set.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

from stallwise.cluster.kernels.shares import DETERMINISTIC, WHOLE, room_of, share_out, switch, weight_of
from stallwise.errors import InputError, UnknownNameError

Rule = Literal["proportional", "minimum", "priority", "priority-minimum", "deterministic"]
RULES: tuple[Rule, ...] = get_args(Rule)


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
            raise InputError(f"A minimum of {self.least} does not lie between 0 and the size of {self.size}.")
        if not 0 < self.priority <= 1:
            raise InputError(f"A priority lies above 0 and at most at 1, not at {self.priority}.")

    @property
    def priority_milli(self) -> int:
        """In thousandths, at least one."""
        return milli(self.priority)


def milli(priority: float) -> int:
    """A priority in thousandths, at least one: the rules divide by it."""
    return max(1, round(WHOLE * priority))


def rule_number(rule: str) -> int:
    """Its place in `RULES`, which is what compiled code knows it by."""
    if rule not in RULES:
        raise UnknownNameError("rule of deflation", rule, RULES)
    return RULES.index(rule)


def rooms(holders: Sequence[Holder], rule: Rule) -> tuple[int, ...]:
    """The most each may lose under a rule."""
    number = rule_number(rule)
    return tuple(int(room_of(number, h.size, h.least, h.priority_milli)) for h in holders)


def reclaimed(holders: Sequence[Holder], amount: int, rule: Rule) -> tuple[int, ...]:
    """What each gives so that `amount` is free in all: the sum is exact, nobody falls below its minimum or gains."""
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
        """What may be taken in all."""
        return sum(rooms(self.holders, self.rule))

    @property
    def held(self) -> tuple[int, ...]:
        """What each has left."""
        given = reclaimed(self.holders, self.taken, self.rule)
        return tuple(holder.size - one for holder, one in zip(self.holders, given, strict=True))

    def reclaim(self, amount: int) -> Self:
        """Deflate: take so much more."""
        if amount > self.most - self.taken:
            raise InputError(
                f"{amount} cannot be reclaimed: {self.most - self.taken} is left above the minima. Stop a holder, or "
                "take less."
            )
        return replace(self, taken=self.taken + amount)

    def give_back(self, amount: int) -> Self:
        """Reinflate; nobody grows beyond its size, what is more stays free."""
        return replace(self, taken=max(0, self.taken - amount))
