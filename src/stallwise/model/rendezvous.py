"""Collectives seen from several ranks: one clock for all, who came last, and how long the transfer itself took.

A collective ends on all ranks together, as far as any moment is shared by machines; where a rank's kernel begins says
only when that rank came. So clocks are aligned on ENDs (the median over all collectives that two ranks share), and the
transfer is what the last rank to come measured: from its begin to its end. The rest of a kernel's time on the other
ranks is waiting for it.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Key = tuple[int, str, int]
"""Step, name (with its process group, where known) and how many of that name came before it in the step: the same on
all ranks of the group."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One rank's part in a collective, on that rank's clock."""

    start_ns: int
    end_ns: int
    bytes: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """What is added to a rank's clock; half of the collectives it rests on lie within `spread_ns` of it."""

    rank: int
    shift_ns: int
    spread_ns: int | None
    collectives: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """One collective on the common clock."""

    key: Key
    ranks: int
    last: int
    """The rank that came last."""
    came_ns: int
    transfer_ns: int
    waited_ns: Mapping[int, int]
    """By rank, before the last one came."""
    bytes: int


def keyed(names: Sequence[str], steps: Sequence[int], visits: Sequence[Visit]) -> dict[Key, Visit]:
    """Visits of one rank, in order of their begin, by what they are called on every rank."""
    seen: dict[tuple[int, str], int] = defaultdict(int)
    found = {}
    for name, step, visit in zip(names, steps, visits, strict=True):
        found[step, name, seen[step, name]] = visit
        seen[step, name] += 1
    return found


def shared(ranks: Mapping[int, Mapping[Key, Visit]]) -> dict[int, dict[Key, Visit]]:
    """Only collectives of which every rank that knows the step and name has the same number.

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


def aligned(ranks: Mapping[int, Mapping[Key, Visit]]) -> tuple[Shift, ...]:
    """How far each rank's clock has to be moved to lie on that of the lowest rank.

    Where ranks meet in several process groups, a rank may share no collective with the lowest one: it is put on the
    clock of those that do. Next comes always the rank that shares most with those aligned already; against each
    collective stands the lowest of them. Ranks that share nothing keep their clock, with `collectives` 0 to say so.
    """
    home = min(ranks)
    ends = {key: visit.end_ns for key, visit in ranks[home].items()}
    shifts = {home: Shift(rank=home, shift_ns=0, spread_ns=None, collectives=0)}
    while left := sorted(set(ranks) - set(shifts)):
        rank = max(left, key=lambda rank: (len(ranks[rank].keys() & ends.keys()), -rank))
        shifts[rank] = _shift(rank, [ends[key] - visit.end_ns for key, visit in ranks[rank].items() if key in ends])
        if shifts[rank].collectives:
            for key, visit in ranks[rank].items():
                ends.setdefault(key, visit.end_ns + shifts[rank].shift_ns)
    return tuple(shifts[rank] for rank in sorted(shifts))


def _shift(rank: int, apart: Sequence[int]) -> Shift:
    if not apart:
        return Shift(rank=rank, shift_ns=0, spread_ns=None, collectives=0)
    shift = round(statistics.median(apart))
    spread = round(statistics.median(abs(value - shift) for value in apart))
    return Shift(rank=rank, shift_ns=shift, spread_ns=spread, collectives=len(apart))


def meetings(ranks: Mapping[int, Mapping[Key, Visit]], shifts: Sequence[Shift]) -> tuple[Meeting, ...]:
    """Every collective that two ranks or more took part in, in order of time."""
    moved = {shift.rank: shift.shift_ns for shift in shifts}
    by_key: dict[Key, dict[int, Visit]] = defaultdict(dict)
    for rank, visits in ranks.items():
        for key, visit in visits.items():
            by_key[key][rank] = visit
    found = [_meeting(key, visits, moved) for key, visits in by_key.items() if len(visits) > 1]
    return tuple(sorted(found, key=lambda meeting: meeting.came_ns))


def _meeting(key: Key, visits: Mapping[int, Visit], moved: Mapping[int, int]) -> Meeting:
    came = {rank: visit.start_ns + moved[rank] for rank, visit in visits.items()}
    last = max(came, key=lambda rank: (came[rank], -rank))
    return Meeting(
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
    """One rank over all collectives it shares with others."""

    rank: int
    collectives: int
    came_last: int
    waited_ns: int
    held_up_ns: int
    """What the others together waited for it, where it came last."""


def arrivals(found: Sequence[Meeting]) -> tuple[Arrivals, ...]:
    """Per rank: how often it came last and what that cost. The rank that costs most comes first."""
    ranks = sorted({rank for meeting in found for rank in meeting.waited_ns})
    rows = []
    for rank in ranks:
        mine = [meeting for meeting in found if rank in meeting.waited_ns]
        late = [meeting for meeting in mine if meeting.last == rank]
        # The time the job lost is that of the rank which waited longest, not the sum over ranks.
        held = sum(max(meeting.waited_ns.values()) for meeting in late)
        rows.append(
            Arrivals(
                rank=rank,
                collectives=len(mine),
                came_last=len(late),
                waited_ns=sum(meeting.waited_ns[rank] for meeting in mine),
                held_up_ns=held,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.held_up_ns, row.rank)))
