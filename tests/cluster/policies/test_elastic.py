"""Jobs that grow and shrink: goodput, numbers of GPUs, places."""

import math
from pathlib import Path

import numpy as np
import pytest

from stallwise.cluster.job import Job
from stallwise.cluster.policies._elastic import Growing, MachinePool, parts_of, place_all, sizes
from stallwise.cluster.policies._goodput import AppGoodput, app_goodput
from stallwise.cluster.policies._optimus import gains_first, spread
from stallwise.cluster.policies.catalog import GROUPS, policy_named
from stallwise.cluster.simulator import RestartCosts, simulate
from stallwise.cluster.speed._tables import Apps
from stallwise.cluster.sweep.cases import NamedCluster, Sweep, simulate_cases
from stallwise.cluster.sweep.local import Portions, run_in_processes
from stallwise.cluster.sweep.results import inputs_digest
from stallwise.cluster.topology import Cluster, parse_cluster
from stallwise.cluster.traces import read_trace
from stallwise.errors import InputError, UnknownNameError
from tests.cluster.apps import app
from tests.cluster.sweep.sweeps import contents

FOUR = Cluster.counts(gpus=4, machines=4)


def growing(job_id: str = "0", batch: int | None = None, **changes) -> Growing:
    row = Job(id=job_id, arrival_s=0.0, gpus=1, work_s=1.0, model="toy", batch_size=8)
    return Growing(row, (AppGoodput(app()),), batch, **({"most_gpus": 16, "tried_gpus": 4} | changes))


def test_goodput_by_hand() -> None:
    bench = AppGoodput(app())
    # Variance only: twice the batch is worth twice the progress. 8 on one GPU: 0.101 s for a progress of 1.
    assert bench.goodput((1,), 0, 8) == pytest.approx(1 / 0.101)
    # 64 on four GPUs: 16 each, 0.201 s for 8.
    assert bench.goodput((4,), 0, 64) == pytest.approx(8 / 0.201)
    assert bench.goodput((4, 4), 0, 64) == pytest.approx(8 / (0.1 + 0.02 + 0.001))
    # The best batch is the largest here, for fixed costs weigh less on it.
    assert bench.goodput((4,), 0) == pytest.approx(8 / 0.201, rel=0.01)
    assert bench.until(2) == 300


def test_a_job_crosses_epochs_and_ends_at_its_second() -> None:
    job = growing(batch=8)
    job.place = ((0, 1),)
    job.loading_s = 5.0
    assert job.step(0, 20.0) is None
    assert (job.epoch, job.progress) == (1, pytest.approx(15 / 0.101))
    assert job.step(0, 20.0) == pytest.approx(300 * 0.101 + 5 - 20)


def test_optimus_gives_each_gpu_to_whom_it_saves_most() -> None:
    # A GPU more halves a step of 0.101 s and then less: with twice the updates left, the first job gets more.
    long, short = growing("0", batch=64), growing("1", batch=64, epoch=2)
    assert gains_first({0: long, 1: short}, 1, 4) == {0: 1}
    counts = gains_first({0: long, 1: short}, 8, 4)
    assert counts[0] > counts[1] >= 1
    assert sum(counts.values()) == 8
    assert gains_first({0: growing(batch=64, most_gpus=2)}, 8, 4) == {0: 2}


def test_who_keeps_its_number_keeps_its_gpus() -> None:
    fleet = MachinePool(np.zeros(4, dtype=np.int64), np.full(4, 4))
    jobs = {0: growing("0"), 1: growing("1"), 2: growing("2")}
    jobs[0].place = ((1, 2),)
    places = spread({0: 2, 1: 6, 2: 1}, jobs, fleet)
    assert places[0] == ((1, 2),)
    assert sum(parts_of(places[1])) == 6
    used = np.zeros(4, dtype=int)
    for place in places.values():
        for machine, count in place:
            used[machine] += count
    assert used.max() <= 4


@pytest.mark.parametrize("seed", range(10))
def test_configurations_always_fit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    fleet = MachinePool(np.zeros(4, dtype=np.int64), np.full(4, 4))
    jobs = {number: growing(str(number)) for number in range(16)}
    assert sizes(4, 16) == [1, 2, 4, 8, 12, 16]
    for _ in range(20):
        chosen, free = {}, 16
        for number in rng.permutation(16):
            size = int(rng.choice(sizes(4, 16)))
            if size <= free:
                chosen[int(number)] = (0, size)
                free -= size
        places = place_all(chosen, jobs, fleet)
        used = np.zeros(4, dtype=int)
        for number, place in places.items():
            assert sum(parts_of(place)) == chosen[number][1]
            assert len(place) == math.ceil(chosen[number][1] / 4)
            for machine, count in place:
                used[machine] += count
        assert used.max() <= 4
        for number, job in jobs.items():
            job.place = places.get(number, ())


@pytest.mark.parametrize("policy", GROUPS["elastic"])
def test_everybody_ends_and_no_gpu_is_given_twice(policy: str) -> None:
    speed = Apps({"toy": app(epochs=50)})
    jobs = [Job(id=str(i), arrival_s=97.0 * i, gpus=2, work_s=100.0, model="toy", batch_size=64) for i in range(40)]
    outcome = simulate(
        jobs, FOUR, policy_named(policy), speed=speed, costs=RestartCosts(restart_s=10, first_start_s=10)
    )
    assert (outcome.finish_s > outcome.first_start_s + 10).all()
    assert outcome.series.busy_gpus.max() <= 16
    assert outcome.held_gpu_s is not None
    area = (np.diff(outcome.series.time_s) * outcome.series.busy_gpus[:-1]).sum()
    # GPUs of a job that is done idle until the round of a minute is over.
    assert outcome.held_gpu_s.sum() - 1e-6 <= area <= outcome.held_gpu_s.sum() + len(jobs) * 16 * 60
    assert outcome.metrics.occupation <= 1
    assert outcome.metrics.comm_share == 0, "work is that of a gang nobody has here"
    again = simulate(jobs, FOUR, policy_named(policy), speed=speed, costs=RestartCosts(restart_s=10, first_start_s=10))
    assert again.finish_s.tolist() == outcome.finish_s.tolist()


@pytest.mark.parametrize("policy", GROUPS["elastic"])
def test_a_lone_job_grows(policy: str) -> None:
    speed = Apps({"toy": app(epochs=200)})
    job = Job(id="0", arrival_s=0.0, gpus=1, work_s=1000.0, model="toy", batch_size=64)
    outcome = simulate([job], FOUR, policy_named(policy), speed=speed)
    assert outcome.series.busy_gpus.max() >= 4


def elastic_sweep(policies: tuple[str, ...], speed: Apps) -> Sweep:
    jobs = tuple(Job(id=str(i), arrival_s=97.0 * i, gpus=2, work_s=99.0, model="toy", batch_size=64) for i in range(12))
    place = NamedCluster(name="four", cluster=FOUR, speed=speed)
    return Sweep(jobs=jobs, clusters=(place,), policies=policies, arrivals="poisson", seeds=(0, 1))


def test_what_ran_before_changes_nothing() -> None:
    """Optimus asks for three GPUs, which were not measured: its steps are interpolated."""
    runs = []
    for turn in (1, -1):
        sweep = elastic_sweep(GROUPS["elastic"], Apps({"toy": app(epochs=20)}))
        made = list(simulate_cases(sweep, list(enumerate(sweep.cases()))[::turn], lambda *_: None))
        runs.append(contents([one.result for one in sorted(made)]))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("policy", ["sia", "optimus"])
def test_processes_answer_alike(policy: str) -> None:
    sweep = elastic_sweep((policy,), Apps({"toy": app(epochs=20)}))
    here = [made.result for made in simulate_cases(sweep, list(enumerate(sweep.cases())), lambda *_: None)]
    left = Portions(list(enumerate(sweep.cases())), workers=1, target_s=0.5)
    assert contents([made.result for made in sorted(run_in_processes(sweep, left, lambda *_: None))]) == contents(here)


def test_tables_of_all_kinds_are_in_the_digest() -> None:
    speeds = [
        Apps({"toy": app()}),
        Apps({"toy": app()}, kinds={"a100": {"toy": app(compute_s=0.05)}}),
        Apps({"toy": app()}, kinds={"a100": {"toy": app(compute_s=0.06)}}),
    ]
    digests = [
        inputs_digest(sweep, sweep.clusters[0]) for sweep in (elastic_sweep(("sia",), speed) for speed in speeds)
    ]
    assert len(set(digests)) == 3
    again = elastic_sweep(("sia",), Apps({"toy": app()}))
    assert inputs_digest(again, again.clusters[0]) == digests[0]


@pytest.mark.parametrize("policy", ["fifo", "gavel", "sia"])
def test_jobs_run_as_fast_as_the_one_kind_there_is(policy: str) -> None:
    # 300 updates of 0.101 s, or on the other kind of 0.051 s.
    speed = Apps({"toy": app()}, kinds={"a100": {"toy": app(compute_s=0.05)}})
    job = speed.job("0", 0.0, "toy", 1, 8)
    assert job.work_s == pytest.approx(30.3)
    found = simulate([job], parse_cluster("kinds=a100:1x1"), policy_named(policy), speed=speed)
    assert found.finish_s[0] == pytest.approx(15.3, rel=0.02)  # sia's batch may be another
    with pytest.raises(UnknownNameError, match="measured placements"):
        simulate([job], parse_cluster("kinds=h100:1x1"), policy_named(policy), speed=speed)


def test_an_application_that_was_not_measured_there() -> None:
    speed = Apps({"toy": app()}, kinds={"a100": {"other": app()}})
    with pytest.raises(InputError, match="was not measured on"):
        simulate([speed.job("0", 0.0, "toy", 1, 8)], parse_cluster("kinds=a100:1x1"), policy_named("fifo"), speed=speed)


def test_sia_on_kinds_of_gpus(shared_data: Path) -> None:
    trace = read_trace(shared_data / "cluster_traces/sia/workloads_philly/workload-1.csv")
    cluster = parse_cluster("kinds=aws:6x4+rtx:3x8+dgx-ext:2x8")
    few = trace.jobs[:12]
    assert isinstance(trace.speed, Apps)
    # Tables are read with the trace, are part of what an answer depends on, and serve one simulation after the other.
    sweep = Sweep(jobs=few, clusters=(NamedCluster(name="", cluster=cluster, speed=trace.speed),), policies=("sia",))
    assert len(inputs_digest(sweep, sweep.clusters[0])) == 24
    known = [trace.speed.of_kind("rtx").apps["bert"] for _ in "ab"]
    assert app_goodput(known[0]) is app_goodput(known[1])
    mixed = simulate(few, cluster, policy_named("sia"), speed=trace.speed)
    alike = simulate(few, parse_cluster("kinds=aws:16x4"), policy_named("sia"), speed=trace.speed)
    assert mixed.jct_s.mean() < alike.jct_s.mean()  # A100s among them
    with pytest.raises(UnknownNameError, match="measured placements"):
        simulate(few, parse_cluster("kinds=h100:6x4"), policy_named("sia"), speed=trace.speed)
