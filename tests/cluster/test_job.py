"""Jobs: arrivals, load and what cannot be simulated."""

import math

import pytest

from stallwise.cluster.job import Job, check_jobs, load, with_arrivals
from stallwise.errors import InputError


def job(name: str = "a", arrival_s: float = 0.0, gpus: int = 1, work_s: float = 10.0, line: int | None = None) -> Job:
    return Job(id=name, arrival_s=arrival_s, gpus=gpus, work_s=work_s, line=line)


def test_load_is_work_over_what_the_cluster_can_do() -> None:
    found = load([job("a", 0, 4, 100), job("b", 50, 2, 100)], 8)
    assert found.gpu_s == 600
    assert found.demand == 600 / (8 * 50)
    assert found.largest_gang == 4
    assert load([job()], 8).demand == math.inf


def test_batch_and_poisson_arrivals() -> None:
    jobs = [job(str(i), 10.0 * i) for i in range(400)]
    assert {j.arrival_s for j in with_arrivals(jobs, "batch")} == {0.0}
    poisson = with_arrivals(jobs, "poisson", jobs_per_s=0.1, seed=1)
    assert poisson == with_arrivals(jobs, "poisson", jobs_per_s=0.1, seed=1)
    assert poisson != with_arrivals(jobs, "poisson", jobs_per_s=0.1, seed=2)
    assert [j.id for j in poisson] == [j.id for j in jobs]
    # 400 gaps of mean 10 s: four standard errors are 20 %.
    assert 3200 < poisson[-1].arrival_s < 4800
    with pytest.raises(InputError, match="above 0"):
        with_arrivals(jobs, "poisson", jobs_per_s=0.0)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([job(gpus=9, line=3)], r"job 'a' \(line 3\) asks for 9 GPUs, the cluster has 8"),
        ([job(arrival_s=-1)], "arrives at -1"),
        ([job(work_s=0)], "has 0 s of work"),
        ([job(work_s=math.nan)], "has nan s of work"),
        ([job(gpus=0)], "asks for 0 GPUs"),
        ([job(), job()], "2 jobs are called 'a'"),
        ([], "no jobs"),
    ],
)
def test_what_cannot_be_simulated_is_said(bad: list[Job], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_jobs(bad, 8)
