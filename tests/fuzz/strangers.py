"""A stranger at a port: bytes that nobody meant to send, changed words of the protocol, and pickled programs."""

import contextlib
import os
import pickle
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.fuzz.mutations import mutated

EXECUTIONS = 2000 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 60
_PATIENCE_S = 200.0


class Program:
    """Makes a file where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self._mark), "w")


def replies(
    connect: Callable[[], socket.socket], seeds: Sequence[bytes], mark: Path, number: int = EXECUTIONS
) -> Iterator[tuple[bytes, bytes]]:
    """Send something on each of `number` connections; yields it with all that came back.

    `mark` is a file that exists afterwards if a program of the stranger's has run.
    """
    programs = [pickle.dumps(Program(mark), protocol) for protocol in (0, 2, 5)]
    programs += [seed[: len(seed) // 2] + programs[-1] for seed in seeds]
    draw = random.Random(0 if number <= 60 else time.time_ns())
    samples = [*seeds, *programs]
    for execution in range(number):
        if execution < len(samples):
            sent = samples[execution]
        else:
            sent = mutated(draw.choice(samples), draw.choice(samples), draw)[: 1 << 18]
        yield sent, reply(connect(), sent)
    assert not mark.exists(), "a program of the stranger's has run"


def reply(connection: socket.socket, sent: bytes) -> bytes:
    """What comes back for these bytes, until the connection ends; TimeoutError where it does not end."""
    received = b""
    with connection:
        connection.settimeout(_PATIENCE_S)
        with contextlib.suppress(OSError):  # the other side may be gone already
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 16):
                received += part
    return received
