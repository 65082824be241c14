"""Who is served first: a pair of numbers per job, smaller first, and a queue kept sorted from event to event.

Sorting is by insertion and stable: between two events few jobs change places, so it is nearly one walk over the queue,
and equals stay in the order they had.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from stallwise.cluster.kernels.compiled import compiled, inner
from stallwise.cluster.kernels.state import DONE, N_FRESH, N_ORDER, N_SEEN, RUNNING, WAITING

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


@compiled
def efficiency(book, job, now):
    """Dally's S: work done over time it took, 0 before the first run (the more a job was slowed, the smaller)."""
    spent = ran(book, job, now)
    if spent <= 0.0:
        return 0.0
    return (book[job].work - left(book, job, now)) / spent


@inner
def gittins(rules, desk, service):
    """Odds of ending within delta over the service that takes, among ended jobs with more service; larger is better.

    P(S - a ≤ Δ | S > a) / E[min(S - a, Δ) | S > a] over the sorted sample `seen` (Tiresias, NSDI 2019).
    """
    seen, total = desk.seen, desk.tally[N_SEEN]
    low, high = 0, total
    while low < high:
        middle = (low + high) // 2
        if seen[middle] > service:
            high = middle
        else:
            low = middle + 1
    if low == total:
        return 0.0
    ends, spent = 0, 0.0
    for i in range(low, total):
        over = seen[i] - service
        if over <= rules.delta:
            ends += 1
            spent += over
        else:
            spent += rules.delta * (total - i)
            break
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
        key, key2 = efficiency(book, job, now), book[job].asked
    elif by == TURNS:
        key = now + 1.0 if book[job].state == RUNNING else book[job].asked
    if rules.age < np.inf and book[job].state == WAITING and now - book[job].asked >= rules.age:
        key, key2 = -np.inf, book[job].asked
    book[job].key, book[job].key2 = key, key2


@inner
def _before(book, a, b):
    return book[a].key < book[b].key or (book[a].key == book[b].key and book[a].key2 < book[b].key2)


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
    """Stable by the pair: least important part first."""
    jobs = order[:total].copy()
    keys = np.empty(total)
    for i in range(total):
        keys[i] = book[jobs[i]].key2
    jobs = jobs[np.argsort(keys, kind="mergesort")]
    for i in range(total):
        keys[i] = book[jobs[i]].key
    order[:total] = jobs[np.argsort(keys, kind="mergesort")]


@inner
def rank(rules, book, desk, now):
    """Drop the ended, say where everyone stands, and sort."""
    order, kept = desk.order, 0
    for i in range(desk.tally[N_ORDER]):
        job = order[i]
        if book[job].state != DONE:
            order[kept] = job
            kept += 1
    desk.tally[N_ORDER] = kept
    if rules.by != ARRIVAL or rules.age < np.inf:
        moving = rules.by == GITTINS or rules.age < np.inf
        for i in range(kept):
            job = order[i]
            # Whoever waits stays where it stands, except where time or others' ends move it.
            if moving or book[job].state == RUNNING or not book[job].keyed:
                set_key(rules, book, desk, job, now)
                book[job].keyed = 1
        if desk.tally[N_FRESH] > MANY:
            _sort_anew(book, order, kept)
        else:
            _insert(book, order, kept)
    desk.tally[N_FRESH] = 0
