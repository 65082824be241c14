"""The pick and the front.

A deadline: the cheapest bid that keeps it. A budget: the quickest that keeps it. Both: the cheapest that keeps both.
Neither: the cheapest that is no slower than the job is where it runs now. Ties go to the cheaper, the quicker, the
smaller, then by name, so that the same question has the same answer.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stallwise.cloud.bids import Bids
from stallwise.cloud.fleets import Numbers
from stallwise.cloud.wish import Wish
from stallwise.model.steps import Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Columns of the bids: the pick (None: nothing keeps the limits), and the front by time."""

    pick: int | None
    front: tuple[int, ...]


def choose(bids: Bids, wish: Wish, here_s: float | None) -> Choice:
    """The pick among `bids`; `here_s` is the job's time where it runs now."""
    good = keeps(bids, wish)
    if not wish.limited and here_s is not None and (good & (bids.job_s <= here_s)).any():
        good &= bids.job_s <= here_s
    fastest = wish.budget_usd is not None and wish.deadline_s is None
    return Choice(
        pick=_first(bids, np.flatnonzero(good), quickest=fastest),
        front=tuple(front(bids.job_s, bids.usd).tolist()),
    )


def keeps(bids: Bids, wish: Wish) -> npt.NDArray[np.bool_]:
    """Which bids keep the limits with the probability asked for."""
    good = np.isfinite(bids.job_s) & np.isfinite(bids.usd)
    if wish.deadline_s is not None:
        good &= bids.sure_s <= wish.deadline_s
    if wish.budget_usd is not None:
        good &= bids.sure_usd <= wish.budget_usd
    return good


def _first(bids: Bids, columns: Numbers, *, quickest: bool) -> int | None:
    if not len(columns):
        return None
    first, second = (bids.job_s, bids.usd) if quickest else (bids.usd, bids.job_s)
    order = np.lexsort((bids.nodes[columns], second[columns], first[columns]))
    best = columns[order]
    alike = best[(first[best] == first[best[0]]) & (second[best] == second[best[0]])]
    return int(min(alike.tolist(), key=lambda column: (int(bids.nodes[column]), _name(bids, column))))


def _name(bids: Bids, column: int) -> tuple[str, ...]:
    return bids.offers[int(bids.offer[column])].offer.key


def front(time_s: Columns, usd: Columns) -> Numbers:
    """Columns that nothing beats in both, quickest first."""
    order = np.lexsort((usd, time_s))
    order = order[np.isfinite(time_s[order]) & np.isfinite(usd[order])]
    cheapest = np.minimum.accumulate(usd[order]) if len(order) else usd[order]
    better = np.ones(len(order), dtype=bool)
    better[1:] = usd[order][1:] < cheapest[:-1]
    found: Numbers = order[better]
    return found
