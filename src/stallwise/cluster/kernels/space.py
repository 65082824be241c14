"""Which GPUs: search, take and give back over the tree. A GPU has one owner or none; `take` and `give` change it."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from stallwise.cluster.kernels.compiled import compiled, inner
from stallwise.cluster.kernels.state import LESS, ONE, RANDOM, ZERO

FIRST, BEST, ANY, EMPTIEST = 0, 1, 2, 3


@inner
def draw(desk):
    """Splitmix64 (Steele, Lea & Flood 2014): the next number in [0, 1)."""
    state = np.uint64(desk.tally[RANDOM]) + np.uint64(0x9E3779B97F4A7C15)
    desk.tally[RANDOM] = np.int64(state)
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@inner
def sort(values, start, count):
    """A part of an array in place (Shell 1959): it comes in few ordered runs."""
    gap = count // 2
    while gap > 0:
        for i in range(start + gap, start + count):
            value, at = values[i], i
            while at >= start + gap and values[at - gap] > value:
                values[at] = values[at - gap]
                at -= gap
            values[at] = value
        gap //= 2


@inner
def count(space, gpu, free, open_):
    """Add to the counts of every domain a GPU belongs to."""
    for level in range(space.domain.shape[0]):
        d = space.domain[level, gpu]
        space.free[level, d] += free
        space.open[level, d] += open_


@compiled
def recount(space, gpu, free, open_):
    """Likewise, for Python."""
    count(space, gpu, free, open_)


@inner
def take(space, book, job, gpu, slot):
    """Give one free GPU to a job, as the `slot`-th of its gang."""
    space.owner[gpu] = job
    space.held[book[job].offset + slot] = gpu
    count(space, gpu, LESS, LESS)


@inner
def give(space, book, job, clean):
    """Take all GPUs of a job back; they can be used from `clean` on. GPUs of a victim were counted as open already."""
    marked = np.int64(book[job].mark == 1)
    for slot in range(book[job].gang):
        gpu = space.held[book[job].offset + slot]
        space.owner[gpu] = -1
        space.clean[gpu] = clean
        count(space, gpu, ONE, ONE - marked)
    book[job].mark = 0


@inner
def mark(space, book, job, on):
    """Make a job a victim (its GPUs count as open), or pardon it."""
    if book[job].mark == on:
        return
    book[job].mark = on
    for slot in range(book[job].gang):
        count(space, space.held[book[job].offset + slot], ZERO, ONE if on else LESS)


@inner
def lift(space, book, job, step):
    """Count a running job's GPUs as free (1) or as taken again (-1), without a change of owner: to ask what if."""
    for slot in range(book[job].gang):
        count(space, space.held[book[job].offset + slot], step, step)


@inner
def tightest(space, gang):
    """The tightest level with a domain that could hold the gang in an empty cluster."""
    level = 0
    while space.largest[level] < gang:
        level += 1
    return level


@inner
def busiest(space, level, domain):
    """Jobs on the link out of a domain."""
    if level >= space.crossing.shape[0]:
        return 0
    return space.crossing[level, domain]


@inner
def find(space, rules, desk, gang, level, counts):
    """A domain of the level with `counts` ≥ gang, by the rule of fit; -1 where there is none."""
    found, score, met = -1, 0.0, 0
    for d in range(space.domains[level]):
        room = counts[level, d]
        if room < gang:
            continue
        if rules.fit == FIRST:
            return d
        met += 1
        if rules.fit == ANY:
            # Each of k candidates with odds 1/k, in one pass.
            if draw(desk) * met < 1.0:
                found = d
            continue
        here = -np.float64(room) if rules.fit == BEST else np.float64(room)
        if rules.avoid:
            here -= 1e-3 * busiest(space, level, d)
        if found < 0 or here > score:
            found, score = d, here
    return found


@inner
def _next_part(space, level, start, stop, need, fit):
    """The next domain of `level` within a range of GPUs: the tightest that holds the rest, else the emptiest."""
    found, score = -1, 0
    first, last = space.domain[level, start], space.domain[level, stop - 1]
    for d in range(first, last + 1):
        room = space.free[level, d]
        if room == 0:
            continue
        if fit in (FIRST, ANY):
            return d
        here = -room + (1 << 20) if room >= need and fit == BEST else room
        if found < 0 or here > score:
            found, score = d, here
    return found


@inner
def machines_for(space, level, domain, gang, machine, counts):
    """Fewest machines of a domain whose `counts` hold the gang; a large number where they do not."""
    start = space.first[level, domain]
    low = space.domain[machine, start]
    high = space.domain[machine, start + space.size[level, domain] - 1]
    rest, total, size = gang, 0, space.largest[machine]
    while size > 0 and rest > 0:
        for d in range(low, high + 1):
            if counts[machine, d] == size and rest > 0:
                rest -= size
                total += 1
        size -= 1
    return total if rest <= 0 else 1 << 20


@inner
def _from_range(space, book, job, slot, start, stop):
    """Take free GPUs from a range until the gang is whole; the next slot."""
    for gpu in range(start, stop):
        if slot == book[job].gang:
            break
        if space.owner[gpu] == -1:  # lower ones may not be used by anybody
            take(space, book, job, gpu, slot)
            slot += 1
    return slot


@inner
def fill(space, rules, book, job, level, domain):
    """Take a gang from free GPUs of a domain: few racks, then few machines, then in order. Keeps them sorted."""
    start = space.first[level, domain]
    stop = start + space.size[level, domain]
    machine, gang, slot = rules.machine, book[job].gang, 0
    while slot < gang:
        low, high = start, stop
        if level > machine + 1:
            rack = _next_part(space, machine + 1, start, stop, gang - slot, rules.fit)
            low = space.first[machine + 1, rack]
            high = low + space.size[machine + 1, rack]
        if level > machine and rules.localities:
            part = _next_part(space, machine, low, high, gang - slot, rules.fit)
            low = space.first[machine, part]
            high = low + space.size[machine, part]
        slot = _from_range(space, book, job, slot, low, high)
    sort(space.held, book[job].offset, gang)


@inner
def spans(space, book, job, level):
    """How many domains of a level a running job touches (its GPUs are sorted and numbered along the tree)."""
    offset = book[job].offset
    total, last = 0, -1
    for slot in range(book[job].gang):
        d = space.domain[level, space.held[offset + slot]]
        if d != last:
            total += 1
            last = d
    return total


@inner
def width(space, book, job):
    """The widest border a running job crosses: 0 inside one tightest domain."""
    wide = 0
    for level in range(space.domain.shape[0] - 1):
        if spans(space, book, job, level) > 1:
            wide = level + 1
    return wide


@inner
def cross(space, book, job, step):
    """Count a job on (or off) the links out of the domains it spans."""
    offset = book[job].offset
    for level in range(space.crossing.shape[0]):
        if spans(space, book, job, level) < 2:
            continue
        last = -1
        for slot in range(book[job].gang):
            d = space.domain[level, space.held[offset + slot]]
            if d != last:
                space.crossing[level, d] += step
                last = d


@inner
def _sharers(space, book, job, level):
    """Jobs on the busiest link of a level that this job uses, itself included; 1 where it uses none."""
    if spans(space, book, job, level) < 2:
        return 1
    offset, most = book[job].offset, 1
    for slot in range(book[job].gang):
        d = space.domain[level, space.held[offset + slot]]
        most = max(most, space.crossing[level, d])
    return most


@compiled
def sharers(space, book, job, level):
    """Likewise, for Python."""
    return _sharers(space, book, job, level)


@inner
def key_of(space, rules, book, job, scratch):
    """A number that tells shapes of one kind of job apart (64 bits, mixed)."""
    # The kind is mixed in by itself: beside small counts of domains another kind could make the same number.
    key = _mixed(np.uint64(0x9E3779B97F4A7C15), book[job].kind)
    if book[job].gang != book[job].full:
        key = _mixed(key, book[job].gang)
    for level in range(space.domain.shape[0] - 1):
        key = _mixed(key, spans(space, book, job, level))
        if rules.contention and level >= rules.machine:
            key = _mixed(key, _sharers(space, book, job, level))
    if rules.parts:
        total = _parts(space, rules, book, job, scratch)
        for i in range(total):
            key = _mixed(key, scratch[i])
    return np.int64(key | np.uint64(1))


@compiled
def shape_key(space, rules, book, job, scratch):
    """Likewise, for Python."""
    return key_of(space, rules, book, job, scratch)


@inner
def _mixed(key, value):
    z = (key ^ np.uint64(value)) * np.uint64(0xBF58476D1CE4E5B9)
    return z ^ (z >> np.uint64(29))


@inner
def _parts(space, rules, book, job, scratch):
    """GPUs per machine, sorted, into `scratch`; how many machines."""
    offset, total, last = book[job].offset, 0, -1
    for slot in range(book[job].gang):
        d = space.domain[rules.machine, space.held[offset + slot]]
        if d != last:
            scratch[total] = 0
            total += 1
            last = d
        scratch[total - 1] += 1
    sort(scratch, 0, total)
    return total
