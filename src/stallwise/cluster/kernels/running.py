"""Time: from event to event, exactly. All events of one moment are taken together, then one pass decides.

`run` comes back to Python with what it needs: the speed of a shape met for the first time, more room for the series,
or nothing but to show progress. Called again it goes on where it stopped.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from stallwise.cluster.kernels.compiled import compiled, inner
from stallwise.cluster.kernels.deciding import LEASED, NOW, ROUNDS, decide, settle, stop, vacate
from stallwise.cluster.kernels.ranking import QUEUES, left, ran, remember
from stallwise.cluster.kernels.space import shape_key
from stallwise.cluster.kernels.state import (
    ADMITTED,
    ARRIVED,
    BUSY,
    DEMAND,
    DEMOTE,
    DONE,
    FINISH,
    HELD,
    LEASE,
    N_ACTS,
    N_DONE,
    N_EVENTS,
    N_EXPIRED,
    N_FRESH,
    N_HEAP,
    N_NEED,
    N_ORDER,
    N_RUNNING,
    N_SERIES,
    PROMOTE,
    RETRIES,
    ROUND,
    RUNNING,
    SEQ,
    STOP,
    WAITING,
    WAKE,
)

FINISHED, NEED_SPEED, NEED_ROOM, PAUSE, STUCK = 0, 1, 2, 3, 4
RETRY_S = 60.0
"""Where jobs wait and nothing else will happen, ask again so much later (the released Dally does)."""
MOST_RETRIES = 1_000_000


@inner
def push(desk, time, what, job, version):
    """Put an event on the heap."""
    times, whats = desk.heap_time, desk.heap_what
    i = desk.tally[N_HEAP]
    desk.tally[N_HEAP] = i + 1
    while i > 0:
        parent = (i - 1) >> 1
        if times[parent] <= time:
            break
        times[i] = times[parent]
        whats[i, 0], whats[i, 1], whats[i, 2] = whats[parent, 0], whats[parent, 1], whats[parent, 2]
        i = parent
    times[i] = time
    whats[i, 0], whats[i, 1], whats[i, 2] = what, job, version


@inner
def pop(desk):
    """Take the earliest event off."""
    times, whats = desk.heap_time, desk.heap_what
    total = desk.tally[N_HEAP] - 1
    desk.tally[N_HEAP] = total
    time = times[total]
    what, job, version = whats[total, 0], whats[total, 1], whats[total, 2]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= total:
            break
        if child + 1 < total and times[child + 1] < times[child]:
            child += 1
        if times[child] >= time:
            break
        times[i] = times[child]
        whats[i, 0], whats[i, 1], whats[i, 2] = whats[child, 0], whats[child, 1], whats[child, 2]
        i = child
    times[i] = time
    whats[i, 0], whats[i, 1], whats[i, 2] = what, job, version


@inner
def _stale(book, desk):
    """Whether the earliest event was overtaken by a later decision."""
    what, job, version = desk.heap_what[0, 0], desk.heap_what[0, 1], desk.heap_what[0, 2]
    if what == FINISH:
        return version != book[job].end_version
    if what in (LEASE, DEMOTE, PROMOTE):
        return version != book[job].run_version
    return False


@inner
def _end(rules, book, space, desk, job, now):
    vacate(rules, book, space, desk, job, now, now)
    book[job].state = DONE
    book[job].left = 0.0
    book[job].finish = now
    desk.tally[N_DONE] += 1
    desk.tally[DEMAND] -= book[job].gang
    if len(desk.seen) > 0:
        remember(desk, book[job].ran * book[job].gang)


@inner
def _demote(book, desk, job):
    book[job].queue += 1
    book[job].keyed = 0
    book[job].seq = desk.tally[SEQ]
    desk.tally[SEQ] += 1


@inner
def _promote(book, desk, job):
    book[job].queue = 0
    book[job].keyed = 0
    book[job].forgiven = book[job].ran
    book[job].pending = 0.0
    book[job].seq = desk.tally[SEQ]
    desk.tally[SEQ] += 1


@inner
def _expire(rules, book, space, desk, job, now):
    if left(book, job, now) <= 1e-12 * book[job].work:
        return  # it ends at this very moment
    if rules.preempt == NOW:  # only a reason to decide again
        book[job].lease = now + rules.lease
        push(desk, book[job].lease, LEASE, job, book[job].run_version)
    elif rules.renew:
        book[job].lease = now
        desk.tally[N_EXPIRED] += 1
    else:
        guest = book[job].guest
        stop(rules, book, space, desk, job, now)
        if guest >= 0:
            desk.need[desk.tally[N_NEED]] = guest
            desk.tally[N_NEED] += 1


@inner
def _happen(rules, book, space, desk, now):
    """Take every event of this moment off the heap; whether a round ends."""
    tick = False
    while desk.tally[N_HEAP] > 0 and (desk.heap_time[0] <= now or _stale(book, desk)):
        stale = _stale(book, desk)
        what, job = desk.heap_what[0, 0], desk.heap_what[0, 1]
        pop(desk)
        if stale:
            continue
        if what == FINISH:
            other = book[job].guest if book[job].guest >= 0 else book[job].host
            _end(rules, book, space, desk, job, now)
            if other >= 0:
                desk.need[desk.tally[N_NEED]] = other
                desk.tally[N_NEED] += 1
        elif what == LEASE:
            _expire(rules, book, space, desk, job, now)
        elif what == DEMOTE:
            _demote(book, desk, job)
            if book[job].state == RUNNING:
                _queue_event(rules, book, desk, job, now)
        elif what == PROMOTE:
            _promote(book, desk, job)
        elif what == ROUND:
            tick = True
    return tick


@inner
def _arrive(rules, book, space, desk, now):
    """Let arrivals in, in order, while admission allows."""
    total, gpus = len(book), space.domain.shape[1]
    while desk.tally[ARRIVED] < total and book[desk.tally[ARRIVED]].arrival <= now:
        desk.tally[ARRIVED] += 1
    while desk.tally[ADMITTED] < desk.tally[ARRIVED]:
        job = desk.tally[ADMITTED]
        demand = desk.tally[DEMAND] + book[job].gang
        if demand > rules.admit * gpus and desk.tally[DEMAND] > 0:
            return
        desk.tally[DEMAND] = demand
        desk.tally[ADMITTED] += 1
        book[job].state = WAITING
        book[job].keyed = 0
        desk.queued[0, book[job].size] += 1
        book[job].asked = book[job].arrival
        book[job].seq = desk.tally[SEQ]
        desk.tally[SEQ] += 1
        desk.order[desk.tally[N_ORDER]] = job
        desk.tally[N_ORDER] += 1
        desk.tally[N_FRESH] += 1


@inner
def _queue_event(rules, book, desk, job, now):
    """When a running job has had the service of its queue."""
    if rules.by != QUEUES or book[job].queue >= len(desk.limits):
        return
    had = (ran(book, job, now) - book[job].forgiven) * book[job].gang
    rest = max(0.0, desk.limits[book[job].queue] - had) / book[job].gang
    push(desk, now + rest, DEMOTE, job, book[job].run_version)


@inner
def _promote_event(rules, book, desk, job, now):
    """When a stopped job has waited long enough to start over in the first queue."""
    if rules.by != QUEUES or rules.promote <= 0.0 or book[job].queue == 0:
        return
    had = book[job].ran - book[job].forgiven
    push(desk, now + max(0.0, rules.promote * had - book[job].pending), PROMOTE, job, book[job].run_version)


@inner
def known_speed(rules, book, space, desk, job):
    """Speed of a job where it is, from the table; NaN where nobody computed it yet."""
    if rules.flat:
        return 1.0
    key = shape_key(space, rules, book, job, desk.scratch)
    mask = len(desk.known) - 1
    at = key & mask
    while desk.known[at] != 0:
        if desk.known[at] == key:
            return desk.speed[at]
        at = (at + 1) & mask
    return np.nan


@inner
def _schedule(rules, book, desk, job, now):
    """Events of a job whose speed is known: its end, and the end of its lease where that comes first."""
    end = book[job].since + book[job].left / book[job].rate
    push(desk, end, FINISH, job, book[job].end_version)


@inner
def _lease_event(rules, book, desk, job, now):
    if rules.preempt != LEASED and not (rules.preempt == NOW and rules.renew):
        return
    length = rules.lease
    if book[job].chunk > 0.0:
        # Work goes in chunks; GPUs go back at the last border within the lease, or after the first chunk.
        chunk = book[job].chunk / book[job].rate
        length = max(1.0, np.floor(rules.lease / chunk)) * chunk
    book[job].lease = max(now, book[job].since) + length
    push(desk, book[job].lease, LEASE, job, book[job].run_version)


@inner
def _set_speed(rules, book, space, desk, job, now):
    """Look a running job's speed up and plan its end; False where it is not known yet."""
    base = known_speed(rules, book, space, desk, job)
    if np.isnan(base):
        return False
    rate = base * rules.packed_rate if book[job].host >= 0 or book[job].guest >= 0 else base
    fresh = book[job].rate == 0.0
    if not fresh and rate == book[job].rate:
        return True
    if not fresh:
        settle(rules, book, job, now)
        book[job].end_version += 1
    book[job].base, book[job].rate = base, rate
    _schedule(rules, book, desk, job, now)
    if fresh:
        _lease_event(rules, book, desk, job, now)
        _queue_event(rules, book, desk, job, now)
    return True


@inner
def _carry_out(rules, book, space, desk, now):
    """After a pass: collect whose speed must be (re)computed, and plan what follows from stops."""
    changed = False
    for i in range(desk.tally[N_ACTS]):
        what, job = desk.acts[i, 0], desk.acts[i, 1]
        changed = True
        if what == STOP:
            if book[job].state == WAITING:
                _promote_event(rules, book, desk, job, now)
            continue
        if rules.promote > 0.0 and book[job].ran > 0.0:
            book[job].pending += now - book[job].asked
        if book[job].state == RUNNING:
            desk.need[desk.tally[N_NEED]] = job
            desk.tally[N_NEED] += 1
            if book[job].host >= 0:
                desk.need[desk.tally[N_NEED]] = book[job].host
                desk.tally[N_NEED] += 1
    if rules.contention and (changed or desk.clock[2] > 0.0):
        desk.tally[N_NEED] = 0
        for i in range(desk.tally[N_ORDER]):
            if book[desk.order[i]].state == RUNNING:
                desk.need[desk.tally[N_NEED]] = desk.order[i]
                desk.tally[N_NEED] += 1
    desk.clock[2] = 0.0
    if desk.tally[N_EXPIRED] > 0:
        _renew(rules, book, desk, now)


@inner
def _renew(rules, book, desk, now):
    """Leases that ran out and that nobody took go on."""
    for i in range(desk.tally[N_ORDER]):
        job = desk.order[i]
        if book[job].state == RUNNING and book[job].lease <= now and book[job].rate > 0.0:
            book[job].lease = now + rules.lease
            push(desk, book[job].lease, LEASE, job, book[job].run_version)
    desk.tally[N_EXPIRED] = 0


@inner
def _resolve(rules, book, space, desk, now):
    """Give speeds to the jobs that need one; those unknown stay in `need`. True when none is left."""
    kept = 0
    for i in range(desk.tally[N_NEED]):
        job = desk.need[i]
        if book[job].state == RUNNING and not _set_speed(rules, book, space, desk, job, now):
            desk.need[kept] = job
            kept += 1
    desk.tally[N_NEED] = kept
    return kept == 0


@inner
def _record(space, desk, now):
    """One row of the series; a second one at the same moment replaces the first."""
    waiting = desk.tally[ADMITTED] - desk.tally[N_DONE] - desk.tally[N_RUNNING]
    asked = desk.tally[DEMAND] - desk.tally[HELD]
    free, least = space.domain.shape[1] - desk.tally[BUSY], 1 << 30
    for size in range(desk.queued.shape[1]):
        if desk.queued[0, size] > 0:
            least = min(least, desk.queued[1, size])
    at = desk.tally[N_SERIES]
    row = desk.series[at]
    row[0], row[1], row[2], row[3], row[4] = now, desk.tally[BUSY], desk.tally[N_RUNNING], waiting, asked
    row[5] = free if least <= free else 0
    desk.tally[N_SERIES] = at + 1


@inner
def _next_time(rules, book, desk, now):
    """When something happens next; infinite where nothing does."""
    while desk.tally[N_HEAP] > 0 and _stale(book, desk):
        pop(desk)
    time = desk.heap_time[0] if desk.tally[N_HEAP] > 0 else np.inf
    if desk.tally[ARRIVED] < len(book):
        time = min(time, book[desk.tally[ARRIVED]].arrival)
    if time == np.inf and desk.tally[N_DONE] < len(book):
        desk.tally[RETRIES] += 1
        return now + RETRY_S
    desk.tally[RETRIES] = 0
    return time


@inner
def _plan_wake(rules, desk, now):
    if rules.wakes and desk.clock[1] < np.inf and not (now < desk.clock[3] <= desk.clock[1]):
        push(desk, desk.clock[1], WAKE, 0, 0)
        desk.clock[3] = desk.clock[1]


@compiled
def run(rules, book, space, desk, most_events):
    """Go on until all jobs have ended, Python is needed, or `most_events` moments have passed."""
    total, events = len(book), 0
    now = desk.clock[0]
    if desk.tally[N_NEED] > 0 and not _resolve(rules, book, space, desk, now):
        return NEED_SPEED
    while desk.tally[N_DONE] < total:
        if events >= most_events:
            return PAUSE
        if desk.tally[N_SERIES] >= len(desk.series):
            return NEED_ROOM
        if desk.tally[N_HEAP] + 4 * desk.tally[N_ORDER] + 64 > len(desk.heap_time):
            return NEED_ROOM
        now = _next_time(rules, book, desk, now)
        if desk.tally[RETRIES] > MOST_RETRIES:
            return STUCK
        desk.clock[0] = now
        events += 1
        desk.tally[N_EVENTS] += 1
        busy = desk.tally[N_RUNNING]
        desk.tally[N_ACTS] = 0
        tick = _happen(rules, book, space, desk, now)
        if desk.tally[N_RUNNING] != busy:
            desk.clock[2] = 1.0
        stops = desk.tally[N_ACTS]
        for i in range(stops):
            _promote_event(rules, book, desk, desk.acts[i, 1], now)
        _arrive(rules, book, space, desk, now)
        if rules.preempt != ROUNDS or tick:
            decide(rules, book, space, desk, now)
            _carry_out(rules, book, space, desk, now)
            _plan_wake(rules, desk, now)
        if rules.preempt == ROUNDS and (tick or desk.clock[4] <= now):
            # The next round; one event on the heap at any time.
            desk.clock[4] = (np.floor(now / rules.lease) + 1.0) * rules.lease
            push(desk, desk.clock[4], ROUND, 0, 0)
        if len(desk.series) > 1:
            _record(space, desk, now)
        if desk.tally[N_NEED] > 0 and not _resolve(rules, book, space, desk, now):
            return NEED_SPEED
    return FINISHED
