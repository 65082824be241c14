"""What happens underneath a controller: restarts, dead nodes, hands that cancel, edit and release."""

import json
import os
import signal
import time
import urllib.request

from tests.docs.test_readme import commands
from tests.sentences import coded
from tests.slurm.cluster import free_port
from tests.slurm.site import Site
from tests.slurm.test_observation import record

FIFO = "fifo-skip"


LONG_S = 600.0


def speeds(site: Site, job: str) -> list[float]:
    return [round(speed, 6) for speed in site.queued()[job]["speeds"]]  # type: ignore[attr-defined]


def test_nodes_that_drain_or_die_and_jobs_changed_by_hand(site: Site) -> None:
    site.run("scontrol", "update", "nodename=n1,n2", "state=drain", "reason=test")
    whole = site.gang(4, LONG_S)  # one machine
    cancelled, edited, freed, barred = (site.gang(32, 1) for _ in range(4))  # cannot start while nodes are drained
    site.run("scontrol", "hold", barred)  # root's hold is an administrator's
    with site.controller(FIFO):
        site.wait(lambda: site.started(whole) and site.saw(whole, "running"), "a start beside the drained nodes")
        (node,) = site.nodes(whole)
        assert node not in ("n1", "n2")
        # Its node dies: Slurm puts the job back by itself, pinned to a node that is gone.
        for state in ("drain", "down"):  # drained too, or it would be back at once
            site.run("scontrol", "update", f"nodename={node}", f"state={state}", "reason=test")
        site.wait(lambda: len(site.executions(whole)) == 2, "a second start")
        assert site.nodes(whole) != [node]
        assert site.executions(whole)[1].restarts == 1
        # A job cancelled, one edited, one released by hand: the first is forgotten, of the second the new words count,
        # the third is Slurm's own, and the one an administrator holds stays where it is.
        site.run("scancel", cancelled)
        site.run("scontrol", "release", freed)
        comment = 'stallwise:{"speeds":[1,0.5]}'
        site.run("scontrol", "update", f"jobid={edited}", f"Comment={comment}")
        site.wait(lambda: bool(site.lines("seen", cancelled)[1:]), "the cancelled job")
        site.wait(lambda: site.saw(freed, "left"), "the released job")
        site.wait(lambda: site.queued().get(edited, {}).get("speeds") == [1.0, 0.5], "the edited job")
        assert site.job(barred).held
        assert not site.lines("start", cancelled) + site.lines("start", freed) + site.lines("start", barred)
    site.run("scontrol", "update", f"nodename=n1,n2,{node}", "state=resume")


def test_slurmctld_stops_answering_and_is_started_again(site: Site) -> None:
    first, second = site.gang(32, 4), site.gang(32, 0.5)
    daemon = site.cluster.controller
    with site.controller(FIFO, "--timeout", "3s"):
        site.wait(lambda: site.started(first), "the first")
        os.kill(daemon.pid, signal.SIGSTOP)  # commands get no answer in time
        try:
            site.wait(lambda: bool(site.lines("blind")), "a look without an answer")
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        site.cluster.restart_controller()
        site.wait(lambda: site.ended(first, second), "both jobs")
    assert [len(site.executions(job)) for job in (first, second)] == [1, 1]


def test_a_second_controller_is_refused_and_one_command_gives_all_to_slurm(site: Site) -> None:
    pinned = site.gang(4, LONG_S)
    release_all = ["schedule", "--partition", "all", "--state", str(site.state), "--release-all"]
    with site.controller(FIFO):
        site.wait(lambda: site.started(pinned) and site.saw(pinned, "running"), "a job on its node")
        filler = site.sbatch("--gpus=28", "--nodes=7-8", seconds=LONG_S, hold=False)
        waiting = [site.gang(8, 0.2, (1.0, 1.0, 0.5)) for _ in range(2)]
        site.wait(lambda: site.started(filler) and set(waiting) <= set(site.queued()), "a full cluster, a first look")
        elsewhere = ["schedule", "--partition", "all", "--state", str(site.folder / "elsewhere")]
        for arguments in (elsewhere, release_all):  # another state on this host, and the same state
            second = site.run(*site.program(*arguments))
            assert second.returncode == 2
            assert f"Another controller already schedules partition all of {site.cluster.name}" in second.stderr
    # (After its end: it would start the job again at once.)
    site.run("scontrol", "requeuehold", pinned)
    site.wait(lambda: site.job(pinned).held, "a job that was pinned and waits again")
    # The state is gone for good: what the pin wrote over is known to Slurm itself.
    for path in site.state.glob("schedule.sqlite*"):
        path.unlink()
    done = site.run(*site.program(*release_all))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"3 of 3 waiting jobs of partition all of {site.cluster.name} are Slurm's now.\n"
    for job in (site.job(key) for key in (pinned, *waiting)):
        assert not job.held
        assert (job.required, job.mark) == ((), None)
    site.run("scancel", filler)
    site.wait(lambda: site.ended(*waiting) and len(site.executions(pinned)) == 2, "plain Slurm")


def test_a_lost_state_is_no_loss(site: Site) -> None:
    """A job that ran, pinned to a node, waits again; another controller knows nothing but what Slurm says."""
    job = site.gang(4, LONG_S, (1.0, 1.0, 0.5))
    with site.controller(FIFO):
        site.wait(lambda: site.started(job) and site.saw(job, "running"), "the job")
    (node,) = site.nodes(job)
    site.run("scontrol", "requeuehold", job)
    site.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    site.wait(lambda: site.job(job).held, "the job in the queue again")
    assert site.job(job).required == (node,)
    site.state.rename(site.folder / "lost")
    with site.controller(FIFO):
        site.wait(lambda: len(site.executions(job)) == 2, "a start on another node")
    assert site.nodes(job) != [node]


def test_what_is_not_its_own_is_never_touched_and_names_are_harmless(site: Site) -> None:
    evil = "x\"; touch pwned; $(touch pwned) `touch pwned` \n' --comment=\x1b[31m"
    other = site.sbatch("--gpus=1", "--partition=other")
    plain = site.sbatch("--gpus=4", seconds=LONG_S, hold=False)
    site.wait(lambda: site.started(plain), "a job that is not the controller's")
    named = site.gang(2, 1, (), f"--job-name={evil}")
    port = free_port()
    with site.controller("patient:lease=1", "--metrics", f"127.0.0.1:{port}"):
        site.wait(lambda: site.started(named) and site.saw(named, "running"), "the named job")
        shown = site.run(*site.program("queue", "--state", str(site.state)))
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=250).read().decode()
        site.wait(lambda: site.ended(named) and site.saw(named, "done"), "the named job")
    assert shown.returncode == 0, shown.stderr
    assert "\x1b[31m" not in shown.stdout
    assert 'stallwise_actions_total{partition="all",what="start"} 1' in metrics
    assert 'stallwise_gpus{of="others",partition="all"} 4' in metrics
    assert site.job(other).held
    assert site.job(plain).running
    assert site.job(plain).restarts == 0
    assert not list(site.folder.rglob("pwned")) + list(site.cluster.folder.rglob("pwned"))
    touched = {line.get("job") for line in site.lines()} - {None}
    assert touched == {named}


def test_shapes_that_slurm_knows(site: Site) -> None:
    """Tasks of an array, GPUs per node, jobs without GPUs, nodes that must or must not be among a job's."""
    array = site.sbatch("--array=1-3", "--gpus=1", seconds=0.2)
    rigid = site.sbatch("--nodes=2", "--gres=gpu:2", seconds=0.2)
    bare = site.sbatch(seconds=0.2)
    elsewhere = site.gang(4, 0.2, (), "--exclude=n[1-5]")
    named = site.sbatch("--gpus=6", "--nodes=1-3", "--nodelist=n3", seconds=0.2)
    both = site.sbatch("--gpus=4", "--gpus-per-node=2", seconds=0.2)
    tasks = site.sbatch("--ntasks=2", "--gpus-per-task=3", seconds=0.2)
    later = site.gang(1, 0.2, (), "--begin=now+1hour")
    behind = site.gang(1, 0.2, (), f"--dependency=afterany:{later}")
    huge = site.gang(33, 0.2)
    with site.controller(FIFO):
        site.wait(lambda: site.ended(rigid, bare, elsewhere, named, both, tasks), "all but the array")
        site.wait(lambda: len(site.lines("start")) == 8, "its tasks")
        site.wait(lambda: {later, behind, huge} <= set(site.queued()), "what is left")
        shown = site.run(*site.program("queue", "--state", str(site.state), "--json"))
    assert len(site.nodes(rigid)) == len(site.nodes(both)) == len(site.nodes(tasks)) == 2
    assert "n3" in site.nodes(named)
    assert len(site.nodes(named)) == 2
    assert site.nodes(elsewhere)[0] in ("n6", "n7", "n8")
    assert {f"{array}_{task}" for task in (1, 2, 3)} < {line["job"] for line in site.lines("start")}
    why = {job["job"]: job["why"] and job["why"]["text"] for job in coded(shown.stdout)["jobs"]}
    assert why[later] == "its begin time has not come"
    assert why[behind] == "depends on other jobs"
    assert why[huge] == "requests 33 GPUs; the partition has 32"
    for job in (later, behind, huge):
        assert site.job(job).held
    assert not site.lines("failed")


def test_gpus_beside_cpus_or_memory_that_are_in_use_are_no_place(site: Site) -> None:
    """Others have six of eight CPUs on all nodes but one, and no GPU; pinned there, a job of four CPUs would hang."""
    others = ["--partition=other", "--nodes=7", "--nodelist=n[1-7]", "--ntasks-per-node=6", "--mem=1000"]
    filler = site.sbatch(*others, seconds=LONG_S, hold=False)
    site.wait(lambda: site.started(filler), "the job of others")
    wants = [site.gang(2, 0.2, (), "--cpus-per-gpu=2"), site.gang(1, 0.2, (), "--mem=1500")]
    easy = site.gang(28, 0.2)
    never = site.gang(16, 0.2, (), "--mem=1500")
    with site.controller(FIFO):
        site.wait(lambda: site.ended(*wants, easy), "all three")
        site.wait(lambda: "CPUs or memory" in site.why(never), "the reason of the other")
    assert site.nodes(wants[1]) == ["n8"], "nowhere else is enough memory"
    assert site.nodes(wants[0]) == ["n8"] or len(site.nodes(wants[0])) == 2, "two CPUs fit beside the six of others"
    assert len(site.nodes(easy)) >= 7
    assert not site.lines("failed")
    assert not any(site.saw(job, "holding") for job in (*wants, easy)), "no start came to nothing"


def test_a_dry_run_tells_and_changes_nothing(site: Site) -> None:
    job = site.gang(8, 1, (1.0, 0.9, 0.5))
    words = next(words for words in commands() if words[:2] == ["stallwise", "schedule"])[1:]  # as README has it
    words = ["all" if word == "gpu" else word for word in words]
    done = site.run(*site.program(*words, "--state", str(site.state)))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    (would,) = [line for line in lines if line["what"] == "would start"]
    assert would["job"] == job
    assert sum(would["nodes"].values()) == 8
    assert site.job(job).held
    assert not site.job(job).required
    assert not site.state.exists()


def test_speeds_seen_in_a_record_correct_what_was_said(site: Site) -> None:
    comment = {"speeds": [1, 0.9, 0.8], "model": "net", "step_s": 0.1, "record": str(site.folder / "runs")}
    asked = ["--gpus=8", "--nodes=1-8", f"--comment=stallwise:{json.dumps(comment)}"]
    first = site.sbatch(*asked, seconds=LONG_S)
    with site.controller(FIFO, "--observe", "300ms"):
        site.wait(lambda: site.started(first) and site.saw(first, "running"), "the job")
        assert speeds(site, first) == [1.0, 0.9, 0.8]
        record(site.folder / "runs/one", 50, 0.2)
        site.wait(lambda: bool(site.lines("learn")), "what was learned")
        # Half the speed of a step at full speed in a rack, and what lies wider is no faster.
        site.wait(lambda: speeds(site, first) == [1.0, 0.5, 0.5], "a corrected speed")
        own = json.dumps(comment | {"record": str(site.folder / "others")})
        second = site.sbatch(*asked[:2], f"--comment=stallwise:{own}", seconds=LONG_S)
        site.wait(lambda: second in site.queued(), "another job of the model")
        site.wait(lambda: speeds(site, second) == [1.0, 0.5, 0.5], "what it learned from the first")
        time.sleep(1)  # a few more readings
    assert len(site.lines("learn")) == 1, "steps count once"
