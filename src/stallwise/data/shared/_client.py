"""A client's connection to the process that coordinates a group; starts that process where there is none."""

import atexit
import os
import socket
import subprocess
import sys
import time
import weakref

from stallwise.data.shared._protocol import (
    StagingReply,
    StagingRequest,
    address_of,
    is_same_user,
    receive,
    reply_of,
    send,
)
from stallwise.errors import StallwiseError

_PATIENCE_S = 30.0
_POLL_S = 0.02


_started: "list[subprocess.Popen[bytes]]" = []
_connections: "weakref.WeakSet[StagingConnection]" = weakref.WeakSet()


def _close_inherited() -> None:
    """Close inherited connections: a forked child that held one would hide the job's death."""
    for connection in list(_connections):
        connection.close()


os.register_at_fork(after_in_child=_close_inherited)


@atexit.register
def _detach() -> None:
    """Suppress the warning that a started coordinator still runs: it outlives this job on purpose."""
    for process in _started:
        if process.poll() is None:
            process.returncode = 0


class StagingConnection:
    """One connection, used by one thread at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        _connections.add(self)

    def close(self) -> None:
        self._connection.close()

    def tell(self, message: StagingRequest, file: int | None = None) -> None:
        """Send a message that has no reply."""
        send(self._connection, message, file)

    def ask(self, message: StagingRequest, file: int | None = None) -> tuple[StagingReply, int | None]:
        """Send a message and wait for the reply; the caller closes the file attached to it."""
        send(self._connection, message, file)
        return self.reply()

    def reply(self, timeout_s: float | None = None) -> tuple[StagingReply, int | None]:
        """Wait for the reply to the last message; `TimeoutError` after `timeout_s` seconds."""
        self._connection.settimeout(timeout_s)
        data, file = receive(self._connection)
        return reply_of(data), file


def connect(group: str, *, start: bool) -> StagingConnection:
    """Connect to the group's process. With `start`, start it where there is none; else wait for a job that does."""
    give_up_s = time.monotonic() + _PATIENCE_S
    process: subprocess.Popen[bytes] | None = None
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(address_of(group))
            if is_same_user(connection):
                return StagingConnection(connection)
        except OSError:
            pass
        connection.close()
        if time.monotonic() > give_up_s:
            raise StallwiseError(f"The process that shares batches in the group {group!r} does not answer.")
        if start and (process is None or process.poll() is not None):
            process = _start(group)
        time.sleep(_POLL_S)


def _start(group: str) -> "subprocess.Popen[bytes]":
    """Start the coordinator in a session of its own: it must not end with this job."""
    program = [sys.executable, "-m", "stallwise.data.shared.server", group]
    devnull = subprocess.DEVNULL
    process = subprocess.Popen(
        program, stdin=devnull, stdout=devnull, start_new_session=True, cwd=os.sep, env=_environment()
    )
    _started.append(process)  # never waited for
    return process


def _environment() -> dict[str, str]:
    """Return this environment with `sys.path`: the process runs in another folder."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
