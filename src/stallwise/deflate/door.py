"""The door at which a rank can be asked to do with less: small files named after process ids, in a folder per user.

    PID.door.json   written by a rank that runs under a session: who it is, whether it can take a smaller part, and
                    how long its steps are
    PID.ask.json    written by who deflates process PID: the speed that it will have, for it and all below it

A rank looks for asks to itself and to its ancestors, so that asking an agent asks all ranks that it starts from then
on, too. Everything is stateless: as long as the file is there it is asked, and its going away undoes it.

The folder is the same for a job and for whoever deflates it, so TMPDIR, which a batch system sets for each job, has no
say in it.
"""

import contextlib
import json
import math
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from stallwise.deflate.processes import ancestors, started_at
from stallwise.errors import InputError

FOLDER = "STALLWISE_DOORS"
"""Names another folder than the user's own in /tmp, for the job and for who deflates it."""
_EVERY_S = 0.2
_TOLD_S, _TOLD_STEPS = 2.0, 2
"""A step's time is told as the mean over at least so long and so many."""
_SHARED = Path("/tmp")  # noqa: S108 - who owns the folder in it is looked at (`trusted`)
_MOST_BYTES = 4096
"""Files here are a line long; anything larger is nobody's door."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """To a process and all below it: the part of its speed that it will have."""

    speed: float
    started: int | None = field(default=None, compare=False)
    """When the asked process began: a later one of the same number is not meant. None: whoever has it."""

    def __post_init__(self) -> None:
        if not 0 < self.speed <= 1:
            raise InputError(f"A rank is asked for a speed above 0 and up to 1, not {self.speed}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """Who stands behind a door."""

    pid: int
    started: int
    """When, in the kernel's clock ticks: tells it from a later process of the same number."""
    rank: int
    world: int
    batch: int | None = None
    """Samples of its part when all are equal; None where it cannot take another, `why` says so."""
    why: str = ""
    step_s: float | None = None
    """Mean of its last steps; None until there are some."""

    def __post_init__(self) -> None:
        numbers = (self.pid, self.started, self.rank, self.world, 0 if self.batch is None else self.batch)
        # Whoever deflates may be root, and reads here what any user has written.
        if not all(type(number) is int for number in numbers) or not (type(self.why) is str and self.why.isprintable()):
            raise InputError("This is no rank's door.")
        if self.step_s is not None and not (type(self.step_s) is float and 0 < self.step_s < math.inf):
            raise InputError("This is no rank's door.")


def folder_of(uid: int) -> Path:
    """Where the doors of a user's ranks are."""
    named = os.environ.get(FOLDER)
    return Path(named).absolute() if named else _SHARED / f"stallwise-{uid}"


def trusted(folder: Path, uid: int) -> bool:
    """Whether it is a folder itself, of this user or of whoever asks: anybody may make one in /tmp."""
    try:
        kept = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(kept.st_mode) and kept.st_uid in (uid, os.geteuid())


class Door:
    """A rank's side. Looking at it takes a few microseconds, five times a second at most."""

    def __init__(self, rank: int, world: int) -> None:
        self._folder = _own_folder()
        self._pid = os.getpid()
        self._rank = Rank(pid=self._pid, started=started_at(self._pid) or 0, rank=rank, world=world)
        self._above = [self._pid, *ancestors(self._pid)]
        self._looked_s, self._ask = -math.inf, None  # type: float, Ask | None
        self._since_s, self._steps = math.inf, 0
        if self._folder is not None:
            sweep(self._folder)

    def open(self, batch: int | None, why: str) -> None:
        """Let those who deflate know what this rank can do; its steps begin."""
        self._rank = replace(self._rank, batch=None if batch is None else int(batch), why=why)
        self._since_s, self._steps = time.monotonic(), 0
        self._show()

    def asked(self) -> Ask | None:
        """The strictest ask to this rank or to what started it. Called once a step, whose time it takes by that."""
        now_s = time.monotonic()
        self._steps += 1
        if self._folder is not None and now_s - self._looked_s >= _EVERY_S:
            self._looked_s = now_s
            found = [ask for pid in self._above if (ask := read_ask(self._folder, pid)) is not None]
            self._ask = min(found, key=lambda ask: ask.speed, default=None)
            if now_s - self._since_s >= _TOLD_S and self._steps >= _TOLD_STEPS:
                self._rank = replace(self._rank, step_s=(now_s - self._since_s) / self._steps)
                self._since_s, self._steps = now_s, 0
                self._show()
        return self._ask

    def _show(self) -> None:
        if self._folder is not None and os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                write_whole(self._folder / f"{self._pid}.door.json", json.dumps(asdict(self._rank)))

    def close(self) -> None:
        """This rank is gone."""
        if self._folder is not None and os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                (self._folder / f"{self._pid}.door.json").unlink(missing_ok=True)


def doors(folder: Path) -> Iterator[Rank]:
    """Ranks that live."""
    for path in sorted(folder.glob("*.door.json")):
        with contextlib.suppress(OSError, ValueError, TypeError, InputError):
            rank = Rank(**json.loads(_small(path)))
            if started_at(rank.pid) == rank.started:
                yield rank


def read_ask(folder: Path, pid: int) -> Ask | None:
    """What process `pid` is asked for; None: nothing, or nothing that can be read."""
    try:
        ask = Ask(**json.loads(_small(folder / f"{pid}.ask.json")))
    except (OSError, ValueError, TypeError, InputError):
        return None
    return ask if ask.started in (None, started_at(pid)) else None


def write_ask(folder: Path, pid: int, ask: Ask) -> None:
    """Ask."""
    write_whole(folder / f"{pid}.ask.json", json.dumps(asdict(ask)))


def withdraw(folder: Path, pid: int) -> None:
    """Ask no more."""
    with contextlib.suppress(OSError):
        (folder / f"{pid}.ask.json").unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what processes that are gone have left."""
    for path in [*folder.glob("*.door.json"), *folder.glob("*.ask.json")]:
        pid = path.name.partition(".")[0]
        with contextlib.suppress(OSError):
            if pid.isdigit() and started_at(int(pid)) is None:
                path.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """All of it or nothing; readable by the job, whoever writes."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".new")
    try:
        with os.fdopen(handle, "w") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(text + "\n")
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _small(path: Path) -> bytes:
    """Of a file proper: neither a link nor a pipe that nobody writes to."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise InputError(f"{path} is no file.")
        return file.read(_MOST_BYTES)


def _own_folder() -> Path | None:
    """Made for this user alone; None where somebody else's lies in its place, or nothing can be written."""
    folder = folder_of(os.getuid())
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return folder if trusted(folder, os.getuid()) else None
