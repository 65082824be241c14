"""What was before, on disk ahead of every change: undoing needs nothing else, whoever is killed meanwhile.

One file per target. It is written before the first change, and goes when everything is as it was. Undoing is the same
after a half-made deflation as after a whole one: limits that stand in the file are written back, processes go home,
groups that were made are removed.
"""

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stallwise.deflate import door
from stallwise.deflate.cgroups import Group, cpu_limits, period_of, quota_of
from stallwise.deflate.processes import ancestors, started_at
from stallwise.errors import InputError

FOLDER = "STALLWISE_DEFLATED"
_TRIES, _PAUSE_S = 50, 0.02
_LONGEST = 200
"""Characters of a file's name, of which there may be 255."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One group that limits the target. `home` is where its processes were, in a group made for them."""

    controller: str
    version: int
    mount: str
    path: str
    before: dict[str, str]
    home: str | None = None
    homes: dict[str, str] = field(default_factory=dict)
    """Where processes were that lived elsewhere, by their number."""

    @property
    def group(self) -> Group:
        """The group itself."""
        return Group(self.controller, self.version, Path(self.mount), Path(self.path))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """A deflation: whose, what was before, what is now in words."""

    target: str
    """A process id, or the name of a control group as it was given."""
    started: int | None
    """Of the process, in clock ticks; None for a control group."""
    holds: tuple[Hold, ...] = ()
    asked: str | None = None
    """The folder with the asks to its ranks."""
    asked_pids: tuple[int, ...] = ()
    busy_cores: float | None = None
    """What it used before it was deflated."""
    cores: float | None = None
    memory_bytes: int | None = None
    speed: float | None = None
    """That its ranks are asked for now."""
    batch: float | None = None
    """That they were asked for by name, whatever the quota."""
    until: float | None = None
    """The clock's time at which it ends by itself."""
    keeper: int | None = None

    @property
    def pid(self) -> int | None:
        """Of a process."""
        return int(self.target) if self.started is not None else None

    @property
    def alive(self) -> bool:
        """Whether there is still something to hold."""
        if self.pid is not None:
            return started_at(self.pid) == self.started
        if self.holds:
            return any(hold.group.everyone() for hold in self.holds)
        return any(started_at(pid) is not None for pid in self.asked_pids)

    @property
    def over(self) -> bool:
        """Whether it is to be undone: there is nothing to hold any more, or its time has passed."""
        return not self.alive or (self.until is not None and time.time() >= self.until)

    @property
    def path(self) -> Path:
        """Its file."""
        return _path(self.target)

    def write(self) -> None:
        """Onto disk, whole."""
        door.write_whole(self.path, json.dumps(asdict(self)))


def state_folder() -> Path:
    """Of this user: root's under /run, which a restart of the machine clears as it clears control groups."""
    named = os.environ.get(FOLDER)
    if named:
        folder = Path(named).absolute()
    else:
        folder = Path("/run/stallwise") if os.geteuid() == 0 and Path("/run").is_dir() else door.folder_of(os.geteuid())
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.lstat().st_uid != os.geteuid():
            raise InputError(f"{folder} belongs to somebody else. Name another folder in {FOLDER}.")
    except OSError as error:
        raise InputError(
            f"What is deflated cannot be kept in {folder} ({error.strerror}). Name another in {FOLDER}."
        ) from None
    return folder


def _path(target: str) -> Path:
    """Of a target's file: process 4242 and the control group /4242 have one each."""
    kind = "process" if target.isdigit() else "group"
    name = quote(target.strip("/"), safe="")
    name = name if len(name) <= _LONGEST else sha256(name.encode()).hexdigest()
    return state_folder() / f"{kind}-{name}.deflated.json"


@contextlib.contextmanager
def locked(target: str, *, wait: bool = True) -> Iterator[None]:
    """From reading a target's file until it is written or gone: one at a time. Without `wait` an OSError where one is.

    The kernel gives the lock up with its holder. The file goes with it, so whoever waited looks whether it got one that
    has still its name.
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


def read(target: str) -> Journal | None:
    """The deflation of a target; None where there is none."""
    return _read(_path(target))


def all_of_them() -> Iterator[Journal]:
    """Every deflation of this user."""
    for path in sorted(state_folder().glob("*.deflated.json")):
        if (found := _read(path)) is not None:
            yield found


def _read(path: Path) -> Journal | None:
    try:
        known: dict[str, Any] = json.loads(path.read_text())
        holds = tuple(Hold(**hold) for hold in known.pop("holds"))
        return Journal(**known | {"asked_pids": tuple(known["asked_pids"])}, holds=holds)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} cannot be read ({error}). Look at what it names, then remove it.") from None


def undo(journal: Journal) -> tuple[str, ...]:
    """Everything as it was before; a sentence for each thing that was gone. The file goes last."""
    said = []
    for pid in journal.asked_pids:
        door.withdraw(Path(journal.asked or ""), pid)
    for hold in reversed(journal.holds):
        sentence = release(hold)
        said += [sentence] if sentence else []
    journal.path.unlink(missing_ok=True)
    return tuple(said)


def undo_if_over(target: str, *, wait: bool = True) -> None:
    """Looked at again under the lock: it may have been deflated anew."""
    with locked(target, wait=wait):
        found = read(target)
        if found is not None and found.over:
            undo(found)


def release(hold: Hold) -> str:
    """Limits as they were, processes where they were; a sentence where that cannot be."""
    group = hold.group
    if not group.exists:
        return "" if hold.home is not None else f"The control group {hold.path} is gone."
    if hold.home is None:
        return _limits_back(group, hold.before)
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            for pid in group.processes:
                living(group, Path(_home_of(pid, hold))).take(pid)
        try:
            group.path.rmdir()
            return ""
        except FileNotFoundError:
            return ""
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            time.sleep(_PAUSE_S)
    raise InputError(f"The control group {hold.path} could not be emptied. Try --undo again.")


def _limits_back(group: Group, before: dict[str, str]) -> str:
    """As they were. Where the kernel refuses, the group does not stay without a quota, as it is while one is written.

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
                return _most_there_is(group, before)
        with contextlib.suppress(OSError):
            group.write(now)
        raise


def _most_there_is(group: Group, before: dict[str, str]) -> str:
    around = [cores for one in group.around() if (cores := one.cores()) is not None]
    most = min(around, default=0.0)  # none: too little for the kernel
    group.write(cpu_limits(group.version, most, period_of(before, group.version)))
    had = quota_of(before, group.version)
    shown = "no quota" if had is None else f"a quota of {had:g} cores"
    return f"{group.path} had {shown}, and a group around it has {most:g} now: it has as much."


def _home_of(pid: int, hold: Hold) -> str:
    """Its own or, of one that was started since, that of the nearest above it."""
    known = (hold.homes[str(one)] for one in (pid, *ancestors(pid)) if str(one) in hold.homes)
    return next(known, hold.home or hold.path)


def living(group: Group, path: Path) -> Group:
    """The group's tree at `path`, or the nearest above it that is still there."""
    while path != group.mount and not path.is_dir():
        path = path.parent
    return Group(group.controller, group.version, group.mount, path)
