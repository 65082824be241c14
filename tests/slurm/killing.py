"""Controllers that are killed at random, one after the other; the last one lives until TERM.

    python -m tests.slurm.killing KILLS SEED FILE schedule --partition …

The program and its compiled parts are loaded once and every controller is forked from there, so that a kill meets one
that acts and not one that still imports. FILE gets the time of every kill.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 60.0
"""There are more jobs than starts that are waited for, so that only a stuck controller takes so long."""


def load() -> None:
    """Everything a controller needs, so that the forked ones begin at once, and no later one has to compile."""
    from stallwise.cluster.job import Job
    from stallwise.cluster.live import JobStanding, resumed
    from stallwise.cluster.policies.catalog import policy_named
    from stallwise.cluster.topology import Cluster

    waiting = JobStanding(job=Job(id="1", arrival_s=0.0, gpus=1, work_s=1.0), waiting_since_s=0.0)
    for name in ("patient", "dally-no-wait", "fifo-skip", "las"):
        resumed(Cluster.counts(gpus=4, machines=4, racks=2), policy_named(name), [waiting]).decide(1.0)


def fork(arguments: list[str]) -> int:
    pid = os.fork()
    if pid == 0:
        from stallwise.cli.main import run

        sys.argv = ["stallwise", *arguments]
        try:
            run()
        except SystemExit as left:
            os._exit(int(left.code or 0))
        finally:
            os._exit(99)
    return pid


def looks(log: Path) -> int:
    """How many controllers have begun."""
    return log.read_text().count('"begin"') if log.exists() else 0


def starts(log: Path) -> int:
    """How many jobs have been started."""
    return log.read_text().count('"what":"start"') if log.exists() else 0


def wait_until(ready: Callable[[], bool], seconds: float) -> None:
    """Or for as long; a controller that has nothing to do is killed, too."""
    until = time.monotonic() + seconds
    while not ready() and time.monotonic() < until:
        time.sleep(0.01)


def main(kills: int, seed: int, file: Path, arguments: list[str]) -> int:
    load()
    draw = random.Random(seed)
    log = Path(arguments[arguments.index("--log") + 1])
    for number in range(kills):
        begun, started = looks(log), starts(log)
        pid = fork(arguments)
        # Every fourth may be killed before it has done anything; the others are met at work: so many starts later, and
        # not so many seconds later, which on a busy machine would be before the first of them.
        if number % 4:
            wait_until(lambda begun=begun: looks(log) > begun, PATIENCE_S)  # type: ignore[misc]
            more = started + draw.randrange(3)
            wait_until(lambda more=more: starts(log) >= more, PATIENCE_S)  # type: ignore[misc]
        time.sleep(draw.uniform(0.0, 0.3))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), f"it had ended by itself: {status}"
        with file.open("a") as lines:
            lines.write(f"{time.time()}\n")
    pid = fork(arguments)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    while True:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except InterruptedError:
            continue


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]))
