"""Making room in a full cache: dead writers first, then what the policy gives up."""

import math
import time

from stallwise.data.entries import Entries
from stallwise.data.ledger import Head, Ledger, Page
from stallwise.data.packs import Packs
from stallwise.data.policy import OVERDUE_S, Policy, may_replace
from stallwise.data.table import DamagedError, Place

# Once in so long, by whoever finds it full first.
_TIDY_S = 10.0


class Room:
    """Decides what fits. Everything that takes a `Page` is called by the holder of the ledger's lock."""

    def __init__(self, entries: Entries | Packs, ledger: Ledger, policy: Policy, limit_bytes: int) -> None:
        self._entries, self._ledger, self._policy, self._limit_bytes = entries, ledger, policy, limit_bytes

    def might_fit(self, key: bytes, charge: int, rank: float) -> bool:
        """A quick look without the lock: whether it is worth claiming an object in order to keep it."""
        head = self._ledger.peek()
        if head is None:
            return True
        free_bytes = self.limit_bytes(head) - head.totals.used_bytes
        if charge <= free_bytes or _is_tidying_due(head):
            return True
        if self._policy == "no-evict" and self._ledger.knows(key):
            return True  # its file was removed by somebody: the room is its own
        if charge > self.limit_bytes(head):
            return False
        try:
            return may_replace(self._policy, rank, self._ledger.table(head).highest_bound())
        except DamagedError:
            return True

    def make(self, page: Page, charge: int, rank: float) -> int | None:
        """Evict until `charge` fits, and say how many had to go; None, and nobody goes, if it is not to be kept."""
        if self._lacks_bytes(page, charge) > 0 and _is_tidying_due(page.head):
            self.tidy(page)
        if charge > self.limit_bytes(page.head):
            return None
        victims: list[Place] = []
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

    def shrink(self, page: Page) -> int:
        """Evict, under any policy, until the limit is kept; how many had to go."""
        number = 0
        while self._lacks_bytes(page, 0) > 0 and (victim := page.table.highest()):
            self.evict(page, victim)
            number += 1
        return number

    def evict(self, page: Page, victim: Place) -> None:
        """Remove an entry and its record. The file goes first: what is charged is never less than what is there."""
        self._entries.remove(victim.key)
        page.table.drop(victim)

    def tidy(self, page: Page) -> None:
        """Take back what dead writers were charged; follow a limit that was lifted; forget uses long overdue."""
        page.head.tidied_s = time.time()
        page.head.limit_bytes = self._ledger.lowest_limit_bytes()
        for place in page.table.being_written():
            if not self._ledger.claims.is_live(place.key):
                self._settle(page, place)
        if self._policy == "farthest":
            page.table.demote(time.time() - OVERDUE_S)

    def _settle(self, page: Page, place: Place) -> None:
        """A writer died: before it renamed its part, or right after."""
        self._entries.remove_part(place.key)
        if self._entries.contains(place.key):
            page.table.finish(place)
        else:
            page.table.drop(place)

    def limit_bytes(self, head: Head) -> int:
        """The limit that holds now."""
        return min(self._limit_bytes, head.limit_bytes)

    def _lacks_bytes(self, page: Page, charge: int) -> int:
        return page.table.totals.used_bytes + charge - self.limit_bytes(page.head)


def _is_tidying_due(head: Head) -> bool:
    return abs(time.time() - head.tidied_s) > _TIDY_S
