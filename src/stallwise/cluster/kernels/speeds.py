"""How fast running jobs are where they are: from a table of shapes that Python fills as new ones are met."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from stallwise.cluster.kernels.compiled import inner
from stallwise.cluster.kernels.events import plan_end, plan_lease, plan_queue
from stallwise.cluster.kernels.holding import settle
from stallwise.cluster.kernels.shrinking import kept_speed
from stallwise.cluster.kernels.space import key_of
from stallwise.cluster.kernels.state import N_NEED, RUNNING


@inner
def known_speed(rules, book, space, desk, job):
    """Speed of a job where it is, from the table; NaN where nobody computed it yet."""
    if rules.flat:
        return 1.0
    key = key_of(space, rules, book, job, desk.scratch)
    mask = len(desk.known) - 1
    at = key & mask
    while desk.known[at] != 0:
        if desk.known[at] == key:
            return desk.speed[at]
        at = (at + 1) & mask
    return np.nan


@inner
def _set_speed(rules, book, space, desk, job, now):
    """Look a running job's speed up and plan what follows; False where it is not known yet."""
    base = known_speed(rules, book, space, desk, job)
    if np.isnan(base):
        return False
    rate = base * rules.packed_rate if book[job].host >= 0 or book[job].guest >= 0 else base
    if book[job].gang < book[job].full:
        rate *= kept_speed(book, job)
    fresh = book[job].rate == 0.0
    if not fresh and rate == book[job].rate and book[job].resized == 0:
        return True
    if not fresh:
        settle(rules, book, job, now)
        book[job].end_version += 1
    book[job].base, book[job].rate = base, rate
    plan_end(rules, book, desk, job)
    if fresh:
        plan_lease(rules, book, desk, job, now)
    if fresh or book[job].resized:
        plan_queue(rules, book, desk, job, now)
    book[job].resized = 0
    return True


@inner
def resolve(rules, book, space, desk, now):
    """Give speeds to the jobs that need one; those unknown stay in `need`. True when none is left."""
    kept = 0
    for i in range(desk.tally[N_NEED]):
        job = desk.need[i]
        if book[job].state == RUNNING and not _set_speed(rules, book, space, desk, job, now):
            desk.need[kept] = job
            kept += 1
    desk.tally[N_NEED] = kept
    return kept == 0
