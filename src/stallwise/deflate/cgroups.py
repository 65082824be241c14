"""Control groups, version 1 and 2: where a process lives, what limits it, and how to read and write that.

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
LEAST_QUOTA_US = 1000
"""The kernel takes no shorter quota, and no shorter period."""
LONGEST_PERIOD_US = 1_000_000
_KERNEL_PERIOD_US = 100_000
_OTHER_LIMITS = ("memory.high", "memory.swap.max", "pids.max", "io.max", "cpuset.cpus", "cpuset.mems")


@dataclass(frozen=True, slots=True)
class Group:
    """One control group, as one controller sees it."""

    controller: Controller
    version: int
    mount: Path
    path: Path

    @property
    def root(self) -> bool:
        """The kernel's own, which cannot be limited."""
        return self.path == self.mount

    @property
    def exists(self) -> bool:
        """Whether it is still there."""
        return self.path.is_dir()

    def child(self, name: str) -> "Group":
        """One inside this one."""
        return Group(self.controller, self.version, self.mount, self.path / name)

    @property
    def parent(self) -> "Group":
        """The one around this one."""
        return Group(self.controller, self.version, self.mount, self.path.parent)

    @property
    def processes(self) -> list[int]:
        """Those directly in it."""
        return [int(line) for line in (self.path / "cgroup.procs").read_text().split()]

    def take(self, pid: int) -> None:
        """Move a process here; one that has ended needs no moving."""
        try:
            _put(self.path / "cgroup.procs", str(pid))
        except ProcessLookupError:
            return

    @property
    def files(self) -> tuple[str, ...]:
        """That a limit of this controller stands in."""
        if self.controller == "cpu":
            return ("cpu.cfs_period_us", "cpu.cfs_quota_us") if self.version == 1 else ("cpu.max",)
        return ("memory.limit_in_bytes",) if self.version == 1 else ("memory.max",)

    def limits(self) -> dict[str, str]:
        """As they are now, word for word."""
        return {name: (self.path / name).read_text().strip() for name in self.files if (self.path / name).exists()}

    def write(self, limits: dict[str, str]) -> None:
        """Set them; a quota is lifted while its period changes, because the kernel looks at both."""
        if "cpu.cfs_period_us" in limits and "cpu.cfs_quota_us" in limits:
            _put(self.path / "cpu.cfs_quota_us", "-1")
        for name, text in limits.items():
            _put(self.path / name, text)

    def cores(self) -> float | None:
        """Its own quota; None: no limit."""
        return quota_of(self.limits(), self.version)

    def around(self) -> Iterator["Group"]:
        """Those around it, the nearest first, as far as they can be seen here."""
        group = self
        while not group.root and group.parent.path.is_relative_to(group.mount):
            group = group.parent
            yield group

    def everyone(self) -> list[int]:
        """Processes in it and in the groups inside it; none where it is gone."""
        found: list[int] = []
        for folder, _, _ in os.walk(self.path):
            with contextlib.suppress(OSError):  # removed meanwhile
                found += Group(self.controller, self.version, self.mount, Path(folder)).processes
        return found

    def set_limits(self) -> list[str]:
        """Of version 2: all limits that are set in it, whichever controller's."""
        names = ("cpu.max", "memory.max", *_OTHER_LIMITS)
        said = {name: (self.path / name).read_text() for name in names if (self.path / name).exists()}
        return [name for name, text in said.items() if text.split()[:1] not in ([], ["max"])]

    def held_bytes(self) -> int:
        """Memory of its processes that cannot be given back by dropping files: what a limit must leave."""
        wanted = ("total_rss", "total_mapped_file") if self.version == 1 else ("anon", "shmem")
        found = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        return sum(int(found.get(name, 0)) for name in wanted)


def _put(path: Path, text: str) -> None:
    """What the kernel refuses when it is written does not say where."""
    try:
        path.write_text(text)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def quota_of(limits: dict[str, str], version: int) -> float | None:
    """The cores that limits allow; None: no limit."""
    quota = limits.get("cpu.cfs_quota_us", "-1") if version == 1 else limits.get("cpu.max", "max").split()[0]
    return None if quota in ("-1", "max") else int(quota) / period_of(limits, version)


def period_of(limits: dict[str, str], version: int) -> int:
    """Of a quota, in microseconds; the kernel's own where it is not said."""
    said = limits.get("cpu.cfs_period_us") if version == 1 else limits.get("cpu.max", "").partition(" ")[2]
    return int(said or _KERNEL_PERIOD_US)


def cpu_limits(version: int, cores: float, period_us: int) -> dict[str, str]:
    """The files of a quota; an `InputError` where the kernel has none so small."""
    quota_us = round(cores * period_us)
    if not LEAST_QUOTA_US <= period_us <= LONGEST_PERIOD_US:
        raise InputError(f"--period takes 1ms to 1s, not {period_us / 1000:g}ms.")
    if quota_us < LEAST_QUOTA_US:
        longer = f", or a --period of {LEAST_QUOTA_US / cores / 1000:.0f}ms" if cores * 1e6 >= LEAST_QUOTA_US else ""
        raise InputError(
            f"{cores:.3g} cores are {quota_us / 1000:g} ms of a period of {period_us / 1000:g} ms, and the kernel's "
            f"least is 1 ms. Leave it at least {LEAST_QUOTA_US / period_us:g} cores{longer}."
        )
    if version == 1:
        return {"cpu.cfs_period_us": str(period_us), "cpu.cfs_quota_us": str(quota_us)}
    return {"cpu.max": f"{quota_us} {period_us}"}


def memory_limits(version: int, size: int) -> dict[str, str]:
    """The file of a memory limit."""
    return {"memory.limit_in_bytes" if version == 1 else "memory.max": str(size)}


def group_of(pid: int, controller: Controller, proc: Path = PROC) -> Group:
    """Where a process lives."""
    mounts = _mounts(proc)
    version, mount, inside = _home(mounts, controller)
    for line in (proc / str(pid) / "cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if (version == 1 and controller in names.split(",")) or (version == 2 and not names):
            relative = os.path.relpath(path, inside)
            below = "" if relative == "." else relative
            if below.startswith(".."):
                raise InputError(f"The control group of process {pid}, {path}, is outside what is mounted here.")
            return Group(controller, version, mount, mount / below)
    raise InputError(f"Process {pid} is in no control group of the {controller} controller.")


def group_at(name: str, controller: Controller, proc: Path = PROC) -> Group:
    """By path, in any controller's tree, or by name inside each tree."""
    version, mount, _ = _home(_mounts(proc), controller)
    found = Group(controller, version, mount, mount / plain_name(name, proc).lstrip("/"))
    if ".." in Path(name).parts or not found.exists or not (found.path / "cgroup.procs").exists():
        said = name.strip("/")
        raise InputError(f"{said} is no run, no process and no control group ({found.path}). Check the name.")
    return found


def plain_name(name: str, proc: Path = PROC) -> str:
    """Of a group inside its tree: the same for /sys/fs/cgroup/cpu/job, /job and job."""
    path = Path(name)
    inside = next((path.relative_to(mount) for _, mount, _, _ in _mounts(proc) if path.is_relative_to(mount)), path)
    return "/" + str(inside).strip("/.")


_Mount = tuple[int, Path, str, frozenset[str]]
"""Version, mount point, what of the tree is mounted there, controllers."""


def _mounts(proc: Path) -> list[_Mount]:
    """The innermost mount points first: /sys/fs/cgroup may itself be one."""
    found: list[_Mount] = []
    for line in (proc / "self" / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if kind[:1] == ["cgroup"]:
            found.append((1, Path(fields[4]), fields[3], frozenset(kind[2].split(","))))
        elif kind[:1] == ["cgroup2"]:
            found.append((2, Path(fields[4]), fields[3], _controllers(Path(fields[4]))))
    return sorted(found, key=lambda mount: -len(mount[1].parts))


def _controllers(mount: Path) -> frozenset[str]:
    try:
        return frozenset((mount / "cgroup.controllers").read_text().split())
    except OSError:
        return frozenset()


def _home(mounts: list[_Mount], controller: Controller) -> tuple[int, Path, str]:
    for version, mount, inside, controllers in mounts:
        if controller in controllers:
            return version, mount, inside
    raise InputError(f"No control groups with a {controller} controller are mounted on this machine.")
