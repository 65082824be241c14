"""A job gets GPUs and gives them back: what is booked when it starts, stops or leaves."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from stallwise.cluster.kernels.compiled import inner
from stallwise.cluster.kernels.ranking import left, waited
from stallwise.cluster.kernels.space import cross, fill, give, tightest, width
from stallwise.cluster.kernels.state import BUSY, HELD, LESS, N_ACTS, N_RUNNING, ONE, RUNNING, START, STOP, WAITING
from stallwise.cluster.kernels.waiting import MACHINE, RACK, keep_wait


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
    book[job].thin += (book[job].full - book[job].gang) * (now - book[job].began)
    book[job].began = now
    book[job].since = max(book[job].since, now)


@inner
def unpair(space, book, job):
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


@inner
def vacate(rules, book, space, desk, job, now, clean):
    """A running job leaves its GPUs; they are usable again from `clean` on."""
    settle(rules, book, job, now)
    cross(space, book, job, LESS)
    if not unpair(space, book, job):
        give(space, book, job, clean)
        desk.tally[BUSY] -= book[job].gang
    book[job].mark = 0
    book[job].run_version += 1
    book[job].end_version += 1
    desk.tally[N_RUNNING] -= 1
    desk.tally[HELD] -= book[job].full
    book[job].gang = book[job].full


@inner
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
    book[job].lease = np.inf  # until its speed, and so the end of its lease, is known
    if first:
        book[job].first = now
    cross(space, book, job, ONE)
    wide = width(space, book, job)
    book[job].widest = max(book[job].widest, wide)
    desk.tally[N_RUNNING] += 1
    desk.tally[HELD] += book[job].full
    desk.queued[0, book[job].size] -= 1


@inner
def start(rules, book, space, desk, job, now, level, domain):
    """Take GPUs of a domain and begin."""
    fill(space, rules, book, job, level, domain)
    desk.tally[BUSY] += book[job].gang
    wait = waited(rules, book, job, now)
    if level <= rules.machine:
        keep_wait(rules, desk, book[job].size, MACHINE, now, wait / rules.lease)
    elif level == rules.machine + 1:
        keep_wait(rules, desk, book[job].size, RACK, now, wait / rules.lease)
    if rules.survives:
        # What patience bought is spent where a tight place was had; else it is kept for the next time.
        book[job].waited = 0.0 if level <= tightest(space, book[job].gang) else wait
    occupy(rules, book, space, desk, job, now)
    log(desk, START, job)
