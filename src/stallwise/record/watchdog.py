"""Notices that no step has begun for a long time, and saves where every thread stands.

The dump is made by faulthandler's own C thread, which needs no interpreter lock: a rank stuck inside a collective
that holds the lock is caught as well. A Python thread only pushes the alarm back while there is progress.
"""

import faulthandler
import threading
from pathlib import Path
from typing import TextIO

from stallwise.record.recorder import Recorder
from stallwise.record.settings import STACKS_NAME


def watch_for_hangs(recorder: Recorder, folder: Path) -> None:
    """Start watching; the stacks go to `stacks.txt` in the rank's folder, which the launcher looks for."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / STACKS_NAME).open("w")
    limit_s = recorder.settings.hang_after_s
    thread = threading.Thread(target=_keep_pushing, args=(recorder, file, limit_s), daemon=True, name="stallwise")
    thread.start()


def _keep_pushing(recorder: Recorder, file: TextIO, limit_s: float) -> None:
    beat_s = -1.0
    while True:
        if recorder.last_beat_s != beat_s:
            beat_s = recorder.last_beat_s
            faulthandler.dump_traceback_later(limit_s, file=file)
        threading.Event().wait(min(5.0, limit_s / 10))
