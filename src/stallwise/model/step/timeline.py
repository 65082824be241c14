"""What traced ranks did over time: breakdown of a device's time, clocks aligned on collectives, and the critical path.

**Breakdown.** Definitions are those of HolisticTraceAnalysis (`get_temporal_breakdown`, `get_comm_comp_overlap`), so
figures can be compared: with U(x) the length of the union of all pieces of kind x, over pieces that run from the first
begin to the last end,

    kernel time = last end - first begin        idle = kernel time - U(all)
    compute = U(compute)                        non-compute = kernel time - compute - idle
    overlap = U(compute) ∩ U(communication)     overlap ratio = overlap / U(communication)

Everything works on sorted arrays of begins and ends in one unit of time.

**Collectives seen from several ranks.** A collective ends on all ranks together, as far as any moment is shared by
machines; the begin of a rank's kernel says only when that rank arrived. So clocks are aligned on ENDs (the median over
all collectives that two ranks share), and the transfer is the time that the last rank to arrive measured. The rest of
a kernel's time on the other ranks is waiting for it.

**Critical path** through the work of several ranks, walked backwards from the end. From the end of the last piece of
work it goes to whatever that piece had to wait for, and so on:

1. A piece of device work waits for whichever came later: the piece before it (of all that ended before it began, the
   last to end), or the call on the CPU that launched it. Launched before its predecessor ended, it was queued: the path
   stays on the device. Else the path goes to the CPU.
2. A collective waits for the last rank to arrive: from there the path goes on with that rank. The time after that is
   the transfer.
3. On the CPU time is its own work, until a call that waited for the device ends (the path goes back to the work
   it waited for) or a wait for a batch does (which is on the path as such).

The segments lie end to end, so they add up to the time from begin to end. HolisticTraceAnalysis builds the graph of one
rank and takes its longest path; edges here are the same, found only where the path passes, and ranks are joined.
"""

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

Moments = np.ndarray[tuple[Any, ...], np.dtype[Any]]
Flags = np.ndarray[tuple[Any, ...], np.dtype[np.bool_]]
Pieces = tuple[Moments, Moments]
"""Begins and ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Breakdown of a device's time, in the unit of the pieces."""

    kernel_time: float
    idle: float
    compute: float
    communication: float
    overlap: float
    memory: float

    @property
    def non_compute(self) -> float:
        """Time busy with anything but compute."""
        return self.kernel_time - self.compute - self.idle

    @property
    def overlap_ratio(self) -> float | None:
        """Fraction of communication that overlaps compute; None without any."""
        return self.overlap / self.communication if self.communication else None


def union(start: Moments, end: Moments) -> Pieces:
    """Return the stretches without overlaps, in order; those that touch become one.

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
    """Total length of stretches that do not overlap."""
    return (pieces[1] - pieces[0]).sum().item() if len(pieces[0]) else 0


def common(one: Pieces, other: Pieces) -> Pieces:
    """Intersection of two unions."""
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
    """Length of the first union that the second does not cover."""
    return length(one) - length(common(one, other))


def breakdown(start: Moments, end: Moments, *, compute: Flags, sends: Flags, memory: Flags) -> Breakdown:
    """Break down all pieces; the flags say which are compute, communication (`sends`) and memory copies."""
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


class PathKind(StrEnum):
    """Kind of a stretch of the critical path."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    COPY = "copy"
    LAUNCH = "launch"
    CPU = "processor"
    LOADER = "data loader"
    GAP = "gap"


@dataclass(frozen=True, slots=True)
class TimelineWork:
    """Device work on the common clock. `launch_ns` None: its launch is not known, or it needed none."""

    start_ns: int
    end_ns: int
    launch_ns: int | None
    on: PathKind
    name: str
    meets: int | None = None
    """Number of the collective that it takes part in."""


@dataclass(frozen=True, slots=True)
class HostWait:
    """A stretch in which the CPU waited: for the device, or (`loader`) for a batch."""

    start_ns: int
    end_ns: int
    loader: bool


@dataclass(frozen=True, slots=True)
class RankWork:
    """The work and waits of one rank, each ordered by end."""

    pieces: Sequence[TimelineWork]
    waits: Sequence[HostWait]


@dataclass(frozen=True, slots=True)
class PathSegment:
    """A stretch of the critical path on one rank."""

    rank: int
    start_ns: int
    end_ns: int
    on: PathKind
    name: str


def critical_path(
    ranks: Mapping[int, RankWork], meetings: Mapping[int, tuple[int, int]], begin_ns: int, end_ns: int
) -> tuple[PathSegment, ...]:
    """Return the path from `begin_ns` to `end_ns` in order of time; `meetings` gives the last rank of each collective
    and when it arrived.
    """
    walk = _Walk(ranks, meetings, begin_ns)
    last = max(ranks, key=lambda rank: (walk.last_end(rank, end_ns), -rank))
    walk.at(last, end_ns)
    return tuple(reversed(walk.segments))


class _Walk:
    """Walks backwards in time; `now` never grows, and falls with every segment."""

    def __init__(self, ranks: Mapping[int, RankWork], meetings: Mapping[int, tuple[int, int]], begin_ns: int) -> None:
        self.ranks, self.meetings, self.begin_ns = ranks, meetings, begin_ns
        self.ends = {rank: [piece.end_ns for piece in work.pieces] for rank, work in ranks.items()}
        self.wait_ends = {rank: [wait.end_ns for wait in work.waits] for rank, work in ranks.items()}
        self.of_meeting = {
            (rank, piece.meets): piece
            for rank, work in ranks.items()
            for piece in work.pieces
            if piece.meets is not None
        }
        self.segments: list[PathSegment] = []
        self.now = 0

    def last_end(self, rank: int, until_ns: int) -> int:
        """End of the rank's last piece before a moment."""
        at = bisect_right(self.ends[rank], until_ns)
        return self.ends[rank][at - 1] if at else self.begin_ns

    def at(self, rank: int, end_ns: int) -> None:
        """Walk from a moment on a rank to the begin."""
        self.now = end_ns
        piece = self._before(rank, end_ns)
        on_device = piece is not None
        if piece is not None:
            self._add(rank, piece.end_ns, PathKind.CPU, "")
        while self.now > self.begin_ns:
            if on_device and piece is not None:
                rank, piece, on_device = self._device(rank, piece)
            else:
                piece = self._cpu(rank)
                on_device = piece is not None

    def _device(self, rank: int, piece: TimelineWork) -> tuple[int, TimelineWork | None, bool]:
        """Walk over one piece of work to what it waited for."""
        start_ns, arrival = piece.start_ns, self.meetings.get(-1 if piece.meets is None else piece.meets)
        if arrival is not None and arrival[1] < self.now:
            last, arrived_ns = arrival
            self._add(rank, arrived_ns, piece.on, piece.name)
            rank, piece = last, self.of_meeting[last, piece.meets or 0]
            start_ns = min(piece.start_ns, arrived_ns)
        else:
            self._add(rank, start_ns, piece.on, piece.name)
        before = self._before(rank, self.now)
        launched = piece.launch_ns
        if launched is not None and launched <= self.now and (before is None or launched > before.end_ns):
            self._add(rank, launched, PathKind.LAUNCH, piece.name)
            return rank, None, False
        if before is None:
            self._add(rank, self.begin_ns, PathKind.GAP, "")
            return rank, None, False
        self._add(rank, before.end_ns, PathKind.GAP, piece.name)
        return rank, before, True

    def _cpu(self, rank: int) -> TimelineWork | None:
        """Back to the last wait that ended; the device work it waited for, if any."""
        at = bisect_right(self.wait_ends[rank], self.now) - 1
        while at >= 0:
            wait = self.ranks[rank].waits[at]
            if wait.start_ns < self.now:
                self._add(rank, wait.end_ns, PathKind.CPU, "")
                if wait.loader:
                    self._add(rank, wait.start_ns, PathKind.LOADER, "")
                    return None
                piece = self._before(rank, wait.end_ns)
                if piece is not None and piece.end_ns > wait.start_ns:
                    self._add(rank, piece.end_ns, PathKind.GAP, "")
                    return piece
                self._add(rank, wait.start_ns, PathKind.CPU, "")
            at -= 1
        self._add(rank, self.begin_ns, PathKind.CPU, "")
        return None

    def _before(self, rank: int, moment_ns: int) -> TimelineWork | None:
        """The last piece to end by a moment, that also began before it."""
        at = bisect_right(self.ends[rank], moment_ns) - 1
        while at >= 0:
            piece = self.ranks[rank].pieces[at]
            if piece.start_ns < moment_ns and piece.end_ns > self.begin_ns:
                return piece
            if piece.end_ns <= self.begin_ns:
                return None
            at -= 1
        return None

    def _add(self, rank: int, start_ns: int, on: PathKind, name: str) -> None:
        start_ns = max(start_ns, self.begin_ns)
        if start_ns < self.now:
            self.segments.append(PathSegment(rank, start_ns, self.now, on, name))
            self.now = start_ns


Key = tuple[int, str, int]
"""Step, name (with its process group, where known) and how many of that name came before it in the step: the same on
all ranks of the group."""


@dataclass(frozen=True, slots=True)
class RankVisit:
    """One rank's kernel of a collective, on that rank's clock."""

    start_ns: int
    end_ns: int
    bytes: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockShift:
    """Offset added to a rank's clock; half of the collectives it is based on lie within `spread_ns` of it."""

    rank: int
    shift_ns: int
    spread_ns: int | None
    collectives: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedCollective:
    """One collective on the common clock."""

    key: Key
    ranks: int
    last: int
    """The rank that arrived last."""
    came_ns: int
    transfer_ns: int
    waited_ns: Mapping[int, int]
    """Time each rank waited before the last one arrived."""
    bytes: int


def visits_by_key(names: Sequence[str], steps: Sequence[int], visits: Sequence[RankVisit]) -> dict[Key, RankVisit]:
    """Visits of one rank, in order of begin, by the key that identifies them on every rank."""
    counts: dict[tuple[int, str], int] = defaultdict(int)
    by_key = {}
    for name, step, visit in zip(names, steps, visits, strict=True):
        by_key[step, name, counts[step, name]] = visit
        counts[step, name] += 1
    return by_key


def shared_visits(ranks: Mapping[int, Mapping[Key, RankVisit]]) -> dict[int, dict[Key, RankVisit]]:
    """Keep only collectives of which every rank that has the step and name has the same number.

    Where numbers differ (a rank's trace begins late, a sampled trace) the n-th here need not be the n-th there.
    """
    counts: dict[tuple[int, str], set[int]] = defaultdict(set)
    for visits in ranks.values():
        own: dict[tuple[int, str], int] = defaultdict(int)
        for step, name, _ in visits:
            own[step, name] += 1
        for group, number in own.items():
            counts[group].add(number)
    return {
        rank: {key: visit for key, visit in visits.items() if len(counts[key[0], key[1]]) == 1}
        for rank, visits in ranks.items()
    }


def align_clocks(ranks: Mapping[int, Mapping[Key, RankVisit]]) -> tuple[ClockShift, ...]:
    """Compute the offset of each rank's clock to that of the lowest rank.

    Where ranks meet in several process groups, a rank may share no collective with the lowest one: it is aligned
    with those that do. Next comes always the rank that shares most with those aligned already; against each
    collective stands the lowest of them. Ranks that share nothing keep their clock, with `collectives` 0.
    """
    home = min(ranks)
    ends = {key: visit.end_ns for key, visit in ranks[home].items()}
    shifts = {home: ClockShift(rank=home, shift_ns=0, spread_ns=None, collectives=0)}
    while left := sorted(set(ranks) - set(shifts)):
        rank = max(left, key=lambda rank: (len(ranks[rank].keys() & ends.keys()), -rank))
        shifts[rank] = _shift(rank, [ends[key] - visit.end_ns for key, visit in ranks[rank].items() if key in ends])
        if shifts[rank].collectives:
            for key, visit in ranks[rank].items():
                ends.setdefault(key, visit.end_ns + shifts[rank].shift_ns)
    return tuple(shifts[rank] for rank in sorted(shifts))


def _shift(rank: int, apart: Sequence[int]) -> ClockShift:
    if not apart:
        return ClockShift(rank=rank, shift_ns=0, spread_ns=None, collectives=0)
    shift = round(statistics.median(apart))
    spread = round(statistics.median(abs(value - shift) for value in apart))
    return ClockShift(rank=rank, shift_ns=shift, spread_ns=spread, collectives=len(apart))


def aligned_collectives(
    ranks: Mapping[int, Mapping[Key, RankVisit]], shifts: Sequence[ClockShift]
) -> tuple[AlignedCollective, ...]:
    """Return every collective of two ranks or more, in order of time."""
    moved = {shift.rank: shift.shift_ns for shift in shifts}
    by_key: dict[Key, dict[int, RankVisit]] = defaultdict(dict)
    for rank, visits in ranks.items():
        for key, visit in visits.items():
            by_key[key][rank] = visit
    collectives = [_meeting(key, visits, moved) for key, visits in by_key.items() if len(visits) > 1]
    return tuple(sorted(collectives, key=lambda meeting: meeting.came_ns))


def _meeting(key: Key, visits: Mapping[int, RankVisit], moved: Mapping[int, int]) -> AlignedCollective:
    came = {rank: visit.start_ns + moved[rank] for rank, visit in visits.items()}
    last = max(came, key=lambda rank: (came[rank], -rank))
    return AlignedCollective(
        key=key,
        ranks=len(visits),
        last=last,
        came_ns=came[last],
        transfer_ns=visits[last].end_ns - visits[last].start_ns,
        waited_ns={rank: came[last] - came[rank] for rank in came},
        bytes=max(visit.bytes for visit in visits.values()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """How often one rank arrived last in collectives, and what that cost."""

    rank: int
    collectives: int
    came_last: int
    waited_ns: int
    held_up_ns: int
    """Time the others waited for it where it arrived last."""


def arrivals(collectives: Sequence[AlignedCollective]) -> tuple[Arrivals, ...]:
    """Count per rank how often it arrived last and what that cost, the costliest first."""
    ranks = sorted({rank for meeting in collectives for rank in meeting.waited_ns})
    rows = []
    for rank in ranks:
        mine = [meeting for meeting in collectives if rank in meeting.waited_ns]
        late = [meeting for meeting in mine if meeting.last == rank]
        # The time the job lost is that of the rank which waited longest, not the sum over ranks.
        held_up_ns = sum(max(meeting.waited_ns.values()) for meeting in late)
        rows.append(
            Arrivals(
                rank=rank,
                collectives=len(mine),
                came_last=len(late),
                waited_ns=sum(meeting.waited_ns[rank] for meeting in mine),
                held_up_ns=held_up_ns,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.held_up_ns, row.rank)))
