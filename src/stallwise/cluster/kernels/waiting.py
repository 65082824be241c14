"""How long a job declines looser placements; Dally's windows of past waits over arrays (`tuner.AutoTuner` explains)."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from stallwise.cluster.kernels.compiled import compiled, inner
from stallwise.cluster.kernels.space import machines_for, tightest

NONE, TIMERS, AUTO, SENSITIVITY = 0, 1, 2, 3
MACHINE, RACK = np.arange(2)
_SLACK = 1e-9


@inner
def keep_wait(rules, desk, size, tier, now, wait):
    """A job of that size got a machine (or a rack) after `wait` leases."""
    if rules.patience != AUTO or wait < 1.0:
        return
    times, waits = desk.wait_time[tier, size], desk.wait[tier, size]
    total = desk.waits[tier, size]
    if total == len(times):  # full: the oldest goes
        total -= 1
        for i in range(total):
            times[i], waits[i] = times[i + 1], waits[i + 1]
    times[total], waits[total] = now / rules.lease, wait
    total += 1
    before, kept, i = now / rules.lease - rules.history, 0, 0
    while i < total:
        if times[i] < before:
            i += 1
            if rules.skips and i < total:
                times[kept], waits[kept] = times[i], waits[i]
                kept += 1
                i += 1
        else:
            times[kept], waits[kept] = times[i], waits[i]
            kept += 1
            i += 1
    desk.waits[tier, size] = kept


@compiled
def note_wait(rules, desk, size, tier, now, wait):
    """Likewise, for Python."""
    keep_wait(rules, desk, size, tier, now, wait)


@inner
def _estimate(rules, desk, size, tier):
    """Mean and some deviations of a window, in leases; 1 where it is empty."""
    total = desk.waits[tier, size]
    if total == 0:
        return 1.0
    waits = desk.wait[tier, size]
    mean = 0.0
    for i in range(total):
        mean += waits[i]
    mean /= total
    variance = 0.0
    for i in range(total):
        variance += (waits[i] - mean) ** 2
    return mean + rules.deviations * np.sqrt(variance / total)


@compiled
def estimate(rules, desk, size, tier):
    """Likewise, for Python."""
    return _estimate(rules, desk, size, tier)


@inner
def _tuned(rules, desk, size, tier):
    guess = np.ceil(_estimate(rules, desk, size, tier) - _SLACK)
    if tier == MACHINE:
        return min(np.ceil(rules.share * rules.history - _SLACK), max(rules.least_machine, guess))
    return min(rules.history, max(rules.least_rack, guess))


@inner
def expected(rules, book, desk, space, job, level, domain, counts):
    """Speed a job will have on a domain of a level: packed on as few machines as hold it, or ragged over more."""
    kind, gang = book[job].kind, book[job].gang
    if level <= rules.machine:
        return desk.tier[kind, level]
    needed = (gang + space.largest[rules.machine] - 1) // space.largest[rules.machine]
    ragged = machines_for(space, level, domain, gang, rules.machine, counts) > needed
    levels = space.domains.shape[0]
    return desk.tier[kind, levels + level] if ragged else desk.tier[kind, level]


@inner
def patience_s(rules, book, desk, space, job, level, domain, counts):
    """Seconds a job waits before it takes GPUs no tighter than `level` (a level outside the machine)."""
    gang = book[job].gang
    if rules.patience == SENSITIVITY:
        best = desk.tier[book[job].kind, tightest(space, gang)]
        loss = best / expected(rules, book, desk, space, job, level, domain, counts) - 1.0
        return min(rules.cap, rules.factor * rules.lease * max(0.0, loss))
    if rules.patience == NONE or gang > space.largest[level - 1]:
        return 0.0
    tier = MACHINE if level == rules.machine + 1 else RACK
    if rules.patience == AUTO:
        return rules.lease * _tuned(rules, desk, book[job].size, tier)
    return rules.lease * (rules.machine_leases if tier == MACHINE else rules.rack_leases)


@inner
def may_reach(rules, book, space, job, level):
    """Whether tensor skew allows a placement that wide (Tiresias): not across a rack that could hold the gang."""
    if rules.reach == 0 or book[job].skew == 0 or level <= rules.machine + 1:
        return True
    return book[job].gang > space.largest[level - 1]
