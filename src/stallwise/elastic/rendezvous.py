"""Where machines meet: torch's dynamic rendezvous, with its store at a coordinator that is not preemptible.

torch's own way keeps the ranks' store on whichever machine was first, and survivors of its loss go on looking for it
there. Here every round's store is the coordinator's.
"""

import contextlib
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousError,
    RendezvousInfo,
    RendezvousStoreInfo,
    dynamic_rendezvous,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
    _RendezvousExitOp,
)

_STORE_S = 30.0
_CLOSE_S = 5.0
_LOOK_S = 0.1


def _shorter_delay(seconds: float | tuple[float, float]) -> None:
    """torch looks once a second whether the others are there, a second that the whole job waits for."""
    longest_s = seconds[1] if isinstance(seconds, tuple) else seconds
    time.sleep(min(longest_s, _LOOK_S))


dynamic_rendezvous._delay = _shorter_delay  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long machines wait for each other. torch's own defaults take 41 s to notice a loss and go on."""

    join_s: float = 600.0
    """For the least number of machines to be there."""
    last_call_s: float = 1.0
    """For more than the least."""
    heartbeat_s: float = 0.5
    heartbeats: int = 8
    """So many missed ones in a row: the machine is lost. Of three, as torch has it, one is often late by itself."""


class Meeting(DynamicRendezvousHandler):
    """One machine's part in the rendezvous of a job."""

    coordinator: tuple[str, int]
    members: frozenset[str] = frozenset()
    """Machines of the round, as it began."""

    @classmethod
    def at(cls, address: str, port: int, job: str, least: int, most: int, timing: Timing) -> "Meeting":
        """Connect to the coordinator; RendezvousConnectionError or DistNetworkError where nobody answers."""
        store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=_STORE_S))
        handler: Meeting = cls.from_backend(
            job,
            store,
            C10dRendezvousBackend(store, job),
            least,
            most,
            None,
            RendezvousTimeout(
                join=timedelta(seconds=timing.join_s),
                last_call=timedelta(seconds=timing.last_call_s),
                close=timedelta(seconds=_CLOSE_S),
                heartbeat=timedelta(seconds=_CLOSE_S),
            ),
            keep_alive_interval=timing.heartbeat_s,  # type: ignore[arg-type]
            keep_alive_max_attempt=timing.heartbeats,
        )
        handler.coordinator = address, port
        # With both set torch neither starts a store of its own nor asks another machine for one.
        handler._bootstrap_store_info = RendezvousStoreInfo(address, port)
        handler._shared_tcp_store_server = store
        return handler

    def next_rendezvous(self) -> RendezvousInfo:
        """torch's, and a list of who is in it."""
        found = super().next_rendezvous()
        self.members = frozenset(repr(node) for node in self._state_holder.state.participants)
        return found

    @property
    def name(self) -> str:
        """Of this machine in `members`."""
        return repr(self._this_node)

    @property
    def store(self) -> Store:
        """The coordinator's store itself."""
        return self._store

    @property
    def number(self) -> int:
        """Of the round."""
        return int(self._state_holder.state.round)

    @property
    def present(self) -> int:
        """Machines of the round that are still there, as of the last look."""
        return len(self._state_holder.state.participants)

    @property
    def is_done(self) -> bool:
        """Whether somebody has closed the meeting, as of the last look."""
        return bool(self._state_holder.state.closed)

    def go(self) -> None:
        """Leave without closing the door behind: the others need not wait for our heartbeat to fail."""
        with contextlib.suppress(RendezvousError, RuntimeError, OSError):
            self._stop_heartbeats()
            self._op_executor.run(_RendezvousExitOp(), self._get_deadline(timedelta(seconds=_CLOSE_S)))


def serve(port: int, address: str = "0.0.0.0") -> Any:  # noqa: S104 - machines of the job connect from elsewhere
    """The coordinator's store; it lives as long as the object does."""
    return TCPStore(address, port, is_master=True, wait_for_workers=False)
