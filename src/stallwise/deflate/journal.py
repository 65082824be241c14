"""The state before a deflation, on disk ahead of every change, and how it is undone from there.

One file per target. It is written before the first change and removed when everything is as it was; undoing needs
nothing else, whichever process is killed meanwhile. Undoing is the same after a half-made deflation as after a complete
one: limits in the file are written back, processes return to their groups, groups that were made are removed.

A keeper (`python -m stallwise.deflate.journal TARGET`) runs beside every deflation. It undoes it when the target ends,
and when its time is over. It is two processes, of which each replaces the other: one that is killed leaves nothing
undone. Where it may, it leaves the control group of its login session, whose end would kill both.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import select
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stallwise.deflate.cgroups import ControlGroup, cpu_limits, period_of, quota_of
from stallwise.deflate.processes import PROC, ancestors, seconds_since_boot, started_at
from stallwise.deflate.requests import request_folder, withdraw_request, write_document
from stallwise.errors import InputError, StallwiseError

STATE_VARIABLE = "STALLWISE_DEFLATED"
_TRIES, _PAUSE_S = 50, 0.02
_LONGEST = 200
"""Characters of a target in a file's name, which may have 255."""
_POLL_S = 1.0
_SESSION = re.compile(r"/session-[^/]*\.scope(/|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One group that limits the target. `home`: for a group that was made, where its processes were before."""

    controller: str
    version: int
    mount: str
    path: str
    before: dict[str, str]
    home: str | None = None
    homes: dict[str, str] = field(default_factory=dict)
    """Group of every process that was elsewhere, by process id."""

    @property
    def group(self) -> ControlGroup:
        return ControlGroup(self.controller, self.version, Path(self.mount), Path(self.path))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeflationRecord:
    """One deflation: its target, the state before, the limits now."""

    target: str
    """A process id, or the name of a control group."""
    started: int | None
    """When the process began, in clock ticks; None for a control group."""
    holds: tuple[Hold, ...] = ()
    asked: str | None = None
    """Folder with the requests to its ranks."""
    asked_pids: tuple[int, ...] = ()
    busy_cores: float | None = None
    """Cores it used before it was deflated."""
    cores: float | None = None
    memory_bytes: int | None = None
    speed: float | None = None
    """Requested from its ranks now, as a fraction."""
    batch: float | None = None
    """Requested from them explicitly, whatever the quota."""
    until: float | None = None
    """Unix time at which it ends by itself, as it was expected when it began."""
    until_boot_s: float | None = None
    """The same by the clock since boot, which decides: nobody sets it."""
    keeper: int | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the target; None for a control group."""
        return int(self.target) if self.started is not None else None

    @property
    def alive(self) -> bool:
        """Whether the target still has processes."""
        if self.pid is not None:
            return started_at(self.pid) == self.started
        if self.holds:
            return any(hold.group.all_processes() for hold in self.holds)
        return any(started_at(pid) is not None for pid in self.asked_pids)

    @property
    def over(self) -> bool:
        """Whether it is to be undone: the target has ended, or its time has passed."""
        if self.until_boot_s is not None:
            return not self.alive or seconds_since_boot() >= self.until_boot_s
        return not self.alive or (self.until is not None and time.time() >= self.until)

    @property
    def path(self) -> Path:
        return _path(self.target)

    def write(self) -> None:
        write_document(self.path, asdict(self))


def state_folder() -> Path:
    """Return this user's folder; root's is under /run, which a reboot clears as it clears control groups."""
    override = os.environ.get(STATE_VARIABLE)
    if override:
        folder = Path(override).absolute()
    else:
        folder = Path("/run/stallwise") if os.geteuid() == 0 and Path("/run").is_dir() else request_folder(os.geteuid())
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.lstat().st_uid != os.geteuid():
            raise InputError(f"{folder} belongs to another user. Name another folder in {STATE_VARIABLE}.")
    except OSError as error:
        raise InputError(
            f"Deflations cannot be recorded in {folder} ({error.strerror}). Name another folder in {STATE_VARIABLE}."
        ) from None
    return folder


def _path(target: str) -> Path:
    """Return the path of a target's file; process 4242 and the control group /4242 have one each."""
    kind = "process" if target.isdigit() else "group"
    name = quote(target.strip("/"), safe="")
    name = name if len(name) <= _LONGEST else sha256(name.encode()).hexdigest()
    return state_folder() / f"{kind}-{name}.deflated.json"


@contextlib.contextmanager
def lock_target(target: str, *, wait: bool = True) -> Iterator[None]:
    """Lock a target's file, from reading until it is written or removed. Without `wait`: OSError where it is locked.

    The kernel releases the lock with its holder. The lock's file is removed with it, so whoever waited checks that the
    file it has locked still has its name.
    """
    path = _path(target).with_suffix(".lock")
    while True:
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if not _is_at(file.fileno(), path):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def read_record(target: str) -> DeflationRecord | None:
    """Read the record of a target; None where it is not deflated."""
    return _read(_path(target))


def all_records() -> Iterator[DeflationRecord]:
    """Yield every deflation of this user."""
    for path in sorted(state_folder().glob("*.deflated.json")):
        if (record := _read(path)) is not None:
            yield record


def _read(path: Path) -> DeflationRecord | None:
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
        holds = tuple(Hold(**hold) for hold in fields.pop("holds"))
        return DeflationRecord(**fields | {"asked_pids": tuple(fields["asked_pids"])}, holds=holds)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({error}). Look at what it names, then remove it.") from None


def undo_record(record: DeflationRecord) -> tuple[str, ...]:
    """Restore everything; returns a sentence for each thing that was gone. The record is removed last."""
    sentences = []
    for pid in record.asked_pids:
        withdraw_request(Path(record.asked or ""), pid)
    for hold in reversed(record.holds):
        sentence = release_hold(hold)
        sentences += [sentence] if sentence else []
    record.path.unlink(missing_ok=True)
    return tuple(sentences)


def undo_if_over(target: str, *, wait: bool = True) -> None:
    """Undo a deflation that is over; read again under the lock, since it may have been deflated anew."""
    with lock_target(target, wait=wait):
        record = read_record(target)
        if record is not None and record.over:
            undo_record(record)


def release_hold(hold: Hold) -> str:
    """Restore a group's limits and return processes to their groups; returns a sentence where that cannot be."""
    group = hold.group
    if not group.exists:
        return "" if hold.home is not None else f"The control group {hold.path} is gone."
    if hold.home is None:
        return _restore_limits(group, hold.before)
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            for pid in group.processes:
                _existing(group, Path(_home_of(pid, hold))).take(pid)
        try:
            group.path.rmdir()
            return ""
        except FileNotFoundError:
            return ""
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            time.sleep(_PAUSE_S)
    raise InputError(f"The control group {hold.path} could not be emptied. Try to undo it again.")


def _restore_limits(group: ControlGroup, before: dict[str, str]) -> str:
    """Write limits back. Where the kernel refuses, the group is not left without a quota, as it is during a write.

    Version 1 takes no quota above that of a group around it, which may have been cut since: then as much as that.
    """
    now: dict[str, str] = {}
    try:
        now = group.limits()
        group.write(before)
        return ""
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):
            return f"The control group {group.path} is gone."
        with contextlib.suppress(OSError, InputError):
            if error.errno == errno.EINVAL and group.controller == "cpu":
                return _largest_quota(group, before)
        with contextlib.suppress(OSError):
            group.write(now)
        raise


def _largest_quota(group: ControlGroup, before: dict[str, str]) -> str:
    around = [cores for outer in group.around() if (cores := outer.cores()) is not None]
    cores = min(around, default=0.0)  # none: too little for the kernel
    group.write(cpu_limits(group.version, cores, period_of(before, group.version)))
    had = quota_of(before, group.version)
    shown = "no quota" if had is None else f"a quota of {had:g} cores"
    return f"{group.path} had {shown}, and a group around it has {cores:g} now: it has as much."


def _home_of(pid: int, hold: Hold) -> str:
    """Return the group a process was in; for one that was started since, that of its nearest ancestor."""
    homes = (hold.homes[str(one)] for one in (pid, *ancestors(pid)) if str(one) in hold.homes)
    return next(homes, hold.home or hold.path)


def _existing(group: ControlGroup, path: Path) -> ControlGroup:
    """Return the group at `path`, or the nearest above it that still exists."""
    while path != group.mount and not path.is_dir():
        path = path.parent
    return ControlGroup(group.controller, group.version, group.mount, path)


def keep(target: str, guard: int | None = None) -> bool:
    """Wait until a deflation is undone, and undo it when it is over.

    Returns True when nothing is left to keep, False as soon as the parent process `guard` is gone.
    """
    while (record := read_record(target)) is not None:
        if guard is not None and os.getppid() != guard:
            return False
        if not record.over:
            _wait(record)
            continue
        try:
            undo_if_over(target)
        except (OSError, StallwiseError):
            time.sleep(_POLL_S)  # what is in its way may go
    return True


def keep_guarded(target: str) -> None:
    """Keep a deflation in a child, and start another where it is killed; the child takes over where this one is."""
    while True:
        guard = os.getpid()
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            if status == 0:
                return
            time.sleep(_PAUSE_S if os.WIFSIGNALED(status) else _POLL_S)
            continue
        with contextlib.suppress(StallwiseError):
            if not keep(target, guard):
                _name_keeper(target)
                continue
        os._exit(0)


def _name_keeper(target: str) -> None:
    """Write this process into the record as its keeper."""
    with contextlib.suppress(OSError, StallwiseError), lock_target(target):
        record = read_record(target)
        if record is not None:
            replace(record, keeper=os.getpid()).write()


def leave_session(proc: Path = PROC, mounts: Path = Path("/sys/fs/cgroup")) -> None:
    """Leave the control group of a login session, which logind kills as a whole when the user logs out.

    Only root may. Without systemd, or outside a session, nothing is done.
    """
    with contextlib.suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "name=systemd") or not _SESSION.search(path):
                continue
            roots = (mounts / "systemd", mounts / "unified", mounts)
            root = next((root for root in roots if (root / path.lstrip("/")).is_dir()), None)
            if root is not None:
                with (root / "cgroup.procs").open("w") as file:
                    file.write(f"{os.getpid()}\n")


def _wait(record: DeflationRecord) -> None:
    """Wait for the end of the target's process, for a second at most: the record may be removed meanwhile."""
    if record.pid is None:
        time.sleep(_POLL_S)
        return
    try:
        handle = os.pidfd_open(record.pid)
    except OSError:
        time.sleep(_POLL_S)
        return
    try:
        if started_at(record.pid) == record.started:
            select.select([handle], [], [], _POLL_S)
    finally:
        os.close(handle)


def _detach() -> None:
    """Continue in a child, whose process id the caller reads; it keeps no pipe of the caller's open."""
    child = os.fork()
    if child:
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)


if __name__ == "__main__":
    _detach()
    leave_session()
    keep_guarded(sys.argv[1])
