"""Running jobs move to tighter GPUs; two jobs share GPUs that neither keeps busy (Gandiva, OSDI 2018)."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from stallwise.cluster.kernels.compiled import inner
from stallwise.cluster.kernels.holding import log, occupy, vacate
from stallwise.cluster.kernels.space import fill, find, lift, spans, tightest, width
from stallwise.cluster.kernels.state import BUSY, LESS, MOVE, N_ORDER, ONE, RUNNING, START, WAITING
from stallwise.cluster.kernels.waiting import expected


@inner
def _present(rules, book, space, desk, job):
    """Speed of a running job where it is, were it alone."""
    wide, kind = width(space, book, job), book[job].kind
    needed = (book[job].gang + space.largest[rules.machine] - 1) // space.largest[rules.machine]
    if wide > rules.machine and spans(space, book, job, rules.machine) > needed:
        return desk.tier[kind, space.domains.shape[0] + wide]
    return desk.tier[kind, wide]


@inner
def _tighter(rules, book, space, desk, job):
    """A domain that would make a running job faster, its own GPUs counted as free: (level, domain) or (-1, -1)."""
    present = _present(rules, book, space, desk, job)
    for level in range(tightest(space, book[job].gang), width(space, book, job) + 1):
        if desk.tier[book[job].kind, level] < rules.migrate_gain * present:
            continue
        domain = find(space, rules, desk, book[job].gang, level, space.free)
        if domain < 0:
            continue
        if expected(rules, book, desk, space, job, level, domain, space.free) >= rules.migrate_gain * present:
            return level, domain
    return -1, -1


@inner
def migrate(rules, book, space, desk, now):
    """Running jobs whose gang spans more than it must move where a tighter domain is free and pays."""
    for i in range(desk.tally[N_ORDER]):
        job = desk.order[i]
        if book[job].state != RUNNING or book[job].host >= 0 or book[job].guest >= 0 or book[job].rate <= 0.0:
            continue
        if book[job].gang < book[job].full:
            continue
        if now - book[job].granted < rules.lease or width(space, book, job) <= rules.machine:
            continue
        lift(space, book, job, ONE)
        level, domain = _tighter(rules, book, space, desk, job)
        lift(space, book, job, LESS)
        if level < 0:
            continue
        vacate(rules, book, space, desk, job, now, now)
        desk.queued[0, book[job].size] += 1  # `occupy` counts it off again
        fill(space, rules, book, job, level, domain)
        desk.tally[BUSY] += book[job].gang
        occupy(rules, book, space, desk, job, now)
        # Saving and loading the state takes as long as a preemption and a restart.
        book[job].since = max(book[job].since, now + rules.checkpoint_per_gpu * book[job].gang + rules.restart)
        book[job].moves += 1
        log(desk, MOVE, job)


@inner
def pack(rules, book, space, desk, now):
    """A waiting job joins a running one of equal gang where both leave each other room on their GPUs (Gandiva)."""
    order, total = desk.order, desk.tally[N_ORDER]
    for i in range(total):
        job = order[i]
        if book[job].state != WAITING or book[job].util >= rules.pack:
            continue
        best, room = -1, rules.pack
        for k in range(total):
            host = order[k]
            if book[host].state != RUNNING or book[host].gang != book[job].gang:
                continue
            if book[host].host >= 0 or book[host].guest >= 0:
                continue
            both = book[host].util + book[job].util
            if both <= room:
                best, room = host, both
        if best < 0:
            continue
        book[job].host, book[best].guest = best, job
        for slot in range(book[job].gang):
            space.held[book[job].offset + slot] = space.held[book[best].offset + slot]
        occupy(rules, book, space, desk, job, now)
        log(desk, START, job)
