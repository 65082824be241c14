"""Faults that machines have, for tests: pauses, wrong clocks, networks cut in two, and files whose n-th call fails.

with stopped(machine_of(host)): ...                     SIGSTOP of a whole host, SIGCONT afterwards
environment = skewed_clock(-10.0)                       of a process and its children, by libfaketime
with machines_on_a_network(3) as network: network.cut({0}, {1, 2})
with failing_call(5, Fault.KILL): store.commit(…)       the fifth call that writes fails
"""

import contextlib
import enum
import errno
import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import lacks
from tests.system import require_packages


def machine_of(host: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    """An agent and everything below it, as a virtual machine that is paused."""
    agent = psutil.Process(host.pid)
    return [agent, *agent.children(recursive=True)]


@contextlib.contextmanager
def stopped(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Stop processes, and let them go on."""
    try:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def skewed_clock(seconds: float, folder: Path) -> dict[str, str]:
    """Environment variables of a Python process whose wall clock is off; its monotonic clock is right.

    (libfaketime 0.9.10 of Debian makes `time.sleep` fail: it also moves the monotonic times of clock_nanosleep.)
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(
        "import time\n"
        "_time, _time_ns = time.time, time.time_ns\n"
        f"time.time = lambda: _time() + {seconds!r}\n"
        f"time.time_ns = lambda: _time_ns() + {round(seconds * 1e9)}\n"
    )
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))}


_NOBODY = "02:00:00:00:00:01"


@dataclass
class PartitionedNetwork:
    """Machines as network namespaces behind one bridge; `cut` separates them into sides."""

    tag: str
    count: int
    bridge: str = ""
    _cut: list[tuple[int, int]] = field(default_factory=list)

    def address(self, machine: int) -> str:
        return f"10.79.{os.getpid() % 250}.{machine + 1}"

    def command(self, machine: int) -> list[str]:
        """What runs a command on a machine."""
        return ["ip", "netns", "exec", self._namespace(machine)]

    def cut(self, *sides: Collection[int]) -> None:
        """Let only machines of one side reach each other: packets for the others go to a card that nobody has."""
        self.heal()
        for one, other in itertools.permutations(range(self.count), 2):
            if not any(one in side and other in side for side in sides):
                words = ("neigh", "replace", self.address(other), "lladdr", _NOBODY, "nud", "permanent", "dev", "eth0")
                _run("ip", "-n", self._namespace(one), *words)
                self._cut.append((one, other))

    def heal(self) -> None:
        while self._cut:
            one, other = self._cut.pop()
            _run("ip", "-n", self._namespace(one), "neigh", "del", self.address(other), "dev", "eth0")

    def build(self) -> None:
        self.bridge = f"{self.tag}br"
        _run("ip", "link", "add", self.bridge, "type", "bridge")
        _run("ip", "link", "set", self.bridge, "up")
        for machine in range(self.count):
            namespace = self._namespace(machine)
            _run("ip", "netns", "add", namespace)
            _run("ip", "link", "add", self._near(machine), "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _run("ip", "link", "set", self._near(machine), "master", self.bridge, "up")
            _run("ip", "-n", namespace, "addr", "add", f"{self.address(machine)}/24", "dev", "eth0")
            _run("ip", "-n", namespace, "link", "set", "eth0", "up")
            _run("ip", "-n", namespace, "link", "set", "lo", "up")

    def remove(self) -> None:
        for machine in range(self.count):
            subprocess.run(["ip", "netns", "del", self._namespace(machine)], capture_output=True, timeout=250)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True, timeout=250)

    def _namespace(self, machine: int) -> str:
        return f"{self.tag}-{machine}"

    def _near(self, machine: int) -> str:
        return f"{self.tag}v{machine}"


@contextlib.contextmanager
def machines_on_a_network(count: int) -> Iterator[PartitionedNetwork]:
    require_packages("iproute2")
    network = PartitionedNetwork(f"swn{os.getpid() % 10**6}", count)
    try:
        try:
            network.build()
        except (subprocess.CalledProcessError, FileNotFoundError):
            lacks("root, for network namespaces behind a bridge")
        yield network
    finally:
        network.remove()


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=250)


class Fault(enum.Enum):
    """What a call that writes does instead."""

    NO_SPACE = errno.ENOSPC
    QUOTA = errno.EDQUOT
    BROKEN_DISK = errno.EIO
    SHORT_WRITE = -1
    KILL = -2
    STOP = -3
    """SIGSTOP before the call, which is made after a SIGCONT."""


CALLS = ("open", "write", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "close", "link")
"""Functions of `os` that a save goes through; `Path` uses them, too."""


class FailingFiles:
    """Counts calls of `os` that may change a disk; one of them fails."""

    def __init__(self, number: int, fault: Fault) -> None:
        self.number, self.fault, self.calls = number, fault, 0
        self._plain: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> "FailingFiles":
        for name in CALLS:
            self._plain[name] = getattr(os, name)
            setattr(os, name, self._failing(name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, plain in self._plain.items():
            setattr(os, name, plain)

    def _failing(self, name: str) -> Callable[..., Any]:
        plain = self._plain[name]

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls != self.number:
                return plain(*arguments, **options)
            if self.fault is Fault.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault is Fault.STOP:
                os.kill(os.getpid(), signal.SIGSTOP)
                return plain(*arguments, **options)
            if self.fault is Fault.SHORT_WRITE:
                if name == "write" and len(arguments[1]) > 1:
                    return plain(arguments[0], memoryview(arguments[1])[: len(arguments[1]) // 2])
                return plain(*arguments, **options)
            if name == "close":
                plain(*arguments, **options)  # the descriptor is gone whatever close says
            raise OSError(self.fault.value, os.strerror(self.fault.value), *map(str, arguments[:1]))

        return call


def failing_call(number: int, fault: Fault) -> FailingFiles:
    """Let the n-th call fail; 0: none, only count."""
    return FailingFiles(number, fault)
