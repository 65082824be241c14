"""The policies outside the simulator make the simulator's decisions."""

import heapq

import numpy as np
import pytest

from stallwise.cluster.job import Job
from stallwise.cluster.policies import policy_named
from stallwise.cluster.scheduler import Scheduler
from stallwise.cluster.simulator import simulate
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError

CLUSTER = Cluster.counts(gpus=4, machines=2, racks=2)


def jobs(count: int, seed: int) -> list[Job]:
    rng = np.random.default_rng(seed)
    return [
        Job(
            id=str(i),
            arrival_s=float(rng.integers(0, 20_000)),
            gpus=int(rng.choice([1, 2, 4, 8])),
            work_s=float(rng.integers(50, 9000)),
        )
        for i in range(count)
    ]


def driven(trace: list[Job], name: str) -> dict[str, float]:
    """When each job ends if a cluster that takes no time for anything carries out what the scheduler says."""
    scheduler = Scheduler(CLUSTER, policy_named(name))
    left = {job.id: job.work_s for job in trace}
    began: dict[str, float] = {}
    ends: dict[str, float] = {}
    todo = [(job.arrival_s, index) for index, job in enumerate(trace)]
    heapq.heapify(todo)
    while len(ends) < len(trace):
        finishing = {name: began[name] + left[name] for name in began}
        now = min([*finishing.values(), *(at for at, _ in todo[:1]), scheduler.next_s()])
        for job_id in [name for name, at in finishing.items() if at <= now]:
            scheduler.finish(job_id, now)
            ends[job_id] = now
            del began[job_id]
        while todo and todo[0][0] <= now:
            scheduler.submit(trace[heapq.heappop(todo)[1]], now)
        for action in scheduler.decide(now):
            if action.what == "stop":
                left[action.job] -= now - began.pop(action.job)
            elif action.what == "start":
                assert len(action.gpus) == trace[int(action.job)].gpus
                began[action.job] = now
        held = [gpu for job_id in began for gpu in scheduler.gpus_of(job_id)]
        assert len(held) == len(set(held)) == scheduler.busy_gpus
    return ends


@pytest.mark.parametrize("name", ["fifo", "fifo-skip", "srsf", "las", "patient", "dally"])
def test_the_same_decisions_as_in_the_simulator(name: str) -> None:
    trace = sorted(jobs(300, 5), key=lambda job: job.arrival_s)
    trace = [Job(id=str(i), arrival_s=j.arrival_s, gpus=j.gpus, work_s=j.work_s) for i, j in enumerate(trace)]
    outcome = simulate(trace, CLUSTER, policy_named(name))
    ends = driven(trace, name)
    assert [ends[job.id] for job in trace] == pytest.approx(outcome.finish_s.tolist(), abs=1e-6)


def test_lost_jobs_queue_again_and_broken_gpus_are_left_alone() -> None:
    scheduler = Scheduler(CLUSTER, policy_named("fifo"))
    scheduler.submit(Job(id="a", arrival_s=0, gpus=4, work_s=100), 0.0)
    (start,) = scheduler.decide(0.0)
    scheduler.lost("a", 5.0)
    scheduler.set_down(start.gpus, down=True)
    (again,) = scheduler.decide(5.0)
    assert not set(again.gpus) & set(start.gpus)
    scheduler.set_down(start.gpus, down=False)
    scheduler.submit(Job(id="b", arrival_s=0, gpus=12, work_s=1), 6.0)
    (other,) = scheduler.decide(6.0)
    assert set(other.gpus) >= set(start.gpus)


def test_what_cannot_be_submitted() -> None:
    scheduler = Scheduler(CLUSTER, policy_named("fifo"))
    scheduler.submit(Job(id="a", arrival_s=0, gpus=1, work_s=1), 0.0)
    with pytest.raises(InputError, match="was submitted before"):
        scheduler.submit(Job(id="a", arrival_s=0, gpus=1, work_s=1), 0.0)
    with pytest.raises(InputError, match="asks for 17 GPUs"):
        scheduler.submit(Job(id="b", arrival_s=0, gpus=17, work_s=1), 0.0)
    with pytest.raises(InputError, match="No job 'c'"):
        scheduler.finish("c", 0.0)
