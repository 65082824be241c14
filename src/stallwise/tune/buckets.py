"""The size of DistributedDataParallel's buckets, predicted from the exchange of the run itself.

A run says in one number how long compute waited for the exchange, and that number has two readings: every byte takes
time, or every message does. Larger buckets help only under the second, smaller ones (more overlap) only under the
first. Which holds the trial shows; before it, the middle between both is predicted, and they are the interval.
"""

from dataclasses import dataclass, replace

from stallwise.errors import InputError
from stallwise.model import merge
from stallwise.model.calibrate import own_links
from stallwise.model.overlap import Overlap
from stallwise.model.whatif import Change, Job, what_if
from stallwise.record.setup import own_fabric
from stallwise.tune.facts import Facts

_SIZES_MB = (5.0, 10.0, 50.0, 100.0, 200.0)
# Of the waiting, under the second reading; the rest are bytes, which cannot be free.
_START_UP = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSize:
    """One size, and the part of the step that it is predicted to take away."""

    size_mb: float
    now_mb: float
    gain: float
    low: float
    high: float


def bucket_sizes(facts: Facts) -> list[BucketSize]:
    """The best size, where the job is one of DDP and waits for its exchange; else none."""
    job = facts.job
    if job is None or not job.gpus or job.gpus == 1 or job.overlap.scheme != "ddp" or job.exchange is None:
        return []
    try:
        readings = [_gains(job, latency_s) for latency_s in (0.0, _latency_s(job))]
    except InputError:
        return []
    gains = {size: sorted(reading[size] for reading in readings) for size in _SIZES_MB}
    # Of sizes predicted alike the smallest: it holds the least memory.
    size = max(_SIZES_MB, key=lambda one: (round(sum(gains[one]) / 2, 2), -one))
    low, high = gains[size]
    now_mb = job.overlap.bucket_bytes / merge.MIB
    return [BucketSize(size_mb=size, now_mb=now_mb, gain=(low + high) / 2, low=low, high=high)]


def _gains(job: Job, latency_s: float) -> dict[float, float]:
    """Gain by size, where a message takes so long before its first byte."""
    fabric = own_fabric(job, own_links(job, latency_s))
    now = what_if(job, Change(), fabric, job.gpus or 1)
    return {
        size: 1 - what_if(job, _change(job.overlap, size), fabric, job.gpus or 1).step_s / now.step_s
        for size in _SIZES_MB
    }


def _latency_s(job: Job) -> float:
    """Per hop, if start-up were nearly all there is: a ring of n ranks takes 2(n - 1) hops for a message."""
    assert job.exchange is not None  # noqa: S101 - asked only then
    gradients = merge.gradients_of(job.trace)
    first, size = job.overlap.first_bucket_bytes, job.overlap.bucket_bytes
    messages = len(merge.ddp_buckets(gradients, first_bytes=first, bucket_bytes=size))
    return _START_UP * job.exchange.s / max(1, messages * 2 * ((job.gpus or 2) - 1))


def _change(overlap: Overlap, size_mb: float) -> Change:
    size_bytes = round(size_mb * merge.MIB)
    return Change(overlap=replace(overlap, bucket_bytes=size_bytes, first_bucket_bytes=size_bytes))
