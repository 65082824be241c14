"""Readers of event logs; `read_log` knows the format by looking at the file."""

import csv
import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from stallwise.errors import InputError
from stallwise.inputs import bounded_nesting, bounded_rows, read_text
from stallwise.sentences import Sentence
from stallwise.spot.lifetimes.log import AvailabilityTrace, LifetimeLog, MachineLife, check_life, lives_of_counts
from stallwise.units import SECONDS_PER_HOUR

_MOST_COUNT = 2**53
_COUNT = re.compile(r"\s*(-?\d{1,18})\s*,\s*(-?\d{1,18})\s*")
_DATED = re.compile(r"\s*(\d{4}-\d{2}-\d{2}),\s*(\d{2}:\d{2}:\d{2}),\s*(-?\d{1,18})\s*")


def is_counts(line: str) -> bool:
    """Whether a line is `ms,count`."""
    return _COUNT.fullmatch(line) is not None


def is_dated_counts(line: str) -> bool:
    """Whether a line is `2021-12-11, 11:11:30, 55`."""
    return _DATED.fullmatch(line) is not None


def read_counts(lines: Sequence[str], source: str) -> LifetimeLog:
    """Read instance counts with milliseconds, one row per change."""
    rows = []
    for number, line in enumerate(lines, 1):
        match = _COUNT.fullmatch(line)
        if match is None:
            raise InputError(f"{source}, line {number}: found {line[:40]!r}, expected milliseconds and a count.")
        rows.append((int(match[1]) / 1000, int(match[2])))
    return _log(rows, source, ())


def read_dated_counts(lines: Sequence[str], source: str) -> LifetimeLog:
    """Read cluster sizes with date and time; several observers may write into one file, so rows are sorted by time."""
    rows = []
    for number, line in enumerate(lines, 1):
        match = _DATED.fullmatch(line)
        if match is None:
            raise InputError(f"{source}, line {number}: found {line[:40]!r}, expected date, time and a count.")
        moment = _moment(f"{match[1]}T{match[2]}", f"{source}, line {number}")
        assert moment is not None  # noqa: S101 - of a text
        rows.append((moment, int(match[3])))
    began = min(moment for moment, _ in rows)
    seconds = sorted((((moment - began).total_seconds(), count) for moment, count in rows), key=lambda row: row[0])
    back = any(later[0] < earlier[0] for earlier, later in pairwise(rows))
    return _log(
        seconds,
        source,
        (Sentence("lifetimes.reordered", "Some rows go back in time; they were put in order."),) if back else (),
    )


def _log(rows: Sequence[tuple[float, int]], source: str, notes: tuple[Sentence, ...]) -> LifetimeLog:
    for number, ((before_s, _), (at_s, count)) in enumerate(zip([(rows[0][0], 0), *rows], rows, strict=False), 1):
        if at_s < before_s:
            raise InputError(f"{source}, row {number}: time goes back from {before_s:g} to {at_s:g} s. Sort the log.")
        if count < 0:
            raise InputError(f"{source}, row {number}: a count of {count}. Counts are not negative; check the file.")
    last = dict(rows)  # of several rows of one moment the last holds
    times = np.array(list(last), dtype=np.float64)
    trace = AvailabilityTrace(times, np.array(list(last.values()), dtype=np.int64), float(times[-1]))
    lives, unseen = lives_of_counts(trace)
    return LifetimeLog(source=source, lives=lives, trace=trace, notes=(*notes, *assumed(trace, unseen)))


def assumed(trace: AvailabilityTrace, unseen: int) -> tuple[Sentence, ...]:
    """Return notes on what lives derived from counts assume."""
    notes = []
    if trace.most > 1:
        notes.append(
            Sentence(
                "lifetimes.oldest-lost",
                "Counts do not say which machine was lost; the oldest is taken. The mean life does not depend on it.",
            )
        )
    if unseen:
        notes.append(
            Sentence(
                "lifetimes.left-out",
                f"{unseen} {'machine' if unseen == 1 else 'machines'} there at the start began unseen: left out.",
            )
        )
    return tuple(notes)


_EVENT = re.compile(r"\s*(-?\d{1,18})\s*,\s*(add|remove)\s*,\s*(\S+)\s*")

Event = tuple[float, str, str]


def is_events(line: str) -> bool:
    """Whether a line is `480000,add,node1`."""
    return _EVENT.fullmatch(line) is not None


def is_segment(line: str) -> bool:
    """Whether a line is `[0, "add", {"nodes": […]}]`."""
    return line.lstrip().startswith("[") and '"nodes"' in line


def read_events(lines: Sequence[str], source: str) -> LifetimeLog:
    """Read the event traces of Bamboo (`ms,add,node`)."""
    events = []
    for number, line in enumerate(lines, 1):
        match = _EVENT.fullmatch(line)
        if match is None:
            raise InputError(
                f"{source}, line {number}: found {line[:40]!r}, expected milliseconds, add or remove, a name."
            )
        events.append((int(match[1]) / 1000, match[2], match[3]))
    return log_of_events(events, source)


def read_segment(lines: Sequence[str], source: str) -> LifetimeLog:
    """Read Parcae's one-hour segments; migrations and ticks without change do not affect lives."""
    events: list[Event] = []
    end_s = 0.0
    for number, line in enumerate(lines, 1):
        try:
            at_ms, kind, details = json.loads(line)
            nodes, end_s = list(details["nodes"]), (at_ms + details.get("duration", 0)) / 1000
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise InputError(
                f'{source}, line {number}: expected [ms, "add", {{"nodes": […]}}]. Check the file.'
            ) from None
        if kind in ("add", "remove"):
            events += [(at_ms / 1000, kind, str(node)) for node in nodes]
    return log_of_events(events, source, end_s)


def log_of_events(events: Iterable[Event], source: str, end_s: float = 0.0) -> LifetimeLog:
    """Derive lives and counts; a machine that is added twice, or removed before it was added, is an error."""
    running: dict[str, float] = {}
    lives: list[MachineLife] = []
    counts: dict[float, int] = {}
    last_s = -np.inf
    for at_s, kind, node in events:
        if at_s < last_s:
            raise InputError(f"{source}: time goes back from {last_s:g} to {at_s:g} s at {node}. Sort the log by time.")
        if (kind == "add") == (node in running):
            raise _overlap(source, at_s, kind, node)
        if kind == "add":
            running[node] = at_s
        else:
            lives.append(MachineLife(lived_s=at_s - running.pop(node), lost=True, machine=node))
        last_s = at_s
        counts[at_s] = len(running)
    if not counts:
        raise InputError(f"{source} has no event that adds or removes a machine. Check the file.")
    end_s = max(end_s, float(last_s))
    lives += [MachineLife(lived_s=end_s - began_s, lost=False, machine=node) for node, began_s in running.items()]
    trace = AvailabilityTrace(np.array(list(counts)), np.array(list(counts.values()), dtype=np.int64), end_s)
    still = Sentence("lifetimes.censored", f"{len(running)} machines were there at the end: censored.")
    return LifetimeLog(source=source, lives=tuple(lives), trace=trace, notes=(still,) if running else ())


def _overlap(source: str, at_s: float, kind: str, node: str) -> InputError:
    what = "is added while it is there already" if kind == "add" else "is removed while it is not there"
    return InputError(
        f"{source}: events overlap: {node} {what}, at {at_s:g} s. Each machine needs a removal between two additions; "
        "give machines that come back another name."
    )


def read_series(document: object, path: Path) -> LifetimeLog:
    """Read a SkyPilot series (Wu et al., NSDI 2024): instances obtained at each tick.

    `{"metadata": {"gap_seconds": 195}, "data": [0, 0, 1, …]}`. Names like `us-east-1a_v100_1.json` give zone and GPU.
    """
    gap_s, data = _parts(document, path)
    counts = np.array(data, dtype=np.int64)
    trace = AvailabilityTrace(np.arange(len(counts), dtype=np.float64) * gap_s, counts, len(counts) * gap_s)
    zone, gpu = _labels(path.stem)
    lives, unseen = lives_of_counts(trace, region=zone, gpu=gpu)
    note = Sentence("lifetimes.ticks", f"Ticks of {gap_s:g} s: a life is known to that.", gap_s=gap_s)
    return LifetimeLog(source=path.name, lives=lives, trace=trace, notes=(note, *assumed(trace, unseen)))


def _parts(document: object, path: Path) -> tuple[float, list[int]]:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    gap_s = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(gap_s, (int, float)) or gap_s <= 0 or not isinstance(data, list) or not data:
        raise InputError(
            f"{path} is JSON without metadata.gap_seconds and data, so it is no availability series. Check the file."
        )
    for place, value in enumerate(data):
        if not isinstance(value, (int, float)) or not 0 <= value < _MOST_COUNT or value != int(value):
            raise InputError(
                f"{path}: value {place} of data is {str(value)[:40]}, not a count of instances. Correct it."
            )
    return float(gap_s), [int(value) for value in data]


def _labels(stem: str) -> tuple[str | None, str | None]:
    parts = stem.split("_")
    return (parts[0], parts[1]) if len(parts) == 3 else (None, None)


_COLUMNS = {
    "lifetime_s": ("lifetime_s", "lived_s", "uptime", "uptime_s", "duration_s"),
    "lifetime_h": ("lifetime_h", "lived_h", "uptime_h"),
    "start": ("start", "began", "insert_time", "created", "start_time"),
    "end": ("end", "end_time", "terminated", "terminate"),
    "ended": ("ended", "end_event", "event", "revoked", "preempted", "lost"),
    "gpu": ("gpu", "accelerator", "machine_type", "instance_type"),
    "region": ("region", "zone"),
    "machine": ("machine", "instance", "name", "vm_name", "node"),
}
LOST = frozenset(
    {"preempted", "preemption", "revoked", "lost", "interrupted", "terminated by the cloud", "true", "1", "yes"}
)
STOPPED = frozenset(
    {
        "stopped",
        "stop",
        "user_stop",
        "censored",
        "running",
        "alive",
        "completed",
        "job completed",
        "false",
        "0",
        "no",
        "manual",
    }
)


def read_table(lines: Sequence[str], source: str) -> LifetimeLog:
    """Read a CSV with one machine per row and a header; errors name the row.

    Columns: `lifetime_s` (or `lifetime_h`, or `start` and `end` as ISO times), `ended` (`preempted` or `stopped`), and
    where known `gpu`, `region`, `machine`. Names and words that other logs use for the same are understood.
    """
    reader = csv.DictReader(lines)
    lives, notes = [], []
    try:
        columns = _columns(reader.fieldnames or (), source)
        for number, row in enumerate(reader, 2):
            lives.append(_life(row, columns, f"{source}, line {number}"))
    except csv.Error as error:
        raise InputError(f"{source}, line {reader.line_num}: {error}. Check the file.") from None
    if not lives:
        raise InputError(f"{source} has a header and no rows. Check the file.")
    _check_overlaps(lives, source)
    if not any(life.lost for life in lives):
        notes.append(Sentence("lifetimes.no-loss", "No machine was lost in this log."))
    stopped = sum(not life.lost for life in lives)
    if stopped:
        notes.append(
            Sentence(
                "lifetimes.stopped",
                f"{stopped:,} of {len(lives):,} machines were not lost but stopped or still there: censored.",
            )
        )
    return LifetimeLog(source=source, lives=tuple(lives), notes=tuple(notes))


def _columns(names: Sequence[str], source: str) -> dict[str, str]:
    plain = {name.strip().lower().replace(" ", "_"): name for name in names}
    columns = {ours: plain[their] for ours, theirs in _COLUMNS.items() for their in reversed(theirs) if their in plain}
    timed = "lifetime_s" in columns or "lifetime_h" in columns or {"start", "end"} <= columns.keys()
    missing = "lifetime_s (or start and end)" if not timed else "ended" if "ended" not in columns else None
    if missing:
        raise InputError(
            f"{source} has no column {missing}; it has {', '.join(names[:8]) or 'nothing'}. "
            "A log is a CSV with lifetime_s and ended (preempted or stopped), or one of the formats in docs/spot.md."
        )
    return columns


def _life(row: Mapping[str, str | None], columns: Mapping[str, str], where: str) -> MachineLife:
    def cell(name: str) -> str | None:
        return (row.get(columns[name]) or "").strip() or None if name in columns else None

    began = _moment(cell("start"), where)
    life = MachineLife(
        lived_s=_lived_s(cell("lifetime_s"), cell("lifetime_h"), began, _moment(cell("end"), where), where),
        lost=_lost(cell("ended"), where),
        gpu=cell("gpu"),
        region=cell("region"),
        machine=cell("machine"),
        began=began,
    )
    return check_life(life, where)


def _lived_s(
    seconds: str | None, hours: str | None, began: dt.datetime | None, ended: dt.datetime | None, where: str
) -> float:
    for text, unit in ((seconds, 1.0), (hours, float(SECONDS_PER_HOUR))):
        if text is not None:
            try:
                return float(text) * unit
            except ValueError:
                raise InputError(f"{where}: a lifetime of {text[:30]!r} is no number. Correct it.") from None
    if began is None or ended is None:
        raise InputError(f"{where}: neither a lifetime nor start and end. Fill it in or leave the row out.")
    if (began.tzinfo is None) != (ended.tzinfo is None):
        raise InputError(f"{where}: start and end must both have a time zone, or neither. Correct it.")
    return (ended - began).total_seconds()


def _moment(text: str | None, where: str) -> dt.datetime | None:
    if text is None:
        return None
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"{where}: {text[:30]!r} is no time like 2026-01-31T14:05:00. Correct it.") from None


def _lost(text: str | None, where: str) -> bool:
    word = (text or "").lower()
    if word in LOST or word.startswith("revoked"):
        return True
    if word in STOPPED or word.startswith("manually stopped"):
        return False
    raise InputError(f"{where}: ended {text!r}; expected preempted or stopped. Correct it.")


def _check_overlaps(lives: Sequence[MachineLife], source: str) -> None:
    """Reject two lives of one machine at once: the rows are of different machines, or times are wrong."""
    dated = [life for life in lives if life.machine and life.began is not None]
    zones = {life.began.tzinfo is None for life in dated if life.began is not None}
    if len(zones) > 1:
        raise InputError(f"{source} mixes times with and without a zone. Give all of them one.")
    # The same name in two regions is two machines.
    ordered = sorted(dated, key=lambda life: (life.machine, life.region or "", life.began))
    for first, second in pairwise(ordered):
        if first.began is None or second.began is None:
            continue
        end = first.began + dt.timedelta(seconds=first.lived_s)
        if (first.machine, first.region) == (second.machine, second.region) and second.began < end:
            raise InputError(
                f"{source}: events overlap: {first.machine} has a life that begins {second.began} while the one before "
                f"lasts to {end}. Correct the times, or give the machines names of their own."
            )


__all__ = ["read_log"]


def read_log(path: Path) -> LifetimeLog:
    """Read a log: lives and, where it has one, the availability trace; raise `InputError` for unknown formats.

    Known by content: SkyPilot series (JSON with `metadata.gap_seconds`), Bamboo events (`ms,add,node`), Parcae counts
    (`ms,count`) and segments (JSON lines), dated counts (`2021-12-11, 11:11:30, 55`), else a CSV table with a header.
    """
    try:
        text = read_text(path, "utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"The log {path} cannot be read ({reason}). Check the path.") from None
    lines = [line for line in bounded_rows(text.splitlines(), path) if line.strip()]
    if not lines:
        raise InputError(f"The log {path} is empty. Check the file.")
    source = path.name
    if lines[0].lstrip().startswith("{"):
        return read_series(_json(text, path), path)
    for recognises, read in (
        (is_segment, read_segment),
        (is_events, read_events),
        (is_counts, read_counts),
        (is_dated_counts, read_dated_counts),
    ):
        if recognises(lines[0]):
            return read(lines, source)
    return read_table(lines, source)


def _json(text: str, path: Path) -> object:
    try:
        with bounded_nesting(path, "an availability series"):
            return json.loads(text)
    except ValueError as error:
        raise InputError(f"{path} is cut off or not JSON ({error}). Check the file.") from None
