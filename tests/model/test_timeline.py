"""Traced timelines: breakdown of a device's time, critical path, clocks aligned on collectives."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stallwise.model.step.timeline import (
    HostWait,
    PathKind,
    PathSegment,
    RankVisit,
    RankWork,
    TimelineWork,
    align_clocks,
    aligned_collectives,
    arrivals,
    breakdown,
    common,
    critical_path,
    length,
    shared_visits,
    union,
    visits_by_key,
    without,
)

PIECES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20), st.integers(0, 2)), min_size=1, max_size=25)


def moments(pieces: list[tuple[int, int, int]], *kinds: int) -> set[int]:
    return {t for start, size, kind in pieces if kind in kinds for t in range(start, start + size)}


def arrays(pieces: list[tuple[int, int, int]], *kinds: int) -> tuple[np.ndarray, np.ndarray]:
    chosen = [(start, start + size) for start, size, kind in pieces if kind in kinds]
    return np.array([a for a, _ in chosen], dtype=np.int64), np.array([b for _, b in chosen], dtype=np.int64)


@given(PIECES)
def test_every_part_is_the_count_of_its_moments(pieces: list[tuple[int, int, int]]) -> None:
    start, end = arrays(pieces, 0, 1, 2)
    kind = np.array([kind for _, _, kind in pieces])
    found = breakdown(start, end, compute=kind == 0, sends=kind == 1, memory=kind == 2)
    computing, sending = moments(pieces, 0), moments(pieces, 1)
    busy = moments(pieces, 0, 1, 2)
    assert found.compute == len(computing)
    assert found.communication == len(sending)
    assert found.overlap == len(computing & sending)
    assert found.memory == len(moments(pieces, 2))
    assert found.idle == end.max() - start.min() - len(busy)
    assert found.compute + found.non_compute + found.idle == found.kernel_time
    assert found.overlap_ratio == (len(computing & sending) / len(sending) if sending else None)


@given(PIECES)
def test_unions_meet_and_are_cut_as_sets_are(pieces: list[tuple[int, int, int]]) -> None:
    one, other = union(*arrays(pieces, 0)), union(*arrays(pieces, 1))
    assert (one[0][1:] > one[1][:-1]).all()
    assert length(common(one, other)) == len(moments(pieces, 0) & moments(pieces, 1))
    assert without(one, other) == len(moments(pieces, 0) - moments(pieces, 1))


def piece(
    start: int, end: int, launch: int | None = None, meets: int | None = None, on: PathKind = PathKind.COMPUTE
) -> TimelineWork:
    return TimelineWork(start, end, launch, on, f"{start}", meets)


def path(*pieces: TimelineWork, waits: tuple[HostWait, ...] = (), end: int = 100) -> tuple[PathSegment, ...]:
    work = RankWork(sorted(pieces, key=lambda p: p.end_ns), waits)
    return critical_path({0: work}, {}, 0, end)


def times(segments: tuple[PathSegment, ...]) -> list[tuple[str, int]]:
    return [(str(segment.on), segment.end_ns - segment.start_ns) for segment in segments]


def test_queued_work_stays_on_the_device() -> None:
    assert times(path(piece(10, 50, 5), piece(52, 100, 8))) == [
        ("processor", 5),
        ("launch", 5),
        ("compute", 40),
        ("gap", 2),
        ("compute", 48),
    ]


def test_work_asked_for_late_goes_to_the_processor() -> None:
    assert times(path(piece(10, 20, 5), piece(70, 100, 60))) == [("processor", 60), ("launch", 10), ("compute", 30)]


def test_a_wait_for_the_device_leads_back_to_what_it_waited_for() -> None:
    waits = (HostWait(12, 42, loader=False),)
    found = times(path(piece(10, 40, 5), piece(60, 100, 50), waits=waits))
    assert found == [
        ("processor", 5),
        ("launch", 5),
        ("compute", 30),
        ("gap", 2),
        ("processor", 8),
        ("launch", 10),
        ("compute", 40),
    ]


def test_waiting_for_a_batch_is_on_the_path() -> None:
    waits = (HostWait(20, 55, loader=True),)
    assert times(path(piece(60, 100, 57), waits=waits)) == [
        ("processor", 20),
        ("data loader", 35),
        ("processor", 2),
        ("launch", 3),
        ("compute", 40),
    ]


def test_a_collective_leads_to_the_rank_that_came_last() -> None:
    sends = PathKind.COMMUNICATION
    early = RankWork([piece(0, 10), piece(10, 90, meets=4, on=sends), piece(90, 100)], ())
    late = RankWork([piece(0, 70), piece(70, 90, meets=4, on=sends)], ())
    found = critical_path({0: early, 1: late}, {4: (1, 70)}, 0, 100)
    assert [(s.rank, str(s.on), s.start_ns, s.end_ns) for s in found] == [
        (1, "compute", 0, 70),
        (0, "communication", 70, 90),
        (0, "compute", 90, 100),
    ]


CRITICAL_PIECES = st.lists(
    st.tuples(
        st.integers(0, 90), st.integers(0, 30), st.none() | st.integers(0, 60), st.sampled_from(list(PathKind)[:3])
    ),
    max_size=15,
)
WAITS = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 30), st.booleans()), max_size=6)


@given(st.lists(st.tuples(CRITICAL_PIECES, WAITS), min_size=1, max_size=3))
def test_segments_lie_end_to_end(
    ranks: list[tuple[list[tuple[int, int, int | None, PathKind]], list[tuple[int, int, bool]]]],
) -> None:
    jobs = {
        rank: RankWork(
            sorted(
                (TimelineWork(a, a + n, None if back is None else a - back, on, "") for a, n, back, on in pieces),
                key=lambda p: p.end_ns,
            ),
            sorted((HostWait(a, a + n, loader) for a, n, loader in waits), key=lambda wait: wait.end_ns),
        )
        for rank, (pieces, waits) in enumerate(ranks)
    }
    found = critical_path(jobs, {}, 0, 130)
    assert found[0].start_ns == 0
    assert found[-1].end_ns == 130
    assert all(one.end_ns == two.start_ns for one, two in pairwise(found))


COMING = st.lists(st.lists(st.integers(0, 500), min_size=3, max_size=3), min_size=1, max_size=12)


def job(
    coming: list[list[int]], clocks: tuple[int, ...], transfer: int
) -> dict[int, dict[tuple[int, str, int], RankVisit]]:
    """Each row is one collective: when each of three ranks comes, on one true clock."""
    ranks: dict[int, list[RankVisit]] = {rank: [] for rank in range(3)}
    for number, row in enumerate(coming):
        at = number * 10_000
        for rank, came in enumerate(row):
            ranks[rank].append(RankVisit(at + came + clocks[rank], at + max(row) + transfer + clocks[rank], 64))
    return {rank: visits_by_key(["AllReduce"] * len(found), [0] * len(found), found) for rank, found in ranks.items()}


@given(COMING, st.tuples(*[st.integers(-(10**9), 10**9)] * 3), st.integers(1, 300))
def test_any_clocks_give_the_true_times(coming: list[list[int]], clocks: tuple[int, ...], transfer: int) -> None:
    ranks = shared_visits(job(coming, clocks, transfer))
    shifts = align_clocks(ranks)
    assert [shift.shift_ns for shift in shifts] == [clocks[0] - clock for clock in clocks]
    found = aligned_collectives(ranks, shifts)
    assert [meeting.transfer_ns for meeting in found] == [transfer] * len(coming)
    for meeting, row in zip(found, coming, strict=True):
        assert row[meeting.last] == max(row)
        assert [meeting.waited_ns[rank] for rank in range(3)] == [max(row) - came for came in row]
    rows = {row.rank: row for row in arrivals(found)}
    assert sum(row.came_last for row in rows.values()) == len(coming)
    assert sum(row.held_up_ns for row in rows.values()) == sum(max(row) - min(row) for row in coming)


def test_a_rank_that_saw_fewer_is_not_matched_by_counting() -> None:
    ranks = job([[0, 0, 0], [5, 0, 0], [9, 0, 0]], (0, 0, 0), 10)
    ranks[1].pop((0, "AllReduce", 2))
    left = shared_visits(ranks)
    assert left == {0: {}, 1: {}, 2: {}}
    assert [shift.collectives for shift in align_clocks(left)] == [0, 0, 0]
    assert aligned_collectives(left, align_clocks(left)) == ()
