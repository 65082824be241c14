"""One pass over the queue: which jobs stop, which start, and where, for the simulator and for real clusters.

1. Sort the queue.
2. Where running jobs may be stopped: walk the queue with all GPUs that could be had, and see which jobs would get some.
   Running jobs that would not are *victims*: their GPUs count as open to those that would.
3. Those that would, in order: the tightest domain first, freely where free GPUs suffice, else by stopping the
   victims in it, last in the queue first. Looser domains only after the job's patience.
4. All other jobs, in order, from what is free. Victims that no job needed go on.
   Where jobs are deflated, victims give GPUs beyond their least instead, and take back what is free after 4.
5. Running jobs move to tighter GPUs, jobs are packed, where the policy does such things.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from stallwise.cluster.engine._placement import (
    NEVER,
    NOW,
    grow_back,
    may_shrink,
    may_stop,
    migrate,
    open_up,
    pack,
    place,
    place_fewer,
    stop,
)
from stallwise.cluster.engine._queue import QUEUES, USER, rank
from stallwise.cluster.engine._topology import mark
from stallwise.cluster.engine.compile import inlined, inner
from stallwise.cluster.engine.state import (
    BUSY,
    DEMAND,
    HELD,
    N_ACTS,
    N_CHOSEN,
    N_EXPIRED,
    N_ORDER,
    N_RUNNING,
    N_VICTIMS,
    ONE,
    REQUEUED,
    RUNNING,
    SEQ,
    SERVING,
    WAITING,
    WAKE_AT,
    ZERO,
)

NONE_WAITS = 1 << 30


@inner
def _pick_victims(params, jobs, topology, state, now):
    """Step 2: mark and list victims; jobs that would get GPUs have `mark` 2."""
    budget = topology.free[topology.domains.shape[0] - 1, 0] + state.tally[BUSY]
    order, total, running = state.order, state.tally[N_ORDER], state.tally[N_RUNNING]
    if params.preempt < NOW or params.quantum > 0.0:
        for i in range(total):
            job = order[i]
            if jobs[job].state == RUNNING and jobs[job].host < 0 and not may_stop(params, jobs, job, now):
                budget -= jobs[job].gang
    victims, passed, chosen, least = 0, 0, 0, least_waiting(state)
    for i in range(total):
        job = order[i]
        if jobs[job].state == WAITING:
            if jobs[job].gang <= budget and not (params.by == USER and jobs[job].key == np.inf):
                budget -= jobs[job].gang
                jobs[job].mark = 2
                chosen += 1
        elif jobs[job].state == RUNNING:
            passed += 1
            if jobs[job].host < 0 and may_stop(params, jobs, job, now):
                if jobs[job].gang <= budget:
                    budget -= jobs[job].gang
                else:
                    mark(topology, jobs, job, ONE)
                    state.victims[victims] = job
                    victims += 1
        if budget < least and passed == running:
            break
    state.tally[N_VICTIMS], state.tally[N_CHOSEN] = victims, chosen


@inner
def _pick_shrinkable(params, jobs, topology, state, now):
    """Step 2 where jobs shrink instead: what each could give up, in the order of the queue."""
    budget = topology.free[topology.domains.shape[0] - 1, 0]
    order, total = state.order, state.tally[N_ORDER]
    for i in range(total):
        job = order[i]
        if jobs[job].state == RUNNING and may_stop(params, jobs, job, now):
            budget += may_shrink(jobs, job)
    victims, chosen = 0, 0
    for i in range(total):
        job = order[i]
        if jobs[job].state == WAITING and jobs[job].least <= budget:
            budget -= min(budget, jobs[job].gang)
            jobs[job].mark = 2
            chosen += 1
        elif jobs[job].state == RUNNING and may_stop(params, jobs, job, now):
            if may_shrink(jobs, job) <= budget:
                budget -= may_shrink(jobs, job)
            else:
                open_up(topology, jobs, job, ONE)
                state.victims[victims] = job
                victims += 1
    state.tally[N_VICTIMS], state.tally[N_CHOSEN] = victims, chosen


@inner
def _serve_chosen(params, jobs, topology, state, now):
    """Step 3, then unmark the victims that no job needed."""
    if params.force:
        state.tally[SERVING] = 1
        for i in range(state.tally[N_ORDER]):
            jobs[state.order[i]].place = i
    for i in range(state.tally[N_ORDER]):
        if state.tally[N_CHOSEN] == 0 and not params.force:
            break
        job = state.order[i]
        if jobs[job].mark == 2:
            jobs[job].mark = 0
            state.tally[N_CHOSEN] -= 1
            if state.tally[N_VICTIMS] > 0 or params.force:
                placed = place(params, jobs, topology, state, job, now, topology.open)
                if params.deflate < 1.0 and not placed:
                    place_fewer(params, jobs, topology, state, job, now, topology.open)
    state.tally[SERVING] = 0
    for i in range(state.tally[N_VICTIMS]):
        if jobs[state.victims[i]].mark != 1:
            continue
        if params.deflate < 1.0:
            open_up(topology, jobs, state.victims[i], ZERO)
        else:
            mark(topology, jobs, state.victims[i], ZERO)
    state.tally[N_VICTIMS] = 0


@inner
def _in_turn(jobs, state):
    """Whether in every queue all running jobs stand before all waiting ones."""
    queue, running = -1, False
    for i in range(state.tally[N_ORDER] - 1, -1, -1):
        job = state.order[i]
        if jobs[job].queue != queue:
            queue, running = jobs[job].queue, False
        if jobs[job].state == RUNNING:
            running = True
        elif running and jobs[job].state == WAITING:
            return False
    return True


@inner
def _requeue(jobs, state):
    """Move waiting jobs behind running ones in each of Tiresias' queues, in their order."""
    if state.tally[N_ACTS] == 0 and state.tally[REQUEUED] == 0:
        return  # no job started, stopped or changed queue, and arrivals stand behind
    state.tally[REQUEUED] = 0
    if _in_turn(jobs, state):
        return
    for i in range(state.tally[N_ORDER]):
        job = state.order[i]
        if jobs[job].state == WAITING:
            jobs[job].seq = state.tally[SEQ]
            jobs[job].keyed = 0
            state.tally[SEQ] += 1


@inner
def least_waiting(state):
    """Return the smallest gang that waits; a large number where none does."""
    least = NONE_WAITS
    for size in range(state.queued.shape[1]):
        if state.queued[0, size] > 0:
            least = min(least, state.queued[1, size])
    return least


@inlined
def _serve_free(params, jobs, topology, state, now):
    """Step 4: start the jobs that fit into what is free."""
    last, least = topology.domains.shape[0] - 1, least_waiting(state)
    for i in range(state.tally[N_ORDER]):
        if topology.free[last, 0] < least:
            return
        job = state.order[i]
        if jobs[job].state != WAITING or (params.by == USER and jobs[job].key == np.inf):
            continue
        # `place` would find out by itself, but most jobs of a long queue are not worth the call.
        placed = topology.free[last, 0] >= jobs[job].gang and place(
            params, jobs, topology, state, job, now, topology.free
        )
        if params.deflate < 1.0 and not placed:
            placed = place_fewer(params, jobs, topology, state, job, now, topology.free)
        if placed:
            least = least_waiting(state)
        elif params.strict or jobs[job].key == -np.inf:
            return


@inner
def _stop_left_out(params, jobs, topology, state, now):
    """Stop the running jobs that a user's policy has left out of its order."""
    for i in range(state.tally[N_ORDER]):
        job = state.order[i]
        if jobs[job].state == RUNNING and jobs[job].key == np.inf and may_stop(params, jobs, job, now):
            stop(params, jobs, topology, state, job, now)


@inner
def decide(params, jobs, topology, state, now):
    """Make one pass. Actions are logged in `state.acts` and in effect; `WAKE_AT` is when patience next runs out."""
    state.clock[WAKE_AT] = np.inf
    if params.by == USER and params.preempt != NEVER and state.tally[DEMAND] > state.tally[HELD]:
        _stop_left_out(params, jobs, topology, state, now)
    waiting_gpus = state.tally[DEMAND] - state.tally[HELD]
    free = topology.free[topology.domains.shape[0] - 1, 0]
    # Free GPUs may be in the wrong places: a policy that looks at places may still preempt.
    enough = waiting_gpus <= free and (params.flat or not params.localities)
    if waiting_gpus > 0:
        rank(params, jobs, state, now)
        if not enough and (params.preempt >= NOW or state.tally[N_EXPIRED] > 0):
            if params.deflate < 1.0:
                _pick_shrinkable(params, jobs, topology, state, now)
            else:
                _pick_victims(params, jobs, topology, state, now)
            _serve_chosen(params, jobs, topology, state, now)
        _serve_free(params, jobs, topology, state, now)
    if params.deflate < 1.0:
        grow_back(params, jobs, topology, state, now)
    if params.migrate and not params.flat:
        migrate(params, jobs, topology, state, now)
    if params.pack > 0.0 and waiting_gpus > 0:
        pack(params, jobs, topology, state, now)
    if params.by == QUEUES and params.running_first and waiting_gpus > 0:
        _requeue(jobs, state)
