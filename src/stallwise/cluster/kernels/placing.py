"""GPUs for one waiting job: the tightest domain first, freely, or from running jobs that must give way."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from stallwise.cluster.kernels.compiled import inner
from stallwise.cluster.kernels.holding import start, stop
from stallwise.cluster.kernels.ranking import waited
from stallwise.cluster.kernels.shrinking import shrink
from stallwise.cluster.kernels.space import find, tightest
from stallwise.cluster.kernels.state import LESS, N_VICTIMS, RUNNING, SERVING, WAKE_AT, ZERO
from stallwise.cluster.kernels.waiting import expected, may_reach, patience_s

NEVER, LEASED, NOW, ROUNDS = 0, 1, 2, 3


@inner
def _touches(space, book, job, low, high):
    """Whether a running job holds a GPU of a range."""
    for slot in range(book[job].gang):  # noqa: SIM110 - numba knows no any()
        if low <= space.held[book[job].offset + slot] < high:
            return True
    return False


@inner
def _clear(rules, book, space, desk, level, domain, gang, now):
    """Stop victims inside a domain, or shrink them, last in the queue first, until the gang fits."""
    low = space.first[level, domain]
    high = low + space.size[level, domain]
    for i in range(desk.tally[N_VICTIMS] - 1, -1, -1):
        if space.free[level, domain] >= gang:
            return
        victim = desk.victims[i]
        if rules.deflate < 1.0:
            shrink(rules, book, space, desk, victim, low, high, gang - space.free[level, domain], now)
            continue
        if book[victim].mark != 1 or not _touches(space, book, victim, low, high):
            continue
        if book[victim].guest >= 0:
            stop(rules, book, space, desk, book[victim].guest, now)
        stop(rules, book, space, desk, victim, now)


@inner
def may_stop(rules, book, job, now):
    """Whether a running job's GPUs are on the table."""
    if rules.preempt == NEVER:
        return False
    if rules.preempt == LEASED:
        return now >= book[job].lease
    return now - book[job].granted >= rules.quantum


@inner
def _yields(rules, book, job, other, now):
    """Whether a running job may be pushed aside for one that comes before it."""
    return (
        book[other].place > book[job].place
        and book[other].state == RUNNING
        and book[other].guest < 0
        and book[other].host < 0
        and may_stop(rules, book, other, now)
    )


@inner
def _room_on(rules, book, space, job, machine, now):
    """GPUs of a machine a job could have if it pushed others aside."""
    start, total = space.first[rules.machine, machine], 0
    for gpu in range(start, start + space.size[rules.machine, machine]):
        owner = space.owner[gpu]
        if owner == -1 or (owner >= 0 and _yields(rules, book, job, owner, now)):
            total += 1
    return total


@inner
def _push_off(rules, book, space, desk, job, machine, now):
    """Stop whoever yields on a machine."""
    start = space.first[rules.machine, machine]
    for gpu in range(start, start + space.size[rules.machine, machine]):
        owner = space.owner[gpu]
        if owner >= 0 and _yields(rules, book, job, owner, now):
            stop(rules, book, space, desk, owner, now)
            book[owner].mark = 2  # it comes later in the queue and is served from there


@inner
def _best_machines(rules, book, space, desk, job, now, rack):
    """Fewest machines of a rack (the cluster where there are none) that could hold the gang, freest first.

    Into `desk.scratch`; how many, or 0 where they do not exist.
    """
    level = min(rules.machine + 1, space.domains.shape[0] - 1)
    start = space.first[level, rack]
    low = space.domain[rules.machine, start]
    high = space.domain[rules.machine, start + space.size[level, rack] - 1]
    rest, total = book[job].gang, 0
    while rest > 0:
        want = min(rest, space.largest[rules.machine])
        best, most = -1, -1
        for machine in range(low, high + 1):
            taken = False
            for i in range(total):
                taken = taken or desk.scratch[i] == machine
            if taken or space.free[rules.machine, machine] <= most:
                continue
            if _room_on(rules, book, space, job, machine, now) >= want:
                best, most = machine, space.free[rules.machine, machine]
        if best < 0:
            return 0
        desk.scratch[total] = best
        total += 1
        rest -= want
    return total


@inner
def _forced(rules, book, space, desk, job, now, level, domain, counts):
    """Push later jobs off the machines a job wants, where that makes it enough faster than what it was offered."""
    if desk.tally[SERVING] == 0:
        return False
    gang = book[job].gang
    best = tightest(space, gang)
    wanted = min(rules.machine + 1, space.domains.shape[0] - 1)
    if best > wanted:
        return False
    if level >= 0:
        offer = expected(rules, book, desk, space, job, level, domain, counts)
        if desk.tier[book[job].kind, max(best, rules.machine)] < rules.force_gain * offer:
            return False
    for rack in range(space.domains[wanted]):
        total = _best_machines(rules, book, space, desk, job, now, rack)
        if total == 0:
            continue
        for i in range(total):
            _push_off(rules, book, space, desk, job, desk.scratch[i], now)
        if total == 1:
            start(rules, book, space, desk, job, now, rules.machine, desk.scratch[0])
        else:
            start(rules, book, space, desk, job, now, wanted, rack)
        return True
    return False


@inner
def place(rules, book, space, desk, job, now, counts):
    """Find and take GPUs for one waiting job among `counts`; `WAKE_AT` becomes when a declined offer may be taken."""
    gang, last = book[job].gang, space.domains.shape[0] - 1
    if counts[last, 0] < gang:
        return False
    level = tightest(space, gang) if rules.localities else last
    wait = waited(rules, book, job, now)
    while level <= last:
        if not may_reach(rules, book, space, job, level):
            return False
        domain = find(space, rules, desk, gang, level, space.free)
        if domain < 0 and counts[last, 0] > space.free[last, 0]:
            domain = find(space, rules, desk, gang, level, counts)
        if domain >= 0:
            if level > rules.machine and rules.localities:
                if rules.force and _forced(rules, book, space, desk, job, now, level, domain, counts):
                    return True
                hold = patience_s(rules, book, desk, space, job, level, domain, counts)
                if wait + 1e-3 < hold:
                    desk.clock[WAKE_AT] = min(desk.clock[WAKE_AT], now + hold - wait)
                    return False
            if space.free[level, domain] < gang:
                _clear(rules, book, space, desk, level, domain, gang, now)
            start(rules, book, space, desk, job, now, level, domain)
            return True
        level += 1
    if rules.force and rules.localities:
        return _forced(rules, book, space, desk, job, now, LESS, ZERO, counts)
    return False


@inner
def place_fewer(rules, book, space, desk, job, now, counts):
    """Likewise, with fewer GPUs than the whole gang where there are no more."""
    there = counts[space.domains.shape[0] - 1, 0]
    if there < book[job].least or there >= book[job].full:
        return False
    book[job].gang = there
    if place(rules, book, space, desk, job, now, counts):
        return True
    book[job].gang = book[job].full
    return False
