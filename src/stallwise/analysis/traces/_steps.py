"""What each traced step waits for, the split of each rank, and the critical path over all ranks.

A trace shows one set-up, so nothing was ablated as in a profile. What can be measured is how long the device did
nothing else: while the loop waited for its batch, while a batch was copied, while gradients were exchanged. A step less
these is the best it could take without them.

The split of a rank has the figures of HolisticTraceAnalysis, by its rules on the same events (from its source, 0.5.0):
events with a duration, a category and a stream are the device's. Where a trace marks more than one step, only work
launched before the last mark's begin counts. Where any time in the file has digits below a microsecond, begins are
rounded up and ends down to whole ones. Where that makes a time negative (kernels shorter than a microsecond; the peer
stops there), times are taken as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stallwise.analysis.traces._ranks import RankView, TracedJob
from stallwise.model.step.timeline import (
    Breakdown,
    HostWait,
    Key,
    PathKind,
    PathSegment,
    Pieces,
    RankWork,
    TimelineWork,
    breakdown,
    common,
    critical_path,
    length,
    union,
    without,
)
from stallwise.run.traces.device_trace import NO_LAUNCH, DeviceTrace, HostSpan, WorkKind

_LEAST_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """One step of one rank, in seconds."""

    number: int
    start_s: float
    duration_s: float
    data_wait_s: float | None
    """The loop's wait for its batch, whatever the device did meanwhile; None where no loader is in the trace."""
    data_stall_s: float
    """Of it, the part in which the device was idle."""
    copy_stall_s: float
    exchange_stall_s: float

    @property
    def without_data_s(self) -> float:
        """As if batches were always there."""
        return max(_LEAST_S, self.duration_s - self.data_stall_s)

    @property
    def without_copy_s(self) -> float:
        """And already on the device."""
        return max(_LEAST_S, self.without_data_s - self.copy_stall_s)

    @property
    def alone_s(self) -> float:
        """And with no exchange."""
        return max(_LEAST_S, self.without_copy_s - self.exchange_stall_s)


def traced_steps(job: TracedJob, view: RankView) -> tuple[TracedStep, ...]:
    """Every step of a rank."""
    work = view.trace.work
    computing = view.busy(WorkKind.COMPUTE)
    working = view.busy(WorkKind.COMPUTE, WorkKind.COMMUNICATION)
    everything = view.busy(*WorkKind)
    to_device = _copies(view)
    sends = view.of(WorkKind.COMMUNICATION)
    loader = _marks(view.trace.loader)
    steps = []
    for step in view.steps:
        end_ns = view.ends(step.number)
        waits = _in_window(loader, step.start_ns, end_ns)
        mine = view.step == step.number
        copied = union(work.start_ns[to_device & mine], work.end_ns[to_device & mine])
        sent = union(work.start_ns[sends & mine], work.end_ns[sends & mine])
        stall = length(waits) if view.trace.on_processor else without(waits, everything)
        exposed = without(sent, computing)
        if view.trace.on_processor:
            # All of the wait is the batch's there, so nothing else can be blamed on top. A device's is its idle part.
            exposed -= length(common(_outside(sent, computing), waits))
        steps.append(
            TracedStep(
                number=step.number,
                start_s=job.seconds(view, step.start_ns),
                duration_s=max(_LEAST_S, (end_ns - step.start_ns) / 1e9),
                data_wait_s=length(waits) / 1e9 if len(view.trace.loader) else None,
                data_stall_s=stall / 1e9,
                copy_stall_s=without(copied, working) / 1e9,
                exchange_stall_s=exposed / 1e9,
            )
        )
    return tuple(steps)


def _copies(view: RankView) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    names = np.array(["HtoD" in name for name in view.trace.names], dtype=np.bool_)
    return view.of(WorkKind.MEMORY) & names[view.trace.work.name]


def _outside(one: Pieces, other: Pieces) -> Pieces:
    """The stretches of a union that another leaves free."""
    if not len(one[0]) or not len(other[0]):
        return one
    begins = np.concatenate([[one[0].min()], other[1]])
    ends = np.concatenate([other[0], [max(one[1].max(), other[1].max())]])
    real = ends > begins
    return common(one, (begins[real], ends[real]))


def _marks(marks: tuple[HostSpan, ...]) -> Pieces:
    start = np.array([mark.start_ns for mark in marks], dtype=np.int64)
    end = np.array([mark.end_ns for mark in marks], dtype=np.int64)
    return union(start, end)


def _in_window(pieces: Pieces, begin_ns: int, end_ns: int) -> Pieces:
    """Those that begin in a window, whole."""
    inside = (pieces[0] >= begin_ns) & (pieces[0] < end_ns)
    return pieces[0][inside], pieces[1][inside]


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
    splits = ((rank, _breakdown(trace, whole=len(marks) < 2)) for rank, trace in traces)
    return tuple(_rounded(rank, split) for rank, split in splits if split is not None)


def _breakdown(trace: DeviceTrace, *, whole: bool) -> Breakdown | None:
    rounded = trace.fractional and not trace.on_processor
    split = _summed(trace, whole=whole, rounded=rounded)
    if rounded and split is not None and min(split.non_compute, split.memory, split.communication) < 0:
        return _summed(trace, whole=whole, rounded=False)
    return split


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
        compute=kind == WorkKind.COMPUTE,
        sends=kind == WorkKind.COMMUNICATION,
        memory=kind == WorkKind.MEMORY,
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


_ON = {
    WorkKind.COMPUTE: PathKind.COMPUTE,
    WorkKind.COMMUNICATION: PathKind.COMMUNICATION,
    WorkKind.MEMORY: PathKind.COPY,
    WorkKind.OTHER: PathKind.COMPUTE,
}


def path_of(job: TracedJob) -> tuple[PathSegment, ...]:
    """From the begin of the first kept step to the end of the last one's work, on the common clock."""
    begin = min(
        step.start_ns + view.shift_ns for view in job.ranks for step in view.steps if step.number == job.kept[0]
    )
    numbers = {meeting.key: number for number, meeting in enumerate(job.meetings)}
    came = {number: (meeting.last, meeting.came_ns) for number, meeting in enumerate(job.meetings)}
    ranks = {view.rank: _work(view, numbers) for view in job.ranks}
    ends = [view.ends(job.kept[-1]) + view.shift_ns for view in job.ranks if _has(view, job.kept[-1])]
    end = max([*ends, *(piece.end_ns for work in ranks.values() for piece in work.pieces[-1:])])
    return critical_path(ranks, came, begin, end) if end > begin else ()


def _has(view: RankView, number: int) -> bool:
    return any(step.number == number for step in view.steps)


def _work(view: RankView, meetings: dict[Key, int]) -> RankWork:
    work, shift, names = view.trace.work, view.shift_ns, view.trace.names
    by_place = {(visit.start_ns, visit.end_ns): meetings.get(key) for key, visit in view.visits.items()}
    launches = None if view.trace.on_processor else work.launch_ns.tolist()
    pieces = []
    rows = zip(work.start_ns.tolist(), work.end_ns.tolist(), work.kind.tolist(), work.name.tolist(), strict=True)
    waits = work.sync.tolist()
    for i, (start, end, kind, name) in enumerate(rows):
        if waits[i]:
            continue
        launch = None if launches is None or launches[i] == NO_LAUNCH else launches[i] + shift
        meets = by_place.get((start, end)) if kind == WorkKind.COMMUNICATION else None
        pieces.append(TimelineWork(start + shift, end + shift, launch, _ON[WorkKind(kind)], names[name], meets))
    if view.trace.on_processor:
        pieces += [
            TimelineWork(mark.start_ns + shift, mark.end_ns + shift, None, PathKind.LOADER, mark.name)
            for mark in view.trace.loader
        ]
    waits_of_host = [HostWait(mark.start_ns + shift, mark.end_ns + shift, loader=False) for mark in view.trace.blocking]
    waits_of_host += [HostWait(mark.start_ns + shift, mark.end_ns + shift, loader=True) for mark in view.trace.loader]
    return RankWork(sorted(pieces, key=lambda piece: piece.end_ns), sorted(waits_of_host, key=lambda wait: wait.end_ns))
