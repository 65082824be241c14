"""The arrays everything is decided over, as named tuples numba can take apart."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

F = npt.NDArray[np.float64]
I4 = npt.NDArray[np.int32]
I8 = npt.NDArray[np.int64]
Rows = npt.NDArray[np.void]
Record = Any
"""One row of `RULES`; numpy has no type for it."""

OUTSIDE, WAITING, RUNNING, DONE = 0, 1, 2, 3
"""States of a job."""

START, STOP, MOVE = 0, 1, 2
"""Actions of a decision."""

FINISH, LEASE, DEMOTE, PROMOTE, WAKE, ROUND = 0, 1, 2, 3, 4, 5
"""Events."""

# Slots of `Desk.tally`.
(
    N_ORDER,  # jobs in `order`
    SEQ,  # the next number in a queue
    N_ACTS,
    ARRIVED,  # jobs whose arrival has passed
    ADMITTED,
    N_HEAP,
    N_EVENTS,
    N_SERIES,
    N_DONE,
    N_NEED,  # jobs whose speed Python must tell
    BUSY,  # GPUs
    N_SEEN,  # ended jobs in `seen`
    RANDOM,
    N_RUNNING,
    DEMAND,  # GPUs asked for by admitted, unfinished jobs
    N_FRESH,  # arrivals not yet in order
    N_EXPIRED,
    RETRIES,
    HELD,  # GPUs of running jobs, packed ones counted twice
    N_VICTIMS,
    SERVING,  # 1 while those who come first may push others aside
    N_COUNTS,
) = range(22)


def _columns(kind: str, names: str) -> list[tuple[str, str]]:
    return [(name, kind) for name in names.split()]


RULES = np.dtype(
    [
        *_columns("f8", "promote delta age machine_leases rack_leases history deviations least_machine least_rack"),
        *_columns("f8", "share factor cap lease quantum margin migrate_gain force_gain pack packed_rate admit"),
        *_columns("f8", "checkpoint_per_gpu restart first_start"),
        *_columns("i8", "by strict running_first fit reach localities avoid patience skips survives wakes preempt"),
        *_columns("i8", "renew migrate force machine flat parts contention"),
    ],
    align=True,
)
"""A policy and the costs as numbers; `rules.py` writes it."""

JOB = np.dtype(
    [
        # What every pass looks at comes first and fits a cache line.
        *_columns("f8", "key key2 began"),
        *_columns("i4", "gang host place run_version end_version"),
        *_columns("i1", "state mark keyed queue"),
        *_columns("f8", "left rate since ran arrival work util chunk base granted over asked waited lease"),
        *_columns("f8", "first finish forgiven pending"),
        *_columns("i8", "offset seq"),
        *_columns("i4", "kind size stops moves guest"),
        *_columns("i1", "skew widest"),
    ],
    align=True,
)
"""One job."""


class Space(NamedTuple):
    """GPUs and the tree above them; the last level is the whole cluster."""

    domain: I4
    first: I4
    size: I4
    domains: I4
    largest: I4
    free: I4
    open: I4
    owner: I4
    clean: F
    crossing: I4
    held: I4


class Desk(NamedTuple):
    """What the loop keeps besides: the queue, events, windows of waits, known speeds, the log."""

    limits: F
    order: I4
    tally: I8
    clock: F
    acts: I4
    heap_time: F
    heap_what: I4
    wait_time: F
    wait: F
    waits: I4
    queued: I8
    victims: I4
    tier: F
    known: I8
    speed: F
    need: I4
    seen: F
    series: F
    scratch: I4
