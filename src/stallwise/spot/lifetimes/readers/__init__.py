"""Readers of event logs; `read_log` knows the format by looking at the file."""

import json
from pathlib import Path

from stallwise.errors import InputError
from stallwise.spot.lifetimes.log import Log
from stallwise.spot.lifetimes.readers.counts import is_counts, is_dated_counts, read_counts, read_dated_counts
from stallwise.spot.lifetimes.readers.events import is_events, is_segment, read_events, read_segment
from stallwise.spot.lifetimes.readers.series import read_series
from stallwise.spot.lifetimes.readers.table import read_table

__all__ = ["read_log"]


def read_log(path: Path) -> Log:
    """Lives and, where the log has one, the trace; a sentence for a file that is none of the known kinds.

    Known by content: SkyPilot series (JSON with `metadata.gap_seconds`), Bamboo events (`ms,add,node`), Parcae counts
    (`ms,count`) and segments (JSON lines), dated counts (`2021-12-11, 11:11:30, 55`), else a CSV table with a header.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"The log {path} cannot be read ({reason}). Check the path.") from None
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise InputError(f"The log {path} is empty. Check the file.")
    source = path.name
    if lines[0].lstrip().startswith("{"):
        return read_series(_json(text, path), path)
    for knows, read in (
        (is_segment, read_segment),
        (is_events, read_events),
        (is_counts, read_counts),
        (is_dated_counts, read_dated_counts),
    ):
        if knows(lines[0]):
            return read(lines, source)
    return read_table(lines, source)


def _json(text: str, path: Path) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is cut off or not JSON ({error}). Check the file.") from None
