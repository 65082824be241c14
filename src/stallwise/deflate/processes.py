"""Processes as the kernel lists them: who started whom and when, and what they have used."""

import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
_STATE, _PARENT, _USER, _SYSTEM, _STARTED = 0, 1, 11, 12, 19
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def stat_fields(pid: int, proc: Path = PROC) -> list[bytes]:
    """Of /proc/PID/stat, from the state on; empty where there is no such process.

    The name in the second field may hold anything, so fields are counted from its last bracket.
    """
    try:
        fields = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []
    return fields if len(fields) > _STARTED else []


def started_at(pid: int, proc: Path = PROC) -> int | None:
    """When a process began, in clock ticks; None where there is none, or one that has ended and was not collected."""
    fields = stat_fields(pid, proc)
    return int(fields[_STARTED]) if fields and fields[_STATE] not in (b"Z", b"X") else None


def parent_of(pid: int, proc: Path = PROC) -> int:
    """The process that started it; 0 where that is not known."""
    fields = stat_fields(pid, proc)
    return int(fields[_PARENT]) if fields else 0


def used_s(pid: int, proc: Path = PROC) -> float:
    """Core-seconds since it began; 0 where it has ended."""
    fields = stat_fields(pid, proc)
    return (int(fields[_USER]) + int(fields[_SYSTEM])) * _TICK_S if fields else 0.0


def ancestors(pid: int, proc: Path = PROC) -> Iterator[int]:
    """Those above a process, but the first of all."""
    while (pid := parent_of(pid, proc)) > 1:
        yield pid


def tree_of(pid: int, proc: Path = PROC) -> list[int]:
    """A process and all below it, as far as they live."""
    children: dict[int, list[int]] = {}
    for path in proc.iterdir():
        if path.name.isdigit():
            children.setdefault(parent_of(int(path.name), proc), []).append(int(path.name))
    return [pid, *_below(pid, children)]


def _below(pid: int, children: dict[int, list[int]]) -> Iterator[int]:
    for child in children.get(pid, ()):
        yield child
        yield from _below(child, children)
