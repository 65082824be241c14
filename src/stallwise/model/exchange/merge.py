"""Which gradients are exchanged together: the merges of data-parallel training, and the exact best one.

Gradients become ready one after the other during backward (the last layer first) and are sent in that order over one
channel, one message at a time. A *merge* cuts that order into runs; a run is sent when its last gradient is ready. With
`ready` from the start of backward and t(M) the time of a message of M bytes, the channel ends at

    e_0 = 0,  e_g = max(e_(g-1), ready of the last in run g) + t(bytes of run g).

Each gradient alone is wait-free back-propagation (WFBP: Zhang et al., *Poseidon*, 2017), all in one message is
SyncEASGD or plain bulk-synchronous training; buckets of fixed size, MG-WFBP and the optimum lie between.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from stallwise.errors import InputError
from stallwise.workload.layers import LayerTrace

Exchange = Callable[[float], float]
"""Seconds of one message by its bytes."""

MIB = 1024 * 1024
DDP_FIRST_BYTES = 1 * MIB
DDP_BUCKET_BYTES = 25 * MIB


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradients of a step in the order they become ready. `layers` are indices into the trace (forward order)."""

    layers: tuple[int, ...]
    ready_s: tuple[float, ...]
    """From the start of backward; never falls."""
    bytes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.layers)


Merge = tuple[range, ...]
"""Runs of `Gradients`, in order; each run is one message."""


def gradients_of(trace: LayerTrace) -> Gradients:
    """Layers with something to send, in backward order: with gradient bytes or a measured exchange time."""
    sending, ready, at = [], [], 0.0
    for index in range(len(trace.layers) - 1, -1, -1):
        layer = trace.layers[index]
        at += layer.backward_s
        if layer.gradient_bytes or layer.exchange_s:
            sending.append(index)
            ready.append(at)
    return Gradients(tuple(sending), tuple(ready), tuple(trace.layers[i].gradient_bytes for i in sending))


def each_alone(gradients: Gradients) -> Merge:
    """WFBP: one message per gradient."""
    return tuple(range(i, i + 1) for i in range(len(gradients)))


def all_in_one(gradients: Gradients) -> Merge:
    """SyncEASGD, BSP: one message, after backward."""
    return (range(len(gradients)),) if len(gradients) else ()


def ddp_buckets(
    gradients: Gradients, *, first_bytes: int = DDP_FIRST_BYTES, bucket_bytes: int = DDP_BUCKET_BYTES
) -> Merge:
    """Buckets of torch's DistributedDataParallel, as it rebuilds them in ready order after the first step.

    A bucket closes after the gradient with which it reaches its limit; the first limit is 1 MiB, later ones 25 MiB
    (`_compute_bucket_assignment_by_size`). When the user passes `bucket_cap_mb`, torch drops the smaller first bucket:
    then `first_bytes` equals `bucket_bytes`. DDP keeps dtypes apart, and does not rebuild with
    `find_unused_parameters`; neither is modelled here.
    """
    for name, limit in (("first bucket", first_bytes), ("bucket", bucket_bytes)):
        if not limit > 0:
            raise InputError(f"A {name} of {limit} bytes cannot hold a gradient; it needs at least 1 byte.")
    cuts, filled, limit = [0], 0, first_bytes
    for i, size in enumerate(gradients.bytes):
        filled += size
        if filled >= limit:
            cuts.append(i + 1)
            filled, limit = 0, bucket_bytes
    return _runs([*cuts, len(gradients)])


def mg_wfbp(gradients: Gradients, exchange: Exchange, *, always_below_bytes: float = 0) -> Merge:
    """MG-WFBP as published (Shi, Chu, Li, arXiv 1811.11141 and 1912.09268; the authors' code).

    Walk in ready order. If message i would still be in flight when gradient i+1 is ready, join them when the wait
    (ready of i+1, less the start of i, none if i has not started) is less than what joining saves,
    t(M_i) + t(M_i+1) - t(M_i + M_i+1), which is the start-up time a for t(M) = a + b M. Greedy, and *not* optimal: each
    wait is locally right, but waits add up and leave the channel idle. `always_below_bytes` is the extra rule of the
    authors' later code (32 KiB there): smaller messages are always joined to the next.
    """
    if not len(gradients):
        return ()
    cuts, pending = [0], float(gradients.bytes[0])
    begin, cost = gradients.ready_s[0], exchange(pending)
    for i in range(len(gradients) - 1):
        ready, size = gradients.ready_s[i + 1], gradients.bytes[i + 1]
        together, alone = exchange(pending + size), exchange(size)
        wait = max(0.0, ready - begin)
        if pending < always_below_bytes or (ready < begin + cost and wait < cost + alone - together):
            begin, cost, pending = max(begin, ready), together, pending + size
        else:
            cuts.append(i + 1)
            begin, cost, pending = max(begin + cost, ready), alone, float(size)
    return _runs([*cuts, len(gradients)])


def optimal_merge(gradients: Gradients, exchange: Exchange) -> Merge:
    """The merge that ends first, exactly, for any message cost: dynamic programming over where the last run begins.

    f(j) = min over i < j of max(f(i), ready(j)) + t(bytes of i+1 … j). A run's end never falls when the one before ends
    later, so the best prefix is part of a best whole. O(L²) message costs.
    """
    total = [0, *accumulate(gradients.bytes)]
    ends, starts = [0.0], [0]
    for j in range(1, len(gradients) + 1):
        ready = gradients.ready_s[j - 1]
        finish = [max(ends[i], ready) + exchange(total[j] - total[i]) for i in range(j)]
        starts.append(min(range(j), key=finish.__getitem__))
        ends.append(finish[starts[j]])
    cuts = [len(gradients)]
    while cuts[-1]:
        cuts.append(starts[cuts[-1]])
    return _runs(cuts[::-1])


def message_bytes(gradients: Gradients, merge: Merge) -> tuple[int, ...]:
    """Bytes of every message."""
    total = [0, *accumulate(gradients.bytes)]
    return tuple(total[run.stop] - total[run.start] for run in merge)


def _runs(cuts: Sequence[int]) -> Merge:
    return tuple(range(first, last) for first, last in pairwise(cuts) if last > first)


def checked(exchange: Exchange, source: str) -> Exchange:
    """Wrap `exchange` so that it raises an `InputError` where it returns an invalid time."""

    def time_s(size: float) -> float:
        seconds = exchange(size)
        if not (math.isfinite(seconds) and seconds >= 0):
            raise InputError(f"The exchange of {size:.0f} bytes of {source} would take {seconds} s; check its network.")
        return seconds

    return time_s
