"""The loop from event to event, and how fast running jobs are where they are.

`run` returns to Python with a code (`state.FINISHED` and so on) where it needs an answer: the speed of a shape that was
met for the first time, more memory, the order of a user's policy, or only to show progress. Called again it goes on
where it stopped.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from stallwise.cluster.engine._decide import decide, least_waiting
from stallwise.cluster.engine._placement import ROUNDS, kept_speed, settle
from stallwise.cluster.engine._queue import USER
from stallwise.cluster.engine._topology import key_of
from stallwise.cluster.engine.compile import compiled, inlined, inner
from stallwise.cluster.engine.events import (
    arrive,
    extend_lease,
    happen,
    need_speed,
    next_event,
    plan_end,
    plan_lease,
    plan_promotion,
    plan_queue,
    plan_round,
    plan_wake,
    push,
    upcoming,
)
from stallwise.cluster.engine.state import (
    ADMITTED,
    BUSY,
    CHANGED,
    DEMAND,
    FINISHED,
    HALFWAY,
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
    NEED_ORDER,
    NEED_ROOM,
    NEED_SPEED,
    NOW_AT,
    PAUSE,
    RETRIES,
    ROUND,
    ROUND_AT,
    RUNNING,
    START,
    STOP,
    STUCK,
    WAITING,
    ZERO,
)


@inner
def known_speed(params, jobs, topology, state, job):
    """Look up the speed of a job where it is; NaN where it was not computed yet."""
    if params.flat:
        return 1.0
    key = key_of(topology, params, jobs, job, state.scratch)
    mask = len(state.speed_keys) - 1
    at = key & mask
    while state.speed_keys[at] != 0:
        if state.speed_keys[at] == key:
            return state.speeds[at]
        at = (at + 1) & mask
    return np.nan


@inner
def _set_speed(params, jobs, topology, state, job, now):
    """Look up a running job's speed and plan what follows; False where it is not known yet."""
    base = known_speed(params, jobs, topology, state, job)
    if np.isnan(base):
        return False
    rate = base * params.packed_rate if jobs[job].host >= 0 or jobs[job].guest >= 0 else base
    if jobs[job].gang < jobs[job].full:
        rate *= kept_speed(jobs, job)
    fresh = jobs[job].rate == 0.0
    if not fresh and rate == jobs[job].rate and jobs[job].resized == 0:
        return True
    if not fresh:
        settle(params, jobs, job, now)
        jobs[job].end_version += 1
    jobs[job].base, jobs[job].rate = base, rate
    plan_end(params, jobs, state, job)
    if fresh:
        plan_lease(params, jobs, state, job, now)
    if fresh or jobs[job].resized:
        plan_queue(params, jobs, state, job, now)
    jobs[job].resized = 0
    return True


@inlined
def resolve(params, jobs, topology, state, now):
    """Give speeds to the jobs that need one; unknown ones stay in `need`. True when none is left."""
    kept = 0
    for i in range(state.tally[N_NEED]):
        job = state.need[i]
        if jobs[job].state == RUNNING and not _set_speed(params, jobs, topology, state, job, now):
            state.need[kept] = job
            kept += 1
    state.tally[N_NEED] = kept
    return kept == 0


RETRY_S = 60.0
"""Seconds until jobs that wait on an idle cluster ask again (as in the released Dally)."""
MOST_RETRIES = 1_000_000
MOST_USER_RETRIES = 20_000
"""Of a policy in Python, which is asked every time: two weeks without a start."""


@inlined
def _carry_out(params, jobs, topology, state, now):
    """After a pass: collect the jobs whose speed must be (re)computed, and plan what follows from stops."""
    for i in range(state.tally[N_ACTS]):
        what, job = state.acts[i, 0], state.acts[i, 1]
        if what == STOP:
            if jobs[job].state == WAITING:
                plan_promotion(params, jobs, state, job, now)
            continue
        if what == START and params.promote > 0.0 and jobs[job].ran > 0.0:
            jobs[job].pending += now - jobs[job].waiting_since
        if jobs[job].state == RUNNING:
            need_speed(state, job)
            if jobs[job].host >= 0:
                need_speed(state, jobs[job].host)
    if params.contention and (state.tally[N_ACTS] > 0 or state.clock[CHANGED] > 0.0 or params.deflate < 1.0):
        state.tally[N_NEED] = 0
        for i in range(state.tally[N_ORDER]):
            if jobs[state.order[i]].state == RUNNING:
                need_speed(state, state.order[i])
    if params.deflate < 1.0 and not params.contention:
        for i in range(state.tally[N_ORDER]):
            job = state.order[i]
            if jobs[job].state == RUNNING and jobs[job].resized and jobs[job].rate > 0.0:
                need_speed(state, job)
    state.clock[CHANGED] = 0.0
    if state.tally[N_EXPIRED] > 0:
        _renew(params, jobs, state, now)


@inner
def _renew(params, jobs, state, now):
    """Renew the leases that ran out and whose GPUs no job took."""
    for i in range(state.tally[N_ORDER]):
        job = state.order[i]
        if jobs[job].state == RUNNING and jobs[job].lease <= now and jobs[job].rate > 0.0:
            extend_lease(params, jobs, state, job, now)
    state.tally[N_EXPIRED] = 0


@compiled
def resume(params, jobs, state, job):
    """Plan the events of a job whose row was written by hand, as if it had been followed since it began."""
    if jobs[job].state != RUNNING:
        plan_promotion(params, jobs, state, job, jobs[job].waiting_since)
        return
    lease = jobs[job].lease
    if lease < np.inf and params.aligned:
        if state.clock[ROUND_AT] < 0.0 or lease < state.clock[ROUND_AT]:
            state.clock[ROUND_AT] = lease
            push(state, lease, ROUND, ZERO, ZERO)
    elif lease < np.inf:
        push(state, lease, LEASE, job, jobs[job].run_version)
    plan_queue(params, jobs, state, job, jobs[job].began)


@compiled
def coming(jobs, state):
    """Return when to decide again on a real cluster if nothing is reported before."""
    time = next_event(jobs, state)
    if state.tally[DEMAND] > 0 and state.tally[N_RUNNING] == 0:
        return min(time, state.clock[NOW_AT] + RETRY_S)
    return time


@inner
def _record(topology, state, now):
    """Append one row to the series."""
    waiting = state.tally[ADMITTED] - state.tally[N_DONE] - state.tally[N_RUNNING]
    waiting_gpus = state.tally[DEMAND] - state.tally[HELD]
    free = topology.domain.shape[1] - state.tally[BUSY]
    at = state.tally[N_SERIES]
    row = state.series[at]
    row[0], row[1], row[2], row[3], row[4] = now, state.tally[BUSY], state.tally[N_RUNNING], waiting, waiting_gpus
    row[5] = free if least_waiting(state) <= free else 0
    state.tally[N_SERIES] = at + 1


@inner
def _next_time(jobs, state, now):
    """Return the time of the next event; while jobs wait on an idle cluster, they ask again every `RETRY_S`."""
    time = upcoming(jobs, state, next_event(jobs, state))
    if state.tally[N_RUNNING] == 0 and state.tally[DEMAND] > 0 and now + RETRY_S < time:
        state.tally[RETRIES] += 1
        return now + RETRY_S
    state.tally[RETRIES] = 0
    return time


@compiled
def run(params, jobs, topology, state, most_events):
    """Run until all jobs have ended, Python is needed, or `most_events` moments have passed.

    On a real cluster there is one moment, the present; actions are in `state.acts`.
    """
    total, events = len(jobs), 0
    now = state.clock[NOW_AT]
    # What every moment does is written out here, once: a function of its own would take longer to be called, with
    # copies of all the arrays' descriptors, than most moments take.
    while True:
        if state.tally[HALFWAY] > 0:  # Python has written the order that was missing
            ended = state.tally[HALFWAY] == 2
            state.tally[HALFWAY] = 0
        else:
            over = events >= most_events
            late = state.tally[N_NEED] > 0 and (over or not params.live)  # on a real cluster after the moment
            if late and not resolve(params, jobs, topology, state, now):
                return NEED_SPEED
            if params.live:
                if over:
                    return FINISHED
            else:
                if state.tally[N_DONE] == total:
                    return FINISHED
                if over:
                    return PAUSE
                if state.tally[N_SERIES] >= len(state.series):
                    return NEED_ROOM
                if state.tally[N_HEAP] + 4 * state.tally[N_ORDER] + 64 > len(state.heap_time):
                    return NEED_ROOM
                now = _next_time(jobs, state, now)
                if state.tally[RETRIES] > (MOST_USER_RETRIES if params.by == USER else MOST_RETRIES):
                    return STUCK
            state.clock[NOW_AT] = now
            state.tally[N_EVENTS] += 1
            state.tally[N_ACTS] = 0
            ended = happen(params, jobs, topology, state, now)
            arrive(params, jobs, topology, state, now)
            if params.by == USER and state.tally[DEMAND] > state.tally[HELD]:
                state.tally[HALFWAY] = 2 if ended else 1
                return NEED_ORDER
        if params.preempt != ROUNDS or ended:
            decide(params, jobs, topology, state, now)
            _carry_out(params, jobs, topology, state, now)
            plan_wake(params, state, now)
        plan_round(params, state, now, ended)
        events += 1
        if len(state.series) > 1:
            _record(topology, state, now)
