"""Which control group limits a target, and to what: looked up and checked; nothing is changed here."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stallwise.deflate.cgroups import (
    ControlGroup,
    Controller,
    cpu_limits,
    group_at,
    group_of,
    memory_limits,
    quota_of,
)
from stallwise.deflate.journal import DeflationRecord, Hold
from stallwise.deflate.processes import PROC, private_bytes, tree_of
from stallwise.errors import InputError

_ROOM = 1.05
"""A memory limit is at least this multiple of what the processes hold."""
_LIMIT_OF = {"cpu": "cpu.max", "memory": "memory.max"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A fraction of what the target may use now, or an amount: cores, bytes."""

    part: float | None = None
    amount: float | None = None

    def of(self, now: float) -> float:
        """Return it in cores or bytes, where `now` may be used now."""
        return self.part * now if self.part is not None else min(now, self.amount or now)


@dataclass(frozen=True, slots=True)
class DeflationTarget:
    """A process or control group to deflate; `before`: how it is deflated already."""

    name: str
    pid: int | None
    started: int | None
    before: DeflationRecord | None

    def members(self, proc: Path = PROC) -> list[int]:
        """Return the ids of its processes."""
        return tree_of(self.pid) if self.pid is not None else group_at(self.name, "cpu", proc).all_processes()


@dataclass(frozen=True, slots=True)
class LimitPlan:
    """The limit that one controller is to have."""

    group: ControlGroup
    hold: Hold
    new: bool
    limits: dict[str, str]
    had: float
    to: float
    was: dict[str, str] = field(default_factory=dict)
    """Limits of an earlier deflation."""


def _hold_for(target: DeflationTarget, controller: Controller, others: Sequence[str], proc: Path) -> tuple[Hold, bool]:
    """Return the group that is to limit the target, and whether it does not yet."""
    for hold in target.before.holds if target.before else ():
        if hold.controller == controller and hold.group.exists:
            return hold, False
    if target.pid is None:
        group, home = group_at(target.name, controller, proc), None
        if group.root:
            raise InputError(f"{group.path} holds the whole machine, which cannot be limited. Name a group inside it.")
    else:
        home = group_of(target.pid, controller, proc)
        group = home if _alone(target.pid, home) else _new_group(target.pid, home)
    is_new = home is not None and group != home
    _check_rights(group, home, is_new=is_new)
    if is_new and home is not None:
        _check_escapes(home, {_LIMIT_OF[name] for name in (controller, *others)})
    return (
        Hold(
            controller=controller,
            version=group.version,
            mount=str(group.mount),
            path=str(group.path),
            before={} if is_new else group.limits(),
            home=str(home.path) if is_new and home is not None else None,
        ),
        True,
    )


def _alone(pid: int, home: ControlGroup) -> bool:
    """Tell whether a group holds this process and all below it, and no other."""
    if home.root or any(path.is_dir() for path in home.path.iterdir()):
        return False
    return set(home.processes) == set(tree_of(pid))


def _new_group(pid: int, home: ControlGroup) -> ControlGroup:
    """Return a group to make inside home, or beside it: in version 2 only the root has both processes and groups."""
    parent = home if home.version == 1 or home.root else home.parent
    if parent.version == 2 and home.controller not in (parent.path / "cgroup.subtree_control").read_text().split():
        raise InputError(
            f"{parent.path} does not hand the {home.controller} controller on. Write +{home.controller} into its "
            "cgroup.subtree_control, or give a control group of the job's own."
        )
    return parent.child(f"stallwise-deflate-{pid}")


def _check_rights(group: ControlGroup, home: ControlGroup | None, *, is_new: bool) -> None:
    if is_new:
        paths = [group.path.parent, *([home.path / "cgroup.procs"] if home is not None else [])]
    else:
        paths = [group.path / name for name in group.files]
    for path in paths:
        if not os.access(path, os.W_OK):
            raise InputError(
                f"No right to write {path}. Run this as root, or have the control group handed to your user "
                "(systemd: Delegate=yes). Nothing was changed."
            )


def _check_escapes(home: ControlGroup, replaced: set[str]) -> None:
    """Refuse a group beside home (version 2) where home has other limits, which a moved process would escape."""
    escaped = [] if home.version == 1 or home.root else [name for name in home.set_limits() if name not in replaced]
    if escaped:
        raise InputError(
            f"{home.path} has limits of its own ({', '.join(escaped)}), and others are in it: in a group beside it "
            "the process would escape them. Give it a control group of its own, or name this one. Nothing was changed."
        )


def cpu_plan(target: DeflationTarget, amount: Amount, period_us: int, others: Sequence[str], proc: Path) -> LimitPlan:
    """Plan the target's quota; `others`: controllers that are limited together with it."""
    hold, new = _hold_for(target, "cpu", others, proc)
    had = _had_cores(target, hold, proc)
    to = amount.of(had)
    limits = cpu_limits(hold.version, to, period_us)
    return LimitPlan(hold.group, hold, new, limits, had, to, {} if new else hold.group.limits())


def _had_cores(target: DeflationTarget, hold: Hold, proc: Path) -> float:
    """Return the cores it could use before any deflation: the smallest quota above it, else those it may run on."""
    member = next(iter(target.members(proc)), os.getpid())
    cores = float(len(os.sched_getaffinity(member))) if (PROC / str(member)).exists() else float(os.cpu_count() or 1)
    quotas = [quota_of(limits, hold.version) for limits in _limits_on(hold)]
    return min([cores, *(quota for quota in quotas if quota is not None)])


def _limits_on(hold: Hold) -> Iterator[dict[str, str]]:
    """Yield the limits before any deflation: of the group where the target was, then of the groups around it."""
    own = ControlGroup(hold.group.controller, hold.version, hold.group.mount, Path(hold.home or hold.path))
    yield hold.before if hold.home is None else own.limits()
    for group in own.around():
        yield group.limits()


def memory_plan(target: DeflationTarget, amount: Amount, others: Sequence[str], proc: Path) -> LimitPlan:
    """Plan the target's memory limit, which must leave what its processes hold."""
    hold, new = _hold_for(target, "memory", others, proc)
    had = _had_bytes(hold)
    to = amount.of(had)
    used = _used_bytes(target, hold, proc)
    if to < _ROOM * used:
        raise InputError(
            f"{to / 2**20:,.0f} MiB are less than its processes hold ({used / 2**20:,.0f} MiB): they would be killed. "
            f"Leave it at least {math.ceil(_ROOM * used / 2**20):,} MiB. Nothing was changed."
        )
    limits = memory_limits(hold.version, int(to))
    return LimitPlan(hold.group, hold, new, limits, had, to, {} if new else hold.group.limits())


def _had_bytes(hold: Hold) -> float:
    """Return the bytes it could use before any deflation: the smallest limit above it, else the machine's memory."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limited = [text for limits in _limits_on(hold) for text in limits.values() if text != "max"]
    return float(min([machine, *map(int, limited)]))


def _used_bytes(target: DeflationTarget, hold: Hold, proc: Path) -> int:
    """Return the memory that a limit must leave: a group's own account, else what each process holds alone."""
    if hold.home is None and hold.group.exists:
        return hold.group.held_bytes()
    return sum(private_bytes(pid) for pid in target.members(proc))
