"""What happens at a moment before anybody decides: ends, leases, changes of queue, arrivals."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from stallwise.cluster.kernels.compiled import compiled, inner
from stallwise.cluster.kernels.events import extend_lease, plan_promotion, plan_queue, served, stale
from stallwise.cluster.kernels.heap import pop
from stallwise.cluster.kernels.holding import stop, vacate
from stallwise.cluster.kernels.placing import NOW
from stallwise.cluster.kernels.ranking import remember
from stallwise.cluster.kernels.state import (
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
    RUNNING,
    SEQ,
    WAITING,
)


@inner
def need_speed(desk, job):
    """A running job's speed must be looked up (again)."""
    desk.need[desk.tally[N_NEED]] = job
    desk.tally[N_NEED] += 1


@inner
def _next_number(book, desk, job):
    """To the end of its queue."""
    book[job].keyed = 0
    book[job].seq = desk.tally[SEQ]
    desk.tally[SEQ] += 1


@inner
def _end(rules, book, space, desk, job, now):
    """A job is done, or not wanted any more; GPUs it has are free."""
    if book[job].state == RUNNING:
        partner = max(book[job].guest, book[job].host)
        vacate(rules, book, space, desk, job, now, now)
        desk.clock[CHANGED] = 1.0
        if partner >= 0:
            need_speed(desk, partner)
        if len(desk.seen) > 0:
            remember(desk, book[job].ran * book[job].full - book[job].thin)
    elif book[job].state == WAITING:
        desk.queued[0, book[job].size] -= 1
    if book[job].state != OUTSIDE:
        desk.tally[DEMAND] -= book[job].gang
        desk.tally[N_ENDED] += 1
    book[job].state = DONE
    book[job].left = 0.0
    book[job].finish = now
    desk.tally[N_DONE] += 1


@compiled
def end(rules, book, space, desk, job, now):
    """Likewise, for Python."""
    _end(rules, book, space, desk, job, now)


@compiled
def lose(rules, book, space, desk, job, now):
    """A running job has no GPUs any more: it waits again, its partner has them alone."""
    partner = max(book[job].guest, book[job].host)
    stop(rules, book, space, desk, job, now)
    desk.clock[CHANGED] = 1.0
    plan_promotion(rules, book, desk, job, now)
    if partner >= 0:
        need_speed(desk, partner)


@inner
def _demote(rules, book, desk, job, now):
    if book[job].queue >= len(desk.limits):
        return  # in the last queue already: a job that was resized has planned this more than once
    if rules.deflate < 1.0 and served(rules, book, job, now) < desk.limits[book[job].queue] * (1.0 - 1e-12):
        plan_queue(rules, book, desk, job, now)  # it was shrunk after this was planned
        return
    book[job].queue += 1
    desk.tally[REQUEUED] += 1
    _next_number(book, desk, job)
    if book[job].state == RUNNING:
        plan_queue(rules, book, desk, job, now)


@inner
def _promote(book, desk, job):
    book[job].queue = 0
    book[job].forgiven = book[job].ran
    if book[job].thin > 0.0:
        book[job].forgiven -= book[job].thin / book[job].full
    book[job].pending = 0.0
    desk.tally[REQUEUED] += 1
    _next_number(book, desk, job)


@inner
def _expire(rules, book, space, desk, job, now):
    rest = book[job].left - book[job].rate * (now - book[job].since)
    if abs(rest) <= 1e-12 * book[job].work:
        extend_lease(rules, book, desk, job, now)  # it should end at this very moment
    elif rules.preempt == NOW:  # only a reason to decide again
        extend_lease(rules, book, desk, job, now)
    elif rules.renew or rules.deflate < 1.0:
        book[job].lease = now
        desk.tally[N_EXPIRED] += 1
    else:
        partner = book[job].guest
        stop(rules, book, space, desk, job, now)
        if partner >= 0:
            need_speed(desk, partner)


@inner
def happen(rules, book, space, desk, now):
    """Take every event of this moment off the heap; whether a round or slice ends."""
    ended = False
    while desk.tally[N_HEAP] > 0 and (desk.heap_time[0] <= now or stale(book, desk)):
        over = stale(book, desk)
        what, job = desk.heap_what[0, 0], desk.heap_what[0, 1]
        pop(desk)
        if over:
            continue
        if what == FINISH:
            _end(rules, book, space, desk, job, now)
        elif what == LEASE:
            _expire(rules, book, space, desk, job, now)
        elif what == DEMOTE:
            _demote(rules, book, desk, job, now)
        elif what == PROMOTE:
            _promote(book, desk, job)
        elif what == ROUND:
            ended = True
            desk.tally[N_EXPIRED] += 1 if rules.aligned else 0
    return ended


@inner
def _admit(book, desk, job):
    """Let a job into the queue."""
    desk.tally[DEMAND] += book[job].gang
    desk.queued[0, book[job].size] += 1
    book[job].state = WAITING
    book[job].asked = book[job].arrival
    _next_number(book, desk, job)
    desk.order[desk.tally[N_ORDER]] = job
    desk.tally[N_ORDER] += 1
    desk.tally[N_FRESH] += 1


@compiled
def admit(book, desk, job):
    """Likewise, for Python."""
    _admit(book, desk, job)


@inner
def arrive(rules, book, space, desk, now):
    """Let arrivals in, in order, while admission allows."""
    total, gpus = len(book), space.domain.shape[1]
    while desk.tally[ARRIVED] < total and book[desk.tally[ARRIVED]].arrival <= now:
        desk.tally[ARRIVED] += 1
    while desk.tally[ADMITTED] < desk.tally[ARRIVED]:
        job = desk.tally[ADMITTED]
        if book[job].state == OUTSIDE:  # else it was let in before, or is not wanted any more
            if desk.tally[DEMAND] > 0 and desk.tally[DEMAND] + book[job].gang > rules.admit * gpus:
                return
            _admit(book, desk, job)
        desk.tally[ADMITTED] += 1
