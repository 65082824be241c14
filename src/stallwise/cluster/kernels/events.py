"""What is planned to happen to jobs: when a lease, queue or wait will be over, and which plans still hold."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from stallwise.cluster.kernels.compiled import inner
from stallwise.cluster.kernels.heap import pop, push
from stallwise.cluster.kernels.placing import LEASED, NOW, ROUNDS
from stallwise.cluster.kernels.ranking import QUEUES, gpu_seconds, ran
from stallwise.cluster.kernels.state import (
    ARRIVED,
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
def upcoming(book, desk, planned):
    """The earlier of what is planned and the next arrival."""
    if desk.tally[ARRIVED] < len(book):
        return min(planned, book[desk.tally[ARRIVED]].arrival)
    return planned


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
    had = served(rules, book, job, now)
    rest = max(0.0, desk.limits[book[job].queue] - had) / book[job].gang
    push(desk, now + rest, DEMOTE, job, book[job].run_version)


@inner
def served(rules, book, job, now):
    """GPU-seconds that count for a job's queue: those since it last began in the first one."""
    if rules.deflate == 1.0:
        return (ran(book, job, now) - book[job].forgiven) * book[job].gang
    return gpu_seconds(book, job, now) - book[job].forgiven * book[job].full


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
