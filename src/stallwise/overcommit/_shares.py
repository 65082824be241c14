"""Who gives how much of a resource when an amount is reclaimed, and how well a host suits a machine.

The policies of VM deflation (Fuerst et al., HPDC 2020, 5.1). M is a holder's size, m its minimum, π its priority:

| rule             | gives, at most M - m           |
| ---------------- | ------------------------------ |
| proportional     | M (1 - a)                      |
| minimum          | (M - m)(1 - a)                 |
| priority         | M (1 - a π)                    |
| priority-minimum | (M - m)(1 - a π), m ≥ π M      |
| deterministic    | M - m or nothing, m ≥ π M      |

In the paper the first and the third are of machines without a minimum. Where one has one, M - m replaces M: nobody
falls below its minimum under any rule.

What each gives is a function of the *total* that is taken, never of the order: taking R and giving R back restores
every holder, and so does any other order of the same changes. Amounts are whole units of what an actuator can set
(thousandths of a core, MiB), so that sums are exact. The functions from `room_of` to `offer` are plain loops over
integers that allocate nothing, so that Python can call them as they are and `kernels` compiles them.
"""

import math
from collections.abc import MutableSequence, Sequence
from typing import Literal, get_args

from stallwise.errors import UnknownNameError

PROPORTIONAL, MINIMUM, PRIORITY, PRIORITY_MINIMUM, DETERMINISTIC = 0, 1, 2, 3, 4
"""Rules, in the order of `RULES`."""
WHOLE = 1000
"""A priority of 1, in thousandths."""


def room_of(rule: int, size: int, least: int, priority: int) -> int:
    """Return the most a holder may lose: its size less its minimum.

    The minimum is its own; under (4) and the deterministic rule priority · size, if that is more. In the paper (1) and
    (3) are of holders without one: with a minimum (1) is (2), and (3) is the same equation over M - m.
    """
    if rule in (PRIORITY_MINIMUM, DETERMINISTIC):
        return size - max(least, (size * priority + WHOLE - 1) // WHOLE)
    return size - least


def weight_of(rule: int, priority: int) -> int:
    """Return the weight that spares a holder: its priority, or 1 where the rule ignores priorities."""
    return priority if rule in (PRIORITY, PRIORITY_MINIMUM) else 1


def share_out(room: Sequence[int], weight: Sequence[int], taken: MutableSequence[int], count: int, amount: int) -> None:
    """Take `amount` from `count` holders: x_i = room_i (1 - a w_i), holders with x_i < 0 give nothing.

    VM deflation (Fuerst et al., HPDC 2020), equations (1) to (4) with one a for all of them:
    a = (sum room - amount) / sum(room w) over the holders with a w < 1. The equations alone make x negative for a high
    priority; such holders are left out and the rest is solved again (water filling), highest weights first. The rest
    of rounding down goes to the largest remainders, lower weights first: the sum is `amount` to the unit, and of two
    equal holders the one of higher priority never gives more.
    """
    limit = 0
    for i in range(count):
        limit = max(limit, weight[i])
    while True:
        total, mass, next_limit = 0, 0, 0
        for i in range(count):
            if weight[i] <= limit:
                total += room[i]
                mass += room[i] * weight[i]
        kept = total - amount
        for i in range(count):
            if weight[i] <= limit and kept * weight[i] < mass:
                next_limit = max(next_limit, weight[i])
        if next_limit == limit or next_limit == 0:
            break
        limit = next_limit
    left = amount
    for i in range(count):
        taken[i] = 0
        if weight[i] <= limit and mass > 0:
            taken[i] = room[i] * (mass - kept * weight[i]) // mass
            left -= taken[i]
    while left > 0:
        best, most = 0, -1
        for i in range(count):
            if weight[i] > limit:
                continue
            rest = room[i] * (mass - kept * weight[i]) - taken[i] * mass
            if rest > most or (rest == most and weight[i] < weight[best]):
                best, most = i, rest
        taken[best] += 1
        left -= 1


def switch(room: Sequence[int], priority: Sequence[int], taken: MutableSequence[int], count: int, amount: int) -> None:
    """Take `amount` by the deterministic rule: holders go from size to minimum one by one, lowest priority first.

    The last gives only what is still missing, so that the sum is exact: all others are at one of their two sizes. (The
    paper says "in decreasing priority" and evaluates the opposite, which is done here: high priority, less deflation.)
    """
    left = amount
    for i in range(count):
        taken[i] = 0
    last, at = 0, -1
    while left > 0:
        lowest, holder = WHOLE * WHOLE, -1
        for i in range(count):
            later = priority[i] > last or (priority[i] == last and i > at)
            if later and priority[i] < lowest:
                lowest, holder = priority[i], i
        last, at = lowest, holder
        taken[holder] = min(room[holder], left)
        left -= taken[holder]


def cosine(demand: Sequence[float], offered: Sequence[float], count: int) -> float:
    """Cosine of a demand and what a host offers: 1 where they are parallel, 0 where the host offers nothing."""
    dot, demand_2, offered_2 = 0.0, 0.0, 0.0
    for r in range(count):
        dot += demand[r] * offered[r]
        demand_2 += demand[r] * demand[r]
        offered_2 += offered[r] * offered[r]
    if demand_2 <= 0.0 or offered_2 <= 0.0:
        return 0.0
    return dot / (math.sqrt(demand_2) * math.sqrt(offered_2))


def offer(total: int, firm: int, soft: int, room: int) -> float:
    """Amount of one resource that a host offers: free, and what may still be taken, less where it is overcommitted.

    A = total - used + deflatable / overcommitted (HPDC 2020, 5.2). `firm` is held by machines that are never
    shrunk, `soft` the size of the others, `room` the most these may lose.
    """
    requested = firm + soft
    taken = max(0, requested - total)
    if total <= 0:
        return 0.0
    return total - (requested - taken) + (room - taken) / max(1.0, requested / total)


Rule = Literal["proportional", "minimum", "priority", "priority-minimum", "deterministic"]
RULES: tuple[Rule, ...] = get_args(Rule)


def priority_milli(priority: float) -> int:
    """Convert a priority to thousandths, at least one: the rules divide by it."""
    return max(1, round(WHOLE * priority))


def rule_number(rule: str) -> int:
    """Return the index of a rule in `RULES`, by which compiled code knows it."""
    if rule not in RULES:
        raise UnknownNameError("rule of deflation", rule, RULES)
    return RULES.index(rule)
