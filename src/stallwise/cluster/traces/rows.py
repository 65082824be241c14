"""What every reader gives: the jobs of a file with their lines, and one problem per line that is none.

A line that cannot be used never stops the reading: all of them are found in one go, so that a trace is corrected once.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from stallwise.cluster.job import Job
from stallwise.cluster.speed import Speed
from stallwise.errors import InputError, nearest_names

Fields = Sequence[str]

_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """A line that is no usable job; `kind` is what such lines share."""

    line: int
    kind: str
    said: str


class BadRowError(ValueError):
    """A row cannot be a job: `said` of this one, `kind` in the words all such rows share."""

    def __init__(self, kind: str, said: str = "") -> None:
        self.kind, self.said = kind, said or kind
        super().__init__(self.said)


class LeftOut(Exception):  # noqa: N818 - not an error: the row is fine, there is nothing to simulate in it
    """A sound row that has nothing to run on a GPU; its text is the reason, which a note counts."""


@dataclass(frozen=True, slots=True)
class Table:
    """A file cut into fields; `rows` hold the number of the line and its fields."""

    source: str
    columns: tuple[str, ...]
    rows: tuple[tuple[int, list[str]], ...]

    def at(self, name: str) -> int:
        """The place of a column."""
        if name not in self.columns:
            raise InputError(f"{self.source} has no column {name!r}; it has {', '.join(self.columns)}.")
        return self.columns.index(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The jobs of a file in order of arrival, what is wrong with other lines, and what was taken for granted."""

    source: str
    format: str
    jobs: tuple[Job, ...]
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    speed: Speed | None = None
    """How fast its jobs run where; None where nothing is known about that, and placement costs nothing."""


Parse = Callable[[int, Fields], Job]


def collect(table: Table, format: str, parse: Parse, notes: Iterable[str] = ()) -> Trace:
    """Every row through `parse`; ids that come again are problems, jobs without work are left out and counted."""
    jobs: list[Job] = []
    problems: list[Problem] = []
    left_out: dict[str, int] = {}
    first: dict[str, int] = {}
    width = len(table.columns)
    for line, fields in table.rows:
        try:
            if len(fields) != width:
                raise BadRowError("another number of fields", f"{len(fields)} fields, expected {width}")
            job = parse(line, fields)
            if first.setdefault(job.id, line) != line:
                raise BadRowError("an id that was there before", f"id {job.id!r} is on line {first[job.id]} already")
            jobs.append(job)
        except BadRowError as bad:
            problems.append(Problem(line, bad.kind, bad.said))
        except LeftOut as reason:
            left_out[str(reason)] = left_out.get(str(reason), 0) + 1
    jobs.sort(key=lambda job: job.arrival_s)  # stable: those of one moment stay in the order of the file
    counted = (f"{count:,} {reason}: left out." for reason, count in left_out.items())
    return Trace(
        source=table.source, format=format, jobs=tuple(jobs), problems=tuple(problems), notes=(*notes, *counted)
    )


def identity(text: str, what: str = "job_id") -> str:
    """A name that is there."""
    name = text.strip()
    if not name:
        raise BadRowError(f"no {what}")
    return name


_LONGEST_S = 1e11


def seconds(text: str, what: str) -> float:
    """A time from 0 on; `what` names it in the problem."""
    try:
        value = float(text)
    except ValueError:
        if not text.strip():
            raise BadRowError(f"no {what}") from None
        raise BadRowError(f"{what} is not a number", f"{what} {text[:40]!r} is not a number") from None
    if 0.0 <= value < _LONGEST_S:
        return value
    if _LONGEST_S <= value < math.inf:
        raise BadRowError(f"{what} too long", f"{what} {text.strip()} s is over 3,000 years; is it in another unit?")
    if value < 0:
        raise BadRowError(f"negative {what}", f"{what} {text.strip()} is negative")
    raise BadRowError(f"no {what}", f"{what} {text.strip()} is not a time")


def duration(text: str, what: str = "duration") -> float:
    """A time above 0; a job that ran for none has nothing to simulate."""
    value = seconds(text, what)
    if value == 0.0:
        raise LeftOut("jobs of 0 s")
    return value


def whole(text: str, what: str) -> int:
    """A whole number from 1 on."""
    try:
        value = int(text)
    except ValueError:
        value = _from_decimal(text, what)
    if value < 1:
        raise BadRowError(f"{what} below 1", f"{what} {text.strip()}: at least 1 is needed")
    return value


def _from_decimal(text: str, what: str) -> int:
    try:
        value = float(text)
        if value == int(value):
            return int(value)
    except (ValueError, OverflowError):
        if not text.strip():
            raise BadRowError(f"no {what}") from None
    raise BadRowError(f"{what} is no whole number", f"{what} {text[:40]!r} is no whole number")


def moment(text: str, what: str) -> float:
    """Seconds of a date and time as written; zones are not looked at."""
    if not text.strip():
        raise BadRowError(f"no {what}")
    try:
        return (datetime.fromisoformat(text.strip()).replace(tzinfo=None) - _EPOCH).total_seconds()
    except ValueError:
        raise BadRowError(f"{what} is no date and time", f"{what} {text[:40]!r} is no date and time") from None


def earliest(table: Table, column: int, what: str) -> float:
    """The first moment of a column, which is second 0 of the trace."""
    found = []
    for _, fields in table.rows:
        try:
            found.append(moment(fields[column], what))
        except (BadRowError, IndexError):  # told by the reading itself
            continue
    return min(found, default=0.0)


def known_model(text: str, known: Iterable[str], what: str = "model") -> str:
    """A model that is known; the problem offers the nearest."""
    name = text.strip()
    names = tuple(known)
    if name in names:
        return name
    if not name:
        raise BadRowError(f"no {what}")
    near = nearest_names(name, names, 1)
    raise BadRowError(f"unknown {what}", f"unknown {what} {name!r}" + (f" (nearest: {near[0]})" if near else ""))
