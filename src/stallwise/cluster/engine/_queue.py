"""The queue: which job is served first, and how long a job declines looser placements.

Every job has a pair of numbers, smaller first; Dally's windows of past waits are over arrays here (`tuner.AutoTuner`
explains them).

Sorting is by insertion and stable: between two events few jobs change places, so it is nearly one walk over the queue,
and equals stay in the order they had.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from stallwise.cluster.engine._topology import machines_for, tightest
from stallwise.cluster.engine.compile import compiled, inlined, inner
from stallwise.cluster.engine.state import DONE, N_ENDED, N_FRESH, N_ORDER, N_SAMPLE, RUNNING, WAITING

ARRIVAL, WORK, REMAINING, REMAINING_SERVICE, TIME, SERVICE, QUEUES, GITTINS, EFFICIENCY, TURNS, USER = range(11)
MANY = 48
"""New jobs at one event from which sorting from scratch is cheaper."""


@inlined
def ran(jobs, job, now):
    """Return the seconds with GPUs until now."""
    if jobs[job].state == RUNNING:
        return jobs[job].ran + (now - jobs[job].began)
    return jobs[job].ran


@inlined
def left(jobs, job, now):
    """Return the work left, in seconds at full speed."""
    if jobs[job].state == RUNNING and now > jobs[job].since:
        return max(0.0, jobs[job].left - jobs[job].rate * (now - jobs[job].since))
    return jobs[job].left


@inner
def waited(params, jobs, job, now):
    """Return how long a job has waited: since it last had GPUs, or in all where patience survives preemption."""
    current = now - jobs[job].waiting_since
    return current + jobs[job].waited if params.survives else current


@inlined
def _efficiency(jobs, job, now):
    """Return Dally's S: work done over the time it took, 0 before the first run."""
    spent = ran(jobs, job, now)
    if spent <= 0.0:
        return 0.0
    return (jobs[job].work - left(jobs, job, now)) / spent


@compiled
def efficiency(jobs, job, now):
    """Python-callable wrapper of `_efficiency`."""
    return _efficiency(jobs, job, now)


@inner
def _first_above(sample, total, service):
    """Count the values of a sorted sample that are at most `service`."""
    low, high = 0, total
    while low < high:
        middle = (low + high) // 2
        if sample[middle] > service:
            high = middle
        else:
            low = middle + 1
    return low


@inner
def gittins(params, state, service):
    """Return the Gittins index: odds of ending within delta over the service that takes; larger is better.

    P(S - a ≤ Δ | S > a) / E[min(S - a, Δ) | S > a] over the sorted sample `sample` and its running sums `sums`
    (Tiresias, NSDI 2019).
    """
    total = state.tally[N_SAMPLE]
    low = _first_above(state.sample, total, service)
    if low == total:
        return 0.0
    high = _first_above(state.sample, total, service + params.delta)
    ends = high - low
    spent = state.sums[high] - state.sums[low] - ends * service + params.delta * (total - high)
    return ends / max(spent, 1e-9)


@inner
def remember(state, service):
    """Keep the service of an ended job in the sorted sample; when it is full, every second one is dropped."""
    sample, total = state.sample, state.tally[N_SAMPLE]
    if total == len(sample):
        total = total // 2
        for i in range(total):
            sample[i] = sample[2 * i + 1]
    i = total
    while i > 0 and sample[i - 1] > service:
        sample[i] = sample[i - 1]
        i -= 1
    sample[i] = service
    state.tally[N_SAMPLE] = total + 1
    for k in range(total + 1):
        state.sums[k + 1] = state.sums[k] + sample[k]


@inlined
def set_key(params, jobs, state, job, now):
    """Compute the sort key of a job at `now`."""
    by = params.by
    key, key2 = 0.0, 0.0
    if by == WORK:
        key = jobs[job].work
    elif by == REMAINING:
        key = left(jobs, job, now)
    elif by == REMAINING_SERVICE:
        key = left(jobs, job, now) * jobs[job].gang
    elif by == TIME:
        key = ran(jobs, job, now)
    elif by == SERVICE:
        key = ran(jobs, job, now) * jobs[job].gang
        if jobs[job].state == RUNNING:
            key /= params.margin
    elif by == QUEUES:
        key, key2 = np.float64(jobs[job].queue), np.float64(jobs[job].seq)
    elif by == GITTINS:
        service = ran(jobs, job, now) * jobs[job].gang
        key, key2 = -gittins(params, state, service), service
    elif by == EFFICIENCY:
        key, key2 = _efficiency(jobs, job, now), jobs[job].waiting_since
    elif by == TURNS:
        # Waiting jobs come before running ones; of these the latest to begin: the longest turn ends first.
        key = 2.0 * now + 1.0 - jobs[job].granted if jobs[job].state == RUNNING else jobs[job].waiting_since
    if params.age < np.inf and jobs[job].state == WAITING and now - jobs[job].waiting_since >= params.age:
        key, key2 = -np.inf, jobs[job].waiting_since
    jobs[job].key, jobs[job].key2 = key, key2


@inner
def gpu_seconds(jobs, job, now):
    """Return the service until now: that of the whole gang less what a shrunk one went without."""
    had = ran(jobs, job, now) * jobs[job].full - jobs[job].thin
    if jobs[job].state == RUNNING:
        had -= (now - jobs[job].began) * (jobs[job].full - jobs[job].gang)
    return had


@inner
def _set_shrunk_key(params, jobs, state, job, now):
    """Compute the sort key where gangs shrink. Kept apart: `set_key` must stay small enough to be inlined."""
    set_key(params, jobs, state, job, now)
    if jobs[job].key == -np.inf:
        return
    if params.by == REMAINING_SERVICE:
        jobs[job].key = left(jobs, job, now) * jobs[job].full
    elif params.by == SERVICE:
        had = gpu_seconds(jobs, job, now)
        jobs[job].key = had / params.margin if jobs[job].state == RUNNING else had
    elif params.by == GITTINS:
        had = gpu_seconds(jobs, job, now)
        jobs[job].key, jobs[job].key2 = -gittins(params, state, had), had


@inlined
def _renew_key(params, jobs, state, job, now, moving):
    """Compute a job's sort key; a waiting job keeps its own, except where time or the ends of other jobs change it."""
    if moving or jobs[job].state == RUNNING or not jobs[job].keyed:
        if params.deflate < 1.0:
            _set_shrunk_key(params, jobs, state, job, now)
        else:
            set_key(params, jobs, state, job, now)
        jobs[job].keyed = 1


@inlined
def _before(jobs, a, b):
    return jobs[a].key < jobs[b].key or (jobs[a].key == jobs[b].key and jobs[a].key2 < jobs[b].key2)


@inner
def _comes_before(jobs, a, b):
    if jobs[a].key == jobs[b].key and jobs[a].key2 == jobs[b].key2:
        return jobs[a].place < jobs[b].place
    return _before(jobs, a, b)


@inlined
def _sort_unsettled(params, jobs, state, now, moving):
    """Drop ended jobs, compute sort keys and insert each job where it belongs, in one walk over the queue."""
    order, kept = state.order, 0
    for i in range(state.tally[N_ORDER]):
        job = order[i]
        if jobs[job].state == DONE:
            continue
        _renew_key(params, jobs, state, job, now, moving)
        if kept == 0 or not _before(jobs, job, order[kept - 1]):
            order[kept] = job
        else:
            # Most jobs move by few places: steps back that double, then halving what lies between the last two.
            high, step = kept - 1, 1
            while step <= high and _before(jobs, job, order[high - step]):
                high -= step
                step *= 2
            low = max(0, high - step + 1)
            while low < high:
                middle = (low + high) // 2
                if _before(jobs, job, order[middle]):
                    high = middle
                else:
                    low = middle + 1
            for k in range(kept, low, -1):
                order[k] = order[k - 1]
            order[low] = job
        kept += 1
    state.tally[N_ORDER], state.tally[N_ENDED] = kept, 0


@inner
def _sort_anew(jobs, order, total):
    """Sort from scratch (Shell 1959); jobs of equal keys keep their order."""
    for i in range(total):
        jobs[order[i]].place = i
    gap = total
    while gap > 1:
        gap = max(1, gap * 5 // 11)
        for i in range(gap, total):
            job, at = order[i], i
            while at >= gap and _comes_before(jobs, job, order[at - gap]):
                order[at] = order[at - gap]
                at -= gap
            order[at] = job


@inner
def _drop_ended(jobs, state):
    order, kept = state.order, 0
    for i in range(state.tally[N_ORDER]):
        job = order[i]
        if jobs[job].state != DONE:
            order[kept] = job
            kept += 1
    state.tally[N_ORDER], state.tally[N_ENDED] = kept, 0


@inner
def rank(params, jobs, state, now):
    """Drop ended jobs, compute sort keys, and sort."""
    if params.by == USER:  # Python has written the order (`policies/_user.py`)
        state.tally[N_FRESH] = 0
        return
    standing = params.by == ARRIVAL and params.age == np.inf
    moving = params.age < np.inf or (params.by == GITTINS and state.tally[N_ENDED] > 0)
    if standing:
        # Arrivals are in order already: ended jobs are skipped until they number the root of the queue's length.
        if state.tally[N_ENDED] * state.tally[N_ENDED] > state.tally[N_ORDER]:
            _drop_ended(jobs, state)
    elif state.tally[N_FRESH] > MANY:
        _drop_ended(jobs, state)
        for i in range(state.tally[N_ORDER]):
            _renew_key(params, jobs, state, state.order[i], now, moving)
        _sort_anew(jobs, state.order, state.tally[N_ORDER])
    else:
        _sort_unsettled(params, jobs, state, now, moving)
    state.tally[N_FRESH] = 0


NONE, TIMERS, AUTO, SENSITIVITY = 0, 1, 2, 3
MACHINE, RACK = np.arange(2)
_SLACK = 1e-9


@inner
def keep_wait(params, state, size, tier, now, wait):
    """Enter a wait of `wait` leases, until a machine (or a rack) was had, into the window of a gang size."""
    if params.patience != AUTO or wait < 1.0:
        return
    times, waits = state.wait_time[tier, size], state.wait[tier, size]
    total = state.waits[tier, size]
    if total == len(times):  # full: the oldest goes
        total -= 1
        for i in range(total):
            times[i], waits[i] = times[i + 1], waits[i + 1]
    times[total], waits[total] = now / params.lease, wait
    total += 1
    before, kept, i = now / params.lease - params.history, 0, 0
    while i < total:
        if times[i] < before:
            i += 1
            if params.skips and i < total:
                times[kept], waits[kept] = times[i], waits[i]
                kept += 1
                i += 1
        else:
            times[kept], waits[kept] = times[i], waits[i]
            kept += 1
            i += 1
    state.waits[tier, size] = kept


@compiled
def note_wait(params, state, size, tier, now, wait):
    """Python-callable wrapper of `keep_wait`."""
    keep_wait(params, state, size, tier, now, wait)


@inner
def _estimate(params, state, size, tier):
    """Return mean plus some deviations of a window, in leases; 1 where it is empty."""
    total = state.waits[tier, size]
    if total == 0:
        return 1.0
    waits = state.wait[tier, size]
    mean = 0.0
    for i in range(total):
        mean += waits[i]
    mean /= total
    variance = 0.0
    for i in range(total):
        variance += (waits[i] - mean) ** 2
    return mean + params.deviations * np.sqrt(variance / total)


@compiled
def estimate(params, state, size, tier):
    """Python-callable wrapper of `_estimate`."""
    return _estimate(params, state, size, tier)


@inner
def _tuned(params, state, size, tier):
    guess = np.ceil(_estimate(params, state, size, tier) - _SLACK)
    if tier == MACHINE:
        return min(np.ceil(params.share * params.history - _SLACK), max(params.least_machine, guess))
    return min(params.history, max(params.least_rack, guess))


@inner
def expected(params, jobs, state, topology, job, level, domain, counts):
    """Return the speed of a job on a domain of a level: packed on as few machines as hold it, or ragged over more."""
    kind, gang = jobs[job].kind, jobs[job].gang
    if level <= params.machine:
        return state.tier[kind, level]
    needed = (gang + topology.largest[params.machine] - 1) // topology.largest[params.machine]
    ragged = machines_for(topology, level, domain, gang, params.machine, counts) > needed
    levels = topology.domains.shape[0]
    return state.tier[kind, levels + level] if ragged else state.tier[kind, level]


@inner
def patience_s(params, jobs, state, topology, job, level, domain, counts):
    """Return the seconds a job waits before it takes GPUs no tighter than `level` (a level outside the machine)."""
    gang = jobs[job].gang
    if params.patience == SENSITIVITY:
        best = state.tier[jobs[job].kind, tightest(topology, gang)]
        loss = best / expected(params, jobs, state, topology, job, level, domain, counts) - 1.0
        return min(params.cap, params.factor * params.lease * max(0.0, loss))
    if params.patience == NONE or gang > topology.largest[level - 1]:
        return 0.0
    tier = MACHINE if level == params.machine + 1 else RACK
    if params.patience == AUTO:
        return params.lease * _tuned(params, state, jobs[job].size, tier)
    return params.lease * (params.machine_leases if tier == MACHINE else params.rack_leases)


@inner
def may_reach(params, jobs, topology, job, level):
    """Whether tensor skew allows a placement that wide (Tiresias): not across a rack that could hold the gang."""
    if params.reach == 0 or jobs[job].skew == 0 or level <= params.machine + 1:
        return True
    return jobs[job].gang > topology.largest[level - 1]
