"""Sweeps on Ray: the same answer as here, on several nodes, when one is lost, and nothing left behind."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stallwise.cluster.engines import ray_cluster
from tests.cluster.sweeps import POLICIES
from tests.conftest import ROOT, Cli, lacks

ASKED = ("--cluster", "machines=2,gpus=4", "--policy", "fifo,las", "--json")


@pytest.fixture(scope="module", autouse=True)
def _ray() -> None:
    if importlib.util.find_spec("ray") is None:
        lacks("Ray: pip install 'stallwise[ray]'")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    rows = [f"j{i},{i * 60},{1 << i % 4},{600 + i * i * 37 % 3000}" for i in range(60)]
    path.write_text("\n".join(["job_id,submit_s,gpus,duration_s", *rows]) + "\n")
    return path


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a short path for Ray's sockets, which must be empty at the end."""
    with tempfile.TemporaryDirectory(prefix="sw", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def _without_times(text: str) -> object:
    found = json.loads(text)
    for row in found["rows"]:
        del row["took_s"]
    return found


def _of_ray(folder: Path) -> list[psutil.Process]:
    """Processes of a cluster that lives in this folder."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(process.info["cmdline"] or ())
    ]


def test_several_nodes_and_the_loss_of_one(ask: Cli, trace: Path, tmp_path: Path, short: Path) -> None:
    """A worker process and then a node are killed while they simulate; what they had is simulated again."""
    done = subprocess.run(
        (sys.executable, "-m", "tests.cluster.ray_nodes", str(short), str(trace)),
        capture_output=True, text=True, cwd=ROOT, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["killed"] == {"lost": 2, "runs": len(POLICIES) * 16, "same": True}
    assert seen["command"]["code"] == 0, seen["command"]["err"]
    here = ask("simulate", str(trace), *ASKED, "--seeds", "3").stdout
    assert _without_times(seen["command"]["out"]) == _without_times(here)
    assert _of_ray(short) == []


def test_a_cluster_of_its_own(cli: Cli, ask: Cli, trace: Path, short: Path) -> None:
    """The program starts Ray here, answers as without it, and leaves no process and no file."""
    left = short / f"{ray_cluster._PREFIX}left"
    left.mkdir()
    (left / ray_cluster._LOCK).touch()
    done = cli("simulate", str(trace), *ASKED, "--seeds", "3", "--engine", "ray", "--cores", "2")
    here = ask("simulate", str(trace), *ASKED, "--seeds", "3").stdout
    assert _without_times(done.stdout) == _without_times(here)
    assert list(short.iterdir()) == [], "also what a killed sweep left before"
    assert _of_ray(short) == []


def test_no_cluster_at_an_address(cli: Cli, trace: Path) -> None:
    no = cli("simulate", str(trace), *ASKED, "--engine", "ray", "--address", "127.0.0.1:1", code=2)
    assert "No Ray cluster at 127.0.0.1:1" in no.stderr


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_sweep_that_is_ended_takes_ray_along(
    trace: Path, tmp_path: Path, short: Path, number: signal.Signals
) -> None:
    """Also kill -9: Ray's processes end with ours, the file has what was done, and the next sweep tidies up."""
    results = tmp_path / "r.jsonl"
    command = (sys.executable, "-m", "stallwise", "simulate", str(trace), *ASKED, "--engine", "ray", "--cores", "1")
    with subprocess.Popen(
        (*command, "--seeds", "20000", "--results", str(results)),
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    ) as program:  # fmt: skip
        until_s = time.monotonic() + 100
        while time.monotonic() < until_s and not (results.exists() and results.stat().st_size > 100_000):
            time.sleep(0.1)
        assert len(_of_ray(short)) >= 2
        os.kill(program.pid, number)
        _, said = program.communicate(timeout=40)
    assert program.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in said
    _, alive = psutil.wait_procs(_of_ray(short), timeout=20)
    assert alive == []
    done = len(results.read_text().splitlines())
    assert done > 50
    subprocess.run((*command, "--seeds", "60", "--results", str(results)), check=True, capture_output=True, timeout=60)
    assert list(short.iterdir()) == []
