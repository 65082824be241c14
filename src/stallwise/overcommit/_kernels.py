"""Compiled event loop of `simulator`: virtual machines that come to a fleet of hosts, shrink, and leave.

The heap of events, stale events and the next time are those of the cluster simulator (`cluster.engine.events`); a
machine's row has the two versions that these compare. Of a host only sums are kept: what may not be shrunk (`firm`),
the sizes of the rest (`soft`) and what these may lose (`room`). Who holds how much follows from the sums, once per
event time, for the hosts on which something changed.
"""

from typing import NamedTuple

import numpy as np

from stallwise.cluster.engine.compile import compiled, inner
from stallwise.cluster.engine.events import next_event, pop, push, stale, upcoming
from stallwise.cluster.engine.state import (
    ARRIVED,
    FINISH,
    FINISHED,
    I8,
    N_COUNTS,
    N_DONE,
    N_EVENTS,
    N_HEAP,
    NOW_AT,
    PAUSE,
    F,
    columns,
)
from stallwise.overcommit._shares import DETERMINISTIC, cosine, offer, share_out, switch, weight_of

# mypy: disable-error-code="no-untyped-def, no-untyped-call"


PREEMPT, NEITHER = np.array([-1, -2])
"""Instead of a rule: stop machines of low priority where room is needed; or refuse arrivals."""
COMING, STAYING, LEFT, REFUSED, KILLED = np.arange(5)
"""States of a machine."""
_SAME = 1e-9
"""Fits that differ by less are equal, and the host that is less overcommitted is taken."""

N_DIRTY = N_COUNTS
"""One slot more in `tally` than the cluster simulator has: hosts on which something changed."""

MACHINE = np.dtype(
    [
        *columns("f8", "arrival end since used lost paid phase left"),
        *columns("i8", "priority host before after series"),
        *columns("i4", "end_version run_version"),
        *columns("i1", "state low level"),
    ],
    align=True,
)
"""One machine. `before` and `after` link the low-priority machines of a host; `level` is its partition."""


class HostArrays(NamedTuple):
    """Hosts by resources, and what is on them; amounts are [host, resource], those of machines [machine, resource]."""

    total: I8
    firm: I8
    soft: I8
    room: I8
    first: I8
    """The first low-priority machine of each host, -1 where there is none."""
    pool: I8
    """Partition of each host, -1 for all machines."""
    changed: I8
    size: I8
    loss: I8
    """The most each machine may lose."""
    held: I8
    value: F
    """Price of a unit of each resource for an hour at the on-demand price."""
    fast: I8
    """Resources whose lack slows a machine."""


class EventArrays(NamedTuple):
    """Heap of events, counters and work space."""

    tally: I8
    clock: F
    heap_time: F
    heap_what: I8
    dirty: I8
    room: I8
    weight: I8
    taken: I8
    who: I8
    offered: F
    demand: F
    use: F
    """Fraction of its size a machine uses: [series, slot]."""
    sums: F
    """Running sums of `use`, one column more."""


_share_out = inner(share_out)
_switch = inner(switch)
_cosine = inner(cosine)
_offer = inner(offer)
_weight_of = inner(weight_of)


@inner
def _summed(events, row, slots):
    """Use over the first `slots` slots of a series, which starts over at its end."""
    length = events.use.shape[1]
    turns, rest = divmod(slots, length)
    whole = np.int64(rest)
    area = turns * events.sums[row, length] + events.sums[row, whole]
    return area + (rest - whole) * events.use[row, whole]


@inner
def _above(events, row, start, stop, share):
    """Use above a share of the size, between two slots."""
    length, area, at = events.use.shape[1], 0.0, start
    while at < stop:
        slot = np.int64(at)
        until = min(np.float64(slot + 1), stop)
        over = events.use[row, slot % length] - share
        if over > 0.0:
            area += over * (until - at)
        at = until
    return area


@inner
def _share(hosts, vm):
    """Fraction of its size a machine holds of the scarcest resource that decides its speed."""
    least = 1.0
    for r in range(hosts.size.shape[1]):
        if hosts.fast[r] and hosts.size[vm, r] > 0:
            least = min(least, hosts.held[vm, r] / hosts.size[vm, r])
    return least


@inner
def _account(vms, hosts, events, slot_s, vm, now):
    """Add the use, the lost use and the price of a machine up to now."""
    began = vms[vm].since
    if now <= began:
        return
    share, row = _share(hosts, vm), vms[vm].series
    if row < 0:
        vms[vm].used += now - began
        vms[vm].lost += (1.0 - share) * (now - began)
    else:
        start, stop = (began - vms[vm].phase) / slot_s, (now - vms[vm].phase) / slot_s
        vms[vm].used += slot_s * (_summed(events, row, stop) - _summed(events, row, start))
        if share < 1.0:
            vms[vm].lost += slot_s * _above(events, row, start, stop, share)
    price = 0.0
    for r in range(hosts.size.shape[1]):
        price += hosts.value[r] * hosts.held[vm, r]
    vms[vm].paid += price * (now - began)
    vms[vm].since = now


@inner
def _change(hosts, events, host):
    """Mark a host whose machines must be given their amounts anew."""
    if hosts.changed[host] == 0:
        hosts.changed[host] = 1
        events.dirty[events.tally[N_DIRTY]] = host
        events.tally[N_DIRTY] += 1


@inner
def _add(hosts, vm, low, host, sign):
    for r in range(hosts.size.shape[1]):
        if low:
            hosts.soft[host, r] += sign * hosts.size[vm, r]
            hosts.room[host, r] += sign * hosts.loss[vm, r]
        else:
            hosts.firm[host, r] += sign * hosts.size[vm, r]


@inner
def _admit(vms, hosts, events, vm, host, now):
    """Start a machine on a host."""
    low = vms[vm].low
    _add(hosts, vm, low, host, 1)
    for r in range(hosts.size.shape[1]):
        hosts.held[vm, r] = hosts.size[vm, r]
    vms[vm].state, vms[vm].host, vms[vm].since = STAYING, host, now
    if low:
        head = hosts.first[host]
        vms[vm].before, vms[vm].after = -1, head
        if head >= 0:
            vms[head].before = vm
        hosts.first[host] = vm
    push(events, vms[vm].end, FINISH, vm, vms[vm].end_version)
    _change(hosts, events, host)


@inner
def _release(vms, hosts, events, slot_s, vm, now, state):
    """Remove a machine from its host: its time is over, or it is stopped."""
    _account(vms, hosts, events, slot_s, vm, now)
    host = vms[vm].host
    _add(hosts, vm, vms[vm].low, host, -1)
    if vms[vm].low:
        before, after = vms[vm].before, vms[vm].after
        if before >= 0:
            vms[before].after = after
        else:
            hosts.first[host] = after
        if after >= 0:
            vms[after].before = before
    vms[vm].state, vms[vm].left = state, now
    vms[vm].end_version += 1
    events.tally[N_DONE] += 1
    _change(hosts, events, host)


@inner
def _fits(hosts, rule, low, vm, host):
    """Return 0 where a host must refuse the machine, 1 where it can make room, 2 where it has room."""
    free = 2
    for r in range(hosts.size.shape[1]):
        over = hosts.firm[host, r] + hosts.soft[host, r] + hosts.size[vm, r] - hosts.total[host, r]
        if over <= 0:
            continue
        # A deflatable machine that comes may start deflated; one of low priority never pushes others out.
        most = hosts.room[host, r]
        if rule == NEITHER or (rule == PREEMPT and low):
            most = 0
        elif rule != PREEMPT and low:
            most += hosts.loss[vm, r]
        if over > most:
            return 0
        free = 1
    return free


@inner
def _fitness(hosts, events, vm, host):
    """Cosine of demand and offer, both as fractions of the host."""
    count = hosts.size.shape[1]
    for r in range(count):
        total = max(1, hosts.total[host, r])
        events.demand[r] = hosts.size[vm, r] / total
        events.offered[r] = (
            _offer(hosts.total[host, r], hosts.firm[host, r], hosts.soft[host, r], hosts.room[host, r]) / total
        )
    return _cosine(events.demand, events.offered, count)


@inner
def _overcommitted(hosts, host):
    """Highest ratio of requested to available amount of a host over the resources."""
    most = 0.0
    for r in range(hosts.size.shape[1]):
        if hosts.total[host, r] > 0:
            most = max(most, (hosts.firm[host, r] + hosts.soft[host, r]) / hosts.total[host, r])
    return most


@inner
def _choose(vms, hosts, events, rule, vm):
    """Choose a host: one with room before one that must shrink others, then the best fit; -1: none."""
    best, room, fit, load = -1, 0, -1.0, 0.0
    low, level = vms[vm].low, vms[vm].level
    for host in range(hosts.total.shape[0]):
        if level >= 0 and hosts.pool[host] >= 0 and hosts.pool[host] != level:
            continue
        host_room = _fits(hosts, rule, low, vm, host)
        if host_room == 0 or host_room < room:
            continue
        host_fit = _fitness(hosts, events, vm, host)
        better = host_room > room or host_fit > fit + _SAME
        if better or (host_fit >= fit - _SAME and _overcommitted(hosts, host) < load):
            best, room, fit, load = host, host_room, host_fit, _overcommitted(hosts, host)
    return best


@inner
def _preempt_for(vms, hosts, events, slot_s, vm, host, now):
    """Stop machines of low priority, the lowest and then the youngest first, until another fits."""
    while _fits(hosts, NEITHER, 0, vm, host) == 0:
        victim, at = -1, hosts.first[host]
        while at >= 0:
            if victim < 0 or vms[at].priority < vms[victim].priority:
                victim = at
            at = vms[at].after
        _release(vms, hosts, events, slot_s, victim, now, KILLED)


@inner
def _arrive(vms, hosts, events, rule, slot_s, now):
    total = len(vms)
    while events.tally[ARRIVED] < total and vms[events.tally[ARRIVED]].arrival <= now:
        vm = events.tally[ARRIVED]
        events.tally[ARRIVED] += 1
        host = _choose(vms, hosts, events, rule, vm)
        if host < 0:
            vms[vm].state, vms[vm].left = REFUSED, now
            events.tally[N_DONE] += 1
            continue
        if rule == PREEMPT and not vms[vm].low:
            _preempt_for(vms, hosts, events, slot_s, vm, host, now)
        _admit(vms, hosts, events, vm, host, now)


@inner
def _set_amounts(vms, hosts, events, rule, slot_s, host, r, now):
    """Set the amount of one resource of every low-priority machine on a host, from the sums."""
    count, at = 0, hosts.first[host]
    while at >= 0:
        events.room[count], events.who[count] = hosts.loss[at, r], at
        events.weight[count] = vms[at].priority if rule == DETERMINISTIC else _weight_of(rule, vms[at].priority)
        count += 1
        at = vms[at].after
    amount = max(0, hosts.firm[host, r] + hosts.soft[host, r] - hosts.total[host, r])
    if rule == DETERMINISTIC:
        _switch(events.room, events.weight, events.taken, count, amount)
    else:
        _share_out(events.room, events.weight, events.taken, count, amount)
    for i in range(count):
        vm = events.who[i]
        fresh = hosts.size[vm, r] - events.taken[i]
        if fresh != hosts.held[vm, r]:
            _account(vms, hosts, events, slot_s, vm, now)
            hosts.held[vm, r] = fresh


@inner
def _settle(vms, hosts, events, rule, slot_s, now):
    """Deflate and reinflate on the hosts where something changed."""
    for i in range(events.tally[N_DIRTY]):
        host = events.dirty[i]
        hosts.changed[host] = 0
        if rule >= 0 and hosts.first[host] >= 0:
            for r in range(hosts.size.shape[1]):
                if hosts.room[host, r] > 0:
                    _set_amounts(vms, hosts, events, rule, slot_s, host, r, now)
    events.tally[N_DIRTY] = 0


@compiled
def host_all(vms, hosts, events, rule, slot_s, most_events):
    """Run until every machine has left or was refused, or `most_events` event times have passed."""
    steps = 0
    while events.tally[N_DONE] < len(vms):
        if steps >= most_events:
            return PAUSE
        now = upcoming(vms, events, next_event(vms, events))
        events.clock[NOW_AT] = now
        events.tally[N_EVENTS] += 1
        steps += 1
        while events.tally[N_HEAP] > 0 and (events.heap_time[0] <= now or stale(vms, events)):
            over, vm = stale(vms, events), events.heap_what[0, 1]
            pop(events)
            if not over:
                _release(vms, hosts, events, slot_s, vm, now, LEFT)
        _arrive(vms, hosts, events, rule, slot_s, now)
        _settle(vms, hosts, events, rule, slot_s, now)
    return FINISHED
