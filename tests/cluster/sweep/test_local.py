"""The engine on this machine: threads, processes that are killed, portions by measured time."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import psutil
import pytest

from stallwise.cluster.sweep.cases import FinishedCase, SimulationResult, Sweep, simulate_cases
from stallwise.cluster.sweep.local import LocalEngine, Portions, run_in_processes
from stallwise.cluster.sweep.sweep import run_sweep
from stallwise.errors import StallwiseError
from tests.cluster.sweep.sweeps import contents, made_sweep
from tests.waiting import PATIENCE_S, until


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    return made_sweep()


@pytest.fixture(scope="module")
def here(sweep: Sweep) -> list[SimulationResult]:
    """One after the other in this process."""
    return [finished.result for finished in simulate_cases(sweep, list(enumerate(sweep.cases())), lambda *_: None)]


def test_threads_answer_alike(sweep: Sweep, here: list[SimulationResult]) -> None:
    assert [run.case for run in here] == sweep.cases()
    assert contents(run_sweep(sweep, engine=LocalEngine(3))) == contents(here)


def test_processes_answer_alike_also_when_they_are_killed() -> None:
    """Two processes; after each of the first answers one of them is killed in the middle of its portion."""
    sweep = made_sweep(seeds=8, keep=True)
    cases = list(enumerate(sweep.cases()))
    expected = [finished.result for finished in simulate_cases(sweep, cases, lambda *_: None)]
    portions = Portions(cases, workers=2, target_s=0.5)
    found: dict[int, SimulationResult] = {}
    killed, others = 0, set(psutil.Process().children())
    for finished in run_in_processes(sweep, portions, lambda *_: None):
        found[finished.number] = finished.result
        workers = sorted(set(psutil.Process().children()) - others, key=lambda process: process.pid)
        if killed < 3 and len(found) % 8 == 0 and workers:
            workers[0].kill()
            killed += 1
    assert killed == 3
    assert contents([found[number] for number, _ in cases]) == contents(expected)
    assert set(psutil.Process().children()) <= others, "no process is left"


def test_a_sweep_that_is_left_ends_its_processes(sweep: Sweep) -> None:
    others = set(psutil.Process().children())
    portions = Portions(list(enumerate(sweep.cases())), workers=2, target_s=0.5)
    stream: Iterator[FinishedCase] = run_in_processes(sweep, portions, lambda *_: None)
    assert len(list(islice(stream, 2))) == 2
    stream.close()  # type: ignore[attr-defined]
    assert set(psutil.Process().children()) <= others


def test_what_goes_wrong_in_a_process_is_said_here() -> None:
    sweep = made_sweep(policies=("fifo",))
    large = replace(sweep, arrivals="given", jobs=(replace(sweep.jobs[0], gpus=64),))
    portions = Portions(list(enumerate(large.cases())), workers=1, target_s=0.5)
    with pytest.raises(StallwiseError, match="asks for 64 GPUs, the cluster has 8"):
        list(run_in_processes(large, portions, lambda *_: None))


def test_portions_are_cut_by_measured_time(here: list[SimulationResult]) -> None:
    """Each alone until something is known; then 0.5 s of work, and towards the end an even share of half the rest."""
    many = made_sweep(seeds=200)
    portions = Portions(list(enumerate(many.cases())), workers=2, target_s=0.5)
    assert [number for number, _ in portions.take()] == [0]
    for number in range(5):
        portions.record(FinishedCase(number, here[number], 0.01))
    assert 49 <= len(portions.take()) <= 51
    sizes = [len(portion) for portion in iter(portions.take, [])]
    assert sum(sizes) + 51 == pytest.approx(4000, abs=1)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1
    assert portions.take() == portions.one() == []


def test_a_slow_policy_gets_smaller_portions(here: list[SimulationResult]) -> None:
    one = made_sweep(seeds=400, policies=("fifo",))
    portions = Portions(list(enumerate(one.cases())), workers=2, target_s=0.5)
    fifo, slow = here[0], replace(here[0], case=replace(here[0].case, policy="slow"))
    portions.record(FinishedCase(0, fifo, 0.1))
    portions.record(FinishedCase(1, slow, 3.0))
    assert len(portions.take()) == 5, "what other policies take does not count"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    rows = [f"j{i},{i * 60},{1 << i % 4},{600 + i * i * 37 % 3000}" for i in range(60)]
    path.write_text("\n".join(["job_id,submit_s,gpus,duration_s", *rows]) + "\n")
    return path


ASKED = ("--cluster", "machines=2,gpus=4", "--policy", "fifo,las", "--json")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ctrl_c_ends_a_sweep_and_its_processes(trace: Path, tmp_path: Path, number: signal.Signals) -> None:
    """The real program with processes under way. What was done is in the file, and a later call goes on from it."""
    results = tmp_path / "r.jsonl"
    command = (
        sys.executable,
        "-m",
        "stallwise",
        "simulate",
        str(trace),
        *ASKED,
        "--seeds",
        "20000",
        "--concurrency",
        "2",
    )
    with subprocess.Popen(
        (*command, "--results", str(results)), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as program:
        until(lambda: results.exists() and results.stat().st_size > 100_000)
        workers = psutil.Process(program.pid).children()
        assert len(workers) == 2
        os.kill(program.pid, number)
        _, said = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in said
    assert psutil.wait_procs(workers, timeout=PATIENCE_S)[1] == []
    assert len(results.read_text().splitlines()) > 50, "two lines with curves take half of the 100,000 bytes"
