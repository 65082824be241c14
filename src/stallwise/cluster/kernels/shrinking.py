"""Running jobs give GPUs instead of being stopped, and take them back: deflation of gangs.

A gang of `full` GPUs works with any number from `least` on. Its speed is that of the placement times what the job keeps
with fewer GPUs and the same global batch: nothing is lost down to the knee, then in proportion
(`model.deflation.speed_kept`). A job that may give way is marked like a victim, but only the GPUs beyond its least
count as open. Jobs that share their GPUs with another keep them.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from stallwise.cluster.kernels.compiled import inner
from stallwise.cluster.kernels.holding import settle
from stallwise.cluster.kernels.space import count, cross, sort, take, tightest, width
from stallwise.cluster.kernels.state import BUSY, LESS, N_ORDER, ONE, RUNNING, ZERO


@inner
def may_shrink(book, job):
    """GPUs a running job could give."""
    if book[job].host >= 0 or book[job].guest >= 0:
        return 0
    return book[job].gang - book[job].least


@inner
def open_up(space, book, job, on):
    """Count the GPUs beyond a job's least as open, or not any more."""
    if book[job].mark == on:
        return
    book[job].mark = on
    for slot in range(book[job].least, book[job].gang):
        count(space, space.held[book[job].offset + slot], ZERO, ONE if on else LESS)


@inner
def _resized(rules, book, space, desk, job, now, change):
    """After a job has other GPUs: what follows from their number. Its speed is looked up when the pass is over."""
    cross(space, book, job, ONE)
    desk.tally[BUSY] += change
    book[job].resized = 1
    book[job].since = max(book[job].since, now + rules.resize)
    book[job].widest = max(book[job].widest, width(space, book, job))


@inner
def _gives(space, book, job, low, high):
    """Whether a job has a GPU beyond its least in a range."""
    for slot in range(book[job].least, book[job].gang):  # noqa: SIM110 - numba knows no any()
        if low <= space.held[book[job].offset + slot] < high:
            return True
    return False


@inner
def shrink(rules, book, space, desk, job, low, high, most, now):
    """Take GPUs of a marked job that are in a range, at most so many."""
    offset, kept, given = book[job].offset, book[job].least, 0
    if not _gives(space, book, job, low, high):
        return
    settle(rules, book, job, now)
    cross(space, book, job, LESS)
    for slot in range(book[job].least, book[job].gang):
        gpu = space.held[offset + slot]
        if given < most and low <= gpu < high:
            space.owner[gpu] = -1
            space.clean[gpu] = now
            count(space, gpu, ONE, ZERO)  # it was open already
            given += 1
        else:
            space.held[offset + kept] = gpu
            kept += 1
    book[job].gang = kept
    book[job].shrinks += 1
    _resized(rules, book, space, desk, job, now, -given)


@inner
def _grow(rules, book, space, desk, job, now):
    """Give a shrunk job free GPUs near its own: in its machine first, at most as wide as it is or must be."""
    settle(rules, book, job, now)
    cross(space, book, job, LESS)
    had = book[job].gang
    last = max(width(space, book, job), tightest(space, book[job].full))
    for level in range(last + 1):
        domain = space.domain[level, space.held[book[job].offset]]
        start = space.first[level, domain]
        for gpu in range(start, start + space.size[level, domain]):
            if book[job].gang == book[job].full:
                break
            if space.owner[gpu] == -1:
                take(space, book, job, gpu, book[job].gang)
                book[job].gang += 1
    sort(space.held, book[job].offset, book[job].gang)
    _resized(rules, book, space, desk, job, now, book[job].gang - had)


@inner
def grow_back(rules, book, space, desk, now):
    """Shrunk jobs take what nobody waits for, in the order of the queue."""
    last = space.domains.shape[0] - 1
    for i in range(desk.tally[N_ORDER]):
        if space.free[last, 0] == 0:
            return
        job = desk.order[i]
        if book[job].state != RUNNING or book[job].gang == book[job].full:
            continue
        if book[job].host < 0 and book[job].guest < 0 and book[job].rate > 0.0 and _near(space, book, job) > 0:
            _grow(rules, book, space, desk, job, now)


@inner
def _near(space, book, job):
    """Free GPUs a shrunk job could take."""
    level = max(width(space, book, job), tightest(space, book[job].full))
    return space.free[level, space.domain[level, space.held[book[job].offset]]]


@inner
def kept_speed(book, job):
    """What a shrunk job keeps of its speed (`model.deflation.speed_kept`)."""
    share = book[job].gang / book[job].full
    return 1.0 if share >= book[job].knee else share / book[job].knee
