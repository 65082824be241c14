"""How a device spends a stretch of time: compute, communication, both at once, copies, nothing.

Definitions are those of HolisticTraceAnalysis (`get_temporal_breakdown`, `get_comm_comp_overlap`), so figures can be
compared: with U(x) the length of the union of all pieces of kind x, over pieces that run from the first begin to the
last end,

    kernel time = last end - first begin        idle = kernel time - U(all)
    compute = U(compute)                        non-compute = kernel time - compute - idle
    overlap = U(compute) ∩ U(communication)     overlap ratio = overlap / U(communication)

Everything works on sorted arrays of begins and ends in one unit of time.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

Moments = np.ndarray[tuple[Any, ...], np.dtype[Any]]
Flags = np.ndarray[tuple[Any, ...], np.dtype[np.bool_]]
Pieces = tuple[Moments, Moments]
"""Begins and ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Lengths in the unit of the pieces."""

    kernel_time: float
    idle: float
    compute: float
    communication: float
    overlap: float
    memory: float

    @property
    def non_compute(self) -> float:
        """Busy with anything but compute."""
        return self.kernel_time - self.compute - self.idle

    @property
    def overlap_ratio(self) -> float | None:
        """The part of communication that runs beside compute; None without any."""
        return self.overlap / self.communication if self.communication else None


def union(start: Moments, end: Moments) -> Pieces:
    """The same stretches without overlaps, in order; those that touch become one.

    One that ends before it begins (both were rounded) adds nothing to a larger one and alone counts with its sign, as
    the peer has it.
    """
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    begins, ends = start[order], end[order]
    furthest = np.maximum.accumulate(ends)
    first = np.concatenate([[True], begins[1:] > furthest[:-1]])
    last = np.concatenate([first[1:], [True]])
    return begins[first], furthest[last]


def length(pieces: Pieces) -> float:
    """Of stretches that do not overlap."""
    return (pieces[1] - pieces[0]).sum().item() if len(pieces[0]) else 0


def common(one: Pieces, other: Pieces) -> Pieces:
    """Where both are: two unions walked through together."""
    if not len(one[0]) or not len(other[0]):
        return one[0][:0], one[1][:0]
    moments = np.concatenate([one[0], other[0], one[1], other[1]])
    change = np.repeat([1, -1], [len(one[0]) + len(other[0]), len(one[1]) + len(other[1])])
    # Of what happens at one moment, ends come first: touching is not overlapping.
    order = np.lexsort((change, moments))
    depth = np.cumsum(change[order])
    inside = depth[:-1] == 2
    return moments[order][:-1][inside], moments[order][1:][inside]


def without(one: Pieces, other: Pieces) -> float:
    """The length of the first union that the second does not cover."""
    return length(one) - length(common(one, other))


def breakdown(start: Moments, end: Moments, *, compute: Flags, sends: Flags, memory: Flags) -> Breakdown:
    """The split of all pieces; `compute`, `sends` and `memory` say which are which."""
    busy = union(start, end)
    computing, sending = union(start[compute], end[compute]), union(start[sends], end[sends])
    span = busy[1][-1] - busy[0][0] if len(busy[0]) else 0
    return Breakdown(
        kernel_time=float(span),
        idle=float(span - length(busy)),
        compute=float(length(computing)),
        communication=float(length(sending)),
        overlap=float(length(common(computing, sending))),
        memory=float(length(union(start[memory], end[memory]))),
    )
