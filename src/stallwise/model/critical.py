"""The critical path through what several ranks did, walked backwards from the end.

At the end of the last piece of work, ask what it had to wait for, go there, and ask again:

1. A piece of device work waits for whichever came later: the piece before it (of all that ended before it began, the
   last to end), or the call on the processor that asked for it. Asked for before its predecessor ended, it was queued:
   the path stays on the device. Else the path goes to the processor.
2. A collective waits for the last rank to come: from there the path goes on with that rank. What it takes after that
   is the transfer.
3. On the processor time is its own work, until a call that waited for the device ends (the path goes back to the work
   it waited for) or a wait for a batch does (which is on the path as such).

The segments lie end to end, so they add up to the time from begin to end. HolisticTraceAnalysis builds the graph of one
rank and takes its longest path; edges here are the same, found only where the path passes, and ranks are joined.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class On(StrEnum):
    """What a stretch of the path is."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    COPY = "copy"
    LAUNCH = "launch"
    PROCESSOR = "processor"
    LOADER = "data loader"
    GAP = "gap"


@dataclass(frozen=True, slots=True)
class Piece:
    """Device work on the common clock. `launch_ns` None: its launch is not known, or it needed none."""

    start_ns: int
    end_ns: int
    launch_ns: int | None
    on: On
    name: str
    meets: int | None = None
    """Which meeting of ranks it takes part in."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A stretch in which the processor waited: for the device, or (`loader`) for a batch."""

    start_ns: int
    end_ns: int
    loader: bool


@dataclass(frozen=True, slots=True)
class RankWork:
    """All of one rank: pieces by their end, waits by theirs."""

    pieces: Sequence[Piece]
    waits: Sequence[Wait]


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the path."""

    rank: int
    start_ns: int
    end_ns: int
    on: On
    name: str


def critical_path(
    ranks: Mapping[int, RankWork], meetings: Mapping[int, tuple[int, int]], begin_ns: int, end_ns: int
) -> tuple[Segment, ...]:
    """The path from `begin_ns` to `end_ns`, in order of time. A meeting gives the last rank to come and its moment."""
    walk = _Walk(ranks, meetings, begin_ns)
    last = max(ranks, key=lambda rank: (walk.last_end(rank, end_ns), -rank))
    walk.at(last, end_ns)
    return tuple(reversed(walk.segments))


class _Walk:
    """Goes backwards; `now` never grows, and falls with every segment."""

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
        self.segments: list[Segment] = []
        self.now = 0

    def last_end(self, rank: int, until_ns: int) -> int:
        """When the rank's last piece before a moment ended."""
        at = bisect_right(self.ends[rank], until_ns)
        return self.ends[rank][at - 1] if at else self.begin_ns

    def at(self, rank: int, end_ns: int) -> None:
        """Walk from a moment on a rank to the begin."""
        self.now = end_ns
        piece = self._before(rank, end_ns)
        on_device = piece is not None
        if piece is not None:
            self._add(rank, piece.end_ns, On.PROCESSOR, "")
        while self.now > self.begin_ns:
            if on_device and piece is not None:
                rank, piece, on_device = self._device(rank, piece)
            else:
                piece = self._processor(rank)
                on_device = piece is not None

    def _device(self, rank: int, piece: Piece) -> tuple[int, Piece | None, bool]:
        """Over one piece of work, to what it waited for."""
        start_ns, came = piece.start_ns, self.meetings.get(-1 if piece.meets is None else piece.meets)
        if came is not None and came[1] < self.now:
            last, came_ns = came
            self._add(rank, came_ns, piece.on, piece.name)
            rank, piece = last, self.of_meeting[last, piece.meets or 0]
            start_ns = min(piece.start_ns, came_ns)
        else:
            self._add(rank, start_ns, piece.on, piece.name)
        before = self._before(rank, self.now)
        launched = piece.launch_ns
        if launched is not None and launched <= self.now and (before is None or launched > before.end_ns):
            self._add(rank, launched, On.LAUNCH, piece.name)
            return rank, None, False
        if before is None:
            self._add(rank, self.begin_ns, On.GAP, "")
            return rank, None, False
        self._add(rank, before.end_ns, On.GAP, piece.name)
        return rank, before, True

    def _processor(self, rank: int) -> Piece | None:
        """Back to the last wait that ended; the device work it waited for, if any."""
        at = bisect_right(self.wait_ends[rank], self.now) - 1
        while at >= 0:
            wait = self.ranks[rank].waits[at]
            if wait.start_ns < self.now:
                self._add(rank, wait.end_ns, On.PROCESSOR, "")
                if wait.loader:
                    self._add(rank, wait.start_ns, On.LOADER, "")
                    return None
                piece = self._before(rank, wait.end_ns)
                if piece is not None and piece.end_ns > wait.start_ns:
                    self._add(rank, piece.end_ns, On.GAP, "")
                    return piece
                self._add(rank, wait.start_ns, On.PROCESSOR, "")
            at -= 1
        self._add(rank, self.begin_ns, On.PROCESSOR, "")
        return None

    def _before(self, rank: int, moment_ns: int) -> Piece | None:
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

    def _add(self, rank: int, start_ns: int, on: On, name: str) -> None:
        start_ns = max(start_ns, self.begin_ns)
        if start_ns < self.now:
            self.segments.append(Segment(rank, start_ns, self.now, on, name))
            self.now = start_ns
