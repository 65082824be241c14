"""Every way a job can end: one clear sentence, the documented exit code, no process left, a record that reads."""

import signal
import socket
import time
from pathlib import Path

import psutil
import pytest

from stallwise.record.launch import _PATIENCE_S
from tests.conftest import Cli, texts
from tests.record.jobs import JOBS, TRAIN, Profiled

SHORT = ("--max-time", "0.5s")
TWO = ("--nproc-per-node", "2")


def test_a_script_that_fails_keeps_its_traceback_and_its_code(tmp_path: Path) -> None:
    job = Profiled(tmp_path, TRAIN, "--wrong", "raise", "--at", "12").ended(3)
    assert job.err.count("Traceback (most recent call last)") == 1
    first_frame = job.err.split("Traceback (most recent call last):\n")[1].splitlines()[0]
    assert first_frame.strip().startswith(f'File "{TRAIN}", line'), "our frames are not shown"
    assert "ValueError: the subject's own error" in job.err
    assert "exit code 1" in job.said
    assert "the script raised ValueError" in job.said
    assert job.manifest["job"]["exit_code"] == 1
    assert job.shown()["state"] == "partial"
    assert job.litter() == []


def test_a_crash_on_one_rank_of_two_is_named_with_its_own_code(tmp_path: Path) -> None:
    job = Profiled(tmp_path, *TWO, TRAIN, "--wrong", "exit", "--at", "25", "--on", "1").ended(3)
    assert "exit code 3" in job.said, job.said
    assert "Rank 1 stopped before its end: the script called sys.exit(3)" in job.said
    assert job.manifest["job"]["exit_code"] == 3
    shown = job.shown()
    assert shown["state"] == "partial"
    assert shown["counts"]["ranks_seen"] == 2
    assert job.litter() == []


@pytest.mark.soak
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_does_not_lose_the_record(tmp_path: Path, rank: int) -> None:
    job = Profiled(tmp_path, *TWO, TRAIN, "--workers", "1", "--wrong", "kill", "--at", "300", "--on", str(rank)).ended(
        1
    )
    assert f"Rank {rank} stopped before its end: its process was killed or lost." in job.said, job.said
    shown = job.shown()
    assert shown["counts"]["steps"] > 50, "what was measured before is there"
    assert {phase["name"] for phase in shown["phases"] if phase["steps"]} >= {"as is", "no exchange"}


def test_a_killed_single_process_is_named_by_its_signal(tmp_path: Path) -> None:
    job = Profiled(tmp_path, TRAIN, "--workers", "1", "--wrong", "kill", "--at", "3").ended(3)
    assert "killed by signal 9" in job.said
    assert "Too little was measured" in job.said
    assert job.shown()["state"] == "partial"


def test_a_hang_is_noticed_and_all_stacks_are_saved(tmp_path: Path) -> None:
    wrong = ("--wrong", "hang", "--at", "30", "--on", "1")
    job = Profiled(tmp_path, *TWO, "--hang-after", "15s", TRAIN, *wrong).ended(3)
    assert "The job hung: no rank began a step for 15 s" in job.said
    assert "run/stacks" in job.said
    stacks = {path.name: path.read_text() for path in (job.run / "stacks").iterdir()}
    assert set(stacks) == {"rank-0.txt", "rank-1.txt"}
    assert "backward" in stacks["rank-0.txt"], "rank 0 waits in the exchange of gradients"
    assert "in go_wrong" in stacks["rank-1.txt"]
    assert "Traceback" not in job.err
    assert job.shown()["state"] == "partial"


@pytest.mark.soak
def test_stacks_of_a_rank_that_is_busy_elsewhere_are_asked_for(tmp_path: Path) -> None:
    job = Profiled(tmp_path, *TWO, "--hang-after", "2s", str(JOBS / "stray.py")).ended(3)
    assert "The job hung" in job.said
    assert "in stray" in (job.run / "stacks/rank-1.txt").read_text()


@pytest.mark.parametrize(
    ("number", "ranks"), [(signal.SIGINT, TWO), pytest.param(signal.SIGTERM, (), marks=pytest.mark.soak)]
)
def test_interrupted_it_shows_what_was_measured(tmp_path: Path, number: int, ranks: tuple[str, ...]) -> None:
    job = Profiled(tmp_path, *ranks, TRAIN, "--workers", "1")
    job.wait_for_rounds(2)
    job.interrupt(number)
    job.ended(130)
    assert "The profile was interrupted." in job.said
    assert "Traceback" not in job.err
    assert "compute" in job.out, "the card is there"
    assert job.shown()["partial_reason"]["text"].startswith("The profile was interrupted.")
    assert job.litter() == []


def test_interrupted_in_warm_up_there_is_nothing_to_show(tmp_path: Path) -> None:
    job = Profiled(tmp_path, TRAIN, "--mark", "begun", "--wrong", "hang", "--at", "2")
    job.wait_for(lambda: (job.run / "parts/rank-00000/workers/control").exists())
    job.interrupt()
    job.ended(130)
    assert "The profile was interrupted." in job.said
    assert "Too little was measured" in job.said


def test_nothing_outlives_a_killed_launcher(tmp_path: Path, cli: Cli) -> None:
    job = Profiled(tmp_path, *TWO, TRAIN, "--workers", "1")
    job.wait_for_rounds(1)
    assert len(psutil.Process(job.process.pid).children(recursive=True)) >= 5
    job.process.kill()
    job.ended(-signal.SIGKILL)
    shown = job.shown()
    assert "its launcher was killed" in shown["partial_reason"]["text"]
    assert shown["counts"]["ranks_seen"] == 2
    cli("run", "join", "run")
    assert job.shown()["counts"]["steps"] == shown["counts"]["steps"]


def test_asked_twice_it_stops_at_once(tmp_path: Path) -> None:
    job = Profiled(tmp_path, "--no-overlay", str(JOBS / "deaf.py"))  # its file is to be seen
    job.wait_for(lambda: (tmp_path / "begun").exists())
    ranks = psutil.Process(job.process.pid).children(recursive=True)
    job.interrupt()
    began_s = time.monotonic()
    job.wait_for(lambda: (tmp_path / "asked").exists())
    time.sleep(1)
    assert job.process.poll() is None, "the rank is given time"
    job.interrupt()
    assert psutil.wait_procs(ranks, timeout=200)[1] == []
    assert time.monotonic() - began_s < _PATIENCE_S, "not the time that it was given"
    job.ended(130)
    assert "The profile was interrupted." in job.said


@pytest.mark.parametrize(
    ("script", "arguments", "says"),
    [
        ("train.py", ("--steps", "12"), "12 steps were seen, too few to measure each phase once"),
        ("no_training.py", (), "No training step was seen"),
        pytest.param(
            "spawns_ranks.py",
            (),
            "A script that starts its ranks itself is profiled with --nproc-per-node",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_too_little_to_measure_is_said(tmp_path: Path, script: str, arguments: tuple[str, ...], says: str) -> None:
    job = Profiled(tmp_path, str(JOBS / script), *arguments).ended(3)
    assert says in job.said, job.said
    assert job.shown()["state"] == "complete", "the job itself did nothing wrong"
    assert "Traceback" not in job.err


@pytest.mark.parametrize("loop", ["endless", pytest.param("own", marks=pytest.mark.soak)])
def test_loops_of_other_kinds_end_by_themselves(tmp_path: Path, loop: str) -> None:
    job = Profiled(tmp_path, *SHORT, str(JOBS / "loops.py"), loop).ended(0)
    notes = " ".join(texts(job.manifest["notes"]))
    assert ("No DataLoader was seen" in notes) == (loop == "own")
    assert "trained to the end" not in job.out
    assert "Traceback" not in job.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("absent.py",), "There is no script absent.py"),
        (("--nproc-per-node", "0", TRAIN), "processes per node must be a number"),
        (("--nproc-per-node", "many", TRAIN), "processes per node must be a number"),
        (("--nnodes", "2", TRAIN), "--master-addr"),
        (("--nnodes", "2", "--node-rank", "2", "--master-addr", "localhost", TRAIN), "--node-rank"),
        (("--master-port", "70000", TRAIN), "Port 70000 cannot be used"),
        (("-m", "no_such_module"), "There is no module no_such_module"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    job = Profiled(tmp_path, *options).ended(2)
    assert says in job.said
    assert "Traceback" not in job.err
    assert job.litter() == []


def test_a_port_in_use_is_said_at_once(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        job = Profiled(tmp_path, *TWO, "--master-port", port, TRAIN).ended(2)
    assert f"Port {port} cannot be used" in job.said


def test_a_folder_that_cannot_be_written_is_said_before_the_job_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    job = Profiled(tmp_path, TRAIN, "--mark", "begun", out="file/run").ended(2)
    assert "cannot be written" in job.said
    assert "begun" not in job.out


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    first = Profiled(tmp_path, str(JOBS / "no_training.py")).ended(3)
    before = (first.run / "manifest.json").read_bytes()
    second = Profiled(tmp_path, str(JOBS / "no_training.py")).ended(2)
    assert "already holds a run" in second.said
    assert (first.run / "manifest.json").read_bytes() == before
