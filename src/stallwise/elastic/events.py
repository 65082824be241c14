"""The session's diary: one line of JSON per event, appended by one rank. What chaos and watch read.

began      round, world, step it goes on from, seconds since the process started
saved      step, seconds of training it held up, seconds until it was visible, bytes
failed     step, why a checkpoint was not made
passed     name, why a checkpoint was passed over
notice     source, seconds left
left       why, step
parts      step, samples of a global batch by rank; null: equal ones again
pace       step, world, samples per second, times of every rank
done       step
"""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "events.jsonl"


class Diary:
    """Appends; a full disk is no reason to stop training."""

    def __init__(self, path: Path | None, round_number: int) -> None:
        self._path, self._round = path, round_number

    def write(self, kind: str, **facts: Any) -> None:
        """One event, now."""
        if self._path is None:
            return
        line = json.dumps({"at": time.time(), "round": self._round, "kind": kind, **facts})
        with contextlib.suppress(OSError), self._path.open("a") as file:
            file.write(line + "\n")


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """All events so far; a line that is being written is left out."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                yield found
