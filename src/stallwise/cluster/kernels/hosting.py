"""Machines that come to a fleet of hosts, shrink, and leave: one moment after the other, for `deflation/simulator.py`.

The heap of events, stale plans and the next moment are those of the simulator of jobs (`heap`, `events`); a machine's
row has the two versions these look at. Of a host only sums are kept: what nobody may shrink (`firm`), the sizes of the
rest (`soft`) and what these may lose (`room`). Who holds how much follows from the sums, once a moment, for the hosts
on which something changed.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from typing import NamedTuple

import numpy as np

from stallwise.cluster.kernels import shares
from stallwise.cluster.kernels.compiled import compiled, inner
from stallwise.cluster.kernels.events import next_event, stale, upcoming
from stallwise.cluster.kernels.heap import pop, push
from stallwise.cluster.kernels.running import FINISHED, PAUSE
from stallwise.cluster.kernels.state import (
    ARRIVED,
    FINISH,
    I8,
    N_COUNTS,
    N_DONE,
    N_EVENTS,
    N_HEAP,
    NOW_AT,
    F,
    columns,
)

PREEMPT, NEITHER = np.array([-1, -2])
"""Instead of a rule: stop machines of low priority where room is needed; or turn arrivals away."""
COMING, STAYING, LEFT, REFUSED, KILLED = np.arange(5)
"""States of a machine."""
_SAME = 1e-9
"""Fits that differ by less are equal, and the host that is less overcommitted is taken."""

N_DIRTY = N_COUNTS
"""One slot more than the simulator of jobs has in `tally`: hosts on which something changed."""

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


class Fleet(NamedTuple):
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


class Plans(NamedTuple):
    """Events, and what is counted."""

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
    asked: F
    use: F
    """Part of its size a machine uses: [series, slot]."""
    sums: F
    """Running sums of the same, one column more."""


_share_out, _switch, _cosine, _offer = (
    inner(one) for one in (shares.share_out, shares.switch, shares.cosine, shares.offer)
)
_weight_of = inner(shares.weight_of)


@inner
def _summed(plans, row, slots):
    """Use over the first so many slots of a series, which starts over at its end."""
    length = plans.use.shape[1]
    turns, rest = divmod(slots, length)
    whole = np.int64(rest)
    area = turns * plans.sums[row, length] + plans.sums[row, whole]
    return area + (rest - whole) * plans.use[row, whole]


@inner
def _above(plans, row, start, stop, share):
    """Use above a share of the size, between two slots."""
    length, area, at = plans.use.shape[1], 0.0, start
    while at < stop:
        slot = np.int64(at)
        until = min(np.float64(slot + 1), stop)
        over = plans.use[row, slot % length] - share
        if over > 0.0:
            area += over * (until - at)
        at = until
    return area


@inner
def _share(fleet, vm):
    """What a machine has left of the scarcest resource that decides its speed."""
    least = 1.0
    for r in range(fleet.size.shape[1]):
        if fleet.fast[r] and fleet.size[vm, r] > 0:
            least = min(least, fleet.held[vm, r] / fleet.size[vm, r])
    return least


@inner
def _account(book, fleet, plans, slot_s, vm, now):
    """Book the use, the use that was cut off and the price of a machine up to now."""
    began = book[vm].since
    if now <= began:
        return
    share, row = _share(fleet, vm), book[vm].series
    if row < 0:
        book[vm].used += now - began
        book[vm].lost += (1.0 - share) * (now - began)
    else:
        start, stop = (began - book[vm].phase) / slot_s, (now - book[vm].phase) / slot_s
        book[vm].used += slot_s * (_summed(plans, row, stop) - _summed(plans, row, start))
        if share < 1.0:
            book[vm].lost += slot_s * _above(plans, row, start, stop, share)
    price = 0.0
    for r in range(fleet.size.shape[1]):
        price += fleet.value[r] * fleet.held[vm, r]
    book[vm].paid += price * (now - began)
    book[vm].since = now


@inner
def _change(fleet, plans, host):
    """Note that the machines of a host must be given their amounts anew."""
    if fleet.changed[host] == 0:
        fleet.changed[host] = 1
        plans.dirty[plans.tally[N_DIRTY]] = host
        plans.tally[N_DIRTY] += 1


@inner
def _add(fleet, vm, low, host, sign):
    for r in range(fleet.size.shape[1]):
        if low:
            fleet.soft[host, r] += sign * fleet.size[vm, r]
            fleet.room[host, r] += sign * fleet.loss[vm, r]
        else:
            fleet.firm[host, r] += sign * fleet.size[vm, r]


@inner
def _take_in(book, fleet, plans, vm, host, now):
    """A machine starts on a host."""
    low = book[vm].low
    _add(fleet, vm, low, host, 1)
    for r in range(fleet.size.shape[1]):
        fleet.held[vm, r] = fleet.size[vm, r]
    book[vm].state, book[vm].host, book[vm].since = STAYING, host, now
    if low:
        head = fleet.first[host]
        book[vm].before, book[vm].after = -1, head
        if head >= 0:
            book[head].before = vm
        fleet.first[host] = vm
    push(plans, book[vm].end, FINISH, vm, book[vm].end_version)
    _change(fleet, plans, host)


@inner
def _let_go(book, fleet, plans, slot_s, vm, now, state):
    """A machine leaves its host: its time is over, or it is stopped."""
    _account(book, fleet, plans, slot_s, vm, now)
    host = book[vm].host
    _add(fleet, vm, book[vm].low, host, -1)
    if book[vm].low:
        before, after = book[vm].before, book[vm].after
        if before >= 0:
            book[before].after = after
        else:
            fleet.first[host] = after
        if after >= 0:
            book[after].before = before
    book[vm].state, book[vm].left = state, now
    book[vm].end_version += 1
    plans.tally[N_DONE] += 1
    _change(fleet, plans, host)


@inner
def _fits(fleet, rule, low, vm, host):
    """0: a host must turn the machine away; 1: it can make room; 2: there is room."""
    free = 2
    for r in range(fleet.size.shape[1]):
        over = fleet.firm[host, r] + fleet.soft[host, r] + fleet.size[vm, r] - fleet.total[host, r]
        if over <= 0:
            continue
        # A deflatable machine that comes may start deflated; one of low priority never pushes others out.
        most = fleet.room[host, r]
        if rule == NEITHER or (rule == PREEMPT and low):
            most = 0
        elif rule != PREEMPT and low:
            most += fleet.loss[vm, r]
        if over > most:
            return 0
        free = 1
    return free


@inner
def _fitness(fleet, plans, vm, host):
    """Cosine of what is asked and what is offered, both as parts of the host."""
    count = fleet.size.shape[1]
    for r in range(count):
        total = max(1, fleet.total[host, r])
        plans.asked[r] = fleet.size[vm, r] / total
        plans.offered[r] = (
            _offer(fleet.total[host, r], fleet.firm[host, r], fleet.soft[host, r], fleet.room[host, r]) / total
        )
    return _cosine(plans.asked, plans.offered, count)


@inner
def _overcommitted(fleet, host):
    """The most that is asked of a host, of any resource, over what it has."""
    most = 0.0
    for r in range(fleet.size.shape[1]):
        if fleet.total[host, r] > 0:
            most = max(most, (fleet.firm[host, r] + fleet.soft[host, r]) / fleet.total[host, r])
    return most


@inner
def _choose(book, fleet, plans, rule, vm):
    """The host a machine goes to: one with room before one that must shrink others, then the best fit; -1: none."""
    found, room, fit, load = -1, 0, -1.0, 0.0
    low, level = book[vm].low, book[vm].level
    for host in range(fleet.total.shape[0]):
        if level >= 0 and fleet.pool[host] >= 0 and fleet.pool[host] != level:
            continue
        here = _fits(fleet, rule, low, vm, host)
        if here == 0 or here < room:
            continue
        how = _fitness(fleet, plans, vm, host)
        better = here > room or how > fit + _SAME
        if better or (how >= fit - _SAME and _overcommitted(fleet, host) < load):
            found, room, fit, load = host, here, how, _overcommitted(fleet, host)
    return found


@inner
def _kill_for(book, fleet, plans, slot_s, vm, host, now):
    """Stop machines of low priority, the lowest and then the youngest first, until another fits."""
    while _fits(fleet, NEITHER, 0, vm, host) == 0:
        victim, at = -1, fleet.first[host]
        while at >= 0:
            if victim < 0 or book[at].priority < book[victim].priority:
                victim = at
            at = book[at].after
        _let_go(book, fleet, plans, slot_s, victim, now, KILLED)


@inner
def _arrive(book, fleet, plans, rule, slot_s, now):
    total = len(book)
    while plans.tally[ARRIVED] < total and book[plans.tally[ARRIVED]].arrival <= now:
        vm = plans.tally[ARRIVED]
        plans.tally[ARRIVED] += 1
        host = _choose(book, fleet, plans, rule, vm)
        if host < 0:
            book[vm].state, book[vm].left = REFUSED, now
            plans.tally[N_DONE] += 1
            continue
        if rule == PREEMPT and not book[vm].low:
            _kill_for(book, fleet, plans, slot_s, vm, host, now)
        _take_in(book, fleet, plans, vm, host, now)


@inner
def _set_amounts(book, fleet, plans, rule, slot_s, host, r, now):
    """Everybody's amount of one resource on a host, from the sums."""
    count, at = 0, fleet.first[host]
    while at >= 0:
        plans.room[count], plans.who[count] = fleet.loss[at, r], at
        plans.weight[count] = book[at].priority if rule == shares.DETERMINISTIC else _weight_of(rule, book[at].priority)
        count += 1
        at = book[at].after
    amount = max(0, fleet.firm[host, r] + fleet.soft[host, r] - fleet.total[host, r])
    if rule == shares.DETERMINISTIC:
        _switch(plans.room, plans.weight, plans.taken, count, amount)
    else:
        _share_out(plans.room, plans.weight, plans.taken, count, amount)
    for i in range(count):
        vm = plans.who[i]
        fresh = fleet.size[vm, r] - plans.taken[i]
        if fresh != fleet.held[vm, r]:
            _account(book, fleet, plans, slot_s, vm, now)
            fleet.held[vm, r] = fresh


@inner
def _settle(book, fleet, plans, rule, slot_s, now):
    """Deflate and reinflate on the hosts where something changed."""
    for i in range(plans.tally[N_DIRTY]):
        host = plans.dirty[i]
        fleet.changed[host] = 0
        if rule >= 0 and fleet.first[host] >= 0:
            for r in range(fleet.size.shape[1]):
                if fleet.room[host, r] > 0:
                    _set_amounts(book, fleet, plans, rule, slot_s, host, r, now)
    plans.tally[N_DIRTY] = 0


@compiled
def host_all(book, fleet, plans, rule, slot_s, most_events):
    """Go on until every machine has left or was turned away, or `most_events` moments have passed."""
    events = 0
    while plans.tally[N_DONE] < len(book):
        if events >= most_events:
            return PAUSE
        now = upcoming(book, plans, next_event(book, plans))
        plans.clock[NOW_AT] = now
        plans.tally[N_EVENTS] += 1
        events += 1
        while plans.tally[N_HEAP] > 0 and (plans.heap_time[0] <= now or stale(book, plans)):
            over, vm = stale(book, plans), plans.heap_what[0, 1]
            pop(plans)
            if not over:
                _let_go(book, fleet, plans, slot_s, vm, now, LEFT)
        _arrive(book, fleet, plans, rule, slot_s, now)
        _settle(book, fleet, plans, rule, slot_s, now)
    return FINISHED
