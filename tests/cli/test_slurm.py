"""`schedule`, `submit` and `queue` where there is no Slurm to talk to: what they say, and how the queue is drawn."""

import re
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from stallwise.sentences import Sentence, sentence_document
from stallwise.slurm.snapshot import QueuedJob, QueueSnapshot
from tests.conftest import Cli
from tests.sentences import coded


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "patiend"], "Did you mean patient?"),
        (["--policy", "fifo:admit=2"], "admit= cannot be carried out"),
        (["--interval", "0s"], "--interval takes a time above 0"),
        (["--interval", "soon"], "is not a time like"),
        ([], "is not installed here"),
    ],
)
def test_what_cannot_be_scheduled(
    arguments: list[str], said: str, ask: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = ask("schedule", "--partition", "gpu", "--state", str(tmp_path), *arguments, code=2)
    assert said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpus", "8"], "No script was given"),
        (["--speeds", "1,2", "x.sh"], "--speeds takes numbers above 0 and up to 1"),
        (["--run", "r", "--speeds", "1", "x.sh"], "say the same thing"),
        (["--run", "r", "x.sh"], "give --gpus and --partition"),
        (["--gpus", "4", "--nodes", "8", "x.sh"], "8 nodes do not fit the number of GPUs"),
        (["--gpus", "4", "--nodes", "two", "x.sh"], "two nodes do not fit the number of GPUs"),
    ],
)
def test_what_cannot_be_submitted(arguments: list[str], said: str, ask: Cli) -> None:
    assert said in ask("submit", *arguments, code=2).stderr


def test_submit_shows_the_command_it_would_run(ask: Cli) -> None:
    given = [
        "--gpus",
        "8",
        "--speeds",
        "1,0.5",
        "-p",
        "gpu",
        "--dry-run",
        "--time=60",
        "my script.sh",
        "a b",
        "--model",
        "x",
    ]
    assert ask("submit", *given).stdout == (
        "sbatch --hold --requeue '--comment=stallwise:{\"speeds\":[1.0,0.5]}' --gpus=8 --nodes=1-8 --partition=gpu "
        "--time=60 'my script.sh' 'a b' --model x\n"
    )


PATIENT = Sentence("job.holds-out", "holds out for one rack; 16 are free only across racks")
LARGE = Sentence("job.too-few-free", "needs 24 GPUs")


def snapshot(age_s: float = 0.0) -> QueueSnapshot:
    now = time.time() - age_s
    jobs = (
        QueuedJob(job="3", user="ann", name="bert\x1b[31m\nx", gpus=16, phase="waiting", since_s=now - 90,
                  why=PATIENT, until_s=now + 7325),
        QueuedJob(job="4", user="bob", name="w" * 60, gpus=24, phase="waiting", since_s=now - 30, why=LARGE),
        QueuedJob(job="5_1", user="ann", name="s", gpus=8, phase="running", since_s=now - 5,
                  nodes={"n2": 4, "n3": 4}, stops=2),
    )  # fmt: skip
    return QueueSnapshot(
        time_s=now, partition="gpu", policy="patient", gpus=32, free_gpus=22, other_gpus=2, levels=("machine", "rack"),
        interval_s=2.0, jobs=jobs,
    )  # fmt: skip


def test_the_queue_tells_why_and_until_when(ask: Cli, tmp_path: Path) -> None:
    (tmp_path / "queue.json").write_bytes(msgspec.json.encode(snapshot(), enc_hook=sentence_document))
    shown = ask("queue", "--state", str(tmp_path)).stdout
    assert "gpu: 22 of 32 GPUs free, 2 not ours · patient" in shown
    assert "holds out for one rack" in shown
    assert "2.03 h" in shown
    assert "\x1b" not in shown
    assert "n2:4 n3:4" in shown
    assert "2×" in shown
    only = ask("queue", "--state", str(tmp_path), "--user", "bob", "--json").stdout
    assert [job["job"] for job in coded(only)["jobs"]] == ["4"]


def test_a_silent_controller_is_told_of(ask: Cli, tmp_path: Path) -> None:
    assert "No controller has written" in ask("queue", "--state", str(tmp_path), code=2).stderr
    (tmp_path / "queue.json").write_bytes(msgspec.json.encode(snapshot(age_s=300), enc_hook=sentence_document))
    assert re.search(r"was last heard of 3\d\d", ask("queue", "--state", str(tmp_path)).stderr)
    (tmp_path / "queue.json").write_text("{")
    assert "cannot be read" in ask("queue", "--state", str(tmp_path), code=2).stderr


WAITING = """
import os, signal, subprocess, sys
from stallwise.cli.slurm import _stopped_by

signal.signal(signal.SIGTERM, lambda *_: None)
sends = "import os, sys, time\\nfor _ in sys.stdin.buffer:\\n    time.sleep(0.0003)\\n    os.kill({}, 15)"
sender = subprocess.Popen([sys.executable, "-c", sends.format(os.getpid())], stdin=subprocess.PIPE)
for _ in range(400):
    stop = _stopped_by(signal.SIGTERM)
    sender.stdin.write(b"now\\n")
    sender.stdin.flush()
    while not stop(0.00001):
        pass
sender.stdin.close()
sender.wait(10)
print("stopped every time")
"""


def test_a_signal_at_any_moment_ends_the_waiting() -> None:
    """With a `threading.Event`, about one in a thousand met the lock of the thread that waits, which then hung."""
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True, timeout=250)
    assert done.stdout == "stopped every time\n", done.stderr
