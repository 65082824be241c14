"""A cluster with a controller, for tests: submit, wait, look at what really ran."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stallwise.slurm.commands import Slurm
from stallwise.slurm.facts import SlurmJob
from tests.slurm import forkserver
from tests.slurm.cluster import Cluster
from tests.slurm.forkserver import Program

# Each execution leaves one line at its start, with the microseconds of work that it has to do, and one at its end; $1
# is how many seconds a job works. What a TERM leaves undone is kept and taken up by the next execution, as a training
# job does with its checkpoint. A line "start" says that a TERM is answered from then on. Nothing but bash itself runs:
# a TERM is followed by a KILL after three seconds, in which another program may not even have begun. It waits on a pipe
# that nobody writes to: on two cores a hundred jobs must not cost much.
SCRIPT = """#!/bin/bash
out=$OUT/$SLURM_JOB_ID began=$EPOCHREALTIME
if [ -e $out.left ]; then read left < $out.left; else printf -v left %.0f ${1}e6; fi
exec 3<> $OUT/pipe
trap 'now=$EPOCHREALTIME left=$((left - ${now/.} + ${began/.}))
      echo $((left > 1000 ? left : 1000)) > $out.left
      echo "term $now" >> $out; exit 1' TERM
echo "start $began $SLURM_JOB_NODELIST ${SLURM_RESTART_COUNT:-0} $left" >> $out
printf -v seconds %d.%06d $((left / 1000000)) $((left % 1000000))
read -t $seconds -u 3
echo "end $EPOCHREALTIME" >> $out
"""

PATIENCE_S = 150.0
"""For anything that happens at all; nothing is concluded from how long it took."""


@dataclass
class Execution:
    """One start of a job's script."""

    start_s: float
    nodes: str
    restarts: int
    work_s: float | None = None
    """Work it had to do, where its script says so."""
    end_s: float | None = None
    term_s: float | None = None


@dataclass
class Site:
    """A running Slurm, and a folder for what jobs and controllers leave."""

    cluster: Cluster
    folder: Path
    partition: str = "all"

    def __post_init__(self) -> None:
        (self.folder / "out").mkdir(parents=True, exist_ok=True)
        self.script.write_text(SCRIPT)
        os.mkfifo(self.folder / "out/pipe")
        self.slurm = Slurm()

    @property
    def script(self) -> Path:
        return self.folder / "job.sh"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def log(self) -> Path:
        return self.folder / "log.jsonl"

    def sbatch(self, *options: str, seconds: float = 1.0, hold: bool = True) -> str:
        """Submit the script; the number of the job."""
        words = [
            "--parsable",
            "--output=/dev/null",
            f"--partition={self.partition}",
            f"--export=ALL,OUT={self.folder}/out",
        ]
        done = self.run("sbatch", *words, *(["--hold"] if hold else []), *options, str(self.script), str(seconds))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def gang(self, gpus: int, seconds: float, speeds: Sequence[float] = (), *options: str) -> str:
        """A held gang as `stallwise submit` makes it."""
        comment = "stallwise:" + json.dumps({"speeds": list(speeds)})
        ask = [f"--gpus={gpus}", f"--nodes=1-{gpus}", f"--comment={comment}"]
        return self.sbatch(*ask, *options, seconds=seconds)

    def run(self, *command: str, timeout: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(*command, cwd=self.folder, timeout=timeout)

    def program(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "stallwise", *arguments]

    def schedule(self, policy: str, *options: str) -> list[str]:
        """The command of a controller."""
        given = ["--partition", self.partition, "--policy", policy, "--state", str(self.state), "--log", str(self.log)]
        return self.program("schedule", "--interval", "300ms", *given, *options)

    @contextmanager
    def controller(self, policy: str, *options: str) -> Iterator[Program]:
        """A controller that runs while the block does, and ends by TERM with code 0."""
        process = self.begin(policy, *options)
        try:
            yield process
        finally:
            code = process.stop(60)
        assert code == 0, process.said
        assert "Traceback" not in process.said

    def begin(self, policy: str, *options: str) -> Program:
        """A controller that has begun to look."""
        looked = self.lines("begin")
        arguments = self.schedule(policy, *options)[3:]
        process = forkserver.start(arguments, self.cluster.environment, self.folder / "controller.err")
        self.wait(lambda: len(self.lines("begin")) > len(looked) or process.ended, "the controller")
        assert not process.ended, process.said
        return process

    def lines(self, what: str | None = None, job: str | None = None) -> list[dict[str, object]]:
        """Lines of the decision log."""
        if not self.log.exists():
            return []
        whole = self.log.read_text().splitlines()
        found = [json.loads(line) for line in whole]
        return [line for line in found if what in (None, line["what"]) and job in (None, line.get("job"))]

    def executions(self, job: str) -> list[Execution]:
        """What a job's script wrote."""
        path = self.folder / "out" / job
        found: list[Execution] = []
        for line in path.read_text().splitlines() if path.exists() else []:
            what, at, *more = line.split()
            if what == "start":
                work_s = int(more[2]) / 1e6 if len(more) > 2 else None
                found.append(Execution(float(at), more[0], int(more[1]), work_s))
            elif what == "end":
                found[-1].end_s = float(at)
            else:
                found[-1].term_s = float(at)
        return found

    def left_s(self, job: str) -> float:
        """Work a job had not done when it was last told to stop."""
        return int((self.folder / "out" / f"{job}.left").read_text()) / 1e6

    def queued(self) -> dict[str, dict[str, object]]:
        """What the controller last wrote down of each job, for `stallwise queue`."""
        path = self.state / "queue.json"
        return {job["job"]: job for job in json.loads(path.read_text())["jobs"]} if path.exists() else {}

    def why(self, job: str) -> str:
        """Why the job waits, in words; empty where nothing is written of it."""
        reason: Any = self.queued().get(job, {}).get("why")
        return reason["text"] if reason else ""

    def saw(self, job: str, phase: str) -> bool:
        """Whether the controller knows."""
        return any(line["phase"] == phase for line in self.lines("seen", job))

    def nodes(self, job: str, number: int = -1) -> list[str]:
        """Where an execution was."""
        from stallwise.cluster.topology import expand

        return expand(self.executions(job)[number].nodes)

    def racks(self, job: str, number: int = -1) -> set[int]:
        """Of which racks those nodes are."""
        half = len(self.cluster.nodes) // 2
        return {(int(node[1:]) - 1) // half for node in self.nodes(job, number)}

    def job(self, key: str) -> SlurmJob:
        """A job as Slurm sees it."""
        return next(job for job in self.jobs() if job.key == key)

    def jobs(self) -> list[SlurmJob]:
        old = dict(os.environ)
        os.environ.update(self.cluster.environment)
        try:
            return self.slurm.jobs()
        finally:
            os.environ.clear()
            os.environ.update(old)

    def started(self, *jobs: str) -> bool:
        return all(self.executions(job) for job in jobs)

    def ended(self, *jobs: str) -> bool:
        return all(any(run.end_s for run in self.executions(job)) for job in jobs)

    def wait(self, ready: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
        """Until it is so; a failure shows the last decisions."""
        until = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > until:
                queue = self.run("squeue").stdout + self.run("scontrol", "--oneliner", "show", "nodes").stdout
                last = self.log.read_text()[-3000:] if self.log.exists() else ""
                raise AssertionError(f"not within {seconds} s: {what}\n{queue}\n{last}")
            time.sleep(0.1)

    def quiet(self) -> None:
        """No job is left, and every node is as it was."""
        for partition in ("all", "other"):
            self.run("scancel", f"--partition={partition}")
            self.run("scancel", f"--partition={partition}", "--signal=KILL", "--full")
        for node in self.cluster.nodes:  # one that is idle already says no, which matters to nobody
            self.run("scontrol", "update", f"nodename={node}", "state=resume")
        self.wait(lambda: not self.run("squeue", "-h").stdout.strip(), "an empty queue")
        self.wait(lambda: set(self.cluster.states()) == {"idle"}, "idle nodes")
