"""The rules as laws: sums are exact, minima hold, priority spares, what is taken can be given back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.errors import InputError
from stallwise.overcommit._shares import RULES, Rule
from validation.vm_deflation import Holder, Pool, reclaim_shares, rooms

rules = st.sampled_from(RULES)


@st.composite
def holders(draw: st.DrawFn) -> Holder:
    size = draw(st.integers(0, 100_000))
    return Holder(size=size, least=draw(st.integers(0, size)), priority=draw(st.integers(1, 1000)) / 1000)


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    pool = Pool(holders=tuple(draw(st.lists(holders(), max_size=12))), rule=draw(rules))
    return pool.reclaim(draw(st.integers(0, pool.most)))


@given(pools())
def test_the_sum_is_exact_and_nobody_gains_or_falls_below_its_minimum(pool: Pool) -> None:
    given_up = reclaim_shares(pool.holders, pool.taken, pool.rule)
    assert sum(given_up) == pool.taken
    assert sum(pool.held) == sum(holder.size for holder in pool.holders) - pool.taken
    for one, room, holder in zip(given_up, rooms(pool.holders, pool.rule), pool.holders, strict=True):
        assert 0 <= one <= room
        assert holder.size - one >= holder.least


@given(pools(), st.integers(0, 1_000_000))
def test_taking_and_giving_back_restores_everybody(pool: Pool, amount: int) -> None:
    more = min(amount, pool.most - pool.taken)
    assert pool.reclaim(more).give_back(more).held == pool.held
    assert pool.give_back(pool.taken).held == tuple(holder.size for holder in pool.holders)


@given(pools(), st.lists(st.integers(1, 5000), max_size=5))
def test_only_the_total_counts_not_the_way_there(pool: Pool, steps: list[int]) -> None:
    there = pool
    for step in steps:
        there = there.reclaim(min(step, there.most - there.taken)).give_back(step // 2)
    assert there.held == Pool(holders=pool.holders, rule=pool.rule, taken=there.taken).held


@given(
    st.sampled_from(["priority", "priority-minimum", "deterministic"]),
    st.integers(1, 100_000),
    st.lists(st.integers(1, 1000), min_size=2, max_size=8),
    st.floats(0, 1),
)
def test_of_equal_holders_a_higher_priority_never_gives_more(
    rule: Rule, size: int, priorities: list[int], part: float
) -> None:
    pool = Pool(holders=tuple(Holder(size=size, priority=one / 1000) for one in priorities), rule=rule)
    given_up = reclaim_shares(pool.holders, int(part * pool.most), rule)
    for (low, more), (high, less) in zip(
        sorted(zip(priorities, given_up, strict=True)), sorted(zip(priorities, given_up, strict=True))[1:], strict=False
    ):
        assert low == high or less <= more


@given(pools(), st.integers(1, 1000))
def test_more_taken_in_all_is_never_more_left_to_anybody_but_rounding(pool: Pool, more: int) -> None:
    further = pool.reclaim(min(more, pool.most - pool.taken))
    assert all(after <= before + 1 for before, after in zip(pool.held, further.held, strict=True))


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=10), st.floats(0, 1))
def test_proportional_takes_equal_parts(sizes: list[int], part: float) -> None:
    amount = int(part * sum(sizes))
    given_up = reclaim_shares([Holder(size=size) for size in sizes], amount, "proportional")
    assert all(abs(one - amount * size / sum(sizes)) < 1 for one, size in zip(given_up, sizes, strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_takes_a_minimum(rule: Rule) -> None:
    pair = [Holder(size=10, least=8, priority=0.1), Holder(size=10, priority=0.1)]
    with pytest.raises(InputError, match="14 cannot be reclaimed"):
        reclaim_shares(pair, 14, rule)
    assert reclaim_shares(pair, sum(rooms(pair, rule)), rule)[0] == 2


def test_the_paper_by_hand() -> None:
    sizes = [Holder(size=10_000), Holder(size=20_000), Holder(size=30_000)]
    assert reclaim_shares(sizes, 15_000, "proportional") == (2500, 5000, 7500)


@pytest.mark.parametrize(("amount", "first", "second"), [(30, 30, 0), (50, 50, 0), (90, 66, 24)])
def test_priority_by_hand(amount: int, first: int, second: int) -> None:
    """M = 100, 100 and π = 0.2, 0.6: a = (200 - R) / 80; from R = 66.7 on the second gives too."""
    pair = (Holder(size=100, priority=0.2), Holder(size=100, priority=0.6))
    got = reclaim_shares(pair, amount, "priority")
    if amount <= 66:
        assert got == (first, second)
    else:
        a = (200 - amount) / 80
        assert got == pytest.approx((100 * (1 - 0.2 * a), 100 * (1 - 0.6 * a)), abs=1)


def test_deterministic_switches_the_lowest_priority_first_and_one_at_most_lies_between() -> None:
    three = tuple(Holder(size=100, priority=priority) for priority in (0.6, 0.2, 0.4))
    assert reclaim_shares(three, 100, "deterministic") == (0, 80, 20)
    assert Pool(holders=three, rule="deterministic", taken=150).held == (90, 20, 40)


def test_what_cannot_be_taken_is_refused() -> None:
    pool = Pool(holders=(Holder(size=100, least=60),), rule="minimum")
    with pytest.raises(InputError, match="40 is left above the minima"):
        pool.reclaim(41)
    with pytest.raises(InputError, match="between 0 and 40"):
        reclaim_shares(pool.holders, -1, "minimum")
    with pytest.raises(InputError, match="minimum must be between 0 and the size of 100, got 101"):
        Holder(size=100, least=101)
    with pytest.raises(InputError, match="priority"):
        Holder(size=100, priority=0.0)
    with pytest.raises(InputError, match="proportional"):
        reclaim_shares(pool.holders, 1, "proportionel")  # type: ignore[arg-type]
