"""What nodes say to each other over TCP: a mutual handshake, then requests and answers of fixed-size heads.

    server  MAGIC, nonce                       client  MAGIC, nonce, HMAC(token, "client" | both nonces)
    server  HMAC(token, "server" | both nonces)
    client  op, key, length, xxh3-128          server  status, length, xxh3-128, then `length` bytes

The length of a GET is how many milliseconds the peer may wait for an object that is on its way to it: only its owner
is asked to. An owner that has not got it lets the first who asks fetch it, and the others wait for that.

The token never travels; who does not have it is not answered. Every length is checked against what the receiver expects
before a byte of it is read, and every body against its checksum. Nothing is encrypted: the network between the
nodes of a job is trusted not to listen, as it is for the gradients.
"""

import hmac
import socket
import struct
import time
from enum import IntEnum

import xxhash

MAGIC = b"SWPEERS1"
NONCE_BYTES, PROOF_BYTES = 16, 32
GREETING = struct.Struct(f"<8s{NONCE_BYTES}s")
REPLY = struct.Struct(f"<8s{NONCE_BYTES}s{PROOF_BYTES}s")
REQUEST = struct.Struct("<B16sQ16s")
ANSWER = struct.Struct("<BQ16s")
_NO_DIGEST = bytes(16)


class Op(IntEnum):
    """What a client asks for."""

    GET = 1
    PUT = 2
    CHECK = 3  # what you sent was wrong: look at your entry


class Status(IntEnum):
    """What a server answers."""

    HERE = 1
    NOT_HERE = 2
    KEPT = 3
    NO_ROOM = 4
    COMING = 5  # somebody is fetching it: another answer follows


class WireError(Exception):
    """A peer that does not speak as agreed, or sent other bytes than it said."""


def proof(token: bytes, side: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """That the speaker has the token."""
    return hmac.digest(token, side + server_nonce + client_nonce, "sha256")


def is_proof(given: bytes, token: bytes, side: bytes, server_nonce: bytes, client_nonce: bytes) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(given, proof(token, side, server_nonce, client_nonce))


def digest_of(data: bytes) -> bytes:
    """The checksum of a body."""
    return xxhash.xxh3_128_digest(data)


def request(op: Op, key: bytes, data: bytes = b"") -> bytes:
    """The head of a request."""
    return REQUEST.pack(op, key, len(data), digest_of(data) if data else _NO_DIGEST)


class Connection:
    """The client's end: one request at a time, each within its own deadline."""

    def __init__(self, host: str, port: int, token: bytes, nonce: bytes, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        self._socket = socket.create_connection((host, port), timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            magic, server_nonce = GREETING.unpack(self._exactly(GREETING.size, deadline_s))
            if magic != MAGIC:
                raise WireError("it is no peer of Stallwise's, or of another version")
            own = proof(token, b"client", server_nonce, nonce)
            self._send(REPLY.pack(MAGIC, nonce, own), deadline_s)
            if not is_proof(bytes(self._exactly(PROOF_BYTES, deadline_s)), token, b"server", server_nonce, nonce):
                raise WireError("it does not have this job's token")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let it go."""
        self._socket.close()

    def get(self, key: bytes, size_bytes: int, most_bytes: int, deadline_s: float, wait_s: float = 0.0) -> bytes | None:
        """The object, None where the peer does not have it. `size_bytes` 0: the size is not known."""
        self._send(REQUEST.pack(Op.GET, key, round(1e3 * wait_s), _NO_DIGEST), deadline_s)
        status, length, digest = ANSWER.unpack(self._exactly(ANSWER.size, deadline_s))
        if status == Status.COMING:  # it is well, so it may have the time it was given to wait
            deadline_s += wait_s
            status, length, digest = ANSWER.unpack(self._exactly(ANSWER.size, deadline_s))
        if status == Status.NOT_HERE:
            return None
        if status != Status.HERE or length > most_bytes or (size_bytes and length != size_bytes):
            raise WireError(f"it announced {length} bytes for an object of {size_bytes or 'unknown size'}")
        data = bytes(self._exactly(length, deadline_s))
        if digest_of(data) != digest:
            raise WireError("its bytes do not have the checksum it sent")
        return data

    def put(self, key: bytes, data: bytes, deadline_s: float) -> bool:
        """Hand an object over; whether the peer keeps it."""
        self._send(request(Op.PUT, key, data), deadline_s)
        self._send(data, deadline_s)
        return bool(ANSWER.unpack(self._exactly(ANSWER.size, deadline_s))[0] == Status.KEPT)

    def check(self, key: bytes, deadline_s: float) -> None:
        """Have the peer look at its entry; there is no answer."""
        self._send(request(Op.CHECK, key), deadline_s)

    def _send(self, data: bytes, deadline_s: float) -> None:
        self._socket.settimeout(_left(deadline_s))
        self._socket.sendall(data)

    def _exactly(self, count: int, deadline_s: float) -> bytearray:
        data = bytearray(count)
        view, done = memoryview(data), 0
        while done < count:
            # Again for every part: a peer that sends a byte now and then must not hold anybody up.
            self._socket.settimeout(_left(deadline_s))
            got = self._socket.recv_into(view[done:])
            if got == 0:
                raise EOFError("it closed the connection")
            done += got
        return data


def _left(deadline_s: float) -> float:
    left = deadline_s - time.monotonic()
    if left <= 0:
        raise TimeoutError("it took too long")
    return left
