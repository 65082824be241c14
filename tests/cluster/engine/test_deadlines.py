"""Deadlines: minimum satisfactory shares, admission and marginal returns, by hand."""

import math
from pathlib import Path

import numpy as np
import pytest

from stallwise.cluster._outcome import Outcome
from stallwise.cluster.engine._deadlines import hand_out, plan
from stallwise.cluster.job import Job
from stallwise.cluster.policies.catalog import GROUPS, policy_named
from stallwise.cluster.simulator import RestartCosts, simulate
from stallwise.cluster.speed._tables import Scaling
from stallwise.cluster.topology import Cluster
from stallwise.cluster.traces import read_trace
from stallwise.errors import InputError

LINEAR = Scaling.of(("net", 8, gpus, float(gpus)) for gpus in (1, 2, 4))
"""Twice the GPUs, twice the speed."""
CONCAVE = Scaling.of(("net", 8, gpus, rate) for gpus, rate in ((1, 1.0), (2, 1.5), (4, 2.0), (8, 1.9)))
FOUR = Cluster.counts(gpus=4, machines=1)


def job(job_id: str, work_s: float, deadline_s: float | None, arrival_s: float = 0.0, gpus: int = 1) -> Job:
    return Job(
        id=job_id, arrival_s=arrival_s, gpus=gpus, work_s=work_s, model="net", batch_size=8, deadline_s=deadline_s
    )


def run(jobs: list[Job], speed: Scaling = LINEAR, policy: str = "elasticflow:round=10", **costs: float) -> Outcome:
    return simulate(jobs, FOUR, policy_named(policy), speed=speed, costs=RestartCosts(**costs))


def planned(left: list[float], room: list[float], gpus: int = 4) -> tuple[list[int], list[bool], float]:
    count = len(left)
    counts, speeds = np.tile([1, 2, 4], (count, 1)), np.tile([1.0, 2.0, 4.0], (count, 1))
    share, met = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.bool_)
    edge, free = np.zeros(count + 2), np.zeros(count + 2, dtype=np.int64)
    order = np.arange(count)
    change = plan(order, np.array(left), np.array(room), counts, speeds, gpus, 10.0, edge, free, share, met)
    return share.tolist(), met.tolist(), change


def test_a_share_is_the_fewest_gpus_that_meet_the_deadline() -> None:
    assert planned([100.0], [100.0]) == ([1], [True], math.inf)
    assert planned([100.0], [99.0]) == ([2], [True], math.inf)
    assert planned([100.0], [26.0]) == ([4], [True], math.inf)
    assert planned([100.0], [24.0]) == ([4], [False], math.inf)


def test_later_deadlines_wait_for_what_earlier_ones_leave() -> None:
    # The first takes all four GPUs for 25 s, planned to the end of the round at 30 s; the second then needs two.
    assert planned([100.0, 60.0], [26.0, 65.0]) == ([4, 0], [True, True], 30.0)
    # 30 s of waiting and four GPUs for 15 s are the least it can do.
    assert planned([100.0, 60.0], [26.0, 44.0])[1] == [True, False]


def test_spare_gpus_go_where_they_save_most() -> None:
    counts = np.array([[1, 2, 4], [1, 2, 4]])
    # A second GPU saves the first job 0.9 GPU-seconds per second, the second 0.5; from two to four 0.6.
    speeds = np.array([[1.0, 1.9, 3.04], [1.0, 1.5, 2.0]])
    share = np.array([1, 1])
    assert hand_out(np.arange(2), counts, speeds, 1, share) == 0
    assert share.tolist() == [2, 1]
    # Two steps of two do not fit into one GPU, a step of one does.
    assert hand_out(np.arange(2), counts, speeds, 1, share) == 0
    assert share.tolist() == [2, 2]
    # Who has none comes first, and nobody beyond his largest number.
    share = np.array([4, 0])
    assert hand_out(np.arange(2), counts, speeds, 9, share) == 5
    assert share.tolist() == [4, 4]


def test_a_job_alone_has_all_gpus_that_make_it_faster() -> None:
    outcome = run([job("a", 120.0, 200.0)], CONCAVE)
    assert outcome.finish_s.tolist() == [60.0]  # four GPUs are twice as fast as one; eight are not there
    wide = simulate(
        [job("a", 120.0, 200.0)], Cluster.counts(gpus=8, machines=1), policy_named("elasticflow"), speed=CONCAVE
    )
    assert wide.finish_s.tolist() == [60.0]  # and would be slower
    assert wide.metrics.deadlines_met == wide.metrics.deadlines == 1


def test_a_job_that_would_be_late_or_make_another_late_is_not_admitted() -> None:
    # The first needs four GPUs for 75 s, planned to 80 s; 200 s more of work do not fit before 100 s, 70 s do.
    late = run([job("a", 300.0, 100.0), job("b", 200.0, 100.0), job("c", 70.0, 100.0)])
    met = (late.jct_s <= late.deadline_s).tolist()
    assert met == [True, False, True]
    assert late.metrics.deadlines_met == 2
    assert late.metrics.deadlines == 3
    # The one that was turned away ran on what was left, and gave way.
    assert late.finish_s[1] > 100.0


def test_jobs_without_a_deadline_get_a_gpu_before_others_grow() -> None:
    outcome = run([job("slow", 100.0, 1000.0), job("free", 30.0, None)])
    # One GPU each, then the third and the fourth: both two (a step from two to four does not fit).
    assert outcome.finish_s[1] == pytest.approx(15.0)
    assert outcome.metrics.deadlines == outcome.metrics.deadlines_met == 1


def test_a_change_of_gpus_costs_the_restart_time() -> None:
    outcome = run([job("a", 80.0, 500.0), job("b", 40.0, 300.0, arrival_s=10.0)], first_start_s=1.0, restart_s=5.0)
    # a: 1 s of start, 9 s on four GPUs (36 done), then two GPUs: 5 s of restart.
    assert outcome.overhead_s[0] >= 6.0
    assert outcome.migrations[0] >= 1


def test_earliest_deadline_first_admits_everybody() -> None:
    outcome = run([job("a", 400.0, 50.0), job("b", 40.0, 60.0)], policy="edf:round=10")
    # The first cannot be done in 50 s, and takes all GPUs until it is.
    assert outcome.finish_s.tolist() == pytest.approx([100.0, 110.0])
    assert outcome.metrics.deadlines_met == 0
    assert run([job("a", 400.0, 50.0), job("b", 40.0, 60.0)]).metrics.deadlines_met == 1


@pytest.mark.parametrize("seed", range(4))
def test_who_is_admitted_is_in_time_where_restarts_cost_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(40.0, 60))
    jobs = [
        job(str(number), float(work), float(work * slack), float(at))
        for number, (work, slack, at) in enumerate(
            zip(rng.exponential(200.0, 60) + 30, rng.uniform(0.4, 3.0, 60), arrivals, strict=True)
        )
    ]
    outcome = run(jobs, CONCAVE, "elasticflow:round=1")
    assert (outcome.finish_s > outcome.arrival_s).all()
    assert outcome.held_gpu_s is not None
    assert outcome.series.busy_gpus.max() <= 4
    by_fifo = simulate(jobs, FOUR, policy_named("fifo"), speed=CONCAVE)
    assert outcome.metrics.deadlines_met >= by_fifo.metrics.deadlines_met
    assert run(jobs, CONCAVE, "elasticflow:round=1").finish_s.tolist() == outcome.finish_s.tolist()


def test_it_says_what_it_lacks() -> None:
    assert GROUPS["deadlines"] == ("elasticflow", "edf")
    with pytest.raises(InputError, match="measured speed on every number"):
        simulate([job("a", 1.0, 2.0)], FOUR, policy_named("elasticflow"))


HEAD = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"


def test_speeds_come_from_the_traces_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(HEAD + "x,100,200,bert,300,64,1,100\ny,100,10,bert,90,64,1,10\n")
    (tmp_path / "b.csv").write_text(HEAD + "z,0,350,bert,500,64,2,100\n")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    trace = read_trace(tmp_path / "a.csv")
    assert [problem.kind for problem in trace.problems] == ["a deadline before its submission"]
    assert trace.jobs[0].deadline_s == 200.0
    assert isinstance(trace.speed, Scaling)
    assert trace.speed.by_gpus(trace.jobs[0]) == [(1, 1.0), (2, 1.75)]


def test_plain_traces_may_have_deadlines(tmp_path: Path) -> None:
    (tmp_path / "plain.csv").write_text("job_id,submit_s,gpus,duration_s,deadline_s\na,0,1,60,90\nb,0,1,60,\n")
    jobs = read_trace(tmp_path / "plain.csv").jobs
    assert [one.deadline_s for one in jobs] == [90.0, None]
    metrics = simulate(jobs, Cluster.counts(gpus=1, machines=1), policy_named("fifo")).metrics
    assert (metrics.deadlines, metrics.deadlines_met) == (1, 1)
