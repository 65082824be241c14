"""Eviction: which entry leaves a full cache (the one with the highest rank), and making room for a new one.

    no-evict   nothing is evicted (MinIO of CoorDL, Mohan et al., VLDB 2021) except guests: objects that belong to
               another node's cache, kept only while there is room; ranks otherwise only order a shrinking
    packed     as no-evict, with many small objects in few large files (`packs`); ranks are positions in them
    fifo       -n of the n-th insertion
    lru        -n of the n-th insertion or hit
    farthest   the estimated time of the next use (Belady, 1966); unknown is farthest of all. An object that would
               itself be the farthest is not admitted (bypass), so that without any estimates nothing is evicted
    importance minus the sample's weight in importance sampling (SHADE, Khan et al., FAST 2023): a miss is admitted only
               where it outranks the least important entry. Goes with `ImportanceSampler`, which changes what is read

Training reads everything once per epoch, so the most recently used sample is needed last: FIFO and LRU evict what the
next epoch needs first and are here for comparison and for other access patterns. Room is made first by taking back what
dead writers were charged, then by the policy.
"""

import math
import time

from stallwise.data.cache._index import RANKED, CacheIndex, CachePolicy, IndexHeader, LockedIndex
from stallwise.data.cache._packs import EntryPacks
from stallwise.data.cache._table import DamagedError, TableSlot
from stallwise.data.cache.files import EntryFiles

# An entry whose use was due this long ago belongs to a job that ended or changed its order: no reader is expected.
OVERDUE_S = 3600.0

GUEST_RANK = math.inf


def rank_of_insert(policy: CachePolicy, number: int, next_use_s: float | None, *, guest: bool = False) -> float:
    """Return the rank of an entry that is inserted as the `number`-th event."""
    if guest and policy == "no-evict":
        return GUEST_RANK
    return _farness(next_use_s) if policy in RANKED else -float(number)


def rank_of_hit(policy: CachePolicy, number: int, next_use_s: float | None) -> float | None:
    """Return the new rank of an entry that is hit; None where a hit changes nothing."""
    if policy == "lru":
        return -float(number)
    return _farness(next_use_s) if policy in RANKED else None


def counts_hits(policy: CachePolicy) -> bool:
    """Whether a hit changes a rank."""
    return policy == "lru" or policy in RANKED


def may_replace(policy: CachePolicy, rank: float, victim: float) -> bool:
    """Whether an object of `rank` may replace an entry of rank `victim`."""
    if policy in ("no-evict", "packed"):
        return rank < victim == GUEST_RANK
    return policy not in RANKED or rank < victim


def _farness(next_use_s: float | None) -> float:
    return math.inf if next_use_s is None or math.isnan(next_use_s) else next_use_s


# Dead writers are looked for at most this often, by the first process that finds the cache full.
_TIDY_S = 10.0


class Evictor:
    """Decides what fits. Every method that takes a `LockedIndex` is called by the holder of the index's lock."""

    def __init__(
        self, entries: EntryFiles | EntryPacks, index: CacheIndex, policy: CachePolicy, limit_bytes: int
    ) -> None:
        self._entries, self._index, self._policy, self._limit_bytes = entries, index, policy, limit_bytes

    def might_fit(self, key: bytes, charge: int, rank: float) -> bool:
        """Whether it is worth claiming an object in order to keep it: a quick check without the lock."""
        head = self._index.peek()
        if head is None:
            return True
        free_bytes = self.limit_bytes(head) - head.totals.used_bytes
        if charge <= free_bytes or _is_tidying_due(head):
            return True
        if self._policy == "no-evict" and self._index.contains(key):
            return True  # its file was removed from outside: its room is still charged
        if charge > self.limit_bytes(head):
            return False
        try:
            return may_replace(self._policy, rank, self._index.table(head).highest_bound())
        except DamagedError:
            return True

    def make_room(self, page: LockedIndex, charge: int, rank: float) -> int | None:
        """Evict until `charge` bytes fit and return how many entries; None, without evicting, if it is not kept."""
        if self._lacks_bytes(page, charge) > 0 and _is_tidying_due(page.head):
            self.tidy(page)
        if charge > self.limit_bytes(page.head):
            return None
        victims: list[TableSlot] = []
        missing = self._lacks_bytes(page, charge)
        while missing > 0:
            victim = page.table.highest()
            if victim is None or not may_replace(self._policy, rank, victim.rank):
                for spared in victims:
                    page.table.set_rank(spared, spared.rank)
                return None
            page.table.set_rank(victim, -math.inf)
            victims.append(victim)
            missing -= victim.charge
        for victim in victims:
            self.evict(page, victim)
        return len(victims)

    def shrink(self, page: LockedIndex) -> int:
        """Evict, under any policy, until the limit is kept; return how many entries."""
        number = 0
        while self._lacks_bytes(page, 0) > 0 and (victim := page.table.highest()):
            self.evict(page, victim)
            number += 1
        return number

    def evict(self, page: LockedIndex, victim: TableSlot) -> None:
        """Remove an entry and its record. The file first: the charge is never below what lies on the disk."""
        self._entries.remove(victim.key)
        page.table.drop(victim)

    def tidy(self, page: LockedIndex) -> None:
        """Take back what dead writers were charged, apply a raised limit, demote entries long overdue."""
        page.head.tidied_s = time.time()
        page.head.limit_bytes = self._index.lowest_limit_bytes()
        for slot in page.table.being_written():
            if not self._index.locks.is_live(slot.key):
                self._settle(page, slot)
        if self._policy == "farthest":
            page.table.demote(time.time() - OVERDUE_S)

    def _settle(self, page: LockedIndex, slot: TableSlot) -> None:
        """Finish or drop the record of a writer that died before it renamed its part, or right after."""
        self._entries.remove_part(slot.key)
        if self._entries.contains(slot.key):
            page.table.finish(slot)
        else:
            page.table.drop(slot)

    def limit_bytes(self, head: IndexHeader) -> int:
        """Return the limit in force: the lower of this process's and the index's."""
        return min(self._limit_bytes, head.limit_bytes)

    def _lacks_bytes(self, page: LockedIndex, charge: int) -> int:
        return page.table.totals.used_bytes + charge - self.limit_bytes(page.head)


def _is_tidying_due(head: IndexHeader) -> bool:
    return abs(time.time() - head.tidied_s) > _TIDY_S
