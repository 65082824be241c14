"""What a job uses before it is deflated: processor time over whole steps of its ranks.

A loader works in bursts of a whole batch, so that a short look sees one more or one less of them, and with long steps
nothing or a burst only. Over a whole number of steps there are as many bursts as steps, whenever the look begins. How
long a step is a rank says at its door.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from stallwise.deflate import door
from stallwise.deflate.door import Rank
from stallwise.deflate.limits import Target
from stallwise.deflate.processes import PROC, started_at, used_s
from stallwise.errors import InputError

STEPS, SHORT_S, UNKNOWN_S, LONG_S = 50, 2.0, 8.0, 10.0
"""A look is as long as this many steps, but within these bounds; without a rank that could be asked nothing hangs on
it, and it is short."""
_SLICE_S = 0.5
"""Processes are listed anew so often: of one that ends no more is missed."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def ranks_in(target: Target, proc: Path = PROC) -> tuple[list[Rank], Path | None]:
    """Ranks in the target that wait behind a door, and the folder of it: only one that is their user's own."""
    try:
        inside = set(target.members(proc))
        uid = (PROC / str(target.pid or min(inside))).stat().st_uid
        folder = door.folder_of(uid)
        if not door.trusted(folder, uid):
            return [], None
        return [rank for rank in door.doors(folder) if rank.pid in inside], folder
    except (OSError, ValueError):
        return [], None


def able(ranks: Iterable[Rank]) -> list[Rank]:
    """Those that can take another part of the batch."""
    return [rank for rank in ranks if rank.batch is not None and rank.world > 1]


def long_enough_s(ranks: Sequence[Rank]) -> float:
    """How long to look at a target with these ranks in it."""
    asked = able(ranks)
    if not asked:
        return SHORT_S
    told = [rank.step_s for rank in asked if rank.step_s is not None]
    if len(told) < len(asked):
        return UNKNOWN_S
    step_s = max(told)
    steps = min(max(STEPS, math.ceil(SHORT_S / step_s)), int(LONG_S / step_s))
    return steps * step_s if steps else LONG_S


def busy_cores(members: Callable[[], Sequence[int]], look_s: float) -> float:
    """Cores that processes keep busy, those included that are started meanwhile."""
    begin_s, begun = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS_PER_S
    seen, spent_s, lasted_s = _used(members), 0.0, 0.0
    while lasted_s < look_s:
        time.sleep(min(_SLICE_S, look_s - lasted_s))
        now, lasted_s = _used(members), time.monotonic() - begin_s
        spent_s += sum(max(0.0, used - seen.get(pid, _before(pid, used, begun))) for pid, used in now.items())
        seen = now
    return spent_s / lasted_s if lasted_s > 0 else 0.0


def _used(members: Callable[[], Sequence[int]]) -> dict[int, float]:
    """By process; nothing of a group that is gone."""
    try:
        return {pid: used_s(pid) for pid in members()}
    except (OSError, InputError):
        return {}


def _before(pid: int, now_s: float, begun: float) -> float:
    """Of a process that was not seen before: nothing where it is new, all it has where it has come from elsewhere."""
    started = started_at(pid)
    return 0.0 if started is not None and started >= begun - 1 else now_s
