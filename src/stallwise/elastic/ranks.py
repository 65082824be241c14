"""The rank processes of one machine: started, watched, ended; they die with the agent whatever happens to it."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stallwise.elastic.codes import AGENT

_POLL_S = 0.02
_START_S = 120.0
_IN_VAIN_S = 2.0
"""What is left of a patience that leads to nothing."""


class Ranks:
    """Ranks by local number, from a nursery; `exits` of those that have ended, a signal's negative."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self.running: dict[int, int] = {}
        self.exits: dict[int, int] = {}
        self._open_nursery()

    def _open_nursery(self) -> None:
        ours, theirs = socket.socketpair()
        self._channel, self._rest, self._warm = ours, b"", False
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "stallwise.elastic.nursery", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, AGENT: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()

    def ready(self) -> None:
        """Wait until the nursery can start ranks at once: before that a machine would only hold the others up."""
        until_s = time.monotonic() + _START_S
        while not self._warm and self._nursery.poll() is None and time.monotonic() < until_s:
            self._listen(1.0)

    def start(self, environments: Mapping[int, Mapping[str, str]]) -> dict[int, int]:
        """One process per local rank, in a session of its own; process ids."""
        if self._nursery.poll() is not None:
            self._open_nursery()
        self.exits = {}
        for local, environment in environments.items():
            asked = {"local": local, "environment": dict(environment), "command": self._command}
            with contextlib.suppress(OSError):
                self._channel.sendall(json.dumps(asked).encode() + b"\n")
        until_s = time.monotonic() + _START_S
        while len(self.running) + len(self.exits) < len(environments) and time.monotonic() < until_s:
            if not self._listen(1.0):
                self.exits = dict.fromkeys(environments, 1)
        return dict(self.running)

    def poll(self) -> dict[int, int]:
        """Exit codes so far."""
        while self._listen(0.0, once=True):
            pass
        return self.exits

    def _listen(self, patience_s: float, *, once: bool = False) -> bool:
        """Take in what the nursery says; False where it is gone, or with `once` where it said nothing."""
        if not select.select([self._channel], [], [], patience_s)[0]:
            return not once
        try:
            got = self._channel.recv(1 << 16)
        except OSError:
            got = b""
        if not got:
            # It is gone, and the ranks with it.
            self.exits.update(dict.fromkeys(self.running, -int(signal.SIGKILL)))
            self.running.clear()
            return False
        *lines, self._rest = (self._rest + got).split(b"\n")
        for line in lines:
            self._told(json.loads(line))
        return True

    def _told(self, said: Mapping[str, Any]) -> None:
        if "ready" in said:
            self._warm = True
        elif "pid" in said:
            self.running[said["local"]] = said["pid"]
        else:
            self.running.pop(said["local"], None)
            self.exits[said["local"]] = said["exit"]

    def stop(
        self, sent: signal.Signals, patience_s: float, in_vain: Callable[[], bool] = lambda: False
    ) -> dict[int, int]:
        """Signal all, then kill what is left, its children included; exit codes. `in_vain` ends the patience."""
        self.poll()
        for pid in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sent)
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
        """The nursery, too."""
        self._channel.close()
        with contextlib.suppress(ProcessLookupError):
            self._nursery.kill()
        self._nursery.wait()
