"""One machine's side of the membership: its heartbeats, and the rounds it takes part in.

A thread tells the coordinator every `heartbeat_s` that this machine is alive, and receives the job's membership. A
machine that was stopped (a paused virtual machine, a swapping or suspended one, one cut off) learns in the first reply
after it that it is no member any more: nothing here measures how long it was away.
"""

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from stallwise.elastic.protocol import MACHINE
from stallwise.elastic.wire import (
    AddValue,
    CloseJob,
    CoordinatorClient,
    CoordinatorLostError,
    CoordinatorRefusedError,
    GetValue,
    Join,
    Leave,
    Look,
    MembershipStatus,
    SetValue,
    WaitKeys,
)

log = logging.getLogger("stallwise")

_POLL_S = 0.1
_LEAST_PATIENCE_S = 15.0
"""With a coordinator that does not answer: ranks train on meanwhile, and what they save has its fence."""
MAX_SKEW_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousTiming:
    """Seconds that machines wait for each other."""

    join_s: float = 600.0
    """For the minimum number of machines."""
    last_call_s: float = 1.0
    """For more than the minimum."""
    heartbeat_s: float = 0.5
    heartbeats: int = 8
    """Missed in a row before a machine counts as lost."""

    @property
    def expiry_s(self) -> float:
        """Silence after which a machine counts as lost."""
        return self.heartbeat_s * self.heartbeats


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTerms:
    """A job's name, and what must be the same on all its machines. `again`: begin it anew where it has ended."""

    job: str
    least: int
    most: int
    program: str
    again: bool = False


class JobClosedError(Exception):
    """The job has ended while this machine waited for a round."""


class JobRendezvous:
    """One machine of a job at its coordinator; the thread of heartbeats lives from `begin` to `close`."""

    def __init__(
        self, address: str, port: int, secret: bytes, terms: JobTerms, ranks: int, timing: RendezvousTiming
    ) -> None:
        """Connect; CoordinatorLostError where nobody answers, CoordinatorRefusedError where this machine may not."""
        self.coordinator = address, port
        self.terms, self._ranks, self._timing = terms, ranks, timing
        self.name = f"{(os.environ.get(MACHINE) or socket.gethostname())[:64]}-{os.getpid()}-{secrets.token_hex(4)}"
        self._patience_s = max(_LEAST_PATIENCE_S, timing.expiry_s)
        self._beats = CoordinatorClient(address, port, secret, terms.job, self._patience_s)
        self._client = CoordinatorClient(address, port, secret, terms.job)
        self._lock = threading.Lock()
        self._status: MembershipStatus | None = None
        self._failure: Exception | None = None
        self._joined = False
        self._ended = threading.Event()
        self._compare_clocks()
        threading.Thread(target=self._beat, name="stallwise-heartbeat", daemon=True).start()

    def _compare_clocks(self) -> None:
        """Warn where this machine's clock is not the coordinator's: nothing but the times in logs depends on it."""
        begin_s = time.time()
        status = self._client.status(Look(self.name))
        end_s = time.time()
        ahead_s = (begin_s + end_s) / 2 - status.clock_s
        if abs(ahead_s) > MAX_SKEW_S + (end_s - begin_s) / 2:
            log.warning(
                "This machine's clock is %.1f s %s the coordinator's. Membership and checkpoints do not depend on it; "
                "times in the event log do.",
                abs(ahead_s),
                "ahead of" if ahead_s > 0 else "behind",
            )

    def status(self) -> MembershipStatus:
        """Return the membership as of the last heartbeat; CoordinatorLostError where they fail."""
        if self._failure is not None:
            raise self._failure
        return self._status or self.look()

    def look(self) -> MembershipStatus:
        """Return the membership as it is now."""
        return self._keep(self._client.status(Look(self.name)))

    def next_round(self, report: Callable[[str], None] = log.warning) -> MembershipStatus:
        """Wait for the next round that this machine is in."""
        status, until_s = self._join(), time.monotonic() + self._timing.join_s
        while status.place != "member" or status.closed is not None:
            if status.closed is not None:
                raise JobClosedError
            if status.place == "out":  # it was taken for lost while it waited
                status = self._join()
            if status.present or status.waiting >= self.terms.least:
                until_s = time.monotonic() + self._timing.join_s  # a spare may wait for ever
            if time.monotonic() > until_s:
                report(f"{status.waiting} machines wait, {self.terms.least} are needed")
                raise CoordinatorLostError(f"fewer than {self.terms.least} machines")
            time.sleep(_POLL_S)
            status = self.look()
        return status

    def _join(self) -> MembershipStatus:
        terms, timing = self.terms, self._timing
        request = Join(
            self.name,
            self._ranks,
            terms.least,
            terms.most,
            timing.last_call_s,
            timing.expiry_s,
            terms.program,
            terms.again and not self._joined,
        )
        self._joined = True
        return self._keep(self._client.status(request))

    def finish(self, kind: str, why: str = "") -> MembershipStatus:
        """End the job for all machines; only a member of the present round can, see the status."""
        return self._keep(self._client.status(CloseJob(self.name, kind, why)))

    def leave(self) -> None:
        """Leave the job, so that the others need not wait until this machine counts as lost."""
        with contextlib.suppress(OSError, CoordinatorRefusedError):
            self._client.call(Leave(self.name))

    def close(self) -> None:
        """Stop sending heartbeats and close the connection."""
        self._ended.set()
        self._client.close()

    def _keep(self, status: MembershipStatus) -> MembershipStatus:
        """Keep the latest of the replies to two threads; CoordinatorLostError where they come from a new coordinator.

        A new one knows nothing of this job: its ranks may save before they begin again there.
        """
        with self._lock:
            if self._status is not None and status.coordinator != self._status.coordinator:
                raise CoordinatorLostError("it was started anew")
            if self._status is None or status.serial > self._status.serial:
                self._status = status
            return self._status

    def _beat(self) -> None:
        heard_s = time.monotonic()
        while not self._ended.wait(min(self._timing.heartbeat_s, self._timing.expiry_s / 4)):
            try:
                status = self._beats.status(Look(self.name))
                heard_s = time.monotonic()
            except CoordinatorRefusedError as error:
                self._failure = error
                break
            except CoordinatorLostError as error:
                if time.monotonic() - heard_s > self._patience_s:
                    self._failure = error
                    break
                continue
            try:
                self._keep(status)
            except CoordinatorLostError as error:
                self._failure = error
                break
        self._beats.close()

    # Counters and marks of the job, kept at the coordinator.

    def add(self, key: str, amount: int) -> int:
        return self._client.call(AddValue(key, amount)).number

    def mark(self, key: str, value: str = "1") -> None:
        self._client.call(SetValue(key, value.encode()))

    def is_marked(self, key: str) -> bool:
        return bool(self._client.call(WaitKeys([key])).number)

    def marked(self, key: str) -> str:
        return (self._client.call(GetValue(key)).value or b"").decode(errors="replace")
