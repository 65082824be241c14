"""Requests to ranks to run at a lower speed: small files named after process ids, in a folder per user.

    PID.door.json   written by a rank that runs under a session: its rank, whether it can take a smaller part of the
                    batch, and how long its steps are
    PID.ask.json    written by whoever deflates process PID: the speed that it will have, for it and all below it

A rank looks for requests to itself and to its ancestors, so that a request to an agent reaches all ranks that it starts
from then on, too. Everything is stateless: a request holds as long as its file exists.

The folder is the same for a job and for whoever deflates it; TMPDIR, which a batch system sets for each job, is not
used.
"""

import contextlib
import json
import math
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from stallwise.deflate.processes import PROC, ancestors, started_at
from stallwise.errors import InputError
from stallwise.run.atomic import replace_file

FOLDER_VARIABLE = "STALLWISE_DOORS"
"""Environment variable with another folder than the user's own in /tmp, for the job and for who deflates it."""
_EVERY_S = 0.2
_MEAN_S, _MEAN_STEPS = 2.0, 2
"""The published time of a step is the mean over at least this many seconds and steps."""
_LARGEST = 2**53
_SHARED = Path("/tmp")  # noqa: S108 - the owner of the folder in it is checked (`is_trusted`)
_MAX_FILES = 10_000
"""Of ranks; a folder of a user may hold any number."""
_UNREADABLE = (OSError, ValueError, TypeError, RecursionError, InputError)
"""What a file that was not written by a rank may raise."""
_MAX_BYTES = 4096
"""Files here are a line long; anything larger was not written by a rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownRequest:
    """A request to a process and all below it: the fraction of its speed that it will have."""

    speed: float
    started: int | None = field(default=None, compare=False)
    """When the process began, so that a later one of the same number is not meant. None: whichever has the number."""

    def __post_init__(self) -> None:
        if not 0 < self.speed <= 1:
            raise InputError(f"The speed of a rank must be above 0 and at most 1, not {self.speed}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningRank:
    """A rank that listens for requests."""

    pid: int
    started: int
    """When it began, in the kernel's clock ticks: tells it from a later process of the same number."""
    rank: int
    world: int
    batch: int | None = None
    """Samples of its part when all are equal; None where it cannot take another, for the reason `why`."""
    why: str = ""
    step_s: float | None = None
    """Mean of its last steps; None until there are some."""

    def __post_init__(self) -> None:
        numbers = (self.pid, self.started, self.rank, self.world, 0 if self.batch is None else self.batch)
        # Whoever deflates may be root, and reads here what any user has written.
        if not all(type(number) is int and abs(number) < _LARGEST for number in numbers) or not (
            type(self.why) is str and self.why.isprintable()
        ):
            raise InputError("This file was not written by a rank.")
        if self.step_s is not None and not (type(self.step_s) is float and 0 < self.step_s < math.inf):
            raise InputError("This file was not written by a rank.")


def request_folder(uid: int) -> Path:
    """Return the folder with the requests to a user's ranks."""
    override = os.environ.get(FOLDER_VARIABLE)
    return Path(override).absolute() if override else _SHARED / f"stallwise-{uid}"


def is_trusted(folder: Path, uid: int) -> bool:
    """Tell whether it is a real folder of `uid` or of the present user: anybody may make one in /tmp."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid in (uid, os.geteuid())


class RequestListener:
    """A rank's side. Looking for requests takes a few microseconds, five times a second at most."""

    def __init__(self, rank: int, world: int) -> None:
        self._folder = _own_folder()
        self._pid = os.getpid()
        self._rank = ListeningRank(pid=self._pid, started=started_at(self._pid) or 0, rank=rank, world=world)
        self._addressed = [self._pid, *ancestors(self._pid)]
        self._polled_s, self._request = -math.inf, None  # type: float, SlowdownRequest | None
        self._since_s, self._steps = math.inf, 0
        if self._folder is not None:
            remove_stale_files(self._folder)

    def open(self, batch: int | None, why: str) -> None:
        """Publish what this rank can do; its steps begin."""
        self._rank = replace(self._rank, batch=None if batch is None else int(batch), why=why)
        self._since_s, self._steps = time.monotonic(), 0
        self._publish()

    def strictest(self) -> SlowdownRequest | None:
        """Return the strictest request to this rank or to what started it; to be called once a step, which it times."""
        now_s = time.monotonic()
        self._steps += 1
        if self._folder is not None and now_s - self._polled_s >= _EVERY_S:
            self._polled_s = now_s
            requests = [request for pid in self._addressed if (request := read_request(self._folder, pid)) is not None]
            self._request = min(requests, key=lambda request: request.speed, default=None)
            if now_s - self._since_s >= _MEAN_S and self._steps >= _MEAN_STEPS:
                self._rank = replace(self._rank, step_s=(now_s - self._since_s) / self._steps)
                self._since_s, self._steps = now_s, 0
                self._publish()
        return self._request

    def _publish(self) -> None:
        if self._folder is not None and os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                write_document(self._folder / f"{self._pid}.door.json", asdict(self._rank))

    def close(self) -> None:
        """Stop listening: remove this rank's file."""
        if self._folder is not None and os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                (self._folder / f"{self._pid}.door.json").unlink(missing_ok=True)


def listening_ranks(folder: Path) -> Iterator[ListeningRank]:
    """Yield the ranks that are alive and listen in a folder."""
    for path in sorted(islice(folder.glob("*.door.json"), _MAX_FILES)):
        with contextlib.suppress(*_UNREADABLE):
            rank = ListeningRank(**json.loads(_read_small(path)))
            if started_at(rank.pid) == rank.started:
                yield rank


def read_request(folder: Path, pid: int) -> SlowdownRequest | None:
    """Return the request to process `pid`; None where there is none that can be read."""
    try:
        request = SlowdownRequest(**json.loads(_read_small(folder / f"{pid}.ask.json")))
    except _UNREADABLE:
        return None
    return request if request.started in (None, started_at(pid)) else None


def write_request(folder: Path, pid: int, request: SlowdownRequest) -> None:
    write_document(folder / f"{pid}.ask.json", asdict(request))


def withdraw_request(folder: Path, pid: int) -> None:
    """Remove the request to process `pid`, if there is one."""
    with contextlib.suppress(OSError):
        (folder / f"{pid}.ask.json").unlink(missing_ok=True)


def remove_stale_files(folder: Path) -> None:
    """Remove files of processes that have ended."""
    for path in [*folder.glob("*.door.json"), *folder.glob("*.ask.json")]:
        pid = path.name.partition(".")[0]
        with contextlib.suppress(OSError):
            if pid.isdigit() and started_at(int(pid)) is None:
                path.unlink(missing_ok=True)


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Replace a JSON file as a whole; readable by the job, whoever writes it."""
    replace_file(path, json.dumps(document).encode() + b"\n", durable=False, mode=0o644)


def _read_small(path: Path) -> bytes:
    """Read a regular file: neither a link nor a pipe that nobody writes to."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise InputError(f"{path} is no file.")
        return file.read(_MAX_BYTES)


def _own_folder() -> Path | None:
    """Make the folder of this user; None where another user's is in its place, or nothing can be written."""
    folder = request_folder(os.getuid())
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return folder if is_trusted(folder, os.getuid()) else None


MEASURED_STEPS, SHORT_S, UNKNOWN_S, LONG_S = 50, 2.0, 8.0, 10.0
"""CPU use is measured over this many steps, but within these bounds; the time is short where no rank can be slowed
down, since nothing depends on it then."""


def ranks_among(members: Iterable[int], pid: int | None) -> tuple[list[ListeningRank], Path | None]:
    """Return the listening ranks among processes, and the folder of their requests, if it is their user's own.

    The user is that of process `pid`, by default of the first member.
    """
    try:
        inside = set(members)
        uid = (PROC / str(pid or min(inside))).stat().st_uid
        folder = request_folder(uid)
        if not is_trusted(folder, uid):
            return [], None
        return [rank for rank in listening_ranks(folder) if rank.pid in inside], folder
    except (OSError, ValueError):
        return [], None


def adjustable(ranks: Iterable[ListeningRank]) -> list[ListeningRank]:
    """Return the ranks that can take another part of the batch."""
    return [rank for rank in ranks if rank.batch is not None and rank.world > 1]


def measuring_time_s(ranks: Sequence[ListeningRank]) -> float:
    """Return for how long to measure the CPU use of a job with these ranks.

    A loader works in bursts of a whole batch, so that a short measurement sees one burst more or less, and with long
    steps nothing or a burst only. Over a whole number of steps there are as many bursts as steps, whenever it begins.
    """
    able = adjustable(ranks)
    if not able:
        return SHORT_S
    times_s = [rank.step_s for rank in able if rank.step_s is not None]
    if len(times_s) < len(able):
        return UNKNOWN_S
    step_s = max(times_s)
    steps = min(max(MEASURED_STEPS, math.ceil(SHORT_S / step_s)), int(LONG_S / step_s))
    return steps * step_s if steps else LONG_S
