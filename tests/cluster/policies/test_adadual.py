"""Exchanges on one link."""

import pytest

from stallwise.cluster.job import Job
from stallwise.cluster.policies._adadual import LinkRule, Task, link_rates, starts
from stallwise.cluster.policies.catalog import policy_named
from stallwise.cluster.simulator import simulate
from stallwise.cluster.speed.base import Penalty
from stallwise.cluster.topology import Cluster


@pytest.mark.parametrize("penalty", [0.0, 0.2, 1.0])
def test_the_threshold_is_where_both_ways_end_alike(penalty: float) -> None:
    left, threshold = 10.0, 10.0 / (2 * (1 + penalty))
    for new, together in ((0.99 * threshold, True), (1.01 * threshold, False)):
        beside_s = (2 + penalty) * new + ((2 + penalty) * new + left - new)
        in_turn_s = left + (left + new)
        assert (beside_s < in_turn_s) is together
        assert starts("adadual", new, [left], penalty) is together
    assert not starts("adadual", 0.001, [left, left], penalty)
    assert starts("adadual", 1e9, [], penalty)
    assert starts("share", 1e9, [left, left], penalty)
    assert not starts("turns", 0.001, [left], penalty)


def test_two_alike_take_turns_without_loss() -> None:
    alike = [Task(1.0, 1.0), Task(1.0, 1.0)]
    # Each exchanges while the other computes; together, each exchange takes twice as long.
    assert link_rates(alike, "turns") == pytest.approx([0.5, 0.5])
    assert link_rates(alike, "adadual") == pytest.approx([0.5, 0.5])
    assert link_rates(alike, "share") == pytest.approx([1 / 3, 1 / 3], rel=0.02)


def test_a_long_exchange_does_not_hold_up_a_short_one() -> None:
    tasks = [Task(1.0, 0.3), Task(5.0, 5.0)]
    turns, adadual = link_rates(tasks, "turns")[0], link_rates(tasks, "adadual")[0]
    assert adadual > 1.3 * turns


@pytest.mark.parametrize(("policy", "ends_s"), [("srsf-n", 21600.0), ("srsf-1", 14400.0), ("ada-srsf", 14400.0)])
def test_jobs_that_cross_the_same_machine(policy: str, ends_s: float) -> None:
    # Gangs of 6 on machines of 4: both use the middle one, and compute as long as they exchange.
    jobs = [Job(id=name, arrival_s=0.0, gpus=6, work_s=7200.0, iteration_s=1.0) for name in "ab"]
    cluster = Cluster.counts(gpus=4, machines=3)
    outcome = simulate(jobs, cluster, policy_named(policy), speed=Penalty((1.0, 0.5)), contention=True)
    assert outcome.finish_s == pytest.approx([ends_s] * 2, rel=1e-3)
    apart = simulate(jobs, cluster, policy_named(policy), speed=Penalty((1.0, 0.5)), contention=False)
    assert apart.finish_s == pytest.approx([14400.0] * 2)


def test_rules_are_known_by_their_words() -> None:
    rules: tuple[LinkRule, ...] = ("share", "turns", "adadual")
    assert {policy_named(name).rounds.link for name in ("srsf-n", "srsf-1", "ada-srsf")} == set(rules)  # type: ignore[union-attr]
