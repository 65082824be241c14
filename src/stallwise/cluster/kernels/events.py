"""What is planned to happen: a heap of events, and when a job's lease, queue or wait will be over.

Events of one moment come off in a fixed order (kind, then job), whatever else is on the heap.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from stallwise.cluster.kernels.compiled import inner
from stallwise.cluster.kernels.placing import LEASED, NOW, ROUNDS
from stallwise.cluster.kernels.ranking import QUEUES, ran
from stallwise.cluster.kernels.state import (
    DEMAND,
    DEMOTE,
    FINISH,
    LEASE,
    N_HEAP,
    PROMOTE,
    ROUND,
    ROUND_AT,
    WAKE,
    WAKE_AT,
    WAKE_PLANNED,
    ZERO,
)


@inner
def _earlier(desk, at, time, what, job):
    """Whether the event at a place of the heap comes before another."""
    there = desk.heap_time[at]
    if there != time:
        return there < time
    if desk.heap_what[at, 0] != what:
        return desk.heap_what[at, 0] < what
    return desk.heap_what[at, 1] < job


@inner
def _put(desk, at, time, what, job, version):
    desk.heap_time[at] = time
    desk.heap_what[at, 0], desk.heap_what[at, 1], desk.heap_what[at, 2] = what, job, version


@inner
def _shift(desk, source, target):
    desk.heap_time[target] = desk.heap_time[source]
    for k in range(3):
        desk.heap_what[target, k] = desk.heap_what[source, k]


@inner
def push(desk, time, what, job, version):
    """Put an event on the heap."""
    i = desk.tally[N_HEAP]
    desk.tally[N_HEAP] = i + 1
    while i > 0:
        parent = (i - 1) >> 1
        if _earlier(desk, parent, time, what, job):
            break
        _shift(desk, parent, i)
        i = parent
    _put(desk, i, time, what, job, version)


@inner
def pop(desk):
    """Take the earliest event off."""
    total = desk.tally[N_HEAP] - 1
    desk.tally[N_HEAP] = total
    time = desk.heap_time[total]
    what, job, version = desk.heap_what[total, 0], desk.heap_what[total, 1], desk.heap_what[total, 2]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= total:
            break
        if child + 1 < total:
            right = child + 1
            if _earlier(desk, right, desk.heap_time[child], desk.heap_what[child, 0], desk.heap_what[child, 1]):
                child = right
        if not _earlier(desk, child, time, what, job):
            break
        _shift(desk, child, i)
        i = child
    _put(desk, i, time, what, job, version)


@inner
def stale(book, desk):
    """Whether the earliest event was overtaken by a later decision."""
    what, job, version = desk.heap_what[0, 0], desk.heap_what[0, 1], desk.heap_what[0, 2]
    if what == FINISH:
        return version != book[job].end_version
    if what in (LEASE, DEMOTE, PROMOTE):
        return version != book[job].run_version
    return False


@inner
def next_event(book, desk):
    """When the earliest event is that still holds; infinite where there is none."""
    while desk.tally[N_HEAP] > 0 and stale(book, desk):
        pop(desk)
    return desk.heap_time[0] if desk.tally[N_HEAP] > 0 else np.inf


@inner
def plan_end(rules, book, desk, job):
    """The end of a job whose speed is known. On a real cluster nobody knows it: it is told when it comes."""
    if not rules.live:
        push(desk, book[job].since + book[job].left / book[job].rate, FINISH, job, book[job].end_version)


@inner
def plan_queue(rules, book, desk, job, now):
    """When a running job has had the service of its queue."""
    if rules.by != QUEUES or book[job].queue >= len(desk.limits):
        return
    had = (ran(book, job, now) - book[job].forgiven) * book[job].gang
    rest = max(0.0, desk.limits[book[job].queue] - had) / book[job].gang
    push(desk, now + rest, DEMOTE, job, book[job].run_version)


@inner
def plan_promotion(rules, book, desk, job, now):
    """When a stopped job has waited long enough to start over in the first queue."""
    if rules.by != QUEUES or rules.promote <= 0.0 or book[job].queue == 0:
        return
    had = book[job].ran - book[job].forgiven
    push(desk, now + max(0.0, rules.promote * had - book[job].pending), PROMOTE, job, book[job].run_version)


@inner
def slice_end(rules, time):
    """The next of the moments at which all leases end where they are aligned."""
    return (np.floor(time / rules.lease) + 1.0) * rules.lease


@inner
def plan_lease(rules, book, desk, job, now):
    """When a job that just began must give its GPUs back, or ask whether it may keep them."""
    if rules.preempt != LEASED and not (rules.preempt == NOW and rules.renew):
        return
    ready = max(now, book[job].since)
    if rules.aligned:  # one event for all: `plan_round`
        book[job].lease = slice_end(rules, ready)
        return
    length = rules.lease
    if book[job].chunk > 0.0:
        # Work goes in chunks; GPUs go back at the last border within the lease, or after the first chunk.
        chunk = book[job].chunk / book[job].rate
        length = max(1.0, np.floor(rules.lease / chunk)) * chunk
    book[job].lease = ready + length
    push(desk, book[job].lease, LEASE, job, book[job].run_version)


@inner
def extend_lease(rules, book, desk, job, now):
    """A lease goes on."""
    if rules.aligned:
        book[job].lease = slice_end(rules, now)
        return
    book[job].lease = now + rules.lease
    push(desk, book[job].lease, LEASE, job, book[job].run_version)


@inner
def plan_round(rules, desk, now, ended):
    """The end of the next round or slice, while there are jobs; one event on the heap at any time."""
    if rules.preempt != ROUNDS and not rules.aligned:
        return
    if desk.tally[DEMAND] > 0 and (ended or desk.clock[ROUND_AT] <= now):
        desk.clock[ROUND_AT] = slice_end(rules, now)
        push(desk, desk.clock[ROUND_AT], ROUND, ZERO, ZERO)


@inner
def plan_wake(rules, desk, now):
    """When somebody's patience ends, unless an earlier look is planned already."""
    planned, wanted = desk.clock[WAKE_PLANNED], desk.clock[WAKE_AT]
    if rules.wakes and wanted < np.inf and not (now < planned <= wanted):
        push(desk, wanted, WAKE, ZERO, ZERO)
        desk.clock[WAKE_PLANNED] = wanted
