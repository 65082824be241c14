"""A helper process that reads the object store for processes that may fork.

obstore's runtime lives in threads; a process forked after it was used inherits the runtime without them, and its first
read never returns (clients of other libraries return another process's bytes). So the store is used in two
places only, which are never forked from: in DataLoader workers, and here. A rank lists and, without workers, reads
through this helper, and its workers start clean. Where the rank's own code has used obstore before they were forked,
they read through a helper too.

The rank hands the helper one end of a fresh socket pair per thread over its standard input; each carries one request at
a time. There is no address and no file; the helper ends when its rank does.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Annotated, Any

import msgspec

from stallwise.data.objects._fetch import FetchedObject, Fetcher
from stallwise.data.objects.index import ObjectRef, index_of
from stallwise.data.objects.store import ObjectBucket
from stallwise.errors import InputError, ObjectError, StallwiseError

_POLL_S = 1.0
_MOST_MESSAGE_BYTES = 1 << 20
# More than this is not allocated before it comes.
_CHUNK_BYTES = 1 << 26


class _Settings(msgspec.Struct, frozen=True):
    """The store that the helper opens, sent as its first message."""

    url: str
    endpoint: str | None
    options: dict[str, str | int | float | bool | None]
    timeout_s: float
    retries: int


class _Get(msgspec.Struct, frozen=True, tag=True):
    name: str
    size_bytes: int | None
    version: str | None
    start: int | None


class _List(msgspec.Struct, frozen=True, tag=True):
    match: str
    folder: str | None
    refresh: bool
    max_age_s: float


class _Reply(msgspec.Struct, frozen=True):
    """The reply to a request; `length` bytes follow it."""

    length: Annotated[int, msgspec.Meta(ge=0)] = 0
    seconds: float = 0.0
    tries: int = 1
    error: str | None = None
    kind: str = ""


_forking = threading.Lock()


def _after_fork() -> None:
    global _forking
    _forking = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class StoreHelper:
    """The rank's side: requests from any thread; each process starts its own helper at its first request."""

    def __init__(self, bucket: ObjectBucket, retries: int) -> None:
        self.bucket = bucket
        self._settings = _settings(bucket, retries)
        self._forget()

    def _forget(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._running: _Running | None = None
        self._mine = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {"bucket": self.bucket, "_settings": self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def get(self, ref: ObjectRef) -> FetchedObject:
        """Read an object as `Fetcher.get` does, in the helper."""
        reply, data = self._ask(_Get(ref.name, ref.size_bytes, ref.version, ref.start))
        return FetchedObject(data, reply.seconds, reply.tries)

    def list(self, match: str, folder: Path | None, *, refresh: bool, max_age_s: float) -> int:
        """Make and keep the index in the helper; return the number of requests."""
        where = None if folder is None else str(folder)
        reply, _ = self._ask(_List(match, where, refresh, max_age_s))
        return reply.tries

    def _ask(self, request: _Get | _List) -> tuple[_Reply, bytes]:
        try:
            connection = self._connection()
            _send(connection, msgspec.msgpack.encode(request))
            reply = _decoded(_receive(connection), _Reply)
            data = _exactly(connection, reply.length)
        except BaseException as error:
            # The rest of this reply must never be taken for the next one.
            self._mine = threading.local()
            if isinstance(error, (OSError, EOFError)):
                raise ObjectError(f"The process that reads {self.bucket.shown} has died ({error}).") from None
            raise
        if reply.error is not None:
            raise InputError(reply.error) if reply.kind == "InputError" else ObjectError(reply.error, reply.tries)
        return reply, data

    def _connection(self) -> socket.socket:
        with _forking:
            if self._pid != os.getpid():
                # Forked: the parent's helper belongs to the parent.
                self._forget()
        with self._lock:
            if self._running is None or self._running.process.poll() is not None:
                self._running, self._mine = _Running(self._settings), threading.local()
                weakref.finalize(self, self._running.end)
            connection: socket.socket | None = getattr(self._mine, "connection", None)
            if connection is None:
                connection = self._mine.connection = self._running.connect()
        return connection


class _Running:
    """A helper process with its control socket and connections."""

    def __init__(self, settings: _Settings) -> None:
        self._pid = os.getpid()
        self._control, theirs = socket.socketpair()
        self._sockets = [self._control]
        with theirs:
            program = [sys.executable, "-m", "stallwise.data.objects.helper"]
            self.process = subprocess.Popen(program, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        # Secrets go through the socket: arguments and environments can be read by others.
        _send(self._control, msgspec.msgpack.encode(settings))

    def connect(self) -> socket.socket:
        """Open a connection for one thread."""
        ours, theirs = socket.socketpair()
        self._sockets.append(ours)
        with theirs:
            socket.send_fds(self._control, [b"c"], [theirs.fileno()])
        return ours

    def end(self) -> None:
        """Close all sockets and end the helper; a forked child closes only its copies."""
        for each in self._sockets:
            each.close()
        if self._pid == os.getpid():
            self.process.kill()
            self.process.wait()


def _settings(bucket: ObjectBucket, retries: int) -> _Settings:
    settings = {"options": dict(bucket.options), "url": bucket.url, "endpoint": bucket.endpoint}
    try:
        return msgspec.convert(settings | {"timeout_s": bucket.timeout_s, "retries": retries}, _Settings)
    except msgspec.ValidationError:
        raise InputError("A bucket's options must be plain texts, numbers and booleans, as obstore's are.") from None


_IMPORTED_IN = os.getpid()


def needs_helper(*, worker: bool) -> bool:
    """Whether this process must not use the store itself: it may be forked, or was forked from a process that used it.

    The threads of obstore's runtime are recognised in the parent by their name. A spawned worker inherits nothing.
    """
    if not worker:
        return True
    if os.getpid() == _IMPORTED_IN:
        return False
    for path in Path(f"/proc/{os.getppid()}/task").glob("*/comm"):
        try:
            if path.read_text().startswith("tokio"):
                return True
        except OSError:
            continue  # the thread has just ended
    return False


# The helper's side.


def main() -> None:
    """Serve connections until the rank is gone."""
    # Ctrl-C reaches the whole process group; a rank that catches it may continue reading.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    control = socket.socket(fileno=0)
    try:
        settings = _decoded(_receive(control), _Settings)
    except (OSError, EOFError):
        return  # the rank was killed right after its start
    bucket = ObjectBucket(settings.url, settings.endpoint, settings.options, timeout_s=settings.timeout_s)
    fetcher = Fetcher(bucket, settings.retries)
    control.settimeout(_POLL_S)
    while os.getppid() == parent:
        try:
            message, files, _, _ = socket.recv_fds(control, 1, 1)
        except TimeoutError:
            continue
        except OSError:
            break
        if not message:
            break
        connection = socket.socket(fileno=files[0])
        threading.Thread(target=_serve, args=(connection, fetcher), daemon=True).start()
    os._exit(0)  # pending reads have no reader any more


def _serve(connection: socket.socket, fetcher: Fetcher) -> None:
    with connection:
        while True:
            try:
                request: _Get | _List = _decoded(_receive(connection), _Get | _List)
            except (OSError, EOFError):
                return
            reply, data = _reply_to(request, fetcher)
            try:
                _send(connection, msgspec.msgpack.encode(reply))
                connection.sendall(data)
            except OSError:
                return


def _reply_to(request: _Get | _List, fetcher: Fetcher) -> tuple[_Reply, bytes]:
    try:
        if isinstance(request, _Get):
            fetched = fetcher.get(ObjectRef(request.name, request.size_bytes, request.version, request.start))
            return _Reply(len(fetched.data), fetched.seconds, fetched.tries), fetched.data
        folder = None if request.folder is None else Path(request.folder)
        listed = index_of(
            fetcher.bucket, match=request.match, folder=folder, refresh=request.refresh, max_age_s=request.max_age_s
        )
        return _Reply(tries=listed.requests), b""
    except StallwiseError as error:
        kind = "ObjectError" if isinstance(error, ObjectError) else "InputError"
        return _Reply(tries=getattr(error, "tries", 1), error=str(error), kind=kind), b""
    except Exception as error:
        # For example a full disk under the index: the rank must report the cause.
        text = f"{fetcher.bucket.shown} cannot be read: {type(error).__name__}: {fetcher.bucket.error_text(error)}"
        return _Reply(error=text, kind="InputError"), b""


def _send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(len(message).to_bytes(4, "little") + message)


def _receive(connection: socket.socket) -> bytes:
    length = int.from_bytes(_exactly(connection, 4), "little")
    if length > _MOST_MESSAGE_BYTES:
        raise EOFError(f"a message of {length} bytes")
    return _exactly(connection, length)


def _decoded(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EOFError(f"a message that is none: {error}") from None


def _exactly(connection: socket.socket, count: int) -> bytes:
    if count > _CHUNK_BYTES:
        sizes = (min(_CHUNK_BYTES, count - at) for at in range(0, count, _CHUNK_BYTES))
        return b"".join(_exactly(connection, size) for size in sizes)
    data = bytearray(count)
    view, done = memoryview(data), 0
    while done < count:
        count_read = connection.recv_into(view[done:])
        if count_read == 0:
            raise EOFError("the connection was closed")
        done += count_read
    return bytes(data)


if __name__ == "__main__":
    main()
