"""The policies of the simulator on a real Slurm: what waits, what spreads, who gives way."""

from tests.slurm.site import Site

SENSITIVE = (1.0, 1.0, 0.5)
LONG_S = 600.0


def fill_one_gpu_of_each_rack(site: Site) -> list[str]:
    """Two jobs that are not the controller's, so that neither rack has 16 GPUs free."""
    jobs = [site.sbatch("--gpus=1", f"--nodelist={node}", seconds=LONG_S, hold=False) for node in ("n1", "n5")]
    site.wait(lambda: site.started(*jobs), "jobs of others")
    return jobs


def test_a_sensitive_gang_waits_for_its_rack_while_an_insensitive_one_spreads_at_once(site: Site) -> None:
    _, in_second_rack = fill_one_gpu_of_each_rack(site)
    sensitive = site.gang(16, 0.5, SENSITIVE)
    insensitive = site.gang(16, 0.5)
    with site.controller("patient:lease=60,factor=10"):  # it would hold out for ten minutes
        site.wait(lambda: site.ended(insensitive), "the insensitive gang")
        reason = "holds out for one rack; 16 are free only across racks"
        site.wait(lambda: site.why(sensitive) == reason, "why the other waits")
        assert not site.started(sensitive), "sixteen GPUs are free, in two racks"
        site.run("scancel", in_second_rack)
        site.wait(lambda: site.ended(sensitive), "the sensitive gang")
    assert site.racks(insensitive) == {0, 1}, "it takes what is free"
    (spread,) = site.lines("start", insensitive)
    assert spread["level"] == "cluster"
    assert spread["waited_s"] < LONG_S, "a sensitive one would have held out for ten minutes"  # type: ignore[operator]
    assert site.racks(sensitive) == {1}, "the rack that became free"
    (start,) = site.lines("start", sensitive)
    assert start["level"] == "rack"


def test_a_wait_expires_and_the_job_takes_what_there_is(site: Site) -> None:
    fill_one_gpu_of_each_rack(site)
    # Half the speed for a lease of 6 s costs 6 s: so long it holds out.
    with site.controller("patient:lease=6,factor=1"):
        sensitive = site.gang(16, 0.5, SENSITIVE)
        site.wait(lambda: sensitive in site.queued(), "a first look")
        told = site.queued()[sensitive]
        site.wait(lambda: site.ended(sensitive), "the gang")
    submitted = site.job(sensitive).submit_s
    if told["phase"] == "waiting":  # a first look may come late
        assert told["until_s"] == submitted + 6, "and that is what a user is told"
    assert site.racks(sensitive) == {0, 1}
    (start,) = site.lines("start", sensitive)
    assert start["level"] == "cluster"
    assert start["time_s"] >= submitted + 6  # type: ignore[operator]
    assert 6 <= start["waited_s"] < LONG_S, "long before a rack came free"  # type: ignore[operator]


def test_a_lease_ends_the_deserving_job_takes_over_and_the_victim_resumes(site: Site) -> None:
    lease_s = 3.0
    victim = site.gang(32, LONG_S)
    with site.controller(f"dally-no-wait:lease={lease_s:g}"):
        # Slurm's start may be seconds before the script's: only from here on does the victim save itself when told.
        site.wait(lambda: site.started(victim), "the victim")
        # It keeps its nodes until it ends: its own lease, too, may end before its script has begun.
        deserving = site.gang(32, 0.5, (), "--no-requeue")
        site.wait(lambda: site.ended(deserving) and len(site.executions(victim)) > 1, "both")
    first, second = site.executions(victim)
    (run,) = site.executions(deserving)
    (stop,) = site.lines("stop")
    assert stop["job"] == victim
    leases = 1 + sum(line["time_s"] < stop["time_s"] for line in site.lines("renew", victim))  # type: ignore[operator]
    assert stop["ran_s"] >= leases * lease_s, "not before its lease ended, by Slurm's own times"  # type: ignore[operator]
    assert first.term_s is not None, "it was told, and saved itself"
    assert first.term_s <= run.start_s, "the deserving one came in between"
    assert run.end_s is not None
    assert run.end_s <= second.start_s
    assert second.restarts == 1
    left_s = site.left_s(victim)
    assert left_s < LONG_S, "it had got somewhere"
    assert second.work_s == left_s, "and went on from there"


def test_a_lease_that_nobody_wants_goes_on(site: Site) -> None:
    job = site.gang(8, LONG_S)
    with site.controller("patient:lease=1"):
        site.wait(lambda: len(site.lines("renew", job)) >= 2, "two renewals")
    (run,) = site.executions(job)
    assert run.term_s is None
    assert site.job(job).running
    assert site.job(job).restarts == 0
    assert not site.lines("stop")
