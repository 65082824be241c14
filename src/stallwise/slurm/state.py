"""What the controller must not forget, in SQLite (WAL): a row per job, past waits, observed speeds.

Written before every action, so that a controller killed at any point finds on its return what it was about to do.
What Slurm says always wins over what is written here (`reconcile.py`).
"""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Literal, Self

import msgspec

from stallwise.cluster.resume import Wait
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
create table if not exists seen (
    model text not null, gang integer not null, level integer not null, steps_per_s real not null,
    weight real not null, primary key (model, gang, level)
) without rowid;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job as the controller knows it. Times are seconds since the epoch, by Slurm's clock where it gives one.

    | phase    | meaning                                                          |
    | waiting  | held; the policy decides                                         |
    | starting | pinned and released, or about to be                              |
    | holding  | released or requeued, and to be held before Slurm starts it      |
    | running  | has its nodes                                                    |
    | warned   | told to stop (TERM), still running                               |
    | returning| left by itself after TERM, not done: to be requeued              |
    | stopping | being requeued                                                   |
    | ending   | its processes are being ended                                    |
    | done     | ended                                                            |
    | left     | released by somebody else; Slurm's own until it is held again    |
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
    """Nodes the user asked for."""
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
    """Starts in a row that came to nothing."""
    not_before_s: float = 0.0
    restarts: int = 0
    """Slurm's count when it was last released."""
    model: str | None = None
    speeds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Observed speed of a model's gangs at one width of placement."""

    model: str
    gang: int
    level: int
    steps_per_s: float
    weight: float


_COLUMNS = tuple(column.name for column in fields(Row))
_AS_JSON = ("required", "placed", "speeds")


class State:
    """The database of one partition."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    @classmethod
    def open(cls, folder: Path, about: str) -> Self:
        """The state in a folder, made where there is none. `about` names cluster and partition and must agree."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(folder / _NAME, isolation_level=None, timeout=10)
            connection.execute("pragma journal_mode=wal")
            connection.execute("pragma synchronous=full")
            connection.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise InputError(
                f"The state in {folder} cannot be used: {error}. Give a folder this account may write with --state, or "
                "move the damaged file away: jobs are taken up again from what Slurm says."
            ) from None
        made = cls(connection)
        made._agree(about, folder)
        return made

    @classmethod
    def copied(cls, folder: Path) -> Self:
        """A copy in memory, for those who only look; empty where there is no state yet."""
        memory = sqlite3.connect(":memory:", isolation_level=None)
        if (folder / _NAME).exists():
            uri = f"{(folder / _NAME).resolve().as_uri()}?mode=ro"
            try:
                source = sqlite3.connect(uri, uri=True, timeout=10)
                source.backup(memory)
                source.close()
            except sqlite3.Error as error:
                raise InputError(f"The state in {folder} cannot be read: {error}.") from None
        memory.executescript(_SCHEMA)
        return cls(memory)

    def _agree(self, about: str, folder: Path) -> None:
        wanted = {"version": str(VERSION), "about": about}
        with self.connection:
            for name, value in wanted.items():
                self.connection.execute("insert or ignore into about values (?, ?)", (name, value))
        found = dict(self.connection.execute("select name, value from about").fetchall())
        if found["version"] != wanted["version"]:
            raise InputError(
                f"The state in {folder} is of version {found['version']}, this Stallwise writes {VERSION}."
            )
        if found["about"] != about:
            raise InputError(f"The state in {folder} is of {found['about']}, not of {about}. Give another --state.")

    def rows(self) -> dict[str, Row]:
        """Every job by its key, ended ones included."""
        chosen = self.connection.execute(f"select {', '.join(_COLUMNS)} from jobs")  # noqa: S608 - our own names
        return {row.key: row for row in map(_row, chosen)}

    def save(self, rows: Iterable[Row]) -> None:
        """Write rows in one transaction; they are on the disk when this returns."""
        values = [_values(row) for row in rows]
        if not values:
            return
        marks = ", ".join("?" * len(_COLUMNS))
        self.connection.execute("begin immediate")
        self.connection.executemany(f"insert or replace into jobs ({', '.join(_COLUMNS)}) values ({marks})", values)  # noqa: S608
        self.connection.execute("commit")

    def waits(self) -> tuple[Wait, ...]:
        """Past waits, oldest first."""
        found = self.connection.execute("select gang, level, time_s, wait_s from waits order by time_s, id")
        return tuple(Wait(gang=g, level=level, time_s=t, wait_s=w) for g, level, t, w in found)

    def note_wait(self, wait: Wait) -> None:
        """A job got its place; the oldest waits go."""
        self.connection.execute(
            "insert into waits (gang, level, time_s, wait_s) values (?, ?, ?, ?)",
            (wait.gang, wait.level, wait.time_s, wait.wait_s),
        )
        self.connection.execute(
            "delete from waits where id <= (select max(id) from waits) - ?", (_KEEP_WAITS,)
        )  # fmt: skip

    def seen(self) -> tuple[Seen, ...]:
        """Observed speeds."""
        found = self.connection.execute("select model, gang, level, steps_per_s, weight from seen")
        return tuple(Seen(model=m, gang=g, level=at, steps_per_s=s, weight=w) for m, g, at, s, w in found)

    def see(self, seen: Sequence[Seen]) -> None:
        """Keep observed speeds."""
        self.connection.executemany("insert or replace into seen values (?, ?, ?, ?, ?)", [astuple(s) for s in seen])

    def forget(self, now_s: float) -> None:
        """Drop jobs that ended long ago."""
        self.connection.execute(
            "delete from jobs where phase in ('done', 'left') and since_s < ?", (now_s - _KEEP_DONE_S,)
        )

    def close(self) -> None:
        """Close the database."""
        self.connection.close()


def _values(row: Row) -> tuple[object, ...]:
    return tuple(
        msgspec.json.encode(getattr(row, name)).decode() if name in _AS_JSON else getattr(row, name)
        for name in _COLUMNS
    )


def _row(values: tuple[object, ...]) -> Row:
    named = dict(zip(_COLUMNS, values, strict=True))
    named["required"] = msgspec.json.decode(str(named["required"]), type=tuple[str, ...])
    named["placed"] = msgspec.json.decode(str(named["placed"]), type=dict[str, int])
    named["speeds"] = msgspec.json.decode(str(named["speeds"]), type=tuple[float, ...])
    return Row(**named)  # type: ignore[arg-type]
