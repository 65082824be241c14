"""Events in order of time: the heap under both simulators, of jobs on GPUs and of machines on hosts.

`desk` is any named tuple with `heap_time`, `heap_what` (kind, whom it is about, version) and `tally`, whose slot
`N_HEAP` counts the events. Events of one moment come off in a fixed order (kind, then whom), whatever else is on it.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from stallwise.cluster.kernels.compiled import inner
from stallwise.cluster.kernels.state import N_HEAP


@inner
def _earlier(desk, at, time, what, who):
    """Whether the event at a place of the heap comes before another."""
    there = desk.heap_time[at]
    if there != time:
        return there < time
    if desk.heap_what[at, 0] != what:
        return desk.heap_what[at, 0] < what
    return desk.heap_what[at, 1] < who


@inner
def _put(desk, at, time, what, who, version):
    desk.heap_time[at] = time
    desk.heap_what[at, 0], desk.heap_what[at, 1], desk.heap_what[at, 2] = what, who, version


@inner
def _shift(desk, source, target):
    desk.heap_time[target] = desk.heap_time[source]
    for k in range(3):
        desk.heap_what[target, k] = desk.heap_what[source, k]


@inner
def push(desk, time, what, who, version):
    """Put an event on the heap."""
    i = desk.tally[N_HEAP]
    desk.tally[N_HEAP] = i + 1
    while i > 0:
        parent = (i - 1) >> 1
        if _earlier(desk, parent, time, what, who):
            break
        _shift(desk, parent, i)
        i = parent
    _put(desk, i, time, what, who, version)


@inner
def pop(desk):
    """Take the earliest event off."""
    total = desk.tally[N_HEAP] - 1
    desk.tally[N_HEAP] = total
    time = desk.heap_time[total]
    what, who, version = desk.heap_what[total, 0], desk.heap_what[total, 1], desk.heap_what[total, 2]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= total:
            break
        if child + 1 < total:
            right = child + 1
            if _earlier(desk, right, desk.heap_time[child], desk.heap_what[child, 0], desk.heap_what[child, 1]):
                child = right
        if not _earlier(desk, child, time, what, who):
            break
        _shift(desk, child, i)
        i = child
    _put(desk, i, time, what, who, version)
