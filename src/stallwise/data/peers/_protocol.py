"""The protocol between nodes over TCP: a mutual handshake, then requests and replies with heads of fixed size.

    server  MAGIC, nonce                       client  MAGIC, nonce, HMAC(token, "client" | both nonces)
    server  HMAC(token, "server" | both nonces)
    client  op, key, length, xxh3-128          server  status, length, xxh3-128, then `length` bytes

The length of a GET is how many milliseconds the peer may wait for an object that is being fetched: only its owner
is asked to wait. An owner that does not have it lets the first client fetch it, and the others wait for that.

The token is never sent; a client without it gets no reply. Every length is checked against what the receiver expects
before a byte of it is read, and every body against its checksum. Nothing is encrypted: the network between the
nodes of a job is trusted not to listen, as it is for the gradients.

`ETagCheck` compares a peer's bytes with the version that the index names, where the store's ETags allow it. S3 and its
relatives make the ETag of an object uploaded in one piece the MD5 of its content, except under some kinds of
encryption, where it looks the same and is not. So it is learnt: once bytes read from the bucket have matched their tag,
a peer's must match theirs; once they have not, tags of this bucket are not digests. MD5 is broken as a signature and
good enough against mistakes; it costs 0.15 to 0.2 ms per 100 KB.
"""

import hashlib
import hmac
import re
import socket
import struct
import time
from enum import IntEnum
from typing import Literal

import msgspec
import xxhash

MAGIC = b"SWPEERS1"
NONCE_BYTES, PROOF_BYTES = 16, 32
GREETING = struct.Struct(f"<8s{NONCE_BYTES}s")
REPLY = struct.Struct(f"<8s{NONCE_BYTES}s{PROOF_BYTES}s")
REQUEST = struct.Struct("<B16sQ16s")
ANSWER = struct.Struct("<BQ16s")
_NO_DIGEST = bytes(16)
_CHUNK_BYTES = 1 << 24


class PeerOp(IntEnum):
    """Operation that a client requests."""

    GET = 1
    PUT = 2
    CHECK = 3  # the bytes sent were wrong: verify the entry


class PeerStatus(IntEnum):
    """Status of a server's reply."""

    HIT = 1
    MISS = 2
    KEPT = 3
    NO_ROOM = 4
    PENDING = 5  # a process is fetching it: another reply follows


class WireError(Exception):
    """A peer that violates the protocol, or sent other bytes than announced."""


def proof(token: bytes, side: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """Return the proof that one side has the token."""
    return hmac.digest(token, side + server_nonce + client_nonce, "sha256")


def is_proof(candidate: bytes, token: bytes, side: bytes, server_nonce: bytes, client_nonce: bytes) -> bool:
    """Check a proof in constant time."""
    return hmac.compare_digest(candidate, proof(token, side, server_nonce, client_nonce))


def digest_of(data: bytes) -> bytes:
    return xxhash.xxh3_128_digest(data)


def request(op: PeerOp, key: bytes, data: bytes = b"") -> bytes:
    """Return the head of a request."""
    return REQUEST.pack(op, key, len(data), digest_of(data) if data else _NO_DIGEST)


class PeerServerSettings(msgspec.Struct, frozen=True):
    """A line of JSON from the rank to its server's standard input: no secret is in an argument or environment."""

    folder: str
    limit_bytes: int
    address: str
    port: int
    token: bytes
    shared: bool = False


class Connection:
    """A client's connection: one request at a time, each with its own deadline (`time.monotonic()`)."""

    def __init__(self, host: str, port: int, token: bytes, nonce: bytes, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        self._socket = socket.create_connection((host, port), timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            magic, server_nonce = GREETING.unpack(self._exactly(GREETING.size, deadline_s))
            if magic != MAGIC:
                raise WireError("it is not a Stallwise peer, or one of another version")
            own = proof(token, b"client", server_nonce, nonce)
            self._send(REPLY.pack(MAGIC, nonce, own), deadline_s)
            if not is_proof(bytes(self._exactly(PROOF_BYTES, deadline_s)), token, b"server", server_nonce, nonce):
                raise WireError("it does not have this job's token")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def get(self, key: bytes, size_bytes: int, most_bytes: int, deadline_s: float, wait_s: float = 0.0) -> bytes | None:
        """Return the object, None where the peer does not have it. `size_bytes` 0: the size is not known."""
        self._send(REQUEST.pack(PeerOp.GET, key, round(1e3 * wait_s), _NO_DIGEST), deadline_s)
        status, length, digest = ANSWER.unpack(self._exactly(ANSWER.size, deadline_s))
        if status == PeerStatus.PENDING:  # the peer works, so it gets the time it may wait
            deadline_s += wait_s
            status, length, digest = ANSWER.unpack(self._exactly(ANSWER.size, deadline_s))
        if status == PeerStatus.MISS:
            return None
        if status != PeerStatus.HIT or length > most_bytes or (size_bytes and length != size_bytes):
            raise WireError(f"it announced {length} bytes for an object of {size_bytes or 'unknown size'}")
        data = bytes(self._exactly(length, deadline_s))
        if digest_of(data) != digest:
            raise WireError("its bytes do not have the checksum it sent")
        return data

    def put(self, key: bytes, data: bytes, deadline_s: float) -> bool:
        """Send an object; return whether the peer keeps it."""
        self._send(request(PeerOp.PUT, key, data), deadline_s)
        self._send(data, deadline_s)
        return bool(ANSWER.unpack(self._exactly(ANSWER.size, deadline_s))[0] == PeerStatus.KEPT)

    def check(self, key: bytes, deadline_s: float) -> None:
        """Let the peer verify its entry; there is no reply."""
        self._send(request(PeerOp.CHECK, key), deadline_s)

    def _send(self, data: bytes, deadline_s: float) -> None:
        self._socket.settimeout(_left(deadline_s))
        self._socket.sendall(data)

    def _exactly(self, count: int, deadline_s: float) -> bytearray:
        if count > _CHUNK_BYTES:  # a peer may announce anything: memory is taken as bytes come
            whole = bytearray()
            while len(whole) < count:
                whole += self._exactly(min(_CHUNK_BYTES, count - len(whole)), deadline_s)
            return whole
        data = bytearray(count)
        view, done = memoryview(data), 0
        while done < count:
            # Set again for every chunk: a peer that trickles bytes must not exceed the deadline.
            self._socket.settimeout(_left(deadline_s))
            count_read = self._socket.recv_into(view[done:])
            if count_read == 0:
                raise EOFError("it closed the connection")
            done += count_read
        return data


def _left(deadline_s: float) -> float:
    left = deadline_s - time.monotonic()
    if left <= 0:
        raise TimeoutError("it took too long")
    return left


_MD5 = re.compile(r"[0-9a-f]{32}", re.IGNORECASE)


class ETagCheck:
    """Whether the ETags of one bucket are digests, as far as this process knows, and checks against them."""

    def __init__(self) -> None:
        self._meaning: Literal["unknown", "digests", "anything"] = "unknown"

    def learn(self, version: str | None, data: bytes) -> None:
        """Learn from bytes that came from the bucket itself."""
        digits = _digits(version)
        if self._meaning == "unknown" and digits is not None:
            self._meaning = "digests" if _md5(data) == digits else "anything"

    def fits(self, version: str | None, data: bytes) -> bool | None:
        """Whether a peer's bytes are right. None: not known yet, so they must be read from the bucket."""
        digits = _digits(version)
        if digits is None or self._meaning == "anything" or _md5(data) == digits:
            return True
        return None if self._meaning == "unknown" else False


def _digits(version: str | None) -> str | None:
    bare = (version or "").strip('"')
    return bare.lower() if _MD5.fullmatch(bare) else None


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
