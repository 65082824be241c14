"""A client's connection to the process that keeps a group's books; starts it where there is none."""

import atexit
import os
import socket
import subprocess
import sys
import time
import weakref

from stallwise.data.staging_wire import Answer, GoneError, Request, address_of, answer_of, is_same_user, receive, send
from stallwise.errors import StallwiseError

_PATIENCE_S = 30.0
_POLL_S = 0.02


_started: "list[subprocess.Popen[bytes]]" = []
_links: "weakref.WeakSet[Link]" = weakref.WeakSet()


def _close_inherited() -> None:
    """A forked child that held a job's connection would hide the job's death."""
    for link in list(_links):
        link.close()


os.register_at_fork(after_in_child=_close_inherited)


@atexit.register
def _let_go() -> None:
    """What we started outlives us on purpose: no warning that it still runs."""
    for process in _started:
        if process.poll() is None:
            process.returncode = 0


class Link:
    """One connection, used by one thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        _links.add(self)

    def close(self) -> None:
        """Let it go; the other end notices at once."""
        self._connection.close()

    def tell(self, said: Request, file: int | None = None) -> None:
        """Say something that has no answer."""
        send(self._connection, said, file)

    def ask(self, said: Request, file: int | None = None) -> tuple[Answer, int | None]:
        """Say something and wait for the answer; the caller closes the file that came with it."""
        send(self._connection, said, file)
        return self.answer()

    def answer(self, timeout_s: float | None = None) -> tuple[Answer, int | None]:
        """The answer to what was asked; TimeoutError where it does not come in time."""
        self._connection.settimeout(timeout_s)
        data, got = receive(self._connection)
        return answer_of(data), got


def connect(group: str, *, start: bool) -> Link:
    """To the group's process. `start`: make one where there is none; else wait for somebody who does."""
    give_up_s = time.monotonic() + _PATIENCE_S
    process: subprocess.Popen[bytes] | None = None
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(address_of(group))
            if is_same_user(connection):
                return Link(connection)
        except OSError:
            pass
        connection.close()
        if time.monotonic() > give_up_s:
            raise StallwiseError(f"The process that shares batches in the group {group!r} does not answer.")
        if start and (process is None or process.poll() is not None):
            process = _start(group)
        time.sleep(_POLL_S)


def _start(group: str) -> "subprocess.Popen[bytes]":
    """In a session of its own: it is not this job's, and must not go with it."""
    program = [sys.executable, "-m", "stallwise.data.staging_server", group]
    devnull = subprocess.DEVNULL
    process = subprocess.Popen(
        program, stdin=devnull, stdout=devnull, start_new_session=True, cwd=os.sep, env=_environment()
    )
    _started.append(process)  # nobody waits for it
    return process


def _environment() -> dict[str, str]:
    """Ours, and the path this package was found on: its folder is another."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


__all__ = ["GoneError", "Link", "connect"]
