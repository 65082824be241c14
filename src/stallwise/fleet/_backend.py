"""What the manager asks of a cloud, and what can go wrong.

A back end starts a machine by name and token. The same name and token once more is the same machine, also after it has
ended: a name has one life. The token marks all machines of a fleet, so that the fleet can be found from outside.
Seconds are those of the back end's clock.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from stallwise.errors import StallwiseError

Market = Literal["spot", "on-demand"]
ReportedState = Literal["pending", "running", "ended"]
Answer = TypeVar("Answer")


class BackendError(StallwiseError):
    """The back end did not do what it was asked; `code` says why: error, no-capacity, timeout, name-taken."""

    def __init__(self, message: str, code: str = "error") -> None:
        super().__init__(message, code=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOrder:
    """A machine to start, and the command that it runs once it has booted."""

    name: str
    token: str
    market: Market
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedMachine:
    """A machine as its back end describes it."""

    name: str
    token: str
    market: Market
    state: ReportedState
    ordered_s: float
    ready_s: float | None = None
    """When it began to run and to cost; None: not yet."""
    ended_s: float | None = None
    why: str = ""
    """Of its end: preempted, stopped or lost."""
    notice: bool = False
    """It is to be taken away soon."""
    exit_code: int | None = None
    """Of its command; None while that runs."""
    ident: str = ""
    """The back end's own name of it, where two machines may have one name; else `name`."""

    @property
    def key(self) -> str:
        """What `stop` takes."""
        return self.ident or self.name


class Clock(Protocol):
    """Time of a back end: real, accelerated, or simulated."""

    def now_s(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class WallClock:
    """The time of day, `speed` times as fast since `origin_s`."""

    origin_s: float = 0.0
    speed: float = 1.0

    def now_s(self) -> float:
        return (time.time() - self.origin_s) * self.speed

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds) / self.speed)


class MachineBackend(Protocol):
    """A cloud, or what stands for one."""

    @property
    def clock(self) -> Clock: ...

    def start(self, order: MachineOrder) -> None:
        """Start a machine; a second call with the same name and token changes nothing. It may be ready later."""

    def machines(self, token: str) -> list[ReportedMachine]:
        """List the machines with this token; those that have ended may be left out after some hours."""

    def stop(self, key: str) -> None:
        """Ask for the end of a machine; one that has ended, or never was, is no error."""

    def usd_per_h(self, market: Market) -> float:
        """Present price of one machine."""


class BoundedBackend:
    """A back end whose calls end: after `limit_s` seconds, or with a `BackendError` whatever was raised.

    What a call that was given up does later is its own: the next list shows it.
    """

    def __init__(self, backend: MachineBackend, limit_s: float = 60.0) -> None:
        self._backend, self._limit_s = backend, limit_s

    @property
    def clock(self) -> Clock:
        return self._backend.clock

    def start(self, order: MachineOrder) -> None:
        self._call("start", lambda: self._backend.start(order))

    def machines(self, token: str) -> list[ReportedMachine]:
        return self._call("list", lambda: self._backend.machines(token))

    def stop(self, key: str) -> None:
        self._call("stop", lambda: self._backend.stop(key))

    def usd_per_h(self, market: Market) -> float:
        return self._call("price", lambda: self._backend.usd_per_h(market))

    def _call(self, name: str, call: Callable[[], Answer]) -> Answer:
        result: list[Any] = []

        def run() -> None:
            try:
                result.append((call(), None))
            except Exception as error:
                result.append((None, error))

        thread = threading.Thread(target=run, name=f"stallwise-fleet-{name}", daemon=True)
        thread.start()
        thread.join(self._limit_s)
        if not result:
            raise BackendError(f"The back end did not answer {name!r} within {self._limit_s:g} s.", "timeout")
        value, error = result[0]
        if isinstance(error, BackendError):
            raise error
        if error is not None:
            raise BackendError(f"The back end failed at {name!r} ({type(error).__name__}: {error}).") from error
        answer: Answer = value
        return answer
