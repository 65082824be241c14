"""What Python answers when the compiled loop returns: speeds of new shapes, more memory, a user's order of jobs."""

from collections.abc import Sequence

import numpy as np

from stallwise.cluster.engine.state import (
    DONE,
    N_ENDED,
    N_NEED,
    N_ORDER,
    N_SERIES,
    NOW_AT,
    RUNNING,
    GpuTopology,
    LoopState,
    Record,
    Rows,
)
from stallwise.cluster.job import Job
from stallwise.cluster.policies._user import ClusterView, JobView, UserOrder
from stallwise.cluster.speed.base import Shape, Speed
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError


def tell_speeds(
    cluster: Cluster,
    speed: Speed,
    jobs: Sequence[Job],
    params: Record,
    rows: Rows,
    topology: GpuTopology,
    state: LoopState,
) -> LoopState:
    """Compute the speed of every shape in `state.need` and enter it into the table."""
    from stallwise.cluster.engine._topology import shape_key

    for job in map(int, state.need[: state.tally[N_NEED]]):
        shape = shape_of(cluster, params, rows, topology, job)
        rate = speed.rate(jobs[job], shape)
        if not 0 < rate < float("inf"):
            raise InputError(
                f"Job {jobs[job].id!r} would run at {rate} of full speed on {shape.spans} domains; "
                "a speed is above 0. Look at the profile of its model."
            )
        state = _with_speed(state, int(shape_key(topology, params, rows, job, state.scratch)), rate)
    return state


def shape_of(cluster: Cluster, params: Record, rows: Rows, topology: GpuTopology, job: int) -> Shape:
    """Return the shape of a running job's placement."""
    from stallwise.cluster.engine._topology import sharers

    start = int(rows["offset"][job])
    gang = int(rows["gang"][job])
    gpus = topology.gang_gpus[start : start + gang]
    spans = cluster.spans(gpus)
    shared: tuple[int, ...] = ()
    if params["contention"]:
        shared = tuple(
            int(sharers(topology, rows, job, level)) if level >= params["machine"] else 1 for level in range(len(spans))
        )
    parts: tuple[int, ...] = ()
    if params["parts"]:
        counts = np.unique(cluster.domain[params["machine"]][gpus], return_counts=True)[1]
        parts = tuple(sorted((int(count) for count in counts), reverse=True))
    return Shape(gpus=gang, spans=spans, sharers=shared, parts=parts)


def _with_speed(state: LoopState, key: int, rate: float) -> LoopState:
    """Enter a speed into the open-addressed table; a half full table is doubled first."""
    if 2 * (np.count_nonzero(state.speed_keys) + 1) > len(state.speed_keys):
        old = [(int(k), float(v)) for k, v in zip(state.speed_keys, state.speeds, strict=True) if k]
        size = 2 * len(state.speed_keys)
        state = state._replace(speed_keys=np.zeros(size, dtype=np.int64), speeds=np.zeros(size))
        for k, v in old:
            _enter(state, k, v)
    _enter(state, key, rate)
    return state


def _enter(state: LoopState, key: int, rate: float) -> None:
    mask = len(state.speed_keys) - 1
    at = key & mask
    while state.speed_keys[at] not in (0, key):
        at = (at + 1) & mask
    state.speed_keys[at], state.speeds[at] = key, rate


def enlarge(state: LoopState) -> LoopState:
    """Double the memory for the series, or for events, whichever is nearly full."""
    if state.tally[N_SERIES] >= len(state.series):
        return state._replace(series=np.concatenate([state.series, np.zeros_like(state.series)]))
    return state._replace(
        heap_time=np.concatenate([state.heap_time, np.zeros_like(state.heap_time)]),
        heap_what=np.concatenate([state.heap_what, np.zeros_like(state.heap_what)]),
    )


def order_jobs(order: UserOrder, jobs: Sequence[Job], rows: Rows, topology: GpuTopology, state: LoopState) -> None:
    """Ask a user's policy and write its order into the queue; jobs it leaves out get an infinite key, behind all."""
    queue = state.order[: state.tally[N_ORDER]]
    queue = queue[rows["state"][queue] != DONE]
    view = _view(order, jobs, rows[queue], queue, topology, float(state.clock[NOW_AT]))
    places = np.full(len(queue), np.inf)
    for place, at in enumerate(order.decide(view)):
        places[at] = place
    turn = np.argsort(places, kind="stable")
    state.order[: len(queue)] = queue[turn]
    state.tally[N_ORDER], state.tally[N_ENDED] = len(queue), 0
    rows["key"][queue], rows["key2"][queue] = places, 0.0


def _view(
    order: UserOrder, jobs: Sequence[Job], rows: Rows, queue: Sequence[int], topology: GpuTopology, now_s: float
) -> ClusterView:
    running = rows["state"] == RUNNING
    run_s = np.where(running, rows["ran"] + (now_s - rows["began"]), rows["ran"])
    progress = np.maximum(0.0, rows["left"] - rows["rate"] * (now_s - rows["since"]))
    left_s = np.where(running & (now_s > rows["since"]), progress, rows["left"])
    waited_s = np.where(running, 0.0, now_s - rows["waiting_since"])
    columns = (queue, rows["gang"], rows["arrival"], run_s, left_s, waited_s, running)
    return ClusterView(
        now_s=now_s,
        gpus=len(topology.owner),
        free_gpus=int(topology.free[-1, 0]),
        jobs=tuple(
            JobView(
                id=jobs[number].id,
                gpus=gpus,
                arrival_s=arrival,
                running=runs,
                run_s=ran,
                attained_gpu_s=ran * gpus,
                waited_s=waited,
                model=jobs[number].model,
                remaining_s=left if order.clairvoyant else None,
            )
            for number, gpus, arrival, ran, left, waited, runs in zip(
                *(np.asarray(column).tolist() for column in columns), strict=True
            )
        ),
    )
