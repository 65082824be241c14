"""Who is served first: a pair of numbers per job, smaller first, and a queue kept sorted from event to event.

Sorting is by insertion and stable: between two events few jobs change places, so it is nearly one walk over the queue,
and equals stay in the order they had.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from stallwise.cluster.kernels.compiled import compiled, inner
from stallwise.cluster.kernels.state import DONE, N_ENDED, N_FRESH, N_ORDER, N_SEEN, RUNNING, WAITING

ARRIVAL, WORK, REMAINING, REMAINING_SERVICE, TIME, SERVICE, QUEUES, GITTINS, EFFICIENCY, TURNS = range(10)
MANY = 48
"""New jobs at one event from which sorting from scratch is cheaper."""


@inner
def ran(book, job, now):
    """Seconds with GPUs until now."""
    if book[job].state == RUNNING:
        return book[job].ran + (now - book[job].began)
    return book[job].ran


@inner
def left(book, job, now):
    """Work left, in seconds at full speed."""
    if book[job].state == RUNNING and now > book[job].since:
        return max(0.0, book[job].left - book[job].rate * (now - book[job].since))
    return book[job].left


@inner
def waited(rules, book, job, now):
    """How long a waiting job has waited: since it last had GPUs, or in all where patience survives preemption."""
    here = now - book[job].asked
    return here + book[job].waited if rules.survives else here


@inner
def _efficiency(book, job, now):
    """Dally's S: work done over time it took, 0 before the first run (the more a job was slowed, the smaller)."""
    spent = ran(book, job, now)
    if spent <= 0.0:
        return 0.0
    return (book[job].work - left(book, job, now)) / spent


@compiled
def efficiency(book, job, now):
    """Likewise, for Python."""
    return _efficiency(book, job, now)


@inner
def _first_above(seen, total, service):
    """How many of the sorted sample are at most `service`."""
    low, high = 0, total
    while low < high:
        middle = (low + high) // 2
        if seen[middle] > service:
            high = middle
        else:
            low = middle + 1
    return low


@inner
def gittins(rules, desk, service):
    """Odds of ending within delta over the service that takes, among ended jobs with more service; larger is better.

    P(S - a ≤ Δ | S > a) / E[min(S - a, Δ) | S > a] over the sorted sample `seen` and its running sums `sums`
    (Tiresias, NSDI 2019).
    """
    total = desk.tally[N_SEEN]
    low = _first_above(desk.seen, total, service)
    if low == total:
        return 0.0
    high = _first_above(desk.seen, total, service + rules.delta)
    ends = high - low
    spent = desk.sums[high] - desk.sums[low] - ends * service + rules.delta * (total - high)
    return ends / max(spent, 1e-9)


@inner
def remember(desk, service):
    """Keep the service of an ended job in the sorted sample; when it is full, every second one goes."""
    seen, total = desk.seen, desk.tally[N_SEEN]
    if total == len(seen):
        total = total // 2
        for i in range(total):
            seen[i] = seen[2 * i + 1]
    i = total
    while i > 0 and seen[i - 1] > service:
        seen[i] = seen[i - 1]
        i -= 1
    seen[i] = service
    desk.tally[N_SEEN] = total + 1
    for k in range(total + 1):
        desk.sums[k + 1] = desk.sums[k] + seen[k]


@inner
def set_key(rules, book, desk, job, now):
    """Where a job stands at `now`."""
    by = rules.by
    key, key2 = 0.0, 0.0
    if by == WORK:
        key = book[job].work
    elif by == REMAINING:
        key = left(book, job, now)
    elif by == REMAINING_SERVICE:
        key = left(book, job, now) * book[job].gang
    elif by == TIME:
        key = ran(book, job, now)
    elif by == SERVICE:
        key = ran(book, job, now) * book[job].gang
        if book[job].state == RUNNING:
            key /= rules.margin
    elif by == QUEUES:
        key, key2 = np.float64(book[job].queue), np.float64(book[job].seq)
    elif by == GITTINS:
        service = ran(book, job, now) * book[job].gang
        key, key2 = -gittins(rules, desk, service), service
    elif by == EFFICIENCY:
        key, key2 = _efficiency(book, job, now), book[job].asked
    elif by == TURNS:
        # Whoever waits comes before whoever runs; of these who began last: the longest turn ends first.
        key = 2.0 * now + 1.0 - book[job].granted if book[job].state == RUNNING else book[job].asked
    if rules.age < np.inf and book[job].state == WAITING and now - book[job].asked >= rules.age:
        key, key2 = -np.inf, book[job].asked
    book[job].key, book[job].key2 = key, key2


@inner
def gpu_seconds(book, job, now):
    """Service until now: that of the whole gang less what a shrunk one went without."""
    had = ran(book, job, now) * book[job].full - book[job].thin
    if book[job].state == RUNNING:
        had -= (now - book[job].began) * (book[job].full - book[job].gang)
    return had


@inner
def _set_shrunk_key(rules, book, desk, job, now):
    """Likewise where gangs shrink. Apart from `set_key`: that one must stay small enough to be built into the loop."""
    set_key(rules, book, desk, job, now)
    if book[job].key == -np.inf:
        return
    if rules.by == REMAINING_SERVICE:
        book[job].key = left(book, job, now) * book[job].full
    elif rules.by == SERVICE:
        had = gpu_seconds(book, job, now)
        book[job].key = had / rules.margin if book[job].state == RUNNING else had
    elif rules.by == GITTINS:
        had = gpu_seconds(book, job, now)
        book[job].key, book[job].key2 = -gittins(rules, desk, had), had


@inner
def _before(book, a, b):
    return book[a].key < book[b].key or (book[a].key == book[b].key and book[a].key2 < book[b].key2)


@inner
def _comes_before(book, a, b):
    if book[a].key == book[b].key and book[a].key2 == book[b].key2:
        return book[a].place < book[b].place
    return _before(book, a, b)


@inner
def _insert(book, order, total):
    for i in range(1, total):
        job = order[i]
        if not _before(book, job, order[i - 1]):
            continue
        at = i - 1
        while at > 0 and _before(book, job, order[at - 1]):
            at -= 1
        for k in range(i, at, -1):
            order[k] = order[k - 1]
        order[at] = job


@inner
def _sort_anew(book, order, total):
    """From scratch (Shell 1959); where two stand equal, who was before stays before."""
    for i in range(total):
        book[order[i]].place = i
    gap = total
    while gap > 1:
        gap = max(1, gap * 5 // 11)
        for i in range(gap, total):
            job, at = order[i], i
            while at >= gap and _comes_before(book, job, order[at - gap]):
                order[at] = order[at - gap]
                at -= gap
            order[at] = job


@inner
def _drop_ended(book, desk):
    order, kept = desk.order, 0
    for i in range(desk.tally[N_ORDER]):
        job = order[i]
        if book[job].state != DONE:
            order[kept] = job
            kept += 1
    desk.tally[N_ORDER], desk.tally[N_ENDED] = kept, 0


@inner
def rank(rules, book, desk, now):
    """Drop the ended, say where everyone stands, and sort."""
    standing = rules.by == ARRIVAL and rules.age == np.inf
    moving = rules.age < np.inf or (rules.by == GITTINS and desk.tally[N_ENDED] > 0)
    # Who came stands in order already: the ended are passed over until there are as many as the root of the queue.
    if not standing or desk.tally[N_ENDED] * desk.tally[N_ENDED] > desk.tally[N_ORDER]:
        _drop_ended(book, desk)
    if not standing:
        total = desk.tally[N_ORDER]
        for i in range(total):
            job = desk.order[i]
            # Whoever waits stays where it stands, except where time or others' ends move it.
            if moving or book[job].state == RUNNING or not book[job].keyed:
                if rules.deflate < 1.0:
                    _set_shrunk_key(rules, book, desk, job, now)
                else:
                    set_key(rules, book, desk, job, now)
                book[job].keyed = 1
        if desk.tally[N_FRESH] > MANY:
            _sort_anew(book, desk.order, total)
        else:
            _insert(book, desk.order, total)
    desk.tally[N_FRESH] = 0
