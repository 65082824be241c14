"""Engine on a Ray cluster: portions of simulations as tasks, the sweep itself in the object store once.

Each worker process fetches the sweep from the store once and keeps it. Ray starts a task again when its worker or its
whole node is lost; a simulation depends on its case alone, so the answer is the same.

Without an address a cluster of this machine's cores is started, in a folder of its own that is removed at the end. Ray
keeps logs, sockets and a session there. The folder is locked while it is in use, so that the next sweep can remove what
one that was killed left. Ray's own processes end with the process that started them.
"""

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stallwise._version import __version__
from stallwise.cluster.sweep.cases import (
    CaseProgress,
    FinishedCase,
    NumberedCase,
    Sweep,
    available_cores,
    simulate_cases,
)
from stallwise.cluster.sweep.local import CaseFailure, Portions, with_jobs, without_jobs
from stallwise.cluster.sweep.results import program_digest
from stallwise.errors import StallwiseError, missing_extra

_TARGET_S = 1.0
"""Length of one task: far above the millisecond that Ray needs for each, and little to redo when a worker is lost."""
_RETRIES = 5
"""Times that a task is started again after its worker or node is lost."""
_TASKS_PER_CORE = 2
"""Tasks that are submitted per core: one runs, the next one waits beside it."""
_POLL_S = 5.0
"""Interval at which the number of cores is read again: nodes come and go."""
_PATIENCE_S = 60.0
"""Time without any core before that is reported: nodes that are replaced come back within it."""
_PREFIX = "stallwise-ray-"
_LOCK = "in-use"
_LONGEST_PARENT = 20
"""Characters of the parent folder: Ray puts sockets 85 deeper, and the path of a socket has at most 107."""
_CONNECT_S = 10.0
_SETTLE_S, _RETRY_S = 10.0, 0.2
_STORE_BYTES = 512 << 20
"""Size of the object store: it holds the sweep and the answers on their way."""


@dataclass(frozen=True, slots=True)
class RayEngine:
    """Runs on the cluster at an address (`auto`, `host:6379`), or on one of `cores` cores started here."""

    cores: int | None = None
    """Most simulations at a time; None: all cores of the cluster."""
    address: str | None = None

    def __call__(self, sweep: Sweep, cases: Sequence[NumberedCase], progress: CaseProgress) -> Iterator[FinishedCase]:
        """Yield the cases of each task as it is done; Ray reports no progress from inside one."""
        remove_stale_folders()
        if not cases:
            return
        ray = ray_package(self.address)
        with ray_session(ray, self.address, self.cores):
            yield from self._run_tasks(ray, sweep, cases)

    def _run_tasks(self, ray: Any, sweep: Sweep, cases: Sequence[NumberedCase]) -> Iterator[FinishedCase]:
        portions = Portions(cases, workers=self._workers(ray), target_s=_TARGET_S)
        polled_s = time.monotonic()
        watch = _CoreWatch()
        task = ray.remote(num_cpus=1, max_retries=_RETRIES)(simulate_portion)
        # Inside a list Ray passes on the reference: a worker fetches the sweep once, not for every task.
        stored, name = [ray.put(sweep)], uuid.uuid4().hex
        pending: list[Any] = []
        try:
            while portions or pending:
                while portions and len(pending) < _TASKS_PER_CORE * portions.workers:
                    pending.append(task.remote(name, stored, portions.take()))
                done, pending = ray.wait(pending, timeout=_POLL_S)
                for reference in done:
                    for finished in _finished_cases(ray, reference):
                        portions.record(finished)
                        yield with_jobs(sweep, finished)
                if time.monotonic() - polled_s > _POLL_S:
                    cores, polled_s = self._cores_now(ray), time.monotonic()
                    portions.workers = max(1, cores)
                    watch.update(cores, polled_s)
        finally:
            for reference in pending:
                with contextlib.suppress(Exception):  # the cluster may be what was lost
                    ray.cancel(reference, force=True)

    def _workers(self, ray: Any) -> int:
        """Return how many simulations run at a time; a cluster without cores is an error, not a reason to wait."""
        cores = self._cores_now(ray)
        if cores < 1:
            raise StallwiseError(
                f"The Ray cluster at {self.address} has no cores for work. Start some with: {_START_COMMAND}"
            )
        return cores

    def _cores_now(self, ray: Any) -> int:
        cores = int(ray.cluster_resources().get("CPU", 0))
        return min(cores, self.cores or cores)


_START_COMMAND = " ".join(("ray", "start", "--address=…"))


@dataclass(slots=True)
class _CoreWatch:
    """Reports once, on stderr, that the cluster has had no cores for a while: a sweep that waits does not hang."""

    gone_s: float | None = None
    reported: bool = False

    def update(self, cores: int, now_s: float) -> None:
        if cores > 0:
            self.gone_s, self.reported = None, False
            return
        self.gone_s = now_s if self.gone_s is None else self.gone_s
        if not self.reported and now_s - self.gone_s >= _PATIENCE_S:
            self.reported = True
            sys.stderr.write(
                f"The Ray cluster has had no cores for {now_s - self.gone_s:.0f} s. The sweep goes on when it has some "
                f"({_START_COMMAND}); Ctrl-C ends it.\n"
            )


def ray_package(address: str | None) -> Any:
    """Import Ray with its usage statistics and its warnings about future versions off.

    Whoever reaches Ray's ports runs code. A cluster of our own (no address) listens on the loopback interface alone and
    takes only calls with a token, which is made here and passed on in the environment. Ray reads both at its import.
    """
    if address is None and "ray" not in sys.modules:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # on Linux, too: no cluster beyond this machine
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise missing_extra("Ray", "ray", "The ray engine") from None
    return ray


@dataclass(frozen=True, slots=True)
class _TaskReply:
    """What a task sends back: its cases, and the program that simulated them."""

    program: str
    node: str
    finished: tuple[FinishedCase, ...]
    failure: CaseFailure | None


_FETCHED: dict[str, Sweep] = {}
"""In a worker process: the sweep it works for, by the name of its task."""


def simulate_portion(name: str, stored: list[Any], portion: list[NumberedCase]) -> _TaskReply:
    """Simulate a portion in a worker of the cluster."""
    finished: list[FinishedCase] = []
    failure: CaseFailure | None = None
    try:
        finished.extend(map(without_jobs, simulate_cases(_fetch(name, stored), portion, lambda *_: None)))
    except Exception as error:
        failure = CaseFailure.of(error)
    return _TaskReply(program_digest(), os.uname().nodename, tuple(finished), failure)


def _fetch(name: str, stored: list[Any]) -> Sweep:
    if name not in _FETCHED:
        import ray

        _FETCHED.clear()
        _FETCHED[name] = ray.get(stored[0])
    return _FETCHED[name]


def _finished_cases(ray: Any, reference: Any) -> tuple[FinishedCase, ...]:
    """Return the cases of a task, or raise an error that explains why there are none."""
    lost = (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError)
    try:
        reply: _TaskReply = ray.get(reference)
    except lost as error:
        raise StallwiseError(
            f"Ray lost the worker of a portion of the sweep {_RETRIES + 1} times: {_first_line(error)} "
            "Where memory is short, use fewer cores.",
            fields=("cores",),
        ) from None
    except ray.exceptions.RayError as error:
        if "No module named" in str(error) or "failed to import" in str(error):
            raise StallwiseError(
                f"A worker of the Ray cluster cannot load Stallwise: {_first_line(error)} "
                f"Install stallwise {__version__} on all its nodes, in the Python that Ray runs in."
            ) from None
        raise
    if reply.program != program_digest():
        raise StallwiseError(
            f"Node {reply.node} of the Ray cluster has stallwise {reply.program}, here it is {program_digest()}. "
            "Install the same on all nodes, or their answers are not comparable."
        )
    if reply.failure is not None:
        raise reply.failure.error()
    return reply.finished


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = [line for line in lines if "No module named" in line] or lines[:1] or [type(error).__name__]
    return reasons[0].rstrip(".") + "."


@contextlib.contextmanager
def ray_session(ray: Any, address: str | None, cores: int | None) -> Iterator[None]:
    """Join a cluster, or start one, for the length of the block. One that this process has joined before is kept."""
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
            # Whatever is printed while Ray starts must not get into an answer that a program reads.
            with contextlib.redirect_stdout(sys.stderr):
                ray.init(
                    address="local",
                    num_cpus=cores or available_cores(),
                    include_dashboard=False,
                    object_store_memory=_STORE_BYTES,
                    _temp_dir=str(folder),
                    **quiet,
                )
        else:
            _check_reachable(str(address))
            ray.init(address=address, **quiet)
    except Exception as error:  # Ray raises plain ones, too: a node that takes longer than 30 s to start
        where = "on this machine" if address is None else f"at {address}"
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        hint = "" if address is None else " Check it with: ray status"
        raise StallwiseError(f"No Ray cluster {where}: {reason[0].rstrip('.')}.{hint}") from None


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the caller's SIGTERM handler, which Ray replaces when it starts."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def _check_reachable(address: str) -> None:
    """Connect once: where nobody listens Ray itself tries for minutes, with a page of log."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()


def remove_stale_folders() -> None:
    """Remove session folders of earlier sweeps that no process holds any more: those sweeps were killed."""
    for stale in _parent().glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), _own_folder(stale) as folder:
            if not (stale / _LOCK).exists() and time.time() - os.fstat(folder).st_mtime < _SETTLE_S:
                continue  # another sweep is making it, or removing it
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            lock = os.open(_LOCK, flags, 0o600, dir_fd=folder)
            try:
                if stat.S_ISREG(os.fstat(lock).st_mode):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(stale, ignore_errors=True)
            finally:
                os.close(lock)


@contextlib.contextmanager
def _own_folder(path: Path) -> Iterator[int]:
    """Open a folder of this user that nobody else may write; `OSError` for any other, which somebody else put there."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        facts = os.fstat(folder)
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
            raise PermissionError(f"{path} is another user's")
        yield folder
    finally:
        os.close(folder)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_parent()))
    try:
        with (folder / _LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder into which Ray's processes write for a moment after they were told to end."""
    until_s = time.monotonic() + _SETTLE_S
    while folder.exists() and time.monotonic() < until_s:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            time.sleep(_RETRY_S)


def _parent() -> Path:
    parent = Path(tempfile.gettempdir())
    return parent if len(str(parent)) <= _LONGEST_PARENT else Path("/tmp")  # noqa: S108  # mkdtemp makes it private
