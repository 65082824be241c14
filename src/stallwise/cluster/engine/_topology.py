"""GPUs of the tree: search, take and return. A GPU has one owner or none; `take` and `give` change it."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from stallwise.cluster.engine.compile import compiled, inner
from stallwise.cluster.engine.state import LESS, ONE, RANDOM, ZERO
from stallwise.model.splitmix import splitmix64

FIRST, BEST, ANY, EMPTIEST = 0, 1, 2, 3


_splitmix64 = inner(splitmix64)


@inner
def draw(state):
    """Draw the next number in [0, 1) of the simulation."""
    seed, number = _splitmix64(np.uint64(state.tally[RANDOM]))
    state.tally[RANDOM] = np.int64(seed)
    return number


@inner
def sort(values, start, count):
    """Sort a range of an array in place (Shell 1959): it comes in few ordered runs."""
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
def count(topology, gpu, free, open_):
    """Add to the free and open counts of every domain that a GPU belongs to."""
    for level in range(topology.domain.shape[0]):
        d = topology.domain[level, gpu]
        topology.free[level, d] += free
        topology.open[level, d] += open_


@compiled
def recount(topology, gpu, free, open_):
    """Python-callable wrapper of `count`."""
    count(topology, gpu, free, open_)


@inner
def take(topology, jobs, job, gpu, slot):
    """Give one free GPU to a job, as slot number `slot` of its gang."""
    topology.owner[gpu] = job
    topology.gang_gpus[jobs[job].offset + slot] = gpu
    count(topology, gpu, LESS, LESS)


@inner
def give(topology, jobs, job, clean):
    """Return all GPUs of a job; they are usable from `clean` on. GPUs of a victim are counted as open already."""
    marked = np.int64(jobs[job].mark == 1)
    for slot in range(jobs[job].gang):
        gpu = topology.gang_gpus[jobs[job].offset + slot]
        topology.owner[gpu] = -1
        topology.clean[gpu] = clean
        count(topology, gpu, ONE, ONE - marked)
    jobs[job].mark = 0


@inner
def mark(topology, jobs, job, on):
    """Make a job a victim (its GPUs count as open), or undo that."""
    if jobs[job].mark == on:
        return
    jobs[job].mark = on
    for slot in range(jobs[job].gang):
        count(topology, topology.gang_gpus[jobs[job].offset + slot], ZERO, ONE if on else LESS)


@inner
def lift(topology, jobs, job, step):
    """Count a running job's GPUs as free (1) or as taken again (-1) without a change of owner, to test a move."""
    for slot in range(jobs[job].gang):
        count(topology, topology.gang_gpus[jobs[job].offset + slot], step, step)


@inner
def tightest(topology, gang):
    """Return the tightest level with a domain that could hold the gang in an empty cluster."""
    level = 0
    while topology.largest[level] < gang:
        level += 1
    return level


@inner
def busiest(topology, level, domain):
    """Return the number of jobs on the link out of a domain."""
    if level >= topology.crossing.shape[0]:
        return 0
    return topology.crossing[level, domain]


@inner
def find(topology, params, state, gang, level, counts):
    """Return a domain of the level with `counts` ≥ gang, by the fit rule; -1 if there is none."""
    best, score, candidates = -1, 0.0, 0
    for d in range(topology.domains[level]):
        room = counts[level, d]
        if room < gang:
            continue
        if params.fit == FIRST:
            return d
        candidates += 1
        if params.fit == ANY:
            # Each of k candidates with odds 1/k, in one pass.
            if draw(state) * candidates < 1.0:
                best = d
            continue
        value = -np.float64(room) if params.fit == BEST else np.float64(room)
        if params.avoid:
            value -= 1e-3 * busiest(topology, level, d)
        if best < 0 or value > score:
            best, score = d, value
    return best


@inner
def _next_part(topology, level, start, stop, need, fit):
    """Return the next domain of `level` in a range of GPUs: the tightest that holds the rest, else the emptiest."""
    best, score = -1, 0
    first, last = topology.domain[level, start], topology.domain[level, stop - 1]
    for d in range(first, last + 1):
        room = topology.free[level, d]
        if room == 0:
            continue
        if fit in (FIRST, ANY):
            return d
        value = -room + (1 << 20) if room >= need and fit == BEST else room
        if best < 0 or value > score:
            best, score = d, value
    return best


@inner
def machines_for(topology, level, domain, gang, machine, counts):
    """Return the fewest machines of a domain whose `counts` hold the gang; a large number where they do not."""
    start = topology.first[level, domain]
    low = topology.domain[machine, start]
    high = topology.domain[machine, start + topology.size[level, domain] - 1]
    rest, total, size = gang, 0, topology.largest[machine]
    while size > 0 and rest > 0:
        for d in range(low, high + 1):
            if counts[machine, d] == size and rest > 0:
                rest -= size
                total += 1
        size -= 1
    return total if rest <= 0 else 1 << 20


@inner
def _from_range(topology, jobs, job, slot, start, stop):
    """Take free GPUs from a range until the gang is complete; return the next slot."""
    for gpu in range(start, stop):
        if slot == jobs[job].gang:
            break
        if topology.owner[gpu] == -1:  # lower numbers: out of service
            take(topology, jobs, job, gpu, slot)
            slot += 1
    return slot


@inner
def fill(topology, params, jobs, job, level, domain):
    """Take a gang from free GPUs of a domain: few racks, then few machines, then in order. Keeps them sorted."""
    start = topology.first[level, domain]
    stop = start + topology.size[level, domain]
    machine, gang, slot = params.machine, jobs[job].gang, 0
    while slot < gang:
        low, high = start, stop
        if level > machine + 1:
            rack = _next_part(topology, machine + 1, start, stop, gang - slot, params.fit)
            low = topology.first[machine + 1, rack]
            high = low + topology.size[machine + 1, rack]
        if level > machine and params.localities:
            part = _next_part(topology, machine, low, high, gang - slot, params.fit)
            low = topology.first[machine, part]
            high = low + topology.size[machine, part]
        slot = _from_range(topology, jobs, job, slot, low, high)
    sort(topology.gang_gpus, jobs[job].offset, gang)


@inner
def spans(topology, jobs, job, level):
    """Count the domains of a level that a running job touches (its GPUs are sorted and numbered along the tree)."""
    offset = jobs[job].offset
    total, last = 0, -1
    for slot in range(jobs[job].gang):
        d = topology.domain[level, topology.gang_gpus[offset + slot]]
        if d != last:
            total += 1
            last = d
    return total


@inner
def width(topology, jobs, job):
    """Return the widest border a running job crosses: 0 inside one tightest domain."""
    wide = 0
    for level in range(topology.domain.shape[0] - 1):
        if spans(topology, jobs, job, level) > 1:
            wide = level + 1
    return wide


@inner
def cross(topology, jobs, job, step):
    """Count a job on (or off) the links out of the domains it spans."""
    offset = jobs[job].offset
    for level in range(topology.crossing.shape[0]):
        if spans(topology, jobs, job, level) < 2:
            continue
        last = -1
        for slot in range(jobs[job].gang):
            d = topology.domain[level, topology.gang_gpus[offset + slot]]
            if d != last:
                topology.crossing[level, d] += step
                last = d


@inner
def _sharers(topology, jobs, job, level):
    """Count the jobs on the busiest link of a level that this job uses, itself included; 1 where it uses none."""
    if spans(topology, jobs, job, level) < 2:
        return 1
    offset, most = jobs[job].offset, 1
    for slot in range(jobs[job].gang):
        d = topology.domain[level, topology.gang_gpus[offset + slot]]
        most = max(most, topology.crossing[level, d])
    return most


@compiled
def sharers(topology, jobs, job, level):
    """Python-callable wrapper of `_sharers`."""
    return _sharers(topology, jobs, job, level)


@inner
def key_of(topology, params, jobs, job, scratch):
    """Hash the shape of a job's placement, with its kind, to 64 bits."""
    # The kind is mixed in by itself: beside small counts of domains another kind could make the same number.
    key = _mixed(np.uint64(0x9E3779B97F4A7C15), jobs[job].kind)
    if jobs[job].gang != jobs[job].full:
        key = _mixed(key, jobs[job].gang)
    for level in range(topology.domain.shape[0] - 1):
        key = _mixed(key, spans(topology, jobs, job, level))
        if params.contention and level >= params.machine:
            key = _mixed(key, _sharers(topology, jobs, job, level))
    if params.parts:
        total = _parts(topology, params, jobs, job, scratch)
        for i in range(total):
            key = _mixed(key, scratch[i])
    return np.int64(key | np.uint64(1))


@compiled
def shape_key(topology, params, jobs, job, scratch):
    """Python-callable wrapper of `key_of`."""
    return key_of(topology, params, jobs, job, scratch)


@inner
def _mixed(key, value):
    z = (key ^ np.uint64(value)) * np.uint64(0xBF58476D1CE4E5B9)
    return z ^ (z >> np.uint64(29))


@inner
def _parts(topology, params, jobs, job, scratch):
    """Write GPUs per machine, sorted, into `scratch`; return the number of machines."""
    offset, total, last = jobs[job].offset, 0, -1
    for slot in range(jobs[job].gang):
        d = topology.domain[params.machine, topology.gang_gpus[offset + slot]]
        if d != last:
            scratch[total] = 0
            total += 1
            last = d
        scratch[total - 1] += 1
    sort(scratch, 0, total)
    return total
