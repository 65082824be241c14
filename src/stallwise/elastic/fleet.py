"""Machines of a job on this one: a coordinator, agents as hosts, and what each has cost."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stallwise.record.processes import die_with_parent

_STOP_S = 5.0


@dataclass
class Host:
    """One agent: since when, until when it was there."""

    process: "subprocess.Popen[bytes]"
    began_s: float
    ended_s: float | None = None


@dataclass
class LocalFleet:
    """Hosts that come and go. Everything ends with `close()`, or with the process that made it."""

    command: Sequence[str]
    out: Path
    most: int
    grace_s: float = 30.0
    options: Sequence[str] = ()
    hosts: list[Host] = field(default_factory=list)

    def __post_init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._coordinator = self._start("coordinator", "--port", str(self._port))

    def add(self) -> Host:
        """Another machine."""
        arguments = ["host", "--coordinator", f"127.0.0.1:{self._port}", "--nnodes", f"1:{self.most}"]
        arguments += ["--max-crashes", "1000", "--grace", f"{self.grace_s:g}", *self.options, *self.command]
        self.hosts.append(Host(self._start(*arguments), time.monotonic()))
        return self.hosts[-1]

    def _start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        with self.out.open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "stallwise.elastic", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    @property
    def alive(self) -> list[Host]:
        """Hosts that are there."""
        for host in self.hosts:
            if host.ended_s is None and host.process.poll() is not None:
                host.ended_s = time.monotonic()
        return [host for host in self.hosts if host.ended_s is None]

    def revoke(self, host: Host, *, notice: bool) -> None:
        """Take a machine away: SIGTERM and its grace, or SIGKILL."""
        host.process.send_signal(signal.SIGTERM if notice else signal.SIGKILL)
        if not notice:
            host.process.wait()
        host.ended_s = time.monotonic()

    def rented_s(self) -> float:
        """Machine time so far."""
        now_s = time.monotonic()
        return sum((now_s if host.ended_s is None else host.ended_s) - host.began_s for host in self.hosts)

    def close(self) -> None:
        """All of it, at once."""
        for process in [*(host.process for host in self.hosts), self._coordinator]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
