"""Jobs and GPUs: starts and stops, placement of one job, moves, shared GPUs, gangs that shrink.

A gang of `full` GPUs that may shrink works with any number from `least` on. Its speed is that of the placement times
what the job keeps with fewer GPUs and the same global batch: nothing is lost down to the knee, then in proportion
(`model.deflation.speed_kept`). A job that may shrink is marked like a victim, but only the GPUs beyond its least count
as open. Jobs that share their GPUs with another keep them (packing and moves are Gandiva's, OSDI 2018).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from stallwise.cluster.engine._queue import MACHINE, RACK, expected, keep_wait, left, may_reach, patience_s, waited
from stallwise.cluster.engine._topology import count, cross, fill, find, give, lift, sort, spans, take, tightest, width
from stallwise.cluster.engine.compile import inner
from stallwise.cluster.engine.state import (
    BUSY,
    HELD,
    LESS,
    MOVE,
    N_ACTS,
    N_ORDER,
    N_RUNNING,
    N_VICTIMS,
    ONE,
    RUNNING,
    SERVING,
    START,
    STOP,
    WAITING,
    WAKE_AT,
    ZERO,
)


@inner
def log(state, what, job):
    """Append an action to the log of this moment."""
    at = state.tally[N_ACTS]
    state.acts[at, 0], state.acts[at, 1] = what, job
    state.tally[N_ACTS] = at + 1


@inner
def settle(params, jobs, job, now):
    """Account the work and time of a running job up to now."""
    jobs[job].left = left(jobs, job, now)
    overhead = min(now, jobs[job].since) - jobs[job].began
    jobs[job].over += max(0.0, overhead)
    jobs[job].ran += now - jobs[job].began
    jobs[job].thin += (jobs[job].full - jobs[job].gang) * (now - jobs[job].began)
    jobs[job].began = now
    jobs[job].since = max(jobs[job].since, now)


@inner
def unpair(topology, jobs, job):
    """Separate a packed pair: the other job owns the GPUs. True where the GPUs stay taken."""
    host, guest = jobs[job].host, jobs[job].guest
    if host >= 0:
        jobs[host].guest = -1
        jobs[job].host = -1
        return True
    if guest >= 0:
        jobs[job].guest, jobs[guest].host = -1, -1
        for slot in range(jobs[job].gang):
            topology.owner[topology.gang_gpus[jobs[job].offset + slot]] = guest
        return True
    return False


@inner
def vacate(params, jobs, topology, state, job, now, clean):
    """Take a running job off its GPUs; they are usable again from `clean` on."""
    settle(params, jobs, job, now)
    cross(topology, jobs, job, LESS)
    if not unpair(topology, jobs, job):
        give(topology, jobs, job, clean)
        state.tally[BUSY] -= jobs[job].gang
    jobs[job].mark = 0
    jobs[job].run_version += 1
    jobs[job].end_version += 1
    state.tally[N_RUNNING] -= 1
    state.tally[HELD] -= jobs[job].full
    jobs[job].gang = jobs[job].full


@inner
def stop(params, jobs, topology, state, job, now):
    """Preempt a job: checkpoint, return its GPUs, queue it again."""
    vacate(params, jobs, topology, state, job, now, now + params.checkpoint_per_gpu * jobs[job].gang)
    jobs[job].state = WAITING
    jobs[job].keyed = 0
    jobs[job].waiting_since = now
    state.queued[0, jobs[job].size] += 1
    jobs[job].stops += 1
    log(state, STOP, job)


@inner
def occupy(params, jobs, topology, state, job, now):
    """Begin a job whose GPUs were just taken: not before they are clean and it is loaded."""
    ready = now
    for slot in range(jobs[job].gang):
        ready = max(ready, topology.clean[topology.gang_gpus[jobs[job].offset + slot]])
    first = jobs[job].first < 0.0
    jobs[job].since = ready + (params.first_start if first else params.restart)
    jobs[job].began, jobs[job].granted = now, now
    jobs[job].state = RUNNING
    jobs[job].run_version += 1
    jobs[job].end_version += 1
    jobs[job].rate = 0.0
    jobs[job].lease = np.inf  # until its speed, and so the end of its lease, is known
    if first:
        jobs[job].first = now
    cross(topology, jobs, job, ONE)
    wide = width(topology, jobs, job)
    jobs[job].widest = max(jobs[job].widest, wide)
    state.tally[N_RUNNING] += 1
    state.tally[HELD] += jobs[job].full
    state.queued[0, jobs[job].size] -= 1


@inner
def start(params, jobs, topology, state, job, now, level, domain):
    """Take GPUs of a domain for a job and begin it."""
    fill(topology, params, jobs, job, level, domain)
    state.tally[BUSY] += jobs[job].gang
    wait = waited(params, jobs, job, now)
    if level <= params.machine:
        keep_wait(params, state, jobs[job].size, MACHINE, now, wait / params.lease)
    elif level == params.machine + 1:
        keep_wait(params, state, jobs[job].size, RACK, now, wait / params.lease)
    if params.survives:
        # What patience bought is spent where a tight place was had; else it is kept for the next time.
        jobs[job].waited = 0.0 if level <= tightest(topology, jobs[job].gang) else wait
    occupy(params, jobs, topology, state, job, now)
    log(state, START, job)


@inner
def may_shrink(jobs, job):
    """Return how many GPUs a running job could give up."""
    if jobs[job].host >= 0 or jobs[job].guest >= 0:
        return 0
    return jobs[job].gang - jobs[job].least


@inner
def open_up(topology, jobs, job, on):
    """Count the GPUs beyond a job's least as open, or undo that."""
    if jobs[job].mark == on:
        return
    jobs[job].mark = on
    for slot in range(jobs[job].least, jobs[job].gang):
        count(topology, topology.gang_gpus[jobs[job].offset + slot], ZERO, ONE if on else LESS)


@inner
def _resized(params, jobs, topology, state, job, now, change):
    """Update what depends on the number of a job's GPUs. Its speed is looked up when the pass is over."""
    cross(topology, jobs, job, ONE)
    state.tally[BUSY] += change
    jobs[job].resized = 1
    jobs[job].since = max(jobs[job].since, now + params.resize)
    jobs[job].widest = max(jobs[job].widest, width(topology, jobs, job))


@inner
def _gives(topology, jobs, job, low, high):
    """Whether a job has a GPU beyond its least in a range."""
    for slot in range(jobs[job].least, jobs[job].gang):
        if low <= topology.gang_gpus[jobs[job].offset + slot] < high:
            return True
    return False


@inner
def shrink(params, jobs, topology, state, job, low, high, most, now):
    """Take at most `most` GPUs of a marked job that are in a range."""
    offset, kept, released = jobs[job].offset, jobs[job].least, 0
    if not _gives(topology, jobs, job, low, high):
        return
    settle(params, jobs, job, now)
    cross(topology, jobs, job, LESS)
    for slot in range(jobs[job].least, jobs[job].gang):
        gpu = topology.gang_gpus[offset + slot]
        if released < most and low <= gpu < high:
            topology.owner[gpu] = -1
            topology.clean[gpu] = now
            count(topology, gpu, ONE, ZERO)  # it was open already
            released += 1
        else:
            topology.gang_gpus[offset + kept] = gpu
            kept += 1
    jobs[job].gang = kept
    jobs[job].shrinks += 1
    _resized(params, jobs, topology, state, job, now, -released)


@inner
def _grow(params, jobs, topology, state, job, now):
    """Give a shrunk job free GPUs near its own: in its machine first, at most as wide as it is or must be."""
    settle(params, jobs, job, now)
    cross(topology, jobs, job, LESS)
    had = jobs[job].gang
    last = max(width(topology, jobs, job), tightest(topology, jobs[job].full))
    for level in range(last + 1):
        domain = topology.domain[level, topology.gang_gpus[jobs[job].offset]]
        start = topology.first[level, domain]
        for gpu in range(start, start + topology.size[level, domain]):
            if jobs[job].gang == jobs[job].full:
                break
            if topology.owner[gpu] == -1:
                take(topology, jobs, job, gpu, jobs[job].gang)
                jobs[job].gang += 1
    sort(topology.gang_gpus, jobs[job].offset, jobs[job].gang)
    _resized(params, jobs, topology, state, job, now, jobs[job].gang - had)


@inner
def grow_back(params, jobs, topology, state, now):
    """Give shrunk jobs the GPUs that no job waits for, in the order of the queue."""
    last = topology.domains.shape[0] - 1
    for i in range(state.tally[N_ORDER]):
        if topology.free[last, 0] == 0:
            return
        job = state.order[i]
        if jobs[job].state != RUNNING or jobs[job].gang == jobs[job].full:
            continue
        if jobs[job].host < 0 and jobs[job].guest < 0 and jobs[job].rate > 0.0 and _near(topology, jobs, job) > 0:
            _grow(params, jobs, topology, state, job, now)


@inner
def _near(topology, jobs, job):
    """Count the free GPUs that a shrunk job could take."""
    level = max(width(topology, jobs, job), tightest(topology, jobs[job].full))
    return topology.free[level, topology.domain[level, topology.gang_gpus[jobs[job].offset]]]


@inner
def kept_speed(jobs, job):
    """Return the fraction of its speed that a shrunk job keeps (`model.deflation.speed_kept`)."""
    share = jobs[job].gang / jobs[job].full
    return 1.0 if share >= jobs[job].knee else share / jobs[job].knee


NEVER, LEASED, NOW, ROUNDS = 0, 1, 2, 3


@inner
def _touches(topology, jobs, job, low, high):
    """Whether a running job holds a GPU of a range."""
    for slot in range(jobs[job].gang):  # noqa: SIM110 - numba knows no any()
        if low <= topology.gang_gpus[jobs[job].offset + slot] < high:
            return True
    return False


@inner
def _clear(params, jobs, topology, state, level, domain, gang, now):
    """Stop victims inside a domain, or shrink them, last in the queue first, until the gang fits."""
    low = topology.first[level, domain]
    high = low + topology.size[level, domain]
    for i in range(state.tally[N_VICTIMS] - 1, -1, -1):
        if topology.free[level, domain] >= gang:
            return
        victim = state.victims[i]
        if params.deflate < 1.0:
            shrink(params, jobs, topology, state, victim, low, high, gang - topology.free[level, domain], now)
            continue
        if jobs[victim].mark != 1 or not _touches(topology, jobs, victim, low, high):
            continue
        if jobs[victim].guest >= 0:
            stop(params, jobs, topology, state, jobs[victim].guest, now)
        stop(params, jobs, topology, state, victim, now)


@inner
def may_stop(params, jobs, job, now):
    """Whether a running job may be stopped now."""
    if params.preempt == NEVER:
        return False
    if params.preempt == LEASED:
        return now >= jobs[job].lease
    return now - jobs[job].granted >= params.quantum


@inner
def _yields(params, jobs, job, other, now):
    """Whether a running job may be stopped for a job that comes before it."""
    return (
        jobs[other].place > jobs[job].place
        and jobs[other].state == RUNNING
        and jobs[other].guest < 0
        and jobs[other].host < 0
        and may_stop(params, jobs, other, now)
    )


@inner
def _room_on(params, jobs, topology, job, machine, now):
    """Count the GPUs of a machine that a job could have if later jobs were stopped."""
    start, total = topology.first[params.machine, machine], 0
    for gpu in range(start, start + topology.size[params.machine, machine]):
        owner = topology.owner[gpu]
        if owner == -1 or (owner >= 0 and _yields(params, jobs, job, owner, now)):
            total += 1
    return total


@inner
def _push_off(params, jobs, topology, state, job, machine, now):
    """Stop the jobs on a machine that yield to a job."""
    start = topology.first[params.machine, machine]
    for gpu in range(start, start + topology.size[params.machine, machine]):
        owner = topology.owner[gpu]
        if owner >= 0 and _yields(params, jobs, job, owner, now):
            stop(params, jobs, topology, state, owner, now)
            jobs[owner].mark = 2  # it comes later in the queue and is served from there


@inner
def _best_machines(params, jobs, topology, state, job, now, rack):
    """Find the fewest machines of a rack (the cluster where there are none) that could hold the gang, freest first.

    Into `state.scratch`; how many, or 0 where they do not exist.
    """
    level = min(params.machine + 1, topology.domains.shape[0] - 1)
    start = topology.first[level, rack]
    low = topology.domain[params.machine, start]
    high = topology.domain[params.machine, start + topology.size[level, rack] - 1]
    rest, total = jobs[job].gang, 0
    while rest > 0:
        want = min(rest, topology.largest[params.machine])
        best, most = -1, -1
        for machine in range(low, high + 1):
            taken = False
            for i in range(total):
                taken = taken or state.scratch[i] == machine
            if taken or topology.free[params.machine, machine] <= most:
                continue
            if _room_on(params, jobs, topology, job, machine, now) >= want:
                best, most = machine, topology.free[params.machine, machine]
        if best < 0:
            return 0
        state.scratch[total] = best
        total += 1
        rest -= want
    return total


@inner
def _forced(params, jobs, topology, state, job, now, level, domain, counts):
    """Stop later jobs on the machines a job prefers, where it runs enough faster there than on what it was offered."""
    if state.tally[SERVING] == 0:
        return False
    gang = jobs[job].gang
    best = tightest(topology, gang)
    rack_level = min(params.machine + 1, topology.domains.shape[0] - 1)
    if best > rack_level:
        return False
    if level >= 0:
        offer = expected(params, jobs, state, topology, job, level, domain, counts)
        if state.tier[jobs[job].kind, max(best, params.machine)] < params.force_gain * offer:
            return False
    for rack in range(topology.domains[rack_level]):
        total = _best_machines(params, jobs, topology, state, job, now, rack)
        if total == 0:
            continue
        for i in range(total):
            _push_off(params, jobs, topology, state, job, state.scratch[i], now)
        if total == 1:
            start(params, jobs, topology, state, job, now, params.machine, state.scratch[0])
        else:
            start(params, jobs, topology, state, job, now, rack_level, rack)
        return True
    return False


@inner
def place(params, jobs, topology, state, job, now, counts):
    """Find and take GPUs for one waiting job among `counts`; `WAKE_AT` becomes when a declined offer may be taken."""
    gang, last = jobs[job].gang, topology.domains.shape[0] - 1
    if counts[last, 0] < gang:
        return False
    level = tightest(topology, gang) if params.localities else last
    wait = waited(params, jobs, job, now)
    while level <= last:
        if not may_reach(params, jobs, topology, job, level):
            return False
        domain = find(topology, params, state, gang, level, topology.free)
        if domain < 0 and counts[last, 0] > topology.free[last, 0]:
            domain = find(topology, params, state, gang, level, counts)
        if domain >= 0:
            if level > params.machine and params.localities:
                if params.force and _forced(params, jobs, topology, state, job, now, level, domain, counts):
                    return True
                hold = patience_s(params, jobs, state, topology, job, level, domain, counts)
                if wait + 1e-3 < hold:
                    state.clock[WAKE_AT] = min(state.clock[WAKE_AT], now + hold - wait)
                    return False
            if topology.free[level, domain] < gang:
                _clear(params, jobs, topology, state, level, domain, gang, now)
            start(params, jobs, topology, state, job, now, level, domain)
            return True
        level += 1
    if params.force and params.localities:
        return _forced(params, jobs, topology, state, job, now, LESS, ZERO, counts)
    return False


@inner
def place_fewer(params, jobs, topology, state, job, now, counts):
    """Place a job on fewer GPUs than its whole gang where no more are available."""
    available = counts[topology.domains.shape[0] - 1, 0]
    if available < jobs[job].least or available >= jobs[job].full:
        return False
    jobs[job].gang = available
    if place(params, jobs, topology, state, job, now, counts):
        return True
    jobs[job].gang = jobs[job].full
    return False


@inner
def _present(params, jobs, topology, state, job):
    """Return the speed of a running job where it is, without others on its links."""
    wide, kind = width(topology, jobs, job), jobs[job].kind
    needed = (jobs[job].gang + topology.largest[params.machine] - 1) // topology.largest[params.machine]
    if wide > params.machine and spans(topology, jobs, job, params.machine) > needed:
        return state.tier[kind, topology.domains.shape[0] + wide]
    return state.tier[kind, wide]


@inner
def _tighter(params, jobs, topology, state, job):
    """Find a domain that would make a running job faster, its own GPUs counted as free: (level, domain) or (-1, -1)."""
    present = _present(params, jobs, topology, state, job)
    for level in range(tightest(topology, jobs[job].gang), width(topology, jobs, job) + 1):
        if state.tier[jobs[job].kind, level] < params.migrate_gain * present:
            continue
        domain = find(topology, params, state, jobs[job].gang, level, topology.free)
        if domain < 0:
            continue
        if expected(params, jobs, state, topology, job, level, domain, topology.free) >= params.migrate_gain * present:
            return level, domain
    return -1, -1


@inner
def migrate(params, jobs, topology, state, now):
    """Move running jobs that span more than they must to a tighter free domain, where that pays."""
    for i in range(state.tally[N_ORDER]):
        job = state.order[i]
        if jobs[job].state != RUNNING or jobs[job].host >= 0 or jobs[job].guest >= 0 or jobs[job].rate <= 0.0:
            continue
        if jobs[job].gang < jobs[job].full:
            continue
        if now - jobs[job].granted < params.lease or width(topology, jobs, job) <= params.machine:
            continue
        lift(topology, jobs, job, ONE)
        level, domain = _tighter(params, jobs, topology, state, job)
        lift(topology, jobs, job, LESS)
        if level < 0:
            continue
        vacate(params, jobs, topology, state, job, now, now)
        state.queued[0, jobs[job].size] += 1  # `occupy` counts it off again
        fill(topology, params, jobs, job, level, domain)
        state.tally[BUSY] += jobs[job].gang
        occupy(params, jobs, topology, state, job, now)
        # Saving and loading the state takes as long as a preemption and a restart.
        jobs[job].since = max(jobs[job].since, now + params.checkpoint_per_gpu * jobs[job].gang + params.restart)
        jobs[job].moves += 1
        log(state, MOVE, job)


@inner
def pack(params, jobs, topology, state, now):
    """Let a waiting job share the GPUs of a running one of equal gang, where both leave each other room (Gandiva)."""
    order, total = state.order, state.tally[N_ORDER]
    for i in range(total):
        job = order[i]
        if jobs[job].state != WAITING or jobs[job].util >= params.pack:
            continue
        best, room = -1, params.pack
        for k in range(total):
            host = order[k]
            if jobs[host].state != RUNNING or jobs[host].gang != jobs[job].gang:
                continue
            if jobs[host].host >= 0 or jobs[host].guest >= 0:
                continue
            both = jobs[host].util + jobs[job].util
            if both <= room:
                best, room = host, both
        if best < 0:
            continue
        jobs[job].host, jobs[best].guest = best, job
        for slot in range(jobs[job].gang):
            topology.gang_gpus[jobs[job].offset + slot] = topology.gang_gpus[jobs[best].offset + slot]
        occupy(params, jobs, topology, state, job, now)
        log(state, START, job)
