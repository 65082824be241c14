"""Chaos beside its plan, and the commands `spot chaos` and `spot watch`."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stallwise.elastic.chaos import ChaosTrial, RecoveryCosts, compressed_trace, plan_trial, random_trace
from stallwise.spot.lifetimes.log import AvailabilityTrace
from tests.conftest import Cli
from tests.elastic.lab import Lab
from tests.figures import Figures

MEAN_ERROR = 0.10
GAIN = 0.2
RUNS = 10
COSTS = RecoveryCosts(step_s=0.05, start_s=4.0, first_s=5.0, join_s=3.0, notice_s=3.0, loss_s=6.0)


def _trial(trace: AvailabilityTrace, *, notice: bool = False, work_s: float = 30.0) -> ChaosTrial:
    return ChaosTrial(trace=trace, machines=2, work_s=work_s, interval_s=5.0, notice=notice)


def test_the_plan_of_a_calm_trace_is_the_work() -> None:
    calm = AvailabilityTrace(np.zeros(1), np.array([2]), 100.0)
    assert plan_trial(_trial(calm), COSTS)[0] == pytest.approx(30.0, rel=0.01)


def test_a_loss_costs_its_pause_the_work_since_the_save_and_a_machine() -> None:
    """Half the speed after 13 s; what was done since the last save is done again."""
    lost = AvailabilityTrace(np.array([0.0, 13.0]), np.array([2, 1]), 100.0)
    finish_s, _, redone_s = plan_trial(_trial(lost), COSTS)
    assert 0 < redone_s < 5.0
    assert finish_s == pytest.approx(13.0 + 6.0 + 2 * (17.0 + redone_s), rel=0.02)
    finish_s, _, redone_s = plan_trial(_trial(lost, notice=True), COSTS)
    assert redone_s == 0.0
    assert finish_s == pytest.approx(13.0 + 3.0 + 2 * 17.0, rel=0.02)


def test_traces_keep_one_machine_and_shrink_in_time() -> None:
    trace = random_trace(3, 40.0, 8.0, 1000.0, seed=3)
    assert trace.counts.min() >= 1
    assert trace.most <= 3
    long = AvailabilityTrace(np.array([0.0, 3600.0, 7200.0]), np.array([5, 0, 4]), 9000.0)
    short = compressed_trace(long, 600.0, 3, begin_s=1800.0)
    assert short.counts.tolist() == [3, 1, 3]
    assert short.at_s.tolist() == [0.0, 3.0, 9.0]


@pytest.mark.soak
@pytest.mark.parametrize("kill", [False, True], ids=["notice", "kill"])
def test_lived_against_planned(kill: bool) -> None:
    words = ["spot", "chaos", "--runs", str(RUNS), "--seed", "100", "--json", *(["--kill"] if kill else [])]
    command = [sys.executable, "-m", "stallwise", *words]
    said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=1500).stdout)
    print([round(run["error"], 3) for run in said["runs"]], said["mean_error"])
    assert len(said["runs"]) == RUNS
    assert sum(run["losses"] for run in said["runs"]) >= RUNS
    assert said["mean_error"] <= MEAN_ERROR


def _diary(folder: Path, speeds: list[float]) -> Path:
    times = [[1.0, 20.0, 40.0, 5.0], [1.0, 40.0, 80.0, 1.0]]
    lines = [
        {"at": float(at), "round": 0, "kind": "pace", "step": at, "world": 2, "step_s": 0.1, "samples_per_s": speed,
         "times_ms": times}
        for at, speed in enumerate(speeds)
    ]  # fmt: skip
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_watch_names_the_slow_worker(ask: Cli, tmp_path: Path) -> None:
    folder = _diary(tmp_path, [100.0] * 8 + [70.0] * 5)
    said = ask("spot", "watch", str(folder), "--once", code=1).stdout
    assert "slow worker" in said
    assert "rank 1" in said
    lines = [
        json.loads(line) for line in ask("spot", "watch", str(folder), "--once", "--json", code=1).stdout.splitlines()
    ]
    assert len(lines) == 13
    assert [line["alarm"] for line in lines] == [False] * 10 + [True] * 3
    assert lines[-1]["predicted_per_s"] == pytest.approx(100.0)


@pytest.mark.truth
def test_watch_names_a_slow_worker_of_a_running_job_and_sees_it_heal(
    ask: Cli, tmp_path: Path, port: int, figures: Figures
) -> None:
    """Two ranks; one takes twice as long for some seconds. The gain that was predicted comes when it heals."""
    slow, folder = tmp_path / "slow", tmp_path / "run"
    words = [str(Path(__file__).with_name("slowed.py")), "--folder", str(folder), "--samples", "1000000"]
    words += ["--step", "0.04", "--interval", "1000"]
    job = Lab(tmp_path, [], nnodes="1", per_host=2, environment={"SLOW": str(slow)}, script=words, port=port)
    out = tmp_path / "watched.jsonl"
    with contextlib.closing(job), out.open("w") as file:
        job.start(1)
        job.until(lambda: (folder / "events.jsonl").exists())
        command = [sys.executable, "-m", "stallwise", "spot", "watch", str(folder), "--json"]
        with subprocess.Popen(command, stdout=file) as watching:
            try:
                job.until(lambda: sum(line["predicted_per_s"] is not None for line in _lines(out)) >= 4)
                slow.touch()
                job.until(lambda: _lines(out)[-1]["alarm"])
                job.until(lambda: len(_lines(out)) > 3 and all(line["alarm"] for line in _lines(out)[-3:]))
                named = _lines(out)[-1]
                slow.unlink()
                job.until(lambda: not _lines(out)[-1]["alarm"])
                healed = _lines(out)[-1]
            finally:
                watching.kill()
        ask("spot", "watch", str(folder), "--once", code=0)
    seen = [(line["alarm"], line["bottleneck"], round(line["shortfall"], 3)) for line in _lines(out)]
    assert {line["bottleneck"] for line in _lines(out)} == {None, "slow worker"}, seen
    assert "rank 1" in named["do"]
    gain = healed["measured_per_s"] / named["measured_per_s"]
    figures.judge("gain of a healed worker, predicted", named["gain"], gain, rel=GAIN, unit="times")


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n") if line.endswith("}")]


def test_watch_with_nothing_to_watch(ask: Cli, tmp_path: Path) -> None:
    assert "no session" in ask("spot", "watch", str(tmp_path), "--once", code=2).stderr
    assert "says nothing" in ask("spot", "watch", str(_diary(tmp_path, [])), "--once", code=3).stderr


def test_chaos_says_what_it_cannot_do(ask: Cli, tmp_path: Path) -> None:
    assert "a number from 1 to 64" in ask("spot", "chaos", "--nodes", "0", code=2).stderr
    log = tmp_path / "lives.csv"
    log.write_text("machine,lifetime_s,ended\na,100,preempted\n")
    assert "no trace" in ask("spot", "chaos", str(log), code=2).stderr
