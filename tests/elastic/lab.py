"""Machines of a job on this one: a coordinator and agents, each in a session of its own, and ways to hurt them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.data.testbed.processes import free_ports
from tests.waiting import until

JOB = Path(__file__).with_name("job.py")
MARK = "STALLWISE_LAB"
SECRET = {"STALLWISE_JOB_SECRET": "the secret of the tests' jobs"}
PATIENCE_S = 240.0
"""For anything that happens at all: on a machine with other work a start takes a minute."""


@dataclass
class Lab:
    """One job: `start()` it, hurt it, `wait()` for it; nothing survives `close()`."""

    root: Path
    arguments: Sequence[str]
    nnodes: str = "1:4"
    per_host: int = 1
    options: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    bucket: str | None = None
    heartbeat_s: float | None = 2.0
    """None: the program's own. Agents that get no core for some seconds must not be taken for lost."""
    script: Sequence[str] | None = None
    """Another than `job.py`, with all its arguments."""
    port: int | None = None
    """Of a coordinator that is there already; None: one of its own is started."""
    address: str = "127.0.0.1"
    hosts: list[subprocess.Popen[bytes]] = field(default_factory=list)
    coordinator: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)

    @property
    def folder(self) -> Path:
        return self.root / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def start(self, hosts: int) -> "Lab":
        if self.port is None:
            self.port = free_ports(1)[0]
            self.start_coordinator()
        for _ in range(hosts):
            self.add()
        return self

    def start_coordinator(self, inside: Sequence[str] = ()) -> None:
        command = ("coordinator", "--address", self.address, "--port", str(self.port))
        self.coordinator = self._run(*command, inside=inside)

    def add(self, environment: Mapping[str, str] | None = None, inside: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start a host; `inside`: the words of a command that runs another one somewhere."""
        beats = [] if self.heartbeat_s is None else ["--heartbeat", str(self.heartbeat_s)]
        command = [
            "host", "--coordinator", f"{self.address}:{self.port}", "--nnodes", self.nnodes, "--nproc-per-node",
            str(self.per_host), "--job", str(self.root), *beats, *self.options, *(self.script or self._job()),
        ]  # fmt: skip
        self.hosts.append(self._run(*command, environment=environment, inside=inside))
        return self.hosts[-1]

    def _job(self) -> list[str]:
        return [str(JOB), "--folder", self.bucket or str(self.folder), "--notes", str(self.logs), *self.arguments]

    def _run(
        self, *command: str, environment: Mapping[str, str] | None = None, inside: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        own = {**os.environ, "OMP_NUM_THREADS": "1", MARK: str(self.root), **SECRET, **self.environment}
        with (self.root / "out.txt").open("ab") as out:
            return subprocess.Popen(
                [*inside, sys.executable, "-m", "stallwise.elastic", *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**own, **(environment or {})},
                start_new_session=True,
            )

    def alive(self) -> list[subprocess.Popen[bytes]]:
        return [host for host in self.hosts if host.poll() is None]

    def ranks(self) -> list[psutil.Process]:
        """Rank processes that run now."""
        found = []
        for host in self.alive():
            with contextlib.suppress(psutil.Error):
                for server in psutil.Process(host.pid).children():
                    found += server.children()
        return found

    def steps(self) -> dict[str, list[dict[str, Any]]]:
        """Lines of every rank's log."""
        found: dict[str, list[dict[str, Any]]] = {}
        for path in sorted(self.logs.glob("*.jsonl")):
            lines = path.read_text().split("\n")
            found[path.stem] = [json.loads(line) for line in lines if line.endswith("}")]
        return found

    def last_step(self) -> int:
        return max((line.get("step", 0) for lines in self.steps().values() for line in lines), default=0)

    def events(self) -> list[dict[str, Any]]:
        from stallwise.elastic.protocol import read_events

        return list(read_events(self.folder / "events.jsonl"))

    def rounds(self) -> list[dict[str, Any]]:
        return [event for event in self.events() if event["kind"] == "began"]

    def limit(self, step: int | None) -> None:
        """Let the job make a step per second from this one on; None: it is free to end."""
        self.logs.mkdir(parents=True, exist_ok=True)
        if step is None:
            (self.logs / "limit").unlink(missing_ok=True)
        else:
            (self.logs / "limit").write_text(str(step))

    def until(self, ready: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        until(ready, patience_s, self.said)

    def wait(self, patience_s: float = PATIENCE_S) -> None:
        """Until every agent has ended by itself."""
        self.until(lambda: not self.alive(), patience_s)

    def said(self) -> str:
        return (self.root / "out.txt").read_text()[-6000:]

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.logs / "done.json").read_text())
        return found

    def strays(self) -> list[psutil.Process]:
        """Processes of this lab that nobody looks after: neither agent nor coordinator nor below a living one."""
        kept = {p.pid for p in [*self.alive(), *([self.coordinator] if self.coordinator else [])]}
        below = set()
        for pid in kept:
            with contextlib.suppress(psutil.Error):
                below |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                ours = process.pid not in kept | below and process.environ().get(MARK) == str(self.root)
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def close(self) -> None:
        for process in [*self.hosts, *([self.coordinator] if self.coordinator else [])]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)
        for stray in self.strays():
            with contextlib.suppress(psutil.Error):
                stray.kill()


@contextlib.contextmanager
def lab(root: Path, *arguments: str, **settings: Any) -> Iterator[Lab]:
    made = Lab(root, arguments, **settings)
    try:
        yield made
    finally:
        made.close()
