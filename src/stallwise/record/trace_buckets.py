"""DDP's bucket limits, read off the all-reduces of a trace.

torch fills buckets in the order gradients become ready and closes one after the gradient that reaches its limit
(`model.merge.ddp_buckets`). A bucket of B bytes whose last gradient has m of them was therefore closed by a limit in
(B - m, B]; the last bucket may have stayed below its limit, so it says only that this is above B - m. The limits that
all buckets allow are what they were, or as good: they cut the same gradients the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from stallwise.model.merge import DDP_BUCKET_BYTES, DDP_FIRST_BYTES, MIB


@dataclass(frozen=True, slots=True)
class BucketLimits:
    """Of the first bucket and of all others."""

    first_bytes: int
    later_bytes: int


@dataclass(frozen=True, slots=True)
class _Span:
    """Limits above `low` and up to `high`; None: any."""

    low: int = 0
    high: int | None = None

    def __contains__(self, limit: int) -> bool:
        return limit > self.low and (self.high is None or limit <= self.high)

    def __and__(self, other: "_Span") -> "_Span":
        highs = [high for high in (self.high, other.high) if high is not None]
        return _Span(max(self.low, other.low), min(highs, default=None))

    @property
    def empty(self) -> bool:
        return self.high is not None and self.high <= self.low

    def some(self) -> int:
        """A limit in it: a whole number of MiB where there is one, as people write them, else the largest."""
        whole = (self.low // MIB + 1) * MIB
        return whole if whole in self or self.high is None else self.high


def buckets_among(gradient_bytes: Sequence[int], sent_bytes: Sequence[int]) -> tuple[int, ...] | None:
    """Of messages sent during backward those that are DDP's buckets; None where gradients do not fill them.

    A bucket ends where a gradient does. Others (those of SyncBatchNorm, say) do not, and are passed over.
    """
    ends = set(accumulate(gradient_bytes))
    found, held = [], 0
    for size in sent_bytes:
        if held + size in ends:
            found.append(size)
            held += size
    return tuple(found) if found and held == sum(gradient_bytes) else None


def limits_of(gradient_bytes: Sequence[int], bucket_bytes: Sequence[int]) -> BucketLimits | None:
    """Limits with which torch makes these buckets of gradients in ready order; None where no two limits do.

    torch's own are taken where they are possible, else one limit for all buckets (what `bucket_cap_mb` sets), else
    one for the first and one for the others.
    """
    spans = _spans(gradient_bytes, bucket_bytes)
    if spans is None:
        return None
    first, later = spans[0], _Span()
    for span in spans[1:]:
        later &= span
    if DDP_FIRST_BYTES in first and DDP_BUCKET_BYTES in later:
        return BucketLimits(DDP_FIRST_BYTES, DDP_BUCKET_BYTES)
    if not (both := first & later).empty:
        return BucketLimits(both.some(), both.some())
    return None if first.empty or later.empty else BucketLimits(first.some(), later.some())


def _spans(gradient_bytes: Sequence[int], bucket_bytes: Sequence[int]) -> list[_Span] | None:
    at = {end: size for end, size in zip(accumulate(gradient_bytes), gradient_bytes, strict=True) if size}
    ends = [0, *accumulate(bucket_bytes)]
    if not bucket_bytes or ends[-1] != sum(gradient_bytes) or not all(end in at for end in ends[1:]):
        return None
    spans = [_Span(end - begin - at[end], end - begin) for begin, end in pairwise(ends)]
    return [*spans[:-1], _Span(spans[-1].low)]
