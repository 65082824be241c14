"""Ranks that meet in collectives: clocks, who came last, and what the transfer took."""

from hypothesis import given
from hypothesis import strategies as st

from stallwise.model.rendezvous import Visit, aligned, arrivals, keyed, meetings, shared

COMING = st.lists(st.lists(st.integers(0, 500), min_size=3, max_size=3), min_size=1, max_size=12)


def job(
    coming: list[list[int]], clocks: tuple[int, ...], transfer: int
) -> dict[int, dict[tuple[int, str, int], Visit]]:
    """Each row is one collective: when each of three ranks comes, on one true clock."""
    ranks: dict[int, list[Visit]] = {rank: [] for rank in range(3)}
    for number, row in enumerate(coming):
        at = number * 10_000
        for rank, came in enumerate(row):
            ranks[rank].append(Visit(at + came + clocks[rank], at + max(row) + transfer + clocks[rank], 64))
    return {rank: keyed(["AllReduce"] * len(found), [0] * len(found), found) for rank, found in ranks.items()}


@given(COMING, st.tuples(*[st.integers(-(10**9), 10**9)] * 3), st.integers(1, 300))
def test_any_clocks_give_the_true_times(coming: list[list[int]], clocks: tuple[int, ...], transfer: int) -> None:
    ranks = shared(job(coming, clocks, transfer))
    shifts = aligned(ranks)
    assert [shift.shift_ns for shift in shifts] == [clocks[0] - clock for clock in clocks]
    found = meetings(ranks, shifts)
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
    left = shared(ranks)
    assert left == {0: {}, 1: {}, 2: {}}
    assert [shift.collectives for shift in aligned(left)] == [0, 0, 0]
    assert meetings(left, aligned(left)) == ()
