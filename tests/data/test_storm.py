"""Workers, ranks and jobs are killed while a proxy spoils what they read: no wrong byte, no sample lost or doubled.

Two ranks share a cache that holds half of the data. Whatever dies is started again and goes on from what it had
committed. In the end every epoch's committed samples are all samples, once each, with the right content.
"""

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from stallwise.data import NodeCache
from tests.data import storm
from tests.data.cache_box import disk_bytes
from tests.data.testbed.proxy import Proxy
from tests.data.testbed.seaweed import Seaweed, content, objects
from tests.waiting import PATIENCE_S

COUNT, SIZE, RANKS = 240, 4000, 2
FAULTS = {"slow_down": 0.03, "reset_early": 0.02, "reset_late": 0.02, "truncate": 0.02, "shorten": 0.02, "slow": 0.02}


class Job:
    """The ranks, started again whenever they die."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder, self.deaths = folder, 0
        (folder / "settings.json").write_text(json.dumps(settings))
        program = [sys.executable, "-m", "tests.data.storm", str(folder / "settings.json")]
        self._errors = (folder / "errors").open("wb")
        self._parent = subprocess.Popen(
            program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )

    def start(self, rank: int, epoch: int) -> int:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(f"{rank} {epoch}\n")
        self._parent.stdin.flush()
        return int(self._parent.stdout.readline())

    def over(self, rank: int, epoch: int) -> bool:
        lines = storm.committed(self.folder / f"epoch{epoch}-rank{rank}")
        return bool(lines) and "over" in lines[-1]

    def stop(self) -> None:
        # A loader worker whose rank is killed while it starts does not notice and would stay (torch's ManagerWatchdog).
        # Each rank leads a group of its own; what they share is the session.
        session = self._parent.pid
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(process.pid) == session:
                    os.kill(process.pid, signal.SIGKILL)
        self._parent.wait()
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.stdout.close()
        self._errors.close()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state not in "ZX"


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def kill_something(running: dict[int, int], draw: random.Random) -> bool:
    """A worker, a rank, or all of them."""
    victims = [pid for pid in running.values() if alive(pid)]
    if not victims:
        return False
    one = draw.choice(victims)
    chosen = {"worker": children(one), "rank": [one], "job": victims}[draw.choice(["worker", "rank", "job"])]
    for pid in chosen[: 1 if chosen != victims else None]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(chosen)


def run_epoch(job: Job, epoch: int, kills: int, draw: random.Random) -> int:
    """Until both ranks are over; how many kills there were."""
    running = {rank: job.start(rank, epoch) for rank in range(RANKS)}
    end_s, killed, next_s = time.monotonic() + PATIENCE_S, 0, time.monotonic() + 0.4
    while not all(job.over(rank, epoch) for rank in range(RANKS)):
        assert time.monotonic() < end_s, f"stuck: {(job.folder / 'errors').read_text()[-2000:]}"
        for rank, pid in running.items():
            if not alive(pid) and not job.over(rank, epoch):
                running[rank] = job.start(rank, epoch)
        if killed < kills and time.monotonic() > next_s:
            killed += kill_something(running, draw)
            next_s = time.monotonic() + draw.uniform(0.15, 0.5)
        time.sleep(0.02)
    return killed


def storm_with(seaweed: Seaweed, proxy: Proxy, bucket: str, folder: Path, policy: str, kills: int) -> None:
    proxy.set(**FAULTS, slow_s=0.2, seed=11)
    limit = COUNT * 4096 // 2
    settings = {
        "url": f"s3://{bucket}/",
        "endpoint": proxy.endpoint,
        "options": seaweed.options,
        "folder": str(folder),
        "cache_bytes": limit,
        "policy": policy,
        "ranks": RANKS,
        "workers": 1,
        "step_s": 0.03,
    }
    draw, job, killed, epoch = random.Random(5), Job(folder, settings), 0, 0
    try:
        while killed < kills:
            killed += run_epoch(job, epoch, kills - killed, draw)
            check_epoch(folder, epoch)
            assert disk_bytes(NodeCache(folder / "cache", limit, policy)) <= limit
            epoch += 1
    finally:
        job.stop()
    # Where a worker dies while torch imports something, torch logs a warning that contains a trace.
    assert not re.search(r"^Traceback", (folder / "errors").read_text(), re.MULTILINE)


def check_epoch(folder: Path, epoch: int) -> None:
    samples = [
        sample
        for rank in range(RANKS)
        for line in storm.committed(folder / f"epoch{epoch}-rank{rank}")
        for sample in line["samples"]
    ]
    names = [name for name, _ in samples]
    assert sorted(names) == sorted(name for name, _ in objects(COUNT, SIZE))
    for name, checksum in samples:
        assert checksum == hashlib.sha256(content(name, SIZE)).hexdigest()


def test_a_storm_of_kills_and_faults(
    seaweed: Seaweed, proxy: Proxy, new_bucket: Callable[..., str], tmp_path: Path
) -> None:
    storm_with(seaweed, proxy, new_bucket(objects(COUNT, SIZE)), tmp_path, "lru", 20)


@pytest.mark.soak
@pytest.mark.parametrize("policy", ["no-evict", "lru", "fifo", "farthest"])
def test_a_long_storm(
    seaweed: Seaweed, proxy: Proxy, new_bucket: Callable[..., str], tmp_path: Path, policy: str
) -> None:
    storm_with(seaweed, proxy, new_bucket(objects(COUNT, SIZE)), tmp_path, policy, 100)
