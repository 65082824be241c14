"""The critical path: small jobs whose path is known, and the law that it has no gaps."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stallwise.model.critical import On, Piece, RankWork, Segment, Wait, critical_path


def piece(start: int, end: int, launch: int | None = None, meets: int | None = None, on: On = On.COMPUTE) -> Piece:
    return Piece(start, end, launch, on, f"{start}", meets)


def path(*pieces: Piece, waits: tuple[Wait, ...] = (), end: int = 100) -> tuple[Segment, ...]:
    work = RankWork(sorted(pieces, key=lambda p: p.end_ns), waits)
    return critical_path({0: work}, {}, 0, end)


def times(segments: tuple[Segment, ...]) -> list[tuple[str, int]]:
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
    waits = (Wait(12, 42, loader=False),)
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
    waits = (Wait(20, 55, loader=True),)
    assert times(path(piece(60, 100, 57), waits=waits)) == [
        ("processor", 20),
        ("data loader", 35),
        ("processor", 2),
        ("launch", 3),
        ("compute", 40),
    ]


def test_a_collective_leads_to_the_rank_that_came_last() -> None:
    sends = On.COMMUNICATION
    early = RankWork([piece(0, 10), piece(10, 90, meets=4, on=sends), piece(90, 100)], ())
    late = RankWork([piece(0, 70), piece(70, 90, meets=4, on=sends)], ())
    found = critical_path({0: early, 1: late}, {4: (1, 70)}, 0, 100)
    assert [(s.rank, str(s.on), s.start_ns, s.end_ns) for s in found] == [
        (1, "compute", 0, 70),
        (0, "communication", 70, 90),
        (0, "compute", 90, 100),
    ]


PIECES = st.lists(
    st.tuples(st.integers(0, 90), st.integers(0, 30), st.none() | st.integers(0, 60), st.sampled_from(list(On)[:3])),
    max_size=15,
)
WAITS = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 30), st.booleans()), max_size=6)


@given(st.lists(st.tuples(PIECES, WAITS), min_size=1, max_size=3))
def test_segments_lie_end_to_end(
    ranks: list[tuple[list[tuple[int, int, int | None, On]], list[tuple[int, int, bool]]]],
) -> None:
    jobs = {
        rank: RankWork(
            sorted(
                (Piece(a, a + n, None if back is None else a - back, on, "") for a, n, back, on in pieces),
                key=lambda p: p.end_ns,
            ),
            sorted((Wait(a, a + n, loader) for a, n, loader in waits), key=lambda wait: wait.end_ns),
        )
        for rank, (pieces, waits) in enumerate(ranks)
    }
    found = critical_path(jobs, {}, 0, 130)
    assert found[0].start_ns == 0
    assert found[-1].end_ns == 130
    assert all(one.end_ns == two.start_ns for one, two in pairwise(found))
