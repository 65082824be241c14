"""Every program against a case worked out by hand."""

import itertools
import math

import numpy as np
import pytest

from stallwise.cluster.policies._pollux import cheapest, restart_factor
from stallwise.cluster.policies._programs import GangDemand, finish_time, isolated, makespan, max_min, proportional
from stallwise.cluster.policies._sia import WAITING_COST, alike, choose
from stallwise.cluster.policies._themis import auction


def demand(gang: list[float], rate: list[list[float]], gpus: list[float]) -> GangDemand:
    return GangDemand(np.array(gang), np.array(rate), np.array(gpus))


def test_what_throughputs_are_held_against() -> None:
    mixed = demand([1, 2], [[2.0, 1.0], [1.0, 0.0]], [1.0, 3.0])
    # A quarter of the GPUs are of the first kind.
    assert proportional(mixed).tolist() == [0.25 * 2 + 0.75 * 1, 0.25]
    # Half of every kind for each; a job of one GPU would have 2 of them and has at most all the time.
    assert isolated(mixed).tolist() == [2.0 * 0.25 + 1.0 * 0.75, 0.25]


def test_max_min_on_one_kind() -> None:
    # Equal GPU-time would be 4/3 GPUs each, but a job of one GPU has at most one: shares 1, 1/2, 1/4 and a GPU over,
    # which goes to the first who can use more.
    shares = max_min(demand([1, 2, 4], [[1.0], [1.0], [1.0]], [4.0]))
    assert shares[:, 0] == pytest.approx([1.0, 1.0, 0.25], abs=1e-6)
    # Twice the cluster asked for: everybody gets half.
    assert max_min(demand([2, 2, 2, 2], [[1.0]] * 4, [4.0]))[:, 0] == pytest.approx([0.5] * 4)


def test_max_min_gives_each_what_it_is_relatively_best_at() -> None:
    shares = max_min(demand([1, 1], [[2.0, 1.0], [1.0, 1.0]], [1.0, 1.0]))
    assert shares == pytest.approx(np.eye(2), abs=1e-6)


def test_makespan_in_proportion_to_what_is_left() -> None:
    shares = makespan(demand([1, 1], [[1.0], [1.0]], [1.0]), np.array([100.0, 300.0]))
    assert shares[:, 0] == pytest.approx([0.25, 0.75], abs=1e-6)


def test_makespan_mixes_kinds() -> None:
    # p of the time on the first kind: 1 + 3p = 2 - p.
    shares = makespan(demand([1, 1], [[4.0, 1.0], [2.0, 1.0]], [1.0, 1.0]), np.array([7.0, 7.0]))
    assert shares == pytest.approx(np.array([[0.25, 0.75], [0.75, 0.25]]), abs=1e-6)


def test_finish_time_makes_up_for_waiting() -> None:
    # 1 / (4ρ - 1) + 1 / (2ρ) = 1, so 8ρ² - 8ρ + 1 = 0.
    ratio = (8 + math.sqrt(32)) / 16
    shares = finish_time(
        demand([1, 1], [[1.0], [1.0]], [1.0]),
        left=np.array([100.0, 100.0]),
        elapsed=np.array([100.0, 0.0]),
        alone=np.array([400.0, 200.0]),
    )
    assert shares[:, 0] == pytest.approx([1 / (4 * ratio - 1), 1 / (2 * ratio)], abs=1e-3)


def test_finish_time_mixes_kinds() -> None:
    # With p of the first kind for the first job the throughputs are 1 + 3p and 2 - p. At p = 1/2 the first, 2 s late,
    # ends after 2 + 10 / 2.5 = 6 s and the second after 6 / 1.5 = 4 s, as both would alone: ρ = 1 for both.
    shares = finish_time(
        demand([1, 1], [[4.0, 1.0], [2.0, 1.0]], [1.0, 1.0]),
        left=np.array([10.0, 6.0]),
        elapsed=np.array([2.0, 0.0]),
        alone=np.array([6.0, 4.0]),
    )
    assert shares == pytest.approx(np.full((2, 2), 0.5), abs=1e-3)


def test_a_gang_gets_no_time_on_a_kind_that_cannot_hold_it() -> None:
    shares = max_min(demand([4, 1], [[1.0, 5.0], [1.0, 1.0]], [4.0, 2.0]))
    assert shares[0, 1] == 0
    assert shares[0, 0] > 0


@pytest.mark.parametrize("seed", range(5))
def test_one_kind_needs_no_solver_but_agrees_with_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gang = rng.choice([1.0, 2.0, 4.0, 8.0], 12)
    rate = rng.uniform(0.5, 2.0, (12, 1))
    left = rng.uniform(10, 1000, 12)
    one = makespan(GangDemand(gang, rate, np.array([16.0])), left)
    # The same with a second kind on which nobody runs.
    two = makespan(GangDemand(gang, np.hstack([rate, np.zeros((12, 1))]), np.array([16.0, 1.0])), left)
    for shares in (one, two):
        assert (gang @ shares[:, 0]) <= 16 + 1e-6
        assert shares.max() <= 1 + 1e-9
    assert (one[:, 0] * rate[:, 0] / left).min() == pytest.approx((two[:, 0] * rate[:, 0] / left).min(), rel=1e-5)


def test_the_auction_maximises_the_product_not_the_first_bid() -> None:
    assert auction(np.array([4, 2, 2]), np.array([1.0, 0.6, 0.6]), 4) == [1, 2]
    assert auction(np.array([4, 2, 2]), np.array([1.3, 0.6, 0.6]), 4) == [0]
    assert auction(np.array([8]), np.array([1.0]), 4) == []


@pytest.mark.parametrize("seed", range(8))
def test_the_auction_finds_the_best_of_all_sets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gangs, gains = rng.choice([1, 2, 3, 4, 8], 9), rng.uniform(0, 1, 9)
    sets = itertools.chain.from_iterable(itertools.combinations(range(9), size) for size in range(10))
    best = max(gains[list(found)].sum() for found in sets if gangs[list(found)].sum() <= 10)
    won = auction(gangs, gains, 10)
    assert gangs[won].sum() <= 10
    assert gains[won].sum() == pytest.approx(best)


def test_configurations_by_hand() -> None:
    # Two kinds, two GPUs of each; both jobs prefer two of the first kind, the second job suffers less on the other.
    configs = [(0, 1), (0, 2), (1, 1), (1, 2)]
    costs = np.array([[1.0, 0.5, 1.0, 0.9], [1.0, 0.5, 0.8, 0.6]])
    assert choose(costs, configs, np.array([2.0, 2.0])) == [1, 3]
    # One GPU and two jobs: who costs least runs, for a waiting job costs the same whoever it is.
    only = np.array([[1.0, np.inf, np.inf, np.inf], [0.9, np.inf, np.inf, np.inf]])
    assert choose(only, configs, np.array([1.0, 0.0])) == [-1, 0]


@pytest.mark.parametrize("seed", range(4))
def test_searches_for_configurations_agree_with_trying_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = np.array([0, 1, 2, 4])
    costs = rng.uniform(0.1, 1.0, (5, 4))
    costs[:, 0] = WAITING_COST
    tried = [
        (sum(costs[row, at] for row, at in enumerate(found)), found)
        for found in itertools.product(range(4), repeat=5)
        if counts[list(found)].sum() <= 6
    ]
    best = min(tried)[0]
    picked = cheapest(costs, counts, 6)
    assert sum(costs[row, at] for row, at in enumerate(picked)) == pytest.approx(best)
    solved = choose(costs[:, 1:], [(0, 1), (0, 2), (0, 4)], np.array([6.0]))
    whole = sum(WAITING_COST if at < 0 else costs[row, at + 1] for row, at in enumerate(solved))
    assert whole == pytest.approx(best, rel=1e-3)
    quick = alike(costs[:, 1:], [(0, 1), (0, 2), (0, 4)], np.array([6.0]))
    assert sum(WAITING_COST if at < 0 else costs[row, at + 1] for row, at in enumerate(quick)) == pytest.approx(best)


def test_changes_count_less_the_more_were_made() -> None:
    assert restart_factor(60.0, 0, 30.0) == 60 / 90
    assert restart_factor(60.0, 1, 30.0) == 30 / 90
    assert restart_factor(60.0, 5, 30.0) == 0
