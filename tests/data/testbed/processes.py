"""Servers that tests start: in their own process group, gone with whoever started them, stopped within a bound."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_STOP_S = 60.0


def start(command: Sequence[str], log: Path, namespace: str | None = None) -> subprocess.Popen[bytes]:
    """A server of ours; should this process die without a word (kill -9), the kernel ends the server too."""
    inside = ["ip", "netns", "exec", namespace] if namespace else []
    with log.open("ab") as out:
        return subprocess.Popen(
            [*inside, "setpriv", "--pdeathsig", "KILL", *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """The whole group, at once: what these servers hold is thrown away anyway, and an orderly end takes 28 s."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(_STOP_S)


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, patience_s: float = 150) -> None:
    """Until the server answers; with the end of its log where it does not."""
    give_up = time.monotonic() + patience_s
    while not ready():
        if process.poll() is not None or time.monotonic() > give_up:
            tail = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{process.args!r} does not answer; its log ends:\n{tail}")
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now; all held open until the last is found, so that they differ."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            ports.append(one.getsockname()[1])
        return ports
