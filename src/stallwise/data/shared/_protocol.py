"""Messages between the jobs of a node and the process that coordinates them (`server`), with files attached.

A socket of whole messages (SOCK_SEQPACKET) at an abstract address: it has no file, is found by processes of one network
namespace, and both ends check that the other is the same user. Batches and orders travel as descriptors of
anonymous memory (memfd), which the kernel frees with its last holder: no process's death leaves anything in /dev/shm.
Tags are fixed here, independently of the names of the classes: they are the format.
"""

import array
import errno
import os
import socket
import struct
from typing import Any

import msgspec

MOST_BYTES = 1 << 17
# Of a text that is no UTF-8, msgspec raises Python's own error.
_INVALID = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class StagingHello(msgspec.Struct, frozen=True, tag="Hello"):
    """The first message of a job or worker. `facts`: name, digest and display name of all that jobs must share."""

    job: str
    is_worker: bool
    facts: list[tuple[str, str, str]] = []
    limit_bytes: int = 0
    expected: int = 1
    patience_s: float = 2.0
    gather_s: float = 30.0


class EpochStart(msgspec.Struct, frozen=True, tag="Begin"):
    """A job begins an epoch (its order is attached as a file of int64)."""

    epoch: int
    batches: int
    digest: str
    at: int


class BatchRequest(msgspec.Struct, frozen=True, tag="Want"):
    """A job requests a batch and waits for it."""

    epoch: int
    batch: int


class BatchReceipt(msgspec.Struct, frozen=True, tag="Done"):
    """A job has read a batch into its own memory."""

    epoch: int
    batch: int


class WorkRequest(msgspec.Struct, frozen=True, tag="Ask"):
    """A worker requests a batch to prepare; without `wait` the reply may be none."""

    wait: bool


class OrderRequest(msgspec.Struct, frozen=True, tag="OrderOf"):
    """A worker requests an epoch's order (attached to the reply)."""

    epoch: int


class RoomRequest(msgspec.Struct, frozen=True, tag="Room"):
    """A worker has prepared a batch and requests room for it."""

    epoch: int
    batch: int
    size_bytes: int


class BatchUpload(msgspec.Struct, frozen=True, tag="Put"):
    """A worker delivers a batch (attached as a file)."""

    epoch: int
    batch: int


class BatchFailure(msgspec.Struct, frozen=True, tag="Fail"):
    """A batch could not be prepared; `text` is the traceback."""

    epoch: int
    batch: int
    text: str


class StatRequest(msgspec.Struct, frozen=True, tag="AskStat"):
    """A job requests the group's counts."""


StagingRequest = (
    StagingHello
    | EpochStart
    | BatchRequest
    | BatchReceipt
    | WorkRequest
    | OrderRequest
    | RoomRequest
    | BatchUpload
    | BatchFailure
    | StatRequest
)


class StagingReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reply to any request; fields that do not apply have their defaults."""

    refused: str | None = None
    batch: tuple[int, int] | None = msgspec.field(default=None, name="spot")
    """Epoch and number of the batch."""
    is_wanted: bool = False
    error: str | None = None
    stat: dict[str, int] = {}


class DisconnectedError(Exception):
    """The other end has closed the connection."""


def address_of(group: str) -> str:
    """Return the abstract address of a group's coordinator: per user and name."""
    return f"\0stallwise-staging-{os.getuid()}-{group}"


def is_same_user(connection: socket.socket) -> bool:
    """Whether the other end is the same user: an abstract address has no permissions."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(uid == os.getuid())


def send(connection: socket.socket, message: Any, file: int | None = None) -> None:
    """Send one message, with or without a descriptor."""
    data = msgspec.msgpack.encode(message)
    if len(data) > MOST_BYTES:
        raise ValueError(f"a message of {len(data)} bytes")
    attached = [] if file is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))]
    try:
        connection.sendmsg([data], attached, socket.MSG_NOSIGNAL)
    except (BrokenPipeError, ConnectionError):
        raise DisconnectedError from None
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        raise DisconnectedError from None  # closed on our side


def receive(connection: socket.socket) -> tuple[bytes, int | None]:
    """Receive one message and its descriptor; `DisconnectedError` where the other end has closed."""
    try:
        data, attached, _, _ = connection.recvmsg(MOST_BYTES, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        raise DisconnectedError from None
    files = array.array("i")
    for level, kind, body in attached:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files.frombytes(body[: len(body) - len(body) % files.itemsize])
    for extra in files[1:]:  # room for one is room for two
        os.close(extra)
    if not data:
        for file in files[:1]:
            os.close(file)
        raise DisconnectedError
    return data, files[0] if files else None


def request_of(data: bytes) -> StagingRequest:
    """Decode a client's message; `DisconnectedError` where it is none: that client has nothing more to say."""
    try:
        return msgspec.msgpack.decode(data, type=StagingRequest)  # type: ignore[no-any-return]
    except _INVALID:
        raise DisconnectedError from None


def reply_of(data: bytes) -> StagingReply:
    """Decode the server's message."""
    try:
        return msgspec.msgpack.decode(data, type=StagingReply)
    except _INVALID:
        raise DisconnectedError from None
