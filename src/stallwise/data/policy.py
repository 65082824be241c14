"""Which entry leaves a full cache: the one with the highest rank.

    no-evict   nothing leaves (MinIO of CoorDL, Mohan et al., VLDB 2021) but guests: objects that belong to another
               node's cache, kept here only while there is room; ranks otherwise only order a shrinking
    packed     as no-evict, with many small objects in few large files (`packs`); ranks are places in them
    fifo       -n of the n-th insertion
    lru        -n of the n-th insertion or hit
    farthest   the estimated time of the next use (Belady, 1966); unknown is farthest of all. An object that would
               itself be the farthest is not admitted (bypass), so that without any estimates nothing is evicted
    importance minus the sample's weight in importance sampling (SHADE, Khan et al., FAST 2023): a miss is admitted only
               where it outranks the least important entry. Goes with `ImportanceSampler`, which changes what is read

Training reads everything once per epoch, so what was used last is wanted last: FIFO and LRU evict what the next
epoch needs first and are here for comparison and for other kinds of reading.
"""

import math
from typing import Literal, get_args

Policy = Literal["no-evict", "farthest", "lru", "fifo", "importance", "packed"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

# An entry whose use was due this long ago belongs to a job that ended or went another way: nobody is known to want it.
OVERDUE_S = 3600.0

GUEST_RANK = math.inf

RANKED: frozenset[Policy] = frozenset({"farthest", "importance"})
"""Whoever reads says where an entry stands; one that nobody has said anything of is the first to go."""


def rank_of_insert(policy: Policy, number: int, next_use_s: float | None, *, guest: bool = False) -> float:
    """The rank of an entry that comes in as the `number`-th event."""
    if guest and policy == "no-evict":
        return GUEST_RANK
    return _farness(next_use_s) if policy in RANKED else -float(number)


def rank_of_hit(policy: Policy, number: int, next_use_s: float | None) -> float | None:
    """The rank of an entry that is hit; None where a hit changes nothing."""
    if policy == "lru":
        return -float(number)
    return _farness(next_use_s) if policy in RANKED else None


def counts_hits(policy: Policy) -> bool:
    """Whether a hit changes a rank."""
    return policy == "lru" or policy in RANKED


def may_replace(policy: Policy, rank: float, victim: float) -> bool:
    """Whether an object of `rank` may take the place of an entry of rank `victim`."""
    if policy in ("no-evict", "packed"):
        return rank < victim == GUEST_RANK
    return policy not in RANKED or rank < victim


def _farness(next_use_s: float | None) -> float:
    return math.inf if next_use_s is None or math.isnan(next_use_s) else next_use_s
