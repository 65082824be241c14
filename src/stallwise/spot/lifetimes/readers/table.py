"""Plain CSV: one machine per row, with a header.

`lifetime_s` (or `lifetime_h`, or `start` and `end` as ISO times), `ended` (`preempted` or `stopped`), and where known
`gpu`, `region`, `machine`. Column names and words that other logs use for the same are understood.
"""

import csv
import datetime as dt
from collections.abc import Mapping, Sequence
from itertools import pairwise

from stallwise.errors import InputError
from stallwise.spot.lifetimes.log import Life, Log, check_life
from stallwise.units import SECONDS_PER_HOUR

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


def read_table(lines: Sequence[str], source: str) -> Log:
    """One life per row; every complaint names the row."""
    reader = csv.DictReader(lines)
    columns = _columns(reader.fieldnames or (), source)
    lives, notes = [], []
    for number, row in enumerate(reader, 2):
        lives.append(_life(row, columns, f"{source}, line {number}"))
    if not lives:
        raise InputError(f"{source} has a header and no rows. Check the file.")
    _check_overlaps(lives, source)
    if not any(life.lost for life in lives):
        notes.append("No machine was lost in this log.")
    stopped = sum(not life.lost for life in lives)
    if stopped:
        notes.append(f"{stopped:,} of {len(lives):,} machines were not lost but stopped or still there: censored.")
    return Log(source=source, lives=tuple(lives), notes=tuple(notes))


def _columns(names: Sequence[str], source: str) -> dict[str, str]:
    plain = {name.strip().lower().replace(" ", "_"): name for name in names}
    found = {ours: plain[their] for ours, theirs in _COLUMNS.items() for their in reversed(theirs) if their in plain}
    timed = "lifetime_s" in found or "lifetime_h" in found or {"start", "end"} <= found.keys()
    missing = "lifetime_s (or start and end)" if not timed else "ended" if "ended" not in found else None
    if missing:
        raise InputError(
            f"{source} has no column {missing}; it has {', '.join(names[:8]) or 'nothing'}. "
            "A log is a CSV with lifetime_s and ended (preempted or stopped), or one of the formats in docs/spot.md."
        )
    return found


def _life(row: Mapping[str, str | None], columns: Mapping[str, str], where: str) -> Life:
    def cell(name: str) -> str | None:
        return (row.get(columns[name]) or "").strip() or None if name in columns else None

    began = _moment(cell("start"), where)
    life = Life(
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


def _check_overlaps(lives: Sequence[Life], source: str) -> None:
    """Two lives of one machine at once: the rows are of different machines, or times are wrong."""
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
