"""What happens underneath a controller: restarts, dead nodes, hands that cancel, edit and release."""

import json
import os
import signal
import subprocess
import time
import urllib.request

from tests.slurm.cluster import free_port
from tests.slurm.site import Site
from tests.slurm.test_plan import record

FIFO = "fifo-skip"


def queued(site: Site) -> dict[str, dict[str, object]]:
    """What the controller last wrote down of each job."""
    return {job["job"]: job for job in json.loads((site.state / "queue.json").read_text())["jobs"]}


def speeds(site: Site, job: str) -> list[float]:
    return [round(speed, 6) for speed in queued(site)[job]["speeds"]]  # type: ignore[attr-defined]


def test_nodes_that_drain_or_die_and_jobs_changed_by_hand(site: Site) -> None:
    site.run("scontrol", "update", "nodename=n1,n2", "state=drain", "reason=test")
    whole = site.gang(4, 4)  # one machine
    cancelled, edited, freed, barred = (site.gang(32, 1) for _ in range(4))  # cannot start while nodes are drained
    site.run("scontrol", "hold", barred)  # root's hold is an administrator's
    with site.controller(FIFO):
        site.wait(lambda: site.started(whole), "a start beside the drained nodes")
        (node,) = site.nodes(whole)
        assert node not in ("n1", "n2")
        # Its node dies: Slurm puts the job back by itself, pinned to a node that is gone.
        for state in ("drain", "down"):  # drained too, or it would be back at once
            site.run("scontrol", "update", f"nodename={node}", f"state={state}", "reason=test")
        site.wait(lambda: len(site.executions(whole)) == 2, "a second start", 30)
        assert site.nodes(whole) != [node]
        assert site.executions(whole)[1].restarts == 1
        # A job cancelled, one edited, one released by hand: the first is forgotten, of the second the new words count,
        # the third is Slurm's own, and the one an administrator holds stays where it is.
        site.run("scancel", cancelled)
        site.run("scontrol", "release", freed)
        comment = 'stallwise:{"speeds":[1,0.5]}'
        site.run("scontrol", "update", f"jobid={edited}", f"Comment={comment}")
        site.wait(lambda: bool(site.lines("seen", cancelled)[1:]), "the cancelled job")
        site.wait(lambda: any(line["phase"] == "left" for line in site.lines("seen", freed)), "the released job")
        site.wait(lambda: queued(site).get(edited, {}).get("speeds") == [1.0, 0.5], "the edited job")
        assert site.job(barred).held
        assert not site.lines("start", cancelled) + site.lines("start", freed) + site.lines("start", barred)
    site.run("scontrol", "update", f"nodename=n1,n2,{node}", "state=resume")


def test_slurmctld_stops_answering_and_is_started_again(site: Site) -> None:
    first, second = site.gang(32, 6), site.gang(32, 0.5)
    daemon = site.cluster.controller
    with site.controller(FIFO, "--timeout", "1s"):
        site.wait(lambda: site.started(first), "the first")
        os.kill(daemon.pid, signal.SIGSTOP)  # commands get no answer in time
        site.wait(lambda: bool(site.lines("blind")), "a look without an answer")
        os.kill(daemon.pid, signal.SIGCONT)
        site.cluster.restart_controller()
        site.wait(lambda: site.ended(first, second), "both jobs", 60)
    assert [len(site.executions(job)) for job in (first, second)] == [1, 1]


def test_a_second_controller_is_refused_and_one_command_gives_all_to_slurm(site: Site) -> None:
    site.sbatch("--gpus=32", "--nodelist=n[1-8]", seconds=60, hold=False)
    waiting = [site.gang(8, 0.2, (1.0, 1.0, 0.5)) for _ in range(3)]
    site.wait(lambda: site.cluster.states() == ["mixed"] * 8, "a full cluster")
    with site.controller(FIFO):
        site.wait(lambda: (site.state / "queue.json").exists(), "a first look")
        for where in (site.state, site.folder / "elsewhere"):
            arguments = ["schedule", "--partition", "all", "--state", str(where)]
            second = site.run(*site.program(*arguments))
            assert second.returncode == 2
            assert "Another controller already schedules partition all" in second.stderr
            refused = site.run(*site.program(*arguments, "--release-all"))
            assert refused.returncode == 2
    done = site.run(*site.program("schedule", "--partition", "all", "--state", str(site.state), "--release-all"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 of 3 waiting jobs of partition all of stallwise are Slurm's now.\n"
    assert not any(site.job(job).held or site.job(job).required for job in waiting)
    site.run("scancel", "--partition=all", "--state=RUNNING")
    site.wait(lambda: site.ended(*waiting), "plain Slurm")


def test_what_is_not_its_own_is_never_touched_and_names_are_harmless(site: Site) -> None:
    evil = "x\"; touch pwned; $(touch pwned) `touch pwned` \n' --comment=\x1b[31m"
    other = site.sbatch("--gpus=1", "--partition=other")
    plain = site.sbatch("--gpus=4", seconds=60, hold=False)
    named = site.gang(2, 1, (), f"--job-name={evil}")
    port = free_port()
    with site.controller("patient:lease=1", "--metrics", f"127.0.0.1:{port}"):
        site.wait(lambda: site.started(named), "the named job")
        shown = site.run(*site.program("queue", "--state", str(site.state)))
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        site.wait(lambda: site.ended(named), "the named job")
        time.sleep(1)
    assert shown.returncode == 0, shown.stderr
    assert "\x1b[31m" not in shown.stdout
    assert 'stallwise_actions_total{partition="all",what="start"} 1' in metrics
    assert 'stallwise_gpus{partition="all",of="others"} 4' in metrics
    assert site.job(other).held
    assert site.job(plain).running
    assert site.job(plain).restarts == 0
    assert not list(site.folder.rglob("pwned")) + list(site.cluster.folder.rglob("pwned"))
    touched = {line.get("job") for line in site.lines()} - {None}
    assert touched == {named}


def test_shapes_that_slurm_knows(site: Site) -> None:
    """Tasks of an array, GPUs per node, jobs without GPUs, and a job that may not run on some nodes."""
    array = site.sbatch("--array=1-3", "--gpus=1", seconds=0.2)
    rigid = site.sbatch("--nodes=2", "--gres=gpu:2", seconds=0.2)
    bare = site.sbatch(seconds=0.2)
    elsewhere = site.gang(4, 0.2, (), "--exclude=n[1-5]")
    later = site.gang(1, 0.2, (), "--begin=now+1hour")
    behind = site.gang(1, 0.2, (), f"--dependency=afterany:{later}")
    huge = site.gang(33, 0.2)
    with site.controller(FIFO):
        site.wait(lambda: site.ended(rigid, bare, elsewhere), "all but the array")
        site.wait(lambda: len(site.lines("start")) == 5, "its tasks")
        shown = site.run(*site.program("queue", "--state", str(site.state), "--json"))
    assert len(site.nodes(rigid)) == 2
    assert site.nodes(elsewhere)[0] in ("n6", "n7", "n8")
    assert {f"{array}_{task}" for task in (1, 2, 3)} < {line["job"] for line in site.lines("start")}
    why = {job["job"]: job["why"] for job in json.loads(shown.stdout)["jobs"]}
    assert why[later] == "its begin time has not come"
    assert why[behind] == "depends on other jobs"
    assert why[huge] == "asks for 33 GPUs; the partition has 32"
    for job in (later, behind, huge):
        assert site.job(job).held


def test_a_dry_run_tells_and_changes_nothing(site: Site) -> None:
    job = site.gang(8, 1, (1.0, 0.9, 0.5))
    done = site.run(*site.program("schedule", "--partition", "all", "--state", str(site.state), "--dry-run"))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    (would,) = [line for line in lines if line["what"] == "would start"]
    assert would["job"] == job
    assert sum(would["nodes"].values()) == 8
    assert site.job(job).held
    assert not site.job(job).required
    assert not site.state.exists()


def test_submit_is_a_thin_sbatch(site: Site) -> None:
    given = ["--gpus", "16", "--partition", "all", "--speeds", "1,0.9,0.5", "--model", "mine"]
    words = ["--output=/dev/null", f"--export=ALL,OUT={site.folder}/out", str(site.script), "0.1"]
    done = subprocess.run(
        site.program("submit", *given, *words), env=site.cluster.environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    job = site.job(done.stdout.split()[-1])
    assert job.held
    assert (job.gang, job.least_nodes) == (16, 1)
    assert job.comment == 'stallwise:{"speeds":[1.0,0.9,0.5],"model":"mine"}'
    refused = site.run(*site.program("submit", "--partition", "nowhere", str(site.script)))
    assert refused.returncode == 2
    assert "sbatch refused the job" in refused.stderr
    site.run("scancel", job.key)


def test_speeds_seen_in_a_record_correct_what_was_said(site: Site) -> None:
    comment = {"speeds": [1, 0.9, 0.8], "model": "net", "step_s": 0.1, "record": str(site.folder / "runs")}
    asked = ["--gpus=8", "--nodes=1-8", f"--comment=stallwise:{json.dumps(comment)}"]
    first = site.sbatch(*asked, seconds=60)
    with site.controller(FIFO, "--observe", "300ms"):
        site.wait(lambda: site.started(first), "the job")
        assert speeds(site, first) == [1.0, 0.9, 0.8]
        time.sleep(1.1)  # Slurm's times are whole seconds
        record(site.folder / "runs/one", 50, 0.2)
        site.wait(lambda: bool(site.lines("learn")), "what was learned")
        # Half the speed of a step at full speed in a rack, and what lies wider is no faster.
        site.wait(lambda: speeds(site, first) == [1.0, 0.5, 0.5], "a corrected speed")
        second = site.sbatch(*asked, seconds=60)
        site.wait(lambda: second in queued(site), "another job of the model")
        site.wait(lambda: speeds(site, second) == [1.0, 0.5, 0.5], "what it learned from the first")
        time.sleep(1)
    assert len(site.lines("learn")) == 1, "steps count once"
