"""Rank processes, forked from a server that has imported torch already, so that a restart takes no seconds.

Importing torch and its checkpoints takes 2.7 s of a core per rank, which after every loss the whole job would wait for.
The fork server (`python -m stallwise.elastic.forkserver`) touches no GPU and starts no thread, so its children are as
fresh as new processes. It dies with its agent, and the ranks with it.

It sends {"ready"} when all is imported. The agent (`RankProcesses`) writes one line of JSON per rank to start
({"local", "environment", "command"}) and reads one when it has started ({"local", "pid"}) and one when it has ended
({"local", "exit"}).
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stallwise.elastic._notices import catch_signal
from stallwise.elastic.protocol import AGENT, RankExit
from stallwise.errors import InputError
from stallwise.record.processes import die_with_parent

_POLL_S = 0.02
_START_S = 120.0
_IN_VAIN_S = 2.0
"""What is left of a patience that leads to nothing."""


class RankProcesses:
    """The ranks of one machine by local number; `exits` of those that have ended, negative for a signal."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self.running: dict[int, int] = {}
        self.exits: dict[int, int] = {}
        self._start_server()

    def _start_server(self) -> None:
        ours, theirs = socket.socketpair()
        self._channel, self._rest, self._warm = ours, b"", False
        self._server = subprocess.Popen(
            [sys.executable, "-m", "stallwise.elastic.forkserver", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, AGENT: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()

    def ready(self) -> None:
        """Wait until the server can fork ranks at once: before that a machine would only hold the others up."""
        until_s = time.monotonic() + _START_S
        while not self._warm and self._server.poll() is None and time.monotonic() < until_s:
            self._receive(1.0)

    def start(self, environments: Mapping[int, Mapping[str, str]]) -> dict[int, int]:
        """Start one process per local rank, in a session of its own; returns process ids."""
        if self._server.poll() is not None:
            self._start_server()
        self.exits = {}
        for local, environment in environments.items():
            request = {"local": local, "environment": dict(environment), "command": self._command}
            with contextlib.suppress(OSError):
                self._channel.sendall(json.dumps(request).encode() + b"\n")
        until_s = time.monotonic() + _START_S
        while len(self.running) + len(self.exits) < len(environments) and time.monotonic() < until_s:
            if not self._receive(1.0):
                self.exits = dict.fromkeys(environments, 1)
        return dict(self.running)

    def poll(self) -> dict[int, int]:
        """Return the exit codes so far."""
        while self._receive(0.0, once=True):
            pass
        return self.exits

    def _receive(self, patience_s: float, *, once: bool = False) -> bool:
        """Read what the server sends; False where it is gone, or with `once` where it sent nothing."""
        if not select.select([self._channel], [], [], patience_s)[0]:
            return not once
        try:
            data = self._channel.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            # It is gone, and the ranks with it.
            self.exits.update(dict.fromkeys(self.running, -int(signal.SIGKILL)))
            self.running.clear()
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        return True

    def _take(self, message: Mapping[str, Any]) -> None:
        if "ready" in message:
            self._warm = True
        elif "pid" in message:
            self.running[message["local"]] = message["pid"]
        else:
            self.running.pop(message["local"], None)
            self.exits[message["local"]] = message["exit"]

    def stop(
        self, number: signal.Signals, patience_s: float, in_vain: Callable[[], bool] = lambda: False
    ) -> dict[int, int]:
        """Signal all ranks, then kill those that are left, with their children; returns exit codes.

        `in_vain` shortens the patience: nothing that the ranks still do can succeed.
        """
        self.poll()
        for pid in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        self._wait(patience_s, in_vain)
        for pid in self.running.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        self._wait(_START_S)
        return self.exits

    def _wait(self, patience_s: float, in_vain: Callable[[], bool] = lambda: False) -> None:
        until_s = time.monotonic() + patience_s
        while self.running and time.monotonic() < until_s:
            self.poll()
            time.sleep(_POLL_S)
            if until_s - time.monotonic() > _IN_VAIN_S and in_vain():
                until_s = time.monotonic() + _IN_VAIN_S

    def close(self) -> None:
        """Kill the server, and the ranks with it."""
        self._channel.close()
        with contextlib.suppress(ProcessLookupError):
            self._server.kill()
        self._server.wait()


def main(channel: int) -> None:
    """Serve until the agent is gone; in a child, run the script."""
    die_with_parent()
    if os.getppid() != int(os.environ[AGENT]):
        return
    # DDP asks dynamo a question when it is made: 0.9 s of importing.
    gc.disable()  # nothing of what is imported is garbage: a third of the time was looking through it
    for name in ("torch._dynamo", "torch.utils.data.distributed", "stallwise.elastic._session"):
        importlib.import_module(name)
    gc.freeze()  # ranks share the memory of what was imported, which their own collections would copy
    gc.enable()
    agent = socket.socket(fileno=channel)
    _send(agent, ready=1)
    command = _serve(agent)
    if command is not None:
        _run_rank(command)


def _serve(agent: socket.socket) -> list[str] | None:
    """Fork ranks on request; returns a command in a child, None where the agent is gone."""
    wake_out, wake_in = os.pipe()
    os.set_blocking(wake_out, False)
    os.set_blocking(wake_in, False)
    signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ranks: dict[int, int] = {}
    rest = b""
    while True:
        ready, _, _ = select.select([agent.fileno(), wake_out], [], [])
        if wake_out in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_out, 4096)
            for pid, code in _reaped():
                _send(agent, local=ranks.pop(pid), exit=code)
        if agent.fileno() in ready:
            data = agent.recv(1 << 16)
            if not data:
                return None
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                request: dict[str, Any] = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    agent.close()
                    os.close(wake_out)
                    os.close(wake_in)
                    return _become_rank(request)
                ranks[pid] = request["local"]
                _send(agent, local=request["local"], pid=pid)


def _become_rank(request: dict[str, Any]) -> list[str]:
    """Give a forked child a session, an environment, signals and random state of its own."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update({**request["environment"], AGENT: str(os.getppid())})
    die_with_parent()
    if os.getppid() != int(os.environ[AGENT]):  # the server died before the line above
        os._exit(1)
    catch_signal()
    import numpy as np

    np.random.seed()  # else every rank's would be the server's
    return list(request["command"])


def _reaped() -> Iterator[tuple[int, int]]:
    """Yield process id and exit code of every child that has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def _send(agent: socket.socket, **message: int) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        agent.sendall(json.dumps(message).encode() + b"\n")


def _run_rank(arguments: list[str]) -> None:
    """Run the script as python does.

    A peer may be lost before the session is entered, or after it: while ranks meet, while DDP compares its parameters.
    """
    try:
        _as_python_does(arguments)
    except InputError as error:
        from stallwise.elastic._rendezvous import exit_now

        sys.stderr.write(f"stallwise: {error}\n")
        exit_now(RankExit.REFUSED)
    except Exception as error:
        from stallwise.elastic._rendezvous import exit_now, peer_lost

        if peer_lost(error):
            traceback.print_exc()
            exit_now(RankExit.PEER_LOST)
        raise


def _as_python_does(arguments: list[str]) -> None:
    """As `python script.py …` or `python -m module …`."""
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = ""
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))  # noqa: PTH100, PTH120 - as python does
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(int(sys.argv[1]))
