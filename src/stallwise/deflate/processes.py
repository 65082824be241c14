"""Processes of a job: when each began, which others it started, and the cores they keep busy."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from stallwise.errors import InputError

PROC = Path("/proc")
_STATE, _STARTED = 0, 19
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SLICE_S = 0.5
"""Time between two listings of the processes: of one that ends no more is missed."""


def started_at(pid: int) -> int | None:
    """Return when a process began, in the kernel's clock ticks; None where it has ended.

    Together with the process id it identifies a process. Unlike psutil's `create_time` it does not move with the clock,
    so it can be compared with what was written to a file earlier.
    """
    try:
        # The name in the second field may hold anything, so fields are counted from its last bracket.
        fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[_STARTED]) if len(fields) > _STARTED and fields[_STATE] not in (b"Z", b"X") else None


def seconds_since_boot() -> float:
    """Return a clock that nobody sets and that counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def ancestors(pid: int) -> list[int]:
    """Return the processes above a process, nearest first, without the machine's first."""
    try:
        return [process.pid for process in psutil.Process(pid).parents() if process.pid > 1]
    except psutil.Error:
        return []


def tree_of(pid: int) -> list[int]:
    """Return a process and all below it."""
    try:
        return [pid, *(process.pid for process in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return [pid]


def used_s(pid: int) -> float:
    """Return the core-seconds that a process has used; 0 where it has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def private_bytes(pid: int) -> int:
    """Return the memory that a process holds alone, without pages of files and shared ones; 0 where it has ended."""
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return int(memory.rss - memory.shared)


def busy_cores(members: Callable[[], Sequence[int]], duration_s: float) -> float:
    """Measure the cores that processes keep busy, those included that are started meanwhile."""
    begin_s, begin_ticks = time.monotonic(), seconds_since_boot() * _TICKS_PER_S
    before, spent_s, lasted_s = _used_by(members), 0.0, 0.0
    while lasted_s < duration_s:
        time.sleep(min(_SLICE_S, duration_s - lasted_s))
        now, lasted_s = _used_by(members), time.monotonic() - begin_s
        spent_s += sum(max(0.0, used - before.get(pid, _base_s(pid, used, begin_ticks))) for pid, used in now.items())
        before = now
    return spent_s / lasted_s if lasted_s > 0 else 0.0


def _used_by(members: Callable[[], Sequence[int]]) -> dict[int, float]:
    """Return core-seconds by process; nothing for a group that is gone."""
    try:
        return {pid: used_s(pid) for pid in members()}
    except (OSError, InputError):
        return {}


def _base_s(pid: int, used: float, begin_ticks: float) -> float:
    """Core-seconds not to count of a process that is listed for the first time: 0 if it is new, all if it moved in."""
    started = started_at(pid)
    return 0.0 if started is not None and started >= begin_ticks - 1 else used
