"""The protocol between a job's machines and its coordinator: a mutual handshake, then authenticated frames of JSON.

    coordinator  MAGIC, nonce                  client  MAGIC, nonce, HMAC(secret, "client" | both nonces)
    coordinator  HMAC(secret, "server" | both nonces)
    both         length (4 bytes), HMAC(session key, direction | counter | body), body

The job secret is never sent; a client without it gets no reply, and a frame that was changed, repeated or inserted on
the way ends the connection. Bodies are JSON of the `Request` and `Reply` types below and of nothing else (msgspec
checks types and rejects unknown tags); no length beyond `MAX_FRAME_BYTES` is read. Nothing is encrypted.
"""

import contextlib
import hmac
import os
import secrets
import socket
import stat
import struct
import threading
import time
from pathlib import Path

import msgspec

from stallwise.errors import InputError, StallwiseError

MAGIC = b"SWELAST1"
NONCE_BYTES, PROOF_BYTES = 16, 32
MAX_FRAME_BYTES = 4 << 20
MAX_KEY_CHARS = 1024
MAX_VALUE_BYTES = 1 << 20
LENGTH = struct.Struct("<I")
_COUNTER = struct.Struct("<Q")
SECRET_VARIABLE = "STALLWISE_JOB_SECRET"  # noqa: S105 - a variable's name
_LEAST_SECRET_BYTES = 16
_MOST_SECRET_BYTES = 4096
_CONNECT_S = 5.0


class CoordinatorLostError(ConnectionError):
    """The coordinator does not answer, or answers nonsense."""


class CoordinatorRefusedError(StallwiseError):
    """The coordinator answers, and does not accept this machine or this request."""


class WireFormatError(Exception):
    """A frame that violates the protocol."""


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="hello"):
    """The first request of a connection: which job it is about."""

    job: str


class SetValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="set"):
    """Set a key of the job's store."""

    key: str
    value: bytes


class GetValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="get"):
    """Return a key's value."""

    key: str


class AddValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="add"):
    """Add to a key's number and return the sum."""

    key: str
    amount: int


class CompareSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="compare_set"):
    """Set a key whose value is `expected`; empty also stands for no value."""

    key: str
    expected: bytes
    value: bytes


class DeleteKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="delete"):
    """Delete a key; the reply says whether it was there."""

    key: str


class WaitKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="wait"):
    """Wait until all keys exist, or for `patience_s`; 0 only looks."""

    keys: list[str]
    patience_s: float = 0.0


class CountKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="count"):
    """Return the number of keys."""


class Join(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="join"):
    """Wait for the next round with this many ranks; facts that must be the same on all machines of the job."""

    member: str
    ranks: int
    least: int
    most: int
    last_call_s: float
    expiry_s: float
    program: str
    again: bool = False


class Look(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="look"):
    """A heartbeat: return the job's membership."""

    member: str


class Leave(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="leave"):
    """Take this machine out of the job."""

    member: str


class CloseJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="close"):
    """End the job; only a machine of the present round can."""

    member: str
    kind: str
    why: str = ""


StoreRequest = SetValue | GetValue | AddValue | CompareSet | DeleteKey | WaitKeys | CountKeys
MembershipRequest = Join | Look | Leave | CloseJob
Request = Hello | StoreRequest | MembershipRequest


class MembershipStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job as its coordinator sees it, for one machine.

    `place`: "member" of the present round, "waiting" for the next, or "out": lost, or never there.
    """

    coordinator: str
    serial: int
    """Of the coordinator's replies: of two the later one is true."""
    place: str
    round: int
    members: list[tuple[str, int]]
    """Machines of the round when it began, with their ranks, in order of rank."""
    present: int
    waiting: int
    closed: str | None
    why: str
    clock_s: float
    """The coordinator's wall clock."""


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Reply to any request; `refused` is a sentence."""

    value: bytes | None = None
    number: int = 0
    status: MembershipStatus | None = None
    refused: str | None = None


def proof(secret: bytes, side: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """Return the proof that one side has the secret; with side "session", the key of the connection's frames."""
    return hmac.digest(secret, side + server_nonce + client_nonce, "sha256")


class FrameCodec:
    """Encodes and checks the frames of one connection, which are counted in each direction."""

    def __init__(self, key: bytes, sends: bytes, receives: bytes) -> None:
        self._key, self._sends, self._receives = key, sends, receives
        self._sent = self._received = 0

    def encode(self, body: bytes) -> bytes:
        if len(body) > MAX_FRAME_BYTES:
            raise WireFormatError(f"a message of {len(body)} bytes, {MAX_FRAME_BYTES} are allowed")
        mac = self._mac(self._sends, self._sent, body)
        self._sent += 1
        return LENGTH.pack(len(body)) + mac + body

    def check(self, mac: bytes, body: bytes) -> bytes:
        """Return the body of a frame whose code fits; WireFormatError otherwise."""
        if not hmac.compare_digest(mac, self._mac(self._receives, self._received, body)):
            raise WireFormatError("a message without the right code")
        self._received += 1
        return body

    def _mac(self, direction: bytes, counter: int, body: bytes) -> bytes:
        return hmac.digest(self._key, direction + _COUNTER.pack(counter) + body, "sha256")


def frame_length(head: bytes) -> int:
    """Return the length that a frame announces; WireFormatError where it is beyond the limit."""
    length: int = LENGTH.unpack(head)[0]
    if length > MAX_FRAME_BYTES:
        raise WireFormatError(f"a message of {length} bytes, {MAX_FRAME_BYTES} are allowed")
    return length


class CoordinatorClient:
    """One connection to the coordinator, for one job; threads take turns."""

    def __init__(self, address: str, port: int, secret: bytes, job: str, timeout_s: float = 30.0) -> None:
        self._target, self._secret, self._job, self._timeout_s = (address, port), secret, job, timeout_s
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        with self._lock:
            self._connect(min(_CONNECT_S, timeout_s))

    def call(self, request: Request) -> Reply:
        """Send a request and return the reply. After a CoordinatorLostError the next call opens another connection."""
        with self._lock:
            connection = self._socket or self._connect(min(_CONNECT_S, self._timeout_s))
            reply = self._exchange(connection, request)
        if reply.refused is not None:
            raise CoordinatorRefusedError(reply.refused)
        return reply

    def status(self, request: MembershipRequest) -> MembershipStatus:
        """As `call`, for a request whose reply is the membership."""
        status = self.call(request).status
        if status is None:
            raise CoordinatorLostError("it sent no membership")
        return status

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _connect(self, timeout_s: float) -> socket.socket:
        """Open a connection and prove to each other that both have the secret."""
        deadline_s = time.monotonic() + timeout_s
        try:
            connection = self._socket = socket.create_connection(self._target, timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            greeting = _exactly(connection, len(MAGIC) + NONCE_BYTES, deadline_s)
            if not greeting.startswith(MAGIC):
                raise CoordinatorLostError("what answers there is no coordinator of this version")
            server_nonce, client_nonce = greeting[len(MAGIC) :], secrets.token_bytes(NONCE_BYTES)
            own = proof(self._secret, b"client", server_nonce, client_nonce)
            connection.sendall(MAGIC + client_nonce + own)
            theirs = _exactly(connection, PROOF_BYTES, deadline_s)
            if not hmac.compare_digest(theirs, proof(self._secret, b"server", server_nonce, client_nonce)):
                raise CoordinatorRefusedError(
                    "The coordinator has another job secret than this machine. Give both the same secret file, or "
                    f"{SECRET_VARIABLE}."
                )
            session = proof(self._secret, b"session", server_nonce, client_nonce)
            self._codec = FrameCodec(session, b"c", b"s")
            refused = self._exchange(connection, Hello(self._job)).refused
            if refused is not None:
                raise CoordinatorRefusedError(refused)
            return connection
        except StallwiseError:
            self._drop()
            raise
        except OSError as error:
            self._drop()
            raise _lost(error) from None

    def _exchange(self, connection: socket.socket, request: Request) -> Reply:
        patience_s = request.patience_s if isinstance(request, WaitKeys) else 0.0
        deadline_s = time.monotonic() + self._timeout_s + patience_s
        try:
            connection.settimeout(self._timeout_s)
            connection.sendall(self._codec.encode(msgspec.json.encode(request)))
            length = frame_length(_exactly(connection, LENGTH.size, deadline_s))
            mac = _exactly(connection, PROOF_BYTES, deadline_s)
            body = self._codec.check(mac, _exactly(connection, length, deadline_s))
            return msgspec.json.decode(body, type=Reply)
        except (OSError, WireFormatError, msgspec.MsgspecError) as error:
            self._drop()
            raise _lost(error) from None
        except BaseException:  # a signal: the reply is still to come, and must not be taken for the next one's
            self._drop()
            raise

    def _drop(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
        self._socket = None


def _exactly(connection: socket.socket, count: int, deadline_s: float) -> bytes:
    data = bytearray()
    while len(data) < count:
        connection.settimeout(max(0.001, deadline_s - time.monotonic()))
        part = connection.recv(count - len(data))
        if not part:
            raise CoordinatorLostError("it closed the connection")
        data += part
    return bytes(data)


def _lost(error: Exception) -> CoordinatorLostError:
    if isinstance(error, CoordinatorLostError):
        return error
    return CoordinatorLostError(str(error) or type(error).__name__)


def job_secret(file: Path | None = None) -> bytes:
    """Return the job secret: of `file`, else of the environment, else of this user's own file, made at first use."""
    if file is not None:
        return _read_secret(file)
    given = os.environ.get(SECRET_VARIABLE)
    if given:
        return _checked_secret(given.encode(), SECRET_VARIABLE)
    own = default_secret_file()
    if not own.exists():
        _make_secret(own)
    return _read_secret(own)


def default_secret_file() -> Path:
    """Return this user's own secret file."""
    import platformdirs

    return Path(platformdirs.user_data_path("stallwise")) / "job-secret"


def _make_secret(path: Path) -> None:
    """Make the file, complete and readable by its owner only; another process may be first."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(handle, secrets.token_hex(32).encode() + b"\n")
        finally:
            os.close(handle)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    except OSError as error:
        raise InputError(f"No job secret can be kept in {path}: {error.strerror}. Set {SECRET_VARIABLE}.") from None
    finally:
        draft.unlink(missing_ok=True)


def _read_secret(path: Path) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            facts = os.fstat(file.fileno())
            data = file.read(_MOST_SECRET_BYTES) if stat.S_ISREG(facts.st_mode) else b""
    except OSError as error:
        raise InputError(f"The secret file {path} cannot be read: {error.strerror}.", fields=("secret_file",)) from None
    if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & 0o077:
        raise InputError(
            f"The secret file {path} can be read by others than its owner: chmod 600 it, and choose another secret.",
            fields=("secret_file",),
        )
    return _checked_secret(data, str(path))


def _checked_secret(data: bytes, source: str) -> bytes:
    secret = data.strip()
    if len(secret) < _LEAST_SECRET_BYTES:
        raise InputError(f"The job secret in {source} has fewer than {_LEAST_SECRET_BYTES} characters.")
    return secret
