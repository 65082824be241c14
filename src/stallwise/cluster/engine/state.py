"""The arrays that everything is decided over, as named tuples that numba can take apart.

Numbers of jobs, GPUs and domains are 64 bits wide everywhere: every function is then compiled for one kind of number.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

F = npt.NDArray[np.float64]
I8 = npt.NDArray[np.int64]
Rows = npt.NDArray[np.void]
Record = Any
"""One row of `PARAMS`; numpy has no type for it."""

OUTSIDE, WAITING, RUNNING, DONE = 0, 1, 2, 3
"""States of a job."""

# As numpy's numbers, not Python's: those numba takes for constants, and compiles what they are passed to once for each.
START, STOP, MOVE = np.arange(3)
"""Actions of a decision."""

FINISH, LEASE, DEMOTE, PROMOTE, WAKE, ROUND = np.arange(6)
"""Events."""

FINISHED, NEED_SPEED, NEED_ROOM, NEED_ORDER, PAUSE, STUCK = range(6)
"""Why the loop returns to Python: all jobs have ended; a speed, memory or the order of a user's policy is missing;
the allowed number of events is over; no job can ever start."""

ZERO, ONE, LESS = np.array([0, 1, -1])
"""Steps of a count, as NumPy's numbers too."""

# Slots of `LoopState.tally`.
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
    N_SAMPLE,  # ended jobs in `sample`
    RANDOM,
    N_RUNNING,
    DEMAND,  # GPUs of admitted, unfinished jobs
    N_FRESH,  # arrivals not yet in order
    N_EXPIRED,
    RETRIES,
    HELD,  # GPUs of running jobs, packed ones counted twice
    N_VICTIMS,
    SERVING,  # 1 while jobs that come first may stop later ones
    N_ENDED,  # ended jobs still in `order`
    N_CHOSEN,  # waiting jobs that would get GPUs
    REQUEUED,  # jobs that changed queue since queues were last put in turn
    HALFWAY,  # 1 while a moment waits for the order of a user's policy, 2 where a round has ended at it
    N_COUNTS,
) = range(26)

# Slots of `LoopState.clock`, in seconds.
(
    NOW_AT,
    WAKE_AT,  # when the patience of a job that declined an offer ends
    CHANGED,  # above 0: the sharers of links have changed since speeds were last looked up
    WAKE_PLANNED,
    ROUND_AT,  # the end of the present round or slice
    N_TIMES,
) = range(6)


def columns(kind: str, names: str) -> list[tuple[str, str]]:
    """Return the fields of one dtype for a row."""
    return [(name, kind) for name in names.split()]


PARAMS = np.dtype(
    [
        *columns("f8", "promote delta age machine_leases rack_leases history deviations least_machine least_rack"),
        *columns("f8", "share factor cap lease quantum margin migrate_gain force_gain pack packed_rate admit"),
        *columns("f8", "checkpoint_per_gpu restart first_start deflate resize"),
        *columns("i8", "by strict running_first fit reach localities avoid patience skips survives wakes preempt"),
        *columns("i8", "renew aligned migrate force machine flat parts contention live"),
    ],
    align=True,
)
"""A policy and the costs as numbers; `build.params_of` writes it."""

JOB = np.dtype(
    [
        # What every pass looks at comes first and fits a cache line.
        *columns("f8", "key key2 began"),
        *columns("i8", "gang full host"),
        *columns("i4", "place run_version end_version"),
        *columns("i1", "state mark keyed queue"),
        *columns("f8", "left rate since ran arrival work util chunk base granted over waiting_since waited lease"),
        *columns("f8", "first finish forgiven pending"),
        *columns("i8", "offset seq kind size stops moves guest"),
        *columns("i1", "skew widest resized"),
        # Of gangs that may shrink: `gang` is what it has, `full` the whole, `thin` the GPU-seconds it went without.
        *columns("f8", "thin knee"),
        *columns("i8", "least shrinks"),
        *columns("f8", "spare1 spare2"),  # a row is whole cache lines, or every pass looks at two of each
    ],
    align=True,
)
"""One job."""


class GpuTopology(NamedTuple):
    """GPUs and the tree above them; the last level is the whole cluster."""

    domain: I8
    first: I8
    size: I8
    domains: I8
    largest: I8
    free: I8
    open: I8
    owner: I8
    clean: F
    crossing: I8
    gang_gpus: I8


class LoopState(NamedTuple):
    """What the loop keeps besides jobs and GPUs: queue, events, past waits, speeds by shape, log of actions."""

    limits: F
    order: I8
    tally: I8
    clock: F
    acts: I8
    heap_time: F
    heap_what: I8
    wait_time: F
    wait: F
    waits: I8
    queued: I8
    victims: I8
    tier: F
    speed_keys: I8
    speeds: F
    need: I8
    sample: F
    sums: F
    series: F
    scratch: I8
