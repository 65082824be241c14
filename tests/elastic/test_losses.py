"""Losses of every kind, each lived through by real processes."""

import contextlib
import http.server
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallwise.elastic import _manifest as manifest
from stallwise.elastic._agent import RankProcesses
from stallwise.elastic.protocol import RankExit, read_events
from stallwise.elastic.wire import AddValue, CoordinatorClient
from tests.conftest import lacks
from tests.data.testbed.seaweed import Seaweed
from tests.elastic.lab import JOB, PATIENCE_S, SECRET, Lab, lab
from tests.figures import Figures

RECOVERY_S = 10.0


@pytest.mark.parametrize("ranks", [3, pytest.param(4, marks=pytest.mark.soak)])
def test_same_bits_after_a_rank_was_killed(ranks: int, tmp_path: Path, port: int) -> None:
    size, options = ("--samples", "480", "--batch", "2", "--interval-steps", "15"), ["--max-crashes", "9"]
    with (
        lab(tmp_path / "calm", *size, "--step-s", "0", nnodes="1", per_host=ranks, port=port) as calm,
        lab(tmp_path / "hurt", *size, nnodes="1", per_host=ranks, options=options, port=port) as hurt,
    ):
        hurt.limit(40)
        hurt.start(1)
        hurt.until(lambda: hurt.last_step() >= 28)
        hurt.until(lambda: any(event["kind"] == "saved" for event in hurt.events()))
        # Of several processes that read the table of all processes one may not be seen: wait for all.
        hurt.until(lambda: len(hurt.ranks()) == ranks)
        hurt.ranks()[1].kill()
        hurt.limit(None)
        calm.start(1)
        hurt.wait()
        calm.wait()
        assert len(hurt.rounds()) == 2, hurt.said()
        assert hurt.rounds()[1]["step"] > 10
        assert hurt.result() == calm.result()


def test_machines_go_with_notice_come_and_the_coordinator_dies(tmp_path: Path) -> None:
    """Learning rate and sharding follow the active workers; every sample once; a lost coordinator is a restart."""
    with lab(tmp_path, "--samples", "1600", "--batch", "2", "--interval-steps", "50", nnodes="1:2") as job:
        job.limit(60)
        job.start(2)
        # One that comes late joins in a round of its own.
        job.until(lambda: job.last_step() >= 30 and job.rounds()[-1]["world"] == 2)
        steps, first = job.last_step(), len(job.rounds())
        job.alive()[0].terminate()  # its writer is among the ranks: the role goes over
        job.until(lambda: len(job.rounds()) == first + 1)
        alone = job.rounds()[first]
        assert alone["world"] == 1
        assert alone["step"] >= steps
        assert job.hosts[0].wait(PATIENCE_S) == 143
        job.add()
        job.until(lambda: len(job.rounds()) == first + 2)
        both = job.rounds()[first + 1]
        assert both["world"] == 2
        job.limit(both["step"] + 30)
        job.until(lambda: job.last_step() >= both["step"] + 20)
        assert job.coordinator is not None
        job.coordinator.kill()
        job.coordinator.wait(30)
        time.sleep(1.0)
        job.start_coordinator()
        job.until(lambda: len(job.rounds()) >= first + 3)
        job.limit(None)
        job.wait()
        began = job.rounds()
        assert Counter(host.returncode for host in job.hosts) == {0: 2, 143: 1}, job.said()
        made = _made(job)
        for number, lost in enumerate(_lost(job)):
            assert lost <= 1, (number, lost, began)
        rates = {event["step"]: made[event["step"] + 1][0]["lr"] for event in began}
        assert rates[alone["step"]] == pytest.approx(made[alone["step"]][0]["lr"] / 2, rel=0.2)
        assert rates[both["step"]] == pytest.approx(2 * made[both["step"]][0]["lr"], rel=0.2)
        seen = Counter(index for lines in made.values() for line in lines for index in line["samples"])
        assert set(seen) == set(range(1600))
        joins = sum(event["world"] == 2 for event in began[1:-1])
        assert sum(seen.values()) - 1600 <= joins  # one is repeated where they do not divide
        job.until(lambda: not job.strays())


@pytest.mark.truth
def test_a_killed_machine_is_made_up_for_within_ten_seconds(tmp_path: Path, port: int, figures: Figures) -> None:
    """With the default times of a rendezvous, and no spare. That it is made up for at all: `test_a_few_kills`."""
    job_size = ("--samples", "100000", "--interval-steps", "20")
    with lab(tmp_path, *job_size, nnodes="1:2", port=port, heartbeat_s=None) as job:
        job.start(2)
        job.until(lambda: bool(job.rounds()) and job.rounds()[-1]["world"] == 2 and job.last_step() > 25)
        rounds, killed_s = len(job.rounds()), time.time()
        job.alive()[1].kill()
        job.until(lambda: len(job.rounds()) > rounds)
        went_on = job.rounds()[-1]
        assert went_on["world"] == 1
        figures.at_most("recovery from the loss of a machine", went_on["at"] - killed_s, RECOVERY_S, unit="s")
        job.until(lambda: not job.strays())


@pytest.mark.soak
def test_budgets_of_two_jobs_at_one_coordinator(tmp_path: Path, port: int) -> None:
    """Crashes, losses and blame are told apart, and each job has its own count.

    `bug`: a machine goes with notice, then a bug of the script's stops the job after so many crashes. `blame`: a rank
    says that a peer is gone before it is in the session, though nobody is; that ends, too. Who comes later is told.
    """
    size, options = ("--samples", "600"), ["--max-crashes", "1"]
    with (
        lab(tmp_path / "bug", *size, "--crash-at", "40", nnodes="1:2", options=[*options, "--job", "bug"]) as bug,
        lab(tmp_path / "blame", *size, "--blame", nnodes="1", per_host=2) as blame,
    ):
        bug.port = blame.port = port
        bug.start(2)
        blame.options = [*options, "--job", "blame"]
        blame.start(1)
        bug.until(lambda: bug.last_step() >= 5)
        bug.alive()[0].terminate()
        bug.wait()
        blame.wait()
        assert [host.returncode for host in bug.hosts] == [143, 1], bug.said()
        assert [host.returncode for host in blame.hosts] == [1], blame.said()
        for job in (bug, blame):
            assert "ranks have crashed 2 times, 1 are allowed" in job.said()
        assert bug.said().count("ValueError: a bug of the user's own") == 2
        assert [_count(port, "bug", what) for what in ("losses", "crashes")] == [1, 2]
        assert [_count(port, "blame", what) for what in ("losses", "crashes")] == [0, 2]
        assert sum(_count(port, "blame", f"crashed/{number}") for number in range(4)) == 0
        late = blame.add()
        blame.wait()
        assert late.returncode == 1
        assert "job 'blame' has ended: ranks have crashed 2 times" in blame.said()


def _count(port: int, job: str, key: str) -> int:
    with contextlib.closing(CoordinatorClient("127.0.0.1", port, next(iter(SECRET.values())).encode(), job)) as client:
        return client.call(AddValue(key, 0)).number


def test_ranks_get_the_time_they_need_unless_it_is_in_vain(tmp_path: Path) -> None:
    """One saves for a second when it is told to stop, one would for ever; then a machine is lost meanwhile."""
    script, ready = tmp_path / "saves.py", tmp_path / "ready"
    script.write_text(
        "import os, signal, sys, time\n"
        "told = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: told.append(1))\n"
        "open(os.environ['READY'], 'w').close()\n"
        "while not told:\n    time.sleep(0.01)\n"
        "time.sleep(float(os.environ['SAVES_S']))\n"
        "sys.exit(75)\n"
    )
    with contextlib.closing(RankProcesses([str(script)])) as ranks:
        ranks.start({0: {"SAVES_S": "1", "READY": str(ready)}})
        give_up_s = time.monotonic() + PATIENCE_S
        while not ready.exists():
            assert time.monotonic() < give_up_s, "the rank did not start"
            time.sleep(0.02)
        assert ranks.stop(signal.SIGTERM, 600.0, lambda: False) == {0: RankExit.AGAIN}
        ranks.start({0: {"SAVES_S": "1000", "READY": str(ready)}})
        begin_s = time.monotonic()
        assert ranks.stop(signal.SIGTERM, 600.0, lambda: True) == {0: -signal.SIGKILL}
        assert time.monotonic() - begin_s < 600, "not the time that it was given"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "none", folder], timeout=250).returncode
    ):
        lacks("root, to mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True, timeout=250)


def test_a_full_disk_and_damaged_checkpoints(tmp_path: Path, small_disk: Path, port: int) -> None:
    """Of 8 MB checkpoints two fit: the third fails, training goes on. Damaged ones are passed over."""
    job_size = ("--samples", "600", "--interval-steps", "20", "--ballast", "2000000")
    with lab(
        tmp_path / "job", *job_size, nnodes="1", options=["--max-crashes", "9"], port=port, heartbeat_s=1.0
    ) as job:
        job.folder.symlink_to(small_disk)
        job.limit(81)  # the save at step 60 fails, that at 80 is the second of two; the next one would fail again
        job.start(1)
        job.until(lambda: sum(event["kind"] == "failed" for event in job.events()) >= 1)
        job.until(lambda: len(manifest.checkpoint_names(small_disk)) == 2)
        job.alive()[0].kill()
        job.until(lambda: not job.alive())
        job.until(lambda: not job.strays())
        older, newest = manifest.checkpoint_names(small_disk)
        job.limit(None)
        part = next((small_disk / newest).glob("rank-00000.*"))
        os.truncate(part, part.stat().st_size // 2)
        job.add()
        job.until(lambda: len(job.rounds()) == 2)
        assert job.rounds()[1]["step"] == manifest.checkpoint_step(older)
        (passed,) = [event for event in job.events() if event["kind"] == "passed"]
        assert passed["name"] == newest
        assert "bytes instead of" in passed["why"]
        job.wait()
        assert job.hosts[-1].returncode == 0, job.said()
        assert job.result()["steps"] == 300


class _Metadata(http.server.BaseHTTPRequestHandler):
    """An endpoint of AWS: what it says is the server's."""

    def do_PUT(self) -> None:
        self.send_error(404)

    def do_GET(self) -> None:
        said = self.server.said()  # type: ignore[attr-defined]
        if said is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(said.encode())

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def metadata(said: Callable[[], str | None]) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Metadata) as server:
        server.said = said  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"aws=http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_metadata_endpoints_that_hang_answer_404_and_lie(tmp_path: Path, port: int) -> None:
    """One accepts and never answers. One has nothing to say, then says that the machine went last century.

    The machine saves, leaves, is still there, and comes back.
    """
    lies: list[str] = []
    with (
        metadata(lambda: lies[0] if lies else None) as endpoint,
        socket.create_server(("127.0.0.1", 0), backlog=100) as mute,
    ):
        hangs = f"gcp=http://127.0.0.1:{mute.getsockname()[1]}"
        environment = {"STALLWISE_METADATA": f"{hangs},{endpoint}", "STALLWISE_FALSE_ALARM_S": "1"}
        arguments = ("--samples", "300", "--interval-steps", "1000")
        with lab(tmp_path, *arguments, nnodes="1", environment=environment, port=port) as job:
            job.limit(40)
            job.start(1)
            job.until(lambda: job.last_step() >= 20)
            lies.append('{"action": "terminate", "time": "1999-12-31T23:59:59Z"}')
            job.until(lambda: len(job.rounds()) == 2)
            assert job.rounds()[1]["step"] >= 20
            job.limit(None)
            job.wait()
            assert job.hosts[0].returncode == 0, job.said()
            assert len(job.rounds()) == 2
            assert "a false alarm" in job.said()


@pytest.mark.soak
def test_checkpoints_in_a_bucket(tmp_path: Path, seaweed: Seaweed, new_bucket: Callable[..., str]) -> None:
    with lab(tmp_path / "job", "--samples", "1200", "--interval-steps", "50", nnodes="2") as job:
        job.bucket = f"s3://{new_bucket()}/one"
        job.environment = dict(seaweed.environment)
        job.arguments = [*job.arguments, "--endpoint", seaweed.endpoint]
        job.options = ["--max-crashes", "9"]
        job.limit(140)
        job.start(2)
        job.until(lambda: job.last_step() >= 120)
        job.ranks()[0].kill()
        job.until(lambda: len(_groups(job)) >= 2)
        job.limit(None)
        assert _groups(job)[-1][0] >= 50
        job.wait()
        assert job.result()["steps"] == 300, job.said()


def _groups(job: Lab) -> list[tuple[int, dict[int, list[dict[str, object]]]]]:
    """Rounds in order of time: the step each began at, and its lines by step."""
    found: dict[tuple[str, int], tuple[float, dict[int, list[dict[str, object]]]]] = {}
    for name, lines in job.steps().items():
        if not lines:
            continue
        begin, *rest = lines
        _, by_step = found.setdefault((name[:4], begin["begin"]), (begin["at"], {}))
        for line in rest:
            by_step.setdefault(line["step"], []).append(line)
    return [(key[1], by_step) for key, (_, by_step) in sorted(found.items(), key=lambda item: item[1][0])]


def _made(job: Lab) -> dict[int, list[dict[str, object]]]:
    """Lines of the steps that count: of a step made twice the later."""
    kept: dict[int, list[dict[str, object]]] = {}
    for begin, by_step in _groups(job):
        kept = {step: lines for step, lines in kept.items() if step <= begin} | by_step
    return kept


def _lost(job: Lab) -> list[int]:
    """Steps that each new round had to make again."""
    groups = _groups(job)
    return [max(before[1], default=before[0]) - after[0] for before, after in itertools.pairwise(groups)]


def test_sigterm_before_the_first_step_is_not_missed(tmp_path: Path, port: int) -> None:
    with lab(tmp_path, "--samples", "1000", nnodes="1", port=port) as job:
        job.limit(0)
        job.start(1)
        job.until(lambda: bool(job.ranks()))
        os.kill(job.ranks()[0].pid, signal.SIGTERM)
        job.until(lambda: len(job.rounds()) == 2)
        assert job.rounds()[1]["step"] <= 3


@pytest.mark.soak
def test_under_plain_torchrun(tmp_path: Path) -> None:
    """Without our agent: a killed rank is started again by torchrun and goes on from the checkpoint."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "3", str(JOB), "--folder", str(tmp_path / "run"), "--notes", str(tmp_path / "logs")]
    command += ["--samples", "1200", "--interval-steps", "20"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        try:
            events = tmp_path / "run" / "events.jsonl"
            give_up_s = time.monotonic() + PATIENCE_S
            while not (events.exists() and events.read_text().count('"saved"') >= 3):
                assert time.monotonic() < give_up_s
                assert job.poll() is None
                time.sleep(0.1)
            os.kill(next(read_events(events))["pid"], signal.SIGKILL)
            assert job.wait(PATIENCE_S) == 0
        finally:
            job.kill()
    began = [event for event in read_events(events) if event["kind"] == "began"]
    assert len(began) == 2
    assert began[1]["step"] > 20
    assert json.loads((tmp_path / "logs" / "done.json").read_text())["steps"] == 300
