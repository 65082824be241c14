"""One machine's agent: torchrun's elastic agent, with a memory for why ranks ended.

torch's agent counts every end of a rank against one budget, the loss of somebody else's machine included. This one
tells three apart by what the ranks left with (`codes.Left`) and keeps the count at the coordinator, over all machines:

    crash    a rank ended by itself: an exception, a signal nobody announced, out of memory
    loss     a machine is gone, with notice or without
    change   machines joined, or all were asked to start again
"""

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousGracefulExitError

from stallwise.elastic.codes import CAUSE, COORDINATOR, GRACE, HEARD, MILD, ROUND, Left
from stallwise.elastic.ranks import Ranks
from stallwise.elastic.rendezvous import Meeting

_MONITOR_S = 0.05
_KNOWN_LOST_S = 2.0
"""Ranks of a round whose machine is lost are told and get so long to end by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """How often a job may crash, and how many losses it takes; None: any number."""

    crashes: int = 3
    losses: int | None = None


@dataclass(slots=True)
class Ended:
    """Why the agent came back: done, leaving, stopped by a budget."""

    kind: str
    why: str = ""
    codes: dict[int, int] = field(default_factory=dict)


class SpentError(Exception):
    """A budget is spent."""


class Agent(SimpleElasticAgent):
    """Starts the ranks of this machine in every round, until the job is done or this machine goes."""

    def __init__(self, spec: WorkerSpec, meeting: Meeting, ranks: Ranks, budgets: Budgets, grace_s: float) -> None:
        super().__init__(spec, shutdown_timeout=max(1, int(grace_s)))
        self._meeting, self._ranks, self._budgets, self._grace_s = meeting, ranks, budgets, grace_s
        self.heard: list[str] = []
        self.round: int | None = None
        self._cause = ""

    def attend(self) -> Ended:
        """Round after round."""
        group = self._worker_group
        try:
            self._initialize_workers(group)
            while True:
                time.sleep(_MONITOR_S)
                ended = self._look(group)
                if ended is not None:
                    return ended
        except (RendezvousClosedError, RendezvousGracefulExitError):
            return Ended("done") if self._is_set("done") else Ended("stopped", self._told("stopped"))
        except SpentError as spent:
            self._mark("stopped", str(spent))
            self._meeting.shutdown()
            return Ended("stopped", str(spent), dict(self._ranks.exits))
        finally:
            self._shutdown()

    def _look(self, group: WorkerGroup) -> Ended | None:
        """Ranks, then machines: what has changed since?"""
        exits = self._forgiven(self._ranks.poll())
        if exits and (self._ranks.running or any(exits.values())):
            return self._some_ended(group) if any(exits.values()) else None
        if exits:
            self._mark("done", "1")
            self._meeting.shutdown()
            return Ended("done")
        waiting = self._meeting.num_nodes_waiting()
        if self._meeting.is_done:
            return None  # others have ended already; these have their last lines to do
        if self._meeting.present < (group.group_world_size or 0):
            self._count("lost")
            self._again(group, "loss", signal.SIGTERM, _KNOWN_LOST_S)
        elif waiting > 0 and self._meeting.present < self._meeting.settings.max_nodes:
            # (A spare beyond the most that the job takes may wait there, too; it is for the next loss.)
            self._again(group, "join", signal.SIGTERM, self._grace_s)
        return None

    def _forgiven(self, exits: dict[int, int]) -> dict[int, int]:
        """torch, taking a gloo group down, aborts about once in fifty times; after the session that is no crash."""
        for local, code in exits.items():
            if code == -signal.SIGABRT and self._is_set(f"finished/{self.round}"):
                exits[local] = 0
        return exits

    def _some_ended(self, group: WorkerGroup) -> Ended | None:
        """A rank has ended before the job was done: the round is over for all of them."""
        self._mark(f"over/{self.round}", "1")
        first = {local: code for local, code in self._ranks.exits.items() if code}
        saved = any(code in (Left.AGAIN, Left.LEAVING) for code in first.values())
        exits = self._ranks.stop(signal.SIGTERM, self._grace_s if saved else _KNOWN_LOST_S)
        if Left.LEAVING in exits.values():
            self._count("lost")
            return Ended("leaving", codes=dict(exits))
        crashed = [code for code in first.values() if code not in MILD]
        if crashed:
            self._count("crashed")
        elif Left.PEER_LOST in first.values():
            self._count("lost")
        self._cause = "crash" if crashed else "loss" if Left.PEER_LOST in first.values() else "change"
        self._restart_workers(group)
        return None

    def _again(self, group: WorkerGroup, cause: str, sent: signal.Signals, patience_s: float) -> None:
        if cause == "loss":
            self._mark(f"over/{self.round}", "1")
        self._cause = cause
        self._ranks.stop(sent, patience_s)
        self._restart_workers(group)

    # What torch's agent asks of one.

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        before = self.round
        super()._rendezvous(worker_group)
        self.round = self._meeting.number
        if before is not None:
            self._settle(before)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        host, port = self._meeting.coordinator
        environments: dict[int, Mapping[str, str]] = {}
        for worker in worker_group.workers:
            environments[worker.local_rank] = {
                "RANK": str(worker.global_rank),
                "LOCAL_RANK": str(worker.local_rank),
                "WORLD_SIZE": str(worker.world_size),
                "LOCAL_WORLD_SIZE": str(spec.local_world_size),
                "GROUP_RANK": str(worker_group.group_rank),
                "GROUP_WORLD_SIZE": str(worker_group.group_world_size),
                "TORCHELASTIC_RUN_ID": self._meeting.get_run_id(),
                "TORCHELASTIC_RESTART_COUNT": str(self.round),
                "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
                COORDINATOR: f"{host}:{port}",
                ROUND: str(self.round),
                GRACE: f"{self._grace_s:g}",
                HEARD: "\n".join(self.heard),
                CAUSE: self._cause,
            }
        return dict(self._ranks.start(environments))

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._ranks.stop(signal.SIGKILL, 0.0)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        return RunResult(state=WorkerState.HEALTHY if self._ranks.running else WorkerState.STOPPED)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self._ranks.stop(death_sig, self._grace_s)

    # The count, at the coordinator.

    def _count(self, what: str) -> None:
        """Once per round, however many agents see it; crashes at once, losses when the round is settled."""
        if self._meeting.store.add(f"{what}/{self.round}", 1) == 1 and what == "crashed":
            self._meeting.store.add("crashes", 1)

    def _settle(self, before: int) -> None:
        """A round in which no rank crashed but one was lost is a loss; then see whether a budget is spent."""
        store = self._meeting.store
        lost, crashed = store.add(f"lost/{before}", 0), store.add(f"crashed/{before}", 0)
        if lost and not crashed and store.add(f"settled/{before}", 1) == 1:
            store.add("losses", 1)
        crashes, losses = store.add("crashes", 0), store.add("losses", 0)
        if crashes > self._budgets.crashes:
            raise SpentError(f"ranks have crashed {crashes} times, {self._budgets.crashes} are allowed")
        if self._budgets.losses is not None and losses > self._budgets.losses:
            raise SpentError(f"machines were lost {losses} times, {self._budgets.losses} are allowed")

    def _mark(self, key: str, value: str) -> None:
        self._meeting.store.set(f"job/{self._meeting.get_run_id()}/{key}", value)

    def _is_set(self, key: str) -> bool:
        return bool(self._meeting.store.check([f"job/{self._meeting.get_run_id()}/{key}"]))

    def _told(self, key: str) -> str:
        name = f"job/{self._meeting.get_run_id()}/{key}"
        return self._meeting.store.get(name).decode() if self._is_set(key) else "the rendezvous was closed"
