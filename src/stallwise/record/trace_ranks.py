"""Traces of several ranks on one clock, with their steps and the collectives they share.

Clocks are aligned on the END of collectives (`model.rendezvous`). Steps of one number belong together. The first step
is not kept where there are more: the profiler starts in it, and ranks wait there for the last one's profiler to start.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath

import numpy as np

from stallwise.errors import InputError
from stallwise.model.breakdown import Pieces, union
from stallwise.model.rendezvous import Key, Meeting, Shift, Visit, aligned, keyed, meetings, shared
from stallwise.record.trace_passes import cycles_of
from stallwise.run.readers.device_trace import (
    NO_GROUP,
    NO_LAUNCH,
    NO_STEP,
    Call,
    Codes,
    DeviceTrace,
    Group,
    Step,
    Times,
    Work,
)

_RANK_IN_NAME = re.compile(r"(?:rank|worker|trainer)[-_.]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class RankView:
    """One rank on the common clock: `ns(t)` is where its own t lies there."""

    rank: int
    trace: DeviceTrace
    steps: tuple[Step, ...]
    """On the rank's own clock, numbers counted from the first step of the job's trace."""
    shift_ns: int = 0

    @cached_property
    def step(self) -> Codes:
        """By piece of work: the number of the step it was asked for in; `NO_STEP` before all steps."""
        launch = self.trace.work.launch_ns
        asked = np.where(launch == NO_LAUNCH, self.trace.work.start_ns, launch)
        starts = np.array([step.start_ns for step in self.steps], dtype=np.int64)
        at = np.searchsorted(starts, asked, side="right") - 1
        numbers = np.array([NO_STEP, *(step.number for step in self.steps)], dtype=np.int32)
        return numbers[at + 1]

    def of(self, *kinds: Work) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """Which pieces of work are of these kinds; waits of the device for itself are of none."""
        work = self.trace.work
        return np.isin(work.kind, kinds) & ~work.sync

    def busy(self, *kinds: Work) -> Pieces:
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
    def visits(self) -> dict[Key, Visit]:
        """This rank's collectives by step, name, process group and number; without those whose group is not known."""
        chosen = np.flatnonzero(self.of(Work.COMMUNICATION))
        work, sizes, groups = self.trace.work, self.sizes, self.groups
        chosen = np.array([i for i in chosen.tolist() if self.one_group or i in groups], dtype=np.int64)
        found = [Visit(int(work.start_ns[i]), int(work.end_ns[i]), int(sizes[i])) for i in chosen]
        names = [_plain(self.trace.names[work.name[i]]) + _within(groups.get(int(i))) for i in chosen]
        return keyed(names, self.step[chosen].tolist(), found)

    @property
    def one_group(self) -> bool:
        """Whether a collective without a named process group can only be of one: all that are listed are the same."""
        return len({frozenset(ranks) for ranks in self.trace.members if len(ranks) > 1}) < 2

    @property
    def collectives(self) -> int:
        """How many collectives the trace holds."""
        return int(self.of(Work.COMMUNICATION).sum())

    @cached_property
    def groups(self) -> dict[int, Group]:
        """The process group of each collective, by its place in the work: its own word, else that of the call."""
        work, named = self.trace.work, self.trace.groups
        found = {i: named[work.group[i]] for i in np.flatnonzero(work.group != NO_GROUP).tolist()}
        chosen = [i for i in np.flatnonzero(self.of(Work.COMMUNICATION)).tolist() if i not in found]
        return found | {i: call.group for i, call in self._calls_behind(chosen) if call.group is not None}

    @cached_property
    def sizes(self) -> Times:
        """Bytes of each piece of work; where a collective's kernel does not tell, those of the call behind it."""
        sizes = self.trace.work.bytes.copy()
        chosen = np.flatnonzero(self.of(Work.COMMUNICATION) & (sizes < 0)).tolist()
        for i, call in self._calls_behind(chosen):
            sizes[i] = -1 if call.bytes is None else call.bytes
        return sizes

    def _calls_behind(self, pieces: list[int]) -> list[tuple[int, Call]]:
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
    shifts: tuple[Shift, ...]
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
    def meetings(self) -> tuple[Meeting, ...]:
        """Collectives of the kept steps that two or more ranks share."""
        if len(self.ranks) < 2:
            return ()
        visits = shared({view.rank: view.visits for view in self.ranks})
        return tuple(m for m in meetings(visits, self.shifts) if m.key[0] in self.kept)

    def seconds(self, view: RankView, own_ns: float) -> float:
        """A moment of a rank's own clock as seconds of the run."""
        return float(own_ns + view.shift_ns - self.zero_ns) / 1e9


def traced_job(traces: Sequence[DeviceTrace], world_size: int | None = None) -> TracedJob:
    """Ranks numbered, aligned, with their steps; an `InputError` where files do not belong together."""
    numbered = _numbered(traces)
    size = max([world_size or 0, *(trace.world_size or 0 for trace in traces), max(numbered) + 1])
    # Steps of one number belong together, so marks of some ranks only are none.
    marked = all(trace.steps for trace in traces)
    cycles = {rank: cycles_of(trace) for rank, trace in sorted(numbered.items())}
    fetches = {found.passes for found in cycles.values()}
    together = marked and len(fetches) == 1 and fetches != {1}
    steps = {
        rank: found.steps if together else numbered[rank].steps if marked else () for rank, found in cycles.items()
    }
    first = min((step.number for found in steps.values() for step in found), default=0)
    views = [RankView(rank, numbered[rank], _steps(numbered[rank], steps[rank], first)) for rank in steps]
    shifts = aligned(shared({view.rank: view.visits for view in views}))
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
        joined=fetches.pop() if together else 1,
    )


def _numbered(traces: Sequence[DeviceTrace]) -> dict[int, DeviceTrace]:
    """Ranks by number: as the file says, else as its name says, else 0 where there is one file only."""
    found: dict[int, DeviceTrace] = {}
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
        if rank in found:
            raise InputError(
                f"{found[rank].source} and {trace.source} are both of rank {rank}. Give one file for each rank."
            )
        found[rank] = trace
    return found


def _steps(trace: DeviceTrace, marked: tuple[Step, ...], first: int) -> tuple[Step, ...]:
    if marked:
        return tuple(Step(step.number - first, step.start_ns, step.end_ns) for step in marked)
    work = trace.work
    moments = [int(work.start_ns[0]), *(mark.start_ns for mark in trace.loader[:1])]
    return (Step(0, min(moments), int(work.end_ns.max())),)


def _earliest(view: RankView) -> int:
    return min(int(view.trace.work.start_ns[0]), *(step.start_ns for step in view.steps)) + view.shift_ns


def _within(group: Group | None) -> str:
    return "" if group is None else f" in {group.name} {group.ranks}"


def _plain(name: str) -> str:
    """A collective's kernel without its algorithm and types, which may differ between ranks of one collective."""
    found = re.match(r"nccl(?:Dev)?Kernel_?([A-Za-z]+)", name)
    return found[1] if found else name
