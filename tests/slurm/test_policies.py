"""The policies of the simulator on a real Slurm: what waits, what spreads, who gives way."""

import time

from tests.slurm.site import Site

SENSITIVE = (1.0, 1.0, 0.5)


def fill_one_gpu_of_each_rack(site: Site, first_s: float, second_s: float) -> None:
    """Two jobs that are not the controller's, so that neither rack has 16 GPUs free."""
    jobs = [
        site.sbatch("--gpus=1", f"--nodelist={node}", seconds=seconds, hold=False)
        for node, seconds in (("n1", first_s), ("n5", second_s))
    ]
    site.wait(lambda: site.started(*jobs), "jobs of others")


def test_a_sensitive_gang_waits_for_its_rack_while_an_insensitive_one_spreads_at_once(site: Site) -> None:
    fill_one_gpu_of_each_rack(site, 60, 7)
    sensitive = site.gang(16, 1, SENSITIVE)
    insensitive = site.gang(16, 1)
    submitted = time.time()
    with site.controller("patient:lease=60,factor=10"):
        site.wait(lambda: site.ended(insensitive, sensitive), "both gangs")
    spread = site.executions(insensitive)[0]
    assert site.racks(insensitive) == {0, 1}, "it takes what is free"
    assert spread.start_s - submitted < 6, "at once: the controller's own start included"
    (run,) = site.executions(sensitive)
    assert site.racks(sensitive) == {1}, "the rack that became free"
    assert run.start_s > spread.start_s
    (start,) = site.lines("start", sensitive)
    assert start["level"] == "rack"


def test_a_wait_expires_and_the_job_takes_what_there_is(site: Site) -> None:
    fill_one_gpu_of_each_rack(site, 60, 60)
    sensitive = site.gang(16, 1, SENSITIVE)
    submitted = site.job(sensitive).submit_s
    # Half the speed for a lease of 5 s costs 5 s: so long it holds out.
    with site.controller("patient:lease=5,factor=1"):
        site.wait(lambda: site.ended(sensitive), "the gang")
    (run,) = site.executions(sensitive)
    assert site.racks(sensitive) == {0, 1}
    assert 5 <= run.start_s - submitted <= 9
    (start,) = site.lines("start", sensitive)
    assert start["level"] == "cluster"
    assert 5 <= start["waited_s"] <= 6.5  # type: ignore[operator]


def test_a_lease_ends_the_deserving_job_takes_over_and_the_victim_resumes(site: Site) -> None:
    # All that the victim does after its stop is what it had not done before: six seconds of work in all.
    victim = site.gang(32, 6)
    with site.controller("dally-no-wait:lease=3"):
        site.wait(lambda: site.started(victim), "the victim")
        deserving = site.gang(32, 1)
        site.wait(lambda: site.ended(deserving, victim), "both", 40)
    first, second = site.executions(victim)
    (run,) = site.executions(deserving)
    assert first.term_s is not None, "it was told, and saved itself"
    assert first.term_s - first.start_s >= 2.5, "not before its lease ended"
    assert first.term_s <= run.start_s < second.start_s
    assert second.restarts == 1
    assert second.end_s is not None
    worked = (first.term_s - first.start_s) + (second.end_s - second.start_s)
    assert 5.5 <= worked <= 8, "it went on where it was"
    assert len(site.lines("stop")) == 1


def test_a_lease_that_nobody_wants_goes_on(site: Site) -> None:
    job = site.gang(8, 5)
    with site.controller("patient:lease=1"):
        site.wait(lambda: site.ended(job), "the job")
    (run,) = site.executions(job)
    assert run.term_s is None
    assert site.lines("renew", job)
    assert not site.lines("stop")
