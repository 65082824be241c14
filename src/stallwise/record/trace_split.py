"""HolisticTraceAnalysis' figures of a rank, by the same rules on the same events.

Its rules, from its source (0.5.0): events with a duration, a category and a stream are the device's. Where a trace
marks more than one step, only work asked for before the last mark's begin counts. Where any time in the file has digits
below a microsecond, begins are rounded up and ends down to whole ones. Where that leaves less than nothing of something
(kernels shorter than a microsecond; the peer stops there), times are taken as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stallwise.model.breakdown import Breakdown, breakdown
from stallwise.run.readers.device_trace import NO_LAUNCH, DeviceTrace, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSplit:
    """One rank, in microseconds, under the peer's names of columns."""

    rank: int
    idle_us: float
    compute_us: float
    non_compute_us: float
    kernel_us: float
    communication_us: float
    overlap_us: float
    memory_us: float
    idle_pctg: float
    compute_pctg: float
    non_compute_pctg: float
    overlap_pctg: float | None


def rank_splits(traces: Sequence[tuple[int, DeviceTrace]]) -> tuple[RankSplit, ...]:
    """Per rank; ranks without any work that counts are left out."""
    marks = {step.number for _, trace in traces for step in trace.steps}
    found = ((rank, _breakdown(trace, whole=len(marks) < 2)) for rank, trace in traces)
    return tuple(_rounded(rank, split) for rank, split in found if split is not None)


def _breakdown(trace: DeviceTrace, *, whole: bool) -> Breakdown | None:
    rounded = trace.fractional and not trace.on_processor
    found = _summed(trace, whole=whole, rounded=rounded)
    if rounded and found is not None and min(found.non_compute, found.memory, found.communication) < 0:
        return _summed(trace, whole=whole, rounded=False)
    return found


def _summed(trace: DeviceTrace, *, whole: bool, rounded: bool) -> Breakdown | None:
    work, last = trace.work, trace.last_mark_us
    start, end = work.ts_us, work.ts_us + work.dur_us
    launch = work.launch_ns / 1e3
    if trace.on_processor:
        # A clock's many digits leave none for differences.
        start, end = (work.start_ns - work.start_ns[0]) / 1e3, (work.end_ns - work.start_ns[0]) / 1e3
    if rounded:
        start, end, launch = np.ceil(start), np.floor(end), np.ceil(launch)
        last = None if last is None else float(np.ceil(last))
    counts = np.ones(len(work), dtype=np.bool_)
    if not whole and last is not None:
        counts = (launch < last) & (work.launch_ns != NO_LAUNCH)
    if not counts.any():
        return None
    kind = work.kind[counts]
    return breakdown(
        start[counts],
        end[counts],
        compute=kind == Work.COMPUTE,
        sends=kind == Work.COMMUNICATION,
        memory=kind == Work.MEMORY,
    )


def _rounded(rank: int, split: Breakdown) -> RankSplit:
    ratio = split.overlap_ratio

    def percent(part: float) -> float:
        return round(100 * (part / split.kernel_time), 2) if split.kernel_time else 0.0

    return RankSplit(
        rank=rank,
        idle_us=split.idle,
        compute_us=split.compute,
        non_compute_us=split.non_compute,
        kernel_us=split.kernel_time,
        communication_us=split.communication,
        overlap_us=split.overlap,
        memory_us=split.memory,
        idle_pctg=percent(split.idle),
        compute_pctg=percent(split.compute),
        non_compute_pctg=percent(split.non_compute),
        overlap_pctg=None if ratio is None else round(100 * ratio, 2),
    )
