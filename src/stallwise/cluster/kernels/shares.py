"""Who gives how much of one resource, and which host suits: whole numbers, plain loops, one text for Python and numba.

`kernels/hosting.py` compiles these; `cluster/deflation/algebra.py` calls them as they are. Amounts are whole units of
whatever an actuator can set (thousandths of a core, MiB): so sums are exact and what was taken can be given back to
the unit. Nothing here makes an array: results go where the caller says.
"""

import math
from collections.abc import MutableSequence, Sequence

PROPORTIONAL, MINIMUM, PRIORITY, PRIORITY_MINIMUM, DETERMINISTIC = 0, 1, 2, 3, 4
"""Rules, in the order of `algebra.RULES`."""
WHOLE = 1000
"""A priority of 1, in thousandths."""


def room_of(rule: int, size: int, least: int, priority: int) -> int:
    """The most a holder may lose: its size less its minimum.

    That is its own; under (4) and the deterministic rule priority · size, if that is more. In the paper (1) and (3) are
    of holders without one: with a minimum (1) is (2), and (3) is the same equation over M - m.
    """
    if rule in (PRIORITY_MINIMUM, DETERMINISTIC):
        return size - max(least, (size * priority + WHOLE - 1) // WHOLE)
    return size - least


def weight_of(rule: int, priority: int) -> int:
    """How strongly a holder is spared: its priority, or 1 where the rule does not look at it."""
    return priority if rule in (PRIORITY, PRIORITY_MINIMUM) else 1


def share_out(room: Sequence[int], weight: Sequence[int], taken: MutableSequence[int], count: int, amount: int) -> None:
    """Take `amount` from `count` holders: x_i = room_i (1 - a w_i), those that would get something give nothing.

    VM deflation (Fuerst et al., HPDC 2020), equations (1) to (4) with one a for all of them:
    a = (sum room - amount) / sum(room w) over the holders with a w < 1. The equations alone make x negative for a high
    priority; such holders are left out and the rest is solved again (water filling), the spared first. What the whole
    units leave over goes to the largest remainders, lower weights first: the sum is `amount` to the unit, and of two
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
    """Deterministic: holders go from their size to their minimum one by one, lowest priority first.

    The last gives only what is still missing, so that the sum is exact: all others are at one of their two sizes. (The
    paper says "in decreasing priority" and evaluates the opposite; high priority means less deflation, so this is it.)
    """
    left = amount
    for i in range(count):
        taken[i] = 0
    last, at = 0, -1
    while left > 0:
        lowest, who = WHOLE * WHOLE, -1
        for i in range(count):
            later = priority[i] > last or (priority[i] == last and i > at)
            if later and priority[i] < lowest:
                lowest, who = priority[i], i
        last, at = lowest, who
        taken[who] = min(room[who], left)
        left -= taken[who]


def cosine(asked: Sequence[float], offered: Sequence[float], count: int) -> float:
    """How well a demand fits what a host offers: 1 where they point the same way, 0 where the host offers nothing."""
    dot, here, there = 0.0, 0.0, 0.0
    for r in range(count):
        dot += asked[r] * offered[r]
        here += asked[r] * asked[r]
        there += offered[r] * offered[r]
    if here <= 0.0 or there <= 0.0:
        return 0.0
    return dot / (math.sqrt(here) * math.sqrt(there))


def offer(total: int, firm: int, soft: int, room: int) -> float:
    """What a host offers of one resource: free, and what may still be taken, less where it is overcommitted.

    A = total - used + deflatable / overcommitted (HPDC 2020, 5.2). `firm` is held by those nobody shrinks, `soft` the
    size of the others, `room` the most these may lose.
    """
    asked = firm + soft
    taken = max(0, asked - total)
    if total <= 0:
        return 0.0
    return total - (asked - taken) + (room - taken) / max(1.0, asked / total)
