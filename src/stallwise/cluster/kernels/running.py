"""One moment, for the simulator and for real clusters; and time from moment to moment, exactly, for the simulator.

All events of one moment are taken together, then one pass decides. `run` comes back to Python with what it needs: the
speed of a shape met for the first time, more room for the series, or nothing but to show progress. Called again it
goes on where it stopped.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from stallwise.cluster.kernels.compiled import compiled, inner
from stallwise.cluster.kernels.deciding import decide, least_waiting
from stallwise.cluster.kernels.events import (
    extend_lease,
    next_event,
    plan_promotion,
    plan_queue,
    plan_round,
    plan_wake,
    upcoming,
)
from stallwise.cluster.kernels.happening import arrive, happen, need_speed
from stallwise.cluster.kernels.heap import push
from stallwise.cluster.kernels.placing import ROUNDS
from stallwise.cluster.kernels.speeds import resolve
from stallwise.cluster.kernels.state import (
    ADMITTED,
    BUSY,
    CHANGED,
    DEMAND,
    HELD,
    LEASE,
    N_ACTS,
    N_DONE,
    N_EVENTS,
    N_EXPIRED,
    N_HEAP,
    N_NEED,
    N_ORDER,
    N_RUNNING,
    N_SERIES,
    NOW_AT,
    RETRIES,
    ROUND,
    ROUND_AT,
    RUNNING,
    START,
    STOP,
    WAITING,
    ZERO,
)

FINISHED, NEED_SPEED, NEED_ROOM, PAUSE, STUCK = 0, 1, 2, 3, 4
RETRY_S = 60.0
"""Where jobs wait and nothing else will happen, ask again so much later (the released Dally does)."""
MOST_RETRIES = 1_000_000


@inner
def _carry_out(rules, book, space, desk, now):
    """After a pass: collect whose speed must be (re)computed, and plan what follows from stops."""
    for i in range(desk.tally[N_ACTS]):
        what, job = desk.acts[i, 0], desk.acts[i, 1]
        if what == STOP:
            if book[job].state == WAITING:
                plan_promotion(rules, book, desk, job, now)
            continue
        if what == START and rules.promote > 0.0 and book[job].ran > 0.0:
            book[job].pending += now - book[job].asked
        if book[job].state == RUNNING:
            need_speed(desk, job)
            if book[job].host >= 0:
                need_speed(desk, book[job].host)
    if rules.contention and (desk.tally[N_ACTS] > 0 or desk.clock[CHANGED] > 0.0 or rules.deflate < 1.0):
        desk.tally[N_NEED] = 0
        for i in range(desk.tally[N_ORDER]):
            if book[desk.order[i]].state == RUNNING:
                need_speed(desk, desk.order[i])
    if rules.deflate < 1.0 and not rules.contention:
        for i in range(desk.tally[N_ORDER]):
            job = desk.order[i]
            if book[job].state == RUNNING and book[job].resized and book[job].rate > 0.0:
                need_speed(desk, job)
    desk.clock[CHANGED] = 0.0
    if desk.tally[N_EXPIRED] > 0:
        _renew(rules, book, desk, now)


@inner
def _renew(rules, book, desk, now):
    """Leases that ran out and that nobody took go on."""
    for i in range(desk.tally[N_ORDER]):
        job = desk.order[i]
        if book[job].state == RUNNING and book[job].lease <= now and book[job].rate > 0.0:
            extend_lease(rules, book, desk, job, now)
    desk.tally[N_EXPIRED] = 0


@inner
def moment(rules, book, space, desk, now):
    """Everything of one moment: what time brings, arrivals, one pass, and what is planned after it."""
    desk.clock[NOW_AT] = now
    desk.tally[N_EVENTS] += 1
    desk.tally[N_ACTS] = 0
    ended = happen(rules, book, space, desk, now)
    arrive(rules, book, space, desk, now)
    if rules.preempt != ROUNDS or ended:
        decide(rules, book, space, desk, now)
        _carry_out(rules, book, space, desk, now)
        plan_wake(rules, desk, now)
    plan_round(rules, desk, now, ended)


@compiled
def resume(rules, book, desk, job):
    """Plan what time brings to a job whose row was written by hand, as if it had been followed since it began."""
    if book[job].state != RUNNING:
        plan_promotion(rules, book, desk, job, book[job].asked)
        return
    lease = book[job].lease
    if lease < np.inf and rules.aligned:
        if desk.clock[ROUND_AT] < 0.0 or lease < desk.clock[ROUND_AT]:
            desk.clock[ROUND_AT] = lease
            push(desk, lease, ROUND, ZERO, ZERO)
    elif lease < np.inf:
        push(desk, lease, LEASE, job, book[job].run_version)
    plan_queue(rules, book, desk, job, book[job].began)


@compiled
def coming(book, desk):
    """When to ask again on a real cluster if nothing is told before."""
    time = next_event(book, desk)
    if desk.tally[DEMAND] > 0 and desk.tally[N_RUNNING] == 0:
        return min(time, desk.clock[NOW_AT] + RETRY_S)
    return time


@inner
def _record(space, desk, now):
    """One row of the series."""
    waiting = desk.tally[ADMITTED] - desk.tally[N_DONE] - desk.tally[N_RUNNING]
    asked = desk.tally[DEMAND] - desk.tally[HELD]
    free = space.domain.shape[1] - desk.tally[BUSY]
    at = desk.tally[N_SERIES]
    row = desk.series[at]
    row[0], row[1], row[2], row[3], row[4] = now, desk.tally[BUSY], desk.tally[N_RUNNING], waiting, asked
    row[5] = free if least_waiting(desk) <= free else 0
    desk.tally[N_SERIES] = at + 1


@inner
def _next_time(book, desk, now):
    """When something happens next; somebody who waits on an idle cluster asks again."""
    time = upcoming(book, desk, next_event(book, desk))
    if desk.tally[N_RUNNING] == 0 and desk.tally[DEMAND] > 0 and now + RETRY_S < time:
        desk.tally[RETRIES] += 1
        return now + RETRY_S
    desk.tally[RETRIES] = 0
    return time


@compiled
def run(rules, book, space, desk, most_events):
    """Go on until all jobs have ended, Python is needed, or `most_events` moments have passed.

    On a real cluster there is one moment, the present; actions are in `desk.acts`.
    """
    total, events = len(book), 0
    now = desk.clock[NOW_AT]
    if rules.live:
        if most_events > 0:
            moment(rules, book, space, desk, now)
        return FINISHED if resolve(rules, book, space, desk, now) else NEED_SPEED
    if desk.tally[N_NEED] > 0 and not resolve(rules, book, space, desk, now):
        return NEED_SPEED
    while desk.tally[N_DONE] < total:
        if events >= most_events:
            return PAUSE
        if desk.tally[N_SERIES] >= len(desk.series):
            return NEED_ROOM
        if desk.tally[N_HEAP] + 4 * desk.tally[N_ORDER] + 64 > len(desk.heap_time):
            return NEED_ROOM
        now = _next_time(book, desk, now)
        if desk.tally[RETRIES] > MOST_RETRIES:
            return STUCK
        events += 1
        moment(rules, book, space, desk, now)
        if len(desk.series) > 1:
            _record(space, desk, now)
        if desk.tally[N_NEED] > 0 and not resolve(rules, book, space, desk, now):
            return NEED_SPEED
    return FINISHED
