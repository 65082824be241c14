"""Small real training scripts as subjects of tests, and what it takes to profile one."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest

from stallwise.record.rank.environment import PROCESS_NAME, STACKS_NAME
from tests.program import run_program

JOBS = Path(__file__).parent
TRAIN = str(JOBS / "train.py")
MARK = "STALLWISE_TEST_MARK"


class Profiled:
    """`stallwise profile …` in a folder of its own; every process it starts carries a mark."""

    def __init__(self, folder: Path, *arguments: str, out: str | None = "run", module: str = "stallwise") -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self.run = folder / (out or "run")
        options = ["profile", *(["--out", out] if out else [])] if module == "stallwise" else []
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *options, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=folder,
            env=os.environ | {MARK: self.mark, "OMP_NUM_THREADS": "1"},
        )

    def ended(self, code: int, *, patience_s: float = 200) -> "Profiled":
        """Wait for the end; check exit code, that no traceback is ours and that no process is left."""
        stacks = ""
        try:
            self.process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            stacks = f"not over after {patience_s:g} s\n{self._stacks()}\n"
        self.process.kill()
        left = self.left_after(100)  # loader workers look for their parent every few seconds
        for process in left:
            process.kill()
        self.out, self.err = self.process.communicate(timeout=250)
        assert self.process.returncode == code, f"{stacks}exit {self.process.returncode}\n{self.out}\n{self.err}"
        assert not left, f"left behind: {[process.info for process in left]}\n{self.err}"
        for trace in self.err.split("Traceback (most recent call last)")[1:]:
            assert "stallwise/" not in trace.replace(str(JOBS), ""), self.err
        return self

    def _stacks(self) -> str:
        """What every thread of the ranks is doing."""
        from stallwise.record.rank._watchdog import STACKS_SIGNAL

        folders = [path.parent for path in self.run.rglob(PROCESS_NAME)]
        for folder in folders:
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((folder / PROCESS_NAME).read_text()), STACKS_SIGNAL)
        time.sleep(5)
        return "\n".join((folder / STACKS_NAME).read_text() for folder in folders)

    def left_after(self, patience_s: float) -> list[psutil.Process]:
        """Processes with our mark that live on after so long."""
        until = time.monotonic() + patience_s
        while (left := marked(self.mark)) and time.monotonic() < until:
            time.sleep(0.2)
        return left

    def wait_for(self, ready: Any, patience_s: float = 200) -> Any:
        """Wait until `ready()` says something, while the profile runs."""
        until = time.monotonic() + patience_s
        while not (found := ready()):
            assert self.process.poll() is None, self.process.communicate(timeout=250)
            assert time.monotonic() < until, "nothing happened"
            time.sleep(0.05)
        return found

    def wait_for_rounds(self, rounds: int) -> None:
        """Until the job has got so far."""
        progress = self.run / "parts/rank-00000/progress.json"
        self.wait_for(lambda: progress.exists() and json.loads(progress.read_bytes())["round"] >= rounds)

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """Signal the launcher, and only it."""
        self.process.send_signal(number)

    @property
    def said(self) -> str:
        """Our own sentence: the last one on stderr."""
        return next(line for line in reversed(self.err.splitlines()) if line.startswith("stallwise: "))

    @property
    def manifest(self) -> dict[str, Any]:
        """The run's."""
        return json.loads((self.run / "manifest.json").read_bytes())  # type: ignore[no-any-return]

    def shown(self) -> dict[str, Any]:
        """What `stallwise report --detail` reads from the run."""
        done = run_program(["report", "--detail", "--json", str(self.run)], self.folder)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    def litter(self, *known: str) -> list[str]:
        """What lies beside the run that was not there before."""
        names = {self.run.name, *known}
        return sorted(path.name for path in self.folder.iterdir() if path.name not in names)


def plain_ranks(ranks: int, *command: str, timeout_s: float = 250) -> str:
    """What rank 0 of a bare job prints. Started with torchrun's variables and without its seconds of starting up."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    world = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = [
        subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | world | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            start_new_session=True,  # as torchrun does; the kernel shares cores out by sessions
        )
        for rank in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=timeout_s) for process in started]
    finally:
        for process in started:
            process.kill()
    assert not any(process.returncode for process in started), [err[-2000:] for _, err in said]
    return said[0][0]


def wait_for_line(process: "subprocess.Popen[str]", text: str, patience_s: float = 200) -> None:
    """Read the program's standard error up to a line with `text`; fail with what was said if none comes."""
    stream = process.stderr
    assert stream is not None
    said: list[str] = []
    found = threading.Event()

    def read() -> None:
        for line in stream:
            said.append(line)
            if text in line:
                found.set()
                return

    # A thread, because a read of a silent pipe cannot be given up.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(patience_s)
    if not found.is_set():
        process.kill()
        pytest.fail(
            f"no line with {text!r} came within {patience_s:.0f} s or before the end; it said:\n{''.join(said)}"
        )


def marked(mark: str) -> list[psutil.Process]:
    """Live processes that were started with this mark in their environment."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found
