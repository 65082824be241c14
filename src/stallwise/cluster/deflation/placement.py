"""Which host suits a machine, and whether it may take one more: what `kernels/hosting.py` does, for one decision.

1. A host is out where some resource would not suffice even with everybody on it at their minimum (admission control).
2. Hosts with room come before hosts that must shrink somebody.
3. Among these the highest fitness wins: the cosine between what is asked and what is offered,
   A = total - used + deflatable / overcommitted, both as parts of the host (HPDC 2020, 5.2).
4. Where two fit alike, the one that is less overcommitted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stallwise.cluster.deflation.resources import NOTHING, Amounts
from stallwise.cluster.kernels.shares import cosine, offer

_SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A server and what is on it."""

    total: Amounts
    firm: Amounts = NOTHING
    """Held by machines nobody shrinks."""
    soft: Amounts = NOTHING
    """The sizes of the others."""
    room: Amounts = NOTHING
    """The most these may lose."""

    @property
    def overcommitted(self) -> float:
        """The most that is asked of any resource over what there is."""
        asked = zip(self.firm, self.soft, self.total, strict=True)
        return max(((firm + soft) / total for firm, soft, total in asked if total), default=0.0)

    def offers(self) -> tuple[float, ...]:
        """A, as parts of the host."""
        rows = zip(self.total, self.firm, self.soft, self.room, strict=True)
        return tuple(float(offer(*row)) / max(1, row[0]) for row in rows)

    def missing(self, size: Amounts) -> tuple[int, ...]:
        """What would have to be reclaimed of each resource for one more machine."""
        rows = zip(self.total, self.firm, self.soft, size, strict=True)
        return tuple(max(0, firm + soft + more - total) for total, firm, soft, more in rows)

    def admits(self, size: Amounts, loss: Amounts | None = None) -> bool:
        """Whether one more fits with everybody at their minimum; `loss` is what it may itself lose."""
        own = loss or NOTHING
        rows = zip(self.missing(size), self.room, own, strict=True)
        return all(lack <= room + mine for lack, room, mine in rows)


def fitness(asked: Sequence[float], offered: Sequence[float]) -> float:
    """1 where a demand points the way of what is offered, 0 where nothing is offered."""
    return float(cosine(asked, offered, len(asked)))


def best_host(size: Amounts, hosts: Sequence[Host], loss: Amounts | None = None) -> int | None:
    """The place of the host a machine goes to; None: it is refused."""
    found: tuple[int, bool, float, float] | None = None
    for place, host in enumerate(hosts):
        if not host.admits(size, loss):
            continue
        free = not any(host.missing(size))
        asked = [one / max(1, total) for one, total in zip(size, host.total, strict=True)]
        here = (place, free, fitness(asked, host.offers()), host.overcommitted)
        if found is None or _better(here, found):
            found = here
    return None if found is None else found[0]


def _better(here: tuple[int, bool, float, float], other: tuple[int, bool, float, float]) -> bool:
    if here[1] != other[1]:
        return here[1]
    if abs(here[2] - other[2]) > _SAME:
        return here[2] > other[2]
    return here[3] < other[3]
