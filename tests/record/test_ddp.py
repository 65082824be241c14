"""Exchange beyond DDP: FSDP2 and HSDP are taken apart, collectives of the script's own are timed.

Truth is the bare script with its exchange minus without. Tolerance, written before the first measurement: 15 % of the
step (these jobs compute on the same two cores that move their bytes).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import texts
from tests.figures import Figures
from tests.program import run_program
from tests.record.jobs import JOBS, plain_ranks

WITHIN = 0.15


def bare_s(job: str, *options: str) -> float:
    said = plain_ranks(2, str(JOBS / job), *options, "--steps", "60")
    return float(json.loads(said.strip().splitlines()[-1])["step_s"])


def profiled(folder: Path, job: str, *options: str, max_time_s: float = 5) -> dict[str, Any]:
    command = ("profile", "--json", "--max-time", f"{max_time_s}s", "--nproc-per-node", "2")
    done = run_program([*command, "-o", str(folder), str(JOBS / job), *options], Path.cwd())
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def recovered(folder: Path, job: str, without: tuple[str, ...], figures: Figures) -> dict[str, Any]:
    """The profile, whose exchange and step are judged by what the bare script shows."""
    step_s, alone_s = bare_s(job), bare_s(job, *without)
    found = profiled(folder / "run", job)
    exchange_s = found["split"]["interconnect"]["s"]
    figures.judge(f"{job}: exchange", exchange_s, step_s - alone_s, abs=WITHIN * step_s)
    figures.judge(f"{job}: step", found["step_s"], step_s, abs=WITHIN * step_s)
    return found


def test_fsdp2_and_collectives_of_the_script_are_measured(tmp_path: Path) -> None:
    """That they are, and not how long they take."""
    sharded = profiled(tmp_path / "sharded", "sharded.py", max_time_s=1)
    assert sharded["split"]["interconnect"] is not None
    assert not any("not taken apart" in note for note in texts(sharded["notes"]))
    own = profiled(tmp_path / "own", "own_exchange.py", max_time_s=1)
    (group,) = own["groups"]
    assert (group["kind"], group["ranks"], group["calls"]) == ("collectives", "0-1", ["all_reduce"])
    assert own["split"]["interconnect"] is not None
    assert any("(all_reduce)" in note for note in texts(own["notes"]))


def test_a_pipeline_has_its_bubble(tmp_path: Path) -> None:
    """That it is named; how long it is depends on the machine."""
    staged = profiled(tmp_path / "run", "pipelined.py", "0.002", "0.004", "4", "batched", max_time_s=1)
    (group,) = staged["groups"]
    assert (group["kind"], group["ranks"], group["calls"]) == ("pipeline", "0-1", ["batch_isend_irecv"])
    assert group["s"] > 0


@pytest.mark.truth
def test_a_bubble_is_as_long_as_it_was_made(tmp_path: Path, figures: Figures) -> None:
    """Each rank waits once for the other's forward and backward pass of a micro-batch."""
    staged = profiled(tmp_path / "run", "pipelined.py", "0.02", "0.04", "4", max_time_s=8)
    figures.judge("pipelined.py: bubble", staged["groups"][0]["s"], 0.06, rel=0.1)
    figures.judge("pipelined.py: step", staged["step_s"], 0.3, rel=0.1)


@pytest.mark.truth
def test_fsdp2_is_taken_apart(tmp_path: Path, figures: Figures) -> None:
    found = recovered(tmp_path, "sharded.py", ("--no-exchange",), figures)
    assert found["split"]["interconnect"]["low_s"] > 0
    assert not any("not taken apart" in note for note in texts(found["notes"]))


@pytest.mark.truth
@pytest.mark.soak
def test_hsdp_is_taken_apart(tmp_path: Path) -> None:
    found = profiled(tmp_path / "run", "sharded.py", "--hsdp")
    assert found["split"]["interconnect"]["low_s"] > 0, "the all-reduce between replicas"


@pytest.mark.truth
def test_collectives_of_the_script_are_timed_as_the_last_rank_waits(tmp_path: Path, figures: Figures) -> None:
    """Rank 0 waits 20 ms longer, for rank 1: that is rank 1's compute and not exchange."""
    found = recovered(tmp_path, "own_exchange.py", ("--exchange", "0"), figures)
    assert found["split"]["compute"]["s"] > 0.058
    figures.judge("own_exchange.py: group", found["groups"][0]["s"], found["split"]["interconnect"]["s"], rel=0.1)
    assert any("(all_reduce)" in note for note in texts(found["notes"]))


@pytest.mark.truth
@pytest.mark.soak
def test_asynchronous_collectives_are_timed_where_the_script_waits(tmp_path: Path) -> None:
    found = profiled(tmp_path / "run", "own_exchange.py", "--asynchronous")
    assert found["split"]["interconnect"]["low_s"] > 0
    assert found["split"]["compute"]["s"] > 0.058
