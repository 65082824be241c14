"""Speeds of shapes: what Python answers when the compiled loop meets a placement for the first time."""

from collections.abc import Sequence

import numpy as np

from stallwise.cluster.job import Job
from stallwise.cluster.kernels.state import N_NEED, Desk, Record, Rows, Space
from stallwise.cluster.speed import Shape, Speed
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError


def tell_speeds(
    cluster: Cluster, speed: Speed, jobs: Sequence[Job], rules: Record, book: Rows, space: Space, desk: Desk
) -> Desk:
    """Compute the speed of every shape in `desk.need` and enter it into the table."""
    from stallwise.cluster.kernels.space import shape_key

    for job in map(int, desk.need[: desk.tally[N_NEED]]):
        shape = shape_of(cluster, rules, book, space, job)
        rate = speed.rate(jobs[job], shape)
        if not 0 < rate < float("inf"):
            raise InputError(
                f"Job {jobs[job].id!r} would run at {rate} of full speed on {shape.spans} domains; "
                "a speed is above 0. Look at the profile of its model."
            )
        desk = _with_speed(desk, int(shape_key(space, rules, book, job, desk.scratch)), rate)
    return desk


def shape_of(cluster: Cluster, rules: Record, book: Rows, space: Space, job: int) -> Shape:
    """Where a running job sits."""
    from stallwise.cluster.kernels.space import sharers

    start = int(book["offset"][job])
    gang = int(book["gang"][job])
    held = space.held[start : start + gang]
    spans = cluster.spans(held)
    shared: tuple[int, ...] = ()
    if rules["contention"]:
        shared = tuple(
            int(sharers(space, book, job, level)) if level >= rules["machine"] else 1 for level in range(len(spans))
        )
    parts: tuple[int, ...] = ()
    if rules["parts"]:
        counts = np.unique(cluster.domain[rules["machine"]][held], return_counts=True)[1]
        parts = tuple(sorted((int(count) for count in counts), reverse=True))
    return Shape(gpus=gang, spans=spans, sharers=shared, parts=parts)


def _with_speed(desk: Desk, key: int, rate: float) -> Desk:
    """Enter a speed into the open-addressed table; a half full one is doubled first."""
    if 2 * (np.count_nonzero(desk.known) + 1) > len(desk.known):
        old = [(int(k), float(v)) for k, v in zip(desk.known, desk.speed, strict=True) if k]
        size = 2 * len(desk.known)
        desk = desk._replace(known=np.zeros(size, dtype=np.int64), speed=np.zeros(size))
        for k, v in old:
            _enter(desk, k, v)
    _enter(desk, key, rate)
    return desk


def _enter(desk: Desk, key: int, rate: float) -> None:
    mask = len(desk.known) - 1
    at = key & mask
    while desk.known[at] not in (0, key):
        at = (at + 1) & mask
    desk.known[at], desk.speed[at] = key, rate
