"""Sweeps by the command line, and what is kept of each simulation."""

import json
import sys
from pathlib import Path

import pytest

from stallwise.cluster.sweep.cases import SimulationResult, Sweep, simulate_cases
from stallwise.cluster.sweep.ray import _CoreWatch
from tests.cluster.sweep.sweeps import made_sweep
from tests.conftest import Cli


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    return made_sweep()


@pytest.fixture(scope="module")
def here(sweep: Sweep) -> list[SimulationResult]:
    """One after the other in this process."""
    return [finished.result for finished in simulate_cases(sweep, list(enumerate(sweep.cases())), lambda *_: None)]


def test_only_the_first_seed_is_drawn(here: list[SimulationResult]) -> None:
    assert {run.case.seed: len(run.levels) for run in here} == {0: 241, 1: 0}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    rows = [f"j{i},{i * 60},{1 << i % 4},{600 + i * i * 37 % 3000}" for i in range(60)]
    path.write_text("\n".join(["job_id,submit_s,gpus,duration_s", *rows]) + "\n")
    return path


ASKED = ("--cluster", "machines=2,gpus=4", "--policy", "fifo,las", "--json")


def test_rows_and_results_of_the_command(ask: Cli, trace: Path, tmp_path: Path) -> None:
    files = ("--results", str(tmp_path / "r.jsonl"), "--csv", str(tmp_path / "rows.csv"))
    first, second = (json.loads(ask("simulate", str(trace), *ASKED, "--seeds", "3", *files).stdout) for _ in "ab")
    assert first == second, "also what they took: nothing was simulated again"
    head, *rows = (tmp_path / "rows.csv").read_text().splitlines()
    assert head.split(",") == list(first["rows"][0])
    assert len(rows) == 6
    for policy in first["settings"][0]["policies"]:
        assert policy["mean_low"]["jct_mean_s"] < policy["mean"]["jct_mean_s"] < policy["mean_high"]["jct_mean_s"]
    no = ask("simulate", str(trace), *ASKED, "--jobs-csv", "x.csv", "--results", "y.jsonl", code=2)
    assert "Leave out one" in no.stderr


def test_engines_that_cannot_be(ask: Cli, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    missing = ask("simulate", str(trace), *ASKED, "--engine", "ray", code=2).stderr
    assert "needs Ray: pip install 'stallwise[ray]'" in missing
    assert "Did you mean local" in ask("simulate", str(trace), *ASKED, "--engine", "lokal", code=2).stderr
    assert "Give --engine ray" in ask("simulate", str(trace), *ASKED, "--address", "auto", code=2).stderr


def test_a_cluster_without_cores_is_spoken_of(capsys: pytest.CaptureFixture[str]) -> None:
    watch = _CoreWatch()
    for now_s, cores in ((0.0, 4), (5.0, 0), (64.0, 0), (66.0, 0), (200.0, 0)):
        watch.update(cores, now_s)
    assert capsys.readouterr().err.startswith("The Ray cluster has had no cores for 61 s.")
    for now_s, cores in ((205.0, 2), (210.0, 0), (260.0, 0)):
        watch.update(cores, now_s)
    assert capsys.readouterr().err == ""
