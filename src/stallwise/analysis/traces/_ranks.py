"""Traces of several ranks on one clock, with their steps, their passes and the collectives they share.

Clocks are aligned on the END of collectives (`rendezvous`). Steps of one number belong together. The first step is not
kept where there are more: the profiler starts in it, and ranks wait there for the last one's profiler to start.

A step is the shortest repeating cycle of batch fetches and optimizer updates. The profiler's marks follow
`profiler.step()`, which scripts call once an update or once a batch: in the second case several marks are joined up to
the update. Within a step a new pass begins where a matrix product or convolution lies between two stretches of
backward: that is a forward pass (a recomputed one lies inside backward).
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath

import numpy as np

from stallwise.errors import InputError
from stallwise.model.step.timeline import (
    AlignedCollective,
    ClockShift,
    Key,
    Pieces,
    RankVisit,
    align_clocks,
    aligned_collectives,
    shared_visits,
    union,
    visits_by_key,
)
from stallwise.run.traces.device_trace import (
    NO_GROUP,
    NO_LAUNCH,
    NO_STEP,
    Codes,
    CollectiveCall,
    DeviceTrace,
    HostSpan,
    ProcessGroup,
    ProfilerStep,
    Times,
    WorkKind,
)

_RANK_IN_NAME = re.compile(r"(?:rank|worker|trainer)[-_.]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Cycles:
    """Steps up to an update each, and how many of the profiler's marks make one; as marked where that is 1."""

    steps: tuple[ProfilerStep, ...]
    passes: int


def cycles_of(trace: DeviceTrace) -> Cycles:
    """Marks joined where every update is followed by equally many marks without one.

    Where numbers differ (a skipped update, validation in between) nothing is joined. Marks before the first update may
    be fewer, the rest of a cycle that began before the trace; those after the last make no step.
    """
    marks = trace.steps
    begins = sorted(mark.start_ns for mark in trace.optimizer)
    runs: list[list[ProfilerStep]] = [[]]
    for number, mark in enumerate(marks):
        runs[-1].append(mark)
        until = bisect_left(begins, marks[number + 1].start_ns) if number + 1 < len(marks) else len(begins)
        if until > bisect_left(begins, mark.start_ns):
            runs.append([])
    whole = runs[:-1]
    sizes = {len(run) for run in (whole[1:] or whole)}
    if len(sizes) != 1 or sizes == {1} or len(whole[0]) > max(sizes) or len(runs[-1]) > max(sizes):
        return Cycles(marks, 1)
    return Cycles(tuple(ProfilerStep(run[-1].number, run[0].start_ns, run[-1].end_ns) for run in whole), sizes.pop())


@dataclass(frozen=True, slots=True)
class TracedPass:
    """One forward and backward pass on the host's clock, in nanoseconds."""

    begin_ns: int
    backward_ns: int
    backward_end_ns: int
    end_ns: int
    """Where the next pass begins, or the step ends."""


def passes_of(trace: DeviceTrace, begin_ns: int, end_ns: int) -> tuple[TracedPass, ...]:
    """Passes of the step between two moments; none where the trace shows no backward."""
    windows: list[tuple[int, int]] = []
    products = [at_ns for at_ns, _ in trace.flops]
    first, beyond = (bisect_left(trace.backward, at_ns, key=_start_ns) for at_ns in (begin_ns, end_ns))
    for mark in trace.backward[first:beyond]:
        last_ns = windows[-1][1] if windows else None
        if last_ns is not None and bisect_left(products, last_ns) == bisect_left(products, mark.start_ns):
            windows[-1] = (windows[-1][0], max(last_ns, mark.end_ns))
        else:
            windows.append((mark.start_ns, mark.end_ns))
    begins = [begin_ns, *(_forward_ns(products, window[1]) for window in windows[:-1])]
    ends = [*begins[1:], end_ns]
    return tuple(
        TracedPass(begin, start, until, end) for begin, (start, until), end in zip(begins, windows, ends, strict=False)
    )


def _start_ns(mark: HostSpan) -> int:
    return mark.start_ns


def _forward_ns(products: Sequence[int], after_ns: int) -> int:
    return products[bisect_left(products, after_ns)]


def updates_of(trace: DeviceTrace, passes: Sequence[TracedPass]) -> int:
    """In how many places between the passes of a step the optimizer updates; 1 where it accumulates."""
    begin_ns, end_ns = passes[0].begin_ns, passes[-1].end_ns
    starts = [each.backward_ns for each in passes]
    places = {bisect_left(starts, mark.start_ns) for mark in trace.optimizer if begin_ns <= mark.start_ns < end_ns}
    # Before the first backward and after the last is one place: steps follow each other.
    return len({0 if place == len(starts) else place for place in places})


@dataclass(frozen=True, eq=False)
class RankView:
    """One rank on the common clock: `ns(t)` is where its own t lies there."""

    rank: int
    trace: DeviceTrace
    steps: tuple[ProfilerStep, ...]
    """On the rank's own clock, numbers counted from the first step of the job's trace."""
    shift_ns: int = 0

    @cached_property
    def step(self) -> Codes:
        """By piece of work: the number of the step it was launched in; `NO_STEP` before all steps."""
        launch = self.trace.work.launch_ns
        launched = np.where(launch == NO_LAUNCH, self.trace.work.start_ns, launch)
        starts = np.array([step.start_ns for step in self.steps], dtype=np.int64)
        at = np.searchsorted(starts, launched, side="right") - 1
        numbers = np.array([NO_STEP, *(step.number for step in self.steps)], dtype=np.int32)
        return numbers[at + 1]

    def of(self, *kinds: WorkKind) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """Which pieces of work are of these kinds; waits of the device for itself are of none."""
        work = self.trace.work
        return np.isin(work.kind, kinds) & ~work.sync

    def busy(self, *kinds: WorkKind) -> Pieces:
        """The union of all work of these kinds, on the rank's own clock."""
        chosen = self.of(*kinds)
        return union(self.trace.work.start_ns[chosen], self.trace.work.end_ns[chosen])

    def ends(self, number: int) -> int:
        """The end of a step: where the next one begins; of the last, where its mark ends (without marks, its work)."""
        at = [step.number for step in self.steps].index(number)
        if at + 1 < len(self.steps):
            return self.steps[at + 1].start_ns
        return self.steps[at].end_ns

    @cached_property
    def visits(self) -> dict[Key, RankVisit]:
        """This rank's collectives by step, name, process group and number; without those whose group is not known."""
        chosen = np.flatnonzero(self.of(WorkKind.COMMUNICATION))
        work, sizes, groups = self.trace.work, self.sizes, self.groups
        chosen = np.array([i for i in chosen.tolist() if self.one_group or i in groups], dtype=np.int64)
        visits = [RankVisit(int(work.start_ns[i]), int(work.end_ns[i]), int(sizes[i])) for i in chosen]
        names = [_plain(self.trace.names[work.name[i]]) + _within(groups.get(int(i))) for i in chosen]
        return visits_by_key(names, self.step[chosen].tolist(), visits)

    @property
    def one_group(self) -> bool:
        """Whether a collective without a named process group can only be of one: all that are listed are the same."""
        return len({frozenset(ranks) for ranks in self.trace.members if len(ranks) > 1}) < 2

    @property
    def collectives(self) -> int:
        """How many collectives the trace holds."""
        return int(self.of(WorkKind.COMMUNICATION).sum())

    @cached_property
    def groups(self) -> dict[int, ProcessGroup]:
        """The process group of each collective, by its place in the work: its own word, else that of the call."""
        work, named = self.trace.work, self.trace.groups
        stated = {i: named[work.group[i]] for i in np.flatnonzero(work.group != NO_GROUP).tolist()}
        chosen = [i for i in np.flatnonzero(self.of(WorkKind.COMMUNICATION)).tolist() if i not in stated]
        return stated | {i: call.group for i, call in self._calls_behind(chosen) if call.group is not None}

    @cached_property
    def sizes(self) -> Times:
        """Bytes of each piece of work; where a collective's kernel does not tell, those of the call behind it."""
        sizes = self.trace.work.bytes.copy()
        chosen = np.flatnonzero(self.of(WorkKind.COMMUNICATION) & (sizes < 0)).tolist()
        for i, call in self._calls_behind(chosen):
            sizes[i] = -1 if call.bytes is None else call.bytes
        return sizes

    def _calls_behind(self, pieces: list[int]) -> list[tuple[int, CollectiveCall]]:
        """Pieces of work with the last collective called before they were launched; those without one are left out."""
        calls, launch = self.trace.calls, self.trace.work.launch_ns
        chosen = [i for i in pieces if launch[i] != NO_LAUNCH]
        if not calls or not chosen:
            return []
        moments = np.array([call.at_ns for call in calls], dtype=np.int64)
        at = (np.searchsorted(moments, launch[chosen], side="right") - 1).tolist()
        return [(i, calls[call]) for i, call in zip(chosen, at, strict=True) if call >= 0]


@dataclass(frozen=True, eq=False)
class TracedJob:
    """All ranks that left a trace."""

    ranks: tuple[RankView, ...]
    world_size: int
    shifts: tuple[ClockShift, ...]
    zero_ns: int
    """Second 0 of the run, on the common clock."""
    kept: tuple[int, ...]
    """Numbers of the steps that count."""
    numbers: tuple[int, ...]
    """Numbers of all steps."""
    marked: bool
    """Whether the profiler marked steps on every rank; else the whole trace is one."""
    joined: int = 1
    """How many of the profiler's marks make one step, up to the optimizer's update."""

    @cached_property
    def meetings(self) -> tuple[AlignedCollective, ...]:
        """Collectives of the kept steps that two or more ranks share."""
        if len(self.ranks) < 2:
            return ()
        visits = shared_visits({view.rank: view.visits for view in self.ranks})
        return tuple(m for m in aligned_collectives(visits, self.shifts) if m.key[0] in self.kept)

    def seconds(self, view: RankView, own_ns: float) -> float:
        """A moment of a rank's own clock as seconds of the run."""
        return float(own_ns + view.shift_ns - self.zero_ns) / 1e9


def traced_job(traces: Sequence[DeviceTrace], world_size: int | None = None) -> TracedJob:
    """Ranks numbered, aligned, with their steps; an `InputError` where files do not belong together."""
    numbered = _numbered(traces)
    size = max([world_size or 0, *(trace.world_size or 0 for trace in traces), max(numbered) + 1])
    cycles = {rank: cycles_of(trace) for rank, trace in sorted(numbered.items())}
    # Steps of one number belong together, so marks of some ranks only are none.
    marked = all(trace.steps for trace in traces)
    joined = _joined_marks(cycles.values()) if marked else 1
    steps: dict[int, tuple[ProfilerStep, ...]] = dict.fromkeys(cycles, ())
    if marked:
        steps = {rank: cycle.steps if joined > 1 else numbered[rank].steps for rank, cycle in cycles.items()}
    first = min((step.number for rank_steps in steps.values() for step in rank_steps), default=0)
    views = [RankView(rank, numbered[rank], _steps(numbered[rank], steps[rank], first)) for rank in steps]
    shifts = align_clocks(shared_visits({view.rank: view.visits for view in views}))
    views = [
        RankView(view.rank, view.trace, view.steps, shift.shift_ns) for view, shift in zip(views, shifts, strict=True)
    ]
    numbers = sorted({step.number for view in views for step in view.steps})
    return TracedJob(
        ranks=tuple(views),
        world_size=size,
        shifts=shifts,
        zero_ns=min(_earliest(view) for view in views),
        kept=tuple(numbers[1:] if len(numbers) > 1 else numbers),
        numbers=tuple(numbers),
        marked=marked,
        joined=joined,
    )


def _joined_marks(cycles: Iterable[Cycles]) -> int:
    """Marks of the profiler that make one step; 1 where ranks differ."""
    passes = {cycle.passes for cycle in cycles}
    return passes.pop() if len(passes) == 1 else 1


def _numbered(traces: Sequence[DeviceTrace]) -> dict[int, DeviceTrace]:
    """Ranks by number: as the file says, else as its name says, else 0 where there is one file only."""
    by_rank: dict[int, DeviceTrace] = {}
    for trace in traces:
        rank = trace.rank
        named = _RANK_IN_NAME.search(PurePath(trace.source).name)
        if rank is None and named is not None and len(named[1]) < 7:
            rank = int(named[1])
        if rank is None and len(traces) == 1:
            rank = 0
        if rank is None or not 0 <= rank < 1_000_000:
            raise InputError(
                f"{trace.source} does not say which rank it is of. Give it a name with rank0, rank1 … in it, or import "
                "it alone."
            )
        if rank in by_rank:
            raise InputError(
                f"{by_rank[rank].source} and {trace.source} are both of rank {rank}. Give one file for each rank."
            )
        by_rank[rank] = trace
    return by_rank


def _steps(trace: DeviceTrace, marked: tuple[ProfilerStep, ...], first: int) -> tuple[ProfilerStep, ...]:
    if marked:
        return tuple(ProfilerStep(step.number - first, step.start_ns, step.end_ns) for step in marked)
    work = trace.work
    moments = [int(work.start_ns[0]), *(mark.start_ns for mark in trace.loader[:1])]
    return (ProfilerStep(0, min(moments), int(work.end_ns.max())),)


def _earliest(view: RankView) -> int:
    return min(int(view.trace.work.start_ns[0]), *(step.start_ns for step in view.steps)) + view.shift_ns


def _within(group: ProcessGroup | None) -> str:
    return "" if group is None else f" in {group.name} {group.ranks}"


def _plain(name: str) -> str:
    """A collective's kernel without its algorithm and types, which may differ between ranks of one collective."""
    match = re.match(r"nccl(?:Dev)?Kernel_?([A-Za-z]+)", name)
    return match[1] if match else name
