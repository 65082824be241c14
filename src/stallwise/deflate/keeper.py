"""`python -m stallwise.deflate.keeper TARGET`: waits for a deflated job's end, or for its time, and cleans up.

It holds nothing that anybody needs: when it is killed, the next `stallwise deflate` does its work.
"""

import contextlib
import os
import select
import sys
import time

from stallwise.deflate import journal
from stallwise.deflate.processes import started_at
from stallwise.errors import StallwiseError

_LOOK_S = 1.0


def keep(target: str) -> None:
    """Until the deflation is undone, by whomever."""
    while (found := journal.read(target)) is not None:
        if not found.over:
            _wait(found)
            continue
        try:
            journal.undo_if_over(target)
        except (OSError, StallwiseError):
            time.sleep(_LOOK_S)  # what is in its way may go


def _wait(found: journal.Journal) -> None:
    """For the end of the process, for a second at most: the file may go meanwhile."""
    if found.pid is None:
        time.sleep(_LOOK_S)
        return
    try:
        handle = os.pidfd_open(found.pid)
    except OSError:
        time.sleep(_LOOK_S)
        return
    try:
        if started_at(found.pid) == found.started:
            select.select([handle], [], [], _LOOK_S)
    finally:
        os.close(handle)


def detach() -> None:
    """Go on as a process of one's own, whose number the caller reads; it keeps no pipe of the caller's open."""
    child = os.fork()
    if child:
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)


if __name__ == "__main__":
    detach()
    with contextlib.suppress(StallwiseError):
        keep(sys.argv[1])
