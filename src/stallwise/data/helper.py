"""A process of its own that talks to the store, for processes that may fork.

obstore's runtime lives in threads; a process forked after it was used inherits the runtime without them, and its first
read waits for ever (clients of other libraries come back with another process's bytes). So the store is used in two
places only, which nobody forks from: in DataLoader workers, and here. A rank lists and, without workers, reads through
this helper, and its workers start clean. Where the rank's own code has used obstore before they were forked, they read
through a helper too.

The rank hands the helper one end of a fresh socket pair per thread over its standard input; each carries one request at
a time. There is no address to find and no file to leave behind; the helper ends when its rank does.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import msgspec

from stallwise.data.fetch import Fetched, Fetcher
from stallwise.data.listing import index_of
from stallwise.data.objects import ObjectRef
from stallwise.data.store import Bucket
from stallwise.errors import InputError, ObjectError, StallwiseError

_POLL_S = 1.0


class _Settings(msgspec.Struct, frozen=True):
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


class _Answer(msgspec.Struct, frozen=True):
    """`length` bytes follow it."""

    length: int = 0
    seconds: float = 0.0
    tries: int = 1
    error: str | None = None
    kind: str = ""


_forking = threading.Lock()


def _after_fork() -> None:
    global _forking
    _forking = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class Helper:
    """The rank's side: asks from any thread; the process is started at the first request of each process."""

    def __init__(self, bucket: Bucket, retries: int) -> None:
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

    def get(self, ref: ObjectRef) -> Fetched:
        """As `Fetcher.get`."""
        answer, data = self._ask(_Get(ref.name, ref.size_bytes, ref.version, ref.start))
        return Fetched(data, answer.seconds, answer.tries)

    def list(self, match: str, folder: Path | None, *, refresh: bool, max_age_s: float) -> int:
        """Have the index made and kept; how many requests that took."""
        where = None if folder is None else str(folder)
        answer, _ = self._ask(_List(match, where, refresh, max_age_s))
        return answer.tries

    def _ask(self, request: _Get | _List) -> tuple[_Answer, bytes]:
        try:
            connection = self._connection()
            _send(connection, msgspec.msgpack.encode(request))
            answer = msgspec.msgpack.decode(_receive(connection), type=_Answer)
            data = _exactly(connection, answer.length)
        except BaseException as error:
            # What is left of the answer in it must never be taken for the next one's.
            self._mine = threading.local()
            if isinstance(error, (OSError, EOFError)):
                raise ObjectError(f"The process that reads {self.bucket.shown} has died ({error}).") from None
            raise
        if answer.error is not None:
            raise InputError(answer.error) if answer.kind == "InputError" else ObjectError(answer.error, answer.tries)
        return answer, data

    def _connection(self) -> socket.socket:
        with _forking:
            if self._pid != os.getpid():
                # Forked: the parent's helper stays the parent's.
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
    """A started helper."""

    def __init__(self, settings: _Settings) -> None:
        self._pid = os.getpid()
        self._control, theirs = socket.socketpair()
        self._sockets = [self._control]
        with theirs:
            program = [sys.executable, "-m", "stallwise.data.helper"]
            self.process = subprocess.Popen(program, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        # Secrets go through the socket: arguments and environments can be read by others.
        _send(self._control, msgspec.msgpack.encode(settings))

    def connect(self) -> socket.socket:
        """A connection for one thread."""
        ours, theirs = socket.socketpair()
        self._sockets.append(ours)
        with theirs:
            socket.send_fds(self._control, [b"c"], [theirs.fileno()])
        return ours

    def end(self) -> None:
        """Close everything; the helper ends when its control does. In a forked child nothing of this is its own."""
        for each in self._sockets:
            each.close()
        if self._pid == os.getpid():
            self.process.kill()
            self.process.wait()


def _settings(bucket: Bucket, retries: int) -> _Settings:
    given = {"options": dict(bucket.options), "url": bucket.url, "endpoint": bucket.endpoint}
    try:
        return msgspec.convert(given | {"timeout_s": bucket.timeout_s, "retries": retries}, _Settings)
    except msgspec.ValidationError:
        raise InputError("A bucket's options must be plain texts, numbers and booleans, as obstore's are.") from None


_IMPORTED_IN = os.getpid()


def needs_helper(*, worker: bool) -> bool:
    """Whether this process must not use the store itself: somebody may fork from it, or it was forked from a user.

    The kernel shows the threads of obstore's runtime in the parent by their name. A spawned worker inherits nothing.
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
            continue  # a thread that has just ended
    return False


# The helper's side.


def main() -> None:
    """Serve connections until the rank is gone."""
    # Ctrl-C reaches the whole group; a rank that catches it may go on reading.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    control = socket.socket(fileno=0)
    try:
        settings = msgspec.msgpack.decode(_receive(control), type=_Settings)
    except (OSError, EOFError):
        return  # the rank was killed as soon as it had begun
    bucket = Bucket(settings.url, settings.endpoint, settings.options, timeout_s=settings.timeout_s)
    fetcher = Fetcher(bucket, settings.retries)
    control.settimeout(_POLL_S)
    while os.getppid() == parent:
        try:
            said, files, _, _ = socket.recv_fds(control, 1, 1)
        except TimeoutError:
            continue
        except OSError:
            break
        if not said:
            break
        connection = socket.socket(fileno=files[0])
        threading.Thread(target=_serve, args=(connection, fetcher), daemon=True).start()
    os._exit(0)  # reads under way are of no use to anybody


def _serve(connection: socket.socket, fetcher: Fetcher) -> None:
    with connection:
        while True:
            try:
                request = msgspec.msgpack.decode(_receive(connection), type=_Get | _List)
            except (OSError, EOFError):
                return
            answer, data = _answer(request, fetcher)
            try:
                _send(connection, msgspec.msgpack.encode(answer))
                connection.sendall(data)
            except OSError:
                return


def _answer(request: _Get | _List, fetcher: Fetcher) -> tuple[_Answer, bytes]:
    try:
        if isinstance(request, _Get):
            got = fetcher.get(ObjectRef(request.name, request.size_bytes, request.version, request.start))
            return _Answer(len(got.data), got.seconds, got.tries), got.data
        folder = None if request.folder is None else Path(request.folder)
        made = index_of(
            fetcher.bucket, match=request.match, folder=folder, refresh=request.refresh, max_age_s=request.max_age_s
        )
        return _Answer(tries=made.requests), b""
    except StallwiseError as error:
        kind = "ObjectError" if isinstance(error, ObjectError) else "InputError"
        return _Answer(tries=getattr(error, "tries", 1), error=str(error), kind=kind), b""
    except Exception as error:
        # A full disk under the index, for example: the rank must hear what it was.
        said = f"{fetcher.bucket.shown} cannot be read: {type(error).__name__}: {fetcher.bucket.said(error)}"
        return _Answer(error=said, kind="InputError"), b""


def _send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(len(message).to_bytes(4, "little") + message)


def _receive(connection: socket.socket) -> bytes:
    return _exactly(connection, int.from_bytes(_exactly(connection, 4), "little"))


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    view, done = memoryview(data), 0
    while done < count:
        got = connection.recv_into(view[done:])
        if got == 0:
            raise EOFError("the connection was closed")
        done += got
    return bytes(data)


if __name__ == "__main__":
    main()
