"""The manager's database (SQLite, WAL): machines by name, events, and a few facts of the fleet.

A machine is written down before it is ordered, and what was ordered is found by its name and the fleet's token. So a
manager that was killed at any instant finds on its return what it was about to do, and does it under the same name:
the back end starts no name twice. Every transition of a machine is one transaction, with the event that tells of it.

    ordering   written down; the order may or may not have reached the back end
    ordered    the back end took the order
    running    it costs
    noticed    it costs, and will be taken away soon
    stopping   to be ended by us
    ended      it costs no more
"""

import contextlib
import fcntl
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from stallwise.errors import InputError
from stallwise.fleet._backend import Market

FILE = "fleet.sqlite"
VERSION = "1"
Phase = Literal["ordering", "ordered", "running", "noticed", "stopping", "ended"]
Role = Literal["host", "coordinator"]

_SCHEMA = """
create table if not exists facts (name text primary key, value text not null) without rowid;
create table if not exists machines (
    name text primary key, ordinal integer not null, role text not null, market text not null, phase text not null,
    ordered_s real not null, ready_s real, ended_s real, billed_s real, usd real not null, why text not null,
    paid integer not null
) without rowid;
create table if not exists events (
    id integer primary key, at_s real not null, kind text not null, machine text, facts text not null
);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRow:
    """One machine that was ever written down. Seconds are of the back end's clock."""

    name: str
    ordinal: int
    role: Role
    market: Market
    phase: Phase
    ordered_s: float
    ready_s: float | None = None
    ended_s: float | None = None
    billed_s: float | None = None
    """Until when `usd` holds its cost."""
    usd: float = 0.0
    why: str = ""
    """Why it ended, or is to end."""
    paid: bool = True
    """Whether it costs; a coordinator on a machine that is there anyway does not."""

    @property
    def costs(self) -> bool:
        """Whether it is billed now."""
        return self.paid and self.ready_s is not None and self.ended_s is None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEvent:
    """What happened, when, to which machine."""

    at_s: float
    kind: str
    machine: str | None
    facts: dict[str, Any]


_COLUMNS = tuple(column.name for column in fields(MachineRow))


class FleetState:
    """The database of one fleet."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._rows: dict[str, MachineRow] | None = None
        """What is in the table; only one process writes it (`manager_lock`)."""

    @classmethod
    def open(cls, folder: Path, *, new: bool = False) -> "FleetState":
        """Open the database of a fleet's folder; `new`: make it where there is none."""
        path = folder / FILE
        if not new and not path.exists():
            raise InputError(f"There is no fleet in {folder}. Check the path.")
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            connection = sqlite3.connect(path, isolation_level=None, timeout=20)
            connection.execute("pragma journal_mode=wal")
            connection.execute("pragma synchronous=full")
            return cls._prepared(connection, str(folder))
        except (OSError, sqlite3.Error) as error:
            raise InputError(f"The fleet in {folder} cannot be used ({error}).") from None

    @classmethod
    def in_memory(cls) -> "FleetState":
        """A database for a rehearsal."""
        return cls._prepared(sqlite3.connect(":memory:", isolation_level=None), "memory")

    @classmethod
    def _prepared(cls, connection: sqlite3.Connection, name: str) -> "FleetState":
        connection.executescript(_SCHEMA)
        state = cls(connection)
        with state.transaction():
            connection.execute("insert or ignore into facts values ('version', ?)", (json.dumps(VERSION),))
            connection.execute("insert or ignore into facts values ('token', ?)", (json.dumps(secrets.token_hex(8)),))
        if state.fact("version") != VERSION:
            raise InputError(f"The fleet in {name} is of another version of stallwise.")
        return state

    @property
    def token(self) -> str:
        """The mark of all machines of this fleet."""
        return str(self.fact("token"))

    def fact(self, name: str, default: Any = None) -> Any:
        entry = self._connection.execute("select value from facts where name = ?", (name,)).fetchone()
        return default if entry is None else json.loads(entry[0])

    def set_facts(self, **facts: Any) -> None:
        """Write facts, on their own or within a transaction."""
        self._connection.executemany(
            "insert or replace into facts values (?, ?)", [(name, json.dumps(value)) for name, value in facts.items()]
        )

    def machines(self) -> dict[str, MachineRow]:
        """All machines by name, in the order in which they were written down."""
        if self._rows is None:
            self._rows = self._read_machines()
        return dict(self._rows)

    def _read_machines(self) -> dict[str, MachineRow]:
        records = self._connection.execute(f"select {', '.join(_COLUMNS)} from machines order by ordinal")  # noqa: S608 - our own names
        rows = (
            MachineRow(**{**dict(zip(_COLUMNS, record, strict=True)), "paid": bool(record[-1])}) for record in records
        )
        return {row.name: row for row in rows}

    def save(self, row: MachineRow) -> None:
        """Write a machine; within a transaction."""
        marks = ", ".join("?" * len(_COLUMNS))
        self._connection.execute(
            f"insert or replace into machines ({', '.join(_COLUMNS)}) values ({marks})",  # noqa: S608
            [getattr(row, column) for column in _COLUMNS],
        )
        if self._rows is not None:
            self._rows[row.name] = row

    def forget(self, row: MachineRow) -> None:
        """Remove a machine that never was; its name is not used again. Within a transaction."""
        self._connection.execute("delete from machines where name = ?", (row.name,))
        self._rows = None

    def add(self, role: Role, market: Market, at_s: float, *, name: str, paid: bool = True) -> MachineRow:
        """Write down a machine that is to be ordered, under a name that was never used."""
        last = int(self.fact("ordinal", 0))
        self.set_facts(ordinal=last + 1)
        row = MachineRow(
            name=f"{name}-{last + 1}",
            ordinal=last + 1,
            role=role,
            market=market,
            phase="ordering",
            ordered_s=at_s,
            paid=paid,
        )
        self.save(row)
        return row

    def change(self, row: MachineRow, at_s: float, event: str | None = None, **changes: Any) -> MachineRow:
        """Change a machine and tell of it; within a transaction."""
        changed = replace(row, **changes)
        self.save(changed)
        if event is not None:
            self.note(at_s, event, row.name, **({"why": changed.why} if changed.why else {}))
        return changed

    def note(self, at_s: float, kind: str, machine: str | None = None, **facts: Any) -> None:
        """Append an event."""
        self._connection.execute(
            "insert into events (at_s, kind, machine, facts) values (?, ?, ?, ?)",
            (at_s, kind, machine, json.dumps(facts)),
        )

    def events(self, after: int = 0) -> list[tuple[int, FleetEvent]]:
        """Events after one of a number, oldest first, with their numbers."""
        records = self._connection.execute(
            "select id, at_s, kind, machine, facts from events where id > ? order by id", (after,)
        )
        return [
            (number, FleetEvent(at_s=at_s, kind=kind, machine=machine, facts=json.loads(facts)))
            for number, at_s, kind, machine, facts in records
        ]

    def count_events(self, kinds: Iterable[str]) -> dict[str, int]:
        """How many events there are of each kind that has some."""
        chosen = tuple(kinds)
        marks = ", ".join("?" * len(chosen))
        records = self._connection.execute(
            f"select kind, count(*) from events where kind in ({marks}) group by kind",  # noqa: S608
            chosen,
        )
        return dict(records.fetchall())

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the block writes, or nothing of it."""
        self._connection.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._connection.execute("rollback")
            self._rows = None
            raise
        self._connection.execute("commit")

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def manager_lock(folder: Path, wait_s: float = 0.0) -> Iterator[bool]:
    """Hold a fleet's lock of its manager, or yield False: another process has it. The kernel frees it at our end."""
    handle = os.open(folder / "manager.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        until_s = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() >= until_s:
                    yield False
                    return
                time.sleep(0.1)
            else:
                yield True
                return
    finally:
        os.close(handle)
