"""Which node an object belongs to: rendezvous hashing (Thaler and Ravishankar, IEEE/ACM ToN 1998).

Every node gives every object a score, and the highest keeps it. All nodes compute the same without a directory. When a
node leaves, only its objects move, each to the node with the next score; when one joins, it takes an even share of
everybody's, and the node that had an object before is now the second: asked next, it still has it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import xxhash


@dataclass(frozen=True, slots=True)
class Member:
    """A node of the group: its identity follows its cache folder over restarts; `slot` counts arrivals."""

    id: str
    host: str
    port: int
    slot: int


def ranked(key: bytes, members: Iterable[Member]) -> Sequence[Member]:
    """The nodes in the order in which they should keep the object."""
    return sorted(members, key=lambda member: _score(key, member.id), reverse=True)


def _score(key: bytes, identity: str) -> tuple[int, str]:
    return xxhash.xxh3_64_intdigest(identity.encode() + key), identity
