"""Why a job waits, and until when at most it holds out for something better."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stallwise.cluster.kernels.state import WAITING
from stallwise.cluster.resume import Wait, patience_s
from stallwise.cluster.scheduler import Scheduler
from stallwise.slurm.layout import Layout


@dataclass(frozen=True, slots=True)
class Why:
    """A sentence, and when it ends at the latest; infinite: that depends on other jobs."""

    text: str
    until_s: float = math.inf


def reasons(
    scheduler: Scheduler, layout: Layout, keys: Iterable[str], waits: Sequence[Wait], now_s: float
) -> dict[str, Why]:
    """Of every job that the pass has left waiting."""
    top = len(layout.cluster.levels)
    most = [int(scheduler.space.free[level].max()) for level in range(top + 1)]
    found = {}
    for key in keys:
        index = scheduler.number[key]
        if scheduler.book["state"][index] == WAITING:
            found[key] = _reason(scheduler, layout, key, most, waits, now_s)
    return found


def _reason(
    scheduler: Scheduler, layout: Layout, key: str, most: Sequence[int], waits: Sequence[Wait], now_s: float
) -> Why:
    book, index = scheduler.book, scheduler.number[key]
    gang = int(book["gang"][index])
    waited = now_s - float(book["asked"][index])
    if scheduler.policy.patience.survives:
        waited += float(book["waited"][index])
    offered = next((level for level, free in enumerate(most) if free >= gang), None)
    if offered is None:
        return Why(f"needs {gang} GPUs, {most[-1]} are free", _loosest(scheduler, layout, key, waits, now_s, waited))
    hold = patience_s(scheduler, key, offered, waits)
    if waited < hold:
        wanted = next(level for level in range(offered + 1) if scheduler.space.largest[level] >= gang)
        inside, across = layout.level_name(wanted), layout.level_name(max(offered - 1, 0))
        return Why(f"holds out for one {inside}; {gang} are free only across {across}s", now_s + hold - waited)
    return Why("its turn has not come: jobs before it are not overtaken, or its place is kept for them")


def _loosest(
    scheduler: Scheduler, layout: Layout, key: str, waits: Sequence[Wait], now_s: float, waited: float
) -> float:
    """When it will take any GPUs there are."""
    hold = patience_s(scheduler, key, len(layout.cluster.levels), waits)
    return now_s + max(0.0, hold - waited) if math.isfinite(hold) and hold > waited else math.inf
