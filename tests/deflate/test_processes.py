"""The cores that real processes keep busy, which work in bursts."""

import time
from itertools import count
from pathlib import Path

from stallwise.deflate.processes import busy_cores, tree_of
from tests.deflate.groups import IDLE, process, until


def spinning(done: Path) -> str:
    """A program that uses 0.4 s of a core, says so and waits: processor time, however long it has to wait for it."""
    return (
        "import pathlib, time\n"
        "while time.process_time() < 0.4: pass\n"
        f"pathlib.Path({str(done)!r}).touch()\n"
        "time.sleep(600)"
    )


def test_who_is_started_during_the_measurement_counts(tmp_path: Path) -> None:
    go, done = tmp_path / "go", tmp_path / "done"
    program = (
        "import os, subprocess, sys, time\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        f"subprocess.run([sys.executable, '-c', {spinning(done)!r}])"
    )
    with process(program) as pid:
        assert len(tree_of(pid)) == 1
        looks = count()

        def members() -> list[int]:
            if next(looks) == 1:  # the measurement has begun: now the worker is started, and does its work
                go.touch()
                until(done.exists)
            return tree_of(pid)

        begin_s = time.monotonic()
        cores = busy_cores(members, 0.05)
        assert cores * (time.monotonic() - begin_s) > 0.35, "0.4 s of a worker that began during it"


def test_who_comes_from_elsewhere_during_the_measurement_counts_from_then_on(tmp_path: Path) -> None:
    done = tmp_path / "done"
    with process(spinning(done)) as old, process(IDLE) as idle:
        until(done.exists)
        looks = count()
        begin_s = time.monotonic()
        cores = busy_cores(lambda: [idle, old] if next(looks) else [idle], 0.2)
        assert next(looks) > 1
        assert cores * (time.monotonic() - begin_s) < 0.1, "what it had used before does not count"
