"""Hearing in time that this machine goes away: SIGTERM, and what the cloud's metadata endpoint says.

The signal is caught as soon as a rank starts, so that a notice during imports, compilation or the first step is not
missed. Endpoints are asked by one thread of the first rank of a machine, never by the training loop.
"""

import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from stallwise.elastic.clouds import Endpoint
from stallwise.elastic.codes import GRACE, HEARD

DEFAULT_GRACE_S = 30.0
_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Notice:
    """This machine, or this rank's part in the round, ends at `deadline_s` (time.monotonic())."""

    source: str
    mark: str
    deadline_s: float

    @property
    def of_machine(self) -> bool:
        """Whether the machine itself goes; a signal may only mean that the fleet changes."""
        return self.source != "signal"


class _Signal:
    """When SIGTERM came; None before."""

    at_s: float | None = None


def catch_signal() -> None:
    """From now on SIGTERM is a notice, not the end. Only the main thread can say so; elsewhere nothing happens."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _heard)


def _heard(_signal: int, _frame: FrameType | None) -> None:
    if _Signal.at_s is None:
        _Signal.at_s = time.monotonic()


def grace_s() -> float:
    """Between SIGTERM and SIGKILL, as the agent says; else what most clouds grant."""
    try:
        return float(os.environ.get(GRACE, DEFAULT_GRACE_S))
    except ValueError:
        return DEFAULT_GRACE_S


class Watcher:
    """The first notice there is, from any source. `endpoints` are asked every second; one that hangs delays itself."""

    def __init__(self, endpoints: Sequence[Endpoint] = (), every_s: float = _EVERY_S) -> None:
        self._every_s = every_s
        self._ended = threading.Event()
        self._told: Notice | None = None
        self._ignored = set(os.environ.get(HEARD, "").split("\n"))
        for endpoint in endpoints:
            threading.Thread(target=self._ask, args=(endpoint,), name="stallwise-notice", daemon=True).start()

    def close(self) -> None:
        """Ask no more."""
        self._ended.set()

    @property
    def notice(self) -> Notice | None:
        """None while nothing was heard."""
        if self._told is not None:
            return self._told
        if _Signal.at_s is None:
            return None
        return Notice("signal", "SIGTERM", _Signal.at_s + grace_s())

    def _ask(self, endpoint: Endpoint) -> None:
        while not self._ended.wait(self._every_s):
            told = endpoint.ask()
            if told is not None and f"{told.cloud} {told.mark}" not in self._ignored:
                self._told = Notice(told.cloud, told.mark, time.monotonic() + told.grace_s)
                return
