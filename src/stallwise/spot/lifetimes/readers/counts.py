"""Logs that only count: Parcae's `ms,count`, and cluster sizes with date and time (Bamboo's Google Cloud logs)."""

import datetime as dt
import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from stallwise.errors import InputError
from stallwise.spot.lifetimes.log import Log, Trace, lives_of_counts

_COUNT = re.compile(r"\s*(-?\d+)\s*,\s*(-?\d+)\s*")
_DATED = re.compile(r"\s*(\d{4}-\d{2}-\d{2}),\s*(\d{2}:\d{2}:\d{2}),\s*(-?\d+)\s*")


def is_counts(line: str) -> bool:
    """Whether it is `ms,count`."""
    return _COUNT.fullmatch(line) is not None


def is_dated_counts(line: str) -> bool:
    """Whether it is `2021-12-11, 11:11:30, 55`."""
    return _DATED.fullmatch(line) is not None


def read_counts(lines: Sequence[str], source: str) -> Log:
    """Instance counts with milliseconds, one row per change."""
    rows = []
    for number, line in enumerate(lines, 1):
        found = _COUNT.fullmatch(line)
        if found is None:
            raise InputError(f"{source}, line {number}: found {line[:40]!r}, expected milliseconds and a count.")
        rows.append((int(found[1]) / 1000, int(found[2])))
    return _log(rows, source, ())


def read_dated_counts(lines: Sequence[str], source: str) -> Log:
    """Cluster sizes with date and time; several watchers may write into one file, so rows are put in order of time."""
    rows = []
    for number, line in enumerate(lines, 1):
        found = _DATED.fullmatch(line)
        if found is None:
            raise InputError(f"{source}, line {number}: found {line[:40]!r}, expected date, time and a count.")
        moment = dt.datetime.fromisoformat(f"{found[1]}T{found[2]}")
        rows.append((moment, int(found[3])))
    began = min(moment for moment, _ in rows)
    seconds = sorted((((moment - began).total_seconds(), count) for moment, count in rows), key=lambda row: row[0])
    back = any(later[0] < earlier[0] for earlier, later in pairwise(rows))
    return _log(seconds, source, ("Some rows go back in time; they were put in order.",) if back else ())


def _log(rows: Sequence[tuple[float, int]], source: str, notes: tuple[str, ...]) -> Log:
    for number, ((before_s, _), (at_s, count)) in enumerate(zip([(rows[0][0], 0), *rows], rows, strict=False), 1):
        if at_s < before_s:
            raise InputError(f"{source}, row {number}: time goes back from {before_s:g} to {at_s:g} s. Sort the log.")
        if count < 0:
            raise InputError(f"{source}, row {number}: a count of {count}. Counts are not negative; check the file.")
    last = dict(rows)  # of several rows of one moment the last holds
    times = np.array(list(last), dtype=np.float64)
    trace = Trace(times, np.array(list(last.values()), dtype=np.int64), float(times[-1]))
    lives, unseen = lives_of_counts(trace)
    return Log(source=source, lives=lives, trace=trace, notes=(*notes, *assumed(trace, unseen)))


def assumed(trace: Trace, unseen: int) -> tuple[str, ...]:
    """What lives from counts take for granted."""
    said = []
    if trace.most > 1:
        said.append(
            "Counts do not say which machine was lost; the oldest is taken. The mean life does not depend on it."
        )
    if unseen:
        said.append(f"{unseen} {'machine' if unseen == 1 else 'machines'} there at the start began unseen: left out.")
    return tuple(said)
