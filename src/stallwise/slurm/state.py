"""What the controller keeps on disk: its state, its lock, and the decision log.

`ControllerState` is a SQLite database (WAL): a row per job, past waits, observed speeds. It is written before every
action, so that a controller killed at any point finds on its return what it was about to do. What Slurm reports always
wins over what is written here (`reconciliation`). A damaged file is renamed, and the state begins anew from what Slurm
reports.

Times in it are those of Slurm's clock. Where that clock is set, all of them are moved by as much (`follow_clock`): what
is left of a lease stays left.

`lock_partition`: one controller per partition; a second one on this host, or with this state, is refused. The kernel
releases both locks the moment their process ends, however it ends. The socket's name holds wherever the state is kept;
the file's lock also holds between hosts that share the state's file system.

`DecisionLog`: one JSON object per line, what was decided for which job and why.
"""

import contextlib
import fcntl
import os
import socket
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, Self, TextIO, TypeVar

import msgspec

from stallwise.cluster.live import PastWait
from stallwise.errors import InputError

VERSION = 1
Phase = Literal[
    "waiting", "starting", "holding", "running", "warned", "returning", "stopping", "ending", "done", "left"
]
_KEEP_DONE_S = 3 * 86400.0
_KEEP_WAITS = 2000
_NAME = "schedule.sqlite"

_SCHEMA = """
create table if not exists about (name text primary key, value text not null);
create table if not exists jobs (
    key text primary key, submit_s real not null, phase text not null, since_s real not null, gang integer not null,
    per_node integer not null, least_nodes integer not null, most_nodes integer not null, required text not null,
    asked_s real not null, waited_s real not null, ran_s real not null, done_s real not null, first_s real,
    granted_s real not null, lease_s real not null, placed text not null, starts integer not null,
    stops integer not null, tries integer not null, not_before_s real not null, restarts integer not null,
    model text, speeds text not null
) without rowid;
create index if not exists jobs_phase on jobs (phase);
create table if not exists waits (
    id integer primary key, gang integer not null, level text not null, time_s real not null, wait_s real not null
);
create table if not exists speeds (
    user text not null, model text not null, gang integer not null, level integer not null, readings text not null,
    primary key (user, model, gang, level)
) without rowid;
drop table if exists seen;
"""
_DAMAGED = "schedule.damaged-"
_KEEP_DAMAGED = 4
_CLOCK_STEP_S = 2.0
"""A clock that moves by less against the machine's own is being kept right, not set."""
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_damage(error: sqlite3.Error) -> bool:
    """Tell a damaged database from one that is full, locked or read-only now and may be usable later."""
    # Only low bytes are the kind of error; what sqlite3 raises without a code is content that does not decode.
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _DAMAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job in the controller's state. Times are seconds since the epoch, by Slurm's clock where it gives one.

    | phase    | meaning                                                          |
    | waiting  | held; the policy decides                                         |
    | starting | pinned and released, or about to be                              |
    | holding  | released or requeued, and to be held before Slurm starts it      |
    | running  | has its nodes                                                    |
    | warned   | sent TERM, still running                                         |
    | returning| left by itself after TERM, not done: to be requeued              |
    | stopping | being requeued                                                   |
    | ending   | its processes are being ended                                    |
    | done     | ended                                                            |
    | left     | released by others; Slurm's own until it is held again           |
    """

    key: str
    submit_s: float
    phase: Phase = "waiting"
    since_s: float = 0.0
    gang: int = 0
    per_node: int = 0
    least_nodes: int = 1
    most_nodes: int = 0
    required: tuple[str, ...] = ()
    """Nodes the user named."""
    asked_s: float = 0.0
    waited_s: float = 0.0
    ran_s: float = 0.0
    done_s: float = 0.0
    first_s: float | None = None
    granted_s: float = 0.0
    lease_s: float = 0.0
    placed: dict[str, int] = field(default_factory=dict)
    starts: int = 0
    stops: int = 0
    tries: int = 0
    """Failed starts in a row."""
    not_before_s: float = 0.0
    restarts: int = 0
    """Slurm's count when it was last released."""
    model: str | None = None
    speeds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedSpeed:
    """Observed speed of gangs of one user's model at one level of placement."""

    user: str
    model: str
    gang: int
    level: int
    readings: tuple[float, ...] = ()
    """Steps per second, the newest last."""

    @property
    def steps_per_s(self) -> float:
        """The median of the readings."""
        return statistics.median(self.readings)


_COLUMNS = tuple(column.name for column in fields(JobRow))
_AS_JSON = ("required", "placed", "speeds")


class ControllerState:
    """The database of one partition."""

    def __init__(self, connection: sqlite3.Connection, folder: Path | None = None, about: str = "") -> None:
        self.connection, self.folder, self.about = connection, folder, about
        self.damaged: Path | None = None
        """Where a damaged file was set aside; None: the state is as it was left."""

    @classmethod
    def open(cls, folder: Path, about: str) -> Self:
        """Open the state in a folder, or make it. `about` names cluster and partition and must agree.

        A damaged file is set aside, and the state is empty.
        """
        state = cls(sqlite3.connect(":memory:"), folder, about)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                state._connect()
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise
                state.rebuild()
        except (OSError, sqlite3.Error, InputError) as error:
            state.close()
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"The state in {folder} cannot be used: {error}. Name a folder this account may write.",
                fields=("state",),
            ) from None
        return state

    def _connect(self) -> None:
        """Open the file and check its structure; its content is checked as it is read."""
        assert self.folder is not None  # noqa: S101 - a copy in memory is not rebuilt
        connection = sqlite3.connect(self.folder / _NAME, isolation_level=None, timeout=10)
        previous, self.connection = self.connection, connection
        try:
            _check(connection)
            connection.execute("pragma journal_mode=wal")
            connection.execute("pragma synchronous=full")
            connection.executescript(_SCHEMA)
            self._check_about(self.about, self.folder)
        except BaseException:
            self.connection = previous
            connection.close()
            raise
        previous.close()

    def rebuild(self) -> None:
        """Set the damaged file aside and begin with an empty one."""
        if self.folder is None:
            raise InputError("A copy of the state cannot be rebuilt.")
        self.damaged = _set_aside(self.folder) or self.damaged
        self._connect()

    @classmethod
    def copied(cls, folder: Path) -> Self:
        """Return a copy in memory, for a dry run; empty where there is no state yet."""
        memory = sqlite3.connect(":memory:", isolation_level=None)
        if (folder / _NAME).exists():
            uri = f"{(folder / _NAME).resolve().as_uri()}?mode=ro"
            try:
                source = sqlite3.connect(uri, uri=True, timeout=10)
                source.backup(memory)
                source.close()
                _check(memory)
            except sqlite3.Error as error:
                raise InputError(f"The state in {folder} cannot be read: {error}.") from None
        memory.executescript(_SCHEMA)
        return cls(memory)

    def _check_about(self, about: str, folder: Path) -> None:
        expected = {"version": str(VERSION), "about": about}
        with self.connection:
            for name, value in expected.items():
                self.connection.execute("insert or ignore into about values (?, ?)", (name, value))
        stored = dict(self.connection.execute("select name, value from about").fetchall())
        if stored["version"] != expected["version"]:
            raise InputError(
                f"The state in {folder} is of version {stored['version']}, this Stallwise writes {VERSION}."
            )
        if stored["about"] != about:
            raise InputError(
                f"The state in {folder} is of {stored['about']}, not of {about}. Name another folder.",
                fields=("state",),
            )

    def rows(self) -> dict[str, JobRow]:
        """Return every job by its key, ended ones included."""
        records = self.connection.execute(f"select {', '.join(_COLUMNS)} from jobs")  # noqa: S608 - our own names
        return {row.key: row for row in map(_row, records)}

    def save(self, rows: Iterable[JobRow]) -> None:
        """Write rows in one transaction; they are on the disk when this returns."""
        values = [_values(row) for row in rows]
        if not values:
            return
        marks = ", ".join("?" * len(_COLUMNS))
        with self._transaction():
            self.connection.executemany(
                f"insert or replace into jobs ({', '.join(_COLUMNS)}) values ({marks})",  # noqa: S608
                values,
            )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit what the block writes, or nothing of it; after a failure the next transaction can begin."""
        with self.connection:  # rolls back
            self.connection.execute("begin immediate")
            yield

    def waits(self) -> tuple[PastWait, ...]:
        """Return past waits, oldest first."""
        records = self.connection.execute("select gang, level, time_s, wait_s from waits order by time_s, id")
        return tuple(PastWait(gang=g, level=level, time_s=t, wait_s=w) for g, level, t, w in records)

    def note_wait(self, wait: PastWait) -> None:
        """Record the wait of a job that started; the oldest waits are removed."""
        self.connection.execute(
            "insert into waits (gang, level, time_s, wait_s) values (?, ?, ?, ?)",
            (wait.gang, wait.level, wait.time_s, wait.wait_s),
        )
        self.connection.execute(
            "delete from waits where id <= (select max(id) from waits) - ?", (_KEEP_WAITS,)
        )  # fmt: skip

    def observed_speeds(self) -> tuple[ObservedSpeed, ...]:
        records = self.connection.execute("select user, model, gang, level, readings from speeds")
        return tuple(
            ObservedSpeed(user=user, model=model, gang=gang, level=level, readings=_from_json(text, tuple[float, ...]))
            for user, model, gang, level, text in records
        )

    def save_speeds(self, speeds: Sequence[ObservedSpeed]) -> None:
        self.connection.executemany(
            "insert or replace into speeds values (?, ?, ?, ?, ?)",
            [(it.user, it.model, it.gang, it.level, msgspec.json.encode(it.readings).decode()) for it in speeds],
        )

    def follow_clock(self, now_s: float, since_boot_s: float, boot: str) -> float:
        """Move all times by as much as the clock was set since the last call; returns by how much, 0 for none.

        `boot` names the machine's present boot. Across a restart only a clock that went back is seen.
        """
        entry = self.connection.execute("select value from about where name = 'clock'").fetchone()
        known = _from_json(entry[0], _ClockOffset) if entry else None
        offset = _ClockOffset(boot=boot, offset_s=now_s - since_boot_s)
        if known is not None and known.boot == boot:
            step_s = offset.offset_s - known.offset_s
        else:
            (latest_s,) = self.connection.execute("select max(since_s) from jobs").fetchone()
            step_s = min(0.0, now_s - (latest_s or now_s))
        if abs(step_s) <= _CLOCK_STEP_S:
            if known is None or known.boot != boot:
                self._save_clock(offset)
            return 0.0
        moved = ", ".join(f"{name} = case when {name} > 0 then {name} + ? else {name} end" for name in _MOVED)
        with self._transaction():
            self.connection.execute(f"update jobs set {moved}", [step_s] * len(_MOVED))  # noqa: S608 - our own names
            self.connection.execute("update waits set time_s = time_s + ?", (step_s,))
            self._save_clock(offset)
        return step_s

    def _save_clock(self, offset: "_ClockOffset") -> None:
        text = msgspec.json.encode(offset).decode()
        self.connection.execute("insert or replace into about values ('clock', ?)", (text,))

    def forget(self, now_s: float) -> None:
        """Drop jobs that ended long ago."""
        self.connection.execute(
            "delete from jobs where phase in ('done', 'left') and since_s < ?", (now_s - _KEEP_DONE_S,)
        )

    def close(self) -> None:
        self.connection.close()


def _values(row: JobRow) -> tuple[object, ...]:
    return tuple(
        msgspec.json.encode(getattr(row, name)).decode() if name in _AS_JSON else getattr(row, name)
        for name in _COLUMNS
    )


def _row(values: tuple[object, ...]) -> JobRow:
    named = dict(zip(_COLUMNS, values, strict=True))
    named |= {name: _from_json(named[name], object) for name in _AS_JSON}
    try:
        return msgspec.convert(named, JobRow)
    except msgspec.ValidationError as error:
        raise sqlite3.DatabaseError(f"the row of job {named['key']!r} is damaged: {error}") from None


class _ClockOffset(msgspec.Struct, frozen=True):
    """The wall clock less the machine's own, and the boot since which that counts."""

    boot: str
    offset_s: float


_MOVED = ("since_s", "asked_s", "first_s", "granted_s", "lease_s", "not_before_s")
Content = TypeVar("Content")


def _from_json(text: object, type_: type[Content]) -> Content:
    """Decode a column; an error counts as damage of the file."""
    try:
        return msgspec.json.decode(str(text), type=type_)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise sqlite3.DatabaseError(f"{str(text)[:40]!r} does not decode: {error}") from None


def _check(connection: sqlite3.Connection) -> None:
    """Raise an error where the database's structure is damaged."""
    (verdict,) = connection.execute("pragma quick_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)


def _set_aside(folder: Path) -> Path | None:
    """Rename the database, and keep the last few such files; None where there is nothing to rename."""
    stamp = f"{_DAMAGED}{time.time_ns()}.sqlite"
    for ending in ("-wal", "-shm", ""):  # SQLite finds them by the name of the database
        with contextlib.suppress(FileNotFoundError):
            (folder / (_NAME + ending)).rename(folder / (stamp + ending))
    for old in sorted(folder.glob(f"{_DAMAGED}*.sqlite"))[:-_KEEP_DAMAGED]:
        for ending in ("-wal", "-shm", ""):
            (folder / (old.name + ending)).unlink(missing_ok=True)
    return folder / stamp if (folder / stamp).exists() else None


_LOCK_NAME = "schedule.lock"


@contextlib.contextmanager
def lock_partition(folder: Path, about: str) -> Iterator[None]:
    """Lock the partition while the block runs; an `InputError` where another controller has it."""
    refused = InputError(
        f"Another controller already schedules {about}. Stop it first (systemctl stop stallwise-schedule)."
    )
    with socket.socket(socket.AF_UNIX) as name, _lock_file(folder).open("a") as file:
        try:
            name.bind("\0stallwise-schedule:" + about)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise refused from None
        yield


def _lock_file(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _LOCK_NAME).touch()
    except OSError as error:
        raise InputError(
            f"The state folder {folder} cannot be written: {error.strerror}. Name another.", fields=("state",)
        ) from None
    return folder / _LOCK_NAME


class DecisionLog:
    """Writes lines to a file, opened anew when it has been moved away (logrotate), or to a stream."""

    def __init__(self, path: Path | None, stream: TextIO | None = None, clock: Callable[[], float] = time.time) -> None:
        self.path, self.stream, self.clock = path, stream, clock
        self._file: TextIO | None = None
        if path is not None:
            self._open()

    def _open(self) -> TextIO:
        assert self.path is not None  # noqa: S101 - only called with one
        try:
            self._file = self.path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise InputError(f"The log {self.path} cannot be written: {error.strerror}.") from None
        return self._file

    def write(self, what: str, **more: object) -> None:
        """Write one line: time, what was done, and further fields."""
        line = msgspec.json.encode({"time_s": round(self.clock(), 3), "what": what, **more}).decode() + "\n"
        try:
            for stream in (self._current(), self.stream):
                if stream is not None:
                    stream.write(line)
                    stream.flush()
        except (OSError, InputError) as error:  # a full disk must not end the scheduling
            sys.stderr.write(f"stallwise: the log cannot be written ({error}): {line}")

    def _current(self) -> TextIO | None:
        if self._file is None or self.path is None:
            return None
        try:
            moved = self.path.stat().st_ino != _inode(self._file)
        except OSError:
            moved = True
        if moved:
            self._file.close()
            return self._open()
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _inode(file: TextIO) -> int:
    return os.fstat(file.fileno()).st_ino


def stdout_log() -> DecisionLog:
    """Return a log to stdout, for a dry run and where systemd keeps the log."""
    return DecisionLog(None, sys.stdout)
