"""Events: the heap, what is planned, and what happens at a moment before any decision.

The heap serves both simulators, of jobs on GPUs and of virtual machines on hosts: `state` is any named tuple with
`heap_time`, `heap_what` (kind, job, version) and `tally`, whose slot `N_HEAP` counts the events. Events of one moment
come off in a fixed order (kind, then job), whatever else is on the heap.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from stallwise.cluster.engine._placement import LEASED, NOW, ROUNDS, stop, vacate
from stallwise.cluster.engine._queue import QUEUES, gpu_seconds, ran, remember
from stallwise.cluster.engine.compile import compiled, inlined, inner
from stallwise.cluster.engine.state import (
    ADMITTED,
    ARRIVED,
    CHANGED,
    DEMAND,
    DEMOTE,
    DONE,
    FINISH,
    LEASE,
    N_DONE,
    N_ENDED,
    N_EXPIRED,
    N_FRESH,
    N_HEAP,
    N_NEED,
    N_ORDER,
    OUTSIDE,
    PROMOTE,
    REQUEUED,
    ROUND,
    ROUND_AT,
    RUNNING,
    SEQ,
    WAITING,
    WAKE,
    WAKE_AT,
    WAKE_PLANNED,
    ZERO,
)


@inner
def _earlier(state, at, time, what, job):
    """Whether the event at a place of the heap comes before another."""
    time_there = state.heap_time[at]
    if time_there != time:
        return time_there < time
    if state.heap_what[at, 0] != what:
        return state.heap_what[at, 0] < what
    return state.heap_what[at, 1] < job


@inner
def _put(state, at, time, what, job, version):
    state.heap_time[at] = time
    state.heap_what[at, 0], state.heap_what[at, 1], state.heap_what[at, 2] = what, job, version


@inner
def _shift(state, source, target):
    state.heap_time[target] = state.heap_time[source]
    for k in range(3):
        state.heap_what[target, k] = state.heap_what[source, k]


@inner
def push(state, time, what, job, version):
    """Put an event on the heap."""
    i = state.tally[N_HEAP]
    state.tally[N_HEAP] = i + 1
    while i > 0:
        parent = (i - 1) >> 1
        if _earlier(state, parent, time, what, job):
            break
        _shift(state, parent, i)
        i = parent
    _put(state, i, time, what, job, version)


@inner
def pop(state):
    """Remove the earliest event."""
    total = state.tally[N_HEAP] - 1
    state.tally[N_HEAP] = total
    time = state.heap_time[total]
    what, job, version = state.heap_what[total, 0], state.heap_what[total, 1], state.heap_what[total, 2]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= total:
            break
        if child + 1 < total:
            right = child + 1
            if _earlier(state, right, state.heap_time[child], state.heap_what[child, 0], state.heap_what[child, 1]):
                child = right
        if not _earlier(state, child, time, what, job):
            break
        _shift(state, child, i)
        i = child
    _put(state, i, time, what, job, version)


@inner
def stale(jobs, state):
    """Whether the earliest event was superseded by a later decision."""
    what, job, version = state.heap_what[0, 0], state.heap_what[0, 1], state.heap_what[0, 2]
    if what == FINISH:
        return version != jobs[job].end_version
    if what in (LEASE, DEMOTE, PROMOTE):
        return version != jobs[job].run_version
    return False


@inner
def next_event(jobs, state):
    """Return the time of the earliest valid event; infinite if there is none."""
    while state.tally[N_HEAP] > 0 and stale(jobs, state):
        pop(state)
    return state.heap_time[0] if state.tally[N_HEAP] > 0 else np.inf


@inner
def upcoming(jobs, state, planned):
    """Return the earlier of what is planned and the next arrival."""
    if state.tally[ARRIVED] < len(jobs):
        return min(planned, jobs[state.tally[ARRIVED]].arrival)
    return planned


@inner
def plan_end(params, jobs, state, job):
    """Plan the end of a job whose speed is known. On a real cluster ends are reported instead."""
    if not params.live:
        push(state, jobs[job].since + jobs[job].left / jobs[job].rate, FINISH, job, jobs[job].end_version)


@inner
def plan_queue(params, jobs, state, job, now):
    """Plan when a running job has had the service of its queue."""
    if params.by != QUEUES or jobs[job].queue >= len(state.limits):
        return
    had = served(params, jobs, job, now)
    rest = max(0.0, state.limits[jobs[job].queue] - had) / jobs[job].gang
    push(state, now + rest, DEMOTE, job, jobs[job].run_version)


@inner
def served(params, jobs, job, now):
    """Return the GPU-seconds that count for a job's queue: those since it last began in the first one."""
    if params.deflate == 1.0:
        return (ran(jobs, job, now) - jobs[job].forgiven) * jobs[job].gang
    return gpu_seconds(jobs, job, now) - jobs[job].forgiven * jobs[job].full


@inner
def plan_promotion(params, jobs, state, job, now):
    """Plan when a stopped job has waited long enough to return to the first queue."""
    if params.by != QUEUES or params.promote <= 0.0 or jobs[job].queue == 0:
        return
    had = jobs[job].ran - jobs[job].forgiven
    push(state, now + max(0.0, params.promote * had - jobs[job].pending), PROMOTE, job, jobs[job].run_version)


@inner
def slice_end(params, time):
    """Return the next moment at which all leases end where they are aligned."""
    return (np.floor(time / params.lease) + 1.0) * params.lease


@inner
def plan_lease(params, jobs, state, job, now):
    """Plan when a job that just began must return its GPUs, or ask whether it may keep them."""
    if params.preempt != LEASED and not (params.preempt == NOW and params.renew):
        return
    ready = max(now, jobs[job].since)
    if params.aligned:  # one event for all: `plan_round`
        jobs[job].lease = slice_end(params, ready)
        return
    length = params.lease
    if jobs[job].chunk > 0.0:
        # Work goes in chunks; GPUs go back at the last border within the lease, or after the first chunk.
        chunk = jobs[job].chunk / jobs[job].rate
        length = max(1.0, np.floor(params.lease / chunk)) * chunk
    jobs[job].lease = ready + length
    push(state, jobs[job].lease, LEASE, job, jobs[job].run_version)


@inner
def extend_lease(params, jobs, state, job, now):
    """Renew the lease of a running job."""
    if params.aligned:
        jobs[job].lease = slice_end(params, now)
        return
    jobs[job].lease = now + params.lease
    push(state, jobs[job].lease, LEASE, job, jobs[job].run_version)


@inner
def plan_round(params, state, now, ended):
    """Plan the end of the next round or slice, while there are jobs; one event on the heap at any time."""
    if params.preempt != ROUNDS and not params.aligned:
        return
    if state.tally[DEMAND] > 0 and (ended or state.clock[ROUND_AT] <= now):
        state.clock[ROUND_AT] = slice_end(params, now)
        push(state, state.clock[ROUND_AT], ROUND, ZERO, ZERO)


@inner
def plan_wake(params, state, now):
    """Plan when a job's patience ends, unless an earlier decision is planned already."""
    planned, wake = state.clock[WAKE_PLANNED], state.clock[WAKE_AT]
    if params.wakes and wake < np.inf and not (now < planned <= wake):
        push(state, wake, WAKE, ZERO, ZERO)
        state.clock[WAKE_PLANNED] = wake


@inner
def need_speed(state, job):
    """Queue a running job for a (new) look-up of its speed."""
    state.need[state.tally[N_NEED]] = job
    state.tally[N_NEED] += 1


@inner
def _next_number(jobs, state, job):
    """Move a job to the end of its queue."""
    jobs[job].keyed = 0
    jobs[job].seq = state.tally[SEQ]
    state.tally[SEQ] += 1


@inner
def _end(params, jobs, topology, state, job, now):
    """End a job, whether done or withdrawn; its GPUs are free."""
    if jobs[job].state == RUNNING:
        partner = max(jobs[job].guest, jobs[job].host)
        vacate(params, jobs, topology, state, job, now, now)
        state.clock[CHANGED] = 1.0
        if partner >= 0:
            need_speed(state, partner)
        if len(state.sample) > 0:
            remember(state, jobs[job].ran * jobs[job].full - jobs[job].thin)
    elif jobs[job].state == WAITING:
        state.queued[0, jobs[job].size] -= 1
    if jobs[job].state != OUTSIDE:
        state.tally[DEMAND] -= jobs[job].gang
        state.tally[N_ENDED] += 1
    jobs[job].state = DONE
    jobs[job].left = 0.0
    jobs[job].finish = now
    state.tally[N_DONE] += 1


@compiled
def end(params, jobs, topology, state, job, now):
    """Python-callable wrapper of `_end`."""
    _end(params, jobs, topology, state, job, now)


@compiled
def lose(params, jobs, topology, state, job, now):
    """Return a running job whose GPUs are gone to the queue; a job that shared them has them alone."""
    partner = max(jobs[job].guest, jobs[job].host)
    stop(params, jobs, topology, state, job, now)
    state.clock[CHANGED] = 1.0
    plan_promotion(params, jobs, state, job, now)
    if partner >= 0:
        need_speed(state, partner)


@inner
def _demote(params, jobs, state, job, now):
    if jobs[job].queue >= len(state.limits):
        return  # in the last queue already: a job that was resized has planned this more than once
    if params.deflate < 1.0 and served(params, jobs, job, now) < state.limits[jobs[job].queue] * (1.0 - 1e-12):
        plan_queue(params, jobs, state, job, now)  # it was shrunk after this was planned
        return
    jobs[job].queue += 1
    state.tally[REQUEUED] += 1
    _next_number(jobs, state, job)
    if jobs[job].state == RUNNING:
        plan_queue(params, jobs, state, job, now)


@inner
def _promote(jobs, state, job):
    jobs[job].queue = 0
    jobs[job].forgiven = jobs[job].ran
    if jobs[job].thin > 0.0:
        jobs[job].forgiven -= jobs[job].thin / jobs[job].full
    jobs[job].pending = 0.0
    state.tally[REQUEUED] += 1
    _next_number(jobs, state, job)


@inner
def _expire(params, jobs, topology, state, job, now):
    rest = jobs[job].left - jobs[job].rate * (now - jobs[job].since)
    if abs(rest) <= 1e-12 * jobs[job].work:
        extend_lease(params, jobs, state, job, now)  # it should end at this very moment
    elif params.preempt == NOW:  # only a reason to decide again
        extend_lease(params, jobs, state, job, now)
    elif params.renew or params.deflate < 1.0:
        jobs[job].lease = now
        state.tally[N_EXPIRED] += 1
    else:
        partner = jobs[job].guest
        stop(params, jobs, topology, state, job, now)
        if partner >= 0:
            need_speed(state, partner)


@inlined
def happen(params, jobs, topology, state, now):
    """Process every event of this moment; True where a round or slice ends."""
    ended = False
    while state.tally[N_HEAP] > 0 and (state.heap_time[0] <= now or stale(jobs, state)):
        over = stale(jobs, state)
        what, job = state.heap_what[0, 0], state.heap_what[0, 1]
        pop(state)
        if over:
            continue
        if what == FINISH:
            _end(params, jobs, topology, state, job, now)
        elif what == LEASE:
            _expire(params, jobs, topology, state, job, now)
        elif what == DEMOTE:
            _demote(params, jobs, state, job, now)
        elif what == PROMOTE:
            _promote(jobs, state, job)
        elif what == ROUND:
            ended = True
            state.tally[N_EXPIRED] += 1 if params.aligned else 0
    return ended


@inner
def _admit(jobs, state, job):
    """Admit a job to the queue."""
    state.tally[DEMAND] += jobs[job].gang
    state.queued[0, jobs[job].size] += 1
    jobs[job].state = WAITING
    jobs[job].waiting_since = jobs[job].arrival
    _next_number(jobs, state, job)
    state.order[state.tally[N_ORDER]] = job
    state.tally[N_ORDER] += 1
    state.tally[N_FRESH] += 1


@compiled
def admit(jobs, state, job):
    """Python-callable wrapper of `_admit`."""
    _admit(jobs, state, job)


@inner
def arrive(params, jobs, topology, state, now):
    """Admit arrivals in order, while admission allows."""
    total, gpus = len(jobs), topology.domain.shape[1]
    while state.tally[ARRIVED] < total and jobs[state.tally[ARRIVED]].arrival <= now:
        state.tally[ARRIVED] += 1
    while state.tally[ADMITTED] < state.tally[ARRIVED]:
        job = state.tally[ADMITTED]
        if jobs[job].state == OUTSIDE:  # else it was let in before, or is not wanted any more
            if state.tally[DEMAND] > 0 and state.tally[DEMAND] + jobs[job].gang > params.admit * gpus:
                return
            _admit(jobs, state, job)
        state.tally[ADMITTED] += 1
