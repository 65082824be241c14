"""Control groups, version 1 and 2: which one a process is in, what limits it, and how to read and write that.

Version 1 mounts one tree per controller, version 2 one for all; a machine may have both, a controller is in one of
them. What is written, in cores c and a period p:

    version 1   cpu.cfs_period_us = p, cpu.cfs_quota_us = c p (-1: no limit); memory.limit_in_bytes
    version 2   cpu.max = "c p   p" ("max …": no limit); memory.max

Every file is under the mount points of `proc`/self/mountinfo, so that a tree of the same shape can stand in for one.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stallwise.deflate.processes import PROC
from stallwise.errors import InputError

Controller = Literal["cpu", "memory"]
MIN_QUOTA_US = 1000
"""The kernel takes no shorter quota, and no shorter period."""
MAX_PERIOD_US = 1_000_000
_KERNEL_PERIOD_US = 100_000
_OTHER_LIMITS = ("memory.high", "memory.swap.max", "pids.max", "io.max", "cpuset.cpus", "cpuset.mems")


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """One control group, as one controller sees it."""

    controller: Controller
    version: int
    mount: Path
    path: Path

    @property
    def root(self) -> bool:
        """Whether it is the tree's root, which cannot be limited."""
        return self.path == self.mount

    @property
    def exists(self) -> bool:
        """Whether it has not been removed."""
        return self.path.is_dir()

    def child(self, name: str) -> "ControlGroup":
        return ControlGroup(self.controller, self.version, self.mount, self.path / name)

    @property
    def parent(self) -> "ControlGroup":
        return ControlGroup(self.controller, self.version, self.mount, self.path.parent)

    @property
    def processes(self) -> list[int]:
        """Ids of the processes directly in it."""
        return [int(line) for line in (self.path / "cgroup.procs").read_text().split()]

    def take(self, pid: int) -> None:
        """Move a process into this group, unless it has ended."""
        try:
            _put(self.path / "cgroup.procs", str(pid))
        except ProcessLookupError:
            return

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files that hold this controller's limit."""
        if self.controller == "cpu":
            return ("cpu.cfs_period_us", "cpu.cfs_quota_us") if self.version == 1 else ("cpu.max",)
        return ("memory.limit_in_bytes",) if self.version == 1 else ("memory.max",)

    def limits(self) -> dict[str, str]:
        """Read the limits as they are now, unparsed."""
        return {name: (self.path / name).read_text().strip() for name in self.files if (self.path / name).exists()}

    def write(self, limits: dict[str, str]) -> None:
        """Write limits; a quota is lifted while its period changes, because the kernel checks both together."""
        if "cpu.cfs_period_us" in limits and "cpu.cfs_quota_us" in limits:
            _put(self.path / "cpu.cfs_quota_us", "-1")
        for name, text in limits.items():
            _put(self.path / name, text)

    def cores(self) -> float | None:
        """Return its own quota in cores; None: no limit."""
        return quota_of(self.limits(), self.version)

    def around(self) -> Iterator["ControlGroup"]:
        """Yield the groups around it, nearest first, as far as they are mounted here."""
        group = self
        while not group.root and group.parent.path.is_relative_to(group.mount):
            group = group.parent
            yield group

    def all_processes(self) -> list[int]:
        """Return the processes in it and in the groups inside it; none where it is gone."""
        pids: list[int] = []
        for folder, _, _ in os.walk(self.path):
            with contextlib.suppress(OSError):  # removed meanwhile
                pids += ControlGroup(self.controller, self.version, self.mount, Path(folder)).processes
        return pids

    def set_limits(self) -> list[str]:
        """Return the names of all limits that are set in it (version 2), whichever controller's."""
        names = ("cpu.max", "memory.max", *_OTHER_LIMITS)
        texts = {name: (self.path / name).read_text() for name in names if (self.path / name).exists()}
        return [name for name, text in texts.items() if text.split()[:1] not in ([], ["max"])]

    def held_bytes(self) -> int:
        """Return the memory of its processes that is no cache of files: what a limit must leave."""
        names = ("total_rss", "total_mapped_file") if self.version == 1 else ("anon", "shmem")
        counters = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        return sum(int(counters.get(name, 0)) for name in names)


def _put(path: Path, text: str) -> None:
    """Write a file; name it in the error where the kernel refuses the text."""
    try:
        path.write_text(text)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def quota_of(limits: dict[str, str], version: int) -> float | None:
    """Return the cores that limits allow; None: no limit."""
    quota = limits.get("cpu.cfs_quota_us", "-1") if version == 1 else limits.get("cpu.max", "max").split()[0]
    return None if quota in ("-1", "max") else int(quota) / period_of(limits, version)


def period_of(limits: dict[str, str], version: int) -> int:
    """Return the period of a quota in microseconds; the kernel's default where none is set."""
    period = limits.get("cpu.cfs_period_us") if version == 1 else limits.get("cpu.max", "").partition(" ")[2]
    return int(period or _KERNEL_PERIOD_US)


def cpu_limits(version: int, cores: float, period_us: int) -> dict[str, str]:
    """Return the files of a quota and their texts; an `InputError` where the kernel has none so small."""
    quota_us = round(cores * period_us)
    if not MIN_QUOTA_US <= period_us <= MAX_PERIOD_US:
        raise InputError(f"The period of a quota is 1 ms to 1 s, not {period_us / 1000:g} ms.", fields=("period",))
    if quota_us < MIN_QUOTA_US:
        longer = f", or use a period of {MIN_QUOTA_US / cores / 1000:.0f} ms" if cores * 1e6 >= MIN_QUOTA_US else ""
        raise InputError(
            f"{cores:.3g} cores are {quota_us / 1000:g} ms of a period of {period_us / 1000:g} ms, and the kernel's "
            f"minimum is 1 ms. Leave it at least {MIN_QUOTA_US / period_us:g} cores{longer}.",
            fields=("cpu", "period"),
        )
    if version == 1:
        return {"cpu.cfs_period_us": str(period_us), "cpu.cfs_quota_us": str(quota_us)}
    return {"cpu.max": f"{quota_us} {period_us}"}


def memory_limits(version: int, size: int) -> dict[str, str]:
    """Return the file of a memory limit and its text."""
    return {"memory.limit_in_bytes" if version == 1 else "memory.max": str(size)}


def group_of(pid: int, controller: Controller, proc: Path = PROC) -> ControlGroup:
    """Return the group that a process is in."""
    mounts = _mounts(proc)
    version, mount, inside = _tree(mounts, controller)
    for line in (proc / str(pid) / "cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if (version == 1 and controller in names.split(",")) or (version == 2 and not names):
            relative = os.path.relpath(path, inside)
            below = "" if relative == "." else relative
            if below.startswith(".."):
                raise InputError(f"The control group of process {pid}, {path}, is outside what is mounted here.")
            return ControlGroup(controller, version, mount, mount / below)
    raise InputError(f"Process {pid} is in no control group of the {controller} controller.")


def group_at(name: str, controller: Controller, proc: Path = PROC) -> ControlGroup:
    """Return a group by its path, in any controller's tree, or by its name inside each tree."""
    version, mount, _ = _tree(_mounts(proc), controller)
    group = ControlGroup(controller, version, mount, mount / plain_name(name, proc).lstrip("/"))
    if ".." in Path(name).parts or not group.exists or not (group.path / "cgroup.procs").exists():
        raise InputError(
            f"{name.strip('/')} is no run, no process and no control group ({group.path}). Check the name."
        )
    return group


def plain_name(name: str, proc: Path = PROC) -> str:
    """Return the name of a group inside its tree: the same for /sys/fs/cgroup/cpu/job, /job and job."""
    path = Path(name)
    inside = next((path.relative_to(mount) for _, mount, _, _ in _mounts(proc) if path.is_relative_to(mount)), path)
    return "/" + str(inside).strip("/.")


_Mount = tuple[int, Path, str, frozenset[str]]
"""Version, mount point, what of the tree is mounted there, controllers."""


def _mounts(proc: Path) -> list[_Mount]:
    """List mounted trees, innermost mount points first: /sys/fs/cgroup may itself be one."""
    mounts: list[_Mount] = []
    for line in (proc / "self" / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if kind[:1] == ["cgroup"]:
            mounts.append((1, Path(fields[4]), fields[3], frozenset(kind[2].split(","))))
        elif kind[:1] == ["cgroup2"]:
            mounts.append((2, Path(fields[4]), fields[3], _controllers(Path(fields[4]))))
    return sorted(mounts, key=lambda mount: -len(mount[1].parts))


def _controllers(mount: Path) -> frozenset[str]:
    try:
        return frozenset((mount / "cgroup.controllers").read_text().split())
    except OSError:
        return frozenset()


def _tree(mounts: list[_Mount], controller: Controller) -> tuple[int, Path, str]:
    for version, mount, inside, controllers in mounts:
        if controller in controllers:
            return version, mount, inside
    raise InputError(f"No control groups with a {controller} controller are mounted on this machine.")
