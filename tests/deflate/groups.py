"""Real control groups of version 1 for a test, and processes to put into them."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.conftest import lacks

CPU, MEMORY = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/memory")
BUSY = "import os, time\nos.fork()\nwhile True: pass"
IDLE = "import time\ntime.sleep(600)"


def need_version_1() -> None:
    if os.geteuid() != 0 or not os.access(CPU / "cpu.cfs_quota_us", os.R_OK):
        lacks("root and control groups of version 1")


@contextlib.contextmanager
def process(program: str) -> Iterator[int]:
    """A Python process and what it forks, killed at the end."""
    started = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    try:
        time.sleep(0.1)
        yield started.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, 9)
        started.wait()


@contextlib.contextmanager
def group(name: str, root: Path = CPU) -> Iterator[Path]:
    path = root / name
    path.mkdir()
    try:
        yield path
    finally:
        for _ in range(100):
            with contextlib.suppress(OSError):
                path.rmdir()
            if not path.exists():
                break
            time.sleep(0.02)


def made_for(pid: int) -> list[Path]:
    """Groups that were made for a process, anywhere."""
    return list(Path("/sys/fs/cgroup").rglob(f"stallwise-deflate-{pid}"))


def until(ready: Callable[[], bool], patience_s: float = 10.0) -> None:
    give_up = time.monotonic() + patience_s
    while not ready():
        assert time.monotonic() < give_up, "waited too long"
        time.sleep(0.02)


def home_of(pid: int) -> str:
    """The lines of its controllers."""
    return Path(f"/proc/{pid}/cgroup").read_text()
