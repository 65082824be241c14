"""One machine's agent: torchrun's elastic agent, with a memory for why ranks ended.

torch's agent counts every end of a rank against one budget, the loss of somebody else's machine included. This one
tells three apart by what the ranks left with (`codes.Left`) and keeps the count at the coordinator, over all machines:

    crash    a rank ended by itself: an exception, a signal nobody announced, out of memory; or ranks say that a peer is
             gone, and nobody is: what looks like a lost connection is then an error of the job's own
    loss     a machine is gone, with notice or without
    change   machines joined, or all were asked to start again
"""

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch._C._distributed_c10d import PrefixStore
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
_JOIN_S = 600.0
"""Nobody goes when a machine joins: a save may take longer than a grace period."""


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
        super().__init__(spec)  # its time to shut down is not asked for: torch before 2.12 knows none
        self._meeting, self._ranks, self._budgets, self._grace_s = meeting, ranks, budgets, grace_s
        self.heard: list[str] = []
        self.round: int | None = None
        self._members: frozenset[str] = frozenset()
        self._cause = ""
        # One coordinator may serve many jobs, one after another or at once.
        self._book = PrefixStore(f"job/{meeting.get_run_id()}", meeting.store)

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
            return self._was_ended()
        except SpentError as spent:
            self._mark("stopped", str(spent))
            self._meeting.shutdown()
            return Ended("stopped", str(spent), dict(self._ranks.exits))
        finally:
            self._shutdown()

    def _was_ended(self) -> Ended:
        """Others have closed the job; where that was before this machine came, say so."""
        late = "" if self.round is not None else f"job {self._meeting.get_run_id()!r} has ended"
        if self._is_set("done"):
            return Ended("done", late)
        return Ended("stopped", ": ".join(filter(None, (late, self._told("stopped")))))

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
            self._again(group, "loss", _KNOWN_LOST_S)
        elif waiting > 0 and self._meeting.present < self._meeting.settings.max_nodes:
            # (A spare beyond the most that the job takes may wait there, too; it is for the next loss.)
            self._again(group, "join", max(self._grace_s, _JOIN_S))
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
            self.leave()
            return Ended("leaving", codes=dict(exits))
        crashed = [code for code in first.values() if code not in MILD]
        if crashed:
            self._once("crashed", "crashes")
        elif Left.PEER_LOST in first.values():
            self._book.add(f"blamed/{self.round}", 1)
        self._cause = "crash" if crashed else "loss" if Left.PEER_LOST in first.values() else "change"
        self._restart_workers(group)
        return None

    def _again(self, group: WorkerGroup, cause: str, patience_s: float) -> None:
        if cause == "loss":
            self._mark(f"over/{self.round}", "1")
        self._cause = cause
        self._ranks.stop(signal.SIGTERM, patience_s, lambda: self._lost_meanwhile(group))
        self._restart_workers(group)

    def _lost_meanwhile(self, group: WorkerGroup) -> bool:
        """Whether a machine was lost while ranks save for another that joins: then they wait for nothing."""
        self._meeting.num_nodes_waiting()  # looks
        if self._meeting.present >= (group.group_world_size or 0) or self._meeting.is_done:
            return False
        self._mark(f"over/{self.round}", "1")
        return True

    # What torch's agent asks of one.

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        before, members = self.round, self._members
        if before is not None:
            self._here(before)
        super()._rendezvous(worker_group)
        self.round, self._members = self._meeting.number, self._meeting.members
        if before is not None:
            self._settle(before, members - self._members)
        self._stop_if_spent()

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

    def leave(self) -> None:
        """This machine was told to go."""
        if self.round is not None:
            self._gone(self.round, self._meeting.name)

    def _gone(self, number: int, machine: str) -> None:
        """A machine of a round is lost; counted once, by itself where it had notice, else by who misses it first."""
        if self._book.add(f"away/{number}/{machine}", 1) == 1:
            self._book.add(f"gone/{number}", 1)
            self._book.add("losses", 1)

    def _here(self, number: int) -> None:
        """This machine is not lost: it was only late, and a spare may have its place in the next round already."""
        if self._book.add(f"away/{number}/{self._meeting.name}", 1) > 1:
            self._book.add(f"gone/{number}", -1)
            self._book.add("losses", -1)

    def _once(self, what: str, counter: str) -> None:
        """Once per round, however many agents see it."""
        if self._book.add(f"{what}/{self.round}", 1) == 1:
            self._book.add(counter, 1)

    def _settle(self, before: int, missing: frozenset[str]) -> None:
        """Who is not here any more is lost. Where ranks blamed a peer, and none was lost or crashed, it is a crash."""
        for machine in missing:
            self._gone(before, machine)
        blamed, known = (self._counted(f"blamed/{before}"), self._counted(f"gone/{before}", f"crashed/{before}"))
        if blamed and not known and self._book.add(f"settled/{before}", 1) == 1:
            self._book.add("crashes", 1)

    def _stop_if_spent(self) -> None:
        crashes, losses = self._counted("crashes"), self._counted("losses")
        if crashes > self._budgets.crashes:
            raise SpentError(f"ranks have crashed {crashes} times, {self._budgets.crashes} are allowed")
        if self._budgets.losses is not None and losses > self._budgets.losses:
            raise SpentError(f"machines were lost {losses} times, {self._budgets.losses} are allowed")

    def _counted(self, *keys: str) -> int:
        return sum(self._book.add(key, 0) for key in keys)

    def _mark(self, key: str, value: str) -> None:
        self._book.set(key, value)

    def _is_set(self, key: str) -> bool:
        return bool(self._book.check([key]))

    def _told(self, key: str) -> str:
        return self._book.get(key).decode() if self._is_set(key) else "the rendezvous was closed"
