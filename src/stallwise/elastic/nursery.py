"""Ranks start from here: a process that has imported torch already and forks, so that a restart takes no seconds.

Importing torch and its checkpoints takes 2.7 s of a core per rank, which after every loss the whole job would wait for.
The nursery touches no GPU and starts no thread, so its children are as fresh as new processes. It dies with its
agent, and the ranks with it.

It says {"ready"} when all is imported. The agent writes one line of JSON per rank to start ({"local", "environment",
"command"}) and reads one when it has started ({"local", "pid"}) and one when it has ended ({"local", "exit"}).
"""

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

from stallwise.elastic import worker
from stallwise.elastic.codes import AGENT
from stallwise.record.processes import die_with_parent


def main(channel: int) -> None:
    """Serve until the agent is gone; in a child, run the script."""
    die_with_parent()
    if os.getppid() != int(os.environ[AGENT]):
        return
    _import()
    agent = socket.socket(fileno=channel)
    _tell(agent, ready=1)
    command = _serve(agent)
    if command is not None:
        worker.run(command)


def _import() -> None:
    # DDP asks dynamo a question when it is made: 0.9 s of importing.
    for name in ("torch._dynamo", "torch.utils.data.distributed", "stallwise.elastic.session"):
        importlib.import_module(name)


def _serve(agent: socket.socket) -> list[str] | None:
    """The loop; returns a command in a child, None where the agent is gone."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ranks: dict[int, int] = {}
    rest = b""
    while True:
        ready, _, _ = select.select([agent.fileno(), woken], [], [])
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
            for pid, code in _ended():
                _tell(agent, local=ranks.pop(pid), exit=code)
        if agent.fileno() in ready:
            got = agent.recv(1 << 16)
            if not got:
                return None
            *lines, rest = (rest + got).split(b"\n")
            for line in lines:
                asked: dict[str, Any] = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    agent.close()
                    os.close(woken)
                    os.close(wake)
                    return _born(asked)
                ranks[pid] = asked["local"]
                _tell(agent, local=asked["local"], pid=pid)


def _born(asked: dict[str, Any]) -> list[str]:
    """A child: a session, an environment and signals of its own."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for one in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(one, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update({**asked["environment"], AGENT: str(os.getppid())})
    worker.settle()
    import numpy as np

    np.random.seed()  # else every rank's would be the nursery's
    return list(asked["command"])


def _ended() -> Iterator[tuple[int, int]]:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def _tell(agent: socket.socket, **said: int) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        agent.sendall(json.dumps(said).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
