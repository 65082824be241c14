"""No GPU twice, no job lost, work conserved, finished = submitted: any trace, any policy, every event."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.cluster.job import Job
from stallwise.cluster.policies.catalog import POLICIES, policy_named
from stallwise.cluster.simulator import RestartCosts, SimulationView, simulate
from stallwise.cluster.speed.base import Penalty
from stallwise.cluster.topology import Cluster
from tests.cluster.laws import Watcher, check_outcome

CLUSTERS = (
    Cluster.counts(gpus=4),
    Cluster.counts(gpus=4, machines=3, racks=2),
    Cluster.counts(gpus=4, slots=2, machines=2, racks=2, blocks=2),
    Cluster.tree(("machine", "rack"), [("a", "x")] * 3 + [("b", "x")] * 1 + [("c", "y")] * 5),
)
times = st.one_of(st.integers(0, 50), st.floats(0, 5000, allow_nan=False))


@st.composite
def traces(draw: st.DrawFn) -> tuple[Cluster, list[Job]]:
    cluster = draw(st.sampled_from(CLUSTERS))
    rows = draw(
        st.lists(
            st.tuples(
                times,
                st.integers(1, cluster.gpus),
                st.one_of(st.integers(1, 9000), st.floats(0.001, 20_000)),
                st.floats(0, 1),
            ),
            min_size=1,
            max_size=14,
        )
    )
    return cluster, [
        Job(id=str(i), arrival_s=float(at), gpus=gpus, work_s=float(work), iteration_s=0.01, gpu_utilisation=part)
        for i, (at, gpus, work, part) in enumerate(rows)
    ]


@pytest.mark.parametrize("name", [*POLICIES, "2d-las:promote=2", "fifo-skip:admit=1", "las:age=600"])
@settings(max_examples=12)
@given(traces(), st.booleans(), st.booleans())
def test_laws_hold_at_every_event(name: str, trace: tuple[Cluster, list[Job]], costly: bool, contention: bool) -> None:
    cluster, jobs = trace
    watcher = Watcher()
    outcome = simulate(
        jobs,
        cluster,
        policy_named(name),
        speed=Penalty((1.0, 0.8, 0.4, 0.1)),
        costs=RestartCosts(checkpoint_s_per_gpu=1.0, restart_s=20.0) if costly else None,
        contention=contention,
        watch=watcher,
    )
    check_outcome(outcome, watcher)


@pytest.mark.parametrize("name", ["gandiva", "dally", "patient", "2d-las"])
def test_seeds_reproduce_bit_for_bit(name: str) -> None:
    rng = np.random.default_rng(7)
    jobs = [
        Job(
            id=str(i),
            arrival_s=float(rng.uniform(0, 9e4)),
            gpus=int(rng.choice([1, 2, 4, 8])),
            work_s=float(rng.uniform(10, 3e4)),
        )
        for i in range(120)
    ]
    cluster, speed = Cluster.counts(gpus=4, machines=2, racks=2), Penalty((1.0, 0.5, 0.1))
    once, again = (simulate(jobs, cluster, policy_named(name), speed=speed, seed=3, contention=True) for _ in range(2))
    for field in ("first_start_s", "finish_s", "run_s", "preemptions", "widest"):
        assert (getattr(once, field) == getattr(again, field)).all()
    assert (once.series.time_s == again.series.time_s).all()


def test_a_resized_job_is_not_demoted_beyond_the_last_queue() -> None:
    """It has planned its demotion more than once; beyond the last queue there is no limit to compare with."""
    policy = policy_named("2d-las:deflate=0.5")
    jobs = [Job(id=str(i), arrival_s=60.0 * i, gpus=1 << i % 4, work_s=600.0 + i * i * 37 % 30_000) for i in range(60)]
    deepest = 0

    def watch(view: SimulationView) -> None:
        nonlocal deepest
        deepest = max(deepest, int(view.rows["queue"].max()))

    simulate(jobs, Cluster.counts(gpus=8, machines=2), policy, costs=RestartCosts(restart_s=60.0), watch=watch)
    assert deepest == len(policy.order.limits_gpu_s)
