"""Exchange beyond DDP: FSDP2 and HSDP are taken apart, collectives of the script's own are timed.

Truth is the bare script with its exchange minus without. Tolerance, written before the first measurement: 15 % of the
step (these jobs compute on the same two cores that move their bytes); a case that misses is measured twice.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.record.jobs import JOBS, plain_ranks

WITHIN = 0.15
pytestmark = pytest.mark.alone


def bare_s(job: str, *options: str) -> float:
    said = plain_ranks(2, str(JOBS / job), *options, "--steps", "60")
    return float(json.loads(said.strip().splitlines()[-1])["step_s"])


def profiled(folder: Path, job: str, *options: str) -> dict[str, Any]:
    command = ("-m", "stallwise", "profile", "--json", "--max-time", "5", "--nproc-per-node", "2")
    done = subprocess.run(
        [sys.executable, *command, "-o", str(folder), str(JOBS / job), *options],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def recovered(folder: Path, job: str, options: tuple[str, ...], without: tuple[str, ...]) -> dict[str, Any]:
    """The profile, once its exchange and its step agree with what the bare script shows."""
    misses: list[str] = []
    for attempt in range(2):
        step_s, alone_s = bare_s(job, *options), bare_s(job, *options, *without)
        found = profiled(folder / str(attempt), job, *options)
        exchange_s = found["split"]["interconnect"]["s"]
        misses = [
            f"{what}: {ours:.4f} s instead of {truth:.4f} s"
            for what, ours, truth in (("exchange", exchange_s, step_s - alone_s), ("step", found["step_s"], step_s))
            if abs(ours - truth) > WITHIN * step_s
        ]
        if not misses:
            return found
    pytest.fail("; ".join(misses))


def test_fsdp2_is_taken_apart(tmp_path: Path) -> None:
    found = recovered(tmp_path, "sharded.py", (), ("--no-exchange",))
    assert found["split"]["interconnect"]["low_s"] > 0
    assert not any("not taken apart" in note for note in found["notes"])


@pytest.mark.soak
def test_hsdp_is_taken_apart(tmp_path: Path) -> None:
    found = profiled(tmp_path / "run", "sharded.py", "--hsdp")
    assert found["split"]["interconnect"]["low_s"] > 0, "the all-reduce between replicas"


def test_collectives_of_the_script_are_timed_as_the_last_rank_waits(tmp_path: Path) -> None:
    """Rank 0 waits 20 ms longer, for rank 1: that is rank 1's compute and not exchange."""
    found = recovered(tmp_path, "own_exchange.py", (), ("--exchange", "0"))
    assert found["split"]["compute"]["s"] > 0.058
    assert any("(all_reduce)" in note for note in found["notes"])


@pytest.mark.soak
def test_asynchronous_collectives_are_timed_where_the_script_waits(tmp_path: Path) -> None:
    found = profiled(tmp_path / "run", "own_exchange.py", "--asynchronous")
    assert found["split"]["interconnect"]["low_s"] > 0
    assert found["split"]["compute"]["s"] > 0.058
