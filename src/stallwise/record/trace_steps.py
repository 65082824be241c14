"""What each traced step waits for: the batch, the copy of it, the exchange of gradients.

A trace shows one set-up, so nothing was taken away from the step as a profile does. What can be told is how long the
device did nothing else: while the loop waited for its batch, while a batch was copied, while gradients were exchanged.
A step less these is what it would take at best without them.
"""

from dataclasses import dataclass

import numpy as np

from stallwise.model.breakdown import Pieces, common, length, union, without
from stallwise.record.trace_ranks import RankView, TracedJob
from stallwise.run.readers.device_trace import Mark, Work

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
    computing = view.busy(Work.COMPUTE)
    working = view.busy(Work.COMPUTE, Work.COMMUNICATION)
    everything = view.busy(*Work)
    to_device = _copies(view)
    sends = view.of(Work.COMMUNICATION)
    loader = _marks(view.trace.loader)
    found = []
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
        found.append(
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
    return tuple(found)


def _copies(view: RankView) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    names = np.array(["HtoD" in name for name in view.trace.names], dtype=np.bool_)
    return view.of(Work.MEMORY) & names[view.trace.work.name]


def _outside(one: Pieces, other: Pieces) -> Pieces:
    """The stretches of a union that another leaves free."""
    if not len(one[0]) or not len(other[0]):
        return one
    begins = np.concatenate([[one[0].min()], other[1]])
    ends = np.concatenate([other[0], [max(one[1].max(), other[1].max())]])
    real = ends > begins
    return common(one, (begins[real], ends[real]))


def _marks(marks: tuple[Mark, ...]) -> Pieces:
    start = np.array([mark.start_ns for mark in marks], dtype=np.int64)
    end = np.array([mark.end_ns for mark in marks], dtype=np.int64)
    return union(start, end)


def _in_window(pieces: Pieces, begin_ns: int, end_ns: int) -> Pieces:
    """Those that begin in a window, whole."""
    inside = (pieces[0] >= begin_ns) & (pieces[0] < end_ns)
    return pieces[0][inside], pieces[1][inside]
