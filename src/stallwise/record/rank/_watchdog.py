"""Detects that no step has begun for a long time, and saves the stacks of all threads.

The dump is made by faulthandler's own C thread, which needs no interpreter lock: a rank stuck inside a collective
that holds the lock is caught as well. A Python thread only pushes the alarm back while there is progress. A rank that
is not stuck itself writes its stacks when the launcher sends a signal.
"""

import faulthandler
import os
import signal
import threading
from pathlib import Path

from stallwise.record.rank.environment import PROCESS_NAME, STACKS_NAME
from stallwise.record.rank.recorder import Recorder

# Not one of the named signals: those may have a meaning to the script (Slurm's warning is SIGUSR1).
STACKS_SIGNAL = signal.SIGRTMIN + 7
# Before its first batch a job reads, tokenizes or compiles; that may take longer than any step.
_SETUP_FACTOR = 6


class Watchdog:
    """Watches one rank from construction until `stop`."""

    def __init__(self, recorder: Recorder, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._recorder = recorder
        self._file = (folder / STACKS_NAME).open("w")
        self._over = threading.Event()
        faulthandler.register(STACKS_SIGNAL, file=self._file, all_threads=True)
        (folder / PROCESS_NAME).write_text(str(os.getpid()))
        self._thread = threading.Thread(target=self._postpone_alarm, daemon=True, name="stallwise")
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, because the script is over."""
        self._over.set()
        self._thread.join(timeout=5)
        faulthandler.cancel_dump_traceback_later()
        # A signal that is already on its way must not end the process.
        signal.signal(STACKS_SIGNAL, signal.SIG_IGN)

    def _postpone_alarm(self) -> None:
        limit_s = self._recorder.settings.hang_after_s
        beat_s = self._recorder.last_beat_s
        faulthandler.dump_traceback_later(_SETUP_FACTOR * limit_s, file=self._file)
        while not self._over.wait(min(5.0, limit_s / 10)):
            if self._recorder.last_beat_s != beat_s:
                beat_s = self._recorder.last_beat_s
                faulthandler.dump_traceback_later(limit_s, file=self._file)
