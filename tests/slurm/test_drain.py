"""Many short jobs through a real Slurm: every one starts exactly once, whoever is killed meanwhile."""

import random
import signal
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.slurm.site import Site

JOBS, KILLS = 28, 7
SOAK_JOBS, SOAK_KILLS = 100, 20
# Nobody's lease ends meanwhile; a gang that would be slowed to half holds out for three seconds.
POLICY = "patient:lease=300,factor=0.01"


def submit_many(site: Site, count: int, seed: int) -> list[str]:
    """Gangs of 1 to 8 GPUs for a fraction of a second; a third of them would be slowed by a spread placement."""
    draw = random.Random(seed)
    jobs = []
    for number in range(count):
        speeds = (1.0, 0.8, 0.5) if number % 3 == 0 else ()
        jobs.append(site.gang(draw.choice([1, 1, 2, 4, 4, 8]), round(draw.uniform(0.2, 1.2), 2), speeds))
    return jobs


def check(site: Site, jobs: list[str]) -> None:
    site.wait(lambda: site.ended(*jobs), "all jobs")
    counts = {job: len(site.executions(job)) for job in jobs}
    assert set(counts.values()) == {1}, {job: count for job, count in counts.items() if count != 1}
    site.wait(lambda: not site.run("squeue", "-h").stdout.strip(), "an empty queue")
    states = {job.key: (job.state, job.restarts) for job in site.jobs() if job.key in jobs}
    assert set(states.values()) == {("COMPLETED", 0)}


@pytest.mark.soak  # the kills below are the same, and harder
def test_every_job_of_a_hundred_is_started_exactly_once(site: Site) -> None:
    jobs = submit_many(site, SOAK_JOBS, 1)
    with site.controller(POLICY):
        check(site, jobs)
    assert len(site.lines("start")) == SOAK_JOBS


def killed(site: Site, count: int, kills: int, seed: int) -> None:
    """A quarter of the jobs come after the last kill, so that the controller that is left has work on any machine."""
    jobs = submit_many(site, count * 3 // 4, seed)
    file = site.folder / "kills"
    command = [sys.executable, "-m", "tests.slurm.killing", str(kills), str(seed), str(file)]
    arguments = site.schedule(POLICY)[3:]
    process = subprocess.Popen([*command, *arguments], cwd=ROOT, env=site.cluster.environment)
    try:
        site.wait(lambda: file.exists() and len(file.read_text().splitlines()) == kills, "the kills")
        jobs += submit_many(site, count // 4, seed + 1000)
        check(site, jobs)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(timeout=250) == 0
        finally:
            process.kill()
    times = [float(line) for line in file.read_text().splitlines()]
    starts = sorted(site.executions(job)[0].start_s for job in jobs)
    assert sum(start < times[-1] for start in starts) >= 3, "kills met a controller at work"
    assert starts[-1] > times[-1], "the last controller started jobs, too"


def test_kills_lose_nothing_and_start_nothing_twice(site: Site) -> None:
    killed(site, JOBS, KILLS, 2)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 8))
def test_more_kills(site: Site, seed: int) -> None:
    killed(site, SOAK_JOBS, SOAK_KILLS, seed)
