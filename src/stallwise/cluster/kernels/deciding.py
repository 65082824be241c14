"""One pass over the queue: who stops, who starts, and where. The whole policy, for the simulator and for real clusters.

1. Sort the queue.
2. Where running jobs may be stopped: walk the queue with the GPUs that can be had at all, and see who would get some.
   Running jobs that would not are *victims*: their GPUs count as open to those that would.
3. Those that would, in order: the tightest domain first, freely where free GPUs suffice, else by stopping the
   victims in it, last in the queue first. Looser domains only after the job's patience.
4. Everybody else, in order, from what is free. Victims nobody needed go on.
   Where jobs are deflated, victims give GPUs beyond their least instead, and take back what is free after 4.
5. Running jobs move to tighter GPUs, jobs are packed, where the policy does such things.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from stallwise.cluster.kernels.compiled import inner
from stallwise.cluster.kernels.moving import migrate, pack
from stallwise.cluster.kernels.placing import NOW, may_stop, place, place_fewer
from stallwise.cluster.kernels.ranking import QUEUES, rank
from stallwise.cluster.kernels.shrinking import grow_back, may_shrink, open_up
from stallwise.cluster.kernels.space import mark
from stallwise.cluster.kernels.state import (
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

NOBODY = 1 << 30


@inner
def _pick_victims(rules, book, space, desk, now):
    """Step 2: marks victims and lists them; who would get GPUs has `mark` 2."""
    budget = space.free[space.domains.shape[0] - 1, 0] + desk.tally[BUSY]
    order, total, running = desk.order, desk.tally[N_ORDER], desk.tally[N_RUNNING]
    if rules.preempt < NOW or rules.quantum > 0.0:
        for i in range(total):
            job = order[i]
            if book[job].state == RUNNING and book[job].host < 0 and not may_stop(rules, book, job, now):
                budget -= book[job].gang
    found, met, chosen, least = 0, 0, 0, least_waiting(desk)
    for i in range(total):
        job = order[i]
        if book[job].state == WAITING:
            if book[job].gang <= budget:
                budget -= book[job].gang
                book[job].mark = 2
                chosen += 1
        elif book[job].state == RUNNING:
            met += 1
            if book[job].host < 0 and may_stop(rules, book, job, now):
                if book[job].gang <= budget:
                    budget -= book[job].gang
                else:
                    mark(space, book, job, ONE)
                    desk.victims[found] = job
                    found += 1
        if budget < least and met == running:
            break
    desk.tally[N_VICTIMS], desk.tally[N_CHOSEN] = found, chosen


@inner
def _pick_shrinkable(rules, book, space, desk, now):
    """Step 2 where jobs shrink instead: what everybody could give, in the order of the queue."""
    budget = space.free[space.domains.shape[0] - 1, 0]
    order, total = desk.order, desk.tally[N_ORDER]
    for i in range(total):
        job = order[i]
        if book[job].state == RUNNING and may_stop(rules, book, job, now):
            budget += may_shrink(book, job)
    found, chosen = 0, 0
    for i in range(total):
        job = order[i]
        if book[job].state == WAITING and book[job].least <= budget:
            budget -= min(budget, book[job].gang)
            book[job].mark = 2
            chosen += 1
        elif book[job].state == RUNNING and may_stop(rules, book, job, now):
            if may_shrink(book, job) <= budget:
                budget -= may_shrink(book, job)
            else:
                open_up(space, book, job, ONE)
                desk.victims[found] = job
                found += 1
    desk.tally[N_VICTIMS], desk.tally[N_CHOSEN] = found, chosen


@inner
def _serve_chosen(rules, book, space, desk, now):
    """Step 3, then pardon the victims nobody needed."""
    if rules.force:
        desk.tally[SERVING] = 1
        for i in range(desk.tally[N_ORDER]):
            book[desk.order[i]].place = i
    for i in range(desk.tally[N_ORDER]):
        if desk.tally[N_CHOSEN] == 0 and not rules.force:
            break
        job = desk.order[i]
        if book[job].mark == 2:
            book[job].mark = 0
            desk.tally[N_CHOSEN] -= 1
            if desk.tally[N_VICTIMS] > 0 or rules.force:
                placed = place(rules, book, space, desk, job, now, space.open)
                if rules.deflate < 1.0 and not placed:
                    place_fewer(rules, book, space, desk, job, now, space.open)
    desk.tally[SERVING] = 0
    for i in range(desk.tally[N_VICTIMS]):
        if book[desk.victims[i]].mark != 1:
            continue
        if rules.deflate < 1.0:
            open_up(space, book, desk.victims[i], ZERO)
        else:
            mark(space, book, desk.victims[i], ZERO)
    desk.tally[N_VICTIMS] = 0


@inner
def _in_turn(book, desk):
    """Whether in every queue whoever runs stands before whoever waits."""
    queue, running = -1, False
    for i in range(desk.tally[N_ORDER] - 1, -1, -1):
        job = desk.order[i]
        if book[job].queue != queue:
            queue, running = book[job].queue, False
        if book[job].state == RUNNING:
            running = True
        elif running and book[job].state == WAITING:
            return False
    return True


@inner
def _requeue(book, desk):
    """Tiresias' queues: whoever waits goes behind whoever runs, keeping its order."""
    if desk.tally[N_ACTS] == 0 and desk.tally[REQUEUED] == 0:
        return  # nobody started, stopped or changed queue; who comes stands behind
    desk.tally[REQUEUED] = 0
    if _in_turn(book, desk):
        return
    for i in range(desk.tally[N_ORDER]):
        job = desk.order[i]
        if book[job].state == WAITING:
            book[job].seq = desk.tally[SEQ]
            book[job].keyed = 0
            desk.tally[SEQ] += 1


@inner
def least_waiting(desk):
    """The smallest gang that waits; a large number where nobody does."""
    least = NOBODY
    for size in range(desk.queued.shape[1]):
        if desk.queued[0, size] > 0:
            least = min(least, desk.queued[1, size])
    return least


@inner
def _serve_free(rules, book, space, desk, now):
    """Step 4: whoever fits into what is free."""
    last, least = space.domains.shape[0] - 1, least_waiting(desk)
    for i in range(desk.tally[N_ORDER]):
        if space.free[last, 0] < least:
            return
        job = desk.order[i]
        if book[job].state != WAITING:
            continue
        placed = place(rules, book, space, desk, job, now, space.free)
        if rules.deflate < 1.0 and not placed:
            placed = place_fewer(rules, book, space, desk, job, now, space.free)
        if placed:
            least = least_waiting(desk)
        elif rules.strict or book[job].key == -np.inf:
            return


@inner
def decide(rules, book, space, desk, now):
    """One pass. Actions are added to `desk.acts`, and already booked; `WAKE_AT` is when patience next runs out."""
    desk.clock[WAKE_AT] = np.inf
    asked = desk.tally[DEMAND] - desk.tally[HELD]
    free = space.free[space.domains.shape[0] - 1, 0]
    # Free GPUs may be in the wrong places; who looks at places may want those of others all the same.
    enough = asked <= free and (rules.flat or not rules.localities)
    if asked > 0:
        rank(rules, book, desk, now)
        if not enough and (rules.preempt >= NOW or desk.tally[N_EXPIRED] > 0):
            if rules.deflate < 1.0:
                _pick_shrinkable(rules, book, space, desk, now)
            else:
                _pick_victims(rules, book, space, desk, now)
            _serve_chosen(rules, book, space, desk, now)
        _serve_free(rules, book, space, desk, now)
    if rules.deflate < 1.0:
        grow_back(rules, book, space, desk, now)
    if rules.migrate and not rules.flat:
        migrate(rules, book, space, desk, now)
    if rules.pack > 0.0 and asked > 0:
        pack(rules, book, space, desk, now)
    if rules.by == QUEUES and rules.running_first and asked > 0:
        _requeue(book, desk)
