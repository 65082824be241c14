"""Processes of a job: ending with their parent, finding all that a job has started, ending them."""

import contextlib
import ctypes
import functools
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(sent: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send `sent` to this process when its parent dies (Linux; elsewhere nothing happens).

    The parent is the *thread* that started the process: only for children of a thread that stays.
    """
    _prctl(_PR_SET_PDEATHSIG, int(sent))


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that none of a job's processes gets out of sight."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(besides: Iterable[int] = ()) -> list[psutil.Process]:
    """All processes below this one, except `besides` (those that existed before the job)."""
    excluded = set(besides)
    return [process for process in psutil.Process().children(recursive=True) if process.pid not in excluded]


def end_all(processes: list[psutil.Process], *, gentle: signal.Signals | None = None, patience_s: float = 0.0) -> None:
    """Kill processes, the eldest first; with `gentle`, only what is left of them `patience_s` after that signal."""
    if gentle is not None:
        _signal_all(processes, gentle)
        _, processes = psutil.wait_procs(processes, timeout=patience_s)
    _signal_all(processes, signal.SIGKILL)
    psutil.wait_procs(processes, timeout=5)


def is_alive(pid: int) -> bool:
    """Whether the process still runs; one that has ended and was not waited for does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def signal_process(pid: int, sent: int) -> bool:
    """Send a signal; False where there is no such process."""
    try:
        os.kill(pid, sent)
    except (ProcessLookupError, PermissionError):
        return False
    return True


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGTERM raise KeyboardInterrupt, as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _signal_all(processes: Iterable[psutil.Process], sent: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(sent)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Hold garbage collection off while another thread's frames are looked at.

    CPython creates frame objects when they are asked for. If that starts a collection, a finalizer may let the other
    thread run, and its frames be gone: the process crashes, or two threads wait for each other
    (python/cpython#106883).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@functools.cache
def keep_garbage_in_the_parent() -> None:
    """Never collect in a forked process (a loader's worker) what was garbage in this one.

    Destroying a CUDA event aborts a process that was forked from one that uses CUDA, and a loader's iterator cannot
    join workers that are not its children. Recording makes garbage of both kinds.
    """
    one_at_a_time = threading.Lock()  # two threads that fork together would leave the collector off
    was_enabled = False

    def before() -> None:
        nonlocal was_enabled
        one_at_a_time.acquire()
        was_enabled = gc.isenabled()
        gc.disable()

    def after() -> None:
        if was_enabled:
            gc.enable()
        one_at_a_time.release()

    def after_in_child() -> None:
        gc.freeze()
        after()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=after_in_child)
