"""The policies outside the simulator make the simulator's decisions: the same jobs, GPUs and times."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.cluster.engine.state import RUNNING
from stallwise.cluster.job import Job
from stallwise.cluster.live import Scheduler
from stallwise.cluster.policies.base import Policy
from stallwise.cluster.policies.catalog import POLICIES, policy_named
from stallwise.cluster.simulator import RestartCosts, SimulationView, simulate
from stallwise.cluster.speed.base import Penalty, Speed
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError

CLUSTER = Cluster.counts(gpus=4, machines=2, racks=2)
SPEED = Penalty((1.0, 0.8, 0.4, 0.1))
COSTS = RestartCosts(checkpoint_s_per_gpu=1.0, restart_s=20.0)

Seats = dict[str, tuple[int, ...]]
"""Running jobs and their GPUs."""


def simulated(
    jobs: list[Job], cluster: Cluster, policy: Policy, costs: RestartCosts, speed: Speed, *, contention: bool
) -> tuple[list[tuple[float, Seats]], dict[str, float]]:
    """Who ran where after every event, and when each job ended, in the simulator."""
    seen: list[tuple[float, Seats]] = []

    def watch(view: SimulationView) -> None:
        running = [index for index, row in enumerate(view.rows) if row["state"] == RUNNING]
        seen.append((view.time_s, {view.jobs[i].id: tuple(view.gpus_of(i).tolist()) for i in running}))

    outcome = simulate(jobs, cluster, policy, speed=speed, costs=costs, contention=contention, watch=watch)
    return seen, {job.id: end for job, end in zip(jobs, outcome.finish_s.tolist(), strict=True)}


def driven(jobs: Sequence[Job], scheduler: Scheduler, ends: dict[str, float]) -> list[tuple[float, Seats]]:
    """Who runs where after every moment, on a cluster that carries out what the scheduler says.

    It knows when jobs come and end, and nothing else: every other moment is one the scheduler asked for.
    """
    todo = sorted(jobs, key=lambda job: job.arrival_s)
    running: Seats = {}
    left, seen = len(todo), []
    while left:
        now = min([ends[job] for job in running] + [job.arrival_s for job in todo[:1]] + [scheduler.next_s()])
        assert now < math.inf
        for job_id in sorted(job for job in running if ends[job] <= now):
            scheduler.finish(job_id, now)
            del running[job_id]
            left -= 1
        while todo and todo[0].arrival_s <= now:
            scheduler.submit(todo.pop(0), now)
        for action in scheduler.decide(now):
            if action.what == "stop":
                del running[action.job]
            else:
                running[action.job] = action.gpus
        assert {job: scheduler.gpus_of(job) for job in running} == running
        seen.append((now, dict(running)))
    return seen


def changes(seen: list[tuple[float, Seats]]) -> list[tuple[float, Seats]]:
    """The last word of every moment, and only where something is other than before."""
    last = dict(seen)
    out: list[tuple[float, Seats]] = []
    for time, seats in last.items():
        if not out or out[-1][1] != seats:
            out.append((time, seats))
    return out


times = st.one_of(st.integers(0, 50), st.integers(0, 9000), st.floats(0, 5000, allow_nan=False))
works = st.one_of(st.integers(1, 9000), st.sampled_from([60, 1800, 3600, 7200]), st.floats(1.0, 20_000))
rows = st.lists(st.tuples(times, st.integers(1, CLUSTER.gpus), works, st.floats(0, 1)), min_size=1, max_size=16)
NAMES = [
    *POLICIES, "2d-las:promote=2", "fifo-skip:admit=1", "las:admit=1.5", "las:age=600", "srtf:force=1.2",
    "gandiva:lease=600",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(rows, st.booleans(), st.booleans())
def test_the_same_decisions_as_in_the_simulator(
    name: str, rows: list[tuple[float, int, float, float]], costly: bool, contention: bool
) -> None:
    jobs = [
        Job(id=str(i), arrival_s=float(at), gpus=gpus, work_s=float(work), iteration_s=0.01, gpu_utilisation=part)
        for i, (at, gpus, work, part) in enumerate(rows)
    ]
    costs, policy = (COSTS if costly else RestartCosts()), policy_named(name)
    expected, ends = simulated(jobs, CLUSTER, policy, costs, SPEED, contention=contention)
    scheduler = Scheduler(CLUSTER, policy, speed=SPEED, costs=costs, contention=contention)
    assert changes(driven(jobs, scheduler, ends)) == changes(expected)


def test_a_lease_of_a_job_that_outlives_its_guess_ends() -> None:
    """The guess of 3,600 s and the lease end at one moment; the job goes on, and gives its GPUs back a lease later."""
    scheduler = Scheduler(CLUSTER, policy_named("las"))
    scheduler.submit(Job(id="long", arrival_s=0, gpus=16, work_s=3600.0), 0.0)
    scheduler.decide(0.0)
    scheduler.submit(Job(id="next", arrival_s=0, gpus=16, work_s=10.0), 10.0)
    asked = []
    while not scheduler.gpus_of("next"):
        asked.append(scheduler.next_s())
        assert len(asked) < 5
        scheduler.decide(asked[-1])
    assert asked == [3600.0, 7200.0]


def test_more_jobs_than_there_is_room_for_at_first() -> None:
    scheduler = Scheduler(CLUSTER, policy_named("patient"), speed=SPEED)
    for number in range(600):
        scheduler.submit(Job(id=str(number), arrival_s=0.0, gpus=1 + number % 16, work_s=5.0), 0.0)
    started = scheduler.decide(0.0)
    assert scheduler.busy_gpus == sum(len(action.gpus) for action in started) == 16


def test_jobs_outside_come_in_when_there_is_room_and_can_be_taken_back() -> None:
    scheduler = Scheduler(CLUSTER, policy_named("fifo-skip:admit=1"))
    for number in range(3):
        scheduler.submit(Job(id=str(number), arrival_s=0.0, gpus=16, work_s=5.0), 0.0)
    assert [action.job for action in scheduler.decide(0.0)] == ["0"]
    assert (scheduler.waits_outside("1"), scheduler.waits_outside("2")) == (True, True)
    scheduler.finish("1", 1.0)
    scheduler.finish("0", 5.0)
    assert [action.job for action in scheduler.decide(5.0)] == ["2"]


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


def test_nobody_is_stopped_for_gpus_that_are_down() -> None:
    scheduler = Scheduler(CLUSTER, policy_named("srtf"))
    scheduler.set_down((0, 1, 2, 3), down=True)
    scheduler.submit(Job(id="a", arrival_s=0, gpus=12, work_s=100), 0.0)
    scheduler.decide(0.0)
    scheduler.submit(Job(id="b", arrival_s=0, gpus=16, work_s=1), 1.0)
    assert scheduler.decide(1.0) == []


def test_what_cannot_be_submitted() -> None:
    scheduler = Scheduler(CLUSTER, policy_named("fifo"))
    scheduler.submit(Job(id="a", arrival_s=0, gpus=1, work_s=1), 0.0)
    with pytest.raises(InputError, match="was submitted before"):
        scheduler.submit(Job(id="a", arrival_s=0, gpus=1, work_s=1), 0.0)
    with pytest.raises(InputError, match="asks for 17 GPUs"):
        scheduler.submit(Job(id="b", arrival_s=0, gpus=17, work_s=1), 0.0)
    with pytest.raises(InputError, match="No job 'c'"):
        scheduler.finish("c", 0.0)
