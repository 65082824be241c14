"""Processes that end with their parent, and ending all that a job has started."""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterable

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
    """All processes below this one, except `besides` (those that were there before the job)."""
    known = set(besides)
    return [process for process in psutil.Process().children(recursive=True) if process.pid not in known]


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


def _signal_all(processes: Iterable[psutil.Process], sent: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(sent)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)
