"""What agents, ranks and observers of a job share: environment variables, exit codes, and the event log.

The event log of a session is a file of JSON lines that one rank appends to; chaos and watch read it. A round whose rank
was stopped appends when it goes on, perhaps after events of the next round: "saved" is then true, but was so earlier.

began      round, world, step it goes on from, seconds since the process started
saved      step, seconds of training it held up, seconds until it was visible, bytes
failed     step, why a checkpoint was not made
passed     name, why a checkpoint was passed over
notice     source, seconds left
left       why, step
parts      step, samples of a global batch by rank; null: equal ones again
pace       step, world, samples, samples per second, times of every rank
done       step
"""

import contextlib
import enum
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stallwise.inputs import read_bytes

COORDINATOR = "STALLWISE_COORDINATOR"
COORDINATOR_IDENTITY = "STALLWISE_COORDINATOR_IDENTITY"
ROUND = "STALLWISE_ROUND"
GRACE = "STALLWISE_GRACE_S"
METADATA = "STALLWISE_METADATA"
IGNORED_NOTICES = "STALLWISE_HEARD"
AGENT = "STALLWISE_AGENT"
CAUSE = "STALLWISE_CAUSE"
MACHINE = "STALLWISE_MACHINE"
"""Name of this machine, where its host name is not what its manager calls it."""
CHECKPOINTS = "STALLWISE_CHECKPOINTS"
INTERVAL = "STALLWISE_INTERVAL_S"
"""Folder and interval of a session that is given none."""

EXIT_DAMAGED = 3
"""Exit code of the object store's client where an object exists but differs from what was written."""
EVENTS_FILE = "events.jsonl"
_MAX_LOG_BYTES = 1 << 30


class RankExit(enum.IntEnum):
    """Exit codes of a rank that neither finished (0) nor crashed."""

    AGAIN = 75  # saved; the fleet changes, start the rank again
    LEAVING = 76  # saved; this machine is about to be revoked
    PEER_LOST = 77  # another rank is gone
    REFUSED = 79  # bad input, which another start would not change
    SUPERSEDED = 78  # a later round has the checkpoints: this rank is no longer the job


EXPECTED_EXITS = frozenset(int(code) for code in RankExit)


class EventLog:
    """Appends events to a session's log; a full disk is no reason to stop training."""

    def __init__(self, path: Path | None, round_number: int) -> None:
        self._path, self._round = path, round_number

    def write(self, kind: str, **facts: Any) -> None:
        """Append one event with the present time; a no-op on ranks without a path."""
        if self._path is None:
            return
        line = json.dumps({"at": time.time(), "round": self._round, "kind": kind, **facts})
        with contextlib.suppress(OSError), self._path.open("a") as file:
            file.write(line + "\n")


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield all events so far; a line that is still being written, or is no event, is left out."""
    try:
        data = read_bytes(path, _MAX_LOG_BYTES)
    except FileNotFoundError:
        return
    for line in data.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict) and isinstance(event.get("kind"), str):
                yield event
