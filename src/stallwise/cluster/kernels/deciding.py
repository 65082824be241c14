"""One pass over the queue: who stops, who starts, and where. The whole policy, for the simulator and for real clusters.

1. Sort the queue.
2. Where running jobs may be stopped: walk the queue with the GPUs that can be had at all, and see who would get some.
   Running jobs that would not are *victims*: their GPUs count as open to those that would.
3. Those that would, in order: the tightest domain first, freely where free GPUs suffice, else by stopping the
   victims in it, last in the queue first. Looser domains only after the job's patience.
4. Everybody else, in order, from what is free. Victims nobody needed go on.
5. Running jobs move to tighter GPUs, jobs are packed, where the policy does such things.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from stallwise.cluster.kernels.compiled import compiled, inner
from stallwise.cluster.kernels.ranking import QUEUES, left, ran, rank, waited
from stallwise.cluster.kernels.space import cross, fill, find, give, lift, mark, spans, tightest, width
from stallwise.cluster.kernels.state import (
    BUSY,
    DEMAND,
    HELD,
    MOVE,
    N_ACTS,
    N_EXPIRED,
    N_ORDER,
    N_RUNNING,
    N_VICTIMS,
    RUNNING,
    SEQ,
    SERVING,
    START,
    STOP,
    WAITING,
)
from stallwise.cluster.kernels.waiting import MACHINE, RACK, expected, may_reach, note_wait, patience_s

NEVER, LEASED, NOW, ROUNDS = 0, 1, 2, 3


@inner
def log(desk, what, job):
    """Write an action down."""
    at = desk.tally[N_ACTS]
    desk.acts[at, 0], desk.acts[at, 1] = what, job
    desk.tally[N_ACTS] = at + 1


@inner
def settle(rules, book, job, now):
    """Book the work and time of a running job up to now."""
    book[job].left = left(book, job, now)
    overhead = min(now, book[job].since) - book[job].began
    book[job].over += max(0.0, overhead)
    book[job].ran += now - book[job].began
    book[job].began = now
    book[job].since = max(book[job].since, now)


@inner
def _unpair(space, book, job):
    """Take a packed pair apart: who stays owns the GPUs. True where the GPUs stay taken."""
    host, guest = book[job].host, book[job].guest
    if host >= 0:
        book[host].guest = -1
        book[job].host = -1
        return True
    if guest >= 0:
        book[job].guest, book[guest].host = -1, -1
        for slot in range(book[job].gang):
            space.owner[space.held[book[job].offset + slot]] = guest
        return True
    return False


@compiled
def vacate(rules, book, space, desk, job, now, clean):
    """A running job leaves its GPUs; they are usable again from `clean` on."""
    settle(rules, book, job, now)
    cross(space, book, job, -1)
    if not _unpair(space, book, job):
        give(space, book, job, clean)
        desk.tally[BUSY] -= book[job].gang
    book[job].mark = 0
    book[job].run_version += 1
    book[job].end_version += 1
    desk.tally[N_RUNNING] -= 1
    desk.tally[HELD] -= book[job].gang


@compiled
def stop(rules, book, space, desk, job, now):
    """Preempt: checkpoint, give the GPUs back, queue again."""
    vacate(rules, book, space, desk, job, now, now + rules.checkpoint_per_gpu * book[job].gang)
    book[job].state = WAITING
    book[job].keyed = 0
    book[job].asked = now
    desk.queued[0, book[job].size] += 1
    book[job].stops += 1
    log(desk, STOP, job)


@inner
def occupy(rules, book, space, desk, job, now):
    """A job whose GPUs were just taken begins: not before they are clean and it is loaded."""
    ready = now
    for slot in range(book[job].gang):
        ready = max(ready, space.clean[space.held[book[job].offset + slot]])
    first = book[job].first < 0.0
    book[job].since = ready + (rules.first_start if first else rules.restart)
    book[job].began, book[job].granted = now, now
    book[job].state = RUNNING
    book[job].run_version += 1
    book[job].end_version += 1
    book[job].rate = 0.0
    if first:
        book[job].first = now
    cross(space, book, job, 1)
    wide = width(space, book, job)
    book[job].widest = max(book[job].widest, wide)
    desk.tally[N_RUNNING] += 1
    desk.tally[HELD] += book[job].gang
    desk.queued[0, book[job].size] -= 1


@inner
def start(rules, book, space, desk, job, now, level, domain):
    """Take GPUs of a domain and begin."""
    fill(space, rules, book, job, level, domain)
    desk.tally[BUSY] += book[job].gang
    wait = waited(rules, book, job, now)
    if level <= rules.machine:
        note_wait(rules, desk, book[job].size, MACHINE, now, wait / rules.lease)
    elif level == rules.machine + 1:
        note_wait(rules, desk, book[job].size, RACK, now, wait / rules.lease)
    if rules.survives:
        # What patience bought is spent where a tight place was had; else it is kept for the next time.
        book[job].waited = 0.0 if level <= tightest(space, book[job].gang) else wait
    occupy(rules, book, space, desk, job, now)
    log(desk, START, job)


@inner
def _touches(space, book, job, low, high):
    """Whether a running job holds a GPU of a range."""
    for slot in range(book[job].gang):  # noqa: SIM110 - numba knows no any()
        if low <= space.held[book[job].offset + slot] < high:
            return True
    return False


@inner
def _clear(rules, book, space, desk, level, domain, gang, now):
    """Stop victims inside a domain, last in the queue first, until the gang fits."""
    low = space.first[level, domain]
    high = low + space.size[level, domain]
    for i in range(desk.tally[N_VICTIMS] - 1, -1, -1):
        if space.free[level, domain] >= gang:
            return
        victim = desk.victims[i]
        if book[victim].mark != 1 or not _touches(space, book, victim, low, high):
            continue
        if book[victim].guest >= 0:
            stop(rules, book, space, desk, book[victim].guest, now)
        stop(rules, book, space, desk, victim, now)


@inner
def _may_stop(rules, book, job, now):
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
        and _may_stop(rules, book, other, now)
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
def place(rules, book, space, desk, job, now, counts, clock):
    """Find and take GPUs for one waiting job among `counts`; `clock[1]` becomes when a declined offer may be taken."""
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
                    clock[1] = min(clock[1], now + hold - wait)
                    return False
            if space.free[level, domain] < gang:
                _clear(rules, book, space, desk, level, domain, gang, now)
            start(rules, book, space, desk, job, now, level, domain)
            return True
        level += 1
    if rules.force and rules.localities:
        return _forced(rules, book, space, desk, job, now, -1, 0, counts)
    return False


@inner
def _pick_victims(rules, book, space, desk, now):
    """Step 2: marks victims and lists them; who would get GPUs has `mark` 2."""
    budget = space.domain.shape[1]
    order, total, running = desk.order, desk.tally[N_ORDER], desk.tally[N_RUNNING]
    if rules.preempt < NOW or rules.quantum > 0.0:
        for i in range(total):
            job = order[i]
            if book[job].state == RUNNING and book[job].host < 0 and not _may_stop(rules, book, job, now):
                budget -= book[job].gang
    found, met = 0, 0
    for i in range(total):
        job = order[i]
        if book[job].state == WAITING:
            if book[job].gang <= budget:
                budget -= book[job].gang
                book[job].mark = 2
        elif book[job].state == RUNNING:
            met += 1
            if book[job].host < 0 and _may_stop(rules, book, job, now):
                if book[job].gang <= budget:
                    budget -= book[job].gang
                else:
                    mark(space, book, job, 1)
                    desk.victims[found] = job
                    found += 1
        if budget == 0 and met == running:
            break
    desk.tally[N_VICTIMS] = found


@inner
def _serve_chosen(rules, book, space, desk, now):
    """Step 3, then pardon the victims nobody needed."""
    if rules.force:
        desk.tally[SERVING] = 1
        for i in range(desk.tally[N_ORDER]):
            book[desk.order[i]].place = i
    for i in range(desk.tally[N_ORDER]):
        job = desk.order[i]
        if book[job].mark == 2:
            book[job].mark = 0
            if desk.tally[N_VICTIMS] > 0 or rules.force:
                place(rules, book, space, desk, job, now, space.open, desk.clock)
    desk.tally[SERVING] = 0
    for i in range(desk.tally[N_VICTIMS]):
        if book[desk.victims[i]].mark == 1:
            mark(space, book, desk.victims[i], 0)
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
    if _in_turn(book, desk):
        return
    for i in range(desk.tally[N_ORDER]):
        job = desk.order[i]
        if book[job].state == WAITING:
            book[job].seq = desk.tally[SEQ]
            book[job].keyed = 0
            desk.tally[SEQ] += 1


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
def _migrate(rules, book, space, desk, now):
    """Running jobs whose gang spans more than it must move where a tighter domain is free and pays."""
    for i in range(desk.tally[N_ORDER]):
        job = desk.order[i]
        if book[job].state != RUNNING or book[job].host >= 0 or book[job].guest >= 0 or book[job].rate <= 0.0:
            continue
        if now - book[job].granted < rules.lease or width(space, book, job) <= rules.machine:
            continue
        lift(space, book, job, 1)
        level, domain = _tighter(rules, book, space, desk, job)
        lift(space, book, job, -1)
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
def _pack(rules, book, space, desk, now):
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


@inner
def _serve_free(rules, book, space, desk, now):
    """Step 4: whoever fits into what is free."""
    last = space.domains.shape[0] - 1
    for i in range(desk.tally[N_ORDER]):
        if space.free[last, 0] == 0:
            return
        job = desk.order[i]
        if book[job].state != WAITING:
            continue
        placed = place(rules, book, space, desk, job, now, space.free, desk.clock)
        if not placed and (rules.strict or book[job].key == -np.inf):
            return


@compiled
def decide(rules, book, space, desk, now):
    """One pass. Actions are in `desk.acts`, and already booked; `desk.clock[1]` is when patience next runs out."""
    desk.tally[N_ACTS] = 0
    desk.clock[1] = np.inf
    asked = desk.tally[DEMAND] - desk.tally[HELD]
    free = space.free[space.domains.shape[0] - 1, 0]
    # Free GPUs may be in the wrong places; who looks at places may want those of others all the same.
    enough = asked <= free and (rules.flat or not rules.localities)
    if asked > 0:
        rank(rules, book, desk, now)
        if not enough and (rules.preempt >= NOW or desk.tally[N_EXPIRED] > 0):
            _pick_victims(rules, book, space, desk, now)
            _serve_chosen(rules, book, space, desk, now)
        _serve_free(rules, book, space, desk, now)
    if rules.migrate:
        _migrate(rules, book, space, desk, now)
    if rules.pack > 0.0 and asked > 0:
        _pack(rules, book, space, desk, now)
    if rules.by == QUEUES and rules.running_first and asked > 0:
        _requeue(book, desk)


@compiled
def tick(rules, book, space, desk, now):
    """What time alone does, for those without an event loop: leases run out, queues are left."""
    desk.tally[N_ACTS] = 0
    for i in range(desk.tally[N_ORDER]):
        job = desk.order[i]
        if book[job].state != RUNNING:
            continue
        if rules.by == QUEUES:
            while book[job].queue < len(desk.limits):
                if (ran(book, job, now) - book[job].forgiven) * book[job].gang < desk.limits[book[job].queue]:
                    break
                book[job].queue += 1
                book[job].seq = desk.tally[SEQ]
                desk.tally[SEQ] += 1
        if rules.preempt == LEASED and now >= book[job].lease:
            if rules.renew:
                desk.tally[N_EXPIRED] += 1
            else:
                stop(rules, book, space, desk, job, now)
