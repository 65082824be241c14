"""Jobs that give GPUs instead of being preempted: the simulator's laws hold, nobody is stopped or below its least."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.cluster.engine.state import RUNNING
from stallwise.cluster.job import Job
from stallwise.cluster.live import Scheduler
from stallwise.cluster.policies.base import Deflation
from stallwise.cluster.policies.catalog import POLICIES, policy_named
from stallwise.cluster.simulator import RestartCosts, SimulationView, simulate
from stallwise.cluster.speed.base import Penalty
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError
from stallwise.model.deflation import speed_kept
from tests.cluster.laws import Watcher, check_outcome
from tests.cluster.test_simulator import traces

PREEMPTING = [name for name in POLICIES if policy_named(name).preemption.kind != "never"]


@dataclass
class Shrunk(Watcher):
    """The laws, and those of gangs that shrink."""

    deflation: Deflation = field(default_factory=Deflation)
    held_gpu_s: float = 0.0
    busy: int = 0

    def __call__(self, view: SimulationView) -> None:
        self.held_gpu_s += self.busy * (view.time_s - self.time_s)
        super().__call__(view)
        self.busy = int((view.owner >= 0).sum())
        for job in np.flatnonzero(view.rows["state"] == RUNNING):
            row = view.rows[job]
            assert row["least"] <= row["gang"] <= row["full"]
            assert row["least"] == self.deflation.least(int(row["full"]))
            slack = self.deflation.slack_of(view.jobs[job].gpu_utilisation)
            packed = 0.9 if row["host"] >= 0 or row["guest"] >= 0 else 1.0
            kept = speed_kept(slack, row["gang"] / row["full"])
            assert row["rate"] == pytest.approx(row["base"] * packed * kept)


@pytest.mark.parametrize("name", [*PREEMPTING, "2d-las:promote=2", "las:age=600"])
@settings(max_examples=8)
@given(traces(), st.booleans(), st.booleans(), st.sampled_from([0.25, 0.5, 0.9]))
def test_laws_hold_at_every_event(
    name: str, trace: tuple[Cluster, list[Job]], costly: bool, contention: bool, to: float
) -> None:
    cluster, jobs = trace
    deflation = Deflation(to=to, slack=math.nan if costly else 0.3, resize_s=5.0 if costly else 0.0)
    watcher = Shrunk(deflation=deflation)
    outcome = simulate(
        jobs,
        cluster,
        replace(policy_named(name), deflation=deflation),
        speed=Penalty((1.0, 0.8, 0.4, 0.1)),
        costs=RestartCosts(checkpoint_s_per_gpu=1.0, restart_s=20.0) if costly else None,
        contention=contention,
        watch=watcher,
    )
    check_outcome(outcome, watcher)
    assert outcome.preemptions.sum() == 0
    assert outcome.held_gpu_s is not None
    if policy_named(name).preemption.pack == 0:  # packed jobs hold the same GPUs twice
        assert outcome.held_gpu_s.sum() == pytest.approx(watcher.held_gpu_s)


EIGHT = Cluster.counts(gpus=8)
TWO = [Job(id="long", arrival_s=0, gpus=8, work_s=1000), Job(id="short", arrival_s=100, gpus=4, work_s=100)]
"""A long job of 8 GPUs, and a short one of 4 that comes while it runs."""


def test_a_running_job_shrinks_for_a_shorter_one_and_grows_back() -> None:
    """Long: 100 s at 8, 100 s at 4 and half its speed, then 850 s at 8."""
    outcome = simulate(TWO, EIGHT, policy_named("srtf:deflate=0.5"))
    assert outcome.finish_s.tolist() == pytest.approx([1050, 200])
    assert outcome.deflations is not None
    assert outcome.deflations.tolist() == [1, 0]
    assert outcome.comm_s.tolist() == pytest.approx([0, 0])
    assert outcome.metrics.occupation == pytest.approx(1.0)


def test_slack_is_given_for_nothing() -> None:
    outcome = simulate(TWO, EIGHT, policy_named("srtf:deflate=0.5,slack=0.5"))
    assert outcome.finish_s.tolist() == pytest.approx([1000, 200])


def test_a_change_of_gpus_costs_what_is_said() -> None:
    outcome = simulate(TWO, EIGHT, policy_named("srtf:deflate=0.5,resize=10"))
    assert outcome.finish_s.tolist() == pytest.approx([1065, 200])  # 10 s at half speed, 10 s at full


def test_a_job_starts_smaller_where_no_more_can_be_had() -> None:
    """The second needs all 8, may work with 4; the first gives 4. Both at half speed from 100 s on."""
    jobs = [Job(id="a", arrival_s=0, gpus=8, work_s=1000), Job(id="b", arrival_s=100, gpus=8, work_s=200)]
    outcome = simulate(jobs, EIGHT, policy_named("srtf:deflate=0.5"))
    assert outcome.first_start_s.tolist() == [0, 100]
    assert outcome.finish_s.tolist() == pytest.approx([1200, 500])


def test_a_policy_that_never_preempts_is_not_changed() -> None:
    plain = simulate(TWO, EIGHT, policy_named("fifo"))
    told = simulate(TWO, EIGHT, policy_named("fifo:deflate=0.5"))
    assert (plain.finish_s == told.finish_s).all()
    assert told.deflations is None


@pytest.mark.parametrize("bad", [{"to": 0.0}, {"to": 1.1}, {"slack": 1.0}, {"slack": -0.1}, {"resize_s": -1.0}])
def test_impossible_deflations_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InputError):
        Deflation(**bad)


def test_a_real_cluster_cannot_shrink_jobs() -> None:
    with pytest.raises(InputError, match="only the simulator"):
        Scheduler(EIGHT, policy_named("srtf:deflate=0.5"))
