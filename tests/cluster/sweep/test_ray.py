"""Sweeps on Ray: the same answer as here, on several nodes, when one is lost, and nothing left behind."""

import contextlib
import importlib.util
import ipaddress
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stallwise.cluster.sweep import ray as ray_engine
from stallwise.cluster.sweep.ray import _LOCK, _PREFIX
from stallwise.errors import StallwiseError
from tests.conftest import ROOT, Cli, lacks
from tests.program import run_program

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


@contextlib.contextmanager
def _listening(folder: Path) -> Iterator[tuple[set[str], set[tuple[str, str]]]]:
    """Addresses that a cluster's processes listen on meanwhile, and what they have of Ray's authentication."""
    addresses, tokens, over = set[str](), set[tuple[str, str]](), threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            for process in _of_ray(folder):
                with contextlib.suppress(psutil.Error):
                    ours = process.net_connections("inet")
                    addresses.update(one.laddr.ip for one in ours if one.status == psutil.CONN_LISTEN)
                    own = process.environ()
                    if "PATH" in own:  # not written over by the title that Ray gives a process
                        tokens.add((own.get("RAY_AUTH_MODE", ""), own.get("RAY_AUTH_TOKEN", "")))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield addresses, tokens
    finally:
        over.set()
        looking.join()


@pytest.mark.soak  # three Ray nodes start, and one is lost: minutes where others compute beside them
@pytest.mark.timeout(600)
def test_several_nodes_and_the_loss_of_one(ask: Cli, trace: Path, tmp_path: Path, short: Path) -> None:
    """A worker process and then a node are killed while they simulate; what they had is simulated again."""
    done = subprocess.run(
        (sys.executable, "-m", "tests.cluster.sweep.ray_nodes", str(short), str(trace)),
        capture_output=True, text=True, cwd=ROOT, timeout=570, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["killed"]["lost"] == 2
    assert seen["killed"]["same"]
    assert all(seen["killed"]["same"])
    assert seen["command"]["code"] == 0, seen["command"]["err"]
    here = ask("simulate", str(trace), *ASKED, "--seeds", "3").stdout
    assert _without_times(seen["command"]["out"]) == _without_times(here)
    assert _of_ray(short) == []


def test_a_cluster_of_its_own(ask: Cli, trace: Path, tmp_path: Path, short: Path) -> None:
    """The program starts Ray here, answers as without it, and leaves no process and no file."""
    left = short / f"{_PREFIX}left"
    left.mkdir()
    (left / _LOCK).touch()
    words = ("simulate", str(trace), *ASKED, "--seeds", "3", "--engine", "ray", "--concurrency", "2")
    with _listening(short) as (addresses, tokens):
        for _ in range(3):
            done = run_program(words, tmp_path)
            # Ray waits 30 s for its own processes, which cannot be set; beside much other work they take longer.
            if "timed out during startup" not in done.stderr:
                break
            assert "No Ray cluster on this machine" in done.stderr
    assert done.returncode == 0, done.stderr
    assert addresses
    assert all(ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback for address in addresses), addresses
    assert {(mode, len(token)) for mode, token in tokens} == {("token", 64)}, "no call without it is taken"
    here = ask("simulate", str(trace), *ASKED, "--seeds", "3").stdout
    assert _without_times(done.stdout) == _without_times(here)
    assert list(short.iterdir()) == [], "also what a killed sweep left before"
    assert _of_ray(short) == []


def test_a_node_that_does_not_start_is_a_sentence(tmp_path: Path) -> None:
    class Slow:
        """As Ray says it."""

        def init(self, **_: object) -> None:
            raise Exception("The current node timed out during startup. This could happen because")

    with pytest.raises(StallwiseError, match="No Ray cluster on this machine: The current node timed out"):
        ray_engine._join(Slow(), None, 1, tmp_path)


def test_what_others_leave_beside_our_folders_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe hung every user's sweep; through a link, root's made a file anywhere."""
    monkeypatch.setattr(ray_engine, "_parent", lambda: tmp_path)
    target = tmp_path / "nologin"
    linked, piped, open_to_all, link, own = (
        tmp_path / f"{_PREFIX}{name}" for name in ("link", "pipe", "all", "to", "own")
    )
    for folder in (linked, piped, open_to_all, own):
        folder.mkdir(mode=0o700)
    (linked / _LOCK).symlink_to(target)
    os.mkfifo(piped / _LOCK)
    (open_to_all / _LOCK).touch()
    open_to_all.chmod(0o777)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / _LOCK).touch()
    link.symlink_to(tmp_path / "elsewhere")
    (own / _LOCK).touch()
    kept = [linked, piped, open_to_all, link]
    if os.geteuid() == 0:
        foreign = tmp_path / f"{_PREFIX}foreign"
        foreign.mkdir(mode=0o700)
        (foreign / _LOCK).touch()
        os.chown(foreign, 65534, 65534)
        kept.append(foreign)
    ray_engine.remove_stale_folders()
    assert not target.exists()
    assert all(folder.exists() for folder in kept)
    assert (tmp_path / "elsewhere" / _LOCK).exists()
    assert not own.exists(), "what our own sweep left is removed"


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
    command = (
        sys.executable,
        "-m",
        "stallwise",
        "simulate",
        str(trace),
        *ASKED,
        "--engine",
        "ray",
        "--concurrency",
        "1",
    )
    with subprocess.Popen(
        (*command, "--seeds", "20000", "--results", str(results)),
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    ) as program:  # fmt: skip
        until_s = time.monotonic() + 100
        while time.monotonic() < until_s and not (results.exists() and results.stat().st_size > 100_000):
            time.sleep(0.1)
        assert len(_of_ray(short)) >= 2
        os.kill(program.pid, number)
        _, said = program.communicate(timeout=250)
    assert program.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in said
    _, alive = psutil.wait_procs(_of_ray(short), timeout=250)
    assert alive == []
    done = len(results.read_text().splitlines())
    assert done > 50
    subprocess.run((*command, "--seeds", "60", "--results", str(results)), check=True, capture_output=True, timeout=250)
    assert list(short.iterdir()) == []
