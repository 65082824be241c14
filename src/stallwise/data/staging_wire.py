"""Messages between the jobs of a node and the process that keeps the books (`staging_server`), with files attached.

A socket of whole messages (SOCK_SEQPACKET) at an abstract address: it has no file, is found by processes of one network
namespace, and both ends check that the other is the same user. Batches and orders travel as descriptors of
anonymous memory (memfd), which the kernel frees with its last holder: nobody's death leaves anything in /dev/shm.
"""

import array
import errno
import os
import socket
import struct
from typing import Any

import msgspec

MOST_BYTES = 1 << 17


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Who comes. `facts`: name, digest and what to call it, of everything that jobs must have in common."""

    job: str
    is_worker: bool
    facts: list[tuple[str, str, str]] = []
    limit_bytes: int = 0
    expected: int = 1
    patience_s: float = 2.0
    gather_s: float = 30.0


class Begin(msgspec.Struct, frozen=True, tag=True):
    """An epoch and its order (a file of int64 comes with it)."""

    epoch: int
    batches: int
    digest: str
    at: int


class Want(msgspec.Struct, frozen=True, tag=True):
    """A job waits for a batch."""

    epoch: int
    batch: int


class Done(msgspec.Struct, frozen=True, tag=True):
    """It has taken it."""

    epoch: int
    batch: int


class Ask(msgspec.Struct, frozen=True, tag=True):
    """A worker asks for something to prepare."""

    wait: bool


class OrderOf(msgspec.Struct, frozen=True, tag=True):
    """A worker asks for an epoch's order."""

    epoch: int


class Room(msgspec.Struct, frozen=True, tag=True):
    """A worker has prepared a batch."""

    epoch: int
    batch: int
    size_bytes: int


class Put(msgspec.Struct, frozen=True, tag=True):
    """The batch comes with it."""

    epoch: int
    batch: int


class Fail(msgspec.Struct, frozen=True, tag=True):
    """It could not be prepared."""

    epoch: int
    batch: int
    text: str


class AskStat(msgspec.Struct, frozen=True, tag=True):
    """How things stand."""


Request = Hello | Begin | Want | Done | Ask | OrderOf | Room | Put | Fail | AskStat


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is not meant is left at its default."""

    refused: str | None = None
    spot: tuple[int, int] | None = None
    is_wanted: bool = False
    error: str | None = None
    stat: dict[str, int] = {}


class GoneError(Exception):
    """The other end has gone."""


def address_of(group: str) -> str:
    """Where a group's books are kept: per user and name."""
    return f"\0stallwise-staging-{os.getuid()}-{group}"


def is_same_user(connection: socket.socket) -> bool:
    """An abstract address has no permissions: whoever is at the other end must be who we are."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(uid == os.getuid())


def send(connection: socket.socket, message: Any, file: int | None = None) -> None:
    """One message, with a descriptor or without."""
    data = msgspec.msgpack.encode(message)
    if len(data) > MOST_BYTES:
        raise ValueError(f"a message of {len(data)} bytes")
    attached = [] if file is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))]
    try:
        connection.sendmsg([data], attached, socket.MSG_NOSIGNAL)
    except (BrokenPipeError, ConnectionError):
        raise GoneError from None
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        raise GoneError from None  # closed on our side


def receive(connection: socket.socket) -> tuple[bytes, int | None]:
    """One message and the descriptor that came with it; raises where the other end has gone."""
    try:
        data, attached, _, _ = connection.recvmsg(MOST_BYTES, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        raise GoneError from None
    files = array.array("i")
    for level, kind, body in attached:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files.frombytes(body[: len(body) - len(body) % files.itemsize])
    if not data:
        raise GoneError
    return data, files[0] if files else None


def request_of(data: bytes) -> Request:
    """What a client says."""
    return msgspec.msgpack.decode(data, type=Request)  # type: ignore[no-any-return]


def answer_of(data: bytes) -> Answer:
    """What the server says."""
    return msgspec.msgpack.decode(data, type=Answer)
