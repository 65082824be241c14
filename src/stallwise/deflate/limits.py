"""Which control group is to hold a target, and to what: looked up and checked, nothing is changed here."""

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stallwise.deflate.cgroups import (
    Controller,
    Group,
    cpu_limits,
    group_at,
    group_of,
    memory_limits,
    quota_of,
)
from stallwise.deflate.journal import Hold, Journal
from stallwise.deflate.processes import PROC, tree_of
from stallwise.errors import InputError

_ROOM = 1.05
"""A memory limit leaves the processes this much of what they hold."""
_LIMIT_OF = {"cpu": "cpu.max", "memory": "memory.max"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A part of what it may use now, or an amount: cores, bytes."""

    part: float | None = None
    amount: float | None = None

    def of(self, now: float) -> float:
        """In cores or bytes."""
        return self.part * now if self.part is not None else min(now, self.amount or now)


@dataclass(frozen=True, slots=True)
class Target:
    """Whom it is about; `before` is how it is deflated already."""

    name: str
    pid: int | None
    started: int | None
    before: Journal | None

    def members(self, proc: Path = PROC) -> list[int]:
        """Its processes."""
        return tree_of(self.pid, proc) if self.pid is not None else group_at(self.name, "cpu", proc).everyone()


@dataclass(frozen=True, slots=True)
class Plan:
    """One controller's limit to come."""

    group: Group
    hold: Hold
    new: bool
    limits: dict[str, str]
    had: float
    to: float
    was: dict[str, str] = field(default_factory=dict)
    """Limits of an earlier deflation."""


def _hold(target: Target, controller: Controller, others: Sequence[str], proc: Path) -> tuple[Hold, bool]:
    """The group that is to limit the target, and whether it is a new one."""
    for hold in target.before.holds if target.before else ():
        if hold.controller == controller and hold.group.exists:
            return hold, False
    if target.pid is None:
        group, home = group_at(target.name, controller, proc), None
        if group.root:
            raise InputError(f"{group.path} holds the whole machine, which cannot be limited. Name a group inside it.")
    else:
        home = group_of(target.pid, controller, proc)
        group = home if _alone(target.pid, home, proc) else _made_for(target.pid, home)
    made = home is not None and group != home
    _check_rights(group, home, made=made)
    if made and home is not None:
        _check_escapes(home, {_LIMIT_OF[one] for one in (controller, *others)})
    return (
        Hold(
            controller=controller,
            version=group.version,
            mount=str(group.mount),
            path=str(group.path),
            before={} if made else group.limits(),
            home=str(home.path) if made and home is not None else None,
        ),
        True,
    )


def _alone(pid: int, home: Group, proc: Path) -> bool:
    """Whether a group holds this process and those below it, all of them and nobody else."""
    if home.root or any(path.is_dir() for path in home.path.iterdir()):
        return False
    return set(home.processes) == set(tree_of(pid, proc))


def _made_for(pid: int, home: Group) -> Group:
    """Version 2 has no processes in a group that has groups with controllers inside, but in its root."""
    parent = home if home.version == 1 or home.root else home.parent
    if parent.version == 2 and home.controller not in (parent.path / "cgroup.subtree_control").read_text().split():
        raise InputError(
            f"{parent.path} does not hand the {home.controller} controller on. Write +{home.controller} into its "
            "cgroup.subtree_control, or give a control group of the job's own."
        )
    return parent.child(f"stallwise-deflate-{pid}")


def _check_rights(group: Group, home: Group | None, *, made: bool) -> None:
    if made:
        needed = [group.path.parent, *([home.path / "cgroup.procs"] if home is not None else [])]
    else:
        needed = [group.path / name for name in group.files]
    for path in needed:
        if not os.access(path, os.W_OK):
            raise InputError(
                f"No right to write {path}. Run this as root, or have the control group handed to your user "
                "(systemd: Delegate=yes). Nothing was changed."
            )


def _check_escapes(home: Group, replaced: set[str]) -> None:
    """In version 2 a made group stands beside home, so that home's own limits would no longer hold who is moved."""
    escaped = [] if home.version == 1 or home.root else [name for name in home.set_limits() if name not in replaced]
    if escaped:
        raise InputError(
            f"{home.path} has limits of its own ({', '.join(escaped)}), and others are in it: in a group beside it "
            "the process would escape them. Give it a control group of its own, or name this one. Nothing was changed."
        )


def cpu_plan(target: Target, amount: Amount, period_us: int, others: Sequence[str], proc: Path) -> Plan:
    """Its quota; `others`: controllers that are limited together with it."""
    hold, new = _hold(target, "cpu", others, proc)
    had = _had_cores(target, hold, proc)
    to = amount.of(had)
    limits = cpu_limits(hold.version, to, period_us)
    return Plan(hold.group, hold, new, limits, had, to, {} if new else hold.group.limits())


def _had_cores(target: Target, hold: Hold, proc: Path) -> float:
    """What it could use before any deflation: the smallest quota above it, else the cores it may run on."""
    member = next(iter(target.members(proc)), os.getpid())
    cores = float(len(os.sched_getaffinity(member))) if (PROC / str(member)).exists() else float(os.cpu_count() or 1)
    quotas = [quota_of(limits, hold.version) for limits in _limits_on(hold)]
    return min([cores, *(quota for quota in quotas if quota is not None)])


def _limits_on(hold: Hold) -> Iterator[dict[str, str]]:
    """Before any deflation: those of the group where the target was, then those of the groups around it."""
    own = Group(hold.group.controller, hold.version, hold.group.mount, Path(hold.home or hold.path))
    yield hold.before if hold.home is None else own.limits()
    for group in own.around():
        yield group.limits()


def memory_plan(target: Target, amount: Amount, others: Sequence[str], proc: Path) -> Plan:
    """Its limit, which leaves what its processes hold."""
    hold, new = _hold(target, "memory", others, proc)
    had = _had_bytes(hold)
    to = amount.of(had)
    held = _held_bytes(target, hold, proc)
    if to < _ROOM * held:
        raise InputError(
            f"{to / 2**20:,.0f} MiB are less than its processes hold ({held / 2**20:,.0f} MiB): they would be killed. "
            f"Leave it at least {math.ceil(_ROOM * held / 2**20):,} MiB. Nothing was changed."
        )
    limits = memory_limits(hold.version, int(to))
    return Plan(hold.group, hold, new, limits, had, to, {} if new else hold.group.limits())


def _had_bytes(hold: Hold) -> float:
    """What it could use before any deflation: the smallest limit above it, else the machine's memory."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    said = [text for limits in _limits_on(hold) for text in limits.values() if text != "max"]
    return float(min([machine, *map(int, said)]))


def _held_bytes(target: Target, hold: Hold, proc: Path) -> int:
    """Of a group its own account; of processes what each holds alone: pages of files and shared ones are left out."""
    if hold.home is None and hold.group.exists:
        return hold.group.held_bytes()
    page = os.sysconf("SC_PAGE_SIZE")
    held = 0
    for pid in target.members(proc):
        with contextlib.suppress(OSError, ValueError, IndexError):
            size = (PROC / str(pid) / "statm").read_text().split()
            held += (int(size[1]) - int(size[2])) * page
    return held
