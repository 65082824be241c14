"""Real control groups of version 1 for a test, and processes to put into them."""

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from stallwise.deflate.processes import tree_of
from tests.conftest import lacks
from tests.waiting import PATIENCE_S, until

CPU, MEMORY = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/memory")
BUSY = "import os, time\nos.fork()\nwhile True: pass"
IDLE = "import time\ntime.sleep(600)"


def need_version_1() -> None:
    if os.geteuid() != 0 or not os.access(CPU / "cpu.cfs_quota_us", os.R_OK):
        lacks("root and control groups of version 1")


@contextlib.contextmanager
def process(program: str) -> Iterator[int]:
    """A Python process and what it forks, killed at the end; it has come to its program, however busy the machine."""
    told, tell = os.pipe()
    begun = f"import os\nos.write({tell}, b'.')\nos.close({tell})\n"
    started = subprocess.Popen([sys.executable, "-c", begun + program], start_new_session=True, pass_fds=[tell])
    os.close(tell)
    try:
        ready, _, _ = select.select([told], [], [], PATIENCE_S)
        assert ready, "the process did not start"
        yield started.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, 9)
        started.wait(PATIENCE_S)
        os.close(told)


@contextlib.contextmanager
def busy_pair() -> Iterator[int]:
    """A process that computes, and its child that does, too."""
    with process(BUSY) as pid:
        until(lambda: len(tree_of(pid)) == 2)
        yield pid


@contextlib.contextmanager
def group(name: str, root: Path = CPU) -> Iterator[Path]:
    path = root / name
    path.mkdir()
    try:
        yield path
    finally:
        for _ in range(500):  # processes that were killed leave it some time later
            with contextlib.suppress(OSError):
                path.rmdir()
            if not path.exists():
                break
            time.sleep(0.02)


def made_for(pid: int) -> list[Path]:
    """Groups that were made for a process, anywhere."""
    name = f"stallwise-deflate-{pid}"
    # Not `rglob`, which fails where a group of another test goes away while it looks.
    return [Path(folder) / name for folder, groups, _ in os.walk("/sys/fs/cgroup") if name in groups]


def home_of(pid: int) -> str:
    """The lines of its controllers."""
    return Path(f"/proc/{pid}/cgroup").read_text()
