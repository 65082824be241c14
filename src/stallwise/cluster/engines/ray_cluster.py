"""Joining a Ray cluster, or starting one on this machine that leaves nothing behind.

Ray keeps logs, sockets and a session in a folder. Ours is locked while it is in use, so that the next sweep can remove
what one that was killed left. Ray's own processes end with the process that started them.
"""

import contextlib
import fcntl
import logging
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stallwise.cluster.sweep import cores_here
from stallwise.errors import StallwiseError

_PREFIX = "stallwise-ray-"
_LOCK = "in-use"
_LONGEST = 20
"""Characters of the parent folder: Ray puts sockets 85 deeper, and the path of a socket has at most 107."""
_KNOCK_S = 10.0
_SETTLE_S, _AGAIN_S = 10.0, 0.2
_STORE_BYTES = 512 << 20
"""Of the object store: it holds the sweep, and answers on their way."""


@contextlib.contextmanager
def joined(ray: Any, address: str | None, cores: int | None) -> Iterator[None]:
    """Be part of a cluster for a while. One that this process is part of already is used as it is, and stays."""
    if ray.is_initialized():
        yield
        return
    with _folder() if address is None else contextlib.nullcontext() as folder:
        try:
            with _own_signals():
                _join(ray, address, cores, folder)
            yield
        finally:
            ray.shutdown()


def _join(ray: Any, address: str | None, cores: int | None, folder: Path | None) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if folder is not None:
            with _stdout_is_stderr():
                ray.init(
                    address="local",
                    num_cpus=cores or cores_here(),
                    include_dashboard=False,
                    object_store_memory=_STORE_BYTES,
                    _temp_dir=str(folder),
                    **quiet,
                )
        else:
            _knock(str(address))
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError, OSError) as error:
        where = "on this machine" if address is None else f"at {address}"
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        hint = "" if address is None else " Check it with: ray status"
        raise StallwiseError(f"No Ray cluster {where}: {reason[0].rstrip('.')}.{hint}") from None


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray answers SIGTERM in its own way from the moment it starts; whoever called us had a better one."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def _knock(address: str) -> None:
    """Ray itself tries for minutes, with a page of log, where nobody listens."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_KNOCK_S).close()


@contextlib.contextmanager
def _stdout_is_stderr() -> Iterator[None]:
    """Whatever is printed while Ray starts must not land in an answer that a program reads."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def tidy() -> None:
    """Remove folders of ours that no process holds any more: their sweeps were killed."""
    for left in _parent().glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if not (left / _LOCK).exists() and time.time() - left.stat().st_mtime < _SETTLE_S:
                continue  # another sweep is making it, or removing it
            with (left / _LOCK).open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_parent()))
    try:
        with (made / _LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield made
    finally:
        _remove(made)


def _remove(folder: Path) -> None:
    """Ray's processes end a moment after it says so, and write until then."""
    until_s = time.monotonic() + _SETTLE_S
    while folder.exists() and time.monotonic() < until_s:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            time.sleep(_AGAIN_S)


def _parent() -> Path:
    parent = Path(tempfile.gettempdir())
    return parent if len(str(parent)) <= _LONGEST else Path("/tmp")  # noqa: S108  # mkdtemp's folder is nobody else's
